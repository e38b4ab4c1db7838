//! Those who never come to a Connect.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::host::{Host, Queue, Settings};
use crate::support::{config, layout, memory, serve, serve_volumes, until};

/// What the server sends until it closes.
fn all_of(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    let mut bytes = Vec::new();
    // A reset is an end as well.
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

#[test]
fn pdus_of_any_length_before_the_connect_end_the_connection() {
    let (_server, address) = serve_volumes(vec![memory(1, 8)]);
    let mut good = Host::one(address);
    let lengths = (0..=160).chain([511, 512, 4096, 8192, 65_536, u32::MAX]);
    for length in lengths {
        for kind in [0, 4, 6, 9, 0xff] {
            let mut stream = TcpStream::connect(address).expect("the server accepts");
            let mut bytes = vec![kind, 0, if kind == 0 { 128 } else { 72 }, 0];
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.resize((length as usize).clamp(8, 256), 0);
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let answer = all_of(stream);
            let right = kind == 0 && length == 128;
            // ICResp, or a termination request, or nothing where it came in part.
            assert!(answer.is_empty() || answer[0] == if right { 1 } else { 3 }, "{kind} {length}");
        }
    }
    assert!(good.io().write(1, 0, &[1; 512]).is_success());
}

#[test]
fn strangers_do_not_keep_hosts_out() {
    let mut config = config(layout(vec![memory(1, 8)]));
    config.limits.max_logins = 8;
    let (server, address) = serve(config);
    let idle: Vec<TcpStream> =
        (0..64).map(|_| TcpStream::connect(address).expect("the server accepts")).collect();
    let mut host = Host::new(address, Settings::default(), 4);
    assert!(host.io().write(1, 0, &[1; 512]).is_success());
    until("most were turned away", || server.handle().stats().protocol.turned_away >= 50);
    drop(idle);
    assert!(host.queues[3].write(1, 0, &[1; 512]).is_success());
}

#[test]
fn who_does_not_connect_in_time_is_disconnected() {
    let mut config = config(layout(vec![memory(1, 8)]));
    config.options.connect_timeout = Duration::from_millis(300);
    let (_server, address) = serve(config);
    let stream = TcpStream::connect(address).expect("the server accepts");
    assert!(all_of(stream).is_empty());
}

#[test]
fn garbage_behind_a_connect_ends_that_queue_alone() {
    let (_server, address) = serve_volumes(vec![memory(1, 8)]);
    let mut host = Host::new(address, Settings::default(), 2);
    host.io().stream.write_all(&[0xa5; 4096]).expect("the server takes it");
    host.io().wait_for_end();
    assert!(host.queues[1].write(1, 0, &[1; 512]).is_success());
    let _: &mut Queue = &mut host.admin;
}
