//! The state machine, step by step: what it does in which order, and what it never does.

use std::time::Duration;

use lunet_gateway::{
    Access, AccessState, Ack, Action, Admission, Answer, Attention, ClientName, Condition, Config,
    Contents, Epoch, Failure, Gateway, GatewayId, Input, LONG_ENOUGH, Lost, Message, Notice,
    NotifyId, OpId, Order, Outcome, Owner, Port, Portals, Record, Refusal, Registered, Reply,
    Request, Reserved, Response, Sanitize, TEN_YEARS, Tag, Taker, Volume,
};

const SECOND: Duration = Duration::from_secs(1);

fn client(number: u16) -> ClientName {
    ClientName { address: format!("192.0.2.7:0/{number}"), lock: format!("client.{number}") }
}

fn record(epoch: u64, owner: Option<u16>) -> Record {
    let port = |n: u16| Port { gateway: GatewayId(n), group: n + 1, relative: n + 1 };
    let ports = (0..3).map(port).collect();
    let mut record = Record::new("iqn.2026-11.local:g", [7; 32], ports, Contents::default());
    record.epoch = Epoch(epoch);
    record.owner = owner.map(|n| Owner {
        gateway: GatewayId(n),
        client: client(n),
        portals: Portals::default(),
    });
    record
}

/// The tag of [`record`].
fn tag() -> Tag {
    record(1, None).tag()
}

/// A client that has the images of [`record`] open, which are none.
fn made(number: u16) -> Reply {
    Reply::Client { name: client(number), images: Vec::new() }
}

fn volume(image: &str) -> Volume {
    Volume {
        image: image.into(),
        id: "1a2b".into(),
        bytes: 512,
        naa: [6; 16],
        serial: String::new(),
        reserved: Reserved::default(),
        modes: Vec::new(),
        sanitize: Sanitize::None,
    }
}

fn portals(number: u8) -> Portals {
    Portals { iscsi: Some(([192, 0, 2, number], 3260).into()), nvme: None }
}

fn bytes(record: &Record) -> Vec<u8> {
    record.encode().unwrap()
}

/// A gateway with its clock.
struct Bench {
    gateway: Gateway,
    now: Duration,
    /// The ping that it waits for.
    ping: Option<OpId>,
    /// The latest announcement of a change.
    announced: Option<OpId>,
}

impl Bench {
    /// Gateway 1 of three, as standby of that record.
    fn standby(record: &Record) -> Self {
        Self::ranked(record, 0)
    }

    /// The same with that rank.
    fn ranked(record: &Record, rank: u32) -> Self {
        let config = Config { me: GatewayId(1), rank, portals: portals(1) };
        let gateway = Gateway::new(config, SECOND);
        let mut bench = Self { gateway, now: SECOND, ping: None, announced: None };
        let actions = bench.actions();
        let [Action::NewClient(op)] = actions[..] else { panic!("{actions:?}") };
        let images = record
            .contents
            .volumes
            .iter()
            .map(|volume| (volume.image.clone(), volume.bytes))
            .collect();
        let actions = bench.done(op, Ok(Reply::Client { name: client(1), images }));
        let op = actions.iter().find_map(|action| match action {
            Action::ReadRecord(op) => Some(*op),
            _ => None,
        });
        bench.done(op.unwrap(), Ok(Reply::Record(bytes(record))));
        assert_eq!(bench.gateway.condition(), Condition::Standby);
        bench
    }

    /// The same, when it has taken the group over.
    fn owner() -> Self {
        let mut bench = Self::standby(&record(4, None));
        bench.takes_over(&record(4, None));
        bench.all_watchers_answer();
        assert_eq!(bench.gateway.condition(), Condition::Owner);
        bench
    }

    /// It announces that it owns the group, and nobody who watches is dead.
    fn all_watchers_answer(&mut self) {
        let op = self.announced.expect("it is announced");
        self.done(op, Ok(Reply::Acks { acks: Vec::new(), all: true }));
    }

    fn actions(&mut self) -> Vec<Action> {
        let actions: Vec<_> = std::iter::from_fn(|| self.gateway.action()).collect();
        for action in &actions {
            if let Action::Notify(op, bytes, _) = action
                && matches!(Message::decode(bytes), Ok((_, Message::Changed(_))))
            {
                self.announced = Some(*op);
            }
            if let Action::Notify(op, bytes, _) = action
                && matches!(Message::decode(bytes), Ok((_, Message::Ping(_))))
            {
                self.ping = Some(*op);
            }
        }
        actions
    }

    fn input(&mut self, input: Input) -> Vec<Action> {
        self.gateway.handle(self.now, input);
        self.actions()
    }

    fn done(&mut self, op: OpId, result: lunet_gateway::Result) -> Vec<Action> {
        self.input(Input::Done(op, result))
    }

    /// An administrator has it take over, and everything goes well: the names of the steps.
    fn takes_over(&mut self, record: &Record) -> Vec<&'static str> {
        let actions = self.input(Input::Order(Order::TakeOver));
        self.steps(actions, record, usize::MAX, Failure::Other(5)).0
    }

    /// Goes on with a takeover until its end, or until the step with that number fails: all steps, and the last actions.
    fn steps(
        &mut self,
        mut actions: Vec<Action>,
        record: &Record,
        fails_at: usize,
        failure: Failure,
    ) -> (Vec<&'static str>, Vec<Action>) {
        let (mut names, mut named) = (Vec::new(), Box::new(record.clone()));
        loop {
            let step = actions.iter().find_map(|action| match action {
                Action::Look(op) => {
                    let locks = record.owner.iter().map(|owner| owner.client.clone()).collect();
                    Some(("look", *op, Reply::Seen { record: bytes(record), locks }))
                }
                Action::Blocklist(op, address, limit) => {
                    assert_eq!((&address[..], *limit), ("192.0.2.7:0/0", TEN_YEARS));
                    Some(("blocklist", *op, Reply::Listed(TEN_YEARS)))
                }
                Action::WaitForMap(op) => Some(("map", *op, Reply::Done)),
                Action::BreakLock(op, owner) => {
                    assert_eq!(*owner, client(0));
                    Some(("break", *op, Reply::Done))
                }
                Action::Acquire(op) => Some(("acquire", *op, Reply::Done)),
                Action::Refresh(op) => Some(("refresh", *op, Reply::Done)),
                Action::ReadRecord(op) => Some(("read", *op, Reply::Record(bytes(&named)))),
                Action::Swap { op, expect, record: next } if next.epoch == record.epoch => {
                    assert_eq!(*expect, (record.epoch, record.revision));
                    let taker = next.taker.as_ref().expect("it names the one that takes the group");
                    assert_eq!(taker.gateway, GatewayId(1));
                    named = next.clone();
                    Some(("name", *op, Reply::Done))
                }
                Action::Swap { op, expect, record: next } => {
                    assert_eq!(*expect, (named.epoch, named.revision));
                    assert_eq!((next.epoch, &next.taker), (record.epoch.next(), &None));
                    Some(("swap", *op, Reply::Done))
                }
                _ => None,
            });
            let Some((name, op, reply)) = step else { return (names, actions) };
            names.push(name);
            if names.len() > fails_at {
                return (names, self.done(op, Err(failure)));
            }
            actions = self.done(op, Ok(reply));
            if name == "swap" {
                return (names, actions);
            }
        }
    }

    /// An administrator has the group move to gateway 2, which is there.
    fn moves(&mut self) -> Vec<Action> {
        let actions = self.input(Input::Order(Order::MoveTo(GatewayId(2))));
        match actions[..] {
            [Action::Notify(op, ..)] => self.is_there(op),
            _ => actions,
        }
    }

    /// Gateway 2 answers what the owner asks.
    fn is_there(&mut self, op: OpId) -> Vec<Action> {
        let acks =
            vec![Ack(Response::NotOwner(self.gateway.gate().epoch(), GatewayId(2)).encode())];
        self.done(op, Ok(Reply::Acks { acks, all: true }))
    }

    fn notified(&mut self, message: &Message) -> Vec<Action> {
        self.input(Input::Notified(NotifyId(9), message.encode(tag())))
    }

    /// Lets time pass, second by second: the read of the record that was begun.
    fn pass(&mut self, seconds: u32) -> Option<OpId> {
        let mut read = None;
        for _ in 0..seconds {
            self.now += SECOND;
            let actions = self.input(Input::Tick);
            read = read.or(actions.iter().find_map(|action| match action {
                Action::ReadRecord(op) => Some(*op),
                _ => None,
            }));
        }
        read
    }

    /// Answers pings for so many seconds with these.
    fn pings(&mut self, seconds: u32, acks: &[Response], delay: Duration) -> Vec<Action> {
        let mut last = Vec::new();
        for _ in 0..seconds {
            self.now += SECOND;
            self.input(Input::Tick);
            let ping = self.ping.take();
            let Some(op) = ping else { continue };
            self.now += delay;
            let acks = acks.iter().map(|response| Ack(response.encode())).collect();
            last = self.done(op, Ok(Reply::Acks { acks, all: true }));
            if self.gateway.condition() != Condition::Standby {
                break;
            }
        }
        last
    }
}

const FENCED_STEPS: [&str; 9] =
    ["look", "blocklist", "map", "break", "name", "acquire", "refresh", "read", "swap"];

#[test]
fn a_takeover_has_one_order() {
    let before = record(4, Some(0));
    let mut bench = Bench::standby(&before);
    let actions = bench.input(Input::Order(Order::TakeOver));
    let (names, actions) = bench.steps(actions, &before, usize::MAX, Failure::Other(5));
    assert_eq!(names, FENCED_STEPS);
    let place = |wanted: fn(&Action) -> bool| actions.iter().position(wanted).unwrap();
    let load = place(|action| matches!(action, Action::Load(_)));
    let told = place(|action| *action == Action::Attention(Attention::AccessChanged));
    let open = place(|action| matches!(action, Action::Gate(gate) if gate.is_open()));
    let access = place(|action| matches!(action, Action::Access(..)));
    assert!(load < told && told < open && open < access);
    let Action::Access(epoch, ports, Access(states)) = &actions[access] else { unreachable!() };
    assert_eq!(*ports, record(4, Some(0)).ports);
    assert_eq!((*epoch, states[1]), (Epoch(5), (2, AccessState::Optimized)));
}

#[test]
fn a_group_without_an_owner_needs_no_fence() {
    let mut bench = Bench::standby(&record(4, None));
    assert_eq!(
        bench.takes_over(&record(4, None)),
        ["look", "name", "acquire", "refresh", "read", "swap"]
    );
}

