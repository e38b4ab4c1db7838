//! Opening volumes: what is made, what is refused, and what the refusal says.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::common::{LoopDevice, Mounted, file, full};
use lunet_backends::{
    Access, FileSpec, Known, OpenError, Storage, Volume, VolumeSpec, mark, notes, open,
    open_in_place_of, sidecar,
};
use lunet_block::Support;

const SIZE: u64 = 16 << 20;

fn existing(path: &Path) -> VolumeSpec {
    VolumeSpec::new(Storage::File(FileSpec::new(path.to_path_buf())))
}

fn thin(path: &Path) -> VolumeSpec {
    file(path, SIZE, Access::Buffered)
}

/// The refusal: one sentence that names the path.
#[track_caller]
fn refusal(spec: &VolumeSpec, path: &Path) -> OpenError {
    let Err(error) = open(spec) else { panic!("{spec:?} was opened") };
    let text = error.to_string();
    assert!(text.starts_with(&path.display().to_string()), "names the path: {text}");
    assert!(!text.contains('\n') && text.len() < 300, "one plain sentence: {text}");
    error
}

fn opened(spec: &VolumeSpec) -> Volume {
    open(spec).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_new_thin_file_takes_no_space_and_is_found_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    let volume = opened(&thin(&path));
    let caps = volume.caps().clone();
    assert_eq!((caps.bytes(), caps.block_size, caps.physical_block_size), (SIZE, 512, 4096));
    assert!(caps.write_cache && !caps.read_only && !caps.mapped_reads);
    assert_eq!((caps.fua, caps.write_zeroes), (Support::Native, Support::Native));
    let found = path.metadata().unwrap();
    assert_eq!(found.len(), SIZE);
    assert!(found.blocks() * 512 <= 64 << 10, "{} sectors", found.blocks());
    drop(volume);
    assert_eq!(opened(&existing(&path)).caps(), &caps);
}

#[test]
fn a_full_file_has_its_space_and_no_unmap() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    let volume = opened(&full(&path, SIZE));
    assert_eq!(volume.caps().unmap, Support::None);
    let found = path.metadata().unwrap();
    assert_eq!(found.len(), SIZE);
    assert!(found.blocks() * 512 >= SIZE);
    drop(volume);
    // A thin one becomes full.
    let path = directory.path().join("was-thin");
    drop(opened(&thin(&path)));
    drop(opened(&full(&path, SIZE)));
    assert!(path.metadata().unwrap().blocks() * 512 >= SIZE);
}

#[test]
fn too_little_space_is_found_out_beforehand_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    let size = 1 << 43;
    let error = refusal(&full(&path, size), &path);
    assert!(
        matches!(error, OpenError::NoSpace { size: s, available, .. }
            if s == size && available < size),
        "{error:?}"
    );
    assert!(!path.exists());
}

#[test]
fn a_file_larger_than_the_file_system_allows_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    for size in [1 << 63, (1 << 63) - 512] {
        let error = refusal(&file(&path, size, Access::Buffered), &path);
        assert!(matches!(error, OpenError::TooLarge { size: s, .. } if s == size), "{error:?}");
        assert!(!path.exists());
    }
}

#[test]
fn an_interrupted_creation_is_taken_up_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    File::create(&path).unwrap();
    let error = refusal(&existing(&path), &path);
    assert!(matches!(error, OpenError::Empty { .. }), "{error:?}");
    assert_eq!(opened(&thin(&path)).caps().bytes(), SIZE);
}

#[test]
fn a_missing_file_is_made_only_if_asked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    let read_only = VolumeSpec { read_only: true, ..thin(&path) };
    let mut unasked = thin(&path);
    let Storage::File(what) = &mut unasked.storage else { unreachable!("made as a file") };
    what.create = false;
    for spec in [existing(&path), read_only] {
        let error = refusal(&spec, &path);
        assert!(matches!(error, OpenError::Missing { .. }), "{error:?}");
    }
    assert!(matches!(refusal(&unasked, &path), OpenError::NotMade { .. }));
    assert!(!path.exists());
    File::create(&path).unwrap();
    assert!(matches!(refusal(&unasked, &path), OpenError::NotMade { .. }), "empty: as if missing");
    fs::remove_file(&path).unwrap();
    let lost = directory.path().join("no/such/volume");
    let error = refusal(&thin(&lost), &lost);
    let missing = directory.path().join("no/such");
    assert!(
        matches!(&error, OpenError::NoDirectory { directory, .. } if *directory == missing),
        "{error:?}"
    );
    File::create(&path).unwrap();
    let below = path.join("volume");
    let error = refusal(&thin(&below), &below);
    assert!(matches!(error, OpenError::NoDirectory { .. }), "{error:?}");
}

