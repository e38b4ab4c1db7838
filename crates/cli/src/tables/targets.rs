//! `lunet target list`

use lunet_api::{Reach, Target};

use super::layout::{Columns, harmless};
use lunet_config::units;

/// A paragraph for each target.
pub fn targets(targets: &[Target]) -> String {
    let mut out = String::new();
    for target in targets {
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
        out.push_str(&who(target));
        if let (Some(nqn), Some(hosts)) = (&target.nqn, &target.hosts) {
            let (nqn, hosts) = (harmless(nqn), harmless(hosts));
            out.push_str(&format!("  over NVMe as {nqn}, for {hosts}\n"));
        }
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
    out
}

/// The users of targets, a line each.
pub fn users(targets: &[Target]) -> String {
    let mut columns = Columns::default();
    columns.row(["target", "user", "secret", "initiators"]);
    for of in targets {
        for user in &of.users {
            let secret = match &user.file {
                Some(file) => harmless(file),
                None => format!("in the {}", user.secret),
            };
            let initiators = harmless(&user.initiators);
            columns.row([harmless(&of.name), harmless(&user.name), secret, initiators]);
        }
    }
    let mut out = String::new();
    columns.write(&mut out);
    out
}

/// The line that says for whom a target is.
fn who(target: &Target) -> String {
    match (&target.reach, &target.initiators) {
        (Reach::Everybody, _) => "  open to everybody who reaches a portal\n".to_owned(),
        (Reach::ThisMachine, _) => {
            "  for this machine alone: let others in with `lunet target allow`\n".to_owned()
        }
        (_, None) => String::new(),
        (_, Some(initiators)) => {
            let users: Vec<String> = target.users.iter().map(|user| harmless(&user.name)).collect();
            let proof = match users.is_empty() {
                true => "without CHAP".to_owned(),
                false => format!("with CHAP as {}", users.join(", ")),
            };
            format!("  for {}, {proof}\n", harmless(initiators))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_target_is_a_paragraph() {
        let answer = json!([
            {"name": "iqn.x:a", "alias": "VMs", "for": "this-machine", "sessions": 1,
             "nqn": "nqn.x:a", "hosts": "nqn.x:h", "luns": [
                {"lun": 0, "volume": "vm1", "size_bytes": 8u64 << 30},
                {"lun": 10, "volume": "db", "size_bytes": null},
            ]},
            {"name": "iqn.x:b", "alias": null, "for": "named", "sessions": 0, "luns": [], "initiators": "nobody",
             "users": [{"name": "bob", "secret": "file", "file": "/s", "initiators": "everybody"}]},
        ]);
        let answer: Vec<Target> = serde_json::from_value(answer).expect("an answer");
        assert_eq!(
            users(&answer),
            "  target   user  secret  initiators\n  iqn.x:b   bob      /s   everybody\n"
        );
        assert_eq!(
            targets(&answer),
            "iqn.x:a (VMs), 1 session\n  \
               for this machine alone: let others in with `lunet target allow`\n  \
               over NVMe as nqn.x:a, for nqn.x:h\n  \
               LUN 0   vm1  8 GiB\n  \
               LUN 10   db      -\n\
             \n\
             iqn.x:b, 0 sessions\n  \
               for nobody, with CHAP as bob\n  \
               no LUNs\n"
        );
    }
}
