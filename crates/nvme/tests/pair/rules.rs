//! Single rules, seen from both ends.

use std::time::Duration;

use lunet_nvme::command::{Fuse, Io, Range, Sqe};
use lunet_nvme::controller::{CloseReason, Options};
use lunet_nvme::host::{Command, Data, Error, Event};
use lunet_nvme::status::Status;

use crate::disk::BLOCK;
use crate::load::write;
use crate::world::{Bytes, Settings, World};

const RANGE: Range = Range { lba: 8, blocks: 8 };
const LEN: usize = 8 * BLOCK;

fn submit(world: &mut World, token: u64, sqe: Sqe, data: Data<Vec<u8>, Bytes>) {
    world.host.submit(Command { token, sqe, data }, &mut world.sent).expect("there is room");
}

/// The statuses of the commands that have ended, by token.
fn statuses(world: &mut World) -> Vec<(u64, Status)> {
    world.settle();
    let ended = std::mem::take(&mut world.events).into_iter().map(|event| match event {
        Event::Finished(finished) => {
            (finished.token, finished.completion.expect("a completion").status.code())
        }
        other => panic!("{other:?}"),
    });
    let mut ended: Vec<_> = ended.collect();
    ended.sort_by_key(|(token, _)| *token);
    ended
}

fn fused(io: &Io, fuse: Fuse) -> Sqe {
    let mut sqe = io.encode(1);
    sqe.flags |= match fuse {
        Fuse::Normal => 0,
        Fuse::First => 1,
        Fuse::Second => 2,
    };
    sqe
}

#[test]
fn fused_commands_come_as_a_pair() {
    // The second needs an R2T, and the first does not.
    let mut world = World::connected(Settings::default(), 1);
    let compare = fused(&Io::Compare { range: RANGE }, Fuse::First);
    let same = write(&world.disk.bytes[4096..4096 + LEN]);
    let big = Range { lba: 8, blocks: 64 };
    submit(&mut world, 0, compare, same);
    submit(
        &mut world,
        1,
        fused(&Io::Write { range: big, fua: false }, Fuse::Second),
        write(&[5; 64 * BLOCK]),
    );
    submit(&mut world, 2, Io::Flush.encode(1), Data::None);
    let good = [0, 1, 2].map(|token| (token, Status::SUCCESS));
    assert_eq!(statuses(&mut world), good);
    assert_eq!(world.disk.pairs, 1);
}

#[test]
fn halves_of_pairs_are_refused_and_the_rest_goes_on() {
    let mut world = World::connected(Settings::default(), 2);
    let flush = Io::Flush;
    let order = [Fuse::Second, Fuse::First, Fuse::Normal, Fuse::First, Fuse::First, Fuse::Second];
    for (token, fuse) in order.into_iter().enumerate() {
        submit(&mut world, token as u64, fused(&flush, fuse), Data::None);
    }
    let missing = Status::MISSING_FUSED;
    let good = Status::SUCCESS;
    let wanted = [(0, missing), (1, missing), (2, good), (3, missing), (4, good), (5, good)];
    assert_eq!(statuses(&mut world), wanted);
    assert_eq!(world.disk.pairs, 1);
}

#[test]
fn a_pair_with_a_bad_half_is_not_executed() {
    let mut world = World::connected(Settings::default(), 3);
    let mut bad = fused(&Io::Compare { range: RANGE }, Fuse::First);
    bad.flags &= !0x40;
    submit(&mut world, 0, bad, write(&[0; LEN]));
    submit(&mut world, 1, fused(&Io::Flush, Fuse::Second), Data::None);
    let wanted = [(0, Status::INVALID_FIELD), (1, Status::FAILED_FUSED)];
    assert_eq!(statuses(&mut world), wanted);
    assert_eq!(world.disk.commands, 0);
}

#[test]
fn commands_for_which_memory_does_not_come_are_to_be_retried() {
    let mut world = World::connected(Settings::default(), 4);
    world.site.short = true;
    submit(&mut world, 0, Io::Write { range: RANGE, fua: false }.encode(1), write(&[1; LEN]));
    submit(&mut world, 1, Io::Flush.encode(1), Data::None);
    let wanted = [(0, Status::INTERRUPTED), (1, Status::SUCCESS)];
    assert_eq!(statuses(&mut world), wanted);
}

#[test]
fn unknown_opcodes_do_not_end_the_connection() {
    let mut world = World::connected(Settings::default(), 5);
    submit(&mut world, 0, Sqe::new(0x03, 1), Data::None);
    submit(&mut world, 1, Sqe::new(0x80, 1), Data::None);
    let invalid = Status::INVALID_OPCODE;
    assert_eq!(statuses(&mut world), [(0, invalid), (1, invalid)]);
}

#[test]
fn r2ts_are_as_many_as_the_host_takes() {
    for (host, controller, most) in [(1, 4, 1), (3, 4, 3), (8, 2, 2), (1 << 31, 4, 4)] {
        let options = Options { max_r2t: controller, max_h2c_data: 4096, ..Options::default() };
        let settings = Settings { max_r2t: host, controller: options, ..Settings::default() };
        let mut world = World::connected(settings, 6);
        let range = Range { lba: 0, blocks: 256 };
        let write = write(&[9; 256 * BLOCK]);
        submit(&mut world, 0, Io::Write { range, fua: false }.encode(1), write);
        world.disk.chunk = 4096;
        while world.disk.commands == 0 {
            world.step();
        }
        // The disk asks for all of it before the host sees anything.
        while world.disk.work(&mut world.controller, &mut world.answers) {}
        assert_eq!(world.controller.counters().r2ts, most);
        let ended = statuses(&mut world);
        assert_eq!(ended, [(0, Status::SUCCESS)]);
    }
}

