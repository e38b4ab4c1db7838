//! `lunet tune` and `lunet doctor` on captured machines: what they say, and their exit codes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn machine(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/host/tests/machines").join(name)
}

fn lunet(arguments: &[&str], root: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lunet-tools"));
    command.args(arguments).arg("--root").arg(root).output().expect("it runs")
}

/// What it printed, if it ended with this code and said nothing else.
fn told(arguments: &[&str], root: &Path, code: i32) -> String {
    let output = lunet(arguments, root);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
    assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("a text")
}

/// FreeBSD and TrueNAS CORE: the doctor and the plan as anywhere, and a sentence where only Linux is known.
#[test]
fn a_capture_of_freebsd_is_looked_at_and_planned_for() {
    let core = machine("truenas-core-13");
    let text = told(&["doctor"], &core, 0);
    assert!(text.starts_with("TrueNAS CORE 13.0-U6.1, FreeBSD 13.1-RELEASE-p9"), "{text}");
    assert!(told(&["tune", "facts"], &core, 0).contains("iqn.2005-10.org.freenas.ctl:esx"));
    let plan = told(&["tune", "plan"], &core, 2);
    for line in ["lunet does not change anything on FreeBSD", "  kern.ipc.maxsockbuf=16777216\n"] {
        assert!(plan.contains(line), "{plan}");
    }
    let rule = told(&["tune", "explain", "freebsd.maxsockbuf"], &machine("recipe"), 0);
    assert!(rule.contains("for another system"), "{rule}");
    let peer = machine("proxmox").display().to_string();
    for arguments in [&["doctor", "--ceilings"][..], &["doctor", "--peer", &peer]] {
        let output = lunet(arguments, &core);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("for Linux only; this is TrueNAS CORE 13.0-U6.1"), "{error}");
    }
}

#[test]
fn a_plan_says_by_its_exit_code_whether_there_is_something_to_do() {
    let recipe = machine("recipe");
    let text = told(&["tune", "plan", "--profile", "throughput"], &recipe, 2);
    assert!(text.contains("net.core.rmem_max: 212992 -> 16777216"), "{text}");
    told(&["tune", "plan"], &machine("vm-virtio"), 0);
    let nfs =
        told(&["tune", "plan", "--all", "--only", "rdma.nfs-server"], &machine("debian-nfs"), 0);
    assert!(nfs.contains("/etc/nfs.conf, line 7, says so"), "{nfs}");
    let only = told(&["tune", "plan", "--only", "zfs", "--except", "zfs.arc-max"], &recipe, 0);
    assert!(!only.contains("net.core"), "{only}");
    let json = told(&["tune", "plan", "--only", "zfs.arc-max", "--json"], &recipe, 2);
    let plan: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let item = &plan["items"][0];
    assert_eq!((&item["verdict"], &item["now"]), (&"change".into(), &"0".into()), "{json}");
}

