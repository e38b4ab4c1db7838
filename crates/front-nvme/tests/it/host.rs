//! A blocking host: queues over real sockets.

use std::collections::VecDeque;
use std::io::ErrorKind::WouldBlock;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunet_nvme::auth::chap::Initiator;
use lunet_nvme::command::{Admin, Completion, GetLog, Identify, Io, Range as Blocks, Sqe};
use lunet_nvme::digest::Crc32c;
use lunet_nvme::fabrics::{ANY_CONTROLLER, Connect, Connected, Fabrics, Property};
use lunet_nvme::feature::{Event as Notice, Feature};
use lunet_nvme::host::{Command, Connection, Cx, Data, Error, Event, Finished, Options, Tag};
use lunet_nvme::identify::{Cns, Controller, IDENTIFY_LEN};
use lunet_nvme::log::LogPage;
use lunet_nvme::status::Status;
use lunet_nvme::transmit::{Payload, Transmit};
use zerocopy::FromBytes;

use crate::support::SUBSYSTEM;

/// Data that is sent.
#[derive(Clone, Debug)]
pub struct Bytes(pub Arc<[u8]>);

impl Payload for Bytes {
    fn crc32c(&self, range: Range<usize>, crc: &mut Crc32c) {
        crc.update(&self.0[range]);
    }
}

#[derive(Default)]
struct Sent(Vec<u8>);

impl Transmit for Sent {
    type Payload = Bytes;

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn payload(&mut self, payload: Bytes, range: Range<usize>) {
        self.0.extend_from_slice(&payload.0[range]);
    }
}

pub type Ended = Finished<Vec<u8>, Bytes>;

/// How a host connects.
#[derive(Clone, Debug)]
pub struct Settings {
    pub host: u8,
    /// Another host identifier than its own.
    pub host_id: Option<u8>,
    pub subsystem: String,
    pub digests: bool,
    pub entries: u16,
    pub kato: Duration,
    pub no_sq_flow: bool,
    /// Data of its capsules at most: what the controller names, if that is less.
    pub capsule_data: u32,
    /// It does not heed what the controller names.
    pub oversteps: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            host: 1,
            host_id: None,
            subsystem: SUBSYSTEM.into(),
            digests: false,
            entries: 32,
            kato: Duration::ZERO,
            no_sq_flow: false,
            capsule_data: 16 << 10,
            oversteps: false,
        }
    }
}

/// The NQN of a host.
pub fn nqn(host: u8) -> String {
    format!("nqn.2026-11.org.lunet:host{host}")
}

/// A queue.
pub struct Queue {
    pub stream: TcpStream,
    proto: Connection<Vec<u8>, Bytes>,
    unsent: VecDeque<u8>,
    events: Vec<Event<Vec<u8>, Bytes>>,
    /// Commands that have ended and nobody has asked for.
    ended: Vec<Ended>,
    pub failed: Option<Error>,
    start: Instant,
    pub cntlid: u16,
}

impl Queue {
    /// Connects.
    pub fn connect(
        address: SocketAddr,
        settings: &Settings,
        (qid, cntlid): (u16, u16),
    ) -> Result<Self, Error> {
        let connect = Connect {
            qid,
            sqsize: settings.entries - 1,
            no_sq_flow: settings.no_sq_flow,
            kato: settings.kato,
            host_id: [settings.host_id.unwrap_or(settings.host); 16],
            cntlid,
            subnqn: settings.subsystem.clone(),
            hostnqn: nqn(settings.host),
            through: None,
        };
        let options = Options {
            connect,
            alignment: 0,
            header_digest: settings.digests,
            data_digest: settings.digests,
            max_r2t: 1,
            capsule_data: settings.capsule_data,
            connect_timeout: Duration::from_secs(30),
        };
        Self::open(address, options, None)
    }

