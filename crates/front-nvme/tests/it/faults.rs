//! Storage that hangs or fails, and hosts that go while it does.

use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lunet_nvme::command::{
    Acquire, AcquireAction, Admin, Io, PersistOnPowerLoss, Range, Register, RegisterAction,
    ReservationType,
};
use lunet_nvme::host::{Data, Tag};
use lunet_nvme::pdu::U64;
use lunet_nvme::status::Status;
use lunet_reservations::{Event, Register as Keys, Registrant};
use lunet_volume::Volume;
use lunet_volume::reserve::{Done, Listener};
use zerocopy::IntoBytes;

use crate::host::{Host, Queue, Settings, nqn, pair, to_send};
use crate::stall::{Gate, Stalling};
use crate::support::{Shown, layout, memory, serve_volumes, shown, until};

/// Somebody else's write is in the way.
const BUSY: Status = Status::INTERRUPTED.retry_after(1);

/// A volume whose writes can be held up.
fn stalling(number: u8) -> (Arc<Volume<Shown>>, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let inner = memory(number, 8).backend.clone();
    (shown(number, Arc::new(Stalling::new(inner, gate.clone()))), gate)
}

/// Begins a write of the first block, which the storage holds up.
fn held_up(queue: &mut Queue, gate: &Gate, byte: u8) -> Tag {
    gate.close();
    let before = gate.held();
    let range = Range { lba: 0, blocks: 1 };
    let tag = queue.submit(Io::Write { range, fua: false }.encode(1), to_send(&[byte; 512]));
    until("it is at the storage", || gate.held() > before);
    tag
}

/// Once the storage answers, what is written now stays.
fn is_free_again(queue: &mut Queue, gate: &Gate) {
    assert_eq!(queue.write(1, 0, &[7; 512]), BUSY, "an older write may come yet");
    assert_eq!(queue.read(1, 0, 1).err(), Some(BUSY));
    let tags = queue.submit_all(pair(0, 0, 7));
    let ended = tags.into_iter().map(|tag| queue.wait(tag).completion.expect("an answer").status);
    assert!(ended.eq([BUSY, Status::FAILED_FUSED]), "nor are they compared");
    gate.open();
    until("the older write has ended", || queue.write(1, 0, &[7; 512]).is_success());
    assert_eq!(queue.read(1, 0, 1).expect("data"), [7; 512]);
}

fn second(address: std::net::SocketAddr) -> Host {
    Host::new(address, Settings { host: 2, ..Settings::default() }, 2)
}

#[test]
fn a_write_of_a_host_that_is_gone_is_fenced_off() {
    let (volume, gate) = stalling(1);
    let (server, address) = serve_volumes(vec![volume]);
    let mut host = Host::new(address, Settings::default(), 2);
    let mut other = second(address);
    held_up(host.io(), &gate, 1);
    drop(host);
    until("the controller is gone", || server.handle().sessions().len() == 1);
    is_free_again(other.io(), &gate);
}

#[test]
fn a_write_of_a_silent_host_is_fenced_off() {
    let (volume, gate) = stalling(1);
    let (_server, address) = serve_volumes(vec![volume]);
    let settings = Settings { kato: Duration::from_secs(1), ..Settings::default() };
    let mut host = Host::new(address, settings.clone(), 2);
    let mut other = second(address);
    held_up(host.io(), &gate, 1);
    host.admin.wait_for_end();
    host.queues.iter_mut().for_each(Queue::wait_for_end);
    // The same host comes back.
    let mut host = Host::new(address, settings, 1);
    assert_eq!(host.io().write(1, 0, &[2; 512]), BUSY);
    is_free_again(other.io(), &gate);
}

#[test]
fn an_aborted_write_is_answered_at_once_and_fenced_off() {
    let (volume, gate) = stalling(1);
    let (_server, address) = serve_volumes(vec![volume]);
    let mut host = Host::new(address, Settings::default(), 3);
    let tag = held_up(host.io(), &gate, 1);
    let aborted = host.admin.plain(Admin::Abort { sqid: 1, cid: tag.cid() }.encode(0));
    assert_eq!((aborted.status, aborted.result & 1), (Status::SUCCESS, 0));
    let ended = host.io().wait(tag).completion.expect("an answer");
    assert_eq!(ended.status, Status::ABORTED);
    is_free_again(&mut host.queues[1], &gate);
}

