//! The built program: exit codes, sentences, and a server's life as far as no initiator is needed.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn lunet(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lunet"));
    command.args(arguments).env("RUST_BACKTRACE", "1");
    command.env_remove("LUNET_DATA").env_remove("LUNET_SERVER");
    // The default port of the REST interface is one for all servers of a machine.
    if arguments.first() == Some(&"serve") && !arguments.contains(&"--listen") {
        command.args(["--listen-control", "none"]);
    }
    command
}

fn run(arguments: &[&str]) -> Output {
    lunet(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Asserts exit code 1, nothing on standard output, and one plain sentence on standard error.
#[track_caller]
fn refused(output: &Output, words: &str) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert_eq!(text(&output.stdout), "");
    let lines: Vec<&str> = error.lines().collect();
    let [line] = lines[..] else { panic!("one line expected:\n{error}") };
    assert!(line.starts_with("lunet: ") && line.contains(words), "{line}");
    assert!(!line.contains("os error"), "{line}");
}

/// A running server; killed if the test fails.
struct Server {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    first: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let mut command = lunet(&["serve"]);
        command.args(arguments);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        Self { child, lines, first }
    }

    fn demo(data: &Path) -> Self {
        Self::start(&["--data", path(data), "--listen", "127.0.0.1:0", "--size", "1MiB"])
    }

    /// `ADDRESS:PORT` from the ready line.
    fn portal(&self) -> &str {
        let (_, url) = self.first.split_once("iscsi://").expect(&self.first);
        url.split('/').next().unwrap()
    }

    /// Sends the signal and waits: exit code, standard error.
    fn end(mut self, signal: Signal) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let code = self.child.wait().unwrap().code();
        let mut error = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        (code, error)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_service_has_the_directories_of_its_manager() {
    let home = TempDir::new().unwrap();
    let place = |name: &str| home.path().join(name);
    for name in ["etc", "run"] {
        fs::create_dir(place(name)).unwrap();
    }
    let serve = || {
        let mut serve = lunet(&["serve", "--service"]);
        serve.env("CONFIGURATION_DIRECTORY", place("etc"));
        serve.env("STATE_DIRECTORY", place("var")).env("RUNTIME_DIRECTORY", place("run"));
        serve
    };
    // Nothing else is served in the place of a configuration that is not there.
    refused(&serve().output().unwrap(), path(&place("etc/lunet.toml")));
    let config = "[[portal]]\naddress = '127.0.0.1:0'\n\
                  [[target]]\nname = 'iqn.2026-11.l:x'\n";
    fs::write(place("etc/lunet.toml"), config).unwrap();
    let server = Server::spawn(serve());
    let socket = place("run/lunet.sock");
    let shown = lunet(&["target", "list", "--socket", path(&socket)]).output().unwrap();
    assert!(text(&shown.stdout).contains("iqn.2026-11.l:x"), "{}", text(&shown.stderr));
    assert!(place("var/identity").exists());
    drop(server);
}

#[test]
fn commands_find_the_running_server_and_say_where_they_looked() {
    let [home, elsewhere] = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let data = home.path().join("lunet-data");
    let mut serve = lunet(&["serve", "--listen", "127.0.0.1:0", "--size", "1MiB"]);
    serve.current_dir(home.path());
    let server = Server::spawn(serve);
    let ask = |place: &TempDir, variable: Option<&Path>| {
        let mut command = lunet(&["volume", "list"]);
        command.current_dir(place.path());
        variable.map(|data| command.env("LUNET_DATA", data));
        command.output().unwrap()
    };
    for found in [ask(&home, None), ask(&elsewhere, Some(&data))] {
        assert_eq!(found.status.code(), Some(0), "{}", text(&found.stderr));
        assert!(text(&found.stdout).contains("demo"), "{}", text(&found.stdout));
    }
    // On a machine with a lunet of its own, that one would answer.
    if !Path::new("/run/lunet").exists() && !Path::new("/var/lib/lunet/lunet.sock").exists() {
        let lost = ask(&elsewhere, None);
        refused(
            &lost,
            "no lunet is running: looked at ./lunet-data/lunet.sock, /run/lunet/lunet.sock",
        );
        refused(&lost, "--data, --socket or the variable LUNET_DATA");
    }
    // What was named is asked, and nobody else.
    refused(&ask(&home, Some(elsewhere.path())), path(elsewhere.path()));
    // The server looks there too.
    let mut second = lunet(&["serve", "--listen", "127.0.0.1:0"]);
    let second = second.current_dir(elsewhere.path()).env("LUNET_DATA", &data).output().unwrap();
    refused(&second, "is in use by another lunet");
    assert_eq!(server.end(Signal::TERM).0, Some(0));
}

#[test]
fn an_address_in_use_is_told_with_who_has_it_and_the_next_step() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let dir = TempDir::new().unwrap();
    let output =
        run(&["serve", "--data", path(dir.path()), "--listen", &address, "--size", "1MiB"]);
    refused(&output, &format!("cannot listen on {address}: "));
    refused(&output, &format!("(process {}) listens there already", std::process::id()));
    let data = path(dir.path());
    refused(&output, &format!("`lunet serve --data {data} --size 1MiB --listen 127.0.0.1:"));
}

