//! A gateway's state machine over a cluster that does everything at once: where gates come from.

use std::time::Duration;

use lunet_gateway::{
    Ack, Action, ClientName, Config, Contents, Gate, Gateway, GatewayId, Input, OpId, Order, Port,
    Portals, Record, Reply, Response,
};

/// What the record calls the group's target.
const TARGET: &str = "iqn.2026-11.local.lunet:group";

/// Gateway 1 of two, which is alone with the cluster.
pub struct Machine {
    gateway: Gateway,
    now: Duration,
    record: Record,
    clients: u16,
    client: Option<OpId>,
}

/// Gateway 1 has the target port of group 1, gateway 2 that of group 2, with numbers that are not their groups'.
pub fn ports() -> Vec<Port> {
    let port = |n: u16| Port { gateway: GatewayId(n), group: n, relative: 40 + n };
    [1, 2].map(port).to_vec()
}

impl Machine {
    /// A standby of a group that nobody owns.
    pub fn standby() -> Self {
        let machine = Self::of(Record::new(TARGET, [7; 32], ports(), Contents::default()));
        assert!(!machine.gate().is_open());
        machine
    }

    /// A standby of a group with that record.
    pub fn of(record: Record) -> Self {
        let config = Config { me: GatewayId(1), rank: 0, portals: Portals::default() };
        let gateway = Gateway::new(config, Duration::ZERO);
        let (now, clients, client) = (Duration::ZERO, 0, None);
        let mut machine = Self { gateway, now, record, clients, client };
        machine.run();
        machine
    }

    /// Its gate.
    pub fn gate(&self) -> Gate {
        self.gateway.gate()
    }

    /// It takes the group over: an open gate of a new epoch.
    pub fn takes_over(&mut self) -> Gate {
        let before = self.gate().epoch();
        self.input(Input::Order(Order::TakeOver));
        assert!(self.gate().is_open() && self.gate().epoch() > before);
        self.gate()
    }

    /// It begins a move: a blocked gate of the same epoch.
    pub fn begins_move(&mut self) -> Gate {
        let before = self.gate().epoch();
        self.input(Input::Order(Order::MoveTo(GatewayId(2))));
        assert!(!self.gate().is_open() && self.gate().epoch() == before);
        self.gate()
    }

    /// The move does not come about: an open gate of the same epoch.
    pub fn stays(&mut self) -> Gate {
        let before = self.gate().epoch();
        self.now += Duration::from_secs(2);
        self.input(Input::Tick);
        assert!(self.gate().is_open() && self.gate().epoch() == before);
        self.gate()
    }

    /// It is deposed: a closed gate.
    pub fn is_deposed(&mut self) -> Gate {
        let client = self.client.expect("it has a client");
        self.input(Input::WatchFailed(client));
        assert!(!self.gate().is_open());
        self.gate()
    }

    fn input(&mut self, input: Input) {
        self.gateway.handle(self.now, input);
        self.run();
    }

    fn run(&mut self) {
        while let Some(action) = self.gateway.action() {
            let (op, reply) = match action {
                Action::NewClient(op) => {
                    self.clients += 1;
                    self.client = Some(op);
                    let address = format!("192.0.2.7:0/{}", self.clients);
                    let name = ClientName { address, lock: format!("client.{}", op.0) };
                    let volumes = &self.record.contents.volumes;
                    let images =
                        volumes.iter().map(|volume| (volume.image.clone(), volume.bytes)).collect();
                    (op, Reply::Client { name, images })
                }
                Action::ReadRecord(op) => (op, Reply::Record(self.bytes())),
                Action::Look(op) => (op, Reply::Seen { record: self.bytes(), locks: Vec::new() }),
                Action::Swap { op, record, .. } => {
                    self.record = *record;
                    (op, Reply::Done)
                }
                // There is another gateway.
                Action::Notify(op, ..) => {
                    let there = Response::NotOwner(self.gate().epoch(), GatewayId(2));
                    (op, Reply::Acks { acks: vec![Ack(there.encode())], all: true })
                }
                Action::Blocklist(op, _, lasts) => (op, Reply::Listed(lasts)),
                Action::WaitForMap(op)
                | Action::BreakLock(op, _)
                | Action::Acquire(op)
                | Action::Refresh(op) => (op, Reply::Done),
                // What the test does itself; and a drain that does not end.
                _ => continue,
            };
            self.gateway.handle(self.now, Input::Done(op, Ok(reply)));
        }
    }

    fn bytes(&self) -> Vec<u8> {
        self.record.encode().expect("a record")
    }
}
