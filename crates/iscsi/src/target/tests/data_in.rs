use super::*;
use crate::pdu::{DataIn, ScsiResponse};

fn running(bench: &mut Bench, command: ScsiCommand) -> Tag {
    bench.feed(command, &[]);
    bench.command().tag
}

fn wanted(read: u32) -> Option<Wanted> {
    Some(Wanted { read, write: 0 })
}

#[test]
fn a_short_read_is_one_pdu_with_status() {
    let mut bench = Bench::ready(Options::default(), &[]);
    let tag = running(&mut bench, read(1, 1, 4096));
    let payload = TestPayload(bytes(5000));
    bench.with(|c, tx| c.send_data(tag, payload, 8..4104, wanted(4096), tx));
    let got = bench.one();
    let pdu = got.as_pdu::<DataIn>();
    assert_eq!((pdu.flags, pdu.status, pdu.stat_sn.get()), (0x81, 0, 2));
    assert_eq!((pdu.itt.get(), pdu.ttt.get(), pdu.data_sn.get()), (1, u32::MAX, 0));
    assert_eq!((pdu.exp_cmd_sn.get(), pdu.max_cmd_sn.get()), (2, 129));
    assert_eq!(got.data, bytes(5000)[8..4104]);
    assert_eq!(bench.connection.outstanding(), 0);
    assert_eq!(bench.connection.counters().bytes_in, 4096);
}

#[test]
fn a_payload_is_cut_at_the_segment_and_burst_lengths() {
    let keys = [
        "MaxRecvDataSegmentLength=1000",
        "MaxBurstLength=2500",
        "DataDigest=CRC32C",
        "HeaderDigest=CRC32C",
    ];
    let mut bench = Bench::ready(Options::default(), &keys);
    let tag = running(&mut bench, read(1, 1, 6000));
    let data = bytes(6000);
    let (one, two) = (TestPayload(data.clone()), TestPayload(data.clone()));
    bench.with(|c, tx| c.send_data(tag, one, 0..2001, None, tx));
    bench.with(|c, tx| c.send_data(tag, two, 2001..6000, wanted(6000), tx));
    let got = bench.got();
    let seen: Vec<_> = got
        .iter()
        .map(|g| (g.as_pdu::<DataIn>(), g.data.len()))
        .map(|(p, len)| (p.flags, p.data_sn.get(), p.offset.get(), len))
        .collect();
    assert_eq!(
        seen,
        [
            (0, 0, 0, 1000),
            (0, 1, 1000, 1000),
            (0, 2, 2000, 1),
            (0x80, 3, 2001, 499),
            (0, 4, 2500, 1000),
            (0, 5, 3500, 1000),
            (0x80, 6, 4500, 500),
            (0x81, 7, 5000, 1000),
        ]
    );
    let all: Vec<u8> = got.into_iter().flat_map(|g| g.data).collect();
    assert_eq!(all, data);
}

#[test]
fn all_that_is_expected_ends_the_sequence_even_without_status() {
    let mut bench = Bench::ready(Options::default(), &[]);
    let tag = running(&mut bench, read(1, 1, 1024));
    bench.with(|c, tx| c.send_data(tag, TestPayload(bytes(512)), 0..512, None, tx));
    bench.with(|c, tx| c.send_data(tag, TestPayload(bytes(512)), 0..512, None, tx));
    let flags: Vec<u8> = bench.got().iter().map(|g| g.as_pdu::<DataIn>().flags).collect();
    assert_eq!(flags, [0, pdu::FINAL]);
}

#[test]
fn residuals_of_reads() {
    // Expected, wanted, sent; flags, residual.
    let table =
        [(4096, 4096, 4096, 0x81, 0), (4096, 512, 512, 0x83, 3584), (512, 4096, 4096, 0x85, 3584)];
    for (expected, want, sent, flags, residual) in table {
        let mut bench = Bench::ready(Options::default(), &[]);
        let tag = running(&mut bench, read(1, 1, expected));
        let payload = TestPayload(bytes(sent));
        bench.with(|c, tx| c.send_data(tag, payload, 0..sent, wanted(want), tx));
        let got = bench.one();
        let pdu = got.as_pdu::<DataIn>();
        assert_eq!((pdu.flags, pdu.residual.get()), (flags, residual));
        assert_eq!(got.data.len(), sent.min(expected as usize));
    }
}

