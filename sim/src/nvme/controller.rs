//! A host's end of a controller: an admin queue and I/O queues, each over a connection of its own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lunet_nvme::command::Sqe;
use lunet_nvme::digest::Crc32c;
use lunet_nvme::fabrics::{ANY_CONTROLLER, Connect};
use lunet_nvme::feature;
use lunet_nvme::host::{
    Command, Connection, ControllerInfo, Cx, Data, Error, Event, Finished, Options, Session,
    SessionCx, SessionError, SessionEvent, Tag,
};
use lunet_nvme::transmit::{Payload, Transmit};
use lunet_os::simulated::{self, Key, below};
use lunet_ring::simulated::{Net, Peer, Received};

use super::SUBSYSTEM;
use crate::site::now;

/// Data that is sent.
#[derive(Clone, Debug)]
pub struct Bytes(pub Arc<[u8]>);

impl Payload for Bytes {
    fn crc32c(&self, range: Range<usize>, crc: &mut Crc32c) {
        crc.update(&self.0[range]);
    }
}

/// What is to be sent.
#[derive(Debug, Default)]
pub struct Outgoing(pub Vec<u8>);

impl Transmit for Outgoing {
    type Payload = Bytes;

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn payload(&mut self, payload: Bytes, range: Range<usize>) {
        self.0.extend_from_slice(&payload.0[range]);
    }
}

/// The data of a command.
pub type Transfer = Data<Vec<u8>, Bytes>;

/// A command that has ended.
pub type Done = Finished<Vec<u8>, Bytes>;

/// How a host connects.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The subsystem.
    pub subsystem: &'static str,
    /// Its NQN.
    pub nqn: String,
    /// HOSTID.
    pub id: [u8; 16],
    /// Keep alive timeout; zero: none.
    pub kato: Duration,
    /// Header and data digests.
    pub digests: (bool, bool),
    /// I/O queues that it makes.
    pub queues: u16,
    /// Entries of an I/O queue.
    pub entries: u16,
    no_sq_flow: bool,
    /// Most data that it puts into capsules.
    capsule: u32,
    alignment: u8,
    max_r2t: u32,
    /// How long a Connect may take.
    timeout: Duration,
}

impl Settings {
    /// Those of one visit of a host.
    pub fn draw(nqn: &str, id: [u8; 16], timeout: Duration) -> Self {
        let queues = 1 + below(4) as u16;
        let kato = [0, 0, 1, 2, 5, 30][below(6) as usize];
        Self {
            subsystem: SUBSYSTEM,
            nqn: nqn.to_owned(),
            id,
            kato: Duration::from_secs(kato),
            digests: (below(4) == 0, below(4) == 0),
            queues,
            entries: 2 + below(if below(2) == 0 { 6 } else { 60 }) as u16,
            no_sq_flow: below(3) == 0,
            capsule: [0, 512, 2048, u32::MAX][below(4) as usize],
            alignment: if below(4) == 0 { below(32) as u8 } else { 0 },
            max_r2t: 1 + below(4) as u32,
            timeout,
        }
    }

    /// Those of a queue.
    pub(super) fn options(
        &self,
        qid: u16,
        entries: u16,
        cntlid: u16,
        capsule_data: u32,
    ) -> Options {
        let connect = Connect {
            qid,
            sqsize: entries - 1,
            no_sq_flow: self.no_sq_flow,
            kato: if qid == 0 { self.kato } else { Duration::ZERO },
            host_id: self.id,
            cntlid,
            subnqn: self.subsystem.into(),
            hostnqn: self.nqn.clone(),
            through: None,
        };
        Options {
            connect,
            alignment: self.alignment,
            header_digest: self.digests.0,
            data_digest: self.digests.1,
            max_r2t: self.max_r2t,
            capsule_data,
            connect_timeout: self.timeout,
        }
    }
}

/// What has happened.
pub enum News {
    /// The controller is enabled.
    Ready,
    /// A command of the admin queue has ended.
    Answered(Done),
    /// An I/O queue is connected.
    Connected(u16),
    /// A command of an I/O queue has ended.
    Done(u16, Done),
    /// An I/O queue is no more.
    QueueEnded(u16, Error),
    /// There is something to be looked at.
    Notice(Option<feature::Event>),
    /// The controller was shut down.
    ShutDown,
    /// The admin queue is no more.
    Ended(SessionError),
}

