//! The login phase (RFC 7143 sections 6.3 and 11.12).

use super::negotiate::Negotiation;
use super::sequence::Sequence;
use super::tx::{Body, Framing};
use super::{ChapError, Connection, Cx, Error, Event, LoginInfo, Options, Phase, Transmit};
use crate::pdu::{
    Bhs, CONTINUE, IMMEDIATE, LoginRequest, LoginResponse, LoginStatus, Opcode, Stage, TRANSIT,
    U24, Wire,
};
use crate::text::{Collector, Writer, pairs};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

/// Most answers of the target that do not end a stage.
const MAX_ROUNDS: u32 = 32;
/// Longest data segment of a Login Request, in bytes: the target's default.
const SEGMENT: usize = super::options::DEFAULT_DATA_SEGMENT as usize;
/// Initiator Task Tag of all Login Requests of a connection.
const LOGIN_TAG: u32 = 0;

/// The login of one connection.
#[derive(Debug)]
pub(super) struct Login {
    started: Option<Duration>,
    stage: Stage,
    /// Key data that waits to be sent; the target answers each piece.
    unsent: Vec<u8>,
    /// The last request asked for this stage.
    asked: Option<Stage>,
    responses: u32,
    collector: Collector,
    negotiation: Negotiation,
    framing: Framing,
}

impl Login {
    pub fn new(options: &Options) -> Self {
        Self {
            started: None,
            stage: if options.skip_security { Stage::Operational } else { Stage::Security },
            unsent: Vec::new(),
            asked: None,
            responses: 0,
            collector: Collector::new(),
            negotiation: Negotiation::new(options),
            framing: Framing::new(options.rdma.is_some()),
        }
    }

    /// When the login was started.
    pub fn started(&self) -> Option<Duration> {
        self.started
    }

    pub fn start<W: AsRef<[u8]>, T: Transmit<W>>(
        &mut self,
        now: Duration,
        options: &Options,
        sequence: &Sequence,
        tx: &mut T,
    ) {
        self.started = Some(now);
        let mut text = self.negotiation.identity(options);
        if self.stage == Stage::Operational {
            self.negotiation.offer(options, &mut text);
        }
        self.send(text, options, sequence, tx);
    }

    /// Sends key data and asks for the next stage; long data goes piece by piece.
    fn send<W: AsRef<[u8]>, T: Transmit<W>>(
        &mut self,
        text: Writer,
        options: &Options,
        sequence: &Sequence,
        tx: &mut T,
    ) {
        self.unsent = text.into_bytes();
        self.send_piece(options, sequence, tx);
    }

    fn send_piece<W: AsRef<[u8]>, T: Transmit<W>>(
        &mut self,
        options: &Options,
        sequence: &Sequence,
        tx: &mut T,
    ) {
        let rest = self.unsent.split_off(self.unsent.len().min(SEGMENT));
        let piece = core::mem::replace(&mut self.unsent, rest);
        let next = match self.stage {
            Stage::Security => Stage::Operational,
            Stage::Operational | Stage::FullFeature => Stage::FullFeature,
        };
        let more = !self.unsent.is_empty();
        let stays = self.stage == Stage::Security && !self.negotiation.may_leave_security(options);
        self.asked = Some(next).filter(|_| !more && !stays);
        let request = match self.asked {
            Some(next) => TRANSIT | next.code(),
            None if more => CONTINUE,
            None => 0,
        };
        self.request(request, &piece, options, sequence, tx);
    }

    fn request<W: AsRef<[u8]>, T: Transmit<W>>(
        &self,
        flags: u8,
        text: &[u8],
        options: &Options,
        sequence: &Sequence,
        tx: &mut T,
    ) {
        let pdu = LoginRequest {
            opcode: Opcode::LoginRequest.code() | IMMEDIATE,
            flags: flags | self.stage.code() << 2,
            data_len: U24::new(text.len() as u32),
            isid: options.isid,
            tsih: options.tsih.into(),
            itt: LOGIN_TAG.into(),
            cid: options.cid.into(),
            cmd_sn: sequence.cmd_sn().into(),
            exp_stat_sn: sequence.exp_stat_sn().into(),
            ..Default::default()
        };
        self.framing.pdu(pdu.as_bhs(), &[], Body::Bytes(text), tx);
    }

