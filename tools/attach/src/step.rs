//! A step: what it is, the commands that do it by hand, how it is done, and how it is taken back.
//!
//! Each step can be taken back whether it was done, done by half or not at all: what it finds decides.

use lunet_host::apply::{self as tuner, Fault, Kept, Key, Machine};
use lunet_host::source::Source;
use serde::{Deserialize, Serialize};

use crate::address::{Transport, is_same_host, place};
use crate::disk;
use crate::host::{self, ControllerFact, RECORDS, SessionFact, module};
use crate::server::Secrets;
use crate::system::{Call, System};

/// What open-iscsi makes when it makes its first record.
const FOLDERS: [&str; 4] =
    ["/etc/iscsi/nodes", "/etc/iscsi/static", "/var/lib/iscsi/nodes", "/var/lib/iscsi/static"];
/// How long a login may take: open-iscsi repeats it.
const LOGIN: u64 = 130;
/// A disk that is away holds what ends back.
const ENDING: u64 = 90;
/// For what should be done at once.
const PATIENCE: u64 = 20;

/// A name and a value.
pub type Setting = (String, String);

/// A path to a target by open-iscsi: by this its record and its session are known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// Name of the target.
    pub target: String,
    /// Address of the portal.
    pub address: String,
    /// Port of the portal.
    pub port: u16,
    /// Portal group.
    pub tag: u16,
    /// `default` is TCP, `iser` is RDMA.
    pub iface: String,
}

/// A path to a subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmePath {
    /// The transport.
    pub transport: Transport,
    /// The subsystem's NQN.
    pub nqn: String,
    /// Address of the portal.
    pub address: String,
    /// Port of the portal.
    pub port: u16,
}

/// CHAP without its secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chap {
    /// Who logs in.
    pub user: String,
    /// Who the target has to be.
    pub target_user: Option<String>,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    /// A module is loaded. It stays.
    Module {
        /// Its name.
        name: String,
    },
    /// A file that is lunet's alone.
    File {
        /// Where.
        path: String,
        /// What is in it.
        text: String,
        /// Programs that take it over, also when it goes; whether they can is theirs.
        reload: Vec<Call>,
        /// Directories that had to be made for it, the innermost first.
        made: Vec<String>,
    },
    /// A file with secrets that is lunet's alone, and whose text is in no journal.
    Secret {
        /// Where.
        path: String,
        /// HOSTNQN of the host with the secret.
        host_nqn: String,
        /// HOSTID of it.
        host_id: String,
        /// Paths that want the controller's proof.
        paths: Vec<NvmePath>,
    },
    /// A line in a file of others.
    Line {
        /// Where.
        path: String,
        /// The line.
        line: String,
        /// Programs that take it over, also when it goes.
        reload: Vec<Call>,
        /// What it changed.
        edit: Option<tuner::Step>,
    },
    /// A unit of systemd is started with the machine, and now if it is needed now.
    Unit {
        /// Its name.
        unit: String,
        /// Whether it is started now.
        now: bool,
        /// It was enabled.
        enabled: bool,
        /// It was active.
        active: bool,
        /// What needed it before.
        #[serde(default)]
        users: Vec<String>,
    },
    /// A record of open-iscsi.
    Record {
        /// Which.
        path: Path,
        /// What is set in it.
        settings: Vec<Setting>,
        /// CHAP, without secrets.
        chap: Option<Chap>,
        /// What was set in it, if it was there.
        before: Option<Vec<Setting>>,
        /// Directories of open-iscsi that were not there.
        made: Vec<String>,
    },
    /// A session of open-iscsi.
    Session {
        /// Which.
        path: Path,
    },
    /// A controller of the NVMe host.
    Controller {
        /// Which.
        path: NvmePath,
        /// Further options of `nvme connect`.
        options: Vec<String>,
        /// The file with its secrets.
        config: Option<String>,
    },
    /// How paths of a subsystem are chosen, now; a rule of udev does it later.
    Policy {
        /// The subsystem.
        nqn: String,
        /// The policy.
        policy: String,
    },
    /// One disk is made of several by dm-multipath.
    Map {
        /// The disks' WWID, as multipath has it.
        wwid: String,
        /// multipath has kept a list of WWIDs before.
        listed: bool,
        /// The WWID was in that list before.
        #[serde(default)]
        named: bool,
        /// There was a map of it before.
        #[serde(default)]
        there: bool,
    },
    /// A file system is made. It stays.
    MakeFileSystem {
        /// On this device.
        device: String,
        /// `ext4`, `xfs`.
        kind: String,
    },
    /// A directory.
    Directory {
        /// Which.
        path: String,
        /// It was not there.
        made: bool,
        /// Those above it that were not there, the innermost first.
        #[serde(default)]
        above: Vec<String>,
    },
    /// A file system of /etc/fstab is mounted.
    Mount {
        /// Where.
        directory: String,
    },
}

