//! The network of a simulated world.

use std::collections::{HashMap, VecDeque};
use std::io::Read;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lunet_os::simulated::{self, Key};

use super::Teller;
use crate::Token;

/// So many bytes may be under way or unread in one direction.
const WINDOW: usize = 256 << 10;

/// One of the two ends of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct End {
    stream: u64,
    /// The server's; else the client's.
    server: bool,
}

/// One direction of a stream.
#[derive(Debug, Default)]
struct Pipe {
    arrived: VecDeque<u8>,
    /// Sent, and not arrived.
    under_way: usize,
    /// All bytes that have arrived so far.
    delivered: u64,
    /// When the last of them arrives: nothing overtakes it.
    last: Duration,
    /// No more will be sent; this has arrived.
    ended: bool,
}

#[derive(Debug)]
enum Listens {
    /// An event loop.
    Loop(Teller),
    /// A thread that waits for the key.
    Thread(Key),
    /// Not yet known: the connection is on its way to its loop.
    Nobody,
}

#[derive(Debug)]
struct Stream {
    to_server: Pipe,
    to_client: Pipe,
    server: Listens,
    client: Listens,
    reset: bool,
    peer: SocketAddr,
}

impl Stream {
    fn pipe_to(&mut self, server: bool) -> &mut Pipe {
        if server { &mut self.to_server } else { &mut self.to_client }
    }
}

/// A stream between its accept and its loop.
#[derive(Debug)]
struct Named {
    end: End,
    /// The other end of its descriptor: it ends if that is closed.
    other: UnixStream,
}

#[derive(Debug, Default)]
struct State {
    listeners: HashMap<SocketAddr, (Token, Teller)>,
    streams: HashMap<u64, Stream>,
    by_descriptor: HashMap<i32, Named>,
    count: u64,
}

/// The network of a world.
#[derive(Debug, Default)]
pub struct Net(Mutex<State>);

/// What there is to be received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Bytes, at least one.
    Bytes(Vec<u8>),
    /// Nothing yet.
    Nothing,
    /// The other end sends no more.
    Ended,
    /// The connection was reset.
    Reset,
}

/// How long a segment takes: mostly the time of a local network, now and then far longer.
fn latency() -> Duration {
    let micros = match simulated::below(200) {
        0 => 1_000 + simulated::below(60_000),
        _ => 5 + simulated::below(150),
    };
    Duration::from_micros(micros)
}

fn now() -> Duration {
    simulated::elapsed().unwrap_or_default()
}

impl Net {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn listen(&self, address: SocketAddr, token: Token, teller: Teller) {
        self.lock().listeners.insert(address, (token, teller));
    }

    pub(super) fn stop_listening(&self, address: SocketAddr) {
        self.lock().listeners.remove(&address);
    }

    /// Connects to a listener: `None` if there is none.
    pub fn connect(&self, to: SocketAddr, from: SocketAddr) -> Option<Peer> {
        self.connect_with(to, from, simulated::key()?)
    }

    /// Connects to a listener: `None` if there is none. Who waits for the key hears of this connection, and of others
    /// with the same key.
    pub fn connect_with(&self, to: SocketAddr, from: SocketAddr, key: Key) -> Option<Peer> {
        let mut state = self.lock();
        let (token, teller) = state.listeners.get(&to)?;
        let (token, teller) = (*token, teller.clone());
        state.count += 1;
        let stream = state.count;
        let new = Stream {
            to_server: Pipe::default(),
            to_client: Pipe::default(),
            server: Listens::Nobody,
            client: Listens::Thread(key),
            reset: false,
            peer: from,
        };
        state.streams.insert(stream, new);
        drop(state);
        let end = End { stream, server: true };
        simulated::at(latency(), move || teller.tell(|news| news.accepted.push((token, end))));
        Some(Peer { end: End { stream, server: false }, key })
    }

    /// A descriptor stands for the server's end of a stream.
    pub(super) fn name(&self, descriptor: &UnixStream, other: UnixStream, end: End) {
        let descriptor = descriptor.as_raw_fd();
        let old = self.lock().by_descriptor.insert(descriptor, Named { end, other });
        if let Some(old) = old {
            // It was closed without a word.
            self.reset(old.end);
        }
        Self::look_soon(descriptor, end, Duration::from_millis(1));
    }

    /// Looks after some time whether a descriptor was closed before a loop has taken it.
    fn look_soon(descriptor: i32, end: End, after: Duration) {
        simulated::at(after, move || {
            let net = simulated::part::<Self>();
            let mut state = net.lock();
            let named = state.by_descriptor.get(&descriptor).filter(|named| named.end == end);
            let Some(named) = named else { return };
            if matches!((&named.other).read(&mut [0]), Ok(0)) {
                state.by_descriptor.remove(&descriptor);
                drop(state);
                net.reset(end);
            } else {
                drop(state);
                Self::look_soon(descriptor, end, after * 2);
            }
        });
    }

    pub(super) fn peer(&self, end: End) -> Option<SocketAddr> {
        self.lock().streams.get(&end.stream).map(|stream| stream.peer)
    }

    /// The stream that a descriptor stands for goes on at this loop.
    pub(super) fn adopt(&self, descriptor: i32, teller: &Teller) -> Option<End> {
        let mut state = self.lock();
        let Named { end, .. } = state.by_descriptor.remove(&descriptor)?;
        state.streams.get_mut(&end.stream)?.server = Listens::Loop(teller.clone());
        drop(state);
        teller.tell(|news| news.streams.push(end));
        Some(end)
    }

