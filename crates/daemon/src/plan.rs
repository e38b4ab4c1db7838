//! From the command line and the configuration file to what will be served.
//!
//! An option of the command line says what the configuration file leaves out. If both say it,
//! that is a contradiction, and refused. Without either, what was changed by commands is in
//! `lunet.toml` in the data directory; before the first change, the embedded default is served.

use std::fs;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use lunet_files::{self as files, Found};
use lunet_front_nvme::Tls;
use lunet_scsi::alua::AccessState;
use lunet_server::Transports;
use zeroize::Zeroizing;

use crate::copies;
use crate::trouble::refused;
use crate::{belongs, owned, serve, users};
use lunet_config::place::{Layout, default_path};
use lunet_config::secrets;
use lunet_config::{
    self as config, Backend, Cache, Config, ControlAt, Hosts, Nvme, Portal, Provisioning, Shared,
    Subsystem, Target, Volume,
};

/// The target of the embedded default.
pub const DEMO_TARGET: &str = "iqn.2026-11.local.lunet:demo";

/// The same over NVMe.
const DEMO_SUBSYSTEM: &str = "nqn.2026-11.local.lunet:demo";

/// The volume of the embedded default.
pub const DEMO_VOLUME: &str = "demo";

/// The size of the embedded default's volume, in bytes, if a new one is made.
pub const DEMO_SIZE: u64 = 8 << 30;

/// The configuration in the data directory, used if no other is named.
pub const OWN_FILE: &str = "lunet.toml";

/// The options of `lunet serve`.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Path of the configuration file; if left out, [`OWN_FILE`] in the data directory, if there is one.
    pub config: Option<PathBuf>,
    /// Path of the data directory.
    pub data: Option<PathBuf>,
    /// Address of the only portal, instead of those in the file.
    pub listen: Option<SocketAddr>,
    /// Address of the only portal for NVMe, instead of those in the file.
    pub listen_nvme: Option<SocketAddr>,
    /// Address of the REST interface and the page, instead of those in the file.
    pub listen_control: Option<ControlAt>,
    /// The size of the demo volume, in bytes.
    pub size: Option<u64>,
    /// Path of the control socket; if left out, in the data directory.
    pub socket: Option<PathBuf>,
    /// The data directory if neither `data` nor the configuration file says one.
    pub default_data: Option<PathBuf>,
    /// Make the files of volumes that were never made.
    pub create: bool,
    /// Targets that name nobody who may use them are for everybody, not for this machine alone.
    pub open: bool,
    /// Where the files are if nothing else is said of them: this is the machine's service.
    pub service: Option<Layout>,
    /// The user that serves, by its name or number, if another one starts it.
    pub user: Option<String>,
}

impl Options {
    /// The data directory, if the configuration file says nothing of it.
    fn data(&self) -> PathBuf {
        let service = self.service.as_ref().map(|layout| &layout.data);
        let said = self.data.as_ref().or(service).or(self.default_data.as_ref());
        said.cloned().unwrap_or_else(|| config::DEFAULT_DATA.into())
    }

    /// The configuration file that was named, or is the service's: it has to be there.
    fn named(&self) -> Option<&PathBuf> {
        self.config.as_ref().or(self.service.as_ref().map(|layout| &layout.config))
    }
}

/// What will be served, and from where.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The configuration; it has at least one portal.
    pub config: Config,
    /// The configuration file, as it was read; for the embedded default, where one would be.
    pub file: PathBuf,
    /// What the file says; `None` is the embedded default. There may be secrets in it.
    pub text: Option<Zeroizing<String>>,
    /// Path of the data directory.
    pub data: PathBuf,
    /// Path of the control socket.
    pub socket: PathBuf,
    /// Where the REST interface and the page are.
    pub page: Page,
    /// What failover groups share with their other gateways, as far as it is known. There may be secrets in it.
    pub shared: Vec<Shared>,
}

impl Plan {
    /// What is shared, with other content for one group, which is there or not.
    pub fn sharing(&self, next: Shared) -> Vec<Shared> {
        let mut all = self.shared.clone();
        match all.iter_mut().find(|one| one.group == next.group) {
            Some(one) => *one = next,
            None => all.push(next),
        }
        all
    }

