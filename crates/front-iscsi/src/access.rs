//! Who may see and reach what.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use lunet_iscsi::chap::{Account, Algorithms, Proof};
use lunet_iscsi::target::Credentials;

use lunet_server::network::{Network, Origin};

/// A set of initiators, by their names and their addresses. If it has names, an initiator must have one of
/// them; if it has networks, it must come from one of them. A set without either is everybody, unless
/// it was made as [`nobody`](Self::nobody).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Initiators {
    names: Vec<String>,
    networks: Vec<Network>,
    nobody: bool,
}

impl Initiators {
    /// No initiator at all.
    pub fn nobody() -> Self {
        Self { nobody: true, ..Self::default() }
    }

    /// True if no initiator is one of them.
    pub fn is_nobody(&self) -> bool {
        self.nobody
    }

    /// True if every name and every network of the other set is written in this one.
    pub fn lists(&self, other: &Self) -> bool {
        !self.nobody
            && other.names.iter().all(|name| self.names.contains(name))
            && other.networks.iter().all(|network| self.networks.contains(network))
    }

    /// Patterns of initiator names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Networks whose addresses are members of the set.
    pub fn networks(&self) -> &[Network] {
        &self.networks
    }

    /// Adds an iSCSI name. `*` stands for any characters, or none.
    pub fn add_name(&mut self, pattern: &str) {
        self.names.push(pattern.to_ascii_lowercase());
    }

    /// Adds a network.
    pub fn add_network(&mut self, network: Network) {
        self.networks.push(network);
    }

    /// True if the set is everybody.
    pub fn is_everybody(&self) -> bool {
        !self.nobody && self.names.is_empty() && self.networks.is_empty()
    }

    /// True if the initiator with this name and address is one of them. Names are compared without regard
    /// to case, as iSCSI names are (RFC 7143 section 4.2.7.1).
    pub fn have(&self, name: &str, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let name = name.to_ascii_lowercase();
        !self.nobody
            && (self.names.is_empty() || self.names.iter().any(|pattern| matches(pattern, &name)))
            && (self.networks.is_empty() || self.networks.iter().any(|net| net.has(address)))
    }
}

/// True if a name fits a pattern, in which `*` stands for any part of it.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // The last asterisk, and how much of the name it stands for.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, n));
            p += 1;
        } else if pattern.get(p) == Some(&name[n]) {
            (p, n) = (p + 1, n + 1);
        } else if let Some((at, taken)) = star {
            star = Some((at, taken + 1));
            (p, n) = (at + 1, taken + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// `everybody`, `nobody`, `iqn.a, iqn.b`, `all from 192.0.2.0/24`, or `iqn.a, coming from 192.0.2.0/24`.
impl fmt::Display for Initiators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let networks: Vec<String> = self.networks.iter().map(ToString::to_string).collect();
        let (names, networks) = (self.names.join(", "), networks.join(", "));
        match (self.names.is_empty(), self.networks.is_empty()) {
            _ if self.nobody => f.write_str("nobody"),
            (true, true) => f.write_str("everybody"),
            (false, true) => f.write_str(&names),
            (true, false) => write!(f, "all from {networks}"),
            (false, false) => write!(f, "{names}, coming from {networks}"),
        }
    }
}

/// Somebody who may log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Name and secret.
    pub account: Account,
    /// The initiators that may use it.
    pub initiators: Initiators,
}

/// What has to be proved by CHAP, and what is proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The algorithms that will do.
    pub algorithms: Algorithms,
    /// Who may log in.
    pub users: Vec<User>,
    /// The target's own account.
    pub mutual: Option<Account>,
}

