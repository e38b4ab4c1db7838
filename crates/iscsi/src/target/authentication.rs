//! The target's side of the security stage (RFC 7143 sections 6.3.2 and 12.1.3).

use super::site::Site;
use crate::chap::{Account, Algorithm, Algorithms, Proof, Secret, binary, parse_binary, parse_id};
use crate::keys::{Key, choose};
use crate::pdu::LoginStatus;
use crate::text::Writer;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};
use thiserror::Error;

/// What an initiator has to prove, and what is proved to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The algorithms that will do.
    pub algorithms: Algorithms,
    /// Who may log in.
    pub accounts: Vec<Account>,
    /// What this target answers if the initiator wants to be sure of it. Its secret must not be one
    /// of `accounts` (RFC 7143 section 9.2.1).
    pub mutual: Option<Account>,
}

/// Why an authentication failed. The initiator gets to know that it failed, and nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AuthenticationError {
    /// The login began behind the security stage, or wanted to leave it early.
    #[error("the initiator does not authenticate itself")]
    Skipped,
    /// AuthMethod was offered without the method that is needed.
    #[error("the initiator does not offer the authentication method that is needed")]
    Method,
    /// No algorithm in common.
    #[error("the initiator offers no algorithm that will do")]
    Algorithm,
    /// Keys are missing, out of order or malformed.
    #[error("keys of the authentication are missing, out of order or malformed")]
    Malformed,
    /// The name is unknown, or the response is not that of its secret.
    #[error("unknown CHAP name or wrong secret")]
    Response,
    /// The initiator sent the target's own challenge back.
    #[error("the initiator sent the target's own challenge back")]
    Reflected,
    /// The initiator's secret is that of the target.
    #[error("the initiator has the secret of the target")]
    SameSecret,
    /// The initiator wants the target to authenticate itself, and there is no secret for that.
    #[error("the initiator asks for mutual authentication, which is not set up")]
    NotMutual,
}

/// How far it has come.
#[derive(Debug, Default)]
enum State {
    /// No method was agreed on.
    #[default]
    New,
    /// CHAP was: the initiator's algorithms come next.
    Chap,
    /// The challenge was sent: the response comes next.
    Challenged(Challenge),
    /// Nothing is left to prove.
    Done,
}

/// A challenge of ours.
struct Challenge {
    algorithm: Algorithm,
    id: u8,
    bytes: Vec<u8>,
}

impl fmt::Debug for Challenge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.algorithm)
    }
}

/// The keys of one text that belong to an authentication.
#[derive(Debug, Default)]
pub(super) struct ChapKeys<'a> {
    algorithms: Option<&'a str>,
    identifier: Option<&'a str>,
    challenge: Option<&'a str>,
    name: Option<&'a str>,
    response: Option<&'a str>,
}

impl<'a> ChapKeys<'a> {
    /// Takes a key, if it is one of CHAP's.
    pub(super) fn take(&mut self, key: Key, value: &'a str) {
        let field = match key {
            Key::ChapAlgorithm => &mut self.algorithms,
            Key::ChapIdentifier => &mut self.identifier,
            Key::ChapChallenge => &mut self.challenge,
            Key::ChapName => &mut self.name,
            Key::ChapResponse => &mut self.response,
            _ => return,
        };
        *field = Some(value);
    }
}

/// An authentication that is under way.
#[derive(Debug, Default)]
pub(super) struct Authentication {
    state: State,
    needed: Option<Arc<Credentials>>,
    /// A text brought it a step further.
    moved: bool,
    /// How an account was proved.
    pub(super) proof: Option<Proof>,
    /// Why it failed.
    pub(super) failure: Option<AuthenticationError>,
}

impl Authentication {
    /// Sets what is to be proved.
    pub(super) fn need(&mut self, credentials: Option<Arc<Credentials>>) {
        self.needed = credentials;
    }

    /// True if the response to a challenge comes next.
    pub(super) fn awaits_response(&self) -> bool {
        matches!(self.state, State::Challenged(_))
    }

    /// Takes the credentials of this moment; what had to be proved before still has to.
    pub(super) fn renew(&mut self, credentials: Option<Arc<Credentials>>) {
        if credentials.is_some() {
            self.needed = credentials;
        }
    }

    /// True if the initiator may go on to the next stage.
    pub(super) fn is_done(&self) -> bool {
        self.needed.is_none() || matches!(self.state, State::Done)
    }

    /// Remembers why it failed; gives the answer.
    pub(super) fn fail(&mut self, why: AuthenticationError) -> LoginStatus {
        self.failure = Some(why);
        LoginStatus::AuthenticationFailure
    }

