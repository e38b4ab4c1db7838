//! Listeners, TLS, and connections within their bounds.

use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use base64ct::{Base64, Encoding};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use lunet_api::Interval;
use lunet_api::rates::{Sample, between};
use lunet_files as files;
use rustls::ServerConfig;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower_service::Service as _;
use zeroize::Zeroizing;

use crate::access::clock;
use crate::app::App;
use crate::audit::{Ack, AuditEntry, Notice, Notices};
use crate::folder::{self, FolderError};
use crate::guard::{self, Arrival, Peer};
use crate::patient::Patient;
use crate::routes;
use crate::seats::{Asking, Seat, Seats};
use crate::service::Role;

/// The longest file with certificates or a key, in bytes.
const MOST: u64 = 1 << 20;

/// The pause after a failed accept, so that a lack of file descriptors does not burn a core.
const PAUSE: Duration = Duration::from_millis(100);

/// How long data that was sent may stay without an answer by the client's kernel, or without room there.
const STUCK: Duration = Duration::from_secs(30);

/// A connection whose request has been under way for so long, or whose answer is taken for so long, gives up its place if all
/// others are busy, too.
const LONG: Duration = Duration::from_secs(30);

/// Connections that are told at one time that there are too many.
const REFUSALS: usize = 16;

/// What a client hears that comes when there are too many.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// How long what is to be written at the end may take.
const LAST: Duration = Duration::from_secs(2);

/// When it is tried again to write the audit log.
const AGAIN: Duration = Duration::from_secs(1);

/// How often it is written when tokens were used.
const FLUSH: Duration = Duration::from_secs(60);

/// Where to listen.
#[derive(Clone, Debug, Default)]
pub struct Listeners {
    /// The addresses. One that is not a loopback address is served over TLS.
    pub addresses: Vec<SocketAddr>,
    /// Files of the certificate chain and its key, in PEM; without them there is a self-signed one.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// Why nobody is listened to.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what is wrong")]
pub enum ListenError {
    #[error("{address} is in use by another program")]
    InUse { address: SocketAddr },
    #[error("cannot listen on {address}: {error}")]
    Listen { address: SocketAddr, error: io::Error },
    #[error("cannot use the certificate {path}: {error}")]
    Pem { path: PathBuf, error: PemError },
    #[error("{path} has no certificate")]
    Empty { path: PathBuf },
    #[error("the certificate and its key cannot be used: {0}")]
    Tls(#[from] rustls::Error),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("cannot make a certificate: {0}")]
    Made(#[from] rcgen::Error),
    #[error("cannot write {path}: {error}")]
    Write { path: PathBuf, error: io::Error },
}

/// Sockets that are listened on. Clients wait until they are served.
#[derive(Default)]
pub struct Bound {
    sockets: Vec<(StdListener, SocketAddr)>,
    /// Unix sockets, and what those may do who can use them.
    local: Vec<(StdUnixListener, Role)>,
    tls: Option<TlsAcceptor>,
    fingerprint: Option<String>,
}

impl Bound {
    /// Listens. `names` are in a certificate that is made here, in `directory`.
    ///
    /// # Errors
    /// An address cannot be had, or there is no certificate for those that need one.
    pub fn new(
        listeners: &Listeners,
        names: &[String],
        directory: &Path,
    ) -> Result<Self, ListenError> {
        let mut sockets = Vec::new();
        for address in &listeners.addresses {
            let address = *address;
            sockets.push(StdListener::bind(address).map_err(|error| refused(address, error))?);
        }
        Self::over(sockets, listeners, names, directory)
    }

    /// The same with sockets that listen already, in the order of the addresses.
    ///
    /// # Errors
    /// A socket is none, or there is no certificate for those that need one.
    pub fn over(
        all: Vec<StdListener>,
        listeners: &Listeners,
        names: &[String],
        directory: &Path,
    ) -> Result<Self, ListenError> {
        let mut sockets = Vec::new();
        for (socket, address) in all.into_iter().zip(&listeners.addresses) {
            let failed = |error| refused(*address, error);
            socket.set_nonblocking(true).map_err(failed)?;
            let real = socket.local_addr().map_err(failed)?;
            sockets.push((socket, real));
        }
        let (mut tls, mut fingerprint) = (None, None);
        if sockets.iter().any(|(_, address)| !address.ip().is_loopback()) {
            let files = match &listeners.certificate {
                Some(files) => files.clone(),
                None => self_signed(&listeners.addresses, names, directory)?,
            };
            let (config, hash) = read_pem(&files)?;
            tls = Some(TlsAcceptor::from(Arc::new(config)));
            fingerprint = Some(hash);
        }
        Ok(Self { sockets, local: Vec::new(), tls, fingerprint })
    }

    /// Listens on a Unix socket as well. Whoever can connect to it has this role there, without a token: the mode and
    /// the group of its file say who that is.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn and_local(mut self, socket: StdUnixListener, role: Role) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        self.local.push((socket, role));
        Ok(self)
    }

    /// The addresses of the page, as a browser takes them.
    pub fn urls(&self) -> Vec<String> {
        let url = |(_, address): &(StdListener, SocketAddr)| match address.ip().is_loopback() {
            true => format!("http://{address}/"),
            false => format!("https://{address}/"),
        };
        self.sockets.iter().map(url).collect()
    }

    /// The addresses that are listened on.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().map(|(_, address)| *address).collect()
    }

