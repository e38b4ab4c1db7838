//! A node of a cluster that is an NVMe host: it registers, reserves and preempts on the volume of the nodes that are
//! initiators, and reads and writes all the while.

use std::time::Duration;

use lunet_nvme::command::{
    AcquireAction, Io, PersistOnPowerLoss, RegisterAction, ReleaseAction, ReservationType, Sqe,
};
use lunet_nvme::host::Data;
use lunet_nvme::reservation;
use lunet_nvme::status::Status;
use lunet_os::simulated::below;

use super::commands::{self, Answer as Ending, Order, write_of};
use super::controller::Transfer;
use super::nsid;
use super::visit::{Does, Life};
use crate::cluster::{Verdict, Wants};
use crate::commands::{Copying, Sent};
use crate::reservations::{Answer, Enrol, FIRST_HOST, Id, KINDS, Kind, Nexus, Op, Out, Report};
use crate::site::{Site, now};

/// Bytes of a report that it asks for.
const REPORT: usize = 4096;

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    /// What every host does.
    pub life: Life,
    /// Its number among the nodes.
    pub nexus: Nexus,
    /// The volume of the cluster.
    pub volume: usize,
}

/// What it sends.
struct Claims {
    nexus: Nexus,
    volume: usize,
    patience: Duration,
    /// Changes that are not answered.
    changes: usize,
    copying: Copying,
    site: Site,
}

/// A command of a node.
struct Claim {
    id: Id,
    /// What it does to blocks.
    sent: Option<Sent>,
    /// What it has to do with reservations.
    op: Option<Op>,
}

impl Node {
    /// Its life.
    pub fn run(self) {
        let Self { life, nexus, volume } = self;
        let (patience, site) = (life.patience, life.site.clone());
        let copying = Copying::default();
        life.run(Claims { nexus, volume, patience, changes: 0, copying, site });
    }
}

impl Claims {
    fn claim(
        &self,
        op: Option<Op>,
        sent: Option<Sent>,
        parts: Vec<(Sqe, Transfer)>,
    ) -> Order<Claim> {
        let writes = sent.as_ref().and_then(Sent::writes);
        let id = self.site.known().cluster_sends(self.nexus, op.as_ref(), writes);
        Order { what: Claim { id, sent, op }, parts }
    }

    /// A command on blocks, and what a reservation makes of it (NVMe base specification, section 8.1.22).
    fn transfer(&self) -> Option<Order<Claim>> {
        let order = commands::draw(&mut self.site.known(), &[self.volume], false)?;
        let op = match &order.what {
            Sent::Read { .. } | Sent::Verify { .. } | Sent::Nothing { code: 0x0c, .. } => {
                Some(Op::Read)
            }
            // A hint.
            Sent::Nothing { .. } => None,
            _ => Some(Op::Write),
        };
        Some(self.claim(op, Some(order.what), order.parts))
    }

    fn report(&self) -> Order<Claim> {
        let io = Io::ReservationReport { len: REPORT as u32, extended: true };
        let part = (io.encode(nsid(self.volume)), Data::Read(vec![0; REPORT]));
        self.claim(Some(Op::Report), None, vec![part])
    }

    fn change(&mut self) -> Order<Claim> {
        let Wants { right, key, victim, new, kind } = self.site.known().cluster.wants(self.nexus);
        let keep = [None, Some(false), Some(true), Some(true)][below(4) as usize];
        let enrol = |action, ignore| Out::Enrol { action, key, new, ignore, keep };
        let out = match below(16) {
            0 => enrol(Enrol::Register, below(2) == 0),
            _ if right == 0 && below(4) != 0 => enrol(Enrol::Register, false),
            1 | 2 => enrol(Enrol::Replace, below(2) == 0),
            3 => enrol(Enrol::Unregister, below(2) == 0),
            4..=7 => Out::Reserve { key, kind },
            8 | 9 => Out::Release { key, kind },
            10 => Out::Clear { key },
            // Who has its own commands ended is not told of it.
            _ => Out::Preempt { key, victim, kind, abort: victim != key && below(2) == 0 },
        };
        self.changes += 1;
        let part = encoded(&out, nsid(self.volume));
        self.claim(Some(Op::Out(out)), None, vec![part])
    }

    /// A command is not under way any more.
    fn ends(&mut self, claim: &Claim) {
        self.changes -= usize::from(matches!(claim.op, Some(Op::Out(_))));
    }
}

impl Does for Claims {
    type Command = Claim;

    fn draw(&mut self) -> Option<Order<Claim>> {
        match below(8) {
            0 | 1 if self.changes == 0 => Some(self.change()),
            2 => Some(self.report()),
            _ => self.transfer(),
        }
    }

    fn words(&self, claim: &Claim) -> String {
        match (&claim.sent, &claim.op) {
            (Some(sent), _) => sent.to_string(),
            (None, op) => format!("{op:?}"),
        }
    }

    fn undone(&mut self, claim: Claim) {
        self.ends(&claim);
        let mut known = self.site.known();
        known.cluster_refused(claim.id);
        claim.sent.into_iter().for_each(|sent| sent.undone(&mut known));
    }

