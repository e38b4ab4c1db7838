//! What a read may return.
//!
//! Every write puts a value of its own into each sector. A sector's history says when each value was sent, when it was
//! answered, and when it was made stable. A value may be read as long as no other that came wholly after it is known to have
//! taken effect. After a power loss it may be any value that no stable one came wholly after; what the first read returns
//! it keeps. What a copy has put somewhere is not known before it is read: any of what its source may have had
//! (see [`copies`](crate::copies)).

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

/// A logical block, in bytes.
pub const SECTOR: usize = 512;

/// A read that takes longer is an error by itself.
const LONGEST_READ: Duration = Duration::from_secs(400);

/// Names what a write has put into a sector; 0 is zeroes.
pub type Value = u64;

/// What a sector contains: a value, as it looks in one sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    value: Value,
    lba: u64,
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            0 => write!(f, "zeroes"),
            value => write!(f, "value {value} of LBA {}", self.lba),
        }
    }
}

impl Content {
    /// Zeroes, wherever they are.
    pub const ZEROES: Self = Self { value: 0, lba: 0 };

    /// A value that a write has put into this sector.
    pub const fn new(lba: u64, value: Value) -> Self {
        Self { value, lba }
    }

    /// A value that looks alike in all sectors: that of a WRITE SAME.
    pub const fn everywhere(value: Value) -> Self {
        Self { value, lba: u64::MAX }
    }

    /// Writes it into a sector.
    pub fn fill(self, sector: &mut [u8]) {
        for (at, word) in sector.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&self.word(at).to_le_bytes());
        }
    }

    fn word(self, at: usize) -> u64 {
        match (self.value, at) {
            (0, _) => 0,
            (value, 0) => value,
            (_, 1) => self.lba,
            (value, _) => lunet_block::mix(value ^ (self.lba << 32) ^ (at as u64) << 56),
        }
    }

    /// That of a sector; `None` if it is not whole.
    pub fn of(sector: &[u8]) -> Option<Self> {
        let mut words = sector
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        let value = words.next()?;
        let found = match value {
            0 => Self::ZEROES,
            _ => Self { value, lba: words.clone().next()? },
        };
        (1..).zip(words).all(|(at, word)| word == found.word(at)).then_some(found)
    }
}

/// What a write puts into a sector.
#[derive(Clone, Debug)]
enum Puts {
    /// This.
    One(Content),
    /// One of these: it was copied.
    OneOf(Vec<Content>),
}

impl Puts {
    fn may_be(&self, content: Content) -> bool {
        match self {
            Self::One(one) => *one == content,
            Self::OneOf(all) => all.contains(&content),
        }
    }
}

#[derive(Clone, Debug)]
struct Write {
    /// Which write it was.
    name: Value,
    puts: Puts,
    begun: Duration,
    /// It can take effect no more after this.
    ended: Option<Duration>,
    /// It is known to have taken effect by then.
    effective: Option<Duration>,
    /// It was answered GOOD.
    answered: Option<Duration>,
    stable: bool,
    /// One of several that a power loss may have left.
    left: bool,
}

/// What is known of a sector.
#[derive(Clone, Debug)]
struct History(Vec<Write>);

impl Default for History {
    fn default() -> Self {
        let zero = Some(Duration::ZERO);
        Self(vec![Write {
            name: 0,
            puts: Puts::One(Content::ZEROES),
            begun: Duration::ZERO,
            ended: zero,
            effective: zero,
            answered: zero,
            stable: true,
            left: false,
        }])
    }
}

impl History {
    /// Whether another value came wholly after this one, and took effect before `at`.
    fn is_over(&self, write: &Write, at: Duration) -> bool {
        let Some(ended) = write.ended else { return false };
        self.0.iter().any(|other| {
            other.begun > ended && other.effective.is_some_and(|effective| effective < at)
        })
    }

    /// Whether a stable value came wholly after this one.
    fn is_over_for_good(&self, write: &Write) -> bool {
        let Some(ended) = write.ended else { return false };
        self.0.iter().any(|other| other.begun > ended && other.stable)
    }

    /// Forgets what nothing can bring back, and no read that is under way may return.
    fn prune(&mut self, now: Duration) {
        if self.0.len() > 8 {
            let (all, begun) = (self.clone(), now.saturating_sub(LONGEST_READ));
            self.0.retain(|write| !all.is_over_for_good(write) || !all.is_over(write, begun));
        }
    }
}

/// A volume as its hosts know it.
#[derive(Clone, Debug)]
pub struct Model {
    sectors: Vec<History>,
    values: Value,
    /// It has no write cache: what is answered is stable.
    through: bool,
    /// For each value that a successful COMPARE AND WRITE has found, by sector: what it put in its place.
    replaced: HashMap<(u64, Value), Value>,
}

