//! What lunet serves, by its own words.

use lunet_api::{Reach, Session, Volume, WriteCache};

use super::{Lun, Portal, Target, TargetSession, portal};
use crate::facts::{Lunet, LunetPortal, Value, lunet};
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
    let targets: Vec<lunet_api::Target> = lunet::ask(source, &["target", "list"], &lunet.socket);
    let volumes: Vec<Volume> = lunet::ask(source, &["volume", "list"], &lunet.socket);
    let sessions: Vec<Session> = lunet::ask(source, &["sessions"], &lunet.socket);
    let config = source.output("lunet", &["config", "show", "--socket", &lunet.socket]);
    let config: toml::Table = config.and_then(|text| text.parse().ok()).unwrap_or_default();
    let portals = portals(lunet);
    targets.iter().map(|told| target(told, &volumes, &sessions, &config, &portals)).collect()
}

fn target(
    told: &lunet_api::Target,
    volumes: &[Volume],
    sessions: &[Session],
    config: &toml::Table,
    portals: &[Portal],
) -> Target {
    let name = told.name.clone();
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
    let luns: Vec<Lun> = told.luns.iter().map(|lun| self::lun(lun, volumes)).collect();
    // The server's own word: options and the LUNs' lists count as well. One of before let in everybody
    // where nobody was named.
    let reach = Some(&told.reach).filter(|reach| !reach.as_str().is_empty());
    let open = match reach {
        Some(reach) => *reach == Reach::Everybody,
        None => listed.is_none() && !has("user"),
    };
    Target {
        kind: "lunet".to_owned(),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        enabled: Some(true),
        portals: portals.iter().filter(|portal| is_among(portal, &only)).cloned().collect(),
        sessions: sessions
            .iter()
            .filter(|session| session.target.as_deref() == Some(&name))
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
        transport: Some(told.transport.to_string()),
        iser_offered: told.tcp.as_ref().map(|tcp| tcp.iser_offered),
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
        let portals = portals.map(|text| super::super::portal(text, "tcp"));
        let json = format!(r#"{{"name": "iqn.x", {word} "luns": [{{"lun": 0, "volume": "v"}}]}}"#);
        let config = format!("[[target]]\nname = 'iqn.x'\n{keys}").parse().unwrap();
        let target = target(&serde_json::from_str(&json).unwrap(), &[], &[], &config, &portals);
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
