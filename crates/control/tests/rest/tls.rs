//! Addresses that are no loopback addresses are served over TLS alone.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;
use tempfile::TempDir;

use super::support::{PATIENCE, Reply, Server, Wanted, answer, start};

/// Asks by TLS, and believes nobody but the certificate of this server.
fn ask(server: &Server, request: &[u8]) -> Option<Reply> {
    let file = server.folder.path().join("control/certificate.pem");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("store.example.org").unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.address.port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = StreamOwned::new(client, stream);
    stream.write_all(request).unwrap();
    answer(&mut stream)
}

fn everywhere(folder: Option<TempDir>) -> Server {
    let names = vec!["store.example.org".into()];
    start(Wanted { address: Some("0.0.0.0:0"), names, folder, ..Wanted::default() })
}

#[test]
fn other_addresses_have_tls_with_a_certificate_that_stays() {
    let mut server = everywhere(None);
    let fingerprint = server.fingerprint.clone().expect("a fingerprint");
    assert_eq!(fingerprint.split(':').count(), 32);
    let key = server.folder.path().join("control/key.pem").metadata().unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    // RFC 7468, 3
    for (name, label) in [("certificate", "CERTIFICATE"), ("key", "PRIVATE KEY")] {
        let path = server.folder.path().join(format!("control/{name}.pem"));
        let text = std::fs::read_to_string(path).unwrap();
        let begin = format!("-----BEGIN {label}-----\n");
        let body = text.strip_prefix(&begin).expect("the first line");
        let body = body.strip_suffix(&format!("\n-----END {label}-----\n")).expect("the last line");
        let (last, full) = body
            .split('\n')
            .collect::<Vec<_>>()
            .split_last()
            .map(|(last, full)| (last.len(), full.iter().all(|line| line.len() == 64)))
            .unwrap();
        assert!(full && (1..=64).contains(&last), "{name}");
    }
    let code = server.control.as_ref().unwrap().code().unwrap();
    let body = json!({"code": code, "name": "root", "password": "a good password"});
    let login = server.ask("POST", "/api/v1/first-start").with("Host", "store.example.org:1");
    let reply = ask(&server, &login.json(&body).bytes()).unwrap();
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.header("set-cookie").unwrap().contains("; Secure"), "{reply:?}");
    let health = server.get("/healthz").with("Host", "store.example.org");
    assert_eq!(
        ask(&server, &health.clone().with("Origin", "https://store.example.org").bytes())
            .unwrap()
            .status,
        200
    );
    let plain = health.with("Origin", "http://store.example.org");
    assert_eq!(ask(&server, &plain.bytes()).unwrap().status, 403, "a page without TLS");
    // Whoever speaks plain HTTP gets no answer in it.
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.address.port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&server.get("/healthz").bytes()).unwrap();
    let mut spoken = Vec::new();
    let _ = stream.read_to_end(&mut spoken);
    assert!(!spoken.starts_with(b"HTTP"), "plain HTTP was answered");
    drop(server.control.take());
    let folder = std::mem::replace(&mut server.folder, TempDir::new().unwrap());
    assert_eq!(everywhere(Some(folder)).fingerprint, Some(fingerprint), "another certificate");
}
