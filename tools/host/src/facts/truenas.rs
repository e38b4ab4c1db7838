//! What only TrueNAS says.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::Value;
use super::parse::version_num;
use crate::source::Source;

/// What only TrueNAS says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrueNas {
    /// The release: `23.10.2`, `25.04.0`.
    pub version: Option<String>,
    /// The release as one number: 23.10.2 is 23010002.
    pub version_num: Option<i64>,
    /// `SCALE`, `SCALE_ENTERPRISE`, `COMMUNITY_EDITION`, `ENTERPRISE`.
    pub product_type: Option<String>,
    /// Whether it is a licensed system.
    pub enterprise: Option<bool>,
    /// Whether it lets iSER, and NFS and NVMe over RDMA be switched on: up to 24.10 nothing kept them from it, from 25.04 on
    /// only licensed systems that are no Mini do (`rdma.capable_protocols` of its middleware, pull requests 14627, 15381).
    pub rdma_offered: Option<bool>,
    /// Settings that its own API keeps.
    pub tunables: Vec<Tunable>,
    /// Additions to the kernel's command line that its own API keeps.
    pub kernel_extra_options: Option<String>,
    /// Commands that it runs at start and end.
    pub init_scripts: Vec<InitScript>,
}

/// A setting that TrueNAS keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tunable {
    /// `SYSCTL`, `UDEV` or `ZFS`.
    pub kind: Option<String>,
    /// Name of the sysctl, parameter or rule.
    pub name: Option<String>,
    /// The value that is configured.
    pub value: Option<Value>,
    /// The value that it found, for going back.
    pub original: Option<Value>,
    /// Whether it is in force.
    pub enabled: Option<bool>,
}

/// A command that TrueNAS runs at start or end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct InitScript {
    /// `PREINIT`, `POSTINIT` or `SHUTDOWN`.
    pub when: Option<String>,
    /// The command, or the script's path.
    pub command: Option<String>,
    /// Whether it is run.
    pub enabled: Option<bool>,
}

/// Reads what TrueNAS says of itself; `None` if this is none.
pub(super) fn read(source: &dyn Source) -> Option<TrueNas> {
    let version = release(source)?;
    let ask = |method: &str| -> Json {
        let text = source.output("midclt", &["call", method]).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    };
    // The type is told as a bare word.
    let product = source
        .output("midclt", &["call", "system.product_type"])
        .map(|text| text.trim().trim_matches('"').to_owned())
        .filter(|text| !text.is_empty());
    let text = |json: &Json| json.as_str().map(str::to_owned);
    let version_num = version.as_deref().and_then(version_num);
    let enterprise = product.as_deref().map(|product| product.contains("ENTERPRISE"));
    let mini = source.text("/sys/class/dmi/id/product_name").map(|name| name.contains("MINI"));
    Some(TrueNas {
        version_num,
        version,
        enterprise,
        rdma_offered: rdma_offered(version_num, enterprise, mini),
        product_type: product,
        tunables: list(&ask("tunable.query"))
            .map(|told| Tunable {
                kind: text(&told["type"]),
                name: text(&told["var"]),
                value: value(&told["value"]),
                original: value(&told["orig_value"]),
                enabled: told["enabled"].as_bool(),
            })
            .collect(),
        kernel_extra_options: text(&ask("system.advanced.config")["kernel_extra_options"]),
        init_scripts: list(&ask("initshutdownscript.query"))
            .map(|told| InitScript {
                when: text(&told["when"]),
                command: text(&told["command"])
                    .filter(|command| !command.is_empty())
                    .or_else(|| text(&told["script"])),
                enabled: told["enabled"].as_bool(),
            })
            .collect(),
    })
}

fn rdma_offered(
    version: Option<i64>,
    enterprise: Option<bool>,
    mini: Option<bool>,
) -> Option<bool> {
    match (version? < 25_004_000, enterprise, mini) {
        (true, _, _) => Some(true),
        (false, Some(false), _) | (false, _, Some(true)) => Some(false),
        (false, Some(true), _) => Some(true),
        (false, None, _) => None,
    }
}

fn list(json: &Json) -> impl Iterator<Item = &Json> {
    json.as_array().into_iter().flatten()
}

fn value(json: &Json) -> Option<Value> {
    match json {
        Json::String(text) if text.is_empty() => None,
        Json::String(text) => Some(Value::parse(text)),
        Json::Number(number) => number.as_i64().map(Value::Int),
        _ => None,
    }
}

/// `/etc/version` says `23.10.2` or `TrueNAS-SCALE-22.12.3`; other systems have no such file, or
/// other things in it.
fn release(source: &dyn Source) -> Option<Option<String>> {
    let told = source.text("/etc/version");
    let issue = source.read("/etc/motd").is_some_and(|text| text.contains("TrueNAS"));
    let kernel = source.text("/proc/sys/kernel/osrelease").is_some_and(|k| k.contains("truenas"));
    let named = told.as_ref().is_some_and(|text| text.contains("TrueNAS"));
    if !(issue || kernel || named) {
        return None;
    }
    Some(told.and_then(|text| {
        let start = text.find(|c: char| c.is_ascii_digit())?;
        Some(text[start..].lines().next()?.to_owned())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    fn offered(version: &str, product: &str, model: &str) -> Option<bool> {
        let tree = format!(
            "/etc/version: {version}\n/etc/motd: TrueNAS\n/sys/class/dmi/id/product_name: {model}\n$ midclt call system.product_type\n| {product}\n"
        );
        read(&Tree::parse(&tree).expect("a tree")).expect("it is TrueNAS").rdma_offered
    }

    /// Pull requests 14627 (NFS) and 15381 (iSER) of the middleware, both for 25.04.
    #[test]
    fn rdma_is_offered_to_all_up_to_24_10_and_to_licensed_systems_after_it() {
        assert_eq!(offered("24.10.2", "SCALE", "X10"), Some(true));
        assert_eq!(offered("25.04.0", "COMMUNITY_EDITION", "X10"), Some(false));
        assert_eq!(offered("25.04.0", "ENTERPRISE", "TRUENAS-M60-S"), Some(true));
        assert_eq!(offered("25.04.0", "ENTERPRISE", "TRUENAS-MINI-3.0-X+"), Some(false));
        assert_eq!(offered("25.10.0", "", "X10"), None);
    }
}
