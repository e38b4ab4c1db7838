//! DH-HMAC-CHAP: a host proves that it has a secret, and a controller, if the host asks for it
//! (NVMe base specification, section 8.13.5).
//!
//! Each end is given messages and gives messages. Exchanges of Diffie-Hellman take long, so they
//! come out as a [`Job`], which any thread may do, and go back in. Each authentication is used once.

use super::dh::{EXPONENT_LEN, Group};
use super::message::{Failure, Message};
use super::{Hash, Secret};
use alloc::string::String;
use alloc::vec::Vec;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Secure channel concatenation (SC_C): none.
const NO_CONCATENATION: u8 = 0;
/// Secure channel concatenation (SC_C): a new key of TLS (NEWTLSPSK).
const NEW_KEY: u8 = 2;

/// Hashes that a key of TLS can be made with, the best first: tlshd with older versions of GnuTLS can use no other than
/// SHA-256.
const KEY_HASHES: [Hash; 2] = [Hash::Sha256, Hash::Sha384];

/// What a controller has of secure channel concatenation: an authentication makes a key of TLS, by which the host comes
/// back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Concatenation {
    /// Nothing: a host that asks for it fails.
    #[default]
    Refused,
    /// Whoever asks for it gets it.
    Allowed,
    /// A host that does not ask for it fails.
    Required,
}

/// Who the two ends are.
#[derive(Clone, Debug)]
pub struct Names {
    /// The host's NQN.
    pub host: String,
    /// The subsystem's NQN.
    pub subsystem: String,
}

/// Fills bytes with random ones that nobody can guess. False if there are none to be had.
pub type Random<'a> = &'a mut dyn FnMut(&mut [u8]) -> bool;

/// What is agreed on, and what was said.
#[derive(Debug, Default)]
struct Said {
    transaction: u16,
    concatenation: u8,
    /// S1, and S2.
    sequences: (u32, u32),
    /// C1, and C2.
    challenges: (Vec<u8>, Option<Vec<u8>>),
}

/// An exchange of Diffie-Hellman that is to be computed.
pub struct Job {
    group: Group,
    exponent: Zeroizing<[u8; EXPONENT_LEN]>,
    /// The other end's public value, if the secret is wanted.
    public: Option<Vec<u8>>,
}

/// What came of a [`Job`].
pub struct Computed {
    public: Vec<u8>,
    secret: Option<Zeroizing<Vec<u8>>>,
}

impl Job {
    /// Computes. With the largest group this takes tens of milliseconds.
    #[must_use]
    pub fn compute(self) -> Computed {
        let public = self.group.public(&self.exponent);
        let secret = self.public.and_then(|of| self.group.shared(&self.exponent, &of));
        Computed { public, secret }
    }
}

/// The response to a challenge, as the end that `who` names gives it.
fn respond(
    (hash, key): (Hash, &[u8]),
    challenge: &[u8],
    (sequence, said): (u32, &Said),
    who: &str,
    (own, other): (&str, &str),
) -> Zeroizing<Vec<u8>> {
    let parts: [&[u8]; 8] = [
        challenge,
        &sequence.to_le_bytes(),
        &said.transaction.to_le_bytes(),
        &[said.concatenation],
        who.as_bytes(),
        own.as_bytes(),
        &[0],
        other.as_bytes(),
    ];
    hash.hmac(key, &parts)
}

/// A challenge, augmented by the shared secret, if there is one.
fn augmented(hash: Hash, secret: Option<&[u8]>, challenge: &[u8]) -> Zeroizing<Vec<u8>> {
    match secret {
        None => Zeroizing::new(challenge.to_vec()),
        Some(secret) => hash.hmac(&hash.digest(secret), &[challenge]),
    }
}

/// The key that secure channel concatenation makes of an authentication (section 8.13.5.9 of the NVMe base
/// specification, 8.3.5.5.9 in later versions).
fn generated(hash: Hash, secret: &[u8], said: &Said) -> Option<Zeroizing<Vec<u8>>> {
    let one = &said.challenges.0;
    let other = said.challenges.1.as_deref()?;
    let wanted = said.concatenation == NEW_KEY;
    wanted.then(|| hash.hmac(&hash.digest(secret), &[one, other]))
}

