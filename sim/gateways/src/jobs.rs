//! Jobs that administrators want of the owner, by any gateway: each is done once at most, and what they are told is so.

use std::time::Duration;

use lunet_gateway::{Epoch, Input, Job, Outcome};

use crate::cluster::ClientIx;
use crate::world::{Event, World};
use crate::{MS, SEC};

/// What is known of one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// An owner that was not shut out has done it.
    done: bool,
    /// Somebody was told something.
    told: bool,
    /// Somebody was told that nothing was done, and nothing will be.
    refused: bool,
}

/// One under way.
#[derive(Clone, Copy, Debug)]
pub struct Running {
    job: Job,
    which: usize,
    epoch: Epoch,
    client: Option<ClientIx>,
}

impl World {
    /// An administrator wants a job done.
    pub fn wants_job(&mut self, gateway: usize) {
        if self.nodes[gateway].alive {
            self.jobs.push(Known::default());
            let which = self.jobs.len() - 1;
            self.to_node(gateway, self.now, Event::JobWanted(which));
        }
    }

    /// He has told the gateway so.
    pub fn job_wanted(&mut self, gateway: usize, which: usize) {
        let limit = Duration::from_micros(self.chance.between(2 * SEC, 20 * SEC));
        let body = (which as u64).to_le_bytes().to_vec();
        self.feed(gateway, Input::Job(which as u64, body, limit));
    }

    /// The owner begins it.
    pub fn job_begins(&mut self, gateway: usize, job: Job, body: &[u8]) {
        let which = body.try_into().map(u64::from_le_bytes).expect("the body of a job") as usize;
        let node = &mut self.nodes[gateway];
        let running = Running { job, which, epoch: node.gate().epoch(), client: node.client() };
        node.jobs.push(running);
        let longest = if self.chance.once_in(4) { 9 * SEC } else { 100 * MS };
        let at = self.now + self.chance.between(1, longest);
        self.to_node(gateway, at, Event::JobEnds(job));
    }

    /// And has done it, unless its client is shut out.
    pub fn job_ends(&mut self, gateway: usize, job: Job) {
        let jobs = &mut self.nodes[gateway].jobs;
        let Some(at) = jobs.iter().position(|running| running.job == job) else { return };
        let Running { which, client, .. } = jobs.swap_remove(at);
        if client.is_some_and(|client| !self.cluster.is_shut_out(client, self.now)) {
            let known = &mut self.jobs[which];
            let (twice, refused) = (known.done, known.refused);
            known.done = true;
            if twice {
                self.wrong(format!("job {which} was done twice"));
            }
            if refused {
                self.wrong(format!("job {which} was done, and refused before"));
            }
        }
        let done = if self.jobs[which].done { vec![1] } else { vec![0] };
        self.feed(gateway, Input::JobDone(job, done));
    }

    /// The administrator is told what became of it.
    pub fn job_told(&mut self, id: u64, outcome: &Outcome) {
        let which = id as usize;
        let Known { done, told, .. } = self.jobs[which];
        self.jobs[which].told = true;
        self.jobs[which].refused |= matches!(outcome, Outcome::Refused(_));
        let wrong = match outcome {
            _ if told => "was told of twice",
            Outcome::Answer(answer) if answer == &[1] && !done => "was told to be done, and is not",
            Outcome::Refused(_) if done => "was refused, and is done",
            _ => return,
        };
        self.wrong(format!("job {which} {wrong}"));
    }

    /// The owner begins to give the group away.
    pub fn no_job_is_under_way(&mut self, gateway: usize) {
        let node = &self.nodes[gateway];
        let epoch = node.gate().epoch();
        if let Some(Running { which, .. }) = node.jobs.iter().find(|it| it.epoch == epoch) {
            self.wrong(format!("the group is given away while job {which} is under way"));
        }
    }
}
