//! Who it is that does not answer as NVMe over TCP does.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use lunet_client::iscsi::{self, Login};
use lunet_client::nvme::Target;

/// For each try.
const PATIENCE: Duration = Duration::from_secs(3);

/// What wants TLS.
pub(super) const TLS: &str = "this port or subsystem wants TLS: give the host's key by --tls-key-file FILE, and its name by \
     --host-nqn NQN; or look by a portal without TLS";

/// An iSCSI target.
const ISCSI: &str = "an iSCSI target listens there: NVMe over TCP usually has port 4420; for this \
     one, lunet doctor iscsi://HOST:PORT";

/// A ClientHello of TLS 1.3 without anything that a server could agree to: TLS answers with an alert.
const HELLO: [u8; 59] = {
    let mut hello = [0; 59];
    // Record: handshake, version, length.
    (hello[0], hello[1], hello[2], hello[4]) = (22, 3, 1, 54);
    // ClientHello, length, version; the random number is zero, and there is no session identifier.
    (hello[5], hello[8], hello[9], hello[10]) = (1, 50, 3, 3);
    // TLS_AES_128_GCM_SHA256, no compression.
    (hello[45], hello[46], hello[47], hello[48]) = (2, 0x13, 0x01, 1);
    // Extensions: supported_versions with TLS 1.3.
    (hello[51], hello[53], hello[55]) = (7, 43, 3);
    (hello[56], hello[57], hello[58]) = (2, 3, 4);
    hello
};

/// What listens there, if that can be told.
pub(super) fn what(target: &Target) -> Option<&'static str> {
    if is_iscsi(target) {
        return Some(ISCSI);
    }
    is_tls(target).unwrap_or(false).then_some(TLS)
}

fn is_iscsi(target: &Target) -> bool {
    let bracketed = match target.host.contains(':') {
        true => format!("[{}]", target.host),
        false => target.host.clone(),
    };
    let Ok(target) = iscsi::Target::parse(&format!("iscsi://{bracketed}:{}", target.port)) else {
        return false;
    };
    let login = Login {
        initiator_name: super::super::INITIATOR.into(),
        patience: PATIENCE,
        ..Login::default()
    };
    matches!(
        iscsi::discover(&target, &login),
        Ok(_) | Err(iscsi::Error::Refused(_) | iscsi::Error::Busy(_))
    )
}

/// Whether it answers a ClientHello as TLS does: by a handshake or an alert.
fn is_tls(target: &Target) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect((target.host.as_str(), target.port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&HELLO)?;
    let mut answer = [0; 2];
    stream.read_exact(&mut answer)?;
    Ok(matches!(answer, [21 | 22, 3]))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::probe::nvme::{NvmeProbeError, probe};

    /// How a look ends at a server that answers the first bytes of each connection so.
    fn against(answer: fn(&[u8]) -> &'static [u8]) -> NvmeProbeError {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("somebody comes");
                let mut bytes = [0; 4096];
                let n = stream.read(&mut bytes).unwrap_or(0);
                let _ = stream.write_all(answer(&bytes[..n]));
            }
        });
        let url = format!("nvme-tcp://{address}/nqn.2026-11.org.lunet:x");
        probe(&Target::parse(&url).expect("an address"), None).expect_err("no controller")
    }

    #[test]
    fn tls_is_recognised() {
        let tls = against(|bytes| if bytes[0] == 22 { &[21, 3, 3, 0, 2, 2, 40] } else { &[] });
        assert!(tls.to_string().contains("wants TLS"), "{tls}");
        let http = against(|_| b"HTTP/1.1 400 Bad Request\r\n\r\n");
        assert!(http.to_string().contains("does not answer as NVMe over TCP does"), "{http}");
    }

    #[test]
    fn the_hello_is_whole() {
        // Lengths: of the record, of the handshake, of the extensions.
        assert_eq!(usize::from(HELLO[51]), HELLO.len() - 52);
        assert_eq!(usize::from(HELLO[4]), HELLO.len() - 5);
        assert_eq!(usize::from(HELLO[8]), HELLO.len() - 9);
    }
}
