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
