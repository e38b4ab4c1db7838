use proptest::prelude::*;

use super::*;
use crate::ceilings::Direction;
use crate::facts::facts;
use crate::source::Tree;

fn machine(name: &str) -> Facts {
    let tree = format!("{}/tests/machines/{name}", env!("CARGO_MANIFEST_DIR"));
    facts(&Tree::open(tree.as_ref()).expect("it is there"))
}

fn changes(words: &[&str]) -> Vec<Change> {
    words
        .iter()
        .map(|word| word.parse().unwrap_or_else(|error| panic!("{word}: {error}")))
        .collect()
}

fn answer(facts: &Facts, words: &[&str]) -> Answer {
    what_if(facts, None, &changes(words)).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

fn of(answer: &Answer, direction: Direction) -> &Comparison {
    let found = answer.comparisons.iter().find(|one| one.direction == direction);
    found.expect("each direction is there")
}

fn row<'a>(answer: &'a Answer, direction: Direction, name: &str) -> &'a Row {
    let found = of(answer, direction).layers.iter().find(|row| row.name == name);
    found.unwrap_or_else(|| panic!("no {name}: {:?}", of(answer, direction).layers))
}

fn near(ratio: Option<f64>, wanted: f64) -> bool {
    ratio.is_some_and(|ratio| (ratio / wanted - 1.0).abs() < 0.02)
}

#[test]
fn the_same_machine_is_the_same() {
    let recipe = machine("recipe");
    let same = answer(&recipe, &["pool=2xraidz1(4)", "nic=1x100g", "depth=32"]);
    for one in &same.comparisons {
        assert!(near(one.machine.ratio, 1.0), "{one:?}");
        // An assumption that is off is off in both.
        let range = one.machine.ratio_range.expect("it is known");
        assert!((range.from - 1.0).abs() < 0.02 && (range.to - 1.0).abs() < 0.02, "{one:?}");
        for row in one.layers.iter().filter(|row| !row.name.starts_with("PCIe")) {
            assert!(near(row.ratio, 1.0), "{row:?}");
        }
    }
}

#[test]
fn mirrors_against_two_raidz1_of_four() {
    let recipe = machine("recipe");
    let mirrors = answer(&recipe, &["pool=4xmirror(2)"]);
    // Writes: one drive each of four mirrors against three each of two vdevs.
    assert!(near(row(&mirrors, Direction::Writes, "drives of tank").ratio, 4.0 / 6.0));
    assert!(near(row(&mirrors, Direction::Reads, "drives of tank").ratio, 1.0));
    assert!(near(row(&mirrors, Direction::Both, "drives of tank").ratio, 4.0 / 3.0), "{mirrors:?}");
    assert!(mirrors.notes.iter().any(|note| note.contains("that of 6 drives now, of 4 changed")));
    // All of it is still more than the wire carries.
    assert_eq!(of(&mirrors, Direction::Writes).binds_changed.as_deref(), Some("network"));
    assert!(of(&mirrors, Direction::Writes).may_bind.contains(&"drives of tank".to_owned()));
}

#[test]
fn one_card_or_two() {
    let recipe = machine("recipe");
    let one = answer(&recipe, &["nic=2x100g", "cards=1", "pool=8xmirror(2)", "memory=12x3200"]);
    let reads = of(&one, Direction::Reads);
    assert!(reads.binds_changed.as_ref().is_some_and(|name| name.starts_with("PCIe")), "{reads:?}");
    assert!(near(reads.machine.ratio, 1.01), "{reads:?}");
    let two = answer(&recipe, &["nic=2x100g", "cards=2", "pool=8xmirror(2)", "memory=12x3200"]);
    assert!(near(of(&two, Direction::Reads).machine.ratio, 2.0), "{two:?}");
    // Lanes: half as many carry half as much.
    let half = answer(&recipe, &["pcie=gen3x8"]);
    assert!(near(of(&half, Direction::Reads).machine.ratio, 0.505), "{half:?}");
}

