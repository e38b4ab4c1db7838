//! Against a program that only says it were `zfs`.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Instant;

use super::*;

/// A `zfs` that writes down its arguments, and then does what the script says.
struct Fake {
    directory: tempfile::TempDir,
    zfs: Zfs,
}

impl Fake {
    fn new(script: &str, limit: Duration) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("zfs");
        let log = directory.path().join("calls");
        let text = format!("#!/bin/sh\nprintf '<%s>' \"$@\" >> {}\n{script}\n", log.display());
        // Written by another process: a file that we had open for writing could not be run while
        // a child of another test, made in that moment, still has it.
        let draft = directory.path().join("draft");
        fs::write(&draft, text).unwrap();
        assert!(Command::new("cp").arg(&draft).arg(&file).status().unwrap().success());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let zfs = Zfs::find(Some(directory.path().as_os_str()), limit).expect("it is there");
        Self { directory, zfs }
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.directory.path().join("calls")).unwrap_or_default()
    }
}

const LIMIT: Duration = Duration::from_secs(20);

fn volume() -> Dataset {
    Dataset::new("tank/vm/disk-1").expect("a name")
}

#[test]
fn each_function_is_one_command() {
    let fake = Fake::new("", LIMIT);
    let (zfs, v) = (&fake.zfs, volume());
    zfs.snapshot(&v, "before:upgrade").unwrap();
    zfs.clone_to(&v, "s1", &Dataset::new("tank/copy").unwrap()).unwrap();
    zfs.rollback(&v, "s1").unwrap();
    zfs.destroy_snapshot(&v, "s1").unwrap();
    zfs.destroy(&v).unwrap();
    zfs.resize(&v, 20 << 30).unwrap();
    let expected = "<snapshot><tank/vm/disk-1@before:upgrade><clone><tank/vm/disk-1@s1><tank/copy>\
        <rollback><tank/vm/disk-1@s1><destroy><tank/vm/disk-1@s1><destroy><tank/vm/disk-1>\
        <set><volsize=21474836480><tank/vm/disk-1>";
    assert_eq!(fake.calls(), expected);
}

#[test]
fn snapshots_are_listed() {
    let lines = r"printf 'tank/vm/disk-1@a\t1700000000\t0\t7\ntank/vm/disk-1@b-2\t1700000001\t8192\t18446744073709551615\n'";
    let fake = Fake::new(lines, LIMIT);
    let expected =
        [("a", 1_700_000_000, 0, "7"), ("b-2", 1_700_000_001, 8192, "18446744073709551615")].map(
            |(name, created, used, guid)| ZfsSnapshot {
                name: name.to_owned(),
                created,
                used,
                guid: guid.to_owned(),
            },
        );
    assert_eq!(fake.zfs.snapshots(&volume()).unwrap(), expected);
    let call = "<list><-H><-p><-t><snapshot><-d><1><-s><createtxg><-o><name,creation,used,guid>\
        <tank/vm/disk-1>";
    assert_eq!(fake.calls(), call);
    assert_eq!(Fake::new("", LIMIT).zfs.snapshots(&volume()).unwrap(), []);
    for odd in [
        "tank/other@a\t1\t1\t1",
        "tank/vm/disk-1@a\tyesterday\t1\t1",
        "tank/vm/disk-1@a\t1\t1",
        "nonsense",
    ] {
        let fake = Fake::new(&format!("echo '{odd}'"), LIMIT);
        let error = fake.zfs.snapshots(&volume()).unwrap_err();
        assert!(matches!(error, ZfsError::Answer { .. }), "{error:?}");
    }
}

/// Prints two snapshots of each volume that it is asked about, later ones of all behind the others.
const TWO_OF_EACH: &str = r#"shift 11
for n in 1 2; do for v in "$@"; do printf '%s@s%s\t%s\t0\t%s%s\n' "$v" $n $n 7 $n; done; done"#;

