//! A second front, to show that the server knows no protocol: it takes reads, writes and comparisons with a write of one
//! volume, one at a time on each connection, and answers with the data and a byte.

use std::convert::Infallible as Never;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::time::Duration;

use lunet_backends::{Storage, VolumeSpec, open};
use lunet_block::ByteRange;
use lunet_ring::{Buf, DriverChoice, Payload};
use lunet_server::conn::{self, ConnId};
use lunet_server::front::{Front, FrontConn, FrontError, Local, Occasion};
use lunet_server::{
    ApplyError, Limits, Member, Portal, StartError, Transports, change::Next, core::Core,
    hosting::Hosting, portals::Portals, served::World, server::Server, shard::Shard,
};
use lunet_volume::{
    Budget, Client, Command, Exclusive, Face, Health, Intake, Kind, Merge, OperationId, Progress,
    Read, Sink, Source, Step, Volume, VolumeId, Work, Write,
};
use socket2::{Domain, Socket, Type};

const VOLUME: VolumeId = VolumeId::new(0);

const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Operation, offset and length.
const HEADER: usize = 17;

type Conn = conn::Conn<EchoConn>;
type Conns = conn::Conns<EchoConn>;
type Filled = Option<(Buf, Range<usize>)>;

/// The front of a shard.
struct Echo(Local<Self>);

impl Deref for Echo {
    type Target = Local<Self>;
    fn deref(&self) -> &Local<Self> {
        &self.0
    }
}

impl DerefMut for Echo {
    fn deref_mut(&mut self) -> &mut Local<Self> {
        &mut self.0
    }
}

/// What has come and was not worked off, and what is at work.
#[derive(Default)]
struct EchoConn {
    bytes: Vec<u8>,
    busy: Option<OperationId>,
}

#[derive(Default)]
struct EchoCommand(Option<ConnId>);

struct Shown;

impl Face for Shown {
    fn is_closed(&self) -> bool {
        false
    }
    fn writes_through(&self) -> bool {
        false
    }
}

impl Command for EchoCommand {
    type Face = Shown;
    fn clear(&mut self) {
        self.0 = None;
    }
}

impl FrontConn for EchoConn {
    type Counts = ();
    fn serves(&self) -> bool {
        true
    }
}

/// A connection with what its operation asks for.
struct Peer<'a> {
    conn: &'a mut Conn,
    asked: Vec<(u64, usize, Buf)>,
}

impl Sink for Peer<'_> {
    fn is_behind(&mut self, _: OperationId) -> bool {
        false
    }
    fn send(&mut self, payload: Payload, len: usize, _: bool) {
        let id = self.conn.out.chain.payload(payload);
        self.conn.out.chain.slice(id, 0..len);
    }
}

impl Source for Peer<'_> {
    fn ask(&mut self, offset: u64, len: usize, buf: Buf) {
        self.asked.push((offset, len, buf));
    }
}

impl Client for Peer<'_> {
    fn budget(&self) -> Budget<'_> {
        self.conn.budget()
    }
}

impl Echo {
    /// Begins the next request of a connection, if all of it is there.
    fn begin(&mut self, conn: &mut Conn, slot: ConnId) {
        let bytes = &conn.front.bytes;
        if conn.front.busy.is_some() || bytes.len() < HEADER {
            return;
        }
        let number = |at| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (offset, len) = (number(1), number(9));
        let (kind, work) = if bytes[0] == b'R' {
            let range = ByteRange::new(offset, len);
            (Kind::Read, Work::Read(Read::new(range, Some(len), true)))
        } else if bytes.len() < HEADER + len as usize {
            return;
        } else if bytes[0] == b'C' {
            let what = (Merge::CompareAndWrite, ByteRange::new(offset, len / 2), false);
            let storage = &self.exec.storage;
            let exclusive = Exclusive::new(storage, (conn.budget(), VOLUME), what, None);
            let (exclusive, _) = exclusive.expect("memory for a block or two");
            (Kind::Write, Work::Exclusive(Box::new(exclusive)))
        } else {
            let (intake, _) = Intake::new(len, 512, None);
            (Kind::Write, Work::Write(Write::new(offset, intake, false)))
        };
        conn.front.bytes.drain(..HEADER);
        let id = self.exec.begin(VOLUME, kind);
        let operation = &mut self.exec.operations[id];
        (operation.work, operation.command.0) = (work, Some(slot));
        conn.front.busy = Some(id);
        self.pump(conn, id, slot);
    }

