//! Memory that volumes are made of, shared by all threads.

use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Arc, PoisonError, RwLock};

use crate::DropElsewhere;
use crate::mapping::{HUGE_PAGE, Mapping, PAGE};

/// From this length on, the whole pages of a zeroed range go back to the kernel. Below it, a
/// system call and the page faults after it cost more than they give back.
const DISCARD_FROM: usize = 64 << 10;

/// A stretch of memory that all threads read and write, like a disk: it starts as zeroes, takes
/// memory only where it was written, and two accesses to the same bytes at the same time may
/// see each other's parts.
pub struct Region {
    mapping: Mapping,
    len: u64,
    /// Pages are small until they are [collapsed](Self::collapse).
    sparse: bool,
    /// True once a device knows the pages. Held while some go back to the kernel.
    pinned: RwLock<bool>,
}

impl Region {
    /// A region of `len` bytes. Nothing is reserved: memory is taken on the first write.
    ///
    /// # Errors
    /// ENOMEM if the address space is too small or overcommit is forbidden.
    pub fn new(len: u64) -> io::Result<Self> {
        let size = usize::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Self { mapping: Mapping::new(size)?, len, sparse: false, pinned: RwLock::new(false) })
    }

    /// The same, of small pages: to make a huge one takes the kernel longer than a client should wait for a
    /// write. What is written in full can be [collapsed](Self::collapse).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn sparse(len: u64) -> io::Result<Self> {
        let region = Self { sparse: true, ..Self::new(len)? };
        region.mapping.make_small(0, region.mapping.len());
        Ok(region)
    }

    /// Makes the pages that a range touches before they are written: faster than a fault for each.
    ///
    /// # Panics
    /// If the range does not lie in the region.
    pub fn populate(&self, off: u64, len: u64) {
        self.at(off, len);
        let start = off as usize / PAGE * PAGE;
        let end = (off as usize + len as usize).next_multiple_of(PAGE);
        self.mapping.populate(start, end - start);
    }

    /// The extent that [`collapse`](Self::collapse) works on, in bytes.
    pub const EXTENT: u64 = HUGE_PAGE as u64;

    /// Makes a huge page of the small ones of the extent with this number; others may read and write there
    /// meanwhile, and wait for a moment. Nothing happens to an extent that is not whole, or pinned. False if the
    /// kernel does not do it.
    pub fn collapse(&self, extent: u64) -> bool {
        let offset = extent * Self::EXTENT;
        let pinned = self.pinned.read().unwrap_or_else(PoisonError::into_inner);
        if !self.sparse || *pinned || offset + Self::EXTENT > self.len {
            return false;
        }
        let collapsed = self.mapping.collapse(offset as usize);
        if !collapsed {
            // Or what is unmapped and written again would get huge pages at once.
            self.mapping.make_small(offset as usize, HUGE_PAGE);
        }
        collapsed
    }

    /// Length in bytes.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// True if the region has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies from the region, from offset `off` on, until `to` is full.
    ///
    /// # Panics
    /// If the range does not lie in the region.
    pub fn read(&self, off: u64, to: &mut [u8]) {
        let from = self.at(off, to.len() as u64);
        // SAFETY: `at` has checked that the source lies in the mapping; `to` is exclusive and
        // cannot overlap it, because nobody makes references into a region. See `copy` for
        // writers on other threads.
        unsafe { copy(from, to.as_mut_ptr(), to.len()) };
    }

    /// Copies `from` into the region, at offset `off`.
    ///
    /// # Panics
    /// If the range does not lie in the region.
    pub fn write(&self, off: u64, from: &[u8]) {
        let to = self.at(off, from.len() as u64);
        // SAFETY: as in `read`, the other way round.
        unsafe { copy(from.as_ptr(), to, from.len()) };
    }

    /// From now on the pages stay where they are: a device that was told of them (RDMA) goes on to use
    /// them, although the kernel would give the program others after [`zero`](Self::zero).
    pub fn pin(&self) {
        // Nothing panics while it holds the lock.
        *self.pinned.write().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Makes a range read as zeroes. The whole pages of a long range go back to the kernel, unless the
    /// region is [pinned](Self::pin).
    ///
    /// # Panics
    /// If the range does not lie in the region.
    pub fn zero(&self, off: u64, len: u64) {
        let start = self.at(off, len);
        let (off, len) = (off as usize, len as usize);
        let first = off.next_multiple_of(PAGE);
        let last = (off + len) / PAGE * PAGE;
        if last >= first + DISCARD_FROM && self.give_back(first, last - first) {
            let (head, tail) = (first - off, off + len - last);
            // SAFETY: `head` and `tail` are the parts of the checked range in front of `first`
            // and behind `last`. See `copy` for other threads.
            unsafe {
                fill_zero(start, head);
                fill_zero(start.add(len - tail), tail);
            }
        } else {
            // SAFETY: `at` has checked the whole range.
            unsafe { fill_zero(start, len) };
        }
    }

    /// Gives whole pages back to the kernel. False if it did not.
    fn give_back(&self, off: usize, len: usize) -> bool {
        let pinned = self.pinned.read().unwrap_or_else(PoisonError::into_inner);
        if *pinned || !self.mapping.discard(off, len) {
            return false;
        }
        // What may have been huge pages starts with small ones again.
        let (first, last) = (off.next_multiple_of(HUGE_PAGE), (off + len) / HUGE_PAGE * HUGE_PAGE);
        if self.sparse && first < last {
            self.mapping.make_small(first, last - first);
        }
        true
    }

    /// How many pages the kernel has mapped, those of zeroes included: for tests.
    pub fn resident(&self) -> io::Result<usize> {
        let mut pages = vec![0u8; self.mapping.len() / PAGE];
        let start = self.mapping.start().as_ptr().cast();
        // SAFETY: the range is the mapping, and there is one byte for each of its pages.
        match unsafe { libc::mincore(start, self.mapping.len(), pages.as_mut_ptr()) } {
            0 => Ok(pages.iter().filter(|page| **page & 1 != 0).count()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// All of its memory, to register it with a device: the first byte, and the length in bytes,
    /// whole pages. It stays mapped while the region lives. Only for devices and raw copies: other
    /// threads may write there.
    pub const fn span(&self) -> (NonNull<u8>, usize) {
        (self.mapping.start(), self.mapping.len())
    }

    /// The address of a range.
    fn at(&self, off: u64, len: u64) -> *mut u8 {
        assert!(off <= self.len && len <= self.len - off, "the range lies beyond the region");
        // SAFETY: `off` <= `self.len` <= the length of the mapping.
        unsafe { self.mapping.start().as_ptr().add(off as usize) }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("len", &self.len).finish()
    }
}

/// Copies between a region and other memory.
///
/// # Safety
/// Both ranges must be valid and must not overlap. One of them may be in a region, where other
/// threads and the kernel may write at the same time. That is sound here because no reference
/// into a region exists, its memory comes from the kernel and not from an allocation that the
/// compiler knows, all accesses are calls of libc's `memcpy` and `memset` behind functions that
/// are not inlined, and every byte pattern is a valid `u8`. A torn result is what overlapping
/// commands to a disk get as well.
#[inline(never)]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::memcpy(to.cast(), from.cast(), len) };
}

/// Writes zeroes into a region.
///
/// # Safety
/// The range must be valid; see [`copy`] for other threads.
#[inline(never)]
unsafe fn fill_zero(at: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::memset(at.cast(), 0, len) };
}

/// What the handles of one thread share: one atomic count for all of them.
#[derive(Debug)]
struct Local(DropElsewhere<Arc<Region>>);

/// One thread's handle of a [`Region`]: a clone costs no atomic operation.
#[derive(Clone, Debug)]
pub struct RegionRef(Rc<Local>);

impl RegionRef {
    /// A handle for this thread.
    pub fn new(region: Arc<Region>) -> Self {
        Self(Rc::new(Local(DropElsewhere::new(region))))
    }

    /// The region that the handle refers to.
    pub fn region(&self) -> &Region {
        &self.0.0
    }

    /// References to parts of the region that are still there, and other handles of this thread.
    pub fn lent(&self) -> usize {
        Rc::strong_count(&self.0) - 1
    }

    /// True if this is a reference of this thread to a part of the region.
    pub fn holds(&self, part: &Mapped) -> bool {
        Rc::ptr_eq(&self.0, &part.region)
    }

    /// A reference to a part of the region, which keeps all of it alive.
    ///
    /// # Panics
    /// If the range does not lie in the region, or is longer than the address space.
    pub fn map(&self, range: Range<u64>) -> Mapped {
        assert!(range.start <= range.end, "the range ends before it starts");
        let len = range.end - range.start;
        let _ = self.region().at(range.start, len);
        Mapped { region: Rc::clone(&self.0), offset: range.start, len: len as usize }
    }
}

/// A part of a [`Region`], to be sent without a copy. The bytes are those at the time of sending:
/// a write that comes in between shows, and a digest computed before would not fit any more.
#[derive(Clone)]
pub struct Mapped {
    region: Rc<Local>,
    offset: u64,
    len: usize,
}

impl Mapped {
    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies from the part, from its offset `off` on, until `to` is full.
    ///
    /// # Panics
    /// If the range does not lie in the part.
    pub fn read(&self, off: usize, to: &mut [u8]) {
        assert!(off <= self.len && to.len() <= self.len - off, "beyond the mapped part");
        self.region.0.read(self.offset + off as u64, to);
    }

    /// The first byte, valid while this value or a clone of it lives. Only for the kernel and for
    /// raw copies: other threads may write there.
    pub(crate) fn start(&self) -> *const u8 {
        self.region.0.at(self.offset, self.len as u64)
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped").field("offset", &self.offset).field("len", &self.len).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(region: &Region, off: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xEE; len];
        region.read(off, &mut bytes);
        bytes
    }

    #[test]
    fn a_region_reads_as_zeroes_and_keeps_what_was_written() {
        let region = Region::new(1 << 40).expect("address space is not memory");
        assert_eq!(all(&region, (1 << 40) - 10, 10), [0; 10]);
        region.write(12345, b"lunet");
        assert_eq!(all(&region, 12344, 7), *b"\0lunet\0");
    }

    #[test]
    fn zeroing_hits_the_range_and_nothing_else() {
        const LEN: usize = 1 << 20;
        let region = Region::new(LEN as u64).expect("a small mapping");
        for (from, to) in [(0, LEN), (1, LEN - 1), (4095, 70_000), (100, 200), (8192, 73_728)] {
            region.write(0, &vec![0xAB; LEN]);
            region.zero(from as u64, (to - from) as u64);
            let bytes = all(&region, 0, LEN);
            assert!(bytes[..from].iter().all(|b| *b == 0xAB), "in front of {from}..{to}");
            assert!(bytes[from..to].iter().all(|b| *b == 0), "inside {from}..{to}");
            assert!(bytes[to..].iter().all(|b| *b == 0xAB), "behind {from}..{to}");
        }
    }

    #[test]
    fn zeroing_gives_memory_back() {
        const LEN: usize = 16 << 20;
        let region = Region::new(LEN as u64).expect("a small mapping");
        region.write(0, &vec![1; LEN]);
        assert_eq!(resident(&region), LEN / 4096);
        region.zero(0, LEN as u64);
        assert_eq!(resident(&region), 0);
    }

    #[test]
    fn a_pinned_region_keeps_its_pages() {
        const LEN: usize = 1 << 20;
        let region = Region::new(LEN as u64).expect("a small mapping");
        region.write(0, &vec![1; LEN]);
        region.pin();
        region.zero(0, LEN as u64);
        assert_eq!(resident(&region), LEN / 4096);
        assert_eq!(all(&region, 0, LEN), vec![0; LEN]);
    }

    fn resident(region: &Region) -> usize {
        region.resident().expect("the mapping is there")
    }

    #[test]
    fn a_sparse_region_takes_small_pages_and_keeps_its_content_when_they_become_huge() {
        const LEN: usize = 8 << 20;
        let region = Region::sparse(LEN as u64).expect("a small mapping");
        region.write(5000, b"lunet");
        assert_eq!(resident(&region), 1);
        region.populate(70_000, 60_000);
        assert_eq!(all(&region, 70_000, 60_000), vec![0; 60_000]);
        let data: Vec<u8> = (0..2 * HUGE_PAGE).map(|n| (n / 4096 + n % 251) as u8).collect();
        region.write(2 << 20, &data);
        std::thread::scope(|scope| {
            // Others go on meanwhile.
            let writes = scope.spawn(|| {
                for n in 0..2000u64 {
                    region.write((2 << 20) + n * 512 % (2 << 20), &[n as u8; 512]);
                    region.write(
                        (2 << 20) + n * 512 % (2 << 20),
                        &data[n as usize * 512 % HUGE_PAGE..][..512],
                    );
                }
            });
            // A kernel before 6.1 refuses, and changes nothing.
            for extent in [1, 2, 1] {
                region.collapse(extent);
            }
            writes.join().expect("no panic");
        });
        assert!(all(&region, 2 << 20, data.len()) == data, "the content has changed");
        assert!(!region.collapse(4), "that is beyond the end");
        region.zero(2 << 20, 2 << 20);
        assert_eq!(all(&region, 2 << 20, 4096), [0; 4096]);
        let before = resident(&region);
        region.write(3 << 20, b"again");
        assert_eq!(resident(&region), before + 1, "small pages again");
        region.pin();
        assert!(!region.collapse(2));
    }

    #[test]
    fn a_mapped_part_sees_later_writes_and_outlives_the_handle() {
        let handle = RegionRef::new(Arc::new(Region::new(4096).expect("a small mapping")));
        let part = handle.map(100..110);
        handle.region().write(100, b"0123456789");
        drop(handle);
        let mut bytes = [0; 4];
        part.read(6, &mut bytes);
        assert_eq!((&bytes, part.len()), (b"6789", 10));
    }

    #[test]
    #[should_panic(expected = "beyond the region")]
    fn a_part_beyond_the_end_is_a_bug_of_the_caller() {
        RegionRef::new(Arc::new(Region::new(4096).expect("a small mapping"))).map(4000..4097);
    }
}
