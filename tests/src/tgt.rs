//! Debian's `tgtd`: the peer of the benchmark, and a target to develop this harness with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tempfile::TempDir;

use crate::data::scratch;
use crate::process::{self, Running, leashed};
use crate::server::{free_port, url};

/// The name of the one target.
pub const TARGET: &str = "iqn.2026-11.local.lunet:peer";

/// LUN 0 is tgt's controller, so the volumes begin here.
pub const FIRST_LUN: u16 = 1;

/// Where tgtd and tgtadm look for the name of the control socket. Its own place is for root only.
const CONTROL: &str = "TGT_IPC_SOCKET";

const LIMIT: Duration = Duration::from_secs(20);

/// tgt's settings, `None` = as it comes.
pub const TUNED: [(&str, &str); 5] = [
    ("MaxRecvDataSegmentLength", "262144"),
    ("MaxXmitDataSegmentLength", "262144"),
    ("MaxBurstLength", "1048576"),
    ("FirstBurstLength", "262144"),
    ("InitialR2T", "No"),
];

/// A running `tgtd` with one target. Killed when dropped.
pub struct Tgt {
    // Dropped first, and so killed before the directory of its socket goes.
    process: Running,
    port: u16,
    control: PathBuf,
    _directory: TempDir,
}

impl Tgt {
    /// Serves `files` as LUN 1, 2 .. of [`TARGET`] on a free port, with these negotiation settings.
    pub fn start(files: &[&Path], settings: &[(&str, &str)], core: Option<usize>) -> Result<Tgt> {
        // tgtd cannot pick a port itself. Another process may take this one in between; then tgtd fails to start.
        let port = free_port()?;
        let directory = scratch("lunet-tgt-")?;
        let control = directory.path().join("control");
        let mut command = leashed(core);
        command.args(["tgtd", "-f", "--iscsi", &format!("portal=127.0.0.1:{port}")]);
        let process = Running::spawn(command.env(CONTROL, &control))?;
        let mut tgt = Tgt { process, port, control, _directory: directory };
        tgt.wait_until_it_answers()?;
        tgt.admin(&["--op", "new", "--mode", "target", "--tid", "1", "-T", TARGET])?;
        for (lun, file) in (FIRST_LUN..).zip(files) {
            tgt.add(lun, file)?;
        }
        for (name, value) in settings {
            tgt.admin(&[
                "--op", "update", "--mode", "target", "--tid", "1", "--name", name, "--value",
                value,
            ])?;
        }
        tgt.admin(&["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"])?;
        Ok(tgt)
    }

    /// The URL of a volume.
    pub fn url(&self, lun: u16) -> String {
        url(&format!("127.0.0.1:{}", self.port), TARGET, lun)
    }

    fn add(&self, lun: u16, file: &Path) -> Result<()> {
        let (lun, file) = (lun.to_string(), file.to_string_lossy());
        let arguments = ["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", &lun];
        self.admin(&[&arguments[..], &["-b", &file]].concat())
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What `tgtd --version` says.
    pub fn version() -> Result<String> {
        Ok(process::output(Command::new("tgtd").arg("--version"), LIMIT)?.trim().to_owned())
    }

    fn admin(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new("tgtadm");
        command.args(["--lld", "iscsi"]).args(arguments).env(CONTROL, &self.control);
        process::output(&mut command, LIMIT).map(drop)
    }

    /// tgtd tells nobody when its control socket is there, so this has to ask again and again.
    fn wait_until_it_answers(&mut self) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let Err(last) = self.admin(&["--op", "show", "--mode", "target"]) else {
                return Ok(());
            };
            if Instant::now() > deadline || self.process.wait(Duration::ZERO)?.is_some() {
                bail!("tgtd does not come up: {last}\n{}", self.process.stderr.text());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}
