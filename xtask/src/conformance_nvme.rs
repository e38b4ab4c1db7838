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
    /// Page to write
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
        suites.push(kernel(dir)?);
    }
    ensure!(
        !suites.is_empty(),
        "no suite was named: make conformance-nvme PYNVMEOF=DIR BLKTESTS=DIR takes one or both"
    );
    fs::write(&arguments.page, page(&suites)?)
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

/// The kernel's tests of its host, in the lab's guest: against lunet and against the kernel's own target, over TCP and over soft RoCE.
fn kernel(dir: &Path) -> Result<Suite> {
    let mut columns = Vec::new();
    for (transport, over) in [("tcp", "TCP"), ("rdma", "RDMA (soft RoCE)")] {
        for (target, name) in [("lunet", "lunet"), ("lio", "nvmet of Linux 6.12")] {
            let name = format!("{name}, {over}");
            eprintln!("blktests against {name}, which takes a while");
            let mut lab = Command::new("lab/blktests");
            lab.arg(dir).env("LAB_TARGET", target).env("LAB_TRTYPE", transport);
            let done = run_command(&mut lab, KERNEL)?;
            let tests = kernel_results(&done.stdout);
            ensure!(!tests.is_empty(), "no test has run: {}", done.describe());
            columns.push(Column { name, tests });
        }
    }
    let title = format!(
        "blktests, the tests of the group nvme that let another program set the target up ({})",
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

fn page(suites: &[Suite]) -> Result<String> {
    let ask = |program: &str, arguments: &[&str]| {
        output(Command::new(program).args(arguments), SHORT).map(|text| text.trim().to_owned())
    };
    let commit = ask("git", &["describe", "--always", "--dirty=+", "--abbrev=12"])
        .map_or(String::new(), |commit| format!(" (commit {commit})"));
    let (target, date, machine) =
        (server::version()?, ask("date", &["-u", "+%F"])?, ask("uname", &["-sr"])?);
    let mut page = format!(
        "# Conformance of NVMe\n\n\
         Test suites of other projects against {target}{commit}, {date}, on {machine}. Generated by \
         `make conformance-nvme PYNVMEOF=DIR BLKTESTS=DIR`.\n"
    );
    for suite in suites {
        write_suite(&mut page, suite)?;
    }
    Ok(page)
}

fn write_suite(page: &mut String, suite: &Suite) -> Result<()> {
    writeln!(
        page,
        "\n## {}\n\n| target | passed | skipped | failed |\n|---|---|---|---|",
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
