//! What goes wrong in a world, and what administrators want meanwhile.

use lunet_gateway::{Condition, GatewayId, Order};

use crate::world::{Event, World};
use crate::{MS, OSDS, SEC, Time, VOLUMES};

/// How much later it is for the cluster after a leap: longer than its blocklist entries last by default.
const LEAP: Time = 7200 * SEC;

/// How long an entry of the blocklist lasts by default.
const HOUR: Time = 3600 * SEC;

/// What happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A gateway is killed, and started again later.
    Kill,
    /// A gateway stands still.
    Freeze,
    /// A gateway is cut off from the cluster.
    Cut,
    /// The monitors have no quorum.
    Outage,
    /// An OSD stands still.
    Stuck,
    /// A path holds everything back.
    Hold,
    /// Two hours pass for the cluster.
    Leap,
    /// The owner's client is blocklisted for an hour, by other hands than a gateway's.
    Shunt,
    /// Somebody who is no gateway looks whether an image is free, and locks it for a while; it looks so many times more.
    Foreign(u8),
    /// A volume is taken out of the group, and put into it again later.
    Volumes,
    /// The group moves away and comes back while a path to its gateway holds everything back.
    Return,
    /// An administrator has the group move.
    Move,
    /// An administrator has a gateway take the group.
    TakeOver,
    /// An administrator wants something of the owner.
    Job,
    /// An administrator deletes the record, and makes it anew later.
    Anew,
}

impl World {
    /// All that happens in this world, but for what happens at steps.
    pub fn plan_faults(&mut self) {
        let plan = self.plan.clone();
        let counts = [
            (Fault::Kill, plan.kills),
            (Fault::Freeze, plan.freezes),
            (Fault::Cut, plan.cuts),
            (Fault::Outage, plan.outages),
            (Fault::Stuck, plan.stuck),
            (Fault::Hold, plan.holds),
            (Fault::Leap, plan.leaps),
            (Fault::Shunt, plan.shunts),
            (Fault::Volumes, plan.volumes),
            (Fault::Return, plan.returns),
            (Fault::Move, plan.moves),
            (Fault::TakeOver, plan.takeovers),
            (Fault::Job, plan.jobs),
            (Fault::Anew, plan.anew),
        ];
        for (fault, count) in counts {
            for _ in 0..count {
                let at = self.chance.between(SEC, (1 + plan.seconds) * SEC);
                self.heals_at(at);
                self.at(at, Event::Fault(fault));
            }
        }
        for _ in 0..plan.foreign {
            // From the beginning on, or when a gateway has let go of it.
            let at = match self.chance.once_in(2) {
                true => 0,
                false => self.chance.between(SEC, (1 + plan.seconds) * SEC),
            };
            self.at(at, Event::Fault(Fault::Foreign(100)));
        }
        self.next_step = plan.steps.first().copied();
    }

    /// Nothing goes wrong after that time, as far as is known.
    pub fn heals_at(&mut self, time: Time) {
        self.healed = self.healed.max(time);
    }

    /// How long something lasts: mostly short, now and then longer than a watch.
    fn lasting(&mut self) -> Time {
        match self.chance.below(10) {
            0..4 => self.chance.between(MS, SEC),
            4..9 => self.chance.between(SEC, 15 * SEC),
            _ => self.chance.between(15 * SEC, 45 * SEC),
        }
    }

    /// The owner in two of three cases, or any gateway.
    fn victim(&mut self) -> usize {
        let owner = self.nodes.iter().position(|node| node.gate().is_open());
        let any = self.chance.below(self.nodes.len() as u64) as usize;
        owner.filter(|_| !self.chance.once_in(3)).unwrap_or(any)
    }

