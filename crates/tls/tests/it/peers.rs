//! Handshakes with other programs on loopback: the clients of OpenSSL and of GnuTLS, which Linux hosts have their
//! handshakes made by. GnuTLS takes keys for SHA-256 only. Where one is not installed its test says so and ends.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lunet_tls::Session;
use lunet_tls::record::{ALERT, DATA, HEADER, Opener, Sealer};
use lunet_tls::suite::Hash;
use tempfile::NamedTempFile;

use crate::support::{IDENTITY, Peer, psk};

/// How long any wait may take.
const LIMIT: Duration = Duration::from_secs(30);

/// True if the program can be started.
fn is_there(program: &str) -> bool {
    let mut help = Command::new(program);
    help.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let there = help.status().is_ok();
    if !there {
        eprintln!("{program} is not installed: not tested");
    }
    there
}

/// The key of [`psk`] in hexadecimal.
fn key(hash: Hash) -> String {
    "07".repeat(hash.size())
}

fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port().to_string();
    (listener, port)
}

fn start(program: &str, arguments: &[&str]) -> Child {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the client starts")
}

/// Reads exactly what the handshake wants, so that nothing of what follows is taken.
fn serve(stream: &mut TcpStream, hash: Hash) -> Session {
    stream.set_read_timeout(Some(LIMIT)).expect("a time limit");
    let mut peer = Peer::new(vec![psk(hash, 9), psk(hash, 7)], 42);
    loop {
        let mut bytes = vec![0; peer.server.wants()];
        let n = stream.read(&mut bytes).expect("bytes of the client");
        assert!(n > 0, "the client has ended the connection");
        let received = peer.receive(&bytes[..n]);
        stream.write_all(&peer.server.take_out()).expect("bytes to the client");
        let (taken, done) = received.expect("a handshake");
        assert_eq!(taken, n);
        if done {
            return peer.server.finish().expect("a session");
        }
    }
}

/// One record of the client.
fn read(stream: &mut TcpStream, opener: &mut Opener) -> (u8, Vec<u8>) {
    let mut header = [0; HEADER];
    stream.read_exact(&mut header).expect("a header");
    let mut body = vec![0; usize::from(u16::from_be_bytes([header[3], header[4]]))];
    stream.read_exact(&mut body).expect("a record");
    let kind = opener.open(&header, &mut body).expect("it can be opened");
    (kind, body)
}

/// A handshake, a line in each direction, and the end of the connection.
fn talk(listener: &TcpListener, mut client: Child, hash: Hash) {
    let (mut stream, _) = listener.accept().expect("the client connects");
    let session = serve(&mut stream, hash);
    assert_eq!((session.suite, session.candidate), (hash.suite(), 1));
    assert_eq!(session.identity, IDENTITY);
    let (mut sealer, mut opener) = (Sealer::new(session.send), Opener::new(session.receive));
    let mut stdin = client.stdin.take().expect("its standard input");
    stdin.write_all(b"hello from the client\n").expect("it takes a line");
    stdin.flush().expect("it takes a line");
    assert_eq!(read(&mut stream, &mut opener), (DATA, b"hello from the client\n".to_vec()));
    let mut bytes = Vec::new();
    sealer.seal(DATA, b"hello from the server\n", &mut bytes);
    sealer.seal(ALERT, &[1, 0], &mut bytes);
    stream.write_all(&bytes).expect("the client takes it");
    drop(stdin);
    let output = client.wait_with_output().expect("the client ends");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("hello from the server"), "{said}");
}

/// A session of OpenSSL's with the key of TLS_AES_256_GCM_SHA384: its `-psk` is for SHA-256 only. The form is that of its
/// `SSL_SESSION`: two numbers, the suite, an identifier and the key.
fn session_file() -> NamedTempFile {
    let der = [
        &[0x30, 63, 2, 1, 1, 2, 2, 3, 4, 4, 2, 0x13, 2, 4, 0, 4, 48][..],
        &psk(Hash::Sha384, 7).key[..],
    ];
    let (mut binary, pem) =
        (NamedTempFile::new().expect("a file"), NamedTempFile::new().expect("a file"));
    binary.write_all(&der.concat()).expect("it is written");
    let mut convert = Command::new("openssl");
    convert.args(["sess_id", "-inform", "DER", "-in"]).arg(binary.path());
    convert.arg("-out").arg(pem.path());
    assert!(convert.status().expect("openssl starts").success());
    pem
}

fn openssl(hash: Hash, more: &[&str]) {
    if !is_there("openssl") {
        return;
    }
    let (listener, port) = listen();
    let (to, key) = (format!("127.0.0.1:{port}"), key(hash));
    let (identity, session) = (String::from_utf8_lossy(IDENTITY), session_file());
    let session = session.path().to_str().expect("a path");
    let psk = match hash {
        Hash::Sha256 => ["-psk", &key],
        Hash::Sha384 => ["-psk_session", session],
    };
    let arguments = ["s_client", "-quiet", "-tls1_3", "-connect", &to, "-psk_identity", &identity];
    let client = start("openssl", &[&arguments[..], &psk, more].concat());
    talk(&listener, client, hash);
}

#[test]
fn openssl_connects_with_sha256() {
    openssl(Hash::Sha256, &[]);
}

#[test]
fn openssl_connects_with_sha384() {
    openssl(Hash::Sha384, &["-no_middlebox"]);
}

#[test]
fn openssl_connects_with_secp256r1() {
    openssl(Hash::Sha256, &["-groups", "P-256"]);
}

#[test]
fn openssl_is_asked_for_another_group() {
    openssl(Hash::Sha256, &["-groups", "P-384:X25519"]);
    openssl(Hash::Sha256, &["-groups", "X448:P-256"]);
}

/// GnuTLS, with the priorities that tlshd of ktls-utils makes handshakes for the kernel by.
#[test]
fn gnutls_connects_as_tlshd_does() {
    if !is_there("gnutls-cli") {
        return;
    }
    let (listener, port) = listen();
    let (identity, key) = (String::from_utf8_lossy(IDENTITY), key(Hash::Sha256));
    let priority = "SECURE256:+SECURE128:-COMP-ALL:-VERS-ALL:+VERS-TLS1.3:%NO_TICKETS:-CIPHER-ALL:\
                    +AES-128-GCM:+PSK:+DHE-PSK:+ECDHE-PSK";
    let to = ["--port", &port, "127.0.0.1", "--logfile", "/dev/null"];
    let psk = ["--pskusername", &identity, "--pskkey", &key, "--priority", priority];
    let client = start("gnutls-cli", &[&to[..], &psk].concat());
    talk(&listener, client, Hash::Sha256);
}
