//! The layer above the target's end: a disk in memory that answers late and out of order.

use std::sync::Arc;
use std::time::Duration;

use lunet_block::Random;
use lunet_iscsi::pdu::{LoginStatus, TmfFunction, TmfResponse};
use lunet_iscsi::target::{
    Command, Connection, Credentials, Event, LoginIdentity, LoginRefusal, Response, SendTargets,
    Site, Tag, TargetInfo, Wanted,
};

use crate::settings::TARGET;
use crate::wire::{Bytes, Outgoing, random_bytes};

/// Size of the disk in bytes.
pub const SIZE: u32 = 128 << 10;

/// Operation codes of the test's own command set: `op, 0, offset (4 bytes), length (4 bytes)`.
pub const NOTHING: u8 = 0x00;
pub const READ: u8 = 0x88;
pub const WRITE: u8 = 0x8a;
pub const UNKNOWN: u8 = 0xff;

/// The CDB of a command.
pub fn cdb(op: u8, offset: u32, len: u32) -> [u8; 10] {
    let (o, l) = (offset.to_be_bytes(), len.to_be_bytes());
    [op, 0, o[0], o[1], o[2], o[3], l[0], l[1], l[2], l[3]]
}

/// Sense data of a command that does not exist.
pub const SENSE: [u8; 18] = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0];

/// The surroundings of the target's end.
pub struct TestSite {
    pub rng: Random,
    /// How many of a hundred allocations fail.
    pub failing: u64,
    /// Portals that discovery shows for each target, and targets.
    pub portals: Vec<(String, String, u16)>,
    /// Buffers of receives that were kept.
    pub kept: u32,
    /// What initiators have to prove.
    pub credentials: Option<Arc<Credentials>>,
}

impl TestSite {
    pub fn new(rng: Random) -> Self {
        Self { rng, failing: 0, portals: Vec::new(), kept: 0, credentials: None }
    }
}

impl Site for TestSite {
    type Buf = Vec<u8>;

    fn alloc(&mut self, len: usize) -> Option<Vec<u8>> {
        (!self.rng.chance(self.failing)).then(|| vec![0xee; len])
    }

    fn keep(&mut self, _: &mut Vec<u8>) -> bool {
        let keeps = !self.rng.chance(self.failing);
        self.kept += u32::from(keeps);
        keeps
    }

    fn find_target(&self, identity: &LoginIdentity) -> Result<TargetInfo, LoginRefusal> {
        match identity.target_name.as_deref() {
            Some(TARGET) => {
                Ok(TargetInfo { portal_group_tag: 3, alias: Some("a pair".to_string()) })
            }
            _ => Err(LoginStatus::NotFound.into()),
        }
    }

    fn credentials(&self, _: &LoginIdentity) -> Result<Option<Arc<Credentials>>, LoginRefusal> {
        Ok(self.credentials.clone())
    }

    fn random(&self, bytes: &mut [u8]) -> bool {
        bytes.copy_from_slice(&random_bytes(&mut self.rng.clone(), bytes.len()));
        true
    }

    fn send_targets(&self, which: SendTargets<'_>, each: &mut dyn FnMut(&str, &str, u16)) {
        for (name, address, tag) in &self.portals {
            if which == SendTargets::All || which == SendTargets::Named(name) {
                each(name, address, *tag);
            }
        }
    }
}

enum Work {
    Read { offset: usize, len: usize, sent: usize },
    Write { offset: usize, data: Vec<u8>, asked: usize, came: usize },
    Nothing,
    Unknown,
}

struct Job {
    tag: Tag,
    work: Work,
    /// Length that the command itself tells.
    wanted: u32,
    /// When it goes on; `None` while data is awaited.
    due: Option<Duration>,
}

/// The disk and the commands that it works on.
pub struct Disk {
    pub bytes: Vec<u8>,
    jobs: Vec<Job>,
    rng: Random,
    /// Commands wait at most this long, in milliseconds.
    pub slowness: u64,
    /// Nothing is answered while this is set.
    pub stalled: bool,
    /// Who logged in last.
    pub identity: Option<LoginIdentity>,
    /// Why the connection was closed.
    pub closed: Option<lunet_iscsi::target::CloseReason>,
    /// The answer to a login, if it is not to be admitted.
    pub refuse: Option<LoginStatus>,
}