/// What a controller asks of a host.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Who they are.
    pub names: Names,
    /// The host's secret.
    pub host: Secret,
    /// The controller's, if it can prove itself.
    pub controller: Option<Secret>,
    /// Hashes that will do, the best first.
    pub hashes: Vec<Hash>,
    /// Groups that will do, the best first.
    pub groups: Vec<Group>,
    /// Whether secure channel concatenation is to follow.
    pub concatenation: Concatenation,
}

/// What the layer above does next.
pub enum Next {
    /// Compute this, and give it to `computed`.
    Compute(Job),
    /// Wait for the next command.
    Wait,
}

/// How far a controller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Negotiate,
    /// The public value for the challenge is being computed.
    Exchange,
    Challenge,
    Reply,
    /// The secret is being computed.
    Secret,
    Success1,
    Success2,
    Failed(Failure),
    Done,
}

/// The controller's end.
pub struct Responder {
    terms: Terms,
    stage: Stage,
    said: Said,
    agreed: Option<(Hash, Group)>,
    exponent: Zeroizing<[u8; EXPONENT_LEN]>,
    public: Vec<u8>,
    /// The host's response, until it is checked.
    response: Vec<u8>,
    /// The controller's own.
    own: Option<Zeroizing<Vec<u8>>>,
    generated: Option<Zeroizing<Vec<u8>>>,
    /// The host was told, or has said, that it is over.
    ended: bool,
    /// The host's response was right.
    proven: bool,
}

impl Responder {
    /// An authentication that the host has to start. `sequence` is a number that is not used again
    /// soon.
    #[must_use]
    pub fn new(terms: Terms, sequence: u32) -> Self {
        // 0 is for 'no challenge'.
        let said = Said { sequences: (sequence.max(1), 0), ..Said::default() };
        Self {
            terms,
            stage: Stage::Negotiate,
            said,
            agreed: None,
            exponent: Zeroizing::new([0; EXPONENT_LEN]),
            public: Vec::new(),
            response: Vec::new(),
            own: None,
            generated: None,
            ended: false,
            proven: false,
        }
    }

    /// True for a message by which a host begins an authentication (AUTH_Negotiate).
    #[must_use]
    pub fn begins(message: &[u8]) -> bool {
        matches!(Message::decode(message), Ok((_, Message::Negotiate { .. })))
    }

