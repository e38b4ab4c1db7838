//! Targets and their LUNs.

use anyhow::Result;
use lunet_api::{Code, Done};

use super::effects::Consent;
use super::sessions::concerning;
use super::{Manager, Served, done};
use crate::trouble::refuse;
use lunet_config::Reach;
use lunet_config::edit::Editor;

impl Manager {
    pub(super) fn create_target(
        &self,
        now: &Served,
        name: &str,
        alias: Option<&str>,
        nvme: bool,
    ) -> Result<Done> {
        if now.target(name).is_ok() {
            return refuse(
                Code::Exists,
                format!("there is a target {name} already"),
                "choose another name",
            );
        }
        let edit = |editor: &mut Editor| editor.add_target(name, alias, nvme);
        let plan = self.edited(now, Consent::default(), edit)?;
        let subsystem = plan.plan.config.nvme.of_target(name).map(|found| found.nqn.clone());
        self.commit(now, plan, now.open.clone())?;
        let mut done = done(format!("target {name} is created"));
        if let Some(nqn) = subsystem {
            done.notes.push(format!(
                "over NVMe it is the subsystem {nqn}; hosts are let in with `lunet target allow {name} HOSTNQN`"
            ));
        }
        done.notes.push(format!("it has no LUN yet: `lunet target map {name} LUN VOLUME`"));
        done.notes.push(format!(
            "it is for this machine alone until somebody is let in: `lunet target allow {name} \
             INITIATOR`, `lunet target user add {name} NAME`, or for everybody `lunet target open {name}`"
        ));
        Ok(done)
    }

    pub(super) fn delete_target(&self, now: &Served, name: &str, force: bool) -> Result<Done> {
        now.target(name)?;
        if now.plan.config.targets.len() == 1 {
            return refuse(
                Code::LastOne,
                format!("{name} is the only target, and lunet needs one"),
                "create another one first",
            );
        }
        let consent = Consent { force, ..Consent::default() };
        let next = self.edited(now, consent, |editor| editor.remove_target(name))?;
        let sessions = next.sessions.clone();
        self.commit(now, next, now.open.clone())?;
        let text = format!("target {name} is gone; its volumes are as they were");
        Ok(concerning(done(text), sessions))
    }

    pub(super) fn map(
        &self,
        now: &Served,
        target: &str,
        lun: u16,
        volume: &str,
        force: bool,
    ) -> Result<Done> {
        if now.volume(target).is_ok() && now.target(volume).is_ok() {
            return refuse(
                Code::Invalid,
                format!("{target} is a volume, and {volume} a target"),
                format!("write the target first: `lunet target map {volume} {lun} {target}`"),
            );
        }
        let found = now.target(target)?;
        now.volume(volume)?;
        if let Some((_, taken)) = found.luns.iter().find(|(number, _)| *number == lun) {
            let other = &now.plan.config.volumes[*taken].name;
            return refuse(
                Code::Exists,
                format!("LUN {lun} of {target} is volume \"{other}\" already"),
                "take another number, or `lunet target unmap` it first",
            );
        }
        let consent = Consent { force, ..Consent::default() };
        let next = self.edited(now, consent, |editor| editor.add_lun(target, lun, volume))?;
        let sessions = next.sessions.clone();
        let (was, is) = (found.reach(), next.target(target)?.reach());
        self.commit(now, next, now.open.clone())?;
        let mut done = done(format!("volume {volume} is LUN {lun} of {target}"));
        if is == Reach::ThisMachine && was != is {
            done.notes.push(format!(
                "not all LUNs of {target} name their initiators any more, so it is for this machine alone: \
                 `lunet target allow {target} INITIATOR`"
            ));
        }
        Ok(concerning(done, sessions))
    }

    pub(super) fn unmap(&self, now: &Served, target: &str, lun: u16, force: bool) -> Result<Done> {
        let found = now.target(target)?;
        let Some((_, at)) = found.luns.iter().find(|(number, _)| *number == lun) else {
            return refuse(
                Code::NotFound,
                format!("target {target} has no LUN {lun}"),
                "`lunet target list` shows those that it has",
            );
        };
        let volume = &now.plan.config.volumes[*at].name;
        let consent = Consent { force, ..Consent::default() };
        let next = self.edited(now, consent, |editor| editor.remove_lun(target, lun))?;
        let sessions = next.sessions.clone();
        self.commit(now, next, now.open.clone())?;
        let text = format!("LUN {lun} of {target} is gone; volume {volume} is as it was");
        Ok(concerning(done(text), sessions))
    }
}
