//! The host proves itself on a queue, before the queue takes other commands (DH-HMAC-CHAP).

use super::rdma::{OWN_LEN, put_capsule};
use super::{Connection, Cx, Data, Error, Event, Phase, Task};
use crate::auth::chap::{Computed, HostNext, Initiator, Job};
use crate::command::{Completion, Sgl};
use crate::fabrics::{Authentication, Connected, Fabrics, Security};
use crate::pdu::{CapsuleCmd, Type, U16};
use crate::transmit::{Payload, Transmit, put};
use alloc::boxed::Box;
use alloc::vec::Vec;
use zerocopy::IntoBytes;

/// Room for a message of the controller, in bytes: that with the longest public value takes 1112.
const MESSAGE: u32 = OWN_LEN;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// A message was sent, and one of the controller's is to be asked for.
    Sending,
    /// A message of the controller is to come.
    Receiving,
    /// The last message was sent.
    Ending,
    /// The layer above computes.
    Computing,
}

/// An authentication under way.
pub(super) struct Proof {
    initiator: Initiator,
    doing: Doing,
    /// The command under way.
    cid: u16,
    message: Vec<u8>,
    job: Option<Job>,
    /// What the Connect was answered with.
    connected: Option<Connected>,
}

impl core::fmt::Debug for Proof {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Proof").field("doing", &self.doing).finish_non_exhaustive()
    }
}

impl Proof {
    /// Puts bytes of the controller's message where they belong.
    pub(super) fn fill(&mut self, cid: u16, at: usize, piece: &[u8]) {
        if let (true, Some(room)) = (self.cid == cid, self.message.get_mut(at..at + piece.len())) {
            room.copy_from_slice(piece);
        }
    }
}

impl<R: AsMut<[u8]>, W: Payload + Clone> Connection<R, W> {
    /// Has the host prove itself if the controller asks for it, and the controller if the
    /// credentials have its secret. Call it before [`Self::start`].
    pub fn authenticate(&mut self, initiator: Initiator) {
        self.proof = Some(Box::new(Proof {
            initiator,
            doing: Doing::Sending,
            cid: 0,
            message: Vec::new(),
            job: None,
            connected: None,
        }));
    }

    /// What is to be computed before the authentication goes on; look after each call that takes
    /// bytes. It may take tens of milliseconds; give what comes of it to [`Self::computed`].
    pub fn take_job(&mut self) -> Option<Job> {
        self.proof.as_mut()?.job.take()
    }

    /// What came of the [`Job`].
    pub fn computed<T: Transmit<Payload = W>>(
        &mut self,
        computed: Computed,
        cx: &mut Cx<'_, R, T>,
    ) {
        let Some(proof) = self.proof.as_mut().filter(|proof| proof.doing == Doing::Computing)
        else {
            return;
        };
        let next = proof.initiator.computed(computed);
        if let Err(error) = self.prove(next, cx) {
            self.fail(error, cx);
        }
    }

    /// The Connect was accepted: says so, or begins to prove what is to be proved.
    pub(super) fn begin_proof<T: Transmit<Payload = W>>(
        &mut self,
        connected: Connected,
        cx: &mut Cx<'_, R, T>,
    ) -> Result<(), Error> {
        let asked = connected.authentication != Authentication::None;
        match &mut self.proof {
            Some(proof) if asked => {
                proof.connected = Some(connected);
                let message = proof.initiator.negotiate();
                self.prove(HostNext::Send(message), cx)
            }
            Some(proof) if proof.initiator.wants_proof() => Err(Error::NoProof),
            _ => {
                self.proof = None;
                self.phase = Phase::Ready;
                cx.events.push(Event::Connected(connected));
                Ok(())
            }
        }
    }

