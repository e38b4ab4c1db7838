//! What this server does for a group: its thread calls it, one thing after the other.

use std::sync::{Arc, PoisonError};

use lunet_backends::rbd::{Unanswered, of_group};
use lunet_front_iscsi::{Keep, Kept as Part};
use lunet_gateway::{
    Access, Answer, Attention, Change, Condition, Contents, Epoch, Gate, GatewayId, Job, Notice,
    OpId, Order, Port, Portals, Record, Refusal, Registered, Request, Sanitize,
};
use lunet_group::{Drained, Error, Handle, Said, Serving, Status, Storage};
use lunet_os::sync::Mutex;
use lunet_relay::Execution;

use super::agreement::Expected;
use super::fronts::{Fronts, Relays};
use super::jobs::{Jobs, Marking, Work};
use super::{Ending, REFUSED, State, told};
use crate::audit::Listener;
use crate::live::{Manager, Mark};
use crate::serve;
use lunet_config as config;

/// EROFS: the group is to be another gateway's.
const READ_ONLY: i32 = 30;

/// What there is to be said of a takeover that has failed at the cluster, when nothing else is known.
const CAME_TO_NOTHING: &str = "the latest takeover came to nothing: another gateway was quicker, or the cluster did not carry it \
                               out (`ceph -s` tells of monitors, OSDs and full pools); it is tried again";

/// A group's way to the shards, to what is served, and to whoever asks about it.
pub(super) struct Server {
    pub(super) name: String,
    /// Its number.
    pub(super) gateway: u16,
    pub(super) shards: Fronts,
    pub(super) manager: Arc<Manager>,
    pub(super) state: Arc<Mutex<State>>,
    pub(super) ending: Ending,
    /// Is told when something is different of the group.
    pub(super) listener: Listener,
    pub(super) thread: Handle,
    /// The volumes that are served, with the names of the record.
    pub(super) volumes: Vec<config::Volume>,
    pub(super) client: Option<OpId>,
    pub(super) relays: Relays,
    /// The secret of the record.
    pub(super) secret: [u8; 32],
    /// What clients of this server have left behind that may still land.
    pub(super) unanswered: Vec<Unanswered>,
    pub(super) contents: Arc<Mutex<Kept>>,
    /// What is being written into the record for a command here that is not about reservations.
    pub(super) keeping: Option<Keep>,
    /// What administrators want of the owner.
    pub(super) jobs: Arc<Jobs>,
    /// What is being written into the record of a rollback.
    pub(super) marking: Option<Marking>,
}

/// What the record contains, and what it will contain if a change comes about.
#[derive(Default)]
pub(super) struct Kept {
    now: Contents,
    next: Option<Contents>,
}

impl Kept {
    /// What initiators know an image of the record by.
    pub(super) fn naa(&self, image: &str) -> Option<[u8; 16]> {
        self.now.volumes.iter().find(|volume| volume.image == image).map(|volume| volume.naa)
    }

    /// What the record will contain, if that changes.
    fn prepare(contents: &Mutex<Self>, change: Option<([u8; 16], Change)>) -> Contents {
        let mut kept = contents.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = kept.now.clone();
        if let Some((naa, change)) = change {
            next.change(naa, change);
        }
        kept.next = Some(next.clone());
        next
    }
}

impl Server {
    /// A command here waits until this is in the record.
    fn keep(&mut self, request: Request, keep: Keep) {
        // What says that a volume is rolled back stays until it is, and whoever sanitizes it tries again.
        if matches!(keep.what, Part::Sanitation(_)) && self.jobs.rolls(keep.naa) {
            let same = Kept::prepare(&self.contents, None);
            return self.thread.executed(request, same, Keep::answer(false));
        }
        let next = Kept::prepare(&self.contents, Some((keep.naa, keep.change())));
        self.keeping = Some(keep);
        self.thread.executed(request, next, Keep::answer(true));
    }

    /// A rollback begins or ends when this is in the record.
    fn mark(&mut self, request: Request, marking: Marking) {
        let mut kept = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        let (next, is_in) = marking.apply(&kept.now);
        kept.next = Some(next.clone());
        drop(kept);
        self.marking = is_in.then_some(marking);
        self.thread.executed(request, next, vec![u8::from(is_in)]);
    }