/// Why a session could not log in now as it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Objection {
    /// Its portal is none of the target's.
    #[error("the target is not reached through this portal any more")]
    Portal,
    /// Nothing says who may use the target, and the initiator is on another machine.
    #[error("nothing says who may use the target any more, so it is for this machine alone")]
    Closed,
    /// Initiator or address is not one that may see the target.
    #[error("the initiator is not let in any more")]
    Initiator,
    /// It has logged in without CHAP.
    #[error("it has logged in without CHAP, which is asked for now")]
    NoProof,
    /// Its user is gone, or not for this initiator.
    #[error("its user is not let in any more")]
    User,
    /// Its user has another secret.
    #[error("its user has another secret now")]
    Secret,
    /// Its CHAP algorithm will not do.
    #[error("its CHAP algorithm is not accepted any more")]
    Algorithm,
}

/// The rules of a target, or of discovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Who may see and reach it.
    pub initiators: Initiators,
    /// What they have to prove; nothing if there is none.
    pub guard: Option<Guard>,
    /// LUNs that not all of them see, each with those who do.
    pub luns: Vec<(u16, Initiators)>,
    /// A target for which neither initiators nor users are named may be reached from other machines.
    pub open: bool,
}

impl Access {
    /// True if this initiator may see and reach it.
    pub fn admits(&self, name: &str, address: IpAddr) -> bool {
        self.initiators.have(name, address)
    }

    /// True for a target that says nothing of who may use it, and not that everybody may: it is for this machine
    /// alone, and the initiator is on another.
    pub(crate) fn is_closed_to(&self, origin: Origin) -> bool {
        let says_who = !self.initiators.is_everybody() || self.guard.is_some();
        !self.open && !says_who && !origin.here
    }

    /// Why what a listed initiator has proved is not enough; nothing if it is. Whole answers are those of
    /// [`Entrance`](crate::entrance::Entrance).
    pub(crate) fn objection_to(
        &self,
        proof: Option<&Proof>,
        name: &str,
        address: IpAddr,
    ) -> Option<Objection> {
        let guard = self.guard.as_ref()?;
        let Some(proof) = proof else { return Some(Objection::NoProof) };
        let known =
            |user: &&User| user.account.name == proof.user && user.initiators.have(name, address);
        match guard.users.iter().find(known) {
            None => Some(Objection::User),
            Some(user) if !proof.is_of(&user.account) => Some(Objection::Secret),
            Some(_) if !guard.algorithms.has(proof.algorithm) => Some(Objection::Algorithm),
            Some(_) => None,
        }
    }

    /// True if this initiator sees a LUN.
    pub fn shows(&self, lun: u16, name: &str, address: IpAddr) -> bool {
        let rule = self.luns.iter().find(|(number, _)| *number == lun);
        rule.is_none_or(|(_, initiators)| initiators.have(name, address))
    }

