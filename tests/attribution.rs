//! `lunet verdict` names what binds, while load of real initiators is on: each bottleneck is planted, and larger by far
//! than what this machine adds to it.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunet_e2e::clients::QemuLun;
use lunet_e2e::nvme::{Host, Login as NvmeLogin};
use lunet_e2e::process::{Running, leashed};
use lunet_e2e::server::{Serve, Server, free_port, url};
use lunet_e2e::wire::scsi::{read16, write_same16, write16};
use lunet_e2e::wire::{Login, Pdu, Session, opcode};
use serde_json::Value;

const TARGET: &str = "iqn.2026-11.local.lunet:bound";
const BLOCK: usize = 512;

/// How often the server is asked, and how often it has to be right at least.
const TIMES: usize = 10;
const RIGHT: usize = 9;

/// Volumes of one server, in the order of their LUNs, with what is planted there, and the verdict that this has to have.
const PLANTED: [(&str, &str, &str); 8] = [
    ("slow", "layers = [{ delay = \"20ms\" }]", "storage"),
    ("slow-one", "layers = [{ delay = \"50ms\" }]", "storage"),
    ("limited", "layers = [{ iops = 100 }]", "queue"),
    ("contended", "layers = [{ delay = \"5ms\" }]", "queue"),
    ("paused", "", "initiator"),
    ("halting", "", "network-in"),
    ("late", "", "network-in"),
    ("unread", "", "network-out"),
];

fn serve(server: &str, volumes: &[(&str, &str, &str)]) -> Result<Server> {
    let mut text = format!(
        "[server]\nlog-level = \"warn\"\n{server}\n[[portal]]\naddress = \"127.0.0.1:0\"\n"
    );
    for (name, more, _) in volumes {
        text += &format!("[volumes.{name}]\nbackend = \"memory\"\nsize = \"64MiB\"\n{more}\n");
    }
    let names: Vec<String> = volumes.iter().map(|(name, ..)| format!("\"{name}\"")).collect();
    text += &format!("[[target]]\nname = \"{TARGET}\"\nluns = [{}]\n", names.join(", "));
    Serve::config(text).start()
}

fn lun_of(volume: &str) -> u8 {
    let at = PLANTED.iter().position(|(name, ..)| *name == volume);
    at.expect("it is in the table") as u8
}

/// What a load does again and again.
type Step = Box<dyn FnMut(&mut Session) -> Result<()> + Send>;

/// Load by a session of its own, on a thread, until it is dropped.
struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Load {
    /// Calls `step` again and again with a session, whose initiator is known by this number.
    fn start(
        portal: &str,
        number: u16,
        lun: u8,
        mut step: impl FnMut(&mut Session) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let login = Login { qualifier: number, ..Login::new(portal, TARGET) };
        let mut session = Session::open(&login)?;
        session.settle(lun)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let work = move || {
            while !stopped.load(Ordering::SeqCst) {
                step(&mut session).inspect_err(|error| eprintln!("load {number}: {error:#}"))?;
            }
            Ok(())
        };
        Ok(Self { stop, thread: Some(thread::spawn(work)) })
    }

    /// Ends it. It has to have worked all the time.
    fn end(mut self) -> Result<()> {
        self.stop.store(true, Ordering::SeqCst);
        let thread = self.thread.take().context("it was ended")?;
        thread.join().map_err(|_| anyhow::anyhow!("the load has panicked"))?
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// QEMU's own benchmark, by libiscsi: so many reads of 4 KiB in flight, for longer than the test takes. Killed when dropped.
fn qemu(server: &Server, volume: &str, depth: usize) -> Result<Running> {
    let lun = QemuLun::new(&url(server.portal(), TARGET, lun_of(volume).into()));
    let mut command = leashed(None);
    command.args(["qemu-img", "bench", "-c", "1000000000", "-s", "4096", "-S", "4096", "-d"]);
    Running::spawn(command.arg(depth.to_string()).args(["--image-opts", &lun.raw()]))
}

/// Keeps commands with this CDB in flight.
fn keep(
    depth: usize,
    lun: u8,
    cdb: [u8; 16],
    data: Vec<u8>,
) -> impl FnMut(&mut Session) -> Result<()> {
    let mut in_flight = 0;
    move |session| {
        while in_flight < depth {
            let expected = if data.is_empty() { 4096 } else { 0 };
            session.start(lun, &cdb, expected, &data)?;
            in_flight += 1;
        }
        let answer = session.finish()?;
        // Who finds no memory for long is told to come again (TASK SET FULL).
        ensure!(matches!(answer.status, 0 | 0x28), "status {:02x}", answer.status);
        in_flight -= 1;
        Ok(())
    }
}

/// COMPARE AND WRITE of one block.
fn compare_and_write() -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x89, 1);
    cdb
}

