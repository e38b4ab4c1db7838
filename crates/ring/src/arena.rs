//! The event loop's buffers: one mapping, cut into page-aligned pieces.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::rc::Rc;

use crate::buddy::{Buddy, MAX_ORDER};
use crate::mapping::{Mapping, PAGE};

/// The largest buffer: 1 MiB.
pub const MAX_BUF: usize = PAGE << MAX_ORDER;

/// What becomes memory, is registered with io_uring, and is given back at a time. io_uring takes 16,384 of them, which is the
/// largest arena. A [`Buf`] is aligned to its size and never crosses a part.
pub(crate) const PART: usize = 4 << 20;

/// Blocks of the largest size in a part.
const BLOCKS: usize = PART / MAX_BUF;

/// Memory that stays whatever the demand is, in bytes: who comes next is served without a fault.
pub const RESIDENT_LEAST: usize = 2 * PART;

#[derive(Debug)]
struct Shared {
    mapping: Mapping,
    /// The pages that are for all.
    buddy: RefCell<Buddy>,
    /// The pages behind them, which are for reserves alone.
    kept: RefCell<Buddy>,
    /// The first of these.
    kept_from: u32,
    /// Bytes in reserves.
    reserved: Cell<usize>,
    /// Of these, bytes out of what is for all.
    reserved_of_shared: Cell<usize>,
    /// How often memory came back, or went on to another account.
    releases: Cell<u64>,
    /// A device has all of it: nothing is given back to the system.
    pinned: Cell<bool>,
}

impl Shared {
    fn released(&self) {
        self.releases.set(self.releases.get().wrapping_add(1));
    }

    /// The books that a page is in, and its number there.
    fn books(&self, page: u32) -> (&RefCell<Buddy>, u32) {
        match page.checked_sub(self.kept_from) {
            Some(page) => (&self.kept, page),
            None => (&self.buddy, page),
        }
    }

    /// The books that a block of the largest size is in, and its number there.
    fn books_of_block(&self, block: usize) -> (&RefCell<Buddy>, usize) {
        let (books, page) = self.books((block << MAX_ORDER) as u32);
        (books, page as usize >> MAX_ORDER)
    }

    fn put(&self, page: u32, order: u8) {
        let (books, page) = self.books(page);
        books.borrow_mut().put(page, order);
    }
}

/// Memory for payloads, 4 KiB aligned, mapped once at start. Buffers are taken and given back
/// without a system call, an allocation or a lock. A clone refers to the same memory; it stays on
/// its thread.
#[derive(Clone)]
pub struct Arena(Rc<Shared>);

impl Arena {
    /// Maps an arena of `bytes` bytes, rounded up to whole MiB.
    ///
    /// # Errors
    /// ENOMEM if the kernel refuses the mapping.
    pub fn new(bytes: usize) -> io::Result<Self> {
        Self::with_kept(bytes, 0)
    }

