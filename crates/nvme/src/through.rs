//! A Connect of a gateway on behalf of a host that is connected to it: something of lunet's own, in bytes of the data that the
//! specification reserves. The gateway proves with DH-HMAC-CHAP that it is one; what the host had to prove, it has proved
//! there.
//!
//! The queue has no admin queue beside it: it is identifier 1 of a controller that the Connect lets the other end choose.

use crate::fabrics::Connect;
use alloc::string::String;
use core::fmt::Write;
use core::net::{IpAddr, Ipv6Addr};

/// What the reserved bytes begin with.
const MAGIC: [u8; 8] = *b"lunetway";
/// How many of them are used.
const LEN: usize = 35;

/// The gateway that a host comes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Through {
    /// Its number.
    pub gateway: u16,
    /// The epoch of the group, as it knows it.
    pub epoch: u64,
    /// The host's address there.
    pub host: IpAddr,
    /// It has lost commands of the host that may still come by a former queue: they are not to be executed.
    pub renews: bool,
}

impl Through {
    /// Reads it from the reserved bytes. `None` if they are of no use.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (used, rest) = bytes.split_at_checked(LEN)?;
        let rest_is_zero = rest.iter().all(|byte| *byte == 0);
        let (magic, used) = used.split_first_chunk()?;
        let (gateway, used) = used.split_first_chunk()?;
        let (epoch, used) = used.split_first_chunk()?;
        let ([renews], used) = used.split_first_chunk()?;
        let host: [u8; 16] = used.try_into().ok()?;
        let is_one = *magic == MAGIC && rest_is_zero && *renews <= 1;
        is_one.then_some(Self {
            gateway: u16::from_le_bytes(*gateway),
            epoch: u64::from_le_bytes(*epoch),
            host: Ipv6Addr::from(host).to_canonical(),
            renews: *renews == 1,
        })
    }

    /// Writes it into the reserved bytes.
    pub(crate) fn write(&self, bytes: &mut [u8]) {
        let address = match self.host {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let parts: [&[u8]; 5] = [
            &MAGIC,
            &self.gateway.to_le_bytes(),
            &self.epoch.to_le_bytes(),
            &[u8::from(self.renews)],
            &address.octets(),
        ];
        let mut at = 0;
        for part in parts {
            if let Some(room) = bytes.get_mut(at..at + part.len()) {
                room.copy_from_slice(part);
            }
            at += part.len();
        }
    }

    /// What its proofs are bound to, beside the secret: all that it says, for the host and the subsystem of this Connect.
    #[must_use]
    pub fn claim(&self, connect: &Connect) -> String {
        let Self { gateway, epoch, host, renews } = self;
        let (host, id) = (host.to_canonical(), u128::from_be_bytes(connect.host_id));
        let mut claim = String::new();
        // None of the parts but the last has a space. A string takes whatever is written.
        let _ = write!(claim, "{gateway},{epoch},{host},{renews} {id:032x} ");
        let _ = write!(claim, "{} {}", connect.hostnqn, connect.subnqn);
        claim
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabrics::ANY_CONTROLLER;
    use core::time::Duration;

    fn connect(through: Option<Through>) -> Connect {
        Connect {
            qid: 1,
            sqsize: 127,
            no_sq_flow: false,
            kato: Duration::ZERO,
            host_id: [7; 16],
            cntlid: ANY_CONTROLLER,
            subnqn: "nqn.2026-11.org.lunet:s".into(),
            hostnqn: "nqn.2026-11.org.lunet:h".into(),
            through,
        }
    }

    #[test]
    fn a_connect_through_a_gateway_is_read_as_it_was_written_and_without_it_is_none() {
        for (host, renews) in [("192.0.2.7", true), ("2001:db8::7", false)] {
            let host = host.parse().unwrap();
            let sent = connect(Some(Through { gateway: 2, epoch: 17, host, renews }));
            let (sqe, data) = sent.encode();
            assert_eq!(Connect::decode(&sqe, &data), Ok(sent.clone()));
            // Another queue, or a controller of its own choice, is nothing that a gateway asks for.
            let other = Connect { qid: 0, ..sent.clone() }.encode();
            assert_eq!(Connect::decode(&other.0, &other.1), Err(Connect::WRONG_QUEUE));
            let other = Connect { cntlid: 1, ..sent }.encode();
            assert_eq!(Connect::decode(&other.0, &other.1), Err(Connect::WRONG_CONTROLLER));
        }
        let (sqe, data) = connect(None).encode();
        assert_eq!(Connect::decode(&sqe, &data), Err(Connect::WRONG_CONTROLLER));
    }

    #[test]
    fn a_proof_for_one_claim_is_none_for_another() {
        let host = [192, 0, 2, 7].into();
        let through = Through { gateway: 2, epoch: 17, host, renews: false };
        let one = connect(None);
        let claims = [
            through.claim(&one),
            Through { gateway: 3, ..through }.claim(&one),
            Through { epoch: 18, ..through }.claim(&one),
            Through { host: [192, 0, 2, 8].into(), ..through }.claim(&one),
            Through { renews: true, ..through }.claim(&one),
            through.claim(&Connect { host_id: [8; 16], ..one.clone() }),
            through.claim(&Connect { hostnqn: "nqn.2026-11.org.lunet:i".into(), ..one.clone() }),
            through.claim(&Connect { subnqn: "nqn.2026-11.org.lunet:t".into(), ..one }),
        ];
        for (at, one) in claims.iter().enumerate() {
            assert!(!claims[..at].contains(one), "{one}");
        }
    }
}