/// Reads 4 KiB, and does nothing for a while.
fn pause(lun: u8) -> impl FnMut(&mut Session) -> Result<()> {
    move |session| {
        session.read(lun, 0, 8, BLOCK)?;
        thread::sleep(Duration::from_millis(50));
        Ok(())
    }
}

/// A command with its first bytes of data, by hand.
fn command(tag: u32, cmd_sn: u32, lun: u8, blocks: u32, first: usize) -> Pdu {
    let mut pdu = Pdu::new(opcode::SCSI_COMMAND);
    pdu.header[1] = 0xa1;
    pdu.header[9] = lun;
    pdu.set_word(16, tag);
    pdu.set_word(20, blocks * BLOCK as u32);
    pdu.set_word(24, cmd_sn);
    pdu.header[32..48].copy_from_slice(&write16(0, blocks));
    pdu.data = vec![7; first];
    pdu
}

/// Sends a write, and halts in the middle of its data.
fn halt(lun: u8) -> impl FnMut(&mut Session) -> Result<()> {
    let mut sent = 0;
    move |session| {
        let cmd_sn = session.cmd_sn().wrapping_add(sent);
        let bytes = command(1000 + sent, cmd_sn, lun, 8, 8 * BLOCK).encode(false, false);
        let (first, rest) = bytes.split_at(1000);
        session.stream().write_all(first)?;
        thread::sleep(Duration::from_millis(30));
        session.stream().write_all(rest)?;
        let answer = session.receive()?;
        ensure!(answer.opcode() == opcode::SCSI_RESPONSE && answer.header[3] == 0, "{answer:?}");
        sent += 1;
        Ok(())
    }
}

/// Sends a write, and lets the target wait for the data that it asks for.
fn answer_late(lun: u8) -> impl FnMut(&mut Session) -> Result<()> {
    move |session| {
        // Longer than what may come unasked.
        session.start(lun, &write16(0, 136), 0, &[7; 136 * BLOCK])?;
        loop {
            let pdu = session.receive()?;
            match pdu.opcode() {
                opcode::R2T => {
                    thread::sleep(Duration::from_millis(30));
                    session.answer_r2t(&pdu)?;
                }
                opcode::SCSI_RESPONSE => return Ok(()),
                other => anyhow::bail!("opcode {other:02x}"),
            }
        }
    }
}

/// Reads a lot, and takes little of it at a time.
fn take_slowly(lun: u8) -> impl FnMut(&mut Session) -> Result<()> {
    let mut in_flight = 0;
    move |session| {
        while in_flight < 32 && session.has_window() {
            session.start(lun, &read16(0, 2048), 2048 * BLOCK, &[])?;
            in_flight += 1;
        }
        let pdu = session.receive()?;
        thread::sleep(Duration::from_millis(5));
        let ended = pdu.opcode() == opcode::DATA_IN && pdu.flags() & 1 != 0;
        in_flight -= usize::from(ended || pdu.opcode() == opcode::SCSI_RESPONSE);
        Ok(())
    }
}

