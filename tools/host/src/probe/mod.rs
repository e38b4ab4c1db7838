//! Looks at an iSCSI target, or an NVMe subsystem, over the network, whosever it is, without writing to it.

pub mod nvme;
mod page;
mod scsi;

use std::time::{Duration, Instant};

use lunet_client::iscsi::{DigestOffer, Error, Link, Login, Target, cdb};
use lunet_iscsi::printable::printable;
use serde::{Deserialize, Serialize};

pub use page::page;
pub use scsi::LunProbe;

/// For one connection, login or answer.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// For all of a session: a target that answers everything just in time is not waited for all day.
const WHOLE: Duration = Duration::from_secs(120);
/// So many of each are measured.
const SAMPLES: usize = 64;
/// So many targets of a portal are tried.
const MOST_TARGETS: usize = 16;
/// So many LUNs are looked at.
const MOST_LUNS: u32 = 64;
/// This initiator's name.
pub const INITIATOR: &str = "iqn.2026-11.local.lunet:doctor";

/// What was seen of a target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Probe {
    /// What was asked for, without the password.
    pub url: String,
    /// The address that answered.
    pub address: String,
    /// Whether it can be reached from the Internet.
    pub public: bool,
    /// Whether it is on this machine, which targets may treat as local.
    pub local: bool,
    /// The portal's targets and their addresses, if it was asked for them.
    pub targets: Vec<Offered>,
    /// Those of them that refused the login, in the portal's order.
    pub refused: Vec<Refused>,
    /// The target that was looked at.
    pub target: Option<String>,
    /// Whether it wanted CHAP.
    pub chap: bool,
    /// What the target answered at the login, in its order.
    pub keys: Vec<Answered>,
    /// What holds in the session.
    pub session: Option<Session>,
    /// Its LUNs.
    pub luns: Vec<LunProbe>,
    /// Round trip of a ping that the target itself answers.
    pub ping: Option<Latency>,
    /// Round trip of TEST UNIT READY, by the first disk.
    pub ready: Option<Latency>,
    /// Reads of 4 KiB, one after the other, spread over the first disk.
    pub read: Option<Latency>,
}

/// A key with its value, as the target answered it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Answered {
    /// `MaxBurstLength`.
    pub key: String,
    /// `1048576`.
    pub value: String,
}

/// A target of a portal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Offered {
    /// iSCSI name of the target.
    pub name: String,
    /// Addresses and ports of its portals, as SendTargets reports them.
    pub addresses: Vec<String>,
}

/// A target that did not let the doctor in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Refused {
    /// iSCSI name of the target.
    pub name: String,
    /// Why, in the initiator's words.
    pub why: String,
}

/// What holds in a session. Lengths are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    /// Commands that the target takes at once.
    pub window: i64,
    /// Digests of headers.
    pub header_digest: bool,
    /// Digests of data.
    pub data_digest: bool,
    /// Largest data segment that the target takes.
    pub max_recv_data_segment_length: i64,
    /// Largest burst.
    pub max_burst_length: i64,
    /// Data that may be sent without being asked for.
    pub first_burst_length: i64,
    /// Requests for data that may be open at once.
    pub max_outstanding_r2t: i64,
    /// Whether data may be in the command.
    pub immediate_data: bool,
    /// Whether all further data has to be asked for.
    pub initial_r2t: bool,
}

/// Round trips, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// How many were measured.
    pub samples: i64,
    /// Minimum in microseconds.
    pub min_us: f64,
    /// Half of them are faster.
    pub median_us: f64,
    /// Nine of ten are faster.
    pub p90_us: f64,
    /// Maximum in microseconds.
    pub max_us: f64,
}

/// Why nothing could be seen.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// There is nobody.
    #[error("{0}")]
    Nobody(Error),
    /// There is somebody, but the login or the session failed.
    #[error("{place}: {error}")]
    Session {
        /// Host and port, as they were asked for.
        place: String,
        /// Why.
        error: Error,
    },
}

/// Logs in and looks. Without a target in the address the portal is asked for its targets, and the
/// first one that lets the doctor in is looked at.
///
/// # Errors
/// Nobody answers, or the login is refused.
pub fn probe(target: &Target) -> Result<Probe, ProbeError> {
    let name = target.name.clone();
    let mut probe = Probe { url: target.to_string(), target: name, ..Probe::default() };
    look(target, &mut probe).map_err(|error| match error {
        Error::Resolve { .. } | Error::Connect { .. } | Error::Rdma(_) => ProbeError::Nobody(error),
        error => {
            let place = Target { account: None, name: None, ..target.clone() }.to_string();
            let place = place.split_once("://").map_or(&*place, |(_, place)| place).to_owned();
            ProbeError::Session { place, error }
        }
    })?;
    Ok(probe)
}

