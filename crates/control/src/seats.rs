//! The places of connections: there are so many, and nobody can keep others out of them.
//!
//! A connection keeps its place while its request is whole and under way, or its events come. Any other one gives its
//! place up to a new one when all are taken: first those of whoever has most of them, and of these the one that came,
//! sent a header or was answered longest ago. So whoever opens many connections and says nothing, or half of something,
//! takes places from itself, also where all clients have one address, as behind an SSH tunnel.
//!
//! If all of them have a request under way, a new one takes the place of one whose request has been for long, in the same
//! order: whoever takes an answer byte by byte, or waits for events, asks again.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::guard::Source;

struct Held {
    source: Source,
    /// Its request is whole, and under way.
    busy: bool,
    /// Orders the connections by when they came, sent a header, or were answered.
    since: u64,
    /// When that was.
    at: Instant,
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
    fn victim(&self, long: Duration) -> Option<u64> {
        self.first(|held| !held.busy).or_else(|| self.first(|held| held.at.elapsed() >= long))
    }

    /// Of these, one of whoever has most of them: the one of which nothing was heard for longest.
    fn first(&self, may: impl Fn(&Held) -> bool) -> Option<u64> {
        let mut of: HashMap<Source, usize> = HashMap::new();
        let all: Vec<_> = self.held.iter().filter(|(_, held)| may(held)).collect();
        all.iter().for_each(|(_, held)| *of.entry(held.source).or_default() += 1);
        let first = all.iter().min_by_key(|(_, held)| (Reverse(of[&held.source]), held.since));
        first.map(|(id, _)| **id)
    }
}

/// All places.
pub(crate) struct Seats {
    most: usize,
    /// A request that has been under way for so long has to be asked again, if places are short.
    long: Duration,
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
    pub(crate) fn new(most: usize, long: Duration) -> Arc<Self> {
        Arc::new(Self { most, long, inner: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection; `None` if requests are under way on all, and for none of them long.
    pub(crate) fn take(self: &Arc<Self>, source: Source) -> Option<Arc<Seat>> {
        let mut inner = self.lock();
        if inner.held.len() >= self.most {
            let victim = inner.victim(self.long)?;
            if let Some(held) = inner.held.remove(&victim) {
                held.end.notify_one();
            }
        }
        let (id, end) = (inner.tick(), Arc::new(Notify::new()));
        inner.held.insert(
            id,
            Held { source, busy: false, since: id, at: Instant::now(), end: end.clone() },
        );
        Some(Arc::new(Seat { seats: Arc::clone(self), id, end }))
    }
}

impl Seat {
    fn set(&self, busy: bool) {
        let mut inner = self.seats.lock();
        let now = inner.tick();
        // One that has lost its place meanwhile has none.
        if let Some(held) = inner.held.get_mut(&self.id) {
            (held.busy, held.since, held.at) = (busy, now, Instant::now());
        }
    }

    /// The header of a request is there.
    pub(crate) fn asks(self: &Arc<Self>) -> Asking {
        self.set(false);
        Asking(Arc::clone(self))
    }

    /// The request is whole.
    pub(crate) fn is_busy(&self) {
        self.set(true);
    }

    /// Waits until the place is given to another connection.
    pub(crate) async fn lost(&self) {
        self.end.notified().await;
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.set(false);
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
    const LONG: Duration = Duration::from_secs(3600);

    fn has(seats: &Seats, seat: &Seat) -> bool {
        seats.lock().held.contains_key(&seat.id)
    }

    #[test]
    fn who_is_silent_for_longest_gives_up_the_place_and_who_is_busy_does_not() {
        let seats = Seats::new(4, LONG);
        let all: Vec<_> = (0..4).map(|_| seats.take(HERE).unwrap()).collect();
        let left = || all.iter().map(|seat| has(&seats, seat)).collect::<Vec<_>>();
        let busy = all[0].asks();
        all[0].is_busy();
        let asks = all[1].asks();
        let _fifth = seats.take(HERE).expect("a place");
        assert_eq!(left(), [true, true, false, true]);
        drop(asks);
        let _sixth = seats.take(HERE).expect("a place");
        assert_eq!(left(), [true, true, false, false], "who was just answered is not the first");
        let _more: Vec<_> = (0..9).map(|_| seats.take(HERE).unwrap()).collect();
        assert_eq!(left(), [true, false, false, false]);
        assert_eq!(seats.lock().held.len(), 4);
        drop(busy);
        drop(all);
        assert_eq!(seats.lock().held.len(), 3, "one of them had its place still");
    }

    /// Others wait half way through their requests: who has just come is not let go for that.
    #[test]
    fn who_has_just_come_has_time_to_ask() {
        let seats = Seats::new(4, LONG);
        let slow: Vec<_> = (0..3).map(|_| seats.take(HERE).unwrap()).collect();
        let _asking: Vec<_> = slow.iter().map(Seat::asks).collect();
        let new = seats.take(HERE).unwrap();
        let _more: Vec<_> = (0..3).map(|_| seats.take(HERE).unwrap()).collect();
        assert!(has(&seats, &new) && !slow.iter().any(|seat| has(&seats, seat)));
    }

    #[test]
    fn who_has_many_places_takes_them_from_itself() {
        let seats = Seats::new(8, LONG);
        let one = seats.take(THERE).unwrap();
        let many: Vec<_> = (0..100).map(|_| seats.take(HERE).unwrap()).collect();
        let asking: Vec<_> = many.iter().map(Seat::asks).collect();
        let _more: Vec<_> = (0..100).map(|_| seats.take(HERE).unwrap()).collect();
        assert!(has(&seats, &one), "it was silent for longest");
        drop(asking);
    }

    #[test]
    fn there_is_no_place_among_those_that_are_all_busy() {
        let seats = Seats::new(2, LONG);
        let all: Vec<_> = (0..2).map(|_| seats.take(HERE).unwrap()).collect();
        let asking: Vec<_> = all.iter().map(Seat::asks).collect();
        all.iter().for_each(|seat| seat.is_busy());
        assert!(seats.take(THERE).is_none());
        drop(asking);
        assert!(seats.take(THERE).is_some());
    }

    #[test]
    fn who_takes_answers_for_ever_gives_up_places_when_all_are_busy() {
        let seats = Seats::new(4, Duration::ZERO);
        let asked = |source| {
            let seat = seats.take(source).unwrap();
            let asking = seat.asks();
            seat.is_busy();
            (seat, asking)
        };
        let one = asked(THERE);
        let slow: Vec<_> = (0..3).map(|_| asked(HERE)).collect();
        let new = asked(THERE);
        let left: Vec<_> = slow.iter().map(|(seat, _)| has(&seats, seat)).collect();
        assert_eq!(left, [false, true, true]);
        assert!(has(&seats, &one.0) && has(&seats, &new.0));
    }
}
