//! The commands of a host, and what their answers mean to the model.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lunet_iscsi::initiator::{Data, Outcome};
use lunet_os::simulated::below;

use crate::copies::{DESTINATIONS, Extent};
use crate::model::{Content, SECTOR, Value, fill};
use crate::site::{Known, now};

/// A ROD token (SPC-5 5.18.6.5), in bytes.
const TOKEN: usize = 512;

/// A command that was sent.
#[derive(Clone, Debug)]
pub enum Sent {
    /// A read.
    Read {
        /// The volume.
        volume: usize,
        /// The first sector.
        lba: u64,
    },
    /// Something that writes.
    Write {
        /// The volume.
        volume: usize,
        /// Its name in the model.
        value: Value,
        /// It is stable when it is answered.
        stable: bool,
    },
    /// COMPARE AND WRITE of one block.
    Replace {
        /// The volume.
        volume: usize,
        /// The sector.
        lba: u64,
        /// What it is compared with.
        old: Content,
        /// Its name in the model.
        value: Value,
    },
    /// Blocks of which the host says that it needs them no more: they may become zeroes, or stay.
    Hint {
        /// The volume.
        volume: usize,
        /// Its name in the model.
        value: Value,
    },
    /// A flush.
    Flush {
        /// The volume.
        volume: usize,
    },
    /// A flush of all volumes.
    FlushAll,
    /// VERIFY with these contents.
    Verify {
        /// The volume.
        volume: usize,
        /// The first sector.
        lba: u64,
        /// What is sent to be compared.
        contents: Vec<Content>,
    },
    /// Something that changes and tells nothing: PRE-FETCH, an ORWRITE of zeroes.
    Nothing {
        /// The volume.
        volume: usize,
        /// The operation code.
        code: u8,
    },
    /// A question.
    Look {
        /// The volume.
        volume: usize,
        /// What about.
        about: Look,
    },
    /// A token is made for a range.
    Populate {
        /// The range.
        from: Extent,
        /// How long it is.
        sectors: u64,
        /// LIST IDENTIFIER.
        list: u32,
    },
    /// That token is asked for.
    Token {
        /// The range.
        from: Extent,
        /// How long it is.
        sectors: u64,
    },
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// TEST UNIT READY.
    Ready,
    /// INQUIRY: the device identification page.
    Name,
    /// READ CAPACITY (16).
    Capacity,
    /// REPORT LUNS.
    Luns,
    /// GET LBA STATUS from this sector on.
    Mapped(u64),
    /// Something that only has to be answered.
    Other,
}

/// How a command has ended, whatever the protocol is.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// It was carried out.
    pub good: bool,
    /// It has found something other than what it was to compare with, and written nothing.
    pub miscompare: bool,
    /// What was read.
    pub data: Option<&'a [u8]>,
}

impl<'a> Ended<'a> {
    /// How a command of an initiator has ended.
    pub fn of(outcome: &Outcome, data: &'a Data<Vec<u8>, Arc<[u8]>>) -> Self {
        let good = matches!(outcome, Outcome::Completed(done) if done.is_good());
        let data = match data {
            Data::Read(bytes) => Some(bytes.as_slice()),
            _ => None,
        };
        Self { good, miscompare: is_miscompare(outcome), data }
    }
}

/// A command to send.
pub struct Order {
    /// The command block.
    pub cdb: Vec<u8>,
    /// Its data.
    pub data: Data<Vec<u8>, Arc<[u8]>>,
    /// What it is.
    pub sent: Sent,
}

/// A token that a session has.
#[derive(Clone)]
struct Token {
    from: Extent,
    sectors: u64,
    bytes: Box<[u8]>,
}

