//! NVMe commands that pass the block layer by: what they are made of, what fits into one, and what their ends mean.
//!
//! A namespace has a block device (`/dev/nvme0n1`) and a generic character device (`/dev/ng0n1`). The second one takes
//! NVMe commands by `IORING_OP_URING_CMD` (linux/nvme_ioctl.h, `NVME_URING_CMD_IO`), which reach the drive without a bio, a
//! scheduler or an accounting of the block layer.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::ring::DiskOp;
use crate::uring::read_by_command;

/// `_IO('N', 0x40)` of linux/nvme_ioctl.h: the number of the namespace.
const NVME_IOCTL_ID: libc::Ioctl = 0x4E40;

/// `_IOWR('N', 0x80, struct nvme_uring_cmd)` of linux/nvme_ioctl.h, whose structure has 72 bytes.
pub(crate) const NVME_URING_CMD_IO: u32 = 0xC048_4E80;

/// NVM Command Set Specification 1.0, figure 10: Write and Read.
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;

/// The most blocks of a command: the field has 16 bits and 0 is one block.
const MOST_BLOCKS: u64 = 1 << 16;

/// What addresses of memory have to be multiples of: all controllers take data in units of 4 bytes.
const ALIGNMENT: usize = 4;

/// As many commands in a row that the kernel or the drive does not know: then none is tried on that file for a time.
pub(crate) const TRIES: u32 = 8;

/// How the ends of NVMe commands are learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passthrough {
    /// The drive interrupts a processor.
    Interrupt,
    /// The event loop looks for them, and does not sleep while there are commands on their way. The drive has to have queues
    /// for that (`nvme.poll_queues`).
    Polled,
}

/// The NVMe namespace below a block device, and how its commands are given to it.
#[derive(Clone, Debug)]
pub struct Namespace {
    pub(crate) device: Arc<File>,
    id: u32,
    /// The length of a block, as a power of two.
    shift: u32,
    /// Bytes of one command at most.
    most: usize,
    pub(crate) how: Passthrough,
    /// Shared by all that was cloned: no more commands.
    left: Arc<AtomicBool>,
}

impl Namespace {
    /// A namespace by its generic character device, its number and the length of its blocks in bytes, a power of two.
    /// `most` is how many bytes the kernel and the drive take in one command.
    #[must_use]
    pub fn new(device: Arc<File>, id: u32, block: u32, most: u32, how: Passthrough) -> Self {
        let (shift, left) = (block.trailing_zeros(), Arc::default());
        Self { device, id, shift, most: most as usize, how, left }
    }

    /// No command is begun any more, on any event loop: for a namespace that is not what it was. One that was begun goes on.
    pub fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    /// True after [`leave`](Self::leave).
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// The length of a block in bytes.
    #[must_use]
    pub const fn block(&self) -> u32 {
        1 << self.shift
    }

    /// Finds out whether commands work here, and on the same namespace as the block device, which was opened with O_DIRECT:
    /// both have to say the same number, and the first block has to be the same on both ways. Waits for the drive. Not on
    /// the thread of an event loop.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn check(&self, block: &File) -> Result<(), Unpassable> {
        let number = |file: &File| namespace_id(file).map_err(Unpassable::NoNumber);
        let (ours, theirs) = (number(&self.device)?, number(block)?);
        if (ours, theirs) != (self.id, self.id) {
            return Err(Unpassable::OtherNumber { ours, theirs });
        }
        let len = 1 << self.shift;
        let (by_command, by_block_layer) = read_by_command(self, block, len)?;
        if by_command != by_block_layer {
            return Err(Unpassable::OtherData);
        }
        Ok(())
    }

    /// The command for an operation on memory that begins at `at`; `None` if it does not fit into one.
    pub(crate) fn command(&self, op: &DiskOp, at: *const u8) -> Option<Command> {
        let (opcode, offset, range) = match op {
            DiskOp::Read { offset, len } => (READ, *offset, 0..*len),
            DiskOp::Write { offset, range } => (WRITE, *offset, range.clone()),
            DiskOp::SyncData | DiskOp::Allocate { .. } | DiskOp::Discard { .. } => return None,
        };
        let address = (at as usize).checked_add(range.start)?;
        self.fits(offset, &range, address).then(|| Command {
            opcode,
            namespace: self.id,
            first: offset >> self.shift,
            blocks: (range.len() >> self.shift) as u32,
            address: address as u64,
            len: range.len() as u32,
        })
    }

    fn fits(&self, offset: u64, range: &Range<usize>, address: usize) -> bool {
        let within = (1_u64 << self.shift) - 1;
        let len = range.len() as u64;
        let whole_blocks = offset & within == 0 && len & within == 0;
        let not_too_many = len > 0 && range.len() <= self.most && len >> self.shift <= MOST_BLOCKS;
        whole_blocks && not_too_many && address % ALIGNMENT == 0
    }
}

