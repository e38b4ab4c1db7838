//! Listening sockets of the service manager: those that it keeps while lunet is started anew (FDSTORE in sd_notify(3)), so that
//! clients that connect meanwhile wait for the next run, and are not refused; and control sockets that it listens on itself
//! (systemd.socket(5)), so that the first command starts lunet.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use listenfd::ListenFd;
use lunet_server::inherited;

use crate::manager::Manager;

/// What the service manager keeps.
pub struct Kept {
    manager: Manager,
    /// The names of the sockets there, by their addresses.
    names: BTreeMap<SocketAddr, String>,
    /// Control sockets that it listens on.
    local: Vec<UnixListener>,
}

impl Kept {
    /// Takes over what the service manager has kept since the last run. To be called before anything listens; without a
    /// service manager nothing is kept.
    pub fn begin(manager: &Manager) -> Self {
        let mut names = BTreeMap::new();
        let mut all = ListenFd::from_env();
        let local = (0..all.len()).filter_map(|at| all.take_unix_listener(at).ok().flatten());
        let local = local.collect();
        if manager.is_there() {
            let given: Vec<_> = portals(&mut all).collect();
            for address in given.iter().filter_map(|one| one.local_addr().ok()) {
                names.insert(address, name(address));
            }
            if !given.is_empty() {
                tracing::info!("{} portals were listened on since the last run", given.len());
            }
            inherited::keep(given);
        }
        Self { manager: manager.clone(), names, local }
    }

    /// The socket that the service manager listens on at this path, if it does.
    pub fn take_local(&mut self, path: &Path) -> Option<UnixListener> {
        let is_there = |one: &UnixListener| {
            one.local_addr().is_ok_and(|address| address.as_pathname() == Some(path))
        };
        let at = self.local.iter().position(is_there)?;
        Some(self.local.swap_remove(at))
    }

    /// Tells the service manager which portals are new and which are gone. Without one nobody asks where they are.
    pub fn update(&mut self, portals: impl FnOnce() -> Vec<SocketAddr>) {
        if !self.manager.is_there() {
            return;
        }
        let portals = portals();
        for (address, listener) in inherited::take(&portals) {
            let name = name(address);
            self.manager.keep(&name, listener.as_fd());
            self.names.insert(address, name);
        }
        self.names.retain(|address, name| {
            let is_served = portals.contains(address);
            if !is_served {
                self.manager.keep_no_more(name);
            }
            is_served
        });
    }
}

/// The sockets of portals, of those that this process was started with.
fn portals(all: &mut ListenFd) -> impl Iterator<Item = TcpListener> {
    (0..all.len()).filter_map(|at| all.take_tcp_listener(at).ok().flatten())
}

/// The name of a portal's socket: a colon would end it.
fn name(address: SocketAddr) -> String {
    format!("portal-{address}").replace(':', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_colon() {
        let of = |text: &str| name(text.parse().expect("an address"));
        assert_eq!(of("10.0.0.1:3260"), "portal-10.0.0.1_3260");
        assert_eq!(of("[fd00::1]:3260"), "portal-[fd00__1]_3260");
    }
}
