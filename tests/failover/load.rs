//! Owners that are killed, frozen, moved and deposed under the load of two hosts that check what they read.

use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use lunet_e2e::random_from_environment;
use lunet_e2e::server::Server;
use rustix::process::Signal;

use crate::TAKEOVER;
use crate::history::{BLOCKS, Disk, Host};
use crate::world::{
    Group, access, becomes, gateways, log_in, long, says, seconds, signal, told, two, undisturbed,
    until,
};

/// Less than what librbd waits for a watcher that is dead. The design's own limit is 2 s.
const HAND_OVER: Duration = Duration::from_secs(4);
/// How often the owner changes if nothing else is asked for.
const CHANGES: u64 = 10;

/// Two hosts, each with a path to each gateway: one keeps 32 commands under way, the other one 8.
pub struct Load {
    disk: Arc<Disk>,
    portals: Vec<String>,
    hosts: Vec<Host>,
}

impl Load {
    /// Begins, over the first so many gateways, and goes on until writes are acknowledged.
    pub fn start(group: &Group<'_>, gateways: usize) -> Result<Self> {
        Self::over(group.portals[..gateways].to_vec())
    }

    /// Begins, over these portals alone.
    pub fn over(portals: Vec<String>) -> Result<Self> {
        let mut load = Self { disk: Disk::new(), portals, hosts: Vec::new() };
        load.resume()?;
        Ok(load)
    }

    /// Begins anew behind [`Self::rest`].
    pub fn resume(&mut self) -> Result<()> {
        let host = |name, first: u64, depth| {
            let mine = (0..BLOCKS).filter(move |block| block % 2 == first);
            Host::start(name, &self.portals, &self.disk, mine, depth)
        };
        self.hosts = vec![host("one", 0, 32), host("two", 1, 8)];
        self.goes_on()
    }

    /// Waits until each host has begun and ended writes from now on.
    pub fn goes_on(&mut self) -> Result<()> {
        self.hosts.iter_mut().try_for_each(Host::goes_on)
    }

    /// The longest time from then on in which a host had no write acknowledged.
    pub fn pause_since(&self, then: Instant) -> Duration {
        self.hosts.iter().map(|host| host.pause_since(then)).max().unwrap_or_default()
    }

    /// Ends all hosts with everything acknowledged: from here on nothing hides what lands late.
    pub fn rest(&mut self) -> Result<()> {
        for host in self.hosts.drain(..) {
            let tally = host.end()?;
            eprintln!("{tally:?}");
            ensure!(tally.writes > 0 && tally.reads > 0, "a host did nothing: {tally:?}");
        }
        Ok(())
    }

    /// Demands that the image has what was acknowledged last, and nothing else.
    pub fn is_on(&self, group: &Group<'_>) -> Result<()> {
        self.disk.is(&group.ceph.content(&group.name)?)
    }

    /// The end.
    pub fn finish(mut self, group: &Group<'_>) -> Result<()> {
        self.rest()?;
        self.is_on(group)
    }
}

#[test]
fn a_standby_that_died_makes_no_planned_move_a_long_pause() -> Result<()> {
    if !long() {
        return Ok(());
    }
    let _cluster = undisturbed();
    let Some((group, servers)) = gateways("dead", 2)? else { return Ok(()) };
    let [one, two, three] = <[Server; 3]>::try_from(servers).map_err(|_| anyhow!("three"))?;
    let mut load = Load::start(&group, 2)?;
    // The cluster keeps its watch for half a minute, and librbd waits for its answer when it lets go of a lock that it has just
    // got: the owner goes on so long.
    three.kill()?;
    for (to, server) in [("2", &two), ("1", &one)] {
        let begun = Instant::now();
        one.tell(&["group", "move", "vms", to])?;
        becomes(server, "owner")?;
        seconds("planned move beside a dead standby", begun.elapsed());
        load.goes_on()?;
        let pause = load.pause_since(begun);
        seconds("of which without a write", pause);
        ensure!(pause < HAND_OVER, "hosts waited for {pause:?}");
    }
    load.finish(&group)
}

#[test]
fn an_owner_killed_at_depth_32_loses_nothing() -> Result<()> {
    let _cluster = undisturbed();
    let Some((group, one, two)) = two("depth")? else { return Ok(()) };
    let mut load = Load::start(&group, 2)?;
    one.kill()?;
    let killed = Instant::now();
    becomes(&two, "owner")?;
    load.goes_on()?;
    let pause = load.pause_since(killed);
    seconds("owner killed under load, longest time without an acknowledged write", pause);
    ensure!(pause < TAKEOVER, "it took {pause:?}");
    // It comes back as a standby, and may own the group again.
    let one = group.serve(1)?;
    becomes(&one, "standby")?;
    let moved = Instant::now();
    moves(&two, 1)?;
    becomes(&one, "owner")?;
    load.goes_on()?;
    seconds("planned move under load, longest pause", load.pause_since(moved));
    load.finish(&group)
}

