//! Volumes and their snapshots.

use hyper::StatusCode;
use lunet_api::{
    Answer, Backend, Change, Done, NewVolume, Request, Snapshot, Volume, VolumeLimits,
};
use serde::Deserialize;

use super::{FORCE, Of, Route, Run, Tagged, Verb, change, get, many, one, whole, with_tag};
use crate::app::{Call, json, tag};
use crate::problem::Problem;
use crate::reply::Response;
use crate::service::Role;

/// A volume to make. What is left out has the default of the configuration file; the backend is a file.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct VolumeToMake {
    /// Name of the volume, unique on the server.
    name: String,
    /// Where its blocks are kept.
    backend: Option<Backend>,
    /// In bytes.
    size: Option<u64>,
    /// Path of the file or device.
    path: Option<String>,
    /// Name of the image of Ceph, `rbd://POOL[/NAMESPACE]/IMAGE`: one that is there, or one that is made with `size`.
    image: Option<String>,
    /// User of the image's cluster, without `client.`; `admin` if left out.
    ceph_user: Option<String>,
    /// File that says where that cluster is; `/etc/ceph/ceph.conf` if left out.
    ceph_conf: Option<String>,
    /// File with the user's key; by that configuration if left out.
    ceph_keyring: Option<String>,
    /// All space is taken at once.
    #[serde(default)]
    full: bool,
    /// In bytes.
    block_size: Option<u32>,
    /// Writes are refused.
    #[serde(default)]
    read_only: bool,
    /// Every write is stable before its answer.
    #[serde(default)]
    write_through: bool,
    /// NAA designator in hexadecimal, which no other volume has; if left out, that of its name.
    naa: Option<String>,
    /// What is done with it in a time, from the beginning.
    #[serde(default)]
    limits: VolumeLimits,
}

/// A new size.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct Resize {
    /// In bytes; if left out, that which its device has by now.
    size: Option<u64>,
}

/// A snapshot to make.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct NewSnapshot {
    /// Its name, unique within its volume.
    snapshot: String,
}

/// A clone to make.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct NewClone {
    /// Name of the new volume.
    name: String,
    /// The content at that time; the present one if left out.
    snapshot: Option<String>,
    /// NAA designator in hexadecimal, which no other volume has; if left out, that of its name.
    naa: Option<String>,
}

/// Where to go back to.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct RollbackTo {
    /// Name of the snapshot.
    snapshot: String,
    /// Although sessions use the volume.
    #[serde(default)]
    force: bool,
}

fn volume(call: &Call) -> String {
    call.part("name").to_owned()
}

fn find<'a>(call: &Call, answer: &'a Answer) -> Option<&'a Volume> {
    let Answer::Volumes(all) = answer else { return None };
    all.iter().find(|volume| volume.name == call.part("name"))
}

/// The tag of what a volume is; not of how much is in it, and who uses it.
fn tag_of(volume: &Volume) -> String {
    let lasting = Volume { used_bytes: None, sessions: 0, erasure: None, ..volume.clone() };
    tag(&lasting)
}

fn show(call: &Call, answer: Answer) -> Result<Response, Problem> {
    match find(call, &answer) {
        Some(volume) => Ok(with_tag(json(StatusCode::OK, volume), &tag_of(volume))),
        None => Err(Problem::not_found(format!("there is no volume \"{}\"", call.part("name")))),
    }
}

const TAGGED: Tagged = Tagged::By(
    |_| Request::Volumes,
    |call, answer| find(call, answer).map(tag_of).into_iter().collect(),
);

const KEEP_DATA: super::Parameter = ("keep_data", Of::Flag, "Leave its data where it is");

fn make(call: &Call) -> Result<Change, Problem> {
    let new: VolumeToMake = call.json()?;
    // Any file or disk of the machine, or image of a cluster, can be named, and read and written as a volume then.
    let elsewhere = matches!(new.backend, Some(Backend::Block | Backend::Rbd));
    if (new.path.is_some() || elsewhere) && !call.who.role.may(Role::Administrator) {
        let text = "a volume with a path of its own, on a device, or in a cluster of Ceph, needs the role administrator";
        return Err(Problem::forbidden(text));
    }
    check_naa(call, new.naa.as_ref())?;
    Ok(Change::CreateVolume(NewVolume {
        name: new.name,
        backend: new.backend.unwrap_or(Backend::File),
        size: new.size,
        path: new.path.map(Into::into),
        image: new.image,
        ceph_user: new.ceph_user,
        ceph_conf: new.ceph_conf.map(Into::into),
        ceph_keyring: new.ceph_keyring.map(Into::into),
        full: new.full,
        block_size: new.block_size,
        read_only: new.read_only,
        write_through: new.write_through,
        naa: new.naa,
        limits: new.limits,
    }))
}

/// Initiators take disks with one designator for one, also those of other servers.
fn check_naa(call: &Call, naa: Option<&String>) -> Result<(), Problem> {
    if naa.is_some() && !call.who.role.may(Role::Administrator) {
        let text = "a volume with a designator of one's choice needs the role administrator";
        return Err(Problem::forbidden(text));
    }
    Ok(())
}