    /// It is.
    fn marked(&self, Marking { naa, mark }: Marking) {
        let Some(name) = self.name_of(naa) else { return };
        match mark {
            Mark::Begun => return,
            Mark::Done => self.manager.rolled_back(&name, true),
            Mark::Failed => self.manager.rolled_back_in_part(&name),
        }
        self.shards.rolled_back(naa, mark == Mark::Done);
    }

    /// The volume that initiators know by this designator.
    fn name_of(&self, naa: [u8; 16]) -> Option<String> {
        let kept = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        let image = &kept.now.volumes.iter().find(|volume| volume.naa == naa)?.image;
        self.named(image).map(|volume| volume.name.clone())
    }

    /// The volume that is this image.
    fn named(&self, image: &str) -> Option<&config::Volume> {
        let has = |volume: &&config::Volume| {
            config::image_of(volume).is_some_and(|name| name.plain() == image)
        };
        self.volumes.iter().find(has)
    }

    fn state(&self) -> lunet_os::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The group has come to a new epoch since former clients of this server were its owner: that is behind the fence of a
    /// takeover, or behind a move, for which they had nothing under way.
    fn former_clients_are_fenced(&mut self) {
        let present = usize::from(self.client.is_some());
        let former = self.unanswered.len().saturating_sub(present);
        self.unanswered.drain(..former).for_each(|former| former.cannot_land());
    }

    /// Has all shards open what one client has open, as far as the configuration names it.
    fn open(&mut self, storage: &Storage) -> Result<(), String> {
        let expected = Expected::now(&self.manager, &self.name);
        let volumes = expected.ok_or("the configuration has no such group")?;
        let volumes = volumes.identified(&storage.record);
        let unanswered = Unanswered::default();
        let mut opened = Vec::new();
        let recorded = storage.record.contents.volumes.iter();
        for ((config, image), recorded) in volumes.iter().zip(&storage.images).zip(recorded) {
            let Some(config) = config else { continue };
            let (thread, client) = (self.thread.clone(), storage.client);
            let failed = Arc::new(move |errno| thread.io_failed(client, errno));
            // Its path is in the data directory for files alone.
            let spec = serve::spec(config, std::path::Path::new(""));
            let volume =
                of_group(&spec, (image.clone(), recorded.bytes), failed, unanswered.clone());
            let volume = volume.map_err(|error| format!("volume {}: {error}", config.name))?;
            opened.push((config.clone(), Some(volume)));
        }
        self.manager.give_group(opened).map_err(|error| format!("{error:#}"))?;
        self.unanswered.push(unanswered);
        self.volumes = volumes.into_iter().flatten().collect();
        self.client = Some(storage.client);
        self.secret = storage.record.secret;
        self.shards.relay(&self.relays, self.secret);
        Ok(())
    }

    /// Has the record follow the configuration, if this gateway owns the group.
    fn follow(&mut self) {
        if self.state().status.condition != Condition::Owner {
            return;
        }
        let contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner).now.clone();
        let expected = Expected::now(&self.manager, &self.name);
        match expected.map(|expected| expected.wanted(&contents, &self.volumes)) {
            Some(Ok(Some(volumes))) => {
                // What was refused is asked for again and again, and told once.
                if self.state().notices.not_had.is_none() {
                    let images: Vec<_> = volumes.iter().map(|volume| &*volume.image).collect();
                    let images = images.join(", ");
                    tracing::info!(group = %self.name, "the group is to have the images {images}");
                }
                self.thread.have(volumes);
            }
            Some(Err(error)) => {
                tracing::error!(group = %self.name, "cannot get random numbers: {error}")
            }
            Some(Ok(None)) | None => self.state().notices.not_had = None,
        }
    }
}

impl Serving for Server {
    fn storage(&mut self, storage: Option<Storage>) -> Result<(), Said> {
        if let Some(storage) = storage {
            return self.open(&storage).map_err(Said);
        }
        self.client = None;
        let volumes = std::mem::take(&mut self.volumes);
        // The end of the server lets go of all volumes, and takes no changes.
        if self.ending.is_near() || volumes.is_empty() {
            return Ok(());
        }
        let absent = volumes.into_iter().map(|config| (config, None)).collect();
        self.manager.give_group(absent).map_err(|error| {
            tracing::warn!(group = %self.name, "shards hold on to images that are closed: {error:#}");
            Said(format!("{error:#}"))
        })
    }

    fn gate(&mut self, gate: Gate) {
        self.shards.set_gate(gate);
    }

