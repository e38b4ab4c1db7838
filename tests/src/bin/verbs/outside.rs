//! Trials about the machine: what it has, what it refuses, and what it takes away.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use lunet_e2e::rdma::{WhyError, device};
use lunet_ring::Arena;
use lunet_verbs::{Adapter, AdapterConfig, Error, Library, Pieces, Sysfs};

use crate::machine::{Machine, expect};

/// What is known of the device; one line.
pub fn facts(address: IpAddr, _: u64) -> Result<()> {
    let library = Library::open()?;
    let device = device(&library, address)?;
    let (port, gid) = Sysfs::default().port_of(address)?;
    let state = device.port(port.port)?;
    ensure!(state.active && state.mtu.bytes() >= 256, "{state:?}");
    ensure!(device.next_event()?.is_none(), "nothing has happened to the device");
    println!(
        "{} port {} {:?} GID {} at {:?}, MTU {} of {} bytes, {:?}",
        device.name(),
        port.port,
        gid.kind,
        gid.index,
        gid.interface,
        state.mtu.bytes(),
        state.max_mtu.bytes(),
        device.limits()
    );
    Ok(())
}

/// An address that no device carries.
pub fn no_device(address: IpAddr, _: u64) -> Result<()> {
    match Sysfs::default().port_of(address) {
        Err(error @ Error::NoDevice { .. }) => println!("{error}"),
        other => bail!("{other:?}"),
    }
    Ok(())
}

/// More memory than the process may lock: run with a low limit.
pub fn locked(address: IpAddr, _: u64) -> Result<()> {
    let library = Library::open()?;
    let device = device(&library, address)?;
    let arena = Arena::new(32 << 20)?;
    let config = AdapterConfig { completions: 64, shared_receives: None, interrupt: 0 };
    match Adapter::open(&device, &arena, &config) {
        Err(error @ Error::LockedMemory { .. }) => println!("{error}"),
        other => bail!("{other:?}"),
    }
    Ok(())
}

/// The port's link is down: run when it is.
pub fn link_down(address: IpAddr, _: u64) -> Result<()> {
    match Sysfs::default().port_of(address) {
        Err(error @ (Error::LinkDown { .. } | Error::NoDevice { .. })) => println!("{error}"),
        other => bail!("{other:?}"),
    }
    Ok(())
}

/// A connection with work in flight, until the process is killed.
pub fn hold(address: IpAddr, _: u64) -> Result<()> {
    let mut machine = Machine::new(address, None)?;
    let (pair, _) = machine.connected()?;
    let queued = machine.adapter.queue_send(pair.near, b"x", Pieces::new(), None, (0, true));
    queued.map_err(|e| e.why_error())?;
    machine.adapter.flush();
    println!("holding");
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}

/// The device goes away under a connection: run while that happens. When it is told, the program lets
/// go of everything, so that the kernel can.
pub fn removed(address: IpAddr, _: u64) -> Result<()> {
    let mut machine = Machine::new(address, None)?;
    let (_, [near, _]) = machine.connected()?;
    println!("holding");
    expect(&machine.event(near)?, "DeviceRemoval")?;
    let (adapter, arena) = machine.silent();
    drop(adapter);
    ensure!(arena.free_bytes() == arena.total_bytes(), "memory is missing");
    println!("let go");
    Ok(())
}
