//! The documentation is held to what is there: links and headings, the table of contents, and the shell examples, which are
//! run, or are run by another test, or say that they were not tried. CONTRIBUTING.md lists the marks.

mod blocks;
mod links;
mod run;
mod xml;

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").to_owned()
}

/// All files below these folders, in order.
fn files_below(mut folders: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let (inner, own): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_dir());
        folders.extend(inner);
        files.extend(own);
    }
    files.sort();
    files
}

/// The pages of `docs/` below `root`, without its table of contents.
fn manual(root: &Path) -> Vec<PathBuf> {
    let mut pages = files_below(vec![root.join("docs")]);
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.retain(|page| !page.ends_with("docs/SUMMARY.md"));
    pages
}
