//! The lunet servers of this machine: each is asked over its control socket.

use std::collections::BTreeMap;

use lunet_api::{Portal, Stats};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::source::{Command, Source};

/// A `lunet serve` that runs here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lunet {
    /// Process id of the server.
    pub pid: i64,
    /// Its control socket; empty if it is not asked, because a stranger runs it.
    pub socket: String,
    /// The systemd service that it runs as; `null` if somebody started it by hand.
    pub service: Option<String>,
    /// How much memory it may lock, in bytes (the soft RLIMIT_MEMLOCK); -1: any amount.
    pub memlock_bytes: Option<i64>,
    /// Whether that limit does not hold for it (CAP_IPC_LOCK).
    pub memlock_exempt: Option<bool>,
    /// Whether the kernel filters its system calls (seccomp).
    pub filtered: Option<bool>,
    /// Whether programs that it starts may get more rights than it has.
    pub new_privileges: Option<bool>,
    /// Whether it has capabilities by which it could take the machine: any but those that lunet keeps.
    pub capable: Option<bool>,
    /// Whether its helper process has ended, which it cannot start again; `null` if it was not asked.
    pub helper_ended: Option<bool>,
    /// The buffers of all its shards in bytes: each RDMA device locks them once.
    pub buffer_bytes: Option<i64>,
    /// Where it listens.
    pub portals: Vec<LunetPortal>,
}

/// A portal of a running lunet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LunetPortal {
    /// Address; `0.0.0.0` and `::` are all of the machine's.
    pub address: String,
    /// Port.
    pub port: Option<i64>,
    /// Whether it is served over TCP.
    pub tcp: Option<bool>,
    /// Whether it is served over iSER; `null` if the server does not tell.
    pub iser: Option<bool>,
    /// Whether the configuration names iSER, so that it is missed.
    pub iser_wanted: Option<bool>,
    /// Whether it is served over NVMe over TCP.
    pub nvme_tcp: Option<bool>,
    /// Whether it is served over NVMe over RDMA.
    pub nvme_rdma: Option<bool>,
    /// Whether the configuration names NVMe over RDMA, so that it is missed.
    pub nvme_rdma_wanted: Option<bool>,
    /// The RDMA devices that serve it.
    pub devices: Vec<String>,
    /// Why there is no RDMA, in a word: `no-device`, `locked-memory`... (docs/cli.md).
    pub reason: Option<String>,
    /// The same in lunet's own sentence.
    pub why: Option<String>,
}

impl LunetPortal {
    /// Whether it is one for NVMe: a portal is for one protocol.
    pub(crate) fn is_nvme(&self) -> bool {
        [self.nvme_tcp, self.nvme_rdma, self.nvme_rdma_wanted].contains(&Some(true))
    }
}

/// CAP_IPC_LOCK in the mask of a process's capabilities.
const IPC_LOCK: u64 = 1 << 14;

/// What lunet keeps of its capabilities: CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_NET_BIND_SERVICE and CAP_IPC_LOCK.
const KEPT: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 10 | IPC_LOCK;

/// Reads about the processes with `lunet serve` as their command line. One whose portals are all for iSER alone
/// is known by its control socket.
pub(super) fn read(source: &dyn Source) -> Vec<Lunet> {
    let mut all: BTreeMap<i64, Vec<LunetPortal>> = BTreeMap::new();
    let mut sockets: BTreeMap<i64, &str> = BTreeMap::new();
    let text = source.output("ss", &["-xlnHp"]).unwrap_or_default();
    for line in text.lines() {
        let Some(pid) = pid_of_lunet(line) else { continue };
        all.entry(pid).or_default();
        if let Some(path) = unix_path(line) {
            sockets.entry(pid).or_insert(path);
        }
    }
    let text = source.output("ss", &["-tlnHp"]).unwrap_or_default();
    for line in text.lines() {
        let Some(pid) = pid_of_lunet(line) else { continue };
        let (address, port) = end(line.split_whitespace().nth(3).unwrap_or_default());
        let portal = LunetPortal { address, port, tcp: Some(true), ..LunetPortal::default() };
        all.entry(pid).or_default().push(portal);
    }
    let of = |(pid, portals)| process(source, pid, portals, sockets.get(&pid).copied());
    all.into_iter().filter_map(of).collect()
}

/// The process of a line of `ss`, if it is lunet.
fn pid_of_lunet(line: &str) -> Option<i64> {
    let (_, rest) = line.split_once("(\"lunet\",pid=")?;
    rest.split(',').next()?.parse().ok()
}

