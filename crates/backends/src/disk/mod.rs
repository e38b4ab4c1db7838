//! Volumes whose blocks go through the kernel: files and block devices.

mod machine;
mod slow;

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, PoisonError};

use lunet_block::{
    Backend, Caps, Channel, Completion, IoDone, IoToken, Request, Slow, Submit, Support,
};
use lunet_os::sync::Mutex;
use lunet_ring::{DropElsewhere, FileId, Payload, Ring, Token, Treatment};
use rustix::io::Errno;

use crate::passthrough::Passing;

pub(crate) use machine::{Abilities, Discard};
use machine::{DiskQueue, Machine, ZEROES};

use crate::geometry::Geometry;
use crate::lock::Lock;

/// The top byte of every disk operation's token; all other tokens must have another.
const DISK: u64 = 0xD1;

/// The token of a disk operation: 0xD1 in the top byte, the channel in bits 32 to 47, the slot in
/// the low 32 bits.
pub const fn disk_token(io: IoToken) -> Token {
    Token((DISK << 56) | ((io.channel as u64) << 32) | io.slot as u64)
}

/// What [`disk_token`] packed; `None` if the token is not one of a disk operation.
pub const fn parse_disk_token(token: Token) -> Option<IoToken> {
    if token.0 >> 48 != DISK << 8 {
        return None;
    }
    Some(IoToken { channel: (token.0 >> 32) as u16, slot: token.0 as u32 })
}

/// How the channels get at the storage.
pub(crate) enum Handle {
    /// All use the same open file, with O_DIRECT. For a block device: it is claimed by this open file alone, and
    /// the kernel lets no other one zero ranges.
    Shared(Arc<File>),
    /// Each opens the file anew. The kernel reports a failed write-back once for each open file,
    /// so every shard learns of it at its next flush; with a shared one, only the first would.
    /// This file itself keeps the lock.
    Reopened {
        /// Open, and locked.
        file: Arc<File>,
        /// With O_DIRECT.
        direct: bool,
    },
}

impl Handle {
    /// The open file or device.
    const fn file(&self) -> &Arc<File> {
        match self {
            Self::Shared(file) | Self::Reopened { file, .. } => file,
        }
    }
}

/// What was found out about a file or device, in bytes.
pub(crate) struct Known {
    /// Offsets, lengths and addresses must be multiples of it.
    pub alignment: u32,
    /// The unit in which unmap gives space back, if it is offered.
    pub unmap: Option<u32>,
}

/// An open file or block device.
pub(crate) struct Disk {
    caps: Caps,
    able: Abilities,
    /// The last to let go of a volume may be an event loop, and closing a file may take long.
    handle: DropElsewhere<Handle>,
    /// Asked for where it was opened, so that no event loop has to.
    treatment: Treatment,
    /// The NVMe namespace of a block device, if it is to have reads and writes as commands.
    passing: Option<Passing>,
    /// Opened for channels to come, so that no event loop has to.
    ready: DropElsewhere<Mutex<Vec<Arc<File>>>>,
    /// The lock on the place of a file.
    place: DropElsewhere<Option<Arc<Lock>>>,
    notes: Vec<String>,
}

impl Disk {
    /// A file or device with these properties.
    pub fn new(geometry: &Geometry, able: Abilities, known: Known, handle: Handle) -> Self {
        let unmap = if known.unmap.is_some() { Support::Native } else { Support::None };
        let caps = Caps {
            block_size: geometry.block_size,
            physical_block_size: geometry.physical_block_size,
            blocks: geometry.blocks,
            read_only: able.read_only,
            write_cache: able.write_cache,
            fua: Support::Native,
            write_zeroes: Support::Native,
            unmap,
            unmap_zeroes: known.unmap.is_some() && able.discard.is_none_or(|d| d.zeroes),
            unmap_granularity: known.unmap.unwrap_or(geometry.block_size),
            mapped_reads: false,
            alignment: known.alignment,
        };
        let direct = match handle {
            Handle::Shared(_) => true,
            Handle::Reopened { direct, .. } => direct,
        };
        let treatment = Treatment::of(handle.file()).direct(direct);
        let (handle, ready) = (DropElsewhere::new(handle), DropElsewhere::new(Mutex::default()));
        let (place, notes) = (DropElsewhere::new(None), Vec::new());
        Self { caps, able, handle, treatment, passing: None, ready, place, notes }
    }

    /// The same, which keeps the lock on its place, with what should be known of it besides.
    pub fn placed(mut self, place: Option<Arc<Lock>>, notes: Vec<String>) -> Self {
        self.place = DropElsewhere::new(place);
        self.notes = notes;
        self
    }

    /// The same, whose reads and writes are commands of this namespace, or why they are not.
    pub fn passing(mut self, passing: Option<Passing>, notes: Vec<String>) -> Self {
        self.passing = passing;
        self.notes = notes;
        self
    }

    /// The namespace that its reads and writes are commands of, if they are.
    pub fn is_passing(&self) -> Option<&Passing> {
        self.passing.as_ref()
    }

    /// The lock on the place of the file.
    pub fn place(&self) -> Option<&Arc<Lock>> {
        self.place.as_ref()
    }

    /// What should be known of the file besides.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The open file or device, for a volume in the place of this one.
    pub fn opened(&self) -> &Arc<File> {
        self.handle.file()
    }

    fn channel_file(&self) -> io::Result<Arc<File>> {
        match &*self.handle {
            Handle::Shared(file) => Ok(Arc::clone(file)),
            Handle::Reopened { file, direct } => match self.ready().pop() {
                Some(ready) => Ok(ready),
                None => reopen(file, self.able.read_only, *direct).map(Arc::new),
            },
        }
    }