    /// Connects as that says, and proves to be who it says if that is asked for.
    pub fn open(
        address: SocketAddr,
        options: Options,
        proof: Option<Initiator>,
    ) -> Result<Self, Error> {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        let cntlid = options.connect.cntlid;
        let mut queue = Self {
            stream,
            proto: Connection::new(options),
            unsent: VecDeque::new(),
            events: Vec::new(),
            ended: Vec::new(),
            failed: None,
            start: Instant::now(),
            cntlid,
        };
        proof.into_iter().for_each(|proof| queue.proto.authenticate(proof));
        let mut sent = Sent::default();
        queue.proto.start(Duration::ZERO, &mut sent);
        queue.send(sent);
        loop {
            queue.receive();
            queue.compute();
            match queue.events.pop() {
                Some(Event::Connected(Connected { cntlid, .. })) => {
                    queue.cntlid = cntlid;
                    return Ok(queue);
                }
                Some(Event::Failed(error)) => return Err(error),
                Some(Event::Finished(_)) => unreachable!("nothing was sent"),
                None => {}
            }
        }
    }

    /// Computes what an authentication needs.
    fn compute(&mut self) {
        let mut sent = Sent::default();
        while let Some(job) = self.proto.take_job() {
            let now = self.start.elapsed();
            let mut cx = Cx { now, tx: &mut sent, events: &mut self.events };
            self.proto.computed(job.compute(), &mut cx);
        }
        self.unsent.extend(sent.0);
        self.send(Sent::default());
    }

    /// Sends, behind what could not be sent yet, as much as the server takes, and takes what it sends meanwhile: a
    /// server may wait for memory, and for data that it has asked for.
    fn send(&mut self, sent: Sent) {
        self.unsent.extend(sent.0);
        self.stream.set_nonblocking(true).expect("a socket");
        while !self.unsent.is_empty() {
            let done = self.stream.write(self.unsent.as_slices().0);
            match done {
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(error) if error.kind() == WouldBlock => self.receive_or(|| {
                    std::thread::sleep(Duration::from_millis(1));
                }),
                // The other end has closed, which is seen when something is received.
                Err(_) => self.unsent.clear(),
            }
        }
        self.stream.set_nonblocking(false).expect("a socket");
    }

    /// Receives something; the queue has failed if there is nothing more.
    fn receive(&mut self) {
        self.receive_or(|| panic!("the server does not answer"));
        if !self.unsent.is_empty() {
            self.send(Sent::default());
        }
    }

    /// The same, or else does something if nothing has come in time.
    fn receive_or(&mut self, otherwise: impl FnOnce()) {
        let mut bytes = vec![0; 256 << 10];
        let n = match self.stream.read(&mut bytes) {
            Err(error) if error.kind() == WouldBlock => return otherwise(),
            got => got.unwrap_or(0),
        };
        if n == 0 {
            self.unsent.clear();
            return self.proto.transport_closed(&mut self.events);
        }
        let mut sent = Sent::default();
        let now = self.start.elapsed();
        let mut cx = Cx { now, tx: &mut sent, events: &mut self.events };
        self.proto.rx_bytes(&bytes[..n], &mut cx);
        self.unsent.extend(sent.0);
    }

    fn work(&mut self) {
        for event in std::mem::take(&mut self.events) {
            match event {
                Event::Finished(finished) => self.ended.push(finished),
                Event::Failed(error) => self.failed = Some(error),
                Event::Connected(_) => unreachable!("it was connected before"),
            }
        }
    }

    /// Sends a command.
    pub fn submit(&mut self, sqe: Sqe, data: Data<Vec<u8>, Bytes>) -> Tag {
        let mut sent = Sent::default();
        let command = Command { token: 0, sqe, data };
        let tag = self.proto.submit(command, &mut sent).expect("there is room");
        self.send(sent);
        tag
    }

    /// Sends a command without the last byte of its data, which is in the capsule.
    pub fn begin(&mut self, sqe: Sqe, data: Data<Vec<u8>, Bytes>) {
        let mut sent = Sent::default();
        self.proto.submit(Command { token: 0, sqe, data }, &mut sent).expect("there is room");
        sent.0.pop();
        self.send(sent);
    }

