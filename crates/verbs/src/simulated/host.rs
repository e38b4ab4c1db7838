//! The other end of a connection: a host with a queue pair, and memory that it opens to the server.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use lunet_os::simulated::{self, Key};

use super::pair::{Life, REMOTE_ACCESS, REMOTE_INVALID};
use super::{Fabric, State, cm, latency, later, with};
use crate::Remote;

/// A host's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its request is not answered.
    Connecting,
    /// It stands.
    Established,
    /// It was refused, or has broken.
    Over,
}

/// A message to a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The key that it has taken back.
    pub invalidated: Option<u32>,
}

/// What became of work at the other end.
pub(super) enum Arrival {
    /// It was done; with what an RDMA Read has read.
    Done(Vec<u8>),
    /// It was refused, with this status.
    Refused(u32),
    /// There is no receive.
    NotReady,
    /// Nobody is there.
    Gone,
}

/// Memory that a host has opened.
struct Memory {
    address: u64,
    bytes: Vec<u8>,
    /// The server may write it; else it may read it.
    writable: bool,
    /// The host has taken it back, or a message has.
    closed: bool,
}

pub(super) struct End {
    key: Key,
    pub(super) phase: Phase,
    /// The server's ends.
    pub(super) id: Option<u64>,
    pub(super) pair: Option<u64>,
    /// The private data of the server's answer.
    pub(super) answer: Vec<u8>,
    pub(super) private: Vec<u8>,
    pub(super) peer: SocketAddr,
    /// It says nothing when it goes.
    silent: bool,
    receives: usize,
    receive_len: usize,
    inbox: VecDeque<Message>,
    outbox: VecDeque<Vec<u8>>,
    moving: bool,
    memory: BTreeMap<u32, Memory>,
    /// Keys that are wrong on purpose.
    bogus: Vec<u32>,
}

/// A host's end of a connection.
#[derive(Debug)]
pub struct Link {
    end: u64,
    key: Key,
}

impl State {
    pub(super) fn connect(
        &mut self,
        (to, from): (SocketAddr, SocketAddr),
        private: &[u8],
        (receives, receive_len): (usize, usize),
    ) -> Option<Link> {
        let key = simulated::key()?;
        let listens = |id: &&u64| self.ids[id].listening == Some(to);
        let listener = *self.ids.keys().find(listens)?;
        self.traits(self.ids[&listener].context?)?;
        let end = self.number();
        let new = End {
            key,
            phase: Phase::Connecting,
            id: None,
            pair: None,
            answer: Vec::new(),
            private: private.to_vec(),
            peer: from,
            silent: false,
            receives,
            receive_len,
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            moving: false,
            memory: BTreeMap::new(),
            bogus: Vec::new(),
        };
        self.ends.insert(end, new);
        later(latency(), move |s| s.request(listener, end));
        Some(Link { end, key })
    }

    /// A connection has ended, as its host learns after some time.
    pub(super) fn end_breaks(&mut self, end: u64, delay: Duration) {
        later(delay, move |s| {
            let Some(end) = s.ends.get_mut(&end) else { return };
            end.phase = Phase::Over;
            simulated::wake(end.key, true);
        });
    }

    /// A connection stands, as its host learns now.
    pub(super) fn end_established(&mut self, number: u64) {
        let Some(end) = self.ends.get_mut(&number) else { return };
        if end.phase != Phase::Connecting {
            return;
        }
        end.phase = Phase::Established;
        simulated::wake(end.key, true);
        if let Some(id) = end.id {
            later(latency(), move |s| s.tell(id, cm::ESTABLISHED, 0, Vec::new()));
        }
    }

    /// The host has let go of its end, or breaks it.
    fn end_goes(&mut self, number: u64, silent: bool) {
        let Some(end) = self.ends.get_mut(&number) else { return };
        if end.phase == Phase::Over {
            return;
        }
        end.phase = Phase::Over;
        end.silent = silent;
        simulated::wake(end.key, true);
        if let Some(id) = end.id.filter(|_| !silent) {
            later(latency(), move |s| s.tell(id, cm::DISCONNECTED, 0, Vec::new()));
        }
    }

