//! Files on io_uring.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::squeue::Entry;
use io_uring::types::FsyncFlags;
use io_uring::{opcode, types};

use super::Uring;
use super::queue::{Handle, Kind};
use crate::disk::{DiskOp, Refused};
use crate::{Buf, Event, FileId, Token};

/// A file in use. The handle refers to it, so it stays open as long as the driver.
pub(super) struct Volume {
    handle: Handle,
    _file: Arc<File>,
}

/// An operation in flight.
pub(super) struct Disk {
    token: Token,
    buf: Option<Buf>,
}

impl Uring {
    pub(crate) fn add_file(&mut self, file: Arc<File>) -> FileId {
        let handle = self.register(file.as_raw_fd());
        self.files.push(Volume { handle, _file: file });
        FileId((self.files.len() - 1) as u32)
    }

    pub(crate) fn disk(
        &mut self,
        file: FileId,
        op: DiskOp,
        buf: Option<Buf>,
        token: Token,
    ) -> Result<(), Refused> {
        let Some(volume) = self.files.get(file.0 as usize) else {
            return Err(Refused { buf, errno: libc::EBADF });
        };
        let handle = volume.handle;
        let entry = build(handle.number(), &op, buf.as_ref(), self.fixed_buffers);
        let index = self.disks.insert(Disk { token, buf }) as u32;
        let entry = handle.finish(entry, Kind::Disk.user_data(index));
        // SAFETY: the buffer's memory is in the arena, wherever the `Buf` is moved, and the `Buf`
        // stays untouched in `disks` until `disk_done`.
        unsafe { self.queue.push(entry) };
        Ok(())
    }

    pub(super) fn disk_done(&mut self, index: u32, result: i32, events: &mut Vec<Event>) {
        let Some(Disk { token, buf }) = self.disks.try_remove(index as usize) else { return };
        let result = usize::try_from(result).map_err(|_| -result);
        events.push(Event::Disk { token, buf, result });
    }

    pub(crate) fn cancel(&mut self, token: Token) {
        for (index, disk) in &self.disks {
            if disk.token == token {
                self.queue.push_cancel(Kind::Disk.user_data(index as u32));
            }
        }
    }

    /// Cancels everything on files, for the end of the event loop.
    pub(super) fn cancel_all_disks(&mut self) {
        for (index, _) in &self.disks {
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
        // `DiskOp::is_valid` has refused all but empty transfers without a buffer.
        (DiskOp::Read { .. } | DiskOp::Write { .. }, None) => opcode::Nop::new().build(),
    }
}
