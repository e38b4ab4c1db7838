//! What the suite's own source says about tests that cannot tell anything of a target, or not all.

/// A test of libiscsi 1.19 that a right target fails.
pub(super) struct Defect {
    /// The test.
    pub test: &'static str,
    /// The only assertion that fails then.
    pub assertion: &'static str,
    /// It is a defect unless the test says this.
    pub unless: &'static str,
    /// Why no target can pass it then.
    pub reason: &'static str,
}

/// All that are known.
pub(super) const DEFECTS: [Defect; 3] = [
    Defect {
        test: "iSCSITMF.LUNResetSimpleAsync",
        assertion: "test_async_lu_reset_simple.c:157  - CU_ASSERT_EQUAL(reconnect_succeeded,1)",
        unless: "LU RESET queued",
        reason: "right after it queues LOGICAL UNIT RESET, before anything is sent, it asserts a flag that only an answer \
                 sets",
    },
    Defect {
        test: "GetLBAStatus.UnmapSingle",
        assertion: "test_get_lba_status_unmap_single.c:135  - CU_FAIL(",
        unless: "We have 1 logical blocks per physical block",
        reason: "it asks for the status from LBA n + 1 on, and expects a descriptor that begins at n + the number of logical \
                 blocks in a physical one",
    },
    Defect {
        test: "PreventAllow.Eject",
        assertion: "test_preventallow_eject.c:62  - CU_ASSERT_EQUAL(_r,0)",
        unless: "failed with wrong sense",
        reason: LOADS_UNDER_PREVENT,
    },
];

/// SPC-5 6.16: what PREVENT ALLOW MEDIUM REMOVAL prevents is the removal.
const LOADS_UNDER_PREVENT: &str = "with the medium ejected and PREVENT set it expects LOAD to fail with MEDIUM REMOVAL PREVENTED; but Linux locks \
     a removable drive when it opens it and then loads the medium (`eject -t`), which removes nothing. All its other steps pass";

/// A test to run twice in one process, and what to run in between.
///
/// The flag that `iSCSITMF.LUNResetSimpleAsync` asserts too early is `static`: the first run leaves it set, and the second run in
/// the same process does what it is there for. That needs a volume that is slow to write: when the write is done before the
/// reset, the tool frees it twice, and the next run crashes. In between, another test sleeps until the first write is done.
pub(super) const SECOND_RUN: (&str, &str) =
    ("iSCSITMF.LUNResetSimpleAsync", "iSCSIcmdsn.iSCSICmdSnTooHigh");

/// Tests that fail where a command is missing because they do not ask whether there is one: the test, one of the same
/// run that does ask, and what that says then.
pub const UNCHECKED: [(&str, &str, &str); 2] = [
    (
        "MultipathIO.CompareAndWriteAsync",
        "CompareAndWrite.Simple",
        "COMPAREANDWRITE is not implemented.",
    ),
    // It asks for a changeable software write protection first, although all that it would do then is to send SANITIZE.
    ("Sanitize.Readonly", "Sanitize.InvalidServiceAction", "SANITIZE is not implemented."),
];

const NO_CRYPTO_ERASE: &str =
    "SANITIZE CRYPTO_ERASE is not implemented according to REPORT_SUPPORTED_OPCODES.";

/// Tests of several parts that say of one part that they leave it out, and go on with the others: the test, and its words.
pub const PARTS: [(&str, &str); 2] =
    [("Sanitize.Readonly", NO_CRYPTO_ERASE), ("Sanitize.Reservations", NO_CRYPTO_ERASE)];

/// Tests that no configuration of lunet passes, and why.
pub const NEVER: [(&str, &str); 9] = [
    ("PreventAllow.Eject", LOADS_UNDER_PREVENT),
    (
        "Sanitize.CryptoErase",
        "it runs only if REPORT SUPPORTED OPERATION CODES lists CRYPTOGRAPHIC ERASE, which is for media that encrypt all \
         data; lunet's volumes do not",
    ),
    (
        "StartStopUnit.NoLoej",
        "it runs on removable media only, and it expects a stopped unit (START = 0) to be ready: SBC-4 says NOT READY",
    ),
    ("WriteAtomic16.Simple", NO_WRITE_ATOMIC),
    ("WriteAtomic16.BeyondEol", NO_WRITE_ATOMIC),
    ("WriteAtomic16.ZeroBlocks", NO_WRITE_ATOMIC),
    ("WriteAtomic16.WriteProtect", NO_WRITE_ATOMIC),
    ("WriteAtomic16.DpoFua", NO_WRITE_ATOMIC),
    ("WriteAtomic16.VPD", NO_WRITE_ATOMIC),
];

/// WRITE ATOMIC (16), SBC-4 5.48.
const NO_WRITE_ATOMIC: &str = "WRITE ATOMIC (16) is not implemented: it must hold across a power loss, which a file cannot guarantee on \
     arbitrary storage";