    /// The host has authenticated, and the controller, if it was asked to.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.stage == Stage::Done
    }

    /// A [`Job`] is under way.
    #[must_use]
    pub fn computes(&self) -> bool {
        matches!(self.stage, Stage::Exchange | Stage::Secret)
    }

    /// Why the authentication failed, if it did: for the administrator's eyes.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        match self.stage {
            Stage::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// The host has proved that it knows its secret; what may have failed is the controller's own proof.
    #[must_use]
    pub const fn is_proven(&self) -> bool {
        self.proven
    }

    /// The authentication has failed, and both ends know: end the connection.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ended && self.failure().is_some()
    }

    /// The hash, and the key of TLS that secure channel concatenation has made.
    #[must_use]
    pub fn generated(&self) -> Option<(Hash, &[u8])> {
        let key = self.generated.as_ref().filter(|_| self.is_done())?;
        self.agreed.map(|(hash, _)| (hash, &key[..]))
    }

    fn fail(&mut self, failure: Failure) -> Next {
        self.stage = Stage::Failed(failure);
        Next::Wait
    }

    /// An Authentication Send with this message.
    pub fn sent(&mut self, bytes: &[u8], random: Random<'_>) -> Next {
        let (transaction, message) = match Message::decode(bytes) {
            Ok(message) => message,
            Err(failure) => return self.fail(failure),
        };
        if self.stage != Stage::Negotiate && transaction != self.said.transaction {
            return self.fail(Failure::Payload);
        }
        match (self.stage, message) {
            (Stage::Negotiate, Message::Negotiate { concatenation, hashes, groups }) => {
                self.said.transaction = transaction;
                self.negotiated(concatenation, &hashes, &groups, random)
            }
            (Stage::Reply, reply @ Message::Reply { .. }) => self.replied(reply),
            (Stage::Success2, Message::Success2) => {
                self.stage = Stage::Done;
                Next::Wait
            }
            (_, Message::Failure2(_)) => {
                self.ended = true;
                self.fail(Failure::Failed)
            }
            _ => self.fail(Failure::Message),
        }
    }

    fn negotiated(
        &mut self,
        concatenation: u8,
        hashes: &[u8],
        groups: &[u8],
        random: Random<'_>,
    ) -> Next {
        let makes_key = match (self.terms.concatenation, concatenation) {
            (Concatenation::Refused | Concatenation::Allowed, NO_CONCATENATION) => false,
            (Concatenation::Allowed | Concatenation::Required, NEW_KEY) => true,
            _ => return self.fail(Failure::Concatenation),
        };
        self.said.concatenation = concatenation;
        let mut known: Vec<Hash> = self.terms.hashes.clone();
        if makes_key {
            known = KEY_HASHES.into_iter().filter(|hash| known.contains(hash)).collect();
        }
        let hash = known.into_iter().find(|hash| hashes.contains(&hash.code()));
        let Some(hash) = hash else { return self.fail(Failure::Hash) };
        // A key is made of a shared secret only.
        let usable = |group: &Group| !makes_key || *group != Group::Null;
        let offered = |group: &Group| groups.contains(&group.code()) && usable(group);
        let group = self.terms.groups.iter().copied().find(offered);
        let Some(group) = group else { return self.fail(Failure::Group) };
        let mut challenge = alloc::vec![0; hash.size()];
        if !random(&mut challenge) || !random(&mut self.exponent[..]) {
            return self.fail(Failure::NotUsable);
        }
        self.said.challenges.0 = challenge;
        self.agreed = Some((hash, group));
        if group == Group::Null {
            self.stage = Stage::Challenge;
            return Next::Wait;
        }
        self.stage = Stage::Exchange;
        Next::Compute(Job { group, exponent: self.exponent.clone(), public: None })
    }

    fn replied(&mut self, reply: Message) -> Next {
        let (Message::Reply { sequence, response, challenge, public }, Some((hash, group))) =
            (reply, self.agreed)
        else {
            return self.fail(Failure::Message);
        };
        if response.len() != hash.size() || public.len() != group.size() {
            return self.fail(Failure::Payload);
        }
        // The controller's own challenge, sent back, would have it answer itself.
        if challenge.as_ref() == Some(&self.said.challenges.0) {
            return self.fail(Failure::Failed);
        }
        // The key is made of both challenges.
        if self.said.concatenation == NEW_KEY && challenge.is_none() {
            return self.fail(Failure::Payload);
        }
        self.said.sequences.1 = sequence;
        self.said.challenges.1 = challenge;
        self.response = response;
        if group == Group::Null {
            self.check(None);
            return Next::Wait;
        }
        self.stage = Stage::Secret;
        Next::Compute(Job { group, exponent: self.exponent.clone(), public: Some(public) })
    }

    /// What came of the [`Job`].
    pub fn computed(&mut self, computed: Computed) {
        match (self.stage, computed.secret) {
            (Stage::Exchange, _) => {
                self.public = computed.public;
                self.stage = Stage::Challenge;
            }
            (Stage::Secret, Some(secret)) => self.check(Some(&secret)),
            (Stage::Secret, None) => self.stage = Stage::Failed(Failure::Payload),
            _ => {}
        }
    }

    /// Checks the host's response, and makes the controller's own.
    fn check(&mut self, secret: Option<&[u8]>) {
        let Some((hash, _)) = self.agreed else { return };
        let (said, names) = (&self.said, &self.terms.names);
        let (host, subsystem) = (names.host.as_str(), names.subsystem.as_str());
        let key = self.terms.host.transformed(host);
        let challenge = augmented(hash, secret, &said.challenges.0);
        let sequence = (said.sequences.0, said);
        let right = respond((hash, &key), &challenge, sequence, "HostHost", (host, subsystem));
        if !bool::from(right.ct_eq(&self.response)) {
            self.stage = Stage::Failed(Failure::Failed);
            return;
        }
        self.proven = true;
        // A challenge with the number 0 is there for the key alone.
        let for_key = said.concatenation == NEW_KEY && said.sequences.1 == 0;
        let asked = said.challenges.1.as_ref().filter(|_| !for_key);
        match (asked, &self.terms.controller) {
            (None, _) => self.own = None,
            // The host wants a proof that there is no secret for.
            (Some(_), None) => {
                self.stage = Stage::Failed(Failure::Failed);
                return;
            }
            (Some(challenge), Some(own)) => {
                let key = own.transformed(subsystem);
                let challenge = augmented(hash, secret, challenge);
                let sequence = (said.sequences.1, said);
                let names = (subsystem, host);
                self.own = Some(respond((hash, &key), &challenge, sequence, "Controller", names));
            }
        }
        self.generated = secret.and_then(|secret| generated(hash, secret, said));
        self.stage = Stage::Success1;
    }

    /// The message of an Authentication Receive with room for so many bytes. `None`: there is
    /// nothing to say now, or no room for it.
    pub fn receive(&mut self, room: usize) -> Option<Vec<u8>> {
        let (message, next) = match (self.stage, self.agreed) {
            (Stage::Challenge, Some((hash, group))) => {
                let challenge = self.said.challenges.0.clone();
                let (sequence, public) = (self.said.sequences.0, self.public.clone());
                let message = Message::Challenge { hash, group, sequence, challenge, public };
                (message, Stage::Reply)
            }
            (Stage::Success1, Some((hash, _))) => {
                let response = self.own.as_ref().map(|own| own.to_vec());
                let next = if response.is_some() { Stage::Success2 } else { Stage::Done };
                (Message::Success1 { response, len: hash.size() as u8 }, next)
            }
            (Stage::Failed(failure), _) => (Message::Failure1(failure.code()), self.stage),
            _ => return None,
        };
        let bytes = message.encode(self.said.transaction);
        if bytes.len() > room {
            return None;
        }
        self.ended |= matches!(next, Stage::Failed(_));
        self.stage = next;
        Some(bytes)
    }
}

