//! The same volumes over iSCSI and NVMe.

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunet_e2e::data::scratch;
use lunet_e2e::fuse::{Mounted, is_root};
use lunet_e2e::nvme::{BLOCK, Host, Login as NvmeLogin, sends};
use lunet_e2e::process::run;
use lunet_e2e::server::{Serve, Server, free_port, lunet_binary};
use lunet_e2e::wire::scsi::{CHECK_CONDITION, GOOD, sense_key, write16};
use lunet_e2e::wire::{Login, Session, opcode};
use lunet_nvme::command::{AcquireAction, Io, PersistOnPowerLoss, RegisterAction, ReservationType};
use lunet_nvme::status::Status;

const TARGET: &str = "iqn.2026-11.local.lunet:t";
/// SCSI status RESERVATION CONFLICT.
const RESERVATION_CONFLICT: u8 = 0x18;

const SUBSYSTEM: &str = "nqn.2026-11.local.lunet:t";

/// A server and its address for NVMe.
struct Both {
    server: Server,
    nvme: String,
}

fn text(port: u16, more: &str) -> String {
    format!(
        "[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [[portal]]\naddress = \"127.0.0.1:{port}\"\ntransport = [\"nvme-tcp\"]\n\
         [volumes.a]\nbackend = \"file\"\nsize = \"64MiB\"\n\
         [volumes.b]\nbackend = \"memory\"\nsize = \"16MiB\"\n\
         [[target]]\nname = \"{TARGET}\"\nprotocols = [\"iscsi\", \"nvme\"]\n{more}\n"
    )
}

fn both() -> Result<Both> {
    let port = free_port()?;
    let server = Serve::config(text(port, "luns = [\"a\"]")).start()?;
    Ok(Both { server, nvme: format!("127.0.0.1:{port}") })
}

impl Both {
    fn host(&self, number: u8) -> Result<Host> {
        Host::connect(&NvmeLogin::new(&self.nvme, SUBSYSTEM).by(number))
    }

    fn initiator(&self) -> Result<Session> {
        self.initiator_of(0)
    }

    /// One of several initiators.
    fn initiator_of(&self, qualifier: u16) -> Result<Session> {
        let login = Login { qualifier, ..Login::new(self.server.portal(), TARGET) };
        let mut session = Session::open(&login)?;
        session.settle(0)?;
        Ok(session)
    }
}

fn pattern(seed: u8, blocks: usize) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| (at / BLOCK * 31 + at) as u8 ^ seed).collect()
}

#[test]
fn what_is_written_over_one_protocol_is_read_over_the_other() -> Result<()> {
    let both = both()?;
    let (mut session, mut host) = (both.initiator()?, both.host(1)?);
    session.write(0, 8, &pattern(1, 64), BLOCK)?;
    ensure!(host.read(1, 8, 64)? == pattern(1, 64));
    // In a capsule, and by R2T.
    for (seed, blocks) in [(2, 8), (3, 1024)] {
        host.write(1, 4096, &pattern(seed, blocks))?;
        ensure!(session.read(0, 4096, blocks as u32, BLOCK)? == pattern(seed, blocks));
    }
    host.flush(1)?;
    let digests = NvmeLogin { digests: true, ..NvmeLogin::new(&both.nvme, SUBSYSTEM).by(2) };
    ensure!(Host::connect(&digests)?.read(1, 4096, 1024)? == pattern(3, 1024));
    let told = both.server.tell(&["sessions"])?;
    ensure!(told.contains("nvme-tcp") && told.contains("nqn.2026-11.org.lunet:e2e-1"), "{told}");
    both.server.stop()?;
    Ok(())
}

