//! What a ring has registered with the kernel: files, and parts of the arena.

use std::os::fd::RawFd;

use io_uring::Submitter;

use super::queue::Handle;
use super::setup;
use crate::Arena;

/// The table of registered files.
pub(super) struct Places {
    free: Vec<u32>,
}

impl Places {
    /// A table of so many places, which is registered.
    pub(super) fn new(count: u32) -> Self {
        Self { free: (0..count).rev().collect() }
    }

    /// Puts a descriptor into the table, if there is a place.
    pub(super) fn register(&mut self, ring: &Submitter<'_>, fd: RawFd) -> Handle {
        let Some(place) = self.free.pop() else { return Handle::Fd(fd) };
        match ring.register_files_update(place, &[fd]) {
            Ok(1) => Handle::Fixed(place),
            _ => {
                self.free.push(place);
                Handle::Fd(fd)
            }
        }
    }

    /// Takes a descriptor out of the table. If the kernel refuses, the place stays lost and the
    /// file open, which is bad but safe: nothing refers to it any more.
    pub(super) fn unregister(&mut self, ring: &Submitter<'_>, handle: Handle) {
        if let Handle::Fixed(place) = handle {
            if ring.register_files_update(place, &[-1]).is_ok() {
                self.free.push(place);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }
}

/// What is known of a part of the arena.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Nothing of it was on its way to or from a file yet.
    Unused,
    Registered,
    /// The kernel has refused it: there may be no more locked memory.
    Refused,
}

/// Which parts of the arena are registered; one that could not be is not tried again.
pub(super) struct Parts(Vec<Part>);

impl Parts {
    /// Of these the first one is registered.
    pub(super) fn new(count: usize) -> Self {
        let mut parts = vec![Part::Unused; count];
        parts[0] = Part::Registered;
        Self(parts)
    }

    /// There is no table for them.
    pub(super) const fn none() -> Self {
        Self(Vec::new())
    }

    /// False if there is no table.
    pub(super) fn are_there(&self) -> bool {
        !self.0.is_empty()
    }

    /// True if the part of the arena is registered, which it is from its first use on.
    #[inline]
    pub(super) fn has(&mut self, ring: &Submitter<'_>, arena: &Arena, part: u16) -> bool {
        match self.0.get(usize::from(part)) {
            Some(Part::Registered) => true,
            Some(Part::Unused) => self.register(ring, arena, part.into()),
            Some(Part::Refused) | None => false,
        }
    }

    #[cold]
    fn register(&mut self, ring: &Submitter<'_>, arena: &Arena, part: usize) -> bool {
        let registered = setup::register_part(ring, arena, part).is_ok();
        self.0[part] = if registered { Part::Registered } else { Part::Refused };
        registered
    }

    /// The memory of a part, of which nothing is in use, goes. False if it has to stay.
    pub(super) fn leave(&mut self, ring: &Submitter<'_>, part: usize) -> bool {
        if self.0.get(part) == Some(&Part::Registered) {
            if setup::unregister_part(ring, part).is_err() {
                return false;
            }
            self.0[part] = Part::Unused;
        }
        true
    }
}