/// The number of a namespace, by its block device or its generic character device.
fn namespace_id(file: &File) -> io::Result<u32> {
    ioctl(file.as_raw_fd(), NVME_IOCTL_ID)
}

fn ioctl(fd: RawFd, request: libc::Ioctl) -> io::Result<u32> {
    // SAFETY: the request has no argument, and the caller owns the descriptor.
    let answer = unsafe { libc::ioctl(fd, request) };
    u32::try_from(answer).map_err(|_| io::Error::last_os_error())
}

/// Why a namespace cannot be used: for an administrator.
#[derive(Debug, thiserror::Error)]
pub enum Unpassable {
    /// One of the two devices is no namespace.
    #[error("it does not say its number ({0})")]
    NoNumber(#[source] io::Error),
    /// They are different namespaces.
    #[error("it is namespace {ours}, and the block device is {theirs}")]
    OtherNumber {
        /// The number by the generic character device.
        ours: u32,
        /// That by the block device.
        theirs: u32,
    },
    /// The first block is not the same.
    #[error("its first block is another one than that of the block device")]
    OtherData,
    /// Not for this user.
    #[error(
        "the kernel allows such commands to root alone, as it did before Linux 6.2, and does where the drive does not list them"
    )]
    Denied,
    /// Not by this kernel.
    #[error("the kernel takes no NVMe commands by io_uring (Linux 5.19)")]
    Unknown,
    /// No ring for them.
    #[error("the kernel gives no ring for NVMe commands, which need io_uring and Linux 5.19 ({0})")]
    NoRing(#[source] io::Error),
    /// Another error of the kernel.
    #[error(transparent)]
    Failed(io::Error),
    /// An answer of the drive, with its status field.
    #[error("the drive has answered a read with status {0:#x}")]
    Status(i32),
}

impl Unpassable {
    /// From the end of a first command: a negative error number, or the drive's status.
    pub(crate) fn of(result: i32) -> Self {
        match -result {
            libc::EACCES | libc::EPERM => Self::Denied,
            libc::EOPNOTSUPP | libc::EINVAL | libc::ENOTTY | libc::ENOSYS => Self::Unknown,
            errno @ 1.. => Self::Failed(io::Error::from_raw_os_error(errno)),
            _ => Self::Status(result),
        }
    }
}

/// One NVMe command that reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    opcode: u8,
    namespace: u32,
    /// The first block.
    first: u64,
    blocks: u32,
    /// Of the memory.
    address: u64,
    /// Bytes.
    len: u32,
}

impl Command {
    /// `struct nvme_uring_cmd` of linux/nvme_ioctl.h, with zeroes after it. Of the command's words, 10 and 11 are the first
    /// block, and the lower half of 12 is one less than the number of blocks (NVM Command Set Specification 1.0, 3.2.4
    /// and 3.2.6). There is no FUA in it: a write becomes stable as it does by the block device, by a flush.
    pub(crate) fn bytes(&self) -> [u8; 80] {
        let mut out = [0; 80];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &[self.opcode]);
        put(4, &self.namespace.to_ne_bytes());
        put(24, &self.address.to_ne_bytes());
        put(36, &self.len.to_ne_bytes());
        put(40, &(self.first as u32).to_ne_bytes());
        put(44, &((self.first >> 32) as u32).to_ne_bytes());
        put(48, &(self.blocks - 1).to_ne_bytes());
        out
    }
}

/// What the end of a command says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The drive has carried it out.
    Well,
    /// Not this time, or not this one.
    Failed,
    /// The kernel or the drive does not know such commands.
    Unknown,
}

