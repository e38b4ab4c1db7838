use super::fake::Fake;
use super::{Again, AgainError, again, apply, rollback, script, verify};
use super::{ApplyError, Content, Journal, Kept, LiveMachine, Machine, Options, STATE, State};
use crate::plan::{Item, Plan, now};
use crate::rules::{Profile, Setting};

mod later;

const TREE: &str = "\
/proc/cmdline: root=/dev/vda1 quiet
/proc/sys/kernel/random/boot_id: one
/proc/sys/net/core/rmem_max: 212992
/proc/sys/net/ipv4/tcp_rmem:
| 4096\t131072\t6291456
/proc/spl/kstat/zfs/arcstats:
| 9 1 0x01 147 39984 11111 22222
| name                            type data
| c_min                           4    1073741824
| c_max                           4    17179869184
/sys/block/nvme0n1/queue/scheduler: [mq-deadline] kyber none
/sys/block/nvme0n1/queue/read_ahead_kb: 128
/sys/block/nvme0n1/queue/add_random: 0
/sys/kernel/scst_tgt/devices/disk1/threads_num: 1
/sys/module/zfs/parameters/zfs_arc_max: 0
/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor: powersave
/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor: schedutil
/etc/nfs.conf:
| [general]
| rdma=n
| [nfsd]
| # rdma=n
| threads=16
| [mountd]
| threads=2
/etc/iscsi/iscsid.conf:
| # of somebody
| node.session.cmds_max = 128
| node.session.timeo = 5
/etc/sysctl.d/zz-lunet-tune.conf:
| # somebody's own
/etc/default/grub: GRUB_TIMEOUT=5
/boot/grub/grub.cfg: menu
$ ethtool -g eth0
| Ring parameters for eth0:
| Pre-set maximums:
| RX:\t\t8192
| Current hardware settings:
| RX:\t\t1024
$ zfs get -Hp -o value,source volthreading tank/vm
| on\tdefault
";

const PROXMOX: &str = "\
/etc/kernel/cmdline: root=ZFS=rpool/ROOT boot=zfs pcie_aspm=default
/usr/sbin/proxmox-boot-tool: a program
/etc/initramfs-tools/modules: zfs
";

fn fake() -> Fake {
    Fake::new(TREE)
}

fn settings() -> Vec<(&'static str, Setting, &'static str)> {
    let text = str::to_owned;
    let conf = |key: &str| Setting::Conf {
        file: text("/etc/iscsi/iscsid.conf"),
        key: text(key),
        section: None,
    };
    let nfsd = |key: &str| Setting::Conf {
        file: text("/etc/nfs.conf"),
        key: text(key),
        section: Some(text("nfsd")),
    };
    let sysfs = |path: &str| Setting::Sysfs { path: text(path) };
    vec![
        ("t.rmem", Setting::Sysctl { name: text("net.core.rmem_max") }, "16777216"),
        ("t.tcp", Setting::Sysctl { name: text("net.ipv4.tcp_rmem") }, "4096 131072 16777216"),
        ("t.sched", sysfs("/sys/block/nvme0n1/queue/scheduler"), "none"),
        ("t.random", sysfs("/sys/block/nvme0n1/queue/add_random"), "1"),
        ("t.ahead", sysfs("/sys/block/nvme0n1/queue/read_ahead_kb"), "512"),
        ("t.scst", sysfs("/sys/kernel/scst_tgt/devices/disk1/threads_num"), "32"),
        (
            "t.arc",
            Setting::Module { module: text("zfs"), name: text("zfs_arc_max") },
            "30000000000",
        ),
        ("t.gov", Setting::Cpus { file: text("cpufreq/scaling_governor") }, "performance"),
        ("t.ring", Setting::Ring { nic: text("eth0"), ring: text("rx") }, "4096"),
        ("t.vol", Setting::Zfs { dataset: text("tank/vm"), property: text("volthreading") }, "off"),
        ("t.cmds", conf("node.session.cmds_max"), "512"),
        ("t.depth", conf("node.session.queue_depth"), "256"),
        ("t.rdma", nfsd("rdma"), "y"),
        ("t.threads", nfsd("threads"), "64"),
        ("t.aspm", Setting::Cmdline { name: text("pcie_aspm") }, "off"),
    ]
}

