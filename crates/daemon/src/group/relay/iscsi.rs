//! A relay of iSCSI: the initiator's end of a session.

mod reserved;

use std::collections::HashMap;
use std::time::Duration;

use lunet_front_iscsi::{
    Answered, Charge, Function, Iscsi, RelayFor, Relayed, accounts, algorithms,
};
use lunet_iscsi::Through;
use lunet_iscsi::initiator::{
    Chap, Command, Connection, Cx, Data, Event, Finished, Mutual, Options, Outcome, Residual, Tag,
};
use lunet_iscsi::pdu::{AsyncEvent, LogoutReason, TmfResponse};
use lunet_scsi::status;

use self::reserved::Reserved;
use super::{Carrier, Happened, LOGIN, Opening, Told};

/// The silence after which the owner is pinged, and how long its answer may take.
const SILENCE: Duration = Duration::from_secs(2);

/// A session of iSCSI with the owner.
pub(in crate::group) struct Initiator {
    proto: Connection<Vec<u8>, Vec<u8>>,
    events: Vec<Event<Vec<u8>, Vec<u8>>>,
    /// What was sent and is not answered, by ticket.
    sent: HashMap<u64, (Tag, Charge)>,
    managed: HashMap<u32, Box<dyn Send>>,
    /// Units that the host has reserved by this relay.
    reserved: Reserved,
}

impl Initiator {
    fn work(&mut self, told: &mut Told<Self>) {
        for event in std::mem::take(&mut self.events) {
            match event {
                Event::LoggedIn(_) => told.push(Happened::Opened),
                Event::Finished(finished) => told.extend(self.finished(finished)),
                Event::Managed { tag, response } => {
                    let done = self.managed.remove(&tag.number());
                    match response {
                        Some(Ok(TmfResponse::Complete | TmfResponse::TaskDoesNotExist)) => {
                            drop(done);
                        }
                        // Nobody knows what the owner does with the commands.
                        _ => told.push(Happened::Over(done)),
                    }
                }
                Event::Async(notice) if notice.event == Some(AsyncEvent::LogoutRequest) => {
                    told.push(Happened::Leaves);
                }
                Event::LoggedOut { .. } | Event::Failed(_) => told.push(Happened::Over(None)),
                _ => {}
            }
        }
    }

    fn finished(&mut self, finished: Finished<Vec<u8>, Vec<u8>>) -> Option<Happened<Answered>> {
        let Finished { token, outcome, data, .. } = finished;
        let completion = match outcome {
            Outcome::Completed(completion) if completion.response == 0 => completion,
            // Whoever has aborted it waits for no answer.
            Outcome::Aborted => {
                drop(self.sent.remove(&token));
                self.reserved.aborted(token);
                return None;
            }
            // It counts as sent: nobody knows what has become of it.
            Outcome::Completed(_) | Outcome::Rejected(_) | Outcome::Lost => {
                return Some(Happened::Over(None));
            }
        };
        let mut data = match data {
            Data::Read(data) => data,
            Data::None | Data::Discard(_) | Data::Write(_) => Vec::new(),
        };
        data.truncate(completion.received as usize);
        let residual = match completion.residual {
            Residual::None => 0,
            Residual::Underflow(less) => -i64::from(less),
            Residual::Overflow(more) => i64::from(more),
        };
        let (status, sense) = (completion.status, completion.sense);
        drop(self.sent.remove(&token));
        self.reserved.answered(token, status, &sense);
        Some(Happened::Answered(token, Answered { status, sense, residual, data }))
    }
}

impl Carrier for Initiator {
    type Passed = Iscsi;

    const OF_HOST: usize = 32;
    /// Initiators wait by themselves.
    const PAUSE: Duration = Duration::ZERO;

