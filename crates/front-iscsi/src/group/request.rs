//! Requests on persistent reservations, about which the group's owner decides, whatever gateway they come to.

use std::sync::{Arc, PoisonError};

use lunet_gateway::{Answer, MAX_BODY, Record, Reserved};
use lunet_relay::{Execution, GroupRequest};
use lunet_reservations::{HOST, Registrant, Reservations, Saved};
use lunet_scsi::reserve::{FAMILY, NexusId, Outcome, Port, Request};
use lunet_scsi::{Action, ParameterKind, Parameters, Reply, SenseFormat, Unit, status};
use lunet_server::part::Part;
use lunet_volume::VolumeId;

use super::keep::sanitation;
use super::{GroupError, GroupHandle, Order, volumes_of};
use crate::keeper::aborts;
use crate::message::{Message, Preempted, is_initiator};
use crate::world::ScsiVolume;

/// The protocols whose registrants a record may have: nexuses, and hosts of NVMe.
pub const FAMILIES: [&str; 2] = [FAMILY, HOST];

/// The NAA designator of a unit, as a group's record has it.
pub fn naa_of(unit: &Unit) -> [u8; 16] {
    let mut naa = [0; 16];
    for (to, from) in naa.iter_mut().zip(&*unit.identity.naa) {
        *to = *from;
    }
    naa
}

/// A PERSISTENT RESERVE OUT on its way to the group's thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// The volume, by its NAA designator.
    pub naa: [u8; 16],
    /// Who asks, as it registers.
    pub nexus: Vec<u8>,
    /// SERVICE ACTION.
    pub action: u8,
    /// SCOPE and TYPE.
    pub scope_and_kind: u8,
    /// The parameter list.
    pub list: Vec<u8>,
}

/// The first byte of a body.
const VERSION: u8 = 1;

impl Body {
    /// Its bytes. `None` if they are too many.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let nexus = u16::try_from(self.nexus.len()).ok()?;
        let mut bytes = vec![VERSION, self.action, self.scope_and_kind];
        bytes.extend_from_slice(&self.naa);
        bytes.extend_from_slice(&nexus.to_be_bytes());
        bytes.extend_from_slice(&self.nexus);
        bytes.extend_from_slice(&self.list);
        (bytes.len() <= MAX_BODY).then_some(bytes)
    }

    /// Reads it.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[version, action, scope_and_kind], rest) = bytes.split_first_chunk()?;
        let (naa, rest) = rest.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let len = usize::from(u16::from_be_bytes(*len));
        let (nexus, list) = rest.split_at_checked(len)?;
        let (nexus, list) = (nexus.to_vec(), list.to_vec());
        (version == VERSION).then_some(Self { naa: *naa, nexus, action, scope_and_kind, list })
    }

    /// Who asks, and for what; or how it is refused.
    fn request(&self, unit: &Unit) -> Result<(NexusId, Request), Reply> {
        let nexus = NexusId::of(&Registrant::new(FAMILY, &self.nexus)).ok_or(Reply::CONFLICT)?;
        let (action, scope_and_kind) = (self.action, self.scope_and_kind);
        let kind = ParameterKind::PersistentReserveOut { action, scope_and_kind };
        let parameters = Parameters { kind, len: self.list.len() as u32 };
        match lunet_scsi::parameters(unit, parameters, &self.list) {
            Action::Reservation(request) => Ok((nexus, request)),
            Action::Complete(reply) => Err(reply),
            _ => Err(Reply::CONFLICT),
        }
    }
}

/// The volume of a request, by its NAA designator. `None` if it is none of iSCSI.
pub fn volume_of(body: &[u8]) -> Option<[u8; 16]> {
    Body::decode(body).map(|body| body.naa)
}

/// The bytes of an answer: the status, and sense data of the fixed format.
fn encode(reply: &Reply) -> Vec<u8> {
    let mut bytes = vec![reply.status];
    if let Some(sense) = &reply.sense {
        bytes.extend_from_slice(&sense.encode(SenseFormat::Fixed));
    }
    bytes
}

