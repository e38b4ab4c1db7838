//! Whether messages take back keys of their receivers (Send with Invalidate), device by device.
//!
//! A device says whether it can, and some that say so fail: it is not used with the drivers that are known for it,
//! and not any more on a device on which such a message has failed at this end. Keys that are not taken back are taken
//! back by the client itself, so nothing else changes.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::PoisonError;

use lunet_os::sync::{Mutex, MutexGuard};

/// Drivers whose devices claim it and fail: those of the network devices that the RDMA devices are on.
const FAILING: &[(&str, &str)] = &[("bnxt_en", "bnxt_re"), ("i40e", "an X722")];

/// Whether Send with Invalidate is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendWithInvalidate {
    /// Where the device says that it can, is not known to fail, and has not failed.
    #[default]
    Auto,
    /// Where the device says that it can.
    On,
    /// Nowhere.
    Off,
}

/// The devices of a server that are used without it, although they say that they can.
pub(crate) struct Invalidation {
    policy: SendWithInvalidate,
    /// Why, by the names of the devices.
    without: Mutex<BTreeMap<String, String>>,
}

impl Invalidation {
    pub(crate) const fn new(policy: SendWithInvalidate) -> Self {
        Self { policy, without: Mutex::new(BTreeMap::new()) }
    }

    /// True if connections that begin now may use it on a device that can.
    pub(crate) fn allows(&self, device: &str) -> bool {
        match self.policy {
            SendWithInvalidate::Auto => !self.lock().contains_key(device),
            SendWithInvalidate::On => true,
            SendWithInvalidate::Off => false,
        }
    }

    /// A device is opened that has this driver. Why it is used without, if that is news.
    pub(crate) fn opened(&self, device: &str, driver: &str) -> Option<String> {
        let (_, what) = FAILING.iter().find(|(name, _)| *name == driver)?;
        self.give_up(device, format_args!("{what} is known to fail with it"))
    }

    /// Such a message has failed at this end. What the log is to say, if that is news.
    pub(crate) fn failed(&self, device: &str, status: impl Display) -> Option<String> {
        self.give_up(device, format_args!("a message with it has failed: {status}"))
    }

    /// The devices among these that are used without it.
    pub(crate) fn without(&self, devices: &[String]) -> Vec<String> {
        let without = self.lock();
        devices.iter().filter(|device| without.contains_key(*device)).cloned().collect()
    }

    fn give_up(&self, device: &str, why: impl Display) -> Option<String> {
        if self.policy != SendWithInvalidate::Auto || !self.allows(device) {
            return None;
        }
        let why = why.to_string();
        self.lock().insert(device.to_owned(), why.clone());
        Some(format!(
            "new connections on {device} are without Send with Invalidate ({why}): set \
             server.send-with-invalidate to \"off\" to have none on any device, or to \"on\" to insist"
        ))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.without.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_has_failed_is_used_without_it_and_no_other() {
        let auto = Invalidation::new(SendWithInvalidate::Auto);
        assert!(auto.allows("a") && auto.without(&["a".to_owned()]).is_empty());
        let line = auto.failed("a", "the device took the work for invalid").expect("it is news");
        assert!(line.contains("on a are without") && line.contains("took the work"), "{line}");
        assert_eq!(auto.failed("a", "again"), None);
        assert!(!auto.allows("a") && auto.allows("b"));
        assert_eq!(auto.without(&["b".to_owned(), "a".to_owned()]), ["a"]);
    }

    #[test]
    fn drivers_that_are_known_to_fail_are_used_without_it() {
        let auto = Invalidation::new(SendWithInvalidate::Auto);
        assert_eq!(auto.opened("mlx5_0", "mlx5_core"), None);
        for (device, driver) in [("roce0", "bnxt_en"), ("x722", "i40e")] {
            assert!(auto.opened(device, driver).is_some_and(|line| line.contains("known to fail")));
            assert_eq!(auto.opened(device, driver), None, "it is news once");
        }
        assert!(auto.allows("mlx5_0") && !auto.allows("roce0") && !auto.allows("x722"));
    }

    #[test]
    fn the_setting_decides_against_what_was_found() {
        let (on, off) =
            (Invalidation::new(SendWithInvalidate::On), Invalidation::new(SendWithInvalidate::Off));
        assert_eq!((on.opened("a", "bnxt_en"), on.failed("a", "it")), (None, None));
        assert!(on.allows("a") && on.without(&["a".to_owned()]).is_empty());
        assert_eq!(off.failed("a", "it"), None);
        assert!(!off.allows("a") && !off.allows("b"));
    }
}
