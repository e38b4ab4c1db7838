//! The memory of a connection that its target may reach.

use std::rc::Rc;
use std::sync::Arc;

use lunet_ring::{Buf, Region};
use lunet_verbs::{Adapter, Exposed, Remote, RemoteAccess};

use super::{Error, Needs};
use crate::front::Data;

/// What is given out is a multiple of this.
const GRAIN: u64 = 4096;

/// For data of the connection's own commands, at the beginning.
pub(crate) const OWN: u64 = lunet_nvme::host::OWN_LEN as u64;

/// A region that was registered with the right to read and write it: [`OWN`] bytes for the connection,
/// a copy of the bytes that unverified writes are cut from, and room for the data of commands.
pub(crate) struct Memory {
    exposed: Exposed,
    space: Space,
    /// What commands have, by their tokens.
    held: Vec<Option<(u64, u64)>>,
    /// The bytes that are in the copy.
    pattern: Option<Rc<[u8]>>,
    /// What one command may need.
    widest: u64,
}

impl Memory {
    /// Registers memory for so much.
    pub fn new(adapter: &Adapter, needs: &Needs) -> Result<Self, Error> {
        let start = OWN + needs.pattern().next_multiple_of(GRAIN);
        let room = needs.room().next_multiple_of(GRAIN);
        let region = Arc::new(Region::new(start + room).map_err(Error::Memory)?);
        let exposed = adapter.expose(&region, RemoteAccess { read: true, write: true })?;
        let depth = needs.depth as usize;
        Ok(Self {
            exposed,
            space: Space::new(start, room, depth + 8),
            held: Vec::with_capacity(depth),
            pattern: None,
            widest: needs.widest.into(),
        })
    }

    /// The memory itself.
    pub fn region(&self) -> &Arc<Region> {
        self.exposed.region()
    }

    /// Where the connection's own memory is.
    pub fn own(&self) -> Remote {
        self.remote(0, OWN)
    }

    /// True if there is room for any command.
    pub fn has_room(&self) -> bool {
        self.space.has(self.widest)
    }

    fn remote(&self, at: u64, len: u64) -> Remote {
        // What is asked for was given out, and lies in the region.
        self.exposed.remote(at..at + len).unwrap_or(Remote { address: 0, key: 0 })
    }

    /// Puts the data of a command where the target may reach it. `None`: it has none, or there is no
    /// room.
    pub fn open(&mut self, token: u32, data: &Data) -> Option<Remote> {
        let len = match data {
            Data::None => return None,
            Data::Read(buf) => buf.len() as u64,
            Data::Discard(len) => u64::from(*len),
            Data::Write(source) => {
                let len = source.len as u64;
                if source.constant && self.keeps(&source.bytes) {
                    return Some(self.remote(OWN + source.start as u64, len));
                }
                len
            }
        };
        let at = self.space.take(len)?;
        if let Data::Write(source) = data {
            self.region().write(at, source.as_ref());
        }
        let token = token as usize;
        if self.held.len() <= token {
            self.held.resize(token + 1, None);
        }
        self.held[token] = Some((at, len));
        Some(self.remote(at, len))
    }

    /// True if these bytes, which nobody changes any more, are in the region. They are copied once.
    fn keeps(&mut self, bytes: &Rc<[u8]>) -> bool {
        if let Some(pattern) = &self.pattern {
            return Rc::ptr_eq(pattern, bytes);
        }
        let fits = OWN + bytes.len() as u64 <= self.space.start;
        if fits {
            self.region().write(OWN, bytes);
            self.pattern = Some(Rc::clone(bytes));
        }
        fits
    }

    /// A command has ended: its memory is free, and what it read is in its buffer.
    pub fn close(&mut self, token: u32, into: Option<&mut Buf>) {
        let Some((at, len)) = self.held.get_mut(token as usize).and_then(Option::take) else {
            return;
        };
        if let Some(buf) = into {
            self.region().read(at, &mut buf[..len as usize]);
        }
        self.space.give_back(at, len);
    }

    /// Where the data of the only question of a connection is, which has so many bytes.
    pub fn question(&self, len: usize) -> Result<Remote, Error> {
        match len as u64 <= self.space.len {
            true => Ok(self.remote(self.space.start, len as u64)),
            false => Err(Error::TooLong(len)),
        }
    }

    /// Copies the answer to a question.
    pub fn answer(&self, into: &mut [u8]) {
        self.region().read(self.space.start, into);
    }
}

/// Gives out parts of a range, the first that is long enough.
struct Space {
    start: u64,
    len: u64,
    /// What is free, in order: where it begins and how long it is.
    free: Vec<(u64, u64)>,
}

impl Space {
    fn new(start: u64, len: u64, parts: usize) -> Self {
        let mut free = Vec::with_capacity(parts);
        free.push((start, len));
        Self { start, len, free }
    }

    fn has(&self, len: u64) -> bool {
        self.free.iter().any(|&(_, free)| free >= len)
    }

    fn take(&mut self, len: u64) -> Option<u64> {
        let len = len.next_multiple_of(GRAIN);
        let at = self.free.iter().position(|&(_, free)| free >= len)?;
        let part = &mut self.free[at];
        let start = part.0;
        *part = (part.0 + len, part.1 - len);
        if part.1 == 0 {
            self.free.remove(at);
        }
        Some(start)
    }

    fn give_back(&mut self, start: u64, len: u64) {
        let len = len.next_multiple_of(GRAIN);
        let at = self.free.partition_point(|&(free, _)| free < start);
        let joins_next = self.free.get(at).is_some_and(|&(free, _)| start + len == free);
        let joins_last = at > 0 && self.free[at - 1].0 + self.free[at - 1].1 == start;
        match (joins_last, joins_next) {
            (true, true) => {
                self.free[at - 1].1 += len + self.free[at].1;
                self.free.remove(at);
            }
            (true, false) => self.free[at - 1].1 += len,
            (false, true) => self.free[at] = (start, len + self.free[at].1),
            (false, false) => self.free.insert(at, (start, len)),
        }
    }
}

#[cfg(test)]
mod tests {
    use lunet_block::Random;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_do_not_overlap_and_come_back(seed: u64) {
            let mut random = Random::new(seed);
            let mut space = Space::new(8192, 64 * GRAIN, 4);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for _ in 0..200 {
                if random.chance(60) {
                    let len = 1 + random.below(5 * GRAIN);
                    let Some(start) = space.take(len) else {
                        prop_assert!(!space.has(len.next_multiple_of(GRAIN)));
                        continue;
                    };
                    let end = start + len;
                    prop_assert!(start >= 8192 && end <= 8192 + 64 * GRAIN && start % GRAIN == 0);
                    prop_assert!(held.iter().all(|&(at, len)| end <= at || at + len <= start));
                    held.push((start, len));
                } else if !held.is_empty() {
                    let (start, len) = held.swap_remove(random.below(held.len() as u64) as usize);
                    space.give_back(start, len);
                }
            }
            for (start, len) in held {
                space.give_back(start, len);
            }
            prop_assert_eq!(space.free, [(8192, 64 * GRAIN)]);
        }
    }
}
