//! Who may come in by which entrance, and which sessions may stay when the rules change. The shards and
//! whoever foretells a change ask the same two functions.

use std::net::IpAddr;

use lunet_iscsi::chap::Proof;

use crate::access::{Access, Objection};
use lunet_server::network::Origin;

/// Somebody who logs in or has logged in, as far as rules look at it.
#[derive(Clone, Copy, Debug)]
pub struct Visitor<'a> {
    /// The initiator's iSCSI name.
    pub initiator: &'a str,
    /// Where it comes from.
    pub origin: Origin,
    /// How it has proved who it is.
    pub proof: Option<&'a Proof>,
    /// A gateway has logged in for it, which has asked for its proof.
    pub vouched: bool,
}

/// A way in, with the rules that hold there. Two that are equal let in the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entrance<'a> {
    /// To a target by one portal.
    Target {
        /// The target's rules.
        access: &'a Access,
        /// The portal is there, and leads to the target.
        reached: bool,
    },
    /// To the list of targets by one portal. It is not closed where nobody is named: it has what the rules of
    /// each target let one know.
    Discovery {
        /// The rules of discovery.
        access: &'a Access,
        /// The portal is there.
        reached: bool,
    },
}

/// What becomes of a session when rules change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes on: it could log in now; or it could not and stayed before, and the rules are the same.
    Stays,
    /// It could not log in now, and goes on because sessions are kept.
    Kept(Objection),
    /// It ends.
    Ends(Objection),
}

impl<'a> Entrance<'a> {
    fn access(&self) -> &'a Access {
        match self {
            Self::Target { access, .. } | Self::Discovery { access, .. } => access,
        }
    }

    /// Why this initiator may not even know of it; nothing if it may.
    fn hidden_from(&self, initiator: &str, origin: Origin) -> Option<Objection> {
        match self {
            Self::Target { reached: false, .. } | Self::Discovery { reached: false, .. } => {
                return Some(Objection::Portal);
            }
            Self::Target { access, .. } if access.is_closed_to(origin) => {
                return Some(Objection::Closed);
            }
            Self::Target { .. } | Self::Discovery { .. } => {}
        }
        let address: IpAddr = origin.address;
        (!self.access().admits(initiator, address)).then_some(Objection::Initiator)
    }

    /// True if an initiator may know of it and try to log in.
    pub fn admits(&self, initiator: &str, origin: Origin) -> bool {
        self.hidden_from(initiator, origin).is_none()
    }

    /// Why a visitor with this proof could not log in now; nothing if it could.
    pub fn objection(&self, visitor: Visitor<'_>) -> Option<Objection> {
        let Visitor { initiator, origin, proof, vouched } = visitor;
        let unproven = || self.access().objection_to(proof, initiator, origin.address);
        self.hidden_from(initiator, origin).or_else(|| if vouched { None } else { unproven() })
    }

    /// What becomes of a session that came in here when the entrance becomes `next`, with `keep` if sessions
    /// that could not log in stay all the same.
    pub fn fate(&self, next: &Self, visitor: Visitor<'_>, keep: bool) -> Fate {
        match next.objection(visitor) {
            None => Fate::Stays,
            Some(_) if self == next && self.objection(visitor).is_some() => Fate::Stays,
            Some(objection) if keep => Fate::Kept(objection),
            Some(objection) => Fate::Ends(objection),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Initiators;

    #[test]
    fn who_stays_is_who_could_log_in_or_was_kept_before() {
        let ip = |text: &str| text.parse().expect("an address");
        let origin = |peer: &str| Origin::new(ip(peer), ip("192.0.2.9"));
        let visitor = |peer| Visitor {
            initiator: "iqn.x:a",
            origin: origin(peer),
            proof: None,
            vouched: false,
        };
        let (here, there) = (visitor("192.0.2.9"), visitor("192.0.2.1"));
        let list = |name: &str| {
            let mut initiators = Initiators::default();
            initiators.add_name(name);
            Access { initiators, ..Access::default() }
        };
        let (open, closed) = (Access { open: true, ..Access::default() }, Access::default());
        let (ours, others) = (list("iqn.x:*"), list("iqn.y:*"));
        let at = |access| Entrance::Target { access, reached: true };
        let found = |access, reached| Entrance::Discovery { access, reached };
        let unreached = Entrance::Target { access: &open, reached: false };
        use Objection::{Closed, Initiator, Portal};
        for (now, next, who, objection) in [
            (at(&open), at(&closed), there, Some(Closed)),
            (at(&open), at(&closed), here, None),
            (at(&ours), at(&closed), there, Some(Closed)),
            (at(&closed), at(&ours), here, None),
            (at(&ours), at(&others), here, Some(Initiator)),
            (at(&open), unreached, here, Some(Portal)),
            (found(&open, true), found(&closed, true), there, None),
            (found(&closed, true), found(&others, true), there, Some(Initiator)),
            (found(&closed, true), found(&closed, false), there, Some(Portal)),
        ] {
            let said = [false, true].map(|keep| now.fate(&next, who, keep));
            let wanted = match objection {
                None => [Fate::Stays; 2],
                Some(why) => [Fate::Ends(why), Fate::Kept(why)],
            };
            assert_eq!(said, wanted, "{now:?} {next:?}");
            assert_eq!(next.admits(who.initiator, who.origin), objection.is_none());
            // Kept once, it stays as long as these rules do.
            assert_eq!(next.fate(&next, who, false), Fate::Stays);
        }
    }
}
