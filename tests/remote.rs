//! The command line asks a lunet by its REST interface as it does by the control socket, and nobody else gets the token.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunet_e2e::clients::SHORT;
use lunet_e2e::data::scratch;
use lunet_e2e::process::{Finished, Running, run};
use lunet_e2e::rest::Page;
use lunet_e2e::server::{Serve, Server, free_port, lunet_binary};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

const TARGET: &str = "iqn.2026-11.local.lunet:old";

/// Beside loopback, which is plain, something is served over TLS: on every address, so that 127.0.0.1 has it, too.
const CONFIG: &str = "[[portal]]\naddress = '127.0.0.1:0'\n[control]\nlisten = ['127.0.0.1:0', '0.0.0.0:0']\n\
                      [volumes.old]\nbackend = 'memory'\nsize = '4MiB'\n\
                      [[target]]\nname = 'iqn.2026-11.local.lunet:old'\nluns = ['old']\n";

/// For work that takes its time.
const PATIENCE: Duration = Duration::from_secs(180);

/// A server, and what another machine needs to ask it.
struct Remote {
    server: Server,
    page: Page,
    /// Over TLS.
    url: String,
    fingerprint: String,
    tokens: TempDir,
    /// The file of an administrator's token.
    token: PathBuf,
}

impl Remote {
    fn start() -> Result<Self> {
        Self::of(Serve::config(CONFIG))
    }

    fn of(serve: Serve) -> Result<Self> {
        let mut server = serve.start()?;
        let mut page = Page::of(&mut server)?;
        page.begin()?;
        let told = server.process().stdout.find(Instant::now() + SHORT, |text| {
            let line = |start| text.lines().find_map(|line: &str| line.strip_prefix(start));
            let port = line("page: https://0.0.0.0:")?.split('/').next()?.to_owned();
            let hash = line("certificate: SHA-256 ")?.to_owned();
            text.contains(&format!("{hash}\n")).then_some((port, hash))
        });
        let (port, fingerprint) = told.context("no address with TLS was told")?;
        let tokens = scratch("lunet-tokens-")?;
        let url = format!("https://127.0.0.1:{port}");
        let token = tokens.path().join("token");
        let remote = Self { server, page, url, fingerprint, tokens, token };
        remote.write("token", &remote.page.token("admin", "administrator", 3600)?)?;
        Ok(remote)
    }

    /// A file that is its owner's alone.
    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let file = self.tokens.path().join(name);
        fs::write(&file, format!("{text}\n"))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
        Ok(file)
    }

    /// The words that lead to it.
    fn words(&self) -> Vec<String> {
        let token = self.token.display().to_string();
        ["--server", &self.url, "--token-file", &token, "--server-fingerprint", &self.fingerprint]
            .map(str::to_owned)
            .to_vec()
    }

    /// A command that asks it.
    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(lunet_binary()?);
        command.args(self.words()).args(arguments);
        Ok(command)
    }

    /// The same, run to its end.
    fn asks(&self, arguments: &[&str]) -> Result<Finished> {
        run(&mut self.command(arguments)?, PATIENCE)
    }

    /// The same with this token.
    fn as_who(&self, token: &Path, arguments: &[&str]) -> Result<Finished> {
        let mut command = Command::new(lunet_binary()?);
        let words = ["--server", &self.url, "--server-fingerprint", &self.fingerprint];
        command.args(words).arg("--token-file").arg(token).args(arguments);
        run(&mut command, PATIENCE)
    }
}

fn code(finished: &Finished) -> Option<i32> {
    finished.status.and_then(|status| status.code())
}

/// Demands exit code 1 and one sentence on standard error with these words.
fn refused(finished: &Finished, words: &str) -> Result<()> {
    ensure!(
        code(finished) == Some(1)
            && finished.stdout.is_empty()
            && finished.stderr.lines().count() == 1
            && finished.stderr.starts_with("lunet: ")
            && finished.stderr.contains(words),
        "{words}: {}",
        finished.describe()
    );
    Ok(())
}

