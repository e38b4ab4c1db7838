//! `nvme-tcp://host[:port][/nqn[/nsid]][?option=value&...]`, and the same with `nvme-rdma://`.
//!
//! A name has colons, and may have slashes: the namespace is what stands behind the last one, if that
//! is a number.

use std::fmt;

use lunet_nvme::auth::Secret;
use lunet_nvme::name::{NqnError, check_any_nqn, check_nqn};

use crate::place::{self, PlaceError};

/// The port of NVMe over TCP, and of NVMe over RDMA.
pub const PORT: u16 = 4420;

/// Where a namespace is, and how to connect.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    /// Name or address of the machine.
    pub host: String,
    /// TCP port, or that of RDMA.
    pub port: u16,
    /// Over RDMA.
    pub rdma: bool,
    /// The subsystem's NQN; without it, the only one that the portal offers.
    pub nqn: Option<String>,
    /// The namespace; without it, namespace 1.
    pub nsid: Option<u32>,
    /// DH-HMAC-CHAP: by what the host proves itself. No address has it: who knows it sets it.
    pub secret: Option<Secret>,
    /// DH-HMAC-CHAP: by what the controller has to prove itself in turn. Only with `secret`.
    pub controller_secret: Option<Secret>,
    /// The host's key of TLS; with one, every connection has TLS.
    pub tls_key: Option<Secret>,
    /// Header digests.
    pub header_digest: bool,
    /// Data digests.
    pub data_digest: bool,
}

/// Why a text is no address of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// It does not begin with `nvme-tcp://` or `nvme-rdma://`.
    #[error(
        "a namespace's address begins with nvme-tcp:// or nvme-rdma://, as in nvme-tcp://HOST/NQN/NSID"
    )]
    Scheme,
    /// There is no host.
    #[error("the host is missing: nvme-tcp://HOST[:PORT][/NQN[/NSID]]")]
    Host,
    /// An address of IPv6 without brackets.
    #[error("an IPv6 address stands in brackets: nvme-tcp://[{0}]")]
    Brackets(String),
    /// A bracket of an IPv6 address is not closed, or something else than a port is behind it.
    #[error(
        "\"{0}\" is no host: an IPv6 address stands in brackets, with the port behind them: nvme-tcp://[2001:db8::1]:PORT"
    )]
    Open(String),
    /// The port is none.
    #[error("\"{0}\" is no port: a number from 1 to 65535 is")]
    Port(String),
    /// The name is none.
    #[error("\"{0}\" is no name of a subsystem: {1}")]
    Name(String, NqnError),
    /// The namespace is none.
    #[error("\"{0}\" is no namespace: a number from 1 to 4294967294 is")]
    Namespace(String),
    /// A user in front of the host.
    #[error(
        "nvme-tcp:// takes no user in front of the host: --secret-file has the secret, and \
         --host-nqn the host's name"
    )]
    User,
    /// An option is not known, or its value is none of its own.
    #[error("\"{0}\" is no option: header_digest and data_digest take none or crc32c")]
    Option(String),
    /// Digests over RDMA.
    #[error("nvme-rdma:// takes no digests: RDMA has checksums of its own")]
    Digest,
}

impl From<PlaceError> for TargetError {
    fn from(error: PlaceError) -> Self {
        match error {
            PlaceError::Host => Self::Host,
            PlaceError::Brackets(text) => Self::Brackets(text),
            PlaceError::Open(text) => Self::Open(text),
            PlaceError::Port(text) => Self::Port(text),
        }
    }
}

impl Target {
    /// Reads an address.
    ///
    /// # Errors
    /// It is not of this form.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        let schemes = (text.strip_prefix("nvme-tcp://"), text.strip_prefix("nvme-rdma://"));
        let (rest, rdma) = match schemes {
            (Some(rest), _) => (rest, false),
            (None, Some(rest)) => (rest, true),
            (None, None) => return Err(TargetError::Scheme),
        };
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (place, path) = rest.split_once('/').unwrap_or((rest, ""));
        if place.contains('@') {
            return Err(TargetError::User);
        }
        let (host, port) = place::host(place, PORT)?;
        let (name, nsid) = name(path.trim_end_matches('/'))?;
        let mut target = Self {
            host: host.into(),
            port,
            rdma,
            nqn: name.map(Into::into),
            nsid,
            secret: None,
            controller_secret: None,
            tls_key: None,
            header_digest: false,
            data_digest: false,
        };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let wrong = || TargetError::Option(option.into());
            let (key, value) = option.split_once('=').ok_or_else(wrong)?;
            let on = match value {
                "none" => false,
                "crc32c" => true,
                _ => return Err(wrong()),
            };
            match key {
                "header_digest" => target.header_digest = on,
                "data_digest" => target.data_digest = on,
                _ => return Err(wrong()),
            }
        }
        if rdma && (target.header_digest || target.data_digest) {
            return Err(TargetError::Digest);
        }
        Ok(target)
    }

    /// The namespace that is meant.
    #[must_use]
    pub fn namespace(&self) -> u32 {
        self.nsid.unwrap_or(1)
    }
}

