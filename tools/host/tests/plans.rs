//! Plans of the captured machines. `LUNET_BLESS=1 cargo test -p lunet-host --test plans` writes the
//! held plans anew: read the difference before you commit it.

mod captured;

use std::fmt::Write;
use std::fs;

use lunet_host::capture::capture;
use lunet_host::facts::{System, facts};
use lunet_host::plan::{Plan, Verdict, plan, write};
use lunet_host::rules::{Choice, Loader, Profile, Rules};
use lunet_host::source::Tree;

use self::captured::{hold, machines, tree};

fn planned(machine: &str, rules: &Rules, profile: Profile) -> Plan {
    let tree = tree(machine);
    plan(&tree, &facts(&tree), rules, profile, &Choice::default())
        .unwrap_or_else(|error| panic!("{machine}: {error}"))
}

/// The lines of the recipe, each with the verdict of this machine's facts.
fn recipe(plan: &Plan) -> String {
    let mut out = String::from("What the facts say of each line of the recipe\n");
    let mut last = String::new();
    for item in &plan.items {
        for line in &item.recipe {
            if *line != last {
                let _ = writeln!(out, "\n{line}");
                last.clone_from(line);
            }
            let about = item.about.as_ref().map(|about| format!("{about}: ")).unwrap_or_default();
            let now = item.now.as_deref().unwrap_or("not set");
            let wanted = item.wanted.as_deref().unwrap_or_default();
            let _ = match &item.verdict {
                Verdict::Change => writeln!(out, "  {about}change {now} to {wanted}"),
                Verdict::Good => writeln!(out, "  {about}{now}, as it should be"),
                Verdict::NotApplicable { because } => writeln!(out, "  {about}no: {because}"),
                Verdict::Advice { advice } => writeln!(out, "  {about}consider: {advice}"),
            };
        }
    }
    out
}

#[test]
fn the_plan_of_the_recipes_machine_judges_every_line_of_the_recipe() {
    let rules = Loader::own().unwrap();
    let plan = planned("recipe", &rules, Profile::Throughput);
    let text = format!("{}\n{}", recipe(&plan), write(&plan, true));
    hold("tests/machines/recipe/plan-throughput.txt", None, &text);
    let lines = rules.all().iter().flat_map(|rule| &rule.recipe);
    for line in lines {
        assert!(plan.items.iter().any(|item| item.recipe.contains(line)), "no word of {line}");
    }
}

#[test]
fn a_captured_tree_has_the_same_plans() {
    // A rule of somebody's own about what no fact tells.
    let own = "[[rule]]\nid = \"own.swap\"\ntitle = \"a test\"\nvalue = \"now + 1\"\n\
               set = { kind = \"sysctl\", name = \"vm.tested\" }\n\
               reason = \"A test.\"\nrisk = \"None.\"\nsource = \"this test\"\n";
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("own.toml"), own).unwrap();
    let rules = Loader::default().with_own().unwrap().with_folder(folder.path()).unwrap().finish();
    for machine in machines() {
        let mut tree = tree(&machine);
        let system = facts(&tree).system();
        tree.overlay("/proc/sys/vm/tested: 1\n").unwrap();
        let (captured, _) = capture(&tree, &rules).unwrap();
        let captured = Tree::parse(&captured.to_text()).unwrap();
        for profile in Profile::ALL {
            let of = |tree: &Tree| {
                plan(tree, &facts(tree), &rules, profile, &Choice::default()).unwrap()
            };
            assert_eq!(of(&captured), of(&tree), "{machine}, {profile}");
            if system != System::Linux {
                continue;
            }
            let own = of(&captured).items.into_iter().find(|item| item.rule == "own.swap");
            assert_eq!(own.unwrap().wanted.as_deref(), Some("2"), "{machine}");
        }
    }
}