fn plan_of(machine: &Fake, only: &[&str]) -> Plan {
    let item = |(rule, setting, wanted): (&str, Setting, &str)| {
        let now = match now(machine.source(), &setting) {
            crate::plan::Now::Value(value) => Some(value),
            _ => None,
        };
        Item::change(rule, setting, now, wanted)
    };
    let chosen = settings().into_iter();
    let chosen = chosen.filter(|(rule, ..)| only.is_empty() || only.contains(rule));
    Plan { profile: Profile::Mixed, items: chosen.map(item).collect() }
}

fn options(persist: bool, truenas: bool) -> Options<'static> {
    Options { state: STATE, persist, truenas }
}

/// A name, how to make the machine, and how to apply there.
type Case = (&'static str, fn() -> Fake, Options<'static>);

/// The machines on which everything is tried.
fn machines() -> Vec<Case> {
    vec![
        ("live", fake as fn() -> Fake, options(false, false)),
        ("kept in files", fake, options(true, false)),
        ("kept by Proxmox", || Fake::new(&format!("{TREE}{PROXMOX}")), options(true, false)),
        ("kept by TrueNAS", || fake().truenas(), options(true, true)),
    ]
}

#[test]
fn everything_is_set_and_everything_comes_back() {
    for (name, make, options) in machines() {
        let machine = make();
        let before = machine.state();
        let plan = plan_of(&machine, &[]);
        let applied = apply(&machine, &plan, options).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(applied.changed.len(), if options.persist { 15 } else { 14 }, "{name}");
        let verified = verify(&machine, STATE).expect("it can look");
        assert_eq!((verified.applied, &verified.drift[..]), (true, &[][..]), "{name}");
        assert_eq!(verified.waiting.len(), usize::from(options.persist), "{name}");
        assert_ne!(machine.state(), before);
        let told = rollback(&machine, STATE).expect("it can");
        assert_eq!(told.left, [], "{name}");
        assert_eq!(machine.state(), before, "{name}");
        assert_eq!(Journal::read(&machine, STATE), Ok(None));
        assert_eq!(rollback(&machine, STATE).expect("it can").steps, 0, "nothing is left");
    }
}

#[test]
fn killed_at_any_point_of_apply_it_can_be_rolled_back() {
    for (name, make, options) in machines() {
        let whole = make();
        apply(&whole, &plan_of(&whole, &[]), options).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(whole.changes.get() > 12, "{name}: {}", whole.changes.get());
        for at in 0..whole.changes.get() {
            let machine = make();
            let before = machine.state();
            machine.die_at.set(Some(at));
            apply(&machine, &plan_of(&machine, &[]), options).expect_err("it was killed");
            machine.revive();
            if Journal::read(&machine, STATE).expect("it can be read").is_some() {
                let error = apply(&machine, &plan_of(&machine, &[]), options).expect_err("not yet");
                assert_eq!(error, ApplyError::Interrupted);
            }
            let told = rollback(&machine, STATE).expect("it can");
            assert_eq!(told.left, [], "{name}, killed at {at}");
            assert_eq!(machine.state(), before, "{name}, killed at {at}");
        }
    }
}

#[test]
fn killed_at_any_point_of_rollback_it_can_be_rolled_back_again() {
    for (name, make, options) in machines() {
        let mut at = 0;
        loop {
            let machine = make();
            let before = machine.state();
            apply(&machine, &plan_of(&machine, &[]), options).expect("it can");
            machine.die_at.set(Some(machine.changes.get() + at));
            let whole = rollback(&machine, STATE).is_ok_and(|told| told.left.is_empty());
            machine.revive();
            assert_eq!(rollback(&machine, STATE).expect("it can").left, [], "{name}, {at}");
            assert_eq!(machine.state(), before, "{name}, killed at {at}");
            if whole {
                break;
            }
            at += 1;
        }
        assert!(at > 12, "{name}: {at}");
    }
}

#[test]
fn whatever_step_fails_is_named_and_leaves_nothing_behind() {
    for (name, make, options) in machines() {
        let whole = make();
        apply(&whole, &plan_of(&whole, &[]), options).expect("it can");
        for at in 0..whole.changes.get() {
            let machine = make();
            let before = machine.state();
            machine.fail_at.set(Some(at));
            let error = apply(&machine, &plan_of(&machine, &[]), options).expect_err("it broke");
            assert!(error.to_string().contains("it broke"), "{name}, {at}: {error}");
            assert_eq!(machine.state(), before, "{name}, failed at {at}: {error}");
            assert_eq!(Journal::read(&machine, STATE), Ok(None), "{name}, failed at {at}");
        }
    }
}

