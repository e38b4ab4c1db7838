//! POPULATE TOKEN and WRITE USING TOKEN.

use std::time::Duration;

use crate::common::*;
use lunet_block::{BlockRange, ByteRange};
use lunet_scsi::copy::{
    About, Operations, Origin, Outcome, Piece, Populate, Query, Request, Rod, RodToken, TokenKind,
    WriteUsing, action,
};
use lunet_scsi::{
    Action, Code, Key, ParameterKind, Parameters, Reply, Sense, SenseFormat, Unit, parameters,
};
use proptest::prelude::*;

fn descriptors(ranges: &[(u64, u32)]) -> Vec<u8> {
    let mut all = vec![];
    for (lba, blocks) in ranges {
        all.extend(lba.to_be_bytes());
        all.extend(blocks.to_be_bytes());
        all.extend([0; 4]);
    }
    all
}

/// The parameter list of POPULATE TOKEN.
fn populate_list(flags: u8, inactivity: u32, ranges: &[(u64, u32)]) -> Vec<u8> {
    let descriptors = descriptors(ranges);
    let mut list = (14 + descriptors.len() as u16).to_be_bytes().to_vec();
    list.extend([flags, 0]);
    list.extend(inactivity.to_be_bytes());
    list.extend([0, 1, 0, 0, 0, 0]);
    list.extend((descriptors.len() as u16).to_be_bytes());
    [list, descriptors].concat()
}

/// The parameter list of WRITE USING TOKEN.
fn write_list(flags: u8, offset: u64, token: &RodToken, ranges: &[(u64, u32)]) -> Vec<u8> {
    let descriptors = descriptors(ranges);
    let mut list = (534 + descriptors.len() as u16).to_be_bytes().to_vec();
    list.extend([flags, 0, 0, 0, 0, 0]);
    list.extend(offset.to_be_bytes());
    list.extend(token.0);
    list.extend([0; 6]);
    list.extend((descriptors.len() as u16).to_be_bytes());
    [list, descriptors].concat()
}

fn parse(unit: &Unit, kind: ParameterKind, list: &[u8]) -> Result<Request, Sense> {
    match parameters(unit, Parameters { kind, len: list.len() as u32 }, list) {
        Action::Copy(request) => Ok(request),
        Action::Complete(Reply { sense: Some(sense), .. }) => Err(sense),
        other => panic!("{other:?}"),
    }
}

fn populate(unit: &Unit, list: &[u8]) -> Result<Populate, Sense> {
    match parse(unit, ParameterKind::PopulateToken { list: 9 }, list)? {
        Request::Populate(populate) => Ok(populate),
        other => panic!("{other:?}"),
    }
}

fn write_using(unit: &Unit, list: &[u8]) -> Result<WriteUsing, Sense> {
    match parse(unit, ParameterKind::WriteUsingToken { list: 9 }, list)? {
        Request::WriteUsing(write) => Ok(*write),
        other => panic!("{other:?}"),
    }
}

fn token() -> RodToken {
    RodToken::new(&unit(), &target(), 1 << 20, &[0xA5; RodToken::SECRET])
}

#[test]
fn a_token_says_what_it_stands_for() {
    let token = token().0;
    assert_eq!(token[..8], [0, 1, 0, 0, 0, 0, 0x01, 0xF8]);
    assert_eq!(token[16..32], [&[0xE4, 0, 0, 0, 1, 3, 0, 8][..], &identity().naa].concat());
    assert_eq!(token[44..48], 512u32.to_be_bytes());
    assert_eq!(token[48..64], (1u128 << 20).to_be_bytes());
    assert_eq!(token[96..100], 512u32.to_be_bytes());
    let name = b"iqn.2026-11.local.lunet:demo\0\0\0\0";
    assert_eq!(token[128..132], [0x53, 0xA8, 0, name.len() as u8]);
    assert_eq!(token[132..132 + name.len()], name[..]);
    assert_eq!(token[448..], [0xA5; 64]);
    assert_eq!(format!("{:?}", RodToken(token)), "RodToken");
}

#[test]
fn populate_takes_ranges() {
    let unit = unit();
    let good = populate(&unit, &populate_list(0, 0, &[(0, 8), (100, 0), (8, 1)])).unwrap();
    let ranges = vec![BlockRange::new(0, 8), BlockRange::new(8, 1)];
    assert_eq!(good, Populate { list: 9, immediate: false, inactivity: 120, ranges });
    assert_eq!(good.blocks(), 9);
    let other = populate(&unit, &populate_list(3, 600, &[(0, 8)])).unwrap();
    assert_eq!((other.immediate, other.inactivity), (true, 600));
    // A descriptor that the list cuts off is not there.
    let whole = populate_list(0, 0, &[(0, 8), (8, 1)]);
    assert_eq!(populate(&unit, &whole[..47]).unwrap().blocks(), 8);
}

