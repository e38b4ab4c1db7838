//! What a failover group's record keeps of a unit beside reservations: mode pages, and the marks of SANITIZE and FORMAT UNIT.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use lunet_front_iscsi::{GroupHandle, GroupRequest, Keep, Kept};
use lunet_gateway::{Answer, Change, Contents, Record, Reserved, Sanitize, Volume};
use lunet_iscsi::initiator::{Data, Tag};
use lunet_iscsi::pdu::{TmfFunction, TmfResponse};
use lunet_scsi::{Modes, Sanitation};

use crate::group_reservations::{change, requests_of};
use crate::groups::{done, group_of, open_group, read_from, ready, sense, set_gate, two_targets};
use crate::support::client::Client;
use crate::support::gateway::{Machine, ports};
use crate::support::status::{BUSY, GOOD};
use crate::support::{TARGET, memory, on_each_driver, stalling, start, until};

/// MODE PARAMETERS CHANGED.
const CHANGED: [u8; 3] = [6, 0x2A, 0x01];
/// WRITE PROTECTED.
const PROTECTED: [u8; 3] = [7, 0x27, 0x00];
const FAILED: [u8; 3] = [3, 0x31, 0x03];
const SWP: u8 = 0x08;

/// MODE SELECT (6) with the Control mode page.
fn protect(client: &mut Client, swp: u8) -> Tag {
    let list = [&[0, 0, 0, 0, 0x0A, 0x0A, 0, 0x10, swp, 0x40][..], &[0; 6]].concat();
    client.start(0, &[0x15, 0x10, 0, 0, 16, 0], Data::Write(list))
}

/// SWP of the Control mode page, by MODE SENSE (6).
fn is_protected(client: &mut Client) -> bool {
    let (status, data) = read_from(client, &[0x1A, 0x08, 0x0A, 0, 255, 0]);
    assert_eq!(status, GOOD);
    data[4 + 4] & SWP != 0
}

fn kept(requests: &Receiver<GroupRequest>) -> (u64, Keep) {
    let (id, body) = change(requests);
    (id, Keep::decode(&body).expect("it is to be kept"))
}

fn said(group: &GroupHandle, id: u64, kept: bool) {
    group.answer(id, Answer::Body(Keep::answer(kept)));
}

fn record_of(keep: &Keep) -> Record {
    let volume = Volume {
        image: "pool/image".into(),
        id: "1a".into(),
        bytes: 1 << 20,
        naa: keep.naa,
        serial: String::new(),
        reserved: Reserved::default(),
        modes: Vec::new(),
        sanitize: Sanitize::None,
    };
    let mut contents = Contents { volumes: vec![volume] };
    assert!(contents.change(keep.naa, keep.change()));
    Record::new(TARGET, [7; 32], ports(), contents)
}

