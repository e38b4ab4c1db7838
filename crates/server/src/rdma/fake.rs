//! An RDMA device in memory: the test sees what was posted, and decides how it completes.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::Ipv6Addr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use lunet_ring::Buf;
pub use lunet_verbs::Status;
use lunet_verbs::{
    Error, Gid, GidKind, NotQueued, Operation, Pieces, PortFacts, Remote, Scatter, Why,
};

use super::adapter::{Completion, Endpoint};
use crate::front::Names;

/// Depth of the shared receive queue.
pub const SHARED: u32 = 100;

/// RDMA Reads that a connection may have in progress.
pub const READS: u8 = 16;

/// A protocol's words.
pub const NAMES: Names =
    Names { rdma: "R", transport: "r", client: "C", fewer: "depth", ..Names::PLAIN };

/// The facts of a port with these GIDs.
pub fn port_facts(device: &str, state: &str, gids: &[(&str, GidKind)]) -> PortFacts {
    let gid = |(index, (text, kind)): (usize, &(&str, GidKind))| {
        let bytes = text.parse::<Ipv6Addr>().expect("a GID").octets();
        Gid { index: index as u16, bytes, kind: *kind, interface: None }
    };
    PortFacts {
        device: device.into(),
        port: 1,
        state: state.into(),
        physical: "LinkUp".into(),
        link_layer: "Ethernet".into(),
        rate: String::new(),
        gids: gids.iter().enumerate().map(gid).collect(),
    }
}

/// Something that was posted.
pub enum Work {
    /// A Send, and the remote key that it invalidates.
    Send(Vec<u8>, Option<u32>),
    /// An RDMA Write.
    Write(Vec<u8>, Remote),
    /// An RDMA Read of so many bytes.
    Read(usize, Remote),
}

/// An operation, and what its completion needs.
struct Posted {
    endpoint: u32,
    token: u64,
    signaled: bool,
    work: Work,
    into: Option<Buf>,
    /// What the device may read until it completes.
    _held: Pieces,
}

/// The state of the device.
#[derive(Default)]
pub struct State {
    receives: Vec<(u32, Scatter, u64)>,
    /// A receive is one piece of memory: it has no body.
    pub one_piece: bool,
    /// The shared receive queue, if there is one, and the tokens of its connections.
    pub shared: Option<Vec<Scatter>>,
    tokens: HashMap<u32, u64>,
    /// Receives of the shared queue that were lost with connections that have ended.
    pub lost: Vec<Scatter>,
    /// Too many are lost: new connections have receives of their own.
    pub exhausted: bool,
    queued: Vec<Posted>,
    posted: VecDeque<Posted>,
    /// Completions that the shard has not polled yet.
    pub completed: Vec<Completion>,
    /// Depth of a send queue; 0: nothing is accepted.
    pub depth: usize,
    /// Completions that are found at the next flush.
    pub meanwhile: Vec<Completion>,
    /// The device has failed.
    pub failed: bool,
    /// Endpoints that were closed, in order.
    pub closed: Vec<u32>,
    /// Memory of Sends and Writes that were carried out, until their completion is polled.
    held: Vec<(u32, Pieces)>,
    /// Notifications of the next receive completion, and of the next send completion.
    notices: [Notice; 2],
    /// How often the descriptor was written to.
    pub notified: usize,
    /// For each request of notifications: whether it included send completions.
    pub asked: Vec<bool>,
    /// Number of Sends of each flush that had any.
    pub flushed: Vec<usize>,
    /// Number of RDMA Reads and Writes of each flush that had any.
    pub moved: Vec<usize>,
}

/// The notification state of a completion queue.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Notice {
    /// Not requested.
    #[default]
    Unwanted,
    Wanted,
    /// Given, and not read.
    Given,
}

/// The shard's end of the device.
pub struct Adapter {
    state: Rc<RefCell<State>>,
    notices: UnixStream,
}

/// The test's end of the device.
pub struct Wire {
    state: Rc<RefCell<State>>,
    notices: UnixStream,
}

/// A device with send queues of this depth.
pub fn device(depth: usize) -> (Adapter, Wire) {
    let (ours, theirs) = UnixStream::pair().expect("a socket pair");
    ours.set_nonblocking(true).expect("a socket");
    let state = Rc::new(RefCell::new(State { depth, ..State::default() }));
    (Adapter { state: state.clone(), notices: ours }, Wire { state, notices: theirs })
}

