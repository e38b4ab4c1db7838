//! A LUN that hangs takes neither the session that uses it nor the shard with it.

use std::time::{Duration, Instant};

use crate::support::client::{Client, rw16};
use crate::support::record::Recording;
use crate::support::status::{BUSY, CHECK_CONDITION, GOOD};
use crate::support::{config, file_volume, on_each_driver, stalling, start, until};
use lunet_front_iscsi::Config;
use lunet_iscsi::initiator::{Data, Outcome};

const TASK_SET_FULL: u8 = 0x28;

/// Takes the unit attention of a new session on the LUN that hangs.
fn wake(client: &mut Client) {
    assert_eq!(client.finish(1, &[0; 6], Data::None).status, CHECK_CONDITION);
}

/// The same, as soon as there is memory for it.
fn works_soon(client: &mut Client) {
    let deadline = Instant::now() + Duration::from_secs(15);
    loop {
        match client.write(0, 0, vec![9; 64 << 10]) {
            GOOD => return client.works(0),
            status => assert_eq!(status, TASK_SET_FULL),
        }
        assert!(Instant::now() < deadline, "the healthy LUN of the same session stands still");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_hung_lun_that_is_written_again_after_each_reconnect_harms_no_healthy_one() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let (hung, gate) = stalling(256);
        let volumes = vec![file_volume(&dir), hung];
        let (server, address) = start(Config { shards: Some(1), ..config(volumes, driver) });
        let mut other = Client::login(address, 1);
        gate.close();
        let mut lba = 0;
        for n in 0..24 {
            let mut writer = Client::login(address, 2);
            wake(&mut writer);
            let tags: Vec<_> = (0..24)
                .map(|_| {
                    let data = Data::Write(vec![3; 64 << 10]);
                    lba += 128;
                    writer.start(1, &rw16(0x8A, lba - 128, 128), data)
                })
                .collect();
            if n == 23 {
                // More is refused, and soon.
                let last = writer.outcome(tags[23]).outcome;
                assert!(
                    matches!(&last, Outcome::Completed(end) if [TASK_SET_FULL, BUSY].contains(&end.status)),
                    "{last:?}"
                );
            }
            // All of them have been looked at before the session ends.
            assert_eq!(writer.finish(0, &[0; 6], Data::None).status, GOOD);
        }
        // Of 36 MiB that were sent, no more is kept than the volume may have.
        assert!(gate.held() <= 6 << 4, "{} writes of 64 KiB are held", gate.held());
        other.works(0);
        Client::login(address, 3).works(0);
        gate.open();
        until("the storage has let go of all", || gate.held() == 0);
        wake(&mut other);
        let deadline = Instant::now() + Duration::from_secs(15);
        while other.write(1, 0, vec![4; 64 << 10]) != GOOD {
            assert!(Instant::now() < deadline, "the LUN works again");
        }
        drop(other);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn the_session_of_a_hung_lun_goes_on_with_its_others() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let (hung, gate) = stalling(256);
        let volumes = vec![file_volume(&dir), hung];
        let (server, address) = start(Config { shards: Some(1), ..config(volumes, driver) });
        // So many that each has but a share.
        let idle: Vec<Client> = (10..20).map(|n| Client::login(address, n)).collect();
        let mut client = Client::login(address, 1);
        wake(&mut client);
        gate.close();
        for n in 0..96 {
            client.start(1, &rw16(0x8A, n * 128, 128), Data::Write(vec![3; 64 << 10]));
        }
        works_soon(&mut client);
        gate.open();
        drop((client, idle));
        assert!(server.stop(Duration::from_secs(1)).flushed);
    });
}

/// Commands have the grace, and storage that answers nothing has no more than they.
#[test]
fn a_hung_lun_keeps_no_server_from_stopping() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let (hung, gate) = stalling(16);
        let volumes = vec![file_volume(&dir), hung];
        let (server, address) = start(config(volumes, driver));
        let mut clients: Vec<Client> = (1..4).map(|n| Client::login(address, n)).collect();
        for client in &mut clients {
            wake(client);
            assert_eq!(client.write(1, 0, vec![1; 512]), GOOD);
        }
        gate.close();
        for client in &mut clients {
            client.start(1, &rw16(0x8A, 16, 8), Data::Write(vec![3; 4096]));
            assert_eq!(client.write(0, 0, vec![1; 512]), GOOD, "what hangs has been looked at");
        }
        let begun = Instant::now();
        assert!(!server.stop(Duration::from_secs(1)).flushed, "one volume is not");
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    });
}

#[test]
fn flushes_that_nobody_waits_for_are_bounded() {
    on_each_driver(|driver| {
        let (inner, gate) = stalling(16);
        let (volume, _) = Recording::over(inner);
        let (server, address) = start(Config { shards: Some(1), ..config(vec![volume], driver) });
        let mut client = Client::login(address, 1);
        assert_eq!(client.write(0, 0, vec![1; 512]), GOOD);
        gate.close();
        // SYNCHRONIZE CACHE that is answered before it is done (IMMED).
        let flush = [0x35, 2, 0, 0, 0, 0, 0, 0, 0, 0];
        let statuses: Vec<u8> =
            (0..300).map(|_| client.finish(0, &flush, Data::None).status).collect();
        assert_eq!((statuses[0], statuses[299]), (GOOD, BUSY));
        assert!(gate.held() <= 256, "{} flushes wait", gate.held());
        gate.open();
        until("the storage has let go of all", || gate.held() == 0);
        until("it is taken again", || client.finish(0, &flush, Data::None).status == GOOD);
        drop(client);
        assert!(server.stop(Duration::from_secs(1)).flushed);
    });
}
