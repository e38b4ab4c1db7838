//! What SCSI has the [`Keeper`](lunet_volume::Keeper) do: reservations that survive a power loss (APTPL), and the marks of
//! SANITIZE and FORMAT UNIT. A shard that waits is told by mail.

use std::sync::Arc;

use lunet_reservations::{Event, Registrant, Registration, Reservations};
use lunet_scsi::reserve::{InitiatorPort, LiveNexus, NexusId, Port, Request, Seat, TargetPort};
use lunet_scsi::{Reply, Sanitation, status};
use lunet_volume::VolumeId;
use lunet_volume::reserve::{self, Order, StoredRegistration, Unchanged};
use serde::{Deserialize, Serialize};

use crate::marks;
use crate::message::{AbortOrder, Asking, Message, Preempted, parts_of_abort};
use crate::reservations::with_seats;
use crate::session::Core;
use crate::world::ScsiVolume;

/// A command on reservations.
pub struct Command {
    /// The volume.
    pub volume: Arc<ScsiVolume>,
    /// The slot of the volume.
    pub slot: VolumeId,
    /// Who asks.
    pub nexus: Arc<LiveNexus>,
    /// Where that nexus sits.
    pub seat: Seat,
    /// The target ports that lead to the unit.
    pub ports: Vec<Port>,
    /// What it asks for.
    pub request: Request,
    /// The command itself, which waits.
    pub asking: Asking,
    /// Its place among the changes that are to be kept.
    pub order: Order,
}

impl reserve::Request for Command {
    type Refusal = Reply;

    fn carry_out(&self, state: &mut Reservations) -> Result<Vec<Event>, Reply> {
        let outcome = self.request.execute(state, &self.nexus, &self.ports);
        if outcome.reply.status == status::GOOD { Ok(outcome.events) } else { Err(outcome.reply) }
    }

    fn stands(&self) -> bool {
        self.order.is_wanted()
            && with_seats(&self.volume, |seats| seats.nexus(self.seat) == Some(&self.nexus))
    }
}

/// What became of a command on reservations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carried {
    /// It has taken effect, and that is on stable storage.
    Done {
        /// Shards that abort commands before the answer may go out; each of them tells.
        aborting: usize,
    },
    /// Nothing has come of it.
    Not(Unchanged<Reply>),
}

/// Has a command on reservations carried out that are to be kept, then its shard told so. False if too much is to be
/// done already.
pub fn keep(core: &Arc<Core>, command: Command) -> bool {
    let own = core.clone();
    core.front.order(Box::new(move || keep_for(&own, &command)))
}

fn keep_for(core: &Core, command: &Command) {
    let Command { volume, slot, asking, .. } = command;
    let mailboxes = core.mailboxes();
    let done = volume.reserve_and_keep(command);
    let aborting = if command.request.aborts() { parts_of_abort(mailboxes) } else { 0 };
    let (result, order) = match done {
        Ok(events) => (Carried::Done { aborting }, aborts(&events)),
        Err(unchanged) => (Carried::Not(unchanged), AbortOrder::default()),
    };
    let aborts = command.request.aborts() && matches!(result, Carried::Done { .. });
    // First, so that the command knows for how many it waits before the first of them tells.
    mailboxes[asking.shard].tell(Message::Kept { ticket: asking.ticket, result });
    if aborts {
        Preempted::tell(mailboxes, *slot, &order, *asking);
        Preempted::tell_others(&volume.reservations, mailboxes, &order, *asking);
    }
}

/// Whose commands are to be aborted.
pub fn aborts(events: &[Event]) -> AbortOrder {
    Event::aborted(events).cloned().collect()
}

/// Has it made stable that a volume is being sanitized or formatted, or, with [`Sanitation::None`], that it is not,
/// then a shard told so, where an operation waits for this ticket. False if too much is to be done already.
pub fn mark(
    core: &Arc<Core>,
    volume: &Arc<ScsiVolume>,
    mark: Sanitation,
    (shard, ticket): (usize, u64),
) -> bool {
    let (own, volume) = (core.clone(), volume.clone());
    core.front.order(Box::new(move || {
        let marked = volume.store.as_ref().map_or(Ok(()), |store| marks::set(store, mark));
        if let Err(error) = &marked {
            tracing::error!(volume = %volume.name, %error, "the mark of SANITIZE or FORMAT UNIT cannot be kept");
        }
        own.mailboxes()[shard].tell(Message::Finished { ticket, done: marked.is_ok() });
    }))
}

/// A registrant as the file of reservations has it: a nexus, or a host that has come over another protocol.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum KeptRegistration {
    /// A nexus.
    Nexus(KeptNexus),
    /// A host.
    Host(KeptHost),
}

/// A registered nexus.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptNexus {
    initiator: String,
    isid: [u8; 6],
    target: String,
    port: u16,
    key: u64,
}

/// A registered host.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptHost {
    host: [u8; 16],
    /// Without one it is a host that nobody is.
    #[serde(default)]
    name: String,
    key: u64,
}

