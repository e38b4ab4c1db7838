//! Gateways of a group on a real cluster, and how tests ask them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{LockResult, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use lunet_e2e::ceph::{Cluster, cluster};
use lunet_e2e::data::scratch;
use lunet_e2e::process::output;
use lunet_e2e::server::{Serve, Server, free_port, lunet_binary};
use lunet_e2e::wire::scsi::{read16, sense_code, sense_key, write16};
use lunet_e2e::wire::{Answer, Login, Session};
use lunet_gateway::{Record, Sanitize};
use lunet_group::read;
use lunet_rbd::{ImageName, Place};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

pub const TARGET: &str = "iqn.2026-11.local.lunet:group";
/// A logical block.
pub const BLOCK: usize = 512;
pub const GOOD: u8 = 0;
pub const BUSY: u8 = 8;
pub const CONFLICT: u8 = 0x18;
/// LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN STANDBY STATE.
pub const STANDBY: (u8, u8, u8) = (2, 0x04, 0x0B);
/// REPORT TARGET PORT GROUPS.
pub const RTPG: [u8; 12] = [0xA3, 0x0A, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0];
/// Blocks that tests write one by one, each in an object of its own or not.
pub const BLOCKS: u64 = 16;

/// For whatever has to happen, on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Held for reading by whoever uses the cluster as it is, and for writing by whoever has its daemons stand still.
static DAEMONS: RwLock<()> = RwLock::new(());

/// Nobody freezes daemons of the cluster meanwhile. A test that has failed is no reason for the others to fail.
pub fn undisturbed() -> LockResult<RwLockReadGuard<'static, ()>> {
    DAEMONS.read()
}

/// No other test uses the cluster meanwhile.
pub fn alone() -> LockResult<RwLockWriteGuard<'static, ()>> {
    DAEMONS.write()
}

/// Is this a run with the tests that take long? Says so if it is not.
pub fn long() -> bool {
    let long = std::env::var_os("LUNET_E2E_LONG").is_some();
    if !long {
        eprintln!("skipped: it takes long; make test-ceph runs it");
    }
    long
}

/// A group of one image.
pub struct Group<'a> {
    pub ceph: &'a Cluster,
    pub name: String,
    /// `address:port` of each gateway, by its number less one. They stay the same when a gateway is started again.
    pub portals: Vec<String>,
    /// Standbys pass commands on to the owner.
    pub through: bool,
    data: TempDir,
}

impl<'a> Group<'a> {
    /// Makes an image and the record of its group, by the command for it.
    pub fn new(ceph: &'a Cluster, name: &str) -> Result<Self> {
        Self::with(ceph, name, false)
    }

    /// The same, whose standbys pass commands on to the owner or not.
    pub fn with(ceph: &'a Cluster, name: &str, through: bool) -> Result<Self> {
        ceph.script(&["user", "gateway"])?;
        ceph.shared_image(name, 64)?;
        let data = scratch("lunet-failover-")?;
        let ports = (0..3).map(|_| free_port()).collect::<Result<Vec<_>>>()?;
        let portals = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let group = Self { ceph, name: name.to_owned(), portals, through, data };
        let file = group.data.path().join("lunet.toml");
        fs::write(&file, group.config(1, "", ""))?;
        let mut create = Command::new(lunet_binary()?);
        create.args(["group", "create", "vms", "--gateways", "3", "--config"]).arg(&file);
        output(&mut create, PATIENCE)?;
        let again = output(&mut create, PATIENCE).map(drop);
        ensure!(again.is_err(), "a record was made twice");
        Ok(group)
    }

    /// A path for a file of this group's.
    pub fn path(&self, name: &str) -> PathBuf {
        self.data.path().join(name)
    }

