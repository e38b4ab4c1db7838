//! `lunet serve` as a child process.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::data::scratch;
use crate::process::{Finished, Running, leashed, run};

/// The target that the embedded default configuration serves.
pub const DEMO_TARGET: &str = "iqn.2026-11.local.lunet:demo";

/// From start to the ready line. Generous: the machine may be busy with other tests.
const READY: Duration = Duration::from_secs(60);

/// For a command that changes a running server.
const PATIENCE: Duration = Duration::from_secs(60);

/// From SIGTERM to the end.
pub const GRACE: Duration = Duration::from_secs(15);

/// What builds the program that the tests run.
const BUILD: &str = "cargo build -p lunet -p lunet-tools";

/// The program to test: `$LUNET_BIN`, or else the build of the running test's profile, or else the release build. `lunet-tools` is
/// beside it.
///
/// # Errors
/// Without `$LUNET_BIN`: a program is missing, or older than one of its source files. The message has the command that builds both.
pub fn lunet_binary() -> Result<PathBuf> {
    if let Some(path) = env::var_os("LUNET_BIN") {
        return Ok(path.into());
    }
    // Once: a file that is edited while the tests run is no reason for the rest of them to fail.
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| built().map_err(|error| format!("{error:#}")));
    found.clone().map_err(anyhow::Error::msg)
}

fn built() -> Result<PathBuf> {
    let me = env::current_exe()?;
    // target/<profile>/[deps/]<me>
    let folder = me.parent().context("a program without a folder")?;
    let profile = if folder.ends_with("deps") { folder.parent() } else { Some(folder) };
    let profile = profile.context("a folder without a parent")?;
    let release = profile.with_file_name("release");
    let folder = [profile, &release].into_iter().find(|folder| folder.join("lunet").is_file());
    let Some(folder) = folder else {
        bail!("{} is missing: run `{BUILD}`, or set LUNET_BIN", profile.join("lunet").display());
    };
    let option = if folder == release { " --release" } else { "" };
    for name in ["lunet", "lunet-tools"] {
        let program = folder.join(name);
        ensure!(program.is_file(), "{} is missing: run `{BUILD}{option}`", program.display());
        if let Some(source) = newer_source(&program)? {
            bail!(
                "{} is older than {}: run `{BUILD}{option}`, or set LUNET_BIN",
                program.display(),
                source.display()
            );
        }
    }
    Ok(folder.join("lunet"))
}

/// A source file that was changed or removed after this program was built, by the list that cargo writes beside it.
fn newer_source(program: &Path) -> Result<Option<PathBuf>> {
    let Ok(list) = fs::read_to_string(program.with_extension("d")) else { return Ok(None) };
    let built = program.metadata()?.modified()?;
    let newer = |source: &PathBuf| match source.metadata().and_then(|about| about.modified()) {
        Ok(changed) => changed > built,
        Err(_) => true,
    };
    Ok(sources(&list).into_iter().find(newer))
}

/// The files that a rule of cargo's `.d` file names behind the colon. A space in a name has a backslash before it.
fn sources(rule: &str) -> Vec<PathBuf> {
    let rest = rule.split_once(": ").map_or("", |(_, rest)| rest);
    let rest = rest.replace("\\ ", "\0");
    rest.split_whitespace().map(|name| PathBuf::from(name.replace('\0', " "))).collect()
}

