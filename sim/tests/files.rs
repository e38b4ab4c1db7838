//! What a power loss does to files: contents and names that were not synced.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use lunet_backends::{FileSpec, Storage, VolumeSpec};
use lunet_files as files;
use lunet_os::fs as os;
use lunet_os::simulated::{self, FileFaults, FileSystem, Loss, Process, World};
use rustix::fs::RenameFlags;
use tempfile::TempDir;

/// Seeds of worlds, so that every choice is made.
const SEEDS: u64 = 100;

/// Lets something happen to a folder in a world, loses the power, and gives back what is there then: names with their
/// contents.
fn left(loss: Loss, seed: u64, happens: impl FnOnce(&Path)) -> BTreeSet<(String, String)> {
    let world = World::new(seed);
    let folder = TempDir::new().expect("a folder");
    let (data, removed) = (folder.path().join("data"), folder.path().join("removed"));
    fs::create_dir(&data).and_then(|()| fs::create_dir(&removed)).expect("folders");
    let system = simulated::part::<FileSystem>();
    system.track(&data, &removed).expect("it can be tracked");
    happens(&data);
    system.power_loss(loss).expect("it is lost");
    drop(world);
    let entries = fs::read_dir(&data).expect("a folder").map(|entry| entry.expect("one").path());
    let text = |path: &PathBuf| fs::read_to_string(path).expect("text");
    let name = |path: &PathBuf| path.file_name().expect("a name").to_string_lossy().into_owned();
    entries.map(|path| (name(&path), text(&path))).collect()
}

/// All that may be left.
fn all_left(happens: impl Fn(&Path)) -> BTreeSet<BTreeSet<(String, String)>> {
    (0..SEEDS).map(|seed| left(Loss::Some, seed, &happens)).collect()
}

fn only(name: &str, text: &str) -> BTreeSet<(String, String)> {
    BTreeSet::from([(name.to_owned(), text.to_owned())])
}

/// A file that is there for good.
fn stable(path: &Path, text: &str) {
    let file = os::create(path, 0o600).expect("it is made");
    os::write(&file, text.as_bytes()).expect("it is written");
    os::sync(&file).expect("it is synced");
    os::sync_directory(path.parent().expect("a folder")).expect("it is synced");
}

#[test]
fn a_file_that_was_never_synced_may_be_gone_empty_or_cut() {
    let makes = |data: &Path| {
        let file = os::create(&data.join("a"), 0o600).expect("it is made");
        os::write(&file, b"xyz").expect("it is written");
    };
    assert_eq!(left(Loss::All, 1, makes), BTreeSet::new());
    assert_eq!(left(Loss::Nothing, 1, makes), only("a", "xyz"));
    let wanted = ["", "x", "xy", "xyz"].map(|text| only("a", text));
    assert_eq!(all_left(makes), wanted.into_iter().chain([BTreeSet::new()]).collect());
}

#[test]
fn what_was_synced_stays_and_its_name_only_with_its_directory() {
    let makes = |data: &Path| stable(&data.join("a"), "x");
    assert_eq!(left(Loss::All, 1, makes), only("a", "x"));
    assert_eq!(all_left(makes), BTreeSet::from([only("a", "x")]));
    let without_directory = |data: &Path| {
        let file = os::create(&data.join("a"), 0o600).expect("it is made");
        os::write(&file, b"x").and_then(|()| os::sync(&file)).expect("it is written");
    };
    let either = BTreeSet::from([BTreeSet::new(), only("a", "x")]);
    assert_eq!(all_left(without_directory), either);
}

#[test]
fn a_rename_without_a_sync_of_the_file_may_leave_an_empty_one() {
    let replaces = |data: &Path| {
        stable(&data.join("a"), "old");
        let file = os::create(&data.join("b"), 0o600).expect("it is made");
        os::write(&file, b"new").expect("it is written");
        os::rename(&data.join("b"), &data.join("a")).expect("it is renamed");
        os::sync_directory(data).expect("it is synced");
    };
    assert_eq!(left(Loss::All, 1, replaces), only("a", ""));
    let wanted = ["", "n", "ne", "new"].map(|text| only("a", text));
    assert_eq!(all_left(replaces), BTreeSet::from(wanted));
}

#[test]
fn names_are_lost_from_some_point_on() {
    let renames = |data: &Path| {
        stable(&data.join("a"), "1");
        stable(&data.join("b"), "2");
        os::rename(&data.join("a"), &data.join("c")).expect("it is renamed");
        os::rename_with(&data.join("b"), &data.join("c"), RenameFlags::EXCHANGE).expect("it can");
        os::rename(&data.join("c"), &data.join("b")).expect("it replaces");
        os::remove(&data.join("b")).expect("it is removed");
    };
    let two = |one: (&str, &str), other: (&str, &str)| {
        BTreeSet::from([one, other].map(|(name, text)| (name.to_owned(), text.to_owned())))
    };
    let wanted = BTreeSet::from([
        two(("a", "1"), ("b", "2")),
        two(("c", "1"), ("b", "2")),
        two(("c", "2"), ("b", "1")),
        only("b", "2"),
        BTreeSet::new(),
    ]);
    assert_eq!(all_left(renames), wanted);
}

