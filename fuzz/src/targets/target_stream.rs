//! Any stream at the target's end of a connection: from the first byte on, after a login, or within
//! an authentication.
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::{Input, Piece, cut, piece};
use lunet_iscsi::chap::{Account, Algorithm, Algorithms, Secret, binary};
use lunet_iscsi::digest::Crc32c;
use lunet_iscsi::pdu::{BHS_LEN, BasicHeader, LoginRequest, NopIn, TmfResponse, U24, Wire};
use lunet_iscsi::target::options::MAX_IMMEDIATE;
use lunet_iscsi::target::{
    Command, Connection, Credentials, Cx, Event, LoginIdentity, LoginRefusal, Options, Payload,
    Response, SendTargets, Site, Tag, TargetInfo, Transmit, Wanted,
};

const NAMES: &[u8] = b"InitiatorName=iqn.2026-11.local.lunet:i\0\
    TargetName=iqn.2026-11.local.lunet:t\0SessionType=Normal\0";
/// Opcodes of an initiator, the frequent ones twice, and one that it never sends.
const OPCODES: &[u8] =
    &[0x01, 0x01, 0x05, 0x05, 0x00, 0x02, 0x04, 0x06, 0x10, 0x03, 0x1f, 0x01, 0x05, 0x04];
/// Every byte of the target's challenges, and their identifier.
const CHALLENGE: u8 = 0x5c;
const FIRST_BURST: u32 = 4096;
/// What holds if nobody says anything (RFC 7143 section 13.14).
const DEFAULT_FIRST_BURST: u32 = 65_536;
const QUEUE_DEPTH: u32 = 4;

/// A buffer whose length counts while it lives.
struct Counted {
    bytes: Vec<u8>,
    live: Rc<Cell<usize>>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.live.set(self.live.get() - self.bytes.len());
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Counted {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

#[derive(Default)]
struct Place {
    live: Rc<Cell<usize>>,
    credentials: Option<Arc<Credentials>>,
    /// FirstBurstLength of the login.
    first_burst: u32,
}

impl Place {
    fn buffer(&self, len: usize) -> Counted {
        self.live.set(self.live.get() + len);
        Counted { bytes: vec![0; len], live: self.live.clone() }
    }
}

impl Site for Place {
    type Buf = Counted;

    fn alloc(&mut self, len: usize) -> Option<Counted> {
        assert!(len > 0 && len <= self.first_burst as usize);
        // What a connection holds unasked is bounded by the window and the immediate commands.
        let most = (QUEUE_DEPTH + MAX_IMMEDIATE + 1) as usize * self.first_burst as usize;
        assert!(self.live.get() + len <= most, "too much memory");
        Some(self.buffer(len))
    }

    fn find_target(&self, identity: &LoginIdentity) -> Result<TargetInfo, LoginRefusal> {
        assert!(identity.target_name.is_some());
        Ok(TargetInfo { portal_group_tag: 1, alias: None })
    }

    fn credentials(&self, _: &LoginIdentity) -> Result<Option<Arc<Credentials>>, LoginRefusal> {
        Ok(self.credentials.clone())
    }

    fn random(&self, bytes: &mut [u8]) -> bool {
        bytes.fill(CHALLENGE);
        true
    }

    fn send_targets(&self, _: SendTargets<'_>, each: &mut dyn FnMut(&str, &str, u16)) {
        each("iqn.2026-11.local.lunet:t", "192.0.2.1:3260", 1);
        each("iqn.2026-11.local.lunet:t", "[2001:db8::1]:3260", 1);
    }
}

struct Zeroes(usize);

impl Payload for Zeroes {
    fn len(&self) -> usize {
        self.0
    }

    fn crc32c(&self, range: Range<usize>, crc: &mut Crc32c) {
        crc.update(&vec![0; range.len()]);
    }
}

/// Reads what the target sends: whole PDUs of at most the declared length.
#[derive(Default)]
struct Reader {
    bytes: Vec<u8>,
    exp_cmd_sn: u32,
}

impl Reader {
    /// Takes what has come. Digests are off unless `digests`: then lengths cannot be followed.
    fn drain(&mut self, digests: bool) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut rest = bytes.as_slice();
        while let Some(bhs) = rest.first_chunk::<BHS_LEN>() {
            self.exp_cmd_sn = NopIn::from_bhs(bhs).exp_cmd_sn.get();
            let header = BasicHeader::from_bhs(bhs);
            assert!(header.opcode().is_some_and(|opcode| opcode.code() >= 0x20));
            if digests {
                return;
            }
            assert_eq!(header.ahs_words, 0);
            rest = &rest[BHS_LEN + header.data_len().next_multiple_of(4)..];
        }
        assert!(rest.is_empty(), "half a PDU was sent");
    }
}

impl Transmit for Reader {
    type Payload = Zeroes;

    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn payload(&mut self, _: Zeroes) -> usize {
        0
    }

