//! Volumes that get more room while they are served.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use lunet_backends::{Access, FileSpec, OpenError, Storage, Volume, VolumeSpec, grow, open};
use lunet_block::{Error, Op};
use lunet_ring::DriverChoice;

use crate::common::{LoopDevice, OnLoop, file, full};

const SIZE: u64 = 16 << 20;

fn thin(path: &Path, size: u64) -> VolumeSpec {
    file(path, size, Access::Buffered)
}

fn opened(spec: &VolumeSpec) -> Volume {
    open(spec).unwrap_or_else(|e| panic!("{e}"))
}

fn refused(volume: &Volume, spec: &VolumeSpec) -> OpenError {
    match grow(volume, spec) {
        Ok(_) => panic!("{spec:?} was taken"),
        Err(error) => error,
    }
}

#[test]
fn a_file_grows_under_its_lock_while_it_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    for (driver, spec) in [(DriverChoice::Auto, thin as fn(_, _) -> _), (DriverChoice::Epoll, full)]
    {
        let old = opened(&spec(&path, SIZE));
        let mut before = OnLoop::new(old.clone(), driver);
        before.write(SIZE - 4096, &[1; 4096]).unwrap();
        let new = grow(&old, &spec(&path, 2 * SIZE)).expect("it grows");
        assert_eq!((old.caps().bytes(), new.caps().bytes()), (SIZE, 2 * SIZE));
        assert_eq!(path.metadata().unwrap().len(), 2 * SIZE);
        let mut after = OnLoop::new(new.clone(), driver);
        assert_eq!(before.write(SIZE, &[2; 4096]), Err(Error::OutOfRange), "the old one is old");
        before.write(0, &[3; 4096]).unwrap();
        after.write(2 * SIZE - 4096, &[4; 4096]).unwrap();
        assert_eq!(after.read(SIZE - 4096, 8192).unwrap(), [[1; 4096], [0; 4096]].concat());
        assert_eq!(after.read(0, 4096), Ok(vec![3; 4096]));
        drop((old, before));
        let again = open(&spec(&path, 2 * SIZE));
        assert!(matches!(again.err(), Some(OpenError::Locked { .. })), "the lock stays");
        after.write(0, &[5; 4096]).unwrap();
        drop((new, after));
        assert_eq!(opened(&spec(&path, 2 * SIZE)).caps().bytes(), 2 * SIZE);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_fully_provisioned_file_grows_with_its_space_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    let volume = opened(&full(&path, SIZE));
    let grown = grow(&volume, &full(&path, 2 * SIZE)).expect("it grows");
    let used = || path.metadata().unwrap().blocks() * 512;
    assert!(used() >= 2 * SIZE, "{}", used());
    let error = refused(&grown, &full(&path, 1 << 43));
    assert!(matches!(error, OpenError::NoSpace { .. }), "{error:?}");
    assert_eq!(path.metadata().unwrap().len(), 2 * SIZE);
    assert!(used() < 3 * SIZE, "{}", used());
    drop((volume, grown));
    // A configuration that was changed while lunet was away.
    assert_eq!(opened(&full(&path, 3 * SIZE)).caps().bytes(), 3 * SIZE);
    assert!(used() >= 3 * SIZE, "{}", used());
}

#[test]
fn a_volume_does_not_shrink() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    let volume = opened(&thin(&path, SIZE));
    let error = refused(&volume, &thin(&path, SIZE / 2));
    let expected =
        matches!(error, OpenError::Shrink { size: SIZE, wanted, .. } if wanted == SIZE / 2);
    assert!(expected, "{error:?}");
    let odd = refused(&volume, &thin(&path, SIZE + 100));
    assert!(matches!(odd, OpenError::NotMultiple { .. }), "{odd:?}");
    assert_eq!(path.metadata().unwrap().len(), SIZE);
    let text = error.to_string();
    assert!(text.starts_with(&path.display().to_string()), "{text}");
    for storage in [|size| Storage::Memory { size }, |size| Storage::Null { size }] {
        let volume = opened(&VolumeSpec::new(storage(SIZE)));
        let same = grow(&volume, &VolumeSpec::new(storage(SIZE))).expect("no change");
        assert_eq!(same.caps(), volume.caps());
        assert!(grow(&volume, &VolumeSpec::new(storage(SIZE / 2))).is_err());
    }
}

