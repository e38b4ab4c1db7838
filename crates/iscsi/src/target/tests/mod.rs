//! A connection in a test: a site, a wire, and the initiator's PDUs made by hand.

mod authentication;
mod control;
mod data_in;
mod data_out;
mod login;
mod order;
mod rdma;
mod split;
mod stall;
mod text;
mod tmf;

use super::*;
use crate::digest::{Crc32c, crc32c};
use crate::iser::Remote;
use crate::pdu::{
    self, BHS_LEN, BasicHeader, Bhs, LoginRequest, LoginStatus, Opcode, ScsiCommand, U16, U24, U32,
    U64, Wire,
};
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::Cell;
use core::ops::Range;
use core::time::Duration;

pub(super) const TARGET: &str = "iqn.2026-11.local.lunet:demo";
pub(super) const INITIATOR: &str = "iqn.1993-08.org.debian:01:abc";
pub(super) const LUN: u64 = 0x0001_0000_0000_0000;

/// Buffers while they last, one target, two portals.
pub(super) struct TestSite {
    pub(super) buffers: usize,
    pub(super) allocated: Vec<usize>,
    pub(super) credentials: Option<Arc<Credentials>>,
    /// How many random bytes are left.
    pub(super) random: Cell<usize>,
}

impl Site for TestSite {
    type Buf = Vec<u8>;

    fn alloc(&mut self, len: usize) -> Option<Vec<u8>> {
        self.allocated.push(len);
        self.buffers = self.buffers.checked_sub(1)?;
        Some(vec![0xee; len])
    }

    fn find_target(&self, identity: &LoginIdentity) -> Result<TargetInfo, LoginRefusal> {
        match identity.target_name.as_deref() {
            Some(TARGET) => Ok(TargetInfo { portal_group_tag: 7, alias: Some("demo".into()) }),
            Some("iqn.2026-11.local.lunet:moved") => Err(LoginRefusal {
                status: LoginStatus::MovedTemporarily,
                moved_to: Some("192.0.2.9:3260,1".into()),
            }),
            _ => Err(LoginStatus::NotFound.into()),
        }
    }

    fn credentials(
        &self,
        identity: &LoginIdentity,
    ) -> Result<Option<Arc<Credentials>>, LoginRefusal> {
        match identity.initiator_name.as_str() {
            "iqn.2026-11.local.lunet:busy" => Err(LoginStatus::ServiceUnavailable.into()),
            _ => Ok(self.credentials.clone()),
        }
    }

    fn random(&self, bytes: &mut [u8]) -> bool {
        let Some(left) = self.random.get().checked_sub(bytes.len()) else { return false };
        self.random.set(left);
        bytes.iter_mut().zip(left..).for_each(|(byte, n)| *byte = (n * 37) as u8);
        true
    }

    fn send_targets(&self, which: SendTargets<'_>, each: &mut dyn FnMut(&str, &str, u16)) {
        if matches!(which, SendTargets::All | SendTargets::Named(TARGET)) {
            each(TARGET, "192.0.2.1:3260", 1);
            each(TARGET, "[2001:db8::1]:3260", 2);
        }
        if which == SendTargets::All {
            each("iqn.2026-11.local.lunet:other", "192.0.2.1:3260", 1);
        }
    }
}

#[derive(Clone)]
pub(super) struct TestPayload(pub(super) Vec<u8>);

impl Payload for TestPayload {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn crc32c(&self, range: Range<usize>, crc: &mut Crc32c) {
        crc.update(&self.0[range]);
    }
}

/// What was posted over RDMA.
#[derive(Debug, PartialEq, Eq)]
enum Effect {
    Send(Vec<u8>, Option<u32>),
    Write(Vec<u8>, Remote),
}

#[derive(Default)]
pub(super) struct Wires {
    sent: Vec<u8>,
    effects: Vec<Effect>,
    payloads: Vec<TestPayload>,
}

impl Transmit for Wires {
    type Payload = TestPayload;

    fn bytes(&mut self, bytes: &[u8]) {
        self.sent.extend_from_slice(bytes);
    }

    fn payload(&mut self, payload: TestPayload) -> usize {
        self.payloads.push(payload);
        self.payloads.len() - 1
    }

    fn slice(&mut self, id: usize, range: Range<usize>) {
        self.sent.extend_from_slice(&self.payloads[id].0[range]);
    }

    fn end_send(&mut self, invalidate: Option<u32>) {
        self.effects.push(Effect::Send(core::mem::take(&mut self.sent), invalidate));
    }