    /// What the group that a target belongs to shares, if it does.
    pub fn shared_with(&self, target: &str) -> Option<&Shared> {
        let is_its = |group: &&config::Group| {
            group.shared && self.config.targets[group.target].name == target
        };
        let group = self.config.groups.iter().find(is_its)?;
        self.shared_by(&group.name)
    }

    /// What the gateways of a group share; `None` if each has a file of its own.
    pub fn shared_by(&self, group: &str) -> Option<&Shared> {
        self.shared.iter().find(|one| one.group == group)
    }
}

/// Where the REST interface and the page are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The addresses; none: there is no such interface.
    pub listen: Vec<SocketAddr>,
    /// Somebody has asked for them: without them there is no start.
    pub asked: bool,
}

/// The mistakes of a configuration file, one line for each: `FILE:LINE: KEY: what is wrong`.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Wrong {
    text: String,
    /// The mistakes in the order of their lines.
    pub mistakes: Vec<config::Mistake>,
    /// For each of them, the group whose shared configuration it is in.
    pub groups: Vec<Option<String>>,
}

impl Wrong {
    fn new(path: &Path, mistakes: Vec<config::Mistake>) -> Self {
        let lines: Vec<String> =
            mistakes.iter().map(|m| format!("{}:{m}", path.display())).collect();
        let groups = vec![None; mistakes.len()];
        Self { text: lines.join("\n"), mistakes, groups }
    }

    /// The same of a file and what groups share.
    fn placed(path: &Path, mistakes: Vec<config::Mistake>, text: &str, shared: &[Shared]) -> Self {
        let (groups, mistakes): (Vec<_>, Vec<_>) =
            config::placed(mistakes, text, shared).into_iter().unzip();
        let line = |(group, mistake): (&Option<String>, &config::Mistake)| match group {
            Some(group) => format!("configuration of group {group}:{mistake}"),
            None => format!("{}:{mistake}", path.display()),
        };
        let lines: Vec<String> = groups.iter().zip(&mistakes).map(line).collect();
        Self { text: lines.join("\n"), mistakes, groups }
    }
}

/// Reads a configuration file as a start does: what this refuses, `lunet serve --config` refuses too, where it is
/// started by the user whose file it is. Root may check the file of another user. Opens no storage.
///
/// # Errors
/// The file cannot be read, is not to be trusted, or has mistakes ([`Wrong`]); a secret cannot be read; a volume cannot
/// be opened, as far as that can be told.
pub fn read_config(path: &Path) -> Result<Config> {
    let mut owner = 0;
    let text = read(path, |file| {
        owner = owned::checked(path, &file.metadata()?)?;
        Ok(())
    })?;
    let config = check(path, &text)?;
    let plan = of_text(&Options::default(), path, text, Vec::new())?;
    let data = config.server.data.is_some();
    if data {
        drop(belongs::check(&plan)?);
    }
    serve::foresee(&plan, data.then_some(owner))?;
    Ok(config)
}

/// Reads the text of a configuration file, which decides what is served: it must be root's or this user's, and nobody
/// else may write it.
///
/// # Errors
/// The file cannot be read, or is not to be trusted.
pub fn read_own(path: &Path) -> Result<Zeroizing<String>> {
    read(path, |file| owned::configuration(path, &file.metadata()?))
}

fn read(path: &Path, check: impl FnOnce(&fs::File) -> Result<()>) -> Result<Zeroizing<String>> {
    let name = path.display();
    let opened = lunet_os::fs::open_regular(path);
    // Room for all of it: what grows out of its place leaves a copy behind.
    let length =
        opened.as_ref().ok().and_then(|file| file.metadata().ok()).map_or(0, |is| is.len());
    let room = length.min(config::MAX_BYTES) as usize + 64;
    let mut text = Zeroizing::new(String::with_capacity(room));
    if let Ok(file) = &opened {
        check(file)?;
    }
    let read = opened.and_then(|file| file.take(config::MAX_BYTES + 1).read_to_string(&mut text));
    match read {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            bail!("{name}: the configuration is not UTF-8 text: is it the right file?")
        }
        Err(error)
            if error.kind() == io::ErrorKind::PermissionDenied && owned::is_of_service(path) =>
        {
            bail!(
                "cannot read the configuration {name}: {error}: it is for root and the service's user alone. Members \
                 of the groups of [control] ask the running lunet: `lunet config show`, `lunet config apply --dry-run`"
            )
        }
        Err(error) => Err(refused("read the configuration", path, &error)),
        Ok(length) if length as u64 > config::MAX_BYTES => {
            bail!("{name}: the configuration is larger than 1 MiB: is it the right file?")
        }
        Ok(_) => Ok(text),
    }
}

