//! Entries of the log for systemd-journald, in its native protocol: an entry has fields besides its text.
//!
//! `journalctl LUNET_VOLUME=vm1` shows those of a volume. The protocol: <https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>.

use std::fmt::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;

use tracing::{Event, Level};

use super::{Told, one_line};

/// Where journald listens.
const SOCKET: &str = "/run/systemd/journal/socket";

/// The variable of the environment that says which stream goes to the journal (systemd.exec(5)).
const VARIABLE: &str = "JOURNAL_STREAM";

/// The severities of syslog.
pub const CRITICAL: u8 = 2;
pub const ERROR: u8 = 3;
pub const NOTICE: u8 = 5;

/// A connection to journald, if this stream goes to the journal.
pub fn connect(stream: impl AsFd) -> Option<UnixDatagram> {
    let named = std::env::var(VARIABLE).ok()?;
    if !is_named(stream, &named) {
        return None;
    }
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect(SOCKET).ok()?;
    Some(socket)
}

/// Whether a stream is the one with this `DEVICE:INODE`.
fn is_named(stream: impl AsFd, named: &str) -> bool {
    let Some((device, inode)) = named.split_once(':') else { return false };
    rustix::fs::fstat(stream)
        .is_ok_and(|found| device.parse() == Ok(found.st_dev) && inode.parse() == Ok(found.st_ino))
}

/// An entry with this text.
pub fn entry(severity: u8, text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 64);
    field(&mut out, "PRIORITY", &severity.to_string());
    field(&mut out, "SYSLOG_IDENTIFIER", "lunet");
    field(&mut out, "MESSAGE", one_line(text).trim_end_matches('\n'));
    out
}

/// The same of a volume.
pub fn entry_of(volume: &str, severity: u8, text: &str) -> Vec<u8> {
    let mut out = entry(severity, text);
    field(&mut out, "LUNET_VOLUME", volume);
    out
}

fn field(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(name.as_bytes());
    if value.contains('\n') {
        out.push(b'\n');
        out.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        out.push(b'=');
    }
    out.extend_from_slice(value.as_bytes());
    out.push(b'\n');
}

/// The entry of an event.
pub fn of_event(event: &Event<'_>) -> Vec<u8> {
    let severity = match *event.metadata().level() {
        Level::ERROR => ERROR,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    };
    let told = Told::of(event, false);
    let mut text = told.text;
    for (name, value) in &told.fields {
        let _ = write!(text, " {name}={value}");
    }
    let mut out = entry(severity, &text);
    for (name, value) in &told.fields {
        let name = name.to_ascii_uppercase().replace('.', "_");
        let value = one_line(value.trim_matches('"'));
        field(&mut out, &format!("LUNET_{name}"), value.trim_end_matches('\n'));
    }
    out
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use tracing::level_filters::LevelFilter;

    use super::super::{Log, Outlet};
    use super::*;

    #[test]
    fn the_journal_is_known_by_its_inode() {
        let file = File::open("/dev/null").unwrap();
        let found = file.metadata().unwrap();
        let named = format!("{}:{}", found.dev(), found.ino());
        assert!(is_named(&file, &named));
        for wrong in [format!("{}:{}", found.dev(), found.ino() + 1), "x".into(), String::new()] {
            assert!(!is_named(&file, &wrong), "{wrong}");
        }
    }

    #[test]
    fn an_entry_has_fields() {
        let outlet: &'static Outlet = Box::leak(Box::new(Outlet::for_journal()));
        let log = Log { outlet, level: LevelFilter::INFO, colours: false };
        tracing::subscriber::with_default(log, || {
            let initiator = "iqn.2026-11.l:h";
            tracing::warn!(volume = %"vm1", ?initiator, code = 7, "the disk\nis {}", "full");
        });
        let entries: Vec<Vec<u8>> =
            super::super::records(&outlet.lock().bytes).map(<[u8]>::to_vec).collect();
        let [entry] = &entries[..] else { panic!("{entries:?}") };
        let text = "the disk\n    is full volume=vm1 initiator=\"iqn.2026-11.l:h\" code=7";
        let mut wanted = b"PRIORITY=4\nSYSLOG_IDENTIFIER=lunet\nMESSAGE\n".to_vec();
        wanted.extend_from_slice(&(text.len() as u64).to_le_bytes());
        wanted.extend_from_slice(text.as_bytes());
        wanted.extend_from_slice(
            b"\nLUNET_VOLUME=vm1\nLUNET_INITIATOR=iqn.2026-11.l:h\nLUNET_CODE=7\n",
        );
        assert_eq!(String::from_utf8_lossy(entry), String::from_utf8_lossy(&wanted));
    }
    #[test]
    fn the_journal_finds_what_the_program_says_of_a_volume() {
        let text = String::from_utf8(entry_of("vm1", NOTICE, "note: not served")).unwrap();
        let wanted =
            "PRIORITY=5\nSYSLOG_IDENTIFIER=lunet\nMESSAGE=note: not served\nLUNET_VOLUME=vm1\n";
        assert_eq!(text, wanted);
    }
}