/// The text with what is different from server to server made the same: folders, ports, designators, names by chance, and the widths of
/// columns.
fn plain(text: &str, data: &Path) -> String {
    let mut text = text.replace(&*data.to_string_lossy(), "DATA");
    while let Some(end) = text.find(".secret") {
        let by_chance = text[..end].rfind('-').unwrap_or(end);
        text.replace_range(by_chance..end + ".secret".len(), "");
    }
    let mut out = String::new();
    let mut parts = text.split("127.0.0.");
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let (host, rest) = part.split_once(':').unwrap_or((part, ""));
        match host.parse::<u8>() {
            Ok(host) => {
                out.push_str(&format!("127.0.0.{host}:PORT"));
                out.push_str(rest.trim_start_matches(|c: char| c.is_ascii_digit()));
            }
            Err(_) => out.push_str(&format!("127.0.0.{part}")),
        }
    }
    // Designators are made of the server's own identity.
    let line = |line: &str| match line.trim_start().split_once(": ") {
        Some((key @ ("\"naa\"" | "\"uuid\""), _)) => format!("{key}: OWN"),
        _ => line.split_whitespace().collect::<Vec<_>>().join(" "),
    };
    out.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// How much of two answers is to be the same.
#[derive(Clone, Copy, PartialEq)]
enum Same {
    /// All of it.
    All,
    /// The exit code, and the keys of JSON: the rest is measured.
    Form,
}

/// Each verb, one after the other: the words, and what the command reads. `PORTAL` is an address with a free port.
#[rustfmt::skip]
const VERBS: &[(&str, &str, Same)] = &[
    ("volume list", "", Same::All),
    ("volume create v1 --size 16MiB", "", Same::All),
    ("volume create v1 --size 16MiB", "", Same::All),
    ("volume create v2 --size 8MiB --backend memory --block-size 4096 --write-cache off", "", Same::All),
    ("volume create v3 --size 8MiB --path other.img --full --read-only", "", Same::All),
    ("volume create v4 --size 8MiB --block-size 1000", "", Same::All),
    ("volume list", "", Same::All),
    ("volume resize v1 32MiB", "", Same::All),
    ("volume resize v1 1MiB", "", Same::All),
    ("volume resize nowhere 1MiB", "", Same::All),
    ("volume reopen v1", "", Same::All),
    ("volume reopen nowhere", "", Same::All),
    ("volume recreate v1", "", Same::All),
    ("volume recreate v1 --yes", "", Same::All),
    ("volume adopt v1 --yes", "", Same::All),
    ("volume snapshots", "", Same::All),
    ("volume snapshots v1", "", Same::All),
    ("volume snapshots nowhere", "", Same::All),
    ("volume snapshot v2@s", "", Same::All),
    ("volume clone v2 v5", "", Same::All),
    ("volume clone nowhere@s v5", "", Same::All),
    ("volume rollback v1@s", "", Same::All),
    ("volume rollback v1@s --yes", "", Same::All),
    ("volume delete v1@s --yes", "", Same::All),
    ("target create iqn.2026-11.local.lunet:new --alias text --nvme", "", Same::All),
    ("target create iqn.2026-11.local.lunet:new", "", Same::All),
    ("target map iqn.2026-11.local.lunet:new 1 v1", "", Same::All),
    ("target map iqn.2026-11.local.lunet:new 1 v2", "", Same::All),
    ("target map iqn.2026-11.local.lunet:new 7 nowhere", "", Same::All),
    ("target unmap iqn.2026-11.local.lunet:new 9", "", Same::All),
    ("target allow iqn.2026-11.local.lunet:new iqn.a:1 10.0.0.0/8 iqn.a:2 --force", "", Same::All),
    ("target allow iqn.2026-11.local.lunet:new 10.0.0.0/64", "", Same::All),
    ("target deny iqn.2026-11.local.lunet:new iqn.a:1 10.0.0.0/8 --force --keep-sessions", "", Same::All),
    ("target deny iqn.2026-11.local.lunet:new iqn.a:1", "", Same::All),
    ("target open iqn.2026-11.local.lunet:new", "", Same::All),
    ("target user add iqn.2026-11.local.lunet:new u/1 --force", "a secret of 16 b", Same::All),
    ("target user add iqn.2026-11.local.lunet:new u/1 --initiator iqn.a:3", "a secret of 16 c", Same::All),
    ("target user add iqn.2026-11.local.lunet:new u/1 --replace", "another of 16 b.", Same::All),
    ("target user add iqn.2026-11.local.lunet:new u2", "short", Same::All),
    ("target user list", "", Same::All),
    ("target user list iqn.2026-11.local.lunet:new", "", Same::All),
    ("target user remove iqn.2026-11.local.lunet:new nobody", "", Same::All),
    ("target user remove iqn.2026-11.local.lunet:new u/1 --force", "", Same::All),
    ("target list", "", Same::All),
    ("portal list", "", Same::All),
    ("portal add PORTAL --tag 2 --transport tcp", "", Same::All),
    ("portal add PORTAL", "", Same::All),
    ("portal list", "", Same::All),
    ("portal remove PORTAL", "", Same::All),
    ("portal remove PORTAL", "", Same::All),
    ("sessions", "", Same::All),
    ("sessions end 4711", "", Same::All),
    ("sessions end --initiator iqn.a:1", "", Same::All),
    ("stats", "", Same::Form),
    ("verdict", "", Same::Form),
    ("config show", "", Same::All),
    ("config apply --dry-run", "", Same::All),
    ("config apply", "", Same::All),
    ("target unmap iqn.2026-11.local.lunet:new 1", "", Same::All),
    ("volume delete v1", "", Same::All),
    ("volume delete v1 --yes", "", Same::All),
    ("volume delete v1 --yes", "", Same::All),
    ("volume delete v3 --keep-data", "", Same::All),
    ("target delete iqn.2026-11.local.lunet:new --force", "", Same::All),
    ("target delete iqn.2026-11.local.lunet:old --force", "", Same::All),
];

