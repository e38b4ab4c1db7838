//! Any bytes as a PDU header and additional header segments.
use lunet_iscsi::pdu::{
    Ahs, AsyncMessage, BHS_LEN, BasicHeader, Bhs, DataIn, DataOut, LoginRequest, LoginResponse,
    LogoutRequest, LogoutResponsePdu, MAX_AHS_LEN, NopIn, NopOut, Opcode, R2t, Reject, ScsiCommand,
    ScsiResponse, SnackRequest, Stage, TextRequest, TextResponse, TmfRequest, TmfResponsePdu, Wire,
    write_bidi_read_length, write_extended_cdb,
};

/// A view of a header is the header.
fn view<P: Wire>(bhs: &Bhs) {
    assert_eq!(P::from_bhs(bhs).as_bhs(), bhs);
}

/// One input.
pub fn run(data: &[u8]) {
    let Some((bhs, rest)) = data.split_first_chunk::<BHS_LEN>() else { return };
    let header = BasicHeader::from_bhs(bhs);
    assert!(header.ahs_len() <= MAX_AHS_LEN && header.data_len() < 1 << 24);
    assert_eq!(header.opcode(), Opcode::from_byte(bhs[0]));
    let _ = (Stage::current(bhs[1]), Stage::next(bhs[1]));
    view::<NopOut>(bhs);
    view::<ScsiCommand>(bhs);
    view::<TmfRequest>(bhs);
    view::<LoginRequest>(bhs);
    view::<TextRequest>(bhs);
    view::<DataOut>(bhs);
    view::<LogoutRequest>(bhs);
    view::<SnackRequest>(bhs);
    view::<NopIn>(bhs);
    view::<ScsiResponse>(bhs);
    view::<TmfResponsePdu>(bhs);
    view::<LoginResponse>(bhs);
    view::<TextResponse>(bhs);
    view::<DataIn>(bhs);
    view::<LogoutResponsePdu>(bhs);
    view::<R2t>(bhs);
    view::<AsyncMessage>(bhs);
    view::<Reject>(bhs);
    let Ok(ahs) = Ahs::parse(&rest[..rest.len().min(header.ahs_len())]) else { return };
    let mut again = Vec::new();
    if let Some(cdb) = ahs.extended_cdb {
        // What came in four-byte words fits when it is written again.
        assert!(write_extended_cdb(&mut again, cdb));
    }
    if let Some(len) = ahs.bidi_read_len {
        write_bidi_read_length(&mut again, len);
    }
    assert_eq!(Ahs::parse(&again), Ok(ahs));
}