    fn answered(&mut self, claim: Claim, ending: &Ending, begun: Duration) -> Result<(), String> {
        self.ends(&claim);
        let verdict = verdict(claim.op.as_ref(), ending);
        let mut known = self.site.known();
        let judged = known.cluster_judges(self.nexus, claim.id, claim.op.as_ref(), &verdict);
        known.cluster_answered(claim.id);
        judged?;
        match (claim.sent, &verdict) {
            // A Copy may have copied some of its ranges before the reservation came.
            (Some(sent), Verdict::Answered(Answer::Conflict)) => match sent.writes() {
                Some((volume, value)) if known.is_copy(value) => {
                    known.end_copy(value);
                    known.models[volume].over(value, now());
                }
                _ => sent.undone(&mut known),
            },
            (Some(sent), _) => {
                sent.answered(&mut known, &mut self.copying, ending.ended(), begun)?;
                ending.fault()?;
            }
            (None, _) => {}
        }
        Ok(())
    }

    fn over(&mut self, claim: Claim) {
        self.ends(&claim);
        let writes = claim.sent.as_ref().and_then(Sent::writes);
        self.site.known().cluster_over(claim.id, writes);
    }

    fn bound(&self, _: &Claim) -> Duration {
        self.patience
    }

    fn shut_down(&mut self, _: Duration) {}
}

/// The type of a kind.
fn type_of(kind: Kind) -> ReservationType {
    let number = KINDS.iter().position(|it| *it == kind).unwrap_or(0);
    ReservationType::from_code(number as u8 + 1).unwrap_or(ReservationType::WriteExclusive)
}

/// A reservation command as it is sent.
fn encoded(out: &Out, nsid: u32) -> (Sqe, Transfer) {
    let acquire = |action, kind: &Kind| Io::ReservationAcquire { action, kind: type_of(*kind) };
    let (io, keys) = match out {
        Out::Enrol { action, key, new, ignore, keep } => {
            let action = match action {
                Enrol::Register => RegisterAction::Register,
                Enrol::Unregister => RegisterAction::Unregister,
                Enrol::Replace => RegisterAction::Replace,
            };
            let persist = match keep {
                None => PersistOnPowerLoss::Unchanged,
                Some(false) => PersistOnPowerLoss::Off,
                Some(true) => PersistOnPowerLoss::On,
            };
            let io = Io::ReservationRegister { action, ignore_key: *ignore, persist };
            (io, vec![*key, *new])
        }
        Out::Reserve { key, kind } => (acquire(AcquireAction::Acquire, kind), vec![*key, 0]),
        Out::Preempt { key, victim, kind, abort } => {
            let action =
                if *abort { AcquireAction::PreemptAndAbort } else { AcquireAction::Preempt };
            (acquire(action, kind), vec![*key, *victim])
        }
        Out::Release { key, kind } => {
            let (action, kind) = (ReleaseAction::Release, Some(type_of(*kind)));
            (Io::ReservationRelease { action, kind }, vec![*key])
        }
        Out::Clear { key } | Out::Register { key, .. } | Out::Move { key, .. } => {
            let (action, kind) = (ReleaseAction::Clear, None);
            (Io::ReservationRelease { action, kind }, vec![*key])
        }
    };
    let data = keys.into_iter().flat_map(u64::to_le_bytes).collect();
    (io.encode(nsid), write_of(data))
}

fn verdict(op: Option<&Op>, ending: &Ending) -> Verdict {
    let Some(op) = op else { return Verdict::Unknown };
    let report = ending.data.as_deref().filter(|_| *op == Op::Report);
    match (ending.status().code(), report) {
        (Status::SUCCESS, Some(page)) => match reservation::Report::decode(page) {
            Some(report) => Verdict::Answered(Answer::Report(as_report(&report))),
            None => Verdict::Answered(Answer::Refused),
        },
        // A comparison was let through.
        (Status::SUCCESS | Status::COMPARE_FAILURE, _) => Verdict::Answered(Answer::Good),
        (Status::RESERVATION_CONFLICT, _) => Verdict::Answered(Answer::Conflict),
        (Status::INVALID_FIELD, _) => Verdict::Answered(Answer::Refused),
        (Status::INTERRUPTED, _) => Verdict::Refused,
        _ => Verdict::Unknown,
    }
}

fn as_report(report: &reservation::Report) -> Report {
    let who = |id: [u8; 16]| (id != [0; 16]).then_some(id[15]);
    let one = |it: &reservation::Registrant| (it.key, it.holds, who(it.host_id));
    let mut registrants: Vec<_> = report.registrants.iter().map(one).collect();
    registrants.sort_unstable();
    debug_assert!(registrants.iter().all(|it| it.2.is_none_or(|who| who >= FIRST_HOST)));
    let kind = report.kind.map(|kind| KINDS[usize::from(kind.code()) - 1]);
    Report { generation: report.generation, kind, kept: report.persist, registrants }
}
