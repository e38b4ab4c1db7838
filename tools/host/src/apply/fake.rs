//! A machine in memory that can break, refuse and be killed at any point.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::machine::{Fault, Kept, Machine};
use crate::source::{Command, Output, Source, Tree};

/// The temporary file of a file that is being replaced.
fn fresh(path: &str) -> String {
    lunet_files::fresh(Path::new(path)).display().to_string()
}

/// A machine in memory, whose nth change can fail or kill the program.
#[derive(Default)]
pub struct Fake {
    tree: RefCell<Tree>,
    modes: RefCell<BTreeMap<String, u32>>,
    tunables: RefCell<Vec<Value>>,
    scripts: RefCell<Vec<Value>>,
    options: RefCell<Option<String>>,
    /// How many things were changed.
    pub changes: Cell<usize>,
    /// The change that fails.
    pub fail_at: Cell<Option<usize>>,
    /// The change at which the program is killed.
    pub die_at: Cell<Option<usize>>,
    dead: Cell<bool>,
    /// Files below this cannot be written.
    pub read_only: RefCell<Option<String>>,
    /// What the kernel makes of any value of this file.
    pub clamp: RefCell<Option<(String, String)>>,
    /// The programs that were run.
    pub ran: RefCell<Vec<String>>,
}

impl Fake {
    pub fn new(tree: &str) -> Self {
        let fake = Self::default();
        *fake.tree.borrow_mut() = Tree::parse(tree).expect("it has the form");
        fake
    }

    /// Makes it a TrueNAS, with a tunable that somebody has set.
    pub fn truenas(self) -> Self {
        let old = json!({
            "id": 7, "type": "SYSCTL", "var": "net.core.rmem_max", "value": "300000",
            "enabled": true,
        });
        self.tunables.borrow_mut().push(old);
        *self.options.borrow_mut() = Some("quiet pcie_aspm=default".to_owned());
        self.tell();
        self
    }

    /// Somebody changes an entry of TrueNAS.
    pub fn entry(&self, var: &str, change: &Value) {
        let mut list = self.tunables.borrow_mut();
        let entry = list.iter_mut().find(|entry| entry["var"] == var).expect("it is there");
        for (name, value) in change.as_object().expect("an object") {
            entry[name] = value.clone();
        }
        drop(list);
        self.tell();
    }

    /// Somebody has a start script on a TrueNAS.
    pub fn script(&self, command: &str, enabled: bool) {
        let new = json!({"id": 3, "command": command, "enabled": enabled});
        self.scripts.borrow_mut().push(new);
        self.tell();
    }

    /// Somebody changes the additions to the command line of a TrueNAS.
    pub fn set_options(&self, options: &str) {
        *self.options.borrow_mut() = Some(options.to_owned());
        self.tell();
    }

    /// The additions to the command line of a TrueNAS.
    pub fn extra_options(&self) -> String {
        self.options.borrow().clone().unwrap_or_default()
    }

    /// What it is, without the journal.
    pub fn state(&self) -> (String, Vec<(String, u32)>) {
        let mut tree = self.tree.borrow().clone();
        tree.remove(super::STATE);
        let modes = self.modes.borrow();
        let there =
            modes.iter().filter(|(path, mode)| **mode != 0o644 && tree.read(path).is_some());
        let there = there.map(|(path, mode)| (path.clone(), *mode)).collect();
        (tree.to_text(), there)
    }

    /// The program is started again after it was killed.
    pub fn revive(&self) {
        self.dead.set(false);
        self.die_at.set(None);
        self.fail_at.set(None);
    }

    /// Changes it from outside.
    pub fn overlay(&self, text: &str) {
        self.tree.borrow_mut().overlay(text).expect("it has the form");
    }

    fn gate(&self) -> Result<(), Fault> {
        let number = self.changes.get();
        self.changes.set(number + 1);
        if self.die_at.get() == Some(number) {
            self.dead.set(true);
        }
        match self.dead.get() {
            true => Err(Fault("killed".to_owned())),
            false if self.fail_at.get() == Some(number) => Err(Fault("it broke".to_owned())),
            false => Ok(()),
        }
    }

    fn check(&self, path: &str) -> Result<(), Fault> {
        let read_only = self.read_only.borrow();
        match read_only.as_ref().is_some_and(|start| path.starts_with(start.as_str())) {
            true => Err(Fault("read-only file system".to_owned())),
            false => Ok(()),
        }
    }

    /// Puts what midclt answers into the tree.
    fn tell(&self) {
        let mut tree = self.tree.borrow_mut();
        let Some(options) = &*self.options.borrow() else { return };
        let mut answer = |line: &str, value: String| {
            tree.command(line, Output { code: 0, stdout: value });
        };
        answer("midclt call tunable.query", json!(*self.tunables.borrow()).to_string());
        answer("midclt call initshutdownscript.query", json!(*self.scripts.borrow()).to_string());
        let config = json!({"kernel_extra_options": options}).to_string();
        answer("midclt call system.advanced.config", config);
    }

    fn midclt(&self, args: &[&str]) -> Result<(), Fault> {
        let args: Vec<&str> = args.iter().filter(|arg| **arg != "-job").copied().collect();
        let parse = |text: &str| serde_json::from_str::<Value>(text).expect("it is JSON");
        let list = match args[1].split('.').next() {
            Some("tunable") => &self.tunables,
            Some("initshutdownscript") => &self.scripts,
            _ => {
                let change = parse(args[2]);
                let options = change["kernel_extra_options"].as_str().expect("a text");
                *self.options.borrow_mut() = Some(options.to_owned());
                self.tell();
                return Ok(());
            }
        };
        let id = |entry: &Value| entry["id"].to_string();
        match args[1].split('.').nth(1) {
            Some("create") => {
                let mut new = parse(args[2]);
                new["id"] = json!(100 + list.borrow().len());
                list.borrow_mut().push(new);
            }
            Some("delete") => list.borrow_mut().retain(|entry| id(entry) != args[2]),
            Some("update") => {
                let change = parse(args[3]);
                let mut list = list.borrow_mut();
                let entry =
                    list.iter_mut().find(|entry| id(entry) == args[2]).expect("it is there");
                for (name, value) in change.as_object().expect("an object") {
                    entry[name] = value.clone();
                }
            }
            other => panic!("{other:?}"),
        }
        self.tell();
        Ok(())
    }

