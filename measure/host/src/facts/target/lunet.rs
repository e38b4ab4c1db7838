//! What lunet serves, by its own words.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::{Lun, Portal, Target, TargetSession, portal};
use crate::facts::{Lunet, LunetPortal, Value};
use crate::source::Source;

/// Without `[iscsi] queue-depth`.
const QUEUE_DEPTH: i64 = 128;

/// Asks every lunet that runs here for its targets.
pub(super) fn read(source: &dyn Source, lunets: &[Lunet]) -> Vec<Target> {
    let believed = lunets.iter().filter(|lunet| !lunet.socket.is_empty());
    believed.flat_map(|lunet| ask(source, lunet)).collect()
}

/// Each portal as often as there are transports.
fn portals(lunet: &Lunet) -> Vec<Portal> {
    let one = |portal: &LunetPortal, transport: &str| Portal {
        address: portal.address.clone(),
        port: portal.port,
        transport: Some(transport.to_owned()),
        public: None,
    };
    let both = |portal: &LunetPortal| {
        let tcp = (portal.tcp == Some(true)).then(|| one(portal, "tcp"));
        let iser = (portal.iser == Some(true)).then(|| one(portal, "iser"));
        tcp.into_iter().chain(iser)
    };
    lunet.portals.iter().flat_map(both).collect()
}

/// What a running lunet serves to whom.
fn ask(source: &dyn Source, lunet: &Lunet) -> Vec<Target> {
    let json = |verb: &[&str]| -> Json {
        let args = [verb, &["--json", "--socket", &lunet.socket]].concat();
        let text = source.output("lunet", &args).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    };
    let targets = json(&["target", "list"]);
    let volumes = json(&["volume", "list"]);
    let sessions = json(&["sessions"]);
    let config = source.output("lunet", &["config", "show", "--socket", &lunet.socket]);
    let config: toml::Table = config.and_then(|text| text.parse().ok()).unwrap_or_default();
    let portals = portals(lunet);
    list(&targets).map(|told| target(told, &volumes, &sessions, &config, &portals)).collect()
}

fn list(json: &Json) -> impl Iterator<Item = &Json> {
    json.as_array().into_iter().flatten()
}

fn text(json: &Json) -> Option<String> {
    json.as_str().map(str::to_owned)
}

fn target(
    told: &Json,
    volumes: &Json,
    sessions: &Json,
    config: &toml::Table,
    portals: &[Portal],
) -> Target {
    let name = text(&told["name"]).unwrap_or_default();
    let iscsi = config.get("iscsi");
    let number =
        |key: &str| iscsi.and_then(|table| table.get(key)).and_then(toml::Value::as_integer);
    let queue_depth = number("queue-depth").unwrap_or(QUEUE_DEPTH);
    let list_of = |key: &str| config.get(key).and_then(toml::Value::as_array);
    let own = list_of("target").and_then(|all| {
        all.iter().find(|t| t.get("name").and_then(toml::Value::as_str) == Some(&name))
    });
    let has = |key: &str| own.is_some_and(|target| target.get(key).is_some());
    let strings = |value: Option<&toml::Value>| -> Vec<String> {
        let all = value.and_then(toml::Value::as_array).into_iter().flatten();
        all.filter_map(|value| value.as_str().map(str::to_owned)).collect()
    };
    let listed = own.and_then(|target| target.get("initiators"));
    let acl = strings(listed);
    let only = strings(own.and_then(|target| target.get("portals")));
    let luns: Vec<Lun> = list(&told["luns"]).map(|lun| self::lun(lun, volumes)).collect();
    // The server's own word: options and the LUNs' lists count as well. One of before let in everybody
    // where nobody was named.
    let reach = text(&told["for"]);
    let open = match reach.as_deref() {
        Some(word) => word == "everybody",
        None => listed.is_none() && !has("user"),
    };
    Target {
        kind: "lunet".to_owned(),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        enabled: Some(true),
        portals: portals.iter().filter(|portal| is_among(portal, &only)).cloned().collect(),
        sessions: list(sessions)
            .filter(|session| session["target"] == name.as_str())
            .map(|session| self::session(session, queue_depth))
            .collect(),
        queue_depth: Some(queue_depth),
        auth: Some(
            match (has("user"), has("mutual")) {
                (false, _) => "none",
                (true, false) => "chap",
                (true, true) => "mutual-chap",
            }
            .to_owned(),
        ),
        demo_mode: Some(open),
        demo_mode_writable: Some(open && luns.iter().any(|lun| lun.read_only != Some(true))),
        params: reach.map(|word| ("for".to_owned(), Value::Text(word))).into_iter().collect(),
        luns,
        acl,
        name,
        ..Target::default()
    }
}