#[test]
fn version_and_help() {
    let output = run(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout), format!("lunet {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(run(&["--help"]).status.code(), Some(0));
}

#[test]
fn a_wrong_command_line_is_exit_code_2() {
    for arguments in [
        &[][..],
        &["frobnicate"],
        &["serve", "--size", "8XB"],
        &["serve", "--size", "1000"],
        &["serve", "--listen", "localhost"],
        &["serve", "--size", "8GiB", "--config", "x"],
        &["sessions", "--data", "x", "--socket", "y"],
        &["config", "check", "x", "y"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn config_check_names_every_mistake_with_line_and_key() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("lunet.toml");
    let file = path(&file);
    fs::write(file, "[server]\nshards = 0\n[volumes.fast]\nbackend = 'file'\nblock-size = 1\n")
        .unwrap();
    let output = run(&["config", "check", file]);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 3, "{error}");
    assert!(lines[0].starts_with(&format!("{file}:1: target: is missing")), "{error}");
    assert!(lines[1].starts_with(&format!("{file}:2: server.shards: must be")), "{error}");
    let last = format!("{file}:5: volumes.fast.block-size: must be 512 or 4096 (bytes)");
    assert_eq!(lines[2], last);

    let serve = run(&["serve", "--config", file]);
    assert_eq!(serve.status.code(), Some(1));
    assert!(text(&serve.stderr).lines().all(|line| line.starts_with("lunet: ")));

    fs::write(file, "[[target]]\nname = 'iqn.2026-11.l:x'\n").unwrap();
    let output = run(&["config", "check", file]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("1 target"), "{}", text(&output.stdout));

    refused(&run(&["config", "check", "/nowhere/x.toml"]), "cannot read the configuration");
}

/// The file of an earlier version is brought to the present one, with a copy; that of a later one is refused before anything
/// is opened.
#[test]
fn configurations_of_other_versions_are_migrated_or_refused() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("lunet.toml");
    let target = "[[target]]\nname = 'iqn.2026-11.l:x' # mine\n";
    let before = format!("version = 1\n[server]\ncoalesce = '20us'\n{target}");
    fs::write(&file, &before).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let migrate = |more: &[&str]| {
        let output = run(&[&["config", "migrate", path(&file)], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let shown = migrate(&["--dry-run"]);
    assert!(shown.contains("[server] coalesce: taken out"), "{shown}");
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "a dry run leaves nothing");

    let copy = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    assert!(migrate(&[]).contains("as it was: "));
    assert_eq!(copy("lunet.toml"), format!("version = 2\n[server]\n{target}"));
    assert_eq!(copy("lunet.toml.before"), before);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(migrate(&[]).contains("nothing to do"));
    // Another one does not take the place of the first copy.
    let other = format!("[server]\ncoalesce = '5us'\n{target}");
    fs::write(&file, &other).unwrap();
    migrate(&[]);
    assert_eq!((copy("lunet.toml.before"), copy("lunet.toml.before-2")), (before, other));

    fs::write(&file, format!("version = 3\nunknown = 1\n{target}")).unwrap();
    let output = run(&["config", "check", path(&file)]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error.contains(":1: version: is 3, and lunet ") && error.lines().count() == 1,
        "{error}"
    );
    refused(&run(&["config", "migrate", path(&file)]), "cannot migrate");
}

/// A data directory that a later lunet has made its own is left as it is.
#[test]
fn a_data_directory_of_a_later_form_is_not_served() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(data.join("form"), "2\nlunet 9.0.0\n").unwrap();
    let output = run(&[
        "serve",
        "--data",
        path(&data),
        "--listen",
        "127.0.0.1:0",
        "--listen-control",
        "none",
    ]);
    refused(&output, "has form 2, made by lunet 9.0.0");
    let left: Vec<_> =
        fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == "form" || name == "lunet.lock"), "{left:?}");
}

