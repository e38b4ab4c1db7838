//! A shard serves connections over RDMA, with a device in memory and an initiator of raw PDUs.

mod broken;
mod group;
mod immediate;
mod log;
mod room;
mod wake;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lunet_backends::{Storage, VolumeSpec, open};
use lunet_iscsi::iser::{HEADER_LEN, Header, Remote};
use lunet_iscsi::pdu::{self, BHS_LEN, LoginRequest, LogoutRequest, NopOut, ScsiCommand};
use lunet_iscsi::target::Options;
use lunet_ring::{Config as RingConfig, DriverChoice, Event as RingEvent, Ring};
use lunet_scsi::{Identity, Unit};
use lunet_verbs::Status;

use crate::config::{Config, Layout, TargetEntry, VolumeEntry};
use crate::connection::{Conn, IscsiConn};
use crate::engine::Engine;
use crate::session::{Shard, over_rdma};
use lunet_server::Member;
use lunet_server::conn::{ConnId, Wire};
use lunet_server::core::Core;
use lunet_server::front::{Front, FrontConn};
use lunet_server::hosting::{Limits, Portal, Transports};
use lunet_server::mail::Mailbox;
use lunet_server::places::ConnRef;
use lunet_server::rdma::fake::{self, Work};
use lunet_server::rdma::{Adapter, Endpoint, QueuePair, ReceivePool};
use lunet_server::shard::Rdma;

const TARGET: &str = "iqn.2026-11.local.lunet:test";
const READ: u8 = 0xc0;
const WRITE: u8 = 0xa0;

struct Bench {
    shard: Shard,
    wire: fake::Wire,
    events: Vec<RingEvent>,
    /// Free buffer memory before the first connection.
    free: usize,
}

/// One volume of 4 MiB: in memory, or in a file.
fn layout(folder: Option<&tempfile::TempDir>) -> Layout {
    let storage = match folder {
        None => Storage::Memory { size: 4 << 20 },
        Some(folder) => {
            let mut file = lunet_backends::FileSpec::new(folder.path().join("volume.img"));
            (file.size, file.create) = (Some(4 << 20), true);
            Storage::File(file)
        }
    };
    let volume = open(&VolumeSpec::new(storage)).expect("a volume opens");
    let unit = Unit::new(Identity::from_seed("test"), volume.caps().clone());
    let entry = VolumeEntry {
        name: "v".into(),
        volume,
        unit,
        health: lunet_volume::Health::new("v"),
        path: None,
        reservations: None,
    };
    let target = TargetEntry { name: TARGET.into(), luns: vec![(0, 0)], ..TargetEntry::default() };
    Layout { volumes: vec![entry], targets: vec![target], ..Layout::default() }
}

impl Bench {
    fn new(depth: usize, layout: Layout) -> Self {
        Self::over(fake::device(depth), layout)
    }

    /// A device whose connections share their receives.
    fn sharing(depth: usize, layout: Layout) -> Self {
        let (device, wire) = fake::device(depth);
        wire.with(|state| state.shared = Some(Vec::new()));
        Self::over((device, wire), layout)
    }

