//! How much may be done with volumes in a time, and what they have of their storage.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::Result;
use lunet_api::{Code, Done, VolumeLimits};
use lunet_os::sync::Mutex;
use lunet_volume::{DEFAULT_BURST, Pool, PoolShare, Rates};
use toml_edit::Value;

use super::effects::Consent;
use super::served::Open;
use super::{Manager, Served, done};
use crate::trouble::refuse;
use lunet_config::limits::{BANDWIDTH, BURST, IOPS, Share, TARGET, WEIGHT, rates_of};
use lunet_config::units;
use lunet_config::{Backend, Volume};

/// What volumes have in common that take from each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Store {
    /// A file system or a device, by its number.
    Device(u64),
    /// A cluster of Ceph, by its configuration.
    Cluster(PathBuf),
    /// The machine's memory, or nothing.
    Memory,
}

/// The pools of stores. One stays as long as the server, as its volumes do not change theirs.
#[derive(Default)]
pub(super) struct Pools(Mutex<BTreeMap<Store, Arc<Pool>>>);

impl Pools {
    fn of(&self, store: Store) -> Arc<Pool> {
        let mut pools = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pools.entry(store).or_default().clone()
    }
}

/// Where a volume is; `None` if nobody knows.
fn store(open: &Open) -> Option<Store> {
    match &open.config.backend {
        Backend::File { .. } | Backend::Block { .. } => {
            let found = lunet_backends::opened(&open.volume).ok()??;
            let device = found.file_type().is_block_device();
            Some(Store::Device(if device { found.rdev() } else { found.dev() }))
        }
        Backend::Rbd { conf, .. } => Some(Store::Cluster(conf.clone().unwrap_or_default())),
        Backend::Memory { .. } | Backend::Null { .. } => Some(Store::Memory),
    }
}

impl Manager {
    /// Has the servers keep to what is configured.
    pub(super) fn set_limits(&self, served: &Served) {
        self.handle.limit(|name| Some(served.open.get(name)?.config.rates));
        let limits = served.plan.config.limits.clone();
        self.handle.limit_clients(Box::new(move |name| rates_of(&limits, name)));
        self.set_shares(served);
    }

    /// Volumes share their storage where one of them has a weight or a latency target.
    fn set_shares(&self, served: &Served) {
        let mut shared: BTreeMap<Store, Vec<&Open>> = BTreeMap::new();
        // Otherwise nobody has to ask the storage.
        if served.open.values().any(|open| open.config.share.is_some()) {
            for open in served.open.values() {
                if let Some(store) = store(open) {
                    shared.entry(store).or_default().push(open);
                }
            }
        }
        shared.retain(|_, opens| opens.iter().any(|open| open.config.share.is_some()));
        let mut shares = BTreeMap::new();
        for (store, opens) in shared {
            let pool = self.pools.of(store);
            pool.expect_goal(opens.iter().any(|open| open.config.share.target.is_some()));
            for open in opens {
                let Share { weight, target: goal } = open.config.share;
                shares.insert(&open.config.name, PoolShare { pool: pool.clone(), weight, goal });
            }
        }
        self.handle.share(|name| shares.get(&name.to_owned()).cloned());
    }

    pub(super) fn limit_volume(
        &self,
        now: &Served,
        name: &str,
        limits: &VolumeLimits,
    ) -> Result<Done> {
        let mut volumes = now.plan.config.volumes.iter();
        let shared = |volume: &Volume| now.plan.shared_by(volume.group.as_deref()?);
        let found = volumes.find(|volume| volume.name == name);
        let shared = found.and_then(shared);
        let volume = match (found, shared) {
            // Another gateway may serve it.
            (Some(volume), Some(_)) => volume,
            _ => &now.volume(name)?.config,
        };
        check(limits)?;
        if let Some(shared) = shared {
            self.is_latest(shared)?;
        }
        let before = (volume.rates, volume.share);
        let (rates, share) = (changed(before.0, limits)?, reshared(before.1, limits));
        if (rates, share) == before {
            return Ok(done(format!("volume {name} {} already", told(rates, share))));
        }
        let plan = self.edited_in(now, shared, Consent::default(), |editor| {
            for (key, value) in keys(rates, share) {
                editor.set_key(name, key, value)?;
            }
            Ok(())
        })?;
        self.stop_with(&plan)?;
        self.commit(now, plan, now.open.clone())?;
        Ok(done(format!("volume {name} {} now", told(rates, share))))
    }
}

/// Refuses what no limit can be.
fn check(limits: &VolumeLimits) -> Result<()> {
    if limits.is_empty() {
        return refuse(
            Code::Invalid,
            "say what is to be limited",
            "`lunet volume limit --help` lists what can be",
        );
    }
    let wrong = |what: &str, least: String, most: String| {
        refuse(Code::Invalid, format!("{what} must be from {least} to {most}, or 0 for none"), "")
    };
    if limits.iops.is_some_and(|iops| iops != 0 && !IOPS.contains(&iops)) {
        return wrong("iops", IOPS.start().to_string(), IOPS.end().to_string());
    }
    if limits.bytes_per_s.is_some_and(|bytes| bytes != 0 && !BANDWIDTH.contains(&bytes)) {
        let [least, most] = [BANDWIDTH.start(), BANDWIDTH.end()].map(|it| units::exact_size(*it));
        return wrong("the bandwidth", least, most);
    }
    let burst = limits.burst_ms.filter(|burst| *burst != 0).map(Duration::from_millis);
    if burst.is_some_and(|burst| !BURST.contains(&burst)) {
        let [least, most] = [BURST.start(), BURST.end()].map(|it| units::duration(*it));
        return wrong("the burst", least, most);
    }
    if limits.weight.is_some_and(|weight| weight != 0 && !WEIGHT.contains(&weight)) {
        return wrong("the weight", WEIGHT.start().to_string(), WEIGHT.end().to_string());
    }
    let target = limits.latency_target_us.filter(|target| *target != 0);
    if target.map(Duration::from_micros).is_some_and(|target| !TARGET.contains(&target)) {
        let [least, most] = [TARGET.start(), TARGET.end()].map(|it| units::duration(*it));
        return wrong("the latency target", least, most);
    }
    Ok(())
}

