//! What machine and processes did while something was measured, and what the machine is.
//!
//! Everything is read from /proc and /sys, twice a second for the processes that take part and twice in all for the rest.

mod facts;
mod machine;
mod process;
mod watch;

use std::path::{Path, PathBuf};
use std::{fs, io};

pub use facts::facts;
pub use watch::{Usage, Watch};

/// Where /proc and /sys are: `/`, or a copy for tests.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self::new("/")
    }
}

/// Whether a process has children, as far as the kernel says.
pub(crate) fn has_children(root: &Root, pid: i32) -> bool {
    process::tree(root, pid).len() > 1
}

impl Root {
    /// /proc and /sys in this directory.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// A file's text; `path` without the first `/`.
    fn text(&self, path: impl AsRef<Path>) -> io::Result<String> {
        fs::read_to_string(self.0.join(path))
    }

    /// A file that holds a number.
    fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.text(path).ok()?.trim().parse().ok()
    }

    /// The names in a directory, in order; none if it is not there.
    fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.0.join(path)) else { return Vec::new() };
        let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
        let mut names: Vec<String> = entries.filter_map(name).collect();
        names.sort();
        names
    }
}

#[cfg(test)]
mod tests;
