//! The thread that makes the state of volumes stable: reservations, and what else is kept beside them.
//!
//! Writing to stable storage takes as long as it takes, and no shard may wait for that. Orders are carried out one after
//! the other, so that what is kept is what is in force.

use std::io;
use std::time::Duration;

use lunet_os::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use lunet_os::thread::JoinHandle;

use crate::offload::SlowWork;

/// How many orders may wait.
const ORDERS: usize = 256;

enum Order {
    Work(SlowWork),
    End,
}

/// A handle to the keeper's thread.
#[derive(Clone)]
pub struct Orders(SyncSender<Order>);

impl Orders {
    /// Hands work over, which tells whoever waits for it by itself. False if too much waits already.
    pub fn give(&self, work: SlowWork) -> bool {
        self.0.try_send(Order::Work(work)).is_ok()
    }
}

/// The thread.
pub struct Keeper {
    orders: Orders,
    thread: JoinHandle<()>,
}

impl Keeper {
    /// Starts it.
    ///
    /// # Errors
    /// The operating system's.
    pub fn start() -> io::Result<Self> {
        let (orders, received) = sync_channel(ORDERS);
        let thread = lunet_os::thread::spawn("lunet-keeper", move || work(&received))?;
        Ok(Self { orders: Orders(orders), thread })
    }

    /// A handle by which shards send it orders.
    pub fn orders(&self) -> Orders {
        self.orders.clone()
    }

    /// Ends the thread, once it has done what it was told before. If that takes longer than `limit`, because the
    /// data directory hangs, it goes with the process.
    pub fn stop(self, limit: Duration) {
        let until = lunet_os::time::now() + limit;
        let mut told = false;
        while !self.thread.is_finished() {
            // Nobody orders anything any more, so there is room as soon as one order has been done.
            told =
                told || !matches!(self.orders.0.try_send(Order::End), Err(TrySendError::Full(_)));
            if lunet_os::time::now() >= until {
                tracing::error!("what is kept in the data directory may not be what was in force");
                return;
            }
            lunet_os::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.thread.join();
    }
}

fn work(orders: &Receiver<Order>) {
    while let Ok(Order::Work(work)) = orders.recv() {
        work();
    }
}
