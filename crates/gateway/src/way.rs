//! By which gateway the changes of a host come to the owner.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use crate::GatewayId;

/// How often a host has changed to another gateway, at this owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn(u64);

/// What becomes of a command that changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// It is executed; [`Way::ended`] is told when the storage has nothing of it any more.
    Go(Turn),
    /// BUSY: it may have been sent before the host went another way. The connection is to be asked something; when the
    /// answer is there, it is fresh for the [turn](Way::turn) of the question.
    Ask,
    /// BUSY: what came another way is being executed yet.
    Wait,
}

/// By which gateway the changes of one host come. The owner has one of these for each host, for as long as there are
/// connections of it.
///
/// Within one epoch a host may reach the owner by several gateways. One that stands still, or a network, may hold a write back
/// which the host repeats by another gateway, and then overwrites. So a host has one way at a time. A change that comes another
/// way is not executed: the way changes to that one, and changes are executed on connections that were asked since, when what
/// came the former way has ended. What comes late finds that its way is over, and a connection that is not fresh.
#[derive(Debug, Default)]
pub struct Way {
    /// The turn, and behind it the gateway: one more than its number, or 0 for none.
    present: AtomicU64,
    /// Changes that are being executed, of turns with even and odd numbers. A turn begins when the one before the present has
    /// none left.
    running: [AtomicU32; 2],
}

/// Bits of the gateway.
const GATEWAY: u32 = 17;

const fn side(turn: u64) -> usize {
    (turn & 1) as usize
}

impl Way {
    /// The present turn: a connection is fresh for it whose login is answered now, or which answers what it is asked now.
    pub fn turn(&self) -> Turn {
        Turn(self.present.load(SeqCst) >> GATEWAY)
    }

    /// Asks for a change that came through a gateway, on a connection that is fresh for a turn.
    pub fn admits(&self, through: GatewayId, fresh: Turn) -> Passage {
        let me = u64::from(through.0) + 1;
        let mut seen = self.present.load(SeqCst);
        if seen & ((1 << GATEWAY) - 1) == 0 {
            // Nothing came another way before.
            seen = match self.present.compare_exchange(seen, seen | me, SeqCst, SeqCst) {
                Ok(_) => seen | me,
                Err(other) => other,
            };
        }
        let (turn, by) = (seen >> GATEWAY, seen & ((1 << GATEWAY) - 1));
        if by != me {
            if self.running[side(turn + 1)].load(SeqCst) > 0 {
                return Passage::Wait;
            }
            // If it fails, another change has come another way at the same time.
            let _ = self.present.compare_exchange(seen, (turn + 1) << GATEWAY | me, SeqCst, SeqCst);
            return Passage::Ask;
        }
        if fresh != Turn(turn) {
            return Passage::Ask;
        }
        self.running[side(turn)].fetch_add(1, SeqCst);
        // Counted first: whoever begins the next turn finds it.
        if self.present.load(SeqCst) != seen || self.running[side(turn + 1)].load(SeqCst) > 0 {
            self.ended(Turn(turn));
            return Passage::Wait;
        }
        Passage::Go(Turn(turn))
    }

    /// A new turn of the same way begins: what was sent before is not executed, on whatever connection it comes, unless it
    /// was let in already. A reset ends commands that the owner has not seen, by this.
    pub fn renew(&self) {
        // Two: what is being executed is counted on the same side as before.
        self.present.fetch_add(2 << GATEWAY, SeqCst);
    }

    /// A gateway that passes changes on has lost some of this host that may still come: those that were sent before are not
    /// executed, by whatever way, and those that are being executed end first. False if it is to be tried again: what came
    /// in an earlier turn has not ended.
    pub fn lose(&self) -> bool {
        let seen = self.present.load(SeqCst);
        let (turn, by) = (seen >> GATEWAY, seen & ((1 << GATEWAY) - 1));
        if self.running[side(turn + 1)].load(SeqCst) > 0 {
            return false;
        }
        let next = (turn + 1) << GATEWAY | by;
        self.present.compare_exchange(seen, next, SeqCst, SeqCst).is_ok()
    }

    /// A change of that turn has ended, or was not begun.
    pub fn ended(&self, turn: Turn) {
        self.running[side(turn.0)].fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: GatewayId = GatewayId(0);
    const B: GatewayId = GatewayId(u16::MAX);

    #[test]
    fn a_change_that_comes_another_way_is_not_executed_and_those_behind_a_question_are() {
        let way = Way::default();
        let old = way.turn();
        assert_eq!(way.admits(A, old), Passage::Go(old));
        way.ended(old);
        assert_eq!(way.admits(B, old), Passage::Ask);
        let fresh = way.turn();
        assert_eq!(way.admits(B, old), Passage::Ask, "it was sent before");
        assert_eq!(way.admits(B, fresh), Passage::Go(fresh));
        way.ended(fresh);
        assert_eq!(way.admits(A, fresh), Passage::Ask, "and back");
        assert_eq!(way.admits(A, old), Passage::Ask);
        assert_eq!(way.admits(A, way.turn()), Passage::Go(way.turn()));
    }

    #[test]
    fn what_was_sent_before_a_new_turn_of_the_same_way_is_not_executed() {
        let way = Way::default();
        let old = way.turn();
        assert_eq!(way.admits(A, old), Passage::Go(old));
        way.renew();
        assert_eq!(way.admits(A, old), Passage::Ask);
        let fresh = way.turn();
        assert_eq!(way.admits(A, fresh), Passage::Go(fresh), "what was let in is no hindrance");
        // For another way both have to end.
        assert_eq!(way.admits(B, fresh), Passage::Ask);
        let other = way.turn();
        assert_eq!(way.admits(B, other), Passage::Wait);
        way.ended(fresh);
        assert_eq!(way.admits(B, other), Passage::Wait);
        way.ended(old);
        assert_eq!(way.admits(B, other), Passage::Go(other));
    }

    #[test]
    fn what_a_gateway_has_lost_is_not_executed_and_what_is_at_work_ends_first() {
        let way = Way::default();
        let old = way.turn();
        assert_eq!(way.admits(A, old), Passage::Go(old));
        assert!(way.lose());
        let fresh = way.turn();
        assert_eq!(way.admits(A, old), Passage::Ask, "it comes late");
        assert_eq!(way.admits(A, fresh), Passage::Wait);
        assert!(!way.lose(), "two turns are told apart, and no more");
        way.ended(old);
        assert_eq!(way.admits(A, fresh), Passage::Go(fresh));
    }

    #[test]
    fn what_came_another_way_ends_first() {
        let way = Way::default();
        let (one, two) = (way.admits(A, way.turn()), way.admits(A, way.turn()));
        let (Passage::Go(turn), Passage::Go(_)) = (one, two) else { panic!("{one:?}, {two:?}") };
        assert_eq!(way.admits(B, turn), Passage::Ask);
        way.ended(turn);
        assert_eq!(way.admits(B, way.turn()), Passage::Wait);
        assert_eq!(way.admits(A, way.turn()), Passage::Wait, "nor past it the first way again");
        way.ended(turn);
        assert_eq!(way.admits(A, way.turn()), Passage::Ask);
        assert_eq!(way.admits(A, way.turn()), Passage::Go(way.turn()));
    }
}
