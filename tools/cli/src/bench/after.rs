//! Behind the rounds: what drives and protocol can carry, what else a verdict wants to know, and the verdicts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use lunet_bench::fio::{Fio, Location};
use lunet_bench::model::{Results, Workload};
use lunet_bench::verdict::{Extras, verdicts};

use super::ceilings;
use super::given::Given;
use super::served::Served;
use super::{End, Options, ROUNDS_PART, Step, extras, layers, step};

/// Extras by target and workload.
pub(super) type Known = HashMap<(String, String), Extras>;

/// What is measured behind the rounds, when files are filled and LUNs too.
pub(super) struct After<'a, 'b> {
    /// What the caller wants.
    pub options: &'b Options,
    /// Of each target; `None` for LUNs.
    pub locations: &'b [Option<Location>],
    /// The LUNs.
    pub served: &'b mut [Served<'a>],
    /// Set when the user has had enough.
    pub stop: &'a AtomicBool,
}

/// Where it is, for the bar.
struct At<'c> {
    passed: usize,
    all: usize,
    told: &'c mut dyn FnMut(&Step),
}

impl At<'_> {
    fn tell(&mut self, what: &str, options: &Options) {
        let part = self.passed as f64 / self.all.max(1) as f64;
        self.passed += 1;
        (self.told)(&step(what, ROUNDS_PART + (1.0 - ROUNDS_PART) * part, options));
    }
}

impl After<'_, '_> {
    /// Ceilings, extras, verdicts. What fails here is a note: the rounds are complete.
    pub fn measure(
        &mut self,
        names: &[String],
        results: &mut Results,
        told: &mut dyn FnMut(&Step),
    ) -> End {
        let loads = self.options.profile.workloads.clone();
        let paths = self.locations.iter().filter(|location| location.is_some()).count();
        let null = usize::from(self.options.null.is_some());
        let all = 1 + loads.len() * (paths + null + self.served.len());
        let mut at = At { passed: 0, all, told };
        let mut known = Known::new();
        at.tell("memory, processor and network once more", self.options);
        if !self.stopped() {
            // What is wrong with the network was said before the rounds.
            let again = layers(self.options, self.served, &mut Vec::new());
            ceilings::better(&mut results.ceilings, &again);
        }
        self.drives(names, &loads, results, &mut at);
        self.protocol(&loads, results, &mut at);
        self.extras(&loads, results, &mut known, &mut at);
        judge(results, &known);
        match self.stopped() {
            true => End::Partial("interrupted while ceilings were measured".to_owned()),
            false => End::Complete,
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn drives(&self, names: &[String], loads: &[Workload], results: &mut Results, at: &mut At<'_>) {
        for (location, name) in self.locations.iter().zip(names) {
            let Some(location) = location else { continue };
            // What is served stands on the same storage.
            let targets = if self.options.through { names } else { std::slice::from_ref(name) };
            let where_ = location.named().display().to_string();
            for load in loads {
                if self.stopped() {
                    return;
                }
                at.tell(&format!("drive {where_}: {}", load.name), self.options);
                let fio = Fio::new(location, self.options.profile.style, Vec::new(), self.stop);
                let one = fio.map_err(|error| error.to_string());
                let one = one
                    .and_then(|fio| ceilings::drive(&fio, &where_, load, targets, &mut |_, _| {}));
                match one {
                    Ok(some) => results.ceilings.extend(some),
                    Err(_) if self.stopped() => return,
                    Err(error) => results.notes.push(format!(
                        "What {where_} can carry with {} is not known: {error}.",
                        load.name
                    )),
                }
            }
        }
    }

    fn protocol(&self, loads: &[Workload], results: &mut Results, at: &mut At<'_>) {
        let Some(Given::Url(target)) = &self.options.null else {
            if !self.served.is_empty() {
                results.notes.push(
                    "The protocol's ceiling was not measured: serve a volume with the backend null, and give its address \
                     with --null."
                        .to_owned(),
                );
            }
            return;
        };
        let unit = target.inspect(&self.options.login);
        let unit = match unit {
            Ok(unit) => unit,
            Err(error) => {
                results.notes.push(format!("{target}: {error}."));
                return;
            }
        };
        let mut null = Served::new("null", (**target).clone(), unit, self.stop);
        null.login = self.options.login.clone();
        null.cpus.clone_from(&self.options.cpus);
        for load in loads {
            if self.stopped() {
                return;
            }
            at.tell(&format!("protocol: {}", load.name), self.options);
            match ceilings::protocol(&mut null, load, &mut |_, _| {}) {
                // It says something about those alone that are served.
                Ok(one) => results
                    .ceilings
                    .extend(self.served.iter().map(|served| ceilings::of(&one, &served.name))),
                Err(_) if self.stopped() => return,
                Err(error) => results.notes.push(format!(
                    "The protocol's ceiling with {} is not known: {error}.",
                    load.name
                )),
            }
        }
    }

    fn extras(
        &mut self,
        loads: &[Workload],
        results: &mut Results,
        known: &mut Known,
        at: &mut At<'_>,
    ) {
        for served in self.served.iter_mut() {
            for load in loads {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                let what = format!("{} otherwise: {}", served.name, load.name);
                at.tell(&what, self.options);
                match extras::extras(served, load, &mut |_, _| {}) {
                    Ok(told) => {
                        known.insert((served.name.clone(), load.name.clone()), told);
                    }
                    Err(_) if self.stop.load(Ordering::Relaxed) => return,
                    Err(error) => results.notes.push(format!(
                        "{}: whether {} is faster without digests or with more sessions is not known: {error}.",
                        served.name, load.name
                    )),
                }
            }
        }
    }
}

/// The verdicts, from what is known.
pub(super) fn judge(results: &mut Results, known: &Known) {
    let extras = |target: &str, workload: &str| {
        known.get(&(target.to_owned(), workload.to_owned())).copied().unwrap_or_default()
    };
    results.verdicts = verdicts(results, &extras);
}
