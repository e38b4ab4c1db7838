//! When a table that has grown for many values is made smaller.

/// Tables with so many places cost little, and stay as they are.
const SMALL: usize = 256;

/// Tells when a table is to be made smaller: at most a quarter of its places is taken, and at least as many values were taken out since
/// it was tried last as are left. So what it costs to look at all of them is paid by those that have gone, and a table in which few come
/// and go is left alone.
#[derive(Debug, Default)]
pub struct Shrink {
    /// Values that were taken out since.
    gone: usize,
}

impl Shrink {
    /// A value was taken out of a table that has so many places, of which so many are taken still. True if it is to be made
    /// smaller now.
    pub fn is_due(&mut self, places: usize, taken: usize) -> bool {
        self.gone += 1;
        let due = places > SMALL && taken <= places / 4 && self.gone >= taken;
        if due {
            self.gone = 0;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_empties_is_tried_a_few_times_and_when_it_is_empty() {
        let mut shrink = Shrink::default();
        // The last place stays taken until the end, so nothing can be given up before.
        let tries: Vec<usize> =
            (0..10_000).rev().filter(|left| shrink.is_due(10_000, *left)).collect();
        assert_eq!(tries.first(), Some(&2500));
        assert!(tries.len() <= 14, "{tries:?}");
        assert_eq!(tries.last(), Some(&0));
    }

    #[test]
    fn a_small_table_and_one_that_is_in_use_stay() {
        let mut shrink = Shrink::default();
        assert!(!(0..SMALL).rev().any(|left| shrink.is_due(SMALL, left)));
        assert!(!(2501..10_000).rev().any(|left| shrink.is_due(10_000, left)));
    }

    #[test]
    fn values_that_come_and_go_have_a_large_table_tried_now_and_then() {
        let mut shrink = Shrink::default();
        let tries = (0..10_000).filter(|_| shrink.is_due(10_000, 100)).count();
        assert_eq!(tries, 100);
    }
}
