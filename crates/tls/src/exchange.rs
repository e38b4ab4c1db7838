//! Diffie-Hellman over X25519 and secp256r1 (RFC 8446 section 4.2.8). It takes a tenth of a millisecond or more, so a
//! handshake hands it out as a [`Job`].

use alloc::vec::Vec;
use curve25519_dalek::montgomery::MontgomeryPoint;
use curve25519_dalek::traits::IsIdentity;
use p256::elliptic_curve::point::AffineCoordinates;
use p256::elliptic_curve::sec1::ToEncodedPoint;
use zeroize::Zeroizing;

use crate::Random;
use crate::error::Error;
use crate::schedule::Secret;

/// A group (RFC 8446 section 4.2.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Group {
    /// X25519.
    X25519 = 0x001d,
    /// The curve of NIST, also called P-256.
    Secp256r1 = 0x0017,
}

impl Group {
    /// All, the best first.
    pub const ALL: [Self; 2] = [Self::X25519, Self::Secp256r1];

    /// Its number.
    #[must_use]
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The group with this number.
    #[must_use]
    pub const fn from_code(code: u16) -> Option<Self> {
        match code {
            0x001d => Some(Self::X25519),
            0x0017 => Some(Self::Secp256r1),
            _ => None,
        }
    }

    /// Bytes of a public value.
    const fn public_size(self) -> usize {
        match self {
            Self::X25519 => 32,
            // 4, and both coordinates.
            Self::Secp256r1 => 65,
        }
    }
}

/// A private value, and the group that it is of.
pub(crate) struct Private {
    pub(crate) group: Group,
    secret: Zeroizing<[u8; 32]>,
}

impl Private {
    pub(crate) fn new(group: Group, random: Random<'_>) -> Result<Self, Error> {
        let mut secret = Zeroizing::new([0; 32]);
        if random(&mut secret[..]) { Ok(Self { group, secret }) } else { Err(Error::Random) }
    }

    /// The public value. One number in 2^32 is no private value of secp256r1.
    pub(crate) fn public(&self) -> Result<Vec<u8>, Error> {
        match self.group {
            Group::X25519 => {
                Ok(MontgomeryPoint::mul_base_clamped(*self.secret).to_bytes().to_vec())
            }
            Group::Secp256r1 => {
                let public = self.p256()?.public_key();
                Ok(public.to_encoded_point(false).as_bytes().to_vec())
            }
        }
    }

    fn p256(&self) -> Result<p256::SecretKey, Error> {
        p256::SecretKey::from_slice(&self.secret[..]).map_err(|_| Error::Random)
    }

    /// The shared secret with this public value.
    pub(crate) fn shared(&self, public: &[u8]) -> Result<Secret, Error> {
        const WRONG: Error = Error::Illegal("key share");
        match self.group {
            Group::X25519 => {
                let theirs: [u8; 32] = public.try_into().map_err(|_| WRONG)?;
                let shared = Zeroizing::new(MontgomeryPoint(theirs).mul_clamped(*self.secret));
                // Zero for a point of small order (RFC 8446 section 7.4.2).
                let usable = !shared.is_identity();
                usable.then(|| Zeroizing::new(shared.as_bytes().to_vec())).ok_or(WRONG)
            }
            Group::Secp256r1 => {
                // Only the uncompressed form is permitted (section 4.2.8.2).
                let whole = public.len() == self.group.public_size() && public[0] == 4;
                let theirs = whole.then(|| p256::PublicKey::from_sec1_bytes(public).ok());
                let theirs = theirs.flatten().ok_or(WRONG)?;
                // Never the point at infinity: the order of the group is a prime.
                let secret = Zeroizing::new(self.p256()?.to_nonzero_scalar());
                let shared = Zeroizing::new((theirs.to_projective() * **secret).to_affine());
                Ok(Zeroizing::new(shared.x().to_vec()))
            }
        }
    }
}

/// Both exponentiations of a server, to be computed by any thread.
pub struct Job {
    private: Private,
    theirs: Vec<u8>,
}

