//! Sentences for what the operating system refuses: what was to be done, where, why not, and the next step.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Result, anyhow};
use lunet_api::Code;
use lunet_backends::OpenError;
use lunet_backends::snapshot::SnapshotError;
use lunet_files::ReadError;

use crate::opening::Failure;
use crate::plan::Wrong;
use lunet_config::edit::EditError;

/// A result of the operating system at a path.
pub trait At<T> {
    /// `cannot ACTION PATH: why: the next step`.
    ///
    /// # Errors
    /// That sentence, if it has failed.
    fn at(self, action: &str, path: &Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, action: &str, path: &Path) -> Result<T> {
        self.map_err(|error| refused(action, path, &error.into()))
    }
}

/// Refuses what a client asks. `fix` is what to do next; empty if the message says it.
///
/// # Errors
/// Always.
pub fn refuse<T>(code: Code, message: impl Into<String>, fix: impl Into<String>) -> Result<T> {
    Err(lunet_api::Error::new(code, message).fix(fix).into())
}

/// What a client is told of an error: with the code that it has, if it has one.
pub fn coded(error: &anyhow::Error) -> lunet_api::Error {
    let Some(found) = error.downcast_ref::<lunet_api::Error>() else {
        return lunet_api::Error::new(code_of(error), format!("{error:#}"));
    };
    // What was being done stands before it.
    let contexts = error.chain().take_while(|one| !one.is::<lunet_api::Error>());
    let message: String = contexts.map(|context| format!("{context}: ")).collect();
    lunet_api::Error { message: message + &found.message, ..found.clone() }
}

/// The code of an error that has none itself.
fn code_of(error: &anyhow::Error) -> Code {
    // A volume that was never there cannot be opened: so it is with what was asked for.
    let cannot_be = error.downcast_ref::<Failure>().is_some_and(Failure::is_of_new);
    if error.is::<Wrong>() || error.is::<EditError>() || cannot_be {
        return Code::Invalid;
    }
    if error.downcast_ref::<OpenError>().is_some_and(OpenError::is_unsure) {
        return Code::NotAnswered;
    }
    match error.downcast_ref() {
        Some(
            SnapshotError::NoReflink { .. }
            | SnapshotError::OtherFileSystem { .. }
            | SnapshotError::NeverStored { .. },
        ) => Code::Unsupported,
        Some(SnapshotError::Exists { .. }) => Code::Exists,
        _ => Code::Failed,
    }
}

/// The sentence for an error at a path.
pub fn refused(action: &str, path: &Path, error: &io::Error) -> anyhow::Error {
    let user = rustix::process::geteuid().as_raw();
    anyhow!("cannot {action} {}: {error}: {}", path.display(), step(error.kind(), user))
}

/// The sentence for a file that cannot be taken up, with the next step where the operating system has refused it.
pub fn unread(error: ReadError) -> anyhow::Error {
    match error {
        ReadError::Unreadable { path, error } => refused("read", &path, &error),
        error => error.into(),
    }
}

fn step(kind: ErrorKind, user: u32) -> String {
    match kind {
        ErrorKind::PermissionDenied if user == 0 => {
            "not even root may, so a mount option or a security module forbids it".to_owned()
        }
        ErrorKind::PermissionDenied => format!(
            "lunet runs as user {user}: give that user access to it and to the directories above, or run \
             lunet as another user"
        ),
        ErrorKind::NotFound => {
            "see whether its file system is mounted, and the path is right".to_owned()
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "make room on its file system (`df -h`, `df -i`, quotas)".to_owned()
        }
        ErrorKind::ReadOnlyFilesystem => {
            "its file system is mounted read-only: mount it for writing, or take another place"
                .to_owned()
        }
        ErrorKind::NotADirectory | ErrorKind::IsADirectory | ErrorKind::AlreadyExists => {
            "something else has that name: move it away, or name another place".to_owned()
        }
        ErrorKind::InvalidInput | ErrorKind::FileTooLarge | ErrorKind::InvalidData => {
            "is it the right file?".to_owned()
        }
        _ => "see the kernel's log (`dmesg`) for this file system".to_owned(),
    }
}

/// Why an address cannot be listened on, with the next step. `place` says how to name another.
pub fn listening(address: SocketAddr, error: &io::Error, place: &str) -> String {
    let ip = address.ip();
    let step = match error.kind() {
        ErrorKind::AddrNotAvailable => format!(
            "no interface of this machine has {ip} (`ip -br address` shows those that there are): set it up, or \
             {place}"
        ),
        ErrorKind::PermissionDenied if address.port() < 1024 && address.port() > 0 => format!(
            "ports below 1024 need root or CAP_NET_BIND_SERVICE: {place}, 3260 for instance"
        ),
        _ => format!("{place}, or see whether the network is up (`ip -br address`)"),
    };
    format!("cannot listen on {address}: {error}: {step}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_a_next_step() {
        let of = |kind: ErrorKind| {
            let failed: io::Result<()> = Err(kind.into());
            failed.at("write", Path::new("/srv/x")).unwrap_err().to_string()
        };
        for (kind, words) in [
            (ErrorKind::NotFound, "mounted"),
            (ErrorKind::StorageFull, "`df -h`"),
            (ErrorKind::ReadOnlyFilesystem, "mounted read-only"),
            (ErrorKind::NotADirectory, "move it away"),
            (ErrorKind::Other, "`dmesg`"),
        ] {
            let text = of(kind);
            assert!(text.starts_with("cannot write /srv/x: ") && text.contains(words), "{text}");
        }
        assert!(step(ErrorKind::PermissionDenied, 990).contains("user 990"));
        assert!(step(ErrorKind::PermissionDenied, 0).contains("not even root"));
    }

    #[test]
    fn an_error_keeps_its_code_behind_what_was_being_done() {
        let error = refuse::<()>(Code::NotFound, "there is no volume a", "make one").unwrap_err();
        assert_eq!(coded(&error).to_string(), "there is no volume a: make one");
        let told = coded(&error.context("volume b").context("while cloning"));
        assert_eq!(told.code, Code::NotFound);
        assert_eq!(told.to_string(), "while cloning: volume b: there is no volume a: make one");
        let share = SnapshotError::NoReflink { path: "/a".into() };
        let told = coded(&anyhow::Error::from(share).context("volume b"));
        assert_eq!(told.code, Code::Unsupported);
        assert!(told.message.starts_with("volume b: /a: the file system cannot share"), "{told}");
        let plain = coded(&anyhow!("inner").context("outer"));
        assert_eq!((plain.code, plain.message.as_str()), (Code::Failed, "outer: inner"));
    }

    #[test]
    fn an_address_that_cannot_be_had_is_told_with_what_to_do() {
        let told = |text: &str, kind: ErrorKind| {
            listening(text.parse().unwrap(), &kind.into(), "take another with --listen")
        };
        let missing = told("192.0.2.7:3260", ErrorKind::AddrNotAvailable);
        assert!(missing.contains("`ip -br address`") && missing.contains("--listen"), "{missing}");
        let low = told("127.0.0.1:860", ErrorKind::PermissionDenied);
        assert!(low.contains("below 1024") && low.contains("3260"), "{low}");
        assert!(told("[::1]:1", ErrorKind::Other).contains("network is up"));
    }
}
