use super::{Choice, Loader, Rule, Rules};
use crate::expr::{EvalError, Scope, sample};
use crate::facts::{Facts, Value};

/// The lines of the recipe (facts of tuning), and what misses in it. Each is a rule.
const RECIPE: &[&str] = &[
    "iSER",
    "nvme_core.default_ps_max_latency_us=0",
    "pcie_aspm=off",
    "netdev_max_backlog=8192",
    "tcp_max_syn_backlog=8192",
    "rmem_max=16777216",
    "wmem_max=16777216",
    "tcp_congestion_control=dctcp",
    "tcp_ecn_fallback=0",
    "zfs_vdev_def_queue_depth=128",
    "zfs_dmu_offset_next_sync=0",
    "zfs_vdev_async_read_max_active=12",
    "zfs_vdev_max_active=4096",
    "zfs_arc_max",
    "zfs_arc_sys_free",
    "zfs_arc_min",
    "mq-deadline",
    "read_ahead_kb=512",
    "fio 128k",
    "limits",
];

const MISSED: &[&str] = &[
    "volthreading=off",
    "threads_num",
    "QueuedCommands",
    "node.session.queue_depth",
    "node.session.cmds_max",
    "several sessions",
    "volblocksize",
    "ashift",
    "nvme format",
    "NUMA node",
    "interrupts",
    "scaling_governor",
    "max_cstate",
    "MTU of 9000",
    "--pfc",
    "Pause frames",
    "rx ring",
    "tx ring",
    "PCIe",
    "tcp_mtu_probing",
    "default_qdisc",
    "wide-area",
    "tcp_sack",
    "tcp_timestamps",
    "tcp_mem",
    "zvol_use_blk_mq",
    "zvol_num_taskqs",
    "zfs_dio_enabled",
    "zfs_vdev_scheduler",
    "Enterprise",
    "tunables",
];

fn own() -> Rules {
    Loader::own().unwrap_or_else(|error| panic!("{error}"))
}

/// Facts in which everything is known, with the settings that expressions name.
fn full() -> Facts {
    let mut facts: Facts = sample();
    for name in ["net.core.rmem_max", "net.core.wmem_max"] {
        facts.sysctls.insert(name.to_owned(), Value::Int(1 << 30));
    }
    facts.sysctls.insert("net.ipv4.tcp_mem".to_owned(), Value::List(vec![1, 2, 3]));
    let zfs = facts.zfs.as_mut().expect("everything is there");
    for name in ["zfs_dmu_offset_next_sync", "zfs_dio_enabled"] {
        zfs.params.insert(name.to_owned(), Value::Int(0));
    }
    let bsd = facts.freebsd.as_mut().expect("everything is there");
    for name in ["kern.timecounter.choice", "net.inet.tcp.cc.algorithm"] {
        bsd.sysctls.insert(name.to_owned(), Value::Text("text".to_owned()));
    }
    for name in [
        "kern.ipc.maxsockbuf",
        "kern.cam.ctl.iscsi.maxtags",
        "kern.icl.sendspace",
        "vfs.zfs.arc_max",
    ] {
        bsd.sysctls.insert(name.to_owned(), Value::Int(1 << 20));
    }
    bsd.arcstats.insert("c_max".to_owned(), 1);
    // So that the texts of advice, which take the first of a filtered list, have one.
    let format = &mut facts.drives[0].lba_formats[0];
    (format.data_bytes, format.metadata_bytes) = (4096, 0);
    facts
}

/// Every expression of a rule has a value where everything is known.
fn evaluate(rule: &Rule, facts: &Facts) {
    let must = |what: &str, told: Result<(), EvalError>| {
        told.unwrap_or_else(|error| panic!("{}: rule {}: {what}: {error}", rule.file, rule.id));
    };
    let outer = Scope::new(facts);
    let mut scope = outer.inner();
    scope.set("profile", "mixed");
    if let Some(each) = &rule.each {
        let list = each.list.list(&scope);
        let element = list.as_ref().ok().and_then(|list| list.first().cloned());
        must("each", list.map(drop));
        if let Some(element) = element {
            scope.set(&each.name, element);
        } else {
            assert!(each.list.text().contains("filter"), "{}: its list is empty", rule.id);
            return;
        }
        must("about", each.about.iter().try_for_each(|about| about.holds(&scope).map(drop)));
        must("label", each.label.fill(&scope).map(drop));
    }
    let lists = ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"];
    let name = rule.set.as_ref().map(|set| set.source().to_string()).unwrap_or_default();
    match lists.contains(&name.as_str()) {
        true => scope.set("now", vec![1_i64, 2, 3]),
        false => scope.set("now", 1_i64),
    }
    must("set", rule.set.iter().try_for_each(|set| set.resolve(&scope).map(drop)));
    must("now", rule.now.iter().try_for_each(|now| now.eval(&scope).map(drop)));
    for need in &rule.needs {
        must("needs.when", need.when.holds(&scope).map(drop));
        must("needs.otherwise", need.otherwise.fill(&scope).map(drop));
    }
    must("value", rule.values.values().try_for_each(|value| value.eval(&scope).map(drop)));
    must("advice", rule.advice.iter().try_for_each(|advice| advice.fill(&scope).map(drop)));
    must("reason", rule.reason.fill(&scope).map(drop));
}

