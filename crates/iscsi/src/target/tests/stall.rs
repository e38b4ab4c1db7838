//! Data that does not come.

use super::*;
use crate::pdu::{NopOut, R2t};

const SECOND: Duration = Duration::from_secs(1);

fn bench() -> Bench {
    Bench::ready(Options { ping_interval: Duration::ZERO, ..Options::default() }, &[])
}

/// Lets the time go by, with the looks that the connection asks for, and pings that prove that the initiator is
/// there. True if the connection has ended.
fn wait(bench: &mut Bench, until: Duration) -> bool {
    while bench.now < until && !bench.connection.is_closed() {
        bench.now += SECOND;
        if bench.connection.poll_timeout().is_some_and(|at| at <= bench.now) {
            bench.timeout();
        }
    }
    bench.connection.is_closed()
}

fn asked(bench: &mut Bench, itt: u32, cmd_sn: u32) -> u32 {
    bench.feed(write(itt, cmd_sn, 8192), &[]);
    let tag = bench.command().tag;
    bench.with(|c, tx| c.solicit(tag, 0, 8192, vec![0; 8192], tx));
    bench.one().as_pdu::<R2t>().ttt.get()
}

/// A part of the answer to an R2T: the Data-Out with this number, from here on.
fn answer(bench: &mut Bench, (itt, ttt): (u32, u32), data_sn: u32, from: u32, len: u32) {
    let mut pdu = data_out(itt, ttt, data_sn, from);
    pdu.flags = if from + len == 8192 { pdu::FINAL } else { 0 };
    bench.feed(pdu, &vec![1; len as usize]);
}

#[test]
fn an_r2t_without_answer_ends_the_session_although_pings_are_answered() {
    let mut bench = bench();
    bench.now = 100 * SECOND;
    asked(&mut bench, 1, 1);
    let mut ended = false;
    for n in 0..20 {
        let mut ping =
            NopOut { itt: U32::new(0x900 + n), ttt: U32::new(u32::MAX), ..NopOut::default() };
        (ping.opcode, ping.flags) = (pdu::IMMEDIATE, pdu::FINAL);
        ping.cmd_sn = U32::new(2);
        bench.feed(ping, &[]);
        let until = bench.now + 2 * SECOND;
        ended |= wait(&mut bench, until);
        if ended {
            break;
        }
    }
    assert!(ended, "it waits for ever");
    assert_eq!(bench.closed(), CloseReason::DataTimeout);
    assert!(bench.now >= 130 * SECOND && bench.now <= 140 * SECOND, "{:?}", bench.now);
}

#[test]
fn all_of_the_oldest_r2t_is_progress_and_later_ones_wait_behind_it() {
    let mut bench = bench();
    let (first, second) = (asked(&mut bench, 1, 1), asked(&mut bench, 2, 2));
    for n in 0..8 {
        let until = bench.now + 3 * SECOND;
        assert!(!wait(&mut bench, until), "{n}: it goes on, if slowly");
        answer(&mut bench, (1, first), n, n * 1024, 1024);
    }
    // Now it is the turn of the second.
    bench.events();
    let until = bench.now + 25 * SECOND;
    assert!(!wait(&mut bench, until));
    answer(&mut bench, (2, second), 0, 0, 4096);
    let until = bench.now + 40 * SECOND;
    assert!(wait(&mut bench, until), "half of it is not all");
    assert_eq!(bench.closed(), CloseReason::DataTimeout);
}

#[test]
fn a_byte_now_and_then_is_no_progress() {
    let mut bench = bench();
    let ttt = asked(&mut bench, 1, 1);
    let mut n = 0;
    while !bench.connection.is_closed() {
        answer(&mut bench, (1, ttt), n, n, 1);
        n += 1;
        let until = bench.now + SECOND;
        wait(&mut bench, until);
        assert!(n < 60, "it goes on for ever");
    }
    assert_eq!(bench.closed(), CloseReason::DataTimeout);
    assert!(bench.now >= 30 * SECOND);
}

