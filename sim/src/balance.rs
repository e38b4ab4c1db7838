//! Buffer memory of the server's shards: what connections have taken comes back with their end.

use std::time::Duration;

use anyhow::{Result, ensure};
use lunet_os::thread;
use lunet_server::front::Front;
use lunet_server::server::Handle;

use crate::site::now;

/// Connections of hosts that went without a word may take longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes in use on each shard.
#[derive(Debug, PartialEq, Eq)]
pub struct Balance(Vec<usize>);

impl Balance {
    /// As it is now.
    pub fn of<F: Front>(server: &Handle<F>) -> Self {
        Self(server.stats().loads.iter().map(|load| load.buffer_used_bytes).collect())
    }

    /// Whether it is as it was, without connections.
    ///
    /// # Errors
    /// More or less is in use.
    pub fn check<F: Front>(&self, server: &Handle<F>) -> Result<()> {
        let until = now() + PATIENCE;
        loop {
            let connections: usize = server.stats().loads.iter().map(|load| load.connections).sum();
            let present = Self::of(server);
            if present == *self {
                return Ok(());
            }
            if now() > until {
                let more = "of buffer memory in use without a connection";
                ensure!(connections > 0, "{:?} bytes {more}, {:?} before", present.0, self.0);
                return Ok(());
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}
