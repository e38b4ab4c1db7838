//! The commands of the tools.

pub mod attach;
pub mod bench;
pub mod doctor;
pub mod man;
#[cfg(test)]
mod pages;
pub mod parts;
pub mod support;
pub mod top;
pub mod tune;
