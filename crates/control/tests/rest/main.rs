//! The interface over real HTTP, before a server that is none.
#![allow(missing_docs, reason = "tests")]

mod access;
mod changes;
mod groups;
mod hostile;
mod limits;
mod local;
mod methods;
mod support;
mod tls;
mod work;