/// What a host authenticates with.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Who they are.
    pub names: Names,
    /// The host's secret.
    pub host: Secret,
    /// The controller's, if it has to prove itself.
    pub controller: Option<Secret>,
    /// Hashes to offer, the best first.
    pub hashes: Vec<Hash>,
    /// Groups to offer, the best first.
    pub groups: Vec<Group>,
    /// Secure channel concatenation is to follow.
    pub concatenation: bool,
}

/// What a host does next.
pub enum HostNext {
    /// Send this message, and then receive one.
    Send(Vec<u8>),
    /// Compute this, and give it to `computed`.
    Compute(Job),
    /// It has authenticated. Send this, if there is something: the connection can be used.
    Done(Option<Vec<u8>>),
    /// It has failed: send this, if there is something, and end the connection.
    Failed(Failure, Option<Vec<u8>>),
}

/// A challenge that is being answered.
struct Challenged {
    hash: Hash,
    group: Group,
    public: Vec<u8>,
}

/// The host's end.
pub struct Initiator {
    credentials: Credentials,
    said: Said,
    challenged: Option<Challenged>,
    exponent: Zeroizing<[u8; EXPONENT_LEN]>,
    /// What the controller has to answer.
    expects: Option<Zeroizing<Vec<u8>>>,
    generated: Option<(Hash, Zeroizing<Vec<u8>>)>,
}

impl Initiator {
    /// An authentication with this transaction identifier. `sequence` is a number that is not used
    /// again soon. `None` without random numbers.
    pub fn new(
        credentials: Credentials,
        transaction: u16,
        sequence: u32,
        random: Random<'_>,
    ) -> Option<Self> {
        let mut exponent = Zeroizing::new([0; EXPONENT_LEN]);
        // As long as the longest challenge; cut when the hash is known.
        let mut challenge = alloc::vec![0; Hash::Sha512.size()];
        if !random(&mut exponent[..]) || !random(&mut challenge) {
            return None;
        }
        let concatenation = if credentials.concatenation { NEW_KEY } else { NO_CONCATENATION };
        let wanted = credentials.controller.is_some();
        let challenges = wanted || credentials.concatenation;
        let said = Said {
            transaction,
            concatenation,
            sequences: (0, if wanted { sequence.max(1) } else { 0 }),
            challenges: (Vec::new(), challenges.then_some(challenge)),
        };
        Some(Self { credentials, said, challenged: None, exponent, expects: None, generated: None })
    }

    /// The controller has to prove itself.
    #[must_use]
    pub const fn wants_proof(&self) -> bool {
        self.credentials.controller.is_some()
    }

