//! An administrator: changes what is served while it is served, and knows what has to be true then.
//!
//! Each has names of its own, so that it alone knows what becomes of them. A change that was answered has happened, also after a
//! crash; one that was refused has left nothing; of one that was not answered there is all or nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use lunet_api::{Answer, Backend, Change, Code, NewVolume, Request, VolumeLimits};
use lunet_os::simulated;
use lunet_os::sync::mpsc::{RecvTimeoutError, sync_channel};
use lunet_os::thread;

use crate::model::Content;
use crate::site::{Site, TARGET, now};
use crate::visit::Visit;

/// Bytes of its volumes are a multiple of this.
const PIECE: u64 = 64 << 10;

/// An administrator.
#[derive(Clone, Debug)]
pub struct Administrator {
    /// Its number, from 0.
    pub number: u8,
    /// Changes before it is done.
    pub changes: u64,
    /// No request is under way for longer.
    pub patience: Duration,
    /// The data directory.
    pub data: PathBuf,
    /// What everybody knows.
    pub site: Site,
}

/// A volume as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Volume {
    backend: Backend,
    size: u64,
}

/// A target of its own, or its part of that of the hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Target {
    luns: BTreeMap<u16, String>,
}

/// What there is under its names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Served {
    volumes: BTreeMap<String, Volume>,
    targets: BTreeMap<String, Target>,
}

/// What was written to the first sectors of its volumes since they were made.
#[derive(Debug, Default)]
struct Stamps {
    written: BTreeMap<String, Vec<Content>>,
    count: u64,
}

impl Stamps {
    /// A volume is about to be made: it contains nothing that was written before.
    fn before(&mut self, change: &Change) {
        if let Change::CreateVolume(new) = change {
            self.written.remove(&new.name);
        }
    }

    /// Another content for a volume. It is written if that is answered, and may be if not.
    fn next(&mut self, volume: &str, number: u8) -> Content {
        self.count += 1;
        let content = Content::new(0, 0xad00_0000_0000 | u64::from(number) << 32 | self.count);
        self.written.entry(volume.to_owned()).or_default().push(content);
        content
    }

    fn may_be(&self, volume: &str, content: Content) -> bool {
        let written = self.written.get(volume);
        content == Content::ZEROES || written.is_some_and(|all| all.contains(&content))
    }
}

/// What has become of a request.
enum Outcome {
    Answered(Result<Answer, lunet_api::Error>),
    /// The server has ended before it answered.
    Lost,
}

impl Served {
    /// What there is after a change.
    fn after(&self, change: &Change) -> Self {
        let mut next = self.clone();
        match change {
            Change::CreateVolume(new) => {
                let size = new.size.unwrap_or_default();
                let volume = Volume { backend: new.backend.clone(), size };
                next.volumes.insert(new.name.clone(), volume);
            }
            Change::ResizeVolume { name, size } => {
                let volume = next.volumes.get_mut(name);
                volume.into_iter().for_each(|volume| volume.size = size.unwrap_or(volume.size));
            }
            Change::DeleteVolume { name, .. } => {
                next.volumes.remove(name);
                for target in next.targets.values_mut() {
                    target.luns.retain(|_, volume| volume != name);
                }
            }
            Change::CreateTarget { name, .. } => {
                next.targets.insert(name.clone(), Target::default());
            }
            Change::DeleteTarget { name, .. } => drop(next.targets.remove(name)),
            Change::Map { target, lun, volume, .. } => {
                let target = next.targets.get_mut(target);
                target.into_iter().for_each(|t| drop(t.luns.insert(*lun, volume.clone())));
            }
            Change::Unmap { target, lun, .. } => {
                next.targets.get_mut(target).into_iter().for_each(|t| drop(t.luns.remove(lun)));
            }
            _ => {}
        }
        next
    }
}

/// One of these, if there is one.
fn any<T: Clone>(all: &[T]) -> Option<T> {
    let at = (!all.is_empty()).then(|| simulated::below(all.len() as u64) as usize)?;
    Some(all[at].clone())
}

