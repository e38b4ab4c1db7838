//! Which pages of a volume in memory have been written.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lunet_ring::Region;

use super::PAGE;

/// Pages in a chunk of the map: 1 GiB of the volume. A chunk is made at the first write.
const CHUNK: u64 = 1 << 18;

const WORDS: usize = (CHUNK / 64) as usize;

/// Pages in an extent, which can become a huge page.
const EXTENT: u64 = Region::EXTENT / PAGE as u64;

/// Words of an extent.
const EXTENT_WORDS: usize = (EXTENT / 64) as usize;

const EXTENTS: usize = (CHUNK / EXTENT) as usize;

type Chunk = Box<[AtomicU64; WORDS]>;

/// A bit for each page.
///
/// A write sets its bits when its data is there, and an unmapping clears them before it zeroes. So
/// of two that meet at the same time, a page with data in it never ends as unmapped.
#[derive(Debug)]
pub(super) struct Pages {
    chunks: Box<[OnceLock<Chunk>]>,
    /// Something was marked since somebody looked.
    grown: AtomicBool,
}

impl Pages {
    /// For a volume of `len` bytes; nothing is written yet.
    pub fn new(len: u64) -> Self {
        let chunks = len.div_ceil(u64::from(PAGE)).div_ceil(CHUNK);
        let chunks = (0..chunks).map(|_| OnceLock::new()).collect();
        Self { chunks, grown: AtomicBool::new(false) }
    }

    /// Marks all pages that have a part in a range of bytes.
    pub fn set(&self, offset: u64, len: u64) {
        let page = u64::from(PAGE);
        self.change(offset / page..(offset + len).div_ceil(page), true);
    }

    /// Takes the mark from all pages that lie in a range of bytes as a whole.
    pub fn clear(&self, offset: u64, len: u64) {
        let page = u64::from(PAGE);
        self.change(offset.div_ceil(page)..(offset + len) / page, false);
    }

    fn change(&self, pages: Range<u64>, set: bool) {
        let mut at = pages.start;
        while at < pages.end {
            let chunk = &self.chunks[(at / CHUNK) as usize];
            let chunk = if set { Some(chunk.get_or_init(empty)) } else { chunk.get() };
            let Some(chunk) = chunk else {
                at = (at / CHUNK + 1) * CHUNK;
                continue;
            };
            let bits = (64 - at % 64).min(pages.end - at);
            let mask = (u64::MAX >> (64 - bits)) << (at % 64);
            let word = &chunk[(at % CHUNK / 64) as usize];
            let old = word.load(Ordering::SeqCst);
            // Mostly there is nothing to change, and a load is shared by all processors.
            if set && old & mask != mask {
                word.fetch_or(mask, Ordering::SeqCst);
                self.grown.store(true, Ordering::Relaxed);
            } else if !set && old & mask != 0 {
                word.fetch_and(!mask, Ordering::SeqCst);
            }
            at += bits;
        }
    }

    /// Whether the page with this byte is marked, and the first byte behind it, up to `end`, whose
    /// page is not the same in this.
    pub fn run(&self, offset: u64, end: u64) -> (bool, u64) {
        let page = u64::from(PAGE);
        let (mut at, last) = (offset / page, end.div_ceil(page));
        let marked = self.word(at) >> (at % 64) & 1 == 1;
        while at < last {
            if !marked && self.chunks[(at / CHUNK) as usize].get().is_none() {
                at = (at / CHUNK + 1) * CHUNK;
                continue;
            }
            let word = self.word(at);
            let others = (if marked { !word } else { word }) >> (at % 64);
            if others != 0 {
                at += u64::from(others.trailing_zeros());
                break;
            }
            at = (at / 64 + 1) * 64;
        }
        (marked, (at.min(last) * page).min(end))
    }

    /// True if no page with a part in this range of bytes is marked.
    pub fn is_blank(&self, offset: u64, end: u64) -> bool {
        // Mostly everything is marked, and the first page says so.
        let page = offset / u64::from(PAGE);
        offset >= end
            || self.word(page) >> (page % 64) & 1 == 0 && self.run(offset, end) == (false, end)
    }

    /// True if something was marked since the last call.
    pub fn has_grown(&self) -> bool {
        self.grown.swap(false, Ordering::Relaxed)
    }

    /// True if something was marked since the last call of [`has_grown`](Self::has_grown).
    pub fn is_growing(&self) -> bool {
        self.grown.load(Ordering::Relaxed)
    }

