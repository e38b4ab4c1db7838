//! `lunet support`: what a report of a bug needs, in one file, without secrets.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use lunet_cli::control::Client;
use lunet_config::MAX_BYTES;
use lunet_host::capture::capture;
use lunet_host::doctor::{self, Checks};
use lunet_host::facts::facts;
use lunet_host::rules::Loader;
use lunet_host::source::{Live, MASK, masked};
use lunet_os::fs::read_text;
use lunet_os::process;
use serde::Serialize;

use lunet_cli::{Where, print, tables, version, watch};
use lunet_config::place::Layout;
use lunet_config::units;

/// Lines of the log.
const LINES: &str = "2000";

/// Lines of the log among which those about failover groups are looked for.
const MANY_LINES: &str = "20000";

/// How long they may take: the journal may be on a disk that does not answer.
const LOG_TIME: Duration = Duration::from_secs(60);

/// Most of them that is kept, in bytes.
const LONGEST_LOG: u64 = 16 << 20;

/// Keys of the configuration whose values are secrets, and those that name a file with one.
const SECRETS: [&str; 3] = ["secret", "controller-secret", "tls-key"];

#[derive(Args)]
pub struct Support {
    /// File to write [default: lunet-support-DATE.tar]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Unit of the service whose log is taken
    #[arg(long, value_name = "UNIT", default_value = "lunet.service")]
    unit: String,
    /// Configuration file whose secrets are masked everywhere, besides the running lunet's
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    place: Where,
}

/// A file of the bundle.
struct Member {
    name: &'static str,
    what: &'static str,
    text: String,
    /// Why it is not what it should be.
    missing: Option<String>,
}

impl Member {
    fn new(name: &'static str, what: &'static str, text: Result<String>) -> Self {
        match text {
            Ok(text) => Self { name, what, text, missing: None },
            // What there is not is said, so that nobody looks for it.
            Err(error) => {
                let why = units::plain(&format!("{error:#}"));
                Self { name, what, text: format!("not there: {why}\n"), missing: Some(why) }
            }
        }
    }
}

pub fn run(options: &Support) -> Result<ExitCode> {
    // Of this process's clock: no command has to run for it.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("this machine's clock")?;
    let now = now.as_secs();
    let client = options.place.client();
    let mut members = Vec::new();
    let about = Ok(format!("{:#}\n", version::about()));
    members.push(Member::new("version.json", "version and build", about));
    let mut named = BTreeSet::from([Layout::of_service(|_| None).config]);
    named.extend(options.config.clone());
    match &client {
        Ok(client) => {
            let mut add = |name, what, text| members.push(Member::new(name, what, text));
            let shown = client.config();
            named.extend(shown.iter().map(|shown| PathBuf::from(&shown.file)));
            // What groups share has secrets that are in no other file here.
            named.extend(shown.iter().flat_map(|shown| copies(Path::new(&shown.data))));
            let shown = shown.map(|shown| masked(&shown.text)).map_err(Into::into);
            add("lunet.toml", "configuration, without secrets", shown);
            add("stats.json", "statistics", json(client.stats()));
            add("verdict.txt", "what binds the server now", verdict(client));
            add("sessions.json", "sessions", json(client.sessions()));
            add("volumes.json", "volumes", json(client.volumes()));
            add("targets.json", "targets", json(client.targets()));
            add("portals.json", "portals", json(client.portals()));
            members.extend(of_groups(client, &options.unit));
        }
        Err(error) => {
            let (why, what) = (Err(anyhow!("{error:#}")), "what a lunet that runs says of itself");
            members.push(Member::new("server.txt", what, why));
        }
    }
    let mut add = |name, what, text| members.push(Member::new(name, what, text));
    let found = facts(&Live);
    let rules = Loader::default().with_own()?.finish();
    let machine = capture(&Live, &rules).map(|(tree, _)| tree.to_text());
    add("machine.txt", "the machine, as of `lunet tune capture`", machine.map_err(Into::into));
    let report =
        Checks::embedded().map(|checks| doctor::page(&doctor::examine(&found, &checks), true));
    add("doctor.txt", "what `lunet doctor --verbose` says", report.map_err(Into::into));
    add("log.txt", "the last lines of the service's log", log(&options.unit, LINES));
    let secrets = known(&named);
    for member in &mut members {
        member.text = without(&member.text, &secrets);
    }
    let missing = missing(&members);
    if !missing.is_empty() {
        members.push(Member::new("missing.txt", "what is missing, and why", Ok(missing)));
    }
    let default = || {
        PathBuf::from(format!("lunet-support-{}.tar", units::date(now).replace([' ', ':'], "-")))
    };
    write(&options.file.clone().unwrap_or_else(default), &members, now)
}

/// What is not there, a line for each.
fn missing(members: &[Member]) -> String {
    let line = |one: &Member| Some(format!("{:<14} {}\n", one.name, one.missing.as_ref()?));
    members.iter().filter_map(line).collect()
}

fn json<T: Serialize>(answer: Result<T, lunet_cli::control::Error>) -> Result<String> {
    Ok(serde_json::to_string_pretty(&answer?)? + "\n")
}

fn verdict(client: &Client) -> Result<String> {
    let before = watch::look(client)?;
    std::thread::sleep(std::time::Duration::from_secs(1));
    let told = lunet_verdict::between(&before, &watch::look(client)?);
    Ok(told.as_ref().map(tables::verdict).unwrap_or_default())
}