    fn slice(&mut self, _: usize, range: Range<usize>) {
        self.bytes.resize(self.bytes.len() + range.len(), 0);
    }
}

/// The layer above: what it does with a command, the command says.
struct Upper {
    target: Connection<Counted>,
    place: Place,
    tx: Reader,
    now: Duration,
    held: Vec<Tag>,
    closed: bool,
}

impl Upper {
    fn receive(&mut self, bytes: &[u8], lend: bool) {
        let mut events = Vec::new();
        let mut rest = bytes;
        let Self { target, place, tx, now, .. } = self;
        let mut cx = Cx { now: *now, site: place, tx, events: &mut events };
        if lend {
            if let Some(lent) = target.take_rx_target() {
                assert!(!lent.range.is_empty() && lent.range.end <= lent.buf.bytes.len());
                let n = lent.range.len().min(rest.len());
                rest = &rest[n..];
                target.rx_payload(lent, n, &mut cx);
            }
        }
        target.rx_bytes(rest, &mut cx);
        for event in events {
            self.handle(event);
        }
        if self.target.logs_out() {
            let mut events = Vec::new();
            let Self { target, place, tx, now, .. } = self;
            target.log_out(&mut Cx { now: *now, site: place, tx, events: &mut events });
            events.into_iter().for_each(|event| self.handle(event));
        }
    }

    fn handle(&mut self, event: Event<Counted>) {
        assert!(!self.closed, "an event after the end");
        let Self { target, tx, held, .. } = self;
        match event {
            Event::LoginFinished(_) => target.admit(1, tx),
            Event::Command(command) if !target.is_pending(command.tag) => {}
            Event::Command(command) => self.command(&command),
            Event::Data { tag, len, .. } => {
                assert!(len > 0);
                target.respond(tag, Response::good(Wanted { read: 0, write: len }), tx);
            }
            Event::TransferFailed { tag, error } => {
                target.respond(tag, Response::transfer_error(error), tx);
            }
            Event::TaskManagement { tag, referenced, .. } => {
                match referenced {
                    Some(task) => target.abort(task),
                    None => {
                        for task in target.older_than(tag, |_| true) {
                            target.abort(task);
                            held.retain(|one| *one != task);
                        }
                    }
                }
                target.respond_tmf(tag, TmfResponse::Complete, tx);
            }
            Event::Answered { .. } => {}
            Event::Close(_) => self.closed = true,
        }
    }

