//! Login and commands.

use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use socket2::SockRef;

use super::handshake::{Chap, Handshake, TO_FULL_FEATURE};
use super::opcode;
use super::pdu::Pdu;

/// What one Data-In or Data-Out of ours may carry; the target may ask for less.
const SEGMENT: usize = 64 << 10;

const FINAL: u8 = 0x80;
const READ: u8 = 0x40;
const WRITE: u8 = 0x20;
const SIMPLE: u8 = 0x01;
/// Data-In with status (RFC 7143 11.7.1).
const STATUS: u8 = 0x01;

/// How to log in.
#[derive(Clone, Debug)]
pub struct Login<'a> {
    /// `address:port`.
    pub portal: &'a str,
    /// `None`: a discovery session.
    pub target: Option<&'a str>,
    /// The initiator's name.
    pub initiator: &'a str,
    /// The initiator session ID's qualifier: sessions of one initiator differ in it.
    pub qualifier: u16,
    /// Ask for CRC32C.
    pub header_digest: bool,
    /// Ask for CRC32C.
    pub data_digest: bool,
    /// Authenticate.
    pub chap: Option<Chap<'a>>,
    /// Pose as a gateway that passes commands on: what it says of itself.
    pub through: Option<&'a str>,
    /// The address to connect from; all of 127.0.0.0/8 are at hand.
    pub from: Option<Ipv4Addr>,
    /// A target that says nothing for so long has failed the test.
    pub patience: Duration,
}

impl<'a> Login<'a> {
    /// A normal session without digests.
    pub fn new(portal: &'a str, target: &'a str) -> Login<'a> {
        Login {
            portal,
            target: Some(target),
            initiator: "iqn.2026-11.local.lunet:e2e",
            qualifier: 0,
            header_digest: false,
            data_digest: false,
            chap: None,
            through: None,
            from: None,
            patience: Duration::from_secs(30),
        }
    }

    /// The keys that say who logs in, and to what.
    pub fn names(&self) -> Vec<String> {
        let mut keys = vec![format!("InitiatorName={}", self.initiator)];
        match self.target {
            Some(name) => keys.extend([format!("TargetName={name}"), "SessionType=Normal".into()]),
            None => keys.push("SessionType=Discovery".into()),
        }
        keys.extend(self.through.map(|value| format!("X-local.lunet.through={value}")));
        keys
    }

    /// The Login Request that goes straight to operational negotiation.
    pub fn request(&self) -> Pdu {
        let mut pdu = Pdu::new(opcode::LOGIN_REQUEST | 0x40);
        pdu.header[1] = TO_FULL_FEATURE;
        // ISID of the random format (type 2), with a qualifier.
        pdu.header[8..14].copy_from_slice(&[0x80, 0x4c, 0x55, 0x4e, 0, 0]);
        pdu.header[12..14].copy_from_slice(&self.qualifier.to_be_bytes());
        pdu.set_word(16, 1);
        pdu.set_word(24, 1);
        let digest = |wanted| if wanted { "CRC32C" } else { "None" };
        let mut keys = self.names();
        keys.push(format!("HeaderDigest={}", digest(self.header_digest)));
        keys.push(format!("DataDigest={}", digest(self.data_digest)));
        keys.push(format!("MaxRecvDataSegmentLength={SEGMENT}"));
        keys.extend(
            ["InitialR2T=No", "ImmediateData=Yes", "ErrorRecoveryLevel=0"].map(str::to_owned),
        );
        for key in keys {
            pdu.data.extend_from_slice(key.as_bytes());
            pdu.data.push(0);
        }
        pdu
    }
}

/// Agrees to what a target proposes by itself, as LIO does for every key that the initiator has said nothing of.
fn accepted(request: &Pdu, keys: &HashMap<String, String>) -> Vec<u8> {
    const DECLARED: [&str; 4] =
        ["TargetAddress", "TargetAlias", "TargetPortalGroupTag", "MaxRecvDataSegmentLength"];
    let said = String::from_utf8_lossy(&request.data).into_owned();
    let ours = |key: &str| said.split('\0').any(|pair| pair.split('=').next() == Some(key));
    let proposed = keys.iter().filter(|(key, _)| !DECLARED.contains(&key.as_str()) && !ours(key));
    proposed.flat_map(|(key, value)| format!("{key}={value}\0").into_bytes()).collect()
}