/// What ends a start is told beforehand, as far as it can be without opening storage.
/// Whatever is named: it is told what it is, and nobody waits for it.
#[test]
fn a_configuration_is_a_regular_file_of_some_size() {
    let dir = TempDir::new().unwrap();
    let [pipe, big] = ["pipe", "big"].map(|name| dir.path().join(name));
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, rustix::fs::Mode::RUSR, 0).unwrap();
    fs::File::create(&big).unwrap().set_len(10 << 30).unwrap();
    for (file, words) in [
        (pipe.as_path(), "it is a named pipe and not a regular file"),
        (Path::new("/dev/zero"), "it is a device and not a regular file"),
        (dir.path(), "Is a directory"),
        (big.as_path(), "larger than 1 MiB"),
    ] {
        for command in [["config", "check"], ["config", "migrate"], ["serve", "--config"]] {
            let mut lunet = lunet(&command[..1]);
            let output = lunet.arg(command[1]).arg(file).current_dir(dir.path()).output().unwrap();
            let told = text(&output.stderr);
            assert!(!output.status.success() && told.contains(words), "{command:?}: {told}");
        }
    }
}

#[test]
fn config_check_refuses_what_serve_refuses() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let file = at("lunet.toml");
    fs::create_dir(at("loose")).unwrap();
    fs::write(at("four"), [0; 4096]).unwrap();
    let user = "[[target.user]]\nname = 'u'\nsecret-file = 'none'\n";
    let volume = |keys: &str| format!("[volumes.a]\nbackend = 'file'\n{keys}\n");
    let cases = [
        (0o600, user.to_string(), "none"),
        (0o666, String::new(), "other users may write the configuration"),
        (0o600, format!("[server]\ndata = '{}'\n", at("loose")), "may write the data directory"),
        (0o600, volume(&format!("path = '{}'", at("loose"))), "it is a directory"),
        (0o600, volume(&format!("path = '{}'\nsize = 512", at("four"))), "the file holds 4 KiB"),
        (0o600, volume(&format!("path = '{}'", at("no/file"))), "does not exist"),
        (0o600, volume(&format!("path = '{}'", at("nothing"))), "no such file"),
        (
            0o600,
            format!("[volumes.a]\nbackend = 'block'\npath = '{}'\n", at("x")),
            "no such device",
        ),
        (
            0o600,
            format!("[volumes.a]\nbackend = 'block'\npath = '{}'\n", at("four")),
            "regular file",
        ),
    ];
    let mode = |path: &str, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&at("loose"), 0o777);
    for (permissions, keys, words) in cases {
        let target = "[[portal]]\naddress = '127.0.0.1:0'\n[[target]]\nname = 'iqn.2026-11.l:x'\n";
        fs::write(&file, format!("{target}{keys}")).unwrap();
        mode(&file, permissions);
        let serve = ["serve", "--config", &file, "--data", &at("data")];
        let own_data = keys.starts_with("[server]");
        let serve = run(if own_data { &serve[..3] } else { &serve[..] });
        let check = run(&["config", "check", &file]);
        for output in [&serve, &check] {
            let error = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{words}: {error}");
            assert!(error.contains(words), "{words}: {error}");
        }
    }
    mode(&file, 0o600);
    let keys = volume(&format!("path = '{}'\nsize = 4096", at("four")));
    fs::write(&file, format!("{keys}[[target]]\nname = 'iqn.2026-11.l:x'\nluns = ['a']\n"))
        .unwrap();
    assert_eq!(run(&["config", "check", &file]).status.code(), Some(0));
}

