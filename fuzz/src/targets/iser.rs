//! Any Sends at either end of a connection over RDMA, with RDMA Reads that come back in any order.
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::{Input, Piece, login_response, piece};
use lunet_iscsi::digest::Crc32c;
use lunet_iscsi::initiator::{self, Data, RdmaOffer};
use lunet_iscsi::iser::{ConnectData, HEADER_LEN, Header, Kind, Remote, SMALL_SEGMENT};
use lunet_iscsi::pdu::{
    BHS_LEN, BasicHeader, LoginRequest, NopIn, Opcode, TaskAttribute, TmfFunction, TmfResponse,
    U24, Wire,
};
use lunet_iscsi::target::options::MAX_IMMEDIATE;
use lunet_iscsi::target::{
    Command, Connection, Credentials, Cx, Event, LoginIdentity, LoginRefusal, Options, Payload,
    RdmaFault, RdmaOptions, RdmaRead, Response, SendTargets, Site, Tag, TargetInfo, Transmit,
    Wanted,
};

const FROM_INITIATOR: &[u8] =
    &[0x01, 0x01, 0x05, 0x00, 0x02, 0x04, 0x06, 0x10, 0x03, 0x1f, 0x01, 0x02, 0x01];
const FROM_TARGET: &[u8] =
    &[0x21, 0x21, 0x25, 0x31, 0x20, 0x22, 0x24, 0x26, 0x32, 0x3f, 0x23, 0x01, 0x21];
const QUEUE_DEPTH: u32 = 4;
const NOW: Duration = Duration::from_secs(1);

struct Place;

impl Site for Place {
    type Buf = Vec<u8>;

    fn alloc(&mut self, len: usize) -> Option<Vec<u8>> {
        // What holds if nobody says anything of FirstBurstLength.
        assert!(len > 0 && len <= 65_536);
        Some(vec![0; len])
    }

    fn find_target(&self, _: &LoginIdentity) -> Result<TargetInfo, LoginRefusal> {
        Ok(TargetInfo { portal_group_tag: 1, alias: None })
    }

    fn credentials(&self, _: &LoginIdentity) -> Result<Option<Arc<Credentials>>, LoginRefusal> {
        Ok(None)
    }

    fn random(&self, _: &mut [u8]) -> bool {
        false
    }

    fn send_targets(&self, _: SendTargets<'_>, each: &mut dyn FnMut(&str, &str, u16)) {
        for port in 3260..3300 {
            each("iqn.2026-11.local.lunet:t", &format!("192.0.2.1:{port}"), 1);
        }
    }
}

struct Zeroes(usize);

impl Payload for Zeroes {
    fn len(&self) -> usize {
        self.0
    }

    fn crc32c(&self, _: Range<usize>, _: &mut Crc32c) {
        panic!("there are no digests over RDMA");
    }
}

/// Looks at what is sent: whole PDUs behind a header, and no PDU that RDMA replaces.
#[derive(Default)]
struct Sends {
    bytes: Vec<u8>,
    exp_cmd_sn: u32,
    tags: Vec<[u8; 4]>,
    longest: usize,
}

impl Sends {
    fn end(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let (kind, pdu) = Header::split(&bytes).expect("an iSER header");
        assert!(matches!(kind, Kind::Control(_)));
        let bhs = pdu.first_chunk::<BHS_LEN>().expect("a PDU");
        let header = BasicHeader::from_bhs(bhs);
        let opcode = header.opcode().expect("a known PDU");
        assert!(!matches!(opcode, Opcode::DataIn | Opcode::R2t));
        assert_eq!(pdu.len(), BHS_LEN + header.ahs_len() + header.data_len());
        self.exp_cmd_sn = NopIn::from_bhs(bhs).exp_cmd_sn.get();
        self.longest = self.longest.max(header.data_len());
        self.tags.push([bhs[16], bhs[17], bhs[18], bhs[19]]);
    }
}