/// All of what is reserved, whether or not it would survive a power loss.
fn all_of(state: &Reservations) -> Saved {
    let nothing = Saved { registrations: Vec::new(), kind: None, holder: None };
    state.saved().or_else(|| state.passing()).unwrap_or(nothing)
}

/// What a report says of a volume by its group's record. `None` if the record does not have it, or contradicts itself.
pub fn report(
    record: &Record,
    naa: [u8; 16],
    request: &Request,
    (nexus, ports): (&NexusId, &[Port]),
) -> Option<Reply> {
    let volume = record.contents.volumes.iter().find(|volume| volume.naa == naa)?;
    let saved = volume.reserved.saved(&FAMILIES).ok()?;
    let mut state = Reservations::new(false);
    state.take_up(saved, volume.reserved.generation).ok()?;
    Some(request.execute(&mut state, nexus, ports).reply)
}

/// What an initiator is told.
#[derive(Clone)]
pub enum Said {
    /// A status, with sense data.
    Status(u8, Vec<u8>),
    /// What the record says.
    Record(Arc<Record>),
    /// It was executed, and nobody can read how: its connection is aborted.
    Nothing,
}

impl Said {
    fn new(answer: Answer) -> Self {
        match answer {
            Answer::Busy => Self::Status(status::BUSY, Vec::new()),
            Answer::Record(record) => Self::Record(Arc::from(record)),
            Answer::Body(body) => match body.split_first() {
                Some((status, sense)) => Self::Status(*status, sense.to_vec()),
                None => Self::Nothing,
            },
        }
    }
}

/// A change that was tried on a copy.
pub struct Prepared {
    volume: Arc<ScsiVolume>,
    slot: VolumeId,
    /// What is done to the reservations; `None`: nothing.
    change: Option<(NexusId, Request, Vec<Port>)>,
}

impl GroupHandle {
    /// PERSISTENT RESERVE IN and OUT of the group's initiators go to `takes` from now on, whatever the gate says. Before this,
    /// they are executed here.
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

    /// Executes a PERSISTENT RESERVE OUT on a copy of the reservations. `done` is
    /// called when every shard holds back commands that the reservations of the volume decide about, until
    /// [`apply`](Self::apply) or [`abandon`](Self::abandon). There is one such request at a time.
    pub fn execute(&self, body: &[u8], done: impl FnOnce(Execution) + Send + Sync + 'static) {
        let nothing = |reply: &Reply| Execution { reserved: None, answer: encode(reply) };
        let busy = Reply { status: status::BUSY, ..Reply::GOOD };
        let Some(body) = Body::decode(body) else { return done(nothing(&busy)) };
        let Some((slot, volume)) = self.volume(body.naa) else { return done(nothing(&busy)) };
        let (nexus, request) = match body.request(&volume.face.unit) {
            Ok(asked) => asked,
            Err(reply) => return done(nothing(&reply)),
        };
        let ports = self.ports().of_target(&nexus.port.target);
        let this = self.clone();
        self.order(&Order::Hold(slot), move || {
            let mut copy = volume.reservations.look(Reservations::clone);
            let Outcome { reply, .. } = request.execute(&mut copy, &nexus, &ports);
            let saved = all_of(&copy);
            let kept = Reserved::of(&saved, copy.generation(), &FAMILIES).ok();
            // What cannot be in the record is not done.
            let (reply, reserved) = match (reply.status == status::GOOD, kept) {
                (true, Some(kept)) => (reply, Some((body.naa, kept))),
                (true, None) => (busy, None),
                (false, _) => (reply, None),
            };
            let change = reserved.is_some().then_some((nexus, request, ports));
            *this.prepared() = Some(Prepared { volume, slot, change });
            done(Execution { reserved, answer: encode(&reply) });
        });
    }

    /// Commands are held back that reservations of this volume decide about: another protocol executes a request on them.
    pub fn hold(&self, naa: [u8; 16], done: impl FnOnce() + Send + Sync + 'static) {
        match self.volume(naa) {
            Some((slot, _)) => self.order(&Order::Hold(slot), done),
            None => done(),
        }
    }

