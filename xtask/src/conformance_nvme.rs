//! `xtask conformance-nvme`: test suites of other projects against lunet's NVMe, and a page about them. Their sources are
//! named on the command line, for nobody packages them.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use lunet_e2e::process::{output, run as run_command};
use lunet_e2e::server::{self, Serve, free_port};

/// For a program that only says something.
const SHORT: Duration = Duration::from_secs(10);
/// For one run of the client's tests.
const CLIENT: Duration = Duration::from_secs(300);
/// For the kernel's tests in the guest, whose processors are emulated.
const KERNEL: Duration = Duration::from_secs(5400);

const SUBSYSTEM: &str = "nqn.2026-11.local.lunet:conformance";

/// Options of `xtask conformance-nvme`.
#[derive(Args)]
pub struct Arguments {
    /// Sources of TrueNAS's NVMe client in Python (github.com/truenas/truenas_pynvmeof_client)
    #[arg(long, value_name = "DIR")]
    pynvmeof: Option<PathBuf>,
    /// Sources of blktests (github.com/linux-blktests/blktests); needs root, and runs in the lab's guest
    #[arg(long, value_name = "DIR")]
    blktests: Option<PathBuf>,
    /// What blktests is run over: tcp, rdma (soft RoCE); both if it is not given
    #[arg(long, value_name = "TRANSPORT", value_parser = ["tcp", "rdma"])]
    transport: Vec<String>,
    /// Page to write. Suites that are not run keep what it says of them
    #[arg(long, default_value = "docs/conformance-nvme.md")]
    page: PathBuf,
}

/// What one suite said of one target.
struct Column {
    /// What the target was.
    name: String,
    /// Each test with its result, in the suite's order.
    tests: Vec<(String, String)>,
}

impl Column {
    /// So many tests ended so; why may follow after a colon.
    fn count(&self, result: &str) -> usize {
        let is = |found: &str| found.split(':').next() == Some(result);
        self.tests.iter().filter(|(_, found)| is(found)).count()
    }

    fn failed(&self) -> usize {
        self.tests.len() - self.count("passed") - self.count("skipped")
    }

    fn result(&self, test: &str) -> &str {
        self.tests.iter().find(|(name, _)| name == test).map_or("", |(_, result)| result)
    }
}

/// A suite and what it said.
struct Suite {
    title: String,
    columns: Vec<Column>,
}

/// Runs the suites that are there, writes the page, and fails if lunet failed a test.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut suites = Vec::new();
    if let Some(dir) = &arguments.pynvmeof {
        suites.push(client(dir)?);
    }
    if let Some(dir) = &arguments.blktests {
        for (transport, over) in [("tcp", "TCP"), ("rdma", "RDMA (soft RoCE)")] {
            let wanted = &arguments.transport;
            if wanted.is_empty() || wanted.iter().any(|it| it == transport) {
                suites.push(kernel(dir, transport, over)?);
            }
        }
    }
    ensure!(
        !suites.is_empty(),
        "no suite was named: make conformance-nvme PYNVMEOF=DIR BLKTESTS=DIR takes one or both"
    );
    let before = fs::read_to_string(&arguments.page).unwrap_or_default();
    fs::write(&arguments.page, page(&before, &suites, &measured()?)?)
        .with_context(|| format!("cannot write {}", arguments.page.display()))?;
    println!("wrote {}", arguments.page.display());
    let mut failed = 0;
    for column in suites.iter().flat_map(|suite| &suite.columns) {
        let (passed, skipped) = (column.count("passed"), column.count("skipped"));
        println!("{}: {passed} passed, {skipped} skipped, {} failed", column.name, column.failed());
        if column.name.starts_with("lunet") {
            failed += column.failed();
        }
    }
    ensure!(failed == 0, "{failed} tests failed");
    Ok(())
}

/// The state of these sources, as git or the name of the folder says.
fn version(dir: &Path) -> String {
    let mut git = Command::new("git");
    git.arg("-C").arg(dir).args(["describe", "--always", "--dirty=+", "--abbrev=12"]);
    match output(&mut git, SHORT) {
        Ok(text) => format!("commit {}", text.trim()),
        Err(_) => "unknown version".to_owned(),
    }
}

