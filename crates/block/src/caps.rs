//! What a backend can do, so that the layers above emulate the rest once for all backends.

/// How a backend carries out an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Not at all, and it must not be offered to initiators.
    None,
    /// The layer above builds it from other operations.
    Emulate,
    /// The backend does it in one request.
    Native,
}

/// The properties of an open volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Logical block size in bytes: 512 or 4096.
    pub block_size: u32,
    /// Physical block size in bytes, a power-of-two multiple of `block_size` (512e: 512 and 4096).
    pub physical_block_size: u32,
    /// Capacity in logical blocks.
    pub blocks: u64,
    /// Writes are refused with [`Error::ReadOnly`](crate::Error::ReadOnly).
    pub read_only: bool,
    /// An acknowledged write may still be in a volatile cache: [`Op::Flush`](crate::Op::Flush)
    /// makes it stable. False where a flush has nothing to do.
    pub write_cache: bool,
    /// [`Op::Write`](crate::Op::Write) with `fua`: data is stable at completion.
    pub fua: Support,
    /// [`Op::WriteZeroes`](crate::Op::WriteZeroes).
    pub write_zeroes: Support,
    /// [`Op::Unmap`](crate::Op::Unmap): gives space back.
    pub unmap: Support,
    /// After [`Op::Unmap`](crate::Op::Unmap) all of the range reads as zeroes. If false, it may
    /// read as anything, and differently each time, until it is written.
    pub unmap_zeroes: bool,
    /// The unit of space in bytes that unmap gives back. Smaller or unaligned parts are zeroed, or
    /// left alone where `unmap_zeroes` is false.
    pub unmap_granularity: u32,
    /// Data can be read by reference from memory, without a copy.
    pub mapped_reads: bool,
    /// Offsets, lengths and buffer addresses must be multiples of this many bytes.
    pub alignment: u32,
}

impl Caps {
    /// Capacity in bytes.
    pub const fn bytes(&self) -> u64 {
        self.blocks * self.block_size as u64
    }
}