    /// Chooses a method of the offered list.
    pub(super) fn choose(&mut self, offered: &str) -> Result<&'static str, LoginStatus> {
        let (method, state) = match self.needed {
            Some(_) => ("CHAP", State::Chap),
            None => ("None", State::Done),
        };
        if choose(offered, |offer| offer == method).is_none() {
            return Err(self.fail(AuthenticationError::Method));
        }
        self.state = state;
        self.moved = true;
        Ok(method)
    }

    /// Takes the CHAP keys of a text and answers them. `leaves`: the initiator asks for the next
    /// stage. It may do so before it knows that there is more to do, but not instead of doing it.
    pub(super) fn step(
        &mut self,
        keys: &ChapKeys<'_>,
        leaves: bool,
        site: &impl Site,
        out: &mut Writer,
    ) -> Result<(), LoginStatus> {
        let moved = core::mem::take(&mut self.moved);
        let ChapKeys { algorithms, identifier, challenge, name, response } = *keys;
        let Some(needed) = self.needed.clone() else {
            let any =
                [algorithms, identifier, challenge, name, response].iter().any(|k| k.is_some());
            return if any { Err(LoginStatus::InitiatorError) } else { Ok(()) };
        };
        match (&self.state, (algorithms, name, response), (identifier, challenge)) {
            (State::Done, (None, None, None), (None, None)) => Ok(()),
            (_, (None, None, None), (None, None)) if moved || !leaves => Ok(()),
            (_, (None, None, None), (None, None)) => Err(self.fail(AuthenticationError::Skipped)),
            (State::Chap, (Some(list), None, None), (None, None)) => {
                self.challenge(&needed, list, site, out)
            }
            (State::Challenged(ours), (None, Some(name), Some(response)), back) => {
                let back = match back {
                    (None, None) => Ok(None),
                    (Some(id), Some(bytes)) => Ok(Some((id, bytes))),
                    _ => Err(AuthenticationError::Malformed),
                };
                let result =
                    back.and_then(|back| verify(&needed, ours, (name, response), back, out));
                self.proof = Some(result.map_err(|why| self.fail(why))?);
                self.state = State::Done;
                Ok(())
            }
            _ => Err(self.fail(AuthenticationError::Malformed)),
        }
    }

    /// Chooses an algorithm and asks for the response to a fresh challenge.
    fn challenge(
        &mut self,
        needed: &Credentials,
        list: &str,
        site: &impl Site,
        out: &mut Writer,
    ) -> Result<(), LoginStatus> {
        let Some(algorithm) = needed.algorithms.first_of(list) else {
            return Err(self.fail(AuthenticationError::Algorithm));
        };
        let mut random = [0; 1 + 32];
        let random = &mut random[..=algorithm.digest_len()];
        if !site.random(random) {
            return Err(LoginStatus::TargetError);
        }
        let (id, bytes) = (random[0], random[1..].to_vec());
        out.pair(Key::ChapAlgorithm.name(), algorithm.code());
        out.pair(Key::ChapIdentifier.name(), id);
        out.pair(Key::ChapChallenge.name(), binary(&bytes));
        self.state = State::Challenged(Challenge { algorithm, id, bytes });
        Ok(())
    }
}

/// Checks a response, and answers the initiator's own challenge if there is one.
fn verify(
    needed: &Credentials,
    ours: &Challenge,
    (name, response): (&str, &str),
    back: Option<(&str, &str)>,
    out: &mut Writer,
) -> Result<Proof, AuthenticationError> {
    use AuthenticationError::{Malformed, NotMutual, Reflected, Response, SameSecret};
    let response = parse_binary(response).ok_or(Malformed)?;
    let back = match back {
        None => None,
        Some((id, bytes)) => {
            Some((parse_id(id).ok_or(Malformed)?, parse_binary(bytes).ok_or(Malformed)?))
        }
    };
    // The answer would be the one that this target waits for (RFC 7143 section 9.2.1).
    if back.as_ref().is_some_and(|(_, theirs)| *theirs == ours.bytes) {
        return Err(Reflected);
    }
    // An unknown name costs as much as a known one: every name is looked at, and a response is
    // computed in either case.
    let (mut known, mut which) = (Choice::from(0), 0u32);
    for (index, account) in (0u32..).zip(&needed.accounts) {
        let same = account.name.as_bytes().ct_eq(name.as_bytes());
        which.conditional_assign(&index, same);
        known |= same;
    }
    let nobody = Secret::new(Vec::new());
    let secret = needed.accounts.get(which as usize).map_or(&nobody, |account| &account.secret);
    let expected = secret.respond(ours.algorithm, ours.id, &ours.bytes);
    if !bool::from(known & expected.bytes().ct_eq(&response)) {
        return Err(Response);
    }
    let mutual = needed.mutual.as_ref();
    // Who has the target's own secret could pose as the target.
    if mutual.is_some_and(|m| m.secret.respond(ours.algorithm, ours.id, &ours.bytes).is(&response))
    {
        return Err(SameSecret);
    }
    if let Some((id, challenge)) = back {
        let mutual = mutual.ok_or(NotMutual)?;
        let answer = mutual.secret.respond(ours.algorithm, id, &challenge);
        out.pair(Key::ChapName.name(), &mutual.name);
        out.pair(Key::ChapResponse.name(), binary(answer.bytes()));
    }
    let (algorithm, id, challenge) = (ours.algorithm, ours.id, ours.bytes.clone());
    Ok(Proof { user: name.to_string(), algorithm, id, challenge, response })
}
