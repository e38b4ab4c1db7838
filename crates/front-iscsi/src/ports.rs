//! The target ports of the server: a target in a portal group is one (RFC 7143 4.4.1). Their groups, and
//! their numbers.
//!
//! SCSI wants RELATIVE TARGET PORT IDENTIFIERs to be unique within a target alone. Initiators that reach a
//! volume through two targets take it for one device, and would see one port in two places. So no two ports
//! of the server have the same number. A port keeps its number over restarts and changes of the configuration,
//! even while it is gone: the numbers are kept in a file.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;

use lunet_files::{self as files, ReadError};
use lunet_scsi::alua::{AccessState, PortGroup, PortGroups};
use lunet_scsi::reserve::{Port, TargetPort};
use serde::{Deserialize, Serialize};

use crate::config::TargetEntry;
use lunet_server::hosting::Portal;
use lunet_server::portals::Portals;

/// A larger file is none of ours: it has room for every number there is.
const MAX_FILE: u64 = 32 << 20;

const VERSION: u32 = 1;

/// Why target ports get no numbers, or portals no groups.
#[derive(Debug, thiserror::Error)]
pub enum PortsError {
    /// The file that was kept cannot be taken up.
    #[error(transparent)]
    Unreadable(#[from] ReadError),
    /// The file gives a number to two ports, two numbers to a port, or the number 0.
    #[error("{} is damaged: port {number}", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Relative target port identifier.
        number: u16,
    },
    /// No number is left.
    #[error("there are more than 65535 target ports")]
    NoNumber,
    /// The file cannot be written.
    #[error("cannot keep the numbers of target ports in {}: {error}", path.display())]
    NotKept {
        /// Path of the file.
        path: PathBuf,
        /// The operating system's reason.
        error: io::Error,
    },
    /// No group is left.
    #[error(
        "there are more than {} portal tags since lunet has started: restart it, or use tags that are \
         there",
        PortGroups::MAX
    )]
    NoGroup,
}

/// The numbers of target ports.
#[derive(Default)]
pub struct Ports {
    numbers: BTreeMap<u16, TargetPort>,
    by_name: HashMap<TargetPort, u16>,
    /// Where the numbers are kept; without it, they are new with every start.
    file: Option<PathBuf>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u32,
    ports: Vec<KeptPort>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptPort {
    number: u16,
    target: String,
    tag: u16,
}

impl Ports {
    /// The numbers that were kept.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn new(file: Option<PathBuf>) -> Result<Self, PortsError> {
        let mut ports = Self { file: file.clone(), ..Self::default() };
        let Some(file) = file else { return Ok(ports) };
        let Some(text) = files::read(&file, MAX_FILE)? else { return Ok(ports) };
        let kept: Kept = match serde_json::from_slice(&text) {
            Ok(kept) => kept,
            Err(error) => return Err(ReadError::Damaged { path: file, error }.into()),
        };
        if kept.version != VERSION {
            let (found, known) = (kept.version, VERSION);
            return Err(ReadError::Version { path: file, found, known }.into());
        }
        for KeptPort { number, target, tag } in kept.ports {
            let port = TargetPort { target: target.into(), tag };
            let twice = ports.numbers.insert(number, port.clone()).is_some()
                | ports.by_name.insert(port, number).is_some();
            if number == 0 || twice {
                return Err(PortsError::Damaged { path: file, number });
            }
        }
        Ok(ports)
    }

    /// Sees to it that every port of these targets has a number, and that it is on stable storage. Here and
    /// below, targets know their portals by slots.
    ///
    /// # Errors
    /// There are no numbers left, or the file cannot be written.
    pub fn number(&mut self, targets: &[TargetEntry], portals: &Portals) -> Result<(), PortsError> {
        let names = targets.iter().flat_map(|target| names(target, portals));
        let names: Vec<TargetPort> = names.collect();
        let fresh: Vec<&TargetPort> =
            names.iter().filter(|name| !self.by_name.contains_key(name)).collect();
        if fresh.is_empty() {
            return Ok(());
        }
        let mut numbers = self.numbers.clone();
        if numbers.len() + fresh.len() > usize::from(u16::MAX) {
            // Those that are gone lose theirs.
            numbers.retain(|_, name| names.contains(name));
        }
        for name in fresh {
            // The tag, where nobody has that number yet: with one target, a port is its group.
            let free = |number: &u16| !numbers.contains_key(number);
            let number = Some(name.tag).filter(free).or_else(|| (1..=u16::MAX).find(free));
            let number = number.ok_or(PortsError::NoNumber)?;
            numbers.insert(number, name.clone());
        }
        self.keep(&numbers)?;
        // Only now: a number that is not kept is given to nobody.
        self.by_name = numbers.iter().map(|(number, name)| (name.clone(), *number)).collect();
        self.numbers = numbers;
        Ok(())
    }

