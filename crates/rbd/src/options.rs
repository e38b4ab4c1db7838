//! Settings of Ceph's client: those that must be, and those of others that are refused.

use crate::Error;

/// What lunet sets before it connects.
pub(crate) const SET: &[(&str, &str)] = &[
    // An acknowledged write is on the disks of the cluster, and no data is older here than there.
    ("rbd_cache", "false"),
    // A write that is answered because its time is over may land later. (The reason stands in `FORBIDDEN`, too.)
    ("rados_osd_op_timeout", "0"),
    ("rados_mon_op_timeout", "0"),
    // Whoever breaks a lock here has shut its owner out before, for longer than librbd would.
    ("rbd_blocklist_on_break_lock", "false"),
    // Requests never run on the thread that submits them: that one is an event loop.
    ("rbd_non_blocking_aio", "true"),
    // One thread each takes all that a shard can ask for, and costs a third less than the defaults.
    ("ms_async_op_threads", "1"),
    ("librados_thread_count", "1"),
    // Only to be let in by the monitors, in seconds.
    ("client_mount_timeout", "15"),
];

/// Settings of the client that librados reads and that nobody here overrides.
const CLIENT: &[&str] = &["rados_osd_op_timeout", "rados_mon_op_timeout"];

/// What a setting of another hand would do; `None` if it may be so. Asked of the settings in the configuration of Ceph before
/// lunet sets its own, and of those that hold for an image once it is open: pools and images have settings of their own.
pub fn forbidden(option: &str, value: &str) -> Option<&'static str> {
    let is = |expected: &str| value.eq_ignore_ascii_case(expected);
    let is_zero = || value.parse::<f64>() == Ok(0.0) || value.is_empty();
    match option {
        "rados_osd_op_timeout" | "rados_mon_op_timeout" if !is_zero() => Some(
            "a write that is given up after that time may still land over a newer one: remove the setting, or set it to 0",
        ),
        "rbd_cache_policy" if is("writeback") => {
            Some("acknowledged writes would be lost with this machine: remove the setting")
        }
        "rbd_persistent_cache_mode" if !is("disabled") && !value.is_empty() => Some(
            "a cache on this machine holds acknowledged writes that the cluster does not have: set it to \"disabled\"",
        ),
        "rbd_plugins" if value.contains("pwl_cache") => Some(
            "a cache on this machine holds acknowledged writes that the cluster does not have: remove pwl_cache",
        ),
        "rbd_read_from_replica_policy" if !is("default") && !value.is_empty() => {
            Some("a read from a replica may be older than one before: set it to \"default\"")
        }
        "rbd_blocklist_expire_seconds" if !is_zero() => Some(
            "a client that was shut out would be let in again with its old writes, and Ceph 16 refuses to break locks with \
             it: remove the setting, or set it to 0",
        ),
        _ => None,
    }
}

/// What a setting that holds for an open image would do, in spite of what lunet has set for the client.
pub(crate) fn forbidden_of_image(option: &str, value: &str) -> Option<&'static str> {
    match option {
        "rbd_cache" if value.eq_ignore_ascii_case("true") || value == "1" => Some(
            "the pool or the image switches the cache on, so that acknowledged writes would be lost with this machine: \
             remove it with `rbd config image rm` or `rbd config pool rm`",
        ),
        "rbd_blocklist_on_break_lock" if value.eq_ignore_ascii_case("true") || value == "1" => {
            Some(
                "the pool or the image sets it, and whoever breaks a lock would be trusted for an hour only: remove it with \
             `rbd config image rm` or `rbd config pool rm`",
            )
        }
        "rbd_non_blocking_aio" if value.eq_ignore_ascii_case("false") || value == "0" => Some(
            "the pool or the image sets it, and requests would hold up an event loop: remove it with `rbd config image rm` or \
             `rbd config pool rm`",
        ),
        _ => forbidden(option, value),
    }
}

/// Names of all settings that are looked at before lunet sets its own.
pub(crate) fn looked_at() -> impl Iterator<Item = &'static str> {
    let of_rbd = [
        "rbd_cache_policy",
        "rbd_persistent_cache_mode",
        "rbd_plugins",
        "rbd_read_from_replica_policy",
        "rbd_blocklist_expire_seconds",
    ];
    CLIENT.iter().copied().chain(of_rbd)
}

/// Refuses a setting that must not be.
pub(crate) fn check(
    option: &str,
    value: &str,
    judge: fn(&str, &str) -> Option<&'static str>,
) -> Result<(), Error> {
    match judge(option, value) {
        None => Ok(()),
        Some(why) => {
            Err(Error::Setting { option: option.to_owned(), value: value.to_owned(), why })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_of_ceph_are_taken() {
        for (option, value) in [
            ("rados_osd_op_timeout", "0.000000"),
            ("rados_osd_op_timeout", "0"),
            ("rados_mon_op_timeout", "0"),
            ("rbd_cache_policy", "writearound"),
            ("rbd_persistent_cache_mode", "disabled"),
            ("rbd_plugins", ""),
            ("rbd_plugins", "parent_cache"),
            ("rbd_read_from_replica_policy", "default"),
            ("rbd_blocklist_expire_seconds", "0"),
            ("rbd_cache", "true"),
        ] {
            assert_eq!(forbidden(option, value), None, "{option} = {value}");
        }
    }

    #[test]
    fn what_endangers_data_is_refused() {
        for (option, value) in [
            ("rados_osd_op_timeout", "30"),
            ("rados_osd_op_timeout", "30.000000"),
            ("rados_mon_op_timeout", "0.5"),
            ("rbd_cache_policy", "writeback"),
            ("rbd_persistent_cache_mode", "ssd"),
            ("rbd_persistent_cache_mode", "rwl"),
            ("rbd_plugins", "parent_cache,pwl_cache"),
            ("rbd_read_from_replica_policy", "balance"),
            ("rbd_read_from_replica_policy", "localize"),
            ("rbd_blocklist_expire_seconds", "3600"),
        ] {
            let error = check(option, value, forbidden).expect_err(option).to_string();
            assert!(error.contains(option) && error.contains(value), "{error}");
            assert!(forbidden_of_image(option, value).is_some(), "{option} = {value}");
        }
        for (option, value) in [("rbd_cache", "true"), ("rbd_non_blocking_aio", "false")] {
            assert!(forbidden_of_image(option, value).is_some(), "{option} = {value}");
        }
    }
}
