//! The targets that are compared: each serves one volume in memory and one file.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Result;
use lunet_e2e::server::{Serve, Server, free_port, portal_of, url};
use lunet_e2e::tgt::{FIRST_LUN, TUNED, Tgt};
use tempfile::TempDir;

use super::compare::Place;
use super::watch::Watch;
use super::{SUBSYSTEM, TARGET};

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
    /// The port for NVMe/TCP.
    nvme: Option<u16>,
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
        let url = match self.nvme {
            None => self.url(medium),
            // A namespace is numbered from 1, a LUN from 0.
            Some(port) => {
                format!("nvme-tcp://127.0.0.1:{port}/{SUBSYSTEM}/{}", medium.lun() + 1)
            }
        };
        Place { name: self.name, pid: self.pid(), url }
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

/// Which lunet, and what it is told.
#[derive(Clone, Copy, Default)]
pub struct Build<'a> {
    /// The program of another build.
    pub program: Option<&'a Path>,
    /// Lines for `[server]`.
    pub more: &'a str,
    /// Its volumes are measured over NVMe/TCP.
    pub nvme: bool,
    /// A REST interface, whose metrics and events somebody reads.
    pub watched: bool,
}

/// One lunet with the default settings and these lines for `[server]`.
pub fn lunet(name: &'static str, more: &str, dir: &Path, size: u64, core: usize) -> Result<Peer> {
    lunet_of(Build { more, ..Build::default() }, name, dir, size, core)
}

/// A lunet as described.
pub fn lunet_of(
    build: Build<'_>,
    name: &'static str,
    dir: &Path,
    size: u64,
    core: usize,
) -> Result<Peer> {
    let files = TempDir::with_prefix_in("lunet-bench-", dir)?;
    let lun = |medium: Medium| medium.lun();
    let more = build.more;
    let mut config = format!(
        "[server]\nlog-level = \"warn\"\n{more}\n[[portal]]\naddress = \"127.0.0.1:0\"\n\
         [volumes.memory]\nbackend = \"memory\"\nsize = {size}\n\
         [volumes.file]\nbackend = \"file\"\nsize = {size}\n\
         [volumes.null]\nbackend = \"null\"\nsize = {size}\n\
         [[target]]\nname = \"{TARGET}\"\nluns = {{ {} = \"memory\", {} = \"file\", {NULL} = \"null\" }}\n",
        lun(Medium::Memory),
        lun(Medium::File),
    );
    let nvme = if build.nvme { Some(free_port()?) } else { None };
    if let Some(port) = nvme {
        config += &format!(
            "protocols = [\"iscsi\", \"nvme\"]\n\
             [[portal]]\naddress = \"127.0.0.1:{port}\"\ntransport = [\"nvme-tcp\"]\n"
        );
    }
    let page: &[&str] = if build.watched { &["--listen-control", "127.0.0.1:0"] } else { &[] };
    let serve = Serve::config(config).data(files.path()).core(Some(core)).arguments(page).quiet();
    let mut server = match build.program {
        Some(program) => serve.program(program),
        None => serve,
    }
    .start()?;
    let watch = if build.watched { Some(Watch::over(&mut server)?) } else { None };
    let how = match more {
        "" => "as it comes".to_owned(),
        more => more.to_owned(),
    };
    let process = Process::Lunet(server);
    Ok(Peer { name, how, nvme, _watch: watch, process, _files: vec![files] })
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
    Ok(Peer {
        name,
        how,
        nvme: None,
        _watch: None,
        process: Process::Tgt(tgt),
        _files: files.into(),
    })
}
