//! Any messages at both ends of DH-HMAC-CHAP, and any text as a secret or an identity of TLS.
use crate::Input;
use lunet_nvme::auth::chap::{
    Concatenation, Credentials, HostNext, Initiator, Names, Next, Responder, Terms,
};
use lunet_nvme::auth::dh::Group;
use lunet_nvme::auth::psk::Identity;
use lunet_nvme::auth::{Hash, Purpose, Secret};

/// 'Random' bytes.
fn random(bytes: &mut [u8]) -> bool {
    bytes.fill(0x5c);
    true
}

fn secret(byte: u8) -> Secret {
    Secret::new(Purpose::DhChap, None, &[byte; 32]).expect("a secret")
}

/// The next message: its head, and as much as the input says.
fn message(input: &mut Input<'_>) -> Vec<u8> {
    let id = input.byte();
    let common = matches!(id & 7, 0 | 6 | 7);
    let code = match id & 7 {
        6 => 0xf0,
        7 => 0xf1,
        code => code,
    };
    let n = usize::from(input.byte());
    [&[u8::from(!common), code, 0, 0, id >> 7, 0][..], input.take(n)].concat()
}

/// One input.
pub fn run(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Identity::parse(text);
        for purpose in [Purpose::DhChap, Purpose::Tls] {
            if let Ok(secret) = Secret::parse(purpose, text) {
                assert_eq!(Secret::parse(purpose, &secret.to_text()), Ok(secret));
            }
        }
    }
    let mut input = Input(data);
    let names = Names { host: "h".into(), subsystem: "s".into() };
    // Without an exchange of Diffie-Hellman, which would take all the time.
    let (hashes, groups) = (vec![Hash::Sha256, Hash::Sha512], vec![Group::Null]);
    let terms = Terms {
        names: names.clone(),
        host: secret(1),
        controller: Some(secret(2)),
        hashes: hashes.clone(),
        groups: groups.clone(),
        concatenation: Concatenation::Refused,
    };
    let credentials = Credentials {
        names,
        host: secret(3),
        controller: Some(secret(4)),
        hashes,
        groups,
        concatenation: false,
    };
    let mut controller = Responder::new(terms, 1);
    let mut host = Initiator::new(credentials, 0, 1, &mut random).expect("random numbers");
    while !input.is_empty() {
        let kind = input.byte();
        let bytes = message(&mut input);
        if kind & 1 == 0 {
            let next = controller.sent(&bytes, &mut random);
            assert!(matches!(next, Next::Wait));
            let room = usize::from(input.byte());
            assert!(controller.receive(room).is_none_or(|bytes| bytes.len() <= room));
        } else {
            let next = host.received(&bytes);
            assert!(!matches!(next, HostNext::Compute(_)));
            assert!(!matches!(next, HostNext::Done(Some(_))), "the controller has proved nothing");
        }
    }
    assert!(!controller.is_done(), "nobody has the secret");
}