/// What steps are done and taken back with.
pub struct Context<'a> {
    /// The machine.
    pub system: &'a dyn System,
    /// What is in no journal.
    pub secrets: &'a Secrets,
    /// Steps of other attachments.
    pub others: &'a [Step],
    /// All steps of this one, be they done or not.
    pub own: &'a [Step],
    /// The disk does not answer, and is given up.
    pub force: bool,
}

impl Context<'_> {
    fn source(&self) -> &dyn Source {
        self.system.machine().source()
    }

    fn machine(&self) -> &dyn Machine {
        self.system.machine()
    }

    /// The step of another attachment that is about the same thing: a session, a record, a controller, a unit. It knows
    /// what was there before both; whoever is detached last takes it back.
    pub(crate) fn twin(&self, step: &Step) -> Option<&Step> {
        self.others.iter().find(|other| match (other, step) {
            (Step::Record { path, .. }, Step::Record { path: own, .. })
            | (Step::Session { path }, Step::Session { path: own }) => path == own,
            (Step::Controller { path, .. }, Step::Controller { path: own, .. }) => path == own,
            (Step::Unit { unit, .. }, Step::Unit { unit: own, .. }) => unit == own,
            (Step::Map { wwid, .. }, Step::Map { wwid: own, .. }) => wwid == own,
            _ => false,
        })
    }

    /// Runs programs whose failure harms nothing that a restart does not mend.
    fn reload(&self, calls: &[Call]) {
        for call in calls {
            let _ = self.system.run(call);
        }
    }
}

impl Step {
    /// A file of ours.
    #[must_use]
    pub fn file(path: &str, text: String, reload: Vec<Call>) -> Self {
        Self::File { path: path.to_owned(), text, reload, made: Vec::new() }
    }

