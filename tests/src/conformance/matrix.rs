//! The configurations that the suite runs on.
//!
//! A grid of backend, block size, event loop and digests, and one configuration for each thing that the suite asks for or
//! that changes what it sees.

use std::fs::File;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::{Case, Report};
use crate::data::scratch;
use crate::fuse::{LoopDevice, is_root};
use crate::server::{Serve, Server, free_port, url};
use crate::wire::Relay;

/// Large enough for every test, and small enough for READ(6) to reach beyond the end.
const SIZE: u64 = 512 << 20;

const TARGET: &str = "iqn.2026-11.local.lunet:conformance";

/// The configuration whose volume takes long to be sanitized.
const HUGE: &str = "huge";

/// How the second of the two paths that the tool is given leads to the logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Second {
    /// The same address again: a second session.
    Session,
    /// Another portal of the same target.
    Portal,
    /// Another target, which has the same volume.
    Target,
}

/// A way to serve the volume, and to reach it.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Short, for the command line and the page.
    pub name: String,
    /// What is special about it.
    pub about: String,
    /// Lines of `[server]`.
    server: String,
    /// Lines of `[iscsi]`.
    iscsi: String,
    /// Lines of `[volumes.a]`. `{dir}` is the server's directory, `{device}` the loop device.
    volume: String,
    /// Lines of the first `[[target]]`, beside its name.
    target: String,
    /// Further tables.
    more: String,
    /// A loop device of this sector size is the volume.
    sector: Option<u32>,
    /// The volume's file exists already.
    image: bool,
    lun: u16,
    second: Second,
    /// `user%secret@` of the URL.
    login: &'static str,
    /// A relay gives the tool data digests.
    data_digest: bool,
    leaves_out: fn(&str) -> Option<&'static str>,
}

impl Configuration {
    fn new(name: impl Into<String>, about: impl Into<String>, volume: &str) -> Configuration {
        Configuration {
            name: name.into(),
            about: about.into(),
            server: String::new(),
            iscsi: String::new(),
            volume: volume.to_owned(),
            target: "luns = [\"a\"]".into(),
            more: String::new(),
            sector: None,
            image: false,
            lun: 0,
            second: Second::Session,
            login: "",
            data_digest: false,
            leaves_out: |_| None,
        }
    }

    /// Why it cannot run here; `None`: it can.
    pub fn obstacle(&self) -> Option<&'static str> {
        (self.sector.is_some() && !is_root()).then_some("only root may make a loop device")
    }

    /// The text of `lunet.toml`. `second` is the address of a second portal.
    fn text(&self, second: &str) -> String {
        let Configuration { server, iscsi, volume, target, more, .. } = self;
        let text = format!(
            "[server]\n{server}\n[iscsi]\n{iscsi}\n[[portal]]\naddress = \"127.0.0.1:0\"\n\
             [volumes.a]\n{volume}\n{more}\n[[target]]\nname = \"{TARGET}\"\n{target}\n"
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
        let second = format!("127.0.0.1:{}", free_port()?);
        let mut text = self.text(&second);
        if let Some(device) = &device {
            text = text.replace("{device}", &device.path().display().to_string());
        }
        let server = Serve::config(text).data(directory.path()).quiet().start()?;
        let relay = self.data_digest.then(|| Relay::start(server.portal())).transpose()?;
        let portal = relay.as_ref().map_or(server.portal().to_owned(), Relay::portal);
        let way =
            |portal: &str, target: &str| url(&format!("{}{portal}", self.login), target, self.lun);
        let first = way(&portal, TARGET);
        let other = match self.second {
            Second::Session => first.clone(),
            Second::Portal => way(&second, TARGET),
            Second::Target => way(&portal, &format!("{TARGET}-2")),
        };
        Ok(Stand { urls: [first, other], server, relay, device, directory })
    }

    /// Why a test is not for this configuration.
    fn leaves_out(&self, name: &str) -> Option<&'static str> {
        let looks_late = name == "Sanitize.Reset" && self.name != HUGE;
        let over = "it looks at SANITIZE after 3 s, when a volume of this size is done";
        (self.leaves_out)(name).or_else(|| looks_late.then_some(over))
    }

    /// Starts a server, runs every test of `names` on it, and stops it.
    pub fn run(&self, names: &[String], progress: impl FnMut(&Case)) -> Result<Outcome> {
        let start = Instant::now();
        let stand = self.start()?;
        let report = super::run(&stand.urls, names, |name| self.leaves_out(name), progress)?;
        let digests = stand.relay.as_ref().map(Relay::checked).transpose()?;
        stand.stop()?;
        Ok(Outcome { report, digests, elapsed: start.elapsed() })
    }
}