/// What came of a [`Job`].
pub struct Exchanged {
    pub(crate) group: Group,
    pub(crate) values: Result<(Vec<u8>, Secret), Error>,
}

impl Job {
    /// A new private value for the other end's public value.
    ///
    /// # Errors
    /// There are no random numbers.
    pub(crate) fn new(group: Group, theirs: &[u8], random: Random<'_>) -> Result<Self, Error> {
        Ok(Self { private: Private::new(group, random)?, theirs: theirs.to_vec() })
    }

    /// Computes the public value and the shared secret.
    #[must_use]
    pub fn compute(self) -> Exchanged {
        let both = || Ok((self.private.public()?, self.private.shared(&self.theirs)?));
        Exchanged { group: self.private.group, values: both() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn private(group: Group, secret: [u8; 32]) -> Private {
        Private { group, secret: Zeroizing::new(secret) }
    }

    fn bytes(text: &str) -> Vec<u8> {
        let digit = |i: usize| u8::from_str_radix(&text[i..i + 2], 16).expect("hexadecimal");
        (0..text.len()).step_by(2).map(digit).collect()
    }

    /// RFC 8448 section 3.
    #[test]
    fn x25519_is_that_of_rfc_8448() {
        let key = |text: &str| private(Group::X25519, bytes(text).try_into().expect("32 bytes"));
        let client = key("49af42ba7f7994852d713ef2784bcbcaa7911de26adc5642cb634540e7ea5005");
        let server = key("b1580eeadf6dd589b8ef4f2d5652578cc810e9980191ec8d058308cea216a21e");
        let public = "c9828876112095fe66762bdbf7c672e156d6cc253b833df1dd69b1b04e751f0f";
        assert_eq!(server.public(), Ok(bytes(public)));
        let shared = "8bd4054fb55b9d63fdfbacf9f04b9f0d35e6d63f537563efd46272900f89492d";
        assert_eq!(client.shared(&bytes(public)).as_deref(), Ok(&bytes(shared)));
        let public = client.public().expect("a public value");
        assert_eq!(server.shared(&public).as_deref(), Ok(&bytes(shared)));
    }

    /// RFC 5903 section 8.1.
    #[test]
    fn secp256r1_is_that_of_rfc_5903() {
        let secret = "c88f01f510d9ac3f70a292daa2316de544e9aab8afe84049c62a9c57862d1433";
        let own = private(Group::Secp256r1, bytes(secret).try_into().expect("32 bytes"));
        let theirs = bytes(concat!(
            "04d12dfb5289c8d4f81208b70270398c342296970a0bccb74c736fc7554494bf63",
            "56fbf3ca366cc23e8157854c13c58d6aac23f046ada30f8353e74f33039872ab"
        ));
        let shared = "d6840f6b42f6edafd13116e0e12565202fef8e9ece7dce03812464d04b9442de";
        assert_eq!(own.shared(&theirs).as_deref(), Ok(&bytes(shared)));
        assert!(own.public().is_ok_and(|public| public.len() == 65 && public[..2] == [4, 0xda]));
    }

    #[test]
    fn public_values_that_are_none_are_refused() {
        let wrong = Err(Error::Illegal("key share"));
        let x25519 = private(Group::X25519, [7; 32]);
        for public in [&[0; 32][..], &[9; 31], &[9; 33], &[]] {
            assert_eq!(x25519.shared(public), wrong);
        }
        let p256 = private(Group::Secp256r1, [7; 32]);
        let mut compressed = p256.public().expect("a public value");
        let mut off_the_curve = compressed.clone();
        off_the_curve[64] ^= 1;
        compressed.truncate(33);
        compressed[0] = 2;
        for public in [&off_the_curve[..], &compressed, &[0], &[], &[4; 65]] {
            assert_eq!(p256.shared(public), wrong);
        }
        assert_eq!(private(Group::Secp256r1, [0xff; 32]).public(), Err(Error::Random));
    }
}
