//! An admin queue: a host's session, a controller, and what it knows of its subsystem.

use std::collections::BTreeMap;
use std::time::Duration;

use lunet_block::Random;
use lunet_nvme::command::{Admin, Completion, GetLog, Identify, Sqe};
use lunet_nvme::controller::{
    Answer, Connection, Controller, Cx, Event, Kind, Options, Request, Setup, Source, Subsystem,
    Tag,
};
use lunet_nvme::fabrics::{ANY_CONTROLLER, Connect, Connected, Fabrics, Property, Transport};
use lunet_nvme::feature::{self, Feature, MASK_ALL, MASK_RESERVATION_RELEASED, Queues};
use lunet_nvme::host::{
    self, Command, ControllerInfo, Data, Session, SessionCx, SessionError, SessionEvent,
};
use lunet_nvme::identify::{
    Cns, Identifiers, IndependentNamespace, Namespace, namespaces_of, text_of,
};
use lunet_nvme::log::{
    AnaGroup, AnaState, DiscoveryEntry, Health, LogPage, ReservationLog, ana_groups, ana_longest,
    discovery_entries,
};
use lunet_nvme::name::nqn_of_field;
use lunet_nvme::status::Status;
use proptest::prelude::*;
use zerocopy::{FromBytes, FromZeros};

use crate::disk::TestSite;
use crate::world::{Bytes, Sent, Wire};

/// A subsystem with these namespaces; each has its number of blocks.
#[derive(Default)]
struct Known {
    namespaces: BTreeMap<u32, u64>,
    notices: Vec<ReservationLog>,
}

impl Source for Known {
    fn next_namespace(&self, above: u32) -> Option<u32> {
        self.namespaces.range(above + 1..).next().map(|(nsid, _)| *nsid)
    }

    fn namespace(&self, nsid: u32) -> Option<(Namespace, Identifiers)> {
        let blocks = *self.namespaces.get(&nsid)?;
        let mut namespace = Namespace { nsze: blocks.into(), ..Namespace::new_zeroed() };
        namespace.lbaf[0].lbads = 12;
        namespace.anagrpid = 1.into();
        let nguid = [nsid as u8; 16];
        Some((namespace, Identifiers { nguid: Some(nguid), ..Identifiers::default() }))
    }

    fn controllers(&self) -> Vec<u16> {
        vec![3, 5]
    }

    fn groups(&self) -> (u64, Vec<AnaGroup>) {
        let nsids = self.namespaces.keys().copied().collect();
        (9, vec![AnaGroup { id: 1, changes: 2, state: AnaState::Optimized, nsids }])
    }

    fn discovery(&self) -> (u64, Vec<DiscoveryEntry>) {
        (4, vec![DiscoveryEntry { trtype: 3, ..DiscoveryEntry::default() }])
    }

    fn health(&self) -> Health {
        Health { spare: 100, ..Health::default() }
    }

    fn take_reservation_notice(&mut self) -> ReservationLog {
        self.notices.pop().unwrap_or_default()
    }
}

fn setup(kind: Kind, kato: Duration) -> Setup {
    Setup {
        kind,
        cntlid: 5,
        host_id: [7; 16],
        kato,
        max_queues: 8,
        transport: Transport::Tcp,
        subsystem: Subsystem {
            nqn: "nqn.2026-11.org.lunet:a".into(),
            serial: "0123456789".into(),
            model: "lunet".into(),
            firmware: "0.1".into(),
            mdts: 8,
            capsule_data: 16_384,
            max_entries: 128,
            max_namespaces: 64,
            groups: 2,
            transition: 10,
            atomic_blocks: 1,
        },
    }
}

type Noted = SessionEvent<Bytes>;

