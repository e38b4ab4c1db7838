//! Where results are shown: the terminal, and the file of the report.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use lunet_files as files;

/// A page that will be written.
pub struct Page(PathBuf);

impl Page {
    /// Looks whether it can be written, before anything is measured for it.
    ///
    /// # Errors
    /// It is there and no file, or its directory is not.
    pub fn check(path: &Path) -> Result<Self> {
        let name = path.display();
        if fs::metadata(path).is_ok_and(|about| !about.is_file()) {
            bail!("{name} is there and is no file: choose another name");
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        if !folder.is_dir() {
            bail!("there is no directory {} for {name}: make it first", folder.display());
        }
        Ok(Self(path.to_owned()))
    }

    /// Writes it whole or not at all.
    pub fn write(&self, text: &str) -> Result<()> {
        files::replace_as(&self.0, text.as_bytes(), files::Mode::Shared)
            .with_context(|| format!("cannot write {}", self.0.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_in_directories_that_are_there() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(Page::check(dir.path()).is_err());
        assert!(Page::check(&dir.path().join("none/page.html")).is_err());
        let path = dir.path().join("page.html");
        let page = Page::check(&path).expect("it can be written");
        page.write("one").expect("there is room");
        Page::check(&path).expect("a page may be written again").write("two").expect("room");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "two");
        assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 1, "nothing is left");
    }
}
