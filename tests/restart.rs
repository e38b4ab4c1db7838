//! A restart as a service manager does it, which keeps the sockets of portals meanwhile (FDSTORE in sd_notify(3)).

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};
use lunet_e2e::data::scratch;
use lunet_e2e::manager::ServiceManager;
use lunet_e2e::server::{Serve, free_port, lunet_binary};
use lunet_e2e::wire::{Login, Session};

const TARGET: &str = "iqn.2026-11.local.lunet:kept";

#[test]
fn who_connects_during_a_restart_waits_and_is_served() -> Result<()> {
    let dir = scratch("lunet-restart-")?;
    let manager = ServiceManager::new(dir.path())?;
    let ports = [free_port()?, free_port()?];
    let [own, other] = ports.map(|port| format!("127.0.0.1:{port}"));
    let config = format!(
        "[[portal]]\naddress = '{own}'\n[[portal]]\naddress = '{other}'\n\
         [volumes.v]\nbackend = 'memory'\nsize = '1MiB'\n[[target]]\nname = '{TARGET}'\nluns = ['v']\n"
    );
    let data = dir.path().join("data");
    std::fs::create_dir(&data)?;
    let serve = || Serve::config(config.clone()).data(&data);
    let server = manager.start(serve(), &[])?;
    let mut kept = Vec::new();
    for port in ports {
        let (text, socket) = manager.told("FDSTORE=1")?;
        ensure!(text.ends_with(&format!("FDNAME=portal-127.0.0.1_{port}")), "{text}");
        kept.push(socket.context("no socket came")?);
    }
    manager.told("READY=1")?;
    server.stop()?;

    // The queue takes it in, though there is no server.
    let portal = own.clone();
    let early = thread::spawn(move || Session::open(&Login::new(&portal, TARGET)).map(drop));
    let server = manager.start(serve(), &kept)?;
    early.join().map_err(|_| anyhow::anyhow!("it has panicked"))??;
    // A portal that goes is not kept any longer, and nobody listens there when the service manager has closed it.
    kept.remove(1);
    server.tell(&["portal", "remove", &other])?;
    let (text, _) = manager.told("FDSTOREREMOVE=1")?;
    ensure!(text.ends_with(&format!("FDNAME=portal-127.0.0.1_{}", ports[1])), "{text}");
    let free = TcpListener::bind(&other).with_context(|| format!("{other} is in use"));
    drop(free?);
    server.stop()?;
    Ok(())
}

/// Commands wait on a socket that the service manager listens on, and find it there when lunet has stopped.
#[test]
fn commands_wait_for_a_server_on_the_service_managers_socket() -> Result<()> {
    let dir = scratch("lunet-socket-")?;
    let manager = ServiceManager::new(dir.path())?;
    let data = dir.path().join("data");
    std::fs::create_dir(&data)?;
    let place = data.join("lunet.sock");
    let socket = OwnedFd::from(UnixListener::bind(&place)?);
    let config = format!(
        "[[portal]]\naddress = '127.0.0.1:0'\n[volumes.v]\nbackend = 'memory'\nsize = '1MiB'\n[[target]]\nname = '{TARGET}'\nluns = ['v']\n"
    );
    for _ in 0..2 {
        let path = place.to_str().context("a path")?.to_owned();
        let program = lunet_binary()?;
        let early = thread::spawn(move || {
            Command::new(program).args(["volume", "list", "--socket", &path]).output()
        });
        let sockets = [socket.try_clone()?];
        let server = manager.start(Serve::config(config.clone()).data(&data), &sockets)?;
        let output = early.join().map_err(|_| anyhow::anyhow!("it has panicked"))??;
        let told = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success() && told.contains("1 MiB"), "{output:?}");
        ensure!(server.tell(&["volume", "list"])?.contains("1 MiB"));
        server.stop()?;
        ensure!(place.exists(), "the socket is the service manager's");
    }
    Ok(())
}
