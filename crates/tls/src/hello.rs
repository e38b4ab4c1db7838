//! ClientHello, ServerHello and what is in them (RFC 8446 sections 4.1 and 4.2).

use alloc::vec::Vec;

use crate::error::Error;
use crate::suite::{Hash, Suite};
use crate::wire::{Reader, extension, long, message, numbers};

/// Types of messages.
pub(crate) const CLIENT_HELLO: u8 = 1;
pub(crate) const SERVER_HELLO: u8 = 2;
pub(crate) const ENCRYPTED_EXTENSIONS: u8 = 8;
pub(crate) const FINISHED: u8 = 20;
pub(crate) const MESSAGE_HASH: u8 = 254;

/// Types of extensions.
const SUPPORTED_GROUPS: u16 = 10;
const PRE_SHARED_KEY: u16 = 41;
const EARLY_DATA: u16 = 42;
const SUPPORTED_VERSIONS: u16 = 43;
const COOKIE: u16 = 44;
const PSK_MODES: u16 = 45;
const KEY_SHARE: u16 = 51;

const TLS_1_2: u16 = 0x0303;
const TLS_1_3: u16 = 0x0304;
/// psk_dhe_ke.
const PSK_DHE: u8 = 1;
/// Bytes of a message's header.
const HEADER: usize = 4;

/// What a ServerHello has as its random number if it is a HelloRetryRequest: the SHA-256 of that word.
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

const CLIENT: &str = "ClientHello";
const SERVER: &str = "ServerHello";

/// Public values with the numbers of their groups.
pub(crate) type Shares<'a> = [(u16, &'a [u8])];

/// A ClientHello. What a server here has no use for is left out.
#[derive(Debug, Default)]
pub(crate) struct ClientHello<'a> {
    pub(crate) random: [u8; 32],
    pub(crate) session: &'a [u8],
    /// Numbers of cipher suites.
    pub(crate) suites: Vec<u16>,
    /// Numbers of groups, if the extension is there.
    pub(crate) groups: Option<Vec<u16>>,
    /// Public values with the numbers of their groups, if the extension is there.
    pub(crate) shares: Option<Vec<(u16, &'a [u8])>>,
    /// `psk_dhe_ke` is offered; `None` without the extension.
    pub(crate) psk_dhe: Option<bool>,
    /// Pre-shared keys.
    pub(crate) offered: Option<Offered<'a>>,
    tls_1_3: bool,
    early_data: bool,
    cookie: bool,
}

/// The pre-shared keys of a ClientHello, in the client's order.
#[derive(Debug, Default)]
pub(crate) struct Offered<'a> {
    pub(crate) identities: Vec<&'a [u8]>,
    pub(crate) binders: Vec<&'a [u8]>,
    /// Bytes of the message that precede the list of binders, which is what binders are over.
    pub(crate) bound: usize,
}

impl<'a> ClientHello<'a> {
    /// Reads a whole message of this type.
    pub(crate) fn read(message: &'a [u8]) -> Result<Self, Error> {
        let mut reader = Reader::new(CLIENT, message.get(HEADER..).unwrap_or_default());
        let version = reader.u16()?;
        let mut hello = Self { random: reader.array()?, ..Self::default() };
        hello.session = reader.short(0)?;
        hello.suites = numbers(CLIENT, reader.long(2)?)?;
        let compression = reader.short(1)?;
        // Older versions have no extensions at all.
        if !reader.is_empty() {
            hello.read_extensions(&mut reader, message.len())?;
        }
        reader.end()?;
        if !hello.tls_1_3 {
            return Err(Error::Version);
        }
        if version != TLS_1_2 || hello.session.len() > 32 || compression != [0] {
            return Err(Error::Illegal(CLIENT));
        }
        // A server here has never given anybody what these two need.
        if hello.early_data || hello.cookie {
            return Err(Error::Illegal(CLIENT));
        }
        Ok(hello)
    }

