//! Ports and connections of storage protocols.

use serde::{Deserialize, Serialize};

use crate::source::Source;

/// A TCP port of a storage protocol that somebody listens on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Listener {
    /// `iscsi` (3260), `nvme` (4420, 8009), `nfs` (2049), `smb` (445), `lunet`.
    pub protocol: String,
    /// Address; `0.0.0.0` and `::` are all of the machine's.
    pub address: String,
    /// Port.
    pub port: i64,
    /// The program, if it can be seen; a kernel target has none.
    pub program: Option<String>,
}

/// A TCP connection of a storage protocol.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpConnection {
    /// `iscsi` (3260), `nvme` (4420).
    pub protocol: String,
    /// Whether this machine is the server.
    pub serves: bool,
    /// Own address.
    pub local_address: String,
    /// Own port.
    pub local_port: i64,
    /// Address of the other end.
    pub remote_address: String,
    /// Port of the other end.
    pub remote_port: i64,
    /// Largest segment now, in bytes: the MTU of the path less 40 to 60.
    pub mss: Option<i64>,
    /// MTU of the path, as far as it is known.
    pub path_mtu: Option<i64>,
    /// How congestion is met: `cubic`, `dctcp`, `bbr`.
    pub congestion_control: Option<String>,
    /// Whether both ends use ECN.
    pub ecn: Option<bool>,
    /// Round trip in microseconds.
    pub rtt_us: Option<i64>,
    /// The smallest that was seen.
    pub min_rtt_us: Option<i64>,
    /// Segments that had to be sent again.
    pub retransmits: Option<i64>,
    /// Whether timestamps are used.
    pub timestamps: Option<bool>,
    /// Whether selective acknowledgements are used.
    pub sack: Option<bool>,
    /// Whether windows beyond 64 KiB are possible.
    pub window_scaling: Option<bool>,
    /// Bytes that came and that the program has not read.
    pub receive_queue_bytes: Option<i64>,
    /// Bytes that are to be sent or not acknowledged.
    pub send_queue_bytes: Option<i64>,
    /// Share of the time with something to send in which the other end's window was closed, in percent.
    pub window_limited_percent: Option<i64>,
    /// The same of the own send buffer.
    pub buffer_limited_percent: Option<i64>,
    /// How far segments overtake each other; 3 = not at all.
    pub reordering: Option<i64>,
    /// Segments that may be under way.
    pub congestion_window: Option<i64>,
    /// Bytes that were sent, and those that were sent again.
    pub bytes_sent: Option<i64>,
    /// See `bytes_sent`.
    pub bytes_retransmitted: Option<i64>,
    /// Segments that are not acknowledged.
    pub unacknowledged: Option<i64>,
    /// Tries that an answer is waited for.
    pub backoff: Option<i64>,
}

/// The ports of storage protocols.
const PORTS: &[(i64, &str)] =
    &[(3260, "iscsi"), (4420, "nvme"), (8009, "nvme"), (2049, "nfs"), (20049, "nfs"), (445, "smb")];

/// Reads who listens.
pub(super) fn listeners(source: &dyn Source) -> Vec<Listener> {
    let text = source.output("ss", &["-tlnHp"]).unwrap_or_default();
    let mut all: Vec<Listener> = text.lines().filter_map(listener).collect();
    all.sort_by(|a, b| (a.port, &a.address).cmp(&(b.port, &b.address)));
    all.dedup();
    all
}

/// `LISTEN 0 128 0.0.0.0:3260 0.0.0.0:* users:(("lunet",pid=77,fd=9))`
fn listener(line: &str) -> Option<Listener> {
    let mut words = line.split_whitespace();
    let (address, port) = end(words.nth(3)?)?;
    let program = line.split_once("users:((\"").and_then(|(_, rest)| rest.split('"').next());
    let protocol = match (protocol(port), program) {
        (_, Some("lunet")) => "lunet",
        (protocol, _) => protocol?,
    };
    Some(Listener {
        protocol: protocol.to_owned(),
        address,
        port,
        program: program.map(str::to_owned),
    })
}

