//! What shards say to each other while the orders of a group are on their way to them: each order of messages that there
//! can be, as the test lets one shard work at a time.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lunet_gateway::{AccessState, GatewayId};
use lunet_nvme::fabrics::{ANY_CONTROLLER, Connect, Fabrics, Property};
use lunet_nvme::pdu::{CapsuleCmd, CapsuleResp, Common, IcReq, Type, U32};
use lunet_ring::{Config as RingConfig, DriverChoice, Ring};
use lunet_server::Member;
use lunet_server::core::Core;
use lunet_server::front::Front;
use lunet_server::hosting::{Limits, Portal, Transports};
use lunet_server::mail::Mailbox;
use lunet_server::part::Part;
use lunet_server::places::ConnRef;
use zerocopy::{FromZeros, IntoBytes};

use crate::config::{Config, Options};
use crate::engine::Engine;
use crate::group::{GroupId, GroupMessage, Members, Order};
use crate::machine::Machine;
use crate::message::Message;
use crate::rdma_tests::{ENABLED, SUBSYSTEM, Shown, layout, of_queue};
use crate::session::Shard;

/// Two shards of a server, each of which works when the test lets it.
struct Shards {
    all: Vec<Shard<Shown>>,
    machine: Machine,
}

/// The host's end of a queue.
struct Host(TcpStream);

