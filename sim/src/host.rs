//! An iSCSI host: logs in, reads, writes and flushes at random, and believes nothing.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lunet_iscsi::initiator::{
    Command, Connection, Cx, Data, Event, Finished, Options, Outcome, SubmitError,
};
use lunet_iscsi::pdu::{TaskAttribute, TmfFunction};
use lunet_os::{simulated, thread};
use lunet_ring::simulated::{Net, Peer, Received};

use crate::model::{SECTOR, Value, fill};
use crate::site::{Site, now};

/// The target that every host knows.
pub const TARGET: &str = "iqn.2026-11.local.lunet:sim";

/// No command is under way for longer.
const PATIENCE: Duration = Duration::from_secs(120);

type Initiator = Connection<Vec<u8>, Arc<[u8]>>;

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
    /// What everybody knows.
    pub site: Site,
}

#[derive(Clone, Debug)]
enum Sent {
    Read { volume: usize, lba: u64 },
    Write { volume: usize, value: Value, stable: bool },
    Flush { volume: usize },
}

struct Session<'a> {
    host: &'a Host,
    name: String,
    peer: Peer,
    initiator: Initiator,
    sent: BTreeMap<u64, (Sent, Duration, lunet_iscsi::initiator::Tag)>,
    tokens: u64,
    out: Vec<u8>,
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
            let address = self.site.known().address;
            let from = SocketAddr::from(([10, 0, 0, self.number + 1], 40_000));
            let peer = address.and_then(|address| simulated::part::<Net>().connect(address, from));
            let Some(peer) = peer else {
                thread::sleep(Duration::from_millis(20));
                continue;
            };
            self.site.tell(&name, "connects");
            let mut options =
                Options::new(&format!("iqn.2026-11.host:{}", self.number), Some(TARGET));
            options.isid = [0x80, 0, 0, 0, 0, self.number];
            options.max_burst_length = 8192;
            options.first_burst_length = 4096;
            options.initial_r2t = simulated::below(2) == 0;
            options.immediate_data = simulated::below(3) != 0;
            let session = Session {
                host: &self,
                name: name.clone(),
                peer,
                initiator: Initiator::new(options),
                sent: BTreeMap::new(),
                tokens: 0,
                out: Vec::new(),
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
        let mut out = Vec::new();
        self.initiator.start(now(), &mut out);
        self.out = out;
        let mut ending = false;
        loop {
            self.receive(left, lost);
            if self.over {
                break;
            }
            if self.initiator.is_ready() && !ending {
                self.work(left);
                if *left == 0 && self.sent.is_empty() {
                    ending = self
                        .initiator
                        .logout(lunet_iscsi::pdu::LogoutReason::CloseSession, now(), &mut self.out)
                        .is_ok();
                }
            }
            if simulated::below(1000) < self.host.breaks {
                self.host.site.tell(&self.name, "breaks its connection");
                self.peer.reset();
            }
            let n = self.peer.send(&self.out).unwrap_or(self.out.len());
            self.out.drain(..n);
            let slow = self.sent.values().find(|(_, since, _)| now() - *since > PATIENCE);
            if let Some((sent, since, _)) = slow {
                let what = format!("{sent:?} is not answered since {since:?}");
                self.host.site.wrong(&self.name, &what);
                break;
            }
            if self.host.site.known().over {
                break;
            }
            self.peer.wait(Duration::from_micros(200 + simulated::below(100_000)));
            self.tick();
        }
        lost.extend(self.sent.values().filter_map(|(sent, ..)| match sent {
            Sent::Write { volume, value, .. } => Some((*volume, *value)),
            _ => None,
        }));
    }

    fn tick(&mut self) {
        let mut events = Vec::new();
        let mut cx = Cx { now: now(), tx: &mut self.out, events: &mut events };
        self.initiator.handle_timeout(&mut cx);
        for event in events {
            if let Event::Failed(error) = event {
                self.host.site.tell(&self.name, &format!("gives its connection up: {error}"));
                self.over = true;
            }
        }
    }

    fn receive(&mut self, left: &mut u64, lost: &mut Vec<(usize, Value)>) {
        let mut events = Vec::new();
        loop {
            match self.peer.receive(64 << 10) {
                Received::Nothing => break,
                Received::Bytes(bytes) => {
                    let mut cx = Cx { now: now(), tx: &mut self.out, events: &mut events };
                    self.initiator.rx_bytes(&bytes, &mut cx);
                }
                Received::Ended | Received::Reset => {
                    self.initiator.transport_closed(&mut events);
                    self.over = true;
                    break;
                }
            }
        }
        for event in events {
            self.happened(event, left, lost);
        }
    }

    fn happened(
        &mut self,
        event: Event<Vec<u8>, Arc<[u8]>>,
        left: &mut u64,
        lost: &mut Vec<(usize, Value)>,
    ) {
        let site = &self.host.site;
        match event {
            Event::LoggedIn(_) => {
                site.tell(&self.name, "is logged in");
                // Its old session is gone, with all that it wanted.
                for (volume, value) in lost.drain(..) {
                    site.known().models[volume].over(value, now());
                }
            }
            Event::Finished(finished) => {
                *left = left.saturating_sub(1);
                self.finished(finished);
            }
            Event::LoggedOut { .. } => self.over = true,
            Event::Failed(error) => {
                site.tell(&self.name, &format!("its connection failed: {error}"));
                self.over = true;
            }
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
        let good = matches!(&finished.outcome, Outcome::Completed(done) if done.is_good());
        self.host.site.known().operations += 1;
        let what = match &finished.outcome {
            _ if good => String::new(),
            other => format!(": {other:?}"),
        };
        self.host.site.tell(&self.name, &format!("{sent:?} of {begun:?} has ended{what}"));
        let wrong = {
            let mut known = self.host.site.known();
            match (sent, finished.data) {
                (Sent::Write { volume, value, stable }, _) if good => {
                    known.models[volume].good(value, stable, now());
                    None
                }
                (Sent::Write { volume, value, .. }, _) => {
                    known.models[volume].over(value, now());
                    None
                }
                (Sent::Flush { volume }, _) if good => {
                    known.models[volume].flushed(begun);
                    None
                }
                (Sent::Read { volume, lba }, Data::Read(bytes)) if good => {
                    known.models[volume].read(lba, &bytes, begun, now()).err()
                }
                _ => None,
            }
        };
        if let Some(wrong) = wrong {
            self.host.site.wrong(&self.name, &wrong.to_string());
        }
    }

    /// Sends commands, and now and then something that ends them.
    fn work(&mut self, left: &mut u64) {
        if simulated::below(1000) < self.host.aborts {
            self.disturb();
        }
        let wanted = (*left as usize).min(self.host.depth);
        while self.sent.len() < wanted && simulated::below(4) != 0 {
            let volume =
                self.host.volumes[simulated::below(self.host.volumes.len() as u64) as usize];
            let sectors = self.host.site.known().models[volume].sectors();
            let lba = simulated::below(sectors);
            let most = (sectors - lba).min(if simulated::below(8) == 0 { 64 } else { 8 });
            let count = 1 + simulated::below(most);
            let sent = match simulated::below(10) {
                0..=3 => self.read(volume, lba, count),
                4..=8 => self.write(volume, lba, count),
                _ => self.flush(volume),
            };
            if sent.is_err() {
                return;
            }
        }
    }

    fn disturb(&mut self) {
        let Some((sent, _, tag)) = self.sent.values().next().cloned() else { return };
        let volume = match sent {
            Sent::Read { volume, .. } | Sent::Write { volume, .. } | Sent::Flush { volume } => {
                volume
            }
        };
        let (function, of) = match simulated::below(3) {
            0 => (TmfFunction::LogicalUnitReset, None),
            _ => (TmfFunction::AbortTask, Some(tag)),
        };
        self.host.site.tell(&self.name, &format!("{function:?} of {sent:?}"));
        let _ = self.initiator.manage(function, (volume as u64) << 48, of, &mut self.out);
    }

    fn submit(
        &mut self,
        volume: usize,
        cdb: [u8; 10],
        data: Data<Vec<u8>, Arc<[u8]>>,
        sent: Sent,
    ) -> Result<(), SubmitError> {
        self.tokens += 1;
        let command = Command {
            token: self.tokens,
            lun: (volume as u64) << 48,
            cdb: &cdb,
            attribute: TaskAttribute::Simple,
            immediate: false,
            data,
        };
        let tag = self.initiator.submit(command, &mut self.out).map_err(|refused| refused.error)?;
        self.host.site.tell(&self.name, &format!("{sent:?}"));
        self.sent.insert(self.tokens, (sent, now(), tag));
        Ok(())
    }

    fn read(&mut self, volume: usize, lba: u64, count: u64) -> Result<(), SubmitError> {
        let data = Data::Read(vec![0xbb; count as usize * SECTOR]);
        self.submit(volume, cdb(0x28, 0, lba, count), data, Sent::Read { volume, lba })
    }

    fn write(&mut self, volume: usize, lba: u64, count: u64) -> Result<(), SubmitError> {
        let stable = simulated::below(5) == 0;
        let value = self.host.site.known().models[volume].begin(lba, count, now());
        let mut bytes = vec![0; count as usize * SECTOR];
        fill(&mut bytes, lba, value);
        let cdb = cdb(0x2a, if stable { 8 } else { 0 }, lba, count);
        let sent = Sent::Write { volume, value, stable };
        let submitted = self.submit(volume, cdb, Data::Write(bytes.into()), sent);
        if submitted.is_err() {
            self.host.site.known().models[volume].over(value, now());
        }
        submitted
    }

    fn flush(&mut self, volume: usize) -> Result<(), SubmitError> {
        self.submit(volume, cdb(0x35, 0, 0, 0), Data::None, Sent::Flush { volume })
    }
}

fn cdb(op: u8, flags: u8, lba: u64, count: u64) -> [u8; 10] {
    let (lba, count) = ((lba as u32).to_be_bytes(), (count as u16).to_be_bytes());
    [op, flags, lba[0], lba[1], lba[2], lba[3], 0, count[0], count[1], 0]
}
