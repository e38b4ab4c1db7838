//! The names of a logical unit, as other protocols can use them: made of its designators, so that whoever sees the volume
//! both ways can tell that it is one.

use lunet_scsi::Identity;
use lunet_volume::Names;

/// What stands for the company where a designator has none that would fit: as in lunet's own NAA designators.
const LOCAL_COMPANY: [u8; 3] = [0x02, 0x4C, 0x4E];

/// The names of a unit. The long one is its EUI-64 based designator if that has 16 bytes. Else it is the NAA designator in
/// another order, as an EUI-64 with an identifier extension in front: the last 8 bytes, the company, what is between them.
/// The UUID is of version 8 and has the same bits.
pub fn names(identity: &Identity) -> Names {
    let own = rearranged(&identity.naa);
    let eui = identity.eui.as_deref();
    Names {
        uuid: uuid(own),
        long: eui.and_then(|eui| eui.try_into().ok()).unwrap_or(own),
        short: Some(eui.and_then(|eui| eui.try_into().ok()).unwrap_or(shortened(own))),
    }
}

/// An EUI-64: the company, and 40 of the bits that make the difference.
fn shortened(own: [u8; 16]) -> [u8; 8] {
    let mut short = [0; 8];
    short[..3].copy_from_slice(&LOCAL_COMPANY);
    short[3..].copy_from_slice(&own[3..8]);
    short
}

/// An NAA designator as an EUI-64 with an identifier extension in front.
fn rearranged(naa: &[u8]) -> [u8; 16] {
    let mut long = [0; 16];
    match <[u8; 16]>::try_from(naa) {
        Ok(naa) => {
            let number = u128::from_be_bytes(naa);
            long[..8].copy_from_slice(&naa[8..]);
            // A digit, 24 bits of company, 36 bits.
            long[8..11].copy_from_slice(&((number >> 100) as u32).to_be_bytes()[1..]);
            let rest = (number >> 64) as u64 & 0xF_FFFF_FFFF;
            long[11..].copy_from_slice(&rest.to_be_bytes()[3..]);
        }
        Err(_) => {
            long[..8].copy_from_slice(&naa[..8]);
            long[8..11].copy_from_slice(&LOCAL_COMPANY);
        }
    }
    long
}

/// A UUID of the same bits: those in the way of version and variant go where nothing is.
fn uuid(mut bits: [u8; 16]) -> [u8; 16] {
    bits[11] = bits[11] & 0x0F | bits[6] & 0xF0;
    // Two more bits: of the company, which is the same for all volumes of a server as a rule.
    bits[6] = bits[6] & 0x0F | 0x80;
    bits[8] = bits[8] & 0x3F | 0x80;
    bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunet_scsi::Designator;

    fn with(naa: u128) -> Identity {
        let naa = Designator::sixteen(naa.to_be_bytes());
        Identity { naa, ..Identity::from_seed("x") }
    }

    #[test]
    fn names_are_those_of_the_designators() {
        let names = names(&with(0x6024_C4E1_2345_6789_0011_2233_4455_6677));
        let long = 0x0011_2233_4455_6677_024C_4E01_2345_6789_u128;
        assert_eq!(u128::from_be_bytes(names.long), long);
        assert_eq!(names.short, Some([0x02, 0x4C, 0x4E, 0x33, 0x44, 0x55, 0x66, 0x77]));
        let uuid = 0x0011_2233_4455_8677_824C_4E61_2345_6789_u128;
        assert_eq!(u128::from_be_bytes(names.uuid), uuid, "version 8, variant 2");
    }

    #[test]
    fn names_differ_where_designators_do() {
        let base = 0x6024_C4E0_0000_0000_0000_0000_0000_0000_u128;
        let all: Vec<Names> = (0..100).map(|bit| names(&with(base | 1 << bit))).collect();
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].iter().any(|o| o.uuid == one.uuid || o.long == one.long), "{at}");
        }
    }

    #[test]
    fn a_designator_of_8_bytes_has_room() {
        let identity = Identity::locally("seed");
        let names = names(&identity);
        assert_eq!(names.long[..8], identity.naa[..]);
        assert_eq!(names.short.as_ref().map(|eui| &eui[..]), identity.eui.as_deref());
        assert!(names.uuid != [0; 16] && names.uuid != names.long);
    }
}
