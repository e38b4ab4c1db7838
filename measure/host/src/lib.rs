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
mod text;
