//! What an adapter asks to be told of, and what it reads of that.

use std::mem;

use super::*;
use crate::ffi::IbvCq;

/// An adapter with one endpoint, and what its device was asked for.
struct Told {
    bench: Bench,
    id: EndpointId,
    arrivals: *mut IbvCq,
    ends: *mut IbvCq,
}

impl Told {
    fn new() -> Self {
        let mut bench = Bench::new(None);
        let id = bench.endpoint(4);
        let queues = &bench.adapter.queues;
        let (arrivals, ends) = (queues.receives.raw(), queues.sends.raw());
        Self { bench, id, arrivals, ends }
    }

    fn arm(&mut self, told: bool, ends: bool) {
        self.bench.adapter.arm(told, ends).expect("the device is well");
    }

    /// A message comes, and is polled.
    fn arrives(&mut self) {
        let buf = self.bench.buf(4096);
        self.bench.adapter.queue_receive(self.id, buf, 1).expect("room");
        self.bench.adapter.flush();
        let number = fake::with(|s| s.receives.last().expect("a list")[0]);
        fake::with(|s| s.completions.push_back(says(number, 0)));
        assert_eq!(self.bench.polled().len(), 1);
    }

    /// A write ends, and is polled.
    fn ends(&mut self) {
        self.bench.write(self.id, 1, true).expect("room");
        self.bench.adapter.flush();
        let number = last_list()[0].number;
        fake::with(|s| s.completions.push_back(says(number, 0)));
        assert_eq!(self.bench.polled().len(), 1);
    }

    /// The device gives notice of a queue.
    fn tells(&self, queue: *mut IbvCq) {
        fake::with(|s| s.notices.push_back(queue));
    }

    /// What the device was asked to tell since the last call: the queues, and reads of notices.
    fn asked(&self) -> (Vec<&'static str>, u32) {
        let (armed, reads) = fake::with(|s| (mem::take(&mut s.armed), mem::take(&mut s.reads)));
        let name = |queue| {
            assert!(queue == self.arrivals || queue == self.ends, "a queue of its own");
            if queue == self.arrivals { "arrivals" } else { "ends" }
        };
        (armed.into_iter().map(name).collect(), reads)
    }
}

#[test]
fn ends_are_asked_for_only_by_who_waits_for_them() {
    let mut told = Told::new();
    assert_ne!(told.arrivals, told.ends);
    told.arm(false, false);
    assert_eq!(told.asked(), (vec!["arrivals"], 0));
    told.arm(false, true);
    assert_eq!(told.asked(), (vec!["ends"], 0));
}

#[test]
fn nothing_is_asked_for_again_that_is_still_to_come() {
    let mut told = Told::new();
    told.arm(false, true);
    assert_eq!(told.asked(), (vec!["arrivals", "ends"], 0));
    for ends in [true, false, true] {
        told.arm(false, ends);
        assert_eq!(told.asked(), (vec![], 0));
    }
    // An end, and its notice: the arrival is still to come.
    told.ends();
    told.tells(told.ends);
    told.arm(true, true);
    assert_eq!(told.asked(), (vec!["ends"], 1));
}

#[test]
fn a_notice_that_was_read_may_be_asked_for_again() {
    let mut told = Told::new();
    told.arm(false, true);
    told.asked();
    told.arrives();
    told.tells(told.arrivals);
    told.arm(true, true);
    assert_eq!(told.asked(), (vec!["arrivals"], 1));
    // It is read though the descriptor was not looked at: what it tells of was polled.
    told.arrives();
    told.tells(told.arrivals);
    told.arm(false, true);
    assert_eq!(told.asked(), (vec!["arrivals"], 1));
    // It is read before that, too, if the descriptor tells.
    told.tells(told.arrivals);
    told.arm(true, true);
    assert_eq!(told.asked(), (vec!["arrivals"], 1));
}

#[test]
fn two_queues_that_have_fired_take_two_reads() {
    let mut told = Told::new();
    told.arm(false, true);
    told.asked();
    told.arrives();
    told.ends();
    // Several completions are one notice.
    told.arrives();
    told.tells(told.ends);
    told.tells(told.arrivals);
    told.arm(true, false);
    assert_eq!(told.asked(), (vec!["arrivals"], 2));
    // Nobody has asked for ends: so none is told of, and none read.
    told.ends();
    told.arm(false, false);
    assert_eq!(told.asked(), (vec![], 0));
    told.arm(false, true);
    assert_eq!(told.asked(), (vec!["ends"], 0));
}

#[test]
fn a_notice_that_is_late_is_waited_for() {
    let mut told = Told::new();
    told.arm(false, false);
    told.asked();
    // A device writes the completion first.
    told.arrives();
    told.arm(false, false);
    assert_eq!(told.asked(), (vec![], 1), "it may come any time, and is not asked for twice");
    told.tells(told.arrivals);
    told.arm(true, false);
    assert_eq!(told.asked(), (vec!["arrivals"], 1));
    // Who was told in vain reads once, and asks for nothing.
    told.arm(true, false);
    assert_eq!(told.asked(), (vec![], 1));
}

#[test]
fn every_notice_is_acknowledged_before_its_queue_goes() {
    let mut told = Told::new();
    for _ in 0..70 {
        told.arm(true, true);
        told.tells(told.arrivals);
    }
    told.tells(told.ends);
    told.arm(true, true);
    told.arm(true, true);
    assert_eq!(fake::with(|s| s.acknowledged), 64, "not one by one: it takes a lock");
    drop(told);
    assert_eq!(fake::with(|s| (s.acknowledged, s.notices.len())), (71, 0));
}