/// A host and a controller, the wires between them, and the time.
struct Admins {
    now: Duration,
    random: Random,
    session: Session<Bytes>,
    connection: Connection<Vec<u8>>,
    controller: Controller,
    known: Known,
    to_controller: Wire,
    to_host: Wire,
    sent: Sent,
    answers: Sent,
    events: Vec<Noted>,
    controller_events: Vec<Event<Vec<u8>>>,
    /// The keep alive timer has expired.
    expired: bool,
    resets: usize,
}

impl Admins {
    fn new(kind: Kind, kato: Duration, seed: u64) -> Self {
        let now = Duration::from_secs(100);
        let options = host::Options {
            connect: Connect {
                qid: 0,
                sqsize: 31,
                no_sq_flow: false,
                kato,
                host_id: [7; 16],
                cntlid: ANY_CONTROLLER,
                subnqn: "nqn.2026-11.org.lunet:a".into(),
                hostnqn: "nqn.2026-11.org.lunet:host".into(),
                through: None,
            },
            alignment: 0,
            header_digest: true,
            data_digest: true,
            max_r2t: 1,
            capsule_data: 0,
            connect_timeout: Duration::from_secs(10),
        };
        let mut known = Known::default();
        known.namespaces.extend([(1, 1000), (4, 2000)]);
        let mut admins = Self {
            now,
            random: Random::new(seed),
            session: Session::new(options, 4),
            connection: Connection::new(Options::default(), now),
            controller: Controller::new(setup(kind, kato), now),
            known,
            to_controller: Wire::default(),
            to_host: Wire::default(),
            sent: Sent::default(),
            answers: Sent::default(),
            events: Vec::new(),
            controller_events: Vec::new(),
            expired: false,
            resets: 0,
        };
        admins.session.start(now, &mut admins.sent);
        admins
    }

    /// Brought up. What the controller said of itself.
    fn up(kind: Kind, kato: Duration, seed: u64) -> (Self, ControllerInfo) {
        let mut admins = Self::new(kind, kato, seed);
        admins.settle();
        let mut events = std::mem::take(&mut admins.events);
        let Some(SessionEvent::Ready(info)) = events.pop() else { panic!("not up: {events:?}") };
        assert!(events.is_empty() && admins.session.is_up() && admins.controller.is_ready());
        (admins, *info)
    }

    fn settle(&mut self) {
        loop {
            self.to_controller.push(&std::mem::take(&mut self.sent.0));
            self.to_host.push(&std::mem::take(&mut self.answers.0));
            if !self.to_controller.is_empty() {
                let bytes = self.to_controller.take(&mut self.random);
                self.at_controller(&bytes);
            } else if !self.to_host.is_empty() {
                let bytes = self.to_host.take(&mut self.random);
                self.at_host(&bytes);
            } else {
                return;
            }
        }
    }

    fn at_host(&mut self, mut bytes: &[u8]) {
        let Self { now, session, sent, events, random, .. } = self;
        let mut cx = SessionCx { now: *now, tx: sent, events };
        if random.chance(50) {
            if let Some(mut lent) = session.take_rx_target() {
                let n = lent.range.len().min(bytes.len());
                let start = lent.range.start;
                lent.buf[start..start + n].copy_from_slice(&bytes[..n]);
                bytes = &bytes[n..];
                session.rx_payload(lent, n, &mut cx);
            }
        }
        session.rx_bytes(bytes, &mut cx);
    }

    fn at_controller(&mut self, bytes: &[u8]) {
        let mut site = TestSite::default();
        let Self { now, connection, answers, controller_events: events, .. } = self;
        connection.rx_bytes(bytes, &mut Cx { now: *now, site: &mut site, tx: answers, events });
        for event in std::mem::take(&mut self.controller_events) {
            match event {
                Event::Connect(_) => {
                    let connected = Connected { cntlid: 5, authentication: Default::default() };
                    self.connection.accept(connected, &mut self.answers);
                }
                Event::Command(command) => {
                    let data = command.data.as_ref().map(|(buf, range)| &buf[range.clone()]);
                    let request = Request {
                        tag: command.tag,
                        sqe: &command.sqe,
                        expects_read: command.expects_read,
                        data: data.unwrap_or_default(),
                    };
                    let answer = match command.sqe.opcode {
                        0x7f => self.controller.fabrics(0, &command.sqe),
                        _ => self.controller.admin(request, &mut self.known, self.now),
                    };
                    self.answer(command.tag, answer);
                }
                other => panic!("{other:?}"),
            }
        }
        self.tell();
    }

