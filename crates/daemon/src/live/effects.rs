//! What a change of the configuration does to the sessions that are logged in: the rules of the
//! shards, foretold. A change is weighed before it is carried out, so that nobody loses a disk in
//! use without a word, and everybody who loses something is named.

use anyhow::{Context, Result};
use lunet_api::{Code, SessionChange, SessionFate};
use lunet_front_iscsi::{Entrance, Fate, Layout, Objection, SessionInfo, TargetEntry, Visitor};
use lunet_server::front::Front;
use lunet_server::server::Handle;

use super::{Manager, Served, counted};
use crate::plan::Plan;
use crate::serve;
use crate::trouble::refuse;
use lunet_config::{Config, Target};

/// How many sessions a sentence names.
const NAMED: usize = 3;

/// How many sessions have a note of their own.
const NOTES: usize = 10;

/// What may happen to sessions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Consent {
    /// They may lose a target, a LUN or a volume that they use.
    pub force: bool,
    /// They stay although they could not log in any more.
    pub keep_sessions: bool,
}

/// A plan whose effects on sessions are known and agreed to. There is no other way to carry one out.
pub struct Weighed {
    /// What is to be served.
    pub plan: Plan,
    /// Who is concerned.
    pub sessions: Vec<SessionChange>,
    pub(super) keep_sessions: bool,
}

impl Weighed {
    /// A target as it would be.
    pub fn target(&self, name: &str) -> Result<&Target> {
        let mut targets = self.plan.config.targets.iter();
        targets.find(|target| target.name == name).context("the target is gone")
    }
}

/// What happens to one session, and whether something that it uses is taken away for everybody:
/// that is what needs consent. Rules that are narrowed are meant to shut somebody out.
pub(super) struct Effect {
    pub(super) change: SessionChange,
    pub(super) removal: Option<Removal>,
}

/// What is taken away, in words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Removal {
    /// It would not be there any more.
    Gone(String),
    /// It would be for this machine alone, as nothing says any more who may use it.
    Closed(String),
}

impl Manager {
    /// Foretells what a plan does to sessions.
    ///
    /// # Errors
    /// It takes away what sessions use, without consent; or nobody knows, because an event loop does
    /// not answer. `with` is how consent is given.
    pub(super) fn weigh(
        &self,
        now: &Served,
        plan: Plan,
        consent: Consent,
        with: &str,
    ) -> Result<Weighed> {
        let (sessions, refusal) = self.foretell(now, &plan, consent, with)?;
        match refusal {
            Some(refusal) if self.foretelling() => Err(Self::stopped_for(plan, sessions, refusal)),
            Some(refusal) => Err(refusal.into()),
            None => Ok(Weighed { plan, sessions, keep_sessions: consent.keep_sessions }),
        }
    }

    /// What a plan does to sessions, and why it is refused if it is.
    pub(super) fn foretell(
        &self,
        now: &Served,
        plan: &Plan,
        consent: Consent,
        with: &str,
    ) -> Result<(Vec<SessionChange>, Option<lunet_api::Error>)> {
        let sessions = self.known_sessions(consent.force)?;
        let view = |config| View::new(config, self.handle.slots_of(&serve::listen(config)));
        let (before, after) = (view(&now.plan.config), view(&plan.config));
        let mut effects = effects(&sessions, &before, &after, consent.keep_sessions);
        let controllers = self.known_controllers(consent.force)?;
        effects.extend(self.effects_on(
            &controllers,
            (&now.plan.config, &plan.config),
            consent.keep_sessions,
        ));
        let refusal = if consent.force { None } else { refusal(&effects, with) };
        Ok((effects.into_iter().map(|effect| effect.change).collect(), refusal))
    }

    /// The sessions; all of them, unless it does not matter if some are missing.
    pub(super) fn known_sessions(&self, some_will_do: bool) -> Result<Vec<SessionInfo>> {
        known(&self.handle, some_will_do)
    }
}

/// The sessions of a server; all of them, unless it does not matter if some are missing.
pub(super) fn known<F: Front>(handle: &Handle<F>, some_will_do: bool) -> Result<Vec<F::Session>> {
    match handle.all_sessions() {
        Err(_) if some_will_do => Ok(handle.sessions()),
        Err(error) => refuse(
            Code::NotAnswered,
            format!("nobody knows who is logged in: {error}, or use --force"),
            "",
        ),
        Ok(all) => Ok(all),
    }
}

