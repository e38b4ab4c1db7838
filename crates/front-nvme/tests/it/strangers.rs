//! Those who never come to a Connect.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use lunet_nvme::command::{Io, Range};
use lunet_nvme::host::Data;

use crate::host::{Host, Queue, Settings, to_send};
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

/// How many bytes a command moves at the most.
const MIB: usize = 1 << 20;

/// Eight hosts with four queues each that ask for as much as they can, and take or give nothing of it.
fn owing(address: std::net::SocketAddr, reads: bool) -> Vec<Host> {
    let range = Range { lba: 0, blocks: (MIB / 512) as u32 };
    let host = |host| {
        // Data with a digest is not sent out of the volume's own memory.
        let settings = Settings { host, digests: reads, ..Settings::default() };
        let mut host = Host::new(address, settings, 4);
        for queue in &mut host.queues {
            for _ in 0..31 {
                match reads {
                    true => {
                        let read = Io::Read { range, fua: false }.encode(1);
                        queue.submit(read, Data::Read(vec![0; MIB]))
                    }
                    false => {
                        let write = Io::Write { range, fua: false }.encode(1);
                        queue.submit(write, to_send(&[0; MIB]))
                    }
                };
            }
        }
        host
    };
    let owing: Vec<Host> = (10..18).map(host).collect();
    for queue in owing.iter().flat_map(|host| &host.queues) {
        // What they have asked for is under way, or waits for memory.
        assert!(queue.stream.peek(&mut [0]).expect("the server answers") > 0);
    }
    owing
}

fn who_comes_later_gets_on(reads: bool) {
    for buffer_bytes in [8 << 20, 64 << 20] {
        let mut config = config(layout(vec![memory(1, 8)]));
        config.shards = Some(1);
        config.limits.buffer_bytes = buffer_bytes;
        config.options.data_timeout = Duration::ZERO;
        let (_server, address) = serve(config);
        let owing = owing(address, reads);
        for host in 1..9 {
            let settings = Settings { host, digests: true, ..Settings::default() };
            let mut late = Host::new(address, settings, 1);
            for len in [4 << 10, 16 << 10, 64 << 10, MIB] {
                let data = vec![host; len];
                assert!(late.io().write(1, 0, &data).is_success(), "{len} bytes");
                let read = late.io().read(1, 0, (len / 512) as u32).expect("data");
                assert!(read == data, "{len} bytes");
            }
        }
        drop(owing);
    }
}

#[test]
fn who_comes_later_than_hosts_that_withhold_their_data_gets_on() {
    who_comes_later_gets_on(false);
}

#[test]
fn who_comes_later_than_hosts_that_take_nothing_gets_on() {
    who_comes_later_gets_on(true);
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
