//! `lunet target list`

use serde::Deserialize;
use serde_json::Value;

use super::layout::{Columns, harmless};
use crate::units;

#[derive(Deserialize)]
struct Target {
    name: String,
    alias: Option<String>,
    luns: Vec<Lun>,
    sessions: usize,
}

#[derive(Deserialize)]
struct Lun {
    lun: u16,
    volume: String,
    size_bytes: Option<u64>,
}

/// A paragraph for each target.
///
/// # Errors
/// The answer is not what this version of lunet expects.
pub fn targets(answer: &Value) -> serde_json::Result<String> {
    let targets = Vec::<Target>::deserialize(answer)?;
    let mut out = String::new();
    for target in &targets {
        if !out.is_empty() {
            out.push('\n');
        }
        let alias = target.alias.as_ref().map(|alias| format!(" ({})", harmless(alias)));
        let sessions = match target.sessions {
            1 => "1 session".to_owned(),
            n => format!("{n} sessions"),
        };
        out.push_str(&harmless(&target.name));
        out.push_str(&format!("{}, {sessions}\n", alias.unwrap_or_default()));
        if target.luns.is_empty() {
            out.push_str("  no LUNs\n");
        }
        let mut columns = Columns::default();
        for lun in &target.luns {
            let size = lun.size_bytes.map_or_else(|| "-".to_owned(), units::size);
            columns.row([format!("LUN {}", lun.lun), harmless(&lun.volume), size]);
        }
        columns.write(&mut out);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_target_is_a_paragraph() {
        let answer = json!([
            {"name": "iqn.x:a", "alias": "VMs", "sessions": 1, "luns": [
                {"lun": 0, "volume": "vm1", "size_bytes": 8u64 << 30},
                {"lun": 10, "volume": "db", "size_bytes": null},
            ]},
            {"name": "iqn.x:b", "alias": null, "sessions": 0, "luns": []},
        ]);
        assert_eq!(
            targets(&answer).unwrap(),
            "iqn.x:a (VMs), 1 session\n  \
               LUN 0   vm1  8 GiB\n  \
               LUN 10   db      -\n\
             \n\
             iqn.x:b, 0 sessions\n  \
               no LUNs\n"
        );
        assert!(targets(&json!({})).is_err());
    }
}