/// What the server knows of failover groups, if it is a gateway of some: what it is in each, who else is there, what they share,
/// and what its log says of them.
fn of_groups(client: &Client, unit: &str) -> Vec<Member> {
    let groups = match client.groups() {
        Ok(groups) if groups.is_empty() => return Vec::new(),
        groups => groups,
    };
    let names: Vec<String> = groups.iter().flatten().map(|group| group.name.clone()).collect();
    let mut members = vec![Member::new("groups.json", "failover groups", json(groups))];
    let (mut gateways, mut shared) = (String::new(), String::new());
    for name in names {
        let there = client.gateways(name.clone());
        let there = there
            .map_or_else(|error| format!("not known: {error}\n"), |all| tables::gateways(&all));
        gateways.push_str(&format!("group {name}\n{there}"));
        let text = match client.group_config(name.clone()) {
            Ok(shown) => masked(&shown.text),
            Err(error) => format!("# {error}\n"),
        };
        shared.push_str(&format!("# group {name}\n{text}\n"));
    }
    let lines = log(unit, MANY_LINES).map(|lines| about_groups(&lines));
    members.push(Member::new("gateways.txt", "gateways that are there", Ok(gateways)));
    members.push(Member::new("groups.toml", "what they share, without secrets", Ok(shared)));
    members.push(Member::new("groups-log.txt", "what the log says of groups", lines));
    members
}

/// The lines of a log that are about failover groups.
fn about_groups(lines: &str) -> String {
    let is = |line: &&str| line.contains("group") || line.contains("gateway");
    lines.lines().filter(is).map(|line| format!("{line}\n")).collect()
}

/// The files of what groups share in a data directory, as far as this user may read it.
fn copies(data: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(data.join("groups")).into_iter().flatten().flatten();
    found
        .map(|one| one.path())
        .filter(|path| path.extension().is_some_and(|it| it == "toml"))
        .collect()
}

fn log(unit: &str, lines: &str) -> Result<String> {
    let mut command = Command::new("journalctl");
    command
        .args(["--no-pager", "--output=short-iso", "--lines", lines, "--unit", unit])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = process::run(&mut command, LOG_TIME, LONGEST_LOG)
        .map_err(|failed| anyhow!("journalctl {failed}"))?;
    let lines = String::from_utf8_lossy(&output.stdout);
    if lines.lines().all(|line| line.is_empty() || line.starts_with("-- No entries")) {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!(
            "there are no lines of {unit} that this user may read: run this as root. {}",
            why.trim()
        );
    }
    Ok(masked(&lines))
}

/// The secrets in these configurations, and in the files that they name, as far as this user may read them.
fn known(files: &BTreeSet<PathBuf>) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for file in files {
        let Ok(text) = read_text(file, MAX_BYTES) else { continue };
        let Ok(table) = text.parse::<toml::Table>() else { continue };
        let folder = file.parent().unwrap_or(Path::new("."));
        table.iter().for_each(|(key, value)| gather(&mut all, folder, key, value));
    }
    // A word that is everywhere is no secret, and masking it would leave nothing to read.
    all.retain(|secret| secret.len() >= 4);
    all
}

fn gather(all: &mut BTreeSet<String>, folder: &Path, key: &str, value: &toml::Value) {
    match value {
        toml::Value::Table(table) => {
            table.iter().for_each(|(key, value)| gather(all, folder, key, value));
        }
        toml::Value::Array(list) => list.iter().for_each(|value| gather(all, folder, key, value)),
        toml::Value::String(text) if SECRETS.contains(&key) => drop(all.insert(text.clone())),
        toml::Value::String(text)
            if key.strip_suffix("-file").is_some_and(|key| SECRETS.contains(&key)) =>
        {
            let secret = read_text(&folder.join(text), MAX_BYTES).unwrap_or_default();
            all.insert(secret.trim().to_owned());
        }
        _ => {}
    }
}

fn without(text: &str, secrets: &BTreeSet<String>) -> String {
    secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret, MASK))
}

fn write(path: &Path, members: &[Member], time: u64) -> Result<ExitCode> {
    let mut archive = Vec::new();
    for member in members {
        entry(
            &mut archive,
            &format!("lunet-support/{}", member.name),
            member.text.as_bytes(),
            time,
        );
    }
    // Two empty blocks are the end.
    archive.resize(archive.len() + 2 * BLOCK, 0);
    let name = path.display();
    let mut options = OpenOptions::new();
    let created = options.write(true).create_new(true).mode(0o600).open(path);
    match created.and_then(|mut file| file.write_all(&archive)) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!("{name} already exists: name another file, or remove it")
        }
        other => other.with_context(|| {
            format!("cannot write {name} (name a file in a folder that you may write, such as /tmp/lunet-support.tar)")
        })?,
    }
    let mut out =
        format!("wrote {name}, for you to look at and to send; nothing was sent. It has:\n");
    for Member { name, what, text, .. } in members.iter().filter(|one| one.missing.is_none()) {
        let size = units::size(text.len() as u64);
        out.push_str(&format!("  {name:<14} {size:>10}  {what}\n"));
    }
    let missing = missing(members);
    if !missing.is_empty() {
        out.push_str("It has not:\n");
        missing.lines().for_each(|line| out.push_str(&format!("  {line}\n")));
    }
    out.push_str(
        "Passwords, secrets, keys and serial numbers are masked (***). Names and addresses of machines, initiators and \
         volumes are not.\n",
    );
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}

/// The unit of a tar archive, in bytes.
const BLOCK: usize = 512;

/// A file of an archive, in the form `ustar` (POSIX pax(1)).
fn entry(archive: &mut Vec<u8>, name: &str, text: &[u8], time: u64) {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, b"0000600\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}\0", text.len()).as_bytes());
    put(136, format!("{time:011o}\0").as_bytes());
    // The sum is made with spaces in its place.
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive.extend_from_slice(&header);
    archive.extend_from_slice(text);
    archive.resize(archive.len().next_multiple_of(BLOCK), 0);
}
