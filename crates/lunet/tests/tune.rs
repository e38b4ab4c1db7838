//! `lunet tune` on a loop device of this machine: needs root, losetup and fio, and says so otherwise.
//!
//! The device is backed by memory, so that nothing but the processors is measured. It is a stack of
//! three loop devices: without read-ahead each page is a request of its own, which goes through the
//! thread of each of them. That reading ahead helps is so by construction. What `add_random` is set
//! to changes nothing at all.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

/// Loop devices, which are taken away at the end.
struct Loop {
    folder: tempfile::TempDir,
    /// The lowest first.
    stack: Vec<String>,
    /// The highest of them.
    device: String,
}

impl Loop {
    /// `None`, with a reason on standard error, where that is not possible.
    fn new() -> Option<Self> {
        let skip = |why: &str| eprintln!("skipped: {why}");
        if !rustix::process::geteuid().is_root() {
            skip("loop devices need root");
            return None;
        }
        if Command::new("fio").arg("--version").output().is_err() {
            skip("there is no fio here");
            return None;
        }
        let folder = tempfile::tempdir_in("/dev/shm").ok()?;
        let image = folder.path().join("image");
        // Longer than a run can read: holes take no memory.
        fs::File::create(&image).and_then(|file| file.set_len(8 << 30)).ok()?;
        let mut device = Self { folder, stack: Vec::new(), device: image.display().to_string() };
        for direct in ["off", "on", "on"] {
            let told = Command::new("losetup")
                .args(["-f", "--show", &format!("--direct-io={direct}"), &device.device])
                .output();
            let Some(told) = told.ok().filter(|told| told.status.success()) else {
                skip("losetup cannot make loop devices here");
                return None;
            };
            device.device = String::from_utf8(told.stdout).ok()?.trim().to_owned();
            device.stack.push(device.device.clone());
        }
        // In this order: Linux works read-ahead out anew when another attribute is written.
        device.set("add_random", "0");
        device.set("read_ahead_kb", "0");
        Some(device)
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
        let mut command = Command::new(env!("CARGO_BIN_EXE_lunet"));
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
        for device in self.stack.iter().rev() {
            let _ = Command::new("losetup").args(["-d", device]).status();
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
    assert_eq!((device.get("read_ahead_kb"), device.get("add_random")), ("0".into(), "0".into()));
    assert!(!device.folder.path().join("state/journal.json").exists());
}

#[test]
fn read_ahead_is_proved_to_help_and_kept() {
    let Some(device) = Loop::new() else { return };
    device.rules();
    let args =
        ["--for", "throughput", "--rounds", "12", "--seconds", "1", "--json", &device.device];
    let proved = device.run("prove", &args);
    assert!(proved.status.success(), "{proved:?}");
    let report: serde_json::Value = serde_json::from_slice(&proved.stdout).expect("JSON");
    assert_eq!(report["steps"][0]["judgement"], "helps", "{report:#}");
    // In 1 of 40 runs chance makes the other one help as well: no test can ask for that.
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
        while device.get("read_ahead_kb") == "0" && start.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(device.get("read_ahead_kb"), "4096", "it never began");
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