#[test]
fn the_first_of_a_pair_is_aborted_before_its_second_comes() {
    let (_server, address) = serve_volumes(vec![memory(1, 8)]);
    let mut host = Host::new(address, Settings::default(), 1);
    let mut pair = pair(0, 0, 7);
    let second = pair.pop().expect("two commands");
    let first = host.io().submit_all(pair)[0];
    let abort = Admin::Abort { sqid: 1, cid: first.cid() }.encode(0);
    // It may still be on its way.
    until("it is aborted", || host.admin.plain(abort).result & 1 == 0);
    assert_eq!(host.io().wait(first).completion.expect("an answer").status, Status::ABORTED);
    let second = host.io().submit_all(vec![second])[0];
    let alone = host.io().wait(second).completion.expect("an answer").status;
    assert_eq!(alone.code(), Status::MISSING_FUSED);
    assert!(host.io().write(1, 0, &[7; 512]).is_success());
}

#[test]
fn a_read_with_fua_finds_stable_what_was_written() {
    let gate = Arc::new(Gate::default());
    let stalling = Stalling::volatile(memory(1, 8).backend.clone(), gate.clone());
    let (_server, address) = serve_volumes(vec![shown(1, Arc::new(stalling))]);
    let mut host = Host::new(address, Settings::default(), 2);
    let range = Range { lba: 0, blocks: 1 };
    assert!(host.io().write(1, 0, &[5; 512]).is_success());
    let (read, verify) = (Io::Read { range, fua: true }, Io::Verify { range, fua: true });
    // After a flush that has failed nothing is stable any more.
    for (io, len, broken) in [(read, 512, false), (verify, 0, false), (read, 512, true)] {
        gate.close();
        let room = if len > 0 { Data::Read(vec![0; len]) } else { Data::None };
        let tag = host.io().submit(io.encode(1), room);
        until("a flush is at the storage", || gate.held() == 1);
        assert_eq!(host.queues[1].read(1, 0, 1).expect("data"), [5; 512]);
        if broken {
            gate.break_open()
        } else {
            gate.open()
        }
        let ended = host.io().wait(tag);
        let status = ended.completion.expect("an answer").status;
        assert_eq!(status.is_success(), !broken, "{status}");
        if let (Data::Read(bytes), false) = (&ended.data, broken) {
            assert_eq!(*bytes, [5; 512]);
        }
    }
}

#[test]
fn a_reset_fences_off_what_was_at_work() {
    let (volume, gate) = stalling(1);
    let (_server, address) = serve_volumes(vec![volume]);
    let mut host = Host::new(address, Settings::default(), 1);
    let mut other = second(address);
    held_up(host.io(), &gate, 1);
    assert!(host.admin.configure(0x46_0060).is_success());
    host.io().wait_for_end();
    until("it is not ready", || host.admin.property(lunet_nvme::fabrics::Property::Status) == 0);
    is_free_again(other.io(), &gate);
}

#[test]
fn storage_that_hangs_holds_up_nobody_else() {
    let (volume, gate) = stalling(1);
    let (server, address) = serve_volumes(vec![volume, memory(2, 8)]);
    let mut host = Host::new(address, Settings::default(), 2);
    let tag = held_up(host.io(), &gate, 1);
    for queue in &mut host.queues {
        assert!(queue.write(2, 0, &[2; 512]).is_success());
        assert_eq!(queue.read(2, 0, 1).expect("data"), [2; 512]);
    }
    gate.open();
    assert!(host.io().wait(tag).completion.is_some_and(|it| it.status.is_success()));
    held_up(host.io(), &gate, 1);
    let start = std::time::Instant::now();
    server.stop(Duration::from_secs(2));
    assert!(start.elapsed() < Duration::from_secs(20), "it is not waited for");
    gate.open();
}

#[test]
fn a_command_on_a_namespace_that_goes_is_answered() {
    let (volume, gate) = stalling(1);
    let (server, address) = serve_volumes(vec![volume, memory(2, 8)]);
    let mut host = Host::new(address, Settings::default(), 2);
    let tag = held_up(host.io(), &gate, 1);
    let mut next = layout(vec![memory(1, 8), memory(2, 8)]);
    next.subsystems[0].namespaces.remove(0);
    next.volumes.remove(0);
    server.handle().apply(next).expect("it is served");
    let ended = host.io().wait(tag).completion.expect("an answer");
    assert_eq!(ended.status, Status::INVALID_NAMESPACE.no_retry());
    assert!(host.io().write(2, 0, &[2; 512]).is_success());
    gate.open();
}

#[test]
fn a_failure_of_the_storage_is_told() {
    let (volume, gate) = stalling(1);
    let (_server, address) = serve_volumes(vec![volume]);
    let mut host = Host::one(address);
    let tag = held_up(host.io(), &gate, 1);
    gate.break_open();
    let ended = host.io().wait(tag).completion.expect("an answer");
    assert_eq!(ended.status, Status::WRITE_FAULT);
    gate.repair();
    until("it works again", || host.io().write(1, 0, &[2; 512]).is_success());
}

