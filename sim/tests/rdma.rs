//! The RDMA devices of a world: what they carry out, and what they say is wrong.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lunet_os::simulated::{self, Process, World};
use lunet_os::thread;
use lunet_ring::{Arena, Payload};
use lunet_verbs::simulated::{Fabric, Link, Phase, Traits};
use lunet_verbs::{
    Adapter, AdapterConfig, CmEventKind, CmId, Completion, ConnParams, EndpointConfig, EndpointId,
    EventChannel, Library, Operation, Pieces, Remote, Scatter, Status,
};
use tempfile::TempDir;

const TRAITS: Traits = Traits {
    shared_receives: true,
    invalidates: true,
    invalidation_fails: false,
    inline: 128,
    pieces: 3,
    depth: 128,
    refuses_memory: 0,
};

/// A connection: the server's end with its adapter, and the host's.
struct Pair {
    adapter: Adapter,
    endpoint: EndpointId,
    link: Link,
    arena: Arena,
    _listener: (CmId, EventChannel),
    fabric: Arc<Fabric>,
    _folder: TempDir,
    _world: World,
}

/// Lets the world go on until nothing is under way.
fn settle() {
    thread::sleep(Duration::from_secs(10));
}

impl Pair {
    fn new(shared: bool) -> Self {
        Self::with(shared, TRAITS)
    }

    fn with(shared: bool, traits: Traits) -> Self {
        let world = World::new(7);
        let folder = TempDir::new().expect("a folder");
        let fabric = simulated::part::<Fabric>();
        fabric.plug(folder.path(), "sim0", traits).expect("it is plugged in");
        let library = Library::open().expect("the world's library");
        let device = library.devices().expect("devices").remove(0);
        let mut channel = EventChannel::new(&library).expect("a channel");
        let (to, from) = (([127, 0, 0, 1], 3260).into(), ([127, 0, 0, 1], 40_000).into());
        let addresses: (SocketAddr, SocketAddr) = (to, from);
        let listener = CmId::listen(&channel, to, 8, 1).expect("a listener");
        let link = fabric.connect(addresses, &[], (8, 4096)).expect("somebody listens");
        settle();
        let event = channel.next_event().expect("events").expect("one");
        let CmEventKind::ConnectRequest { id, .. } = event.kind else { panic!("{event:?}") };
        let arena = Arena::new(1 << 20).expect("memory");
        let shared_receives = shared.then_some(8);
        let config = AdapterConfig { completions: 256, shared_receives, interrupt: 0 };
        let mut adapter = Adapter::open(&device, &arena, &config).expect("an adapter");
        let depths = EndpointConfig { sends: 8, receives: 8 };
        let endpoint = adapter.open_endpoint(id, depths).expect("an endpoint");
        for _ in 0..8 {
            let buf = arena.alloc(4096).expect("memory");
            let queued = match shared {
                true => adapter.queue_shared_receive(buf),
                false => adapter.queue_receive(endpoint, buf, 5),
            };
            queued.expect("it is queued");
        }
        adapter.flush();
        let params = ConnParams { reads_served: 1, reads: 1, private: &[] };
        adapter.accept(endpoint, params).expect("it is accepted");
        settle();
        assert_eq!(link.phase(), Phase::Established);
        let _listener = (listener, channel);
        Self { adapter, endpoint, link, arena, _listener, fabric, _folder: folder, _world: world }
    }

    fn pieces(&self, byte: u8) -> Pieces {
        let mut buf = self.arena.alloc(1000).expect("memory");
        buf.fill(byte);
        let mut pieces = Pieces::new();
        pieces.push((Payload::Buf(buf), 0..1000));
        pieces
    }

    /// Writes 1000 bytes of 9 to a host's memory: how that ends.
    fn write(&mut self, to: Remote) -> Status {
        let data = self.pieces(9);
        self.adapter.queue_write(self.endpoint, data, to, (1, true)).expect("it is queued");
        let done = self.done();
        done.iter().find(|done| done.operation == Operation::Write).expect("it ends").status
    }

