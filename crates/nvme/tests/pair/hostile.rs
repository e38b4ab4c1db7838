//! What a controller does with PDUs that are wrong: it says why, and closes.

use std::time::Duration;

use lunet_nvme::command::{Completion, Io, Range, Sgl, Sqe};
use lunet_nvme::controller::{CloseReason, Connection, Cx, Event, Options, Tag};
use lunet_nvme::fabrics::{Authentication, Connect, Connected, Fabrics, Property, Security};
use lunet_nvme::pdu::{
    CapsuleCmd, CapsuleResp, Data, FatalError, Framing, Header, IcReq, IcResp, LAST_PDU, PduError,
    R2t, SUCCESS, TermReq, Type, U16, U32,
};
use lunet_nvme::status::Status;
use zerocopy::{FromBytes, IntoBytes};

use crate::disk::TestSite;
use crate::world::{Bytes, Sent, Settings};

const NOW: Duration = Duration::from_secs(5);

/// A controller, and what it has done.
struct Raw {
    end: Connection<Vec<u8>>,
    answers: Sent,
    events: Vec<Event<Vec<u8>>>,
}

/// A PDU without digests.
fn pdu(kind: Type, flags: u8, mut header: impl Header, data: &[u8]) -> Vec<u8> {
    let layout = Framing::default().seal(&mut header, kind, flags, data.len() as u32);
    let mut bytes = Vec::new();
    layout.write(header.as_bytes(), |piece| bytes.extend_from_slice(piece));
    bytes.extend_from_slice(data);
    bytes
}

fn capsule(sqe: &Sqe, data: &[u8]) -> Vec<u8> {
    let mut capsule = CapsuleCmd::default();
    capsule.sqe.copy_from_slice(sqe.as_bytes());
    pdu(Type::CapsuleCmd, 0, capsule, data)
}

fn connect() -> Vec<u8> {
    let (sqe, data) = Settings::default().host().connect.encode();
    capsule(&sqe, data.as_bytes())
}

impl Raw {
    fn new() -> Self {
        let end = Connection::new(Options::default(), NOW);
        Self { end, answers: Sent::default(), events: Vec::new() }
    }

    fn receive(&mut self, bytes: &[u8]) {
        let mut site = TestSite::default();
        let Self { end, answers, events } = self;
        end.rx_bytes(bytes, &mut Cx { now: NOW, site: &mut site, tx: answers, events });
    }

    /// After ICReq and Connect, with nothing of the answers left.
    fn connected(authentication: Authentication) -> Self {
        Self::connected_by(&connect(), authentication)
    }

    fn connected_by(connect: &[u8], authentication: Authentication) -> Self {
        let mut raw = Self::new();
        raw.receive(&pdu(Type::IcReq, 0, IcReq::default(), &[]));
        raw.receive(connect);
        assert!(matches!(raw.events[..], [Event::Connect(_)]));
        raw.end.accept(Connected { cntlid: 1, authentication }, &mut raw.answers);
        raw.events.clear();
        raw.answers.0.clear();
        raw
    }

    /// A write of 8 KiB that the layer above has asked for. Its tag, and the TTAG.
    fn writing() -> (Self, Tag, u16) {
        let mut raw = Self::connected(Authentication::None);
        let range = Range { lba: 0, blocks: 16 };
        let mut sqe = Io::Write { range, fua: false }.encode(1);
        sqe.sgl = Sgl::transport(8192);
        sqe.cid = U16::new(9);
        raw.receive(&capsule(&sqe, &[]));
        let [Event::Command(command)] = &raw.events[..] else { panic!("{:?}", raw.events) };
        let tag = command.tag;
        raw.events.clear();
        raw.end.solicit(tag, 0, 8192, vec![0; 8192], &mut raw.answers);
        let r2t = R2t::view(&raw.answers.0).expect("an R2T");
        assert_eq!((r2t.cccid.get(), r2t.r2to.get(), r2t.r2tl.get()), (9, 0, 8192));
        let ttag = r2t.ttag.get();
        raw.answers.0.clear();
        (raw, tag, ttag)
    }

