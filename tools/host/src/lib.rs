//! What this machine is, how it should be tuned, and why it is slow.
//!
//! Everything starts from a [`Source`](source::Source): the live machine, or a tree that was captured on another one.
//! [`facts::facts`] turns a source into typed [`Facts`](facts::Facts); rules and checks are expressions over them.
#![forbid(unsafe_code)]

pub mod apply;
pub mod capture;
pub mod ceilings;
pub mod doctor;
pub mod expr;
pub mod facts;
pub mod plan;
pub mod probe;
pub mod prove;
pub mod rules;
pub mod source;

use lunet_bench::report::wrapped;

/// Columns of a terminal.
const WIDTH: usize = 100;

/// Adds a paragraph that starts with `start` and goes on below its end; lines stay lines.
pub(crate) fn wrap(out: &mut String, start: &str, text: &str) {
    let indent = start.len();
    for (number, line) in text.lines().enumerate() {
        *out += &match number {
            0 => wrapped(&format!("{start}{line}"), Some(WIDTH), 0, indent),
            _ => wrapped(line, Some(WIDTH), indent, indent),
        };
    }
}