/// Reads the text of a configuration, and none of the files that it names.
///
/// # Errors
/// The mistakes.
pub fn check(path: &Path, text: &str) -> Result<Config> {
    let config = config::check(text).map_err(|mistakes| Wrong::new(path, mistakes))?;
    secrets::check_file(&config, path).map_err(|mistakes| Wrong::new(path, mistakes))?;
    users::check_groups(&config).map_err(|mistakes| Wrong::new(path, mistakes))?;
    Ok(config)
}

/// Makes the plan.
///
/// # Errors
/// The configuration file cannot be read or is wrong, or contradicts the options.
pub fn plan(options: &Options) -> Result<Plan> {
    let data = options.data();
    let named = options.named();
    let file = named.cloned().unwrap_or_else(|| data.join(OWN_FILE));
    // What cannot be looked at is read, and the error says why: no default is served in its place.
    if named.is_some() || !matches!(files::look(&file), Found::Absent) {
        let text = read_own(&file)?;
        let kept = kept(options, &file, &text)?;
        // What does not fit the file of today waits for the cluster, and keeps nothing else from being served.
        let whole = (!kept.is_empty()).then(|| of_text(options, &file, text.clone(), kept));
        return match whole {
            Some(Ok(plan)) => Ok(plan),
            Some(Err(_)) | None => of_text(options, &file, text, Vec::new()),
        };
    }
    Ok(resolve(options, demo(options), (file, None), Vec::new()))
}

/// What this gateway has kept of what its groups share.
fn kept(options: &Options, file: &Path, text: &str) -> Result<Vec<Shared>> {
    let config = check(file, text)?;
    let said = options.data.clone().or(config.server.data);
    let data = said.unwrap_or_else(|| options.data());
    // One that cannot be read is told when its group is started.
    let read = |group: &config::Pending| copies::read(&data, &group.name).ok().flatten();
    Ok(config.pending.iter().filter_map(read).collect())
}

/// A sentence on a configuration that somebody may expect to be read because it is in the current directory, as
/// `here`. `file` is the one in force.
pub fn unread(options: &Options, file: &Path, here: &Path) -> Option<String> {
    let same = || match (fs::canonicalize(file), fs::canonicalize(here)) {
        (Ok(file), Ok(here)) => file == here,
        _ => false,
    };
    if options.named().is_some() || !here.is_file() || same() {
        return None;
    }
    let here = here.display();
    Some(format!("{here} in this directory is not read: `lunet serve --config {here}` reads it"))
}

/// Makes the plan for a configuration file with this text, and what groups share beside it.
///
/// # Errors
/// The text is wrong, contradicts the options, or names a secret that cannot be read.
pub fn of_text(
    options: &Options,
    file: &Path,
    text: Zeroizing<String>,
    shared: Vec<Shared>,
) -> Result<Plan> {
    let mut config = check(file, &text)?;
    agree(options, &config)?;
    let wrong = |mistakes| Wrong::placed(file, mistakes, &text, &shared);
    if !shared.is_empty() {
        config = config::check_with(&text, &shared).map_err(wrong)?;
    }
    secrets::read(&mut config, file).map_err(wrong)?;
    Ok(resolve(options, config, (file.to_owned(), Some(text)), shared))
}