    fn write(&mut self, id: usize, range: Range<usize>, to: Remote) {
        assert!(self.sent.is_empty(), "an RDMA Write in the middle of a Send");
        self.effects.push(Effect::Write(self.payloads[id].0[range].to_vec(), to));
    }
}

/// A PDU that the target sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Got {
    pub(super) bhs: Bhs,
    pub(super) data: Vec<u8>,
}

impl Got {
    pub(super) fn opcode(&self) -> Opcode {
        BasicHeader::from_bhs(&self.bhs).opcode().unwrap()
    }

    pub(super) fn as_pdu<P: Wire>(&self) -> &P {
        assert_eq!(self.opcode(), P::OPCODE, "{self:?}");
        P::from_bhs(&self.bhs)
    }

    pub(super) fn text(&self) -> Vec<(String, String)> {
        let pairs = crate::text::pairs(&self.data);
        pairs.map(|pair| pair.unwrap()).map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }
}

/// The connection under test.
pub(super) struct Bench {
    pub(super) connection: Connection<Vec<u8>>,
    pub(super) site: TestSite,
    pub(super) now: Duration,
    pub(super) digests: (bool, bool),
    wires: Wires,
    pub(super) events: Vec<Event<Vec<u8>>>,
}

impl Bench {
    pub(super) fn new(options: Options) -> Self {
        Self {
            connection: Connection::new(options, Duration::ZERO),
            site: TestSite {
                buffers: 1000,
                allocated: Vec::new(),
                credentials: None,
                random: Cell::new(1000),
            },
            now: Duration::ZERO,
            digests: (false, false),
            wires: Wires::default(),
            events: Vec::new(),
        }
    }

    /// A connection in the full feature phase; CmdSN and ExpStatSN begin at 1.
    pub(super) fn ready(options: Options, keys: &[&str]) -> Self {
        let mut bench = Self::new(options);
        let mut all = vec!["SessionType=Normal", "InitialR2T=No", "MaxRecvDataSegmentLength=65536"];
        let names =
            [alloc::format!("InitiatorName={INITIATOR}"), alloc::format!("TargetName={TARGET}")];
        all.extend(names.iter().map(String::as_str));
        all.retain(|pair| !keys.iter().any(|key| key.split('=').next() == pair.split('=').next()));
        all.extend_from_slice(keys);
        let answer = bench.login(0x87, &all);
        assert!(answer.is_empty(), "{answer:?}");
        assert!(matches!(bench.events.pop(), Some(Event::LoginFinished(_))));
        bench.connection.admit(9, &mut bench.wires);
        let got = bench.got();
        assert_eq!(got[0].as_pdu::<pdu::LoginResponse>().status.get(), 0);
        let n = bench.connection.negotiated();
        bench.digests = (n.header_digest, n.data_digest);
        bench
    }

    pub(super) fn login_request(flags: u8) -> LoginRequest {
        LoginRequest {
            opcode: 0x43,
            flags,
            isid: [0x80, 1, 2, 3, 4, 5],
            itt: U32::new(0x10),
            cid: U16::new(3),
            cmd_sn: U32::new(1),
            exp_stat_sn: U32::new(1),
            ..Default::default()
        }
    }

    /// Sends a Login Request with these pairs; gives what the target answered.
    pub(super) fn login(&mut self, flags: u8, keys: &[&str]) -> Vec<Got> {
        let text = text_of(keys);
        self.feed(Self::login_request(flags), &text);
        self.got()
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        let Self { connection, site, now, wires, events, .. } = self;
        connection.rx_bytes(bytes, &mut Cx { now: *now, site, tx: wires, events });
    }

    /// Lets a Logout that has waited go on.
    pub(super) fn log_out(&mut self) {
        let Self { connection, site, now, wires, events, .. } = self;
        connection.log_out(&mut Cx { now: *now, site, tx: wires, events });
    }

    /// The bytes of a PDU as the initiator sends it.
    pub(super) fn encode(&self, pdu: &impl Wire, ahs: &[u8], data: &[u8]) -> Vec<u8> {
        let mut bytes = pdu.as_bhs().to_vec();
        bytes[4] = (ahs.len() / 4) as u8;
        bytes[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        bytes.extend_from_slice(ahs);
        if self.digests.0 {
            let crc = crc32c(&bytes);
            bytes.extend_from_slice(&crc);
        }
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len() + pdu::padding(data.len()), 0);
        if self.digests.1 && !data.is_empty() {
            let mut crc = Crc32c::new();
            crc.update(data);
            crc.pad(data.len());
            bytes.extend_from_slice(&crc.finish());
        }
        bytes
    }

