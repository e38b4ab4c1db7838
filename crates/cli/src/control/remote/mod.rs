//! The REST interface of a lunet, asked instead of its control socket: the same requests, answers and errors.
//!
//! Nothing but the server that was named gets the token: its certificate is judged before anything is sent, redirects are
//! not followed, and no proxy is used.

mod connection;
mod routes;
mod tls;

use std::error::Error as _;
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, IF_MATCH, LOCATION, USER_AGENT,
};
use hyper::{StatusCode, Uri};
use lunet_api::{Code, Preview, Request};
use lunet_iscsi::printable::printable;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use zeroize::Zeroizing;

pub use super::tame::one_line;
use super::tame::tame;
use lunet_config::place::{ADMIN, READ};

use super::Error;
use connection::{Connection, HttpRequest, Way};
use lunet_config::CONTROL_PORT;
use routes::Asked;
pub use tls::{Fingerprint, Trust};

/// How long the server has to answer. It gives up itself after 10 seconds, and says so.
const TIME: Duration = Duration::from_secs(15);

/// How long it has for a change, as over the control socket. Connecting and reading the answer have [`TIME`] each.
const LONG_TIME: Duration = Duration::from_secs(3600);

/// How long a connection without requests is used again: the server ends it after 10 seconds.
const IDLE: Duration = Duration::from_secs(5);

/// The longest answer that is read, in bytes, as over the control socket.
const MOST: usize = 64 << 20;

const JSON: &str = "application/json";
const PROBLEM: &str = "application/problem+json";

/// Why a REST interface cannot be used, each in one plain sentence.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the variants' messages say what they and their fields mean")]
pub enum Trouble {
    #[error("this is no address of a lunet: write https://HOST or https://HOST:PORT")]
    Url,
    #[error(
        "http:// is for loopback addresses alone, since others on the way could read the token: write https://"
    )]
    Plain,
    #[error("the token cannot be sent: it has characters that no token has")]
    Token,
    #[error("cannot use the certificates in {}: {error}: name a file in PEM with --server-ca", .path.display())]
    Authorities { path: PathBuf, error: String },
    #[error(
        "this system has no trusted certificates: say whose is trusted with --server-fingerprint or --server-ca"
    )]
    NoAuthorities,
    #[error(
        "nobody answers there ({0}): see whether that lunet runs, and listens on this address (`listen` of [control])"
    )]
    Unreachable(std::io::Error),
    #[error("lunet does not answer in time: see its log, and whether the network is up")]
    Silent,
    #[error("lunet has ended before it answered: see its log, and whether it runs again")]
    Ended,
    #[error(
        "what answers speaks no TLS: see whether this is the address and the port of a lunet that listens on more than \
         loopback addresses"
    )]
    NoTls,
    #[error("TLS fails ({0}): see whether this is the address of a lunet")]
    Tls(String),
    #[error(
        "its certificate is not trusted ({why}): if `lunet serve` prints `certificate: SHA-256 {found}` there, add \
         --server-fingerprint {found}"
    )]
    Untrusted { found: Fingerprint, why: String },
    #[error(
        "its certificate has the fingerprint {found}, and not {pinned}: somebody may be on the way; if lunet has another \
         certificate by now, give the fingerprint that `lunet serve` prints there"
    )]
    OtherCertificate { found: Fingerprint, pinned: Fingerprint },
    #[error(
        "the token is not known there, or has expired: make a new one on the page, and write it into the file of --token-file"
    )]
    Unauthenticated,
    #[error(
        "it sends its clients to {0}, and the token is sent nowhere else: name the address of lunet itself with --server"
    )]
    Redirect(String),
    #[error("it has too many clients at once: try again")]
    Busy,
    #[error(
        "what answers is no lunet, or one of another version ({0}): name the right one with --server"
    )]
    Strange(String),
}

impl From<rustls::Error> for Trouble {
    fn from(error: rustls::Error) -> Self {
        use rustls::{CertificateError, Error as Tls};
        match &error {
            Tls::InvalidCertificate(CertificateError::Other(other)) => {
                match other.0.downcast_ref::<tls::Refused>() {
                    Some(&tls::Refused { found, pinned: Some(pinned), .. }) => {
                        Self::OtherCertificate { found, pinned }
                    }
                    Some(refused) => {
                        Self::Untrusted { found: refused.found, why: refused.to_string() }
                    }
                    None => Self::Tls(error.to_string()),
                }
            }
            Tls::InvalidMessage(_) => Self::NoTls,
            _ => Self::Tls(error.to_string()),
        }
    }
}

impl Trouble {
    /// What ended a connection, if that is known.
    fn of(error: &io::Error) -> Option<Self> {
        if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            return Some(tls.clone().into());
        }
        match error.kind() {
            ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe => Some(Self::Ended),
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Some(Self::Silent),
            _ => None,
        }
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::of(&error).unwrap_or(Self::Unreachable(error))
    }
}