    fn done(&mut self) -> Vec<Completion> {
        self.adapter.flush();
        settle();
        let mut done = Vec::new();
        self.adapter.poll(&mut done).expect("the device is there");
        done
    }
}

#[test]
fn work_reaches_the_memory_of_a_host() {
    let mut pair = Pair::new(false);
    let memory = pair.link.open(vec![1; 3000], true);
    let behind = Remote { address: memory.address + 500, ..memory };
    assert_eq!(pair.write(behind), Status::Success);
    let bytes = pair.link.shut(memory.key);
    assert!(bytes[..500] == [1; 500] && bytes[500..1500] == [9; 1000] && bytes[1500] == 1);
    let source = pair.link.open(vec![3; 100], false);
    let into = pair.arena.alloc(200).expect("memory");
    pair.adapter.queue_read(pair.endpoint, into, 0..100, source, 2).expect("it is queued");
    let done = pair.done();
    let read = done[0].buf.as_ref().expect("its buffer");
    assert_eq!((done[0].status, &read[..100]), (Status::Success, &[3; 100][..]));
    assert_eq!(pair.fabric.wrong(), None);
}

#[test]
fn memory_of_a_finished_command_is_not_reached() {
    let mut pair = Pair::new(false);
    let memory = pair.link.open(vec![0; 3000], true);
    pair.link.shut(memory.key);
    assert_eq!(pair.write(memory), Status::RemoteAccess);
    assert!(pair.fabric.wrong().expect("it is wrong").contains("finished command"));
}

#[test]
fn memory_is_not_reached_beyond_its_end_or_the_wrong_way() {
    for (writable, behind, wrong) in [(true, 2001, "beyond"), (false, 0, "wrong way")] {
        let mut pair = Pair::new(true);
        let memory = pair.link.open(vec![0; 3000], writable);
        let place = Remote { address: memory.address + behind, ..memory };
        assert_eq!(pair.write(place), Status::RemoteAccess);
        assert!(pair.fabric.wrong().expect("it is wrong").contains(wrong));
        assert_eq!(pair.link.phase(), Phase::Over, "the connection has failed");
    }
}

#[test]
fn a_host_that_gives_a_wrong_key_is_to_blame_itself() {
    let mut pair = Pair::new(false);
    let nowhere = pair.link.bogus();
    assert_eq!(pair.write(nowhere), Status::RemoteAccess);
    assert_eq!(pair.fabric.wrong(), None);
}

#[test]
fn a_send_takes_a_key_back_once() {
    let mut pair = Pair::new(true);
    let memory = pair.link.open(vec![0; 10], true);
    for status in [Status::Success, Status::RemoteInvalidRequest] {
        let data = pair.pieces(4);
        let key = Some(memory.key);
        pair.adapter.queue_send(pair.endpoint, &[], data, key, (1, true)).expect("it is queued");
        let done = pair.done();
        assert_eq!(done[0].status, status);
    }
    assert_eq!(pair.link.receive().expect("a message").invalidated, Some(memory.key));
    assert!(pair.fabric.wrong().expect("it is wrong").contains("not valid"));
}

#[test]
fn messages_of_a_host_arrive_in_order() {
    for shared in [false, true] {
        let mut pair = Pair::new(shared);
        (0..20).for_each(|n| pair.link.send(vec![n; 10]));
        let mut seen = Vec::new();
        while seen.len() < 20 {
            for done in pair.done() {
                let buf = done.buf.expect("its buffer");
                assert_eq!((done.status, done.bytes), (Status::Success, 10));
                seen.push(buf[0]);
                let queued = match shared {
                    true => pair.adapter.queue_shared_receive(buf),
                    false => pair.adapter.queue_receive(pair.endpoint, buf, 5),
                };
                queued.expect("it is queued");
            }
        }
        assert_eq!(seen, (0..20).collect::<Vec<u8>>());
        assert_eq!(pair.fabric.wrong(), None);
    }
}

