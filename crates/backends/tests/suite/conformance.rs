//! Every backend, on both event loop drivers, must pass the conformance suite of lunet-block.

use crate::common::{LoopDevice, OnLoop, file};
use lunet_backends::{Access, Provisioning, Storage, Volume, VolumeSpec, open};
use lunet_block::conformance::{self, Contents};
use lunet_ring::DriverChoice;

const SIZE: u64 = 16 << 20;
const DRIVERS: [DriverChoice; 2] = [DriverChoice::IoUring, DriverChoice::Epoll];

fn check(volume: &Volume, contents: Contents) {
    for driver in DRIVERS {
        if driver == DriverChoice::IoUring && !has_io_uring() {
            eprintln!("SKIPPED: io_uring is denied here");
            continue;
        }
        conformance::run(&mut OnLoop::new(volume.clone(), driver), contents);
    }
}

fn has_io_uring() -> bool {
    let config =
        lunet_ring::Config { driver: DriverChoice::IoUring, ..lunet_ring::Config::default() };
    lunet_ring::Ring::new(&config).is_ok()
}

fn check_file(directory: &std::path::Path, access: Access) {
    let temporary = tempfile::tempdir_in(directory).expect("a directory");
    for block_size in [512, 4096] {
        let path = temporary.path().join(format!("volume-{block_size}"));
        let spec = VolumeSpec { block_size: Some(block_size), ..file(&path, SIZE, access) };
        let volume = open(&spec).expect("a volume");
        check(&volume, Contents::Kept);
        drop(volume);
        let again = VolumeSpec { read_only: true, ..spec };
        check(&open(&again).expect("the same volume"), Contents::Kept);
    }
}

#[test]
fn a_file_through_the_page_cache() {
    check_file(&std::env::temp_dir(), Access::Buffered);
}

#[test]
fn a_file_past_the_page_cache() {
    check_file(&std::env::temp_dir(), Access::Direct);
}

/// tmpfs has no ZERO_RANGE: zeroes are written there.
#[test]
fn a_file_on_a_file_system_that_cannot_zero_a_range() {
    let shm = std::path::Path::new("/dev/shm");
    if shm.is_dir() {
        check_file(shm, Access::Buffered);
    } else {
        eprintln!("SKIPPED: no /dev/shm here");
    }
}

#[test]
fn a_file_with_reserved_space() {
    let temporary = tempfile::tempdir().expect("a directory");
    let mut spec = file(&temporary.path().join("volume"), SIZE, Access::Buffered);
    let Storage::File(what) = &mut spec.storage else { unreachable!("made as a file") };
    what.provisioning = Provisioning::Full;
    check(&open(&spec).expect("a volume"), Contents::Kept);
    let blocks = std::os::unix::fs::MetadataExt::blocks(
        &temporary.path().join("volume").metadata().expect("the file"),
    );
    assert!(blocks * 512 >= SIZE, "zeroing gave reserved space back: {blocks} sectors left");
}

#[test]
fn memory() {
    for block_size in [512, 4096] {
        let storage = Storage::Memory { size: SIZE };
        let mut spec = VolumeSpec { block_size: Some(block_size), ..VolumeSpec::new(storage) };
        check(&open(&spec).expect("a volume"), Contents::Kept);
        spec.read_only = true;
        check(&open(&spec).expect("a volume"), Contents::Kept);
    }
}

#[test]
fn null() {
    let mut spec = VolumeSpec::new(Storage::Null { size: 1 << 50 });
    check(&open(&spec).expect("a volume"), Contents::Forgotten);
    spec.read_only = true;
    check(&open(&spec).expect("a volume"), Contents::Forgotten);
}

#[test]
fn a_block_device() {
    for block_size in [512, 4096] {
        let Some(device) = LoopDevice::new(SIZE, block_size) else { return };
        let path = device.path().to_path_buf();
        let spec = VolumeSpec::new(Storage::Block { path });
        let volume = open(&spec).expect("a volume");
        assert_eq!(volume.caps().block_size, block_size);
        assert_eq!(volume.caps().alignment, block_size);
        check(&volume, Contents::Kept);
        drop(volume);
        let again = VolumeSpec { read_only: true, ..spec };
        check(&open(&again).expect("the same volume"), Contents::Kept);
    }
}
