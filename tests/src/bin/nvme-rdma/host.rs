//! A host over RDMA in one thread that sends the bytes that it is told to: what they mean is its caller's affair.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lunet_e2e::rdma::{WhyError, device, whole};
use lunet_nvme::rdma::{ConnectRequest, Rejection};
use lunet_ring::{Arena, Region};
use lunet_verbs::{
    Adapter, AdapterConfig, CmEventKind, CmId, Completion, ConnParams, EndpointConfig, EndpointId,
    EventChannel, Exposed, Library, Operation, Pieces, RemoteAccess,
};
use rustix::event::{PollFd, PollFlags, poll};

use crate::capsule::{Answer, Capsule, Keyed};

/// How long anything may take on an emulated processor.
const LIMIT: Duration = Duration::from_secs(30);
const NAME: &str = "nqn.2026-11.local.lab:raw";
/// Bytes that the controller may reach. The first page is for what Fabrics commands send.
pub const MEMORY: u64 = 1 << 20;
/// Where the data of reads and writes begins.
pub const DATA: u64 = 4096;
/// Entries of a queue.
const ENTRIES: u16 = 16;
/// Bytes of a Send that are copied into the queue; the others are a piece of memory.
const HEAD: usize = 128;
/// An answer's buffer.
const RECEIVE: usize = 64;

/// A queue: one connection.
pub struct Queue {
    endpoint: EndpointId,
    token: u64,
    answers: Vec<Answer>,
    stands: bool,
    ended: Option<String>,
    next: u16,
}

/// A controller: its admin queue, and those for I/O.
pub struct Controller {
    pub admin: Queue,
    pub io: Vec<Queue>,
}

/// A host on one device.
pub struct Host {
    from: IpAddr,
    to: SocketAddr,
    subsystem: String,
    memory: Exposed,
    adapter: Adapter,
    arena: Arena,
    channel: EventChannel,
    next: u64,
}

impl Host {
    /// Opens the device of the address `from`.
    pub fn new(from: IpAddr, to: SocketAddr, subsystem: &str) -> Result<Self> {
        let library = Library::open()?;
        let device = device(&library, from)?;
        let arena = Arena::new(64 << 20)?;
        let config = AdapterConfig { completions: 16_384, shared_receives: None, interrupt: 0 };
        let adapter = Adapter::open(&device, &arena, &config)?;
        let region = Arc::new(Region::new(MEMORY)?);
        let memory = adapter.expose(&region, RemoteAccess { read: true, write: true })?;
        let channel = EventChannel::new(&library)?;
        let subsystem = subsystem.to_owned();
        Ok(Self { from, to, subsystem, memory, adapter, arena, channel, next: 0 })
    }

    /// The memory that commands move data to and from.
    pub fn memory(&self) -> &Region {
        self.memory.region()
    }

    /// What the controller is told of a part of it.
    pub fn keyed(&self, at: u64, len: u32) -> Result<Keyed> {
        let remote = self.memory.remote(at..MEMORY).context("within the memory")?;
        Ok(Keyed { address: remote.address, key: remote.key, len })
    }

    /// Asks for a connection with these private data, and does not wait for it.
    pub fn ask(&mut self, private: &[u8]) -> Result<Queue> {
        self.next += 1;
        let token = self.next;
        let mut id = CmId::new(&self.channel, token)?;
        id.resolve_address(Some(self.from), self.to, LIMIT)?;
        self.expect(token, "AddressResolved")?;
        id.resolve_route(LIMIT)?;
        self.expect(token, "RouteResolved")?;
        let config = EndpointConfig { sends: 64, receives: u32::from(ENTRIES) };
        let opened = self.adapter.open_endpoint(id, config);
        let endpoint = opened.map_err(|refused| refused.error)?;
        for _ in 0..ENTRIES {
            let buf = self.arena.alloc(RECEIVE).context("no memory for a receive")?;
            self.adapter.queue_receive(endpoint, buf, 0).map_err(|e| e.why_error())?;
        }
        self.adapter.flush();
        self.adapter.connect(endpoint, ConnParams { reads: 0, reads_served: 16, private })?;
        Ok(Queue { endpoint, token, answers: Vec::new(), stands: false, ended: None, next: 0 })
    }

