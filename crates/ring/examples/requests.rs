//! What one request costs the event loop: a client sends 48-byte requests at some depth, the loop
//! answers each with 48 bytes and 4 KiB from memory. Prints requests per second and the processor
//! time of the loop's thread per request, for each driver and setting, in rounds that alternate.
//!
//! `cargo run --release -p lunet-ring --example requests`

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lunet_ring::{
    BusyPoll, Config, DriverChoice, Event, Payload, Region, RegionRef, Ring, RxBufs, SocketId,
    Token, TxChain,
};

const REQUEST: usize = 48;
const DATA: usize = 4096;
const ROUNDS: usize = 3;

/// Processor time of the calling thread so far.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(stat.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0))
}

/// Keeps `depth` requests in flight until `requests` are answered.
fn client(mut stream: TcpStream, depth: usize, requests: usize) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.write_all(&vec![0; depth * REQUEST])?;
    let (mut bytes, mut answered) = (vec![0; 256 << 10], 0);
    let mut rest = 0;
    while answered < requests {
        let got = rest + stream.read(&mut bytes)?;
        let whole = got / (REQUEST + DATA);
        rest = got % (REQUEST + DATA);
        answered += whole;
        stream.write_all(&vec![0; whole * REQUEST])?;
    }
    Ok(())
}

struct Server {
    ring: Ring,
    socket: SocketId,
    region: RegionRef,
    /// Requests not answered yet, perhaps with a part of a further one, in bytes.
    asked: usize,
    idle: Option<TxChain>,
}

impl Server {
    fn answer(&mut self) {
        if self.asked < REQUEST {
            return;
        }
        let Some(mut chain) = self.idle.take() else { return };
        chain.clear();
        while self.asked >= REQUEST {
            self.asked -= REQUEST;
            chain.bytes(&[0; REQUEST]);
            let at = (self.asked * 4096) as u64 % (1 << 20);
            let id = chain.payload(Payload::Mapped(self.region.map(at..at + DATA as u64)));
            chain.slice(id, 0..DATA);
        }
        self.ring.send(self.socket, chain, Token(0));
    }

    /// Serves until the client goes away.
    fn serve(&mut self) -> std::io::Result<()> {
        let scratch = vec![0; 16 << 10].into_boxed_slice();
        let bufs = RxBufs { payload: None, scratch_limit: scratch.len(), scratch };
        self.ring.recv(self.socket, bufs, Token(0));
        let mut events = Vec::new();
        loop {
            self.ring.wait(None, &mut events)?;
            for event in events.drain(..) {
                match event {
                    Event::Received { bufs, result: Ok(n), .. } if n > 0 => {
                        self.asked += n;
                        self.ring.recv(self.socket, bufs, Token(0));
                    }
                    Event::Sent { chain, result: Ok(()), .. } => self.idle = Some(chain),
                    _ => return Ok(()),
                }
            }
            self.answer();
        }
    }
}

fn run(config: &Config, poll_first: bool, depth: usize) -> std::io::Result<()> {
    let requests = if depth == 1 { 60_000 } else { 400_000 };
    let mut ring = Ring::new(config)?;
    ring.set_poll_first(poll_first);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let (ours, _) = listener.accept()?;
    ours.set_nodelay(true)?;
    let socket = ring.add_socket(ours.into());
    let region = Region::new(2 << 20)?;
    region.write(0, &vec![1; 2 << 20]);
    let region = RegionRef::new(Arc::new(region));
    let other = thread::spawn(move || client(stream, depth, requests));
    let mut server = Server { ring, socket, region, asked: 0, idle: Some(TxChain::new()) };
    let (start, cpu) = (Instant::now(), cpu_time());
    server.serve()?;
    let (time, cpu) = (start.elapsed(), cpu_time() - cpu);
    let counters = server.ring.counters();
    println!(
        "depth {depth:3} {:8} poll first {poll_first:5} busy {:5?}: {:8.0} requests/s, {:5.2} us of \
         processor each, {:.2} waits each",
        format!("{:?}", server.ring.driver()),
        config.busy_poll,
        requests as f64 / time.as_secs_f64(),
        cpu.as_secs_f64() * 1e6 / requests as f64,
        counters.waits as f64 / requests as f64,
    );
    let _ = other.join(); // its error is the end of the connection
    Ok(())
}

fn main() -> std::io::Result<()> {
    for depth in [1, 8, 32] {
        for _ in 0..ROUNDS {
            for (driver, poll_first, busy) in [
                (DriverChoice::IoUring, false, 0),
                (DriverChoice::IoUring, true, 0),
                (DriverChoice::IoUring, true, 50),
                (DriverChoice::Epoll, false, 0),
                (DriverChoice::Epoll, false, 50),
            ] {
                let busy_poll = BusyPoll::For(Duration::from_micros(busy));
                let config = Config { driver, busy_poll, ..Config::default() };
                run(&config, poll_first, depth)?;
            }
        }
    }
    Ok(())
}
