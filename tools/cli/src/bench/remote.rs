//! A volume over the network, whatever protocol leads to it: a LUN or a namespace.

use std::fmt;
use std::sync::atomic::AtomicBool;

use lunet_bench::model::TargetKind;
use lunet_client::iscsi::{self, DigestOffer, Link, LogicalUnit};
use lunet_client::nvme::{self, Namespace};
use lunet_client::{Error, Outcome, Plan, Progress, Workload};

/// As whom to log in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logins {
    /// To iSCSI targets.
    pub iscsi: iscsi::Login,
    /// To subsystems.
    pub nvme: nvme::Login,
}

/// The address of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remote {
    /// A LUN.
    Iscsi(iscsi::Target),
    /// A namespace.
    Nvme(nvme::Target),
}

/// What a volume says of itself. Sizes are in bytes.
#[derive(Clone, Debug)]
pub struct Unit {
    /// The name of the iSCSI target, or the NQN of the subsystem.
    pub target: String,
    /// LUN or NSID.
    pub number: u32,
    /// Vendor, product and version, as far as there are.
    pub product: String,
    /// Capacity.
    pub bytes: u64,
    /// Logical block size.
    pub block_size: u32,
    /// The most of one command; `None`: without a limit, or not said.
    pub max_transfer: Option<u64>,
    /// It takes no writes.
    pub read_only: bool,
}

impl From<&LogicalUnit> for Unit {
    fn from(unit: &LogicalUnit) -> Self {
        Self {
            target: unit.target.clone(),
            number: unit.lun.into(),
            product: format!("{} {} {}", unit.vendor, unit.product, unit.revision),
            bytes: unit.bytes(),
            block_size: unit.block_size,
            max_transfer: unit.max_transfer,
            read_only: unit.read_only,
        }
    }
}

impl From<&Namespace> for Unit {
    fn from(unit: &Namespace) -> Self {
        Self {
            target: unit.subsystem.clone(),
            number: unit.nsid,
            product: format!("{} {}", unit.model, unit.firmware),
            bytes: unit.bytes(),
            block_size: unit.block_size,
            max_transfer: Some(unit.max_transfer),
            read_only: unit.read_only,
        }
    }
}

impl Remote {
    /// Name or address of the machine.
    pub fn host(&self) -> &str {
        match self {
            Self::Iscsi(target) => &target.host,
            Self::Nvme(target) => &target.host,
        }
    }

    /// TCP port.
    pub fn port(&self) -> u16 {
        match self {
            Self::Iscsi(target) => target.port,
            Self::Nvme(target) => target.port,
        }
    }

    /// What it is, in the results.
    pub fn kind(&self) -> TargetKind {
        match self {
            Self::Iscsi(target) if target.rdma => TargetKind::Iser,
            Self::Iscsi(_) => TargetKind::Iscsi,
            Self::Nvme(target) if target.rdma => TargetKind::NvmeRdma,
            Self::Nvme(_) => TargetKind::NvmeTcp,
        }
    }

    /// True over RDMA.
    #[cfg(test)]
    pub fn is_rdma(&self) -> bool {
        match self {
            Self::Iscsi(target) => target.rdma,
            Self::Nvme(target) => target.rdma,
        }
    }

    /// The last part of the target's name, and the number behind it: for tables.
    pub fn short(&self) -> String {
        let (name, number) = match self {
            Self::Iscsi(target) => (target.name.as_deref(), target.lun.map(u32::from)),
            Self::Nvme(target) => (target.nqn.as_deref(), target.nsid),
        };
        let name = name.unwrap_or_else(|| self.host());
        let name = name.rsplit(':').next().unwrap_or(name);
        let number = number.map_or_else(String::new, |number| format!("/{number}"));
        let digest = if self.may_have_data_digest() { " with digest" } else { "" };
        format!("{name}{number}{digest}")
    }

    /// For people and files: without secrets, with the digests that it asks for.
    pub fn shown(&self) -> String {
        let (header, data) = match self {
            Self::Iscsi(target) => (offer(target.header_digest), offer(target.data_digest)),
            Self::Nvme(target) => {
                let on = |on: bool| on.then_some("crc32c");
                (on(target.header_digest), on(target.data_digest))
            }
        };
        let header = header.map(|value| format!("header_digest={value}"));
        let data = data.map(|value| format!("data_digest={value}"));
        let options: Vec<String> = [header, data].into_iter().flatten().collect();
        match options.is_empty() {
            true => self.to_string(),
            false => format!("{self}?{}", options.join("&")),
        }
    }

    /// The same volume, with what the address left out and `unit` has told.
    pub fn complete(self, unit: &Unit) -> Self {
        let name = Some(unit.target.clone());
        match self {
            Self::Iscsi(target) => {
                let lun = u16::try_from(unit.number).ok();
                Self::Iscsi(iscsi::Target { name, lun, ..target })
            }
            Self::Nvme(target) => {
                Self::Nvme(nvme::Target { nqn: name, nsid: Some(unit.number), ..target })
            }
        }
    }

    /// The same without a data digest.
    pub fn without_digest(self) -> Self {
        match self {
            Self::Iscsi(target) => {
                Self::Iscsi(iscsi::Target { data_digest: DigestOffer::None, ..target })
            }
            Self::Nvme(target) => Self::Nvme(nvme::Target { data_digest: false, ..target }),
        }
    }