/// What is wrong with what was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    lba: u64,
    found: Option<Content>,
    history: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.found {
            Some(Content { value, lba }) if value == 0 || lba == self.lba => {
                write!(f, "LBA {} has value {value}", self.lba)?;
            }
            Some(Content { value, lba: u64::MAX }) => {
                write!(f, "LBA {} has value {value} of a WRITE SAME", self.lba)?;
            }
            Some(Content { value, lba }) => {
                write!(f, "LBA {} has value {value} of LBA {lba}", self.lba)?;
            }
            None => write!(f, "LBA {} has nothing that was ever written there", self.lba)?,
        }
        write!(f, "; its history: {}", self.history)
    }
}

impl Model {
    /// An empty volume of so many sectors. Volumes with other numbers have other values.
    pub fn new(sectors: u64, number: u64) -> Self {
        let sectors = vec![History::default(); sectors as usize];
        Self { sectors, values: number * 1_000_000, through: false, replaced: HashMap::new() }
    }

    /// From now on its write cache is off, or on.
    pub fn set_through(&mut self, through: bool) {
        self.through = through;
    }

    /// Sectors.
    pub fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// A write is sent: its name, which is its value too.
    pub fn begin(&mut self, lba: u64, sectors: u64, now: Duration) -> Value {
        let name = self.name();
        self.begin_as(name, (lba, sectors), now, |lba| Puts::One(Content::new(lba, name)));
        name
    }

    /// Zeroes are written to some ranges, or blocks unmapped: the name of that.
    pub fn begin_zeroes(&mut self, ranges: &[(u64, u64)], now: Duration) -> Value {
        let name = self.name();
        for range in ranges {
            self.begin_as(name, *range, now, |_| Puts::One(Content::ZEROES));
        }
        name
    }

    /// The same block is written to all sectors of a range: its name, which is its value too.
    pub fn begin_same(&mut self, lba: u64, sectors: u64, now: Duration) -> Value {
        let name = self.name();
        self.begin_as(name, (lba, sectors), now, |_| Puts::One(Content::everywhere(name)));
        name
    }

    /// A copy to this range is sent: its name. What it may put there is [said](Self::may_have_copied) later.
    pub fn begin_copy(&mut self, lba: u64, sectors: u64, now: Duration) -> Value {
        let name = self.name();
        self.begin_as(name, (lba, sectors), now, |_| Puts::OneOf(Vec::new()));
        name
    }

    fn name(&mut self) -> Value {
        self.values += 1;
        self.values
    }

    fn begin_as(
        &mut self,
        name: Value,
        (lba, sectors): (u64, u64),
        now: Duration,
        puts: impl Fn(u64) -> Puts,
    ) {
        for (lba, history) in (lba..).zip(self.range(lba, sectors)) {
            history.prune(now);
            history.0.push(Write {
                name,
                puts: puts(lba),
                begun: now,
                ended: None,
                effective: None,
                answered: None,
                stable: false,
                left: false,
            });
        }
    }

    /// Everything that a sector may have had from a moment on.
    pub fn since(&self, lba: u64, begun: Duration) -> Vec<Content> {
        let history = &self.sectors[lba as usize];
        let may = history.0.iter().filter(|write| !history.is_over(write, begun));
        may.flat_map(|write| match &write.puts {
            Puts::One(one) => vec![*one],
            Puts::OneOf(all) => all.clone(),
        })
        .collect()
    }

    /// A copy may have put these into a sector too.
    pub fn may_have_copied(&mut self, name: Value, lba: u64, contents: &[Content]) {
        for write in self.sectors[lba as usize].0.iter_mut().filter(|write| write.name == name) {
            if let Puts::OneOf(all) = &mut write.puts {
                contents.iter().for_each(|content| {
                    if !all.contains(content) {
                        all.push(*content);
                    }
                });
            }
        }
    }

    /// What the sector has, as far as is known, other than zeroes.
    pub fn present(&self, lba: u64) -> Option<Content> {
        let all = self.sectors[lba as usize].0.iter().rev();
        all.filter(|write| write.effective.is_some()).find_map(|write| match write.puts {
            Puts::One(one) if one != Content::ZEROES => Some(one),
            _ => None,
        })
    }

    /// True if the sector can have had nothing else from a moment on.
    pub fn surely_has(&self, lba: u64, content: Content, begun: Duration) -> bool {
        self.since(lba, begun).iter().all(|one| *one == content)
    }