    fn read_extensions(&mut self, hello: &mut Reader<'a>, total: usize) -> Result<(), Error> {
        let mut reader = Reader::new(CLIENT, hello.long(0)?);
        let mut seen = Vec::new();
        while !reader.is_empty() {
            let kind = reader.u16()?;
            let body = reader.long(0)?;
            seen.push(kind);
            if kind == PRE_SHARED_KEY && !reader.is_empty() {
                return Err(Error::Illegal("pre_shared_key"));
            }
            self.read_extension(kind, body, total)?;
        }
        seen.sort_unstable();
        let twice = seen.windows(2).any(|pair| pair[0] == pair[1]);
        if twice { Err(Error::Illegal("list of extensions")) } else { Ok(()) }
    }

    fn read_extension(&mut self, kind: u16, body: &'a [u8], total: usize) -> Result<(), Error> {
        let mut reader = Reader::new(CLIENT, body);
        match kind {
            SUPPORTED_VERSIONS => {
                self.tls_1_3 = numbers(CLIENT, reader.short(2)?)?.contains(&TLS_1_3);
            }
            SUPPORTED_GROUPS => self.groups = Some(numbers(CLIENT, reader.long(2)?)?),
            PSK_MODES => self.psk_dhe = Some(reader.short(1)?.contains(&PSK_DHE)),
            KEY_SHARE => {
                let mut list = Reader::new(CLIENT, reader.long(0)?);
                let mut shares = Vec::new();
                while !list.is_empty() {
                    shares.push((list.u16()?, list.long(1)?));
                }
                self.shares = Some(shares);
            }
            PRE_SHARED_KEY => {
                let offered = Offered::read(&mut reader, total)?;
                self.offered = Some(offered);
            }
            EARLY_DATA => self.early_data = true,
            COOKIE => {
                reader.long(1)?;
                self.cookie = true;
            }
            // What is not known means nothing.
            _ => return Ok(()),
        }
        reader.end()
    }

    /// What has to be there for a key exchange with pre-shared keys (sections 4.2.9, 4.2.11 and 9.2).
    pub(crate) fn check(&self) -> Result<(&Offered<'a>, &[u16], &Shares<'a>), Error> {
        let offered = self.offered.as_ref().ok_or(Error::NoPsk)?;
        if !self.psk_dhe.ok_or(Error::Missing("psk_key_exchange_modes"))? {
            return Err(Error::NoExchange);
        }
        let groups = self.groups.as_deref().ok_or(Error::Missing("supported_groups"))?;
        let shares = self.shares.as_deref().ok_or(Error::Missing("key_share"))?;
        // Each share is of another group of those that are supported (section 4.2.8).
        for (at, (group, _)) in shares.iter().enumerate() {
            let twice = shares[..at].iter().any(|(other, _)| other == group);
            if twice || !groups.contains(group) {
                return Err(Error::Illegal("key_share"));
            }
        }
        Ok((offered, groups, shares))
    }
}

impl<'a> Offered<'a> {
    /// Reads the extension; it ends a message of `total` bytes.
    fn read(reader: &mut Reader<'a>, total: usize) -> Result<Self, Error> {
        let mut offered = Self::default();
        let mut list = Reader::new(CLIENT, reader.long(7)?);
        while !list.is_empty() {
            offered.identities.push(list.long(1)?);
            // How old a ticket is. It means nothing for external keys.
            list.take(4)?;
        }
        offered.bound = total - reader.left();
        let mut list = Reader::new(CLIENT, reader.long(33)?);
        while !list.is_empty() {
            offered.binders.push(list.short(32)?);
        }
        let as_many = offered.binders.len() == offered.identities.len();
        if as_many { Ok(offered) } else { Err(Error::Illegal("pre_shared_key")) }
    }
}

/// What a client puts into its ClientHello.
pub(crate) struct Offer<'a> {
    pub(crate) random: [u8; 32],
    pub(crate) session: &'a [u8],
    pub(crate) suite: Suite,
    pub(crate) groups: &'a [u16],
    pub(crate) shares: &'a [(u16, Vec<u8>)],
    pub(crate) identity: &'a [u8],
}

