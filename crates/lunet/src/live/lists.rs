//! What there is, for the commands that show it.

use std::os::unix::fs::MetadataExt;

use anyhow::Result;
use lunet_scsi::Sanitation;
use lunet_target::FaultReport;
use serde_json::{Value, json};

use lunet_backends::layers::{ALWAYS, Effect, Layer, Ops, Rate, Which};

use super::served::{Open, backend};
use super::{Manager, Served, snapshots};
use crate::config::access::Source;
use crate::config::edit::Editor;
use crate::config::{Access, Backend, Reach};
use crate::control::Configuration;
use crate::opening::Unserved;

/// The rates that layers keep all reads, all writes or both to. Limits of a part of them are no limit of the whole.
fn limits(layers: &[Layer]) -> Vec<Value> {
    let limit = |layer: &Layer| {
        let Effect::Limit(rate) = layer.effect else { return None };
        let whole = layer.range.is_none() && layer.which == Which::Share(ALWAYS);
        let on = match layer.ops {
            Ops { read: true, write: true, .. } => "all",
            Ops { read: true, .. } => "read",
            Ops { write: true, .. } => "write",
            _ => return None,
        };
        whole.then(|| match rate {
            Rate::Bytes(rate) => json!({ "on": on, "bytes_per_s": rate }),
            Rate::Operations(rate) => json!({ "on": on, "operations_per_s": rate }),
        })
    };
    layers.iter().filter_map(limit).collect()
}

/// How writes are answered: `on` before they are stable; `off` or `off-by-initiator` when they are; `none` where
/// there is no volatile cache.
fn write_cache(open: &Open, through: bool) -> &'static str {
    match (open.volume.caps().write_cache, open.config.write_cache) {
        (false, _) => "none",
        (true, false) => "off",
        (true, true) if through => "off-by-initiator",
        (true, true) => "on",
    }
}

/// That a volume is being sanitized or formatted, or should be: it serves nothing else then.
fn erasure(sanitations: &[(String, Sanitation, Option<u16>)], volume: &str) -> Value {
    let Some((_, stands, progress)) = sanitations.iter().find(|(name, ..)| name == volume) else {
        return Value::Null;
    };
    let state = match stands {
        Sanitation::None => return Value::Null,
        Sanitation::Running => "sanitizing",
        Sanitation::Formatting => "formatting",
        Sanitation::Unformatted => "format-unfinished",
        Sanitation::Failed { .. } => "sanitize-failed",
    };
    json!({ "state": state, "progress": progress.map(|done| f64::from(done) / 65536.0) })
}

/// What is wrong with the storage of a volume.
fn faults(open: &Open) -> Vec<FaultReport> {
    open.health.faults().into_iter().map(FaultReport::from).collect()
}

/// Who may log in with CHAP, and where the secrets are.
fn users(access: &Access) -> Vec<Value> {
    let user = |user: &crate::config::access::User| {
        let (kind, file) = match &user.login.secret {
            Source::Here(_) => ("configuration", None),
            Source::File(path) => ("file", Some(path)),
            Source::Read { file: Some(path), .. } => ("file", Some(path)),
            Source::Environment(_) | Source::Read { file: None, .. } => ("environment", None),
        };
        json!({
            "name": user.login.name,
            "secret": kind,
            "file": file.map(|path| path.display().to_string()),
            "initiators": user.initiators.to_string(),
        })
    };
    access.users.iter().map(user).collect()
}

impl Manager {
    /// The volumes, by name.
    pub fn volumes(&self) -> Value {
        let now = self.now();
        let through = self.handle.written_through();
        let sanitations = self.handle.sanitations();
        let mut out = Vec::new();
        for (name, open) in &now.open {
            let caps = open.volume.caps();
            let path = open.config.path(&now.plan.data);
            let used = match open.config.backend {
                Backend::File { .. } => path.as_ref().and_then(|path| path.metadata().ok()),
                _ => None,
            };
            let luns: Vec<Value> = now
                .luns_of(name)
                .map(|(target, lun)| json!({ "target": target, "lun": lun }))
                .collect();
            out.push(json!({
                "name": name,
                "backend": backend(&open.config),
                "size_bytes": caps.bytes(),
                "used_bytes": used.map(|file| file.blocks() * 512),
                "block_size": caps.block_size,
                "read_only": caps.read_only,
                "write_cache": write_cache(open, through.contains(name)),
                "faults": faults(open),
                "erasure": erasure(&sanitations, name),
                "limits": limits(&open.config.layers),
                "path": path.map(|path| path.display().to_string()),
                "luns": luns,
                "sessions": self.sessions_on(&now, name),
                "snapshots": snapshots::list(&now.plan.data, open).map_or(0, |all| all.len()),
            }));
        }
        out.extend(now.unserved.values().map(|one| self.unserved(&now, one)));
        out.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
        out.into()
    }