#[test]
fn populate_refuses_what_it_cannot_stand_for() {
    let unit = unit();
    let fails = |list: &[u8]| {
        let sense = populate(&unit, list).unwrap_err();
        assert_eq!(sense.key, Key::IllegalRequest);
        (sense.code, sense.field.map(|field| field.byte))
    };
    let invalid = |at| (Code::INVALID_FIELD_IN_PARAMETER_LIST, Some(at));
    assert_eq!(fails(&[0; 15]), (Code::PARAMETER_LIST_LENGTH_ERROR, None));
    assert_eq!(fails(&populate_list(0, 601, &[(0, 8)])), invalid(4));
    assert_eq!(fails(&populate_list(0, 0, &[])), invalid(0));
    assert_eq!(fails(&populate_list(0, 0, &[(5, 0)])), invalid(14));
    let mut rod_type = populate_list(2, 0, &[(0, 8)]);
    rod_type[9] = 0x80;
    assert_eq!(fails(&rod_type), invalid(8));
    assert_eq!(fails(&populate_list(0, 0, &[(0, 8), (7, 1)])), invalid(32));
    let end = caps().blocks;
    assert_eq!(fails(&populate_list(0, 0, &[(end - 1, 2)])), (Code::LBA_OUT_OF_RANGE, None));
    assert_eq!(fails(&populate_list(0, 0, &[(u64::MAX, 2)])), (Code::LBA_OUT_OF_RANGE, None));
    // 256 MiB are the most that a token stands for.
    let most = (256 << 20) / 512;
    assert!(populate(&unit, &populate_list(0, 0, &[(0, most)])).is_ok());
    assert_eq!(fails(&populate_list(0, 0, &[(0, most), (u64::from(most), 1)])), invalid(40));
    let many: Vec<(u64, u32)> = (0..65).map(|i| (i * 2, 1)).collect();
    assert!(populate(&unit, &populate_list(0, 0, &many[..64])).is_ok());
    assert_eq!(fails(&populate_list(0, 0, &many)), (Code::TOO_MANY_SEGMENT_DESCRIPTORS, None));
}

#[test]
fn write_using_looks_at_the_token() {
    let unit = unit();
    let write = write_using(&unit, &write_list(2, 3, &token(), &[(1, 2)])).unwrap();
    assert_eq!((write.list, write.immediate, write.delete, write.offset), (9, false, true, 1536));
    assert_eq!((write.kind(), write.blocks()), (Ok(TokenKind::Made), 2));
    let mut zero = RodToken([0; 512]);
    zero.0[..8].copy_from_slice(&[0xFF, 0xFF, 0, 1, 0, 0, 0x01, 0xF8]);
    let write = write_using(&unit, &write_list(1, 0, &zero, &[(1, 2)])).unwrap();
    assert_eq!((write.immediate, write.kind()), (true, Ok(TokenKind::Zero)));
    let mut strange = token();
    strange.0[1] = 0x80;
    let write = write_using(&unit, &write_list(0, 0, &strange, &[(1, 2)])).unwrap();
    assert_eq!(write.kind().unwrap_err().code, Code::UNSUPPORTED_TOKEN_TYPE);
    strange.0[7] = 0;
    let short = write_using(&unit, &write_list(0, 0, &strange, &[(1, 2)])).unwrap_err();
    assert_eq!(short.code, Code::INVALID_TOKEN_LENGTH);
    let far = write_using(&unit, &write_list(0, u64::MAX, &token(), &[(1, 2)])).unwrap_err();
    assert_eq!(far.code, Code::INVALID_FIELD_IN_PARAMETER_LIST);
    let list = write_list(0, 0, &token(), &[(1, 2)]);
    let cut = write_using(&unit, &list[..535]).unwrap_err();
    assert_eq!(cut.code, Code::PARAMETER_LIST_LENGTH_ERROR);
}

fn rod(ranges: &[(u64, u64)], block_size: u32) -> Rod {
    let ranges = ranges.iter().map(|(lba, blocks)| BlockRange::new(*lba, *blocks)).collect();
    Rod { ranges, block_size }
}

