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
    /// No command is under way for longer.
    pub patience: Duration,
    /// What everybody knows.
    pub site: Site,
}

#[derive(Clone, Debug)]
enum Sent {
    Read { volume: usize, lba: u64 },
    Write { volume: usize, value: Value, stable: bool },
    Replace { volume: usize, lba: u64, old: Value, value: Value },
    Flush { volume: usize },
}

impl Sent {
    const fn volume(&self) -> usize {
        match *self {
            Self::Read { volume, .. }
            | Self::Write { volume, .. }
            | Self::Replace { volume, .. }
            | Self::Flush { volume } => volume,
        }
    }
}

struct Session<'a> {
    host: &'a Host,
    name: String,
    peer: Peer,
    initiator: Initiator,
    sent: BTreeMap<u64, (Sent, Duration, lunet_iscsi::initiator::Tag)>,
    /// Task management functions that are not answered.
    managed: Vec<(lunet_iscsi::initiator::Tag, Duration)>,
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
                managed: Vec::new(),
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
            if let Some(what) = self.unanswered() {
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
            Sent::Write { volume, value, .. } | Sent::Replace { volume, value, .. } => {
                Some((*volume, *value))
            }
            Sent::Read { .. } | Sent::Flush { .. } => None,
        }));
    }

    /// What has waited for an answer too long.
    fn unanswered(&self) -> Option<String> {
        let late = |since: &Duration| now() - *since > self.host.patience;
        let sent = self.sent.values().find(|(_, since, _)| late(since));
        let managed = self.managed.iter().find(|(_, since)| late(since));
        let function = managed.map(|(_, since)| format!("a function of {since:?} is not answered"));
        sent.map(|(sent, since, _)| format!("{sent:?} of {since:?} is not answered")).or(function)
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
        let good = matches!(&finished.outcome, Outcome::Completed(done) if done.is_good());
        self.host.site.known().operations += 1;
        let what = match &finished.outcome {
            _ if good => String::new(),
            other => format!(": {other:?}"),
        };
        self.host.site.tell(&self.name, &format!("{sent:?} of {begun:?} has ended{what}"));
        let wrong = {
            let mut known = self.host.site.known();
            let model = &mut known.models[sent.volume()];
            match (sent, finished.data) {
                (Sent::Read { lba, .. }, Data::Read(bytes)) if good => {
                    model.read(lba, &bytes, begun, now()).err().map(|wrong| wrong.to_string())
                }
                (Sent::Read { .. }, _) => None,
                (Sent::Write { value, stable, .. }, _) if good => {
                    model.good(value, stable, now());
                    None
                }
                (Sent::Replace { lba, old, value, .. }, _) if good => {
                    model.good(value, false, now());
                    model.replaced(lba, old, value).err()
                }
                (Sent::Replace { value, .. }, _) if is_miscompare(&finished.outcome) => {
                    model.undone(value);
                    None
                }
                (Sent::Write { value, .. } | Sent::Replace { value, .. }, _) => {
                    model.over(value, now());
                    None
                }
                (Sent::Flush { .. }, _) if good => {
                    model.flushed(begun);
                    None
                }
                (Sent::Flush { .. }, _) => None,
            }
        };
        if let Some(wrong) = wrong {
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
            let volume =
                self.host.volumes[simulated::below(self.host.volumes.len() as u64) as usize];
            let sectors = self.host.site.known().models[volume].sectors();
            // Half of all go to a few blocks, so that hosts meet.
            let lba = simulated::below(if simulated::below(2) == 0 { 16 } else { sectors });
            let most = (sectors - lba).min(if simulated::below(8) == 0 { 64 } else { 8 });
            let count = 1 + simulated::below(most);
            let sent = match simulated::below(20) {
                0..=6 => self.read(volume, lba, count),
                7..=15 => self.write(volume, lba, count),
                16 => self.zero(volume, lba, count),
                17 => self.replace(volume, lba % 4),
                _ => self.flush(volume),
            };
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
        self.host.site.tell(&self.name, &format!("{function:?} of {sent:?}"));
        let managed = self.initiator.manage(function, (volume as u64) << 48, of, &mut self.out);
        self.managed.extend(managed.map(|tag| (tag, now())));
    }

    fn submit(
        &mut self,
        volume: usize,
        cdb: &[u8],
        data: Data<Vec<u8>, Arc<[u8]>>,
        sent: Sent,
    ) -> Result<(), SubmitError> {
        self.tokens += 1;
        let command = Command {
            token: self.tokens,
            lun: (volume as u64) << 48,
            cdb,
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
        self.submit(volume, &cdb(0x28, 0, lba, count), data, Sent::Read { volume, lba })
    }

    fn write(&mut self, volume: usize, lba: u64, count: u64) -> Result<(), SubmitError> {
        let stable = simulated::below(5) == 0;
        let value = self.host.site.known().models[volume].begin(lba, count, now());
        let mut bytes = vec![0; count as usize * SECTOR];
        fill(&mut bytes, lba, value);
        let cdb = cdb(0x2a, if stable { 8 } else { 0 }, lba, count);
        let sent = Sent::Write { volume, value, stable };
        self.change(volume, &cdb, Data::Write(bytes.into()), (sent, value))
    }

    /// Sends something that changes blocks.
    fn change(
        &mut self,
        volume: usize,
        cdb: &[u8],
        data: Data<Vec<u8>, Arc<[u8]>>,
        (sent, value): (Sent, Value),
    ) -> Result<(), SubmitError> {
        let submitted = self.submit(volume, cdb, data, sent);
        if submitted.is_err() {
            // It never left.
            self.host.site.known().models[volume].undone(value);
        }
        submitted
    }

    /// WRITE SAME (16) without data: zeroes, unmapped or not (SBC-4 5.47).
    fn zero(&mut self, volume: usize, lba: u64, count: u64) -> Result<(), SubmitError> {
        let value = self.host.site.known().models[volume].begin_zeroes(lba, count, now());
        let unmap = if simulated::below(2) == 0 { 8 } else { 0 };
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (0x93, 1 | unmap);
        cdb[2..10].copy_from_slice(&lba.to_be_bytes());
        cdb[10..14].copy_from_slice(&(count as u32).to_be_bytes());
        let sent = Sent::Write { volume, value, stable: false };
        self.change(volume, &cdb, Data::None, (sent, value))
    }

    /// COMPARE AND WRITE of one block (SBC-4 5.3), in place of what is there as far as is known.
    fn replace(&mut self, volume: usize, lba: u64) -> Result<(), SubmitError> {
        let (old, value) = {
            let model = &mut self.host.site.known().models[volume];
            let Some(old) = model.present(lba) else { return Ok(()) };
            (old, model.begin(lba, 1, now()))
        };
        let mut bytes = vec![0; 2 * SECTOR];
        fill(&mut bytes[..SECTOR], lba, old);
        fill(&mut bytes[SECTOR..], lba, value);
        let mut cdb = [0; 16];
        cdb[0] = 0x89;
        cdb[2..10].copy_from_slice(&lba.to_be_bytes());
        cdb[13] = 1;
        let sent = Sent::Replace { volume, lba, old, value };
        self.change(volume, &cdb, Data::Write(bytes.into()), (sent, value))
    }

    fn flush(&mut self, volume: usize) -> Result<(), SubmitError> {
        self.submit(volume, &cdb(0x35, 0, 0, 0), Data::None, Sent::Flush { volume })
    }
}

/// CHECK CONDITION with MISCOMPARE (SPC-5 4.4): nothing was written.
fn is_miscompare(outcome: &Outcome) -> bool {
    let Outcome::Completed(done) = outcome else { return false };
    done.status == 2 && done.sense.get(2).is_some_and(|key| key & 0xf == 0xe)
}

fn cdb(op: u8, flags: u8, lba: u64, count: u64) -> [u8; 10] {
    let (lba, count) = ((lba as u32).to_be_bytes(), (count as u16).to_be_bytes());
    [op, flags, lba[0], lba[1], lba[2], lba[3], 0, count[0], count[1], 0]
}