    /// The connection is over for this reason, and the host was told so.
    fn terminated(&self, reason: CloseReason, fes: FatalError, fei: u32) {
        let closed = matches!(self.events[..], [Event::Close(why)] if why == reason);
        assert!(closed, "{:?}, not {reason:?}", self.events);
        let request = TermReq::view(&self.answers.0).expect("a termination request");
        assert_eq!(request.common.kind, Type::C2hTermReq.code());
        assert_eq!((request.fes.get(), request.fei.get()), (fes.code(), fei));
        assert_eq!(self.answers.0.len(), request.common.plen.get() as usize);
        assert!(self.answers.0.len() > 24, "no header to blame");
        assert!(self.end.is_closed());
    }

    /// The status of the one response that was sent, to this command.
    fn status(&mut self, cid: u16) -> Status {
        let response = CapsuleResp::view(&self.answers.0).expect("a response");
        assert_eq!(self.answers.0.len(), 24);
        let cqe = lunet_nvme::command::Cqe::read_from_bytes(&response.cqe).expect("16 bytes");
        assert_eq!(cqe.cid.get(), cid);
        self.answers.0.clear();
        cqe.completion().status
    }
}

fn data(ttag: u16, at: u32, len: usize, flags: u8) -> Vec<u8> {
    let header = Data {
        cccid: U16::new(9),
        ttag: U16::new(ttag),
        datao: U32::new(at),
        datal: U32::new(len as u32),
        ..Data::default()
    };
    pdu(Type::H2cData, flags, header, &vec![3; len])
}

#[test]
fn connection_begins_with_a_request_that_is_right() {
    let mut raw = Raw::new();
    raw.receive(&connect());
    raw.terminated(CloseReason::NotInitialized, FatalError::Sequence, 0);
    let mut raw = Raw::new();
    raw.receive(&pdu(Type::IcReq, 0, IcReq { pfv: U16::new(1), ..IcReq::default() }, &[]));
    raw.terminated(CloseReason::Version(1), FatalError::Unsupported, 8);
    let mut raw = Raw::new();
    raw.receive(&pdu(Type::IcReq, 0, IcReq { hpda: 32, ..IcReq::default() }, &[]));
    raw.terminated(CloseReason::Alignment(32), FatalError::HeaderField, 10);
    // The start of a TLS handshake.
    let mut raw = Raw::new();
    raw.receive(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc]);
    raw.terminated(CloseReason::Pdu(PduError::Type(0x16)), FatalError::HeaderField, 0);
    let mut raw = Raw::connected(Authentication::None);
    raw.receive(&pdu(Type::IcReq, 0, IcReq::default(), &[]));
    raw.terminated(CloseReason::Sequence, FatalError::Sequence, 0);
}

#[test]
fn response_offers_what_linux_insists_on() {
    let mut raw = Raw::new();
    raw.receive(&pdu(Type::IcReq, 0, IcReq { dgst: 3, ..IcReq::default() }, &[]));
    let response = IcResp::view(&raw.answers.0).expect("a response");
    assert_eq!(response.common.plen.get() as usize, raw.answers.0.len());
    assert_eq!((response.pfv.get(), response.cpda, response.dgst), (0, 0, 3));
    assert!(response.maxh2cdata.get() >= 4096 && response.maxh2cdata.get() % 4 == 0);
}

#[test]
fn the_first_command_is_a_connect() {
    let mut raw = Raw::new();
    raw.receive(&pdu(Type::IcReq, 0, IcReq::default(), &[]));
    raw.answers.0.clear();
    raw.receive(&capsule(&Io::Flush.encode(1), &[]));
    raw.terminated(CloseReason::NotConnected, FatalError::Sequence, 0);
    // One whose data is not in its capsule is answered.
    let mut raw = Raw::new();
    raw.receive(&pdu(Type::IcReq, 0, IcReq::default(), &[]));
    raw.answers.0.clear();
    let (mut sqe, _) = Settings::default().host().connect.encode();
    sqe.sgl = Sgl::transport(1024);
    raw.receive(&capsule(&sqe, &[]));
    assert_eq!(raw.status(0).code(), Status::DATA_LENGTH);
    assert!(matches!(raw.events[..], [Event::Close(CloseReason::NotConnected)]));
}

