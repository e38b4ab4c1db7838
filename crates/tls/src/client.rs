//! The client's end.

use alloc::vec::Vec;
use core::mem;

use crate::error::Error;
use crate::exchange::{Group, Private};
use crate::hello::{
    self, ENCRYPTED_EXTENSIONS, FINISHED, Kind, Offer, SERVER_HELLO, ServerHello, Transcript,
};
use crate::receive::Receiver;
use crate::record::{self, Opener, Sealer};
use crate::schedule::{self, Early, Handshake};
use crate::suite::Suite;
use crate::traffic::TrafficKey;
use crate::{Next, Psk, Random, Session};

/// What a client offers.
#[derive(Clone)]
pub struct Config {
    /// The identity of its key.
    pub identity: Vec<u8>,
    /// The key.
    pub psk: Psk,
    /// The groups that it supports, the best first.
    pub groups: Vec<Group>,
    /// For how many of them, from the first on, it sends public values at once.
    pub shares: usize,
    /// It behaves as middleboxes know it from older versions (RFC 8446 appendix D.4).
    pub compatible: bool,
}

enum Stage {
    /// ServerHello, or a HelloRetryRequest.
    Hello,
    Extensions(Handshake),
    Finished(Handshake),
    Done(Session),
    Failed,
}

/// A handshake, as the client sees it.
pub struct Client {
    config: Config,
    suite: Suite,
    early: Early,
    random: [u8; 32],
    session: Vec<u8>,
    shares: Vec<Private>,
    receiver: Receiver,
    transcript: Transcript,
    stage: Stage,
    /// A HelloRetryRequest has come.
    retried: bool,
    changed: bool,
    out: Vec<u8>,
    sealer: Option<Sealer>,
}

impl Client {
    /// A handshake that begins: [`take_out`](Self::take_out) has the ClientHello. `random` is asked for private values
    /// at once, and again if the server wants another group.
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn new(config: Config, random: Random<'_>) -> Result<Self, Error> {
        let (mut number, mut session) = ([0; 32], Vec::new());
        if config.compatible {
            session.resize(32, 0);
        }
        if !random(&mut number) || !random(&mut session) {
            return Err(Error::Random);
        }
        let mut shares = Vec::new();
        for group in config.groups.iter().take(config.shares) {
            shares.push(Private::new(*group, random)?);
        }
        let mut client = Self {
            suite: config.psk.hash.suite(),
            early: Early::new(config.psk.hash, &config.psk.key),
            random: number,
            session,
            shares,
            receiver: Receiver::default(),
            transcript: Transcript::default(),
            stage: Stage::Hello,
            retried: false,
            changed: false,
            out: Vec::new(),
            sealer: None,
            config,
        };
        client.say_hello()?;
        Ok(client)
    }

    fn say_hello(&mut self) -> Result<(), Error> {
        let groups: Vec<u16> = self.config.groups.iter().map(|group| group.code()).collect();
        let mut shares = Vec::new();
        for private in &self.shares {
            shares.push((private.group.code(), private.public()?));
        }
        let offer = Offer {
            random: self.random,
            session: &self.session,
            suite: self.suite,
            groups: &groups,
            shares: &shares,
            identity: &self.config.identity,
        };
        let (mut message, bound) = offer.write();
        let hash = self.suite.hash();
        let binder = self.early.binder(&self.transcript.hash_with(hash, &message[..bound]));
        let at = message.len() - binder.len();
        message[at..].copy_from_slice(&binder);
        self.transcript.add(&message);
        record::plain(&mut self.out, record::HANDSHAKE, &message);
        Ok(())
    }

    /// How many bytes it takes at most, now: none in the end.
    #[must_use]
    pub fn wants(&self) -> usize {
        match self.stage {
            Stage::Hello | Stage::Extensions(_) | Stage::Finished(_) => self.receiver.wants(),
            Stage::Done(_) | Stage::Failed => 0,
        }
    }

    /// Takes what has come from the server, as long as there is something and it [`wants`](Self::wants) more. Returns
    /// how many bytes it took; what follows is application data.
    ///
    /// # Errors
    /// Why the handshake has failed. [`take_out`](Self::take_out) has the alert for the server.
    pub fn receive(&mut self, bytes: &[u8], random: Random<'_>) -> Result<(usize, Next), Error> {
        let mut taken = 0;
        while taken < bytes.len() && self.wants() > 0 {
            let done = match self.receiver.take(&bytes[taken..]) {
                Ok(n) => {
                    taken += n;
                    self.messages(random)
                }
                Err(why) => Err(why),
            };
            if let Err(why) = done {
                return Err(self.fail(why));
            }
        }
        let done = matches!(self.stage, Stage::Done(_));
        Ok((taken, if done { Next::Done } else { Next::Receive }))
    }

