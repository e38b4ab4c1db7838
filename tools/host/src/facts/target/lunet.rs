//! What lunet serves, by its own words.

use lunet_api::{Reach, Session, Transport, Volume, WriteCache};

use super::{Lun, Portal, Target, TargetSession, portal};
use crate::facts::{Lunet, LunetPortal, Value, lunet};
use crate::source::Source;

/// Without `[iscsi] queue-depth`.
const QUEUE_DEPTH: i64 = 128;
const ISCSI_PORT: i64 = 3260;
const NVME_PORT: i64 = 4420;

/// Asks every lunet that runs here for its targets.
pub(super) fn read(source: &dyn Source, lunets: &[Lunet]) -> Vec<Target> {
    let believed = lunets.iter().filter(|lunet| !lunet.socket.is_empty());
    believed.flat_map(|lunet| ask(source, lunet)).collect()
}

/// Where a target is served: each portal of its protocols as often as there are transports.
fn portals(lunet: &Lunet, iscsi: bool, nvme: bool, only: &[String]) -> Vec<Portal> {
    let mut all = Vec::new();
    for portal in lunet.portals.iter().filter(|portal| is_among(portal, only)) {
        let transports = [
            (iscsi && portal.tcp == Some(true), "tcp"),
            (iscsi && portal.iser == Some(true), "iser"),
            (nvme && portal.nvme_tcp == Some(true), "tcp"),
            (nvme && portal.nvme_rdma == Some(true), "rdma"),
        ];
        let served = transports.into_iter().filter(|(served, _)| *served);
        all.extend(served.map(|(_, transport)| Portal {
            address: portal.address.clone(),
            port: portal.port,
            transport: Some(transport.to_owned()),
            public: None,
        }));
    }
    all
}

/// What a running lunet serves to whom.
fn ask(source: &dyn Source, lunet: &Lunet) -> Vec<Target> {
    let mut targets: Vec<lunet_api::Target> =
        lunet::ask_list(source, &["target", "list"], ("targets", &lunet.socket));
    let volumes: Vec<Volume> = lunet::ask(source, &["volume", "list"], &lunet.socket);
    let sessions: Vec<Session> =
        lunet::ask_list(source, &["sessions"], ("sessions", &lunet.socket));
    let config = source.output("lunet", &["config", "show", "--socket", &lunet.socket]);
    let config: toml::Table = config.and_then(|text| text.parse().ok()).unwrap_or_default();
    targets.extend(subsystems(&config));
    targets.iter().map(|told| target(told, &volumes, &sessions, &config, lunet)).collect()
}

/// The subsystems that are no targets, which the list of targets leaves out.
fn subsystems(config: &toml::Table) -> Vec<lunet_api::Target> {
    let all = config.get("subsystem").and_then(toml::Value::as_array).into_iter().flatten();
    all.filter_map(|table| {
        let nqn = table.get("nqn").and_then(toml::Value::as_str)?.to_owned();
        let open = table.get("open").and_then(toml::Value::as_bool) == Some(true);
        Some(lunet_api::Target {
            name: nqn.clone(),
            nqn: Some(nqn),
            reach: match (open, table.get("hosts")) {
                (true, _) => Reach::Everybody,
                (false, Some(_)) => Reach::Named,
                (false, None) => Reach::ThisMachine,
            },
            luns: table.get("namespaces").map(namespaces).unwrap_or_default(),
            ..lunet_api::Target::default()
        })
    })
    .collect()
}

/// `{ 1 = "vm1", 7 = "db" }`, or `["vm1", "db"]`, which counts from 1.
fn namespaces(value: &toml::Value) -> Vec<lunet_api::Lun> {
    let lun = |number: Option<u16>, volume: &toml::Value| {
        Some(lunet_api::Lun {
            lun: number?,
            volume: volume.as_str()?.to_owned(),
            ..lunet_api::Lun::default()
        })
    };
    match value {
        toml::Value::Table(table) => {
            table.iter().filter_map(|(number, volume)| lun(number.parse().ok(), volume)).collect()
        }
        toml::Value::Array(all) => {
            (1..).zip(all).filter_map(|(number, volume)| lun(Some(number), volume)).collect()
        }
        _ => Vec::new(),
    }
}

/// How hosts prove who they are over NVMe: every one of them has to.
fn nvme_auth(own: Option<&toml::Table>) -> &'static str {
    let hosts = own.and_then(|own| own.get("hosts")).and_then(toml::Value::as_array);
    let keyed = |host: &toml::Value| {
        let has = |key: &str| host.get(key).is_some();
        let may_come_without = host.get("tls").and_then(toml::Value::as_str) == Some("allowed");
        has("secret-file") || has("tls-key-file") && !may_come_without
    };
    match hosts {
        Some(hosts) if !hosts.is_empty() && hosts.iter().all(keyed) => "dhchap",
        _ => "none",
    }
}

