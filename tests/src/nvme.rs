//! A host of NVMe over TCP on blocking sockets: an admin queue and an I/O queue, which take one command after another, or
//! a few at once.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use lunet_nvme::Through;
use lunet_nvme::command::{Admin, GetLog, Identify, Io, Range as Blocks, Sqe};
use lunet_nvme::digest::Crc32c;
use lunet_nvme::fabrics::{ANY_CONTROLLER, Authentication, Connect, Connected};
use lunet_nvme::host::{
    Command, Connection, ControllerInfo, Cx, Data, Event, Finished, Options, Session, SessionCx,
    SessionEvent,
};
use lunet_nvme::status::Status;
use lunet_nvme::transmit::{Payload, Transmit};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes of a block.
pub const BLOCK: usize = 512;

/// Data that is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bytes(Arc<[u8]>);

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

/// How a command ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its status, without the bits that are not the code.
    pub status: Status,
    /// What it has read.
    pub data: Vec<u8>,
}

impl Outcome {
    fn of(finished: Finished<Vec<u8>, Bytes>) -> Result<Self> {
        let completion = finished.completion.context("the queue ended before its command")?;
        let data = match finished.data {
            Data::Read(mut data) => {
                data.truncate(finished.received as usize);
                data
            }
            _ => Vec::new(),
        };
        Ok(Self { status: completion.status.code(), data })
    }
}

/// Who connects, and to what.
#[derive(Clone, Debug)]
pub struct Login {
    /// `address:port` of the portal.
    pub portal: String,
    /// The subsystem.
    pub subsystem: String,
    /// The host.
    pub host: String,
    /// Its identifier.
    pub host_id: [u8; 16],
    /// Header and data digests.
    pub digests: bool,
    /// Keep alive timeout; zero: none.
    pub kato: Duration,
    /// How long it is waited for: to be connected, and for answers of the I/O queue.
    pub patience: Duration,
}

impl Login {
    /// A host without digests.
    pub fn new(portal: &str, subsystem: &str) -> Self {
        Self {
            portal: portal.to_owned(),
            subsystem: subsystem.to_owned(),
            host: "nqn.2026-11.org.lunet:e2e".to_owned(),
            host_id: [7; 16],
            digests: false,
            kato: Duration::ZERO,
            patience: PATIENCE,
        }
    }

    /// The same with less patience.
    pub fn patient(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The same as another host: the one of this number.
    pub fn by(self, number: u8) -> Self {
        Self { host: format!("nqn.2026-11.org.lunet:e2e-{number}"), host_id: [number; 16], ..self }
    }

    /// Connects as a gateway of a failover group would, without its secret: what the controller says.
    ///
    /// # Errors
    /// It cannot be asked.
    pub fn connects_through(&self, through: Through) -> Result<Result<(), String>> {
        let mut options = self.options(1, ANY_CONTROLLER, 0);
        options.connect.through = Some(through);
        let mut queue: Connection<Vec<u8>, Bytes> = Connection::new(options);
        let (mut line, mut sent) = (Line::open(&self.portal)?, Sent::default());
        queue.start(line.now(), &mut sent);
        line.send(sent)?;
        let until = Instant::now() + self.patience;
        while Instant::now() < until {
            let (received, mut sent, mut events) = (line.receive(), Sent::default(), Vec::new());
            let mut cx = Cx { now: line.now(), tx: &mut sent, events: &mut events };
            match &received {
                Ok(bytes) => queue.rx_bytes(bytes, &mut cx),
                Err(_) => queue.transport_closed(&mut events),
            }
            match events.pop() {
                Some(Event::Connected(Connected { authentication, .. })) => {
                    let proves = authentication != Authentication::None;
                    return Ok(if proves { Err("a proof is wanted".into()) } else { Ok(()) });
                }
                Some(Event::Failed(error)) => return Ok(Err(error.to_string())),
                _ => {}
            }
            line.send(sent)?;
        }
        bail!("the controller does not answer")
    }

    fn options(&self, qid: u16, cntlid: u16, capsule_data: u32) -> Options {
        Options {
            connect: Connect {
                qid,
                sqsize: 31,
                no_sq_flow: false,
                kato: if qid == 0 { self.kato } else { Duration::ZERO },
                host_id: self.host_id,
                cntlid,
                subnqn: self.subsystem.clone(),
                hostnqn: self.host.clone(),
                through: None,
            },
            alignment: 0,
            header_digest: self.digests,
            data_digest: self.digests,
            max_r2t: 1,
            capsule_data,
            connect_timeout: PATIENCE,
        }
    }
}

/// A socket and the time.
struct Line {
    stream: TcpStream,
    start: Instant,
}

impl Line {
    fn open(portal: &str) -> Result<Self> {
        let stream = TcpStream::connect(portal).context("cannot connect")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_millis(50)))?;
        Ok(Self { stream, start: Instant::now() })
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn send(&mut self, sent: Sent) -> Result<()> {
        self.stream.write_all(&sent.0).context("cannot send")
    }