/// The sentences for who is concerned, in a bound of lines.
pub fn notes(sessions: &[SessionChange]) -> Vec<String> {
    let mut notes: Vec<String> = sessions.iter().take(NOTES).map(ToString::to_string).collect();
    if sessions.len() > NOTES {
        notes.push(format!(
            "{} more are concerned: --json names all of them",
            counted(sessions.len() - NOTES, "session")
        ));
    }
    notes
}

/// Some of the sessions by name: `iqn.a from 192.0.2.1:5000, iqn.b from ... and 3 more`.
pub fn named<'a>(sessions: impl ExactSizeIterator<Item = (&'a str, &'a str)>) -> String {
    let more = sessions.len().saturating_sub(NAMED);
    let some: Vec<String> =
        sessions.take(NAMED).map(|(name, peer)| format!("{name} from {peer}")).collect();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", some.join(", "))
}

/// Why removals that hurt sessions are refused.
fn refusal(effects: &[Effect], with: &str) -> Option<lunet_api::Error> {
    let hurt: Vec<&Effect> = effects.iter().filter(|effect| effect.removal.is_some()).collect();
    let mut things: Vec<&Removal> = hurt.iter().filter_map(|e| e.removal.as_ref()).collect();
    things.sort_unstable();
    things.dedup();
    let mut who: Vec<&SessionChange> = hurt.iter().map(|effect| &effect.change).collect();
    who.dedup_by_key(|change| change.session);
    let (first, what, instead) = match things.first()? {
        Removal::Gone(thing) => (thing, "gone", "log out there first".to_owned()),
        Removal::Closed(target) => (
            target,
            "for this machine alone, as nothing would say any more who may use it",
            "say who first with `lunet target allow`".to_owned(),
        ),
    };
    let others = match things.len() {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    let uses = if who.len() == 1 { "uses" } else { "use" };
    let message = format!(
        "{} {uses} {first}{others}, which would be {what} ({})",
        counted(who.len(), "session"),
        named(who.iter().map(|change| (change.initiator.as_str(), change.peer.as_str()))),
    );
    Some(lunet_api::Error::new(Code::InUse, message).fix(format!("{instead}, or {with}")))
}

/// What happens to each of the sessions.
fn effects(
    sessions: &[SessionInfo],
    before: &View<'_>,
    after: &View<'_>,
    keep: bool,
) -> Vec<Effect> {
    sessions.iter().flat_map(|session| of_session(session, before, after, keep)).collect()
}

/// A configuration, in the target's terms as well.
struct View<'c> {
    config: &'c Config,
    layout: Layout,
    /// The slots whose sessions each portal has.
    slots: Vec<Vec<usize>>,
}

impl<'c> View<'c> {
    fn new(config: &'c Config, slots: Vec<Vec<usize>>) -> Self {
        Self { config, layout: serve::layout(config, Vec::new()), slots }
    }

    /// The place of the portal that a session has come by.
    fn portal(&self, session: &SessionInfo) -> Option<usize> {
        self.slots.iter().position(|slots| slots.contains(&session.portal_index))
    }

    /// The way in to a target by the portal that a session has come by.
    fn entrance<'a>(&self, session: &SessionInfo, target: &'a TargetEntry) -> Entrance<'a> {
        let reached = self.portal(session).is_some_and(|portal| target.reached_through(portal));
        Entrance::Target { access: &target.access, reached }
    }

    /// The same to the list of targets.
    fn finders(&self, session: &SessionInfo) -> Entrance<'_> {
        let reached = self.portal(session).is_some();
        Entrance::Discovery { access: &self.layout.discovery, reached }
    }

    fn target(&self, name: &str) -> Option<&TargetEntry> {
        self.layout.targets.iter().find(|target| target.name == name)
    }

    /// The volume behind a LUN.
    fn volume(&self, target: &TargetEntry, lun: u16) -> Option<&str> {
        let (_, at) = target.luns.iter().find(|(number, _)| *number == lun)?;
        Some(&self.config.volumes[*at].name)
    }
}

