//! Gateways of a failover group on a real cluster of Ceph, each a process of its own that writes while it owns the group. They
//! are killed, frozen and moved; what is in the image at the end is what they have acknowledged.
//!
//! `cargo test -p lunet-e2e --test groups -- --nocapture` prints how long changes of the owner took.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use lunet_e2e::ceph::{Cluster, cluster};
use lunet_gateway::{Contents, Epoch, GatewayId, Port, Record, Reserved, Sanitize, Volume};
use lunet_group::{Error, create, read, remove};
use lunet_rbd::{Image, ImageName, Lane, Place, Request};
use lunet_ring::Arena;
use rustix::process::{Pid, Signal, kill_process};

const BLOCKS: usize = 32;
const BLOCK: usize = 4096;
const APART: usize = 512 << 10;
/// For whatever has to happen, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Held by whoever freezes the monitor, which stops all groups.
static MONITOR: RwLock<()> = RwLock::new(());

/// A group of one image with three gateways.
struct World {
    cluster: &'static Cluster,
    place: Place,
    /// By block: the latest acknowledged stamp of any gateway.
    acknowledged: HashMap<usize, (u64, u64)>,
}

impl World {
    /// For a test that waits long: `make test-ceph` runs it, with `LUNET_E2E_LONG`.
    fn long(name: &str) -> Option<Self> {
        if std::env::var_os("LUNET_E2E_LONG").is_none() {
            eprintln!("skipped: it takes long; make test-ceph runs it");
            return None;
        }
        Self::new(name)
    }

    fn new(name: &str) -> Option<Self> {
        let cluster = cluster()?;
        // Of the pool alone, as gateways have it.
        cluster.script(&["user", "gateway"]).expect("a user");
        cluster.shared_image(name, 16).expect("a new image");
        let group = ImageName::parse(&format!("rbd://rbd/{name}")).expect("a name");
        let user = Some("gateway".to_owned());
        let place = Place { conf: Some(cluster.conf()), user, ..Place::new(group) };
        let port =
            |number: u16| Port { gateway: GatewayId(number), group: number, relative: number };
        let volume = Volume {
            image: format!("rbd/{name}"),
            id: String::new(),
            bytes: 0,
            naa: [3; 16],
            serial: name.to_owned(),
            reserved: Reserved::default(),
            modes: Vec::new(),
            sanitize: Sanitize::None,
        };
        let contents = Contents { volumes: vec![volume] };
        let ports = (1..=3).map(port).collect();
        let record = Record::new("iqn.2026-11.local.lunet:group", [7; 32], ports, contents);
        create(&place, record).expect("a new group");
        Some(Self { cluster, place, acknowledged: HashMap::new() })
    }

    /// Runs `ceph` as the administrator.
    fn ceph(&self, words: &[&str]) {
        self.cluster.ceph(words).expect("the cluster answers");
    }

    /// Starts a gateway, which kills itself at a step.
    fn gateway_until(&self, number: u16, step: &str) -> Gateway {
        let mut command = Command::new(env!("CARGO_BIN_EXE_group-gateway"));
        command.arg(self.cluster.conf()).arg(self.place.name.to_string());
        command.args([number.to_string(), (number - 1).to_string()]);
        if !step.is_empty() {
            command.arg(step);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it is built with the tests");
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().expect("its output"));
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if sender.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        let orders = child.stdin.take().expect("its input");
        Gateway { number, child, orders, lines, seen: Vec::new() }
    }

    fn gateway(&self, number: u16) -> Gateway {
        self.gateway_until(number, "")
    }

    /// Starts a gateway that owns the group, and has written everything once.
    fn owner(&self, number: u16) -> (Gateway, u64) {
        let mut gateway = self.gateway(number);
        let (_, epoch) = gateway.opens(PATIENCE);
        gateway.writes_all(epoch);
        (gateway, epoch)
    }

    /// Starts a gateway that is a standby.
    fn standby(&self, number: u16) -> Gateway {
        let mut gateway = self.gateway(number);
        gateway.until(PATIENCE, |line| line.starts_with("access "));
        gateway
    }

    fn record(&self) -> Record {
        read(&self.place).expect("the record")
    }

