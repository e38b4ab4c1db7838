//! The io_uring driver: one ring for sockets and files of a thread.

mod accept;
mod disk;
mod helpers;
mod passthrough;
mod queue;
mod setup;
mod socket;
mod tables;
mod watch;
mod zero_copy;

use std::io;
use std::mem;
use std::time::{Duration, Instant};

use io_uring::opcode;
use slab::Slab;

use self::accept::Listener;
use self::disk::{Disk, OpenFile};
use self::helpers::Helpers;
use self::passthrough::Commands;
use self::queue::{Done, Entered, Handle, Kind, Queue};
use self::socket::Socket;
use self::tables::{Parts, Places};
use self::watch::Watch;
use self::zero_copy::Holds;
use crate::polling::Polling;
use crate::shrink::Shrink;
use crate::slots::Slots;
use crate::{Arena, Config, Counters, Event, PollSource, Waker};

pub(crate) use self::passthrough::read_by_command;

pub(crate) struct Uring {
    queue: Queue,
    sockets: Slots<Socket>,
    shrink_sockets: Shrink,
    listeners: Slots<Listener>,
    watches: Slots<Watch>,
    files: Slots<OpenFile>,
    disks: Slab<Disk>,
    /// Operations on files with `O_DIRECT` that were queued since the kernel was last called.
    queued: u32,
    /// Chains that the kernel still refers to after their sends.
    holds: Holds,
    /// Made for the first operation that needs them.
    helpers: Option<Helpers>,
    /// The table of registered files.
    places: Places,
    /// The registered parts of the arena.
    parts: Parts,
    arena: Arena,
    /// NVMe commands, on rings of their own.
    commands: Commands,
    /// The kernel may make many workers for this ring.
    many_workers: bool,
    poll_first: bool,
    polling: Polling,
    /// When the next paused listener is due.
    retry_accept: Option<Instant>,
    waker: Waker,
    /// Where the kernel writes the waker's counter.
    wake_count: Box<u64>,
    ending: bool,
    /// Reused for each batch of completions.
    batch: Vec<Done>,
}

impl Uring {
    pub(crate) fn new(
        config: &Config,
        arena: &Arena,
        waker: Waker,
        notes: &mut Vec<String>,
    ) -> io::Result<Self> {
        let setup = setup::setup(config, arena, notes)?;
        let parts =
            if setup.fixed_buffers { Parts::new(arena.part_count()) } else { Parts::none() };
        let commands = Commands::new(config, arena, setup.deferred && setup.fixed_buffers, notes);
        let mut uring = Self {
            parts,
            arena: arena.clone(),
            commands,
            queue: Queue::new(setup.ring, setup.taskrun_flag),
            sockets: Slots::new(),
            shrink_sockets: Shrink::default(),
            listeners: Slots::new(),
            watches: Slots::new(),
            files: Slots::new(),
            disks: Slab::with_capacity(config.entries as usize),
            queued: 0,
            holds: Holds::new(setup.zero_copy),
            helpers: None,
            places: Places::new(setup.fixed_files),
            many_workers: false,
            poll_first: setup.deferred,
            polling: Polling::new(config.busy_poll),
            retry_accept: None,
            waker,
            wake_count: Box::new(0),
            ending: false,
            batch: Vec::with_capacity(config.entries as usize),
        };
        uring.start_wake();
        Ok(uring)
    }

    pub(crate) const fn counters(&self) -> Counters {
        let looked_ns = self.polling.looked().as_nanos() as u64;
        self.commands.counted(Counters { looked_ns, ..self.queue.counters })
    }

    /// Whether to skip the first attempt of a receive on a drained socket.
    pub(crate) fn set_poll_first(&mut self, on: bool) {
        self.poll_first = on;
    }

    /// Gives memory of the arena back that was not needed since the last call.
    pub(crate) fn shrink(&mut self) {
        let (ring, parts, commands) = (self.queue.submitter(), &mut self.parts, &mut self.commands);
        self.arena.shrink(|part| parts.leave(&ring, part) && commands.leave_part(part));
    }

    fn start_wake(&mut self) {
        let handle = Handle::Fd(self.waker.event().raw());
        let to = (&raw mut *self.wake_count).cast();
        let entry = opcode::Read::new(handle.number(), to, 8).build();
        // SAFETY: the box is not touched but here, after the read before has ended.
        unsafe { self.queue.push(handle.finish(entry, Kind::Wake.user_data(0))) };
    }