/// A takeover has come to nothing: the gateway gets another client, which is there.
fn with_another_client(bench: &mut Bench, actions: &[Action]) -> Vec<Action> {
    let [.., Action::DropClient { release: true }, Action::NewClient(op)] = actions[..] else {
        panic!("{actions:?}")
    };
    assert!(!bench.gateway.gate().is_open());
    client_made(bench, op, made(8))
}

/// A client is there: what is begun with it beside the read of the record.
fn client_made(bench: &mut Bench, op: OpId, client: Reply) -> Vec<Action> {
    let mut actions = bench.done(op, Ok(client));
    actions.retain(|action| !matches!(action, Action::ReadRecord(_)));
    actions
}

/// A takeover fails at that step, and again if it is gone on with.
fn fails_at(at: usize, failure: Failure, ordered: bool) {
    let looks = |action: &Action| matches!(action, Action::Look(_));
    let before = record(4, Some(0));
    let mut bench = Bench::standby(&before);
    let actions = match ordered {
        true => bench.input(Input::Order(Order::TakeOver)),
        false => bench.pings(8, &[], SECOND / 10),
    };
    let (names, actions) = bench.steps(actions, &before, at, failure);
    assert_eq!(names, FENCED_STEPS[..=at]);
    assert_eq!(refusal(&actions), None);
    let actions = with_another_client(&mut bench, &actions);
    if at == 0 && !ordered {
        assert_eq!(bench.gateway.condition(), Condition::Standby);
        return;
    }
    // Nobody else may know that the owner is shut out, and nobody serves. Once: others are to have their turn, too.
    assert_eq!(bench.gateway.condition(), Condition::TakingOver);
    assert!(actions.iter().any(looks));
    let (names, actions) = bench.steps(actions, &before, at, failure);
    assert_eq!(names, FENCED_STEPS[..=at]);
    let told = ordered.then_some((Order::TakeOver, Refusal::NotReady));
    assert_eq!(refusal(&actions), told);
    let actions = with_another_client(&mut bench, &actions);
    assert_eq!(bench.gateway.condition(), Condition::Standby);
    assert!(!actions.iter().any(looks));
}

#[test]
fn whatever_fails_leaves_a_standby_with_a_new_client_which_ends_what_shuts_the_owner_out() {
    for (at, step) in FENCED_STEPS.into_iter().enumerate() {
        for failure in [Failure::Lost, Failure::Blocklisted, Failure::TimedOut, Failure::Other(5)] {
            if (step, failure) != ("name", Failure::Lost) {
                [true, false].into_iter().for_each(|ordered| fails_at(at, failure, ordered));
            }
        }
    }
}

#[test]
fn a_takeover_ends_whatever_its_owner_has_written_before_it_was_shut_out() {
    let before = record(4, Some(0));
    let mut answered = record(4, Some(0));
    answered.revision += 1;
    // Or it has left, to give the group to another gateway or other volumes to its own.
    let mut left = record(5, None);
    left.heir = Some(GatewayId(0));
    let unlocked = ["look", "name", "acquire", "refresh", "read", "swap"];
    for (now, steps) in [(answered, &FENCED_STEPS[..]), (left, &unlocked[..])] {
        let mut bench = Bench::standby(&before);
        let actions = bench.pings(8, &[], SECOND / 10);
        let (names, actions) = bench.steps(actions, &before, 4, Failure::Lost);
        assert_eq!(names.last(), Some(&"name"));
        assert!(matches!(actions[..], [Action::Look(_)]), "the owner is shut out: {actions:?}");
        let (names, _) = bench.steps(actions, &now, usize::MAX, Failure::Lost);
        assert_eq!(names, steps);
        assert_eq!(bench.gateway.condition(), Condition::Owner);
    }
    let again = |ordered: bool, owner| {
        let mut bench = Bench::standby(&before);
        let actions = match ordered {
            true => bench.input(Input::Order(Order::TakeOver)),
            false => bench.pings(8, &[], SECOND / 10),
        };
        let (_, actions) = bench.steps(actions, &before, 4, Failure::Lost);
        let (names, actions) =
            bench.steps(actions, &record(6, Some(owner)), usize::MAX, Failure::Lost);
        (names.len(), refusal(&actions).map(|(_, why)| why), bench.gateway.condition())
    };
    // The owner gave its group other volumes by a move to itself: whoever has ordered a takeover wants another one than this
    // gateway still, and to others it is there.
    assert_eq!(again(true, 0), (FENCED_STEPS.len(), None, Condition::Owner));
    assert_eq!(again(false, 0), (1, None, Condition::Standby));
    // It is somebody else's now, who has been quicker.
    assert_eq!(again(true, 2), (1, Some(Refusal::Overtaken), Condition::Standby));
    assert_eq!(again(false, 2), (1, None, Condition::Standby));
}

#[test]
fn an_order_to_take_over_does_not_outlive_a_cluster_that_was_away() {
    let before = record(4, Some(0));
    let mut bench = Bench::standby(&before);
    let actions = bench.input(Input::Order(Order::TakeOver));
    let (_, actions) = bench.steps(actions, &before, 0, Failure::TimedOut);
    let [Action::DropClient { .. }, Action::NewClient(op)] = actions[..] else {
        panic!("{actions:?}")
    };
    bench.now += 30 * SECOND;
    let actions = client_made(&mut bench, op, made(8));
    assert_eq!(refusal(&actions), Some((Order::TakeOver, Refusal::NotReady)));
    assert_eq!(bench.gateway.condition(), Condition::Standby);
}

#[test]
fn a_takeover_waits_for_the_images_that_its_record_names_now() {
    let mut before = record(4, Some(0));
    before.contents.volumes = vec![volume("rbd/a")];
    let mut now = before.clone();
    (now.revision, now.contents.volumes[0].bytes) = (now.revision + 1, 1024);
    let mut bench = Bench::standby(&before);
    let actions = bench.input(Input::Order(Order::TakeOver));
    let (names, actions) = bench.steps(actions, &now, usize::MAX, Failure::Lost);
    assert_eq!(names, ["look"]);
    let [Action::DropClient { .. }, Action::NewClient(op)] = actions[..] else {
        panic!("{actions:?}")
    };
    let images = vec![("rbd/a".into(), 1024)];
    let client = Reply::Client { name: client(1), images };
    let actions = client_made(&mut bench, op, client);
    let (names, _) = bench.steps(actions, &now, usize::MAX, Failure::Lost);
    assert_eq!(names, FENCED_STEPS);
    assert_eq!(bench.gateway.condition(), Condition::Owner);
}

#[test]
fn an_order_to_take_over_is_carried_out_by_the_client_that_is_being_made() {
    let mut before = record(4, Some(0));
    before.contents.volumes = vec![volume("rbd/a")];
    let mut now = before.clone();
    (now.revision, now.contents.volumes[0].bytes) = (now.revision + 1, 1024);
    let images = vec![("rbd/a".into(), 1024)];
    let another = Reply::Client { name: client(1), images };
    // The owner gives its volume another size: what this gateway reads of it, with the client that is made for it.
    let resized = || {
        let mut bench = Bench::standby(&before);
        let actions = bench.notified(&Message::Changed(Epoch(4)));
        let read = actions.iter().find_map(|action| match action {
            Action::ReadRecord(op) => Some(*op),
            _ => None,
        });
        let actions = bench.done(read.expect("it reads"), Ok(Reply::Record(bytes(&now))));
        let [.., Action::DropClient { .. }, Action::NewClient(op)] = actions[..] else {
            panic!("{actions:?}")
        };
        assert_eq!(bench.gateway.condition(), Condition::Fenced);
        (bench, op)
    };
    let (mut bench, op) = resized();
    assert_eq!(bench.input(Input::Order(Order::TakeOver)), []);
    let actions = client_made(&mut bench, op, another.clone());
    // It was not tried before, so it is gone on with if it comes to nothing.
    let (names, actions) = bench.steps(actions, &now, 2, Failure::TimedOut);
    assert_eq!((names.last(), refusal(&actions)), (Some(&"map"), None));
    let [.., Action::NewClient(op)] = actions[..] else { panic!("{actions:?}") };
    let actions = client_made(&mut bench, op, another.clone());
    let (names, _) = bench.steps(actions, &now, usize::MAX, Failure::Lost);
    assert_eq!((names, bench.gateway.condition()), (FENCED_STEPS.to_vec(), Condition::Owner));

    // Nobody waits any more.
    let (mut bench, op) = resized();
    assert_eq!(bench.input(Input::Order(Order::TakeOver)), []);
    bench.now += 30 * SECOND;
    let actions = client_made(&mut bench, op, another);
    assert_eq!(refusal(&actions), Some((Order::TakeOver, Refusal::NotReady)));
}

#[test]
fn an_order_to_take_over_holds_for_the_takeover_that_is_under_way() {
    let before = record(4, Some(0));
    let mut bench = Bench::standby(&before);
    let actions = bench.pings(8, &[], SECOND / 10);
    assert_eq!(bench.input(Input::Order(Order::TakeOver)), []);
    // Without the order the owner, which has come back in another epoch, would be left alone.
    let (names, actions) = bench.steps(actions, &before, 4, Failure::Lost);
    assert_eq!(names.last(), Some(&"name"));
    let (names, _) = bench.steps(actions, &record(6, Some(0)), usize::MAX, Failure::Lost);
    assert_eq!((&names[..], bench.gateway.condition()), (&FENCED_STEPS[..], Condition::Owner));

    // Another gateway was quicker than the one that has looked at nothing yet: the order is of that owner.
    let mut bench = Bench::standby(&before);
    let actions = bench.pings(8, &[], SECOND / 10);
    bench.input(Input::Order(Order::TakeOver));
    let [Action::Look(op)] = actions[..] else { panic!("{actions:?}") };
    let seen = Reply::Seen { record: bytes(&record(5, Some(2))), locks: vec![client(2)] };
    let actions = bench.done(op, Ok(seen));
    let [Action::Blocklist(_, address, _)] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(*address, client(2).address);
}

#[test]
fn a_takeover_that_hangs_is_given_up() {
    let mut bench = Bench::standby(&record(4, Some(0)));
    bench.input(Input::Order(Order::TakeOver));
    assert_eq!(bench.gateway.timeout(), Some(bench.now + 30 * SECOND));
    bench.now += 30 * SECOND;
    let actions = bench.input(Input::Tick);
    assert!(matches!(actions[..], [Action::DropClient { .. }, Action::NewClient(_)]));
}