#[test]
fn preempt_and_abort_ends_the_commands_of_the_other_host_first() {
    let (volume, gate) = stalling(1);
    let (_server, address) = serve_volumes(vec![volume]);
    let mut one = Host::one(address);
    let mut two = second(address);
    let register = |host: &mut Host, key| {
        let register = Io::ReservationRegister {
            action: RegisterAction::Register,
            ignore_key: false,
            persist: PersistOnPowerLoss::Unchanged,
        };
        let keys = Register { current: U64::new(0), new: U64::new(key) };
        assert!(host.io().send_data(register.encode(1), keys.as_bytes()).status.is_success());
    };
    register(&mut one, 0xa);
    // Its queues are on different shards.
    for at in 0..2 {
        register(&mut two, 0xb);
        let tag = held_up(&mut two.queues[at], &gate, 2);
        let kind = ReservationType::WriteExclusiveRegistrants;
        let preempt = Io::ReservationAcquire { action: AcquireAction::PreemptAndAbort, kind };
        let keys = Acquire { current: U64::new(0xa), preempted: U64::new(0xb) };
        assert!(one.io().send_data(preempt.encode(1), keys.as_bytes()).status.is_success());
        let ended = two.queues[at].wait(tag).completion.expect("an answer");
        assert_eq!(ended.status, Status::PREEMPTED);
        is_free_again(one.io(), &gate);
    }
}

/// Whoever listens for another protocol, and what it was told.
#[derive(Default)]
struct Listens(Mutex<Option<(Arc<[Registrant]>, Done)>>);

impl Listener for Listens {
    fn tell(&self, _: &[Event]) {}

    fn abort(&self, whose: &Arc<[Registrant]>, done: &Done) {
        *self.0.lock().unwrap() = Some((whose.clone(), done.clone()));
    }
}

#[test]
fn preempt_and_abort_waits_for_the_other_protocol() {
    let (volume, _gate) = stalling(1);
    let (_server, address) = serve_volumes(vec![volume.clone()]);
    let other = Registrant::new("other", b"somebody");
    volume.reservations.change(|state| {
        let keys = Keys { existing: None, new_key: 0xb, also: &[], keep: None };
        ((), state.register(&other, keys).expect("there is room"))
    });
    let listens = Arc::new(Listens::default());
    volume.reservations.listen(listens.clone());
    let mut host = Host::one(address);
    let register = Io::ReservationRegister {
        action: RegisterAction::Register,
        ignore_key: false,
        persist: PersistOnPowerLoss::Unchanged,
    };
    let keys = Register { current: U64::new(0), new: U64::new(0xa) };
    assert!(host.io().send_data(register.encode(1), keys.as_bytes()).status.is_success());
    let kind = ReservationType::ExclusiveAccess;
    let preempt = Io::ReservationAcquire { action: AcquireAction::PreemptAndAbort, kind };
    let keys = Acquire { current: U64::new(0xa), preempted: U64::new(0xb) };
    let tag = host.io().submit(preempt.encode(1), to_send(keys.as_bytes()));
    until("the other protocol is told", || listens.0.lock().unwrap().is_some());
    let (whose, done) = listens.0.lock().unwrap().take().expect("it was told");
    assert_eq!(whose[..], [other]);
    drop(done);
    let ended = host.io().wait(tag).completion.expect("an answer");
    assert!(ended.status.is_success());
}

/// Another protocol has preempted a host: its commands end before that is answered.
#[test]
fn commands_end_that_another_protocol_aborts() {
    let (volume, gate) = stalling(1);
    let (_server, address) = serve_volumes(vec![volume.clone()]);
    let mut one = Host::one(address);
    let mut two = second(address);
    let tag = held_up(&mut two.queues[1], &gate, 2);
    let (told, done) = std::sync::mpsc::channel::<()>();
    let whose = [Registrant::new("other", b"somebody"), Registrant::host([2; 16], &nqn(2))];
    // Dropped, the sender tells.
    volume.reservations.abort(&whose.into(), Arc::new(Mutex::new(told)));
    assert!(done.recv_timeout(Duration::from_secs(30)) == Err(RecvTimeoutError::Disconnected));
    let ended = two.queues[1].wait(tag).completion.expect("an answer");
    assert_eq!(ended.status, Status::PREEMPTED);
    is_free_again(one.io(), &gate);
}