#[test]
fn aggregation_gives_one_host_one_link_and_paths_give_it_all() {
    let recipe = machine("recipe");
    let lag = answer(&recipe, &["nic=2x25g", "paths=lag", "depth=256"]);
    let paths = answer(&recipe, &["nic=2x25g", "paths=mpio", "depth=256"]);
    let host =
        |answer: &Answer| row(answer, Direction::OneSession, "one host").changed.expect("known");
    assert!(host(&paths) > 1.99 * host(&lag), "{} {}", host(&paths), host(&lag));
    // Together both carry the same, if the hash is kind.
    let network = |answer: &Answer| row(answer, Direction::Reads, "network").clone();
    assert_eq!(network(&lag).changed, network(&paths).changed);
    let least = |answer: &Answer| network(answer).changed_range.expect("known").from;
    assert!(least(&lag) < 0.6 * least(&paths));
}

#[test]
fn a_machine_without_a_pool_gets_one() {
    let bare = Facts::default();
    let given = answer(&bare, &["pool=4xmirror(2)", "drive=6800M/4G,1000k/180k", "nic=2x25g"]);
    let reads = of(&given, Direction::Reads);
    assert_eq!(reads.binds_now, None);
    assert_eq!(reads.binds_changed.as_deref(), Some("network"));
    assert_eq!(reads.machine.ratio, None);
    assert!(reads.incomparable.as_ref().is_some_and(|why| why.contains("drives of pool")));
    assert_eq!(row(&given, Direction::Reads, "drives of pool").changed, Some(8.0 * 6.8e9));
    // Random records are bound by operations where these are fewer.
    let few = answer(&bare, &["pool=1xmirror(2)", "drive=6800M/4G,1k/1k"]);
    let both = row(&few, Direction::Both, "drives of pool").changed.expect("known");
    assert!((both - 131_072.0 * 1000.0 * 2.0 / 3.0).abs() < 1e3, "{both}");
    // The table of models is there too, and links bind what is faster.
    let slow = answer(&bare, &["pool=1xstripe", "drive=PM9A3", "drive-pcie=gen3x2"]);
    let read = row(&slow, Direction::Reads, "drives of pool").changed.expect("known");
    assert!((1.4e9..1.7e9).contains(&read), "{read}");
}

