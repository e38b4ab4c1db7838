//! The event loop's buffers: one mapping, cut into page-aligned pieces.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;

use crate::buddy::{Buddy, MAX_ORDER};
use crate::mapping::{Mapping, PAGE};

/// The largest buffer: 1 MiB.
pub const MAX_BUF: usize = PAGE << MAX_ORDER;

/// io_uring registers buffers of at most 1 GiB each, so a large arena is registered in parts. A
/// [`Buf`] is aligned to its size and never crosses a part.
pub(crate) const PART: usize = 1 << 30;

#[derive(Debug)]
struct Shared {
    mapping: Mapping,
    buddy: RefCell<Buddy>,
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
        let blocks = bytes.div_ceil(MAX_BUF).max(1);
        if blocks >= (u32::MAX >> MAX_ORDER) as usize {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let mapping = Mapping::new(blocks * MAX_BUF)?;
        Ok(Self(Rc::new(Shared { mapping, buddy: RefCell::new(Buddy::new(blocks)) })))
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
        Some(Buf { shared: Rc::clone(&self.0), page, order, len: len as u32, account: None })
    }

    /// Like [`alloc`](Self::alloc), and the account is charged with what the buffer
    /// [occupies](Buf::occupies) until it is dropped, wherever it has gone by then.
    pub fn alloc_for(&self, len: usize, account: &Account) -> Option<Buf> {
        let mut buf = self.alloc(len)?;
        account.0.set(account.0.get() + buf.occupies());
        buf.account = Some(account.clone());
        Some(buf)
    }

    /// Bytes that a buffer of `len` bytes would [occupy](Buf::occupies).
    pub fn cost(len: usize) -> usize {
        PAGE << order_of(len)
    }

    /// Bytes that are free, perhaps in pieces.
    pub fn free_bytes(&self) -> usize {
        self.0.buddy.borrow().free_pages() * PAGE
    }

    /// The size of the arena in bytes.
    pub fn total_bytes(&self) -> usize {
        self.0.mapping.len()
    }

    /// All of its memory, to register it with a device: the first byte, and the length in bytes. It
    /// stays mapped while a clone of the arena or one of its buffers lives.
    pub fn span(&self) -> (NonNull<u8>, usize) {
        (self.0.mapping.start(), self.0.mapping.len())
    }

    /// The parts to register with io_uring, in order: address and length.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (NonNull<u8>, usize)> + '_ {
        let total = self.total_bytes();
        (0..total).step_by(PART).map(move |at| {
            // SAFETY: `at` < `total`, the length of the mapping.
            let start = unsafe { self.0.mapping.start().add(at) };
            (start, PART.min(total - at))
        })
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
pub struct Account(Rc<Cell<usize>>);

impl Account {
    /// Bytes held now.
    pub fn held(&self) -> usize {
        self.0.get()
    }
}

/// A piece of an [`Arena`], given back on drop. It stays on its thread.
pub struct Buf {
    shared: Rc<Shared>,
    page: u32,
    order: u8,
    len: u32,
    account: Option<Account>,
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

    /// The first byte. What it points to stays valid and in place until the buffer is dropped,
    /// wherever the `Buf` itself is moved. For devices and the kernel; the bytes themselves are to
    /// be had by [`Deref`].
    pub fn start(&self) -> NonNull<u8> {
        // SAFETY: the buddy allocator hands out pages of this mapping only.
        unsafe { self.shared.mapping.start().add(self.offset()) }
    }

    /// Which part of the arena (see [`Arena::parts`]) the buffer lies in.
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
        self.shared.buddy.borrow_mut().free(self.page, self.order);
        if let Some(account) = &self.account {
            account.0.set(account.0.get() - self.occupies());
        }
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
    fn a_buffer_outlives_the_arena_handle() {
        let arena = Arena::new(1).expect("a small mapping");
        let mut buf = arena.alloc(10).expect("room");
        drop(arena);
        buf.fill(7);
        buf.truncate(3);
        assert_eq!((&*buf, buf.occupies()), (&[7u8, 7, 7][..], 4096));
    }
}
