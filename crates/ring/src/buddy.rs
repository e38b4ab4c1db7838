//! A buddy allocator over page numbers: which pieces of the arena are free.
//!
//! It knows no memory, only numbers, and allocates nothing after it was made. Blocks are
//! 2^order pages, order 0..=[`MAX_ORDER`], aligned to their size.

/// The largest block is 2^8 pages, 1 MiB.
pub(crate) const MAX_ORDER: u8 = 8;

const NONE: u32 = u32::MAX;
const ORDERS: usize = MAX_ORDER as usize + 1;

/// What is known of the block that starts at a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// No block starts here: the page is inside one.
    Inside,
    Free(u8),
    Used(u8),
}

#[derive(Clone, Copy, Debug)]
struct Page {
    mark: Mark,
    next: u32,
    prev: u32,
}

/// The allocator's books.
#[derive(Debug)]
pub(crate) struct Buddy {
    pages: Vec<Page>,
    heads: [u32; ORDERS],
    free_pages: usize,
}

impl Buddy {
    /// Books for `blocks` blocks of the largest size, all free.
    pub(crate) fn new(blocks: usize) -> Self {
        let page = Page { mark: Mark::Inside, next: NONE, prev: NONE };
        let count = blocks << MAX_ORDER;
        assert!(count < NONE as usize, "too many pages for the arena's books");
        let mut buddy = Self { pages: vec![page; count], heads: [NONE; ORDERS], free_pages: count };
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
    pub(crate) fn alloc(&mut self, order: u8) -> Option<u32> {
        let mut found = (order..=MAX_ORDER).find(|&o| self.heads[o as usize] != NONE)?;
        let page = self.heads[found as usize];
        self.unlink(page, found);
        while found > order {
            found -= 1;
            self.push(page + (1 << found), found);
        }
        self.pages[page as usize].mark = Mark::Used(order);
        self.free_pages -= 1 << order;
        Some(page)
    }

    /// Gives a block back, and joins it with its free buddies.
    pub(crate) fn free(&mut self, page: u32, order: u8) {
        debug_assert_eq!(self.pages[page as usize].mark, Mark::Used(order), "freed twice");
        self.put(page, order);
    }

    /// Gives a part of a used block back, aligned to its size. The rest stays used, and is given back in the same
    /// way.
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