impl Transmit for Sends {
    type Payload = Zeroes;

    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn payload(&mut self, payload: Zeroes) -> usize {
        payload.0
    }

    fn slice(&mut self, _: usize, _: Range<usize>) {
        panic!("data in a Send of the target");
    }

    fn end_send(&mut self, _: Option<u32>) {
        self.end();
    }

    fn write(&mut self, len: usize, range: Range<usize>, _: Remote) {
        assert!(self.bytes.is_empty() && !range.is_empty() && range.end <= len);
    }
}

impl initiator::Transmit<Vec<u8>> for Sends {
    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn data(&mut self, data: &Vec<u8>, range: Range<usize>) {
        self.bytes.extend_from_slice(&data[range]);
    }

    fn end_send(&mut self) {
        self.end();
    }
}

/// The target's end, and a layer above it that does what the command says.
struct Target {
    end: Connection<Vec<u8>>,
    place: Place,
    tx: Sends,
    held: Vec<Tag>,
    /// RDMA Reads under way.
    reads: Vec<RdmaRead<Vec<u8>>>,
    closed: bool,
}

impl Target {
    fn with(&mut self, work: impl FnOnce(&mut Connection<Vec<u8>>, &mut Cx<'_, Place, Sends>)) {
        let mut events = Vec::new();
        let Self { end, place, tx, .. } = self;
        work(end, &mut Cx { now: NOW, site: place, tx, events: &mut events });
        for event in events {
            self.handle(event);
        }
        if self.end.logs_out() {
            let mut events = Vec::new();
            let Self { end, place, tx, .. } = self;
            end.log_out(&mut Cx { now: NOW, site: place, tx, events: &mut events });
            events.into_iter().for_each(|event| self.handle(event));
        }
        assert!(self.tx.bytes.is_empty(), "half a Send");
    }

    fn handle(&mut self, event: Event<Vec<u8>>) {
        assert!(!self.closed, "an event after the end");
        let Self { end, tx, held, .. } = self;
        match event {
            Event::LoginFinished(_) => end.admit(1, tx),
            Event::Command(command) if !end.is_pending(command.tag) => {}
            Event::Command(command) => self.command(&command),
            Event::Data { tag, len, buf, .. } => {
                assert!(len as usize <= buf.len());
                end.respond(tag, Response::good(Wanted { read: 0, write: len }), tx);
            }
            Event::TransferFailed { tag, error } => {
                end.respond(tag, Response::transfer_error(error), tx);
            }
            Event::TaskManagement { tag, referenced, .. } => {
                match referenced {
                    Some(task) => end.abort(task),
                    None => {
                        for task in end.older_than(tag, |_| true) {
                            end.abort(task);
                            held.retain(|one| *one != task);
                        }
                    }
                }
                end.respond_tmf(tag, TmfResponse::Complete, tx);
            }
            Event::Answered { .. } => {}
            Event::Close(_) => self.closed = true,
        }
    }

    fn command(&mut self, command: &Command<Vec<u8>>) {
        let Self { end, tx, held, .. } = self;
        let Command { tag, cdb, expects_read, expects_write, .. } = *command;
        let came = command.data.as_ref().map_or(0, |(_, len)| *len as u32);
        assert!(came <= expects_write);
        let wanted = Wanted { read: u32::from(cdb[1]) * 16, write: u32::from(cdb[2]) * 16 };
        match cdb[0] & 3 {
            0 => end.respond(tag, Response { sense: &[0x70; 252], ..Response::good(wanted) }, tx),
            1 => {
                let len = (u32::from(cdb[3]) * 64).min(expects_read) as usize;
                end.send_data(tag, Zeroes(len), 0..len / 3, None, tx);
                end.send_data(tag, Zeroes(len), len / 3..len, Some(wanted), tx);
            }
            2 => {
                let len = (expects_write - came).min(16 << 10);
                for at in [0, len / 2].into_iter().filter(|_| len > 1) {
                    let part = if at == 0 { len / 2 } else { len - at };
                    end.solicit(tag, came + at, part, vec![0; part as usize], tx);
                }
                held.push(tag);
            }
            _ => held.push(tag),
        }
    }

    /// Posts RDMA Reads, and completes one, or answers before they are back.
    fn move_data(&mut self, choice: u8) {
        while let Some(read) = self.end.take_rdma_read().filter(|_| choice & 1 == 0) {
            assert!(!self.closed && read.len > 0 && read.len as usize <= read.buf.len());
            self.reads.push(read);
        }
        if choice & 2 == 0 && !self.reads.is_empty() {
            let any = usize::from(choice >> 2) % self.reads.len();
            let read = self.reads.swap_remove(any);
            self.with(|end, cx| end.rdma_read_done(read.id, read.buf, cx));
        } else if choice & 4 == 0 {
            if let Some(tag) = self.held.pop() {
                let response = Response { status: 2, sense: &[0x70; 252], wanted: None };
                self.with(|end, cx| end.respond(tag, response, cx.tx));
            }
        }
        if choice == 0xff {
            self.with(|end, cx| end.rdma_failed(RdmaFault::RemoteAccess, cx.events));
        }
    }
}

/// The next Send: a PDU behind a header, or the input's bytes.
fn message(input: &mut Input<'_>, opcodes: &[u8], numbers: impl FnOnce(&mut [u8; 48])) -> Vec<u8> {
    match piece(input, opcodes) {
        Piece::Raw(bytes) => bytes,
        Piece::Pdu { mut bhs, data, in_order } => {
            if in_order {
                numbers(&mut bhs);
            }
            let choice = input.byte();
            let memory = |valid: bool, stag: u32| valid.then_some(Remote { stag, offset: 4096 });
            let opened =
                Header { read: memory(choice & 1 == 0, 7), write: memory(choice & 2 == 0, 9) };
            let mut bytes = [&opened.to_bytes()[..], &bhs, &data].concat();
            if choice & 0xc0 == 0xc0 {
                bytes.truncate(bytes.len().saturating_sub(usize::from(choice & 0x3f)));
            }
            bytes
        }
    }
}

fn at_target(kind: u8, input: &mut Input<'_>) {
    let options = Options { queue_depth: QUEUE_DEPTH, ..Options::default() };
    let invalidate = ConnectData::parse(&[kind, 0, 0, 0]).invalidate;
    let rdma = RdmaOptions { recv_data_segment_length: 2048, invalidate };
    let mut target = Target {
        end: Connection::over_rdma(options, rdma, NOW),
        place: Place,
        tx: Sends::default(),
        held: Vec::new(),
        reads: Vec::new(),
        closed: false,
    };
    if kind & 2 == 0 {
        let text = b"InitiatorName=iqn.2026-11.local.lunet:i\0\
            TargetName=iqn.2026-11.local.lunet:t\0RDMAExtensions=Yes\0InitialR2T=No\0\
            TargetRecvDataSegmentLength=4096\0InitiatorRecvDataSegmentLength=65536\0";
        let pdu = LoginRequest {
            opcode: 0x43,
            flags: 0x87,
            data_len: U24::new(text.len() as u32),
            cmd_sn: 1.into(),
            ..Default::default()
        };
        let send = [&Header::default().to_bytes()[..], pdu.as_bhs(), text].concat();
        target.with(|end, cx| end.rx_send(send[..].into(), cx));
        assert!(target.end.is_full_feature());
        target.tx.longest = 0;
    }
    while !input.is_empty() && !target.closed {
        let exp_cmd_sn = target.tx.exp_cmd_sn;
        let send = message(input, FROM_INITIATOR, |bhs| {
            if bhs[0] & 0x3f != 0x05 {
                bhs[24..28].copy_from_slice(&exp_cmd_sn.to_be_bytes());
            }
        });
        assert!(send.len() <= HEADER_LEN + 16384);
        target.with(|end, cx| end.rx_send(send[..].into(), cx));
        target.move_data(input.byte());
        target.held.truncate(64);
    }
    if kind & 2 == 0 {
        assert!(target.tx.longest <= SMALL_SEGMENT, "more than Linux has room for");
    }
    assert!(target.end.outstanding() <= (QUEUE_DEPTH + MAX_IMMEDIATE) as usize * 2);
    // Of what an initiator has asked for, no more is under way than its commands can have.
    assert!(target.reads.len() <= (QUEUE_DEPTH + MAX_IMMEDIATE) as usize * 64);
}

/// Submits a command of the input's; true if it was sent.
fn submit(end: &mut initiator::Connection, choice: u8, tx: &mut Sends) -> bool {
    let len = usize::from(choice & 0xf0) * 128;
    let data = match choice & 3 {
        0 => Data::None,
        1 => Data::Read(vec![0; len]),
        2 => Data::Discard(len as u32),
        _ => Data::Write(vec![0; len]),
    };
    let command = initiator::Command {
        token: 0,
        lun: 0,
        cdb: &[0; 16],
        attribute: TaskAttribute::Simple,
        immediate: choice & 4 != 0,
        data,
    };
    let memory = (choice & 8 == 0).then_some(Remote { stag: 7, offset: 4096 });
    let Ok(tag) = end.submit_rdma(command, memory, tx) else { return false };
    if choice & 0x10 != 0 {
        // Refused when the target has no receive for it.
        let _ = end.manage(TmfFunction::AbortTask, 0, Some(tag), tx);
    }
    true
}

fn at_initiator(kind: u8, input: &mut Input<'_>) {
    let options = initiator::Options {
        skip_security: true,
        rdma: Some(RdmaOffer::default()),
        ..initiator::Options::new("iqn.2026-11.local.lunet:i", Some("iqn.2026-11.local.lunet:t"))
    };
    let isid = options.isid;
    let mut end = initiator::Connection::new(options);
    let (mut tx, mut events, mut stat_sn) = (Sends::default(), Vec::new(), 1u32);
    end.start(NOW, &mut tx);
    if kind & 2 == 0 {
        let text = b"RDMAExtensions=Yes\0TargetRecvDataSegmentLength=1024\0InitialR2T=No\0\
            MaxOutstandingUnexpectedPDUs=6\0";
        let send = [&Header::default().to_bytes()[..], &login_response(text, isid)].concat();
        end.rx_send(&send, None, &mut initiator::Cx { now: NOW, tx: &mut tx, events: &mut events });
        assert!(end.is_ready());
    }
    let mut submitted = 0;
    while !input.is_empty() && !end.is_over() {
        if end.is_ready() {
            submitted += usize::from(submit(&mut end, input.byte(), &mut tx));
        }
        let (tags, number) = (&tx.tags, &mut stat_sn);
        let send = message(input, FROM_TARGET, |bhs| {
            let tag = tags[usize::from(bhs[19]) % tags.len()];
            bhs[16..20].copy_from_slice(&tag);
            bhs[24..28].copy_from_slice(&number.to_be_bytes());
            *number += 1;
        });
        let invalidated = (input.byte() & 7 == 0).then_some(7);
        let mut cx = initiator::Cx { now: NOW, tx: &mut tx, events: &mut events };
        end.rx_send(&send, invalidated, &mut cx);
        assert!(tx.bytes.is_empty(), "half a Send");
    }
    end.transport_closed(&mut events);
    let ended = |event: &&initiator::Event<_, _>| matches!(event, initiator::Event::Finished(_));
    assert_eq!(events.iter().filter(ended).count(), submitted, "each command ends once");
    assert_eq!(end.outstanding(), 0);
}

/// One input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let kind = input.byte();
    match kind & 1 {
        0 => at_target(kind, &mut input),
        _ => at_initiator(kind, &mut input),
    }
}