/// The end of a command.
#[derive(Debug)]
pub struct Answer {
    /// The initiator task tag of the command.
    pub tag: u32,
    /// The SCSI status.
    pub status: u8,
    /// What was read.
    pub data: Vec<u8>,
    /// The sense data.
    pub sense: Vec<u8>,
}

/// A login whose request for the full feature phase is on its way.
pub struct Opening {
    handshake: Handshake,
    request: Pdu,
}

impl Opening {
    /// Connects and asks, without CHAP, and waits for no answer.
    pub fn begin(login: &Login<'_>) -> Result<Opening> {
        Opening::ask(Handshake::connect(login)?, login)
    }

    fn ask(mut handshake: Handshake, login: &Login<'_>) -> Result<Opening> {
        let request = login.request();
        handshake.ask(request.clone(), TO_FULL_FEATURE)?;
        Ok(Opening { handshake, request })
    }

    /// Waits for the full feature phase.
    pub fn finish(self) -> Result<Session> {
        let Opening { mut handshake, mut request } = self;
        let mut keys = HashMap::new();
        let answer = loop {
            let reply = handshake.reply()?;
            ensure!(reply.status == 0, "login refused: status {:04x}", reply.status);
            let proposed = accepted(&request, &reply.keys);
            keys.extend(reply.keys);
            if reply.pdu.flags() & 0x83 == 0x83 {
                break reply.pdu;
            }
            // The target wants another round before the transition, perhaps to hear what we say to its own proposals.
            request.data = proposed;
            handshake.ask(request.clone(), TO_FULL_FEATURE)?;
        };
        let stream = handshake.stream;
        let number = |key: &str, default: usize| {
            keys.get(key).and_then(|v| v.parse().ok()).unwrap_or(default)
        };
        let is = |key: &str, value: &str| keys.get(key).is_some_and(|v| v == value);
        Ok(Session {
            stream,
            header_digest: is("HeaderDigest", "CRC32C"),
            data_digest: is("DataDigest", "CRC32C"),
            segment: number("MaxRecvDataSegmentLength", 8192).min(SEGMENT),
            first_burst: number("FirstBurstLength", 65536),
            immediate: !is("ImmediateData", "No"),
            cmd_sn: 1,
            exp_stat_sn: answer.word(24).wrapping_add(1),
            max_cmd_sn: answer.word(32),
            next_tag: 1,
            tasks: HashMap::new(),
            keys,
        })
    }
}

/// A session in full feature phase.
pub struct Session {
    stream: TcpStream,
    header_digest: bool,
    data_digest: bool,
    /// The keys that the target answered or declared.
    pub keys: HashMap<String, String>,
    segment: usize,
    first_burst: usize,
    immediate: bool,
    cmd_sn: u32,
    exp_stat_sn: u32,
    max_cmd_sn: u32,
    next_tag: u32,
    /// By task tag: the data that R2Ts will ask for, or that has come in.
    tasks: HashMap<u32, Vec<u8>>,
}

