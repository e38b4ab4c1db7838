//! An event loop that the storage of a volume holds up keeps its own connections waiting, and no others.

use std::time::{Duration, Instant};

use crate::support::block::At;
use crate::support::client::{Client, rw16};
use crate::support::status::GOOD;
use crate::support::{config, memory, on_each_driver, start, trapped, until};
use lunet_front_iscsi::Config;
use lunet_iscsi::initiator::Data;

/// Less than initiators wait for a login, and more than a busy machine needs.
const SOON: Duration = Duration::from_secs(15);

/// The shard that accepts, and one that does not.
#[test]
fn logins_go_to_the_event_loops_that_answer() {
    on_each_driver(|driver| {
        for stuck in 0..2 {
            let (hung, trap) = trapped(1);
            let volumes = vec![memory(1), hung];
            let (server, address) = start(Config { shards: Some(3), ..config(volumes, driver) });
            // One on each, in their order.
            let mut clients: Vec<Client> = (1..4).map(|n| Client::login(address, n)).collect();
            let mut victim = clients.remove(stuck);
            victim.finish(1, &[0; 6], Data::None);
            trap.arm(At::Submit);
            let tag = victim.start(1, &rw16(0x8A, 0, 1), Data::Write(vec![3; 512]));
            until("the event loop is stuck", || trap.has_one());
            let begun = Instant::now();
            for n in 10..16 {
                let mut fresh = Client::login(address, n);
                fresh.works(0);
                clients.push(fresh);
            }
            assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
            clients.iter_mut().for_each(|client| client.works(0));
            until("it is reported", || {
                server.handle().stats().silent.iter().any(|one| one.shard == stuck)
            });
            trap.open();
            let end = victim.outcome(tag).outcome;
            assert!(
                matches!(&end, lunet_iscsi::initiator::Outcome::Completed(end) if end.status == GOOD)
            );
            until("it answers again", || server.handle().stats().silent.is_empty());
            drop((victim, clients));
            assert!(server.stop(Duration::from_secs(1)).flushed);
        }
    });
}