    /// Notes what everything is before the step. Changes nothing.
    ///
    /// # Errors
    /// It cannot be read, or something is in the way.
    pub fn prepare(&mut self, cx: &Context<'_>) -> Result<(), Fault> {
        if let Some(twin) = cx.twin(self) {
            self.inherit(twin);
            return Ok(());
        }
        if let Self::File { path, .. } | Self::Secret { path, .. } = self {
            if cx.machine().get(path)?.is_some() {
                return Err(Fault(format!("{path} is there already: look at it, and remove it")));
            }
        }
        match self {
            Self::File { path, made, .. } => {
                *made = missing_above(cx.source(), path);
            }
            Self::Line { path, line, edit, .. } => {
                let change =
                    |text: &str| tuner::set(text, vec![(Key::Start(line.clone()), line.clone())]);
                *edit = Some(tuner::Step::edit(cx.machine(), path, change)?);
            }
            Self::Unit { unit, enabled, active, users, .. } => {
                *users = users_of(cx.source(), unit);
                let is =
                    |what| cx.system.start(&Call::new(&format!("systemctl {what} --quiet {unit}")));
                *enabled = is("is-enabled")?.code == 0;
                *active = is("is-active")?.code == 0;
            }
            Self::Record { path, settings, chap, before, made } => {
                *made = FOLDERS.map(str::to_owned).into();
                made.retain(|folder| cx.source().list(folder).is_none());
                *before = match record_file(cx.source(), path) {
                    None => None,
                    Some(_) if chap.is_some() => {
                        return Err(Fault(format!(
                            "open-iscsi has a record of {} already, and what it has of CHAP would be lost: `{}` removes it",
                            path.target,
                            path.call("delete")
                        )));
                    }
                    Some(file) => {
                        Some(kept(&cx.source().read(&file).unwrap_or_default(), settings))
                    }
                };
            }
            Self::Directory { path, made, above } => {
                *made = cx.source().list(path).is_none();
                *above = missing_above(cx.source(), path);
            }
            // Since the plan was made: it is not ours to end.
            Self::Session { path } if path.session(&host::sessions(cx.source())).is_some() => {
                let end = path.node().with(["--logout"]);
                return Err(Fault(format!(
                    "somebody has logged in there meanwhile: `{end}` ends it"
                )));
            }
            Self::Controller { path, .. } => {
                if let Some(id) = path.controller(&host::controllers(cx.source())) {
                    return Err(Fault(format!(
                        "somebody has connected it meanwhile, as {id}: `nvme disconnect -d {id}` ends it"
                    )));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes over what was there before another attachment did the same.
    fn inherit(&mut self, twin: &Self) {
        match (self, twin) {
            (
                Self::Record { before, made, .. },
                Self::Record { before: first, made: folders, .. },
            ) => {
                before.clone_from(first);
                made.clone_from(folders);
            }
            (
                Self::Map { listed, named, there, .. },
                Self::Map { listed: list, named: name, there: map, .. },
            ) => (*listed, *named, *there) = (*list, *name, *map),
            (
                Self::Unit { enabled, active, users, .. },
                Self::Unit { enabled: on, active: now, users: before, .. },
            ) => {
                (*enabled, *active) = (*on, *now);
                users.clone_from(before);
            }
            _ => {}
        }
    }

    /// Does it. What is done already by another attachment is left as it is.
    ///
    /// # Errors
    /// A program fails, or the system refuses; it may be half done then.
    pub fn run(&self, cx: &Context<'_>) -> Result<(), Fault> {
        let run = |call: &Call| cx.system.run(call).map(drop);
        match self {
            Self::File { path, text, reload, .. } => {
                cx.machine()
                    .put(path, Some(&Kept { bytes: text.clone().into_bytes(), mode: 0o644 }))?;
                cx.reload(reload);
                Ok(())
            }
            Self::Secret { path, .. } => {
                let bytes = self.secret_text(cx.secrets).into_bytes();
                cx.machine().put(path, Some(&Kept { bytes, mode: 0o600 }))
            }
            Self::Line { edit, reload, .. } => {
                edit.as_ref().map_or(Ok(()), |edit| edit.run(cx.machine()))?;
                cx.reload(reload);
                Ok(())
            }
            Self::Record { path, settings, chap, before, .. } => {
                if before.is_none() && cx.twin(self).is_none() {
                    run(&path.call("new"))?;
                }
                run(&path.update(settings))?;
                chap.as_ref().map_or(Ok(()), |chap| give_secrets(cx, path, chap))
            }
            Self::Session { path } if path.session(&host::sessions(cx.source())).is_some() => {
                Ok(())
            }
            Self::Controller { path, .. }
                if path.controller(&host::controllers(cx.source())).is_some() =>
            {
                Ok(())
            }
            Self::Policy { nqn, policy } => match disk::policy_file(cx.source(), nqn) {
                Some(file) => cx.machine().write(&file, policy),
                None => Err(Fault(format!("the kernel shows no subsystem {nqn}"))),
            },
            Self::Directory { made: false, .. } => Ok(()),
            Self::Directory { path, .. } => cx.system.make_directory(path),
            _ => self.calls().iter().try_for_each(run),
        }
    }

    /// Takes it back, as far as it is there. Gives what stays because somebody has changed it since.
    ///
    /// # Errors
    /// A program fails, or the system refuses.
    pub fn undo(&self, cx: &Context<'_>) -> Result<Vec<String>, Fault> {
        if cx.twin(self).is_some() {
            return Ok(Vec::new());
        }
        let run = |call: Call| cx.system.run(&call).map(drop);
        match self {
            Self::Module { .. } | Self::Policy { .. } | Self::MakeFileSystem { .. } => {}
            Self::File { path, text, reload, made } => {
                let kept = file_away(cx, path, text)?;
                made.iter().for_each(|folder| cx.machine().prune(folder));
                cx.reload(reload);
                return Ok(kept);
            }
            Self::Secret { path, .. } => cx.machine().put(path, None)?,
            Self::Line { edit: Some(edit), reload, .. } => {
                let kept = edit.undo(cx.machine())?;
                cx.reload(reload);
                return Ok(kept);
            }
            Self::Line { .. } => {}
            Self::Unit { .. } => return self.unit_away(cx),
            Self::Record { path, before, made, .. } => {
                record_away(cx, path, before.as_deref())?;
                made.iter().for_each(|folder| cx.machine().prune(folder));
            }
            Self::Session { path } => {
                if path.session(&host::sessions(cx.source())).is_some() {
                    disk::check_free(cx.system, &self.disks(cx.source()))?;
                    run(path.node().with(["--logout"]).within(ENDING))?;
                }
            }
            Self::Controller { path, .. } => {
                if let Some(id) = path.controller(&host::controllers(cx.source())) {
                    disk::check_free(cx.system, &self.disks(cx.source()))?;
                    run(Call::new("nvme disconnect -d").with([id]).within(ENDING))?;
                }
            }
            Self::Map { wwid, .. } => match self.map_away(cx) {
                Err(fault) if cx.force => {
                    return Ok(vec![format!("the disk of several paths {wwid}: {fault}")]);
                }
                done => return done,
            },
            Self::Directory { path, made: true, above } => {
                std::iter::once(path).chain(above).for_each(|folder| cx.machine().prune(folder));
            }
            Self::Directory { .. } => {}
            Self::Mount { directory } => return unmounted(cx, directory),
        }
        Ok(Vec::new())
    }

    /// Switches a unit off again, unless others need it by now.
    fn unit_away(&self, cx: &Context<'_>) -> Result<Vec<String>, Fault> {
        let Self::Unit { unit, now, enabled, active, users } = self else { return Ok(Vec::new()) };
        let mut others = users_of(cx.source(), unit);
        others.retain(|user| !users.contains(user));
        if let Some(user) = others.first().filter(|_| !enabled || (*now && !active)) {
            return Ok(vec![format!("{unit} stays on, because {user} needs it by now")]);
        }
        let stop = || Call::new("systemctl stop").with([unit]).within(ENDING);
        let disable = Call::new("systemctl disable --quiet").with([unit]);
        if unit.starts_with(OWN) {
            // It may be trying again, and would go on. Without its file there is nothing to stop.
            let _ = cx.system.start(&stop())?;
            let is_there = cx.source().read(&format!("/etc/systemd/system/{unit}")).is_some();
            return cx
                .system
                .run(&disable)
                .map(drop)
                .or_else(|fault| match is_there {
                    true => Err(fault),
                    false => Ok(()),
                })
                .map(|()| Vec::new());
        }
        if !enabled {
            cx.system.run(&disable)?;
        }
        if *now && !active {
            cx.system.run(&stop())?;
        }
        Ok(Vec::new())
    }

    /// By what the disks of a target or subsystem come that this step leads to, as [`disk::Known::unit`] has it.
    fn way(
        &self,
        target: &str,
        sessions: &[SessionFact],
        controllers: &[ControllerFact],
    ) -> Option<String> {
        match self {
            Self::Session { path } if path.target == target => path.session(sessions),
            Self::Controller { path, .. } if path.nqn == target => {
                path.controller(controllers).map(|_| path.nqn.clone())
            }
            _ => None,
        }
    }

    /// Takes a map away and its WWID from the list, as far as they were not there before.
    fn map_away(&self, cx: &Context<'_>) -> Result<Vec<String>, Fault> {
        let Self::Map { wwid, listed, named, there } = self else { return Ok(Vec::new()) };
        let source = cx.source();
        if let Some(map) = disk::map_of(source, wwid).filter(|_| !there) {
            // By its name, which need not be its WWID (user_friendly_names).
            let name = source.text(&format!("/sys/block/{map}/dm/name"));
            let name = name.unwrap_or_else(|| wwid.to_owned());
            if let Some(path) = foreign_path(cx, &map) {
                return Ok(vec![format!(
                    "/dev/mapper/{name} stays, because /dev/{path} is a path of it that `lunet attach` did not make"
                )]);
            }
            disk::check_free(cx.system, std::slice::from_ref(&map))?;
            cx.system.run(&Call::new("multipath -f").with([name]).within(ENDING))?;
        }
        if !named && is_named(source, wwid) {
            cx.system.run(&Call::new("multipath -w").with([wwid]))?;
        }
        let empty =
            |text: &str| text.lines().all(|line| line.starts_with('#') || line.trim().is_empty());
        if !listed && source.read(WWIDS).is_some_and(|text| empty(&text)) {
            cx.machine().put(WWIDS, None)?;
        }
        Ok(Vec::new())
    }

    /// Ends what leads to a disk that does not answer, so that what waits for it fails and goes on.
    ///
    /// # Errors
    /// It cannot be ended.
    pub(crate) fn cut(&self, cx: &Context<'_>) -> Result<(), Fault> {
        let source = cx.source();
        if cx.twin(self).is_some() {
            return Ok(());
        }
        let call = match self {
            Self::Map { wwid, .. } => {
                let Some(map) = disk::map_of(source, wwid) else { return Ok(()) };
                if foreign_path(cx, &map).is_some() {
                    return Ok(());
                }
                let name = source.text(&format!("/sys/block/{map}/dm/name")).unwrap_or(map);
                // multipathd would have the map wait again when it hears of the paths; it may not run.
                let calls = [
                    Call::new("multipathd disablequeueing map").with([&name]),
                    Call::new("dmsetup message").with([&name, "0", "fail_if_no_path"]),
                ];
                for call in calls {
                    // Without it the map waits as long as it is set to, and not for good.
                    let _ = cx.system.start(&call.within(PATIENCE));
                }
                return Ok(());
            }
            Self::Session { path } if path.session(&host::sessions(source)).is_some() => {
                path.node().with(["--logout"])
            }
            Self::Controller { path, .. } => {
                let Some(id) = path.controller(&host::controllers(source)) else { return Ok(()) };
                Call::new("nvme disconnect -d").with([id])
            }
            _ => return Ok(()),
        };
        cx.system.run(&call.within(ENDING)).map(drop)
    }

    /// The disks that there are as long as the session or the controller is, whosever they are.
    pub(crate) fn disks(&self, source: &dyn Source) -> Vec<String> {
        let found = match self {
            Self::Session { path } => path
                .session(&host::sessions(source))
                .map_or_else(Vec::new, |session| disk::all_of_session(source, &session)),
            Self::Controller { path, .. }
                if path.controller(&host::controllers(source)).is_some() =>
            {
                disk::all_of_subsystem(source, &path.nqn)
            }
            _ => Vec::new(),
        };
        found.into_iter().map(|(_, name)| name).collect()
    }

    /// What is not as it was set, in words; nothing if it holds.
    #[must_use]
    pub fn differs(&self, cx: &Context<'_>) -> Option<String> {
        let source = cx.source();
        match self {
            Self::File { path, text, .. } => match source.read(path) {
                None => Some(format!("{path} is gone")),
                Some(have) => (have != *text).then(|| format!("{path} was changed")),
            },
            Self::Secret { path, .. } => source
                .read(path)
                .is_none()
                .then(|| format!("{path} is gone, or not for this user to read")),
            Self::Line { path, line, .. } => {
                let there =
                    source.read(path).is_some_and(|text| text.lines().any(|have| have == line));
                (!there).then(|| format!("{path} has no line `{line}` any more"))
            }
            Self::Record { path, settings, .. } => record_differs(source, path, settings),
            Self::Session { path } => match path.session(&host::sessions(source)) {
                None => Some(format!("there is no session with {}", path.place())),
                Some(_) => None,
            },
            Self::Controller { path, .. } => match path.controller(&host::controllers(source)) {
                None => {
                    Some(format!("there is no controller at {}", place(&path.address, path.port)))
                }
                Some(_) => None,
            },
            Self::Policy { nqn, policy } => {
                let now = disk::policy_file(source, nqn).and_then(|file| source.text(&file));
                let differs = now.as_ref().is_some_and(|now| now != policy);
                differs.then(|| {
                    format!("iopolicy is {}, and {policy} was set", now.unwrap_or_default())
                })
            }
            Self::Mount { directory } => {
                let there = disk::mounted_at(source, directory).is_some();
                (!there).then(|| format!("nothing is mounted at {directory}"))
            }
            Self::Unit { unit, .. } => {
                let is =
                    cx.system.start(&Call::new(&format!("systemctl is-enabled --quiet {unit}")));
                let off = is.is_ok_and(|ran| ran.code != 0);
                off.then(|| format!("{unit} is not started with the machine"))
            }
            Self::Map { wwid, .. } => {
                let map = disk::map_of(source, wwid)?;
                let path = foreign_path(cx, &map)?;
                Some(format!(
                    "{} has the path /dev/{path}, which `lunet attach` did not make",
                    disk::device(source, &map)
                ))
            }
            Self::Module { .. } | Self::MakeFileSystem { .. } | Self::Directory { .. } => None,
        }
    }

    /// What it has made that nothing takes back, in words. Modules are no matter.
    #[must_use]
    pub fn made_for_good(&self) -> Option<String> {
        match self {
            Self::MakeFileSystem { device, kind } => Some(format!(
                "the disk that was {device} has an {kind} file system now, or a part of one"
            )),
            _ => None,
        }
    }

    /// What it does, in words.
    #[must_use]
    pub fn what(&self) -> String {
        match self {
            Self::Module { name } => format!("load the module {name}"),
            Self::File { path, .. } => format!("write {path}"),
            Self::Secret { path, .. } => format!("write the secrets to {path}, for root only"),
            Self::Line { path, .. } => format!("add a line to {path}"),
            Self::Unit { unit, .. } => format!("have systemd start {unit} with the machine"),
            Self::Record { path, chap, .. } => {
                let chap = chap
                    .as_ref()
                    .map(|chap| format!(", with the secret of the CHAP user {}", chap.user));
                format!("record the target at {}{}", path.place(), chap.unwrap_or_default())
            }
            Self::Session { path } => format!("log in at {}", path.place()),
            Self::Controller { path, .. } => {
                format!("connect to {}", place(&path.address, path.port))
            }
            Self::Policy { policy, .. } => format!("choose among the paths by {policy}"),
            Self::Map { .. } => "make one disk of the paths".to_owned(),
            Self::MakeFileSystem { device, kind } => {
                format!("make an {kind} file system on {device}")
            }
            Self::Directory { path, .. } => format!("make the directory {path}"),
            Self::Mount { directory } => format!("mount it at {directory}"),
        }
    }

    /// The commands that do the same by hand.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        match self {
            Self::Module { name } => vec![Call::new("modprobe").with([name])],
            Self::File { reload, .. } | Self::Line { reload, .. } => reload.clone(),
            Self::Unit { unit, now, .. } => {
                let enable = if *now {
                    "systemctl enable --quiet --now"
                } else {
                    "systemctl enable --quiet"
                };
                vec![Call::new(enable).with([unit])]
            }
            Self::Record { path, settings, .. } => vec![path.call("new"), path.update(settings)],
            Self::Session { path } => vec![path.login()],
            Self::Controller { path, options, config } => {
                vec![path.connect(options, config.as_deref())]
            }
            Self::Map { wwid, .. } => {
                vec![Call::new("multipath -a").with([wwid]), Call::new("multipathd reconfigure")]
            }
            Self::MakeFileSystem { device, kind } => {
                // What was on a disk that was not empty after all can be saved as long as nothing is discarded.
                let gently = if kind == "xfs" { "-K" } else { "-E nodiscard" };
                vec![Call::new(&format!("mkfs.{kind} -q {gently}")).with([device]).within(3600)]
            }
            Self::Directory { path, .. } => vec![Call::new("mkdir -p").with([path])],
            Self::Mount { directory } => vec![Call::new("mount").with([directory]).within(ENDING)],
            Self::Secret { .. } | Self::Policy { .. } => Vec::new(),
        }
    }

    /// What it writes into a file, without secrets.
    #[must_use]
    pub fn text(&self) -> Option<(&str, &str)> {
        match self {
            Self::File { path, text, .. } => Some((path, text)),
            Self::Line { path, line, .. } => Some((path, line)),
            _ => None,
        }
    }

    /// The file of secrets of nvme-cli.
    fn secret_text(&self, secrets: &Secrets) -> String {
        let Self::Secret { host_nqn, host_id, paths, .. } = self else { return String::new() };
        let text = |secret: &Option<zeroize::Zeroizing<String>>| {
            secret.as_ref().map(|secret| secret.as_str().to_owned())
        };
        let ports: Vec<serde_json::Value> = paths
            .iter()
            .map(|path| {
                serde_json::json!({
                    "transport": path.kind(), "traddr": path.address, "trsvcid": path.port.to_string(),
                    "dhchap_key": text(&secrets.host), "dhchap_ctrl_key": text(&secrets.controller),
                    "tls": secrets.tls.as_ref().map(|_| true), "tls_key": text(&secrets.tls),
                })
            })
            .collect();
        let nqn = paths.first().map(|path| path.nqn.as_str());
        let mut host = serde_json::json!([{
            "hostnqn": host_nqn, "hostid": host_id, "dhchap_key": text(&secrets.host),
            "subsystems": [{ "nqn": nqn, "ports": ports }],
        }]);
        without_nulls(&mut host);
        format!("{host:#}\n")
    }
}

/// The ways to a target or subsystem that steps have made, as far as they are there.
#[must_use]
pub fn ways<'a>(
    steps: impl IntoIterator<Item = &'a Step>,
    target: &str,
    sessions: &[SessionFact],
    controllers: &[ControllerFact],
) -> Vec<String> {
    steps.into_iter().filter_map(|step| step.way(target, sessions, controllers)).collect()
}

/// The directories above a path that are not there, the innermost first.
fn missing_above(source: &dyn Source, path: &str) -> Vec<String> {
    let above = path.match_indices('/').map(|(at, _)| path[..at].to_owned()).skip(1);
    let mut missing: Vec<String> = above.filter(|folder| source.list(folder).is_none()).collect();
    missing.reverse();
    missing
}

fn without_nulls(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(without_nulls);
        }
        serde_json::Value::Array(list) => list.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

/// How the names of lunet's own units begin.
const OWN: &str = "lunet-attach-";

/// What needs a service of the system's, in words.
fn users_of(source: &dyn Source, unit: &str) -> Vec<String> {
    match unit {
        "multipathd.service" => disk::maps(source)
            .iter()
            .map(|wwid| format!("the disk of several paths {wwid}"))
            .collect(),
        "open-iscsi.service" | "iscsi.service" => {
            let mut found = automatic_records(source);
            let sessions = host::sessions(source);
            found.extend(sessions.iter().map(|session| {
                let place = place(&session.address, session.port);
                format!("the session with {} at {place}", session.target)
            }));
            found
        }
        "tlshd.service" => {
            let controllers = host::controllers(source);
            let secured = controllers.into_iter().filter(|controller| {
                source.text(&format!("/sys/class/nvme/{}/tls_key", controller.id)).is_some()
            });
            secured.map(|controller| format!("the controller {}", controller.id)).collect()
        }
        _ => Vec::new(),
    }
}

/// Records that open-iscsi logs in by when the machine starts.
fn automatic_records(source: &dyn Source) -> Vec<String> {
    let mut found = Vec::new();
    for root in RECORDS {
        for target in source.names(root) {
            for portal in source.names(&format!("{root}/{target}")) {
                let folder = format!("{root}/{target}/{portal}");
                let is_automatic = source.names(&folder).iter().any(|iface| {
                    let text = source.read(&format!("{folder}/{iface}")).unwrap_or_default();
                    value_of(&text, "node.startup").is_some_and(|value| value != "manual")
                });
                if is_automatic {
                    found.push(format!("the record of {target} at {portal}"));
                }
            }
        }
    }
    found
}

/// The WWIDs that multipath makes disks of: multipathd makes the file when it first sees a disk.
pub const WWIDS: &str = "/etc/multipath/wwids";

impl Path {
    /// Address and port.
    #[must_use]
    pub fn place(&self) -> String {
        place(&self.address, self.port)
    }