impl From<hyper::Error> for Trouble {
    fn from(error: hyper::Error) -> Self {
        let cause = error.source().and_then(|cause| cause.downcast_ref());
        if let Some(trouble) = cause.and_then(Self::of) {
            return trouble;
        }
        match error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
            true => Self::Ended,
            false => Self::Strange(error.to_string()),
        }
    }
}

/// An error, as the REST interface sends it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Problem {
    code: Code,
    message: String,
    fix: String,
}

/// An answer of HTTP.
struct Received {
    status: StatusCode,
    /// The type of the body, without parameters.
    media: String,
    /// Where a redirect leads to.
    location: String,
    body: Bytes,
}

/// The Host of requests over a Unix socket.
const HERE: &str = "localhost";

/// Where a REST interface is, who asks it, and how it shows who it is.
#[derive(Clone)]
pub struct Remote {
    /// As it is shown: an address, or the path of a Unix socket.
    server: String,
    /// HOST:PORT.
    authority: String,
    /// None over a Unix socket: the kernel says who asks.
    token: Option<Zeroizing<String>>,
    way: Way,
    /// The connection of the last request, for the next one.
    kept: Arc<Mutex<Option<Connection>>>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Remote {
    /// Asks the REST interface at this address with this token. Nothing is sent yet.
    ///
    /// # Errors
    /// It is no such address, or the certificates that are trusted cannot be read.
    pub fn new(server: &str, token: Zeroizing<String>, trust: &Trust) -> Result<Self, Error> {
        let wrong = |trouble| Error::Remote { server: server.to_owned(), trouble };
        let (base, tls) = place(server, trust).map_err(wrong)?;
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong(Trouble::Token));
        }
        let authority = base.split("://").last().unwrap_or_default().to_owned();
        let (way, kept) = (Way::Tcp(tls), Arc::default());
        Ok(Self { server: base, authority, token: Some(token), way, kept })
    }

    /// The REST interface at a Unix socket beside this control socket, if this user may use one: that of administrators
    /// before that of those who read. `trusted` says whether whoever listens there is to be asked.
    pub(super) fn beside(control: &Path, trusted: fn(&UnixStream) -> bool) -> Option<Self> {
        let places = [ADMIN, READ].map(|name| control.with_file_name(name));
        let path = places
            .into_iter()
            .find(|path| UnixStream::connect(path).is_ok_and(|stream| trusted(&stream)))?;
        let server = path.display().to_string();
        let (way, kept) = (Way::Unix { path, trusted }, Arc::default());
        Some(Self { server, authority: HERE.to_owned(), token: None, way, kept })
    }

    /// The address.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Asks what the control socket is asked, too.
    pub(super) fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, Error> {
        let changes = matches!(
            request,
            Request::Change { .. }
                | Request::SetGroupConfig { .. }
                | Request::MoveGroup { .. }
                | Request::TakeOverGroup { .. }
        );
        self.answer(&routes::of(request).map_err(Error::Refused)?, changes)
    }

    /// What a configuration with this text would change.
    ///
    /// # Errors
    /// As those of [`Client`](super::Client).
    pub fn check(&self, text: &str) -> Result<Preview, Error> {
        self.answer(&routes::of_text(text).map_err(Error::Refused)?, false)
    }

    /// Asks for something that the control socket does not have: a job. `parts` are those of the path.
    ///
    /// # Errors
    /// As those of [`Client`](super::Client).
    pub fn other<T: DeserializeOwned>(
        &self,
        method: &'static str,
        parts: &[&str],
        body: Option<&serde_json::Value>,
    ) -> Result<T, Error> {
        let asked = Asked::new(method, parts).and_then(|asked| match body {
            Some(body) => asked.with(body),
            None => Ok(asked),
        });
        self.answer(&asked.map_err(Error::Refused)?, false)
    }

    fn answer<T: DeserializeOwned>(&self, asked: &Asked, changes: bool) -> Result<T, Error> {
        let failed = |trouble| Error::Remote { server: self.server.clone(), trouble };
        let Received { status, media, location, body } =
            self.exchange(asked, changes).map_err(failed)?;
        if status.is_success() && media == JSON {
            let strange = |error: serde_json::Error| failed(Trouble::Strange(error.to_string()));
            let mut answer: Value = serde_json::from_slice(&body).map_err(strange)?;
            tame(&mut answer, "");
            return serde_json::from_value(answer).map_err(strange);
        }
        if status.is_redirection() {
            return Err(failed(Trouble::Redirect(location)));
        }
        if status == StatusCode::SERVICE_UNAVAILABLE && body.is_empty() {
            return Err(failed(Trouble::Busy));
        }
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) if media == PROBLEM => Err(match problem.code.as_str() {
                "unauthenticated" => failed(Trouble::Unauthenticated),
                _ => Error::Refused(
                    lunet_api::Error::new(problem.code, one_line(&problem.message))
                        .fix(one_line(&problem.fix)),
                ),
            }),
            _ => Err(failed(Trouble::Strange(format!(
                "HTTP status {}, type {media:?}",
                status.as_u16()
            )))),
        }
    }

    /// The request, as HTTP has it.
    fn request(&self, asked: &Asked) -> Result<HttpRequest, Trouble> {
        let mut request = hyper::Request::builder()
            .method(asked.method)
            .uri(&asked.path)
            .header(HOST, &self.authority)
            .header(USER_AGENT, concat!("lunet/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = &self.token {
            let bearer = Zeroizing::new(format!("Bearer {}", **token));
            let mut bearer = HeaderValue::from_str(&bearer).map_err(|_| Trouble::Token)?;
            // It is not shown where headers are.
            bearer.set_sensitive(true);
            request = request.header(AUTHORIZATION, bearer);
        }
        if let Some(tag) = asked.if_match {
            request = request.header(IF_MATCH, tag);
        }
        let body = match (asked.method, &asked.body) {
            ("GET" | "DELETE", _) => Bytes::new(),
            (_, body) => {
                request = request.header(CONTENT_TYPE, JSON);
                body.clone().map_or(Bytes::from_static(b"{}"), Bytes::from_owner)
            }
        };
        request.body(Full::new(body)).map_err(|_| Trouble::Token)
    }

    /// Sends a request.
    fn exchange(&self, asked: &Asked, changes: bool) -> Result<Received, Trouble> {
        let (mut request, wait) = (self.request(asked)?, if changes { LONG_TIME } else { TIME });
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reused = kept().take().filter(Connection::is_usable);
        let (mut connection, response) = loop {
            let (again, mut connection) = match reused.take() {
                Some(connection) => (true, connection),
                None => (false, Connection::open(&self.way, &self.authority)?),
            };
            match connection.send(request, wait)? {
                Ok(response) => break (connection, response),
                Err(mut error) => match error.take_message() {
                    // The server has closed the connection since the last request.
                    Some(unsent) if again => request = unsent,
                    _ => return Err(error.into_error().into()),
                },
            }
        };
        let text = |name| {
            let value = response.headers().get(name).and_then(|value| value.to_str().ok());
            printable(&value.unwrap_or_default().chars().take(200).collect::<String>()).to_string()
        };
        let (media, location) = (text(CONTENT_TYPE), text(LOCATION));
        let media = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let status = response.status();
        let body = connection.read(response.into_body())?;
        *kept() = Some(connection);
        Ok(Received { status, media, location, body })
    }
}