    /// Sends commands in one go.
    pub fn submit_all(&mut self, commands: Vec<(Sqe, Data<Vec<u8>, Bytes>)>) -> Vec<Tag> {
        let mut sent = Sent::default();
        let proto = &mut self.proto;
        let tags = commands.into_iter().map(|(sqe, data)| {
            proto.submit(Command { token: 0, sqe, data }, &mut sent).expect("there is room")
        });
        let tags = tags.collect();
        self.send(sent);
        tags
    }

    /// Waits for the end of a command.
    pub fn wait(&mut self, tag: Tag) -> Ended {
        loop {
            if let Some(at) = self.ended.iter().position(|ended| ended.tag == tag) {
                return self.ended.remove(at);
            }
            assert!(self.failed.is_none(), "the queue has ended: {:?}", self.failed);
            self.receive();
            self.work();
        }
    }

    /// Takes what the server has sent by now, and returns whether a command has ended.
    pub fn has_ended(&mut self, tag: Tag) -> bool {
        self.stream.set_nonblocking(true).expect("a socket");
        self.receive_or(|| {});
        self.stream.set_nonblocking(false).expect("a socket");
        self.send(Sent::default());
        self.work();
        self.ended.iter().any(|ended| ended.tag == tag)
    }

    /// Waits until the server closes the connection.
    pub fn wait_for_end(&mut self) {
        while self.failed.is_none() {
            self.receive();
            self.work();
        }
    }

    /// Executes a command without data.
    pub fn plain(&mut self, sqe: Sqe) -> Completion {
        let tag = self.submit(sqe, Data::None);
        self.wait(tag).completion.expect("an answer")
    }

    /// Executes a command with data for the controller.
    pub fn send_data(&mut self, sqe: Sqe, data: &[u8]) -> Completion {
        let tag = self.submit(sqe, to_send(data));
        self.wait(tag).completion.expect("an answer")
    }

    /// Sends the last message of an authentication: the server may have closed.
    pub fn try_send(&mut self, message: &[u8]) {
        let security = lunet_nvme::fabrics::Security::dh_chap(message.len() as u32);
        self.submit(Fabrics::AuthenticationSend(security).encode(), to_send(message));
    }

    /// Executes a command with data for the host.
    pub fn fetch(&mut self, sqe: Sqe, len: usize) -> Result<Vec<u8>, Status> {
        let tag = self.submit(sqe, Data::Read(vec![0; len]));
        let ended = self.wait(tag);
        let completion = ended.completion.expect("an answer");
        match ended.data {
            Data::Read(bytes) if completion.status.is_success() => {
                assert_eq!(ended.received as usize, len, "all data comes");
                Ok(bytes)
            }
            _ => Err(completion.status),
        }
    }

    /// Executes an I/O command without data.
    pub fn io(&mut self, io: Io, nsid: u32) -> Status {
        self.plain(io.encode(nsid)).status
    }

    pub fn read(&mut self, nsid: u32, lba: u64, blocks: u32) -> Result<Vec<u8>, Status> {
        let range = lunet_nvme::command::Range { lba, blocks };
        self.fetch(Io::Read { range, fua: false }.encode(nsid), blocks as usize * 512)
    }

    pub fn write(&mut self, nsid: u32, lba: u64, data: &[u8]) -> Status {
        let blocks = (data.len() / 512) as u32;
        let range = lunet_nvme::command::Range { lba, blocks };
        self.send_data(Io::Write { range, fua: false }.encode(nsid), data).status
    }

    // Of admin queues:

    pub fn property(&mut self, property: Property) -> u64 {
        let got = self.plain(Fabrics::PropertyGet { property }.encode());
        assert!(got.status.is_success(), "{}", got.status);
        got.result
    }

    pub fn configure(&mut self, value: u64) -> Status {
        let property = Property::Configuration;
        self.plain(Fabrics::PropertySet { property, value }.encode()).status
    }

    pub fn identify(&mut self, cns: Cns, nsid: u32) -> Result<Vec<u8>, Status> {
        let identify = Identify { cns: cns.code(), cntid: 0, csi: 0 };
        self.fetch(Admin::Identify(identify).encode(nsid), IDENTIFY_LEN)
    }

