//! The hot loop allocates nothing: a load of four times as many operations makes no more allocations than a small one, but for a few
//! that go with time.
//!
//! A test of its own, because the allocator counts what the whole process does. The server runs in this process too, so what is
//! counted is both ends.

#[allow(dead_code, reason = "the other tests use the rest of it")]
#[path = "it/support.rs"]
mod support;

use std::alloc::System;
use std::sync::atomic::AtomicBool;

use lunet_client::front::Front;
use lunet_client::iscsi::Initiator;
use lunet_client::nvme::Host;
use lunet_client::{DriverChoice, Plan, ReadData, Verify, Workload, run};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::nvme::{self, Namespaces};
use support::{NAME, Served, memory};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Operations of the small load.
const FEW: u64 = 2_500;
/// Of the operations that the large load has more, one of so many may allocate: what is kept for each second, and buffers that
/// grow to what the deepest moment needs.
const ONE_OF: u64 = 50;

/// What both ends allocate while so many operations are done.
fn allocations(front: impl Front, driver: DriverChoice, load: &Workload, operations: u64) -> u64 {
    let size = operations * u64::from(load.blocks[0].bytes);
    let load = Workload { runtime: None, size: Some(size), ..load.clone() };
    let mut plan = Plan::new(front, load);
    plan.driver = driver;
    let region = Region::new(ALLOCATOR);
    let outcome = run(&plan, &AtomicBool::new(false), |_| {}).expect("it runs");
    let change = region.change();
    assert_eq!(outcome.failures(), Vec::<&str>::new());
    assert_eq!(outcome.work.operations(), operations);
    (change.allocations + change.reallocations) as u64
}

#[test]
fn no_operation_allocates() {
    let served = Served::volumes(vec![memory(64)]);
    let namespaces = Namespaces::serve(vec![nvme::memory(64)]);
    let small = Workload::new(4096);
    let large = Workload { reads_percent: 50, depth: 8, ..Workload::new(128 << 10) };
    let digests = "?header_digest=crc32c&data_digest=crc32c";
    let loads = [
        ("reads", "", small.clone()),
        ("reads that are received", "", Workload { read_data: ReadData::Receive, ..small.clone() }),
        ("writes", "", Workload { reads_percent: 0, ..small.clone() }),
        ("one at a time", "", Workload { depth: 1, ..small.clone() }),
        ("sessions", "", Workload { jobs: 4, reads_percent: 70, ..small.clone() }),
        ("stable writes", "", Workload { reads_percent: 0, fua: true, ..small.clone() }),
        ("large blocks", "", large.clone()),
        ("digests", digests, large),
        ("verified", "", Workload { reads_percent: 50, verify: Some(Verify::default()), ..small }),
    ];
    for driver in [DriverChoice::Auto, DriverChoice::Epoll] {
        let fronts = loads.iter().flat_map(|load| [("iSCSI", load), ("NVMe", load)]);
        for (protocol, (what, digest, load)) in fronts {
            let count = |operations| match protocol {
                "iSCSI" => {
                    let target = served.at("", &format!("/{NAME}/0{digest}"));
                    allocations(Initiator::from(target), driver, load, operations)
                }
                _ => {
                    let host = Host::from(namespaces.at(digest));
                    allocations(host, driver, load, operations)
                }
            };
            // What a process allocates once is behind it.
            count(FEW);
            let (few, many) = (count(FEW), count(4 * FEW));
            println!(
                "{protocol}, {driver:?}, {what}: {few} allocations, {many} with {} more operations",
                3 * FEW
            );
            assert!(few > 0, "the allocator counts");
            assert!(
                many <= few + 3 * FEW / ONE_OF,
                "{protocol}, {driver:?}, {what}: {FEW} operations make {few} allocations, {} make {many}",
                4 * FEW
            );
        }
    }
}
