//! The captured machines: each directory of `tests/machines` is one.

use std::fs;
use std::path::PathBuf;

use lunet_host::source::Tree;

/// A path of this crate.
pub fn here(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// All of them.
pub fn machines() -> Vec<String> {
    let all = fs::read_dir(here("tests/machines")).unwrap();
    let mut names: Vec<String> =
        all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(names.len() >= 8, "{names:?}");
    names
}

/// One of them.
pub fn tree(machine: &str) -> Tree {
    let path = here("tests/machines").join(machine);
    Tree::open(&path).unwrap_or_else(|error| panic!("{error}"))
}

/// What was found must be what is held in a file, which `LUNET_BLESS=1` writes anew: as a whole, or between two marks.
pub fn hold(path: &str, marks: Option<(&str, &str)>, found: &str) {
    let page = fs::read_to_string(here(path)).unwrap_or_default();
    let (before, held, after) = match marks {
        None => ("", page.as_str(), ""),
        Some((start, end)) => {
            let at = page.find(start).expect("the page has the mark") + start.len();
            let end = at + page[at..].find(end).expect("the page has the end mark");
            (&page[..at], &page[at..end], &page[end..])
        }
    };
    if std::env::var_os("LUNET_BLESS").is_some() {
        fs::write(here(path), format!("{before}{found}{after}")).unwrap();
        return;
    }
    for (number, (held, found)) in (1..).zip(held.lines().zip(found.lines())) {
        assert_eq!(held, found, "{path}, line {number} of what is held");
    }
    assert_eq!(held.len(), found.len(), "{path} has another end");
}
