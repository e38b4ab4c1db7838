//! What somebody else has changed after `apply` stays.

use serde_json::json;

use super::*;
use crate::apply::edit::{set, unset};
use crate::apply::{Key, Step};

const SYSCTL: &str = "/etc/sysctl.d/zz-lunet-tune.conf";
const MODPROBE: &str = "/etc/modprobe.d/lunet-tune.conf";
const UNIT: &str = "/etc/systemd/system/lunet-tune.service";
const CMDLINE: &str = "/etc/kernel/cmdline";
const ISCSID: &str = "/etc/iscsi/iscsid.conf";

fn proxmox() -> Fake {
    Fake::new(&format!("{TREE}{PROXMOX}"))
}

fn text(machine: &Fake, path: &str) -> String {
    machine.source().read(path).unwrap_or_else(|| panic!("{path} is gone"))
}

fn edit(machine: &Fake, path: &str, change: impl Fn(&str) -> String) {
    let lines = change(&text(machine, path));
    let lines: Vec<String> = lines.lines().map(|line| format!("| {line}\n")).collect();
    machine.overlay(&format!("{path}:\n{}", lines.concat()));
}

fn applied(machine: &Fake, only: &[&str], options: Options<'_>) {
    apply(machine, &plan_of(machine, only), options).expect("it can");
}

fn rolled_back(machine: &Fake) -> super::super::RolledBack {
    let told = rollback(machine, STATE).expect("it can");
    assert_eq!(told.left, []);
    assert_eq!(Journal::read(machine, STATE), Ok(None));
    told
}

#[test]
fn a_command_line_that_was_edited_loses_our_words_only() {
    let machine = proxmox();
    applied(&machine, &["t.aspm"], options(true, false));
    assert_eq!(text(&machine, CMDLINE), "root=ZFS=rpool/ROOT boot=zfs pcie_aspm=off\n");
    // The root pool has another name now: the old line would not boot.
    edit(&machine, CMDLINE, |line| line.replace("rpool", "tank") + " intel_iommu=on");
    machine.ran.borrow_mut().clear();
    let told = rolled_back(&machine);
    let wanted = "root=ZFS=tank/ROOT boot=zfs pcie_aspm=default intel_iommu=on\n";
    assert_eq!(text(&machine, CMDLINE), wanted);
    assert_eq!(*machine.ran.borrow(), ["proxmox-boot-tool refresh"]);
    let kept = format!("{CMDLINE}: it was edited since: only what lunet wrote was taken out");
    assert_eq!(told.kept, [kept]);
    assert_eq!(told.notes, ["pcie_aspm=off works until the next reboot."]);
}

#[test]
fn a_word_that_was_changed_stays_and_is_told() {
    let machine = proxmox();
    applied(&machine, &["t.aspm"], options(true, false));
    edit(&machine, CMDLINE, |line| line.replace("pcie_aspm=off", "pcie_aspm=force"));
    let told = rolled_back(&machine);
    assert_eq!(text(&machine, CMDLINE), "root=ZFS=rpool/ROOT boot=zfs pcie_aspm=force\n");
    let kept = format!(
        "{CMDLINE}: `pcie_aspm=off` was changed to `pcie_aspm=force` since, and stays; before it \
         was `pcie_aspm=default`"
    );
    assert_eq!(told.kept, [kept]);
}

#[test]
fn lines_that_others_have_put_into_our_files_stay() {
    let machine = fake();
    applied(&machine, &["t.rmem", "t.tcp", "t.arc", "t.aspm"], options(true, false));
    let own = "kernel.panic = 10\n";
    edit(&machine, SYSCTL, |text| text.replace("net.ipv4", &format!("{own}net.ipv4")));
    edit(&machine, MODPROBE, |text| format!("options zfs zfs_arc_min=1\n{text}"));
    let grub = "/etc/default/grub.d/lunet-tune.cfg";
    edit(&machine, grub, |text| format!("{text}GRUB_TIMEOUT=1\n"));
    let told = rolled_back(&machine);
    assert_eq!(text(&machine, SYSCTL), format!("# somebody's own\n{own}"));
    assert_eq!(text(&machine, MODPROBE), "options zfs zfs_arc_min=1\n");
    assert_eq!(text(&machine, grub), "GRUB_TIMEOUT=1\n");
    assert_eq!(told.kept.len(), 3, "{:?}", told.kept);
}