    fn pump(&mut self, conn: &mut Conn, id: OperationId, slot: ConnId) {
        let mut peer = Peer { conn, asked: Vec::new() };
        let mut progress = self.exec.pump(id, &mut peer);
        while let Some((offset, len, mut buf)) = peer.asked.pop() {
            buf[..len].copy_from_slice(&peer.conn.front.bytes[offset as usize..][..len]);
            self.exec.data_arrived(id, offset, len, buf);
            progress = self.exec.pump(id, &mut peer);
        }
        self.touched.push(slot);
        if progress == Progress::Waits {
            return;
        }
        let operation = &self.exec.operations[id];
        if operation.kind == Kind::Write {
            conn.front.bytes.clear();
        }
        conn.front.busy = None;
        conn.out.chain.bytes(&[u8::from(operation.requests.is_failed())]);
        self.exec.remove(id);
    }
}

impl Front for Echo {
    type Conn = EchoConn;
    type Command = EchoCommand;
    type Face = Shown;
    type Export = ();
    type Rules = ();
    type Shared = ();
    type Message = ();
    type Aim = ();
    type Counts = ();
    type Session = ();
    type Config = (Arc<Volume<Shown>>, SocketAddr);
    type Layout = Never;
    type Effects = ();
    type Groups = ();
    type Helper = ();

    fn hosting(config: &Self::Config) -> Hosting {
        Hosting {
            portals: vec![Portal { address: config.1, tag: 1, transports: Transports::Tcp }],
            limits: Limits { buffer_bytes: 8 << 20, ..Limits::default() },
            data_timeout: Duration::ZERO,
            shards: Some(2),
            driver: DriverChoice::Auto,
            busy_poll: lunet_ring::BusyPoll::OFF,
        }
    }

    fn open((volume, _): Self::Config, all: Arc<Portals>) -> Result<((), World<Self>), FrontError> {
        let mut world = World::default().successor(all, ());
        assert_eq!(world.put_volume(None, volume), VOLUME);
        Ok(((), world))
    }

    fn start_helper(_: Arc<Core<Self>>) -> io::Result<()> {
        Ok(())
    }

    fn next_world(_: &Core<Self>, _: &World<Self>, no: Never) -> Result<Next<Self>, ApplyError> {
        match no {}
    }

    fn stop_helper((): (), _: Duration) {}
    fn publish((): ()) {}
    fn end_sessions(_: &mut Shard<Self>, _: &[u16]) {}
    fn unblock(&mut self, _: &mut Conns, _: ConnId) {}
    fn message(_: &mut Shard<Self>, (): ()) {}
    fn see(_: &mut Shard<Self>, _: ConnId, _: &World<Self>) {}

    fn new(local: Local<Self>) -> Self {
        Self(local)
    }
    fn accept(&mut self) -> EchoConn {
        EchoConn::default()
    }

    fn received(&mut self, conn: &mut Conn, _: Filled, _: usize, bytes: &[u8]) {
        conn.front.bytes.extend_from_slice(bytes);
    }

    fn proceed(shard: &mut Shard<Self>, slot: ConnId) {
        let Some(conn) = shard.conns.get_mut(slot) else { return };
        shard.front.begin(conn, slot);
        shard.front.take_answers(&mut shard.conns);
        shard.touch(slot);
    }

    /// An operation goes on, and then its connection; or it ends, if nobody waits for it.
    fn resume(&mut self, conns: &mut Conns, id: OperationId, _: Occasion) {
        let Some(operation) = self.exec.operations.get(id) else { return };
        match operation.command.0.and_then(|slot| Some((slot, conns.get_mut(slot)?))) {
            Some((slot, conn)) => {
                self.pump(conn, id, slot);
                self.begin(conn, slot);
            }
            None if operation.requests.is_over() => self.exec.remove(id),
            None => {}
        }
    }

    fn returned(&mut self, conns: &mut Conns, id: OperationId, _: Step) {
        self.resume(conns, id, Occasion::Look);
    }

    fn take_answers(&mut self, conns: &mut Conns) {
        while let Some(mut batch) = self.exec.next_batch() {
            for done in batch.drain(..) {
                let Some((id, seq, done)) = self.exec.take_answer(done) else { continue };
                let step = self.exec.answered(id, seq, done);
                self.returned(conns, id, step);
            }
            self.exec.end_batch(batch);
        }
    }

