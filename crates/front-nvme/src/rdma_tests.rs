//! A shard serves queues over RDMA, with a device in memory and a host of raw capsules.

mod capsules;
mod group;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lunet_backends::{Storage, VolumeSpec, open};
use lunet_nvme::command::{Admin, Cqe, Identify, Io, Range, Sgl, Sqe};
use lunet_nvme::fabrics::{ANY_CONTROLLER, Connect, Fabrics, Property};
use lunet_nvme::pdu::U16;
use lunet_nvme::rdma::{ConnectRequest, Rejection, Remote};
use lunet_nvme::status::Status;
use lunet_ring::{Config as RingConfig, DriverChoice, Event as RingEvent, Ring};
use lunet_server::Member;
use lunet_server::conn::{Conn, ConnId, Wire};
use lunet_server::core::Core;
use lunet_server::front::{Front, FrontConn, RdmaRequest, RejectedRdma};
use lunet_server::hosting::{Limits, Portal, Transports};
use lunet_server::mail::Mailbox;
use lunet_server::places::ConnRef;
use lunet_server::rdma::fake::{self, Work};
use lunet_server::rdma::{Adapter, Endpoint, QueuePair, ReceivePool};
use lunet_server::shard::Rdma;
use lunet_volume::{Face, Health, Names, Volume, VolumeId};
use zerocopy::{FromBytes, IntoBytes};

use crate::config::{Config, Hosts, Layout, Options, RDMA_CAPSULE_DATA, SubsystemEntry, Tls};
use crate::engine::Engine;
use crate::session::Shard;

pub(crate) const SUBSYSTEM: &str = "nqn.2026-11.org.lunet:test";

/// CC: enabled, with entries of 64 and 16 bytes.
pub(crate) const ENABLED: u64 = 0x46_0001;

pub(crate) struct Shown;

impl Face for Shown {
    fn is_closed(&self) -> bool {
        false
    }

    fn writes_through(&self) -> bool {
        false
    }

    fn names(&self) -> Option<Names> {
        Some(Names { uuid: [1; 16], long: [1; 16], short: None })
    }
}

/// A volume of 4 MiB: in memory, or in a file.
pub(crate) fn layout(folder: Option<&tempfile::TempDir>) -> Layout<Shown> {
    let storage = match folder {
        None => Storage::Memory { size: 4 << 20 },
        Some(folder) => {
            let mut file = lunet_backends::FileSpec::new(folder.path().join("volume.img"));
            (file.size, file.create) = (Some(4 << 20), true);
            Storage::File(file)
        }
    };
    let backend = open(&VolumeSpec::new(storage)).expect("a volume opens");
    let volume = Arc::new(Volume::new("v".into(), (backend, Health::new("v")), None, Shown));
    let subsystem = SubsystemEntry {
        nqn: SUBSYSTEM.into(),
        serial: "SN1".into(),
        model: "lunet".into(),
        namespaces: vec![(1, VolumeId::new(0))],
        hosts: Hosts::Any,
        portals: Vec::new(),
    };
    let volumes = vec![(VolumeId::new(0), volume)];
    Layout { volumes, subsystems: vec![subsystem], ..Layout::default() }
}

struct Bench {
    shard: Shard<Shown>,
    wire: fake::Wire,
    events: Vec<RingEvent>,
    /// Free buffer memory before the first connection.
    free: usize,
    next_cid: u16,
}

impl Bench {
    fn new(layout: Layout<Shown>) -> Self {
        let device = fake::device(64);
        Self::over(device, layout)
    }

