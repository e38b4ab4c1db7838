use super::data::{BOTH_DIGESTS, completed, data_in, digests};
use super::*;
use crate::pdu::{STATUS, ScsiCommand};

const ANSWERS: &[u8] = b"MaxRecvDataSegmentLength=1024\0";

#[test]
fn discarded_data_is_counted_and_not_kept() {
    let mut bench = Bench::logged_in(options(), ANSWERS);
    let tag = bench.submit(Data::Discard(3000));
    let sent = bench.sent().remove(0);
    let pdu: &ScsiCommand = sent.view();
    assert_eq!((pdu.flags, pdu.expected_len.get()), (0xc1, 3000));
    bench.tell(&data_in(tag, 0, 0, 0), &pattern(1000));
    let last = bench.frame(&data_in(tag, FINAL | STATUS, 1, 1000), &pattern(2000));
    assert_eq!(bench.connection.discardable(), 0);
    bench.receive(&last[..BHS_LEN + 10]);
    assert_eq!(bench.connection.discardable(), 1990);
    assert!(bench.connection.take_rx_target().is_none());
    let Bench { connection, now, sent, events, .. } = &mut bench;
    connection.rx_discarded(990, &mut Cx { now: *now, tx: sent, events });
    assert_eq!(connection.discardable(), 1000);
    connection.rx_discarded(5000, &mut Cx { now: *now, tx: sent, events });
    assert_eq!(connection.discardable(), 0);
    let (completion, data) = completed(&mut bench);
    assert_eq!((completion.received, data), (3000, Data::Discard(3000)));
}

#[test]
fn with_digests_discarded_data_is_looked_at() {
    for flip in [false, true] {
        let mut bench = Bench::logged_in(digests(), BOTH_DIGESTS);
        let tag = bench.submit(Data::Discard(3000));
        let mut bytes = bench.frame(&data_in(tag, FINAL | STATUS, 0, 0), &pattern(3000));
        bytes[BHS_LEN + 100] ^= u8::from(flip);
        bench.receive(&bytes[..200]);
        assert_eq!(bench.connection.discardable(), 0, "the digest needs all of it");
        bench.receive(&bytes[200..]);
        if flip {
            assert_eq!(bench.connection.outstanding(), 0);
            assert_eq!(bench.failure(), Error::DataDigest);
        } else {
            assert!(completed(&mut bench).0.is_good());
        }
    }
}
