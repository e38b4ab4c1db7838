//! What a world has in it. `--shrink` makes each number less.

use serde::{Deserialize, Serialize};

use crate::Chance;

/// A world's plan.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Plan {
    /// Gateways, 2 to 4.
    pub gateways: u8,
    /// Hosts, 1 to 3.
    pub hosts: u8,
    /// Operations of each host.
    pub operations: u32,
    /// For how many seconds faults happen and administrators act.
    pub seconds: u64,
    /// Planned moves.
    pub moves: u8,
    /// Takeovers that an administrator wants.
    pub takeovers: u8,
    /// Gateways that are killed, and started again.
    pub kills: u8,
    /// Gateways that stand still for a while.
    pub freezes: u8,
    /// Gateways that are cut off from the cluster, and not from their hosts.
    pub cuts: u8,
    /// Times without a quorum of monitors.
    pub outages: u8,
    /// OSDs that stand still.
    pub stuck: u8,
    /// Paths between a host and a gateway, or a client and an OSD, that hold everything back for a while.
    pub holds: u8,
    /// Two hours pass for the cluster.
    pub leaps: u8,
    /// An administrator, or a tool, blocklists the owner for an hour.
    pub shunts: u8,
    /// Times that somebody who is no gateway locks an image for a while, if it is free.
    pub foreign: u8,
    /// Times that a volume is taken out of the group, and put into it again.
    pub volumes: u8,
    /// Times that the group moves away and comes back while a path to its gateway holds everything back.
    pub returns: u8,
    /// Jobs that an administrator wants of the owner, by any gateway.
    pub jobs: u8,
    /// Times that an administrator deletes the record and makes the group anew while gateways run, and starts some of them again.
    pub anew: u8,
    /// Standbys pass commands on to the owner.
    pub relays: bool,
    /// A gateway is killed, stopped or cut off at that step of its work for the group: one after the other.
    pub steps: Vec<u32>,
    /// The longest that a map takes to an OSD or client, in milliseconds.
    pub spread: u64,
    /// One in so many commands waits for seconds before it is executed; 0: none.
    pub slow: u64,
}

impl Plan {
    /// The plan of a seed.
    pub fn draw(chance: &mut Chance) -> Self {
        let calm = chance.once_in(8);
        let mut some = |most: u64, times: u64| match calm || !chance.once_in(times) {
            true => 0,
            false => 1 + chance.below(most) as u8,
        };
        let (kills, freezes, cuts, outages) = (some(2, 3), some(3, 2), some(2, 3), some(1, 5));
        let (stuck, holds, leaps, steps) = (some(1, 5), some(4, 2), some(1, 3), some(3, 2));
        let longest = if chance.once_in(3) { 8000 } else { 300 };
        let spread = 1 + chance.below(longest);
        // From a stream of its own: what worlds were drawn before is drawn still.
        let mut apart = Chance::new(spread ^ chance.clone().below(u64::MAX));
        let shunts = u8::from(!calm && apart.once_in(4));
        let relays = !apart.once_in(4);
        let foreign = if !calm && apart.once_in(4) { 1 + apart.below(2) as u8 } else { 0 };
        let volumes = if apart.once_in(3) { 1 + apart.below(3) as u8 } else { 0 };
        let returns = if !calm && apart.once_in(4) { 1 + apart.below(2) as u8 } else { 0 };
        let jobs = if apart.once_in(2) { 1 + apart.below(6) as u8 } else { 0 };
        let anew = u8::from(apart.once_in(6));
        Self {
            gateways: 2 + chance.below(3) as u8,
            hosts: 1 + chance.below(3) as u8,
            operations: 20 + chance.below(60) as u32,
            seconds: 8 + chance.below(20),
            moves: chance.below(3) as u8,
            takeovers: chance.below(3) as u8,
            kills,
            freezes,
            cuts,
            outages,
            stuck,
            holds,
            leaps,
            shunts,
            foreign,
            volumes,
            returns,
            jobs,
            anew,
            relays,
            steps: (0..steps).map(|_| 1 + chance.below(60) as u32).collect(),
            spread,
            slow: if chance.once_in(2) { 5 + chance.below(30) } else { 0 },
        }
    }

    /// True if nothing fails in it.
    pub fn calm(&self) -> bool {
        let faults = [
            self.kills,
            self.freezes,
            self.cuts,
            self.outages,
            self.stuck,
            self.holds,
            self.returns,
            self.shunts,
            self.foreign,
        ];
        faults.iter().all(|count| *count == 0) && self.steps.is_empty() && self.slow == 0
    }

    /// Within what a world needs to be one.
    pub fn bounded(mut self) -> Self {
        self.gateways = self.gateways.clamp(1, 4);
        self.hosts = self.hosts.clamp(1, 3);
        self.spread = self.spread.max(1);
        self.seconds = self.seconds.max(1);
        self
    }
}
