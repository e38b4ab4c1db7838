//! What the tests of the backends share: volumes on an event loop, and loop devices.
#![allow(dead_code, reason = "tests inside and outside of the crate each use a part of it")]

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lunet_backends::{
    Access, Channel, FileSpec, Provisioning, Storage, Volume, VolumeSpec, parse_disk_token,
};
use lunet_block::conformance::Driver;
use lunet_block::{ByteRange, Caps, Error, IoDone, Op, Request, Submit};
use lunet_ring::{Config, DriverChoice, Event, MAX_BUF, Payload, Ring};

/// No operation of a test takes this long on a working machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A volume with one channel on an event loop of its own.
pub struct OnLoop {
    volume: Volume,
    // In front of the event loop, which must outlive it.
    channel: Box<Channel>,
    ring: Ring,
    events: Vec<Event>,
}

impl OnLoop {
    pub fn new(volume: Volume, driver: DriverChoice) -> Self {
        let config = Config { driver, ..Config::default() };
        let mut ring = Ring::new(&config).expect("an event loop");
        let channel = volume.open_channel(7, &mut ring).expect("a channel");
        Self { volume, channel, ring, events: Vec::new() }
    }
}

impl OnLoop {
    /// Ends the channel, and opens one to another volume in its place.
    pub fn replace(&mut self, volume: &Volume) {
        let next = volume.open_channel(7, &mut self.ring).expect("a channel");
        std::mem::replace(&mut self.channel, next).close(&mut self.ring);
        self.volume = volume.clone();
    }

    /// Runs one request to its end.
    pub fn run(&mut self, op: Op, range: ByteRange, data: Option<&[u8]>) -> Result<Vec<u8>, Error> {
        let room = vec![0xEE; range.len as usize];
        let data = data.or_else(|| (op == Op::Read).then_some(&room));
        let buf = data.map(|data| self.buf(data));
        let (channel, queue) = self.channel();
        let mut done = match channel.submit(Request::new(1, op, range, buf), queue) {
            Submit::Done(done) => Some(done),
            Submit::Queued => None,
            Submit::Busy(request) => panic!("busy: {:?}", request.complete(Ok(())).op),
        };
        while done.is_none() {
            let mut ended = Vec::new();
            self.wait(&mut ended);
            for end in ended {
                let (channel, queue) = self.channel();
                done = channel.advance(end, queue).or(done);
            }
        }
        let done = done.expect("the answer");
        done.result?;
        Ok(done.buf.map_or_else(Vec::new, |b: Payload| self.bytes(&b, range.len as usize)))
    }

    /// Writes a buffer's length at a time.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let mut at = offset;
        for part in data.chunks(MAX_BUF) {
            let range = ByteRange::new(at, part.len() as u64);
            self.run(Op::Write { fua: false }, range, Some(part))?;
            at += range.len;
        }
        Ok(())
    }

    /// Reads a buffer's length at a time.
    pub fn read(&mut self, offset: u64, len: u64) -> Result<Vec<u8>, Error> {
        let mut data = Vec::new();
        while (data.len() as u64) < len {
            let left = len - data.len() as u64;
            let range = ByteRange::new(offset + data.len() as u64, left.min(MAX_BUF as u64));
            data.extend(self.run(Op::Read, range, None)?);
        }
        Ok(data)
    }
}

impl Driver for OnLoop {
    type Buf = Payload;
    type Queue = Ring;

    fn caps(&self) -> Caps {
        self.volume.caps().clone()
    }

    fn channel(&mut self) -> (&mut dyn lunet_block::Channel<Payload, Ring>, &mut Ring) {
        (&mut *self.channel, &mut self.ring)
    }

    fn buf(&mut self, data: &[u8]) -> Payload {
        // At least a byte, so that there is a buffer for an empty range too.
        let mut buf = self.ring.arena().alloc(data.len().max(1)).expect("room in the arena");
        buf[..data.len()].copy_from_slice(data);
        Payload::Buf(buf)
    }

    fn bytes(&self, buf: &Payload, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        buf.for_each_chunk(0..len, |chunk| bytes.extend_from_slice(chunk));
        bytes
    }

