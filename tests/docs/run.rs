//! Runs the examples of pages that are marked so: each page from its beginning, in namespaces of its own, with the output that
//! the page shows.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use lunet_e2e::data::scratch;
use lunet_e2e::process::{leashed, run};
use lunet_e2e::server::lunet_binary;

use super::blocks::{Block, Mark, blocks, pages};
use super::root;

/// For all examples of a page. They take seconds, and minutes on a machine that is very busy.
const PATIENCE: Duration = Duration::from_secs(300);

/// Whether a page shows what was printed: figures may be other ones, white space counts as one, and `...` stands for anything.
fn shows(page: &str, printed: &str) -> bool {
    let [page, printed] = [page, printed].map(plain);
    let parts: Vec<&str> = page.split("...").collect();
    let [first, between @ .., last] = &parts[..] else { return page == printed };
    let Some(rest) = printed.strip_prefix(first) else { return false };
    let Some(mut rest) = rest.strip_suffix(last) else { return false };
    between.iter().all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

/// The same for all outputs that differ in their figures alone.
fn plain(text: &str) -> String {
    let (mut out, mut before) = (String::new(), ' ');
    for c in text.chars() {
        let c = if c.is_ascii_digit() { '0' } else { c };
        let c = if c.is_whitespace() { ' ' } else { c };
        let again = c == before && (c == '0' || c == ' ');
        // A decimal mark, or one of thousands, is part of the figure.
        let mark = before == '0' && (c == '.' || c == ',');
        if !again && !mark {
            out.push(c);
        }
        if !mark {
            before = c;
        }
    }
    out.trim().to_owned()
}

/// What runs the blocks, each with its output in a file `LINE.N`, and what each command should print.
fn script(blocks: &[Block]) -> (String, Vec<(String, String)>) {
    let (mut script, mut expected) = (String::new(), Vec::new());
    for (n, block) in blocks.iter().enumerate() {
        let shown = blocks.get(n + 1).filter(|next| next.mark == Mark::Printed);
        for (k, (command, output)) in block.commands().into_iter().enumerate() {
            let name = format!("{}.{k}", block.line);
            let _ = writeln!(script, "echo {name} >../at");
            let _ = match (&block.mark, block.language.as_str()) {
                // What a terminal shows may be a command that fails.
                (Mark::Run, "console") => {
                    expected.push((name.clone(), output));
                    writeln!(script, "{{ {command}}} >../{name} 2>&1 || true")
                }
                (Mark::Run | Mark::Prepare, _) => {
                    expected.extend(shown.map(|shown| (name.clone(), shown.text.clone())));
                    writeln!(script, "exec 5>&1 6>&2 >../{name} 2>&1\n{command}exec >&5 2>&6")
                }
                (Mark::Background, _) => writeln!(
                    script,
                    "(exec {command}) >../{name} 2>&1 &\nserver=$!\nawait grep 'is ready' ../{name}"
                ),
                _ => Ok(()),
            };
        }
    }
    script.push_str("echo >../at\n");
    (script, expected)
}

/// A command in namespaces of its own, all of which end with it.
fn apart() -> Command {
    let mut command = leashed(None);
    command.args([
        "unshare",
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command
}

/// Runs the examples of one page, and compares what they print with what it shows. How many outputs were compared.
fn follow(page: &Path) -> Result<(usize, usize)> {
    let mut blocks = blocks(&fs::read_to_string(page)?);
    let tried = [Mark::Prepare, Mark::Run, Mark::Background, Mark::Printed];
    blocks.retain(|block| tried.contains(&block.mark));
    let runs = blocks.iter().filter(|it| [Mark::Run, Mark::Background].contains(&it.mark)).count();
    if runs == 0 {
        return Ok((0, 0));
    }
    let (script, expected) = script(&blocks);
    let dir = scratch("lunet-docs-")?;
    let path = |name: &str| dir.path().join(name);
    for folder in ["home", "layers", "bin"] {
        fs::create_dir(path(folder))?;
    }
    fs::write(path("script"), script)?;
    std::os::unix::fs::symlink(fs::canonicalize(lunet_binary()?)?, path("bin/lunet"))?;
    let mut command = apart();
    command.arg("bash").arg(root().join("tests/docs/sandbox.sh")).arg(dir.path());
    command.arg(path("script"));
    let search = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:/usr/sbin:/sbin:{search}", path("bin").display()));
    command.env("ROOT", root());
    let finished = run(&mut command, PATIENCE)?;
    let at = fs::read_to_string(path("at")).unwrap_or_default();
    let at = at.trim();
    let printed = |name: &str| fs::read_to_string(path(name)).unwrap_or_default();
    if finished.status.is_none_or(|status| !status.success()) || !at.is_empty() {
        bail!("line {at} fails: {}\n--- it printed\n{}", finished.describe(), printed(at));
    }
    let mut wrong = String::new();
    for (name, output) in &expected {
        if !shows(output, &printed(name)) {
            let _ = write!(wrong, "line {name} prints\n{}and not\n{output}", printed(name));
        }
    }
    ensure!(wrong.is_empty(), "{wrong}");
    Ok((runs, expected.len()))
}

#[test]
fn examples_run_and_print_what_pages_show() -> Result<()> {
    let allowed = run(apart().args(["mount", "-t", "tmpfs", "tmpfs", "/run"]), PATIENCE)?;
    if !allowed.status.is_some_and(|status| status.success()) {
        // Some systems keep namespaces from users.
        ensure!(!rustix::process::geteuid().is_root(), "{}", allowed.describe());
        println!("not run: users may make no namespaces here: {}", allowed.describe());
        return Ok(());
    }
    let pages = pages();
    let results = thread::scope(|scope| {
        let follow = |page| scope.spawn(move || follow(page));
        let threads: Vec<_> = pages.iter().map(|page| (page, follow(page))).collect();
        let join = |(page, thread): (_, thread::ScopedJoinHandle<'_, _>)| (page, thread.join());
        threads.into_iter().map(join).collect::<Vec<_>>()
    });
    let (mut wrong, mut runs, mut compared) = (String::new(), 0, 0);
    for (page, result) in results {
        let name = page.strip_prefix(root()).unwrap_or(page).display();
        match result.unwrap_or_else(|_| Err(anyhow!("it has panicked"))) {
            Ok((ran, outputs)) => {
                runs += ran;
                compared += outputs;
            }
            Err(e) => {
                let _ = writeln!(wrong, "{name}: {e:#}\n");
            }
        }
    }
    ensure!(wrong.is_empty(), "{wrong}");
    println!("{runs} blocks run, {compared} outputs compared");
    ensure!(runs > 10, "only {runs} blocks were run");
    Ok(())
}

#[test]
fn figures_may_differ_and_words_may_not() {
    assert!(shows("  vm1  40 GiB\n", "vm1 64 GiB\n"));
    assert!(shows("in 1.5 s, 1,000 of 20", "in 12 s, 20 of 3"));
    assert!(shows("a\n...\nz\n", "a\nb\nc\nz\n"));
    assert!(shows("a ...", "a b"));
    assert!(!shows("a\n...\nz\n", "a\nb\nc\nz\nand more\n"));
    assert!(!shows("a\n", "a\nb\n"));
    assert!(!shows("vm1 of 4 GiB is created", "vm1 of 4 GiB is not created"));
    assert!(!shows("a", ""));
}

/// Of a page whose second example fails, the line is told; and one whose output is another, as well.
#[test]
fn planted_mistakes_are_found() -> Result<()> {
    let dir = scratch("lunet-docs-page-")?;
    let page = dir.path().join("page.md");
    for (text, line) in [
        ("```sh run\ntrue\n```\n```sh run\nfalse\n```\n", "line 4.0 fails"),
        ("```sh run\necho a\n```\n```text printed\nb\n```\n", "line 1.0 prints\na\nand not\nb\n"),
        ("```console run\n$ false\n$ echo a\nb\n```\n", "line 1.1 prints\na\nand not\nb\n"),
    ] {
        fs::write(&page, text)?;
        if let Err(e) = follow(&page) {
            ensure!(format!("{e:#}").contains(line), "{e:#}");
        } else if rustix::process::geteuid().is_root() {
            bail!("{text} is right?");
        }
    }
    Ok(())
}