#[test]
fn a_line_that_was_changed_or_taken_out_stays_so() {
    let machine = fake();
    applied(&machine, &["t.rmem", "t.cmds", "t.depth"], options(true, false));
    edit(&machine, ISCSID, |text| {
        text.replace("cmds_max = 512", "cmds_max = 1024")
            .replace("node.session.queue_depth = 256\n", "")
    });
    machine.overlay(&format!("- {SYSCTL}\n"));
    let told = rolled_back(&machine);
    assert_eq!(
        text(&machine, ISCSID),
        "# of somebody\nnode.session.cmds_max = 1024\nnode.session.timeo = 5\n"
    );
    assert_eq!(machine.source().read(SYSCTL), None);
    assert!(told.kept.contains(&format!("{SYSCTL} was removed since, and is not put back")));
    assert!(
        told.kept.iter().any(|kept| kept.contains("before it was `node.session.cmds_max = 128`"))
    );
}

#[test]
fn a_unit_with_commands_of_others_stays_enabled() {
    let machine = fake();
    applied(&machine, &["t.gov", "t.ring"], options(true, false));
    let whole = text(&machine, UNIT);
    let own = "ExecStart=/usr/local/sbin/mine\n";
    edit(&machine, UNIT, |text| text.replace("\n[Install]", &format!("{own}\n[Install]")));
    // What others have put there also outlives another apply.
    applied(&machine, &["t.scst", "t.ring"], options(true, false));
    assert!(text(&machine, UNIT).contains(own), "{whole}");
    let told = rolled_back(&machine);
    let rest = text(&machine, UNIT);
    assert_eq!(rest.lines().filter(|line| line.starts_with("ExecStart=")).count(), 1, "{rest}");
    assert!(rest.contains(own) && rest.contains("[Service]"), "{rest}");
    assert!(
        machine
            .source()
            .link("/etc/systemd/system/multi-user.target.wants/lunet-tune.service")
            .is_some()
    );
    assert!(told.kept.iter().any(|kept| kept.starts_with("lunet-tune.service stays enabled")));
    let targets = "/etc/systemd/system/lunet-tune-targets.service";
    assert_eq!(machine.source().read(targets), None, "nobody has touched it");
}

#[test]
fn wherever_a_line_was_added_it_stays_and_whatever_kills_a_rollback() {
    let make = |at: usize, path: &str| {
        let machine = proxmox();
        applied(&machine, &[], options(true, false));
        edit(&machine, path, |text| {
            let mut lines: Vec<&str> = text.lines().collect();
            lines.insert(at.min(lines.len()), "# mine");
            lines.join("\n")
        });
        machine
    };
    for path in [SYSCTL, MODPROBE, ISCSID, "/etc/udev/rules.d/90-lunet-tune.rules"] {
        for line in [0, 1, 2, 9] {
            let whole = make(line, path);
            let changes = whole.changes.get();
            rolled_back(&whole);
            let mut rest: Vec<String> = text(&whole, path).lines().map(str::to_owned).collect();
            rest.retain(|line| line != "# mine");
            let before: Vec<String> =
                fake().source().read(path).unwrap_or_default().lines().map(str::to_owned).collect();
            assert_eq!(rest, before, "{path}, {line}");
            for at in 0..whole.changes.get() - changes {
                let machine = make(line, path);
                machine.die_at.set(Some(machine.changes.get() + at));
                let _ = rollback(&machine, STATE);
                machine.revive();
                rolled_back(&machine);
                assert_eq!(machine.state(), whole.state(), "{path}, {line}, killed at {at}");
            }
        }
    }
}

