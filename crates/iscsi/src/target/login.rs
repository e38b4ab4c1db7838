//! The target's side of the login phase (RFC 7143 sections 6.3 and 11.12).

use super::authentication::{Authentication, AuthenticationError, ChapKeys};
use super::options::{DigestPolicy, Options};
use super::site::{LoginIdentity, LoginRefusal, SessionType, Site};
use crate::Through;
use crate::keys::{Key, Rule, valid_name};
use crate::pdu::{CONTINUE, LoginRequest, LoginStatus, Stage, TRANSIT};
use crate::target::negotiation::{self, Negotiated};
use crate::text::{Collector, NOT_UNDERSTOOD, REJECT, Writer, pairs};
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// Longest data segment of login PDUs in both directions, in bytes: declared lengths count from the
/// full feature phase on.
pub(super) const MAX_LOGIN_SEGMENT: usize = 8192;

/// What to do after a Login Request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Answer with these flags and this key data.
    Answer { flags: u8, text: Vec<u8> },
    /// The same, and it would be the last answer: ask for admission first.
    Finished { flags: u8, text: Vec<u8> },
}

/// A login that is under way.
#[derive(Debug, Default)]
pub(super) struct Login {
    stage: Option<Stage>,
    itt: u32,
    collector: Collector,
    /// Key data that is not sent yet, and how much of it is.
    out: Vec<u8>,
    out_at: usize,
    /// One bit per key that was negotiated.
    seen: u64,
    identity: LoginIdentity,
    /// The names were checked and the target was found.
    identified: bool,
    declared: bool,
    authentication: Authentication,
    /// TargetAlias, until it was told.
    alias: Option<String>,
}

impl Login {
    /// Who logs in.
    pub(super) fn identity(&self) -> &LoginIdentity {
        &self.identity
    }

    /// Why the initiator could not be authenticated.
    pub(super) fn authentication_error(&self) -> Option<AuthenticationError> {
        self.authentication.failure
    }

    /// Takes a Login Request.
    pub(super) fn step(
        &mut self,
        pdu: &LoginRequest,
        data: &[u8],
        options: &Options,
        negotiated: &mut Negotiated,
        site: &impl Site,
    ) -> Result<Step, LoginRefusal> {
        let stage = self.check(pdu)?;
        if self.out_at < self.out.len() {
            // The initiator asks for the rest of an answer.
            if !data.is_empty() {
                return Err(LoginStatus::InitiatorError.into());
            }
            return self.answer(pdu.flags, stage, options, negotiated);
        }
        let text = self.collector.push(data, pdu.flags);
        let Some(text) = text.map_err(|_| LoginStatus::InitiatorError)? else {
            return Ok(Step::Answer { flags: (stage.code() << 2), text: Vec::new() });
        };
        let mut writer = Writer::new();
        self.identify(&text)?;
        if !self.identified {
            self.find_target(stage, site, &mut writer)?;
        }
        let keys = self.negotiate(&text, stage, options, negotiated, &mut writer)?;
        self.authenticate(pdu.flags, &keys, site, &mut writer)?;
        if stage == Stage::Operational && !self.declared {
            self.declared = true;
            if negotiated.rdma.is_none() {
                negotiated.target_max_recv = options.max_recv_data_segment_length;
            }
            // With RDMAExtensions there is TargetRecvDataSegmentLength instead. libiscsi speaks
            // iSER without them.
            if negotiated.rdma.is_none_or(|terms| terms.extensions != Some(true)) {
                writer.pair(Key::MaxRecvDataSegmentLength.name(), negotiated.target_max_recv);
            }
        }
        self.out = writer.into_bytes();
        self.out_at = 0;
        self.answer(pdu.flags, stage, options, negotiated)
    }

