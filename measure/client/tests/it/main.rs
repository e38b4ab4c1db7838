//! The initiator against lunet's own target in this process, over loopback.

mod faults;
mod faulty;
mod loads;
mod login;
mod reader;
mod support;