    /// What this initiator has to prove. A user that is not for it is unknown to it.
    pub fn credentials(&self, name: &str, address: IpAddr) -> Option<Arc<Credentials>> {
        let guard = self.guard.as_ref()?;
        let users = guard.users.iter().filter(|user| user.initiators.have(name, address));
        Some(Arc::new(Credentials {
            algorithms: guard.algorithms,
            accounts: users.map(|user| user.account.clone()).collect(),
            mutual: guard.mutual.clone(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entrance::{Entrance, Visitor};
    use lunet_iscsi::chap::{Algorithm, Secret};

    fn set(names: &[&str], networks: &[(&str, u8)]) -> Initiators {
        let mut set = Initiators::default();
        names.iter().for_each(|name| set.add_name(name));
        for (address, bits) in networks {
            set.add_network(Network::new(ip(address), *bits).expect("it fits"));
        }
        set
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_pattern_fits_whole_names() {
        for (pattern, name, fits) in [
            ("iqn.x:a", "iqn.x:a", true),
            ("iqn.x:a", "iqn.x:ab", false),
            ("iqn.x:ab", "iqn.x:a", false),
            ("iqn.x:*", "iqn.x:", true),
            ("iqn.x:*", "iqn.x:esx-1", true),
            ("iqn.x:*", "iqn.y:esx-1", false),
            ("*:esx-*", "iqn.x:esx-1", true),
            ("*:esx-*-a", "iqn.x:esx-1-a-b", false),
            ("*:esx-*-a", "iqn.x:esx-1-a-a", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("**", "", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn many_asterisks_do_not_take_for_ever() {
        let pattern = format!("{}b", "a*".repeat(100));
        assert!(!matches(&pattern, &"a".repeat(223)));
    }

    #[test]
    fn a_network_has_the_addresses_with_its_prefix() {
        for (network, bits, address, has) in [
            ("10.0.0.0", 24, "10.0.0.255", true),
            ("10.0.0.0", 24, "10.0.1.0", false),
            ("10.0.0.77", 24, "10.0.0.1", true),
            ("0.0.0.0", 0, "255.255.255.255", true),
            ("0.0.0.0", 0, "::1", false),
            ("192.168.1.5", 32, "192.168.1.5", true),
            ("192.168.1.5", 32, "192.168.1.4", false),
            ("fd00::", 8, "fdff::1", true),
            ("fd00::", 8, "fe80::1", false),
            ("::", 0, "fe80::1", true),
            ("::1", 128, "::1", true),
            ("::1", 128, "::2", false),
        ] {
            let network = Network::new(ip(network), bits).expect("it fits");
            assert_eq!(network.has(ip(address)), has, "{network:?} {address}");
        }
        assert_eq!((Network::new(ip("10.0.0.0"), 33), Network::new(ip("::"), 129)), (None, None));
    }

    #[test]
    fn names_and_addresses_must_both_be_right() {
        let both = set(&["iqn.x:a", "iqn.X:B*"], &[("10.0.0.0", 8), ("fd00::", 8)]);
        assert!(both.have("iqn.x:a", ip("10.1.2.3")) && both.have("IQN.x:bee", ip("fd00::7")));
        assert!(both.have("iqn.x:a", ip("::ffff:10.1.2.3")), "IPv4 over an IPv6 socket");
        assert!(!both.have("iqn.x:c", ip("10.1.2.3")) && !both.have("iqn.x:a", ip("11.1.2.3")));
        assert!(set(&[], &[]).have("iqn.x:c", ip("::1")) && set(&[], &[]).is_everybody());
        assert!(set(&["iqn.x:c"], &[]).have("iqn.x:c", ip("::1")));
        assert!(!set(&[], &[("127.0.0.1", 32)]).have("iqn.x:c", ip("::1")));
        let nobody = Initiators::nobody();
        assert!(!nobody.have("iqn.x:a", ip("::1")) && !nobody.is_everybody());
        assert_eq!(both.to_string(), "iqn.x:a, iqn.x:b*, coming from 10.0.0.0/8, fd00::/8");
        assert_eq!(set(&[], &[("::1", 128)]).to_string(), "all from ::1");
        assert_eq!(
            (nobody.to_string(), set(&[], &[]).to_string()),
            ("nobody".into(), "everybody".into())
        );
    }

    #[test]
    fn a_user_of_others_is_unknown() {
        let account =
            |name: &str| Account { name: name.into(), secret: Secret::new(vec![b'x'; 12]) };
        let user = |name: &str, initiators| User { account: account(name), initiators };
        let access = Access {
            guard: Some(Guard {
                algorithms: Algorithms::ALL,
                users: vec![user("a", set(&["iqn.x:a"], &[])), user("all", set(&[], &[]))],
                mutual: None,
            }),
            luns: vec![(3, set(&["iqn.x:a"], &[]))],
            ..Access::default()
        };
        let names = |initiator: &str| {
            let credentials = access.credentials(initiator, ip("::1")).expect("there are some");
            credentials.accounts.iter().map(|account| account.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names("iqn.x:a"), ["a", "all"]);
        assert_eq!(names("iqn.x:b"), ["all"]);
        assert!(access.shows(3, "iqn.x:a", ip("::1")) && access.shows(4, "iqn.x:b", ip("::1")));
        assert!(!access.shows(3, "iqn.x:b", ip("::1")));
        assert!(Access::default().credentials("iqn.x:a", ip("::1")).is_none());
    }

    #[test]
    fn a_session_stays_if_it_could_log_in_now() {
        let account = |name: &str, secret: &str| Account {
            name: name.into(),
            secret: Secret::new(secret.as_bytes().into()),
        };
        let proof = |name: &str, secret: &str, algorithm| {
            let (user, id, challenge) = (name.to_owned(), 7, vec![9; 16]);
            let response = account(name, secret).secret.respond(algorithm, id, &challenge);
            Proof { user, algorithm, id, response: response.bytes().to_vec(), challenge }
        };
        let user =
            |name: &str, initiators| User { account: account(name, "xxxxxxxxxxxx"), initiators };
        let guard = Guard {
            algorithms: [Algorithm::Sha256].into_iter().collect(),
            users: vec![user("a", set(&["iqn.x:a"], &[])), user("all", set(&[], &[]))],
            mutual: None,
        };
        let access =
            Access { initiators: set(&["iqn.x:*"], &[]), guard: Some(guard), ..Access::default() };
        let right = |name| Some(proof(name, "xxxxxxxxxxxx", Algorithm::Sha256));
        for (proof, name, objection) in [
            (right("a"), "iqn.x:a", None),
            (right("all"), "iqn.x:b", None),
            (right("a"), "iqn.x:b", Some(Objection::User)),
            (right("gone"), "iqn.x:a", Some(Objection::User)),
            (right("all"), "iqn.y:b", Some(Objection::Initiator)),
            (None, "iqn.x:a", Some(Objection::NoProof)),
            (
                Some(proof("a", "yyyyyyyyyyyy", Algorithm::Sha256)),
                "iqn.x:a",
                Some(Objection::Secret),
            ),
            (
                Some(proof("a", "xxxxxxxxxxxx", Algorithm::Md5)),
                "iqn.x:a",
                Some(Objection::Algorithm),
            ),
        ] {
            let origin = Origin::new(ip("::1"), ip("::1"));
            let visitor =
                Visitor { initiator: name, origin, proof: proof.as_ref(), vouched: false };
            for entrance in [
                Entrance::Discovery { access: &access, reached: true },
                Entrance::Target { access: &access, reached: true },
            ] {
                assert_eq!(entrance.objection(visitor), objection, "{proof:?} {name}");
            }
            let everybody = Access::default();
            let finders = Entrance::Discovery { access: &everybody, reached: true };
            assert_eq!(finders.objection(visitor), None);
        }
    }

    #[test]
    fn what_says_nothing_of_who_may_use_it_is_for_this_machine() {
        let named = Access { initiators: set(&["iqn.x:a"], &[]), ..Access::default() };
        let open = Access { open: true, ..Access::default() };
        let (own, mapped) = (ip("192.0.2.9"), ip("::ffff:192.0.2.9"));
        for local in
            ["127.0.0.1", "127.7.7.7", "::1", "::ffff:127.0.0.1", "192.0.2.9", "::ffff:192.0.2.9"]
        {
            for own in [own, mapped] {
                assert!(!Access::default().is_closed_to(Origin::new(ip(local), own)), "{local}");
            }
        }
        for other in ["192.0.2.1", "::ffff:192.0.2.1", "fd00::1", "fe80::1", "0.0.0.0"] {
            let origin = Origin::new(ip(other), own);
            assert!(Access::default().is_closed_to(origin), "{other}");
            assert!(!named.is_closed_to(origin) && !open.is_closed_to(origin), "{other}");
        }
        // It is the connection's own end that counts: a loopback address there makes nobody local.
        assert!(Access::default().is_closed_to(Origin::new(own, ip("127.0.0.1"))));
    }

    #[test]
    fn a_client_is_an_address_or_a_64() {
        let same = |a, b| Network::of_client(ip(a)) == Network::of_client(ip(b));
        assert!(same("10.0.0.1", "::ffff:10.0.0.1") && !same("10.0.0.1", "10.0.0.2"));
        assert!(same("2001:db8::1", "2001:db8::ffff:1") && !same("2001:db8::1", "2001:db8:0:1::1"));
    }
}
