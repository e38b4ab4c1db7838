# dm-multipath, with the settings that docs/multipath.md recommends. Sourced by lib.sh.

# Has udev use rules that init has masked: NAME ...
udev_rules() {
    rm -f "${@/#//run/udev/rules.d/}"
    udevadm control --reload
}

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
    settled
    echo "/dev/mapper/$(dmsetup ls --target multipath | cut -f1)"
}

# For a suite that keeps the paths' disks in $disk, the map in $map, and the number of the kernel's lines before the test in $mark.

# The state that multipathd sees in a path, by its number; and its priority.
state() { multipathd show paths format '%d %t' | awk -v d="${disk[$1]#/dev/}" '$1 == d {print $2}'; }
priority() { multipathd show paths format '%d %p' | awk -v d="${disk[$1]#/dev/}" '$1 == d {print $2}'; }
is() { [ "$($1 "$2")" = "$3" ] || { echo "$1 of path $2 is '$($1 "$2")'"; return 1; }; }

# Sectors that a path has carried so far; and whether it carries some.
carried() { awk '{print $3 + $7}' "/sys/block/${disk[$1]#/dev/}/stat"; }
carries() {
    local before
    before=$(carried "$1")
    within 60 eval "[ \$(carried $1) -gt $((before + 100)) ]"
}

# A file system on the map, and blocks of it written again and again.
load() {
    # XFS wants 300 MiB for something real.
    if [ "$1" = xfs ]; then mounted xfs "$map" --unsupported; else mounted "$1" "$map"; fi
    load_begin main /mnt/fs/file 4M --rw=randwrite --norandommap --io_size=8M --bs=16k --serialize_overlap=1
    within 30 test -s /mnt/fs/file
}

# The end of the load. Nothing of what went on below may have got through to the file system.
no_harm_done() {
    load_end main
    unmounted_is_sound "$1" "$map"
    kernel_since $((mark + 1)) >/run/kernel
    fails grep -E "dev dm-|EXT4-fs (error|warning)|JBD2.*error|XFS .*([Ee]rror|[Ss]hut|[Cc]orrupt)" /run/kernel
    dd if="$map" of=/run/read bs=256k iflag=direct status=none
    cmp /run/read /var/lib/lab/disk0
}

multipath_clear() {
    local map
    pidof multipathd >/dev/null || return 0
    for map in $(dmsetup ls --target multipath | cut -f1); do dmsetup message "$map" 0 fail_if_no_path; done
    pkill -x multipathd
    within 40 eval '! pidof multipathd'
    multipath -F
}
