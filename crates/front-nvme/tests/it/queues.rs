//! Queues and controllers: how they begin, belong together and end.

use std::time::Duration;

use lunet_backends::layers::{Effect, Layer, Ops, wrap};
use lunet_backends::{Storage, VolumeSpec, open};
use lunet_nvme::command::{ALL_NAMESPACES, Admin, GetLog, Io, Range};
use lunet_nvme::fabrics::{ANY_CONTROLLER, Connect, Property};
use lunet_nvme::feature::{Feature, Queues};
use lunet_nvme::host::{Data, Error};
use lunet_nvme::status::Status;

use crate::host::{ENABLE, Host, Queue, READY, Settings, pair, to_send};
use crate::support::{config, layout, memory, serve, serve_volumes, shown, until};

#[test]
fn a_host_has_queues_on_several_shards() {
    let (server, address) = serve_volumes(vec![memory(1, 8)]);
    let mut host = Host::new(address, Settings::default(), 4);
    for (at, queue) in host.queues.iter_mut().enumerate() {
        let data = vec![at as u8 + 1; 4096];
        assert!(queue.write(1, at as u64 * 8, &data).is_success());
    }
    for at in 0..4 {
        let found = host.queues[3 - at as usize].read(1, at * 8, 8).expect("data");
        assert_eq!(found, vec![at as u8 + 1; 4096]);
    }
    let sessions = server.handle().sessions();
    assert_eq!(sessions.len(), 1);
    assert_eq!((sessions[0].cntlid, sessions[0].namespaces), (host.admin.cntlid, 1));
    let mut shards: Vec<usize> = sessions[0].queues.iter().map(|queue| queue.shard).collect();
    shards.sort_unstable();
    shards.dedup();
    assert_eq!((sessions[0].queues.len(), shards), (5, vec![0, 1]));
    drop(host);
    until("the controller is gone", || server.handle().sessions().is_empty());
    assert!(server.stop(Duration::from_secs(5)).flushed);
}

#[test]
fn controllers_have_identifiers_of_their_own() {
    let (_server, address) = serve_volumes(vec![memory(1, 8)]);
    let hosts: Vec<Host> = (1..=4)
        .map(|host| Host::new(address, Settings { host, ..Settings::default() }, 1))
        .collect();
    let mut ids: Vec<u16> = hosts.iter().map(|host| host.admin.cntlid).collect();
    ids.dedup();
    assert_eq!(ids.len(), 4);
}

#[test]
fn a_queue_that_does_not_fit_is_refused() {
    let (_server, address) = serve_volumes(vec![memory(1, 8)]);
    let mut host = Host::one(address);
    let cntlid = host.admin.cntlid;
    let refused = |settings: Settings, ids| match Queue::connect(address, &settings, ids) {
        Err(Error::Refused(completion)) => completion,
        _ => panic!("it is not refused"),
    };
    let own = Settings::default();
    assert_eq!(refused(own.clone(), (1, cntlid)), Connect::WRONG_QUEUE, "taken");
    assert_eq!(refused(own.clone(), (2, cntlid + 1)), Connect::WRONG_CONTROLLER);
    assert_eq!(refused(Settings { host: 2, ..own.clone() }, (2, cntlid)), Connect::WRONG_HOST_NQN);
    assert_eq!(
        refused(Settings { entries: 1024, ..own.clone() }, (2, cntlid)),
        Connect::WRONG_SIZE
    );
    let other = Settings { subsystem: "nqn.2026-11.org.lunet:no".into(), ..own.clone() };
    assert_eq!(refused(other, (0, ANY_CONTROLLER)), Connect::UNKNOWN_SUBSYSTEM);
    let asked = Queues { submission: 2, completion: 2 }.encode();
    let granted = host.admin.set_feature(Feature::Queues, asked);
    assert_eq!(granted.result, u64::from(asked));
    assert_eq!(refused(own.clone(), (3, cntlid)), Connect::WRONG_QUEUE, "more than it was given");
    host.add_queue(2).expect("a queue");
    let third = Settings { host: 3, ..own };
    let unready = Queue::connect(address, &third, (0, ANY_CONTROLLER)).expect("a controller");
    let early = refused(third, (1, unready.cntlid));
    assert_eq!(early.status, Status::SEQUENCE.no_retry(), "it is not enabled");
}

/// Hosts that are no kernels' make up a host identifier for each queue.
#[test]
fn the_host_identifier_of_the_admin_queue_counts() {
    let (_server, address) = serve_volumes(vec![memory(1, 8)]);
    let mut host = Host::one(address);
    host.settings.host_id = Some(9);
    host.add_queue(2).expect("a queue");
    assert!(host.queues[1].write(1, 0, &[1; 512]).is_success());
}

