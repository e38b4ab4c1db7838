//! The record of a group: what its gateways have to agree on.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;

use lunet_reservations::{Kind, MAX_REGISTRATIONS, Registrant, Registration, Saved};

use crate::{ClientName, Epoch, GatewayId};

/// Volumes of a group at the most.
pub const MAX_VOLUMES: usize = 32;
/// Target ports of a group at the most.
pub const MAX_PORTS: usize = 64;
/// Bytes of a volume's saved mode pages at the most.
pub const MAX_MODES: usize = 1024;
/// Bytes of a request on reservations at the most.
pub const MAX_BODY: usize = 4096;
/// Bytes of a name at the most: 223 is the longest of iSCSI and NVMe.
pub(crate) const MAX_NAME: usize = 223;
/// Bytes of a registrant's name at the most.
pub(crate) const MAX_REGISTRANT: usize = 512;

/// Which record it is: one that is deleted and made anew, for a group of the same name, has another secret, and so another tag. Each
/// message of a gateway has that of its record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

/// What `lunet.group.<id>` contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Rises with each change of the owner.
    pub epoch: Epoch,
    /// Rises with each write of the record: what compare-and-set compares, with the epoch.
    pub revision: u64,
    /// Who serves the group; nobody between the two halves of a planned move.
    pub owner: Option<Owner>,
    /// Whom a planned move gives the group to.
    pub heir: Option<GatewayId>,
    /// Who takes it over, or has died on it: whoever gets locks without being the owner is here before.
    pub taker: Option<Taker>,
    /// The iSCSI name of the target, or the NQN of the subsystem.
    pub target: String,
    /// Target ports of all gateways.
    pub ports: Vec<Port>,
    /// By which a gateway that passes commands on shows the owner that it is one. Whoever may read the record is one.
    pub secret: [u8; 32],
    /// What else is in it. Only its owner changes it within an epoch.
    pub contents: Contents,
}

/// The owner of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Which gateway.
    pub gateway: GatewayId,
    /// Its RADOS client: what is to be blocklisted, and whose locks are to be broken.
    pub client: ClientName,
    /// Where other gateways pass commands on to it.
    pub portals: Portals,
}

/// Where other gateways pass commands on to a gateway, for each protocol; `None`: nowhere, and they do not pass any on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Portals {
    /// A portal for iSCSI.
    pub iscsi: Option<SocketAddr>,
    /// A portal for NVMe over TCP.
    pub nvme: Option<SocketAddr>,
}

impl Portals {
    /// Those that there are.
    pub fn iter(&self) -> impl Iterator<Item = SocketAddr> {
        [self.iscsi, self.nvme].into_iter().flatten()
    }
}

/// A gateway that takes a group over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taker {
    /// Which gateway.
    pub gateway: GatewayId,
    /// Its RADOS client.
    pub client: ClientName,
}

/// A target port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Whose it is.
    pub gateway: GatewayId,
    /// Its target port group (ALUA), or its ANA group; unique to the gateway.
    pub group: u16,
    /// Its relative target port identifier, or its controller's port id.
    pub relative: u16,
}

/// What a takeover has to load beside the images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The volumes, each once.
    pub volumes: Vec<Volume>,
}

/// A volume of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its image: `pool[/namespace]/image`.
    pub image: String,
    /// The id of that image. Another one by this name is another disk.
    pub id: String,
    /// Its size: no gateway shows another one, whatever the image has meanwhile.
    pub bytes: u64,
    /// Its NAA designator.
    pub naa: [u8; 16],
    /// Its unit serial number.
    pub serial: String,
    /// Its persistent reservations.
    pub reserved: Reserved,
    /// What MODE SELECT has changed, in the words of whoever serves SCSI; empty: nothing.
    pub modes: Vec<u8>,
    /// The mark of SANITIZE, FORMAT UNIT and rollbacks.
    pub sanitize: Sanitize,
}

/// A mark that outlives the gateway that overwrites a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sanitize {
    /// None is under way, and none has failed.
    #[default]
    None,
    /// SANITIZE was begun: the volume is not to be used until one has succeeded.
    Sanitizing {
        /// EXIT FAILURE MODE does not make it usable again.
        restricted: bool,
    },
    /// FORMAT UNIT was begun: the same.
    Formatting,
    /// A rollback to a snapshot was begun: the volume is not to be used until one has ended, or until it is overwritten by one of
    /// the others.
    RollingBack,
}

