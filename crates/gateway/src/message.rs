//! What gateways tell each other by notifies, and answer.

use alloc::vec::Vec;

use crate::bytes::{Reader, Writer};
use crate::codec::Malformed;
use crate::{Epoch, GatewayId};

/// The first byte of each.
const VERSION: u8 = 2;

/// A notify to all watchers of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Asks whether the owner of that epoch is there.
    Ping(Epoch),
    /// The group has come to that epoch, or its record has changed in it.
    Changed(Epoch),
    /// For the owner of that epoch: an administrator wants the group to go there.
    Move(Epoch, GatewayId),
}

/// The answer to a [`Message`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// From that gateway, which does not own the group, and knows of that epoch.
    NotOwner(Epoch, GatewayId),
    /// From the owner.
    Owner(Epoch),
}

impl Message {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer(Vec::new());
        to.u8(VERSION);
        match self {
            Self::Ping(epoch) => (to.u8(0), to.u64(epoch.0)).1,
            Self::Changed(epoch) => (to.u8(1), to.u64(epoch.0)).1,
            Self::Move(epoch, gateway) => (to.u8(3), to.u64(epoch.0), to.u16(gateway.0)).2,
        }
        to.0
    }

    /// Reads all of the bytes.
    ///
    /// # Errors
    /// They are no message of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader(bytes);
        version(&mut from)?;
        let (kind, epoch) = (from.u8()?, Epoch(from.u64()?));
        let message = match kind {
            0 => Self::Ping(epoch),
            1 => Self::Changed(epoch),
            3 => Self::Move(epoch, GatewayId(from.u16()?)),
            _ => return Err(Malformed::Value),
        };
        from.end()?;
        Ok(message)
    }
}

impl Response {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer(Vec::new());
        to.u8(VERSION);
        match self {
            Self::NotOwner(epoch, gateway) => (to.u8(0), to.u64(epoch.0), to.u16(gateway.0)).2,
            Self::Owner(epoch) => (to.u8(1), to.u64(epoch.0)).1,
        }
        to.0
    }

    /// Reads all of the bytes.
    ///
    /// # Errors
    /// They are no answer of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader(bytes);
        version(&mut from)?;
        let response = match from.u8()? {
            0 => Self::NotOwner(Epoch(from.u64()?), GatewayId(from.u16()?)),
            1 => Self::Owner(Epoch(from.u64()?)),
            _ => return Err(Malformed::Value),
        };
        from.end()?;
        Ok(response)
    }
}

fn version(from: &mut Reader<'_>) -> Result<(), Malformed> {
    match from.u8()? {
        VERSION => Ok(()),
        other => Err(Malformed::Version(other.into())),
    }
}
