//! The commands that move, check, flush and unmap blocks.

use crate::common::*;
use lunet_block::BlockRange;
use lunet_scsi::{
    Action, Check, Code, Key, ParameterKind, Parameters, Transfer, Unit, WriteSameSource,
    parameters,
};

const BLOCKS: u64 = (1 << 21) + 1;

/// A command block of any length with the address and the number of blocks in their places.
fn rw(opcode: u8, flags: u8, lba: u64, blocks: u32) -> Vec<u8> {
    let (lba, blocks) = (lba.to_be_bytes(), blocks.to_be_bytes());
    match opcode >> 5 {
        0 => cdb(6, &[(0, &[opcode]), (1, &lba[5..]), (4, &blocks[3..])]),
        1 | 2 => cdb(10, &[(0, &[opcode, flags]), (2, &lba[4..]), (7, &blocks[2..])]),
        4 => cdb(16, &[(0, &[opcode, flags]), (2, &lba), (10, &blocks)]),
        _ => cdb(12, &[(0, &[opcode, flags]), (2, &lba[4..]), (6, &blocks)]),
    }
}

const READS: [u8; 4] = [0x08, 0x28, 0xA8, 0x88];
const WRITES: [u8; 4] = [0x0A, 0x2A, 0xAA, 0x8A];
const WRITE_VERIFYS: [u8; 3] = [0x2E, 0xAE, 0x8E];
const VERIFYS: [u8; 3] = [0x2F, 0xAF, 0x8F];

fn range(start: u64, blocks: u64) -> BlockRange {
    BlockRange::new(start, blocks)
}

#[test]
fn reads() {
    for opcode in READS {
        let task = run(&unit(), &rw(opcode, 0, 0x12345, 7));
        let range = range(0x12345, 7);
        assert_eq!(task.action, Action::Read { range, fua: false });
        assert_eq!(task.transfer, Transfer { data_in: 7 * 512, data_out: 0 });
    }
    let task = run(&unit_4kn(), &rw(0x88, 0x18, 1 << 32, 2));
    let range = range(1 << 32, 2);
    assert_eq!(task.action, Action::Read { range, fua: true });
    assert_eq!(task.transfer.data_in, 8192);
}

#[test]
fn writes() {
    for opcode in WRITES {
        let task = run(&unit(), &rw(opcode, 0, 0x12345, 7));
        let range = range(0x12345, 7);
        let action = Action::Write { range, fua: false, then_verify: None };
        assert_eq!(task.action, action);
        assert_eq!(task.transfer, Transfer { data_in: 0, data_out: 7 * 512 });
    }
    let task = run(&unit(), &rw(0x2A, 0x08, 0, 1));
    let action = Action::Write { range: range(0, 1), fua: true, then_verify: None };
    assert_eq!(task.action, action);
}

#[test]
fn zero_is_256_blocks_in_6_byte_commands_and_nothing_in_the_others() {
    assert_eq!(run(&unit(), &rw(0x08, 0, 0, 0)).transfer.data_in, 256 * 512);
    assert_eq!(run(&unit(), &rw(0x0A, 0, 0, 0)).transfer.data_out, 256 * 512);
    for opcode in [&READS[1..], &WRITES[1..], &WRITE_VERIFYS, &VERIFYS].concat() {
        let task = run(&unit(), &rw(opcode, 0, 0, 0));
        good(&task);
        assert_eq!(task.transfer, Transfer::default());
        illegal(&run(&unit(), &rw(opcode, 0, BLOCKS + 1, 0)), Code::LBA_OUT_OF_RANGE);
    }
}

