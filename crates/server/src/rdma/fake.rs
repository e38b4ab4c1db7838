//! A device that is none: the test sees what was posted, and says how it ended.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::Ipv6Addr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use lunet_ring::Buf;
use lunet_verbs::{
    Error, Gid, GidKind, NotQueued, Operation, Pieces, PortFacts, Remote, Status, Why,
};

use super::Words;
use super::port::{Done, Endpoint};

/// Receives that a shared queue holds.
pub const SHARED: u32 = 100;

/// How a protocol calls things.
pub const WORDS: Words = Words { rdma: "R", transport: "r", client: "C", fewer: "depth" };

/// What the kernel says of a port with these GIDs.
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
    /// A message, and the key that it takes back.
    Send(Vec<u8>, Option<u32>),
    /// Data for the client's memory.
    Write(Vec<u8>, Remote),
    /// Data wanted from there: how much.
    Read(usize, Remote),
}

/// Work, and what its end needs.
struct Posted {
    endpoint: u32,
    token: u64,
    report: bool,
    work: Work,
    into: Option<Buf>,
    /// What the device would read until its end.
    _held: Pieces,
}

/// What the device knows.
#[derive(Default)]
pub struct State {
    receives: Vec<(u32, Buf, u64)>,
    /// Receives that all connections share, if they do, and their tokens.
    pub shared: Option<Vec<Buf>>,
    tokens: HashMap<u32, u64>,
    /// Receives that connections have kept when they ended.
    pub lost: Vec<Buf>,
    /// Connections to come have receives of their own.
    pub worn: bool,
    queued: Vec<Posted>,
    posted: VecDeque<Posted>,
    /// Ends that the shard has not taken yet.
    pub ended: Vec<Done>,
    /// Work that fits into a send queue; 0: nothing is taken.
    pub depth: usize,
    /// Ends that come to light when work is handed over next.
    pub meanwhile: Vec<Done>,
    /// The device has failed.
    pub failed: bool,
    /// Endpoints that were closed.
    pub closed: Vec<u32>,
    /// What sends and writes that were carried out have read, until their end is taken.
    held: Vec<(u32, Pieces)>,
    /// Whether the end of the next receive is told of, and that of other work.
    notices: [Notice; 2],
    /// How often the descriptor was written to.
    pub told: usize,
    /// Each time that notices were asked for: whether of the ends of other work, too.
    pub asked: Vec<bool>,
    /// How many Sends were handed over at a time.
    pub flushed: Vec<usize>,
}

/// A notice, as a completion queue has it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Notice {
    /// Nobody has asked for it.
    #[default]
    Unwanted,
    Wanted,
    /// It was given, and not read.
    Given,
}

/// The device, as a shard has it.
pub struct Adapter {
    state: Rc<RefCell<State>>,
    notices: UnixStream,
}

/// The device, as the other end has it.
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

fn bytes(data: &Pieces) -> Vec<u8> {
    let mut all = Vec::new();
    for (payload, range) in data {
        assert!(matches!(payload, lunet_ring::Payload::Buf(_)), "memory that is not registered");
        payload.for_each_chunk(range.clone(), |chunk| all.extend_from_slice(chunk));
    }
    all
}

impl State {
    /// Work of a connection that is under way.
    pub fn posted(&self, endpoint: u32) -> usize {
        self.posted.iter().filter(|work| work.endpoint == endpoint).count()
    }

    /// RDMA Reads of a connection that are under way.
    pub fn posted_reads(&self, endpoint: u32) -> usize {
        let own = self.posted.iter().filter(|work| work.endpoint == endpoint);
        own.filter(|posted| matches!(posted.work, Work::Read(..))).count()
    }

