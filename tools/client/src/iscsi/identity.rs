//! What a logical unit is known by (VPD page 83h), and who has reserved it (PERSISTENT RESERVE IN).

use lunet_iscsi::printable::is_printable;
use lunet_scsi::status::RESERVATION_CONFLICT;

use super::ask::number;
use super::link::Link;
use super::unit::reach;
use super::{Error, Failure, LogicalUnit, Login, Target, cdb};
use crate::identity::{Claims, Identity, Registrant, hex, uuid};

/// Device Identification (SPC-5 7.7.6).
const DEVICE_IDENTIFICATION: u8 = 0x83;

/// Most of an answer of PERSISTENT RESERVE IN that is read, in bytes.
const MOST: u16 = 32 << 10;

/// More names than this are not taken from a page. Disks have one or two.
const MOST_NAMES: usize = 16;

/// READ KEYS, READ RESERVATION and READ FULL STATUS.
const ACTIONS: [u8; 3] = [0, 1, 3];

/// Asks a logical unit for what it is, what it is known by and who has reserved it.
///
/// # Errors
/// See [`inspect`](super::inspect).
pub fn identify(target: &Target, login: &Login) -> Result<(LogicalUnit, Identity), Error> {
    let (mut link, unit) = reach(target, login)?;
    let names = names(&link.page(unit.lun, DEVICE_IDENTIFICATION)?);
    let claims = claims(&mut link, unit.lun)?;
    link.close();
    Ok((unit, Identity { names, claims }))
}

/// The names of the logical unit itself that no other one in the world has: NAA, EUI-64 based and UUID.
fn names(page: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = page.get(4..).unwrap_or_default();
    while let [codes, kind, _, len, behind @ ..] = rest {
        let Some((id, behind)) = behind.split_at_checked(usize::from(*len)) else { break };
        rest = behind;
        // ASSOCIATION 0: the logical unit.
        if kind & 0x30 == 0 && id.iter().any(|byte| *byte != 0) {
            names.extend(name(codes & 0xF, kind & 0xF, id));
        }
    }
    names.truncate(MOST_NAMES);
    names
}

/// A designator by its CODE SET and its DESIGNATOR TYPE.
fn name(codes: u8, kind: u8, id: &[u8]) -> Option<String> {
    match (codes, kind, id) {
        (1, 2, id) => Some(format!("eui.{}", hex(id))),
        (1, 3, id) => Some(format!("naa.{}", hex(id))),
        (1, 0xA, [_, _, id @ ..]) => Some(format!("uuid.{}", uuid(id.try_into().ok()?))),
        // A SCSI name string, which Linux may prefer.
        (2 | 3, 8, id) => {
            let text = std::str::from_utf8(id).ok()?.trim_end_matches('\0').to_ascii_lowercase();
            let digits = text.strip_prefix("naa.").or_else(|| text.strip_prefix("eui."))?;
            let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            (is_hex && !digits.is_empty()).then_some(text)
        }
        _ => None,
    }
}

fn claims(link: &mut Link, lun: u16) -> Result<Claims, Error> {
    let mut answers = Vec::new();
    for action in ACTIONS {
        match link.read(lun, &cdb::reserve_in(action, MOST), MOST.into())? {
            Ok(data) => answers.push(data),
            // A disk without the command has no such reservations; some have not all of its forms.
            Err(Failure::Sense { key: 5, .. }) if action == 3 => answers.push(Vec::new()),
            Err(Failure::Sense { key: 5, .. }) => return Ok(Claims::default()),
            Err(failure @ Failure::Status(RESERVATION_CONFLICT)) => {
                return Ok(Claims::unknown(failure));
            }
            Err(failure) => {
                return Ok(Claims::unknown(format!("PERSISTENT RESERVE IN failed: {failure}")));
            }
        }
    }
    Ok(of_answers(&answers[0], &answers[1], &answers[2]))
}

/// What stands behind PRGENERATION and ADDITIONAL LENGTH.
fn list(answer: &[u8]) -> &[u8] {
    let len = number(answer, 4, 4).and_then(|len| usize::try_from(len).ok()).unwrap_or(0);
    let list = answer.get(8..).unwrap_or_default();
    list.get(..len).unwrap_or(list)
}

fn of_answers(keys: &[u8], reservation: &[u8], status: &[u8]) -> Claims {
    let held = list(reservation);
    let kind = held.get(13).map(|kind| kind_in_words(kind & 0xF));
    let holder = number(held, 0, 8).filter(|_| kind.is_some());
    let mut registrants = registrants(list(status));
    let mut told: Vec<u64> = registrants.iter().map(|registrant| registrant.key).collect();
    // Hosts of other protocols, and those of a disk that gives no full status.
    for key in list(keys).chunks_exact(8).filter_map(|key| number(key, 0, 8)) {
        match told.iter().position(|have| *have == key) {
            Some(at) => drop(told.swap_remove(at)),
            None => registrants.push(Registrant { who: None, key, holds: holder == Some(key) }),
        }
    }
    Claims { kind, registrants, unknown: None }
}

