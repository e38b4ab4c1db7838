//! NVMe commands on rings of their own, beside the one for everything else.
//!
//! A command that fails is done again by the block device, and what the block layer answers counts: it waits for a controller
//! that is reset, takes another path, and tries again, all of which the kernel leaves to whoever passes commands through.
//! Reads and writes may be done twice, and the caller has locked the range until the one answer comes.
//!
//! The drive does not carry a failed command out after it was done again. The kernel ends a command only when the drive has
//! completed it, when the drive has confirmed that it was aborted, or when the controller was disabled, which forgets its
//! queues (NVM Express Base Specification 2.0, 3.7.2); a command that is merely late stays outstanding until then
//! (drivers/nvme/host/pci.c, `nvme_timeout`). Of drives on a network the block layer repeats commands at just this
//! moment too.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use io_uring::squeue::Entry128;
use io_uring::{cqueue, opcode};

use super::Uring;
use super::queue::{Done, Handle, Kind, Queue};
use super::setup::{CommandSetup, setup_commands};
use super::tables::{Parts, Places};
use crate::passthrough::{Ended, NVME_URING_CMD_IO, TRIES};
use crate::ring::{DiskOp, NO_PASSTHROUGH, NO_POLLING};
use crate::{
    Arena, Buf, Config, Counters, Event, FileId, Namespace, Passthrough, PollSource, Unpassable,
};

/// Entries of a submission queue at most.
const ENTRIES: u32 = 256;

/// How long the loop polls for commands before it looks at what else is due, or waits for that before it polls again at its end.
pub(super) const STEP: Duration = Duration::from_millis(1);

/// How long a file goes without commands after [`TRIES`] in a row that were not known. What does not know them for a time, as the
/// head of several paths that are all gone, may know them again.
const PAUSE: Duration = Duration::from_secs(10);

/// How long it sleeps while the kernel takes no commands, for want of memory.
const SHORTAGE: Duration = Duration::from_millis(1);

/// What the last commands of one kind have shown.
#[derive(Default)]
struct Trust {
    /// So many in a row were not known.
    unknown: u32,
    /// None is tried before.
    paused: Option<Instant>,
}

impl Trust {
    /// True if a command may be tried.
    #[inline]
    fn is_there(&mut self) -> bool {
        if self.paused.is_some_and(|until| Instant::now() >= until) {
            self.paused = None;
        }
        self.paused.is_none()
    }

    /// A command has ended.
    fn note(&mut self, ended: Ended) {
        match ended {
            Ended::Well => self.unknown = 0,
            Ended::Failed => {}
            Ended::Unknown => {
                self.unknown += 1;
                if self.unknown >= TRIES {
                    self.unknown = 0;
                    self.paused = Some(Instant::now() + PAUSE);
                }
            }
        }
    }
}

/// A namespace that takes the commands of a file.
pub(super) struct OpenNamespace {
    namespace: Namespace,
    /// The ring that has them.
    how: Passthrough,
    /// Its device in that ring.
    handle: Handle,
    /// The block device there. No command uses it: it is kept open, and with it the claim, until the last command of a process that
    /// is killed has ended. Its successor would write meanwhile.
    claim: Handle,
    reads: Trust,
    /// A drive may not list writes among its commands.
    writes: Trust,
}

impl OpenNamespace {
    fn trust(&mut self, op: &DiskOp) -> &mut Trust {
        match op {
            DiskOp::Read { .. } => &mut self.reads,
            _ => &mut self.writes,
        }
    }
}

/// One ring for commands.
struct CommandRing {
    queue: Queue<Entry128, cqueue::Entry32>,
    places: Places,
    parts: Parts,
    polled: bool,
}

impl CommandRing {
    fn new(config: &Config, polled: bool, arena: Option<&Arena>) -> io::Result<Self> {
        let entries = config.entries.clamp(8, ENTRIES);
        let CommandSetup { ring, fixed_buffers, fixed_files } =
            setup_commands(entries, polled, arena)?;
        let parts = match arena {
            Some(arena) if fixed_buffers => Parts::new(arena.part_count()),
            _ => Parts::none(),
        };
        Ok(Self { queue: Queue::new(ring, true), places: Places::new(fixed_files), parts, polled })
    }

    /// Submits what is queued, and has the kernel look for ends where nothing else does.
    fn submit(&mut self) -> io::Result<()> {
        let looks = self.polled && self.queue.in_flight() > 0;
        if looks || self.queue.is_raised() {
            self.queue.flush();
            self.queue.enter(Some(Duration::ZERO))?;
        }
        Ok(())
    }