    /// The end of a host that can be reached.
    fn reach(&mut self, end: u64) -> Option<&mut End> {
        self.ends.get_mut(&end).filter(|end| end.phase != Phase::Over)
    }

    /// A Send of the server.
    pub(super) fn message(
        &mut self,
        end: u64,
        bytes: Vec<u8>,
        invalidates: Option<u32>,
    ) -> Arrival {
        let Some(host) = self.reach(end) else { return Arrival::Gone };
        if host.receives == 0 {
            return Arrival::NotReady;
        }
        host.receives -= 1;
        if bytes.len() > host.receive_len {
            self.wrong("a message is longer than the host's buffer".into());
            return Arrival::Refused(REMOTE_INVALID);
        }
        if let Some(key) = invalidates {
            let memory = host.memory.get_mut(&key).filter(|memory| !memory.closed);
            let Some(memory) = memory else {
                if !host.bogus.contains(&key) {
                    self.wrong("a message takes a key back that is not valid".into());
                }
                return Arrival::Refused(REMOTE_INVALID);
            };
            memory.closed = true;
        }
        host.inbox.push_back(Message { bytes, invalidated: invalidates });
        simulated::wake(host.key, true);
        Arrival::Done(Vec::new())
    }

    /// The place of a range in memory that the host has opened for this.
    fn place(
        &mut self,
        end: u64,
        (key, address): (u32, u64),
        (len, writes): (usize, bool),
    ) -> Result<(&mut Memory, usize), Arrival> {
        let Some(host) = self.ends.get_mut(&end).filter(|end| end.phase != Phase::Over) else {
            return Err(Arrival::Gone);
        };
        let what = match host.memory.get_mut(&key) {
            None if host.bogus.contains(&key) => return Err(Arrival::Refused(REMOTE_ACCESS)),
            None => "the server has used a key that its host has not given",
            Some(memory) if memory.closed => {
                "the server has reached for memory of a finished command"
            }
            Some(memory) if memory.writable != writes => "the server has used memory the wrong way",
            Some(memory) => {
                let at = address.wrapping_sub(memory.address);
                let room = memory.bytes.len() as u64;
                if at <= room && len as u64 <= room - at {
                    let memory = self.ends.get_mut(&end).and_then(|end| end.memory.get_mut(&key));
                    return memory.map(|memory| (memory, at as usize)).ok_or(Arrival::Gone);
                }
                "the server has reached beyond the memory of a command"
            }
        };
        self.wrong(what.into());
        Err(Arrival::Refused(REMOTE_ACCESS))
    }

    /// An RDMA Write of the server.
    pub(super) fn remote_write(
        &mut self,
        end: u64,
        key: u32,
        address: u64,
        bytes: &[u8],
    ) -> Arrival {
        match self.place(end, (key, address), (bytes.len(), true)) {
            Ok((memory, at)) => {
                memory.bytes[at..at + bytes.len()].copy_from_slice(bytes);
                Arrival::Done(Vec::new())
            }
            Err(arrival) => arrival,
        }
    }

    /// An RDMA Read of the server.
    pub(super) fn remote_read(&mut self, end: u64, key: u32, address: u64, len: usize) -> Arrival {
        match self.place(end, (key, address), (len, false)) {
            Ok((memory, at)) => Arrival::Done(memory.bytes[at..at + len].to_vec()),
            Err(arrival) => arrival,
        }
    }

    /// The host's next message goes on its way.
    fn pump_end(&mut self, number: u64) {
        let Some(end) = self.reach(number) else { return };
        if end.phase == Phase::Established && !end.moving && !end.outbox.is_empty() {
            end.moving = true;
            later(latency(), move |s| s.arrives(number));
        }
    }

