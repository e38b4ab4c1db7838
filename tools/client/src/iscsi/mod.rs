//! iSCSI, over TCP and over RDMA (iSER): addresses, logins, questions to targets and logical units, and [`Initiator`]
//! and [`IserInitiator`], the fronts of the load loop.
//!
//! | module | what |
//! |---|---|
//! | `target` | `iscsi://` addresses |
//! | `link`, `ask` | a session that waits for each answer: logins, questions |
//! | `unit` | what a portal, a target and a logical unit say of themselves |
//! | `identity` | what a logical unit is known by, and who has reserved it |
//! | `reader` | reads blocks one after the other |
//! | `session` | a session under load |

mod ask;
pub mod cdb;
mod error;
mod identity;
mod link;
mod login;
mod reader;
mod sense;
mod session;
mod target;
mod unit;

pub use ask::{Answer, number};
pub use error::Error;
pub use identity::identify;
pub use link::Link;
pub use login::{INITIATOR_NAME, Login};
pub use lunet_iscsi::chap::{Account, Secret};
pub use lunet_iscsi::initiator::{DigestOffer, DiscoveredTarget, LoginInfo, Negotiated};
pub use reader::Reader;
pub use sense::Failure;
pub use session::{Initiator, IserInitiator, IserSession, Session};
pub use target::{PORT, Target, TargetError};
pub use unit::{LogicalUnit, discover, inspect, luns};
