//! What is tried.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use lunet_e2e::rdma::{WhyError, whole};
use lunet_ring::{Arena, Payload, Region};
use lunet_verbs::{
    CmEventKind, ConnParams, Error, Operation, Pieces, Remote, RemoteAccess, Status,
};

use crate::machine::{HELLO, Machine, Pair, RECEIVE, RECEIVES, SENDS, expect, pattern};
use crate::outside::{facts, hold, link_down, locked, no_device, removed};
use crate::spread::{everywhere, spread};

type Trial = fn(IpAddr, u64) -> Result<()>;

pub const TRIALS: [(&str, Trial); 16] = [
    ("facts", facts),
    ("no-device", no_device),
    ("talk", talk),
    ("data", data),
    ("invalidate", invalidate),
    ("wrong-key", wrong_key),
    ("abrupt", abrupt),
    ("refused", refused),
    ("shared", shared),
    ("many", many),
    ("locked", locked),
    ("link-down", link_down),
    ("hold", hold),
    ("removed", removed),
    ("spread", spread),
    ("everywhere", everywhere),
];

/// Messages to and fro, of all lengths, and where they go along.
fn talk(address: IpAddr, rounds: u64) -> Result<()> {
    let mut machine = Machine::new(address, None)?;
    let (pair, tokens) = machine.connected()?;
    let path = machine.adapter.path(pair.near)?;
    ensure!(path.peer == Some(machine.address) && path.mtu.bytes() >= 256, "{path:?}");
    println!("{path:?}");
    for round in 0..rounds {
        let (from, to) = if round % 2 == 0 { (pair.near, pair.far) } else { (pair.far, pair.near) };
        let head = pattern(1 + round as usize % 128, round);
        let len = (round as usize * 37) % (RECEIVE - head.len());
        let data = if len > 0 { whole(machine.filled(len, round + 1)?) } else { Pieces::new() };
        let sent = machine.adapter.queue_send(from, &head, data, None, (round, true));
        sent.map_err(|e| e.why_error())?;
        machine.adapter.flush();
        let got = machine.done(to, Operation::Receive)?;
        let buf = got.buf.context("a receive without its buffer")?;
        ensure!(got.bytes as usize == head.len() + len, "{} bytes came", got.bytes);
        let bytes = &buf[..got.bytes as usize];
        ensure!(bytes[..head.len()] == head, "the head of round {round} differs");
        ensure!(bytes[head.len()..] == pattern(len, round + 1), "the data of {round} differs");
        let again = machine.adapter.queue_receive(to, buf, got.token);
        again.map_err(|e| e.why_error())?;
        machine.adapter.flush();
        ensure!(machine.done(from, Operation::Send)?.token == round, "another send has ended");
    }
    machine.disconnected(pair, tokens)?;
    machine.all_is_back(0)
}

/// Writes to the peer's memory and reads from it, 4 KiB to 1 MiB, whole and in pieces.
fn data(address: IpAddr, _: u64) -> Result<()> {
    let mut machine = Machine::new(address, None)?;
    let (pair, tokens) = machine.connected()?;
    let region = Arc::new(Region::new(4 << 20)?);
    let exposed = machine.adapter.expose(&region, RemoteAccess { read: true, write: true })?;
    for (turn, len) in [4096, 8192, 65_536, 100_000, 262_144, 1 << 20].into_iter().enumerate() {
        let (seed, at) = (turn as u64, 4096 * turn as u64 + 17);
        let remote = exposed.remote(at..at + len as u64).context("within the region")?;
        // In two pieces, with something in front and behind that stays at home.
        let bytes = pattern(len, seed);
        let mut pieces = Pieces::new();
        for range in [0..len / 3, len / 3..len] {
            let mut buf = machine.arena.alloc(range.len() + 64).context("no memory")?;
            buf.fill(0xEE);
            let middle = 32..32 + range.len();
            buf[middle.clone()].copy_from_slice(&bytes[range]);
            pieces.push((Payload::from(buf), middle));
        }
        let queued = machine.adapter.queue_write(pair.far, pieces, remote, (seed, true));
        queued.map_err(|e| e.why_error())?;
        // A message behind it comes after the data.
        let queued =
            machine.adapter.queue_send(pair.far, b"written", Pieces::new(), None, (seed, false));
        queued.map_err(|e| e.why_error())?;
        machine.adapter.flush();
        machine.done(pair.near, Operation::Receive)?;
        let mut seen = vec![0; len + 34];
        region.read(at - 17, &mut seen);
        ensure!(seen[17..17 + len] == bytes, "{len} bytes were not written as they are");
        ensure!(seen[..17].iter().chain(&seen[17 + len..]).all(|b| *b == 0), "written beyond");
        machine.done(pair.far, Operation::Write)?;
        let into = machine.arena.alloc(len).context("no memory")?;
        let queued = machine.adapter.queue_read(pair.far, into, 0..len, remote, seed);
        queued.map_err(|e| e.why_error())?;
        machine.adapter.flush();
        let read = machine.done(pair.far, Operation::Read)?;
        let buf = read.buf.context("a read without its buffer")?;
        ensure!(read.bytes as usize == len && buf[..] == bytes, "{len} bytes read differ");
        region.zero(0, region.len());
    }
    batch(&mut machine, pair, &exposed)?;
    machine.disconnected(pair, tokens)?;
    machine.all_is_back(0)
}