fn resize(call: &Call) -> Result<Change, Problem> {
    let Resize { size } = call.json_or_default()?;
    Ok(Change::ResizeVolume { name: volume(call), size })
}

fn limit(call: &Call) -> Result<Change, Problem> {
    let limits: VolumeLimits = call.json()?;
    Ok(Change::LimitVolume { name: volume(call), limits })
}

fn delete(call: &Call) -> Result<Change, Problem> {
    let (keep_data, force) = (call.flag("keep_data")?, call.flag("force")?);
    Ok(Change::DeleteVolume { name: volume(call), keep_data, force })
}

fn snapshot(call: &Call) -> Result<Change, Problem> {
    let NewSnapshot { snapshot } = call.json()?;
    Ok(Change::CreateSnapshot { volume: volume(call), snapshot })
}

fn clone(call: &Call) -> Result<Change, Problem> {
    let NewClone { name, snapshot, naa } = call.json()?;
    check_naa(call, naa.as_ref())?;
    Ok(Change::CloneVolume { volume: volume(call), snapshot, name, naa })
}

fn roll_back(call: &Call) -> Result<Change, Problem> {
    let RollbackTo { snapshot, force } = call.json()?;
    Ok(Change::Rollback { volume: volume(call), snapshot, force })
}

fn delete_snapshot(call: &Call) -> Result<Change, Problem> {
    let snapshot = call.part("snapshot").to_owned();
    Ok(Change::DeleteSnapshot { volume: volume(call), snapshot })
}

pub(super) const ROUTES: &[Route] = &[
    get(
        "/api/v1/volumes",
        "The volumes",
        many::<Volume>,
        Run::Read(|_| Ok(Request::Volumes), whole),
    ),
    get(
        "/api/v1/volumes/{name}",
        "A volume",
        one::<Volume>,
        Run::Read(|_| Ok(Request::Volumes), show),
    )
    .tagged(TAGGED),
    change(Verb::Post, "/api/v1/volumes", Role::Operator, "Makes a volume", make)
        .body(one::<VolumeToMake>)
        .answer(one::<Done>)
        .created(),
    change(
        Verb::Patch,
        "/api/v1/volumes/{name}",
        Role::Operator,
        "Gives a volume more room",
        resize,
    )
    .body(one::<Resize>)
    .answer(one::<Done>)
    .tagged(TAGGED),
    change(
        Verb::Patch,
        "/api/v1/volumes/{name}/limits",
        Role::Operator,
        "Limits what is done with a volume in a time",
        limit,
    )
    .body(one::<VolumeLimits>)
    .answer(one::<Done>)
    .tagged(TAGGED),
    change(
        Verb::Delete,
        "/api/v1/volumes/{name}",
        Role::Administrator,
        "Removes a volume, its LUNs and its data",
        delete,
    )
    .query(&[KEEP_DATA, FORCE])
    .answer(one::<Done>)
    .tagged(TAGGED),
    change(
        Verb::Post,
        "/api/v1/volumes/{name}/reopen",
        Role::Operator,
        "Opens the storage of a volume anew, and ends what a failed write-back began",
        |call| Ok(Change::ReopenVolume { name: volume(call) }),
    )
    .answer(one::<Done>),
    change(
        Verb::Post,
        "/api/v1/volumes/{name}/recreate",
        Role::Administrator,
        "Makes the file of a volume anew, empty, after it was lost",
        |call| Ok(Change::RecreateVolume { name: volume(call) }),
    )
    .answer(one::<Done>),
    change(
        Verb::Post,
        "/api/v1/volumes/{name}/adopt",
        Role::Administrator,
        "Takes what is in the place of a volume's storage as the volume",
        |call| Ok(Change::AdoptVolume { name: volume(call) }),
    )
    .answer(one::<Done>),
    get(
        "/api/v1/volumes/{name}/snapshots",
        "The snapshots of a volume",
        many::<Snapshot>,
        Run::Read(|call| Ok(Request::Snapshots { volume: Some(volume(call)) }), whole),
    ),
    get(
        "/api/v1/snapshots",
        "The snapshots of all volumes",
        many::<Snapshot>,
        Run::Read(|_| Ok(Request::Snapshots { volume: None }), whole),
    ),
    change(
        Verb::Post,
        "/api/v1/volumes/{name}/snapshots",
        Role::Operator,
        "Keeps the present content of a volume",
        snapshot,
    )
    .body(one::<NewSnapshot>)
    .answer(one::<Done>)
    .created(),
    change(
        Verb::Delete,
        "/api/v1/volumes/{name}/snapshots/{snapshot}",
        Role::Operator,
        "Removes a snapshot",
        delete_snapshot,
    )
    .answer(one::<Done>),
    change(
        Verb::Post,
        "/api/v1/volumes/{name}/clone",
        Role::Operator,
        "Makes a volume with the content of another one",
        clone,
    )
    .body(one::<NewClone>)
    .answer(one::<Done>)
    .created(),
    change(
        Verb::Post,
        "/api/v1/volumes/{name}/rollback",
        Role::Administrator,
        "Gives a volume the content of a snapshot",
        roll_back,
    )
    .body(one::<RollbackTo>)
    .answer(one::<Done>)
    .tagged(TAGGED),
];
