//! The answering end: one thread that accepts, one short-lived thread for each client.

use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lunet_api::{Answer, Code, Reply, Request, TOO_MANY, read_call};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{FlockOperation, Mode, XattrFlags, fchmod, flock, setxattr};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use socket2::{Domain, SockAddr, Socket, Type};

use super::seats::{OF_USER, Seat, Seats, Taken};
use lunet_api::line;
use lunet_config::place::check_length;

use super::Error;

/// How long a client may take to ask, and again to take the answer.
const TIME: Duration = Duration::from_secs(5);

/// The longest request, in bytes: the configuration of a group, each byte of which may need two.
const MOST: usize = 2 * lunet_group::MAX_TEXT + (16 << 10);

/// The pause after a failed accept, so that a lack of file descriptors does not burn a core.
const PAUSE: Duration = Duration::from_millis(100);

/// Who asks, as the kernel noted it when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// User id of the client's process.
    pub uid: u32,
    /// The process; 0 if it is in a namespace that this one does not see into.
    pub pid: i32,
}

impl Asker {
    fn of(stream: &UnixStream) -> io::Result<Self> {
        let found = rustix::net::sockopt::socket_peercred(stream)?;
        Ok(Self { uid: found.uid.as_raw(), pid: found.pid.as_raw_nonzero().get() })
    }
}

/// Whoever knows the answers.
pub trait Source: Send + Sync + 'static {
    /// Answers a request.
    ///
    /// # Errors
    /// Why there is no answer.
    fn answer(&self, who: Asker, request: Request) -> Result<Answer, lunet_api::Error>;
}

/// The control socket of a running server. Dropping it removes the socket, unless somebody else listens on it, too.
#[derive(Debug)]
pub struct ControlServer {
    placed: Option<Placed>,
    listener: Arc<UnixListener>,
    /// Becomes readable when the thread is to end: a socket that is shared must not be shut down for that.
    end: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Listens at `path`, for this user alone, or on the socket there that is `given`. A socket that a dead server left
    /// there is replaced. Clients wait until [`serve`](Self::serve).
    ///
    /// # Errors
    /// The path is too long, belongs to a live server or to something else, or cannot be used.
    pub fn bind(path: &Path, given: Option<UnixListener>) -> Result<Self, Error> {
        check_length(path)?;
        let is_given = given.is_some();
        let listener = given.map_or_else(|| listen(path), Ok)?;
        let placed = Placed { path: path.to_owned(), is_given };
        let failed = |error| Error::Listen { path: path.to_owned(), error };
        listener.set_nonblocking(true).map_err(failed)?;
        let end = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        Ok(Self {
            placed: Some(placed),
            listener: Arc::new(listener),
            end: Arc::new(end),
            thread: None,
        })
    }

    /// Starts to answer.
    ///
    /// # Errors
    /// The operating system grants no thread.
    pub fn serve(&mut self, source: impl Source) -> io::Result<()> {
        let listener = Arc::clone(&self.listener);
        let source: Arc<dyn Source> = Arc::new(source);
        let end = Arc::clone(&self.end);
        let accept = move || accept(&listener, &end, &source);
        self.thread = Some(thread::Builder::new().name("control".into()).spawn(accept)?);
        Ok(())
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // The file goes first: as long as we listen, no other server takes the path.
        self.placed = None;
        // If that fails the thread must not be waited for.
        let told = rustix::io::write(&self.end, &1u64.to_ne_bytes());
        if let (Some(thread), Ok(_)) = (self.thread.take(), told) {
            let _ = thread.join();
        }
    }
}

/// Listens at `path`, for this user and a group, or on the socket there that is `given`, which is for whom its giver says.
/// A socket that a dead server left there is replaced.
///
/// # Errors
/// See [`ControlServer::bind`]; or this user may not give the socket to the group.
pub fn listen_for(
    path: &Path,
    group: u32,
    given: Option<UnixListener>,
) -> Result<(UnixListener, Placed), Error> {
    check_length(path)?;
    if let Some(listener) = given {
        return Ok((listener, Placed { path: path.to_owned(), is_given: true }));
    }
    let listener = listen(path)?;
    let placed = Placed { path: path.to_owned(), is_given: false };
    let failed = |error: io::Error| Error::Group { path: path.to_owned(), group, error };
    // The group first: at no moment can another one connect.
    match std::os::unix::fs::chown(path, None, Some(group)) {
        Ok(()) => {
            std::fs::set_permissions(path, Permissions::from_mode(0o660)).map_err(failed)?;
        }
        // A service is of no such group, and has no capability to give it the socket.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let_in(path, group).map_err(|_| failed(error))?;
        }
        Err(error) => return Err(failed(error)),
    }
    Ok((listener, placed))
}

