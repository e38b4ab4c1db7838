use super::*;
use crate::pdu::{R2t, Reject, ScsiResponse};

const NONE: u32 = pdu::RESERVED_TAG;

/// A write that was handed up with no data.
fn solicited(bench: &mut Bench, len: u32) -> Tag {
    bench.feed(write(1, 1, len), &[]);
    bench.command().tag
}

fn sense(got: &Got) -> [u8; 3] {
    let response = got.as_pdu::<ScsiResponse>();
    assert_eq!(response.status, 2);
    [got.data[2 + 2] & 15, got.data[2 + 12], got.data[2 + 13]]
}

#[test]
fn immediate_data_goes_straight_into_its_buffer() {
    let mut bench = Bench::ready(Options::default(), &["FirstBurstLength=262144"]);
    let data = bytes(128 * 1024);
    let stream = bench.encode(&write(1, 1, 128 * 1024), &[], &data);
    bench.raw(&stream[..BHS_LEN + 100]);
    assert!(bench.events().is_empty());
    let mut target = bench.connection.take_rx_target().unwrap();
    assert_eq!(target.range, 100..128 * 1024);
    assert!(bench.connection.take_rx_target().is_none(), "it is lent once");
    let place = target.buf.as_ptr();
    target.buf[100..].copy_from_slice(&data[100..]);
    let Bench { connection, site, now, wires, events, .. } = &mut bench;
    let mut cx = Cx { now: *now, site, tx: wires, events };
    connection.rx_payload(target, 128 * 1024 - 100, &mut cx);
    let command = bench.command();
    let (buf, len) = command.data.unwrap();
    assert_eq!((len, buf.as_ptr()), (128 * 1024, place));
    assert_eq!(buf, data);
    assert_eq!(bench.site.allocated, [128 * 1024]);
    assert_eq!((command.lun, command.expects_write, command.expects_read), (LUN, 128 * 1024, 0));
    assert_eq!(bench.connection.counters().bytes_out, 128 * 1024);
}

#[test]
fn unsolicited_data_is_collected_in_one_buffer() {
    let mut bench = Bench::ready(Options::default(), &["FirstBurstLength=8192"]);
    let data = bytes(8192);
    let mut command = write(1, 1, 20_000);
    command.flags &= !pdu::FINAL;
    bench.feed(command, &data[..1001]);
    let mut middle = data_out(1, NONE, 0, 1001);
    middle.flags = 0;
    bench.feed(middle, &data[1001..5000]);
    assert!(bench.events().is_empty());
    bench.feed(data_out(1, NONE, 1, 5000), &data[5000..]);
    let command = bench.command();
    assert_eq!(command.data, Some((data, 8192)));
    assert_eq!(bench.site.allocated, [8192]);
}

#[test]
fn a_command_that_carries_all_there_may_be_is_complete_whatever_its_final_bit_says() {
    let mut bench = Bench::ready(Options::default(), &["FirstBurstLength=1024"]);
    for (itt, len) in [(1, 512), (2, 1024)] {
        let mut command = write(itt, itt, if itt == 1 { 512 } else { 4096 });
        command.flags &= !pdu::FINAL;
        bench.feed(command, &bytes(len));
        assert_eq!(bench.command().data, Some((bytes(len), len)));
    }
}

#[test]
fn unsolicited_data_that_does_not_add_up_fails_the_command() {
    // DataSN, offset, F, length, and what the answer is.
    let table = [
        (1, 0, true, 4096, [0x0b, 0x0c, 0x0d]),
        (0, 4, true, 4096, [0x0b, 0x0c, 0x0d]),
        (0, 0, true, 512, [0x0b, 0x0c, 0x0d]),
        (0, 0, false, 4096, [0x0b, 0x0c, 0x0d]),
        (0, 0, true, 4097, [0x0b, 0x0c, 0x0d]),
    ];
    for (data_sn, offset, is_final, len, expected) in table {
        let mut bench = Bench::ready(Options::default(), &["FirstBurstLength=4096"]);
        let mut command = write(1, 1, 8192);
        command.flags &= !pdu::FINAL;
        bench.feed(command, &[]);
        let mut out = data_out(1, NONE, data_sn, offset);
        out.flags = if is_final { pdu::FINAL } else { 0 };
        bench.feed(out, &bytes(len));
        assert_eq!(sense(&bench.one()), expected, "{data_sn} {offset} {is_final} {len}");
        assert!(bench.events().is_empty());
        assert_eq!(bench.connection.outstanding(), 0);
        assert_eq!(bench.connection.counters().transfer_errors, 1);
    }
}

