//! What a thread has of an RDMA device.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunet_ring::Arena;
use lunet_verbs::{
    Adapter, AdapterConfig, CmEvent, CmEventKind, CmId, Completion, ConnParams, EndpointConfig,
    EndpointId, EventChannel, Library,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::line::Wants;
use super::{Error, Memory};

/// Bytes from which writes begin at different places, see `run::data`.
const PATTERN_SLACK: u64 = 256 << 10;

/// RDMA Reads that a target may have in flight on a connection, if the device serves so many.
const READS: u8 = 16;

/// What the program at the other end has refused (`IB_CM_REJ_CONSUMER_DEFINED`).
const REFUSED: i32 = 28;

/// ENODEV.
const NO_DEVICE: i32 = rustix::io::Errno::NODEV.raw_os_error();

/// The most memory of a thread that targets may reach, in bytes. It is pinned.
const MOST: u64 = 2 << 30;

/// What the connections of a thread need.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Connections.
    pub lines: u32,
    /// Commands of each that are under way at a time.
    pub depth: u32,
    /// The largest data of a command of the load, in bytes.
    pub largest: u32,
    /// The largest data of any command, in bytes.
    pub widest: u32,
    /// Writes are cut from bytes that nobody changes.
    pub constant: bool,
}

impl Needs {
    /// Those of one connection that asks one question after the other.
    pub(crate) const QUESTIONS: Self =
        Self { lines: 1, depth: 32, largest: 4096, widest: 1 << 20, constant: false };

    /// Bytes for a copy of what writes are cut from.
    pub(super) fn pattern(&self) -> u64 {
        if self.constant { u64::from(self.largest) + PATTERN_SLACK } else { 0 }
    }

    /// Bytes for the data of commands.
    pub(super) fn room(&self) -> u64 {
        let usual = u64::from(self.largest).next_multiple_of(4096) * u64::from(self.depth);
        let wide = u64::from(self.widest).next_multiple_of(4096);
        // Wide ones come seldom, or one after the other.
        usual + if self.widest > self.largest { 2 * wide } else { 0 }
    }

    /// Sends in flight on a connection.
    fn sends(&self) -> u32 {
        // Twice, because only some of them report that they are over.
        2 * self.depth + 16
    }

    /// Receives of a connection: an answer for each command, and what the target sends by itself.
    pub(crate) const fn receives(&self) -> u32 {
        self.depth + 16
    }
}

/// What happened to a connection besides completions.
#[derive(Debug)]
pub(crate) struct Happened {
    pub token: u64,
    pub why: String,
}

/// A device, and the connections of a thread on it.
pub(crate) struct Port {
    library: Arc<Library>,
    needs: Needs,
    arena: Arena,
    adapter: Option<Adapter>,
    channel: EventChannel,
    next: u64,
    /// Completions that nobody has taken yet.
    pub done: Vec<Completion>,
    /// Connections that are over.
    pub over: Vec<Happened>,
    /// The device has failed.
    pub failed: Option<String>,
    /// Something waits for the end of a Send.
    pub starved: bool,
}

/// A port that its connections share.
pub(crate) type Shared = Rc<RefCell<Port>>;

/// A connection that was made.
pub(crate) struct Made {
    pub endpoint: EndpointId,
    pub token: u64,
    pub peer: SocketAddr,
    pub local: Option<IpAddr>,
    pub memory: Memory,
    pub sends: u32,
}

impl Port {
    /// A port without a device: it is known when the first connection leads there.
    pub fn new(needs: Needs) -> Result<Self, Error> {
        let bytes = u64::from(needs.lines) * (needs.pattern() + needs.room());
        if bytes > MOST {
            return Err(Error::TooMuch { mib: bytes >> 20, most: MOST >> 20 });
        }
        let library = Library::open()?;
        let channel = EventChannel::new(&library)?;
        let lines = needs.lines.max(1) as usize;
        // A receive of iSER holds a segment of 8 KiB, a head 256 bytes, a Send its data.
        let line = needs.receives() as usize * Arena::cost(10 << 10)
            + needs.sends() as usize * (256 + Arena::cost(8192));
        let arena = Arena::new(lines * line.next_multiple_of(1 << 20) + (1 << 20));
        Ok(Self {
            library,
            needs,
            arena: arena.map_err(Error::Memory)?,
            adapter: None,
            channel,
            next: 0,
            done: Vec::with_capacity(1024),
            over: Vec::new(),
            failed: None,
            starved: false,
        })
    }

    /// A port for questions.
    pub fn for_questions() -> Result<Shared, Error> {
        Ok(Rc::new(RefCell::new(Self::new(Needs::QUESTIONS)?)))
    }