#[test]
fn data_that_nobody_expects_becomes_an_overflow() {
    let mut bench = Bench::ready(Options::default(), &[]);
    for (itt, direction) in [(1, 0), (2, pdu::READ)] {
        let tag = running(&mut bench, scsi(direction, itt, itt, 0));
        bench.with(|c, tx| c.send_data(tag, TestPayload(bytes(36)), 0..36, wanted(36), tx));
        let got = bench.one();
        let pdu = got.as_pdu::<ScsiResponse>();
        assert_eq!((pdu.flags, pdu.status, pdu.residual.get()), (0x84, 0, 36));
    }
}

#[test]
fn no_data_at_the_end_becomes_a_response() {
    let mut bench = Bench::ready(Options::default(), &[]);
    let tag = running(&mut bench, read(1, 1, 4096));
    bench.with(|c, tx| c.send_data(tag, TestPayload(Vec::new()), 0..0, wanted(0), tx));
    let got = bench.one();
    let pdu = got.as_pdu::<ScsiResponse>();
    assert_eq!((pdu.flags, pdu.residual.get(), pdu.exp_data_sn.get()), (0x82, 4096, 0));
}

#[test]
fn a_failure_after_some_data_counts_what_was_moved() {
    let mut bench = Bench::ready(Options::default(), &[]);
    let tag = running(&mut bench, read(1, 1, 4096));
    bench.with(|c, tx| c.send_data(tag, TestPayload(bytes(1024)), 0..1024, None, tx));
    let sense = [0x70, 0, 3];
    let response = Response { status: 2, sense: &sense, wanted: None };
    bench.with(|c, tx| c.respond(tag, response, tx));
    let got = bench.got();
    assert_eq!(got[0].as_pdu::<DataIn>().flags, 0);
    let pdu = got[1].as_pdu::<ScsiResponse>();
    assert_eq!((pdu.flags, pdu.status, pdu.residual.get()), (0x82, 2, 3072));
    assert_eq!(pdu.exp_data_sn.get(), 1);
    assert_eq!(got[1].data, [0, 3, 0x70, 0, 3]);
}

#[test]
fn both_residuals_of_a_bidirectional_command() {
    let mut bench = Bench::ready(Options::default(), &[]);
    let mut ahs = Vec::new();
    pdu::write_bidi_read_length(&mut ahs, 100);
    assert!(pdu::write_extended_cdb(&mut ahs, &[9; 16]));
    let stream = bench.encode(&scsi(pdu::READ | pdu::WRITE, 1, 1, 512), &ahs, &bytes(512));
    bench.raw(&stream);
    let command = bench.command();
    assert_eq!((command.expects_read, command.expects_write), (100, 512));
    assert_eq!((command.cdb().len(), command.cdb()[31]), (32, 9));
    let response = Response::good(Wanted { read: 120, write: 500 });
    bench.with(|c, tx| c.respond(command.tag, response, tx));
    let got = bench.one();
    let pdu = got.as_pdu::<ScsiResponse>();
    assert_eq!((pdu.flags, pdu.residual.get(), pdu.bidi_residual.get()), (0x92, 12, 20));
}

#[test]
fn a_stale_tag_does_nothing() {
    let mut bench = Bench::ready(Options::default(), &[]);
    let old = running(&mut bench, read(1, 1, 512));
    bench.connection.abort(old);
    let new = running(&mut bench, read(2, 2, 512));
    assert_eq!(old.slot(), new.slot());
    assert_ne!(old, new);
    assert_eq!(Tag::from_bits(new.to_bits()), new);
    bench.with(|c, tx| {
        c.send_data(old, TestPayload(bytes(512)), 0..512, wanted(512), tx);
        c.respond(old, Response::default(), tx);
        c.respond_tmf(new, pdu::TmfResponse::Complete, tx);
        c.abort(old);
    });
    assert!(bench.got().is_empty());
    assert_eq!(bench.connection.outstanding(), 1);
}

#[test]
fn long_sense_data_is_cut() {
    let mut bench = Bench::ready(Options::default(), &[]);
    let tag = running(&mut bench, read(1, 1, 0));
    let response = Response { status: 2, sense: &[7; 300], wanted: None };
    bench.with(|c, tx| c.respond(tag, response, tx));
    assert_eq!(bench.one().data.len(), 254);
}