    fn node(&self) -> Call {
        let portal = format!("{},{}", self.place(), self.tag);
        Call::new("iscsiadm -m node -T")
            .with([&self.target, "-p", &portal, "-I", &self.iface].map(|s: &str| s))
    }

    /// The command that logs in.
    #[must_use]
    pub fn login(&self) -> Call {
        self.node().with(["--login"]).within(LOGIN)
    }

    fn call(&self, operation: &str) -> Call {
        self.node().with(["-o", operation])
    }

    fn update(&self, settings: &[Setting]) -> Call {
        let words = settings.iter().flat_map(|(name, value)| ["-n", name, "-v", value]);
        self.call("update").with(words)
    }

    /// The session, if there is one.
    #[must_use]
    pub fn session(&self, sessions: &[SessionFact]) -> Option<String> {
        let same = |session: &&SessionFact| {
            session.target == self.target
                && is_same_host(&session.address, &self.address)
                && session.port == self.port
                && session.tag.is_none_or(|tag| tag == self.tag)
                && session.iface == self.iface
        };
        sessions.iter().find(same).map(|session| session.id.clone())
    }
}

impl NvmePath {
    /// `tcp`, `rdma`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        if self.transport.is_rdma() { "rdma" } else { "tcp" }
    }

    /// The module of the transport.
    #[must_use]
    pub const fn module(&self) -> &'static str {
        module(self.transport)
    }

    /// The command that connects.
    #[must_use]
    pub fn connect(&self, options: &[String], config: Option<&str>) -> Call {
        let port = self.port.to_string();
        let place = ["-t", self.kind(), "-a", &self.address, "-s", &port, "-n", &self.nqn];
        let config = config.map(|config| format!("--config={config}"));
        Call::new("nvme connect").with(place).with(options).with(config).within(60)
    }

    /// The controller, if there is one.
    #[must_use]
    pub fn controller(&self, controllers: &[ControllerFact]) -> Option<String> {
        let same = |controller: &&ControllerFact| {
            controller.nqn == self.nqn
                && controller.transport == self.kind()
                && is_same_host(&controller.address, &self.address)
                && controller.port == self.port
        };
        controllers.iter().find(same).map(|controller| controller.id.clone())
    }
}

