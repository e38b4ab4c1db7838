//! Reservation commands, about which the group's owner decides, whatever gateway they come to.

use std::sync::Arc;

use lunet_gateway::{Answer, MAX_BODY, Record, Reserved};
use lunet_nvme::command::{
    AcquireAction, PersistOnPowerLoss, RegisterAction, ReleaseAction, ReservationType,
};
use lunet_nvme::reservation::Report;
use lunet_nvme::status::Status;
use lunet_relay::{Execution, GroupRequest};
use lunet_reservations::{Event, HOST, Registrant, Reservations, Saved};
use lunet_server::part::Part;
use lunet_volume::{Face, Volume, VolumeId};

use super::{GroupHandle, Order};
use crate::message::{Message, Preempted};
use crate::reservations::{self, Change, Wish, told};

/// A change on its way to the owner.
pub struct Body {
    /// The volume, as the record calls it.
    pub volume: [u8; 16],
    /// What is asked for.
    pub change: Change,
}

/// The first byte of a body: another one than those of requests of other protocols.
const VERSION: u8 = 2;

/// The type of a release that names none.
const NO_KIND: u8 = 0;

impl Body {
    /// Its bytes. `None` if they are too many.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let Change { who, wish, keys: (key, other) } = &self.change;
        let name = who.name_in(HOST)?;
        let (kind, action, detail, flags) = match *wish {
            Wish::Register { action, ignore_key, persist } => {
                (0, action.code(), persist.code(), u8::from(ignore_key))
            }
            Wish::Acquire { action, kind } => (1, action.code(), kind.code(), 0),
            Wish::Release { action, kind } => {
                (2, action.code(), kind.map_or(NO_KIND, ReservationType::code), 0)
            }
        };
        let mut bytes = vec![VERSION, kind, action, detail, flags];
        bytes.extend_from_slice(&self.volume);
        bytes.extend_from_slice(&key.to_le_bytes());
        bytes.extend_from_slice(&other.to_le_bytes());
        bytes.extend_from_slice(name);
        (bytes.len() <= MAX_BODY).then_some(bytes)
    }

    /// Reads it.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[version, kind, action, detail, flags], rest) = bytes.split_first_chunk()?;
        let (volume, rest) = rest.split_first_chunk()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (other, name) = rest.split_first_chunk()?;
        let wish = match (kind, flags) {
            (0, 0 | 1) => Wish::Register {
                action: RegisterAction::from_code(action)?,
                ignore_key: flags == 1,
                persist: PersistOnPowerLoss::from_code(detail)?,
            },
            (1, 0) => Wish::Acquire {
                action: AcquireAction::from_code(action)?,
                kind: ReservationType::from_code(detail)?,
            },
            (2, 0) => Wish::Release {
                action: ReleaseAction::from_code(action)?,
                kind: match detail {
                    NO_KIND => None,
                    kind => Some(ReservationType::from_code(kind)?),
                },
            },
            _ => return None,
        };
        let who = Registrant::new(HOST, name);
        who.host_id()?;
        let keys = (u64::from_le_bytes(*key), u64::from_le_bytes(*other));
        let change = Change { who, wish, keys };
        (version == VERSION).then_some(Self { volume: *volume, change })
    }
}

/// The volume of a request, as the record calls it. `None` if it is none of NVMe.
pub fn volume_of(body: &[u8]) -> Option<[u8; 16]> {
    Body::decode(body).map(|body| body.volume)
}

/// The bytes of an answer.
fn encode(status: Status) -> Vec<u8> {
    status.bits().to_le_bytes().to_vec()
}

/// The answer to a request that was not executed, and may be sent again.
pub fn busy() -> Vec<u8> {
    encode(BUSY)
}

/// Nothing was done: the host sends the command again, on whatever path. A status that has nothing to do with paths it
/// would not repeat for long.
const BUSY: Status = Status::ANA_TRANSITION;

/// All of what is reserved, whether or not it would survive a power loss.
fn all_of(state: &Reservations) -> Saved {
    let nothing = Saved { registrations: Vec::new(), kind: None, holder: None };
    state.saved().or_else(|| state.passing()).unwrap_or(nothing)
}

