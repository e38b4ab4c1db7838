//! The tables of the page.

use crate::model::{Process, Results, Role, Run, System};
use crate::report::format::{escape, iops, number, percent, time};
use crate::stats::{Estimate, median};

/// Other programs that use so many processors can have changed the figures.
const DISTURBED: f64 = 0.2;

/// A table that scrolls by itself where it is too wide. On a phone it is a list; the style knows the heads by its class.
fn table(class: &str, heads: &[(&str, bool)], rows: &str) -> String {
    let head = |(name, figure): &(&str, bool)| {
        let class = if *figure { " class=\"n\"" } else { "" };
        format!("<th{class}>{}</th>", escape(name))
    };
    let heads: String = heads.iter().map(head).collect();
    format!(
        "<div class=\"card scroll\"><table class=\"{class}\"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
}

fn name(text: &str) -> String {
    format!("<td class=\"name\">{}</td>", escape(text))
}

fn figure(text: &str) -> String {
    format!("<td class=\"n\">{}</td>", escape(text))
}

/// A figure with its interval below it; a dash if it is not known.
fn spread(estimate: Option<Estimate>, told: impl Fn(f64) -> String) -> String {
    let Some(estimate) = estimate else { return figure("\u{2013}") };
    let value = escape(&told(estimate.median));
    if estimate.rounds == 1 {
        return format!("<td class=\"n\">{value}</td>");
    }
    let (low, high) = (escape(&told(estimate.low)), escape(&told(estimate.high)));
    format!("<td class=\"n\">{value}<small>{low} to {high}</small></td>")
}

/// All figures of all targets and workloads.
pub(super) fn summaries(results: &Results) -> String {
    let mut rows = String::new();
    for one in &results.summaries {
        let target = match one.errors {
            0 => one.target.clone(),
            errors => format!("{} ({errors} operations failed)", one.target),
        };
        let cells = [
            format!(
                "<td class=\"name\">{}<small>{}</small></td>",
                escape(&target),
                escape(&one.workload)
            ),
            spread(Some(one.mib_per_s), number),
            spread(Some(one.iops), iops),
            spread(one.latency_mean_us, time),
            spread(one.latency_p99_us, time),
            spread(one.client_cpu_s_per_gib, number),
            spread(one.server_cpu_s_per_gib, number),
            spread(one.switches_per_operation, number),
        ];
        rows += &format!("<tr>{}</tr>", cells.concat());
    }
    let heads = [
        ("target, workload", false),
        ("MiB/s", true),
        ("IOPS", true),
        ("mean latency", true),
        ("99 % within", true),
        ("client CPU, s/GiB", true),
        ("server CPU, s/GiB", true),
        ("switches per op.", true),
    ];
    let all = table("figures", &heads, &rows);
    match results.summaries.len() {
        0 => String::new(),
        few if few <= 24 => all,
        many => super::folded(&format!("{many} rows"), &all, false),
    }
}

/// What the machine did with one workload: a column for each target.
pub(super) fn processes(results: &Results, workload: &str) -> String {
    let mut columns: Vec<(&str, [String; 8])> = Vec::new();
    for target in &results.targets {
        let runs = results.runs_of(&target.name, workload);
        let systems: Vec<&System> = runs.iter().filter_map(|run| run.system.as_ref()).collect();
        if systems.is_empty() {
            continue;
        }
        let middle = |of: fn(&System) -> f64| {
            median(&systems.iter().map(|system| of(system)).collect::<Vec<_>>()).unwrap_or(0.0)
        };
        let cpus = systems.iter().map(|system| system.cpus).max().unwrap_or(0);
        columns.push((
            &target.name,
            [
                busiest(&runs, Role::Client),
                busiest(&runs, Role::Server),
                format!("{} of {cpus}", percent(middle(|system| system.busy))),
                percent(middle(|system| system.busiest_cpu)),
                percent(middle(|system| system.stolen)),
                heat(&systems),
                slowed(&systems),
                others(&runs),
            ],
        ));
    }
    if columns.is_empty() {
        return String::new();
    }
    let heads = [
        "client, busiest thread",
        "server, busiest thread",
        "processors busy",
        "busiest processor",
        "taken by the hypervisor",
        "warmest sensor",
        "throttled itself",
        "what else ran, in processors",
    ];
    let mut rows = String::new();
    for (at, head) in heads.iter().enumerate() {
        let cells: String =
            columns.iter().map(|(_, cells)| format!("<td>{}</td>", escape(&cells[at]))).collect();
        rows += &format!("<tr><th>{head}</th>{cells}</tr>");
    }
    let names = columns.iter().map(|(name, _)| format!("<th>{}</th>", escape(name)));
    let names: String = names.collect();
    format!(
        "<div class=\"card\"><h3>The machine meanwhile</h3><div class=\"scroll\"><table><thead><tr><th></th>{names}</tr></thead>\
         <tbody>{rows}</tbody></table></div></div>"
    )
}

fn busiest(runs: &[&Run], role: Role) -> String {
    let most = |run: &&Run| {
        let own = run.processes.iter().filter(|process| process.role == role);
        own.map(|process| process.busiest_thread).max_by(f64::total_cmp)
    };
    let shares: Vec<f64> = runs.iter().filter_map(most).collect();
    median(&shares).map_or_else(|| "\u{2013}".to_owned(), percent)
}

fn heat(systems: &[&System]) -> String {
    let sensors = systems.iter().flat_map(|system| &system.sensors);
    let warmest = sensors.max_by(|a, b| a.after_c.total_cmp(&b.after_c));
    warmest.map_or_else(
        || "not readable".to_owned(),
        |sensor| format!("{:.0} \u{b0}C, {}", sensor.after_c, sensor.name),
    )
}

fn slowed(systems: &[&System]) -> String {
    if systems.iter().any(|system| system.unreadable.iter().any(|what| what == "throttling")) {
        return "not readable".to_owned();
    }
    let times: u64 = systems.iter().flat_map(|system| &system.throttled).map(|one| one.times).sum();
    if times == 0 { "no".to_owned() } else { format!("{times} times") }
}

/// Said at the head of the report if what else ran can have changed the figures.
pub(in crate::report) fn disturbed(results: &Results) -> Option<String> {
    let seconds: f64 = results.runs.iter().map(Run::watched_s).sum();
    let all = results.runs.iter().flat_map(|run| &run.others);
    let used: f64 =
        all.map(|process| process.user_s + process.system_s).sum::<f64>() / seconds.max(1e-3);
    let runs: Vec<&Run> = results.runs.iter().collect();
    (used >= DISTURBED).then(|| {
        format!("The machine was not idle: other programs used {used:.1} processors meanwhile, most of it {}.", others(&runs))
    })
}

/// The three programs that used most.
fn others(runs: &[&Run]) -> String {
    let seconds: f64 = runs.iter().map(|run| run.watched_s()).sum();
    let mut used: Vec<(&str, f64)> = Vec::new();
    let time = |process: &Process| process.user_s + process.system_s;
    for process in runs.iter().flat_map(|run| &run.others) {
        match used.iter_mut().find(|(name, _)| *name == process.name) {
            Some((_, sum)) => *sum += time(process),
            None => used.push((&process.name, time(process))),
        }
    }
    used.sort_by(|a, b| b.1.total_cmp(&a.1));
    // What took less than a hundredth of a processor says nothing.
    used.retain(|(_, sum)| *sum >= 0.01 * seconds);
    let told =
        used.iter().take(3).map(|(name, sum)| format!("{name} {:.2}", sum / seconds.max(1e-3)));
    let told: Vec<String> = told.collect();
    if told.is_empty() { "nothing that counts".to_owned() } else { told.join(", ") }
}

/// What each layer can carry.
pub(super) fn ceilings(results: &Results) -> String {
    let mut rows = String::new();
    // Several targets may stand on the same layer.
    let mut told: Vec<(&str, &str)> = Vec::new();
    for one in &results.ceilings {
        let own = (one.name.as_str(), one.how.as_str());
        if told.contains(&own) {
            continue;
        }
        told.push(own);
        let same =
            results.ceilings.iter().filter(|two| (two.name.as_str(), two.how.as_str()) == own);
        let of = same.filter_map(|two| two.target.as_deref()).chain(one.workload.as_deref());
        let of: Vec<&str> = of.collect();
        let of = if of.is_empty() { "all".to_owned() } else { of.join(", ") };
        let alone = one.latency_us.map_or_else(|| "\u{2013}".to_owned(), time);
        let cells = [
            name(&one.name),
            figure(&format!("{} {}", number(one.value), one.unit.text())),
            figure(&alone),
            name(&of),
            format!("<td class=\"how\">{}</td>", escape(&one.how)),
        ];
        rows += &format!("<tr>{}</tr>", cells.concat());
    }
    let heads = [
        ("layer", false),
        ("ceiling", true),
        ("one alone", true),
        ("holds for", false),
        ("how it was got", false),
    ];
    if rows.is_empty() { rows } else { table("layers", &heads, &rows) }
}