/// What a session knows of third-party copies.
#[derive(Default)]
pub struct Copying {
    lists: u32,
    /// Tokens that are made, and not yet asked for.
    made: Vec<(Extent, u64, u32)>,
    token: Option<Token>,
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { lba, .. } => write!(f, "the read from LBA {lba}"),
            Self::Write { value, stable: true, .. } => {
                write!(f, "the stable write of value {value}")
            }
            Self::Write { value, stable: false, .. } => write!(f, "the write of value {value}"),
            Self::Replace { lba, old, value, .. } => {
                write!(f, "the exchange of {old} for value {value} at LBA {lba}")
            }
            Self::Hint { value, .. } => write!(f, "the deallocation {value}"),
            Self::Flush { .. } => write!(f, "the flush"),
            Self::FlushAll => return write!(f, "the flush of all volumes"),
            Self::Verify { lba, .. } => write!(f, "the comparison from LBA {lba} on"),
            Self::Nothing { code, .. } => {
                write!(f, "the command {code:#04x}, which tells nothing,")
            }
            Self::Look { about, .. } => write!(f, "the question {about:?}"),
            Self::Populate { from, sectors, .. } => {
                write!(f, "the making of a token for {sectors} blocks from LBA {}", from.lba)
            }
            Self::Token { from, sectors } => {
                write!(f, "the question for a token of {sectors} blocks from LBA {}", from.lba)
            }
        }?;
        write!(f, " (volume {})", self.volume())
    }
}

/// A command block as words: its name, and the range where it has one.
pub fn words(cdb: &[u8]) -> String {
    let number = |at: usize, len: usize| {
        cdb.get(at..at + len)
            .unwrap_or_default()
            .iter()
            .fold(0u64, |n, byte| n << 8 | u64::from(*byte))
    };
    let code = cdb.first().copied().unwrap_or_default();
    let name = match code {
        0x28 | 0x88 => "READ",
        0x2a | 0x8a => "WRITE",
        0x2e => "WRITE AND VERIFY",
        0x2f | 0x8f => "VERIFY",
        0x34 => "PRE-FETCH",
        0x35 => "SYNCHRONIZE CACHE",
        0x41 | 0x93 => "WRITE SAME",
        0x42 => "UNMAP",
        0x83 => "EXTENDED COPY, or a command on tokens",
        0x89 => "COMPARE AND WRITE",
        0x8b => "ORWRITE",
        _ => return format!("command {code:#04x}"),
    };
    let (lba, blocks) = match code {
        0x28..=0x41 => (number(2, 4), number(7, 2)),
        0x89 => (number(2, 8), number(13, 1)),
        0x88 | 0x8a | 0x8b | 0x8f | 0x93 => (number(2, 8), number(10, 4)),
        _ => return name.to_owned(),
    };
    format!("{name} of {blocks} blocks from LBA {lba}")
}

impl Sent {
    /// The volume that it was sent to.
    pub const fn volume(&self) -> usize {
        match *self {
            Self::Read { volume, .. }
            | Self::Write { volume, .. }
            | Self::Replace { volume, .. }
            | Self::Hint { volume, .. }
            | Self::Flush { volume }
            | Self::Verify { volume, .. }
            | Self::Nothing { volume, .. }
            | Self::Look { volume, .. } => volume,
            Self::Populate { from, .. } | Self::Token { from, .. } => from.volume,
            // The first is the one that may be slow.
            Self::FlushAll => 0,
        }
    }

    /// What it may write.
    pub const fn writes(&self) -> Option<(usize, Value)> {
        match *self {
            Self::Write { volume, value, .. }
            | Self::Replace { volume, value, .. }
            | Self::Hint { volume, value } => Some((volume, value)),
            _ => None,
        }
    }

    /// It was never sent.
    pub fn undone(&self, known: &mut Known) {
        if let Some((volume, value)) = self.writes() {
            known.end_copy(value);
            known.models[volume].undone(value);
        }
    }