    /// Queues a command of the table of operations on a device.
    fn push(&mut self, arena: &Arena, index: u32, device: Handle, buf: &Buf, bytes: [u8; 80]) {
        let part = buf.part();
        let fixed = self.parts.has(&self.queue.submitter(), arena, part).then_some(part);
        let entry = opcode::UringCmd80::new(device.number(), NVME_URING_CMD_IO)
            .cmd(bytes)
            .buf_index(fixed)
            .build()
            .user_data(index.into())
            .flags(device.flags());
        // SAFETY: the command's address and length lie in the buffer, whose memory is in the arena, and which stays
        // untouched in `disks` until `command_done`.
        unsafe { self.queue.push(entry) };
    }
}

/// The rings for commands that were asked for and could be made.
pub(super) struct Commands {
    interrupt: Option<CommandRing>,
    polled: Option<CommandRing>,
    /// The main ring waits for ends on that with interrupts.
    armed: bool,
    counters: Counters,
}

impl Commands {
    /// `fixed_buffers`: the kernel knows registered buffers for commands, and the arena's are registered.
    pub(super) fn new(
        config: &Config,
        arena: &Arena,
        fixed_buffers: bool,
        notes: &mut Vec<String>,
    ) -> Self {
        let arena = fixed_buffers.then_some(arena);
        let mut make = |wanted: bool, polled| {
            if !wanted {
                return None;
            }
            let made = CommandRing::new(config, polled, arena);
            made.inspect_err(|error| {
                let what = if polled { NO_POLLING } else { NO_PASSTHROUGH };
                notes.push(format!("{what}: the kernel gives no ring for NVMe commands ({error})"));
            })
            .ok()
        };
        let rings = config.passthrough;
        let (interrupt, polled) = (make(rings.interrupt, false), make(rings.polled, true));
        Self { interrupt, polled, armed: false, counters: Counters::default() }
    }

    fn rings(&mut self) -> impl Iterator<Item = &mut CommandRing> {
        self.interrupt.iter_mut().chain(&mut self.polled)
    }

    const fn ring(&mut self, how: Passthrough) -> Option<&mut CommandRing> {
        match how {
            Passthrough::Interrupt => self.interrupt.as_mut(),
            Passthrough::Polled => self.polled.as_mut(),
        }
    }

    fn in_flight(ring: Option<&CommandRing>) -> bool {
        ring.is_some_and(|ring| ring.queue.in_flight() > 0)
    }

    /// True if a command was begun whose end was not seen yet.
    #[inline]
    pub(super) fn are_under_way(&self) -> bool {
        Self::in_flight(self.interrupt.as_ref()) || self.are_polled()
    }

    /// True if that goes for one that has to be polled for.
    #[inline]
    pub(super) fn are_polled(&self) -> bool {
        Self::in_flight(self.polled.as_ref())
    }

    /// Submits commands, with a system call for each ring that has some.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        self.rings().try_for_each(CommandRing::submit)
    }

    /// Waits until a command has ended. For the end of the event loop.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        match self.rings().find(|ring| ring.queue.in_flight() > 0) {
            Some(ring) => {
                ring.queue.flush();
                ring.queue.enter(None).map(drop)
            }
            None => Ok(()),
        }
    }

    /// The main ring has been told of ends, or waits for them no more.
    pub(super) const fn told(&mut self) {
        self.armed = false;
    }

    /// The memory of a part of the arena goes. False if it has to stay.
    pub(super) fn leave_part(&mut self, part: usize) -> bool {
        self.rings().all(|ring| ring.parts.leave(&ring.queue.submitter(), part))
    }

    /// Lets go of a namespace, on which no command is under way.
    pub(super) fn remove(&mut self, namespace: &OpenNamespace) {
        if let Some(ring) = self.ring(namespace.how) {
            ring.places.unregister(&ring.queue.submitter(), namespace.handle);
            ring.places.unregister(&ring.queue.submitter(), namespace.claim);
        }
    }

    /// Lets go of all namespaces at the end of the event loop, as the main ring does of files.
    pub(super) fn unregister_files(&mut self) {
        for ring in self.rings() {
            let _ = ring.queue.submitter().unregister_files();
        }
    }

    /// What was counted elsewhere, with what was counted here.
    pub(super) const fn counted(&self, mut all: Counters) -> Counters {
        all.commands = self.counters.commands;
        all.commands_failed = self.counters.commands_failed;
        if let Some(ring) = &self.interrupt {
            all.waits += ring.queue.counters.waits;
            all.operations += ring.queue.counters.operations;
        }
        if let Some(ring) = &self.polled {
            all.waits += ring.queue.counters.waits;
            all.operations += ring.queue.counters.operations;
        }
        all
    }
}