    /// As [`new`](Self::new), of which `kept` bytes, rounded down to whole MiB, are for [reserves](Self::reserve_kept)
    /// alone: whatever is done with the others, they are there.
    ///
    /// # Errors
    /// ENOMEM if the kernel refuses the mapping.
    pub fn with_kept(bytes: usize, kept: usize) -> io::Result<Self> {
        let blocks = bytes.div_ceil(MAX_BUF).max(1);
        if blocks >= (u32::MAX >> MAX_ORDER) as usize {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let mapping = Mapping::new(blocks * MAX_BUF)?;
        let of_these = (kept / MAX_BUF).min(blocks - 1);
        let shared = blocks - of_these;
        Ok(Self(Rc::new(Shared {
            mapping,
            buddy: RefCell::new(Buddy::new(shared)),
            kept: RefCell::new(Buddy::new(of_these)),
            kept_from: (shared << MAX_ORDER) as u32,
            reserved: Cell::new(0),
            reserved_of_shared: Cell::new(0),
            releases: Cell::new(0),
            pinned: Cell::new(false),
        })))
    }

    /// Takes a buffer of `len` bytes, at most [`MAX_BUF`]. It occupies the next power of two from
    /// 4 KiB on. `None` if no free piece is large enough. The contents are whatever was there
    /// before: the caller overwrites them before anyone else sees them.
    pub fn alloc(&self, len: usize) -> Option<Buf> {
        if len > MAX_BUF {
            return None;
        }
        let order = order_of(len);
        let page = self.0.buddy.borrow_mut().alloc(order)?;
        let shared = Rc::clone(&self.0);
        Some(Buf { shared, page, order, len: len as u32, account: None, home: None })
    }

    /// Like [`alloc`](Self::alloc), and the account is charged with what the buffer
    /// [occupies](Buf::occupies) until it is dropped, wherever it has gone by then.
    pub fn alloc_for(&self, len: usize, account: &Account) -> Option<Buf> {
        let mut buf = self.alloc(len)?;
        buf.charge(account);
        Some(buf)
    }

    /// Sets memory aside out of what is for all, at most [`MAX_RESERVE`]: a power of two. `None` if no free piece is large
    /// enough.
    pub fn reserve(&self, bytes: usize) -> Option<Reserve> {
        let order = order_of(bytes.min(MAX_RESERVE));
        let page = self.0.buddy.borrow_mut().alloc(order)?;
        self.0.reserved_of_shared.set(self.0.reserved_of_shared.get() + (PAGE << order));
        Some(self.reserve_at(page, order))
    }

    /// As [`reserve`](Self::reserve), out of what is for reserves alone.
    pub fn reserve_kept(&self, bytes: usize) -> Option<Reserve> {
        let order = order_of(bytes.min(MAX_RESERVE));
        let page = self.0.kept.borrow_mut().alloc(order)?;
        Some(self.reserve_at(self.0.kept_from + page, order))
    }

    fn reserve_at(&self, page: u32, order: u8) -> Reserve {
        self.0.reserved.set(self.0.reserved.get() + (PAGE << order));
        Reserve(self.piece_at(page, order))
    }

    fn piece_at(&self, page: u32, order: u8) -> Piece {
        let block = Block { page, order, used: Cell::new(0), open: Cell::new(true) };
        Piece { shared: Rc::clone(&self.0), block: Rc::new(block) }
    }

    /// Takes one piece out of what is for all, at most [`MAX_RESERVE`]: a power of two. `None` if no free piece is large
    /// enough.
    pub fn slab(&self, bytes: usize) -> Option<Slab> {
        let order = order_of(bytes.min(MAX_RESERVE));
        let page = self.0.buddy.borrow_mut().alloc(order)?;
        Some(Slab(self.piece_at(page, order)))
    }

    /// Bytes that are for all: without reserves, and what is kept for them.
    pub fn shared_bytes(&self) -> usize {
        self.0.kept_from as usize * PAGE - self.0.reserved_of_shared.get()
    }

    /// Bytes that are free of those that are for all, perhaps in pieces.
    pub fn shared_free(&self) -> usize {
        self.0.buddy.borrow().free_pages() * PAGE
    }

    /// Bytes that are kept for reserves.
    pub fn kept_bytes(&self) -> usize {
        self.total_bytes() - self.0.kept_from as usize * PAGE
    }

    /// Bytes that are free of those that are kept for reserves, perhaps in pieces.
    pub fn kept_free(&self) -> usize {
        self.0.kept.borrow().free_pages() * PAGE
    }

    /// Bytes in reserves, whether they are in use or not. They are not [free](Self::free_bytes).
    pub fn reserved_bytes(&self) -> usize {
        self.0.reserved.get()
    }

    /// A number that changes whenever memory comes back, or goes on to another account.
    pub fn releases(&self) -> u64 {
        self.0.releases.get()
    }

    /// Bytes that a buffer of `len` bytes would [occupy](Buf::occupies).
    pub fn cost(len: usize) -> usize {
        PAGE << order_of(len)
    }

    /// Bytes that are free, for all or for reserves, perhaps in pieces.
    pub fn free_bytes(&self) -> usize {
        self.shared_free() + self.kept_free()
    }

    /// The size of the arena in bytes.
    pub fn total_bytes(&self) -> usize {
        self.0.mapping.len()
    }

    /// Bytes that have memory, as far as it was needed: the rest of the arena is address space. What a device
    /// [has](Self::span) is all there.
    pub fn resident_bytes(&self) -> usize {
        let shared = &self.0;
        if shared.pinned.get() {
            return self.total_bytes();
        }
        let blocks = shared.buddy.borrow().touched_blocks() + shared.kept.borrow().touched_blocks();
        blocks * MAX_BUF
    }

    /// Gives memory back to the system that was not needed since the last call. What is taken next is memory that is there.
    /// `leave` is told each part before, and may keep it by saying no.
    pub(crate) fn shrink(&self, mut leave: impl FnMut(usize) -> bool) {
        let shared = &self.0;
        let needed: usize = [&shared.buddy, &shared.kept]
            .map(|books| books.borrow_mut().look() * PAGE)
            .iter()
            .sum();
        // As much again for who comes next.
        let least = RESIDENT_LEAST.max(needed + needed / 2).next_multiple_of(PART);
        let mut resident = self.resident_bytes();
        if shared.pinned.get() || resident <= least {
            return;
        }
        for part in (0..self.part_count()).rev() {
            if resident.saturating_sub(PART) < least {
                break;
            }
            let freed = self.part_memory(part);
            if freed.is_some_and(|bytes| bytes > 0) && leave(part) && self.discard(part) {
                resident -= freed.unwrap_or(0);
            }
        }
        for books in [&shared.buddy, &shared.kept] {
            books.borrow_mut().prefer_touched();
        }
    }

    /// Bytes of a part that have memory; `None` if something of it is in use.
    fn part_memory(&self, part: usize) -> Option<usize> {
        let mut bytes = 0;
        for block in self.blocks_of(part) {
            let (books, block) = self.0.books_of_block(block);
            let books = books.borrow();
            if !books.is_whole(block) {
                return None;
            }
            bytes += MAX_BUF * usize::from(books.is_touched(block));
        }
        Some(bytes)
    }

    fn discard(&self, part: usize) -> bool {
        let (_, len) = self.part(part);
        if !self.0.mapping.discard(part * PART, len) {
            return false;
        }
        for block in self.blocks_of(part) {
            let (books, block) = self.0.books_of_block(block);
            books.borrow_mut().forget(block);
        }
        true
    }

    /// All of a part is memory from now on.
    pub(crate) fn note_memory(&self, part: usize) {
        for block in self.blocks_of(part) {
            let (books, block) = self.0.books_of_block(block);
            books.borrow_mut().touch(block);
        }
    }

    fn blocks_of(&self, part: usize) -> Range<usize> {
        let blocks = self.total_bytes() / MAX_BUF;
        part * BLOCKS..((part + 1) * BLOCKS).min(blocks)
    }

    /// All of its memory, to register it with a device: the first byte, and the length in bytes. It
    /// stays mapped while a clone of the arena or one of its buffers lives, and is never given back to the system.
    pub fn span(&self) -> (NonNull<u8>, usize) {
        self.0.pinned.set(true);
        (self.0.mapping.start(), self.0.mapping.len())
    }

    /// How many parts there are to be registered with io_uring.
    pub(crate) fn part_count(&self) -> usize {
        self.total_bytes().div_ceil(PART)
    }

    /// A part: address and length.
    pub(crate) fn part(&self, part: usize) -> (NonNull<u8>, usize) {
        let (at, total) = (part * PART, self.total_bytes());
        assert!(at < total, "a part beyond the arena");
        // SAFETY: `at` < `total`, the length of the mapping.
        let start = unsafe { self.0.mapping.start().add(at) };
        (start, PART.min(total - at))
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (free, total) = (self.free_bytes(), self.total_bytes());
        f.debug_struct("Arena").field("free", &free).field("total", &total).finish()
    }
}

fn order_of(len: usize) -> u8 {
    len.div_ceil(PAGE).max(1).next_power_of_two().trailing_zeros() as u8
}

/// Counts the arena memory that one user of the event loop holds.
#[derive(Clone, Debug, Default)]
pub struct Account(Rc<Holding>);

#[derive(Debug, Default)]
struct Holding {
    held: Cell<usize>,
    /// Where it counts as well, as long as it is attached.
    owner: RefCell<Option<Account>>,
    /// Where it always counts as well.
    place: Option<Account>,
}

impl Account {
    /// An account whose memory counts for its owner, until it is [detached](Self::detach), and at a place. Neither
    /// is a part itself.
    pub fn part(owner: &Self, place: &Self) -> Self {
        debug_assert!(owner.0.place.is_none() && place.0.place.is_none(), "a part of a part");
        let (owner, place) = (RefCell::new(Some(owner.clone())), Some(place.clone()));
        Self(Rc::new(Holding { owner, place, ..Holding::default() }))
    }