impl Offer<'_> {
    /// The message, with zeroes for the binder, and how many of its bytes precede the list of binders.
    pub(crate) fn write(&self) -> (Vec<u8>, usize) {
        let binder = self.suite.hash().size();
        let mut out = Vec::new();
        message(&mut out, CLIENT_HELLO, |out| {
            out.extend_from_slice(&TLS_1_2.to_be_bytes());
            out.extend_from_slice(&self.random);
            out.push(self.session.len() as u8);
            out.extend_from_slice(self.session);
            long(out, |out| out.extend_from_slice(&self.suite.code().to_be_bytes()));
            out.extend_from_slice(&[1, 0]);
            long(out, |out| self.write_extensions(out, binder));
        });
        let bound = out.len() - (2 + 1 + binder);
        (out, bound)
    }

    fn write_extensions(&self, out: &mut Vec<u8>, binder: usize) {
        extension(out, SUPPORTED_VERSIONS, |out| {
            out.push(2);
            out.extend_from_slice(&TLS_1_3.to_be_bytes());
        });
        extension(out, SUPPORTED_GROUPS, |out| {
            long(out, |out| {
                self.groups.iter().for_each(|group| out.extend_from_slice(&group.to_be_bytes()));
            });
        });
        extension(out, KEY_SHARE, |out| {
            long(out, |out| {
                for (group, public) in self.shares {
                    out.extend_from_slice(&group.to_be_bytes());
                    long(out, |out| out.extend_from_slice(public));
                }
            });
        });
        extension(out, PSK_MODES, |out| out.extend_from_slice(&[1, PSK_DHE]));
        extension(out, PRE_SHARED_KEY, |out| {
            long(out, |out| {
                long(out, |out| out.extend_from_slice(self.identity));
                out.extend_from_slice(&[0; 4]);
            });
            long(out, |out| {
                out.push(binder as u8);
                out.resize(out.len() + binder, 0);
            });
        });
    }
}

/// A ServerHello, or a HelloRetryRequest.
pub(crate) struct ServerHello<'a> {
    pub(crate) session: &'a [u8],
    pub(crate) suite: Suite,
    pub(crate) kind: Kind<'a>,
}

/// Which of both it is.
pub(crate) enum Kind<'a> {
    /// A ServerHello.
    Hello {
        random: [u8; 32],
        /// The group, and the server's public value.
        share: (u16, &'a [u8]),
        /// The number of the key in the client's list.
        chosen: u16,
    },
    /// A HelloRetryRequest for a public value of this group.
    Retry { group: u16 },
}