#[test]
fn a_file_moves_between_directories_wholly_or_not_at_all() {
    for synced in ["one", "other"] {
        let moves = |data: &Path| {
            let folders = ["one", "other"].map(|name| data.with_file_name(name));
            folders.iter().for_each(|folder| fs::create_dir_all(folder).expect("a folder"));
            let system = simulated::part::<FileSystem>();
            let root = data.parent().expect("a folder");
            system.track(root, &root.join("removed")).expect("it can be tracked");
            stable(&folders[0].join("a"), "1");
            os::rename(&folders[0].join("a"), &folders[1].join("a")).expect("it moves");
            os::sync_directory(&data.with_file_name(synced)).expect("it is synced");
            system.power_loss(Loss::All).expect("it is lost");
            assert!(folders[1].join("a").exists() && !folders[0].join("a").exists());
        };
        left(Loss::All, 1, moves);
    }
}

#[test]
fn the_length_of_a_file_is_the_old_one_or_the_new_one() {
    let grows = |data: &Path| {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create_new(true);
        let file = os::open(&data.join("a"), options).expect("it is made");
        os::sync(&file).and_then(|()| os::sync_directory(data)).expect("it is synced");
        os::set_len(&file, 2).and_then(|()| os::set_len(&file, 3)).expect("it grows");
    };
    assert_eq!(left(Loss::All, 1, grows), only("a", ""));
    let wanted = ["", "\0\0", "\0\0\0"].map(|text| only("a", text));
    assert_eq!(all_left(grows), BTreeSet::from(wanted));
}

#[test]
fn what_a_failed_sync_was_about_is_lost_although_the_next_one_succeeds() {
    let fails = |data: &Path| {
        let path = data.join("a");
        stable(&path, "old");
        let file = os::open(&path, OpenOptions::new().write(true)).expect("it is there");
        os::write(&file, b"new").expect("it is written");
        let both = move || {
            let system = simulated::part::<FileSystem>();
            system.disturb(FileFaults { sync: 1000, ..FileFaults::default() });
            assert_eq!(os::sync(&file).expect_err("a fault").raw_os_error(), Some(5));
            system.disturb(FileFaults::default());
            os::sync(&file).expect("it is told once");
        };
        // Faults are those of a process, not of the thread that runs the world.
        let thread = lunet_os::thread::spawn("server", both).expect("a thread");
        thread.join().expect("it ends");
    };
    let world = World::new(7);
    let folder = TempDir::new().expect("a folder");
    let (data, removed) = (folder.path().join("data"), folder.path().join("removed"));
    fs::create_dir(&data).and_then(|()| fs::create_dir(&removed)).expect("folders");
    let system = simulated::part::<FileSystem>();
    system.track(&data, &removed).expect("it can be tracked");
    let path = data.clone();
    let thread = world.spawn_in(Process(1), "server", move || fails(&path)).expect("a thread");
    thread.join().expect("it ends");
    system.power_loss(Loss::Nothing).expect("it is lost");
    assert_eq!(fs::read_to_string(data.join("a")).expect("text"), "old");
}

#[test]
fn a_file_that_is_replaced_is_the_old_one_or_the_new_one_and_the_new_one_in_the_end() {
    let replaces = |data: &Path| {
        files::replace(&data.join("a"), b"old").expect("it is made");
        files::replace(&data.join("a"), b"new").expect("it is replaced");
        files::replace(&data.join("b"), b"b").expect("it is made");
        assert!(files::remove(&data.join("b")).expect("it is removed"));
    };
    for loss in [Loss::All, Loss::Nothing] {
        let left = left(loss, 1, replaces);
        assert!(left.contains(&("a".into(), "new".into())), "{left:?}");
        assert!(!left.iter().any(|(name, _)| name == "b"), "{left:?}");
    }
}

#[test]
fn a_directory_that_was_made_stays_with_those_above_it() {
    let makes = |data: &Path| {
        files::make_directory(&data.join("a/b"), 0o700).expect("it is made");
        simulated::part::<FileSystem>().power_loss(Loss::All).expect("it is lost");
        assert!(data.join("a/b").is_dir());
        fs::remove_dir_all(data.join("a")).expect("it goes");
    };
    left(Loss::All, 1, makes);
}

#[test]
fn a_volume_whose_creation_was_cut_short_is_made_stable_by_the_next_start() {
    let opens = |data: &Path| {
        let path = data.join("v.img");
        // As a server leaves it that is killed before it syncs.
        let mut options = OpenOptions::new();
        let file = os::open(&path, options.write(true).create_new(true)).expect("it is made");
        os::set_len(&file, 1 << 20).expect("it grows");
        let mut spec = FileSpec::new(path.clone());
        (spec.size, spec.create) = (Some(1 << 20), true);
        drop(lunet_backends::open(&VolumeSpec::new(Storage::File(spec))).expect("it is taken"));
        simulated::part::<FileSystem>().power_loss(Loss::All).expect("it is lost");
        assert_eq!(fs::metadata(&path).expect("it stays").len(), 1 << 20);
    };
    left(Loss::Nothing, 1, opens);
}