/// A connection, and what is to be sent over it.
struct Line {
    peer: Peer,
    out: Outgoing,
}

impl Line {
    fn dial((to, from): (SocketAddr, SocketAddr), key: Key) -> Option<Self> {
        let peer = simulated::part::<Net>().connect_with(to, from, key)?;
        Some(Self { peer, out: Outgoing::default() })
    }

    fn flush(&mut self) {
        let out = &mut self.out.0;
        let n = self.peer.send(out).unwrap_or(out.len());
        out.drain(..n);
    }
}

/// An I/O queue.
struct Queue {
    proto: Connection<Vec<u8>, Bytes>,
    line: Line,
}

/// A controller.
pub struct Controller {
    settings: Settings,
    ends: (SocketAddr, SocketAddr),
    key: Key,
    session: Session<Bytes>,
    line: Line,
    info: Option<Box<ControllerInfo>>,
    queues: BTreeMap<u16, Queue>,
    /// When the host gave a sign of life.
    sent: Duration,
}

impl Controller {
    /// Connects an admin queue: `None` if nobody listens.
    pub fn dial(ends: (SocketAddr, SocketAddr), settings: Settings) -> Option<Self> {
        let key = simulated::key()?;
        let mut line = Line::dial(ends, key)?;
        let options = settings.options(0, 32, ANY_CONTROLLER, 0);
        let mut session = Session::new(options, settings.queues);
        session.start(now(), &mut line.out);
        let queues = BTreeMap::new();
        Some(Self { settings, ends, key, session, line, info: None, queues, sent: now() })
    }

    /// How the host has connected.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Its identifier, once that is known.
    pub fn cntlid(&self) -> Option<u16> {
        self.info.as_ref().map(|info| info.cntlid)
    }

    /// I/O queues that the host may make, and wants.
    pub fn wanted(&self) -> u16 {
        self.info.as_ref().map_or(0, |info| info.queues.min(self.settings.queues))
    }

    /// True while commands of the admin queue are taken.
    pub fn is_up(&self) -> bool {
        self.session.is_up()
    }

    /// When the host gave its last sign of life.
    pub const fn last_sent(&self) -> Duration {
        self.sent
    }

    /// Connects an I/O queue. False if nobody listens, or it is there already.
    pub fn make_queue(&mut self, qid: u16) -> bool {
        let Some(info) = &self.info else { return false };
        if self.queues.contains_key(&qid) {
            return false;
        }
        let Some(mut line) = Line::dial(self.ends, self.key) else { return false };
        let capsule = info.capsule_data().min(self.settings.capsule);
        let options = self.settings.options(qid, self.settings.entries, info.cntlid, capsule);
        let mut proto = Connection::new(options);
        proto.start(now(), &mut line.out);
        self.queues.insert(qid, Queue { proto, line });
        true
    }

    /// Whether there is such a queue, connected or not.
    pub fn has_queue(&self, qid: u16) -> bool {
        self.queues.contains_key(&qid)
    }

    /// The queues with room for so many commands.
    pub fn with_room(&self, commands: usize) -> Vec<u16> {
        let room = |queue: &Queue| {
            queue.proto.is_ready() && queue.proto.outstanding() + commands <= queue.proto.entries()
        };
        self.queues.iter().filter(|(_, queue)| room(queue)).map(|(qid, _)| *qid).collect()
    }

    /// Sends a command on an I/O queue with room for it: `None` if it has none.
    pub fn submit(&mut self, qid: u16, token: u64, sqe: Sqe, data: Transfer) -> Option<Tag> {
        let queue = self.queues.get_mut(&qid)?;
        self.sent = now();
        queue.proto.submit(Command { token, sqe, data }, &mut queue.line.out).ok()
    }

    /// Sends a command on the admin queue: `None` if that takes none now.
    pub fn ask(&mut self, token: u64, sqe: Sqe, read: usize) -> Option<Tag> {
        let data = if read > 0 { Data::Read(vec![0; read]) } else { Data::None };
        self.sent = now();
        self.session.submit(Command { token, sqe, data }, now(), &mut self.line.out).ok()
    }

