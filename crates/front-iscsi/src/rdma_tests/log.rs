//! What connections leave in the log.

use std::fmt::Debug;

use lunet_os::sync::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;

/// Lines of the log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn with(&self, words: &str) -> usize {
        self.0.lock().expect("no panic").iter().filter(|line| line.contains(words)).count()
    }
}

impl Visit for Lines {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0.lock().expect("no panic").push(format!("{value:?}"));
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn strangers_cannot_fill_the_log_and_sessions_are_in_it() {
    let lines = Lines::default();
    // With one subscriber alone, tracing asks whatever thread logs a line first, and other tests' have none.
    let _second = tracing::Dispatch::new(Lines::default());
    tracing::subscriber::with_default(lines.clone(), || {
        let mut bench = Bench::new(64, layout(None));
        let connect = |bench: &mut Bench, endpoint| {
            let logged = bench.shard.may_log();
            let slot = bench.connect(endpoint);
            let Wire::Rdma(qp) = &mut bench.shard.conns[slot].wire else { return slot };
            qp.logged = logged;
            slot
        };
        for endpoint in 0..100 {
            let slot = connect(&mut bench, endpoint);
            bench.shard.disconnect(slot);
        }
        assert_eq!(lines.with("iSER: disconnected"), 30);
        connect(&mut bench, 100);
        bench.log_in(100);
        bench.log_out(100, 1);
        assert_eq!(lines.with("iSER: disconnected"), 31, "that of the session");
        // Time passes: what was kept back is notified with the next one.
        bench.shard.front.exec.storage.now += Duration::from_secs(3600);
        assert!(bench.shard.may_log());
        assert_eq!(lines.with("71 connections were not logged"), 1);
    });
}
