//! What fronts have in common that pass commands of their hosts on to the owner of a failover group, whatever the protocol.
//!
//! A connection of a host at a standby has a session with the owner, a *relay*, as long as there is I/O. The owner has it as a
//! session of the host through the standby. A thread of the process carries relays ([`Takes`]): a shard may not connect.

mod load;
mod request;
mod way;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

pub use self::load::{Charge, Full, Load, OF_SESSION};
pub use self::request::{Execution, GroupRequest, TakesRequests};
pub use self::way::{Going, Ways};

/// What a protocol passes on.
pub trait Passed: 'static {
    /// Who a relay is for.
    type Whose: Send;
    /// A command.
    type Command: Send;
    /// Something else that is done by the owner, after the commands before it.
    type Function: Send;
    /// The answer to a command.
    type Answer: Send;
}

/// What shards want of the thread that carries relays. What one shard wants is done in its order.
pub enum Request<P: Passed> {
    /// A relay is to be opened; what becomes of it goes there.
    Open(u64, P::Whose, News<P>),
    /// A command goes by that relay; its answer, if that is not there any more, goes there.
    Command(u64, P::Command, News<P>),
    /// A function goes by that relay. The last is dropped when the owner has done it; if it cannot be done, the relay ends
    /// before.
    Function(u64, P::Function, Box<dyn Send>),
    /// A relay ends: nobody waits for anything of it.
    Close(u64),
}

/// Takes what shards want. It must not block.
pub type Takes<P> = Arc<dyn Fn(Request<P>) + Send + Sync>;

/// The way back to the shard of a relay.
pub type News<P> = Arc<dyn Fn(Became<<P as Passed>::Answer>) + Send + Sync>;

/// What has become of a relay, or of a command that went by it.
#[derive(Debug)]
pub enum Became<A> {
    /// It is open: what its host sends from now on may go by it.
    Opened(u64),
    /// A command is answered.
    Answered(u64, A),
    /// Nothing is to go by it any more; what has, is answered yet.
    Stale(u64),
    /// It has ended, or could not be opened. Nobody knows what became of commands without an answer.
    Ended(u64),
}

/// What the shards of a group share about relays.
pub struct Relays<P: Passed> {
    /// The secret of the group's record.
    pub secret: [u8; 32],
    /// Where they go.
    pub takes: Takes<P>,
    /// The owner was not reached for a while.
    pub down: Arc<AtomicBool>,
    /// What is under way.
    pub load: Arc<Load>,
}

/// A secret by which one end of a relay proves to the other that it knows the group's: good for one end, `label`, and for what
/// is claimed alone.
pub fn secret_for(secret: &[u8; 32], label: &str, claim: &str) -> Vec<u8> {
    match Hmac::<Sha256>::new_from_slice(secret) {
        Ok(mut mac) => {
            [label, " ", claim].iter().for_each(|part| mac.update(part.as_bytes()));
            mac.finalize().into_bytes().to_vec()
        }
        // HMAC takes keys of any length.
        Err(_) => Vec::new(),
    }
}
