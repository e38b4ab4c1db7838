//! Addresses of clients: single ones, networks, and whether one is on this machine.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// An address, or all that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

/// An address, or `192.0.2.0/24`.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self == Self::host(self.address), self.bits) {
            (true, _) => write!(f, "{}", self.address),
            (false, bits) => write!(f, "{}/{bits}", self.address),
        }
    }
}

impl Network {
    /// The network of an address and the length of its prefix in bits. None if the prefix is longer than
    /// the address.
    pub fn new(address: IpAddr, bits: u8) -> Option<Self> {
        let most = if address.is_ipv4() { 32 } else { 128 };
        (bits <= most).then_some(Self { address, bits })
    }

    /// A single address.
    pub fn host(address: IpAddr) -> Self {
        Self { address, bits: if address.is_ipv4() { 32 } else { 128 } }
    }

    /// True if the address is in it.
    pub fn has(&self, address: IpAddr) -> bool {
        let (ours, theirs, width) = match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                (u128::from(a.to_bits()), u128::from(b.to_bits()), 32)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), 128),
            _ => return false,
        };
        // A shift by the whole width would be none.
        (ours ^ theirs).checked_shr(width - u32::from(self.bits)).unwrap_or(0) == 0
    }

    /// True for a network of IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.address.is_ipv4()
    }

    /// True if every address of the other network is in this one.
    pub fn contains(&self, other: &Self) -> bool {
        self.bits <= other.bits && self.has(other.address)
    }

    /// True if the two have an address in common.
    pub fn meets(&self, other: &Self) -> bool {
        self.contains(other) || other.contains(self)
    }

    /// What one client can easily have all addresses of: an IPv4 address, or a /64 of IPv6. Who is on a network of
    /// this machine shares its /64 with others: see [`Throttle::client`](crate::throttle::Throttle::client).
    pub fn of_client(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let prefix = Ipv6Addr::from_bits(address.to_bits() >> 64 << 64);
                Self { address: prefix.into(), bits: 64 }
            }
            address => Self::host(address),
        }
    }
}

impl Network {
    /// The /64 around an address or network of IPv6; itself if it is larger, or of IPv4.
    pub(crate) fn around(self) -> Self {
        match self.address {
            IpAddr::V6(address) if self.bits > 64 => Self::of_client(address.into()),
            _ => self,
        }
    }
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Address of the client.
    pub address: IpAddr,
    /// It is on this machine.
    pub here: bool,
}

impl Origin {
    /// Of the two ends of a connection. Who connects from an address to that same address is on the machine that has it,
    /// as is who comes from a loopback address: a packet from elsewhere with such a source is dropped by the kernel.
    pub fn new(peer: IpAddr, local: IpAddr) -> Self {
        let (own, other) = (local.to_canonical(), peer.to_canonical());
        Self { address: peer, here: other.is_loopback() || other == own }
    }
}
