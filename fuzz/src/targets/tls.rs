//! Any bytes at both ends of a TLS handshake: at a server that has heard nothing or has answered a ClientHello, and at a
//! client.
use crate::Input;
use lunet_tls::client::{Client, Config};
use lunet_tls::exchange::Group;
use lunet_tls::server::Server;
use lunet_tls::suite::Hash;
use lunet_tls::{Error, Next, Psk};
use zeroize::Zeroizing;

/// 'Random' bytes.
fn random(bytes: &mut [u8]) -> bool {
    bytes.fill(0x5c);
    true
}

fn psk() -> Psk {
    Psk { hash: Hash::Sha256, key: Zeroizing::new(vec![7; 32]) }
}

/// The key of the identity `h`.
fn keys(identity: &[u8]) -> Vec<Psk> {
    if identity == b"h" { vec![psk()] } else { Vec::new() }
}

fn client(shares: usize) -> Client {
    let config = Config {
        identity: b"h".to_vec(),
        psk: psk(),
        groups: Group::ALL.to_vec(),
        shares,
        compatible: true,
    };
    Client::new(config, &mut random).expect("random numbers")
}

/// Everything to a server. Nobody proves a key by bytes that are no ClientHello of `client`.
fn serve(server: &mut Server, bytes: &[u8]) -> Result<usize, Error> {
    let mut at = 0;
    while at < bytes.len() && server.wants() > 0 {
        let (taken, next) = server.receive(&bytes[at..], &mut keys, &mut random)?;
        at += taken;
        match next {
            Next::Compute(job) => drop(server.computed(job.compute(), &mut random)?),
            Next::Receive => {}
            Next::Done => panic!("nobody has the keys of the handshake"),
        }
    }
    Ok(at)
}

/// One input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let kind = input.byte();
    let rest = input.take(data.len());
    match kind & 3 {
        0 => {
            let _ = serve(&mut Server::new(), rest);
        }
        1 => {
            // Behind the header of a record and of a ClientHello.
            let len = rest.len().min(4000) as u16;
            let head = [22, 3, 1, 0, 0, 1, 0, 0, 0];
            let mut bytes = [&head[..], &rest[..usize::from(len)]].concat();
            bytes[3..5].copy_from_slice(&(len + 4).to_be_bytes());
            bytes[7..9].copy_from_slice(&len.to_be_bytes());
            let _ = serve(&mut Server::new(), &bytes);
        }
        2 => {
            let mut server = Server::new();
            let hello = client(usize::from(kind >> 2 & 1)).take_out();
            assert_eq!(serve(&mut server, &hello), Ok(hello.len()));
            let _ = serve(&mut server, rest);
        }
        _ => {
            let mut client = client(usize::from(kind >> 2 & 1));
            if let Ok((taken, next)) = client.receive(rest, &mut random) {
                assert!(taken == rest.len() && matches!(next, Next::Receive));
            }
        }
    }
}
