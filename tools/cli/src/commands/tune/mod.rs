//! `lunet tune`: needs no running lunet.

mod apply;
mod facts;
mod plan;
mod prove;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use lunet_host::facts::{Facts, facts};
use lunet_host::plan::Plan;
use lunet_host::rules::{Choice, Loader, Profile, Rules};
use lunet_host::source::{Live, Source, Tree};
use serde_json::{Value, json};

use lunet_cli::{Remote, job};

/// Rules that the machine's owner has added. Not below `/etc/lunet`, whose names are up to the service.
const OWN_RULES: &str = "/etc/lunet-rules.d";
/// Where they were before.
const OLD_RULES: &str = "/etc/lunet/rules.d";
/// Something is to be done, or has drifted.
const CHANGES: u8 = 2;

#[derive(Subcommand)]
pub enum TuneCommand {
    /// Show what is known of this machine
    Facts(facts::FactsArgs),
    /// Write what is known of this machine into a file, to send with a question
    ///
    /// It is a text that can be read first. Passwords, keys and serial numbers are masked;
    /// addresses and names of initiators are not.
    #[command(verbatim_doc_comment)]
    Capture(facts::CaptureArgs),
    /// Show what should be changed, from what to what, and why, and change nothing
    ///
    /// Exit code 0: nothing to do; 2: there are changes to make.
    Plan(plan::PlanArgs),
    /// Apply the plan: all changes or, if one fails, none
    ///
    /// The previous values are recorded first, so that `lunet tune rollback` restores them, also
    /// after a crash and after a reboot. Exit code 0: done; 1: a step failed, which is named.
    #[command(verbatim_doc_comment)]
    Apply(apply::ApplyArgs),
    /// Check that what was applied still holds
    ///
    /// Exit code 0: it holds, or nothing is applied; 2: something is not as it was set.
    Verify(apply::VerifyArgs),
    /// Set again what was applied and no longer holds, as after a reboot
    ///
    /// The service `lunet-reapply` does this at boot. Files that were changed since are left alone.
    /// Exit code 0: all of it holds, or nothing is applied; 1: something could not be set.
    #[command(verbatim_doc_comment)]
    Reapply(apply::ReapplyArgs),
    /// Restore what was there before the first `apply`, persistent files included
    Rollback(apply::RollbackArgs),
    /// Print the plan as a shell script
    Script(apply::ScriptArgs),
    /// Measure each change by alternating runs of fio, and keep those that help
    ///
    /// Changes that harm, or that cannot be told from noise, are rolled back. Interrupting it
    /// restores everything.
    #[command(verbatim_doc_comment)]
    Prove(prove::ProveArgs),
    /// Explain one rule
    Explain(plan::ExplainArgs),
}

/// Which machine.
#[derive(Args)]
pub struct Machine {
    /// A captured machine instead of this one: its file, or a directory with its files
    #[arg(long, value_name = "TREE")]
    root: Option<PathBuf>,
}

/// Rules besides those that come with lunet.
#[derive(Args)]
struct OwnRules {
    /// Directory with more rules; one with the name of a built-in rule replaces it
    #[arg(long, value_name = "DIR")]
    rules: Option<PathBuf>,
}

/// Which machine, which rules.
#[derive(Args)]
struct Look {
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    own: OwnRules,
}

/// What the machine works for.
#[derive(Args)]
struct Work {
    /// What to tune for: throughput, latency or mixed (virtual machines)
    #[arg(long, value_name = "PROFILE", default_value = "mixed")]
    profile: Profile,
}

/// Which of the rules.
#[derive(Args)]
struct Selected {
    /// Only these rules or layers, such as `network,zfs.arc-max`
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    only: Vec<String>,
    /// All but these rules or layers
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    except: Vec<String>,
}

/// Which of the rules, for what.
#[derive(Args)]
struct Chosen {
    #[command(flatten)]
    work: Work,
    #[command(flatten)]
    rules: Selected,
}

pub fn run(command: TuneCommand, remote: &Remote) -> Result<ExitCode> {
    let done = match &command {
        TuneCommand::Plan(args) => args.elsewhere(remote)?,
        TuneCommand::Apply(args) => args.elsewhere(remote)?,
        TuneCommand::Rollback(args) => args.elsewhere(remote)?,
        _ => {
            remote.only_here("this command of `lunet tune`")?;
            None
        }
    };
    if let Some(exit) = done {
        return Ok(exit);
    }
    match command {
        TuneCommand::Facts(args) => facts::show(&args),
        TuneCommand::Capture(args) => facts::capture(&args),
        TuneCommand::Plan(args) => plan::plan(&args),
        TuneCommand::Apply(args) => apply::apply(&args),
        TuneCommand::Verify(args) => apply::verify(&args),
        TuneCommand::Reapply(args) => apply::reapply(&args),
        TuneCommand::Rollback(args) => apply::rollback(&args),
        TuneCommand::Script(args) => apply::script(&args),
        TuneCommand::Prove(args) => prove::prove(&args),
        TuneCommand::Explain(args) => plan::explain(&args),
    }
}