#[test]
fn unsolicited_data_that_was_not_agreed_on_fails_the_command() {
    let mut bench = Bench::ready(Options::default(), &["ImmediateData=No"]);
    bench.feed(write(1, 1, 512), &bytes(512));
    assert_eq!(sense(&bench.one()), [0x0b, 0x0c, 0x0c]);
    let mut bench = Bench::ready(Options::default(), &["InitialR2T=Yes"]);
    let mut command = write(1, 1, 1024);
    command.flags &= !pdu::FINAL;
    bench.feed(command, &bytes(512));
    assert!(bench.got().is_empty(), "the answer waits for the end of the burst");
    bench.feed(data_out(1, NONE, 0, 512), &bytes(512));
    assert_eq!(sense(&bench.one()), [0x0b, 0x0c, 0x0c]);
    let mut bench = Bench::ready(Options::default(), &["FirstBurstLength=512"]);
    bench.feed(write(1, 1, 1024), &bytes(1024));
    assert_eq!(sense(&bench.one()), [0x0b, 0x0c, 0x0d]);
    assert_eq!(bench.connection.counters().swallowed_bytes, 1024);
}

#[test]
fn without_a_buffer_the_data_is_swallowed_and_the_answer_is_task_set_full() {
    let mut bench = Bench::ready(Options::default(), &["FirstBurstLength=1024"]);
    bench.site.buffers = 0;
    let mut command = write(1, 1, 4096);
    command.flags &= !pdu::FINAL;
    bench.feed(command, &bytes(512));
    assert!(bench.got().is_empty());
    bench.feed(data_out(1, NONE, 0, 512), &bytes(512));
    let got = bench.one();
    let response = got.as_pdu::<ScsiResponse>();
    assert_eq!((response.status, response.flags, response.residual.get()), (0x28, 0x82, 4096));
    assert_eq!(bench.connection.counters().task_set_full, 1);
    assert!(bench.events().is_empty());
}

/// What an R2T asks for: R2TSN, offset, length.
fn asks(got: &[Got]) -> Vec<(u32, u32, u32)> {
    let r2ts = got.iter().map(Got::as_pdu::<R2t>);
    r2ts.map(|r| (r.r2t_sn.get(), r.offset.get(), r.desired_len.get())).collect()
}

fn ttt(got: &Got) -> u32 {
    got.as_pdu::<R2t>().ttt.get()
}

#[test]
fn r2ts_are_limited_and_numbered() {
    let mut bench = Bench::ready(Options::default(), &["MaxOutstandingR2T=2"]);
    let tag = solicited(&mut bench, 20_000);
    bench.with(|c, tx| {
        c.solicit(tag, 0, 6000, vec![0; 6000], tx);
        c.solicit(tag, 6000, 2000, vec![0; 2000], tx);
        c.solicit(tag, 8000, 100, vec![0; 128], tx);
    });
    let got = bench.got();
    assert_eq!(asks(&got), [(0, 0, 6000), (1, 6000, 2000)]);
    let data = bytes(6000);
    let mut part = data_out(1, ttt(&got[0]), 0, 0);
    part.flags = 0;
    bench.feed(part, &data[..4000]);
    bench.feed(data_out(1, ttt(&got[1]), 0, 6000), &bytes(2000));
    assert!(matches!(bench.events.pop(), Some(Event::Data { offset: 6000, len: 2000, .. })));
    let third = bench.got();
    assert_eq!(asks(&third), [(2, 8000, 100)]);
    bench.feed(data_out(1, ttt(&got[0]), 1, 4000), &data[4000..]);
    match bench.events.pop() {
        Some(Event::Data { tag: of, offset: 0, len: 6000, buf }) => {
            assert_eq!((of, buf), (tag, data));
        }
        other => panic!("{other:?}"),
    }
    bench.feed(data_out(1, ttt(&third[0]), 0, 8000), &bytes(100));
    assert!(matches!(bench.events.pop(), Some(Event::Data { offset: 8000, len: 100, .. })));
    bench.with(|c, tx| c.respond(tag, Response::good(Wanted { read: 0, write: 8100 }), tx));
    let got = bench.one();
    let response = got.as_pdu::<ScsiResponse>();
    assert_eq!((response.exp_data_sn.get(), response.flags), (3, 0x82));
    assert_eq!(response.residual.get(), 20_000 - 8100);
}