    /// It was answered: what is wrong with that, if something is.
    ///
    /// # Errors
    /// What is wrong.
    pub fn answered(
        self,
        known: &mut Known,
        copying: &mut Copying,
        Ended { good, miscompare, data }: Ended<'_>,
        begun: Duration,
    ) -> Result<(), String> {
        if let Some((_, value)) = self.writes() {
            known.end_copy(value);
        }
        known.look_at_copies();
        let volume = self.volume();
        let model = &mut known.models[volume];
        match (self, data) {
            (Self::Read { lba, .. }, Some(bytes)) if good => {
                model.read(lba, bytes, begun, now()).map_err(|wrong| wrong.to_string())?;
            }
            (Self::Write { value, stable, .. }, _) if good => model.good(value, stable, now()),
            (Self::Replace { lba, old, value, .. }, _) if good => {
                model.good(value, false, now());
                model.replaced(lba, old, value)?;
            }
            (Self::Replace { lba, old, value, .. }, _) if miscompare => {
                model.undone(value);
                surely_differs(model.surely_has(lba, old, begun), lba)?;
            }
            (
                Self::Write { value, .. } | Self::Replace { value, .. } | Self::Hint { value, .. },
                _,
            ) => model.over(value, now()),
            (Self::Flush { .. }, _) if good => model.flushed(begun),
            (Self::FlushAll, _) if good => {
                known.models.iter_mut().for_each(|model| model.flushed(begun));
            }
            (Self::Verify { lba, contents, .. }, _) if good => {
                let bytes = bytes_of(&contents);
                let found = model.read(lba, &bytes, begun, now());
                found.map_err(|wrong| format!("VERIFY finds it equal: {wrong}"))?;
            }
            (Self::Verify { lba, contents, .. }, _) if miscompare => {
                let same = |(lba, content): (u64, &Content)| {
                    // What the verification itself has compared with is no news.
                    model.surely_has(lba, *content, begun)
                };
                surely_differs((lba..).zip(&contents).all(same), lba)?;
            }
            (Self::Look { about, .. }, Some(bytes)) if good => {
                looked(known, (volume, about), bytes, begun)?;
            }
            (Self::Populate { from, sectors, list }, _) if good => {
                copying.made.push((from, sectors, list));
            }
            (Self::Token { from, sectors }, Some(bytes)) if good => {
                copying.token = token_in(bytes).map(|bytes| Token { from, sectors, bytes });
            }
            _ => {}
        }
        Ok(())
    }
}

fn surely_differs(same: bool, lba: u64) -> Result<(), String> {
    if same { Err(format!("LBA {lba}: MISCOMPARE with what is there")) } else { Ok(()) }
}

/// What a question was answered with.
fn looked(
    known: &mut Known,
    (volume, about): (usize, Look),
    bytes: &[u8],
    begun: Duration,
) -> Result<(), String> {
    let be = |range: std::ops::Range<usize>| {
        let bytes = bytes.get(range).unwrap_or_default();
        bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
    };
    let sessions_end = known.sessions_end;
    let model = &mut known.models[volume];
    let sectors = model.sectors();
    match about {
        Look::Capacity if (be(0..8), be(8..12)) != (sectors - 1, SECTOR as u64) => {
            return Err(format!("volume {volume} has {} blocks of {}", be(0..8) + 1, be(8..12)));
        }
        Look::Luns => {
            let luns: Vec<u64> =
                (1..=be(0..4) as usize / 8).map(|at| be(at * 8..at * 8 + 8)).collect();
            // A session that is to log out has none.
            let told = !(luns.is_empty() && sessions_end);
            if told && !luns.contains(&((volume as u64) << 48)) {
                return Err(format!("LUN {volume} is not among {luns:x?}"));
            }
        }
        Look::Mapped(lba) => {
            let descriptors = (be(0..4) as usize + 4).min(bytes.len()).saturating_sub(8) / 16;
            let mut at = lba;
            for descriptor in (0..descriptors).map(|number| 8 + number * 16) {
                let (first, count) =
                    (be(descriptor..descriptor + 8), be(descriptor + 8..descriptor + 12));
                if first != at || count == 0 || first + count > sectors {
                    return Err(format!("GET LBA STATUS of {lba}: {count} blocks from {first} on"));
                }
                at += count;
                if bytes[descriptor + 12] & 0xf == 1 {
                    let zeroes = vec![0; count as usize * SECTOR];
                    let found = model.read(first, &zeroes, begun, now());
                    found.map_err(|wrong| format!("deallocated, so zeroes: {wrong}"))?;
                }
            }
        }
        Look::Name => {
            let Some(name) = naa(bytes) else { return Err("a volume without NAA name".into()) };
            let was = known.names.entry(volume).or_insert(name);
            if *was != name {
                return Err(format!("volume {volume} was {was:x?} and is {name:x?}"));
            }
        }
        Look::Ready | Look::Capacity | Look::Other => {}
    }
    Ok(())
}