    /// A connection for a queue that stands, before its Connect command.
    pub fn connected(&mut self, qid: u16, cntlid: u16) -> Result<Queue> {
        let request = ConnectRequest { qid, receives: ENTRIES, sqsize: ENTRIES - 1, cntlid };
        let mut queue = self.ask(&request.to_bytes())?;
        self.until(&mut queue, |queue| queue.stands)?;
        Ok(queue)
    }

    /// Why a connection with these private data is refused; `None` if it is not.
    pub fn refusal(&mut self, private: &[u8]) -> Result<Option<String>> {
        let mut queue = self.ask(private)?;
        let ended = self.until(&mut queue, |queue| queue.stands || queue.ended.is_some());
        let why = queue.ended.clone();
        self.vanish(queue);
        ended.map(|()| why)
    }

    /// The Connect command of a queue: the controller's identifier.
    pub fn connect(&mut self, queue: &mut Queue, qid: u16, cntlid: u16) -> Result<u16> {
        let data = Capsule::connect_data(cntlid, &self.subsystem, NAME);
        self.memory.region().write(0, &data);
        let capsule = Capsule::connect(qid, ENTRIES - 1, self.keyed(0, data.len() as u32)?);
        let answer = self.answer_to(queue, &capsule)?;
        ensure!(answer.status == 0, "Connect of queue {qid}: status {:#x}", answer.status);
        Ok(answer.dword0 as u16)
    }

    /// A controller that is ready, with so many queues for I/O.
    pub fn controller(&mut self, queues: u16) -> Result<Controller> {
        let mut admin = self.connected(0, 0)?;
        let cntlid = self.connect(&mut admin, 0, 0xffff)?;
        for capsule in [Capsule::enable(), Capsule::queues(queues)] {
            let answer = self.answer_to(&mut admin, &capsule)?;
            ensure!(answer.status == 0, "status {:#x} to {capsule:?}", answer.status);
        }
        let end = Instant::now() + LIMIT;
        while self.answer_to(&mut admin, &Capsule::csts())?.dword0 & 1 == 0 {
            ensure!(Instant::now() < end, "the controller does not become ready");
        }
        let mut io = Vec::new();
        for qid in 1..=queues {
            let mut queue = self.connected(qid, cntlid)?;
            self.connect(&mut queue, qid, cntlid)?;
            io.push(queue);
        }
        Ok(Controller { admin, io })
    }

    /// Sends a capsule, and does not wait for its answer: its command identifier.
    pub fn send(&mut self, queue: &mut Queue, capsule: &Capsule) -> Result<u16> {
        queue.next = queue.next.wrapping_add(1);
        let bytes = capsule.bytes(queue.next);
        let (head, rest) = bytes.split_at(bytes.len().min(HEAD));
        let mut pieces = Pieces::new();
        if !rest.is_empty() {
            let mut buf = self.arena.alloc(rest.len()).context("no memory for a Send")?;
            buf.copy_from_slice(rest);
            pieces = whole(buf);
        }
        let queued = self.adapter.queue_send(queue.endpoint, head, pieces, None, (0, true));
        queued.map_err(|e| e.why_error())?;
        self.adapter.flush();
        Ok(queue.next)
    }

    /// Sends a capsule, and waits for its answer.
    pub fn answer_to(&mut self, queue: &mut Queue, capsule: &Capsule) -> Result<Answer> {
        let cid = self.send(queue, capsule)?;
        self.answer(queue, cid)
    }

    /// Waits for the answer to the command with this identifier.
    pub fn answer(&mut self, queue: &mut Queue, cid: u16) -> Result<Answer> {
        self.until(queue, |queue| queue.answers.iter().any(|answer| answer.cid == cid))?;
        let at = queue.answers.iter().position(|answer| answer.cid == cid);
        Ok(queue.answers.swap_remove(at.context("an answer")?))
    }

    /// Waits for any answer, or for the end of the connection: true if it stands.
    pub fn outcome(&mut self, queue: &mut Queue) -> Result<bool> {
        let before = queue.answers.len();
        let over = |queue: &Queue| queue.ended.is_some() || queue.answers.len() > before;
        self.until(queue, over)?;
        Ok(queue.ended.is_none())
    }

