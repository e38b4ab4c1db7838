//! `lunet tune plan` and `lunet tune explain`

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use lunet_host::plan::write;
use lunet_host::rules::Choice;

use super::{CHANGES, Chosen, Look, Work, alike, elsewhere, look};
use lunet_cli::{Remote, print};

#[derive(Args)]
pub struct PlanArgs {
    #[command(flatten)]
    look: Look,
    #[command(flatten)]
    chosen: Chosen,
    /// Also show what is right already, and what does not apply
    #[arg(long)]
    all: bool,
    /// Print the plan as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct ExplainArgs {
    /// Rule, such as `drive.scheduler`
    rule: String,
    #[command(flatten)]
    look: Look,
    #[command(flatten)]
    work: Work,
}

impl PlanArgs {
    /// Plans for another machine, if one is meant.
    pub(super) fn elsewhere(&self, remote: &Remote) -> Result<Option<ExitCode>> {
        let here = [
            (self.look.machine.root.is_some(), "`lunet tune plan --root`"),
            (self.look.own.rules.is_some(), "`lunet tune plan --rules`"),
        ];
        let mut options = self.chosen.options();
        options["all"] = self.all.into();
        options["text"] = (!self.json).into();
        elsewhere(remote, "tune-plan", &here, &options)
    }
}

pub fn plan(args: &PlanArgs) -> Result<ExitCode> {
    let source = args.look.source()?;
    let rules = args.look.load()?;
    let plan = args.chosen.plan(&*source, &look(&*source), &rules)?;
    match args.json {
        true => print(&format!("{:#}\n", serde_json::to_value(&plan)?))?,
        false => print(&write(&plan, args.all))?,
    }
    Ok(match plan.changes().next() {
        Some(_) => ExitCode::from(CHANGES),
        None => ExitCode::SUCCESS,
    })
}

pub fn explain(args: &ExplainArgs) -> Result<ExitCode> {
    let source = args.look.source()?;
    let rules = args.look.load()?;
    let Some(rule) = rules.get(&args.rule) else {
        bail!("no rule is called `{}`{}", args.rule, alike(&rules, &args.rule));
    };
    let choice = Choice { only: vec![rule.id.clone()], except: Vec::new() };
    let facts = look(&*source);
    let plan = lunet_host::plan::plan(&*source, &facts, &rules, args.work.profile, &choice)?;
    print(&lunet_host::plan::explain(rule, &plan.items))?;
    Ok(ExitCode::SUCCESS)
}
