//! What happens to volumes while they are open.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use lunet_backends::{Access, Storage, Volume, VolumeSpec, open};
use lunet_block::{ByteRange, Error, Op};
use lunet_ring::DriverChoice;

use crate::common::{LoopDevice, Mounted, OnLoop, file};

const SIZE: u64 = 16 << 20;
const MIB: u64 = 1 << 20;

fn drivers() -> impl Iterator<Item = DriverChoice> {
    [DriverChoice::Auto, DriverChoice::Epoll].into_iter()
}

fn thin(path: &Path, access: Access) -> Volume {
    let spec = VolumeSpec { block_size: Some(4096), ..file(path, SIZE, access) };
    open(&spec).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_file_that_was_cut_off_is_an_error_and_not_an_endless_wait() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    for access in [Access::Buffered, Access::Direct] {
        for driver in drivers() {
            let mut volume = OnLoop::new(thin(&path, access), driver);
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(8192).unwrap();
            assert_eq!(volume.read(MIB, 4096), Err(Error::Io(5)), "behind the end");
            assert_eq!(volume.read(4096, 8192), Err(Error::Io(5)), "across the end");
            assert_eq!(volume.read(0, 8192), Ok(vec![0; 8192]), "in front of the end");
            file.set_len(SIZE).unwrap();
            assert_eq!(volume.read(4096, 8192), Ok(vec![0; 8192]), "grown again");
        }
    }
}

#[test]
fn a_file_that_was_removed_is_served_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    let volume = thin(&path, Access::Buffered);
    fs::remove_file(&path).unwrap();
    for driver in drivers() {
        let mut on_loop = OnLoop::new(volume.clone(), driver);
        on_loop.write(0, &[7; 4096]).unwrap();
        assert_eq!(on_loop.read(0, 4096), Ok(vec![7; 4096]));
    }
}

#[test]
fn what_one_channel_writes_the_others_read() {
    let directory = tempfile::tempdir().unwrap();
    let on_file = |access| thin(&directory.path().join(format!("{access:?}")), access);
    let memory = VolumeSpec::new(Storage::Memory { size: SIZE });
    let volumes =
        [on_file(Access::Buffered), on_file(Access::Direct), open(&memory).expect("memory")];
    for volume in volumes {
        let mut writer = OnLoop::new(volume.clone(), DriverChoice::Auto);
        let mut reader = OnLoop::new(volume.clone(), DriverChoice::Epoll);
        for byte in 1..=3 {
            writer.write(MIB, &[byte; 4096]).unwrap();
            assert_eq!(reader.read(MIB, 4096), Ok(vec![byte; 4096]));
        }
    }
}

#[test]
fn unmap_gives_space_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    let volume = thin(&path, Access::Buffered);
    if volume.caps().unmap == lunet_block::Support::None {
        eprintln!("SKIPPED: the file system of {} has no unmap", path.display());
        return;
    }
    let mut on_loop = OnLoop::new(volume, DriverChoice::Auto);
    let space = || path.metadata().unwrap().blocks() * 512;
    for op in [Op::Unmap, Op::WriteZeroes { may_unmap: true }] {
        for i in 0..8 {
            on_loop.write(i * MIB, &[0xAB; MIB as usize]).unwrap();
        }
        on_loop.run(Op::Flush, ByteRange::new(0, 0), None).unwrap();
        assert!(space() >= 8 * MIB, "{}", space());
        on_loop.run(op, ByteRange::new(MIB, 6 * MIB), None).unwrap();
        assert!(space() < 3 * MIB, "{op:?} left {}", space());
        let kept = Op::WriteZeroes { may_unmap: false };
        on_loop.run(kept, ByteRange::new(MIB, 6 * MIB), None).unwrap();
        on_loop.run(Op::Flush, ByteRange::new(0, 0), None).unwrap();
        assert!(space() >= 8 * MIB, "zeroes that must stay have no space: {}", space());
    }
}

#[test]
fn a_full_file_system_is_out_of_space() {
    for access in [Access::Buffered, Access::Direct] {
        let Some(device) = LoopDevice::new(SIZE, 512) else { return };
        let Some(mounted) = Mounted::new(device.path()) else { return };
        let path = mounted.path().join("volume");
        let spec = VolumeSpec { block_size: Some(4096), ..file(&path, 2 * SIZE, access) };
        let mut volume = OnLoop::new(open(&spec).expect("thin"), DriverChoice::Auto);
        let written = (0..32)
            .map(|i| volume.write(i * MIB, &[0xAB; MIB as usize]))
            .take_while(Result::is_ok)
            .count() as u64;
        assert!((1..16).contains(&written), "{written} MiB on a device of 16");
        assert_eq!(volume.write(written * MIB, &[1; MIB as usize]), Err(Error::OutOfSpace));
        assert_eq!(volume.read(0, 4096), Ok(vec![0xAB; 4096]), "reads go on");
        assert_eq!(volume.write(0, &[2; 4096]), Ok(()), "what has space can be written");
    }
}

#[test]
fn nothing_lies_beyond_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = [
        thin(&directory.path().join("volume"), Access::Buffered),
        open(&VolumeSpec::new(Storage::Memory { size: SIZE })).expect("memory"),
        open(&VolumeSpec::new(Storage::Null { size: SIZE })).expect("null"),
    ];
    for volume in volumes {
        let mut on_loop = OnLoop::new(volume, DriverChoice::Auto);
        for offset in [SIZE - 4096, SIZE, u64::MAX - 4095] {
            let range = ByteRange::new(offset, 8192);
            let zeroes = Op::WriteZeroes { may_unmap: true };
            for op in [Op::Read, Op::Write { fua: true }, zeroes, Op::Unmap] {
                let data = matches!(op, Op::Write { .. }).then_some(&[1; 8192][..]);
                assert_eq!(on_loop.run(op, range, data), Err(Error::OutOfRange), "{op:?}");
            }
        }
    }
    let file = directory.path().join("volume").metadata().unwrap();
    assert_eq!(file.len(), SIZE);
}

/// Waits until this process has a file open only so often: files are closed on a thread of their own.
fn await_open(path: &Path, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while open_count(path) > count {
        assert!(Instant::now() < deadline, "{} times open", open_count(path));
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(open_count(path), count);
}

/// How often this process has a file open.
fn open_count(path: &Path) -> usize {
    let links = fs::read_dir("/proc/self/fd").expect("procfs").flatten();
    links.filter(|entry| fs::read_link(entry.path()).is_ok_and(|link| link == path)).count()
}

#[test]
fn channels_come_and_go_for_years() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap().join("volume");
    let on_file = thin(&path, Access::Buffered);
    let memory = open(&VolumeSpec::new(Storage::Memory { size: SIZE })).expect("memory");
    for driver in drivers() {
        let mut on_loop = OnLoop::new(on_file.clone(), driver);
        on_loop.write(0, &[5; 4096]).unwrap();
        let before = open_count(&path);
        for i in 0..10_000 {
            on_loop.replace(if i % 5 == 4 { &memory } else { &on_file });
            if i % 100 == 0 {
                assert_eq!(on_loop.read(0, 4096), Ok(vec![5; 4096]), "round {i}");
                await_open(&path, 2);
            }
        }
        on_loop.replace(&memory);
        assert_eq!(before, 2);
        // The one with the lock is left.
        await_open(&path, 1);
    }
}