/// The rates with what becomes different.
///
/// # Errors
/// There is a burst, and nothing that it is of.
fn changed(before: Rates, limits: &VolumeLimits) -> Result<Rates> {
    let mut rates = before;
    if let Some(iops) = limits.iops {
        rates.iops = NonZeroU64::new(iops);
    }
    if let Some(bytes) = limits.bytes_per_s {
        rates.bandwidth = NonZeroU64::new(bytes);
    }
    match limits.burst_ms {
        Some(0) => rates.burst = DEFAULT_BURST,
        Some(burst) => rates.burst = Duration::from_millis(burst),
        None => {}
    }
    if !rates.is_limit() {
        if limits.burst_ms.is_some_and(|burst| burst != 0) {
            return refuse(
                Code::Invalid,
                "a burst has no meaning without a limit of operations or bytes per second",
                "give --iops or --bandwidth with it",
            );
        }
        rates.burst = DEFAULT_BURST;
    }
    Ok(rates)
}

/// The share with what becomes different.
fn reshared(before: Share, limits: &VolumeLimits) -> Share {
    let mut share = before;
    if let Some(weight) = limits.weight {
        share.weight = NonZeroU32::new(weight as u32);
    }
    if let Some(target) = limits.latency_target_us {
        share.target = (target != 0).then(|| Duration::from_micros(target));
    }
    share
}

/// The keys of a volume that is to have these limits from the beginning.
///
/// # Errors
/// They can be none.
pub(super) fn keys_of_new(limits: &VolumeLimits) -> Result<Vec<(&'static str, Value)>> {
    if limits.is_empty() {
        return Ok(Vec::new());
    }
    check(limits)?;
    let all = keys(changed(Rates::default(), limits)?, reshared(Share::default(), limits));
    Ok(all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect())
}

/// The keys of the file; those without a value are taken out of it.
fn keys(rates: Rates, share: Share) -> [(&'static str, Option<Value>); 5] {
    let burst = (rates.burst != DEFAULT_BURST).then(|| exact(rates.burst).into());
    let bandwidth = rates.bandwidth.map(|bytes| lunet_config::edit::size(bytes.get()));
    [
        ("iops", rates.iops.map(|iops| (iops.get() as i64).into())),
        ("bandwidth", bandwidth),
        ("burst", burst),
        ("weight", share.weight.map(|weight| i64::from(weight.get()).into())),
        ("latency-target", share.target.map(|target| exact(target).into())),
    ]
}

/// A duration as it is read again.
fn exact(time: Duration) -> String {
    match time.as_micros() {
        us if us % 1_000_000 == 0 => format!("{}s", us / 1_000_000),
        us if us % 1000 == 0 => format!("{}ms", us / 1000),
        us => format!("{us}us"),
    }
}

/// What a volume may do, as the end of a sentence about it.
pub(super) fn told(rates: Rates, share: Share) -> String {
    let iops = rates.iops.map(|iops| format!("{} IOPS", units::count(iops.get())));
    let bandwidth = rates.bandwidth.map(|bytes| format!("{}/s", units::exact_size(bytes.get())));
    let all: Vec<String> = iops.into_iter().chain(bandwidth).collect();
    let burst = units::duration(rates.burst);
    let mut told = match all.is_empty() {
        true => "has no limit".to_owned(),
        false => format!("is limited to {} with bursts of {burst}", all.join(" and ")),
    };
    if let Some(weight) = share.weight {
        told += &format!(", has the weight {weight}");
    }
    if let Some(target) = share.target {
        told += &format!(", has others give way above {}", units::duration(target));
    }
    told
}

/// The limit of a volume in the terms of the API.
pub(super) fn of(volume: &Volume) -> VolumeLimits {
    let rates = volume.rates;
    VolumeLimits {
        iops: rates.iops.map(NonZeroU64::get),
        bytes_per_s: rates.bandwidth.map(NonZeroU64::get),
        burst_ms: rates.is_limit().then_some(rates.burst.as_millis() as u64),
        weight: volume.share.weight.map(|weight| u64::from(weight.get())),
        latency_target_us: volume.share.target.map(|target| target.as_micros() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_needs_a_rate() {
        let burst = VolumeLimits { burst_ms: Some(12), ..VolumeLimits::default() };
        let told = changed(Rates::default(), &burst).expect_err("of nothing").to_string();
        assert!(told.contains("a burst has no meaning without"), "{told}");
        assert!(keys_of_new(&burst).is_err(), "nor for a new volume");
        let limited = Rates { iops: NonZeroU64::new(5), ..Rates::default() };
        let kept = changed(limited, &burst).expect("it is of 5 IOPS");
        assert_eq!((kept.iops, kept.burst), (limited.iops, Duration::from_millis(12)));
        let gone = VolumeLimits { iops: Some(0), ..burst };
        assert!(changed(limited, &gone).is_err(), "the rate goes, so the burst is of nothing");
        // The page says 0 for a volume without a limit.
        let none = VolumeLimits { iops: Some(0), burst_ms: Some(0), ..VolumeLimits::default() };
        assert_eq!(changed(kept, &none).expect("no limit"), Rates::default());
    }
}
