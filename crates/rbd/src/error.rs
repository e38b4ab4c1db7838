//! What can go wrong, in sentences that say what to do.

use std::io;

use crate::ImageName;

/// Why there are no volumes on Ceph in this process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// A library cannot be opened.
    #[error(
        "volumes on Ceph need {file}, which cannot be opened ({reason}): install the libraries of Ceph, on Debian and \
         Ubuntu the packages librados2 and librbd1"
    )]
    File {
        /// The name or path that was tried.
        file: String,
        /// What the system says about it.
        reason: String,
    },
    /// A library is too old.
    #[error(
        "volumes on Ceph need a newer {file}, as this one has no function {function}: install librados2 and librbd1 of \
         Ceph 16 or newer"
    )]
    Function {
        /// The library's name or path.
        file: String,
        /// The function's name.
        function: &'static str,
    },
}

/// Why an image cannot be used, without its name.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The libraries are missing.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The configuration of Ceph cannot be read.
    #[error(
        "the configuration of Ceph {path} cannot be read ({source}): give the right one as `ceph-conf`"
    )]
    Conf {
        /// The file.
        path: String,
        /// What librados says about it.
        source: io::Error,
    },
    /// A setting of Ceph that would endanger data.
    #[error("Ceph's setting {option} is \"{value}\" for this client: {why}")]
    Setting {
        /// Its name.
        option: String,
        /// Its value.
        value: String,
        /// What it would do, and what to set instead.
        why: &'static str,
    },
    /// The user lacks a right without which no takeover is safe.
    #[error(
        "{user} may not shut other clients out of the cluster (osd blocklist add), without which no takeover is safe: let it \
         by `ceph auth caps {user} mon 'profile rbd' ...` with the osd and mgr rights that it has"
    )]
    Rights {
        /// The user, as Ceph calls it.
        user: String,
    },
    /// The cluster does not let the user in, or is not reached.
    #[error("the cluster of {conf} does not let client.{user} in ({source}): {step}")]
    Connect {
        /// The configuration of Ceph.
        conf: String,
        /// The user, without `client.`.
        user: String,
        /// What librados says about it.
        source: io::Error,
        /// What to look at.
        step: &'static str,
    },
    /// The pool cannot be used.
    #[error(
        "the pool {pool} cannot be used ({source}): see `ceph osd pool ls`, and the user's caps in `ceph auth get`"
    )]
    Pool {
        /// The pool's name.
        pool: String,
        /// What librados says about it.
        source: io::Error,
    },
    /// The image is not there.
    #[error("there is no such image: make it with `rbd create --size SIZE {}`", name.plain())]
    NoImage {
        /// Its name.
        name: ImageName,
    },
    /// There is one of this name already.
    #[error("there is an image {} already: choose another name", name.plain())]
    Exists {
        /// Its name.
        name: ImageName,
    },
    /// Somebody has seen to it that a snapshot stays.
    #[error(
        "the snapshot is protected: `rbd snap unprotect {name}` first, which the cluster refuses while it has clones"
    )]
    Protected {
        /// Its name, with that of its image.
        name: String,
    },
    /// A feature that would let two clients write, write twice, or read what is old.
    #[error("{text}: `rbd feature {step} {} {feature}`", name.plain())]
    Feature {
        /// Its name.
        name: ImageName,
        /// What is wrong.
        text: &'static str,
        /// What puts it right: enable or disable.
        step: &'static str,
        /// The feature's name.
        feature: &'static str,
    },
    /// Somebody else has the exclusive lock.
    #[error(
        "the image is in use by the client {owner} (`rbd lock ls {}`): stop that one first; if its machine is dead \
         for sure, shut it out for good with `ceph osd blocklist add {owner} 315360000`, then remove its lock", name.plain()
    )]
    Locked {
        /// Its name.
        name: ImageName,
        /// The address of the client that has the lock.
        owner: String,
    },
    /// It is not this client's to change. librbd would take the lock for it by itself, or ask whoever has it.
    #[error("this server does not have the lock of the image, or has lost it: nothing was changed")]
    NotLocked,
    /// The client that had the image before is on the blocklist, and comes off it too soon.
    #[error(
        "the client {owner}, which had the image before, is shut out of the cluster {}, as Ceph does not lengthen an entry \
         of its blocklist, and what it has sent could land after that over newer writes: wait until then, or make sure that \
         it is gone (its machine is dead, or lunet was restarted since), then `ceph osd blocklist rm {owner}` and try again",
        until(ends.as_deref())
    )]
    ShortEntry {
        /// The address of that client.
        owner: String,
        /// When its entry ends, in the cluster's words; `None` if the list has none.
        ends: Option<String>,
    },
    /// There was no answer in time.
    #[error("the cluster did not answer within {seconds} s: see `ceph -s`")]
    Late {
        /// How long it was waited for.
        seconds: u64,
    },
    /// Another image of the cluster has waited for it in vain just now.
    #[error("the cluster of {conf} did not answer a moment ago: see `ceph -s`")]
    Silent {
        /// The configuration of Ceph.
        conf: String,
    },
    /// It is not made shorter.
    #[error(
        "the image has {bytes} bytes by now, and is not made shorter: what lies behind the new end would be lost"
    )]
    Longer {
        /// Its size in bytes.
        bytes: u64,
    },
    /// The client was shut out of the cluster while the cluster did something for it.
    #[error(
        "this server was shut out of the cluster before it heard whether it could {what}, so it may have been done: look at \
         it, and ask again if it was not"
    )]
    Unsure {
        /// What was tried.
        what: &'static str,
    },
    /// Something that has no sentence of its own.
    #[error("cannot {what}: {source}")]
    Failed {
        /// What was tried.
        what: &'static str,
        /// What the library says about it.
        source: io::Error,
    },
}

impl Error {
    /// The error of a call that returns a negative error number.
    pub(crate) fn of(what: &'static str, returned: i32) -> Self {
        Self::Failed { what, source: errno(returned) }
    }

    /// True if the cluster has not answered at all.
    pub fn is_silence(&self) -> bool {
        match self {
            Self::Late { .. } | Self::Silent { .. } => true,
            Self::Connect { source, .. } => source.raw_os_error() == Some(libc::ETIMEDOUT),
            _ => false,
        }
    }
}

fn until(ends: Option<&str>) -> String {
    ends.map_or_else(|| "no more".to_owned(), |ends| format!("until {ends} only"))
}

/// The error number of a call that returns a negative one.
pub(crate) fn checked(returned: i32) -> Result<(), i32> {
    if returned < 0 { Err(returned.saturating_neg()) } else { Ok(()) }
}

/// What the system calls a negative error number that a library returned.
pub(crate) fn errno(returned: i32) -> io::Error {
    io::Error::from_raw_os_error(returned.saturating_abs())
}
