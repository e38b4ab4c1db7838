//! Any stream at the initiator's end of a connection, from the first byte on or after a login.
use std::time::Duration;

use crate::{Input, Piece, cut, login_response, piece};
use lunet_iscsi::initiator::{Command, Connection, Cx, Data, Event, Options, Outcome};
use lunet_iscsi::pdu::{BHS_LEN, BasicHeader, Opcode, TaskAttribute, TmfFunction};

/// Opcodes of a target, the frequent ones twice, and one that it never sends.
const OPCODES: &[u8] =
    &[0x21, 0x25, 0x25, 0x31, 0x31, 0x20, 0x22, 0x24, 0x26, 0x32, 0x3f, 0x23, 0x01];

struct End {
    initiator: Connection,
    now: Duration,
    sent: Vec<u8>,
    events: Vec<Event<Vec<u8>, Vec<u8>>>,
    /// What the next status number must be.
    stat_sn: u32,
    submitted: u64,
    finished: u64,
}

impl End {
    fn receive(&mut self, bytes: &[u8], lend: bool) {
        let Self { initiator, now, sent, events, .. } = self;
        let mut cx = Cx { now: *now, tx: sent, events };
        let mut rest = bytes;
        if lend {
            if let Some(lent) = initiator.take_rx_target() {
                assert!(!lent.range.is_empty() && lent.range.end <= lent.buf.len());
                let n = lent.range.len().min(rest.len());
                rest = &rest[n..];
                initiator.rx_payload(lent, n, &mut cx);
            }
        }
        initiator.rx_bytes(rest, &mut cx);
        self.take_events();
    }

    fn take_events(&mut self) {
        for event in self.events.drain(..) {
            let Event::Finished(finished) = event else { continue };
            self.finished += 1;
            if let (Outcome::Completed(end), Data::Read(buf)) = (&finished.outcome, &finished.data)
            {
                assert!(end.received as usize <= buf.len());
            }
        }
    }

    /// Keeps the initiator busy; gives the tags under way by their order.
    fn submit(&mut self, choice: u8) {
        let len = usize::from(choice & 0xf0) * 64;
        let data = match choice & 3 {
            0 => Data::None,
            1 => Data::Read(vec![0; len]),
            2 => Data::Discard(len as u32),
            _ => Data::Write(vec![0; len]),
        };
        let command = Command {
            token: self.submitted,
            lun: 0,
            cdb: &[0; 16],
            attribute: TaskAttribute::Simple,
            immediate: choice & 4 != 0,
            data,
        };
        if let Ok(tag) = self.initiator.submit(command, &mut self.sent) {
            self.submitted += 1;
            if choice & 8 != 0 {
                let Self { initiator, sent, .. } = self;
                // The task is there, so this fails only when there are too many of them.
                let _ = initiator.manage(TmfFunction::AbortTask, 0, Some(tag), sent);
            }
        }
    }

    /// The tags of the requests that were sent since the last call.
    fn new_tags(&mut self) -> Vec<[u8; 4]> {
        let bytes = std::mem::take(&mut self.sent);
        let mut rest = bytes.as_slice();
        let mut tags = Vec::new();
        while let Some((bhs, tail)) = rest.split_first_chunk::<BHS_LEN>() {
            let header = BasicHeader::from_bhs(bhs);
            assert!(header.opcode().is_some_and(|opcode| opcode.code() < 0x20));
            if header.opcode() != Some(Opcode::DataOut) && bhs[16..20] != [0xff; 4] {
                tags.push([bhs[16], bhs[17], bhs[18], bhs[19]]);
            }
            rest = &tail[header.ahs_len() + header.data_len().next_multiple_of(4)..];
        }
        assert!(rest.is_empty(), "half a PDU was sent");
        tags
    }
}

/// True for PDUs that use up a status number.
fn numbered(bhs: &[u8; 48]) -> bool {
    match bhs[0] & 0x3f {
        0x25 => bhs[1] & 1 != 0,
        0x20 => bhs[16..20] != [0xff; 4],
        0x31 => false,
        _ => true,
    }
}

/// One input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (kind, seed) = (input.byte(), input.byte());
    let options = Options {
        skip_security: kind & 2 == 0,
        ..Options::new("iqn.2026-11.local.lunet:i", Some("iqn.2026-11.local.lunet:t"))
    };
    let now = Duration::from_secs(1);
    let mut end = End {
        initiator: Connection::new(options.clone()),
        now,
        sent: Vec::new(),
        events: Vec::new(),
        stat_sn: 1,
        submitted: 0,
        finished: 0,
    };
    end.initiator.start(now, &mut end.sent);
    if kind & 3 == 1 {
        let mut answer = login_response(b"InitialR2T=No\0MaxBurstLength=4096\0", options.isid);
        answer.resize(answer.len().next_multiple_of(4), 0);
        end.receive(&answer, false);
        assert!(end.initiator.is_ready());
    }
    end.new_tags();
    let mut tags = vec![[0; 4]];
    while !input.is_empty() && !end.initiator.is_over() {
        if end.initiator.is_ready() {
            end.submit(input.byte());
        }
        let bytes = match kind & 0x80 {
            0 => match piece(&mut input, OPCODES) {
                Piece::Raw(bytes) => bytes,
                Piece::Pdu { mut bhs, data, in_order } => {
                    tags.extend(end.new_tags());
                    if in_order {
                        let tag = tags[usize::from(bhs[19]) % tags.len()];
                        bhs[16..20].copy_from_slice(&tag);
                        bhs[24..28].copy_from_slice(&end.stat_sn.to_be_bytes());
                        end.stat_sn += u32::from(numbered(&bhs));
                    }
                    [&bhs[..], &data].concat()
                }
            },
            _ => input.take(usize::MAX).to_vec(),
        };
        cut(&bytes, seed, |piece| end.receive(piece, seed & 2 != 0));
        if kind & 0x40 != 0 {
            end.now += Duration::from_secs(4);
            let End { initiator, now, sent, events, .. } = &mut end;
            initiator.handle_timeout(&mut Cx { now: *now, tx: sent, events });
            end.take_events();
        }
    }
    end.initiator.transport_closed(&mut end.events);
    end.take_events();
    assert_eq!(end.finished, end.submitted, "each command ends once");
    assert_eq!(end.initiator.outstanding(), 0);
}