    fn answer(&mut self, tag: Tag, answer: Answer) {
        let Self { connection, answers, controller, .. } = self;
        let completion = match answer {
            Answer::Complete(completion) => completion,
            Answer::Data(bytes) => {
                let len = bytes.len();
                let payload = Bytes(bytes.into());
                let good = Some(Completion::SUCCESS);
                return connection.send_data(tag, payload, 0..len, good, answers);
            }
            Answer::Kept => return,
            Answer::Abort { sqid, cid } => {
                let found = connection.find(cid).filter(|_| sqid == 0);
                let aborted = found.filter(|tag| controller.abort_event_request(*tag));
                if let Some(tag) = aborted {
                    connection.complete(tag, Status::ABORTED.into(), answers);
                }
                Completion::with(u64::from(aborted.is_none()))
            }
            Answer::Reset => {
                self.resets += 1;
                // CSTS.RDY stays until the queues have ended, and no other can be made meanwhile.
                assert!(!controller.is_ready());
                controller.reset_done();
                Completion::SUCCESS
            }
            Answer::ShutDown => {
                controller.shutdown_done();
                Completion::SUCCESS
            }
            Answer::Persistence { set, .. } => Completion::with(u64::from(set.is_none())),
            Answer::Authenticate(_) => Status::INVALID_OPCODE.into(),
        };
        connection.complete(tag, completion, answers);
    }

    /// Answers the host's event requests, where there is something to tell.
    fn tell(&mut self) {
        while let Some((tag, completion)) = self.controller.take_event() {
            self.connection.complete(tag, completion, &mut self.answers);
        }
    }

    /// Executes one command; its data.
    fn execute(&mut self, sqe: Sqe, data: Data<Vec<u8>, Bytes>) -> (Completion, Vec<u8>) {
        let command = Command { token: 7, sqe, data };
        self.session.submit(command, self.now, &mut self.sent).expect("there is room");
        self.settle();
        let at = self.events.iter().position(|event| matches!(event, SessionEvent::Finished(_)));
        match self.events.remove(at.expect("an answer")) {
            SessionEvent::Finished(finished) => {
                let data = match finished.data {
                    Data::Read(bytes) => bytes,
                    _ => Vec::new(),
                };
                (finished.completion.expect("a completion"), data)
            }
            _ => unreachable!("it is one that has finished"),
        }
    }

    fn status(&mut self, admin: Admin, nsid: u32) -> Status {
        self.execute(admin.encode(nsid), Data::Read(vec![0; 4096])).0.status.code()
    }

    fn identify(&mut self, cns: Cns, nsid: u32) -> Result<Vec<u8>, Status> {
        let identify = Identify { cns: cns.code(), cntid: 0, csi: 0 };
        let read = Data::Read(vec![0xee; 4096]);
        let (completion, data) = self.execute(Admin::Identify(identify).encode(nsid), read);
        if completion.status.is_success() { Ok(data) } else { Err(completion.status.code()) }
    }

    fn log(&mut self, page: LogPage, len: usize) -> Vec<u8> {
        let log = GetLog::new(page.code(), len as u64);
        let read = Data::Read(vec![0xee; len]);
        let (completion, data) = self.execute(Admin::GetLogPage(log).encode(0), read);
        assert!(completion.status.is_success(), "{}", completion.status);
        data
    }

    fn set(&mut self, feature: Feature, value: u32, nsid: u32) -> (Status, u64) {
        let set = Admin::SetFeatures { fid: feature.code(), save: false, value: [value, 0] };
        let (completion, _) = self.execute(set.encode(nsid), Data::None);
        (completion.status.code(), completion.result)
    }

