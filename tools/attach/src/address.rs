//! What is to be attached: `iscsi://`, `iser://`, `nvme-tcp://` and `nvme-rdma://` addresses, and the same without a
//! transport.

use std::fmt;
use std::net::IpAddr;

use lunet_client::{iscsi, nvme};
use lunet_nvme::name::{NQN_MAX, check_any_nqn};
use serde::{Deserialize, Serialize};

/// A way to a disk, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// NVMe over RDMA.
    NvmeRdma,
    /// iSCSI over RDMA.
    Iser,
    /// NVMe over TCP.
    NvmeTcp,
    /// iSCSI over TCP.
    Iscsi,
}

impl Transport {
    /// All of them, the best first.
    pub const ALL: [Self; 4] = [Self::NvmeRdma, Self::Iser, Self::NvmeTcp, Self::Iscsi];

    /// Whether it is NVMe, and not iSCSI.
    #[must_use]
    pub const fn is_nvme(self) -> bool {
        matches!(self, Self::NvmeRdma | Self::NvmeTcp)
    }

    /// Whether it needs RDMA.
    #[must_use]
    pub const fn is_rdma(self) -> bool {
        matches!(self, Self::NvmeRdma | Self::Iser)
    }

    /// How addresses begin.
    #[must_use]
    pub const fn scheme(self) -> &'static str {
        match self {
            Self::NvmeRdma => "nvme-rdma",
            Self::Iser => "iser",
            Self::NvmeTcp => "nvme-tcp",
            Self::Iscsi => "iscsi",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NvmeRdma => "NVMe over RDMA",
            Self::Iser => "iSER",
            Self::NvmeTcp => "NVMe over TCP",
            Self::Iscsi => "iSCSI over TCP",
        })
    }
}

/// What is to be attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The transport; without one, the best that both ends have.
    pub transport: Option<Transport>,
    /// Name or address of the server.
    pub host: String,
    /// The port, if the address has one.
    pub port: Option<u16>,
    /// Name of the target, or NQN of the subsystem.
    pub name: Option<String>,
    /// LUN or namespace.
    pub unit: Option<u32>,
    /// CHAP: who logs in.
    pub user: Option<String>,
    /// CHAP: who the target has to prove to be.
    pub target_user: Option<String>,
    /// Header digests are asked for.
    pub header_digest: bool,
    /// Data digests are asked for.
    pub data_digest: bool,
    /// Further portals, which the server need not list: host and port, if it has one.
    pub more: Vec<(String, Option<u16>)>,
}

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It has an unknown beginning.
    #[error(
        "\"{}://\" is no transport: an address begins with iscsi://, iser://, nvme-tcp:// or nvme-rdma://, or with the \
         server's name for the best transport that both ends have",
        .0.escape_debug()
    )]
    Scheme(String),
    /// It is no address of a LUN.
    #[error(transparent)]
    Iscsi(#[from] iscsi::TargetError),
    /// It is no address of a namespace.
    #[error(transparent)]
    Nvme(#[from] nvme::TargetError),
    /// A secret on the command line.
    #[error(
        "everybody on this machine can read a secret in an address: give it by --secret-file, or when asked"
    )]
    Secret,
    /// More than a portal.
    #[error("\"{}\" is no portal: HOST[:PORT] is", .0.escape_debug())]
    Portal(String),
    /// A name with characters that configuration files of the initiators have a meaning for.
    #[error(
        "the name \"{}\" has a space, a quote or the like, which the files of the initiators cannot hold", .0.escape_debug()
    )]
    Name(String),
    /// No name of a target.
    #[error(
        "\"{}\" is no iSCSI name: iqn., a year and a month, a domain and a name, as in iqn.2026-11.local.lunet:demo, eui. and 16 or naa. and \
         16 or 32 hexadecimal digits; 223 bytes of letters, digits, '-', '.', ':' and '_' at most", .0.escape_debug()
    )]
    IscsiName(String),
    /// No NQN.
    #[error(
        "\"{}\" is no NQN that the files of the initiators can hold: 223 letters, digits and -._:+=@,~ at most", .0.escape_debug()
    )]
    Nqn(String),
    /// A user's name that would be several lines.
    #[error("the user of CHAP has a control character in its name")]
    User,
}