    fn end_commands(&mut self, conn: &mut Conn, _: ConnId) {
        let Some(id) = conn.front.busy.take() else { return };
        self.exec.operations[id].command.0 = None;
        self.exec.abandon(id);
    }
}

/// Data that was read, and whether the request has failed.
fn try_to(
    stream: &mut TcpStream,
    (operation, offset, len): (u8, u64, usize),
    data: &[u8],
) -> (Vec<u8>, bool) {
    let numbers = [offset.to_be_bytes(), (len as u64).to_be_bytes()].concat();
    stream.write_all(&[&[operation], &numbers[..], data].concat()).expect("the server takes it");
    let mut answer = vec![1; if operation == b'R' { len + 1 } else { 1 }];
    stream.read_exact(&mut answer).expect("an answer");
    let failed = answer.pop() != Some(0);
    (answer, failed)
}

fn ask(stream: &mut TcpStream, operation: u8, offset: u64, len: usize, data: &[u8]) -> Vec<u8> {
    let (answer, failed) = try_to(stream, (operation, offset, len), data);
    assert!(!failed, "it has failed");
    answer
}

fn volume() -> Arc<Volume<Shown>> {
    let backend = open(&VolumeSpec::new(Storage::Memory { size: 8 << 20 })).expect("a volume");
    Arc::new(Volume::new("v".into(), (backend, Health::new("v")), None, Shown))
}

#[test]
fn reads_and_writes_of_another_protocol_are_served() {
    let server = Server::<Echo>::start((volume(), LOCAL)).expect("a server");
    let connect = |_| TcpStream::connect(server.portals()[0]).expect("a connection");
    let mut streams: Vec<TcpStream> = (0..4).map(connect).collect();
    let data: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 512 + at % 251) as u8).collect();
    ask(&mut streams[0], b'W', 4096, data.len(), &data);
    for stream in &mut streams {
        assert!(ask(stream, b'R', 4096, data.len(), &[]) == data, "other data came back");
    }
    ask(&mut streams[1], b'W', 0, 512, &[9; 512]);
    assert_eq!(ask(&mut streams[2], b'R', 0, 512, &[]), [9; 512]);
    let stats = server.handle().stats();
    assert_eq!(stats.loads.iter().map(|load| load.connections).sum::<usize>(), 4);
    assert_eq!((stats.volumes[0].name.as_str(), stats.volumes[0].commands_in_flight), ("v", 0));
    drop(streams);
    assert!(server.stop(Duration::from_secs(5)).flushed);
}

fn connect_to(portal: SocketAddr) -> TcpStream {
    TcpStream::connect(portal).expect("a connection")
}

/// Counts up by comparing and writing, until it was the one who did so `times` times. What it found each time.
fn count_up(mut stream: TcpStream, times: usize) -> Vec<u64> {
    let block = |number: u64| [number.to_be_bytes().as_slice(), &[7; 504]].concat();
    let mut found = Vec::new();
    while found.len() < times {
        let now = ask(&mut stream, b'R', 0, 512, &[]);
        let number = u64::from_be_bytes(now[..8].try_into().expect("eight bytes"));
        let both = [now, block(number + 1)].concat();
        if !try_to(&mut stream, (b'C', 0, 1024), &both).1 {
            found.push(number);
        }
    }
    found
}

#[test]
fn servers_that_share_a_volume_keep_out_of_each_others_ranges() {
    let (volume, places) = (volume(), Member::of([Some(2), Some(2)]));
    let start = |member| Server::<Echo>::start_as(member, (volume.clone(), LOCAL)).expect("one");
    let servers = places.map(start);
    // A thread holds the volume on the shards of both.
    let held = servers[0].handle().hold("v", Duration::from_secs(5)).expect("it is sound");
    let mut stream = TcpStream::connect(servers[1].portals()[0]).expect("a connection");
    let reading = std::thread::spawn(move || ask(&mut stream, b'R', 0, 512, &[]));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!reading.is_finished());
    drop(held);
    assert_eq!(reading.join().expect("it goes on")[..8], 0u64.to_be_bytes());
    let mut clients = Vec::new();
    for server in servers.iter().chain(&servers) {
        let stream = TcpStream::connect(server.portals()[0]).expect("a connection");
        clients.push(std::thread::spawn(|| count_up(stream, 200)));
    }
    let found = clients.into_iter().flat_map(|client| client.join().expect("it counts"));
    let mut found: Vec<u64> = found.collect();
    found.sort_unstable();
    assert!(found.iter().copied().eq(0..800), "two wrote for one comparison");
    let loads = servers.iter().flat_map(|server| server.handle().stats().loads);
    assert!(loads.map(|load| load.shard).eq(0..4));
    servers.iter().for_each(|server| server.begin_stop(Duration::ZERO));
    assert!(servers.into_iter().all(|server| server.stop(Duration::ZERO).flushed));
}

