//! What a change touches beside the configuration, kept while it is under way.
//!
//! An entry says what to do about a file, and that depends on the configuration alone: whether the
//! change came to pass is written there. So the same [`settle`](Journal::settle) ends a change that went well, undoes
//! one that did not, and repairs after a crash; and doing it twice does no harm.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use lunet_target::files;

/// The file in the data directory.
const FILE: &str = "change.journal";

/// The version of the file's form.
const VERSION: u32 = 1;

/// Something that a change touches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Entry {
    /// A file that is made for a volume. It goes if the volume did not come to be.
    Made {
        /// The volume.
        volume: String,
        /// The file.
        path: PathBuf,
    },
    /// Files that go with a volume, if the volume is gone.
    Gone {
        /// The volume.
        volume: String,
        /// The files.
        paths: Vec<PathBuf>,
    },
    /// The file of a volume that grows. It shrinks again if the volume has not got its new size.
    Grown {
        /// The volume.
        volume: String,
        /// The file.
        path: PathBuf,
        /// Its size before, in bytes.
        from: u64,
        /// Its size to be, in bytes.
        to: u64,
    },
    /// A file that is of no use once the change is over.
    Scratch {
        /// The file.
        path: PathBuf,
    },
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
    entries: Vec<Entry>,
}

impl Journal {
    /// Notes what a change touches, before it does. `file` is the configuration.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn begin(data: &Path, file: &Path, mut entries: Vec<Entry>) -> Result<Self> {
        let path = data.join(FILE);
        // The next server may be started in another directory.
        let mut absolute = || -> std::io::Result<PathBuf> {
            entries.iter_mut().try_for_each(Entry::absolute)?;
            std::path::absolute(file)
        };
        let file = absolute().context("cannot tell where files are")?;
        let page = Page { version: VERSION, file, entries };
        let text = serde_json::to_vec_pretty(&page)?;
        files::replace(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path, entries: page.entries })
    }

    /// Ends the change, whichever way it went. Gives back what could not be done, in sentences.
    pub fn settle(self, config: &Config) -> Vec<String> {
        let mut problems: Vec<String> =
            self.entries.iter().filter_map(|entry| entry.settle(config).err()).collect();
        if let Err(error) = files::remove(&self.path) {
            problems.push(format!("cannot remove {}: {error}", self.path.display()));
        }
        problems
    }
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
    let text = match fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let name = path.display();
    let page: Page = serde_json::from_slice(&text)
        .with_context(|| format!("{name}: this is no journal that lunet has written"))?;
    if page.version != VERSION {
        bail!(
            "{name}: it is of version {}, not {VERSION}: start the lunet that wrote it",
            page.version
        );
    }
    if std::path::absolute(file).ok().as_ref() != Some(&page.file) {
        bail!(
            "a change of {} was under way when lunet ended: start lunet with that configuration \
             once, or remove {name} and what the change has left",
            page.file.display()
        );
    }
    tracing::info!("a change was under way when lunet ended: it is finished or undone now");
    Ok(Journal { path, entries: page.entries }.settle(config))
}

impl Entry {
    fn absolute(&mut self) -> std::io::Result<()> {
        let paths = match self {
            Self::Made { path, .. } | Self::Grown { path, .. } | Self::Scratch { path } => {
                std::slice::from_mut(path)
            }
            Self::Gone { paths, .. } => paths,
        };
        for path in paths {
            *path = std::path::absolute(&*path)?;
        }
        Ok(())
    }

    fn settle(&self, config: &Config) -> Result<(), String> {
        let find = |name: &str| config.volumes.iter().find(|volume| volume.name == name);
        match self {
            Self::Made { volume, path } if find(volume).is_none() => remove(path),
            Self::Gone { volume, paths } if find(volume).is_none() => {
                paths.iter().map(|path| remove(path)).fold(Ok(()), Result::and)
            }
            Self::Grown { volume, path, from, .. } => match find(volume) {
                // Only what has its old size was shown to nobody with the new one.
                Some(found) if found.size().is_none_or(|size| size == *from) => shrink(path, *from),
                _ => Ok(()),
            },
            Self::Scratch { path } => remove(path),
            Self::Made { .. } | Self::Gone { .. } => Ok(()),
        }
    }
}

fn remove(path: &Path) -> Result<(), String> {
    files::remove(path).map(drop).map_err(|e| format!("cannot remove {}: {e}", path.display()))
}

