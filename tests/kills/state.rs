//! What can be seen of a server: what it says, and what lies in its directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// The target that is always there.
pub const TARGET: &str = "iqn.2026-11.local.lunet:kills";

/// The volume whose content matters, LUN 0, and the one whose reservations do, LUN 1.
pub const BASE: &str = "base";

/// The first configuration.
pub const FILE: &str = "\
# This comment must never go.
[[portal]]
address = '127.0.0.1:0'

[volumes.base]  # nor this one
backend = 'file'
size = '16MiB'

[volumes.reserved]
backend = 'file'
size = '16MiB'

[[target]]
name = 'iqn.2026-11.local.lunet:kills'
luns = ['base', 'reserved']
";

/// Files that may lie beside volumes and snapshots.
const OTHERS: &[&str] = &[
    "form",
    "identity",
    "lunet.lock",
    "lunet.sock",
    "lunet.toml",
    "ports",
    "reserved.reservations",
];

/// A size in bytes, and the number in the first eight bytes.
pub type Content = (u64, u64);

/// All that there is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// By name.
    pub volumes: BTreeMap<String, Content>,
    /// By volume and name.
    pub snapshots: BTreeMap<(String, String), Content>,
    /// LUNs by target.
    pub targets: BTreeMap<String, BTreeMap<u16, String>>,
    /// Addresses of portals, but for that of the first configuration.
    pub portals: BTreeSet<String>,
}

impl State {
    /// What the first configuration says.
    pub fn first() -> Self {
        let volumes = [BASE, "reserved"].map(|name| (name.to_owned(), (16 << 20, 0)));
        let luns = [(0, BASE), (1, "reserved")].map(|(lun, name)| (lun, name.to_owned()));
        let targets = [(TARGET.to_owned(), luns.into())];
        Self { volumes: volumes.into(), targets: targets.into(), ..Self::default() }
    }

    /// Looks at a server, and demands that its words, its configuration and its files agree.
    pub fn look(data: &Path) -> Result<Self> {
        let mut found = Self::default();
        let mut files: BTreeSet<String> = OTHERS.iter().map(|&name| name.to_owned()).collect();
        let name = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for volume in list(data, json!({"request": "volumes"}))? {
            let own = name(&volume["name"]);
            let file = format!("{own}.img");
            let content = content(&data.join(&file))?;
            ensure!(volume["size_bytes"] == content.0, "{volume:#}, but {content:?} on disk");
            files.extend([format!("{own}.record"), format!(".{file}.lunet"), file]);
            found.volumes.insert(own, content);
        }
        for snapshot in list(data, json!({"request": "snapshots", "volume": null}))? {
            let names = (name(&snapshot["volume"]), name(&snapshot["snapshot"]));
            let file = format!("{}@{}.img", names.0, names.1);
            found.snapshots.insert(names, content(&data.join(&file))?);
            files.insert(file);
        }
        for target in list(data, json!({"request": "targets"}))? {
            let mut luns = BTreeMap::new();
            for lun in target["luns"].as_array().into_iter().flatten() {
                let number = lun["lun"].as_u64().and_then(|lun| u16::try_from(lun).ok());
                luns.insert(number.context("no LUN")?, name(&lun["volume"]));
            }
            found.targets.insert(name(&target["name"]), luns);
        }
        for portal in list(data, json!({"request": "portals"}))?.iter().skip(1) {
            let address = name(&portal["address"]);
            TcpStream::connect(&address).with_context(|| format!("nobody listens on {address}"))?;
            found.portals.insert(address);
        }
        for entry in fs::read_dir(data)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            ensure!(files.contains(&name), "{name} was left behind");
        }
        let text = fs::read_to_string(data.join("lunet.toml"))?;
        for comment in ["# This comment must never go.", "# nor this one"] {
            ensure!(text.contains(comment), "a comment is gone:\n{text}");
        }
        Ok(found)
    }
}

fn content(path: &Path) -> Result<Content> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let mut number = [0; 8];
    file.read_exact_at(&mut number, 0)?;
    Ok((file.metadata()?.len(), u64::from_le_bytes(number)))
}

fn list(data: &Path, request: Value) -> Result<Vec<Value>> {
    match ask(data, &request)? {
        Ok(Value::Array(list)) => Ok(list),
        other => bail!("{request}: {other:?}"),
    }
}

/// Asks through the control socket. The inner error is the server's refusal.
pub fn ask(data: &Path, request: &Value) -> Result<Result<Value, String>> {
    let mut stream = UnixStream::connect(data.join("lunet.sock"))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let answer: Value = serde_json::from_str(&line).context("no whole answer")?;
    Ok(match answer.get("ok") {
        Some(value) => Ok(value.clone()),
        None => Err(answer["error"].as_str().unwrap_or(&line).to_owned()),
    })
}
