//! How many connections there may be, and what they are counted for.

use std::sync::atomic::Ordering::Relaxed;

use super::*;
use lunet_server::hosting::Limits;
use lunet_server::places::Entry;

#[test]
fn connections_leave_half_of_the_memory_for_data() {
    let mut bench = Bench::new(64, layout(None));
    let mut attached = 0;
    let refused = loop {
        let core = bench.shard.core.clone();
        let proto = over_rdma(&core.front.options, true, Duration::ZERO);
        let address = core.first_portals[0].address;
        let wire = Wire::Rdma(Box::new(QueuePair::new(0, Endpoint::Fake(attached), 2)));
        let conn =
            Conn::new(core.next_serial(), (address, address, 0), wire, IscsiConn::new(proto));
        match bench.shard.attach(conn) {
            Ok(_) => attached += 1,
            Err(why) => break why,
        }
    };
    assert!(refused.to_string().contains("give server.buffer-memory more"), "{refused}");
    let arena = bench.shard.front.exec.storage.ring.arena();
    assert!(attached > 0 && arena.free_bytes() >= arena.total_bytes() / 2);
    assert_eq!(bench.shard.conns.iter().count(), attached as usize);
    assert_eq!(bench.wire.with(|state| state.closed.clone()), [attached]);
}

#[test]
fn a_request_that_is_lost_on_its_way_is_not_counted_any_more() {
    let bench = Bench::new(64, layout(None));
    let core = &bench.shard.core;
    let client = [192, 0, 2, 7].into();
    let counted = || (core.logins.taken(), core.loads[0].load(Relaxed));
    let (lost, kept) = (Entry::new(core, client, None), Entry::new(core, client, None));
    assert_eq!(counted(), (2, 2));
    drop(lost);
    let (kept, victim) = kept;
    assert_eq!(victim, None, "there is a place");
    let serial = kept.serial();
    kept.keep();
    assert_eq!(counted(), (1, 1), "its connection gives them back");
    // Beyond the limit each takes the place of the oldest.
    let most = Limits::default().max_logins;
    let mut all: Vec<_> = (0..most).map(|_| Entry::new(core, client, None)).collect();
    assert_eq!(
        all.pop().and_then(|(_, victim)| victim).map(|place| place.connection),
        Some(serial)
    );
    assert_eq!(counted(), (most - 1, most));
    drop(all);
    assert_eq!(counted(), (0, 1));
}

/// Receives that connections share.
fn shared(bench: &Bench) -> usize {
    bench.wire.with(|state| state.shared.as_ref().map_or(0, Vec::len))
}

#[test]
fn connections_share_their_receives_and_give_them_back() {
    let mut bench = Bench::sharing(64, layout(None));
    let each = 16 + 32;
    for (endpoint, expected) in [(1, each), (2, 2 * each), (3, fake::SHARED as usize)] {
        bench.connect(endpoint);
        assert_eq!(shared(&bench), expected, "as many as may come, or as fit");
    }
    (1..=3).for_each(|endpoint| bench.log_in(endpoint));
    for endpoint in 1..=3 {
        let data = pattern(512);
        bench.command(endpoint, 1, (WRITE, &cdb(0x2a, 1), 512), opens(Some(7), None), &data);
        assert_eq!(bench.status(endpoint, 1).0, 0);
    }
    assert_eq!(shared(&bench), fake::SHARED as usize, "all are posted again");
    bench.log_out(3, 2);
    for number in 2..8 {
        bench.command(1, number, (0, &[0x00], 0), Header::default(), &[]);
        assert_eq!(bench.status(1, number).0, 0);
    }
    assert_eq!(shared(&bench), 2 * each, "those of the third are not");
    bench.log_out(1, 8);
    bench.log_out(2, 2);
    assert_eq!(shared(&bench), 0);
    bench.assert_all_is_given_back();
}