/// Full status descriptors (SPC-5 6.14.5).
fn registrants(mut list: &[u8]) -> Vec<Registrant> {
    let mut found = Vec::new();
    while let (Some(key), Some(len)) = (number(list, 0, 8), number(list, 20, 4)) {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let Some(port) = list[24..].get(..len) else { break };
        found.push(Registrant { who: initiator(port), key, holds: list[12] & 1 != 0 });
        list = &list[24 + len..];
    }
    found
}

/// The name in a TransportID of iSCSI (SPC-5 7.6.4.6), without the session.
fn initiator(port: &[u8]) -> Option<String> {
    let text = port.get(4..).filter(|_| port[0] & 0xF == 5)?;
    let end = text.iter().position(|byte| matches!(byte, 0 | b',')).unwrap_or(text.len());
    let name: String =
        String::from_utf8_lossy(&text[..end]).chars().filter(|c| is_printable(*c)).collect();
    Some(name).filter(|name| !name.is_empty())
}

const fn kind_in_words(code: u8) -> &'static str {
    match code {
        1 => "write exclusive",
        3 => "exclusive access",
        5 => "write exclusive, registrants only",
        6 => "exclusive access, registrants only",
        7 => "write exclusive, all registrants",
        8 => "exclusive access, all registrants",
        _ => "of an unknown type",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_unit_alone() {
        let naa = [&[1, 3, 0, 8], &[0x50, 2, 3, 4, 5, 6, 7, 8][..]].concat();
        let of_port = [&[1, 0x13, 0, 8], &[0x50; 8][..]].concat();
        let t10 = [&[2, 1, 0, 4][..], b"LUNE"].concat();
        let eui = [&[1, 2, 0, 8], &[0xAB; 8][..]].concat();
        let id = [&[1, 0xA, 0, 18, 0x10, 0], &[0x11; 16][..]].concat();
        let text = [&[3, 8, 0, 12][..], b"NAA.5ABCDEF\0"].concat();
        let portal = [&[3, 8, 0, 12][..], b"iqn.x,L,0x1\0"].concat();
        let all = [t10, naa, of_port, eui, id, text, portal].concat();
        let page = [&[0, 0x83, 0, 99][..], &all, &[1, 3, 0, 8]].concat();
        let wanted = [
            "naa.5002030405060708",
            "eui.abababababababab",
            "uuid.11111111-1111-1111-1111-111111111111",
            "naa.5abcdef",
        ];
        assert_eq!(names(&page), wanted);
        assert_eq!(names(&[0, 0x83, 0, 12, 1, 3, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0]), [""; 0]);
        assert_eq!(names(&[]), [""; 0]);
        let short = [&[0, 0x83, 0, 170], &[1, 3, 0, 1, 7].repeat(34)[..]].concat();
        assert_eq!(names(&short).len(), MOST_NAMES);
        assert_eq!(names(b"\0\x83\0\x08\x03\x08\0\x04naa."), [""; 0]);
    }

    #[test]
    fn registrants_are_those_of_all_answers() {
        let answer = |list: &[u8]| {
            [&7u32.to_be_bytes()[..], &(list.len() as u32).to_be_bytes(), list].concat()
        };
        let port = [&[0x45, 0, 0, 20][..], b"iqn.2026-11.x:a,i,0x\0"].concat();
        let mut full = [&9u64.to_be_bytes()[..], &[0, 0, 0, 0, 1, 5], &[0; 10]].concat();
        full[20..24].copy_from_slice(&(port.len() as u32).to_be_bytes());
        full.extend_from_slice(&port);
        let mut held = [&9u64.to_be_bytes()[..], &[0; 8]].concat();
        held[13] = 5;
        let keys = [9u64, 4].map(u64::to_be_bytes).concat();
        let claims = of_answers(&answer(&keys), &answer(&held), &answer(&full));
        assert_eq!(claims.kind, Some("write exclusive, registrants only"));
        let first = Registrant { who: Some("iqn.2026-11.x:a".to_owned()), key: 9, holds: true };
        assert_eq!(claims.registrants, [first, Registrant { who: None, key: 4, holds: false }]);
        // Without a full status the holder is known by its key.
        let claims = of_answers(&answer(&keys), &answer(&held), &[]);
        assert_eq!(claims.registrants[0], Registrant { who: None, key: 9, holds: true });
        assert_eq!(of_answers(&answer(&[]), &answer(&[]), &answer(&[])), Claims::default());
        // Cut off.
        assert_eq!(of_answers(&[], &[], &answer(&full)[..40]), Claims::default());
    }
}