/// `LUNET_E2E_ROUNDS` says how often they try.
#[test]
fn one_of_two_that_compare_and_write_wins() -> Result<()> {
    let rounds =
        std::env::var("LUNET_E2E_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(50);
    let both = both()?;
    let (mut session, mut host) = (both.initiator()?, both.host(1)?);
    race((&mut session, &mut host), 0, rounds)
}

/// Both compare and write a block at once, again and again: one of them wins.
fn race((session, host): (&mut Session, &mut Host), lba: u64, rounds: u64) -> Result<()> {
    let block = |round: u64, who: u8| {
        let mut block = vec![who; BLOCK];
        block[..8].copy_from_slice(&round.to_le_bytes());
        block
    };
    host.write(1, lba, &block(0, 0))?;
    let mut ours_won = 0;
    for round in 1..=rounds {
        let now = host.read(1, lba, 1)?;
        let (ours, theirs) = (block(round, 1), block(round, 2));
        let mut cdb = [0; 16];
        (cdb[0], cdb[13]) = (0x89, 1);
        cdb[2..10].copy_from_slice(&lba.to_be_bytes());
        let data = [now.clone(), theirs.clone()].concat();
        let (won, lost) = std::thread::scope(|scope| -> Result<(bool, bool)> {
            let racing = scope.spawn(|| session.execute(0, &cdb, 0, &data));
            let won = host.compare_and_write(1, lba, (&now, &ours))?;
            let answer = racing.join().expect("it answers")?;
            let differs = answer.status == CHECK_CONDITION && sense_key(&answer) == Some(0xe);
            ensure!(answer.status == GOOD || differs, "{answer:02x?}");
            Ok((won, differs))
        })?;
        ensure!(won == lost, "round {round}: two winners, or none");
        ours_won += u64::from(won);
        ensure!(host.read(1, lba, 1)? == if won { ours } else { theirs }, "round {round}");
    }
    println!("{rounds} rounds: {ours_won} won over NVMe, {} over iSCSI", rounds - ours_won);
    Ok(())
}

#[test]
fn a_reservation_of_one_protocol_keeps_the_other_out() -> Result<()> {
    let both = both()?;
    let (mut session, mut host) = (both.initiator()?, both.host(1)?);
    let mut out = |action: u8, kind: u8, key: u64, new: u64| -> Result<u8> {
        let mut list = [0; 24];
        list[..8].copy_from_slice(&key.to_be_bytes());
        list[8..16].copy_from_slice(&new.to_be_bytes());
        let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
        Ok(session.execute(0, &cdb, 0, &list)?.status)
    };
    ensure!(out(0, 0, 0, 5)? == GOOD, "REGISTER");
    ensure!(out(1, 1, 5, 0)? == GOOD, "RESERVE, write exclusive");
    ensure!(host.try_write(1, 0, &pattern(1, 1))? == Status::RESERVATION_CONFLICT);
    host.read(1, 0, 1)?;
    ensure!(out(2, 1, 5, 0)? == GOOD, "RELEASE");
    host.write(1, 0, &pattern(1, 1))?;
    let register = Io::ReservationRegister {
        action: RegisterAction::Register,
        ignore_key: false,
        persist: PersistOnPowerLoss::Unchanged,
    };
    // The key that it has, and the one that it is to have.
    let keys = [0u64.to_le_bytes(), 9u64.to_le_bytes()].concat();
    let status = host.execute(register, 1, sends(&keys))?.status;
    ensure!(status.is_success(), "{status}");
    let acquire = Io::ReservationAcquire {
        action: AcquireAction::Acquire,
        kind: ReservationType::WriteExclusive,
    };
    let keys = [9u64.to_le_bytes(), 0u64.to_le_bytes()].concat();
    let status = host.execute(acquire, 1, sends(&keys))?.status;
    ensure!(status.is_success(), "{status}");
    let refused = session.execute(0, &write16(0, 1), 0, &pattern(2, 1))?;
    ensure!(refused.status == RESERVATION_CONFLICT, "{refused:02x?}");
    Ok(())
}

/// A write that waits for its data is at work; the host that takes over has to know that it never takes effect.
#[test]
fn what_a_host_preempts_and_aborts_is_over_at_the_other_protocol() -> Result<()> {
    let both = both()?;
    let (mut session, mut host) = (both.initiator()?, both.host(1)?);
    let mut list = [0; 24];
    list[15] = 5;
    let register = [0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    ensure!(session.execute(0, &register, 0, &list)?.status == GOOD, "REGISTER");
    let write = session.start(0, &write16(0, 2048), 0, &pattern(3, 2048))?;
    // It asks for the data, and has not got all of it.
    let asks = session.receive()?;
    ensure!(asks.opcode() == opcode::R2T, "{:02x}", asks.opcode());
    let register = Io::ReservationRegister {
        action: RegisterAction::Register,
        ignore_key: false,
        persist: PersistOnPowerLoss::Unchanged,
    };
    let keys = [0u64.to_le_bytes(), 9u64.to_le_bytes()].concat();
    ensure!(host.execute(register, 1, sends(&keys))?.status.is_success());
    let acquire = Io::ReservationAcquire {
        action: AcquireAction::PreemptAndAbort,
        kind: ReservationType::WriteExclusive,
    };
    let keys = [9u64.to_le_bytes(), 5u64.to_le_bytes()].concat();
    let status = host.execute(acquire, 1, sends(&keys))?.status;
    ensure!(status.is_success(), "{status}");
    session.answer_r2t(&asks)?;
    let ready = session.start(0, &[0; 6], 0, &[])?;
    while session.finish()?.tag != ready {}
    drop(session);
    // What it had sent before may be there, and nothing of what it sent since.
    let found = host.read(1, 0, 2048)?;
    let end = found.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    ensure!(end <= asks.word(40) as usize, "{end} bytes of task {write:#x} took effect");
    Ok(())
}

/// Writes and reads from a block on over iSCSI until it is told to stop, and compares and writes in between. How often
/// it did.
fn load(mut session: Session, lba: u64, stop: &AtomicBool) -> Result<u64> {
    let mut rounds = 0;
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x89, 1);
    cdb[2..10].copy_from_slice(&(lba + 64).to_be_bytes());
    let mut last = session.read(0, lba + 64, 1, BLOCK)?;
    while !stop.load(Ordering::Acquire) {
        rounds += 1;
        let data = pattern(rounds as u8, 64);
        session.write(0, lba, &data, BLOCK)?;
        ensure!(session.read(0, lba, 64, BLOCK)? == data);
        let next = pattern(rounds as u8 ^ 0x55, 1);
        let both = [last, next.clone()].concat();
        let answer = session.execute(0, &cdb, 0, &both)?;
        ensure!(answer.status == GOOD, "{answer:02x?}");
        last = next;
    }
    Ok(rounds)
}

/// The server's threads that serve.
fn shards(server: &Server) -> Result<usize> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid()))?;
    let names = tasks.map(|task| Ok(std::fs::read_to_string(task?.path().join("comm"))?));
    let names: Vec<String> = names.collect::<Result<_>>()?;
    Ok(names.iter().filter(|name| name.starts_with("lunet-shard")).count())
}