    /// Sends what there is room for: how many bytes. `None` if the connection is gone.
    pub(super) fn send(&self, from: End, bytes: &[u8]) -> Option<usize> {
        let mut state = self.lock();
        let stream = state.streams.get_mut(&from.stream)?;
        if stream.reset {
            return None;
        }
        let pipe = stream.pipe_to(!from.server);
        if pipe.ended {
            return None;
        }
        let room = WINDOW.saturating_sub(pipe.arrived.len() + pipe.under_way);
        let taken = room.min(bytes.len());
        if taken == 0 {
            return Some(0);
        }
        pipe.under_way += taken;
        drop(state);
        // In one segment or in a few.
        let mut rest = &bytes[..taken];
        while !rest.is_empty() {
            let len = match simulated::below(4) {
                0 => 1 + simulated::below(rest.len() as u64) as usize,
                _ => rest.len(),
            };
            let (segment, more) = rest.split_at(len);
            self.carry(from, segment.to_vec(), false);
            rest = more;
        }
        Some(taken)
    }

    /// A segment arrives after some time, behind those before it.
    fn carry(&self, from: End, bytes: Vec<u8>, last: bool) {
        let mut state = self.lock();
        let Some(stream) = state.streams.get_mut(&from.stream) else { return };
        let pipe = stream.pipe_to(!from.server);
        let at = (now() + latency()).max(pipe.last + Duration::from_nanos(1));
        pipe.last = at;
        drop(state);
        simulated::at(at.saturating_sub(now()), move || {
            simulated::part::<Self>().arrive(from, &bytes, last);
        });
    }

    fn arrive(&self, from: End, bytes: &[u8], last: bool) {
        let mut state = self.lock();
        let Some(stream) = state.streams.get_mut(&from.stream) else { return };
        let pipe = stream.pipe_to(!from.server);
        pipe.under_way = pipe.under_way.saturating_sub(bytes.len());
        pipe.arrived.extend(bytes);
        pipe.delivered += bytes.len() as u64;
        pipe.ended |= last;
        drop(state);
        self.tell(End { stream: from.stream, server: !from.server });
    }

    /// Tells whoever has this end that something has changed.
    fn tell(&self, end: End) {
        let state = self.lock();
        let Some(stream) = state.streams.get(&end.stream) else { return };
        match if end.server { &stream.server } else { &stream.client } {
            Listens::Nobody => {}
            Listens::Thread(key) => {
                let key = *key;
                drop(state);
                simulated::wake(key, true);
            }
            Listens::Loop(teller) => {
                let teller = teller.clone();
                drop(state);
                teller.tell(|news| news.streams.push(end));
            }
        }
    }

    /// Takes at most `most` bytes of what has arrived.
    pub(super) fn receive(&self, end: End, most: usize) -> Received {
        let mut state = self.lock();
        let Some(stream) = state.streams.get_mut(&end.stream) else { return Received::Reset };
        if stream.reset {
            return Received::Reset;
        }
        let pipe = stream.pipe_to(end.server);
        let len = pipe.arrived.len().min(most);
        if len == 0 {
            return if pipe.ended { Received::Ended } else { Received::Nothing };
        }
        let was_full = pipe.arrived.len() + pipe.under_way >= WINDOW;
        let mut bytes = vec![0; len];
        // Slice by slice: byte by byte takes a tenth of the time of a world.
        let read = pipe.arrived.read_exact(&mut bytes);
        debug_assert!(read.is_ok(), "there are so many");
        drop(state);
        if was_full {
            self.tell(End { stream: end.stream, server: !end.server });
        }
        Received::Bytes(bytes)
    }

    /// Bytes that the other end's system has taken in.
    pub(super) fn delivered(&self, end: End) -> Option<u64> {
        Some(self.lock().streams.get_mut(&end.stream)?.pipe_to(!end.server).delivered)
    }

    /// This end is closed: what was sent still arrives.
    pub(super) fn close(&self, end: End) {
        self.carry(end, Vec::new(), true);
        let mut state = self.lock();
        if let Some(stream) = state.streams.get_mut(&end.stream) {
            // What comes from now on is answered by a reset.
            stream.pipe_to(end.server).ended = true;
        }
    }

    /// The connection breaks for both ends at once.
    pub(super) fn reset(&self, end: End) {
        if let Some(stream) = self.lock().streams.get_mut(&end.stream) {
            stream.reset = true;
        }
        self.tell(end);
        self.tell(End { stream: end.stream, server: !end.server });
    }

    /// The server's process has ended: its listeners are gone, and every connection to them breaks.
    pub fn process_ended(&self) {
        let mut state = self.lock();
        state.listeners.clear();
        let mut ends: Vec<u64> = state.streams.keys().copied().collect();
        drop(state);
        ends.sort_unstable();
        for stream in ends {
            self.reset(End { stream, server: true });
        }
        let mut state = self.lock();
        state.by_descriptor.clear();
        for stream in state.streams.values_mut() {
            stream.server = Listens::Nobody;
        }
    }
}

/// A client's end of a stream.
#[derive(Debug)]
pub struct Peer {
    end: End,
    key: Key,
}

impl Peer {
    /// Sends what there is room for: how many bytes. `None` if the connection is gone.
    pub fn send(&self, bytes: &[u8]) -> Option<usize> {
        simulated::part::<Net>().send(self.end, bytes)
    }

    /// Takes at most `most` bytes of what has arrived.
    pub fn receive(&self, most: usize) -> Received {
        simulated::part::<Net>().receive(self.end, most)
    }

    /// Waits until something has changed, or the time is over.
    pub fn wait(&self, limit: Duration) {
        simulated::park(Some(self.key), Some(limit));
    }

    /// Breaks the connection.
    pub fn reset(&self) {
        simulated::part::<Net>().reset(self.end);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if simulated::is_here() {
            simulated::part::<Net>().close(self.end);
        }
    }
}