    fn get(&mut self, feature: Feature, select: u8, nsid: u32) -> (Status, u64) {
        let get = Admin::GetFeatures { fid: feature.code(), select, value: 0 };
        let (completion, _) = self.execute(get.encode(nsid), Data::None);
        (completion.status.code(), completion.result)
    }

    /// Lets time pass at both ends; `cut`: nothing gets through.
    fn pass(&mut self, time: Duration, cut: bool) {
        let end = self.now + time;
        while self.now < end {
            let due = [self.session.poll_timeout(), self.controller.poll_timeout(), Some(end)];
            self.now = due.into_iter().flatten().min().expect("the end").max(self.now);
            self.expired |= self.controller.handle_timeout(self.now);
            let Self { now, session, sent, events, .. } = self;
            session.handle_timeout(&mut SessionCx { now: *now, tx: sent, events });
            if cut {
                self.sent.0.clear();
            }
            self.settle();
            if self.session.is_over() {
                return;
            }
        }
    }

    fn notices(&mut self) -> Vec<feature::Event> {
        let events = std::mem::take(&mut self.events);
        events
            .into_iter()
            .map(|event| match event {
                SessionEvent::Notice(Some(event), _) => event,
                other => panic!("{other:?}"),
            })
            .collect()
    }
}

const KATO: Duration = Duration::from_secs(5);

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn a_controller_comes_up(seed: u64) {
        let (_, info) = Admins::up(Kind::Io, KATO, seed);
        prop_assert_eq!((info.cntlid, info.queues, info.version), (5, 4, 0x2_0000));
        prop_assert_eq!(info.capabilities & 0xffff, 127);
        prop_assert_eq!(info.capsule_data(), 16_384);
        prop_assert_eq!(info.max_data(), Some(1 << 20));
        let page = info.identify;
        prop_assert_eq!(text_of(&page.mn), Some("lunet"));
        prop_assert_eq!(nqn_of_field(&page.subnqn), Ok("nqn.2026-11.org.lunet:a"));
        prop_assert_eq!((page.sqes, page.cqes, page.cntrltype), (0x66, 0x44, 1));
        prop_assert_eq!((page.nn.get(), page.mnan.get(), page.nanagrpid.get()), (64, 64, 2));
        prop_assert_eq!((page.kas.get(), page.icdoff.get(), page.msdbd), (10, 0, 1));
        prop_assert_eq!(page.sgls.get(), 0x10_0001);
    }

    #[test]
    fn a_discovery_controller_comes_up(seed: u64) {
        let (mut admins, info) = Admins::up(Kind::Discovery, Duration::ZERO, seed);
        prop_assert_eq!((info.identify.cntrltype, info.queues), (2, 0));
        prop_assert_eq!(info.identify.oaes.get(), 1 << 31);
        let page = admins.log(LogPage::Discovery, 4096);
        let (generation, entries) = discovery_entries(&page).expect("a log");
        prop_assert_eq!((generation, entries.len(), entries[0].trtype), (4, 1, 3));
        admins.controller.notify(feature::Event::Discovery);
        admins.tell();
        admins.settle();
        prop_assert_eq!(admins.notices(), [feature::Event::Discovery]);
        // Only what such a controller has.
        prop_assert_eq!(admins.identify(Cns::ActiveList, 0), Err(Status::INVALID_FIELD));
        let health = Admin::GetLogPage(GetLog::new(2, 512));
        prop_assert_eq!(admins.status(health, 0), Status::INVALID_LOG);
        prop_assert_eq!(admins.get(Feature::Queues, 0, 0).0, Status::INVALID_FIELD);
        prop_assert_eq!(admins.get(Feature::KeepAlive, 0, 0), (Status::SUCCESS, 120_000));
    }
}