/// Many reads in one call, and buffers that the device must not be told of.
fn batch(machine: &mut Machine, pair: Pair, exposed: &lunet_verbs::Exposed) -> Result<()> {
    exposed.region().write(0, &pattern(1 << 20, 99));
    let whole_of_it = pattern(1 << 20, 99);
    for token in 0..u64::from(SENDS) {
        let into = machine.arena.alloc(4096).context("no memory")?;
        let at = token * 4096;
        let remote = exposed.remote(at..at + 4096).context("within the region")?;
        let queued = machine.adapter.queue_read(pair.far, into, 0..4096, remote, token);
        queued.map_err(|e| e.why_error())?;
    }
    ensure!(machine.adapter.room(pair.far) == 0, "the queue should be full");
    let into = machine.arena.alloc(4096).context("no memory")?;
    let remote = exposed.remote(0..1).context("within the region")?;
    let full = machine.adapter.queue_read(pair.far, into, 0..1, remote, 0);
    ensure!(full.is_err_and(|e| e.why == lunet_verbs::Why::Full), "more than fits was taken");
    machine.adapter.flush();
    for token in 0..u64::from(SENDS) {
        let read = machine.done(pair.far, Operation::Read)?;
        let (buf, at) = (read.buf.context("no buffer")?, token as usize * 4096);
        ensure!(read.token == token && buf[..] == whole_of_it[at..at + 4096], "read {token}");
    }
    ensure!(exposed.remote(0..(4 << 20) + 1).is_none(), "beyond the region");
    let foreign = Arena::new(1 << 20)?.alloc(4096).context("no memory")?;
    let refused = machine.adapter.queue_write(pair.far, whole(foreign), remote, (0, true));
    let why = refused.err().context("memory of nobody was taken")?.why;
    ensure!(why == lunet_verbs::Why::NotRegistered, "{why:?}");
    let plain = [(Payload::from(vec![1u8; 10]), 0..10)].into_iter().collect();
    let refused = machine.adapter.queue_write(pair.far, plain, remote, (0, true));
    ensure!(refused.is_err_and(|e| e.why == lunet_verbs::Why::NotRegistered), "plain bytes");
    Ok(())
}

/// A key that the peer ends with its message. Memory that a process has registered itself cannot be
/// ended by a peer, so a correct device refuses it, and the connection is lost.
fn invalidate(address: IpAddr, _: u64) -> Result<()> {
    let mut machine = Machine::new(address, None)?;
    let (pair, _) = machine.connected()?;
    let region = Arc::new(Region::new(4096)?);
    let exposed = machine.adapter.expose(&region, RemoteAccess { read: true, write: false })?;
    let key = exposed.remote(0..1).context("within the region")?.key;
    let queued = machine.adapter.queue_send(pair.far, b"x", Pieces::new(), Some(key), (1, true));
    queued.map_err(|e| e.why_error())?;
    machine.adapter.flush();
    let sent = machine.ended(pair.far, Operation::SendInvalidate)?;
    println!("send with invalidate: {}", sent.status);
    let got = machine.ended(pair.near, Operation::Receive)?;
    println!("its receive: {}, key {:?}", got.status, got.invalidated.map(|k| k == key));
    if got.status.is_success() {
        ensure!(got.invalidated == Some(key), "a success without the key");
    }
    Ok(())
}