/// Fills the memory of a receive as a device does, piece by piece.
fn scatter(memory: &mut Scatter, message: &[u8]) {
    let Scatter { head, split, body } = memory;
    let Some(body) = body else { return head[..message.len()].copy_from_slice(message) };
    let (first, rest) = message.split_at(message.len().min(*split));
    head[..first.len()].copy_from_slice(first);
    let (middle, rest) = rest.split_at(rest.len().min(body.len()));
    body[..middle.len()].copy_from_slice(middle);
    head[*split..*split + rest.len()].copy_from_slice(rest);
}

fn bytes(data: &Pieces) -> Vec<u8> {
    let mut all = Vec::new();
    for (payload, range) in data {
        assert!(matches!(payload, lunet_ring::Payload::Buf(_)), "memory that is not registered");
        payload.for_each_chunk(range.clone(), |chunk| all.extend_from_slice(chunk));
    }
    all
}

impl State {
    /// Operations of a connection that are in progress.
    pub fn posted(&self, endpoint: u32) -> usize {
        self.posted.iter().filter(|work| work.endpoint == endpoint).count()
    }

    /// The key of the next operation of a connection, if it is an RDMA Read.
    pub fn first_read(&self, endpoint: u32) -> Option<u32> {
        match self.posted.iter().find(|work| work.endpoint == endpoint)?.work {
            Work::Read(_, from) => Some(from.key),
            _ => None,
        }
    }

    /// Where the bodies of the posted receives are, in order of their addresses.
    pub fn bodies(&self) -> Vec<usize> {
        let own = self.receives.iter().map(|(_, memory, _)| memory);
        let all = own.chain(self.shared.iter().flatten());
        let mut all: Vec<usize> = all
            .filter_map(|memory| Some(memory.body.as_ref()?.start().as_ptr() as usize))
            .collect();
        all.sort_unstable();
        all
    }

    /// RDMA Reads of a connection that are in progress.
    pub fn posted_reads(&self, endpoint: u32) -> usize {
        let own = self.posted.iter().filter(|work| work.endpoint == endpoint);
        own.filter(|posted| matches!(posted.work, Work::Read(..))).count()
    }

    /// Remote address and length of the nth operation of a connection, which is an RDMA Read.
    pub fn read_at(&self, endpoint: u32, n: usize) -> (u64, usize) {
        let mut own = self.posted.iter().filter(|work| work.endpoint == endpoint);
        match own.nth(n).map(|posted| &posted.work) {
            Some(Work::Read(len, from)) => (from.address, *len),
            _ => panic!("it is no RDMA Read"),
        }
    }
}