/// Limits under which hosts wait, but not for longer than they have patience; some of them are none.
fn limits() -> VolumeLimits {
    let one_of = |all: &[u64]| (simulated::below(2) == 0).then(|| any(all)).flatten();
    VolumeLimits {
        iops: one_of(&[0, 300, 1000, 5000]),
        bytes_per_s: one_of(&[0, 1 << 20, 16 << 20]),
        burst_ms: one_of(&[0, 10, 200]),
        weight: one_of(&[0, 1, 1000]),
        latency_target_us: one_of(&[0, 100]),
    }
}

impl Administrator {
    /// Its life.
    pub fn run(self) {
        let start = Served {
            targets: BTreeMap::from([(TARGET.to_owned(), Target::default())]),
            ..Served::default()
        };
        let (mut possible, mut stamps) = (vec![start], Stamps::default());
        for _ in 0..self.changes {
            thread::sleep(Duration::from_micros(simulated::below(50_000)));
            if self.site.known().over {
                break;
            }
            possible = self.step(possible, &mut stamps);
        }
        self.look(&possible);
        self.tell("is done");
        self.site.known().busy -= 1;
    }

    /// One change of what there is, which is one of these. What there may be after it.
    fn step(&self, possible: Vec<Served>, stamps: &mut Stamps) -> Vec<Served> {
        let now = match self.look(&possible) {
            Some(now) => now,
            None => return possible,
        };
        let Some(change) = self.draw(&now) else { return vec![now] };
        if simulated::below(4) == 0 {
            let apply = Change::Apply { force: false, keep_sessions: false };
            drop(self.ask(Request::preview(apply)));
        }
        self.tell(&format!("{change:?}"));
        let next = now.after(&change);
        stamps.before(&change);
        let mut visit = match simulated::below(2) {
            0 => Visit::begin(self.number, &self.site, self.patience),
            _ => None,
        };
        // What it has to hear first is no news.
        let luns = visit.as_mut().and_then(|visit| visit.attentions(0).and(visit.luns()));
        self.site.known().sessions_end |= matches!(change, Change::EndSessions { .. });
        match self.ask(Request::change(change)) {
            Outcome::Lost => {
                self.tell("has no answer");
                vec![now, next]
            }
            Outcome::Answered(Ok(Answer::Done(done))) => {
                self.tell(&done.done);
                // It may be lost with the power, and is told so.
                if done.notes.iter().any(|note| note.contains("stable")) {
                    return vec![next, now];
                }
                let late = done.notes.iter().any(|note| note.contains("event loop"));
                if let (Some(visit), Some(_), false) = (visit, luns, late) {
                    let changed = now.targets[TARGET] != next.targets[TARGET];
                    self.visit(visit, &next, changed, stamps);
                }
                vec![next]
            }
            Outcome::Answered(Ok(other)) => {
                self.wrong(&format!("{other:?} is no answer to a change"));
                vec![now]
            }
            Outcome::Answered(Err(error)) => {
                self.tell(&format!("is refused: {error}"));
                vec![now]
            }
        }
    }