/// What the server says of each volume, and of itself by the name of nothing.
fn verdict(server: &Server) -> Result<BTreeMap<String, Value>> {
    let told: Value =
        serde_json::from_str(&server.tell(&["verdict", "--json", "--seconds", "1"])?)?;
    let volumes = told["volumes"].as_array().context("no volumes")?;
    let name = |one: &Value| one["name"].as_str().unwrap_or_default().to_owned();
    let mut all: BTreeMap<String, Value> =
        volumes.iter().map(|one| (name(one), one.clone())).collect();
    all.insert(String::new(), told["server"].clone());
    Ok(all)
}

/// Asks again and again, and counts how often each of these has the word that it has to have.
fn judge(server: &Server, expected: &[(&str, &str)]) -> Result<()> {
    let (mut right, mut wrong) = (BTreeMap::new(), Vec::new());
    for _ in 0..TIMES {
        let told = verdict(server)?;
        for (name, word) in expected {
            let binding = told.get(*name).with_context(|| format!("nothing of {name}"))?;
            if binding["bound_by"] == *word {
                *right.entry(*name).or_insert(0) += 1;
            } else {
                wrong.push(format!("{name}, not {word}: {binding:#}"));
            }
        }
    }
    println!("{right:?} of {TIMES}; {wrong:?}");
    let enough = |(name, _): &(&str, &str)| right.get(name).is_some_and(|n| *n >= RIGHT);
    ensure!(expected.iter().all(enough), "{right:?} of {TIMES}: {wrong:#?}");
    Ok(())
}

#[test]
fn planted_bottlenecks_are_named() -> Result<()> {
    let server = serve("shards = 2", &PLANTED)?;
    let portal = server.portal().to_owned();
    // Initiators that others have made, and those of the tests.
    let foreign = [qemu(&server, "slow", 16)?, qemu(&server, "limited", 16)?];
    let by_name = |name: &str, number, step: Step| Load::start(&portal, number, lun_of(name), step);
    let lun = lun_of;
    let loads = [
        by_name("slow-one", 1, Box::new(keep(1, lun("slow-one"), read16(0, 8), Vec::new())))?,
        by_name(
            "contended",
            2,
            Box::new(keep(8, lun("contended"), compare_and_write(), vec![0; 2 * BLOCK])),
        )?,
        by_name("paused", 3, Box::new(pause(lun("paused"))))?,
        by_name("halting", 4, Box::new(halt(lun("halting"))))?,
        by_name("late", 5, Box::new(answer_late(lun("late"))))?,
        by_name("unread", 6, Box::new(take_slowly(lun("unread"))))?,
    ];
    // What came before the load is not asked about.
    thread::sleep(Duration::from_secs(1));
    judge(&server, &PLANTED.map(|(name, _, word)| (name, word)))?;
    for mut one in foreign {
        ensure!(one.wait(Duration::ZERO)?.is_none(), "QEMU has ended: {}", one.stderr.text());
    }
    for load in loads {
        load.end()?;
    }
    Ok(())
}

/// A command of a few bytes that has the shard write 16 MiB.
#[test]
fn a_shard_without_idle_time_is_named() -> Result<()> {
    let server = serve("shards = 1", &[("filled", "", "")])?;
    let idle = verdict(&server)?;
    ensure!(idle[""]["bound_by"] == "idle" && idle["filled"]["bound_by"] == "idle", "{idle:#?}");
    // So many that a client without a processor for a while does not leave the shard without work.
    let fill = keep(64, 0, write_same16(0, 32_768, false), vec![7; BLOCK]);
    let load = Load::start(server.portal(), 1, 0, fill)?;
    thread::sleep(Duration::from_millis(500));
    judge(&server, &[("filled", "shard-cpu"), ("", "shard-cpu")])?;
    load.end()
}

