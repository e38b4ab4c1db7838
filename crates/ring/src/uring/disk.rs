//! Files on io_uring.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::FsyncFlags;
use io_uring::{opcode, types};

use super::Uring;
use super::passthrough::OpenNamespace;
use super::queue::{Handle, Kind};
use crate::pool::Call;
use crate::ring::{DiskOp, Refused};
use crate::sys::Treatment;
use crate::{Buf, DropElsewhere, Event, FileId, Token};

/// Workers of a ring that has files whose operations may sleep.
const MOST_WORKERS: u32 = 1024;

/// So many operations on files with `O_DIRECT` are submitted at once. If all waited for the end of an iteration, the storage would have
/// nothing to do while commands are received and answered, and the loop nothing while the storage works. Fewer at a time cost
/// more calls; of a file in the page cache nothing is gained, as the operations end while they are submitted.
const SOON: u32 = 8;

/// A file in use. The handle refers to it, so it stays open as long.
pub(super) struct OpenFile {
    handle: Handle,
    /// Closing it may take long.
    file: DropElsewhere<Arc<File>>,
    /// Registered buffers may be used on it, and who begins its operations.
    treatment: Treatment,
    /// Where its reads and writes go that fit into NVMe commands.
    pub(super) namespace: Option<OpenNamespace>,
    pub(super) in_flight: u32,
    /// To be let go with the last operation in flight.
    leaving: bool,
}

/// An operation in flight.
pub(super) struct Disk {
    pub(super) token: Token,
    pub(super) buf: Option<Buf>,
    /// The place of its file.
    pub(super) file: u32,
    /// What is to be done, while it is an NVMe command: if that fails it is done by the block device.
    pub(super) command: Option<DiskOp>,
    /// Nobody waits for it any more: a read by a command that fails is not done again.
    pub(super) cancelled: bool,
}

impl OpenFile {
    pub(super) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl Disk {
    pub(super) const fn new(token: Token, buf: Option<Buf>, file: FileId) -> Self {
        Self { token, buf, file: file.0.index, command: None, cancelled: false }
    }
}

impl Uring {
    pub(crate) fn add_file(&mut self, file: Arc<File>, mut treatment: Treatment) -> FileId {
        let handle = self.places.register(&self.queue.submitter(), file.as_raw_fd());
        treatment.fixed_buffers &= self.parts.are_there();
        if treatment.by_worker {
            self.allow_workers();
        }
        let file = DropElsewhere::new(file);
        let file =
            OpenFile { handle, file, treatment, namespace: None, in_flight: 0, leaving: false };
        FileId(self.files.insert(file))
    }

    pub(crate) fn remove_file(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(id.0) else { return };
        file.leaving = true;
        self.release_file(id.0.index);
    }

    /// Has the kernel make as many workers as there may be operations that wait for storage: by default it makes four
    /// for each processor, and as many operations on a file that hangs would keep those on others from a worker, flushes
    /// among them. Workers are made when there is work that finds none, and end when they are idle.
    fn allow_workers(&mut self) {
        if self.many_workers {
            return;
        }
        self.many_workers = true;
        let mut most = [MOST_WORKERS, 0];
        // Linux 5.15. Before, there are as many as by default.
        let _ = self.queue.submitter().register_iowq_max_workers(&mut most);
    }

    /// Lets a file go that is to leave and has no operation in flight any more.
    fn release_file(&mut self, index: u32) {
        let Some(file) = self.files.at(index) else { return };
        if file.leaving && file.in_flight == 0 {
            self.places.unregister(&self.queue.submitter(), file.handle);
            if let Some(namespace) = self.files.remove_at(index).and_then(|file| file.namespace) {
                self.commands.remove(&namespace);
            }
        }
    }

    pub(crate) fn disk(
        &mut self,
        id: FileId,
        op: DiskOp,
        buf: Option<Buf>,
        token: Token,
    ) -> Result<(), Refused> {
        let Some(file) = self.files.get_mut(id.0).filter(|file| !file.leaving) else {
            return Err(Refused { buf, errno: libc::EBADF });
        };
        if let DiskOp::Discard { offset, len } = op {
            let fd = file.file.as_raw_fd();
            return self.help(id, fd, Call::Discard([offset, len]), token);
        }
        file.in_flight += 1;
        let direct = file.treatment.direct;
        let index = self.disks.insert(Disk::new(token, buf, id)) as u32;
        if !self.begin_command(index, &op) {
            self.begin(index, &op);
        }
        self.queued += u32::from(direct);
        if self.queued == SOON {
            self.submit_now();
        }
        Ok(())
    }

    /// Submits what is queued before the end of the iteration. What the kernel does not take now, it takes then.
    fn submit_now(&mut self) {
        self.queued = 0;
        self.queue.submit_some();
        let _ = self.commands.submit();
    }

    /// Queues an operation of the table on its file.
    pub(super) fn begin(&mut self, index: u32, op: &DiskOp) {
        let Some(Disk { buf, file, .. }) = self.disks.get(index as usize) else { return };
        let Some(file) = self.files.at(*file) else { return };
        let (handle, treatment) = (file.handle, file.treatment);
        let fixed = treatment.fixed_buffers
            && buf.as_ref().is_some_and(|buf| {
                self.parts.has(&self.queue.submitter(), &self.arena, buf.part())
            });
        let entry = build(handle.number(), op, buf.as_ref(), fixed);
        let mut entry = handle.finish(entry, Kind::Disk.user_data(index));
        if treatment.by_worker {
            entry = entry.flags(handle.flags() | Flags::ASYNC);
        }
        // SAFETY: the buffer's memory is in the arena, wherever the `Buf` is moved, and the `Buf`
        // stays untouched in `disks` until `disk_done`.
        unsafe { self.queue.push(entry) };
    }