impl Session {
    /// Resets its connection, as the system of a host does that has died.
    pub fn reset(self) -> Result<()> {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).context("no reset")
    }

    /// Connects and logs in.
    pub fn open(login: &Login<'_>) -> Result<Session> {
        let mut handshake = Handshake::connect(login)?;
        if let Some(chap) = &login.chap {
            let reply = handshake.authenticate(login, chap)?;
            ensure!(reply.status == 0, "login refused: status {:04x}", reply.status);
        }
        Opening::ask(handshake, login)?.finish()
    }

    /// Answers the pings that have come, and waits for nothing. Commands must not be outstanding.
    pub fn answer_pings(&mut self) -> Result<()> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        loop {
            match recv(&self.stream, &mut [0; 1], flags) {
                Err(Errno::AGAIN) => return Ok(()),
                Ok((0, _)) => bail!("the target has closed the connection"),
                other => drop(other?),
            }
            let pdu = self.receive()?;
            match pdu.opcode() {
                opcode::NOP_IN if pdu.word(20) != u32::MAX => self.answer_ping(&pdu)?,
                opcode::NOP_IN | opcode::ASYNC => {}
                other => bail!("unexpected PDU {other:02x}: {:02x?}", pdu.header),
            }
        }
    }

    /// Are both digests on?
    pub fn digests(&self) -> (bool, bool) {
        (self.header_digest, self.data_digest)
    }

    /// The sequence number of the next command.
    pub fn cmd_sn(&self) -> u32 {
        self.cmd_sn
    }

    /// The connection, for sending what no initiator should.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// May another command be sent (RFC 7143 4.2.2.1)?
    pub fn has_window(&self) -> bool {
        (self.max_cmd_sn.wrapping_sub(self.cmd_sn) as i32) >= 0
    }

    /// Sends a command. `expected`: the bytes to read; `data`: the bytes to write. Only one of them.
    pub fn start(&mut self, lun: u8, cdb: &[u8], expected: usize, data: &[u8]) -> Result<u32> {
        let mut pdu = Pdu::new(opcode::SCSI_COMMAND);
        let tag = self.next_tag;
        self.next_tag = self.next_tag.wrapping_add(1);
        let direction = match (expected, data.len()) {
            (0, 0) => 0,
            (_, 0) => READ,
            _ => WRITE,
        };
        pdu.header[1] = FINAL | SIMPLE | direction;
        pdu.header[9] = lun;
        pdu.set_word(16, tag);
        pdu.set_word(20, u32::try_from(expected.max(data.len()))?);
        pdu.set_word(24, self.cmd_sn);
        pdu.set_word(28, self.exp_stat_sn);
        pdu.header[32..32 + cdb.len()].copy_from_slice(cdb);
        if self.immediate {
            let first = data.len().min(self.segment).min(self.first_burst);
            pdu.data = data[..first].to_vec();
        }
        let task = if data.is_empty() { Vec::with_capacity(expected) } else { data.to_vec() };
        self.tasks.insert(tag, task);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        self.send(&pdu)?;
        Ok(tag)
    }

    /// Waits for the end of any command.
    pub fn finish(&mut self) -> Result<Answer> {
        loop {
            let pdu = self.receive()?;
            let tag = pdu.word(16);
            match pdu.opcode() {
                opcode::SCSI_RESPONSE => {
                    ensure!(pdu.header[2] == 0, "response {:02x}", pdu.header[2]);
                    let data = self.tasks.remove(&tag).context("an answer to no command")?;
                    let sense = pdu.data.get(2..).unwrap_or_default().to_vec();
                    return Ok(Answer { tag, status: pdu.header[3], data, sense });
                }
                opcode::DATA_IN => {
                    let data = self.tasks.get_mut(&tag).context("data for no command")?;
                    ensure!(pdu.word(40) as usize == data.len(), "Data-In out of order");
                    data.extend_from_slice(&pdu.data);
                    if pdu.flags() & STATUS != 0 {
                        let data = self.tasks.remove(&tag).unwrap_or_default();
                        return Ok(Answer { tag, status: pdu.header[3], data, sense: Vec::new() });
                    }
                }
                opcode::R2T => self.answer_r2t(&pdu)?,
                opcode::NOP_IN if pdu.word(20) != u32::MAX => self.answer_ping(&pdu)?,
                opcode::NOP_IN | opcode::ASYNC => {}
                other => bail!("unexpected PDU {other:02x}: {:02x?}", pdu.header),
            }
        }
    }

    /// Sends a command and waits for its end. Other commands must not be outstanding.
    pub fn execute(&mut self, lun: u8, cdb: &[u8], expected: usize, data: &[u8]) -> Result<Answer> {
        let tag = self.start(lun, cdb, expected, data)?;
        let answer = self.finish()?;
        ensure!(answer.tag == tag, "the answer to another command");
        Ok(answer)
    }

    /// Waits until the target has read and answered all that was sent before: NOP-Out and its answer.
    pub fn ping(&mut self) -> Result<()> {
        let mut pdu = Pdu::new(opcode::NOP_OUT | 0x40);
        pdu.header[1] = FINAL;
        pdu.set_word(16, 0x7fff_0000);
        pdu.set_word(20, u32::MAX);
        pdu.set_word(24, self.cmd_sn);
        pdu.set_word(28, self.exp_stat_sn);
        pdu.data = b"still there?".to_vec();
        self.send(&pdu)?;
        let answer = self.receive()?;
        ensure!(answer.opcode() == opcode::NOP_IN, "opcode {:02x}", answer.opcode());
        ensure!(answer.data == pdu.data, "the ping came back with other data");
        Ok(())
    }

    /// Logs out.
    pub fn logout(mut self) -> Result<()> {
        let mut pdu = Pdu::new(opcode::LOGOUT_REQUEST | 0x40);
        pdu.header[1] = FINAL;
        pdu.set_word(16, 0x7fff_0001);
        pdu.set_word(24, self.cmd_sn);
        pdu.set_word(28, self.exp_stat_sn);
        self.send(&pdu)?;
        let answer = self.receive()?;
        ensure!(answer.opcode() == opcode::LOGOUT_RESPONSE, "opcode {:02x}", answer.opcode());
        Ok(())
    }

    /// Sends a PDU of the caller's own making, with the session's digests.
    pub fn send(&mut self, pdu: &Pdu) -> Result<()> {
        pdu.send(&mut self.stream, self.header_digest, self.data_digest)
    }

    /// Receives the next PDU and keeps the sequence numbers.
    pub fn receive(&mut self) -> Result<Pdu> {
        let pdu = Pdu::receive(&mut self.stream, self.header_digest, self.data_digest)?;
        let has_status = match pdu.opcode() {
            opcode::R2T => false,
            opcode::DATA_IN => pdu.flags() & STATUS != 0,
            // A ping of the target's own does not advance StatSN.
            opcode::NOP_IN => pdu.word(16) != u32::MAX,
            _ => true,
        };
        if has_status {
            ensure!(pdu.word(24) == self.exp_stat_sn, "StatSN {}", pdu.word(24));
            self.exp_stat_sn = self.exp_stat_sn.wrapping_add(1);
        }
        self.max_cmd_sn = pdu.word(32);
        Ok(pdu)
    }

    /// Sends the data that an R2T asks for.
    pub fn answer_r2t(&mut self, r2t: &Pdu) -> Result<()> {
        let (tag, offset, length) = (r2t.word(16), r2t.word(40) as usize, r2t.word(44) as usize);
        let data = self.tasks.get(&tag).context("an R2T for no command")?;
        let wanted = data.get(offset..offset + length).context("an R2T beyond the data")?.to_vec();
        let count = wanted.len().div_ceil(self.segment);
        for (n, piece) in wanted.chunks(self.segment).enumerate() {
            let mut pdu = Pdu::new(opcode::DATA_OUT);
            pdu.header[1] = if n + 1 == count { FINAL } else { 0 };
            pdu.header[8..24].copy_from_slice(&r2t.header[8..24]);
            pdu.set_word(28, self.exp_stat_sn);
            pdu.set_word(36, u32::try_from(n)?);
            pdu.set_word(40, u32::try_from(offset + n * self.segment)?);
            pdu.data = piece.to_vec();
            self.send(&pdu)?;
        }
        Ok(())
    }

    fn answer_ping(&mut self, ping: &Pdu) -> Result<()> {
        let mut pdu = Pdu::new(opcode::NOP_OUT | 0x40);
        pdu.header[1] = FINAL;
        pdu.header[8..16].copy_from_slice(&ping.header[8..16]);
        pdu.set_word(16, u32::MAX);
        pdu.set_word(20, ping.word(20));
        pdu.set_word(24, self.cmd_sn);
        pdu.set_word(28, self.exp_stat_sn);
        self.send(&pdu)
    }
}