    fn keep(&self, numbers: &BTreeMap<u16, TargetPort>) -> Result<(), PortsError> {
        let Some(file) = &self.file else { return Ok(()) };
        let port = |(number, name): (&u16, &TargetPort)| KeptPort {
            number: *number,
            target: name.target.to_string(),
            tag: name.tag,
        };
        let kept = Kept { version: VERSION, ports: numbers.iter().map(port).collect() };
        let text = serde_json::to_vec_pretty(&kept).map_err(io::Error::from);
        let written = text.and_then(|text| Ok(files::replace(file, &text)?));
        written.map_err(|error| PortsError::NotKept { path: file.clone(), error })
    }

    /// The target ports that lead to a volume, by number: `volume` is its place in the layout.
    pub fn leading_to(
        &self,
        volume: usize,
        targets: &[TargetEntry],
        portals: &Portals,
    ) -> Vec<Port> {
        let shows = |target: &&TargetEntry| target.luns.iter().any(|(_, at)| *at == volume);
        let names = targets.iter().filter(shows).flat_map(|target| names(target, portals));
        let mut ports: Vec<_> =
            names.map(|name| Port { relative: self.relative(&name), name }).collect();
        ports.sort_unstable_by_key(|port| port.relative);
        ports
    }

    /// How a target looks through the portal in each slot, apart from its LUNs.
    pub fn views(
        &self,
        target: &TargetEntry,
        (portals, groups): (&Portals, &PortGroups),
    ) -> Vec<lunet_scsi::Target> {
        let several_ports = names(target, portals).len() > 1;
        let view = |portal: &Portal| {
            let port = TargetPort { target: target.name.as_str().into(), tag: portal.tag };
            lunet_scsi::Target {
                name: target.name.clone(),
                several_ports,
                portal_group_tag: portal.tag,
                relative_port: self.relative(&port),
                groups: groups.clone(),
                group: groups.number(portal.tag).unwrap_or(0),
                luns: Vec::new(),
            }
        };
        portals.slots().map(view).collect()
    }

    /// The number of a port; 0 for one that no initiator can come through.
    fn relative(&self, name: &TargetPort) -> u16 {
        self.by_name.get(name).copied().unwrap_or(0)
    }
}