#[test]
fn the_first_portal_for_nvme_comes_while_iscsi_is_served() -> Result<()> {
    let port = free_port()?;
    let text = text(port, "luns = [\"a\"]");
    let (first, rest) =
        text.split_once("[[portal]]\naddress = \"127.0.0.1:0\"\n").context("a portal")?;
    let (_, rest) = rest.split_once("transport = [\"nvme-tcp\"]\n").context("another one")?;
    let iscsi = "[[portal]]\naddress = \"127.0.0.1:0\"\n";
    let alone = format!("{first}[server]\nshards = 2\n{iscsi}{rest}");
    let server = Serve::config(alone).start()?;
    let mut both = Both { server, nvme: format!("127.0.0.1:{port}") };
    let portal = both.nvme.clone();
    let add = ["portal", "add", &portal, "--transport", "nvme-tcp"];
    let stop = AtomicBool::new(false);
    let loads = [(both.initiator()?, 4096), (both.initiator_of(2)?, 8192)];
    let mut session = both.initiator_of(3)?;
    std::thread::scope(|scope| -> Result<()> {
        let busy = loads.map(|(session, lba)| {
            let stop = &stop;
            scope.spawn(move || load(session, lba, stop))
        });
        let result = comes_and_goes((&both, &mut session), &add);
        stop.store(true, Ordering::Release);
        for busy in busy {
            println!("{} rounds over iSCSI meanwhile", busy.join().expect("it ends")?);
        }
        result
    })?;
    // A crash, and the same is served.
    let mut host = both.host(1)?;
    host.write(1, 0, &pattern(9, 8))?;
    host.flush(1)?;
    let kept = tempfile::tempdir()?;
    let (dir, data) = (both.server.data().to_owned(), kept.path().join("data"));
    both.server.process().kill()?;
    std::fs::rename(&dir, &data)?;
    let server = Serve::default().data(&data).start()?;
    let again = Both { server, nvme: portal };
    ensure!(again.host(1)?.read(1, 0, 8)? == pattern(9, 8) && shards(&again.server)? == 4);
    again.server.stop()?;
    Ok(())
}

