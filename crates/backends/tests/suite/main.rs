//! The backends as their users see them, on real files, devices and event loops.

mod common;
mod conformance;
mod growing;
mod layers;
mod opening;
mod rbd;
mod running;
mod slow;
mod snapshots;
