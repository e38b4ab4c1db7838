//! `[server]`, `[iscsi]` and `[[portal]]`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use lunet_front_nvme::Tls;
use lunet_os::cpus::Cpus;
use lunet_ring::BusyPoll;
use lunet_scsi::alua::{AccessState, Alua, PortGroups};
use lunet_server::{MAX_PORTALS, SendWithInvalidate, Transports};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::mistake::Mistakes;
use super::nvme::NVME_PORT;
use super::reader::{At, Convert, Section, boolean, choice, duration, integer, size, string};
use super::schema::{self, Table};
use super::{DEFAULT_PORT, Digest, Driver, Iscsi, LogLevel, Portal, Server};

/// The largest length in login negotiation that is used, in bytes. The protocol ends at
/// 2^24 - 1 (RFC 7143 13.12 to 13.14), but bursts should end with a block.
const MAX_LENGTH: u64 = (1 << 24) - 1024;

const DIGESTS: &[(&str, Digest)] =
    &[("allow", Digest::Allow), ("require", Digest::Require), ("forbid", Digest::Forbid)];

const DRIVERS: &[(&str, Driver)] =
    &[("auto", Driver::Auto), ("io_uring", Driver::IoUring), ("epoll", Driver::Epoll)];

const INVALIDATE: &[(&str, SendWithInvalidate)] = &[
    ("auto", SendWithInvalidate::Auto),
    ("on", SendWithInvalidate::On),
    ("off", SendWithInvalidate::Off),
];

const ZERO_COPY: &[(&str, bool)] = &[("auto", true), ("never", false)];

const ALUA: &[(&str, Alua)] =
    &[("explicit", Alua::Explicit), ("implicit", Alua::Implicit), ("off", Alua::Off)];

const STATES: &[(&str, AccessState)] = &[
    ("optimized", AccessState::Optimized),
    ("non-optimized", AccessState::NonOptimized),
    ("standby", AccessState::Standby),
    ("unavailable", AccessState::Unavailable),
];

const LEVELS: &[(&str, LogLevel)] = &[
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
];

/// What is wrong with `version` if it is later than this lunet's.
pub(super) fn later_version(root: &DeTable<'_>) -> Option<At<String>> {
    let version = root.get("version")?;
    let found = integer(version.get_ref(), 0..=u64::MAX).ok()?;
    let (own, known) = (env!("CARGO_PKG_VERSION"), schema::VERSION);
    let why = || {
        format!(
            "is {found}, and lunet {own} reads versions up to {known}: start the lunet that this file was written \
             for, or go back to the copy from before its migration"
        )
    };
    (found > u64::from(known)).then(|| At { offset: version.span().start, value: why() })
}

/// `version`, which is checked and otherwise without effect: the keys that are gone are known by their names.
pub(super) fn version(top: &Section<'_>, mistakes: &mut Mistakes) {
    let known = |value: &DeValue<'_>| integer(value, 1..=u64::from(schema::VERSION));
    top.get("version", &known, mistakes);
}

impl Default for Server {
    fn default() -> Self {
        Self {
            data: None,
            control_socket: None,
            shards: None,
            processors: None,
            driver: Driver::Auto,
            busy_poll: BusyPoll::Auto,
            send_with_invalidate: SendWithInvalidate::Auto,
            zero_copy_send: true,
            buffer_memory: 64 << 20,
            max_sessions: 1024,
            login_timeout: Duration::from_secs(15),
            shutdown_grace: Duration::from_secs(3),
            alua: Alua::default(),
            log_level: LogLevel::Info,
        }
    }
}

impl Default for Iscsi {
    fn default() -> Self {
        Self {
            max_recv_data_segment_length: 256 << 10,
            first_burst_length: 256 << 10,
            max_burst_length: MAX_LENGTH as u32,
            max_outstanding_r2t: 8,
            initial_r2t: false,
            immediate_data: true,
            header_digest: Digest::Allow,
            data_digest: Digest::Allow,
            queue_depth: 128,
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(30),
            data_timeout: Duration::from_secs(30),
        }
    }
}

/// The word for an access state, as `group-state` has it.
pub fn state_word(state: AccessState) -> &'static str {
    STATES.iter().find(|(_, s)| *s == state).map_or("", |(word, _)| word)
}