    /// Checks what must be right in every Login Request; gives the current stage.
    fn check(&mut self, pdu: &LoginRequest) -> Result<Stage, LoginStatus> {
        if pdu.version_min > 0 {
            return Err(LoginStatus::UnsupportedVersion);
        }
        let stage = Stage::current(pdu.flags).filter(|stage| *stage != Stage::FullFeature);
        let stage = stage.ok_or(LoginStatus::InitiatorError)?;
        let id = &mut self.identity;
        match self.stage {
            None => {
                (id.isid, id.tsih, id.cid) = (pdu.isid, pdu.tsih.get(), pdu.cid.get());
                self.itt = pdu.itt.get();
                self.stage = Some(stage);
            }
            Some(current) => {
                let same = (id.isid, id.tsih, id.cid, self.itt)
                    == (pdu.isid, pdu.tsih.get(), pdu.cid.get(), pdu.itt.get());
                if !same || current != stage {
                    return Err(LoginStatus::InitiatorError);
                }
            }
        }
        if pdu.flags & TRANSIT != 0 {
            let next = Stage::next(pdu.flags).filter(|next| next.code() > stage.code());
            if next.is_none() || pdu.flags & CONTINUE != 0 {
                return Err(LoginStatus::InitiatorError);
            }
        }
        Ok(stage)
    }

    /// Reads who logs in, from wherever in the text it stands.
    fn identify(&mut self, text: &[u8]) -> Result<(), LoginStatus> {
        let id = &mut self.identity;
        for pair in pairs(text) {
            let (key, value) = pair.map_err(|_| LoginStatus::InitiatorError)?;
            if key == Through::KEY {
                let through = Through::parse(value).ok_or(LoginStatus::InitiatorError)?;
                // What is to be proved goes by it.
                if self.identified && id.through != Some(through) {
                    return Err(LoginStatus::InitiatorError);
                }
                id.through = Some(through);
                continue;
            }
            let field = match Key::from_name(key) {
                Some(Key::InitiatorAlias) => {
                    id.initiator_alias = Some(value.to_string());
                    continue;
                }
                Some(Key::SessionType) => {
                    let kind = match value {
                        "Discovery" => SessionType::Discovery,
                        "Normal" => SessionType::Normal,
                        _ => return Err(LoginStatus::SessionTypeNotSupported),
                    };
                    if self.identified && kind != id.session_type {
                        return Err(LoginStatus::InitiatorError);
                    }
                    id.session_type = kind;
                    continue;
                }
                Some(Key::InitiatorName) => (id.initiator_name.clone(), valid_name(value)),
                Some(Key::TargetName) => (id.target_name.clone().unwrap_or_default(), true),
                _ => continue,
            };
            let (before, valid) = field;
            // A name may be said again, but not changed.
            if !valid || (!before.is_empty() && before != value) {
                return Err(LoginStatus::InitiatorError);
            }
            match Key::from_name(key) {
                Some(Key::InitiatorName) => id.initiator_name = value.to_string(),
                _ => id.target_name = Some(value.to_string()),
            }
        }
        Ok(())
    }

    /// Looks the target up, once the first text is complete, and what is to be proved there.
    fn find_target(
        &mut self,
        stage: Stage,
        site: &impl Site,
        out: &mut Writer,
    ) -> Result<(), LoginRefusal> {
        let id = &mut self.identity;
        if id.initiator_name.is_empty() {
            return Err(LoginStatus::MissingParameter.into());
        }
        self.identified = true;
        if id.session_type == SessionType::Normal {
            match &id.target_name {
                None => return Err(LoginStatus::MissingParameter.into()),
                Some(name) if !valid_name(name) => return Err(LoginStatus::NotFound.into()),
                Some(_) => {}
            }
            let info = site.find_target(id)?;
            out.pair(Key::TargetPortalGroupTag.name(), info.portal_group_tag);
            self.alias = info.alias;
        }
        self.authentication.need(site.credentials(id)?);
        if stage != Stage::Security && !self.authentication.is_done() {
            return Err(self.authentication.fail(AuthenticationError::Skipped).into());
        }
        Ok(())
    }

