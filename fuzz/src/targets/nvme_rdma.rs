//! Any Sends at the controller's end of a connection over RDMA, and any private data, with RDMA Reads that come back in
//! any order.
use std::ops::Range;
use std::time::Duration;

use crate::Input;
use lunet_nvme::command::{Admin, Completion, Cqe, Io, Sqe};
use lunet_nvme::controller::{
    Command, Connection, Cx, Event, Options, RdmaOptions, RdmaRead, Site, Tag,
};
use lunet_nvme::digest::Crc32c;
use lunet_nvme::fabrics::{Authentication, Connect, Connected, Fabrics};
use lunet_nvme::pdu::{ADMIN_CAPSULE_DATA, U16};
use lunet_nvme::rdma::{ConnectRequest, Rejection, Remote};
use lunet_nvme::status::Status;
use lunet_nvme::transmit::{Payload, Transmit};
use zerocopy::{FromBytes, IntoBytes};

/// Entries of the queue.
const ENTRIES: usize = 8;
/// Most data of a capsule.
const CAPSULE: u32 = 4096;

struct Zeroes;

impl Payload for Zeroes {
    fn crc32c(&self, _: Range<usize>, _: &mut Crc32c) {
        panic!("there are no digests over RDMA");
    }
}

struct Place;

impl Site for Place {
    type Buf = Vec<u8>;

    fn alloc(&mut self, len: usize) -> Option<Vec<u8>> {
        assert!(len > 0 && len <= ADMIN_CAPSULE_DATA as usize);
        Some(vec![0; len])
    }
}

/// Looks at what is sent: completions, and no key that no command has named.
#[derive(Default)]
struct Sends {
    bytes: Vec<u8>,
    /// Keys of commands, whether or not they ask for them to be taken back.
    keys: Vec<u32>,
    sent: usize,
}

impl Transmit for Sends {
    type Payload = Zeroes;

    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn payload(&mut self, _: Zeroes, _: Range<usize>) {
        panic!("data in a Send of the controller");
    }

    fn end_send(&mut self, invalidate: Option<u32>) {
        let bytes = std::mem::take(&mut self.bytes);
        Cqe::read_from_bytes(&bytes).expect("a completion, and nothing else");
        assert!(invalidate.is_none_or(|key| self.keys.contains(&key)));
        self.sent += 1;
    }

    fn write(&mut self, _: Zeroes, range: Range<usize>, to: Remote) {
        assert!(self.bytes.is_empty() && !range.is_empty());
        assert!(to.address.checked_add(range.len() as u64).is_some());
        assert!(self.keys.contains(&to.key));
    }
}

/// The layer above: what it does with a command, the command says.
struct Upper {
    end: Connection<Vec<u8>>,
    tx: Sends,
    held: Vec<Tag>,
    reads: Vec<RdmaRead<Vec<u8>>>,
    commands: usize,
    closed: bool,
}

