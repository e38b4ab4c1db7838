//! Receives that all connections take from.

use super::*;
use crate::cm::ConnParams;
use crate::ffi::QP_MIN_RNR_TIMER;

/// A message for the endpoint with this number, in the receive with that one.
fn message(number: u64, qp_num: u32) -> IbvWc {
    IbvWc { qp_num, ..says(number, 0) }
}

impl Bench {
    /// Fills the shared queue, and returns the numbers of its receives.
    fn fill(&mut self, count: usize) -> Vec<u64> {
        for _ in 0..count {
            let buf = self.buf(4096);
            self.adapter.queue_shared_receive(buf).expect("room");
        }
        self.adapter.flush();
        fake::with(|s| s.receives.last().cloned().expect("a list"))
    }
}

#[test]
fn a_shared_queue_knows_whose_message_came() {
    let mut bench = Bench::new(Some(8));
    let [a, b] = [bench.endpoint(4), bench.endpoint(4)];
    bench.adapter.set_receive_token(a, 1);
    bench.adapter.set_receive_token(b, 2);
    let numbers = bench.fill(8);
    let buf = bench.buf(4096);
    let full = bench.adapter.queue_shared_receive(buf).expect_err("it is full");
    let other = bench.adapter.queue_receive(a, full.back, 9).expect_err("it has none of its own");
    assert_eq!((full.why, other.why), (Why::Full, Why::Ended));
    assert_eq!(numbers.len(), 8);
    let gone = 77;
    for (number, qp_num) in [(numbers[3], 2), (numbers[0], 1), (numbers[1], gone)] {
        fake::with(|s| s.completions.push_back(message(number, qp_num)));
    }
    let seen: Vec<_> = bench.polled().iter().map(|c| (c.endpoint, c.token, c.bytes)).collect();
    assert_eq!(seen, [(b, 2, 5), (a, 1, 5)], "and the third is dropped");
    assert_eq!(bench.adapter.shared_receives(), 5);
}

#[test]
fn what_an_endpoint_has_received_is_not_missed_when_it_goes() {
    let mut bench = Bench::new(Some(8));
    let [a, b] = [bench.endpoint(4), bench.endpoint(4)];
    let numbers = bench.fill(8);
    // One was not polled when the connection ended, and one came with that.
    fake::with(|s| {
        s.completions.extend([message(numbers[0], 1), message(numbers[1], 2)]);
        s.at_disconnect.push(message(numbers[2], 1));
    });
    bench.adapter.close(a);
    assert!(fake::with(|s| s.completions.is_empty()), "none is left for a device to forget");
    assert_eq!(bench.adapter.shared_receives(), 5);
    assert!(bench.adapter.has_refused(), "the neighbour's waits to be told");
    let seen: Vec<_> = bench.polled().iter().map(|c| c.endpoint).collect();
    assert_eq!(seen, [b]);
    assert!(!bench.adapter.has_refused());
}

#[test]
fn receives_that_nobody_used_come_back_once_nobody_is_left() {
    let mut bench = Bench::new(Some(8));
    let idle = bench.held();
    let id = bench.endpoint(4);
    let old = bench.fill(8);
    bench.adapter.renew_shared();
    assert_eq!(bench.adapter.shared_receives(), 8, "somebody may still use them");
    bench.adapter.close(id);
    bench.adapter.renew_shared();
    assert_eq!((bench.adapter.shared_receives(), bench.held()), (0, idle));
    assert_eq!(fake::with(|s| s.alive[4]), 1);
    // The end of an old one hits nobody.
    let id = bench.endpoint(4);
    let new = bench.fill(8);
    fake::with(|s| s.completions.extend([message(old[0], 2), message(new[0], 2)]));
    let seen: Vec<_> = bench.polled().iter().map(|c| c.endpoint).collect();
    assert_eq!((seen, bench.adapter.shared_receives()), (vec![id], 7));
}

#[test]
fn a_device_that_refuses_a_shared_queue_gives_each_its_own() {
    fake::with(|s| s.no_shared = true);
    let mut bench = Bench::new(Some(8));
    assert!(!bench.adapter.has_shared_receives());
    let id = bench.endpoint(4);
    let buf = bench.buf(4096);
    bench.adapter.queue_receive(id, buf, 1).expect("its own queue");
    // The places of the shared queue's completions are free for others.
    let config = EndpointConfig { sends: 20, receives: 4 };
    bench.adapter.open_endpoint(fake::id(&bench.library), config).expect("32 places are there");
}

#[test]
fn a_shared_queue_that_cannot_be_renewed_gives_each_its_own() {
    let mut bench = Bench::new(Some(8));
    bench.fill(8);
    fake::with(|s| s.no_shared = true);
    bench.adapter.renew_shared();
    assert!(!bench.adapter.has_shared_receives());
    bench.polled();
    let config = EndpointConfig { sends: 28, receives: 4 };
    bench.adapter.open_endpoint(fake::id(&bench.library), config).expect("32 places are there");
}

