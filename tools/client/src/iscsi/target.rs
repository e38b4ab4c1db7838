//! `iscsi://[user%secret@]host[:port][/target[/lun]][?option=value&...]`, as libiscsi and QEMU write
//! it, and the same with `iser://`, which is over RDMA.

use std::fmt;

use lunet_iscsi::chap::{Account, Secret};
use lunet_iscsi::initiator::DigestOffer;
use lunet_scsi::Lun;

use crate::place::{self, PlaceError};

/// iSCSI's own port.
pub const PORT: u16 = 3260;

/// Where a logical unit is, and how to log in. A secret that the address leaves out is empty: who
/// knows it sets it.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    /// Name or address of the machine.
    pub host: String,
    /// TCP port, or that of iSER.
    pub port: u16,
    /// Over RDMA (iSER).
    pub rdma: bool,
    /// The target's name; without it, the only one that the portal offers.
    pub name: Option<String>,
    /// The LUN; without it, the only one that the target has.
    pub lun: Option<u16>,
    /// CHAP: who logs in.
    pub account: Option<Account>,
    /// CHAP: what the target has to prove in turn. Only with `account`.
    pub mutual: Option<Account>,
    /// Header digests to offer.
    pub header_digest: DigestOffer,
    /// Data digests to offer.
    pub data_digest: DigestOffer,
}

/// Why a text is no address of a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// It does not begin with `iscsi://` or `iser://`.
    #[error(
        "an address begins with iscsi://, iser://, nvme-tcp:// or nvme-rdma://, as in iscsi://HOST/TARGET/LUN"
    )]
    Scheme,
    /// There is no host.
    #[error("the host is missing: iscsi://HOST[:PORT][/TARGET[/LUN]]")]
    Host,
    /// An address of IPv6 without brackets.
    #[error("an IPv6 address stands in brackets: iscsi://[{0}]")]
    Brackets(String),
    /// A bracket of an IPv6 address is not closed, or something else than a port is behind it.
    #[error(
        "\"{0}\" is no host: an IPv6 address stands in brackets, with the port behind them: iscsi://[2001:db8::1]:PORT"
    )]
    Open(String),
    /// The port is none.
    #[error("\"{0}\" is no port: a number from 1 to 65535 is")]
    Port(String),
    /// The LUN is none.
    #[error("\"{0}\" is no LUN: a number from 0 to 16383 is")]
    Lun(String),
    /// The target's name is none.
    #[error("\"{0}\" is no name of a target: it begins with iqn., eui. or naa.")]
    Name(String),
    /// The name or the secret of CHAP is empty.
    #[error("the CHAP name or its secret is empty: USER%SECRET@HOST")]
    Secret,
    /// An option is not known, or its value is none of its own.
    #[error(
        "\"{0}\" is no option: header_digest and data_digest take none, crc32c, prefer-crc32c or \
         prefer-none; target_password goes with target_user, and both with USER%SECRET@"
    )]
    Option(String),
    /// Digests over RDMA.
    #[error("iser:// takes no digests: RDMA has checksums of its own")]
    Digest,
}