/// The NAA name in the device identification page (SPC-5 7.7.6).
fn naa(page: &[u8]) -> Option<[u8; 16]> {
    let mut rest = page.get(4..)?;
    while let [_, kind, _, len, body @ ..] = rest {
        let len = usize::from(*len);
        // A name of the logical unit, of the kind NAA.
        if kind & 0x3f == 3 && len == 16 {
            return body.get(..16)?.try_into().ok();
        }
        rest = body.get(len..)?;
    }
    None
}

/// The token in the answer to RECEIVE ROD TOKEN INFORMATION (SPC-5 6.26).
fn token_in(bytes: &[u8]) -> Option<Box<[u8]>> {
    let at = 32 + usize::from(*bytes.get(13)?) + 6;
    let token = bytes.get(at..at + TOKEN)?;
    token.iter().any(|byte| *byte != 0).then(|| token.into())
}

/// How a command has ended, as words.
pub fn ending(outcome: &Outcome) -> String {
    let Outcome::Completed(done) = outcome else { return format!("{outcome:?}") };
    let sense = |at: usize| done.sense.get(at).copied().unwrap_or_default();
    match (done.response, done.status) {
        (0, 0) => "GOOD".to_owned(),
        (0, 2) => {
            let (key, code, qualifier) = (sense(2) & 0xf, sense(12), sense(13));
            format!("CHECK CONDITION {key:x}/{code:02x}/{qualifier:02x}")
        }
        (0, 0x18) => "RESERVATION CONFLICT".to_owned(),
        (response, status) => format!("response {response}, status {status:#04x}"),
    }
}

/// CHECK CONDITION with MISCOMPARE (SPC-5 4.4): nothing was written.
fn is_miscompare(outcome: &Outcome) -> bool {
    let Outcome::Completed(done) = outcome else { return false };
    done.status == 2 && done.sense.get(2).is_some_and(|key| key & 0xf == 0xe)
}

/// Contents as the bytes of sectors.
pub fn bytes_of(contents: &[Content]) -> Vec<u8> {
    let mut bytes = vec![0; contents.len() * SECTOR];
    bytes.chunks_exact_mut(SECTOR).zip(contents).for_each(|(sector, content)| content.fill(sector));
    bytes
}

/// A command block of 16 bytes: LBA and length where READ (16) has them.
fn sixteen(code: u8, flags: u8, lba: u64, sectors: u64) -> Vec<u8> {
    let mut cdb = vec![0; 16];
    (cdb[0], cdb[1]) = (code, flags);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&(sectors as u32).to_be_bytes());
    cdb
}

/// A command block of 10 bytes, or of 16.
fn any(codes: (u8, u8), flags: u8, lba: u64, sectors: u64) -> Vec<u8> {
    if below(3) == 0 {
        return sixteen(codes.1, flags, lba, sectors);
    }
    let (lba, sectors) = ((lba as u32).to_be_bytes(), (sectors as u16).to_be_bytes());
    vec![codes.0, flags, lba[0], lba[1], lba[2], lba[3], 0, sectors[0], sectors[1], 0]
}

/// A command with a parameter list, whose length stands in four bytes at this place.
fn with_list(code: u8, action: u8, at: usize, list: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    let mut cdb = vec![0; 16];
    (cdb[0], cdb[1]) = (code, action);
    cdb[at..at + 4].copy_from_slice(&(list.len() as u32).to_be_bytes());
    (cdb, list)
}

