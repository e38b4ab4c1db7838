//! What pages refer to exists, and the table of contents has every page once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{files_below, manual, root};

/// What people read: the pages of the root but for the changelog, which tells of files that are gone, docs/, the lab's
/// and the page's.
fn pages(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root).expect("the root").map(|entry| entry.expect("an entry"));
    let mut pages: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.retain(|page| !page.ends_with("CHANGELOG.md"));
    pages.extend(manual(root));
    let others = ["docs/SUMMARY.md", "lab/README.md", "web/README.md"].map(|page| root.join(page));
    pages.extend(others.into_iter().filter(|page| page.exists()));
    pages
}

/// The lines of a page that are not code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// Whether a word in backticks is a path of the repository. Capitals stand for something else, `fuzz/seeds/TARGET/`.
fn is_path(word: &str) -> bool {
    let folders = ["crates/", "tools/", "tests/", "lab/", "xtask/", "fuzz/", "docs/", "scripts/"];
    let path = word.contains("/src/") || folders.iter().any(|folder| word.starts_with(folder));
    path && !word.contains([' ', '*']) && !word.contains("TARGET")
}

/// The anchors of a page's headings, as forges and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen = BTreeMap::<String, usize>::new();
    let mut anchors = BTreeSet::new();
    for heading in prose(text).filter_map(|line| line.strip_prefix('#')) {
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let words = heading.trim_start_matches('#').trim().chars();
        let anchor = words.filter(kept).collect::<String>().to_lowercase().replace(' ', "-");
        let before = seen.entry(anchor.clone()).or_default();
        anchors.insert(if *before == 0 { anchor } else { format!("{anchor}-{before}") });
        *before += 1;
    }
    anchors
}

/// The destinations of a line's links, but for those to other machines.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let links = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    links.filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
}

/// What is wrong with the references of one page, and how many there are.
fn broken(root: &Path, page: &Path, text: &str) -> (Vec<String>, usize) {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    let folder = page.parent().expect("a folder");
    let name = page.strip_prefix(root).unwrap_or(page).display();
    for line in prose(text) {
        for link in links(line) {
            seen += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let file = if file.is_empty() { page.to_owned() } else { folder.join(file) };
            if !file.exists() {
                wrong.push(format!("{name}: {link}: there is no such file"));
            } else if !heading.is_empty() {
                let there = fs::read_to_string(file).unwrap_or_default();
                if !anchors(&there).contains(heading) {
                    wrong.push(format!("{name}: {link}: there is no such heading"));
                }
            }
        }
        for path in line.split('`').skip(1).step_by(2).filter(|word| is_path(word)) {
            seen += 1;
            if ![root.join("crates").join(path), root.join(path)].iter().any(|file| file.exists()) {
                wrong.push(format!("{name}: `{path}`: there is no such file"));
            }
        }
    }
    (wrong, seen)
}

/// What the table of contents of `docs/` lacks or has twice, and pictures that no page shows.
fn contents(root: &Path) -> Vec<String> {
    let docs = root.join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).expect("docs/SUMMARY.md");
    let mut listed = BTreeMap::<PathBuf, usize>::new();
    for link in prose(&summary).flat_map(links) {
        *listed.entry(docs.join(link)).or_default() += 1;
    }
    let twice = listed.iter().filter(|(_, times)| **times > 1);
    let mut wrong: Vec<String> =
        twice.map(|(page, _)| format!("{}: twice in SUMMARY.md", page.display())).collect();
    let pages = manual(root);
    let missing = pages.iter().filter(|page| !listed.contains_key(*page));
    wrong.extend(missing.map(|page| format!("{}: not in SUMMARY.md", page.display())));
    let texts: Vec<String> =
        pages.iter().map(|page| fs::read_to_string(page).expect("a page")).collect();
    for picture in fs::read_dir(docs.join("images")).expect("docs/images") {
        let name = format!("images/{}", picture.expect("an entry").file_name().to_string_lossy());
        if !texts.iter().any(|text| text.contains(&format!("]({name})"))) {
            wrong.push(format!("docs/{name}: no page shows it"));
        }
    }
    wrong
}

