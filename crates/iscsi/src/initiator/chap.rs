//! CHAP from the initiator's side (RFC 7143 section 12.1.3).

use crate::chap::{Account, Algorithms, binary, one, parse_binary, parse_id};
use crate::keys::Key;
use crate::text::Writer;
use alloc::string::String;
use alloc::vec::Vec;
use thiserror::Error;

/// How an initiator authenticates itself. No other method is offered then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chap {
    /// Its own name and secret.
    pub account: Account,
    /// The algorithms to offer.
    pub algorithms: Algorithms,
    /// What the target has to prove in turn.
    pub mutual: Option<Mutual>,
}

/// The other direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutual {
    /// The target's name and secret. The secret must not be the initiator's own (RFC 7143
    /// section 9.2.1).
    pub account: Account,
    /// Identifier of the challenge.
    pub id: u8,
    /// The challenge: 16 to 1024 random bytes, fresh ones for each connection.
    pub challenge: Vec<u8>,
}

/// Why an authentication failed on the initiator's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChapError {
    /// Keys are missing, out of order or malformed.
    #[error("the target's keys are missing, out of order or malformed")]
    Malformed,
    /// The answer to CHAP_A is none of the offered algorithms.
    #[error("the target chose an algorithm that was not offered")]
    Algorithm,
    /// The target sent this side's own challenge.
    #[error("the target sent the initiator's own challenge back")]
    Reflected,
    /// The target's response is wrong or missing, or its name is.
    #[error("the target has not proved that it is the right one")]
    Target,
    /// The target's secret is the initiator's.
    #[error("the target has the secret of the initiator")]
    SameSecret,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The method was offered.
    #[default]
    Offered,
    /// The method was agreed on.
    Agreed,
    /// The algorithms were sent.
    Listed,
    /// The response was sent.
    Responded,
    /// The target has answered it.
    Done,
}

/// An authentication that is under way.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    state: State,
    /// The keys of the text that is being read.
    keys: Vec<(Key, String)>,
    /// The response that this side would give to its own challenge.
    own: Option<crate::chap::Response>,
    /// The response that the target has to give.
    expected: Option<crate::chap::Response>,
}

impl Exchange {
    /// The target agreed to CHAP.
    pub fn agree(&mut self) {
        self.state = State::Agreed;
    }

    /// Takes a key of the target's text.
    pub fn take(&mut self, key: Key, value: &str) {
        self.keys.push((key, value.into()));
    }

    /// True when this side has said all that it has to say.
    pub fn may_leave(&self) -> bool {
        matches!(self.state, State::Responded | State::Done)
    }

    /// True when both sides are content.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Goes a step further when a text of the target's is complete.
    pub fn step(&mut self, chap: &Chap, out: &mut Writer) -> Result<(), ChapError> {
        let keys = core::mem::take(&mut self.keys);
        let value = |wanted: Key| {
            keys.iter().find(|(key, _)| *key == wanted).map(|(_, value)| value.as_str())
        };
        self.state = match (self.state, keys.len()) {
            (State::Agreed, 0) => {
                out.pair(Key::ChapAlgorithm.name(), chap.algorithms.offer());
                State::Listed
            }
            (State::Listed, 3) => {
                let algorithm = value(Key::ChapAlgorithm).ok_or(ChapError::Malformed)?;
                let id = value(Key::ChapIdentifier).and_then(parse_id);
                let challenge = value(Key::ChapChallenge).and_then(parse_binary);
                let (id, challenge) = id.zip(challenge).ok_or(ChapError::Malformed)?;
                self.respond(chap, algorithm, id, &challenge, out)?;
                State::Responded
            }
            (State::Responded, 0) if chap.mutual.is_none() => State::Done,
            (State::Responded, 2) if chap.mutual.is_some() => {
                let name = value(Key::ChapName).ok_or(ChapError::Malformed)?;
                let response = value(Key::ChapResponse).and_then(parse_binary);
                self.check(chap, name, &response.ok_or(ChapError::Malformed)?)?;
                State::Done
            }
            // The target may take its time.
            (state, 0) => state,
            _ => return Err(ChapError::Malformed),
        };
        Ok(())
    }

    /// Answers the target's challenge.
    fn respond(
        &mut self,
        chap: &Chap,
        algorithm: &str,
        id: u8,
        challenge: &[u8],
        out: &mut Writer,
    ) -> Result<(), ChapError> {
        let algorithm = one(algorithm).filter(|&algorithm| chap.algorithms.has(algorithm));
        let algorithm = algorithm.ok_or(ChapError::Algorithm)?;
        if let Some(mutual) = &chap.mutual {
            if mutual.challenge == challenge {
                return Err(ChapError::Reflected);
            }
            let respond =
                |account: &Account| account.secret.respond(algorithm, mutual.id, &mutual.challenge);
            self.expected = Some(respond(&mutual.account));
            self.own = Some(respond(&chap.account));
        }
        let response = chap.account.secret.respond(algorithm, id, challenge);
        out.pair(Key::ChapName.name(), &chap.account.name);
        out.pair(Key::ChapResponse.name(), binary(response.bytes()));
        if let Some(mutual) = &chap.mutual {
            out.pair(Key::ChapIdentifier.name(), mutual.id);
            out.pair(Key::ChapChallenge.name(), binary(&mutual.challenge));
        }
        Ok(())
    }

    /// Checks the target's response.
    fn check(&self, chap: &Chap, name: &str, response: &[u8]) -> Result<(), ChapError> {
        if self.own.is_some_and(|own| own.is(response)) {
            return Err(ChapError::SameSecret);
        }
        let right = self.expected.is_some_and(|expected| expected.is(response));
        let known = chap.mutual.as_ref().is_some_and(|mutual| mutual.account.name == name);
        if right && known { Ok(()) } else { Err(ChapError::Target) }
    }
}