    /// Bytes held now.
    pub fn held(&self) -> usize {
        self.0.held.get()
    }

    /// What it holds does not count for its owner any more. It goes on to count at its place.
    pub fn detach(&self) {
        if let Some(owner) = self.0.owner.take() {
            owner.change(-(self.held() as isize));
        }
    }

    /// What it holds counts for this owner, too, if it has none yet.
    pub fn attach(&self, owner: &Self) {
        debug_assert!(!Rc::ptr_eq(&self.0, &owner.0), "its own owner");
        if self.0.owner.borrow().is_none() {
            owner.change(self.held() as isize);
            self.0.owner.replace(Some(owner.clone()));
        }
    }

    /// For whom else it counts: how many bytes that one holds, and how many refer to its account.
    pub fn of_owner(&self) -> Option<(usize, usize)> {
        self.0.owner.borrow().as_ref().map(|owner| (owner.held(), owner.references()))
    }

    /// How many refer to it: those who keep it, and accounts of which it is the owner or the place.
    pub fn references(&self) -> usize {
        Rc::strong_count(&self.0)
    }

    #[inline]
    fn change(&self, by: isize) {
        self.0.held.set(self.0.held.get().wrapping_add_signed(by));
        if let Some(place) = &self.0.place {
            place.change(by);
        }
        if let Some(owner) = &*self.0.owner.borrow() {
            owner.change(by);
        }
    }
}

/// The largest [`Reserve`]: 256 KiB.
pub const MAX_RESERVE: usize = PAGE * u64::BITS as usize;

/// Memory of an [`Arena`] that is set aside: one piece, so that whatever others do, there is room in it for a
/// buffer of its size once its own are back. What is in use when it is dropped is given back with its buffers.
pub struct Reserve(Piece);

/// A piece of an [`Arena`] for many small buffers that come and go: taken one by one, those that stay for long would end up
/// all over the arena, and no large piece would be free. What is in use when it is dropped is given back with its buffers.
pub struct Slab(Piece);

/// One piece of an arena, out of which buffers are taken.
struct Piece {
    shared: Rc<Shared>,
    block: Rc<Block>,
}

#[derive(Debug)]
struct Block {
    page: u32,
    order: u8,
    /// A bit for each page in use.
    used: Cell<u64>,
    /// False once the reserve is gone.
    open: Cell<bool>,
}

impl Block {
    /// The bits of 2^`order` pages from the page `at` of the block on.
    const fn mask(at: u32, order: u8) -> u64 {
        (u64::MAX >> (64 - (1u32 << order))) << at
    }

