//! Snapshots, clones and rollbacks of volumes in files.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use lunet_backends::snapshot::{self, SnapshotError, clone, remove, rollback, tidy};
use lunet_backends::{Access, Volume, VolumeSpec, grow, open, open_in_place_of};
use lunet_block::ByteRange;
use lunet_ring::DriverChoice;

use crate::common::{LoopDevice, Mounted, OnLoop, file};

const SIZE: u64 = 16 << 20;
const MIB: u64 = 1 << 20;

/// XFS and btrfs want at least 300 MiB.
const DISK: u64 = 512 << 20;

/// Both file systems that can, mounted; those that this machine has.
fn file_systems() -> Vec<(Mounted, LoopDevice)> {
    let make: [&[&str]; 2] = [&["mkfs.xfs", "-q"], &["mkfs.btrfs", "-q"]];
    let made = make.iter().filter_map(|mkfs| {
        let device = LoopDevice::new(DISK, 512)?;
        Some((Mounted::with(mkfs, device.path())?, device))
    });
    made.collect()
}

fn spec(path: &Path, size: u64, access: Access) -> VolumeSpec {
    VolumeSpec { block_size: Some(4096), ..file(path, size, access) }
}

fn opened(path: &Path, access: Access) -> Volume {
    open(&spec(path, SIZE, access)).unwrap_or_else(|e| panic!("{e}"))
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    // The locks of volumes are no copies.
    names.retain(|name| name != "lost+found" && !name.ends_with(".lunet"));
    names.sort();
    names
}

#[test]
fn a_snapshot_keeps_what_was_written_before_it() {
    for (mounted, _device) in file_systems() {
        let directory = mounted.path();
        for access in [Access::Buffered, Access::Direct] {
            let path = directory.join("volume");
            let [s1, s2, copy] = ["s1", "s2", "copy"].map(|name| directory.join(name));
            let volume = opened(&path, access);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
            let mut on_loop = OnLoop::new(volume.clone(), DriverChoice::Auto);
            let before = volume.slow().space().unwrap();
            // Not flushed: an answered write is in the snapshot all the same.
            on_loop.write(0, &vec![1; 8 * MIB as usize]).unwrap();
            snapshot::snapshot(&path, &s1).unwrap();
            on_loop.write(4 * MIB, &vec![2; 8 * MIB as usize]).unwrap();
            snapshot::snapshot(&path, &s2).unwrap();
            on_loop.write(0, &[3; 4096]).unwrap();
            let first = fs::read(&s1).unwrap();
            assert!(first.iter().enumerate().all(|(i, b)| *b == u8::from(i < 8 << 20)));
            let second = fs::read(&s2).unwrap();
            assert_eq!([second[0], second[4 << 20], second[12 << 20]], [1, 2, 0]);
            assert_eq!(s1.metadata().unwrap().permissions().mode() & 0o777, 0o400);
            // What the file system frees meanwhile, in its own time, may be more.
            let used = before.available.saturating_sub(volume.slow().space().unwrap().available);
            assert!(used < 24 * MIB, "the blocks are not shared: {used} bytes");

            clone(&s1, &copy).unwrap();
            assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o777, 0o600);
            let mut cloned = OnLoop::new(opened(&copy, access), DriverChoice::Epoll);
            cloned.write(0, &[9; 4096]).unwrap();
            assert_eq!(cloned.read(4096, 4096), Ok(vec![1; 4096]));
            assert_eq!(on_loop.read(0, 4096), Ok(vec![3; 4096]));
            assert_eq!(fs::read(&s1).unwrap()[..4096], [1; 4096]);

            for (target, error) in
                [(&s1, clone(&s2, &s1)), (&copy, snapshot::snapshot(&path, &copy))]
            {
                let text = error.as_ref().unwrap_err().to_string();
                assert!(matches!(error, Err(SnapshotError::Exists { .. })), "{text}");
                assert!(text.starts_with(&target.display().to_string()), "{text}");
            }
            assert_eq!(names(directory), ["copy", "s1", "s2", "volume"]);
            drop((volume, on_loop, cloned));
            for path in [&path, &s1, &s2, &copy] {
                remove(path).unwrap();
            }
        }
    }
}

#[test]
fn a_rollback_exchanges_the_file_and_keeps_the_size() {
    for (mounted, _device) in file_systems() {
        let (path, kept) = (mounted.path().join("volume"), mounted.path().join("kept"));
        let link = mounted.path().join("link");
        symlink(&path, &link).unwrap();
        let old = opened(&path, Access::Buffered);
        let mut before = OnLoop::new(old.clone(), DriverChoice::Auto);
        before.write(0, &[1; 4096]).unwrap();
        snapshot::snapshot(&path, &kept).unwrap();
        before.write(0, &[2; 4096]).unwrap();
        let larger = spec(&path, 2 * SIZE, Access::Buffered);
        drop(grow(&old, &larger).unwrap());
        let found = path.metadata().unwrap();
        rollback(&link, &kept).unwrap();
        assert!(link.is_symlink());
        assert_eq!(before.read(0, 4096), Ok(vec![2; 4096]), "who has it open keeps it");
        let now = path.metadata().unwrap();
        assert_eq!((now.mode(), now.uid(), now.len()), (found.mode(), found.uid(), 2 * SIZE));
        assert_ne!(now.ino(), found.ino());
        assert!(open(&larger).is_err(), "the place of the file is still locked");
        let after = open_in_place_of(&old, &larger).expect("the new file has no lock on it");
        let mut after = OnLoop::new(after, DriverChoice::Auto);
        assert_eq!(after.read(0, 8192).unwrap(), [[1; 4096], [0; 4096]].concat());
        assert_eq!(after.read(2 * SIZE - 4096, 4096), Ok(vec![0; 4096]));
        assert_eq!(names(mounted.path()), ["kept", "link", "volume"]);
        let missing = rollback(&path, &mounted.path().join("none"));
        assert!(matches!(missing, Err(SnapshotError::Missing { .. })), "{missing:?}");
    }
}

