//! The words of a change: `pool=4xmirror(2)`, `nic=2x25g`.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::ceilings::drives::Figures;
use crate::ceilings::speeds::speed_of;

/// No machine has more vdevs, cards or modules of memory.
const MOST: u64 = 1000;
/// No pool has more drives.
const MOST_DRIVES: u64 = 100_000;
/// No drive moves more megabytes per second.
const MOST_MEGABYTES: u64 = 1_000_000;
/// No drive does more operations per second.
const MOST_IOPS: u64 = 100_000_000;

/// A change of the machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The layout of a pool.
    Pool(Layout),
    /// How many drives the pool has.
    Drives(u64),
    /// The model of the pool's drives.
    Drive(Model),
    /// The link of each of the pool's drives.
    DrivePcie(Lanes),
    /// Ports of network cards: how many, of how many Mbit/s.
    Nic(u64, u64),
    /// On how many cards they are.
    Cards(u64),
    /// The slot of each card.
    Pcie(Lanes),
    /// How several links are used.
    Paths(Paths),
    /// Largest packet of the links in bytes.
    Mtu(u64),
    /// What storage goes over.
    Transport(Transport),
    /// Commands that a session may have waiting.
    Depth(u64),
    /// Cores, and their clock in MHz.
    Cpu(u64, Option<u64>),
    /// Modules of memory, and their transfers per microsecond (MT/s).
    Memory(u64, u64),
}

/// Data vdevs of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The pool; the only one, if it is not named.
    pub name: Option<String>,
    /// Groups of equal vdevs.
    pub groups: Vec<Group>,
}

/// Equal vdevs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// How many.
    pub count: u64,
    /// What each is.
    pub kind: VdevKind,
    /// Drives of each.
    pub width: u64,
}

/// What a vdev is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VdevKind {
    /// A drive by itself.
    Stripe,
    /// The same on each drive.
    Mirror,
    /// RAID-Z with so many drives of parity.
    Raidz(u64),
    /// dRAID with so many drives of parity and of data for a record, and spare drives.
    Draid(u64, u64, u64),
}

/// The model of a drive.
#[derive(Clone, Debug, PartialEq)]
pub enum Model {
    /// One that the table of models has.
    Known(String),
    /// One that somebody measured.
    Measured(Measure),
}

/// What somebody measured of a drive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measure {
    /// Reads in MB/s.
    pub read: u64,
    /// Writes in MB/s.
    pub write: u64,
    /// Reads and writes per second, at random.
    pub iops: Option<(u64, u64)>,
}

/// A PCIe link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// Generation, 1 to 6.
    pub generation: u64,
    /// Lanes.
    pub width: u64,
}

/// How several links are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paths {
    /// An address and a session on each.
    Mpio,
    /// Joined to one (LACP).
    Lag,
}

/// What storage goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// iSCSI or NVMe over TCP.
    Tcp,
    /// iSER or NVMe over RDMA.
    Rdma,
}

/// A change that is none.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("at character {at} {problem}; accepted is {form}")]
pub struct Mistake {
    /// The character of the text, from 1.
    pub at: usize,
    /// What is wrong there.
    pub problem: String,
    /// What would have been right.
    pub form: &'static str,
}

/// The names of changes, and how each is written.
const FORMS: &[(&str, &str)] = &[
    (
        "pool",
        "pool=[NAME:]NxKIND(WIDTH)[+...] with KIND mirror, raidz1, raidz2, raidz3, stripe or \
         draid1 to draid3 of (DATAd:DRIVESc:SPARESs), as in pool=4xmirror(2)",
    ),
    ("drives", "drives=N, as in drives=12"),
    (
        "drive",
        "drive=MODEL of the doctor's table, or drive=READ/WRITE[,IOPS/IOPS] with bytes per second in M or G \
         and operations per second, as in drive=6800M/4G,1000k/180k",
    ),
    ("drive-pcie", "drive-pcie=genGxLANES, as in drive-pcie=gen4x4"),
    (
        "nic",
        "nic=NxSPEED with SPEED 1g, 2.5g, 5g, 10g, 25g, 40g, 50g, 100g, 200g or 400g, as in nic=2x25g",
    ),
    ("cards", "cards=N, as in cards=2"),
    ("pcie", "pcie=genGxLANES, as in pcie=gen4x8"),
    ("paths", "paths=mpio or paths=lag"),
    ("mtu", "mtu=BYTES from 576 to 65520, as in mtu=9000"),
    ("transport", "transport=tcp or transport=rdma"),
    ("depth", "depth=COMMANDS, as in depth=128"),
    ("cpu", "cpu=CORES[xMHZ], as in cpu=16 or cpu=16x3600"),
    ("memory", "memory=MODULESxMT/S, as in memory=8x3200"),
];