    fn ring(&self, nic: &str, ring: &str, value: &str) {
        let line = format!("ethtool -g {nic}");
        let stdout = self.run(&Command::new("ethtool", &["-g", nic])).expect("there").stdout;
        let (head, current) = stdout.split_once("Current").expect("it has");
        let lines = current.lines().map(|line| match line.split_once(':') {
            Some((name, _)) if name.eq_ignore_ascii_case(ring) => format!("{name}:\t\t{value}"),
            _ => line.to_owned(),
        });
        let lines: Vec<String> = lines.collect();
        let stdout = format!("{head}Current{}\n", lines.join("\n"));
        self.tree.borrow_mut().command(&line, Output { code: 0, stdout });
    }
}

impl Source for Fake {
    fn read(&self, path: &str) -> Option<String> {
        self.tree.borrow().read(path)
    }

    fn list(&self, directory: &str) -> Option<Vec<String>> {
        self.tree.borrow().list(directory)
    }

    fn link(&self, path: &str) -> Option<String> {
        self.tree.borrow().link(path)
    }

    fn run(&self, command: &Command) -> Option<Output> {
        self.tree.borrow().run(command)
    }
}

impl Machine for Fake {
    fn source(&self) -> &dyn Source {
        self
    }

    fn write(&self, path: &str, value: &str) -> Result<(), Fault> {
        self.gate()?;
        self.check(path)?;
        let have = self.read(path).ok_or_else(|| Fault("no such file or directory".to_owned()))?;
        let clamp = self.clamp.borrow();
        let value = match &*clamp {
            Some((file, made)) if file == path => made,
            _ => value,
        };
        // A file that shows a choice keeps showing it.
        let text = match have.contains('[') {
            true => {
                let words = have.split_whitespace().map(|word| word.trim_matches(['[', ']']));
                let words = words.map(|word| match word == value {
                    true => format!("[{word}]"),
                    false => word.to_owned(),
                });
                words.collect::<Vec<_>>().join(" ") + "\n"
            }
            false if have.contains('\t') => value.replace(' ', "\t") + "\n",
            false => format!("{value}\n"),
        };
        self.tree.borrow_mut().file(path, &text);
        // As Linux 6.18 does.
        if let Some(queue) = path.strip_suffix("/add_random") {
            self.tree.borrow_mut().file(&format!("{queue}/read_ahead_kb"), "2560\n");
        }
        Ok(())
    }

    fn get(&self, path: &str) -> Result<Option<Kept>, Fault> {
        let mode = self.modes.borrow().get(path).copied().unwrap_or(0o644);
        Ok(self.read(path).map(|text| Kept { bytes: text.into_bytes(), mode }))
    }

    fn put(&self, path: &str, kept: Option<&Kept>) -> Result<(), Fault> {
        let was_dead = self.dead.get();
        self.gate().inspect_err(|_| {
            // A kill in the middle leaves the new file beside the old one.
            if self.dead.get() && !was_dead && kept.is_some() {
                self.tree.borrow_mut().file(&fresh(path), "half\n");
            }
        })?;
        self.check(path)?;
        match kept {
            Some(kept) => {
                let text = String::from_utf8(kept.bytes.clone()).expect("a text");
                self.tree.borrow_mut().file(path, &text);
                self.modes.borrow_mut().insert(path.to_owned(), kept.mode);
            }
            None => self.tree.borrow_mut().remove(path),
        }
        Ok(())
    }

    fn tidy(&self, path: &str) -> Result<(), Fault> {
        if self.read(&fresh(path)).is_some() {
            self.gate()?;
            self.tree.borrow_mut().remove(&fresh(path));
        }
        Ok(())
    }

    fn prune(&self, _directory: &str) {}

    fn act(&self, program: &str, args: &[&str]) -> Result<String, Fault> {
        self.gate()?;
        self.ran.borrow_mut().push(format!("{program} {}", args.join(" ")));
        let link = |unit: &str| format!("/etc/systemd/system/multi-user.target.wants/{unit}");
        match (program, args) {
            ("ethtool", ["-G", nic, ring, value]) => self.ring(nic, ring, value),
            ("zfs", ["set", change, dataset]) => {
                let (property, value) = change.split_once('=').expect("name=value");
                let line = format!("zfs get -Hp -o value,source {property} {dataset}");
                let stdout = format!("{value}\tlocal\n");
                self.tree.borrow_mut().command(&line, Output { code: 0, stdout });
            }
            ("zfs", ["inherit", property, dataset]) => {
                let line = format!("zfs get -Hp -o value,source {property} {dataset}");
                let stdout = "on\tdefault\n".to_owned();
                self.tree.borrow_mut().command(&line, Output { code: 0, stdout });
            }
            ("systemctl", ["enable", unit]) => {
                self.tree.borrow_mut().symlink(&link(unit), &format!("../{unit}"));
            }
            ("systemctl", ["disable", unit]) => self.tree.borrow_mut().remove(&link(unit)),
            ("midclt", args) => self.midclt(args)?,
            _ => {}
        }
        Ok(String::new())
    }
}
