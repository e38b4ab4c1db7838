//! A gateway for the tests: it writes stamped blocks to the first image of its group while it owns it, and prints what happens,
//! a line each. `group-gateway CONF GROUP NUMBER RANK [STEP]`; with a step it kills itself as that is about to begin in a
//! takeover.
//!
//! It reads orders from standard input: `move N`, `take`, `pause`.

use std::io::{BufRead, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use lunet_gateway::{
    Access, Action, Answer, Attention, Epoch, Gate, GatewayId, Job, Notice, Order, Port, Portals,
    Record, Refusal, Registered, Request,
};
use lunet_group::{Agrees, Config, Drained, Error, Group, Handle, Said, Serving, Storage};
use lunet_rbd::{Ended, ImageName, Lane, Place};
use lunet_ring::Arena;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const BLOCKS: u64 = 32;
const BLOCK: usize = 4096;
/// Blocks are in different objects.
const APART: u64 = 512 << 10;
const DEPTH: u32 = 8;

/// A whole line at once, or nothing: the process may be killed at any time.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // A test that has ended reads nothing.
    drop(out.write_all(format!("{line}\n").as_bytes()));
    drop(out.flush());
}

/// What the writer is told.
enum Told {
    Storage(Option<Box<Storage>>),
    Open(Epoch),
    Shut,
    Drain(Drained),
    Pause,
}

struct Fake {
    writer: Sender<Told>,
    die_at: Option<String>,
    /// A takeover has begun.
    takes: bool,
}

impl Fake {
    fn tell(&self, told: Told) {
        self.writer.send(told).expect("the writer runs");
    }
}

/// The name of an action, as the machine calls it.
fn name_of(action: &Action) -> String {
    let text = format!("{action:?}");
    text.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}

impl Serving for Fake {
    fn storage(&mut self, storage: Option<Storage>) -> Result<(), Said> {
        say(if storage.is_some() { "client" } else { "no client" });
        self.tell(Told::Storage(storage.map(Box::new)));
        Ok(())
    }

    fn reach(&mut self, _epoch: Epoch, _owner: Portals) {}

    fn gate(&mut self, gate: Gate) {
        let epoch = gate.epoch();
        if gate.is_open() {
            say(&format!("open {}", epoch.0));
            self.tell(Told::Open(epoch));
        } else {
            self.tell(Told::Shut);
        }
    }

    fn stop_answering(&mut self, _gate: Gate) {
        say("deposed");
        self.tell(Told::Shut);
    }

    fn abort_connections(&mut self) {}

    fn load(&mut self, _record: &Record) {}

    fn modes(&mut self, _record: &Record) {}

    fn attention(&mut self, _attention: Attention) {}

    fn preempted(&mut self, _lost: &[([u8; 16], Registered)]) {}

    fn access(&mut self, epoch: Epoch, _ports: &[Port], access: &Access) {
        say(&format!("access {} {access:?}", epoch.0));
    }

    fn drain(&mut self, drained: Drained) {
        self.tell(Told::Drain(drained));
    }

    fn execute(&mut self, _request: Request, _body: Vec<u8>) {}

    fn apply(&mut self, _request: Request) {}

    fn abandon(&mut self, _request: Request) {}

    fn answer(&mut self, _id: u64, _answer: Answer) {}

    fn job(&mut self, job: Job, _body: Vec<u8>) {
        say(&format!("job {}", job.0));
    }

    fn refuse(&mut self, order: Order, refusal: Refusal) {
        say(&format!("refused {order:?}: {refusal}"));
    }

    fn notice(&mut self, notice: &Notice) {
        say(&format!("notice {notice}"));
    }

    fn trouble(&mut self, trouble: Option<&Error>) {
        match trouble {
            Some(trouble) => say(&format!("trouble {trouble}")),
            None => say("no trouble"),
        }
    }

    fn about(&mut self, action: &Action) {
        let name = name_of(action);
        if !matches!(action, Action::Notify(..) | Action::Acknowledge(..)) {
            say(&format!("step {name}"));
        }
        self.takes |= name == "Look";
        if self.takes && self.die_at.as_ref() == Some(&name) {
            let me = rustix::process::getpid();
            let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
            thread::park();
        }
    }
}

/// Writes while the gate is open.
struct Writer {
    handle: Handle,
    arena: Arena,
    storage: Option<(Storage, Lane, OwnedFd)>,
    epoch: Option<Epoch>,
    /// Of each seat: epoch, block and number of the write.
    flights: Vec<Option<(u64, u64, u64)>>,
    count: u64,
    paused: bool,
    drained: Option<Drained>,
}

