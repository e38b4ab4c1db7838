//! Sends without a copy, over a virtual wire (veth) between two networks of this machine.
//!
//! The kernel copies for a receiver on the same machine when it hands a packet over, so over a bare wire each send is reported
//! as copied. With a program of XDP at the receiving end, the wire itself copies each packet into a page of its own before
//! that, as a card copies it by DMA: the pages of the sender are referred to until the packets are acknowledged, and the
//! kernel reports that it has not copied.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunet_block::Random;
use lunet_e2e::process::{Running, leashed, output};
use lunet_e2e::server::{Serve, Server};
use lunet_e2e::wire::scsi::read16;
use lunet_e2e::wire::{Login, Session};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(30);
const TARGET: &str = "iqn.2026-11.local.lunet:zc";
const BLOCK: usize = 512;
/// Blocks of a volume.
const BLOCKS: u64 = (16 << 20) / BLOCK as u64;

/// Loads the smallest program of XDP, which lets all pass, and attaches it to a wire for as long as this runs.
const LET_PASS: &str = r#"
import ctypes, os, platform, socket, struct, sys, time
call = {'x86_64': 321, 'aarch64': 280}[platform.machine()]
kernel = ctypes.CDLL(None, use_errno=True)
def bpf(command, attributes):
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b'\0'))
    result = kernel.syscall(call, command, buffer, 128)
    if result < 0:
        print('no XDP:', os.strerror(ctypes.get_errno()), flush=True)
        sys.exit()
    return result
code = ctypes.create_string_buffer(bytes.fromhex('b7000000020000009500000000000000'))
licence = ctypes.create_string_buffer(b'GPL\0')
program = bpf(5, struct.pack('=IIQQ', 6, 2, ctypes.addressof(code), ctypes.addressof(licence)))
link = bpf(28, struct.pack('=IIII', program, socket.if_nametoindex(sys.argv[1]), 37, 4))
print('attached', flush=True)
time.sleep(3600)
"#;

fn ip(words: &str) -> Result<String> {
    output(Command::new("ip").args(words.split(' ')), PATIENCE)
}

/// A network of a server, and a wire to it.
struct Network {
    holder: Running,
    wire: String,
    /// The wire's addresses here and there.
    addresses: [String; 2],
}

impl Network {
    /// `None` where this cannot be done, which is said.
    fn new(name: &str) -> Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can lay wires between networks");
            return Ok(None);
        }
        let mut command = leashed(None);
        command.args(["unshare", "--net", "sh", "-c", "echo there; exec sleep 3600"]);
        let holder = Running::spawn(&mut command)?;
        let there = |text: &str| text.contains("there").then_some(());
        let ready = holder.stdout.find(Instant::now() + PATIENCE, there);
        ready.context("there is no network of its own")?;
        // Tests of one process and of others have networks at the same time.
        let id = holder.pid();
        let address =
            |at: u32| format!("198.{}.{}.{}", 18 + id / 16384 % 2, id / 64 % 256, id % 64 * 4 + at);
        let addresses = [1, 2].map(address);
        let network = Self { wire: format!("lz{name}{id}"), holder, addresses };
        let (wire, [here, there]) = (&network.wire, &network.addresses);
        ip(&format!("link add {wire} type veth peer name {wire} netns {id}"))?;
        ip(&format!("addr add {here}/30 dev {wire}"))?;
        ip(&format!("link set {wire} up"))?;
        let inside = format!("--net=/proc/{id}/ns/net");
        let set = format!(
            "ip link set lo up && ip addr add {there}/30 dev {wire} && ip link set {wire} up"
        );
        output(Command::new("nsenter").args([&inside, "sh", "-c", &set]), PATIENCE)?;
        Ok(Some(network))
    }

    /// A server there, of a volume in memory and one in a file.
    fn serve(&self, more: &str) -> Result<Server> {
        let text = format!(
            "{more}\n[[portal]]\naddress = '{}:3260'\n\
             [volumes.memory]\nbackend = 'memory'\nsize = '16MiB'\n[volumes.file]\nbackend = 'file'\nsize = '16MiB'\n\
             [[target]]\nname = '{TARGET}'\nluns = ['memory', 'file']\nopen = true\n",
            self.addresses[1]
        );
        let inside = format!("--net=/proc/{}/ns/net", self.holder.pid());
        Serve::config(text).quiet().by(&["nsenter", &inside]).start()
    }

    /// From now on, as long as what is returned is kept, this end of the wire copies. `None` where that cannot be had.
    fn copy_at_this_end(&self) -> Result<Option<Running>> {
        let mut command = leashed(None);
        let running = Running::spawn(command.args(["python3", "-c", LET_PASS, &self.wire]))?;
        let said = |text: &str| {
            text.lines().next().filter(|_| text.contains('\n')).map(|line| line == "attached")
        };
        let attached = running.stdout.find(Instant::now() + PATIENCE, said).unwrap_or(false);
        if !attached {
            eprintln!("skipped: {}", running.stdout.text());
        }
        Ok(attached.then_some(running))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The other end goes with it.
        drop(ip(&format!("link delete {}", self.wire)));
    }
}

/// The sum of a number of all shards.
fn sum(server: &Server, name: &str) -> Result<u64> {
    let stats: Value = serde_json::from_str(&server.tell(&["stats", "--json"])?)?;
    let loads = stats["loads"].as_array().context("there are no shards")?;
    Ok(loads.iter().map(|load| load[name].as_u64().unwrap_or(0)).sum())
}

