//! What figures are worth: medians, spread, intervals, and whether a difference can be told from noise.

mod effect;
mod estimate;

pub use effect::{Effect, FEWEST, Judgement, MOST, by_chance, corrected, effect, unpaired};
pub use estimate::{Estimate, Interval, median};

#[cfg(test)]
mod tests;