/// The client's integration tests on each kind of volume and event loop.
fn client(dir: &Path) -> Result<Suite> {
    output(Command::new("python3").args(["-m", "pytest", "--version"]), SHORT).context(
        "python3 -m pytest is needed: apt install python3-pytest, or pip install pytest",
    )?;
    let dir = dir.canonicalize().with_context(|| format!("{} is not there", dir.display()))?;
    let mut columns = Vec::new();
    for driver in ["io_uring", "epoll"] {
        for (volume, text) in [
            ("memory", "backend = \"memory\"\nsize = \"256MiB\""),
            ("file", "backend = \"file\"\nsize = \"256MiB\""),
            ("file, 4 KiB blocks", "backend = \"file\"\nsize = \"256MiB\"\nblock-size = 4096"),
        ] {
            let name = format!("lunet, {volume}, {driver}");
            eprintln!("{name}");
            columns.push(Column { name, tests: client_run(&dir, driver, text)? });
        }
    }
    Ok(Suite {
        title: format!("truenas_pynvmeof_client, integration tests ({})", version(&dir)),
        columns,
    })
}

fn client_run(dir: &Path, driver: &str, volume: &str) -> Result<Vec<(String, String)>> {
    let port = free_port()?;
    let server = Serve::config(format!(
        "[server]\ndriver = \"{driver}\"\n\
         [[portal]]\naddress = \"127.0.0.1:0\"\n\
         [[portal]]\naddress = \"127.0.0.1:{port}\"\ntransport = [\"nvme-tcp\"]\n\
         [volumes.v]\n{volume}\n\
         [[target]]\nname = \"iqn.2026-11.local.lunet:conformance\"\nprotocols = [\"iscsi\", \"nvme\"]\n\
         nqn = \"{SUBSYSTEM}\"\nluns = [\"v\"]\nopen = true\n"
    ))
    .quiet()
    .start()?;
    let mut pytest = Command::new("python3");
    pytest
        .args(["-m", "pytest", "-v", "--color=no", "--tb=short", "-p", "no:cacheprovider"])
        .arg("tests/integration")
        .current_dir(dir)
        .env("PYTHONPATH", dir.join("src"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("NVMEOF_TARGET_HOST", "127.0.0.1")
        .env("NVMEOF_TARGET_PORT", port.to_string())
        .env("NVMEOF_TARGET_NQN", SUBSYSTEM);
    let done = run_command(&mut pytest, CLIENT)?;
    server.stop()?;
    let tests = client_results(&done.stdout);
    if tests.is_empty() {
        bail!("no test has run: {}", done.describe());
    }
    if tests.iter().any(|(_, result)| result == "failed" || result == "error") {
        eprintln!("{}", done.stdout);
    }
    Ok(tests)
}

/// The lines `tests/integration/test_ana.py::TestAna::test_log PASSED [  1%]`.
fn client_results(said: &str) -> Vec<(String, String)> {
    let line = |line: &str| {
        let (test, rest) = line.split_once(' ')?;
        let test = test.strip_prefix("tests/integration/")?;
        let result = rest.split_whitespace().next()?.to_lowercase();
        let known = ["passed", "failed", "skipped", "error"].contains(&result.as_str());
        known.then(|| (test.replace(".py::", "::"), result))
    };
    said.lines().filter_map(line).collect()
}

/// The kernel's tests of its host, in the lab's guest: against lunet and against the kernel's own target.
fn kernel(dir: &Path, transport: &str, over: &str) -> Result<Suite> {
    let mut columns = Vec::new();
    for (target, name) in [("lunet", "lunet"), ("lio", "nvmet of Linux 6.12")] {
        eprintln!("blktests over {over} against {name}, which takes a while");
        let mut lab = Command::new("lab/blktests");
        lab.arg(dir).env("LAB_TARGET", target).env("LAB_TRTYPE", transport);
        let done = run_command(&mut lab, KERNEL)?;
        let tests = kernel_results(&done.stdout);
        ensure!(!tests.is_empty(), "no test has run: {}", done.describe());
        columns.push(Column { name: name.to_owned(), tests });
    }
    let title = format!(
        "blktests over {over}, the tests of the group nvme that let another program set the target up ({})",
        version(dir)
    );
    Ok(Suite { title, columns })
}

/// The lines `003 passed` of lab/blktests.
fn kernel_results(said: &str) -> Vec<(String, String)> {
    let line = |line: &str| {
        let (test, result) = line.strip_prefix("nvme/")?.split_once(' ')?;
        Some((format!("nvme/{test}"), result.to_owned()))
    };
    said.lines().filter_map(line).collect()
}

/// What was tested, when and where.
fn measured() -> Result<String> {
    let ask = |program: &str, arguments: &[&str]| {
        output(Command::new(program).args(arguments), SHORT).map(|text| text.trim().to_owned())
    };
    let commit = ask("git", &["describe", "--always", "--dirty=+", "--abbrev=12"])
        .map_or(String::new(), |commit| format!(" (commit {commit})"));
    let (target, date, machine) =
        (server::version()?, ask("date", &["-u", "+%F"])?, ask("uname", &["-sr"])?);
    Ok(format!("Of {target}{commit}, {date}, on {machine}."))
}

/// The page with these suites anew, and the others as they were before.
fn page(before: &str, suites: &[Suite], measured: &str) -> Result<String> {
    // What comes in brackets is the version of the sources.
    let name = |section: &str| {
        let title = section.lines().next().unwrap_or_default();
        title.rsplit_once(" (").map_or(title, |(name, _)| name).to_owned()
    };
    let mut sections: Vec<String> = before.split("\n## ").skip(1).map(str::to_owned).collect();
    for suite in suites {
        let mut section = String::new();
        write_suite(&mut section, suite, measured)?;
        match sections.iter_mut().find(|old| name(old) == name(&section)) {
            Some(old) => *old = section,
            None => sections.push(section),
        }
    }
    let mut page = String::from(
        "# Conformance of NVMe\n\n\
         Test suites of other projects against lunet. Generated by \
         `make conformance-nvme PYNVMEOF=DIR BLKTESTS=DIR`.\n",
    );
    for section in sections {
        write!(page, "\n## {}\n", section.trim_end())?;
    }
    Ok(page)
}

fn write_suite(page: &mut String, suite: &Suite, measured: &str) -> Result<()> {
    writeln!(
        page,
        "{}\n\n{measured}\n\n| target | passed | skipped | failed |\n|---|---|---|---|",
        suite.title
    )?;
    for column in &suite.columns {
        let (passed, skipped) = (column.count("passed"), column.count("skipped"));
        writeln!(page, "| {} | {passed} | {skipped} | {} |", column.name, column.failed())?;
    }
    let Some(first) = suite.columns.first() else { return Ok(()) };
    writeln!(page, "\n| test | result |\n|---|---|")?;
    for (test, _) in &first.tests {
        let mut results: Vec<&str> = suite.columns.iter().map(|it| it.result(test)).collect();
        if results.iter().all(|result| *result == results[0]) {
            results.truncate(1);
            writeln!(page, "| {test} | {} |", results[0])?;
        } else {
            let named = suite.columns.iter().zip(&results);
            let named: Vec<_> =
                named.map(|(it, result)| format!("{}: {result}", it.name)).collect();
            writeln!(page, "| {test} | {} |", named.join("<br>"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_that_is_not_run_keeps_its_section() {
        let suite = |title: &str, result: &str| Suite {
            title: title.to_owned(),
            columns: vec![Column {
                name: "lunet".to_owned(),
                tests: vec![("t/1".to_owned(), result.to_owned())],
            }],
        };
        let both =
            [suite("a (commit 1)", "passed"), suite("b over RDMA (soft) (commit 1)", "failed")];
        let first = page("", &both, "Yesterday.").unwrap();
        let then = [suite("b over RDMA (soft) (commit 2)", "passed")];
        let second = page(&first, &then, "Today.").unwrap();
        assert!(second.contains("## a (commit 1)\n\nYesterday.\n"), "{second}");
        assert!(second.contains("## b over RDMA (soft) (commit 2)\n\nToday.\n"), "{second}");
        assert!(!second.contains("failed |\n| t/1"), "{second}");
        assert_eq!(second.matches("\n## ").count(), 2);
        assert_eq!(page(&second, &[], "").unwrap(), second);
    }

    #[test]
    fn lines_of_results_are_read() {
        let said = "collected 2 items\n\
                    tests/integration/test_ana.py::TestAna::test_log PASSED          [  1%]\n\
                    tests/integration/test_ana.py::TestAna::test_event SKIPPED (Manual) [  2%]\n\
                    FAILED tests/integration/test_ana.py::TestAna::test_log - why\n";
        let pair = |test: &str, result: &str| (test.to_owned(), result.to_owned());
        assert_eq!(
            client_results(said),
            [
                pair("test_ana::TestAna::test_log", "passed"),
                pair("test_ana::TestAna::test_event", "skipped")
            ]
        );
        assert_eq!(
            kernel_results("booting\nnvme/003 passed\nnvme/041 skipped: no key\n"),
            [pair("nvme/003", "passed"), pair("nvme/041", "skipped: no key")]
        );
    }
}
