//! Any stream at the controller's end of an NVMe/TCP connection: from the first byte on, or after a
//! Connect.
use std::ops::Range;
use std::time::Duration;

use crate::{Input, cut};
use lunet_nvme::command::{Admin, Completion, Io, Sqe};
use lunet_nvme::controller::{Command, Connection, Cx, Event, Options, Site, Tag};
use lunet_nvme::digest::Crc32c;
use lunet_nvme::fabrics::{Authentication, Connect, Connected, Fabrics};
use lunet_nvme::pdu::{CapsuleCmd, Common, Data, Framing, Header, IcReq, LAST_PDU, Type, U16, U32};
use lunet_nvme::transmit::{Payload, Transmit};
use zerocopy::{FromBytes, IntoBytes};

/// Entries of the queue.
const ENTRIES: usize = 8;
/// Most data of a capsule.
const CAPSULE: u32 = 8192;

struct Zeroes;

impl Payload for Zeroes {
    fn crc32c(&self, range: Range<usize>, crc: &mut Crc32c) {
        crc.update(&vec![0; range.len()]);
    }
}

struct Place;

impl Site for Place {
    type Buf = Vec<u8>;

    fn alloc(&mut self, len: usize) -> Option<Vec<u8>> {
        assert!(len > 0 && len <= CAPSULE as usize);
        (len != 77).then(|| vec![0; len])
    }
}

/// Reads what the controller sends: whole PDUs of its own.
#[derive(Default)]
struct Reader {
    bytes: Vec<u8>,
    /// The last R2T: CCCID, TTAG, offset and length.
    asked: (u16, u16, u32, u32),
}

impl Reader {
    fn drain(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut rest = bytes.as_slice();
        while let Ok((common, _)) = Common::ref_from_prefix(rest) {
            let kind = Type::from_code(common.kind).expect("a type");
            assert!(matches!(
                kind,
                Type::IcResp | Type::C2hTermReq | Type::CapsuleResp | Type::C2hData | Type::R2t
            ));
            if let (Type::R2t, Some(r2t)) = (kind, lunet_nvme::pdu::R2t::view(rest)) {
                assert!(r2t.r2tl.get() > 0);
                self.asked = (r2t.cccid.get(), r2t.ttag.get(), r2t.r2to.get(), r2t.r2tl.get());
            }
            rest = &rest[common.plen.get() as usize..];
        }
        assert!(rest.is_empty(), "half a PDU was sent");
    }
}

impl Transmit for Reader {
    type Payload = Zeroes;

    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn payload(&mut self, _: Zeroes, range: Range<usize>) {
        self.bytes.resize(self.bytes.len() + range.len(), 0);
    }
}

/// The layer above: what it does with a command, the command says.
struct Upper {
    end: Connection<Vec<u8>>,
    tx: Reader,
    held: Vec<Tag>,
    closed: bool,
}

