//! The initiator's offers and the check of the target's answers (RFC 7143 sections 6.2 and 13).

use super::chap::Exchange;
use super::{Error, LoginInfo, Negotiated, Options};
use crate::Through;
use crate::keys::{Key, MAX_LENGTH, MIN_LENGTH, Rule, parse_bool, parse_number, yes_no};
use crate::text::{IRRELEVANT, NOT_UNDERSTOOD, REJECT, Writer};
use alloc::string::String;
use alloc::vec::Vec;

/// The negotiation of one login.
#[derive(Debug)]
pub(super) struct Negotiation {
    negotiated: Negotiated,
    offered: Vec<Key>,
    answered: Vec<Key>,
    authentication: Exchange,
    /// Answers to what the target offers on its own account.
    reply: Writer,
    pub portal_group_tag: Option<u16>,
    pub target_alias: Option<String>,
    pub target_address: Option<String>,
    answers: Vec<(String, String)>,
}

impl Negotiation {
    pub fn new(options: &Options) -> Self {
        Self {
            negotiated: Negotiated::fallback(options),
            offered: Vec::new(),
            answered: Vec::new(),
            authentication: Exchange::default(),
            reply: Writer::new(),
            portal_group_tag: None,
            target_alias: None,
            target_address: None,
            answers: Vec::new(),
        }
    }

    /// Who calls, and for whom: the keys of the first request.
    pub fn identity(&mut self, options: &Options) -> Writer {
        let mut text = Writer::new();
        text.pair(Key::InitiatorName.name(), &options.initiator_name);
        if let Some(alias) = &options.initiator_alias {
            text.pair(Key::InitiatorAlias.name(), alias);
        }
        match &options.target_name {
            Some(name) => {
                text.pair(Key::SessionType.name(), "Normal");
                text.pair(Key::TargetName.name(), name);
            }
            None => text.pair(Key::SessionType.name(), "Discovery"),
        }
        if let Some(through) = &options.through {
            text.pair(Through::KEY, through);
        }
        if !options.skip_security {
            self.offered.push(Key::AuthMethod);
            text.pair(Key::AuthMethod.name(), method(options));
        }
        text
    }

    /// Appends the operational keys.
    pub fn offer(&mut self, options: &Options, text: &mut Writer) {
        let mut add = |key: Key, value: &dyn core::fmt::Display| {
            // MaxRecvDataSegmentLength is declared by each side: the target's is not an answer.
            if key != Key::MaxRecvDataSegmentLength {
                self.offered.push(key);
            }
            text.pair(key.name(), value);
        };
        match options.rdma_session() {
            Some(offer) => {
                add(Key::RDMAExtensions, &"Yes");
                add(Key::InitiatorRecvDataSegmentLength, &options.data_segment());
                add(Key::TargetRecvDataSegmentLength, &offer.target_recv_data_segment_length);
                add(Key::MaxOutstandingUnexpectedPDUs, &offer.max_unexpected);
                add(Key::TaggedBufferForSolicitedDataOnly, &"Yes");
            }
            None => {
                if options.rdma.is_none() {
                    add(Key::HeaderDigest, &options.header_digest.value());
                    add(Key::DataDigest, &options.data_digest.value());
                }
                add(Key::MaxRecvDataSegmentLength, &options.data_segment());
            }
        }
        add(Key::DefaultTime2Wait, &options.time2wait);
        add(Key::DefaultTime2Retain, &options.time2retain);
        add(Key::ErrorRecoveryLevel, &0);
        if options.target_name.is_some() {
            add(Key::MaxConnections, &1);
            add(Key::InitialR2T, &yes_no(options.initial_r2t));
            add(Key::ImmediateData, &yes_no(options.immediate_data));
            add(Key::MaxBurstLength, &options.max_burst_length);
            add(Key::FirstBurstLength, &options.first_burst_length);
            add(Key::MaxOutstandingR2T, &options.max_outstanding_r2t);
            add(Key::DataPDUInOrder, &"Yes");
            add(Key::DataSequenceInOrder, &"Yes");
        }
        for (key, value) in &options.extra_keys {
            text.pair(key, value);
        }
    }

