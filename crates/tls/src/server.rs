//! The server's end.

use alloc::vec::Vec;
use core::mem;

use crate::error::Error;
use crate::exchange::{Exchanged, Group, Job};
use crate::hello::{
    self, CLIENT_HELLO, ClientHello, FINISHED, Kind, Offered, ServerHello, Shares, Transcript,
};
use crate::receive::Receiver;
use crate::record::{self, Opener, Sealer};
use crate::schedule::{self, Early, Handshake};
use crate::suite::Suite;
use crate::traffic::TrafficKey;
use crate::{Next, Psk, Random, Session};

/// So many identities of a ClientHello are looked at: nobody offers more in earnest, and each may cost some hashes.
const IDENTITIES: usize = 4;

/// What knows the pre-shared keys.
pub trait Keys {
    /// The keys that somebody of this identity may have, the likeliest first; none if nobody is known by it. There may
    /// be several because a key may be derived in several ways.
    fn keys(&mut self, identity: &[u8]) -> Vec<Psk>;
}

impl<F: FnMut(&[u8]) -> Vec<Psk>> Keys for F {
    fn keys(&mut self, identity: &[u8]) -> Vec<Psk> {
        self(identity)
    }
}

/// The key that a client has proved.
struct Proven {
    /// Number of the identity in the client's list.
    chosen: u16,
    identity: Vec<u8>,
    candidate: usize,
    suite: Suite,
    early: Early,
}

/// What a second ClientHello has to repeat.
struct First {
    random: [u8; 32],
    session: Vec<u8>,
    suites: Vec<u16>,
    groups: Vec<u16>,
    /// What it was asked for.
    group: Group,
    suite: Suite,
}

/// Both keys of a session, for the time after the client's Finished.
struct Application {
    client: TrafficKey,
    server: TrafficKey,
}

enum Stage {
    /// A ClientHello is to come; the second one, if there is a first.
    Hello(Option<First>),
    /// The exchange is computed elsewhere.
    Exchange {
        proven: Proven,
        session: Vec<u8>,
    },
    /// The client's Finished is to come.
    Finished {
        proven: Proven,
        secrets: Handshake,
        keys: Application,
    },
    Done(Session),
    Failed,
}