/// Fills in what the configuration leaves out.
fn resolve(
    options: &Options,
    mut config: Config,
    (file, text): (PathBuf, Option<Zeroizing<String>>),
    shared: Vec<Shared>,
) -> Plan {
    let data = options.data.clone().or(config.server.data.take());
    let data = data.unwrap_or_else(|| options.data());
    let socket = options.socket.clone().or(config.server.control_socket.take());
    let service = || options.service.as_ref().map(|layout| layout.socket.clone());
    let socket = socket.or_else(service).unwrap_or_else(|| default_path(&data));
    let page = page(options, &config);
    if config.portals.is_empty() && config.nvme.portals.is_empty() {
        let address = options.listen.unwrap_or(config::DEFAULT_PORTAL);
        config.portals.push(portal(address, Transports::default()));
        // An address on the command line stands for all portals.
        let wanted = options.listen.is_none() && !config.nvme.subsystems.is_empty();
        let default = wanted.then_some(config::DEFAULT_NVME_PORTAL);
        let address = options.listen_nvme.or(default);
        config.nvme.portals.extend(address.map(|address| portal(address, Transports::Tcp)));
    }
    if options.open {
        config.nvme.open();
        config.targets.iter_mut().for_each(|target| target.access.open = true);
    }
    Plan { config, file, text, data, socket, page, shared }
}

/// Where the REST interface is. A server that was given its address by an option is often one of several: it takes none
/// that it was not given.
fn page(options: &Options, config: &Config) -> Page {
    match (options.listen_control, &config.control.listen) {
        (Some(ControlAt::Nowhere), _) => Page { listen: Vec::new(), asked: true },
        (Some(ControlAt::Address(address)), _) => Page { listen: vec![address], asked: true },
        (None, Some(listen)) => Page { listen: listen.clone(), asked: true },
        (None, None) if options.listen.is_some() => Page { listen: Vec::new(), asked: false },
        (None, None) => Page { listen: vec![config::DEFAULT_CONTROL], asked: false },
    }
}

fn portal(address: SocketAddr, transports: Transports) -> Portal {
    let group_state = AccessState::Optimized;
    Portal { address, tag: 1, group_state, preferred: false, transports, tls: Tls::default() }
}

/// Refuses options that contradict the configuration file.
fn agree(options: &Options, config: &Config) -> Result<()> {
    let both = |option: &str, key: &str| {
        anyhow!(
            "{option} contradicts the configuration file, which has {key}: leave one of them out"
        )
    };
    if options.size.is_some() {
        bail!(
            "--size is for the demo volume: volumes of a configuration file have their size there"
        );
    }
    if options.data.is_some() && config.server.data.is_some() {
        return Err(both("--data", "server.data"));
    }
    if options.socket.is_some() && config.server.control_socket.is_some() {
        return Err(both("--socket", "server.control-socket"));
    }
    if options.listen_control.is_some() && config.control.listen.is_some() {
        return Err(both("--listen-control", "control.listen"));
    }
    let named = !config.portals.is_empty() || !config.nvme.portals.is_empty();
    for (option, given) in [("--listen", options.listen), ("--listen-nvme", options.listen_nvme)] {
        if given.is_some() && named {
            return Err(both(option, "[[portal]]"));
        }
    }
    Ok(())
}

