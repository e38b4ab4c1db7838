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

/// What somebody is told of.
#[derive(Clone, Copy, Debug)]
pub enum About<'a> {
    /// A change of what is served.
    Change(&'a Change),
    /// Something else, which has changed these lists if it was done.
    Lists(&'a [&'static str]),
}

/// Is told of each change that was asked for, and with `None` of lists that are different though nobody has asked for it. It
/// must not wait.
type Ear = Box<dyn Fn(About<'_>, Option<Told>) + Send + Sync>;

/// Somebody who is told of each change, if there is somebody.
#[derive(Clone, Default)]
pub struct Listener(Arc<OnceLock<Ear>>);

impl Listener {
    /// Has somebody told, once.
    pub fn set(&self, ear: impl Fn(About<'_>, Option<Told>) + Send + Sync + 'static) {
        self.0.get_or_init(|| Box::new(ear));
    }

    /// Lists are different, though nobody has asked for it here.
    pub fn differs(&self, lists: &'static [&'static str]) {
        self.0.get().into_iter().for_each(|ear| ear(About::Lists(lists), None));
    }

    fn tell(
        &self,
        origin: &Origin,
        (about, what): (About<'_>, String),
        result: &anyhow::Result<Done>,
    ) {
        let Some(ear) = self.0.get() else { return };
        let outcome = match result {
            Ok(done) => Ok(short(&done.done)),
            Err(error) => Err(short(&format!("{error:#}"))),
        };
        ear(about, Some(Told { origin: origin.clone(), what, outcome }));
    }
}

/// What was asked of a failover group, and what it concerns: `move-group name="vms" gateway=2`.
pub fn of_group(kind: &str, group: &str, gateway: Option<u16>) -> String {
    let gateway = gateway.map(|number| format!(" gateway={number}")).unwrap_or_default();
    short(&format!("{kind} name={:?}{gateway}", printable(group)))
}

/// The same as [`log`] for something that is no [`Change`]: what it is, and the lists that it changes.
pub fn log_other(
    origin: &Origin,
    (what, lists): (String, &[&'static str]),
    result: &anyhow::Result<Done>,
    listener: &Listener,
) {
    listener.tell(origin, (About::Lists(lists), what.clone()), result);
    written(origin, &what, result);
}

/// Writes the line, and one for each session that loses something or stays on request, up to a bound; and tells whoever
/// listens.
pub fn log(origin: &Origin, change: &Change, result: &anyhow::Result<Done>, listener: &Listener) {
    let what = described(change);
    listener.tell(origin, (About::Change(change), what.clone()), result);
    written(origin, &what, result);
}

fn written(origin: &Origin, change: &str, result: &anyhow::Result<Done>) {
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
    fn whoever_listens_is_told_of_orders_and_of_what_nobody_has_asked_for() {
        let (listener, heard) =
            (Listener::default(), Arc::<std::sync::Mutex<Vec<String>>>::default());
        let taken = heard.clone();
        listener.set(move |about, told| {
            let About::Lists(lists) = about else { panic!("no change was asked for") };
            let what = told.map(|told| format!("{} {:?}", told.what, told.outcome));
            taken.lock().unwrap().push(format!("{lists:?} {what:?}"));
        });
        listener.differs(&["groups"]);
        let what = of_group("move-group", "v\u{202e}ms", Some(2));
        assert_eq!(what, "move-group name=\"v?ms\" gateway=2");
        let refused = Err(anyhow::anyhow!("no"));
        log_other(&Origin::Signal, (what, &["groups"]), &refused, &listener);
        let heard = heard.lock().unwrap();
        assert_eq!(heard[0], "[\"groups\"] None");
        assert!(heard[1].contains("move-group") && heard[1].contains("no"), "{heard:?}");
    }

    #[test]
    fn a_line_has_no_breaks() {
        assert_eq!(short("two\nlines  of\ttext"), "two lines of text");
    }
}