impl Upper {
    fn receive(&mut self, bytes: &[u8], lend: bool) {
        let mut events = Vec::new();
        let mut rest = bytes;
        let Self { end, tx, .. } = self;
        let mut cx = Cx { now: Duration::from_secs(1), site: &mut Place, tx, events: &mut events };
        if lend {
            if let Some(lent) = end.take_rx_target() {
                assert!(!lent.range.is_empty() && lent.range.end <= lent.buf.len());
                let n = lent.range.len().min(rest.len());
                rest = &rest[n..];
                end.rx_payload(lent, n, &mut cx);
            }
        }
        loop {
            rest = &rest[end.rx_bytes(rest, &mut cx)..];
            if !end.is_starved() {
                break;
            }
            // For some lengths there is never memory.
            assert!(!end.feed(cx.site));
            end.refuse_starved();
        }
        for event in events {
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event<Vec<u8>>) {
        assert!(!self.closed, "an event after the end");
        let Self { end, tx, .. } = self;
        match event {
            Event::Connect(connect) => {
                let authentication = match connect.host_id[0] {
                    1 => Authentication::Required,
                    _ => Authentication::None,
                };
                end.accept(Connected { cntlid: 1, authentication }, tx);
            }
            Event::Command(command) => self.command(&command),
            Event::Data { tag, offset, len, buf } => {
                assert!(len > 0 && buf.len() == len as usize && offset == 0);
                end.complete(tag, Completion::with(u64::from(len)), tx);
            }
            Event::TransferFailed { tag } => {
                end.complete(tag, lunet_nvme::status::Status::TRANSPORT.into(), tx);
            }
            Event::Close(_) => self.closed = true,
        }
    }

    fn command(&mut self, command: &Command<Vec<u8>>) {
        let Self { end, tx, held, .. } = self;
        let Command { tag, sqe, expects_read, expects_write, .. } = *command;
        let _ = (Io::decode(&sqe), Admin::decode(&sqe), Fabrics::decode(&sqe));
        let came = command.data.as_ref().map_or(0, |(buf, range)| {
            assert!(!range.is_empty() && range.end <= buf.len());
            range.len() as u32
        });
        assert!(came == 0 || came == expects_write);
        match sqe.cdw(5) & 3 {
            0 => end.complete(tag, Completion::SUCCESS, tx),
            1 => {
                let len = expects_read.min(16 << 10) as usize;
                end.send_data(tag, Zeroes, 0..len / 3, None, tx);
                end.send_data(tag, Zeroes, len / 3..len, Some(Completion::SUCCESS), tx);
            }
            2 if came < expects_write => {
                let len = expects_write.min(16 << 10);
                end.solicit(tag, 0, len, vec![0; len as usize], tx);
                if sqe.cdw(5) & 4 != 0 {
                    end.complete(tag, Completion::with(1), tx);
                }
            }
            _ => held.push(tag),
        }
    }
}

/// A PDU without digests.
fn pdu(kind: Type, flags: u8, mut header: impl Header, data: &[u8]) -> Vec<u8> {
    Framing::default().seal(&mut header, kind, flags, data.len() as u32);
    [header.as_bytes(), data].concat()
}

/// The next PDU of the host: mostly one that is well formed.
fn piece(input: &mut Input<'_>, asked: (u16, u16, u32, u32)) -> Vec<u8> {
    let kind = input.byte();
    match kind & 7 {
        0 => {
            let n = usize::from(input.byte());
            input.take(n).to_vec()
        }
        1 | 2 => {
            let len = asked.3.min(u32::from(input.short()));
            let header = Data {
                cccid: U16::new(asked.0),
                ttag: U16::new(asked.1),
                datao: U32::new(asked.2),
                datal: U32::new(len),
                ..Data::default()
            };
            let flags = if kind & 8 == 0 { LAST_PDU } else { 0 };
            pdu(Type::H2cData, flags, header, &vec![kind; len as usize])
        }
        _ => {
            let mut bytes = [0; 64];
            let given = input.take(1 + usize::from(kind >> 3) * 2);
            bytes[..given.len()].copy_from_slice(given);
            let mut sqe = Sqe::read_from_bytes(&bytes).expect("64 bytes");
            sqe.flags |= 0x40;
            let len = u32::from(input.short() & 0x0fff);
            sqe.sgl = match kind & 8 {
                0 => lunet_nvme::command::Sgl::in_capsule(len),
                _ => lunet_nvme::command::Sgl::transport(len * 16),
            };
            sqe.set_cdw(5, u32::from(input.byte()));
            let mut capsule = CapsuleCmd::default();
            capsule.sqe.copy_from_slice(sqe.as_bytes());
            let len = if kind & 8 == 0 { len as usize } else { 0 };
            pdu(Type::CapsuleCmd, 0, capsule, &vec![kind; len])
        }
    }
}

/// One input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (kind, seed) = (input.byte(), input.byte());
    let options = Options { capsule_data: CAPSULE, max_h2c_data: 4096, ..Options::default() };
    let mut upper = Upper {
        end: Connection::new(options, Duration::ZERO),
        tx: Reader::default(),
        held: Vec::new(),
        closed: false,
    };
    if kind & 1 != 0 {
        let connect = Connect {
            qid: 1,
            sqsize: ENTRIES as u16 - 1,
            no_sq_flow: kind & 2 != 0,
            kato: Duration::ZERO,
            host_id: [kind >> 2 & 1; 16],
            cntlid: 1,
            subnqn: "s".into(),
            hostnqn: "h".into(),
            through: None,
        };
        let (sqe, data) = connect.encode();
        let mut capsule = CapsuleCmd::default();
        capsule.sqe.copy_from_slice(sqe.as_bytes());
        let request = IcReq { maxr2t: U32::new(2), ..IcReq::default() };
        upper.receive(&pdu(Type::IcReq, 0, request, &[]), false);
        upper.receive(&pdu(Type::CapsuleCmd, 0, capsule, data.as_bytes()), false);
        upper.tx.drain();
        assert!(!upper.closed);
    }
    while !input.is_empty() && !upper.closed {
        let bytes = match kind & 0x80 {
            0 => piece(&mut input, upper.tx.asked),
            _ => input.take(usize::MAX).to_vec(),
        };
        cut(&bytes, seed, |piece| upper.receive(piece, seed & 2 != 0));
        upper.tx.drain();
        assert!(upper.end.outstanding() <= ENTRIES);
    }
}