#[test]
fn receives_of_connections_that_broke_are_replaced() {
    let mut bench = Bench::sharing(64, layout(None));
    for endpoint in 1..=3 {
        bench.connect(endpoint);
    }
    (1..=3).for_each(|endpoint| bench.log_in(endpoint));
    // Messages whose connection has ended when they are looked at.
    (0..20).for_each(|_| ping(&mut bench, 3));
    let lost = bench.shard.conns.iter().find(|(_, conn)| conn.peer.port() == 40_003);
    let slot = lost.expect("it is there").0;
    bench.shard.disconnect(slot);
    bench.iterate();
    assert_eq!(shared(&bench), 2 * (16 + 32));
}

#[test]
fn receives_that_broken_messages_have_kept_are_replaced_and_then_no_longer_shared() {
    let mut bench = Bench::sharing(64, layout(None));
    let each = 16 + 32;
    bench.connect(1);
    bench.log_in(1);
    // Messages to one that is gone have kept some.
    let keep = |state: &mut fake::State, count| {
        let kept = state.shared.iter_mut().flat_map(|shared| shared.drain(..count));
        let kept: Vec<_> = kept.collect();
        state.lost.extend(kept);
    };
    bench.wire.with(|state| keep(state, 40));
    bench.iterate();
    bench.shard.flush_adapters();
    assert_eq!(shared(&bench), each);
    let taken =
        |bench: &Bench| bench.free - bench.shard.front.exec.storage.ring.arena().free_bytes();
    let before = taken(&bench);
    bench.wire.with(|state| state.exhausted = true);
    bench.connect(2);
    assert_eq!((shared(&bench), bench.wire.receives(2)), (each, each), "each has its own");
    bench.log_in(2);
    for endpoint in [1, 2] {
        bench.command(endpoint, 1, (READ, &cdb(0x28, 1), 512), opens(None, Some(4)), &[]);
        assert!(matches!(bench.next(endpoint, &[], Status::Success), Work::Write(..)));
        assert_eq!(bench.status(endpoint, 1).0, 0);
    }
    assert_eq!((shared(&bench), bench.wire.receives(2)), (each, each), "posted again");
    bench.log_out(2, 2);
    assert_eq!(taken(&bench), before);
    // With the last that shares, the queue gives back what is lost; who has its own stays.
    bench.connect(3);
    bench.log_in(3);
    bench.log_out(1, 2);
    bench.connect(4);
    assert_eq!((shared(&bench), bench.wire.receives(3), bench.wire.receives(4)), (each, each, 0));
    bench.log_in(4);
    bench.log_out(3, 1);
    bench.log_out(4, 1);
    bench.assert_all_is_given_back();
}

#[test]
fn who_sends_more_than_the_window_allows_is_disconnected_alone() {
    let mut bench = Bench::sharing(64, layout(None));
    for endpoint in 1..=3 {
        bench.connect(endpoint);
    }
    (1..=3).for_each(|endpoint| bench.log_in(endpoint));
    // As much as is allowed twice: then one more.
    (0..96).for_each(|_| ping(&mut bench, 1));
    bench.iterate();
    (0..96).for_each(|_| drop(bench.answer(1)));
    (0..97).for_each(|_| ping(&mut bench, 2));
    bench.until_closed(2);
    assert_eq!((bench.shard.conns.iter().count(), shared(&bench)), (2, fake::SHARED as usize));
    bench.command(1, 1, (READ, &cdb(0x28, 1), 512), opens(None, Some(4)), &[]);
    assert!(matches!(bench.next(1, &[], Status::Success), Work::Write(..)));
    assert_eq!(bench.status(1, 1).0, 0);
}

#[test]
fn who_takes_no_answers_is_disconnected() {
    let mut bench = Bench::new(8, layout(None));
    bench.connect(1);
    bench.log_in(1);
    // The device has eight of them; the others wait.
    for _ in 0..104 {
        ping(&mut bench, 1);
        bench.iterate();
    }
    assert!(bench.wire.with(|state| state.closed.is_empty()), "that many may wait");
    ping(&mut bench, 1);
    bench.until_closed(1);
    bench.assert_all_is_given_back();
}
