//! Jobs: work on a volume that an administrator wants, such as a snapshot. The owner alone does it, whichever gateway was asked.
//!
//! A job is done once at most, and by the owner of the epoch in which it was ordered: a notify that comes twice, or that is
//! sent again because its answer takes long, finds the job that is under way, or what became of it.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::machine::{Gateway, Purpose, Role};
use crate::{
    Ack, Action, Epoch, Job, Message, NotifyId, Outcome, Refusal, Reply, Response, Result,
};

/// Jobs under way at the most.
const AT_ONCE: usize = 8;
/// Answers that are remembered for whoever asks again.
const REMEMBERED: usize = 32;
/// For how long one notify waits for the owner. A notify keeps a client alive, so whoever waits longer asks again.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// What a gateway knows of jobs.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    /// Of this gateway, as the owner.
    running: Vec<Running>,
    /// What became of the latest that came by a notify.
    ended: VecDeque<(Asker, Vec<u8>)>,
    /// Of this gateway's administrators, on their way to the owner.
    asked: Vec<Asked>,
    numbers: u64,
}

/// Who wants a job, by its client, which no other gateway ever has, and its number there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    pub client: String,
    pub number: u64,
}

#[derive(Debug)]
struct Running {
    job: Job,
    /// The epoch of which it is done.
    epoch: Epoch,
    from: From,
}

#[derive(Debug)]
enum From {
    /// An order here, by its number.
    Here(u64),
    /// Another gateway, which has asked by these notifies.
    There(Asker, Vec<NotifyId>),
}

#[derive(Debug)]
struct Asked {
    /// The order's number.
    id: u64,
    epoch: Epoch,
    asker: Asker,
    body: Vec<u8>,
    until: Duration,
    /// The owner may have it: it was asked before.
    again: bool,
}

impl Jobs {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// True while one of that epoch is under way.
    pub fn are_under_way(&self, epoch: Epoch) -> bool {
        self.running.iter().any(|running| running.epoch == epoch)
    }
}

impl Gateway {
    /// An administrator here wants a job done, and waits for so long.
    pub(crate) fn order_job(&mut self, id: u64, body: Vec<u8>, limit: Duration) {
        let epoch = self.gate.epoch();
        match &self.role {
            Role::Owner(_) if self.is_crowded() => {
                self.told(id, Outcome::Refused(Refusal::Crowded))
            }
            Role::Owner(_) => self.begin_job(From::Here(id), body),
            Role::Standby(_) if self.record().is_none_or(|record| record.owner.is_none()) => {
                self.told(id, Outcome::Refused(Refusal::NoOwner));
            }
            Role::Standby(_) => {
                let Some(client) = self.client().map(|client| client.lock.clone()) else {
                    return self.told(id, Outcome::Refused(Refusal::NotReady));
                };
                let asker = Asker { client, number: self.jobs.number() };
                let until = self.now + limit;
                let asked = Asked { id, epoch, asker, body, until, again: false };
                self.ask_owner(asked);
            }
            Role::Orphaned => self.told(id, Outcome::Refused(Refusal::Orphaned)),
            _ => self.told(id, Outcome::Refused(Refusal::NotReady)),
        }
    }

    fn ask_owner(&mut self, asked: Asked) {
        let limit = asked.until.saturating_sub(self.now).min(ASK_LIMIT);
        let op = self.operation(Purpose::Job(asked.id));
        let Asker { client, number } = asked.asker.clone();
        let message = Message::Job(asked.epoch, client, number, asked.body.clone());
        self.notify(op, &message, limit);
        self.jobs.asked.push(asked);
    }

