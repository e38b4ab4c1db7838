//! A table with reusable places, whose keys are never valid twice.

/// A place in [`Slots`] and the generation of what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Index in the table.
    pub index: u32,
    /// How often it was emptied before, as far as the table's mask goes.
    pub generation: u32,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// A slab with generations. It allocates only to grow.
#[derive(Debug)]
pub struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// Bits of a generation that come back where a key has to fit into fewer than 32.
    mask: u32,
    /// The generation of a new place: no place that was given up has had a later one.
    first: u32,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Slots<T> {
    /// An empty table.
    #[must_use]
    pub const fn new() -> Self {
        Self::with_mask(u32::MAX)
    }

    /// An empty table, for keys whose generation fits the mask.
    #[must_use]
    pub const fn with_mask(mask: u32) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), mask, first: 0 }
    }

    /// Takes memory for so many more values, so that putting them in takes none.
    pub fn reserve(&mut self, more: usize) {
        let needed = self.len() + more;
        self.slots.reserve(needed.saturating_sub(self.slots.len()));
        self.free.reserve(needed.saturating_sub(self.free.len()));
    }

    /// Puts a value at a free place.
    pub fn insert(&mut self, value: T) -> Key {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            return Key { index, generation: slot.generation };
        }
        let (index, generation) = (self.slots.len() as u32, self.first);
        self.slots.push(Slot { generation, value: Some(value) });
        Key { index, generation }
    }

    /// What a key names, if it is still there.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_ref() } else { None }
    }

    /// As [`get`](Self::get), to change it.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    /// What is at a place. For a driver's own use: an operation in flight keeps its place
    /// occupied, so its index alone names it.
    pub(crate) fn at(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.value.as_mut()
    }

    /// The key of what is at a place.
    pub(crate) fn key_at(&self, index: u32) -> Option<Key> {
        let slot = self.slots.get(index as usize)?;
        slot.value.as_ref().map(|_| Key { index, generation: slot.generation })
    }

    /// Takes a value out; its key is never valid again.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.generation == key.generation { self.remove_at(key.index) } else { None }
    }

    /// Empties a place; its key is never valid again. As for [`at`](Self::at).
    pub(crate) fn remove_at(&mut self, index: u32) -> Option<T> {
        let slot = self.slots.get_mut(index as usize)?;
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1) & self.mask;
        self.free.push(index);
        Some(value)
    }

    /// How many places there are, free ones included.
    pub(crate) fn places(&self) -> usize {
        self.slots.len()
    }

    /// Gives up the free places at the end, and their memory. Not for tables with a mask, whose generations come back.
    pub(crate) fn shrink(&mut self) {
        debug_assert_eq!(self.mask, u32::MAX, "a key would be valid twice");
        let places = self.slots.len();
        let left =
            self.slots.iter().rposition(|slot| slot.value.is_some()).map_or(0, |last| last + 1);
        for slot in self.slots.drain(left..) {
            self.first = self.first.max(slot.generation);
        }
        if left < places {
            self.free.retain(|index| (*index as usize) < left);
            self.free.shrink_to_fit();
            self.slots.shrink_to_fit();
        }
    }

    /// How many values there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The keys of the values that are wanted.
    pub fn keys(&self, mut wanted: impl FnMut(&T) -> bool) -> Vec<Key> {
        let key = |(index, slot): (usize, &Slot<T>)| {
            let value = slot.value.as_ref()?;
            wanted(value).then_some(Key { index: index as u32, generation: slot.generation })
        };
        self.slots.iter().enumerate().filter_map(key).collect()
    }

    /// All values with their places.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(i, s)| Some((i as u32, s.value.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_place_does_not_answer_to_its_old_key() {
        let mut slots = Slots::new();
        let a = slots.insert("a");
        let b = slots.insert("b");
        assert_eq!(slots.remove_at(a.index), Some("a"));
        assert_eq!(slots.remove_at(a.index), None);
        let c = slots.insert("c");
        assert_eq!((c.index, slots.get_mut(a)), (a.index, None));
        assert_eq!(slots.get_mut(c), Some(&mut "c"));
        assert_eq!(slots.at(b.index), Some(&mut "b"));
        assert_eq!(
            slots.iter_mut().map(|(i, v)| (i, *v)).collect::<Vec<_>>(),
            [(0, "c"), (1, "b")]
        );
    }

    #[test]
    fn a_value_is_taken_out_by_its_own_key_only() {
        let mut slots = Slots::new();
        let a = slots.insert("a");
        let b = slots.insert("b");
        assert_eq!((slots.remove(a), slots.remove(a)), (Some("a"), None));
        let c = slots.insert("c");
        assert_eq!((c.index, slots.get(a)), (a.index, None));
        assert_eq!(slots.remove(a), None);
        assert_eq!((slots.get(b), slots.get(c), slots.len()), (Some(&"b"), Some(&"c"), 2));
        assert_eq!(slots.keys(|value| *value == "c"), [c]);
    }

    #[test]
    fn a_place_that_was_given_up_does_not_answer_to_its_old_key() {
        let mut slots = Slots::new();
        let keys: Vec<Key> = (0..100).map(|n| slots.insert(n)).collect();
        let again = {
            slots.remove(keys[70]);
            slots.insert(170)
        };
        for key in keys.iter().chain([&again]).filter(|key| key.index != 40) {
            slots.remove(*key);
        }
        slots.shrink();
        assert_eq!((slots.places(), slots.len(), slots.get(keys[40])), (41, 1, Some(&40)));
        let new: Vec<Key> = (0..100).map(|n| slots.insert(n + 1000)).collect();
        assert_eq!((slots.places(), slots.len()), (101, 101));
        assert!(
            keys.iter().chain([&again]).all(|old| old.index == 40 || slots.get(*old).is_none())
        );
        assert!(new.iter().zip(1000..).all(|(key, value)| slots.get(*key) == Some(&value)));
        slots.remove(keys[40]);
        for key in new {
            slots.remove(key);
        }
        slots.shrink();
        assert_eq!((slots.places(), slots.slots.capacity(), slots.free.capacity()), (0, 0, 0));
    }

    #[test]
    fn generations_stay_within_the_mask() {
        let mut slots = Slots::with_mask(3);
        for round in 0..9u32 {
            let key = slots.insert(round);
            assert_eq!(key.generation, round & 3);
            slots.remove(key);
        }
    }
}