#[test]
fn identify_gives_what_linux_reads() {
    let (mut admins, _) = Admins::up(Kind::Io, KATO, 1);
    let list = admins.identify(Cns::ActiveList, 0).expect("a list");
    assert_eq!(namespaces_of(&list).collect::<Vec<_>>(), [1, 4]);
    let list = admins.identify(Cns::ActiveList, 1).expect("a list");
    assert_eq!(namespaces_of(&list).collect::<Vec<_>>(), [4]);
    let page = admins.identify(Cns::Namespace, 4).expect("a namespace");
    let namespace = Namespace::read_from_bytes(&page).expect("4096 bytes");
    assert_eq!((namespace.nsze.get(), namespace.block_size()), (2000, Some(4096)));
    let ids = Identifiers::decode(&admins.identify(Cns::Descriptors, 4).expect("a list"));
    assert_eq!(ids.nguid, Some([4; 16]));
    let page = admins.identify(Cns::IndependentNamespace, 4).expect("a namespace");
    let any = IndependentNamespace::read_from_bytes(&page).expect("4096 bytes");
    assert_eq!((any.anagrpid.get(), any.nstat), (1, 1));
    assert_eq!(admins.identify(Cns::CommandSetController, 0), Ok(vec![0; 4096]));
    assert_eq!(admins.identify(Cns::CommandSets, 0).expect("a list")[0], 1);
    assert_eq!(admins.identify(Cns::Controllers, 0).expect("a list")[..6], [2, 0, 3, 0, 5, 0]);
    // A namespace that is not active is all zero, one that cannot be is an error.
    assert_eq!(admins.identify(Cns::Namespace, 2), Ok(vec![0; 4096]));
    assert_eq!(admins.identify(Cns::Descriptors, 2), Err(Status::INVALID_NAMESPACE));
    for nsid in [0, 65, u32::MAX] {
        assert_eq!(admins.identify(Cns::Namespace, nsid), Err(Status::INVALID_NAMESPACE));
    }
    assert_eq!(admins.identify(Cns::ActiveList, u32::MAX), Err(Status::INVALID_NAMESPACE));
    let zoned = Identify { cns: Cns::CommandSetNamespace.code(), cntid: 0, csi: 2 };
    assert_eq!(admins.status(Admin::Identify(zoned), 1), Status::INVALID_FIELD);
    let unknown = Identify { cns: 0x99, cntid: 0, csi: 0 };
    assert_eq!(admins.status(Admin::Identify(unknown), 1), Status::INVALID_FIELD);
}

#[test]
fn logs_are_read_in_parts() {
    let (mut admins, _) = Admins::up(Kind::Io, KATO, 2);
    let (changes, groups) = ana_groups(&admins.log(LogPage::Ana, 4096)).expect("a log");
    assert_eq!((changes, groups.len(), &groups[0].nsids[..]), (9, 1, &[1, 4][..]));
    assert_eq!(admins.log(LogPage::Health, 512)[3], 100);
    assert_eq!(admins.log(LogPage::Firmware, 512)[8..16], *b"0.1     ");
    assert_eq!(admins.log(LogPage::Effects, 4096)[1024 + 4], 3);
    let supported = admins.log(LogPage::Supported, 1024);
    for lid in 0..256 {
        let listed = supported[lid * 4] == 1;
        let log = Admin::GetLogPage(GetLog::new(lid as u8, 64));
        assert_eq!(admins.status(log, 0) == Status::SUCCESS, listed, "log {lid:#x}");
    }
    let part = |offset, len| Admin::GetLogPage(GetLog { offset, ..GetLog::new(2, len) });
    assert_eq!(admins.status(part(508, 8), 0), Status::SUCCESS);
    assert_eq!(admins.status(part(1 << 40, 8), 0), Status::INVALID_FIELD);
    // The log of access states is as long as it may become: who reads it in pieces reads all of that.
    let most = ana_longest(2, 64) as u64;
    let piece = |offset| GetLog { offset, ..GetLog::new(LogPage::Ana.code(), 64) };
    assert_eq!(admins.status(Admin::GetLogPage(piece(most)), 0), Status::SUCCESS);
    assert_eq!(admins.status(Admin::GetLogPage(piece(most + 4)), 0), Status::INVALID_FIELD);
    // More than the host's buffer, and more than MDTS.
    assert_eq!(admins.status(part(0, 8192), 0), Status::DATA_LENGTH);
    assert_eq!(admins.status(part(0, 2 << 20), 0), Status::INVALID_FIELD);
    // What failed is in the error log, the latest first.
    let errors = admins.log(LogPage::Errors, 64);
    assert_eq!(errors[12..14], (Status::INVALID_FIELD.no_retry().bits() << 1).to_le_bytes());
}