    /// The answers to that are there, or the time of the notify is over.
    pub(crate) fn job_asked(&mut self, id: u64, result: &Result) {
        let Some(at) = self.jobs.asked.iter().position(|asked| asked.id == id) else { return };
        let mut asked = self.jobs.asked.swap_remove(at);
        // That all have answered says nothing of an owner whose watch was given up meanwhile: it may have the notify yet.
        let acks = match result {
            Ok(Reply::Acks { acks, .. }) => acks.as_slice(),
            _ => &[][..],
        };
        let responses = acks.iter().flat_map(|Ack(bytes)| Response::decode(bytes));
        let mut not_taken = None;
        for response in responses {
            match response {
                Response::Job(answer) => return self.told(id, Outcome::Answer(answer)),
                Response::Refused(refusal) => not_taken = Some(refusal),
                Response::NotOwner(..) | Response::Owner(_) => {}
            }
        }
        // Whoever owned the group in an earlier epoch than the one that refuses has left it, or is fenced.
        match not_taken {
            // The owner that was asked first may have done it.
            Some(_) if asked.again => self.told(id, Outcome::Unknown),
            Some(refusal) => self.told(id, Outcome::Refused(refusal)),
            None if self.now >= asked.until || !matches!(self.role, Role::Standby(_)) => {
                self.told(id, Outcome::Unknown);
            }
            None => {
                asked.again = true;
                self.ask_owner(asked);
            }
        }
    }

    /// Another gateway wants a job done by the owner, which this one is.
    pub(crate) fn job_wanted(
        &mut self,
        notify: NotifyId,
        epoch: Epoch,
        asker: Asker,
        body: Vec<u8>,
    ) {
        if let Some((_, answer)) = self.jobs.ended.iter().find(|(ended, _)| *ended == asker) {
            let answer = Response::Job(answer.clone());
            return self.acknowledge(notify, &answer);
        }
        let mut running = self.jobs.running.iter_mut().map(|running| &mut running.from);
        let known = running.find_map(|from| match from {
            From::There(other, notifies) if *other == asker => Some(notifies),
            _ => None,
        });
        if let Some(notifies) = known {
            return notifies.push(notify);
        }
        let refusal = match &self.role {
            Role::Owner(_) if epoch != self.gate.epoch() => Refusal::NotReady,
            Role::Owner(_) if self.is_crowded() => Refusal::Crowded,
            Role::Owner(_) => return self.begin_job(From::There(asker, [notify].into()), body),
            _ => Refusal::NotReady,
        };
        self.acknowledge(notify, &Response::Refused(refusal));
    }

    fn is_crowded(&self) -> bool {
        let epoch = self.gate.epoch();
        self.jobs.running.iter().filter(|running| running.epoch == epoch).count() >= AT_ONCE
    }

    fn begin_job(&mut self, from: From, body: Vec<u8>) {
        let (job, epoch) = (Job(self.jobs.number()), self.gate.epoch());
        self.jobs.running.push(Running { job, epoch, from });
        self.act(Action::Job(job, body));
    }

    /// A job has ended, and that is its answer.
    pub(crate) fn job_done(&mut self, job: Job, answer: Vec<u8>) {
        let Some(at) = self.jobs.running.iter().position(|running| running.job == job) else {
            return;
        };
        match self.jobs.running.swap_remove(at).from {
            From::Here(id) => self.told(id, Outcome::Answer(answer)),
            From::There(asker, notifies) => {
                for notify in notifies {
                    self.acknowledge(notify, &Response::Job(answer.clone()));
                }
                self.jobs.ended.push_back((asker, answer));
                if self.jobs.ended.len() > REMEMBERED {
                    self.jobs.ended.pop_front();
                }
            }
        }
    }

    /// The client ends. What was asked by it is answered by nobody, and notifies that came to it cannot be.
    pub(crate) fn give_up_jobs(&mut self) {
        for asked in core::mem::take(&mut self.jobs.asked) {
            self.told(asked.id, Outcome::Unknown);
        }
        for running in &mut self.jobs.running {
            if let From::There(_, notifies) = &mut running.from {
                notifies.clear();
            }
        }
    }

    /// True while the owner has a job under way, which a move would come between.
    pub(crate) fn has_jobs(&self) -> bool {
        self.jobs.are_under_way(self.gate.epoch())
    }

    fn told(&mut self, id: u64, outcome: Outcome) {
        self.act(Action::JobTold(id, outcome));
    }
}