    /// The first message.
    #[must_use]
    pub fn negotiate(&self) -> Vec<u8> {
        let hashes = self.credentials.hashes.iter().map(|hash| hash.code()).collect();
        let groups = self.credentials.groups.iter().map(|group| group.code()).collect();
        let concatenation = self.said.concatenation;
        Message::Negotiate { concatenation, hashes, groups }.encode(self.said.transaction)
    }

    /// The hash, and the key of TLS that secure channel concatenation has made.
    #[must_use]
    pub fn generated(&self) -> Option<(Hash, &[u8])> {
        self.generated.as_ref().map(|(hash, key)| (*hash, &key[..]))
    }

    fn fail(&self, failure: Failure) -> HostNext {
        let message = Message::Failure2(failure.code()).encode(self.said.transaction);
        HostNext::Failed(failure, Some(message))
    }

    /// A message of the controller.
    pub fn received(&mut self, bytes: &[u8]) -> HostNext {
        let (transaction, message) = match Message::decode(bytes) {
            Ok(message) => message,
            Err(failure) => return self.fail(failure),
        };
        if transaction != self.said.transaction {
            return self.fail(Failure::Payload);
        }
        match message {
            Message::Challenge { hash, group, sequence, challenge, public }
                if self.challenged.is_none() =>
            {
                if !self.credentials.hashes.contains(&hash) {
                    return self.fail(Failure::Hash);
                }
                if !self.credentials.groups.contains(&group) {
                    return self.fail(Failure::Group);
                }
                self.said.sequences.0 = sequence;
                self.said.challenges.0 = challenge;
                if let Some(own) = &mut self.said.challenges.1 {
                    own.truncate(hash.size());
                }
                let theirs = Some(public.clone());
                self.challenged = Some(Challenged { hash, group, public });
                match group {
                    Group::Null => self.reply(None, Vec::new()),
                    _ => {
                        let exponent = self.exponent.clone();
                        HostNext::Compute(Job { group, exponent, public: theirs })
                    }
                }
            }
            Message::Success1 { response, .. } if self.challenged.is_some() => {
                self.succeeded(response.as_deref())
            }
            Message::Failure1(code) => {
                HostNext::Failed(Failure::from_code(code).unwrap_or(Failure::Failed), None)
            }
            _ => self.fail(Failure::Message),
        }
    }

    /// What came of the [`Job`].
    pub fn computed(&mut self, computed: Computed) -> HostNext {
        match computed.secret {
            Some(secret) => self.reply(Some(&secret), computed.public),
            None => self.fail(Failure::Payload),
        }
    }

    fn reply(&mut self, secret: Option<&[u8]>, public: Vec<u8>) -> HostNext {
        let Some(Challenged { hash, group, public: theirs }) = &self.challenged else {
            return self.fail(Failure::Message);
        };
        let (hash, said, names) = (*hash, &self.said, &self.credentials.names);
        debug_assert!(theirs.len() == group.size());
        let (host, subsystem) = (names.host.as_str(), names.subsystem.as_str());
        let key = self.credentials.host.transformed(host);
        let challenge = augmented(hash, secret, &said.challenges.0);
        let sequence = (said.sequences.0, said);
        let response = respond((hash, &key), &challenge, sequence, "HostHost", (host, subsystem));
        if let (Some(own), Some(secret_of)) = (&said.challenges.1, &self.credentials.controller) {
            let key = secret_of.transformed(subsystem);
            let challenge = augmented(hash, secret, own);
            let sequence = (said.sequences.1, said);
            let names = (subsystem, host);
            self.expects = Some(respond((hash, &key), &challenge, sequence, "Controller", names));
        }
        let made = secret.and_then(|secret| generated(hash, secret, said));
        self.generated = made.map(|key| (hash, key));
        let reply = Message::Reply {
            sequence: said.sequences.1,
            response: response.to_vec(),
            challenge: said.challenges.1.clone(),
            public,
        };
        HostNext::Send(reply.encode(said.transaction))
    }

    fn succeeded(&mut self, response: Option<&[u8]>) -> HostNext {
        match (&self.expects, response) {
            (None, None) => HostNext::Done(None),
            (Some(expected), Some(response)) if bool::from(expected.ct_eq(response)) => {
                let message = Message::Success2.encode(self.said.transaction);
                HostNext::Done(Some(message))
            }
            _ => self.fail(Failure::Failed),
        }
    }
}

#[cfg(test)]
mod tests;