#[test]
fn addresses_beyond_the_end_are_refused() {
    let all = [&READS[..], &WRITES, &WRITE_VERIFYS, &VERIFYS].concat();
    for opcode in all.into_iter().chain([0x34, 0x90, 0x35, 0x91, 0x41, 0x93]) {
        // 6-byte commands do not reach the end of a larger unit.
        let unit = with(|c| c.blocks = 1000);
        for (lba, blocks) in [(1000, 1), (999, 2), (993, 8), (1001, 0), (0x1F_FFFF, 255)] {
            let task = run(&unit, &rw(opcode, 0, lba, blocks));
            illegal(&task, Code::LBA_OUT_OF_RANGE);
            let Action::Complete(reply) = task.action else { unreachable!() };
            assert_eq!(reply.sense.and_then(|s| s.information), Some(lba.max(1000)));
        }
    }
    illegal(&run(&unit(), &rw(0x88, 0, u64::MAX, u32::MAX)), Code::LBA_OUT_OF_RANGE);
}

#[test]
fn transfers_are_bounded() {
    let unit = unit();
    let max = unit.limits.max_transfer_blocks;
    for opcode in [0xA8, 0x88, 0xAA, 0x8A, 0xAE, 0x8E] {
        assert!(!matches!(run(&unit, &rw(opcode, 0, 0, max)).action, Action::Complete(_)));
        illegal(&run(&unit, &rw(opcode, 0, 0, max + 1)), Code::INVALID_FIELD_IN_CDB);
    }
    // What VERIFY does not transfer is not bounded.
    illegal(&run(&unit, &rw(0x8F, 0x02, 0, max + 1)), Code::INVALID_FIELD_IN_CDB);
    let task = run(&unit, &rw(0x8F, 0, 0, BLOCKS as u32));
    assert_eq!(task.action, Action::Verify { range: range(0, BLOCKS), check: Check::Medium });
    let max = unit.limits.max_write_same_blocks as u32;
    assert_eq!(
        run_expecting(&unit, &rw(0x93, 0, 0, max), 0, 512).action,
        Action::WriteSame {
            range: range(0, max.into()),
            source: WriteSameSource::DataOut,
            unmap: false
        }
    );
    illegal(&run(&unit, &rw(0x93, 0, 0, max + 1)), Code::INVALID_FIELD_IN_CDB);
}

#[test]
fn protection_information_is_refused() {
    let all = [&READS[1..], &WRITES[1..], &WRITE_VERIFYS, &VERIFYS, &[0x41, 0x93]].concat();
    for opcode in all {
        for protect in 1..8 {
            let task = run(&unit(), &rw(opcode, protect << 5, 0, 1));
            illegal(&task, Code::INVALID_FIELD_IN_CDB);
        }
    }
}

#[test]
fn a_short_expectation_cuts_the_action_but_not_the_transfer() {
    let cut = |read, write| {
        let read = run_expecting(&unit(), &rw(0x28, 0, 8, 2), read, 0);
        let write = run_expecting(&unit(), &rw(0x2A, 0, 8, 2), 0, write);
        assert_eq!((read.transfer.data_in, write.transfer.data_out), (1024, 1024));
        (read, write)
    };
    let (read, write) = cut(0, 0);
    good(&read);
    good(&write);
    // A part of a block is read, but not written.
    let (read, write) = cut(200, 200);
    assert!(matches!(read.action, Action::Read { range: r, .. } if r == range(8, 1)));
    illegal(&write, Code::INVALID_FIELD_IN_INFORMATION_UNIT);
    let (read, write) = cut(512, 512);
    assert!(matches!(read.action, Action::Read { range: r, .. } if r == range(8, 1)));
    assert!(matches!(write.action, Action::Write { range: r, .. } if r == range(8, 1)));
    let (read, write) = cut(10000, 10000);
    assert!(matches!(read.action, Action::Read { range: r, .. } if r == range(8, 2)));
    assert!(matches!(write.action, Action::Write { range: r, .. } if r == range(8, 2)));
}

#[test]
fn a_write_that_is_flagged_as_a_read_is_refused() {
    for opcode in [0x2A, 0x2E, 0x8A, 0x8E] {
        illegal(
            &run_expecting(&unit(), &rw(opcode, 0, 8, 2), 1024, 0),
            Code::INVALID_FIELD_IN_INFORMATION_UNIT,
        );
        good(&run_expecting(&unit(), &rw(opcode, 0, 8, 0), 1024, 0));
    }
    // The other way round the residual count says that none of the data was needed (RFC 7143 11.4.5.1).
    let read = run_expecting(&unit(), &rw(0x28, 0, 8, 2), 0, 1024);
    good(&read);
    assert_eq!((read.transfer.data_in, read.transfer.data_out), (1024, 0));
}