#[test]
fn an_io_queue_ends_alone_and_the_admin_queue_ends_all() {
    let (server, address) = serve_volumes(vec![memory(1, 8)]);
    let mut host = Host::new(address, Settings::default(), 3);
    host.queues.remove(0);
    until("the queue is gone", || server.handle().sessions()[0].queues.len() == 3);
    assert!(host.queues[0].write(1, 0, &[1; 512]).is_success());
    host.add_queue(1).expect("its identifier is free again");
    let Host { admin, mut queues, .. } = host;
    drop(admin);
    queues.iter_mut().for_each(Queue::wait_for_end);
    until("the controller is gone", || server.handle().sessions().is_empty());
}

#[test]
fn a_reset_ends_the_io_queues_and_the_controller_is_enabled_again() {
    let (_server, address) = serve_volumes(vec![memory(1, 8)]);
    let mut host = Host::new(address, Settings::default(), 2);
    assert!(host.admin.configure(0x46_0060).is_success());
    host.queues.iter_mut().for_each(Queue::wait_for_end);
    until("it is not ready", || host.admin.property(Property::Status) == 0);
    assert!(host.add_queue(1).is_err());
    assert!(host.admin.configure(ENABLE).is_success());
    assert_eq!(host.admin.property(Property::Status), READY);
    host.queues.clear();
    host.add_queue(1).expect("a queue");
    assert!(host.io().write(1, 0, &[1; 512]).is_success());
}

#[test]
fn a_shutdown_completes() {
    let (_server, address) = serve_volumes(vec![memory(1, 8), memory(2, 8)]);
    let mut host = Host::one(address);
    assert!(host.io().write(1, 0, &[1; 512]).is_success());
    assert!(host.admin.configure(ENABLE | 1 << 14).is_success());
    until("it is shut down", || host.admin.property(Property::Status) >> 2 & 3 == 2);
    // What was written now would not be flushed.
    let refused = Status::SEQUENCE.no_retry();
    assert_eq!(host.io().write(1, 0, &[2; 512]), refused);
    assert_eq!(host.io().io(Io::Flush, ALL_NAMESPACES), refused);
    let tags = host.io().submit_all(pair(0, 1, 2));
    for tag in tags {
        assert_eq!(host.io().wait(tag).completion.expect("an answer").status, refused);
    }
    // A reset ends the queues, and all begins anew.
    assert!(host.admin.configure(0x46_0060).is_success());
    host.io().wait_for_end();
    until("it is not ready", || host.admin.property(Property::Status) == 0);
    assert!(host.admin.configure(ENABLE).is_success());
    host.queues.clear();
    host.add_queue(1).expect("a queue");
    assert_eq!(host.io().read(1, 0, 1).expect("data"), [1; 512]);
}

#[test]
fn a_silent_host_loses_its_controller_and_traffic_keeps_one_alive() {
    let (server, address) = serve_volumes(vec![memory(1, 8)]);
    let kato = |secs| Settings { kato: Duration::from_secs(secs), ..Settings::default() };
    let mut silent = Host::new(address, Settings { host: 2, ..kato(1) }, 1);
    // So long that a loaded machine does not silence this one as well.
    let mut busy = Host::new(address, kato(4), 1);
    let begun = std::time::Instant::now();
    // Commands of an I/O queue are signs of life, be it on another shard.
    while begun.elapsed() < Duration::from_secs(6) {
        assert!(busy.io().write(1, 0, &[1; 512]).is_success());
        std::thread::sleep(Duration::from_millis(100));
    }
    silent.admin.wait_for_end();
    silent.io().wait_for_end();
    let sessions = server.handle().sessions();
    assert_eq!((sessions.len(), sessions[0].cntlid), (1, busy.admin.cntlid));
    assert_eq!(server.handle().stats().protocol.keep_alive_expired, 1);
}

