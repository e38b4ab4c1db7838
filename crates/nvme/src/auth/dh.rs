//! Diffie-Hellman over the groups of RFC 7919.
//!
//! An exchange takes up to tens of milliseconds, so it is not for a thread that serves.

use alloc::vec::Vec;
use crypto_bigint::modular::runtime_mod::{DynResidue, DynResidueParams};
use crypto_bigint::{Encoding, U512, U2048, U3072, U4096, U6144, U8192, Uint};
use zeroize::{Zeroize, Zeroizing};

/// Length of a private exponent in bytes: more than twice the strength of the largest group.
pub const EXPONENT_LEN: usize = 64;

/// A group by its number in DH-HMAC-CHAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// No exchange.
    Null = 0,
    /// 2048 bits.
    Ffdhe2048 = 1,
    /// 3072 bits.
    Ffdhe3072 = 2,
    /// 4096 bits.
    Ffdhe4096 = 3,
    /// 6144 bits.
    Ffdhe6144 = 4,
    /// 8192 bits.
    Ffdhe8192 = 5,
}

impl Group {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Null,
        Self::Ffdhe2048,
        Self::Ffdhe3072,
        Self::Ffdhe4096,
        Self::Ffdhe6144,
        Self::Ffdhe8192,
    ];

    /// The group with this number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.code() == code)
    }

    /// Its number.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Length of a public value, and of a shared secret, in bytes; 0 for [`Group::Null`].
    #[must_use]
    pub const fn size(self) -> usize {
        self.prime().len() / 2
    }

    /// The prime in hexadecimal.
    const fn prime(self) -> &'static str {
        match self {
            Self::Null => "",
            Self::Ffdhe2048 => PRIME_2048,
            Self::Ffdhe3072 => PRIME_3072,
            Self::Ffdhe4096 => PRIME_4096,
            Self::Ffdhe6144 => PRIME_6144,
            Self::Ffdhe8192 => PRIME_8192,
        }
    }

    /// `base` to the power of the exponent; `None` for [`Group::Null`], or a base that is not
    /// between 2 and the prime less 2.
    fn power(self, base: &[u8], exponent: &[u8; EXPONENT_LEN]) -> Option<Zeroizing<Vec<u8>>> {
        let prime = self.prime();
        match self {
            Self::Null => None,
            Self::Ffdhe2048 => power::<{ U2048::LIMBS }>(prime, base, exponent),
            Self::Ffdhe3072 => power::<{ U3072::LIMBS }>(prime, base, exponent),
            Self::Ffdhe4096 => power::<{ U4096::LIMBS }>(prime, base, exponent),
            Self::Ffdhe6144 => power::<{ U6144::LIMBS }>(prime, base, exponent),
            Self::Ffdhe8192 => power::<{ U8192::LIMBS }>(prime, base, exponent),
        }
    }

    /// The public value of an exponent; empty for [`Group::Null`].
    #[must_use]
    pub fn public(self, exponent: &[u8; EXPONENT_LEN]) -> Vec<u8> {
        self.power(&[2], exponent).map(|value| value.to_vec()).unwrap_or_default()
    }

    /// The secret that is shared with whoever has this public value. `None` if that is none of the
    /// group.
    #[must_use]
    pub fn shared(
        self,
        exponent: &[u8; EXPONENT_LEN],
        public: &[u8],
    ) -> Option<Zeroizing<Vec<u8>>> {
        if public.len() != self.size() {
            return None;
        }
        self.power(public, exponent)
    }
}

/// [`Group::power`] with numbers of as many limbs as `prime` has.
fn power<const LIMBS: usize>(
    prime: &str,
    base: &[u8],
    exponent: &[u8; EXPONENT_LEN],
) -> Option<Zeroizing<Vec<u8>>>
where
    Uint<LIMBS>: Encoding,
{
    let prime = Uint::<LIMBS>::from_be_hex(prime);
    let mut padded = alloc::vec![0; Uint::<LIMBS>::BYTES.checked_sub(base.len())?];
    padded.extend_from_slice(base);
    let base = Uint::<LIMBS>::from_be_slice(&padded);
    if base <= Uint::ONE || base >= prime.wrapping_sub(&Uint::ONE) {
        return None;
    }
    let mut exponent = U512::from_be_slice(exponent);
    let mut power = DynResidue::new(&base, DynResidueParams::new(&prime)).pow(&exponent);
    exponent.zeroize();
    let mut value = power.retrieve();
    power.zeroize();
    let bytes = Zeroizing::new(value.to_be_bytes().as_ref().to_vec());
    value.zeroize();
    Some(bytes)
}

