//! A service manager as far as tests need one: it hears what a service tells it, and keeps the sockets that it is given while the
//! service is started anew (sd_notify(3), sd_listen_fds(3)).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::data::scratch;
use crate::server::{Serve, Server};

const PATIENCE: Duration = Duration::from_secs(60);

/// Becomes the program after it, with the sockets that it is sent as systemd passes them (sd_listen_fds(3)).
const WITH_SOCKETS: &str = "import os, socket, sys\n\
    way = socket.socket(socket.AF_UNIX)\n\
    way.connect(sys.argv[1])\n\
    _, sockets, _, _ = socket.recv_fds(way, 1, 8)\n\
    for at, one in enumerate(sorted(sockets)): os.dup2(one, 3 + at)\n\
    os.environ.update(LISTEN_FDS=str(len(sockets)), LISTEN_PID=str(os.getpid()))\n\
    os.execvp(sys.argv[2], sys.argv[2:])\n";

/// The service manager.
pub struct ServiceManager {
    socket: UnixDatagram,
    place: String,
}

impl ServiceManager {
    /// Hears services by a socket in this directory.
    pub fn new(dir: &Path) -> Result<Self> {
        let path = dir.join("notify");
        let socket = UnixDatagram::bind(&path)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { socket, place: path.to_str().context("a path")?.to_owned() })
    }

    /// Waits for a message that begins so; with the socket that came with it.
    pub fn told(&self, start: &str) -> Result<(String, Option<OwnedFd>)> {
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
    pub fn start(&self, serve: Serve, sockets: &[OwnedFd]) -> Result<Server> {
        let serve = serve.environment("NOTIFY_SOCKET", &self.place);
        if sockets.is_empty() {
            return serve.start();
        }
        let dir = scratch("lunet-sockets-")?;
        let path = dir.path().join("sockets");
        let listening = UnixListener::bind(&path)?;
        let sockets: Vec<OwnedFd> =
            sockets.iter().map(|one| one.try_clone()).collect::<std::io::Result<_>>()?;
        let give = thread::spawn(move || -> Result<()> {
            let (way, _) = listening.accept()?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let all: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
            ensure!(ancillary.push(SendAncillaryMessage::ScmRights(&all)), "too many");
            sendmsg(&way, &[IoSlice::new(b"s")], &mut ancillary, SendFlags::empty())?;
            Ok(())
        });
        let path = path.to_str().context("a path")?;
        let server = serve.by(&["python3", "-c", WITH_SOCKETS, path]).start()?;
        give.join().map_err(|_| anyhow::anyhow!("it has panicked"))??;
        Ok(server)
    }
}
