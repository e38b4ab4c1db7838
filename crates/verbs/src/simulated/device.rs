//! Devices that come and go.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lunet_os::simulated::{self, Process};
use lunet_ring::simulated::Signal;

use super::{State, cm, later};
use crate::ffi::EVENT_DEVICE_FATAL;

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Connections may share their receives.
    pub shared_receives: bool,
    /// A message may take back a key of its receiver.
    pub invalidates: bool,
    /// It says so, and fails.
    pub invalidation_fails: bool,
    /// Bytes of a message that are copied when it is posted.
    pub inline: u32,
    /// Pieces of memory in one receive of a shared queue.
    pub pieces: u32,
    /// Depth of its queues.
    pub depth: u32,
    /// Registrations that fail, in a hundred.
    pub refuses_memory: u64,
}

/// A device.
pub(super) struct Device {
    pub(super) name: String,
    pub(super) traits: Traits,
    /// Which one of that name it is.
    pub(super) incarnation: u64,
    pub(super) present: bool,
}

/// A device as a process has opened it.
pub(super) struct Context {
    pub(super) process: Process,
    pub(super) incarnation: u64,
    pub(super) raw: usize,
    /// Numbers of asynchronous events.
    pub(super) events: VecDeque<u32>,
    pub(super) signal: Signal,
}

const TREE: &str = "class/infiniband";

impl State {
    pub(super) fn sysfs(&self) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(TREE))
    }

    pub(super) fn plug(&mut self, folder: &Path, name: &str, traits: Traits) -> io::Result<()> {
        self.folder = Some(folder.to_path_buf());
        let port = folder.join(TREE).join(name).join("ports/1");
        let put = |path: PathBuf, text: &str| {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(path, text)
        };
        put(port.join("state"), "4: ACTIVE\n")?;
        put(port.join("phys_state"), "5: LinkUp\n")?;
        put(port.join("link_layer"), "Ethernet\n")?;
        put(port.join("rate"), "100 Gb/sec (4X EDR)\n")?;
        put(port.join("gids/0"), "0000:0000:0000:0000:0000:ffff:7f00:0001\n")?;
        put(port.join("gid_attrs/types/0"), "RoCE v2\n")?;
        put(port.join("gid_attrs/ndevs/0"), "sim0\n")?;
        let verbs = folder.join(TREE).with_file_name("infiniband_verbs");
        put(verbs.join(name).join("ibdev"), name)?;
        let incarnation = self.number();
        self.devices.retain(|device| device.name != name);
        self.devices.push(Device { name: name.to_owned(), traits, incarnation, present: true });
        Ok(())
    }

    pub(super) fn unplug(&mut self, name: &str) {
        let Some(device) = self.devices.iter_mut().find(|device| device.name == name) else {
            return;
        };
        device.present = false;
        let incarnation = device.incarnation;
        if let Some(tree) = self.sysfs() {
            let _ = fs::remove_dir_all(tree.with_file_name("infiniband_verbs").join(name));
            let _ = fs::remove_dir_all(tree.join(name));
        }
        let of = |state: &Self, context: Option<u64>| {
            let context = context.and_then(|number| state.contexts.get(&number));
            context.is_some_and(|context| context.incarnation == incarnation)
        };
        let ids: Vec<u64> =
            self.ids.iter().filter(|(_, id)| of(self, id.context)).map(|(n, _)| *n).collect();
        for id in ids {
            let delay = Duration::from_micros(simulated::below(200_000));
            later(delay, move |s| s.tell(id, cm::DEVICE_REMOVAL, 0, Vec::new()));
        }
        let tells = simulated::below(2) == 0;
        for context in self.contexts.values_mut().filter(|c| c.incarnation == incarnation && tells)
        {
            context.events.push_back(EVENT_DEVICE_FATAL);
            context.signal.set(true);
        }
        let pairs: Vec<u64> = self
            .pairs
            .iter()
            .filter(|(_, pair)| of(self, Some(pair.context)))
            .map(|(n, _)| *n)
            .collect();
        for pair in pairs {
            self.pair_fails(pair);
        }
    }

    /// The traits of the device of a context, if it is there.
    pub(super) fn traits(&self, context: u64) -> Option<Traits> {
        let incarnation = self.contexts.get(&context)?.incarnation;
        let is = |device: &&Device| device.incarnation == incarnation && device.present;
        self.devices.iter().find(is).map(|device| device.traits)
    }
}