#[test]
fn mode_pages_are_in_the_record_before_they_take_effect() {
    on_each_driver(|driver| {
        let (server, address, group, _) = open_group(two_targets(memory(16), driver));
        let requests = requests_of(&group);
        let [mut one, mut other] = [1, 2].map(|n| Client::login(address, n));
        let refused = protect(&mut one, SWP);
        let (id, _) = kept(&requests);
        said(&group, id, false);
        assert_eq!(done(&mut one, refused).status, BUSY);
        assert_eq!(other.write(0, 0, vec![1; 512]), GOOD);

        let protects = protect(&mut one, SWP);
        let (id, keep) = kept(&requests);
        let Kept::Modes(modes, _) = &keep.what else { panic!("{keep:?}") };
        assert_eq!(*modes, Modes { write_protect: true, ..Modes::DEFAULT });
        assert!(!is_protected(&mut one), "it is not in the record yet");
        assert!(!one.has_answer(protects));
        group.kept(&keep);
        said(&group, id, true);
        assert_eq!(done(&mut one, protects).status, GOOD);
        // Others are told, the one that asked is not.
        assert_eq!(sense(&ready(&mut other)), CHANGED);
        let write = |client: &mut Client| {
            let cdb = [0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0];
            sense(&client.finish(0, &cdb, Data::Write(vec![2; 512])))
        };
        assert_eq!(write(&mut other), PROTECTED);
        assert_eq!(write(&mut one), PROTECTED);

        // A reset makes them the default ones, in the record as well, while another change is under way or not.
        assert_eq!(one.manage(TmfFunction::LogicalUnitReset, 0, None), TmfResponse::Complete);
        let (id, _) = kept(&requests);
        said(&group, id, false);
        let (id, keep) = kept(&requests);
        assert_eq!(keep.what, Kept::Modes(Modes::DEFAULT, Vec::new()));
        group.kept(&keep);
        said(&group, id, true);
        // It was reset.
        assert_eq!(sense(&ready(&mut one))[0], 6);
        assert!(!is_protected(&mut one));
        drop((one, other));
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn any_gateway_reports_the_mode_pages_of_the_record() {
    on_each_driver(|driver| {
        let (owner, address, group, _) = open_group(two_targets(memory(16), driver));
        let requests = requests_of(&group);
        let mut client = Client::login(address, 1);
        let protects = protect(&mut client, SWP);
        let (id, keep) = kept(&requests);
        group.kept(&keep);
        said(&group, id, true);
        assert_eq!(done(&mut client, protects).status, GOOD);

        let (server, address) = start(two_targets(memory(16), driver));
        let mut machine = Machine::standby();
        let standby = group_of(&server, machine.gate());
        let mut client = Client::login(address, 2);
        assert!(!is_protected(&mut client));
        standby.modes(&record_of(&keep));
        // The gateway does not own the group: MODE SENSE is answered, and so is what comes before all else.
        assert_eq!(sense(&ready(&mut client)), CHANGED);
        assert!(is_protected(&mut client));
        standby.modes(&record_of(&keep));
        assert_eq!(sense(&ready(&mut client)), [2, 0x04, 0x0B], "nothing has changed");

        let empty = record_of(&Keep { what: Kept::Modes(Modes::DEFAULT, Vec::new()), ..keep });
        standby.load(&empty).expect("it makes sense");
        set_gate(&standby, machine.takes_over());
        until("its ping is answered", || ready(&mut client).status != BUSY);
        assert_eq!(client.write(0, 0, vec![1; 512]), GOOD);
        drop(client);
        assert!(owner.stop(Duration::ZERO).flushed);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn no_block_is_touched_before_the_record_says_that_the_unit_is_sanitized() {
    on_each_driver(|driver| {
        let (volume, storage) = stalling(16);
        let (server, address, group, mut machine) = open_group(two_targets(volume, driver));
        let requests = requests_of(&group);
        let mut client = Client::login(address, 1);
        storage.close();
        // BLOCK ERASE with AUSE.
        let erases = client.start(0, &[0x48, 0x22, 0, 0, 0, 0, 0, 0, 0, 0], Data::None);
        // Another change of the record is under way, twice.
        for _ in 0..2 {
            let (id, _) = kept(&requests);
            assert_eq!(storage.held(), 0);
            said(&group, id, false);
        }
        let (id, begun) = kept(&requests);
        assert_eq!(begun.what, Kept::Sanitation(Sanitation::Failed { restricted: false }));
        assert_eq!(begun.change(), Change::Sanitize(Sanitize::Sanitizing { restricted: false }));
        assert_eq!(storage.held(), 0);
        said(&group, id, true);
        until("it is at the storage", || storage.held() > 0);
        storage.open();
        let (id, ended) = kept(&requests);
        assert_eq!(ended.what, Kept::Sanitation(Sanitation::None));
        assert!(!client.has_answer(erases));
        said(&group, id, false);
        let (id, _) = kept(&requests);
        said(&group, id, true);
        assert_eq!(done(&mut client, erases).status, GOOD);
        assert_eq!(ready(&mut client).status, GOOD);

        // The next owner finds the mark: EXIT FAILURE MODE is its to allow, and takes the mark away.
        set_gate(&group, machine.begins_move());
        group.load(&record_of(&begun)).expect("it makes sense");
        set_gate(&group, machine.stays());
        until("its ping is answered", || ready(&mut client).status != BUSY);
        assert_eq!(sense(&ready(&mut client)), FAILED);
        let exits = client.start(0, &[0x48, 0x1F, 0, 0, 0, 0, 0, 0, 0, 0], Data::None);
        let (id, ended) = kept(&requests);
        assert_eq!(ended.change(), Change::Sanitize(Sanitize::None));
        said(&group, id, true);
        assert_eq!(done(&mut client, exits).status, GOOD);
        assert_eq!(ready(&mut client).status, GOOD);
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}