/// The embedded default as a configuration file, for a demo volume of this size in bytes.
pub fn demo_text(size: u64) -> String {
    let size = config::edit::size(size);
    format!(
        "# lunet has written this when the demo was changed by a command for the first time. From now on
# `lunet serve` reads it, also without --config, if this is its data directory. Change it as you
# like: `lunet config apply` makes a running server take it over, and commands keep comments.

[volumes.{DEMO_VOLUME}]
backend = \"file\"
size = {size}

[[target]]
name = \"{DEMO_TARGET}\"
luns = {{ 0 = \"{DEMO_VOLUME}\" }}
protocols = [\"iscsi\", \"nvme\"]
"
    )
}

/// The embedded default: a sparse volume, as LUN 0 of a target.
fn demo(options: &Options) -> Config {
    let data = options.data();
    let mut volume = Volume {
        name: DEMO_VOLUME.to_owned(),
        backend: Backend::File {
            path: None,
            size: options.size,
            cache: Cache::Buffered,
            provisioning: Provisioning::Thin,
        },
        block_size: None,
        physical_block_size: None,
        read_only: false,
        removable: false,
        write_cache: true,
        threshold: None,
        rates: lunet_volume::Rates::default(),
        share: config::limits::Share::default(),
        vendor: None,
        product: None,
        serial: None,
        naa: None,
        eui: None,
        layers: Vec::new(),
        group: None,
    };
    // A volume that is there already keeps the size that it was made with.
    let there = volume.path(&data).and_then(|path| fs::metadata(path).ok());
    if let Backend::File { size: size @ None, .. } = &mut volume.backend {
        *size = there.is_none_or(|file| file.len() == 0).then_some(DEMO_SIZE);
    }
    let target = Target {
        name: DEMO_TARGET.to_owned(),
        alias: None,
        portals: Vec::new(),
        luns: vec![(0, 0)],
        access: config::Access::default(),
        allow_reset: false,
    };
    let subsystem = Subsystem {
        nqn: DEMO_SUBSYSTEM.to_owned(),
        target: Some(DEMO_TARGET.to_owned()),
        namespaces: vec![(1, 0)],
        hosts: Hosts::ThisMachine,
        portals: Vec::new(),
    };
    Config {
        server: config::Server::default(),
        iscsi: config::Iscsi::default(),
        portals: Vec::new(),
        volumes: vec![volume],
        targets: vec![target],
        discovery: config::Access::default(),
        groups: Vec::new(),
        pending: Vec::new(),
        nvme: Nvme { subsystems: vec![subsystem], ..Nvme::default() },
        limits: Vec::new(),
        control: config::Control::default(),
        sandbox: config::Sandbox::default(),
        notes: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const RIGHT: &str = "[[target]]\nname = 'iqn.2026-11.l:x'\n";

    fn with_file(text: &str, options: Options) -> Result<Plan> {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("lunet.toml");
        fs::write(&path, text).unwrap();
        plan(&Options { config: Some(path), ..options })
    }

    #[test]
    fn without_options_the_demo_is_served() {
        let plan = plan(&Options::default()).unwrap();
        assert_eq!(plan.data, Path::new("./lunet-data"));
        assert_eq!(plan.socket, Path::new("./lunet-data/lunet.sock"));
        assert_eq!(plan.config.portals[0].address.to_string(), "127.0.0.1:3260");
        assert_eq!(plan.config.nvme.portals[0].address.to_string(), "127.0.0.1:4420");
        assert_eq!(plan.config.nvme.subsystems[0].nqn, "nqn.2026-11.local.lunet:demo");
        assert_eq!(plan.config.volumes[0].size(), Some(8 << 30));
        assert_eq!(plan.config.targets[0].luns, [(0, 0)]);
        assert_eq!(plan.config.targets[0].name, "iqn.2026-11.local.lunet:demo");
    }

    #[test]
    fn the_environment_says_what_nothing_else_says() {
        let variable = Options { default_data: Some("/v".into()), ..Options::default() };
        assert_eq!(plan(&variable).unwrap().data, Path::new("/v"));
        let told = Options { data: Some("/d".into()), ..variable.clone() };
        assert_eq!(plan(&told).unwrap().data, Path::new("/d"));
        let file = with_file(&format!("{RIGHT}[server]\ndata = '/f'\n"), variable).unwrap();
        assert_eq!(file.data, Path::new("/f"));
    }

    #[test]
    fn a_demo_volume_that_exists_keeps_its_size() {
        let dir = TempDir::new().unwrap();
        let options = Options { data: Some(dir.path().into()), ..Options::default() };
        let file = fs::File::create(dir.path().join("demo.img")).unwrap();
        assert_eq!(plan(&options).unwrap().config.volumes[0].size(), Some(8 << 30));
        file.set_len(1 << 20).unwrap();
        assert_eq!(plan(&options).unwrap().config.volumes[0].size(), None);
    }

    /// The text of a file may have secrets in it.
    fn is_overwritten(_: &impl zeroize::ZeroizeOnDrop) {}

    #[test]
    fn the_demo_as_a_file_is_the_same() {
        let dir = TempDir::new().unwrap();
        let size = Some(3 << 20);
        let options = Options { data: Some(dir.path().into()), size, ..Options::default() };
        let embedded = plan(&options).unwrap();
        let file = dir.path().join("lunet.toml");
        assert_eq!((&embedded.file, &embedded.text), (&file, &None));
        fs::write(&file, demo_text(3 << 20)).unwrap();
        assert!(plan(&options).unwrap_err().to_string().contains("--size is for the demo"));
        let written = plan(&Options { size: None, ..options }).unwrap();
        assert_eq!(written.text.as_ref().map(|text| text.as_str()), Some(&*demo_text(3 << 20)));
        written.text.iter().for_each(is_overwritten);
        assert_eq!(Plan { text: None, ..written }, embedded);
    }

    #[test]
    fn options_say_what_the_file_leaves_out() {
        let options = Options {
            data: Some("/d".into()),
            listen: "[::1]:7".parse().ok(),
            socket: Some("/s".into()),
            ..Options::default()
        };
        let plan = with_file(RIGHT, options).unwrap();
        assert_eq!(plan.data, Path::new("/d"));
        assert_eq!(plan.socket, Path::new("/s"));
        assert_eq!(plan.config.portals[0].address.to_string(), "[::1]:7");
    }

    #[test]
    fn a_server_with_an_address_of_its_own_has_no_page_unless_it_is_asked_for() {
        let page =
            |text: &str, options: &Options| with_file(&format!("{RIGHT}{text}"), options.clone());
        let none = Options::default();
        let listen = Options { listen: "[::1]:7".parse().ok(), ..Options::default() };
        let at = |text| config::parse_control_option(text).ok();
        let both = Options { listen_control: at("127.0.0.1:0"), ..listen.clone() };
        let off = Options { listen_control: at("none"), ..Options::default() };
        let words = |plan: Plan| (plan.page.listen.len(), plan.page.asked);
        assert_eq!(words(plan(&none).unwrap()), (1, false));
        assert_eq!(words(page("", &none).unwrap()), (1, false));
        assert_eq!(words(page("", &listen).unwrap()), (0, false));
        assert_eq!(words(page("", &both).unwrap()), (1, true));
        assert_eq!(words(page("", &off).unwrap()), (0, true));
        assert_eq!(words(page("[control]\nlisten = []", &none).unwrap()), (0, true));
        let text = "[control]\nlisten = ['::1', '127.0.0.1']";
        assert_eq!(words(page(text, &listen).unwrap()), (2, true));
        let error = page(text, &both).unwrap_err().to_string();
        assert!(error.contains("--listen-control contradicts"), "{error}");
    }

    #[test]
    fn options_that_contradict_the_file_are_refused() {
        for (text, options, words) in [
            ("", Options { size: Some(512), ..Options::default() }, "--size is for the demo"),
            (
                "[server]\ndata = '/x'",
                Options { data: Some("/d".into()), ..Options::default() },
                "--data contradicts the configuration file, which has server.data",
            ),
            (
                "[server]\ncontrol-socket = '/x'",
                Options { socket: Some("/s".into()), ..Options::default() },
                "--socket contradicts",
            ),
            (
                "[[portal]]\naddress = '::1'",
                Options { listen: "[::1]:7".parse().ok(), ..Options::default() },
                "--listen contradicts",
            ),
        ] {
            let error = with_file(&format!("{RIGHT}{text}"), options).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_file_in_this_directory_that_is_not_read_is_told() {
        let dir = TempDir::new().unwrap();
        let (own, here) = (dir.path().join("data.toml"), dir.path().join("lunet.toml"));
        let none = Options::default();
        assert_eq!(unread(&none, &own, &here), None, "there is none");
        fs::write(&here, "").unwrap();
        let note = unread(&none, &own, &here).unwrap();
        assert!(note.contains("is not read") && note.contains("--config"), "{note}");
        assert_eq!(unread(&none, &here, &here), None, "it is the one in force");
        let named = Options { config: Some(own.clone()), ..Options::default() };
        assert_eq!(unread(&named, &own, &here), None);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let missing = read_config(Path::new("/nowhere/lunet.toml")).unwrap_err().to_string();
        let words = "cannot read the configuration /nowhere/lunet.toml: No such file or directory";
        assert!(missing.starts_with(words), "{missing}");
        let error = with_file("[server]\nshards = 0", Options::default()).unwrap_err().to_string();
        assert!(
            error
                .lines()
                .next()
                .unwrap()
                .ends_with("at least one [[target]] or [[subsystem]] must be there to be served")
        );
        assert!(error.contains("lunet.toml:2: server.shards: must be"), "{error}");
    }
}
