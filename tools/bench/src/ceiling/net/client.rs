//! The side that measures.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::server::{Limits, serve};
use super::wire::{CHUNK, Hello, MESSAGE, Status, VERSION, What, read_count};
use super::{MOST_SECONDS, MOST_STREAMS, NetError};
use crate::model::{Ceiling, CeilingKind, Unit};
use crate::stats::median;

/// How to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Streams at once, 1 to [`MOST_STREAMS`].
    pub streams: u32,
    /// How long each direction is measured, at most [`MOST_SECONDS`].
    pub time: Duration,
}

impl Default for Plan {
    fn default() -> Self {
        Self { streams: 4, time: Duration::from_secs(3) }
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// What arrived at the server, in MiB/s.
    pub to_server_mib_per_s: f64,
    /// What arrived at the client, in MiB/s.
    pub from_server_mib_per_s: f64,
    /// The middle of the round trips of 64 bytes, in microseconds.
    pub round_trip_us: f64,
    /// How it was measured.
    pub plan: Plan,
    /// Whether it never left the machine.
    pub loopback: bool,
}

/// Who does not answer for so long is not there.
const PATIENCE: Duration = Duration::from_secs(5);
/// Round trips: as many as fit in half a second, but no more than this.
const MOST_PINGS: usize = 2000;
const PING_TIME: Duration = Duration::from_millis(500);

/// Measures both directions, one after the other, and the round trip.
///
/// # Errors
/// See [`NetError`].
pub fn measure(address: SocketAddr, plan: Plan) -> Result<Measured, NetError> {
    if plan.streams == 0 || plan.streams > MOST_STREAMS {
        return Err(NetError::Plan(format!("1 to {MOST_STREAMS} streams, not {}", plan.streams)));
    }
    if plan.time.is_zero() || plan.time.as_secs() >= MOST_SECONDS {
        return Err(NetError::Plan(format!(
            "a direction takes less than {MOST_SECONDS} s, and more than none"
        )));
    }
    let round_trip_us = ping(address)?;
    Ok(Measured {
        round_trip_us,
        to_server_mib_per_s: direction(address, plan, What::Send)?,
        from_server_mib_per_s: direction(address, plan, What::Receive)?,
        plan,
        loopback: address.ip().is_loopback(),
    })
}

/// The same over this machine's loopback, with a server of its own.
///
/// # Errors
/// See [`NetError`].
pub fn loopback(plan: Plan) -> Result<Measured, NetError> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (address, stop) = (listener.local_addr()?, AtomicBool::new(false));
    thread::scope(|scope| {
        let server = scope.spawn(|| serve(&listener, Limits::default(), &stop));
        let told = measure(address, plan);
        stop.store(true, Ordering::Relaxed);
        // The server ends by itself; what it could not do the client has seen.
        let _ = server.join();
        told
    })
}

impl Measured {
    /// As a ceiling of the network: the slower direction, because reads go one way and writes the other.
    pub fn ceiling(&self) -> Ceiling {
        let (to, from) = (self.to_server_mib_per_s, self.from_server_mib_per_s);
        let way = if self.loopback { "loopback of this machine" } else { "network" };
        let how = format!(
            "lunet bench net over TCP, {} streams for {:.1} s each way: {to:.0} MiB/s to the server, {from:.0} MiB/s from it, \
             round trip {:.0} us",
            self.plan.streams,
            self.plan.time.as_secs_f64(),
            self.round_trip_us
        );
        Ceiling {
            kind: CeilingKind::Network,
            name: way.to_owned(),
            value: to.min(from),
            unit: Unit::MibPerS,
            how,
            target: None,
            workload: None,
            outstanding: None,
            latency_us: Some(self.round_trip_us),
            generator_busy: None,
        }
    }
}

fn open(address: SocketAddr, what: What, time: Duration) -> Result<TcpStream, NetError> {
    let name = || address.to_string();
    let connect = |error| NetError::Connect { address: name(), error };
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(connect)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Hello { version: VERSION, what: Some(what), milliseconds }.write(&mut stream)?;
    // Who says something else, or nothing, speaks something else.
    let answer = Status::read(&mut stream).ok().flatten();
    let (theirs, status) = answer.ok_or_else(|| NetError::Stranger(name()))?;
    match status {
        _ if theirs != VERSION => Err(NetError::Version { address: name(), theirs }),
        Status::Welcome => Ok(stream),
        Status::Busy => Err(NetError::Busy(name())),
        Status::Refused => Err(NetError::Plan(format!("{address} refuses {time:?}"))),
    }
}

/// One direction, in MiB/s of all streams together.
fn direction(address: SocketAddr, plan: Plan, what: What) -> Result<f64, NetError> {
    let streams = (0..plan.streams).map(|_| open(address, what, plan.time));
    let streams = streams.collect::<Result<Vec<_>, _>>()?;
    // All begin at once, when all are there.
    let barrier = Barrier::new(streams.len());
    let rates = thread::scope(|scope| {
        let barrier = &barrier;
        let work = |mut stream: TcpStream| {
            move || -> io::Result<f64> {
                barrier.wait();
                let began = Instant::now();
                stream.write_all(b"G")?;
                let bytes = match what {
                    What::Send => send(&mut stream, plan.time)?,
                    _ => receive(&mut stream)?,
                };
                Ok(bytes as f64 / began.elapsed().as_secs_f64())
            }
        };
        let workers: Vec<_> = streams.into_iter().map(|stream| scope.spawn(work(stream))).collect();
        workers
            .into_iter()
            .filter_map(|worker| worker.join().ok())
            .collect::<io::Result<Vec<f64>>>()
    })?;
    Ok(rates.iter().sum::<f64>() / f64::from(1 << 20))
}

/// Counts what the server says has arrived.
fn send(stream: &mut TcpStream, time: Duration) -> io::Result<u64> {
    let (buffer, began) = (vec![0x5a; CHUNK], Instant::now());
    while began.elapsed() < time {
        stream.write_all(&buffer)?;
    }
    stream.shutdown(Shutdown::Write)?;
    read_count(stream)
}

fn receive(stream: &mut TcpStream) -> io::Result<u64> {
    let (mut buffer, mut arrived) = (vec![0; CHUNK], 0);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(arrived),
            bytes => arrived += bytes as u64,
        }
    }
}

fn ping(address: SocketAddr) -> Result<f64, NetError> {
    let mut stream = open(address, What::Ping, PING_TIME)?;
    stream.write_all(b"G")?;
    let (mut message, began) = ([7; MESSAGE], Instant::now());
    let mut trips = Vec::new();
    while trips.is_empty() || (trips.len() < MOST_PINGS && began.elapsed() < PING_TIME) {
        let sent = Instant::now();
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        trips.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(&trips).unwrap_or_default())
}
