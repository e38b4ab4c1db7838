//! The target's end over RDMA: what it posts, and what it takes.

mod login;
mod waits;

use super::*;
use crate::iser::{Header, HeaderError, Remote};
use crate::pdu::{FINAL, RejectReason, TmfFunction, TmfResponse};

const READ_AT: Remote = Remote { stag: 0x1111, offset: 0x7f00_0000_1000 };
const WRITE_AT: Remote = Remote { stag: 0x2222, offset: 0x7f00_0000_2000 };
const RDMA: RdmaOptions = RdmaOptions { recv_data_segment_length: 8192, invalidate: true };

/// The keys of open-iscsi in a normal session over iSER.
const LINUX: &[&str] = &[
    "RDMAExtensions=Yes",
    "InitiatorRecvDataSegmentLength=262144",
    "TargetRecvDataSegmentLength=8192",
];

fn over_rdma(rdma: RdmaOptions) -> Bench {
    let mut bench = Bench::new(Options::default());
    let options =
        Options { data_digest: DigestPolicy::Require, initial_r2t: false, ..Options::default() };
    bench.connection = Connection::over_rdma(options, rdma, Duration::ZERO);
    bench
}

fn send(bench: &mut Bench, message: &[u8]) {
    let Bench { connection, site, now, wires, events, .. } = bench;
    connection.rx_send(message.into(), &mut Cx { now: *now, site, tx: wires, events });
}

/// A Send with this PDU, without padding.
fn message(opened: Header, pdu: &impl Wire, data: &[u8]) -> Vec<u8> {
    let mut bytes = opened.to_bytes().to_vec();
    bytes.extend_from_slice(pdu.as_bhs());
    bytes[33..36].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    bytes.extend_from_slice(data);
    bytes
}

fn feed(bench: &mut Bench, opened: Header, pdu: &impl Wire, data: &[u8]) {
    let bytes = message(opened, pdu, data);
    send(bench, &bytes);
}

fn effects(bench: &mut Bench) -> Vec<Effect> {
    assert!(bench.wires.sent.is_empty(), "half a Send");
    core::mem::take(&mut bench.wires.effects)
}

/// The one Send since the last call, and the steering tag that it takes back.
fn one(bench: &mut Bench) -> (Got, Option<u32>) {
    let effects = effects(bench);
    let [Effect::Send(bytes, stag)] = &effects[..] else { panic!("{effects:?}") };
    (got(bytes), *stag)
}

/// Takes a Send of the target apart.
fn got(bytes: &[u8]) -> Got {
    let (header, pdu) = bytes.split_at(28);
    assert_eq!(header, Header::default().to_bytes());
    let bhs: Bhs = pdu[..BHS_LEN].try_into().unwrap();
    let data = pdu[BHS_LEN..].to_vec();
    assert_eq!(BasicHeader::from_bhs(&bhs).data_len(), data.len());
    Got { bhs, data }
}

fn login(bench: &mut Bench, keys: &[&str]) -> Vec<(String, String)> {
    let names =
        [alloc::format!("InitiatorName={INITIATOR}"), alloc::format!("TargetName={TARGET}")];
    let mut all: Vec<&str> = names.iter().map(String::as_str).collect();
    all.extend_from_slice(keys);
    feed(bench, Header::default(), &Bench::login_request(0x87), &text_of(&all));
    assert!(matches!(bench.events.pop(), Some(Event::LoginFinished(_))));
    bench.with(|connection, tx| connection.admit(9, tx));
    one(bench).0.text()
}

fn ready(keys: &[&str]) -> Bench {
    let mut bench = over_rdma(RDMA);
    let mut all = LINUX.to_vec();
    all.extend_from_slice(keys);
    login(&mut bench, &all);
    bench
}

fn reads() -> Header {
    Header { read: Some(READ_AT), write: None }
}

fn writes() -> Header {
    Header { read: None, write: Some(WRITE_AT) }
}

fn read_done(bench: &mut Bench, read: RdmaRead<Vec<u8>>) {
    let Bench { connection, site, now, wires, events, .. } = bench;
    let mut cx = Cx { now: *now, site, tx: wires, events };
    connection.rdma_read_done(read.id, read.buf, &mut cx);
}

