//! Sessions are ended, and those that a change concerns are told of.

use anyhow::Result;
use lunet_api::{Code, Done, SessionChange, SessionFate};
use lunet_front_iscsi::SessionInfo;

use super::{Manager, counted, done, effects};
use crate::trouble::refuse;

impl Manager {
    /// Ends the session with a TSIH, or those of an initiator; with a host's NQN, its controllers.
    pub(super) fn end_sessions(
        &self,
        session: Option<u16>,
        initiator: Option<&str>,
    ) -> Result<Done> {
        let wanted = |info: &SessionInfo| {
            session.is_none_or(|tsih| info.tsih == tsih)
                && initiator.is_none_or(|name| info.initiator.eq_ignore_ascii_case(name))
        };
        let what = match (session, initiator) {
            (Some(tsih), _) => format!("session {tsih}"),
            (None, Some(name)) => format!("session of {name}"),
            (None, None) => {
                return refuse(
                    Code::Invalid,
                    "say which session: its number, or the initiator's name",
                    "",
                );
            }
        };
        let all = self.known_sessions(false)?;
        let ended: Vec<&SessionInfo> = all.iter().filter(|info| wanted(info)).collect();
        let controllers = match (session, initiator) {
            (None, Some(host)) if self.foretelling() => self.controllers_of(host),
            (None, Some(host)) => self.end_controllers(host)?,
            _ => Vec::new(),
        };
        if ended.is_empty() && controllers.is_empty() {
            return refuse(
                Code::NotFound,
                format!("there is no {what}"),
                "`lunet sessions` shows those that there are",
            );
        }
        let change = |info: &&SessionInfo| SessionChange {
            session: info.tsih,
            initiator: info.initiator.clone(),
            peer: info.peer.clone(),
            target: info.target.clone(),
            fate: SessionFate::Ends,
            lun: None,
            volume: None,
            why: "on request".to_owned(),
        };
        self.stop_at_sessions(ended.iter().map(change).chain(controllers.clone()).collect())?;
        let handles: Vec<u16> = ended.iter().map(|info| info.tsih).collect();
        self.handle.end_sessions(&handles).map_err(super::not_done)?;
        if ended.is_empty() {
            let text = format!("{} ended", counted(controllers.len(), "controller"));
            let mut done = concerning(done(text), controllers);
            done.notes.push("a host that may connect connects again".to_owned());
            return Ok(done);
        }
        let count = counted(ended.len(), "session");
        let text = format!("{count} lost the LUNs and must log out within 3 s");
        let ended = ended.iter().map(change).chain(controllers).collect();
        let mut done = concerning(done(text), ended);
        done.notes.push(
            "an initiator that is let in logs in again: `lunet target deny` shuts it out"
                .to_owned(),
        );
        Ok(done)
    }
}

/// The same answer, with the sessions that are concerned.
pub(super) fn concerning(mut done: Done, sessions: Vec<SessionChange>) -> Done {
    done.notes.extend(effects::notes(&sessions));
    done.sessions = sessions;
    done
}
