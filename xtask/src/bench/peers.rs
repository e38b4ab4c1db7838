//! The targets that are compared: each serves one volume in memory and one file.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Result;
use lunet_e2e::server::{Serve, Server, portal_of, url};
use lunet_e2e::tgt::{FIRST_LUN, TUNED, Tgt};
use tempfile::TempDir;

use super::compare::Place;
use super::watch::Watch;

/// The name of the target that lunet serves here.
const TARGET: &str = "iqn.2026-11.local.lunet:bench";

/// The LUN of the volume that stores nothing.
const NULL: u16 = FIRST_LUN + 2;

/// What lunet may wait for work with open eyes, in the variant that does.
pub const BUSY_POLL: &str = "50us";

/// Where the blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// lunet's memory backend; for tgt a file in /dev/shm.
    Memory,
    /// A file on a disk, through the page cache for both.
    File,
}

impl Medium {
    /// Both.
    pub const ALL: [Medium; 2] = [Medium::Memory, Medium::File];

    /// For the tables.
    pub fn name(self) -> &'static str {
        match self {
            Medium::Memory => "memory",
            Medium::File => "file",
        }
    }

    fn lun(self) -> u16 {
        match self {
            Medium::Memory => FIRST_LUN,
            Medium::File => FIRST_LUN + 1,
        }
    }
}

/// The names, in the order of the tables.
pub const NAMES: [&str; 3] = ["lunet", "tgt", "tgt tuned"];

/// The name of the variant with bounded busy polling. It takes part with its volume in memory only.
pub const BUSY: &str = "lunet busy-poll";

enum Process {
    Lunet(Server),
    Tgt(Tgt),
}

/// A running target.
pub struct Peer {
    /// Its name in the tables.
    pub name: &'static str,
    /// What is not as it comes, for the page.
    pub how: String,
    // Whoever watches ends before what is watched.
    _watch: Option<Watch>,
    process: Process,
    // The files go after the process.
    _files: Vec<TempDir>,
}

impl Peer {
    /// The process id.
    pub fn pid(&self) -> u32 {
        match &self.process {
            Process::Lunet(server) => server.pid(),
            Process::Tgt(tgt) => tgt.pid(),
        }
    }

    /// The URL of one of its volumes.
    pub fn url(&self, medium: Medium) -> String {
        match &self.process {
            Process::Lunet(server) => url(server.portal(), TARGET, medium.lun()),
            Process::Tgt(tgt) => tgt.url(medium.lun()),
        }
    }

    /// One of its volumes, to be measured.
    pub fn place(&self, medium: Medium) -> Place {
        Place { name: self.name, pid: self.pid(), url: self.url(medium) }
    }

    /// The address of a volume that stores nothing, if it has one.
    pub fn null_url(&self) -> Option<String> {
        match &self.process {
            Process::Lunet(server) => Some(url(server.portal(), TARGET, NULL)),
            Process::Tgt(_) => None,
        }
    }

    /// `address:port`.
    pub fn portal(&self) -> String {
        portal_of(&self.url(Medium::Memory)).to_owned()
    }
}

/// Starts all of them on core `core`, with volumes of `size` bytes and the files below `dir`.
pub fn start(dir: &Path, size: u64, core: usize) -> Result<Vec<Peer>> {
    Ok(vec![
        lunet(NAMES[0], "", dir, size, core)?,
        tgt(NAMES[1], &[], dir, size, core)?,
        tgt(NAMES[2], &TUNED, dir, size, core)?,
        lunet(BUSY, &format!("busy-poll = \"{BUSY_POLL}\""), dir, size, core)?,
    ])
}

/// One lunet with the default settings, for the measurement of idle sessions.
pub fn lunet(name: &'static str, more: &str, dir: &Path, size: u64, core: usize) -> Result<Peer> {
    lunet_of(None, name, more, dir, size, core, &[])
}

/// The same with a REST interface, whose metrics and events somebody reads.
pub fn watched(name: &'static str, dir: &Path, size: u64, core: usize) -> Result<Peer> {
    let page = ["--listen-control", "127.0.0.1:0"];
    let mut peer = lunet_of(None, name, "", dir, size, core, &page)?;
    if let Process::Lunet(server) = &mut peer.process {
        peer._watch = Some(Watch::over(server)?);
    }
    Ok(peer)
}

/// Another build of lunet, with these lines in `[server]`.
pub fn other(
    name: &'static str,
    program: &Path,
    more: &str,
    dir: &Path,
    size: u64,
    core: usize,
) -> Result<Peer> {
    lunet_of(Some(program), name, more, dir, size, core, &[])
}

fn lunet_of(
    program: Option<&Path>,
    name: &'static str,
    more: &str,
    dir: &Path,
    size: u64,
    core: usize,
    arguments: &[&str],
) -> Result<Peer> {
    let files = TempDir::with_prefix_in("lunet-bench-", dir)?;
    let lun = |medium: Medium| medium.lun();
    let config = format!(
        "[server]\nlog-level = \"warn\"\n{more}\n[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [volumes.memory]\nbackend = \"memory\"\nsize = {size}\n\
         [volumes.file]\nbackend = \"file\"\nsize = {size}\n\
         [volumes.null]\nbackend = \"null\"\nsize = {size}\n\
         [[target]]\nname = \"{TARGET}\"\nluns = {{ {} = \"memory\", {} = \"file\", {NULL} = \"null\" }}\n",
        lun(Medium::Memory),
        lun(Medium::File),
    );
    let serve =
        Serve::config(config).data(files.path()).core(Some(core)).arguments(arguments).quiet();
    let server = match program {
        Some(program) => serve.program(program),
        None => serve,
    }
    .start()?;
    let how = match more {
        "" => "as it comes".to_owned(),
        more => more.to_owned(),
    };
    Ok(Peer { name, how, _watch: None, process: Process::Lunet(server), _files: vec![files] })
}

fn tgt(
    name: &'static str,
    settings: &[(&str, &str)],
    dir: &Path,
    size: u64,
    core: usize,
) -> Result<Peer> {
    let files = [
        TempDir::with_prefix_in("lunet-bench-", "/dev/shm")?,
        TempDir::with_prefix_in("lunet-bench-", dir)?,
    ];
    let paths: Vec<PathBuf> = files.iter().map(|dir| dir.path().join("volume")).collect();
    for path in &paths {
        File::create(path)?.set_len(size)?;
    }
    let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    let tgt = Tgt::start(&paths, settings, Some(core))?;
    let mut how = match settings {
        [] => "as it comes".to_owned(),
        settings => {
            let all = settings.iter().map(|(key, value)| format!("{key}={value}"));
            all.collect::<Vec<_>>().join(" ")
        }
    };
    how += "; in memory: a file in /dev/shm";
    Ok(Peer { name, how, _watch: None, process: Process::Tgt(tgt), _files: files.into() })
}
