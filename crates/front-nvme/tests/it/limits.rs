//! Commands wait for the limits of their volume, their host and their controller.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use lunet_nvme::command::{CopyRange, DsmRange, Io, Range};
use lunet_nvme::host::{Data, Tag};
use lunet_nvme::pdu::{U16, U32, U64};
use lunet_volume::{ClientRates, Rates};
use zerocopy::IntoBytes;

use crate::groups::{owner, two_subsystems};
use crate::host::{Host, Settings, nqn, to_send};
use crate::relays::{relay, relays, through};
use crate::support::{Server, memory, serve_volumes, until};

/// So slow that a MiB takes the rest of a test, and more.
fn slow() -> Rates {
    Rates { bandwidth: NonZeroU64::new(64 << 10), burst: Duration::from_millis(10), iops: None }
}

/// How often operations have waited for a limit.
fn waits(server: &Server) -> u64 {
    server.handle().stats().volumes.iter().map(|volume| volume.time.limits.all()).sum()
}

fn at_work(server: &Server) -> usize {
    server.handle().stats().volumes.iter().map(|volume| volume.commands_in_flight).sum()
}

const fn write(blocks: u32) -> Io {
    Io::Write { range: Range { lba: 8, blocks }, fua: false }
}

fn succeeds(host: &mut Host, tag: Tag) -> bool {
    host.io().wait(tag).completion.expect("an answer").status.is_success()
}

/// Uses up a limit for the rest of the test.
fn use_up(host: &mut Host) {
    assert!(host.io().write(1, 4096, &vec![1; 512 << 10]).is_success());
}

#[test]
fn a_waiting_command_of_a_lost_controller_is_forgotten() {
    // With its capsule, and asked for.
    for blocks in [8, 512] {
        let (server, address) = serve_volumes(vec![memory(1, 8)]);
        let mut host = Host::one(address);
        assert!(host.io().write(1, 0, &[1; 512]).is_success());
        server.handle().limit(|_| Some(slow()));
        use_up(&mut host);
        let data = vec![0xAA; blocks as usize * 512];
        host.io().submit(write(blocks).encode(1), to_send(&data));
        until("it waits", || waits(&server) == 1);
        drop(host);
        until("nothing is at work", || at_work(&server) == 0);
        server.handle().limit(|_| Some(Rates::default()));
        let read = Host::one(address).io().read(1, 8, 1).expect("it is read");
        assert_ne!(read, vec![0xAA; 512], "it was never written");
        assert!(server.stop(Duration::ZERO).flushed);
    }
}

#[test]
fn hosts_and_controllers_have_limits_of_their_own() {
    let (server, address) = serve_volumes(vec![memory(1, 8)]);
    let handle = server.handle();
    let mut one = Host::one(address);
    let other = Settings { host: 2, ..Settings::default() };
    let mut other = Host::new(address, other, 1);
    let limited = nqn(Settings::default().host);
    for each in ["host", "controller"] {
        let name = limited.clone();
        handle.limit_clients(Box::new(move |host| match host == name {
            true if each == "host" => ClientRates { host: slow(), ..ClientRates::default() },
            true => ClientRates { session: slow(), ..ClientRates::default() },
            false => ClientRates::default(),
        }));
        use_up(&mut one);
        let before = waits(&server);
        let tag = one.io().submit(write(8).encode(1), to_send(&[7; 4096]));
        until("it waits", || waits(&server) == before + 1);
        // On the same volume, and in front of it in no line.
        assert!(other.io().write(1, 64, &[2; 4096]).is_success());
        // Another controller of the same host has that host's limit, and not the controller's.
        let mut second = Host::one(address);
        let tag2 = second.io().submit(write(8).encode(1), to_send(&[9; 4096]));
        if each == "host" {
            until("that waits, too", || waits(&server) == before + 2);
        } else {
            assert!(succeeds(&mut second, tag2));
        }
        let began = Instant::now();
        handle.limit_clients(Box::new(|_| ClientRates::default()));
        assert!(succeeds(&mut one, tag));
        if each == "host" {
            assert!(succeeds(&mut second, tag2));
        }
        assert!(began.elapsed() < Duration::from_secs(6), "less than what they waited for");
    }
    assert!(server.stop(Duration::ZERO).flushed);
}

