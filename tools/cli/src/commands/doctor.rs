//! `lunet doctor`

mod peer;
mod watch;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use lunet_client::iscsi::Target;
use lunet_client::nvme;
use lunet_config as config;
use lunet_config::secrets::{self, Key};
use lunet_host::ceilings::what_if::{self, Change, what_if};
use lunet_host::ceilings::{self, ceilings, measure};
use lunet_host::doctor::{self, Checks, Report};
use lunet_host::facts::{Facts, System, facts, network_cards};
use lunet_host::probe;
use lunet_host::source::{Live, Tree};
use serde_json::json;

use super::bench::host_nqn;
use lunet_cli::{Remote, job, print};

/// Nothing could be looked at.
const COULD_NOT_LOOK: u8 = 2;

#[derive(Args)]
pub struct Doctor {
    /// Check a target instead of this machine: iscsi://[USER[%PASSWORD]@]HOST[:PORT][/TARGET[/LUN]] or
    /// nvme-tcp://HOST[:PORT][/NQN[/NSID]]; over RDMA iser:// and nvme-rdma://
    #[arg(value_name = "TARGET-URL", conflicts_with_all = ["root", "ceilings"])]
    url: Option<String>,
    /// Host name to connect with over NVMe
    #[arg(long, value_name = "NQN", value_parser = host_nqn, requires = "url")]
    host_nqn: Option<String>,
    /// File with the CHAP secret of the user in the address, or the host's DH-HMAC-CHAP secret (DHHC-1:...), readable by its
    /// owner only
    #[arg(long, value_name = "FILE", requires = "url")]
    secret_file: Option<PathBuf>,
    /// File with the host's key of TLS for NVMe (NVMeTLSkey-1:...), readable by its owner only
    #[arg(long, value_name = "FILE", requires = "url")]
    tls_key_file: Option<PathBuf>,
    /// Check a captured machine instead of this one
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Also read checks from the *.toml files of a directory
    #[arg(long, value_name = "DIR")]
    checks: Option<PathBuf>,
    /// Take two looks, 1s to 1h apart, and tell what moves meanwhile
    #[arg(long, value_name = "TIME", value_parser = watch::span, conflicts_with_all = ["url", "root", "since", "ceilings"])]
    watch: Option<Duration>,
    /// Compare with an earlier capture of the same machine, and tell what has moved since
    #[arg(long, value_name = "TREE", conflicts_with_all = ["url", "ceilings"])]
    since: Option<PathBuf>,
    /// Look at the other end of the storage as well, and tell what only both show: ssh:[USER@]HOST, https://HOST of a lunet's
    /// REST interface, or a capture
    #[arg(long, value_name = "PEER", conflicts_with_all = ["url", "ceilings", "watch", "since"])]
    peer: Option<peer::Peer>,
    /// Show what each layer can carry, and which one is the bottleneck
    #[arg(long)]
    ceilings: bool,
    /// With --ceilings: what a change of hardware or layout would give, as pool=4xmirror(2) or nic=2x25g; several are one machine
    #[arg(long, value_name = "CHANGE", requires = "ceilings")]
    what_if: Vec<Change>,
    /// Also show the checks that passed
    #[arg(long, short)]
    verbose: bool,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// Exit code 0: healthy; 1: findings; 2: could not look.
pub fn run(options: &Doctor, remote: &Remote) -> Result<ExitCode> {
    match look(options, remote) {
        Err(error) => {
            let _ = writeln!(
                io::stderr(),
                "lunet: {}",
                lunet_config::units::plain(&format!("{error:#}"))
            );
            Ok(ExitCode::from(COULD_NOT_LOOK))
        }
        done => done,
    }
}

fn look(options: &Doctor, remote: &Remote) -> Result<ExitCode> {
    if let Some(other) = &options.peer {
        return peer::look(options, other, remote);
    }
    let elsewhere = [
        (options.url.is_some(), "`lunet doctor TARGET-URL`"),
        (options.root.is_some(), "`lunet doctor --root`"),
        (options.checks.is_some(), "`lunet doctor --checks`"),
        (options.watch.is_some(), "`lunet doctor --watch`"),
        (options.since.is_some(), "`lunet doctor --since`"),
        (!options.what_if.is_empty(), "`lunet doctor --what-if`"),
    ];
    match elsewhere.iter().find(|(given, _)| *given) {
        Some((_, what)) => remote.only_here(what)?,
        None => {
            if let Some(server) = remote.named(None)? {
                let Doctor { ceilings, verbose, json, .. } = options;
                let options = json!({"ceilings": ceilings, "verbose": verbose, "text": !json});
                return job::run(&server, "doctor", &options);
            }
        }
    }
    match &options.url {
        Some(url) if ["nvme-tcp://", "nvme-rdma://"].iter().any(|it| url.starts_with(it)) => {
            return subsystem(options, url);
        }
        Some(url) => return target(options, url),
        None => {}
    }
    if let Some(span) = options.watch {
        return watch::watch(options, span);
    }
    if let Some(earlier) = &options.since {
        return watch::since(options, earlier);
    }
    let facts = read(options.root.as_deref())?;
    if options.ceilings {
        linux_only(&facts, "what each layer can carry is worked out")?;
        return show_ceilings(options, &facts);
    }
    let mut checks = Checks::embedded()?;
    more(&mut checks, options.checks.as_deref())?;
    let report = doctor::examine(&facts, &checks);
    let text = match options.json {
        true => format!("{:#}\n", json!(report)),
        false => doctor::page(&report, options.verbose),
    };
    answer(&report, &text)
}

/// Refuses a machine of another system, of which too little is known for this.
fn linux_only(facts: &Facts, what: &str) -> Result<()> {
    if facts.system() != System::Linux {
        let name = facts.platform.name.as_deref().unwrap_or("FreeBSD");
        bail!(
            "{what} for Linux only; this is {name}: use `lunet doctor --root` and `lunet tune plan --root`"
        );
    }
    Ok(())
}

fn show_ceilings(options: &Doctor, facts: &Facts) -> Result<ExitCode> {
    // Of another machine nothing can be measured here.
    let measured = options.root.is_none().then(measure);
    let text = if options.what_if.is_empty() {
        let ceilings = ceilings(facts, measured.as_ref());
        match options.json {
            true => format!("{:#}\n", json!(ceilings)),
            false => ceilings::page(&ceilings),
        }
    } else {
        let answer = what_if(facts, measured.as_ref(), &options.what_if)?;
        match options.json {
            true => format!("{:#}\n", json!(answer)),
            false => what_if::page(&answer),
        }
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn answer(report: &Report, text: &str) -> Result<ExitCode> {
    print(text)?;
    Ok(ExitCode::from(report.exit_code()))
}

fn read(root: Option<&Path>) -> Result<Facts> {
    Ok(match root {
        Some(root) => facts(&Tree::open(root)?),
        None => facts(&Live),
    })
}

/// The user's own checks.
fn more(checks: &mut Checks, directory: Option<&Path>) -> Result<()> {
    let Some(directory) = directory else { return Ok(()) };
    let failed = || directory.display().to_string();
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        if path.extension().is_some_and(|ending| ending == "toml") {
            files.push(path);
        }
    }
    files.sort();
    for file in files {
        let name = file.display().to_string();
        let text =
            lunet_os::fs::read_text(&file, config::MAX_BYTES).with_context(|| name.clone())?;
        checks.add(&name, &text)?;
    }
    Ok(())
}

fn target(options: &Doctor, url: &str) -> Result<ExitCode> {
    let mut url = Target::parse(url)?;
    let given = options.secret_file.as_deref().map(secrets::any_of_file).transpose()?;
    let secret = match given {
        Some(Key::Chap(_)) if url.account.is_none() => {
            bail!(
                "--secret-file is the secret of a user, and the address names none: iscsi://USER@HOST/TARGET"
            )
        }
        Some(Key::Chap(secret)) => Some(secret),
        Some(Key::DhChap(_)) => bail!("a secret of DH-HMAC-CHAP is for NVMe: nvme-tcp://HOST/NQN"),
        None => secrets::of_initiator(),
    };
    let account = url.account.as_mut().filter(|account| account.secret.is_empty());
    if let (Some(account), Some(secret)) = (account, secret) {
        account.secret = secret;
    }
    let probe = probe::probe(&url)?;
    let mut checks = Checks::of_targets()?;
    more(&mut checks, options.checks.as_deref())?;
    let report = doctor::examine_target(&probe, &checks);
    let text = match options.json {
        true => format!("{:#}\n", json!({ "target": probe, "report": report })),
        false => probe::page(&probe) + &doctor::page(&report, options.verbose),
    };
    answer(&report, &text)
}

fn subsystem(options: &Doctor, url: &str) -> Result<ExitCode> {
    let mut url = nvme::Target::parse(url)?;
    url.secret = match options.secret_file.as_deref().map(secrets::any_of_file).transpose()? {
        Some(Key::DhChap(secret)) => Some(secret),
        Some(Key::Chap(_)) => {
            bail!("--secret-file has no secret of DH-HMAC-CHAP (DHHC-1:...), which NVMe takes")
        }
        None => secrets::of_host()?,
    };
    url.tls_key = options.tls_key_file.as_deref().map(secrets::tls_key_of_file).transpose()?;
    let mut probe = probe::nvme::probe(&url, options.host_nqn.as_deref())?;
    // What another transport would use is looked for only where there is one.
    if probe.offers.iter().any(|offer| offer.over_rdma) {
        let (nics, rdma) = network_cards(&Live);
        probe::nvme::find_rdma_devices(&mut probe, &nics, &rdma);
    }
    let mut checks = Checks::of_subsystems()?;
    more(&mut checks, options.checks.as_deref())?;
    let report = doctor::examine_subsystem(&probe, &checks);
    let text = match options.json {
        true => format!("{:#}\n", json!({ "target": probe, "report": report })),
        false => probe::nvme::page(&probe) + &doctor::page(&report, options.verbose),
    };
    answer(&report, &text)
}