#[test]
fn so_many_bytes_in_the_time_that_data_may_take_are_progress() {
    let most = Options { ping_interval: Duration::ZERO, ..Options::default() };
    let mut bench = Bench::ready(most, &[]);
    let len = 256 << 10;
    bench.feed(write(1, 1, len), &[]);
    let tag = bench.command().tag;
    bench.with(|c, tx| c.solicit(tag, 0, len, vec![0; len as usize], tx));
    let ttt = bench.one().as_pdu::<R2t>().ttt.get();
    for n in 0..32 {
        let mut pdu = data_out(1, ttt, n, n * 8192);
        pdu.flags = if n == 31 { pdu::FINAL } else { 0 };
        bench.feed(pdu, &[1; 8192]);
        // 72 KiB come in 27 seconds.
        let until = bench.now + 3 * SECOND;
        assert!(!wait(&mut bench, until), "{n}: it goes on");
    }
    assert_eq!(bench.events().len(), 1, "the data");
}

#[test]
fn data_that_fits_nothing_is_no_progress() {
    // A wrong number, a wrong offset, no data at all, and more than was asked for at this place.
    let junk = |itt, ttt, kind, n: u32| match kind {
        0 => (data_out(itt, ttt, 77, 0), 8),
        1 => (data_out(itt, ttt, n, 4096), 8),
        2 => (data_out(itt, ttt, n, 0), 0),
        _ => (data_out(itt, ttt, n, 8188), 8),
    };
    for kind in 0..4 {
        let mut bench = bench();
        let ttt = asked(&mut bench, 1, 1);
        let mut n = 0;
        while !bench.connection.is_closed() {
            let (mut pdu, len) = junk(1, ttt, kind, n);
            pdu.flags = 0;
            bench.feed(pdu, &vec![1; len]);
            let until = bench.now + 2 * SECOND;
            wait(&mut bench, until);
            n += 1;
            assert!(bench.now < 60 * SECOND, "{kind}: it goes on for ever");
        }
        assert_eq!(bench.closed(), CloseReason::DataTimeout, "{kind}");
        assert!(bench.now >= 30 * SECOND, "{kind}: {:?}", bench.now);
    }
}

#[test]
fn what_was_announced_must_come_too() {
    // Unsolicited data, the rest of a PDU, and the command in front of those that came early.
    for kind in 0..3 {
        let mut bench = bench();
        let mut command = write(1, 1, 8192);
        match kind {
            0 => {
                command.flags &= !pdu::FINAL;
                bench.feed(command, &[0; 1024]);
            }
            1 => {
                let bytes = bench.encode(&command, &[], &[0; 8192]);
                bench.raw(&bytes[..4000]);
            }
            _ => bench.feed(write(2, 2, 4096), &[0; 4096]),
        }
        assert!(!wait(&mut bench, 29 * SECOND), "{kind}");
        assert!(wait(&mut bench, 60 * SECOND), "{kind}: it waits for ever");
        assert_eq!(bench.closed(), CloseReason::DataTimeout);
    }
}

#[test]
fn a_command_at_work_owes_no_data() {
    let mut bench = bench();
    bench.feed(read(1, 1, 4096), &[]);
    bench.feed(write(2, 2, 4096), &[7; 4096]);
    assert_eq!(bench.events().len(), 2);
    assert!(!wait(&mut bench, 1000 * SECOND), "the storage may take its time");
}

#[test]
fn the_time_limit_can_be_switched_off() {
    let off = Options {
        ping_interval: Duration::ZERO,
        data_timeout: Duration::ZERO,
        ..Options::default()
    };
    let mut bench = Bench::ready(off, &[]);
    asked(&mut bench, 1, 1);
    assert_eq!(bench.connection.poll_timeout(), None);
    assert!(!wait(&mut bench, 1000 * SECOND));
}
