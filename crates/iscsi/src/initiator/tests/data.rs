use super::*;
use crate::pdu::{
    Ahs, DataIn, DataOut, OVERFLOW, R2t, STATUS, ScsiCommand, ScsiResponse, UNDERFLOW,
};
use proptest::prelude::*;

const ANSWERS: &[u8] = b"MaxRecvDataSegmentLength=1024\0MaxBurstLength=4096\0\
    FirstBurstLength=2048\0InitialR2T=No\0ImmediateData=Yes\0";
pub(super) const BOTH_DIGESTS: &[u8] = b"HeaderDigest=CRC32C\0DataDigest=CRC32C\0";

pub(super) fn digests() -> Options {
    Options { header_digest: DigestOffer::Crc32c, data_digest: DigestOffer::Crc32c, ..options() }
}

pub(super) fn data_in(tag: Tag, flags: u8, data_sn: u32, offset: u32) -> DataIn {
    DataIn {
        flags,
        itt: tag.itt(),
        ttt: RESERVED_TAG.into(),
        data_sn: data_sn.into(),
        offset: offset.into(),
        ..Default::default()
    }
}

fn response(tag: Tag) -> ScsiResponse {
    ScsiResponse { flags: FINAL, itt: tag.itt(), ..Default::default() }
}

fn finished(bench: &mut Bench) -> Finished<Vec<u8>, Vec<u8>> {
    match bench.events().pop() {
        Some(Event::Finished(finished)) => finished,
        other => panic!("no outcome but {other:?}"),
    }
}

pub(super) fn completed(bench: &mut Bench) -> (Completion, Data<Vec<u8>, Vec<u8>>) {
    match finished(bench) {
        Finished { outcome: Outcome::Completed(completion), data, token: 77, .. } => {
            (completion, data)
        }
        other => panic!("not completed: {other:?}"),
    }
}

#[test]
fn a_read_fills_the_buffer_and_ends_with_its_last_data() {
    let mut bench = Bench::logged_in(options(), ANSWERS);
    let tag = bench.submit(Data::Read(vec![0; 3000]));
    let sent = bench.sent().remove(0);
    let pdu: &ScsiCommand = sent.view();
    assert_eq!((pdu.flags, pdu.expected_len.get(), pdu.cmd_sn.get()), (0xc1, 3000, 1));
    let data = pattern(3000);
    bench.tell(&data_in(tag, 0, 0, 0), &data[..1001]);
    bench.answer(&data_in(tag, FINAL | STATUS, 1, 1001), &data[1001..]);
    let (completion, got) = completed(&mut bench);
    assert!(completion.is_good());
    assert_eq!((completion.received, completion.residual), (3000, Residual::None));
    assert_eq!(got, Data::Read(data));
    assert_eq!(bench.connection.outstanding(), 0);
}

#[test]
fn a_short_read_says_how_much_is_missing() {
    let mut bench = Bench::logged_in(options(), ANSWERS);
    let tag = bench.submit(Data::Read(vec![0; 255]));
    let mut pdu = data_in(tag, FINAL | STATUS | UNDERFLOW, 0, 0);
    pdu.residual = (255 - 36).into();
    bench.answer(&pdu, &pattern(36));
    let (completion, _) = completed(&mut bench);
    assert_eq!((completion.received, completion.residual), (36, Residual::Underflow(219)));
}

#[test]
fn good_status_without_all_data_is_not_believed() {
    for tell in [None, Some(8)] {
        let mut bench = Bench::logged_in(options(), ANSWERS);
        let tag = bench.submit(Data::Read(vec![0; 16]));
        let mut pdu = response(tag);
        if let Some(residual) = tell {
            (pdu.flags, pdu.residual) = (FINAL | UNDERFLOW, residual.into());
        }
        bench.answer(&pdu, b"");
        assert_eq!(bench.failure(), Error::DataMissing);
    }
    let mut bench = Bench::logged_in(options(), ANSWERS);
    let tag = bench.submit(Data::Write(vec![0; 5000]));
    bench.answer(&response(tag), b"");
    assert_eq!(bench.failure(), Error::DataMissing);
}