    /// It happens.
    pub fn fault(&mut self, fault: Fault) {
        self.tell(|| format!("{fault:?}"));
        match fault {
            Fault::Kill | Fault::Freeze | Fault::Cut => {
                let gateway = self.victim();
                self.strike(gateway, fault);
            }
            Fault::Outage => {
                let until = self.now + self.lasting();
                self.cluster.no_quorum_until = until;
                self.heals_at(until);
            }
            Fault::Stuck => {
                let (osd, until) =
                    (self.chance.below(OSDS as u64) as usize, self.now + self.lasting());
                self.cluster.stick(osd, until);
                self.heals_at(until);
            }
            Fault::Hold => self.hold(),
            Fault::Return => self.come_back(),
            Fault::Leap => self.cluster.leap += LEAP,
            Fault::Shunt => self.shunt(),
            Fault::Foreign(left) => self.foreign(left),
            Fault::Volumes => {
                self.taken_out += 1;
                self.configured();
                // And an administrator wants another gateway, whoever the owner is.
                let count = self.nodes.len() + self.taken_out as usize;
                (0..self.nodes.len())
                    .for_each(|gateway| self.order(gateway, Order::Gateways(count as u16)));
                let until = self.now + self.lasting();
                self.heals_at(until);
                self.at(until, Event::Back);
            }
            Fault::Move => {
                let to = GatewayId(self.chance.below(self.nodes.len() as u64) as u16);
                let any = self.chance.below(self.nodes.len() as u64) as usize;
                self.order(any, Order::MoveTo(to));
            }
            Fault::Job => {
                let any = self.chance.below(self.nodes.len() as u64) as usize;
                self.wants_job(any);
            }
            Fault::Anew => self.delete_record(),
            Fault::TakeOver => {
                let any = self.chance.below(self.nodes.len() as u64) as usize;
                self.order(any, Order::TakeOver);
                // Another administrator does the same elsewhere.
                if self.chance.once_in(2) {
                    self.order((any + 1) % self.nodes.len(), Order::TakeOver);
                }
            }
        }
    }

    /// The owner of the record is blocklisted for an hour; later somebody takes it off the list, so that the gateways can
    /// fence it. In half of all cases it stands still first, as a machine does that somebody believes to be dead.
    fn shunt(&mut self) {
        let Some(client) = self.cluster.owner() else { return };
        if self.chance.once_in(2) {
            let gateway = self.cluster.clients[client].gateway;
            self.strike(gateway, Fault::Freeze);
        }
        self.blocklist(client, HOUR);
        let until = self.now + self.lasting();
        self.heals_at(until);
        self.at(until, Event::Unlist(client));
    }

    fn foreign(&mut self, left: u8) {
        let image = self.chance.below(VOLUMES as u64) as usize;
        if self.cluster.lock_for_others(image) {
            let until = self.now + self.lasting();
            self.heals_at(until);
            self.at(until, Event::Free(image));
        } else if left > 0 {
            self.at(self.now + 20 * MS, Event::Fault(Fault::Foreign(left - 1)));
        }
    }

    /// The gateways hear of another configuration, each in its own time.
    pub fn configured(&mut self) {
        for gateway in 0..self.nodes.len() {
            let at = self.now + self.chance.below(SEC);
            self.to_node(gateway, at, Event::Configured);
        }
    }

    fn order(&mut self, gateway: usize, order: Order) {
        let node = &self.nodes[gateway];
        if node.alive {
            // One that comes while a client is made, or during a takeover, is carried out as well.
            let ready = matches!(
                node.machine().condition(),
                Condition::Standby | Condition::Fenced | Condition::TakingOver
            );
            let takes = order == Order::TakeOver && ready;
            self.wanted_takeovers += u32::from(takes);
            self.to_node(gateway, self.now, Event::Ordered(order));
        }
    }

    fn hold(&mut self) {
        let until = self.now + self.lasting();
        self.heals_at(until);
        let gateway = self.victim();
        if self.plan.relays && self.chance.once_in(3) {
            let other = self.chance.below(self.nodes.len() as u64) as usize;
            let both = [(gateway, other), (other, gateway)];
            both.into_iter().for_each(|(from, to)| self.held_between[from][to] = until);
        } else if self.chance.once_in(2) {
            let osd = self.chance.below(OSDS as u64) as usize;
            let client =
                self.cluster.clients.iter_mut().rev().find(|client| client.gateway == gateway);
            if let Some(client) = client {
                client.pipes[osd] = client.pipes[osd].max(until);
            }
        } else {
            let host = self.chance.below(self.hosts.len() as u64) as usize;
            self.held_until[host][gateway] = until;
        }
    }

