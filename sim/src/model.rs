//! What a read may return.
//!
//! Every write puts a value of its own into each sector. A sector's history says when each value was sent, when it was
//! answered, and when it was made stable. A value may be read as long as no other that came wholly after it is known to have
//! taken effect. After a power loss it may be any value that no stable one came wholly after; what the first read returns
//! it keeps.

use std::collections::HashMap;
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
    /// Which write it was.
    name: Value,
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
            name: 0,
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
    /// For each value that a successful COMPARE AND WRITE has found, by sector: what it put in its place.
    replaced: HashMap<(u64, Value), Value>,
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
        let sectors = vec![History::default(); sectors as usize];
        Self { sectors, values: 0, replaced: HashMap::new() }
    }

    /// Sectors.
    pub fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// A write is sent: its name, which is its value too.
    pub fn begin(&mut self, lba: u64, sectors: u64, now: Duration) -> Value {
        self.begin_with(lba, sectors, now, None)
    }

    /// Zeroes are written, or blocks unmapped: the name of that.
    pub fn begin_zeroes(&mut self, lba: u64, sectors: u64, now: Duration) -> Value {
        self.begin_with(lba, sectors, now, Some(0))
    }

    fn begin_with(&mut self, lba: u64, sectors: u64, now: Duration, value: Option<Value>) -> Value {
        self.values += 1;
        let name = self.values;
        let value = value.unwrap_or(name);
        for history in self.range(lba, sectors) {
            history.prune(now);
            history.0.push(Write {
                name,
                value,
                begun: now,
                ended: None,
                effective: None,
                answered: None,
                stable: false,
                left: false,
            });
        }
        name
    }

    /// A value that the sector has, as far as is known, other than zeroes.
    pub fn present(&self, lba: u64) -> Option<Value> {
        let all = self.sectors[lba as usize].0.iter().rev();
        all.filter(|write| write.effective.is_some() && write.value != 0)
            .map(|write| write.value)
            .next()
    }

    /// A COMPARE AND WRITE has found one value and put another in its place.
    ///
    /// # Errors
    /// Another one has found the same value before.
    pub fn replaced(&mut self, lba: u64, old: Value, new: Value) -> Result<(), String> {
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

    /// A write was answered GOOD; `stable` with FUA.
    pub fn good(&mut self, name: Value, stable: bool, now: Duration) {
        self.each(name, |write| {
            write.ended = Some(now);
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
            let found = value_of(lba, sector);
            let may = |write: &&Write| Some(write.value) == found && !history.is_over(write, begun);
            let may: Vec<Write> = history.0.iter().filter(may).cloned().collect();
            let Some(known) = may.first() else {
                let history = format!("{history:?}");
                return Err(Wrong { lba, found, history });
            };
            if may.iter().all(|write| write.left) {
                history.0.retain(|write| !write.left || write.value == known.value);
            }
            if may.len() > 1 {
                // Zeroes of one write or of another.
                continue;
            }
            for write in history.0.iter_mut().filter(|write| write.name == known.name) {
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
    let words =
        sector.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    let value = words.clone().next()?;
    words.enumerate().all(|(at, word)| word == word_of(lba, value, at)).then_some(value)
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
    fn zeroes_of_two_writes_are_both_zeroes() {
        let mut model = Model::new(8);
        let one = model.begin(3, 1, at(1));
        model.good(one, true, at(2));
        let zeroes = model.begin_zeroes(3, 1, at(3));
        assert_eq!(model.read(3, &sector(one), at(4), at(5)), Ok(()));
        model.good(zeroes, true, at(6));
        assert!(model.clone().read(3, &sector(one), at(7), at(8)).is_err());
        assert_eq!(model.read(3, &sector(0), at(7), at(8)), Ok(()));
    }

    #[test]
    fn a_value_is_replaced_by_one_compare_and_write() {
        let mut model = Model::new(8);
        let one = model.begin(3, 1, at(1));
        model.good(one, false, at(2));
        assert_eq!(model.present(3), Some(one));
        assert_eq!(model.replaced(3, one, 7), Ok(()));
        assert!(model.replaced(3, one, 8).is_err());
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