#[test]
fn events_come_once_until_their_page_was_read() {
    let (mut admins, _) = Admins::up(Kind::Io, KATO, 3);
    for nsid in [2, 3] {
        admins.controller.namespace_changed(nsid);
        admins.tell();
        admins.settle();
    }
    assert_eq!(admins.notices(), [feature::Event::Namespaces]);
    // Another event is not held up.
    admins.controller.notify(feature::Event::Ana);
    admins.tell();
    admins.settle();
    assert_eq!(admins.notices(), [feature::Event::Ana]);
    // With RAE the event stays masked, and the page stays.
    let mut log = GetLog { retain: true, ..GetLog::new(LogPage::ChangedNamespaces.code(), 4096) };
    let (_, page) = admins.execute(Admin::GetLogPage(log).encode(0), Data::Read(vec![0; 4096]));
    assert_eq!(namespaces_of(&page).collect::<Vec<_>>(), [2, 3]);
    admins.controller.namespace_changed(9);
    admins.tell();
    admins.settle();
    assert!(admins.notices().is_empty());
    log.retain = false;
    let (_, page) = admins.execute(Admin::GetLogPage(log).encode(0), Data::Read(vec![0; 4096]));
    assert_eq!(namespaces_of(&page).collect::<Vec<_>>(), [2, 3, 9]);
    assert!(admins.notices().is_empty());
    admins.controller.namespace_changed(9);
    admins.tell();
    admins.settle();
    assert_eq!(admins.notices(), [feature::Event::Namespaces]);
}

#[test]
fn event_requests_are_bounded_and_can_be_aborted() {
    let (mut admins, _) = Admins::up(Kind::Io, KATO, 4);
    let mut tags = Vec::new();
    // One is the session's own.
    for token in 0..4 {
        let sqe = Admin::AsyncEventRequest.encode(0);
        let command = Command { token, sqe, data: Data::None };
        tags.push(admins.session.submit(command, admins.now, &mut admins.sent).expect("room"));
    }
    admins.settle();
    let [SessionEvent::Finished(finished)] = &admins.events[..] else { panic!("one too many") };
    let status = finished.completion.expect("a completion").status.code();
    assert_eq!((finished.token, status), (3, Status::EVENT_LIMIT));
    admins.events.clear();
    let abort = Admin::Abort { sqid: 0, cid: tags[0].cid() };
    let command = Command { token: 9, sqe: abort.encode(0), data: Data::None };
    admins.session.submit(command, admins.now, &mut admins.sent).expect("room");
    admins.settle();
    let ended = admins.events.iter().map(|event| match event {
        SessionEvent::Finished(finished) => {
            let completion = finished.completion.expect("a completion");
            (finished.token, completion.status.code(), completion.result)
        }
        other => panic!("{other:?}"),
    });
    let ended: Vec<_> = ended.collect();
    assert_eq!(ended, [(0, Status::ABORTED, 0), (9, Status::SUCCESS, 0)]);
}

