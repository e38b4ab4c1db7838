//! Any stream at the host's end of an NVMe/TCP connection: from the first byte on, or after a
//! Connect; and any bytes as what a controller says of itself.
use std::ops::Range;
use std::time::Duration;

use crate::{Input, cut};
use lunet_nvme::command::{Cqe, Io, Range as Blocks};
use lunet_nvme::digest::Crc32c;
use lunet_nvme::fabrics::Connect;
use lunet_nvme::host::{Command, Connection, Cx, Data, Event, Options};
use lunet_nvme::identify::{Identifiers, namespaces_of};
use lunet_nvme::log::{ana_groups, discovery_entries};
use lunet_nvme::pdu::{self, CapsuleResp, Framing, Header, IcResp, Type, U16, U32};
use lunet_nvme::reservation::Report;
use lunet_nvme::transmit::{Payload, Transmit};
use zerocopy::IntoBytes;

#[derive(Clone, Debug)]
struct Zeroes;

impl Payload for Zeroes {
    fn crc32c(&self, range: Range<usize>, crc: &mut Crc32c) {
        crc.update(&vec![0; range.len()]);
    }
}

/// Counts what is sent.
#[derive(Debug, Default)]
struct Counter(usize);

impl Transmit for Counter {
    type Payload = Zeroes;

    fn bytes(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }

    fn payload(&mut self, _: Zeroes, range: Range<usize>) {
        assert!(range.end <= 65_536);
        self.0 += range.len();
    }
}

fn sealed(kind: Type, flags: u8, mut header: impl Header, data: &[u8]) -> Vec<u8> {
    Framing::default().seal(&mut header, kind, flags, data.len() as u32);
    [header.as_bytes(), data].concat()
}

fn response(cid: u16, result: u64, status: u16) -> Vec<u8> {
    let cqe = Cqe {
        result: result.into(),
        cid: U16::new(cid),
        status: U16::new(status),
        ..Cqe::default()
    };
    let mut capsule = CapsuleResp::default();
    capsule.cqe.copy_from_slice(cqe.as_bytes());
    sealed(Type::CapsuleResp, 0, capsule, &[])
}

/// The next PDU of the controller: mostly for a command that is under way.
fn piece(input: &mut Input<'_>, cids: &[u16]) -> Vec<u8> {
    let kind = input.byte();
    let cid = cids.get(usize::from(kind >> 4)).copied().unwrap_or(0);
    match kind & 3 {
        0 => {
            let n = usize::from(input.byte());
            input.take(n).to_vec()
        }
        1 => response(cid, u64::from(input.byte()), u16::from(input.byte())),
        2 => {
            let r2t = pdu::R2t {
                cccid: U16::new(cid),
                r2to: U32::new(u32::from(input.short())),
                r2tl: U32::new(u32::from(input.short())),
                ..pdu::R2t::default()
            };
            sealed(Type::R2t, 0, r2t, &[])
        }
        _ => {
            let len = u32::from(input.short() & 0x0fff);
            let header = pdu::Data {
                cccid: U16::new(cid),
                datao: U32::new(u32::from(input.short())),
                datal: U32::new(len),
                ..pdu::Data::default()
            };
            sealed(Type::C2hData, kind & 0x0c, header, &vec![kind; len as usize])
        }
    }
}

/// One input.
pub fn run(data: &[u8]) {
    let _ = (Identifiers::decode(data), namespaces_of(data).count());
    let _ = (ana_groups(data), discovery_entries(data).is_some(), Report::decode(data));
    let mut input = Input(data);
    let (kind, seed) = (input.byte(), input.byte());
    let connect = Connect {
        qid: 1,
        sqsize: 7,
        no_sq_flow: true,
        kato: Duration::ZERO,
        host_id: [1; 16],
        cntlid: 1,
        subnqn: "s".into(),
        hostnqn: "h".into(),
        through: None,
    };
    let options = Options {
        connect,
        alignment: 0,
        header_digest: false,
        data_digest: false,
        max_r2t: 1,
        capsule_data: 512,
        connect_timeout: Duration::from_secs(1),
    };
    let (mut host, mut tx, mut events) = (Connection::new(options), Counter::default(), Vec::new());
    let now = Duration::from_secs(1);
    host.start(now, &mut tx);
    let mut cids = Vec::new();
    let mut under_way = 0;
    if kind & 1 != 0 {
        let accept = IcResp { maxh2cdata: U32::new(4096), ..IcResp::default() };
        let mut cx = Cx { now, tx: &mut tx, events: &mut events };
        host.rx_bytes(&sealed(Type::IcResp, 0, accept, &[]), &mut cx);
        // The first identifier: the first use of slot 0.
        host.rx_bytes(&response(1 << 12, 1, 0), &mut cx);
        assert!(host.is_ready());
        for blocks in 1..=8 {
            let range = Blocks { lba: 0, blocks };
            let (io, data) = match blocks & 1 {
                0 => (Io::Read { range, fua: false }, Data::Read(vec![0; blocks as usize * 512])),
                _ => (Io::Write { range, fua: false }, Data::Write(Zeroes, blocks * 512)),
            };
            let command = Command { token: 0, sqe: io.encode(1), data };
            cids.push(host.submit(command, &mut tx).expect("there is room").cid());
            under_way += 1;
        }
        events.clear();
    }
    while !input.is_empty() && !host.is_over() {
        let bytes = match kind & 0x80 {
            0 => piece(&mut input, &cids),
            _ => input.take(usize::MAX).to_vec(),
        };
        cut(&bytes, seed, |piece| {
            let mut rest = piece;
            let mut cx = Cx { now, tx: &mut tx, events: &mut events };
            if seed & 2 != 0 {
                if let Some(lent) = host.take_rx_target() {
                    assert!(!lent.range.is_empty() && lent.range.end <= lent.buf.len());
                    let n = lent.range.len().min(rest.len());
                    rest = &rest[n..];
                    host.rx_payload(lent, n, &mut cx);
                }
            }
            host.rx_bytes(rest, &mut cx);
        });
    }
    host.transport_closed(&mut events);
    let finished = events.iter().filter(|event| matches!(event, Event::Finished(_))).count();
    assert_eq!(finished, under_way, "each command ends once");
    assert!(host.is_over() && host.outstanding() == 0);
}
