//! Reservations, command by command.

use crate::cluster::*;
use crate::common::*;
use lunet_reservations::MAX_REGISTRATIONS;
use lunet_scsi::reserve::InitiatorPort;
use lunet_scsi::{Attention, Code, Key, Nexus, Reply};

const RESERVE: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const RELEASE: [u8; 6] = [0x17, 0, 0, 0, 0, 0];
const READY: [u8; 6] = [0; 6];

const PREEMPTED: u8 = 3;
const RELEASED: u8 = 4;
const UNREGISTERED: u8 = 5;

#[track_caller]
fn refused(reply: &Reply, code: Code) {
    let sense = reply.sense.map(|sense| (sense.key, sense.code));
    assert_eq!(sense, Some((Key::IllegalRequest, code)));
}

#[test]
fn a_reserved_unit_answers_its_holder_only() {
    let mut c = Cluster::new();
    assert_eq!(c.status(0, &RESERVE), GOOD);
    assert_eq!(c.status(0, &RESERVE), GOOD);
    assert_eq!((c.read(0), c.write(0)), (GOOD, GOOD));
    let ten = cdb(10, &[(0, &[0x56])]);
    let mode_sense = [0x1A, 0, 0x3F, 0, 255, 0];
    for command in [&READY[..], &RESERVE, &ten, &mode_sense] {
        assert_eq!(c.status(1, command), CONFLICT, "{command:02X?}");
    }
    assert_eq!((c.read(1), c.write(1)), (CONFLICT, CONFLICT));
    // What always works, and RELEASE, which does nothing.
    for command in [&[0x12, 0, 0, 0, 255, 0][..], &[3, 0, 0, 0, 252, 0], &RELEASE] {
        assert_eq!(c.status(1, command), GOOD, "{command:02X?}");
    }
    assert_eq!(c.status(1, &cdb(10, &[(0, &[0x25])])), GOOD);
    assert_eq!(c.status(1, &READY), CONFLICT);
    assert_eq!(c.status(0, &cdb(10, &[(0, &[0x57])])), GOOD);
    assert_eq!(c.status(1, &READY), GOOD);
}

#[test]
fn the_other_model_is_closed_while_one_is_in_use() {
    let mut c = Cluster::new();
    assert_eq!(c.status(0, &RESERVE), GOOD);
    for who in [0, 1] {
        assert_eq!(c.register(who, 0, 1), CONFLICT);
        assert_eq!(c.status(who, &cdb(10, &[(0, &[0x5E]), (8, &[8])])), CONFLICT);
    }
    assert_eq!(c.status(0, &RELEASE), GOOD);
    assert_eq!(c.register(0, 0, 1), GOOD);
    for who in [0, 1] {
        assert_eq!(c.status(who, &RESERVE), CONFLICT);
        assert_eq!(c.status(who, &RELEASE), CONFLICT);
    }
    // With a persistent reservation, those whom it lets in may do so without effect.
    assert_eq!(c.plain(0, 1, 1, 1, 0), GOOD);
    assert_eq!((c.status(0, &RESERVE), c.status(0, &RELEASE)), (GOOD, GOOD));
    assert_eq!((c.status(1, &RESERVE), c.status(1, &RELEASE)), (CONFLICT, CONFLICT));
    assert_eq!(c.kind(0), 1);
}

#[test]
fn resets_and_lost_sessions_end_reserve_but_no_persistent_reservation() {
    let mut c = Cluster::new();
    assert_eq!(c.status(0, &RESERVE), GOOD);
    c.state.reset();
    assert_eq!(c.status(1, &RESERVE), GOOD);
    c.log_in_again(0);
    assert_eq!(c.status(0, &READY), CONFLICT);
    c.log_in_again(1);
    assert_eq!(c.status(0, &READY), GOOD);

    assert_eq!((c.register(0, 0, 7), c.plain(0, 1, 3, 7, 0)), (GOOD, GOOD));
    c.log_in_again(0);
    c.state.reset();
    assert_eq!((c.read(0), c.read(1), c.kind(1)), (GOOD, CONFLICT, 3));
}

#[test]
fn third_parties_and_extents_are_refused() {
    let mut c = Cluster::new();
    for bits in [0x10, 0x01] {
        for code in [0x16, 0x17] {
            refused(&c.send(0, &[code, bits, 0, 0, 0, 0], &[]), Code::INVALID_FIELD_IN_CDB);
            let ten = cdb(10, &[(0, &[code + 0x40, bits])]);
            refused(&c.send(0, &ten, &[]), Code::INVALID_FIELD_IN_CDB);
        }
    }
}

