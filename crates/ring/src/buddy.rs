//! A buddy allocator over page numbers: which pieces of the arena are free.
//!
//! It knows no memory, only numbers, and allocates nothing after it was made. Blocks are
//! 2^order pages, order 0..=[`MAX_ORDER`], aligned to their size.

/// The largest block is 2^8 pages, 1 MiB.
pub(crate) const MAX_ORDER: u8 = 8;

const NONE: u32 = u32::MAX;
const ORDERS: usize = MAX_ORDER as usize + 1;

/// So many blocks of each size are kept whole: what the commands of one receive take, and give back together.
const KEPT: usize = 32;

/// What is known of the block that starts at a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// No block starts here: the page is inside one.
    Inside,
    Free(u8),
    /// Free, and kept whole for the next who wants a block of this size.
    Kept(u8),
    Used(u8),
}

#[derive(Clone, Copy, Debug)]
struct Page {
    mark: Mark,
    next: u32,
    prev: u32,
}

/// Free blocks of one size that were given back and not joined with their buddies, the newest last: most callers want what
/// somebody has just given back, and joining it costs as much as splitting it again.
#[derive(Clone, Copy, Debug)]
struct Kept {
    pages: [u32; KEPT],
    len: usize,
}

impl Kept {
    const NONE: Self = Self { pages: [NONE; KEPT], len: 0 };

    #[inline]
    fn pop(&mut self) -> Option<u32> {
        self.len = self.len.checked_sub(1)?;
        Some(self.pages[self.len])
    }

    /// Whether there was room for it.
    #[inline]
    fn push(&mut self, page: u32) -> bool {
        let Some(place) = self.pages.get_mut(self.len) else { return false };
        *place = page;
        self.len += 1;
        true
    }
}

/// The allocator's books.
#[derive(Debug)]
pub(crate) struct Buddy {
    pages: Vec<Page>,
    heads: [u32; ORDERS],
    kept: [Kept; ORDERS],
    free_pages: usize,
    /// The least of that since the last look.
    least_free: usize,
    /// For each block of the largest size, whether something was taken of it since its memory was given back.
    touched: Vec<bool>,
    /// How many these are.
    touched_blocks: usize,
}

impl Buddy {
    /// Books for `blocks` blocks of the largest size, all free.
    pub(crate) fn new(blocks: usize) -> Self {
        let page = Page { mark: Mark::Inside, next: NONE, prev: NONE };
        let count = blocks << MAX_ORDER;
        assert!(count < NONE as usize, "too many pages for the arena's books");
        let (heads, kept) = ([NONE; ORDERS], [Kept::NONE; ORDERS]);
        let mut buddy = Self {
            pages: vec![page; count],
            heads,
            kept,
            free_pages: count,
            least_free: count,
            touched: vec![false; blocks],
            touched_blocks: 0,
        };
        for block in (0..blocks).rev() {
            buddy.push((block << MAX_ORDER) as u32, MAX_ORDER);
        }
        buddy
    }

    /// Pages that are free, in whatever pieces.
    pub(crate) const fn free_pages(&self) -> usize {
        self.free_pages
    }

    /// Takes a block of 2^`order` pages: its first page, or `None` if no free block is that large.
    #[inline]
    pub(crate) fn alloc(&mut self, order: u8) -> Option<u32> {
        let page = match self.kept[order as usize].pop() {
            Some(page) => page,
            None => self.split(order).or_else(|| self.join_kept().split(order))?,
        };
        self.pages[page as usize].mark = Mark::Used(order);
        self.free_pages -= 1 << order;
        self.least_free = self.least_free.min(self.free_pages);
        Some(page)
    }

    /// Blocks of the largest size of which something was taken since they were [forgotten](Self::forget).
    pub(crate) const fn touched_blocks(&self) -> usize {
        self.touched_blocks
    }

    /// The most pages that were in use at a time since the last look.
    pub(crate) fn look(&mut self) -> usize {
        // What is kept whole in small pieces would keep large ones from being free.
        self.join_kept();
        let most = self.pages.len() - self.least_free;
        self.least_free = self.free_pages;
        most
    }