#[test]
fn a_read_is_written_into_the_initiators_memory() {
    let mut bench = ready(&[]);
    feed(&mut bench, reads(), &read(5, 1, 4096), &[]);
    let tag = bench.command().tag;
    bench.with(|c, tx| {
        c.send_data(tag, TestPayload(bytes(3000)), 0..3000, None, tx);
        let last = Some(Wanted { read: 4000, write: 0 });
        c.send_data(tag, TestPayload(bytes(1003)), 3..1003, last, tx);
    });
    let effects = effects(&mut bench);
    let [Effect::Write(first, at), Effect::Write(second, behind), Effect::Send(end, stag)] =
        &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!((first, *at), (&bytes(3000), READ_AT));
    assert_eq!((&second[..], *behind), (&bytes(1003)[3..], READ_AT.at(3000)));
    assert_eq!(*stag, Some(READ_AT.stag));
    let end = got(end);
    let response: &pdu::ScsiResponse = end.as_pdu();
    assert_eq!((response.status, response.flags), (0, FINAL | pdu::UNDERFLOW));
    assert_eq!((response.residual.get(), response.exp_data_sn.get()), (96, 0));
    let counters = bench.connection.counters();
    assert_eq!((counters.rdma_writes, counters.bytes_in), (2, 4000));
}

#[test]
fn steering_tags_stay_where_they_cannot_be_taken_back() {
    let mut bench = over_rdma(RdmaOptions { invalidate: false, ..RDMA });
    login(&mut bench, LINUX);
    feed(&mut bench, reads(), &read(5, 1, 512), &[]);
    let tag = bench.command().tag;
    bench.good(tag);
    assert_eq!(one(&mut bench).1, None);
    // Linux gives tag 0 with a write that carries all its data.
    let mut bench = ready(&[]);
    let none = Header { read: None, write: Some(Remote::default()) };
    feed(&mut bench, none, &write(6, 1, 512), &[1; 512]);
    let tag = bench.command().tag;
    bench.good(tag);
    assert_eq!(one(&mut bench).1, None);
}

#[test]
fn a_command_without_the_memory_that_it_needs_is_rejected() {
    let mut bench = ready(&[]);
    feed(&mut bench, writes(), &read(5, 1, 512), &[]);
    feed(&mut bench, reads(), &write(6, 2, 1024), &[1; 512]);
    for effect in effects(&mut bench) {
        let Effect::Send(bytes, None) = effect else { panic!("{effect:?}") };
        let reason = got(&bytes).as_pdu::<pdu::Reject>().reason;
        assert_eq!(reason, RejectReason::InvalidPduField.code());
    }
    assert_eq!(bench.connection.counters().rejects(), 2);
    // Nothing is needed for what comes by itself.
    feed(&mut bench, Header::default(), &write(7, 3, 512), &[1; 512]);
    assert_eq!(bench.command().data.map(|(_, len)| len), Some(512));
}

#[test]
fn the_memory_of_a_write_begins_behind_its_unsolicited_data() {
    for (key, from) in [
        ("TaggedBufferForSolicitedDataOnly=Yes", WRITE_AT),
        ("TaggedBufferForSolicitedDataOnly=No", WRITE_AT.at(500)),
    ] {
        let mut bench = ready(&[key]);
        // An odd length, and no padding behind it.
        feed(&mut bench, writes(), &write(5, 1, 2049), &bytes(500));
        let command = bench.command();
        assert_eq!(
            command.data.as_ref().map(|(buf, len)| (&buf[..], *len)),
            Some((&bytes(500)[..], 500))
        );
        let tag = command.tag;
        bench.with(|c, tx| {
            c.solicit(tag, 500, 1000, vec![0; 1000], tx);
            c.solicit(tag, 1500, 549, vec![0; 549], tx);
        });
        let first = bench.connection.take_rdma_read().unwrap();
        let second = bench.connection.take_rdma_read().unwrap();
        assert!(bench.connection.take_rdma_read().is_none());
        assert_eq!((first.from, first.len), (from, 1000));
        assert_eq!((second.from, second.len), (from.at(1000), 549));
        // They may come back in any order.
        for (read, offset) in [(second, 1500), (first, 500)] {
            read_done(&mut bench, read);
            let event = bench.events.pop();
            assert!(matches!(event, Some(Event::Data { offset: at, .. }) if at == offset));
        }
        assert!(effects(&mut bench).is_empty());
        bench.with(|c, tx| c.respond(tag, Response::good(Wanted { read: 0, write: 2049 }), tx));
        let (response, stag) = one(&mut bench);
        assert_eq!(response.as_pdu::<pdu::ScsiResponse>().residual.get(), 0);
        assert_eq!(stag, Some(WRITE_AT.stag));
        assert_eq!(bench.connection.counters().bytes_out, 2049);
    }
}