/// The file of a record.
fn record_file(source: &dyn Source, path: &Path) -> Option<String> {
    for root in RECORDS {
        let folder = format!("{root}/{}", path.target);
        for name in source.names(&folder) {
            // ADDRESS,PORT,TAG
            let mut parts = name.split(',');
            let same = parts.next().is_some_and(|address| is_same_host(address, &path.address))
                && parts.next().is_some_and(|port| port == path.port.to_string())
                && parts.next().is_some_and(|tag| tag == path.tag.to_string());
            if !same {
                continue;
            }
            let file = format!("{folder}/{name}/{}", path.iface);
            if source.read(&file).is_some() {
                return Some(file);
            }
        }
    }
    None
}

/// Lines `name = value` of a record.
fn value_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (have, value) = line.split_once('=')?;
        (have.trim() == name).then(|| value.trim())
    })
}

/// What a record has of these settings.
fn kept(text: &str, settings: &[Setting]) -> Vec<Setting> {
    let of = |(name, _): &Setting| Some((name.clone(), value_of(text, name)?.to_owned()));
    settings.iter().filter_map(of).collect()
}

fn record_differs(source: &dyn Source, path: &Path, settings: &[Setting]) -> Option<String> {
    let file = record_file(source, path);
    let Some(text) = file.and_then(|file| source.read(&file)) else {
        return Some(format!("open-iscsi has no record of the target at {}", path.place()));
    };
    let other = settings
        .iter()
        .find(|(name, value)| value_of(&text, name).is_some_and(|have| have != value));
    other.map(|(name, value)| {
        let have = value_of(&text, name).unwrap_or_default();
        format!("{name} is {have} in the record of {}, and {value} was set", path.place())
    })
}