#[test]
fn commands_that_move_no_data_of_the_host_wait_as_well() {
    let (server, address) = serve_volumes(vec![memory(1, 8)]);
    let mut host = Host::one(address);
    assert!(host.io().write(1, 0, &[7; 8192]).is_success());
    server.handle().limit(|_| Some(slow()));
    use_up(&mut host);
    let range = Range { lba: 0, blocks: 8 };
    let part = DsmRange { lba: U64::new(0), blocks: U32::new(8), ..DsmRange::default() };
    let from = CopyRange { lba: U64::new(0), blocks: U16::new(7), ..CopyRange::default() };
    let block = [9; 4096];
    let commands = [
        (Io::WriteZeroes { range, fua: false, deallocate: false }, Data::None),
        (Io::WriteZeroes { range, fua: false, deallocate: true }, Data::None),
        (Io::DatasetManagement { ranges: 1, deallocate: true }, to_send(part.as_bytes())),
        (Io::Copy { lba: 64, ranges: 1, fua: false }, to_send(from.as_bytes())),
        (Io::Verify { range, fua: false }, Data::None),
        (Io::Compare { range }, to_send(&block)),
    ];
    let count = commands.len() as u64;
    for (io, data) in commands {
        host.io().submit(io.encode(1), data);
    }
    until("all of them wait", || waits(&server) == count);
    drop(host);
    until("nothing is at work", || at_work(&server) == 0);
    server.handle().limit(|_| Some(Rates::default()));
    let mut host = Host::one(address);
    assert_eq!(host.io().read(1, 0, 8).expect("it is read"), vec![7; 4096], "nothing was done");
    assert_eq!(host.io().read(1, 64, 8).expect("it is read"), vec![0; 4096], "nothing came");
    assert!(server.stop(Duration::ZERO).flushed);
}

#[test]
fn a_host_has_its_limit_through_a_standby_as_well() {
    let (server, address, group, machine) = owner(two_subsystems(memory(1, 8)));
    let requests = relays(&group);
    // What a standby connects for the host, the host itself, and another one.
    let mut around = relay(address, 1, through(2, machine.gate().epoch().0));
    let mut host = Host::one(address);
    let mut stranger = Host::new(address, Settings { host: 2, ..Settings::default() }, 1);
    let limited = nqn(1);
    server.handle().limit_clients(Box::new(move |name| match name == limited {
        true => ClientRates { host: slow(), ..ClientRates::default() },
        false => ClientRates::default(),
    }));
    use_up(&mut host);
    let verify = Io::Verify { range: Range { lba: 0, blocks: 8 }, fua: false };
    let tag = around.submit(verify.encode(1), Data::None);
    until("it waits", || waits(&server) == 1);
    assert!(stranger.io().io(verify, 1).is_success());
    server.handle().limit_clients(Box::new(|_| ClientRates::default()));
    assert!(around.wait(tag).completion.expect("an answer").status.is_success());
    drop((requests, host, stranger, around));
    assert!(server.stop(Duration::from_secs(5)).flushed);
}

#[test]
fn a_fused_pair_waits_as_one_and_a_flush_does_not() {
    let (server, address) = serve_volumes(vec![memory(1, 8)]);
    let mut host = Host::one(address);
    server.handle().limit(|_| Some(slow()));
    use_up(&mut host);
    let tags = host.io().submit_all(crate::host::pair(0, 0, 5));
    until("it waits", || waits(&server) == 1);
    assert!(host.io().io(Io::Flush, 1).is_success());
    server.handle().limit(|_| Some(Rates::default()));
    for tag in tags {
        assert!(succeeds(&mut host, tag));
    }
    assert_eq!(host.io().read(1, 0, 1).expect("it is read"), vec![5; 512]);
    assert!(server.stop(Duration::ZERO).flushed);
}