    /// Goes a step further in the authentication.
    fn authenticate(
        &mut self,
        flags: u8,
        keys: &ChapKeys<'_>,
        site: &impl Site,
        out: &mut Writer,
    ) -> Result<(), LoginRefusal> {
        if self.authentication.awaits_response() {
            // Much may have happened since the challenge: the client may have failed on other
            // connections, the secret may be another one.
            self.authentication.renew(site.credentials(&self.identity)?);
        }
        self.authentication.step(keys, flags & TRANSIT != 0, site, out)?;
        if self.authentication.is_done() {
            // Only who may come in gets to know what is here.
            if let Some(alias) = self.alias.take() {
                out.pair(Key::TargetAlias.name(), alias);
            }
        }
        Ok(())
    }

    /// Answers the keys of a text, but for those of the authentication.
    fn negotiate<'a>(
        &mut self,
        text: &'a [u8],
        stage: Stage,
        options: &Options,
        negotiated: &mut Negotiated,
        out: &mut Writer,
    ) -> Result<ChapKeys<'a>, LoginStatus> {
        let mut chap = ChapKeys::default();
        let discovery = self.identity.session_type == SessionType::Discovery;
        for pair in pairs(text) {
            let (name, value) = pair.map_err(|_| LoginStatus::InitiatorError)?;
            if name == Through::KEY {
                continue;
            }
            let Some(key) = Key::on(name, negotiated.rdma.is_some()) else {
                if value != NOT_UNDERSTOOD {
                    out.pair(name, NOT_UNDERSTOOD);
                }
                continue;
            };
            if matches!(
                key,
                Key::InitiatorName | Key::TargetName | Key::InitiatorAlias | Key::SessionType
            ) {
                continue;
            }
            let authentication = key.rule() == Rule::Authentication || key == Key::AuthMethod;
            if stage == Stage::Security && !authentication {
                // It may be offered again where it belongs.
                out.pair(name, REJECT);
                continue;
            }
            let bit = 1u64 << key as u32;
            if self.seen & bit != 0 {
                // A key is negotiated once in a login.
                return Err(LoginStatus::InitiatorError);
            }
            self.seen |= bit;
            if authentication && stage != Stage::Security {
                out.pair(name, REJECT);
            } else if key == Key::AuthMethod {
                out.pair(name, self.authentication.choose(value)?);
            } else if authentication {
                chap.take(key, value);
            } else if let Some(answer) =
                negotiation::answer(negotiated, options, discovery, key, value)
            {
                out.pair(name, answer);
            }
        }
        Ok(chap)
    }

    /// Sends the next part of the answer; with the last part the stage may change.
    fn answer(
        &mut self,
        request: u8,
        stage: Stage,
        options: &Options,
        negotiated: &mut Negotiated,
    ) -> Result<Step, LoginRefusal> {
        let flags = stage.code() << 2;
        let rest = self.out.len() - self.out_at;
        let len = rest.min(MAX_LOGIN_SEGMENT);
        let text = self.out[self.out_at..self.out_at + len].to_vec();
        self.out_at += len;
        if len < rest {
            return Ok(Step::Answer { flags: flags | CONTINUE, text });
        }
        let next = Stage::next(request).filter(|_| request & TRANSIT != 0);
        // Nobody gets past the security stage before its end, whatever it asks for.
        let next = next.filter(|_| self.authentication.is_done());
        let Some(next) = next else { return Ok(Step::Answer { flags, text }) };
        self.stage = Some(next);
        let flags = flags | TRANSIT | next.code();
        if next != Stage::FullFeature {
            return Ok(Step::Answer { flags, text });
        }
        let missing = |policy, on: bool| policy == DigestPolicy::Require && !on;
        if missing(options.header_digest, negotiated.header_digest)
            || missing(options.data_digest, negotiated.data_digest)
        {
            return Err(LoginStatus::InitiatorError.into());
        }
        if negotiated.rdma.is_some_and(|terms| terms.extensions == Some(false)) {
            // There is nothing to fall back to: the connection is RDMA already.
            return Err(LoginStatus::InitiatorError.into());
        }
        if self.identity.session_type == SessionType::Discovery {
            self.identity.target_name = None;
        }
        self.identity.proof = self.authentication.proof.take();
        negotiated.first_burst_length =
            negotiated.first_burst_length.min(negotiated.max_burst_length);
        Ok(Step::Finished { flags, text })
    }
}
