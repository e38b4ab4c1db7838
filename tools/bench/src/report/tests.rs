use lunet_iscsi::printable::is_printable;
use proptest::prelude::*;

use super::format::{escape, iops, mark, number, plain, shortened, time};
use super::svg::{Log, marks};
use super::*;
use crate::model::Results;

pub(super) fn small() -> Results {
    Results::from_json(include_str!("../../tests/data/small.json"), "small").expect("it is right")
}

#[test]
fn figures_have_three_digits_that_count() {
    let told = [number(5899.4), number(62.71), number(0.8284), number(1_234_567.0), number(0.0)];
    assert_eq!(told, ["5,899", "62.7", "0.828", "1,234,567", "0"]);
    assert_eq!(
        [iops(191_345.0), iops(54_231.0), iops(870.0), iops(1_858_000.0)],
        ["191k", "54.2k", "870", "1.86M"]
    );
    assert_eq!(
        [time(69.4), time(999.6), time(2430.0), time(2e6), time(0.5)],
        ["69.4 us", "1 ms", "2.43 ms", "2 s", "0.5 us"]
    );
    assert_eq!([mark(0.0), mark(2500.0), mark(20_000.0), mark(2e6)], ["0", "2,500", "20k", "2M"]);
    assert_eq!(shortened("a workload with a long name", 10), "a workloa\u{2026}");
}

#[test]
fn axes_have_round_marks() {
    assert_eq!(marks(6500.0, 6), [0.0, 2000.0, 4000.0, 6000.0, 8000.0]);
    assert_eq!(marks(1.0, 5), [0.0, 0.2, 0.4, 0.600_000_000_000_000_1, 0.8, 1.0]);
    assert!(marks(f64::NAN, 5).len() > 1 && marks(0.0, 5).len() > 1);
    let scale = Log::around([42.0, 9000.0].into_iter());
    assert_eq!((scale.low, scale.high), (30.0, 10_000.0));
    assert_eq!(scale.marks(9), [30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0]);
    assert_eq!(scale.marks(4), [100.0, 1000.0, 10_000.0]);
    assert!(Log::around(std::iter::empty()).part(5.0) > 0.0);
}