    /// True if all of a block of the largest size is free, after a [look](Self::look).
    pub(crate) fn is_whole(&self, block: usize) -> bool {
        self.pages[block << MAX_ORDER].mark == Mark::Free(MAX_ORDER)
    }

    /// True if something was taken of it.
    pub(crate) fn is_touched(&self, block: usize) -> bool {
        self.touched[block]
    }

    /// Its memory is there, be it that nothing was taken.
    pub(crate) fn touch(&mut self, block: usize) {
        self.touched_blocks += usize::from(!std::mem::replace(&mut self.touched[block], true));
    }

    /// Its memory was given back.
    pub(crate) fn forget(&mut self, block: usize) {
        self.touched_blocks -= usize::from(std::mem::replace(&mut self.touched[block], false));
    }

    /// Has those that were touched taken before others.
    pub(crate) fn prefer_touched(&mut self) {
        self.heads[MAX_ORDER as usize] = NONE;
        for wanted in [false, true] {
            for block in (0..self.touched.len()).rev() {
                if self.is_whole(block) && self.touched[block] == wanted {
                    self.push((block << MAX_ORDER) as u32, MAX_ORDER);
                }
            }
        }
    }

    /// Takes a block of 2^`order` pages out of the free ones, of which it is no more.
    fn split(&mut self, order: u8) -> Option<u32> {
        let mut found = (order..=MAX_ORDER).find(|&o| self.heads[o as usize] != NONE)?;
        let page = self.heads[found as usize];
        self.unlink(page, found);
        if found == MAX_ORDER {
            self.touch(page as usize >> MAX_ORDER);
        }
        while found > order {
            found -= 1;
            self.push(page + (1 << found), found);
        }
        Some(page)
    }

    /// Joins what is kept whole with its buddies.
    #[cold]
    fn join_kept(&mut self) -> &mut Self {
        for order in 0..=MAX_ORDER {
            while let Some(page) = self.kept[order as usize].pop() {
                self.free_pages -= 1 << order;
                self.put(page, order);
            }
        }
        self
    }

    /// Gives a block back: it is kept as it is for the next, or joined with its free buddies.
    #[inline]
    pub(crate) fn free(&mut self, page: u32, order: u8) {
        debug_assert_eq!(self.pages[page as usize].mark, Mark::Used(order), "freed twice");
        if !self.kept[order as usize].push(page) {
            return self.put(page, order);
        }
        self.pages[page as usize].mark = Mark::Kept(order);
        self.free_pages += 1 << order;
    }

    /// Gives a block, or a part of a used one, back, aligned to its size, and joins it with its free buddies. The rest
    /// stays used, and is given back in the same way.
    pub(crate) fn put(&mut self, page: u32, order: u8) {
        self.free_pages += 1 << order;
        let (mut page, mut order) = (page, order);
        while order < MAX_ORDER {
            let buddy = page ^ (1 << order);
            if self.pages[buddy as usize].mark != Mark::Free(order) {
                break;
            }
            self.unlink(buddy, order);
            self.pages[page.max(buddy) as usize].mark = Mark::Inside;
            page = page.min(buddy);
            order += 1;
        }
        self.push(page, order);
    }

    fn push(&mut self, page: u32, order: u8) {
        let head = self.heads[order as usize];
        self.pages[page as usize] = Page { mark: Mark::Free(order), next: head, prev: NONE };
        if head != NONE {
            self.pages[head as usize].prev = page;
        }
        self.heads[order as usize] = page;
    }

    fn unlink(&mut self, page: u32, order: u8) {
        let Page { next, prev, .. } = self.pages[page as usize];
        if prev == NONE {
            self.heads[order as usize] = next;
        } else {
            self.pages[prev as usize].next = next;
        }
        if next != NONE {
            self.pages[next as usize].prev = prev;
        }
        self.pages[page as usize].mark = Mark::Inside;
    }
}

#[cfg(test)]
mod tests {
    use lunet_block::Random;

    use super::*;