    /// Takes one pair of the target's.
    pub fn take(&mut self, options: &Options, name: &str, value: &str) -> Result<(), Error> {
        self.answers.push((name.into(), value.into()));
        let extra = options.extra_keys.iter().any(|(key, _)| key == name);
        let Some(key) = Key::on(name, options.rdma.is_some()) else {
            if !extra && value != NOT_UNDERSTOOD {
                self.reply.pair(name, NOT_UNDERSTOOD);
            }
            return Ok(());
        };
        if key != Key::TargetAddress {
            if self.answered.contains(&key) {
                return Err(Error::Answer(key));
            }
            self.answered.push(key);
        }
        if key.is_rdma() && key != Key::RDMAExtensions && value == NOT_UNDERSTOOD {
            // The target does without this one, as Linux does with most of them.
            return Ok(());
        }
        match key.rule() {
            Rule::DeclareNumber(low, high) => self.take_number(key, value, low, high),
            Rule::DeclareText => self.take_text(key, value),
            Rule::Authentication if options.chap.is_some() => {
                self.authentication.take(key, value);
                Ok(())
            }
            Rule::Query | Rule::Authentication => Err(Error::Answer(key)),
            // Only initiators declare those.
            Rule::DeclareBoolean => Ok(()),
            _ if self.offered.contains(&key) => self.take_answer(options, key, value),
            _ if extra => Ok(()),
            rule => self.answer_offer(key, rule, value),
        }
    }

    fn take_number(&mut self, key: Key, value: &str, low: u32, high: u32) -> Result<(), Error> {
        let number = number(key, value, low, high)?;
        match key {
            Key::MaxRecvDataSegmentLength => {
                self.negotiated.target_max_recv_data_segment_length = number;
            }
            Key::MaxOutstandingUnexpectedPDUs => self.negotiated.target_max_unexpected = number,
            Key::TargetPortalGroupTag => self.portal_group_tag = u16::try_from(number).ok(),
            _ => {}
        }
        Ok(())
    }

    fn take_text(&mut self, key: Key, value: &str) -> Result<(), Error> {
        match key {
            Key::TargetAlias => self.target_alias = Some(value.into()),
            Key::TargetAddress => self.target_address = Some(value.into()),
            // Some targets echo the name. The rest is the initiator's to declare.
            Key::TargetName => {}
            _ => return Err(Error::Answer(key)),
        }
        Ok(())
    }