/// How TLS is spoken with whom.
type Tls = Option<(Arc<ClientConfig>, ServerName<'static>)>;

/// The address without a slash behind it and with its port, and how it is spoken to.
fn place(server: &str, trust: &Trust) -> Result<(String, Tls), Trouble> {
    let uri: Uri = server.parse().map_err(|_| Trouble::Url)?;
    let scheme = uri.scheme_str().unwrap_or_default();
    let authority = uri.authority().filter(|all| !all.as_str().contains('@'));
    let host = authority.map(hyper::http::uri::Authority::host).filter(|host| !host.is_empty());
    let host = host.ok_or(Trouble::Url)?;
    if !["http", "https"].contains(&scheme) || uri.path() != "/" || uri.query().is_some() {
        return Err(Trouble::Url);
    }
    let base = format!("{scheme}://{host}:{}", uri.port_u16().unwrap_or(CONTROL_PORT));
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if scheme == "http" {
        let address = bare.parse::<std::net::IpAddr>();
        let here = address.map_or(bare.eq_ignore_ascii_case("localhost"), |it| it.is_loopback());
        return if here { Ok((base, None)) } else { Err(Trouble::Plain) };
    }
    let name = ServerName::try_from(bare.to_owned()).map_err(|_| Trouble::Url)?;
    Ok((base, Some((tls::config(trust)?, name))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(server: &str) -> Result<String, String> {
        let trust = Trust::Pinned(Fingerprint::parse(&"00".repeat(32)).unwrap());
        place(server, &trust).map(|(base, _)| base).map_err(|error| error.to_string())
    }

    #[test]
    fn an_address_has_a_host_and_nothing_else() {
        assert_eq!(base("https://a.example").unwrap(), "https://a.example:3261");
        assert_eq!(base("https://[fd00::1]:7/").unwrap(), "https://[fd00::1]:7");
        for plain in ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1"] {
            assert_eq!(base(plain).unwrap(), plain);
        }
        for wrong in
            ["a.example", "https://", "https://a/x", "https://a/?x", "https://u:p@a", "ftp://a", ""]
        {
            assert!(base(wrong).unwrap_err().contains("no address of a lunet"), "{wrong}");
        }
    }

    #[test]
    fn no_token_goes_to_another_machine_without_tls() {
        for server in ["http://192.0.2.1", "http://a.example", "http://localhost.example:80"] {
            assert!(base(server).unwrap_err().contains("loopback addresses alone"), "{server}");
        }
    }

    #[test]
    fn a_token_is_not_shown() {
        let (token, trust) = (Zeroizing::new("lunet_1_secret".to_owned()), Trust::System);
        let remote = Remote::new("http://127.0.0.1:1", token, &trust).unwrap();
        assert!(!format!("{remote:?}").contains("secret"));
        let token = Zeroizing::new("two words".to_owned());
        assert!(Remote::new("http://127.0.0.1:1", token, &trust).is_err());
    }
}