#[test]
fn data_must_come_in_order_and_in_range() {
    let cases: [(u32, u32, usize, Error); 4] = [
        (1, 0, 8, Error::DataSn),
        (0, 4, 8, Error::DataRange),
        (0, 0, 5001, Error::DataRange),
        (0, 0, 4097, Error::DataRange),
    ];
    for (data_sn, offset, len, error) in cases {
        let mut bench = Bench::logged_in(options(), ANSWERS);
        let tag = bench.submit(Data::Read(vec![0; 5000]));
        bench.tell(&data_in(tag, FINAL, data_sn, offset), &pattern(len));
        assert_eq!(bench.failure(), error, "{data_sn} {offset} {len}");
    }
    let mut bench = Bench::logged_in(options(), ANSWERS);
    let tag = bench.submit(Data::Write(vec![0; 8]));
    bench.tell(&data_in(tag, FINAL, 0, 0), &pattern(8));
    assert_eq!(bench.failure(), Error::NoSuchTask(tag.number()));
}

#[test]
fn an_additional_header_is_refused_before_it_comes() {
    let mut bench = Bench::logged_in(options(), ANSWERS);
    let tag = bench.submit(Data::Read(vec![0; 8]));
    let pdu = DataIn { ahs_words: 1, ..data_in(tag, FINAL, 0, 0) };
    bench.receive(&pdu.as_bhs()[..]);
    assert_eq!(bench.failure(), Error::AdditionalHeader);
}

#[test]
fn sense_data_and_residuals_are_handed_on() {
    let mut bench = Bench::logged_in(options(), ANSWERS);
    let tag = bench.submit(Data::Read(vec![0; 16]));
    let mut pdu = response(tag);
    (pdu.flags, pdu.status, pdu.residual) = (FINAL | OVERFLOW, 2, 100.into());
    bench.answer(&pdu, &[0, 3, 0x70, 0, 5, 99, 99]);
    let (completion, _) = completed(&mut bench);
    assert_eq!((completion.status, completion.sense), (2, vec![0x70, 0, 5]));
    assert_eq!((completion.residual, completion.received), (Residual::Overflow(100), 0));
}

#[test]
fn a_write_sends_what_it_may_without_being_asked() {
    // InitialR2T, ImmediateData, policy: immediate bytes, bytes in all, of 5000.
    let cases = [
        (false, true, Unsolicited::Full, 1024, 2048),
        (false, true, Unsolicited::ImmediateOnly, 1024, 1024),
        (false, true, Unsolicited::SeparateOnly, 0, 2048),
        (false, true, Unsolicited::Nothing, 0, 0),
        (true, true, Unsolicited::Full, 1024, 1024),
        (false, false, Unsolicited::Full, 0, 2048),
        (true, false, Unsolicited::Full, 0, 0),
    ];
    for (initial_r2t, immediate_data, unsolicited, immediate, total) in cases {
        let mut bench = Bench::logged_in(Options { immediate_data, unsolicited, ..options() }, &{
            let yes = |value| if value { "Yes" } else { "No" };
            let more = alloc::format!(
                "InitialR2T={}\0ImmediateData={}\0MaxRecvDataSegmentLength=1024\0\
                     FirstBurstLength=2048\0",
                yes(initial_r2t),
                yes(immediate_data)
            );
            more.into_bytes()
        });
        let data = pattern(5000);
        bench.submit(Data::Write(data.clone()));
        let mut sent = bench.sent().into_iter();
        let command = sent.next().expect("a command");
        let pdu: &ScsiCommand = command.view();
        assert_eq!(command.data, data[..immediate]);
        assert_eq!(pdu.flags & FINAL != 0, immediate == total);
        let mut at = immediate;
        for (number, out) in sent.enumerate() {
            let pdu: &DataOut = out.view();
            assert_eq!((pdu.ttt.get(), pdu.offset.get() as usize), (RESERVED_TAG, at));
            assert_eq!(pdu.data_sn.get() as usize, number);
            assert_eq!(out.data, data[at..at + out.data.len()]);
            at += out.data.len();
            assert_eq!(pdu.flags & FINAL != 0, at == total);
        }
        assert_eq!(at, total);
    }
}