    pub(super) fn disk_done(
        &mut self,
        index: u32,
        result: Result<usize, i32>,
        events: &mut Vec<Event>,
    ) {
        let Some(disk) = self.disks.try_remove(index as usize) else { return };
        let Disk { token, buf, file, .. } = disk;
        events.push(Event::Disk { token, buf, result });
        let Some(open) = self.files.at(file) else { return };
        open.in_flight -= 1;
        if open.leaving {
            self.release_file(file);
        }
    }

    pub(crate) fn cancel(&mut self, token: Token) {
        for (index, disk) in &mut self.disks {
            if disk.token != token {
                continue;
            }
            if disk.command.is_some() {
                // The kernel cancels no NVMe command: it ends as if nothing had been asked.
                disk.cancelled = true;
                continue;
            }
            let with_helpers = self.helpers.as_ref().is_some_and(|h| h.give_up(index as u32));
            if !with_helpers {
                self.queue.push_cancel(Kind::Disk.user_data(index as u32));
            }
        }
    }

    /// Cancels everything on files, for the end of the event loop.
    pub(super) fn cancel_all_disks(&mut self) {
        for (index, _) in self.disks.iter().filter(|(_, disk)| disk.command.is_none()) {
            self.queue.push_cancel(Kind::Disk.user_data(index as u32));
        }
    }
}

/// The entry for an operation whose bounds were checked.
fn build(fd: types::Fd, op: &DiskOp, buf: Option<&Buf>, fixed: bool) -> Entry {
    match (op, buf) {
        (DiskOp::Read { offset, len }, Some(buf)) => {
            let (at, len) = (buf.start().as_ptr(), *len as u32);
            if fixed {
                opcode::ReadFixed::new(fd, at, len, buf.part()).offset(*offset).build()
            } else {
                opcode::Read::new(fd, at, len).offset(*offset).build()
            }
        }
        (DiskOp::Write { offset, range }, Some(buf)) => {
            // SAFETY: the range was checked to lie in the buffer.
            let at = unsafe { buf.start().add(range.start) }.as_ptr();
            let len = range.len() as u32;
            if fixed {
                opcode::WriteFixed::new(fd, at, len, buf.part()).offset(*offset).build()
            } else {
                opcode::Write::new(fd, at, len).offset(*offset).build()
            }
        }
        (DiskOp::Allocate { mode, offset, len }, _) => {
            opcode::Fallocate::new(fd, *len).offset(*offset).mode(*mode).build()
        }
        (DiskOp::SyncData, _) => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        // `DiskOp::is_valid` has refused all but empty transfers without a buffer; a discard is not
        // built here.
        (DiskOp::Read { .. } | DiskOp::Write { .. } | DiskOp::Discard { .. }, _) => {
            opcode::Nop::new().build()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Arena, Config, Waker};

    /// A ring with its memory; `None` where io_uring is denied.
    fn ring() -> Option<(Arena, Uring)> {
        let arena = Arena::new(1 << 20).expect("a small mapping");
        let waker = Waker::new().expect("a waker");
        let made = Uring::new(&Config::default(), &arena, waker, &mut Vec::new());
        if made.is_err() {
            eprintln!("SKIPPED: io_uring is denied here");
        }
        Some((arena, made.ok()?))
    }

    #[test]
    fn files_that_come_and_go_take_no_places() {
        let Some((_arena, mut uring)) = ring() else { return };
        let file = Arc::new(tempfile::tempfile().expect("a temporary file"));
        let (free, treatment) = (uring.places.free(), Treatment::of(&file));
        for _ in 0..10_000 {
            let id = uring.add_file(Arc::clone(&file), treatment);
            uring.remove_file(id);
            uring.remove_file(id);
        }
        assert_eq!((uring.places.free(), uring.files.iter_mut().count()), (free, 0));
        wait_for_the_last(&file);
    }

    /// A file system that hangs holds up whoever opens a volume, and no event loop.
    #[test]
    fn a_file_is_treated_as_told_and_its_file_system_is_not_asked() {
        let Some((_arena, mut uring)) = ring() else { return };
        let file = Arc::new(tempfile::tempfile().expect("a temporary file"));
        for by_worker in [true, false] {
            let treatment = Treatment { fixed_buffers: false, by_worker, direct: false };
            let id = uring.add_file(Arc::clone(&file), treatment);
            let told = uring.files.get_mut(id.0).map(|open| open.treatment);
            assert_eq!(told, Some(treatment));
        }
    }

    /// Files are given back on a thread of their own.
    fn wait_for_the_last(file: &Arc<File>) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Arc::strong_count(file) > 1 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(Arc::strong_count(file), 1, "all are given back");
    }

    /// Who has ended the server unmounts what its volumes are on.
    #[test]
    fn a_ring_that_is_gone_keeps_no_file_open() {
        let Some((_arena, mut uring)) = ring() else { return };
        let named = tempfile::NamedTempFile::new().expect("a temporary file");
        let file = Arc::new(File::open(named.path()).expect("it is there"));
        let lock = |file: &File| {
            // SAFETY: the descriptor is open.
            unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }
        };
        assert_eq!(lock(&file), 0, "nobody else has it");
        uring.add_file(Arc::clone(&file), Treatment::of(&file));
        drop(uring);
        wait_for_the_last(&file);
        drop(file);
        // The lock goes with the last reference to the open file, the ring's among them.
        let again = File::open(named.path()).expect("it is there");
        assert_eq!(lock(&again), 0, "nothing has it open");
    }
}