/// What is accepted instead of a name that is none.
const NAMES: &str = "pool=, drives=, drive=, drive-pcie=, nic=, cards=, pcie=, paths=, mtu=, transport=, depth=, \
                     cpu= or memory=";

/// Speeds of links, in Mbit/s.
const SPEEDS: &[(&str, u64)] = &[
    ("1g", 1000),
    ("2.5g", 2500),
    ("5g", 5000),
    ("10g", 10_000),
    ("25g", 25_000),
    ("40g", 40_000),
    ("50g", 50_000),
    ("100g", 100_000),
    ("200g", 200_000),
    ("400g", 400_000),
];

impl FromStr for Change {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<Self, Mistake> {
        let mut input = Input { text, at: 0, form: NAMES };
        let name = input.word(|c| c != '=');
        let Some((_, form)) = FORMS.iter().find(|(known, _)| *known == name) else {
            return Err(input.wrong(0, format!("`{}` is no name of a change", shown(name))));
        };
        input.form = form;
        input.sign('=')?;
        let change = change(name, &mut input)?;
        match input.rest() {
            "" => Ok(change),
            rest => Err(input.wrong(input.at, format!("`{}` is too much", shown(rest)))),
        }
    }
}

fn change(name: &str, input: &mut Input<'_>) -> Result<Change, Mistake> {
    Ok(match name {
        "pool" => Change::Pool(layout(input)?),
        "drives" => Change::Drives(input.number(1, MOST_DRIVES)?),
        "drive" => Change::Drive(model(input)?),
        "drive-pcie" => Change::DrivePcie(lanes(input)?),
        "nic" => {
            let count = input.number(1, MOST)?;
            input.sign('x')?;
            Change::Nic(count, input.one_of(SPEEDS, "speed")?)
        }
        "cards" => Change::Cards(input.number(1, MOST)?),
        "pcie" => Change::Pcie(lanes(input)?),
        "paths" => {
            Change::Paths(input.one_of(&[("mpio", Paths::Mpio), ("lag", Paths::Lag)], "way")?)
        }
        "mtu" => Change::Mtu(input.number(576, 65_520)?),
        "transport" => {
            let known = [("tcp", Transport::Tcp), ("rdma", Transport::Rdma)];
            Change::Transport(input.one_of(&known, "transport")?)
        }
        "depth" => Change::Depth(input.number(1, 65_536)?),
        "cpu" => {
            let cores = input.number(1, MOST * 10)?;
            let mhz = match input.rest() {
                "" => None,
                _ => Some(input.sign('x').and_then(|()| input.number(100, 20_000))?),
            };
            Change::Cpu(cores, mhz)
        }
        _ => {
            let modules = input.number(1, MOST)?;
            input.sign('x')?;
            Change::Memory(modules, input.number(100, 100_000)?)
        }
    })
}

/// `tank:2xraidz1(4)+4xmirror(2)`
fn layout(input: &mut Input<'_>) -> Result<Layout, Mistake> {
    let mut name = None;
    // dRAID has colons of its own, in brackets.
    let before = input.rest().split('(').next().unwrap_or_default();
    if let Some((pool, _)) = before.split_once(':') {
        let fits = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if !pool.starts_with(|c: char| c.is_ascii_alphabetic()) || !pool.chars().all(fits) {
            return Err(input.wrong(input.at, format!("`{}` is no name of a pool", shown(pool))));
        }
        name = Some(pool.to_owned());
        input.at += pool.len() + 1;
    }
    let at = input.at;
    let mut groups = vec![group(input)?];
    while input.rest().starts_with('+') {
        input.at += 1;
        groups.push(group(input)?);
    }
    let drives: u64 = groups.iter().map(|group| group.count * group.width).sum();
    if drives > MOST_DRIVES {
        return Err(input.wrong(at, format!("{drives} drives are more than {MOST_DRIVES}")));
    }
    Ok(Layout { name, groups })
}

/// `4xmirror(2)`
fn group(input: &mut Input<'_>) -> Result<Group, Mistake> {
    let count = input.number(1, MOST)?;
    input.sign('x')?;
    let at = input.at;
    let word = input.word(|c| c.is_ascii_alphanumeric()).to_ascii_lowercase();
    let parity = word.bytes().last().filter(|digit| (b'1'..=b'3').contains(digit));
    let parity = parity.map_or(0, |digit| u64::from(digit - b'0'));
    match word.trim_end_matches(['1', '2', '3']) {
        "stripe" if parity == 0 && !input.rest().starts_with('(') => {
            Ok(Group { count, kind: VdevKind::Stripe, width: 1 })
        }
        // Each of its drives is a vdev of its own.
        "stripe" if parity == 0 => {
            let most = MOST / count;
            let width = input.bracketed(|input| input.number(1, most))?;
            Ok(Group { count: count * width, kind: VdevKind::Stripe, width: 1 })
        }
        "mirror" if parity == 0 => {
            let width = input.bracketed(|input| input.number(2, MOST))?;
            Ok(Group { count, kind: VdevKind::Mirror, width })
        }
        "raidz" if word.len() == "raidz1".len() && parity > 0 => {
            let width = input.bracketed(|input| input.number(parity + 1, MOST))?;
            Ok(Group { count, kind: VdevKind::Raidz(parity), width })
        }
        "draid" if word.len() == "draid1".len() && parity > 0 => {
            let (kind, width) = input.bracketed(|input| draid(input, parity))?;
            Ok(Group { count, kind, width })
        }
        _ => Err(input.wrong(at, format!("`{}` is no kind of vdev", shown(&word)))),
    }
}