#[test]
fn an_owner_that_answers_is_left_alone_and_a_silent_one_is_not() {
    let mut bench = Bench::standby(&record(4, Some(0)));
    bench.pings(
        60,
        &[Response::NotOwner(Epoch(4), GatewayId(2)), Response::Owner(Epoch(4))],
        Duration::ZERO,
    );
    assert_eq!(bench.gateway.condition(), Condition::Standby);
    // Others answer, and nobody is the owner: an empty list and a list of others are the same.
    bench.pings(4, &[Response::NotOwner(Epoch(4), GatewayId(2))], SECOND / 10);
    assert_eq!(bench.gateway.condition(), Condition::Standby);
    let actions = bench.pings(3, &[], SECOND / 10);
    assert_eq!(bench.gateway.condition(), Condition::TakingOver);
    assert!(matches!(actions[..], [Action::Look(_)]));
}

#[test]
fn pings_that_were_late_here_say_nothing_of_the_owner() {
    let mut bench = Bench::standby(&record(4, Some(0)));
    bench.pings(60, &[], 10 * SECOND);
    assert_eq!(bench.gateway.condition(), Condition::Standby);
}

/// An administrator's takeover that sees this, until it does something else than to look: what that is, and after how many looks.
fn looks(bench: &mut Bench, record: &Record, locks: &[ClientName]) -> (u32, Vec<Action>) {
    let mut actions = bench.input(Input::Order(Order::TakeOver));
    let mut looks = 0;
    while let [Action::Look(op)] = actions[..] {
        looks += 1;
        let seen = Reply::Seen { record: bytes(record), locks: locks.to_vec() };
        actions = bench.done(op, Ok(seen));
        if actions.is_empty() {
            bench.now += SECOND / 2;
            actions = bench.input(Input::Tick);
        }
    }
    (looks, actions)
}

#[test]
fn a_lock_of_somebody_who_is_no_gateway_is_left_alone() {
    let before = record(4, Some(0));
    let mut bench = Bench::standby(&before);
    let (count, actions) = looks(&mut bench, &before, &[client(0), client(2)]);
    let notice = actions.iter().find_map(|action| match action {
        Action::Notice(Notice::InUse { address, .. }) => Some(address),
        _ => None,
    });
    assert_eq!((count, notice), (6, Some(&client(2).address)), "{actions:?}");
    assert_eq!(refusal(&actions), Some((Order::TakeOver, Refusal::InTheWay)));
    assert!(!actions.iter().any(|action| matches!(action, Action::Blocklist(..))), "{actions:?}");
    assert_eq!(bench.gateway.condition(), Condition::Standby);
    // It is tried again by itself, later.
    let actions = bench.pings(26, &[], SECOND / 10);
    assert_eq!(bench.gateway.condition(), Condition::Standby, "{actions:?}");
    bench.pings(8, &[], SECOND / 10);
    assert_eq!(bench.gateway.condition(), Condition::TakingOver);
}

#[test]
fn another_taker_has_a_while_and_is_fenced_then_and_an_own_one_at_once() {
    for (gateway, expected) in [(2, 6), (1, 1)] {
        let taker = Taker { gateway: GatewayId(gateway), client: client(2) };
        let before = Record { taker: Some(taker), ..record(4, Some(0)) };
        let mut bench = Bench::standby(&before);
        // It may have the lock, or be about to get it.
        let (count, mut actions) = looks(&mut bench, &before, &[client(0)]);
        assert_eq!(count, expected);
        let mut listed = Vec::new();
        while let [Action::Blocklist(op, address, _)] = &actions[..] {
            listed.push(address.clone());
            actions = bench.done(*op, Ok(Reply::Listed(LONG_ENOUGH)));
        }
        assert_eq!(listed, [client(0).address, client(2).address]);
        assert!(matches!(actions[..], [Action::WaitForMap(_)]));
    }
}

#[test]
fn two_servers_with_one_number_are_told_of() {
    let notices = |actions: &[Action]| {
        let is = |action: &&Action| matches!(action, Action::Notice(Notice::SameNumber(1)));
        actions.iter().filter(is).count()
    };
    // The record says that gateway 1 is the owner, and it answers: it is not this one.
    let mut bench = Bench::standby(&record(4, Some(1)));
    let told: usize = (0..5)
        .map(|_| notices(&bench.pings(1, &[Response::Owner(Epoch(4))], Duration::ZERO)))
        .sum();
    assert_eq!(told, 1, "once");
    // Two standbys, or a standby that is the owner as well.
    for twice in [[1, 2], [2, 2]] {
        let mut bench = Bench::standby(&record(4, None));
        bench.takes_over(&record(4, None));
        let op = bench.announced.expect("it is announced");
        let acks = twice.map(|n| Ack(Response::NotOwner(Epoch(5), GatewayId(n)).encode())).into();
        let actions = bench.done(op, Ok(Reply::Acks { acks, all: true }));
        let told = actions.iter().any(|it| matches!(it, Action::Notice(Notice::SameNumber(_))));
        assert!(told, "{twice:?}: {actions:?}");
    }
}

#[test]
fn a_group_does_not_go_to_a_gateway_that_does_not_answer() {
    for acks in [Vec::new(), vec![Ack(Response::NotOwner(Epoch(5), GatewayId(0)).encode())]] {
        let mut bench = Bench::owner();
        let actions = bench.input(Input::Order(Order::MoveTo(GatewayId(2))));
        let [Action::Notify(op, ..)] = actions[..] else { panic!("{actions:?}") };
        let actions = bench.done(op, Ok(Reply::Acks { acks, all: false }));
        let order = Order::MoveTo(GatewayId(2));
        assert_eq!(actions, [Action::Refuse(order, Refusal::Absent)]);
        assert!(bench.gateway.gate().is_open());
    }
}

#[test]
fn a_standby_hears_why_its_owner_does_not_give_the_group_away() {
    let order = Order::MoveTo(GatewayId(2));
    let refused = |answers: lunet_gateway::Result| {
        let mut one = Bench::standby(&record(5, Some(0)));
        let actions = one.input(Input::Order(order));
        let [Action::Notify(op, bytes, _)] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!(Message::decode(bytes).unwrap().1, Message::Move(Epoch(5), GatewayId(2)));
        refusal(&one.done(*op, answers)).map(|(_, why)| why)
    };
    let none = Response::NotOwner(Epoch(5), GatewayId(2));
    for (answer, all, why) in [
        (Response::Refused(Refusal::JobUnderWay), false, Some(Refusal::JobUnderWay)),
        (Response::Owner(Epoch(4)), true, Some(Refusal::NotReady)),
        (Response::Owner(Epoch(5)), true, None),
        (none.clone(), true, Some(Refusal::NoOwner)),
        // Somebody has not answered, who may be the owner.
        (none.clone(), false, None),
    ] {
        assert_eq!(refused(acks(&[none.clone(), answer], all)), why);
    }
    assert_eq!(refused(Err(Failure::TimedOut)), None);
    // The owner says so, and begins a move that it does not refuse.
    let mut owner = Bench::owner();
    for (to, why) in [(1, Refusal::IsOwner), (9, Refusal::Unknown)] {
        let actions = owner.notified(&Message::Move(Epoch(5), GatewayId(to)));
        let told = Action::Acknowledge(NotifyId(9), Response::Refused(why).encode());
        assert_eq!(actions, [told, Action::Refuse(Order::MoveTo(GatewayId(to)), why)]);
    }
    let actions = owner.notified(&Message::Move(Epoch(5), GatewayId(2)));
    let told = Action::Acknowledge(NotifyId(9), Response::Owner(Epoch(5)).encode());
    assert!(matches!(&actions[..], [first, Action::Notify(..)] if *first == told));
}

#[test]
fn an_owner_that_is_to_take_over_looks_whether_it_is_one_still() {
    let asked = |result: lunet_gateway::Result| {
        let mut owner = Bench::owner();
        let actions = owner.input(Input::Order(Order::TakeOver));
        let [Action::ReadRecord(op)] = actions[..] else { panic!("{actions:?}") };
        let actions = owner.done(op, result);
        (owner, actions)
    };
    let own = bytes(Bench::owner().gateway.record().expect("it has one"));
    for (result, why) in
        [(Ok(Reply::Record(own)), Refusal::IsOwner), (Err(Failure::TimedOut), Refusal::NoClient)]
    {
        let (owner, actions) = asked(result);
        assert_eq!(refusal(&actions), Some((Order::TakeOver, why)));
        assert_eq!(owner.gateway.condition(), Condition::Owner);
    }
    // It stood still, and another one has taken over: its next client hears of that.
    let now = record(9, Some(0));
    for result in [Ok(Reply::Record(bytes(&now))), Err(Failure::Blocklisted)] {
        let (mut owner, actions) = asked(result);
        assert_eq!(refusal(&actions), None);
        let [.., Action::NewClient(op)] = actions[..] else { panic!("{actions:?}") };
        assert_eq!(owner.gateway.condition(), Condition::Fenced);
        let actions = client_made(&mut owner, op, made(8));
        let (names, actions) = owner.steps(actions, &now, usize::MAX, Failure::Lost);
        assert_eq!(names, ["look"]);
        assert_eq!(refusal(&actions), Some((Order::TakeOver, Refusal::Overtaken)));
    }
    // Or it loses its client before it has looked.
    let mut owner = Bench::owner();
    owner.input(Input::Order(Order::TakeOver));
    let actions = owner.notified(&Message::Ping(Epoch(9)));
    let [.., Action::NewClient(op)] = actions[..] else { panic!("{actions:?}") };
    let actions = client_made(&mut owner, op, made(8));
    assert!(matches!(actions[..], [.., Action::Look(_)]), "{actions:?}");
}

#[test]
fn a_gateway_without_a_client_says_so() {
    let config = Config { me: GatewayId(1), rank: 0, portals: portals(1) };
    let mut gateway = Gateway::new(config, SECOND);
    let mut input = |input| {
        gateway.handle(SECOND, input);
        std::iter::from_fn(|| gateway.action()).collect::<Vec<_>>()
    };
    let actions = input(Input::Tick);
    let [Action::NewClient(op)] = actions[..] else { panic!("{actions:?}") };
    for order in [Order::TakeOver, Order::MoveTo(GatewayId(2))] {
        assert_eq!(refusal(&input(Input::Order(order))), Some((order, Refusal::NoRecord)));
    }
    input(Input::Done(op, Err(Failure::TimedOut)));
    for order in [Order::TakeOver, Order::MoveTo(GatewayId(2))] {
        assert_eq!(refusal(&input(Input::Order(order))), Some((order, Refusal::NoClient)));
    }
}