    pub(crate) fn wait(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<Event>,
        source: &mut dyn PollSource,
    ) -> io::Result<()> {
        self.queued = 0;
        let before = events.len();
        let look_only = timeout == Some(Duration::ZERO);
        let deadline = match timeout {
            Some(time) if !look_only => Instant::now().checked_add(time),
            _ => None,
        };
        self.resume_accept();
        self.look_at_lingering();
        let look_until = if look_only { None } else { self.polling.begin() };
        if let Some(end) = look_until {
            if self.spin(deadline.map_or(end, |at| at.min(end)), events, source)? {
                self.polling.ended((events.len() - before).max(1));
                return Ok(());
            }
            self.polling.in_vain();
        }
        if !look_only && self.look_for_commands(deadline, events, source)? {
            self.polling.ended(events.len() - before);
            return Ok(());
        }
        let found = !look_only && source.before_sleep(&mut |id| self.watch_again(id));
        if found && !self.queue.needs_enter() && !self.commands.are_under_way() {
            // A busy source needs no system call.
            self.polling.ended(1);
            return Ok(());
        }
        let rest = deadline.map(|at| at.saturating_duration_since(Instant::now())).or(timeout);
        let mut left = if found { Some(Duration::ZERO) } else { rest };
        loop {
            for due in self.retry_accept.into_iter().chain(self.holds.look_at) {
                let pause = due.saturating_duration_since(Instant::now());
                left = Some(left.map_or(pause, |time| time.min(pause)));
            }
            if self.commands.are_under_way() {
                left = self.before_sleep(left)?;
            }
            self.queue.flush();
            let entered = self.queue.enter(left)?;
            self.work_off(events);
            let released = mem::take(&mut self.holds.released);
            let came = (events.len() - before).max(usize::from(found || released));
            if came > 0 || look_only || entered == Entered::Early {
                self.polling.ended(came);
                return Ok(());
            }
            // The time is over, or what ended was not an event: a part of a send, a cancellation.
            left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                self.polling.ended(0);
                return Ok(());
            }
            self.resume_accept();
            self.look_at_lingering();
        }
    }

    pub(crate) fn gather(&mut self, time: Duration) -> io::Result<()> {
        self.commands.submit()?;
        self.queue.flush();
        self.queue.gather(time)
    }

    /// Looks for events without sleeping. True if there were some, here or at the source.
    fn spin(
        &mut self,
        end: Instant,
        events: &mut Vec<Event>,
        source: &mut dyn PollSource,
    ) -> io::Result<bool> {
        let before = events.len();
        loop {
            let found = source.poll();
            if self.queue.needs_enter() {
                self.queue.flush();
                self.queue.enter(Some(Duration::ZERO))?;
                self.work_off(events);
            }
            if self.commands.are_under_way() {
                self.commands.submit()?;
                self.commands_done(events);
            }
            if found || events.len() > before || mem::take(&mut self.holds.released) {
                return Ok(true);
            }
            let now = Instant::now();
            self.polling.nothing_yet(now);
            if now >= end {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }

    /// Turns all completions that there are into events.
    fn work_off(&mut self, events: &mut Vec<Event>) {
        let mut batch = mem::take(&mut self.batch);
        self.queue.fetch(&mut batch);
        for done in batch.drain(..) {
            let result = done.result;
            match Kind::parse(done.user_data) {
                Some((Kind::Recv, index)) => self.recv_done(index, result, events),
                Some((Kind::Send, index)) => self.send_done(index, result, events),
                Some((Kind::Disk, index)) => {
                    let result = usize::try_from(result).map_err(|_| -result);
                    self.disk_done(index, result, events);
                }
                Some((Kind::Accept, index)) => self.accept_done(index, result, done.flags, events),
                Some((Kind::Wake, _)) => self.woken(events),
                Some((Kind::Watch, index)) => self.watch_done(index, events),
                Some((Kind::Helpers, _)) => self.helpers_done(events),
                Some((Kind::ZeroCopy, place)) => self.zero_copy_done(place, done, events),
                Some((Kind::Commands, _)) => self.commands.told(),
                Some((Kind::Cancel, _)) | None => {}
            }
        }
        self.batch = batch;
        if self.commands.are_under_way() {
            self.commands_done(events);
        }
    }

    fn woken(&mut self, events: &mut Vec<Event>) {
        if self.ending {
            return;
        }
        self.waker.rearm();
        self.start_wake();
        events.push(Event::Woken);
    }
}

impl Drop for Uring {
    /// Cancels everything and waits until the kernel holds no pointer to our memory any more. A
    /// disk operation that a device has begun cannot be cancelled: its end is waited for.
    fn drop(&mut self) {
        self.ending = true;
        self.stop_accepting(|_| true, true);
        self.hurry_lingering();
        self.close_all_sockets();
        self.end_all_watches();
        self.cancel_all_disks();
        self.queue.push_cancel(Kind::Wake.user_data(0));
        self.forget_commands();
        if self.helpers.is_some() {
            self.queue.push_cancel(Kind::Helpers.user_data(0));
        }
        let mut events = Vec::new();
        while self.queue.in_flight() > 0 || self.commands.are_under_way() {
            self.look_at_lingering();
            self.queue.flush();
            let look = self.holds.look_at.map(|at| at.saturating_duration_since(Instant::now()));
            let polls = self.commands.are_polled().then_some(passthrough::STEP);
            let most = look.into_iter().chain(polls).min();
            let waited = match self.queue.in_flight() {
                0 => self.commands.wait(),
                _ => self.commands.submit().and_then(|()| self.queue.enter(most).map(drop)),
            };
            if waited.is_err() {
                // The kernel may still write: better to lose the memory than to reuse it.
                mem::forget(mem::take(&mut self.sockets));
                mem::forget(mem::take(&mut self.holds));
                mem::forget(mem::take(&mut self.disks));
                mem::forget(mem::take(&mut self.wake_count));
                mem::forget(self.helpers.take());
                mem::forget(mem::take(&mut self.files));
                return;
            }
            self.work_off(&mut events);
            events.clear();
        }
        // In front of the files, whose descriptors the threads use.
        self.helpers = None;
        // The kernel takes a ring apart in a thread of its own, after the process has ended: until then, a file in the table
        // is open, and nobody can unmount its file system. A kernel that refuses this does that later.
        let _ = self.queue.submitter().unregister_files();
        self.commands.unregister_files();
    }
}
