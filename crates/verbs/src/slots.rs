//! A table with reusable places, whose keys are never valid twice.

/// A place in [`Slots`] and the generation of what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// A slab with generations, that never grows beyond what it was made for.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// Bits of a generation that come back: it lives in the number of a work request.
    mask: u32,
    used: usize,
}

impl<T> Slots<T> {
    /// For keys whose generation fits the mask.
    pub(crate) const fn new(mask: u32) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), mask, used: 0 }
    }

    /// Takes memory for so many more values, so that putting them in takes none.
    pub(crate) fn reserve(&mut self, more: usize) {
        let needed = self.used + more;
        self.slots.reserve(needed.saturating_sub(self.slots.len()));
        self.free.reserve(needed.saturating_sub(self.free.len()));
    }

    /// Puts a value at a free place.
    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.used += 1;
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            return Key { index, generation: slot.generation };
        }
        let index = self.slots.len() as u32;
        self.slots.push(Slot { generation: 0, value: Some(value) });
        Key { index, generation: 0 }
    }

    /// What a key names, if it is still there.
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_ref() } else { None }
    }

    /// As [`get`](Self::get), to change it.
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    /// Takes a value out; its key is never valid again.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1) & self.mask;
        self.free.push(key.index);
        self.used -= 1;
        Some(value)
    }

    /// How many values there are.
    pub(crate) const fn len(&self) -> usize {
        self.used
    }

    /// The keys of the values that are wanted.
    pub(crate) fn keys(&self, mut wanted: impl FnMut(&T) -> bool) -> Vec<Key> {
        let key = |(index, slot): (usize, &Slot<T>)| {
            let value = slot.value.as_ref()?;
            wanted(value).then_some(Key { index: index as u32, generation: slot.generation })
        };
        self.slots.iter().enumerate().filter_map(key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_place_does_not_answer_to_its_old_key() {
        let mut slots = Slots::new(u32::MAX);
        let a = slots.insert("a");
        let b = slots.insert("b");
        assert_eq!((slots.remove(a), slots.remove(a)), (Some("a"), None));
        let c = slots.insert("c");
        assert_eq!((c.index, slots.get(a)), (a.index, None));
        assert_eq!(slots.get_mut(a), None);
        assert_eq!((slots.get(b), slots.get(c), slots.len()), (Some(&"b"), Some(&"c"), 2));
        assert_eq!(slots.keys(|value| *value == "c"), [c]);
    }

    #[test]
    fn generations_stay_within_the_mask() {
        let mut slots = Slots::new(3);
        for round in 0..9u32 {
            let key = slots.insert(round);
            assert_eq!(key.generation, round & 3);
            slots.remove(key);
        }
    }
}