impl<'a> ServerHello<'a> {
    /// The message.
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        message(&mut out, SERVER_HELLO, |out| {
            out.extend_from_slice(&TLS_1_2.to_be_bytes());
            out.extend_from_slice(match &self.kind {
                Kind::Hello { random, .. } => random,
                Kind::Retry { .. } => &RETRY,
            });
            out.push(self.session.len() as u8);
            out.extend_from_slice(self.session);
            out.extend_from_slice(&self.suite.code().to_be_bytes());
            out.push(0);
            long(out, |out| self.write_extensions(out));
        });
        out
    }

    fn write_extensions(&self, out: &mut Vec<u8>) {
        extension(out, SUPPORTED_VERSIONS, |out| out.extend_from_slice(&TLS_1_3.to_be_bytes()));
        match &self.kind {
            Kind::Hello { share: (group, public), chosen, .. } => {
                extension(out, KEY_SHARE, |out| {
                    out.extend_from_slice(&group.to_be_bytes());
                    long(out, |out| out.extend_from_slice(public));
                });
                extension(out, PRE_SHARED_KEY, |out| {
                    out.extend_from_slice(&chosen.to_be_bytes());
                });
            }
            Kind::Retry { group } => {
                extension(out, KEY_SHARE, |out| out.extend_from_slice(&group.to_be_bytes()));
            }
        }
    }

    /// Reads a whole message of this type.
    pub(crate) fn read(message: &'a [u8]) -> Result<Self, Error> {
        let mut reader = Reader::new(SERVER, message.get(HEADER..).unwrap_or_default());
        let version = reader.u16()?;
        let random: [u8; 32] = reader.array()?;
        let session = reader.short(0)?;
        let suite = Suite::from_code(reader.u16()?);
        let compression = reader.u8()?;
        let mut list = Reader::new(SERVER, if reader.is_empty() { &[] } else { reader.long(0)? });
        reader.end()?;
        let is_retry = random == RETRY;
        let (mut tls_1_3, mut share, mut group, mut chosen) = (false, None, None, None);
        let mut seen = Vec::new();
        while !list.is_empty() {
            let kind = list.u16()?;
            let mut body = Reader::new(SERVER, list.long(0)?);
            if seen.contains(&kind) {
                return Err(Error::Illegal(SERVER));
            }
            seen.push(kind);
            match kind {
                SUPPORTED_VERSIONS => tls_1_3 = body.u16()? == TLS_1_3,
                KEY_SHARE if is_retry => group = Some(body.u16()?),
                KEY_SHARE => share = Some((body.u16()?, body.long(1)?)),
                PRE_SHARED_KEY if !is_retry => chosen = Some(body.u16()?),
                _ => return Err(Error::Unasked(SERVER)),
            }
            body.end()?;
        }
        if !tls_1_3 || version != TLS_1_2 {
            return Err(Error::Version);
        }
        let suite = suite.filter(|_| compression == 0).ok_or(Error::Illegal(SERVER))?;
        let kind = match (is_retry, group, share, chosen) {
            // One that asks for nothing would change nothing.
            (true, Some(group), ..) => Kind::Retry { group },
            (true, None, ..) => return Err(Error::Illegal(SERVER)),
            (false, _, Some(share), Some(chosen)) => Kind::Hello { random, share, chosen },
            (false, _, None, _) => return Err(Error::Missing("key_share")),
            (false, _, _, None) => return Err(Error::NoPsk),
        };
        Ok(Self { session, suite, kind })
    }
}

/// EncryptedExtensions: none.
pub(crate) fn encrypted_extensions() -> Vec<u8> {
    let mut out = Vec::new();
    message(&mut out, ENCRYPTED_EXTENSIONS, |out| long(out, |_| ()));
    out
}

/// Reads EncryptedExtensions. A client here asks for none, but for the groups, which a server may list for later.
pub(crate) fn read_encrypted_extensions(message: &[u8]) -> Result<(), Error> {
    const WHAT: &str = "EncryptedExtensions";
    let mut reader = Reader::new(WHAT, message.get(HEADER..).unwrap_or_default());
    let mut list = Reader::new(WHAT, reader.long(0)?);
    reader.end()?;
    while !list.is_empty() {
        let kind = list.u16()?;
        list.long(0)?;
        if kind != SUPPORTED_GROUPS {
            return Err(Error::Unasked(WHAT));
        }
    }
    Ok(())
}

/// Finished.
pub(crate) fn finished(mac: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    message(&mut out, FINISHED, |out| out.extend_from_slice(mac));
    out
}

/// The MAC of a Finished.
pub(crate) fn read_finished(message: &[u8]) -> &[u8] {
    message.get(HEADER..).unwrap_or_default()
}

/// All messages so far.
#[derive(Default)]
pub(crate) struct Transcript(Vec<u8>);

impl Transcript {
    pub(crate) fn add(&mut self, message: &[u8]) {
        self.0.extend_from_slice(message);
    }

    pub(crate) fn hash(&self, hash: Hash) -> Vec<u8> {
        hash.digest(&self.0).to_vec()
    }

    /// The hash with the beginning of another message.
    pub(crate) fn hash_with(&self, hash: Hash, part: &[u8]) -> Vec<u8> {
        hash.digest(&[&self.0, part].concat()).to_vec()
    }

    /// Puts its hash in the place of a ClientHello that a HelloRetryRequest answers (section 4.4.1).
    pub(crate) fn retried(&mut self, hash: Hash) {
        let digest = self.hash(hash);
        self.0.clear();
        message(&mut self.0, MESSAGE_HASH, |out| out.extend_from_slice(&digest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_is_known_by_a_hash() {
        assert_eq!(Hash::Sha256.digest(b"HelloRetryRequest")[..], RETRY);
    }
}