#[test]
fn each_refusal_says_what_to_do_next() {
    use Refusal::*;
    for refusal in [
        NotReady,
        NoClient,
        NoRecord,
        InTheWay,
        IsOwner,
        Unknown,
        Absent,
        NotOwner,
        NoMore,
        NotDrained,
        JobUnderWay,
        Orphaned,
        Overtaken,
        NoOwner,
        Crowded,
    ] {
        let (why, next) = (refusal.to_string(), refusal.next());
        let verbs = ["try again", "lunet group", "nothing has to be done", "restart lunet"];
        assert!(verbs.iter().any(|verb| next.contains(verb)), "{why}: {next}");
        assert!(!why.contains(':') && !next.ends_with('.'), "{why}: {next}");
    }
}

/// An order that was given in the epoch of before is given again, and not lost, whether this gateway has heard of the new one by the
/// time of the answer or not.
#[test]
fn a_move_that_the_owner_of_before_was_asked_for_is_asked_of_the_next() {
    let order = Order::MoveTo(GatewayId(1));
    let asked = |actions: &[Action], epoch| {
        let [.., Action::Notify(op, message, _)] = actions else { panic!("{actions:?}") };
        let (_, message) = Message::decode(message).expect("a message");
        assert_eq!(message, Message::Move(Epoch(epoch), GatewayId(1)));
        *op
    };
    for heard in [false, true] {
        let mut bench = Bench::standby(&record(4, Some(0)));
        let actions = bench.input(Input::Order(order));
        let op = asked(&actions, 4);
        let now = Reply::Record(bytes(&record(5, Some(2))));
        if heard {
            let actions = bench.notified(&Message::Changed(Epoch(5)));
            let [.., Action::ReadRecord(op)] = actions[..] else { panic!("{actions:?}") };
            bench.done(op, Ok(now.clone()));
        }
        let actions = bench.done(op, acks(&[Response::Owner(Epoch(5))], true));
        let [.., Action::ReadRecord(op)] = actions[..] else { panic!("{heard}: {actions:?}") };
        let actions = bench.done(op, Ok(now));
        let op = asked(&actions, 5);
        let actions = bench.done(op, acks(&[Response::Owner(Epoch(5))], true));
        assert_eq!(refusal(&actions), None, "{heard}");
    }
    // Who cannot read the record does not ask for ever.
    let mut bench = Bench::standby(&record(4, Some(0)));
    let actions = bench.input(Input::Order(order));
    let op = asked(&actions, 4);
    let actions = bench.done(op, acks(&[Response::Owner(Epoch(5))], true));
    let [.., Action::ReadRecord(op)] = actions[..] else { panic!("{actions:?}") };
    let actions = bench.done(op, Err(Failure::TimedOut));
    assert_eq!(refusal(&actions), Some((order, Refusal::NotReady)));
}

#[test]
fn a_move_that_is_ordered_while_it_is_under_way_is_not_refused() {
    let to = |gateway| Input::Order(Order::MoveTo(GatewayId(gateway)));
    let told = Action::Acknowledge(NotifyId(9), Response::Owner(Epoch(5)).encode());
    // At the owner, while it asks for the other gateway and while it drains: once is enough.
    let mut owner = Bench::owner();
    let actions = owner.input(to(2));
    let [Action::Notify(op, ..)] = actions[..] else { panic!("{actions:?}") };
    let again = |owner: &mut Bench| {
        assert_eq!(owner.input(to(2)), []);
        let answered = owner.notified(&Message::Move(Epoch(5), GatewayId(2)));
        assert!(answered.iter().eq([&told]), "{answered:?}");
    };
    again(&mut owner);
    assert!(matches!(owner.is_there(op)[..], [.., Action::Drain(_)]));
    again(&mut owner);
    let three = Order::MoveTo(GatewayId(0));
    assert_eq!(refusal(&owner.input(to(0))), Some((three, Refusal::NotReady)));

    // At the heir, which takes it, and at another gateway, which knows of it or hears that nobody owns the group.
    let left = |bench: &mut Bench, heir| {
        let now = Record { heir: Some(GatewayId(heir)), ..record(5, None) };
        let actions = bench.notified(&Message::Changed(Epoch(5)));
        let [.., Action::ReadRecord(op)] = actions[..] else { panic!("{actions:?}") };
        bench.done(op, Ok(Reply::Record(bytes(&now))));
    };
    let standby = || Bench::standby(&record(4, Some(0)));
    let mut heir = standby();
    left(&mut heir, 1);
    assert_eq!(heir.gateway.condition(), Condition::TakingOver);
    assert_eq!(heir.input(to(1)), []);
    let mut other = standby();
    left(&mut other, 2);
    assert_eq!(other.input(to(2)), []);
    let mut other = standby();
    let actions = other.input(to(2));
    let [Action::Notify(op, ..)] = actions[..] else { panic!("{actions:?}") };
    left(&mut other, 2);
    let none = Response::NotOwner(Epoch(5), GatewayId(2));
    assert_eq!(refusal(&other.done(op, acks(&[none.clone(), none], true))), None);
}

/// The answer to the blocklisting of a silent owner, and what comes of it.
fn blocklisted(bench: &mut Bench, reply: Reply) -> Vec<Action> {
    let before = record(4, Some(0));
    let mut actions = bench.pings(60, &[], SECOND / 10);
    let [Action::Look(op)] = actions[..] else { panic!("{actions:?}") };
    actions = bench.done(op, Ok(Reply::Seen { record: bytes(&before), locks: vec![client(0)] }));
    let [Action::Blocklist(op, ..)] = actions[..] else { panic!("{actions:?}") };
    bench.done(op, Ok(reply))
}

#[test]
fn an_entry_that_ends_too_soon_is_no_fence() {
    let second = Duration::from_secs(1);
    for lasts in [Duration::ZERO, Duration::from_secs(3600), LONG_ENOUGH - second] {
        let mut bench = Bench::standby(&record(4, Some(0)));
        let actions = blocklisted(&mut bench, Reply::Listed(lasts));
        // And it goes on with its pings, by the client that it has.
        let [Action::Notice(notice), Action::Notify(..)] = &actions[..] else {
            panic!("{actions:?}")
        };
        let Notice::ShortEntry { address, lasts: told, again } = notice else {
            panic!("{notice:?}")
        };
        assert_eq!((&address[..], *told), ("192.0.2.7:0/0", lasts));
        let text = format!("{notice}");
        assert!(text.contains("ceph osd blocklist rm 192.0.2.7:0/0"), "{text}");
        assert!(text.contains("or lunet was restarted there since"), "{text}");
        assert_eq!(bench.gateway.condition(), Condition::Standby);
        assert!(!bench.gateway.gate().is_open());
        // It is tried again by itself, and not at once.
        let before = bench.now;
        assert!(matches!(
            blocklisted(&mut bench, Reply::Listed(LONG_ENOUGH))[..],
            [Action::WaitForMap(_)]
        ));
        assert!(bench.now >= before + *again, "{:?}", bench.now - before);
        assert!(bench.now <= before + *again + 8 * SECOND, "{:?}", bench.now - before);
    }
    // An administrator who has put it right does not wait.
    let before = record(4, Some(0));
    let mut bench = Bench::standby(&before);
    blocklisted(&mut bench, Reply::Listed(Duration::ZERO));
    assert_eq!(bench.takes_over(&before), FENCED_STEPS);
    assert_eq!(bench.gateway.condition(), Condition::Owner);
}

#[test]
fn an_entry_that_nobody_has_looked_at_is_no_fence() {
    let mut bench = Bench::standby(&record(4, Some(0)));
    let actions = blocklisted(&mut bench, Reply::Done);
    assert!(matches!(actions[..], [Action::DropClient { .. }, Action::NewClient(_)]));
}

#[test]
fn whoever_was_quicker_keeps_the_group() {
    let before = record(4, Some(0));
    for at in ["look", "read"] {
        let mut bench = Bench::standby(&before);
        let mut actions = bench.input(Input::Order(Order::TakeOver));
        if at == "look" {
            // An administrator's order holds for any epoch; a silent owner's does not.
            bench = Bench::standby(&before);
            actions = bench.pings(8, &[], SECOND / 10);
        }
        let other = record(5, Some(2));
        loop {
            let step = actions.last().cloned().unwrap();
            actions = match step {
                Action::Look(op) => {
                    let record = if at == "look" { &other } else { &before };
                    bench.done(op, Ok(Reply::Seen { record: bytes(record), locks: vec![] }))
                }
                Action::ReadRecord(op) => bench.done(op, Ok(Reply::Record(bytes(&other)))),
                Action::Blocklist(op, ..) => bench.done(op, Ok(Reply::Listed(TEN_YEARS))),
                Action::WaitForMap(op)
                | Action::BreakLock(op, _)
                | Action::Acquire(op)
                | Action::Refresh(op) => bench.done(op, Ok(Reply::Done)),
                Action::Swap { op, record, .. } if record.epoch == before.epoch => {
                    bench.done(op, Ok(Reply::Done))
                }
                Action::Swap { .. } => panic!("it stands for epoch 5 of another"),
                _ => break,
            };
            if actions.is_empty() {
                break;
            }
        }
        assert_ne!(bench.gateway.condition(), Condition::Owner, "{at}");
    }
}

#[test]
fn an_owner_that_is_deposed_says_nothing_more() {
    let causes: [fn(&mut Bench) -> Vec<Action>; 5] = [
        |bench| bench.input(Input::IoFailed(OpId(1), Failure::Blocklisted)),
        |bench| bench.input(Input::IoFailed(OpId(1), Failure::ReadOnly)),
        |bench| bench.input(Input::WatchFailed(OpId(1))),
        |bench| bench.notified(&Message::Changed(Epoch(6))),
        |bench| bench.notified(&Message::Ping(Epoch(6))),
    ];
    for cause in causes {
        let mut bench = Bench::owner();
        let stamp = bench.gateway.gate().connected().stamp();
        assert_eq!(bench.gateway.gate().admits(stamp), Admission::Execute);
        let actions = cause(&mut bench);
        assert!(
            matches!(
                actions[..],
                [
                    Action::StopAnswering(_),
                    Action::AbortConnections,
                    Action::Attention(Attention::NexusLoss),
                    Action::DropClient { release: false },
                    Action::NewClient(_)
                ]
            ),
            "{actions:?}"
        );
        assert_eq!(bench.gateway.gate().admits(stamp), Admission::Standby);
        assert_eq!(bench.gateway.condition(), Condition::Fenced);
    }
    let mut bench = Bench::owner();
    for input in [
        Input::IoFailed(OpId(1), Failure::TimedOut),
        Input::IoFailed(OpId(77), Failure::Blocklisted),
        Input::WatchFailed(OpId(77)),
    ] {
        assert_eq!(bench.input(input), []);
    }
    assert!(Failure::TimedOut.may_take_effect() && !Failure::Blocklisted.may_take_effect());
}