/// What a report says of a volume by its group's record. `None` if the record does not have it, or contradicts itself.
pub fn report(record: &Record, volume: [u8; 16], families: &[&'static str]) -> Option<Report> {
    let kept = record.contents.volumes.iter().find(|kept| kept.naa == volume)?;
    let saved = kept.reserved.saved(families).ok()?;
    let mut state = Reservations::new(false);
    state.take_up(saved, kept.reserved.generation).ok()?;
    Some(reservations::report(&state))
}

/// What a host is told.
#[derive(Clone)]
pub enum Said {
    /// A status.
    Status(Status),
    /// What the record says.
    Record(Arc<Record>),
    /// Nobody knows: its connection is aborted.
    Nothing,
}

impl Said {
    fn new(answer: Answer) -> Self {
        match answer {
            Answer::Busy => Self::Status(BUSY),
            Answer::Record(record) => Self::Record(Arc::from(record)),
            Answer::Body(body) => match <[u8; 2]>::try_from(body) {
                Ok(bits) => Self::Status(Status::from_bits(u16::from_le_bytes(bits))),
                // It was executed, and this gateway cannot read how.
                Err(_) => Self::Nothing,
            },
        }
    }
}

/// A change that was tried on a copy.
pub struct Prepared<Fc: Face> {
    volume: Arc<Volume<Fc>>,
    slot: VolumeId,
    /// What is done to the reservations; `None`: nothing.
    change: Option<Change>,
}

impl<Fc: Face> GroupHandle<Fc> {
    /// Reservation commands of the group's hosts go to `takes` from now on, whatever the gate says. Before this, they are
    /// executed here.
    pub fn take_requests(
        &self,
        takes: impl Fn(GroupRequest) + Send + Sync + 'static,
        done: impl FnOnce() + Send + Sync + 'static,
    ) {
        self.order(&Order::Requests(Arc::new(takes)), done);
    }

    /// Answers a request.
    pub fn answer(&self, id: u64, answer: Answer) {
        self.order(&Order::Answer(id, Said::new(answer)), || {});
    }

    /// Executes a reservation command on a copy of the reservations, whose host may be one of another gateway. `done` is called
    /// when every shard holds back commands that the reservations of the volume decide about, until
    /// [`apply`](Self::apply) or [`abandon`](Self::abandon). There is one such request at a time.
    pub fn execute(&self, body: &[u8], done: impl FnOnce(Execution) + Send + Sync + 'static) {
        let nothing = |status| Execution { reserved: None, answer: encode(status) };
        let Some(Body { volume: name, change }) = Body::decode(body) else {
            return done(nothing(BUSY));
        };
        let Some((slot, volume)) = self.volume(name) else { return done(nothing(BUSY)) };
        let this = self.clone();
        self.order(&Order::Hold(slot), move || {
            let mut copy = volume.reservations.look(Reservations::clone);
            let made = change.make(&mut copy).map(drop).map_err(told);
            let saved = all_of(&copy);
            let kept = Reserved::of(&saved, copy.generation(), this.members.families).ok();
            let (status, reserved) = match (made, kept) {
                (Ok(()), Some(kept)) => (Status::SUCCESS, Some((name, kept))),
                // What cannot be in the record is not done.
                (Ok(()), None) => (Status::INTERNAL.no_retry(), None),
                (Err(status), _) => (status, None),
            };
            let change = reserved.is_some().then_some(change);
            *this.prepared() = Some(Prepared { volume, slot, change });
            done(Execution { reserved, answer: encode(status) });
        });
    }

    /// What was [executed](Self::execute) takes effect: hosts that lose something are told, and commands that were held back go
    /// on. Done when commands that it aborts have ended on every shard, and with other protocols.
    pub fn apply(&self, done: impl FnOnce() + Send + Sync + 'static) {
        let part = Part::new(done);
        let Some(Prepared { volume, slot, change }) = self.prepared().take() else { return };
        if let Some(change) = change {
            let (_, events) = volume.reservations.change(|state| match change.make(state) {
                Ok(events) => (Ok(()), events),
                Err(refusal) => (Err(refusal), Vec::new()),
            });
            if change.aborts() {
                let (hosts, others): (Vec<_>, Vec<_>) =
                    Event::aborted(&events).cloned().partition(|whose| whose.host_id().is_some());
                let hosts: Arc<[Registrant]> = hosts.into();
                self.handle.tell(|| {
                    let (hosts, receipt) = (hosts.clone(), part.as_done());
                    Message::Preempted(Preempted { volume: slot, hosts, spared: None, receipt })
                });
                volume.reservations.abort(&others.into(), part.as_done());
            }
        }
        self.order(&Order::LetGo(slot), move || drop(part));
    }

    /// What was [executed](Self::execute) is given up, and commands that were held back go on.
    pub fn abandon(&self, done: impl FnOnce() + Send + Sync + 'static) {
        let prepared = self.prepared().take();
        match prepared {
            Some(Prepared { slot, .. }) => self.order(&Order::LetGo(slot), done),
            None => done(),
        }
    }

    /// Commands are held back that reservations of this volume decide about: another protocol executes a request on them.
    pub fn hold(&self, designator: [u8; 16], done: impl FnOnce() + Send + Sync + 'static) {
        match self.volume(designator) {
            Some((slot, _)) => self.order(&Order::Hold(slot), done),
            None => done(),
        }
    }

    /// They go on.
    pub fn let_go(&self, designator: [u8; 16], done: impl FnOnce() + Send + Sync + 'static) {
        match self.volume(designator) {
            Some((slot, _)) => self.order(&Order::LetGo(slot), done),
            None => done(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_read_as_it_was_written_and_nothing_else_is_one() {
        let wishes = [
            Wish::Register {
                action: RegisterAction::Replace,
                ignore_key: true,
                persist: PersistOnPowerLoss::On,
            },
            Wish::Acquire {
                action: AcquireAction::PreemptAndAbort,
                kind: ReservationType::ExclusiveAccessAll,
            },
            Wish::Release { action: ReleaseAction::Clear, kind: None },
        ];
        for wish in wishes {
            let who = Registrant::host([7; 16], "nqn.2026-11.org.lunet:a");
            let body = Body { volume: [6; 16], change: Change { who, wish, keys: (1, 2) } };
            let bytes = body.encode().expect("it is short");
            let read = Body::decode(&bytes).expect("a body");
            assert_eq!((read.volume, &read.change), (body.volume, &body.change));
            for len in 0..53 {
                assert!(Body::decode(&bytes[..len]).is_none(), "{len}");
            }
            assert!(Body::decode(&[&[1], &bytes[1..]].concat()).is_none(), "another version");
            assert!(Body::decode(&[&[VERSION, 3], &bytes[2..]].concat()).is_none(), "no command");
        }
    }
}
