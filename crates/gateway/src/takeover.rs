//! The steps of a takeover, each a type that only the step before it can make: no order but the safe one can be written.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use crate::{ClientName, Epoch, LONG_ENOUGH, Owner, Record, Taker};

/// The record as it was found, with all clients that may still write.
#[derive(Debug)]
pub(crate) struct Seen {
    record: Box<Record>,
    /// The owner, and a taker that never got to be one.
    fence: Vec<ClientName>,
}

/// A lock owner that the record does not know: no gateway of the group, as those are in the record before they get a lock. It may
/// be a virtual machine, or another group, and is nobody's to fence.
pub(crate) fn stranger<'l>(record: &Record, locks: &'l [ClientName]) -> Option<&'l ClientName> {
    let owner = record.owner.as_ref().map(|owner| &owner.client);
    let taker = record.taker.as_ref().map(|taker| &taker.client);
    locks.iter().find(|lock| Some(*lock) != owner && Some(*lock) != taker)
}

/// What comes after a look.
#[derive(Debug)]
pub(crate) enum Begun {
    /// There is somebody to fence.
    Listing(Listing),
    /// The owner has gone in good order, and nobody holds a lock.
    Unlocked(Unlocked),
}

impl Seen {
    /// What was seen, without [strangers](stranger). Whoever may hold a lock is to be fenced.
    pub fn new(record: Box<Record>) -> Self {
        let owner = record.owner.iter().map(|owner| owner.client.clone());
        let taker = record.taker.iter().map(|taker| taker.client.clone());
        let fence = owner.chain(taker).collect();
        Self { record, fence }
    }

    pub fn begin(self) -> Begun {
        if self.fence.is_empty() {
            Begun::Unlocked(Unlocked(self))
        } else {
            Begun::Listing(Listing { seen: self, at: 0 })
        }
    }
}

/// Its clients are being blocklisted.
#[derive(Debug)]
pub(crate) struct Listing {
    seen: Seen,
    at: usize,
}

impl Listing {
    /// Whom to blocklist next.
    pub fn client(&self) -> &ClientName {
        &self.seen.fence[self.at]
    }

    /// That one's entry lasts for so long.
    pub fn listed(self, lasts: Duration) -> Entry {
        if lasts < LONG_ENOUGH {
            return Entry::Short(self.client().clone());
        }
        let at = self.at + 1;
        if at == self.seen.fence.len() {
            Entry::Last(Listed(self.seen))
        } else {
            Entry::More(Self { seen: self.seen, at })
        }
    }
}

/// What comes after a look at an entry of the blocklist.
#[derive(Debug)]
pub(crate) enum Entry {
    /// All entries last.
    Last(Listed),
    /// This one does, and there is another client.
    More(Listing),
    /// That client's ends too soon: it is no fence.
    Short(ClientName),
}

/// All are on the list for long enough, in a map that not everybody knows.
#[derive(Debug)]
pub(crate) struct Listed(Seen);

impl Listed {
    /// This client has the map: whatever OSD it talks to from here on has it too, before it carries anything out.
    pub fn map_known(self) -> Fenced {
        Fenced { seen: self.0, at: 0 }
    }
}

/// Nothing that the former owner sends takes effect any more where it could be seen.
#[derive(Debug)]
pub(crate) struct Fenced {
    seen: Seen,
    at: usize,
}

impl Fenced {
    /// Whose locks to break next: a client that is fenced.
    pub fn client(&self) -> &ClientName {
        &self.seen.fence[self.at]
    }

    /// Those of that one are broken.
    pub fn broken(self) -> Result<Unlocked, Self> {
        let at = self.at + 1;
        if at == self.seen.fence.len() {
            Ok(Unlocked(self.seen))
        } else {
            Err(Self { seen: self.seen, at })
        }
    }
}

/// The locks are free, as far as is known.
#[derive(Debug)]
pub(crate) struct Unlocked(Seen);

impl Unlocked {
    /// What is to be written into the record before this client gets a lock, and what that must be as yet.
    pub fn naming(self, me: Taker) -> Naming {
        let expect = (self.0.record.epoch, self.0.record.revision);
        let mut record = self.0.record;
        record.revision += 1;
        record.taker = Some(me);
        Naming { expect, record }
    }
}

/// The record is to name this gateway as the one that takes the group over.
#[derive(Debug)]
pub(crate) struct Naming {
    expect: (Epoch, u64),
    record: Box<Record>,
}

impl Naming {
    /// What the record must be as yet, and what it is to be.
    pub fn swap(&self) -> ((Epoch, u64), Box<Record>) {
        (self.expect, self.record.clone())
    }

    /// It was written: whoever comes next knows whom to fence.
    pub fn named(self) -> Named {
        Named(self.record)
    }
}

/// The record names this gateway.
#[derive(Debug)]
pub(crate) struct Named(Box<Record>);

impl Named {
    /// This client has the lock of each image.
    pub fn acquired(self) -> Locked {
        Locked(self.0)
    }
}

/// The locks are this client's.
#[derive(Debug)]
pub(crate) struct Locked(Box<Record>);

impl Locked {
    /// The headers of the images were read again.
    pub fn refreshed(self) -> Fresh {
        Fresh(self.0)
    }
}

/// All that is left is the record.
#[derive(Debug)]
pub(crate) struct Fresh(Box<Record>);

impl Fresh {
    /// The record as it was read behind the fence, so with all that its owner has ever written, and what becomes of it.
    /// If it has another epoch, owner or taker now, somebody was quicker, and that record is given back.
    pub fn candidate(self, now: Box<Record>, me: Owner) -> Result<Candidate, Box<Record>> {
        let of = |record: &Record| (record.epoch, record.owner.clone(), record.taker.clone());
        if of(&now) != of(&self.0) {
            return Err(now);
        }
        let expect = (now.epoch, now.revision);
        let mut record = now;
        record.epoch = record.epoch.next();
        record.revision += 1;
        record.owner = Some(me);
        (record.heir, record.taker) = (None, None);
        Ok(Candidate { expect, record })
    }
}

/// A record that would make this gateway the owner.
#[derive(Debug)]
pub struct Candidate {
    expect: (Epoch, u64),
    record: Box<Record>,
}

impl Candidate {
    /// What the record must be as yet.
    pub const fn expect(&self) -> (Epoch, u64) {
        self.expect
    }

    /// What it would be.
    pub const fn record(&self) -> &Record {
        &self.record
    }

    /// It was written.
    pub(crate) fn swapped(self) -> Box<Record> {
        self.record
    }
}