/// Puts secrets into a record: as arguments of `iscsiadm` everybody could read them.
fn give_secrets(cx: &Context<'_>, path: &Path, chap: &Chap) -> Result<(), Fault> {
    let lost =
        || Fault(format!("open-iscsi keeps its record of {} in an unknown place", path.target));
    let file = record_file(cx.source(), path).ok_or_else(lost)?;
    let kept = cx.machine().get(&file)?.ok_or_else(lost)?;
    let mut text = String::from_utf8(kept.bytes).map_err(|_| lost())?;
    let mut set = |name: &str, value: &str| {
        let name = format!("node.session.auth.{name}");
        let rest: Vec<&str> = text
            .lines()
            .filter(|line| line.split_once('=').is_none_or(|(have, _)| have.trim() != name))
            .collect();
        let end = rest.iter().rposition(|line| line.starts_with("# END")).unwrap_or(rest.len());
        let line = format!("{name} = {value}");
        let (before, after) = rest.split_at(end);
        text = [before, &[line.as_str()], after].concat().join("\n") + "\n";
    };
    set("authmethod", "CHAP");
    set("username", &chap.user);
    set("password", cx.secrets.chap.as_ref().map_or("", |secret| secret));
    if let Some(user) = &chap.target_user {
        set("username_in", user);
        set("password_in", cx.secrets.target.as_ref().map_or("", |secret| secret));
    }
    cx.machine().put(&file, Some(&Kept { bytes: text.into_bytes(), mode: 0o600 }))
}