fn volumes(count: usize) -> Vec<Dataset> {
    (0..count).map(|n| Dataset::new(&format!("tank/v{n}")).expect("a name")).collect()
}

#[test]
fn snapshots_of_many_volumes_are_listed_by_few_commands() {
    let fake = Fake::new(TWO_OF_EACH, LIMIT);
    let all = volumes(300);
    let found = fake.zfs.snapshots_of(&all);
    assert_eq!(fake.calls().matches("<list>").count(), 3, "128, 128 and 44");
    assert_eq!(found.len(), 300);
    for volume in &all {
        let known = found[volume].as_ref().expect("it is listed");
        let names: Vec<&str> = known.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["s1", "s2"], "{volume}");
    }
    assert!(fake.zfs.snapshots_of(&[]).is_empty());
    let none = Fake::new("", LIMIT).zfs.snapshots_of(&all[..2]);
    assert!(none.len() == 2 && none.values().all(|one| one.as_ref().is_ok_and(Vec::is_empty)));
}

#[test]
fn a_volume_that_is_not_there_hides_no_other() {
    // As zfs does: it lists the others, and fails.
    let script = format!(
        "{TWO_OF_EACH}\ncase \"$*\" in *v7*) echo \"cannot open 'tank/v7'\" >&2; exit 1;; esac"
    );
    let fake = Fake::new(&script, LIMIT);
    let all = volumes(200);
    let found = fake.zfs.snapshots_of(&all);
    // They are asked about alone.
    assert!(all[..128].iter().all(|volume| !found.contains_key(volume)));
    assert!(all[128..].iter().all(|volume| found[volume].is_ok()));
    assert_eq!(fake.zfs.snapshots(&all[6]).expect("it is there").len(), 2);
    // Nor does an answer about another volume count.
    let odd = Fake::new("printf 'tank/other@a\\t1\\t1\\t1\\n'", LIMIT);
    assert!(odd.zfs.snapshots_of(&all[..2]).is_empty());
}

#[test]
fn a_pool_that_hangs_is_waited_for_once() {
    let fake = Fake::new("exec sleep 20", Duration::from_millis(200));
    let all = volumes(300);
    let found = fake.zfs.snapshots_of(&all);
    assert_eq!(fake.calls().matches("<list>").count(), 1);
    let hangs = |one: &Result<_, ZfsError>| matches!(one, Err(ZfsError::Hangs { .. }));
    assert!(all.iter().all(|volume| hangs(&found[volume])));
}

#[test]
fn what_the_command_says_is_in_the_error() {
    let fake = Fake::new("echo \"cannot open 'tank': no such pool\" >&2\necho >&2; exit 1", LIMIT);
    let error = fake.zfs.snapshot(&volume(), "s").unwrap_err().to_string();
    assert_eq!(error, "zfs snapshot tank/vm/disk-1@s: cannot open 'tank': no such pool");
    let error = Fake::new("exit 3", LIMIT).zfs.destroy(&volume()).unwrap_err().to_string();
    assert_eq!(error, "zfs destroy tank/vm/disk-1: exit status: 3");
}

#[test]
fn much_output_holds_nobody_up() {
    let fake = Fake::new("yes 'a long line of nothing' | head -c 4000000 >&2; exit 1", LIMIT);
    assert!(matches!(fake.zfs.destroy(&volume()), Err(ZfsError::Refused { .. })));
}

#[test]
fn a_command_that_hangs_is_given_up() {
    let fake = Fake::new("sleep 20 & exec sleep 20", Duration::from_millis(200));
    let start = Instant::now();
    let error = fake.zfs.snapshot(&volume(), "s").unwrap_err();
    assert!(matches!(error, ZfsError::Hangs { .. }), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(15));
}

#[test]
fn without_the_command_the_error_says_where_it_was_looked_for() {
    let empty = tempfile::tempdir().unwrap();
    let error = Zfs::find(Some(empty.path().as_os_str()), LIMIT).unwrap_err().to_string();
    assert!(error.contains(&empty.path().display().to_string()), "{error}");
}