/// `8d:24c:2s`
fn draid(input: &mut Input<'_>, parity: u64) -> Result<(VdevKind, u64), Mistake> {
    let data = input.number(1, MOST)?;
    input.sign('d')?;
    input.sign(':')?;
    let at = input.at;
    let width = input.number(1, MOST)?;
    input.sign('c')?;
    input.sign(':')?;
    let spares = input.number(0, 100)?;
    input.sign('s')?;
    let least = data + parity + spares;
    if width < least {
        let problem = format!("{width} drives are too few: data, parity and spares need {least}");
        return Err(input.wrong(at, problem));
    }
    Ok((VdevKind::Draid(parity, data, spares), width))
}

fn model(input: &mut Input<'_>) -> Result<Model, Mistake> {
    let at = input.at;
    if !input.rest().contains('/') {
        let name = input.word(|_| true);
        return match speed_of(name).filter(|_| !name.contains(char::is_control)) {
            Some(_) => Ok(Model::Known(name.to_owned())),
            None => {
                Err(input.wrong(at, format!("`{}` is no model with known figures", shown(name))))
            }
        };
    }
    let read = input.megabytes()?;
    input.sign('/')?;
    let write = input.megabytes()?;
    let mut iops = None;
    if input.rest().starts_with(',') {
        input.at += 1;
        let reads = input.thousands()?;
        input.sign('/')?;
        iops = Some((reads, input.thousands()?));
    }
    Ok(Model::Measured(Measure { read, write, iops }))
}

fn lanes(input: &mut Input<'_>) -> Result<Lanes, Mistake> {
    for sign in ['g', 'e', 'n'] {
        input.sign(sign)?;
    }
    let generation = input.number(1, 6)?;
    input.sign('x')?;
    let at = input.at;
    let width = input.number(1, 16)?;
    match width.is_power_of_two() {
        true => Ok(Lanes { generation, width }),
        false => Err(input.wrong(at, format!("{width} lanes are none of 1, 2, 4, 8 and 16"))),
    }
}

/// The text, and how far it is read.
struct Input<'a> {
    text: &'a str,
    /// In bytes, between two characters.
    at: usize,
    form: &'static str,
}

impl<'a> Input<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn wrong(&self, at: usize, problem: String) -> Mistake {
        Mistake { at: self.text[..at].chars().count() + 1, problem, form: self.form }
    }

    /// The characters up to the first that does not fit.
    fn word(&mut self, fits: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let word = &rest[..rest.find(|c| !fits(c)).unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    fn sign(&mut self, sign: char) -> Result<(), Mistake> {
        match self.rest().chars().next() {
            Some(c) if c.eq_ignore_ascii_case(&sign) => {
                self.at += c.len_utf8();
                Ok(())
            }
            Some(c) => Err(self.wrong(
                self.at,
                format!("`{}` is not `{sign}`", shown(c.encode_utf8(&mut [0; 4]))),
            )),
            None => Err(self.wrong(self.at, format!("`{sign}` is missing"))),
        }
    }

    fn number(&mut self, least: u64, most: u64) -> Result<u64, Mistake> {
        let at = self.at;
        let digits = self.word(|c| c.is_ascii_digit());
        if digits.is_empty() {
            return Err(self.wrong(at, "a number is missing".to_owned()));
        }
        match digits.parse() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => Err(self.wrong(at, format!("{} is not from {least} to {most}", shown(digits)))),
        }
    }

    fn one_of<T: Copy>(&mut self, known: &[(&str, T)], what: &str) -> Result<T, Mistake> {
        let at = self.at;
        let word = self.word(|_| true);
        let found = known.iter().find(|(name, _)| name.eq_ignore_ascii_case(word));
        let found = found.map(|(_, value)| *value);
        found.ok_or_else(|| self.wrong(at, format!("`{}` is no {what}", shown(word))))
    }

    fn bracketed<T>(
        &mut self,
        inside: impl FnOnce(&mut Self) -> Result<T, Mistake>,
    ) -> Result<T, Mistake> {
        self.sign('(')?;
        let value = inside(self)?;
        self.sign(')')?;
        Ok(value)
    }

    /// Megabytes per second, written in M or G, with one digit behind the point at most.
    fn megabytes(&mut self) -> Result<u64, Mistake> {
        let at = self.at;
        let tenths = self.tenths()?;
        let megabytes = match self.word(|c| c.is_ascii_alphabetic()) {
            "M" | "m" if tenths % 10 == 0 => tenths / 10,
            "G" | "g" => tenths * 100,
            _ => 0,
        };
        match megabytes {
            1..=MOST_MEGABYTES => Ok(megabytes),
            0 => Err(self.wrong(at, "no whole number of megabytes in M or G starts".to_owned())),
            _ => Err(self.wrong(at, format!("more than {MOST_MEGABYTES}M are asked for"))),
        }
    }

    /// Operations per second, with or without a `k`.
    fn thousands(&mut self) -> Result<u64, Mistake> {
        let at = self.at;
        let number = self.number(1, MOST_IOPS)?;
        let thousand = self.word(|c| c.eq_ignore_ascii_case(&'k'));
        match thousand.len() {
            0 => Ok(number),
            1 if number * 1000 <= MOST_IOPS => Ok(number * 1000),
            1 => Err(self.wrong(at, format!("{number}k are more than {MOST_IOPS}"))),
            _ => Err(self.wrong(self.at - 1, "`k` stands twice".to_owned())),
        }
    }

    fn tenths(&mut self) -> Result<u64, Mistake> {
        let whole = self.number(0, 1_000_000)? * 10;
        if !self.rest().starts_with('.') {
            return Ok(whole);
        }
        self.at += 1;
        Ok(whole + self.number(0, 9)?)
    }
}

