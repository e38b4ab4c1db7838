//! How `lunet` finds and runs `lunet-tools`. A shell script stands in for `lunet-tools`, so that none of its code is needed.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Prints its process id, the version that it is told and its arguments, and ends with the exit code `$FAKE_CODE`.
const FAKE: &str = r#"#!/bin/sh
echo "process $$"
echo "version $LUNET_EXPECTED_VERSION"
for word; do echo "word $word"; done
exit ${FAKE_CODE:-0}
"#;

/// Commands that `lunet-tools` has, with the exit code of `lunet` if it cannot run them.
const COMMANDS: [(&[&str], i32); 9] = [
    (&["doctor", "--json"], 2),
    (&["bench", "net", "serve"], 2),
    (&["tune", "plan"], 1),
    (&["attach", "192.0.2.1"], 1),
    (&["detach", "vm1"], 1),
    (&["top"], 1),
    (&["support"], 1),
    (&["man", "folder"], 1),
    (&["--server", "https://192.0.2.1", "help", "doctor"], 2),
];

/// A prefix with `bin/lunet`, and no other program.
struct Prefix(TempDir);

impl Prefix {
    fn new() -> Self {
        // On the file system of the built program, for a hard link.
        let prefix = Self(TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        fs::create_dir(prefix.path("bin")).unwrap();
        let program = env!("CARGO_BIN_EXE_lunet");
        if fs::hard_link(program, prefix.path("bin/lunet")).is_err() {
            fs::copy(program, prefix.path("bin/lunet")).unwrap();
        }
        prefix
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    /// Installs a script as a program.
    fn install(&self, name: &str, script: &str, mode: u32) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // By a process of its own: one that another test starts meanwhile would inherit a file that is open for writing, and the
        // kernel runs no such file (ETXTBSY).
        let mut write = Command::new("sh");
        write.args(["-c", "cat >\"$1\"", "sh"]).arg(&path).stdin(Stdio::piped());
        let mut write = write.spawn().unwrap();
        write.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(write.wait().unwrap().success());
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn lunet(&self, words: &[&str]) -> Command {
        command(&self.path("bin/lunet"), words)
    }
}

fn command(program: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words).env_remove("LUNET_DATA").env_remove("LUNET_SERVER");
    command.stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Asserts an exit code, an empty standard output, and one sentence with these words on standard error.
#[track_caller]
fn refused(output: &Output, code: i32, words: &[&str]) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert_eq!(text(&output.stdout), "");
    let lines: Vec<&str> = error.lines().collect();
    let [line] = lines[..] else { panic!("one line expected:\n{error}") };
    assert!(line.starts_with("lunet: ") && !line.contains("os error"), "{line}");
    for word in words {
        assert!(line.contains(word), "{word}: {line}");
    }
}

#[test]
fn missing_tools_are_reported_with_the_searched_places() {
    let prefix = Prefix::new();
    // Neither a folder of this name nor a dangling link is the program.
    fs::create_dir(prefix.path("bin/lunet-tools")).unwrap();
    fs::create_dir_all(prefix.path("libexec/lunet")).unwrap();
    symlink("nowhere", prefix.path("libexec/lunet/lunet-tools")).unwrap();
    let [beside, libexec] = ["bin", "libexec/lunet"].map(|folder| prefix.path(folder));
    let places = format!(
        "searched {} and {}",
        beside.join("lunet-tools").display(),
        libexec.join("lunet-tools").display()
    );
    for (words, code) in COMMANDS {
        let output = prefix.lunet(words).output().unwrap();
        refused(&output, code, &["lunet-tools is missing", &places, "-p lunet-tools`"]);
    }
    // The other commands need no tools.
    let help = prefix.lunet(&["--help"]).output().unwrap();
    assert!(help.status.success() && text(&help.stdout).contains("  doctor "), "{help:?}");
}

#[test]
fn tools_are_found_beside_lunet_and_in_libexec_of_its_prefix() {
    for place in ["bin/lunet-tools", "libexec/lunet/lunet-tools"] {
        let prefix = Prefix::new();
        prefix.install(place, FAKE, 0o755);
        symlink(prefix.path("bin/lunet"), prefix.path("link")).unwrap();
        symlink("link", prefix.path("link-to-link")).unwrap();
        let through = |name: &str| command(&prefix.path(name), &["doctor"]);
        let mut relative = command(Path::new("./link"), &["doctor"]);
        relative.current_dir(prefix.path(""));
        let mut elsewhere = prefix.lunet(&["doctor"]);
        elsewhere.current_dir("/");
        let mut by_path = command(Path::new("lunet"), &["doctor"]);
        by_path.env("PATH", format!("{}:/usr/bin:/bin", prefix.path("bin").display()));
        for mut command in [elsewhere, through("link"), through("link-to-link"), relative, by_path]
        {
            let output = command.output().unwrap();
            assert!(output.status.success(), "{place}: {command:?}: {output:?}");
            assert!(text(&output.stdout).contains("word doctor"), "{place}: {command:?}");
        }
    }
}

#[test]
fn tools_beside_lunet_are_preferred() {
    let prefix = Prefix::new();
    prefix.install("bin/lunet-tools", "#!/bin/sh\necho beside\n", 0o755);
    prefix.install("libexec/lunet/lunet-tools", "#!/bin/sh\necho libexec\n", 0o755);
    assert_eq!(text(&prefix.lunet(&["doctor"]).output().unwrap().stdout), "beside\n");
}

#[test]
fn tools_that_cannot_be_executed_are_reported_with_the_fix() {
    let prefix = Prefix::new();
    prefix.install("libexec/lunet/lunet-tools", FAKE, 0o644);
    let path = prefix.path("libexec/lunet/lunet-tools").display().to_string();
    for (words, code) in COMMANDS {
        let output = prefix.lunet(words).output().unwrap();
        refused(&output, code, &[&path, "Permission denied", &format!("chmod +x {path}")]);
    }
}

/// The C library gives a file of an unknown format to the shell, for which an empty one is a success.
#[test]
fn damaged_tools_are_reported() {
    let prefix = Prefix::new();
    let path = prefix.path("libexec/lunet/lunet-tools").display().to_string();
    for content in ["", "exit 0\n"] {
        prefix.install("libexec/lunet/lunet-tools", content, 0o755);
        for (words, code) in COMMANDS {
            let output = prefix.lunet(words).output().unwrap();
            refused(&output, code, &[&format!("{path} is damaged"), "install the package"]);
        }
    }
}

#[test]
fn arguments_version_exit_code_and_process_are_passed_on() {
    let prefix = Prefix::new();
    prefix.install("libexec/lunet/lunet-tools", FAKE, 0o755);
    let words = ["--server", "https://192.0.2.1", "tune", "apply", "--only", "", "a b", "--", "*"];
    let mut command = prefix.lunet(&words);
    command.arg(OsStr::from_bytes(b"\xff")).env("FAKE_CODE", "37");
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(37));
    let version = env!("CARGO_PKG_VERSION");
    let mut wanted = format!("process {id}\nversion {version}\n").into_bytes();
    for word in words {
        wanted.extend(format!("word {word}\n").bytes());
    }
    wanted.extend(b"word \xff\n");
    assert_eq!(output.stdout, wanted, "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn help_of_a_tool_is_its_own() {
    let prefix = Prefix::new();
    prefix.install("bin/lunet-tools", FAKE, 0o755);
    for words in [&["help", "doctor"][..], &["doctor", "--help"], &["help", "tune", "apply"]] {
        let output = text(&prefix.lunet(words).output().unwrap().stdout);
        let lines: Vec<String> = words.iter().map(|word| format!("word {word}")).collect();
        assert!(output.trim_end().ends_with(&lines.join("\n")), "{words:?}: {output}");
    }
    for words in [&["help"][..], &["--help"], &["help", "volume"], &["--version"]] {
        let output = text(&prefix.lunet(words).output().unwrap().stdout);
        assert!(!output.contains("process "), "{words:?}: {output}");
    }
}

#[test]
fn a_signal_ends_the_tools_and_is_the_end_of_the_command() {
    let prefix = Prefix::new();
    let script = "#!/bin/sh\necho ready\nread -r line\necho \"$line\"\nexec sleep 60\n";
    prefix.install("bin/lunet-tools", script, 0o755);
    // A shell starts its background jobs, and tests among them, with SIGINT ignored (POSIX, 2.11): another one stands for it.
    for signal in [Signal::TERM, Signal::USR1] {
        let mut command = prefix.lunet(&["bench", "x"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        child.stdin.take().unwrap().write_all(b"from standard input\n").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "from standard input");
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(signal.as_raw()));
    }
}

#[test]
fn a_shell_is_completed_by_the_tools_and_without_them_not_at_all() {
    let prefix = Prefix::new();
    let ask = |words: &[&str]| {
        let index = (words.len() - 1).to_string();
        let mut command = prefix.lunet(&[&["--"], words].concat());
        command.env("COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", index);
        command.env("_CLAP_IFS", "\n").env("_CLAP_COMPLETE_COMP_TYPE", "9");
        let output = command.output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        text(&output.stdout)
    };
    assert_eq!(ask(&["lunet", "doctor", "--"]), "");
    assert_eq!(ask(&["lunet", "doc"]).trim_end(), "doctor");
    prefix.install("bin/lunet-tools", FAKE, 0o755);
    let told = ask(&["lunet", "--server", "x", "doctor", "--"]);
    assert!(told.contains("word lunet\nword --server\nword x\nword doctor\nword --\n"), "{told}");
    assert!(ask(&["lunet", "volume", "cre"]).contains("create"));
}

/// A server with the REST interface, and an administrator who is logged in there.
struct Server {
    child: Child,
    address: String,
    cookie: String,
    csrf: String,
}

impl Server {
    fn start(prefix: &Prefix) -> Self {
        let mut command = prefix.lunet(&["serve", "--listen", "127.0.0.1:0", "--size", "1MiB"]);
        command.args(["--listen-control", "127.0.0.1:0", "--data"]).arg(prefix.path("data"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let page =
            lines.find_map(|line| line.unwrap().strip_prefix("page: http://").map(String::from));
        let page = page.expect("the address of the page");
        let (address, code) = page.split_once("/ first-start code: ").unwrap();
        let mut server =
            Self { child, address: address.to_owned(), cookie: String::new(), csrf: String::new() };
        let body =
            format!(r#"{{"code":"{code}","name":"anna","password":"correct horse battery"}}"#);
        let (head, body) = server.ask("POST", "/api/v1/first-start", &body);
        let cookie = head.lines().find_map(|line| line.split_once("et-cookie: ")).expect(&head).1;
        server.cookie = cookie.split(';').next().unwrap().to_owned();
        server.csrf = body["csrf"].as_str().unwrap().to_owned();
        server
    }

    /// The head and the JSON of the answer.
    fn ask(&self, method: &str, path: &str, body: &str) -> (String, serde_json::Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let (address, cookie, csrf, length) = (&self.address, &self.cookie, &self.csrf, body.len());
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nCookie: {cookie}\r\nX-Lunet-CSRF: {csrf}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        (
            head.to_owned(),
            serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}")),
        )
    }

    /// Runs a job to its end.
    fn job(&self, new: &str) -> serde_json::Value {
        let (_, job) = self.ask("POST", "/api/v1/jobs", new);
        let path = format!("/api/v1/jobs/{}", job["id"].as_str().expect("an id"));
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let (_, job) = self.ask("GET", &path, "");
            if job["state"] != "running" {
                return job;
            }
            assert!(Instant::now() < until, "{job}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_job_of_the_page_runs_the_tools_and_fails_with_a_sentence_without_them() {
    let prefix = Prefix::new();
    let server = Server::start(&prefix);
    for (new, code) in [(r#"{"kind":"doctor"}"#, 2), (r#"{"kind":"tune-plan"}"#, 1)] {
        let job = server.job(new);
        assert_eq!((&job["state"], &job["exit"]), (&"failed".into(), &code.into()), "{job}");
        let error = job["error"].as_str().expect("a sentence");
        assert!(error.contains("lunet-tools is missing: searched "), "{job}");
        assert!(error.contains(prefix.path("bin/lunet-tools").to_str().unwrap()), "{job}");
    }
    // The server finds them as soon as they are installed.
    let script = "#!/bin/sh\nprintf '[\"%s\", \"%s\"]' \"$1\" \"$2\"\nexit 1\n";
    prefix.install("libexec/lunet/lunet-tools", script, 0o755);
    let job = server.job(r#"{"kind":"doctor"}"#);
    assert_eq!(job["result"].to_string(), r#"["doctor","--json"]"#, "{job}");
    assert_eq!((&job["state"], &job["exit"]), (&"done".into(), &1.into()), "{job}");
}
