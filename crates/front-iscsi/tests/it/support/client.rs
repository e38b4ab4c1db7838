//! A blocking initiator.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use lunet_iscsi::initiator::{
    Command, Completion, Connection, Cx, Data, DiscoveredTarget, Error, Event, Finished, Options,
    Outcome, Tag,
};
use lunet_iscsi::pdu::{TaskAttribute, TmfFunction, TmfResponse};

use super::status::GOOD;

/// No answer takes longer, on any machine.
const PATIENCE: Duration = Duration::from_secs(30);

type Ev = Event<Vec<u8>, Vec<u8>>;

/// The initiator's end of a connection.
pub type Proto = Connection<Vec<u8>, Vec<u8>>;

/// One session.
pub struct Client {
    stream: TcpStream,
    proto: Proto,
    started: Instant,
    events: Vec<Ev>,
}

impl Client {
    /// Logs in; `number` makes the session's identifier.
    pub fn login(address: SocketAddr, number: u8) -> Self {
        Self::login_with(address, number, |_| {})
    }

    /// Logs in with other options.
    pub fn login_with(address: SocketAddr, number: u8, change: impl Fn(&mut Options)) -> Self {
        let mut options = Self::options();
        options.isid[5] = number;
        change(&mut options);
        let mut client = Self::try_login(address, options).expect("the login succeeds");
        // The unit attention of a new session.
        let first = client.finish(0, &[0; 6], Data::None);
        assert_eq!(first.status, 2, "power on is reported first");
        client
    }

    /// What it logs in with, if nothing else is said.
    pub fn options() -> Options {
        Options::new("iqn.2026-11.local.lunet:client", Some(crate::support::TARGET))
    }

    /// Logs in, or says why not.
    pub fn try_login(address: SocketAddr, options: Options) -> Result<Self, Error> {
        Self::login_over(TcpStream::connect(address).expect("the server listens"), options)
    }

    /// Logs in over a connection that is there.
    pub fn login_over(stream: TcpStream, options: Options) -> Result<Self, Error> {
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit can be set");
        let mut client = Self {
            stream,
            proto: Connection::new(options),
            started: Instant::now(),
            events: Vec::new(),
        };
        let mut out = Vec::new();
        client.proto.start(Duration::ZERO, &mut out);
        client.send(&out);
        let end = client.wait(|event| match event {
            Event::LoggedIn(_) => Some(Ok(())),
            Event::Failed(error) => Some(Err(error.clone())),
            _ => None,
        });
        end.map(|()| client)
    }

    /// The targets that a discovery session is told of.
    pub fn targets(&mut self) -> Vec<String> {
        self.discover().into_iter().map(|target| target.name).collect()
    }

    /// The targets that a discovery session is told of, with their addresses.
    pub fn discover(&mut self) -> Vec<DiscoveredTarget> {
        let mut out = Vec::new();
        self.proto.send_targets("All", &mut out).expect("it can be sent");
        self.send(&out);
        self.wait(|event| match event {
            Event::Targets { targets, .. } => Some(targets.clone()),
            _ => None,
        })
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server takes what is sent");
    }