/// A record of the same name that was made behind [`record`].
fn anew(epoch: u64, owner: Option<u16>) -> Record {
    Record { secret: [8; 32], ..record(epoch, owner) }
}

#[test]
fn a_message_of_another_record_fences_nobody_and_is_told_nothing() {
    let other = anew(1, None).tag();
    let job = Message::Job(Epoch(5), "client.9".into(), 1, vec![1]);
    let move_away = Message::Move(Epoch(5), GatewayId(2));
    for message in [Message::Ping(Epoch(90)), Message::Changed(Epoch(90)), job, move_away] {
        let mut bench = Bench::owner();
        let actions = bench.input(Input::Notified(NotifyId(9), message.encode(other)));
        let [Action::Acknowledge(NotifyId(9), told), Action::ReadRecord(op)] = &actions[..] else {
            panic!("{actions:?}")
        };
        assert_eq!(*told, []);
        let same = Ok(Reply::Record(bytes(&record(5, Some(1)))));
        assert_eq!(bench.done(*op, same), []);
        assert_eq!(bench.gateway.condition(), Condition::Owner);
    }
}

/// What of a gateway that has lost its record is left: closed, without a client, and told of once.
fn is_orphaned(bench: &mut Bench, actions: &[Action], lost: Lost) {
    assert_eq!(actions.last(), Some(&Action::Notice(Notice::Orphaned(lost))), "{actions:?}");
    let mut drops = actions.iter();
    assert!(drops.any(|action| matches!(action, Action::DropClient { .. })), "{actions:?}");
    let access = actions.iter().find_map(|action| match action {
        Action::Access(_, _, Access(states)) => Some(states.clone()),
        _ => None,
    });
    let states = access.expect("access states");
    assert!(states.iter().all(|(_, state)| *state == AccessState::Standby), "{states:?}");
    assert_eq!(bench.gateway.condition(), Condition::Orphaned);
    let gate = bench.gateway.gate();
    assert_eq!(gate.admits(gate.connected().stamp()), Admission::Standby);
    assert_eq!(bench.gateway.timeout(), None);
    for order in [Order::TakeOver, Order::MoveTo(GatewayId(2))] {
        let refused = Action::Refuse(order, Refusal::Orphaned);
        assert_eq!(bench.input(Input::Order(order)), [refused]);
    }
    bench.now += 100 * SECOND;
    assert_eq!(bench.input(Input::Tick), []);
    // Behind its client nothing comes; if it does, it is told nothing.
    let silent = [Action::Acknowledge(NotifyId(9), Vec::new())];
    assert_eq!(bench.notified(&Message::Ping(Epoch(90)))[1..], []);
    let other = Message::Ping(Epoch(1)).encode(anew(1, None).tag());
    assert_eq!(bench.input(Input::Notified(NotifyId(9), other)), silent);
}

#[test]
fn a_gateway_whose_record_is_another_one_does_nothing_more() {
    let read = |lost| match lost {
        Lost::Anew => Ok(Reply::Record(bytes(&anew(1, Some(2))))),
        Lost::Gone => Err(Failure::NoRecord(lost)),
    };
    for lost in [Lost::Anew, Lost::Gone] {
        let mut owner = Bench::owner();
        owner.pass(1);
        let op = owner.pass(5).unwrap();
        let actions = owner.done(op, read(lost));
        assert!(matches!(actions[..2], [Action::StopAnswering(_), Action::AbortConnections]));
        is_orphaned(&mut owner, &actions, lost);

        let mut standby = Bench::standby(&record(4, Some(2)));
        let changed = Message::Changed(Epoch(1)).encode(anew(1, None).tag());
        let actions = standby.input(Input::Notified(NotifyId(9), changed));
        let op = op_of(&actions, |action| match action {
            Action::ReadRecord(op) => Some(*op),
            _ => None,
        });
        let actions = standby.done(op, read(lost));
        assert!(!actions.iter().any(|action| matches!(action, Action::StopAnswering(_))));
        is_orphaned(&mut standby, &actions, lost);

        // Its client has come to its end by the record's.
        let mut owner = Bench::owner();
        let actions = owner.input(Input::WatchFailed(OpId(1)));
        let op = op_of(&actions, |action| match action {
            Action::NewClient(op) => Some(*op),
            _ => None,
        });
        let actions = owner.done(op, Err(Failure::NoRecord(lost)));
        is_orphaned(&mut owner, &actions, lost);
    }
    let mut taker = Bench::standby(&record(4, Some(2)));
    let actions = taker.input(Input::Order(Order::TakeOver));
    let op = op_of(&actions, |action| match action {
        Action::Look(op) => Some(*op),
        _ => None,
    });
    let seen = Reply::Seen { record: bytes(&anew(4, Some(2))), locks: Vec::new() };
    let actions = taker.done(op, Ok(seen));
    is_orphaned(&mut taker, &actions, Lost::Anew);
}

#[test]
fn a_gateway_that_has_never_read_a_record_waits_for_one() {
    let config = Config { me: GatewayId(1), rank: 0, portals: portals(1) };
    let mut bench =
        Bench { gateway: Gateway::new(config, SECOND), now: SECOND, ping: None, announced: None };
    let actions = bench.actions();
    let [Action::NewClient(op)] = actions[..] else { panic!("{actions:?}") };
    assert_eq!(bench.done(op, Err(Failure::NoRecord(Lost::Gone))), []);
    assert_eq!(bench.gateway.condition(), Condition::Fenced);
    bench.now += SECOND;
    assert!(matches!(bench.input(Input::Tick)[..], [Action::NewClient(_)]));
}

#[test]
fn an_owner_knows_who_would_take_over_and_a_standby_that_the_owner_is_back() {
    let mut bench = Bench::owner();
    bench.pass(1);
    let mut asked = Vec::new();
    for _ in 0..5 {
        bench.now += SECOND;
        asked.extend(bench.input(Input::Tick));
    }
    let op = op_of(&asked, |action| match action {
        Action::Notify(op, bytes, _) => {
            let ping = Message::Ping(Epoch(5));
            (Message::decode(bytes) == Ok((tag(), ping))).then_some(*op)
        }
        _ => None,
    });
    let answers = [2, 0].map(|n| Response::NotOwner(Epoch(5), GatewayId(n)));
    let actions = bench.done(op, acks(&answers, true));
    assert_eq!(actions, [Action::Present(vec![GatewayId(0), GatewayId(2)])]);

    let mut standby = Bench::standby(&record(4, Some(2)));
    let told = |actions: &[Action]| actions.iter().filter(|it| **it == Action::Settled).count();
    let there = [Response::Owner(Epoch(4))];
    assert_eq!(told(&standby.pings(3, &there, Duration::ZERO)), 0);
    // A takeover that has come to nothing.
    let actions = standby.input(Input::Order(Order::TakeOver));
    let op = op_of(&actions, |action| match action {
        Action::Look(op) => Some(*op),
        _ => None,
    });
    let other = Reply::Seen { record: bytes(&record(4, Some(2))), locks: vec![client(77)] };
    let mut actions = standby.done(op, Ok(other.clone()));
    while standby.gateway.condition() == Condition::TakingOver {
        standby.now += SECOND;
        actions = standby.input(Input::Tick);
        if let Some(op) = actions.iter().find_map(|action| match action {
            Action::Look(op) => Some(*op),
            _ => None,
        }) {
            actions = standby.done(op, Ok(other.clone()));
        }
    }
    assert!(matches!(actions.last(), Some(Action::Notice(Notice::InUse { .. }))), "{actions:?}");
    let later = (0..3).map(|_| told(&standby.pings(1, &there, Duration::ZERO)));
    assert_eq!(later.sum::<usize>(), 1);
}

#[test]
fn an_owner_that_hears_nothing_of_the_cluster_is_fenced_and_one_that_stood_still_is_not() {
    let mut bench = Bench::owner();
    let same = || Ok(Reply::Record(bytes(&record(5, Some(1)))));
    for _ in 0..10 {
        let op = bench.pass(5).unwrap();
        assert_eq!(bench.done(op, same()), []);
    }
    let op = bench.pass(5).unwrap();
    bench.now += 1000 * SECOND;
    assert_eq!(bench.input(Input::Tick), []);
    assert_eq!(bench.pass(24), None, "a read is under way");
    assert_eq!(bench.done(op, same()), []);
    let silent = (0..5).find_map(|_| bench.pass(1)).unwrap();
    bench.pass(29);
    assert_eq!(bench.gateway.condition(), Condition::Owner);
    bench.pass(1);
    assert_eq!(bench.gateway.condition(), Condition::Fenced);
    // Its end comes later, and means nothing.
    assert_eq!(bench.done(silent, Err(Failure::Blocklisted)), []);
}

#[test]
fn an_owner_that_reads_of_a_later_epoch_is_fenced() {
    let mut bench = Bench::owner();
    bench.pass(1);
    let op = bench.pass(5).unwrap();
    let actions = bench.done(op, Ok(Reply::Record(bytes(&record(6, Some(2))))));
    assert!(matches!(actions[0], Action::StopAnswering(_)), "{actions:?}");
    assert_eq!(bench.gateway.condition(), Condition::Fenced);
}

#[test]
fn commands_of_an_earlier_epoch_are_never_executed() {
    let mut bench = Bench::standby(&record(4, None));
    let mut link = bench.gateway.gate().connected();
    bench.takes_over(&record(4, None));
    let gate = bench.gateway.gate();
    assert_eq!(gate.admits(link.stamp()), Admission::Busy);
    let early = link.stamp();
    link.renew(gate.ping());
    assert_eq!(gate.admits(link.stamp()), Admission::Execute);
    assert_eq!(gate.admits(early), Admission::Busy);
}