    fn over((device, wire): (fake::Adapter, fake::Wire), layout: Layout<Shown>) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 4420));
        let portals = vec![Portal { address, tag: 1, transports: Transports::Both }];
        let config = Config {
            portals: portals.clone(),
            layout,
            options: Options { queue_entries: 32, ..Options::default() },
            limits: Limits { buffer_bytes: 16 << 20, ..Limits::default() },
            shards: Some(1),
            driver: DriverChoice::Auto,
            busy_poll: lunet_ring::BusyPoll::OFF,
        };
        let ring = RingConfig { arena_bytes: 16 << 20, ..RingConfig::default() };
        let mut ring = Ring::new(&ring).expect("an event loop");
        let core = Core::new(config, portals, Member::alone(Some(1))).expect("it is served");
        let (mailbox, mail) = Mailbox::new(ring.waker());
        core.set_mailboxes(vec![mailbox]);
        let pool = ReceivePool::new(Adapter::Fake(device), Engine::receives(&core));
        let mut rdma = Rdma::default();
        rdma.add(&mut ring, pool, None).expect("a device");
        let mut shard = Shard::new(0, core, ring, mail).expect("a shard");
        shard.rdma = Some(Box::new(rdma));
        let free = shard.front.exec.storage.ring.arena().free_bytes();
        Self { shard, wire, events: Vec::new(), free, next_cid: 0 }
    }

    /// A connection as it is once the connection manager has brought it.
    fn accept(&mut self, endpoint: u32, asked: ConnectRequest) -> ConnId {
        self.accept_serving(endpoint, asked, 2)
    }

    /// The same; the host serves so many RDMA Reads at a time.
    fn accept_serving(&mut self, endpoint: u32, asked: ConnectRequest, reads: u8) -> ConnId {
        let core = self.shard.core.clone();
        let peer = SocketAddr::from(([127, 0, 0, 1], 40_000 + endpoint as u16));
        let conn_ref = ConnRef { shard: core.choose_shard(None), connection: core.next_serial() };
        assert_eq!(core.login_begins(peer.ip(), conn_ref), None);
        let private = asked.to_bytes();
        let request = RdmaRequest { private: &private, invalidates: true, reads };
        let accepted = self.shard.front.accept_rdma(request).expect("the request is valid");
        assert_eq!(accepted.private, asked.accept());
        let qp = QueuePair::new(0, Endpoint::Fake(endpoint), reads);
        let addresses = (peer, core.first_portals[0].address, 0);
        let wire = Wire::Rdma(Box::new(qp));
        let conn = Conn::new(conn_ref.connection, addresses, wire, accepted.front);
        self.shard.attach(conn).expect("there is room")
    }

    fn iterate(&mut self) {
        let limit = Some(Duration::from_millis(1));
        self.shard.wait(limit, &mut self.events).expect("the kernel waits");
        self.shard.iterate(&mut self.events);
    }

    /// Lets the shard work until it has posted something, which the device carries out.
    fn next(&mut self, endpoint: u32, data: &[u8], status: fake::Status) -> Work {
        let deadline = lunet_os::time::now() + Duration::from_secs(20);
        loop {
            if let Some(work) = self.wire.next(endpoint, data, status) {
                return work;
            }
            assert!(lunet_os::time::now() < deadline, "nothing was posted");
            self.iterate();
        }
    }

    /// The completion that comes next, and the key that it takes back.
    fn completion(&mut self, endpoint: u32) -> (Cqe, Option<u32>) {
        match self.next(endpoint, &[], fake::Status::Success) {
            Work::Send(bytes, back) => {
                (Cqe::read_from_bytes(&bytes).expect("a completion, and nothing else"), back)
            }
            Work::Write(..) => panic!("an RDMA Write instead of a Send"),
            Work::Read(..) => panic!("an RDMA Read instead of a Send"),
        }
    }

    fn status(&mut self, endpoint: u32) -> (Status, Option<u32>) {
        let (cqe, back) = self.completion(endpoint);
        (cqe.completion().status, back)
    }

    fn send(&mut self, endpoint: u32, mut sqe: Sqe, data: &[u8]) {
        self.next_cid += 1;
        sqe.cid = U16::new(self.next_cid);
        self.wire.send(endpoint, &[sqe.as_bytes(), data].concat());
    }

    /// The RDMA Read that comes next gets this data.
    fn answer_read(&mut self, endpoint: u32, data: &[u8]) -> lunet_server::rdma::Remote {
        match self.next(endpoint, data, fake::Status::Success) {
            Work::Read(len, from) => {
                assert_eq!(len, data.len());
                from
            }
            Work::Write(..) => panic!("an RDMA Write instead of an RDMA Read"),
            Work::Send(..) => panic!("a Send instead of an RDMA Read"),
        }
    }

    /// What RDMA Writes put into the host's memory.
    fn written(&mut self, endpoint: u32, memory: Remote, len: usize) -> Vec<u8> {
        let (mut seen, mut left) = (vec![0; len], len);
        while left > 0 {
            let Work::Write(bytes, to) = self.next(endpoint, &[], fake::Status::Success) else {
                panic!("an RDMA Write was expected");
            };
            assert_eq!(to.key, memory.key);
            let at = (to.address - memory.address) as usize;
            seen[at..at + bytes.len()].copy_from_slice(&bytes);
            left -= bytes.len();
        }
        seen
    }

    /// Sends the Connect of a queue, and gives its answer. The data of an admin queue's is not in its capsule.
    fn connect(&mut self, endpoint: u32, connect: &Connect) -> Cqe {
        let (mut sqe, data) = connect.encode();
        if connect.qid == 0 {
            sqe.sgl = Sgl::keyed(memory(3), 1024, true);
            self.send(endpoint, sqe, &[]);
            let from = self.answer_read(endpoint, data.as_bytes());
            assert_eq!((from.key, from.address), (memory(3).key, memory(3).address));
        } else {
            self.send(endpoint, sqe, data.as_bytes());
        }
        self.completion(endpoint).0
    }

    /// An admin queue whose controller is enabled: its CNTLID.
    fn admin(&mut self, endpoint: u32) -> u16 {
        self.accept(endpoint, asked(0, 31));
        let cqe = self.connect(endpoint, &of_queue(0, 31, ANY_CONTROLLER));
        assert!(cqe.completion().status.is_success());
        let cntlid = cqe.result.get() as u16;
        let property = Property::Configuration;
        self.send(endpoint, Fabrics::PropertySet { property, value: ENABLED }.encode(), &[]);
        assert_eq!(self.status(endpoint), (Status::SUCCESS, None));
        cntlid
    }

    fn until_closed(&mut self, endpoint: u32) {
        let deadline = lunet_os::time::now() + Duration::from_secs(20);
        while !self.wire.with(|state| state.closed.contains(&endpoint)) {
            assert!(lunet_os::time::now() < deadline, "the connection stays");
            self.iterate();
        }
    }

    /// Ends a connection.
    fn end(&mut self, endpoint: u32) {
        let port = 40_000 + endpoint as u16;
        let mut conns = self.shard.conns.iter();
        let slot = conns.find(|(_, conn)| conn.peer.port() == port).expect("a connection").0;
        drop(conns);
        self.shard.disconnect(slot);
        self.until_closed(endpoint);
    }

    fn assert_all_is_given_back(&self) {
        assert!(self.shard.conns.is_empty());
        assert_eq!(self.shard.front.exec.storage.ring.arena().free_bytes(), self.free);
    }
}