    fn over((device, wire): (fake::Adapter, fake::Wire), layout: Layout) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 3260));
        let portals = vec![Portal { address, tag: 1, transports: Transports::Both }];
        let config = Config {
            portals: portals.clone(),
            layout,
            port_numbers: None,
            iscsi: Options { queue_depth: 16, ..Options::default() },
            limits: Limits { buffer_bytes: 16 << 20, ..Limits::default() },
            max_discovery: 32,
            shards: Some(1),
            driver: DriverChoice::Auto,
            busy_poll: lunet_ring::BusyPoll::OFF,
        };
        let ring = RingConfig { arena_bytes: 16 << 20, ..RingConfig::default() };
        let mut ring = Ring::new(&ring).expect("an event loop");
        let member = Member::alone(Some(1));
        let core = Core::new(config, portals, member).expect("no reservations");
        let (mailbox, mail) = Mailbox::new(ring.waker());
        core.set_mailboxes(vec![mailbox]);
        let pool = ReceivePool::new(Adapter::Fake(device), Engine::receives(&core));
        let mut rdma = Rdma::default();
        rdma.add(&mut ring, pool, None).expect("a device");
        let mut shard = Shard::new(0, core, ring, mail).expect("a shard");
        shard.rdma = Some(Box::new(rdma));
        let free = shard.front.exec.storage.ring.arena().free_bytes();
        Self { shard, wire, events: Vec::new(), free }
    }

    /// A connection as it is once the connection manager has brought it.
    fn connect(&mut self, endpoint: u32) -> ConnId {
        let core = self.shard.core.clone();
        let peer = SocketAddr::from(([127, 0, 0, 1], 40_000 + endpoint as u16));
        let conn_ref = ConnRef { shard: core.choose_shard(None), connection: core.next_serial() };
        assert_eq!(core.login_begins(peer.ip(), conn_ref), None);
        let proto = over_rdma(&core.front.options, true, Duration::ZERO);
        let qp = QueuePair::new(0, Endpoint::Fake(endpoint), 2);
        let addresses = (peer, core.first_portals[0].address, 0);
        let wire = Wire::Rdma(Box::new(qp));
        let conn = Conn::new(conn_ref.connection, addresses, wire, IscsiConn::new(proto));
        self.shard.attach(conn).expect("there is room")
    }

    fn iterate(&mut self) {
        let limit = Some(Duration::from_millis(1));
        self.shard.wait(limit, &mut self.events).expect("the kernel waits");
        self.shard.iterate(&mut self.events);
    }

    /// Lets the shard work until it has posted something, which the device carries out.
    fn next(&mut self, endpoint: u32, data: &[u8], status: Status) -> Work {
        let deadline = lunet_os::time::now() + Duration::from_secs(20);
        loop {
            if let Some(work) = self.wire.next(endpoint, data, status) {
                return work;
            }
            assert!(lunet_os::time::now() < deadline, "nothing was posted");
            self.iterate();
        }
    }

    /// The PDU of the Send that comes next, and the key that it takes back.
    fn answer(&mut self, endpoint: u32) -> (Vec<u8>, Option<u32>) {
        match self.next(endpoint, &[], Status::Success) {
            Work::Send(bytes, back) => (bytes[HEADER_LEN..].to_vec(), back),
            Work::Write(..) => panic!("an RDMA Write instead of a Send"),
            Work::Read(..) => panic!("an RDMA Read instead of a Send"),
        }
    }

    fn send(&mut self, endpoint: u32, header: Header, pdu: &impl pdu::Wire, data: &[u8]) {
        let message = [&header.to_bytes()[..], pdu.as_bhs(), data].concat();
        self.wire.send(endpoint, &message);
    }

    fn log_in(&mut self, endpoint: u32) {
        self.send_login(endpoint);
        self.logged_in(endpoint);
    }

    fn send_login(&mut self, endpoint: u32) {
        let text = format!(
            "InitiatorName=iqn.2026-11.test:i{endpoint}\0TargetName={TARGET}\0SessionType=Normal\0\
             RDMAExtensions=Yes\0InitialR2T=No\0ImmediateData=Yes\0"
        );
        let mut padded = text.clone().into_bytes();
        padded.resize(text.len().next_multiple_of(4), 0);
        let mut login = LoginRequest { flags: 0x87, ..LoginRequest::default() };
        login.opcode |= 0x40;
        login.data_len = pdu::U24::new(text.len() as u32);
        login.isid = [0x80, 0, 0, 0, 0, endpoint as u8];
        self.send(endpoint, Header::default(), &login, &padded);
    }

    fn logged_in(&mut self, endpoint: u32) {
        self.welcome(endpoint);
        // The first command learns that the unit has been switched on.
        self.command(endpoint, 0, (0, &[0x00], 0), Header::default(), &[]);
        assert_eq!(self.answer(endpoint).0[3], 2);
    }

    /// Logs in where nobody serves the unit: INQUIRY is the command of number 0, which tells of nothing.
    fn log_in_at_standby(&mut self, endpoint: u32) {
        self.send_login(endpoint);
        self.welcome(endpoint);
        let inquiry = [0x12, 0, 0, 0, 36, 0];
        self.command(endpoint, 0, (READ, &inquiry, 36), opens(None, Some(1)), &[]);
        let Work::Write(..) = self.next(endpoint, &[], Status::Success) else {
            panic!("an RDMA Write was expected");
        };
        assert_eq!(self.status(endpoint, 0).0, 0);
    }

    fn welcome(&mut self, endpoint: u32) {
        let (pdu, _) = self.answer(endpoint);
        assert_eq!((pdu[0] & 0x3f, pdu[1] & 0x83, &pdu[36..38]), (0x23, 0x83, &[0, 0][..]));
        let text = String::from_utf8_lossy(&pdu[BHS_LEN..]).into_owned();
        assert!(text.contains("RDMAExtensions=Yes"), "{text}");
        assert!(text.contains("InitialR2T=Yes"), "all that is not in a command is fetched: {text}");
    }

    /// A command with this number: flags, CDB and expected length.
    fn command(
        &mut self,
        endpoint: u32,
        number: u32,
        (flags, cdb, expected): (u8, &[u8], u32),
        header: Header,
        data: &[u8],
    ) {
        let mut command = ScsiCommand { flags: flags | 0x80, ..ScsiCommand::default() };
        command.cdb[..cdb.len()].copy_from_slice(cdb);
        command.expected_len = pdu::U32::new(expected);
        command.itt = pdu::U32::new(100 + number);
        command.cmd_sn = pdu::U32::new(number);
        command.data_len = pdu::U24::new(data.len() as u32);
        self.send(endpoint, header, &command, data);
    }

    /// The status of the SCSI Response that comes next, and the key that it takes back.
    fn status(&mut self, endpoint: u32, number: u32) -> (u8, Option<u32>) {
        let (pdu, back) = self.answer(endpoint);
        assert_eq!((pdu[0], &pdu[16..20]), (0x21, &(100 + number).to_be_bytes()[..]));
        (pdu[3], back)
    }

    fn log_out(&mut self, endpoint: u32, number: u32) {
        let mut logout = LogoutRequest { flags: 0x80, ..LogoutRequest::default() };
        logout.cmd_sn = pdu::U32::new(number);
        self.send(endpoint, Header::default(), &logout, &[]);
        assert_eq!(self.answer(endpoint).0[0], 0x26);
        self.until_closed(endpoint);
    }

    fn until_closed(&mut self, endpoint: u32) {
        let deadline = lunet_os::time::now() + Duration::from_secs(20);
        while !self.wire.with(|state| state.closed.contains(&endpoint)) {
            assert!(lunet_os::time::now() < deadline, "the connection stays");
            self.iterate();
        }
    }

    fn assert_all_is_given_back(&self) {
        assert!(self.shard.conns.is_empty());
        assert_eq!(self.shard.front.exec.storage.ring.arena().free_bytes(), self.free);
    }
}

