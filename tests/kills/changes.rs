//! The client that changes volumes, snapshots, targets and the configuration.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail, ensure};
use lunet_block::Random;
use lunet_e2e::wire::scsi::GOOD;
use lunet_e2e::wire::{Login, Session};
use serde_json::{Value, json};

use super::state::{BASE, State, TARGET, ask};
use super::{Either, unless_dead};

const MIB: u64 = 1 << 20;

/// More volumes or snapshots than this are not made.
const MOST: usize = 6;

/// What is done.
enum Step {
    /// A change through the control socket.
    Change(Value),
    /// The configuration is edited by hand, and applied.
    Edit(String),
    /// A number is written to the base volume.
    Write(u64),
}

/// The client.
pub struct Changes {
    data: PathBuf,
    snapshots: bool,
    random: Random,
    state: Either<State>,
    /// Addresses that nobody else listens on, and what is served there.
    portals: Vec<(String, Value)>,
    /// The last step, for messages.
    pub last: Option<String>,
    serial: u64,
    acknowledged: u64,
    cut: u64,
    came: u64,
}

impl Changes {
    /// # Errors
    /// There is no free port.
    pub fn new(data: &Path, snapshots: bool, random: Random) -> Result<Self> {
        let state = Either::new(State::first());
        let data = data.to_owned();
        // No other test has these loopback addresses.
        let free = |(address, transport): (&str, Value)| {
            Ok((TcpListener::bind(address)?.local_addr()?.to_string(), transport))
        };
        // The last one is the first for NVMe whenever it comes after a start without it.
        let portals = [
            ("127.7.3.1:0", json!([])),
            ("127.7.3.2:0", json!([])),
            ("127.7.3.3:0", json!(["nvme-tcp"])),
        ];
        let portals = portals.into_iter().map(free);
        Ok(Self {
            data,
            snapshots,
            random,
            state,
            portals: portals.collect::<Result<_>>()?,
            last: None,
            serial: 1,
            acknowledged: 0,
            cut: 0,
            came: 0,
        })
    }

    /// Compares what has come up with what may have.
    pub fn settle(&mut self, found: &State) -> Result<()> {
        self.cut += u64::from(self.state.asked.is_some());
        let (known, asked) = (self.state.known.clone(), self.state.asked.clone());
        let Some(came) = self.state.settle(found) else {
            bail!(
                "found: {found:#?}\nacknowledged: {known:#?}\nasked for, by {:?}: {asked:#?}",
                self.last
            );
        };
        self.came += u64::from(came);
        Ok(())
    }

    pub fn report(&self) -> String {
        format!(
            "{} changes acknowledged, {} cut short, of which {} had come to pass",
            self.acknowledged, self.cut, self.came
        )
    }

    /// Changes one thing after the other until the server is dead.
    pub fn work(&mut self, portal: &str, dead: &AtomicBool) -> Result<()> {
        let login =
            Login { initiator: "iqn.2026-11.local.lunet:writer", ..Login::new(portal, TARGET) };
        let Some(mut session) = unless_dead(Session::open(&login), dead)? else { return Ok(()) };
        loop {
            let Some((step, next)) = self.choose() else { continue };
            self.state.ask(next);
            let result = self.take(step, &mut session);
            let what = || format!("{:?}", self.last);
            if unless_dead(result.with_context(what), dead)?.is_none() {
                return Ok(());
            }
            self.state.done();
            self.acknowledged += 1;
        }
    }

    fn take(&mut self, step: Step, session: &mut Session) -> Result<()> {
        match step {
            Step::Change(change) => self.change(change),
            Step::Edit(text) => {
                self.last = Some("edit".to_owned());
                // As an editor does it that takes care, but in another directory: what a kill leaves
                // in the server's own would be taken for the server's.
                let fresh = self.data.join("../edited.toml");
                fs::write(&fresh, text)?;
                fs::rename(&fresh, self.data.join("lunet.toml"))?;
                self.change(json!({"do": "apply", "force": true}))
            }
            Step::Write(number) => {
                self.last = Some(format!("write {number}"));
                let mut block = [0; 512];
                block[..8].copy_from_slice(&number.to_le_bytes());
                // WRITE(16) with FUA; again if only a unit attention was told.
                let mut cdb = lunet_e2e::wire::scsi::write16(0, 1);
                cdb[1] = 0x08;
                for _ in 0..8 {
                    let answer = session.execute(0, &cdb, 0, &block)?;
                    if answer.status == GOOD {
                        return Ok(());
                    }
                    ensure!(lunet_e2e::wire::scsi::sense_key(&answer) == Some(6), "{answer:02x?}");
                }
                bail!("unit attentions without end")
            }
        }
    }

