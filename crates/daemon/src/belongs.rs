//! Whether a data directory is the one that a configuration was served from before.
//!
//! A data directory whose file system is not mounted looks like a new one: its volumes would be made anew, blank, or get
//! other names. What it remembers of them is gone with it, so a file beside the configuration remembers the identity of
//! each data directory that the configuration was served from: `lunet.toml.data` for `lunet.toml`.
//!
//! A first start has nothing to remember. Where the data directory is below a place where this machine mounts a file
//! system, and none is mounted there now, nothing is remembered: it would have the right one refused later.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf, absolute};

use anyhow::{Context, Result, anyhow, bail};
use lunet_files::{self as files, Found};
use lunet_os::fs::read_text;

use crate::identity::{self, Machine};
use crate::plan::Plan;
use crate::trouble::{At, unread};
use crate::{fstab, links};
use lunet_config::MAX_BYTES;

/// The longest file in bytes.
const MOST: u64 = 64 << 10;

/// So many data directories are remembered, or half of them where each is known by two paths.
const DIRECTORIES: usize = 16;

/// Units of the administrator. Those of fstab(5) are there by themselves.
const UNITS: &str = "/etc/systemd/system";

/// A data directory and the UUID of its identity: a line of the file.
struct Line {
    uuid: String,
    data: String,
}

/// What is remembered of a data directory, and where.
struct Subject {
    memory: PathBuf,
    /// The path as it is written, and without links.
    data: [String; 2],
}

impl Subject {
    /// `None` if nothing can be remembered: there is no configuration file, or it is in the data directory and would be
    /// missing with it, or the path does not fit into a line.
    fn new(plan: &Plan) -> Option<Self> {
        plan.text.as_ref()?;
        let (file, data) = (absolute(&plan.file).ok()?, absolute(&plan.data).ok()?);
        let real = real(&data);
        let is_inside = file.starts_with(&data) || self::real(&file).starts_with(&real);
        let text = |path: PathBuf| path.into_os_string().into_string().ok();
        let data = [text(data)?, text(real)?];
        let fits = data.iter().all(|text| !text.contains('\n'));
        (fits && !is_inside).then(|| Self { memory: path(&file), data })
    }

    /// What the data directory had by this path, or else by another one that leads there.
    fn before<'a>(&self, lines: &'a [Line]) -> Option<&'a str> {
        let [written, real] = &self.data;
        let line = lines.iter().find(|line| line.data == *written).or_else(|| {
            lines.iter().find(|line| self::real(Path::new(&line.data)) == Path::new(real))
        });
        line.map(|line| line.uuid.as_str())
    }
}

/// The file that remembers the data directories of a configuration.
fn path(configuration: &Path) -> PathBuf {
    let mut name = OsString::from(configuration.file_name().unwrap_or_default());
    name.push(".data");
    files::parent(configuration).join(name)
}

/// Where a path leads to, by links that may lead to nothing now: what is mounted there is missing, perhaps.
fn real(path: &Path) -> PathBuf {
    links::followed(path, |_| false).unwrap_or_else(|| path.to_owned())
}

/// Where this machine mounts file systems, as far as the administrator has written it down.
fn mount_points() -> Vec<PathBuf> {
    let table = read_text(Path::new(fstab::FILE), MAX_BYTES).unwrap_or_default();
    // What is bound from elsewhere may be on the file system that it was on before.
    let bound = |entry: &fstab::Entry| entry.has("bind") || entry.has("rbind");
    let table = fstab::entries(&table).filter(|entry| !bound(entry)).map(|entry| entry.place);
    let units = fs::read_dir(UNITS).into_iter().flatten().flatten().map(|entry| entry.path());
    let units = units.filter(|path| path.extension().is_some_and(|kind| kind == "mount"));
    let of_unit = |path: PathBuf| {
        let text = read_text(&path, MAX_BYTES).ok()?;
        text.lines().find_map(|line| line.strip_prefix("Where=").map(|place| place.trim().into()))
    };
    table.chain(units.filter_map(of_unit)).collect()
}

/// The last place on the way to a directory where nothing is mounted of what should be.
fn missing(data: &Path, mount_points: &[PathBuf]) -> Option<PathBuf> {
    let places = mount_points.iter().filter(|place| place.is_absolute()).map(|place| real(place));
    let on_the_way = places.filter(|place| data.starts_with(place) && place.parent().is_some());
    on_the_way.filter(|place| !is_mounted(place)).max()
}

