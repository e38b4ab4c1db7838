//! What a change touches beside the configuration, kept while it is under way.
//!
//! An entry says what to do about a file, and that depends on the configuration alone: whether the
//! change came to pass is written there. So the same [`settle`](Journal::settle) ends a change that went well, undoes
//! one that did not, and repairs after a crash; and doing it twice does no harm.
//!
//! An entry knows its file, not only the name: what lies there may be another one by now. A file is removed
//! or cut only if it is the one that the change made or was about, if no volume of the configuration uses it
//! and the server has it not open. Everything else stays, and is said. What cannot be looked at stays in the journal.

use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use lunet_block::Size;
use lunet_files::{self as files, Found, Unremoved};
use lunet_os::fs as os;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::identity::{FileMark, InUse};
use crate::failures;
use crate::trouble::{At, refused};
use lunet_config::Config;

/// The file in the data directory.
const FILE: &str = "change.journal";

/// The version of the file's form.
const VERSION: u32 = 2;

/// File systems keep holes and data apart in pieces of this many bytes, or smaller ones.
const PIECE: u64 = 1 << 20;

/// The longest journal in bytes.
const LONGEST: u64 = 16 << 20;

/// So many entries are carried over from changes that could not be ended.
const MOST: usize = 64;

/// Something that a change touches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Entry {
    /// A file that is made for a volume. It goes if no volume uses it.
    Made {
        /// The file.
        path: PathBuf,
        /// Which one that is; if left out, it was not there when the change began, and it is the file of
        /// the change as long as nothing was ever written to it.
        file: Option<FileMark>,
    },
    /// Files that go with a volume, if the volume is gone.
    Gone {
        /// The volume.
        volume: String,
        /// Its data.
        data: Vec<Known>,
        /// What lunet has kept about it, in files of its own.
        kept: Vec<PathBuf>,
    },
    /// The file of a volume that grows. It shrinks again if the volume has not got its new size.
    Grown {
        /// The file.
        #[serde(flatten)]
        known: Known,
        /// Its size before, in bytes.
        from: u64,
        /// Its size to be, in bytes.
        to: u64,
    },
    /// A file that is to change places with that of a volume. Whichever is not the volume's then goes.
    Exchanged {
        /// Where it is made.
        path: PathBuf,
        /// Which one it is.
        file: FileMark,
        /// The volume's file.
        place: Known,
    },
}

/// A file that was there when the change began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Where.
    pub path: PathBuf,
    /// Which one.
    pub file: FileMark,
}