/// Memory of the host.
fn memory(key: u32) -> Remote {
    Remote { key: key << 24 | 0x00ab_cd00 | key, address: 0x7000_0000_0000 + u64::from(key) }
}

fn asked(qid: u16, sqsize: u16) -> ConnectRequest {
    ConnectRequest { qid, receives: sqsize + 1, sqsize, cntlid: 0 }
}

pub(crate) fn of_queue(qid: u16, sqsize: u16, cntlid: u16) -> Connect {
    Connect {
        qid,
        sqsize,
        no_sq_flow: false,
        kato: Duration::ZERO,
        host_id: [7; 16],
        cntlid,
        subnqn: SUBSYSTEM.into(),
        hostnqn: "nqn.2026-11.org.lunet:host".into(),
        through: None,
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

fn io(write: bool, blocks: u32, sgl: Sgl) -> Sqe {
    let range = Range { lba: 8, blocks };
    let io = if write { Io::Write { range, fua: false } } else { Io::Read { range, fua: false } };
    Sqe { sgl, ..io.encode(1) }
}

/// Connects both queues of a controller, writes with and without data in capsules, and reads it back.
fn life_of_a_controller(layout: Layout<Shown>) {
    let mut bench = Bench::new(layout);
    let cntlid = bench.admin(1);
    let identify = Admin::Identify(Identify { cns: 1, cntid: 0, csi: 0 });
    let page = Sqe { sgl: Sgl::keyed(memory(4), 4096, false), ..identify.encode(0) };
    bench.send(1, page, &[]);
    let page = bench.written(1, memory(4), 4096);
    assert_eq!(page[536] & 5, 5, "SGLS: supported, and keyed");
    assert_eq!(page[1792..1796], ((64 + RDMA_CAPSULE_DATA) / 16).to_le_bytes(), "IOCCSZ");
    assert_eq!(bench.status(1), (Status::SUCCESS, None));

    let slot = bench.accept(2, asked(1, 31));
    let posted = bench.wire.receives(2);
    assert_eq!(posted, bench.shard.conns[slot].front.receives(), "all are posted again");
    let cqe = bench.connect(2, &of_queue(1, 31, cntlid));
    assert_eq!((cqe.completion().status, cqe.result.get() as u16), (Status::SUCCESS, cntlid));

    let data = pattern(65_536);
    bench.send(2, io(true, 128, Sgl::keyed(memory(7), 65_536, true)), &[]);
    let from = bench.answer_read(2, &data);
    assert_eq!((from.address, from.key), (memory(7).address, memory(7).key));
    assert_eq!(bench.status(2), (Status::SUCCESS, Some(memory(7).key)), "its key is taken back");

    let changed: Vec<u8> = pattern(4096).iter().map(|byte| byte ^ 0xff).collect();
    bench.send(2, io(true, 8, Sgl::in_capsule(4096)), &changed);
    assert_eq!(bench.status(2), (Status::SUCCESS, None));

    bench.send(2, io(false, 128, Sgl::keyed(memory(8), 65_536, false)), &[]);
    let seen = bench.written(2, memory(8), 65_536);
    assert!(seen[..4096] == changed[..] && seen[4096..] == data[4096..], "other data came back");
    assert_eq!(bench.status(2), (Status::SUCCESS, None), "nobody asks for the key");

    let sessions = Engine::sessions(&bench.shard);
    assert_eq!((sessions.len(), sessions[0].transport), (1, "rdma"));
    assert_eq!(sessions[0].queues.len(), 2);
    assert_eq!(sessions[0].rdma.as_ref().map(|path| path.queue_depth), Some(32));

    // The end of the admin queue is that of the other one.
    bench.end(1);
    bench.until_closed(2);
    bench.assert_all_is_given_back();
}

#[test]
fn a_memory_volume_is_served_over_rdma() {
    // It answers reads by reference: an RDMA device gets a copy.
    life_of_a_controller(layout(None));
}

#[test]
fn a_file_is_served_over_rdma() {
    let folder = tempfile::tempdir().expect("a folder");
    life_of_a_controller(layout(Some(&folder)));
}

#[test]
fn requests_that_are_not_valid_are_rejected_with_their_codes() {
    let mut bench = Bench::new(layout(None));
    let mut rejected = |private: &[u8], reads| {
        let request = RdmaRequest { private, invalidates: true, reads };
        match bench.shard.front.accept_rdma(request) {
            Err(RejectedRdma { private, .. }) => Rejection::parse(&private),
            Ok(_) => None,
        }
    };
    assert_eq!(rejected(&asked(1, 31).to_bytes(), 1), None);
    assert_eq!(rejected(&asked(1, 32).to_bytes(), 1), Some(Rejection::SubmissionQueueSize));
    assert_eq!(rejected(&asked(129, 31).to_bytes(), 1), Some(Rejection::Queue));
    assert_eq!(rejected(&[], 1), Some(Rejection::Length));
    assert_eq!(rejected(&asked(1, 31).to_bytes(), 0), Some(Rejection::InboundReads));
    let private = Engine::<Shown>::no_room_for_rdma();
    assert_eq!(Rejection::parse(&private), Some(Rejection::Resources));
}

#[test]
fn a_connect_is_for_the_queue_of_its_queue_pair() {
    let mut bench = Bench::new(layout(None));
    let cntlid = bench.admin(1);
    for (endpoint, qid, sqsize, expected) in
        [(2, 2, 31, Connect::WRONG_QUEUE), (3, 1, 16, Connect::WRONG_SIZE)]
    {
        bench.accept(endpoint, asked(1, 15));
        let cqe = bench.connect(endpoint, &of_queue(qid, sqsize, cntlid));
        assert_eq!(cqe.completion(), expected);
        bench.until_closed(endpoint);
    }
    // Less is fine.
    bench.accept(4, asked(1, 15));
    let cqe = bench.connect(4, &of_queue(1, 7, cntlid));
    assert!(cqe.completion().status.is_success());
}

#[test]
fn a_portal_that_is_for_tls_alone_is_not_for_rdma() {
    let mut bench = Bench::new(Layout { tls: vec![(0, Tls::Required)], ..layout(None) });
    bench.accept(1, asked(0, 31));
    let cqe = bench.connect(1, &of_queue(0, 31, ANY_CONTROLLER));
    assert_eq!(cqe.completion().status, Status::AUTHENTICATION_REQUIRED);
    bench.until_closed(1);
    bench.assert_all_is_given_back();
}

#[test]
fn a_host_that_goes_in_the_middle_of_a_write_leaves_nothing() {
    let mut bench = Bench::new(layout(None));
    let cntlid = bench.admin(1);
    bench.accept(2, asked(1, 31));
    bench.connect(2, &of_queue(1, 31, cntlid));
    for key in 1..8 {
        bench.send(2, io(true, 512, Sgl::keyed(memory(key), 512 * 512, true)), &[]);
    }
    // The memory is not what the host has said it is.
    let failed = bench.next(2, &[], fake::Status::RemoteAccess);
    assert!(matches!(failed, Work::Read(..)));
    bench.until_closed(2);
    assert_eq!(Engine::sessions(&bench.shard)[0].queues.len(), 1, "the controller goes on");
    bench.end(1);
    bench.until_closed(1);
    bench.assert_all_is_given_back();
}

#[test]
fn reads_of_a_hosts_memory_are_no_more_than_it_serves() {
    let mut bench = Bench::new(layout(None));
    let cntlid = bench.admin(1);
    bench.accept(2, asked(1, 31));
    bench.connect(2, &of_queue(1, 31, cntlid));
    for key in 1..8 {
        bench.send(2, io(true, 8, Sgl::keyed(memory(key), 4096, true)), &[]);
    }
    let mut finished = 0;
    while finished < 7 {
        bench.iterate();
        assert!(bench.wire.with(|state| state.posted_reads(2)) <= 2);
        match bench.wire.next(2, &pattern(4096), fake::Status::Success) {
            Some(Work::Send(..)) => finished += 1,
            Some(Work::Write(..)) => panic!("nothing was read"),
            Some(Work::Read(..)) | None => {}
        }
    }
}

#[test]
fn a_host_with_more_commands_than_its_queue_has_is_disconnected() {
    let mut bench = Bench::new(layout(None));
    let cntlid = bench.admin(1);
    bench.accept(2, asked(1, 3));
    bench.connect(2, &of_queue(1, 3, cntlid));
    for key in 1..=5 {
        bench.send(2, io(true, 8, Sgl::keyed(memory(key), 4096, true)), &[]);
    }
    bench.until_closed(2);
}