impl Target {
    /// Reads an address.
    ///
    /// # Errors
    /// It is not of this form.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        let (rest, rdma) = match (text.strip_prefix("iscsi://"), text.strip_prefix("iser://")) {
            (Some(rest), _) => (rest, false),
            (None, Some(rest)) => (rest, true),
            (None, None) => return Err(TargetError::Scheme),
        };
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        // A secret may hold slashes and at signs; the host may not.
        let path = rest.rfind('@').map_or(0, |at| at + 1);
        let slash = rest[path..].find('/').map_or(rest.len(), |at| path + at);
        let (place, path) = (&rest[..slash], rest[slash..].trim_start_matches('/'));
        let (chap, place) = match place.rsplit_once('@') {
            Some((chap, place)) => {
                let (name, secret) = match chap.split_once('%') {
                    Some((name, secret)) => (name, Some(secret)),
                    None => (chap, None),
                };
                (Some(account(name, secret)?), place)
            }
            None => (None, place),
        };
        let (host, port) = place::host(place, PORT)?;
        let (name, lun) = path.split_once('/').unwrap_or((path, ""));
        if !name.is_empty() && !["iqn.", "eui.", "naa."].iter().any(|s| name.starts_with(s)) {
            return Err(TargetError::Name(name.into()));
        }
        let mut target = Self {
            host: host.into(),
            port,
            rdma,
            name: (!name.is_empty()).then(|| name.into()),
            lun: self::lun(lun)?,
            account: chap,
            mutual: None,
            header_digest: DigestOffer::None,
            data_digest: DigestOffer::None,
        };
        target.options(options)?;
        let none = DigestOffer::None;
        if rdma && (target.header_digest, target.data_digest) != (none, none) {
            return Err(TargetError::Digest);
        }
        Ok(target)
    }

    /// True if the target has to prove who it is, and a secret for that is not known.
    pub(super) fn cannot_ask_for_proof(&self) -> bool {
        let unknown = |account: &Account| account.secret.is_empty();
        self.mutual.is_some() && self.account.iter().chain(&self.mutual).any(unknown)
    }

    fn options(&mut self, options: &str) -> Result<(), TargetError> {
        let (mut user, mut secret) = (None, None);
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let wrong = || TargetError::Option(option.into());
            let (key, value) = option.split_once('=').ok_or_else(wrong)?;
            match key {
                "header_digest" => self.header_digest = digest(value).ok_or_else(wrong)?,
                "data_digest" => self.data_digest = digest(value).ok_or_else(wrong)?,
                "target_user" => user = Some(value),
                "target_password" => secret = Some(value),
                _ => return Err(TargetError::Option(key.into())),
            }
        }
        self.mutual = match (user, secret) {
            (None, None) => None,
            (Some(user), secret) if self.account.is_some() => Some(account(user, secret)?),
            _ => return Err(TargetError::Option("target_user".into())),
        };
        Ok(())
    }
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

fn account(name: &str, secret: Option<&str>) -> Result<Account, TargetError> {
    if name.is_empty() || secret == Some("") {
        return Err(TargetError::Secret);
    }
    Ok(Account { name: name.into(), secret: Secret::new(secret.unwrap_or_default().into()) })
}

fn lun(text: &str) -> Result<Option<u16>, TargetError> {
    match text.trim_end_matches('/') {
        "" => Ok(None),
        text => {
            let number = text.parse().ok().filter(|&lun| lun <= Lun::MAX.0);
            number.map(Some).ok_or_else(|| TargetError::Lun(text.into()))
        }
    }
}

fn digest(value: &str) -> Option<DigestOffer> {
    Some(match value {
        "none" => DigestOffer::None,
        "crc32c" => DigestOffer::Crc32c,
        "prefer-crc32c" => DigestOffer::PreferCrc32c,
        "prefer-none" => DigestOffer::PreferNone,
        _ => return None,
    })
}

