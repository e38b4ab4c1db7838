use super::{Item, Now, Plan, Verdict, explain, now, plan, same, write};
use crate::facts::{Drive, Facts, Nic, Pool, Value, Zfs};
use crate::rules::{Choice, Loader, Profile, Rules, Setting};
use crate::source::Tree;

const TREE: &str = "\
/proc/cmdline: BOOT_IMAGE=/vmlinuz root=ZFS=boot quiet pcie-aspm=default pcie_aspm=performance
/proc/sys/net/core/rmem_max: 212992
/proc/sys/net/core/wmem_max: 67108864
/proc/sys/net/ipv4/tcp_rmem:
| 4096\t131072\t6291456
/proc/sys/net/ipv4/tcp_sack: 0
/sys/block/nvme0n1/queue/scheduler: [mq-deadline] kyber none
/sys/block/nvme0n1/queue/read_ahead_kb: 128
/sys/block/sda/queue/read_ahead_kb: 1024
/sys/module/zfs/parameters/zfs_arc_max: 0
/sys/module/zfs/parameters/zfs_vdev_def_queue_depth: 32
/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor: powersave
/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor: performance
/sys/devices/system/cpu/cpufreq/boost: 1
/etc/iscsi/iscsid.conf:
| # node.session.queue_depth = 7
| node.session.cmds_max = 128
| node.session.cmds_max=256
$ ethtool -g eth0
| Ring parameters for eth0:
| Pre-set maximums:
| RX:\t\t8192
| Current hardware settings:
| RX:\t\t1024
| TX:\t\tn/a
$ zfs get -Hp -o value,source volthreading tank/vm
| on\tdefault
";

fn tree() -> Tree {
    Tree::parse(TREE).expect("it has the form")
}

fn facts() -> Facts {
    let drive = |name: &str, kind: &str, pool: Option<&str>| Drive {
        name: name.to_owned(),
        kind: Some(kind.to_owned()),
        zfs_pool: pool.map(str::to_owned),
        schedulers: vec!["mq-deadline".to_owned(), "none".to_owned()],
        ..Drive::default()
    };
    let mut facts = Facts {
        nics: vec![Nic { name: "eth0".into(), speed_mbit: Some(100_000), ..Nic::default() }],
        drives: vec![drive("nvme0n1", "nvme", Some("tank")), drive("sda", "scsi", None)],
        zfs: Some(Zfs {
            version: Some("2.2.3-1".to_owned()),
            version_num: Some(2_002_003),
            pools: vec![Pool { name: "tank".to_owned(), ..Pool::default() }],
            ..Zfs::default()
        }),
        ..Facts::default()
    };
    facts.memory.total_bytes = Some(256 << 30);
    facts.platform.kind = Some("truenas".to_owned());
    facts.sysctls.insert("net.ipv4.tcp_sack".to_owned(), Value::Int(0));
    facts
}

fn rules() -> Rules {
    Loader::own().unwrap_or_else(|error| panic!("{error}"))
}

fn planned(facts: &Facts, profile: Profile) -> Plan {
    plan(&tree(), facts, &rules(), profile, &Choice::default())
        .unwrap_or_else(|error| panic!("{error}"))
}

fn items<'a>(plan: &'a Plan, rule: &str) -> Vec<&'a Item> {
    plan.items.iter().filter(|item| item.rule == rule).collect()
}

fn because(plan: &Plan, rule: &str) -> String {
    match &items(plan, rule)[0].verdict {
        Verdict::NotApplicable { because } => because.clone(),
        other => panic!("{rule}: {other:?}"),
    }
}

#[test]
fn settings_are_read_as_the_kernel_shows_them() {
    let value = |text: &str| Now::Value(text.to_owned());
    let read = |setting| now(&tree(), &setting);
    let sysctl = |name: &str| Setting::Sysctl { name: name.to_owned() };
    assert_eq!(read(sysctl("net.ipv4.tcp_rmem")), value("4096 131072 6291456"));
    assert_eq!(read(sysctl("net.ipv4.nosuch")), Now::Absent);
    let path = "/sys/block/nvme0n1/queue/scheduler".to_owned();
    assert_eq!(read(Setting::Sysfs { path }), value("mq-deadline"));
    let file = "cpufreq/scaling_governor".to_owned();
    assert_eq!(read(Setting::Cpus { file }), value("mixed"));
    let cmdline = |name: &str| Setting::Cmdline { name: name.to_owned() };
    assert_eq!(read(cmdline("pcie_aspm")), value("performance"));
    assert_eq!(read(cmdline("nvme_core.x")), Now::Unset);
    let ring = |ring: &str| Setting::Ring { nic: "eth0".to_owned(), ring: ring.to_owned() };
    assert_eq!(read(ring("rx")), value("1024"));
    assert_eq!(read(ring("tx")), Now::Absent);
    let property = "volthreading".to_owned();
    assert_eq!(read(Setting::Zfs { dataset: "tank/vm".to_owned(), property }), value("on"));
    let conf =
        |file: &str, key: &str| Setting::Conf { file: file.into(), key: key.into(), section: None };
    assert_eq!(read(conf("/etc/iscsi/iscsid.conf", "node.session.cmds_max")), value("256"));
    assert_eq!(read(conf("/etc/iscsi/iscsid.conf", "node.session.queue_depth")), Now::Unset);
    assert_eq!(read(conf("/etc/nosuch.conf", "a")), Now::Absent);
}