    fn command(&mut self, command: &Command<Counted>) {
        let Self { target, tx, held, .. } = self;
        let Command { tag, cdb, expects_read, expects_write, .. } = *command;
        let came = command.data.as_ref().map_or(0, |(buf, len)| {
            assert!(*len > 0 && *len <= buf.bytes.len());
            *len as u32
        });
        assert!(came <= expects_write);
        let wanted = Wanted { read: u32::from(cdb[1]) * 16, write: u32::from(cdb[2]) * 16 };
        match cdb[0] & 3 {
            0 => target.respond(tag, Response::good(wanted), tx),
            1 => {
                let len = (u32::from(cdb[3]) * 64).min(expects_read) as usize;
                target.send_data(tag, Zeroes(len), 0..len / 3, None, tx);
                target.send_data(tag, Zeroes(len), len / 3..len, Some(wanted), tx);
            }
            2 if came < expects_write => {
                let len = (expects_write - came).min(16 << 10);
                // Not from the site: this is what the layer above decides to spend.
                let buf = Counted {
                    bytes: vec![0; len as usize],
                    live: Rc::new(Cell::new(len as usize)),
                };
                target.solicit(tag, came, len, buf, tx);
            }
            _ => held.push(tag),
        }
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        let mut events = Vec::new();
        let Self { target, place, tx, now, .. } = self;
        target.handle_timeout(&mut Cx { now: *now, site: place, tx, events: &mut events });
        events.into_iter().for_each(|event| self.handle(event));
    }
}

/// A login in one step.
fn login(keys: &[u8]) -> Vec<u8> {
    request(0x87, &[NAMES, keys].concat())
}

/// A Login Request.
fn request(flags: u8, text: &[u8]) -> Vec<u8> {
    let pdu = LoginRequest {
        opcode: 0x43,
        flags,
        data_len: U24::new(text.len() as u32),
        cmd_sn: 1.into(),
        ..Default::default()
    };
    let mut bytes = [&pdu.as_bhs()[..], text].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// What the target asks for.
fn credentials() -> Credentials {
    let account = |name: &str, secret: &[u8]| Account {
        name: name.into(),
        secret: Secret::new(secret.to_vec()),
    };
    Credentials {
        algorithms: Algorithms::ALL,
        accounts: vec![account("alice", b"the secret of alice"), account("b", b"another secret")],
        mutual: Some(account("storage", b"the secret of the target")),
    }
}

/// An authentication whose steps the input chooses: the right one, one that is out of place, or the
/// input's own bytes. True if every step that counts was the right one.
fn authenticate(upper: &mut Upper, input: &mut Input<'_>) -> bool {
    let choice = input.byte();
    let algorithm = Algorithm::ALL[usize::from(choice & 3)];
    let secret = &credentials().accounts[0].secret;
    let challenge = vec![CHALLENGE; algorithm.digest_len()];
    let response = secret.respond(algorithm, CHALLENGE, &challenge);
    let response = binary(response.bytes());
    let right = [
        [NAMES, b"AuthMethod=CHAP,None\0"].concat(),
        format!("CHAP_A={}\0", algorithm.code()).into_bytes(),
        format!("CHAP_N=alice\0CHAP_R={response}\0CHAP_I=1\0CHAP_C=0x0102\0").into_bytes(),
    ];
    let mut honest = true;
    for (number, text) in right.iter().enumerate() {
        if upper.closed {
            return false;
        }
        let step = input.byte();
        let text = match step & 7 {
            0..=4 => text.clone(),
            5 => right[usize::from(step >> 3) % 3].clone(),
            6 => {
                let mut text = text.clone();
                let at = usize::from(input.short()) % text.len();
                text[at] = input.byte();
                text
            }
            _ => {
                let len = usize::from(input.byte());
                input.take(len).to_vec()
            }
        };
        honest &= text == right[number];
        upper.receive(
            &request(if number == 2 { 0x81 } else { step & 0x80 | step >> 7 }, &text),
            false,
        );
        upper.tx.drain(false);
    }
    honest
}

/// One input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (kind, seed) = (input.byte(), input.byte());
    let options = Options {
        max_recv_data_segment_length: 2048,
        max_burst_length: 8192,
        first_burst_length: FIRST_BURST,
        queue_depth: QUEUE_DEPTH,
        ..Options::default()
    };
    let now = Duration::from_secs(1);
    let mut upper = Upper {
        target: Connection::new(options, now),
        // Whoever logs in by the input's own bytes may leave the key out.
        place: Place {
            first_burst: if kind & 1 != 0 { FIRST_BURST } else { DEFAULT_FIRST_BURST },
            ..Place::default()
        },
        tx: Reader::default(),
        now,
        held: Vec::new(),
        closed: false,
    };
    if kind & 0x30 == 0x30 {
        upper.place.credentials = Some(Arc::new(credentials()));
        let honest = authenticate(&mut upper, &mut input);
        assert!(!honest || !upper.closed, "the right secret was refused");
        if honest && kind & 1 != 0 {
            upper.receive(&request(0x87, b"InitialR2T=No\0FirstBurstLength=4096\0"), false);
            assert!(upper.target.is_full_feature());
            upper.tx.drain(false);
        } else {
            upper.place.first_burst = DEFAULT_FIRST_BURST;
        }
    } else if kind & 1 != 0 {
        let keys: &[u8] = match kind >> 1 & 3 {
            0 => b"InitialR2T=No\0ImmediateData=Yes\0FirstBurstLength=4096\0",
            1 => b"InitialR2T=Yes\0ImmediateData=Yes\0MaxOutstandingR2T=8\0",
            2 => b"InitialR2T=No\0MaxBurstLength=512\0MaxRecvDataSegmentLength=512\0",
            _ => b"",
        };
        upper.receive(&login(keys), false);
        assert!(upper.target.is_full_feature());
        upper.tx.drain(false);
    }
    while !input.is_empty() && !upper.closed {
        let bytes = match kind & 0x80 {
            0 => match piece(&mut input, OPCODES) {
                Piece::Raw(bytes) => bytes,
                Piece::Pdu { mut bhs, data, in_order } => {
                    if in_order && bhs[0] & 0x3f != 0x05 {
                        bhs[24..28].copy_from_slice(&upper.tx.exp_cmd_sn.to_be_bytes());
                    }
                    [&bhs[..], &data].concat()
                }
            },
            _ => input.take(usize::MAX).to_vec(),
        };
        cut(&bytes, seed, |piece| upper.receive(piece, seed & 2 != 0));
        let digests =
            upper.target.negotiated().header_digest || upper.target.negotiated().data_digest;
        upper.tx.drain(digests);
        if kind & 0x40 != 0 {
            upper.wait(Duration::from_secs(7));
        }
    }
    assert!(upper.target.outstanding() <= (QUEUE_DEPTH + MAX_IMMEDIATE) as usize * 2);
    drop(upper.target);
    assert_eq!(upper.place.live.get(), 0, "a buffer is lost");
}
