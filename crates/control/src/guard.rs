//! What every request has to satisfy, and what every answer says to a browser.

use std::net::{IpAddr, SocketAddr};

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Uri, http::uri};

use crate::problem::Problem;
use crate::service::Role;

/// The headers of every answer.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
         font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
];

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// It came to an address.
    Network(SocketAddr),
    /// It came to a Unix socket, whose file says who may use it: the user of its process, and what the socket is for.
    User { uid: u32, role: Role },
}

/// Those who are held back together, and share places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// An address, or of IPv6 the network of 64 bits, which one client may have whole.
    Network(IpAddr),
    /// A user of this machine.
    User(u32),
}

impl Peer {
    /// Its address, if it came over a network.
    pub(crate) fn address(self) -> Option<IpAddr> {
        match self {
            Self::Network(address) => Some(address.ip().to_canonical()),
            Self::User { .. } => None,
        }
    }

    pub(crate) fn source(self) -> Source {
        match self {
            Self::User { uid, .. } => Source::User(uid),
            Self::Network(address) => Source::Network(match address.ip().to_canonical() {
                IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 64 << 64).into()),
                ip => ip,
            }),
        }
    }
}

/// Where a connection arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) peer: Peer,
    /// The address that it came to; that of this machine for itself, if it came to a Unix socket.
    pub(crate) local: IpAddr,
    pub(crate) tls: bool,
}

/// Adds what every answer says. What has no other rule is not kept by browsers.
pub(crate) fn protect(headers: &mut HeaderMap) {
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let kept = headers.entry(header::CACHE_CONTROL);
    kept.or_insert(HeaderValue::from_static("no-store"));
}

/// Refuses what was addressed to another name (DNS rebinding), and what a page of another origin has sent.
pub(crate) fn check(
    uri: &Uri,
    headers: &HeaderMap,
    arrival: Arrival,
    names: &[String],
) -> Result<(), Problem> {
    let host =
        only(headers, header::HOST)?.ok_or_else(|| Problem::bad("the request has no Host"))?;
    let authority: uri::Authority =
        host.parse().map_err(|_| Problem::forbidden("this Host is no name of this server"))?;
    let other = uri.authority().is_some_and(|found| !found.as_str().eq_ignore_ascii_case(host));
    if other || host.contains('@') || !is_ours(authority.host(), arrival.local, names) {
        return Err(Problem::forbidden("this Host is no name of this server")
            .fix("use its address, or add the name to `names` of [control]"));
    }
    let Some(origin) = only(headers, header::ORIGIN)? else { return Ok(()) };
    // Before a proxy that speaks TLS, the browser's origin has another scheme.
    let https = origin.strip_prefix("https://");
    let rest = https.or_else(|| origin.strip_prefix("http://").filter(|_| !arrival.tls));
    if rest.is_none_or(|rest| !rest.eq_ignore_ascii_case(host)) {
        return Err(Problem::forbidden("a page of another origin has sent this request"));
    }
    Ok(())
}

/// The value of a header that may be there once.
fn only(headers: &HeaderMap, name: HeaderName) -> Result<Option<&str>, Problem> {
    let mut all = headers.get_all(&name).iter();
    let first = all.next();
    if all.next().is_some() {
        return Err(Problem::bad(format!("the request has two headers {name}")));
    }
    let text = |value: &'_ HeaderValue| value.to_str().is_ok();
    match first {
        Some(value) if !text(value) => Err(Problem::bad(format!("{name} is no text"))),
        first => Ok(first.and_then(|value| value.to_str().ok())),
    }
}

/// True if this is a name of this server. An address cannot be rebound, so the one that the connection came to is;
/// ports do not matter: behind an SSH tunnel it is another one.
fn is_ours(host: &str, local: IpAddr, names: &[String]) -> bool {
    let local = local.to_canonical();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = bare.parse::<IpAddr>() {
        let address = address.to_canonical();
        return address == local || (address.is_loopback() && local.is_loopback());
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    (local.is_loopback() && name.eq_ignore_ascii_case("localhost"))
        || names.iter().any(|one| one.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_connection_and_configured_names_are_ours() {
        let names = ["store.example.org".to_owned()];
        let ours = |host: &str, local: &str| is_ours(host, local.parse().unwrap(), &names);
        for (host, local, is) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("localhost", "127.0.0.1", true),
            ("LOCALHOST.", "::1", true),
            ("[::1]", "127.0.0.1", true),
            ("127.0.0.2", "127.0.0.1", true),
            ("127.0.0.2", "192.0.2.1", false),
            ("[::ffff:192.0.2.1]", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.1", true),
            ("Store.Example.org", "192.0.2.1", true),
            ("localhost", "192.0.2.1", false),
            ("192.0.2.2", "192.0.2.1", false),
            ("127.0.0.1", "192.0.2.1", false),
            ("example.org", "127.0.0.1", false),
            ("localhost.example.org", "127.0.0.1", false),
            ("127.0.0.1.example.org", "127.0.0.1", false),
            ("", "127.0.0.1", false),
        ] {
            assert_eq!(ours(host, local), is, "{host} at {local}");
        }
    }

    #[test]
    fn an_origin_is_that_of_the_host() {
        let arrival = |tls| Arrival {
            peer: Peer::Network("127.0.0.1:9".parse().unwrap()),
            local: "127.0.0.1".parse().unwrap(),
            tls,
        };
        let passes = |origin: &'static str, tls| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static("localhost:1"));
            headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
            check(&Uri::from_static("/"), &headers, arrival(tls), &[]).is_ok()
        };
        assert!(passes("http://localhost:1", false) && passes("https://localhost:1", true));
        assert!(passes("https://localhost:1", false), "a proxy before it");
        for (origin, tls) in [
            ("http://localhost:1", true),
            ("http://localhost", false),
            ("http://localhost:2", false),
            ("http://evil.example", false),
            ("null", false),
            ("", false),
        ] {
            assert!(!passes(origin, tls), "{origin}");
        }
    }
}