    /// Looks what gateways have acknowledged, and has them stop.
    fn finish(mut self, gateways: Vec<Gateway>) {
        for mut gateway in gateways {
            gateway.end();
            for (_, line) in &gateway.seen {
                let Some(ack) = line.strip_prefix("ack ") else { continue };
                let mut words = ack.split(' ').map(|word| word.parse::<u64>().expect("a number"));
                let mut next = || words.next().expect("three numbers");
                let (epoch, block, count) = (next(), next() as usize, next());
                let latest = self.acknowledged.entry(block).or_default();
                *latest = (*latest).max((epoch, count));
            }
        }
        let stamps = self.stamps();
        assert!(self.acknowledged.len() == BLOCKS, "nothing was written");
        for (block, acknowledged) in &self.acknowledged {
            let found = stamps[block];
            assert!(
                found >= *acknowledged,
                "block {block} has {found:?}, and {acknowledged:?} was acknowledged"
            );
        }
    }

    /// What is in the image: of each block the epoch and the number of its write.
    fn stamps(&self) -> BTreeMap<usize, (u64, u64)> {
        let name = self.place.name.plain();
        let bytes = self.cluster.content(&name).expect("the image");
        let stamp = |block: usize| {
            let content = &bytes[block * APART..][..BLOCK];
            let mut parts = content.chunks_exact(16);
            let first = parts.next().expect("16 bytes");
            assert!(parts.all(|part| part == first), "block {block} is torn");
            let word = |at: usize| u64::from_le_bytes(*first[at..].first_chunk().expect("8 bytes"));
            (block, (word(0), word(8)))
        };
        (0..BLOCKS).map(stamp).collect()
    }
}

/// A gateway.
struct Gateway {
    number: u16,
    child: Child,
    orders: ChildStdin,
    lines: Receiver<(Instant, String)>,
    seen: Vec<(Instant, String)>,
}

impl Gateway {
    /// Waits for a line. What was looked for before is not seen again.
    fn until(&mut self, limit: Duration, is: impl Fn(&str) -> bool) -> (Instant, String) {
        match self.within(limit, is) {
            Some(found) => found,
            None => panic!("gateway {}: {:#?}", self.number, self.story()),
        }
    }