impl Known {
    /// What is at this path; of a link, the link itself. `None` if there is nothing.
    ///
    /// # Errors
    /// It cannot be told.
    pub fn at(path: &Path) -> Result<Option<Self>> {
        match files::look_at_name(path) {
            Found::There(found) => {
                Ok(Some(Self { path: path.to_owned(), file: FileMark::of(&found) }))
            }
            Found::Absent => Ok(None),
            Found::Unknown(error) => Err(refused("look at", path, &error)),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    version: u32,
    /// The configuration that decides.
    file: PathBuf,
    entries: Vec<Entry>,
}

/// A change that is under way.
#[must_use]
pub struct Journal {
    path: PathBuf,
    page: Page,
}

/// What became of an entry.
enum Settled {
    /// Nothing is left to do.
    Done,
    /// Something is not as the change has left it: it stays, and that is said.
    Left(String),
    /// Something cannot be looked at or touched now: it is tried again at the next start.
    Later(String),
    /// The same, and the file of a volume could not be flushed: who uses it has to know.
    NotStable {
        /// The volume.
        volume: String,
        /// The operating system's error number.
        errno: i32,
        /// In a sentence.
        problem: String,
    },
}

impl Journal {
    /// Notes what a change touches, before it does. `file` is the configuration. Entries of changes that could
    /// not be ended stay.
    ///
    /// # Errors
    /// The journal cannot be read or written.
    pub fn begin(data: &Path, file: &Path, mut entries: Vec<Entry>) -> Result<Self> {
        let path = data.join(FILE);
        // The next server may be started in another directory.
        let mut absolute = || -> std::io::Result<PathBuf> {
            entries.iter_mut().try_for_each(Entry::absolute)?;
            std::path::absolute(file)
        };
        let file = absolute().context("cannot tell where files are")?;
        let old = read(&path)?.filter(|page| page.file == file);
        for entry in old.into_iter().flat_map(|page| page.entries).take(MOST) {
            if !entries.contains(&entry) {
                entries.push(entry);
            }
        }
        let journal = Self { path, page: Page { version: VERSION, file, entries } };
        journal.write()?;
        Ok(journal)
    }

    fn write(&self) -> Result<()> {
        let text = serde_json::to_vec_pretty(&self.page)?;
        files::replace(&self.path, &text).at("write", &self.path)
    }

    /// Ends the change, whichever way it went: `config` is in force. Gives back what could not be done,
    /// in sentences. `unstable` is told of volumes whose files could not be flushed, with the error number.
    pub fn settle(
        mut self,
        config: &Config,
        used: &InUse,
        mut unstable: impl FnMut(&str, i32),
    ) -> Vec<String> {
        let mut problems = Vec::new();
        self.page.entries.retain(|entry| match entry.settle(config, used) {
            Settled::Done => false,
            Settled::Left(problem) => {
                problems.push(problem);
                false
            }
            Settled::Later(problem) => {
                problems.push(problem);
                true
            }
            Settled::NotStable { volume, errno, problem } => {
                unstable(&volume, errno);
                problems.push(problem);
                true
            }
        });
        let ended = if self.page.entries.is_empty() {
            files::remove(&self.path).map(drop).at("remove", &self.path)
        } else {
            self.write()
        };
        problems.extend(ended.err().map(|error| format!("{error:#}")));
        problems
    }
}

fn read(path: &Path) -> Result<Option<Page>> {
    let name = path.display();
    let text = match os::read(path, LONGEST) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.at("read", path)?,
    };
    // Of another version it may have another form.
    #[derive(Deserialize)]
    struct Header {
        version: u32,
    }
    let none = || format!("{name}: this is no journal that lunet has written");
    let header: Header = serde_json::from_slice(&text).with_context(none)?;
    if header.version != VERSION {
        bail!(
            "{name}: it is of version {}, not {VERSION}: start the lunet that wrote it",
            header.version
        );
    }
    serde_json::from_slice(&text).map(Some).with_context(none)
}

/// Ends the change that a killed server was at, before any volume is opened. `config` is what
/// `file` says and what will be served. Gives back what could not be done, in sentences.
///
/// # Errors
/// The journal cannot be read, is not one, or is about another configuration, by which alone it can
/// be told what became of the change.
pub fn recover(data: &Path, file: &Path, config: &Config) -> Result<Vec<String>> {
    let path = data.join(FILE);
    files::clear(&path);
    let Some(page) = read(&path)? else { return Ok(Vec::new()) };
    if std::path::absolute(file).ok().as_ref() != Some(&page.file) {
        bail!(
            "a change of {} was under way when lunet ended: start lunet with that configuration \
             once, or remove {} and what the change has left",
            page.file.display(),
            path.display()
        );
    }
    tracing::info!("a change was under way when lunet ended: it is finished or undone now");
    let used = InUse::new(config, data, Vec::new());
    let unstable = |volume: &str, errno: i32| {
        let config = config.volumes.iter().find(|one| one.name == volume);
        config.into_iter().for_each(|config| failures::keep(data, config, errno));
    };
    Ok(Journal { path, page }.settle(config, &used, unstable))
}

impl Entry {
    fn absolute(&mut self) -> std::io::Result<()> {
        let paths: Vec<&mut PathBuf> = match self {
            Self::Made { path, .. } => vec![path],
            Self::Gone { data, kept, .. } => {
                data.iter_mut().map(|known| &mut known.path).chain(kept).collect()
            }
            Self::Grown { known, .. } => vec![&mut known.path],
            Self::Exchanged { path, place, .. } => vec![path, &mut place.path],
        };
        for path in paths {
            *path = std::path::absolute(&*path)?;
        }
        Ok(())
    }

