//! Files on the disk threads.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use super::Epoll;
use crate::pool::{Call, Job};
use crate::ring::{DiskOp, Refused};
use crate::{Buf, Event, FileId, Token, Treatment};

/// An operation that waits for a thread or is with one.
pub(super) struct Disk {
    token: Token,
    buf: Option<Buf>,
    /// The place of its file.
    file: u32,
}

impl Epoll {
    pub(crate) fn add_file(&mut self, file: Arc<File>, _: Treatment) -> FileId {
        self.files.add(file)
    }

    pub(crate) fn remove_file(&mut self, id: FileId) {
        self.files.remove(id);
    }

    pub(crate) fn disk(
        &mut self,
        id: FileId,
        op: DiskOp,
        buf: Option<Buf>,
        token: Token,
    ) -> Result<(), Refused> {
        let Some(file) = self.files.begin(id) else {
            return Err(Refused { buf, errno: libc::EBADF });
        };
        let fd = file.as_raw_fd();
        let Some(call) = call(&op, buf.as_ref()) else {
            self.files.ends(id.0.index);
            return Err(Refused { buf, errno: libc::EINVAL });
        };
        let index = self.disks.insert(Disk { token, buf, file: id.0.index }) as u32;
        self.staged.push_back(Job { index, fd, call });
        Ok(())
    }

    pub(crate) fn cancel(&mut self, token: Token) {
        let named = |(index, disk): (usize, &Disk)| (disk.token == token).then_some(index as u32);
        let indices: Vec<u32> = self.disks.iter().filter_map(named).collect();
        for index in indices {
            let before = self.staged.len();
            self.staged.retain(|job| job.index != index);
            if self.staged.len() == before && !self.pool.take_back(index) {
                continue;
            }
            if let Some((token, buf)) = self.take(index) {
                self.ended.push(Event::Disk { token, buf, result: Err(libc::ECANCELED) });
            }
        }
    }

    /// Turns the results of the disk threads into events.
    pub(super) fn disks_done(&mut self, events: &mut Vec<Event>) {
        self.pool.event().clear();
        let mut outcomes = std::mem::take(&mut self.outcomes);
        self.pool.fetch(&mut outcomes);
        for (index, result) in outcomes.drain(..) {
            if let Some((token, buf)) = self.take(index) {
                events.push(Event::Disk { token, buf, result });
            }
        }
        self.outcomes = outcomes;
    }

    /// Ends an operation, and lets go of its file if that has waited for it.
    fn take(&mut self, index: u32) -> Option<(Token, Option<Buf>)> {
        let Disk { token, buf, file } = self.disks.try_remove(index as usize)?;
        self.files.ends(file);
        Some((token, buf))
    }
}

/// The system call for an operation whose bounds were checked: offsets and ends fit into an
/// `i64`, see `DiskOp::is_valid`.
fn call(op: &DiskOp, buf: Option<&Buf>) -> Option<Call> {
    Some(match op {
        DiskOp::Read { offset, len } => {
            Call::Read { to: buf?.start().as_ptr(), len: *len, offset: *offset as i64 }
        }
        DiskOp::Write { offset, range } => {
            // SAFETY: the range was checked to lie in the buffer.
            let from = unsafe { buf?.start().add(range.start) };
            Call::Write { from: from.as_ptr(), len: range.len(), offset: *offset as i64 }
        }
        DiskOp::SyncData => Call::SyncData,
        DiskOp::Discard { offset, len } => Call::Discard([*offset, *len]),
        DiskOp::Allocate { mode, offset, len } => {
            Call::Allocate { mode: *mode, offset: *offset as i64, len: *len as i64 }
        }
    })
}
