//! A restart as a service manager does it, which keeps the sockets of portals meanwhile (FDSTORE in sd_notify(3)).

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunet_e2e::data::scratch;
use lunet_e2e::server::{Serve, Server, free_port};
use lunet_e2e::wire::{Login, Session};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

const TARGET: &str = "iqn.2026-11.local.lunet:kept";
const PATIENCE: Duration = Duration::from_secs(60);

/// Becomes the program after it, with the sockets that it is sent as systemd passes them (sd_listen_fds(3)).
const WITH_SOCKETS: &str = "import os, socket, sys\n\
    way = socket.socket(socket.AF_UNIX)\n\
    way.connect(sys.argv[1])\n\
    _, sockets, _, _ = socket.recv_fds(way, 1, 8)\n\
    for at, one in enumerate(sorted(sockets)): os.dup2(one, 3 + at)\n\
    os.environ.update(LISTEN_FDS=str(len(sockets)), LISTEN_PID=str(os.getpid()))\n\
    os.execvp(sys.argv[2], sys.argv[2:])\n";

/// A service manager as far as the test needs one.
struct ServiceManager {
    socket: UnixDatagram,
    place: String,
}

impl ServiceManager {
    fn new(dir: &Path) -> Result<Self> {
        let path = dir.join("notify");
        let socket = UnixDatagram::bind(&path)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { socket, place: path.to_str().context("a path")?.to_owned() })
    }

    /// Waits for a message that begins so; with the socket that came with it.
    fn told(&self, start: &str) -> Result<(String, Option<OwnedFd>)> {
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let (mut ancillary, mut text) = (RecvAncillaryBuffer::new(&mut space), [0; 1024]);
            let mut into = [IoSliceMut::new(&mut text)];
            let got = recvmsg(&self.socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
                .with_context(|| format!("nothing like {start}"))?;
            let mut sockets = ancillary.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
                _ => None,
            });
            let socket = sockets.next().and_then(|mut sockets| sockets.next());
            let text = String::from_utf8_lossy(&text[..got.bytes]).into_owned();
            if text.starts_with(start) {
                return Ok((text, socket));
            }
        }
    }

    /// Starts a server with these sockets.
    fn start(&self, serve: Serve, dir: &Path, sockets: &[OwnedFd]) -> Result<Server> {
        let serve = serve.environment("NOTIFY_SOCKET", &self.place);
        if sockets.is_empty() {
            return serve.start();
        }
        let path = dir.join("sockets");
        let listening = UnixListener::bind(&path)?;
        let sockets: Vec<OwnedFd> =
            sockets.iter().map(|one| one.try_clone()).collect::<std::io::Result<_>>()?;
        let give = thread::spawn(move || -> Result<()> {
            let (way, _) = listening.accept()?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let all: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
            ensure!(ancillary.push(SendAncillaryMessage::ScmRights(&all)), "too many");
            sendmsg(&way, &[std::io::IoSlice::new(b"s")], &mut ancillary, SendFlags::empty())?;
            Ok(())
        });
        let path = path.to_str().context("a path")?;
        let server = serve.by(&["python3", "-c", WITH_SOCKETS, path]).start()?;
        give.join().map_err(|_| anyhow::anyhow!("it has panicked"))??;
        Ok(server)
    }
}

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
    let server = manager.start(serve(), dir.path(), &[])?;
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
    let server = manager.start(serve(), dir.path(), &kept)?;
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