    fn settle(&self, config: &Config, used: &InUse) -> Settled {
        lunet_os::met(self);
        let result = match self {
            // The volume that it was made for has it.
            Self::Made { path, .. } if used.is_configured(path) => Ok(()),
            Self::Made { path, file } => remove(path, file.as_ref(), used),
            Self::Gone { volume, .. } if config.volumes.iter().any(|v| v.name == *volume) => Ok(()),
            Self::Gone { data, kept, .. } => {
                let data = data.iter().map(|known| remove(&known.path, Some(&known.file), used));
                // By their names: nobody else makes files of these names in the data directory.
                let kept = kept.iter().map(|path| take_away(path));
                data.chain(kept).fold(Ok(()), Result::and)
            }
            Self::Grown { known, from, .. } => shrink(known, *from, config, used),
            Self::Exchanged { path, file, place } => leave_one(path, file, place, used),
        };
        result.err().unwrap_or(Settled::Done)
    }
}

fn cannot(what: &str, path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("cannot {what} {}: {error}", path.display())
}

/// What is at a path, if it can be told.
fn at(path: &Path) -> Result<Option<Metadata>, Settled> {
    match files::look_at_name(path) {
        Found::There(found) => Ok(Some(found)),
        Found::Absent => Ok(None),
        Found::Unknown(error) => Err(Settled::Later(cannot("look at", path, &error))),
    }
}

/// Removes a file if it is this one, and nobody's.
fn remove(path: &Path, file: Option<&FileMark>, used: &InUse) -> Result<(), Settled> {
    let Some(found) = at(path)? else { return Ok(()) };
    if let Some(volume) = used.user(path, &found) {
        let name = path.display();
        return Err(Settled::Left(format!("{name} stays: it may be that of volume {volume}")));
    }
    let ours = match file {
        Some(mark) => mark.fits(&found),
        None => found.is_file() && is_blank(path),
    };
    if !ours {
        return Err(Settled::Left(format!(
            "{} stays: it is not what the change that was undone has made; remove it if nobody \
             needs it",
            path.display()
        )));
    }
    take_away(path)
}

/// Removes what is to go. What is gone, but not for good, is tried again too: it may be back then.
fn take_away(path: &Path) -> Result<(), Settled> {
    let later = |error| {
        Settled::Later(match error {
            Unremoved::There(error) => cannot("remove", path, &error),
            Unremoved::Unsynced(_) => format!("{}: {error}", path.display()),
        })
    };
    files::remove(path).map(drop).map_err(later)
}

/// True if nothing was ever written to a file.
fn is_blank(path: &Path) -> bool {
    os::open_regular(path).is_ok_and(|file| holds_nothing(&file, 0))
}

/// True if nothing was ever written to a file from an offset on, or nothing but zeroes where the file system
/// keeps no smaller pieces apart.
fn holds_nothing(file: &File, from: u64) -> bool {
    let Ok(found) = file.metadata() else { return false };
    let end = from.next_multiple_of(found.blksize().clamp(512, PIECE)).min(found.len());
    let mut rest = vec![0; usize::try_from(end.saturating_sub(from)).unwrap_or(0)];
    let blank = file.read_exact_at(&mut rest, from).is_ok() && rest.iter().all(|byte| *byte == 0);
    // ENXIO: there is no data behind the offset.
    blank && rustix::fs::seek(file, SeekFrom::Data(end)) == Err(Errno::NXIO)
}

/// Takes back what nobody has been shown.
fn shrink(known: &Known, from: u64, config: &Config, used: &InUse) -> Result<(), Settled> {
    let path = &known.path;
    let found = match files::look(path) {
        Found::There(found) => found,
        Found::Absent => return Ok(()),
        Found::Unknown(error) => return Err(Settled::Later(cannot("look at", path, &error))),
    };
    let owner = used.owner(path, &found);
    let Some(volume) = config.volumes.iter().find(|volume| Some(volume.name.as_str()) == owner)
    else {
        return Ok(());
    };
    if volume.size().is_some_and(|size| size != from) || found.len() <= from {
        return Ok(());
    }
    let stays = |why: &str| {
        Err(Settled::Left(format!(
            "{} stays as large as it is, {}: {why}; set the size of volume {} to that",
            path.display(),
            Size(found.len()),
            volume.name
        )))
    };
    if !known.file.fits(&found) {
        return stays("it is not the file that was growing");
    }
    let later = |error| Settled::Later(cannot("shrink", path, &error));
    let file = File::options().read(true).write(true).open(path).map_err(later)?;
    if !holds_nothing(&file, from) {
        return stays("there is data behind its old end");
    }
    os::set_len(&file, from).map_err(later)?;
    os::sync(&file).map_err(|error| Settled::NotStable {
        volume: volume.name.clone(),
        errno: failures::errno(&error),
        problem: cannot("make stable that it has shrunk again:", path, &error),
    })
}

/// Of two files that were to change places, removes the one that is not the volume's.
fn leave_one(path: &Path, file: &FileMark, place: &Known, used: &InUse) -> Result<(), Settled> {
    let Some(found) = at(path)? else { return Ok(()) };
    let Some(volume) = at(&place.path)? else {
        return Err(Settled::Left(format!(
            "{} stays: {} is not there, and it may be its content",
            path.display(),
            place.path.display()
        )));
    };
    let before = file.fits(&found) && place.file.fits(&volume);
    let after = place.file.fits(&found) && file.fits(&volume);
    match before || after {
        true => remove(path, Some(&FileMark::of(&found)), used),
        false => Err(Settled::Left(format!(
            "{} stays: it is not what the change has made; remove it if nobody needs it",
            path.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use lunet_config::check;
    use tempfile::TempDir;

    fn config(size: u64) -> Config {
        let volume = format!("[volumes.a]\nbackend = 'file'\nsize = {size}\n");
        check(&format!("{volume}[[target]]\nname = 'iqn.2026-11.l:x'\n")).unwrap()
    }

    fn nobody(config: &Config, data: &Path) -> InUse {
        InUse::new(config, data, Vec::new())
    }

    fn known(data: &Path, name: &str) -> Known {
        Known::at(&data.join(name)).unwrap().unwrap()
    }

    fn length(data: &Path, name: &str) -> u64 {
        fs::metadata(data.join(name)).unwrap().len()
    }

    /// A file of 1024 bytes, of which the first half was written.
    fn half(path: &Path) {
        fs::write(path, [1; 512]).unwrap();
        File::options().write(true).open(path).unwrap().set_len(1 << 20).unwrap();
    }

    /// All kinds of entries, about the volume `a` that is configured and `b` that is not.
    fn entries(data: &Path) -> Vec<Entry> {
        let made = |name: &str, mark: bool| Entry::Made {
            path: data.join(name),
            file: mark.then(|| known(data, name).file),
        };
        let gone = |volume: &str| Entry::Gone {
            volume: volume.into(),
            data: vec![known(data, &format!("{volume}.old"))],
            kept: vec![data.join(format!("{volume}.older"))],
        };
        let grown = |path: &str| Entry::Grown { known: known(data, path), from: 512, to: 1 << 20 };
        let exchanged = Entry::Exchanged {
            path: data.join("fresh"),
            file: known(data, "fresh").file,
            place: known(data, "a.img"),
        };
        let made = [made("a.img", true), made("b", true), made("blank", false)];
        let others = [gone("a"), gone("b"), grown("a.img"), grown("b.img"), exchanged];
        made.into_iter().chain(others).collect()
    }

    fn filled() -> TempDir {
        let data = TempDir::new().unwrap();
        for name in ["a.img", "b.img"] {
            half(&data.path().join(name));
        }
        for name in ["a.old", "a.older", "b", "b.old", "b.older", "fresh"] {
            fs::write(data.path().join(name), [1; 1024]).unwrap();
        }
        File::create(data.path().join("blank")).unwrap().set_len(1 << 20).unwrap();
        data
    }

    fn left(data: &Path) -> Vec<String> {
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let names = fs::read_dir(data).unwrap().map(name);
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_configuration_decides_what_becomes_of_a_change() {
        for (size, grown) in [(1 << 20, 1 << 20), (512, 512), (2048, 1 << 20)] {
            let data = filled();
            let path = data.path();
            let toml = path.join("lunet.toml");
            let entries = entries(path);
            // As if the server had been killed: once before, once after it was settled.
            for _ in 0..2 {
                drop(Journal::begin(path, &toml, entries.clone()).unwrap());
                assert_eq!(recover(path, &toml, &config(size)).unwrap(), [""; 0]);
                assert_eq!(left(path), ["a.img", "a.old", "a.older", "b.img"]);
                assert_eq!((length(path, "a.img"), length(path, "b.img")), (grown, 1 << 20));
            }
            let none = recover(path, &toml, &config(size)).unwrap();
            assert_eq!(none, [""; 0], "nothing was under way");
        }
    }

    #[test]
    fn an_exchange_that_was_made_leaves_the_new_file() {
        let data = filled();
        let (path, toml) = (data.path(), data.path().join("lunet.toml"));
        let all = entries(path);
        let exchanged = all.last().cloned().unwrap();
        drop(Journal::begin(path, &toml, vec![exchanged]).unwrap());
        files::exchange(&path.join("fresh"), &path.join("a.img"), |_| Ok(())).unwrap();
        assert_eq!(recover(path, &toml, &config(1024)).unwrap(), [""; 0]);
        assert_eq!((length(path, "a.img"), path.join("fresh").exists()), (1024, false));
    }

    /// By their names, all of these would be removed or cut.
    #[test]
    fn files_that_the_change_did_not_make_stay() {
        let data = filled();
        let (path, toml) = (data.path(), data.path().join("lunet.toml"));
        drop(Journal::begin(path, &toml, entries(path)).unwrap());
        // Somebody has put other files in the places of all.
        for name in ["b", "b.old", "blank", "fresh", "a.img"] {
            fs::write(path.join("other"), [2; 2048]).unwrap();
            fs::rename(path.join("other"), path.join(name)).unwrap();
        }
        let problems = recover(path, &toml, &config(512)).unwrap();
        assert_eq!(problems.len(), 5, "{problems:#?}");
        for name in ["b", "b.old", "blank", "fresh", "a.img"] {
            assert_eq!(fs::read(path.join(name)).unwrap(), [2; 2048], "{name}");
            assert!(problems.iter().any(|p| p.contains(&format!("{name} stays"))), "{problems:#?}");
        }
        assert!(!path.join(FILE).exists());
    }

    #[test]
    fn a_file_that_another_volume_uses_stays() {
        let data = filled();
        let (path, toml) = (data.path(), data.path().join("lunet.toml"));
        let text = "[volumes.c]\nbackend = 'file'\npath = 'b'\n[volumes.d]\nbackend = 'file'\n\
                    path = 'link'\n[[target]]\nname = 'iqn.2026-11.l:x'\n";
        std::os::unix::fs::symlink("b.old", path.join("link")).unwrap();
        let all = entries(path);
        let config = check(text).unwrap();
        drop(Journal::begin(path, &toml, all.clone()).unwrap());
        let problems = recover(path, &toml, &config).unwrap();
        assert!(path.join("b").exists(), "volume c has it now");
        assert!(path.join("b.old").exists(), "volume d has it now");
        assert!(problems.iter().any(|p| p.contains("b.old stays")), "{problems:#?}");
        // And one that the server has open, whatever the configuration says.
        fs::write(path.join("open"), [3; 512]).unwrap();
        let entry = Entry::Made { path: path.join("open"), file: Some(known(path, "open").file) };
        let journal = Journal::begin(path, &toml, vec![entry]).unwrap();
        let hangs = vec![("f".to_owned(), None)];
        let used = InUse::new(&config, path, hangs);
        let found = fs::metadata(path.join("open")).unwrap();
        assert_eq!(used.user(&path.join("open"), &found), Some("f"), "it may be that");
        let open = vec![("e".to_owned(), Some(found))];
        let used = InUse::new(&config, path, open);
        let problems = journal.settle(&config, &used, |_, _| panic!("nothing is flushed"));
        assert!(problems[0].contains("that of volume e"), "{problems:#?}");
        assert!(path.join("open").exists());
    }

    #[test]
    fn data_behind_the_old_end_is_never_cut_off() {
        let data = filled();
        let (path, toml) = (data.path(), data.path().join("lunet.toml"));
        let grown = Entry::Grown { known: known(path, "a.img"), from: 512, to: 1 << 20 };
        drop(Journal::begin(path, &toml, vec![grown]).unwrap());
        let file = File::options().write(true).open(path.join("a.img")).unwrap();
        file.write_all_at(&[7; 4096], 512 << 10).unwrap();
        let problems = recover(path, &toml, &config(512)).unwrap();
        assert!(problems[0].contains("there is data behind its old end"), "{problems:#?}");
        assert_eq!(length(path, "a.img"), 1 << 20);
    }

    #[test]
    fn what_cannot_be_looked_at_stays_in_the_journal() {
        let data = filled();
        let (path, toml) = (data.path(), data.path().join("lunet.toml"));
        // ELOOP: neither there nor absent.
        let looped = path.join("loop");
        std::os::unix::fs::symlink("loop", &looped).unwrap();
        let below = looped.join("file");
        let entry = Entry::Made { path: below.clone(), file: None };
        drop(Journal::begin(path, &toml, vec![entry.clone()]).unwrap());
        for _ in 0..2 {
            let problems = recover(path, &toml, &config(512)).unwrap();
            assert!(problems[0].contains("cannot look at"), "{problems:#?}");
            assert!(path.join(FILE).exists(), "it is tried again");
        }
        // A change meanwhile does not lose it.
        let journal = Journal::begin(path, &toml, Vec::new()).unwrap();
        assert_eq!(journal.page.entries, [entry]);
        let _ = journal.settle(&config(512), &nobody(&config(512), path), |_, _| {});
        fs::remove_file(&looped).unwrap();
        fs::create_dir(&looped).unwrap();
        File::create(&below).unwrap();
        assert_eq!(recover(path, &toml, &config(512)).unwrap(), [""; 0]);
        assert!(!below.exists() && !path.join(FILE).exists());
    }

    #[test]
    fn a_file_that_is_no_journal_is_left_alone() {
        let data = TempDir::new().unwrap();
        for (text, words) in [
            ("", "is no journal"),
            ("{}", "is no journal"),
            ("{\"version\": 1, \"file\": \"/x\", \"entries\": []}", "of version 1"),
            ("{\"version\": 2, \"file\": \"/y\", \"entries\": []}", "a change of /y was under way"),
        ] {
            fs::write(data.path().join(FILE), text).unwrap();
            let error = recover(data.path(), Path::new("/x"), &config(512)).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(FILE) && error.contains(words), "{error}");
            assert_eq!(left(data.path()), [FILE]);
        }
    }
}
