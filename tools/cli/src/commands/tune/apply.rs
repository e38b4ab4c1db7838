//! `lunet tune apply`, `verify`, `reapply`, `rollback` and `script`

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use lunet_host::apply::{self, LiveMachine, Lock, Options, STATE};
use lunet_host::source::Live;
use serde_json::json;

use super::{CHANGES, Chosen, OwnRules, elsewhere, look};
use lunet_cli::{Remote, print};

/// Where the journal is.
#[derive(Args)]
pub(super) struct Kept {
    /// Directory of the journal, which has the previous values
    #[arg(long, value_name = "DIR", default_value = STATE)]
    pub(super) state: String,
}

#[derive(Args)]
pub struct ApplyArgs {
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    own: OwnRules,
    /// Make the changes persist across reboots, in the system's own way
    #[arg(long)]
    persist: bool,
    #[command(flatten)]
    kept: Kept,
}

#[derive(Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    kept: Kept,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct ReapplyArgs {
    #[command(flatten)]
    kept: Kept,
}

#[derive(Args)]
pub struct RollbackArgs {
    #[command(flatten)]
    kept: Kept,
}

#[derive(Args)]
pub struct ScriptArgs {
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    own: OwnRules,
    /// Make the changes persist across reboots
    #[arg(long)]
    persist: bool,
}

impl ApplyArgs {
    /// Tunes another machine, if one is meant.
    pub(super) fn elsewhere(&self, remote: &Remote) -> Result<Option<ExitCode>> {
        let here = [
            (self.own.rules.is_some(), "`lunet tune apply --rules`"),
            (self.kept.state != STATE, "`lunet tune apply --state`"),
        ];
        let mut options = self.chosen.options();
        options["persist"] = self.persist.into();
        elsewhere(remote, "tune-apply", &here, &options)
    }
}

impl RollbackArgs {
    /// Rolls another machine back, if one is meant.
    pub(super) fn elsewhere(&self, remote: &Remote) -> Result<Option<ExitCode>> {
        let here = [(self.kept.state != STATE, "`lunet tune rollback --state`")];
        elsewhere(remote, "tune-rollback", &here, &json!({}))
    }
}

pub fn apply(args: &ApplyArgs) -> Result<ExitCode> {
    let rules = args.own.load(true)?;
    let _lock = Lock::take(&args.kept.state)?;
    let facts = look(&Live);
    let plan = args.chosen.plan(&Live, &facts, &rules)?;
    let truenas = facts.platform.truenas.is_some();
    let options = Options { state: &args.kept.state, persist: args.persist, truenas };
    let done = apply::apply(&LiveMachine, &plan, options)?;
    let mut out = String::new();
    for entry in &done.changed {
        let before = entry.before.as_deref().unwrap_or("not set");
        let _ = writeln!(out, "{}: {}: {before} -> {}", entry.rule, entry.setting, entry.wanted);
    }
    for (rule, why) in &done.left_out {
        let _ = writeln!(out, "{rule}: left out: {why}");
    }
    match done.changed.len() {
        0 => out.push_str("Nothing was changed.\n"),
        count => {
            let _ = writeln!(out, "{count} settings changed; `lunet tune rollback` undoes it.");
        }
    }
    for note in &done.notes {
        let _ = writeln!(out, "Note: {note}");
    }
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}

pub fn verify(args: &VerifyArgs) -> Result<ExitCode> {
    let found = apply::verify(&LiveMachine, &args.kept.state)?;
    let fine = found.drift.is_empty() && !found.interrupted;
    let code = if fine { ExitCode::SUCCESS } else { ExitCode::from(CHANGES) };
    if args.json {
        print(&format!("{:#}\n", serde_json::to_value(&found)?))?;
        return Ok(code);
    }
    let mut out = String::new();
    if !found.applied {
        out.push_str("Nothing is applied.\n");
    }
    if found.interrupted {
        out.push_str("An apply or rollback was interrupted: `lunet tune rollback` first.\n");
    }
    for drift in &found.drift {
        let rule = drift.rule.as_ref().map(|rule| format!("{rule}: ")).unwrap_or_default();
        let _ = writeln!(out, "{rule}{}: should be {}, is {}", drift.what, drift.wanted, drift.is);
    }
    for waiting in &found.waiting {
        let _ = writeln!(out, "{waiting}: waits for a reboot");
    }
    if found.applied {
        let _ = writeln!(out, "{} as they were set, {} not.", found.good, found.drift.len());
    }
    print(&out)?;
    Ok(code)
}

pub fn reapply(args: &ReapplyArgs) -> Result<ExitCode> {
    let _lock = Lock::take(&args.kept.state)?;
    let done = apply::again(&LiveMachine, &args.kept.state)?;
    let mut out = String::new();
    for what in &done.set {
        let _ = writeln!(out, "Set again: {what}");
    }
    if !done.applied {
        out.push_str("Nothing is applied.\n");
    } else if done.set.is_empty() && done.failed.is_empty() {
        out.push_str("Everything holds.\n");
    }
    print(&out)?;
    if done.failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let failed: Vec<String> = done.failed.iter().map(ToString::to_string).collect();
    bail!("these could not be set again:\n{}", failed.join("\n"))
}

pub fn rollback(args: &RollbackArgs) -> Result<ExitCode> {
    let _lock = Lock::take(&args.kept.state)?;
    let told = apply::rollback(&LiveMachine, &args.kept.state)?;
    let mut out = String::new();
    for kept in &told.kept {
        let _ = writeln!(out, "Kept: {kept}");
    }
    match told.steps {
        0 => out.push_str("Nothing was applied.\n"),
        _ if !told.left.is_empty() => {}
        steps => {
            let but = if told.kept.is_empty() { "" } else { " but what is named above" };
            let _ = writeln!(out, "{steps} steps rolled back: everything{but} is as it was.");
        }
    }
    for note in &told.notes {
        let _ = writeln!(out, "Note: {note}");
    }
    print(&out)?;
    if !told.left.is_empty() {
        let left: Vec<String> = told.left.iter().map(ToString::to_string).collect();
        bail!(
            "these could not be rolled back, and stay in the journal for another `lunet tune \
             rollback`:\n{}",
            left.join("\n")
        );
    }
    Ok(ExitCode::SUCCESS)
}

pub fn script(args: &ScriptArgs) -> Result<ExitCode> {
    let rules = args.own.load(true)?;
    let facts = look(&Live);
    let plan = args.chosen.plan(&Live, &facts, &rules)?;
    let truenas = facts.platform.truenas.is_some();
    print(&apply::script(&LiveMachine, &plan, args.persist, truenas)?)?;
    Ok(ExitCode::SUCCESS)
}
