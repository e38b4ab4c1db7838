//! What helper threads ask of a volume: its extents, copies, its space.

use std::path::Path;

use lunet_backends::{Access, FileSpec, Provisioning, Storage, Volume, VolumeSpec, open};
use lunet_block::{ByteRange, Error, Extent, Op, Support};
use lunet_ring::DriverChoice;

use crate::common::{LoopDevice, OnLoop, file};

const SIZE: u64 = 16 << 20;
const MIB: u64 = 1 << 20;

fn opened(spec: &VolumeSpec) -> Volume {
    open(spec).unwrap_or_else(|e| panic!("{e}"))
}

fn thin(path: &Path, access: Access) -> Volume {
    opened(&VolumeSpec { block_size: Some(4096), ..file(path, SIZE, access) })
}

fn memory() -> Volume {
    opened(&VolumeSpec::new(Storage::Memory { size: SIZE }))
}

const ALL: ByteRange = ByteRange::new(0, SIZE);

fn mapped(volume: &Volume, range: ByteRange) -> Vec<(u64, u64)> {
    let list = volume.slow().extents(range, 100).expect("extents");
    let mut at = range.offset;
    for extent in &list {
        assert!(extent.range.offset == at && extent.range.len > 0, "gaps in {list:?}");
        at = extent.range.end();
    }
    assert_eq!(at, range.end(), "not all of it: {list:?}");
    let data = list.iter().filter(|e| e.mapped);
    data.map(|e| (e.range.offset, e.range.len)).collect()
}

#[test]
fn what_was_written_is_mapped_and_what_was_unmapped_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let on_file = |access| thin(&directory.path().join(format!("{access:?}")), access);
    for volume in [memory(), on_file(Access::Buffered), on_file(Access::Direct)] {
        if volume.caps().unmap == Support::None {
            eprintln!("SKIPPED: the file system of {} has no unmap", directory.path().display());
            return;
        }
        assert_eq!(mapped(&volume, ALL), []);
        let mut on_loop = OnLoop::new(volume.clone(), DriverChoice::Auto);
        on_loop.write(MIB, &vec![1; 3 * MIB as usize]).unwrap();
        on_loop.write(SIZE - 4096, &[1; 4096]).unwrap();
        assert_eq!(mapped(&volume, ALL), [(MIB, 3 * MIB), (SIZE - 4096, 4096)]);
        on_loop.run(Op::Unmap, ByteRange::new(2 * MIB, MIB), None).unwrap();
        let left = [(MIB, MIB), (3 * MIB, MIB), (SIZE - 4096, 4096)];
        assert_eq!(mapped(&volume, ALL), left);
        assert_eq!(mapped(&volume, ByteRange::new(2 * MIB, MIB)), []);
        assert_eq!(volume.slow().extents(ALL, 2).map(|list| list.len()), Ok(2));
        let beyond = volume.slow().extents(ByteRange::new(SIZE - MIB, 2 * MIB), 9);
        assert_eq!(beyond, Err(Error::OutOfRange));
    }
}

#[test]
fn reserved_space_is_mapped() {
    let directory = tempfile::tempdir().unwrap();
    let file = FileSpec {
        size: Some(SIZE),
        create: true,
        provisioning: Provisioning::Full,
        ..FileSpec::new(directory.path().join("volume"))
    };
    let full = opened(&VolumeSpec::new(Storage::File(file)));
    let null = opened(&VolumeSpec::new(Storage::Null { size: SIZE }));
    for volume in [full, null] {
        assert_eq!(volume.slow().extents(ALL, 2), Ok(Extent::all_mapped(ALL)));
        assert_eq!(volume.slow().extents(ALL, 0), Ok(vec![]));
    }
}

/// Copies all of a range, as a caller does.
fn copy(to: &Volume, at: u64, from: &Volume, range: ByteRange) -> Result<(), Error> {
    let mut done = 0;
    while done < range.len {
        let rest = ByteRange::new(range.offset + done, range.len - done);
        let n = to.slow().copy_from(at + done, from.slow(), rest)?;
        assert!((1..=rest.len).contains(&n), "{n} of {}", rest.len);
        done += n;
    }
    Ok(())
}

