//! Runs the suite on the configurations.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::configurations::{Configuration, SIZE, Second, TARGET};
use super::{Case, Report, Unit};
use crate::data::scratch;
use crate::fuse::{LoopDevice, is_root};
use crate::server::{Serve, Server, free_port, url};
use crate::wire::scsi::GOOD;
use crate::wire::{Login, Relay, Session};

/// Files that CHAP's secrets are in.
const SECRETS: [(&str, &str); 2] =
    [("user.secret", "secretOfTheUser"), ("target.secret", "secretOfTheTarget")];

impl Configuration {
    /// Why it cannot run here; `None`: it can.
    pub fn obstacle(&self) -> Option<&'static str> {
        (self.sector.is_some() && !is_root()).then_some("only root may make a loop device")
    }

    /// The text of `lunet.toml`. `second` is the address of a second portal.
    fn text(&self, second: &str) -> String {
        let Configuration { server, iscsi, volume, target, more, .. } = self;
        let text = format!(
            "[server]\n{server}\n[iscsi]\n{iscsi}\n[[portal]]\naddress = \"127.0.0.1:0\"\n\
             [volumes.a]\n{volume}\n{more}\n[[target]]\nname = \"{TARGET}\"\nallow-reset = true\n{target}\n"
        );
        text.replace("{second}", second)
    }

    /// Starts a server with this configuration, and what lies before and behind it.
    fn start(&self) -> Result<Stand> {
        let directory = scratch("lunet-conformance-")?;
        let path = directory.path().join("a.img");
        if self.image || self.sector.is_some() {
            File::create(&path)?.set_len(SIZE)?;
        }
        let device = self.sector.map(|sector| LoopDevice::new(&path, sector)).transpose()?;
        for (name, secret) in SECRETS {
            let path = directory.path().join(name);
            fs::write(&path, secret)?;
            fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        }
        let second = format!("127.0.0.1:{}", free_port()?);
        let mut text = self.text(&second);
        if let Some(device) = &device {
            text = text.replace("{device}", &device.path().display().to_string());
        }
        let server = Serve::config(text).data(directory.path()).quiet().start()?;
        if self.protect {
            protect(server.portal())?;
        }
        let relay = self.data_digest.then(|| Relay::start(server.portal())).transpose()?;
        let portal = relay.as_ref().map_or(server.portal().to_owned(), Relay::portal);
        let (user, mutual) = self.chap;
        let way = |portal: &str, target: &str| {
            format!("{}{mutual}", url(&format!("{user}{portal}"), target, self.lun))
        };
        let first = way(&portal, TARGET);
        let other = match self.second {
            Second::Session => first.clone(),
            Second::Portal => way(&second, TARGET),
            Second::Target => way(&portal, &format!("{TARGET}-2")),
        };
        let unit = Unit { urls: [first, other], leaves_out: self.leaves_out, slow: self.slow };
        Ok(Stand { unit, server, relay, device, directory })
    }

    /// Starts a server, runs every test of `names` on it, and stops it.
    pub fn run(&self, names: &[String], progress: impl FnMut(&Case)) -> Result<Outcome> {
        let start = Instant::now();
        let stand = self.start()?;
        let report = super::run(&stand.unit, names, progress)?;
        let digests = stand.relay.as_ref().map(Relay::checked).transpose()?;
        stand.stop()?;
        Ok(Outcome { report, digests, elapsed: start.elapsed() })
    }
}

/// Switches the software write protection of the logical unit on: SWP of the Control mode page (SPC-5 7.5.10).
fn protect(portal: &str) -> Result<()> {
    let mut session = Session::open(&Login::new(portal, TARGET))?;
    session.settle(0)?;
    let sense = session.execute(0, &[0x1a, 0x08, 0x0a, 0, 255, 0], 255, &[])?;
    let mut list = sense.data;
    ensure!(sense.status == GOOD && list.len() == 16, "MODE SENSE: {list:02x?}");
    list[..4].fill(0);
    list[4] &= 0x3f;
    list[4 + 4] |= 0x08;
    let answer = session.execute(0, &[0x15, 0x10, 0, 0, 16, 0], 0, &list)?;
    ensure!(answer.status == GOOD, "MODE SELECT: {:02x?}", answer.sense);
    session.logout()
}

/// A running server with all that belongs to it, in the order in which they must go.
struct Stand {
    unit: Unit,
    server: Server,
    relay: Option<Relay>,
    device: Option<LoopDevice>,
    directory: TempDir,
}

impl Stand {
    fn stop(self) -> Result<()> {
        self.server.stop()?;
        drop((self.relay, self.device, self.directory));
        Ok(())
    }
}

/// What came of one configuration.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Of each test.
    pub report: Report,
    /// How many data segments came with a data digest, which was right; `None` without data digests.
    pub digests: Option<u64>,
    /// From the server's start to its end.
    pub elapsed: Duration,
}

/// Runs the suite on all of `configurations`, `jobs` of them at a time: the tests sleep much.
pub fn run_all(
    configurations: &[Configuration],
    names: &[String],
    jobs: usize,
    progress: impl Fn(&Configuration, &Case) + Sync,
) -> Result<Vec<Outcome>> {
    let results: Vec<Mutex<Option<Result<Outcome>>>> =
        configurations.iter().map(|_| Mutex::new(None)).collect();
    let waiting = Mutex::new(configurations.iter().zip(&results));
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((configuration, result)) = next else { break };
                    let outcome = configuration
                        .run(names, |case| progress(configuration, case))
                        .with_context(|| format!("configuration {}", configuration.name));
                    *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
                }
            });
        }
    });
    let taken = results.into_iter().map(|result| {
        let outcome = result.into_inner().unwrap_or_else(PoisonError::into_inner);
        outcome.context("a configuration that was not run")?
    });
    taken.collect()
}
