//! Everything but commands and data: login PDUs, NOP, logout, SNACK (RFC 7143 section 11).

use super::connection::{Connection, Phase};
use super::event::{CloseReason, Event};
use super::login::Step;
use super::window::Window;
use super::{Cx, LoginRefusal, Site, Transmit};
use crate::keys::Key;
use crate::pdu::{
    self, BasicHeader, Bhs, LoginRequest, LoginStatus, LogoutReason, LogoutRequest, LogoutResponse,
    NopOut, Opcode, RejectReason, U16, U24, U32, Wire,
};
use crate::text::Writer;
use alloc::boxed::Box;

impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// A complete PDU that is neither a command nor data.
    pub(super) fn control<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        bhs: &Bhs,
        data: &[u8],
        cx: &mut Cx<'_, S, T>,
    ) {
        match self.phase {
            Phase::Login => return self.login_pdu(bhs, data, cx),
            Phase::Admission => {
                self.counters.protocol_errors += 1;
                return self.close(CloseReason::EarlyPdu, cx.events);
            }
            Phase::FullFeature | Phase::Closed => {}
        }
        let nop = NopOut::from_bhs(bhs);
        match BasicHeader::from_bhs(bhs).opcode() {
            // Error recovery level 0 has no SNACK.
            Some(Opcode::SnackRequest) => self.reject(RejectReason::SnackReject, bhs, cx.tx),
            // The answer to a ping is not numbered.
            Some(Opcode::NopOut) if nop.itt.get() == pdu::RESERVED_TAG => {
                self.ping_answered(nop.ttt.get(), cx.events);
            }
            _ => self.sequence(nop.cmd_sn.get(), bhs, data, cx),
        }
    }

    /// A PDU whose turn has come.
    pub(super) fn numbered<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        bhs: &Bhs,
        data: &[u8],
        cx: &mut Cx<'_, S, T>,
    ) {
        match BasicHeader::from_bhs(bhs).opcode() {
            Some(Opcode::NopOut) => self.nop_out(bhs, data, cx.tx),
            Some(Opcode::TextRequest) => self.text_request(bhs, data, cx),
            Some(Opcode::LogoutRequest) => self.logout(bhs, cx),
            Some(Opcode::TmfRequest) => self.task_management(bhs, cx),
            _ => self.reject(RejectReason::CommandNotSupported, bhs, cx.tx),
        }
    }

    /// Answers a ping with its own data, as much as the initiator takes.
    fn nop_out<T: Transmit>(&mut self, bhs: &Bhs, data: &[u8], tx: &mut T) {
        self.counters.pings_in += 1;
        let pdu = NopOut::from_bhs(bhs);
        let data = &data[..data.len().min(self.send_limit())];
        let n = self.numbers(true);
        let answer = pdu::NopIn {
            flags: pdu::FINAL,
            data_len: U24::new(data.len() as u32),
            itt: pdu.itt,
            ttt: U32::new(pdu::RESERVED_TAG),
            stat_sn: n.stat_sn,
            exp_cmd_sn: n.exp_cmd_sn,
            max_cmd_sn: n.max_cmd_sn,
            ..Default::default()
        };
        self.send(&answer, data, tx);
    }

    /// A Logout. Behind tasks it waits for `log_out`, so that those that can be answered at once are,
    /// and task management functions in any case.
    fn logout<S: Site<Buf = B>, T: Transmit>(&mut self, bhs: &Bhs, cx: &mut Cx<'_, S, T>) {
        let pdu = LogoutRequest::from_bhs(bhs);
        let response = match LogoutReason::from_code(pdu.flags & 0x7f) {
            None => return self.reject(RejectReason::InvalidPduField, bhs, cx.tx),
            Some(LogoutReason::CloseSession) => LogoutResponse::Closed,
            // A discovery session can only be closed as a whole.
            Some(_) if self.discovery => {
                self.counters.protocol_errors += 1;
                return self.reject(RejectReason::ProtocolError, bhs, cx.tx);
            }
            Some(LogoutReason::CloseConnection) if pdu.cid.get() == self.cid => {
                LogoutResponse::Closed
            }
            Some(LogoutReason::CloseConnection) => LogoutResponse::CidNotFound,
            Some(LogoutReason::RemoveForRecovery) => LogoutResponse::RecoveryNotSupported,
        };
        if response != LogoutResponse::Closed || !self.is_busy() {
            return self.answer_logout(pdu, response, cx);
        }
        if self.logout.is_some() {
            self.counters.protocol_errors += 1;
            return self.reject(RejectReason::ProtocolError, bhs, cx.tx);
        }
        self.logout = Some(Box::new(*bhs));
    }

    fn answer_logout<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        pdu: &LogoutRequest,
        response: LogoutResponse,
        cx: &mut Cx<'_, S, T>,
    ) {
        let n = self.numbers(true);
        let answer = pdu::LogoutResponsePdu {
            flags: pdu::FINAL,
            response: response.code(),
            itt: pdu.itt,
            stat_sn: n.stat_sn,
            exp_cmd_sn: n.exp_cmd_sn,
            max_cmd_sn: n.max_cmd_sn,
            time2wait: U16::new(self.negotiated.time2wait),
            time2retain: U16::new(self.negotiated.time2retain),
            ..Default::default()
        };
        self.send(&answer, &[], cx.tx);
        if response == LogoutResponse::Closed {
            self.close(CloseReason::LoggedOut, cx.events);
        }
    }

    /// True if a Logout waits that no task management function keeps back: call `log_out` when all
    /// events have been dealt with.
    #[must_use]
    pub fn logs_out(&self) -> bool {
        self.logout.is_some() && !self.manages()
    }

    /// Goes on with a Logout that has waited. Commands that are not answered by now never are.
    pub fn log_out<S: Site<Buf = B>, T: Transmit>(&mut self, cx: &mut Cx<'_, S, T>) {
        if self.phase != Phase::FullFeature || !self.logs_out() {
            return;
        }
        if let Some(bhs) = self.logout.take() {
            self.answer_logout(LogoutRequest::from_bhs(&bhs), LogoutResponse::Closed, cx);
        }
    }

    /// A PDU in the login phase.
    fn login_pdu<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        bhs: &Bhs,
        data: &[u8],
        cx: &mut Cx<'_, S, T>,
    ) {
        let pdu = LoginRequest::from_bhs(bhs);
        let mut login = self.login.take().unwrap_or_else(|| {
            // The initiator's first numbers are the ones that both ends count from.
            self.stat_sn = pdu.exp_stat_sn.get();
            self.window = Window::new(pdu.cmd_sn.get(), self.options.window());
            Box::default()
        });
        let is_login = BasicHeader::from_bhs(bhs).opcode() == Some(Opcode::LoginRequest);
        let step = if is_login {
            login.step(pdu, data, &self.options, &mut self.negotiated, cx.site)
        } else {
            Err(LoginStatus::InvalidDuringLogin.into())
        };
        let mut response = pdu::LoginResponse {
            flags: pdu.flags & 0x0c,
            isid: pdu.isid,
            tsih: pdu.tsih,
            itt: pdu.itt,
            ..Default::default()
        };
        match step {
            Ok(Step::Answer { flags, text }) => {
                response.flags = flags;
                self.send_login(response, &text, cx.tx);
            }
            Ok(Step::Finished { flags, text }) => {
                response.flags = flags;
                self.last_answer = Some(Box::new((response, text)));
                self.phase = Phase::Admission;
                cx.events.push(Event::LoginFinished(Box::new(login.identity().clone())));
            }
            Err(refusal) => {
                self.counters.protocol_errors += 1;
                self.send_refusal(response, &refusal, cx.tx);
                self.close(CloseReason::LoginRefused(refusal.status.code()), cx.events);
            }
        }
        self.login = Some(login);
    }

    /// Sends a Login Response with key data.
    pub(super) fn send_login<T: Transmit>(
        &mut self,
        mut response: pdu::LoginResponse,
        text: &[u8],
        tx: &mut T,
    ) {
        let n = self.numbers(true);
        response.stat_sn = n.stat_sn;
        response.exp_cmd_sn = n.exp_cmd_sn;
        response.max_cmd_sn = n.max_cmd_sn;
        response.data_len = U24::new(text.len() as u32);
        self.send(&response, text, tx);
    }

    /// Sends a Login Response that refuses.
    pub(super) fn send_refusal<T: Transmit>(
        &mut self,
        mut response: pdu::LoginResponse,
        refusal: &LoginRefusal,
        tx: &mut T,
    ) {
        response.status = U16::new(refusal.status.code());
        let mut text = Writer::new();
        if let Some(address) = &refusal.moved_to {
            text.pair(Key::TargetAddress.name(), address);
        }
        self.send_login(response, text.as_bytes(), tx);
    }
}
