//! Copies that are under way: what they may have put where.
//!
//! A copy reads its source some time between its command and its end, one block at a time. So the destination may have
//! anything that the source may have had meanwhile, and the first read tells what it was.

use std::time::Duration;

use crate::model::{Model, Value};

/// Sectors from here on are destinations of copies, and never their source: nothing is copied twice.
pub const DESTINATIONS: u64 = 384;

/// Where a copy reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The volume.
    pub volume: usize,
    /// The first sector.
    pub lba: u64,
}

#[derive(Clone, Debug)]
struct Copy {
    name: Value,
    from: Extent,
    to: Extent,
    sectors: u64,
    begun: Duration,
}

/// The copies that are under way.
#[derive(Clone, Debug, Default)]
pub struct Copies(Vec<Copy>);

impl Copies {
    /// A copy is sent, of so many sectors: its name at the destination.
    pub fn begin(
        &mut self,
        models: &mut [Model],
        (from, to): (Extent, Extent),
        sectors: u64,
        now: Duration,
    ) -> Value {
        self.begin_many(models, &[(from, sectors)], to, now)
    }

    /// A copy of several ranges is sent, which come to lie one behind the other: its name at the destination.
    pub fn begin_many(
        &mut self,
        models: &mut [Model],
        sources: &[(Extent, u64)],
        mut to: Extent,
        now: Duration,
    ) -> Value {
        let all = sources.iter().map(|(_, sectors)| sectors).sum();
        let name = models[to.volume].begin_copy(to.lba, all, now);
        for (from, sectors) in sources {
            self.0.push(Copy { name, from: *from, to, sectors: *sectors, begun: now });
            to.lba += sectors;
        }
        name
    }

    /// Whether a write of this name is a copy that is under way.
    pub fn is(&self, name: Value) -> bool {
        self.0.iter().any(|copy| copy.name == name)
    }

    /// Notes what the sources may have had until now: before a read of a destination is judged.
    pub fn look(&self, models: &mut [Model]) {
        for copy in &self.0 {
            for sector in 0..copy.sectors {
                let had = models[copy.from.volume].since(copy.from.lba + sector, copy.begun);
                models[copy.to.volume].may_have_copied(copy.name, copy.to.lba + sector, &had);
            }
        }
    }

    /// A copy has ended, or reads no more.
    pub fn end(&mut self, models: &mut [Model], name: Value) {
        if self.is(name) {
            self.look(models);
            self.0.retain(|copy| copy.name != name);
        }
    }

    /// The server was killed: none reads any more.
    pub fn killed(&mut self, models: &mut [Model]) {
        self.look(models);
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Content, SECTOR};

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn sector(content: Content) -> Vec<u8> {
        let mut bytes = vec![0; SECTOR];
        content.fill(&mut bytes);
        bytes
    }

    #[test]
    fn a_copy_is_what_its_source_had_meanwhile() {
        let mut models = [Model::new(512, 0), Model::new(512, 1)];
        let [old, mid] = [1, 2].map(|second| {
            let value = models[0].begin(3, 1, at(second));
            models[0].good(value, false, at(second));
            value
        });
        let mut copies = Copies::default();
        let (from, to) = (Extent { volume: 0, lba: 3 }, Extent { volume: 1, lba: 400 });
        let copy = copies.begin(&mut models, (from, to), 1, at(3));
        let new = models[0].begin(3, 1, at(4));
        copies.end(&mut models, copy);
        models[1].good(copy, false, at(5));
        let late = models[0].begin(3, 1, at(6));
        let read = |model: &mut Model, content| model.read(400, &sector(content), at(7), at(8));
        for wrong in [old, late] {
            assert!(read(&mut models[1].clone(), Content::new(3, wrong)).is_err());
        }
        assert!(read(&mut models[1].clone(), Content::ZEROES).is_err());
        assert!(read(&mut models[1].clone(), Content::new(400, mid)).is_err(), "of another sector");
        assert_eq!(read(&mut models[1].clone(), Content::new(3, new)), Ok(()));
        assert_eq!(read(&mut models[1], Content::new(3, mid)), Ok(()));
        // It was that.
        assert!(read(&mut models[1], Content::new(3, new)).is_err());
    }
}