/// Opens a table at the top of the file, if it is there.
fn top_table<'a>(
    top: &Section<'a>,
    name: &str,
    schema: &'static Table,
    mistakes: &mut Mistakes,
) -> Option<Section<'a>> {
    Section::open(top.raw(name)?, name.to_owned(), schema, mistakes)
}

/// The tables of an array of tables at the top of the file.
pub(super) fn top_array<'a>(
    top: &Section<'a>,
    name: &str,
    schema: &'static Table,
    mistakes: &mut Mistakes,
) -> Vec<Section<'a>> {
    let Some(value) = top.raw(name) else { return Vec::new() };
    let tables = |item: &'a Spanned<DeValue<'a>>| -> Option<(usize, &'a DeTable<'a>)> {
        Some((item.span().start, item.get_ref().as_table()?))
    };
    let all: Option<Vec<_>> =
        value.get_ref().as_array().and_then(|items| items.iter().map(tables).collect());
    let Some(all) = all else {
        let text = format!("must be written as {}, once for each", schema.heading);
        mistakes.add(value.span().start, name, text);
        return Vec::new();
    };
    let open = |(offset, table)| Section::new(table, offset, name.to_owned(), schema, mistakes);
    all.into_iter().map(open).collect()
}

/// A path that is not empty.
pub(super) fn path(value: &DeValue<'_>) -> Result<PathBuf, String> {
    let text = string(value)?;
    if text.is_empty() || text.contains('\0') {
        return Err("must be a path, and no path is like that".to_owned());
    }
    Ok(PathBuf::from(text))
}

pub(super) fn server(top: &Section<'_>, mistakes: &mut Mistakes) -> Server {
    let mut out = Server::default();
    let Some(table) = top_table(top, "server", &schema::SERVER, mistakes) else { return out };
    let millis = Duration::from_millis;
    table.set("data", &mut out.data, &|v| path(v).map(Some), mistakes);
    table.set("control-socket", &mut out.control_socket, &|v| path(v).map(Some), mistakes);
    let shards: Convert<'_, Option<usize>> = &|v| integer(v, 1..=1024).map(|n| Some(n as usize));
    table.set("shards", &mut out.shards, shards, mistakes);
    let processors: Convert<'_, Option<Cpus>> = &|v| {
        string(v)?
            .parse()
            .map(Some)
            .map_err(|error: std::io::Error| format!("must be a list of processors: {error}"))
    };
    table.set("processors", &mut out.processors, processors, mistakes);
    table.set("driver", &mut out.driver, &|v| choice(v, DRIVERS), mistakes);
    let poll: Convert<'_, BusyPoll> = &|v| match v {
        DeValue::String(text) if text == "auto" => Ok(BusyPoll::Auto),
        other => duration(other, Duration::ZERO..=millis(10)).map(BusyPoll::For),
    };
    table.set("busy-poll", &mut out.busy_poll, poll, mistakes);
    let invalidate: Convert<'_, SendWithInvalidate> = &|v| choice(v, INVALIDATE);
    table.set("send-with-invalidate", &mut out.send_with_invalidate, invalidate, mistakes);
    let zero_copy: Convert<'_, bool> = &|v| choice(v, ZERO_COPY);
    table.set("zero-copy-send", &mut out.zero_copy_send, zero_copy, mistakes);
    let memory: Convert<'_, u64> = &|v| size(v, 8 << 20..=64 << 30);
    table.set("buffer-memory", &mut out.buffer_memory, memory, mistakes);
    let sessions: Convert<'_, usize> = &|v| integer(v, 1..=65_535).map(|n| n as usize);
    table.set("max-sessions", &mut out.max_sessions, sessions, mistakes);
    let login: Convert<'_, Duration> = &|v| duration(v, millis(1_000)..=millis(300_000));
    table.set("login-timeout", &mut out.login_timeout, login, mistakes);
    let grace: Convert<'_, Duration> = &|v| duration(v, Duration::ZERO..=millis(3_600_000));
    table.set("shutdown-grace", &mut out.shutdown_grace, grace, mistakes);
    table.set("alua", &mut out.alua, &|v| choice(v, ALUA), mistakes);
    table.set("log-level", &mut out.log_level, &|v| choice(v, LEVELS), mistakes);
    out
}