/// The first portal for NVMe comes, goes, and comes again.
fn comes_and_goes((both, session): (&Both, &mut Session), add: &[&str]) -> Result<()> {
    let portal = &both.nvme;
    ensure!(shards(&both.server)? == 2, "who has no NVMe has no threads for it");
    // What cannot be listened on leaves all as it was.
    let taken = TcpListener::bind(portal)?;
    let refused = both.server.refuses(add)?;
    ensure!(refused.contains(&format!("cannot listen on {portal}")), "{refused}");
    ensure!(shards(&both.server)? == 2 && !both.server.tell(&["portal", "list"])?.contains(portal));
    drop(taken);
    let added = both.server.tell(add)?;
    ensure!(added.contains(&format!("lunet listens on {portal}")), "{added}");
    ensure!(shards(&both.server)? == 4);
    let mut host = both.host(1)?;
    session.write(0, 64, &pattern(1, 64), BLOCK)?;
    ensure!(host.read(1, 64, 64)? == pattern(1, 64));
    race((session, &mut host), 0, 25)?;
    let told = both.server.tell(&["sessions"])?;
    ensure!(told.contains("nvme-tcp"), "{told}");
    let refused = both.server.refuses(&["portal", "remove", portal])?;
    ensure!(refused.contains(&format!("uses portal {portal}")), "{refused}");
    both.server.tell(&["portal", "remove", portal, "--force"])?;
    ensure!(both.host(2).is_err() && TcpStream::connect(portal).is_err(), "it is gone");
    both.server.tell(add)?;
    let mut host = both.host(1)?;
    ensure!(host.read(1, 64, 64)? == pattern(1, 64));
    race((session, &mut host), 0, 25)
}

#[test]
fn the_first_portal_for_nvme_comes_by_the_file() -> Result<()> {
    let port = free_port()?;
    let with = text(port, "luns = [\"a\"]");
    let nvme = format!("[[portal]]\naddress = \"127.0.0.1:{port}\"\ntransport = [\"nvme-tcp\"]\n");
    let without = with.replace(&nvme, "");
    let server = Serve::config(&without).start()?;
    let both = Both { server, nvme: format!("127.0.0.1:{port}") };
    let path = both.server.data().join("lunet.toml");
    let apply = |more: &[&str]| both.server.tell(&[&["config", "apply"], more].concat());
    std::fs::write(&path, &with)?;
    // A dry run says what is in the way.
    let taken = TcpListener::bind(&both.nvme)?;
    let told = both.server.command(&["config", "apply", "--dry-run"])?;
    ensure!(
        format!("{}{}", told.stdout, told.stderr).contains("cannot listen on"),
        "{}",
        told.describe()
    );
    both.server.refuses(&["config", "apply"])?;
    drop(taken);
    apply(&["--dry-run"])?;
    ensure!(TcpStream::connect(&both.nvme).is_err(), "nothing has begun");
    apply(&[])?;
    // A namespace that comes with it, and one that was there.
    let mut host = both.host(1)?;
    host.write(1, 0, &pattern(3, 8))?;
    ensure!(both.initiator()?.read(0, 0, 8, BLOCK)? == pattern(3, 8));
    both.server.tell(&["target", "map", TARGET, "1", "b"])?;
    host.notice()?;
    ensure!(host.namespaces()? == [1, 2]);
    drop(host);
    std::fs::write(&path, &without)?;
    apply(&["--force"])?;
    ensure!(both.host(1).is_err());
    std::fs::write(&path, &with)?;
    apply(&[])?;
    ensure!(both.host(1)?.read(1, 0, 8)? == pattern(3, 8));
    both.server.stop()?;
    Ok(())
}

#[test]
fn namespaces_come_and_go_and_keep_their_names() -> Result<()> {
    let port = free_port()?;
    let server = Serve::config(text(port, "luns = [\"a\"]")).start()?;
    let mut both = Both { server, nvme: format!("127.0.0.1:{port}") };
    let mut host = both.host(1)?;
    ensure!(host.namespaces()? == [1]);
    let names = host.names(1)?;
    ensure!(names.0 != [0; 16] && names.1 != [0; 16]);
    both.server.tell(&["target", "map", TARGET, "1", "b"])?;
    host.notice()?;
    ensure!(host.namespaces()? == [1, 2]);
    host.write(2, 0, &pattern(7, 8))?;
    let refused = both.server.refuses(&["target", "unmap", TARGET, "1"])?;
    ensure!(refused.contains("session"), "{refused}");
    both.server.tell(&["target", "unmap", TARGET, "1", "--force"])?;
    ensure!(host.namespaces()? == [1]);
    ensure!(!host.try_write(2, 0, &pattern(7, 8))?.is_success());
    let portal = both.nvme.clone();
    let refused = both.server.refuses(&["portal", "remove", &portal])?;
    ensure!(refused.contains(&format!("uses portal {portal}")), "{refused}");
    // A crash, and the same names and data.
    host.write(1, 0, &pattern(9, 8))?;
    host.flush(1)?;
    let dir = both.server.data().to_owned();
    let kept = tempfile::tempdir()?;
    let text = text(port, "luns = [\"a\"]");
    let data = kept.path().join("data");
    both.server.process().kill()?;
    std::fs::rename(&dir, &data)?;
    let server = Serve::config(text).data(&data).start()?;
    let again = Both { server, nvme: both.nvme.clone() };
    let mut host = again.host(1)?;
    ensure!(host.names(1)? == names && host.read(1, 0, 8)? == pattern(9, 8));
    Ok(())
}

