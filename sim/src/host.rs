//! An iSCSI host: logs in, reads, writes and flushes at random, and believes nothing.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lunet_iscsi::initiator::{Command, DigestOffer, Event, Finished, Outcome, SubmitError};
use lunet_iscsi::pdu::{TaskAttribute, TmfFunction};
use lunet_os::{simulated, thread};

use crate::commands::{self, Copying, Ended, Order, Sent};
use crate::model::Value;
use crate::rdma::Rdma;
use crate::site::{Site, now};
use crate::wire::{self, HostEvent, Initiator, Wire};

/// A host whose turn comes so late was stalled: it waits for a tenth of a second at the most.
const SILENCE: Duration = Duration::from_secs(1);

/// What a host does.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its number, from 0.
    pub number: u8,
    /// Operations before it is done.
    pub operations: u64,
    /// Commands under way at a time.
    pub depth: usize,
    /// The volumes that it uses, which are LUNs too.
    pub volumes: Vec<usize>,
    /// How often in a thousand it breaks its connection.
    pub breaks: u64,
    /// How often in a thousand it aborts a command, or resets a LUN.
    pub aborts: u64,
    /// No command is under way for longer.
    pub patience: Duration,
    /// Those that do not concern the first volume are not under way for longer than this, if that is known.
    pub sound: Option<Duration>,
    /// What the world has of RDMA.
    pub rdma: Option<Rdma>,
    /// What everybody knows.
    pub site: Site,
}

struct Session<'a> {
    host: &'a Host,
    name: String,
    wire: Wire,
    initiator: Initiator,
    sent: BTreeMap<u64, (Sent, Duration, lunet_iscsi::initiator::Tag)>,
    /// Task management functions that are not answered.
    managed: Vec<(lunet_iscsi::initiator::Tag, Duration)>,
    tokens: u64,
    copying: Copying,
    /// When it was stalled last.
    awake: Duration,
    over: bool,
}

impl Host {
    /// Its life.
    pub fn run(self) {
        let name = format!("host {}", self.number);
        let mut left = self.operations;
        // Writes of connections that have ended: they may take effect until the host is back.
        let mut lost: Vec<(usize, Value)> = Vec::new();
        while left > 0 && !self.site.known().over {
            thread::sleep(Duration::from_micros(100 + simulated::below(20_000)));
            let address = SocketAddr::from(([10, 0, 0, self.number + 1], 40_000));
            let isid = [0x80, 0, 0, 0, 0, self.number];
            let mut options = wire::options(&format!("iqn.2026-11.host:{}", self.number), isid);
            options.immediate_data = simulated::below(3) != 0;
            let digest = || match simulated::below(4) {
                0 => DigestOffer::Crc32c,
                _ => DigestOffer::None,
            };
            (options.header_digest, options.data_digest) = (digest(), digest());
            let from = (name.as_str(), address);
            let Some(wire) = Wire::dial(&self.site, from, self.rdma.as_ref(), &mut options) else {
                continue;
            };
            let session = Session {
                host: &self,
                name: name.clone(),
                wire,
                initiator: Initiator::new(options),
                sent: BTreeMap::new(),
                managed: Vec::new(),
                tokens: 0,
                copying: Copying::default(),
                awake: now(),
                over: false,
            };
            session.run(&mut left, &mut lost);
        }
        self.site.tell(&name, "is done");
        self.site.known().busy -= 1;
    }
}