fn remote(stag: u32) -> Remote {
    Remote { stag, offset: 0x7000_0000_0000 + u64::from(stag) }
}

fn opens(write: Option<u32>, read: Option<u32>) -> Header {
    Header { write: write.map(remote), read: read.map(remote) }
}

/// READ(10) and WRITE(10) of so many blocks of 512 bytes from block 8 on.
fn cdb(opcode: u8, blocks: u16) -> [u8; 10] {
    let [high, low] = blocks.to_be_bytes();
    [opcode, 0, 0, 0, 0, 8, 0, high, low, 0]
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

/// An immediate NOP-Out that wants an answer.
fn ping(bench: &mut Bench, endpoint: u32) {
    numbered_ping(bench, endpoint, 7);
}

fn numbered_ping(bench: &mut Bench, endpoint: u32, itt: u32) {
    let nop = NopOut { opcode: 0x40, flags: 0x80, itt: pdu::U32::new(itt), ..NopOut::default() };
    bench.send(endpoint, Header::default(), &nop, &[]);
}

/// Writes with and without immediate data, reads it back, and logs out.
fn life_of_a_connection(layout: Layout) {
    let mut bench = Bench::new(64, layout);
    let slot = bench.connect(5);
    bench.log_in(5);
    let posted = bench.wire.receives(5);
    assert_eq!(posted, bench.shard.conns[slot].front.receives(), "all are posted again");

    let data = pattern(65_536);
    bench.command(5, 1, (WRITE, &cdb(0x2a, 128), 65_536), opens(Some(7), None), &[]);
    match bench.next(5, &data, Status::Success) {
        Work::Read(len, from) => {
            let expected = (65_536, remote(7).offset, 7);
            assert_eq!((len, from.address, from.key), expected);
        }
        _ => panic!("an RDMA Read was expected"),
    }
    assert_eq!(bench.status(5, 1), (0, Some(7)));

    // The first 512 bytes with the command, the others behind them.
    let changed = pattern(1024).into_iter().map(|b| b ^ 0xff).collect::<Vec<u8>>();
    let header = opens(Some(9), None);
    bench.command(5, 2, (WRITE, &cdb(0x2a, 2), 1024), header, &changed[..512]);
    match bench.next(5, &changed[512..], Status::Success) {
        Work::Read(len, from) => assert_eq!((len, from.address), (512, remote(9).offset)),
        _ => panic!("an RDMA Read was expected"),
    }
    assert_eq!(bench.status(5, 2).0, 0);

    bench.command(5, 3, (READ, &cdb(0x28, 128), 65_536), opens(None, Some(8)), &[]);
    let mut seen = vec![0; 65_536];
    let mut left = seen.len();
    while left > 0 {
        let Work::Write(bytes, to) = bench.next(5, &[], Status::Success) else {
            panic!("an RDMA Write was expected");
        };
        let at = (to.address - remote(8).offset) as usize;
        seen[at..at + bytes.len()].copy_from_slice(&bytes);
        left -= bytes.len();
    }
    assert!(seen[..1024] == changed[..] && seen[1024..] == data[1024..], "other data came back");
    assert_eq!(bench.status(5, 3), (0, Some(8)));

    let sessions = bench.shard.sessions();
    assert_eq!((sessions.len(), sessions[0].transport), (1, "iser"));
    let path = sessions[0].rdma.as_ref().expect("a way");
    assert_eq!((path.rdma_reads, path.rdma_writes > 0, path.queue_depth), (2, true, 16));
    bench.log_out(5, 4);
    bench.assert_all_is_given_back();
}

#[test]
fn a_memory_volume_is_served_over_rdma() {
    // It answers reads by reference: an RDMA device gets a copy.
    life_of_a_connection(layout(None));
}

#[test]
fn a_file_is_served_over_rdma() {
    let folder = tempfile::tempdir().expect("a folder");
    life_of_a_connection(layout(Some(&folder)));
}

#[test]
fn a_full_send_queue_holds_work_back_and_loses_none() {
    let mut bench = Bench::new(2, layout(None));
    bench.connect(1);
    bench.log_in(1);
    for number in 1..=8u32 {
        let header = opens(None, Some(number));
        bench.command(1, number, (READ, &cdb(0x28, 1), 512), header, &[]);
    }
    for number in 1..=8 {
        let work = bench.next(1, &[], Status::Success);
        assert!(matches!(work, Work::Write(_, to) if to.key == number), "command {number}");
        assert_eq!(bench.status(1, number), (0, Some(number)));
    }
    bench.log_out(1, 9);
    bench.assert_all_is_given_back();
}

#[test]
fn answers_wait_for_memory() {
    let mut bench = Bench::new(64, layout(None));
    bench.connect(1);
    let arena = bench.shard.front.exec.storage.ring.arena().clone();
    let held: Vec<_> = std::iter::from_fn(|| arena.alloc(4096)).collect();
    bench.send_login(1);
    (0..20).for_each(|_| bench.iterate());
    assert!(bench.wire.next(1, &[], Status::Success).is_none(), "there is no memory for it");
    drop(held);
    bench.logged_in(1);
    bench.log_out(1, 1);
    bench.assert_all_is_given_back();
}

#[test]
fn a_server_without_rdma_lets_go_of_the_devices() {
    let mut bench = Bench::new(64, layout(None));
    bench.shard.close_rdma();
    bench.iterate();
    assert!(bench.shard.rdma.is_none() && !bench.shard.flush_adapters());
}
