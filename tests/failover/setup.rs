//! What a gateway refuses at its start, in one sentence.

use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};
use lunet_e2e::ceph::cluster;
use lunet_e2e::data::scratch;
use lunet_e2e::process::run;
use lunet_e2e::server::lunet_binary;
use lunet_e2e::wire::scsi::{read16, sense_code};

use crate::world::{
    BLOCK, Group, PATIENCE, STANDBY, ask, becomes, log_in, says, told, undisturbed,
};

#[test]
fn options_of_ceph_that_would_endanger_data_are_refused() -> Result<()> {
    let _cluster = undisturbed();
    let Some(ceph) = cluster() else { return Ok(()) };
    let group = Group::new(ceph, "options")?;
    let folder = scratch("lunet-failover-")?;
    let (bad, right) = (folder.path().join("ceph.conf"), fs::read_to_string(ceph.conf())?);
    let config = group.config(1, "", &format!("ceph-conf = '{}'", bad.display()));
    for (setting, words) in [
        ("rados_osd_op_timeout = 30", "may still land over a newer one"),
        ("rados_mon_op_timeout = 30", "rados_mon_op_timeout"),
        ("rbd_persistent_cache_mode = ssd", "holds acknowledged writes"),
        ("rbd_cache_policy = writeback\nrbd_cache = true", "rbd_cache"),
        ("rbd_read_from_replica_policy = balance", "may be older"),
        ("rbd_blocklist_expire_seconds = 60", "let in again"),
    ] {
        fs::write(&bad, right.replace("[global]", &format!("[global]\n{setting}")))?;
        let server = group.configured(1, config.clone()).quiet().start()?;
        let trouble = says(&server, words)?;
        ensure!(trouble.lines().count() == 1, "{trouble}");
        ensure!(told(&server)?["state"] == "fenced", "it owns the group");
        server.stop()?;
    }
    fs::write(&bad, &right)?;
    // By an object map reads are answered without the cluster.
    ceph.rbd(&["feature", "enable", "rbd/options", "object-map", "fast-diff"])?;
    let server = group.configured(1, config.clone()).quiet().start()?;
    says(&server, "`rbd feature disable rbd/options object-map fast-diff`")?;
    server.stop()?;
    ceph.rbd(&["feature", "disable", "rbd/options", "object-map", "fast-diff"])?;
    // What an administrator sets for the image counts as well.
    ceph.rbd(&["config", "image", "set", "rbd/options", "rbd_cache", "true"])?;
    let server = group.configured(1, config).quiet().start()?;
    says(&server, "rbd_cache")?;
    // It is looked at again by itself.
    ceph.rbd(&["config", "image", "rm", "rbd/options", "rbd_cache"])?;
    becomes(&server, "owner")
}

#[test]
fn a_user_that_may_not_shut_others_out_is_refused_at_the_start() -> Result<()> {
    let _cluster = undisturbed();
    let Some(ceph) = cluster() else { return Ok(()) };
    let group = Group::new(ceph, "rights")?;
    let keyring = ceph.directory().join("keyring.client.weak");
    let rights = ["mon", "allow r", "osd", "profile rbd pool=rbd", "mgr", "profile rbd pool=rbd"];
    let out = ["-o", keyring.to_str().unwrap_or_default()];
    let words = [&["auth", "get-or-create", "client.weak"][..], &rights, &out].concat();
    ceph.ceph(&words)?;
    let config = group.config(1, "", "ceph-user = 'weak'");
    let server = group.configured(1, config.clone()).quiet().start()?;
    let trouble = says(&server, "client.weak")?;
    ensure!(
        trouble.lines().count() == 1
            && trouble.contains("blocklist")
            && trouble.contains("ceph auth caps client.weak mon 'profile rbd'"),
        "{trouble}"
    );
    ensure!(told(&server)?["state"] == "fenced", "it owns the group");
    // Nothing of the group is served meanwhile.
    let mut session = log_in(&server, "iqn.x:a")?;
    let refused = ask(&mut session, &read16(0, 1), BLOCK, &[])?;
    ensure!(refused.status != 0 && sense_code(&refused) != Some(STANDBY), "{refused:02x?}");
    // Nor is a group made for such a user.
    let folder = scratch("lunet-failover-")?;
    let file = folder.path().join("lunet.toml");
    fs::write(&file, config.replace("record = 'rbd://rbd/rights'", "record = 'rbd://rbd/new'"))?;
    let mut create = Command::new(lunet_binary()?);
    create.args(["group", "create", "vms", "--gateways", "2", "--config"]).arg(&file);
    let finished = run(&mut create, PATIENCE)?;
    ensure!(
        finished.status.is_some_and(|status| status.code() == Some(1)),
        "{}",
        finished.describe()
    );
    ensure!(finished.stderr.contains("ceph auth caps client.weak"), "{}", finished.stderr);
    // With the right it goes on by itself.
    let rights =
        [&["auth", "caps", "client.weak", "mon", "profile rbd"][..], &rights[2..]].concat();
    ceph.ceph(&rights)?;
    becomes(&server, "owner")
}