impl Adapter {
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.notices.as_fd()
    }

    pub(super) fn room(&self, endpoint: u32) -> usize {
        let state = self.state.borrow();
        let own = state.queued.iter().chain(&state.posted).filter(|work| work.endpoint == endpoint);
        state.depth - own.count().min(state.depth)
    }

    fn queue<T>(&mut self, posted: Result<Posted, T>) -> Result<(), Box<NotQueued<T>>> {
        match posted {
            Ok(posted) => {
                self.state.borrow_mut().queued.push(posted);
                Ok(())
            }
            Err(back) => Err(Box::new(NotQueued { why: Why::Full, back })),
        }
    }

    pub(super) fn queue_receive(
        &mut self,
        endpoint: u32,
        memory: Scatter,
        token: u64,
    ) -> Result<(), Box<NotQueued<Scatter>>> {
        self.state.borrow_mut().receives.push((endpoint, memory, token));
        Ok(())
    }

    pub(super) fn scatters(&self) -> bool {
        !self.state.borrow().one_piece
    }

    pub(super) fn shared_depth(&self) -> Option<u32> {
        self.state.borrow().shared.as_ref().map(|_| SHARED)
    }

    pub(super) fn shared_receives(&self) -> u32 {
        self.state.borrow().shared.as_ref().map_or(0, |shared| shared.len() as u32)
    }

    pub(super) fn shared_room(&self) -> u32 {
        SHARED - self.shared_receives()
    }

    pub(super) fn shared_lost(&self) -> u32 {
        self.state.borrow().lost.len() as u32
    }

    pub(super) fn shares_receives(&self, endpoint: u32) -> bool {
        let state = self.state.borrow();
        let begins = || !state.exhausted && state.receives.iter().all(|(of, ..)| *of != endpoint);
        state.shared.is_some() && (state.tokens.contains_key(&endpoint) || begins())
    }

    pub(super) fn queue_shared_receive(
        &mut self,
        back: Scatter,
    ) -> Result<(), Box<NotQueued<Scatter>>> {
        match &mut self.state.borrow_mut().shared {
            Some(shared) if shared.len() < SHARED as usize => shared.push(back),
            _ => return Err(Box::new(NotQueued { why: Why::Full, back })),
        }
        Ok(())
    }

    pub(super) fn set_receive_token(&mut self, endpoint: u32, token: u64) {
        self.state.borrow_mut().tokens.insert(endpoint, token);
    }

    pub(super) fn renew_shared(&mut self) {
        let mut state = self.state.borrow_mut();
        state.shared.iter_mut().for_each(Vec::clear);
        state.lost.clear();
        state.exhausted = false;
    }

    pub(super) fn queue_send(
        &mut self,
        endpoint: u32,
        head: &[u8],
        data: Pieces,
        invalidate: Option<u32>,
        (token, signaled): (u64, bool),
    ) -> Result<(), Box<NotQueued<Pieces>>> {
        let work = Work::Send([head, &bytes(&data)].concat(), invalidate);
        let fits = self.room(endpoint) > 0;
        let posted = Posted { endpoint, token, signaled, work, into: None, _held: data };
        self.queue(if fits { Ok(posted) } else { Err(posted._held) })
    }

    pub(super) fn queue_write(
        &mut self,
        endpoint: u32,
        data: Pieces,
        to: Remote,
        (token, signaled): (u64, bool),
    ) -> Result<(), Box<NotQueued<Pieces>>> {
        let work = Work::Write(bytes(&data), to);
        let fits = self.room(endpoint) > 0;
        let posted = Posted { endpoint, token, signaled, work, into: None, _held: data };
        self.queue(if fits { Ok(posted) } else { Err(posted._held) })
    }

    pub(super) fn queue_read(
        &mut self,
        endpoint: u32,
        into: Buf,
        range: Range<usize>,
        from: Remote,
        token: u64,
    ) -> Result<(), Box<NotQueued<Buf>>> {
        if self.room(endpoint) == 0 {
            return self.queue(Err(into));
        }
        let work = Work::Read(range.len(), from);
        let (into, _held) = (Some(into), Pieces::new());
        self.queue(Ok(Posted { endpoint, token, signaled: true, work, into, _held }))
    }

    pub(super) fn close(&mut self, endpoint: u32) {
        let mut state = self.state.borrow_mut();
        state.closed.push(endpoint);
        state.receives.retain(|(of, ..)| *of != endpoint);
        state.queued.retain(|work| work.endpoint != endpoint);
        state.posted.retain(|work| work.endpoint != endpoint);
        state.completed.retain(|done| done.endpoint != Endpoint::Fake(endpoint));
        state.held.retain(|(of, _)| *of != endpoint);
    }

    pub(super) fn flush(&mut self) -> bool {
        let mut state = self.state.borrow_mut();
        let queued = std::mem::take(&mut state.queued);
        let sends = queued.iter().filter(|posted| matches!(posted.work, Work::Send(..))).count();
        if sends > 0 {
            state.flushed.push(sends);
        }
        if queued.len() > sends {
            state.moved.push(queued.len() - sends);
        }
        state.posted.extend(queued);
        // Like a device that has refused work: the next poll reports it.
        let meanwhile = std::mem::take(&mut state.meanwhile);
        let any = !meanwhile.is_empty();
        state.completed.extend(meanwhile);
        any
    }

    pub(super) fn poll(&mut self, done: &mut Vec<Completion>) -> Result<bool, Error> {
        let mut state = self.state.borrow_mut();
        if state.failed {
            return Err(Error::Gone { device: "fake".into() });
        }
        let completed = std::mem::take(&mut state.completed);
        for completion in completed.iter().filter(|done| done.operation != Operation::Receive) {
            // A completion covers all operations before it.
            state.held.retain(|(of, _)| Endpoint::Fake(*of) != completion.endpoint);
        }
        done.extend(completed);
        Ok(false)
    }

    pub(super) fn arm(&mut self, _: bool, sends: bool) -> Result<(), Error> {
        while self.notices.read(&mut [0; 16]).is_ok_and(|n| n > 0) {}
        let mut state = self.state.borrow_mut();
        state.asked.push(sends);
        for (notice, wanted) in state.notices.iter_mut().zip([true, sends]) {
            match notice {
                Notice::Given if !wanted => *notice = Notice::Unwanted,
                _ if wanted => *notice = Notice::Wanted,
                _ => {}
            }
        }
        Ok(())
    }
}