#[test]
fn contradictions_get_a_sentence() {
    let recipe = machine("recipe");
    let two = Facts::default();
    for (facts, words, says) in [
        (&recipe, &["depth=1", "depth=2"][..], "depth= is said twice"),
        (&recipe, &["pool=4xmirror(2)", "drives=9"], "has 8 drives"),
        (&recipe, &["drives=9"], "8 or 12 would be"),
        (&recipe, &["pool=tank2:4xmirror(2)"], "there are: "),
        (&recipe, &["cards=3"], "1 ports only"),
        (&two, &["pool=1xmirror(2)"], "say which, as in drive="),
        (&two, &["drives=4"], "say its layout"),
        (&two, &["mtu=9000"], "say which, as in nic="),
    ] {
        let error = what_if(facts, None, &changes(words)).expect_err("it contradicts").to_string();
        assert!(error.contains(says) && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn mistakes_name_their_place_and_what_is_accepted() {
    for (text, at, says) in [
        ("", 1, "pool=, drives="),
        ("pol=4xmirror(2)", 1, "`pol` is no name"),
        ("pool", 5, "`=` is missing"),
        ("pool=4xmiror(2)", 8, "`miror` is no kind of vdev"),
        ("pool=4xmirror(1)", 15, "1 is not from 2 to"),
        ("pool=4xmirror(2", 16, "`)` is missing"),
        ("pool=4xraidz4(8)", 8, "`raidz4` is no kind"),
        ("pool=1xraidz2(2)", 15, "2 is not from 3"),
        ("pool=1xdraid2(8d:9c:0s)", 18, "need 10"),
        ("pool=4xmirror(2)x", 17, "`x` is too much"),
        ("pool=a b:4xmirror(2)", 6, "no name of a pool"),
        ("pool=99999999999999999999xmirror(2)", 6, "is not from 1 to"),
        ("nic=2x30g", 7, "`30g` is no speed"),
        ("nic=2\u{2028}", 6, "is not `x`"),
        ("pcie=gen4x7", 11, "none of 1, 2, 4, 8 and 16"),
        ("pcie=gen9x8", 9, "9 is not from 1 to 6"),
        ("drive=Nonesuch 1", 7, "no model with known figures"),
        ("drive=6800/4G", 11, "`/` is not"),
        ("cpu=16x", 8, "a number is missing"),
        // What cannot be written again, or would take all memory.
        ("pool=40xstripe(40)", 16, "40 is not from 1 to 25"),
        ("pool=1000xmirror(60)+1000xmirror(60)", 6, "120000 drives are more than 100000"),
        ("drive=1M/1M,200000k/1", 13, "200000k are more than"),
        ("drive=1M/2000000G", 10, "2000000 is not from 0"),
        ("drive=PM9A3\u{1b}[2J", 7, "no model with known figures"),
        ("drive=1M/1001G", 10, "more than 1000000M"),
    ] {
        let error = text.parse::<Change>().expect_err(text);
        let told = error.to_string();
        assert_eq!(told.lines().count(), 1, "{told}");
        assert!(told.contains(" accepted is "), "{told}");
        if text != "drive=6800/4G" {
            assert_eq!(error.at, at, "{told}");
            assert!(told.contains(says), "{told}");
        }
    }
}

fn a_change() -> impl Strategy<Value = Change> {
    let kind = prop_oneof![
        Just((VdevKind::Stripe, 1)),
        (2_u64..9).prop_map(|width| (VdevKind::Mirror, width)),
        (1_u64..4, 1_u64..20).prop_map(|(parity, data)| (VdevKind::Raidz(parity), parity + data)),
        (1_u64..4, 1_u64..9, 0_u64..3, 0_u64..50).prop_map(|(parity, data, spares, more)| {
            (VdevKind::Draid(parity, data, spares), parity + data + spares + more)
        }),
    ];
    let group = (1_u64..1000, kind).prop_map(|(count, (kind, width))| Group { count, kind, width });
    let layout =
        (proptest::option::of("[a-z][a-z0-9_.-]{0,8}"), prop::collection::vec(group, 1..4));
    let lanes = || {
        (1_u64..7, 0_u32..5).prop_map(|(generation, power)| Lanes { generation, width: 1 << power })
    };
    let speeds = [1000, 2500, 5000, 10_000, 25_000, 40_000, 50_000, 100_000, 200_000, 400_000];
    let iops = proptest::option::of((1_u64..10_000_000, 1_u64..10_000_000));
    let measure = (1_u64..100_000, 1_u64..100_000, iops)
        .prop_map(|(read, write, iops)| Model::Measured(Measure { read, write, iops }));
    prop_oneof![
        layout.prop_map(|(name, groups)| Change::Pool(Layout { name, groups })),
        (1_u64..1000).prop_map(Change::Drives),
        prop_oneof![Just(Model::Known("PM9A3".to_owned())), measure].prop_map(Change::Drive),
        lanes().prop_map(Change::DrivePcie),
        (1_u64..1000, prop::sample::select(speeds.to_vec()))
            .prop_map(|(n, mbit)| Change::Nic(n, mbit)),
        (1_u64..1000).prop_map(Change::Cards),
        lanes().prop_map(Change::Pcie),
        prop_oneof![Just(Paths::Mpio), Just(Paths::Lag)].prop_map(Change::Paths),
        (576_u64..65_521).prop_map(Change::Mtu),
        prop_oneof![Just(Transport::Tcp), Just(Transport::Rdma)].prop_map(Change::Transport),
        (1_u64..65_537).prop_map(Change::Depth),
        (1_u64..10_000, proptest::option::of(100_u64..20_000))
            .prop_map(|(n, mhz)| Change::Cpu(n, mhz)),
        (1_u64..1000, 100_u64..100_000).prop_map(|(n, rate)| Change::Memory(n, rate)),
    ]
}

/// Something that looks like a change, and is one rarely.
fn almost() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        "(pool|drives|drive|drive-pcie|nic|cards|pcie|paths|mtu|transport|depth|cpu|memory)=",
        "[0-9]{1,22}",
        "(x|X|\\(|\\)|:|\\+|/|,|\\.|gen|k|M|G|g|d|c|s|=|mirror|raidz[0-9]?|draid[0-9]|stripe|mpio|25g)",
        "\\PC{0,3}",
    ];
    prop::collection::vec(word, 0..10).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_again(change in a_change()) {
        let text = change.to_string();
        prop_assert_eq!(text.parse::<Change>(), Ok(change), "{}", text);
    }

    /// The parser's own fuzzing: it never panics, points into the text, and what it takes it takes again.
    #[test]
    fn any_text_is_a_change_or_a_mistake_in_one_line(text in almost()) {
        match text.parse::<Change>() {
            Ok(change) => prop_assert_eq!(change.to_string().parse::<Change>(), Ok(change)),
            Err(mistake) => {
                prop_assert!(mistake.at >= 1 && mistake.at <= text.chars().count() + 1);
                prop_assert!(!mistake.to_string().contains(|c: char| c.is_control()));
            }
        }
    }
}

/// A machine with everything, for the model's laws.
fn whole() -> Vec<&'static str> {
    vec!["drive=6800M/4G", "nic=2x25g", "pcie=gen3x8", "cpu=16x3000", "memory=8x3200", "depth=64"]
}

