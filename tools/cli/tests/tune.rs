//! `lunet tune` on a loop device of this machine: needs root, losetup and fio, and says so otherwise.
//!
//! What is to be proved to help must help by construction, however busy the machine is: the file below that device answers every
//! request after 5 ms (a FUSE export of `qemu-storage-daemon`). Without read-ahead each page is a request of its own, which is
//! waited for; with it, many are on their way. What `add_random` is set to changes nothing at all.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A file that is slow: it answers after this many nanoseconds.
const LATENCY: &str = "latency-ns=5000000";
/// Longer than a run can read.
const SIZE: u64 = 8 << 30;
/// How long anything may take to begin.
const LIMIT: Duration = Duration::from_secs(60);

/// A loop device, which is taken away at the end.
struct Loop {
    folder: tempfile::TempDir,
    image: PathBuf,
    slow: Option<Child>,
    device: String,
}

fn skip<T>(why: &str) -> Option<T> {
    eprintln!("skipped: {why}");
    None
}

impl Loop {
    /// On a file in memory. `None`, with a reason on standard error, where that is not possible.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return skip("loop devices need root");
        }
        if Command::new("fio").arg("--version").output().is_err() {
            return skip("there is no fio here");
        }
        let folder = tempfile::tempdir_in("/dev/shm").ok()?;
        let image = folder.path().join("image");
        // Holes take no memory.
        fs::File::create(&image).and_then(|file| file.set_len(SIZE)).ok()?;
        Self { folder, image, slow: None, device: String::new() }.set_up("off")
    }

    /// On a slow file.
    fn slow() -> Option<Self> {
        let mut device = Self::new()?;
        device.detach();
        let disk = format!("driver=null-co,node-name=disk,read-zeroes=on,size={SIZE},{LATENCY}");
        let image = device.image.display();
        let export = format!("type=fuse,id=e,node-name=disk,writable=on,mountpoint={image}");
        let daemon = Command::new("qemu-storage-daemon")
            .args(["--blockdev", &disk, "--export", &export])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(daemon) = daemon else { return skip("there is no qemu-storage-daemon here") };
        device.slow = Some(daemon);
        let start = Instant::now();
        let mounted = |image: &Path| {
            let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
            mounts.lines().any(|line| line.split(' ').nth(1) == image.to_str())
        };
        while !mounted(&device.image) {
            let ended = device.slow.as_mut()?.try_wait().ok()?.is_some();
            if ended || start.elapsed() > LIMIT {
                return skip("qemu-storage-daemon can export nothing by FUSE here");
            }
            thread::sleep(Duration::from_millis(20));
        }
        // The kernel's cache of the file would be as fast as memory.
        let device = device.set_up("on")?;
        let direct = device.attribute("../loop/dio");
        match fs::read_to_string(direct).is_ok_and(|dio| dio.trim() == "1") {
            true => Some(device),
            false => skip("this kernel's loop devices cannot go past the cache of FUSE"),
        }
    }

    fn set_up(mut self, direct: &str) -> Option<Self> {
        let direct = format!("--direct-io={direct}");
        let told =
            Command::new("losetup").args(["-f", "--show", &direct]).arg(&self.image).output();
        let Some(told) = told.ok().filter(|told| told.status.success()) else {
            return skip("losetup cannot make loop devices here");
        };
        self.device = String::from_utf8(told.stdout).ok()?.trim().to_owned();
        // In this order: Linux works read-ahead out anew when another attribute is written.
        self.set("add_random", "0");
        self.set("read_ahead_kb", "0");
        Some(self)
    }

    fn detach(&mut self) {
        if !self.device.is_empty() {
            let _ = Command::new("losetup").args(["-d", &self.device]).status();
            self.device.clear();
        }
    }

    fn attribute(&self, name: &str) -> PathBuf {
        let device = self.device.trim_start_matches("/dev/");
        Path::new("/sys/block").join(device).join("queue").join(name)
    }

    fn set(&self, name: &str, value: &str) {
        fs::write(self.attribute(name), value).expect("root may");
    }

    fn get(&self, name: &str) -> String {
        fs::read_to_string(self.attribute(name)).expect("it is there").trim().to_owned()
    }

    /// Rules for this device.
    fn rules(&self) {
        let rule = |id: &str, name: &str, value: &str| {
            format!(
                "[[rule]]\nid = \"{id}\"\ntitle = \"a test\"\nvalue = \"{value}\"\n\
                 set = {{ kind = \"sysfs\", path = \"{}\" }}\n\
                 reason = \"A test.\"\nrisk = \"None.\"\nsource = \"this test\"\n",
                self.attribute(name).display()
            )
        };
        let text =
            rule("loop.ahead", "read_ahead_kb", "4096") + &rule("loop.none", "add_random", "1");
        fs::write(self.folder.path().join("loop.toml"), text).expect("written");
    }

    fn lunet(&self, verb: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lunet-tools"));
        command
            .args(["tune", verb])
            .args(args)
            .arg("--state")
            .arg(self.folder.path().join("state"));
        if matches!(verb, "apply" | "prove") {
            command.arg("--rules").arg(self.folder.path()).args(["--only", "loop"]);
        }
        command
    }

    fn run(&self, verb: &str, args: &[&str]) -> Output {
        self.lunet(verb, args).output().expect("it runs")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.detach();
        if let Some(mut daemon) = self.slow.take() {
            let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(&self.image).status();
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

#[test]
fn a_plan_is_applied_verified_and_rolled_back() {
    let Some(device) = Loop::new() else { return };
    device.rules();
    let applied = device.run("apply", &[]);
    assert!(applied.status.success(), "{applied:?}");
    assert_eq!(
        (device.get("read_ahead_kb"), device.get("add_random")),
        ("4096".into(), "1".into())
    );
    assert_eq!(device.run("verify", &[]).status.code(), Some(0));
    device.set("read_ahead_kb", "128");
    assert_eq!(device.run("verify", &[]).status.code(), Some(2), "it has drifted");
    assert!(device.run("rollback", &[]).status.success());
    // What somebody has set since is theirs.
    assert_eq!((device.get("read_ahead_kb"), device.get("add_random")), ("128".into(), "0".into()));
    assert!(!device.folder.path().join("state/journal.json").exists());
}

#[test]
fn read_ahead_is_proved_to_help_and_kept() {
    let Some(device) = Loop::slow() else { return };
    device.rules();
    let args = ["--for", "throughput", "--rounds", "6", "--seconds", "1", "--json", &device.device];
    let proved = device.run("prove", &args);
    assert!(proved.status.success(), "{proved:?}");
    let report: serde_json::Value = serde_json::from_slice(&proved.stdout).expect("JSON");
    assert_eq!(report["steps"][0]["judgement"], "helps", "{report:#}");
    assert!(report["steps"][0]["again"]["low"].as_f64() > Some(1.0), "{report:#}");
    // Chance may make the other one help as well, if seldom: no test can ask for that.
    assert_eq!(report["steps"][1]["name"], "loop.none");
    let kept = if report["steps"][0]["kept"] == true { "4096" } else { "0" };
    assert_eq!(device.get("read_ahead_kb"), kept);
    assert!(device.run("rollback", &[]).status.success());
    assert_eq!(device.get("read_ahead_kb"), "0");
}

#[test]
fn a_proof_that_is_interrupted_leaves_nothing_behind() {
    let Some(device) = Loop::new() else { return };
    device.rules();
    let args = ["--for", "throughput", "--rounds", "50", "--seconds", "1", &device.device];
    for (signal, code) in [
        (rustix::process::Signal::INT, Some(130)),
        (rustix::process::Signal::TERM, Some(130)),
        (rustix::process::Signal::KILL, None),
    ] {
        let mut child = device.lunet("prove", &args).spawn().expect("it runs");
        let start = Instant::now();
        while device.get("read_ahead_kb") != "4096" {
            assert!(start.elapsed() < LIMIT, "it never began");
            thread::sleep(Duration::from_millis(10));
        }
        let id = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(id, signal).expect("it is ours");
        assert_eq!(child.wait().expect("it ends").code(), code);
        if code.is_none() {
            // Its fio ends by itself.
            thread::sleep(Duration::from_secs(2));
            assert_eq!(device.run("verify", &[]).status.code(), Some(2), "it was interrupted");
            assert!(device.run("rollback", &[]).status.success());
        }
        let now = (device.get("read_ahead_kb"), device.get("add_random"));
        assert_eq!(now, ("0".to_owned(), "0".to_owned()), "{signal:?}");
        assert!(!device.folder.path().join("state/journal.json").exists());
    }
}
