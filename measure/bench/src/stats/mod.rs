//! What figures are worth: medians, spread, intervals, and whether a difference can be told from noise.

mod effect;
mod estimate;
mod summary;

pub use effect::{Effect, FEWEST, Judgement, MOST, effect, unpaired};
pub use estimate::{Estimate, Interval, median};
pub use summary::{Comparison, Measure, Summary, compare_results, interleaved, summarise};

#[cfg(test)]
mod tests;
