//! A controller: its properties, its keep alive timer, and the commands of its admin queue.

use super::event::Tag;
use super::events::Events;
use super::pages::Source;
use super::setup::{ERRORS, KEEP_ALIVE_UNIT, Kind, Setup, VERSION};
use crate::command::{Admin, Completion, Sqe};
use crate::fabrics::{Fabrics, Property, Transport};
use crate::feature::Event;
use crate::identify;
use crate::log::{ErrorEntry, TRTYPE_RDMA, TRTYPE_TCP};
use crate::pdu::{U16, U32, U64};
use crate::status::Status;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

/// Keep alive timeout of a discovery controller whose host gives none.
const DISCOVERY_KATO: Duration = Duration::from_secs(120);

/// CAP: timeouts, in units of 500 ms.
const READY_TIMEOUT: u64 = 15;

/// CC: Enable.
const CC_EN: u32 = 1;
/// CC: Shutdown Notification.
const CC_SHN: u32 = 3 << 14;
/// CC: fields that must have the values that are supported when the controller is enabled, beside
/// CSS: MPS, AMS, IOSQES and IOCQES.
const CC_FIXED: u32 = 0xf << 7 | 7 << 11 | 0xff << 16;
/// CC: those values of an I/O controller: entries of 64 and 16 bytes.
const CC_IO: u32 = 6 << 16 | 4 << 20;

/// CSTS: Ready.
const CSTS_RDY: u32 = 1;
/// CSTS: Controller Fatal Status.
const CSTS_CFS: u32 = 1 << 1;
/// CSTS: shutdown processing is under way.
const CSTS_SHUTTING_DOWN: u32 = 1 << 2;
/// CSTS: shutdown processing is complete.
const CSTS_SHUT_DOWN: u32 = 2 << 2;
/// CSTS: SHST.
const CSTS_SHST: u32 = 3 << 2;

/// What the layer above has to do with a command of the admin queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Complete it so.
    Complete(Completion),
    /// Send this data, and complete it with success.
    Data(Vec<u8>),
    /// Nothing: the controller keeps it, and completes it by
    /// [`take_event`](Controller::take_event).
    Kept,
    /// Abort a command, and complete this one: result 0 if it was aborted, 1 if not.
    Abort {
        /// The command's queue.
        sqid: u16,
        /// Its identifier.
        cid: u16,
    },
    /// Complete it with success, delete the I/O queues, and call
    /// [`reset_done`](Controller::reset_done).
    Reset,
    /// Complete it with success, make everything stable, and call
    /// [`shutdown_done`](Controller::shutdown_done).
    ShutDown,
    /// Set whether reservations of a namespace persist through power loss, or ask for it.
    Persistence {
        /// The namespace.
        nsid: u32,
        /// The new value; `None`: complete with the value as result.
        set: Option<bool>,
    },
    /// A message of the authentication; [`Fabrics`] says which.
    Authenticate(Fabrics),
}

impl From<Status> for Answer {
    fn from(status: Status) -> Self {
        Self::Complete(status.into())
    }
}

/// A command of the admin queue, or a Fabrics command of any queue.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Names it.
    pub tag: Tag,
    /// The submission queue entry.
    pub sqe: &'a Sqe,
    /// Bytes that the host takes at most.
    pub expects_read: u32,
    /// The data of its capsule.
    pub data: &'a [u8],
}

/// A controller, for one host.
#[derive(Debug)]
pub struct Controller {
    pub(super) setup: Setup,
    cc: u32,
    csts: u32,
    /// The keep alive timeout; zero: none.
    pub(super) kato: Duration,
    heard: Duration,
    pub(super) events: Events,
    /// Namespaces that have changed since the host asked.
    pub(super) changed: BTreeSet<u32>,
    /// Reservation Notification Mask of each namespace that has one.
    pub(super) masks: BTreeMap<u32, u32>,
    /// I/O queues that the host was given.
    pub(super) queues: u16,
    pub(super) errors: VecDeque<ErrorEntry>,
    error_count: u64,
}

impl Controller {
    /// A controller that the host has connected to and not enabled.
    #[must_use]
    pub fn new(setup: Setup, now: Duration) -> Self {
        let kato = match setup.kind {
            Kind::Discovery if setup.kato.is_zero() => DISCOVERY_KATO,
            _ => setup.kato,
        };
        Self {
            cc: 0,
            csts: 0,
            kato: whole_units(kato),
            heard: now,
            events: Events::default(),
            changed: BTreeSet::new(),
            masks: BTreeMap::new(),
            queues: setup.max_queues,
            errors: VecDeque::new(),
            error_count: 0,
            setup,
        }
    }

