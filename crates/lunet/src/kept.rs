//! Listening sockets that the service manager keeps while lunet is started anew (FDSTORE in sd_notify(3)): clients that connect
//! meanwhile wait for the next run, and are not refused.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;

use listenfd::ListenFd;
use lunet_server::inherited;

use crate::manager::Manager;

/// What the service manager keeps.
pub struct Kept {
    manager: Manager,
    /// The names of the sockets there, by their addresses.
    names: BTreeMap<SocketAddr, String>,
}

impl Kept {
    /// Takes over what the service manager has kept since the last run. To be called before anything listens; without a
    /// service manager nothing is kept.
    pub fn begin(manager: &Manager) -> Self {
        let mut names = BTreeMap::new();
        if manager.is_there() {
            let given = given();
            for address in given.iter().filter_map(|one| one.local_addr().ok()) {
                names.insert(address, name(address));
            }
            if !given.is_empty() {
                tracing::info!("{} portals were listened on since the last run", given.len());
            }
            inherited::keep(given);
        }
        Self { manager: manager.clone(), names }
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

/// The sockets that listen, of those that this process was started with. Others are none of ours.
fn given() -> Vec<TcpListener> {
    let mut all = ListenFd::from_env();
    (0..all.len()).filter_map(|at| all.take_tcp_listener(at).ok().flatten()).collect()
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
