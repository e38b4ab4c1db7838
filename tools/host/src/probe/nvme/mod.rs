//! Looks at a subsystem over NVMe over TCP, whosever it is, without writing to it.

mod namespace;
mod page;
mod stranger;

use std::time::Instant;

use lunet_client::nvme::{Admin, AnaState, Error, Login, Offer, Queue, Target, discover};
use lunet_nvme::identify::{
    CMIC_ANA, CMIC_CONTROLLERS, CTRATT_TBKAS, Controller, FUSES_COMPARE_WRITE, ONCS_COMPARE,
    ONCS_COPY, ONCS_DSM, ONCS_RESERVATIONS, ONCS_VERIFY, ONCS_WRITE_ZEROES, VWC_PRESENT, text_of,
};
use lunet_nvme::name::DISCOVERY_NQN;
use serde::{Deserialize, Serialize};

use crate::facts::{Nic, Rdma};

use super::{Latency, PATIENCE, Refused, SAMPLES, WHOLE, harmless, latency, spread};

pub use namespace::NamespaceProbe;
pub use page::page;

/// So many subsystems of a portal are tried.
const MOST_SUBSYSTEMS: usize = 16;
/// So many namespaces are looked at.
const MOST_NAMESPACES: usize = 64;
/// I/O queues that are asked for: a host with so many processors does.
const QUEUES: u16 = 64;
/// This host's name.
pub const HOST: &str = "nqn.2026-11.local.lunet:doctor";

/// What was seen of a subsystem.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvmeProbe {
    /// What was asked for.
    pub url: String,
    /// The address that answered.
    pub address: String,
    /// Whether it can be reached from the Internet.
    pub public: bool,
    /// Whether it is on this machine, which targets may treat as local.
    pub local: bool,
    /// The name that this host had.
    pub host: String,
    /// The portal's subsystems; empty if it answers no discovery.
    pub offers: Vec<Offered>,
    /// Those of them that refused this host.
    pub refused: Vec<Refused>,
    /// The subsystem that was looked at.
    pub subsystem: Option<String>,
    /// Whether this host had to prove itself (DH-HMAC-CHAP).
    pub authenticated: bool,
    /// Whether the connection to it had TLS.
    pub tls: bool,
    /// What its controller says of itself.
    pub controller: Option<ControllerProbe>,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceProbe>,
    /// Round trip of a Keep Alive, which the controller itself answers.
    pub ping: Option<Latency>,
    /// Reads of 4 KiB, one after the other, spread over the first namespace that can be read.
    pub read: Option<Latency>,
}

/// An entry of the discovery log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Offered {
    /// NQN of the subsystem.
    pub nqn: String,
    /// Address and port.
    pub address: String,
    /// Whether it is an NVM subsystem over the transport that the doctor came by.
    pub usable: bool,
    /// Whether it is an NVM subsystem over RDMA.
    pub over_rdma: bool,
    /// The RDMA card of this machine that is in the network of its address.
    pub rdma_device: Option<String>,
    /// Whether it wants TLS.
    pub tls: bool,
}

