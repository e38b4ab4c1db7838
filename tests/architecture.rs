//! The table of crates in ARCHITECTURE.md is that of the manifests, nothing depends upwards, and what planted bugs refer to
//! is there. Pages have a suite of their own, `docs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lunet_e2e::sources::{files_below, root};

type Uses = BTreeMap<String, BTreeSet<String>>;

/// The folders of the workspace's crates.
fn crates() -> Vec<PathBuf> {
    let mut folders: Vec<_> = ["fuzz", "tests", "xtask"].map(|folder| root().join(folder)).into();
    for parent in ["crates", "tools"] {
        let crates = fs::read_dir(root().join(parent)).expect("a folder of crates");
        folders.extend(crates.map(|entry| entry.expect("an entry").path()));
    }
    folders
}

/// What each crate of the workspace uses of the others, by its manifest.
fn by_manifests() -> Uses {
    let mut uses = Uses::new();
    for folder in crates() {
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

/// The modules of its own crate that a source names: those behind `crate::`, without its tests.
fn modules_named(text: &str) -> BTreeSet<String> {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let mut named = BTreeSet::new();
    for rest in text.split("crate::").skip(1) {
        let list = rest.strip_prefix('{').and_then(|list| list.split_once("};"));
        let word = |text: &str| {
            let of = |c: char| !(c.is_alphanumeric() || c == '_');
            text.trim().split(of).next().unwrap_or_default().to_owned()
        };
        match list {
            Some((list, _)) => named.extend(list.split(',').map(word)),
            None => named.extend([word(rest)]),
        }
    }
    named
}

/// What each folder or file at the top of a crate's sources names of the others.
fn uses_within(sources: &Path) -> Uses {
    let mut uses = Uses::new();
    for file in files_below(vec![sources.to_owned()]) {
        let within = file.strip_prefix(sources).expect("below");
        let path = within.to_string_lossy().into_owned();
        let top = path.split('/').next().unwrap_or_default().trim_end_matches(".rs").to_owned();
        if path.contains("test") || ["lib", "main"].contains(&top.as_str()) {
            continue;
        }
        let text = fs::read_to_string(&file).expect("a source");
        let mut named = modules_named(&text);
        named.remove(&top);
        uses.entry(top).or_default().extend(named);
    }
    uses
}

/// Whether one leads to the other.
fn leads(uses: &Uses, from: &str, to: &str) -> bool {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(at) = next.pop() {
        for used in uses.get(at).into_iter().flatten() {
            if used == to {
                return true;
            }
            if seen.insert(used.as_str()) {
                next.push(used);
            }
        }
    }
    false
}

/// No two folders of a crate need each other, be it by way of other folders.
#[test]
fn folders_of_a_crate_form_no_cycle() {
    let mut seen = 0;
    for parent in ["crates", "tools"] {
        for entry in fs::read_dir(root().join(parent)).expect("crates") {
            let sources = entry.expect("an entry").path().join("src");
            let mut uses = uses_within(&sources);
            uses.retain(|one, _| sources.join(one).is_dir());
            for (one, named) in &uses {
                for other in named.iter().filter(|other| uses.contains_key(*other)) {
                    let back = leads(&uses, other, one);
                    assert!(!back, "{}: {one} and {other} need each other", sources.display());
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 20, "only {seen} uses between folders were found");
}

/// The most packages in the server's dependency graph, with those of this workspace.
const PACKAGES: usize = 165;

/// The server is built from a bounded number of packages, and from one version of each.
///
/// Cargo.lock holds serde, thiserror, clap and tokio-macros at their last releases with syn 2, because
/// curve25519-dalek-derive, enumflags2_derive and zerocopy-derive have none with syn 3. `cargo update` undoes that: pass
/// `--precise` until these have moved.
#[test]
fn the_server_is_built_from_few_packages_and_one_version_of_each() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut tree = Command::new(cargo);
    tree.current_dir(root()).args(["tree", "--locked", "--offline", "--package", "lunet"]);
    tree.args(["--edges", "normal,build", "--prefix", "none", "--no-dedupe"]);
    let output = tree.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let mut versions = BTreeMap::<&str, BTreeSet<&str>>::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        if let (Some(name), Some(version)) = (words.next(), words.next()) {
            versions.entry(name).or_default().insert(version);
        }
    }
    assert!(versions.contains_key("lunet-server"), "the packages were not found: {text}");
    let count: usize = versions.values().map(BTreeSet::len).sum();
    versions.retain(|_, versions| versions.len() > 1);
    let how = "`cargo tree -p lunet -e normal,build -i NAME@VERSION` shows which package needs one";
    assert!(versions.is_empty(), "packages in several versions: {versions:?}; {how}");
    assert!(count <= PACKAGES, "{count} packages, more than {PACKAGES}; {how}");
}

#[test]
fn pure_crates_are_built_without_the_standard_library() {
    for name in ["block", "reservations", "scsi", "iscsi", "nvme", "tls"] {
        let text = fs::read_to_string(root().join("crates").join(name).join("src/lib.rs"));
        let text = text.expect("a crate");
        for attribute in ["no_std", "forbid(unsafe_code)"] {
            assert!(text.contains(attribute), "{name} has no {attribute}");
        }
    }
}

/// Names of protocols, and words that are at home in one of them.
const NAMES: &str = "iscsi scsi iser nvme nvmf lun luns cdb pdu pdus initiator initiators nexus \
    nexuses target targets discovery attention attentions isid tsih iqn nqn naa eui chap tmf itt ttt \
    r2t namespace namespaces subsystem subsystems capsule spc sbc sam 7143 7144 7145";

/// The names of protocols in a source, be they parts of words such as `CoreTarget`.
fn names_in(text: &str) -> Vec<String> {
    let names: Vec<&str> = NAMES.split_whitespace().collect();
    let mut found = Vec::new();
    for word in text.split(|c: char| !c.is_alphanumeric()) {
        let mut parts = vec![word.to_owned(), String::new()];
        let mut before = 'A';
        for c in word.chars() {
            if c.is_uppercase() && !before.is_uppercase() {
                parts.push(String::new());
            }
            parts.last_mut().expect("a part").push(c);
            before = c;
        }
        let parts = parts.into_iter().map(|part| part.to_lowercase());
        found.extend(parts.filter(|part| names.contains(&part.as_str())));
    }
    found
}

/// Crates that serve every protocol name none of them.
#[test]
fn crates_for_every_protocol_name_none() {
    assert_eq!(names_in("the iSCSI CoreTarget, an R2T; Targeted").len(), 4);
    let neutral = ["crates/reservations", "crates/server", "crates/volume"];
    let files = files_below(neutral.map(|folder| root().join(folder)).to_vec());
    for path in &files {
        // Of what a wrapper derefs to, the language says so.
        let text = fs::read_to_string(path).expect("text").replace("Target = Local<Self>", "");
        let named = names_in(&text);
        assert!(named.is_empty(), "{} names {named:?}", path.display());
    }
    assert!(files.len() > 50, "only {} files were found", files.len());
}

/// Every `Result` in a source without white space and comments whose error is a bare `String`, and every `FromStr` and the
/// like whose is.
fn sentences_for_errors(text: &str) -> Vec<&str> {
    let mut found: Vec<&str> = text.matches("typeErr=String;").collect();
    found.extend(text.matches("typeError=String;"));
    for (at, _) in text.match_indices("Result<") {
        let arguments = &text[at + "Result<".len()..];
        let (mut depth, mut last) = (0, 0);
        for (n, byte) in arguments.bytes().enumerate() {
            match byte {
                b'<' | b'(' | b'[' => depth += 1,
                // The arrow of a function's type closes nothing.
                b'>' if n > 0 && arguments.as_bytes()[n - 1] == b'-' => {}
                b'>' | b')' | b']' if depth > 0 => depth -= 1,
                b',' if depth == 0 => last = n + 1,
                b'>' => {
                    let error = arguments[last..n].trim_end_matches(',');
                    found.extend((last > 0 && error == "String").then_some(&arguments[..n]));
                    break;
                }
                _ => {}
            }
        }
    }
    found
}

/// No library has a sentence for an error, inside or at its border: who uses it could only print it.
#[test]
fn errors_of_libraries_have_types() {
    for (text, count) in [
        ("fn(a)->Result<Vec<(u8,String)>,String>{", 1),
        ("Result<(),Error>;Result<(),String>;", 1),
        ("Result<Vec<String>,Error>", 0),
        ("io::Result<Option<String>>", 0),
        ("Result<String,Box<dynFn(u8)->String>>", 0),
    ] {
        assert_eq!(sentences_for_errors(text).len(), count, "{text}");
    }
    let folders = ["crates", "tools"].map(|parent| root().join(parent));
    let crates = folders.iter().flat_map(|parent| fs::read_dir(parent).expect("crates"));
    let crates = crates.map(|entry| entry.expect("an entry").path());
    // Of what the programs alone use, nobody tells errors apart.
    let programs = ["crates/lunet", "crates/cli", "crates/config", "crates/daemon", "tools/cli"];
    let programs = programs.map(|folder| root().join(folder));
    let libraries = crates.filter(|path| !programs.contains(path));
    let files = files_below(libraries.map(|library| library.join("src")).collect());
    for path in &files {
        let text = fs::read_to_string(path).expect("text");
        let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        let dense: String = code.flat_map(str::chars).filter(|c| !c.is_whitespace()).collect();
        let found = sentences_for_errors(&dense);
        let in_tests = path.file_name().is_some_and(|name| name == "tests.rs");
        assert!(found.is_empty() || in_tests, "{}: {found:?}", path.display());
    }
    assert!(files.len() > 300, "only {} files were found", files.len());
}

/// How many examples that are compiled the documentation of a source begins or ends.
fn fences_of_examples(text: &str) -> usize {
    let docs = text.lines().map(str::trim_start).filter_map(|line| {
        line.strip_prefix("//!").or_else(|| line.strip_prefix("///")).map(str::trim)
    });
    let mut inside = false;
    let opens = docs.filter_map(|line| line.strip_prefix("```")).filter(|kind| {
        inside = !inside;
        let words = ["", "rust", "no_run", "should_panic", "compile_fail", "ignore"];
        inside && words.contains(&kind.split(',').next().unwrap_or_default())
    });
    opens.count()
}

/// Examples in documentation are compiled with all tests, and to look for them where there are none takes minutes: a library says
/// which it is.
#[test]
fn libraries_say_whether_their_documentation_has_examples() {
    for (text, count) in [
        ("//! ```\n//! f();\n//! ```", 1),
        ("/// ```no_run\n/// ```\n/// ```text\n/// ```", 1),
        ("/// ```toml\n/// ```\n// ```", 0),
    ] {
        assert_eq!(fences_of_examples(text), count, "{text}");
    }
    let mut libraries = 0;
    for folder in crates().iter().filter(|folder| folder.join("src/lib.rs").exists()) {
        libraries += 1;
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
        let sources = files_below(vec![folder.join("src")]);
        let examples = sources
            .iter()
            .map(|path| fences_of_examples(&fs::read_to_string(path).expect("text")))
            .sum::<usize>();
        let looked_for = !manifest.contains("\ndoctest = false\n");
        assert_eq!(looked_for, examples > 0, "{}: {examples} examples", folder.display());
    }
    assert!(libraries > 25, "only {libraries} libraries were found");
}

/// Calls by which files and their names change, or become stable.
const CHANGES: [&str; 18] = [
    "fs::write(",
    "fs::copy(",
    "fs::rename(",
    "fs::remove_file",
    "fs::remove_dir",
    "fs::create_dir",
    "fs::hard_link(",
    "DirBuilder::new",
    "File::create",
    ".create(true)",
    ".create_new(true)",
    ".truncate(true)",
    ".sync_all(",
    ".sync_data()",
    ".set_len(",
    "renameat",
    "fsetxattr",
    "fs::unlink",
];

/// What a restart relies on is made, changed and removed by `lunet_os::fs`: a simulated world sees what was never synced.
#[test]
fn files_change_by_the_crate_that_simulates_them() {
    // The socket of the program, which no start relies on; options of files that `lunet_os::fs` opens; a setting of the
    // kernel in /proc; names of system calls; what a test has a server try, which is refused; a unit of systemd.
    let excepted = [
        ("daemon/src/sandbox/filter.rs", "fsetxattr"),
        ("daemon/src/sandbox/filter.rs", "renameat"),
        ("daemon/src/sandbox/attempts.rs", "fs::write("),
        ("daemon/src/sandbox/attempts.rs", "fs::remove_file"),
        ("daemon/src/rest/process.rs", "fs::write("),
        ("daemon/src/control/server.rs", "fs::remove_file"),
        ("daemon/src/generator.rs", "fs::create_dir"),
        ("daemon/src/generator.rs", "fs::write("),
        ("daemon/src/serve.rs", ".create(true)"),
        ("daemon/src/live/rules.rs", ".create_new(true)"),
        ("backends/src/file.rs", ".create_new(true)"),
        ("backends/src/sidecar.rs", ".create(true)"),
        ("backends/src/snapshot.rs", ".create_new(true)"),
    ];
    let crates = ["backends", "files", "front-iscsi", "daemon", "server", "volume"];
    let folders = crates.map(|name| root().join("crates").join(name).join("src"));
    let (mut files, mut seen) = (0, 0);
    for path in files_below(folders.to_vec()) {
        let within = path.strip_prefix(root()).expect("below");
        if within.to_string_lossy().contains("test") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("text");
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let code = code.replace("lunet_os::fs::", "");
        let own = code.contains("use lunet_os::fs;");
        for call in CHANGES.iter().filter(|call| code.contains(**call)) {
            let is_its = own && call.starts_with("fs::");
            let is_excepted = excepted.iter().any(|(file, it)| path.ends_with(file) && it == call);
            assert!(is_its || is_excepted, "{}: {call}", path.display());
            seen += usize::from(is_excepted);
        }
        files += 1;
    }
    assert!(files > 100 && seen == excepted.len(), "{files} files, {seen} exceptions");
}

/// Every planted bug of `lab/mutants` and `sim/mutants` still applies; those of the lab name the suite that must find it.
#[test]
fn planted_bugs_apply() {
    let folders = ["lab/mutants.d", "sim/mutants.d"].map(|folder| root().join(folder));
    let mut seen = 0;
    for entry in folders.iter().flat_map(|folder| fs::read_dir(folder).expect("planted bugs")) {
        let path = entry.expect("an entry").path();
        let mut applies = Command::new("git");
        applies.args(["apply", "--check"]).arg(&path).current_dir(root());
        let done = applies.output().expect("git");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{}: {said}", path.display());
        let text = fs::read_to_string(&path).expect("a patch");
        seen += 1;
        assert!(text.starts_with("bug: "), "{}: it does not say what is wrong", path.display());
        if path.starts_with(&folders[1]) {
            continue;
        }
        let suite = text.lines().find_map(|line| line.strip_prefix("suite: "));
        let suite = suite.unwrap_or_else(|| panic!("{}: no suite", path.display()));
        let suites = root().join("lab/suites");
        let there = [suites.join(suite), suites.join(format!("{suite}.sh"))];
        let there = there.iter().any(|file| file.exists());
        assert!(there, "{}: there is no suite {suite}", path.display());
    }
    assert!(seen > 15, "only {seen} patches were found");
}