    fn change(&mut self, change: Value) -> Result<()> {
        self.last = Some(change.to_string());
        let request = json!({"request": "change", "version": 1, "change": change});
        match ask(&self.data, &request)? {
            Ok(_) => Ok(()),
            Err(refusal) => bail!("refused: {refusal}"),
        }
    }

    /// A step that is possible now, and what is there after it.
    fn choose(&mut self) -> Option<(Step, State)> {
        let mut next = self.state.known.clone();
        let kinds = if self.snapshots { 14 } else { 10 };
        let step = match self.random.below(kinds) {
            0 | 1 => self.create(&mut next)?,
            2 => self.delete(&mut next)?,
            3 => self.resize(&mut next)?,
            4 => self.map(&mut next)?,
            5 => self.unmap(&mut next)?,
            6 => self.target(&mut next),
            7 => self.edit(&mut next)?,
            8 => {
                let number = self.number();
                next.volumes.get_mut(BASE)?.1 = number;
                Step::Write(number)
            }
            9 => self.portal(&mut next)?,
            10 => self.snapshot(&mut next)?,
            11 => self.forget(&mut next)?,
            12 => self.clone_of(&mut next)?,
            _ => self.rollback(&mut next)?,
        };
        Some((step, next))
    }

    fn number(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn one_of<T: Clone>(&mut self, all: impl Iterator<Item = T>) -> Option<T> {
        let all: Vec<T> = all.collect();
        let at = self.random.below(all.len().max(1) as u64) as usize;
        all.get(at).cloned()
    }

    fn create(&mut self, next: &mut State) -> Option<Step> {
        if next.volumes.len() >= MOST {
            return None;
        }
        // Names come back, so that what is left of an earlier volume would be seen.
        let name = format!("v{}", self.random.below(4));
        let size = MIB * (1 + self.random.below(8));
        let full = self.random.below(4) == 0;
        if next.volumes.insert(name.clone(), (size, 0)).is_some() {
            return None;
        }
        Some(Step::Change(
            json!({"do": "create-volume", "name": name, "backend": "file", "size": size,
            "path": null, "full": full, "block_size": null, "read_only": false}),
        ))
    }

    fn delete(&mut self, next: &mut State) -> Option<Step> {
        let with = |name: &&String| next.snapshots.keys().any(|(volume, _)| volume == *name);
        let free = next.volumes.keys().filter(|name| name.starts_with(['v', 'c']) && !with(name));
        let name = self.one_of(free.cloned())?;
        next.volumes.remove(&name);
        for luns in next.targets.values_mut() {
            luns.retain(|_, volume| *volume != name);
        }
        Some(Step::Change(
            json!({"do": "delete-volume", "name": name, "keep_data": false, "force": true}),
        ))
    }

    fn resize(&mut self, next: &mut State) -> Option<Step> {
        let name = self.one_of(next.volumes.keys().cloned())?;
        let volume = next.volumes.get_mut(&name)?;
        volume.0 += MIB * (1 + self.random.below(4));
        Some(Step::Change(json!({"do": "resize-volume", "name": name, "size": volume.0})))
    }

    fn map(&mut self, next: &mut State) -> Option<Step> {
        let target = self.one_of(next.targets.keys().cloned())?;
        let volume = self.one_of(next.volumes.keys().cloned())?;
        let lun = self.random.below(20) as u16;
        let luns = next.targets.get_mut(&target)?;
        if luns.contains_key(&lun) || luns.values().any(|other| *other == volume) {
            return None;
        }
        luns.insert(lun, volume.clone());
        Some(Step::Change(json!({"do": "map", "target": target, "lun": lun, "volume": volume})))
    }

    fn unmap(&mut self, next: &mut State) -> Option<Step> {
        let target = self.one_of(next.targets.keys().cloned())?;
        let luns = next.targets.get_mut(&target)?;
        let fixed = |lun: &&u16| target != TARGET || **lun > 1;
        let lun = self.one_of(luns.keys().filter(fixed).copied())?;
        luns.remove(&lun);
        Some(Step::Change(json!({"do": "unmap", "target": target, "lun": lun, "force": true})))
    }

    fn target(&mut self, next: &mut State) -> Step {
        let name = format!("{TARGET}-{}", self.random.below(2));
        if next.targets.remove(&name).is_some() {
            return Step::Change(json!({"do": "delete-target", "name": name, "force": true}));
        }
        next.targets.insert(name.clone(), Default::default());
        Step::Change(json!({"do": "create-target", "name": name, "alias": null}))
    }

    fn portal(&mut self, next: &mut State) -> Option<Step> {
        let (address, transport) = self.one_of(self.portals.clone().into_iter())?;
        if next.portals.remove(&address) {
            return Some(Step::Change(
                json!({"do": "remove-portal", "address": address, "force": true}),
            ));
        }
        next.portals.insert(address.clone());
        Some(Step::Change(json!({"do": "add-portal", "address": address, "transport": transport})))
    }

    /// By hand: a new volume, or a larger one.
    fn edit(&mut self, next: &mut State) -> Option<Step> {
        let text = fs::read_to_string(self.data.join("lunet.toml")).ok()?;
        let name = format!("v{}", self.random.below(4));
        if let Some(volume) = next.volumes.get_mut(&name) {
            // The size stands in the line after next, as lunet writes it.
            let (before, rest) = text.split_once(&format!("[volumes.{name}]\n"))?;
            let (backend, rest) = rest.split_once("size = ")?;
            let (_, rest) = rest.split_once('\n')?;
            volume.0 += MIB;
            let size = volume.0;
            let text = format!("{before}[volumes.{name}]\n{backend}size = {size}\n{rest}");
            return Some(Step::Edit(text));
        }
        if next.volumes.len() >= MOST {
            return None;
        }
        let size = MIB * (1 + self.random.below(8));
        next.volumes.insert(name.clone(), (size, 0));
        Some(Step::Edit(format!("{text}\n[volumes.{name}]\nbackend = \"file\"\nsize = {size}\n")))
    }

    fn snapshot(&mut self, next: &mut State) -> Option<Step> {
        let volume = self.one_of(next.volumes.keys().cloned())?;
        let name = format!("s{}", self.random.below(3));
        let content = *next.volumes.get(&volume)?;
        let key = (volume.clone(), name.clone());
        if next.snapshots.len() >= MOST || next.snapshots.insert(key, content).is_some() {
            return None;
        }
        Some(Step::Change(json!({"do": "create-snapshot", "volume": volume, "snapshot": name})))
    }

    fn forget(&mut self, next: &mut State) -> Option<Step> {
        let key = self.one_of(next.snapshots.keys().cloned())?;
        next.snapshots.remove(&key);
        Some(Step::Change(json!({"do": "delete-snapshot", "volume": key.0, "snapshot": key.1})))
    }

    fn clone_of(&mut self, next: &mut State) -> Option<Step> {
        let name = format!("c{}", self.random.below(3));
        if next.volumes.len() >= MOST || next.volumes.contains_key(&name) {
            return None;
        }
        let (volume, snapshot, content) = if self.random.below(2) == 0 {
            let key = self.one_of(next.snapshots.keys().cloned())?;
            let content = next.snapshots[&key];
            (key.0, Some(key.1), content)
        } else {
            let volume = self.one_of(next.volumes.keys().cloned())?;
            let content = next.volumes[&volume];
            (volume, None, content)
        };
        next.volumes.insert(name.clone(), content);
        Some(Step::Change(
            json!({"do": "clone-volume", "volume": volume, "snapshot": snapshot, "name": name}),
        ))
    }

    fn rollback(&mut self, next: &mut State) -> Option<Step> {
        let key = self.one_of(next.snapshots.keys().cloned())?;
        let content = next.snapshots[&key];
        next.volumes.get_mut(&key.0)?.1 = content.1;
        Some(Step::Change(
            json!({"do": "rollback", "volume": key.0, "snapshot": key.1, "force": true}),
        ))
    }
}
