//! libiscsi's own test suite.

use anyhow::{Result, ensure};
use lunet_e2e::conformance::{list, run};
use lunet_e2e::server::Serve;

/// Of the 230 tests of libiscsi 1.19.
const PASS_AT_LEAST: usize = 160;

#[test]
fn iscsi_test_cu_passes_and_none_fails_or_hangs() -> Result<()> {
    let server = Serve::demo("512M").quiet().start()?;
    let report = run(server.url(), &list()?, |_| {})?;
    let counts = report.counts();
    ensure!(counts.failed + counts.hung == 0, "{counts:?}\n{}", report.failures());
    ensure!(counts.passed >= PASS_AT_LEAST, "{counts:?}\n{}", report.markdown(""));
    server.stop()?;
    Ok(())
}