/// Lets a group use a socket of this user's by an access control list, which takes no privilege (acl(5)).
fn let_in(path: &Path, group: u32) -> io::Result<()> {
    // Tags of entries.
    const USER_OBJ: u16 = 0x01;
    const GROUP_OBJ: u16 = 0x04;
    const GROUP: u16 = 0x08;
    const MASK: u16 = 0x10;
    const OTHER: u16 = 0x20;
    const READ_WRITE: u16 = 6;
    /// The id of an entry that has none.
    const NOBODY: u32 = u32::MAX;
    let entries = [
        (USER_OBJ, READ_WRITE, NOBODY),
        (GROUP_OBJ, 0, NOBODY),
        (GROUP, READ_WRITE, group),
        (MASK, READ_WRITE, NOBODY),
        (OTHER, 0, NOBODY),
    ];
    // The kernel's form: the version, and the entries in the order of their tags, in little endian.
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend_from_slice(&tag.to_le_bytes());
        list.extend_from_slice(&permissions.to_le_bytes());
        list.extend_from_slice(&id.to_le_bytes());
    }
    Ok(setxattr(path, "system.posix_acl_access", &list, XattrFlags::empty())?)
}

/// The file of a socket, which goes with this unless somebody else listens on it, too.
#[derive(Debug)]
pub struct Placed {
    path: PathBuf,
    is_given: bool,
}

impl Placed {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        if !self.is_given {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn listen(path: &Path) -> Result<UnixListener, Error> {
    let failed = |error| Error::Listen { path: path.to_owned(), error };
    // Two servers that start at once must not both take a dead server's socket for theirs.
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let directory = std::fs::File::open(directory).map_err(failed)?;
    flock(&directory, FlockOperation::NonBlockingLockExclusive)
        .map_err(|error| failed(error.into()))?;
    match bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            clear(path)?;
            bind(path).map_err(failed)
        }
        other => other.map_err(failed),
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // On Linux the file gets the mode of the unbound socket, less the umask: at no moment can
    // another user connect.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(OF_USER as i32)?;
    Ok(UnixListener::from(OwnedFd::from(socket)))
}

/// Removes a socket that nobody listens on.
fn clear(path: &Path) -> Result<(), Error> {
    let failed = |error| Error::Listen { path: path.to_owned(), error };
    let kind = std::fs::symlink_metadata(path).map_err(failed)?.file_type();
    if !kind.is_socket() {
        return Err(Error::NotASocket { path: path.to_owned() });
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(failed)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Err(Error::Denied { path: path.to_owned() })
        }
        _ => Err(Error::Live { path: path.to_owned() }),
    }
}

/// A descriptor that is closed where no other is free, so that the client who comes then can be told.
#[derive(Default)]
struct Spare(Option<OwnedFd>);

impl Spare {
    /// Opens one if there is none. Best effort: what is missing is looked for before each client.
    fn open(&mut self) {
        if self.0.is_none() {
            self.0 = eventfd(0, EventfdFlags::CLOEXEC).ok();
        }
    }

    /// Takes the next client in its place, and turns it away. False if that was no use.
    fn turn_away(&mut self, listener: &UnixListener, error: &io::Error) -> bool {
        let Some(why) = shortage(error) else { return false };
        self.0 = None;
        let accepted = listener.accept();
        if let Ok((stream, _)) = &accepted {
            refuse(stream, why);
        }
        accepted.is_ok()
    }
}

/// What a client is told for whom no descriptor is left; `None` for other errors.
fn shortage(error: &io::Error) -> Option<lunet_api::Error> {
    let (message, fix) = match Errno::from_io_error(error)? {
        Errno::MFILE => {
            let most = getrlimit(Resource::Nofile).current;
            let most = most.map_or_else(String::new, |most| format!(" of {most}"));
            (
                format!(
                    "lunet has no descriptor left to answer with: connections and volumes have all{most} that it may have open"
                ),
                "log initiators out, or raise the limit (`LimitNOFILE=` of the service, `ulimit -n` before `lunet serve`) and restart lunet",
            )
        }
        Errno::NFILE => (
            "lunet cannot answer: this machine has no descriptor left for any program".to_owned(),
            "end programs that have many files open, or raise it by `sysctl fs.file-max`",
        ),
        _ => return None,
    };
    Some(lunet_api::Error::new(Code::Failed, message).fix(fix))
}

