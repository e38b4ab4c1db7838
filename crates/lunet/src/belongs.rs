//! Whether a data directory is the one that a configuration was served from before.
//!
//! A data directory whose file system is not mounted looks like a new one: its volumes would be made anew, blank, or get
//! other names. What it remembers of them is gone with it, so a file beside the configuration remembers the identity of
//! each data directory that the configuration was served from: `lunet.toml.data` for `lunet.toml`.

use std::ffi::OsString;
use std::path::{Path, PathBuf, absolute};

use anyhow::{Context, Result, bail};
use lunet_files as files;

use crate::identity::{self, Machine};
use crate::plan::Plan;

/// The longest file in bytes.
const MOST: u64 = 64 << 10;

/// So many data directories are remembered.
const DIRECTORIES: usize = 16;

/// A data directory and the UUID of its identity: a line of the file.
struct Line {
    uuid: String,
    data: String,
}

/// The file that remembers the data directories of a configuration.
fn path(configuration: &Path) -> PathBuf {
    let mut name = OsString::from(configuration.file_name().unwrap_or_default());
    name.push(".data");
    files::parent(configuration).join(name)
}

/// What is remembered, and where; `None` if nothing can be: there is no configuration file, or it is in the data
/// directory and would be missing with it, or the path does not fit into a line.
fn subject(plan: &Plan) -> Option<(PathBuf, String)> {
    plan.text.as_ref()?;
    let (file, data) = (absolute(&plan.file).ok()?, absolute(&plan.data).ok()?);
    let data_text = data.to_str().filter(|text| !text.contains('\n'))?.to_owned();
    (!file.starts_with(&data)).then(|| (path(&file), data_text))
}

fn load(memory: &Path) -> Result<Vec<Line>> {
    let text = files::read(memory, MOST)?.unwrap_or_default();
    let line = |text: &str| {
        let (uuid, data) = text.split_once(' ').filter(|(uuid, _)| identity::is_uuid(uuid))?;
        Some(Line { uuid: uuid.to_owned(), data: data.to_owned() })
    };
    let text = String::from_utf8(text).context("it is no text");
    let lines = text.map(|text| text.lines().map(line).collect::<Option<Vec<_>>>());
    lines?.with_context(|| {
        format!("{}: lunet has not written this: restore it, or remove it", memory.display())
    })
}