/// The same words for hosts of NVMe, whose queues are of another server in the process.
#[test]
fn bottlenecks_of_nvme_hosts_are_named() -> Result<()> {
    const VOLUMES: [(&str, &str, &str); 3] = [
        ("deep", "layers = [{ delay = \"20ms\" }]", "storage"),
        ("limited", "layers = [{ iops = 50 }]", "queue"),
        ("paused", "", "initiator"),
    ];
    let port = free_port()?;
    let portal = format!("127.0.0.1:{port}");
    let mut text = format!(
        "[server]\nshards = 1\n[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [[portal]]\naddress = \"{portal}\"\ntransport = [\"nvme-tcp\"]\n\
         [[target]]\nname = \"{TARGET}\"\nprotocols = [\"iscsi\", \"nvme\"]\n\
         luns = [\"deep\", \"limited\", \"paused\"]\n"
    );
    for (name, more, _) in VOLUMES {
        text += &format!("[volumes.{name}]\nbackend = \"memory\"\nsize = \"16MiB\"\n{more}\n");
    }
    let server = Serve::config(text).start()?;
    let stop = Arc::new(AtomicBool::new(false));
    let load = |number: u8, nsid: u32| -> Result<JoinHandle<Result<()>>> {
        let login = NvmeLogin::new(&portal, "nqn.2026-11.local.lunet:bound").by(number);
        let (mut host, stopped) = (Host::connect(&login)?, Arc::clone(&stop));
        let pause = if nsid == 3 { 50 } else { 0 };
        Ok(thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                host.read(nsid, 0, 8)?;
                thread::sleep(Duration::from_millis(pause));
            }
            Ok(())
        }))
    };
    let namespaces = [1, 1, 1, 2, 2, 3];
    let loads: Result<Vec<_>> =
        (1..).zip(namespaces).map(|(number, nsid)| load(number, nsid)).collect();
    let loads = loads?;
    thread::sleep(Duration::from_millis(500));
    judge(&server, &VOLUMES.map(|(name, _, word)| (name, word)))?;
    stop.store(true, Ordering::SeqCst);
    loads
        .into_iter()
        .try_for_each(|load| load.join().map_err(|_| anyhow::anyhow!("it has panicked"))?)
}

/// Writes whose data does not come hold the memory, and the writes of others are refused for want of it.
#[test]
fn buffer_memory_that_others_hold_is_named() -> Result<()> {
    let server =
        serve("shards = 1\nbuffer-memory = \"8MiB\"", &[("starved", "", ""), ("hog", "", "")])?;
    let mut hogs = Vec::new();
    for number in 10..40 {
        let login = Login { qualifier: number, ..Login::new(server.portal(), TARGET) };
        let mut session = Session::open(&login)?;
        session.settle(1)?;
        for _ in 0..4 {
            session.start(1, &write16(0, 2048), 0, &[7; 2048 * BLOCK])?;
        }
        hogs.push(session);
    }
    thread::sleep(Duration::from_millis(500));
    let write = keep(4, 0, write16(0, 256), vec![7; 256 * BLOCK]);
    let load = Load::start(server.portal(), 1, 0, write)?;
    thread::sleep(Duration::from_millis(500));
    judge(&server, &[("", "buffer-memory")])?;
    load.end()
}

#[test]
fn people_are_told_in_sentences() -> Result<()> {
    let server = serve("shards = 1", &[("paused", "", ""), ("quiet", "", "")])?;
    let load = Load::start(server.portal(), 1, 0, pause(0))?;
    let text = server.tell(&["verdict"])?;
    for words in ["Not bound by this server", "volume paused: ", "operations/s", "1 volume is idle"]
    {
        ensure!(text.contains(words), "{words}: {text}");
    }
    let stats = server.tell(&["stats"])?;
    ensure!(stats.contains("operations waited for: "), "{stats}");
    load.end()?;
    let error = server.command(&["verdict", "--seconds", "0"])?;
    ensure!(error.status.and_then(|status| status.code()) == Some(2), "{}", error.describe());
    // It watches, and needs no server of its own.
    let nobody = lunet_e2e::data::scratch("lunet-nobody-")?;
    let mut command = Command::new(lunet_e2e::server::lunet_binary()?);
    command.arg("verdict").arg("--data").arg(nobody.path());
    let finished = lunet_e2e::process::run(&mut command, Duration::from_secs(20))?;
    ensure!(finished.stderr.starts_with("lunet: no lunet is running"), "{}", finished.describe());
    Ok(())
}
