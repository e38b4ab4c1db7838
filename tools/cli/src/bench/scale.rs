//! A profile as the caller wants it: shorter, smaller, or without writes.

use std::collections::BTreeMap;
use std::time::Duration;

use lunet_bench::model::{Pattern, Workload};
use lunet_bench::profiles::Profile;

use super::Refused;
use lunet_config::units;

/// What differs from the profile.
#[derive(Clone, Debug, Default)]
pub struct Scale {
    /// Rounds.
    pub rounds: Option<u32>,
    /// How long each run is measured.
    pub runtime: Option<Duration>,
    /// What each job works on, in bytes.
    pub size: Option<u64>,
    /// Only workloads with these words in their names.
    pub only: Vec<String>,
    /// Nothing is written to what was there before.
    pub read_only: bool,
}

impl Scale {
    /// The profile, and what the reader of its figures must know.
    ///
    /// # Errors
    /// Nothing is left of it.
    pub fn apply(&self, mut profile: Profile) -> Result<(Profile, Vec<String>), Refused> {
        let mut notes = Vec::new();
        if let Some(rounds) = self.rounds.filter(|rounds| *rounds != profile.rounds) {
            let plural = if rounds == 1 { "round" } else { "rounds" };
            notes.push(format!("{rounds} {plural} instead of {}.", profile.rounds));
            profile.rounds = rounds;
        }
        let few = lunet_bench::stats::FEWEST;
        if (profile.rounds as usize) < few {
            notes.push(format!(
                "Fewer than {few} rounds tell no confidence: differences may be noise."
            ));
        }
        if self.read_only {
            notes.push(read_only(&mut profile));
        }
        if !self.only.is_empty() {
            only(&mut profile, &self.only)?;
        }
        if let Some(time) = self.runtime {
            notes.extend(runtime(&mut profile, time.as_secs_f64()));
        }
        if let Some(size) = self.size {
            notes.push(format!("Each job works on {}.", units::size(size)));
            for load in &mut profile.workloads {
                load.size_bytes = Some(size);
            }
        }
        let large = profile.workloads.iter().find(|load| {
            load.size_bytes.is_some_and(|size| size < load.block_bytes * u64::from(load.jobs))
        });
        match large {
            Some(load) => Err(Refused(format!(
                "{} do not fit into --size {}: give more",
                load.name,
                units::size(load.size_bytes.unwrap_or(0))
            ))),
            None => Ok((profile, notes)),
        }
    }
}

/// Mixed workloads read only, those that write alone are left out.
fn read_only(profile: &mut Profile) -> String {
    let mut kept: Vec<Workload> = Vec::new();
    let (mut changed, mut dropped) = (0, 0);
    for mut load in std::mem::take(&mut profile.workloads) {
        if load.read_percent == 0 {
            dropped += 1;
            continue;
        }
        if load.read_percent < 100 {
            load.read_percent = 100;
            load.name = load.words();
            changed += 1;
        }
        if kept.iter().all(|have| have.name != load.name) {
            kept.push(load);
        }
    }
    profile.workloads = kept;
    format!(
        "Reads only: {changed} mixed workloads read instead, {dropped} that write were left out."
    )
}

fn only(profile: &mut Profile, words: &[String]) -> Result<(), String> {
    let all: Vec<String> = profile.workloads.iter().map(|load| load.name.clone()).collect();
    let exact = |word: &str| all.iter().any(|name| name == word);
    if let Some(word) = words.iter().find(|word| !all.iter().any(|name| name.contains(*word))) {
        return Err(format!(
            "no workload of profile {} is called \"{word}\"; there are: {}",
            profile.name,
            all.join("; ")
        ));
    }
    // The whole name means this one, and not those that begin with it.
    let fits = |name: &String| {
        words.iter().any(|word| if exact(word) { name == word } else { name.contains(word) })
    };
    profile.workloads.retain(|load| fits(&load.name));
    Ok(())
}