/// The name and the namespace of what stands behind the host.
fn name(path: &str) -> Result<(Option<&str>, Option<u32>), TargetError> {
    if path.is_empty() {
        return Ok((None, None));
    }
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (name, nsid) = match path.rsplit_once('/') {
        Some((name, nsid)) if is_number(nsid) => {
            // The largest number means all namespaces.
            let number = nsid.parse().ok().filter(|nsid| (1..u32::MAX).contains(nsid));
            (name, Some(number.ok_or_else(|| TargetError::Namespace(nsid.into()))?))
        }
        _ => (path, None),
    };
    let initiators = ["iqn.", "eui.", "naa."].iter().any(|kind| name.starts_with(kind));
    // Subsystems of other products have names of other forms, too.
    let checked = if initiators { check_nqn(name) } else { check_any_nqn(name) };
    match checked {
        Ok(()) => Ok((Some(name), nsid)),
        Err(error) => Err(TargetError::Name(name.into(), error)),
    }
}

/// Without secrets, and without options.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.rdma { "nvme-rdma://" } else { "nvme-tcp://" })?;
        place::write(f, &self.host, self.port)?;
        if let Some(nqn) = &self.nqn {
            write!(f, "/{nqn}")?;
            if let Some(nsid) = self.nsid {
                write!(f, "/{nsid}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NQN: &str = "nqn.2026-11.local.lunet:demo";

    #[test]
    fn all_parts_are_read() {
        let text = format!("nvme-tcp://10.0.0.1:4421/{NQN}/3?data_digest=crc32c");
        let target = Target::parse(&text).expect("an address");
        assert_eq!((target.host.as_str(), target.port, target.nsid), ("10.0.0.1", 4421, Some(3)));
        assert_eq!(target.nqn.as_deref(), Some(NQN));
        assert!(target.data_digest && !target.header_digest);
        assert_eq!(target.to_string(), format!("nvme-tcp://10.0.0.1:4421/{NQN}/3"));
        let target = Target::parse(&format!("nvme-tcp://[fd00::1]/{NQN}/")).expect("an address");
        assert_eq!((target.host.as_str(), target.port, target.namespace()), ("fd00::1", PORT, 1));
        let target = Target::parse(&format!("nvme-rdma://nas/{NQN}/2")).expect("an address");
        assert_eq!(
            (target.rdma, target.to_string()),
            (true, format!("nvme-rdma://nas:4420/{NQN}/2"))
        );
        let target = Target::parse("nvme-tcp://nas").expect("an address");
        assert_eq!((target.nqn, target.nsid), (None, None));
        // A name may have slashes, and end in a number when a namespace stands behind it.
        let target = Target::parse("nvme-tcp://nas/blktests-subsystem-1/1").expect("an address");
        assert_eq!(target.nqn.as_deref(), Some("blktests-subsystem-1"));
        let text = "nvme-tcp://nas/nqn.2026-11.x.y:a/b/7/2";
        let target = Target::parse(text).expect("an address");
        assert_eq!((target.nqn.as_deref(), target.nsid), (Some("nqn.2026-11.x.y:a/b/7"), Some(2)));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, error) in [
            ("10.0.0.1", TargetError::Scheme),
            ("nvme-tcp://", TargetError::Host),
            ("nvme-rdma://h?header_digest=crc32c", TargetError::Digest),
            ("nvme-tcp://h:0", TargetError::Port("0".into())),
            ("nvme-tcp://fd00::1/x", TargetError::Brackets("fd00::1".into())),
            ("nvme-tcp://[::1:4420/nqn.2026-11.x:y", TargetError::Open("[::1:4420".into())),
            ("nvme-tcp://[::1]4420", TargetError::Open("[::1]4420".into())),
            ("nvme-tcp://[::1]:x", TargetError::Port("x".into())),
            ("nvme-tcp://joe@h/nqn.2026-11.x:y", TargetError::User),
            ("nvme-tcp://h/nqn.2026-11.x:y/0", TargetError::Namespace("0".into())),
            (
                "nvme-tcp://h/nqn.2026-11.x:y/4294967295",
                TargetError::Namespace("4294967295".into()),
            ),
            ("nvme-tcp://h/nqn.2026-11.x:y?speed=9", TargetError::Option("speed=9".into())),
        ] {
            assert_eq!(Target::parse(text), Err(error), "{text}");
        }
        let error = Target::parse("nvme-tcp://h/iqn.2026-11.x:y/0x").expect_err("no NQN");
        assert!(error.to_string().contains("nqn."), "{error}");
    }
}