/// True if a place is of another file system than the folder that it is in. That systemd binds a folder to itself for the
/// service is no mount.
fn is_mounted(place: &Path) -> bool {
    let device = |path: &Path| path.metadata().ok().map(|found| found.dev());
    device(place).is_some_and(|own| device(files::parent(place)) != Some(own))
}

fn load(memory: &Path) -> Result<Vec<Line>> {
    let line = |text: &str| {
        let (uuid, data) = text.split_once(' ').filter(|(uuid, _)| identity::is_uuid(uuid))?;
        Some(Line { uuid: uuid.to_owned(), data: data.to_owned() })
    };
    let Some(bytes) = files::read(memory, MOST).map_err(unread)? else {
        // A link that leads to nothing now is a memory that is missing.
        if let Found::Absent = files::look_at_name(memory) {
            return Ok(Vec::new());
        }
        bail!("{} is a link that leads to nothing: mount what it leads to", memory.display());
    };
    let text = String::from_utf8(bytes).unwrap_or_default();
    let lines: Option<Vec<_>> = text.lines().map(line).collect();
    // It has a line as soon as it is there.
    lines.filter(|lines| !lines.is_empty()).with_context(|| {
        let memory = memory.display();
        format!("{memory}: lunet has not written this, or it is damaged: restore it from a backup")
    })
}

/// What is known of a data directory before it is served from.
#[must_use]
pub struct Belongs(Option<Subject>);

/// Refuses a data directory that is empty or another one than before. Nothing is made or changed.
///
/// # Errors
/// A sentence with the next step.
pub fn check(plan: &Plan) -> Result<Belongs> {
    check_among(plan, &mount_points())
}

/// The same on a machine that mounts something at these places.
fn check_among(plan: &Plan, mount_points: &[PathBuf]) -> Result<Belongs> {
    let Some(subject) = Subject::new(plan) else { return Ok(Belongs(None)) };
    let [data, real] = &subject.data;
    let memory = subject.memory.display();
    let now = identity::find(&plan.data)?.map(|machine| machine.uuid().to_owned());
    let lines = match load(&subject.memory) {
        Ok(lines) => lines,
        // It has an identity, so at least it is no empty folder below a mount that is missing.
        Err(error) if now.is_some() => {
            tracing::warn!(
                "{error:#}; or, if {data} is the right data directory, remove {memory}, and the next start writes it \
                 anew: until then, nobody can tell that from another one"
            );
            return Ok(Belongs(None));
        }
        Err(error) => {
            return Err(anyhow!(
                "{error:#}; or, if {data} is to be a new data directory, remove {memory}: there is no identity in it \
                 now, and nobody can tell whether there was one: perhaps its file system is not mounted"
            ));
        }
    };
    let missing = missing(Path::new(real), mount_points);
    match (subject.before(&lines), missing) {
        (Some(before), missing) if now.as_deref() != Some(before) => {
            Err(refused(plan, &subject, before, now, missing))
        }
        (None, Some(place)) => {
            tracing::warn!(
                "{data}: nothing is mounted at {place}, which {} or a unit in {UNITS} has as a mount point, so this data \
                 directory is not remembered: mount it and start lunet again, or remove that entry",
                fstab::FILE,
                place = place.display(),
            );
            Ok(Belongs(None))
        }
        _ => Ok(Belongs(Some(subject))),
    }
}

/// Why a data directory is not taken: what it had before, what it has now, and where nothing is mounted.
fn refused(
    plan: &Plan,
    subject: &Subject,
    before: &str,
    now: Option<String>,
    missing: Option<PathBuf>,
) -> anyhow::Error {
    let (data, file, memory) = (&subject.data[0], plan.file.display(), subject.memory.display());
    let missing = missing.map_or_else(String::new, |place| {
        format!(" (nothing is mounted at {} now)", place.display())
    });
    let (found, right) = match now {
        None => (
            format!(
                "and there is no identity in it now{missing}: if its file system is not mounted,"
            ),
            "If that is gone for good (initiators will see other volumes, but for those of failover groups)",
        ),
        Some(now) => (
            format!(
                "and what is there now has {now}{missing}: if another file system is mounted there,"
            ),
            "If what is there now is right (the one of before was made in the empty folder while the file system was not \
             mounted, perhaps), or has taken its place for good",
        ),
    };
    anyhow!(
        "{data}: {file} was served from this data directory before, with the identity {before}, {found} mount the right \
         one and start lunet again. {right}, remove {memory}: what is there now is taken then"
    )
}

