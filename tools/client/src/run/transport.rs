//! What moves what the connections of a thread send and receive.

use std::time::Duration;

use lunet_ring::{Event, PollSource, Ring};

use super::job::Job;
use crate::front::{Connection, Error};
use crate::rdma::Needs;

/// The transport of a thread: TCP, or RDMA.
pub trait Transport: PollSource + Sized {
    /// What its connections are.
    type Connection: Connection;
    /// A connection that was opened.
    type Opened;
    /// A connection with its job.
    type Lane: Lane<Connection = Self::Connection>;

    /// A transport for so much.
    ///
    /// # Errors
    /// What it needs is missing.
    fn new(needs: &Needs) -> Result<Self, Error>;

    /// All connections are there: the event loop watches what they need.
    ///
    /// # Errors
    /// The kernel cannot watch it.
    fn begin(&mut self, ring: &mut Ring) -> std::io::Result<()>;

    /// Takes a connection.
    fn lane(
        &mut self,
        job: Job<Self::Connection>,
        opened: Self::Opened,
        ring: &mut Ring,
    ) -> Self::Lane;

    /// Something happened on the event loop.
    fn handle(&mut self, event: Event, lanes: &mut [Self::Lane], now: Duration);

    /// Gives what was polled to the connections.
    fn deliver(&mut self, lanes: &mut [Self::Lane], now: Duration);

    /// Hands on what all connections have queued.
    fn flush(&mut self);
}

/// A connection with its job.
pub trait Lane {
    /// What the connection is.
    type Connection: Connection;

    /// The job.
    fn job(&self) -> &Job<Self::Connection>;

    /// The job.
    fn job_mut(&mut self) -> &mut Job<Self::Connection>;

    /// The job, when all is over.
    fn into_job(self) -> Job<Self::Connection>;

    /// It may have something to send or to receive in this loop iteration.
    fn dirty(&mut self) -> &mut bool;

    /// Lets the job go on to its next phase, and closes the connection behind the last one.
    fn advance(&mut self, now: Duration, ring: &mut Ring);

    /// Sends what there is to send and receives what may come. `number`: which one it is.
    fn flush(&mut self, ring: &mut Ring, number: u64);

    /// True if it need not be woken for each piece of data.
    fn may_gather(&self) -> bool;
}
