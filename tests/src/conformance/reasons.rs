//! What the suite's own source says about tests that cannot tell anything of a target, or not all.

/// The only assertion that fails in `iSCSITMF.LUNResetSimpleAsync` of libiscsi 1.19.
pub(super) const TOOL_DEFECT: &str =
    "test_async_lu_reset_simple.c:157  - CU_ASSERT_EQUAL(reconnect_succeeded,1)";

/// Why it fails on every target.
pub(super) const TOOL_DEFECT_REASON: &str = "right after it queues LOGICAL UNIT RESET, before anything is sent, libiscsi 1.19 \
     asserts a flag that only the answer sets";

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
pub const NEVER: [(&str, &str); 2] = [
    (
        "Sanitize.CryptoErase",
        "it runs only where REPORT SUPPORTED OPERATION CODES lists CRYPTOGRAPHIC ERASE, which is for media that encrypt all \
         that they hold; lunet's volumes do not",
    ),
    ("iSCSITMF.LUNResetSimpleAsync", TOOL_DEFECT_REASON),
];
