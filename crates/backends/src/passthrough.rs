//! Finds the way past the block layer to an NVMe namespace.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use lunet_ring::{Namespace, Passthrough};
use rustix::fs::{ioctl_blksszget, major, minor};

use crate::VolumeSpec;
use crate::device::open_as;
use crate::sysfs::{self, Nvme};

/// The namespace for a volume that is to have reads and writes as NVMe commands, and what should be known of that. `sys` is
/// where the kernel tells about devices, and of the device that is claimed there are the open file and the number.
pub(crate) fn namespace(
    spec: &VolumeSpec,
    path: &Path,
    sys: &Path,
    (device, number): (&File, u64),
) -> (Option<Namespace>, Vec<String>) {
    let Some(wanted) = spec.passthrough else { return (None, Vec::new()) };
    let found = sysfs::nvme(sys, major(number), minor(number)).map_err(str::to_owned);
    let polls = found.as_ref().is_ok_and(|nvme| nvme.polls);
    let told = |text: &str| vec![format!("{}: passthrough: {text}", path.display())];
    let (how, mut notes) = match wanted {
        Passthrough::Polled if found.is_ok() && !polls => {
            let text = "the drive has no queues that can be polled, so it interrupts instead: they come with \
                        nvme.poll_queues=N on the kernel's command line";
            (Passthrough::Interrupt, told(text))
        }
        how => (how, Vec::new()),
    };
    match found.and_then(|nvme| open(spec, &nvme, device, how)) {
        Ok(namespace) => (Some(namespace), notes),
        Err(why) => {
            notes = told(&format!("{why}; reads and writes go through the block layer"));
            (None, notes)
        }
    }
}

/// Opens the generic character device, and sees whether it is of the same namespace and takes commands.
fn open(
    spec: &VolumeSpec,
    nvme: &Nvme,
    device: &File,
    how: Passthrough,
) -> Result<Namespace, String> {
    let path = Path::new("/dev").join(&nvme.generic);
    let named = |error: io::Error| format!("{}: {error}", path.display());
    let block = ioctl_blksszget(device).map_err(|e| e.to_string())?;
    let found = path.metadata().map_err(named)?;
    let is_it = found.file_type().is_char_device()
        && (major(found.rdev()), minor(found.rdev())) == nvme.number;
    if !is_it {
        return Err(format!("{} is another device", path.display()));
    }
    let mut options = OpenOptions::new();
    options.read(true).write(!spec.read_only);
    let generic = open_as(&options, spec, &path).map_err(named)?;
    if generic.metadata().map_err(named)?.rdev() != found.rdev() {
        return Err(format!("{} is another device", path.display()));
    }
    let namespace = Namespace::new(Arc::new(generic), nvme.id, block, nvme.most, how);
    namespace.check(device).map_err(|why| format!("{}: {why}", path.display()))?;
    Ok(namespace)
}