impl Session<'_> {
    fn run(mut self, left: &mut u64, lost: &mut Vec<(usize, Value)>) {
        self.wire.start(&mut self.initiator);
        let mut ending = false;
        loop {
            self.receive(left, lost);
            if self.over {
                break;
            }
            if self.initiator.is_ready() && !ending {
                self.work(left);
                if *left == 0 && self.sent.is_empty() {
                    ending = self.wire.logout(&mut self.initiator).is_ok();
                }
            }
            if simulated::below(1000) < self.host.breaks {
                self.host.site.tell(&self.name, "breaks its connection");
                self.wire.reset();
            }
            self.wire.flush();
            if let Some(what) = self.unanswered() {
                self.host.site.wrong(&self.name, &what);
                break;
            }
            if self.host.site.known().over {
                break;
            }
            let before = now();
            self.wire.wait(Duration::from_micros(200 + simulated::below(100_000)));
            if now() - before > SILENCE {
                // It was the silent one: what waited for it has its time from now on.
                self.awake = now();
            }
            self.tick();
        }
        lost.extend(self.sent.values().filter_map(|(sent, ..)| sent.writes()));
    }

    /// What has waited for an answer too long.
    fn unanswered(&self) -> Option<String> {
        let waited = |since: &Duration| now() - self.awake.max(*since);
        let late = |since: &Duration| waited(since) > self.host.patience;
        // What does not concern the disturbed volume is not to wait for it, unless it is a copy.
        let copies = |sent: &Sent| {
            sent.writes().is_some_and(|(_, value)| self.host.site.known().is_copy(value))
        };
        let bound = |sent: &Sent| match self.host.sound {
            Some(bound) if sent.volume() != 0 && !copies(sent) => bound,
            _ => self.host.patience,
        };
        let sent = self.sent.values().find(|(sent, since, _)| waited(since) > bound(sent));
        let managed = self.managed.iter().find(|(_, since)| late(since));
        let function = managed.map(|(_, since)| format!("a function of {since:?} is not answered"));
        sent.map(|(sent, since, _)| format!("{sent} of {since:?} is not answered")).or(function)
    }

    fn tick(&mut self) {
        let mut events = Vec::new();
        self.wire.tick(&mut self.initiator, &mut events);
        for event in events {
            if let Event::Failed(error) = event {
                self.host.site.tell(&self.name, &format!("gives its connection up: {error}"));
                self.over = true;
            }
        }
    }

    fn receive(&mut self, left: &mut u64, lost: &mut Vec<(usize, Value)>) {
        let mut events = Vec::new();
        self.over |= self.wire.receive(&mut self.initiator, &mut events);
        for event in events {
            self.happened(event, left, lost);
        }
    }

    fn happened(&mut self, event: HostEvent, left: &mut u64, lost: &mut Vec<(usize, Value)>) {
        let site = &self.host.site;
        match event {
            Event::LoggedIn(_) => {
                site.tell(&self.name, "is logged in");
                // Its old session is gone, with all that it wanted.
                for (volume, value) in lost.drain(..) {
                    let mut known = site.known();
                    known.end_copy(value);
                    known.models[volume].over(value, now());
                }
            }
            Event::Finished(mut finished) => {
                self.wire.finished(&mut finished);
                *left = left.saturating_sub(1);
                self.finished(finished);
            }
            Event::Managed { tag, .. } => self.managed.retain(|(of, _)| *of != tag),
            Event::LoggedOut { .. } => self.over = true,
            Event::Failed(error) => {
                site.tell(&self.name, &format!("its connection failed: {error}"));
                self.over = true;
            }
            // More immediate commands at a time than the target takes (RFC 7143 11.17.1).
            Event::Rejected { reason: 6, .. } => {}
            Event::Rejected { reason, .. } => {
                site.wrong(&self.name, &format!("a PDU was rejected: {reason:#x}"));
            }
            _ => {}
        }
    }

    fn finished(&mut self, finished: Finished<Vec<u8>, Arc<[u8]>>) {
        if finished.outcome == Outcome::Lost {
            // It stays among those that may take effect later.
            return;
        }
        let Some((sent, begun, _)) = self.sent.remove(&finished.token) else { return };
        if begun <= self.host.site.known().last_kill {
            // Its answer had come before the server was killed, and says nothing of what is there now.
            return;
        }
        self.host.site.known().operations += 1;
        let ending = commands::ending(&finished.outcome);
        self.host.site.tell(&self.name, &format!("{sent} of {begun:?} ends: {ending}"));
        let answer = Ended::of(&finished.outcome, &finished.data);
        let right = sent.answered(&mut self.host.site.known(), &mut self.copying, answer, begun);
        if let Err(wrong) = right {
            self.host.site.wrong(&self.name, &wrong);
        }
    }

    /// Sends commands, and now and then something that ends them.
    fn work(&mut self, left: &mut u64) {
        if simulated::below(1000) < self.host.aborts {
            self.disturb();
        }
        let wanted = (*left as usize).min(self.host.depth);
        while self.sent.len() < wanted && simulated::below(4) != 0 {
            let drawn =
                commands::draw(&mut self.host.site.known(), &self.host.volumes, &mut self.copying);
            let Some(order) = drawn else { continue };
            let sent = self.submit(order);
            if sent.is_err() {
                return;
            }
        }
    }

    fn disturb(&mut self) {
        let Some((sent, _, tag)) = self.sent.values().next().cloned() else { return };
        let volume = sent.volume();
        let (function, of) = match simulated::below(3) {
            0 => (TmfFunction::LogicalUnitReset, None),
            _ => (TmfFunction::AbortTask, Some(tag)),
        };
        self.host.site.tell(&self.name, &format!("{function:?} at {sent}"));
        let asked = (function, (volume as u64) << 48, of);
        let managed = self.wire.manage(&mut self.initiator, asked);
        self.managed.extend(managed.map(|tag| (tag, now())));
    }

    fn submit(&mut self, order: Order) -> Result<(), SubmitError> {
        let Order { cdb, data, sent } = order;
        let words = commands::words(&cdb);
        self.tokens += 1;
        let attribute = match simulated::below(10) {
            0 => TaskAttribute::Ordered,
            1 => TaskAttribute::HeadOfQueue,
            2 => TaskAttribute::Untagged,
            _ => TaskAttribute::Simple,
        };
        let command = Command {
            token: self.tokens,
            lun: (sent.volume() as u64) << 48,
            cdb: &cdb,
            attribute,
            immediate: simulated::below(30) == 0,
            data,
        };
        let submitted = self.wire.submit(&mut self.initiator, command);
        let tag = submitted.inspect_err(|_| sent.undone(&mut self.host.site.known()))?;
        self.host.site.tell(&self.name, &format!("{words}: {sent}"));
        self.sent.insert(self.tokens, (sent, now(), tag));
        Ok(())
    }
}