/// The path of a line of `ss -x`: `u_str LISTEN 0 128 /run/l.sock 4711 * 0 users:(...)`. It may have spaces.
fn unix_path(line: &str) -> Option<&str> {
    let (mut rest, _) = line.split_once(" users:")?;
    for _ in 0..4 {
        rest = rest.trim_start().split_once(char::is_whitespace)?.1;
    }
    for _ in 0..3 {
        rest = rest.trim_end().rsplit_once(char::is_whitespace)?.0;
    }
    let path = rest.trim();
    (!path.is_empty() && !path.starts_with(['@', '*'])).then_some(path)
}

fn process(
    source: &dyn Source,
    pid: i64,
    portals: Vec<LunetPortal>,
    listens: Option<&str>,
) -> Option<Lunet> {
    let socket = socket(source, pid, listens)?;
    if !believed(source, pid) {
        // What it says of itself is no fact. That it listens is one, by the kernel's word.
        return Some(Lunet { pid, portals, ..Lunet::default() });
    }
    let told: Option<Stats> = ask(source, &["stats"], &socket);
    let helper_ended = told.as_ref().map(|stats| stats.helper_ended);
    let stats = told.unwrap_or_default();
    let told: Vec<LunetPortal> = stats.portals.into_iter().map(portal).collect();
    let loads = stats.loads.iter().filter_map(|load| i64::try_from(load.buffer_bytes).ok());
    let buffers: i64 = loads.sum();
    Some(Lunet {
        pid,
        service: service(source, pid),
        memlock_bytes: memlock(source, pid),
        memlock_exempt: capabilities(source, pid).map(|mask| mask & IPC_LOCK != 0),
        filtered: of_status(source, pid, "Seccomp:").map(|mode| mode != "0"),
        new_privileges: of_status(source, pid, "NoNewPrivs:").map(|none| none == "0"),
        capable: capabilities(source, pid).map(|mask| mask & !KEPT != 0),
        helper_ended,
        buffer_bytes: (buffers > 0).then_some(buffers),
        // A server of before knows nothing of portals.
        portals: if told.is_empty() { portals } else { told },
        socket,
    })
}

/// Whether a process is asked: one of root's, of the user's own, or of a system service, which nobody but root starts.
/// Anybody else may call a program `lunet` and have it say what he likes.
fn believed(source: &dyn Source, pid: i64) -> bool {
    let user = |who: &str| {
        let status = source.read(&format!("/proc/{who}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        // Real, effective...
        line.split_whitespace().nth(1).map(str::to_owned)
    };
    // A machine that was captured before this was asked.
    let Some(uid) = user(&pid.to_string()) else { return true };
    let groups = source.read(&format!("/proc/{pid}/cgroup")).unwrap_or_default();
    uid == "0"
        || user("self").is_some_and(|own| own == uid)
        || groups.lines().any(|line| line.starts_with("0::/system.slice/"))
}

/// Its control socket: the one that it listens on, which its configuration or environment may have named; else what its
/// command line says.
fn socket(source: &dyn Source, pid: i64, listens: Option<&str>) -> Option<String> {
    let line = source.read(&format!("/proc/{pid}/cmdline"))?;
    let words: Vec<&str> = line.lines().collect();
    if !words.contains(&"serve") {
        return None;
    }
    let option = |name: &str| {
        let at = words.iter().position(|word| word.strip_prefix("--") == Some(name));
        let next = at.and_then(|at| words.get(at + 1).copied());
        let joined = format!("--{name}=");
        next.or_else(|| words.iter().find_map(|word| word.strip_prefix(joined.as_str())))
    };
    let directory = source.link(&format!("/proc/{pid}/cwd")).unwrap_or_default();
    let whole = |path: &str| match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("{directory}/{}", path.trim_start_matches("./")),
    };
    if let Some(path) = listens {
        return Some(whole(path));
    }
    Some(match (option("socket"), option("data")) {
        (Some(path), _) => whole(path),
        // By the layout of the machine's service.
        (None, _) if words.contains(&"--service") => "/run/lunet/lunet.sock".to_owned(),
        (None, data) => format!("{}/lunet.sock", whole(data.unwrap_or("lunet-data"))),
    })
}

/// `0::/system.slice/lunet.service`
fn service(source: &dyn Source, pid: i64) -> Option<String> {
    let groups = source.read(&format!("/proc/{pid}/cgroup"))?;
    let name = groups.lines().find_map(|line| line.rsplit('/').next())?;
    // A shell of a user's session is in a service too, which is not lunet's.
    (name.ends_with(".service") && !name.starts_with("user@")).then(|| name.to_owned())
}

/// `Max locked memory         8388608              8388608              bytes`
fn memlock(source: &dyn Source, pid: i64) -> Option<i64> {
    let limits = source.read(&format!("/proc/{pid}/limits"))?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(-1),
        number => number.parse().ok(),
    }
}

