//! One thread listens, others serve: as lunet's shards do.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lunet_e2e::rdma::{WhyError, device, whole};
use lunet_ring::Arena;
use lunet_verbs::{
    Adapter, AdapterConfig, CmEventKind, CmId, ConnParams, EndpointConfig, EndpointId,
    EventChannel, Library, Operation, Pieces,
};
use rustix::event::{PollFd, PollFlags, poll};

use crate::machine::{HELLO, Machine, RECEIVE, WELCOME, expect, pattern};

/// Threads that serve.
const SHARDS: usize = 2;
/// How long one waits for its next connection.
const IDLE: Duration = Duration::from_secs(30);

/// Connections that are accepted by other threads than the one that listens, each with an adapter and
/// a channel of its own. They send back what they get.
pub fn spread(address: IpAddr, rounds: u64) -> Result<()> {
    let mut machine = Machine::new(address, None)?;
    let mut shards = Vec::new();
    for _ in 0..SHARDS {
        let (ids, inbox) = channel();
        shards.push((ids, thread::spawn(move || serve(address, &inbox))));
    }
    for round in 0..rounds.min(20) {
        let (near, token, request) = machine.begin(HELLO)?;
        let CmEventKind::ConnectRequest { id, .. } = request.kind else {
            bail!("{:?} instead of a request", request.kind);
        };
        let shard = &shards[round as usize % SHARDS].0;
        ensure!(shard.send(id).is_ok(), "the shard is gone");
        let answer = machine.event(token)?;
        expect(&answer, "Established")?;
        ensure!(answer.private.starts_with(WELCOME), "not what was said");
        for (turn, len) in [1, 4096, RECEIVE - 1].into_iter().enumerate() {
            let seed = round * 3 + turn as u64;
            let data = whole(machine.filled(len, seed)?);
            let queued = machine.adapter.queue_send(near, b"!", data, None, (seed, false));
            queued.map_err(|e| e.why_error())?;
            machine.adapter.flush();
            let got = machine.done(near, Operation::Receive)?;
            let buf = got.buf.context("no buffer")?;
            ensure!(got.bytes as usize == len + 1 && buf[1..=len] == pattern(len, seed), "echo");
        }
        machine.adapter.disconnect(near);
        expect(&machine.event(token)?, "Disconnected")?;
        machine.adapter.close(near);
    }
    for (ids, shard) in shards {
        drop::<Sender<CmId>>(ids);
        let served = shard.join().map_err(|_| anyhow::Error::msg("a shard has panicked"))??;
        println!("a shard has served {served} connections");
        ensure!(served > 0, "nothing for a shard");
    }
    machine.all_is_back(0)
}

/// One shard: takes connections until nobody sends any more. Returns how many.
fn serve(address: IpAddr, inbox: &Receiver<CmId>) -> Result<u32> {
    let library = Library::open()?;
    let device = device(&library, address)?;
    let arena = Arena::new(8 << 20)?;
    let config = AdapterConfig { completions: 512, shared_receives: None, interrupt: 1 };
    let mut adapter = Adapter::open(&device, &arena, &config)?;
    let mut channel = EventChannel::new(&library)?;
    let mut served = 0;
    while let Ok(mut id) = inbox.recv_timeout(IDLE) {
        served += 1;
        id.set_token(u64::from(served));
        id.migrate(&channel)?;
        let config = EndpointConfig { sends: 16, receives: 16 };
        let endpoint = adapter.open_endpoint(id, config).map_err(|refused| refused.error)?;
        for token in 0..16 {
            let buf = arena.alloc(RECEIVE).context("no memory")?;
            adapter.queue_receive(endpoint, buf, token).map_err(|e| e.why_error())?;
        }
        adapter.flush();
        let params = ConnParams { reads: 4, reads_served: 4, private: WELCOME };
        adapter.accept(endpoint, params)?;
        echo(&mut adapter, &mut channel, &arena, (endpoint, u64::from(served)))?;
        adapter.close(endpoint);
    }
    drop(adapter);
    ensure!(arena.free_bytes() == arena.total_bytes(), "memory is missing");
    Ok(served)
}

/// Sends back what comes, until the connection ends.
fn echo(
    adapter: &mut Adapter,
    channel: &mut EventChannel,
    arena: &Arena,
    (endpoint, token): (EndpointId, u64),
) -> Result<()> {
    let end = Instant::now() + IDLE;
    let mut completions = Vec::new();
    loop {
        ensure!(Instant::now() < end, "the connection does not end");
        adapter.arm(true, true)?;
        adapter.poll(&mut completions)?;
        for completion in completions.drain(..) {
            let Some(buf) = completion.buf.filter(|_| completion.status.is_success()) else {
                continue;
            };
            let data = [(buf.into(), 1..completion.bytes as usize)].into_iter().collect::<Pieces>();
            let queued = adapter.queue_send(endpoint, b"?", data, None, (0, true));
            queued.map_err(|e| e.why_error())?;
            let again = arena.alloc(RECEIVE).context("no memory")?;
            adapter.queue_receive(endpoint, again, 0).map_err(|e| e.why_error())?;
        }
        adapter.flush();
        while let Some(event) = channel.next_event()? {
            ensure!(event.token == token, "an event of another connection");
            match event.kind {
                CmEventKind::Established => {}
                CmEventKind::Disconnected => {
                    adapter.disconnect(endpoint);
                    return Ok(());
                }
                other => bail!("{other:?}"),
            }
        }
        adapter.poll(&mut completions)?;
        if completions.is_empty() {
            let fds = [channel.as_fd(), adapter.as_fd()];
            let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let time = Duration::from_secs(1).try_into()?;
            poll(&mut fds, Some(&time))?;
        }
    }
}

/// A listener on every address, of both kinds, on one port.
pub fn everywhere(address: IpAddr, _: u64) -> Result<()> {
    let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let [own, other] = if address.is_ipv4() { any } else { [any[1], any[0]] };
    let mut machine = Machine::listening(address, own, None)?;
    let beside = machine.listens_at((other, machine.address.port()).into())?;
    let (pair, tokens) = machine.connected()?;
    let path = machine.adapter.path(pair.far)?;
    ensure!(path.local == Some(machine.address), "{path:?}");
    machine.disconnected(pair, tokens)?;
    drop(beside);
    machine.all_is_back(0)
}
