//! The key schedule (RFC 8446 section 7.1).

use alloc::vec::Vec;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::error::Error;
use crate::suite::{Hash, Suite};
use crate::traffic::TrafficKey;

/// Bytes that are overwritten when they are dropped.
pub(crate) type Secret = Zeroizing<Vec<u8>>;

/// HKDF-Extract.
fn extract(hash: Hash, salt: &[u8], key: &[u8]) -> Secret {
    hash.hmac(salt, &[key])
}

/// HKDF-Expand-Label; `len` is at most one hash, which is all that is ever asked for.
pub(crate) fn expand(hash: Hash, secret: &[u8], label: &str, context: &[u8], len: usize) -> Secret {
    debug_assert!(len <= hash.size() && label.len() <= 12 && context.len() <= 255);
    let label_len = [6 + label.len() as u8];
    let parts: [&[u8]; 7] = [
        &(len as u16).to_be_bytes(),
        &label_len,
        b"tls13 ",
        label.as_bytes(),
        &[context.len() as u8],
        context,
        &[1],
    ];
    let mut out = hash.hmac(secret, &parts);
    out.truncate(len);
    out
}

/// Derive-Secret of messages whose hash is `transcript`.
fn derive(hash: Hash, secret: &[u8], label: &str, transcript: &[u8]) -> Secret {
    expand(hash, secret, label, transcript, hash.size())
}

/// The MAC of Finished, or of a binder, with a traffic secret or a binder key.
pub(crate) fn finished(hash: Hash, secret: &[u8], transcript: &[u8]) -> Secret {
    let key = expand(hash, secret, "finished", &[], hash.size());
    hash.hmac(&key, &[transcript])
}

/// Checks such a MAC in constant time.
///
/// # Errors
/// It is another one.
pub(crate) fn check(right: &[u8], given: &[u8]) -> Result<(), Error> {
    if bool::from(right.ct_eq(given)) { Ok(()) } else { Err(Error::Proof) }
}

/// The secret that the schedule begins with: the pre-shared key's.
pub(crate) struct Early {
    hash: Hash,
    secret: Secret,
}

impl Early {
    pub(crate) fn new(hash: Hash, psk: &[u8]) -> Self {
        Self { hash, secret: extract(hash, &[0; 48][..hash.size()], psk) }
    }

    /// The binder of an external key (section 4.2.11.2), over the hash of what precedes the list of binders.
    pub(crate) fn binder(&self, transcript: &[u8]) -> Secret {
        let nothing = self.hash.digest(&[]);
        let key = derive(self.hash, &self.secret, "ext binder", &nothing);
        finished(self.hash, &key, transcript)
    }

    /// The next stage, with the shared secret of Diffie-Hellman and the hash of both hellos.
    pub(crate) fn handshake(&self, shared: &[u8], transcript: &[u8]) -> Handshake {
        let hash = self.hash;
        let salt = derive(hash, &self.secret, "derived", &hash.digest(&[]));
        let secret = extract(hash, &salt, shared);
        Handshake {
            hash,
            client: derive(hash, &secret, "c hs traffic", transcript),
            server: derive(hash, &secret, "s hs traffic", transcript),
            secret,
        }
    }
}

/// The secrets of the handshake.
pub(crate) struct Handshake {
    hash: Hash,
    secret: Secret,
    /// Of the client's messages.
    pub(crate) client: Secret,
    /// Of the server's messages.
    pub(crate) server: Secret,
}

impl Handshake {
    /// The client's and the server's keys for what follows, with the hash of all messages up to the server's Finished.
    pub(crate) fn application(&self, suite: Suite, transcript: &[u8]) -> (TrafficKey, TrafficKey) {
        let hash = self.hash;
        let salt = derive(hash, &self.secret, "derived", &hash.digest(&[]));
        let master = extract(hash, &salt, &[0; 48][..hash.size()]);
        let key = |label| TrafficKey::new(suite, &derive(hash, &master, label, transcript));
        (key("c ap traffic"), key("s ap traffic"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::string::String;

    fn bytes(text: &str) -> Vec<u8> {
        let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
        let byte = |pair: &[char]| {
            u8::from_str_radix(&pair.iter().collect::<String>(), 16).expect("hexadecimal")
        };
        digits.chunks(2).map(byte).collect()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// RFC 8448 section 3, 'Simple 1-RTT Handshake': its schedule begins with zeroes in place of a key.
    #[test]
    fn the_schedule_is_that_of_rfc_8448() {
        let hash = Hash::Sha256;
        let early = Early::new(hash, &[0; 32]);
        let expected = "33ad0a1c607ec03b09e6cd9893680ce210adf300aa1f2660e1b22e10f170f92a";
        assert_eq!(hex(&early.secret), expected);
        let shared = "8bd4054fb55b9d63fdfbacf9f04b9f0d35e6d63f537563efd46272900f89492d";
        let hellos = "860c06edc07858ee8e78f0e7428c58edd6b43f2ca3e6e95f02ed063cf0e1cad8";
        let handshake = early.handshake(&bytes(shared), &bytes(hellos));
        let expected = "1dc826e93606aa6fdc0aadc12f741b01046aa6b99f691ed221a9f0ca043fbeac";
        assert_eq!(hex(&handshake.secret), expected);
        let expected = "b3eddb126e067f35a780b3abf45e2d8f3b1a950738f52e9600746a0e27a55a21";
        assert_eq!(hex(&handshake.client), expected);
        let expected = "b67b7d690cc16c4e75e54213cb2d37b4e9c912bcded9105d42befd59d391ad38";
        assert_eq!(hex(&handshake.server), expected);
        let server = TrafficKey::new(Suite::Aes128GcmSha256, &handshake.server);
        assert_eq!(hex(&server.key), "3fce516009c21727d0f2e4e86ee403bc");
        assert_eq!(hex(&server.iv[..]), "5d313eb2671276ee13000b30");
        let messages = "9608102a0f1ccc6db6250b7b7e417b1a000eaada3daae4777a7686c9ff83df13";
        let (client, server) = handshake.application(Suite::Aes128GcmSha256, &bytes(messages));
        assert_eq!(hex(&server.key), "9f02283b6c9c07efc26bb9f2ac92e356");
        assert_eq!(hex(&server.iv[..]), "cf782b88dd83549aadf1e984");
        assert_eq!(hex(&client.key), "17422dda596ed5d9acd890e3c63f5051");
        assert_eq!(hex(&client.iv[..]), "5b78923dee08579033e523d9");
    }
}