/// Runs a command that reads this.
fn fed(mut command: Command, input: &str) -> Result<Finished> {
    let mut shell = Command::new("sh");
    shell.args(["-c", "text=$1; shift; printf '%s' \"$text\" | \"$@\"", "sh", input]);
    shell.arg(command.get_program()).args(command.get_args());
    run(if input.is_empty() { &mut command } else { &mut shell }, PATIENCE)
}

/// The keys of an answer, on every level.
fn keys(value: &Value) -> Vec<String> {
    match value {
        Value::Object(map) => {
            let below = |(key, value): (&String, &Value)| {
                keys(value).into_iter().map(move |one| format!("{key}.{one}")).collect::<Vec<_>>()
            };
            map.iter().flat_map(below).collect()
        }
        Value::Array(all) => all.first().map(keys).unwrap_or_default(),
        _ => vec![String::new()],
    }
}

fn compare(json: bool) -> Result<()> {
    let (here, there) = (Serve::config(CONFIG).start()?, Remote::start()?);
    let portals = [free_port()?, free_port()?].map(|port| format!("127.0.0.2:{port}"));
    for (line, input, same) in VERBS {
        let words = |portal: &str| -> Vec<String> {
            let words = line.split(' ').map(|word| word.replace("PORTAL", portal));
            words.chain(json.then(|| "--json".to_owned())).collect()
        };
        let mut by_socket = Command::new(lunet_binary()?);
        by_socket.args(words(&portals[0])).arg("--data").arg(here.data());
        let by_socket = fed(by_socket, input)?;
        let own = words(&portals[1]);
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        let by_rest = fed(there.command(&own)?, input)?;
        let told = format!("{}\n{}", by_socket.describe(), by_rest.describe());
        ensure!(code(&by_socket) == code(&by_rest), "{told}");
        if *same == Same::All {
            for (one, other) in
                [(&by_socket.stdout, &by_rest.stdout), (&by_socket.stderr, &by_rest.stderr)]
            {
                let (one, other) = (plain(one, here.data()), plain(other, there.server.data()));
                ensure!(one == other, "{one}\n--- and\n{other}\n--- of\n{told}");
            }
        } else if json {
            let read = |text: &str| serde_json::from_str::<Value>(text).map(|all| keys(&all));
            ensure!(read(&by_socket.stdout)? == read(&by_rest.stdout)?, "{told}");
        }
    }
    here.stop()?;
    there.server.stop()?;
    Ok(())
}