fn record_away(cx: &Context<'_>, path: &Path, before: Option<&[Setting]>) -> Result<(), Fault> {
    if record_file(cx.source(), path).is_none() {
        return Ok(());
    }
    let call = match before {
        None => path.call("delete"),
        Some([]) => return Ok(()),
        Some(before) => path.update(before),
    };
    cx.system.run(&call).map(drop)
}

fn unmounted(cx: &Context<'_>, directory: &str) -> Result<Vec<String>, Fault> {
    if disk::mounted_at(cx.source(), directory).is_none() {
        return Ok(Vec::new());
    }
    if !cx.force {
        let call = Call::new("umount").with([directory]).within(ENDING);
        return cx.system.run(&call).map(|_| Vec::new());
    }
    // Its files are gone at once; the kernel may go on waiting, and that is not waited for.
    let _ = cx.system.start(&Call::new("umount -l").with([directory]).within(PATIENCE));
    let lost = "what was written to it and was not on the disk yet is lost";
    Ok(vec![format!("{directory} is unmounted, and {lost}")])
}

/// Removes a file of ours, unless somebody has changed it.
fn file_away(cx: &Context<'_>, path: &str, text: &str) -> Result<Vec<String>, Fault> {
    cx.machine().tidy(path)?;
    match cx.machine().get(path)? {
        None => Ok(Vec::new()),
        Some(have) if have.bytes == text.as_bytes() => {
            cx.machine().put(path, None).map(|()| Vec::new())
        }
        Some(_) => Ok(vec![format!(
            "{path} was changed since, and stays: remove it if you do not need it"
        )]),
    }
}

/// Whether multipath makes disks of a WWID: a line `/WWID/` of its list.
#[must_use]
pub fn is_named(source: &dyn Source, wwid: &str) -> bool {
    let text = source.read(WWIDS).unwrap_or_default();
    text.lines().any(|line| line.trim().trim_matches('/') == wwid)
}

/// A path of a map that is not of this attachment.
fn foreign_path(cx: &Context<'_>, map: &str) -> Option<String> {
    let (sessions, controllers) = (host::sessions(cx.source()), host::controllers(cx.source()));
    let target = cx.own.iter().find_map(|step| match step {
        Step::Session { path } => Some(path.target.as_str()),
        _ => None,
    })?;
    disk::foreign_path(cx.source(), map, &ways(cx.own, target, &sessions, &controllers))
}
