//! A client and a server in memory.

use lunet_tls::client::{Client, Config};
use lunet_tls::exchange::Group;
use lunet_tls::server::Server;
use lunet_tls::suite::Hash;
use lunet_tls::{Error, Next, Psk, Session};
use zeroize::Zeroizing;

/// The identity that the server knows.
pub const IDENTITY: &[u8] = b"NVMe0R01 nqn.2014-08.org.example:host nqn.2014-08.org.example:sub";

/// A key of this byte.
pub fn psk(hash: Hash, byte: u8) -> Psk {
    Psk { hash, key: Zeroizing::new(vec![byte; hash.size()]) }
}

/// A client with the right key.
pub fn config(hash: Hash) -> Config {
    Config {
        identity: IDENTITY.to_vec(),
        psk: psk(hash, 7),
        groups: Group::ALL.to_vec(),
        shares: 1,
        compatible: true,
    }
}

/// Numbers that look random, from a seed.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn fill(&mut self, bytes: &mut [u8]) -> bool {
        for byte in bytes {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = (self.0 >> 33) as u8;
        }
        true
    }

    /// One below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        let mut bytes = [0; 4];
        self.fill(&mut bytes);
        u32::from_be_bytes(bytes) as usize % bound
    }
}

/// What a server does that knows these keys for [`IDENTITY`].
pub struct Peer {
    pub server: Server,
    pub keys: Vec<Psk>,
    pub numbers: Numbers,
}

impl Peer {
    pub fn new(keys: Vec<Psk>, seed: u64) -> Self {
        Self { server: Server::new(), keys, numbers: Numbers(seed) }
    }

    /// Gives it bytes, computes what is to be computed, and returns how many it took.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(usize, bool), Error> {
        let keys = self.keys.clone();
        let mut known =
            |identity: &[u8]| if identity == IDENTITY { keys.clone() } else { Vec::new() };
        let mut random = |bytes: &mut [u8]| self.numbers.fill(bytes);
        let (taken, next) = self.server.receive(bytes, &mut known, &mut random)?;
        match next {
            Next::Compute(job) => {
                self.server.computed(job.compute(), &mut random)?;
                Ok((taken, false))
            }
            Next::Receive => Ok((taken, false)),
            Next::Done => Ok((taken, true)),
        }
    }
}

/// How a handshake in memory ended.
pub struct Outcome {
    pub client: Result<Session, Error>,
    pub server: Result<Session, Error>,
    /// Messages from client to server and back, one behind the other.
    pub sent: (Vec<u8>, Vec<u8>),
}

/// A handshake in which everything is cut into pieces of random length, and `damage` sees what is sent, with true from the
/// client and with the offset.
pub fn handshake(
    config: Config,
    keys: Vec<Psk>,
    seed: u64,
    mut damage: impl FnMut(bool, usize, &mut Vec<u8>),
) -> Outcome {
    let mut numbers = Numbers(seed ^ 0x5555);
    let mut cuts = Numbers(seed ^ 0xaaaa);
    let mut client =
        Client::new(config, &mut |bytes: &mut [u8]| numbers.fill(bytes)).expect("a client");
    let mut peer = Peer::new(keys, seed);
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    let mut sent = (Vec::new(), Vec::new());
    let (mut client_error, mut server_error) = (None, None);
    loop {
        let mut fresh = client.take_out();
        damage(true, sent.0.len(), &mut fresh);
        sent.0.extend_from_slice(&fresh);
        to_server.extend_from_slice(&fresh);
        let mut fresh = peer.server.take_out();
        damage(false, sent.1.len(), &mut fresh);
        sent.1.extend_from_slice(&fresh);
        to_client.extend_from_slice(&fresh);
        let mut moved = false;
        if !to_server.is_empty() && peer.server.wants() > 0 {
            let n = 1 + cuts.below(to_server.len());
            match peer.receive(&to_server[..n]) {
                Ok((taken, _)) => drop(to_server.drain(..taken)),
                Err(why) => server_error = Some(why),
            }
            moved = true;
        }
        if !to_client.is_empty() && client.wants() > 0 {
            let n = 1 + cuts.below(to_client.len());
            let mut random = |bytes: &mut [u8]| numbers.fill(bytes);
            match client.receive(&to_client[..n], &mut random) {
                Ok((taken, _)) => drop(to_client.drain(..taken)),
                Err(why) => client_error = Some(why),
            }
            moved = true;
        }
        if !moved {
            break;
        }
    }
    // Whoever is not done waits for ever, or has failed.
    let waits = Error::Unexpected;
    Outcome {
        client: client.finish().ok_or(client_error.unwrap_or(waits)),
        server: peer.server.finish().ok_or(server_error.unwrap_or(waits)),
        sent,
    }
}