#[test]
fn a_refused_host_is_told_why() {
    let mut raw = Raw::new();
    raw.receive(&pdu(Type::IcReq, 0, IcReq::default(), &[]));
    raw.receive(&connect());
    raw.answers.0.clear();
    raw.end.refuse(Connect::UNKNOWN_SUBSYSTEM, &mut raw.answers);
    assert_eq!(raw.status(0), Status::CONNECT_PARAMETER);
    assert!(raw.end.is_closed());
}

#[test]
fn a_host_that_must_authenticate_can_do_nothing_else() {
    let mut raw = Raw::connected(Authentication::Required);
    let get = Fabrics::PropertyGet { property: Property::Capabilities }.encode();
    raw.receive(&capsule(&get, &[]));
    assert_eq!(raw.status(0), Status::AUTHENTICATION_REQUIRED);
    let mut send = Fabrics::AuthenticationSend(Security::dh_chap(4)).encode();
    send.sgl = Sgl::in_capsule(4);
    raw.receive(&capsule(&send, &[1, 2, 3, 4]));
    let [Event::Command(command)] = &raw.events[..] else { panic!("{:?}", raw.events) };
    let (bytes, range) = command.data.as_ref().expect("data");
    assert_eq!(bytes[range.clone()], [1, 2, 3, 4]);
    raw.end.complete(command.tag, Status::SUCCESS.into(), &mut raw.answers);
    assert_eq!(raw.status(0), Status::SUCCESS);
    raw.events.clear();
    assert!(!raw.end.is_ready());
    raw.end.authenticated();
    raw.receive(&capsule(&get, &[]));
    assert!(matches!(raw.events[..], [Event::Command(_)]));
}

#[test]
fn more_commands_than_entries_end_the_connection() {
    let mut raw = Raw::connected(Authentication::None);
    for _ in 0..32 {
        raw.receive(&capsule(&Io::Flush.encode(1), &[]));
    }
    assert_eq!((raw.events.len(), raw.end.outstanding()), (32, 32));
    raw.events.clear();
    raw.receive(&capsule(&Io::Flush.encode(1), &[]));
    raw.terminated(CloseReason::QueueOverrun, FatalError::Sequence, 0);
}

#[test]
fn data_that_nobody_asked_for_ends_the_connection() {
    let mut raw = Raw::connected(Authentication::None);
    raw.receive(&data(0, 0, 512, LAST_PDU));
    raw.terminated(CloseReason::UnknownTransfer, FatalError::HeaderField, 10);
    let (mut raw, _, ttag) = Raw::writing();
    raw.receive(&data(ttag + 1, 0, 8192, LAST_PDU));
    raw.terminated(CloseReason::UnknownTransfer, FatalError::HeaderField, 10);
    // The transfer of another command.
    let (mut raw, _, ttag) = Raw::writing();
    let mut bytes = data(ttag, 0, 8192, LAST_PDU);
    bytes[8] = 8;
    raw.receive(&bytes);
    raw.terminated(CloseReason::UnknownTransfer, FatalError::HeaderField, 8);
}

#[test]
fn data_outside_of_what_was_asked_for_ends_the_connection() {
    let range = |at, len, flags| {
        let (mut raw, _, ttag) = Raw::writing();
        raw.receive(&data(ttag, at, len, flags));
        raw
    };
    let out = (CloseReason::DataRange, FatalError::DataOutOfRange, 0);
    for raw in [range(512, 512, 0), range(0, 8196, LAST_PDU), range(u32::MAX, 512, 0)] {
        raw.terminated(out.0, out.1, out.2);
    }
    range(0, 512, LAST_PDU).terminated(CloseReason::DataRange, FatalError::Sequence, 0);
    let (mut raw, _, ttag) = Raw::writing();
    let mut bytes = data(ttag, 0, 512, 0);
    bytes[16] = 4;
    raw.receive(&bytes);
    raw.terminated(CloseReason::DataLength, FatalError::HeaderField, 16);
    // After its last data a transfer is over.
    let (mut raw, _, ttag) = Raw::writing();
    raw.receive(&data(ttag, 0, 8192, LAST_PDU));
    assert!(matches!(raw.events[..], [Event::Data { offset: 0, len: 8192, .. }]));
    raw.events.clear();
    raw.receive(&data(ttag, 0, 8192, LAST_PDU));
    raw.terminated(CloseReason::UnknownTransfer, FatalError::HeaderField, 10);
}

