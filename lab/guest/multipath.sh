# dm-multipath, with the settings that docs/multipath.md recommends. Sourced by lib.sh.

# Starts multipathd with the page's settings, and what makes it quick besides: [a further line for `defaults` ...]
multipath_start() {
    modprobe -a dm_multipath dm_service_time scsi_dh_alua
    # A check that is waited for: on a busy machine a path is 'pending' for a moment, and multipathd tells the target to prefer another.
    printf '    %s\n' 'polling_interval 1' 'max_polling_interval 1' 'fast_io_fail_tmo 2' 'force_sync yes' "$@" >/run/defaults
    sed -n '/^\(defaults\|devices\) {$/,/^}$/p' /host/docs/multipath.md | sed '/^defaults {$/r /run/defaults' >/etc/multipath.conf
    grep -q find_multipaths /etc/multipath.conf
    grep -q path_grouping_policy /etc/multipath.conf
    multipathd -d -s >/run/multipathd.log 2>&1 &
    within 60 multipathd show daemon
}

# The map over the paths, once it has so many of them: PATHS
multipath_map() {
    within 30 eval '[ "$(multipathd show paths format %m | grep -c mpath)" = '"$1"' ]' >&2
    udevadm settle -t 90
    echo "/dev/mapper/$(dmsetup ls --target multipath | cut -f1)"
}

multipath_clear() {
    local map
    pidof multipathd >/dev/null || return 0
    for map in $(dmsetup ls --target multipath | cut -f1); do dmsetup message "$map" 0 fail_if_no_path; done
    pkill -x multipathd
    within 40 eval '! pidof multipathd'
    multipath -F
}
