use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::path::kept_free;
use super::*;

/// A LUN in memory.
struct Memory(Vec<u8>);

impl Blocks for Memory {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&mut self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(at).expect("it is small");
        let part = self.0.get(at..at + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(part);
        Ok(())
    }
}

const MIB: usize = 1 << 20;

fn looked_at(size: usize, change: impl FnOnce(&mut [u8])) -> Result<(), Refusal> {
    let mut bytes = vec![0; size];
    change(&mut bytes);
    lun("iscsi://me%secret@host/iqn.x/0", &mut Memory(bytes), &Destroy::default())
}

fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    bytes[at..at + what.len()].copy_from_slice(what);
}

#[test]
fn an_empty_lun_is_free_and_data_is_refused_in_a_sentence() {
    for size in [4096, 100 << 10, 3 * MIB, 8 * MIB + 4096] {
        looked_at(size, |_| {}).expect("it is empty");
        for at in [0, size / 2, size - 1] {
            // Between the ends only samples are looked at: a byte alone may hide, a block on a sample does not.
            let block = at / 4096 * 4096;
            let told = looked_at(size, |bytes| bytes[block..(block + 4096).min(size)].fill(7));
            let told = told.expect_err("there is data").to_string();
            assert!(told.contains("holds data") && told.contains("--destroy"), "{told}");
            assert!(!told.contains("secret"), "{told}");
        }
    }
}

#[test]
fn known_formats_are_named() {
    type Case = (&'static str, usize, &'static [u8]);
    let cases: [Case; 11] = [
        ("ext", 1080, b"\x53\xef"),
        ("XFS", 0, b"XFSB"),
        ("btrfs", 65_600, b"_BHRfS_M"),
        ("GPT", 512, b"EFI PART"),
        ("GPT, at the end", 8 * MIB - 512, b"EFI PART"),
        ("MBR", 510, b"\x55\xaa"),
        ("LVM", 536, b"LVM2 001"),
        ("LUKS", 0, b"LUKS\xba\xbe"),
        ("swap", 4086, b"SWAPSPACE2"),
        ("RAID", 4096, b"\xfc\x4e\x2b\xa9"),
        ("VMFS", MIB, b"\x0d\xd0\x01\xc0"),
    ];
    for (name, at, magic) in cases {
        let told = looked_at(8 * MIB, |bytes| put(bytes, at, magic));
        let told = told.expect_err(name).to_string();
        assert!(told.contains(name), "{name}: {told}");
    }
    // ZFS has four labels: two at the beginning, two at the end of a size that is no multiple of a label's.
    let size = 8 * MIB + 12_288;
    for at in [128 << 10, (256 + 200) << 10, 8 * MIB - (512 - 130) * 1024, 8 * MIB - 1024] {
        let told = looked_at(size, |bytes| put(bytes, at, b"\x0c\xb1\xba\0\0\0\0\0"));
        let told = told.expect_err("a label").to_string();
        // The second label is beyond what is taken for one at the beginning, and still data.
        assert!(told.contains("ZFS") || told.contains("holds data"), "{at}: {told}");
    }
}

#[test]
fn only_what_is_named_is_destroyed() {
    let name = "iscsi://host/iqn.x/0";
    let mut blocks = Memory(vec![1; MIB]);
    lun(name, &mut blocks, &Destroy::new([name])).expect("it was named");
    lun(name, &mut blocks, &Destroy::new(["iscsi://host/iqn.x/1"])).expect_err("it was not");
    lun(name, &mut blocks, &Destroy::new(["iscsi://host/iqn.x"])).expect_err("nor so");
}

fn scratch() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("bench-safety").tempdir_in("/var/tmp").expect("a directory")
}

fn name(path: &Path) -> &str {
    path.to_str().expect("it is text")
}

#[test]
fn a_part_of_a_small_file_system_stays_free_and_1_gib_of_a_large_one() {
    assert_eq!(kept_free(2 << 30), (2 << 30) / 20);
    assert_eq!(kept_free(252 << 30), 1 << 30);
    assert_eq!(kept_free(u64::MAX), 1 << 30);
}

#[test]
fn files_that_hold_something_are_refused() {
    let folder = scratch();
    let file = folder.path().join("file");
    let none = Destroy::default();
    path(name(&file), MIB as u64, &none).expect("it is not there");
    File::create(&file).expect("it can be made");
    path(name(&file), 0, &none).expect("it is empty");
    fs::write(&file, b"dear").expect("it can be written");
    let told = path(name(&file), 0, &none).expect_err("it holds something").to_string();
    assert!(
        told.contains("holds 4 bytes of a file that was there") && told.contains("--destroy"),
        "{told}"
    );
    path(name(&file), 0, &Destroy::new([name(&file)])).expect("it was named");
    // Another name for the same file was not named.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&file, &link).expect("it can be made");
    path(name(&link), 0, &Destroy::new([name(&file)])).expect_err("the link was not named");
    path(name(folder.path()), MIB as u64, &none).expect("there is room");
    let told = path(name(folder.path()), u64::MAX / 2, &none).expect_err("too much").to_string();
    assert!(told.contains("MiB free"), "{told}");
    let told = path("/dev/null", 0, &none).expect_err("no place").to_string();
    assert!(told.contains("is neither a file"), "{told}");
}

