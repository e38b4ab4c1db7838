//! A login of a gateway on behalf of an initiator that has logged in to it: a key of lunet's own (RFC 7143 section 6.1,
//! `X-`). The gateway proves with CHAP that it is one; what the initiator had to prove, it has proved there.

use alloc::string::{String, ToString};
use core::fmt;
use core::net::IpAddr;

/// The gateway that an initiator comes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Through {
    /// Its number, which is that of its target port.
    pub gateway: u16,
    /// The epoch of the group, as it knows it.
    pub epoch: u64,
    /// The initiator's address there.
    pub host: IpAddr,
    /// It has lost commands of the initiator that may still come by another session: they are not to be executed.
    pub renews: bool,
}

/// The last part of the value, if there is something to renew.
const RENEWS: &str = "renews";

impl Through {
    /// The key. It belongs into the first request, beside the names.
    pub const KEY: &'static str = "X-local.lunet.through";

    /// Reads a value. What is read is written as the same text again.
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        let mut parts = value.split(',');
        let through = Self {
            gateway: parts.next()?.parse().ok()?,
            epoch: parts.next()?.parse().ok()?,
            host: parts.next()?.parse().ok()?,
            renews: parts.next() == Some(RENEWS),
        };
        (through.to_string() == value).then_some(through)
    }

    /// What its proofs are bound to, beside the secret: all that it says, for this initiator and target.
    #[must_use]
    pub fn claim(&self, (initiator, isid): (&str, [u8; 6]), target: &str) -> String {
        let isid = u64::from_be_bytes([0, 0, isid[0], isid[1], isid[2], isid[3], isid[4], isid[5]]);
        // None of the parts has a space.
        alloc::format!("{self} {isid:012x} {initiator} {target}")
    }
}

impl fmt::Display for Through {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gateway, epoch, host, renews } = self;
        write!(f, "{gateway},{epoch},{host}")?;
        if *renews { write!(f, ",{RENEWS}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_was_written_and_nothing_else_is_one() {
        for host in ["192.0.2.7", "2001:db8::7"] {
            for renews in [false, true] {
                let through =
                    Through { gateway: 2, epoch: 17, host: host.parse().unwrap(), renews };
                assert_eq!(Through::parse(&through.to_string()), Some(through));
            }
        }
        let more = ["2,17,192.0.2.7,", "2,17,192.0.2.7,renew", "2,17,192.0.2.7,renews,renews"];
        for other in ["", "2", "2,17", "2,17,x", "02,17,192.0.2.7", "2,+17,::1"].iter().chain(&more)
        {
            assert_eq!(Through::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_proof_for_one_claim_is_none_for_another() {
        let host = [192, 0, 2, 7].into();
        let through = Through { gateway: 2, epoch: 17, host, renews: false };
        let renews = Through { renews: true, ..through };
        let other = Through { epoch: 18, ..through };
        let claims = [
            through.claim(("iqn.x:a", [1; 6]), "iqn.x:t"),
            through.claim(("iqn.x:a", [2; 6]), "iqn.x:t"),
            through.claim(("iqn.x:b", [1; 6]), "iqn.x:t"),
            through.claim(("iqn.x:a", [1; 6]), "iqn.x:u"),
            other.claim(("iqn.x:a", [1; 6]), "iqn.x:t"),
            renews.claim(("iqn.x:a", [1; 6]), "iqn.x:t"),
        ];
        for (at, one) in claims.iter().enumerate() {
            assert!(!claims[..at].contains(one), "{one}");
        }
    }
}