/// The names of a target's ports, each once.
fn names(target: &TargetEntry, portals: &Portals) -> Vec<TargetPort> {
    let mut names = Vec::new();
    for (slot, portal) in portals.iter() {
        let name = TargetPort { target: target.name.as_str().into(), tag: portal.tag };
        if target.reached_through(slot) && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The groups that portals make after these, with what is configured for them, and those that are configured for the portals of other
/// fronts.
///
/// # Errors
/// They are too many.
pub fn groups(
    before: &PortGroups,
    portals: &Portals,
    configured: &[PortGroup],
) -> Result<PortGroups, PortsError> {
    let group = |(_, portal): (usize, &Portal)| {
        let found = configured.iter().find(|group| group.tag == portal.tag).copied();
        let state = AccessState::Optimized;
        found.unwrap_or(PortGroup { tag: portal.tag, state, preferred: false })
    };
    let all = portals.iter().map(group).chain(configured.iter().copied());
    before.next(all.collect()).ok_or(PortsError::NoGroup)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunet_scsi::alua::AccessStates;
    use lunet_server::hosting::Transports;
    use std::net::SocketAddr;

    fn portals(tags: &[u16]) -> Portals {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let portal = |tag: &u16| Portal { address, tag: *tag, transports: Transports::Tcp };
        Portals::new(tags.iter().map(|tag| (portal(tag), address)))
    }

    fn made(portals: &Portals) -> PortGroups {
        groups(&PortGroups::default(), portals, &[]).expect("few")
    }

    fn target(name: &str, portals: Vec<usize>) -> TargetEntry {
        TargetEntry { name: name.into(), luns: vec![(0, 0)], portals, ..TargetEntry::default() }
    }

    /// Name and tag of each port, by number.
    fn numbers(ports: &Ports) -> Vec<(u16, String)> {
        let text = |name: &TargetPort| format!("{},{}", name.target, name.tag);
        ports.numbers.iter().map(|(number, name)| (*number, text(name))).collect()
    }

    #[test]
    fn no_two_ports_have_a_number_and_none_changes_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = Some(dir.path().join("ports"));
        let (a, b) = (target("a", vec![]), target("b", vec![]));
        let mut ports = Ports::new(file.clone()).expect("no file yet");
        let three = portals(&[1, 2, 2]);
        ports.number(std::slice::from_ref(&a), &three).expect("numbers");
        ports.number(&[a.clone(), b.clone()], &three).expect("numbers");
        let expected =
            [(1, "a,1"), (2, "a,2"), (3, "b,1"), (4, "b,2")].map(|(n, t)| (n, t.to_owned()));
        assert_eq!(numbers(&ports), expected);
        // Other portals, the targets in another order, one more: nothing that was there moves.
        let mut again = Ports::new(file).expect("what was kept");
        let others = portals(&[3, 2]);
        again.number(&[target("c", vec![1]), b, a], &others).expect("numbers");
        let more = [(5, "c,2"), (6, "b,3"), (7, "a,3")].map(|(n, t)| (n, t.to_owned()));
        let mut sorted = numbers(&again);
        sorted.retain(|entry| !expected.contains(entry));
        // b is asked for first, and gets its tag: it is taken; so the lowest that is free.
        assert_eq!(sorted, more);
        let b = target("b", vec![]);
        assert_eq!(again.views(&b, (&others, &made(&others)))[1].relative_port, 4);
    }

    #[test]
    fn a_volume_is_led_to_by_the_ports_of_every_target_that_shows_it() {
        let mut ports = Ports::default();
        let two = portals(&[1, 2]);
        let mut other = target("other", vec![]);
        other.luns = vec![(0, 1)];
        let targets = [target("a", vec![]), other, target("b", vec![1])];
        ports.number(&targets, &two).expect("numbers");
        let leading = ports.leading_to(0, &targets, &two);
        let seen: Vec<_> =
            leading.iter().map(|p| (&*p.name.target, p.name.tag, p.relative)).collect();
        assert_eq!(seen, [("a", 1, 1), ("a", 2, 2), ("b", 2, 5)]);
        let groups = made(&two);
        let views = ports.views(&targets[2], (&two, &groups));
        assert!(!views[1].several_ports, "one of the two portals leads here");
        assert!(ports.views(&targets[0], (&two, &groups)).iter().all(|view| view.several_ports));
        assert_eq!(views[0].relative_port, 0, "nobody comes this way");
        assert_eq!(views[1].group, 1);
    }

    #[test]
    fn numbers_of_ports_that_are_gone_are_given_away_last() {
        let mut ports = Ports::default();
        for number in 1..=u16::MAX {
            let name = TargetPort { target: format!("old{number}").into(), tag: 1 };
            ports.numbers.insert(number, name.clone());
            ports.by_name.insert(name, number);
        }
        let targets = [target("old7", vec![]), target("new", vec![])];
        ports.number(&targets, &portals(&[1])).expect("numbers");
        assert_eq!(numbers(&ports), [(1, "new,1".to_owned()), (7, "old7,1".to_owned())]);
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("ports");
        let mut ports = Ports::new(Some(file.clone())).expect("no file yet");
        ports.number(&[target("a", vec![])], &portals(&[1, 2])).expect("numbers");
        let text = std::fs::read_to_string(&file).expect("text");
        for (from, to) in [
            ("\"version\": 1", "\"version\": 2"),
            ("\"number\": 2", "\"number\": 1"),
            ("\"number\": 1", "\"number\": 0"),
            ("\"tag\": 2", "\"tag\": 1"),
            ("{", ""),
        ] {
            assert!(text.contains(from), "{text}");
            std::fs::write(&file, text.replacen(from, to, 1)).expect("written");
            let error = Ports::new(Some(file.clone())).err().expect(from);
            assert!(error.to_string().contains("ports"), "{error}");
        }
    }

    #[test]
    fn there_are_as_many_groups_as_states_have_room_for() {
        let tags: Vec<u16> = (1..=17).collect();
        assert!(groups(&PortGroups::default(), &portals(&tags[..16]), &[]).is_ok());
        assert!(groups(&PortGroups::default(), &portals(&tags), &[]).is_err());
    }

    #[test]
    fn portals_of_other_fronts_have_their_groups_too() {
        let other = PortGroup { tag: 2, state: AccessState::Unavailable, preferred: false };
        let both = groups(&PortGroups::default(), &portals(&[1]), &[other]).expect("few");
        let number = both.number(2).expect("it has a group");
        assert_ne!(Some(number), both.number(1));
        let states = AccessStates::default();
        states.configure(&both);
        assert_eq!(states.get(number), AccessState::Unavailable);
    }
}
