//! Requests about which the owner of a failover group decides, whatever gateway they come to.

use std::sync::Arc;

use lunet_gateway::Reserved;

/// A command of a host here, which waits for the answer of the group's thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupRequest {
    /// A change of reservations, or of what is kept besides, by its number: [`Input::Reserve`](lunet_gateway::Input::Reserve).
    Reserve(u64, Vec<u8>),
    /// A report of reservations, by its number: [`Input::Report`](lunet_gateway::Input::Report).
    Report(u64),
}

/// Takes the requests of a group's hosts. Shards call it: it must not block.
pub type TakesRequests = Arc<dyn Fn(GroupRequest) + Send + Sync>;

/// What a request has done on a copy, for [`Input::Executed`](lunet_gateway::Input::Executed).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// The volume by its NAA designator, and its reservations as they are to be; `None`: nothing changes.
    pub reserved: Option<([u8; 16], Reserved)>,
    /// The answer, for whoever forwarded the request.
    pub answer: Vec<u8>,
}