/// Bytes that went out without a copy, and bytes that were copied after all.
fn counted(server: &Server) -> Result<(u64, u64)> {
    Ok((sum(server, "zero_copy_bytes")?, sum(server, "zero_copy_copied_bytes")?))
}

/// Bytes of buffers in use.
fn used(server: &Server) -> Result<u64> {
    sum(server, "buffer_used_bytes")
}

/// Waits until all buffers are back but those that a server has when it has just begun.
fn until_free(server: &Server, before: u64) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while used(server)? > before {
        ensure!(Instant::now() < deadline, "buffers are in use still");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Writes and reads at random, several reads at a time, and compares.
fn exercise(server: &Server, seed: u64) -> Result<()> {
    let mut session = Session::open(&Login::new(server.portal(), TARGET))?;
    let mut random = Random::new(seed);
    for lun in [0, 1] {
        session.settle(lun)?;
        let mut mirror = vec![0; BLOCKS as usize * BLOCK];
        random.fill(&mut mirror);
        for (part, data) in mirror.chunks(1 << 20).enumerate() {
            session.write(lun, part as u64 * 2048, data, BLOCK)?;
        }
        for round in 0..40 {
            let blocks = if round % 2 == 0 { 256 } else { 2048 };
            let firsts = [0; 4].map(|_| random.below(BLOCKS - blocks));
            let mut tags = Vec::new();
            for first in firsts {
                let cdb = read16(first, blocks as u32);
                tags.push((session.start(lun, &cdb, blocks as usize * BLOCK, &[])?, first));
            }
            for _ in firsts {
                let answer = session.finish()?;
                let asked = tags.iter().find(|(tag, _)| *tag == answer.tag);
                let at = asked.context("nobody has asked for this")?.1 as usize * BLOCK;
                ensure!(answer.status == 0, "{answer:?}");
                let same = answer.data == mirror[at..at + blocks as usize * BLOCK];
                ensure!(same, "LUN {lun}, round {round}: other data at {at}");
            }
            let first = random.below(BLOCKS - blocks);
            let bytes = first as usize * BLOCK..(first + blocks) as usize * BLOCK;
            random.fill(&mut mirror[bytes.clone()]);
            session.write(lun, first, &mirror[bytes], BLOCK)?;
        }
    }
    session.logout()
}

#[test]
fn over_a_bare_wire_the_kernel_copies_and_the_connection_goes_over_to_ordinary_sends() -> Result<()>
{
    let Some(network) = Network::new("b")? else { return Ok(()) };
    let server = network.serve("")?;
    let before = used(&server)?;
    exercise(&server, 1)?;
    let (sent, copied) = counted(&server)?;
    ensure!(sent == 0, "{sent} bytes went out without a copy");
    // Of more than 100 MiB; nothing where the kernel gives no reports.
    ensure!(copied < 16 << 20, "{copied} bytes were tried");
    until_free(&server, before)?;
    server.stop().map(drop)
}

#[test]
fn what_goes_out_without_a_copy_arrives_as_it_was() -> Result<()> {
    let Some(network) = Network::new("w")? else { return Ok(()) };
    let Some(_copies) = network.copy_at_this_end()? else { return Ok(()) };
    let server = network.serve("")?;
    let before = used(&server)?;
    exercise(&server, 2)?;
    let (sent, copied) = counted(&server)?;
    if (sent, copied) == (0, 0) {
        eprintln!("not tested: this kernel has no sends without a copy that report");
    } else {
        ensure!(sent > 50 << 20 && copied == 0, "{sent} without a copy, {copied} copied");
        let told = server.tell(&["stats"])?;
        ensure!(told.contains("sent without a copy"), "{told}");
    }
    until_free(&server, before)?;
    server.stop()?;
    let server = network.serve("[server]\nzero-copy-send = 'never'")?;
    exercise(&server, 3)?;
    ensure!(counted(&server)? == (0, 0), "it was told not to");
    server.stop().map(drop)
}

/// What a client does not acknowledge stays in the server's memory. It pays for it, and is ended as one that takes nothing.
#[test]
fn who_takes_nothing_of_what_went_out_without_a_copy_is_ended() -> Result<()> {
    let Some(network) = Network::new("t")? else { return Ok(()) };
    let Some(_copies) = network.copy_at_this_end()? else { return Ok(()) };
    let server = network.serve("[iscsi]\ndata-timeout = '2s'")?;
    let before = used(&server)?;
    let mut session = Session::open(&Login::new(server.portal(), TARGET))?;
    session.settle(1)?;
    // So much that the client's system does not take it in, and the server's does.
    for _ in 0..12 {
        drop(session.read(1, 0, 2048, BLOCK)?);
    }
    for _ in 0..8 {
        session.start(1, &read16(0, 2048), 1 << 20, &[])?;
    }
    let sessions = || sum(&server, "connections");
    let deadline = Instant::now() + PATIENCE;
    while sessions()? > 0 {
        ensure!(Instant::now() < deadline, "the session goes on");
        // Somebody else gets on meanwhile.
        let other = Login { qualifier: 7, ..Login::new(server.portal(), TARGET) };
        let mut other = Session::open(&other)?;
        other.settle(1)?;
        drop(other.read(1, 0, 2048, BLOCK)?);
        other.logout()?;
        std::thread::sleep(Duration::from_millis(200));
    }
    until_free(&server, before)?;
    server.stop().map(drop)
}
