//! What the parts of the machine carried between two looks, against what they can.

use std::time::Duration;

use lunet_api::{AtLimit, LimitKind, Part, PartKind, Stats};

/// A part that carries more of what it can is at its limit. No wire carries all of its rate for a whole second, and drives of
/// the same model differ by more than a tenth.
const FULL_LINK: f64 = 0.9;

/// The same for a drive: makers state the best case.
const FULL_DRIVE: f64 = 0.85;

/// A drive that turns is at its limit if it had a request for more of the time.
const BUSY: f64 = 0.95;

/// What carries less is no evidence of anything.
const TRACE: f64 = 0.01;

/// So many drives are told of, those that carry the most.
const TOLD: usize = 3;

/// What one part did in the interval.
#[derive(Clone, Debug)]
pub(crate) struct PartUse<'a> {
    pub part: &'a Part,
    /// Bytes per second towards the initiators and from them.
    pub rates: [f64; 2],
    /// The same as parts of what it carries at most, where that is known.
    shares: [Option<f64>; 2],
    /// The part of the time in which a drive had a request.
    busy: f64,
}

impl<'a> PartUse<'a> {
    /// Each part that there was at both looks.
    pub fn all(before: &Stats, after: &'a Stats, elapsed: Duration) -> Vec<Self> {
        let same = |then: &&Part, now: &Part| then.kind == now.kind && then.name == now.name;
        let seen = after.parts.iter().filter_map(|now| {
            let then = before.parts.iter().find(|then| same(then, now))?;
            // One that was taken out and put in again counts from zero.
            let goes_on =
                then.read_bytes <= now.read_bytes && then.written_bytes <= now.written_bytes;
            goes_on.then(|| Self::between(then, now, elapsed))
        });
        seen.collect()
    }

    fn between(then: &Part, now: &'a Part, elapsed: Duration) -> Self {
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let rate = |then: u64, now: u64| now.saturating_sub(then) as f64 / seconds;
        let rates =
            [rate(then.read_bytes, now.read_bytes), rate(then.written_bytes, now.written_bytes)];
        let share =
            |rate: f64, most: Option<u64>| Some(rate / most.filter(|most| *most > 0)? as f64);
        let shares = [share(rates[0], now.reads_at_most), share(rates[1], now.writes_at_most)];
        Self { part: now, rates, shares, busy: (rate(then.busy_us, now.busy_us) / 1e6).min(1.0) }
    }

    fn is_drive(&self) -> bool {
        self.part.kind == PartKind::Drive
    }

    /// How much of what it can it carried. The directions of a link are apart; reads and writes of a drive share its time.
    pub fn used(&self) -> Option<f64> {
        let [read, written] = self.shares;
        match self.is_drive() {
            true => Some(read? + written?),
            false => Some(read?.max(written?)),
        }
    }

    /// Whether it can carry no more.
    fn is_full(&self) -> bool {
        let most = if self.is_drive() { FULL_DRIVE } else { FULL_LINK };
        self.used().is_some_and(|used| used >= most) || (self.part.rotational && self.busy >= BUSY)
    }

    /// True if more goes to the initiators than comes from them.
    pub fn sends(&self) -> bool {
        self.rates[0] >= self.rates[1]
    }

    /// Whether blocks of a volume are on this drive; with no name, of any volume.
    fn holds(&self, volume: Option<&str>, all: &[Self]) -> bool {
        let Some(volume) = volume else { return self.is_drive() };
        let has = |part: &Part| part.volumes.iter().any(|one| one == volume);
        let of_pool = |pool: &String| {
            let is_it = |one: &&Self| one.part.kind == PartKind::Pool && one.part.name == *pool;
            all.iter().filter(is_it).any(|one| has(one.part))
        };
        self.is_drive() && (has(self.part) || self.part.pool.as_ref().is_some_and(of_pool))
    }

    /// As evidence.
    fn line(&self) -> String {
        let Part { name, pool, why, .. } = self.part;
        let [read, written] = self.rates.map(crate::words::bytes_per_second);
        let (to, from) = if self.is_drive() { ("read", "written") } else { ("sent", "received") };
        let of = match (&self.part.kind, pool) {
            (PartKind::Slot, _) => format!("Slot {name}"),
            (_, Some(pool)) => format!("{name} of {pool}"),
            _ => name.clone(),
        };
        let mut line = format!("{of}: {read} {to}, {written} {from}");
        if let Some(used) = self.used() {
            line += &format!(", {} of what it can ({why})", crate::words::percent(used));
        }
        if self.is_drive() {
            line +=
                &format!("; it had a request for {} of the time", crate::words::percent(self.busy));
        }
        line + "."
    }

    /// As what is at its limit.
    pub fn at_limit(&self) -> AtLimit {
        let (kind, name) = match (&self.part.kind, &self.part.pool) {
            (PartKind::Link, _) => (LimitKind::Link, &self.part.name),
            (PartKind::Slot, _) => (LimitKind::Slot, &self.part.name),
            (_, Some(pool)) => (LimitKind::Pool, pool),
            _ => (LimitKind::Drive, &self.part.name),
        };
        let used = self.used().filter(|_| !self.part.rotational || self.busy < BUSY);
        AtLimit { kind, name: name.clone(), used: used.or(self.is_drive().then_some(self.busy)) }
    }
}

/// The parts that the data of one volume passes, or that of all.
#[derive(Clone, Copy)]
pub(crate) struct Way<'a> {
    pub all: &'a [PartUse<'a>],
    pub volume: Option<&'a str>,
}

impl<'a> Way<'a> {
    /// Its drives, those that carry the most first.
    fn drives(&self) -> Vec<&'a PartUse<'a>> {
        let mut drives: Vec<_> =
            self.all.iter().filter(|one| one.holds(self.volume, self.all)).collect();
        drives.sort_by(|a, b| load(b).total_cmp(&load(a)));
        drives
    }

    fn links(&self) -> impl Iterator<Item = &'a PartUse<'a>> {
        let is_link = |one: &&PartUse<'_>| matches!(one.part.kind, PartKind::Link | PartKind::Slot);
        self.all.iter().filter(is_link)
    }

    /// The link or slot that can carry no more, if one cannot: the one that is fuller.
    pub fn full_link(&self) -> Option<&'a PartUse<'a>> {
        let full = self.links().filter(|one| one.is_full());
        full.max_by(|a, b| load(a).total_cmp(&load(b)))
    }

    /// The drive that can do no more, if one cannot: a pool is as fast as its slowest drive.
    pub fn full_drive(&self) -> Option<AtLimit> {
        self.drives().into_iter().find(|one| one.is_full()).map(PartUse::at_limit)
    }

    /// A sentence for each part that carried something.
    pub fn evidence(&self) -> Vec<String> {
        let carries =
            |one: &&PartUse<'_>| load(one) >= TRACE || one.rates.iter().sum::<f64>() >= 1e6;
        let mut lines: Vec<String> = Vec::new();
        lines.extend(self.links().filter(carries).map(PartUse::line));
        let drives: Vec<_> = self.drives().into_iter().filter(carries).collect();
        lines.extend(drives.iter().take(TOLD).map(|one| one.line()));
        if drives.len() > TOLD {
            lines.push(format!("{} more drives carry no more than that.", drives.len() - TOLD));
        }
        lines
    }
}

/// What parts are compared by: how much of what they can they carry, or how busy they were.
fn load(one: &PartUse<'_>) -> f64 {
    one.used().unwrap_or(one.busy)
}