    /// They go on.
    pub fn let_go(&self, naa: [u8; 16], done: impl FnOnce() + Send + Sync + 'static) {
        match self.volume(naa) {
            Some((slot, _)) => self.order(&Order::LetGo(slot), done),
            None => done(),
        }
    }

    /// The group's volume with this designator.
    pub(super) fn volume(&self, naa: [u8; 16]) -> Option<(VolumeId, Arc<ScsiVolume>)> {
        let world = self.handle.world();
        let own = volumes_of(&world, &self.targets).into_iter();
        let mut own = own.filter_map(|slot| Some((slot, world.volume(slot)?.clone())));
        own.find(|(_, volume)| naa_of(&volume.face.unit) == naa)
    }

    /// What was [executed](Self::execute) takes effect: those who lose something are told, and commands that were held back go on.
    /// Done when commands that it aborts have ended on every shard.
    pub fn apply(&self, done: impl FnOnce() + Send + Sync + 'static) {
        let part = Part::new(done);
        let Some(Prepared { volume, slot, change }) = self.prepared().take() else { return };
        if let Some((nexus, request, ports)) = change {
            let (_, events) = volume.reservations.change(|state| {
                let Outcome { reply, events } = request.execute(state, &nexus, &ports);
                (reply, events)
            });
            if request.aborts() {
                let order = aborts(&events);
                self.handle.tell(|| {
                    let (order, receipt) = (order.clone(), part.as_done());
                    Message::Abort(Preempted { volume: slot, order, spared: None, receipt })
                });
                let others = order.iter().filter(|whose| !is_initiator(whose)).cloned().collect();
                volume.reservations.abort(&others, part.as_done());
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

    /// The volumes of a record, with what it says of them.
    pub(super) fn in_record<'r>(
        &self,
        record: &'r Record,
    ) -> impl Iterator<Item = (Arc<ScsiVolume>, &'r lunet_gateway::Volume)> {
        let world = self.handle.world();
        let slots = volumes_of(&world, &self.targets).into_iter();
        slots.filter_map(move |slot| {
            let volume = world.volume(slot)?.clone();
            let naa = naa_of(&volume.face.unit);
            Some((volume, record.contents.volumes.iter().find(|it| it.naa == naa)?))
        })
    }

    /// Takes up what a record says of reservations, mode pages and SANITIZE, before the gate opens. Volumes that it does not
    /// have stay as they are.
    ///
    /// # Errors
    /// [`GroupError::Contradiction`]: reservations of volumes before that one were taken up.
    pub fn load(&self, record: &Record) -> Result<(), GroupError> {
        self.modes(record);
        for (volume, kept) in self.in_record(record) {
            let wrong = || GroupError::Contradiction(volume.name.clone());
            let saved = kept.reserved.saved(&FAMILIES).map_err(|_| wrong())?;
            let taken = |state: &mut Reservations| {
                (state.take_up(saved, kept.reserved.generation), Vec::new())
            };
            volume.reservations.change(taken).0.map_err(|_| wrong())?;
            volume.face.unit.state.end_sanitize(sanitation(kept.sanitize));
        }
        Ok(())
    }

    fn prepared(&self) -> lunet_os::sync::MutexGuard<'_, Option<Prepared>> {
        self.shared.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_read_as_it_was_written_and_nothing_else_is_one() {
        let body = Body {
            naa: [6; 16],
            nexus: b"who".to_vec(),
            action: 4,
            scope_and_kind: 3,
            list: vec![9; 24],
        };
        let bytes = body.encode().expect("it is short");
        assert_eq!(Body::decode(&bytes), Some(body.clone()));
        for len in 0..24 {
            assert_eq!(Body::decode(&bytes[..len]), None, "{len}");
        }
        assert_eq!(Body::decode(&[&[2], &bytes[1..]].concat()), None, "another version");
        assert_eq!(Body { list: vec![0; MAX_BODY], ..body }.encode(), None);
    }
}
