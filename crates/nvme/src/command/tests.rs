use super::*;
use crate::fabrics::Transport;
use alloc::vec;
use core::mem::{offset_of, size_of};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

#[test]
fn fields_are_where_the_specification_has_them() {
    assert_eq!((size_of::<Sqe>(), size_of::<Cqe>(), size_of::<Sgl>()), (64, 16, 16));
    assert_eq!((offset_of!(Sqe, cid), offset_of!(Sqe, nsid)), (2, 4));
    assert_eq!((offset_of!(Sqe, sgl), offset_of!(Sqe, cdw10)), (24, 40));
    assert_eq!((offset_of!(Sgl, len), offset_of!(Sgl, kind)), (8, 15));
    assert_eq!((offset_of!(Cqe, sqhd), offset_of!(Cqe, cid)), (8, 12));
    assert_eq!(offset_of!(Cqe, status), 14);
    assert_eq!((size_of::<DsmRange>(), size_of::<CopyRange>()), (16, 32));
    assert_eq!((offset_of!(CopyRange, lba), offset_of!(CopyRange, blocks)), (8, 16));
}

/// A write of Linux: 8 blocks at 0x1234 with FUA, its data behind an R2T.
#[test]
fn write_of_linux_is_understood() {
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(&[1, 0x40, 7, 0x20, 1, 0, 0, 0]);
    bytes[32..40].copy_from_slice(&[0, 16, 0, 0, 0, 0, 0, 0x5a]);
    bytes[40..52].copy_from_slice(&[0x34, 0x12, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0x40]);
    let sqe = Sqe::read_from_bytes(&bytes).expect("64 bytes");
    let range = Range { lba: 0x1234, blocks: 8 };
    assert_eq!(Io::decode(&sqe), Ok(Io::Write { range, fua: true }));
    assert_eq!(sqe.placement(0, Transport::Tcp), Ok(Placement::Transport { len: 4096 }));
    assert_eq!((sqe.cid.get(), sqe.direction()), (0x2007, Some(Direction::Write)));
    assert_eq!(sqe.fuse(), Ok(Fuse::Normal));
    let mut again = Io::Write { range, fua: true }.encode(1);
    again.cid = sqe.cid;
    again.sgl = Sgl::transport(4096);
    assert_eq!(again.as_bytes(), bytes);
}

#[test]
fn data_must_be_where_tcp_can_have_it() {
    let mut sqe = Io::Write { range: Range { lba: 0, blocks: 8 }, fua: false }.encode(1);
    sqe.sgl = Sgl::in_capsule(4096);
    assert_eq!(
        sqe.placement(4096, Transport::Tcp),
        Ok(Placement::Capsule { offset: 0, len: 4096 })
    );
    assert_eq!(sqe.placement(4095, Transport::Tcp), Err(Status::SGL_OFFSET.no_retry()));
    sqe.sgl.address = U64::new(96);
    assert_eq!(
        sqe.placement(4192, Transport::Tcp),
        Ok(Placement::Capsule { offset: 96, len: 4096 })
    );
    sqe.sgl.address = U64::MAX_VALUE;
    assert_eq!(sqe.placement(8192, Transport::Tcp), Err(Status::SGL_OFFSET.no_retry()));
    sqe.sgl.kind = 0x40;
    assert_eq!(sqe.placement(8192, Transport::Tcp), Err(Status::SGL_TYPE.no_retry()));
    sqe.sgl = Sgl::transport(512);
    sqe.flags = 0;
    assert_eq!(sqe.placement(0, Transport::Tcp), Err(Status::INVALID_FIELD.no_retry()));
    sqe.opcode = 2;
    sqe.flags = PSDT_SGL;
    assert_eq!(sqe.placement(0, Transport::Tcp), Ok(Placement::Transport { len: 512 }));
    sqe.sgl = Sgl::in_capsule(512);
    assert_eq!(sqe.placement(512, Transport::Tcp), Err(Status::DATA_LENGTH.no_retry()));
    // A Set Features without data, as a host sends it that leaves the descriptor alone.
    sqe.opcode = 9;
    sqe.sgl = Sgl::default();
    assert_eq!(sqe.placement(0, Transport::Tcp), Ok(Placement::None));
    // No data, whatever the descriptor says.
    sqe.opcode = 0;
    assert_eq!(sqe.placement(0, Transport::Tcp), Ok(Placement::None));
    sqe.opcode = 3;
    assert_eq!(sqe.placement(0, Transport::Tcp), Err(Status::INVALID_OPCODE.no_retry()));
}