/// A running server with all that belongs to it, in the order in which they must go.
struct Stand {
    urls: [String; 2],
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

/// All configurations, those that stand for something special first.
pub fn all() -> Vec<Configuration> {
    let mut all = special();
    all.extend(grid());
    all
}

/// The grid: each backend, block size and event loop, with digests and without.
fn grid() -> Vec<Configuration> {
    let mut grid = Vec::new();
    for backend in ["file", "block", "memory"] {
        for (geometry, logical, physical) in
            [("512n", 512, 512), ("512e", 512, 4096), ("4kn", 4096, 4096)]
        {
            for driver in ["io_uring", "epoll"] {
                for digests in [false, true] {
                    grid.push(cell(backend, (geometry, logical, physical), driver, digests));
                }
            }
        }
    }
    grid
}

fn cell(
    backend: &str,
    (geometry, logical, physical): (&str, u32, u32),
    driver: &str,
    digests: bool,
) -> Configuration {
    let place = match backend {
        "block" => "path = \"{device}\"".to_owned(),
        _ => format!("size = {SIZE}\nblock-size = {logical}"),
    };
    let volume = format!("backend = \"{backend}\"\n{place}\nphysical-block-size = {physical}");
    let (suffix, words) =
        if digests { ("-digests", ", header and data digests") } else { ("", ", no digests") };
    let name = format!("{backend}-{geometry}-{driver}{suffix}");
    let about = format!("{backend}, {logical} bytes in {physical}, {driver}{words}");
    let digest = |on: bool| if on { "require" } else { "forbid" };
    Configuration {
        server: format!("driver = \"{driver}\""),
        iscsi: format!("header-digest = \"{0}\"\ndata-digest = \"{0}\"", digest(digests)),
        sector: (backend == "block").then_some(logical),
        data_digest: digests,
        ..Configuration::new(name, about, &volume)
    }
}

/// One volume of each kind, and each way to a volume.
fn special() -> Vec<Configuration> {
    let thin = &format!("backend = \"file\"\nsize = {SIZE}");
    let full = &format!("{thin}\nprovisioning = \"full\"");
    let direct = &format!("{thin}\ncache = \"direct\"");
    let removable = &format!("{thin}\nremovable = true");
    let another = format!("[volumes.b]\nbackend = \"memory\"\nsize = {SIZE}\n");
    let second_portal = "[[portal]]\naddress = \"{second}\"\ntag = 2\n".to_owned();
    let second_target = format!("[[target]]\nname = \"{TARGET}-2\"\nluns = [\"a\"]\n");
    vec![
        Configuration::new("thin", "a thin file, as it comes", thin),
        Configuration::new("full", "a fully provisioned file", full),
        Configuration::new("direct", "a file with direct I/O", direct),
        Configuration::new("removable", "a removable medium", removable),
        Configuration {
            image: true,
            leaves_out: writes,
            ..Configuration::new(
                "read-only",
                "a read-only file",
                "backend = \"file\"\nread-only = true",
            )
        },
        Configuration {
            more: another,
            target: "luns = { 0 = \"b\", 7 = \"a\" }".into(),
            lun: 7,
            ..Configuration::new("two-luns", "a target with two logical units, LUN 7 of it", thin)
        },
        Configuration {
            target: "luns = [\"a\"]\nuser = [{ name = \"suite\", secret = \"a-secret-of-16-b\" }]"
                .into(),
            login: "suite%a-secret-of-16-b@",
            ..Configuration::new("chap", "CHAP, with MD5: libiscsi has nothing else", thin)
        },
        Configuration {
            more: second_portal,
            second: Second::Portal,
            ..Configuration::new("two-portals", "two portals with tags of their own", thin)
        },
        Configuration {
            more: second_target,
            second: Second::Target,
            ..Configuration::new("two-targets", "two targets with the same volume", thin)
        },
        Configuration {
            leaves_out: keeps,
            ..Configuration::new(
                HUGE,
                "a volume that takes 10 s to be sanitized, and keeps nothing",
                "backend = \"null\"\nsize = \"64GiB\"",
            )
        },
        Configuration {
            iscsi: "header-digest = \"require\"".into(),
            ..Configuration::new("header-digest", "header digests alone, without a relay", thin)
        },
        Configuration {
            iscsi: "max-recv-data-segment-length = 4096\nfirst-burst-length = 4096\n\
                    max-burst-length = 8192\nmax-outstanding-r2t = 1\ninitial-r2t = true\n\
                    immediate-data = false\nqueue-depth = 4"
                .into(),
            leaves_out: aborts,
            ..Configuration::new("narrow", "the smallest bursts, every byte asked for", thin)
        },
    ]
}

/// The tests that write to the medium without a look at its write protection. On a read-only volume they would fail on
/// every target.
fn writes(name: &str) -> Option<&'static str> {
    const THEY_DO: [&str; 10] = [
        "CompareAndWrite.",
        "ExtendedCopy.",
        "GetLBAStatus.",
        "OrWrite.",
        "ProutReserve.Access",
        "Sanitize.",
        "Unmap.",
        "Write",
        "iSCSIResiduals.Write",
        "iSCSITMF.",
    ];
    let does = THEY_DO.iter().any(|start| name.starts_with(start))
        || (name.starts_with("MultipathIO.") && name != "MultipathIO.Reset");
    does.then_some("it writes without asking whether the medium is write-protected")
}

/// All tests but one: they want to read what they have written.
fn keeps(name: &str) -> Option<&'static str> {
    (name != "Sanitize.Reset").then_some("the volume keeps nothing")
}

/// The tests that abort a write for which an R2T may be on its way. libiscsi 1.19 then frees the write twice and crashes, now
/// and then.
fn aborts(name: &str) -> Option<&'static str> {
    name.starts_with("iSCSITMF.")
        .then_some("the tool frees an aborted write twice when an R2T comes for it")
}

/// The few configurations that together run every test that can run at all.
pub const SELECTION: [&str; 7] = [
    HUGE,
    "two-portals",
    "full",
    "removable",
    "read-only",
    "memory-512e-epoll-digests",
    "block-4kn-io_uring",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_the_selection_is_among_them() {
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        assert!(SELECTION.iter().all(|name| names.contains(name)));
    }
}