/// What a controller says of itself. Lengths are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ControllerProbe {
    /// Model number.
    pub model: String,
    /// Serial number.
    pub serial: String,
    /// Firmware revision.
    pub firmware: String,
    /// Version of the specification: `2.0.0`.
    pub version: String,
    /// Commands that a queue takes at once (CAP.MQES).
    pub queue_entries: i64,
    /// I/O queues that it gives, of the 64 that were asked for.
    pub queues: i64,
    /// Most data of a command (MDTS); `null` = no limit is stated.
    pub max_transfer_bytes: Option<i64>,
    /// Data of a write that goes with its command (IOCCSZ).
    pub capsule_bytes: i64,
    /// Most data of a PDU that it takes (MAXH2CDATA).
    pub max_h2c_bytes: i64,
    /// Granularity of its keep alive timer, in milliseconds (KAS).
    pub keep_alive_ms: i64,
    /// Whether any command is a sign of life (TBKAS).
    pub keep_alive_by_traffic: bool,
    /// Whether several hosts and paths can have controllers at once (CMIC).
    pub shared: bool,
    /// Whether it tells of the states of paths (ANA).
    pub ana: bool,
    /// Length of its ANA log, as Linux reads it.
    pub ana_log_bytes: i64,
    /// Whether it has reservations.
    pub reservations: bool,
    /// Whether it has Compare.
    pub compare: bool,
    /// Whether Compare and Write can be fused.
    pub compare_and_write: bool,
    /// Whether blocks can be deallocated (Dataset Management).
    pub deallocate: bool,
    /// Whether it has Write Zeroes.
    pub write_zeroes: bool,
    /// Whether it has Verify.
    pub verify: bool,
    /// Whether it has Copy.
    pub copy: bool,
    /// Whether it has a volatile write cache.
    pub write_cache: bool,
}

/// Why nothing could be seen.
#[derive(Debug, thiserror::Error)]
pub enum NvmeProbeError {
    /// There is nobody.
    #[error("{0}")]
    Nobody(Error),
    /// There is somebody who speaks something else.
    #[error("{place}: {what}")]
    Stranger {
        /// Host and port, as they were asked for.
        place: String,
        /// What it is, and what to do.
        what: &'static str,
    },
    /// There is somebody, but the connection failed or was refused.
    #[error("{place}: {error}")]
    Controller {
        /// Host and port, as they were asked for.
        place: String,
        /// Why.
        error: Error,
    },
}

/// Connects and looks. Without a subsystem in the address, or with the name of the discovery subsystem, the portal
/// is asked for its subsystems, and the first one that lets the doctor in is looked at.
///
/// # Errors
/// Nobody answers, or the host is refused.
pub fn probe(target: &Target, host: Option<&str>) -> Result<NvmeProbe, NvmeProbeError> {
    let host = host.unwrap_or(HOST);
    let login = Login { host_nqn: host.into(), patience: PATIENCE, ..Login::default() };
    let name = target.nqn.clone().filter(|nqn| nqn != DISCOVERY_NQN);
    let mut probe = NvmeProbe {
        url: target.to_string(),
        host: host.to_owned(),
        subsystem: name,
        ..NvmeProbe::default()
    };
    look(target, &login, &mut probe).map_err(|error| failed(target, &probe, error))?;
    Ok(probe)
}

/// Why it failed; who it is that does not speak NVMe over TCP.
fn failed(target: &Target, probe: &NvmeProbe, error: Error) -> NvmeProbeError {
    let place = Target { nqn: None, ..target.clone() }.to_string();
    let place = place.split_once("://").map_or(&*place, |(_, place)| place).to_owned();
    let wants_tls = || {
        let own = |offer: &&Offered| offer.usable && Some(&offer.nqn) == probe.subsystem.as_ref();
        probe.offers.iter().find(own).is_some_and(|offer| offer.tls)
    };
    match error {
        Error::Resolve { .. } | Error::Connect { .. } | Error::Rdma(_) => {
            NvmeProbeError::Nobody(error)
        }
        Error::Stranger(_) if wants_tls() => {
            NvmeProbeError::Stranger { place, what: stranger::TLS }
        }
        Error::Stranger(_) => match stranger::what(target) {
            Some(what) => NvmeProbeError::Stranger { place, what },
            None => NvmeProbeError::Controller { place, error },
        },
        error => NvmeProbeError::Controller { place, error },
    }
}

