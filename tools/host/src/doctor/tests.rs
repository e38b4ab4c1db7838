use super::*;
use crate::facts::{Nic, Rdma};
use crate::probe::nvme::{ControllerProbe, NamespaceProbe, NvmeProbe, Offered, find_rdma_devices};
use crate::probe::{Latency, LunProbe, Refused, Session};

fn targets() -> Checks {
    Checks::of_targets().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_checks_can_be_read() {
    let checks = match Checks::embedded() {
        Ok(checks) => checks,
        Err(error) => panic!("{error}"),
    };
    assert!(checks.len() >= 50, "{}", checks.len());
}

#[test]
fn nothing_is_known_of_nothing() {
    let checks = Checks::embedded().expect("the checks can be read");
    let report = examine(&Facts::default(), &checks);
    assert_eq!(report.exit_code(), 2);
    assert_eq!(report.count(State::Broken), 0, "{:#?}", report.looked);
    assert!(report.findings.is_empty());
    assert!(page(&report, true).starts_with("Nothing can be seen"));
}

/// A check of the user's own, which finds what it looks for.
const OWN: &str = r#"
layer = "nic"
[[check]]
id = "own"
title = "names"
severity = "note"
each = "nics"
as = "n"
let = ["twice = n.mtu * 2"]
applies = "n.name != 'lo'"
about = "{n.name}"
looked = "{n.name}: {n.mtu}"
when = "twice > 3000"
found = "{n.name} has {twice}"
why = "because"
fix = "repair {n.name}"
"#;

fn own(mtu: Option<i64>) -> Report {
    let mut checks = Checks::default();
    checks.add("own.toml", OWN).expect("it is in the form");
    let nic = crate::facts::Nic { name: "eth0".into(), mtu, ..crate::facts::Nic::default() };
    let mut facts = Facts { nics: vec![nic], ..Facts::default() };
    facts.platform.kernel = Some("6.1".into());
    examine(&facts, &checks)
}

#[test]
fn a_check_finds_is_content_or_does_not_know() {
    let report = own(Some(9000));
    assert_eq!((report.exit_code(), report.findings[0].found.as_str()), (1, "eth0 has 18000"));
    let text = page(&report, false);
    assert!(
        text.contains("NOTE own (eth0)\n  eth0 has 18000\n  why: because\n  fix: repair eth0"),
        "{text}"
    );
    let report = own(Some(1500));
    assert_eq!((report.exit_code(), report.count(State::Healthy)), (0, 1));
    assert!(page(&report, true).contains("ok own: eth0: 1500"));
    let report = own(None);
    assert_eq!((report.exit_code(), report.count(State::Unknown)), (0, 1));
    assert!(page(&report, false).contains("1 that could not be seen"));
}

#[test]
fn a_wrong_file_is_told_with_check_and_part() {
    for (from, to, error) in [
        ("nics", "nics[", "own.toml: check own: each: `nics[`: "),
        ("twice > 3000", "twice >", "own.toml: check own: when: "),
        ("{n.name} has {twice}", "{n.name", "own.toml: check own: found: "),
        ("severity = \"note\"", "severity = \"bad\"", "own.toml: TOML parse error"),
        ("title", "titel", "own.toml: TOML parse error"),
        ("n.mtu * 2", "n.mut * 2", "own.toml: check own: let: there is no fact `n.mut`"),
        ("repair {n.name}", "repair {m.name}", "own.toml: check own: fix: there is no `m` here"),
    ] {
        let wrong = Checks::default().add("own.toml", &OWN.replacen(from, to, 1));
        let text = wrong.expect_err(to).to_string();
        assert!(text.starts_with(error), "{text}");
    }
    let mut checks = Checks::default();
    checks.add("a.toml", OWN).expect("it is in the form");
    let twice = checks.add("b.toml", OWN).expect_err("it is there already").to_string();
    assert_eq!(twice, "b.toml: there are two checks of the name own");
}

/// A target without fault.
fn healthy() -> Probe {
    let quick = |us: f64| {
        Some(Latency { samples: 64, min_us: us, median_us: us, p90_us: us * 2.0, max_us: us * 3.0 })
    };
    Probe {
        url: "iscsi://10.0.0.1".into(),
        address: "10.0.0.1:3260".into(),
        target: Some("iqn.2026-11.x:y".into()),
        chap: true,
        session: Some(Session {
            window: 128,
            max_recv_data_segment_length: 262_144,
            max_burst_length: 1 << 20,
            first_burst_length: 262_144,
            max_outstanding_r2t: 8,
            immediate_data: true,
            ..Session::default()
        }),
        luns: vec![LunProbe {
            device_type: Some(0),
            size_bytes: Some(1 << 40),
            block_bytes: Some(512),
            thin: Some(true),
            unmap: Some(true),
            max_unmap_bytes: Some(1 << 30),
            max_transfer_bytes: Some(8 << 20),
            rotation_rate: Some(1),
            write_cache: Some(true),
            flush: Some(true),
            read_only: Some(false),
            ..LunProbe::default()
        }],
        ping: quick(60.0),
        ready: quick(70.0),
        read: quick(150.0),
        ..Probe::default()
    }
}

type Change = fn(&mut Probe);

/// What makes each check of targets find something.
const FAULTS: &[(&str, Change)] = &[
    ("url-no-target", |p| p.target = None),
    ("url-refused", |p| p.refused.push(Refused { name: "iqn.x:z".into(), why: "CHAP".into() })),
    ("url-no-lun", |p| p.luns.clear()),
    ("url-open-to-all", |p| p.chap = false),
    ("url-not-ready", |p| p.luns[0].not_ready = Some("sense 2h/04h/0bh".into())),
    ("url-small-window", |p| session(p).window = 32),
    ("url-digests", |p| session(p).data_digest = true),
    ("url-short-segments", |p| session(p).max_recv_data_segment_length = 8192),
    ("url-short-first-burst", |p| session(p).first_burst_length = 16_384),
    ("url-short-bursts", |p| session(p).max_burst_length = 65_536),
    ("url-no-immediate-data", |p| session(p).immediate_data = false),
    ("url-waits-to-be-asked", |p| {
        session(p).initial_r2t = true;
        session(p).first_burst_length = 65_535;
    }),
    ("url-public-without-chap", |p| (p.public, p.chap) = (true, false)),
    ("url-cache-without-flush", |p| p.luns[0].flush = Some(false)),
    ("url-no-unmap", |p| p.luns[0].unmap = Some(false)),
    ("url-small-unmap", |p| p.luns[0].max_unmap_bytes = Some(1 << 20)),
    ("url-small-transfer", |p| p.luns[0].max_transfer_bytes = Some(65_536)),
    ("url-rotates", |p| p.luns[0].rotation_rate = Some(7200)),
    ("url-slow-target", |p| slow(&mut p.ping, 3000.0)),
    ("url-slow-storage", |p| slow(&mut p.read, 9000.0)),
    ("url-read-only", |p| p.luns[0].read_only = Some(true)),
];

fn session(probe: &mut Probe) -> &mut Session {
    probe.session.get_or_insert_default()
}

fn slow(latency: &mut Option<Latency>, us: f64) {
    latency.get_or_insert_default().median_us = us;
}

#[test]
fn each_fault_of_a_target_is_found() {
    let checks = targets();
    let report = examine_target(&healthy(), &checks);
    assert_eq!((report.exit_code(), report.count(State::Broken)), (0, 0), "{report:#?}");
    for (id, change) in FAULTS {
        let mut probe = healthy();
        change(&mut probe);
        let report = examine_target(&probe, &checks);
        assert!(report.findings.iter().any(|finding| finding.check == *id), "{id}: {report:#?}");
        assert_eq!(report.count(State::Broken), 0, "{id}: {report:#?}");
    }
    let known: Vec<&str> = FAULTS.iter().map(|(id, _)| *id).collect();
    assert!(
        checks.iter().all(|check| known.contains(&check.id.as_str())),
        "a check without a fault"
    );
}

/// A subsystem without fault.
fn healthy_subsystem() -> NvmeProbe {
    let quick = |us: f64| {
        Some(Latency { samples: 64, min_us: us, median_us: us, p90_us: us * 2.0, max_us: us * 3.0 })
    };
    NvmeProbe {
        url: "nvme-tcp://10.0.0.1".into(),
        address: "10.0.0.1:4420".into(),
        host: crate::probe::nvme::HOST.into(),
        offers: vec![Offered {
            nqn: "nqn.2026-11.x:y".into(),
            address: "10.0.0.1:4420".into(),
            usable: true,
            ..Offered::default()
        }],
        subsystem: Some("nqn.2026-11.x:y".into()),
        authenticated: true,
        controller: Some(ControllerProbe {
            queue_entries: 128,
            queues: 64,
            max_transfer_bytes: Some(1 << 20),
            capsule_bytes: 16_384,
            max_h2c_bytes: 262_144,
            ana: true,
            ana_log_bytes: 36 << 10,
            reservations: true,
            compare: true,
            compare_and_write: true,
            ..ControllerProbe::default()
        }),
        namespaces: vec![NamespaceProbe {
            nsid: 1,
            size_bytes: Some(1 << 40),
            block_bytes: Some(512),
            nguid: Some("01".into()),
            uuid: Some("02".into()),
            reservations: true,
            path: Some("optimized".into()),
            ..NamespaceProbe::default()
        }],
        ping: quick(60.0),
        read: quick(150.0),
        ..NvmeProbe::default()
    }
}

type Spoil = fn(&mut NvmeProbe);

/// What makes each check of subsystems find something.
const SPOILT: &[(&str, Spoil)] = &[
    ("nvme-no-subsystem", |p| p.subsystem = None),
    ("nvme-refused", |p| p.refused.push(Refused { name: "nqn.x:z".into(), why: "host".into() })),
    ("nvme-no-namespace", |p| p.namespaces.clear()),
    ("nvme-discovery-address", |p| p.offers[0].address = "0.0.0.0:4420".into()),
    ("nvme-rdma-offered", |p| {
        let device = Some("mlx5_0".into());
        p.offers.push(Offered { over_rdma: true, rdma_device: device, ..Offered::default() });
    }),
    ("nvme-no-nguid", |p| p.namespaces[0].nguid = None),
    ("nvme-block-size", |p| p.namespaces[0].block_bytes = Some(4096)),
    ("nvme-namespace-storage", |p| trouble(p, "not ready")),
    ("nvme-namespace-path", |p| trouble(p, "path")),
    ("nvme-namespace-reserved", |p| trouble(p, "reserved")),
    ("nvme-namespace-sanitizing", |p| trouble(p, "sanitizing")),
    ("nvme-namespace-busy", |p| trouble(p, "busy")),
    ("nvme-path-inaccessible", |p| p.namespaces[0].path = Some("inaccessible".into())),
    ("nvme-path-not-optimized", |p| p.namespaces[0].path = Some("non-optimized".into())),
    ("nvme-ana-log-too-long", |p| of(p).ana_log_bytes = 2 << 20),
    ("nvme-no-transfer-limit", |p| of(p).max_transfer_bytes = None),
    ("nvme-small-transfer", |p| of(p).max_transfer_bytes = Some(65_536)),
    ("nvme-small-queue", |p| of(p).queue_entries = 32),
    ("nvme-one-queue", |p| of(p).queues = 1),
    ("nvme-small-capsule", |p| of(p).capsule_bytes = 0),
    ("nvme-small-data-pdu", |p| of(p).max_h2c_bytes = 4096),
    ("nvme-no-compare-and-write", |p| of(p).compare_and_write = false),
    ("nvme-no-reservations", |p| p.namespaces[0].reservations = false),
    ("nvme-open-to-all", |p| p.authenticated = false),
    ("nvme-public-without-authentication", |p| (p.public, p.authenticated) = (true, false)),
    ("nvme-slow-controller", |p| slow(&mut p.ping, 3000.0)),
    ("nvme-slow-storage", |p| slow(&mut p.read, 9000.0)),
    ("nvme-write-protected", |p| p.namespaces[0].write_protected = true),
];

/// The first block of the namespace is not read.
fn trouble(probe: &mut NvmeProbe, word: &str) {
    let namespace = &mut probe.namespaces[0];
    (namespace.trouble, namespace.status) = (Some(word.into()), Some("a status".into()));
}

fn of(probe: &mut NvmeProbe) -> &mut ControllerProbe {
    probe.controller.get_or_insert_default()
}

#[test]
fn a_card_takes_what_is_offered_over_rdma_in_its_network() {
    let nic = |name: &str, address: &str, parent: Option<&str>| Nic {
        name: name.into(),
        addresses: vec![address.into()],
        parent: parent.map(str::to_owned),
        ..Nic::default()
    };
    let port = |device: &str, netdev: &str, soft: bool| Rdma {
        device: device.into(),
        netdev: Some(netdev.into()),
        state: Some("ACTIVE".into()),
        soft: Some(soft),
        ..Rdma::default()
    };
    let nics = [
        nic("ens1", "10.0.0.9/24", None),
        nic("ens1.7", "fd00::9/64", Some("ens1")),
        nic("ens2", "10.0.2.9/24", None),
    ];
    let rdma = [port("mlx5_0", "ens1", false), port("rxe0", "ens2", true)];
    for (address, device) in [
        ("10.0.0.1:4420", Some("mlx5_0")),
        ("[fd00::1]:4420", Some("mlx5_0")),
        ("10.0.2.1:4420", None),
        ("10.0.3.1:4420", None),
        ("", None),
    ] {
        let offer = Offered { over_rdma: true, address: address.into(), ..Offered::default() };
        let mut probe = NvmeProbe { offers: vec![offer], ..NvmeProbe::default() };
        find_rdma_devices(&mut probe, &nics, &rdma);
        assert_eq!(probe.offers[0].rdma_device.as_deref(), device, "{address}");
    }
}

/// Who is on the same machine may be let in for that alone.
#[test]
fn a_subsystem_of_this_machine_is_not_open_to_all() {
    let checks = Checks::of_subsystems().unwrap_or_else(|error| panic!("{error}"));
    for local in [false, true] {
        let probe = NvmeProbe { authenticated: false, local, ..healthy_subsystem() };
        assert_eq!(examine_subsystem(&probe, &checks).findings.is_empty(), local);
    }
}

#[test]
fn each_fault_of_a_subsystem_is_found() {
    let checks = Checks::of_subsystems().unwrap_or_else(|error| panic!("{error}"));
    let report = examine_subsystem(&healthy_subsystem(), &checks);
    assert_eq!((report.exit_code(), report.count(State::Broken)), (0, 0), "{report:#?}");
    for (id, spoil) in SPOILT {
        let mut probe = healthy_subsystem();
        spoil(&mut probe);
        let report = examine_subsystem(&probe, &checks);
        assert!(report.findings.iter().any(|finding| finding.check == *id), "{id}: {report:#?}");
        assert_eq!(report.count(State::Broken), 0, "{id}: {report:#?}");
    }
    let known: Vec<&str> = SPOILT.iter().map(|(id, _)| *id).collect();
    let without = checks.iter().find(|check| !known.contains(&check.id.as_str()));
    assert!(without.is_none(), "a check without a fault: {without:?}");
}

#[test]
fn ports_of_one_card_share_its_link() {
    let nic = |name: &str, address: &str, lanes_bytes: i64| Nic {
        name: name.to_owned(),
        carrier: Some(true),
        speed_mbit: Some(100_000),
        pcie: Some(crate::facts::Pcie {
            address: address.to_owned(),
            bytes_per_second: Some(lanes_bytes),
            ..crate::facts::Pcie::default()
        }),
        ..Nic::default()
    };
    let (a, b) = (nic("a", "0000:3b:00.0", 16 << 30), nic("b", "0000:3b:00.1", 16 << 30));
    let other = nic("c", "0000:5e:00.0", 32 << 30);
    let down = Nic { carrier: Some(false), ..nic("d", "0000:5f:00.0", 32 << 30) };
    let wire = |nics: &[&Nic]| derived::wire_bytes_per_second(nics);
    assert_eq!(wire(&[&a]), 12_500_000_000);
    assert_eq!(wire(&[&a, &b]), (16 << 30) / 8 * 7);
    assert_eq!(wire(&[&a, &b, &other, &down]), (16 << 30) / 8 * 7 + 12_500_000_000);
}

#[test]
fn drives_with_data_are_those_of_pools_luns_and_arrays() {
    let tree = crate::source::Tree::parse(
        r#"
/sys/module/zfs/version: 2.2.2-1
$ zpool list -Hp -o name,size,allocated,free,fragmentation,capacity,dedupratio,health
| boot-pool	1000	1	999	0	0	1.00	ONLINE
| tank	1000	1	999	0	0	1.00	ONLINE
$ zpool status -PLp
|   pool: boot-pool
| config:
| 	boot-pool  ONLINE
| 	  /dev/sda3  ONLINE
|   pool: tank
| config:
| 	tank  ONLINE
| 	  /dev/sdb1  ONLINE
| 	cache
| 	  /dev/sdc1  ONLINE
/sys/block/sda/sda3/holders/:
/sys/block/sdb/sdb1/holders/:
/sys/block/sdc/sdc1/holders/:
/sys/block/sdd/holders/: md0
/sys/block/sde/sde1/holders/: dm-0
/sys/block/sdf/holders/:
/sys/kernel/config/nvmet/subsystems/nqn.a/namespaces/1/device_path: /dev/sdf
"#,
    )
    .unwrap();
    let facts = crate::facts::facts(&tree);
    let names: Vec<&str> = derived::data_drives(&facts).iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["sdb", "sdd", "sdf"], "not what starts the system, nor a cache");
}
