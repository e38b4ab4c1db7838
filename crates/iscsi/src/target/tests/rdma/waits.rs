//! What waits for RDMA Reads.

use super::super::tmf::tmf;
use super::*;

#[test]
fn an_answer_waits_for_the_reads_under_way() {
    let mut bench = ready(&["InitialR2T=Yes"]);
    let (tag, lent) = half_read(&mut bench);
    let response = Response { status: 2, sense: &[0x70; 200], wanted: None };
    bench.with(|c, tx| c.respond(tag, response, tx));
    assert!(effects(&mut bench).is_empty());
    assert!(bench.connection.take_rdma_read().is_none(), "nothing more is fetched");
    // The layer above is through with it.
    bench.good(tag);
    assert!(effects(&mut bench).is_empty());
    read_done(&mut bench, lent);
    let (end, stag) = one(&mut bench);
    let pdu: &pdu::ScsiResponse = end.as_pdu();
    assert_eq!((pdu.status, pdu.residual.get(), stag), (2, 2048, Some(WRITE_AT.stag)));
    // Linux has room for 128 bytes.
    assert_eq!(end.data, [&[0, 126][..], &[0x70; 126]].concat());
    assert_eq!((bench.connection.outstanding(), bench.events.len()), (0, 0));
}

#[test]
fn an_answer_to_an_abort_waits_for_the_reads_under_way() {
    for answered in [false, true] {
        let mut bench = ready(&["InitialR2T=Yes"]);
        let (tag, lent) = half_read(&mut bench);
        if answered {
            bench.good(tag);
        }
        let abort = tmf(TmfFunction::AbortTask.code(), 5, 2, 1);
        feed(&mut bench, Header::default(), &abort, &[]);
        if let Some(Event::TaskManagement { tag: function, referenced, .. }) = bench.events.pop() {
            assert_eq!(referenced, Some(tag));
            bench.connection.abort(tag);
            bench.with(|c, tx| c.respond_tmf(function, TmfResponse::Complete, tx));
        }
        assert!(effects(&mut bench).is_empty());
        read_done(&mut bench, lent);
        let (end, _) = one(&mut bench);
        let response = end.as_pdu::<pdu::TmfResponsePdu>().response;
        assert_eq!(response, TmfResponse::Complete.code());
        assert!(bench.connection.take_rdma_read().is_none());
        assert_eq!((bench.connection.outstanding(), bench.events.len()), (0, 0));
    }
}

#[test]
fn a_read_that_was_not_posted_goes_with_its_command() {
    let mut bench = ready(&["InitialR2T=Yes"]);
    feed(&mut bench, writes(), &write(5, 1, 512), &[]);
    let first = bench.command().tag;
    bench.with(|c, tx| c.solicit(first, 0, 512, vec![0; 512], tx));
    bench.connection.abort(first);
    // Another command gets its place.
    let elsewhere = Header { read: None, write: Some(WRITE_AT.at(4096)) };
    feed(&mut bench, elsewhere, &write(6, 2, 512), &[]);
    let second = bench.command().tag;
    bench.with(|c, tx| c.solicit(second, 0, 512, vec![0; 512], tx));
    let read = bench.connection.take_rdma_read().unwrap();
    assert_eq!(read.from, WRITE_AT.at(4096));
    assert!(bench.connection.take_rdma_read().is_none());
    read_done(&mut bench, read);
    assert!(matches!(bench.events.pop(), Some(Event::Data { tag, .. }) if tag == second));
}

#[test]
fn an_answer_to_a_reset_comes_behind_answers_that_wait() {
    let mut bench = ready(&["InitialR2T=Yes"]);
    let (tag, lent) = half_read(&mut bench);
    bench.good(tag);
    let reset = tmf(TmfFunction::LogicalUnitReset.code(), 0, 2, 0);
    feed(&mut bench, Header::default(), &reset, &[]);
    let Some(Event::TaskManagement { tag: function, .. }) = bench.events.pop() else { panic!() };
    bench.with(|c, tx| c.respond_tmf(function, TmfResponse::Complete, tx));
    assert!(effects(&mut bench).is_empty());
    read_done(&mut bench, lent);
    let effects = effects(&mut bench);
    let [Effect::Send(first, Some(_)), Effect::Send(second, None)] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(got(first).opcode(), Opcode::ScsiResponse);
    assert_eq!(got(second).opcode(), Opcode::TmfResponse);
    assert_eq!(bench.connection.outstanding(), 0);
}

#[test]
fn answers_to_aborts_do_not_pile_up() {
    let mut bench = ready(&["InitialR2T=Yes"]);
    let (tag, lent) = half_read(&mut bench);
    bench.connection.abort(tag);
    let abort = tmf(TmfFunction::AbortTask.code(), 5, 2, 0);
    for _ in 0..65 {
        feed(&mut bench, Header::default(), &abort, &[]);
    }
    let response = |got: &Got| got.as_pdu::<pdu::TmfResponsePdu>().response;
    assert_eq!(response(&one(&mut bench).0), TmfResponse::Rejected.code());
    read_done(&mut bench, lent);
    let effects = effects(&mut bench);
    assert_eq!(effects.len(), 64);
    for effect in effects {
        let Effect::Send(bytes, None) = effect else { panic!("{effect:?}") };
        assert_eq!(response(&got(&bytes)), TmfResponse::TaskDoesNotExist.code());
    }
}

#[test]
fn a_broken_burst_is_told_when_the_reads_are_back() {
    let mut bench = ready(&["InitialR2T=Yes"]);
    let (tag, lent) = half_read(&mut bench);
    let unwanted = data_out(5, pdu::RESERVED_TAG, 0, 0);
    feed(&mut bench, Header::default(), &unwanted, &[1; 8]);
    assert!(bench.events.is_empty());
    let second = bench.connection.take_rdma_read();
    for read in [lent].into_iter().chain(second) {
        read_done(&mut bench, read);
    }
    let events = bench.events();
    let [Event::TransferFailed { tag: failed, error }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((*failed, *error), (tag, TransferError::UnexpectedUnsolicitedData));
}