    /// The configuration of a gateway, with more keys for its volume and others for its group.
    pub fn config(&self, gateway: u16, volume: &str, group: &str) -> String {
        let conf = self.ceph.conf().display().to_string();
        let (conf, user) = ((!group.contains("ceph-conf")).then_some(conf), "gateway");
        let conf = conf.map(|conf| format!("ceph-conf = '{conf}'\n")).unwrap_or_default();
        let user = if group.contains("ceph-user") {
            String::new()
        } else {
            format!("ceph-user = '{user}'\n")
        };
        let (name, portal) = (&self.name, self.portal(gateway));
        let reach = if self.through { "" } else { "reach = 'none'\n" };
        // One that is not on loopback is reached from other addresses.
        let open = !portal.starts_with("127.");
        format!(
            "[server]\nalua = 'implicit'\n[[portal]]\naddress = '{portal}'\ntag = {gateway}\n\
             [volumes.a]\nbackend = 'rbd'\nimage = 'rbd://rbd/{name}'\n{volume}\n\
             [[target]]\nname = '{TARGET}'\nluns = ['a']\nopen = {open}\n\
             [group.vms]\nrecord = 'rbd://rbd/{name}'\ngateway = {gateway}\ntargets = ['{TARGET}']\n\
             {conf}{user}{reach}{group}\n"
        )
    }

    fn portal(&self, gateway: u16) -> String {
        let known = self.portals.get(usize::from(gateway) - 1).cloned();
        known.unwrap_or_else(|| "127.0.0.1:0".to_owned())
    }

    /// Starts a gateway; again, if it was there before.
    pub fn serve(&self, gateway: u16) -> Result<Server> {
        self.configured(gateway, self.config(gateway, "", "")).start()
    }

    /// A gateway with another configuration.
    pub fn configured(&self, gateway: u16, config: String) -> Serve {
        let data = self.data.path().join(gateway.to_string());
        // It is there if the gateway was.
        drop(fs::create_dir(&data));
        Serve::config(config).data(&data)
    }

    /// The group's record, read by a client of its own.
    fn record(&self) -> Result<Record> {
        let name = ImageName::parse(&format!("rbd://rbd/{}", self.name));
        let name = name.map_err(|error| anyhow!("{error}"))?;
        let user = Some("gateway".to_owned());
        Ok(read(&Place { conf: Some(self.ceph.conf()), user, ..Place::new(name) })?)
    }

    /// Who owns the group, by its record, and in which epoch.
    pub fn owner(&self) -> Result<(Option<u16>, u64)> {
        let record = self.record()?;
        Ok((record.owner.map(|owner| owner.gateway.0), record.epoch.0))
    }

    /// The record says that a volume is being rolled back, or was so in vain.
    pub fn is_rolling_back(&self) -> Result<bool> {
        let volumes = self.record()?.contents.volumes;
        Ok(volumes.iter().any(|volume| volume.sanitize == Sanitize::RollingBack))
    }

    /// The address of the owner's client.
    pub fn owner_address(&self) -> Result<String> {
        Ok(self.record()?.owner.context("an owner")?.client.address)
    }
}

/// The first gateway of a new group, its owner, and so many standbys.
pub fn gateways(name: &str, standbys: u16) -> Result<Option<(Group<'static>, Vec<Server>)>> {
    let Some(ceph) = cluster() else { return Ok(None) };
    let group = Group::new(ceph, name)?;
    let servers = started(&group, standbys)?;
    Ok(Some((group, servers)))
}

/// The same in a group that there is.
pub fn started(group: &Group<'_>, standbys: u16) -> Result<Vec<Server>> {
    let one = group.serve(1)?;
    becomes(&one, "owner")?;
    let mut servers = vec![one];
    for gateway in 2..2 + standbys {
        let standby = group.serve(gateway)?;
        becomes(&standby, "standby")?;
        servers.push(standby);
    }
    Ok(servers)
}

/// Two gateways of a new group, of which the first one is the owner.
pub fn two(name: &str) -> Result<Option<(Group<'static>, Server, Server)>> {
    let Some((group, servers)) = gateways(name, 1)? else { return Ok(None) };
    let [one, two] = <[Server; 2]>::try_from(servers).map_err(|_| anyhow!("two"))?;
    Ok(Some((group, one, two)))
}