type Target = Connection<Vec<u8>>;

impl Disk {
    pub fn new(rng: Random) -> Self {
        Self::sized(rng, SIZE as usize)
    }

    /// A disk of so many bytes.
    pub fn sized(mut rng: Random, size: usize) -> Self {
        Self {
            bytes: random_bytes(&mut rng, size),
            jobs: Vec::new(),
            rng,
            slowness: 2000,
            stalled: false,
            identity: None,
            closed: None,
            refuse: None,
        }
    }

    /// Commands under way.
    pub fn jobs(&self) -> usize {
        self.jobs.len()
    }

    pub fn next_due(&self) -> Option<Duration> {
        if self.stalled {
            return None;
        }
        self.jobs.iter().filter_map(|job| job.due).min()
    }

    pub fn handle(
        &mut self,
        event: Event<Vec<u8>>,
        now: Duration,
        target: &mut Target,
        tx: &mut Outgoing,
    ) {
        match event {
            Event::LoginFinished(identity) => {
                self.identity = Some(*identity);
                match self.refuse {
                    Some(status) => target.refuse(status, tx),
                    None => target.admit(0x5151, tx),
                }
            }
            Event::Command(command) if !target.is_pending(command.tag) => {}
            Event::Command(command) => self.begin(command, now, target, tx),
            Event::Data { tag, offset, len, buf } => {
                self.data(tag, offset as usize, &buf[..len as usize], now, target, tx);
            }
            Event::TransferFailed { tag, error } => {
                if self.remove(|job| job.tag == tag) > 0 {
                    target.respond(tag, Response::transfer_error(error), tx);
                }
            }
            Event::TaskManagement { tag, function, lun, referenced } => {
                let response = self.manage((tag, function), lun, referenced, target);
                target.respond_tmf(tag, response, tx);
            }
            Event::Answered { .. } => {}
            Event::Close(reason) => {
                assert!(self.closed.is_none(), "closed twice");
                self.closed = Some(reason);
            }
        }
    }

    fn delay(&mut self, now: Duration) -> Option<Duration> {
        // Half of the commands are answered at once.
        let wait = if self.rng.chance(50) { 0 } else { self.rng.below(self.slowness + 1) };
        Some(now + Duration::from_millis(wait))
    }

    fn begin(
        &mut self,
        command: Command<Vec<u8>>,
        now: Duration,
        target: &mut Target,
        tx: &mut Outgoing,
    ) {
        let Command { tag, cdb, expects_write, data, .. } = command;
        let number =
            |at: usize| u32::from_be_bytes([cdb[at], cdb[at + 1], cdb[at + 2], cdb[at + 3]]);
        let (offset, wanted) = (number(2) as usize, number(6));
        let due = self.delay(now);
        let mut job = Job { tag, work: Work::Nothing, wanted, due };
        match cdb[0] {
            NOTHING => {}
            READ => job.work = Work::Read { offset, len: wanted as usize, sent: 0 },
            WRITE => {
                let len = wanted.min(expects_write) as usize;
                let (mut bytes, came) = data.unwrap_or_default();
                bytes.truncate(came.min(len));
                let came = bytes.len();
                bytes.resize(len, 0xcc);
                job.work = Work::Write { offset, data: bytes, asked: came, came };
                if came < len {
                    job.due = None;
                }
            }
            _ => job.work = Work::Unknown,
        }
        self.jobs.push(job);
        let last = self.jobs.len() - 1;
        self.ask(last, target, tx);
    }

    /// Asks for write data, in pieces of any size, several at once.
    fn ask(&mut self, index: usize, target: &mut Target, tx: &mut Outgoing) {
        let job = &mut self.jobs[index];
        let Work::Write { data, asked, .. } = &mut job.work else { return };
        while *asked < data.len() {
            let most = if self.rng.chance(50) { 3000 } else { 100_000 };
            let len = (1 + self.rng.below(most) as usize).min(data.len() - *asked);
            let spare = self.rng.below(3) as usize;
            target.solicit(job.tag, *asked as u32, len as u32, vec![0xdd; len + spare], tx);
            *asked += len;
            if self.rng.chance(30) {
                break;
            }
        }
    }