/// Refuses a data directory that is empty or another one than before. Nothing is made or changed.
///
/// # Errors
/// A sentence with the next step.
pub fn check(plan: &Plan) -> Result<()> {
    let Some((memory, data)) = subject(plan) else { return Ok(()) };
    let now = identity::find(&plan.data)?.map(|machine| machine.uuid().to_owned());
    let before = match load(&memory) {
        Ok(lines) => lines.into_iter().find(|line| line.data == data).map(|line| line.uuid),
        // It has an identity, so at least it is no empty folder below a mount that is missing.
        Err(error) if now.is_some() => {
            tracing::warn!("cannot tell whether {data} is the data directory of before: {error:#}");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let Some(before) = before.filter(|before| now.as_ref() != Some(before)) else { return Ok(()) };
    let (file, memory) = (plan.file.display(), memory.display());
    let found = match now {
        None => "and there is no identity in it now: if its file system is not mounted,".to_owned(),
        Some(now) => {
            format!("and what is there now has {now}: if another file system is mounted there,")
        }
    };
    bail!(
        "{data}: {file} was served from this data directory before, with the identity {before}, {found} mount the right \
         one and start lunet again. If that is gone for good, remove {memory}: what is there now is taken then, and \
         initiators will see other volumes"
    )
}

/// Remembers the data directory that is served from now.
pub fn remember(plan: &Plan, machine: &Machine) {
    let Some((memory, data)) = subject(plan) else { return };
    if let Err(error) = keep(&memory, data, machine.uuid()) {
        // A configuration that lunet may read and not write is nothing wrong.
        tracing::info!(
            "cannot remember in {} which data directory this is, so a start without its file system will not be \
             refused: {error:#}",
            memory.display()
        );
    }
}

fn keep(memory: &Path, data: String, uuid: &str) -> Result<()> {
    let mut lines = load(memory)?;
    if lines.iter().any(|line| line.data == data && line.uuid == uuid) {
        return Ok(());
    }
    lines.retain(|line| line.data != data);
    lines.push(Line { uuid: uuid.to_owned(), data });
    let spare = lines.len().saturating_sub(DIRECTORIES);
    let text: String =
        lines[spare..].iter().map(|line| format!("{} {}\n", line.uuid, line.data)).collect();
    Ok(files::replace(memory, text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;
    use crate::plan::{Options, of_text};

    fn plan_of(file: &Path, data: &Path) -> Plan {
        let options = Options { data: Some(data.to_owned()), ..Options::default() };
        let text = "[[target]]\nname = 'iqn.2026-11.l:x'\n".to_owned();
        of_text(&options, file, text.into()).unwrap()
    }

    #[test]
    fn a_data_directory_that_is_gone_or_another_is_refused() {
        let dir = TempDir::new().unwrap();
        let (data, other) = (dir.path().join("data"), dir.path().join("other"));
        fs::create_dir(&data).unwrap();
        fs::create_dir(&other).unwrap();
        let file = dir.path().join("lunet.toml");
        let plan = plan_of(&file, &data);
        check(&plan).expect("it is new");
        let machine = identity::machine(&data).unwrap();
        remember(&plan, &machine);
        check(&plan).expect("it is the same");
        check(&plan_of(&file, &other)).expect("that is another one, and new");

        fs::rename(&data, dir.path().join("away")).unwrap();
        for made in [false, true] {
            if made {
                fs::create_dir(&data).unwrap();
            }
            let error = check(&plan).unwrap_err().to_string();
            assert!(error.contains(machine.uuid()) && error.contains("not mounted"), "{error}");
        }
        assert_eq!(fs::read_dir(&data).unwrap().count(), 0, "nothing was made below the mount");
        let found = identity::machine(&data).unwrap();
        let error = check(&plan).unwrap_err().to_string();
        assert!(error.contains(found.uuid()) && error.contains("another file system"), "{error}");

        fs::remove_file(path(&file)).unwrap();
        check(&plan).expect("somebody has said so");
    }

    #[test]
    fn what_cannot_be_read_is_no_reason_to_make_another() {
        let dir = TempDir::new().unwrap();
        let data = dir.path().join("data");
        fs::create_dir(&data).unwrap();
        let file = dir.path().join("lunet.toml");
        let plan = plan_of(&file, &data);
        fs::write(path(&file), "?\n").unwrap();
        assert!(check(&plan).unwrap_err().to_string().contains("has not written this"));
        let machine = identity::machine(&data).unwrap();
        check(&plan).expect("it is no empty folder");
        remember(&plan, &machine);
        assert_eq!(fs::read_to_string(path(&file)).unwrap(), "?\n", "it is left alone");
    }

    #[test]
    fn nothing_is_left_beside_a_configuration_in_the_data_directory() {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("lunet.toml");
        remember(&plan_of(&file, dir.path()), &identity::machine(dir.path()).unwrap());
        assert!(!path(&file).exists());
    }

    #[test]
    fn so_many_data_directories_are_remembered_and_the_last_are_kept() {
        let dir = TempDir::new().unwrap();
        let memory = dir.path().join("lunet.toml.data");
        let uuid = identity::uuid().unwrap();
        for n in 0..=DIRECTORIES {
            keep(&memory, format!("/data {n}"), &uuid).unwrap();
        }
        let lines = load(&memory).unwrap();
        assert_eq!(lines.len(), DIRECTORIES);
        assert_eq!((lines[0].data.as_str(), lines[0].uuid.as_str()), ("/data 1", uuid.as_str()));
    }
}