/// Pages, headings and files that a page refers to exist.
#[test]
fn what_pages_refer_to_exists() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for page in pages(&root()) {
        let text = fs::read_to_string(&page).expect("a page");
        let (mistakes, references) = broken(&root(), &page, &text);
        wrong.extend(mistakes);
        seen += references;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 400, "only {seen} references were found");
}

/// What a package installs beside the site has no dead link: people open it where there is no repository.
#[test]
fn pages_that_are_installed_refer_to_what_is_installed() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = root().join("packaging/docs");
    let done = Command::new(script).arg(folder.path()).status().expect("packaging/docs runs");
    assert!(done.success(), "{done}");
    let mut installed = files_below(vec![folder.path().to_owned()]);
    installed.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for page in installed.iter().filter(|page| !page.ends_with("CHANGELOG.md")) {
        let text = fs::read_to_string(page).expect("a page");
        for link in prose(&text).flat_map(links) {
            let file = link.split('#').next().unwrap_or_default();
            seen += 1;
            if !page.parent().expect("a folder").join(file).exists() {
                wrong.push(format!("{}: {link}: is not installed", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 200, "only {seen} links were found");
}

#[test]
fn the_table_of_contents_has_every_page_once() {
    let wrong = contents(&root());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The README and the guide have as many checks of the doctor as its page, which a test of the doctor writes.
#[test]
fn pages_count_the_checks_of_the_doctor() {
    let read = |name: &str| fs::read_to_string(root().join(name)).expect("a page");
    let (page, readme) = (read("docs/doctor.md"), read("README.md"));
    let numbers = page.lines().find(|line| line.contains(" planted faults, "));
    let count = numbers.and_then(|line| line.split(" checks, ").next()).expect("the numbers");
    let told = format!("the doctor runs {count} checks");
    assert!(readme.contains(&told), "README.md does not say that {told}");
    let told = format!("1 finding. {count} checks, ");
    assert!(read("docs/guide.md").contains(&told), "docs/guide.md does not show {told}");
}

/// Programs, units and scripts send people to pages that are there.
#[test]
fn pages_that_sources_name_exist() {
    let folders = ["crates", "tools", "packaging", "lab", "xtask", "web/src"];
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for file in files_below(folders.map(|folder| root().join(folder)).to_vec()) {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        for rest in text.split("docs/").skip(1) {
            let path = |c: char| !(c.is_ascii_alphanumeric() || "-_/.".contains(c));
            let named = rest.split(path).next().unwrap_or_default().trim_end_matches('.');
            if named.ends_with(".md") {
                seen += 1;
                if !root().join("docs").join(named).exists() {
                    wrong.push(format!("{}: docs/{named} does not exist", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 30, "only {seen} names of pages were found");
}

/// The checks find what is wrong, each mistake once, and nothing else.
#[test]
fn planted_mistakes_are_found() {
    let dir = tempfile::tempdir().expect("a folder");
    let put = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, text).expect("a file");
        path
    };
    let page = "# Here\n[a](there.md#twice-1) [b](#here) ![c](images/shown.png) `tests/none.rs`\n\
                [d](gone.md) [e](there.md#thrice) [f](https://example.org/none)\n\
                ```text\n[g](not-a-link.md)\n```\n";
    let here = put("docs/here.md", page);
    put("docs/there.md", "# There\n## Twice\n```sh\n# thrice\n```\n## Twice\n");
    put("docs/images/shown.png", "");
    put("docs/images/unused.png", "");
    put("docs/SUMMARY.md", "[Here](here.md)\n- [Here again](here.md)\n");
    let (wrong, seen) = broken(dir.path(), &here, page);
    assert_eq!(
        wrong,
        [
            "docs/here.md: `tests/none.rs`: there is no such file",
            "docs/here.md: gone.md: there is no such file",
            "docs/here.md: there.md#thrice: there is no such heading",
        ]
    );
    assert_eq!(seen, 6);
    let wrong = contents(dir.path());
    assert_eq!(wrong.len(), 3, "{wrong:?}");
    assert!(wrong[0].ends_with("docs/here.md: twice in SUMMARY.md"), "{wrong:?}");
    assert!(wrong[1].ends_with("docs/there.md: not in SUMMARY.md"), "{wrong:?}");
    assert_eq!(wrong[2], "docs/images/unused.png: no page shows it");
}