#[test]
fn a_value_that_the_kernel_makes_another_one_of_is_refused() {
    let machine = fake();
    let before = machine.state();
    let path = "/sys/block/nvme0n1/queue/read_ahead_kb";
    *machine.clamp.borrow_mut() = Some((path.to_owned(), "256".to_owned()));
    let error = apply(&machine, &plan_of(&machine, &[]), options(false, false)).expect_err("no");
    let told = format!("t.ahead: {path}: 512 was written, and it is 256");
    assert!(error.to_string().starts_with(&told), "{error}");
    // The fake makes 256 of the old value, too: that cannot be taken back, and is told.
    assert!(error.to_string().contains("could not be rolled back: t.ahead"), "{error}");
    assert!(Journal::read(&machine, STATE).expect("it can be read").is_some());
    *machine.clamp.borrow_mut() = None;
    assert_eq!(rollback(&machine, STATE).expect("it can").left, []);
    assert_eq!(machine.state(), before);
}

#[test]
fn read_only_missing_and_unwritable_are_named() {
    let told = |break_it: fn(&Fake), persist: bool| {
        let machine = fake();
        let plan = plan_of(&machine, &[]);
        break_it(&machine);
        let before = machine.state();
        let error = apply(&machine, &plan, options(persist, false)).expect_err("it is broken");
        assert_eq!(machine.state(), before, "{error}");
        error.to_string()
    };
    let error = told(|machine| *machine.read_only.borrow_mut() = Some("/sys".to_owned()), false);
    let wanted = "t.sched: /sys/block/nvme0n1/queue/scheduler: read-only file system; everything \
                  was rolled back";
    assert_eq!(error, wanted);
    let error = told(|machine| *machine.read_only.borrow_mut() = Some("/etc/udev".into()), true);
    assert!(error.starts_with("/etc/udev/rules.d/90-lunet-tune.rules: read-only"), "{error}");
    let error = told(|machine| *machine.read_only.borrow_mut() = Some("/var".to_owned()), false);
    let wanted = "the journal /var/lib/lunet-tune/journal.json cannot be written: read-only file \
                  system; nothing was changed";
    assert_eq!(error, wanted);
    let error = told(|machine| machine.overlay("- /sys/module/zfs"), false);
    assert_eq!(error, "t.arc: zfs_arc_max of module zfs: it cannot be read; nothing was changed");
}

#[test]
fn a_second_apply_is_laid_over_the_first() {
    let machine = fake();
    let before = machine.state();
    apply(&machine, &plan_of(&machine, &["t.rmem", "t.cmds"]), options(true, false)).expect("1");
    let first = machine.state();
    let mut again = plan_of(&machine, &["t.rmem", "t.tcp", "t.cmds", "t.depth"]);
    again.items[0].wanted = Some("33554432".to_owned());
    machine.fail_at.set(Some(machine.changes.get() + 3));
    apply(&machine, &again, options(true, false)).expect_err("it broke");
    assert_eq!(machine.state(), first, "the first one stays");
    assert_eq!(verify(&machine, STATE).expect("it can look").drift, []);
    apply(&machine, &again, options(true, false)).expect("2");
    assert_eq!(verify(&machine, STATE).expect("it can look").drift, []);
    let kept = machine.get("/etc/sysctl.d/zz-lunet-tune.conf").expect("it can").expect("there");
    let text = String::from_utf8(kept.bytes).expect("a text");
    assert_eq!(
        text,
        "# somebody's own\nnet.core.rmem_max = 33554432\nnet.ipv4.tcp_rmem = 4096 131072 16777216\n"
    );
    rollback(&machine, STATE).expect("it can");
    assert_eq!(machine.state(), before);
}

