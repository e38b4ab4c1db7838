//! How much may be done with volumes in a time.

use std::num::NonZeroU64;
use std::time::Duration;

use anyhow::Result;
use lunet_api::{Code, Done, VolumeLimits};
use lunet_volume::{DEFAULT_BURST, Rates};
use toml_edit::Value;

use super::effects::Consent;
use super::{Manager, Served, done};
use crate::config::Volume;
use crate::config::limits::{BANDWIDTH, BURST, IOPS, rates_of};
use crate::trouble::refuse;
use crate::units;

impl Manager {
    /// Has the servers keep to what is configured.
    pub(super) fn set_limits(&self, served: &Served) {
        self.handle.limit(|name| Some(served.open.get(name)?.config.rates));
        let limits = served.plan.config.limits.clone();
        self.handle.limit_clients(Box::new(move |name| rates_of(&limits, name)));
    }

    pub(super) fn limit_volume(
        &self,
        now: &Served,
        name: &str,
        limits: &VolumeLimits,
    ) -> Result<Done> {
        let open = now.volume(name)?;
        check(limits)?;
        let before = open.config.rates;
        let rates = changed(before, limits);
        if rates == before {
            return Ok(done(format!("volume {name} {} already", told(rates))));
        }
        let plan = self.edited(now, Consent::default(), |editor| {
            for (key, value) in keys(rates) {
                editor.set_key(name, key, value)?;
            }
            Ok(())
        })?;
        self.stop_with(&plan)?;
        let config = Volume { rates, ..open.config.clone() };
        let mut all = now.open.clone();
        all.insert(name.to_owned(), open.with(config, open.volume.clone()));
        self.commit(now, plan, all)?;
        Ok(done(format!("volume {name} {} now", told(rates))))
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
    Ok(())
}

/// The rates with what becomes different.
fn changed(before: Rates, limits: &VolumeLimits) -> Rates {
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
        rates.burst = DEFAULT_BURST;
    }
    rates
}

/// The keys of the file; those without a value are taken out of it.
fn keys(rates: Rates) -> [(&'static str, Option<Value>); 3] {
    let burst = (rates.burst != DEFAULT_BURST).then(|| exact(rates.burst).into());
    let bandwidth = rates.bandwidth.map(|bytes| crate::config::edit::size(bytes.get()));
    [
        ("iops", rates.iops.map(|iops| (iops.get() as i64).into())),
        ("bandwidth", bandwidth),
        ("burst", burst),
    ]
}

/// A duration as it is read again.
fn exact(time: Duration) -> String {
    let ms = time.as_millis();
    if ms % 1000 == 0 { format!("{}s", ms / 1000) } else { format!("{ms}ms") }
}

/// What a volume may do, as the end of a sentence about it.
pub(super) fn told(rates: Rates) -> String {
    let iops = rates.iops.map(|iops| format!("{} IOPS", units::count(iops.get())));
    let bandwidth = rates.bandwidth.map(|bytes| format!("{}/s", units::exact_size(bytes.get())));
    let all: Vec<String> = iops.into_iter().chain(bandwidth).collect();
    if all.is_empty() {
        return "has no limit".to_owned();
    }
    format!("is limited to {} with bursts of {}", all.join(" and "), units::duration(rates.burst))
}

/// The limit of a volume in the terms of the API.
pub(super) fn of(volume: &Volume) -> VolumeLimits {
    let rates = volume.rates;
    VolumeLimits {
        iops: rates.iops.map(NonZeroU64::get),
        bytes_per_s: rates.bandwidth.map(NonZeroU64::get),
        burst_ms: rates.is_limit().then(|| rates.burst.as_millis() as u64),
    }
}