#[test]
fn a_server_is_asked_and_stopped() {
    for signal in [Signal::TERM, Signal::INT] {
        let dir = TempDir::new().unwrap();
        let data = dir.path().join("data");
        let mut server = Server::demo(&data);
        let portal = server.portal().to_owned();
        assert!(!portal.ends_with(":0"), "{}", server.first);
        let url = format!("iscsi://{portal}/iqn.2026-11.local.lunet:demo/0");
        assert!(server.first.trim_end().ends_with(&url), "{}", server.first);
        let mode = |file: &str| fs::metadata(data.join(file)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode("lunet.sock"), 0o600);
        assert_eq!(mode("."), 0o700);
        assert_eq!(fs::metadata(data.join("demo.img")).unwrap().len(), 1 << 20);

        let stats = run(&["stats", "--data", path(&data), "--json"]);
        assert_eq!(stats.status.code(), Some(0), "{}", text(&stats.stderr));
        let stats: serde_json::Value = serde_json::from_slice(&stats.stdout).unwrap();
        assert_eq!(stats["volumes"][0]["name"], "demo");
        assert_eq!(stats["volumes"][0]["size_bytes"], 1 << 20);
        let stats = run(&["stats", "--data", path(&data)]);
        assert!(text(&stats.stdout).contains("volume demo, 1 MiB"), "{}", text(&stats.stdout));
        let socket = data.join("lunet.sock");
        let sessions = run(&["sessions", "--socket", path(&socket)]);
        assert_eq!(text(&sessions.stdout), "no sessions\n");

        let mut rest = String::new();
        kill_process(Pid::from_child(&server.child), signal).unwrap();
        server.lines.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("iscsiadm") && rest.contains("esxcli"), "{rest}");
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
        assert!(!socket.exists());
        refused(&run(&["sessions", "--data", path(&data)]), "no lunet is running");
    }
}

#[test]
fn a_restart_keeps_the_volume_and_who_it_is() {
    let dir = TempDir::new().unwrap();
    assert_eq!(Server::demo(dir.path()).end(Signal::TERM).0, Some(0));
    let identity = fs::read(dir.path().join("identity")).unwrap();
    // Without --size: the volume has one.
    let server = Server::start(&["--data", path(dir.path()), "--listen", "127.0.0.1:0"]);
    assert!(server.first.contains("iscsi://"), "{}", server.first);
    assert_eq!(server.end(Signal::TERM).0, Some(0));
    assert_eq!(fs::metadata(dir.path().join("demo.img")).unwrap().len(), 1 << 20);
    assert_eq!(fs::read(dir.path().join("identity")).unwrap(), identity);
}

#[test]
fn a_port_in_use_is_a_sentence() {
    let dir = TempDir::new().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output =
        run(&["serve", "--data", path(dir.path()), "--listen", &address, "--size", "1MiB"]);
    refused(&output, &format!("cannot listen on {address}"));
    assert!(!dir.path().join("lunet.sock").exists());
}

#[test]
fn a_volume_is_open_in_one_lunet_at_a_time() {
    let dir = TempDir::new().unwrap();
    let first = Server::demo(dir.path());
    let second = ["serve", "--data", path(dir.path()), "--listen", "127.0.0.1:0"];
    let refusal = run(&second);
    refused(&refusal, &format!("is in use by another lunet, process {}: ", first.child.id()));
    refused(&refusal, "give this one another directory with --data");
    assert!(run(&["stats", "--data", path(dir.path())]).status.success(), "the first goes on");
    assert_eq!(first.end(Signal::TERM).0, Some(0));
}

