//! Where bytes are received that no protocol has a buffer for yet: headers, and the small data between them.
//!
//! Each connection has a little of its own, which is all that an idle one costs. One that sends more than that holds
//! gets a large one of its shard for the next receive: a command of 4 KiB of data takes 4,144 bytes of it, and with
//! few commands in each receive there are few answers in each send.

use lunet_ring::RxBufs;

/// Bytes of a connection's own: a write of 4 KiB, or 96 command headers.
pub(crate) const OWN: usize = 4 << 10 | 512;

/// Bytes of a large one: 31 writes of 4 KiB.
const LARGE: usize = 128 << 10;

/// Large ones of a shard at most. Who finds none left receives into its own.
const MOST: usize = 32;

/// Where the rest of data has a buffer of its own that is longer than this, it and what follows is not received into a
/// large one: the data that comes next has one too, and would be copied.
const SMALL: usize = 8 << 10;

/// The scratch of one connection.
#[derive(Debug)]
pub(crate) struct Scratch {
    own: Box<[u8]>,
    /// A receive has it, or one of the shard's.
    lent: bool,
    /// The last receive brought more than the own one holds.
    more: bool,
}

impl Scratch {
    /// Over RDMA each receive has its own buffer, and this none.
    pub fn new(bytes: usize) -> Self {
        Self { own: vec![0; bytes].into_boxed_slice(), lent: false, more: false }
    }

    pub const fn is_lent(&self) -> bool {
        self.lent
    }

    /// For a receive that first fills `ahead` bytes elsewhere.
    pub fn lend(&mut self, ahead: usize, large: &mut Large) -> Box<[u8]> {
        self.lent = true;
        let wants = self.more && ahead <= SMALL;
        let one = if wants { large.lend() } else { None };
        one.unwrap_or_else(|| std::mem::take(&mut self.own))
    }

    /// A receive has ended, and brought so many bytes in it. Gives back what is not this connection's own.
    pub fn ended(&mut self, scratch: Box<[u8]>, bytes: usize) -> Option<Box<[u8]>> {
        (self.lent, self.more) = (false, bytes >= OWN);
        if scratch.len() > OWN {
            return Some(scratch);
        }
        self.own = scratch;
        None
    }
}

/// The large ones of a shard.
#[derive(Debug, Default)]
pub(crate) struct Large {
    free: Vec<Box<[u8]>>,
    made: usize,
}

impl Large {
    fn lend(&mut self) -> Option<Box<[u8]>> {
        if let Some(one) = self.free.pop() {
            return Some(one);
        }
        if self.made == MOST {
            return None;
        }
        self.made += 1;
        Some(vec![0; LARGE].into_boxed_slice())
    }

    /// One that no connection has any more.
    pub fn give_back(&mut self, one: Box<[u8]>) {
        self.free.push(one);
    }

    /// What a receive had, of a connection that is gone.
    pub fn take_back(&mut self, bufs: RxBufs) {
        if bufs.scratch.len() > OWN {
            self.give_back(bufs.scratch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sends_much_in_small_pieces_gets_a_large_one() {
        let (mut large, mut scratch) = (Large::default(), Scratch::new(OWN));
        let first = scratch.lend(0, &mut large);
        assert_eq!((first.len(), scratch.is_lent()), (OWN, true));
        assert!(scratch.ended(first, OWN).is_none() && !scratch.is_lent());
        // What comes next goes to a buffer of its own.
        let own = scratch.lend(SMALL + 1, &mut large);
        assert_eq!(own.len(), OWN);
        assert!(scratch.ended(own, OWN).is_none());
        let second = scratch.lend(SMALL, &mut large);
        assert_eq!(second.len(), LARGE);
        let back = scratch.ended(second, OWN - 1).expect("it is the shard's");
        large.give_back(back);
        assert_eq!(scratch.lend(0, &mut large).len(), OWN, "there was little");
    }

    #[test]
    fn when_all_large_ones_are_lent_the_own_one_serves() {
        let mut large = Large::default();
        let mut all: Vec<_> = (0..=MOST).map(|_| Scratch::new(OWN)).collect();
        for scratch in &mut all {
            let own = scratch.lend(0, &mut large);
            scratch.ended(own, OWN);
        }
        let mut lent: Vec<_> = all.iter_mut().map(|one| one.lend(0, &mut large)).collect();
        let last = lent.pop().expect("there are some");
        assert!(lent.iter().all(|one| one.len() == LARGE));
        assert_eq!(last.len(), OWN);
        // That of a connection which is gone is not lost.
        let scratch = lent.pop().expect("there are some");
        large.take_back(RxBufs { payload: None, scratch_limit: LARGE, scratch });
        all[MOST].ended(last, OWN);
        assert_eq!(all[MOST].lend(0, &mut large).len(), LARGE);
    }
}