fn look(target: &Target, login: &Login, probe: &mut NvmeProbe) -> Result<(), Error> {
    // A portal may answer no discovery: that alone is no reason to give up where a subsystem was named.
    match discover(target, login) {
        Ok(offers) => probe.offers = offers.into_iter().map(offered).collect(),
        Err(error) if probe.subsystem.is_none() => return Err(error),
        Err(
            error @ (Error::Resolve { .. }
            | Error::Connect { .. }
            | Error::Rdma(_)
            | Error::Stranger(_)),
        ) => {
            return Err(error);
        }
        Err(_) => {}
    }
    if probe.subsystem.is_none() && !probe.offers.iter().any(|offer| offer.usable) {
        return Ok(());
    }
    let (mut admin, target) = enter(target, login, probe)?;
    admin.end_by(Instant::now() + WHOLE);
    probe.tls = target.tls_key.is_some();
    let address = admin.address()?;
    probe.address = address.to_string();
    probe.public = crate::expr::is_public(address.ip());
    probe.local = admin.is_local()?;
    probe.controller = Some(controller(&admin));
    let paths = admin.paths()?.unwrap_or_default();
    let there = match target.nsid {
        Some(nsid) => vec![nsid],
        None => admin.namespaces()?,
    };
    for nsid in there.into_iter().take(MOST_NAMESPACES) {
        probe.namespaces.extend(namespace::look(&mut admin, nsid, &paths)?);
    }
    measure(&mut admin, &target, login, probe)?;
    admin.close();
    Ok(())
}

fn offered(offer: Offer) -> Offered {
    let Offer { nqn, address, usable, over_rdma, tls } = offer;
    Offered { nqn, address, usable, over_rdma, rdma_device: None, tls }
}

/// Says of each offer over RDMA which card of this machine could take it: one with a link, in the network of its address.
pub fn find_rdma_devices(probe: &mut NvmeProbe, nics: &[Nic], rdma: &[Rdma]) {
    for offer in probe.offers.iter_mut().filter(|offer| offer.over_rdma) {
        let host = offer.address.rsplit_once(':').map_or("", |(host, _)| host);
        let host = host.trim_matches(['[', ']']);
        let near = |nic: &&Nic| nic.addresses.iter().any(|own| crate::facts::in_network(host, own));
        let of = |nic: &Nic| {
            let own = |port: &&Rdma| {
                let netdev = port.netdev.as_deref();
                netdev == Some(&nic.name) || netdev.is_some() && netdev == nic.parent.as_deref()
            };
            let good = |port: &&Rdma| {
                port.soft == Some(false) && port.state.as_deref() == Some("ACTIVE") && own(port)
            };
            rdma.iter().find(good).map(|port| port.device.clone())
        };
        offer.rdma_device = nics.iter().find(near).and_then(of);
    }
}

/// A controller of the subsystem that was asked for, or of the first of the portal's that lets the doctor in. The error
/// of the first one, if none does.
fn enter(target: &Target, login: &Login, probe: &mut NvmeProbe) -> Result<(Admin, Target), Error> {
    let mut names: Vec<String> = match &probe.subsystem {
        Some(nqn) => vec![nqn.clone()],
        None => {
            let usable = probe.offers.iter().filter(|offer| offer.usable);
            usable.map(|offer| offer.nqn.clone()).collect()
        }
    };
    names.dedup();
    let only = names.len() == 1;
    let mut first = None;
    for nqn in names.into_iter().take(MOST_SUBSYSTEMS) {
        probe.subsystem = Some(nqn.clone());
        match open(target, login, &nqn, probe) {
            Ok(admin) => return Ok((admin, target.clone())),
            Err(error) if only => return Err(error),
            Err(error) => {
                probe.refused.push(Refused { name: nqn, why: harmless(&error.to_string()) });
                first.get_or_insert(error);
            }
        }
    }
    Err(first.unwrap_or(Error::ManySubsystems(Vec::new())))
}