    /// The first page of a free piece of 2^`order` pages.
    fn find(&self, order: u8) -> Option<u32> {
        // Nothing in front of the first free page.
        let from = (!self.used.get()).trailing_zeros() >> order << order;
        let mut places = (from..1u32 << self.order).step_by(1 << order);
        places.find(|at| order <= self.order && self.used.get() & Self::mask(*at, order) == 0)
    }

    /// Gives back whatever is not in use of 2^`order` pages from `at` on.
    fn give_back(&self, shared: &Shared, at: u32, order: u8) {
        if self.used.get() & Self::mask(at, order) == 0 {
            shared.put(self.page + at, order);
        } else if order > 0 {
            self.give_back(shared, at, order - 1);
            self.give_back(shared, at + (1 << (order - 1)), order - 1);
        }
    }
}

impl Piece {
    fn bytes(&self) -> usize {
        PAGE << self.block.order
    }

    fn alloc(&self, len: usize) -> Option<Buf> {
        if len > self.bytes() {
            return None;
        }
        let (block, order) = (&self.block, order_of(len));
        let at = block.find(order)?;
        block.used.set(block.used.get() | Block::mask(at, order));
        let (shared, home) = (Rc::clone(&self.shared), Some(Rc::clone(block)));
        let page = block.page + at;
        Some(Buf { shared, page, order, len: len as u32, account: None, home })
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.block.open.set(false);
        self.block.give_back(&self.shared, 0, self.block.order);
        self.shared.released();
    }
}

impl Slab {
    /// As [`Arena::alloc`], in the slab.
    pub fn alloc(&self, len: usize) -> Option<Buf> {
        self.0.alloc(len)
    }

