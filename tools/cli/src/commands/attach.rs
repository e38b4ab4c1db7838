//! `lunet attach` and `lunet detach`

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use lunet_attach::address::Address;
use lunet_attach::attach::AttachError;
use lunet_attach::host::Host;
use lunet_attach::journal::{self, Damaged, Journals, STATE, State};
use lunet_attach::plan::{self, FileSystem, Plan};
use lunet_attach::profile::Profile;
use lunet_attach::script::{Platform, script};
use lunet_attach::server::{self, Offer, Secrets};
use lunet_attach::system::{Live, RUN, System};
use lunet_attach::{Lock, attach as steps, detach as back, page, status as state};
use lunet_config::secrets;
use lunet_iscsi::printable::{printable_json, printable_lines};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use lunet_cli::{Remote, print, prompt};

/// Something is not as it was set.
const DIFFERS: u8 = 2;

/// So long is waited for a program that a killed run has left behind: longer than a login takes.
const PATIENCE: Duration = Duration::from_secs(150);

#[derive(Args)]
pub struct Attach {
    /// iscsi://[USER@]HOST[:PORT][/TARGET[/LUN]], iser://..., nvme-tcp://HOST[:PORT][/NQN[/NSID]] or nvme-rdma://...; without
    /// a transport in front, HOST[:PORT][/NAME[/UNIT]], the best one that both ends have
    #[arg(value_name = "URL", required_unless_present = "status")]
    url: Option<String>,
    /// Show what is attached, its paths, and whether it is as it was set
    #[arg(long, conflicts_with_all = ["url", "mount", "platform", "dry_run", "yes"])]
    status: bool,
    /// Mount the disk's file system here, now and when the machine starts
    #[arg(long, value_name = "DIR")]
    mount: Option<String>,
    /// Make this file system on the disk if it is empty; a disk with anything on it is never formatted
    #[arg(long, value_enum, value_name = "KIND", requires = "mount")]
    mkfs: Option<Kind>,
    /// What the disk is for: queue depths and timeouts follow
    #[arg(long, value_enum, value_name = "PROFILE", default_value = "vm")]
    profile: Purpose,
    /// Use one portal although there are several
    #[arg(long)]
    one_path: bool,
    /// A further portal of the same target or subsystem, where the server does not list all; can be repeated
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with = "one_path")]
    portal: Vec<String>,
    /// File with the CHAP secret of the user in the address, or the host's DH-HMAC-CHAP secret (DHHC-1:...), readable by its
    /// owner only [default: asked for]
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// File with the secret that the target proves (?target_user=NAME in the address), or the controller
    #[arg(long, value_name = "FILE", requires = "secret_file")]
    target_secret_file: Option<PathBuf>,
    /// File with the host's key of TLS (NVMeTLSkey-1:...), readable by its owner only: NVMe over TCP with TLS
    #[arg(long, value_name = "FILE")]
    tls_key_file: Option<PathBuf>,
    /// Print what attaches it on another machine instead
    #[arg(long = "for", value_enum, value_name = "PLATFORM")]
    platform: Option<For>,
    /// Show the plan, and change nothing; needs no root
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct Detach {
    /// Name, address or directory, as `lunet attach --status` shows them
    #[arg(value_name = "NAME|URL|DIR")]
    what: String,
    /// Give a mounted disk up whose server does not answer: what was written to it and is not stored yet is lost
    #[arg(long)]
    force: bool,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Ext4,
    Xfs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Purpose {
    /// Disks of virtual machines
    Vm,
    /// A database
    Database,
    /// Large sequential reads and writes
    Backup,
}

#[derive(Clone, Copy, ValueEnum)]
enum For {
    Esxi,
    Windows,
    Libvirt,
}

pub fn attach(options: &Attach, remote: &Remote) -> Result<ExitCode> {
    remote.only_here("`lunet attach`")?;
    let Some(url) = &options.url else { return status(options.json) };
    let more = |address: Address, portal: &String| address.with_portal(portal);
    let address = options.portal.iter().try_fold(Address::parse(url)?, more)?;
    if let Some(platform) = options.platform {
        print(&script(platform.into(), &address)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !options.dry_run {
        root_only(
            "`lunet attach` changes this machine: run it as root, or add --dry-run to see the plan",
        )?;
    }
    if options.json && !options.dry_run && !options.yes {
        bail!("with --json nothing is asked: add --yes to attach it, or --dry-run to see the plan");
    }
    let secrets = options.secrets(&address)?;
    if options.dry_run {
        let plan = options.plan(&address, &secrets, &journals())?;
        show(&plan, options.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let _lock = Lock::take_private(RUN)?;
    steps::settled(&Live, PATIENCE, &mut note)?;
    let (there, nothing) = finish(&address.to_string())?;
    let plan = options.plan(&address, &secrets, &there)?;
    if !options.json {
        show(&plan, false)?;
    }
    if !options.yes && !asked("Attach it? [y/N] ")? {
        bail!(nothing);
    }
    let ask = |offer: &Offer| {
        server::again(&address, &Host::look(Live.machine().source()), &secrets, offer, &mut note)
    };
    let done =
        steps::attach(&Live, &plan, &secrets, &there.all, STATE, &ask).map_err(
            |error| match error {
                AttachError::Before(why) => anyhow!("{why}; {nothing}"),
                failed => failed.into(),
            },
        )?;
    let text = match (options.json, &done.attachment.mount) {
        (true, _) => {
            let state = state::status(&Live, &done.attachment);
            json_of(&json!({ "plan": of_plan(&plan), "attached": state }))
        }
        (false, Some(at)) => format!("{} is {}, mounted at {at}.\n", plan.name, done.device),
        (false, None) => format!("{} is {}.\n", plan.name, done.device),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

pub fn detach(options: &Detach, remote: &Remote) -> Result<ExitCode> {
    remote.only_here("`lunet detach`")?;
    root_only("`lunet detach` changes this machine: run it as root")?;
    let _lock = Lock::take_private(RUN)?;
    // What waits for a disk that is given up does not end before.
    if !options.force {
        steps::settled(&Live, PATIENCE, &mut note)?;
    }
    let Journals { all: mut others, damaged } = journals();
    if let Some(damaged) = damaged.iter().find(|have| have.name == options.what) {
        bail!("{damaged}");
    }
    let what =
        Address::parse(&options.what).map_or_else(|_| options.what.clone(), |url| url.to_string());
    let Some(at) =
        others.iter().position(|have| have.is_meant(&what) || have.is_meant(&real(&options.what)))
    else {
        bail!(
            "{} is not attached by `lunet attach`: `lunet attach --status` shows what is",
            options.what
        );
    };
    let mut attachment = others.remove(at);
    let name = attachment.name.clone();
    let kept = back::detach(&Live, &mut attachment, &others, STATE, options.force)
        .with_context(|| format!("{name} cannot be detached"))?;
    if options.json {
        print(&json_of(&json!({ "detached": name, "kept": kept })))?;
        return Ok(ExitCode::SUCCESS);
    }
    let kept: String = kept.iter().map(|what| format!("Kept: {what}\n")).collect();
    print(&printable_lines(&format!("{kept}{name} is detached.\n")))?;
    Ok(ExitCode::SUCCESS)
}

fn status(json: bool) -> Result<ExitCode> {
    root_only("what is attached is for root to see: run it as root")?;
    let Journals { all, damaged } = journals();
    let all: Vec<_> = all.iter().map(|attachment| state::status(&Live, attachment)).collect();
    if json {
        let of = |damaged: &Damaged| json!({ "name": damaged.name, "damaged": damaged });
        let whole = all.iter().map(|status| json!(status));
        let both: Vec<Value> = whole.chain(damaged.iter().map(of)).collect();
        print(&json_of(&json!(both)))?;
    } else {
        print(&page::status(&all))?;
    }
    let fine = damaged.is_empty() && all.iter().all(state::Status::is_fine);
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::from(DIFFERS) })
}

/// What is attached; of what is damaged is told.
fn journals() -> Journals {
    let found = journal::all(&Live, STATE);
    found.damaged.iter().for_each(|damaged| note(&damaged.to_string()));
    found
}

fn note(text: &str) {
    let _ = writeln!(io::stderr(), "lunet: note: {}", printable_lines(text));
}

/// Takes back what was interrupted with this address, and gives what is attached, and how to say that nothing else was changed.
fn finish(url: &str) -> Result<(Journals, &'static str)> {
    let mut there = journals();
    let mut nothing = "nothing was changed";
    let is_half = |have: &journal::Attachment| have.url == url && have.state != State::Attached;
    while let Some(at) = there.all.iter().position(is_half) {
        let mut half = there.all.remove(at);
        let kept = back::detach(&Live, &mut half, &there.all, STATE, false).context(
            "an earlier attach or detach of it was interrupted, and cannot be taken back",
        )?;
        note("an earlier attach or detach of it was interrupted, and was taken back");
        kept.iter().for_each(|what| note(&format!("kept: {what}")));
        nothing = "nothing was changed but that an earlier attach or detach of it was taken back";
    }
    Ok((there, nothing))
}

fn root_only(otherwise: &'static str) -> Result<()> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => bail!(otherwise),
    }
}

fn asked(question: &str) -> Result<bool> {
    if !io::stdin().is_terminal() {
        bail!("nobody can be asked here: add --yes to attach it, or --dry-run to see the plan");
    }
    write!(io::stderr(), "{question}").and_then(|()| io::stderr().flush())?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}

fn show(plan: &Plan, json: bool) -> Result<()> {
    print(&if json { json_of(&of_plan(plan)) } else { page::plan(plan) })
}

/// JSON for people and programs, in which nothing that the server says steers a terminal.
fn json_of(value: &Value) -> String {
    printable_json(&format!("{value:#}\n"))
}

fn of_plan(plan: &Plan) -> Value {
    let steps: Vec<Value> = plan
        .steps
        .iter()
        .map(|step| {
            let commands: Vec<String> = step.calls().iter().map(ToString::to_string).collect();
            let file = step.text().map(|(path, text)| json!({ "path": path, "text": text }));
            json!({ "what": step.what(), "commands": commands, "file": file })
        })
        .collect();
    let Plan {
        name, url, offer, known_as, profile, choices, mount, mkfs, notes, not_taken, ..
    } = plan;
    let refused =
        not_taken.iter().map(|(transport, why)| json!({ "transport": transport, "why": why }));
    json!({
        "name": name, "url": url, "offer": offer, "not_taken": refused.collect::<Vec<_>>(), "known_as": known_as,
        "profile": profile, "settings": choices, "mount": mount, "mkfs": mkfs, "steps": steps,
        "then": page::later(plan), "notes": notes,
    })
}

/// A directory as the kernel names it: without symbolic links in the part of it that is there. Else nobody would find it
/// among the mounts.
fn real(directory: &str) -> String {
    let path = Path::new(directory);
    let mut parts = path.ancestors().map(|above| (above, above.canonicalize()));
    let found = parts.find_map(|(above, real)| Some((above, real.ok()?)));
    let whole = found.and_then(|(above, real)| {
        let rest = path.strip_prefix(above).ok()?;
        Some(rest.components().fold(real, |all, part| all.join(part)))
    });
    let whole = whole.filter(|_| path.is_absolute());
    let whole = whole.and_then(|path| path.to_str().map(str::to_owned));
    whole.unwrap_or_else(|| directory.trim_end_matches('/').to_owned())
}

impl Attach {
    fn plan(&self, address: &Address, secrets: &Secrets, there: &Journals) -> Result<Plan> {
        let source = Live.machine().source();
        let mount = self.mount.as_deref().map(real);
        if let Some(directory) = &mount {
            steps::check_directory(source, directory)?;
        }
        server::find(address, &mut note)?;
        let host = Host::look(source);
        let server = server::look(address, &host, secrets, &mut note);
        let wanted = plan::Options {
            profile: self.profile.into(),
            mount,
            mkfs: self.mkfs.map(Into::into),
            one_path: self.one_path,
            nvme_secret: secrets.host.is_some(),
            tls: secrets.tls.is_some(),
        };
        Ok(plan::plan(address, &host, &server, &wanted, there)?)
    }

    fn secrets(&self, address: &Address) -> Result<Secrets> {
        let mut all = Secrets::default();
        let files = [(&self.secret_file, false), (&self.target_secret_file, true)];
        for (file, of_target) in
            files.into_iter().filter_map(|(file, it)| Some((file.as_ref()?, it)))
        {
            let text = secrets::text_of_file(file)?;
            let place = match (text.starts_with("DHHC-1:"), of_target) {
                (false, false) => &mut all.chap,
                (false, true) => &mut all.target,
                (true, false) => &mut all.host,
                (true, true) => &mut all.controller,
            };
            *place = Some(text);
        }
        if let Some(file) = &self.tls_key_file {
            all.tls = Some(secrets::tls_text_of_file(file)?);
        }
        let asked = |user: &Option<String>, have: &mut Option<Zeroizing<String>>| -> Result<()> {
            if let (Some(user), None) = (user, &have) {
                *have = Some(prompt::known_secret(user)?);
            }
            Ok(())
        };
        asked(&address.user, &mut all.chap)?;
        asked(&address.target_user, &mut all.target)?;
        if all.chap.is_some() && address.user.is_none() {
            bail!(
                "the secret is CHAP's, and the address has no user: write iscsi://USER@HOST/TARGET/LUN"
            );
        }
        Ok(all)
    }
}

impl From<For> for Platform {
    fn from(platform: For) -> Self {
        match platform {
            For::Esxi => Self::Esxi,
            For::Windows => Self::Windows,
            For::Libvirt => Self::Libvirt,
        }
    }
}

impl From<Purpose> for Profile {
    fn from(purpose: Purpose) -> Self {
        match purpose {
            Purpose::Vm => Self::Vm,
            Purpose::Database => Self::Database,
            Purpose::Backup => Self::Backup,
        }
    }
}

impl From<Kind> for FileSystem {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Ext4 => Self::Ext4,
            Kind::Xfs => Self::Xfs,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::real;

    #[test]
    fn directories_are_named_as_the_kernel_does() {
        let dir = TempDir::new().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        fs::create_dir(at("there")).unwrap();
        symlink(at("there"), at("link")).unwrap();
        let base = real(dir.path().to_str().unwrap());
        for (given, found) in [
            ("link", "there"),
            ("link/", "there"),
            ("link/new/deeper", "there/new/deeper"),
            ("new//deeper/", "new/deeper"),
        ] {
            assert_eq!(real(&at(given)), format!("{base}/{found}"), "{given}");
        }
        assert_eq!(real("relative/"), "relative");
    }
}