    /// Waits for an answer, but not for ever: some commands have none until something happens. True if the
    /// connection stands.
    pub fn settled(&mut self, queue: &mut Queue) -> Result<bool> {
        let (before, end) = (queue.answers.len(), Instant::now() + Duration::from_secs(1));
        while queue.ended.is_none() && queue.answers.len() == before && Instant::now() < end {
            self.iterate(queue)?;
        }
        Ok(queue.ended.is_none() && queue.answers.len() > before)
    }

    /// Waits for the end of the connection.
    pub fn ended(&mut self, queue: &mut Queue) -> Result<()> {
        self.until(queue, |queue| queue.ended.is_some())
    }

    /// Lets a queue go at once, with whatever is under way.
    pub fn vanish(&mut self, queue: Queue) {
        self.adapter.close(queue.endpoint);
    }

    /// Lets a controller go: first the peer is told.
    pub fn hang_up(&mut self, controller: Controller) {
        for queue in controller.io.into_iter().chain([controller.admin]) {
            self.adapter.disconnect(queue.endpoint);
            self.vanish(queue);
        }
    }

    /// Works until this holds.
    fn until(&mut self, queue: &mut Queue, done: impl Fn(&Queue) -> bool) -> Result<()> {
        let end = Instant::now() + LIMIT;
        while !done(queue) {
            if let Some(why) = &queue.ended {
                bail!("the connection has ended: {why}");
            }
            ensure!(Instant::now() < end, "nothing of it within {LIMIT:?}");
            self.iterate(queue)?;
        }
        Ok(())
    }

    fn iterate(&mut self, queue: &mut Queue) -> Result<()> {
        self.adapter.arm(true, true)?;
        // What was sent before a farewell is heard before it: so the completions are looked at later.
        let mut events = Vec::new();
        while let Some(event) = self.channel.next_event()? {
            events.push(event);
        }
        let mut done = Vec::new();
        self.adapter.poll(&mut done)?;
        if events.is_empty() && done.is_empty() {
            return self.sleep();
        }
        let (endpoint, token) = (queue.endpoint, queue.token);
        for end in done.into_iter().filter(|end| end.endpoint == endpoint) {
            self.completed(queue, end)?;
        }
        for event in events.into_iter().filter(|event| event.token == token) {
            match event.kind {
                CmEventKind::Established => queue.stands = true,
                CmEventKind::TimewaitExit => {}
                CmEventKind::Rejected => {
                    let word = Rejection::parse(&event.private);
                    queue.ended = Some(format!("rejected: {word:?}"));
                }
                kind => queue.ended = Some(format!("{kind:?}")),
            }
        }
        Ok(())
    }

    fn completed(&mut self, queue: &mut Queue, end: Completion) -> Result<()> {
        if !end.status.is_success() {
            queue.ended.get_or_insert_with(|| end.status.to_string());
            return Ok(());
        }
        let (Operation::Receive, Some(buf)) = (end.operation, end.buf) else { return Ok(()) };
        queue
            .answers
            .push(Answer::read(&buf[..end.bytes as usize]).context("an answer of 16 bytes")?);
        // The connection may have ended since.
        if self.adapter.queue_receive(queue.endpoint, buf, 0).is_ok() {
            self.adapter.flush();
        }
        Ok(())
    }

    /// The next event of this token, which must be of this kind.
    fn expect(&mut self, token: u64, kind: &str) -> Result<()> {
        let end = Instant::now() + LIMIT;
        loop {
            match self.channel.next_event()? {
                Some(event) if event.token == token => {
                    let is = format!("{:?}", event.kind);
                    ensure!(is.starts_with(kind), "{is} instead of {kind}: {}", event.reason());
                    return Ok(());
                }
                // Of a connection that has gone.
                Some(_) => {}
                None => self.sleep()?,
            }
            ensure!(Instant::now() < end, "no {kind} within {LIMIT:?}");
        }
    }

    fn sleep(&self) -> Result<()> {
        let fds = [self.channel.as_fd(), self.adapter.as_fd()];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        poll(&mut fds, Some(&Duration::from_secs(1).try_into()?))?;
        Ok(())
    }
}