impl StoredRegistration for KeptRegistration {
    fn of(registration: &Registration) -> Option<Self> {
        let key = registration.key;
        if let Some(host) = registration.registrant.host_id() {
            let name = registration.registrant.host_name()?.to_owned();
            return Some(Self::Host(KeptHost { host, name, key }));
        }
        let NexusId { initiator, port } = NexusId::of(&registration.registrant)?;
        Some(Self::Nexus(KeptNexus {
            initiator: initiator.name,
            isid: initiator.isid,
            target: port.target.to_string(),
            port: port.tag,
            key,
        }))
    }

    fn registration(self) -> Registration {
        let kept = match self {
            Self::Nexus(kept) => kept,
            Self::Host(KeptHost { host, name, key }) => {
                return Registration { registrant: Registrant::host(host, &name), key };
            }
        };
        let initiator = InitiatorPort { name: kept.initiator, isid: kept.isid };
        let port = TargetPort { target: kept.target.into(), tag: kept.port };
        let registrant = NexusId { initiator, port }.registrant();
        Registration { registrant, key: kept.key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::path::Path;

    use lunet_files as files;
    use lunet_reservations::{Kind, Saved};
    use lunet_volume::reserve::Store;

    fn store(dir: &Path, owner: &str) -> Store {
        Store::new::<KeptRegistration>(dir.join("v.reservations"), owner.into())
    }

    fn saved() -> Saved {
        let registration = |name: &str, key| {
            let nexus = NexusId {
                initiator: InitiatorPort { name: name.into(), isid: [0x40, 0, 0, 1, 2, 3] },
                port: TargetPort { target: "iqn.t".into(), tag: 7 },
            };
            Registration { registrant: nexus.registrant(), key }
        };
        Saved {
            registrations: vec![
                registration("iqn.a", 1),
                registration("quote\" \n", u64::MAX),
                Registration { registrant: Registrant::host([7; 16], "nqn.a"), key: 3 },
            ],
            kind: Some(Kind::ExclusiveAccess),
            holder: Some(1),
        }
    }

    /// What is found in the store.
    fn found(store: &Store) -> Option<Saved> {
        Store::reservations(Some(store)).expect("it can be read").saved()
    }

    #[test]
    fn what_is_kept_is_found_again_until_it_is_forgotten() {
        let dir = tempfile::tempdir().expect("a directory");
        let own = store(dir.path(), "naa.3");
        assert_eq!(found(&own), None);
        own.save(None).expect("nothing to forget");
        for (kind, holder) in [(Some(Kind::ExclusiveAccess), Some(1)), (None, None)] {
            let saved = Saved { kind, holder, ..saved() };
            own.save(Some(&saved)).expect("it is kept");
            assert_eq!(found(&own), Some(saved));
        }
        assert_eq!(found(&store(dir.path(), "naa.4")), None, "another volume");
        own.save(None).expect("it is forgotten");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 0);
    }

    /// Files of version 1 stay readable.
    #[test]
    fn the_file_looks_as_it_always_did() {
        let dir = tempfile::tempdir().expect("a directory");
        let own = store(dir.path(), "naa.3");
        own.save(Some(&saved())).expect("it is kept");
        let text = fs::read_to_string(&own.path).expect("text");
        let words: String = text.split_whitespace().collect();
        let first =
            r#"{"initiator":"iqn.a","isid":[64,0,0,1,2,3],"target":"iqn.t","port":7,"key":1}"#;
        let head = r#"{"version":1,"unit":"naa.3","kind":3,"holder":1,"registrations":["#;
        assert!(words.starts_with(&format!("{head}{first},")), "{text}");
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let own = store(dir.path(), "naa.3");
        own.save(Some(&saved())).expect("it is kept");
        let text = fs::read_to_string(&own.path).expect("text");
        for (from, to) in [
            ("\"kind\": 3", "\"kind\": 2"),
            ("\"version\": 1", "\"version\": 2"),
            ("\"holder\": 1", "\"holder\": 3"),
            ("\"holder\"", "\"other\""),
            ("\"key\": 1\n", "\"key\": 0\n"),
            ("{", ""),
        ] {
            assert!(text.contains(from), "{text}");
            fs::write(&own.path, text.replacen(from, to, 1)).expect("written");
            let error = Store::reservations(Some(&own)).expect_err(from).to_string();
            assert!(error.contains("v.reservations"), "{error}");
        }
        File::options()
            .write(true)
            .open(&own.path)
            .and_then(|f| f.set_len((1 << 20) + 1))
            .expect("grown");
        assert!(Store::reservations(Some(&own)).is_err());
    }

    #[test]
    fn a_failure_to_keep_leaves_the_last_state() {
        let dir = tempfile::tempdir().expect("a directory");
        let own = store(dir.path(), "naa.3");
        own.save(Some(&saved())).expect("it is kept");
        fs::create_dir(files::fresh(&own.path)).expect("something in the way");
        assert!(own.save(Some(&Saved { kind: None, holder: None, ..saved() })).is_err());
        assert_eq!(found(&own), Some(saved()));
    }
}