/// A length in login negotiation.
fn length(value: &DeValue<'_>) -> Result<u32, String> {
    const MOST: u64 = 16 << 20;
    match size(value, 512..=MOST)? {
        // People write 16 MiB, which is just beyond what the protocol can express.
        MOST => Ok(MAX_LENGTH as u32),
        bytes if bytes > MAX_LENGTH => {
            let most = MAX_LENGTH >> 10;
            Err(format!("must be {most}KiB at most, which is what 16MiB stands for"))
        }
        bytes => Ok(bytes as u32),
    }
}

pub(super) fn iscsi(top: &Section<'_>, mistakes: &mut Mistakes) -> Iscsi {
    let mut out = Iscsi::default();
    let Some(table) = top_table(top, "iscsi", &schema::ISCSI, mistakes) else { return out };
    let length: Convert<'_, u32> = &length;
    let segment = "max-recv-data-segment-length";
    table.set(segment, &mut out.max_recv_data_segment_length, length, mistakes);
    table.set("max-burst-length", &mut out.max_burst_length, length, mistakes);
    // The default must not contradict a small max-burst-length.
    out.first_burst_length = out.first_burst_length.min(out.max_burst_length);
    let first = table.get("first-burst-length", length, mistakes);
    if let Some(first) = first {
        out.first_burst_length = first.value;
        if first.value > out.max_burst_length {
            let key = table.key("first-burst-length");
            mistakes.add(first.offset, key, "must not be larger than max-burst-length");
        }
    }
    let r2ts: Convert<'_, u16> = &|v| integer(v, 1..=256).map(|n| n as u16);
    table.set("max-outstanding-r2t", &mut out.max_outstanding_r2t, r2ts, mistakes);
    table.set("initial-r2t", &mut out.initial_r2t, &boolean, mistakes);
    table.set("immediate-data", &mut out.immediate_data, &boolean, mistakes);
    table.set("header-digest", &mut out.header_digest, &|v| choice(v, DIGESTS), mistakes);
    table.set("data-digest", &mut out.data_digest, &|v| choice(v, DIGESTS), mistakes);
    let depth: Convert<'_, u32> = &|v| integer(v, 1..=1024).map(|n| n as u32);
    table.set("queue-depth", &mut out.queue_depth, depth, mistakes);
    let hour = Duration::from_secs(3_600);
    let interval: Convert<'_, Duration> = &|v| duration(v, Duration::ZERO..=hour);
    table.set("ping-interval", &mut out.ping_interval, interval, mistakes);
    let timeout: Convert<'_, Duration> = &|v| duration(v, Duration::from_secs(1)..=hour);
    table.set("ping-timeout", &mut out.ping_timeout, timeout, mistakes);
    table.set("data-timeout", &mut out.data_timeout, interval, mistakes);
    out
}

/// A text that is no address of a portal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what is wrong")]
pub enum AddressError {
    #[error(
        "\"{text}\" is not an address: write an IP address and a port, as in \"192.0.2.1:{port}\" or \"[2001:db8::1]:{port}\""
    )]
    NoAddress { text: String, port: u16 },
    #[error(
        "\"{text}\" is {kind}, to which no TCP connection can be made: write an address of this machine (`ip -br address` \
         shows them)"
    )]
    Unreachable { text: String, kind: &'static str },
    #[error(
        "\"{text}\" is a link-local address, which each interface has: lunet does not listen on such addresses; write another \
         address of this machine (`ip -br address` shows them)"
    )]
    LinkLocal { text: String },
}

/// For those who collect sentences.
impl From<AddressError> for String {
    fn from(error: AddressError) -> Self {
        error.to_string()
    }
}

/// Reads the address of a portal: `192.0.2.1`, `192.0.2.1:3260`, `[2001:db8::1]:3260`,
/// `2001:db8::1`. The port is 3260 if left out.
///
/// # Errors
/// It is none, or one that no connection comes to: multicast and broadcast.
pub fn parse_portal(text: &str) -> Result<SocketAddr, AddressError> {
    parse_address(text, DEFAULT_PORT)
}

/// The same for NVMe, with the port 4420 if it is left out.
///
/// # Errors
/// As for [`parse_portal`].
pub fn parse_nvme_portal(text: &str) -> Result<SocketAddr, AddressError> {
    parse_address(text, NVME_PORT)
}