    /// Where the nth piece of work of a connection reads, and how much.
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
        buf: Buf,
        token: u64,
    ) -> Result<(), Box<NotQueued<Buf>>> {
        self.state.borrow_mut().receives.push((endpoint, buf, token));
        Ok(())
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
        let begins = || !state.worn && state.receives.iter().all(|(of, ..)| *of != endpoint);
        state.shared.is_some() && (state.tokens.contains_key(&endpoint) || begins())
    }

    pub(super) fn queue_shared_receive(&mut self, back: Buf) -> Result<(), Box<NotQueued<Buf>>> {
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
        state.worn = false;
    }

    pub(super) fn queue_send(
        &mut self,
        endpoint: u32,
        head: &[u8],
        data: Pieces,
        invalidate: Option<u32>,
        (token, report): (u64, bool),
    ) -> Result<(), Box<NotQueued<Pieces>>> {
        let work = Work::Send([head, &bytes(&data)].concat(), invalidate);
        let fits = self.room(endpoint) > 0;
        let posted = Posted { endpoint, token, report, work, into: None, _held: data };
        self.queue(if fits { Ok(posted) } else { Err(posted._held) })
    }

    pub(super) fn queue_write(
        &mut self,
        endpoint: u32,
        data: Pieces,
        to: Remote,
        (token, report): (u64, bool),
    ) -> Result<(), Box<NotQueued<Pieces>>> {
        let work = Work::Write(bytes(&data), to);
        let fits = self.room(endpoint) > 0;
        let posted = Posted { endpoint, token, report, work, into: None, _held: data };
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
        self.queue(Ok(Posted { endpoint, token, report: true, work, into, _held }))
    }

    pub(super) fn close(&mut self, endpoint: u32) {
        let mut state = self.state.borrow_mut();
        state.closed.push(endpoint);
        state.receives.retain(|(of, ..)| *of != endpoint);
        state.queued.retain(|work| work.endpoint != endpoint);
        state.posted.retain(|work| work.endpoint != endpoint);
        state.ended.retain(|done| done.endpoint != Endpoint::Fake(endpoint));
        state.held.retain(|(of, _)| *of != endpoint);
    }

    pub(super) fn flush(&mut self) -> bool {
        let mut state = self.state.borrow_mut();
        let queued = std::mem::take(&mut state.queued);
        let sends = queued.iter().filter(|posted| matches!(posted.work, Work::Send(..))).count();
        if sends > 0 {
            state.flushed.push(sends);
        }
        state.posted.extend(queued);
        // It says so as one that has refused work, whose end comes with them.
        let meanwhile = std::mem::take(&mut state.meanwhile);
        let any = !meanwhile.is_empty();
        state.ended.extend(meanwhile);
        any
    }

    pub(super) fn poll(&mut self, done: &mut Vec<Done>) -> Result<bool, Error> {
        let mut state = self.state.borrow_mut();
        if state.failed {
            return Err(Error::Gone { device: "fake".into() });
        }
        let ended = std::mem::take(&mut state.ended);
        for end in ended.iter().filter(|done| done.operation != Operation::Receive) {
            // With the end of one all before it have ended.
            state.held.retain(|(of, _)| Endpoint::Fake(*of) != end.endpoint);
        }
        done.extend(ended);
        Ok(false)
    }

    pub(super) fn arm(&mut self, _: bool, ends: bool) -> Result<(), Error> {
        while self.notices.read(&mut [0; 16]).is_ok_and(|n| n > 0) {}
        let mut state = self.state.borrow_mut();
        state.asked.push(ends);
        for (notice, wanted) in state.notices.iter_mut().zip([true, ends]) {
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

    /// Looks at what the device knows, or changes it.
    pub fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.borrow_mut())
    }

    fn tell(&self, done: Done) {
        let mut state = self.state.borrow_mut();
        let notice = &mut state.notices[usize::from(done.operation != Operation::Receive)];
        if *notice == Notice::Wanted {
            *notice = Notice::Given;
            state.told += 1;
            (&self.notices).write_all(&[1]).expect("a socket pair");
        }
        state.ended.push(done);
    }

    /// The device fails, and its descriptor tells that there is something.
    pub fn fail(&self) {
        self.with(|state| state.failed = true);
        (&self.notices).write_all(&[1]).expect("a socket pair");
    }

    /// The end of something that the device was busy with when its connection ended.
    pub fn tell_late(&self, endpoint: u32, token: u64) {
        self.tell(Done {
            endpoint: Endpoint::Fake(endpoint),
            token,
            operation: Operation::Send,
            status: Status::Flushed,
            bytes: 0,
            buf: None,
        });
    }

    /// The client sends something.
    pub fn send(&self, endpoint: u32, message: &[u8]) {
        let (mut buf, token) = self.with(|state| match &mut state.shared {
            Some(shared) if state.tokens.contains_key(&endpoint) => {
                (shared.pop().expect("a receive is posted"), state.tokens[&endpoint])
            }
            _ => {
                let at = state.receives.iter().position(|(of, ..)| *of == endpoint);
                let (_, buf, token) = state.receives.remove(at.expect("a receive is posted"));
                (buf, token)
            }
        });
        buf[..message.len()].copy_from_slice(message);
        self.tell(Done {
            endpoint: Endpoint::Fake(endpoint),
            token,
            operation: Operation::Receive,
            status: Status::Success,
            bytes: message.len() as u32,
            buf: Some(buf),
        });
    }

    /// Carries out the next piece of work: a read gets `data`.
    pub fn next(&self, endpoint: u32, data: &[u8], status: Status) -> Option<Work> {
        self.nth(endpoint, 0, data, status)
    }

    /// Carries out a piece of work before those in front of it.
    pub fn nth(&self, endpoint: u32, n: usize, data: &[u8], status: Status) -> Option<Work> {
        let at = {
            let state = self.state.borrow();
            let mut own = state.posted.iter().enumerate().filter(|(_, w)| w.endpoint == endpoint);
            own.nth(n)?.0
        };
        let Posted { token, report, work, mut into, _held: held, .. } =
            self.state.borrow_mut().posted.remove(at)?;
        self.with(|state| state.held.push((endpoint, held)));
        let (operation, bytes) = match &work {
            Work::Send(..) => (Operation::Send, 0),
            Work::Write(..) => (Operation::Write, 0),
            Work::Read(len, _) => (Operation::Read, *len),
        };
        if let Some(buf) = into.as_mut().filter(|_| status.is_success()) {
            buf[..bytes].copy_from_slice(&data[..bytes]);
        }
        if report || !status.is_success() {
            let endpoint = Endpoint::Fake(endpoint);
            let bytes = bytes as u32;
            self.tell(Done { endpoint, token, operation, status, bytes, buf: into });
        }
        Some(work)
    }
}