    fn ready(&self) -> lunet_os::sync::MutexGuard<'_, Vec<Arc<File>>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the file behind an open one once more. Works for a file that was renamed or removed too.
pub(crate) fn reopen(file: &File, read_only: bool, direct: bool) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(!read_only)
        .custom_flags(if direct { libc::O_DIRECT } else { 0 })
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

impl Backend<Payload, Ring> for Disk {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn ready_channels(&self, channels: usize) -> Result<(), i32> {
        let Handle::Reopened { file, direct } = &*self.handle else { return Ok(()) };
        while self.ready().len() < channels {
            // Not under the lock: a shard may be waiting for it.
            let opened = reopen(file, self.able.read_only, *direct);
            let opened =
                opened.map_err(|e| e.raw_os_error().unwrap_or(Errno::IO.raw_os_error()))?;
            self.ready().push(Arc::new(opened));
        }
        Ok(())
    }

    fn open_channel(
        &self,
        number: u16,
        io: &mut Ring,
    ) -> Result<Box<dyn Channel<Payload, Ring>>, i32> {
        let errno = |e: io::Error| e.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
        let file = io.add_file(self.channel_file().map_err(errno)?, self.treatment);
        if let Some(passing) = &self.passing {
            // A loop without a ring for commands has said so, and one whose table is full takes what it has.
            io.pass_through(file, &passing.namespace);
        }
        let mut channel = DiskChannel { number, file, machine: Machine::new(self.able) };
        if !self.able.read_only && !self.able.zero_range {
            // Now, while there is room: later a request would have to wait for it.
            let zeroes = channel.on(io).1.zeroes().ok_or(Errno::NOMEM.raw_os_error())?;
            channel.machine.keep_zeroes(zeroes);
        }
        Ok(Box::new(channel))
    }

    fn slow(&self) -> &dyn Slow {
        self
    }
}

struct DiskChannel {
    number: u16,
    file: FileId,
    machine: Machine<Payload>,
}

impl DiskChannel {
    fn on<'a>(&'a mut self, ring: &'a mut Ring) -> (&'a mut Machine<Payload>, OnRing<'a>) {
        (&mut self.machine, OnRing { ring, file: self.file, channel: self.number })
    }
}

impl Channel<Payload, Ring> for DiskChannel {
    fn submit(&mut self, request: Request<Payload>, io: &mut Ring) -> Submit<Payload> {
        let (machine, mut io) = self.on(io);
        machine.submit(request, &mut io)
    }

    fn advance(&mut self, done: IoDone<Payload>, io: &mut Ring) -> Option<Completion<Payload>> {
        let (machine, mut io) = self.on(io);
        machine.advance(done, &mut io)
    }

    fn cancel(&mut self, tag: u64, io: &mut Ring) {
        let (machine, mut io) = self.on(io);
        machine.cancel(tag, &mut io);
    }

    fn close(self: Box<Self>, io: &mut Ring) {
        io.remove_file(self.file);
    }
}

/// The event loop, with the file and the channel that the operations belong to.
struct OnRing<'a> {
    ring: &'a mut Ring,
    file: FileId,
    channel: u16,
}

impl OnRing<'_> {
    fn token(&self, slot: u32) -> Token {
        disk_token(IoToken { channel: self.channel, slot })
    }
}

impl DiskQueue<Payload> for OnRing<'_> {
    fn takes(&self, buf: &Payload, len: u64) -> bool {
        matches!(buf, Payload::Buf(buf) if buf.len() as u64 >= len)
    }

    fn read(&mut self, slot: u32, at: u64, buf: Payload, len: usize) {
        if let Payload::Buf(buf) = buf {
            self.ring.read(self.file, at, buf, len, self.token(slot));
        }
    }

    fn write(&mut self, slot: u32, at: u64, buf: Payload, range: Range<usize>) {
        if let Payload::Buf(buf) = buf {
            self.ring.write(self.file, at, buf, range, self.token(slot));
        }
    }

    fn sync_data(&mut self, slot: u32) {
        self.ring.sync_data(self.file, self.token(slot));
    }

    fn punch_hole(&mut self, slot: u32, at: u64, len: u64) {
        self.ring.punch_hole(self.file, at, len, self.token(slot));
    }

    fn zero_range(&mut self, slot: u32, at: u64, len: u64) {
        self.ring.zero_range(self.file, at, len, self.token(slot));
    }

    fn discard(&mut self, slot: u32, at: u64, len: u64) {
        self.ring.discard(self.file, at, len, self.token(slot));
    }

    fn cancel(&mut self, slot: u32) {
        self.ring.cancel(self.token(slot));
    }

    fn zeroes(&mut self) -> Option<Payload> {
        let mut buf = self.ring.arena().alloc(ZEROES)?;
        buf.fill(0);
        Some(Payload::Buf(buf))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_packed_comes_back(channel: u16, slot: u32) {
            let io = IoToken { channel, slot };
            prop_assert_eq!(parse_disk_token(disk_token(io)), Some(io));
        }

        #[test]
        fn other_tokens_are_not_taken_for_a_disk_operations(top: u16, low in 0u64..1 << 48) {
            let token = Token((u64::from(top) << 48) | low);
            prop_assert_eq!(parse_disk_token(token).is_some(), top == 0xD100);
        }
    }

    #[test]
    fn the_layout_is_as_written() {
        let token = disk_token(IoToken { channel: 0x1234, slot: 0x5678_9ABC });
        assert_eq!(token.0, 0xD100_1234_5678_9ABC);
        assert_eq!(parse_disk_token(Token(0xD200_1234_5678_9ABC)), None);
        assert_eq!(parse_disk_token(Token(0xD101_1234_5678_9ABC)), None);
    }
}
