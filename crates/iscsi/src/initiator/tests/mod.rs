//! The initiator against answers written by hand.

mod chap;
mod data;
mod discard;
mod login;
mod management;
mod rdma;

use super::*;
use crate::digest::crc32c;
use crate::pdu::{
    BHS_LEN, BasicHeader, Bhs, FINAL, LoginResponse, Opcode, RESERVED_TAG, Stage, TRANSIT,
    TaskAttribute, Wire, padding,
};
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

const TARGET: &str = "iqn.2026-11.local.lunet:test";

/// A PDU that the initiator sent.
struct Sent {
    bhs: Bhs,
    ahs: Vec<u8>,
    data: Vec<u8>,
}

impl Sent {
    fn opcode(&self) -> Option<Opcode> {
        BasicHeader::from_bhs(&self.bhs).opcode()
    }

    fn view<P: Wire>(&self) -> &P {
        assert_eq!(self.opcode(), Some(P::OPCODE));
        P::from_bhs(&self.bhs)
    }

    fn text(&self) -> Vec<(String, String)> {
        let pairs = crate::text::pairs(&self.data);
        pairs.map(|pair| pair.expect("valid text")).map(|(k, v)| (k.into(), v.into())).collect()
    }

    fn value(&self, key: &str) -> Option<String> {
        self.text().into_iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}

/// A connection with the target's side played by the test.
struct Bench {
    connection: Connection,
    now: Duration,
    stat_sn: u32,
    max_cmd_sn: u32,
    sent: Vec<u8>,
    events: Vec<Event<Vec<u8>, Vec<u8>>>,
}

impl Bench {
    fn new(options: Options) -> Self {
        let mut bench = Self {
            max_cmd_sn: options.first_cmd_sn.wrapping_add(31),
            connection: Connection::new(options),
            now: Duration::from_secs(100),
            stat_sn: 500,
            sent: Vec::new(),
            events: Vec::new(),
        };
        bench.connection.start(bench.now, &mut bench.sent);
        bench
    }

    /// Logged in with these answers to the operational keys.
    fn logged_in(options: Options, answers: &[u8]) -> Self {
        let mut bench = Self::new(options);
        bench.sent();
        bench.login(Stage::Security, Some(Stage::Operational), b"AuthMethod=None\0");
        bench.sent();
        bench.login(Stage::Operational, Some(Stage::FullFeature), answers);
        assert!(matches!(bench.events[..], [Event::LoggedIn(_)]), "{:?}", bench.events);
        bench.events.clear();
        bench
    }

    fn login(&mut self, stage: Stage, next: Option<Stage>, text: &[u8]) {
        let transit = next.map_or(0, |next| TRANSIT | next.code());
        let pdu = LoginResponse {
            flags: transit | stage.code() << 2,
            isid: self.connection.options.isid,
            tsih: 7.into(),
            ..Default::default()
        };
        self.answer(&pdu, text);
    }

    /// The bytes of a PDU with the next StatSN.
    fn frame(&mut self, pdu: &impl Wire, data: &[u8]) -> Vec<u8> {
        let mut bytes = pdu.as_bhs().to_vec();
        bytes[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        bytes[24..28].copy_from_slice(&self.stat_sn.to_be_bytes());
        bytes[28..32].copy_from_slice(&self.connection.sequence.cmd_sn().to_be_bytes());
        bytes[32..36].copy_from_slice(&self.max_cmd_sn.to_be_bytes());
        let framing = self.connection.framing;
        if framing.header_digest {
            bytes.extend(crc32c(&bytes));
        }
        let mut segment = data.to_vec();
        segment.resize(data.len() + padding(data.len()), 0);
        bytes.extend_from_slice(&segment);
        if framing.data_digest && !data.is_empty() {
            bytes.extend(crc32c(&segment));
        }
        bytes
    }

    /// Sends a PDU that uses up a StatSN.
    fn answer(&mut self, pdu: &impl Wire, data: &[u8]) {
        self.tell(pdu, data);
        self.stat_sn = self.stat_sn.wrapping_add(1);
    }

    /// Sends a PDU that does not use up its StatSN.
    fn tell(&mut self, pdu: &impl Wire, data: &[u8]) {
        let bytes = self.frame(pdu, data);
        self.receive(&bytes);
    }

    fn receive(&mut self, bytes: &[u8]) {
        let Self { connection, now, sent, events, .. } = self;
        connection.rx_bytes(bytes, &mut Cx { now: *now, tx: sent, events });
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        let Self { connection, now, sent, events, .. } = self;
        connection.handle_timeout(&mut Cx { now: *now, tx: sent, events });
    }

    /// What was sent since the last call.
    fn sent(&mut self) -> Vec<Sent> {
        let framing = self.connection.framing;
        let bytes = core::mem::take(&mut self.sent);
        let mut rest = bytes.as_slice();
        let mut pdus = Vec::new();
        while let Some((bhs, tail)) = rest.split_first_chunk::<BHS_LEN>() {
            let header = BasicHeader::from_bhs(bhs);
            let (ahs, tail) = tail.split_at(header.ahs_len());
            let (digest, tail) = tail.split_at(framing.header_digest_len());
            let covered = BHS_LEN + header.ahs_len();
            assert!(digest.is_empty() || digest == crc32c(&rest[..covered]));
            let len = header.data_len();
            let (segment, tail) = tail.split_at(len + padding(len));
            let (digest, tail) = tail.split_at(if len > 0 { framing.data_digest_len() } else { 0 });
            assert!(digest.is_empty() || digest == crc32c(segment));
            let (ahs, data) = (ahs.to_vec(), segment[..len].to_vec());
            pdus.push(Sent { bhs: *bhs, ahs, data });
            rest = tail;
        }
        assert!(rest.is_empty());
        pdus
    }

    fn events(&mut self) -> Vec<Event<Vec<u8>, Vec<u8>>> {
        core::mem::take(&mut self.events)
    }

    /// The only event, which ends the connection.
    fn failure(&mut self) -> Error {
        assert!(self.connection.is_over());
        match self.events().pop() {
            Some(Event::Failed(error)) => error,
            other => panic!("no failure but {other:?}"),
        }
    }

    fn submit(&mut self, data: Data<Vec<u8>, Vec<u8>>) -> Tag {
        self.submit_to(0, data)
    }

    fn submit_to(&mut self, lun: u64, data: Data<Vec<u8>, Vec<u8>>) -> Tag {
        let command = Command {
            token: 77,
            lun,
            cdb: &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0],
            attribute: TaskAttribute::Simple,
            immediate: false,
            data,
        };
        self.connection.submit(command, &mut self.sent).expect("accepted")
    }
}

fn options() -> Options {
    Options::new("iqn.2026-11.local.lunet:initiator", Some(TARGET))
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}