    /// What those may do who can use the Unix sockets.
    pub fn roles(&self) -> Vec<Role> {
        self.local.iter().map(|(_, role)| *role).collect()
    }

    /// The sockets alone, in the order of the addresses, and then the Unix sockets.
    pub fn into_sockets(self) -> Vec<OwnedFd> {
        let addresses = self.sockets.into_iter().map(|(socket, _)| socket.into());
        addresses.chain(self.local.into_iter().map(|(socket, _)| socket.into())).collect()
    }

    /// SHA-256 of the certificate, if something is served over TLS.
    pub fn fingerprint(&self) -> Option<&str> {
        self.fingerprint.as_deref()
    }
}

fn refused(address: SocketAddr, error: io::Error) -> ListenError {
    match error.kind() {
        ErrorKind::AddrInUse => ListenError::InUse { address },
        _ => ListenError::Listen { address, error },
    }
}

/// Makes a certificate, or finds the one that was made before.
fn self_signed(
    addresses: &[SocketAddr],
    names: &[String],
    directory: &Path,
) -> Result<(PathBuf, PathBuf), ListenError> {
    folder::keep_to_ourselves(directory)?;
    let (certificate, key) = (directory.join("certificate.pem"), directory.join("key.pem"));
    if certificate.exists() && key.exists() {
        return Ok((certificate, key));
    }
    let mut all: Vec<String> = vec!["localhost".to_owned()];
    all.extend(names.iter().cloned());
    let known = addresses.iter().filter(|address| !address.ip().is_unspecified());
    all.extend(known.map(|address| address.ip().to_string()));
    all.sort();
    all.dedup();
    let made = rcgen::generate_simple_self_signed(all)?;
    let write = |path: &Path, text: &str| {
        let made = files::make_directory(directory, 0o700);
        let written = made.and_then(|()| {
            files::replace_as(path, text.as_bytes(), files::Mode::Exactly(0o600))
                .map_err(Into::into)
        });
        written.map_err(|error| ListenError::Write { path: path.to_owned(), error })
    };
    write(&key, &pem("PRIVATE KEY", made.signing_key.serialized_der()))?;
    write(&certificate, &pem("CERTIFICATE", made.cert.der()))?;
    Ok((certificate, key))
}

/// The text form of a key or certificate (RFC 7468).
fn pem(label: &str, der: &[u8]) -> Zeroizing<String> {
    let base64 = Zeroizing::new(Base64::encode_string(der));
    // Room for all of it: a string that grows leaves a copy behind.
    let mut text =
        Zeroizing::new(String::with_capacity(base64.len() * 66 / 64 + 2 * label.len() + 64));
    text.push_str(&format!("-----BEGIN {label}-----\n"));
    let mut rest = base64.as_str();
    while !rest.is_empty() {
        let (line, left) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = left;
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

fn read_pem((chain, key): &(PathBuf, PathBuf)) -> Result<(ServerConfig, String), ListenError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| ListenError::Pem { path: path.clone(), error }
    };
    let open = |path: &Path| match lunet_os::fs::open_regular(path) {
        Ok(file) => Ok(io::BufReader::new(file.take(MOST))),
        Err(error) => Err(failed(path)(PemError::Io(error))),
    };
    let all: Result<Vec<_>, _> = CertificateDer::pem_reader_iter(open(chain)?).collect();
    let all = all.map_err(failed(chain))?;
    let Some(first) = all.first() else { return Err(ListenError::Empty { path: chain.clone() }) };
    let hash: Vec<String> =
        Sha256::digest(first.as_ref()).iter().map(|byte| format!("{byte:02X}")).collect();
    let key = PrivateKeyDer::from_pem_reader(open(key)?).map_err(failed(key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(all, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((config, hash.join(":")))
}

/// Serves until `stopped`.
pub(crate) async fn serve(
    app: Arc<App>,
    bound: Bound,
    notices: Notices,
    stopped: oneshot::Receiver<()>,
) {
    let seats = Seats::new(app.options.limits.connections, LONG);
    for (socket, role) in bound.local {
        match UnixListener::from_std(socket) {
            Ok(listener) => {
                tokio::spawn(accept_local(Arc::clone(&app), listener, role, Arc::clone(&seats)));
            }
            Err(error) => tracing::error!("the REST interface has no Unix socket: {error}"),
        }
    }
    for (socket, address) in bound.sockets {
        let tls = bound.tls.clone().filter(|_| !address.ip().is_loopback());
        match TcpListener::from_std(socket) {
            Ok(listener) => {
                tokio::spawn(accept(Arc::clone(&app), listener, tls, Arc::clone(&seats)));
            }
            Err(error) => tracing::error!("the REST interface cannot listen on {address}: {error}"),
        }
    }
    app.notifier.ends_in(app.log.clone());
    let (ends, end) = oneshot::channel();
    let written = tokio::spawn(keep(Arc::clone(&app), notices, end));
    let ticks = tokio::spawn(tick(Arc::clone(&app)));
    let flushes = tokio::spawn(flush(Arc::clone(&app)));
    let _ = stopped.await;
    for task in [ticks, flushes] {
        task.abort();
    }
    let _ = ends.send(());
    let last = Arc::clone(&app);
    let flushed = tokio::task::spawn_blocking(move || last.access.flush());
    let _ = timeout(LAST, async { tokio::join!(written, flushed) }).await;
}

async fn accept(app: Arc<App>, listener: TcpListener, tls: Option<TlsAcceptor>, seats: Arc<Seats>) {
    let refusals = Arc::new(Semaphore::new(REFUSALS));
    let router = routes::router(&app);
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let Ok(local) = stream.local_addr() else { continue };
        let arrival = Arrival { peer: Peer::Network(peer), local: local.ip(), tls: tls.is_some() };
        let Some(seat) = seats.take(arrival.peer.source()) else {
            let refusal = Arc::clone(&refusals).try_acquire_owned();
            if let (Ok(place), None) = (refusal, &tls) {
                tokio::spawn(async move {
                    refuse(stream).await;
                    drop(place);
                });
            }
            continue;
        };
        let _ = stream.set_nodelay(true);
        let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(STUCK));
        let (app, router, tls) = (Arc::clone(&app), router.clone(), tls.clone());
        let sits = Arc::clone(&seat);
        let serve = async move {
            match tls {
                None => connection(&app, router, stream, arrival, &sits).await,
                Some(tls) => {
                    let limit = app.options.limits.header;
                    if let Ok(Ok(stream)) = timeout(limit, tls.accept(stream)).await {
                        connection(&app, router, stream, arrival, &sits).await;
                    }
                }
            }
        };
        tokio::spawn(seated(seat, serve));
    }
}

/// Serves a connection until it ends, or its place is given to another one.
async fn seated(seat: Arc<Seat>, serve: impl Future<Output = ()>) {
    tokio::select! {
        () = serve => {}
        () = seat.lost() => {}
    }
}

/// Accepts clients of a Unix socket. They are who the kernel says that they are.
async fn accept_local(app: Arc<App>, listener: UnixListener, role: Role, seats: Arc<Seats>) {
    let router = routes::router(&app);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let Ok(user) = stream.peer_cred() else { continue };
        let peer = Peer::User { uid: user.uid(), role };
        let arrival = Arrival { peer, local: IpAddr::V4(Ipv4Addr::LOCALHOST), tls: false };
        let Some(seat) = seats.take(peer.source()) else { continue };
        let (app, router, sits) = (Arc::clone(&app), router.clone(), Arc::clone(&seat));
        let serve = async move { connection(&app, router, stream, arrival, &sits).await };
        tokio::spawn(seated(seat, serve));
    }
}

/// Tells a client that there are too many, and lets it read that.
async fn refuse(mut stream: TcpStream) {
    let told = async {
        stream.write_all(FULL).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
    };
    let _ = timeout(PAUSE, told).await;
}

/// The body of an answer. Until it is sent, the request is under way.
struct Sent {
    body: Body,
    _asking: Asking,
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

async fn connection<S>(
    app: &Arc<App>,
    router: axum::Router,
    stream: S,
    arrival: Arrival,
    seat: &Arc<Seat>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let (app, mut router) = (Arc::clone(app), router.clone());
        let (asking, seat) = (seat.asks(), Arc::clone(seat));
        async move {
            let names = &app.options.names;
            let checked = guard::check(request.uri(), request.headers(), arrival, names);
            let mut response: Response = match checked {
                Err(problem) => problem.into_response(),
                Ok(()) => {
                    let mut request = request.map(Body::new);
                    request.extensions_mut().insert(arrival);
                    request.extensions_mut().insert(seat);
                    match router.call(request).await {
                        Ok(response) => response,
                        Err(never) => match never {},
                    }
                }
            };
            guard::protect(response.headers_mut());
            let whole = response.map(|body| Body::new(Sent { body, _asking: asking }));
            Ok::<_, std::convert::Infallible>(whole)
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(app.options.limits.header);
    builder.max_buf_size(64 << 10);
    // A client that goes, or that speaks something else, has only itself to blame.
    let _ = builder.serve_connection(TokioIo::new(Patient::new(stream, STUCK)), service).await;
}

/// Entries of the audit log that are to be written.
#[derive(Default)]
struct Unwritten {
    entries: Vec<AuditEntry>,
    /// Those that are done only if they are written.
    before: Vec<(AuditEntry, Ack)>,
    /// Of the last of those that the server has sent.
    number: Option<u64>,
    /// Entries of the interface itself, which are in no other log yet.
    own: Vec<AuditEntry>,
}

impl Unwritten {
    fn take(&mut self, app: &App, notices: &Notices, notice: Notice) {
        match notice {
            Notice::Entry(entry, number) => {
                if number.is_none() {
                    self.own.push(entry.clone());
                }
                self.entries.push(entry);
                self.number = number.or(self.number);
            }
            Notice::Before(entry, ack) => self.before.push((entry, ack)),
            Notice::Changed(what) => {
                app.events.send("changed", &serde_json::json!({"what": what}));
                notices.done(1);
            }
        }
    }

    /// Writes them. What cannot be written waits, and is in the log of lunet; what was to be done is not done.
    async fn write(&mut self, app: &App, notices: &Notices) -> io::Result<()> {
        let before = self.before.iter().map(|(entry, _)| entry.clone());
        let all: Vec<AuditEntry> = self.entries.iter().cloned().chain(before).collect();
        let log = app.log.clone();
        let write = tokio::task::spawn_blocking(move || log.append(&all));
        let written = write.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        notices.done(self.before.len());
        // Whoever has gone meanwhile does nothing.
        for (_, ack) in self.before.drain(..) {
            let _ = ack.send(written.is_ok());
        }
        let own = std::mem::take(&mut self.own);
        if written.is_err() {
            for AuditEntry { who, what, outcome, .. } in own {
                tracing::warn!("not in the audit log yet: {who}: {what}: {outcome}");
            }
            return written;
        }
        notices.done(self.entries.len());
        self.entries.clear();
        if let Some(number) = self.number.take() {
            (app.options.written)(number);
        }
        written
    }
}

/// Writes the audit log, and passes on what has changed, until the `end` and what waits then. What cannot be written is
/// tried again.
async fn keep(app: Arc<App>, mut notices: Notices, mut end: oneshot::Receiver<()>) {
    let (mut batch, mut unwritten) = (Vec::new(), Unwritten::default());
    let (mut failed, mut last) = (false, false);
    while !last {
        tokio::select! {
            count = notices.some(&mut batch) => last = count == 0,
            () = sleep(AGAIN), if !unwritten.entries.is_empty() => {}
            _ = &mut end => {
                batch.extend(notices.rest());
                last = true;
            }
        }
        batch.drain(..).for_each(|notice| unwritten.take(&app, &notices, notice));
        if unwritten.entries.is_empty() && unwritten.before.is_empty() {
            continue;
        }
        let written = unwritten.write(&app, &notices).await;
        if let (Err(error), false) = (&written, failed) {
            tracing::error!("the audit log cannot be written: {error}");
        }
        failed = written.is_err();
    }
}

/// Once in each interval, tells those who listen what the server has done.
async fn tick(app: Arc<App>) {
    let mut before: Option<Sample> = None;
    loop {
        if app.events.idle() {
            before = None;
            // Nobody is woken for nobody.
            app.events.heard().await;
        } else {
            sleep(app.options.limits.interval).await;
        }
        let Ok(sample) = app.sample(&app.looking).await else { continue };
        if let Some(old) = &before {
            if let Some(rates) = between(old, &sample) {
                app.events.send("interval", &Interval { time: clock(), rates });
            }
            if let Some(verdict) = lunet_verdict::between(old, &sample) {
                app.events.send("verdict", &verdict);
            }
            let who = |sample: &Sample| -> Vec<(u16, String)> {
                let sessions = sample.sessions.iter();
                sessions.map(|one| (one.tsih, one.peer.clone())).collect()
            };
            if who(old) != who(&sample) {
                app.events.send("changed", &serde_json::json!({"what": "sessions"}));
            }
        }
        before = Some(sample);
    }
}

/// Writes now and then when tokens were used.
async fn flush(app: Arc<App>) {
    loop {
        app.access.touched().await;
        sleep(FLUSH).await;
        let app = Arc::clone(&app);
        let _ = tokio::task::spawn_blocking(move || app.access.flush()).await;
    }
}
