//! A job with its RDMA connection.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use lunet_ring::{Event, PollSource, Ring, Token, WatchId};
use lunet_verbs::{Completion, Operation};

use super::job::{Job, Phase};
use super::transport::{Lane, Transport};
use crate::front::{Error, MessageConnection};
use crate::rdma::{Line, Needs, Port, Shared};

/// What the event loop watches: completions, and what happens to connections.
const COMPLETIONS: Token = Token(3 << 56);
const CONNECTIONS: Token = Token(4 << 56);

/// A job on an RDMA connection.
pub struct Message<C: MessageConnection> {
    job: Job<C>,
    /// `None` when it is over.
    line: Option<Line>,
    token: u64,
    dirty: bool,
}

impl<C: MessageConnection> Message<C> {
    fn completed(&mut self, done: Completion, now: Duration) {
        self.dirty = true;
        let is_good = done.status.is_success();
        let Completion { operation, bytes, invalidated, buf, .. } = done;
        match (operation, buf) {
            (Operation::Receive, Some(buf)) if is_good => {
                let message = &buf[..bytes as usize];
                self.job
                    .arrived(now, |connection, cx| connection.received(message, invalidated, cx));
                if let Some(line) = &self.line {
                    line.repost(buf);
                }
            }
            _ if !is_good => self.job.closed(now),
            _ => {}
        }
    }
}

impl<C: MessageConnection> Lane for Message<C> {
    type Connection = C;

    fn job(&self) -> &Job<C> {
        &self.job
    }

    fn job_mut(&mut self) -> &mut Job<C> {
        &mut self.job
    }

    fn into_job(self) -> Job<C> {
        self.job
    }

    fn dirty(&mut self) -> &mut bool {
        &mut self.dirty
    }

    fn advance(&mut self, now: Duration, _: &mut Ring) {
        let before = self.job.phase;
        self.job.advance(now);
        self.dirty |= before != self.job.phase;
        if self.job.phase == Phase::Over {
            self.line = None;
        }
    }

    fn flush(&mut self, _: &mut Ring, _: u64) {
        if let Some(line) = &mut self.line {
            line.post(&mut self.job.out);
            // Receives that were posted again go with it.
        }
    }

    fn may_gather(&self) -> bool {
        false
    }
}

/// The RDMA connections of a thread, on one device.
pub struct Messages<C> {
    port: Shared,
    /// Of completions and of connections.
    watches: Option<(WatchId, WatchId)>,
    /// Completions were announced, or something of connections.
    notified: bool,
    told: bool,
    /// For [`deliver`](Transport::deliver), which takes the port's.
    done: Vec<Completion>,
    connection: PhantomData<C>,
}

impl<C> Messages<C> {
    /// Where its connections are made.
    pub(crate) const fn port(&self) -> &Shared {
        &self.port
    }
}

impl<C> PollSource for Messages<C> {
    fn poll(&mut self) -> bool {
        self.port.borrow_mut().poll()
    }

    fn before_sleep(&mut self, watch: &mut dyn FnMut(WatchId)) -> bool {
        let mut port = self.port.borrow_mut();
        if port.poll() {
            return true;
        }
        let Some((completions, connections)) = self.watches else { return false };
        let sends = std::mem::take(&mut port.starved);
        let notified = std::mem::take(&mut self.notified);
        port.arm(notified, sends);
        if notified {
            watch(completions);
        }
        if std::mem::take(&mut self.told) {
            watch(connections);
        }
        port.poll()
    }
}

impl<C: MessageConnection> Transport for Messages<C> {
    type Connection = C;
    type Opened = Line;
    type Lane = Message<C>;

    fn new(needs: &Needs) -> Result<Self, Error> {
        let port = Port::new(*needs).map_err(Error::Rdma)?;
        Ok(Self {
            port: Rc::new(RefCell::new(port)),
            watches: None,
            notified: false,
            told: false,
            done: Vec::with_capacity(1024),
            connection: PhantomData,
        })
    }

    fn begin(&mut self, ring: &mut Ring) -> std::io::Result<()> {
        let mut port = self.port.borrow_mut();
        // Notices of the logins are old.
        port.arm(true, false);
        let mut watch = |fd: BorrowedFd<'_>, token| ring.watch(fd.try_clone_to_owned()?, token);
        let (completions, connections) = port.fds();
        let Some(completions) = completions else { return Ok(()) };
        let completions = watch(completions, COMPLETIONS)?;
        self.watches = Some((completions, watch(connections, CONNECTIONS)?));
        Ok(())
    }

    fn lane(&mut self, job: Job<C>, line: Line, _: &mut Ring) -> Message<C> {
        let token = line.token();
        Message { job, line: Some(line), token, dirty: true }
    }

    fn handle(&mut self, event: Event, _: &mut [Message<C>], _: Duration) {
        match event {
            Event::Readable { token: COMPLETIONS } => self.notified = true,
            Event::Readable { token: CONNECTIONS } => {
                self.told = true;
                self.port.borrow_mut().read_events();
            }
            _ => {}
        }
    }

    fn deliver(&mut self, lanes: &mut [Message<C>], now: Duration) {
        let mut port = self.port.borrow_mut();
        port.poll();
        std::mem::swap(&mut port.done, &mut self.done);
        let over = std::mem::take(&mut port.over);
        let failed = port.failed.take();
        drop(port);
        for done in self.done.drain(..) {
            if let Some(lane) = lane(lanes, done.token) {
                lane.completed(done, now);
            }
        }
        // What came before the end was heard before it.
        for happened in over {
            if let Some(lane) = lane(lanes, happened.token) {
                // After a logout it is no failure.
                let ended = matches!(lane.job.phase, Phase::Leaving(_) | Phase::Over);
                lane.job.closed(now);
                if !ended {
                    lane.job.failed = Some(format!("the RDMA connection ended: {}", happened.why));
                }
                lane.dirty = true;
            }
        }
        if let Some(why) = failed {
            for lane in lanes {
                lane.job.fail(format!("the RDMA device failed: {why}"));
                lane.job.closed(now);
                lane.dirty = true;
            }
        }
    }

    fn flush(&mut self) {
        self.port.borrow_mut().flush();
    }
}

/// The one whose connection has this token. Mostly they are numbered from 1 on, in order.
fn lane<C: MessageConnection>(lanes: &mut [Message<C>], token: u64) -> Option<&mut Message<C>> {
    let at = (token as usize).wrapping_sub(1);
    let at = match lanes.get(at) {
        Some(lane) if lane.token == token => at,
        _ => lanes.iter().position(|lane| lane.token == token)?,
    };
    lanes.get_mut(at)
}