#[test]
fn verify_by_byte_check() {
    for opcode in VERIFYS {
        let verify = |bytchk: u8, expects| {
            run_expecting(&unit(), &rw(opcode, bytchk << 1, 4, 3), 0, expects)
        };
        let action = |check| Action::Verify { range: range(4, 3), check };
        assert_eq!(verify(0, 0).action, action(Check::Medium));
        assert_eq!(verify(0, 0).transfer.data_out, 0);
        assert_eq!(verify(1, 1536).action, action(Check::Compare));
        assert_eq!(verify(1, 1536).transfer.data_out, 1536);
        illegal(&verify(2, 1536), Code::INVALID_FIELD_IN_CDB);
        assert_eq!(verify(3, 512).action, action(Check::CompareOneBlock));
        assert_eq!(verify(3, 512).transfer.data_out, 512);
        illegal(&verify(3, 0), Code::INVALID_FIELD_IN_INFORMATION_UNIT);
    }
}

#[test]
fn write_and_verify() {
    for opcode in WRITE_VERIFYS {
        let then = |flags| match run(&unit(), &rw(opcode, flags, 4, 3)).action {
            Action::Write { then_verify, fua: false, .. } => then_verify,
            other => panic!("{other:?}"),
        };
        assert_eq!(then(0), Some(Check::Medium));
        assert_eq!(then(0x12), Some(Check::Compare));
        for bytchk in [0x04, 0x06] {
            let task = run(&unit(), &rw(opcode, bytchk, 4, 3));
            illegal(&task, Code::INVALID_FIELD_IN_CDB);
        }
    }
}

#[test]
fn prefetch_and_flush_take_zero_for_the_rest() {
    for opcode in [0x34, 0x90] {
        let action = |range| Action::Prefetch { range };
        for immediate in [0, 0x02] {
            let task = run(&unit(), &rw(opcode, immediate, 8, 0));
            assert_eq!(task.action, action(range(8, BLOCKS - 8)));
        }
        assert_eq!(run(&unit(), &rw(opcode, 0, 8, 8)).action, action(range(8, 8)));
        good(&run(&unit(), &rw(opcode, 0, BLOCKS, 0)));
    }
    for opcode in [0x35, 0x91] {
        let action = |range, immediate| Action::Flush { range, immediate };
        let task = run(&unit(), &rw(opcode, 0x02, 0, 0));
        assert_eq!(task.action, action(range(0, BLOCKS), true));
        assert_eq!(run(&unit(), &rw(opcode, 0, 8, 8)).action, action(range(8, 8), false));
    }
}

#[test]
fn write_same() {
    let go = |unit: &Unit, opcode, flags, blocks, expects| {
        run_expecting(unit, &rw(opcode, flags, 8, blocks), 0, expects)
    };
    let action = |source, unmap| Action::WriteSame { range: range(8, 5), source, unmap };
    for opcode in [0x41, 0x93] {
        let task = go(&unit(), opcode, 0, 5, 512);
        assert_eq!(task.action, action(WriteSameSource::DataOut, false));
        assert_eq!(task.transfer.data_out, 512);
        let task = go(&unit(), opcode, 0x08, 5, 512);
        assert_eq!(task.action, action(WriteSameSource::DataOut, true));
        // WSNZ on a thin unit, UNMAP on a thick one, ANCHOR, PBDATA, LBDATA.
        illegal(&go(&unit(), opcode, 0, 0, 512), Code::INVALID_FIELD_IN_CDB);
        illegal(&go(&unit_thick(), opcode, 0x08, 5, 512), Code::INVALID_FIELD_IN_CDB);
        for flags in [0x10, 0x18, 0x02, 0x04] {
            illegal(&go(&unit(), opcode, flags, 5, 512), Code::INVALID_FIELD_IN_CDB);
        }
        for expects in [0, 256, 1024] {
            let task = go(&unit(), opcode, 0, 5, expects);
            illegal(&task, Code::INVALID_FIELD_IN_INFORMATION_UNIT);
            assert_eq!(task.transfer.data_out, 512);
        }
    }
    let task = go(&unit(), 0x93, 0x01, 5, 0);
    assert_eq!(task.action, action(WriteSameSource::Zeroes, false));
    assert_eq!(task.transfer, Transfer::default());
    assert_eq!(go(&unit(), 0x93, 0x09, 5, 0).action, action(WriteSameSource::Zeroes, true));
}