#[test]
fn a_transfer_longer_than_a_burst_keeps_the_order_of_offsets() {
    let mut bench =
        Bench::ready(Options::default(), &["MaxOutstandingR2T=4", "MaxBurstLength=4096"]);
    let tag = solicited(&mut bench, 10_000);
    bench.with(|c, tx| {
        c.solicit(tag, 0, 9000, vec![0; 9000], tx);
        c.solicit(tag, 9000, 1000, vec![0; 1000], tx);
    });
    let data = bytes(9000);
    let first = bench.got();
    assert_eq!(asks(&first), [(0, 0, 4096)]);
    bench.feed(data_out(1, ttt(&first[0]), 0, 0), &data[..4096]);
    let second = bench.got();
    assert_eq!(asks(&second), [(1, 4096, 4096)]);
    bench.feed(data_out(1, ttt(&second[0]), 0, 4096), &data[4096..8192]);
    let rest = bench.got();
    assert_eq!(asks(&rest), [(2, 8192, 808), (3, 9000, 1000)]);
    bench.feed(data_out(1, ttt(&rest[0]), 0, 8192), &data[8192..]);
    assert!(matches!(&bench.events()[..], [Event::Data { len: 9000, buf, .. }] if *buf == data));
}

#[test]
fn a_long_transfer_that_breaks_is_swallowed_to_the_end_of_its_burst() {
    let mut bench =
        Bench::ready(Options::default(), &["MaxOutstandingR2T=4", "MaxBurstLength=4096"]);
    let tag = solicited(&mut bench, 10_000);
    bench.with(|c, tx| {
        c.solicit(tag, 0, 9000, vec![0; 9000], tx);
        c.solicit(tag, 9000, 1000, vec![0; 1000], tx);
    });
    let ttt = ttt(&bench.one());
    let mut wrong = data_out(1, ttt, 7, 0);
    wrong.flags = 0;
    bench.feed(wrong, &bytes(1000));
    assert!(bench.events().is_empty());
    bench.feed(data_out(1, ttt, 1, 1000), &bytes(3096));
    assert!(matches!(bench.events()[..], [Event::TransferFailed { .. }]));
    bench.with(|c, tx| c.respond(tag, Response::default(), tx));
    assert_eq!(bench.got().len(), 1);
    assert!(bench.connection.is_full_feature());
}

#[test]
fn solicited_data_that_does_not_add_up_fails_the_command() {
    // DataSN, offset, F, length.
    for (data_sn, offset, is_final, len) in [
        (1, 0, true, 1024),
        (0, 512, true, 1024),
        (0, 0, true, 1023),
        (0, 0, false, 1024),
        (0, 0, true, 1028),
    ] {
        let mut bench = Bench::ready(Options::default(), &["MaxOutstandingR2T=1"]);
        let tag = solicited(&mut bench, 4096);
        bench.with(|c, tx| {
            c.solicit(tag, 0, 1024, vec![0; 1024], tx);
            c.solicit(tag, 1024, 1024, vec![0; 1024], tx);
        });
        let ttt = bench.one().as_pdu::<R2t>().ttt.get();
        let mut out = data_out(1, ttt, data_sn, offset);
        out.flags = if is_final { pdu::FINAL } else { 0 };
        bench.feed(out, &bytes(len));
        match bench.events.pop() {
            Some(Event::TransferFailed { tag: of, error }) => {
                assert_eq!((of, error), (tag, TransferError::IncorrectAmountOfData));
                bench.with(|c, tx| c.respond(tag, Response::transfer_error(error), tx));
            }
            other => panic!("{data_sn} {offset} {is_final} {len}: {other:?}"),
        }
        assert_eq!(sense(&bench.one()), [0x0b, 0x0c, 0x0d]);
        assert_eq!(bench.connection.counters().protocol_errors, 1);
        assert!(bench.connection.is_full_feature());
    }
}