#[test]
fn permissions_that_were_changed_stay() {
    let machine = fake();
    applied(&machine, &["t.cmds"], options(false, false));
    let kept = machine.get(ISCSID).expect("it can").expect("there");
    machine.put(ISCSID, Some(&Kept { mode: 0o600, ..kept })).expect("it can");
    rolled_back(&machine);
    let kept = machine.get(ISCSID).expect("it can").expect("there");
    assert_eq!(kept.mode, 0o600);
    assert!(String::from_utf8_lossy(&kept.bytes).contains("cmds_max = 128"));
}

#[test]
fn values_that_somebody_has_changed_since_stay() {
    let machine = fake();
    applied(&machine, &["t.rmem", "t.tcp", "t.random", "t.ring", "t.vol"], options(false, false));
    applied(&machine, &["t.rmem"], options(false, false));
    // The read-ahead is guarded only; the kernel works it out anew when `add_random` goes back.
    let ahead = "/sys/block/nvme0n1/queue/read_ahead_kb";
    machine.overlay(&format!("/proc/sys/net/core/rmem_max: 99\n{ahead}: 64\n"));
    machine.overlay("$ zfs get -Hp -o value,source volthreading tank/vm\n| maybe\tlocal\n");
    machine.overlay(
        "$ ethtool -g eth0\n| Ring parameters for eth0:\n| Current hardware settings:\n| RX:\t\t77\n",
    );
    let told = rolled_back(&machine);
    let is = |path: &str| machine.source().text(path);
    assert_eq!(is("/proc/sys/net/core/rmem_max").as_deref(), Some("99"));
    assert_eq!(is(ahead).as_deref(), Some("64"));
    assert_eq!(is("/sys/block/nvme0n1/queue/add_random").as_deref(), Some("0"));
    assert_eq!(is("/proc/sys/net/ipv4/tcp_rmem").as_deref(), Some("4096\t131072\t6291456"));
    assert!(
        !machine.ran.borrow().iter().any(|line| line.contains("1024") || line.contains("inherit"))
    );
    assert_eq!(told.kept.len(), 4, "{:?}", told.kept);
    let wanted = "/proc/sys/net/core/rmem_max is 99: somebody changed it after `lunet tune` had set \
                  16777216, so it stays; before it was 212992";
    assert!(told.kept.contains(&wanted.to_owned()), "{:?}", told.kept);
}

#[test]
fn what_another_start_has_made_of_read_ahead_goes_back() {
    let machine = fake();
    let before = machine.state();
    applied(&machine, &["t.random"], options(true, false));
    machine.overlay(
        "/proc/sys/kernel/random/boot_id: two\n/sys/block/nvme0n1/queue/read_ahead_kb: 2560\n",
    );
    assert_eq!(rolled_back(&machine).kept, [] as [String; 0]);
    machine.overlay("/proc/sys/kernel/random/boot_id: one\n");
    assert_eq!(machine.state(), before);
}

#[test]
fn what_could_not_be_taken_back_is_all_that_another_rollback_touches() {
    let machine = fake();
    applied(&machine, &["t.rmem", "t.sched"], options(true, false));
    *machine.read_only.borrow_mut() = Some("/etc/udev".to_owned());
    let told = rollback(&machine, STATE).expect("it can");
    assert_eq!(told.left.len(), 1, "{:?}", told.left);
    let journal = Journal::read(&machine, STATE).expect("it can").expect("there");
    let steps: Vec<String> =
        journal.layers.iter().flat_map(|layer| &layer.steps).map(|own| own.step.name()).collect();
    assert_eq!(steps, ["/etc/udev/rules.d/90-lunet-tune.rules"]);
    // Meanwhile somebody sets it.
    machine.overlay("/proc/sys/net/core/rmem_max: 99\n");
    *machine.read_only.borrow_mut() = None;
    rolled_back(&machine);
    assert_eq!(machine.source().text("/proc/sys/net/core/rmem_max").as_deref(), Some("99"));
}

#[test]
fn a_layer_below_one_that_could_not_be_taken_back_waits_for_it() {
    let machine = fake();
    let before = machine.state();
    applied(&machine, &["t.rmem"], options(true, false));
    let mut again = plan_of(&machine, &["t.rmem"]);
    again.items[0].wanted = Some("33554432".to_owned());
    apply(&machine, &again, options(true, false)).expect("it can");
    *machine.read_only.borrow_mut() = Some("/etc/sysctl.d".to_owned());
    assert_eq!(rollback(&machine, STATE).expect("it can").left.len(), 1);
    *machine.read_only.borrow_mut() = None;
    assert_eq!(rolled_back(&machine).kept, [] as [String; 0]);
    assert_eq!(machine.state(), before);
}