#[test]
fn a_locked_file_is_in_use_whoever_names_it() {
    let folder = scratch();
    let file = folder.path().join("volume");
    fs::write(&file, b"served").expect("it can be written");
    let held = File::open(&file).expect("it is there");
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).expect("nobody has it");
    let told = path(name(&file), 0, &Destroy::new([name(&file)])).expect_err("locked").to_string();
    assert!(told.contains("is in use") && told.contains("has locked it"), "{told}");
    drop(held);
    // A process that another test has just forked has it too, until it becomes another program.
    let free = || path(name(&file), 0, &Destroy::new([name(&file)])).is_ok();
    let by = Instant::now() + Duration::from_secs(60);
    while !free() {
        assert!(Instant::now() < by, "it is still locked");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A loop device, detached at the end. Without root there is none, and the test that wants one says so.
struct Loop {
    device: PathBuf,
    image: PathBuf,
    _folder: tempfile::TempDir,
}

impl Loop {
    fn new(mib: u64) -> Option<Self> {
        let folder = scratch();
        let image = folder.path().join("image");
        File::create(&image).and_then(|file| file.set_len(mib << 20)).expect("there is room");
        let told = Command::new("losetup").args(["--find", "--show"]).arg(&image).output().ok()?;
        let device = String::from_utf8(told.stdout).ok()?.trim().to_owned();
        if !told.status.success() || device.is_empty() {
            eprintln!("no loop device can be had here: what needs one is left out");
            return None;
        }
        Some(Self { device: device.into(), image, _folder: folder })
    }

    fn name(&self) -> &str {
        name(&self.device)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

fn run(program: &str, args: &[&str]) {
    let told = Command::new(program).args(args).output();
    let told = told.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(told.status.success(), "{program}: {}", String::from_utf8_lossy(&told.stderr));
}

#[test]
fn a_device_with_a_file_system_is_refused_and_a_mounted_one_always() {
    let Some(device) = Loop::new(32) else { return };
    let none = Destroy::default();
    drop(path(device.name(), 0, &none).expect("it is empty"));
    run("mkfs.ext4", &["-q", "-F", device.name()]);
    let told = path(device.name(), 0, &none).expect_err("a file system").to_string();
    assert!(told.contains("ext4") && told.contains("--destroy"), "{told}");
    let all = Destroy::new([device.name(), name(&device.image)]);
    let guard = path(device.name(), 0, &all).expect("it was named");
    let told = path(device.name(), 0, &all).expect_err("somebody has it").to_string();
    assert!(told.contains("is in use"), "{told}");
    // Who only opens it, as fio does, is let in.
    let opened = fs::OpenOptions::new().read(true).write(true).open(&device.device);
    drop(opened.expect("it is held against mounts alone"));
    drop(guard);
    let told = path(name(&device.image), 0, &all).expect_err("behind a device").to_string();
    assert!(told.contains("loop device"), "{told}");
    let folder = scratch();
    let mount = Command::new("mount").arg(&device.device).arg(folder.path()).output();
    if !mount.is_ok_and(|told| told.status.success()) {
        eprintln!("nothing can be mounted here: what needs that is left out");
        return;
    }
    let told = path(device.name(), 0, &all).map(drop);
    run("umount", &[name(folder.path())]);
    let told = told.expect_err("it is mounted").to_string();
    assert!(told.contains("is mounted at") && told.contains("unmount it first"), "{told}");
}

#[test]
fn swap_space_and_foreign_data_on_a_device_are_refused() {
    let Some(device) = Loop::new(16) else { return };
    run("mkswap", &[device.name()]);
    let told = path(device.name(), 0, &Destroy::default()).expect_err("swap").to_string();
    assert!(told.contains("swap"), "{told}");
    drop(device);
    let Some(device) = Loop::new(16) else { return };
    fs::OpenOptions::new()
        .write(true)
        .open(&device.device)
        .and_then(|file| std::os::unix::fs::FileExt::write_all_at(&file, b"somebody's", 8 << 20))
        .expect("it can be written");
    let told = path(device.name(), 0, &Destroy::default()).expect_err("data").to_string();
    assert!(told.contains("holds data (at 8192 KiB)"), "{told}");
}