    fn open(opening: &Opening<'_>, whose: &RelayFor) -> Option<Self> {
        let Opening { aim, me, target, renews } = opening;
        let RelayFor { initiator, isid, host } = whose;
        let (gateway, epoch) = (me.0, aim.epoch.0);
        let through = Through { gateway, epoch, host: *host, renews: *renews };
        let (account, owner) = accounts(&aim.secret, &through, (initiator, *isid), target);
        let mut random = [0; 33];
        lunet_os::random::fill(&mut random).ok()?;
        let mutual = Mutual { account: owner, id: random[0], challenge: random[1..].to_vec() };
        let options = Options {
            isid: *isid,
            through: Some(through),
            chap: Some(Chap { account, algorithms: algorithms(), mutual: Some(mutual) }),
            login_timeout: LOGIN,
            ping_interval: Some(SILENCE),
            ping_timeout: SILENCE,
            ..Options::new(initiator, Some(target))
        };
        let (proto, events) = (Connection::new(options), Vec::new());
        let (sent, managed, reserved) = (HashMap::new(), HashMap::new(), Reserved::default());
        Some(Self { proto, events, sent, managed, reserved })
    }

    fn host(whose: &RelayFor) -> &str {
        &whose.initiator
    }

    fn start(&mut self, at: Duration, out: &mut Vec<u8>) {
        self.proto.start(at, out);
    }

    fn received(&mut self, bytes: &[u8], at: Duration, out: &mut Vec<u8>, told: &mut Told<Self>) {
        self.proto.rx_bytes(bytes, &mut Cx { now: at, tx: out, events: &mut self.events });
        self.work(told);
    }

    fn tick(&mut self, at: Duration, out: &mut Vec<u8>, told: &mut Told<Self>) {
        self.proto.handle_timeout(&mut Cx { now: at, tx: out, events: &mut self.events });
        self.work(told);
    }

    fn due(&self) -> Option<Duration> {
        self.proto.poll_timeout()
    }

    fn is_ready(&self) -> bool {
        self.proto.is_ready()
    }

    fn takes(&self, _: &Relayed) -> bool {
        self.proto.window() > 0
    }

    fn submit(&mut self, command: Relayed, out: &mut Vec<u8>) -> Result<(), u64> {
        let Relayed { ticket, lun, cdb, attribute, expects_read, data, charge } = command;
        let data = match (data.is_empty(), expects_read) {
            (false, _) => Data::Write(data),
            (true, 0) => Data::None,
            (true, bytes) => Data::Read(vec![0; bytes as usize]),
        };
        let immediate = false;
        let command = Command { token: ticket, lun, cdb: &cdb, attribute, immediate, data };
        let tag = self.proto.submit(command, out).map_err(|_| ticket)?;
        self.reserved.sent(ticket, lun, &cdb);
        self.sent.insert(ticket, (tag, charge));
        Ok(())
    }

    fn manage(
        &mut self,
        Function { function, lun, ticket }: Function,
        done: Box<dyn Send>,
        out: &mut Vec<u8>,
        told: &mut Told<Self>,
    ) {
        let referenced = match ticket {
            None => None,
            // It is answered already.
            Some(ticket) => match self.sent.get(&ticket) {
                None => return drop(done),
                Some((tag, _)) => Some(*tag),
            },
        };
        match self.proto.manage(function, lun, referenced, out) {
            Ok(tag) => {
                self.reserved.managed(function, lun);
                drop(self.managed.insert(tag.number(), done));
            }
            Err(_) => told.push(Happened::Over(Some(done))),
        }
    }

    fn has_sent(&self) -> bool {
        !self.sent.is_empty()
    }

    fn waits(&self) -> bool {
        !self.sent.is_empty() || !self.managed.is_empty()
    }

    fn keeps(&self) -> bool {
        self.reserved.any()
    }

    fn leave(&mut self, at: Duration, out: &mut Vec<u8>) -> bool {
        let _ = self.proto.logout(LogoutReason::CloseSession, at, out);
        false
    }

    fn ticket(command: &Relayed) -> u64 {
        command.ticket
    }

    fn not_sent() -> Answered {
        Answered { status: status::BUSY, ..Answered::default() }
    }
}