    /// What its connections need.
    pub const fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Connects to the first address of a host that answers.
    pub fn connect(&mut self, host: &str, port: u16, wants: &Wants<'_>) -> Result<Made, Error> {
        let unknown = |source| Error::Resolve { host: host.into(), source };
        let all: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(unknown)?.collect();
        let mut last = unknown(std::io::ErrorKind::NotFound.into());
        for to in all {
            match self.connect_to(to, wants) {
                Ok(made) => return Ok(made),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn connect_to(&mut self, to: SocketAddr, wants: &Wants<'_>) -> Result<Made, Error> {
        let (limit, end) = (wants.patience, Instant::now() + wants.patience);
        self.next += 1;
        let token = self.next;
        let mut id = CmId::new(&self.channel, token)?;
        let no_device = |error| match error {
            lunet_verbs::Error::NoDevice { .. } => Error::NoDevice(to),
            other => other.into(),
        };
        id.resolve_address(None, to, limit).map_err(no_device)?;
        self.expect((token, to), end, limit)?;
        id.resolve_route(limit)?;
        self.expect((token, to), end, limit)?;
        let local = id.local().map(|address| address.ip());
        self.open(&id, to)?;
        let Some(adapter) = &mut self.adapter else { return Err(Error::NoDevice(to)) };
        let memory = Memory::new(adapter, &self.needs)?;
        let sends = self.needs.sends();
        let config = EndpointConfig { sends, receives: wants.receives };
        let endpoint = adapter.open_endpoint(id, config).map_err(|refused| refused.error)?;
        let posted = self.post_receives((endpoint, token), wants).and_then(|()| {
            let Some(adapter) = &mut self.adapter else { return Err(Error::NoDevice(to)) };
            let params = ConnParams { reads: 0, reads_served: READS, private: wants.private };
            Ok(adapter.connect(endpoint, params)?)
        });
        match posted.and_then(|()| self.expect((token, to), end, limit)) {
            Ok(()) => Ok(Made { endpoint, token, peer: to, local, memory, sends }),
            Err(error) => {
                self.close(endpoint);
                Err(error)
            }
        }
    }

    /// Opens the device of an id, unless it is open.
    fn open(&mut self, id: &CmId, to: SocketAddr) -> Result<(), Error> {
        if self.adapter.is_some() {
            return Ok(());
        }
        let device = self.library.devices()?.into_iter().find(|device| id.is_on(device));
        let device = device.ok_or(Error::NoDevice(to))?;
        let lines = self.needs.lines.max(1);
        let completions = lines * self.needs.sends().max(self.needs.receives() + 64);
        let completions = completions.min(device.limits().completions);
        let config = AdapterConfig { completions, shared_receives: None, interrupt: 0 };
        self.adapter = Some(Adapter::open(&device, &self.arena, &config)?);
        Ok(())
    }

    fn post_receives(&mut self, line: (EndpointId, u64), wants: &Wants<'_>) -> Result<(), Error> {
        let (endpoint, token) = line;
        for _ in 0..wants.receives {
            let buf = self.arena.alloc(wants.receive_len);
            let buf = buf.ok_or(Error::Verbs(lunet_verbs::Error::NoBuffers))?;
            let Some(adapter) = &mut self.adapter else { break };
            // There is a place for each.
            let _ = adapter.queue_receive(endpoint, buf, token);
        }
        self.flush();
        Ok(())
    }

    /// The next step of a connection that is made, or why there is none.
    fn expect(
        &mut self,
        (token, to): (u64, SocketAddr),
        end: Instant,
        limit: Duration,
    ) -> Result<(), Error> {
        loop {
            while let Some(event) = self.channel.next_event()? {
                if event.token != token {
                    self.note(&event);
                    continue;
                }
                return match event.kind {
                    CmEventKind::AddressResolved
                    | CmEventKind::RouteResolved
                    | CmEventKind::Established => Ok(()),
                    _ => Err(failed(&event, to)),
                };
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Silent(limit));
            }
            wait(&[self.channel.as_fd()], left)?;
        }
    }

    fn note(&mut self, event: &CmEvent) {
        let why = match event.kind {
            CmEventKind::Disconnected => "the target has ended it".to_owned(),
            CmEventKind::DeviceRemoval => "the RDMA device was removed".to_owned(),
            CmEventKind::ConnectError | CmEventKind::Unreachable | CmEventKind::Rejected => {
                event.reason()
            }
            _ => return,
        };
        self.over.push(Happened { token: event.token, why });
    }

    /// Takes what there is: true if that is anything.
    pub fn poll(&mut self) -> bool {
        if let Some(adapter) = &mut self.adapter {
            if let Err(error) = adapter.poll(&mut self.done) {
                self.failed.get_or_insert(error.to_string());
            }
        }
        !self.done.is_empty() || self.failed.is_some()
    }

    /// Takes what the connection manager tells.
    pub fn read_events(&mut self) {
        loop {
            match self.channel.next_event() {
                Ok(Some(event)) => self.note(&event),
                Ok(None) => return,
                Err(error) => {
                    self.failed.get_or_insert(error.to_string());
                    return;
                }
            }
        }
    }

    /// Has the device tell of what comes next.
    pub fn arm(&mut self, notified: bool, sends: bool) {
        let Some(adapter) = &mut self.adapter else { return };
        if let Err(error) = adapter.arm(notified, sends) {
            self.failed.get_or_insert(error.to_string());
        }
    }

    /// Waits for something to happen to any connection, or on `other`, for so long.
    pub fn wait(&mut self, other: Option<BorrowedFd<'_>>, time: Duration) -> Result<(), Error> {
        self.arm(true, true);
        self.read_events();
        if self.poll() || !self.over.is_empty() {
            return Ok(());
        }
        let channel = self.channel.as_fd();
        let adapter = self.adapter.as_ref().map(AsFd::as_fd);
        let fds: Vec<BorrowedFd<'_>> =
            [Some(channel), adapter, other].into_iter().flatten().collect();
        wait(&fds, time)?;
        self.read_events();
        self.poll();
        Ok(())
    }

    /// Hands what was queued to the device.
    pub fn flush(&mut self) {
        if let Some(adapter) = &mut self.adapter {
            adapter.flush();
        }
    }

    pub fn adapter(&mut self) -> Option<&mut Adapter> {
        self.adapter.as_mut()
    }

    pub const fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The descriptors that become readable: of the device, once it is open, and of connections.
    pub fn fds(&self) -> (Option<BorrowedFd<'_>>, BorrowedFd<'_>) {
        (self.adapter.as_ref().map(AsFd::as_fd), self.channel.as_fd())
    }

    /// Ends a connection, with all that it has under way.
    pub fn close(&mut self, endpoint: EndpointId) {
        if let Some(adapter) = &mut self.adapter {
            adapter.close(endpoint);
        }
        self.done.retain(|done| done.endpoint != endpoint);
    }
}

/// Why a step did not come about.
fn failed(event: &CmEvent, to: SocketAddr) -> Error {
    match event.kind {
        CmEventKind::AddressError if event.status == -NO_DEVICE => Error::NoDevice(to),
        CmEventKind::Rejected if event.status == REFUSED => {
            Error::Rejected { address: to, private: event.private.to_vec() }
        }
        _ => {
            let why = match event.reason() {
                why if why.is_empty() => format!("{:?}", event.kind),
                why => why,
            };
            Error::Connect { address: to, why }
        }
    }
}

fn wait(fds: &[BorrowedFd<'_>], time: Duration) -> Result<(), Error> {
    let mut fds: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    match poll(&mut fds, Some(&time)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(Error::System(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_fail_has_its_sentence() {
        let to = SocketAddr::from(([192, 0, 2, 1], 4420));
        let why = |kind, status| {
            let event = CmEvent { token: 1, kind, status, private: Default::default() };
            failed(&event, to).to_string()
        };
        let no_device = why(CmEventKind::AddressError, -NO_DEVICE);
        assert!(no_device.contains("no RDMA device of this machine leads to 192.0.2.1:4420"));
        assert!(no_device.contains("rdma link") && no_device.contains("nvme-tcp://"));
        let nobody = why(CmEventKind::Rejected, 8);
        assert!(nobody.contains("(nobody listens there)"), "{nobody}");
        let refused = why(CmEventKind::Rejected, REFUSED);
        assert!(refused.contains("no room for another one"), "{refused}");
        let silent = why(CmEventKind::Unreachable, -rustix::io::Errno::TIMEDOUT.raw_os_error());
        assert!(silent.contains("timed out"), "{silent}");
    }

    #[test]
    fn memory_is_bounded() {
        let needs =
            Needs { lines: 4, depth: 4096, largest: 1 << 20, widest: 1 << 20, constant: true };
        // Where there is no library, that is not what is said first.
        let error = Port::new(needs).map(drop).expect_err("16 GiB");
        assert!(error.to_string().contains("smaller depth"), "{error}");
        assert!(Needs::QUESTIONS.room() >= 2 << 20);
    }
}