fn runtime(profile: &mut Profile, seconds: f64) -> Option<String> {
    let before: Vec<f64> = profile.workloads.iter().map(|load| load.seconds).collect();
    let shorter = profile.workloads.iter().all(|load| seconds <= load.seconds);
    for load in &mut profile.workloads {
        if seconds < load.seconds {
            // The ramp keeps its part of the whole.
            load.ramp_seconds *= seconds / load.seconds;
        }
        load.seconds = seconds;
    }
    let (first, rest) = before.split_first()?;
    let usual = rest.iter().all(|other| other == first).then_some(first);
    let usual = usual.filter(|usual| **usual != seconds)?;
    let what = if shorter { "Scaled down" } else { "Scaled up" };
    Some(format!("{what}: each run is measured for {seconds} s instead of {usual} s."))
}

/// What a path needs of new space at most, in bytes: the files of each direction, of all jobs.
pub fn bytes(profile: &Profile) -> u64 {
    let mut files: BTreeMap<(bool, u8), u64> = BTreeMap::new();
    for load in &profile.workloads {
        // As fio names them: by pattern and by whether it reads, writes or both.
        let kind = match load.read_percent {
            100 => 0,
            0 => 1,
            _ => 2,
        };
        let all = load.size_bytes.unwrap_or(0) * u64::from(load.jobs);
        let most = files.entry((load.pattern == Pattern::Random, kind)).or_default();
        *most = all.max(*most);
    }
    files.values().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(name: &str) -> Profile {
        Profile::named(name).expect("it is there")
    }

    #[test]
    fn reads_only_leaves_no_write() {
        for one in Profile::all() {
            let name = one.name;
            let scale = Scale { read_only: true, ..Scale::default() };
            let (read, notes) = scale.apply(one).expect("something is left");
            assert!(!read.workloads.is_empty(), "{name}");
            assert!(read.workloads.iter().all(|load| !load.writes()), "{name}");
            assert!(read.workloads.iter().all(|load| load.name == load.words()), "{name}");
            assert!(notes.iter().any(|note| note.starts_with("Reads only")), "{notes:?}");
        }
    }

    #[test]
    fn a_shorter_runtime_shortens_the_ramp_and_says_so() {
        let scale = Scale { runtime: Some(Duration::from_secs(6)), ..Scale::default() };
        let (short, notes) = scale.apply(profile("recipe")).expect("it is left");
        assert_eq!((short.workloads[0].seconds, short.workloads[0].ramp_seconds), (6.0, 1.0));
        assert_eq!(notes, ["Scaled down: each run is measured for 6 s instead of 60 s."]);
    }

    #[test]
    fn one_workload_is_found_by_its_name_and_several_by_a_part() {
        let only = |words: &str| {
            let scale = Scale { only: vec![words.to_owned()], ..Scale::default() };
            scale.apply(profile("quick")).map(|(profile, _)| profile.workloads.len())
        };
        assert_eq!(only("4k random reads, depth 1"), Ok(1));
        assert_eq!(only("4k random reads, depth 32"), Ok(1));
        assert_eq!(only("4k"), Ok(2));
        let error = only("4 kB").expect_err("no such load");
        assert!(error.0.contains("128k random I/O"), "{error}");
    }

    #[test]
    fn few_rounds_and_small_sizes_are_told() {
        let scale = Scale { rounds: Some(2), size: Some(16 << 20), ..Scale::default() };
        let (small, notes) = scale.apply(profile("quick")).expect("it is left");
        assert_eq!(small.rounds, 2);
        assert!(notes.iter().any(|note| note.contains("no confidence")), "{notes:?}");
        assert!(notes.iter().any(|note| note.contains("16 MiB")), "{notes:?}");
        // Random reads, and reads with writes.
        assert_eq!(bytes(&small), 32 << 20);
        let scale = Scale { size: Some(4096), ..Scale::default() };
        assert!(scale.apply(profile("quick")).expect_err("128k do not fit").0.contains("--size"));
    }
}