#[test]
fn features_are_what_they_say() {
    let (mut admins, _) = Admins::up(Kind::Io, KATO, 5);
    let good = Status::SUCCESS;
    let queues = |count| u64::from(Queues { submission: count, completion: count }.encode());
    assert_eq!(admins.get(Feature::Queues, 0, 0), (good, queues(4)));
    assert_eq!(admins.get(Feature::Queues, 1, 0), (good, queues(8)));
    assert_eq!(admins.set(Feature::Queues, queues(100) as u32, 0), (good, queues(8)));
    assert_eq!(admins.set(Feature::Queues, 0xffff, 0).0, Status::INVALID_FIELD);
    assert_eq!(admins.get(Feature::Events, 0, 0), (good, 0x900));
    assert_eq!(admins.get(Feature::KeepAlive, 0, 0), (good, 5000));
    assert_eq!(admins.set(Feature::KeepAlive, 7001, 0).0, good);
    assert_eq!(admins.get(Feature::KeepAlive, 0, 0), (good, 8000));
    assert_eq!(admins.get(Feature::WriteCache, 0, 0), (good, 1));
    assert_eq!(admins.set(Feature::WriteCache, 0, 0).0, Status::NOT_CHANGEABLE);
    assert_eq!(admins.set(Feature::WriteCache, 1, 0).0, good);
    assert_eq!(admins.get(Feature::WriteCache, 0, 1).0, Status::NOT_OF_NAMESPACE);
    assert_eq!(admins.get(Feature::WriteCache, 4, 0).0, Status::INVALID_FIELD);
    let saved = Admin::SetFeatures { fid: 7, save: true, value: [0, 0] };
    assert_eq!(admins.execute(saved.encode(0), Data::None).0.status.code(), Status::NOT_SAVEABLE);
    // Masks are each namespace's own.
    let released = MASK_RESERVATION_RELEASED;
    assert_eq!(admins.set(Feature::ReservationMask, released, 1).0, good);
    assert_eq!(admins.get(Feature::ReservationMask, 0, 1), (good, u64::from(released)));
    assert_eq!(admins.get(Feature::ReservationMask, 0, 4), (good, 0));
    assert_eq!(admins.get(Feature::ReservationMask, 0, 2).0, Status::INVALID_NAMESPACE);
    assert_eq!(admins.set(Feature::ReservationMask, 1, 1).0, Status::INVALID_FIELD);
    assert!(!admins.controller.reservation_notice(1, released));
    assert!(admins.controller.reservation_notice(4, released));
    assert_eq!(admins.set(Feature::ReservationMask, MASK_ALL, u32::MAX).0, good);
    assert!(!admins.controller.reservation_notice(4, released));
    assert_eq!(admins.get(Feature::ReservationPersistence, 0, 1), (good, 1));
    let get = |value| Admin::GetFeatures { fid: 0x81, select: 0, value };
    let (_, id) = admins.execute(get(1).encode(0), Data::Read(vec![0; 16]));
    assert_eq!(id, [7; 16]);
    assert_eq!(admins.status(get(0), 0), Status::HOST_ID_FORMAT);
    // What is supported is what can be read.
    let effects = admins.log(LogPage::FeatureEffects, 1024);
    for fid in 0..=255u8 {
        let get = Admin::GetFeatures { fid, select: 3, value: 0 };
        let nsid = u32::from([0x82, 0x83].contains(&fid));
        let has = admins.status(get, nsid) == good;
        assert_eq!(has, effects[usize::from(fid) * 4] & 1 == 1, "feature {fid:#x}");
    }
}

#[test]
fn an_idle_host_stays_and_a_silent_one_goes() {
    let (mut admins, _) = Admins::up(Kind::Io, KATO, 6);
    admins.pass(Duration::from_secs(60), false);
    assert!(!admins.expired && admins.session.is_up() && admins.events.is_empty());
    admins.pass(Duration::from_secs(20), true);
    assert!(admins.expired && !admins.controller.is_ready());
    assert_eq!(admins.controller.poll_timeout(), None);
    assert_eq!(admins.events, [SessionEvent::Failed(SessionError::KeepAlive)]);
    assert!(admins.session.is_over());
}

