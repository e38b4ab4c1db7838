//! Images of Ceph (RBD) for lunet: librados and librbd, opened at run time.
//!
//! A program with this crate starts on any machine. [`Library::open`] says in one sentence what is
//! missing, and then there are no such volumes; nothing is linked, and the build needs no header.
//!
//! The way of a volume:
//! 1. [`Place`]: which image of which cluster, and as whom.
//! 2. [`Image::open`]: one client of the cluster and one handle of the image, with the exclusive
//!    lock. It blocks; [`open`] does it on threads that may connect to a cluster.
//! 3. [`Lane`]: one event loop's way to the image. Requests go in, librbd's threads push what has
//!    ended, and wake the event loop by one descriptor.
//!
//! A failover group has one [`Client`] with all its images ([`Image::open_unlocked`]), and an [`Object`] that its gateways
//! share.
//!
//! Only this crate, `lunet-ring` and `lunet-verbs` have unsafe code. The rules here:
//! - A request owns its buffer from the moment librbd has it until librbd calls back. A lane that is
//!   dropped before leaves the buffer mapped for ever.
//! - A callback touches nothing but what it owns a reference to, and never unwinds.
//! - Handles are closed once, by the last owner, on a thread that is no event loop.

mod blocklist;
mod client;
mod closing;
mod error;
mod ffi;
mod image;
mod lane;
mod library;
mod object;
mod opener;
mod options;
mod place;
mod snapshots;

pub use blocklist::LONG_ENOUGH;
pub use client::Client;
pub use closing::wait_until_closed;
pub use error::{Error, Missing};
pub use image::{Image, Part};
pub use lane::{Ended, Lane, Request, Waker};
pub use library::Library;
pub use object::{Acks, Object, Watched};
pub use opener::{begin, create, open};
pub use options::forbidden;
pub use place::{ImageName, Place, Refusal};
pub use snapshots::Snapshot;