#[test]
fn every_machine_has_a_plan_for_every_profile() {
    let rules = Loader::own().unwrap();
    let mut table = String::from("Changes of each plan, by machine and profile\n");
    for machine in machines() {
        let system = facts(&tree(&machine)).system();
        for profile in Profile::ALL {
            let plan = planned(&machine, &rules, profile);
            let mut changes: Vec<&str> = plan.changes().map(|item| item.rule.as_str()).collect();
            changes.dedup();
            let _ = writeln!(table, "{machine} {profile}: {}", changes.join(" "));
            for rule in rules.of(system) {
                let told = plan.items.iter().any(|item| item.rule == rule.id);
                assert!(told, "{machine}, {profile}: nothing is said of {}", rule.id);
            }
        }
    }
    hold("tests/plans.txt", None, &table);
}

/// NFS over RDMA is switched on only for who names the rule.
#[test]
fn a_rule_to_be_asked_for_advises_until_it_is_asked_for() {
    let (rules, mut tree) = (Loader::own().unwrap(), tree("debian-nfs"));
    tree.file("/etc/nfs.conf", "[nfsd]\nthreads=16\n");
    tree.file("/proc/fs/nfsd/portlist", "tcp 2049\n");
    let facts = facts(&tree);
    let verdict = |only: &[&str]| {
        let only = only.iter().map(|name| (*name).to_owned()).collect();
        let choice = Choice { only, ..Choice::default() };
        let plan = plan(&tree, &facts, &rules, Profile::Mixed, &choice).unwrap();
        plan.items.iter().find(|item| item.rule == "rdma.nfs-server").unwrap().clone()
    };
    for only in [&[][..], &["rdma"]] {
        let Verdict::Advice { advice } = verdict(only).verdict else { panic!("{only:?}") };
        assert!(advice.contains("lunet tune apply --only rdma.nfs-server"), "{advice}");
    }
    let asked = verdict(&["rdma.nfs-server"]);
    assert_eq!((asked.verdict, asked.wanted.as_deref()), (Verdict::Change, Some("y")));
    let setting = asked.setting.unwrap().to_string();
    assert_eq!(setting, "rdma below [nfsd] in /etc/nfs.conf");
}

/// The kernel chooses `tcp_mem` in pages by its memory: what is right on pages of 4 KiB is most of the memory on pages of 64.
#[test]
fn tcp_mem_is_judged_by_the_pages_of_the_machine() {
    let rules = Loader::own().unwrap();
    let verdict = |tcp_mem: &str, page: Option<&str>| {
        let mut tree = Tree::open(&captured::here("tests/healthy/altra-64k")).unwrap();
        if let Some(page) = page {
            tree.overlay(&format!("$ getconf PAGESIZE\n| {page}\n")).unwrap();
        }
        if !tcp_mem.is_empty() {
            tree.file("/proc/sys/net/ipv4/tcp_mem", tcp_mem);
        }
        let plan = plan(&tree, &facts(&tree), &rules, Profile::Mixed, &Choice::default()).unwrap();
        plan.items.into_iter().find(|item| item.rule == "network.tcp-mem").unwrap().verdict
    };
    // As its kernel chose it.
    assert!(matches!(verdict("", None), Verdict::NotApplicable { .. }), "{:?}", verdict("", None));
    // As a kernel with pages of 4 KiB would, in as much memory.
    let copied = "3135000\t4180000\t6270000";
    let Verdict::Advice { advice } = verdict(copied, None) else {
        panic!("{:?}", verdict(copied, None))
    };
    assert!(
        advice.contains("pages of 65536 bytes") && advice.contains("383 GiB of 255 GiB"),
        "{advice}"
    );
    assert!(matches!(verdict(copied, Some("4096")), Verdict::NotApplicable { .. }));
    // And the other way round: a sixteenth of what it needs.
    let Verdict::Advice { .. } = verdict("189660\t252882\t379320", Some("4096")) else {
        panic!("it is little")
    };
}
