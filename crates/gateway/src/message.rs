//! What gateways tell each other by notifies, and answer.

use alloc::string::String;
use alloc::vec::Vec;

use crate::bytes::{Reader, Writer};
use crate::codec::Malformed;
use crate::record::{MAX_BODY, MAX_NAME};
use crate::{Epoch, GatewayId, Refusal, Tag};

/// The first byte of each.
const VERSION: u8 = 3;

/// What an owner may refuse something for that was asked for by a message, each by its place.
const REFUSALS: [Refusal; 5] =
    [Refusal::NotReady, Refusal::Crowded, Refusal::IsOwner, Refusal::Unknown, Refusal::JobUnderWay];

/// A notify to all watchers of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Asks whether the owner of that epoch is there.
    Ping(Epoch),
    /// The group has come to that epoch, or its record has changed in it.
    Changed(Epoch),
    /// For the owner of that epoch: an administrator wants the group to go there.
    Move(Epoch, GatewayId),
    /// For the owner of that epoch: an administrator wants a job done. By the client that asks, and its number there, it is known
    /// again if it is asked for twice.
    Job(Epoch, String, u64, Vec<u8>),
}

/// The answer to a [`Message`]. It needs no tag: only a gateway of the same record gives one, and a gateway is of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// From that gateway, which does not own the group, and knows of that epoch.
    NotOwner(Epoch, GatewayId),
    /// From the owner.
    Owner(Epoch),
    /// From the owner: a job has ended, with this answer.
    Job(Vec<u8>),
    /// From the owner: a job or a move was not begun, and is not.
    Refused(Refusal),
}

impl Message {
    /// Its bytes, for gateways of that record.
    pub fn encode(&self, of: Tag) -> Vec<u8> {
        let mut to = Writer(Vec::new());
        to.u8(VERSION);
        to.u64(of.0);
        match self {
            Self::Ping(epoch) => (to.u8(0), to.u64(epoch.0)).1,
            Self::Changed(epoch) => (to.u8(1), to.u64(epoch.0)).1,
            Self::Move(epoch, gateway) => (to.u8(3), to.u64(epoch.0), to.u16(gateway.0)).2,
            Self::Job(epoch, client, number, body) => {
                to.u8(4);
                to.u64(epoch.0);
                to.bytes(client.as_bytes());
                to.u64(*number);
                to.bytes(body);
            }
        }
        to.0
    }

    /// Reads all of the bytes: the message, and of which record its sender is.
    ///
    /// # Errors
    /// They are no message of this version.
    pub fn decode(bytes: &[u8]) -> Result<(Tag, Self), Malformed> {
        let mut from = Reader(bytes);
        version(&mut from)?;
        let of = Tag(from.u64()?);
        let (kind, epoch) = (from.u8()?, Epoch(from.u64()?));
        let message = match kind {
            0 => Self::Ping(epoch),
            1 => Self::Changed(epoch),
            3 => Self::Move(epoch, GatewayId(from.u16()?)),
            4 => {
                let (client, number) = (from.text(MAX_NAME)?, from.u64()?);
                Self::Job(epoch, client, number, from.bytes(MAX_BODY)?.into())
            }
            _ => return Err(Malformed::Value),
        };
        from.end()?;
        Ok((of, message))
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
            Self::Job(answer) => (to.u8(2), to.bytes(answer)).1,
            Self::Refused(refusal) => {
                let at = REFUSALS.iter().position(|known| known == refusal).unwrap_or(0);
                (to.u8(3), to.u8(at as u8)).1
            }
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
            2 => Self::Job(from.bytes(MAX_BODY)?.into()),
            3 => {
                let refusal = REFUSALS.get(usize::from(from.u8()?));
                Self::Refused(*refusal.ok_or(Malformed::Value)?)
            }
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