impl Uring {
    pub(crate) fn pass_through(&mut self, id: FileId, namespace: &Namespace) -> bool {
        let Some(file) = self.files.get_mut(id.0).filter(|file| file.namespace.is_none()) else {
            return false;
        };
        // A command fits into both.
        let how = match namespace.how {
            Passthrough::Polled if self.commands.polled.is_none() => Passthrough::Interrupt,
            how => how,
        };
        let Some(ring) = self.commands.ring(how) else { return false };
        let submitter = ring.queue.submitter();
        let claim = ring.places.register(&submitter, file.fd());
        if matches!(claim, Handle::Fd(_)) {
            return false;
        }
        let handle = ring.places.register(&submitter, namespace.device.as_raw_fd());
        let (namespace, reads, writes) = (namespace.clone(), Trust::default(), Trust::default());
        file.namespace = Some(OpenNamespace { namespace, how, handle, claim, reads, writes });
        true
    }

    /// Queues an operation of the table as an NVMe command. False if it cannot be one.
    #[inline]
    pub(super) fn begin_command(&mut self, index: u32, op: &DiskOp) -> bool {
        let Some(disk) = self.disks.get_mut(index as usize) else { return false };
        let file = self.files.at(disk.file).and_then(|file| file.namespace.as_mut());
        let (Some(open), Some(buf)) = (file, &disk.buf) else { return false };
        if open.namespace.is_left() || !open.trust(op).is_there() {
            return false;
        }
        let command = open.namespace.command(op, buf.start().as_ptr());
        let (Some(command), Some(ring)) = (command, self.commands.ring(open.how)) else {
            return false;
        };
        ring.push(&self.arena, index, open.handle, buf, command.bytes());
        disk.command = Some(op.clone());
        self.commands.counters.commands += 1;
        true
    }

    /// Fetches the ends of commands.
    pub(super) fn commands_done(&mut self, events: &mut Vec<Event>) {
        let mut batch = std::mem::take(&mut self.batch);
        self.commands.rings().for_each(|ring| ring.queue.fetch(&mut batch));
        for Done { user_data, result, .. } in batch.drain(..) {
            self.command_done(user_data as u32, result, events);
        }
        self.batch = batch;
    }

    fn command_done(&mut self, index: u32, result: i32, events: &mut Vec<Event>) {
        let Some(disk) = self.disks.get_mut(index as usize) else { return };
        let Some(op) = disk.command.take() else { return };
        // A write that has failed may have changed something, and is done again as any other.
        let given_up = |ended| matches!(op, DiskOp::Read { .. }) || ended == Ended::Unknown;
        let cancelled = disk.cancelled;
        let ended = Ended::of(result);
        let namespace = self.files.at(disk.file).and_then(|file| file.namespace.as_mut());
        if let Some(namespace) = namespace {
            namespace.trust(&op).note(ended);
        }
        match ended {
            // A command moves all of its data or fails.
            Ended::Well => self.disk_done(index, Ok(op.len()), events),
            _ if self.ending => self.disk_done(index, Err(libc::EIO), events),
            _ if cancelled && given_up(ended) => {
                self.disk_done(index, Err(libc::ECANCELED), events)
            }
            Ended::Failed | Ended::Unknown => {
                self.commands.counters.commands_failed += 1;
                self.begin(index, &op);
            }
        }
    }

    /// Polls while there are commands that have to be polled for. True if the wait is over: there are events, or its time
    /// has passed.
    pub(super) fn look_for_commands(
        &mut self,
        deadline: Option<Instant>,
        events: &mut Vec<Event>,
        source: &mut dyn PollSource,
    ) -> io::Result<bool> {
        while self.commands.are_polled() {
            let now = Instant::now();
            if deadline.is_some_and(|at| now >= at) {
                return Ok(true);
            }
            let end = deadline.map_or(now + STEP, |at| at.min(now + STEP));
            if self.spin(end, events, source)? {
                return Ok(true);
            }
            self.resume_accept();
            self.look_at_lingering();
        }
        Ok(false)
    }

    /// Submits commands, and has the main ring end its wait when one of them ends. Says how long it may wait.
    pub(super) fn before_sleep(&mut self, left: Option<Duration>) -> io::Result<Option<Duration>> {
        self.commands.submit()?;
        let at_once = self.commands.rings().any(|ring| ring.queue.has_completions());
        let short = self.commands.rings().any(|ring| ring.queue.is_raised());
        self.arm_commands();
        let most = match (at_once, short) {
            (true, _) => Duration::ZERO,
            (false, true) => SHORTAGE,
            (false, false) => return Ok(left),
        };
        Ok(Some(left.map_or(most, |time| time.min(most))))
    }