    /// Receives until `wanted` finds its event, which is taken out.
    pub fn wait<T>(&mut self, wanted: impl Fn(&Ev) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some((at, found)) =
                self.events.iter().enumerate().find_map(|(at, e)| Some((at, wanted(e)?)))
            {
                self.events.remove(at);
                return found;
            }
            assert!(Instant::now() < deadline, "no answer; {:?}", self.events);
            assert!(self.receive(), "the connection has ended; {:?}", self.events);
        }
    }

    /// Receives once. False at the end of the connection.
    fn receive(&mut self) -> bool {
        let mut bytes = vec![0; 1 << 16];
        let n = match self.stream.read(&mut bytes) {
            Ok(0) => return false,
            Ok(n) => n,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return false,
            Err(error) => panic!("receiving failed: {error}"),
        };
        let mut out = Vec::new();
        let now = self.started.elapsed();
        let mut cx = Cx { now, tx: &mut out, events: &mut self.events };
        self.proto.rx_bytes(&bytes[..n], &mut cx);
        self.send(&out);
        true
    }

    /// True if the server closes the connection. Pings, which are answered, do not keep the test waiting for ever.
    pub fn is_closed_by_server(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if !self.receive() {
                return true;
            }
        }
        false
    }

    /// Sends a command without waiting for it.
    pub fn start(&mut self, lun: u16, cdb: &[u8], data: Data<Vec<u8>, Vec<u8>>) -> Tag {
        self.batch(|proto, out| {
            proto.submit(command(lun, cdb, data), out).expect("the window is open")
        })
    }

    /// Lets the system take in no more than this ahead of what is read.
    pub fn narrow(&self, bytes: usize) {
        let socket = socket2::SockRef::from(&self.stream);
        socket.set_recv_buffer_size(bytes).expect("a buffer can be smaller");
    }

    /// Sends what `make` puts together in one segment.
    pub fn batch<T>(&mut self, make: impl FnOnce(&mut Proto, &mut Vec<u8>) -> T) -> T {
        let mut out = Vec::new();
        let made = make(&mut self.proto, &mut out);
        self.send(&out);
        made
    }

    /// Puts together what [`batch`](Self::batch) would send, for [`send_raw`](Self::send_raw).
    pub fn compose<T>(&mut self, make: impl FnOnce(&mut Proto, &mut Vec<u8>) -> T) -> (T, Vec<u8>) {
        let mut out = Vec::new();
        let made = make(&mut self.proto, &mut out);
        (made, out)
    }

    /// Sends these bytes.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.send(bytes);
    }

    /// Receives what has been sent until now, without waiting: pings are answered.
    pub fn receive_once(&mut self) {
        assert!(self.receive(), "the connection has ended");
    }

    /// Receives until the connection ends. How it did: `None` in good order.
    pub fn ends_by(&mut self) -> Option<ErrorKind> {
        let mut bytes = vec![0; 1 << 16];
        let mut out = Vec::new();
        loop {
            let n = match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(n) => n,
                Err(error) => return Some(error.kind()),
            };
            let now = self.started.elapsed();
            let mut cx = Cx { now, tx: &mut out, events: &mut self.events };
            self.proto.rx_bytes(&bytes[..n], &mut cx);
        }
    }

    /// True if the end of this command was received.
    pub fn has_answer(&self, tag: Tag) -> bool {
        let ends = |event: &Ev| matches!(event, Event::Finished(finished) if finished.tag == tag);
        self.events.iter().any(ends)
    }

    /// Waits for the end of a command, with a pause after each receive.
    pub fn outcome_with_pauses(&mut self, tag: Tag, pause: Duration) -> Finished<Vec<u8>, Vec<u8>> {
        let ends = |event: &Ev| matches!(event, Event::Finished(finished) if finished.tag == tag);
        while !self.events.iter().any(ends) {
            assert!(self.receive(), "the connection has ended; {:?}", self.events);
            std::thread::sleep(pause);
        }
        self.outcome(tag)
    }

    /// Waits for the end of a command.
    pub fn outcome(&mut self, tag: Tag) -> Finished<Vec<u8>, Vec<u8>> {
        self.wait(|event| match event {
            Event::Finished(finished) if finished.tag == tag => Some(finished.clone()),
            _ => None,
        })
    }

    /// Sends a command and waits for its answer.
    pub fn finish(&mut self, lun: u16, cdb: &[u8], data: Data<Vec<u8>, Vec<u8>>) -> Completion {
        let tag = self.start(lun, cdb, data);
        match self.outcome(tag).outcome {
            Outcome::Completed(completion) => completion,
            other => panic!("the command was not answered: {other:?}"),
        }
    }

    /// Reads blocks of 512 bytes; status and data.
    pub fn read(&mut self, lun: u16, lba: u64, blocks: u32) -> (u8, Vec<u8>) {
        let tag =
            self.start(lun, &rw16(0x88, lba, blocks), Data::Read(vec![0; blocks as usize * 512]));
        let finished = self.outcome(tag);
        match (finished.outcome, finished.data) {
            (Outcome::Completed(completion), Data::Read(data)) => (completion.status, data),
            other => panic!("the read was not answered: {other:?}"),
        }
    }

    /// Writes blocks of 512 bytes; the status.
    pub fn write(&mut self, lun: u16, lba: u64, data: Vec<u8>) -> u8 {
        let cdb = rw16(0x8A, lba, (data.len() / 512) as u32);
        self.finish(lun, &cdb, Data::Write(data)).status
    }

    /// Writes and reads back every size of I/O.
    pub fn works(&mut self, lun: u16) {
        for (n, kib) in [4, 16, 64, 256, 1024].into_iter().enumerate() {
            let data = vec![n as u8 + 1; kib << 10];
            assert_eq!(self.write(lun, 0, data.clone()), GOOD, "a write of {kib} KiB");
            let (status, read) = self.read(lun, 0, (kib << 1) as u32);
            assert_eq!(status, GOOD, "a read of {kib} KiB");
            assert!(read == data, "the data is what was written");
        }
    }

    /// Waits until the server has sent something, without taking it.
    pub fn wait_for_bytes(&mut self) {
        assert!(self.stream.peek(&mut [0]).expect("the server answers") > 0);
    }

    /// Sends a task management function and waits for its answer.
    pub fn manage(&mut self, function: TmfFunction, lun: u16, task: Option<Tag>) -> TmfResponse {
        let mut out = Vec::new();
        let lun = u64::from(lun) << 48;
        let tag = self.proto.manage(function, lun, task, &mut out).expect("it can be sent");
        self.send(&out);
        self.wait(|event| match event {
            Event::Managed { tag: t, response: Some(Ok(response)) } if *t == tag => Some(*response),
            _ => None,
        })
    }
}

/// A command for [`Client::batch`].
pub fn command(
    lun: u16,
    cdb: &[u8],
    data: Data<Vec<u8>, Vec<u8>>,
) -> Command<'_, Vec<u8>, Vec<u8>> {
    Command {
        token: 0,
        lun: u64::from(lun) << 48,
        cdb,
        attribute: TaskAttribute::Simple,
        immediate: false,
        data,
    }
}

/// READ(16), WRITE(16) and others of their form.
pub fn rw16(opcode: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}