    fn messages(&mut self, random: Random<'_>) -> Result<(), Error> {
        while let Some(message) = self.receiver.message()? {
            match (mem::replace(&mut self.stage, Stage::Failed), message.first()) {
                (Stage::Hello, Some(&SERVER_HELLO)) => self.hello(&message, random)?,
                (Stage::Extensions(secrets), Some(&ENCRYPTED_EXTENSIONS)) => {
                    hello::read_encrypted_extensions(&message)?;
                    self.transcript.add(&message);
                    self.stage = Stage::Finished(secrets);
                }
                (Stage::Finished(secrets), Some(&FINISHED)) => self.finished(&secrets, &message)?,
                _ => return Err(Error::Unexpected),
            }
        }
        Ok(())
    }

    fn fail(&mut self, why: Error) -> Error {
        self.stage = Stage::Failed;
        if let Some(alert) = why.alert() {
            let content = [2, alert.0];
            match &mut self.sealer {
                Some(sealer) => sealer.seal(record::ALERT, &content, &mut self.out),
                None => record::plain(&mut self.out, record::ALERT, &content),
            }
        }
        why
    }

    fn hello(&mut self, message: &[u8], random: Random<'_>) -> Result<(), Error> {
        self.receiver.ended()?;
        let hello = ServerHello::read(message)?;
        if hello.session != self.session || hello.suite != self.suite {
            return Err(Error::Illegal("ServerHello"));
        }
        match hello.kind {
            Kind::Retry { group } => {
                let group = Group::from_code(group);
                let supported = group.filter(|group| self.config.groups.contains(group));
                let fresh =
                    supported.filter(|group| self.shares.iter().all(|one| one.group != *group));
                let group = match fresh {
                    Some(group) if !mem::replace(&mut self.retried, true) => group,
                    Some(_) => return Err(Error::Unexpected),
                    None => return Err(Error::Illegal("HelloRetryRequest")),
                };
                self.transcript.retried(self.suite.hash());
                self.transcript.add(message);
                self.shares = Vec::from([Private::new(group, random)?]);
                self.change();
                self.say_hello()?;
                self.stage = Stage::Hello;
                Ok(())
            }
            Kind::Hello { share: (group, public), chosen, .. } => {
                let private = self.shares.iter().find(|private| private.group.code() == group);
                let private =
                    private.filter(|_| chosen == 0).ok_or(Error::Illegal("ServerHello"))?;
                let shared = private.shared(public)?;
                self.transcript.add(message);
                let transcript = self.transcript.hash(self.suite.hash());
                let secrets = self.early.handshake(&shared, &transcript);
                let key = |secret| TrafficKey::new(self.suite, secret);
                self.sealer = Some(Sealer::new(key(&secrets.client)));
                self.receiver.protect(Opener::new(key(&secrets.server)))?;
                self.stage = Stage::Extensions(secrets);
                Ok(())
            }
        }
    }

    /// Says change_cipher_spec, once, for middleboxes.
    fn change(&mut self) {
        if self.config.compatible && !mem::replace(&mut self.changed, true) {
            record::plain(&mut self.out, record::CHANGE_CIPHER_SPEC, &[1]);
        }
    }

    fn finished(&mut self, secrets: &Handshake, message: &[u8]) -> Result<(), Error> {
        let hash = self.suite.hash();
        let right = schedule::finished(hash, &secrets.server, &self.transcript.hash(hash));
        schedule::check(&right, hello::read_finished(message))?;
        self.receiver.ended()?;
        self.transcript.add(message);
        let transcript = self.transcript.hash(hash);
        let (send, receive) = secrets.application(self.suite, &transcript);
        let own = hello::finished(&schedule::finished(hash, &secrets.client, &transcript));
        self.change();
        if let Some(sealer) = &mut self.sealer {
            sealer.seal(record::HANDSHAKE, &own, &mut self.out);
        }
        let (suite, identity) = (self.suite, self.config.identity.clone());
        self.stage = Stage::Done(Session { suite, identity, candidate: 0, send, receive });
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
