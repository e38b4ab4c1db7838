//! Both ends, the wires between them, and the time.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use lunet_block::Random;
use lunet_nvme::auth::chap::Responder;
use lunet_nvme::digest::Crc32c;
use lunet_nvme::fabrics::{ANY_CONTROLLER, Authentication, Connect};
use lunet_nvme::transmit::{Payload, Transmit};
use lunet_nvme::{controller, host};

use crate::authentication::guarded;
use crate::disk::{Disk, TestSite};

/// Data that is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bytes(pub Rc<[u8]>);

impl Payload for Bytes {
    fn crc32c(&self, range: Range<usize>, crc: &mut Crc32c) {
        crc.update(&self.0[range]);
    }
}

/// What an end wants to send.
#[derive(Default)]
pub struct Sent(pub Vec<u8>);

impl Transmit for Sent {
    type Payload = Bytes;

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn payload(&mut self, payload: Bytes, range: Range<usize>) {
        assert!(!range.is_empty());
        self.0.extend_from_slice(&payload.0[range]);
    }
}

/// One direction of the stream.
#[derive(Default)]
pub struct Wire {
    bytes: VecDeque<u8>,
    /// The bit to flip, counted from now on; gone when that is done.
    pub flip: Option<u64>,
    /// A bit was flipped.
    pub flipped: bool,
}

impl Wire {
    /// Puts bytes on the way.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next bytes, as many as chance gives.
    pub fn take(&mut self, random: &mut Random) -> Vec<u8> {
        let most = [1, 60, 2000, 100_000][random.below(4) as usize];
        let n = (1 + random.below(most) as usize).min(self.bytes.len());
        let mut piece: Vec<u8> = self.bytes.drain(..n).collect();
        if let Some(bit) = self.flip {
            match piece.get_mut((bit / 8) as usize) {
                Some(byte) => {
                    *byte ^= 1 << (bit % 8);
                    self.flip = None;
                    self.flipped = true;
                }
                None => self.flip = Some(bit - n as u64 * 8),
            }
        }
        piece
    }
}

/// How the two ends are set up.
#[derive(Clone, Debug)]
pub struct Settings {
    pub controller: controller::Options,
    pub alignment: u8,
    pub header_digest: bool,
    pub data_digest: bool,
    pub max_r2t: u32,
    pub sqsize: u16,
    pub no_sq_flow: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            controller: controller::Options::default(),
            alignment: 0,
            header_digest: false,
            data_digest: false,
            max_r2t: 1,
            sqsize: 31,
            no_sq_flow: false,
        }
    }
}

impl Settings {
    /// Any that are allowed.
    pub fn random(random: &mut Random) -> Self {
        let controller = controller::Options {
            capsule_data: [0, 512, 8192, 16_384][random.below(4) as usize],
            max_h2c_data: 4096 << random.below(4),
            max_r2t: 1 + random.below(4) as u32,
            ..controller::Options::default()
        };
        Self {
            controller,
            alignment: if random.chance(50) { 0 } else { random.below(32) as u8 },
            header_digest: random.chance(50),
            data_digest: random.chance(50),
            max_r2t: 1 + random.below(4) as u32,
            sqsize: 1 + random.below(40) as u16,
            no_sq_flow: random.chance(50),
        }
    }

    /// What the host connects with.
    pub fn host(&self) -> host::Options {
        host::Options {
            connect: Connect {
                qid: 1,
                sqsize: self.sqsize,
                no_sq_flow: self.no_sq_flow,
                kato: Duration::ZERO,
                host_id: [7; 16],
                cntlid: 1,
                subnqn: "nqn.2026-11.org.lunet:a".into(),
                hostnqn: "nqn.2026-11.org.lunet:host".into(),
                through: None,
            },
            alignment: self.alignment,
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            max_r2t: self.max_r2t,
            capsule_data: self.controller.capsule_data,
            connect_timeout: Duration::from_secs(10),
        }
    }
}

pub type HostEvent = host::Event<Vec<u8>, Bytes>;
pub type ControllerEvent = controller::Event<Vec<u8>>;

pub struct World {
    pub now: Duration,
    pub random: Random,
    pub settings: Settings,
    pub host: host::Connection<Vec<u8>, Bytes>,
    pub controller: controller::Connection<Vec<u8>>,
    pub disk: Disk,
    pub site: TestSite,
    /// Percentage of the controller's turns in which there is no memory, which comes back.
    pub scarce: u64,
    /// What has come to the controller behind data that waits for memory.
    pub unread: Vec<u8>,
    pub to_controller: Wire,
    pub to_host: Wire,
    pub sent: Sent,
    pub answers: Sent,
    pub events: Vec<HostEvent>,
    pub controller_events: Vec<ControllerEvent>,
    /// What the host has to prove itself to.
    pub guard: Option<Responder>,
    /// Why the controller closed the connection.
    pub closed: Option<controller::CloseReason>,
}

impl World {
    /// Both ends, of which the host has sent its ICReq.
    pub fn new(settings: Settings, seed: u64) -> Self {
        Self::with(settings, seed, |_| ())
    }

