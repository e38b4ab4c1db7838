//! `iscsi://[user[%password]@]host[:port][/target[/lun]]`, as libiscsi and QEMU write it.

use std::fmt;

/// iSCSI's own port.
const PORT: u16 = 3260;

/// Where to look.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    /// Name or address of the machine.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Name of the target; without it, whatever the portal offers.
    pub target: Option<String>,
    /// The LUN; without it, all of them.
    pub lun: Option<u16>,
    /// CHAP name.
    pub user: Option<String>,
    /// CHAP secret.
    pub password: Option<String>,
}

/// Why a text is no such URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It does not begin with `iscsi://`.
    #[error("a target's address begins with iscsi://")]
    Scheme,
    /// There is no host.
    #[error("the host is missing: iscsi://HOST[:PORT][/TARGET[/LUN]]")]
    Host,
    /// The port is none.
    #[error("\"{0}\" is no port: a number from 1 to 65535 is")]
    Port(String),
    /// The LUN is none.
    #[error("\"{0}\" is no LUN: a number from 0 to 16383 is")]
    Lun(String),
    /// The target's name is none.
    #[error("\"{0}\" is no name of a target: it begins with iqn., eui. or naa.")]
    Target(String),
}

impl Url {
    /// Reads a URL. A password may also be given as the environment variable
    /// `LIBISCSI_CHAP_PASSWORD`, where other users do not see it: the caller sets it.
    ///
    /// # Errors
    /// It is not of this form.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let rest = text.strip_prefix("iscsi://").ok_or(UrlError::Scheme)?;
        let (place, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (account, place) = match place.rsplit_once('@') {
            Some((account, place)) => (Some(account), place),
            None => (None, place),
        };
        let (user, password) = match account.map(|account| account.split_once('%')) {
            Some(Some((user, password))) => (Some(user), Some(password)),
            Some(None) => (account, None),
            None => (None, None),
        };
        let (host, port) = host(place)?;
        let (target, lun) = path.split_once('/').unwrap_or((path, ""));
        let named = ["iqn.", "eui.", "naa."].iter().any(|start| target.starts_with(start));
        if !target.is_empty() && !named {
            return Err(UrlError::Target(target.to_owned()));
        }
        let lun = match lun.trim_end_matches('/') {
            "" => None,
            lun => {
                let number = lun.parse().ok().filter(|&lun: &u16| lun < 1 << 14);
                Some(number.ok_or_else(|| UrlError::Lun(lun.to_owned()))?)
            }
        };
        Ok(Self {
            host: host.to_owned(),
            port,
            target: (!target.is_empty()).then(|| target.to_owned()),
            lun,
            user: user.map(str::to_owned),
            password: password.map(str::to_owned),
        })
    }
}

/// `host`, `host:port`, `[::1]`, `[::1]:port`.
fn host(place: &str) -> Result<(&str, u16), UrlError> {
    let (host, port) = match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None => match place.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        },
    };
    if host.is_empty() {
        return Err(UrlError::Host);
    }
    let wrong = |port: &str| UrlError::Port(port.to_owned());
    let port = match port {
        Some(port) => port.parse().ok().filter(|&p| p > 0).ok_or_else(|| wrong(port))?,
        None => PORT,
    };
    Ok((host, port))
}

/// Without the password.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("iscsi://")?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port)?,
            false => write!(f, "{}:{}", self.host, self.port)?,
        }
        if let Some(target) = &self.target {
            write!(f, "/{target}")?;
        }
        self.lun.map_or(Ok(()), |lun| write!(f, "/{lun}"))
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_are_read() {
        let url = Url::parse("iscsi://joe%s3cret@10.0.0.1:3261/iqn.2026-11.x:y/4").expect("a URL");
        assert_eq!((url.host.as_str(), url.port, url.lun), ("10.0.0.1", 3261, Some(4)));
        assert_eq!(url.target.as_deref(), Some("iqn.2026-11.x:y"));
        assert_eq!((url.user.as_deref(), url.password.as_deref()), (Some("joe"), Some("s3cret")));
        assert_eq!(url.to_string(), "iscsi://joe@10.0.0.1:3261/iqn.2026-11.x:y/4");
        assert!(!format!("{url:?}").contains("s3cret"));
        let url = Url::parse("iscsi://[fd00::1]").expect("a URL");
        assert_eq!((url.host.as_str(), url.port, url.target), ("fd00::1", 3260, None));
        let url = Url::parse("iscsi://nas/iqn.2026-11.x:y").expect("a URL");
        assert_eq!((url.host.as_str(), url.lun, url.user), ("nas", None, None));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, error) in [
            ("10.0.0.1", UrlError::Scheme),
            ("iscsi://", UrlError::Host),
            ("iscsi://:3260", UrlError::Host),
            ("iscsi://h:0", UrlError::Port("0".into())),
            ("iscsi://h:x", UrlError::Port("x".into())),
            ("iscsi://h/disk", UrlError::Target("disk".into())),
            ("iscsi://h/iqn.x/20000", UrlError::Lun("20000".into())),
        ] {
            assert_eq!(Url::parse(text), Err(error), "{text}");
        }
    }
}