    /// The host's next message arrives at the server.
    fn arrives(&mut self, number: u64) {
        let Some(end) = self.reach(number) else { return };
        let pair =
            end.pair.filter(|pair| self.pairs.get(pair).is_some_and(|p| p.life == Life::Connected));
        let Some(pair) = pair else {
            // Given up after some attempts.
            return self.end_breaks(number, Duration::from_millis(500 + simulated::below(3000)));
        };
        if !self.begin_receive(pair) {
            let again = Duration::from_micros(640 + simulated::below(200));
            return later(again, move |s| s.arrives(number));
        }
        later(Duration::from_micros(simulated::below(30)), move |s| s.arrived(number, pair));
    }

    /// The rest of a message has arrived, if it has not before.
    pub(super) fn arrived(&mut self, number: u64, pair: u64) {
        if self.pairs.get(&pair).is_none_or(|pair| pair.arriving.is_none()) {
            return;
        }
        let Some(end) = self.reach(number) else {
            // The rest of the message never comes.
            return;
        };
        end.moving = false;
        let Some(bytes) = end.outbox.pop_front() else { return };
        if self.end_receive(pair, &bytes) {
            self.pump_end(number);
        } else {
            self.end_breaks(number, latency());
        }
    }
}

impl Link {
    fn with<T>(&self, look: impl FnOnce(&mut End) -> T) -> Option<T> {
        with(|s| s.ends.get_mut(&self.end).map(look))
    }

    /// How the connection stands.
    pub fn phase(&self) -> Phase {
        self.with(|end| end.phase).unwrap_or(Phase::Over)
    }

    /// The private data of the server's answer.
    pub fn answer(&self) -> Vec<u8> {
        self.with(|end| end.answer.clone()).unwrap_or_default()
    }

    /// Sends a message, behind those before it.
    pub fn send(&self, bytes: Vec<u8>) {
        self.with(|end| end.outbox.push_back(bytes));
        with(|s| s.pump_end(self.end));
    }

    /// The next message that has come.
    pub fn receive(&self) -> Option<Message> {
        self.with(|end| end.inbox.pop_front()).flatten()
    }

    /// More messages can be taken.
    pub fn post(&self, receives: usize) {
        self.with(|end| end.receives += receives);
    }

    /// Opens memory to the server, which may write it, or read it.
    pub fn open(&self, bytes: Vec<u8>, writable: bool) -> Remote {
        with(|s| {
            let key = s.number() as u32;
            let address = 0x7000_0000_0000 + (u64::from(key) << 20) + simulated::below(4096);
            if let Some(end) = s.ends.get_mut(&self.end) {
                end.memory.insert(key, Memory { address, bytes, writable, closed: false });
            }
            Remote { address, key }
        })
    }

    /// A key that is not valid, and that the server will be given.
    pub fn bogus(&self) -> Remote {
        with(|s| {
            let key = s.number() as u32;
            if let Some(end) = s.ends.get_mut(&self.end) {
                end.bogus.push(key);
            }
            Remote { address: simulated::below(u64::MAX), key }
        })
    }

    /// Takes memory back. What it contains now.
    pub fn shut(&self, key: u32) -> Vec<u8> {
        let taken = self.with(|end| {
            let memory = end.memory.get_mut(&key)?;
            memory.closed = true;
            Some(std::mem::take(&mut memory.bytes))
        });
        taken.flatten().unwrap_or_default()
    }

    /// Waits until something has changed, or the time is over.
    pub fn wait(&self, limit: Duration) {
        simulated::park(Some(self.key), Some(limit));
    }

    /// Breaks the connection: as a host does that has failed, or as one that says so.
    pub fn reset(&self, silent: bool) {
        with(|s| s.end_goes(self.end, silent));
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if simulated::is_here() {
            let fabric = simulated::part::<Fabric>();
            let mut state = fabric.lock();
            state.end_goes(self.end, false);
            state.ends.remove(&self.end);
        }
    }
}