/// Draws the next command for one of these volumes. `None`: nothing this time.
pub fn draw(known: &mut Known, volumes: &[usize], copying: &mut Copying) -> Option<Order> {
    let volume = volumes[below(volumes.len() as u64) as usize];
    let sectors = known.models[volume].sectors();
    // Half of all go to a few blocks, so that hosts meet.
    let lba = below(if below(2) == 0 { 16 } else { sectors });
    let most = (sectors - lba).min(if below(8) == 0 { 64 } else { 8 });
    let count = 1 + below(most);
    Some(match below(40) {
        0..=11 => read(volume, lba, count),
        12..=23 => write(known, volume, lba, count),
        24 => write_same(known, volume, (lba, count)),
        25 => unmap(known, volume, (lba, count)),
        26 | 27 => return replace(known, volume, lba % 4),
        28 => return verify(known, volume, lba),
        29 => nothing(volume, lba, count),
        30 => look(volume, lba),
        31 | 32 => return extended_copy(known, volumes, volume),
        33 | 34 => return token_copy(known, copying, volume),
        _ => flush(volume),
    })
}

fn read(volume: usize, lba: u64, count: u64) -> Order {
    let data = Data::Read(vec![0xbb; count as usize * SECTOR]);
    Order { cdb: any((0x28, 0x88), 0, lba, count), data, sent: Sent::Read { volume, lba } }
}

/// WRITE or WRITE AND VERIFY.
fn write(known: &mut Known, volume: usize, lba: u64, count: u64) -> Order {
    let value = known.models[volume].begin(lba, count, now());
    let mut bytes = vec![0; count as usize * SECTOR];
    fill(&mut bytes, lba, value);
    let (stable, verifies) = (below(5) == 0, below(10) == 0);
    let cdb = match (verifies, stable) {
        (true, _) => any((0x2e, 0x8e), below(2) as u8 * 2, lba, count),
        (false, true) => any((0x2a, 0x8a), 8, lba, count),
        (false, false) => any((0x2a, 0x8a), 0, lba, count),
    };
    let stable = stable && !verifies;
    Order { cdb, data: Data::Write(bytes.into()), sent: Sent::Write { volume, value, stable } }
}

/// WRITE SAME (16) (SBC-4 5.50): zeroes without data, unmapped or not, or a block.
fn write_same(known: &mut Known, volume: usize, (lba, count): (u64, u64)) -> Order {
    let model = &mut known.models[volume];
    let unmap = below(2) as u8 * 8;
    let (value, flags, data) = match below(3) {
        0 => (model.begin_zeroes(&[(lba, count)], now()), 1 | unmap, Data::None),
        1 => {
            let value = model.begin_zeroes(&[(lba, count)], now());
            (value, unmap, Data::Write(vec![0; SECTOR].into()))
        }
        _ => {
            let value = model.begin_same(lba, count, now());
            let bytes = bytes_of(&[Content::everywhere(value)]);
            (value, unmap, Data::Write(bytes.into()))
        }
    };
    let sent = Sent::Write { volume, value, stable: false };
    Order { cdb: sixteen(0x93, flags, lba, count), data, sent }
}