/// A handshake, as the server sees it.
pub struct Server {
    receiver: Receiver,
    transcript: Transcript,
    stage: Stage,
    out: Vec<u8>,
    /// For what is said under the keys of the handshake: an alert.
    sealer: Option<Sealer>,
    /// change_cipher_spec was sent.
    changed: bool,
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl Server {
    /// A handshake of which nothing has come yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            receiver: Receiver::default(),
            transcript: Transcript::default(),
            stage: Stage::Hello(None),
            out: Vec::new(),
            sealer: None,
            changed: false,
        }
    }

    /// How many bytes it takes at most, now: none while something is computed, and in the end.
    #[must_use]
    pub fn wants(&self) -> usize {
        match self.stage {
            Stage::Hello(_) | Stage::Finished { .. } => self.receiver.wants(),
            Stage::Exchange { .. } | Stage::Done(_) | Stage::Failed => 0,
        }
    }

    /// Takes what has come from the client, as long as there is something and it [`wants`](Self::wants) more. Returns
    /// how many bytes it took.
    ///
    /// # Errors
    /// Why the handshake has failed. [`take_out`](Self::take_out) has the alert for the client.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        keys: &mut dyn Keys,
        random: Random<'_>,
    ) -> Result<(usize, Next), Error> {
        let mut taken = 0;
        while taken < bytes.len() && self.wants() > 0 {
            let next = match self.receiver.take(&bytes[taken..]) {
                Ok(n) => {
                    taken += n;
                    self.messages(keys, random)
                }
                Err(why) => Err(why),
            };
            match next {
                Ok(Next::Receive) => {}
                Ok(next) => return Ok((taken, next)),
                Err(why) => return Err(self.fail(why)),
            }
        }
        Ok((taken, Next::Receive))
    }

    fn messages(&mut self, keys: &mut dyn Keys, random: Random<'_>) -> Result<Next, Error> {
        while let Some(message) = self.receiver.message()? {
            match (mem::replace(&mut self.stage, Stage::Failed), message.first()) {
                (Stage::Hello(first), Some(&CLIENT_HELLO)) => {
                    if let Some(job) = self.hello(first, &message, keys, random)? {
                        return Ok(Next::Compute(job));
                    }
                }
                (Stage::Finished { proven, secrets, keys }, Some(&FINISHED)) => {
                    self.finished(proven, &secrets, keys, &message)?;
                    return Ok(Next::Done);
                }
                _ => return Err(Error::Unexpected),
            }
        }
        Ok(Next::Receive)
    }

    /// Ends the handshake, and leaves the alert for it.
    fn fail(&mut self, why: Error) -> Error {
        // Once Finished is sent, the session's key is the one for what follows.
        let sealer = match mem::replace(&mut self.stage, Stage::Failed) {
            Stage::Finished { keys, .. } => Some(Sealer::new(keys.server)),
            _ => self.sealer.take(),
        };
        if let Some(alert) = why.alert() {
            let content = [2, alert.0];
            match sealer {
                Some(mut sealer) => sealer.seal(record::ALERT, &content, &mut self.out),
                None => record::plain(&mut self.out, record::ALERT, &content),
            }
        }
        why
    }

    /// A ClientHello. Returns the exchange, or `None` if another ClientHello is asked for.
    fn hello(
        &mut self,
        first: Option<First>,
        message: &[u8],
        keys: &mut dyn Keys,
        random: Random<'_>,
    ) -> Result<Option<Job>, Error> {
        // Whatever comes next is under other keys, or answers this server.
        self.receiver.ended()?;
        let hello = ClientHello::read(message)?;
        let (offered, groups, shares) = hello.check()?;
        let again = first.is_some();
        if first.as_ref().is_some_and(|first| !first.is_repeated(&hello, groups, shares)) {
            return Err(Error::Illegal("second ClientHello"));
        }
        let proven = self.prove(offered, &hello.suites, message, keys)?;
        // The hash of the transcript is that of the suite.
        if first.is_some_and(|first| first.suite != proven.suite) {
            return Err(Error::Illegal("second ClientHello"));
        }
        let session = hello.session.to_vec();
        self.transcript.add(message);
        let shared = |group: &Group| shares.iter().find(|(code, _)| *code == group.code());
        if let Some((group, (_, theirs))) =
            Group::ALL.iter().find_map(|group| Some((*group, shared(group)?)))
        {
            let job = Job::new(group, theirs, random)?;
            self.stage = Stage::Exchange { proven, session };
            return Ok(Some(job));
        }
        let group = Group::ALL.into_iter().find(|group| groups.contains(&group.code()));
        let group = group.filter(|_| !again).ok_or(Error::Group)?;
        self.retry(proven.suite, group, &session);
        self.stage = Stage::Hello(Some(First {
            random: hello.random,
            session,
            groups: groups.to_vec(),
            suites: hello.suites,
            group,
            suite: proven.suite,
        }));
        Ok(None)
    }

    /// Looks for the key that the client has proved by a binder.
    fn prove(
        &self,
        offered: &Offered<'_>,
        suites: &[u16],
        message: &[u8],
        keys: &mut dyn Keys,
    ) -> Result<Proven, Error> {
        let mut why = Error::Unknown;
        let both = offered.identities.iter().zip(&offered.binders).take(IDENTITIES);
        for (chosen, (identity, binder)) in both.enumerate() {
            for (candidate, psk) in keys.keys(identity).into_iter().enumerate() {
                let suite = psk.hash.suite();
                if !suites.contains(&suite.code()) {
                    why = Error::Suite;
                    continue;
                }
                if binder.len() != psk.hash.size() {
                    why = Error::BinderHash;
                    continue;
                }
                let early = Early::new(psk.hash, &psk.key);
                let bound = self.transcript.hash_with(psk.hash, &message[..offered.bound]);
                match schedule::check(&early.binder(&bound), binder) {
                    Ok(()) => {
                        let (chosen, identity) = (chosen as u16, identity.to_vec());
                        return Ok(Proven { chosen, identity, candidate, suite, early });
                    }
                    Err(wrong) => why = wrong,
                }
            }
        }
        Err(why)
    }

    /// Asks for a public value of this group.
    fn retry(&mut self, suite: Suite, group: Group, session: &[u8]) {
        self.transcript.retried(suite.hash());
        let kind = Kind::Retry { group: group.code() };
        self.say_plainly(&ServerHello { session, suite, kind }.write(), session);
    }

    /// A message that is not protected.
    fn say_plainly(&mut self, message: &[u8], session: &[u8]) {
        self.transcript.add(message);
        record::plain(&mut self.out, record::HANDSHAKE, message);
        // For middleboxes, if the client thinks of them (RFC 8446 appendix D.4).
        if !session.is_empty() && !mem::replace(&mut self.changed, true) {
            record::plain(&mut self.out, record::CHANGE_CIPHER_SPEC, &[1]);
        }
    }

    /// What came of the exchange.
    ///
    /// # Errors
    /// As for [`receive`](Self::receive).
    pub fn computed(&mut self, exchanged: Exchanged, random: Random<'_>) -> Result<Next, Error> {
        let said = match mem::replace(&mut self.stage, Stage::Failed) {
            Stage::Exchange { proven, session } => self.answer(proven, &session, exchanged, random),
            // Nothing was to be computed.
            _ => Err(Error::Unexpected),
        };
        said.map(|()| Next::Receive).map_err(|why| self.fail(why))
    }

    /// Sends everything from ServerHello to Finished.
    fn answer(
        &mut self,
        proven: Proven,
        session: &[u8],
        exchanged: Exchanged,
        fill: Random<'_>,
    ) -> Result<(), Error> {
        let (public, shared) = exchanged.values?;
        let mut random = [0; 32];
        if !fill(&mut random) {
            return Err(Error::Random);
        }
        let (suite, hash) = (proven.suite, proven.suite.hash());
        let share = (exchanged.group.code(), &public[..]);
        let kind = Kind::Hello { random, share, chosen: proven.chosen };
        self.say_plainly(&ServerHello { session, suite, kind }.write(), session);
        let secrets = proven.early.handshake(&shared, &self.transcript.hash(hash));
        self.receiver.protect(Opener::new(TrafficKey::new(suite, &secrets.client)))?;
        let mut sealer = Sealer::new(TrafficKey::new(suite, &secrets.server));
        let mut flight = hello::encrypted_extensions();
        self.transcript.add(&flight);
        let mac = schedule::finished(hash, &secrets.server, &self.transcript.hash(hash));
        let finished = hello::finished(&mac);
        self.transcript.add(&finished);
        flight.extend_from_slice(&finished);
        sealer.seal(record::HANDSHAKE, &flight, &mut self.out);
        let (client, server) = secrets.application(suite, &self.transcript.hash(hash));
        self.stage = Stage::Finished { proven, secrets, keys: Application { client, server } };
        Ok(())
    }

    /// The client's Finished.
    fn finished(
        &mut self,
        proven: Proven,
        secrets: &Handshake,
        keys: Application,
        message: &[u8],
    ) -> Result<(), Error> {
        let hash = proven.suite.hash();
        let right = schedule::finished(hash, &secrets.client, &self.transcript.hash(hash));
        let checked = schedule::check(&right, hello::read_finished(message));
        if let Err(why) = checked.and_then(|()| self.receiver.ended()) {
            self.sealer = Some(Sealer::new(keys.server));
            return Err(why);
        }
        self.stage = Stage::Done(Session {
            suite: proven.suite,
            identity: proven.identity,
            candidate: proven.candidate,
            send: keys.server,
            receive: keys.client,
        });
        Ok(())
    }

    /// What is to be sent now.
    #[must_use]
    pub fn take_out(&mut self) -> Vec<u8> {
        mem::take(&mut self.out)
    }

    /// What a handshake leaves that is over; `None` before.
    #[must_use]
    pub fn finish(self) -> Option<Session> {
        match self.stage {
            Stage::Done(session) => Some(session),
            _ => None,
        }
    }
}

impl First {
    /// True if the second ClientHello is this one, but for a public value of the group that was asked for, and for what
    /// may change besides (RFC 8446 section 4.1.2).
    fn is_repeated(&self, hello: &ClientHello<'_>, groups: &[u16], shares: &Shares<'_>) -> bool {
        self.random == hello.random
            && self.session == hello.session
            && self.suites == hello.suites
            && self.groups == groups
            && matches!(shares, [(group, _)] if *group == self.group.code())
    }
}
