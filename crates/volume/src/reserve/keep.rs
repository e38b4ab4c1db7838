//! Changes that are kept through power loss: tried on a copy, made stable, then done.

use std::io;
use std::sync::PoisonError;

use lunet_reservations::{Event, Reservations, Saved};

use crate::volume::Volume;

/// How often a change is tried, should the reservations become others while its effect is being stored.
const TRIES: usize = 8;

/// A change of reservations that a client has asked for.
pub trait Request {
    /// How its protocol says that it is refused.
    type Refusal;

    /// Makes the change. It may be made on copies of the state before.
    ///
    /// # Errors
    /// It is refused, and the state is as it was.
    fn carry_out(&self, state: &mut Reservations) -> Result<Vec<Event>, Self::Refusal>;

    /// True while whoever asks is still there.
    fn stands(&self) -> bool;
}

/// Why a change was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unchanged<R> {
    /// It was refused.
    Refused(R),
    /// The reservations have changed again and again meanwhile.
    Busy,
    /// It cannot be made stable, or whoever asked is gone.
    Failed,
}

impl<F> Volume<F> {
    /// Makes the effect of a change stable, then lets it take effect. Gives back who has lost what. Blocks, also while
    /// another one is being kept; changes that need not be kept are not held up meanwhile.
    ///
    /// # Errors
    /// Nothing has come of it.
    pub fn reserve_and_keep<Q: Request>(
        &self,
        request: &Q,
    ) -> Result<Vec<Event>, Unchanged<Q::Refusal>> {
        let _one = self.reservations.keeps.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stored = false;
        let mut result = Err(Unchanged::Busy);
        for _ in 0..TRIES {
            let before = self.reservations.look(Reservations::clone);
            if !request.stands() {
                result = Err(Unchanged::Failed);
                break;
            }
            let mut trial = before.clone();
            if let Err(refusal) = request.carry_out(&mut trial) {
                result = Err(Unchanged::Refused(refusal));
                break;
            }
            stored = true;
            if let Err(error) = self.store_reservations(trial.saved().as_ref()) {
                tracing::error!(
                    volume = %self.name, %error,
                    "reservations cannot be kept: the command fails, and nothing has changed"
                );
                result = Err(Unchanged::Failed);
                break;
            }
            let same = |state: &mut Reservations| {
                if !state.decides_like(&before) || !request.stands() {
                    return (None, Vec::new());
                }
                match request.carry_out(state) {
                    Ok(events) => (Some(Ok(())), events),
                    Err(refusal) => (Some(Err(Unchanged::Refused(refusal))), Vec::new()),
                }
            };
            match self.reservations.change(same) {
                (Some(Ok(())), events) => return Ok(events),
                (Some(Err(refused)), _) => {
                    result = Err(refused);
                    break;
                }
                (None, _) => {}
            }
        }
        if stored {
            let saved = self.reservations.look(Reservations::saved);
            if let Err(error) = self.store_reservations(saved.as_ref()) {
                tracing::error!(
                    volume = %self.name, %error,
                    "what is kept of the reservations may be something else than what is in force"
                );
            }
        }
        result
    }

    fn store_reservations(&self, saved: Option<&Saved>) -> io::Result<()> {
        self.store.as_ref().map_or(Ok(()), |store| store.save(saved))
    }
}