#[test]
fn names_that_would_mean_something_else_are_refused() {
    let long = format!("tank/{}", "x".repeat(251));
    let names = ["", "tank", "/tank", "tank/", "tank//a", "tank/../a", "tank/-r", "-r/a"];
    let names = names.iter().chain(&["tank/a@s", "tank/a b", "tank/a\n", "tank/a;b", "tänk/a"]);
    for name in names.copied().chain([long.as_str()]) {
        assert!(matches!(Dataset::new(name), Err(ZfsError::Name { .. })), "{name}");
    }
    let fake = Fake::new("", LIMIT);
    for snapshot in ["", "-r", "a@b", "a/b", "a,b", "a%b", ".."] {
        let refused = fake.zfs.destroy_snapshot(&volume(), snapshot);
        assert!(matches!(refused, Err(ZfsError::Name { .. })), "{snapshot}");
    }
    assert_eq!(fake.calls(), "");
}

#[test]
fn a_device_is_known_by_its_name_and_by_its_number() {
    assert_eq!(Dataset::of_device(&volume().device()).unwrap(), volume());
    let root = tempfile::tempdir().unwrap();
    let names = root.path().join("zvol");
    fs::create_dir_all(names.join("tank/vm")).unwrap();
    for device in ["zd0", "zd16", "zd32"] {
        fs::write(root.path().join(device), "").unwrap();
    }
    symlink("../../zd0", names.join("tank/other")).unwrap();
    symlink("../../../zd16", names.join("tank/vm/disk-1")).unwrap();
    let of = |device: &Path| Dataset::of_device_below(device, &names);
    assert_eq!(of(&root.path().join("zd16")).unwrap(), volume());
    assert_eq!(of(&names.join("tank/vm/disk-1")).unwrap(), volume());
    for other in [root.path().join("zd32"), PathBuf::from("/dev/null"), "/nonexistent".into()] {
        assert!(matches!(of(&other), Err(ZfsError::NotAZvol { .. })), "{other:?}");
    }
    let error = of(&names.join("tank/../../etc")).unwrap_err();
    assert!(matches!(error, ZfsError::Name { .. }), "{error:?}");
}

#[test]
fn nothing_is_run_for_another_process_but_what_the_functions_run() {
    let fake = Fake::new("", LIMIT);
    let right: &[&[&str]] = &[
        &["snapshot", "tank/vm@a"],
        &["rollback", "tank/vm@a"],
        &["destroy", "tank/vm@a"],
        &["destroy", "tank/vm"],
        &["clone", "tank/vm@a", "tank/copy"],
        &["set", "volsize=1024", "tank/vm"],
        &[&LIST[..], &["tank/vm"]].concat(),
        &[&LIST[..], &["tank/vm", "tank/other"]].concat(),
    ];
    for arguments in right {
        fake.zfs.run_checked(arguments).unwrap();
    }
    let before = fake.calls();
    let wrong: &[&[&str]] = &[
        &[],
        &["list"],
        &["snapshot", "-r", "tank/vm@a"],
        &["snapshot", "tank/vm@a@b"],
        &["destroy", "-r"],
        &["destroy", "tank"],
        &["destroy", "tank/../vm"],
        &["clone", "tank/vm@a", "-o"],
        &["set", "volsize=-1", "tank/vm"],
        &["set", "mountpoint=/etc", "tank/vm"],
        &["send", "tank/vm@a"],
        &LIST,
        &[&LIST[..], &["tank/vm", "-r"]].concat(),
        &[&LIST[..], &["tank/vm"; AT_ONCE + 1]].concat(),
    ];
    for arguments in wrong {
        let refused = fake.zfs.run_checked(arguments);
        assert!(matches!(refused, Err(ZfsError::Refused { .. })), "{arguments:?}");
    }
    assert_eq!(fake.calls(), before);
}