#[test]
fn what_cannot_be_opened_is_a_sentence() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("lunet.toml");
    let serve = |volume: &str| {
        let target = "[[target]]\nname = 'iqn.2026-11.l:x'\nluns = ['a']\n";
        fs::write(&file, format!("{target}[volumes.a]\n{volume}")).unwrap();
        run(&[
            "serve",
            "--config",
            path(&file),
            "--data",
            path(dir.path()),
            "--listen",
            "127.0.0.1:0",
            "--create",
        ])
    };
    refused(&serve("backend = 'file'"), "a.img: no such file");
    refused(&serve("backend = 'block'\npath = '/dev/nowhere'"), "no such device");
    refused(&serve("backend = 'file'\nsize = '1PiB'\nprovisioning = 'full'"), "volume a: ");
    fs::write(dir.path().join("identity"), "damaged").unwrap();
    refused(&serve("backend = 'null'\nsize = 512"), "not an identity");
    let under_a_file = path(&file).to_owned() + "/data";
    let output = run(&["serve", "--data", &under_a_file]);
    refused(&output, "cannot make the data directory");
    refused(&output, "something else has that name: move it away, or name another place");
}

#[test]
fn an_address_that_no_interface_has_is_told_with_the_next_step() {
    let dir = TempDir::new().unwrap();
    let serve = |more: &[&str]| run(&[&["serve", "--data", path(dir.path())], more].concat());
    // TEST-NET-1, which nobody has (RFC 5737).
    let output = serve(&["--listen", "192.0.2.77:3260", "--size", "1MiB"]);
    refused(&output, "cannot listen on 192.0.2.77:3260: ");
    refused(&output, "`ip -br address`");
    refused(&output, "`lunet serve --listen`");
    let file = dir.path().join("x.toml");
    let text = "[[portal]]\naddress = '192.0.2.77'\n[volumes.a]\nbackend = 'null'\nsize = 512\n\
                [[target]]\nname = 'iqn.2026-11.l:x'\nluns = ['a']\n";
    fs::write(&file, text).unwrap();
    let output = serve(&["--config", path(&file)]);
    refused(&output, &format!("name another address in [[portal]] in {}", path(&file)));
}

