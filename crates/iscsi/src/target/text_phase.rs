//! Text requests in the full feature phase (RFC 7143 sections 11.10 and 11.11).

use super::connection::Connection;
use super::{Cx, SendTargets, Site, Transmit};
use crate::keys::{Key, Use};
use crate::pdu::{self, Bhs, CONTINUE, FINAL, RejectReason, TextRequest, U24, U32, Wire};
use crate::target::negotiation;
use crate::text::{Collector, NOT_UNDERSTOOD, REJECT, TextError, Writer, pairs};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

/// A text exchange that is under way.
#[derive(Debug)]
pub(super) struct Exchange {
    itt: u32,
    ttt: u32,
    collector: Collector,
    /// The answer, and how much of it was sent.
    out: Vec<u8>,
    sent: usize,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// A text request.
    pub(super) fn text_request<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        bhs: &Bhs,
        data: &[u8],
        cx: &mut Cx<'_, S, T>,
    ) {
        let pdu = TextRequest::from_bhs(bhs);
        let Some(mut exchange) = self.exchange(pdu) else {
            return self.text_error(RejectReason::InvalidPduField, bhs, cx.tx);
        };
        if pdu.flags & CONTINUE != 0 && pdu.flags & FINAL != 0 {
            return self.text_error(RejectReason::ProtocolError, bhs, cx.tx);
        }
        let mut complete = true;
        if exchange.sent < exchange.out.len() {
            // The initiator asks for the rest of the answer.
            if !data.is_empty() {
                return self.text_error(RejectReason::ProtocolError, bhs, cx.tx);
            }
        } else {
            let answer = match exchange.collector.push(data, pdu.flags) {
                Ok(Some(text)) => self.answer_text(&text, cx.site),
                Ok(None) => {
                    complete = false;
                    Ok(Vec::new())
                }
                Err(error) => Err(error),
            };
            let Ok(answer) = answer else {
                return self.text_error(RejectReason::ProtocolError, bhs, cx.tx);
            };
            (exchange.out, exchange.sent) = (answer, 0);
        }
        self.send_text(exchange, complete && pdu.flags & FINAL != 0, cx.tx);
    }

    /// The exchange that a request belongs to: a new one, or the one with its tags.
    fn exchange(&mut self, pdu: &TextRequest) -> Option<Box<Exchange>> {
        let (itt, ttt) = (pdu.itt.get(), pdu.ttt.get());
        if itt == pdu::RESERVED_TAG {
            return None;
        }
        if ttt == pdu::RESERVED_TAG {
            let collector = Collector::new();
            let ttt = self.new_ttt();
            self.text = None;
            return Some(Box::new(Exchange { itt, ttt, collector, out: Vec::new(), sent: 0 }));
        }
        self.text.take().filter(|exchange| (exchange.itt, exchange.ttt) == (itt, ttt))
    }

    /// Rejects a text request; the exchange is over.
    fn text_error<T: Transmit>(&mut self, reason: RejectReason, bhs: &Bhs, tx: &mut T) {
        self.counters.protocol_errors += 1;
        self.text = None;
        self.reject(reason, bhs, tx);
    }

    /// Sends the next part of an answer; the exchange goes on unless this is the end of it.
    fn send_text<T: Transmit>(&mut self, mut exchange: Box<Exchange>, end: bool, tx: &mut T) {
        let rest = &exchange.out[exchange.sent..];
        let len = rest.len().min(self.send_limit());
        let more = len < rest.len();
        let over = end && !more;
        let flags = if more {
            CONTINUE
        } else if over {
            FINAL
        } else {
            0
        };
        let n = self.numbers(true);
        let pdu = pdu::TextResponse {
            flags,
            data_len: U24::new(len as u32),
            itt: U32::new(exchange.itt),
            ttt: U32::new(if over { pdu::RESERVED_TAG } else { exchange.ttt }),
            stat_sn: n.stat_sn,
            exp_cmd_sn: n.exp_cmd_sn,
            max_cmd_sn: n.max_cmd_sn,
            ..Default::default()
        };
        self.send(&pdu, &exchange.out[exchange.sent..exchange.sent + len], tx);
        exchange.sent += len;
        if !over {
            self.text = Some(exchange);
        }
    }

    /// Answers complete key data.
    fn answer_text(&mut self, text: &[u8], site: &impl Site) -> Result<Vec<u8>, TextError> {
        let mut out = Writer::new();
        let mut listed = false;
        for pair in pairs(text) {
            let (name, value) = pair?;
            match Key::on(name, self.negotiated.rdma.is_some()) {
                None if value == NOT_UNDERSTOOD => {}
                None => out.pair(name, NOT_UNDERSTOOD),
                // No key comes twice (RFC 7143 section 6.2); here the answer would have no bound.
                Some(Key::SendTargets) if listed => return Err(TextError::Twice),
                Some(Key::SendTargets) => {
                    listed = true;
                    self.send_targets(value, site, &mut out);
                }
                Some(Key::InitiatorAlias) => {}
                Some(key) if key.usage() == Use::All => {
                    let (n, options) = (&mut self.negotiated, &self.options);
                    if let Some(answer) =
                        negotiation::answer(n, options, self.discovery, key, value)
                    {
                        out.pair(name, answer);
                    }
                }
                // Everything else is settled at login.
                Some(_) => out.pair(name, REJECT),
            }
        }
        Ok(out.into_bytes())
    }

    /// Answers SendTargets (RFC 7143 appendix C).
    fn send_targets(&self, value: &str, site: &impl Site, out: &mut Writer) {
        let own = self.target_name.as_deref();
        let which = match (value, own) {
            ("All", None) => SendTargets::All,
            (name, None) if !name.is_empty() => SendTargets::Named(name),
            // A normal session learns of its own target only.
            (name, Some(own)) if name.is_empty() || name == own => SendTargets::Named(own),
            _ => return out.pair(Key::SendTargets.name(), REJECT),
        };
        let mut last = String::new();
        site.send_targets(which, &mut |target, address, group| {
            if target != last {
                out.pair(Key::TargetName.name(), target);
                last.clear();
                last.push_str(target);
            }
            out.pair(Key::TargetAddress.name(), format_args!("{address},{group}"));
        });
    }
}