/// ffdhe2048 (RFC 7919 appendix A).
const PRIME_2048: &str = "\
    ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce\
    249b3ef97d2fe363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3\
    b557135e7f57c935984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182\
    b324fb61d108a94bb2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d70\
    9e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc\
    2ec22005c58ef1837d1683b2c6f34a26c1b2effa886b423861285c97ffffffffffffffff";

/// ffdhe3072 (RFC 7919 appendix A).
const PRIME_3072: &str = "\
    ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce\
    249b3ef97d2fe363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3\
    b557135e7f57c935984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182\
    b324fb61d108a94bb2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d70\
    9e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc\
    2ec22005c58ef1837d1683b2c6f34a26c1b2effa886b4238611fcfdcde355b3b6519035bbc34f4def99c0238\
    61b46fc9d6e6c9077ad91d2691f7f7ee598cb0fac186d91caefe130985139270b4130c93bc437944f4fd4452\
    e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc522363a0dabc521979b0deada1dbf9a42d5c4484e\
    0abcd06bfa53ddef3c1b20ee3fd59d7c25e41d2b66c62e37ffffffffffffffff";

/// ffdhe4096 (RFC 7919 appendix A).
const PRIME_4096: &str = "\
    ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce\
    249b3ef97d2fe363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3\
    b557135e7f57c935984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182\
    b324fb61d108a94bb2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d70\
    9e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc\
    2ec22005c58ef1837d1683b2c6f34a26c1b2effa886b4238611fcfdcde355b3b6519035bbc34f4def99c0238\
    61b46fc9d6e6c9077ad91d2691f7f7ee598cb0fac186d91caefe130985139270b4130c93bc437944f4fd4452\
    e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc522363a0dabc521979b0deada1dbf9a42d5c4484e\
    0abcd06bfa53ddef3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6ac7d5f42\
    d69f6d187763cf1d5503400487f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c4\
    6dc778f971ad0038092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a\
    7f88a46b4db5a851f44182e1c68a007e5e655f6affffffffffffffff";

/// ffdhe6144 (RFC 7919 appendix A).
const PRIME_6144: &str = "\
    ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce\
    249b3ef97d2fe363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3\
    b557135e7f57c935984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182\
    b324fb61d108a94bb2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d70\
    9e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc\
    2ec22005c58ef1837d1683b2c6f34a26c1b2effa886b4238611fcfdcde355b3b6519035bbc34f4def99c0238\
    61b46fc9d6e6c9077ad91d2691f7f7ee598cb0fac186d91caefe130985139270b4130c93bc437944f4fd4452\
    e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc522363a0dabc521979b0deada1dbf9a42d5c4484e\
    0abcd06bfa53ddef3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6ac7d5f42\
    d69f6d187763cf1d5503400487f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c4\
    6dc778f971ad0038092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a\
    7f88a46b4db5a851f44182e1c68a007e5e0dd9020bfd64b645036c7a4e677d2c38532a3a23ba4442caf53ea6\
    3bb454329b7624c8917bdd64b1c0fd4cb38e8c334c701c3acdad0657fccfec719b1f5c3e4e46041f388147fb\
    4cfdb477a52471f7a9a96910b855322edb6340d8a00ef092350511e30abec1fff9e3a26e7fb29f8c183023c3\
    587e38da0077d9b4763e4e4b94b2bbc194c6651e77caf992eeaac0232a281bf6b3a739c1226116820ae8db58\
    47a67cbef9c9091b462d538cd72b03746ae77f5e62292c311562a846505dc82db854338ae49f5235c95b9117\
    8ccf2dd5cacef403ec9d1810c6272b045b3b71f9dc6b80d63fdd4a8e9adb1e6962a69526d43161c1a41d570d\
    7938dad4a40e329cd0e40e65ffffffffffffffff";

