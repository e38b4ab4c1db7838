//! The initiator's end over RDMA, against Sends written by hand.

use super::*;
use crate::iser::{HEADER_LEN, Header, Remote};
use crate::keys::Key;
use crate::pdu::{DataIn, R2t, ScsiCommand, ScsiResponse, UNDERFLOW};

/// What LIO answers.
const LIO: &[u8] = b"RDMAExtensions=Yes\0InitiatorRecvDataSegmentLength=262144\0\
    TargetRecvDataSegmentLength=8192\0MaxOutstandingUnexpectedPDUs=NotUnderstood\0\
    TaggedBufferForSolicitedDataOnly=NotUnderstood\0InitialR2T=Yes\0ImmediateData=Yes\0\
    MaxBurstLength=262144\0FirstBurstLength=65536\0TargetPortalGroupTag=1\0";

const MEMORY: Remote = Remote { stag: 0x77, offset: 0x1000 };

fn rdma() -> Options {
    Options { rdma: Some(RdmaOffer::default()), ..options() }
}

/// Sends collected one by one.
#[derive(Default)]
struct Sends {
    bytes: Vec<u8>,
    whole: Vec<Vec<u8>>,
}

impl Transmit<Vec<u8>> for Sends {
    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn data(&mut self, data: &Vec<u8>, range: core::ops::Range<usize>) {
        self.bytes.extend_from_slice(&data[range]);
    }

    fn end_send(&mut self) {
        self.whole.push(core::mem::take(&mut self.bytes));
    }
}

struct Link {
    connection: Connection,
    sends: Sends,
    events: Vec<Event<Vec<u8>, Vec<u8>>>,
    stat_sn: u32,
}

impl Link {
    fn new(options: Options) -> Self {
        let mut sends = Sends::default();
        let mut connection = Connection::new(options);
        connection.start(Duration::from_secs(1), &mut sends);
        Self { connection, sends, events: Vec::new(), stat_sn: 500 }
    }

    fn receive(&mut self, message: &[u8], invalidated: Option<u32>) {
        let Self { connection, sends, events, .. } = self;
        let mut cx = Cx { now: Duration::from_secs(1), tx: sends, events };
        connection.rx_send(message, invalidated, &mut cx);
    }