#[test]
fn every_expression_of_every_rule_fits_the_facts() {
    let facts = full();
    let rules = own();
    assert!(rules.all().len() >= 45, "{} rules", rules.all().len());
    rules.all().iter().for_each(|rule| evaluate(rule, &facts));
}

#[test]
fn every_line_of_the_recipe_is_judged_and_nothing_that_it_misses_is_missing() {
    let rules = own();
    let lines: Vec<&String> = rules.all().iter().flat_map(|rule| &rule.recipe).collect();
    for line in RECIPE {
        assert!(lines.iter().any(|have| have.contains(line)), "no rule judges {line}");
    }
    assert_eq!(lines.len(), RECIPE.len(), "a line that is no line of the recipe: {lines:#?}");
    let text = rules.all().iter().map(|rule| {
        let set = rule.set.as_ref().map(|set| set.source().to_string()).unwrap_or_default();
        let values: Vec<&str> = rule.values.values().map(|value| value.text()).collect();
        let advice = rule.advice.as_ref().map(|text| text.source.as_str()).unwrap_or_default();
        format!("{} {set}={} {advice} {}", rule.title, values.join(" "), rule.reason.source)
    });
    let text: String = text.collect::<String>().replace("='", " of =").replace('\'', "");
    for what in MISSED {
        let found = text.contains(what)
            || what.split_once('=').is_some_and(|(name, _)| text.contains(name))
            || rules.all().iter().any(|rule| rule.source.contains(what));
        assert!(found, "no rule speaks of {what}");
    }
}

#[test]
fn every_rule_says_who_says_so_and_what_may_go_wrong() {
    for rule in own().all() {
        assert!(rule.id.starts_with(&format!("{}.", rule.layer)), "{} in {}", rule.id, rule.file);
        for text in [&rule.title, &rule.risk, &rule.source, &rule.reason.source] {
            assert!(text.len() >= 4, "{}: an empty text", rule.id);
        }
        for text in [&rule.risk, &rule.reason.source] {
            assert!(text.ends_with('.'), "{}: no full stop: {text}", rule.id);
        }
        for need in &rule.needs {
            let text = &need.otherwise.source;
            assert!(!text.ends_with('.'), "{}: is put into a sentence: {text}", rule.id);
        }
    }
}

/// `cargo test -p lunet-host sources -- --nocapture` lists the rules whose source nobody has read for a year.
#[test]
fn sources_are_read_again_in_time() {
    let seconds = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    // A month more or less is no matter.
    let now = i64::try_from(seconds / 2_629_746).unwrap() + 1970 * 12;
    let rules = own();
    for rule in rules.all() {
        let Some(checked) = &rule.checked else {
            println!("never read: {} ({})", rule.id, rule.source);
            continue;
        };
        let (year, month) = checked.split_once('-').unwrap_or_else(|| panic!("{}", rule.id));
        let (year, month): (i64, i64) = (year.parse().unwrap(), month.parse().unwrap());
        assert!((2026..2100).contains(&year) && (1..=12).contains(&month), "{}", rule.id);
        if now - (year * 12 + month) > 12 {
            println!("read more than a year ago: {} ({})", rule.id, rule.source);
        }
    }
    let unverified = |rule: &&Rule| rule.source.contains("experience, not verified");
    let unverified: Vec<&str> =
        rules.all().iter().filter(unverified).map(|rule| rule.id.as_str()).collect();
    assert!(unverified.len() < 8, "{unverified:?}");
}

const GOOD: &str = r#"
[[rule]]
id = "mine.swap"
title = "swap little"
set = { kind = "sysctl", name = "vm.swappiness" }
value = { mixed = "10" }
reason = "Because."
risk = "None."
source = "me"
"#;

