//! The documentation is held to what is there: links and headings, the table of contents, and the shell examples, which are
//! run, or are run by another test, or say that they were not tried. CONTRIBUTING.md lists the marks.

mod blocks;
mod links;
mod run;
mod xml;

use std::path::{Path, PathBuf};

use lunet_e2e::sources::{files_below, root};

/// The pages of `docs/` below `root`, without its table of contents.
fn manual(root: &Path) -> Vec<PathBuf> {
    let mut pages = files_below(vec![root.join("docs")]);
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.retain(|page| !page.ends_with("docs/SUMMARY.md"));
    pages
}