/// The mask of a process's effective capabilities.
fn capabilities(source: &dyn Source, pid: i64) -> Option<u64> {
    u64::from_str_radix(&of_status(source, pid, "CapEff:")?, 16).ok()
}

/// What /proc/PID/status says after a word.
fn of_status(source: &dyn Source, pid: i64, word: &str) -> Option<String> {
    let status = source.read(&format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(word))?;
    Some(line.trim().to_owned())
}

fn portal(told: Portal) -> LunetPortal {
    let (address, port) = end(&told.address);
    LunetPortal {
        address,
        port,
        tcp: Some(told.tcp),
        iser: Some(told.iser),
        iser_wanted: Some(told.iser_wanted),
        nvme_tcp: Some(told.nvme_tcp),
        nvme_rdma: Some(told.nvme_rdma),
        nvme_rdma_wanted: Some(told.nvme_rdma_wanted),
        devices: told.devices,
        reason: told.reason.map(|reason| reason.to_string()),
        why: told.why,
    }
}

/// What a running lunet answers to a verb of its command line: an answer of the API, in its JSON. A captured machine
/// has it as the output of that command. Nothing, if there is no answer.
pub(super) fn ask<T: DeserializeOwned + Default>(
    source: &dyn Source,
    verb: &[&str],
    socket: &str,
) -> T {
    let text = source.output("lunet", &[verb, &["--json", "--socket", socket]].concat());
    text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// The same of a list that has a name in the answer. An older lunet answers with the list alone. An answer without what
/// lives on an event loop that is silent, which has the exit code 1, is better than none.
pub(super) fn ask_list<T: DeserializeOwned>(
    source: &dyn Source,
    verb: &[&str],
    (name, socket): (&str, &str),
) -> Vec<T> {
    let command = Command::new("lunet", &[verb, &["--json", "--socket", socket]].concat());
    let list = || {
        let mut answer: serde_json::Value =
            serde_json::from_str(&source.run(&command)?.stdout).ok()?;
        let list = answer.get_mut(name).map(serde_json::Value::take).unwrap_or(answer);
        serde_json::from_value(list).ok()
    };
    list().unwrap_or_default()
}

/// `10.0.0.1:3260`, `[fd00::1]:3260`
fn end(text: &str) -> (String, Option<i64>) {
    let (address, port) = text.rsplit_once(':').unwrap_or((text, ""));
    (address.trim_matches(['[', ']']).to_owned(), port.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    /// A process that listens, with its command line and what else is known of it.
    fn seen(cmdline: &str, more: &str) -> Vec<Lunet> {
        let listens =
            "$ ss -tlnHp\n| LISTEN 0 1024 [fd00::1]:3260 [::]:* users:((\"lunet\",pid=77,fd=11))\n";
        let mut tree = Tree::parse(&format!("{listens}/proc/77/cwd -> /srv\n{more}")).unwrap();
        tree.file("/proc/77/cmdline", cmdline);
        read(&tree)
    }

    #[test]
    fn a_running_lunet_tells_of_its_portals_and_its_limit() {
        let all = seen(
            "lunet\nserve\n--data\n./d\n",
            r#"/proc/77/cgroup: 0::/system.slice/lunet.service
/proc/77/limits:
| Limit                     Soft Limit           Hard Limit           Units
| Max locked memory         8388608              unlimited            bytes
/proc/77/status:
| Name:	lunet
| CapEff:	0000000000000400
| NoNewPrivs:	1
| Seccomp:	2
$ lunet stats --json --socket /srv/d/lunet.sock
| {"loads": [{"buffer_bytes": 100}, {"buffer_bytes": 28}],
| "portals": [{"address": "[fd00::1]:3260", "tag": 1, "tcp": true, "iser": false, "iser_wanted": true,
| "devices": [], "reason": "no-library", "why": "a sentence"}]}
"#,
        );
        let lunet = &all[0];
        assert_eq!((lunet.pid, lunet.socket.as_str()), (77, "/srv/d/lunet.sock"));
        assert_eq!(lunet.service.as_deref(), Some("lunet.service"));
        assert_eq!((lunet.memlock_bytes, lunet.memlock_exempt), (Some(8 << 20), Some(false)));
        assert_eq!((lunet.filtered, lunet.new_privileges), (Some(true), Some(false)));
        assert_eq!((lunet.capable, lunet.buffer_bytes), (Some(false), Some(128)));
        let portal = &lunet.portals[0];
        assert_eq!((portal.address.as_str(), portal.port), ("fd00::1", Some(3260)));
        assert_eq!((portal.iser, portal.iser_wanted), (Some(false), Some(true)));
        assert_eq!(portal.reason.as_deref(), Some("no-library"));
    }

    #[test]
    fn a_lunet_without_tcp_is_known_by_its_control_socket() {
        let mut tree = Tree::parse(
            "$ ss -xlnHp\n| u_str LISTEN 0 128 /run/l.sock 4711 * 0 users:((\"lunet\",pid=78,fd=9))\n\
             $ lunet stats --json --socket /run/l.sock\n\
             | {\"portals\": [{\"address\": \"192.0.2.1:3260\", \"tcp\": false, \"iser\": true}]}\n",
        )
        .unwrap();
        tree.file("/proc/78/cmdline", "lunet\nserve\n--socket\n/run/l.sock\n");
        let all = read(&tree);
        assert_eq!((all.len(), all[0].pid, all[0].socket.as_str()), (1, 78, "/run/l.sock"));
        assert_eq!((all[0].portals[0].tcp, all[0].portals[0].iser), (Some(false), Some(true)));
    }

    #[test]
    fn a_control_socket_that_the_command_line_does_not_name_is_found() {
        for (bound, socket) in [
            ("/srv/my data/lunet.sock", "/srv/my data/lunet.sock"),
            ("other/lunet.sock", "/home/x/other/lunet.sock"),
            ("./lunet.sock", "/home/x/lunet.sock"),
        ] {
            let mut tree = Tree::parse(&format!(
                "$ ss -xlnHp\n| u_str LISTEN 0      4096   {bound} 4711            * 0    users:((\"lunet\",pid=79,fd=9))\n\
                 $ ss -tlnHp\n| LISTEN 0 1024 127.0.0.1:3260 0.0.0.0:* users:((\"lunet\",pid=79,fd=11))\n\
                 /proc/79/cwd -> /home/x\n$ lunet stats --json --socket {socket}\n| {{\"loads\": [{{\"buffer_bytes\": 7}}]}}\n",
            ))
            .unwrap();
            tree.file("/proc/79/cmdline", "lunet\nserve\n--config\nlunet.toml\n");
            let all = read(&tree);
            assert_eq!((all.len(), all[0].socket.as_str()), (1, socket));
            assert_eq!(all[0].buffer_bytes, Some(7), "{socket}");
        }
    }

    #[test]
    fn what_a_stranger_says_in_the_name_of_lunet_is_no_fact() {
        let says = "$ lunet stats --json --socket /srv/lunet-data/lunet.sock\n\
                    | {\"portals\": [{\"address\": \"192.0.2.66:1\", \"iser\": true}]}\n";
        let asked = |uid: &str, own: &str, slice: &str| {
            let more = format!(
                "/proc/77/status:\n| Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n\
                 /proc/self/status:\n| Uid:\t{own}\t{own}\t{own}\t{own}\n\
                 /proc/77/cgroup: 0::/{slice}/x\n{says}"
            );
            let lunet = seen("lunet\nserve\n", &more).remove(0);
            assert_eq!(lunet.portals.len(), 1);
            (lunet.portals[0].address == "192.0.2.66", lunet.socket.is_empty())
        };
        assert_eq!(asked("1000", "0", "user.slice"), (false, true));
        assert_eq!(asked("1001", "1000", "user.slice"), (false, true));
        for (uid, own, slice) in
            [("0", "0", "user.slice"), ("1000", "1000", "user.slice"), ("990", "0", "system.slice")]
        {
            assert_eq!(asked(uid, own, slice), (true, false), "{uid}, {own}, {slice}");
        }
    }

    #[test]
    fn a_lunet_that_does_not_answer_is_known_by_its_port() {
        let all = seen(
            "/usr/bin/lunet\nserve\n--socket=/run/l.sock\n",
            "/proc/77/limits:\n| Max locked memory         unlimited            unlimited            bytes\n\
             /proc/77/status:\n| CapEff:\t000001ffffffffff\n\
             /proc/77/cgroup: 0::/user.slice/user-0.slice/session-3.scope\n",
        );
        let lunet = &all[0];
        assert_eq!((lunet.socket.as_str(), lunet.service.as_ref()), ("/run/l.sock", None));
        assert_eq!((lunet.memlock_bytes, lunet.memlock_exempt), (Some(-1), Some(true)));
        assert_eq!((lunet.portals[0].tcp, lunet.portals[0].iser), (Some(true), None));
        assert_eq!(seen("lunet\ntop\n", ""), [], "it serves nothing");
    }
}