/// Whether a target with these `portals` in its configuration is reached through a portal: through all of them
/// if it names none.
fn is_among(portal: &Portal, only: &[String]) -> bool {
    only.is_empty()
        || only.iter().any(|text| {
            let named = super::portal(text, "tcp");
            // Port 0 took a free one.
            named.address == portal.address
                && (named.port == Some(0)
                    || named.port.unwrap_or(3260) == portal.port.unwrap_or(3260))
        })
}

fn lun(told: &Json, volumes: &Json) -> Lun {
    let volume = list(volumes).find(|volume| volume["name"] == told["volume"]);
    let get = |key: &str| volume.map_or(&Json::Null, |volume| &volume[key]);
    let path = text(get("path"));
    let fault = list(get("faults")).next().cloned().unwrap_or_default();
    let zvol = path.as_deref().and_then(|path| path.strip_prefix("/dev/zvol/")).map(str::to_owned);
    Lun {
        lun: told["lun"].as_i64().unwrap_or_default(),
        device: text(&told["volume"]),
        backing: if zvol.is_some() { Some("zvol".to_owned()) } else { text(get("backend")) },
        zvol,
        path,
        size_bytes: told["size_bytes"].as_i64(),
        block_bytes: get("block_size").as_i64(),
        read_only: get("read_only").as_bool(),
        write_cache: text(get("write_cache")).map(|word| word == "on"),
        storage: match (get("faults"), &fault) {
            (Json::Null, _) => None,
            (_, Json::Null) => Some("ok".to_owned()),
            (_, fault) => text(&fault["state"]),
        },
        storage_why: text(&fault["text"]),
        ..Lun::default()
    }
}

fn session(told: &Json, queue_depth: i64) -> TargetSession {
    let peer = text(&told["peer"]).map(|peer| portal(&peer, "tcp").address);
    let keys: BTreeMap<String, Value> = list(&told["keys"])
        .filter_map(|pair| Some((text(&pair[0])?, Value::parse(pair[1].as_str()?))))
        .collect();
    TargetSession {
        initiator: text(&told["initiator"]).unwrap_or_default(),
        address: peer,
        transport: text(&told["transport"]),
        iser_offered: told["tcp"]["iser_offered"].as_bool(),
        connections: Some(1),
        queue_depth: Some(queue_depth),
        params: keys,
        active_commands: told["commands_in_flight"].as_i64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    /// Whether a target with these keys is open, and its portals, where the server says for whom it is.
    fn told(word: &str, keys: &str) -> (Option<bool>, Vec<String>) {
        let portals = ["10.0.0.1:3260", "127.0.0.1:3260", "[fd00::1]:3261"];
        let portals = portals.map(|text| super::super::portal(text, "tcp"));
        let json = format!(r#"{{"name": "iqn.x", {word} "luns": [{{"lun": 0, "volume": "v"}}]}}"#);
        let config = format!("[[target]]\nname = 'iqn.x'\n{keys}").parse().unwrap();
        let none = Json::Null;
        let target = target(&serde_json::from_str(&json).unwrap(), &none, &none, &config, &portals);
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
    fn reads_a_running_lunet() {
        let tree = Tree::parse(
            r#"
$ ss -tlnHp
| LISTEN 0 1024 10.0.0.1:3260 0.0.0.0:* users:(("lunet",pid=77,fd=11))
/proc/77/cwd -> /srv
$ lunet target list --json --socket /srv/d/lunet.sock
| [{"name": "iqn.2026-11.local.lunet:a", "luns": [{"lun": 0, "size_bytes": 1048576, "volume": "v"}]}]
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