    /// The extents that are marked in full, by number, in chunks that have any mark.
    pub fn full_extents(&self) -> impl Iterator<Item = u64> + '_ {
        let chunks = self.chunks.iter().enumerate().filter_map(|(n, c)| Some((n, c.get()?)));
        chunks.flat_map(|(number, chunk)| {
            let full = |words: &[AtomicU64]| {
                words.iter().all(|word| word.load(Ordering::Relaxed) == u64::MAX)
            };
            let extents = chunk.chunks(EXTENT_WORDS).enumerate();
            extents
                .filter(move |(_, words)| full(words))
                .map(move |(n, _)| (number * EXTENTS + n) as u64)
        })
    }

    /// How many pages are marked.
    pub fn count(&self) -> u64 {
        let chunks = self.chunks.iter().filter_map(OnceLock::get);
        let words = chunks.flat_map(|chunk| chunk.iter());
        words.map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }

    fn word(&self, page: u64) -> u64 {
        let chunk = self.chunks.get((page / CHUNK) as usize).and_then(OnceLock::get);
        chunk.map_or(0, |chunk| chunk[(page % CHUNK / 64) as usize].load(Ordering::SeqCst))
    }
}

fn empty() -> Chunk {
    Box::new([const { AtomicU64::new(0) }; WORDS])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const P: u64 = PAGE as u64;

    fn marked(pages: &Pages, len: u64) -> Vec<(u64, u64)> {
        let (mut at, mut out) = (0, Vec::new());
        while at < len {
            let (is, end) = pages.run(at, len);
            assert!(end > at && end <= len, "{at}..{end}");
            if is {
                out.push((at, end));
            }
            at = end;
        }
        out
    }

    #[test]
    fn writes_mark_what_they_touch_and_unmapping_takes_whole_pages() {
        let len = 3 << 30;
        let pages = Pages::new(len);
        assert_eq!((marked(&pages, len), pages.count()), (vec![], 0));
        pages.set(P - 1, 2);
        pages.set((1 << 30) - P, 2 * P);
        assert_eq!(marked(&pages, len), [(0, 2 * P), ((1 << 30) - P, (1 << 30) + P)]);
        pages.clear(1, 2 * P);
        assert_eq!(marked(&pages, len)[0], (0, P), "the first page is hit in part");
        pages.clear(0, len);
        assert_eq!((marked(&pages, len), pages.count()), (vec![], 0));
        pages.set(len - 1, 1);
        assert_eq!((marked(&pages, len), pages.count()), (vec![(len - P, len)], 1));
        assert_eq!(pages.run(len - 512, len), (true, len));
        // A volume that ends in the middle of a page.
        let odd = Pages::new(P + 512);
        odd.set(P, 512);
        assert_eq!(marked(&odd, P + 512), [(P, P + 512)]);
    }

    #[test]
    fn extents_that_are_written_in_full_are_found() {
        let len = 3 << 30;
        let pages = Pages::new(len);
        assert!(pages.is_blank(0, len) && !pages.has_grown());
        pages.set(4 << 20, 2 << 20);
        pages.set((2 << 30) - P, (2 << 20) + P);
        pages.set(10 << 20, (2 << 20) - P);
        assert_eq!(pages.full_extents().collect::<Vec<_>>(), [2, 1024]);
        assert!(pages.is_growing() && pages.has_grown() && !pages.is_growing());
        pages.clear(5 << 20, P);
        assert_eq!(pages.full_extents().collect::<Vec<_>>(), [1024]);
        assert!(!pages.has_grown(), "less is not more");
        assert!(
            pages.is_blank(5 << 20, (5 << 20) + P) && !pages.is_blank(5 << 20, (5 << 20) + P + 1)
        );
    }

    proptest! {
        #[test]
        fn the_map_is_an_array_of_flags(
            steps in prop::collection::vec((any::<bool>(), 0u64..300 * P, 1u64..90 * P), 1..40)
        ) {
            let len = 400 * P;
            let pages = Pages::new(len);
            let mut model = [false; 400];
            for (set, offset, bytes) in steps {
                if set {
                    pages.set(offset, bytes);
                } else {
                    pages.clear(offset, bytes);
                }
                for (at, flag) in (0..).step_by(P as usize).zip(&mut model) {
                    if set && at < offset + bytes && offset < at + P {
                        *flag = true;
                    }
                    if !set && offset <= at && at + P <= offset + bytes {
                        *flag = false;
                    }
                }
            }
            let mut found = [false; 400];
            for (from, to) in marked(&pages, len) {
                found[(from / P) as usize..(to / P) as usize].fill(true);
            }
            prop_assert!(found == model);
            prop_assert_eq!(pages.count(), model.iter().filter(|f| **f).count() as u64);
        }
    }
}
