//! What a namespace is known by (Identify), and who has reserved it (Reservation Report).

use lunet_nvme::command::{Io, ReservationType};
use lunet_nvme::reservation::Report;

use super::{Admin, Error, Failure, Identifiers, Login, Namespace, Queue, Target, unit};
use crate::identity::{Claims, Identity, Registrant, hex, uuid};

/// ONCS: the controller has reservations.
const RESERVATIONS: u16 = 1 << 5;

/// So much of a report is read first, in bytes: 15 registrants.
const FIRST: u32 = 1024;

/// More of a report is not read, in bytes.
const MOST: u32 = 32 << 10;

/// Asks a namespace for what it is, what it is known by and who has reserved it.
///
/// # Errors
/// See [`inspect`](super::inspect).
pub fn identify(target: &Target, login: &Login) -> Result<(Namespace, Identity), Error> {
    let nqn = unit::subsystem(target, login)?;
    let mut admin = Admin::open(target, login, &nqn, 1)?;
    let namespace = unit::look(&mut admin, target.namespace())?;
    let names = names(&admin.names(namespace.nsid)?);
    let reserves = admin.info().identify.oncs.get() & RESERVATIONS != 0
        && admin.namespace(namespace.nsid)?.rescap != 0;
    let claims = match reserves {
        true => claims(&admin, target, login, namespace.nsid)?,
        false => Claims::default(),
    };
    admin.close();
    Ok((namespace, Identity { names, claims }))
}

fn names(ids: &Identifiers) -> Vec<String> {
    let uuid = ids.uuid.as_ref().map(|id| format!("uuid.{}", uuid(id)));
    let nguid = ids.nguid.as_ref().map(|id| format!("eui.{}", hex(id)));
    let eui64 = ids.eui64.as_ref().map(|id| format!("eui.{}", hex(id)));
    [uuid, nguid, eui64].into_iter().flatten().collect()
}

fn claims(admin: &Admin, target: &Target, login: &Login, nsid: u32) -> Result<Claims, Error> {
    let mut queue = Queue::of(admin, target, login)?;
    for len in [FIRST, MOST] {
        let report = Io::ReservationReport { len, extended: true };
        let answer = queue.ask(&report, nsid, len as usize)?;
        // A report ends where it ends.
        if let Some(failure) = answer.failure.filter(|failure| *failure != Failure::Short) {
            return Ok(Claims::unknown(format!("its report failed: {failure}")));
        }
        if let Some(report) = Report::decode(&answer.data) {
            return Ok(of_report(&report));
        }
    }
    Ok(Claims::unknown("its report makes no sense"))
}

fn of_report(report: &Report) -> Claims {
    let registrant = |have: &lunet_nvme::reservation::Registrant| Registrant {
        who: Some(&have.host_id).filter(|id| **id != [0; 16]).map(uuid),
        key: have.key,
        holds: have.holds,
    };
    Claims {
        kind: report.kind.map(kind_in_words),
        registrants: report.registrants.iter().map(registrant).collect(),
        unknown: None,
    }
}

const fn kind_in_words(kind: ReservationType) -> &'static str {
    match kind {
        ReservationType::WriteExclusive => "write exclusive",
        ReservationType::ExclusiveAccess => "exclusive access",
        ReservationType::WriteExclusiveRegistrants => "write exclusive, registrants only",
        ReservationType::ExclusiveAccessRegistrants => "exclusive access, registrants only",
        ReservationType::WriteExclusiveAll => "write exclusive, all registrants",
        ReservationType::ExclusiveAccessAll => "exclusive access, all registrants",
    }
}

#[cfg(test)]
mod tests {
    use lunet_nvme::reservation;

    use super::*;

    #[test]
    fn hosts_are_known_by_their_identifiers() {
        let host = |byte, holds| reservation::Registrant { host_id: [byte; 16], key: 3, holds };
        let kind = Some(ReservationType::ExclusiveAccess);
        let registrants = vec![host(0x12, true), host(0, false)];
        let claims = of_report(&Report { kind, registrants, ..Report::default() });
        assert_eq!(claims.kind, Some("exclusive access"));
        let who = Some("12121212-1212-1212-1212-121212121212".to_owned());
        let first = Registrant { who, key: 3, holds: true };
        assert_eq!(claims.registrants, [first, Registrant { who: None, key: 3, holds: false }]);
    }

    #[test]
    fn names_are_as_linux_has_them() {
        let ids = Identifiers { nguid: Some([0xA0; 16]), uuid: Some([1; 16]), eui64: None };
        let nguid = format!("eui.{}", "a0".repeat(16));
        assert_eq!(names(&ids), ["uuid.01010101-0101-0101-0101-010101010101".to_owned(), nguid]);
    }
}