    /// What has come, if something has. An error at the end of the stream.
    fn receive(&mut self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; 64 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => bail!("the controller has closed the connection"),
            Ok(n) => {
                bytes.truncate(n);
                Ok(bytes)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Ok(Vec::new())
            }
            Err(error) => Err(error).context("cannot receive"),
        }
    }
}

/// An admin queue, up.
struct AdminQueue {
    line: Line,
    session: Session<Bytes>,
    /// Asynchronous events that nobody has asked for yet.
    notices: Vec<u32>,
}

impl AdminQueue {
    fn connect(login: &Login) -> Result<(Self, ControllerInfo)> {
        let session = Session::new(login.options(0, ANY_CONTROLLER, 8192), 1);
        let mut own = Self { line: Line::open(&login.portal)?, session, notices: Vec::new() };
        let mut sent = Sent::default();
        own.session.start(own.line.now(), &mut sent);
        own.line.send(sent)?;
        let until = Instant::now() + login.patience;
        loop {
            for event in own.turn()? {
                match event {
                    SessionEvent::Ready(info) => return Ok((own, *info)),
                    SessionEvent::Failed(error) => bail!("{error}"),
                    _ => {}
                }
            }
            ensure!(Instant::now() < until, "the controller does not get ready");
        }
    }

    /// What has happened, if something has.
    fn turn(&mut self) -> Result<Vec<SessionEvent<Bytes>>> {
        let received = self.line.receive();
        let (mut sent, mut events) = (Sent::default(), Vec::new());
        let mut cx = SessionCx { now: self.line.now(), tx: &mut sent, events: &mut events };
        match &received {
            Ok(bytes) => self.session.rx_bytes(bytes, &mut cx),
            Err(_) => self.session.transport_closed(&mut cx),
        }
        self.session.handle_timeout(&mut cx);
        // Why it is over says more than that the socket is closed.
        let failed = |event: &SessionEvent<Bytes>| matches!(event, SessionEvent::Failed(_));
        if !events.iter().any(failed) {
            received?;
            self.line.send(sent)?;
        }
        let notice = |event: &SessionEvent<Bytes>| match event {
            SessionEvent::Notice(_, result) => Some(*result),
            _ => None,
        };
        self.notices.extend(events.iter().filter_map(notice));
        Ok(events)
    }

    fn execute(&mut self, sqe: Sqe, data: Data<Vec<u8>, Bytes>) -> Result<Outcome> {
        let mut sent = Sent::default();
        let command = Command { token: 1, sqe, data };
        let refused = self.session.submit(command, self.line.now(), &mut sent);
        refused.map_err(|refused| anyhow!("{}", refused.error))?;
        self.line.send(sent)?;
        let until = Instant::now() + PATIENCE;
        loop {
            for event in self.turn()? {
                match event {
                    SessionEvent::Finished(finished) => return Outcome::of(finished),
                    SessionEvent::Failed(error) => bail!("{error}"),
                    _ => {}
                }
            }
            ensure!(Instant::now() < until, "no answer");
        }
    }
}

/// A connected host.
pub struct Host {
    admin: AdminQueue,
    line: Line,
    queue: Connection<Vec<u8>, Bytes>,
    patience: Duration,
    /// What the controller has said of itself.
    pub info: ControllerInfo,
}

