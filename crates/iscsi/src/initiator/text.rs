//! Text requests of the full feature phase: SendTargets and others (RFC 7143 section 11.10).

use super::task::Task;
use super::tx::Body;
use super::{Connection, Cx, DiscoveredTarget, Error, Event, SubmitError, Tag, Transmit, reserved};
use crate::keys::Key;
use crate::pdu::{
    Bhs, CONTINUE, FINAL, IMMEDIATE, Opcode, RESERVED_TAG, TextRequest, TextResponse, U24, Wire,
};
use crate::text::{Writer, pairs};
use alloc::vec::Vec;

/// Longest text answer that is collected, in bytes: room for thousands of targets.
const MAX_ANSWER: usize = 4 << 20;

/// The text exchange under way.
#[derive(Debug)]
pub(super) struct TextExchange {
    tag: Tag,
    send_targets: bool,
    answer: Vec<u8>,
}

impl<R: AsMut<[u8]>, W: AsRef<[u8]>> Connection<R, W> {
    /// Asks for targets and their addresses. `which` is `All` (discovery sessions only), a target's
    /// name, or empty for the target of this session. [`Event::Targets`] answers it.
    pub fn send_targets<T: Transmit<W>>(
        &mut self,
        which: &str,
        tx: &mut T,
    ) -> Result<Tag, SubmitError> {
        self.begin_text(&[(Key::SendTargets.name(), which)], true, tx)
    }

    /// Sends key data of the caller's. [`Event::Text`] answers it. The answer has no effect on
    /// this connection: do not renegotiate with it.
    pub fn text<T: Transmit<W>>(
        &mut self,
        list: &[(&str, &str)],
        tx: &mut T,
    ) -> Result<Tag, SubmitError> {
        self.begin_text(list, false, tx)
    }

    fn begin_text<T: Transmit<W>>(
        &mut self,
        list: &[(&str, &str)],
        send_targets: bool,
        tx: &mut T,
    ) -> Result<Tag, SubmitError> {
        self.check_ready()?;
        if self.text.is_some() {
            return Err(SubmitError::TextBusy);
        }
        let mut writer = Writer::new();
        for (key, value) in list {
            writer.pair(key, value);
        }
        if writer.as_bytes().len() > self.target_segment() {
            return Err(SubmitError::TooLong);
        }
        self.check_credit(1)?;
        let tag = self.tasks.insert(Task::Text);
        self.text = Some(TextExchange { tag, send_targets, answer: Vec::new() });
        self.send_text(tag, RESERVED_TAG, 0, writer.as_bytes(), tx);
        Ok(tag)
    }

    fn send_text<T: Transmit<W>>(&self, tag: Tag, ttt: u32, lun: u64, text: &[u8], tx: &mut T) {
        let pdu = TextRequest {
            opcode: Opcode::TextRequest.code() | IMMEDIATE,
            flags: FINAL,
            data_len: U24::new(text.len() as u32),
            lun: lun.into(),
            itt: tag.itt(),
            ttt: ttt.into(),
            cmd_sn: self.sequence.cmd_sn().into(),
            exp_stat_sn: self.sequence.exp_stat_sn().into(),
            ..Default::default()
        };
        self.framing.pdu(pdu.as_bhs(), &[], Body::Bytes(text), tx);
    }

    pub(super) fn handle_text_response<T: Transmit<W>>(
        &mut self,
        bhs: &Bhs,
        cx: &mut Cx<'_, R, W, T>,
    ) -> Result<(), Error> {
        let pdu = TextResponse::from_bhs(bhs);
        self.sequence.take_status(bhs)?;
        let itt = pdu.itt.get();
        let exchange = match &mut self.text {
            Some(exchange) if exchange.tag.number() == itt => exchange,
            _ => return Err(Error::NoSuchTask(itt)),
        };
        if exchange.answer.len() + self.rx.collected.len() > MAX_ANSWER {
            return Err(Error::TextTooLong);
        }
        exchange.answer.extend_from_slice(&self.rx.collected);
        let tag = exchange.tag;
        if pdu.flags & (FINAL | CONTINUE) != FINAL {
            // More comes when it is asked for with the target's tag.
            if reserved(pdu.ttt.get()) {
                return Err(Error::Unexpected(pdu.opcode));
            }
            if self.is_ready() {
                self.send_text(tag, pdu.ttt.get(), pdu.lun.get(), &[], cx.tx);
            }
            return Ok(());
        }
        let Some(exchange) = self.text.take() else { return Ok(()) };
        self.tasks.remove(tag);
        cx.events.push(match exchange.send_targets {
            true => Event::Targets { tag, targets: targets(&exchange.answer)? },
            false => Event::Text { tag, text: exchange.answer },
        });
        Ok(())
    }

    /// Ends the exchange that the target rejected, with an empty answer.
    pub(super) fn abandon_text(&mut self, tag: Tag, events: &mut Vec<Event<R, W>>) {
        if let Some(exchange) = self.text.take_if(|exchange| exchange.tag == tag) {
            self.tasks.remove(tag);
            events.push(match exchange.send_targets {
                true => Event::Targets { tag, targets: Vec::new() },
                false => Event::Text { tag, text: Vec::new() },
            });
        }
    }
}

/// The targets of a SendTargets answer: each TargetName is followed by its addresses.
fn targets(answer: &[u8]) -> Result<Vec<DiscoveredTarget>, Error> {
    let mut targets: Vec<DiscoveredTarget> = Vec::new();
    for pair in pairs(answer) {
        let (key, value) = pair?;
        match (Key::from_name(key), targets.last_mut()) {
            (Some(Key::TargetName), _) => {
                targets.push(DiscoveredTarget { name: value.into(), addresses: Vec::new() });
            }
            (Some(Key::TargetAddress), Some(target)) => target.addresses.push(value.into()),
            _ => {}
        }
    }
    Ok(targets)
}