/// A wrong key kills its own connection, and no other.
fn wrong_key(address: IpAddr, _: u64) -> Result<()> {
    let mut machine = Machine::new(address, None)?;
    let (bystander, their_tokens) = machine.connected()?;
    for read in [false, true] {
        let (pair, _) = machine.connected()?;
        let region = Arc::new(Region::new(8192)?);
        let exposed = machine.adapter.expose(&region, RemoteAccess { read: !read, write: read })?;
        let remote = exposed.remote(0..4096).context("within the region")?;
        let buf = machine.filled(4096, 1)?;
        let (operation, queued) = if read {
            let queued = machine.adapter.queue_read(pair.far, buf, 0..4096, remote, 7);
            (Operation::Read, queued.map_err(|e| e.why_error()))
        } else {
            let remote = Remote { key: remote.key ^ 0xFF, ..remote };
            let queued = machine.adapter.queue_write(pair.far, whole(buf), remote, (7, true));
            (Operation::Write, queued.map_err(|e| e.why_error()))
        };
        queued?;
        machine.adapter.flush();
        let ended = machine.ended(pair.far, operation)?;
        ensure!(ended.status == Status::RemoteAccess, "{operation:?}: {:?}", ended.status);
        machine.adapter.close(pair.near);
        machine.adapter.close(pair.far);
        let mut seen = [1; 4096];
        region.read(0, &mut seen);
        ensure!(seen.iter().all(|b| *b == 0), "written with a wrong key");
    }
    let queued =
        machine.adapter.queue_send(bystander.near, b"alive", Pieces::new(), None, (0, true));
    queued.map_err(|e| e.why_error())?;
    machine.adapter.flush();
    let got = machine.done(bystander.far, Operation::Receive)?;
    ensure!(got.buf.context("no buffer")?[..5] == *b"alive", "another message");
    machine.disconnected(bystander, their_tokens)?;
    machine.all_is_back(0)
}

/// Connections that end with work in flight: everything ends once, and all memory is back.
fn abrupt(address: IpAddr, _: u64) -> Result<()> {
    let mut machine = Machine::new(address, None)?;
    let region = Arc::new(Region::new(1 << 20)?);
    for close_at_once in [false, true] {
        let (pair, _) = machine.connected()?;
        let exposed = machine.adapter.expose(&region, RemoteAccess { read: true, write: true })?;
        for token in 0..48 {
            let remote = exposed.remote(0..65_536).context("within the region")?;
            let buf = machine.filled(65_536, token)?;
            let queued = machine.adapter.queue_write(pair.far, whole(buf), remote, (token, true));
            queued.map_err(|e| e.why_error())?;
        }
        machine.adapter.flush();
        if close_at_once {
            machine.adapter.close(pair.far);
            machine.adapter.close(pair.near);
            continue;
        }
        machine.adapter.disconnect(pair.near);
        machine.adapter.disconnect(pair.far);
        let mut lost = 0;
        for token in 0..48 {
            let ended = machine.ended(pair.far, Operation::Write)?;
            ensure!(ended.token == token, "{} instead of {token}", ended.token);
            lost += u32::from(!ended.status.is_success());
        }
        for id in [pair.near, pair.far] {
            for _ in 0..RECEIVES {
                let ended = machine.ended(id, Operation::Receive)?;
                ensure!(ended.status == Status::Flushed, "{:?}", ended.status);
            }
            ensure!(machine.adapter.in_flight(id) == (0, 0), "something is left");
            machine.adapter.close(id);
        }
        println!("{lost} of 48 writes were given up");
        let late = machine.adapter.queue_send(pair.far, b"x", Pieces::new(), None, (0, true));
        ensure!(late.is_err_and(|e| e.why == lunet_verbs::Why::Ended), "sent by a dead endpoint");
    }
    machine.all_is_back(0)
}