/// Persistent reservations of a volume. A record keeps them whether or not they survive a power loss elsewhere
/// (APTPL): a takeover is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// PRGENERATION.
    pub generation: u32,
    /// All registrations, the oldest first.
    pub registrations: Vec<Registered>,
    /// The kind of the reservation.
    pub kind: Option<Kind>,
    /// Which of the registrations holds it; `None` if there is none, or all do.
    pub holder: Option<u16>,
}

/// A change of a volume that only its group's owner makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its reservations are these.
    Reserved(Reserved),
    /// Its mode pages are these.
    Modes(Vec<u8>),
    /// Its mark is this.
    Sanitize(Sanitize),
}

/// A registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The protocol that can read the name.
    pub family: String,
    /// The registrant's name.
    pub name: Vec<u8>,
    /// The reservation key, never 0.
    pub key: u64,
}

/// What is wrong with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the group's record contradicts itself: {0}")]
pub struct Invalid(pub &'static str);

impl Reserved {
    /// As the volume's reservations give them.
    ///
    /// # Errors
    /// A registrant is of none of these protocols.
    pub fn of(saved: &Saved, generation: u32, families: &[&str]) -> Result<Self, Invalid> {
        let named = |registration: &Registration| {
            let found = families
                .iter()
                .find_map(|family| Some((*family, registration.registrant.name_in(family)?)));
            let (family, name) = found.ok_or(Invalid("a registrant of no known protocol"))?;
            Ok(Registered { family: family.into(), name: name.into(), key: registration.key })
        };
        let registrations: Result<Vec<_>, _> = saved.registrations.iter().map(named).collect();
        let holder = saved.holder.and_then(|at| u16::try_from(at).ok());
        Ok(Self { generation, registrations: registrations?, kind: saved.kind, holder })
    }

    /// As the volume's reservations take them up.
    ///
    /// # Errors
    /// A registrant is of none of these protocols.
    pub fn saved(&self, families: &[&'static str]) -> Result<Saved, Invalid> {
        let registration = |registered: &Registered| {
            let family = families.iter().find(|family| **family == registered.family);
            let family = family.ok_or(Invalid("a registrant of no known protocol"))?;
            let registrant = Registrant::new(family, &registered.name);
            Ok(Registration { registrant, key: registered.key })
        };
        let registrations: Result<Vec<_>, _> =
            self.registrations.iter().map(registration).collect();
        let holder = self.holder.map(usize::from);
        Ok(Saved { registrations: registrations?, kind: self.kind, holder })
    }

    fn check(&self) -> Result<(), Invalid> {
        let all = &self.registrations;
        let twice = |(at, one): (usize, &Registered)| {
            let mut before = all[..at].iter();
            before.any(|other| (&other.family, &other.name) == (&one.family, &one.name))
        };
        if all.len() > MAX_REGISTRATIONS || all.iter().enumerate().any(twice) {
            return Err(Invalid("registrations"));
        }
        if all.iter().any(|one| one.key == 0 || one.name.len() > MAX_REGISTRANT) {
            return Err(Invalid("a registration"));
        }
        let held = match (self.kind, self.holder) {
            (None, None) => true,
            (Some(kind), None) => kind.all_registrants() && !all.is_empty(),
            (Some(kind), Some(at)) => !kind.all_registrants() && usize::from(at) < all.len(),
            (None, Some(_)) => false,
        };
        if held { Ok(()) } else { Err(Invalid("the holder of a reservation")) }
    }
}

impl Record {
    /// The record of a new group, which nobody owns. Its secret has to be random. Its first revision follows from that: who
    /// compares by a record of before that had its name does not take it for that one.
    pub fn new(target: &str, secret: [u8; 32], ports: Vec<Port>, contents: Contents) -> Self {
        let (epoch, target) = (Epoch(1), target.into());
        let (owner, heir, taker) = (None, None, None);
        let mut record =
            Self { epoch, revision: 0, owner, heir, taker, target, ports, secret, contents };
        // A quarter of all revisions is left for changes.
        record.revision = 1 + record.tag().0 / 4;
        record
    }

    /// Which record it is. The secret cannot be told from it: it has a quarter of its bits.
    pub fn tag(&self) -> Tag {
        // FNV-1a.
        let mix = |tag: u64, byte: &u8| (tag ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        Tag(self.secret.iter().fold(0xcbf2_9ce4_8422_2325, mix))
    }

    /// Has a port for each gateway up to this number that has none, with its number as its group and relative identifier.
    pub(crate) fn grow(&mut self, count: u16) {
        for number in 1..=count {
            let gateway = GatewayId(number);
            if self.ports.iter().all(|port| port.gateway != gateway) {
                self.ports.push(Port { gateway, group: number, relative: number });
            }
        }
    }

    /// Sees whether it makes sense. Nothing else is written, or taken up.
    ///
    /// # Errors
    /// It does not.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.epoch.0 == 0 || self.epoch.0 > u64::MAX / 2 || self.revision > u64::MAX / 2 {
            return Err(Invalid("the epoch"));
        }
        if self.owner.is_some() && self.heir.is_some() {
            return Err(Invalid("an owner and an heir"));
        }
        let clients = self.owner.iter().map(|owner| &owner.client);
        let clients = clients.chain(self.taker.iter().map(|taker| &taker.client));
        let names = clients.flat_map(|client| [&client.address, &client.lock]);
        if names.chain([&self.target]).any(|name| name.is_empty() || name.len() > MAX_NAME) {
            return Err(Invalid("a name"));
        }
        let mut portals = self.owner.iter().flat_map(|owner| owner.portals.iter());
        if portals.any(|portal| !is_portal(&portal)) {
            return Err(Invalid("the owner's portals"));
        }
        let ports = &self.ports;
        let clash = |(at, one): (usize, &Port)| {
            ports[..at].iter().any(|other| {
                other.relative == one.relative
                    || (other.group == one.group && other.gateway != one.gateway)
            })
        };
        if ports.len() > MAX_PORTS || ports.iter().enumerate().any(clash) {
            return Err(Invalid("ports"));
        }
        self.contents.check()
    }
}

/// True for an address and a port that somebody can connect to, and that have one encoding.
fn is_portal(portal: &SocketAddr) -> bool {
    let plain = match portal {
        SocketAddr::V4(_) => true,
        SocketAddr::V6(v6) => v6.flowinfo() == 0 && v6.scope_id() == 0,
    };
    plain && portal.port() != 0 && !portal.ip().is_unspecified()
}

impl Contents {
    /// With these volumes and no others. Those that are there already stay what they are, in their order, and get larger.
    pub(crate) fn with(&self, volumes: &[Volume]) -> Self {
        let stays = |it: &Volume| {
            let wanted = volumes.iter().find(|wanted| wanted.image == it.image)?;
            Some(Volume { bytes: it.bytes.max(wanted.bytes), ..it.clone() })
        };
        let is_new = |it: &&Volume| self.volumes.iter().all(|known| known.image != it.image);
        let stay = self.volumes.iter().filter_map(stays);
        Self { volumes: stay.chain(volumes.iter().filter(is_new).cloned()).collect() }
    }

    pub(crate) fn check(&self) -> Result<(), Invalid> {
        if self.volumes.len() > MAX_VOLUMES {
            return Err(Invalid("too many volumes"));
        }
        for (at, volume) in self.volumes.iter().enumerate() {
            let twice = self.volumes[..at].iter().any(|other| other.image == volume.image);
            let lengths = [&volume.image, &volume.id, &volume.serial];
            let lengths = lengths.into_iter().any(|text| text.len() > MAX_NAME);
            if twice || lengths || volume.image.is_empty() || volume.modes.len() > MAX_MODES {
                return Err(Invalid("a volume"));
            }
            volume.reserved.check()?;
        }
        Ok(())
    }

    /// Has a volume changed. False if there is no such volume.
    pub fn change(&mut self, naa: [u8; 16], change: Change) -> bool {
        let Some(volume) = self.volumes.iter_mut().find(|it| it.naa == naa) else { return false };
        match change {
            Change::Reserved(reserved) => volume.reserved = reserved,
            Change::Modes(modes) => volume.modes = modes,
            Change::Sanitize(sanitize) => volume.sanitize = sanitize,
        }
        true
    }

    /// Whether the reservations of both are the same, key by key.
    pub fn reserved_as(&self, other: &Self) -> bool {
        let reserved = |contents: &Self| -> Vec<Reserved> {
            contents.volumes.iter().map(|volume| volume.reserved.clone()).collect()
        };
        reserved(self) == reserved(other)
    }
}