#[test]
fn every_verb_says_the_same_over_the_socket_and_over_https() -> Result<()> {
    compare(false)
}

#[test]
fn every_answer_as_json_is_the_same_over_the_socket_and_over_https() -> Result<()> {
    compare(true)
}

/// Roles, tokens and certificates: who may not, hears why in one sentence.
#[test]
fn who_may_not_hears_why_in_one_sentence() -> Result<()> {
    let there = Remote::start()?;
    let ask = ["volume", "list"];
    let reader = there.write("reader", &there.page.token("reader", "viewer", 3600)?)?;
    ensure!(there.as_who(&reader, &ask)?.success()?.contains("old"));
    let change = there.as_who(&reader, &["volume", "create", "x", "--size", "1MiB"])?;
    refused(&change, "this needs the role operator, and reader has viewer")?;
    refused(&there.as_who(&reader, &["config", "show"])?, "needs the role operator")?;
    let wrong = there.write("wrong", "lunet_1_0123")?;
    refused(&there.as_who(&wrong, &ask)?, "the token is not known there, or has expired")?;
    let text = there.page.token("short", "viewer", 1)?;
    let short = there.write("short", &text)?;
    let robot = there.page.with_token(text);
    let begun = Instant::now();
    while robot.ask("GET", "/api/v1/volumes", &Value::Null)?.status != 401 {
        ensure!(begun.elapsed() < PATIENCE, "the token does not expire");
        thread::sleep(Duration::from_millis(20));
    }
    refused(&there.as_who(&short, &ask)?, "the token is not known there, or has expired")?;
    let no_token = there.write("no-token", "something else")?;
    refused(&there.as_who(&no_token, &ask)?, "has no token")?;
    fs::set_permissions(&wrong, fs::Permissions::from_mode(0o644))?;
    refused(&there.as_who(&wrong, &ask)?, "chmod 600")?;
    refused(&there.as_who(&there.tokens.path().join("none"), &ask)?, "cannot read")?;

    let token = there.token.display().to_string();
    let with = |words: &[&str]| -> Result<Finished> {
        let mut command = Command::new(lunet_binary()?);
        run(command.args(ask).args(["--token-file", &token]).args(words), PATIENCE)
    };
    let other = "00:".repeat(31) + "00";
    let pinned = with(&["--server", &there.url, "--server-fingerprint", &other])?;
    refused(&pinned, &format!("the fingerprint {}, and not {other}", there.fingerprint))?;
    let nobody = with(&["--server", &there.url])?;
    refused(&nobody, &format!("add --server-fingerprint {}", there.fingerprint))?;
    let ca = there.server.data().join("control/certificate.pem").display().to_string();
    ensure!(with(&["--server", &there.url, "--server-ca", &ca])?.success()?.contains("old"));
    let name = there.url.replace("127.0.0.1", "localhost");
    ensure!(with(&["--server", &name, "--server-ca", &ca])?.success()?.contains("old"));
    let both = ["--server", &there.url, "--server-ca", &ca, "--server-fingerprint", &other];
    refused(&with(&both)?, "leave one of them out")?;
    refused(&with(&["--server", &there.url, "--server-ca", &token])?, "name a file in PEM")?;
    refused(&with(&["--server", &there.url, "--server-fingerprint", "12"])?, "64 hexadecimal")?;

    // On loopback there is no TLS, and to other machines nothing else.
    let plain = format!("http://{}", there.page.address);
    ensure!(with(&["--server", &plain])?.success()?.contains("old"));
    let secure = format!("https://{}", there.page.address);
    refused(&with(&["--server", &secure])?, "speaks no TLS")?;
    ensure!(code(&with(&["--server", &there.url.replace("https", "http")])?) == Some(1));
    refused(&with(&["--server", "http://192.0.2.1:3261"])?, "loopback addresses alone")?;
    refused(&with(&["--server", "store"])?, "no address of a lunet")?;

    let url = there.url.clone();
    there.server.stop()?;
    refused(&with(&["--server", &url])?, "nobody answers there")?;
    Ok(())
}