    pub fn controller(&mut self) -> Controller {
        let page = self.identify(Cns::Controller, 0).expect("a page");
        Controller::read_from_bytes(&page).expect("4096 bytes")
    }

    pub fn log(&mut self, page: LogPage, len: usize) -> Result<Vec<u8>, Status> {
        let log = GetLog {
            lid: page.code(),
            specific: 0,
            retain: false,
            len: len as u64,
            offset: 0,
            csi: 0,
        };
        self.fetch(Admin::GetLogPage(log).encode(0), len)
    }

    pub fn set_feature(&mut self, feature: Feature, value: u32) -> Completion {
        let value = [value, 0];
        self.plain(Admin::SetFeatures { fid: feature.code(), save: false, value }.encode(0))
    }

    pub fn listen(&mut self) -> Tag {
        self.submit(Admin::AsyncEventRequest.encode(0), Data::None)
    }

    pub fn heard(&mut self, tag: Tag) -> Option<Notice> {
        let completion = self.wait(tag).completion.expect("an answer");
        assert!(completion.status.is_success(), "{}", completion.status);
        Notice::decode(completion.result as u32)
    }
}

/// Compare and Write of a block of namespace 1, as a fused pair.
pub fn pair(lba: u64, known: u8, next: u8) -> Vec<(Sqe, Data<Vec<u8>, Bytes>)> {
    let range = Blocks { lba, blocks: 1 };
    let mut first = Io::Compare { range }.encode(1);
    let mut second = Io::Write { range, fua: false }.encode(1);
    (first.flags, second.flags) = (first.flags | 1, second.flags | 2);
    vec![(first, to_send(&[known; 512])), (second, to_send(&[next; 512]))]
}

/// Data that is sent with a command.
pub fn to_send(data: &[u8]) -> Data<Vec<u8>, Bytes> {
    Data::Write(Bytes(data.into()), data.len() as u32)
}

/// CC: enabled, with entries of 64 and 16 bytes.
pub const ENABLE: u64 = 0x46_0061;
/// CSTS: ready.
pub const READY: u64 = 1;

/// What a controller names as data of a capsule (IOCCSZ), in bytes.
pub fn capsule_data(admin: &mut Queue) -> u32 {
    let page = admin.identify(Cns::Controller, 0).expect("a page");
    u32::from_le_bytes([page[1792], page[1793], page[1794], page[1795]]) * 16 - 64
}

/// A host with an enabled controller and I/O queues.
pub struct Host {
    pub admin: Queue,
    pub queues: Vec<Queue>,
    pub settings: Settings,
    pub address: SocketAddr,
}

impl Host {
    /// Connects with so many I/O queues.
    pub fn new(address: SocketAddr, settings: Settings, queues: u16) -> Self {
        let admin = Queue::connect(address, &settings, (0, ANY_CONTROLLER));
        let mut admin = admin.expect("a controller");
        assert!(admin.configure(ENABLE).is_success());
        assert_eq!(admin.property(Property::Status), READY);
        let mut settings = settings;
        if settings.capsule_data > 16 << 10 && !settings.oversteps {
            let named = capsule_data(&mut admin);
            settings.capsule_data = settings.capsule_data.min(named);
        }
        let mut host = Self { admin, queues: Vec::new(), settings, address };
        (1..=queues).for_each(|qid| host.add_queue(qid).expect("a queue"));
        host
    }

    /// The first host, with one queue.
    pub fn one(address: SocketAddr) -> Self {
        Self::new(address, Settings::default(), 1)
    }

    pub fn add_queue(&mut self, qid: u16) -> Result<(), Error> {
        let cntlid = self.admin.cntlid;
        self.queues.push(Queue::connect(self.address, &self.settings, (qid, cntlid))?);
        Ok(())
    }

    /// Its first I/O queue.
    pub fn io(&mut self) -> &mut Queue {
        &mut self.queues[0]
    }
}