/// A TCP port of 127.0.0.1 that nobody listens on. It is none of those that the system gives to connections and to listeners
/// without a wish (32768 and above), so nobody gets it by chance before the caller listens there.
pub fn free_port() -> Result<u16> {
    const FIRST: u32 = 10_240;
    const COUNT: u32 = 22_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Processes that run at the same time begin at different places.
    let begin = std::process::id().wrapping_mul(1009);
    for _ in 0..COUNT {
        let at = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = u16::try_from(FIRST + at)?;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port is free")
}

/// A logical unit's address in the form that libiscsi and QEMU read.
pub fn url(portal: &str, target: &str, lun: u16) -> String {
    format!("iscsi://{portal}/{target}/{lun}")
}

/// How to start a server.
///
/// It has no REST interface unless its configuration or an argument says where: the default port is one for all servers
/// of a machine.
#[derive(Default)]
pub struct Serve {
    arguments: Vec<String>,
    config: Option<String>,
    data: Option<PathBuf>,
    core: Option<usize>,
    quiet: bool,
    unread: bool,
    program: Option<PathBuf>,
    takes: bool,
    before: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Serve {
    /// The embedded default on a free port of 127.0.0.1, in a directory of its own, with a volume of `size` ("1G").
    pub fn demo(size: &str) -> Serve {
        Serve::at("127.0.0.1:0", size)
    }

    /// The embedded default at this address, with a volume of `size`.
    pub fn at(listen: &str, size: &str) -> Serve {
        let arguments = ["--listen", listen, "--size", size].map(str::to_owned).to_vec();
        Serve { arguments, ..Serve::default() }
    }

    /// A configuration file with this text. `{dir}` in it becomes the server's directory.
    pub fn config(text: impl Into<String>) -> Serve {
        Serve { config: Some(text.into()), ..Serve::default() }
    }

    /// Keeps the data in `dir`, which outlives the server, instead of in a temporary directory.
    pub fn data(mut self, dir: &Path) -> Serve {
        self.data = Some(dir.to_owned());
        self
    }

    /// More command line arguments.
    pub fn arguments(mut self, arguments: &[&str]) -> Serve {
        self.arguments.extend(arguments.iter().map(|&a| a.to_owned()));
        self
    }

    /// Pins the server to one core.
    pub fn core(mut self, core: Option<usize>) -> Serve {
        self.core = core;
        self
    }

    /// Starts this program instead of the [built one](lunet_binary).
    pub fn program(mut self, program: &Path) -> Serve {
        self.program = Some(program.to_owned());
        self
    }

    /// Makes no file for a volume of the configuration: as `serve` is without `--create`.
    pub fn takes(mut self) -> Serve {
        self.takes = true;
        self
    }

    /// Starts it by way of another command, which must become the server (`exec`): `nsenter`, for one.
    pub fn by(mut self, words: &[&str]) -> Serve {
        self.before.extend(words.iter().map(|&word| word.to_owned()));
        self
    }

    /// Sets a variable of the server's environment.
    pub fn environment(mut self, name: &str, value: &str) -> Serve {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Does not repeat the server's messages when it is dropped.
    pub fn quiet(mut self) -> Serve {
        self.quiet = true;
        self
    }

    /// Nobody reads the server's standard error, until [`Capture::read_on`](crate::process::Capture::read_on).
    pub fn unread(mut self) -> Serve {
        self.unread = true;
        self
    }

    /// Starts the server and waits until it serves.
    pub fn start(self) -> Result<Server> {
        let quiet = self.quiet;
        let data = self.data.clone();
        let (mut process, directory) = self.spawn()?;
        let data = data.or_else(|| directory.as_ref().map(|dir| dir.path().to_owned()));
        let data = data.context("no directory")?;
        let deadline = Instant::now() + READY;
        let urls = process.stdout.find(deadline, |text| {
            // Only whole lines: the last one may still grow.
            let whole = &text[..text.rfind('\n')? + 1];
            let urls: Vec<String> = urls(whole).collect();
            (!urls.is_empty()).then_some(urls)
        });
        let Some(urls) = urls else {
            let end = process.wait(Duration::ZERO)?;
            let (out, err) = (process.stdout.text(), process.stderr.text());
            bail!("`{}` got not ready ({end:?})\n{out}{err}", process.command());
        };
        Ok(Server { process, urls, directory, data, quiet })
    }

    /// Starts the server without waiting for anything: for starts that must fail.
    pub fn spawn(self) -> Result<(Running, Option<TempDir>)> {
        let owned = if self.data.is_none() { Some(scratch("lunet-e2e-")?) } else { None };
        let dir = match (&self.data, &owned) {
            (Some(dir), _) => dir.clone(),
            (None, Some(dir)) => dir.path().to_owned(),
            (None, None) => bail!("no directory"),
        };
        let mut command = leashed(self.core);
        let program = match self.program {
            Some(program) => program,
            None => lunet_binary()?,
        };
        // A build of before made files without being asked, and knows no such option.
        let known = help(&program)?;
        let create = !self.takes && known.contains("--create");
        command.args(self.before).arg(program).arg("serve").arg("--data").arg(&dir);
        command.args(create.then_some("--create"));
        if let Some(text) = self.config {
            let path = dir.join("lunet.toml");
            let dir = dir.to_str().context("the directory's name is not UTF-8")?;
            // Its owner's alone, in case that there are secrets in it.
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&path)?;
            file.write_all(text.replace("{dir}", dir).as_bytes())?;
            command.arg("--config").arg(path);
        }
        let own = fs::read_to_string(dir.join("lunet.toml")).unwrap_or_default();
        let options = ["--listen", "--listen-control"];
        let said = own.contains("[control]")
            || self.arguments.iter().any(|one| options.contains(&one.as_str()));
        if !said && known.contains("ADDR:PORT|none") {
            command.args(["--listen-control", "none"]);
        }
        command.args(self.arguments).envs(self.environment);
        let spawn = if self.unread { Running::spawn_unread } else { Running::spawn };
        Ok((spawn(&mut command)?, owned))
    }
}

/// What the program says of the options of `serve`: a build of before has others.
fn help(program: &Path) -> Result<String> {
    static ASKED: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = asked.get(program) {
        return Ok(known.clone());
    }
    // Whatever is wrong with the program shows when it is started.
    let help = run(Command::new(program).args(["serve", "--help"]), READY);
    let help = help.map(|finished| finished.stdout).unwrap_or_default();
    asked.insert(program.to_owned(), help.clone());
    Ok(help)
}

/// The URLs that stand alone as words: the ready message has others within examples.
fn urls(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split_whitespace().filter(|word| word.starts_with("iscsi://")).map(str::to_owned)
}

/// A serving `lunet`. Killed when dropped.
pub struct Server {
    process: Running,
    urls: Vec<String>,
    directory: Option<TempDir>,
    data: PathBuf,
    quiet: bool,
}

impl Server {
    /// The URL of the first logical unit.
    pub fn url(&self) -> &str {
        &self.urls[0]
    }

    /// All URLs of the ready message.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// `address:port` of the first portal.
    pub fn portal(&self) -> &str {
        portal_of(self.url())
    }

    /// The child process.
    pub fn process(&mut self) -> &mut Running {
        &mut self.process
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The temporary directory, when the server has one.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_ref().map(TempDir::path)
    }

    /// Where it keeps its data.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Runs a command of the `lunet` program against this server.
    pub fn command(&self, arguments: &[&str]) -> Result<Finished> {
        let mut command = Command::new(lunet_binary()?);
        command.args(arguments).arg("--data").arg(&self.data);
        run(&mut command, PATIENCE)
    }

    /// The same; demands success, and gives what the command printed.
    pub fn tell(&self, arguments: &[&str]) -> Result<String> {
        self.command(arguments)?.success()
    }

    /// The same; demands exit status 1, and gives the one line on standard error.
    pub fn refuses(&self, arguments: &[&str]) -> Result<String> {
        let finished = self.command(arguments)?;
        ensure!(
            finished.status.and_then(|status| status.code()) == Some(1)
                && finished.stderr.lines().count() == 1
                && finished.stderr.starts_with("lunet: "),
            "{}",
            finished.describe()
        );
        Ok(finished.stderr)
    }

    /// SIGTERM; demands exit status 0 within [`GRACE`]. Gives back the directory, so that the data can be looked at.
    pub fn stop(mut self) -> Result<Option<TempDir>> {
        let status = self.process.terminate(GRACE)?;
        let said = self.process.stderr.text();
        ensure!(status.success(), "after SIGTERM: {status}\n{said}");
        ensure!(!said.contains("not closed: "), "somebody holds on to volumes:\n{said}");
        Ok(self.directory.take())
    }

    /// SIGKILL.
    pub fn kill(mut self) -> Result<ExitStatus> {
        self.process.kill()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The test framework shows this only for a test that fails.
        let text = self.process.stderr.text();
        if !self.quiet && !text.is_empty() {
            eprintln!("--- stderr of `{}`\n{text}", self.process.command());
        }
    }
}

/// `address:port` of an `iscsi://` URL.
pub fn portal_of(url: &str) -> &str {
    let rest = url.strip_prefix("iscsi://").unwrap_or(url);
    rest.split('/').next().unwrap_or(rest)
}

/// The target name of an `iscsi://` URL.
pub fn target_of(url: &str) -> &str {
    let rest = url.strip_prefix("iscsi://").unwrap_or(url);
    rest.split('/').nth(1).unwrap_or_default()
}

/// The LUN of an `iscsi://` URL.
pub fn lun_of(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or_default()
}

/// The program's version line, for reports.
pub fn version() -> Result<String> {
    let mut command = Command::new(lunet_binary()?);
    let text = crate::process::output(command.arg("--version"), READY)?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_program_older_than_a_source_file_is_stale() {
        let dir = scratch("lunet-e2e-").unwrap();
        let path = |name: &str| dir.path().join(name);
        let touch = |name: &str, seconds| {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            fs::File::create(path(name)).unwrap().set_modified(time).unwrap();
        };
        touch("a.rs", 10);
        touch("with space.rs", 20);
        touch("program", 30);
        let listed = path("with space.rs").to_str().unwrap().replace(' ', "\\ ");
        let rule = format!("{}: {} {listed}\n", path("program").display(), path("a.rs").display());
        fs::write(path("program.d"), rule).unwrap();
        assert_eq!(newer_source(&path("program")).unwrap(), None);
        touch("with space.rs", 40);
        assert_eq!(newer_source(&path("program")).unwrap(), Some(path("with space.rs")));
        fs::remove_file(path("a.rs")).unwrap();
        assert_eq!(newer_source(&path("program")).unwrap(), Some(path("a.rs")));
    }

    #[test]
    fn urls_are_found_and_taken_apart() {
        let text = "ready: iscsi://127.0.0.1:3260/iqn.2026-11.local.lunet:demo/0\n\
                    \x20 and iscsi://[::1]:1/iqn.x:y/7\n -drive file=iscsi://h/t/1,format=raw\n";
        let found: Vec<String> = urls(text).collect();
        assert_eq!(found, [url("127.0.0.1:3260", DEMO_TARGET, 0), url("[::1]:1", "iqn.x:y", 7)]);
        assert_eq!(portal_of(&found[1]), "[::1]:1");
        assert_eq!(target_of(&found[1]), "iqn.x:y");
        assert_eq!(lun_of(&found[1]), "7");
    }
}
