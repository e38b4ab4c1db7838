//! The places of the control socket's clients: nobody keeps others out of them by being silent.
//!
//! Each user has places of their own, and root's are counted apart from all others. A client that has not asked yet gives
//! its place up to a new one where that would find none.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most clients of a user at one time.
pub(super) const OF_USER: usize = 8;

/// The most clients of all users but root.
const OF_ALL: usize = 32;

/// Root's user id.
const ROOT: u32 = 0;

struct Held {
    id: u64,
    uid: u32,
    /// The request has come.
    asked: bool,
    /// To turn the client away.
    stream: UnixStream,
}

#[derive(Default)]
struct Inner {
    last: u64,
    /// In the order in which they came.
    held: Vec<Held>,
}

/// All places.
#[derive(Default)]
pub(super) struct Seats(Mutex<Inner>);

/// The place of a client; free again when this is dropped.
pub(super) struct Seat {
    seats: Arc<Seats>,
    id: u64,
}

/// Whether there is a place for a new client.
pub(super) enum Taken {
    /// There is.
    Free(Seat),
    /// There is, and this client has lost it, who is to be turned away.
    InPlaceOf(UnixStream, Seat),
    /// All clients who could lose theirs have asked.
    None,
}

impl Seats {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a client of this user. The stream is a copy of the client's.
    pub(super) fn take(self: &Arc<Self>, uid: u32, stream: UnixStream) -> Taken {
        let mut inner = self.lock();
        let victim = if inner.count(|held| held.uid == uid) >= OF_USER {
            Some(inner.victim(|held| held.uid == uid))
        } else if uid != ROOT && inner.count(|held| held.uid != ROOT) >= OF_ALL {
            Some(inner.victim(|held| held.uid != ROOT))
        } else {
            None
        };
        let lost = match victim {
            Some(None) => return Taken::None,
            Some(Some(at)) => Some(inner.held.remove(at).stream),
            None => None,
        };
        inner.last += 1;
        let id = inner.last;
        inner.held.push(Held { id, uid, asked: false, stream });
        let seat = Seat { seats: Arc::clone(self), id };
        match lost {
            Some(stream) => Taken::InPlaceOf(stream, seat),
            None => Taken::Free(seat),
        }
    }
}

impl Inner {
    fn count(&self, of: impl Fn(&Held) -> bool) -> usize {
        self.held.iter().filter(|held| of(held)).count()
    }

    /// Of these the one who gives up the place: of those who have not asked, the first of whoever has most of them.
    fn victim(&self, may: impl Fn(&Held) -> bool) -> Option<usize> {
        let silent = |held: &Held| !held.asked && may(held);
        let mut of: HashMap<u32, usize> = HashMap::new();
        self.held.iter().filter(|held| silent(held)).for_each(|held| {
            *of.entry(held.uid).or_default() += 1;
        });
        let all = self.held.iter().enumerate().filter(|(_, held)| silent(held));
        all.min_by_key(|(at, held)| (Reverse(of[&held.uid]), *at)).map(|(at, _)| at)
    }
}

impl Seat {
    /// The request has come. False if the place was lost meanwhile.
    pub(super) fn asks(&self) -> bool {
        let mut inner = self.seats.lock();
        let own = inner.held.iter_mut().find(|held| held.id == self.id);
        own.map(|held| held.asked = true).is_some()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.lock().held.retain(|held| held.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place that must be there, and whether somebody has lost it.
    fn seat(seats: &Arc<Seats>, uid: u32) -> (Seat, bool) {
        let (here, _) = UnixStream::pair().unwrap();
        match seats.take(uid, here) {
            Taken::Free(seat) => (seat, false),
            Taken::InPlaceOf(_, seat) => (seat, true),
            Taken::None => panic!("no place for {uid}"),
        }
    }

    fn is_full(seats: &Arc<Seats>, uid: u32) -> bool {
        matches!(seats.take(uid, UnixStream::pair().unwrap().0), Taken::None)
    }

    #[test]
    fn who_was_silent_for_longest_gives_up_the_place_and_who_has_asked_does_not() {
        let seats = Arc::new(Seats::default());
        let all: Vec<_> = (0..OF_USER).map(|_| seat(&seats, 7).0).collect();
        assert!(all[0].asks());
        assert!(seat(&seats, 7).1);
        assert!(all[0].asks() && !all[1].asks() && all[2].asks());
        let (other, took) = seat(&seats, 8);
        assert!(!took && other.asks(), "another user has places of their own");
    }

    #[test]
    fn there_is_no_place_among_those_who_have_all_asked() {
        let seats = Arc::new(Seats::default());
        let mut all: Vec<_> = (0..OF_USER).map(|_| seat(&seats, 7).0).collect();
        all.iter().for_each(|seat| assert!(seat.asks()));
        assert!(is_full(&seats, 7));
        all.pop();
        assert!(!seat(&seats, 7).1);
    }

    #[test]
    fn nobody_keeps_root_out_nor_one_who_has_few() {
        let seats = Arc::new(Seats::default());
        let many = (0..4).flat_map(|uid| (0..OF_USER).map(move |_| 1000 + uid));
        let all: Vec<_> = many.map(|uid| seat(&seats, uid).0).collect();
        assert_eq!(all.len(), OF_ALL);
        let (few, took) = seat(&seats, 7);
        assert!(took && !all[0].asks());
        // Of those who have most now: one of the second user's.
        assert!(seat(&seats, 8).1 && !all[OF_USER].asks() && few.asks());
        let asked = all.iter().filter(|seat| seat.asks()).count();
        assert_eq!(asked, OF_ALL - 2, "two have lost their places");
        let root: Vec<_> = (0..OF_USER).map(|_| seat(&seats, ROOT)).collect();
        assert!(root.iter().all(|(seat, took)| !took && seat.asks()));
        assert!(is_full(&seats, ROOT));
    }
}