/// The same, whose standbys pass commands on to the owner.
pub fn two_through(name: &str) -> Result<Option<(Group<'static>, Server, Server)>> {
    let Some(ceph) = cluster() else { return Ok(None) };
    let group = Group::with(ceph, name, true)?;
    let servers = started(&group, 1)?;
    let [one, two] = <[Server; 2]>::try_from(servers).map_err(|_| anyhow!("two"))?;
    Ok(Some((group, one, two)))
}

/// The group as a gateway has it.
pub fn told(server: &Server) -> Result<Value> {
    let list: Value = serde_json::from_str(&server.tell(&["group", "list", "--json"])?)?;
    list.get(0).cloned().context("a group")
}

pub fn until(what: &str, mut is: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !is()? {
        ensure!(Instant::now() < end, "it does not come to be: {what}");
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Waits until a gateway is in that state, and knows the owner.
pub fn becomes(server: &Server, state: &str) -> Result<()> {
    until(state, || {
        let group = told(server)?;
        Ok(group["state"] == state && !group["owner"].is_null())
    })
}

/// Waits until a gateway has that trouble.
pub fn says(server: &Server, words: &str) -> Result<String> {
    let mut trouble = String::new();
    until(words, || {
        trouble = told(server)?["trouble"].as_str().unwrap_or_default().to_owned();
        Ok(trouble.contains(words))
    })?;
    Ok(trouble)
}

/// Sends a signal to a gateway. If that is to stand still, every thread of it does when this returns.
pub fn signal(server: &Server, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(server.pid())?).context("a process")?;
    kill_process(pid, signal)?;
    if signal != Signal::STOP {
        return Ok(());
    }
    until("it stands still", || {
        for task in fs::read_dir(format!("/proc/{}/task", server.pid()))? {
            let stat = fs::read_to_string(task?.path().join("stat"))?;
            // Behind the name, which is in parentheses.
            if !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')) {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

pub fn log_in(server: &Server, initiator: &str) -> Result<Session> {
    Session::open(&Login { initiator, ..Login::new(server.portal(), TARGET) })
}

/// The answer to a command, behind unit attentions.
pub fn ask(session: &mut Session, cdb: &[u8], expected: usize, data: &[u8]) -> Result<Answer> {
    for _ in 0..16 {
        let answer = session.execute(0, cdb, expected, data)?;
        if sense_key(&answer) != Some(6) {
            return Ok(answer);
        }
    }
    bail!("unit attentions without end")
}

/// The same, as long as the answer is that another gateway serves, or that it is to be tried again.
pub fn insist(session: &mut Session, cdb: &[u8], expected: usize, data: &[u8]) -> Result<Answer> {
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

pub fn pattern(salt: u8) -> Vec<u8> {
    (0..BLOCK).map(|i| salt ^ (i % 251) as u8).collect()
}

pub fn lba(block: u64) -> u64 {
    block * 4096
}

pub fn write_all(session: &mut Session, salt: u8) -> Result<()> {
    (0..BLOCKS)
        .try_for_each(|block| insist(session, &write16(lba(block), 1), 0, &pattern(salt)).map(drop))
}

/// Demands that all blocks have this content.
pub fn have(session: &mut Session, salt: u8) -> Result<()> {
    for block in 0..BLOCKS {
        let answer = insist(session, &read16(lba(block), 1), BLOCK, &[])?;
        ensure!(answer.data == pattern(salt), "block {block} has other data");
    }
    Ok(())
}

/// What a LUN is called: its NAA designator, and its serial number.
pub fn identity(session: &mut Session) -> Result<(Vec<u8>, Vec<u8>)> {
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

/// What a gateway reports of all target port groups.
pub fn access(session: &mut Session) -> Result<Vec<u8>> {
    Ok(ask(session, &RTPG, 255, &[])?.data)
}

pub fn seconds(what: &str, took: Duration) {
    eprintln!("{what}: {:.2} s", took.as_secs_f64());
}
