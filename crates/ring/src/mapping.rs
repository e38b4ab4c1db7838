//! Anonymous memory straight from the kernel.

use std::io;
use std::ptr::NonNull;

/// The page size that buffers and zeroing go by, in bytes. Where the kernel's pages are larger,
/// `madvise` refuses the odd range and zeroing falls back to writing.
pub(crate) const PAGE: usize = 4096;

/// The size of a huge page on the machines that matter (x86-64, and arm64 with 4 KiB pages).
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Advice of `madvise(2)`: pages of a range are made as if they were written (Linux 5.14).
const POPULATE_WRITE: libc::c_int = 23;

/// Advice of `madvise(2)`: a range becomes huge pages now (Linux 6.1).
const COLLAPSE: libc::c_int = 25;

/// A private anonymous mapping, zero-filled, aligned to a huge page, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes (rounded up to a page), without reserving swap space.
    ///
    /// # Errors
    /// ENOMEM if the address space or the overcommit limit does not allow it.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let too_long = || io::Error::from_raw_os_error(libc::ENOMEM);
        let len = len.max(1).checked_next_multiple_of(PAGE).ok_or_else(too_long)?;
        let reserved = len.checked_add(HUGE_PAGE).ok_or_else(too_long)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses; it touches no
        // memory that this program uses.
        let raw = unsafe { libc::mmap(std::ptr::null_mut(), reserved, access, flags, -1, 0) };
        if raw == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let raw = raw.cast::<u8>();
        let lead = (raw as usize).next_multiple_of(HUGE_PAGE) - raw as usize;
        // SAFETY: `lead` < HUGE_PAGE, so `lead + len` lies within the `reserved` bytes just
        // mapped; the parts in front and behind are given back and never used.
        let start = unsafe {
            if lead > 0 {
                libc::munmap(raw.cast(), lead);
            }
            let tail = reserved - lead - len;
            if tail > 0 {
                libc::munmap(raw.add(lead + len).cast(), tail);
            }
            NonNull::new_unchecked(raw.add(lead))
        };
        // SAFETY: the range is this mapping. The advice changes no contents; where the kernel does
        // not take it, small pages serve as well.
        unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        Ok(Self { start, len })
    }

    /// The first byte.
    pub(crate) const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes, a multiple of [`PAGE`].
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// From now on the pages of a range are small ones.
    pub(crate) fn make_small(&self, offset: usize, len: usize) {
        self.advise(offset, len, libc::MADV_NOHUGEPAGE);
    }

    /// Makes pages for a range, in one system call instead of a fault for each. Where the kernel cannot, the
    /// faults do it.
    pub(crate) fn populate(&self, offset: usize, len: usize) {
        self.advise(offset, len, POPULATE_WRITE);
    }

    /// Makes a huge page of small ones, with their content. False if the kernel does not.
    pub(crate) fn collapse(&self, offset: usize) -> bool {
        self.advise(offset, HUGE_PAGE, libc::MADV_HUGEPAGE)
            && self.advise(offset, HUGE_PAGE, COLLAPSE)
    }

    /// Gives advice that changes no content. False if the kernel does not take it.
    fn advise(&self, offset: usize, len: usize, advice: libc::c_int) -> bool {
        assert!(offset <= self.len && len <= self.len - offset, "beyond the mapping");
        // SAFETY: the range lies within this mapping, and none of the advices given here changes what can be
        // read in it.
        unsafe { libc::madvise(self.start.as_ptr().add(offset).cast(), len, advice) == 0 }
    }

    /// Gives the pages of a range back; it reads as zeroes afterwards. Returns false if the kernel
    /// refuses (locked pages), and then nothing has changed.
    pub(crate) fn discard(&self, offset: usize, len: usize) -> bool {
        assert!(offset <= self.len && len <= self.len - offset, "beyond the mapping");
        // SAFETY: the range lies within this mapping. Nobody holds a Rust reference into it that
        // could see it change: see the callers.
        unsafe {
            let at = self.start.as_ptr().add(offset);
            libc::madvise(at.cast(), len, libc::MADV_DONTNEED) == 0
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping, which ends here; whoever hands out pieces of it keeps
        // the mapping alive for as long.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

// SAFETY: the mapping is plain memory that belongs to no thread. All access goes through raw
// pointers, and the types that hold a mapping state their own rules for it.
unsafe impl Send for Mapping {}
// SAFETY: as above; the methods of `&Mapping` do not touch its memory but through `madvise`, which
// may be called from any thread.
unsafe impl Sync for Mapping {}
