//! Parameter lists of third-party copy commands.

use std::ops::Range;

use lunet_iscsi::initiator::{Completion, Data, Outcome, Tag};

use super::client::Client;

#[path = "../../../../scsi/tests/suite/lists.rs"]
mod lists;

pub use lists::{cscd as cscd_named, lid1, lid4, segment};

/// Takes the unit attention of a new session on these units.
pub fn wake(client: &mut Client, luns: Range<u16>) {
    for lun in luns {
        assert_eq!(client.finish(lun, &[0; 6], Data::None).status, 2, "power on");
    }
}

/// Data in the first 8 MiB of LUN 0: what was never written would be copied as a hole.
pub fn written(client: &mut Client) {
    assert_eq!(client.write(0, 0, vec![7; 8 << 20]), 0);
}

/// An identification descriptor with the name that page 83h gives the unit first.
pub fn cscd_of(client: &mut Client, lun: u16) -> Vec<u8> {
    let tag = client.start(lun, &[0x12, 1, 0x83, 0, 255, 0], Data::Read(vec![0; 255]));
    let Data::Read(page) = client.outcome(tag).data else { panic!("no page") };
    let len = usize::from(page[7]);
    let mut cscd = vec![0; 32];
    cscd[0] = 0xE4;
    cscd[4..8 + len].copy_from_slice(&page[4..8 + len]);
    cscd
}

/// Sends a command of 83h with this list; its length goes into the command block.
pub fn send(client: &mut Client, lun: u16, action: u8, list: u32, data: Vec<u8>) -> Completion {
    let tag = begin(client, lun, action, list, data);
    match client.outcome(tag).outcome {
        Outcome::Completed(completion) => completion,
        other => panic!("the copy was not answered: {other:?}"),
    }
}

/// Sends such a command without waiting for it.
pub fn begin(client: &mut Client, lun: u16, action: u8, list: u32, data: Vec<u8>) -> Tag {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x83, action);
    cdb[6..10].copy_from_slice(&list.to_be_bytes());
    cdb[10..14].copy_from_slice(&(data.len() as u32).to_be_bytes());
    client.start(lun, &cdb, Data::Write(data))
}

/// THIRD-PARTY COPY IN: what came, or the sense data.
pub fn receive(
    client: &mut Client,
    lun: u16,
    action: u8,
    list: u32,
    room: usize,
) -> Result<Vec<u8>, Vec<u8>> {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x84, action);
    // One byte or four.
    match action {
        0x00 | 0x04 => cdb[2] = list as u8,
        _ => cdb[2..6].copy_from_slice(&list.to_be_bytes()),
    }
    cdb[10..14].copy_from_slice(&(room as u32).to_be_bytes());
    let tag = client.start(lun, &cdb, Data::Read(vec![0; room]));
    let finished = client.outcome(tag);
    match (finished.outcome, finished.data) {
        (Outcome::Completed(Completion { status: 0, .. }), Data::Read(mut data)) => {
            let len = 4 + u32::from_be_bytes([data[0], data[1], data[2], data[3]]) as usize;
            data.truncate(len);
            Ok(data)
        }
        (Outcome::Completed(completion), _) => Err(completion.sense.to_vec()),
        other => panic!("no answer: {other:?}"),
    }
}
