//! An initiator over RDMA in one thread: it listens to one connection at a time, and to what its end says.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lunet_e2e::rdma::{WhyError, device, whole};
use lunet_iscsi::initiator::{
    Command, Connection, Cx, Data, Event, Finished, Options, Outcome, RdmaOffer, Transmit,
    Unsolicited,
};
use lunet_iscsi::iser::{ConnectData, Remote};
use lunet_iscsi::pdu::{LogoutReason, TaskAttribute};
use lunet_ring::{Arena, Region};
use lunet_verbs::{
    Adapter, AdapterConfig, CmEvent, CmEventKind, CmId, Completion, ConnParams, EndpointConfig,
    EndpointId, EventChannel, Exposed, Library, Operation, Pieces, RemoteAccess,
};
use rustix::event::{PollFd, PollFlags, poll};

/// How long anything may take on an emulated processor.
const LIMIT: Duration = Duration::from_secs(30);
const NAME: &str = "iqn.2026-11.local.lab:raw";
/// Unit attentions that a new session may have to hear.
const ATTENTIONS: usize = 4;
/// Sends in flight.
const SENDS: u32 = 32;
/// Bytes that the target may reach.
pub const MEMORY: u64 = 1 << 20;
/// Bytes of a Send that are copied into the queue; the others are a piece of memory.
const HEAD: usize = 128;

/// The protocol's end.
type Proto = Connection<Vec<u8>, Vec<u8>>;
/// What happened on it.
pub type Seen = Event<Vec<u8>, Vec<u8>>;

/// What the protocol wants to send: one vector for each Send.
#[derive(Default)]
struct Sent {
    bytes: Vec<u8>,
    sends: Vec<Vec<u8>>,
}

impl Transmit<Vec<u8>> for Sent {
    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn data(&mut self, data: &Vec<u8>, range: Range<usize>) {
        self.bytes.extend_from_slice(&data[range]);
    }

    fn end_send(&mut self) {
        self.sends.push(std::mem::take(&mut self.bytes));
    }
}

/// One connection.
pub struct Session {
    endpoint: EndpointId,
    token: u64,
    proto: Proto,
    sent: Sent,
    seen: VecDeque<Seen>,
    /// Both ends have agreed to the connection.
    stands: bool,
    /// The other end has hung up.
    left: bool,
}

/// The direction of the data.
#[derive(Clone, Copy, Debug)]
pub enum Direction {
    /// READ(10).
    Read,
    /// WRITE(10), all of it fetched by the target.
    Write,
}

/// An initiator on one device.
pub struct Client {
    from: IpAddr,
    to: SocketAddr,
    target: String,
    memory: Exposed,
    adapter: Adapter,
    arena: Arena,
    channel: EventChannel,
    next: u64,
    began: Instant,
}

impl Client {
    /// Opens the device of the address `from`.
    pub fn new(from: IpAddr, to: SocketAddr, target: &str) -> Result<Self> {
        let library = Library::open()?;
        let device = device(&library, from)?;
        let arena = Arena::new(128 << 20)?;
        let config = AdapterConfig { completions: 16_384, shared_receives: None, interrupt: 0 };
        let adapter = Adapter::open(&device, &arena, &config)?;
        let region = Arc::new(Region::new(MEMORY)?);
        let memory = adapter.expose(&region, RemoteAccess { read: true, write: true })?;
        let channel = EventChannel::new(&library)?;
        let (target, began) = (target.to_owned(), Instant::now());
        Ok(Self { from, to, target, memory, adapter, arena, channel, next: 0, began })
    }

    /// The memory that commands move data to and from, from its first byte on.
    pub fn memory(&self) -> &Region {
        self.memory.region()
    }

    /// Asks for a connection, and does not wait for it.
    pub fn ask(&mut self) -> Result<Session> {
        self.next += 1;
        let token = self.next;
        let mut id = CmId::new(&self.channel, token)?;
        id.resolve_address(Some(self.from), self.to, LIMIT)?;
        self.expect(token, "AddressResolved")?;
        id.resolve_route(LIMIT)?;
        self.expect(token, "RouteResolved")?;
        let options = self.options();
        let (receives, len) = (options.receives(), options.receive_len());
        let config = EndpointConfig { sends: SENDS, receives: receives as u32 };
        let opened = self.adapter.open_endpoint(id, config);
        let endpoint = opened.map_err(|refused| refused.error)?;
        for _ in 0..receives {
            let buf = self.arena.alloc(len).context("no memory for a receive")?;
            self.adapter.queue_receive(endpoint, buf, 0).map_err(|e| e.why_error())?;
        }
        self.adapter.flush();
        let private = ConnectData::default().to_bytes();
        let params = ConnParams { reads: 16, reads_served: 16, private: &private };
        self.adapter.connect(endpoint, params)?;
        let (sent, seen) = (Sent::default(), VecDeque::new());
        let proto = Proto::new(options);
        Ok(Session { endpoint, token, proto, sent, seen, stands: false, left: false })
    }