impl Host {
    /// Connects: an admin queue and an I/O queue.
    pub fn connect(login: &Login) -> Result<Self> {
        let (admin, info) = AdminQueue::connect(login)?;
        let queue = Connection::new(login.options(1, info.cntlid, info.capsule_data()));
        let (line, patience) = (Line::open(&login.portal)?, login.patience);
        let mut own = Self { admin, line, queue, patience, info };
        let mut sent = Sent::default();
        own.queue.start(own.line.now(), &mut sent);
        own.line.send(sent)?;
        let until = Instant::now() + patience;
        while !own.queue.is_ready() {
            if let Some(Event::Failed(error)) = own.turn()?.pop() {
                bail!("{error}");
            }
            ensure!(Instant::now() < until, "the queue does not get ready");
        }
        Ok(own)
    }

    fn turn(&mut self) -> Result<Vec<Event<Vec<u8>, Bytes>>> {
        let received = self.line.receive();
        let (mut sent, mut events) = (Sent::default(), Vec::new());
        let mut cx = Cx { now: self.line.now(), tx: &mut sent, events: &mut events };
        match &received {
            Ok(bytes) => self.queue.rx_bytes(bytes, &mut cx),
            Err(_) => self.queue.transport_closed(&mut events),
        }
        self.line.send(sent)?;
        if events.is_empty() {
            received?;
        }
        Ok(events)
    }