    /// What a network holds back over the moves arrives at an owner whose epoch is another.
    fn come_back(&mut self) {
        let gateways = self.nodes.len();
        let owner = self.nodes.iter().position(|node| node.gate().is_open());
        let Some(owner) = owner.filter(|_| gateways > 1) else { return };
        let other = (owner + 1 + self.chance.below(gateways as u64 - 1) as usize) % gateways;
        let until = self.now + self.chance.between(2 * SEC, 12 * SEC);
        self.heals_at(until);
        let host = self.chance.below(self.hosts.len() as u64) as usize;
        self.held_until[host][owner] = until;
        let away = self.now + self.chance.below(SEC);
        let back = until - self.chance.between(MS, 500 * MS);
        for (gateway, at, to) in [(owner, away, other), (other, back, owner)] {
            self.to_node(gateway, at, Event::Ordered(Order::MoveTo(GatewayId(to as u16))));
        }
    }

    /// Kills a gateway, stops it or cuts it off.
    pub fn strike(&mut self, gateway: usize, fault: Fault) {
        let until = self.now + self.lasting();
        self.heals_at(until);
        self.tell(|| format!("gateway {gateway}: {fault:?} until {until}"));
        let node = &mut self.nodes[gateway];
        match fault {
            Fault::Kill if node.alive => {
                if node.gate().is_open() {
                    self.owner_killed = Some(self.now);
                }
                let silent = self.chance.once_in(2);
                self.kill(gateway, silent);
                self.at(until, Event::Start(gateway));
            }
            Fault::Freeze => {
                node.unreachable_since = node.unreachable_since.or(Some(self.now));
                let before = node.frozen_until.max(self.now);
                node.frozen_until = before.max(until);
                // Its clock stops, too, or goes on meanwhile.
                if self.chance.once_in(2) {
                    node.lag += node.frozen_until - before;
                }
                self.at(until, Event::Reachable(gateway));
            }
            Fault::Cut => {
                node.unreachable_since = node.unreachable_since.or(Some(self.now));
                node.cut_until = node.cut_until.max(until);
                self.at(until, Event::Reachable(gateway));
            }
            _ => {}
        }
    }

    /// An administrator starts a gateway again. One that does not run is started already.
    pub fn restart(&mut self, gateway: usize) {
        if self.nodes[gateway].alive {
            self.kill(gateway, false);
            self.at(self.now + 100 * MS, Event::Start(gateway));
        }
    }

    /// A gateway is frozen or cut off no more: it hears of a watch that has ended meanwhile.
    pub fn reachable(&mut self, gateway: usize) {
        let node = &mut self.nodes[gateway];
        if node.frozen_until > self.now || node.cut_until > self.now {
            return;
        }
        node.unreachable_since = None;
        let clients = self.cluster.clients.iter_mut().enumerate();
        let lost = clients.filter(|(_, client)| client.gateway == gateway && client.watch_lost);
        let lost: Vec<_> = lost
            .map(|(number, client)| {
                client.watch_lost = false;
                number
            })
            .collect();
        for client in lost {
            self.to_node(gateway, self.now, Event::WatchFailed(client));
        }
    }

    /// A gateway has done a step of its work for the group: now and then it is the last for a while.
    pub fn step(&mut self, gateway: usize) {
        let node = &self.nodes[gateway];
        let at_work = !matches!(node.machine().condition(), Condition::Standby | Condition::Owner);
        if !(at_work || node.at_work()) || !node.alive {
            return;
        }
        let Some(left) = &mut self.next_step else { return };
        *left = left.saturating_sub(1);
        if *left > 0 {
            return;
        }
        self.steps_done += 1;
        self.next_step = self.plan.steps.get(self.steps_done).copied();
        let fault = match self.chance.below(4) {
            0 | 1 => Fault::Kill,
            2 => Fault::Freeze,
            _ => Fault::Cut,
        };
        self.strike(gateway, fault);
    }
}