fn load(text: &str) -> Result<Rules, String> {
    let mut loader = Loader::default();
    loader.text("mine.toml", text).map_err(|error| error.to_string())?;
    Ok(loader.finish())
}

#[test]
fn mistakes_are_named_with_file_rule_and_expression() {
    assert_eq!(load(GOOD).expect("it is good").all().len(), 1);
    for (from, to, error) in [
        (
            "mixed = \"10\"",
            "mixed = \"cpu.coers * 2\"",
            "mine.toml: rule mine.swap: value: there is no fact `cpu.coers` (in `cpu.coers * 2`)",
        ),
        ("mixed = \"10\"", "mixed = \"1 +\"", "mine.toml: rule mine.swap: value: "),
        (
            "Because.",
            "Because {nic.mtu}.",
            "mine.toml: rule mine.swap: reason: there is no `nic` here (in `nic.mtu`)",
        ),
        (
            "title",
            "each = \"cpu.cores\"\nas = \"x\"\nlabel = \"x\"\ntitle",
            "mine.toml: rule mine.swap: each: this is no list (in `cpu.cores`)",
        ),
        ("value = { mixed = \"10\" }", "", "mine.toml: rule mine.swap: `set` needs a `value`"),
        ("source", "advice = \"x\"\nsource", "mine.toml: rule mine.swap: it must either"),
        ("kind = \"sysctl\"", "kind = \"registry\"", "mine.toml: TOML parse error"),
        ("source", "nosuch = 1\nsource", "mine.toml: TOML parse error"),
        (
            "source",
            "releases = { zfs = { since = \"soon\" } }\nsource",
            "mine.toml: rule mine.swap: `soon` is no release",
        ),
    ] {
        let told = load(&GOOD.replacen(from, to, 1)).expect_err(to);
        assert!(told.starts_with(error), "{told}");
    }
    let twice = load(&format!("{GOOD}{GOOD}")).expect_err("twice");
    assert!(twice.contains("two of this name"), "{twice}");
}

#[test]
fn users_have_rules_of_their_own_which_take_the_place_of_ours() {
    let folder = tempfile::tempdir().expect("a folder");
    let mine = GOOD.replace("mine.swap", "network.sack").replace("vm.swappiness", "net.x");
    std::fs::write(folder.path().join("a.toml"), mine).expect("written");
    std::fs::write(folder.path().join("b.toml"), GOOD).expect("written");
    std::fs::write(folder.path().join("README"), "no rules").expect("written");
    let loader = Loader::default().with_own().expect("good");
    let rules = loader.with_folder(folder.path()).expect("good").finish();
    assert_eq!(rules.all().len(), own().all().len() + 1);
    assert_eq!(rules.get("network.sack").expect("there").title, "swap little");
    assert!(Loader::default().with_folder(&folder.path().join("none")).is_err());
}

#[test]
fn a_choice_is_by_rule_or_by_layer() {
    let rules = own();
    let names = |only: &[&str], except: &[&str]| {
        let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let choice = Choice { only: own(only), except: own(except) };
        let chosen = rules.all().iter().filter(|rule| rule.chosen(&choice));
        (chosen.count(), rules.strangers(&choice).len())
    };
    let network = rules.all().iter().filter(|rule| rule.layer == "network").count();
    assert_eq!(names(&[], &[]), (rules.all().len(), 0));
    assert_eq!(names(&["network"], &[]), (network, 0));
    assert_eq!(names(&["network"], &["network.sack"]), (network - 1, 0));
    assert_eq!(names(&["zfs.arc-max"], &[]), (1, 0));
    assert_eq!(names(&["zfs.arcmax"], &[]), (0, 1));
}

/// The page has a form for each kind of setting: its compiler sees that, if its types have them all.
#[test]
fn the_page_knows_every_kind_of_setting() {
    let unknown = serde_json::from_str::<super::Setting>(r#"{"kind":"?"}"#).expect_err("no kind");
    let told = unknown.to_string();
    let kinds: Vec<&str> = told.split('`').skip(3).step_by(2).collect();
    assert!(kinds.contains(&"sysctl") && kinds.contains(&"freebsd"), "{told}");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/src/api/types.ts");
    let types = std::fs::read_to_string(path).expect("the page's types");
    let start = types.find("export type Setting =").expect("a type for settings");
    let union = &types[start..start + types[start..].find("};").expect("it ends")];
    for kind in kinds {
        assert!(union.contains(&format!("kind: \"{kind}\"")), "{kind} is missing in {union}");
    }
}