#[test]
fn write_same_of_no_blocks_goes_to_the_end_of_a_thick_unit() {
    let unit = unit_thick();
    let most = unit.limits.max_write_same_blocks;
    for opcode in [0x41, 0x93] {
        let go = |lba| run_expecting(&unit, &rw(opcode, 0, lba, 0), 0, 512);
        for blocks in [1, most] {
            let range = range(BLOCKS - blocks, blocks);
            let source = WriteSameSource::DataOut;
            let action = Action::WriteSame { range, source, unmap: false };
            assert_eq!(go(BLOCKS - blocks).action, action);
        }
        illegal(&go(BLOCKS - most - 1), Code::INVALID_FIELD_IN_CDB);
        illegal(&go(BLOCKS), Code::LBA_OUT_OF_RANGE);
        illegal(&go(BLOCKS + 1), Code::LBA_OUT_OF_RANGE);
    }
}

/// A parameter list of UNMAP with a right header.
fn unmap_list(descriptors: &[(u64, u32)]) -> Vec<u8> {
    let len = descriptors.len() as u16 * 16;
    let mut list = [(len + 6).to_be_bytes(), len.to_be_bytes(), [0; 2], [0; 2]].concat();
    for (lba, blocks) in descriptors {
        list.extend_from_slice(&lba.to_be_bytes());
        list.extend_from_slice(&blocks.to_be_bytes());
        list.extend_from_slice(&[0; 4]);
    }
    list
}

fn unmap(unit: &Unit, list: &[u8]) -> Action {
    let len = list.len() as u16;
    let cdb = cdb(10, &[(0, &[0x42]), (7, &len.to_be_bytes())]);
    let task = run_expecting(unit, &cdb, 0, len.into());
    assert_eq!(task.transfer.data_out, u64::from(len));
    match task.action {
        Action::Parameters(asked) => {
            assert_eq!(asked, Parameters { kind: ParameterKind::Unmap, len: len.into() });
            parameters(unit, asked, list)
        }
        other => other,
    }
}

#[test]
fn unmap_descriptors() {
    let unit = unit();
    let list = unmap_list(&[(0, 8), (100, 0), (BLOCKS - 1, 1)]);
    let ranges = vec![range(0, 8), range(BLOCKS - 1, 1)];
    assert_eq!(unmap(&unit, &list), Action::Unmap(ranges.clone()));
    // A descriptor that is cut off is ignored.
    let mut cut = unmap_list(&[(0, 8), (100, 0), (BLOCKS - 1, 1), (0, 0)]);
    cut[3] -= 1;
    assert_eq!(unmap(&unit, &cut), Action::Unmap(ranges));
    assert_eq!(unmap(&unit, &unmap_list(&[])), Action::Complete(lunet_scsi::Reply::GOOD));
    good(&run(&unit, &cdb(10, &[(0, &[0x42])])));
}

#[test]
fn unmap_limits() {
    let unit = unit();
    let refused = |list: &[u8], code| {
        assert_eq!(sense(&unmap(&unit, list)), (Key::IllegalRequest, code));
    };
    refused(&unmap_list(&[(0, 8), (BLOCKS, 1)]), Code::LBA_OUT_OF_RANGE);
    refused(&unmap_list(&[(u64::MAX, u32::MAX)]), Code::LBA_OUT_OF_RANGE);
    let most = unit.limits.max_unmap_blocks;
    assert!(matches!(unmap(&unit, &unmap_list(&[(0, most)])), Action::Unmap(_)));
    let code = Code::INVALID_FIELD_IN_PARAMETER_LIST;
    refused(&unmap_list(&[(0, most), (0, 1)]), code);
    assert!(
        matches!(unmap(&unit, &unmap_list(&[(0, 1); 256])), Action::Unmap(r) if r.len() == 256)
    );
    refused(&unmap_list(&[(0, 1); 257]), code);
}