    /// True while the controller is enabled and takes commands: I/O queues can be made. During a reset CSTS.RDY stays
    /// until the queues have ended; a queue that was made meanwhile would end with nobody.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.cc & CC_EN != 0 && self.csts & (CSTS_RDY | CSTS_CFS | CSTS_SHST) == CSTS_RDY
    }

    /// True if the controller is shut down, or is about to be, until it is reset.
    #[must_use]
    pub const fn is_shut_down(&self) -> bool {
        self.csts & CSTS_SHST != 0
    }

    /// I/O queues that the host may make; their identifiers are 1 to this number.
    #[must_use]
    pub const fn queues(&self) -> u16 {
        self.queues
    }

    /// The keep alive timeout; zero: none.
    #[must_use]
    pub const fn keep_alive(&self) -> Duration {
        self.kato
    }

    /// The host gave a sign of life: a command on any queue (traffic based keep alive).
    pub fn heard(&mut self, now: Duration) {
        self.heard = self.heard.max(now);
    }

    /// When the keep alive timer expires; `None` without one.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        (!self.kato.is_zero() && self.csts & CSTS_CFS == 0)
            .then(|| self.heard.saturating_add(self.kato))
    }

    /// True if the keep alive timer has expired: end all queues of the controller.
    #[must_use]
    pub fn handle_timeout(&mut self, now: Duration) -> bool {
        let expired = self.poll_timeout().is_some_and(|at| now >= at);
        if expired {
            self.csts |= CSTS_CFS;
        }
        expired
    }

    /// The I/O queues are deleted, after [`Answer::Reset`].
    pub fn reset_done(&mut self) {
        if self.cc & CC_EN == 0 {
            self.csts &= !(CSTS_RDY | CSTS_SHST | CSTS_CFS);
        }
    }

    /// Everything is stable, after [`Answer::ShutDown`].
    pub fn shutdown_done(&mut self) {
        if self.csts & CSTS_SHST == CSTS_SHUTTING_DOWN {
            self.csts = self.csts & !CSTS_SHST | CSTS_SHUT_DOWN;
        }
    }

    /// Executes a Fabrics command of the queue `qid`.
    pub fn fabrics(&mut self, qid: u16, sqe: &Sqe) -> Answer {
        let command = match Fabrics::decode(sqe) {
            Ok(command) => command,
            Err(status) => return status.into(),
        };
        match command {
            Fabrics::AuthenticationSend(_) | Fabrics::AuthenticationReceive(_) => {
                Answer::Authenticate(command)
            }
            Fabrics::PropertyGet { property } if qid == 0 => match self.property(property) {
                Some(value) => Answer::Complete(Completion::with(value)),
                None => Status::INVALID_FIELD.no_retry().into(),
            },
            Fabrics::PropertySet { property: Property::Configuration, value } if qid == 0 => {
                self.configure(value as u32)
            }
            Fabrics::PropertySet { .. } if qid == 0 => Status::INVALID_FIELD.no_retry().into(),
            // Disconnect is not supported (OFCS), and properties are the admin queue's.
            _ => Status::INVALID_OPCODE.no_retry().into(),
        }
    }

    /// The value of a property; `None` if it cannot be read.
    fn property(&self, property: Property) -> Option<u64> {
        match property {
            Property::Capabilities => {
                let entries = u64::from(self.setup.subsystem.max_entries.saturating_sub(1));
                // CQR; the NVM command set, and that there is Identify for more; CRMS: ready means
                // that media are.
                Some(entries | 1 << 16 | READY_TIMEOUT << 24 | 1 << 37 | 1 << 43 | 1 << 59)
            }
            Property::Version => Some(u64::from(VERSION)),
            Property::Configuration => Some(u64::from(self.cc)),
            Property::Status => Some(u64::from(self.csts)),
            Property::ReadyTimeouts => Some(READY_TIMEOUT),
            Property::SubsystemReset => None,
        }
    }

    /// The host sets CC.
    fn configure(&mut self, cc: u32) -> Answer {
        let before = core::mem::replace(&mut self.cc, cc);
        let (was, is) = (before & CC_EN != 0, cc & CC_EN != 0);
        if !was && is && self.csts & CSTS_CFS == 0 {
            let css = cc >> 4 & 7;
            let fixed = match self.setup.kind {
                Kind::Io => cc & CC_FIXED == CC_IO,
                // A discovery controller has no I/O queues.
                Kind::Discovery => cc & CC_FIXED & !(0xff << 16) == 0,
            };
            if !fixed || ![0, 6].contains(&css) {
                self.csts |= CSTS_CFS;
                return Status::INVALID_FIELD.no_retry().into();
            }
            self.csts = CSTS_RDY;
        }
        if was && !is {
            self.forget();
            return Answer::Reset;
        }
        if cc & CC_SHN != 0 && before & CC_SHN == 0 {
            self.csts = self.csts & !CSTS_SHST | CSTS_SHUTTING_DOWN;
            return Answer::ShutDown;
        }
        Answer::Complete(Completion::SUCCESS)
    }

    /// A reset forgets what the host has set.
    fn forget(&mut self) {
        self.events.reset();
        self.changed.clear();
        self.masks.clear();
        self.queues = self.setup.max_queues;
    }

    /// Executes a command of the admin queue that is not a Fabrics command. Errors of the command
    /// are in the error log then.
    pub fn admin(
        &mut self,
        request: Request<'_>,
        source: &mut impl Source,
        now: Duration,
    ) -> Answer {
        self.heard(now);
        let answer = match Admin::decode(request.sqe) {
            // Without a controller that is enabled there is only this.
            Ok(Admin::KeepAlive) => Answer::Complete(Completion::SUCCESS),
            Ok(_) if !self.is_ready() => Status::SEQUENCE.no_retry().into(),
            Ok(command) => self.execute(request, &command, source),
            Err(status) => status.into(),
        };
        if let Answer::Complete(Completion { status, .. }) = answer {
            if !status.is_success() {
                self.log_error(0, request.sqe, status);
            }
        }
        answer
    }

    fn execute(
        &mut self,
        request: Request<'_>,
        command: &Admin,
        source: &mut impl Source,
    ) -> Answer {
        let room = request.expects_read as usize;
        let nsid = request.sqe.nsid.get();
        let data = match *command {
            Admin::Identify(identify) => self.identify_page(&identify, nsid, source),
            Admin::GetLogPage(log) => self.log_page(&log, room, nsid, source),
            Admin::Abort { sqid, cid } => return Answer::Abort { sqid, cid },
            Admin::SetFeatures { fid, save, value } => {
                return self.set_feature(fid, save, value[0], nsid, request.data, source);
            }
            Admin::GetFeatures { fid, select, value } => {
                return self.get_feature(fid, select, value, nsid, source);
            }
            Admin::AsyncEventRequest => {
                return match self.events.keep(request.tag) {
                    true => Answer::Kept,
                    false => Status::EVENT_LIMIT.no_retry().into(),
                };
            }
            Admin::KeepAlive => return Answer::Complete(Completion::SUCCESS),
        };
        match data {
            Ok(data) if data.len() > room => Status::DATA_LENGTH.no_retry().into(),
            Ok(data) => Answer::Data(data),
            Err(status) => status.into(),
        }
    }

    /// Something has happened. Call [`Self::take_event`] then.
    pub fn notify(&mut self, event: Event) {
        self.events.happened(event);
    }

    /// A namespace was added, removed, or changed. Call [`Self::take_event`] then.
    pub fn namespace_changed(&mut self, nsid: u32) {
        // More than the log page has are 'all' there.
        if self.changed.len() <= identify::LIST_MAX {
            self.changed.insert(nsid);
        }
        self.notify(Event::Namespaces);
    }

    /// A notice of a reservation is there, unless the host has masked this kind for the namespace:
    /// `mask` is its bit. Gives whether it is to be kept for the log.
    #[must_use]
    pub fn reservation_notice(&mut self, nsid: u32, mask: u32) -> bool {
        if self.masks.get(&nsid).is_some_and(|set| set & mask != 0) {
            return false;
        }
        self.notify(Event::Reservation);
        true
    }

    /// The next Asynchronous Event Request to complete, and how.
    pub fn take_event(&mut self) -> Option<(Tag, Completion)> {
        let (tag, event) = self.events.take()?;
        Some((tag, Completion::with(u64::from(event.encode()))))
    }

    /// A command of the admin queue is to be aborted. True if it is an Asynchronous Event Request
    /// that was kept: complete it with [`Status::ABORTED`].
    pub fn abort_event_request(&mut self, tag: Tag) -> bool {
        self.events.forget(tag)
    }

    /// Puts a command that failed into the error log.
    pub fn log_error(&mut self, qid: u16, sqe: &Sqe, status: Status) {
        self.error_count += 1;
        self.errors.truncate(ERRORS - 1);
        self.errors.push_front(ErrorEntry {
            count: U64::new(self.error_count),
            sqid: U16::new(qid),
            cid: sqe.cid,
            status: U16::new(status.bits() << 1),
            location: U16::MAX_VALUE,
            nsid: U32::new(sqe.nsid.get()),
            trtype: match self.setup.transport {
                Transport::Tcp => TRTYPE_TCP,
                Transport::Rdma => TRTYPE_RDMA,
            },
            ..ErrorEntry::default()
        });
    }
}

/// A time in whole units of the keep alive timer.
pub(super) fn whole_units(time: Duration) -> Duration {
    let unit = KEEP_ALIVE_UNIT.as_millis();
    let millis = time.as_millis().div_ceil(unit) * unit;
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}