    /// A Send with this PDU and the next StatSN.
    fn message(&mut self, pdu: &impl Wire, data: &[u8]) -> Vec<u8> {
        let mut bhs = *pdu.as_bhs();
        bhs[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        bhs[24..28].copy_from_slice(&self.stat_sn.to_be_bytes());
        bhs[28..32].copy_from_slice(&1u32.to_be_bytes());
        bhs[32..36].copy_from_slice(&64u32.to_be_bytes());
        self.stat_sn += 1;
        [&Header::default().to_bytes()[..], &bhs, data].concat()
    }

    fn answer(&mut self, pdu: &impl Wire, data: &[u8], invalidated: Option<u32>) {
        let message = self.message(pdu, data);
        self.receive(&message, invalidated);
    }

    fn login(&mut self, stage: Stage, next: Stage, text: &[u8]) {
        let pdu = LoginResponse {
            flags: TRANSIT | next.code() | stage.code() << 2,
            isid: self.connection.options.isid,
            tsih: 7.into(),
            ..Default::default()
        };
        self.answer(&pdu, text, None);
    }

    /// What was sent since the last call: the memory opened, and the PDU.
    fn sent(&mut self) -> Vec<(Header, Sent)> {
        assert!(self.sends.bytes.is_empty(), "half a Send");
        let take = |bytes: Vec<u8>| {
            let (kind, pdu) = Header::split(&bytes).expect("a header");
            let crate::iser::Kind::Control(opened) = kind else { panic!("{kind:?}") };
            let (bhs, data) = pdu.split_first_chunk::<BHS_LEN>().expect("a PDU");
            assert_eq!(BasicHeader::from_bhs(bhs).data_len(), data.len(), "padding");
            (opened, super::Sent { bhs: *bhs, ahs: Vec::new(), data: data.to_vec() })
        };
        core::mem::take(&mut self.sends.whole).into_iter().map(take).collect()
    }

    fn logged_in(answers: &[u8]) -> Self {
        let mut link = Self::new(rdma());
        link.login(Stage::Security, Stage::Operational, b"AuthMethod=None\0");
        link.login(Stage::Operational, Stage::FullFeature, answers);
        assert!(matches!(link.events[..], [Event::LoggedIn(_)]), "{:?}", link.events);
        link.events.clear();
        link.sent();
        link
    }

    fn submit(
        &mut self,
        data: Data<Vec<u8>, Vec<u8>>,
        memory: Option<Remote>,
    ) -> Result<Tag, SubmitError> {
        let command = Command {
            token: 77,
            lun: 0,
            cdb: &[0x2a; 10],
            attribute: TaskAttribute::Simple,
            immediate: false,
            data,
        };
        let sent = self.connection.submit_rdma(command, memory, &mut self.sends);
        sent.map_err(|refused| refused.error)
    }

    fn failure(&mut self) -> Error {
        match self.events.pop() {
            Some(Event::Failed(error)) => error,
            other => panic!("no failure but {other:?}"),
        }
    }
}

fn response(tag: Tag) -> ScsiResponse {
    ScsiResponse { flags: FINAL, itt: tag.itt(), ..Default::default() }
}

#[test]
fn a_login_against_lio() {
    let mut link = Link::new(rdma());
    link.login(Stage::Security, Stage::Operational, b"AuthMethod=None\0");
    let sent = link.sent();
    assert!(sent.iter().all(|(opened, _)| *opened == Header::default()));
    let offer = &sent[1].1;
    assert_eq!(offer.value("RDMAExtensions").as_deref(), Some("Yes"));
    assert_eq!(offer.value("InitiatorRecvDataSegmentLength").as_deref(), Some("262144"));
    assert_eq!(offer.value("TargetRecvDataSegmentLength").as_deref(), Some("8192"));
    assert_eq!(offer.value("TaggedBufferForSolicitedDataOnly").as_deref(), Some("Yes"));
    for key in ["HeaderDigest", "DataDigest", "MaxRecvDataSegmentLength"] {
        assert_eq!(offer.value(key), None, "{key}");
    }
    link.login(Stage::Operational, Stage::FullFeature, LIO);
    let Some(Event::LoggedIn(info)) = link.events.pop() else { panic!("not logged in") };
    let agreed = info.negotiated;
    assert!(agreed.rdma && !agreed.header_digest);
    assert_eq!(agreed.max_recv_data_segment_length, 262_144);
    assert_eq!(
        (agreed.target_max_recv_data_segment_length, agreed.target_max_unexpected),
        (8192, 0)
    );
}

#[test]
fn a_target_that_does_not_agree_to_rdma_is_left() {
    for answer in [&b"RDMAExtensions=No\0"[..], b"RDMAExtensions=NotUnderstood\0", b""] {
        let mut link = Link::new(rdma());
        link.login(Stage::Security, Stage::Operational, b"AuthMethod=None\0");
        link.login(Stage::Operational, Stage::FullFeature, answer);
        assert_eq!(link.failure(), Error::Answer(Key::RDMAExtensions));
    }
    let mut link = Link::new(rdma());
    link.login(Stage::Security, Stage::Operational, b"AuthMethod=None\0");
    let answer = b"RDMAExtensions=Yes\0TargetRecvDataSegmentLength=65536\0";
    link.login(Stage::Operational, Stage::FullFeature, answer);
    assert_eq!(link.failure(), Error::Answer(Key::TargetRecvDataSegmentLength));
}

#[test]
fn a_discovery_session_offers_no_keys_of_rdma() {
    let mut link = Link::new(Options { target_name: None, ..rdma() });
    link.login(Stage::Security, Stage::Operational, b"AuthMethod=None\0");
    let offer = &link.sent()[1].1;
    assert_eq!(offer.value("RDMAExtensions"), None);
    assert!(offer.value("MaxRecvDataSegmentLength").is_some());
    link.login(Stage::Operational, Stage::FullFeature, b"MaxRecvDataSegmentLength=8192\0");
    assert!(matches!(link.events[..], [Event::LoggedIn(_)]));
}

#[test]
fn commands_open_what_the_target_has_to_reach() {
    let mut link = Link::logged_in(LIO);
    assert_eq!(link.submit(Data::Read(vec![0; 512]), None), Err(SubmitError::NotRegistered));
    assert_eq!(link.submit(Data::Write(vec![0; 9000]), None), Err(SubmitError::NotRegistered));
    assert!(link.sent().is_empty());
    assert!(link.submit(Data::None, None).is_ok());
    assert!(link.submit(Data::Read(vec![0; 512]), Some(MEMORY)).is_ok());
    assert!(link.submit(Data::Write(pattern(512)), None).is_ok());
    assert!(link.submit(Data::Write(pattern(9000)), Some(MEMORY)).is_ok());
    let sent = link.sent();
    let opened: Vec<Header> = sent.iter().map(|(opened, _)| *opened).collect();
    let (read, write) = (Some(MEMORY), Some(MEMORY.at(8192)));
    assert_eq!(opened[0], Header::default());
    assert_eq!(opened[1], Header { read, write: None });
    assert_eq!(opened[2], Header::default());
    assert_eq!(opened[3], Header { read: None, write });
    let immediate: Vec<usize> = sent.iter().map(|(_, sent)| sent.data.len()).collect();
    assert_eq!(immediate, [0, 0, 512, 8192]);
    let command: &ScsiCommand = sent[3].1.view();
    assert_eq!((command.expected_len.get(), command.flags & FINAL), (9000, FINAL));
    assert_eq!(sent[3].1.data, pattern(9000)[..8192]);
}

#[test]
fn data_has_moved_when_the_answer_is_there() {
    let mut link = Link::logged_in(LIO);
    let tag = link.submit(Data::Read(vec![0; 512]), Some(MEMORY)).expect("sent");
    let short = ScsiResponse { flags: FINAL | UNDERFLOW, residual: 12.into(), ..response(tag) };
    link.answer(&short, &[], Some(MEMORY.stag));
    let Some(Event::Finished(end)) = link.events.pop() else { panic!("{:?}", link.events) };
    let Outcome::Completed(completion) = end.outcome else { panic!("{:?}", end.outcome) };
    assert!(completion.is_good());
    assert_eq!((completion.received, completion.residual), (500, Residual::Underflow(12)));
    let tag = link.submit(Data::Read(vec![0; 512]), Some(MEMORY)).expect("sent");
    link.answer(&ScsiResponse { residual: 513.into(), itt: tag.itt(), ..short }, &[], None);
    assert_eq!(link.failure(), Error::DataRange);
}

#[test]
fn only_the_steering_tag_of_the_command_may_be_taken_back() {
    for stag in [MEMORY.stag + 1, 0] {
        let mut link = Link::logged_in(LIO);
        let tag = link.submit(Data::Read(vec![0; 512]), Some(MEMORY)).expect("sent");
        link.answer(&response(tag), &[], Some(stag));
        assert_eq!(link.failure(), Error::Invalidated(stag));
    }
    // A write that opened nothing has nothing to take back.
    let mut link = Link::logged_in(LIO);
    let tag = link.submit(Data::Write(vec![0; 512]), None).expect("sent");
    link.answer(&response(tag), &[], Some(0));
    assert_eq!(link.failure(), Error::Invalidated(0));
    // No other PDU may take one back.
    let mut link = Link::logged_in(LIO);
    let tag = link.connection.ping(&[], &mut link.sends).expect("sent");
    let pong = crate::pdu::NopIn {
        flags: FINAL,
        itt: tag.itt(),
        ttt: RESERVED_TAG.into(),
        ..Default::default()
    };
    link.answer(&pong, &[], Some(MEMORY.stag));
    assert_eq!(link.failure(), Error::Invalidated(MEMORY.stag));
}

#[test]
fn data_and_requests_for_it_do_not_come_in_sends() {
    let mut link = Link::logged_in(LIO);
    let tag = link.submit(Data::Read(vec![0; 512]), Some(MEMORY)).expect("sent");
    let data_in = DataIn { flags: FINAL, itt: tag.itt(), ..Default::default() };
    link.answer(&data_in, &[1; 512], None);
    assert_eq!(link.failure(), Error::Unexpected(Opcode::DataIn.code()));
    let mut link = Link::logged_in(LIO);
    let tag = link.submit(Data::Write(vec![0; 9000]), Some(MEMORY)).expect("sent");
    let r2t = R2t { flags: FINAL, itt: tag.itt(), desired_len: 512.into(), ..Default::default() };
    link.answer(&r2t, &[], None);
    assert_eq!(link.failure(), Error::Unexpected(Opcode::R2t.code()));
}

#[test]
fn what_is_no_pdu_ends_the_connection() {
    let mut link = Link::logged_in(LIO);
    let tag = link.submit(Data::None, None).expect("sent");
    let whole = link.message(&response(tag), &[0, 2, 1, 2]);
    let mut hello = whole.clone();
    hello[0] = 0x30;
    let mut ahs = whole.clone();
    ahs[HEADER_LEN + 4] = 1;
    for (bytes, error) in [
        (&whole[..whole.len() - 1], Error::Send),
        (&whole[..HEADER_LEN + BHS_LEN - 1], Error::Send),
        (&whole[..HEADER_LEN - 1], Error::Send),
        (&[], Error::Send),
        (&hello, Error::Send),
        (&ahs, Error::AdditionalHeader),
    ] {
        let mut link = Link::logged_in(LIO);
        link.submit(Data::None, None).expect("sent");
        link.receive(bytes, None);
        assert_eq!(link.failure(), error);
        // The command came back before, and nothing comes behind.
        assert!(matches!(link.events[..], [Event::Finished(_)]));
        link.receive(&whole, None);
        assert_eq!(link.events.len(), 1);
    }
    link.receive(&whole, None);
    let Some(Event::Finished(end)) = link.events.pop() else { panic!("{:?}", link.events) };
    assert!(matches!(end.outcome, Outcome::Completed(end) if end.sense == [1, 2]));
}
