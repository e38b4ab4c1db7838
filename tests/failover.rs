//! Two lunets as gateways of a failover group, over one image of a real cluster of Ceph: initiators see one disk, whichever of
//! them serves it.
//!
//! `cargo test -p lunet-e2e --test failover -- --nocapture` prints how long changes of the owner took.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lunet_e2e::data::scratch;
use lunet_e2e::process::output;
use lunet_e2e::server::{Serve, Server, lunet_binary};
use lunet_e2e::sources::root;
use lunet_e2e::wire::scsi::{read16, sense_code, sense_key, write16};
use lunet_e2e::wire::{Answer, Login, Session};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const TARGET: &str = "iqn.2026-11.local.lunet:group";
const BLOCK: usize = 512;
const GOOD: u8 = 0;
const BUSY: u8 = 8;
const CONFLICT: u8 = 0x18;
/// LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN STANDBY STATE.
const STANDBY: (u8, u8, u8) = (2, 0x04, 0x0B);
const RTPG: [u8; 12] = [0xA3, 0x0A, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0];
/// Blocks that tests write, each in an object of its own or not.
const BLOCKS: u64 = 16;

/// For whatever has to happen, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// A planned move, order to first write. The design's own limit is 2 s.
const MOVE: Duration = Duration::from_secs(10);
/// From an owner's death to the first write through the other one. The design's own limit is 10 s.
const TAKEOVER: Duration = Duration::from_secs(25);

struct Cluster {
    directory: PathBuf,
    _supervisor: Child,
}

/// The cluster of this process; `None` if Ceph is not installed, which is said.
fn cluster() -> Option<&'static Cluster> {
    static CLUSTER: OnceLock<Option<Cluster>> = OnceLock::new();
    let start = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_there =
            |program: &&str| std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
        let programs = ["ceph-mon", "ceph-mgr", "ceph-osd", "rbd"];
        if !programs.iter().all(is_there) {
            eprintln!(
                "skipped: there is no Ceph here; install the packages ceph-mon, ceph-mgr, ceph-osd, ceph-common"
            );
            return None;
        }
        Some(Cluster::start().expect("the cluster starts"))
    };
    CLUSTER.get_or_init(start).as_ref()
}