#[test]
fn an_r2t_is_answered_in_pieces_that_the_target_takes() {
    let mut bench = Bench::logged_in(
        Options { unsolicited: Unsolicited::Nothing, ..digests() },
        &[ANSWERS, BOTH_DIGESTS].concat(),
    );
    let data = pattern(4000);
    let tag = bench.submit(Data::Write(data.clone()));
    bench.sent();
    let ask = |r2t_sn: u32, offset: u32, len: u32| R2t {
        flags: FINAL,
        lun: 5.into(),
        itt: tag.itt(),
        ttt: 0x42.into(),
        r2t_sn: r2t_sn.into(),
        offset: offset.into(),
        desired_len: len.into(),
        ..Default::default()
    };
    bench.tell(&ask(0, 0, 2049), b"");
    bench.tell(&ask(1, 2049, 1951), b"");
    let sent = bench.sent();
    let lengths: Vec<_> = sent.iter().map(|pdu| pdu.data.len()).collect();
    assert_eq!(lengths, [1024, 1024, 1, 1024, 927]);
    assert_eq!(sent.iter().flat_map(|pdu| pdu.data.clone()).collect::<Vec<_>>(), data);
    let heads: Vec<_> =
        sent.iter().map(|p| p.view::<DataOut>()).map(|p| (p.flags, p.data_sn.get())).collect();
    assert_eq!(heads, [(0, 0), (0, 1), (FINAL, 2), (0, 0), (FINAL, 1)]);
    assert!(sent.iter().all(|pdu| pdu.view::<DataOut>().ttt.get() == 0x42));
    assert!(sent.iter().all(|pdu| pdu.view::<DataOut>().lun.get() == 5));
    let mut end = response(tag);
    end.exp_data_sn = 2.into();
    bench.answer(&end, b"");
    assert_eq!(completed(&mut bench), (Completion::default(), Data::Write(data)));
}

#[test]
fn an_r2t_out_of_order_or_range_is_refused() {
    let cases = [
        (1, 0, 100, Error::DataSn),
        (0, 100, 100, Error::DataRange),
        (0, 0, 0, Error::DataRange),
        (0, 0, 4097, Error::DataRange),
        (0, 0, 5001, Error::DataRange),
    ];
    for (r2t_sn, offset, len, error) in cases {
        let unsolicited = Unsolicited::Nothing;
        let mut bench = Bench::logged_in(Options { unsolicited, ..options() }, ANSWERS);
        let tag = bench.submit(Data::Write(pattern(5000)));
        let pdu = R2t {
            itt: tag.itt(),
            r2t_sn: u32::to_be_bytes(r2t_sn).into(),
            offset: u32::to_be_bytes(offset).into(),
            desired_len: u32::to_be_bytes(len).into(),
            ..Default::default()
        };
        bench.tell(&pdu, b"");
        assert_eq!(bench.failure(), error);
    }
}

#[test]
fn a_long_cdb_goes_into_an_additional_header_segment() {
    let mut bench = Bench::logged_in(options(), ANSWERS);
    let cdb = pattern(32);
    let mut command = Command {
        token: 0,
        lun: 0,
        cdb: &cdb,
        attribute: TaskAttribute::Ordered,
        immediate: true,
        data: Data::None,
    };
    bench.connection.submit(command.clone(), &mut bench.sent).expect("accepted");
    let sent = bench.sent().remove(0);
    let pdu: &ScsiCommand = sent.view();
    assert_eq!((pdu.opcode, pdu.flags, pdu.cdb[..].to_vec()), (0x41, 0x82, cdb[..16].to_vec()));
    assert_eq!(Ahs::parse(&sent.ahs).map(|ahs| ahs.extended_cdb), Ok(Some(&cdb[16..])));
    assert_eq!(bench.connection.window(), 32);
    for wrong in [&[][..], &[0; 1033]] {
        command.cdb = wrong;
        let refused = bench.connection.submit(command.clone(), &mut bench.sent);
        assert_eq!(refused.map_err(|refused| refused.error), Err(SubmitError::TooLong));
    }
}

#[test]
fn the_window_and_the_task_limit_hold_commands_back() {
    let mut bench = Bench::logged_in(Options { max_tasks: 33, ..options() }, ANSWERS);
    let command = |immediate| Command {
        token: 0,
        lun: 0,
        cdb: &[0; 6],
        attribute: TaskAttribute::Simple,
        immediate,
        data: Data::<Vec<u8>, Vec<u8>>::None,
    };
    let mut first = None;
    for _ in 0..32 {
        first.get_or_insert(bench.submit(Data::None));
    }
    let error = |bench: &mut Bench, immediate| {
        let result = bench.connection.submit(command(immediate), &mut bench.sent);
        result.map_err(|refused| refused.error)
    };
    assert_eq!(error(&mut bench, false), Err(SubmitError::WindowClosed));
    assert!(error(&mut bench, true).is_ok());
    assert_eq!(error(&mut bench, true), Err(SubmitError::TooManyTasks));
    bench.max_cmd_sn += 1;
    bench.answer(&response(first.expect("a tag")), b"");
    assert!(error(&mut bench, false).is_ok());
}