    /// A COMPARE AND WRITE has found one value and put another in its place. (What WRITE SAME and copies write may be
    /// there more than once.)
    ///
    /// # Errors
    /// Another one has found the same value before.
    pub fn replaced(&mut self, lba: u64, old: Content, new: Value) -> Result<(), String> {
        let Content { value: old, lba: of } = old;
        if of != lba {
            return Ok(());
        }
        match self.replaced.insert((lba, old), new) {
            None => Ok(()),
            Some(other) => Err(format!(
                "LBA {lba}: both {other} and {new} have been written in place of {old} by COMPARE AND WRITE"
            )),
        }
    }

    fn range(&mut self, lba: u64, sectors: u64) -> &mut [History] {
        &mut self.sectors[lba as usize..(lba + sectors) as usize]
    }

    fn each(&mut self, name: Value, mut change: impl FnMut(&mut Write)) {
        let all = self.sectors.iter_mut().flat_map(|history| &mut history.0);
        all.filter(|write| write.name == name).for_each(&mut change);
    }

    /// A write was answered GOOD; `stable` with FUA, and always without a write cache.
    pub fn good(&mut self, name: Value, stable: bool, now: Duration) {
        let stable = stable || self.through;
        self.each(name, |write| {
            write.ended = Some(write.ended.map_or(now, |before| before.min(now)));
            write.effective = Some(write.effective.map_or(now, |before| before.min(now)));
            write.answered = Some(now);
            write.stable |= stable;
        });
    }

    /// A write can take effect no more, and may have.
    pub fn over(&mut self, name: Value, now: Duration) {
        self.each(name, |write| {
            write.ended.get_or_insert(now);
        });
    }

    /// A write that had come to its end may take effect again.
    pub fn reopened(&mut self, name: Value) {
        self.each(name, |write| {
            if write.answered.is_none() {
                write.ended = None;
            }
        });
    }

    /// A flush that was sent at `begun` was answered GOOD.
    pub fn flushed(&mut self, begun: Duration) {
        for write in self.sectors.iter_mut().flat_map(|history| &mut history.0) {
            write.stable |= write.answered.is_some_and(|answered| answered < begun);
        }
    }

    /// A write was refused without any effect.
    pub fn undone(&mut self, name: Value) {
        self.sectors.iter_mut().for_each(|history| history.0.retain(|write| write.name != name));
    }

    /// Everything is gone, and the volume zeroes again: it was in the memory of a process that has ended.
    pub fn emptied(&mut self) {
        self.sectors.fill(History::default());
        self.replaced.clear();
    }

    /// A failed write-back was told to a process that may have forgotten it when it was killed: what is there, and was not stable,
    /// is made so by no flush.
    pub fn failed_untold(&mut self) {
        let all = self.sectors.iter_mut().flat_map(|history| &mut history.0);
        all.filter(|write| !write.stable).for_each(|write| write.answered = None);
    }

    /// The server was killed: what it had not done it does no more.
    pub fn killed(&mut self, now: Duration) {
        for write in self.sectors.iter_mut().flat_map(|history| &mut history.0) {
            write.ended.get_or_insert(now);
        }
    }

    /// The power was lost: what was not stable may be gone.
    pub fn power_lost(&mut self, now: Duration) {
        // What was put in the place of a value may be gone, and the value back.
        self.replaced.clear();
        for history in &mut self.sectors {
            let all = history.clone();
            history.0.retain(|write| !all.is_over_for_good(write));
            let alone = history.0.len() == 1;
            for write in &mut history.0 {
                (write.begun, write.ended) = (now, Some(now));
                write.effective = alone.then_some(now);
                write.answered = write.answered.map(|_| now);
                // Whatever is there now was found on the disk.
                write.stable = true;
                write.left = !alone;
            }
        }
    }

    /// A read that was sent at `begun` has returned this: `None` if it may.
    ///
    /// # Errors
    /// What it may not return.
    pub fn read(
        &mut self,
        lba: u64,
        bytes: &[u8],
        begun: Duration,
        now: Duration,
    ) -> Result<(), Wrong> {
        for (lba, sector) in (lba..).zip(bytes.chunks_exact(SECTOR)) {
            let history = &mut self.sectors[lba as usize];
            let found = Content::of(sector);
            let may = |write: &&Write| {
                found.is_some_and(|found| write.puts.may_be(found))
                    && !history.is_over(write, begun)
            };
            let may: Vec<Write> = history.0.iter().filter(may).cloned().collect();
            let (Some(known), Some(content)) = (may.first(), found) else {
                let history = format!("{history:?}");
                return Err(Wrong { lba, found, history });
            };
            if may.iter().all(|write| write.left) {
                history.0.retain(|write| !write.left || write.puts.may_be(content));
            }
            if may.len() > 1 {
                // Zeroes of one write or of another.
                continue;
            }
            for write in history.0.iter_mut().filter(|write| write.name == known.name) {
                write.left = false;
                write.puts = Puts::One(content);
                write.effective = Some(write.effective.map_or(now, |before| before.min(now)));
            }
        }
        Ok(())
    }
}