#[test]
fn a_failed_transfer_is_told_when_all_its_sequences_have_ended() {
    let mut bench = Bench::ready(Options::default(), &["MaxOutstandingR2T=2"]);
    let tag = solicited(&mut bench, 4096);
    bench.with(|c, tx| {
        c.solicit(tag, 0, 1024, vec![0; 1024], tx);
        c.solicit(tag, 1024, 1024, vec![0; 1024], tx);
    });
    let got = bench.got();
    let ttts: Vec<u32> = got.iter().map(|r| r.as_pdu::<R2t>().ttt.get()).collect();
    let mut wrong = data_out(1, ttts[0], 9, 0);
    wrong.flags = 0;
    bench.feed(wrong, &bytes(512));
    bench.feed(data_out(1, ttts[0], 1, 512), &bytes(512));
    assert!(bench.events().is_empty());
    bench.feed(data_out(1, ttts[1], 0, 1024), &bytes(1024));
    assert!(matches!(bench.events()[..], [Event::TransferFailed { .. }]));
    bench.with(|c, tx| c.solicit(tag, 2048, 512, vec![0; 512], tx));
    assert!(bench.got().is_empty());
}

#[test]
fn an_unknown_transfer_ends_the_connection() {
    let mut bench = Bench::ready(Options::default(), &[]);
    solicited(&mut bench, 4096);
    bench.feed(data_out(1, 77, 0, 0), &bytes(512));
    assert_eq!(bench.closed(), CloseReason::UnknownTransfer);
}

#[test]
fn unsolicited_data_for_a_running_command_fails_it() {
    let mut bench = Bench::ready(Options::default(), &[]);
    solicited(&mut bench, 4096);
    bench.feed(data_out(1, NONE, 0, 0), &bytes(512));
    assert!(matches!(
        bench.events()[..],
        [Event::TransferFailed { error: TransferError::UnexpectedUnsolicitedData, .. }]
    ));
}

#[test]
fn late_data_of_an_aborted_task_is_swallowed() {
    let mut bench = Bench::ready(Options::default(), &[]);
    let tag = solicited(&mut bench, 4096);
    bench.with(|c, tx| c.solicit(tag, 0, 4096, vec![0; 4096], tx));
    let ttt = bench.one().as_pdu::<R2t>().ttt.get();
    let stream = bench.encode(&data_out(1, ttt, 0, 0), &[], &bytes(4096));
    bench.raw(&stream[..1000]);
    let target = bench.connection.take_rx_target().unwrap();
    bench.connection.abort(tag);
    let Bench { connection, site, now, wires, events, .. } = &mut bench;
    connection.rx_payload(target, 2000, &mut Cx { now: *now, site, tx: wires, events });
    assert!(bench.connection.take_rx_target().is_none(), "the rest needs no buffer");
    assert_eq!(bench.connection.transfers.len(), 0);
    bench.raw(&stream[3000..]);
    bench.feed(data_out(1, ttt, 0, 0), &bytes(512));
    assert!(bench.events().is_empty() && bench.got().is_empty());
    assert_eq!(bench.connection.counters().swallowed_bytes, 512);
    bench.feed(read(2, 2, 512), &[]);
    assert_eq!(bench.command().expects_read, 512);
}

#[test]
fn a_wrong_data_digest_is_rejected_and_fails_the_command() {
    let mut bench = Bench::ready(Options::default(), &["DataDigest=CRC32C"]);
    let mut stream = bench.encode(&write(1, 1, 512), &[], &bytes(512));
    *stream.last_mut().unwrap() ^= 1;
    bench.raw(&stream);
    let got = bench.got();
    assert_eq!(got[0].as_pdu::<Reject>().reason, 2);
    assert_eq!(got[0].data, stream[..BHS_LEN]);
    assert_eq!(sense(&got[1]), [0x0b, 0x47, 0x05]);
    bench.feed(write(2, 2, 4096), &[]);
    let tag = bench.command().tag;
    bench.with(|c, tx| c.solicit(tag, 0, 4096, vec![0; 4096], tx));
    let ttt = bench.one().as_pdu::<R2t>().ttt.get();
    let mut stream = bench.encode(&data_out(2, ttt, 0, 0), &[], &bytes(4095));
    stream[BHS_LEN] ^= 1;
    bench.raw(&stream);
    assert_eq!(bench.one().as_pdu::<Reject>().reason, 2);
    assert!(matches!(
        bench.events()[..],
        [Event::TransferFailed { error: TransferError::ProtocolServiceCrcError, .. }]
    ));
    assert_eq!(bench.connection.counters().data_digest_errors, 2);
}

#[test]
fn a_zero_length_write_is_handed_up_without_data() {
    let mut bench = Bench::ready(Options::default(), &[]);
    bench.feed(write(1, 1, 0), &[]);
    assert!(bench.command().data.is_none());
    assert!(bench.site.allocated.is_empty());
}