fn of_session(
    session: &SessionInfo,
    before: &View<'_>,
    after: &View<'_>,
    keep: bool,
) -> Vec<Effect> {
    // One that was asked to log out has nothing left to lose.
    if session.leaving {
        return Vec::new();
    }
    let Some(name) = &session.target else {
        let fate = fate(session, [before, after].map(|view| view.finders(session)), keep);
        let effect = |(fate, why): (_, Objection)| effect(session, fate, None, &why, None);
        return fate.map(effect).into_iter().collect();
    };
    let Some(was) = before.target(name) else { return Vec::new() };
    let Some(is) = after.target(name) else {
        let gone = Removal::Gone(format!("target {name}"));
        return vec![effect(session, SessionFate::Ends, None, &"the target is gone", Some(gone))];
    };
    let entrances = [before.entrance(session, was), after.entrance(session, is)];
    let mut out = Vec::new();
    match fate(session, entrances, keep) {
        Some((SessionFate::Ends, why)) => {
            let portal = before.portal(session).filter(|_| after.portal(session).is_none());
            if let Some(portal) = portal.map(|at| before.config.portals[at].address) {
                let gone = Some(Removal::Gone(format!("portal {portal}")));
                return vec![effect(session, SessionFate::Ends, None, &"the portal is gone", gone)];
            }
            let closed = why == Objection::Closed;
            let removal = closed.then(|| Removal::Closed(format!("target {name}")));
            return vec![effect(session, SessionFate::Ends, None, &why, removal)];
        }
        Some((stays, why)) => out.push(effect(session, stays, None, &why, None)),
        None => {}
    }
    out.extend(lost_luns(session, (before, was), (after, is)));
    out
}

/// What the rules say to a session: the same question as the event loops ask when they take a change over.
fn fate(
    session: &SessionInfo,
    [now, next]: [Entrance<'_>; 2],
    keep: bool,
) -> Option<(SessionFate, Objection)> {
    let visitor = Visitor {
        initiator: &session.initiator,
        origin: session.origin,
        proof: session.proof.as_ref(),
        vouched: session.through.is_some(),
    };
    match now.fate(&next, visitor, keep) {
        Fate::Stays => None,
        Fate::Kept(why) => Some((SessionFate::Stays, why)),
        Fate::Ends(why) => Some((SessionFate::Ends, why)),
    }
}

fn effect(
    session: &SessionInfo,
    fate: SessionFate,
    lun: Option<(u16, &str)>,
    why: &dyn ToString,
    removal: Option<Removal>,
) -> Effect {
    let change = SessionChange {
        session: session.tsih,
        initiator: session.initiator.clone(),
        peer: session.peer.clone(),
        target: session.target.clone(),
        fate,
        lun: lun.map(|(lun, _)| lun),
        volume: lun.map(|(_, volume)| volume.to_owned()),
        why: why.to_string(),
    };
    Effect { change, removal }
}

/// The LUNs that a session sees and would see no more.
fn lost_luns(
    session: &SessionInfo,
    (before, was): (&View<'_>, &TargetEntry),
    (after, is): (&View<'_>, &TargetEntry),
) -> Vec<Effect> {
    let who = (session.initiator.as_str(), session.origin.address);
    let mut out = Vec::new();
    for (lun, _) in was.luns.iter().filter(|(lun, _)| was.access.shows(*lun, who.0, who.1)) {
        let Some(volume) = before.volume(was, *lun) else { continue };
        let lost = |why: &str, removal| {
            effect(session, SessionFate::LosesLun, Some((*lun, volume)), &why, removal)
        };
        let thing = || Some(Removal::Gone(format!("volume {volume} as LUN {lun} of {}", was.name)));
        match after.volume(is, *lun) {
            Some(other) if other != volume => {
                out.push(lost(&format!("the LUN is volume {other}"), thing()));
            }
            None => out.push(lost("the LUN is gone", thing())),
            Some(_) if !is.access.shows(*lun, who.0, who.1) => {
                out.push(lost("the LUN is not for this initiator any more", None));
            }
            Some(_) => {}
        }
    }
    out
}

#[cfg(test)]
mod tests;