/// Names come from targets: nothing of them may become markup, and nothing of the page comes from elsewhere.
#[test]
fn nothing_breaks_out_of_the_page() {
    let evil = "</title><script>alert(1)</script>\"' onload=x \u{202e}\u{1b}[31m&";
    let text = include_str!("../../tests/data/small.json");
    let mut results = Results::from_json(text, "small").expect("it is right");
    results.profile = evil.to_owned();
    results.notes.push(evil.to_owned());
    for name in results.targets.iter_mut().map(|target| &mut target.name) {
        *name = format!("{name}{evil}");
    }
    for run in &mut results.runs {
        (run.target, run.workload) = (format!("{}{evil}", run.target), evil.to_owned());
        run.processes[0].name = evil.to_owned();
    }
    results.workloads[0].name = evil.to_owned();
    let ceiling = &mut results.ceilings[0];
    (ceiling.name, ceiling.how) = (evil.to_owned(), evil.to_owned());
    (ceiling.target, ceiling.workload) = (None, Some(evil.to_owned()));
    let verdict = &mut results.verdicts[0];
    (verdict.target, verdict.workload) = (format!("served{evil}"), evil.to_owned());
    (verdict.sentence, verdict.advice) = (evil.to_owned(), evil.to_owned());
    (verdict.layers[0].name, verdict.layers[0].how) = (evil.to_owned(), evil.to_owned());
    results.machines[0].sections[0].facts[0].value = evil.to_owned();
    results.commands[0].line = evil.to_owned();
    results.summarise();
    for page in [page(&results), compare_page(&results, &results, (evil, "B"))] {
        assert!(!page.contains("<script") && !page.contains("</title><script"), "markup of a name");
        assert!(!page.contains('\u{202e}') && !page.contains('\u{1b}'), "characters that steer");
        assert_eq!(page.matches("<title>Bench").count(), 1);
        assert!(page.contains("&lt;script&gt;alert(1)"), "the name is told");
        for elsewhere in ["http://", "https://", "src=", "url(", "@import", "<link", "<iframe"] {
            assert!(!page.contains(elsewhere), "{elsewhere}");
        }
        balanced(&page);
    }
    let text = table(&results, Some(80)) + &compare_table(&results, &results, (evil, evil), None);
    assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "a terminal is not steered");
    assert_eq!(plain("a\u{7}b\u{2066}"), "a?b?");
    assert_eq!(escape("<a href=\"x\">'&"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;");
}

/// Every element that opens closes, in order.
pub(super) fn balanced(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    let start = page.find("<html").expect("it is a page");
    for part in page[start..].split('<').skip(1) {
        let Some((tag, _)) = part.split_once('>') else { panic!("an open bracket: {part:.60}") };
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed), "in {part:.80}");
        } else if !tag.ends_with('/') && name != "meta" {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn the_page_shows_what_was_found() {
    let results = small();
    let page = page(&results);
    balanced(&page);
    for told in [
        "Bound by the drive at 85\u{a0}% of its ceiling.",
        "How fast</h2>",
        "Bars of 4k random reads, depth 32: IOPS of each target",
        "Latency percentiles",
        "Latency histogram",
        "drive of local",
        "fio --name=randread",
        "AMD EPYC",
        "2 interleaved rounds",
        "iscsi://host/iqn",
        ">9,050<",
    ] {
        assert!(page.contains(told), "{told}");
    }
    // Two figures for each plot: a screen's and a phone's.
    assert_eq!(
        page.matches("svg class=\"plot wide\"").count(),
        page.matches("svg class=\"plot narrow\"").count()
    );
    assert!(!page.contains("NaN") && !page.contains("inf"), "every coordinate is a number");
}

#[test]
fn the_table_says_what_its_figures_are() {
    let told = table(&small(), None);
    assert!(told.contains("9,050 (9,000-9,100)"), "{told}");
    assert!(told.contains("Medians of 2 interleaved rounds; in brackets the least"), "{told}");
    assert!(told.contains("too few rounds (2) to compare"), "{told}");
    assert!(told.contains("Bound by the drive"), "{told}");
    assert!(told.contains("(fio, 4k random reads at depth 128 for 2 s)"), "{told}");
    // What several targets stand on is said once.
    let mut both = small();
    both.ceilings.extend(small().ceilings);
    assert_eq!(table(&both, None), told);
    let width = told.lines().next().expect("a heading").chars().count();
    assert!(width < 160, "{width}");
}

/// Many rounds, the second file twice as fast.
pub(super) fn rounds(factor: f64) -> Results {
    let mut results = small();
    let mut runs = Vec::new();
    for round in 1..=6u32 {
        for target in ["local", "served"] {
            let mut run = results.runs_of(target, "4k random reads, depth 32")[0].clone();
            (run.round, run.order) = (round, round);
            let read = run.read.as_mut().expect("it reads");
            let noise = 1.0 + 0.01 * f64::from(round);
            read.mib_per_s *= factor * noise;
            read.iops *= factor * noise;
            runs.push(run);
        }
    }
    results.runs = runs;
    results.summarise();
    results
}

/// Workloads that differ in one parameter make a curve; two of them, or what differs in two, make none.
#[test]
fn a_sweep_has_curves() {
    let mut results = small();
    let (load, runs) = (results.workloads.remove(0), std::mem::take(&mut results.runs));
    for (depth, block) in [(1, 4096), (8, 4096), (64, 4096), (8, 16_384), (1, 65_536)] {
        let mut load = load.clone();
        (load.depth, load.block_bytes) = (depth, block);
        load.name = load.words();
        for run in &runs {
            let mut run = run.clone();
            run.workload.clone_from(&load.name);
            results.runs.push(run);
        }
        results.workloads.push(load);
    }
    (results.ceilings, results.verdicts) = (Vec::new(), Vec::new());
    results.summarise();
    let all = super::plots::curves(&results);
    let titles: Vec<&str> = all.iter().map(|figure| figure.title.as_str()).collect();
    assert_eq!(titles, ["Queue depth: 4k random reads"]);
    assert!(all[0].wide.contains("served, queue depth 64: 8,100 IOPS"), "{}", all[0].wide);
    balanced(&page(&results));
}

#[test]
fn two_files_are_compared_by_name() {
    let (before, after) = (rounds(1.0), rounds(2.0));
    let told = compare_table(&before, &after, ("old.json", "new.json"), None);
    assert!(told.contains("2.00 times"), "{told}");
    assert!(told.contains("cannot be told from noise"), "the latency is the same: {told}");
    assert!(told.contains("not interleaved"), "{told}");
    let page = compare_page(&before, &after, ("old.json", "new.json"));
    balanced(&page);
    assert!(page.contains("interval better") && page.contains("interval noise"), "both are shown");
    let both = joined(&before, &after, ("A", "B"));
    assert_eq!((both.targets.len(), both.workloads.len()), (4, 1));
    crate::model::check(&both).expect("names are unique");
    // Another workload of the same name is not compared.
    let mut other = rounds(2.0);
    other.workloads[0].depth = 1;
    let both = joined(&before, &other, ("A", "B"));
    assert_eq!((both.workloads.len(), both.comparisons.len()), (2, 0));
    assert!(
        both.notes.iter().any(|note| note.contains("not the same workload")),
        "{:?}",
        both.notes
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the figures are, and however few: the page holds, and each coordinate is a number.
    #[test]
    fn any_figures_make_a_page(
        rates in prop::collection::vec((0.0..1e12f64, 0.0..1e12f64, 0u64..1 << 50), 4),
        counts in prop::collection::vec((1u64..1 << 40, 1u64..1 << 30), 1..30),
        timeline in prop::collection::vec((0.0..1e6f64, 0.0..1e9f64), 0..6),
        ceiling in 0.0..1e15f64,
    ) {
        let mut results = small();
        for (run, (mib_per_s, iops, bytes)) in results.runs.iter_mut().zip(rates) {
            let read = run.read.as_mut().expect("it reads");
            (read.mib_per_s, read.iops, read.bytes) = (mib_per_s, iops, bytes);
            read.latency = crate::model::Latency::of(counts.iter().copied());
            run.timeline = timeline
                .iter()
                .map(|(at_s, rate)| crate::model::Moment { at_s: *at_s, read_mib_per_s: *rate, ..Default::default() })
                .collect();
        }
        results.ceilings[0].value = ceiling;
        crate::model::check(&results).expect("it makes sense");
        results.summarise();
        results.verdicts = crate::verdict::verdicts(&results, &|_, _| Default::default());
        let page = page(&results);
        prop_assert!(!page.contains("NaN") && !page.contains(">inf") && !page.contains("\"inf"));
        balanced(&page);
        prop_assert!(!table(&results, Some(80)).contains("NaN"));
    }

    #[test]
    fn escaped_text_has_no_markup(text in any::<String>()) {
        let told = escape(&text);
        prop_assert!(!told.contains(['<', '>', '"', '\'']));
        let shown = |c: char| is_printable(c) || c == '\u{a0}';
        prop_assert!(told.chars().all(shown));
        prop_assert!(plain(&text).chars().all(is_printable));
    }
}