/// ffdhe8192 (RFC 7919 appendix A).
const PRIME_8192: &str = "\
    ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce\
    249b3ef97d2fe363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3\
    b557135e7f57c935984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182\
    b324fb61d108a94bb2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d70\
    9e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc\
    2ec22005c58ef1837d1683b2c6f34a26c1b2effa886b4238611fcfdcde355b3b6519035bbc34f4def99c0238\
    61b46fc9d6e6c9077ad91d2691f7f7ee598cb0fac186d91caefe130985139270b4130c93bc437944f4fd4452\
    e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc522363a0dabc521979b0deada1dbf9a42d5c4484e\
    0abcd06bfa53ddef3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6ac7d5f42\
    d69f6d187763cf1d5503400487f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c4\
    6dc778f971ad0038092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a\
    7f88a46b4db5a851f44182e1c68a007e5e0dd9020bfd64b645036c7a4e677d2c38532a3a23ba4442caf53ea6\
    3bb454329b7624c8917bdd64b1c0fd4cb38e8c334c701c3acdad0657fccfec719b1f5c3e4e46041f388147fb\
    4cfdb477a52471f7a9a96910b855322edb6340d8a00ef092350511e30abec1fff9e3a26e7fb29f8c183023c3\
    587e38da0077d9b4763e4e4b94b2bbc194c6651e77caf992eeaac0232a281bf6b3a739c1226116820ae8db58\
    47a67cbef9c9091b462d538cd72b03746ae77f5e62292c311562a846505dc82db854338ae49f5235c95b9117\
    8ccf2dd5cacef403ec9d1810c6272b045b3b71f9dc6b80d63fdd4a8e9adb1e6962a69526d43161c1a41d570d\
    7938dad4a40e329ccff46aaa36ad004cf600c8381e425a31d951ae64fdb23fcec9509d43687feb69edd1cc5e\
    0b8cc3bdf64b10ef86b63142a3ab8829555b2f747c932665cb2c0f1cc01bd70229388839d2af05e454504ac7\
    8b7582822846c0ba35c35f5c59160cc046fd8251541fc68c9c86b022bb7099876a460e7451a8a93109703fee\
    1c217e6c3826e52c51aa691e0e423cfc99e9e31650c1217b624816cdad9a95f9d5b8019488d9c0a0a1fe3075\
    a577e23183f81d4a3f2fa4571efc8ce0ba8a4fe8b6855dfe72b0a66eded2fbabfbe58a30fafabe1c5d71a87e\
    2f741ef8c1fe86fea6bbfde530677f0d97d11d49f7a8443d0822e506a9f4614e011e2a94838ff88cd68c8bb7\
    c5c6424cffffffffffffffff";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Hash;

    /// The exponent of bytes 1 to 64, and the start of the hash of 2 to its power, as another
    /// implementation computes it from the definition of the primes.
    #[test]
    fn public_values_are_right() {
        let exponent = core::array::from_fn(|n| n as u8 + 1);
        for (group, hash) in [
            (Group::Ffdhe2048, [0x19, 0x08, 0xb0, 0x77, 0x39, 0x12, 0xe5, 0x3f]),
            (Group::Ffdhe3072, [0xe9, 0xf8, 0x1f, 0x60, 0x9b, 0xb5, 0x58, 0xfd]),
            (Group::Ffdhe4096, [0xa5, 0x36, 0x88, 0xd3, 0xa4, 0xd4, 0x2b, 0x2c]),
            (Group::Ffdhe6144, [0x21, 0xff, 0x5b, 0xd6, 0x1a, 0x7d, 0x69, 0xb1]),
            (Group::Ffdhe8192, [0xb2, 0xf1, 0xe9, 0x2b, 0x44, 0xe0, 0xa4, 0x5e]),
        ] {
            let public = group.public(&exponent);
            assert_eq!(public.len(), group.size());
            assert_eq!(Hash::Sha256.digest(&public)[..8], hash, "{group:?}");
        }
        assert!(Group::Null.public(&exponent).is_empty());
    }

    #[test]
    fn both_ends_share_a_secret() {
        for group in [Group::Ffdhe2048, Group::Ffdhe8192] {
            let (one, other) = ([3; EXPONENT_LEN], [5; EXPONENT_LEN]);
            let secret = group.shared(&one, &group.public(&other)).expect("a secret");
            assert_eq!(group.shared(&other, &group.public(&one)), Some(secret));
        }
    }

    #[test]
    fn values_that_give_the_secret_away_are_refused() {
        let group = Group::Ffdhe2048;
        let value = |last: u8| {
            let mut value = [0; 256];
            value[255] = last;
            value
        };
        for bad in [value(0), value(1), [0xff; 256]] {
            assert_eq!(group.shared(&[3; EXPONENT_LEN], &bad), None);
        }
        let prime = U2048::from_be_hex(PRIME_2048).to_be_bytes();
        assert_eq!(group.shared(&[3; EXPONENT_LEN], &prime), None);
        let mut less = prime.to_vec();
        less[255] -= 1;
        assert_eq!(group.shared(&[3; EXPONENT_LEN], &less), None);
        assert_eq!(group.shared(&[3; EXPONENT_LEN], &[2; 255]), None);
        assert!(group.shared(&[3; EXPONENT_LEN], &value(2)).is_some());
    }
}