    fn options(&self) -> Options {
        let number = self.next.to_be_bytes();
        Options {
            // Another session each time: the last one may not have gone yet.
            isid: [0x80, 0, number[4], number[5], number[6], number[7]],
            rdma: Some(RdmaOffer::default()),
            unsolicited: Unsolicited::Nothing,
            max_recv_data_segment_length: 8192,
            max_tasks: 16,
            ..Options::new(NAME, Some(&self.target))
        }
    }

    /// A connection that stands, before its login.
    pub fn connected(&mut self) -> Result<Session> {
        let mut session = self.ask()?;
        let end = Instant::now() + LIMIT;
        while !session.stands {
            ensure!(Instant::now() < end, "no connection within {LIMIT:?}");
            ensure!(!session.proto.is_over(), "the connection was refused");
            self.iterate(&mut session)?;
        }
        Ok(session)
    }

    /// A connection that is logged in, and whose unit attentions were taken.
    pub fn logged_in(&mut self) -> Result<Session> {
        let mut session = self.connected()?;
        session.proto.start(self.began.elapsed(), &mut session.sent);
        self.until(&mut session, |seen| matches!(seen, Event::LoggedIn(_)))?;
        for _ in 0..ATTENTIONS {
            let ready = command(&[0; 6], Data::None);
            session.proto.submit(ready, &mut session.sent)?;
            if self.is_good(&mut session)? {
                return Ok(session);
            }
        }
        bail!("the unit does not become ready");
    }

    /// Sends a command for blocks of 512 bytes. `key` is the memory's own key with these bits changed.
    pub fn submit(
        &mut self,
        session: &mut Session,
        (direction, block, blocks): (Direction, u32, u16),
        key: u32,
    ) -> Result<()> {
        let len = u32::from(blocks) * 512;
        let memory = self.memory.remote(0..u64::from(len)).context("within the memory")?;
        let mut cdb = [0; 10];
        cdb[2..6].copy_from_slice(&block.to_be_bytes());
        cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
        let data = match direction {
            Direction::Read => Data::Discard(len),
            // What it would send of its own accord; it sends none.
            Direction::Write => Data::Write(vec![0; len as usize]),
        };
        cdb[0] = if matches!(direction, Direction::Read) { 0x28 } else { 0x2a };
        let memory = Remote { stag: memory.key ^ key, offset: memory.address };
        session.proto.submit_rdma(command(&cdb, data), Some(memory), &mut session.sent)?;
        self.send(session)
    }

    /// Sends a command and waits until it has ended well.
    pub fn run(&mut self, session: &mut Session, what: (Direction, u32, u16)) -> Result<()> {
        self.submit(session, what, 0)?;
        ensure!(self.is_good(session)?, "{what:?} has failed");
        Ok(())
    }

    /// Waits for the answer to a command: true if it ended well.
    fn is_good(&mut self, session: &mut Session) -> Result<bool> {
        match self.until(session, |seen| matches!(seen, Event::Finished(_)))? {
            Event::Finished(Finished { outcome: Outcome::Completed(end), .. }) => Ok(end.is_good()),
            other => bail!("{other:?}"),
        }
    }

    /// Logs out and closes the connection.
    pub fn log_out(&mut self, mut session: Session) -> Result<()> {
        let now = self.began.elapsed();
        session.proto.logout(LogoutReason::CloseSession, now, &mut session.sent)?;
        self.until(&mut session, |seen| matches!(seen, Event::LoggedOut { .. }))?;
        self.vanish(session);
        Ok(())
    }

    /// Ends the connection without a logout: first the peer is told, and then everything is let go.
    pub fn hang_up(&mut self, mut session: Session) -> Result<()> {
        self.adapter.disconnect(session.endpoint);
        self.until(&mut session, |seen| matches!(seen, Event::Failed(_)))?;
        self.vanish(session);
        Ok(())
    }