#[test]
fn a_second_apply_that_fails_leaves_the_unit_of_the_first_enabled() {
    let machine = fake();
    applied(&machine, &["t.gov"], options(true, false));
    let first = machine.state();
    let plan = plan_of(&machine, &["t.ring"]);
    let before = machine.changes.get();
    let probe = fake();
    applied(&probe, &["t.gov"], options(true, false));
    let start = probe.changes.get();
    applied(&probe, &["t.ring"], options(true, false));
    for at in 0..probe.changes.get() - start {
        machine.fail_at.set(Some(before.max(machine.changes.get()) + at));
        apply(&machine, &plan, options(true, false)).expect_err("it broke");
        assert_eq!(machine.state(), first, "failed at {at}");
    }
}

#[test]
fn a_file_that_is_no_text_is_not_touched() {
    let machine = fake();
    applied(&machine, &["t.cmds"], options(false, false));
    let journal = Journal::read(&machine, STATE).expect("it can").expect("there");
    let step = journal.layers[0].steps.iter().find(|own| matches!(own.step, Step::File { .. }));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file").display().to_string();
    std::fs::write(&file, b"\xff\xfe\n").expect("it can");
    let Some(Step::File { before, after, edits, .. }) = step.map(|own| own.step.clone()) else {
        panic!("no file: {journal:?}")
    };
    let step = Step::File { path: file.clone(), before, after, edits, new_directory: false };
    let fault = step.undo(&LiveMachine).expect_err("it is no text");
    assert!(fault.0.contains("is no UTF-8 text"), "{fault}");
    assert_eq!(std::fs::read(&file).expect("there"), b"\xff\xfe\n");
}

#[test]
fn a_journal_of_another_form_says_whose_it_is() {
    let machine = fake();
    machine.overlay(&format!("{STATE}/journal.json: {{\"version\": 1, \"layers\": []}}\n"));
    let fault = rollback(&machine, STATE).expect_err("no");
    assert!(fault.0.contains("it has the form 1, and this lunet knows 2"), "{fault}");
}

#[test]
fn truenas_gets_back_a_tunable_that_was_disabled() {
    let machine = fake().truenas();
    machine.entry("net.core.rmem_max", &json!({"enabled": false, "comment": "mine"}));
    // One that has the value already differs by that only.
    for value in ["300000", "16777216"] {
        machine.entry("net.core.rmem_max", &json!({"value": value}));
        let before = machine.state();
        applied(&machine, &["t.rmem"], options(true, true));
        assert!(verify(&machine, STATE).expect("it can").drift.is_empty());
        machine.entry("net.core.rmem_max", &json!({"comment": "still mine"}));
        rolled_back(&machine);
        machine.entry("net.core.rmem_max", &json!({"comment": "mine"}));
        assert_eq!(machine.state(), before, "{value}");
    }
}

#[test]
fn truenas_keeps_what_was_changed_there_since() {
    let machine = fake().truenas();
    let command = "echo none > /sys/block/nvme0n1/queue/scheduler";
    machine.script(command, false);
    let before = machine.state();
    applied(&machine, &["t.sched"], options(true, true));
    rolled_back(&machine);
    assert_eq!(machine.state(), before, "a script that was there and disabled");

    applied(&machine, &["t.rmem", "t.aspm"], options(true, true));
    assert_eq!(machine.extra_options(), "quiet pcie_aspm=off");
    machine.entry("net.core.rmem_max", &json!({"value": "777"}));
    assert_eq!(verify(&machine, STATE).expect("it can").drift.len(), 1);
    machine.set_options("pcie_aspm=off iommu=pt");
    assert_eq!(verify(&machine, STATE).expect("it can").drift.len(), 1);
    let told = rolled_back(&machine);
    assert_eq!(machine.extra_options(), "pcie_aspm=default iommu=pt");
    assert_eq!(told.kept.len(), 2, "{:?}", told.kept);
    let wanted =
        "tunable net.core.rmem_max was changed to 777 since, and stays; before it was 300000";
    assert!(told.kept.contains(&wanted.to_owned()), "{:?}", told.kept);
}