    fn data(
        &mut self,
        tag: Tag,
        offset: usize,
        bytes: &[u8],
        now: Duration,
        target: &mut Target,
        tx: &mut Outgoing,
    ) {
        let due = self.delay(now);
        // An abort that came with the same bytes was handled first.
        let Some(index) = self.jobs.iter().position(|job| job.tag == tag) else { return };
        let job = &mut self.jobs[index];
        let Work::Write { data, asked, came, .. } = &mut job.work else {
            panic!("data for a command that takes none")
        };
        data[offset..offset + bytes.len()].copy_from_slice(bytes);
        *came += bytes.len();
        if *came == data.len() {
            job.due = due;
        } else if *came == *asked {
            self.ask(index, target, tx);
        }
    }

    /// Goes on with what is due, in any order.
    pub fn work(&mut self, now: Duration, target: &mut Target, tx: &mut Outgoing) {
        while let Some(due) = self.next_due().filter(|due| *due <= now) {
            let ready = |job: &&Job| job.due.is_some_and(|at| at <= now.max(due));
            let tags: Vec<Tag> = self.jobs.iter().filter(ready).map(|job| job.tag).collect();
            let tag = tags[self.rng.below(tags.len() as u64) as usize];
            if let Some(index) = self.jobs.iter().position(|job| job.tag == tag) {
                self.step(index, now, target, tx);
            }
        }
    }

    fn step(&mut self, index: usize, now: Duration, target: &mut Target, tx: &mut Outgoing) {
        let later = self.delay(now);
        let Job { tag, work, wanted, due, .. } = &mut self.jobs[index];
        let (tag, wanted) = (*tag, *wanted);
        match work {
            Work::Read { offset, len, sent } => {
                let rest = &self.bytes[*offset + *sent..*offset + *len];
                if !rest.is_empty() && self.rng.chance(30) {
                    let part = self.rng.below(rest.len() as u64) as usize;
                    target.send_data(tag, Bytes(rest.to_vec()), 0..part, None, tx);
                    *sent += part;
                    *due = later;
                    return;
                }
                // The payload may be larger than the part of it that is sent.
                let mut payload = vec![0xaa; 3];
                payload.extend_from_slice(rest);
                let last = Some(Wanted { read: wanted, write: 0 });
                let range = 3..payload.len();
                target.send_data(tag, Bytes(payload), range, last, tx);
            }
            Work::Write { offset, data, .. } => {
                self.bytes[*offset..*offset + data.len()].copy_from_slice(data);
                target.respond(tag, Response::good(Wanted { read: 0, write: wanted }), tx);
            }
            Work::Nothing => target.respond(tag, Response::good(Wanted::default()), tx),
            Work::Unknown => {
                let response = Response { status: 2, sense: &SENSE, wanted: None };
                target.respond(tag, response, tx);
            }
        }
        self.jobs.swap_remove(index);
    }

    fn manage(
        &mut self,
        (own, function): (Tag, TmfFunction),
        lun: u64,
        referenced: Option<Tag>,
        target: &mut Target,
    ) -> TmfResponse {
        let ended: Vec<Tag> = match function {
            TmfFunction::AbortTask => referenced.into_iter().collect(),
            TmfFunction::AbortTaskSet
            | TmfFunction::ClearTaskSet
            | TmfFunction::LogicalUnitReset => target.older_than(own, |at| at == lun),
            TmfFunction::TargetWarmReset | TmfFunction::TargetColdReset => {
                target.older_than(own, |_| true)
            }
            TmfFunction::ClearAca | TmfFunction::TaskReassign => return TmfResponse::NotSupported,
        };
        for tag in &ended {
            target.abort(*tag);
        }
        match (self.remove(|job| ended.contains(&job.tag)), function) {
            (0, TmfFunction::AbortTask) => TmfResponse::TaskDoesNotExist,
            _ => TmfResponse::Complete,
        }
    }

    fn remove(&mut self, gone: impl Fn(&Job) -> bool) -> usize {
        let before = self.jobs.len();
        self.jobs.retain(|job| !gone(job));
        before - self.jobs.len()
    }
}