/// Takes back what nobody has been shown.
fn shrink(path: &Path, size: u64) -> Result<(), String> {
    let cut = || {
        let file = File::options().write(true).open(path)?;
        if file.metadata()?.len() > size {
            file.set_len(size)?;
            file.sync_all()?;
        }
        Ok(())
    };
    cut().map_err(|e: std::io::Error| format!("cannot shrink {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check;
    use tempfile::TempDir;

    fn config(size: u64) -> Config {
        let volume = format!("[volumes.a]\nbackend = 'file'\nsize = {size}\n");
        check(&format!("{volume}[[target]]\nname = 'iqn.2026-11.l:x'\n")).unwrap()
    }

    /// All kinds of entries, about the volume `a` that is configured and `b` that is not.
    fn entries(data: &Path) -> Vec<Entry> {
        let file = |name: &str| data.join(name);
        let made = |volume: &str| Entry::Made { volume: volume.into(), path: file(volume) };
        let gone = |volume: &str| Entry::Gone {
            volume: volume.into(),
            paths: vec![file(&format!("{volume}.old")), file(&format!("{volume}.older"))],
        };
        let grown = |volume: &str, path: &str| Entry::Grown {
            volume: volume.into(),
            path: file(path),
            from: 512,
            to: 1024,
        };
        let scratch = Entry::Scratch { path: file("scratch") };
        let grown = [grown("a", "a.img"), grown("b", "b.img")];
        [made("a"), made("b"), gone("a"), gone("b"), scratch].into_iter().chain(grown).collect()
    }

    fn filled() -> TempDir {
        let data = TempDir::new().unwrap();
        for name in ["a", "b", "a.old", "a.older", "b.old", "b.older", "scratch", "a.img", "b.img"]
        {
            fs::write(data.path().join(name), [1; 1024]).unwrap();
        }
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
        for (size, length) in [(1024, 1024), (512, 512), (2048, 1024)] {
            let data = filled();
            let path = data.path();
            let toml = path.join("lunet.toml");
            let length_of = |name: &str| fs::metadata(path.join(name)).unwrap().len();
            // As if the server had been killed: once before, once after it was settled.
            for _ in 0..2 {
                let journal = Journal::begin(path, &toml, entries(path)).unwrap();
                drop(journal);
                assert_eq!(recover(path, &toml, &config(size)).unwrap(), [""; 0]);
                assert_eq!(left(path), ["a", "a.img", "a.old", "a.older", "b.img"]);
                assert_eq!((length_of("a.img"), length_of("b.img")), (length, 1024));
            }
            assert_eq!(
                recover(path, &toml, &config(size)).unwrap(),
                [""; 0],
                "nothing was under way"
            );
        }
    }

    #[test]
    fn a_change_that_ends_settles_the_same_way() {
        let data = filled();
        let journal = Journal::begin(data.path(), Path::new("x"), entries(data.path())).unwrap();
        assert_eq!(journal.settle(&config(1024)), [""; 0]);
        assert_eq!(left(data.path()), ["a", "a.img", "a.old", "a.older", "b.img"]);
    }

    #[test]
    fn what_cannot_be_done_is_said_and_the_rest_is_done() {
        let data = filled();
        fs::remove_file(data.path().join("scratch")).unwrap();
        fs::create_dir(data.path().join("scratch")).unwrap();
        let journal = Journal::begin(data.path(), Path::new("x"), entries(data.path())).unwrap();
        let problems = journal.settle(&config(512));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with("cannot remove") && problems[0].contains("scratch"));
        assert_eq!(left(data.path()), ["a", "a.img", "a.old", "a.older", "b.img", "scratch"]);
    }

    #[test]
    fn a_file_that_is_no_journal_is_left_alone() {
        let data = TempDir::new().unwrap();
        for (text, words) in [
            ("", "is no journal"),
            ("{}", "is no journal"),
            ("{\"version\": 2, \"file\": \"/x\", \"entries\": []}", "of version 2"),
            ("{\"version\": 1, \"file\": \"/y\", \"entries\": []}", "a change of /y was under way"),
        ] {
            fs::write(data.path().join(FILE), text).unwrap();
            let error = recover(data.path(), Path::new("/x"), &config(512)).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(FILE) && error.contains(words), "{error}");
            assert_eq!(left(data.path()), [FILE]);
        }
    }
}
