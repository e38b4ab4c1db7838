//! `lunet bench verify`: a LUN that keeps its data passes, one that forgets it does not.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::support::*;

/// As short as it makes sense.
fn verify(url: &str, more: &[&str]) -> Vec<String> {
    let all = ["verify", url, "--size=8MiB", "--runtime=500ms", "--json"];
    all.iter().chain(more).map(|word| (*word).to_owned()).collect()
}

#[test]
fn a_lun_that_keeps_its_data_passes() -> Result<()> {
    let fixture = fixture()?;
    let told = measured(&verify(&fixture.mem, &[]))?;
    ensure!(told["complete"] == true && told["wrong_blocks"] == 0, "{told}");
    let (compared, flushes) = (&told["compared_blocks"], &told["flushes"]);
    ensure!(compared.as_u64() > Some(1000) && flushes.as_u64() > Some(1), "{told}");
    ensure!(written(&fixture.server, "mem")? >= told["written_bytes"].as_u64().context("bytes")?);
    let again = refused(&verify(&fixture.mem, &[]))?;
    ensure!(again.contains("holds data") && again.contains("--destroy"), "{again}");
    measured(&verify(&fixture.mem, &["--destroy", &fixture.mem, "--jobs=1", "--digest=both"]))?;
    Ok(())
}

/// The null volume takes all writes and keeps none.
#[test]
fn a_lun_that_forgets_its_data_is_told() -> Result<()> {
    let fixture = fixture()?;
    let finished = bench(&verify(&fixture.null, &[]))?;
    ensure!(code(&finished) == Some(1), "{}", finished.describe());
    let told: Value = serde_json::from_str(&finished.stdout)?;
    let wrong = told["wrong_blocks"].as_u64().context("a number")?;
    let faults = &told["faults"];
    ensure!(wrong > 1000 && faults["lost"] == wrong && told["complete"] == true, "{faults}");
    let finding = &all(&told, "findings")?[0];
    ensure!(finding["lasting"] == true, "{finding}");
    ensure!(
        finding["text"].as_str().is_some_and(|text| text.contains("found zeroes")),
        "{finding}"
    );
    // For people it is said in words.
    let words = verify(&fixture.null, &[]).into_iter().filter(|word| word != "--json");
    let finished = bench(&words.collect::<Vec<_>>())?;
    ensure!(code(&finished) == Some(1), "{}", finished.describe());
    let told = finished.stdout;
    ensure!(told.contains("were WRONG") && told.contains("LOST LBA"), "{told}");
    Ok(())
}

#[test]
fn what_cannot_be_verified_is_said_in_a_sentence() -> Result<()> {
    let fixture = fixture()?;
    let told = refused(&["verify", "/dev/null"])?;
    ensure!(told.contains("cannot be verified: give an address"), "{told}");
    let told = refused(&verify(&fixture.mem, &["--destroy", &fixture.null]))?;
    ensure!(told.contains("is not what is verified"), "{told}");
    let told = refused(&verify("iscsi://127.0.0.1:1/iqn.2026-11.x:y/0", &[]))?;
    ensure!(told.contains("127.0.0.1"), "{told}");
    Ok(())
}