#[test]
fn reserved_values_are_refused() {
    let invalid = Err(Status::INVALID_FIELD.no_retry());
    let with = |opcode: u8, n: usize, value: u32| {
        let mut sqe = Sqe::new(opcode, 1);
        sqe.set_cdw(n, value);
        Io::decode(&sqe)
    };
    assert_eq!(with(0x04, 0, 0), Err(Status::INVALID_OPCODE.no_retry()));
    // Register: an unknown action, a reserved CPTPL.
    assert_eq!(with(0x0d, 0, 3), invalid);
    assert_eq!(with(0x0d, 0, 1 << 30), invalid);
    // Acquire: no type, IEKEY.
    assert_eq!(with(0x11, 0, 0), invalid);
    assert_eq!(with(0x11, 0, 0x108), invalid);
    // Release without a type; Clear needs none.
    assert_eq!(with(0x15, 0, 0), invalid);
    let clear = Io::ReservationRelease { action: ReleaseAction::Clear, kind: None };
    assert_eq!(with(0x15, 0, 1), Ok(clear));
    // Copy in another format, a report of 16 GiB, a directive.
    assert_eq!(with(0x19, 2, 0x100), invalid);
    assert_eq!(with(0x0e, 0, u32::MAX), invalid);
    assert_eq!(with(0x01, 2, 1 << 20), invalid);
    let mut sqe = Sqe::new(2, 0);
    sqe.set_cdw(2, 2);
    assert_eq!(Admin::decode(&sqe), Err(Status::INVALID_FIELD.no_retry()));
    assert_eq!(Admin::decode(&Sqe::new(0, 0)), Err(Status::INVALID_OPCODE.no_retry()));
    let mut fused = Sqe::new(1, 1);
    fused.flags |= 3;
    assert!(fused.fuse().is_err());
}

fn range() -> impl Strategy<Value = Range> {
    (any::<u64>(), 1u32..=65_536).prop_map(|(lba, blocks)| Range { lba, blocks })
}

fn kind() -> impl Strategy<Value = ReservationType> {
    (1u8..=6).prop_map(|code| ReservationType::from_code(code).expect("a type"))
}

fn io() -> impl Strategy<Value = Io> {
    let flags = (any::<bool>(), any::<bool>());
    prop_oneof![
        Just(Io::Flush),
        (range(), any::<bool>()).prop_map(|(range, fua)| Io::Write { range, fua }),
        (range(), any::<bool>()).prop_map(|(range, fua)| Io::Read { range, fua }),
        range().prop_map(|range| Io::Compare { range }),
        (range(), any::<bool>()).prop_map(|(range, fua)| Io::Verify { range, fua }),
        (range(), flags).prop_map(|(range, (fua, deallocate))| Io::WriteZeroes {
            range,
            fua,
            deallocate
        }),
        (1u16..=256, any::<bool>())
            .prop_map(|(ranges, deallocate)| Io::DatasetManagement { ranges, deallocate }),
        (any::<u64>(), 1u16..=256, any::<bool>()).prop_map(|(lba, ranges, fua)| Io::Copy {
            lba,
            ranges,
            fua
        }),
        (0u8..3, any::<bool>(), prop::sample::select(&[0u8, 2, 3][..])).prop_map(
            |(action, ignore_key, persist)| Io::ReservationRegister {
                action: RegisterAction::from_code(action).expect("an action"),
                ignore_key,
                persist: PersistOnPowerLoss::from_code(persist).expect("a code"),
            }
        ),
        (0u8..3, kind()).prop_map(|(action, kind)| Io::ReservationAcquire {
            action: AcquireAction::from_code(action).expect("an action"),
            kind,
        }),
        (0u8..2, kind()).prop_map(|(action, kind)| Io::ReservationRelease {
            action: ReleaseAction::from_code(action).expect("an action"),
            kind: Some(kind),
        }),
        (1u32..1 << 20, any::<bool>())
            .prop_map(|(dwords, extended)| Io::ReservationReport { len: dwords * 4, extended }),
    ]
}

fn admin() -> impl Strategy<Value = Admin> {
    let log = (any::<(u8, bool, u8)>(), 0u8..128, 1u64..=1 << 32, 0u64..1 << 62);
    prop_oneof![
        log.prop_map(|((lid, retain, csi), specific, dwords, offset)| Admin::GetLogPage(GetLog {
            lid,
            specific,
            retain,
            len: dwords * 4,
            offset: offset * 4,
            csi,
        })),
        any::<(u8, u16, u8)>().prop_map(|(cns, cntid, csi)| Admin::Identify(Identify {
            cns,
            cntid,
            csi
        })),
        any::<(u16, u16)>().prop_map(|(sqid, cid)| Admin::Abort { sqid, cid }),
        any::<(u8, bool, [u32; 2])>().prop_map(|(fid, save, value)| Admin::SetFeatures {
            fid,
            save,
            value
        }),
        (any::<(u8, u32)>(), 0u8..8).prop_map(|((fid, value), select)| Admin::GetFeatures {
            fid,
            select,
            value
        }),
        Just(Admin::AsyncEventRequest),
        Just(Admin::KeepAlive),
    ]
}

proptest! {
    #[test]
    fn io_commands_survive_the_wire(io in io(), nsid: u32) {
        let sqe = io.encode(nsid);
        prop_assert_eq!(Io::decode(&sqe), Ok(io));
        prop_assert_eq!(sqe.nsid.get(), nsid);
    }

    #[test]
    fn admin_commands_survive_the_wire(admin in admin(), nsid: u32) {
        prop_assert_eq!(Admin::decode(&admin.encode(nsid)), Ok(admin));
    }

    #[test]
    fn any_entry_is_judged(bytes in prop::array::uniform32(any::<u16>()), capsule: u32) {
        let sqe = Sqe::read_from_bytes(bytes.as_bytes()).expect("64 bytes");
        let _ = (Admin::decode(&sqe), sqe.fuse());
        if let Ok(Io::Write { range, .. }) = Io::decode(&sqe) {
            prop_assert!((1..=65_536).contains(&range.blocks));
        }
        if let Ok(Placement::Capsule { offset, len }) = sqe.placement(capsule, Transport::Tcp) {
            prop_assert!(u64::from(offset) + u64::from(len) <= u64::from(capsule));
        }
    }
}