    /// Sends commands at once, and waits for all. Outcomes are in the order of the commands.
    pub fn execute_all(
        &mut self,
        commands: Vec<(Sqe, Data<Vec<u8>, Bytes>)>,
    ) -> Result<Vec<Outcome>> {
        let mut outcomes: Vec<Option<Outcome>> = vec![None; commands.len()];
        let mut sent = Sent::default();
        for (token, (sqe, data)) in commands.into_iter().enumerate() {
            let command = Command { token: token as u64, sqe, data };
            let refused = self.queue.submit(command, &mut sent);
            refused.map_err(|refused| anyhow!("{}", refused.error))?;
        }
        self.line.send(sent)?;
        let until = Instant::now() + self.patience;
        while outcomes.iter().any(Option::is_none) {
            for event in self.turn()? {
                match event {
                    Event::Finished(finished) => {
                        let at = finished.token as usize;
                        outcomes[at] = Some(Outcome::of(finished)?);
                    }
                    Event::Failed(error) => bail!("{error}"),
                    Event::Connected(_) => {}
                }
            }
            ensure!(Instant::now() < until, "no answer");
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    /// Sends a command, and waits for nothing.
    pub fn begin(&mut self, io: Io, nsid: u32, data: Data<Vec<u8>, Bytes>) -> Result<()> {
        let mut sent = Sent::default();
        let command = Command { token: u64::MAX, sqe: io.encode(nsid), data };
        let refused = self.queue.submit(command, &mut sent);
        refused.map_err(|refused| anyhow!("{}", refused.error))?;
        self.line.send(sent)
    }

    /// Sends a command of the I/O queue, and waits for its end.
    pub fn execute(&mut self, io: Io, nsid: u32, data: Data<Vec<u8>, Bytes>) -> Result<Outcome> {
        let outcomes = self.execute_all(vec![(io.encode(nsid), data)])?;
        outcomes.into_iter().next().context("no answer")
    }

    /// Reads blocks.
    pub fn read(&mut self, nsid: u32, lba: u64, blocks: u32) -> Result<Vec<u8>> {
        let io = Io::Read { range: Blocks { lba, blocks }, fua: false };
        let outcome = self.execute(io, nsid, Data::Read(vec![0; blocks as usize * BLOCK]))?;
        ensure!(outcome.status.is_success(), "{}", outcome.status);
        Ok(outcome.data)
    }

    /// Writes blocks; its status.
    pub fn try_write(&mut self, nsid: u32, lba: u64, data: &[u8]) -> Result<Status> {
        let range = Blocks { lba, blocks: (data.len() / BLOCK) as u32 };
        Ok(self.execute(Io::Write { range, fua: false }, nsid, sends(data))?.status)
    }

    /// Writes blocks.
    pub fn write(&mut self, nsid: u32, lba: u64, data: &[u8]) -> Result<()> {
        let status = self.try_write(nsid, lba, data)?;
        ensure!(status.is_success(), "{status}");
        Ok(())
    }

    /// Makes what was written stable.
    pub fn flush(&mut self, nsid: u32) -> Result<()> {
        let status = self.execute(Io::Flush, nsid, Data::None)?.status;
        ensure!(status.is_success(), "{status}");
        Ok(())
    }

    /// Compares a block, and writes another one if it is the same, by fused commands. False: it is another one.
    pub fn compare_and_write(
        &mut self,
        nsid: u32,
        lba: u64,
        (compare, write): (&[u8], &[u8]),
    ) -> Result<bool> {
        let [compared, written] = self.execute_pair(nsid, lba, (compare, write))?;
        if compared.status == Status::COMPARE_FAILURE {
            ensure!(!written.status.is_success(), "written although it differs");
            return Ok(false);
        }
        ensure!(compared.status.is_success(), "{}", compared.status);
        ensure!(written.status.is_success(), "{}", written.status);
        Ok(true)
    }

    /// Compares a block, and writes another one, by fused commands: how both end.
    pub fn execute_pair(
        &mut self,
        nsid: u32,
        lba: u64,
        (compare, write): (&[u8], &[u8]),
    ) -> Result<[Outcome; 2]> {
        let range = Blocks { lba, blocks: (compare.len() / BLOCK) as u32 };
        let mut first = Io::Compare { range }.encode(nsid);
        let mut second = Io::Write { range, fua: false }.encode(nsid);
        // FUSE: the first command of the pair, and the second one.
        first.flags |= 1;
        second.flags |= 2;
        let commands = vec![(first, sends(compare)), (second, sends(write))];
        self.execute_all(commands)?.try_into().map_err(|_| anyhow!("two"))
    }

    /// A page of Identify, in its 4096 bytes.
    pub fn identify(&mut self, cns: u8, nsid: u32) -> Result<Vec<u8>> {
        let sqe = Admin::Identify(Identify { cns, cntid: 0, csi: 0 }).encode(nsid);
        let outcome = self.admin.execute(sqe, Data::Read(vec![0; 4096]))?;
        ensure!(outcome.status.is_success(), "{}", outcome.status);
        Ok(outcome.data)
    }

    /// A log page, its first bytes.
    pub fn log(&mut self, lid: u8, len: usize) -> Result<Vec<u8>> {
        let (specific, retain, offset, csi) = (0, false, 0, 0);
        let log = GetLog { lid, specific, retain, len: len as u64, offset, csi };
        let outcome =
            self.admin.execute(Admin::GetLogPage(log).encode(0), Data::Read(vec![0; len]))?;
        ensure!(outcome.status.is_success(), "{}", outcome.status);
        Ok(outcome.data)
    }

    /// The identifiers of the namespaces that there are.
    pub fn namespaces(&mut self) -> Result<Vec<u32>> {
        let list = self.identify(2, 0)?;
        let ids = list.chunks_exact(4).map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]]));
        Ok(ids.take_while(|id| *id > 0).collect())
    }

    /// NGUID, and the UUID of the namespace's descriptors.
    pub fn names(&mut self, nsid: u32) -> Result<([u8; 16], [u8; 16])> {
        let nguid = self.identify(0, nsid)?[104..120].try_into()?;
        let list = self.identify(3, nsid)?;
        let mut at = 0;
        while list[at] != 3 {
            ensure!(list[at] != 0, "no UUID");
            at += 4 + usize::from(list[at + 1]);
        }
        Ok((nguid, list[at + 4..at + 20].try_into()?))
    }

    /// Waits for an asynchronous event: its result.
    pub fn notice(&mut self) -> Result<u32> {
        let until = Instant::now() + PATIENCE;
        loop {
            if !self.admin.notices.is_empty() {
                return Ok(self.admin.notices.remove(0));
            }
            if let Some(SessionEvent::Failed(error)) = self.admin.turn()?.pop() {
                bail!("{error}");
            }
            ensure!(Instant::now() < until, "no event");
        }
    }
}

/// Data of a command that sends it.
pub fn sends(data: &[u8]) -> Data<Vec<u8>, Bytes> {
    Data::Write(Bytes(data.into()), data.len() as u32)
}