/// Fills a buffer with a value, from this sector on.
pub fn fill(bytes: &mut [u8], lba: u64, value: Value) {
    for (lba, sector) in (lba..).zip(bytes.chunks_exact_mut(SECTOR)) {
        Content::new(lba, value).fill(sector);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn sector(value: Value) -> Vec<u8> {
        let mut bytes = vec![0; SECTOR];
        fill(&mut bytes, 3, value);
        bytes
    }

    #[test]
    fn an_older_value_is_not_read_after_an_answer() {
        let mut model = Model::new(8, 0);
        let one = model.begin(3, 1, at(1));
        // Under way: both may be read.
        assert_eq!(model.read(3, &sector(0), at(2), at(3)), Ok(()));
        assert_eq!(model.clone().read(3, &sector(one), at(2), at(3)), Ok(()));
        model.good(one, false, at(4));
        assert!(model.clone().read(3, &sector(0), at(5), at(6)).is_err());
        assert_eq!(model.read(3, &sector(one), at(5), at(6)), Ok(()));
    }

    #[test]
    fn what_was_read_once_is_not_older_the_next_time() {
        let mut model = Model::new(8, 0);
        let one = model.begin(3, 1, at(1));
        assert_eq!(model.read(3, &sector(one), at(2), at(3)), Ok(()));
        assert!(model.read(3, &sector(0), at(4), at(5)).is_err());
    }

    #[test]
    fn a_flush_keeps_what_was_answered_before_it() {
        let mut model = Model::new(8, 0);
        let one = model.begin(3, 1, at(1));
        model.good(one, false, at(2));
        let mut lost = model.clone();
        lost.power_lost(at(3));
        assert_eq!(lost.clone().read(3, &sector(0), at(4), at(5)), Ok(()));
        assert_eq!(lost.read(3, &sector(one), at(4), at(5)), Ok(()));
        assert!(lost.read(3, &sector(0), at(6), at(7)).is_err(), "it was the other one");
        model.flushed(at(3));
        model.power_lost(at(4));
        assert!(model.clone().read(3, &sector(0), at(5), at(6)).is_err());
        assert_eq!(model.read(3, &sector(one), at(5), at(6)), Ok(()));
    }

    #[test]
    fn without_a_write_cache_an_answer_is_stable() {
        let mut model = Model::new(8, 0);
        model.set_through(true);
        let one = model.begin(3, 1, at(1));
        model.good(one, false, at(2));
        model.power_lost(at(3));
        assert!(model.clone().read(3, &sector(0), at(4), at(5)).is_err());
        assert_eq!(model.read(3, &sector(one), at(4), at(5)), Ok(()));
    }

    #[test]
    fn what_a_dead_process_was_told_of_is_not_stable() {
        let mut model = Model::new(8, 0);
        let one = model.begin(3, 1, at(1));
        model.good(one, false, at(2));
        model.failed_untold();
        model.flushed(at(3));
        model.power_lost(at(4));
        assert_eq!(model.clone().read(3, &sector(0), at(5), at(6)), Ok(()));
        assert_eq!(model.read(3, &sector(one), at(5), at(6)), Ok(()));
    }

    #[test]
    fn zeroes_of_two_writes_are_both_zeroes() {
        let mut model = Model::new(8, 0);
        let one = model.begin(3, 1, at(1));
        model.good(one, true, at(2));
        let zeroes = model.begin_zeroes(&[(3, 1)], at(3));
        assert_eq!(model.read(3, &sector(one), at(4), at(5)), Ok(()));
        model.good(zeroes, true, at(6));
        assert!(model.clone().read(3, &sector(one), at(7), at(8)).is_err());
        assert_eq!(model.read(3, &sector(0), at(7), at(8)), Ok(()));
    }

    #[test]
    fn a_value_is_replaced_by_one_compare_and_write() {
        let mut model = Model::new(8, 0);
        let one = model.begin(3, 1, at(1));
        model.good(one, false, at(2));
        let old = Content::new(3, one);
        assert_eq!(model.present(3), Some(old));
        assert_eq!(model.replaced(3, old, 7), Ok(()));
        assert!(model.replaced(3, old, 8).is_err());
    }

    #[test]
    fn a_torn_sector_is_wrong() {
        let mut model = Model::new(8, 0);
        let one = model.begin(3, 1, at(1));
        let mut bytes = sector(one);
        bytes[300..].fill(0);
        assert!(model.read(3, &bytes, at(2), at(3)).is_err());
    }
}