    /// The same; `prepare` is called before that.
    pub fn with(settings: Settings, seed: u64, prepare: impl FnOnce(&mut Self)) -> Self {
        let mut random = Random::new(seed);
        let now = Duration::from_secs(1000);
        let mut world = Self {
            now,
            host: host::Connection::new(settings.host()),
            controller: controller::Connection::new(settings.controller, now),
            disk: Disk::new(Random::new(random.bits())),
            site: TestSite::default(),
            scarce: 0,
            unread: Vec::new(),
            settings,
            random,
            to_controller: Wire::default(),
            to_host: Wire::default(),
            sent: Sent::default(),
            answers: Sent::default(),
            events: Vec::new(),
            controller_events: Vec::new(),
            guard: None,
            closed: None,
        };
        prepare(&mut world);
        world.host.start(now, &mut world.sent);
        world.flush();
        world
    }

    /// Both ends, connected.
    pub fn connected(settings: Settings, seed: u64) -> Self {
        let mut world = Self::new(settings, seed);
        world.settle();
        let events = std::mem::take(&mut world.events);
        assert!(matches!(events[..], [host::Event::Connected(_)]), "{events:?}");
        assert!(world.controller.is_ready() && world.host.is_ready());
        world
    }

    /// Puts what the ends want to send onto the wires.
    pub fn flush(&mut self) {
        self.to_controller.bytes.extend(self.sent.0.drain(..));
        self.to_host.bytes.extend(self.answers.0.drain(..));
    }

    /// Lets some bytes arrive, or the disk do something. False when all is quiet.
    pub fn step(&mut self) -> bool {
        self.flush();
        let moved = match self.random.below(3) {
            0 => self.at_controller() || self.at_host() || self.at_disk(),
            1 => self.at_host() || self.at_controller() || self.at_disk(),
            _ => self.at_disk() || self.at_controller() || self.at_host(),
        };
        self.flush();
        moved
    }

    /// Goes on until all is quiet.
    pub fn settle(&mut self) {
        while self.step() {}
    }

    fn at_disk(&mut self) -> bool {
        !self.controller.is_closed() && self.disk.work(&mut self.controller, &mut self.answers)
    }

    fn at_host(&mut self) -> bool {
        if self.to_host.bytes.is_empty() {
            return false;
        }
        let bytes = self.to_host.take(&mut self.random);
        let mut rest = bytes.as_slice();
        let Self { now, random, host, sent, events, .. } = self;
        let mut cx = host::Cx { now: *now, tx: sent, events };
        if !random.chance(20) {
            let n = host.discardable().min(rest.len());
            host.rx_discarded(n, &mut cx);
            rest = &rest[n..];
        }
        if !random.chance(20) {
            if let Some(mut lent) = host.take_rx_target() {
                let n = lent.range.len().min(rest.len());
                let start = lent.range.start;
                lent.buf[start..start + n].copy_from_slice(&rest[..n]);
                rest = &rest[n..];
                host.rx_payload(lent, n, &mut cx);
            }
        }
        host.rx_bytes(rest, &mut cx);
        if let Some(job) = host.take_job() {
            host.computed(job.compute(), &mut cx);
        }
        true
    }

    fn at_controller(&mut self) -> bool {
        let starved = self.controller.is_starved();
        if self.to_controller.bytes.is_empty() && !starved {
            return false;
        }
        if self.scarce > 0 {
            self.site.short = self.random.chance(self.scarce);
        }
        let bytes = match starved {
            true => std::mem::take(&mut self.unread),
            false => self.to_controller.take(&mut self.random),
        };
        let mut rest = bytes.as_slice();
        let Self { now, random, controller, answers, controller_events, site, .. } = self;
        if starved && !controller.feed(site) && self.scarce == 0 {
            controller.refuse_starved();
        }
        let mut cx = controller::Cx { now: *now, site, tx: answers, events: controller_events };
        if !random.chance(20) {
            if let Some(mut lent) = controller.take_rx_target() {
                let n = lent.range.len().min(rest.len());
                let start = lent.range.start;
                lent.buf[start..start + n].copy_from_slice(&rest[..n]);
                rest = &rest[n..];
                controller.rx_payload(lent, n, &mut cx);
            }
        }
        let taken = controller.rx_bytes(rest, &mut cx);
        assert!(taken == rest.len() || controller.is_starved());
        self.unread = rest[taken..].into();
        self.handle();
        true
    }

    /// Lets the controller receive these bytes at this time.
    pub fn feed_controller(&mut self, now: Duration, bytes: &[u8]) {
        let Self { controller, answers, controller_events, site, .. } = self;
        let mut cx = controller::Cx { now, site, tx: answers, events: controller_events };
        controller.rx_bytes(bytes, &mut cx);
        self.handle();
    }

    /// Hands the controller's events on.
    pub fn handle(&mut self) {
        for event in std::mem::take(&mut self.controller_events) {
            assert!(self.closed.is_none(), "an event after the end");
            match event {
                controller::Event::Close(reason) => self.closed = Some(reason),
                controller::Event::Connect(connect) => {
                    assert_eq!(*connect, self.settings.host().connect);
                    assert_ne!(connect.cntlid, ANY_CONTROLLER);
                    let connected = lunet_nvme::fabrics::Connected {
                        cntlid: connect.cntlid,
                        authentication: match self.guard {
                            Some(_) => Authentication::Required,
                            None => Authentication::None,
                        },
                    };
                    self.controller.accept(connected, &mut self.answers);
                }
                other if self.guard.is_some() => {
                    guarded(other, &mut self.guard, &mut self.controller, &mut self.answers);
                }
                other => self.disk.handle(other, &mut self.controller, &mut self.answers),
            }
        }
    }
}