#[test]
fn a_host_that_overruns_its_queue_ends_it_alone() {
    let (_server, address) = serve_volumes(vec![memory(1, 8)]);
    let mut good = Host::new(address, Settings { host: 2, ..Settings::default() }, 1);
    let mut host = Host::one(address);
    // The queue has 32 entries by its Connect; four more event requests than the controller takes come back.
    let tags: Vec<_> = (0..8).map(|_| host.admin.listen()).collect();
    let refused = tags[4..].iter().map(|tag| host.admin.wait(*tag).completion.expect("an answer"));
    assert!(refused.into_iter().all(|it| it.status.code() == Status::EVENT_LIMIT));
    assert!(good.io().write(1, 0, &[1; 512]).is_success());
    // Behind the host's back: a capsule more than there are entries.
    use std::io::Write;
    let mut flood = Vec::new();
    for cid in 0..64u16 {
        let mut capsule = vec![0; 72];
        capsule[..8].copy_from_slice(&[4, 0, 72, 0, 72, 0, 0, 0]);
        // A write of a block by R2T, which is never sent.
        (capsule[8], capsule[9]) = (1, 0x40);
        capsule[10..12].copy_from_slice(&cid.to_le_bytes());
        capsule[12] = 1;
        capsule[40] = 0;
        capsule[8 + 32..8 + 36].copy_from_slice(&512u32.to_le_bytes());
        capsule[8 + 39] = 0x5a;
        flood.extend_from_slice(&capsule);
    }
    host.io().stream.write_all(&flood).expect("the server takes it");
    host.io().wait_for_end();
    assert!(good.io().write(1, 8, &[1; 512]).is_success());
    let tag = good.io().submit(lunet_nvme::command::Io::Flush.encode(1), Data::None);
    assert!(good.io().wait(tag).completion.is_some_and(|it| it.status.is_success()));
}

#[test]
fn the_number_of_controllers_is_bounded() {
    let mut config = config(layout(vec![memory(1, 8)]));
    config.options.max_controllers = 2;
    let (_server, address) = serve(config);
    let _one = Host::one(address);
    let _two = Host::new(address, Settings { host: 2, ..Settings::default() }, 1);
    let third = Settings { host: 3, ..Settings::default() };
    match Queue::connect(address, &third, (0, ANY_CONTROLLER)) {
        Err(Error::Refused(completion)) => assert_eq!(completion.status, Status::CONNECT_BUSY),
        _ => panic!("it is not refused"),
    }
}

/// What waits to be sent is bounded: a host that asks for more is told to ask again.
#[test]
fn a_flood_of_log_pages_is_bounded() {
    let (_server, address) = serve_volumes(vec![memory(1, 8)]);
    let mut host = Host::one(address);
    let len = 1 << 20;
    let log = || {
        let lid = lunet_nvme::log::LogPage::Effects.code();
        let log = GetLog { lid, specific: 0, retain: false, len: len as u64, offset: 0, csi: 0 };
        (Admin::GetLogPage(log).encode(0), Data::Read(vec![0; len]))
    };
    let tags = host.admin.submit_all((0..31).map(|_| log()).collect());
    let ended = tags.into_iter().map(|tag| host.admin.wait(tag).completion.expect("an answer"));
    let again = ended.filter(|it| it.status == Status::INTERRUPTED.retry_after(1)).count();
    assert!((1..31).contains(&again), "{again}");
    let (sqe, data) = log();
    let tag = host.admin.submit(sqe, data);
    assert!(host.admin.wait(tag).completion.is_some_and(|it| it.status.is_success()));
}

/// Bytes of buffers, and what capsules have of data then.
const CAPSULES: [(usize, u32); 2] = [(8 << 20, 16 << 10), (64 << 20, 128 << 10)];

#[test]
fn deep_queues_of_writes_wait_for_memory() {
    for (buffers, capsule) in CAPSULES {
        // In capsules alone; and among them some whose data is asked for, and may be behind capsules that wait.
        for of_capsule in [&[8][..], &[1, 32, 8, 16, 64, 4]] {
            let lens: Vec<u32> = of_capsule.iter().map(|eighths| capsule / 8 * eighths).collect();
            deep_queues(buffers, capsule, &lens);
        }
    }
}

/// More queues than have much memory for themselves fill themselves with writes of these lengths in turn.
fn deep_queues(buffer_bytes: usize, capsule_data: u32, lens: &[u32]) {
    let delay = Effect::Delay { time: Duration::from_millis(50), spread: Duration::ZERO };
    let spec = VolumeSpec::new(Storage::Memory { size: 8 << 20 });
    let backend = open(&spec).expect("a memory volume opens");
    let (backend, _controls) = wrap(backend, &[Layer::new(delay, Ops::WRITE)]);
    let mut config = config(layout(vec![shown(1, backend)]));
    config.shards = Some(1);
    config.limits.buffer_bytes = buffer_bytes;
    config.options.queue_entries = 128;
    let (_server, address) = serve(config);
    // What these have for themselves the others have not.
    let idle = (10..18).map(|host| Host::new(address, Settings { host, ..Settings::default() }, 4));
    let idle: Vec<Host> = idle.collect();
    let hosts: Vec<_> = (1..9)
        .map(|host| {
            let settings = Settings { host, entries: 128, capsule_data, ..Settings::default() };
            Host::new(address, settings, 12)
        })
        .collect();
    let (admin, queues): (Vec<_>, Vec<_>) =
        hosts.into_iter().map(|Host { admin, queues, .. }| (admin, queues)).unzip();
    std::thread::scope(|scope| {
        for queue in queues.into_iter().flatten() {
            scope.spawn(|| fill_with_writes(queue, lens));
        }
    });
    drop((admin, idle));
}