    /// Shuts the controller down.
    pub fn shut_down(&mut self) {
        let mut events = Vec::new();
        let mut cx = SessionCx { now: now(), tx: &mut self.line.out, events: &mut events };
        self.session.shut_down(&mut cx);
    }

    /// Takes what has arrived on all queues.
    pub fn receive(&mut self, news: &mut Vec<News>) {
        self.receive_admin(news);
        let mut over = Vec::new();
        for (qid, queue) in &mut self.queues {
            let mut events = Vec::new();
            loop {
                match queue.line.peer.receive(64 << 10) {
                    Received::Nothing => break,
                    Received::Bytes(bytes) => {
                        let tx = &mut queue.line.out;
                        let mut cx = Cx { now: now(), tx, events: &mut events };
                        queue.proto.rx_bytes(&bytes, &mut cx);
                    }
                    Received::Ended | Received::Reset => {
                        queue.proto.transport_closed(&mut events);
                        break;
                    }
                }
            }
            queue.proto.handle_timeout(now(), &mut events);
            news.extend(events.into_iter().map(|event| match event {
                Event::Connected(_) => News::Connected(*qid),
                Event::Finished(done) => News::Done(*qid, done),
                Event::Failed(error) => News::QueueEnded(*qid, error),
            }));
            over.extend(queue.proto.is_over().then_some(*qid));
        }
        over.iter().for_each(|qid| drop(self.queues.remove(qid)));
    }

    fn receive_admin(&mut self, news: &mut Vec<News>) {
        let mut events = Vec::new();
        loop {
            let received = self.line.peer.receive(64 << 10);
            let mut cx = SessionCx { now: now(), tx: &mut self.line.out, events: &mut events };
            match received {
                Received::Nothing => break,
                Received::Bytes(bytes) => self.session.rx_bytes(&bytes, &mut cx),
                Received::Ended | Received::Reset => {
                    self.session.transport_closed(&mut cx);
                    break;
                }
            }
        }
        self.heard(events, news);
    }

    /// Lets the time of the admin queue pass.
    pub fn tick(&mut self, news: &mut Vec<News>) {
        let mut events = Vec::new();
        let tx = &mut self.line.out;
        let before = tx.0.len();
        self.session.handle_timeout(&mut SessionCx { now: now(), tx, events: &mut events });
        if tx.0.len() > before {
            self.sent = now();
        }
        self.heard(events, news);
    }

    fn heard(&mut self, events: Vec<SessionEvent<Bytes>>, news: &mut Vec<News>) {
        for event in events {
            news.push(match event {
                SessionEvent::Ready(info) => {
                    self.info = Some(info);
                    News::Ready
                }
                SessionEvent::Notice(event, _) => News::Notice(event),
                SessionEvent::Finished(done) => News::Answered(done),
                SessionEvent::ShutDown => News::ShutDown,
                SessionEvent::Failed(error) => News::Ended(error),
            });
        }
    }

    /// Sends what there is room for.
    pub fn flush(&mut self) {
        self.line.flush();
        self.queues.values_mut().for_each(|queue| queue.line.flush());
    }

    /// Waits until something has changed on any queue, or the time is over.
    pub fn wait(&self, limit: Duration) {
        simulated::park(Some(self.key), Some(limit));
    }

    /// Breaks the connection of the admin queue.
    pub fn break_admin(&self) {
        self.line.peer.reset();
    }

    /// Breaks the connection of an I/O queue.
    pub fn break_queue(&self, qid: u16) {
        self.queues.get(&qid).into_iter().for_each(|queue| queue.line.peer.reset());
    }

    /// Breaks all connections.
    pub fn break_all(&self) {
        self.break_admin();
        self.queues.values().for_each(|queue| queue.line.peer.reset());
    }

    /// Closes the connections of all I/O queues: their commands come back no more.
    pub fn close_queues(&mut self) {
        self.queues.clear();
    }
}

/// Whether a connection ended because the controller has done what it may not.
pub fn is_fault(error: &Error) -> bool {
    !matches!(error, Error::Refused(_) | Error::ConnectTimeout | Error::TransportClosed)
}
