//! Measures storage honestly, names the bottleneck, and shows it.
//!
//! A benchmark is a list of runs: one target, one workload, one round. Rounds are interleaved, so that what disturbs the
//! machine disturbs all targets alike. From the runs follow medians, intervals and comparisons ([`stats`]), from these with
//! the ceilings of each layer the verdict ([`verdict`]), and from all of it the report ([`report`]).
#![forbid(unsafe_code)]

pub mod ceiling;
pub mod fio;
pub mod model;
pub mod profiles;
pub mod report;
pub mod runner;
pub mod safety;
pub mod stats;
pub mod system;
pub mod verdict;