#[test]
fn a_rule_tells_its_story() {
    let text = told(&["tune", "explain", "zfs.arc-max"], &machine("recipe"), 0);
    for part in ["Why\n", "Risk\n", "Source\n", "OpenZFS before 2.3.0", "154618822656"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

#[test]
fn a_captured_machine_can_be_captured_and_tells_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("machine.txt");
    let name = file.to_str().expect("a text");
    let wrote = told(&["tune", "capture", name], &machine("proxmox"), 0);
    assert!(wrote.starts_with("wrote "), "{wrote}");
    for arguments in [&["tune", "facts", "--json"][..], &["tune", "plan", "--all", "--json"]] {
        // There is nothing to do on it.
        assert_eq!(told(arguments, &file, 0), told(arguments, &machine("proxmox"), 0));
    }
    let again = lunet(&["tune", "capture", name], &machine("proxmox"));
    assert_eq!(again.status.code(), Some(1), "it overwrites nothing");
}

#[test]
fn the_doctor_says_by_its_exit_code_what_it_found() {
    assert!(told(&["doctor"], &machine("proxmox"), 0).contains("Nothing found."));
    let text = told(&["doctor"], &machine("recipe"), 1);
    assert!(text.contains("fix: "), "{text}");
    let json = told(&["doctor", "--json"], &machine("recipe"), 1);
    let report: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert!(report["findings"].as_array().is_some_and(|all| all.len() > 20), "{json}");
    let ceilings = told(&["doctor", "--ceilings"], &machine("recipe"), 0);
    assert!(ceilings.contains("One session is bound by: one session."), "{ceilings}");
}

/// Each example of docs/ceilings.md, on the machine that the page is about.
#[test]
fn the_what_ifs_of_the_page_have_answers() {
    let page = include_str!("../../../docs/ceilings.md");
    let examples =
        page.lines().filter(|line| line.starts_with("lunet doctor --ceilings --what-if"));
    let mut seen = 0;
    for line in examples {
        let words = line.split('#').next().unwrap_or_default().split_whitespace().skip(1);
        let words: Vec<&str> = words.map(|word| word.trim_matches('\'')).collect();
        let text = told(&words, &machine("recipe"), 0);
        for part in ["What if ", "ratio between", "Bound by: ", "Where the ranges come from"] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        seen += 1;
    }
    assert!(seen >= 8, "{seen} examples");
    let words = ["doctor", "--ceilings", "--what-if", "drives=12", "--json"];
    let json = told(&words, &machine("recipe"), 0);
    let answer: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(answer["comparisons"].as_array().map(Vec::len), Some(4), "{json}");
    assert!(answer["comparisons"][0]["machine"]["ratio_range"]["from"].is_number(), "{json}");
}

#[test]
fn a_change_that_is_none_names_its_place() {
    let output =
        lunet(&["doctor", "--ceilings", "--what-if", "pool=4xmiror(2)"], &machine("recipe"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("at character 8 `miror` is no kind of vdev; accepted is pool="),
        "{said}"
    );
    let alone = lunet(&["doctor", "--what-if", "depth=64"], &machine("recipe"));
    assert_eq!(alone.status.code(), Some(2), "it needs --ceilings");
}

#[test]
fn mistakes_get_one_sentence() {
    let recipe = machine("recipe");
    let stranger = machine("recipe/../../../Cargo.toml");
    for (arguments, root, code, words) in [
        (&["tune", "explain", "drive.schedule"][..], &recipe, 1, "did you mean `drive.scheduler`?"),
        (&["tune", "plan", "--only", "zfs.arcmax"], &recipe, 1, "did you mean `zfs.arc-max`?"),
        (&["tune", "facts"], &stranger, 1, "line 1: starts with none of"),
        (&["doctor"], &stranger, 2, "line 1: starts with none of"),
        (&["doctor", "--ceilings", "--what-if", "drives=9"], &recipe, 2, "8 or 12 would be"),
    ] {
        let output = lunet(arguments, root);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.starts_with("lunet: ") && said.contains(words), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// The tree of a machine with more lines behind it, which stand before those above them.
fn changed(folder: &Path, name: &str, lines: &str) -> PathBuf {
    let text = std::fs::read_to_string(machine(name).join("tree.txt")).expect("a tree");
    let file = folder.join(format!("{name}.txt"));
    std::fs::write(&file, format!("{text}\n{lines}")).expect("it can be written");
    file
}

#[test]
fn two_captures_tell_what_has_moved() {
    let folder = tempfile::tempdir().expect("a folder");
    let later = changed(
        folder.path(),
        "truenas-24.10",
        "$ date +%s\n| 1763640600\n/proc/uptime: 864600.12 13000000.00\n\
         /sys/class/net/enp65s0f0/statistics/rx_crc_errors: 5000\n",
    );
    let earlier = machine("truenas-24.10");
    let earlier = earlier.to_str().expect("a text");
    let text = told(&["doctor", "--since", earlier], &later, 1);
    assert!(text.contains("5000 damaged packets in 10 minutes (8.33 per second)"), "{text}");
    // Of the same look at both ends of the time nothing has moved, and there is no time either.
    let json = told(&["doctor", "--since", earlier, "--json"], &later, 1);
    let watched: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(watched["seconds"], 600);
    assert_eq!(watched["report"]["findings"][0]["check"], "watch-nic-damaged", "{json}");
    for (since, words) in
        [(earlier, "is not after the first one"), ("/none", "/none: No such file")]
    {
        let output = lunet(&["doctor", "--since", since], &machine("truenas-24.10"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with("lunet: ") && said.contains(words), "{said}");
    }
}

#[test]
fn looks_are_a_second_to_an_hour_apart() {
    for span in ["0s", "500ms", "2h", "60"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lunet-tools"));
        let output = command.args(["doctor", "--watch", span]).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{span}: {output:?}");
        assert!(output.stdout.is_empty(), "{span}: {output:?}");
    }
}

#[test]
fn both_ends_are_looked_at_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let proxmox = machine("proxmox");
    let healthy = machine("truenas-24.10");
    let healthy = healthy.to_str().expect("a text");
    let text = told(&["doctor", "--peer", healthy], &proxmox, 0);
    assert!(
        text.contains("initiator: Proxmox VE 8.3.0") && text.contains("Nothing found."),
        "{text}"
    );
    let half = changed(folder.path(), "truenas-24.10", "/sys/class/net/enp65s0f0/duplex: half\n");
    // From either end, and from facts as JSON.
    let facts = folder.path().join("facts.json");
    let json = told(&["tune", "facts", "--json"], &half, 0);
    std::fs::write(&facts, json).expect("it can be written");
    for peer in [&half, &facts] {
        let peer = peer.to_str().expect("a text");
        let text = told(&["doctor", "--peer", peer], &proxmox, 1);
        assert!(text.contains("RISK peer-duplex") && text.contains("1 finding."), "{text}");
    }
    let json = told(&["doctor", "--json", "--peer", proxmox.to_str().expect("a text")], &half, 1);
    let told: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(told["role"], "target", "{json}");
    assert_eq!(told["report"]["findings"][0]["check"], "peer-duplex", "{json}");
}

/// A program `ssh` that plays the other end: what it is given, and what becomes of what it says.
#[test]
fn the_other_end_is_asked_over_ssh() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let half =
        changed(folder.path(), "truenas-24.10", "/sys/class/net/enp65s0f0/duplex: half\u{1b}[2J\n");
    let given = folder.path().join("given");
    let ssh = folder.path().join("ssh");
    let script = format!(
        "#!/bin/sh\nprintf '%s\\n' \"$@\" > {given}\ncase \"$*\" in\n\
         *gone*) echo 'ssh: connect to host gone port 22: No route to host' >&2; exit 255;;\n\
         *bare*) exit 127;;\n*odd*) echo hello; exit 0;;\nesac\ncat {half}\n",
        given = given.display(),
        half = half.display()
    );
    std::fs::write(&ssh, script).expect("it can be written");
    std::fs::set_permissions(&ssh, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let path = std::env::var("PATH").unwrap_or_default();
    let ask = |host: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lunet-tools"));
        command.env("PATH", format!("{}:{path}", folder.path().display()));
        command.args(["doctor", "--peer", host, "--root"]).arg(machine("proxmox"));
        command.output().expect("it runs")
    };
    let output = ask("ssh:root@store");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    // It is a word that the doctor does not know, and nothing that steers a terminal.
    assert!(text.contains("runs in half[2J duplex") && !text.contains('\u{1b}'), "{text}");
    let given = std::fs::read_to_string(&given).expect("it was run");
    assert!(given.starts_with("-oBatchMode=yes\n"), "{given}");
    assert!(given.ends_with("--\nroot@store\nlunet tune capture -\n"), "{given}");
    for (host, words) in [
        ("ssh:gone", "ssh gone: connect to host gone port 22: No route to host"),
        ("ssh:bare", "there is no lunet on bare (exit code 127)"),
        ("ssh:odd", "what odd sent is no capture: line 1"),
        ("ssh:-oProxyCommand=x", "is no name of a machine"),
    ] {
        let output = ask(host);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{host}: {said}");
        assert!(said.contains(words) && said.lines().count() == 1, "{host}: {said}");
    }
}