    /// True if none of its buffers is in use.
    pub fn is_unused(&self) -> bool {
        self.0.block.used.get() == 0
    }
}

impl Reserve {
    /// Size in bytes: a power of two pages.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// The longest buffer that there is room for, in bytes.
    pub fn room(&self) -> usize {
        let block = &self.0.block;
        let fits = (0..=block.order).rev().filter(|order| block.find(*order).is_some());
        fits.map(|order| PAGE << order).max().unwrap_or(0)
    }

    /// The same, if a piece of `kept` bytes has to be left.
    pub fn room_beside(&self, kept: usize) -> usize {
        let room = self.room();
        match kept {
            0 => room,
            // Half of the longest free piece leaves the other half.
            _ if room / 2 >= kept => room / 2,
            _ => 0,
        }
    }

    /// As [`Arena::alloc_for`], in the reserve.
    pub fn alloc_for(&self, len: usize, account: &Account) -> Option<Buf> {
        let mut buf = self.0.alloc(len)?;
        buf.charge(account);
        Some(buf)
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        let Piece { shared, block } = &self.0;
        shared.reserved.set(shared.reserved.get() - self.bytes());
        if block.page < shared.kept_from {
            let of_shared = &shared.reserved_of_shared;
            of_shared.set(of_shared.get() - self.bytes());
        }
    }
}

impl fmt::Debug for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.block.fmt(f)
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.block.fmt(f)
    }
}

/// A piece of an [`Arena`], given back on drop. It stays on its thread.
pub struct Buf {
    shared: Rc<Shared>,
    page: u32,
    order: u8,
    len: u32,
    account: Option<Account>,
    /// The reserve that it is a part of.
    home: Option<Rc<Block>>,
}