/// UNMAP of one or two ranges (SBC-4 5.30).
fn unmap(known: &mut Known, volume: usize, first: (u64, u64)) -> Order {
    let model = &mut known.models[volume];
    let mut ranges = vec![first];
    let lba = first.0 + first.1 + below(8);
    if below(2) == 0 && lba < model.sectors() {
        ranges.push((lba, 1 + below((model.sectors() - lba).min(16))));
    }
    let value = model.begin_zeroes(&ranges, now());
    let mut list = vec![0; 8];
    for (lba, count) in &ranges {
        list.extend_from_slice(&lba.to_be_bytes());
        list.extend_from_slice(&(*count as u32).to_be_bytes());
        list.extend_from_slice(&[0; 4]);
    }
    list[1] = list.len() as u8 - 2;
    list[3] = list.len() as u8 - 8;
    let cdb = vec![0x42, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
    let sent = Sent::Write { volume, value, stable: false };
    Order { cdb, data: Data::Write(list.into()), sent }
}

/// COMPARE AND WRITE of one block (SBC-4 5.3), in place of what is there as far as is known.
fn replace(known: &mut Known, volume: usize, lba: u64) -> Option<Order> {
    let model = &mut known.models[volume];
    let old = model.present(lba)?;
    let value = model.begin(lba, 1, now());
    let bytes = bytes_of(&[old, Content::new(lba, value)]);
    let mut cdb = sixteen(0x89, 0, lba, 0);
    cdb[13] = 1;
    let sent = Sent::Replace { volume, lba, old, value };
    Some(Order { cdb, data: Data::Write(bytes.into()), sent })
}

/// VERIFY (SBC-4 5.32): of the medium, with blocks that should be there, or with one block of zeroes.
fn verify(known: &Known, volume: usize, lba: u64) -> Option<Order> {
    let model = &known.models[volume];
    let count = 1 + below((model.sectors() - lba).min(4));
    let (flags, contents, data) = match below(4) {
        0 => (0, Vec::new(), Data::None),
        1 => (6, vec![Content::ZEROES; count as usize], Data::Write(vec![0; SECTOR].into())),
        _ => {
            let present: Option<Vec<Content>> =
                (lba..lba + count).map(|lba| model.present(lba)).collect();
            let contents = present?;
            let bytes = bytes_of(&contents);
            (2, contents, Data::Write(bytes.into()))
        }
    };
    let sent = Sent::Verify { volume, lba, contents };
    Some(Order { cdb: any((0x2f, 0x8f), flags, lba, count), data, sent })
}

/// PRE-FETCH, or ORWRITE (16) of zeroes (SBC-4 5.17), which leaves every block as it is.
fn nothing(volume: usize, lba: u64, count: u64) -> Order {
    let (cdb, data) = match below(3) {
        0 => (any((0x34, 0x90), 0, lba, count), Data::None),
        _ => {
            let bytes = vec![0; count as usize * SECTOR];
            (sixteen(0x8b, 0, lba, count), Data::Write(bytes.into()))
        }
    };
    let sent = Sent::Nothing { volume, code: cdb[0] };
    Order { cdb, data, sent }
}

fn look(volume: usize, lba: u64) -> Order {
    let (about, cdb, len) = match below(10) {
        0 => (Look::Ready, vec![0; 6], 0),
        1 => (Look::Capacity, sixteen(0x9e, 0x10, 0, 32), 32),
        2 => (Look::Luns, vec![0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256),
        3 => (Look::Name, vec![0x12, 1, 0x83, 0, 255, 0], 255),
        // REPORT TARGET PORT GROUPS, MODE SENSE (6), PREVENT ALLOW MEDIUM REMOVAL, START STOP UNIT.
        4 => (Look::Other, vec![0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256),
        5 => (Look::Other, vec![0x1a, 0, 0x3f, 0, 255, 0], 255),
        6 => (Look::Other, vec![0x1e, 0, 0, 0, 0, 0], 0),
        7 => (Look::Other, vec![0x1b, 0, 0, 0, 1, 0], 0),
        _ => {
            let mut cdb = sixteen(0x9e, 0x12, lba, 0);
            cdb[10..14].copy_from_slice(&136_u32.to_be_bytes());
            (Look::Mapped(lba), cdb, 136)
        }
    };
    let data = if len == 0 { Data::None } else { Data::Read(vec![0; len]) };
    Order { cdb, data, sent: Sent::Look { volume, about } }
}

/// Where a copy goes to, and how far.
fn destination(volume: usize) -> (Extent, u64) {
    let sectors = 1 + below(16);
    (Extent { volume, lba: DESTINATIONS + below(128 - sectors) }, sectors)
}

/// EXTENDED COPY (LID1) with one segment (SPC-5 6.5), between volumes whose names are known.
fn extended_copy(known: &mut Known, volumes: &[usize], volume: usize) -> Option<Order> {
    let other = volumes[below(volumes.len() as u64) as usize];
    let names = [known.names.get(&other).copied(), known.names.get(&volume).copied()];
    let [Some(source), Some(destination_name)] = names else { return Some(name_of(volume)) };
    let (to, sectors) = destination(volume);
    let from = Extent { volume: other, lba: below(DESTINATIONS - sectors) };
    let value = known.begin_copy((from, to), sectors);
    let mut list = vec![0; 16];
    // LIST ID USAGE 11b: nobody asks how it went.
    list[1] = 0x18;
    list[3] = 64;
    for name in [source, destination_name] {
        let mut descriptor = [0; 32];
        (descriptor[0], descriptor[4], descriptor[5], descriptor[7]) = (0xe4, 1, 3, 16);
        descriptor[8..24].copy_from_slice(&name);
        list.extend_from_slice(&descriptor);
    }
    let mut segment = [0; 28];
    (segment[0], segment[3], segment[7]) = (2, 24, 1);
    segment[10..12].copy_from_slice(&(sectors as u16).to_be_bytes());
    segment[12..20].copy_from_slice(&from.lba.to_be_bytes());
    segment[20..28].copy_from_slice(&to.lba.to_be_bytes());
    list[11] = 28;
    list.extend_from_slice(&segment);
    let (cdb, list) = with_list(0x83, 0, 10, list);
    let sent = Sent::Write { volume, value, stable: false };
    Some(Order { cdb, data: Data::Write(list.into()), sent })
}

fn name_of(volume: usize) -> Order {
    let cdb = vec![0x12, 1, 0x83, 0, 255, 0];
    let sent = Sent::Look { volume, about: Look::Name };
    Order { cdb, data: Data::Read(vec![0; 255]), sent }
}

/// A step of an offloaded data transfer: POPULATE TOKEN, the question for the token, WRITE USING TOKEN (SBC-4 5.11, 5.52).
fn token_copy(known: &mut Known, copying: &mut Copying, volume: usize) -> Option<Order> {
    if let Some((from, sectors, list)) = copying.made.pop() {
        let mut cdb = vec![0; 16];
        (cdb[0], cdb[1]) = (0x84, 7);
        cdb[2..6].copy_from_slice(&list.to_be_bytes());
        cdb[10..14].copy_from_slice(&1024_u32.to_be_bytes());
        let data = Data::Read(vec![0; 1024]);
        return Some(Order { cdb, data, sent: Sent::Token { from, sectors } });
    }
    copying.lists += 1;
    let list_id = copying.lists;
    let range = |list: &mut Vec<u8>, lba: u64, sectors: u64| {
        list.extend_from_slice(&[0, 16]);
        list.extend_from_slice(&lba.to_be_bytes());
        list.extend_from_slice(&(sectors as u32).to_be_bytes());
        list.extend_from_slice(&[0; 4]);
        let len = list.len() as u16 - 2;
        list[..2].copy_from_slice(&len.to_be_bytes());
    };
    let order = |action, list, sent| {
        let (mut cdb, list) = with_list(0x83, action, 10, list);
        cdb[6..10].copy_from_slice(&list_id.to_be_bytes());
        Some(Order { cdb, data: Data::Write(list.into()), sent })
    };
    let Some(token) = copying.token.clone().filter(|_| below(3) != 0) else {
        let sectors = 1 + below(16);
        let from = Extent { volume, lba: below(DESTINATIONS - sectors) };
        let mut list = vec![0; 14];
        range(&mut list, from.lba, sectors);
        return order(0x10, list, Sent::Populate { from, sectors, list: list_id });
    };
    let to = Extent { volume, lba: DESTINATIONS + below(128 - token.sectors) };
    let value = known.begin_copy((token.from, to), token.sectors);
    let mut list = vec![0; 534];
    list[16..16 + TOKEN].copy_from_slice(&token.bytes);
    range(&mut list, to.lba, token.sectors);
    order(0x11, list, Sent::Write { volume, value, stable: false })
}

fn flush(volume: usize) -> Order {
    Order { cdb: any((0x35, 0x91), 0, 0, 0), data: Data::None, sent: Sent::Flush { volume } }
}