    /// A volume that is not served, in the form of the others.
    fn unserved(&self, now: &Served, one: &Unserved) -> Value {
        let (config, failure) = (&one.config, &one.failure);
        let luns = now.luns_of(&config.name);
        let luns: Vec<Value> =
            luns.map(|(target, lun)| json!({ "target": target, "lun": lun })).collect();
        json!({
            "name": config.name,
            "backend": backend(config),
            "size_bytes": one.size.unwrap_or(0),
            "used_bytes": null,
            "block_size": config.block_size.unwrap_or(512),
            "read_only": config.read_only,
            "write_cache": "none",
            "faults": [{
                "state": failure.kind.state(),
                "since": one.since,
                "text": format!("not served: {}", failure.text()),
            }],
            "erasure": null,
            "limits": limits(&config.layers),
            "path": config.path(&now.plan.data).map(|path| path.display().to_string()),
            "luns": luns,
            "sessions": self.sessions_on(now, &config.name),
            "snapshots": 0,
        })
    }

    /// The snapshots of a volume or of all, the oldest of each first.
    ///
    /// # Errors
    /// There is no such volume, or a directory cannot be read.
    pub fn snapshots(&self, volume: Option<&str>) -> Result<Value> {
        let now = self.now();
        if let Some(name) = volume {
            now.volume(name)?;
        }
        let mut out = Vec::new();
        for (name, open) in now.open.iter().filter(|(name, _)| volume.is_none_or(|v| v == *name)) {
            for snapshot in snapshots::list(&now.plan.data, open)? {
                out.push(json!({
                    "volume": name,
                    "snapshot": snapshot.name,
                    "size_bytes": snapshot.bytes,
                    "created": snapshot.created,
                }));
            }
        }
        Ok(out.into())
    }

    /// The targets with their LUNs, in the order of the configuration.
    pub fn targets(&self) -> Value {
        let now = self.now();
        let config = &now.plan.config;
        let target = |target: &crate::config::Target| {
            let lun = |(lun, at): &(u16, usize)| {
                let volume = &config.volumes[*at].name;
                let bytes = now.open.get(volume).map(|open| open.volume.caps().bytes());
                json!({ "lun": lun, "volume": volume, "size_bytes": bytes })
            };
            json!({
                "name": target.name,
                "alias": target.alias,
                "for": match target.reach() {
                    Reach::Named => "named",
                    Reach::Everybody => "everybody",
                    Reach::ThisMachine => "this-machine",
                },
                "luns": target.luns.iter().map(lun).collect::<Vec<_>>(),
                "sessions": self.sessions(|name| name == target.name),
                "initiators": target.access.initiators.to_string(),
                "users": users(&target.access),
                "mutual": target.access.mutual.as_ref().map(|own| own.name.as_str()),
            })
        };
        config.targets.iter().map(target).collect()
    }

    /// The configuration in force.
    pub fn configuration(&self) -> Configuration {
        let now = self.now();
        let shown = Editor::new(&Self::text(&now)).map(|mut editor| {
            editor.hide_secrets();
            editor.text()
        });
        // It is in force, so it can be read.
        let text = shown.unwrap_or_default();
        let table: toml::Table = text.parse().unwrap_or_default();
        let config = match serde_json::to_value(table) {
            Ok(Value::Object(config)) => config,
            _ => serde_json::Map::new(),
        };
        let path = |path: &std::path::Path| {
            std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
        };
        Configuration {
            file: path(&self.file),
            embedded: now.plan.text.is_none(),
            text,
            config,
            data: path(&now.plan.data),
            socket: path(&now.plan.socket),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    #[test]
    fn only_limits_of_all_reads_or_writes_are_told() {
        let rate = NonZeroU64::new(1000).expect("not 0");
        let bytes = Layer::new(Effect::Limit(Rate::Bytes(rate)), Ops::ALL);
        let reads = Layer::new(Effect::Limit(Rate::Operations(rate)), Ops::READ);
        let part = Layer { which: Which::Share(5), ..bytes.clone() };
        let place = Layer { range: Some(0..512), ..bytes.clone() };
        let flushes = Layer::new(Effect::Limit(Rate::Operations(rate)), Ops::FLUSH);
        let told =
            limits(&[bytes, reads, part, place, flushes, Layer::new(Effect::Hang, Ops::ALL)]);
        let expected = [
            json!({ "on": "all", "bytes_per_s": 1000 }),
            json!({ "on": "read", "operations_per_s": 1000 }),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn what_erases_a_volume_is_told_with_its_progress() {
        let stand = |stands, progress| [("vm1".to_owned(), stands, progress)];
        let told = |stands, progress| erasure(&stand(stands, progress), "vm1");
        let under_way = |state| json!({ "state": state, "progress": 0.25 });
        assert_eq!(told(Sanitation::Formatting, Some(0x4000)), under_way("formatting"));
        assert_eq!(told(Sanitation::Running, Some(0x4000)), under_way("sanitizing"));
        let unfinished = json!({ "state": "format-unfinished", "progress": null });
        assert_eq!(told(Sanitation::Unformatted, None), unfinished);
        let failed = told(Sanitation::Failed { restricted: true }, None);
        assert_eq!(failed["state"], "sanitize-failed");
        assert_eq!(told(Sanitation::None, None), Value::Null);
        assert_eq!(erasure(&stand(Sanitation::Formatting, Some(0)), "vm2"), Value::Null);
    }
}
