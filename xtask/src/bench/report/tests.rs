use lunet_bench::model::{Flow, Process, Role, Run, Target, TargetKind, Workload};
use lunet_bench::profiles::Profile;

use super::*;

/// Six rounds of one load on these targets, so many MiB/s each.
fn results(load: &Workload, rates: &[(&str, f64)]) -> Results {
    let target = |(name, _): &(&str, f64)| Target {
        name: (*name).to_owned(),
        kind: TargetKind::Iscsi,
        location: "iscsi://host/iqn.x:y/0".to_owned(),
        tool: "lunet".to_owned(),
        data_digest: false,
    };
    let run = |round: u32, (name, rate): &(&str, f64)| {
        let rate = rate * (1.0 + f64::from(round) / 100.0);
        let bytes = (rate * f64::from(1 << 20)) as u64;
        let flow = Flow { bytes, mib_per_s: rate, iops: rate * 256.0, ..Flow::default() };
        let server = Process {
            name: "server".to_owned(),
            pid: 1,
            role: Role::Server,
            user_s: 0.5,
            system_s: 0.5,
            busiest_thread: 1.0,
            waited: None,
            voluntary_switches: 0,
            involuntary_switches: 0,
            quota_throttled: None,
        };
        let (target, workload) = ((*name).to_owned(), load.name.clone());
        let processes = vec![server];
        Run { round, target, workload, read: Some(flow), processes, ..Run::default() }
    };
    let mut results = Results {
        targets: rates.iter().map(target).collect(),
        workloads: vec![load.clone()],
        runs: (1..=6).flat_map(|round| rates.iter().map(move |one| run(round, one))).collect(),
        ..Results::default()
    };
    results.summarise();
    results
}

#[test]
fn the_loads_are_workloads_of_the_profile() {
    let profile = Profile::named(super::super::PROFILE).expect("it is there");
    for load in LOADS {
        assert!(profile.workloads.iter().any(|one| one.name == load), "{load}");
    }
}

#[test]
fn every_target_stands_with_its_medium_and_its_ratio() {
    let profile = Profile::named(super::super::PROFILE).expect("it is there");
    let load = profile.workloads.iter().find(|load| load.name == LOADS[0]).expect("it is there");
    let rates = [
        ("lunet, memory", 400.0),
        ("tgt, memory", 100.0),
        ("lunet, file", 200.0),
        ("tgt, file", 200.0),
        ("other", 800.0),
    ];
    let about = About {
        date: "2026-11-20".into(),
        lunet: "lunet".into(),
        commit: "c".into(),
        tgt: "1".into(),
        load_average: "0".into(),
    };
    let results = results(load, &rates);
    let report = Report { about, how: Vec::new(), idles: Vec::new(), results };
    let page = report.markdown();
    let at = |words: &str| page.find(words).unwrap_or_else(|| panic!("{words} in {page}"));
    let name = LOADS[0];
    let order = [
        format!(
            "| {name} | 106k IOPS | 26.5k IOPS | throughput: 4.00 times (4.00 to 4.00); server CPU per GiB: 0.25"
        ),
        format!("| {name} | throughput | tgt | at least 3.3 | 4.00 times (4.00 to 4.00) |"),
        "## Volume in memory".to_owned(),
        format!(
            "| {name} | tgt, memory | 4.00 times (4.00 to 4.00) | - | 0.25 times (0.25 to 0.25) | - |"
        ),
        "## Volume in file".to_owned(),
        format!("| {name} | tgt, file | cannot be told from noise"),
        "## Other targets".to_owned(),
        format!("| {name} | other | 0.50 times"),
    ];
    let found: Vec<usize> = order.iter().map(|words| at(words)).collect();
    assert!(found.is_sorted(), "{page}");
    assert!(page.contains("| tgt | at most 0.2 | 0.25 times (0.25 to 0.25) (missed) |"), "{page}");
}