#[test]
fn host_that_connects_too_late_is_dropped() {
    let mut world = World::new(Settings::default(), 7);
    let by = world.controller.poll_timeout().expect("a deadline");
    world.controller.handle_timeout(by - Duration::from_millis(1), &mut world.controller_events);
    assert!(world.controller_events.is_empty());
    world.controller.handle_timeout(by, &mut world.controller_events);
    world.handle();
    assert_eq!(world.closed, Some(CloseReason::ConnectTimeout));
    assert_eq!(world.controller.poll_timeout(), None);
    // Nor does the host wait for ever.
    let by = world.host.poll_timeout().expect("a deadline");
    world.host.handle_timeout(by, &mut world.events);
    assert_eq!(world.events, [Event::Failed(Error::ConnectTimeout)]);
}

#[test]
fn data_that_does_not_come_ends_the_connection() {
    let mut world = World::connected(Settings::default(), 8);
    assert_eq!(world.controller.poll_timeout(), None);
    let range = Range { lba: 0, blocks: 64 };
    submit(&mut world, 0, Io::Write { range, fua: false }.encode(1), write(&[9; 64 * BLOCK]));
    // Until the R2T is on its way, and no further.
    while world.controller.counters().r2ts == 0 {
        world.step();
    }
    let first = look(&mut world);
    // The R2T was still on its way.
    world.controller.delivered(first + Duration::from_secs(9));
    let closed = look_until_closed(&mut world);
    let from = first + Duration::from_secs(9) + Options::default().data_timeout;
    assert!(closed >= from && closed < from + Duration::from_secs(8), "{closed:?}");
}

/// Lets the controller look when it wants to; when that was.
fn look(world: &mut World) -> Duration {
    let at = world.controller.poll_timeout().expect("it waits for something");
    world.controller.handle_timeout(at, &mut world.controller_events);
    world.handle();
    at
}

/// The same until the connection is over.
fn look_until_closed(world: &mut World) -> Duration {
    for _ in 0..100 {
        let at = look(world);
        if let Some(reason) = world.closed {
            assert_eq!(reason, CloseReason::DataTimeout);
            return at;
        }
    }
    panic!("it goes on for ever");
}

/// A host that goes on reading does not owe its data for ever.
#[test]
fn data_is_owed_however_much_the_host_takes_in() {
    let mut world = World::connected(Settings::default(), 8);
    let range = Range { lba: 0, blocks: 64 };
    submit(&mut world, 0, Io::Write { range, fua: false }.encode(1), write(&[9; 64 * BLOCK]));
    while world.controller.counters().r2ts == 0 {
        world.step();
    }
    let first = look(&mut world);
    let mut now = first;
    while world.closed.is_none() {
        world.controller.delivered(now);
        now = look(&mut world);
        assert!(now < first + 10 * Options::default().data_timeout, "it goes on for ever");
    }
    assert_eq!(world.closed, Some(CloseReason::DataTimeout));
}

/// Nor does one that sends a byte now and then.
#[test]
fn a_byte_now_and_then_is_no_progress() {
    let mut world = World::connected(Settings::default(), 8);
    let range = Range { lba: 0, blocks: 64 };
    let sqe = Io::Write { range, fua: false }.encode(1);
    let command = Command { token: 0, sqe, data: write(&[9; 64 * BLOCK]) };
    let tag = world.host.submit(command, &mut world.sent).expect("there is room");
    while world.controller.counters().r2ts == 0 {
        world.step();
    }
    let first = look(&mut world);
    let mut now = first;
    let mut header = vec![6, 0, 24, 24];
    header.extend_from_slice(&(24 + BLOCK as u32).to_le_bytes());
    header.extend_from_slice(&tag.cid().to_le_bytes());
    header.extend_from_slice(&[0; 6]);
    header.extend_from_slice(&(BLOCK as u32).to_le_bytes());
    header.extend_from_slice(&[0; 4]);
    world.feed_controller(now, &header);
    while world.closed.is_none() {
        world.feed_controller(now, &[0]);
        now = look(&mut world);
        assert!(now < first + 3 * Options::default().data_timeout, "it goes on for ever");
    }
    assert_eq!(world.closed, Some(CloseReason::DataTimeout));
}

/// Memory for the data may have come long after the command.
#[test]
fn a_host_that_was_asked_late_has_its_time_from_then_on() {
    let mut world = World::connected(Settings::default(), 8);
    let range = Range { lba: 0, blocks: 64 };
    submit(&mut world, 0, Io::Write { range, fua: false }.encode(1), write(&[9; 64 * BLOCK]));
    while world.controller.counters().r2ts == 0 {
        world.step();
    }
    let late = world.controller.poll_timeout().expect("a deadline") + Duration::from_secs(100);
    world.controller.handle_timeout(late, &mut world.controller_events);
    world.handle();
    assert_eq!(world.closed, None);
    assert_eq!(look_until_closed(&mut world), late + Options::default().data_timeout);
}

#[test]
fn commands_come_back_when_the_transport_closes() {
    let mut world = World::connected(Settings::default(), 9);
    submit(&mut world, 3, Io::Flush.encode(1), Data::None);
    world.host.transport_closed(&mut world.events);
    let [Event::Finished(finished), Event::Failed(Error::TransportClosed)] = &world.events[..]
    else {
        panic!("{:?}", world.events);
    };
    assert_eq!((finished.token, finished.completion), (3, None));
    assert!(world.host.is_over());
}
