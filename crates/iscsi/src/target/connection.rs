//! The connection: its state, the end of the login, its clocks.

use super::event::{Asked, CloseReason, Event};
use super::held::Held;
use super::login::Login;
use super::mover::Mover;
use super::out::Digests;
use super::rx::Rx;
use super::stall::Stall;
use super::task::Tasks;
use super::text_phase::Exchange;
use super::transfer::Transfers;
use super::window::Window;
use super::{
    AuthenticationError, Counters, Cx, LoginIdentity, LoginRefusal, Options, SessionType, Site,
    Transmit,
};
use crate::digest::DIGEST_LEN;
use crate::pdu::{self, AsyncEvent, Bhs, U16, U32};
use crate::target::negotiation::Negotiated;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

/// The life of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The initiator logs in.
    Login,
    /// The layer above is asked whether the login may succeed.
    Admission,
    /// Commands are taken.
    FullFeature,
    /// Over.
    Closed,
}

/// One iSCSI connection, seen from the target.
#[derive(Debug)]
pub struct Connection<B> {
    pub(super) options: Options,
    pub(super) phase: Phase,
    pub(super) negotiated: Negotiated,
    pub(super) counters: Counters,
    pub(super) login: Option<Box<Login>>,
    /// The last Login Response while its admission is pending.
    pub(super) last_answer: Option<Box<(pdu::LoginResponse, Vec<u8>)>>,
    pub(super) discovery: bool,
    /// The target of a normal session.
    pub(super) target_name: Option<Box<str>>,
    pub(super) cid: u16,
    pub(super) digests: Digests,
    /// The datamover over RDMA; `None` on a stream.
    pub(super) mover: Option<Box<Mover<B>>>,
    pub(super) stat_sn: u32,
    pub(super) window: Window,
    pub(super) rx: Rx<B>,
    pub(super) tasks: Tasks<B>,
    pub(super) transfers: Transfers<B>,
    pub(super) held: Held,
    pub(super) text: Option<Box<Exchange>>,
    /// A Logout Request that came behind tasks.
    pub(super) logout: Option<Box<Bhs>>,
    pub(super) next_ttt: u32,
    /// Data digests of the Data-In PDUs that are being made.
    pub(super) crcs: Vec<[u8; DIGEST_LEN]>,
    pub(super) stall: Stall,
    /// The Target Transfer Tag of the latest question that was not answered yet.
    asked: Option<u32>,
    /// How many questions were answered.
    pub(super) answers: u32,
    last_heard: Duration,
    pinged: Option<Duration>,
    login_by: Duration,
    logout_by: Option<Duration>,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// A connection on which nothing was received yet.
    #[must_use]
    pub fn new(options: Options, now: Duration) -> Self {
        Self {
            phase: Phase::Login,
            negotiated: Negotiated::default(),
            counters: Counters::default(),
            login: None,
            last_answer: None,
            discovery: false,
            target_name: None,
            cid: 0,
            digests: Digests::default(),
            mover: None,
            stat_sn: 0,
            window: Window::new(0, options.window()),
            rx: Rx::new(),
            tasks: Tasks::new(),
            transfers: Transfers::new(),
            held: Held::new(),
            text: None,
            logout: None,
            next_ttt: 0,
            crcs: Vec::new(),
            stall: Stall::default(),
            asked: None,
            answers: 0,
            last_heard: now,
            pinged: None,
            login_by: now.saturating_add(options.login_timeout),
            logout_by: None,
            options,
        }
    }

    /// Answers [`Event::LoginFinished`]: the full feature phase begins, with the session's handle
    /// `tsih` (not 0).
    pub fn admit<T: Transmit>(&mut self, tsih: u16, tx: &mut T) {
        if self.phase != Phase::Admission {
            return;
        }
        if let (Some(answer), Some(login)) = (self.last_answer.take(), self.login.take()) {
            let identity = login.identity();
            self.discovery = identity.session_type == SessionType::Discovery;
            self.target_name = identity.target_name.as_deref().map(Box::from);
            self.cid = identity.cid;
            self.phase = Phase::FullFeature;
            let (mut response, text) = *answer;
            response.tsih = U16::new(tsih);
            self.send_login(response, &text, tx);
            // What was agreed on counts from the next PDU on.
            self.digests = Digests {
                header: self.negotiated.header_digest,
                data: self.negotiated.data_digest,
            };
        }
    }