    fn arm_commands(&mut self) {
        let Some(ring) = self.commands.interrupt.as_ref().filter(|_| !self.commands.armed) else {
            return;
        };
        if ring.queue.in_flight() == 0 {
            return;
        }
        let handle = Handle::Fd(ring.queue.fd());
        let entry = opcode::PollAdd::new(handle.number(), libc::POLLIN as u32).build();
        self.commands.armed = true;
        // SAFETY: the entry points to no memory.
        unsafe { self.queue.push(handle.finish(entry, Kind::Commands.user_data(0))) };
    }

    /// Waits no more to be told of ends: for the end of the event loop, which looks itself.
    pub(super) fn forget_commands(&mut self) {
        if self.commands.armed {
            self.queue.push_cancel(Kind::Commands.user_data(0));
        }
    }
}

/// Reads the start of a namespace by a command, and then by its block device. Waits for the drive.
pub(crate) fn read_by_command(
    namespace: &Namespace,
    block: &File,
    len: usize,
) -> Result<(Vec<u8>, Vec<u8>), Unpassable> {
    let config = Config { entries: 8, ..Config::default() };
    let arena = Arena::new(len).map_err(Unpassable::Failed)?;
    let mut buf = arena.alloc(len).ok_or_else(|| Unpassable::of(-libc::ENOMEM))?;
    // Not what a block may well be: whoever moves no data is not to be taken for an empty drive.
    buf[..len].chunks_mut(8).zip(0_u64..).for_each(|(piece, number)| {
        let word = (number ^ 0x6C75_6E65_7420_3F3F).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        piece.copy_from_slice(&word.to_ne_bytes()[..piece.len()]);
    });
    let polled = namespace.how == Passthrough::Polled;
    let mut ring = CommandRing::new(&config, polled, None).map_err(Unpassable::NoRing)?;
    let op = DiskOp::Read { offset: 0, len };
    let command = namespace.command(&op, buf.start().as_ptr());
    let command = command.ok_or_else(|| Unpassable::of(-libc::EINVAL))?;
    let device = Handle::Fd(namespace.device.as_raw_fd());
    ring.push(&arena, 0, device, &buf, command.bytes());
    let mut done = Vec::new();
    while done.is_empty() {
        ring.queue.flush();
        if let Err(error) = ring.queue.enter(None) {
            // The kernel may still write: better to lose the memory than to reuse it.
            std::mem::forget(buf);
            return Err(Unpassable::Failed(error));
        }
        ring.queue.fetch(&mut done);
    }
    match done[0].result {
        0 => {}
        result => return Err(Unpassable::of(result)),
    }
    let by_command = buf[..len].to_vec();
    block.read_exact_at(&mut buf[..len], 0).map_err(Unpassable::Failed)?;
    Ok((by_command, buf[..len].to_vec()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::PassthroughRings;
    use crate::uring::setup::setup_commands;

    /// /dev/null answers every such command at once (Linux 6.1), and knows no namespaces.
    fn null() -> Arc<File> {
        Arc::new(File::options().read(true).write(true).open("/dev/null").expect("it is there"))
    }

    #[test]
    fn a_ring_for_commands_does_nothing_else() {
        let Ok(setup) = setup_commands(8, false, None) else {
            return eprintln!("SKIPPED: this kernel has no rings for commands");
        };
        let mut ring = setup.ring;
        // SAFETY: the operation refers to no memory.
        unsafe { ring.submission().push(&opcode::Nop::new().build().into()) }.expect("room");
        ring.submit_and_wait(1).expect("the ring takes it");
        let done: cqueue::Entry = ring.completion().next().expect("it is done").into();
        assert_eq!(done.result(), -libc::EACCES);
    }

    #[test]
    fn what_answers_without_data_is_not_taken_for_the_namespace() {
        let namespace = Namespace::new(null(), 1, 512, 4096, Passthrough::Interrupt);
        let block = tempfile::tempfile().expect("a temporary file");
        block.write_all_at(&[7; 512], 0).expect("room");
        match read_by_command(&namespace, &block, 512) {
            Ok((by_command, by_block_layer)) => assert_ne!(by_command, by_block_layer),
            Err(why) => eprintln!("SKIPPED: no such commands here: {why}"),
        }
    }

    #[test]
    fn rings_are_made_only_if_they_are_asked_for() {
        let arena = Arena::new(1 << 20).expect("a small mapping");
        for (interrupt, polled) in [(false, false), (true, false), (false, true)] {
            let passthrough = PassthroughRings { interrupt, polled };
            let config = Config { passthrough, ..Config::default() };
            let mut notes = Vec::new();
            let commands = Commands::new(&config, &arena, false, &mut notes);
            if !notes.is_empty() {
                return eprintln!("SKIPPED: {notes:?}");
            }
            assert_eq!(
                (commands.interrupt.is_some(), commands.polled.is_some()),
                (interrupt, polled)
            );
        }
    }
}