#[test]
fn a_message_fills_one_piece_of_a_receive_after_the_other() {
    const SPLIT: usize = 76;
    let scatter = |arena: &Arena| Scatter {
        head: arena.alloc(1000).expect("memory"),
        split: SPLIT,
        body: arena.alloc(2048),
    };
    for shared in [false, true] {
        let mut pair = Pair::new(shared);
        assert!(pair.adapter.scatters());
        let ends =
            [0, 1, SPLIT - 1, SPLIT, SPLIT + 1, SPLIT + 2047, SPLIT + 2048, SPLIT + 2049, 3048];
        // The first ones come into the receives of one piece that are there.
        let lengths: Vec<usize> = (0..8).map(|n| n * 500).chain(ends).collect();
        let message = |len: usize| (0..len).map(|i| (i % 249) as u8).collect::<Vec<u8>>();
        let mut came = 0;
        for len in &lengths {
            pair.link.send(message(*len));
            for done in pair.done() {
                let len = done.bytes as usize;
                assert_eq!((done.status, len), (Status::Success, lengths[came]));
                let head = done.buf.expect("its head");
                let bytes = match &done.body {
                    None => head[..len].to_vec(),
                    Some(body) => {
                        let rest = [&body[..], &head[SPLIT..]].concat();
                        [&head[..SPLIT], &rest[..]].concat()[..len].to_vec()
                    }
                };
                assert!(bytes == message(len), "{len}");
                assert_eq!(done.body.is_some(), came >= 8);
                came += 1;
                let memory = scatter(&pair.arena);
                let queued = match shared {
                    true => pair.adapter.queue_shared_receive(memory),
                    false => pair.adapter.queue_receive(pair.endpoint, memory, 5),
                };
                queued.expect("it is queued");
            }
        }
        assert_eq!((came, pair.fabric.wrong()), (lengths.len(), None));
        // One byte more than there is room for.
        pair.link.send(message(3049));
        let done = pair.done();
        let failed = done.iter().find(|done| done.operation == Operation::Receive);
        assert_eq!(failed.expect("it ends").status, Status::LocalLength);
    }
}

#[test]
fn a_device_that_claims_to_take_keys_back_may_fail_at_it() {
    let mut pair = Pair::with(true, Traits { invalidation_fails: true, ..TRAITS });
    let memory = pair.link.open(vec![0; 10], true);
    let data = pair.pieces(4);
    let key = Some(memory.key);
    pair.adapter.queue_send(pair.endpoint, &[], data, key, (1, true)).expect("it is queued");
    let done = pair.done();
    assert_eq!(
        (done[0].operation, done[0].status),
        (Operation::SendInvalidate, Status::LocalOperation)
    );
    assert!(done[0].status.is_of_this_end());
    assert_eq!((pair.link.phase(), pair.fabric.wrong()), (Phase::Over, None));
}

#[test]
fn a_host_that_is_gone_is_given_up_and_the_rest_is_flushed() {
    let mut pair = Pair::new(false);
    pair.link.reset(true);
    for n in 0..3 {
        let data = pair.pieces(n);
        pair.adapter.queue_send(pair.endpoint, &[], data, None, (1, true)).expect("it is queued");
    }
    let done = pair.done();
    let of = |operation| {
        let own = done.iter().filter(move |done| done.operation == operation);
        own.map(|done| done.status).collect::<Vec<_>>()
    };
    assert_eq!(of(Operation::Send), [Status::RetryExceeded, Status::Flushed, Status::Flushed]);
    assert_eq!(of(Operation::Receive), [Status::Flushed; 8]);
}

#[test]
fn what_a_process_leaves_behind_is_told() {
    let pair = Pair::new(true);
    let left = pair.fabric.left_behind(Process(0));
    assert!(left.contains(&"a queue pair") && left.contains(&"a registration"), "{left:?}");
    let (fabric, Pair { adapter, _listener, _world, .. }) = (pair.fabric.clone(), pair);
    drop((adapter, _listener));
    assert_eq!(fabric.left_behind(Process(0)), [""; 0]);
    assert_eq!(fabric.wrong(), None);
}