/// The same with another port in place of one that is left out.
pub(super) fn parse_address(text: &str, port: u16) -> Result<SocketAddr, AddressError> {
    let address = portal_address(text, port)?;
    if let SocketAddr::V6(six) = address
        && six.scope_id() == 0
        && six.ip().is_unicast_link_local()
    {
        return Err(AddressError::LinkLocal { text: text.to_owned() });
    }
    let broadcast = address.ip() == IpAddr::V4(Ipv4Addr::BROADCAST);
    if !broadcast && !address.ip().is_multicast() {
        return Ok(address);
    }
    let kind = if broadcast { "the broadcast address" } else { "a multicast address" };
    Err(AddressError::Unreachable { text: text.to_owned(), kind })
}

fn portal_address(text: &str, port: u16) -> Result<SocketAddr, AddressError> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    let ip = match bare {
        Some(inner) => inner.parse::<Ipv6Addr>().map(IpAddr::V6),
        None => text.parse::<IpAddr>(),
    };
    ip.map(|ip| SocketAddr::new(ip, port))
        .map_err(|_| AddressError::NoAddress { text: text.to_owned(), port })
}

/// The portals of a configuration, by the protocol that they are for.
#[derive(Default)]
pub(super) struct Listening {
    /// For iSCSI.
    pub(super) iscsi: Vec<At<Portal>>,
    /// For NVMe.
    pub(super) nvme: Vec<At<Portal>>,
}

impl Listening {
    /// There are portals, and all of them are for NVMe.
    pub(super) fn are_for_nvme_alone(&self) -> bool {
        self.iscsi.is_empty() && !self.nvme.is_empty()
    }
}

pub(super) fn portals(top: &Section<'_>, mistakes: &mut Mistakes) -> Listening {
    let mut out: Vec<At<Portal>> = Vec::new();
    let mut over_nvme = Vec::new();
    for table in top_array(top, "portal", &schema::PORTAL, mistakes) {
        if out.len() == MAX_PORTALS {
            let text = format!("is one more than the {MAX_PORTALS} that there may be");
            mistakes.add(table.offset, "portal", text);
            break;
        }
        let mut carries = Carries::default();
        table.set("transport", &mut carries, &transport, mistakes);
        let port = if carries.nvme { NVME_PORT } else { DEFAULT_PORT };
        let address: Convert<'_, SocketAddr> = &|v| Ok(parse_address(&string(v)?, port)?);
        let Some(address) = table.get("address", address, mistakes) else {
            table.missing("address", mistakes);
            continue;
        };
        let mut tag = 1;
        let number: Convert<'_, u16> = &|v| integer(v, 1..=65_535).map(|n| n as u16);
        table.set("tag", &mut tag, number, mistakes);
        if let Some(other) = out.iter().find(|other| overlap(other.value.address, address.value)) {
            let line = mistakes.line(other.offset);
            let text = format!("is already listened on by the portal of line {line}");
            mistakes.add(address.offset, table.key("address"), text);
        }
        let (mut group_state, mut preferred) = (AccessState::Optimized, false);
        table.set("group-state", &mut group_state, &|v| choice(v, STATES), mistakes);
        table.set("preferred", &mut preferred, &boolean, mistakes);
        let transports = carries.transports;
        if transports == Transports::Rdma && address.value.port() == 0 {
            let text = "must have a port without TCP: only TCP takes a free one";
            mistakes.add(address.offset, table.key("address"), text);
        }
        let tls = portal_tls(&table, carries, mistakes);
        let portal =
            Portal { address: address.value, tag, group_state, preferred, transports, tls };
        group(&table, &portal, &out, mistakes);
        out.push(At { offset: address.offset, value: portal });
        over_nvme.push(carries.nvme);
    }
    let mut all = Listening::default();
    for (portal, nvme) in out.into_iter().zip(over_nvme) {
        if nvme { all.nvme.push(portal) } else { all.iscsi.push(portal) }
    }
    all
}

