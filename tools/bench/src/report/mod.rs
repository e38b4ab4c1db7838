//! The report: a table for the terminal, and a page that needs nothing but itself.

mod columns;
mod compare;
mod format;
mod page;
mod plots;
mod svg;
mod table;

pub use columns::{lines, wrapped};
pub use compare::{compare_page, compare_table, joined};
pub use format::{iops, number, time};
pub use page::page;
pub use table::table;

#[cfg(test)]
mod tests;
