//! A login request by request, and CHAP (RFC 7143 12.1.3).

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};

use anyhow::{Context, Result, ensure};
use md5::Digest;
use socket2::{Domain, Socket, Type};

use super::session::Login;
use super::{Pdu, opcode};

/// Security negotiation, and no wish to leave it.
pub const SECURITY: u8 = 0x00;
/// From security to operational negotiation.
pub const TO_OPERATIONAL: u8 = 0x81;
/// From operational negotiation to full feature phase.
pub const TO_FULL_FEATURE: u8 = 0x87;

/// Names and secrets of an initiator.
#[derive(Clone, Copy, Debug)]
pub struct Chap<'a> {
    /// Its own name and secret.
    pub own: (&'a str, &'a str),
    /// The target's name and secret, if that is to prove itself.
    pub target: Option<(&'a str, &'a str)>,
    /// The value of CHAP_A.
    pub algorithms: &'a str,
}

impl<'a> Chap<'a> {
    /// One way, with every algorithm.
    pub fn new(name: &'a str, secret: &'a str) -> Chap<'a> {
        Chap { own: (name, secret), target: None, algorithms: "5,6,7,8" }
    }
}

/// What the target answered to a Login Request.
#[derive(Debug)]
pub struct Reply {
    /// Status-Class and Status-Detail.
    pub status: u16,
    /// The keys.
    pub keys: HashMap<String, String>,
    /// The whole response.
    pub pdu: Pdu,
}

/// What a target asks for.
#[derive(Clone, Debug)]
pub struct Challenge {
    /// The algorithm's number.
    pub algorithm: u8,
    /// The identifier.
    pub id: u8,
    /// The challenge.
    pub bytes: Vec<u8>,
}

impl Challenge {
    /// The challenge in an answer to CHAP_A.
    pub fn of(reply: &Reply) -> Result<Challenge> {
        let value = |key: &str| reply.keys.get(key).with_context(|| format!("no {key}: {reply:?}"));
        Ok(Challenge {
            algorithm: value("CHAP_A")?.parse()?,
            id: value("CHAP_I")?.parse()?,
            bytes: from_hex(value("CHAP_C")?)?,
        })
    }

    /// The response of somebody with this secret, as a value.
    pub fn response(&self, secret: &str) -> String {
        hex(&respond(self.algorithm, self.id, secret, &self.bytes))
    }
}

/// The hash of identifier, secret and challenge.
pub fn respond(algorithm: u8, id: u8, secret: &str, challenge: &[u8]) -> Vec<u8> {
    fn hash<D: Digest>(id: u8, secret: &str, challenge: &[u8]) -> Vec<u8> {
        let digest = D::new().chain_update([id]).chain_update(secret).chain_update(challenge);
        digest.finalize().to_vec()
    }
    match algorithm {
        5 => hash::<md5::Md5>(id, secret, challenge),
        6 => hash::<sha1::Sha1>(id, secret, challenge),
        7 => hash::<sha2::Sha256>(id, secret, challenge),
        _ => hash::<sha3::Sha3_256>(id, secret, challenge),
    }
}

/// Bytes as a value in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(value: &str) -> Result<Vec<u8>> {
    let digits = value.strip_prefix("0x").context("not in hexadecimal")?;
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?)).collect()
}

/// A connection on which the login has not ended.
pub struct Handshake {
    /// The connection.
    pub stream: TcpStream,
    template: Pdu,
    exp_stat_sn: u32,
}

impl Handshake {
    /// Connects, from the login's own address if it has one.
    pub fn connect(login: &Login<'_>) -> Result<Handshake> {
        let address = login.portal.to_socket_addrs()?.next().context("no address")?;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        if let Some(from) = login.from {
            socket.bind(&SocketAddr::new(IpAddr::V4(from), 0).into())?;
        }
        socket.connect_timeout(&address.into(), login.patience)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_read_timeout(Some(login.patience))?;
        socket.set_write_timeout(Some(login.patience))?;
        let mut template = login.request();
        template.data.clear();
        Ok(Handshake { stream: socket.into(), template, exp_stat_sn: 1 })
    }

    /// Sends a Login Request with these pairs and waits for the answer.
    pub fn say(&mut self, flags: u8, pairs: &[&str]) -> Result<Reply> {
        let data = pairs.iter().flat_map(|pair| pair.bytes().chain([0])).collect();
        self.send(Pdu { data, ..self.template.clone() }, flags)
    }

    /// Sends a Login Request as it is but for its flags, and waits for the answer.
    pub fn send(&mut self, request: Pdu, flags: u8) -> Result<Reply> {
        self.ask(request, flags)?;
        self.reply()
    }

    /// Sends a Login Request as it is but for its flags.
    pub fn ask(&mut self, mut request: Pdu, flags: u8) -> Result<()> {
        request.header[1] = flags;
        request.set_word(28, self.exp_stat_sn);
        request.send(&mut self.stream, false, false)
    }

    /// Waits for the answer to a Login Request.
    pub fn reply(&mut self) -> Result<Reply> {
        let pdu = Pdu::receive(&mut self.stream, false, false)?;
        ensure!(pdu.opcode() == opcode::LOGIN_RESPONSE, "opcode {:02x}", pdu.opcode());
        self.exp_stat_sn = pdu.word(24).wrapping_add(1);
        let status = u16::from_be_bytes([pdu.header[36], pdu.header[37]]);
        let keys = String::from_utf8_lossy(&pdu.data)
            .split('\0')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Ok(Reply { status, keys, pdu })
    }

    /// Goes as far as the target's challenge.
    pub fn challenge(&mut self, login: &Login<'_>, algorithms: &str) -> Result<Reply> {
        let names = login.names();
        let mut pairs: Vec<&str> = names.iter().map(String::as_str).collect();
        pairs.push("AuthMethod=CHAP,None");
        let reply = self.say(SECURITY, &pairs)?;
        if reply.status != 0 {
            return Ok(reply);
        }
        ensure!(reply.keys.get("AuthMethod").is_some_and(|m| m == "CHAP"), "{reply:?}");
        self.say(SECURITY, &[&format!("CHAP_A={algorithms}")])
    }

    /// Goes through the whole of CHAP; gives the last answer, or that which refused. Fails if the
    /// target was to prove itself and did not.
    pub fn authenticate(&mut self, login: &Login<'_>, chap: &Chap<'_>) -> Result<Reply> {
        let reply = self.challenge(login, chap.algorithms)?;
        if reply.status != 0 {
            return Ok(reply);
        }
        let asked = Challenge::of(&reply)?;
        let own = format!("CHAP_N={}", chap.own.0);
        let response = format!("CHAP_R={}", asked.response(chap.own.1));
        let mut pairs = vec![own.as_str(), &response];
        let back = Challenge { algorithm: asked.algorithm, id: 0x77, bytes: vec![0x5a; 24] };
        let challenge = format!("CHAP_C={}", hex(&back.bytes));
        if chap.target.is_some() {
            pairs.extend(["CHAP_I=0x77", &challenge]);
        }
        let reply = self.say(TO_OPERATIONAL, &pairs)?;
        if let (0, Some((name, secret))) = (reply.status, chap.target) {
            let proved = (reply.keys.get("CHAP_N"), reply.keys.get("CHAP_R"));
            let expected = back.response(secret);
            ensure!(proved == (Some(&name.to_owned()), Some(&expected)), "the target is another");
        }
        Ok(reply)
    }
}