impl Belongs {
    /// Remembers the data directory, which has this identity and is served from now.
    pub fn remember(self, machine: &Machine) {
        let Some(subject) = self.0 else { return };
        if let Err(error) = keep(&subject.memory, &subject.data, machine.uuid()) {
            // A configuration that lunet may read and not write is nothing wrong.
            tracing::info!(
                "it is not remembered which data directory this is, so a start without its file system will not be \
                 refused: {error:#}"
            );
        }
    }
}

fn keep(memory: &Path, data: &[String], uuid: &str) -> Result<()> {
    let mut lines = load(memory)?;
    let is_known = |data: &String| lines.iter().any(|line| line.data == *data && line.uuid == uuid);
    if data.iter().all(is_known) {
        return Ok(());
    }
    lines.retain(|line| !data.contains(&line.data));
    for (at, text) in data.iter().enumerate() {
        if !data[..at].contains(text) {
            lines.push(Line { uuid: uuid.to_owned(), data: text.clone() });
        }
    }
    let spare = lines.len().saturating_sub(DIRECTORIES);
    let text: String =
        lines[spare..].iter().map(|line| format!("{} {}\n", line.uuid, line.data)).collect();
    files::replace(memory, text.as_bytes()).at("write", memory)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;
    use crate::plan::{Options, of_text};

    fn plan_of(file: &Path, data: &Path) -> Plan {
        let options = Options { data: Some(data.to_owned()), ..Options::default() };
        let text = "[[target]]\nname = 'iqn.2026-11.l:x'\n".to_owned();
        of_text(&options, file, text.into(), Vec::new()).unwrap()
    }

    /// A start on a machine that mounts nothing.
    fn start(plan: &Plan) -> Result<Machine> {
        let belongs = check_among(plan, &[])?;
        let machine = identity::machine(&plan.data)?;
        belongs.remember(&machine);
        Ok(machine)
    }

    fn refusal(plan: &Plan) -> String {
        check_among(plan, &[]).err().expect("it is refused").to_string()
    }

    fn made(dir: &TempDir, name: &str) -> PathBuf {
        let path = dir.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn a_data_directory_that_is_gone_or_another_is_refused() {
        let dir = TempDir::new().unwrap();
        let (data, other) = (made(&dir, "data"), made(&dir, "other"));
        let file = dir.path().join("lunet.toml");
        let plan = plan_of(&file, &data);
        let machine = start(&plan).expect("it is new");
        assert_eq!(start(&plan).expect("it is the same"), machine);
        assert!(check_among(&plan_of(&file, &other), &[]).is_ok(), "that is another one, and new");

        fs::rename(&data, dir.path().join("away")).unwrap();
        for made in [false, true] {
            if made {
                fs::create_dir(&data).unwrap();
            }
            let error = refusal(&plan);
            assert!(error.contains(machine.uuid()) && error.contains("not mounted"), "{error}");
        }
        assert_eq!(fs::read_dir(&data).unwrap().count(), 0, "nothing was made below the mount");
        let found = identity::machine(&data).unwrap();
        let error = refusal(&plan);
        assert!(error.contains(found.uuid()) && error.contains("another file system"), "{error}");

        fs::remove_file(path(&file)).unwrap();
        start(&plan).expect("somebody has said so");
    }

    #[test]
    fn what_cannot_be_read_is_no_reason_to_make_another() {
        let dir = TempDir::new().unwrap();
        let (data, full) = (made(&dir, "data"), made(&dir, "full"));
        let file = dir.path().join("lunet.toml");
        let (plan, served) = (plan_of(&file, &data), plan_of(&file, &full));
        identity::machine(&full).unwrap();
        let memory = path(&file);
        let uuid = identity::uuid().unwrap();
        for damaged in ["?\n", "", "\n", &format!("{uuid}\n"), &format!("{uuid} /x\n?\n")] {
            fs::write(&memory, damaged).unwrap();
            let error = refusal(&plan);
            let remove = format!("remove {}", memory.display());
            assert!(error.contains("restore it") && error.contains(&remove), "{error}");
            start(&served).expect("it is no empty folder");
            assert_eq!(fs::read_to_string(&memory).unwrap(), damaged, "it is left alone");
        }
        fs::remove_file(&memory).unwrap();
        symlink(dir.path().join("none"), &memory).unwrap();
        assert!(refusal(&plan).contains("a link that leads to nothing"));
        assert_eq!(fs::read_dir(&data).unwrap().count(), 0, "nothing was made");
    }

    #[test]
    fn a_data_directory_is_known_by_each_path_that_leads_there() {
        let dir = TempDir::new().unwrap();
        let (tank, file) = (made(&dir, "tank"), dir.path().join("lunet.toml"));
        let link = dir.path().join("link");
        symlink("tank/../tank/data", &link).unwrap();
        fs::create_dir(tank.join("data")).unwrap();
        let [by_link, by_name] =
            [link.clone(), tank.join("data")].map(|data| plan_of(&file, &data));
        let machine = start(&by_link).expect("it is new");
        let now = fs::read_to_string(path(&file)).unwrap();
        // An earlier lunet has remembered one path alone.
        let before = format!("{} {}\n", machine.uuid(), link.display());
        for memory in [now.clone(), before] {
            fs::write(path(&file), memory).unwrap();
            let away = dir.path().join("away");
            fs::rename(&tank, &away).unwrap();
            for plan in [&by_link, &by_name] {
                assert!(refusal(plan).contains(machine.uuid()));
            }
            fs::rename(&away, &tank).unwrap();
            for plan in [&by_name, &by_link] {
                assert_eq!(start(plan).expect("it is the same"), machine);
            }
        }
        let mut lines: Vec<_> = now.lines().map(str::to_owned).collect();
        let after = fs::read_to_string(path(&file)).unwrap();
        let mut same: Vec<_> = after.lines().map(str::to_owned).collect();
        lines.sort();
        same.sort();
        assert_eq!((lines.len(), &lines), (2, &same), "each path has one line");
    }

    /// A configuration without its memory, on a machine whose disk is not there: what is made in the empty folder is not
    /// taken for the right one later.
    #[test]
    fn nothing_is_remembered_below_a_mount_that_is_missing() {
        let dir = TempDir::new().unwrap();
        let tank = real(&made(&dir, "tank"));
        let file = dir.path().join("lunet.toml");
        let plan = plan_of(&file, &tank.join("data"));
        let listed = [PathBuf::from("none"), "/".into(), "/nowhere".into(), tank.clone()];
        for _ in 0..2 {
            let belongs = check_among(&plan, &listed).expect("it may be meant");
            files::make_directory(&plan.data, 0o700).unwrap();
            belongs.remember(&identity::machine(&plan.data).unwrap());
            assert!(!path(&file).exists());
        }
        // The disk is there, for all that can be told of it here.
        fs::rename(&plan.data, dir.path().join("below")).unwrap();
        fs::create_dir(&plan.data).unwrap();
        let machine = start(&plan).expect("nothing else was before");
        fs::rename(&plan.data, dir.path().join("away")).unwrap();
        let error = check_among(&plan, &listed).err().expect("it is gone again").to_string();
        let words = format!("nothing is mounted at {}", tank.display());
        assert!(error.contains(machine.uuid()) && error.contains(&words), "{error}");
    }

    #[test]
    fn what_is_mounted_is_told_from_what_is_not() {
        assert!(is_mounted(Path::new("/proc")) && !is_mounted(Path::new("/proc/self")));
        assert!(!is_mounted(Path::new("/nowhere")));
    }

    #[test]
    fn nothing_is_left_beside_a_configuration_in_the_data_directory() {
        let dir = TempDir::new().unwrap();
        let link = dir.path().join("link");
        let data = made(&dir, "data");
        symlink(&data, &link).unwrap();
        for file in [data.join("lunet.toml"), link.join("lunet.toml")] {
            start(&plan_of(&file, &data)).unwrap();
            assert!(!path(&file).exists());
        }
    }

    #[test]
    fn so_many_data_directories_are_remembered_and_the_last_are_kept() {
        let dir = TempDir::new().unwrap();
        let memory = dir.path().join("lunet.toml.data");
        let uuid = identity::uuid().unwrap();
        for n in 0..=DIRECTORIES {
            keep(&memory, &[format!("/data {n}"), format!("/data {n}")], &uuid).unwrap();
        }
        let lines = load(&memory).unwrap();
        assert_eq!(lines.len(), DIRECTORIES);
        assert_eq!((lines[0].data.as_str(), lines[0].uuid.as_str()), ("/data 1", uuid.as_str()));
    }
}
