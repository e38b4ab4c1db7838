//! Who has changed what: a line of the log for each change that was asked for, done or refused.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use lunet_api::{Change, Done};
use lunet_iscsi::printable::printable;
use serde_json::Value;

use crate::control::Asker;
use crate::{live, trouble, users};

/// The longest line of an answer, in characters.
const MOST: usize = 500;

/// What of a change is told besides its kind: what tells which thing it concerns. Never a secret.
const TOLD: [&str; 16] = [
    "name",
    "volume",
    "snapshot",
    "target",
    "lun",
    "session",
    "initiator",
    "user",
    "address",
    "tag",
    "backend",
    "size",
    "path",
    "keep_data",
    "keep_sessions",
    "force",
];

/// Where a change comes from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// The REST interface: who, and from where; without an address, from this machine over a Unix socket.
    Rest(String, Option<IpAddr>),
    /// A client of the control socket.
    Socket(Asker),
    /// SIGHUP.
    Signal,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rest(who, Some(address)) => write!(f, "{} from {address}", printable(who)),
            Self::Rest(who, None) => write!(f, "{}", printable(who)),
            Self::Signal => f.write_str("SIGHUP"),
            Self::Socket(Asker { uid, pid }) => {
                let name = users::name(*uid);
                let name = printable(name.as_deref().unwrap_or("user"));
                write!(f, "{name} (uid {uid}, pid {pid})")
            }
        }
    }
}

/// A change that was asked for, in words.
#[derive(Clone, Debug)]
pub struct Told {
    /// Where it came from.
    pub origin: Origin,
    /// Its kind, and what it concerns.
    pub what: String,
    /// What was done, or why it was refused.
    pub outcome: Result<String, String>,
}

/// Is told of each change that was asked for. It must not wait.
type Ear = Box<dyn Fn(&Change, Told) + Send + Sync>;

/// Somebody who is told of each change, if there is somebody.
#[derive(Clone, Default)]
pub struct Listener(Arc<OnceLock<Ear>>);

impl Listener {
    /// Has somebody told, once.
    pub fn set(&self, ear: impl Fn(&Change, Told) + Send + Sync + 'static) {
        self.0.get_or_init(|| Box::new(ear));
    }

    fn tell(&self, origin: &Origin, change: &Change, result: &anyhow::Result<Done>) {
        let Some(ear) = self.0.get() else { return };
        let outcome = match result {
            Ok(done) => Ok(short(&done.done)),
            Err(error) => Err(short(&format!("{error:#}"))),
        };
        ear(change, Told { origin: origin.clone(), what: described(change), outcome });
    }
}

/// Writes the line, and one for each session that loses something or stays on request, up to a bound; and tells whoever
/// listens.
pub fn log(origin: &Origin, change: &Change, result: &anyhow::Result<Done>, listener: &Listener) {
    listener.tell(origin, change, result);
    let change = described(change);
    match result {
        Ok(done) => {
            tracing::info!("change by {origin}: {change}: {}", short(&done.done));
            for session in live::concerned(&done.sessions) {
                tracing::warn!("by this change, {}", short(&session));
            }
        }
        Err(error) => {
            let code = trouble::coded(error).code;
            tracing::warn!(
                code = code.as_str(),
                "change by {origin}: {change}: refused: {}",
                short(&format!("{error:#}"))
            );
        }
    }
}

/// The kind of a change, and what it concerns: `create-volume name="a" size=1024`.
pub(crate) fn described(change: &Change) -> String {
    let change = serde_json::to_value(change).unwrap_or_default();
    let mut out = change["do"].as_str().unwrap_or_default().to_owned();
    let limits = change["limits"].as_object().into_iter().flatten();
    for (key, value) in limits {
        out += &format!(" {key}={value}");
    }
    for key in TOLD {
        match &change[key] {
            Value::Bool(true) => out += &format!(" {key}"),
            Value::Number(number) => out += &format!(" {key}={number}"),
            Value::String(text) => out += &format!(" {key}={:?}", printable(text)),
            _ => {}
        }
    }
    short(&out)
}

/// One line of bounded length.
fn short(text: &str) -> String {
    let mut out: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((at, _)) = out.char_indices().nth(MOST) {
        out.truncate(at);
        out += "...";
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunet_api::{Backend, NewVolume};

    #[test]
    fn a_change_is_told_by_its_kind_and_what_it_concerns() {
        let volume = NewVolume { name: "a".into(), backend: Backend::File, ..NewVolume::default() };
        let create = Change::CreateVolume(NewVolume { size: Some(1 << 20), ..volume });
        let told = "create-volume name=\"a\" backend=\"file\" size=1048576";
        assert_eq!(described(&create), told);
        let delete =
            Change::DeleteVolume { name: "x\u{202e}\"y".into(), keep_data: false, force: true };
        assert_eq!(described(&delete), "delete-volume name=\"x?\\\"y\" force");
        let long = Change::CreateTarget { name: "z".repeat(10_000), alias: None, nvme: false };
        assert_eq!(described(&long).chars().count(), MOST + 3);
    }

    #[test]
    fn a_line_has_no_breaks() {
        assert_eq!(short("two\nlines  of\ttext"), "two lines of text");
    }
}