fn target(
    told: &lunet_api::Target,
    volumes: &[Volume],
    sessions: &[Session],
    config: &toml::Table,
    lunet: &Lunet,
) -> Target {
    let name = told.name.clone();
    let iscsi = config.get("iscsi");
    let number =
        |key: &str| iscsi.and_then(|table| table.get(key)).and_then(toml::Value::as_integer);
    let queue_depth = number("queue-depth").unwrap_or(QUEUE_DEPTH);
    let tables = |key: &str| {
        let all = config.get(key).and_then(toml::Value::as_array).into_iter().flatten();
        all.filter_map(toml::Value::as_table)
    };
    let named = |table: &&toml::Table, key: &str| {
        table.get(key).and_then(toml::Value::as_str) == Some(name.as_str())
    };
    let own = tables("target")
        .find(|table| named(table, "name"))
        .or_else(|| tables("subsystem").find(|table| named(table, "nqn")));
    let has = |key: &str| own.is_some_and(|target| target.contains_key(key));
    // A subsystem alone has its NQN for a name.
    let iscsi_served = !name.starts_with("nqn.");
    let nqn = told.nqn.clone().or_else(|| (!iscsi_served).then(|| name.clone()));
    let strings = |value: Option<&toml::Value>| -> Vec<String> {
        let all = value.and_then(toml::Value::as_array).into_iter().flatten();
        all.filter_map(|value| value.as_str().map(str::to_owned)).collect()
    };
    let listed = own.and_then(|target| target.get("initiators"));
    let acl = strings(listed);
    let only = strings(own.and_then(|target| target.get("portals")));
    let luns: Vec<Lun> = told.luns.iter().map(|lun| self::lun(lun, volumes)).collect();
    // The server's own word: options and the LUNs' lists count as well. One of before let in everybody
    // where nobody was named.
    let reach = Some(&told.reach).filter(|reach| !reach.as_str().is_empty());
    let open = match reach {
        Some(reach) => *reach == Reach::Everybody,
        None => listed.is_none() && !has("user") && !has("hosts"),
    };
    Target {
        kind: "lunet".to_owned(),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        enabled: Some(true),
        portals: portals(lunet, iscsi_served, nqn.is_some(), &only),
        sessions: sessions
            .iter()
            .filter(|session| {
                let target = session.target.as_deref();
                target.is_some() && (target == Some(&name) || target == nqn.as_deref())
            })
            .map(|session| self::session(session, queue_depth))
            .collect(),
        queue_depth: Some(queue_depth),
        auth: Some(
            match (has("user"), has("mutual")) {
                // The weaker of both, for one that is served over both.
                _ if nqn.is_some() && nvme_auth(own) == "none" => "none",
                _ if !iscsi_served => nvme_auth(own),
                (false, _) => "none",
                (true, false) => "chap",
                (true, true) => "mutual-chap",
            }
            .to_owned(),
        ),
        demo_mode: Some(open),
        demo_mode_writable: Some(open && luns.iter().any(|lun| lun.read_only != Some(true))),
        params: reach
            .map(|word| ("for".to_owned(), Value::Text(word.to_string())))
            .into_iter()
            .collect(),
        luns,
        acl,
        name,
        ..Target::default()
    }
}

/// Whether a target with these `portals` in its configuration is reached through a portal: through all of them
/// if it names none.
fn is_among(portal: &LunetPortal, only: &[String]) -> bool {
    let usual = if portal.is_nvme() { NVME_PORT } else { ISCSI_PORT };
    only.is_empty()
        || only.iter().any(|text| {
            let named = super::portal(text, "tcp");
            // Port 0 took a free one.
            named.address == portal.address
                && (named.port == Some(0)
                    || named.port.unwrap_or(usual) == portal.port.unwrap_or(usual))
        })
}