/// Without the secrets, and without options.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.rdma { "iser://" } else { "iscsi://" })?;
        if let Some(account) = &self.account {
            write!(f, "{}@", account.name)?;
        }
        place::write(f, &self.host, self.port)?;
        if let Some(name) = &self.name {
            write!(f, "/{name}")?;
            if let Some(lun) = self.lun {
                write!(f, "/{lun}")?;
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

    #[test]
    fn all_parts_are_read() {
        let text = "iscsi://joe%s3c/r@t@10.0.0.1:3261/iqn.2026-11.x:y/4";
        let target = Target::parse(text).expect("an address");
        assert_eq!((target.host.as_str(), target.port, target.lun), ("10.0.0.1", 3261, Some(4)));
        assert_eq!(target.name.as_deref(), Some("iqn.2026-11.x:y"));
        let account = target.account.as_ref().expect("an account");
        assert_eq!(account.name, "joe");
        assert_eq!(account.secret, Secret::new(b"s3c/r@t".to_vec()));
        assert_eq!(target.to_string(), "iscsi://joe@10.0.0.1:3261/iqn.2026-11.x:y/4");
        assert!(!format!("{target:?}").contains("s3c"));
        let iser = Target::parse("iser://nas/iqn.x/0").expect("an address");
        assert_eq!((iser.rdma, iser.to_string().as_str()), (true, "iser://nas:3260/iqn.x/0"));
        let target = Target::parse("iscsi://[fd00::1]").expect("an address");
        assert_eq!((target.host.as_str(), target.port, target.name), ("fd00::1", PORT, None));
        let target = Target::parse("iscsi://[::1]:99/iqn.x/").expect("an address");
        assert_eq!((target.to_string().as_str(), target.lun), ("iscsi://[::1]:99/iqn.x", None));
    }

    #[test]
    fn options_are_read() {
        let text = "iscsi://joe%secret@nas/iqn.x/0?header_digest=crc32c&data_digest=prefer-none&\
                    target_user=nas&target_password=terces";
        let target = Target::parse(text).expect("an address");
        assert_eq!(target.header_digest, DigestOffer::Crc32c);
        assert_eq!(target.data_digest, DigestOffer::PreferNone);
        assert_eq!(target.mutual.map(|account| account.name).as_deref(), Some("nas"));
    }

    #[test]
    fn secrets_may_be_left_out() {
        let target = Target::parse("iscsi://joe@nas/iqn.x/0?target_user=nas").expect("an address");
        let (account, mutual) = (target.account.as_ref(), target.mutual.as_ref());
        let has = |account: Option<&Account>| account.map(|a| (a.name.clone(), a.secret.len()));
        assert_eq!(has(account), Some(("joe".into(), 0)));
        assert_eq!(has(mutual), Some(("nas".into(), 0)));
        assert_eq!(target.to_string(), "iscsi://joe@nas:3260/iqn.x/0");
        // Nobody is logged in to a target that could not be told from another.
        assert!(target.cannot_ask_for_proof());
        let half = Target::parse("iscsi://joe@nas?target_user=nas&target_password=terces");
        assert!(half.expect("an address").cannot_ask_for_proof());
        let one_way = Target::parse("iscsi://joe@nas").expect("an address");
        assert!(!one_way.cannot_ask_for_proof());
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, error) in [
            ("10.0.0.1", TargetError::Scheme),
            ("iscsi://", TargetError::Host),
            ("iser://nas/iqn.x/0?data_digest=crc32c", TargetError::Digest),
            ("iscsi://:3260", TargetError::Host),
            ("iscsi://h:0", TargetError::Port("0".into())),
            ("iscsi://h:x", TargetError::Port("x".into())),
            ("iscsi://[::1]x", TargetError::Open("[::1]x".into())),
            ("iscsi://[::1:3260/iqn.x", TargetError::Open("[::1:3260".into())),
            ("iscsi://fd00::1/iqn.x", TargetError::Brackets("fd00::1".into())),
            ("iscsi://h/disk", TargetError::Name("disk".into())),
            ("iscsi://h/iqn.x/20000", TargetError::Lun("20000".into())),
            ("iscsi://joe%@h/iqn.x/0", TargetError::Secret),
            ("iscsi://%secret@h/iqn.x/0", TargetError::Secret),
            ("iscsi://joe@h?target_password=y", TargetError::Option("target_user".into())),
            ("iscsi://h/iqn.x/0?speed=9", TargetError::Option("speed".into())),
            ("iscsi://h/iqn.x/0?data_digest=md5", TargetError::Option("data_digest=md5".into())),
            (
                "iscsi://h?target_user=x&target_password=y",
                TargetError::Option("target_user".into()),
            ),
        ] {
            assert_eq!(Target::parse(text), Err(error), "{text}");
        }
    }
}