#[test]
fn rollback_tells_of_the_initial_ram_disk_as_apply_does() {
    for (make, program) in [
        (proxmox as fn() -> Fake, "`update-initramfs -u -k all`"),
        (
            || Fake::new(&format!("{TREE}/etc/dracut.conf.d/a.conf: x\n")),
            "`dracut --regenerate-all --force`",
        ),
        (fake, "rebuild it"),
    ] {
        let machine = make();
        let plan = plan_of(&machine, &["t.arc"]);
        let notes = apply(&machine, &plan, options(true, false)).expect("it can").notes;
        assert!(notes.len() == 1 && notes[0].contains(program), "{notes:?}");
        assert_eq!(rolled_back(&machine).notes, notes);
        apply(&machine, &plan, options(false, false)).expect("it can");
        assert_eq!(rolled_back(&machine).notes, [] as [String; 0]);
    }
}

#[test]
fn a_command_line_of_another_boot_loader_is_not_proxmoxs() {
    let machine = fake();
    machine.overlay("- /etc/default/grub\n/etc/kernel/cmdline: root=/dev/vda1\n");
    let error = apply(&machine, &plan_of(&machine, &["t.aspm"]), options(true, false));
    let error = error.expect_err("no").to_string();
    assert!(error.contains("add `pcie_aspm=off` to your boot loader's configuration"), "{error}");
}

#[test]
fn words_with_spaces_are_one_word() {
    let line = "root=/dev/vda1  dyndbg=\"file a.c +p; file  b.c +p\" quiet";
    let word = |name: &str, value: &str| (Key::Word(name.to_owned()), format!("{name}={value}"));
    let (with, edits) = set(line, vec![word("file", "x"), word("quiet", "1")]);
    assert_eq!(with, "root=/dev/vda1 dyndbg=\"file a.c +p; file  b.c +p\" file=x quiet=1");
    let (rest, told) = unset(&format!("{with} splash"), &edits);
    assert_eq!(rest, "root=/dev/vda1 dyndbg=\"file a.c +p; file  b.c +p\" quiet splash");
    assert_eq!(told, [] as [String; 0]);
    assert_eq!(unset(&rest, &edits), (rest.clone(), Vec::new()), "once more changes nothing");
}

const NFS: &str = "/etc/nfs.conf";

/// A line of one section is none of another's, and comes back although the file was edited.
#[test]
fn a_line_is_set_in_its_section() {
    let machine = fake();
    let before = text(&machine, NFS);
    applied(&machine, &["t.rdma", "t.threads"], options(false, false));
    let wanted =
        "[general]\nrdma=n\n[nfsd]\nrdma = y\n# rdma=n\nthreads = 64\n[mountd]\nthreads=2\n";
    assert_eq!(text(&machine, NFS), wanted);
    edit(&machine, NFS, |text| text.replace("threads=2", "threads=4"));
    rolled_back(&machine);
    assert_eq!(text(&machine, NFS), before.replace("threads=2", "threads=4"));
}

#[test]
fn a_section_that_is_missing_is_added_and_taken_out() {
    let line = |text: &str| crate::apply::persist::conf_line(text, Some("nfsd"), "rdma", "y");
    let (with, edits) = line("[general]\nrdma=n\n");
    assert_eq!(with, "[general]\nrdma=n\n[nfsd]\nrdma = y\n");
    assert_eq!(unset(&with, &edits), ("[general]\nrdma=n\n".to_owned(), vec![]));
    // What somebody has put there since needs its head.
    let more = format!("{with}threads = 8\n");
    assert_eq!(unset(&more, &edits).0, "[general]\nrdma=n\n[nfsd]\nthreads = 8\n");
    let (with, edits) = line("");
    assert_eq!(with, "[nfsd]\nrdma = y\n");
    assert_eq!(unset(&with, &edits).0, "");
}