    /// A command of the authentication was answered.
    pub(super) fn proof_answered<T: Transmit<Payload = W>>(
        &mut self,
        cid: u16,
        completion: Completion,
        cx: &mut Cx<'_, R, T>,
    ) -> Result<(), Error> {
        self.task(cid).ok_or(Error::UnknownCommand(cid))?;
        self.tasks.clear();
        let Some(proof) = &mut self.proof else { return Err(Error::Sequence) };
        if !completion.status.is_success() {
            return Err(Error::AuthenticationCommand(completion.status));
        }
        match proof.doing {
            Doing::Sending => {
                proof.doing = Doing::Receiving;
                proof.message.clear();
                proof.message.resize(MESSAGE as usize, 0);
                self.ask(cx);
                Ok(())
            }
            Doing::Receiving => {
                if self.own.is_some() {
                    cx.tx.kept(&mut proof.message);
                }
                let next = proof.initiator.received(&proof.message);
                self.prove(next, cx)
            }
            Doing::Ending => {
                self.proven(cx);
                Ok(())
            }
            Doing::Computing => Err(Error::Sequence),
        }
    }

    /// Does what comes next.
    fn prove<T: Transmit<Payload = W>>(
        &mut self,
        next: HostNext,
        cx: &mut Cx<'_, R, T>,
    ) -> Result<(), Error> {
        let Some(proof) = &mut self.proof else { return Err(Error::Sequence) };
        let by = cx.now.saturating_add(self.options.connect_timeout);
        self.phase = Phase::Authenticate(by);
        match next {
            HostNext::Send(message) => {
                proof.doing = Doing::Sending;
                self.tell(&message, cx);
            }
            HostNext::Compute(job) => {
                proof.doing = Doing::Computing;
                proof.job = Some(job);
            }
            HostNext::Done(Some(message)) => {
                proof.doing = Doing::Ending;
                self.tell(&message, cx);
            }
            HostNext::Done(None) => self.proven(cx),
            // The controller says so itself.
            HostNext::Failed(failure, None) => return Err(Error::NotProven(failure)),
            HostNext::Failed(failure, Some(message)) => {
                self.tell(&message, cx);
                return Err(Error::ControllerNotProven(failure));
            }
        }
        Ok(())
    }

    fn proven<T: Transmit<Payload = W>>(&mut self, cx: &mut Cx<'_, R, T>) {
        let connected = self.proof.take().and_then(|proof| proof.connected);
        let cntlid = connected.map_or(0, |connected| connected.cntlid);
        self.phase = Phase::Ready;
        let authentication = Authentication::None;
        cx.events.push(Event::Connected(Connected { cntlid, authentication }));
    }

    /// Sends a message, which is always short enough for a capsule.
    fn tell<T: Transmit<Payload = W>>(&mut self, message: &[u8], cx: &mut Cx<'_, R, T>) {
        let len = message.len() as u32;
        let mut sqe = Fabrics::AuthenticationSend(Security::dh_chap(len)).encode();
        sqe.cid = U16::new(self.begin_command(0));
        self.put_own(sqe, message, cx.tx);
    }

    /// Asks for a message.
    fn ask<T: Transmit<Payload = W>>(&mut self, cx: &mut Cx<'_, R, T>) {
        let mut sqe = Fabrics::AuthenticationReceive(Security::dh_chap(MESSAGE)).encode();
        sqe.cid = U16::new(self.begin_command(MESSAGE));
        if let Some(own) = self.own {
            sqe.sgl = Sgl::keyed(own, MESSAGE, false);
            return put_capsule(&sqe, cx.tx);
        }
        sqe.sgl = Sgl::transport(MESSAGE);
        let mut capsule = CapsuleCmd::default();
        capsule.sqe.copy_from_slice(sqe.as_bytes());
        put(self.outbound, Type::CapsuleCmd, 0, capsule, cx.tx);
    }

    /// A command of the authentication, with so many bytes to read.
    fn begin_command(&mut self, len: u32) -> u16 {
        let data = if len > 0 { Data::Discard(len) } else { Data::None };
        let reads = len > 0;
        let task = Task { tag: super::Tag(0), token: 0, data, len, reads, moved: 0 };
        let cid = self.insert(task).cid();
        if let Some(proof) = &mut self.proof {
            proof.cid = cid;
        }
        cid
    }
}
