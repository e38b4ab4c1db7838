//! What a read may return.
//!
//! Every write puts a value of its own into each sector. A sector's history says when each value was sent, when it was
//! answered, and when it was made stable. A value may be read as long as no other that came wholly after it is known to have
//! taken effect. After a power loss it may be any value that no stable one came wholly after; what the first read returns
//! it keeps.

use std::fmt;
use std::time::Duration;

/// A logical block, in bytes.
pub const SECTOR: usize = 512;

/// A read that takes longer is an error by itself.
const LONGEST_READ: Duration = Duration::from_secs(130);

/// Names what a write has put into a sector; 0 is zeroes.
pub type Value = u64;

#[derive(Clone, Debug)]
struct Write {
    value: Value,
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
            value: 0,
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
}

/// What is wrong with what was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    lba: u64,
    found: Option<Value>,
    history: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.found {
            Some(value) => write!(f, "LBA {} has value {value}", self.lba)?,
            None => write!(f, "LBA {} has nothing that was ever written there", self.lba)?,
        }
        write!(f, "; its history: {}", self.history)
    }
}

impl Model {
    /// An empty volume of so many sectors.
    pub fn new(sectors: u64) -> Self {
        Self { sectors: vec![History::default(); sectors as usize], values: 0 }
    }

    /// Sectors.
    pub fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// A write is sent: its value.
    pub fn begin(&mut self, lba: u64, sectors: u64, now: Duration) -> Value {
        self.values += 1;
        let value = self.values;
        for history in self.range(lba, sectors) {
            history.prune(now);
            history.0.push(Write {
                value,
                begun: now,
                ended: None,
                effective: None,
                answered: None,
                stable: false,
                left: false,
            });
        }
        value
    }

    fn range(&mut self, lba: u64, sectors: u64) -> &mut [History] {
        &mut self.sectors[lba as usize..(lba + sectors) as usize]
    }

    fn each(&mut self, value: Value, mut change: impl FnMut(&mut Write)) {
        let all = self.sectors.iter_mut().flat_map(|history| &mut history.0);
        all.filter(|write| write.value == value).for_each(&mut change);
    }

    /// A write was answered GOOD; `stable` with FUA.
    pub fn good(&mut self, value: Value, stable: bool, now: Duration) {
        self.each(value, |write| {
            write.ended = Some(now);
            write.effective = Some(write.effective.map_or(now, |before| before.min(now)));
            write.answered = Some(now);
            write.stable |= stable;
        });
    }

    /// A write can take effect no more, and may have.
    pub fn over(&mut self, value: Value, now: Duration) {
        self.each(value, |write| {
            write.ended.get_or_insert(now);
        });
    }

    /// A flush that was sent at `begun` was answered GOOD.
    pub fn flushed(&mut self, begun: Duration) {
        for write in self.sectors.iter_mut().flat_map(|history| &mut history.0) {
            write.stable |= write.answered.is_some_and(|answered| answered < begun);
        }
    }

    /// The server was killed: what it had not done it does no more.
    pub fn killed(&mut self, now: Duration) {
        for write in self.sectors.iter_mut().flat_map(|history| &mut history.0) {
            write.ended.get_or_insert(now);
        }
    }

    /// The power was lost: what was not stable may be gone.
    pub fn power_lost(&mut self, now: Duration) {
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
            let found = value_of(lba, sector);
            let known = history.0.iter().find(|write| Some(write.value) == found).cloned();
            let Some(known) = known.filter(|known| !history.is_over(known, begun)) else {
                let history = format!("{history:?}");
                return Err(Wrong { lba, found, history });
            };
            if known.left {
                history.0.retain(|write| !write.left || write.value == known.value);
            }
            for write in history.0.iter_mut().filter(|write| write.value == known.value) {
                write.left = false;
                write.effective = Some(write.effective.map_or(now, |before| before.min(now)));
            }
        }
        Ok(())
    }
}

/// Fills a buffer with a value, from this sector on.
pub fn fill(bytes: &mut [u8], lba: u64, value: Value) {
    for (lba, sector) in (lba..).zip(bytes.chunks_exact_mut(SECTOR)) {
        for (at, word) in sector.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&word_of(lba, value, at).to_le_bytes());
        }
    }
}

/// A word of a sector with a value.
fn word_of(lba: u64, value: Value, at: usize) -> u64 {
    match (value, at) {
        (0, _) => 0,
        (_, 0) => value,
        (_, 1) => lba,
        _ => lunet_block::mix(value ^ (lba << 32) ^ (at as u64) << 56),
    }
}

/// The value of a sector; `None` if it is not whole, or of another sector.
fn value_of(lba: u64, sector: &[u8]) -> Option<Value> {
    let mut words =
        sector.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    let value = words.clone().next()?;
    words.enumerate_all(|at, word| word == word_of(lba, value, at)).then_some(value)
}

trait EnumerateAll: Iterator<Item = u64> {
    fn enumerate_all(&mut self, right: impl FnMut(usize, u64) -> bool) -> bool;
}

impl<I: Iterator<Item = u64>> EnumerateAll for I {
    fn enumerate_all(&mut self, mut right: impl FnMut(usize, u64) -> bool) -> bool {
        let mut at = 0;
        self.all(|word| {
            at += 1;
            right(at - 1, word)
        })
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
        let mut model = Model::new(8);
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
        let mut model = Model::new(8);
        let one = model.begin(3, 1, at(1));
        assert_eq!(model.read(3, &sector(one), at(2), at(3)), Ok(()));
        assert!(model.read(3, &sector(0), at(4), at(5)).is_err());
    }

    #[test]
    fn a_flush_keeps_what_was_answered_before_it() {
        let mut model = Model::new(8);
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
    fn a_torn_sector_is_wrong() {
        let mut model = Model::new(8);
        let one = model.begin(3, 1, at(1));
        let mut bytes = sector(one);
        bytes[300..].fill(0);
        assert!(model.read(3, &bytes, at(2), at(3)).is_err());
    }
}
