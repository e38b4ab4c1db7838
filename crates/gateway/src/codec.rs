//! The record as bytes. There is one encoding of a record: whatever is read encodes to the same bytes again.

use alloc::vec::Vec;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use lunet_reservations::{Kind, MAX_REGISTRATIONS};

use crate::bytes::{Reader, Writer};
use crate::record::{
    Contents, Invalid, MAX_MODES, MAX_NAME, MAX_PORTS, MAX_REGISTRANT, MAX_VOLUMES, Owner, Port,
    Portals, Record, Registered, Reserved, Sanitize, Taker, Volume,
};
use crate::{ClientName, Epoch, GatewayId};

const MAGIC: [u8; 4] = *b"LGRP";
/// A gateway that reads another version leaves the group alone.
const VERSION: u16 = 2;
/// Bytes of a record at the most: what an object's omap value may have in any case.
const MAX_RECORD: usize = 16 << 20;

/// Why bytes are no record or message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// They end too early.
    #[error("it ends too early")]
    Short,
    /// Something goes beyond its limit.
    #[error("a part of it is too long")]
    Long,
    /// Something follows behind the end.
    #[error("something follows behind its end")]
    Trailing,
    /// A text is no UTF-8.
    #[error("a text in it is no UTF-8")]
    Text,
    /// A number stands for nothing.
    #[error("a number in it stands for nothing")]
    Value,
    /// They do not begin as they should.
    #[error("it is none of lunet")]
    Magic,
    /// Of another version of lunet.
    #[error("version {0} of it is not known")]
    Version(u16),
    /// It can be read, and makes no sense.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

impl Record {
    /// Its bytes.
    ///
    /// # Errors
    /// It [makes no sense](Self::check).
    pub fn encode(&self) -> Result<Vec<u8>, Invalid> {
        self.check()?;
        let mut to = Writer(Vec::with_capacity(256));
        to.0.extend(MAGIC);
        to.u16(VERSION);
        to.u64(self.epoch.0);
        to.u64(self.revision);
        match (&self.owner, self.heir) {
            (Some(Owner { gateway, client, portals }), _) => {
                to.u8(1);
                encode_taker(*gateway, client, &mut to);
                encode_portal(portals.iscsi, &mut to);
                encode_portal(portals.nvme, &mut to);
            }
            (None, Some(heir)) => {
                to.u8(2);
                to.u16(heir.0);
            }
            (None, None) => to.u8(0),
        }
        to.u8(u8::from(self.taker.is_some()));
        if let Some(Taker { gateway, client }) = &self.taker {
            encode_taker(*gateway, client, &mut to);
        }
        to.bytes(self.target.as_bytes());
        to.u16(self.ports.len() as u16);
        for Port { gateway, group, relative } in &self.ports {
            [gateway.0, *group, *relative].into_iter().for_each(|number| to.u16(number));
        }
        to.0.extend(self.secret);
        self.contents.encode(&mut to);
        Ok(to.0)
    }

    /// Reads all of the bytes.
    ///
    /// # Errors
    /// They are no record, or one that makes no sense.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() > MAX_RECORD {
            return Err(Malformed::Long);
        }
        let mut from = Reader(bytes);
        if from.array()? != MAGIC {
            return Err(Malformed::Magic);
        }
        match from.u16()? {
            VERSION => {}
            other => return Err(Malformed::Version(other)),
        }
        let (epoch, revision) = (Epoch(from.u64()?), from.u64()?);
        let (mut owner, mut heir) = (None, None);
        match from.u8()? {
            0 => {}
            1 => {
                let Taker { gateway, client } = decode_taker(&mut from)?;
                let (iscsi, nvme) = (decode_portal(&mut from)?, decode_portal(&mut from)?);
                owner = Some(Owner { gateway, client, portals: Portals { iscsi, nvme } });
            }
            2 => heir = Some(GatewayId(from.u16()?)),
            _ => return Err(Malformed::Value),
        }
        let taker = match from.u8()? {
            0 => None,
            1 => Some(decode_taker(&mut from)?),
            _ => return Err(Malformed::Value),
        };
        let target = from.text(MAX_NAME)?;
        let mut ports = Vec::new();
        for _ in 0..from.count(MAX_PORTS)? {
            let (gateway, group, relative) = (GatewayId(from.u16()?), from.u16()?, from.u16()?);
            ports.push(Port { gateway, group, relative });
        }
        let secret = from.array()?;
        let contents = Contents::decode(&mut from)?;
        from.end()?;
        let record = Self { epoch, revision, owner, heir, taker, target, ports, secret, contents };
        record.check()?;
        Ok(record)
    }
}