fn lun(told: &lunet_api::Lun, volumes: &[Volume]) -> Lun {
    let volume = volumes.iter().find(|volume| volume.name == told.volume);
    let path = volume.and_then(|volume| volume.path.clone());
    let faults = volume.and_then(|volume| volume.faults.as_ref());
    let fault = faults.and_then(|faults| faults.first());
    let zvol = path.as_deref().and_then(|path| path.strip_prefix("/dev/zvol/")).map(str::to_owned);
    let number = |number: u64| i64::try_from(number).ok();
    Lun {
        lun: told.lun.into(),
        device: Some(told.volume.clone()),
        backing: match &zvol {
            Some(_) => Some("zvol".to_owned()),
            None => volume.map(|volume| volume.backend.to_string()),
        },
        zvol,
        path,
        size_bytes: told.size_bytes.and_then(number),
        block_bytes: volume.map(|volume| volume.block_size.into()).filter(|bytes| *bytes > 0),
        read_only: volume.map(|volume| volume.read_only),
        // A server of before does not tell.
        write_cache: volume
            .map(|volume| &volume.write_cache)
            .filter(|word| !word.as_str().is_empty())
            .map(|word| *word == WriteCache::On),
        storage: faults.map(|_| fault.map_or_else(|| "ok".to_owned(), |one| one.state.to_string())),
        storage_why: fault.map(|fault| fault.text.clone()),
        ..Lun::default()
    }
}