    /// Takes a response. Gives the result when the full feature phase begins, else sends the next
    /// request.
    fn handle<W: AsRef<[u8]>, T: Transmit<W>>(
        &mut self,
        pdu: &LoginResponse,
        text: &[u8],
        options: &Options,
        sequence: &mut Sequence,
        tx: &mut T,
    ) -> Result<Option<LoginInfo>, Error> {
        self.check_header(pdu, text, options)?;
        if self.responses == 0 {
            sequence.begin(pdu.as_bhs());
        } else {
            sequence.take_status(pdu.as_bhs())?;
            sequence.update_window(pdu.as_bhs())?;
        }
        self.responses += 1;
        if self.responses > MAX_ROUNDS {
            return Err(Error::LoginRounds);
        }
        let Some(text) = self.collector.push(text, pdu.flags)? else {
            self.asked = None;
            self.request(0, &[], options, sequence, tx);
            return Ok(None);
        };
        for pair in pairs(&text) {
            let (key, value) = pair?;
            self.negotiation.take(options, key, value)?;
        }
        self.negotiation.authenticate(options)?;
        if pdu.flags & TRANSIT == 0 {
            let reply = match self.unsent.is_empty() {
                true => self.negotiation.take_reply(),
                false => return self.continue_sending(options, sequence, tx),
            };
            self.send(reply, options, sequence, tx);
            return Ok(None);
        }
        self.enter_next_stage(pdu, options, sequence, tx)
    }

    fn continue_sending<W: AsRef<[u8]>, T: Transmit<W>>(
        &mut self,
        options: &Options,
        sequence: &Sequence,
        tx: &mut T,
    ) -> Result<Option<LoginInfo>, Error> {
        self.send_piece(options, sequence, tx);
        Ok(None)
    }

    /// The target went along to the stage that was asked for.
    fn enter_next_stage<W: AsRef<[u8]>, T: Transmit<W>>(
        &mut self,
        pdu: &LoginResponse,
        options: &Options,
        sequence: &Sequence,
        tx: &mut T,
    ) -> Result<Option<LoginInfo>, Error> {
        if self.asked.is_none() || Stage::next(pdu.flags) != self.asked {
            return Err(Error::LoginResponse("next stage"));
        }
        if self.stage == Stage::Security {
            if !self.negotiation.is_authenticated(options) {
                return Err(ChapError::Target.into());
            }
            self.stage = Stage::Operational;
            let mut text = self.negotiation.take_reply();
            self.negotiation.offer(options, &mut text);
            self.send(text, options, sequence, tx);
            return Ok(None);
        }
        let tsih = pdu.tsih.get();
        if tsih == 0 {
            return Err(Error::LoginResponse("TSIH"));
        }
        self.negotiation.finish(options, tsih).map(Some)
    }

    fn check_header(
        &mut self,
        pdu: &LoginResponse,
        text: &[u8],
        options: &Options,
    ) -> Result<(), Error> {
        if pdu.itt.get() != LOGIN_TAG {
            return Err(Error::NoSuchTask(pdu.itt.get()));
        }
        let status = pdu.status.get();
        if status != LoginStatus::Success.code() {
            for (key, value) in pairs(text).flatten() {
                if key == crate::keys::Key::TargetAddress.name() {
                    self.negotiation.target_address = Some(value.into());
                }
            }
            let address = self.negotiation.target_address.take();
            return Err(Error::LoginRefused { status, address });
        }
        if pdu.version_active != 0 {
            return Err(Error::LoginResponse("version"));
        }
        if pdu.isid != options.isid {
            return Err(Error::LoginResponse("ISID"));
        }
        if Stage::current(pdu.flags) != Some(self.stage) {
            return Err(Error::LoginResponse("current stage"));
        }
        if pdu.flags & TRANSIT != 0 && pdu.flags & CONTINUE != 0 {
            return Err(Error::LoginResponse("combination of flags"));
        }
        Ok(())
    }
}

impl<R: AsMut<[u8]>, W: AsRef<[u8]>> Connection<R, W> {
    pub(super) fn handle_login_response<T: Transmit<W>>(
        &mut self,
        bhs: &Bhs,
        cx: &mut Cx<'_, R, W, T>,
    ) -> Result<(), Error> {
        let Phase::Login(login) = &mut self.phase else {
            return Err(Error::Unexpected(Opcode::LoginResponse.code()));
        };
        let pdu = LoginResponse::from_bhs(bhs);
        let text = &self.rx.collected;
        let Some(info) = login.handle(pdu, text, &self.options, &mut self.sequence, cx.tx)? else {
            return Ok(());
        };
        self.negotiated = info.negotiated.clone();
        self.framing = Framing {
            header_digest: info.negotiated.header_digest,
            data_digest: info.negotiated.data_digest,
            rdma: self.framing.rdma,
        };
        self.phase = Phase::FullFeature;
        cx.events.push(Event::LoggedIn(Box::new(info)));
        Ok(())
    }
}