fn accept(listener: &UnixListener, end: &OwnedFd, source: &Arc<dyn Source>) {
    let (seats, mut spare) = (Arc::new(Seats::default()), Spare::default());
    loop {
        spare.open();
        let mut both = [PollFd::new(listener, PollFlags::IN), PollFd::new(end, PollFlags::IN)];
        let polled = poll(&mut both, None);
        if !both[1].revents().is_empty() {
            return;
        }
        // Whoever has come may be gone again, and then there is nobody to accept.
        let accepted = polled.map_err(io::Error::from).and_then(|_| listener.accept());
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => {
                if !spare.turn_away(listener, &error) {
                    thread::sleep(PAUSE);
                }
                continue;
            }
        };
        let Some((who, seat)) = admit(&stream, &seats) else { continue };
        let source = Arc::clone(source);
        let client = move || serve(stream, who, &seat, &*source);
        // Without a thread the stream is dropped, and the client sees the end of it.
        let _ = thread::Builder::new().name("control-client".into()).spawn(client);
    }
}

/// Lets a client in, or turns it away, or one that has not asked yet in its place.
fn admit(stream: &UnixStream, seats: &Arc<Seats>) -> Option<(Asker, Seat)> {
    let Ok(who) = Asker::of(stream) else {
        let error = lunet_api::Error::new(Code::Failed, "the kernel does not say who asks");
        refuse(stream, error.fix("try again"));
        return None;
    };
    let copy = match stream.try_clone() {
        Ok(copy) => copy,
        // Without a copy the stream is dropped, and the client sees the end of it.
        Err(error) => {
            shortage(&error).into_iter().for_each(|why| refuse(stream, why));
            return None;
        }
    };
    match seats.take(who.uid, copy) {
        Taken::Free(seat) => Some((who, seat)),
        Taken::InPlaceOf(other, seat) => {
            refuse(&other, too_many());
            // Its thread is done with it.
            let _ = other.shutdown(Shutdown::Both);
            Some((who, seat))
        }
        Taken::None => {
            refuse(stream, too_many());
            None
        }
    }
}

fn serve(stream: UnixStream, who: Asker, seat: &Seat, source: &dyn Source) {
    let reply = match line::receive(&stream, MOST, Instant::now() + TIME) {
        // It was turned away meanwhile.
        _ if !seat.asks() => return,
        Ok(line) => {
            let (client, request) = read_call(&line);
            Reply::to(client, request.and_then(|request| source.answer(who, request)))
        }
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            let message = format!("a request has at most {MOST} bytes");
            Reply::unread(lunet_api::Error::new(Code::BadRequest, message))
        }
        // The client has gone, or has said nothing in time: nobody to answer.
        Err(_) => return,
    };
    // The answer may have taken its time, which is not the client's.
    send(&stream, &reply, Instant::now() + TIME);
}

fn too_many() -> lunet_api::Error {
    lunet_api::Error::new(Code::TooManyClients, TOO_MANY).fix("try again")
}

/// Turns a client away. What it asks was not read, so its version is not known.
fn refuse(stream: &UnixStream, error: lunet_api::Error) {
    // A new socket takes these few bytes at once; the limit is for the case that it does not.
    send(stream, &Reply::unread(error), Instant::now() + PAUSE);
}

fn send(stream: &UnixStream, reply: &Reply<Answer>, deadline: Instant) {
    if let Ok(line) = line::of(reply) {
        // A client that does not take its answer has only itself to blame.
        let _ = line::send(stream, line, deadline);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_group_is_let_in_without_owning_the_socket() {
        let dir = TempDir::new().unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let path = dir.path().join("s");
        let _listener = listen(&path).unwrap();
        let before = path.metadata().unwrap();
        let group = 4_711;
        let_in(&path, group).unwrap();
        let after = path.metadata().unwrap();
        // The mask stands where the group's permissions do.
        assert_eq!((before.mode() & 0o777, after.mode() & 0o777), (0o600, 0o660));
        assert_eq!(before.gid(), after.gid());
        if after.uid() != 0 {
            return;
        }
        // Only root can be somebody else.
        let may = |gid: u32| {
            let mut test = Command::new("test");
            test.arg("-w").arg(&path).uid(65_534).gid(gid).status().unwrap().success()
        };
        assert!(may(group) && !may(group + 1) && !may(before.gid()));
    }
}