fn session(told: &Session, queue_depth: i64) -> TargetSession {
    let keys = told.keys.iter().map(|(key, value)| (key.clone(), Value::parse(value)));
    TargetSession {
        initiator: told.initiator.clone(),
        address: Some(portal(&told.peer, "tcp").address),
        transport: Some(
            match &told.transport {
                Transport::NvmeTcp => "tcp",
                Transport::NvmeRdma => "rdma",
                other => other.as_str(),
            }
            .to_owned(),
        ),
        iser_offered: told.tcp.as_ref().map(|tcp| tcp.iser_offered || tcp.nvme_rdma_offered),
        connections: Some(1),
        queue_depth: Some(queue_depth),
        params: keys.collect(),
        active_commands: i64::try_from(told.commands_in_flight).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    /// Whether a target with these keys is open, and its portals, where the server says for whom it is.
    fn told(word: &str, keys: &str) -> (Option<bool>, Vec<String>) {
        let portals = ["10.0.0.1:3260", "127.0.0.1:3260", "[fd00::1]:3261"];
        let portals = portals.map(|text| {
            let Portal { address, port, .. } = super::super::portal(text, "tcp");
            LunetPortal { address, port, tcp: Some(true), ..LunetPortal::default() }
        });
        let lunet = Lunet { portals: portals.to_vec(), ..Lunet::default() };
        let json = format!(r#"{{"name": "iqn.x", {word} "luns": [{{"lun": 0, "volume": "v"}}]}}"#);
        let config = format!("[[target]]\nname = 'iqn.x'\n{keys}").parse().unwrap();
        let target = target(&serde_json::from_str(&json).unwrap(), &[], &[], &config, &lunet);
        (target.demo_mode, target.portals.into_iter().map(|portal| portal.address).collect())
    }

    #[test]
    fn a_target_is_open_if_the_server_says_so() {
        for (word, keys, open) in [
            (r#""for": "this-machine","#, "", false),
            (r#""for": "everybody","#, "open = true", true),
            // By an option of `lunet serve`.
            (r#""for": "everybody","#, "", true),
            (r#""for": "named","#, "initiators = []", false),
            (r#""for": "named","#, "luns = [{ volume = 'v', initiators = ['iqn.y'] }]", false),
            // One of before.
            ("", "", true),
            ("", "initiators = []", false),
            ("", "initiators = ['iqn.y']", false),
        ] {
            assert_eq!(told(word, keys).0, Some(open), "{word} {keys}");
        }
        assert_eq!(told("", "").1.len(), 3);
        assert_eq!(told("", "portals = ['127.0.0.1']").1, ["127.0.0.1"]);
        assert_eq!(told("", "portals = ['[fd00::1]:3261', '10.0.0.1:1']").1, ["fd00::1"]);
    }

    #[test]
    fn a_subsystem_has_the_portals_and_controllers_of_nvme() {
        let portal = |address: &str, port, iser, nvme_rdma| LunetPortal {
            address: address.to_owned(),
            port: Some(port),
            iser: Some(iser),
            nvme_rdma: Some(nvme_rdma),
            ..LunetPortal::default()
        };
        let portals =
            vec![portal("10.0.0.1", 3260, true, false), portal("10.0.0.1", 4420, false, true)];
        let lunet = Lunet { portals, ..Lunet::default() };
        let sessions: Vec<Session> = serde_json::from_str(
            r#"[{"initiator": "nqn.h", "target": "nqn.s", "transport": "nvme-rdma"},
            {"initiator": "nqn.g", "target": "nqn.s", "transport": "nvme-tcp", "tcp": {"nvme_rdma_offered": true}}]"#,
        )
        .unwrap();
        let of = |told: &str, config: &str| {
            target(
                &serde_json::from_str(told).unwrap(),
                &[],
                &sessions,
                &config.parse().unwrap(),
                &lunet,
            )
        };
        let transports = |target: &Target| -> Vec<String> {
            target.portals.iter().filter_map(|portal| portal.transport.clone()).collect()
        };
        let alone = of(
            r#"{"name": "nqn.s", "nqn": "nqn.s", "for": "named"}"#,
            "[[subsystem]]\nnqn = 'nqn.s'\nhosts = [{ nqn = 'nqn.h', secret-file = '/k' }]",
        );
        assert_eq!(
            (transports(&alone), alone.auth.as_deref()),
            (vec!["rdma".to_owned()], Some("dhchap"))
        );
        let seen: Vec<_> =
            alone.sessions.iter().map(|s| (s.transport.as_deref(), s.iser_offered)).collect();
        assert_eq!(seen, [(Some("rdma"), None), (Some("tcp"), Some(true))]);
        let both = of(
            r#"{"name": "iqn.t", "nqn": "nqn.s", "for": "named"}"#,
            "[[target]]\nname = 'iqn.t'\nhosts = ['nqn.h']\n[[target.user]]\nname = 'joe'",
        );
        assert_eq!((transports(&both).len(), both.sessions.len()), (2, 2));
        assert_eq!(both.auth.as_deref(), Some("none"), "a host needs no secret");
        let iscsi = of(r#"{"name": "iqn.t", "for": "named"}"#, "");
        assert_eq!((transports(&iscsi), iscsi.sessions.len()), (vec!["iser".to_owned()], 0));
    }

    #[test]
    fn subsystems_are_those_of_the_configuration() {
        let config = "[[subsystem]]\nnqn = 'nqn.a'\nopen = true\nnamespaces = ['v', 'w']\n\
            [[subsystem]]\nnqn = 'nqn.b'\nhosts = ['nqn.h']\nnamespaces = { 7 = 'v' }\n\
            [[subsystem]]\nnqn = 'nqn.c'";
        let told: Vec<_> = subsystems(&config.parse().unwrap())
            .into_iter()
            .map(|one| {
                (one.name, one.reach, one.luns.iter().map(|lun| lun.lun).collect::<Vec<_>>())
            })
            .collect();
        let wanted = [
            ("nqn.a".to_owned(), Reach::Everybody, vec![1, 2]),
            ("nqn.b".to_owned(), Reach::Named, vec![7]),
            ("nqn.c".to_owned(), Reach::ThisMachine, vec![]),
        ];
        assert_eq!(told, wanted);
    }

    #[test]
    fn reads_a_running_lunet() {
        let tree = Tree::parse(
            r#"
$ ss -tlnHp
| LISTEN 0 1024 10.0.0.1:3260 0.0.0.0:* users:(("lunet",pid=77,fd=11))
/proc/77/cwd -> /srv
$ lunet target list --json --socket /srv/d/lunet.sock
| {"targets": [{"name": "iqn.2026-11.local.lunet:a", "luns": [{"lun": 0, "size_bytes": 1048576, "volume": "v"}]}],
| "silent_shards": [{"shard": 1, "silent_ms": 3000}]}
exit 1
$ lunet volume list --json --socket /srv/d/lunet.sock
| [{"name": "v", "backend": "block", "path": "/dev/zvol/tank/v", "block_size": 4096, "read_only": false}]
$ lunet sessions --json --socket /srv/d/lunet.sock
| [{"initiator": "iqn.x:b", "target": "iqn.2026-11.local.lunet:a", "peer": "10.0.0.2:5000",
| "transport": "tcp", "tcp": {"iser_offered": true}, "commands_in_flight": 3, "keys": [["MaxBurstLength", "262144"]]}]
$ lunet config show --socket /srv/d/lunet.sock
| [iscsi]
| queue-depth = 256
| [[target]]
| name = "iqn.2026-11.local.lunet:a"
| [[target.user]]
| name = "joe"
"#,
        )
        .unwrap();
        let mut tree = tree;
        tree.file("/proc/77/cmdline", "lunet\nserve\n--data\n./d\n");
        let targets = read(&tree, &crate::facts::lunet::read(&tree));
        let target = &targets[0];
        assert_eq!((target.queue_depth, target.auth.as_deref()), (Some(256), Some("chap")));
        assert_eq!(
            (target.demo_mode, target.portals[0].address.as_str()),
            (Some(false), "10.0.0.1")
        );
        assert_eq!(target.sessions[0].address.as_deref(), Some("10.0.0.2"));
        assert_eq!(target.sessions[0].iser_offered, Some(true));
        assert_eq!(target.sessions[0].params["MaxBurstLength"], Value::Int(262_144));
        assert_eq!(target.luns[0].zvol.as_deref(), Some("tank/v"));
    }
}
