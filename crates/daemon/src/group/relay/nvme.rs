//! A relay of NVMe over TCP: the host's end of a queue.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lunet_front_nvme::{
    Answered, ENTRIES, EXCHANGE, HASH, Nvme, RelayFor, Relayed, RelayedPart, names, secrets,
};
use lunet_nvme::Through;
use lunet_nvme::auth::chap::{Credentials, Initiator};
use lunet_nvme::command::Completion;
use lunet_nvme::digest::Crc32c;
use lunet_nvme::host::{Command, Connection, Cx, Data, Event, Finished, Options};
use lunet_nvme::status::Status;
use lunet_nvme::transmit::{Payload, Transmit};
use lunet_relay::Charge;

use super::{Carrier, Happened, LOGIN, Opening, Told};

/// Data of a capsule that any lunet takes on an I/O queue.
const CAPSULE: u32 = 16 << 10;

/// Data that is sent.
#[derive(Clone, Debug)]
struct Bytes(Arc<[u8]>);

impl Payload for Bytes {
    fn crc32c(&self, range: Range<usize>, crc: &mut Crc32c) {
        crc.update(&self.0[range]);
    }
}

struct Out<'a>(&'a mut Vec<u8>);

impl Transmit for Out<'_> {
    type Payload = Bytes;

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn payload(&mut self, payload: Bytes, range: Range<usize>) {
        self.0.extend_from_slice(&payload.0[range]);
    }
}

/// What was sent and is not answered.
struct Sent {
    completions: Vec<Option<Completion>>,
    data: Vec<u8>,
    _charge: Charge,
}

/// A queue at the owner.
pub(in crate::group) struct Host {
    proto: Connection<Vec<u8>, Bytes>,
    events: Vec<Event<Vec<u8>, Bytes>>,
    /// By ticket.
    sent: HashMap<u64, Sent>,
}

/// The token of one of the commands of a ticket: there are two at the most.
const fn token(ticket: u64, at: usize) -> u64 {
    ticket << 1 | at as u64
}

impl Host {
    fn work(&mut self, told: &mut Told<Self>) {
        for event in std::mem::take(&mut self.events) {
            match event {
                Event::Connected(_) => told.push(Happened::Opened),
                Event::Finished(finished) => self.finished(finished, told),
                Event::Failed(_) => told.push(Happened::Over(None)),
            }
        }
    }

    fn finished(&mut self, finished: Finished<Vec<u8>, Bytes>, told: &mut Told<Self>) {
        let Finished { token, completion, received, data, .. } = finished;
        let ticket = token >> 1;
        let Some(sent) = self.sent.get_mut(&ticket) else { return };
        // It counts as sent: nobody knows what has become of it.
        let Some(completion) = completion else { return told.push(Happened::Over(None)) };
        if let Data::Read(data) = data {
            if completion.status.is_success() && received as usize != data.len() {
                return told.push(Happened::Over(None));
            }
            sent.data = data;
        }
        if let Some(place) = sent.completions.get_mut((token & 1) as usize) {
            *place = Some(completion);
        }
        if !sent.completions.iter().all(Option::is_some) {
            return;
        }
        let Some(sent) = self.sent.remove(&ticket) else { return };
        let completions: Vec<Completion> = sent.completions.into_iter().flatten().collect();
        let turned_back = |it: &Completion| it.status.code() == Status::ANA_TRANSITION;
        let leaves = completions.iter().any(turned_back);
        told.push(Happened::Answered(ticket, Answered { completions, data: sent.data }));
        // The owner has executed nothing of it, and wants the host to be asked anew.
        told.extend(leaves.then_some(Happened::Leaves));
    }
}

impl Carrier for Host {
    type Passed = Nvme;

    /// A host has a queue for each processor.
    const OF_HOST: usize = 128;
    /// Linux tries again as soon as it has read that the path can be used.
    const PAUSE: Duration = Duration::from_millis(200);