impl Writer {
    fn told(&mut self, told: Told) {
        match told {
            Told::Storage(Some(storage)) => {
                let lane = Lane::new(storage.images[0].clone(), DEPTH).expect("a descriptor");
                let descriptor = lane.descriptor().expect("a descriptor");
                self.storage = Some((*storage, lane, descriptor));
                self.flights = vec![None; DEPTH as usize];
            }
            Told::Storage(None) => self.storage = None,
            Told::Open(epoch) => self.epoch = Some(epoch),
            Told::Shut => self.epoch = None,
            Told::Drain(drained) => self.drained = Some(drained),
            Told::Pause => self.paused = true,
        }
    }

    fn submit(&mut self) {
        let (Some((storage, lane, _)), Some(epoch)) = (&mut self.storage, self.epoch) else {
            return;
        };
        while !self.paused && !lane.is_full() {
            let block = self.count % BLOCKS;
            // A block has one write at a time, as a host's file system has it.
            if self.flights.iter().flatten().any(|flight| flight.1 == block) {
                return;
            }
            let mut buf = self.arena.alloc(BLOCK).expect("memory for the depth");
            let stamp = [epoch.0.to_le_bytes(), self.count.to_le_bytes()].concat();
            buf.chunks_exact_mut(16).for_each(|part| part.copy_from_slice(&stamp));
            let write = lunet_rbd::Request::Write;
            match lane.start(write, block * APART, BLOCK, Some(buf)) {
                Ok(seat) => self.flights[seat as usize] = Some((epoch.0, block, self.count)),
                Err((errno, _)) => {
                    say(&format!("refused write {errno}"));
                    self.handle.io_failed(storage.client, errno);
                    self.epoch = None;
                    return;
                }
            }
            self.count += 1;
        }
    }

    fn ended(&mut self, ended: &mut Vec<Ended>) {
        let Some((storage, lane, _)) = &mut self.storage else { return };
        lane.take(ended);
        for Ended { seat, result, .. } in ended.drain(..) {
            let Some((epoch, block, count)) = self.flights[seat as usize].take() else { continue };
            match result {
                // A write that ends when the gate is closed is answered to nobody, unless the group moves in good order.
                Ok(_) if self.epoch.is_some() || self.drained.is_some() => {
                    say(&format!("ack {epoch} {block} {count}"));
                }
                Ok(_) => say(&format!("late {epoch} {block} {count}")),
                Err(errno) => {
                    say(&format!("failed {epoch} {block} {count}: {errno}"));
                    self.handle.io_failed(storage.client, errno);
                }
            }
        }
    }

    fn run(mut self, orders: &Receiver<Told>) {
        let mut ended = Vec::new();
        loop {
            while let Ok(told) = orders.try_recv() {
                self.told(told);
            }
            self.ended(&mut ended);
            self.submit();
            if self.flights.iter().all(Option::is_none)
                && let Some(drained) = self.drained.take()
            {
                drained.done();
            }
            let pause = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
            let descriptor = self.storage.as_ref().map(|(_, _, descriptor)| descriptor);
            let mut wait: Vec<PollFd<'_>> =
                descriptor.into_iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            // Orders are looked for at the latest then.
            let _ = poll(&mut wait, Some(&pause));
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let [_, conf, group, number, rank, step @ ..] = &words[..] else {
        panic!("group-gateway CONF GROUP NUMBER RANK [STEP]");
    };
    let name = ImageName::parse(group).expect("a name of a group");
    let user = Some("gateway".to_owned());
    let place = Place { conf: Some(conf.into()), user, ..Place::new(name) };
    let me = GatewayId(number.parse().expect("a number"));
    let gateway = lunet_gateway::Config {
        me,
        rank: rank.parse().expect("a rank"),
        portals: Portals::default(),
    };
    let (writer, orders) = channel();
    let (pauses, die_at) = (writer.clone(), step.first().cloned());
    let group = Group::start(
        Config { group: place, gateway, agrees: Agrees::new(|_| Ok(())), shared: None },
        move |handle| {
            let run = move || {
                let writer = Writer {
                    handle,
                    arena: Arena::new(4 << 20).expect("memory"),
                    storage: None,
                    epoch: None,
                    flights: Vec::new(),
                    count: 0,
                    paused: false,
                    drained: None,
                };
                writer.run(&orders);
            };
            thread::Builder::new().spawn(run).expect("a thread");
            Fake { writer, die_at, takes: false }
        },
    );
    let group = group.expect("a thread");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match line.split_once(' ') {
            Some(("move", to)) => {
                let to = GatewayId(to.parse().expect("a number"));
                group.handle().order(Order::MoveTo(to));
            }
            None if line == "take" => group.handle().order(Order::TakeOver),
            None if line == "pause" => pauses.send(Told::Pause).expect("the writer runs"),
            _ => panic!("no order: {line}"),
        }
    }
}