/// What a portal has of TLS, which is NVMe's.
fn portal_tls(table: &Section<'_>, carries: Carries, mistakes: &mut Mistakes) -> Tls {
    const WORDS: &[(&str, Tls)] =
        &[("off", Tls::Off), ("allowed", Tls::Allowed), ("required", Tls::Required)];
    // RDMA has none, so keys of hosts are of no use there.
    let alone = carries.nvme && carries.transports == Transports::Rdma;
    let mut tls = if alone { Tls::Off } else { Tls::default() };
    table.set("tls", &mut tls, &|v| choice(v, WORDS), mistakes);
    let Some(value) = table.raw("tls") else { return tls };
    let text = match (carries.nvme, carries.transports, tls) {
        (false, ..) => "is for portals with the transport \"nvme-tcp\": iSCSI has no TLS",
        (true, Transports::Rdma, Tls::Allowed | Tls::Required) => {
            "is for portals with the transport \"nvme-tcp\": there is no TLS over RDMA"
        }
        (true, Transports::Both, Tls::Required) => {
            "cannot be \"required\" with the transport \"nvme-rdma\": there is no TLS over RDMA"
        }
        _ => return tls,
    };
    mistakes.add(value.span().start, table.key("tls"), text);
    tls
}

/// What a portal carries.
#[derive(Clone, Copy, Default)]
struct Carries {
    transports: Transports,
    /// NVMe, and not iSCSI.
    nvme: bool,
}

/// `["tcp"]`, `["iser"]` or both; or `["nvme-tcp"]`, `["nvme-rdma"]` or both. One of NVMe's may stand without brackets.
fn transport(value: &DeValue<'_>) -> Result<Carries, String> {
    const ISCSI: &[(&str, Transports)] = &[("tcp", Transports::Tcp), ("iser", Transports::Rdma)];
    const NVME: &[(&str, Transports)] =
        &[("nvme-tcp", Transports::Tcp), ("nvme-rdma", Transports::Rdma)];
    let is_nvme = |value: &DeValue<'_>| NVME.iter().any(|(word, _)| value.as_str() == Some(*word));
    if is_nvme(value) {
        return Ok(Carries { transports: choice(value, NVME)?, nvme: true });
    }
    let items = value.as_array().filter(|items| !items.is_empty());
    let items = items.ok_or("must be an array, as in [\"tcp\", \"iser\"] or [\"nvme-tcp\"]")?;
    let of_nvme = items.iter().filter(|item| is_nvme(item.get_ref())).count();
    if of_nvme == 0 {
        return Ok(Carries { transports: transports(items, ISCSI, NVME)?, nvme: false });
    }
    if of_nvme < items.len() {
        return Err("has a transport of NVMe, which needs a portal of its own".to_owned());
    }
    Ok(Carries { transports: transports(items, NVME, ISCSI)?, nvme: true })
}

/// The transports of one protocol; `others` are those of another.
fn transports(
    items: &[Spanned<DeValue<'_>>],
    words: &[(&'static str, Transports)],
    others: &[(&'static str, Transports)],
) -> Result<Transports, String> {
    let others: Vec<String> = others.iter().map(|(word, _)| format!("\"{word}\"")).collect();
    let mut all = None;
    for item in items {
        let word = choice(item.get_ref(), words)
            .map_err(|text| format!("{text}; or {} alone", others.join(" and ")))?;
        all = match all {
            None => Some(word),
            Some(other) if other == word => return Err("has a transport twice".to_owned()),
            Some(_) => Some(Transports::Both),
        };
    }
    Ok(all.unwrap_or_default())
}

/// Looks whether a portal fits into its portal group.
fn group(table: &Section<'_>, portal: &Portal, others: &[At<Portal>], mistakes: &mut Mistakes) {
    let mut tags: Vec<u16> = others.iter().map(|other| other.value.tag).collect();
    let Some(at) = tags.iter().position(|tag| *tag == portal.tag) else {
        tags.sort_unstable();
        tags.dedup();
        if tags.len() >= PortGroups::MAX {
            let text = format!("is one more than the {} that there may be", PortGroups::MAX);
            mistakes.add(table.offset, table.key("tag"), text);
        }
        return;
    };
    let first = &others[at];
    for (key, same) in [
        ("group-state", first.value.group_state == portal.group_state),
        ("preferred", first.value.preferred == portal.preferred),
    ] {
        if !same {
            let line = mistakes.line(first.offset);
            let text = format!("must be that of line {line}: all portals with a tag are one group");
            let offset = table.raw(key).map_or(table.offset, |value| value.span().start);
            mistakes.add(offset, table.key(key), text);
        }
    }
}

/// True if a machine cannot listen on both.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let same_ip = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    // Port 0 takes any free port, a different one each time.
    a.port() == b.port() && a.port() != 0 && a.is_ipv4() == b.is_ipv4() && same_ip
}