#[test]
fn a_reset_is_reported_before_a_conflict_and_other_attentions_after_it() {
    let mut c = Cluster::new();
    assert_eq!(c.status(1, &RESERVE), GOOD);
    c.nodes[0].nexus.establish(Attention::CapacityChanged);
    assert_eq!(c.read(0), CONFLICT);
    c.nodes[0].nexus.establish(Attention::BusDeviceReset);
    c.nodes[0].nexus.establish(Attention::CapacityChanged);
    assert_eq!((c.read(0), c.read(0)), (CHECK, CONFLICT));
    assert_eq!(c.status(1, &RELEASE), GOOD);
    let reply = c.send(0, &READY, &[]);
    assert_eq!(reply.sense.map(|sense| sense.code), Some(Code::CAPACITY_CHANGED));
    assert_eq!(c.read(0), GOOD);
}

#[test]
fn each_command_is_guarded_as_the_standards_say() {
    // What a nexus without registration may do while another holds the unit.
    let cases: [(&[u8], u8, u8); 14] = [
        (&[0x00, 0, 0, 0, 0, 0], GOOD, GOOD),
        (&[0x1A, 0, 0x3F, 0, 255, 0], GOOD, CONFLICT),
        (&[0x1B, 0, 0, 0, 1, 0], GOOD, GOOD),
        (&[0x1B, 0, 0, 0, 0, 0], CONFLICT, CONFLICT),
        (&[0x1B, 0, 0, 0, 0x11, 0], CONFLICT, CONFLICT),
        (&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], GOOD, GOOD),
        (&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], GOOD, CONFLICT),
        (&[0x2A, 0, 0, 0, 0, 0, 0, 0, 0, 0], CONFLICT, CONFLICT),
        (&[0x2F, 0, 0, 0, 0, 0, 0, 0, 1, 0], GOOD, CONFLICT),
        (&[0x34, 0, 0, 0, 0, 0, 0, 0, 1, 0], GOOD, CONFLICT),
        (&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], CONFLICT, CONFLICT),
        (&[0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0], CONFLICT, CONFLICT),
        (&[0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0], CONFLICT, CONFLICT),
        (&[0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], GOOD, GOOD),
    ];
    for (kind, column) in [(1, 0), (5, 0), (7, 0), (3, 1), (6, 1), (8, 1)] {
        let mut c = Cluster::new();
        assert_eq!((c.register(0, 0, 1), c.plain(0, 1, kind, 1, 0)), (GOOD, GOOD));
        for (command, write_exclusive, exclusive) in cases {
            let expected = [write_exclusive, exclusive][column];
            let reply = c.send(1, command, &[]);
            assert_eq!(reply.status == CONFLICT, expected == CONFLICT, "{command:02X?} {kind}");
            assert_ne!(c.status(0, command), CONFLICT, "{command:02X?} {kind}");
        }
        assert_eq!(c.keys(1), [1], "reports are for everybody");
    }
}