    fn stop_answering(&mut self, gate: Gate) {
        tracing::warn!(group = %self.name, "this gateway owns the group no more: its connections are reset");
        if !self.ending.is_near() {
            self.state().deposed += 1;
        }
        self.shards.stop_answering(gate);
    }

    fn abort_connections(&mut self) {
        self.shards.abort_connections();
    }

    fn load(&mut self, record: &Record) {
        self.former_clients_are_fenced();
        *self.contents.lock().unwrap_or_else(PoisonError::into_inner) =
            Kept { now: record.contents.clone(), next: None };
        if let Err(volume) = self.shards.load(record) {
            tracing::error!(group = %self.name, "the reservations of volume {volume} contradict themselves");
            self.client.into_iter().for_each(|client| self.thread.io_failed(client, READ_ONLY));
        }
        // One that was cut, and is as large as it was again, is served like at a gateway that has not seen that.
        self.manager.sizes_are_unknown(&self.volumes);
        self.thread.look_at_sizes();
        for kept in &record.contents.volumes {
            let Some(volume) = self.named(&kept.image) else { continue };
            match kept.sanitize {
                Sanitize::RollingBack => self.manager.rolled_back_in_part(&volume.name),
                _ => self.manager.rolled_back(&volume.name, false),
            }
        }
    }

    fn modes(&mut self, record: &Record) {
        self.shards.modes(record);
    }

    fn attention(&mut self, attention: Attention) {
        self.shards.attention(attention);
    }

    fn preempted(&mut self, lost: &[([u8; 16], Registered)]) {
        self.shards.preempted(lost);
    }

    fn reach(&mut self, epoch: Epoch, owner: Portals) {
        let mut state = self.state();
        (state.owner, state.aimed) = (owner, epoch);
        drop(state);
        self.relays.iscsi.aim(epoch, owner.iscsi, self.secret);
        self.relays.nvme.iter().for_each(|relays| relays.aim(epoch, owner.nvme, self.secret));
    }

    fn access(&mut self, _epoch: Epoch, ports: &[Port], access: &Access) {
        self.former_clients_are_fenced();
        let mut gateways: Vec<u16> = ports.iter().map(|port| port.gateway.0).collect();
        gateways.sort_unstable();
        gateways.dedup();
        self.state().gateways = gateways;
        self.shards.access(ports, access);
    }

    fn drain(&mut self, drained: Drained) {
        self.shards.drain(move || drained.done());
    }

    fn execute(&mut self, request: Request, body: Vec<u8>) {
        if let Some(marking) = Marking::decode(&body) {
            return self.mark(request, marking);
        }
        if let Some(keep) = Keep::decode(&body) {
            return self.keep(request, keep);
        }
        let (thread, contents) = (self.thread.clone(), self.contents.clone());
        self.shards.execute(&body, move |Execution { reserved, answer }| {
            let change = reserved.map(|(naa, reserved)| (naa, Change::Reserved(reserved)));
            let next = Kept::prepare(&contents, change);
            thread.executed(request, next, answer);
        });
    }

    fn apply(&mut self, request: Request) {
        let mut kept = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(next) = kept.next.take() {
            kept.now = next;
        }
        drop(kept);
        if let Some(marking) = self.marking.take() {
            self.marked(marking);
            return self.thread.applied(request);
        }
        if let Some(keep) = self.keeping.take() {
            // What a rollback has left is overwritten from here on.
            if let (Part::Sanitation(_), Some(name)) = (&keep.what, self.name_of(keep.naa)) {
                self.manager.rolled_back(&name, false);
            }
            self.shards.kept(&keep);
            return self.thread.applied(request);
        }
        let thread = self.thread.clone();
        self.shards.apply(move || thread.applied(request));
    }

