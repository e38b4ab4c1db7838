//! The client that changes persistent reservations, which are to survive a power loss (APTPL).

use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail, ensure};
use lunet_block::Random;
use lunet_e2e::wire::scsi::{GOOD, sense_key};
use lunet_e2e::wire::{Answer, Login, Session};

use super::state::TARGET;
use super::{Either, unless_dead};

/// The LUN whose reservations are changed.
const LUN: u8 = 1;

/// PERSISTENT RESERVE OUT service actions (SPC-5 6.17).
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const REGISTER_AND_IGNORE: u8 = 6;

/// The types of a reservation (SPC-5 6.16.3.4).
const TYPES: [u8; 6] = [1, 3, 5, 6, 7, 8];

/// The reservations of the LUN.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Reserved {
    /// Our key; 0 without registration.
    key: u64,
    /// The type of our reservation; 0 without one.
    kind: u8,
}

/// The client.
pub struct Reservations {
    random: Random,
    state: Either<Reserved>,
    acknowledged: u64,
    cut: u64,
    came: u64,
}

fn open(portal: &str) -> Result<Session> {
    let initiator = "iqn.2026-11.local.lunet:reserver";
    let mut session = Session::open(&Login { initiator, ..Login::new(portal, TARGET) })?;
    session.settle(LUN)?;
    Ok(session)
}

/// Sends a command, again if it was answered with a unit attention only.
fn execute(session: &mut Session, cdb: &[u8], expected: usize, data: &[u8]) -> Result<Answer> {
    for _ in 0..8 {
        let answer = session.execute(LUN, cdb, expected, data)?;
        if answer.status == GOOD {
            return Ok(answer);
        }
        ensure!(sense_key(&answer) == Some(6), "{cdb:02x?}: {answer:02x?}");
    }
    bail!("unit attentions without end")
}

/// PERSISTENT RESERVE IN: the data behind the length field.
fn read(session: &mut Session, action: u8) -> Result<Vec<u8>> {
    let answer = execute(session, &[0x5e, action, 0, 0, 0, 0, 0, 1, 0, 0], 256, &[])?;
    let length = answer.data.get(4..8).context("short")?;
    let length = length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    Ok(answer.data.get(8..8 + length).context("short")?.to_vec())
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

impl Reservations {
    pub fn new(random: Random) -> Self {
        let state = Either::new(Reserved::default());
        Self { random, state, acknowledged: 0, cut: 0, came: 0 }
    }

    /// Compares what has come up with what may have.
    pub fn settle(&mut self, portal: &str) -> Result<()> {
        let mut session = open(portal)?;
        let (keys, reservation) = (read(&mut session, 0)?, read(&mut session, 1)?);
        ensure!(keys.len() <= 8, "keys of nobody: {keys:02x?}");
        let found = Reserved {
            key: number(&keys),
            kind: reservation.get(13).map_or(0, |scope_and_type| scope_and_type & 0x0f),
        };
        // One that all registrants hold is nobody's.
        let holder = if found.kind >= 7 { 0 } else { found.key };
        ensure!(
            reservation.is_empty() || number(&reservation[..8]) == holder,
            "{reservation:02x?} with {keys:02x?}"
        );
        session.logout()?;
        self.cut += u64::from(self.state.asked.is_some());
        let (known, asked) = (self.state.known, self.state.asked);
        let Some(came) = self.state.settle(&found) else {
            bail!("found {found:?}, acknowledged {known:?}, asked for {asked:?}");
        };
        self.came += u64::from(came);
        Ok(())
    }

    pub fn report(&self) -> String {
        format!(
            "{} reservation commands acknowledged, {} cut short, of which {} had come to pass",
            self.acknowledged, self.cut, self.came
        )
    }

    /// Changes one thing after the other until the server is dead.
    pub fn work(&mut self, portal: &str, dead: &AtomicBool) -> Result<()> {
        let Some(mut session) = unless_dead(open(portal), dead)? else { return Ok(()) };
        loop {
            let before = self.state.known;
            let fresh = self.random.bits() | 1;
            let (action, kind, new, next) = match self.random.below(6) {
                0 if before.key != 0 => (CLEAR, 0, 0, Reserved::default()),
                1 | 2 if before.key != 0 && before.kind == 0 => {
                    let kind = TYPES[self.random.below(TYPES.len() as u64) as usize];
                    (RESERVE, kind, 0, Reserved { kind, ..before })
                }
                3 if before.kind != 0 => (RELEASE, before.kind, 0, Reserved { kind: 0, ..before }),
                _ => (REGISTER_AND_IGNORE, 0, fresh, Reserved { key: fresh, ..before }),
            };
            self.state.ask(next);
            let mut list = [0; 24];
            list[..8].copy_from_slice(&before.key.to_be_bytes());
            list[8..16].copy_from_slice(&new.to_be_bytes());
            // APTPL has a meaning for registrations only.
            list[20] = u8::from(action == REGISTER_AND_IGNORE);
            let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
            let result = execute(&mut session, &cdb, 0, &list);
            if unless_dead(result.with_context(|| format!("{before:?}")), dead)?.is_none() {
                return Ok(());
            }
            self.state.done();
            self.acknowledged += 1;
        }
    }
}