/// A write with two RDMA Reads, one of them under way.
fn half_read(bench: &mut Bench) -> (Tag, RdmaRead<Vec<u8>>) {
    feed(bench, writes(), &write(5, 1, 2048), &[]);
    let tag = bench.command().tag;
    bench.with(|c, tx| c.solicit(tag, 0, 1024, vec![0; 1024], tx));
    let lent = bench.connection.take_rdma_read().unwrap();
    bench.with(|c, tx| c.solicit(tag, 1024, 1024, vec![0; 1024], tx));
    (tag, lent)
}

#[test]
fn unsolicited_data_comes_in_sends() {
    let mut bench = ready(&["InitialR2T=No", "FirstBurstLength=1024"]);
    let mut command = write(5, 1, 2048);
    command.flags &= !FINAL;
    feed(&mut bench, writes(), &command, &bytes(512));
    assert!(bench.events.is_empty());
    let rest = data_out(5, pdu::RESERVED_TAG, 0, 512);
    feed(&mut bench, Header::default(), &rest, &bytes(512));
    let command = bench.command();
    assert_eq!(command.data.map(|(_, len)| len), Some(1024));
    bench.with(|c, tx| c.solicit(command.tag, 1024, 1024, vec![0; 1024], tx));
    assert_eq!(bench.connection.take_rdma_read().unwrap().from, WRITE_AT);
}

#[test]
fn solicited_data_does_not_come_in_sends() {
    let mut bench = ready(&["InitialR2T=Yes"]);
    let _ = half_read(&mut bench);
    feed(&mut bench, Header::default(), &data_out(5, 0x40_0000, 0, 0), &[1; 8]);
    assert_eq!(bench.closed(), CloseReason::UnknownTransfer);
}

#[test]
fn what_is_no_pdu_ends_the_connection() {
    let whole = message(reads(), &read(5, 1, 512), &[]);
    let cut = |len: usize| whole[..len].to_vec();
    let mut hello = whole.clone();
    hello[0] = 0x20;
    let mut unknown = whole.clone();
    unknown[0] = 0x54;
    let mut long = message(writes(), &write(5, 1, 512), &[1; 512]);
    long.pop();
    let mut ahs = whole.clone();
    ahs[32] = 1;
    for (bytes, fault) in [
        (cut(27), SendFault::Header(HeaderError::Short)),
        (unknown, SendFault::Header(HeaderError::Opcode(0x50))),
        (hello, SendFault::Hello),
        (cut(28), SendFault::Truncated),
        (cut(75), SendFault::Truncated),
        (long, SendFault::Truncated),
        (ahs, SendFault::Truncated),
    ] {
        let mut bench = ready(&[]);
        send(&mut bench, &bytes);
        assert_eq!(bench.closed(), CloseReason::Send(fault));
        // Nothing comes behind it.
        send(&mut bench, &whole);
        assert!(bench.events.is_empty() && effects(&mut bench).is_empty());
    }
}

#[test]
fn a_send_that_is_too_long_ends_the_connection() {
    let mut bench = ready(&["FirstBurstLength=65536"]);
    feed(&mut bench, writes(), &write(5, 1, 16_384), &[1; 8196]);
    assert_eq!(bench.closed(), CloseReason::SegmentTooLong { len: 8196, limit: 8192 });
}

#[test]
fn what_comes_behind_a_pdu_is_not_looked_at() {
    let mut bench = ready(&[]);
    let mut padded = message(Header::default(), &write(5, 1, 5), b"abcde");
    padded.extend_from_slice(&[0xff; 7]);
    send(&mut bench, &padded);
    assert_eq!(bench.command().data.map(|(buf, len)| buf[..len].to_vec()), Some(b"abcde".to_vec()));
    feed(&mut bench, Header::default(), &write(6, 2, 1), b"x");
    assert_eq!(bench.command().data.map(|(_, len)| len), Some(1));
}

#[test]
fn a_broken_connection_gives_nothing_more() {
    let mut bench = ready(&["InitialR2T=Yes"]);
    let (tag, lent) = half_read(&mut bench);
    let Bench { connection, events, .. } = &mut bench;
    connection.rdma_failed(RdmaFault::RemoteAccess, events);
    connection.rdma_failed(RdmaFault::Disconnected, events);
    assert_eq!(bench.closed(), CloseReason::Rdma(RdmaFault::RemoteAccess));
    assert!(bench.connection.take_rdma_read().is_none());
    read_done(&mut bench, lent);
    bench.good(tag);
    assert!(bench.events.is_empty() && effects(&mut bench).is_empty());
}