#[test]
fn after_a_reboot_it_verifies_and_rolls_back() {
    let machine = fake();
    let before = machine.state();
    apply(&machine, &plan_of(&machine, &[]), options(true, false)).expect("it can");
    // The service has not kept its value, and the command line has come.
    machine.overlay(
        "/proc/sys/kernel/random/boot_id: two\n/proc/cmdline: root=/dev/vda1 quiet pcie_aspm=off\n\
         /sys/kernel/scst_tgt/devices/disk1/threads_num: 1\n",
    );
    let verified = verify(&machine, STATE).expect("it can look");
    assert_eq!(verified.waiting, [] as [String; 0]);
    let drift: Vec<&str> =
        verified.drift.iter().filter_map(|drift| drift.rule.as_deref()).collect();
    assert_eq!(drift, ["t.scst"]);
    machine.overlay("/proc/cmdline: root=/dev/vda1 quiet\n");
    assert_eq!(verify(&machine, STATE).expect("it can look").drift.len(), 2);
    assert_eq!(rollback(&machine, STATE).expect("it can").left, []);
    machine.overlay("/proc/sys/kernel/random/boot_id: one\n");
    assert_eq!(machine.state(), before);
}

#[test]
fn what_one_setting_does_to_another_is_put_right() {
    let ahead = "/sys/block/nvme0n1/queue/read_ahead_kb";
    for (only, wanted) in [(vec!["t.random"], "128"), (vec!["t.ahead", "t.random"], "512")] {
        for turned in [false, true] {
            let machine = fake();
            let before = machine.state();
            let mut plan = plan_of(&machine, &only);
            if turned {
                plan.items.reverse();
            }
            apply(&machine, &plan, options(false, false)).expect("it can");
            assert_eq!(machine.source().text(ahead).as_deref(), Some(wanted), "{only:?}");
            assert_eq!(rollback(&machine, STATE).expect("it can").left, []);
            assert_eq!(machine.state(), before, "{only:?}");
        }
    }
}

#[test]
fn drift_of_values_and_files_is_seen() {
    let machine = fake();
    assert!(!verify(&machine, STATE).expect("it can look").applied);
    apply(&machine, &plan_of(&machine, &["t.rmem", "t.sched"]), options(true, false)).expect("it");
    machine.overlay("/proc/sys/net/core/rmem_max: 5\n- /etc/udev/rules.d/90-lunet-tune.rules\n");
    let drift = verify(&machine, STATE).expect("it can look").drift;
    let told: Vec<(&str, &str)> =
        drift.iter().map(|drift| (drift.what.as_str(), drift.is.as_str())).collect();
    let file = "/etc/udev/rules.d/90-lunet-tune.rules";
    assert_eq!(told, [("net.core.rmem_max", "5"), (file, "changed or gone")]);
    // Somebody unplugs the drive: it needs nothing.
    machine.overlay("- /sys/block/nvme0n1");
    assert_eq!(rollback(&machine, STATE).expect("it can").left, []);
}

#[test]
fn the_limit_of_the_cache_is_taken_back_although_zero_means_nothing_to_it() {
    let machine = fake();
    apply(&machine, &plan_of(&machine, &["t.arc"]), options(false, false)).expect("it can");
    let journal = Journal::read(&machine, STATE).expect("it can").expect("there");
    let json = serde_json::to_string(&journal).expect("plain");
    assert!(json.contains("\"via\":\"17179869184\""), "{json}");
    assert_eq!(journal.state, State::Applied);
}

#[test]
fn a_file_is_replaced_whole_and_what_a_kill_leaves_is_taken_away() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = |file: &str| folder.path().join(file).display().to_string();
    std::os::unix::fs::symlink(name("file"), name("link")).expect("a link");
    let kept = Kept { bytes: b"one\n".to_vec(), mode: 0o640 };
    LiveMachine.put(&name("file"), Some(&kept)).expect("it can");
    // As a kill in the middle would leave it.
    std::fs::write(name(".file.new"), "ha").expect("it can");
    LiveMachine.tidy(&name("link")).expect("it can");
    LiveMachine.tidy(&name("link")).expect("nothing is left");
    assert!(!folder.path().join(".file.new").exists());
    let two = Kept { bytes: b"two\n".to_vec(), ..kept };
    LiveMachine.put(&name("link"), Some(&two)).expect("it can");
    assert!(folder.path().join("link").is_symlink());
    assert_eq!(LiveMachine.get(&name("file")), Ok(Some(two)));
    LiveMachine.put(&name("file"), None).expect("it can");
    assert_eq!(LiveMachine.get(&name("file")), Ok(None));
}