/// Runs a command as a job where another machine is meant; none if it is this one. What `here` names first means this
/// machine.
fn elsewhere(
    remote: &Remote,
    kind: &str,
    here: &[(bool, &str)],
    options: &Value,
) -> Result<Option<ExitCode>> {
    if let Some((_, what)) = here.iter().find(|(given, _)| *given) {
        remote.only_here(what)?;
        return Ok(None);
    }
    match remote.named(None)? {
        Some(server) => job::run(&server, kind, options).map(Some),
        None => Ok(None),
    }
}

impl Machine {
    /// Where its facts come from.
    pub fn source(&self) -> Result<Box<dyn Source>> {
        Ok(match &self.root {
            Some(root) => Box::new(Tree::open(root)?),
            None => Box::new(Live),
        })
    }
}

impl Look {
    fn source(&self) -> Result<Box<dyn Source>> {
        self.machine.source()
    }

    fn load(&self) -> Result<Rules> {
        self.own.load(self.machine.root.is_none())
    }
}

impl OwnRules {
    /// All rules; with those in [`OWN_RULES`] if they are for this machine.
    fn load(&self, here: bool) -> Result<Rules> {
        let mut loader = Loader::default().with_own()?;
        let own = Path::new(OWN_RULES);
        if let Some(told) = here.then(|| old_rules(Path::new(OLD_RULES))).flatten() {
            eprintln!("lunet: note: {told}");
        }
        if here && own.symlink_metadata().is_ok() {
            roots_own(own)?;
            loader = loader.with_folder(own)?;
        }
        if let Some(folder) = &self.rules {
            loader = loader.with_folder(folder)?;
        }
        Ok(loader.finish())
    }
}

/// What is said of rules where they are read no more. The service may write there, and may have a file open: the command
/// makes files of root's, which nobody else can read either, as what is copied may be a link.
fn old_rules(folder: &Path) -> Option<String> {
    let is_rule = |path: PathBuf| path.extension().is_some_and(|end| end == "toml");
    let found = folder.read_dir().ok()?.flatten().any(|file| is_rule(file.path()));
    let old = folder.display();
    found.then(|| {
        format!(
            "the rules in {old} are not used, because the service may write there; if they are yours, move them, and read \
             them once more there: `install -D -m 600 -t {OWN_RULES} {old}/*.toml && rm {old}/*.toml`"
        )
    })
}

/// Refuses rules that somebody else than root has made: what they say is done as root. A link is refused, whoever
/// made it: where it leads to, others may decide.
fn roots_own(folder: &Path) -> Result<()> {
    let files = folder.read_dir().with_context(|| format!("cannot read {}", folder.display()))?;
    let files = files.map(|file| file.map(|file| file.path())).collect::<Result<Vec<_>, _>>()?;
    for path in std::iter::once(folder).chain(files.iter().map(PathBuf::as_path)) {
        let name = path.display();
        let found = path.symlink_metadata().with_context(|| format!("cannot look at {name}"))?;
        if found.is_symlink() {
            bail!("{name} is a link: rules are read from files and a folder of root's own");
        }
        if found.uid() != 0 || found.mode() & 0o022 != 0 {
            bail!(
                "{name}: rules are root's, and nobody else may write them: `chown root {name} && chmod go-w {name}` \
                 once you have read it"
            );
        }
    }
    Ok(())
}

impl Selected {
    fn choice(&self) -> Choice {
        Choice { only: self.only.clone(), except: self.except.clone() }
    }
}

impl Chosen {
    /// The same as options of a job.
    fn options(&self) -> Value {
        let Selected { only, except } = &self.rules;
        json!({"profile": self.work.profile.name(), "only": only, "except": except})
    }

    /// The plan of this machine.
    fn plan(&self, source: &dyn Source, facts: &Facts, rules: &Rules) -> Result<Plan> {
        plan_for(source, facts, rules, self.work.profile, self.rules.choice())
    }
}

/// The plan of a machine, as far as it is asked for.
fn plan_for(
    source: &dyn Source,
    facts: &Facts,
    rules: &Rules,
    profile: Profile,
    choice: Choice,
) -> Result<Plan> {
    if let Some(stranger) = rules.strangers(&choice).first() {
        bail!("no rule and no layer is called `{stranger}`{}", alike(rules, stranger));
    }
    lunet_host::plan::plan(source, facts, rules, profile, &choice).context("a rule has a mistake")
}

/// What somebody may have meant.
fn alike(rules: &Rules, name: &str) -> String {
    let near = rules.all().iter().map(|rule| (strsim::jaro_winkler(&rule.id, name), &rule.id));
    match near.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((near, id)) if near > 0.8 => format!("; did you mean `{id}`?"),
        _ => "; `lunet tune plan --all` shows them".to_owned(),
    }
}

/// The facts of the machine that is asked for.
fn look(source: &dyn Source) -> Facts {
    facts(source)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn rules_where_they_are_not_used_are_told_with_the_command_that_moves_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert_eq!(old_rules(&path.join("none")), None);
        fs::write(path.join("README"), "").unwrap();
        assert_eq!(old_rules(path), None, "it is no rule");
        fs::write(path.join("own.toml"), "").unwrap();
        let told = old_rules(path).unwrap();
        let old = path.display();
        let command = format!("-t /etc/lunet-rules.d {old}/*.toml && rm {old}/*.toml`");
        assert!(told.contains(&command), "{told}");
    }
}
