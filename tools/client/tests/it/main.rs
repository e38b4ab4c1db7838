//! The initiator and the host against lunet's own target in this process, over loopback.

mod faults;
mod faulty;
mod loads;
mod login;
mod nvme;
mod reader;
mod support;