#[test]
fn a_host_sees_a_volume_grow() -> Result<()> {
    let both = both()?;
    let mut host = both.host(1)?;
    let blocks = |host: &mut Host| -> Result<u64> {
        Ok(u64::from_le_bytes(host.identify(0, 1)?[..8].try_into()?))
    };
    ensure!(blocks(&mut host)? == 64 << 11);
    both.server.tell(&["volume", "resize", "a", "96MiB"])?;
    host.notice()?;
    ensure!(blocks(&mut host)? == 96 << 11);
    let last = (96 << 11) - 8;
    host.write(1, last, &pattern(1, 8))?;
    ensure!(both.initiator()?.read(0, last, 8, BLOCK)? == pattern(1, 8));
    both.server.stop()?;
    Ok(())
}

#[test]
fn a_host_sees_a_volume_roll_back() -> Result<()> {
    if !is_root() {
        println!("left out: only root may mount");
        return Ok(());
    }
    let dir = scratch("lunet-nvme-")?;
    let mounted = Mounted::xfs(dir.path())?;
    let (data, port) = (mounted.path().join("data"), free_port()?);
    std::fs::create_dir(&data)?;
    let server = Serve::config(text(port, "luns = [\"a\"]")).data(&data).start()?;
    let both = Both { server, nvme: format!("127.0.0.1:{port}") };
    let mut host = both.host(1)?;
    host.write(1, 0, &pattern(1, 8))?;
    both.server.tell(&["volume", "snapshot", "a@s"])?;
    host.write(1, 0, &pattern(2, 8))?;
    let refused = both.server.refuses(&["volume", "rollback", "a@s", "--yes"])?;
    ensure!(refused.contains("1 session sees volume a"), "{refused}");
    both.server.tell(&["volume", "rollback", "a@s", "--yes", "--force"])?;
    ensure!(host.read(1, 0, 8)? == pattern(1, 8));
    ensure!(both.initiator()?.read(0, 0, 8, BLOCK)? == pattern(1, 8));
    both.server.stop()?;
    Ok(())
}

#[test]
fn only_named_hosts_connect_and_their_controllers_can_be_ended() -> Result<()> {
    let port = free_port()?;
    let hosts = "luns = [\"a\"]\nhosts = [\"nqn.2026-11.org.lunet:e2e-1\"]";
    let server = Serve::config(text(port, hosts)).start()?;
    let both = Both { server, nvme: format!("127.0.0.1:{port}") };
    let mut host = both.host(1)?;
    host.write(1, 0, &pattern(1, 1))?;
    ensure!(both.host(2).is_err(), "a host that is not named");
    both.server.tell(&["sessions", "end", "--initiator", "nqn.2026-11.org.lunet:e2e-1"])?;
    std::thread::sleep(Duration::from_secs(4));
    ensure!(host.read(1, 0, 1).is_err(), "it was ended");
    Ok(())
}