#[test]
fn a_planned_move_drains_flushes_and_leaves() {
    let mut bench = Bench::owner();
    let stamp = bench.gateway.gate().connected().stamp();
    let actions = bench.moves();
    let [Action::Gate(gate), Action::Drain(op)] = actions[..] else { panic!("{actions:?}") };
    assert_eq!(gate.admits(stamp), Admission::Busy);
    let actions = bench.done(op, Ok(Reply::Done));
    let [Action::Flush(op)] = actions[..] else { panic!("{actions:?}") };
    let actions = bench.done(op, Ok(Reply::Done));
    let [Action::Release(op)] = actions[..] else { panic!("{actions:?}") };
    let actions = bench.done(op, Ok(Reply::Done));
    let [Action::Swap { op, record, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((record.owner.as_ref(), record.heir), (None, Some(GatewayId(2))));
    let actions = bench.done(*op, Ok(Reply::Done));
    assert!(actions.iter().all(|action| !matches!(action, Action::DropClient { .. })));
    assert_eq!(bench.gateway.condition(), Condition::Standby);
    assert_eq!(bench.gateway.gate().epoch(), Epoch(6));
}

#[test]
fn a_drain_that_does_not_end_keeps_the_owner() {
    let mut bench = Bench::owner();
    let order = Order::MoveTo(GatewayId(2));
    let stamp = bench.gateway.gate().connected().stamp();
    let actions = bench.moves();
    let Action::Drain(op) = actions[1] else { panic!("{actions:?}") };
    assert_eq!(bench.gateway.timeout(), Some(bench.now + SECOND));
    bench.now += SECOND;
    let actions = bench.input(Input::Tick);
    assert_eq!(actions[1], Action::Refuse(order, Refusal::NotDrained));
    assert_eq!(bench.gateway.gate().admits(stamp), Admission::Execute);
    assert_eq!(bench.done(op, Ok(Reply::Done)), []);
}

#[test]
fn a_release_that_does_not_end_fences_the_owner() {
    let mut bench = Bench::owner();
    let actions = bench.moves();
    let Action::Drain(op) = actions[1] else { panic!("{actions:?}") };
    let Action::Flush(op) = bench.done(op, Ok(Reply::Done))[0] else { panic!("no flush") };
    bench.done(op, Ok(Reply::Done));
    bench.now += 6 * SECOND;
    assert!(matches!(bench.input(Input::Tick)[0], Action::StopAnswering(_)));
}

#[test]
fn good_follows_the_record() {
    let mut bench = Bench::owner();
    let request = Request(3);
    let actions = bench.input(Input::Reserve(3, vec![1]));
    assert_eq!(actions, [Action::Execute(request, vec![1])]);
    // A second one meanwhile.
    assert_eq!(bench.input(Input::Reserve(4, vec![])), [Action::Answer(4, Answer::Busy)]);
    let contents = Box::new(Contents::default());
    let actions = bench.input(Input::Executed(request, contents, vec![7]));
    let [Action::Swap { op, .. }] = actions[..] else { panic!("{actions:?}") };
    assert_eq!(bench.done(op, Ok(Reply::Done)), [Action::Apply(request)]);
    let actions = bench.input(Input::Applied(request));
    assert_eq!(actions[0], Action::Answer(3, Answer::Body(vec![7])));
}

#[test]
fn an_owner_that_cannot_write_the_record_is_fenced() {
    let mut bench = Bench::owner();
    bench.input(Input::Reserve(3, vec![1]));
    let contents = Box::new(Contents::default());
    let actions = bench.input(Input::Executed(Request(3), contents, vec![7]));
    let [Action::Swap { op, .. }] = actions[..] else { panic!("{actions:?}") };
    let actions = bench.done(op, Err(Failure::Lost));
    assert_eq!(actions[1], Action::Abandon(Request(3)));
    assert!(actions.iter().all(|action| !matches!(action, Action::Answer(..))));
}

#[test]
fn a_standby_executes_no_request_and_asks_nobody_to() {
    let mut bench = Bench::standby(&record(4, Some(0)));
    let actions = bench.input(Input::Reserve(3, vec![1]));
    let answer = Action::Answer(3, Answer::Busy);
    assert!(actions.contains(&answer), "{actions:?}");
    let asks = |action: &Action| matches!(action, Action::Execute(..) | Action::Swap { .. });
    assert!(!actions.iter().any(asks), "{actions:?}");
}

#[test]
fn a_report_reads_the_record() {
    let mut bench = Bench::standby(&record(4, Some(0)));
    let actions = bench.input(Input::Report(3));
    let op = actions.iter().find_map(|action| match action {
        Action::ReadRecord(op) => Some(*op),
        _ => None,
    });
    let mut newer = record(4, Some(0));
    newer.revision = 9;
    let actions = bench.done(op.unwrap(), Ok(Reply::Record(bytes(&newer))));
    assert_eq!(actions, [Action::Answer(3, Answer::Record(Box::new(newer)))]);
}

#[test]
fn a_standby_reports_the_mode_pages_of_each_record_once() {
    let kept = |revision: u64, modes: &[u8]| {
        let mut record = Record { revision, ..record(4, Some(2)) };
        record.contents.volumes = vec![Volume { modes: modes.to_vec(), ..volume("rbd/image") }];
        record
    };
    let mut bench = Bench::standby(&kept(7, &[1]));
    let mut reported = |revision, modes: &[u8]| {
        let changed = Input::Notified(NotifyId(revision), Message::Changed(Epoch(4)).encode(tag()));
        let actions = bench.input(changed);
        let read = actions.iter().find_map(|action| match action {
            Action::ReadRecord(op) => Some(*op),
            _ => None,
        });
        let record = bytes(&kept(revision, modes));
        let actions = bench.done(read.expect("it reads"), Ok(Reply::Record(record))).into_iter();
        let modes = actions.filter_map(|action| match action {
            Action::Modes(record) => Some(record.contents.volumes[0].modes.clone()),
            _ => None,
        });
        modes.collect::<Vec<_>>()
    };
    assert_eq!(reported(8, &[1]), Vec::<Vec<u8>>::new(), "they are known");
    assert_eq!(reported(9, &[3]), [[3]]);
    assert_eq!(reported(9, &[1]), Vec::<Vec<u8>>::new(), "it is no newer record");
}

/// A record with these registrants of its volume, and whether that is being sanitized.
fn registered(revision: u64, names: &[u8], sanitize: Sanitize) -> Record {
    let one = |name: &u8| Registered { family: "x".into(), name: vec![*name], key: 7 };
    let mut record = Record { revision, ..record(4, Some(2)) };
    let registrations = names.iter().map(one).collect();
    let reserved = Reserved { registrations, ..Reserved::default() };
    record.contents.volumes = vec![Volume { reserved, sanitize, ..volume("rbd/image") }];
    record
}

#[test]
fn a_standby_tells_of_registrations_that_are_gone_and_of_marks_and_of_nothing_else() {
    let mut bench = Bench::standby(&registered(7, &[1, 2], Sanitize::None));
    let mut learns = |record: Record| {
        let revision = record.revision;
        let changed = Input::Notified(NotifyId(revision), Message::Changed(Epoch(4)).encode(tag()));
        let actions = bench.input(changed);
        let read = actions.iter().find_map(|action| match action {
            Action::ReadRecord(op) => Some(*op),
            _ => None,
        });
        bench.done(read.expect("it reads"), Ok(Reply::Record(bytes(&record))))
    };
    assert_eq!(learns(registered(8, &[1, 2, 3], Sanitize::None)), [], "one more is no loss");
    let lost = Registered { family: "x".into(), name: vec![2], key: 7 };
    let actions = learns(registered(9, &[1, 3], Sanitize::None));
    assert_eq!(actions, [Action::Preempted(vec![([6; 16], lost)])]);
    let marked = registered(10, &[1, 3], Sanitize::Formatting);
    assert_eq!(learns(marked.clone()), [Action::Modes(Box::new(marked))]);
}

#[test]
fn an_heir_whose_own_takeover_came_too_late_takes_the_group_at_once() {
    let before = record(4, Some(0));
    let mut bench = Bench::ranked(&before, 2);
    let actions = bench.input(Input::Order(Order::TakeOver));
    let moved = Record { heir: Some(GatewayId(1)), ..record(5, None) };
    // The owner gives the group away meanwhile: what is read behind the fence is another epoch.
    let changed = Input::Notified(NotifyId(1), Message::Changed(Epoch(5)).encode(tag()));
    let told = bench.input(changed);
    let op = told.iter().find_map(|action| match action {
        Action::ReadRecord(op) => Some(*op),
        _ => None,
    });
    bench.done(op.unwrap(), Ok(Reply::Record(bytes(&moved))));
    let (steps, actions) = bench.steps(actions, &before, 7, Failure::Lost);
    assert_eq!(steps.last(), Some(&"read"));
    let [Action::DropClient { .. }, Action::NewClient(op)] = actions[..] else {
        panic!("{actions:?}")
    };
    // It knows the record already.
    let actions = bench.done(op, Ok(made(1)));
    assert!(actions.iter().any(|action| matches!(action, Action::Look(_))), "{actions:?}");
}

#[test]
fn a_move_behind_a_takeover_waits_while_a_watcher_may_be_dead() {
    let mut bench = Bench::standby(&record(4, None));
    bench.takes_over(&record(4, None));
    let drains = |actions: &[Action]| actions.iter().any(|it| matches!(it, Action::Drain(_)));
    // One has not answered.
    let op = bench.announced.expect("it is announced");
    bench.done(op, Ok(Reply::Acks { acks: Vec::new(), all: false }));
    assert_eq!(bench.moves(), [], "the owner goes on");
    assert!(bench.gateway.gate().is_open());
    let due = bench.gateway.timeout().expect("there is something to do");
    assert!(due > bench.now && due <= bench.now + 6 * SECOND);
    let heir = loop {
        // Behind the time, the other gateway is asked once more.
        if let [Action::Notify(op, ..)] = bench.input(Input::Tick)[..] {
            break op;
        }
        let due = bench.gateway.timeout().expect("it is still to come");
        assert!(due > bench.now, "it is due, and does not begin");
        bench.now = due;
    };
    assert!(drains(&bench.is_there(heir)));

    let mut bench = Bench::owner();
    assert!(drains(&bench.moves()));
}

#[test]
fn a_standby_passes_on_what_was_sent_in_the_epoch_of_an_owner_that_can_be_reached() {
    let mut bench = Bench::standby(&record(4, Some(0)));
    let early = bench.gateway.gate().connected();
    assert_eq!(bench.gateway.gate().admits(early.stamp()), Admission::Standby);
    let mut reached = record(5, Some(2));
    reached.owner.as_mut().unwrap().portals = portals(2);
    let actions = bench.notified(&Message::Changed(Epoch(5)));
    let Some(Action::ReadRecord(op)) = actions.last() else { panic!("{actions:?}") };
    let actions = bench.done(*op, Ok(Reply::Record(bytes(&reached))));
    let gate = bench.gateway.gate();
    // Where it goes is known before anything goes there.
    let order = [Action::Reach(Epoch(5), portals(2)), Action::Gate(gate)];
    assert!(actions.windows(2).any(|pair| pair == order), "{actions:?}");
    assert!(gate.is_through() && !gate.is_open());
    assert_eq!(gate.admits(early.stamp()), Admission::Busy);
    let mut asked = early;
    asked.renew(gate.ping());
    assert_eq!(gate.admits(asked.stamp()), Admission::Forward);
    assert_eq!(gate.of_iscsi().admits(asked.stamp()), Admission::Forward);
    assert_eq!(gate.of_nvme().admits(asked.stamp()), Admission::Standby, "it has no portal");
    let Access(states) = Access::of(&reached);
    let expected = [AccessState::NonOptimized, AccessState::NonOptimized, AccessState::Optimized];
    assert_eq!(states.iter().map(|(_, state)| *state).collect::<Vec<_>>(), expected);
}

#[test]
fn a_gateway_that_finds_itself_in_the_record_passes_nothing_on_and_an_owner_tells_its_portal() {
    let mut own = record(4, Some(1));
    own.owner.as_mut().unwrap().portals = portals(1);
    let bench = Bench::standby(&own);
    assert!(!bench.gateway.gate().is_through());
    let bench = Bench::owner();
    let owner = bench.gateway.record().and_then(|record| record.owner.clone()).unwrap();
    assert_eq!(owner.portals, portals(1));
}

/// The operation of the first action that is one of these.
fn op_of(actions: &[Action], which: impl Fn(&Action) -> Option<OpId>) -> OpId {
    actions.iter().find_map(which).unwrap_or_else(|| panic!("{actions:?}"))
}

#[test]
fn a_group_gets_other_volumes_by_a_move_of_its_owner_to_itself() {
    let mut bench = Bench::owner();
    let actions = bench.input(Input::Volumes(vec![volume("rbd/a"), volume("rbd/b")]));
    let [Action::Gate(gate), Action::Drain(op)] = actions[..] else { panic!("{actions:?}") };
    assert_eq!(gate.admits(gate.connected().stamp()), Admission::Busy);
    let actions = bench.done(op, Ok(Reply::Done));
    let [Action::Flush(op)] = actions[..] else { panic!("{actions:?}") };
    let actions = bench.done(op, Ok(Reply::Done));
    let [Action::Release(op)] = actions[..] else { panic!("{actions:?}") };
    let actions = bench.done(op, Ok(Reply::Done));
    let [Action::Swap { op, ref record, .. }] = actions[..] else { panic!("{actions:?}") };
    assert_eq!((record.epoch, &record.owner, record.heir), (Epoch(6), &None, Some(GatewayId(1))));
    assert_eq!(record.contents.volumes, [volume("rbd/a"), volume("rbd/b")]);
    let next = record.clone();
    let actions = bench.done(op, Ok(Reply::Done));
    let new = op_of(&actions, |action| match action {
        Action::NewClient(op) => Some(*op),
        _ => None,
    });
    assert!(actions.contains(&Action::DropClient { release: true }), "{actions:?}");
    assert!(!actions.contains(&Action::AbortConnections), "hosts wait, and keep their sessions");
    let gate = bench.gateway.gate();
    assert_eq!(gate.admits(gate.connected().stamp()), Admission::Busy, "and are told so");
    let images = vec![("rbd/a".to_owned(), 512), ("rbd/b".to_owned(), 512)];
    bench.done(new, Ok(Reply::Client { name: client(8), images }));
    assert_eq!(bench.gateway.condition(), Condition::TakingOver);
    assert_eq!(bench.gateway.record(), Some(&*next));
}

#[test]
fn volumes_that_a_group_has_stay_what_they_are_and_nothing_happens_for_them() {
    let mut before = record(4, None);
    before.contents.volumes = vec![Volume { modes: vec![9], ..volume("rbd/a") }];
    let mut bench = Bench::standby(&before);
    assert_eq!(bench.input(Input::Volumes(Vec::new())), [], "a standby changes nothing");
    bench.takes_over(&before);
    bench.all_watchers_answer();
    assert_eq!(bench.input(Input::Volumes(vec![volume("rbd/a")])), []);
    let many = (0..=lunet_gateway::MAX_VOLUMES).map(|at| volume(&format!("rbd/{at}"))).collect();
    assert_eq!(bench.input(Input::Volumes(many)), [], "a record cannot have so many");
    // One that has grown.
    let larger = Volume { bytes: 1024, ..volume("rbd/a") };
    let mut actions = bench.input(Input::Volumes(vec![volume("rbd/b"), larger]));
    for _ in 0..3 {
        let op = op_of(&actions, |action| match action {
            Action::Drain(op) | Action::Flush(op) | Action::Release(op) => Some(*op),
            _ => None,
        });
        actions = bench.done(op, Ok(Reply::Done));
    }
    let [Action::Swap { ref record, .. }] = actions[..] else { panic!("{actions:?}") };
    let kept = Volume { modes: vec![9], bytes: 1024, ..volume("rbd/a") };
    assert_eq!(record.contents.volumes, [kept, volume("rbd/b")]);
}

/// A record with the ports of gateways 1 to 3, as lunet makes it.
fn of_three() -> Record {
    let port = |n: u16| Port { gateway: GatewayId(n), group: n, relative: n };
    Record { ports: (1..=3).map(port).collect(), ..record(4, None) }
}

/// Gateway 1, which owns that group.
fn owner_of_three() -> Bench {
    let mut bench = Bench::standby(&of_three());
    bench.takes_over(&of_three());
    bench.all_watchers_answer();
    bench
}

/// The refusal among actions.
fn refusal(actions: &[Action]) -> Option<(Order, Refusal)> {
    actions.iter().find_map(|action| match action {
        Action::Refuse(order, why) => Some((*order, *why)),
        _ => None,
    })
}

#[test]
fn a_group_gets_more_gateways_by_a_move_of_its_owner_to_itself() {
    let mut bench = owner_of_three();
    let mut actions = bench.input(Input::Order(Order::Gateways(5)));
    for _ in 0..3 {
        let op = op_of(&actions, |action| match action {
            Action::Drain(op) | Action::Flush(op) | Action::Release(op) => Some(*op),
            _ => None,
        });
        actions = bench.done(op, Ok(Reply::Done));
    }
    let [Action::Swap { op, ref record, expect }] = actions[..] else { panic!("{actions:?}") };
    let before = of_three().ports;
    assert_eq!(record.ports[..3], before, "who is there keeps its port");
    let added: Vec<_> =
        record.ports[3..].iter().map(|it| (it.gateway.0, it.group, it.relative)).collect();
    assert_eq!(added, [(4, 4, 4), (5, 5, 5)]);
    assert_eq!((record.epoch, &record.owner, record.heir), (Epoch(6), &None, Some(GatewayId(1))));
    assert_eq!(expect.0, Epoch(5), "by compare-and-set");
    let next = record.clone();
    let actions = bench.done(op, Ok(Reply::Done));
    assert!(
        !actions.iter().any(|action| matches!(action, Action::DropClient { .. })),
        "{actions:?}"
    );
    let told = actions.iter().find_map(|action| match action {
        Action::Access(epoch, ports, Access(states)) => Some((*epoch, ports.clone(), states.len())),
        _ => None,
    });
    assert_eq!(
        told,
        Some((Epoch(6), next.ports.clone(), 5)),
        "all are reported from the same epoch on"
    );
}

#[test]
fn more_gateways_are_refused_where_that_cannot_be() {
    let order = Input::Order;
    let mut standby = Bench::standby(&of_three());
    let actions = standby.input(order(Order::Gateways(5)));
    assert_eq!(refusal(&actions), Some((Order::Gateways(5), Refusal::NotOwner)));
    let mut bench = owner_of_three();
    for count in [1, 3, 65] {
        let actions = bench.input(order(Order::Gateways(count)));
        assert_eq!(refusal(&actions), Some((Order::Gateways(count), Refusal::NoMore)));
        assert!(bench.gateway.gate().is_open(), "nothing happens");
    }
    // Others have the numbers of the ports: nothing is written that no record can have.
    let actions = Bench::owner().input(order(Order::Gateways(4)));
    assert_eq!(refusal(&actions), Some((Order::Gateways(4), Refusal::NoMore)));
    // Commands that do not end.
    let mut actions = bench.input(order(Order::Gateways(4)));
    assert_eq!(refusal(&actions), None);
    // It owns the group still, and cannot begin another one now.
    actions = bench.input(order(Order::Gateways(5)));
    assert_eq!(refusal(&actions), Some((Order::Gateways(5), Refusal::NotReady)));
    bench.now += SECOND;
    actions = bench.input(Input::Tick);
    assert_eq!(refusal(&actions), Some((Order::Gateways(4), Refusal::NotDrained)));
    assert!(bench.gateway.gate().is_open());
    // It is asked for volumes and gateways at once.
    bench.input(Input::Volumes(vec![volume("rbd/a")]));
    bench.now += SECOND;
    bench.input(Input::Tick);
    let actions = bench.input(order(Order::Gateways(4)));
    assert!(actions.iter().any(|action| matches!(action, Action::Drain(_))), "{actions:?}");
}

#[test]
fn an_owner_whose_commands_do_not_end_keeps_its_volumes() {
    let mut bench = Bench::owner();
    bench.input(Input::Volumes(vec![volume("rbd/a")]));
    bench.now += SECOND;
    let actions = bench.input(Input::Tick);
    assert!(bench.gateway.gate().is_open());
    assert!(!actions.iter().any(|action| matches!(action, Action::Refuse(..))), "{actions:?}");
    let told = |action: &Action| matches!(action, Action::Notice(Notice::NotDrained { .. }));
    assert!(actions.iter().any(told), "{actions:?}");
    // It is asked for again at once, and tried again later: hosts of other images go on meanwhile.
    let drains = |action: &Action| matches!(action, Action::Drain(_));
    let again = bench.input(Input::Volumes(vec![volume("rbd/a")]));
    assert!(!again.iter().any(drains), "{again:?}");
    bench.now += 29 * SECOND;
    assert!(!bench.input(Input::Tick).iter().any(drains));
    let due = bench.gateway.timeout().expect("it is tried again");
    assert!(due <= bench.now + SECOND, "{due:?}");
    bench.now += SECOND;
    assert!(bench.input(Input::Tick).iter().any(drains));
}

#[test]
fn a_standby_opens_the_images_that_the_record_names_now() {
    let mut bench = Bench::standby(&record(4, Some(0)));
    let mut next = record(5, None);
    next.contents.volumes = vec![volume("rbd/a")];
    let changed = Message::Changed(Epoch(5)).encode(tag());
    let actions = bench.input(Input::Notified(NotifyId(1), changed));
    let read = op_of(&actions, |action| match action {
        Action::ReadRecord(op) => Some(*op),
        _ => None,
    });
    let actions = bench.done(read, Ok(Reply::Record(bytes(&next))));
    let new = op_of(&actions, |action| match action {
        Action::NewClient(op) => Some(*op),
        _ => None,
    });
    // The record has changed once more meanwhile: what is known here is older than what the client has open.
    let images = vec![("rbd/a".to_owned(), 512), ("rbd/b".to_owned(), 512)];
    let actions = bench.done(new, Ok(Reply::Client { name: client(8), images }));
    assert!(!actions.iter().any(|action| matches!(action, Action::NewClient(_))), "{actions:?}");
}

#[test]
fn a_takeover_looks_at_all_images_of_the_record() {
    let before = record(4, Some(0));
    let mut other = before.clone();
    other.contents.volumes = vec![volume("rbd/a")];
    let gives_up = |actions: &[Action]| {
        matches!(actions, [Action::DropClient { release: true }, Action::NewClient(_)])
    };
    // When it looks, and behind the fence.
    let mut bench = Bench::standby(&before);
    let actions = bench.input(Input::Order(Order::TakeOver));
    let [Action::Look(op)] = actions[..] else { panic!("{actions:?}") };
    let seen = Reply::Seen { record: bytes(&other), locks: vec![client(0)] };
    assert!(gives_up(&bench.done(op, Ok(seen))));

    let mut bench = Bench::standby(&before);
    let mut actions = bench.input(Input::Order(Order::TakeOver));
    loop {
        let read = actions.iter().find_map(|action| match action {
            Action::ReadRecord(op) => Some(*op),
            _ => None,
        });
        if let Some(op) = read {
            assert!(gives_up(&bench.done(op, Ok(Reply::Record(bytes(&other))))));
            break;
        }
        let (op, reply) = match &actions[0] {
            Action::Look(op) => (*op, Reply::Seen { record: bytes(&before), locks: Vec::new() }),
            Action::Blocklist(op, ..) => (*op, Reply::Listed(TEN_YEARS)),
            Action::WaitForMap(op) | Action::BreakLock(op, _) => (*op, Reply::Done),
            Action::Acquire(op) | Action::Refresh(op) | Action::Swap { op, .. } => {
                (*op, Reply::Done)
            }
            other => panic!("{other:?}"),
        };
        actions = bench.done(op, Ok(reply));
    }
}

/// What a standby asks the owner: the operation, and the message.
fn asked(actions: &[Action]) -> (OpId, Message) {
    let asks = |action: &Action| match action {
        Action::Notify(op, bytes, _) => Some((*op, Message::decode(bytes).ok()?.1)),
        _ => None,
    };
    let mut all = actions.iter().filter_map(asks);
    all.find(|(_, message)| matches!(message, Message::Job(..))).expect("a job")
}

fn acks(responses: &[Response], all: bool) -> lunet_gateway::Result {
    let acks = responses.iter().map(|response| Ack(response.encode())).collect();
    Ok(Reply::Acks { acks, all })
}

#[test]
fn a_job_of_a_standby_is_done_by_the_owner_once() {
    let mut one = Bench::standby(&record(5, Some(0)));
    let mut owner = Bench::owner();
    assert_eq!(owner.gateway.gate().epoch(), Epoch(5));
    let wait = 12 * SECOND;
    let (op, job) = asked(&one.input(Input::Job(7, vec![1, 2], wait)));
    let actions = owner.notified(&job);
    let [Action::Job(number, body)] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(body, &[1, 2]);
    // It takes longer than a notify may.
    one.now += 5 * SECOND;
    let (again, same) = asked(&one.done(op, acks(&[], false)));
    assert_eq!(same, job);
    assert_eq!(owner.input(Input::Notified(NotifyId(10), same.encode(tag()))), []);
    let done = Response::Job(vec![3]);
    let told = |notify| Action::Acknowledge(NotifyId(notify), done.encode());
    assert_eq!(owner.input(Input::JobDone(*number, vec![3])), [told(9), told(10)]);
    // A notify that comes late begins nothing.
    assert_eq!(owner.input(Input::Notified(NotifyId(11), job.encode(tag()))), [told(11)]);
    let outcome = Outcome::Answer(vec![3]);
    assert_eq!(one.done(again, acks(&[done], true)), [Action::JobTold(7, outcome)]);
    // Another one of the same gateway is another one.
    let (_, other) = asked(&one.input(Input::Job(8, vec![1, 2], wait)));
    assert!(matches!(owner.notified(&other)[..], [Action::Job(..)]));
}

#[test]
fn what_became_of_a_job_is_told_as_far_as_it_is_known() {
    let refused = Outcome::Refused;
    let wait = 7 * SECOND;
    let owner_left = Response::NotOwner(Epoch(5), GatewayId(0));
    let crowded = Response::Refused(Refusal::Crowded);
    for (first, second, outcome) in [
        (acks(std::slice::from_ref(&crowded), false), None, refused(Refusal::Crowded)),
        // The owner may have it by then.
        // A watch that was given up leaves no trace.
        (
            acks(std::slice::from_ref(&owner_left), true),
            Some(acks(&[owner_left], true)),
            Outcome::Unknown,
        ),
        (Err(Failure::Other(5)), Some(acks(&[crowded], true)), Outcome::Unknown),
        (acks(&[], false), Some(acks(&[], false)), Outcome::Unknown),
    ] {
        let mut one = Bench::standby(&record(5, Some(0)));
        let (op, _) = asked(&one.input(Input::Job(7, vec![1], wait)));
        one.now += 5 * SECOND;
        let mut actions = one.done(op, first);
        if let Some(second) = second {
            let (op, _) = asked(&actions);
            one.now += 5 * SECOND;
            actions = one.done(op, second);
        }
        assert!(actions.contains(&Action::JobTold(7, outcome.clone())), "{outcome:?}: {actions:?}");
    }
    let mut nobody = Bench::standby(&record(5, None));
    let told = Action::JobTold(7, refused(Refusal::NoOwner));
    assert!(nobody.input(Input::Job(7, vec![1], wait)).contains(&told));
    // Its client ends with the question.
    let mut one = Bench::standby(&record(5, Some(0)));
    let (op, _) = asked(&one.input(Input::Job(7, vec![1], wait)));
    let actions = one.input(Input::Order(Order::TakeOver));
    assert!(!actions.iter().any(|action| matches!(action, Action::JobTold(..))));
    let actions = one.done(op, acks(&[], false));
    assert_eq!(actions, [Action::JobTold(7, Outcome::Unknown)]);
}

#[test]
fn a_job_is_of_one_epoch_and_the_owner_stays_until_it_has_ended() {
    let mut bench = Bench::owner();
    let job = |epoch, number| Message::Job(Epoch(epoch), "client.9".into(), number, vec![1]);
    let late = Response::Refused(Refusal::NotReady).encode();
    assert_eq!(bench.notified(&job(4, 1)), [Action::Acknowledge(NotifyId(9), late)]);
    let actions = bench.notified(&job(5, 2));
    let [Action::Job(number, _)] = actions[..] else { panic!("{actions:?}") };
    let order = Order::MoveTo(GatewayId(2));
    let under_way = [Action::Refuse(order, Refusal::JobUnderWay)];
    assert_eq!(bench.input(Input::Order(order)), under_way);
    // Other volumes wait for it.
    assert_eq!(bench.input(Input::Volumes(vec![volume("p/a")])), []);
    let actions = bench.input(Input::JobDone(number, vec![]));
    assert!(matches!(actions[..], [Action::Acknowledge(..), Action::Gate(_), Action::Drain(_)]));
    // A job does not begin on the way to another owner.
    let refused = Response::Refused(Refusal::NotReady).encode();
    assert_eq!(bench.notified(&job(5, 3)), [Action::Acknowledge(NotifyId(9), refused)]);
    let told = Action::JobTold(7, Outcome::Refused(Refusal::NotReady));
    assert_eq!(bench.input(Input::Job(7, vec![1], SECOND)), [told]);
}

#[test]
fn a_job_that_ends_behind_the_fence_is_told_here_and_to_nobody_else() {
    let mut bench = Bench::owner();
    let here = bench.input(Input::Job(7, vec![1], SECOND));
    let [Action::Job(here, _)] = here[..] else { panic!("{here:?}") };
    let there = bench.notified(&Message::Job(Epoch(5), "client.9".into(), 1, vec![2]));
    let [Action::Job(there, _)] = there[..] else { panic!("{there:?}") };
    let actions = bench.notified(&Message::Changed(Epoch(6)));
    assert!(matches!(actions[0], Action::StopAnswering(_)), "{actions:?}");
    assert_eq!(bench.input(Input::JobDone(there, vec![4])), []);
    let told = Action::JobTold(7, Outcome::Answer(vec![3]));
    assert_eq!(bench.input(Input::JobDone(here, vec![3])), [told]);
    assert_eq!(bench.input(Input::JobDone(here, vec![3])), [], "it has ended");
}

#[test]
fn an_owner_has_no_more_jobs_than_it_can_do() {
    let mut bench = Bench::owner();
    let mut begun = Vec::new();
    for id in 0..20 {
        match bench.input(Input::Job(id, vec![1], SECOND))[..] {
            [Action::Job(job, _)] => begun.push(job),
            [Action::JobTold(_, Outcome::Refused(Refusal::Crowded))] => {}
            ref other => panic!("{other:?}"),
        }
    }
    assert_eq!(begun.len(), 8);
    bench.input(Input::JobDone(begun[0], vec![]));
    assert!(matches!(bench.input(Input::Job(20, vec![1], SECOND))[..], [Action::Job(..)]));
}