fn fill_with_writes(mut queue: Queue, lens: &[u32]) {
    let write = |len: &u32| {
        let range = Range { lba: 0, blocks: len / 512 };
        (Io::Write { range, fua: false }.encode(1), to_send(&vec![7; *len as usize]))
    };
    let writes = lens.iter().cycle().take(60).map(write).collect();
    for tag in queue.submit_all(writes) {
        let status = queue.wait(tag).completion.expect("an answer").status;
        assert!(status.is_success(), "{status}");
    }
}

#[test]
fn capsules_have_as_much_data_as_there_is_memory_for() {
    for (buffer_bytes, capsule_data) in CAPSULES {
        let mut config = config(layout(vec![memory(1, 8)]));
        config.limits.buffer_bytes = buffer_bytes;
        let (_server, address) = serve(config);
        let settings = Settings { capsule_data: 256 << 10, oversteps: true, ..Settings::default() };
        let mut host = Host::new(address, settings, 2);
        assert_eq!(super::host::capsule_data(&mut host.admin), capsule_data, "IOCCSZ");
        let data = vec![7; capsule_data as usize];
        assert!(host.io().write(1, 0, &data).is_success());
        // With more the queue ends, and no other.
        let longer = vec![7; capsule_data as usize + 512];
        let range = Range { lba: 0, blocks: longer.len() as u32 / 512 };
        host.io().submit(Io::Write { range, fua: false }.encode(1), to_send(&longer));
        host.io().wait_for_end();
        assert!(host.queues[1].write(1, 0, &data).is_success());
    }
}

/// Queues that begin capsules and do not end them, more than there is memory for, and one more host.
#[test]
fn capsules_of_one_host_get_on_while_others_hold_the_memory() {
    let mut config = config(layout(vec![memory(1, 8)]));
    config.shards = Some(1);
    config.limits.buffer_bytes = 64 << 20;
    config.limits.max_sessions = 4096;
    let (_server, address) = serve(config);
    let host = |host, queues| {
        let settings = Settings { host, capsule_data: 128 << 10, ..Settings::default() };
        Host::new(address, settings, queues)
    };
    let mut first = host(1, 4);
    let mut others: Vec<Host> = (2..18).map(|number| host(number, 40)).collect();
    let mut last = host(18, 4);
    assert_eq!(first.settings.capsule_data, 128 << 10);
    assert_eq!(last.settings.capsule_data, 16 << 10, "it has little for itself");
    for other in &mut others {
        let len = other.settings.capsule_data;
        for queue in &mut other.queues {
            let range = Range { lba: 0, blocks: len / 512 };
            let write = Io::Write { range, fua: false }.encode(1);
            queue.begin(write, to_send(&vec![7; len as usize]));
        }
    }
    for host in [&mut first, &mut last] {
        let data = vec![9; host.settings.capsule_data as usize];
        for _ in 0..50 {
            for queue in &mut host.queues {
                assert_eq!(queue.write(1, 4096, &data), Status::SUCCESS);
            }
        }
    }
}

#[test]
fn writes_in_capsules_get_on_before_data_that_was_asked_for() {
    for (buffers, capsule) in CAPSULES {
        long_and_short(buffers, capsule);
    }
}

fn long_and_short(buffer_bytes: usize, capsule_data: u32) {
    let mut config = config(layout(vec![memory(1, 8)]));
    config.shards = Some(1);
    config.limits.buffer_bytes = buffer_bytes;
    config.options.queue_entries = 128;
    let (_server, address) = serve(config);
    let idle = (10..18).map(|host| Host::new(address, Settings { host, ..Settings::default() }, 4));
    let idle: Vec<Host> = idle.collect();
    let settings = Settings { entries: 128, capsule_data, ..Settings::default() };
    let mut host = Host::new(address, settings, 1);
    // The data of the long ones comes behind the capsules of the short ones, and there is not enough memory for both.
    let write = |blocks: u32| {
        let range = Range { lba: 0, blocks };
        (Io::Write { range, fua: false }.encode(1), to_send(&vec![7; blocks as usize * 512]))
    };
    let long = if buffer_bytes == 8 << 20 { 6 } else { 26 };
    let short = capsule_data / 512;
    let writes = std::iter::repeat_n(2048, long).chain(std::iter::repeat_n(short, 100));
    let tags = host.io().submit_all(writes.map(write).collect());
    for tag in tags {
        let status = host.io().wait(tag).completion.expect("an answer").status;
        assert!(status.is_success(), "{status}");
    }
    drop(idle);
}