impl Wire {
    /// Receives that are posted.
    pub fn receives(&self, endpoint: u32) -> usize {
        self.state.borrow().receives.iter().filter(|(of, ..)| *of == endpoint).count()
    }

    /// Reads or changes the state of the device.
    pub fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.borrow_mut())
    }

    fn complete(&self, done: Completion) {
        let mut state = self.state.borrow_mut();
        let notice = &mut state.notices[usize::from(done.operation != Operation::Receive)];
        if *notice == Notice::Wanted {
            *notice = Notice::Given;
            state.notified += 1;
            (&self.notices).write_all(&[1]).expect("a socket pair");
        }
        state.completed.push(done);
    }

    /// The device fails, and its descriptor becomes readable.
    pub fn fail(&self) {
        self.with(|state| state.failed = true);
        (&self.notices).write_all(&[1]).expect("a socket pair");
    }

    /// A completion of an operation of a connection that has ended.
    pub fn complete_late(&self, endpoint: u32, token: u64) {
        self.complete(Completion {
            endpoint: Endpoint::Fake(endpoint),
            token,
            operation: Operation::Send,
            status: Status::Flushed,
            bytes: 0,
            buf: None,
            body: None,
        });
    }

    /// A receive of a connection fails.
    pub fn fail_receive(&self, endpoint: u32, status: Status) {
        let (Scatter { head, body, .. }, token) = self.take_receive(endpoint);
        self.complete(Completion {
            endpoint: Endpoint::Fake(endpoint),
            token,
            operation: Operation::Receive,
            status,
            bytes: 0,
            buf: Some(head),
            body,
        });
    }

    /// The receive that the next message to a connection takes, and its token.
    fn take_receive(&self, endpoint: u32) -> (Scatter, u64) {
        self.with(|state| match &mut state.shared {
            Some(shared) if state.tokens.contains_key(&endpoint) => {
                (shared.pop().expect("a receive is posted"), state.tokens[&endpoint])
            }
            _ => {
                let at = state.receives.iter().position(|(of, ..)| *of == endpoint);
                let (_, memory, token) = state.receives.remove(at.expect("a receive is posted"));
                (memory, token)
            }
        })
    }

    /// The client sends a message.
    pub fn send(&self, endpoint: u32, message: &[u8]) {
        let (mut memory, token) = self.take_receive(endpoint);
        scatter(&mut memory, message);
        let Scatter { head, body, .. } = memory;
        self.complete(Completion {
            endpoint: Endpoint::Fake(endpoint),
            token,
            operation: Operation::Receive,
            status: Status::Success,
            bytes: message.len() as u32,
            buf: Some(head),
            body,
        });
    }

    /// Carries out the next operation: a Read returns `data`.
    pub fn next(&self, endpoint: u32, data: &[u8], status: Status) -> Option<Work> {
        self.nth(endpoint, 0, data, status)
    }

    /// Carries out the nth operation before those in front of it.
    pub fn nth(&self, endpoint: u32, n: usize, data: &[u8], status: Status) -> Option<Work> {
        let at = {
            let state = self.state.borrow();
            let mut own = state.posted.iter().enumerate().filter(|(_, w)| w.endpoint == endpoint);
            own.nth(n)?.0
        };
        let Posted { token, signaled, work, mut into, _held: held, .. } =
            self.state.borrow_mut().posted.remove(at)?;
        self.with(|state| state.held.push((endpoint, held)));
        let (operation, bytes) = match &work {
            Work::Send(_, None) => (Operation::Send, 0),
            Work::Send(_, Some(_)) => (Operation::SendInvalidate, 0),
            Work::Write(..) => (Operation::Write, 0),
            Work::Read(len, _) => (Operation::Read, *len),
        };
        if let Some(buf) = into.as_mut().filter(|_| status.is_success()) {
            buf[..bytes].copy_from_slice(&data[..bytes]);
        }
        if signaled || !status.is_success() {
            let endpoint = Endpoint::Fake(endpoint);
            let bytes = bytes as u32;
            let (buf, body) = (into, None);
            self.complete(Completion { endpoint, token, operation, status, bytes, buf, body });
        }
        Some(work)
    }
}
