//! A server to measure, `lunet bench` with arguments, and what its end must look like.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunet_e2e::data::scratch;
use lunet_e2e::process::{Finished, run};
use lunet_e2e::server::{Serve, Server, lunet_binary, url};
use serde_json::Value;
use tempfile::TempDir;

/// A benchmark of a few seconds, on a busy machine too.
pub const LIMIT: Duration = Duration::from_secs(180);
/// From a signal to the end.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const SECRET: &str = "a-secret-of-the-bench";

pub const CONFIG: &str = r#"
[server]
[[portal]]
address = "127.0.0.1:0"
[volumes.null]
backend = "null"
size = "64MiB"
[volumes.mem]
backend = "memory"
size = "64MiB"
[[target]]
name = "iqn.2026-11.local.lunet:bench"
luns = ["null", "mem"]
[[target]]
name = "iqn.2026-11.local.lunet:locked"
luns = { 3 = "mem" }
user = [{ name = "joe", secret-file = "joe.secret" }]
"#;

/// A server, and the addresses of its null and its memory volume. Its directory goes after it.
pub struct Fixture {
    pub server: Server,
    pub null: String,
    pub mem: String,
    _dir: TempDir,
}

pub fn fixture() -> Result<Fixture> {
    let dir = scratch("lunet-bench-e2e-")?;
    private(dir.path(), "joe.secret", SECRET)?;
    let server = Serve::config(CONFIG).data(dir.path()).start()?;
    let url = |lun| url(server.portal(), "iqn.2026-11.local.lunet:bench", lun);
    let (null, mem) = (url(0), url(1));
    Ok(Fixture { server, null, mem, _dir: dir })
}

/// A file that nobody but its owner may read.
pub fn private(dir: &Path, name: &str, text: &str) -> Result<String> {
    let path = dir.join(name);
    fs::write(&path, format!("{text}\n"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(path.to_str().context("a name")?.to_owned())
}

pub fn bench<S: AsRef<OsStr>>(arguments: &[S]) -> Result<Finished> {
    let mut command = Command::new(lunet_binary()?);
    command.arg("bench").args(arguments).env_remove("LIBISCSI_CHAP_PASSWORD");
    command.env_remove("LUNET_DHCHAP_SECRET");
    run(&mut command, LIMIT)
}

pub fn code(finished: &Finished) -> Option<i32> {
    finished.status.and_then(|status| status.code())
}

/// Exit code 0, and the results.
pub fn measured<S: AsRef<OsStr>>(arguments: &[S]) -> Result<Value> {
    let finished = bench(arguments)?;
    ensure!(code(&finished) == Some(0), "{}", finished.describe());
    serde_json::from_str(&finished.stdout).with_context(|| finished.describe())
}

/// Exit code 2, nothing on standard output, one sentence.
pub fn refused<S: AsRef<OsStr>>(arguments: &[S]) -> Result<String> {
    let finished = bench(arguments)?;
    ensure!(
        code(&finished) == Some(2)
            && finished.stdout.is_empty()
            && finished.stderr.lines().count() == 1
            && finished.stderr.starts_with("lunet: "),
        "{}",
        finished.describe()
    );
    Ok(finished.stderr)
}

pub fn all<'a>(results: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    results[key].as_array().with_context(|| format!("no {key}: {results}"))
}

/// Bytes that were written to a volume since the server began.
pub fn written(server: &Server, volume: &str) -> Result<u64> {
    let stats: Value = serde_json::from_str(&server.tell(&["stats", "--json"])?)?;
    let own = all(&stats, "volumes")?.iter().find(|one| one["name"] == volume);
    own.and_then(|one| one["write"]["bytes"].as_u64()).context("no such volume")
}

pub fn logins(server: &Server) -> Result<u64> {
    let stats: Value = serde_json::from_str(&server.tell(&["stats", "--json"])?)?;
    stats["protocol"]["logins"].as_u64().context("logins are counted")
}

/// What `lunet bench compare` reads makes sense: it checks before it compares.
pub fn readable(dir: &Path, results: &Value) -> Result<String> {
    let file = dir.join("results.json");
    fs::write(&file, results.to_string())?;
    let name = file.to_str().context("a name")?;
    let finished = bench(&["compare", name, name])?;
    ensure!(code(&finished) == Some(0), "{}", finished.describe());
    Ok(finished.stdout)
}
