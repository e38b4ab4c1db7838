//! RDMA devices, for the programs that the lab runs over soft RoCE.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use lunet_ring::{Buf, Payload};
use lunet_verbs::{Device, Library, NotQueued, Pieces, Sysfs};

/// The device that carries an address.
///
/// # Errors
/// There is none, or rdma-core cannot drive it.
pub fn device(library: &Arc<Library>, address: IpAddr) -> Result<Device> {
    let devices = library.devices()?;
    Library::check_providers(&devices, &Sysfs::default())?;
    let (port, _) = Sysfs::default().port_of(address)?;
    devices
        .into_iter()
        .find(|device| device.name() == port.device)
        .with_context(|| format!("{} was not opened", port.device))
}

/// The whole of a buffer, as data to send.
pub fn whole(buf: Buf) -> Pieces {
    let len = buf.len();
    [(Payload::from(buf), 0..len)].into_iter().collect()
}

/// What queuing work says, without the memory that comes back.
pub trait WhyError {
    /// The reason.
    fn why_error(&self) -> anyhow::Error;
}

impl<T> WhyError for Box<NotQueued<T>> {
    fn why_error(&self) -> anyhow::Error {
        anyhow::Error::msg(self.to_string())
    }
}