/// The answers to a read of 300 bytes and a write of 10, as bytes.
fn stream(bench: &mut Bench) -> (Vec<u8>, Vec<u8>) {
    let data = pattern(300);
    let read = bench.submit(Data::Read(vec![0; 300]));
    let write = bench.submit(Data::Write(vec![1; 10]));
    let mut bytes = bench.frame(&data_in(read, 0, 0, 0), &data[..101]);
    bytes.extend(bench.frame(&data_in(read, FINAL | STATUS, 1, 101), &data[101..]));
    bench.stat_sn += 1;
    bytes.extend(bench.frame(&response(write), &[0, 1, 0x70]));
    (bytes, data)
}

fn check_stream(bench: &mut Bench, data: Vec<u8>) {
    let events = bench.events();
    let [Event::Finished(read), Event::Finished(write)] = &events[..] else {
        panic!("unexpected {events:?}")
    };
    assert_eq!(read.data, Data::Read(data));
    assert!(matches!(&read.outcome, Outcome::Completed(end) if end.received == 300));
    assert!(matches!(&write.outcome, Outcome::Completed(end) if end.sense == [0x70]));
}

proptest! {
    #[test]
    fn the_stream_may_be_cut_anywhere(
        cuts in proptest::collection::vec(1usize..80, 1..40),
        with_digests: bool,
        direct: bool,
    ) {
        let mut bench = match with_digests {
            true => Bench::logged_in(digests(), BOTH_DIGESTS),
            false => Bench::logged_in(options(), ANSWERS),
        };
        let (bytes, data) = stream(&mut bench);
        let mut rest = bytes.as_slice();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let mut piece;
            (piece, rest) = rest.split_at((*cut).min(rest.len()));
            if let Some(mut target) = direct.then(|| bench.connection.take_rx_target()).flatten() {
                let n = target.range.len().min(piece.len());
                let range = target.range.start..target.range.start + n;
                target.buf[range].copy_from_slice(&piece[..n]);
                piece = &piece[n..];
                let Bench { connection, now, sent, events, .. } = &mut bench;
                connection.rx_payload(target, n, &mut Cx { now: *now, tx: sent, events });
            }
            bench.receive(piece);
        }
        check_stream(&mut bench, data);
    }

    #[test]
    fn a_flipped_bit_is_noticed(at: proptest::sample::Index, bit in 0u8..8) {
        let mut bench = Bench::logged_in(digests(), BOTH_DIGESTS);
        let (mut bytes, data) = stream(&mut bench);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        bench.receive(&bytes);
        // A wrong length may make the receiver wait for bytes that never come.
        bench.connection.transport_closed(&mut bench.events);
        let mut lost = 0;
        for event in bench.events() {
            match event {
                Event::Finished(Finished { outcome: Outcome::Lost, .. }) => lost += 1,
                Event::Finished(Finished { data: Data::Read(got), .. }) => {
                    prop_assert_eq!(&got, &data);
                }
                Event::Finished(_) | Event::Failed(_) => {}
                other => prop_assert!(false, "{:?}", other),
            }
        }
        prop_assert!(lost > 0);
    }

    #[test]
    fn any_bytes_end_well(bytes in proptest::collection::vec(any::<u8>(), 0..600), opcode in 0x20u8..0x40) {
        for mut bench in [Bench::new(options()), Bench::logged_in(options(), ANSWERS)] {
            bench.submit_some();
            let mut bytes = bytes.clone();
            if let Some(first) = bytes.first_mut() {
                *first = opcode;
            }
            bench.receive(&bytes);
            bench.connection.transport_closed(&mut bench.events);
            prop_assert!(bench.connection.is_over());
            prop_assert_eq!(bench.connection.outstanding(), 0);
        }
    }
}

impl Bench {
    fn submit_some(&mut self) {
        if self.connection.is_ready() {
            self.submit(Data::Read(vec![0; 100]));
            self.submit(Data::Write(vec![0; 100]));
        }
    }
}