impl Upper {
    fn with(&mut self, work: impl FnOnce(&mut Connection<Vec<u8>>, &mut Cx<'_, Place, Sends>)) {
        let mut events = Vec::new();
        let now = Duration::from_secs(1);
        let Self { end, tx, .. } = self;
        work(end, &mut Cx { now, site: &mut Place, tx, events: &mut events });
        for event in events {
            self.handle(event);
        }
        assert!(self.tx.bytes.is_empty(), "half a Send");
    }

    fn receive(&mut self, message: &[u8]) {
        if let Ok((sqe, _)) = Sqe::read_from_prefix(message) {
            let [.., key_low] = sqe.sgl.len.get().to_le_bytes();
            let [a, b, c] = sqe.sgl.rest;
            self.tx.keys.push(u32::from_le_bytes([key_low, a, b, c]));
            self.commands += 1;
        }
        self.with(|end, cx| end.rx_send(message.into(), cx));
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
            Event::Data { tag, len, buf, .. } => {
                assert!(len > 0 && buf.len() == len as usize);
                end.complete(tag, Completion::with(u64::from(len)), tx);
            }
            Event::TransferFailed { .. } => panic!("RDMA damages no data"),
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
        match sqe.cid.get() & 3 {
            0 => end.complete(tag, Status::SUCCESS.into(), tx),
            1 if expects_read > 0 => {
                let half = expects_read as usize / 2;
                if half > 0 {
                    end.send_data(tag, Zeroes, 0..half, None, tx);
                }
                let rest = 0..expects_read as usize - half;
                end.send_data(tag, Zeroes, rest, Some(Completion::SUCCESS), tx);
            }
            2 if came < expects_write => {
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
            assert!(read.from.address.checked_add(u64::from(read.len)).is_some());
            assert!(self.tx.keys.contains(&read.from.key));
            self.reads.push(read);
        }
        if choice & 2 == 0 && !self.reads.is_empty() {
            let any = usize::from(choice >> 2) % self.reads.len();
            let mut read = self.reads.swap_remove(any);
            if read.buf.len() == 1024 {
                // Of a Connect, perhaps.
                let (_, data) = connect().encode();
                read.buf.copy_from_slice(data.as_bytes());
            }
            self.with(|end, cx| end.rdma_read_done(read.id, read.buf, cx));
        } else if choice & 4 == 0 {
            if let Some(tag) = self.held.pop() {
                self.with(|end, cx| end.complete(tag, Status::ABORTED.into(), cx.tx));
            }
        }
    }
}

fn connect() -> Connect {
    Connect {
        qid: 1,
        sqsize: ENTRIES as u16 - 1,
        no_sq_flow: false,
        kato: Duration::ZERO,
        host_id: [7; 16],
        cntlid: 1,
        subnqn: "nqn.2026-11.org.lunet:a".into(),
        hostnqn: "nqn.2026-11.org.lunet:host".into(),
        through: None,
    }
}

/// The next Send: a submission queue entry with some of its fields as they should be, and data.
fn message(input: &mut Input<'_>) -> Vec<u8> {
    let choice = input.byte();
    let mut bytes = input.take(64).to_vec();
    if choice & 1 == 0 {
        bytes.resize(64, 0);
        let mut sqe = Sqe::read_from_bytes(&bytes).unwrap_or_default();
        sqe.flags = 0x40;
        sqe.sgl.kind = [0x40, 0x4f, 0x01, sqe.sgl.kind][usize::from(choice >> 1 & 3)];
        if choice & 8 == 0 {
            sqe.sgl.len.set(sqe.sgl.len.get() & 0xff00_1fff);
        }
        sqe.cid = U16::new(u16::from(choice >> 4));
        bytes = sqe.as_bytes().to_vec();
    }
    let data = usize::from(input.byte()) * 32;
    bytes.resize(bytes.len() + data.min(CAPSULE as usize), 0);
    bytes
}

/// One input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let kind = input.byte();
    if kind & 1 != 0 {
        let private = input.take(usize::MAX);
        match ConnectRequest::parse(private, 128, 128) {
            Ok(request) => {
                let again = ConnectRequest::parse(&request.to_bytes(), 128, 128);
                assert_eq!(again, Ok(request));
            }
            Err(rejected) => {
                let told = rejected.rejection.to_bytes();
                assert_eq!(Rejection::parse(&told), Some(rejected.rejection));
            }
        }
        return;
    }
    let options = Options { capsule_data: CAPSULE, ..Options::default() };
    let rdma = RdmaOptions { invalidate: kind & 2 == 0 };
    let mut upper = Upper {
        end: Connection::over_rdma(options, rdma, Duration::from_secs(1)),
        tx: Sends::default(),
        held: Vec::new(),
        reads: Vec::new(),
        commands: 0,
        closed: false,
    };
    if kind & 4 == 0 {
        let (sqe, data) = connect().encode();
        upper.receive(&[sqe.as_bytes(), data.as_bytes()].concat());
        assert!(upper.end.is_ready());
    }
    while !input.is_empty() && !upper.closed {
        let send = message(&mut input);
        upper.receive(&send);
        upper.move_data(input.byte());
        assert!(upper.end.outstanding() <= upper.end.entries() as usize);
    }
    assert!(upper.tx.sent <= upper.commands, "a command was completed twice");
}