#[test]
fn a_host_without_keep_alive_stays() {
    let (mut admins, _) = Admins::up(Kind::Io, Duration::ZERO, 7);
    assert_eq!(admins.controller.poll_timeout(), None);
    admins.pass(Duration::from_secs(1000), true);
    assert!(admins.session.is_up());
}

#[test]
fn a_controller_is_shut_down_and_reset() {
    let (mut admins, _) = Admins::up(Kind::Io, KATO, 8);
    let set = |value| Fabrics::PropertySet { property: Property::Configuration, value }.encode();
    let status = Fabrics::PropertyGet { property: Property::Status }.encode();
    assert_eq!(admins.execute(set(0x46_0060), Data::None).0, Completion::SUCCESS);
    assert_eq!((admins.resets, admins.controller.is_ready()), (1, false));
    assert_eq!(admins.execute(status, Data::None).0, Completion::with(0));
    // Without being enabled it does nothing but this.
    assert_eq!(
        admins.status(Admin::Identify(Identify { cns: 1, cntid: 0, csi: 0 }), 0),
        Status::SEQUENCE
    );
    assert_eq!(admins.status(Admin::KeepAlive, 0), Status::SUCCESS);
    // Entries of another size.
    let wrong = admins.execute(set(0x47_0061), Data::None).0.status.code();
    assert_eq!(wrong, Status::INVALID_FIELD);
    assert_eq!(admins.execute(status, Data::None).0, Completion::with(2));
    // A reset ends that too.
    assert_eq!(admins.execute(set(0x46_0060), Data::None).0, Completion::SUCCESS);
    assert_eq!(admins.execute(set(0x46_0061), Data::None).0, Completion::SUCCESS);
    assert_eq!(admins.execute(status, Data::None).0, Completion::with(1));
    let (mut admins, _) = Admins::up(Kind::Io, KATO, 9);
    let Admins { now, session, sent, events, .. } = &mut admins;
    session.shut_down(&mut SessionCx { now: *now, tx: sent, events });
    admins.settle();
    assert_eq!(admins.events, [SessionEvent::ShutDown]);
    assert!(admins.session.is_over() && !admins.controller.is_ready());
}

#[test]
fn properties_that_cannot_be_set_are_refused() {
    let (mut admins, _) = Admins::up(Kind::Io, KATO, 10);
    for property in [Property::Capabilities, Property::Status, Property::SubsystemReset] {
        let set = Fabrics::PropertySet { property, value: 1 }.encode();
        assert_eq!(admins.execute(set, Data::None).0.status.code(), Status::INVALID_FIELD);
    }
    let get = |property| Fabrics::PropertyGet { property }.encode();
    let reset = admins.execute(get(Property::SubsystemReset), Data::None).0;
    assert_eq!(reset.status.code(), Status::INVALID_FIELD);
    let timeouts = admins.execute(get(Property::ReadyTimeouts), Data::None).0;
    assert_eq!(timeouts, Completion::with(15));
    // Properties are the admin queue's.
    let answer = admins.controller.fabrics(1, &get(Property::Status));
    assert_eq!(answer, Answer::Complete(Status::INVALID_OPCODE.no_retry().into()));
}

#[test]
fn commands_come_back_when_the_transport_closes() {
    let (mut admins, _) = Admins::up(Kind::Io, KATO, 11);
    let Admins { now, session, sent, events, .. } = &mut admins;
    let command = Command { token: 3, sqe: Admin::KeepAlive.encode(0), data: Data::None };
    session.submit(command, *now, sent).expect("room");
    session.transport_closed(&mut SessionCx { now: *now, tx: sent, events });
    let [SessionEvent::Finished(finished), SessionEvent::Failed(error)] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!((finished.token, finished.completion), (3, None));
    assert_eq!(*error, SessionError::Connection(host::Error::TransportClosed));
}
