//! Reading a few blocks, for a look at what is there.

use lunet_client::iscsi::{Error, Login, Reader};
use lunet_client::{Order, Workload};

use crate::support::{Served, memory};

const MIB: usize = 1 << 20;

/// A disk of 2 MiB, the first of which is filled.
fn filled() -> (Served, Reader) {
    let served = Served::volumes(vec![memory(2)]);
    let fill = Workload {
        reads_percent: 0,
        order: Order::Sequential,
        runtime: None,
        size: Some(MIB as u64),
        ..Workload::new(64 << 10)
    };
    served.run(fill.within(0..MIB as u64));
    let reader = Reader::open(&served.lun(0), &Login::default()).expect("a disk");
    (served, reader)
}

#[test]
fn any_bytes_are_read_where_they_are() {
    let (_served, mut reader) = filled();
    let mut whole = vec![0; 2 * MIB];
    reader.read(0, &mut whole).expect("all of it");
    assert!(whole[..MIB].chunks(512).all(|block| block.iter().any(|&byte| byte != 0)));
    assert!(whole[MIB..].iter().all(|&byte| byte == 0));
    // Whole blocks, parts of them, over the edge of a piece, the last byte, nothing.
    for (at, len) in [(0, 512), (100, 7), (511, 2), ((64 << 10) - 3, 9), (2 * MIB - 1, 1), (5, 0)] {
        let mut part = vec![0xEE; len];
        reader.read(at as u64, &mut part).expect("they are there");
        assert_eq!(part, whole[at..at + len], "{len} bytes at {at}");
    }
    reader.close();
}

#[test]
fn what_is_not_there_is_an_error() {
    let (_served, mut reader) = filled();
    assert_eq!(reader.unit().bytes(), 2 * MIB as u64);
    let error = reader.read(2 * MIB as u64 - 512, &mut [0; 1024]).expect_err("the end");
    assert!(matches!(error, Error::Command { what: "READ", .. }), "{error}");
    // The session goes on.
    reader.read(0, &mut [0; 512]).expect("it is there");
}
