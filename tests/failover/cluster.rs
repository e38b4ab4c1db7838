//! A cluster that stands still, in part or as a whole, under load.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunet_e2e::ceph::{Cluster, another};
use serde_json::Value;

use crate::load::Load;
use crate::world::{Group, alone, becomes, long, seconds, started, told, two, until};

#[test]
fn without_the_monitor_the_owner_goes_on_and_nobody_takes_over() -> Result<()> {
    if !long() {
        return Ok(());
    }
    let _cluster = alone();
    let Some((group, one, two)) = two("quorum")? else { return Ok(()) };
    let mut load = Load::start(&group, 2)?;
    group.ceph.script(&["stop-mon"])?;
    let mut without = || -> Result<()> {
        load.goes_on()?;
        // The order is taken, and waits for the monitor.
        two.command(&["group", "take-over", "vms"])?;
        sleep(Duration::from_secs(3));
        load.goes_on()?;
        ensure!(told(&one)?["state"] == "owner", "it was taken over without a quorum");
        ensure!(told(&two)?["state"] != "owner", "there are two owners");
        Ok(())
    };
    let frozen = without();
    group.ceph.script(&["cont-mon"])?;
    frozen?;
    // The takeover may have been given up meanwhile.
    until("it is taken over", || {
        two.command(&["group", "take-over", "vms"])?;
        Ok(told(&two)?["state"] == "owner")
    })?;
    load.goes_on()?;
    becomes(&one, "standby")?;
    load.finish(&group)
}

/// Waits until so many OSDs are up, and all placement groups that can be are active.
fn has_osds(ceph: &Cluster, wanted: u64) -> Result<()> {
    until("OSDs are up", || {
        let text = ceph.ceph(&["osd", "stat", "--format", "json"])?;
        let stat: Value = serde_json::from_str(&text)?;
        Ok(stat["num_up_osds"] == wanted)
    })
}

/// Every copy is where it should be.
fn is_clean(ceph: &Cluster) -> Result<()> {
    until("the cluster is clean", || {
        let text = ceph.ceph(&["pg", "stat"])?;
        Ok(text
            .split(';')
            .next()
            .is_some_and(|states| states.ends_with(" active+clean") && !states.contains(',')))
    })
}

#[test]
fn osds_that_are_frozen_or_killed_cost_time_and_nothing_else() -> Result<()> {
    if !long() {
        return Ok(());
    }
    // One of its OSDs does not come back.
    let Some(ceph) = another(None) else { return Ok(()) };
    let group = Group::new(&ceph, "osds")?;
    let servers = started(&group, 1)?;
    let [one, two] = <[_; 2]>::try_from(servers).ok().context("two gateways")?;
    let mut load = Load::start(&group, 2)?;
    ceph.script(&["stop-osd", "1"])?;
    let frozen = Instant::now();
    load.goes_on()?;
    seconds("one of three OSDs frozen, longest time without a write", load.pause_since(frozen));
    has_osds(&ceph, 2)?;
    load.goes_on()?;
    ceph.script(&["cont-osd", "1"])?;
    has_osds(&ceph, 3)?;
    is_clean(&ceph)?;
    load.goes_on()?;
    ceph.script(&["kill-osd", "2"])?;
    let killed = Instant::now();
    load.goes_on()?;
    seconds("one of three OSDs killed, longest time without a write", load.pause_since(killed));
    has_osds(&ceph, 2)?;
    // Below min_size: nobody can write, and the record cannot be read.
    ceph.script(&["stop-osd", "1"])?;
    let below = Instant::now();
    sleep(Duration::from_secs(8));
    one.kill()?;
    sleep(Duration::from_secs(8));
    let owner = told(&two)?["state"] == "owner";
    ceph.script(&["cont-osd", "1"])?;
    ensure!(!owner, "it was taken over, and nothing can have been read or written");
    becomes(&two, "owner")?;
    load.goes_on()?;
    seconds(
        "below min_size for 16 s, owner killed meanwhile: longest time without a write",
        load.pause_since(below),
    );
    load.finish(&group)
}