impl Shards {
    /// They serve a group that this gateway owns.
    fn of_owner(driver: DriverChoice) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 4420));
        let portals = vec![Portal { address, tag: 1, transports: Transports::Tcp }];
        let config = Config {
            portals: portals.clone(),
            layout: layout(None),
            options: Options { queue_entries: 32, ..Options::default() },
            limits: Limits { buffer_bytes: 16 << 20, ..Limits::default() },
            shards: Some(2),
            driver,
            busy_poll: lunet_ring::BusyPoll::OFF,
        };
        let core = Core::<Engine<Shown>>::new(config, portals, Member::alone(Some(2)));
        let core = core.expect("it is served");
        let config = RingConfig { arena_bytes: 8 << 20, driver, ..RingConfig::default() };
        let parts: Vec<_> = (0..2)
            .map(|_| {
                let ring = Ring::new(&config).expect("an event loop");
                let (mailbox, inbox) = Mailbox::new(ring.waker());
                (ring, mailbox, inbox)
            })
            .collect();
        core.set_mailboxes(parts.iter().map(|(_, mailbox, _)| mailbox.clone()).collect());
        let shard = |(number, (ring, _, inbox))| Shard::new(number, core.clone(), ring, inbox);
        let all = parts.into_iter().enumerate().map(shard);
        let all = all.collect::<Result<_, _>>().expect("shards");
        let mut shards = Self { all, machine: Machine::standby() };
        let members = Arc::new(Members {
            subsystems: vec![SUBSYSTEM.into()],
            gateway: GatewayId(1),
            families: &["host"],
        });
        let gate = shards.machine.gate();
        let open = shards.machine.takes_over();
        let orders = [
            Order::Begin { members, gate, ways: Arc::default() },
            Order::Gate(open),
            Order::Access(AccessState::Optimized),
        ];
        for order in orders {
            (0..2).for_each(|number| drop(shards.order(number, order.clone())));
        }
        shards
    }

    /// One shard is given an order, and nothing else. True as soon as it is carried out.
    fn order(&mut self, number: usize, order: Order) -> Arc<AtomicBool> {
        let done = Arc::new(AtomicBool::new(false));
        let told = done.clone();
        let part = Part::new(move || told.store(true, Ordering::SeqCst));
        let message = GroupMessage { group: GroupId::of_test(), order, part };
        Engine::message(&mut self.all[number], Message::Group(message));
        done
    }

    /// Lets one shard work off what there is.
    fn work(&mut self, number: usize) {
        let (shard, mut events) = (&mut self.all[number], Vec::new());
        for _ in 0..4 {
            let limit = Some(Duration::from_millis(1));
            shard.wait(limit, &mut events).expect("the kernel waits");
            shard.iterate(&mut events);
        }
    }

    /// A connection of a host to a shard, with this queue.
    fn connect(&mut self, number: usize, connect: &Connect) -> (Host, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let host = TcpStream::connect(address).expect("a connection");
        let (socket, peer) = listener.accept().expect("the same");
        host.set_nonblocking(true).expect("a socket");
        let core = self.all[number].core.clone();
        core.loads[number].fetch_add(1, Ordering::Relaxed);
        let conn_ref = ConnRef { shard: number, connection: core.next_serial() };
        assert_eq!(core.login_begins(peer.ip(), conn_ref), None);
        self.all[number].attach_stream(conn_ref.connection, 0, socket.into(), peer);
        let mut host = Host(host);
        let mut hello = IcReq::new_zeroed();
        hello.common = common(Type::IcReq, 0);
        self.exchange(number, &mut host, hello.as_bytes(), 128);
        let (sqe, data) = connect.encode();
        let capsule = CapsuleCmd {
            common: common(Type::CapsuleCmd, data.as_bytes().len()),
            sqe: zerocopy::transmute!(sqe),
        };
        let bytes = [capsule.as_bytes(), data.as_bytes()].concat();
        let cqe = self.exchange(number, &mut host, &bytes, size_of::<CapsuleResp>());
        assert_eq!(cqe[22..24], [0, 0], "it is welcome");
        (host, u16::from_le_bytes([cqe[8], cqe[9]]))
    }

    /// Sends something, and gives the answer of this length.
    fn exchange(&mut self, number: usize, host: &mut Host, bytes: &[u8], len: usize) -> Vec<u8> {
        host.0.write_all(bytes).expect("there is room");
        let (mut came, deadline) = (Vec::new(), lunet_os::time::now() + Duration::from_secs(20));
        while came.len() < len {
            assert!(lunet_os::time::now() < deadline, "no answer");
            self.work(number);
            let mut part = vec![0; len - came.len()];
            match host.0.read(&mut part) {
                Ok(n) => came.extend_from_slice(&part[..n]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        came
    }

    /// A controller with its admin queue on the first shard, and an I/O queue on the second.
    fn controller(&mut self) -> [Host; 2] {
        let (mut admin, cntlid) = self.connect(0, &of_queue(0, 31, ANY_CONTROLLER));
        let enable = Fabrics::PropertySet { property: Property::Configuration, value: ENABLED };
        let capsule = CapsuleCmd {
            common: common(Type::CapsuleCmd, 0),
            sqe: zerocopy::transmute!(enable.encode()),
        };
        self.exchange(0, &mut admin, capsule.as_bytes(), size_of::<CapsuleResp>());
        [admin, self.connect(1, &of_queue(1, 31, cntlid)).0]
    }
}

fn common(kind: Type, data: usize) -> Common {
    let header = kind.header_len();
    Common {
        kind: kind as u8,
        flags: 0,
        hlen: header as u8,
        pdo: if data > 0 { header as u8 } else { 0 },
        plen: U32::new((header + data) as u32),
    }
}

impl Host {
    /// How the connection ends, which says nothing more.
    fn ends_by(&mut self) -> Option<ErrorKind> {
        self.0.set_nonblocking(false).expect("a socket");
        self.0.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
        match self.0.read(&mut [0; 64]) {
            Ok(0) => None,
            Ok(n) => panic!("{n} bytes came"),
            Err(error) => Some(error.kind()),
        }
    }
}

/// The order to say nothing any more goes to each shard by itself. The first one that has it ends a controller, and tells
/// the shard with its I/O queue: before that has the order itself, or behind it.
fn queue_is_reset(driver: DriverChoice, hears_of_queue_first: bool) {
    let mut shards = Shards::of_owner(driver);
    let [mut admin, mut io] = shards.controller();
    // An answer that is not on its way yet.
    let (_, conn) = shards.all[1].conns.iter().next().expect("the queue");
    let slot = shards.all[1].find(conn.serial).expect("the same");
    shards.all[1].conns[slot].out.chain.bytes(&[7; 24]);
    let gate = shards.machine.is_deposed();
    let mut done = vec![shards.order(0, Order::StopAnswering(gate))];
    if hears_of_queue_first {
        shards.work(1);
    }
    done.push(shards.order(1, Order::StopAnswering(gate)));
    shards.work(1);
    shards.work(0);
    assert!(done.iter().all(|done| done.load(Ordering::SeqCst)), "both shards have done it");
    assert_eq!(admin.ends_by(), Some(ErrorKind::ConnectionReset));
    assert_eq!(io.ends_by(), Some(ErrorKind::ConnectionReset), "first: {hears_of_queue_first}");
}

#[test]
fn a_queue_is_reset_whichever_its_shard_hears_first() {
    for driver in [DriverChoice::Auto, DriverChoice::Epoll] {
        [false, true].into_iter().for_each(|first| queue_is_reset(driver, first));
    }
}

#[test]
fn a_queue_whose_controller_ends_in_good_order_is_closed() {
    let mut shards = Shards::of_owner(DriverChoice::Auto);
    let [admin, mut io] = shards.controller();
    drop(admin);
    let deadline = lunet_os::time::now() + Duration::from_secs(20);
    while !shards.all[1].conns.is_empty() {
        assert!(lunet_os::time::now() < deadline, "the queue stays");
        (0..2).for_each(|number| shards.work(number));
    }
    assert_eq!(io.ends_by(), None);
}
