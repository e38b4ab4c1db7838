//! A real cluster of Ceph with three OSDs, as plain processes of this machine. It is made for a suite and ends with it.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use serde_json::{Deserializer, Value};

use crate::data::scratch;
use crate::process::output;
use crate::sources::root;

/// For one command of Ceph's on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Programs that a cluster needs, and the packages of Debian that have them.
const PROGRAMS: [(&str, &str); 4] = [
    ("ceph-mon", "ceph-mon"),
    ("ceph-mgr", "ceph-mgr"),
    ("ceph-osd", "ceph-osd"),
    ("rbd", "ceph-common"),
];

/// A running cluster. Its supervisor ends it when this process does, by the end of the pipe.
pub struct Cluster {
    directory: PathBuf,
    _supervisor: Child,
}

/// The cluster of this process; `None` if Ceph is not installed, which is said.
///
/// # Panics
/// It does not start.
pub fn cluster() -> Option<&'static Cluster> {
    static CLUSTER: OnceLock<Option<Cluster>> = OnceLock::new();
    CLUSTER.get_or_init(|| another(None)).as_ref()
}

/// A cluster of the caller's own, for a test after which it is not as it was; `None` if Ceph is not installed, which is
/// said. It is at an address of this machine, or at one of loopback.
///
/// # Panics
/// It does not start.
pub fn another(address: Option<&str>) -> Option<Cluster> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        |program: &str| std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    let missing: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, _)| !is_there(program))
        .map(|(_, package)| *package)
        .collect();
    if !missing.is_empty() {
        let packages = missing.join(", ");
        eprintln!("skipped: there is no Ceph here; install the packages {packages}");
        return None;
    }
    Some(Cluster::start(address).expect("the cluster starts"))
}

impl Cluster {
    fn start(address: Option<&str>) -> Result<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        // The supervisor removes it.
        let directory = scratch("lunet-ceph-")?.keep();
        // No two clusters of a process have one address, and seldom two of different processes.
        let me = std::process::id() + STARTED.fetch_add(1, Ordering::Relaxed) * 127;
        let own = format!("127.{}.{}.{}", 64 + me / 65536 % 64, me / 256 % 256, me % 254 + 1);
        let mut supervisor = Command::new(root().join("tests/ceph/cluster"))
            .arg(&directory)
            .args(["run", address.unwrap_or(&own)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut said = String::new();
        let out = supervisor.stdout.take().context("no output")?;
        BufReader::new(out).read_line(&mut said)?;
        ensure!(said == "ready\n", "the cluster does not get ready: see above");
        Ok(Self { directory, _supervisor: supervisor })
    }

    /// Where all its files are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Its configuration, as clients need it.
    pub fn conf(&self) -> PathBuf {
        self.directory.join("ceph.conf")
    }

    /// Has the script that made it do something.
    ///
    /// # Errors
    /// What the script says.
    pub fn script(&self, words: &[&str]) -> Result<String> {
        let mut script = Command::new(root().join("tests/ceph/cluster"));
        output(script.arg(&self.directory).args(words), PATIENCE)
    }

    /// Runs `rbd` as the administrator.
    ///
    /// # Errors
    /// What it says.
    pub fn rbd(&self, words: &[&str]) -> Result<String> {
        output(self.command("rbd").args(words), PATIENCE)
    }

    /// Runs `rados` as the administrator.
    ///
    /// # Errors
    /// What it says.
    pub fn rados(&self, words: &[&str]) -> Result<String> {
        output(self.command("rados").args(words), PATIENCE)
    }

    /// Runs `ceph` as the administrator.
    ///
    /// # Errors
    /// What it says.
    pub fn ceph(&self, words: &[&str]) -> Result<String> {
        output(self.command("ceph").args(words), PATIENCE)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("--conf").arg(self.conf());
        command
    }

    /// Makes an image of so many MiB.
    ///
    /// # Errors
    /// The cluster's.
    pub fn image(&self, name: &str, mib: u64) -> Result<()> {
        self.rbd(&["create", name, "--size", &format!("{mib}M")]).map(drop)
    }

    /// Makes an image for a failover group, which has no object map.
    ///
    /// # Errors
    /// The cluster's.
    pub fn shared_image(&self, name: &str, mib: u64) -> Result<()> {
        let features = ["--image-feature", "layering,exclusive-lock"];
        let size = format!("{mib}M");
        self.rbd(&[&["create", name, "--size", &size][..], &features].concat()).map(drop)
    }

    /// What the cluster has of an image, read by Ceph's own client past the lock.
    ///
    /// # Errors
    /// The cluster's.
    pub fn content(&self, name: &str) -> Result<Vec<u8>> {
        let mut child = self
            .command("rbd")
            .args(["export", "--no-progress", name, "-"])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut bytes = Vec::new();
        child.stdout.take().context("no output")?.read_to_end(&mut bytes)?;
        ensure!(child.wait()?.success(), "rbd export of {name} failed");
        Ok(bytes)
    }

    /// The address of the client that has an image's lock, with the lock's id and the client's name.
    ///
    /// # Errors
    /// Nobody has it, or the cluster's.
    pub fn holder(&self, image: &str) -> Result<[String; 3]> {
        let locks = self.rbd(&["lock", "ls", image, "--format", "json"])?;
        let locks: Value = serde_json::from_str(&locks)?;
        let word = |key: &str| locks[0][key].as_str().map(str::to_owned);
        let (address, id, name) = (word("address"), word("id"), word("locker"));
        let missing = "the lock has an owner";
        Ok([address.context(missing)?, id.context(missing)?, name.context(missing)?])
    }

    /// For how many years a client is on the blocklist; `None` if it is not.
    ///
    /// # Errors
    /// The cluster's.
    pub fn years_listed(&self, address: &str) -> Result<Option<u64>> {
        let text = self.ceph(&["osd", "blocklist", "ls", "--format", "json"])?;
        // A list of ranges follows it.
        let mut lists = Deserializer::from_str(&text).into_iter::<Value>();
        let list = lists.next().context("no list")??;
        let entries = list.as_array().context("a list")?;
        let Some(entry) = entries.iter().find(|entry| entry["addr"] == address) else {
            return Ok(None);
        };
        let until = entry["until"].as_str().context("an end")?;
        let date = output(Command::new("date").args(["+%s", "--date", until]), PATIENCE)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        Ok(Some(date.trim().parse::<u64>()?.saturating_sub(now) / (365 * 86_400)))
    }
}