/// Reads who is connected.
pub(super) fn connections(source: &dyn Source) -> Vec<TcpConnection> {
    let text = source.output("ss", &["-tinH"]).unwrap_or_default();
    let mut all: Vec<TcpConnection> = Vec::new();
    let mut open = false;
    for line in text.lines() {
        // The second line of each starts with white space.
        if line.starts_with([' ', '\t']) {
            if let Some(connection) = all.last_mut().filter(|_| open) {
                details(line, connection);
            }
            continue;
        }
        let connection = connection(line);
        open = connection.is_some();
        all.extend(connection);
    }
    all.sort_by(|a, b| {
        (&a.remote_address, a.remote_port, a.local_port).cmp(&(
            &b.remote_address,
            b.remote_port,
            b.local_port,
        ))
    });
    all
}

/// `ESTAB 0 0 10.0.0.1:3260 10.0.0.2:51234`
fn connection(line: &str) -> Option<TcpConnection> {
    let words: Vec<&str> = line.split_whitespace().collect();
    if *words.first()? != "ESTAB" {
        return None;
    }
    let (local_address, local_port) = end(words.get(3)?)?;
    let (remote_address, remote_port) = end(words.get(4)?)?;
    let storage = |port| protocol(port).filter(|protocol| matches!(*protocol, "iscsi" | "nvme"));
    let (protocol, serves) = match (storage(local_port), storage(remote_port)) {
        (Some(protocol), _) => (protocol, true),
        (None, Some(protocol)) => (protocol, false),
        (None, None) => return None,
    };
    Some(TcpConnection {
        protocol: protocol.to_owned(),
        serves,
        local_address,
        local_port,
        remote_address,
        remote_port,
        receive_queue_bytes: words.get(1).and_then(|word| word.parse().ok()),
        send_queue_bytes: words.get(2).and_then(|word| word.parse().ok()),
        ..TcpConnection::default()
    })
}

/// ` cubic ts sack wscale:7,7 rto:204 rtt:0.123/0.01 mss:8948 pmtu:9000 retrans:0/3 minrtt:0.05`
fn details(line: &str, connection: &mut TcpConnection) {
    let controls =
        ["cubic", "reno", "dctcp", "bbr", "htcp", "bic", "vegas", "westwood", "illinois"];
    let mut has = (false, false, false, false);
    for word in line.split_whitespace() {
        match word {
            "ts" => has.0 = true,
            "sack" => has.1 = true,
            "ecn" | "ecnseen" => has.3 = true,
            _ if controls.contains(&word) => connection.congestion_control = Some(word.to_owned()),
            _ => {}
        }
        let Some((key, value)) = word.split_once(':') else { continue };
        let micros = |text: &str| {
            let milliseconds: f64 = text.split('/').next()?.parse().ok()?;
            // A round trip of 292 000 years would be lost.
            Some((milliseconds * 1000.0).round() as i64)
        };
        match key {
            "wscale" => has.2 = true,
            "rwnd_limited" => connection.window_limited_percent = share(value),
            "sndbuf_limited" => connection.buffer_limited_percent = share(value),
            "reordering" => connection.reordering = value.parse().ok(),
            "cwnd" => connection.congestion_window = value.parse().ok(),
            "bytes_sent" => connection.bytes_sent = value.parse().ok(),
            "bytes_retrans" => connection.bytes_retransmitted = value.parse().ok(),
            "unacked" => connection.unacknowledged = value.parse().ok(),
            "backoff" => connection.backoff = value.parse().ok(),
            "mss" => connection.mss = value.parse().ok(),
            "pmtu" => connection.path_mtu = value.parse().ok(),
            "rtt" => connection.rtt_us = micros(value),
            "minrtt" => connection.min_rtt_us = micros(value),
            "retrans" => {
                connection.retransmits = value.rsplit('/').next().and_then(|n| n.parse().ok())
            }
            _ => {}
        }
    }
    // ss names no retransmits where there were none.
    connection.retransmits = connection.retransmits.or(Some(0));
    connection.timestamps = Some(has.0);
    connection.sack = Some(has.1);
    connection.window_scaling = Some(has.2);
    connection.ecn = Some(has.3);
}

