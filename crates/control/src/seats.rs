//! The places of connections: there are so many, and nobody can keep others out of them.
//!
//! A client that has shown who it is keeps its place while its request is under way, or its events come. Any other
//! connection gives its place up to a new one when all are taken: first those of whoever has most of them, of these
//! those that ask nothing, and of these the one that has done so for longest. So whoever opens many connections and
//! says nothing takes places from itself, also where all clients have one address, as behind an SSH tunnel.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::guard::Source;

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// It asks nothing, or has not asked yet.
    Silent,
    /// It has sent the header of a request.
    Asks,
    /// Its request is whole, and is that of somebody who has shown who they are.
    Known,
}

struct Held {
    source: Source,
    state: State,
    /// Orders the connections by when they came, or were last done with a request.
    since: u64,
    end: Arc<Notify>,
}

#[derive(Default)]
struct Inner {
    clock: u64,
    held: HashMap<u64, Held>,
}

impl Inner {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The connection that gives up its place.
    fn victim(&self) -> Option<u64> {
        let mut of: HashMap<Source, usize> = HashMap::new();
        let may = || self.held.iter().filter(|(_, held)| held.state != State::Known);
        may().for_each(|(_, held)| *of.entry(held.source).or_default() += 1);
        let first =
            may().min_by_key(|(_, held)| (Reverse(of[&held.source]), held.state, held.since));
        first.map(|(id, _)| *id)
    }
}

/// All places.
pub(crate) struct Seats {
    most: usize,
    inner: Mutex<Inner>,
}

/// The place of a connection; free again when this is dropped.
pub(crate) struct Seat {
    seats: Arc<Seats>,
    id: u64,
    end: Arc<Notify>,
}

/// A request is under way on a connection until this is dropped.
pub(crate) struct Asking(Arc<Seat>);

impl Seats {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, inner: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection; `None` if all belong to clients that are known and busy.
    pub(crate) fn take(self: &Arc<Self>, source: Source) -> Option<Arc<Seat>> {
        let mut inner = self.lock();
        if inner.held.len() >= self.most {
            let victim = inner.victim()?;
            if let Some(held) = inner.held.remove(&victim) {
                held.end.notify_one();
            }
        }
        let (id, end) = (inner.tick(), Arc::new(Notify::new()));
        inner.held.insert(id, Held { source, state: State::Silent, since: id, end: end.clone() });
        Some(Arc::new(Seat { seats: Arc::clone(self), id, end }))
    }
}

impl Seat {
    fn set(&self, state: State) {
        let mut inner = self.seats.lock();
        let now = inner.tick();
        // One that has lost its place meanwhile has none.
        if let Some(held) = inner.held.get_mut(&self.id) {
            (held.state, held.since) = (state, now);
        }
    }

    /// The header of a request is there.
    pub(crate) fn asks(self: &Arc<Self>) -> Asking {
        self.set(State::Asks);
        Asking(Arc::clone(self))
    }

    /// The request is whole, and is that of somebody who has shown who they are.
    pub(crate) fn is_known(&self) {
        self.set(State::Known);
    }

    /// Waits until the place is given to another connection.
    pub(crate) async fn lost(&self) {
        self.end.notified().await;
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.set(State::Silent);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.lock().held.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    const HERE: Source = Source::Network(IpAddr::V4(Ipv4Addr::LOCALHOST));
    const THERE: Source = Source::User(7);

    fn has(seats: &Seats, seat: &Seat) -> bool {
        seats.lock().held.contains_key(&seat.id)
    }

    #[test]
    fn who_is_silent_for_longest_gives_up_the_place_and_who_is_known_does_not() {
        let seats = Seats::new(4);
        let all: Vec<_> = (0..4).map(|_| seats.take(HERE).unwrap()).collect();
        let known = all[0].asks();
        all[0].is_known();
        let asks = all[1].asks();
        let fifth = seats.take(HERE).expect("a place");
        let left = |seat: &Arc<Seat>| has(&seats, seat);
        assert_eq!(all.iter().map(left).collect::<Vec<_>>(), [true, true, false, true]);
        drop(asks);
        let _sixth = seats.take(HERE).expect("a place");
        assert!(!left(&all[3]) && left(&all[1]), "who has just been answered is not the first");
        let _more: Vec<_> = (0..9).map(|_| seats.take(HERE).unwrap()).collect();
        assert!(left(&all[0]) && !left(&all[1]) && !left(&fifth));
        assert_eq!(seats.lock().held.len(), 4);
        drop(known);
        drop(all);
        assert_eq!(seats.lock().held.len(), 3, "one of them had its place still");
    }

    #[test]
    fn who_has_many_places_takes_them_from_itself() {
        let seats = Seats::new(8);
        let one = seats.take(THERE).unwrap();
        let many: Vec<_> = (0..100).map(|_| seats.take(HERE).unwrap()).collect();
        let asking: Vec<_> = many.iter().map(Seat::asks).collect();
        let _more: Vec<_> = (0..100).map(|_| seats.take(HERE).unwrap()).collect();
        assert!(has(&seats, &one), "it was silent for longest");
        drop(asking);
    }

    #[test]
    fn there_is_no_place_among_those_that_are_all_known() {
        let seats = Seats::new(2);
        let all: Vec<_> = (0..2).map(|_| seats.take(HERE).unwrap()).collect();
        let asking: Vec<_> = all.iter().map(Seat::asks).collect();
        all.iter().for_each(|seat| seat.is_known());
        assert!(seats.take(THERE).is_none());
        drop(asking);
        assert!(seats.take(THERE).is_some());
    }
}