    /// Takes the answer to an offer: it must be what the result function can give.
    fn take_answer(&mut self, options: &Options, key: Key, value: &str) -> Result<(), Error> {
        if key == Key::AuthMethod {
            if value != method(options) {
                return Err(Error::Authentication(value.into()));
            }
            self.authentication.agree();
            return Ok(());
        }
        if [IRRELEVANT, REJECT, NOT_UNDERSTOOD].contains(&value) {
            // The default holds; `finish` refuses it where it will not do.
            return Ok(());
        }
        let agreed = &mut self.negotiated;
        let two_bytes = |number: u32| number.min(65535) as u16;
        match key {
            Key::HeaderDigest => agreed.header_digest = digest(key, value)?,
            Key::DataDigest => agreed.data_digest = digest(key, value)?,
            Key::InitialR2T => agreed.initial_r2t = either(key, value, options.initial_r2t)?,
            Key::ImmediateData => {
                agreed.immediate_data = both(key, value, options.immediate_data)?;
            }
            Key::DataPDUInOrder | Key::DataSequenceInOrder => {
                either(key, value, true)?;
            }
            Key::RDMAExtensions => agreed.rdma = both(key, value, true)?,
            Key::InitiatorRecvDataSegmentLength => {
                agreed.max_recv_data_segment_length = length(key, value, options.data_segment())?;
            }
            Key::TargetRecvDataSegmentLength => {
                let offer = options.rdma.map_or(0, |rdma| rdma.target_recv_data_segment_length);
                agreed.target_max_recv_data_segment_length = length(key, value, offer)?;
            }
            Key::MaxBurstLength => {
                agreed.max_burst_length = length(key, value, options.max_burst_length)?;
            }
            Key::FirstBurstLength => {
                agreed.first_burst_length = length(key, value, options.first_burst_length)?;
            }
            Key::MaxOutstandingR2T => {
                let highest = u32::from(options.max_outstanding_r2t);
                agreed.max_outstanding_r2t = two_bytes(number(key, value, 1, highest)?);
            }
            Key::DefaultTime2Wait => {
                let lowest = u32::from(options.time2wait);
                agreed.time2wait = two_bytes(number(key, value, lowest, 3600)?);
            }
            Key::DefaultTime2Retain => {
                let highest = u32::from(options.time2retain);
                agreed.time2retain = two_bytes(number(key, value, 0, highest)?);
            }
            Key::MaxConnections => {
                number(key, value, 1, 1)?;
            }
            Key::ErrorRecoveryLevel => {
                number(key, value, 0, 0)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Answers an offer that the target makes on its own account.
    fn answer_offer(&mut self, key: Key, rule: Rule, value: &str) -> Result<(), Error> {
        let name = key.name();
        match rule {
            Rule::Obsolete(answer) => self.reply.pair(name, answer),
            // What was left out of the offer, this side does not want to change.
            Rule::List(_) => {
                let answer =
                    crate::keys::choose(value, |value| ["None", "RFC3720"].contains(&value));
                self.reply.pair(name, answer.unwrap_or(REJECT));
            }
            Rule::Minimum(low, high) => {
                number(key, value, low, high)?;
                self.reply.pair(name, low);
            }
            Rule::Maximum(..) | Rule::Or | Rule::And => self.reply.pair(name, value),
            Rule::DeclareNumber(..)
            | Rule::DeclareText
            | Rule::DeclareBoolean
            | Rule::Query
            | Rule::Authentication => {}
        }
        Ok(())
    }

    /// Goes a step further in the authentication, when a text of the target's is complete.
    pub fn authenticate(&mut self, options: &Options) -> Result<(), Error> {
        match &options.chap {
            Some(chap) => Ok(self.authentication.step(chap, &mut self.reply)?),
            None => Ok(()),
        }
    }

    /// True when this side has nothing to add to the security stage.
    pub fn may_leave_security(&self, options: &Options) -> bool {
        options.chap.is_none() || self.authentication.may_leave()
    }

    /// True when both sides know what they want to know of each other.
    pub fn is_authenticated(&self, options: &Options) -> bool {
        options.chap.is_none() || self.authentication.is_done()
    }

    /// The answers that are due to the target, once.
    pub fn take_reply(&mut self) -> Writer {
        core::mem::take(&mut self.reply)
    }

    /// The result, when the login is over.
    pub fn finish(&mut self, options: &Options, tsih: u16) -> Result<LoginInfo, Error> {
        let agreed = &mut self.negotiated;
        if options.rdma_session().is_some() && !agreed.rdma {
            return Err(Error::Answer(Key::RDMAExtensions));
        }
        if options.rdma.is_none() && !options.header_digest.allows(agreed.header_digest) {
            return Err(Error::Answer(Key::HeaderDigest));
        }
        if options.rdma.is_none() && !options.data_digest.allows(agreed.data_digest) {
            return Err(Error::Answer(Key::DataDigest));
        }
        agreed.first_burst_length = agreed.first_burst_length.min(agreed.max_burst_length);
        Ok(LoginInfo {
            tsih,
            portal_group_tag: self.portal_group_tag,
            target_alias: self.target_alias.take(),
            negotiated: agreed.clone(),
            answers: core::mem::take(&mut self.answers),
        })
    }
}

/// The only method that is offered. With CHAP at hand, None would be an invitation to whoever
/// poses as the target.
fn method(options: &Options) -> &'static str {
    if options.chap.is_some() { "CHAP" } else { "None" }
}

fn number(key: Key, value: &str, low: u32, high: u32) -> Result<u32, Error> {
    parse_number(value).filter(|number| (low..=high).contains(number)).ok_or(Error::Answer(key))
}

/// A length that may only come out smaller than it was offered.
fn length(key: Key, value: &str, offer: u32) -> Result<u32, Error> {
    number(key, value, MIN_LENGTH, offer.min(MAX_LENGTH))
}

/// The result of OR with what this side offered.
fn either(key: Key, value: &str, offer: bool) -> Result<bool, Error> {
    parse_bool(value).filter(|result| *result || !offer).ok_or(Error::Answer(key))
}

/// The result of AND with what this side offered.
fn both(key: Key, value: &str, offer: bool) -> Result<bool, Error> {
    parse_bool(value).filter(|result| !*result || offer).ok_or(Error::Answer(key))
}

fn digest(key: Key, value: &str) -> Result<bool, Error> {
    match value {
        "CRC32C" => Ok(true),
        "None" => Ok(false),
        _ => Err(Error::Answer(key)),
    }
}