/// A server that begins later finds what was locked before it was there, and one that does not begin changes nothing.
#[test]
fn a_server_begins_while_another_one_serves() {
    let (volume, [first, second]) = (volume(), Member::of([Some(2), Some(2)]));
    let start = |member: &Member, address| {
        Server::<Echo>::prepare_as(member.clone(), (volume.clone(), address))
    };
    let owner = start(&first, LOCAL).expect("one").begin();
    let portal = owner.portals()[0];
    let count = |portal| std::thread::spawn(move || count_up(connect_to(portal), 200));
    let mut clients = vec![count(portal), count(portal)];
    // Nobody waits for shards that are not there, nor for those that stand and have not begun.
    let hold = || owner.handle().hold("v", Duration::from_secs(5)).expect("nobody is in the way");
    drop(hold());
    let Err(StartError::InUse { address }) = start(&second, portal) else {
        panic!("the address is taken");
    };
    assert_eq!(address, portal);
    let standby = start(&second, LOCAL).expect("it is free");
    let gone = standby.portals()[0];
    drop(hold());
    drop(standby);
    let standby = start(&second, gone).expect("the address is free again");
    let held = hold();
    let other = standby.begin();
    let reading = std::thread::spawn(move || ask(&mut connect_to(gone), b'R', 4096, 512, &[]));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!reading.is_finished(), "the volume was held before the server began");
    drop(held);
    assert_eq!(reading.join().expect("it goes on"), [0; 512]);
    clients.extend([count(gone), count(gone)]);
    let found = clients.into_iter().flat_map(|client| client.join().expect("it counts"));
    let mut found: Vec<u64> = found.collect();
    found.sort_unstable();
    assert!(found.iter().copied().eq(0..800), "two wrote for one comparison");
    owner.begin_stop(Duration::ZERO);
    assert!(other.stop(Duration::ZERO).flushed && owner.stop(Duration::ZERO).flushed);
}

/// A connection whose system takes next to nothing that nobody reads.
fn connect_small(portal: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a size");
    socket.connect(&portal.into()).expect("a connection");
    socket.into()
}

/// What the kernel sends from the memory of a volume keeps a lock waiting, whether or not the client's system takes it in;
/// and a client that does not take it is disconnected for that.
#[test]
fn a_lock_waits_for_what_went_out_without_a_copy_and_not_for_ever() {
    const LEN: usize = 256 << 10;
    let server = Server::<Echo>::start((volume(), LOCAL)).expect("a server");
    let data: Vec<u8> = (0..LEN as u32).map(|at| (at / 512 + at % 251) as u8).collect();
    let mut other = connect_to(server.portals()[0]);
    other.set_read_timeout(Some(Duration::from_secs(60))).expect("a time limit");
    ask(&mut other, b'W', 0, LEN, &data);
    let mut lazy = connect_small(server.portals()[0]);
    let numbers = [0u64.to_be_bytes(), (LEN as u64).to_be_bytes()].concat();
    lazy.write_all(&[&b"R"[..], &numbers].concat()).expect("the server takes it");
    // The first of it has come, so all of it is on its way.
    assert_eq!(lazy.peek(&mut [0]).expect("data"), 1);
    // It compares, and writes what differs from what the other one has not read yet.
    let both = [&data[..512], &[0xEE; 512]].concat();
    assert!(!try_to(&mut other, (b'C', 0, 1024), &both).1, "it has failed");
    ask(&mut other, b'W', 512, LEN - 512, &vec![0xEE; LEN - 512]);
    let loads = server.handle().stats().loads;
    if loads.iter().all(|load| load.zero_copy_bytes + load.zero_copy_copied_bytes == 0) {
        return eprintln!("not tested: this kernel has no sends without a copy that report");
    }
    let mut taken = Vec::new();
    // It ends in a reset, or as if it were all.
    drop(lazy.read_to_end(&mut taken));
    assert!(taken.len() < LEN, "it was disconnected");
    assert!(taken == data[..taken.len()], "it was sent what was written later");
    drop((other, lazy));
    assert!(server.stop(Duration::from_secs(5)).flushed);
}
