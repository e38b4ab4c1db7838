//! Connections and devices that fail.

use super::*;

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
    assert_eq!(bench.shard.conns.len(), 1);
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
        bench.turn();
    }
    // The initiator serves two at a time, so there are not more.
    (0..3).for_each(|_| bench.turn());
    assert_eq!(bench.wire.with(|state| state.posted_reads(1)), 2);
    bench.shard.disconnect(slot);
    bench.turn();
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
    assert!(bench.shard.rdma.as_ref().is_some_and(|rdma| rdma.ports[0].is_none()));
    bench.turn();
    bench.assert_all_is_given_back();
}