/// The variables mean what the options do, and what names a lunet of this machine stands before them.
#[test]
fn the_environment_names_a_server_too() -> Result<()> {
    let (here, there) = (Serve::demo("16M").start()?, Remote::start()?);
    let ask = |words: &[&str], data: bool| -> Result<Finished> {
        let mut command = Command::new(lunet_binary()?);
        command.args(words).env("LUNET_SERVER", &there.url).env("LUNET_TOKEN_FILE", &there.token);
        command.env("LUNET_SERVER_FINGERPRINT", &there.fingerprint);
        if data {
            command.arg("--data").arg(here.data());
        }
        run(&mut command, PATIENCE)
    };
    ensure!(ask(&["volume", "list"], false)?.success()?.contains("old"));
    ensure!(ask(&["volume", "list"], true)?.success()?.contains("demo"));
    let both = ask(&["volume", "list", "--server", &there.url], true)?;
    refused(&both, "--server and --data name different ones")?;
    let here_alone = |words: &[&str], of: &str| -> Result<()> {
        refused(
            &there.asks(words)?,
            &format!("{of} works on this machine alone: leave --server out"),
        )
    };
    here_alone(&["serve"], "`lunet serve`")?;
    here_alone(&["tune", "facts"], "this command of `lunet tune`")?;
    ensure!(there.asks(&["doctor", "iscsi://127.0.0.1/x"])?.stderr.contains("this machine alone"));
    ensure!(there.asks(&["bench", "net", "127.0.0.1"])?.stderr.contains("this machine alone"));
    let html = there.asks(&["bench", "/dev/null", "--html", "x.html"])?;
    ensure!(
        code(&html) == Some(2) && html.stderr.contains("takes no --html"),
        "{}",
        html.describe()
    );
    let file = there.asks(&["target", "user", "add", TARGET, "u", "--secret-file", "x"])?;
    refused(&file, "--secret-file names a file that the server itself reads")?;
    let lonely = ask(&["--token-file", "x", "volume", "list"], true)?;
    refused(&lonely, "name different ones")?;
    // The default is still what it was: a command that works on this machine has no use for the variables.
    ensure!(ask(&["tune", "explain", "no.rule"], false)?.stderr.contains("no rule is called"));
    here.stop()?;
    there.server.stop()?;
    Ok(())
}

/// A configuration that is here is checked there, and one that is asked for is foretold.
#[test]
fn a_configuration_is_checked_by_the_server() -> Result<()> {
    let there = Remote::start()?;
    let file = there
        .write("next.toml", &format!("{CONFIG}[volumes.more]\nbackend = 'null'\nsize = '1MiB'"))?;
    let file = file.display().to_string();
    let told = there.asks(&["config", "check", &file])?.success()?;
    ensure!(told.contains("volume more is new"), "{told}");
    there.write("next.toml", "[volumes.more]\nsize = 1")?;
    let wrong = there.asks(&["config", "check", &file])?;
    ensure!(
        code(&wrong) == Some(1) && wrong.stderr.contains("lunet.toml:"),
        "{}",
        wrong.describe()
    );
    there.server.stop()?;
    Ok(())
}

/// Answers each client with these bytes, as long as the test runs. Gives its address and counts its clients.
fn answers(bytes: &'static [u8]) -> Result<(String, std::sync::mpsc::Receiver<String>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let (heard, all) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut held: Vec<TcpStream> = Vec::new();
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 4096];
            let n = stream.read(&mut head).unwrap_or(0);
            if heard.send(String::from_utf8_lossy(&head[..n]).into_owned()).is_err() {
                return;
            }
            match bytes {
                // It says nothing, and goes on listening.
                [] => held.push(stream),
                bytes => drop(stream.write_all(bytes)),
            }
        }
    });
    Ok((address, all))
}