    fn within(&mut self, limit: Duration, is: impl Fn(&str) -> bool) -> Option<(Instant, String)> {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let found = self.lines.recv_timeout(left).ok()?;
            self.seen.push(found.clone());
            if is(&found.1) {
                return Some(found);
            }
        }
    }

    /// What it has said, but for single writes.
    fn story(&self) -> Vec<&str> {
        let lines = self.seen.iter().map(|(_, line)| &**line);
        lines.filter(|line| !line.starts_with("ack ")).collect()
    }

    fn has_said(&self, what: &str) -> bool {
        self.seen.iter().any(|(_, line)| line.starts_with(what))
    }

    /// Waits until its gate opens: when that was, and the epoch.
    fn opens(&mut self, limit: Duration) -> (Instant, u64) {
        let (at, line) = self.until(limit, |line| line.starts_with("open "));
        (at, line["open ".len()..].parse().expect("an epoch"))
    }

    /// Waits until it has written each block in an epoch: when the first one was.
    fn writes_all(&mut self, epoch: u64) -> Instant {
        let start = format!("ack {epoch} ");
        let first = self.until(PATIENCE, |line| line.starts_with(&start)).0;
        for _ in 1..2 * BLOCKS {
            self.until(PATIENCE, |line| line.starts_with(&start));
        }
        first
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it runs");
    }

    fn signal(&self, signal: Signal) -> Instant {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it is there");
        Instant::now()
    }

    /// Kills it, and takes in all that it has said.
    fn end(&mut self) {
        // One that has killed itself is gone already.
        drop(self.child.kill());
        self.child.wait().expect("a process of this one");
        while let Ok(found) = self.lines.recv_timeout(Duration::from_secs(5)) {
            self.seen.push(found);
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn seconds(what: &str, took: Duration) {
    eprintln!("{what}: {:.2} s", took.as_secs_f64());
}

#[test]
fn a_record_is_made_once_and_read_by_anybody() {
    let _monitor = MONITOR.read();
    let Some(world) = World::new("record") else { return };
    let record = world.record();
    assert_eq!((record.epoch, record.contents.volumes.len()), (Epoch(1), 1));
    assert!(matches!(create(&world.place, record.clone()), Err(Error::Exists(_))));
    let other = ImageName::parse("rbd://rbd/nowhere").expect("a name");
    let nowhere = Place { name: other, ..world.place.clone() };
    assert!(matches!(read(&nowhere), Err(Error::None(_))));
    remove(&world.place).expect("the record is there");
    assert!(matches!(read(&world.place), Err(Error::None(_))));
}

/// Opening fails as the entry of that client is too short; the administrator takes it off the list; then it succeeds, and the
/// entry is one for ten years.
fn refused_until_unlisted(world: &World, place: &Place) -> Image {
    let address = place.before.clone().expect("a client of before");
    let error = Image::open(place).expect_err("it may come back").to_string();
    assert!(
        error.contains(&format!("the client {address}, which had the image before"))
            && error.contains("only, as Ceph does not lengthen")
            && error.contains(&format!("ceph osd blocklist rm {address}")),
        "{error}"
    );
    world.ceph(&["osd", "blocklist", "rm", &address]);
    let image = Image::open(place).expect("an image without an owner that could come back");
    let years = world.cluster.years_listed(&address).expect("a list");
    assert!(years.is_some_and(|years| years >= 9), "the entry lasts {years:?} years");
    image
}

#[test]
fn an_image_is_not_taken_from_a_client_that_may_come_back() {
    let _monitor = MONITOR.read();
    let Some(world) = World::new("image") else { return };
    // It stands still, as far as the others know.
    let old = Image::open(&world.place).expect("a free image");
    let address = old.owner().expect("it has the lock").to_owned();
    world.ceph(&["osd", "blocklist", "add", &address, "3600"]);
    let place = Place { before: Some(address), ..world.place.clone() };
    let image = refused_until_unlisted(&world, &place);
    // A tool of Ceph breaks the lock, which shuts the client out for an hour, and leaves the image free.
    let [address, id, locker] = world.cluster.holder("image").expect("a lock");
    assert_eq!(image.owner(), Some(&*address));
    world.cluster.rbd(&["lock", "rm", "image", &id, &locker]).expect("it is there");
    image.give_up(108);
    // As `lunet volume adopt` does, while the former client is open.
    let anew = image.gone(&world.place);
    drop(refused_until_unlisted(&world, &anew));
}

/// The end of a request of a client for the last block of an image, which is filled with that, or read.
fn asks(image: &Arc<Image>, fill: Option<u8>) -> Result<Vec<u8>, i32> {
    let arena = Arena::new(1 << 20).expect("memory");
    let mut lane = Lane::new(Arc::clone(image), 1).expect("a descriptor");
    let mut buf = arena.alloc(BLOCK).expect("memory");
    buf.fill(fill.unwrap_or_default());
    let request = if fill.is_some() { Request::Write } else { Request::Read };
    lane.start(request, (16 << 20) - BLOCK as u64, BLOCK, Some(buf)).map_err(|(errno, _)| errno)?;
    let (mut ended, end) = (Vec::new(), Instant::now() + PATIENCE);
    while ended.is_empty() {
        assert!(Instant::now() < end, "the request does not end");
        thread::sleep(Duration::from_millis(5));
        lane.take(&mut ended);
    }
    let ended = ended.remove(0);
    ended.result.map(|_| ended.buf.expect("its buffer").to_vec())
}

#[test]
fn a_client_that_is_shut_out_reads_nothing_without_an_object_map() {
    let _monitor = MONITOR.read();
    let Some(world) = World::new("shut") else { return };
    world.cluster.image("mapped", 16).expect("a new image");
    for name in ["mapped", "shut"] {
        let name = ImageName::parse(&format!("rbd://rbd/{name}")).expect("a name");
        let place = Place { name, ..world.place.clone() };
        let old = Arc::new(Image::open(&place).expect("a free image"));
        // Nobody has written it: the object map says so.
        assert_eq!(asks(&old, None), Ok(vec![0; BLOCK]));
        let before = old.owner().map(str::to_owned);
        let new = Arc::new(Image::open(&Place { before, ..place.clone() }).expect("a fence"));
        asks(&new, Some(7)).expect("the new owner writes");
        let read = asks(&old, None).map(|read| read[0]);
        eprintln!("{}: the former owner reads {read:?}", place.name.plain());
        if place.name.plain() == "rbd/shut" {
            assert_eq!(read, Err(108));
        }
        assert_eq!(asks(&new, None), Ok(vec![7; BLOCK]));
        old.give_up(108);
    }
}

#[test]
fn a_planned_move_fences_nobody() {
    let _monitor = MONITOR.read();
    let Some(world) = World::new("moves") else { return };
    let (mut one, epoch) = world.owner(1);
    let mut two = world.standby(2);
    let begun = Instant::now();
    // An order that a standby gets goes to the owner.
    two.order("move 2");
    let (opened, next) = two.opens(PATIENCE);
    assert_eq!(next, epoch + 2, "one for the vacancy, one for the heir");
    let first = two.writes_all(next);
    seconds("planned move, order to owner", opened - begun);
    one.until(PATIENCE, |line| line.starts_with(&format!("access {next} ")));
    let (last, _) = one.seen.iter().rfind(|(_, line)| line.starts_with("ack ")).expect("a write");
    seconds("planned move, without writes", first - *last);
    // And back again, with the client that it had.
    one.order("move 1");
    let (_, back) = one.opens(PATIENCE);
    one.writes_all(back);
    for gateway in [&one, &two] {
        assert!(!gateway.has_said("deposed") && !gateway.has_said("no client"));
        assert!(!gateway.has_said("step Blocklist"), "a planned move fences nobody");
    }
    world.finish(vec![one, two]);
}

#[test]
fn the_other_gateway_owns_the_group_when_the_owner_is_killed() {
    let _monitor = MONITOR.read();
    let Some(world) = World::new("killed") else { return };
    let (mut one, epoch) = world.owner(1);
    let mut two = world.standby(2);
    let killed = one.signal(Signal::KILL);
    let (began, _) = two.until(PATIENCE, |line| line == "step Look");
    let (opened, next) = two.opens(PATIENCE);
    assert_eq!(next, epoch + 1);
    seconds("killed owner, detection", began - killed);
    seconds("killed owner, fence and takeover", opened - began);
    seconds("killed owner, to owner", opened - killed);
    two.writes_all(next);
    one.end();
    // Started again it is a standby, and comes back by an order.
    let mut again = world.standby(1);
    assert!(!again.has_said("open "));
    again.order("take");
    let (_, last) = again.opens(PATIENCE);
    assert_eq!(last, next + 1);
    two.until(PATIENCE, |line| line == "deposed");
    again.writes_all(last);
    world.finish(vec![one, two, again]);
}

#[test]
fn writes_of_an_owner_that_stood_still_land_nowhere() {
    let _monitor = MONITOR.read();
    let Some(world) = World::long("frozen") else { return };
    let (mut one, epoch) = world.owner(1);
    let mut two = world.standby(2);
    let frozen = one.signal(Signal::STOP);
    let (opened, next) = two.opens(PATIENCE);
    assert_eq!(next, epoch + 1);
    seconds("frozen owner, to owner", opened - frozen);
    two.writes_all(next);
    // From here on nothing would hide what lands.
    two.order("pause");
    let thawed = one.signal(Signal::CONT);
    let (deposed, _) = one.until(PATIENCE, |line| line == "deposed");
    seconds("thawed owner, until it knows that it is deposed", deposed - thawed);
    // It is a standby again, with another client.
    one.until(PATIENCE, |line| line.starts_with(&format!("access {next} ")));
    let after = one.seen.iter().skip_while(|(at, _)| *at < thawed);
    let acks = after.filter(|(_, line)| line.starts_with("ack ")).count();
    assert!(acks <= 8, "{acks} writes were acknowledged after it had stood still");
    for (block, (stamp, _)) in world.stamps() {
        assert_eq!(stamp, next, "block {block} has a write of the former owner");
    }
    world.finish(vec![one, two]);
}

#[test]
fn of_two_standbys_one_takes_the_group() {
    let _monitor = MONITOR.read();
    let Some(world) = World::long("two") else { return };
    let (mut one, epoch) = world.owner(1);
    let (mut two, mut three) = (world.standby(2), world.standby(3));
    // An administrator has both take it, at once.
    two.order("take");
    three.order("take");
    one.until(PATIENCE, |line| line == "deposed");
    let end = Instant::now() + PATIENCE;
    let owner = loop {
        assert!(Instant::now() < end, "nobody owns it: {:?} {:?}", two.story(), three.story());
        let short = Duration::from_millis(100);
        for gateway in [&mut two, &mut three] {
            gateway.within(short, |line| line.starts_with("open "));
        }
        let record = world.record();
        if let Some(owner) = record.owner.filter(|_| record.epoch.0 > epoch) {
            break owner.gateway.0;
        }
    };
    let (owner, other) = if owner == 2 { (&mut two, &mut three) } else { (&mut three, &mut two) };
    owner.writes_all(world.record().epoch.0);
    let _ = other.within(Duration::from_secs(1), |_| false);
    let epochs = |gateway: &Gateway| -> Vec<String> {
        gateway
            .story()
            .iter()
            .filter_map(|line| line.strip_prefix("open "))
            .map(str::to_owned)
            .collect()
    };
    let (ours, theirs) = (epochs(owner), epochs(other));
    assert!(ours.iter().all(|epoch| !theirs.contains(epoch)), "{ours:?} {theirs:?}");
    world.finish(vec![one, two, three]);
}

/// The owner is killed; gateway 2 takes over and is killed as that step begins, and gateway 3 has to come to own it.
fn dies_at(step: &str, name: &str) {
    let Some(world) = World::long(name) else { return };
    let (one, epoch) = world.owner(1);
    let mut two = world.gateway_until(2, step);
    two.until(PATIENCE, |line| line.starts_with("access "));
    one.signal(Signal::KILL);
    let last = format!("step {step}");
    let (died, _) = two.until(PATIENCE, |line| line == last);
    // Not before: on a slow machine it would be quicker than the other one, which is right, and another test.
    let mut three = world.standby(3);
    let (opened, next) = three.opens(PATIENCE);
    seconds(&format!("taker killed at {step}, another started, to owner"), opened - died);
    // The one that has died behind its compare-and-set was the owner.
    let between = u64::from(step == "Load");
    assert_eq!(next, epoch + 1 + between);
    three.writes_all(next);
    world.finish(vec![one, two, three]);
}

#[test]
fn a_taker_that_dies_keeps_nobody_out() {
    let _monitor = MONITOR.read();
    let steps = [
        [("Look", "look"), ("Blocklist", "blocklist"), ("WaitForMap", "map")],
        [("BreakLock", "break"), ("Acquire", "acquire"), ("Refresh", "refresh")],
        [("ReadRecord", "read"), ("Swap", "swap"), ("Load", "load")],
    ];
    for some in steps {
        thread::scope(|scope| {
            for (step, name) in some {
                scope.spawn(move || dies_at(step, name));
            }
        });
    }
}

#[test]
fn an_entry_of_an_hour_is_no_fence() {
    let _monitor = MONITOR.read();
    let Some(world) = World::long("hour") else { return };
    let (one, epoch) = world.owner(1);
    let mut two = world.standby(2);
    let address = world.record().owner.expect("an owner").client.address;
    // It must not be quicker than the administrator.
    two.signal(Signal::STOP);
    one.signal(Signal::KILL);
    world.ceph(&["osd", "blocklist", "add", &address, "3600"]);
    two.signal(Signal::CONT);
    two.order("take");
    let (_, notice) = two.until(PATIENCE, |line| line.starts_with("notice "));
    assert!(notice.contains(&format!("ceph osd blocklist rm {address}")), "{notice}");
    assert_eq!(world.record().epoch, Epoch(epoch));
    world.ceph(&["osd", "blocklist", "rm", &address]);
    two.order("take");
    let (_, next) = two.opens(PATIENCE);
    two.writes_all(next);
    world.finish(vec![one, two]);
}

#[test]
fn without_the_monitors_nobody_takes_over() {
    let _monitor = MONITOR.write();
    let Some(world) = World::long("monitor") else { return };
    let (one, epoch) = world.owner(1);
    let mut two = world.standby(2);
    world.cluster.script(&["stop-mon"]).expect("the monitor");
    one.signal(Signal::KILL);
    two.until(PATIENCE, |line| line == "step Blocklist");
    let opened = two.within(Duration::from_secs(6), |line| line.starts_with("open "));
    world.cluster.script(&["cont-mon"]).expect("the monitor");
    assert_eq!(opened, None, "it has taken over without a quorum");
    let continued = Instant::now();
    let (opened, next) = two.opens(PATIENCE);
    assert_eq!(next, epoch + 1);
    seconds("monitor back, to owner", opened - continued);
    two.writes_all(next);
    world.finish(vec![one, two]);
}
