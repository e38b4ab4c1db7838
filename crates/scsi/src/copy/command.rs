//! The command blocks of THIRD-PARTY COPY OUT (83h) and IN (84h).

use crate::action::{Action, ParameterKind, Task};
use crate::copy::{About, Query, Request, limits};
use crate::execute::{Cx, Outcome};
use crate::unit::Unit;

/// EXTENDED COPY(LID1) (SPC-5 6.5).
pub(crate) fn extended_lid1(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    list(cx, ParameterKind::ExtendedCopy { long: false })
}

/// EXTENDED COPY(LID4) (SPC-5 6.4).
pub(crate) fn extended_lid4(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    list(cx, ParameterKind::ExtendedCopy { long: true })
}

/// POPULATE TOKEN (SBC-4 5.11).
pub(crate) fn populate(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    list(cx, ParameterKind::PopulateToken { list: cx.cdb.be32(6) })
}

/// WRITE USING TOKEN (SBC-4 5.52).
pub(crate) fn write_using(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    list(cx, ParameterKind::WriteUsingToken { list: cx.cdb.be32(6) })
}

/// COPY OPERATION ABORT (SPC-5 6.3).
pub(crate) fn abort(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    Ok(Task::still(Action::Copy(Request::Abort { list: cx.cdb.be32(2) })))
}

/// RECEIVE COPY STATUS(LID1).
pub(crate) fn status_lid1(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    query(cx, About::Status1, u32::from(cx.cdb.byte(2)))
}

/// RECEIVE COPY FAILURE DETAILS(LID1).
pub(crate) fn failure_lid1(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    query(cx, About::Failure1, u32::from(cx.cdb.byte(2)))
}

/// RECEIVE COPY STATUS(LID4).
pub(crate) fn status_lid4(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    query(cx, About::Status4, cx.cdb.be32(2))
}

/// RECEIVE ROD TOKEN INFORMATION.
pub(crate) fn token_information(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    query(cx, About::Token, cx.cdb.be32(2))
}

/// RECEIVE COPY OPERATING PARAMETERS (SPC-5 6.22).
pub(crate) fn operating_parameters(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    Ok(cx.data_in(limits::operating_parameters(), cx.cdb.be32(10)))
}

fn query(cx: &Cx<'_>, about: About, list: u32) -> Outcome {
    let allocation = cx.cdb.be32(10);
    Ok(Task::still(Action::Copy(Request::Query(Query { about, list, allocation }))))
}

/// A command with a parameter list.
fn list(cx: &Cx<'_>, kind: ParameterKind) -> Outcome {
    Ok(cx.optional_list(kind, cx.cdb.be32(10), 0))
}