impl Address {
    /// Reads an address.
    ///
    /// # Errors
    /// It has another form.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let name = rest.split_once('/').map_or("", |(_, name)| name);
        let address = match scheme {
            "iscsi" | "iser" => Self::of_lun(text, rest)?,
            "nvme-tcp" | "nvme+tcp" => Self::of_namespace("nvme-tcp", rest)?,
            "nvme-rdma" | "nvme+rdma" => Self::of_namespace("nvme-rdma", rest)?,
            "" => {
                let of_nvme = !name.is_empty() && !is_of_iscsi(name);
                let any = match of_nvme {
                    true => Self::of_namespace("nvme-tcp", rest)?,
                    false => Self::of_lun(&format!("iscsi://{rest}"), rest)?,
                };
                Self { transport: None, ..any }
            }
            other => return Err(AddressError::Scheme(other.to_owned())),
        };
        if let Some(name) = &address.name {
            check_name(name)?;
        }
        let is_line = |user: &Option<String>| {
            user.as_ref().is_none_or(|user| !user.contains(char::is_control))
        };
        if !is_line(&address.user) || !is_line(&address.target_user) {
            return Err(AddressError::User);
        }
        Ok(address)
    }

    /// The same with a further portal: `HOST[:PORT]`.
    ///
    /// # Errors
    /// It has another form.
    pub fn with_portal(mut self, text: &str) -> Result<Self, AddressError> {
        let portal = iscsi::Target::parse(&format!("iscsi://{text}"))?;
        if portal.account.is_some() || portal.name.is_some() {
            return Err(AddressError::Portal(text.to_owned()));
        }
        self.more.push((portal.host, has_port(text).then_some(portal.port)));
        Ok(self)
    }

    fn of_lun(text: &str, rest: &str) -> Result<Self, AddressError> {
        let target = iscsi::Target::parse(text)?;
        let known = |account: &Option<iscsi::Account>| {
            account.as_ref().is_some_and(|a| !a.secret.is_empty())
        };
        if known(&target.account) || known(&target.mutual) {
            return Err(AddressError::Secret);
        }
        let wanted = |digest| digest == iscsi::DigestOffer::Crc32c;
        Ok(Self {
            transport: Some(if target.rdma { Transport::Iser } else { Transport::Iscsi }),
            port: has_port(rest).then_some(target.port),
            header_digest: wanted(target.header_digest),
            data_digest: wanted(target.data_digest),
            host: target.host,
            name: target.name,
            unit: target.lun.map(u32::from),
            user: target.account.map(|account| account.name),
            target_user: target.mutual.map(|account| account.name),
            more: Vec::new(),
        })
    }

    fn of_namespace(scheme: &str, rest: &str) -> Result<Self, AddressError> {
        let target = nvme::Target::parse(&format!("{scheme}://{rest}"))?;
        Ok(Self {
            transport: Some(if target.rdma { Transport::NvmeRdma } else { Transport::NvmeTcp }),
            port: has_port(rest).then_some(target.port),
            host: target.host,
            name: target.nqn,
            unit: target.nsid,
            user: None,
            target_user: None,
            header_digest: target.header_digest,
            data_digest: target.data_digest,
            more: Vec::new(),
        })
    }
}

/// Whether a name is one word for shells, units of systemd and rules of udev, and no pattern.
#[must_use]
pub fn is_plain(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || "-._:/+=@,~".contains(c))
}

/// Checks the name of a target or subsystem, whoever says it: it becomes a part of paths, and a word of commands, units and rules.
///
/// Other products have names of subsystems that are no NQNs by the specification; iSCSI's have one of the three forms
/// (RFC 7143 section 4.2.7), in which the underscore is common although it is not allowed.
///
/// # Errors
/// What it is not.
pub fn check_name(name: &str) -> Result<(), AddressError> {
    if is_of_iscsi(name) {
        let (kind, rest) = name.split_at(4);
        return match name.len() <= NQN_MAX && is_iscsi_form(kind, rest) {
            true => Ok(()),
            false => Err(AddressError::IscsiName(name.to_owned())),
        };
    }
    // A dash in front would make an option of it.
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    match begins && check_any_nqn(name).is_ok() && is_plain(name) && !name.contains('/') {
        true => Ok(()),
        false => Err(AddressError::Nqn(name.to_owned())),
    }
}

/// Whether a name begins as one of iSCSI does.
#[must_use]
pub fn is_of_iscsi(name: &str) -> bool {
    ["iqn.", "eui.", "naa."].iter().any(|kind| name.starts_with(kind))
}

fn is_iscsi_form(kind: &str, rest: &str) -> bool {
    let hex = |lengths: &[usize]| {
        lengths.contains(&rest.len()) && rest.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    match kind {
        "eui." => hex(&[16]),
        "naa." => hex(&[16, 32]),
        _ => {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
            // yyyy-mm.
            let date = rest.split_once('.').map(|(date, domain)| (date.as_bytes(), domain));
            let is_date = |date: &[u8]| match date {
                [year @ .., b'-', a, b] if year.len() == 4 => {
                    year.iter().chain([a, b]).all(u8::is_ascii_digit)
                }
                _ => false,
            };
            date.is_some_and(|(date, domain)| is_date(date) && !domain.is_empty())
                && rest.chars().all(allowed)
        }
    }
}

/// Whether a port stands behind the host.
fn has_port(rest: &str) -> bool {
    let place = rest.split(['/', '?']).next().unwrap_or_default();
    let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
    place.rsplit_once(']').map_or(place, |(_, port)| port).contains(':')
}

/// Host and port as they are written in addresses.
#[must_use]
pub fn place(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// Whether two texts are the same address: IPv6 has several for one. Those of two interfaces are two.
#[must_use]
pub fn is_same_host(a: &str, b: &str) -> bool {
    let parts = |text: &str| {
        let (address, scope) = text.split_once('%').unwrap_or((text, ""));
        Some((address.parse::<IpAddr>().ok()?, scope.to_owned()))
    };
    a == b || parts(a).is_some_and(|parts_of_a| Some(parts_of_a) == parts(b))
}

/// Without options.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(transport) = self.transport {
            write!(f, "{}://", transport.scheme())?;
        }
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        match self.port {
            Some(port) => f.write_str(&place(&self.host, port))?,
            None if self.host.contains(':') => write!(f, "[{}]", self.host)?,
            None => f.write_str(&self.host)?,
        }
        if let Some(name) = &self.name {
            write!(f, "/{name}")?;
            if let Some(unit) = self.unit {
                write!(f, "/{unit}")?;
            }
        }
        Ok(())
    }
}