    fn wait(&mut self, ended: &mut Vec<IoDone<Payload>>) {
        let start = Instant::now();
        while ended.is_empty() {
            assert!(start.elapsed() < PATIENCE, "a disk operation has not ended");
            self.ring.wait(Some(PATIENCE), &mut self.events).expect("the event loop runs");
            for event in self.events.drain(..) {
                let (token, buf, result) = match event {
                    Event::Disk { token, buf, result } => (token, buf, result),
                    Event::Readable { token } => (token, None, Ok(0)),
                    _ => continue,
                };
                let io = parse_disk_token(token).expect("a disk operation's token");
                assert_eq!(io.channel, 7);
                ended.push(IoDone { slot: io.slot, buf: buf.map(Payload::Buf), result });
            }
        }
    }
}

/// A volume in a file that is made if it is missing.
pub fn file(path: &Path, size: u64, access: Access) -> VolumeSpec {
    let path = path.to_path_buf();
    let file = FileSpec { size: Some(size), create: true, access, ..FileSpec::new(path) };
    VolumeSpec::new(Storage::File(file))
}

/// The same with all of its space taken at once.
pub fn full(path: &Path, size: u64) -> VolumeSpec {
    let file = FileSpec {
        size: Some(size),
        create: true,
        provisioning: Provisioning::Full,
        ..FileSpec::new(path.to_path_buf())
    };
    VolumeSpec::new(Storage::File(file))
}

/// A block device whose blocks lie in a file. Both go when the process ends, however it ends.
pub struct LoopDevice {
    path: PathBuf,
    _open: File,
    backing: File,
}

impl LoopDevice {
    /// `None`, and a word on standard error, where the machine has no loop devices for us.
    pub fn new(size: u64, block_size: u32) -> Option<Self> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.as_file().set_len(size).expect("a sparse file");
        let made = Command::new("losetup")
            .args(["--find", "--show", "--sector-size", &block_size.to_string()])
            .arg(file.path())
            .output();
        let path: PathBuf = match made {
            Ok(made) if made.status.success() => {
                String::from_utf8_lossy(&made.stdout).trim().into()
            }
            refused => {
                eprintln!("SKIPPED: tests on a block device, no loop device here: {refused:?}");
                return None;
            }
        };
        let open = File::open(&path).expect("the loop device");
        // While it is open this means: as soon as nobody has it open any more.
        let detached = Command::new("losetup").arg("--detach").arg(&path).status();
        assert!(detached.is_ok_and(|status| status.success()), "detach {}", path.display());
        Some(Self { path, _open: open, backing: file.into_file() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the device another size, in bytes.
    pub fn resize(&self, size: u64) {
        self.backing.set_len(size).expect("the backing file");
        let told = Command::new("losetup").arg("--set-capacity").arg(&self.path).status();
        assert!(told.is_ok_and(|status| status.success()), "resize {}", self.path.display());
    }

    /// What it takes of the machine's storage, in bytes.
    pub fn used(&self) -> u64 {
        self.backing.sync_all().expect("the backing file");
        self.backing.metadata().expect("the backing file").blocks() * 512
    }
}

/// A file system on a device, mounted.
pub struct Mounted(tempfile::TempDir);

impl Mounted {
    /// With ext4. `None`, and a word on standard error, where we may not mount.
    pub fn new(device: &Path) -> Option<Self> {
        Self::with(&["mkfs.ext4", "-q"], device)
    }

    /// With what this command makes. `None` as above, and where there is no such file system.
    pub fn with(mkfs: &[&str], device: &Path) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let made = Command::new(mkfs[0]).args(&mkfs[1..]).arg(device).output();
        let mounted = Command::new("mount").arg(device).arg(directory.path()).output();
        match &mounted {
            Ok(done) if done.status.success() => Some(Self(directory)),
            _ => {
                eprintln!("SKIPPED: tests on a mounted device: {made:?} {mounted:?}");
                None
            }
        }
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The kernel closes the files of an event loop a moment after it is gone.
        let gone = Command::new("umount").arg("--lazy").arg(self.path()).status();
        if !gone.is_ok_and(|status| status.success()) {
            eprintln!("{} stays mounted", self.path().display());
        }
    }
}