/// A gateway and its client.
fn encode_taker(gateway: GatewayId, client: &ClientName, to: &mut Writer) {
    to.u16(gateway.0);
    to.bytes(client.address.as_bytes());
    to.bytes(client.lock.as_bytes());
}

/// The same.
fn decode_taker(from: &mut Reader<'_>) -> Result<Taker, Malformed> {
    let gateway = GatewayId(from.u16()?);
    let (address, lock) = (from.text(MAX_NAME)?, from.text(MAX_NAME)?);
    Ok(Taker { gateway, client: ClientName { address, lock } })
}

/// The length of the address, the address, the port; or 0 if there is none.
fn encode_portal(portal: Option<SocketAddr>, to: &mut Writer) {
    match portal {
        None => return to.u8(0),
        Some(SocketAddr::V4(v4)) => {
            to.u8(4);
            to.0.extend(v4.ip().octets());
        }
        Some(SocketAddr::V6(v6)) => {
            to.u8(16);
            to.0.extend(v6.ip().octets());
        }
    }
    to.u16(portal.map_or(0, |portal| portal.port()));
}

fn decode_portal(from: &mut Reader<'_>) -> Result<Option<SocketAddr>, Malformed> {
    let address = match from.u8()? {
        0 => return Ok(None),
        4 => Ipv4Addr::from(from.array::<4>()?).into(),
        16 => Ipv6Addr::from(from.array::<16>()?).into(),
        _ => return Err(Malformed::Value),
    };
    Ok(Some(SocketAddr::new(address, from.u16()?)))
}

impl Sanitize {
    /// Its code, as a record has it.
    pub const fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Sanitizing { restricted: true } => 1,
            Self::Formatting => 2,
            Self::Sanitizing { restricted: false } => 3,
            Self::RollingBack => 4,
        }
    }

    /// The mark with that code.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::None),
            1 => Some(Self::Sanitizing { restricted: true }),
            2 => Some(Self::Formatting),
            3 => Some(Self::Sanitizing { restricted: false }),
            4 => Some(Self::RollingBack),
            _ => None,
        }
    }
}

impl Contents {
    fn encode(&self, to: &mut Writer) {
        to.u16(self.volumes.len() as u16);
        for volume in &self.volumes {
            to.bytes(volume.image.as_bytes());
            to.bytes(volume.id.as_bytes());
            to.u64(volume.bytes);
            to.0.extend(volume.naa);
            to.bytes(volume.serial.as_bytes());
            volume.reserved.encode(to);
            to.bytes(&volume.modes);
            to.u8(volume.sanitize.code());
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut contents = Self::default();
        for _ in 0..from.count(MAX_VOLUMES)? {
            contents.volumes.push(Volume {
                image: from.text(MAX_NAME)?,
                id: from.text(MAX_NAME)?,
                bytes: from.u64()?,
                naa: from.array()?,
                serial: from.text(MAX_NAME)?,
                reserved: Reserved::decode(from)?,
                modes: from.bytes(MAX_MODES)?.into(),
                sanitize: Sanitize::from_code(from.u8()?).ok_or(Malformed::Value)?,
            });
        }
        Ok(contents)
    }
}

/// No reservation; otherwise the number is the kind's place in [`Kind::ALL`] and one more.
const FREE: u8 = 0;
/// All registrants hold it, or nobody.
const NO_HOLDER: u16 = u16::MAX;

impl Reserved {
    fn encode(&self, to: &mut Writer) {
        to.u32(self.generation);
        let place = self.kind.and_then(|kind| Kind::ALL.iter().position(|other| *other == kind));
        to.u8(place.map_or(FREE, |at| at as u8 + 1));
        to.u16(self.holder.unwrap_or(NO_HOLDER));
        to.u16(self.registrations.len() as u16);
        for Registered { family, name, key } in &self.registrations {
            to.bytes(family.as_bytes());
            to.bytes(name);
            to.u64(*key);
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let generation = from.u32()?;
        let kind = match from.u8()? {
            FREE => None,
            number => {
                let kind = Kind::ALL.get(usize::from(number) - 1);
                Some(*kind.ok_or(Malformed::Value)?)
            }
        };
        let holder = Some(from.u16()?).filter(|at| *at != NO_HOLDER);
        let mut registrations = Vec::new();
        for _ in 0..from.count(MAX_REGISTRATIONS)? {
            let family = from.text(MAX_NAME)?;
            let name = from.bytes(MAX_REGISTRANT)?.into();
            registrations.push(Registered { family, name, key: from.u64()? });
        }
        Ok(Self { generation, registrations, kind, holder })
    }
}