    /// Looks at the LUNs of the hosts' target from the outside. `changed`: since that session has looked.
    fn visit(
        &self,
        mut visit: Visit,
        now: &Served,
        changed: bool,
        stamps: &mut Stamps,
    ) -> Option<()> {
        let told = visit.attentions(0)?;
        // REPORTED LUNS DATA HAS CHANGED (SPC-5 annex F).
        if changed && !told.contains(&[0x3f, 0x0e]) {
            self.wrong(&format!("LUNs have changed, and a session hears only of {told:x?}"));
        }
        let luns = &now.targets[TARGET].luns;
        let found = visit.luns()?;
        for lun in self.luns() {
            if found.contains(&lun) != luns.contains_key(&lun) {
                self.wrong(&format!("LUNs {found:?} are reported, and there are {luns:?}"));
            }
            let Some(volume) = luns.get(&lun) else {
                // LOGICAL UNIT NOT SUPPORTED.
                match visit.first(lun)? {
                    Err([0x25, 0]) => {}
                    other => self.wrong(&format!("LUN {lun}, which is none, answers {other:x?}")),
                }
                continue;
            };
            match visit.first(lun)? {
                Ok(Some(content)) if stamps.may_be(volume, content) => {}
                other => self.wrong(&format!(
                    "volume {volume} as LUN {lun} answers {other:x?}, and has {:x?}",
                    stamps.written.get(volume)
                )),
            }
            let content = stamps.next(volume, self.number);
            visit.write(lun, content)?;
        }
        self.tell(&format!("finds LUNs {found:?}, and hears of {told:x?}"));
        Some(())
    }

    /// LUNs of the hosts' target that it may use.
    fn luns(&self) -> std::ops::Range<u16> {
        let first = 100 + 10 * u16::from(self.number);
        first..first + 3
    }

    /// Looks at what there is: which of these. `None` if the server does not say.
    fn look(&self, possible: &[Served]) -> Option<Served> {
        let Outcome::Answered(Ok(Answer::Volumes(volumes))) = self.ask(Request::Volumes) else {
            return None;
        };
        let Outcome::Answered(Ok(Answer::Targets(targets))) = self.ask(Request::Targets) else {
            return None;
        };
        let mut found = Served::default();
        for volume in volumes.into_iter().filter(|volume| self.owns(&volume.name)) {
            if let Some(fault) = volume.faults.iter().flatten().next() {
                self.wrong(&format!("volume {}: {}", volume.name, fault.text));
            }
            let is = Volume { backend: volume.backend, size: volume.size_bytes };
            found.volumes.insert(volume.name, is);
        }
        for target in targets {
            if target.name != TARGET && !self.targets().contains(&target.name) {
                continue;
            }
            let luns = target.luns.into_iter().filter(|lun| self.owns(&lun.volume));
            let luns = luns.map(|lun| (lun.lun, lun.volume)).collect();
            found.targets.insert(target.name, Target { luns });
        }
        if !possible.contains(&found) {
            self.wrong(&format!("there is {found:?}, which is none of {possible:?}"));
        }
        self.check_files(&found);
        Some(found)
    }

    /// Each volume in a file has its file, and nobody else has one. No other change of its own is under way.
    fn check_files(&self, found: &Served) {
        let entries = std::fs::read_dir(&self.data).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let own: BTreeSet<String> = names.filter(|name| self.owns(name)).collect();
        for name in &own {
            let volume = name.trim_start_matches('.').split('.').next().unwrap_or_default();
            if !found.volumes.contains_key(volume) {
                self.wrong(&format!("{name} is left of a volume that is not there"));
            }
        }
        for (name, volume) in &found.volumes {
            if volume.backend == Backend::File && !own.contains(&format!("{name}.img")) {
                self.wrong(&format!("volume {name} has no file"));
            }
        }
    }