#[test]
fn a_size_that_does_not_fit_is_refused_and_the_file_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    fs::write(&path, vec![1; 8192]).unwrap();
    let read_only = VolumeSpec { read_only: true, ..thin(&path) };
    for (spec, size) in [(file(&path, 4096, Access::Buffered), 4096), (read_only, SIZE)] {
        let error = refusal(&spec, &path);
        assert!(
            matches!(error, OpenError::SizeMismatch { size: 8192, configured, .. }
                if configured == size),
            "{error:?}"
        );
    }
    fs::write(&path, vec![1; 5000]).unwrap();
    let error = refusal(&existing(&path), &path);
    assert!(matches!(error, OpenError::NotMultiple { size: 5000, .. }), "{error:?}");
    assert_eq!(fs::read(&path).unwrap(), vec![1; 5000]);
    let new = directory.path().join("new");
    let error = refusal(&file(&new, 5000, Access::Buffered), &new);
    assert!(matches!(error, OpenError::NotMultiple { .. }), "{error:?}");
    assert!(!new.exists(), "checked before anything is made");
}

/// What is there is taken as long as it is what was there, whatever became of its name and its place.
#[test]
fn a_known_file_is_told_from_others() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    let volume = opened(&thin(&path));
    assert_eq!(mark::of(&volume, &path).unwrap(), None);
    mark::set(&volume, &path, "one").unwrap();
    assert_eq!(mark::of(&volume, &path).unwrap().as_deref(), Some("one"));
    drop(volume);
    let known = |path: &Path, mark: &str, size| {
        let mut spec = thin(path);
        let Storage::File(file) = &mut spec.storage else { unreachable!("made as a file") };
        file.known = Some(Known { size, mark: Some(mark.to_owned()) });
        spec
    };
    let (one, other) = (known(&path, "one", SIZE), known(&path, "other", SIZE));
    drop(opened(&one));
    assert!(matches!(refusal(&other, &path), OpenError::Another { .. }));
    let moved = directory.path().join("moved");
    fs::rename(&path, &moved).unwrap();
    drop(opened(&known(&moved, "one", SIZE)));
    assert!(matches!(refusal(&one, &path), OpenError::Gone { .. }), "it is not made anew");
    assert!(!path.exists());
    File::create(&path).unwrap().set_len(SIZE).unwrap();
    assert!(matches!(refusal(&one, &path), OpenError::Another { .. }), "as large, and empty");
    fs::rename(&moved, &path).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(SIZE - 512).unwrap();
    let error = refusal(&one, &path);
    assert!(
        matches!(error, OpenError::CutShort { size, known, .. } if (size, known) == (SIZE - 512, SIZE)),
        "{error:?}"
    );
    assert_eq!(path.metadata().unwrap().len(), SIZE - 512, "left alone");
    let below = path.join("volume");
    assert!(matches!(refusal(&known(&below, "one", SIZE), &below), OpenError::Gone { .. }));
}

#[test]
fn a_new_file_is_its_owners_alone_and_a_looser_one_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    let volume = opened(&thin(&path));
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&sidecar::path(&path))), (0o600, 0o600));
    assert_eq!(notes(&volume), [""; 0]);
    drop(volume);
    for loose in [0o640, 0o602] {
        fs::set_permissions(&path, fs::Permissions::from_mode(loose)).unwrap();
        let notes = notes(&opened(&existing(&path)));
        assert_eq!(notes.len(), 1);
        assert!(notes[0].contains("chmod 600") && notes[0].contains("volume"), "{notes:?}");
        assert_eq!(mode(&path), loose, "it is not ours to change");
    }
}

/// `flock` needs no more than the right to read.
#[test]
fn another_programs_lock_keeps_no_volume_from_being_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    drop(opened(&thin(&path)));
    for how in ["--shared", "--exclusive"] {
        let mut stranger = std::process::Command::new("flock")
            .args([how, path.to_str().unwrap(), "sh", "-c", "echo locked; read line"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("util-linux");
        let mut line = [0; 6];
        stranger.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        let volume = opened(&thin(&path));
        let notes = notes(&volume);
        assert!(notes.len() == 1 && notes[0].contains("another program has a lock"), "{notes:?}");
        assert!(matches!(refusal(&thin(&path), &path), OpenError::Locked { .. }), "{how}");
        drop(stranger.stdin.take());
        stranger.wait().unwrap();
        assert!(matches!(refusal(&thin(&path), &path), OpenError::Locked { .. }), "{how}");
    }
}

/// A rollback: the new file gets the name of the old one, and its lock with it.
#[test]
fn a_file_that_takes_the_place_of_another_has_its_lock() {
    let directory = tempfile::tempdir().unwrap();
    let (path, fresh) = (directory.path().join("volume"), directory.path().join("fresh"));
    let old = opened(&thin(&path));
    let new = open_in_place_of(&old, &thin(&fresh)).unwrap();
    fs::rename(&fresh, &path).unwrap();
    drop(old);
    assert!(matches!(refusal(&thin(&path), &path), OpenError::Locked { .. }));
    assert!(!sidecar::path(&fresh).exists());
    drop(new);
    drop(opened(&thin(&path)));
}

#[test]
fn a_file_is_written_by_one_and_read_by_many() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    let read_only = VolumeSpec { read_only: true, ..existing(&path) };
    let writer = opened(&thin(&path));
    for spec in [thin(&path), existing(&path), read_only.clone()] {
        let error = refusal(&spec, &path);
        assert!(matches!(error, OpenError::Locked { .. }), "{error:?}");
    }
    // Under another name it is the same file.
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(refusal(&existing(&link), &link), OpenError::Locked { .. }));
    drop(writer);
    let readers = [opened(&read_only), opened(&read_only)];
    assert!(readers.iter().all(|r| r.caps().read_only && r.caps().unmap == Support::None));
    assert!(matches!(refusal(&thin(&path), &path), OpenError::Locked { .. }));
}