fn with(more: &[String]) -> Vec<Change> {
    let mut words = whole();
    words
        .retain(|word| !more.iter().any(|other| word.split('=').next() == other.split('=').next()));
    words.extend(more.iter().map(String::as_str));
    changes(&words)
}

fn totals(more: &[String]) -> [Option<f64>; 4] {
    let changed = machine::changed(&Facts::default(), None, &with(more)).expect("it is whole");
    let Ceilings { layers, .. } = crate::ceilings::of(&crate::ceilings::View {
        facts: &changed.facts,
        measured: None,
        assumed: Default::default(),
        figures: changed.figures.as_ref(),
    });
    Direction::ALL.map(|direction| {
        crate::ceilings::narrowest(&layers, direction).and_then(|l| direction.of(l))
    })
}

#[test]
fn each_figure_is_in_its_own_range() {
    for pool in ["pool=4xmirror(2)", "pool=2xraidz2(6)"] {
        let answer = what_if(&Facts::default(), None, &with(&[pool.to_owned()])).expect("whole");
        for one in &answer.comparisons {
            for row in one.layers.iter().chain([&one.machine]) {
                let (figure, range) =
                    (row.changed.expect("known"), row.changed_range.expect("known"));
                assert!(range.from <= figure && figure <= range.to && range.from > 0.0, "{row:?}");
                assert!(range.from < range.to, "{row:?}");
            }
        }
        let moved: Vec<_> = answer.uncertainty.iter().map(|one| one.assumption).collect();
        assert!(moved.len() >= 2, "{moved:?}");
    }
}

fn rises(less: &[String], more: &[String]) -> Result<(), TestCaseError> {
    for (less, more) in totals(less).into_iter().zip(totals(more)) {
        let (less, more) = (less.expect("all is given"), more.expect("all is given"));
        prop_assert!(more >= less * (1.0 - 1e-9), "{} {}", less, more);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// More of anything never lowers a ceiling, and each figure is in its own range.
    #[test]
    fn more_never_lowers_a_ceiling(
        (vdevs, more) in (1_u64..20, 0_u64..20),
        kind in prop::sample::select(vec!["mirror(2)", "mirror(3)", "raidz1(4)", "raidz2(8)", "stripe", "draid1(3d:12c:1s)"]),
        what in prop::sample::select(vec!["nic=NxS", "depth=N", "cpu=Nx3000", "memory=Nx3200", "pool"]),
    ) {
        let pool = |count: u64| format!("pool={count}x{kind}");
        let of = |count: u64| match what {
            "pool" => vec![pool(count)],
            _ => vec![pool(4), what.replace('N', &count.to_string()).replace('S', "25g")],
        };
        rises(&of(vdevs), &of(vdevs + more))?;
    }
}

/// Wider vdevs, faster slots, faster links.
#[test]
fn wider_and_faster_never_lowers_a_ceiling() {
    let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    for (less, more) in [
        (["pool=2xraidz1(3)"], ["pool=2xraidz1(5)"]),
        (["pool=2xraidz2(6)"], ["pool=2xraidz1(6)"]),
        (["pool=2xmirror(2)"], ["pool=2xmirror(3)"]),
        (["pcie=gen3x4"], ["pcie=gen3x8"]),
        (["pcie=gen3x8"], ["pcie=gen4x8"]),
        (["nic=2x10g"], ["nic=2x40g"]),
    ] {
        let less = [text(&less), text(&["pool=4xmirror(2)"])].concat();
        let more = [text(&more), text(&["pool=4xmirror(2)"])].concat();
        let once = |mut words: Vec<String>| {
            words.truncate(if words[0].starts_with("pool") { 1 } else { 2 });
            words
        };
        rises(&once(less), &once(more)).expect("it rises");
    }
}