impl Buf {
    /// Shortens the buffer to its first `len` bytes; its memory stays reserved. No effect if it is
    /// not longer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(u32::try_from(len).unwrap_or(u32::MAX));
    }

    /// Bytes that the buffer occupies in the arena: `len` rounded up.
    pub const fn occupies(&self) -> usize {
        PAGE << self.order
    }

    /// Lets another account pay for it.
    #[inline]
    pub fn charge(&mut self, account: &Account) {
        let bytes = self.occupies() as isize;
        account.change(bytes);
        if let Some(old) = self.account.replace(account.clone()) {
            old.change(-bytes);
            self.shared.released();
        }
    }

    /// The first byte. What it points to stays valid and in place until the buffer is dropped,
    /// wherever the `Buf` itself is moved. For devices and the kernel; the bytes themselves are to
    /// be had by [`Deref`].
    pub fn start(&self) -> NonNull<u8> {
        // SAFETY: the buddy allocator hands out pages of this mapping only.
        unsafe { self.shared.mapping.start().add(self.offset()) }
    }

    /// Which [part](Arena::part) of the arena the buffer lies in.
    pub(crate) fn part(&self) -> u16 {
        (self.offset() / PART) as u16
    }

    const fn offset(&self) -> usize {
        self.page as usize * PAGE
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the pages belong to this buffer alone until its drop, are mapped, and were
        // initialised (to zero) by the kernel. An operation in flight owns its buffer, so the
        // kernel never writes to one that can be dereferenced.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.len as usize) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.len as usize) }
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        match &self.home {
            Some(block) if block.open.get() => {
                let mask = Block::mask(self.page - block.page, self.order);
                block.used.set(block.used.get() & !mask);
            }
            Some(_) => self.shared.put(self.page, self.order),
            None => self.shared.buddy.borrow_mut().free(self.page, self.order),
        }
        if let Some(account) = &self.account {
            account.change(-(self.occupies() as isize));
        }
        self.shared.released();
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf").field("len", &self.len).field("offset", &self.offset()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_exact_in_length_and_apart() {
        let arena = Arena::new(3 << 20).expect("a small mapping");
        assert_eq!((arena.total_bytes(), arena.free_bytes()), (3 << 20, 3 << 20));
        let mut bufs: Vec<Buf> = Vec::new();
        for (i, len) in [0, 1, 4096, 4097, 100_000, MAX_BUF].into_iter().enumerate() {
            let mut buf = arena.alloc(len).expect("room for all");
            assert_eq!((buf.len(), buf.start().as_ptr() as usize % 4096), (len, 0));
            buf.fill(i as u8);
            bufs.push(buf);
        }
        for (i, buf) in bufs.iter().enumerate() {
            assert!(buf.iter().all(|b| *b == i as u8), "buffer {i} was overwritten");
        }
        drop(bufs);
        assert_eq!(arena.free_bytes(), arena.total_bytes());
    }

    #[test]
    fn an_empty_arena_says_so_and_recovers() {
        let arena = Arena::new(1).expect("a small mapping");
        assert!(arena.alloc(MAX_BUF + 1).is_none());
        let small = arena.alloc(1).expect("the first");
        assert!(arena.alloc(MAX_BUF).is_none(), "no piece is large enough");
        drop(small);
        let all = arena.alloc(MAX_BUF).expect("whole again");
        assert!(arena.alloc(1).is_none());
        drop(all);
        assert!(arena.alloc(1).is_some());
    }

    #[test]
    fn a_slab_has_room_for_small_buffers_and_gives_back_what_is_not_in_use() {
        let arena = Arena::new(1 << 20).expect("a small mapping");
        let slab = arena.slab(64 << 10).expect("room");
        assert!(slab.is_unused());
        assert_eq!((arena.free_bytes(), arena.reserved_bytes()), (960 << 10, 0));
        let mut bufs: Vec<Buf> = (0..8).map(|_| slab.alloc(8192).expect("room")).collect();
        assert!(slab.alloc(1).is_none() && slab.alloc(1 << 20).is_none());
        assert!(bufs.iter().all(|buf| buf.start().as_ptr() as usize % 8192 == 0));
        bufs.swap_remove(3);
        assert!(slab.alloc(4096).is_some() && slab.alloc(8193).is_none());
        assert!(!slab.is_unused());
        drop(slab);
        assert_eq!(arena.free_bytes(), (1 << 20) - 7 * 8192, "the rest is free");
        drop(bufs);
        assert!(arena.alloc(MAX_BUF).is_some(), "all is in one piece again");
    }

    #[test]
    fn an_account_shows_what_its_owner_holds() {
        let arena = Arena::new(1 << 20).expect("a small mapping");
        let account = Account::default();
        assert_eq!([1, 4096, 4097, MAX_BUF].map(Arena::cost), [4096, 4096, 8192, MAX_BUF]);
        let small = arena.alloc_for(1, &account).expect("room");
        let large = arena.alloc_for(5000, &account).expect("room");
        assert_eq!(account.held(), 4096 + 8192);
        assert!(arena.alloc_for(MAX_BUF, &account).is_none());
        drop(small);
        assert_eq!(account.held(), 8192);
        drop(large);
        assert_eq!(account.held(), 0);
    }

    #[test]
    fn a_reserve_has_room_whatever_the_others_hold() {
        let arena = Arena::new(1 << 20).expect("a small mapping");
        let (own, other) = (Account::default(), Account::default());
        let reserve = arena.reserve(256 << 10).expect("room");
        assert_eq!((reserve.bytes(), arena.reserved_bytes()), (256 << 10, 256 << 10));
        // Everything else, in pieces that leave no two pages together.
        let mut others: Vec<Buf> = std::iter::from_fn(|| arena.alloc_for(4096, &other)).collect();
        assert_eq!((others.len(), arena.free_bytes()), (192, 0));
        let mut n = 0;
        others.retain(|_| {
            n += 1;
            n % 2 == 0
        });
        assert!(arena.alloc(8192).is_none());
        let large = reserve.alloc_for(256 << 10, &own).expect("its own");
        assert_eq!((own.held(), reserve.room()), (256 << 10, 0));
        assert!(reserve.alloc_for(1, &own).is_none());
        drop(large);
        let small: Vec<Buf> = (0..4).filter_map(|_| reserve.alloc_for(5000, &own)).collect();
        assert_eq!((own.held(), reserve.room()), (32 << 10, 128 << 10));
        let releases = arena.releases();
        drop(small);
        assert!(arena.releases() > releases && reserve.room() == 256 << 10);
    }

    #[test]
    fn what_is_in_use_of_a_reserve_that_goes_comes_back_with_its_buffers() {
        let arena = Arena::new(1 << 20).expect("a small mapping");
        let account = Account::default();
        let reserve = arena.reserve(100 << 10).expect("room");
        assert_eq!(reserve.bytes(), 128 << 10);
        let mut bufs: Vec<Buf> =
            [4096, 1, 20_000].iter().filter_map(|len| reserve.alloc_for(*len, &account)).collect();
        for (n, buf) in bufs.iter_mut().enumerate() {
            buf.fill(n as u8);
        }
        drop(reserve);
        assert_eq!((arena.reserved_bytes(), arena.free_bytes()), (0, (1 << 20) - (40 << 10)));
        // What has come back is used by others now.
        let mut more: Vec<Buf> = std::iter::from_fn(|| arena.alloc(4096)).collect();
        more.iter_mut().for_each(|buf| buf.fill(0xEE));
        for (n, buf) in bufs.iter().enumerate() {
            assert!(buf.iter().all(|byte| *byte == n as u8), "buffer {n} was overwritten");
        }
        bufs.swap(0, 2);
        drop((bufs, more));
        assert_eq!(arena.free_bytes(), 1 << 20);
        assert!(arena.alloc(MAX_BUF).is_some(), "all of it is one piece again");
    }

    #[test]
    fn what_is_kept_for_reserves_is_there_whatever_is_held() {
        let arena = Arena::with_kept(4 << 20, 1 << 20).expect("a small mapping");
        let account = Account::default();
        assert_eq!((arena.shared_bytes(), arena.kept_bytes()), (3 << 20, 1 << 20));
        let all: Vec<Buf> = std::iter::from_fn(|| arena.alloc_for(4096, &account)).collect();
        assert_eq!((arena.shared_free(), arena.free_bytes()), (0, 1 << 20));
        assert!(arena.reserve(4096).is_none());
        let reserves: Vec<Reserve> =
            std::iter::from_fn(|| arena.reserve_kept(MAX_RESERVE)).collect();
        assert_eq!((reserves.len(), arena.kept_free(), arena.reserved_bytes()), (4, 0, 1 << 20));
        assert_eq!(arena.shared_bytes(), 3 << 20, "nobody has less for it");
        let own = reserves[3].alloc_for(MAX_RESERVE, &account).expect("its own");
        drop((reserves, all));
        assert_eq!((arena.shared_free(), arena.kept_free()), (3 << 20, (1 << 20) - MAX_RESERVE));
        drop(own);
        let larger = (0..3).filter_map(|_| arena.alloc(MAX_BUF)).count();
        assert_eq!((larger, arena.kept_free()), (3, 1 << 20));
    }

    #[test]
    fn a_part_of_an_account_with_an_owner_counts_for_all() {
        let arena = Arena::new(1 << 20).expect("a small mapping");
        let [host, one, other, place] = [(); 4].map(|()| Account::default());
        let early = arena.alloc_for(4096, &one).expect("room");
        one.attach(&host);
        other.attach(&host);
        assert_eq!((host.held(), one.of_owner()), (4096, Some((4096, 3))));
        let part = Account::part(&other, &place);
        let mut buf = arena.alloc_for(8192, &part).expect("room");
        assert_eq!(
            (host.held(), one.held(), other.held(), place.held()),
            (12288, 4096, 8192, 8192)
        );
        part.detach();
        assert_eq!((host.held(), other.held(), place.held()), (4096, 0, 8192));
        buf.charge(&other);
        drop(early);
        assert_eq!((host.held(), other.held(), place.held()), (8192, 8192, 0));
        drop((buf, part, one, other));
        assert_eq!((host.held(), host.references()), (0, 1));
    }

    #[test]
    fn a_part_counts_for_its_owner_until_it_is_detached() {
        let arena = Arena::new(1 << 20).expect("a small mapping");
        let (owner, place) = (Account::default(), Account::default());
        let part = Account::part(&owner, &place);
        let held = || (part.held(), owner.held(), place.held());
        let mut buf = arena.alloc_for(4096, &owner).expect("room");
        assert_eq!(held(), (0, 4096, 0));
        buf.charge(&part);
        assert_eq!(held(), (4096, 4096, 4096));
        part.detach();
        part.detach();
        assert_eq!(held(), (4096, 0, 4096));
        part.attach(&owner);
        part.attach(&owner);
        assert_eq!(held(), (4096, 4096, 4096));
        part.detach();
        buf.charge(&owner);
        assert_eq!(held(), (0, 4096, 0));
        drop(buf);
        assert_eq!(held(), (0, 0, 0));
    }

    #[test]
    fn memory_comes_by_demand_and_goes_when_it_was_not_needed() {
        const TOTAL: usize = 64 << 20;
        let arena = Arena::with_kept(TOTAL, TOTAL / 4).expect("a small mapping");
        assert_eq!((arena.resident_bytes(), arena.total_bytes()), (0, TOTAL));
        let mut bufs: Vec<Buf> = (0..40).filter_map(|_| arena.alloc(MAX_BUF)).collect();
        bufs.iter_mut().for_each(|buf| buf.fill(7));
        assert_eq!(arena.resident_bytes(), 40 << 20);
        let (mut told, stays) = (Vec::new(), bufs.pop().expect("one"));
        drop(bufs);
        arena.shrink(|_| unreachable!("it was needed just now"));
        assert_eq!(arena.resident_bytes(), 40 << 20);
        arena.shrink(|part| {
            told.push(part);
            part != 5
        });
        // The one that is in use, the one that was to be kept, and what stays whatever the demand is.
        assert_eq!(arena.resident_bytes(), RESIDENT_LEAST);
        assert!(told.contains(&5) && !told.contains(&9), "{told:?}");
        assert!(stays.iter().all(|byte| *byte == 7), "what is in use stays as it is");
        // What is there is taken before what is not.
        let again: Vec<Buf> = (0..4).filter_map(|_| arena.alloc(MAX_BUF)).collect();
        assert_eq!(arena.resident_bytes(), RESIDENT_LEAST);
        drop((again, stays));
        assert_eq!((arena.free_bytes(), arena.alloc(1).map(|buf| buf.len())), (TOTAL, Some(1)));
    }

    #[test]
    fn a_part_that_is_for_all_and_for_reserves_goes_only_if_both_are_free() {
        // Three parts and a half; the third one is for all but for its last MiB.
        let arena = Arena::with_kept(14 << 20, 3 << 20).expect("a small mapping");
        let account = Account::default();
        let all: Vec<Buf> = std::iter::from_fn(|| arena.alloc(MAX_BUF)).collect();
        let reserve = arena.reserve_kept(MAX_RESERVE).expect("room");
        let mut own = reserve.alloc_for(MAX_RESERVE, &account).expect("its own");
        own.fill(7);
        drop(all);
        assert_eq!(arena.resident_bytes(), (11 + 1) << 20);
        arena.shrink(|_| true);
        arena.shrink(|part| {
            assert_ne!(part, 2, "a reserve is in it");
            true
        });
        assert_eq!(arena.resident_bytes(), RESIDENT_LEAST);
        assert!(own.iter().all(|byte| *byte == 7));
        drop((own, reserve));
        assert_eq!((arena.free_bytes(), arena.reserved_bytes()), (14 << 20, 0));
    }

    #[test]
    fn what_a_device_has_is_never_given_back() {
        let arena = Arena::new(32 << 20).expect("a small mapping");
        drop((0..32).filter_map(|_| arena.alloc(MAX_BUF)).collect::<Vec<Buf>>());
        arena.span();
        arena.shrink(|_| unreachable!("a device has it"));
        arena.shrink(|_| unreachable!("a device has it"));
        assert_eq!(arena.resident_bytes(), 32 << 20);
    }

    #[test]
    fn a_buffer_outlives_the_arena_handle() {
        let arena = Arena::new(1).expect("a small mapping");
        let mut buf = arena.alloc(10).expect("room");
        drop(arena);
        buf.fill(7);
        buf.truncate(3);
        assert_eq!((&*buf, buf.occupies()), (&[7u8, 7, 7][..], 4096));
    }
}