    pub(super) fn feed(&mut self, pdu: impl Wire, data: &[u8]) {
        let bytes = self.encode(&pdu, &[], data);
        self.raw(&bytes);
    }

    /// What the target sent since the last call.
    pub(super) fn got(&mut self) -> Vec<Got> {
        let sent = core::mem::take(&mut self.wires.sent);
        let mut bytes = &sent[..];
        let mut list = Vec::new();
        while !bytes.is_empty() {
            let bhs: Bhs = bytes[..BHS_LEN].try_into().unwrap();
            bytes = &bytes[BHS_LEN..];
            if self.digests.0 {
                assert_eq!(bytes[..4], crc32c(&bhs), "header digest");
                bytes = &bytes[4..];
            }
            let len = BasicHeader::from_bhs(&bhs).data_len();
            let padded = len + pdu::padding(len);
            let data = bytes[..len].to_vec();
            if self.digests.1 && len > 0 {
                assert_eq!(bytes[padded..padded + 4], crc32c(&bytes[..padded]), "data digest");
                bytes = &bytes[4..];
            }
            bytes = &bytes[padded..];
            list.push(Got { bhs, data });
        }
        list
    }

    /// The one PDU that the target sent.
    pub(super) fn one(&mut self) -> Got {
        let mut got = self.got();
        assert_eq!(got.len(), 1, "{got:?}");
        got.remove(0)
    }

    pub(super) fn events(&mut self) -> Vec<Event<Vec<u8>>> {
        core::mem::take(&mut self.events)
    }

    /// The command that was handed up last.
    pub(super) fn command(&mut self) -> Command<Vec<u8>> {
        match self.events.pop() {
            Some(Event::Command(command)) => command,
            other => panic!("no command: {other:?}"),
        }
    }

    /// The reason of the close, which must be the last event.
    pub(super) fn closed(&mut self) -> CloseReason {
        assert!(self.connection.is_closed());
        match self.events.pop() {
            Some(Event::Close(reason)) => reason,
            other => panic!("not closed: {other:?}"),
        }
    }

    pub(super) fn timeout(&mut self) {
        let Self { connection, site, now, wires, events, .. } = self;
        connection.handle_timeout(&mut Cx { now: *now, site, tx: wires, events });
    }

    pub(super) fn with<R>(
        &mut self,
        f: impl FnOnce(&mut Connection<Vec<u8>>, &mut Wires) -> R,
    ) -> R {
        f(&mut self.connection, &mut self.wires)
    }

    pub(super) fn good(&mut self, tag: Tag) {
        self.with(|c, tx| c.respond(tag, Response::good(Wanted::default()), tx));
    }
}

pub(super) fn text_of(keys: &[&str]) -> Vec<u8> {
    keys.iter().flat_map(|pair| pair.bytes().chain([0])).collect()
}

/// A READ of `len` bytes.
pub(super) fn read(itt: u32, cmd_sn: u32, len: u32) -> ScsiCommand {
    scsi(pdu::READ, itt, cmd_sn, len)
}

/// A WRITE of `len` bytes; F is set.
pub(super) fn write(itt: u32, cmd_sn: u32, len: u32) -> ScsiCommand {
    scsi(pdu::WRITE, itt, cmd_sn, len)
}

pub(super) fn scsi(direction: u8, itt: u32, cmd_sn: u32, len: u32) -> ScsiCommand {
    ScsiCommand {
        flags: pdu::FINAL | direction | 1,
        lun: U64::new(LUN),
        itt: U32::new(itt),
        expected_len: U32::new(len),
        cmd_sn: U32::new(cmd_sn),
        exp_stat_sn: U32::new(1),
        cdb: [0x2a; 16],
        ..Default::default()
    }
}

/// A Data-Out; F is set.
pub(super) fn data_out(itt: u32, ttt: u32, data_sn: u32, offset: u32) -> pdu::DataOut {
    pdu::DataOut {
        flags: pdu::FINAL,
        lun: U64::new(LUN),
        itt: U32::new(itt),
        ttt: U32::new(ttt),
        data_sn: U32::new(data_sn),
        offset: U32::new(offset),
        data_len: U24::new(0),
        ..Default::default()
    }
}

pub(super) fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}