/// Has the group move, again if commands under way did not end in time: that is no failure of a move on a loaded machine.
fn moves(by: &Server, to: u16) -> Result<()> {
    until("the group moves", || {
        let finished = by.command(&["group", "move", "vms", &to.to_string()])?;
        let is_there = finished.stderr.contains("owns group vms already");
        Ok(is_there || finished.status.is_some_and(|status| status.success()))
    })
}

#[test]
fn an_owner_that_stood_still_for_ten_seconds_lets_nothing_land() -> Result<()> {
    if !long() {
        return Ok(());
    }
    let _cluster = undisturbed();
    let Some((group, one, two)) = two("thawed")? else { return Ok(()) };
    // Entries for which nobody says how long they last are over when it goes on.
    group.ceph.ceph(&["config", "set", "mon", "mon_osd_blocklist_default_expire", "2"])?;
    let address = group.owner_address()?;
    let mut load = Load::start(&group, 2)?;
    signal(&one, Signal::STOP)?;
    let frozen = Instant::now();
    becomes(&two, "owner")?;
    load.goes_on()?;
    let pause = load.pause_since(frozen);
    seconds("owner frozen under load, longest time without an acknowledged write", pause);
    load.rest()?;
    sleep(Duration::from_secs(10).saturating_sub(frozen.elapsed()));
    signal(&one, Signal::CONT)?;
    let thawed = Instant::now();
    becomes(&one, "standby")?;
    seconds("thawed owner, until it is a standby", thawed.elapsed());
    load.is_on(&group)?;
    ensure!(group.ceph.years_listed(&address)? >= Some(9), "the entry is none for ten years");
    load.resume()?;
    moves(&two, 1)?;
    load.goes_on()?;
    load.finish(&group)
}

#[test]
fn an_entry_of_the_blocklist_that_ends_soon_is_waited_out() -> Result<()> {
    if !long() {
        return Ok(());
    }
    let _cluster = undisturbed();
    let Some((group, one, two)) = two("short")? else { return Ok(()) };
    let address = group.owner_address()?;
    let (_, epoch) = group.owner()?;
    let mut load = Load::start(&group, 2)?;
    // The standby must not be quicker than the administrator.
    signal(&two, Signal::STOP)?;
    signal(&one, Signal::STOP)?;
    group.ceph.ceph(&["osd", "blocklist", "add", &address, "15"])?;
    let listed = Instant::now();
    signal(&two, Signal::CONT)?;
    let notice = says(&two, &format!("ceph osd blocklist rm {address}"))?;
    ensure!(notice.contains("it is tried again"), "{notice}");
    if listed.elapsed() < Duration::from_secs(14) {
        ensure!(group.owner()? == (Some(1), epoch), "it was taken over behind no fence");
    }
    // The entry is over; nobody has fenced the writes that the frozen owner has in its client.
    until("the entry is over", || Ok(group.ceph.years_listed(&address)?.is_none()))?;
    until("it is taken over", || {
        two.command(&["group", "take-over", "vms"])?;
        Ok(told(&two)?["state"] == "owner")
    })?;
    load.goes_on()?;
    load.rest()?;
    signal(&one, Signal::CONT)?;
    becomes(&one, "standby")?;
    load.is_on(&group)?;
    ensure!(group.ceph.years_listed(&address)? >= Some(9), "the entry is none for ten years");
    load.resume()?;
    load.finish(&group)
}

/// The gateways say the same of all target port groups, through every one of them.
fn agree(servers: &[&Server]) -> Result<()> {
    until("all gateways report the same states", || {
        let mut reports = Vec::new();
        for server in servers {
            reports.push(access(&mut log_in(server, "iqn.x:looks")?)?);
        }
        let optimized = |report: &Vec<u8>| {
            // Descriptors of eight bytes with a port of four each, behind the length.
            report[4..].chunks(12).filter(|group| group[0] & 0x0F == 0).count() == 1
        };
        Ok(reports.iter().all(|report| *report == reports[0] && optimized(report)))
    })
}

#[test]
fn of_two_standbys_one_takes_the_group_and_all_say_the_same() -> Result<()> {
    if !long() {
        return Ok(());
    }
    let _cluster = undisturbed();
    let Some((group, mut servers)) = gateways("standbys", 2)? else { return Ok(()) };
    let mut load = Load::start(&group, 3)?;
    agree(&servers.iter().collect::<Vec<_>>())?;
    let (_, epoch) = group.owner()?;
    servers.remove(0).kill()?;
    until("somebody owns it", || Ok(group.owner()?.1 > epoch))?;
    load.goes_on()?;
    ensure!(group.owner()?.1 == epoch + 1, "it was taken over more than once");
    agree(&servers.iter().collect::<Vec<_>>())?;
    servers.push(group.serve(1)?);
    let (owner, epoch) = group.owner()?;
    let owner = owner.context("an owner")?;
    // An administrator has the two standbys take it, at once.
    let all = [2, 3, 1];
    thread::scope(|scope| {
        let ordered: Vec<_> = servers
            .iter()
            .zip(all)
            .filter(|(_, gateway)| *gateway != owner)
            .map(|(server, _)| scope.spawn(move || server.command(&["group", "take-over", "vms"])))
            .collect();
        ordered
            .into_iter()
            .try_for_each(|order| order.join().map_err(|_| anyhow!("an order"))?.map(drop))
    })?;
    until("another one owns it", || {
        let (now, later) = group.owner()?;
        Ok(later > epoch && now.is_some_and(|now| now != owner))
    })?;
    load.goes_on()?;
    agree(&servers.iter().collect::<Vec<_>>())?;
    let owners = servers
        .iter()
        .map(|server| Ok(told(server)?["state"] == "owner"))
        .collect::<Result<Vec<_>>>()?;
    ensure!(owners.iter().filter(|owns| **owns).count() == 1, "{owners:?}");
    load.finish(&group)
}

