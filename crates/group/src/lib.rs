//! A failover group on a real cluster of Ceph: [`Group`] has a thread that carries out what the state machine of
//! `lunet-gateway` wants of the cluster, and hands over to a [`Serving`] what it wants of the server.
//!
//! The group's name is that of an image: `rbd://POOL[/NAMESPACE]/GROUP`. Its [record](create) is the object
//! `lunet.group.GROUP` there, which names the images of its volumes. One RADOS client has all of them open; they are locked
//! while the gateway owns the group, and nothing is written otherwise.
//!
//! A server may have what it serves of the group in the cluster, too ([`Shared`], the object `lunet.group.GROUP.config`): it
//! is read before a gateway has a client, before a gate opens, when another gateway has replaced it, and every few seconds.
//!
//! - Calls that wait for the cluster run on threads of their own, one for each. The thread of the group waits for nothing but
//!   events, the [`Serving`], and at most a second for locks that are given back.
//! - A client that is dropped is closed by a thread that may wait for the cluster for as long as that is away. What such a
//!   client has sent may still take effect: the fence of the next takeover, and nothing else, ends that.
//! - librados starts its threads when a client is made, with the limits of the group's thread: [`begin`] is to be called before
//!   the process gives up the right to connect.
#![forbid(unsafe_code)]

mod driver;
mod serving;
mod session;
mod shared;
mod silence;
mod store;

pub use driver::{Agrees, Config, Group, Handle, Status, Told, begin, spawn};
pub use serving::{Drained, Serving, Storage};
pub use session::Present;
pub use shared::{Heard, MAX_TEXT, Shared, Shares, Unreadable, read_shared, split, write_shared};
pub use store::{Error, Said, create, read, remove};
