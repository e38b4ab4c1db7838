//! Both ends of connections in one thread: what a shard does, and what an initiator does.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lunet_e2e::rdma::{WhyError, device};
use lunet_ring::{Arena, Buf};
use lunet_verbs::{
    Adapter, AdapterConfig, CmEvent, CmEventKind, CmId, Completion, ConnParams, EndpointConfig,
    EndpointId, EventChannel, Library, Operation,
};
use rustix::event::{PollFd, PollFlags, poll};

/// How long anything may take on an emulated processor.
const LIMIT: Duration = Duration::from_secs(30);
/// The token of the listener's events.
const LISTENER: u64 = 1;
/// Sends, writes and reads in flight on one end.
pub const SENDS: u32 = 64;
/// Receives in flight on one end.
pub const RECEIVES: u32 = 32;
/// Bytes of a receive's buffer.
pub const RECEIVE: usize = 8192;
/// What the two ends tell each other when they connect.
pub const HELLO: &[u8] = b"an initiator's word";
pub const WELCOME: &[u8] = b"a target's word";

/// Two endpoints of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// The end that has connected.
    pub near: EndpointId,
    /// The end that has accepted.
    pub far: EndpointId,
}

/// A device with a listener on it.
pub struct Machine {
    pub adapter: Adapter,
    pub arena: Arena,
    pub address: SocketAddr,
    listener: CmId,
    /// Events of the listener, and of the connecting ends.
    channel: EventChannel,
    /// Events of the accepted ends, which move here.
    own: EventChannel,
    events: VecDeque<CmEvent>,
    pub done: VecDeque<Completion>,
    next: u64,
}

impl Machine {
    /// Listens on a free port of the address.
    pub fn new(address: IpAddr, shared_receives: Option<u32>) -> Result<Self> {
        Self::listening(address, address, shared_receives)
    }

    /// Listens on a free port of another address, and connects to this one.
    pub fn listening(address: IpAddr, at: IpAddr, shared_receives: Option<u32>) -> Result<Self> {
        let library = Library::open()?;
        let device = device(&library, address)?;
        let arena = Arena::new(32 << 20)?;
        let config = AdapterConfig { completions: 2048, shared_receives, interrupt: 0 };
        let adapter = Adapter::open(&device, &arena, &config)?;
        let channel = EventChannel::new(&library)?;
        let own = EventChannel::new(&library)?;
        let listener = CmId::listen(&channel, (at, 0).into(), 16, LISTENER)?;
        let port = listener.local().context("a listener without an address")?.port();
        let address = (address, port).into();
        let (events, done) = (VecDeque::new(), VecDeque::new());
        Ok(Self { adapter, arena, address, listener, channel, own, events, done, next: 2 })
    }

    /// Waits for anything, as an event loop would: armed, looked once more, then asleep.
    fn iterate(&mut self, limit: Duration) -> Result<()> {
        let mut completions = Vec::new();
        self.adapter.poll(&mut completions)?;
        if completions.is_empty() {
            self.adapter.arm(true, true)?;
            self.adapter.poll(&mut completions)?;
        }
        let time = if completions.is_empty() { limit } else { Duration::ZERO };
        self.done.extend(completions);
        let fds = [self.channel.as_fd(), self.own.as_fd(), self.adapter.as_fd()];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        poll(&mut fds, Some(&time.try_into()?))?;
        for channel in [&mut self.channel, &mut self.own] {
            while let Some(event) = channel.next_event()? {
                self.events.push_back(event);
            }
        }
        Ok(())
    }