#[test]
fn an_early_answer_waits_for_the_data_that_is_under_way() {
    let (mut raw, tag, ttag) = Raw::writing();
    raw.end.complete(tag, Status::ABORTED.into(), &mut raw.answers);
    assert!(raw.answers.0.is_empty());
    assert_eq!((raw.end.outstanding(), raw.end.find(9)), (1, None));
    raw.receive(&data(ttag, 0, 4096, 0));
    assert!(raw.answers.0.is_empty());
    raw.receive(&data(ttag, 4096, 4096, LAST_PDU));
    assert_eq!(raw.status(9), Status::ABORTED);
    assert!(raw.events.is_empty() && raw.end.outstanding() == 0);
}

#[test]
fn a_host_may_terminate_the_connection() {
    let mut raw = Raw::connected(Authentication::None);
    let request = TermReq { fes: U16::new(2), fei: U32::new(7), ..TermReq::default() };
    // The data of a termination request follows its header, and PDO is 0.
    let bytes = pdu(Type::H2cTermReq, 0, request, &[5; 24]);
    assert_eq!(bytes.len(), 48);
    raw.receive(&bytes);
    let reason = CloseReason::Terminated { fes: 2, fei: 7 };
    assert!(matches!(raw.events[..], [Event::Close(why)] if why == reason));
    assert!(raw.answers.0.is_empty());
}

/// Types and flags of what is sent for a read that completes so, in two parts.
fn read(no_sq_flow: bool, completion: Completion) -> Vec<(u8, u8)> {
    let settings = Settings { no_sq_flow, ..Settings::default() };
    let (sqe, data) = settings.host().connect.encode();
    let mut raw = Raw::connected_by(&capsule(&sqe, data.as_bytes()), Authentication::None);
    let range = Range { lba: 0, blocks: 2 };
    let mut sqe = Io::Read { range, fua: false }.encode(1);
    sqe.sgl = Sgl::transport(1024);
    raw.receive(&capsule(&sqe, &[]));
    let [Event::Command(command)] = &raw.events[..] else { panic!("{:?}", raw.events) };
    let payload = Bytes([4; 1024].into());
    raw.end.send_data(command.tag, payload.clone(), 0..512, None, &mut raw.answers);
    // More than the host takes is cut off.
    raw.end.send_data(command.tag, payload, 0..1024, Some(completion), &mut raw.answers);
    assert_eq!(raw.end.outstanding(), 0);
    let mut sent = Vec::new();
    let mut rest = raw.answers.0.as_slice();
    while let Some(header) = Data::view(rest) {
        sent.push((header.common.kind, header.common.flags));
        rest = &rest[header.common.plen.get() as usize..];
    }
    sent
}

#[test]
fn success_replaces_the_response_only_where_it_may() {
    let (data, response) = (Type::C2hData.code(), Type::CapsuleResp.code());
    let whole = [(data, 0), (data, LAST_PDU), (response, 0)];
    assert_eq!(read(false, Completion::SUCCESS), whole);
    assert_eq!(read(true, Completion::SUCCESS), [(data, 0), (data, LAST_PDU | SUCCESS)]);
    assert_eq!(read(true, Completion::with(1)), whole);
    assert_eq!(read(true, Status::READ_ERROR.into()), whole);
}

#[test]
fn the_head_of_the_queue_moves_with_the_completions() {
    let mut raw = Raw::connected(Authentication::None);
    let mut heads = Vec::new();
    for _ in 0..33 {
        raw.receive(&capsule(&Io::Flush.encode(1), &[]));
        let Some(Event::Command(command)) = raw.events.pop() else { panic!("no command") };
        raw.end.complete(command.tag, Completion::SUCCESS, &mut raw.answers);
        let response = CapsuleResp::view(&raw.answers.0).expect("a response");
        heads.push(u16::from_le_bytes([response.cqe[8], response.cqe[9]]));
        raw.answers.0.clear();
    }
    // The Connect was the first; the queue has 32 entries.
    assert_eq!(heads[..3], [2, 3, 4]);
    assert_eq!(heads[29..], [31, 0, 1, 2]);
}