#[test]
fn registrations_come_change_and_go() {
    let mut c = Cluster::new();
    assert_eq!(c.register(0, 5, 6), CONFLICT, "a key without registration");
    assert_eq!(c.register(0, 0, 0), GOOD, "nothing to do");
    assert_eq!(c.report(0, 0), [0; 8]);
    assert_eq!(c.register(0, 0, 5), GOOD);
    assert_eq!(c.register(0, 0, 6), CONFLICT, "a wrong key");
    assert_eq!(c.register(0, 5, 6), GOOD);
    assert_eq!(c.plain(1, 6, 0, 99, 0x0102_0304_0506_0708), GOOD, "the key is ignored");
    let keys = [0, 0, 0, 3, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 6, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(c.report(0, 0), keys);
    let cut = c.send(0, &cdb(10, &[(0, &[0x5E]), (8, &[8])]), &[]).data;
    assert_eq!(cut, keys[..8]);
    assert_eq!((c.register(0, 6, 0), c.plain(1, 6, 0, 0, 0)), (GOOD, GOOD));
    assert_eq!(c.report(0, 0), [0, 0, 0, 5, 0, 0, 0, 0]);
}

#[test]
fn reports_byte_by_byte() {
    let mut c = Cluster::new();
    assert_eq!(c.report(0, 2), [0, 8, 0x1D, 0xB0, 0xEA, 0x01, 0, 0]);
    assert_eq!(c.report(0, 1), [0; 8]);
    assert_eq!((c.register(0, 0, 0xA1), c.register(2, 0, 0xA2)), (GOOD, GOOD));
    assert_eq!(c.plain(2, 1, 6, 0xA2, 0), GOOD);
    #[rustfmt::skip]
    let reservation = [0, 0, 0, 2, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0xA2, 0, 0, 0, 0, 0, 6, 0, 0];
    assert_eq!(c.report(1, 1), reservation);
    let id = b"\x45\x00\x00\x1Ciqn.host:a,i,0x400000000061\0";
    let mut full = vec![0, 0, 0, 2, 0, 0, 0, 112];
    full.extend([0, 0, 0, 0, 0, 0, 0, 0xA1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 1, 0, 0, 0, 32]);
    full.extend(id);
    full.extend([0, 0, 0, 0, 0, 0, 0, 0xA2, 0, 0, 0, 0, 1, 6, 0, 0, 0, 0, 0x10, 2, 0, 0, 0, 32]);
    full.extend(id);
    assert_eq!(c.report(1, 3), full);
    // Where all hold it, there is no one key, and each is a holder.
    assert_eq!((c.plain(2, 2, 6, 0xA2, 0), c.plain(2, 1, 8, 0xA2, 0)), (GOOD, GOOD));
    let shared = c.report(1, 1);
    assert_eq!((&shared[8..16], shared[21]), (&[0; 8][..], 8));
    let full = c.report(1, 3);
    assert_eq!((full[8 + 12], full[8 + 56 + 12]), (1, 1));
}

#[test]
fn command_blocks_and_lists_are_checked() {
    let mut c = Cluster::new();
    let list_length = Code::PARAMETER_LIST_LENGTH_ERROR;
    refused(&c.out(0, 0, 0, &list(0, 1, 0)[..23]), list_length);
    refused(&c.out(0, 0, 0, &[0; 25]), list_length);
    refused(&c.out(0, 0, 0, &list(0, 1, 0x08)), list_length);
    // SPEC_I_PT is for REGISTER.
    refused(&c.out(0, 6, 0, &list(0, 1, 0x08)), Code::INVALID_FIELD_IN_PARAMETER_LIST);
    assert_eq!(c.register(0, 0, 1), GOOD);
    for action in [1, 2] {
        for kind in [0, 2, 4, 9, 15, 0x11] {
            let reply = c.out(0, action, kind, &list(1, 0, 0));
            refused(&reply, Code::INVALID_FIELD_IN_CDB);
        }
    }
    for action in 8..32 {
        refused(&c.out(0, action, 1, &list(1, 0, 0)), Code::INVALID_FIELD_IN_CDB);
    }
    // Less data than announced.
    let cdb = cdb(10, &[(0, &[0x5F]), (8, &[24])]);
    refused(&c.send(0, &cdb, &[0; 23]), list_length);
    assert_eq!(c.keys(0), [1]);
}

#[test]
fn a_release_must_name_what_it_releases() {
    let mut c = Cluster::new();
    assert_eq!((c.register(0, 0, 1), c.register(1, 0, 2)), (GOOD, GOOD));
    assert_eq!(c.plain(0, 2, 1, 1, 0), GOOD, "nothing to release");
    assert_eq!(c.plain(0, 1, 5, 1, 0), GOOD);
    assert_eq!(c.plain(1, 2, 5, 2, 0), GOOD, "not the holder: no effect");
    refused(&c.out(0, 2, 6, &list(1, 0, 0)), Code::INVALID_RELEASE);
    assert_eq!((c.kind(0), c.plain(0, 2, 5, 1, 0), c.kind(0)), (5, GOOD, 0));
    assert_eq!((c.told(0), c.told(1), c.told(3)), (vec![], vec![RELEASED], vec![]));
}

#[test]
fn unregistering_the_holder_releases() {
    for (kind, told) in [(1, vec![]), (3, vec![]), (5, vec![RELEASED]), (6, vec![RELEASED])] {
        let mut c = Cluster::new();
        assert_eq!((c.register(0, 0, 1), c.register(1, 0, 2)), (GOOD, GOOD));
        assert_eq!(c.plain(0, 1, kind, 1, 0), GOOD);
        assert_eq!((c.register(0, 1, 0), c.kind(0)), (GOOD, 0));
        assert_eq!(c.told(1), told);
    }
    for kind in [7, 8] {
        let mut c = Cluster::new();
        assert_eq!((c.register(0, 0, 1), c.register(1, 0, 2)), (GOOD, GOOD));
        assert_eq!(c.plain(0, 1, kind, 1, 0), GOOD);
        assert_eq!((c.register(0, 1, 0), c.kind(0), c.told(1)), (GOOD, kind, vec![]));
        assert_eq!((c.register(1, 2, 0), c.kind(0)), (GOOD, 0), "the last one has left");
    }
}

#[test]
fn preempt_and_abort_names_whose_commands_end() {
    let mut c = Cluster::new();
    for (who, key) in [(0, 1), (1, 2), (2, 2), (3, 3)] {
        assert_eq!(c.register(who, 0, key), GOOD);
    }
    assert_eq!(c.plain(1, 1, 3, 2, 0), GOOD);
    assert_eq!(c.plain(0, 5, 5, 1, 2), GOOD);
    assert_eq!(c.aborts, [1, 2].map(|who: usize| c.nodes[who].id.registrant().clone()));
    assert_eq!((c.keys(0), c.kind(0)), (vec![1, 3], 5));
    assert_eq!((c.told(0), c.told(1)), (vec![], vec![UNREGISTERED]));
    assert_eq!((c.told(2), c.told(3)), (vec![UNREGISTERED], vec![RELEASED]));
    // Its own key: its own commands too, and it keeps its registration as it takes the unit.
    assert_eq!(c.plain(0, 5, 5, 1, 1), GOOD);
    assert_eq!(c.aborts, [c.nodes[0].id.registrant().clone()]);
    assert_eq!(c.keys(0), [1, 3]);
    assert_eq!(c.plain(0, 4, 5, 1, 3), GOOD);
    assert!(c.aborts.is_empty(), "PREEMPT aborts nothing");
}

#[test]
fn zero_preempts_all_where_all_hold_the_unit_and_nothing_elsewhere() {
    let mut c = Cluster::new();
    for who in 0..4 {
        assert_eq!(c.register(who, 0, 1 + who as u64), GOOD);
    }
    let refusal = Code::INVALID_FIELD_IN_PARAMETER_LIST;
    refused(&c.out(0, 4, 1, &list(1, 0, 0)), refusal);
    assert_eq!(c.plain(0, 1, 5, 1, 0), GOOD);
    refused(&c.out(1, 4, 1, &list(2, 0, 0)), refusal);
    assert_eq!((c.plain(0, 2, 5, 1, 0), c.plain(0, 1, 7, 1, 0)), (GOOD, GOOD));
    assert_eq!(c.told(1), [RELEASED]);
    refused(&c.out(1, 4, 0x20, &list(2, 0, 0)), Code::INVALID_FIELD_IN_CDB);
    assert_eq!(c.plain(1, 4, 3, 2, 0), GOOD);
    assert_eq!((c.keys(1), c.kind(1)), (vec![2], 3));
    assert_eq!(c.told(0), [UNREGISTERED]);
    assert_eq!(c.plain(1, 4, 3, 2, 77), CONFLICT, "nobody has this key");
}

#[test]
fn clear_tells_everybody_registered() {
    let mut c = Cluster::new();
    assert_eq!((c.register(0, 0, 1), c.register(1, 0, 2)), (GOOD, GOOD));
    assert_eq!(c.plain(0, 1, 3, 1, 0), GOOD);
    assert_eq!(c.plain(3, 3, 0, 0, 0), CONFLICT);
    assert_eq!(c.plain(1, 3, 0, 2, 0), GOOD);
    assert_eq!((c.keys(1), c.kind(1)), (vec![], 0));
    assert_eq!((c.told(0), c.told(1), c.told(3)), (vec![PREEMPTED], vec![], vec![]));
}

#[test]
fn all_target_ports_and_listed_initiators_are_registered() {
    let mut c = Cluster::new();
    assert_eq!(c.out(0, 0, 0, &list(0, 1, 0x04)).status, GOOD);
    assert_eq!(c.keys(0), [1, 1], "both ports of this target, none of the other");
    assert_eq!(c.register(2, 1, 9), GOOD, "host a is known at port 2");
    assert_eq!(c.out(0, 0, 0, &list(1, 3, 0x04)).status, GOOD);
    assert_eq!(c.keys(0), [3, 9], "port 2 has another key: it stays");

    let mut with_ids = list(0, 5, 0x0C);
    let mut ids = vec![];
    initiator('d').encode(&mut ids);
    initiator('a').encode(&mut ids);
    with_ids.extend((ids.len() as u32).to_be_bytes());
    with_ids.extend(&ids);
    let mut damaged = with_ids.clone();
    damaged[28] = 0x40;
    refused(&c.out(1, 0, 0, &damaged), Code::INVALID_FIELD_IN_PARAMETER_LIST);
    assert_eq!(c.out(1, 0, 0, &with_ids).status, GOOD);
    assert_eq!(c.keys(0), [3, 9, 5, 5, 5, 5], "b and d at both ports; a is registered already");
    with_ids[0..8].copy_from_slice(&5_u64.to_be_bytes());
    refused(&c.out(1, 0, 0, &with_ids), Code::INVALID_FIELD_IN_CDB);
}

#[test]
fn a_reservation_moves_to_another_nexus() {
    let mut c = Cluster::new();
    let to = initiator('d');
    let go = |c: &mut Cluster, who, list: Vec<u8>| c.out(who, 7, 0, &list);
    assert_eq!(go(&mut c, 0, move_list(1, 9, 0, 1, &to)).status, CONFLICT);
    assert_eq!((c.register(0, 0, 1), c.register(1, 0, 2)), (GOOD, GOOD));
    refused(&go(&mut c, 0, move_list(1, 9, 0, 1, &to)), Code::INVALID_FIELD_IN_CDB);
    assert_eq!(c.plain(0, 1, 3, 1, 0), GOOD);
    assert_eq!(go(&mut c, 1, move_list(2, 9, 0, 1, &to)).status, CONFLICT);
    let wrong = Code::INVALID_FIELD_IN_PARAMETER_LIST;
    refused(&go(&mut c, 0, move_list(1, 0, 0, 1, &to)), wrong);
    refused(&go(&mut c, 0, move_list(1, 9, 0, 3, &to)), wrong);
    refused(&go(&mut c, 0, move_list(1, 9, 0, 1, &initiator('a'))), wrong);
    refused(
        &go(&mut c, 0, move_list(1, 9, 0, 1, &to)[..27].to_vec()),
        Code::PARAMETER_LIST_LENGTH_ERROR,
    );
    assert_eq!(go(&mut c, 0, move_list(1, 9, 0, 1, &to)).status, GOOD);
    assert_eq!((c.keys(0), c.kind(0)), (vec![1, 2, 9], 3));
    assert_eq!((c.write(3), c.write(0)), (GOOD, CONFLICT));
    assert_eq!(go(&mut c, 3, move_list(9, 8, 2, 1, &initiator('b'))).status, GOOD);
    assert_eq!((c.keys(0), c.write(1), c.write(3)), (vec![1, 8], GOOD, CONFLICT));
    assert_eq!((c.plain(1, 2, 3, 8, 0), c.plain(1, 1, 7, 8, 0)), (GOOD, GOOD));
    assert_eq!(go(&mut c, 1, move_list(8, 9, 0, 1, &to)).status, CONFLICT);
}

#[test]
fn registrations_are_bounded() {
    let mut c = Cluster::new();
    let mut with_ids = list(0, 5, 0x08);
    let mut ids = vec![];
    for n in 0..MAX_REGISTRATIONS - 1 {
        InitiatorPort { name: format!("iqn.host:{n}"), isid: [0; 6] }.encode(&mut ids);
    }
    with_ids.extend((ids.len() as u32).to_be_bytes());
    with_ids.extend(&ids);
    assert_eq!(c.out(0, 0, 0, &with_ids).status, GOOD);
    let full = Code::INSUFFICIENT_REGISTRATION_RESOURCES;
    refused(&c.out(1, 0, 0, &list(0, 1, 0)), full);
    with_ids[20] = 0x0C;
    refused(&c.out(1, 0, 0, &with_ids), full);
    assert_eq!(c.keys(0).len(), MAX_REGISTRATIONS);
    assert_eq!(c.plain(0, 1, 1, 5, 0), GOOD);
    refused(&c.out(0, 7, 0, &move_list(5, 1, 0, 1, &initiator('d'))), full);
    assert_eq!(c.out(0, 7, 0, &move_list(5, 1, 2, 1, &initiator('d'))).status, GOOD);
}

#[test]
fn a_nexus_looks_only_when_something_has_changed() {
    let mut c = Cluster::new();
    c.state.refresh(c.nodes[0].seat, &mut c.nodes[0].nexus);
    let seen = c.nodes[0].nexus.seen();
    assert_ne!(seen, Nexus::new().seen(), "a new nexus looks");
    c.report(1, 0);
    assert_eq!(c.register(1, 5, 5), CONFLICT);
    assert_eq!(c.state.changes(), seen, "reports and refusals change nothing");
    assert_eq!(c.register(1, 0, 5), GOOD);
    assert!(c.state.changes() > seen);
}