impl Cluster {
    fn start() -> Result<Self> {
        // The supervisor removes it.
        let directory = scratch("lunet-failover-")?.keep();
        let me = std::process::id();
        let address = format!("127.{}.{}.{}", 96 + me / 65536 % 16, me / 256 % 256, me % 254 + 1);
        let mut supervisor = Command::new(root().join("tests/ceph/cluster"))
            .arg(&directory)
            .args(["run", &address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut said = String::new();
        let out = supervisor.stdout.take().context("no output")?;
        BufReader::new(out).read_line(&mut said)?;
        ensure!(said == "ready\n", "the cluster does not get ready: see above");
        let cluster = Self { directory, _supervisor: supervisor };
        let mut script = Command::new(root().join("tests/ceph/cluster"));
        output(script.arg(&cluster.directory).args(["user", "gateway"]), PATIENCE)?;
        Ok(cluster)
    }

    fn conf(&self) -> PathBuf {
        self.directory.join("ceph.conf")
    }

    /// The configuration of a gateway, with more keys for its volume.
    fn config(&self, name: &str, gateway: u16, more: &str) -> String {
        format!(
            "[server]\nalua = 'implicit'\n[[portal]]\naddress = '127.0.0.1:0'\ntag = {gateway}\n\
             [volumes.a]\nbackend = 'rbd'\nimage = 'rbd://rbd/{name}'\n{more}\n\
             [[target]]\nname = '{TARGET}'\nluns = ['a']\n\
             [group.g]\nrecord = 'rbd://rbd/{name}'\ngateway = {gateway}\ntargets = ['{TARGET}']\n\
             ceph-conf = '{}'\nceph-user = 'gateway'\n",
            self.conf().display()
        )
    }

    /// Makes an image and the record of its group, by the command for it.
    fn create(&self, name: &str) -> Result<()> {
        let mut rbd = Command::new("rbd");
        output(
            rbd.arg("--conf").arg(self.conf()).args([
                "create",
                name,
                "--size",
                "64M",
                "--image-feature",
                "layering,exclusive-lock",
            ]),
            PATIENCE,
        )?;
        let folder = scratch("lunet-failover-")?;
        let file = folder.path().join("lunet.toml");
        fs::write(&file, self.config(name, 1, ""))?;
        let mut create = Command::new(lunet_binary()?);
        create.args(["group", "create", "g", "--gateways", "3", "--config"]).arg(&file);
        output(&mut create, PATIENCE)?;
        let again = output(&mut create, PATIENCE).map(drop);
        ensure!(again.is_err(), "a record was made twice");
        Ok(())
    }

    fn serve(&self, name: &str, gateway: u16) -> Result<Server> {
        Serve::config(self.config(name, gateway, "")).start()
    }
}

/// Two gateways of a new group, of which the first one is the owner.
fn two(name: &str) -> Result<Option<(Server, Server)>> {
    let Some(ceph) = cluster() else { return Ok(None) };
    ceph.create(name)?;
    let one = ceph.serve(name, 1)?;
    becomes(&one, "owner")?;
    let two = ceph.serve(name, 2)?;
    becomes(&two, "standby")?;
    Ok(Some((one, two)))
}

/// The group as a gateway has it.
fn group(server: &Server) -> Result<Value> {
    let list: Value = serde_json::from_str(&server.tell(&["group", "list", "--json"])?)?;
    list.get(0).cloned().context("a group")
}

fn until(what: &str, mut is: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !is()? {
        ensure!(Instant::now() < end, "it does not come to be: {what}");
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Waits until a gateway is in that state, and knows the owner.
fn becomes(server: &Server, state: &str) -> Result<()> {
    until(state, || {
        let group = group(server)?;
        Ok(group["state"] == state && !group["owner"].is_null())
    })
}

fn log_in(server: &Server, initiator: &str) -> Result<Session> {
    Session::open(&Login { initiator, ..Login::new(server.portal(), TARGET) })
}

/// The answer to a command, behind unit attentions.
fn ask(session: &mut Session, cdb: &[u8], expected: usize, data: &[u8]) -> Result<Answer> {
    for _ in 0..16 {
        let answer = session.execute(0, cdb, expected, data)?;
        if sense_key(&answer) != Some(6) {
            return Ok(answer);
        }
    }
    bail!("unit attentions without end")
}

/// The same, as long as the answer is that another gateway serves, or that it is to be tried again.
fn insist(session: &mut Session, cdb: &[u8], expected: usize, data: &[u8]) -> Result<Answer> {
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = ask(session, cdb, expected, data)?;
        let waits = answer.status == BUSY || sense_code(&answer) == Some(STANDBY);
        if !waits {
            ensure!(answer.status == GOOD, "{answer:02x?}");
            return Ok(answer);
        }
        ensure!(Instant::now() < end, "{answer:02x?} for ever");
        sleep(Duration::from_millis(10));
    }
}

fn pattern(salt: u8) -> Vec<u8> {
    (0..BLOCK).map(|i| salt ^ (i % 251) as u8).collect()
}

fn lba(block: u64) -> u64 {
    block * 4096
}

fn write_all(session: &mut Session, salt: u8) -> Result<()> {
    (0..BLOCKS)
        .try_for_each(|block| insist(session, &write16(lba(block), 1), 0, &pattern(salt)).map(drop))
}

/// Demands that all blocks have this content.
fn have(session: &mut Session, salt: u8) -> Result<()> {
    for block in 0..BLOCKS {
        let answer = insist(session, &read16(lba(block), 1), BLOCK, &[])?;
        ensure!(answer.data == pattern(salt), "block {block} has other data");
    }
    Ok(())
}

/// What a LUN is called: its NAA designator, and its serial number.
fn identity(session: &mut Session) -> Result<(Vec<u8>, Vec<u8>)> {
    let page = ask(session, &[0x12, 1, 0x83, 0, 255, 0], 255, &[])?.data;
    let mut rest = page.get(4..).context("a page")?;
    let mut naa = None;
    while let [_, kind, _, len, tail @ ..] = rest {
        let (name, next) = tail.split_at_checked(usize::from(*len)).context("a designator")?;
        // Of the logical unit, and of type NAA.
        if kind & 0x3F == 3 {
            naa = Some(name.to_vec());
        }
        rest = next;
    }
    let serial = ask(session, &[0x12, 1, 0x80, 0, 255, 0], 255, &[])?.data;
    Ok((naa.context("an NAA designator")?, serial))
}

fn seconds(what: &str, took: Duration) {
    eprintln!("{what}: {:.2} s", took.as_secs_f64());
}

#[test]
fn a_planned_move_is_a_pause_and_the_disk_stays_the_same() -> Result<()> {
    let Some((one, two)) = two("moves")? else { return Ok(()) };
    let (mut first, mut second) = (log_in(&one, "iqn.x:a")?, log_in(&two, "iqn.x:b")?);
    write_all(&mut first, 1)?;
    let turned_back = ask(&mut second, &read16(0, 1), BLOCK, &[])?;
    ensure!(sense_code(&turned_back) == Some(STANDBY), "{turned_back:02x?}");
    ensure!(identity(&mut first)? == identity(&mut second)?, "one disk has two names");
    let states =
        |session: &mut Session| Ok::<_, anyhow::Error>(ask(session, &RTPG, 255, &[])?.data);
    let before = states(&mut first)?;
    ensure!(before == states(&mut second)?, "gateways report other states");
    let begun = Instant::now();
    two.tell(&["group", "move", "g", "2"])?;
    let ordered = begun.elapsed();
    insist(&mut second, &write16(lba(0), 1), 0, &pattern(1))?;
    let pause = begun.elapsed();
    seconds("planned move, command", ordered);
    seconds("planned move, order to first write through the other gateway", pause);
    ensure!(pause < MOVE, "it took {pause:?}");
    have(&mut second, 1)?;
    becomes(&one, "standby")?;
    let after = states(&mut first)?;
    ensure!(after == states(&mut second)? && after != before, "gateways report other states");
    let turned_back = ask(&mut first, &write16(0, 1), 0, &pattern(9))?;
    ensure!(sense_code(&turned_back) == Some(STANDBY), "{turned_back:02x?}");
    have(&mut second, 1)?;
    // The storage of a group's volume is nobody else's to change.
    let refusal = one.refuses(&["volume", "resize", "a", "128M"])?;
    ensure!(refusal.contains("belongs to group g"), "{refusal}");
    Ok(())
}

#[test]
fn a_reservation_by_the_standby_holds_at_the_owner_and_after_a_takeover() -> Result<()> {
    let Some((one, two)) = two("reserved")? else { return Ok(()) };
    let (mut first, mut second) = (log_in(&one, "iqn.x:a")?, log_in(&two, "iqn.x:b")?);
    write_all(&mut first, 1)?;
    let out = |action: u8, kind: u8, key: u64, second: u64| {
        let list = [&key.to_be_bytes()[..], &second.to_be_bytes(), &[0; 8]].concat();
        ([0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
    };
    // REGISTER, then RESERVE with WRITE EXCLUSIVE.
    for (cdb, list) in [out(0, 0, 0, 7), out(1, 1, 7, 0)] {
        insist(&mut second, &cdb, 0, &list)?;
    }
    let refused = ask(&mut first, &write16(0, 1), 0, &pattern(2))?;
    ensure!(refused.status == CONFLICT, "{refused:02x?}");
    // READ KEYS, by either.
    let keys = [0x5E, 0, 0, 0, 0, 0, 0, 0, 255, 0];
    let told = insist(&mut first, &keys, 255, &[])?.data;
    ensure!(told == insist(&mut second, &keys, 255, &[])?.data, "they report other keys");
    ensure!(told.ends_with(&7_u64.to_be_bytes()), "{told:02x?}");
    // The one that was the standby becomes the owner: its initiator may write, the other one may not.
    two.tell(&["group", "take-over", "g"])?;
    insist(&mut second, &write16(lba(0), 1), 0, &pattern(3))?;
    let mut third = log_in(&two, "iqn.x:c")?;
    let refused = ask(&mut third, &write16(0, 1), 0, &pattern(4))?;
    ensure!(refused.status == CONFLICT, "{refused:02x?}");
    Ok(())
}

#[test]
fn the_other_gateway_serves_when_the_owner_is_killed() -> Result<()> {
    let Some((one, two)) = two("killed")? else { return Ok(()) };
    let (mut first, mut second) = (log_in(&one, "iqn.x:a")?, log_in(&two, "iqn.x:b")?);
    write_all(&mut first, 1)?;
    one.kill()?;
    let killed = Instant::now();
    insist(&mut second, &write16(lba(BLOCKS), 1), 0, &pattern(2))?;
    let took = killed.elapsed();
    seconds("killed owner, to the first write through the other gateway", took);
    ensure!(took < TAKEOVER, "it took {took:?}");
    have(&mut second, 1)?;
    ensure!(group(&two)?["state"] == "owner");
    Ok(())
}

#[test]
fn writes_of_an_owner_that_stood_still_do_not_land() -> Result<()> {
    let Some((one, two)) = two("frozen")? else { return Ok(()) };
    let (mut first, mut second) = (log_in(&one, "iqn.x:a")?, log_in(&two, "iqn.x:b")?);
    write_all(&mut first, 1)?;
    for block in 0..BLOCKS {
        first.start(0, &write16(lba(block), 1), 0, &pattern(2))?;
    }
    let pid = Pid::from_raw(i32::try_from(one.pid())?).context("a process")?;
    kill_process(pid, Signal::STOP)?;
    // These wait in its socket.
    for block in 0..BLOCKS {
        first.start(0, &write16(lba(block), 1), 0, &pattern(3))?;
    }
    let stopped = Instant::now();
    two.tell(&["group", "take-over", "g"])?;
    write_all(&mut second, 4)?;
    seconds(
        "owner that stands still, order to all writes through the other one",
        stopped.elapsed(),
    );
    kill_process(pid, Signal::CONT)?;
    let reset = loop {
        match first.finish() {
            // What had ended before it stood still may be answered before it knows.
            Ok(answer) => ensure!(answer.tag <= 2 * BLOCKS as u32 + 16, "{answer:02x?}"),
            Err(error) => break error,
        }
    };
    ensure!(format!("{reset:#}").contains("reset"), "the connection ends otherwise: {reset:#}");
    becomes(&one, "standby")?;
    have(&mut second, 4)?;
    // It is of use again: nothing of before keeps its blocks busy, or the group from moving.
    two.tell(&["group", "move", "g", "1"])?;
    let mut first = log_in(&one, "iqn.x:a")?;
    have(&mut first, 4)?;
    write_all(&mut first, 5)?;
    two.tell(&["group", "move", "g", "2"])?;
    have(&mut second, 5)
}

#[test]
fn a_gateway_whose_configuration_is_another_serves_nothing() -> Result<()> {
    let Some(ceph) = cluster() else { return Ok(()) };
    ceph.create("other")?;
    for (gateway, more, words) in
        [(4, "", "it has no gateway 4"), (1, "serial = '7'", "the serial number of rbd/other is")]
    {
        let server = Serve::config(ceph.config("other", gateway, more)).start()?;
        until("it says why", || {
            Ok(group(&server)?["trouble"].as_str().is_some_and(|it| it.contains(words)))
        })?;
        ensure!(group(&server)?["state"] == "fenced");
        let mut session = log_in(&server, "iqn.x:a")?;
        // REPORT LUNS: nobody knows how the volume is called.
        let luns = ask(&mut session, &[0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], 64, &[])?.data;
        ensure!(luns.get(..4) == Some(&[0; 4]), "{luns:02x?}");
    }
    Ok(())
}
