//! A table with reusable places, whose keys are never valid twice.

/// A place in [`Slots`] and the generation of what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) index: u32,
    generation: u32,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// A slab with generations. It allocates only to grow.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// Puts a value at a free place.
    pub(crate) fn insert(&mut self, value: T) -> Key {
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
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    /// What is at a place. For the driver's own use: an operation in flight keeps its place
    /// occupied, so its index alone names it.
    pub(crate) fn at(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.value.as_mut()
    }

    /// Empties a place; its key is never valid again.
    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let slot = self.slots.get_mut(index as usize)?;
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        Some(value)
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
        assert_eq!(slots.remove(a.index), Some("a"));
        assert_eq!(slots.remove(a.index), None);
        let c = slots.insert("c");
        assert_eq!((c.index, slots.get_mut(a)), (a.index, None));
        assert_eq!(slots.get_mut(c), Some(&mut "c"));
        assert_eq!(slots.at(b.index), Some(&mut "b"));
        assert_eq!(
            slots.iter_mut().map(|(i, v)| (i, *v)).collect::<Vec<_>>(),
            [(0, "c"), (1, "b")]
        );
    }
}