    /// Something that can be changed.
    fn draw(&self, now: &Served) -> Option<Change> {
        let free: Vec<String> =
            self.volumes().into_iter().filter(|name| !now.volumes.contains_key(name)).collect();
        let there: Vec<String> = now.volumes.keys().cloned().collect();
        let target = any(&now.targets.keys().cloned().collect::<Vec<_>>())?;
        let luns = &now.targets[&target].luns;
        let lun = self.luns().start + simulated::below(3) as u16;
        Some(match simulated::below(19) {
            0 => Change::CreateVolume(NewVolume {
                name: any(&free)?,
                backend: Backend::Memory,
                size: Some(PIECE * (1 + simulated::below(4))),
                ..NewVolume::default()
            }),
            1..=3 => Change::CreateVolume(NewVolume {
                name: any(&free)?,
                backend: Backend::File,
                size: Some(PIECE * (1 + simulated::below(4))),
                full: simulated::below(4) == 0,
                write_through: simulated::below(4) == 0,
                ..NewVolume::default()
            }),
            4 | 5 => {
                let name = any(&there)?;
                let size = now.volumes[&name].size + PIECE * simulated::below(3);
                Change::ResizeVolume { name, size: Some(size) }
            }
            6 | 7 => Change::DeleteVolume { name: any(&there)?, keep_data: false, force: true },
            8 => Change::CreateTarget { name: any(&self.targets())?, alias: None, nvme: false },
            9 if target != TARGET => Change::DeleteTarget { name: target, force: true },
            10..=12 => Change::Map { target, lun, volume: any(&there)?, force: true },
            13 | 14 => {
                let lun = any(&luns.keys().copied().collect::<Vec<_>>())?;
                Change::Unmap { target, lun, force: true }
            }
            15 => {
                let initiator = format!("iqn.2026-11.host:{}", simulated::below(4));
                Change::EndSessions { session: None, initiator: Some(initiator) }
            }
            16..=18 => Change::LimitVolume { name: self.limited(&there), limits: limits() },
            _ => Change::Apply { force: false, keep_sessions: false },
        })
    }

    /// A volume that is to be limited: one of the hosts' or its own.
    fn limited(&self, there: &[String]) -> String {
        let own = if simulated::below(3) == 0 { any(there) } else { None };
        own.unwrap_or_else(|| "v0".to_owned())
    }

    /// The names of its volumes.
    fn volumes(&self) -> Vec<String> {
        (0..3).map(|volume| format!("a{}-{volume}", self.number)).collect()
    }

    /// The names of its targets.
    fn targets(&self) -> Vec<String> {
        (0..2).map(|target| format!("{TARGET}-a{}-{target}", self.number)).collect()
    }

    /// Whether a volume, or a file of one, is its.
    fn owns(&self, name: &str) -> bool {
        name.trim_start_matches('.').starts_with(&format!("a{}-", self.number))
    }

    /// Asks, and waits for the answer. If another change is under way, it asks again.
    fn ask(&self, request: Request) -> Outcome {
        loop {
            match self.ask_once(request.clone()) {
                Outcome::Answered(Err(error)) if error.code == Code::ChangeUnderWay => {
                    thread::sleep(Duration::from_micros(simulated::below(20_000)));
                }
                other => return other,
            }
        }
    }

    fn ask_once(&self, request: Request) -> Outcome {
        let (process, door) = loop {
            let known = self.site.known();
            if known.over {
                return Outcome::Lost;
            }
            let door = known.doors.get(usize::from(self.number)).cloned();
            let process = known.process;
            drop(known);
            match door {
                Some(door) => break (process, door),
                None => thread::sleep(Duration::from_millis(10)),
            }
        };
        let (tell, answer) = sync_channel(1);
        let begun = now();
        if door.try_send((request.clone(), tell)).is_err() {
            return Outcome::Lost;
        }
        loop {
            match answer.recv_timeout(Duration::from_millis(20)) {
                Ok(answer) => return Outcome::Answered(answer),
                Err(RecvTimeoutError::Disconnected) => return Outcome::Lost,
                Err(RecvTimeoutError::Timeout) if self.site.known().process != process => {
                    return Outcome::Lost;
                }
                Err(RecvTimeoutError::Timeout) if now() - begun > self.patience => {
                    self.wrong(&format!("{request:?} of {begun:?} is not answered"));
                    return Outcome::Lost;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn tell(&self, what: &str) {
        self.site.tell(&format!("administrator {}", self.number), &self.plain(what));
    }

    fn wrong(&self, what: &str) {
        self.site.wrong(&format!("administrator {}", self.number), &self.plain(what));
    }

    /// Without the name of the folder, which is another one in each run.
    fn plain(&self, text: &str) -> String {
        text.replace(&self.data.display().to_string(), "DATA")
    }
}