#[test]
fn memory_cannot_grow_and_null_can() {
    let memory = opened(&VolumeSpec::new(Storage::Memory { size: SIZE }));
    let error = refused(&memory, &VolumeSpec::new(Storage::Memory { size: 2 * SIZE }));
    assert!(matches!(error, OpenError::Fixed { .. }), "{error:?}");
    let bigger = VolumeSpec::new(Storage::Null { size: 2 * SIZE });
    assert!(matches!(refused(&memory, &bigger), OpenError::Fixed { .. }));
    let null = opened(&VolumeSpec::new(Storage::Null { size: SIZE }));
    assert_eq!(grow(&null, &bigger).expect("it grows").caps().bytes(), 2 * SIZE);
}

#[test]
fn a_file_that_was_exchanged_is_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    let volume = opened(&thin(&path, SIZE));
    fs::rename(&path, directory.path().join("old")).unwrap();
    fs::write(&path, vec![7; 8192]).unwrap();
    let error = refused(&volume, &thin(&path, 2 * SIZE));
    assert!(matches!(error, OpenError::Replaced { .. }), "{error:?}");
    assert_eq!(path.metadata().unwrap().len(), 8192);
}

#[test]
fn a_smaller_file_is_made_larger_when_it_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    fs::write(&path, vec![1; 8192]).unwrap();
    let volume = opened(&thin(&path, SIZE));
    assert_eq!(volume.caps().bytes(), SIZE);
    let mut on_loop = OnLoop::new(volume, DriverChoice::Auto);
    assert_eq!(on_loop.read(4096, 8192).unwrap(), [[1; 4096], [0; 4096]].concat());
}

/// `None`: the size that the file or device has by now.
#[test]
fn a_volume_takes_the_size_that_its_storage_has_got() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    let volume = opened(&thin(&path, SIZE));
    fs::File::options().write(true).open(&path).unwrap().set_len(3 * SIZE).unwrap();
    let existing = VolumeSpec::new(Storage::File(FileSpec::new(path)));
    assert_eq!(grow(&volume, &existing).unwrap().caps().bytes(), 3 * SIZE);

    let Some(device) = LoopDevice::new(SIZE, 4096) else { return };
    let spec = VolumeSpec::new(Storage::Block { path: device.path().to_path_buf() });
    let old = opened(&spec);
    let mut before = OnLoop::new(old.clone(), DriverChoice::Auto);
    device.resize(2 * SIZE);
    let new = grow(&old, &spec).expect("the claim is shared");
    assert_eq!((old.caps().bytes(), new.caps().bytes()), (SIZE, 2 * SIZE));
    let mut after = OnLoop::new(new.clone(), DriverChoice::Epoll);
    before.write(0, &[1; 4096]).unwrap();
    after.run(Op::Unmap, lunet_block::ByteRange::new(SIZE, SIZE), None).unwrap();
    after.write(2 * SIZE - 4096, &[2; 4096]).unwrap();
    assert_eq!(after.read(0, 4096), Ok(vec![1; 4096]));
    device.resize(SIZE);
    assert!(matches!(refused(&new, &spec), OpenError::Shrink { .. }));
    drop((old, before));
    assert!(matches!(open(&spec).err(), Some(OpenError::InUse { .. })), "the claim stays");
}

/// What was cut off would come back as zeroes.
#[test]
fn a_file_that_was_cut_short_does_not_grow() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    for (spec, left) in [(thin as fn(_, _) -> _, SIZE / 2), (full, 0)] {
        let volume = opened(&spec(&path, SIZE));
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(left).unwrap();
        for wanted in [SIZE, 2 * SIZE] {
            let error = refused(&volume, &spec(&path, wanted));
            assert!(matches!(error, OpenError::CutShort { .. }), "{error:?}");
            assert_eq!(path.metadata().unwrap().len(), left);
        }
        drop(volume);
        fs::remove_file(&path).unwrap();
    }
}