/// What befalls an owner, or whoever is to be the next one.
#[derive(Clone, Copy, Debug)]
enum Change {
    Move,
    TakeOver,
    Kill,
    Freeze,
    /// The taker is killed after so many milliseconds.
    KillTaker(u64),
}

/// Two gateways, of which either may be away for a moment.
struct Pair<'a> {
    group: &'a Group<'a>,
    servers: [Option<Server>; 2],
}

impl Pair<'_> {
    fn server(&self, at: usize) -> Result<&Server> {
        self.servers[at].as_ref().context("it runs")
    }

    fn kill(&mut self, at: usize) -> Result<()> {
        self.servers[at].take().context("it runs")?.kill().map(drop)
    }

    fn start(&mut self, at: usize) -> Result<()> {
        self.servers[at] = Some(self.group.serve(at as u16 + 1)?);
        Ok(())
    }

    /// Where the owner is.
    fn owner(&self) -> Result<usize> {
        let mut found = 0;
        until("somebody owns the group", || {
            for (at, server) in self.servers.iter().enumerate() {
                if let Some(server) = server
                    && told(server)?["state"] == "owner"
                {
                    found = at;
                    return Ok(true);
                }
            }
            Ok(false)
        })?;
        Ok(found)
    }

    fn change(&mut self, change: Change, load: &mut Load) -> Result<()> {
        let owner = self.owner()?;
        let other = 1 - owner;
        // It may have been started a moment ago, or be in the middle of coming back.
        until("the other one is a standby", || {
            Ok(told(self.server(other)?)?["state"] == "standby")
        })?;
        let takes = |server: &Server| {
            until("it takes the group", || {
                server.command(&["group", "take-over", "vms"])?;
                Ok(told(server)?["state"] == "owner")
            })
        };
        match change {
            Change::Move => moves(self.server(owner)?, other as u16 + 1)?,
            Change::TakeOver => takes(self.server(other)?)?,
            Change::Kill => {
                self.kill(owner)?;
                becomes(self.server(other)?, "owner")?;
                load.goes_on()?;
                self.start(owner)?;
            }
            Change::Freeze => {
                signal(self.server(owner)?, Signal::STOP)?;
                takes(self.server(other)?)?;
                load.goes_on()?;
                signal(self.server(owner)?, Signal::CONT)?;
            }
            Change::KillTaker(after) => {
                let taker = self.server(other)?;
                thread::scope(|scope| {
                    let order = scope.spawn(|| taker.command(&["group", "take-over", "vms"]));
                    sleep(Duration::from_millis(after));
                    let killed = signal(taker, Signal::KILL);
                    drop(order.join());
                    killed
                })?;
                self.kill(other)?;
                self.owner()?;
                load.goes_on()?;
                self.start(other)?;
            }
        }
        load.goes_on()
    }
}

#[test]
fn the_owner_changes_again_and_again_and_nothing_is_lost() -> Result<()> {
    if !long() {
        return Ok(());
    }
    let _cluster = undisturbed();
    let Some((group, one, two)) = two("often")? else { return Ok(()) };
    let mut load = Load::start(&group, 2)?;
    let mut pair = Pair { group: &group, servers: [Some(one), Some(two)] };
    let wanted = std::env::var("LUNET_E2E_FAILOVERS").ok().and_then(|text| text.parse().ok());
    let mut random = random_from_environment();
    for turn in 1..=wanted.unwrap_or(CHANGES) {
        let change = match random.below(10) {
            0..4 => Change::Move,
            4..6 => Change::TakeOver,
            6 => Change::Kill,
            7 => Change::Freeze,
            _ => Change::KillTaker(random.below(1200)),
        };
        let begun = Instant::now();
        pair.change(change, &mut load).with_context(|| format!("change {turn}: {change:?}"))?;
        let (took, pause) = (begun.elapsed().as_secs_f64(), load.pause_since(begun).as_secs_f64());
        eprintln!("{turn}: {change:?}: {took:.1} s, of which {pause:.1} s without a write");
    }
    load.finish(&group)
}
