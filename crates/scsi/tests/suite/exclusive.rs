//! COMPARE AND WRITE and ORWRITE; WRITE ATOMIC is not there.

use crate::common::*;
use lunet_block::BlockRange;
use lunet_scsi::{Action, Code, Exclusive, Key, Transfer};

fn compare_and_write(flags: u8, lba: u64, blocks: u8) -> Vec<u8> {
    cdb(16, &[(0, &[0x89, flags]), (2, &lba.to_be_bytes()), (13, &[blocks])])
}

fn orwrite(flags: u8, lba: u64, blocks: u32) -> Vec<u8> {
    cdb(16, &[(0, &[0x8B, flags]), (2, &lba.to_be_bytes()), (10, &blocks.to_be_bytes())])
}

fn exclusive(what: Exclusive, lba: u64, blocks: u64, flags: u8) -> Action {
    let range = BlockRange::new(lba, blocks);
    Action::Exclusive { what, range, fua: flags & 0x08 != 0 }
}

#[test]
fn compare_and_write_takes_twice_the_blocks_that_it_names() {
    for (flags, blocks) in [(0, 1), (0x08, 7), (0x18, 255)] {
        let data_out = 2 * 512 * u32::from(blocks);
        let cdb = compare_and_write(flags, 9, blocks);
        let task = run_expecting(&unit(), &cdb, 0, data_out);
        let what = Exclusive::CompareAndWrite;
        assert_eq!(task.action, exclusive(what, 9, blocks.into(), flags));
        assert_eq!(task.transfer, Transfer { data_in: 0, data_out: data_out.into() });
        for wrong in [0, 512, data_out - 512, data_out - 1, data_out + 512, 4 * data_out] {
            let task = run_expecting(&unit(), &cdb, 0, wrong);
            illegal(&task, Code::INVALID_FIELD_IN_CDB);
        }
    }
    let nothing = run_expecting(&unit(), &compare_and_write(0, 0, 0), 0, 0);
    good(&nothing);
    // 256 blocks do not fit into the field.
    let wraps = run_expecting(&unit(), &compare_and_write(0, 0, 0), 0, 2 * 256 * 512);
    illegal(&wraps, Code::INVALID_FIELD_IN_CDB);
}

#[test]
fn exclusive_commands_are_bounded_and_refused_like_writes() {
    let end = caps().blocks;
    for (lba, blocks) in [(end, 1), (end - 1, 2), (u64::MAX, 255)] {
        illegal(&run(&unit(), &compare_and_write(0, lba, blocks)), Code::LBA_OUT_OF_RANGE);
        illegal(&run(&unit(), &orwrite(0, lba, blocks.into())), Code::LBA_OUT_OF_RANGE);
    }
    illegal(&run(&unit(), &orwrite(0, end + 1, 0)), Code::LBA_OUT_OF_RANGE);
    for protect in 1..8 {
        let flags = protect << 5;
        illegal(&run(&unit(), &compare_and_write(flags, 0, 1)), Code::INVALID_FIELD_IN_CDB);
        illegal(&run(&unit(), &orwrite(flags, 0, 1)), Code::INVALID_FIELD_IN_CDB);
    }
    for cdb in [compare_and_write(0, 0, 1), orwrite(0, 0, 1)] {
        let task = run(&unit_read_only(), &cdb);
        assert_eq!(sense(&task.action), (Key::DataProtect, Code::WRITE_PROTECTED));
    }
    let mut small = unit();
    small.limits.max_compare_and_write_blocks = 3;
    illegal(&run(&small, &compare_and_write(0, 0, 4)), Code::INVALID_FIELD_IN_CDB);
}

#[test]
fn orwrite_takes_what_the_initiator_sends_up_to_1_mib() {
    for (unit, most) in [(unit(), 2048), (unit_4kn(), 256)] {
        let task = run(&unit, &orwrite(0x08, 1, most));
        assert_eq!(task.action, exclusive(Exclusive::OrWrite, 1, most.into(), 0x08));
        assert_eq!(task.transfer, Transfer { data_in: 0, data_out: 1 << 20 });
        illegal(&run(&unit, &orwrite(0, 1, most + 1)), Code::INVALID_FIELD_IN_CDB);
    }
    let cut = run_expecting(&unit(), &orwrite(0, 8, 4), 0, 1024);
    assert_eq!(cut.action, exclusive(Exclusive::OrWrite, 8, 2, 0));
    good(&run(&unit(), &orwrite(0, 0, 0)));
}

#[test]
fn there_is_no_write_atomic() {
    let cmd = cdb(16, &[(0, &[0x9C, 0x08]), (13, &[1])]);
    for unit in units() {
        illegal(&run(&unit, &cmd), Code::INVALID_OPCODE);
        assert!(listed(&unit).iter().all(|(code, ..)| *code != 0x9C));
        let page = data(run(&unit, &[0x12, 1, 0xB0, 0, 64, 0]));
        assert_eq!(page[44..64], [0; 20], "the atomic fields of Block Limits");
    }
}