    /// Answers [`Event::LoginFinished`]: no. The connection is over; the caller flushes and closes.
    pub fn refuse<T: Transmit>(&mut self, refusal: impl Into<LoginRefusal>, tx: &mut T) {
        if self.phase != Phase::Admission {
            return;
        }
        if let Some(answer) = self.last_answer.take() {
            let (mut response, _) = *answer;
            response.flags &= !pdu::TRANSIT;
            self.send_refusal(response, &refusal.into(), tx);
        }
        self.phase = Phase::Closed;
    }

    /// Asks the initiator to log out within this time (whole seconds, at most 65535), counted from
    /// `now`; the connection closes when it does not. Does nothing outside the full feature phase.
    pub fn request_logout<T: Transmit>(&mut self, now: Duration, within: Duration, tx: &mut T) {
        if self.phase != Phase::FullFeature || self.logout_by.is_some() {
            return;
        }
        let seconds = u16::try_from(within.as_secs()).unwrap_or(u16::MAX);
        self.logout_by = Some(now.saturating_add(within));
        let n = self.numbers(true);
        let message = pdu::AsyncMessage {
            flags: pdu::FINAL,
            itt: U32::new(pdu::RESERVED_TAG),
            stat_sn: n.stat_sn,
            exp_cmd_sn: n.exp_cmd_sn,
            max_cmd_sn: n.max_cmd_sn,
            event: AsyncEvent::LogoutRequest.code(),
            parameter3: U16::new(seconds),
            ..Default::default()
        };
        self.send(&message, &[], tx);
    }

    /// True if the initiator was [asked](Self::request_logout) to log out.
    #[must_use]
    pub const fn is_asked_to_log_out(&self) -> bool {
        self.logout_by.is_some()
    }

    /// When the time ends that the initiator has to log out, on the clock of [`Cx::now`]; `None` if it was not
    /// [asked](Self::request_logout). Stays as it is when the connection closes before.
    #[must_use]
    pub const fn log_out_by(&self) -> Option<Duration> {
        self.logout_by
    }