#[test]
fn the_configuration_is_shown_as_typed_json() {
    let dir = TempDir::new().unwrap();
    let server = Server::demo(dir.path());
    let shown = |server_data: &Path| -> serde_json::Value {
        let output = run(&["config", "show", "--json", "--data", path(server_data)]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let demo = shown(dir.path());
    assert_eq!(demo["embedded"], true);
    assert_eq!(demo["file"], path(&dir.path().join("lunet.toml")));
    assert_eq!(demo["data"], path(dir.path()));
    assert_eq!(demo["socket"], path(&dir.path().join("lunet.sock")));
    assert_eq!(demo["config"]["volumes"]["demo"]["size"], "1MiB");
    assert_eq!(server.end(Signal::TERM).0, Some(0));
    let file = dir.path().join("own.toml");
    let own = "# mine\n[[portal]]\naddress = '127.0.0.1:0'\n[volumes.a]\nbackend = 'null'\nsize = 512\n\
               [[target]]\nname = 'iqn.2026-11.l:x'\nluns = ['a']\n\
               [[target.user]]\nname = 'u'\nsecret = 'a secret of 16 b'\n";
    fs::write(&file, own).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let server = Server::start(&["--config", path(&file), "--data", path(dir.path())]);
    let shown = shown(dir.path());
    assert_eq!(
        (&shown["embedded"], &shown["config"]["volumes"]["a"]["size"]),
        (&false.into(), &512.into())
    );
    assert_eq!(shown["config"]["target"][0]["luns"][0], "a");
    assert!(shown["text"].as_str().unwrap().starts_with("# mine\n"));
    assert!(!shown.to_string().contains("secret of 16"), "{shown}");
    // For people it is the file, as it could be served.
    let plain = run(&["config", "show", "--data", path(dir.path())]);
    assert_eq!(text(&plain.stdout), shown["text"].as_str().unwrap());
    assert_eq!(server.end(Signal::TERM).0, Some(0));
}

#[test]
fn a_configuration_is_served_on_all_its_portals() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("lunet.toml");
    fs::write(
        &file,
        "[server]\ndriver = 'epoll'\nshards = 1\nlog-level = 'error'\n\
         [[portal]]\naddress = '127.0.0.1:0'\n[[portal]]\naddress = '127.0.0.2:0'\ntag = 2\n\
         [volumes.a]\nbackend = 'null'\nsize = '1TiB'\n[volumes.b]\nbackend = 'memory'\nsize = '1MiB'\n\
         [[target]]\nname = 'iqn.2026-11.l:x'\nluns = { 5 = 'a' }\nportals = ['127.0.0.2:0']\n\
         [[target]]\nname = 'iqn.2026-11.l:y'\nluns = ['b']\n",
    )
    .unwrap();
    let data = path(dir.path());
    let mut server = Server::start(&["--config", path(&file), "--data", data]);
    assert!(server.first.contains("iscsi://127.0.0.2:"), "{}", server.first);
    assert!(server.first.trim_end().ends_with("/iqn.2026-11.l:x/5"), "{}", server.first);
    let mut second = String::new();
    server.lines.read_line(&mut second).unwrap();
    assert!(second.trim_end().ends_with("/iqn.2026-11.l:y/0"), "{second}");
    let stats = run(&["stats", "--data", data, "--json"]);
    let stats: serde_json::Value = serde_json::from_slice(&stats.stdout).unwrap();
    assert_eq!((&stats["shards"], &stats["driver"]), (&1.into(), &"epoll".into()));
    assert_eq!(server.end(Signal::TERM).0, Some(0));
}

#[test]
fn iser_needs_a_device_and_tcp_does_not() {
    let dir = TempDir::new().unwrap();
    let (file, data) = (dir.path().join("lunet.toml"), path(dir.path()));
    let configure = |portal: &str| {
        let volume = "[volumes.a]\nbackend = 'memory'\nsize = '1MiB'\n";
        let target = "[[target]]\nname = 'iqn.2026-11.local.lunet:demo'\nluns = ['a']\n";
        fs::write(&file, format!("[[portal]]\n{portal}\n{volume}{target}")).unwrap();
    };
    // No RDMA device carries such an address, whatever is installed on this machine.
    let why = "no RDMA device carries the address 127.0.0.1";
    configure("address = '127.0.0.1:3260'\ntransport = ['iser']");
    let output = run(&["serve", "--config", path(&file), "--data", data]);
    refused(&output, &format!("cannot serve iSER at 127.0.0.1:3260: {why}"));
    for (transport, said) in [("['tcp', 'iser']", true), ("['tcp']", false)] {
        configure(&format!("address = '127.0.0.1:0'\ntransport = {transport}"));
        let server = Server::start(&["--config", path(&file), "--data", data]);
        let portal = server.portal().to_owned();
        let session = log_in(&portal);
        let sessions = text(&run(&["sessions", "--data", data]).stdout);
        assert!(sessions.contains(" over tcp, shard "), "{sessions}");
        drop(session);
        let (code, error) = server.end(Signal::TERM);
        assert_eq!(code, Some(0), "{error}");
        let warning = format!("WARN iSER: not served at {portal}: {why}");
        assert_eq!(error.contains(&warning), said, "{error}");
    }
}

/// docs/cli.md has every option that the program has, and the program every option of the page.
#[test]
fn the_page_and_the_program_have_the_same_options() {
    let page = include_str!("../../../docs/cli.md");
    let options = |text: &str| -> std::collections::BTreeSet<String> {
        let words = text.split(|c: char| !(c.is_ascii_lowercase() || c == '-'));
        let long = |word: &&str| word.starts_with("--") && !word.ends_with('-');
        words.filter(long).map(String::from).collect()
    };
    let mut real = options("--version");
    let groups = [
        (
            "",
            &[
                "serve", "sessions", "stats", "top", "verdict", "doctor", "bench", "version",
                "support", "attach", "detach",
            ][..],
        ),
        ("bench", &["compare", "net", "scale", "verify"]),
        ("config", &["check", "apply", "show"]),
        ("group", &["list", "gateways", "create", "config", "move", "take-over"]),
        ("sessions", &["end"]),
        ("portal", &["list", "add", "remove"]),
        ("target", &["allow", "open", "deny"]),
        ("target user", &["list", "add", "remove"]),
        ("volume", &["list", "create", "resize", "delete"]),
        ("volume", &["snapshot", "snapshots", "clone", "rollback"]),
        ("target", &["list", "create", "delete", "map", "unmap"]),
        ("tune", &["facts", "capture", "plan", "explain", "script"]),
        ("tune", &["apply", "verify", "reapply", "rollback", "prove"]),
    ];
    for (group, names) in groups {
        for name in names {
            let command: Vec<&str> = group.split_whitespace().chain([*name]).collect();
            let help = run(&[&command[..], &["--help"]].concat());
            assert_eq!(help.status.code(), Some(0), "{command:?}");
            real.extend(options(&text(&help.stdout)));
            assert!(page.contains(&format!("lunet {}", command.join(" "))), "{command:?}");
        }
    }
    assert_eq!(options(page), real);
}

/// Logs in to the demo's target: a login request straight to the operational stage (RFC 7143
/// 11.12), answered by a login response with status 0000h.
fn log_in(portal: &str) -> TcpStream {
    let mut text = b"InitiatorName=iqn.2026-11.local.lunet:test\0SessionType=Normal\0\
                     TargetName=iqn.2026-11.local.lunet:demo\0"
        .to_vec();
    let mut request = [0; 48];
    request[..2].copy_from_slice(&[0x43, 0x87]);
    request[7] = text.len() as u8;
    request[8..14].copy_from_slice(&[0x80, 0, 0, 0, 0, 1]);
    text.resize(text.len().next_multiple_of(4), 0);
    let mut stream = TcpStream::connect(portal).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(&[&request[..], &text].concat()).unwrap();
    let response = pdu(&mut stream);
    assert_eq!((response[0], &response[36..38]), (0x23, &[0, 0][..]), "{response:x?}");
    stream
}

/// The header of the next PDU; its data is skipped.
fn pdu(stream: &mut TcpStream) -> [u8; 48] {
    let mut header = [0; 48];
    stream.read_exact(&mut header).unwrap();
    let data = u32::from_be_bytes([0, header[5], header[6], header[7]]).next_multiple_of(4);
    std::io::copy(&mut stream.take(data.into()), &mut std::io::sink()).unwrap();
    header
}

#[test]
fn a_second_signal_ends_the_server_at_once() {
    let dir = TempDir::new().unwrap();
    let server = Server::demo(dir.path());
    let mut session = log_in(server.portal());
    let sessions = text(&run(&["sessions", "--data", path(dir.path())]).stdout);
    assert!(sessions.starts_with("1 session\n"), "{sessions}");
    assert!(sessions.contains("iqn.2026-11.local.lunet:test -> iqn.2026-11.local.lunet:demo"));
    kill_process(Pid::from_child(&server.child), Signal::TERM).unwrap();
    // The server asks for a logout (an asynchronous message), which this initiator does not do.
    assert_eq!(pdu(&mut session)[0], 0x32);
    let (code, error) = server.end(Signal::TERM);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("volumes may not be flushed"), "{error}");
}

#[test]
fn attach_says_what_is_wrong_and_prints_scripts_for_others() {
    refused(&run(&["attach", "nfs://192.0.2.1/x", "--dry-run"]), "is no transport");
    let secret = run(&["attach", "iscsi://joe%secret@192.0.2.1/iqn.2026-11.x:y/0", "--dry-run"]);
    refused(&secret, "everybody on this machine can read a secret");
    assert_eq!(run(&["attach"]).status.code(), Some(2));
    assert_eq!(run(&["attach", "nas", "--mkfs", "ext4"]).status.code(), Some(2));
    let url = "iscsi://192.0.2.1/iqn.2026-11.x:y/3";
    let script = run(&["attach", url, "--for", "libvirt"]);
    assert_eq!(script.status.code(), Some(0));
    assert!(text(&script.stdout).contains("name='iqn.2026-11.x:y/3'"));
    refused(&run(&["attach", "nvme-tcp://192.0.2.1", "--for", "windows"]), "there is no script");
}
