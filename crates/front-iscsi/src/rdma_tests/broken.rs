//! Connections and devices that fail.

use super::*;
use lunet_server::rdma::token;

#[test]
fn a_wrong_key_ends_its_own_connection_alone() {
    let mut bench = Bench::new(64, layout(None));
    bench.connect(1);
    bench.connect(2);
    bench.log_in(1);
    bench.log_in(2);
    bench.command(1, 1, (READ, &cdb(0x28, 8), 4096), opens(None, Some(3)), &[]);
    bench.next(1, &[], Status::RemoteAccess);
    bench.until_closed(1);
    assert_eq!(bench.shard.conns.iter().count(), 1);
    bench.command(2, 1, (READ, &cdb(0x28, 8), 4096), opens(None, Some(4)), &[]);
    assert!(
        matches!(bench.next(2, &[], Status::Success), Work::Write(bytes, _) if bytes.len() == 4096)
    );
    assert_eq!(bench.status(2, 1).0, 0);
    bench.log_out(2, 2);
    bench.assert_all_is_given_back();
}

#[test]
fn a_connection_that_breaks_with_reads_under_way_gives_its_memory_back() {
    let mut bench = Bench::new(64, layout(None));
    let slot = bench.connect(1);
    bench.log_in(1);
    bench.command(1, 1, (WRITE, &cdb(0x2a, 2048), 1 << 20), opens(Some(3), None), &[]);
    while bench.wire.with(|state| state.posted_reads(1)) < 2 {
        bench.iterate();
    }
    // The initiator serves two at a time, so there are not more.
    (0..3).for_each(|_| bench.iterate());
    assert_eq!(bench.wire.with(|state| state.posted_reads(1)), 2);
    bench.shard.disconnect(slot);
    bench.iterate();
    bench.assert_all_is_given_back();
}

#[test]
fn a_device_that_fails_takes_its_own_connections_along() {
    let mut bench = Bench::new(64, layout(None));
    bench.connect(1);
    bench.connect(2);
    bench.log_in(1);
    bench.command(1, 1, (WRITE, &cdb(0x2a, 8), 4096), opens(Some(3), None), &[]);
    bench.wire.fail();
    bench.until_closed(1);
    bench.until_closed(2);
    assert!(bench.shard.rdma.is_none(), "it was the last one");
    bench.iterate();
    bench.assert_all_is_given_back();
}

#[test]
fn reads_that_come_back_in_another_order_fill_their_own_places() {
    let mut bench = Bench::new(64, layout(None));
    bench.connect(1);
    bench.log_in(1);
    let data = pattern(1 << 20);
    bench.command(1, 1, (WRITE, &cdb(0x2a, 2048), 1 << 20), opens(Some(3), None), &[]);
    let mut left = data.len();
    while left > 0 {
        // The last one that is under way comes back first.
        let reads = bench.wire.with(|state| state.posted_reads(1));
        if reads == 0 || (reads == 1 && left > 256 << 10) {
            bench.iterate();
            continue;
        }
        let (at, len) = bench.wire.with(|state| state.read_at(1, reads - 1));
        let at = (at - remote(3).offset) as usize;
        let work = bench.wire.nth(1, reads - 1, &data[at..at + len], Status::Success);
        assert!(matches!(work, Some(Work::Read(..))));
        left -= len;
    }
    assert_eq!(bench.status(1, 1), (0, Some(3)));
    bench.command(1, 2, (READ, &cdb(0x28, 2048), 1 << 20), opens(None, Some(8)), &[]);
    let mut seen = vec![0; data.len()];
    let mut left = seen.len();
    while left > 0 {
        let Work::Write(bytes, to) = bench.next(1, &[], Status::Success) else {
            panic!("an RDMA Write was expected");
        };
        let at = (to.address - remote(8).offset) as usize;
        seen[at..at + bytes.len()].copy_from_slice(&bytes);
        left -= bytes.len();
    }
    assert!(seen == data, "other data came back");
    assert_eq!(bench.status(1, 2).0, 0);
    bench.log_out(1, 3);
    bench.assert_all_is_given_back();
}

#[test]
fn a_peer_that_is_gone_ends_its_connection_with_all_that_was_under_way() {
    for status in [Status::RetryExceeded, Status::Flushed, Status::ReceiverNotReady] {
        let mut bench = Bench::sharing(64, layout(None));
        bench.connect(1);
        bench.connect(2);
        bench.log_in(1);
        bench.log_in(2);
        for number in 1..=4 {
            let header = opens(None, Some(number));
            bench.command(1, number, (READ, &cdb(0x28, 8), 4096), header, &[]);
        }
        let header = opens(Some(9), None);
        bench.command(1, 5, (WRITE, &cdb(0x2a, 128), 65_536), header, &[]);
        bench.next(1, &pattern(65_536), status);
        bench.until_closed(1);
        assert_eq!(bench.shard.conns.iter().count(), 1, "{status:?}");
        bench.log_out(2, 1);
        bench.assert_all_is_given_back();
    }
}

#[test]
fn ends_of_work_of_a_connection_that_is_gone_hit_no_other() {
    let mut bench = Bench::new(64, layout(None));
    let old = bench.connect(1);
    bench.log_in(1);
    bench.log_out(1, 1);
    let new = bench.connect(2);
    assert_eq!(old, new, "at the same place");
    bench.log_in(2);
    bench.wire.complete_late(1, token(new, 77));
    (0..3).for_each(|_| bench.iterate());
    assert_eq!(bench.shard.conns.iter().count(), 1);
    bench.log_out(2, 1);
    bench.assert_all_is_given_back();
}