/// As much of a text as an error shows, without characters that a terminal obeys.
fn shown(text: &str) -> String {
    let plain = |c: char| if c.is_control() { '?' } else { c };
    let mut shown: String = text.chars().take(24).map(plain).collect();
    if text.chars().nth(24).is_some() {
        shown.push_str("...");
    }
    shown
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(layout) => write!(f, "pool={layout}"),
            Self::Drives(count) => write!(f, "drives={count}"),
            Self::Drive(model) => write!(f, "drive={model}"),
            Self::DrivePcie(lanes) => write!(f, "drive-pcie={lanes}"),
            Self::Nic(count, mbit) => write!(f, "nic={count}x{}g", *mbit as f64 / 1000.0),
            Self::Cards(count) => write!(f, "cards={count}"),
            Self::Pcie(lanes) => write!(f, "pcie={lanes}"),
            Self::Paths(Paths::Mpio) => f.write_str("paths=mpio"),
            Self::Paths(Paths::Lag) => f.write_str("paths=lag"),
            Self::Mtu(bytes) => write!(f, "mtu={bytes}"),
            Self::Transport(Transport::Tcp) => f.write_str("transport=tcp"),
            Self::Transport(Transport::Rdma) => f.write_str("transport=rdma"),
            Self::Depth(commands) => write!(f, "depth={commands}"),
            Self::Cpu(cores, None) => write!(f, "cpu={cores}"),
            Self::Cpu(cores, Some(mhz)) => write!(f, "cpu={cores}x{mhz}"),
            Self::Memory(modules, rate) => write!(f, "memory={modules}x{rate}"),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}:")?;
        }
        for (number, group) in self.groups.iter().enumerate() {
            let plus = if number == 0 { "" } else { "+" };
            write!(f, "{plus}{group}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, kind, width } = self;
        match kind {
            VdevKind::Stripe => write!(f, "{count}xstripe"),
            VdevKind::Mirror => write!(f, "{count}xmirror({width})"),
            VdevKind::Raidz(parity) => write!(f, "{count}xraidz{parity}({width})"),
            VdevKind::Draid(parity, data, spares) => {
                write!(f, "{count}xdraid{parity}({data}d:{width}c:{spares}s)")
            }
        }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(name) => f.write_str(name),
            Self::Measured(Measure { read, write, iops }) => {
                write!(f, "{read}M/{write}M")?;
                iops.map_or(Ok(()), |(reads, writes)| write!(f, ",{reads}/{writes}"))
            }
        }
    }
}

impl fmt::Display for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gen{}x{}", self.generation, self.width)
    }
}

impl Change {
    /// Its name: `pool`.
    pub(super) fn name(&self) -> String {
        let text = self.to_string();
        text.split('=').next().unwrap_or_default().to_owned()
    }
}

impl Measure {
    /// The same for the model of this name.
    pub(super) fn figures(self, model: String) -> Figures {
        Figures {
            model,
            read: self.read as f64 * 1e6,
            write: self.write as f64 * 1e6,
            iops: self.iops.map(|(reads, writes)| (reads as f64, writes as f64)),
        }
    }
}