    /// Data has a digest, or may have one if the target so chooses.
    fn may_have_data_digest(&self) -> bool {
        match self {
            Self::Iscsi(target) => target.data_digest != DigestOffer::None,
            Self::Nvme(target) => target.data_digest,
        }
    }

    /// Data has a digest. Where the target may choose, [`Remote::fix_digests`] has asked.
    pub fn has_data_digest(&self) -> bool {
        match self {
            Self::Iscsi(target) => target.data_digest == DigestOffer::Crc32c,
            Self::Nvme(target) => target.data_digest,
        }
    }

    /// Where the target may choose the digests, a login asks for its choice, and all later sessions ask for the same.
    ///
    /// # Errors
    /// There is no session with these digests.
    pub fn fix_digests(&mut self, logins: &Logins) -> Result<(), Error> {
        let Self::Iscsi(target) = self else { return Ok(()) };
        let open = |offer| matches!(offer, DigestOffer::PreferCrc32c | DigestOffer::PreferNone);
        if !open(target.data_digest) && !open(target.header_digest) {
            return Ok(());
        }
        let link = Link::log_into(target, &logins.iscsi, target.name.as_deref())?;
        let negotiated = link.info().negotiated.clone();
        link.close();
        let chosen = |digest: bool| if digest { DigestOffer::Crc32c } else { DigestOffer::None };
        target.header_digest = chosen(negotiated.header_digest);
        target.data_digest = chosen(negotiated.data_digest);
        Ok(())
    }

    /// Asks the volume for what it is.
    ///
    /// # Errors
    /// It cannot be reached, or is no volume that load can be made on.
    pub fn inspect(&self, logins: &Logins) -> Result<Unit, Error> {
        Ok(match self {
            Self::Iscsi(target) => Unit::from(&iscsi::inspect(target, &logins.iscsi)?),
            Self::Nvme(target) => Unit::from(&nvme::inspect(target, &logins.nvme)?),
        })
    }

    /// Runs a load, see [`lunet_client::run`].
    ///
    /// # Errors
    /// The volume cannot be reached, or the load cannot be run on it.
    pub fn load(
        &self,
        logins: &Logins,
        load: Workload,
        stop: &AtomicBool,
        progress: impl FnMut(&Progress<'_>),
    ) -> Result<Outcome, Error> {
        match self.clone() {
            Self::Iscsi(target) => {
                let login = logins.iscsi.clone();
                let rdma = target.rdma;
                let initiator = iscsi::Initiator { target, login };
                if rdma {
                    let plan = Plan::new(iscsi::IserInitiator(initiator), load);
                    return lunet_client::run(&plan, stop, progress);
                }
                lunet_client::run(&Plan::new(initiator, load), stop, progress)
            }
            Self::Nvme(target) => {
                let login = logins.nvme.clone();
                let rdma = target.rdma;
                let host = nvme::Host { target, login };
                if rdma {
                    let plan = Plan::new(nvme::RdmaHost(host), load);
                    return lunet_client::run(&plan, stop, progress);
                }
                lunet_client::run(&Plan::new(host, load), stop, progress)
            }
        }
    }
}

fn offer(offer: DigestOffer) -> Option<&'static str> {
    match offer {
        DigestOffer::None => None,
        DigestOffer::Crc32c => Some("crc32c"),
        DigestOffer::PreferCrc32c => Some("prefer-crc32c"),
        DigestOffer::PreferNone => Some("prefer-none"),
    }
}

/// Without secrets, and without options.
impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iscsi(target) => target.fmt(f),
            Self::Nvme(target) => target.fmt(f),
        }
    }
}

/// Reads what a volume holds. It writes nothing.
pub enum Reader {
    /// A LUN.
    Iscsi(Box<iscsi::Reader>),
    /// A namespace.
    Nvme(Box<nvme::Reader>),
}

impl Reader {
    /// Logs in.
    ///
    /// # Errors
    /// See [`Remote::inspect`].
    pub fn open(remote: &Remote, logins: &Logins) -> Result<Self, Error> {
        Ok(match remote {
            Remote::Iscsi(target) => {
                Self::Iscsi(Box::new(iscsi::Reader::open(target, &logins.iscsi)?))
            }
            Remote::Nvme(target) => Self::Nvme(Box::new(nvme::Reader::open(target, &logins.nvme)?)),
        })
    }

    /// What is read.
    pub fn unit(&self) -> Unit {
        match self {
            Self::Iscsi(reader) => Unit::from(reader.unit()),
            Self::Nvme(reader) => Unit::from(reader.namespace()),
        }
    }

    /// Fills the buffer from this byte on.
    ///
    /// # Errors
    /// The connection broke, or the volume does not read these blocks.
    pub fn read(&mut self, at: u64, buffer: &mut [u8]) -> Result<(), Error> {
        match self {
            Self::Iscsi(reader) => reader.read(at, buffer)?,
            Self::Nvme(reader) => reader.read(at, buffer)?,
        }
        Ok(())
    }

    /// Logs out.
    pub fn close(self) {
        match self {
            Self::Iscsi(reader) => reader.close(),
            Self::Nvme(reader) => reader.close(),
        }
    }
}