#[test]
fn bytes_that_are_no_text_come_back_too() {
    let kept = Kept { bytes: (0..=255).collect(), mode: 0o600 };
    let json = serde_json::to_string(&Content::from(&kept)).expect("plain");
    let back: Content = serde_json::from_str(&json).expect("the same");
    assert_eq!(Kept::from(&back), kept);
}

#[test]
fn scripts_say_what_they_do() {
    let machine = fake();
    let text = script(&machine, &plan_of(&machine, &[]), true, false).expect("it can");
    for line in [
        "echo 16777216 > /proc/sys/net/core/rmem_max",
        "echo '4096 131072 16777216' > /proc/sys/net/ipv4/tcp_rmem",
        "echo none > /sys/block/nvme0n1/queue/scheduler",
        "ethtool -G eth0 rx 4096",
        "zfs set volthreading=off tank/vm",
        "options zfs zfs_arc_max=30000000000",
        "ACTION==\"add|change\", SUBSYSTEM==\"block\", KERNEL==\"nvme0n1\", \
         ATTR{queue/scheduler}=\"none\"",
        "GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX pcie_aspm=off\"",
        "update-grub",
        "systemctl enable lunet-tune.service",
        "ExecStart=-/bin/sh -c \"echo 32 > /sys/kernel/scst_tgt/devices/disk1/threads_num\"",
        "systemctl enable lunet-tune-targets.service",
        "# t.gov: a title",
    ] {
        assert!(text.lines().any(|have| have == line), "no line {line} in\n{text}");
    }
    let truenas = fake().truenas();
    let text = script(&truenas, &plan_of(&truenas, &[]), true, true).expect("it can");
    for part in ["midclt call -job tunable.create '{", "midclt call initshutdownscript.create '{"] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    assert!(!text.contains("/etc/sysctl.d"), "{text}");
    assert!(text.contains("pcie_aspm=off\"}'"), "{text}");
}

/// A reboot forgets what was not made to persist, and a device may be gone.
#[test]
fn what_was_applied_is_set_again_after_a_reboot() {
    let machine = fake();
    assert_eq!(again(&machine, STATE), Ok(Again::default()), "nothing is applied");
    let plan = plan_of(&machine, &["t.rmem", "t.sched", "t.ahead", "t.ring", "t.cmds"]);
    apply(&machine, &plan, options(false, false)).expect("it works");
    let whole = machine.state();
    let held = Again { applied: true, ..Again::default() };
    assert_eq!(again(&machine, STATE), Ok(held), "everything holds");
    machine.overlay(
        "/proc/sys/kernel/random/boot_id: one\n/proc/sys/net/core/rmem_max: 212992\n\
         /sys/block/nvme0n1/queue/scheduler: [mq-deadline] kyber none\n\
         /sys/block/nvme0n1/queue/read_ahead_kb: 128\n",
    );
    assert_ne!(machine.state(), whole);
    let done = again(&machine, STATE).expect("it works");
    assert_eq!((done.set.len(), &done.failed[..]), (3, &[][..]), "{done:?}");
    assert_eq!(machine.state(), whole);
    // What fails keeps nothing else from being set.
    machine.overlay("/proc/sys/net/core/rmem_max: 212992\n/sys/block/nvme0n1/queue/scheduler: [mq-deadline] none\n");
    machine.revive();
    machine.fail_at.set(Some(machine.changes.get()));
    let done = again(&machine, STATE).expect("it works");
    assert_eq!((done.set.len(), done.failed.len()), (1, 1), "{done:?}");
    assert!(verify(&machine, STATE).expect("it can look").drift.len() == 1);
}

#[test]
fn nothing_is_set_again_of_half_an_apply() {
    let machine = fake();
    apply(&machine, &plan_of(&machine, &["t.rmem"]), options(false, false)).expect("it works");
    let mut journal = Journal::read(&machine, STATE).expect("it can").expect("it is there");
    journal.state = State::Applying;
    journal.write(&machine, STATE).expect("it can");
    machine.overlay("/proc/sys/net/core/rmem_max: 1\n");
    let before = machine.state();
    assert_eq!(again(&machine, STATE), Err(AgainError::Interrupted));
    assert_eq!(machine.state(), before);
}