#[test]
fn a_peer_without_a_receive_tries_again_soon() {
    let mut bench = Bench::new(None);
    let id = bench.endpoint(4);
    let params = ConnParams { reads: 1, reads_served: 1, private: &[] };
    bench.adapter.accept(id, params).expect("the peer is there");
    assert_eq!(fake::with(|s| s.modified.clone()), [(QP_MIN_RNR_TIMER, 12)]);
}

const NOTHING: ConnParams<'_> = ConnParams { reads: 1, reads_served: 1, private: &[] };

impl Bench {
    /// An endpoint whose peer may send.
    fn accepted(&mut self) -> EndpointId {
        let id = self.endpoint(4);
        self.adapter.accept(id, NOTHING).expect("the peer is there");
        id
    }

    /// Posts receives until there are as many as there should be.
    fn top_up(&mut self) {
        while self.adapter.shared_room() > 0 {
            let buf = self.buf(4096);
            self.adapter.queue_shared_receive(buf).expect("room");
        }
        self.adapter.flush();
    }

    fn end(&mut self, number: u64, qp_num: u32) -> usize {
        fake::with(|s| s.completions.push_back(message(number, qp_num)));
        self.polled().len()
    }

    /// Receives that can take a message, and those that may be lost.
    fn shared(&self) -> (u32, u32) {
        (self.adapter.shared_receives(), self.adapter.shared_lost())
    }
}

#[test]
fn a_receive_that_a_broken_message_has_kept_is_replaced() {
    let mut bench = Bench::new(Some(8));
    let (a, _b) = (bench.accepted(), bench.accepted());
    let first = bench.fill(8);
    let posted = bench.held();
    // The device took the first receive for a message to one that is gone, and says nothing of it.
    bench.adapter.close(a);
    let heads = 4096;
    assert_eq!(bench.shared(), (7, 1));
    bench.top_up();
    let replaced = fake::with(|s| s.receives.last().cloned().expect("a list"));
    assert_eq!((bench.shared(), replaced.len()), ((8, 1), 1));
    assert_eq!(bench.held(), posted - heads + 4096, "the device may still write to the first");
    // The others take messages, and so does the new one: now it is clear which one is missing.
    first[1..].iter().for_each(|number| assert_eq!(bench.end(*number, 2), 1));
    assert_eq!(bench.end(replaced[0], 2), 1);
    let c = bench.endpoint(4);
    assert_eq!(bench.shared(), (0, 1));
    bench.top_up();
    assert_eq!(bench.shared(), (8, 1));
    // The device does tell in the end, and the memory comes back.
    let held = bench.held();
    assert_eq!(bench.end(first[0], 1), 0, "to nobody");
    assert_eq!((bench.shared(), bench.held()), ((8, 0), held - 4096));
    assert!(bench.adapter.shares_receives(c));
}

#[test]
fn connections_that_end_between_messages_cost_nothing_once_that_is_clear() {
    let mut bench = Bench::new(Some(8));
    let (a, _b, _idle) = (bench.accepted(), bench.accepted(), bench.accepted());
    let first = bench.fill(8);
    bench.adapter.close(a);
    // One that was refused has taken none.
    let refused = bench.endpoint(4);
    bench.adapter.close(refused);
    bench.top_up();
    assert_eq!(bench.shared(), (8, 1));
    first.iter().for_each(|number| assert_eq!(bench.end(*number, 2), 1));
    let more = bench.fill(7);
    // The one that is idle may be in the middle of a message.
    let c = bench.endpoint(4);
    assert_eq!(bench.shared(), (7, 1));
    assert_eq!(bench.end(more[6], 3), 1);
    bench.adapter.close(c);
    bench.endpoint(4);
    assert_eq!(bench.shared(), (7, 0));
}

#[test]
fn who_comes_after_many_losses_has_receives_of_its_own() {
    let mut bench = Bench::new(Some(8));
    let steady = bench.accepted();
    bench.fill(8);
    // Half as many can be replaced, and the next is told by a queue of its own.
    for lost in 1..=5 {
        let breaks = bench.accepted();
        assert!(bench.adapter.shares_receives(breaks), "{lost}");
        bench.adapter.close(breaks);
        bench.top_up();
        assert_eq!(bench.shared(), (if lost < 5 { 8 } else { 7 }, lost));
    }
    let held = bench.held();
    for _ in 0..20 {
        let alone = bench.accepted();
        assert!(!bench.adapter.shares_receives(alone));
        let buf = bench.buf(4096);
        bench.adapter.queue_receive(alone, buf, 1).expect("a queue of its own");
        bench.adapter.flush();
        bench.adapter.close(alone);
        bench.polled();
    }
    assert_eq!((bench.shared(), bench.held()), ((7, 5), held), "nothing more is lost");
    // The queue is made anew when nobody takes from it.
    let alone = bench.accepted();
    bench.adapter.renew_shared();
    assert_eq!(bench.shared(), (7, 5));
    bench.adapter.close(steady);
    bench.adapter.renew_shared();
    assert_eq!(bench.shared(), (0, 0));
    let next = bench.accepted();
    assert!(bench.adapter.shares_receives(next) && !bench.adapter.shares_receives(alone));
    bench.adapter.close(alone);
    bench.adapter.close(next);
    assert_eq!(bench.held(), 0);
}
