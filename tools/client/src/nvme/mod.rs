//! NVMe over TCP and RDMA: addresses, controllers, questions to them and their namespaces, and [`Host`]
//! and [`RdmaHost`], the fronts of the load loop.
//!
//! | module | what |
//! |---|---|
//! | `target` | `nvme-tcp://` and `nvme-rdma://` addresses |
//! | `login` | who connects |
//! | `wire`, `admin`, `queue` | queues that wait for each answer |
//! | `secure` | TLS, before the first PDU |
//! | `keeper` | keeps a controller alive while its I/O queues are under load |
//! | `unit` | what a subsystem, a controller and a namespace say of themselves |
//! | `identity` | what a namespace is known by, and who has reserved it |
//! | `reader` | reads blocks one after the other |
//! | `session` | an I/O queue under load |

mod admin;
mod error;
mod failure;
mod identity;
mod keeper;
mod login;
mod queue;
mod reader;
mod secure;
mod session;
mod target;
mod unit;
mod wire;

pub use admin::{Admin, Answer};
pub use error::Error;
pub use failure::{Failure, State};
pub use identity::identify;
pub use login::{HOST_NQN, Login};
pub use lunet_nvme::auth::{Purpose, Secret, SecretError};
pub use lunet_nvme::host::ControllerInfo;
pub use lunet_nvme::identify::Identifiers;
pub use lunet_nvme::log::{AnaGroup, AnaState};
pub use queue::Queue;
pub use reader::Reader;
pub use session::{Host, RdmaHost, RdmaSession, Session, Volume};
pub use target::{PORT, Target, TargetError};
pub use unit::{Namespace, Offer, discover, inspect, offers_of};
pub(crate) use wire::answers;
