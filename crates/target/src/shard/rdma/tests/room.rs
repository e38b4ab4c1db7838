//! How many connections there may be, and what they are counted for.

use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::rdma::Entry;

#[test]
fn connections_leave_half_of_the_memory_for_data() {
    let mut bench = Bench::new(64, layout(None));
    let mut joined = 0;
    let refused = loop {
        let core = bench.shard.core.clone();
        let proto = rdma::connection(&core.options, true, Duration::ZERO);
        let address = core.portals[0].address;
        let wire = Wire::Rdma(Box::new(Link::new(0, Endpoint::Fake(joined), 2)));
        let conn = Conn::new(core.next_serial(), (address, address, 0), wire, proto);
        match bench.shard.join(conn) {
            Ok(_) => joined += 1,
            Err(why) => break why,
        }
    };
    assert!(refused.contains("give server.buffer-memory more"), "{refused}");
    let arena = bench.shard.engine.ring.arena();
    assert!(joined > 0 && arena.free_bytes() >= arena.total_bytes() / 2);
    assert_eq!(bench.shard.conns.len(), joined as usize);
    assert_eq!(bench.wire.with(|state| state.closed.clone()), [joined]);
}

#[test]
fn a_request_that_is_lost_on_its_way_is_not_counted_any_more() {
    let bench = Bench::new(64, layout(None));
    let core = &bench.shard.core;
    let client = [192, 0, 2, 7].into();
    let counted = || (core.logins.load(Relaxed), core.loads[0].load(Relaxed));
    let (lost, kept) = (Entry::new(core, client), Entry::new(core, client));
    assert_eq!(counted(), (2, 2));
    drop(lost);
    kept.expect("there is a place").keep();
    assert_eq!(counted(), (1, 1), "its connection gives them back");
    // Beyond the limit nothing is counted.
    let all: Vec<_> = std::iter::from_fn(|| Entry::new(core, client)).collect();
    assert_eq!(counted(), (all.len() + 1, all.len() + 1));
    drop(all);
    assert_eq!(counted(), (1, 1));
}