/// What is no lunet is named as such; a redirect is not followed, and the token goes nowhere else.
#[test]
fn what_is_no_lunet_gets_no_further() -> Result<()> {
    let dir = scratch("lunet-strange-")?;
    let token = dir.path().join("token");
    fs::write(&token, "lunet_1_0123\n")?;
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600))?;
    let ask = |server: &str, more: &[&str]| -> Result<Finished> {
        let mut command = Command::new(lunet_binary()?);
        command.args(["volume", "list", "--server", server]).args(more);
        run(command.arg("--token-file").arg(&token), PATIENCE)
    };
    for (bytes, words) in [
        (
            &b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"[..],
            "what answers is no lunet, or one of another version (HTTP status 200, type \"text/html\")",
        ),
        (
            b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
            "what answers is no lunet",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
            "what answers is no lunet",
        ),
        (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", "what answers is no lunet"),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", "too many clients"),
        (b"HTTP/1.1 200 OK\r\n", "lunet has ended before it answered"),
    ] {
        let (address, _heard) = answers(bytes)?;
        refused(&ask(&format!("http://{address}"), &[])?, words)?;
    }
    let (elsewhere, visitors) = answers(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
    let redirect = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://{elsewhere}/\r\nContent-Length: 0\r\n\r\n"
    );
    let (address, heard) = answers(redirect.leak().as_bytes())?;
    refused(
        &ask(&format!("http://{address}"), &[])?,
        &format!("sends its clients to http://{elsewhere}/"),
    )?;
    ensure!(heard.recv_timeout(SHORT)?.contains("Bearer lunet_1_0123"), "it was asked");
    ensure!(visitors.try_recv().is_err(), "the redirect was followed");

    // Whoever says nothing is not waited for, be it in HTTP or before TLS.
    let ((plain, _one), (secure, hello)) = (answers(b"")?, answers(b"")?);
    let (plain, secure) = (format!("http://{plain}"), format!("https://{secure}"));
    let hash = "0".repeat(64);
    thread::scope(|scope| -> Result<()> {
        let one = scope.spawn(|| ask(&plain, &[]));
        let other = scope.spawn(|| ask(&secure, &["--server-fingerprint", &hash]));
        for finished in [one.join(), other.join()] {
            let finished = finished.map_err(|_| anyhow::anyhow!("a thread has panicked"))??;
            refused(&finished, "lunet does not answer in time")?;
        }
        Ok(())
    })?;
    ensure!(!hello.recv_timeout(SHORT)?.contains("lunet_1_0123"), "the token came before TLS");
    Ok(())
}

/// The commands that work on the server's machine run there, as jobs.
#[test]
fn jobs_run_on_the_machine_of_the_server() -> Result<()> {
    // Where the server's own environment names a lunet, its jobs do not go there.
    let there = Remote::of(Serve::config(CONFIG).environment("LUNET_SERVER", "https://192.0.2.1"))?;
    let local = run(Command::new(lunet_binary()?).args(["doctor", "--json"]), PATIENCE)?;
    let remote = there.asks(&["doctor", "--json"])?;
    ensure!([Some(0), Some(1)].contains(&code(&remote)), "{}", remote.describe());
    let checks = |text: &str| serde_json::from_str::<Value>(text).map(|all| all["checks"].clone());
    ensure!(checks(&local.stdout)? == checks(&remote.stdout)?, "{}", remote.describe());
    let text = there.asks(&["doctor", "--verbose"])?;
    ensure!(serde_json::from_str::<Value>(&text.stdout).is_err(), "{}", text.describe());
    ensure!(!text.stdout.is_empty() && code(&text) == code(&remote), "{}", text.describe());

    // Its facts are the other end of a captured machine.
    let mut both = Command::new(lunet_binary()?);
    both.args(["doctor", "--json", "--peer", &there.url]).arg("--token-file").arg(&there.token);
    both.args(["--server-fingerprint", &there.fingerprint, "--root"]);
    both.arg(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/host/tests/machines/truenas-24.10"),
    );
    let both = run(&mut both, PATIENCE)?;
    ensure!([Some(0), Some(1)].contains(&code(&both)), "{}", both.describe());
    ensure!(serde_json::from_str::<Value>(&both.stdout)?["report"]["checks"].as_u64() > Some(20));

    let plan = there.asks(&["tune", "plan", "--profile", "latency", "--json"])?;
    ensure!([Some(0), Some(2)].contains(&code(&plan)), "{}", plan.describe());
    ensure!(serde_json::from_str::<Value>(&plan.stdout)?["profile"] == "latency");
    let words = ["tune", "plan", "--only", "no.rule"];
    let wrong = there.asks(&words)?;
    let local = run(Command::new(lunet_binary()?).args(words), PATIENCE)?;
    ensure!(wrong.stderr == local.stderr && code(&wrong) == code(&local), "{}", wrong.describe());
    let reader = there.write("reader", &there.page.token("reader", "viewer", 3600)?)?;
    refused(&there.as_who(&reader, &["tune", "rollback"])?, "needs the role administrator")?;

    let lun = there.server.url().to_owned();
    let only = ["--read-only", "--rounds", "1", "--runtime", "100ms", "--only", "depth 1"];
    let bench = there.asks(&[&["bench", &lun, "--json"][..], &only].concat())?;
    ensure!([Some(0), Some(1)].contains(&code(&bench)), "{}", bench.describe());
    ensure!(serde_json::from_str::<Value>(&bench.stdout)?["targets"].is_array());
    ensure!(bench.stderr.contains(" %: "), "no progress: {}", bench.describe());
    there.server.stop()?;
    Ok(())
}