/// `84123ms(97.1%)`
fn share(value: &str) -> Option<i64> {
    value.split_once('(')?.1.split(['.', '%']).next()?.parse().ok()
}

fn protocol(port: i64) -> Option<&'static str> {
    PORTS.iter().find(|(known, _)| *known == port).map(|(_, protocol)| *protocol)
}

/// `10.0.0.1:3260`, `[::]:3260`, `*:3260`, `10.0.0.1%eth0:3260`
fn end(text: &str) -> Option<(String, i64)> {
    let (address, port) = text.rsplit_once(':')?;
    let address = address.trim_matches(['[', ']']);
    let address = address.split('%').next().unwrap_or(address);
    let address = address.strip_prefix("::ffff:").unwrap_or(address);
    let address = if address == "*" { "::" } else { address };
    Some((address.trim_matches(['[', ']']).to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    const SS: &str = "\
$ ss -tlnHp
| LISTEN 0      128          0.0.0.0:22        0.0.0.0:*    users:((\"sshd\",pid=1,fd=3))
| LISTEN 0      128          0.0.0.0:3260      0.0.0.0:*
| LISTEN 0      128             [::]:3260         [::]:*
| LISTEN 0      1024       127.0.0.1:46851     0.0.0.0:*    users:((\"lunet\",pid=3648,fd=11))
$ ss -tinH
| ESTAB 0      0      10.0.0.1:3260     10.0.0.2:51234
| \t cubic ts sack wscale:7,7 rto:204 rtt:0.123/0.01 ato:40 mss:8948 pmtu:9000 rcvmss:8948 advmss:8948 cwnd:10 bytes_sent:1 retrans:0/3 minrtt:0.05
| ESTAB 0      0      10.0.0.1:22       10.0.0.9:51999
| \t cubic wscale:7,7 rto:204 mss:1448 pmtu:1500
| ESTAB 0      0      [fd00::1]:48000   [fd00::5]:4420
| \t dctcp ecn ecnseen ts sack wscale:9,9 mss:1428 pmtu:1500 rtt:1/0.5
";

    #[test]
    fn reads_storage_ports_and_connections() {
        let tree = Tree::parse(SS).unwrap();
        let heard: Vec<_> = listeners(&tree)
            .into_iter()
            .map(|l| (l.protocol, l.address, l.port, l.program))
            .collect();
        let owned = str::to_owned;
        assert_eq!(
            heard,
            [
                (owned("iscsi"), owned("0.0.0.0"), 3260, None),
                (owned("iscsi"), owned("::"), 3260, None),
                (owned("lunet"), owned("127.0.0.1"), 46851, Some(owned("lunet"))),
            ]
        );
        let seen = connections(&tree);
        assert_eq!(seen.len(), 2);
        let server = &seen[0];
        assert!(server.serves && server.protocol == "iscsi");
        assert_eq!((server.mss, server.path_mtu), (Some(8948), Some(9000)));
        assert_eq!((server.rtt_us, server.min_rtt_us), (Some(123), Some(50)));
        assert_eq!((server.retransmits, server.ecn), (Some(3), Some(false)));
        let client = &seen[1];
        assert!(!client.serves && client.protocol == "nvme");
        assert_eq!(client.local_address, "fd00::1");
        assert_eq!(client.congestion_control.as_deref(), Some("dctcp"));
        assert_eq!((client.ecn, client.retransmits), (Some(true), Some(0)));
    }
}