    fn abandon(&mut self, request: Request) {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner).next = None;
        (self.keeping, self.marking) = (None, None);
        self.jobs.given_up(request.0);
        self.shards.abandon();
    }

    fn answer(&mut self, id: u64, answer: Answer) {
        if let Some(answer) = self.jobs.answered(id, answer) {
            self.shards.answer(id, answer);
        }
    }

    fn job(&mut self, job: Job, body: Vec<u8>) {
        let (manager, name, gateway) = (self.manager.clone(), self.name.clone(), self.gateway);
        let (thread, contents) = (self.thread.clone(), self.contents.clone());
        let work = Work { thread, contents, jobs: self.jobs.clone() };
        let begun = lunet_os::thread::spawn("group-job", move || {
            let answer = manager.do_job(&name, gateway, &body, &work);
            work.thread.job_done(job, answer);
        });
        if let Err(error) = begun {
            tracing::error!(group = %self.name, "no thread for an order: {error}");
            self.thread.job_done(job, Manager::no_job(self.gateway));
        }
    }

    fn refuse(&mut self, order: Order, refusal: Refusal) {
        tracing::warn!(group = %self.name, "an order is not carried out ({order:?}): {refusal}: {}", refusal.next());
        let mut state = self.state();
        state.refused.truncate(REFUSED - 1);
        state.refused.push_front((order, refusal));
    }

    fn notice(&mut self, notice: &Notice) {
        let text = Some(notice.to_string());
        tracing::error!(group = %self.name, "{notice}");
        let mut state = self.state();
        let notices = &mut state.notices;
        match notice {
            Notice::NotDrained { .. } => notices.not_had = text,
            Notice::SameNumber(_) => notices.twin = text,
            Notice::ShortEntry { .. } | Notice::InUse { .. } => notices.takeover = text,
            Notice::Orphaned(_) => {
                notices.orphaned = text;
                (state.gateways, state.owner) = (Vec::new(), Portals::default());
            }
        }
        drop(state);
        self.listener.differs(told::LISTS);
    }

    fn settled(&mut self) {
        if self.state().notices.takeover.take().is_some() {
            tracing::info!(group = %self.name, "the owner of the group answers");
            self.listener.differs(told::LISTS);
        }
    }

    fn present(&mut self, standbys: &[GatewayId]) {
        let me = GatewayId(self.gateway);
        let is_twice = standbys.contains(&me) || standbys.windows(2).any(|two| two[0] == two[1]);
        let mut state = self.state();
        let was_twin = !is_twice && state.notices.twin.take().is_some();
        let is_other = state.notices.standbys.heard(standbys);
        let known: Vec<u16> = state.gateways.clone();
        let why = state.notices.standbys.missing(self.gateway, &known);
        drop(state);
        if is_other {
            match why {
                Some(why) => tracing::warn!(group = %self.name, "{why}"),
                None => tracing::info!(group = %self.name, "another gateway is there to take over"),
            }
        }
        if is_other || was_twin {
            self.listener.differs(told::LISTS);
        }
    }

    fn trouble(&mut self, trouble: Option<&Error>) {
        match trouble {
            Some(error) => tracing::error!(group = %self.name, "not served: {error}"),
            None => tracing::info!(group = %self.name, "the group's cluster answers again"),
        }
        self.state().notices.trouble = trouble.map(Error::to_string);
        self.listener.differs(told::LISTS);
    }

    fn status(&mut self, status: &Status) {
        tracing::info!(group = %self.name, "{}", super::in_words(status));
        let mut state = self.state();
        let is_new = |state: &Status| (state.owner, state.epoch);
        if is_new(status) != is_new(&state.status) {
            (state.notices.takeover, state.notices.twin) = (None, None);
        }
        let failed = (state.status.condition, status.condition);
        if failed == (Condition::TakingOver, Condition::Fenced) {
            state.notices.takeover = Some(CAME_TO_NOTHING.to_owned());
        }
        // Both are an owner's to tell.
        if status.condition != Condition::Owner {
            (state.notices.not_had, state.notices.standbys) = (None, told::Standbys::default());
        }
        let owns = |condition| condition == Condition::Owner;
        let owned = owns(state.status.condition) || state.status.condition == Condition::Moving;
        state.takeovers += u64::from(owns(status.condition) && !owned);
        state.status = status.clone();
        drop(state);
        self.listener.differs(told::LISTS);
        self.follow();
    }

    fn seen(&mut self) {
        self.follow();
    }

    fn cut_short(&mut self, image: &str, bytes: u64) {
        if let Some(volume) = self.named(image) {
            self.manager.cut_short(&volume.name, bytes);
        }
    }

    fn not_had(&mut self, why: &Error) {
        let why = format!("the group does not get the volumes of its configuration: {why}");
        let before = self.state().notices.not_had.replace(why.clone());
        if before.as_ref() != Some(&why) {
            tracing::error!(group = %self.name, "{why}");
            self.listener.differs(told::LISTS);
        }
    }
}