#[test]
fn unmap_lists_that_are_too_short() {
    let unit = unit();
    let code = Code::PARAMETER_LIST_LENGTH_ERROR;
    let list = unmap_list(&[(0, 8)]);
    for len in [1, 7, 8, 23] {
        assert_eq!(sense(&unmap(&unit, &list[..len])), (Key::IllegalRequest, code), "{len}");
    }
    // The initiator sends less than the command block says.
    let ask = cdb(10, &[(0, &[0x42]), (8, &[24])]);
    illegal(&run_expecting(&unit, &ask, 0, 16), code);
    let asked = Parameters { kind: ParameterKind::Unmap, len: 24 };
    assert_eq!(sense(&parameters(&unit, asked, &list[..16])), (Key::IllegalRequest, code));
    illegal(&run(&unit, &cdb(10, &[(0, &[0x42, 1]), (8, &[24])])), Code::INVALID_FIELD_IN_CDB);
}

#[test]
fn a_read_only_unit_refuses_all_that_writes() {
    let unit = unit_read_only();
    for opcode in [&WRITES[..], &WRITE_VERIFYS, &[0x41, 0x93, 0x42]].concat() {
        let task = run(&unit, &rw(opcode, 0, 0, 1));
        assert_eq!(sense(&task.action), (Key::DataProtect, Code::WRITE_PROTECTED), "{opcode:02X}h");
    }
    for opcode in [&READS[..], &VERIFYS, &[0x34, 0x35]].concat() {
        assert!(!matches!(run(&unit, &rw(opcode, 0, 0, 1)).action, Action::Complete(_)));
    }
}

/// FCP-4 9.4.2 and libiscsi's suite: with less Data-Out than the command block names, either as many whole
/// blocks are taken as come, or none and INVALID FIELD IN COMMAND INFORMATION UNIT.
#[test]
fn a_part_of_a_block_is_refused_and_whole_blocks_are_taken() {
    let unit = unit();
    // WRITE, WRITE AND VERIFY, VERIFY with BYTCHK, ORWRITE.
    let opcodes =
        [(0x2A, 0), (0xAA, 0), (0x8A, 0), (0x2E, 2), (0xAE, 2), (0x8E, 0), (0x2F, 2), (0x8B, 0)];
    for (opcode, flags) in opcodes {
        let go = |sent| run_expecting(&unit, &rw(opcode, flags, 8, 3), 0, sent);
        for sent in [1, 200, 511, 513, 1000, 1535] {
            let task = go(sent);
            illegal(&task, Code::INVALID_FIELD_IN_INFORMATION_UNIT);
            assert_eq!(task.transfer.data_out, 3 * 512, "for the residual overflow");
        }
        for (sent, blocks) in [(512, 1), (1024, 2), (1536, 3), (1537, 3), (10_000, 3)] {
            let task = go(sent);
            let (Action::Write { range: taken, .. }
            | Action::Verify { range: taken, .. }
            | Action::Exclusive { range: taken, .. }) = task.action
            else {
                panic!("{opcode:02x}: {task:?}")
            };
            assert_eq!(taken, range(8, blocks), "{opcode:02x} with {sent} bytes");
            assert_eq!(task.transfer.data_out, 3 * 512);
        }
        // Nothing is sent, so nothing is thrown away.
        good(&go(0));
    }
    let six = |sent| run_expecting(&unit, &[0x0A, 0, 0, 8, 3, 0], 0, sent);
    illegal(&six(1000), Code::INVALID_FIELD_IN_INFORMATION_UNIT);
    assert!(matches!(six(1024).action, Action::Write { range: taken, .. } if taken == range(8, 2)));
}
