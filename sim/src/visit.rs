//! A session of an administrator, who looks at LUNs from the outside, one command at a time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lunet_iscsi::initiator::{Command, Completion, Connection, Data, Event, Options, Outcome};
use lunet_iscsi::pdu::TaskAttribute;

use crate::model::{Content, SECTOR};
use crate::site::{Site, TARGET, now};
use crate::wire::{Initiator, Wire};

/// Commands that may end in unit attentions before one does not.
const MOST: usize = 16;

/// A session.
pub struct Visit {
    wire: Wire,
    initiator: Initiator,
    site: Site,
    tokens: u64,
    patience: Duration,
}

/// What a command has ended with.
type Ended = (Completion, Vec<u8>);

impl Visit {
    /// Logs in to the hosts' target: `None` if that cannot be done now.
    pub fn begin(number: u8, site: &Site, patience: Duration) -> Option<Self> {
        let address = site.known().address?;
        let mut options = Options::new(&format!("iqn.2026-11.visitor:{number}"), Some(TARGET));
        options.isid = [0x80, 0, 0, 0, 1, number];
        let from = SocketAddr::from(([10, 0, 1, number + 1], 40_000));
        let wire = Wire::connect((address, from), None, &mut options)?;
        let initiator = Connection::new(options);
        let mut visit = Self { wire, initiator, site: site.clone(), tokens: 0, patience };
        visit.wire.start(&mut visit.initiator);
        visit.until(|visit, _| visit.initiator.is_ready().then_some(()))?;
        Some(visit)
    }

    /// Goes on until something is found in what happens: `None` if the connection ends before.
    fn until<T>(
        &mut self,
        mut find: impl FnMut(&Self, &mut Vec<crate::wire::HostEvent>) -> Option<T>,
    ) -> Option<T> {
        let begun = now();
        loop {
            let mut events = Vec::new();
            self.wire.tick(&mut self.initiator, &mut events);
            let over = self.wire.receive(&mut self.initiator, &mut events);
            if let Some(found) = find(self, &mut events) {
                return Some(found);
            }
            let failed = |event: &_| matches!(event, Event::Failed(_) | Event::LoggedOut { .. });
            if over || events.iter().any(failed) || self.site.known().over {
                return None;
            }
            if now() - begun > self.patience {
                self.site.wrong("visitor", "a login or a command is not answered");
                return None;
            }
            self.wire.flush();
            self.wire.wait(Duration::from_millis(20));
        }
    }

    /// Sends a command, and waits for its end: `None` if the connection ends before.
    fn command(&mut self, lun: u16, cdb: &[u8], data: Data<Vec<u8>, Arc<[u8]>>) -> Option<Ended> {
        self.tokens += 1;
        let token = self.tokens;
        let command = Command {
            token,
            lun: u64::from(lun) << 48,
            cdb,
            attribute: TaskAttribute::Simple,
            immediate: false,
            data,
        };
        self.wire.submit(&mut self.initiator, command).ok()?;
        self.until(|_, events| {
            let at = events
                .iter()
                .position(|event| matches!(event, Event::Finished(done) if done.token == token))?;
            let Event::Finished(mut finished) = events.swap_remove(at) else { return None };
            let bytes = match std::mem::replace(&mut finished.data, Data::None) {
                Data::Read(bytes) => bytes,
                _ => Vec::new(),
            };
            match finished.outcome {
                Outcome::Completed(done) => Some(Some((done, bytes))),
                _ => Some(None),
            }
        })?
    }

    /// Sends a command until it does not end in a unit attention, as it may at any time while another administrator
    /// changes something: its end, and the additional sense codes of those before.
    fn insist(
        &mut self,
        lun: u16,
        cdb: &[u8],
        data: impl Fn() -> Data<Vec<u8>, Arc<[u8]>>,
    ) -> Option<(Ended, Vec<[u8; 2]>)> {
        let mut found = Vec::new();
        loop {
            let ended = self.command(lun, cdb, data())?;
            match attention(&ended.0) {
                Some(code) if found.len() < MOST => found.push(code),
                _ => return Some((ended, found)),
            }
        }
    }

    /// What unit attentions there are: their additional sense codes.
    pub fn attentions(&mut self, lun: u16) -> Option<Vec<[u8; 2]>> {
        self.insist(lun, &[0; 6], || Data::None).map(|(_, found)| found)
    }

    /// REPORT LUNS (SPC-5 6.33).
    pub fn luns(&mut self) -> Option<Vec<u16>> {
        let mut cdb = [0; 12];
        (cdb[0], cdb[8]) = (0xa0, 4);
        let (done, bytes) = self.command(0, &cdb, Data::Read(vec![0; 1024]))?;
        let len = bytes.get(..4)?.iter().fold(0, |n, byte| n << 8 | usize::from(*byte));
        let luns = bytes.get(8..)?.chunks_exact(8).take(len / 8);
        // Flat addressing from 256 on (SAM-5 4.7): none is that large.
        done.is_good().then(|| luns.map(|lun| u16::from_be_bytes([lun[0], lun[1]])).collect())
    }

    /// What the first sector of a LUN contains, or the code of the sense data.
    pub fn first(&mut self, lun: u16) -> Option<Result<Option<Content>, [u8; 2]>> {
        let cdb = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        let ((done, bytes), _) = self.insist(lun, &cdb, || Data::Read(vec![0xbb; SECTOR]))?;
        match done.is_good() {
            true => Some(Ok(Content::of(&bytes))),
            false => Some(Err(codes(&done))),
        }
    }

    /// Writes the first sector of a LUN, and makes it stable: whether that is GOOD.
    pub fn write(&mut self, lun: u16, content: Content) -> Option<bool> {
        let mut bytes = vec![0; SECTOR];
        content.fill(&mut bytes);
        let cdb = [0x2a, 8, 0, 0, 0, 0, 0, 0, 1, 0];
        let bytes: Arc<[u8]> = bytes.into();
        let ((done, _), _) = self.insist(lun, &cdb, || Data::Write(bytes.clone()))?;
        Some(done.is_good())
    }
}

/// Additional sense code and its qualifier.
fn codes(done: &Completion) -> [u8; 2] {
    let code = |at| done.sense.get(at).copied().unwrap_or_default();
    [code(12), code(13)]
}

/// The code of a unit attention.
fn attention(done: &Completion) -> Option<[u8; 2]> {
    let key = done.sense.get(2).map(|key| key & 0xf);
    (done.status == 2 && key == Some(6)).then(|| codes(done))
}