impl Ended {
    /// From the completion's result: 0, a negative error number, or the drive's status field (NVM Express Base
    /// Specification 2.0, 3.3.3.2.1), of which the low 11 bits are the type and the code.
    pub(crate) const fn of(result: i32) -> Self {
        const INVALID_OPCODE: i32 = 0x01;
        const INVALID_FIELD: i32 = 0x02;
        const INVALID_NAMESPACE: i32 = 0x0B;
        const STATUS: i32 = 0x7FF;
        match result {
            0 => Self::Well,
            1.. => match result & STATUS {
                INVALID_OPCODE | INVALID_FIELD | INVALID_NAMESPACE => Self::Unknown,
                _ => Self::Failed,
            },
            _ => match -result {
                libc::EOPNOTSUPP
                | libc::EINVAL
                | libc::ENOTTY
                | libc::ENOSYS
                | libc::EACCES
                | libc::EPERM => Self::Unknown,
                _ => Self::Failed,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(block: u32) -> Namespace {
        let device = File::open("/dev/null").expect("it is there");
        Namespace::new(Arc::new(device), 7, block, 256 << 10, Passthrough::Interrupt)
    }

    fn command(block: u32, op: &DiskOp, at: usize) -> Option<Command> {
        namespace(block).command(op, at as *const u8)
    }

    #[test]
    fn a_command_has_the_bytes_of_the_specification() {
        let offset = 0x1_2345_6789 << 9;
        let write = DiskOp::Write { offset, range: 512..4096 + 512 };
        let bytes = command(512, &write, 0x7000_0000_1000).expect("it fits").bytes();
        let mut expected = [0_u8; 80];
        expected[0] = 1;
        expected[4] = 7;
        expected[24..32].copy_from_slice(&0x7000_0000_1200_u64.to_le_bytes());
        expected[36..40].copy_from_slice(&4096_u32.to_le_bytes());
        expected[40..44].copy_from_slice(&0x2345_6789_u32.to_le_bytes());
        expected[44] = 1;
        expected[48] = 7;
        if cfg!(target_endian = "little") {
            assert_eq!(bytes, expected);
        }
        let read = DiskOp::Read { offset: 4096 * 3, len: 8192 };
        let found = command(4096, &read, 0x1000).expect("it fits");
        let expected =
            Command { opcode: 2, namespace: 7, first: 3, blocks: 2, address: 0x1000, len: 8192 };
        assert_eq!(found, expected);
        assert_eq!(NVME_URING_CMD_IO, 3 << 30 | 72 << 16 | u32::from(b'N') << 8 | 0x80);
    }

    #[test]
    fn what_does_not_fit_into_one_command_is_none() {
        let read =
            |block, offset, len, at| command(block, &DiskOp::Read { offset, len }, at).is_some();
        assert!(read(512, 512, 512, 4));
        assert!(read(512, 0, 256 << 10, 0));
        assert!(!read(512, 0, (256 << 10) + 512, 0), "more than the drive takes");
        assert!(!read(512, 100, 512, 0) && !read(512, 0, 100, 0), "parts of blocks");
        assert!(!read(4096, 512, 4096, 0) && !read(4096, 0, 512, 0), "parts of blocks");
        assert!(!read(512, 0, 512, 2), "an odd address");
        assert!(!read(512, 0, 0, 0), "nothing");
        let large = Namespace { most: 1 << 30, ..namespace(512) };
        let op = |len| DiskOp::Read { offset: 0, len };
        assert!(large.command(&op(32 << 20), std::ptr::null()).is_some());
        assert!(large.command(&op((32 << 20) + 512), std::ptr::null()).is_none());
        for op in [DiskOp::SyncData, DiskOp::Discard { offset: 0, len: 512 }] {
            assert_eq!(command(512, &op, 0), None);
        }
    }

    #[test]
    fn an_end_is_told_from_the_others() {
        assert_eq!(Ended::of(0), Ended::Well);
        // Do not retry, invalid field; internal error; a path that is gone.
        assert_eq!(Ended::of(0x4002), Ended::Unknown);
        assert_eq!(
            [0x4006, 0x370, -libc::EINTR, -libc::EAGAIN, -libc::ENODEV].map(Ended::of),
            [Ended::Failed; 5]
        );
        assert_eq!(
            [-libc::EOPNOTSUPP, -libc::EACCES, -libc::EINVAL].map(Ended::of),
            [Ended::Unknown; 3]
        );
    }

    #[test]
    fn what_is_no_namespace_is_refused() {
        let file = tempfile::tempfile().expect("a temporary file");
        let refused = namespace(512).check(&file).expect_err("it is none").to_string();
        assert!(refused.contains("does not say its number"), "{refused}");
    }
}