fn look(url: &Target, probe: &mut Probe) -> Result<(), Error> {
    if probe.target.is_none() {
        let mut link = open(url, probe)?;
        let targets = link.targets()?;
        link.close();
        probe.targets = targets
            .into_iter()
            .map(|target| Offered {
                name: harmless(&target.name),
                addresses: target.addresses.iter().map(|address| harmless(address)).collect(),
            })
            .collect();
        if probe.targets.is_empty() {
            return Ok(());
        }
    }
    let mut link = enter(url, probe)?;
    let info = link.info();
    probe.chap = info.answers.iter().any(|(key, _)| key == "CHAP_A");
    // Numbers of a challenge are of no use to anybody.
    let keys = info.answers.iter().filter(|(key, _)| !key.starts_with("CHAP_"));
    probe.keys =
        keys.map(|(key, value)| Answered { key: harmless(key), value: harmless(value) }).collect();
    let agreed = &info.negotiated;
    probe.session = Some(Session {
        window: link.window().into(),
        header_digest: agreed.header_digest,
        data_digest: agreed.data_digest,
        max_recv_data_segment_length: agreed.target_max_recv_data_segment_length.into(),
        max_burst_length: agreed.max_burst_length.into(),
        first_burst_length: agreed.first_burst_length.into(),
        max_outstanding_r2t: agreed.max_outstanding_r2t.into(),
        immediate_data: agreed.immediate_data,
        initial_r2t: agreed.initial_r2t,
    });
    let luns = match url.lun {
        Some(lun) => vec![lun],
        None => scsi::luns(&mut link)?,
    };
    for lun in luns {
        let found = scsi::look(&mut link, lun)?;
        scsi::check(&mut link, &found)?;
        probe.luns.push(found);
    }
    // The window opens with the first answers.
    let window = link.window().into();
    if let Some(session) = &mut probe.session {
        session.window = session.window.max(window);
    }
    measure(&mut link, probe)?;
    link.close();
    Ok(())
}

/// A session with the target that was asked for, or with the first of the portal's that lets the doctor in. The error
/// of the first one, if none does.
fn enter(url: &Target, probe: &mut Probe) -> Result<Link, Error> {
    if probe.target.is_some() {
        return open(url, probe);
    }
    let mut first = None;
    for name in probe.targets.iter().take(MOST_TARGETS).map(|t| t.name.clone()).collect::<Vec<_>>()
    {
        probe.target = Some(name.clone());
        match open(url, probe) {
            Ok(link) => return Ok(link),
            Err(
                error @ (Error::Refused(_)
                | Error::Busy(_)
                | Error::Protocol(_)
                | Error::Stranger
                | Error::Proof),
            ) => {
                probe.refused.push(Refused { name, why: harmless(&error.to_string()) });
                first.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    Err(first.unwrap_or(Error::Refused("the portal offers no target".to_owned())))
}

/// A session with the target that is looked at, or for discovery as long as there is none.
fn open(url: &Target, probe: &mut Probe) -> Result<Link, Error> {
    let mut url = url.clone();
    // What the target prefers shows.
    for digest in [&mut url.header_digest, &mut url.data_digest] {
        if *digest == DigestOffer::None {
            *digest = DigestOffer::PreferNone;
        }
    }
    let login = Login { initiator_name: INITIATOR.into(), patience: PATIENCE, ..Login::default() };
    let mut link = Link::log_into(&url, &login, probe.target.as_deref())?;
    link.end_by(Instant::now() + WHOLE);
    let address = link.address()?;
    probe.address = address.to_string();
    probe.public = crate::expr::is_public(address.ip());
    probe.local = link.is_local()?;
    Ok(link)
}

/// A text of the target's that steers no terminal, and neither turns nor hides what stands beside it.
fn harmless(text: &str) -> String {
    printable(text.trim()).to_string()
}

/// Measures round trips: of the target, of the LUN, of its storage.
fn measure(link: &mut Link, probe: &mut Probe) -> Result<(), Error> {
    let mut pings = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        pings.push(link.ping()?);
    }
    probe.ping = latency(pings);
    let disk = probe.luns.iter().find(|lun| lun.size_bytes.is_some() && lun.not_ready.is_none());
    let Some(disk) = disk.cloned() else { return Ok(()) };
    let mut ready = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        ready.push(scsi::send(link, disk.lun, &cdb::ready(), 0)?.took);
    }
    probe.ready = latency(ready);
    let block = disk.block_bytes.unwrap_or(512).max(1);
    let mut reads = Vec::with_capacity(SAMPLES);
    for at in spread(disk.size_bytes.unwrap_or(0), block) {
        reads.extend(scsi::read(link, &disk, at)?);
    }
    probe.read = latency(reads);
    Ok(())
}

/// The first blocks of pieces of 4 KiB, spread over a disk of this size.
fn spread(size: i64, block: i64) -> impl Iterator<Item = u64> {
    let places = size / 4096;
    (0..SAMPLES as i64).map(move |sample| {
        // By the golden ratio, so that no read lies beside the last one.
        let place = (sample * 618_033_989).rem_euclid(1_000_000_007);
        let at = i128::from(places) * i128::from(place) / 1_000_000_007;
        (i64::try_from(at).unwrap_or(0) * 4096 / block.max(1)).unsigned_abs()
    })
}

fn latency(mut took: Vec<Duration>) -> Option<Latency> {
    took.sort();
    let us = |at: usize| took.get(at).map(|took| took.as_secs_f64() * 1e6);
    let last = took.len().checked_sub(1)?;
    Some(Latency {
        samples: i64::try_from(took.len()).ok()?,
        min_us: us(0)?,
        median_us: us(last / 2)?,
        p90_us: us(last * 9 / 10)?,
        max_us: us(last)?,
    })
}

#[cfg(test)]
mod tests {
    use super::harmless;

    #[test]
    fn text_of_a_target_neither_steers_turns_nor_hides() {
        assert_eq!(harmless(" iqn.x:\u{1b}[31m\u{202e}evil\u{200b} "), "iqn.x:?[31m?evil?");
        assert_eq!(harmless("Größe 日本"), "Größe 日本");
    }
}