#[test]
fn copies_between_volumes_share_blocks_too() {
    for (mounted, _device) in file_systems() {
        let [from, to] =
            ["from", "to"].map(|name| opened(&mounted.path().join(name), Access::Direct));
        let mut source = OnLoop::new(from.clone(), DriverChoice::Auto);
        source.write(0, &vec![7; 8 * MIB as usize]).unwrap();
        let before = from.slow().space().unwrap().available;
        let range = ByteRange::new(0, 8 * MIB);
        assert_eq!(to.slow().copy_from(4 * MIB, from.slow(), range), Ok(8 * MIB));
        assert!(before - to.slow().space().unwrap().available < MIB, "the blocks are not shared");
        let mut target = OnLoop::new(to, DriverChoice::Auto);
        assert_eq!(target.read(12 * MIB - 4096, 8192).unwrap(), [[7; 4096], [0; 4096]].concat());
    }
}

#[test]
fn where_blocks_cannot_be_shared_it_is_refused_and_said() {
    let Some(device) = LoopDevice::new(4 * SIZE, 512) else { return };
    let Some(mounted) = Mounted::new(device.path()) else { return };
    let path = mounted.path().join("volume");
    drop(opened(&path, Access::Buffered));
    let refused = snapshot::snapshot(&path, &mounted.path().join("s"));
    let text = refused.as_ref().unwrap_err().to_string();
    assert!(matches!(refused, Err(SnapshotError::NoReflink { .. })), "{text}");
    assert!(text.contains("XFS or btrfs"), "says what to do: {text}");
    assert_eq!(names(mounted.path()), ["volume"]);
    let elsewhere = tempfile::tempdir().unwrap();
    let refused = snapshot::snapshot(&path, &elsewhere.path().join("s"));
    assert!(refused.is_err());
    assert_eq!(names(elsewhere.path()), Vec::<String>::new());
    let refused = snapshot::snapshot(mounted.path(), &mounted.path().join("s"));
    assert!(matches!(refused, Err(SnapshotError::NotAFile { .. })), "{refused:?}");
    let lost = snapshot::snapshot(&path, &mounted.path().join("no/such/s"));
    assert!(matches!(lost, Err(SnapshotError::Missing { .. })), "{lost:?}");
}

#[test]
fn what_an_interruption_left_is_removed_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for name in [".s1.lunet-new", ".s2.lunet-new", "s.lunet-new", ".hidden", "volume"] {
        fs::write(at(name), "x").unwrap();
    }
    fs::create_dir(at(".d.lunet-new")).unwrap();
    let busy = File::open(at(".s2.lunet-new")).unwrap();
    rustix::fs::flock(&busy, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_eq!(tidy(directory.path()).unwrap(), 1);
    let left = [".d.lunet-new", ".hidden", ".s2.lunet-new", "s.lunet-new", "volume"];
    assert_eq!(names(directory.path()), left);
    drop(busy);
    assert_eq!(tidy(directory.path()).unwrap(), 1);

    for (mounted, _device) in file_systems() {
        let (path, kept) = (mounted.path().join("volume"), mounted.path().join("kept"));
        drop(opened(&path, Access::Buffered));
        fs::write(mounted.path().join(".kept.lunet-new"), vec![1; 8192]).unwrap();
        snapshot::snapshot(&path, &kept).unwrap();
        assert_eq!(names(mounted.path()), ["kept", "volume"]);
        assert_eq!(kept.metadata().unwrap().len(), SIZE);
    }
}

/// Set for the process that is to be killed: where it finds the volume.
const CHILD: &str = "LUNET_TEST_SNAPSHOTS_IN";

/// Snapshots and rollbacks without end; each line on standard output names what was done.
fn endless(directory: &Path) {
    let path = directory.join("volume");
    for round in 0u64.. {
        let name = directory.join(format!("s{}", round % 4));
        drop(remove(&name));
        snapshot::snapshot(&path, &name).unwrap();
        rollback(&path, &name).unwrap();
    }
}

#[test]
fn a_kill_leaves_the_old_state_or_the_new() {
    if let Some(directory) = std::env::var_os(CHILD) {
        return endless(&PathBuf::from(directory));
    }
    for (mounted, _device) in file_systems() {
        let path = mounted.path().join("volume");
        let data: Vec<u8> = (0..SIZE / 512).flat_map(|i| [(i % 255) as u8 + 1; 512]).collect();
        fs::write(&path, &data).unwrap();
        for round in 0..20 {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "snapshots::a_kill_leaves_the_old_state_or_the_new"])
                .env(CHILD, mounted.path())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(30 + 17 * (round * 7 % 20)));
            assert!(child.try_wait().unwrap().is_none(), "it failed by itself");
            child.kill().unwrap();
            child.wait().unwrap();
            tidy(mounted.path()).unwrap();
            for name in names(mounted.path()) {
                assert!(matches!(&*name, "volume" | "s0" | "s1" | "s2" | "s3"), "left: {name}");
                let file = File::open(mounted.path().join(&name)).unwrap();
                assert_eq!(file.metadata().unwrap().len(), SIZE, "{name}");
                let mut found = vec![0; data.len()];
                file.read_exact_at(&mut found, 0).unwrap();
                assert!(found == data, "{name} is a mixture");
            }
            assert!(path.exists());
        }
    }
}