#[test]
fn pieces_join_both_lists_of_ranges() {
    let write = |unit: &Unit, offset, ranges: &[(u64, u32)]| {
        write_using(unit, &write_list(0, offset, &token(), ranges)).unwrap()
    };
    let piece =
        |from, to, len| Piece { from: ByteRange::new(from, len), to: ByteRange::new(to, len) };
    let small = unit();
    let source = rod(&[(10, 4), (100, 4)], 512);
    let pieces = write(&small, 1, &[(0, 4), (50, 3)]).pieces(&source, 512).unwrap();
    let expected = [piece(5632, 0, 1536), piece(51200, 1536, 512), piece(51712, 25600, 1536)];
    assert_eq!(pieces, expected);
    // More is asked for than there is.
    let pieces = write(&small, 7, &[(0, 4)]).pieces(&source, 512).unwrap();
    assert_eq!(pieces, [piece(52736, 0, 512)]);
    let beyond = write(&small, 8, &[(0, 4)]).pieces(&source, 512).unwrap_err();
    assert_eq!(beyond.code, Code::INVALID_FIELD_IN_PARAMETER_LIST);
    // The standard's own example (SBC-4 5.52.2): LBAs 15 to 20 and 40 to 100 of 512 bytes, one block
    // of 4096 bytes from offset 1 on, starts at LBA 42.
    let source = rod(&[(15, 6), (40, 61)], 512);
    let pieces = write(&unit_4kn(), 1, &[(7, 1)]).pieces(&source, 4096).unwrap();
    assert_eq!(pieces, [piece(42 * 512, 7 * 4096, 4096)]);
    // A block would have to be put together from two places.
    let torn = write(&unit_4kn(), 0, &[(7, 1)]).pieces(&source, 4096).unwrap_err();
    assert_eq!(torn.code, Code::INVALID_TOKEN_OPERATION);
}

#[test]
fn a_token_is_handed_over_once() {
    let now = Duration::from_secs(5);
    let mut operations = Operations::default();
    let (unit, list, action) = (1, Some(9), action::POPULATE_TOKEN);
    let origin = Origin { unit, list, action, background: false, block_size: 512 };
    let id = operations.begin(origin, now).unwrap();
    operations.made(id, token());
    operations.advance(id, 0, 512 * 9, 1);
    operations.end(id, Outcome::Done, now);
    let mut ask = |allocation| {
        let query = Query { about: About::Token, list: 9, allocation };
        operations.query(1, query, SenseFormat::Fixed, now)
    };
    let cut = ask(32).data;
    assert_eq!(cut.len(), 32);
    let whole = ask(1024).data;
    assert_eq!(whole[..32], cut);
    assert_eq!((whole.len(), whole[..4].to_vec()), (32 + 4 + 514, vec![0, 0, 0x02, 0x22]));
    assert_eq!((whole[4], whole[5], whole[15]), (0x10, 0x01, 0xF1));
    assert_eq!((&whole[8..12], whole[23]), (&[0xFF, 0xFF, 0xFF, 0xFE][..], 9));
    assert_eq!((&whole[32..38], &whole[38..]), (&[0, 0, 2, 2, 0, 0][..], &token().0[..]));
    assert_eq!(ask(1024).sense.map(|sense| sense.code), Some(Code::INVALID_FIELD_IN_CDB));
}

proptest! {
    /// Pieces cover what is asked for, in order, as far as there is data.
    #[test]
    fn pieces_are_the_data_in_order(
        source in prop::collection::vec(1..20_u64, 1..8),
        wanted in prop::collection::vec(1..20_u32, 1..8),
        offset in 0..40_u64,
    ) {
        let mut lba = 0;
        let source: Vec<(u64, u64)> = source.iter().map(|n| { lba += n + 3; (lba - n, *n) }).collect();
        let mut lba = 0;
        let wanted: Vec<(u64, u32)> =
            wanted.iter().map(|n| { lba += u64::from(*n) + 5; (lba - u64::from(*n), *n) }).collect();
        let unit = unit();
        let write = write_using(&unit, &write_list(0, offset, &token(), &wanted)).unwrap();
        let blocks: Vec<u64> = source.iter().flat_map(|(lba, n)| *lba..lba + n).collect();
        let places: Vec<u64> = wanted.iter().flat_map(|(lba, n)| *lba..lba + u64::from(*n)).collect();
        match write.pieces(&rod(&source, 512), 512) {
            Err(_) => prop_assert!(offset >= blocks.len() as u64),
            Ok(pieces) => {
                let all = |pick: fn(&Piece) -> ByteRange| -> Vec<u64> {
                    let range = |p: &Piece| pick(p).offset / 512..pick(p).end() / 512;
                    pieces.iter().flat_map(range).collect()
                };
                let count = places.len().min(blocks.len() - offset as usize);
                prop_assert_eq!(&all(|p| p.from), &blocks[offset as usize..][..count]);
                prop_assert_eq!(&all(|p| p.to), &places[..count]);
            }
        }
    }
}
