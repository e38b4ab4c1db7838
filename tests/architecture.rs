//! The table of crates in ARCHITECTURE.md is that of the manifests, and nothing depends upwards.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

type Uses = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").to_owned()
}

/// What each crate of the workspace uses of the others, by its manifest.
fn by_manifests() -> Uses {
    let mut folders = vec![root().join("tests"), root().join("xtask")];
    for parent in ["crates", "measure"] {
        let crates = fs::read_dir(root().join(parent)).expect("a folder of crates");
        folders.extend(crates.map(|entry| entry.expect("an entry").path()));
    }
    let mut uses = Uses::new();
    for folder in folders {
        let text = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
        let (mut section, mut name, mut used) = ("", None, BTreeSet::new());
        for line in text.lines() {
            if line.starts_with('[') {
                section = line;
            } else if section == "[package]" {
                name = name.or(line.strip_prefix("name = \""));
            } else if section == "[dependencies]" || section.starts_with("[target.") {
                let word = line.split([' ', '.', '=']).next().unwrap_or_default();
                used.extend(word.strip_prefix("lunet-").map(str::to_owned));
            }
        }
        let name = name.expect("a name").trim_end_matches('"');
        uses.insert(name.trim_start_matches("lunet-").to_owned(), used);
    }
    uses
}

/// The same, by the table in ARCHITECTURE.md.
fn by_the_table() -> Uses {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let name = cells[0].split('`').nth(1).expect("a name").to_owned();
        let uses = cells[2].split(", ").filter(|used| *used != "nothing").map(str::to_owned);
        (name, uses.collect())
    };
    rows.map(row).collect()
}

#[test]
fn the_table_of_crates_is_that_of_the_manifests() {
    let table = by_the_table();
    assert!(table.len() > 10, "the table was not found");
    assert_eq!(table, by_manifests());
}

#[test]
fn pure_crates_are_built_without_the_standard_library() {
    for name in ["block", "scsi", "iscsi"] {
        let text = fs::read_to_string(root().join("crates").join(name).join("src/lib.rs"));
        let text = text.expect("a crate");
        for attribute in ["no_std", "forbid(unsafe_code)"] {
            assert!(text.contains(attribute), "{name} has no {attribute}");
        }
    }
}

/// A crate that serves every protocol names none of them.
#[test]
fn volume_names_no_protocol() {
    let mut folders = vec![root().join("crates/volume")];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).expect("text").to_lowercase();
            let words = text.split(|c: char| !c.is_alphanumeric());
            let names = ["iscsi", "scsi", "iser", "nvme", "lun", "cdb", "initiator"];
            let named: Vec<&str> = words.filter(|word| names.contains(word)).collect();
            assert!(named.is_empty(), "{} names {named:?}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 10, "only {seen} files were found");
}

/// The pages that ARCHITECTURE.md and docs/design name are there, and so are their headings and the files of the code.
#[test]
fn what_the_design_pages_refer_to_exists() {
    let mut pages = vec![root().join("ARCHITECTURE.md")];
    let design = fs::read_dir(root().join("docs/design")).expect("docs/design");
    pages.extend(design.map(|entry| entry.expect("an entry").path()));
    let mut seen = 0;
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page");
        let folder = page.parent().expect("a folder");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let text = fs::read_to_string(folder.join(file));
            let text = text.unwrap_or_else(|error| panic!("{}: {link}: {error}", page.display()));
            let found = heading.is_empty() || text.lines().any(|line| anchor(line) == heading);
            assert!(found, "{}: {link}: there is no such heading", page.display());
            seen += 1;
        }
        for path in text.split('`').skip(1).step_by(2).filter(|word| word.contains("/src/")) {
            let there = [root().join("crates").join(path), root().join(path)];
            assert!(there.iter().any(|file| file.exists()), "{}: {path}", page.display());
            seen += 1;
        }
    }
    assert!(seen > 50, "only {seen} references were found");
}

/// The anchor of a heading, as forges make it.
fn anchor(line: &str) -> String {
    let Some(heading) = line.strip_prefix('#') else { return String::new() };
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let words: String = heading.trim_start_matches('#').trim().chars().filter(kept).collect();
    words.to_lowercase().replace(' ', "-")
}