    /// When `handle_timeout` is to be called, on the clock of [`Cx::now`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        match self.phase {
            Phase::Login | Phase::Admission => Some(self.login_by),
            Phase::FullFeature => {
                [self.ping_at(), self.logout_by, self.data_look_at()].into_iter().flatten().min()
            }
            Phase::Closed => None,
        }
    }

    /// Does what is due.
    pub fn handle_timeout<S: Site<Buf = B>, T: Transmit>(&mut self, cx: &mut Cx<'_, S, T>) {
        match self.phase {
            Phase::Login | Phase::Admission if cx.now >= self.login_by => {
                self.close(CloseReason::LoginTimeout, cx.events);
            }
            Phase::FullFeature => {
                if self.logout_by.is_some_and(|by| cx.now >= by) {
                    self.close(CloseReason::LogoutTimeout, cx.events);
                } else if self.data_look_at().is_some_and(|at| cx.now >= at)
                    && self.data_is_overdue(cx.now)
                {
                    self.close(CloseReason::DataTimeout, cx.events);
                } else if self.ping_at().is_some_and(|at| cx.now >= at) {
                    self.ping(cx);
                }
            }
            _ => {}
        }
    }

    /// What was agreed on; what the target said counts from the end of the login on.
    #[must_use]
    pub const fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Tasks and task management functions that are not answered yet.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.tasks.len()
    }

    /// Who logs in, as far as that is known; nothing after a login that came to its end.
    #[must_use]
    pub fn login_identity(&self) -> Option<&LoginIdentity> {
        self.login.as_ref().map(|login| login.identity())
    }

    /// Why the initiator could not be authenticated, for the administrator's eyes: the initiator
    /// is told no more than that.
    #[must_use]
    pub fn authentication_error(&self) -> Option<AuthenticationError> {
        self.login.as_ref().and_then(|login| login.authentication_error())
    }

    /// True in the full feature phase.
    #[must_use]
    pub fn is_full_feature(&self) -> bool {
        self.phase == Phase::FullFeature
    }

    /// True when the connection is over.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// When the next ping, or the end of the patience with the last one, is due.
    fn ping_at(&self) -> Option<Duration> {
        if self.options.ping_interval.is_zero() {
            return None;
        }
        Some(match self.pinged {
            Some(at) => at.saturating_add(self.options.ping_timeout),
            None => self.last_heard.saturating_add(self.options.ping_interval),
        })
    }

    /// The other side's system has taken in more of what was sent, the last time at `at`. That is
    /// no answer, but a ping that waits behind other data cannot be answered yet: the time for it
    /// starts anew. Over a slow link this may take minutes, with the initiator silent and well.
    pub fn delivered(&mut self, at: Duration) {
        self.pinged = self.pinged.map(|pinged| pinged.max(at));
    }

    /// Asks whether the initiator is there, or gives up when it was asked already.
    fn ping<S: Site<Buf = B>, T: Transmit>(&mut self, cx: &mut Cx<'_, S, T>) {
        if self.pinged.is_some() {
            return self.close(CloseReason::PingTimeout, cx.events);
        }
        self.pinged = Some(cx.now);
        self.send_ping(cx.tx);
    }

    /// Asks the initiator something by a NOP-In (RFC 7143 section 11.19), whose answer raises [`Event::Answered`]: it
    /// stands in the stream behind all that was sent before the question came. An earlier question that is not answered
    /// yet is forgotten. `None` outside of the full feature phase.
    pub fn ask<T: Transmit>(&mut self, now: Duration, tx: &mut T) -> Option<Asked> {
        if self.phase != Phase::FullFeature {
            return None;
        }
        // It is a sign of life, too: who does not answer is given up like after any ping.
        self.pinged.get_or_insert(now);
        let ttt = self.send_ping(tx);
        self.asked = Some(ttt);
        Some(Asked(ttt))
    }

    /// The answer to a ping came.
    pub(super) fn ping_answered(&mut self, ttt: u32, events: &mut Vec<Event<B>>) {
        self.counters.pings_in += 1;
        if self.asked.take_if(|asked| *asked == ttt).is_some() {
            self.answers = self.answers.wrapping_add(1);
            events.push(Event::Answered { asked: Asked(ttt), answers: self.answers });
        }
    }

    fn send_ping<T: Transmit>(&mut self, tx: &mut T) -> u32 {
        self.counters.pings_out += 1;
        let ttt = self.new_ttt();
        let n = self.numbers(false);
        let nop = pdu::NopIn {
            flags: pdu::FINAL,
            itt: U32::new(pdu::RESERVED_TAG),
            ttt: U32::new(ttt),
            stat_sn: n.stat_sn,
            exp_cmd_sn: n.exp_cmd_sn,
            max_cmd_sn: n.max_cmd_sn,
            ..Default::default()
        };
        self.send(&nop, &[], tx);
        ttt
    }

    /// The initiator gave a sign of life.
    pub(super) fn heard(&mut self, now: Duration) {
        self.last_heard = now;
        self.pinged = None;
    }

    /// A Target Transfer Tag for NOP and text; never the reserved one.
    pub(super) fn new_ttt(&mut self) -> u32 {
        self.next_ttt = self.next_ttt.wrapping_add(1) & 0x7fff_ffff;
        self.next_ttt
    }

    /// True until the first Login Request came.
    pub(super) const fn login_is_new(&self) -> bool {
        self.login.is_none()
    }

    /// Ends the connection.
    pub(super) fn close(&mut self, reason: CloseReason, events: &mut Vec<Event<B>>) {
        if self.phase != Phase::Closed {
            self.phase = Phase::Closed;
            events.push(Event::Close(reason));
        }
    }
}
