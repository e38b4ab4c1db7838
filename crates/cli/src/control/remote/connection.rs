//! Connections to the REST interface: TCP with or without TLS, or a Unix socket.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{TrySendError, http1};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::{IDLE, MOST, TIME, Tls, Trouble};

/// How a server is reached.
#[derive(Clone)]
pub(super) enum Way {
    /// By TCP: with TLS, or without it to loopback addresses.
    Tcp(Tls),
    /// By the socket with this path, if its listener is trusted.
    Unix { path: PathBuf, trusted: fn(&UnixStream) -> bool },
}

pub(super) type HttpRequest = Request<Full<Bytes>>;
type Sender = http1::SendRequest<Full<Bytes>>;

impl Way {
    /// Connects. TLS has verified the server's certificate when this returns.
    async fn connect(&self, authority: &str) -> Result<Sender, Trouble> {
        match self {
            Self::Unix { path, trusted } => {
                let stream = UnixStream::connect(path)?;
                if !trusted(&stream) {
                    return Err(io::Error::from(ErrorKind::PermissionDenied).into());
                }
                stream.set_nonblocking(true)?;
                start(tokio::net::UnixStream::from_std(stream)?).await
            }
            Self::Tcp(tls) => {
                let found = tokio::net::lookup_host(authority).await.map_err(|_| {
                    Trouble::Unreachable(io::Error::other("no machine has that name"))
                })?;
                let addresses: Vec<SocketAddr> = found.collect();
                // The hosts file decides what `localhost` is.
                if tls.is_none() && !addresses.iter().all(|address| address.ip().is_loopback()) {
                    return Err(Trouble::Plain);
                }
                let stream = TcpStream::connect(&addresses[..]).await?;
                stream.set_nodelay(true)?;
                let Some((config, name)) = tls else { return start(stream).await };
                let tls = TlsConnector::from(Arc::clone(config));
                start(tls.connect(name.clone(), stream).await?).await
            }
        }
    }
}

/// Starts HTTP on a stream.
async fn start(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<Sender, Trouble> {
    let stream = TokioIo::new(WriteFirst { stream, written: false });
    let (sender, connection) = http1::handshake(stream).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// A stream that is not read before the request is written. A server with too many clients answers without reading, and
/// hyper discards an answer that precedes its request.
struct WriteFirst<S> {
    stream: S,
    written: bool,
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteFirst<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.written {
            true => Pin::new(&mut self.stream).poll_read(context, buffer),
            // The same task writes, and is woken by that.
            false => Poll::Pending,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteFirst<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if !self.written {
            self.written = true;
            context.waker().wake_by_ref();
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A connection, with the runtime that serves it.
pub(super) struct Connection {
    runtime: Runtime,
    sender: Sender,
    /// When the last answer was read.
    used: Instant,
}

impl Connection {
    pub fn open(way: &Way, authority: &str) -> Result<Self, Trouble> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let connected = runtime.block_on(async { timeout(TIME, way.connect(authority)).await });
        match connected.unwrap_or(Err(Trouble::Silent)) {
            Ok(sender) => Ok(Self { runtime, sender, used: Instant::now() }),
            Err(trouble) => {
                // A name server that does not answer is not waited for.
                runtime.shutdown_background();
                Err(trouble)
            }
        }
    }

    /// Whether the server keeps the connection for another request.
    pub fn is_usable(&self) -> bool {
        self.used.elapsed() < IDLE && !self.sender.is_closed()
    }

    /// Sends a request, and waits for the head of its answer. An error of hyper has the request if none of it was sent.
    pub fn send(
        &mut self,
        request: HttpRequest,
        wait: Duration,
    ) -> Result<Result<Response<Incoming>, TrySendError<HttpRequest>>, Trouble> {
        let Self { runtime, sender, .. } = self;
        let send = async {
            // If the connection has ended, sending says so, too.
            let _ = sender.ready().await;
            sender.try_send_request(request).await
        };
        let sent = runtime.block_on(async { timeout(wait, send).await });
        sent.map_err(|_| Trouble::Silent)
    }

    /// Reads the body of an answer.
    pub fn read(&mut self, body: Incoming) -> Result<Bytes, Trouble> {
        let body = async { timeout(TIME, Limited::new(body, MOST).collect()).await };
        let read = self.runtime.block_on(body).map_err(|_| Trouble::Silent)?;
        self.used = Instant::now();
        match read {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) => Err(match error.downcast::<hyper::Error>() {
                Ok(error) => (*error).into(),
                Err(error) => Trouble::Strange(error.to_string()),
            }),
        }
    }
}