#[test]
fn what_is_not_a_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    for (path, kind) in
        [(directory.path(), "a directory"), (Path::new("/dev/null"), "a character device")]
    {
        let error = refusal(&existing(path), path);
        assert!(matches!(error, OpenError::NotAFile { kind: k, .. } if k == kind), "{error:?}");
        let device = VolumeSpec::new(Storage::Block { path: path.to_path_buf() });
        let error = refusal(&device, path);
        assert!(
            matches!(error, OpenError::NotABlockDevice { kind: k, .. } if k == kind),
            "{error:?}"
        );
    }
    let missing = directory.path().join("sdz");
    let device = VolumeSpec::new(Storage::Block { path: missing.clone() });
    assert!(matches!(refusal(&device, &missing), OpenError::MissingDevice { .. }));
}

#[test]
fn direct_access_goes_by_whole_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    let spec = file(&path, SIZE, Access::Direct);
    let volume = opened(&VolumeSpec { block_size: Some(4096), ..spec });
    assert_eq!(volume.caps().alignment, 4096);
    assert!(volume.caps().write_cache, "the drive below may have one");
}

/// A file system on 4096-byte blocks, mounted.
#[test]
fn a_mounted_device_is_in_use_and_its_files_have_its_alignment() {
    let Some(device) = LoopDevice::new(4 * SIZE, 4096) else { return };
    let Some(mounted) = Mounted::new(device.path()) else { return };
    let on_device = VolumeSpec::new(Storage::Block { path: device.path().to_path_buf() });
    assert!(matches!(refusal(&on_device, device.path()), OpenError::InUse { .. }));
    let path = mounted.path().join("volume");
    let error = refusal(&file(&path, SIZE, Access::Direct), &path);
    assert!(matches!(error, OpenError::DirectAlignment { block_size: 512, .. }), "{error:?}");
    opened(&VolumeSpec { block_size: Some(4096), ..file(&path, SIZE, Access::Direct) });
    // Too large for what is free, though not for the file system.
    let large = mounted.path().join("large");
    let error = refusal(&full(&large, 8 * SIZE), &large);
    assert!(matches!(error, OpenError::NoSpace { .. }), "{error:?}");
}

#[test]
fn memory_and_null_need_blocks() {
    for storage in [Storage::Memory { size: 0 }, Storage::Null { size: 0 }] {
        let refused = open(&VolumeSpec::new(storage));
        assert!(matches!(refused.err(), Some(OpenError::Empty { .. })));
    }
    let volume = opened(&VolumeSpec::new(Storage::Memory { size: SIZE }));
    let caps = volume.caps();
    assert!(caps.mapped_reads && !caps.write_cache);
    assert_eq!(caps.unmap, Support::Native);
    let odd =
        VolumeSpec { block_size: Some(520), ..VolumeSpec::new(Storage::Memory { size: 520 * 8 }) };
    assert!(matches!(open(&odd).err(), Some(OpenError::BlockSize { block_size: 520, .. })));
}

#[test]
fn a_device_is_taken_for_lunet_alone() {
    let Some(device) = LoopDevice::new(SIZE, 4096) else { return };
    let path = device.path();
    let spec = VolumeSpec::new(Storage::Block { path: path.to_path_buf() });
    let small = VolumeSpec { block_size: Some(512), ..spec.clone() };
    assert!(
        matches!(refusal(&small, path), OpenError::DeviceBlockSize { device: 4096, .. }),
        "512-byte blocks on a device with larger ones"
    );
    let volume = opened(&spec);
    assert_eq!(volume.caps().bytes(), SIZE);
    assert!(matches!(refusal(&spec, path), OpenError::InUse { .. }));
    drop(volume);
    let error = refusal(&existing(path), path);
    assert!(error.to_string().contains("block volume"), "says what to do: {error}");
}