#[test]
fn values_are_the_same_however_they_are_written() {
    assert!(same("Y\n", "1"));
    assert!(same("mq-deadline kyber [none]", "none"));
    assert!(same("4096\t1 2", "4096 1 2"));
    assert!(same("256\n[key]\n", "256"));
    assert!(!same("10", "1"));
}

#[test]
fn a_plan_says_what_to_change_from_what_to_what() {
    let plan = planned(&facts(), Profile::Throughput);
    let change = |rule: &str| {
        let item = items(&plan, rule)[0];
        assert_eq!(item.verdict, Verdict::Change, "{item:?}");
        (item.now.clone().unwrap_or_default(), item.wanted.clone().unwrap_or_default())
    };
    let pair = |now: &str, wanted: &str| (now.to_owned(), wanted.to_owned());
    assert_eq!(change("network.rmem-max"), pair("212992", "16777216"));
    assert_eq!(change("network.tcp-rmem"), pair("4096 131072 6291456", "4096 131072 16777216"));
    assert_eq!(change("network.sack"), pair("0", "1"));
    assert_eq!(change("drive.scheduler"), pair("mq-deadline", "none"));
    assert_eq!(change("zfs.arc-max"), pair("0", &(192_u64 << 30).to_string()));
    assert_eq!(change("zfs.queue-depth"), pair("32", "128"));
    assert_eq!(items(&plan, "network.wmem-max")[0].verdict, Verdict::Good);
}

#[test]
fn a_rule_ranges_over_things_and_says_why_not_of_each() {
    let plan = planned(&facts(), Profile::Throughput);
    let found = items(&plan, "drive.read-ahead");
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].about.as_deref(), Some("nvme0n1"));
    assert!(because(&plan, "drive.read-ahead").starts_with("it belongs to the pool tank"));
    assert_eq!(found[1].verdict, Verdict::Good);
    assert_eq!(because(&plan, "target.scst-queue"), "there is no SCST here");
}

#[test]
fn profiles_and_releases_and_unknown_facts_are_reasons() {
    let mut facts = facts();
    let latency = planned(&facts, Profile::Latency);
    assert_eq!(because(&latency, "zfs.queue-depth"), "it is for the profile throughput");
    let zfs = facts.zfs.as_mut().expect("it has");
    (zfs.version, zfs.version_num) = (Some("2.4.0-1".to_owned()), Some(2_004_000));
    let throughput = planned(&facts, Profile::Throughput);
    let told = because(&throughput, "zfs.queue-depth");
    assert_eq!(told, "it is for OpenZFS before 2.4.0; this is 2.4.0-1");
    assert_eq!(
        because(&throughput, "zfs.arc-max"),
        "it is for OpenZFS before 2.3.0; this is 2.4.0-1"
    );
    facts.zfs = None;
    let without = planned(&facts, Profile::Throughput);
    assert_eq!(because(&without, "zfs.queue-depth"), "there is no OpenZFS here");
    facts.drives.clear();
    let without = planned(&facts, Profile::Throughput);
    assert_eq!(because(&without, "drive.scheduler"), "there is no NVMe drive here");
    let unknown = because(&without, "machine.cstates");
    assert_eq!(unknown, "cpu.deepest_cstate_latency_us is not known");
    let none = because(&without, "network.timestamps");
    assert_eq!(none, "this kernel, module or service has no such setting");
}

#[test]
fn work_arounds_are_for_machines_with_the_fault() {
    let mut facts = facts();
    facts.dmesg.readable = true;
    let plan = planned(&facts, Profile::Mixed);
    assert!(because(&plan, "drive.apst").contains("idle power for nothing"));
    facts
        .dmesg
        .hits
        .push(crate::facts::DmesgHit { kind: "nvme_lost".into(), ..Default::default() });
    let plan = planned(&facts, Profile::Mixed);
    let item = items(&plan, "drive.apst")[0];
    assert_eq!((&item.verdict, item.wanted.as_deref()), (&Verdict::Change, Some("0")));
}

#[test]
fn everything_of_nothing_is_unknown_and_no_error() {
    for profile in Profile::ALL {
        let plan = plan(&Tree::new(), &Facts::default(), &rules(), profile, &Choice::default())
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(plan.changes().count(), 0, "{:#?}", plan.changes().collect::<Vec<_>>());
    }
}

#[test]
fn plans_can_be_read() {
    let plan = planned(&facts(), Profile::Throughput);
    let text = write(&plan, true);
    assert!(text.contains("net.core.rmem_max: 212992 -> 16777216"), "{text}");
    assert!(text.contains("Does not apply: there is no SCST here."), "{text}");
    assert!(text.lines().all(|line| line.len() <= 140), "{text}");
    let json = serde_json::to_string(&plan).expect("it is plain");
    assert_eq!(serde_json::from_str::<Plan>(&json).expect("the same"), plan);
    let rules = rules();
    let rule = rules.get("drive.read-ahead").expect("it is there");
    let items: Vec<Item> = items(&plan, &rule.id).into_iter().cloned().collect();
    let story = explain(rule, &items);
    for part in ["Why", "Needs", "Risk", "Source", "recipe's line", "sda: 1024, as it should be"] {
        assert!(story.contains(part), "{story}");
    }
}