    /// The next event of this token; those of others wait.
    pub fn event(&mut self, token: u64) -> Result<CmEvent> {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(at) = self.events.iter().position(|event| event.token == token) {
                return self.events.remove(at).context("it was just there");
            }
            ensure!(Instant::now() < end, "no event for {token} within {LIMIT:?}");
            self.iterate(LIMIT)?;
        }
    }

    /// The next completion of an operation on an endpoint; others wait.
    pub fn ended(&mut self, id: EndpointId, operation: Operation) -> Result<Completion> {
        let end = Instant::now() + LIMIT;
        let wanted = |c: &Completion| c.endpoint == id && c.operation == operation;
        loop {
            if let Some(at) = self.done.iter().position(wanted) {
                return self.done.remove(at).context("it was just there");
            }
            ensure!(Instant::now() < end, "no {operation:?} has ended within {LIMIT:?}");
            self.iterate(LIMIT)?;
        }
    }

    /// As [`ended`](Self::ended), and it was done.
    pub fn done(&mut self, id: EndpointId, operation: Operation) -> Result<Completion> {
        let completion = self.ended(id, operation)?;
        ensure!(completion.status.is_success(), "{operation:?}: {}", completion.status);
        Ok(completion)
    }

    fn token(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// An id whose route to an address is known.
    pub fn resolved(&mut self, to: SocketAddr) -> Result<(CmId, u64)> {
        let token = self.token();
        let mut id = CmId::new(&self.channel, token)?;
        id.resolve_address(Some(self.address.ip()), to, LIMIT)?;
        expect(&self.event(token)?, "AddressResolved")?;
        id.resolve_route(LIMIT)?;
        expect(&self.event(token)?, "RouteResolved")?;
        Ok((id, token))
    }

    /// Makes an endpoint of an id, with receives.
    pub fn endpoint(&mut self, id: CmId) -> Result<EndpointId> {
        let config = EndpointConfig { sends: SENDS, receives: RECEIVES };
        let id = self.adapter.open_endpoint(id, config).map_err(|refused| refused.error)?;
        if !self.adapter.has_shared_receives() {
            for token in 0..u64::from(RECEIVES) {
                let buf = self.arena.alloc(RECEIVE).context("no memory for a receive")?;
                self.adapter.queue_receive(id, buf, token).map_err(|e| e.why_error())?;
            }
            self.adapter.flush();
        }
        Ok(id)
    }

    /// Begins to connect to the listener, and returns both ends' tokens and the request.
    pub fn begin(&mut self, private: &[u8]) -> Result<(EndpointId, u64, CmEvent)> {
        let (id, token) = self.resolved(self.address)?;
        let near = self.endpoint(id)?;
        self.adapter.connect(near, ConnParams { reads: 16, reads_served: 16, private })?;
        let request = self.event(LISTENER)?;
        Ok((near, token, request))
    }

    /// A connection, with the tokens of its ends. The accepted end has moved to another channel.
    pub fn connected(&mut self) -> Result<(Pair, [u64; 2])> {
        let (near, near_token, request) = self.begin(HELLO)?;
        let CmEventKind::ConnectRequest { mut id, reads, reads_served } = request.kind else {
            bail!("{:?} instead of a request", request.kind);
        };
        ensure!(request.private.starts_with(HELLO), "not what was said: {:?}", request.private);
        let far_token = self.token();
        id.set_token(far_token);
        id.migrate(&self.own)?;
        let far = self.endpoint(id)?;
        self.adapter.accept(far, ConnParams { reads, reads_served, private: WELCOME })?;
        expect(&self.event(far_token)?, "Established")?;
        let answer = self.event(near_token)?;
        expect(&answer, "Established")?;
        ensure!(answer.private.starts_with(WELCOME), "not what was said: {:?}", answer.private);
        Ok((Pair { near, far }, [near_token, far_token]))
    }

    /// Ends a connection in order: one end asks, the other is told.
    pub fn disconnected(&mut self, pair: Pair, tokens: [u64; 2]) -> Result<()> {
        self.adapter.disconnect(pair.near);
        // The other end answers first, or this one would wait.
        for (id, token) in [(pair.far, tokens[1]), (pair.near, tokens[0])] {
            expect(&self.event(token)?, "Disconnected")?;
            self.adapter.disconnect(id);
            self.adapter.close(id);
        }
        self.events.retain(|event| !tokens.contains(&event.token));
        Ok(())
    }

    /// A buffer with bytes of a seed.
    pub fn filled(&self, len: usize, seed: u64) -> Result<Buf> {
        let mut buf = self.arena.alloc(len).context("no memory")?;
        fill(&mut buf, seed);
        Ok(buf)
    }

    /// Everything that was not taken is thrown away, and the arena must be whole but for `held`.
    pub fn all_is_back(&mut self, held: usize) -> Result<()> {
        self.done.clear();
        let (free, total) = (self.arena.free_bytes(), self.arena.total_bytes());
        ensure!(free + held == total, "{} bytes of the arena are missing", total - held - free);
        Ok(())
    }

    /// A second listener.
    pub fn listens_at(&self, address: SocketAddr) -> Result<CmId, lunet_verbs::Error> {
        CmId::listen(&self.channel, address, 1, 0)
    }

    /// Lets the listener go.
    pub fn silent(self) -> (Adapter, Arena) {
        drop(self.listener);
        (self.adapter, self.arena)
    }
}

/// Fails unless the event is of this kind.
pub fn expect(event: &CmEvent, kind: &str) -> Result<()> {
    let is = format!("{:?}", event.kind);
    ensure!(is.starts_with(kind), "{is} instead of {kind}: {}", event.reason());
    Ok(())
}

/// Bytes that tell their place and their seed.
pub fn fill(bytes: &mut [u8], seed: u64) {
    for (at, chunk) in bytes.chunks_mut(8).enumerate() {
        let word = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(at as u64);
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

/// Bytes as [`fill`] makes them.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, seed);
    bytes
}