#[test]
fn copies_are_seen_by_channels_that_are_open() {
    let directory = tempfile::tempdir().unwrap();
    let on_file = |name, access| thin(&directory.path().join(name), access);
    let pairs = [
        (on_file("a", Access::Buffered), on_file("b", Access::Direct)),
        (on_file("c", Access::Direct), on_file("d", Access::Buffered)),
        (on_file("e", Access::Direct), on_file("f", Access::Direct)),
        (memory(), memory()),
    ];
    for (from, to) in pairs {
        let mut source = OnLoop::new(from.clone(), DriverChoice::Auto);
        let mut target = OnLoop::new(to.clone(), DriverChoice::Epoll);
        for round in 1..=3 {
            source.write(MIB, &vec![round; 2 * MIB as usize]).unwrap();
            target.write(4 * MIB, &vec![0xEE; 4 * MIB as usize]).unwrap();
            assert_eq!(target.read(5 * MIB, 4096), Ok(vec![0xEE; 4096]));
            copy(&to, 5 * MIB, &from, ByteRange::new(MIB, 2 * MIB)).unwrap();
            let read = target.read(4 * MIB, 4 * MIB).unwrap();
            let expected = [vec![0xEE; MIB as usize], vec![round; MIB as usize]];
            let parts = [&expected[0], &expected[1], &expected[1], &expected[0]];
            for (part, expected) in read.chunks(MIB as usize).zip(parts) {
                assert!(part == expected, "round {round}");
            }
            target.write(5 * MIB + 4096, &[9; 4096]).unwrap();
            target.run(Op::Flush, ByteRange::new(0, 0), None).unwrap();
            let read = target.read(5 * MIB, 12288).unwrap();
            assert_eq!([read[0], read[4096], read[8192]], [round, 9, round]);
        }
        // Within one volume, and onto itself.
        copy(&to, 12 * MIB, &to, ByteRange::new(4 * MIB, MIB)).unwrap();
        assert_eq!(target.read(12 * MIB, 4096), Ok(vec![0xEE; 4096]));
        let onto_itself = to.slow().copy_from(MIB, to.slow(), ByteRange::new(0, 2 * MIB));
        assert_eq!(onto_itself, Err(Error::Unsupported));
        let beyond = to.slow().copy_from(SIZE - MIB, from.slow(), ByteRange::new(0, 2 * MIB));
        assert_eq!(beyond, Err(Error::OutOfRange));
    }
}

#[test]
fn what_cannot_be_copied_inside_the_machine_is_left_to_the_caller() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    let on_file = thin(&path, Access::Buffered);
    let null = opened(&VolumeSpec::new(Storage::Null { size: SIZE }));
    let range = ByteRange::new(0, MIB);
    for (to, from) in [(&on_file, &memory()), (&memory(), &on_file), (&null, &memory())] {
        assert_eq!(to.slow().copy_from(0, from.slow(), range), Err(Error::Unsupported));
    }
    drop(on_file);
    let mut spec = file(&path, SIZE, Access::Buffered);
    spec.read_only = true;
    let read_only = opened(&spec);
    let other = thin(&directory.path().join("other"), Access::Buffered);
    assert_eq!(read_only.slow().copy_from(0, other.slow(), range), Err(Error::ReadOnly));
}

#[test]
fn space_grows_with_what_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let on_file = thin(&directory.path().join("volume"), Access::Buffered);
    for volume in [on_file, memory()] {
        let before = volume.slow().space().expect("space");
        assert!(before.used <= 64 << 10 && before.available > 0, "{before:?}");
        let mut on_loop = OnLoop::new(volume.clone(), DriverChoice::Auto);
        on_loop.write(0, &vec![1; 4 * MIB as usize]).unwrap();
        on_loop.run(Op::Flush, ByteRange::new(0, 0), None).unwrap();
        let after = volume.slow().space().expect("space");
        assert!(after.used >= before.used + 4 * MIB, "{before:?} {after:?}");
    }
}

#[test]
fn a_device_tells_nothing() {
    let Some(device) = LoopDevice::new(SIZE, 4096) else { return };
    let volume = opened(&VolumeSpec::new(Storage::Block { path: device.path().to_path_buf() }));
    assert_eq!(volume.slow().extents(ALL, 9), Err(Error::Unsupported));
    assert_eq!(volume.slow().space(), Err(Error::Unsupported));
}