    /// Lets everything go at once, with whatever is under direction.
    pub fn vanish(&mut self, session: Session) {
        self.adapter.close(session.endpoint);
    }

    /// Waits for something to happen; what happens before is forgotten.
    pub fn until(
        &mut self,
        session: &mut Session,
        mut wanted: impl FnMut(&Seen) -> bool,
    ) -> Result<Seen> {
        let end = Instant::now() + LIMIT;
        loop {
            while let Some(seen) = session.seen.pop_front() {
                if wanted(&seen) {
                    return Ok(seen);
                }
                if let Event::Failed(error) = seen {
                    return Err(error).context("the session has failed");
                }
            }
            ensure!(Instant::now() < end, "nothing of it within {LIMIT:?}");
            self.iterate(session)?;
        }
    }

    /// Waits for the other end to hang up.
    pub fn until_left(&mut self, session: &mut Session) -> Result<()> {
        let end = Instant::now() + LIMIT;
        while !session.left {
            ensure!(Instant::now() < end, "the other end has not hung up within {LIMIT:?}");
            self.iterate(session)?;
        }
        Ok(())
    }

    /// Takes in what has happened, or waits for something to happen.
    fn iterate(&mut self, session: &mut Session) -> Result<()> {
        self.send(session)?;
        self.adapter.arm(true, true)?;
        // What was sent before a farewell is heard before it: so the completions are looked at later.
        let mut events = Vec::new();
        while let Some(event) = self.channel.next_event()? {
            events.push(event);
        }
        let mut ended = Vec::new();
        self.adapter.poll(&mut ended)?;
        if events.is_empty() && ended.is_empty() {
            return self.sleep();
        }
        for end in ended {
            self.ended(session, end)?;
        }
        for event in events {
            if event.token == session.token {
                self.happened(session, &event.kind);
            }
        }
        self.send(session)
    }

    fn ended(&mut self, session: &mut Session, end: Completion) -> Result<()> {
        if end.endpoint != session.endpoint {
            return Ok(());
        }
        if !end.status.is_success() {
            self.lost(session);
            return Ok(());
        }
        let (Operation::Receive, Some(buf)) = (end.operation, end.buf) else { return Ok(()) };
        let mut events = Vec::new();
        let now = self.began.elapsed();
        let mut cx = Cx { now, tx: &mut session.sent, events: &mut events };
        session.proto.rx_send(&buf[..end.bytes as usize], end.invalidated, &mut cx);
        session.seen.extend(events);
        let again = self.adapter.queue_receive(session.endpoint, buf, 0);
        again.map_err(|e| e.why_error())?;
        self.adapter.flush();
        Ok(())
    }

    fn happened(&mut self, session: &mut Session, what: &CmEventKind) {
        match what {
            CmEventKind::Established => session.stands = true,
            CmEventKind::TimewaitExit => {}
            _ => {
                session.left = true;
                self.lost(session);
            }
        }
    }

    fn lost(&self, session: &mut Session) {
        let mut events = Vec::new();
        session.proto.transport_closed(&mut events);
        session.seen.extend(events);
    }

    /// Hands the protocol's Sends to the device.
    fn send(&mut self, session: &mut Session) -> Result<()> {
        for send in session.sent.sends.drain(..) {
            let (head, rest) = send.split_at(send.len().min(HEAD));
            let mut pieces = Pieces::new();
            if !rest.is_empty() {
                let mut buf = self.arena.alloc(rest.len()).context("no memory for a Send")?;
                buf.copy_from_slice(rest);
                pieces = whole(buf);
            }
            let queued = self.adapter.queue_send(session.endpoint, head, pieces, None, (0, true));
            queued.map_err(|e| e.why_error())?;
        }
        self.adapter.flush();
        Ok(())
    }

    /// The next event of this token, which must be of this kind.
    fn expect(&mut self, token: u64, kind: &str) -> Result<()> {
        let end = Instant::now() + LIMIT;
        loop {
            match self.channel.next_event()? {
                Some(event) if event.token == token => return is(&event, kind),
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

fn command(cdb: &[u8], data: Data<Vec<u8>, Vec<u8>>) -> Command<'_, Vec<u8>, Vec<u8>> {
    Command { token: 0, lun: 0, cdb, attribute: TaskAttribute::Simple, immediate: false, data }
}

fn is(event: &CmEvent, kind: &str) -> Result<()> {
    let is = format!("{:?}", event.kind);
    ensure!(is.starts_with(kind), "{is} instead of {kind}: {}", event.reason());
    Ok(())
}