    #[test]
    fn what_is_kept_whole_is_there_for_blocks_of_every_size() {
        let mut buddy = Buddy::new(1);
        let pages: Vec<u32> = (0..=MAX_ORDER - 1).filter_map(|order| buddy.alloc(order)).collect();
        for (order, page) in pages.into_iter().enumerate() {
            buddy.free(page, order as u8);
            assert_eq!((buddy.kept[order].len, buddy.kept[order].pages[0]), (1, page));
        }
        assert_eq!(buddy.free_pages(), 1 << MAX_ORDER);
        let kept = buddy.kept[3].pages[0];
        assert_eq!(buddy.alloc(3), Some(kept), "the one that was given back");
        buddy.free(kept, 3);
        assert_eq!(buddy.alloc(MAX_ORDER), Some(0), "all of it, in one piece");
        assert_eq!((buddy.free_pages(), buddy.alloc(0)), (0, None));
    }

    #[test]
    fn what_was_touched_is_taken_first() {
        let mut buddy = Buddy::new(4);
        let pages: Vec<u32> = (0..3).filter_map(|_| buddy.alloc(MAX_ORDER)).collect();
        assert_eq!((buddy.touched_blocks(), buddy.look()), (3, 3 << MAX_ORDER));
        for page in pages.iter().rev() {
            buddy.free(*page, MAX_ORDER);
        }
        assert_eq!((buddy.look(), buddy.look()), (3 << MAX_ORDER, 0));
        buddy.forget(0);
        buddy.prefer_touched();
        let blocks: Vec<u32> =
            std::iter::from_fn(|| buddy.alloc(MAX_ORDER)).map(|page| page >> MAX_ORDER).collect();
        assert_eq!(blocks, [1, 2, 0, 3]);
        assert_eq!((buddy.touched_blocks(), buddy.free_pages()), (4, 0));
    }

    #[test]
    fn what_is_given_back_beyond_what_is_kept_is_joined() {
        let mut buddy = Buddy::new(1);
        let pages: Vec<u32> = std::iter::from_fn(|| buddy.alloc(2)).collect();
        assert_eq!(pages.len(), 1 << (MAX_ORDER - 2));
        pages.into_iter().for_each(|page| buddy.free(page, 2));
        assert_eq!(buddy.kept[2].len, KEPT);
        assert_eq!((buddy.free_pages(), buddy.alloc(MAX_ORDER)), (1 << MAX_ORDER, Some(0)));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    #[cfg(debug_assertions)]
    fn a_block_that_is_kept_is_not_given_back_again() {
        let mut buddy = Buddy::new(1);
        let page = buddy.alloc(2).expect("a block");
        buddy.free(page, 2);
        buddy.free(page, 2);
    }

    #[test]
    fn blocks_never_overlap_and_everything_comes_back_in_one_piece() {
        const BLOCKS: usize = 4;
        for seed in 1..20 {
            let mut random = Random::new(seed);
            let mut buddy = Buddy::new(BLOCKS);
            let mut owner = vec![false; BLOCKS << MAX_ORDER];
            let mut held: Vec<(u32, u8)> = Vec::new();
            for _ in 0..4000 {
                if random.below(2) == 0 {
                    let order = random.below(ORDERS as u64) as u8;
                    let Some(page) = buddy.alloc(order) else { continue };
                    assert_eq!(page % (1 << order), 0, "a block is aligned to its size");
                    for p in page..page + (1 << order) {
                        assert!(!owner[p as usize], "page {p} was handed out twice");
                        owner[p as usize] = true;
                    }
                    held.push((page, order));
                } else if !held.is_empty() {
                    let at = random.below(held.len() as u64) as usize;
                    let (page, order) = held.swap_remove(at);
                    owner[page as usize..(page + (1 << order)) as usize].fill(false);
                    buddy.free(page, order);
                }
                assert_eq!(buddy.free_pages(), owner.iter().filter(|used| !**used).count());
            }
            for (page, order) in held.drain(..) {
                buddy.free(page, order);
            }
            let whole: Vec<_> = (0..BLOCKS).map_while(|_| buddy.alloc(MAX_ORDER)).collect();
            assert_eq!(whole.len(), BLOCKS, "free buddies were joined again");
            assert_eq!(buddy.alloc(0), None);
        }
    }
}