/// Ctrl-C cancels the job, and the command says so.
#[test]
fn an_interrupted_job_is_cancelled_there() -> Result<()> {
    let there = Remote::start()?;
    let lun = there.server.url().to_owned();
    let words = ["bench", &lun, "--read-only", "--rounds", "1", "--runtime", "1h"];
    let mut bench = Running::spawn(&mut there.command(&words)?)?;
    let begun =
        bench.stderr.find(Instant::now() + PATIENCE, |text| text.contains(" %: ").then_some(()));
    ensure!(begun.is_some(), "{}", bench.stderr.text());
    bench.signal(Signal::INT)?;
    let status = bench.wait(PATIENCE)?.context("it goes on")?;
    ensure!(status.code() == Some(130), "{status}: {}", bench.stderr.whole_text());
    ensure!(bench.stderr.whole_text().contains("job 1 is cancelled"));
    ensure!(there.page.get("/api/v1/jobs/1")?["state"] == json!("cancelled"));
    there.server.stop()?;
    Ok(())
}

#[test]
fn a_server_is_followed_and_watched() -> Result<()> {
    let there = Remote::start()?;
    let follow = ["stats", "--follow", "--interval", "200ms", "--json"];
    let mut follow = Running::spawn(&mut there.command(&follow)?)?;
    let deadline = Instant::now() + SHORT;
    let whole = |text: &str| text.contains('\n').then(|| text.lines().next().map(str::to_owned));
    let line = follow.stdout.find(deadline, whole).flatten().context("no line")?;
    let line: Value = serde_json::from_str(&line)?;
    ensure!(line["rates"]["volumes"][0]["name"] == "old", "{line:#}");

    let seen = there.tokens.path().join("seen");
    let words = there.words().join("' '");
    let line = format!(
        "(until [ -e '{}' ]; do sleep 0.1; done; printf q) | script -qec \"stty cols 120 rows 30; '{}' '{words}' top\" /dev/null",
        seen.display(),
        lunet_binary()?.display(),
    );
    let mut command = Command::new("timeout");
    let mut top = Running::spawn(command.args(["60", "bash", "-c", &line]).env("TERM", "xterm"))?;
    let drawn = top.stdout.find(deadline, |text| text.contains("old").then_some(()));
    ensure!(drawn.is_some(), "{}{}", top.stdout.text(), top.stderr.text());
    fs::write(&seen, "")?;
    let status = top.wait(SHORT)?.context("it goes on after q")?;
    ensure!(status.success(), "{status}: {}", top.stdout.text());

    there.server.stop()?;
    let status = follow.wait(SHORT)?.context("it goes on without a server")?;
    let why = follow.stderr.whole_text();
    ensure!(status.code() == Some(1) && why.lines().count() == 1, "{status}: {why}");
    Ok(())
}