/// Nobody listens; somebody says no; the port is taken.
fn refused(address: IpAddr, _: u64) -> Result<()> {
    let mut machine = Machine::new(address, None)?;
    let (near, token, request) = machine.begin(HELLO)?;
    let CmEventKind::ConnectRequest { id, .. } = request.kind else {
        bail!("{:?} instead of a request", request.kind);
    };
    id.reject(b"no room")?;
    let answer = machine.event(token)?;
    expect(&answer, "Rejected")?;
    ensure!(answer.private.starts_with(b"no room"), "not what was said: {:?}", answer.private);
    println!("{}", answer.reason());
    machine.adapter.close(near);
    match machine.listens_at(machine.address) {
        Err(error @ Error::InUse { .. }) => println!("{error}"),
        other => bail!("{other:?}"),
    }
    let mut elsewhere = machine.address;
    elsewhere.set_port(1);
    let (id, token) = machine.resolved(elsewhere)?;
    let near = machine.endpoint(id)?;
    machine.adapter.connect(near, ConnParams { reads: 1, reads_served: 1, private: &[] })?;
    let answer = machine.event(token)?;
    expect(&answer, "Rejected")?;
    ensure!(answer.reason() == "nobody listens there", "{}", answer.reason());
    machine.adapter.close(near);
    machine.all_is_back(0)
}

/// Two connections that take their receives from one queue.
fn shared(address: IpAddr, rounds: u64) -> Result<()> {
    let mut machine = Machine::new(address, Some(64))?;
    ensure!(machine.adapter.has_shared_receives(), "the device has no shared queue");
    for _ in 0..64 {
        let buf = machine.arena.alloc(RECEIVE).context("no memory")?;
        let queued = machine.adapter.queue_shared_receive(buf);
        queued.map_err(|e| e.why_error())?;
    }
    machine.adapter.flush();
    let pairs = [machine.connected()?, machine.connected()?];
    for round in 0..rounds {
        let (pair, _) = pairs[round as usize % 2];
        let queued = machine.adapter.queue_send(
            pair.near,
            &round.to_le_bytes(),
            Pieces::new(),
            None,
            (round, round % 8 == 0),
        );
        queued.map_err(|e| e.why_error())?;
        machine.adapter.flush();
        let got = machine.done(pair.far, Operation::Receive)?;
        let buf = got.buf.context("no buffer")?;
        ensure!(buf[..8] == round.to_le_bytes(), "another message");
        machine.adapter.queue_shared_receive(buf).map_err(|e| e.why_error())?;
        machine.done.retain(|c| c.operation == Operation::Receive);
    }
    machine.adapter.flush();
    for (pair, tokens) in pairs {
        machine.disconnected(pair, tokens)?;
    }
    // One for each queue pair that has ended may have gone with it, until later ones have ended on all.
    let (ready, lost) = (machine.adapter.shared_receives(), machine.adapter.shared_lost());
    ensure!(ready + lost == 64 && lost <= 4, "{ready} receives are left, {lost} may be lost");
    for _ in 0..lost {
        let buf = machine.arena.alloc(RECEIVE).context("no memory")?;
        machine.adapter.queue_shared_receive(buf).map_err(|e| e.why_error())?;
    }
    machine.adapter.flush();
    let (ready, room) = (machine.adapter.shared_receives(), machine.adapter.shared_room());
    ensure!(ready == 64 && room == 0, "{ready} receives with those posted anew, room for {room}");
    let (adapter, arena) = machine.silent();
    drop(adapter);
    ensure!(arena.free_bytes() == arena.total_bytes(), "memory is missing");
    Ok(())
}

/// Connections come and go; nothing of them stays.
fn many(address: IpAddr, count: u64) -> Result<()> {
    let mut machine = Machine::new(address, None)?;
    let mut early = 0;
    for round in 0..count {
        let (pair, tokens) = machine.connected()?;
        machine.disconnected(pair, tokens)?;
        machine.all_is_back(0)?;
        // What the C library and the allocator keep has been taken by then.
        if round == count / 5 {
            early = resident()?;
        }
    }
    let grown = resident()?.saturating_sub(early);
    println!("{count} connections; {} KiB more than after the first fifth", grown / 1024);
    ensure!(grown < 512 << 10, "memory grows: {} KiB", grown / 1024);
    Ok(())
}

/// Bytes of this process in memory.
fn resident() -> Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).context("statm")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}