#[test]
fn hosts_are_let_in_and_out_by_command() -> Result<()> {
    const OTHER: &str = "iqn.2026-11.local.lunet:u";
    let [one, two] = ["nqn.2026-11.org.lunet:e2e-1", "nqn.2026-11.org.lunet:e2e-2"];
    let both = both()?;
    let notes = both.server.command(&["target", "create", OTHER, "--nvme"])?.stderr;
    ensure!(notes.contains("the subsystem nqn.2026-11.local.lunet:u"), "{notes}");
    both.server.tell(&["target", "map", OTHER, "0", "b"])?;
    let connects = |number| {
        let login = NvmeLogin::new(&both.nvme, "nqn.2026-11.local.lunet:u").by(number);
        Host::connect(&login)
    };
    // It is for this machine, whoever that is.
    ensure!(connects(2)?.read(1, 0, 1)? == vec![0; BLOCK]);
    let told = both.server.tell(&["target", "allow", OTHER, one])?;
    ensure!(told.contains(&format!("over NVMe, target {OTHER} is for {one}")), "{told}");
    let list = both.server.tell(&["target", "list"])?;
    let over = format!("over NVMe as nqn.2026-11.local.lunet:u, for {one}");
    ensure!(list.contains(&over), "{list}");
    let swapped = both.server.refuses(&["target", "map", "b", "3", OTHER])?;
    ensure!(swapped.contains(&format!("lunet target map {OTHER} 3 b")), "{swapped}");
    let mut first = connects(1)?;
    ensure!(connects(2).is_err(), "it is not in the list");
    both.server.refuses(&["target", "allow", OTHER, two, "iqn.2026-11.local.lunet:initiator"])?;
    both.server.refuses(&["target", "deny", OTHER, two])?;
    let last = both.server.refuses(&["target", "deny", OTHER, one])?;
    ensure!(last.contains("allow another host first"), "{last}");
    both.server.tell(&["target", "allow", OTHER, two])?;
    ensure!(connects(2)?.read(1, 0, 1).is_ok() && first.read(1, 0, 1).is_ok());
    let kept = both.server.tell(&["target", "deny", OTHER, one, "--keep-sessions"])?;
    ensure!(connects(1).is_err() && first.read(1, 0, 1).is_ok(), "it stays: {kept}");
    both.server.tell(&["target", "allow", OTHER, one])?;
    ensure!(first.read(1, 0, 1).is_ok());
    both.server.tell(&["target", "deny", OTHER, one])?;
    ensure!(connects(1).is_err(), "it is not in the list any more");
    // The same is in force after a start.
    let directory = both.server.stop()?.context("it has one")?;
    let server = Serve::default().data(directory.path()).start()?;
    let login = NvmeLogin::new(&both.nvme, "nqn.2026-11.local.lunet:u");
    ensure!(Host::connect(&login.clone().by(1)).is_err() && Host::connect(&login.by(2)).is_ok());
    server.stop()?;
    Ok(())
}

/// TLS is the kernel's to have, and the check says so beforehand.
#[test]
fn the_check_says_that_the_kernel_has_no_tls() -> Result<()> {
    let dir = scratch("lunet-config-")?;
    let path = dir.path().join("lunet.toml");
    let key = "NVMeTLSkey-1:01:yfA5y7w9H1djYdTd2lm8kSqfjE3Npv1Mq1Bz9V7byVAVpSqd:";
    let host =
        format!("hosts = [{{ nqn = \"nqn.2026-11.org.lunet:e2e-1\", tls-key = \"{key}\" }}]");
    let config = text(4420, &host).replace("127.0.0.1:0", "127.0.0.1").replace("file", "memory");
    std::fs::write(&path, config)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    let mut command = Command::new(lunet_binary()?);
    let finished = run(command.args(["config", "check"]).arg(&path), Duration::from_secs(20))?;
    // The file is right wherever it is checked.
    ensure!(finished.status.is_some_and(|status| status.success()), "{}", finished.describe());
    let told = finished.stdout.contains("would not start on this machine now");
    ensure!(told == lunet_ring::has_tls().is_err(), "{}", finished.describe());
    Ok(())
}

#[test]
fn a_command_says_what_it_leaves_without_effect() -> Result<()> {
    let both = both()?;
    let name = "iqn.2026-11.local.lunet";
    let notes = both.server.command(&["target", "create", name, "--nvme"])?.stderr;
    ensure!(
        notes.contains("target.nqn: \"nqn.2026-11.local.lunet\": the NQN has no ':'"),
        "{notes}"
    );
    // It is told once.
    let notes = both.server.command(&["target", "map", name, "0", "b"])?.stderr;
    ensure!(!notes.contains("the NQN has no"), "{notes}");
    let allow = ["target", "allow", TARGET, "iqn.2026-11.local.lunet:initiator"];
    let notes = both.server.command(&allow)?.stderr;
    ensure!(notes.contains("over NVMe nobody may connect"), "{notes}");
    both.server.stop()?;
    Ok(())
}