    fn open(opening: &Opening<'_>, whose: &RelayFor) -> Option<Self> {
        let Opening { aim, me, target, renews } = *opening;
        let through =
            Through { gateway: me.0, epoch: aim.epoch.0, host: whose.host.to_canonical(), renews };
        let connect = whose.connect(through, target);
        let [host, controller] = secrets(&aim.secret, &through, &connect)?;
        let credentials = Credentials {
            names: names(&connect),
            host,
            controller: Some(controller),
            hashes: vec![HASH],
            groups: vec![EXCHANGE],
            concatenation: false,
        };
        let mut numbers = [0; 6];
        lunet_os::random::fill(&mut numbers).ok()?;
        let [a, b, c, d, e, f] = numbers;
        let (transaction, sequence) =
            (u16::from_le_bytes([a, b]), u32::from_le_bytes([c, d, e, f]));
        let mut random = |bytes: &mut [u8]| lunet_os::random::fill(bytes).is_ok();
        let initiator = Initiator::new(credentials, transaction, sequence, &mut random)?;
        let mut proto = Connection::new(Options {
            connect,
            alignment: 0,
            header_digest: false,
            data_digest: false,
            max_r2t: 4,
            capsule_data: CAPSULE,
            connect_timeout: LOGIN,
        });
        proto.authenticate(initiator);
        Some(Self { proto, events: Vec::new(), sent: HashMap::new() })
    }

    fn host(whose: &RelayFor) -> &str {
        &whose.nqn
    }

    fn start(&mut self, at: Duration, out: &mut Vec<u8>) {
        self.proto.start(at, &mut Out(out));
    }

    fn received(&mut self, bytes: &[u8], at: Duration, out: &mut Vec<u8>, told: &mut Told<Self>) {
        let mut tx = Out(out);
        self.proto.rx_bytes(bytes, &mut Cx { now: at, tx: &mut tx, events: &mut self.events });
        while let Some(job) = self.proto.take_job() {
            let mut cx = Cx { now: at, tx: &mut tx, events: &mut self.events };
            self.proto.computed(job.compute(), &mut cx);
        }
        self.work(told);
    }

    fn tick(&mut self, at: Duration, _: &mut Vec<u8>, told: &mut Told<Self>) {
        self.proto.handle_timeout(at, &mut self.events);
        self.work(told);
    }

    fn due(&self) -> Option<Duration> {
        self.proto.poll_timeout()
    }

    fn is_ready(&self) -> bool {
        self.proto.is_ready()
    }

    fn takes(&self, command: &Relayed) -> bool {
        self.proto.outstanding() + command.parts.len() <= usize::from(ENTRIES)
    }

    fn submit(&mut self, command: Relayed, out: &mut Vec<u8>) -> Result<(), u64> {
        let Relayed { ticket, parts, charge } = command;
        let completions = vec![None; parts.len()];
        for (at, RelayedPart { sqe, reads, data }) in parts.into_iter().enumerate() {
            let len = data.len() as u32;
            let data = match (len, reads) {
                (0, 0) => Data::None,
                (0, bytes) => Data::Read(vec![0; bytes as usize]),
                _ => Data::Write(Bytes(data.into()), len),
            };
            let command = Command { token: token(ticket, at), sqe, data };
            // The first of a pair is refused or none.
            self.proto.submit(command, &mut Out(out)).map_err(|_| ticket)?;
        }
        self.sent.insert(ticket, Sent { completions, data: Vec::new(), _charge: charge });
        Ok(())
    }

    fn manage(
        &mut self,
        function: std::convert::Infallible,
        _: Box<dyn Send>,
        _: &mut Vec<u8>,
        _: &mut Told<Self>,
    ) {
        match function {}
    }

    fn has_sent(&self) -> bool {
        !self.sent.is_empty()
    }

    fn waits(&self) -> bool {
        !self.sent.is_empty()
    }

    fn leave(&mut self, _: Duration, _: &mut Vec<u8>) -> bool {
        // There is nothing to say: the owner sees the end of the connection.
        true
    }

    fn ticket(command: &Relayed) -> u64 {
        command.ticket
    }

    fn not_sent() -> Answered {
        Answered { completions: vec![Status::ANA_TRANSITION.into(); 2], data: Vec::new() }
    }
}