/// Connects without a secret where none is wanted, so that it shows whether one is.
fn open(target: &Target, login: &Login, nqn: &str, probe: &mut NvmeProbe) -> Result<Admin, Error> {
    let plain = Target { secret: None, controller_secret: None, ..target.clone() };
    let tried = match target.controller_secret {
        // The controller was to prove itself in any case.
        Some(_) => Err(Error::Authentication(login.host_nqn.clone())),
        None => Admin::open(&plain, login, nqn, QUEUES),
    };
    match tried {
        Err(Error::Authentication(_))
            if target.secret.is_some() || target.controller_secret.is_some() =>
        {
            let admin = Admin::open(target, login, nqn, QUEUES)?;
            probe.authenticated = true;
            Ok(admin)
        }
        tried => tried,
    }
}

fn controller(admin: &Admin) -> ControllerProbe {
    let info = admin.info();
    let page: &Controller = &info.identify;
    let text = |field: &[u8]| harmless(text_of(field).unwrap_or_default());
    let version = info.version;
    let (oncs, long) = (page.oncs.get(), |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX));
    ControllerProbe {
        model: text(&page.mn),
        serial: text(&page.sn),
        firmware: text(&page.fr),
        version: format!("{}.{}.{}", version >> 16, version >> 8 & 0xff, version & 0xff),
        queue_entries: long((info.capabilities & 0xffff) + 1),
        queues: info.queues.into(),
        max_transfer_bytes: info.max_data().map(long),
        capsule_bytes: info.capsule_data().into(),
        max_h2c_bytes: admin.max_h2c_data().into(),
        keep_alive_ms: i64::from(page.kas.get()) * 100,
        keep_alive_by_traffic: page.ctratt.get() & CTRATT_TBKAS != 0,
        shared: page.cmic & CMIC_CONTROLLERS != 0,
        ana: page.cmic & CMIC_ANA != 0,
        ana_log_bytes: long(admin.ana_log_len()),
        reservations: oncs & ONCS_RESERVATIONS != 0,
        compare: oncs & ONCS_COMPARE != 0,
        compare_and_write: page.fuses.get() & FUSES_COMPARE_WRITE != 0,
        deallocate: oncs & ONCS_DSM != 0,
        write_zeroes: oncs & ONCS_WRITE_ZEROES != 0,
        verify: oncs & ONCS_VERIFY != 0,
        copy: oncs & ONCS_COPY != 0,
        write_cache: page.vwc & VWC_PRESENT != 0,
    }
}

/// How a state of a path is called.
fn state(state: AnaState) -> &'static str {
    match state {
        AnaState::Optimized => "optimized",
        AnaState::NonOptimized => "non-optimized",
        AnaState::Inaccessible => "inaccessible",
        AnaState::PersistentLoss => "persistent loss",
        AnaState::Change => "change",
    }
}

/// Measures round trips: of the controller, of the storage.
fn measure(
    admin: &mut Admin,
    target: &Target,
    login: &Login,
    probe: &mut NvmeProbe,
) -> Result<(), Error> {
    let mut pings = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        pings.push(admin.ping()?);
    }
    probe.ping = latency(pings);
    if !probe.namespaces.iter().any(NamespaceProbe::is_readable) {
        return Ok(());
    }
    let target = if probe.authenticated {
        target.clone()
    } else {
        Target { secret: None, controller_secret: None, ..target.clone() }
    };
    let mut queue = Queue::of(admin, &target, login)?;
    queue.end_by(Instant::now() + WHOLE);
    for namespace in probe.namespaces.iter_mut().filter(|namespace| namespace.is_readable()) {
        namespace::try_out(&mut queue, namespace)?;
    }
    let mut reads = Vec::with_capacity(SAMPLES);
    let is_readable = |namespace: &&NamespaceProbe| namespace.is_readable();
    let Some(namespace) = probe.namespaces.iter().find(is_readable) else { return Ok(()) };
    for at in spread(namespace.size_bytes.unwrap_or(0), namespace.block_bytes.unwrap_or(512)) {
        reads.extend(namespace::time(&mut queue, namespace, at)?);
    }
    probe.read = latency(reads);
    Ok(())
}
