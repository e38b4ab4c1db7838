# ZFS on the guest's emulated NVMe drives. Sourced by lib.sh; for suites with `-Z` and `-d 8` among their options for lab/run.

POOL=tank
# A small cache, so that most reads come from the drives, where the damage is, and not from memory.
ZFS_ARC=$((128 << 20))

# Loads ZFS, which lab/zfs has built and lab/run has put beside the helpers.
zfs_load() {
    local module
    [ ! -e /sys/module/zfs ] || return 0
    for module in $(modinfo -F depends /host/spl.ko /host/zfs.ko | tr ',' ' '); do [ "$module" = spl ] || modprobe "$module"; done
    insmod /host/spl.ko
    insmod /host/zfs.ko zfs_arc_max=$ZFS_ARC
    within 40 test -c /dev/zfs
}

# The pool of the machine that lunet is for: eight drives in two raidz1 vdevs. Datasets are mounted below /tank. [zpool create options]
zfs_pool() {
    local part=
    zfs_load
    # Giving drives their partitions takes ZFS some seconds. Those that an earlier pool has left will do.
    [ ! -b /dev/nvme7n1p1 ] || part=p1
    # An I/O error is an error: the default would wait until somebody fixes it.
    zpool create -f -o ashift=12 -o failmode=continue -O atime=off "$@" $POOL \
        raidz1 /dev/nvme{0..3}n1$part raidz1 /dev/nvme{4..7}n1$part
}

# What the pool calls its drive number N: the whole drive in the first pool of a boot, its partition in later ones.
zfs_drive() { zpool status $POOL | awk -v drive="^nvme$1n1" '$1 ~ drive {print $1}'; }

# Makes a zvol and prints its device: NAME SIZE [zfs create options]
zvol() {
    local name=$1 size=$2
    shift 2
    zfs create -V "$size" "$@" $POOL/"$name"
    within 60 test -b /dev/zvol/$POOL/"$name"
    echo /dev/zvol/$POOL/"$name"
}

# A property of a dataset, or of "" for the pool, in plain bytes, after everything that was written or freed has reached the pool: NAME PROPERTY
zfs_bytes() {
    zpool sync $POOL
    zfs get -Hp -o value "$2" "$POOL${1:+/$1}"
}

# Waits for the end of scrubs and resilvers. A resilver that was put off until this one has ended may begin after it.
zfs_quiet() { zpool wait -t scrub,resilver $POOL; }

# Reads all that the pool has, and repairs it. ZFS refuses to while it resilvers, and leaves off for a resilver that begins: each drive that comes back may ask
# for one of its own, so neither is a fault, and another attempt follows.
zfs_scrub() {
    local attempt
    for attempt in 1 2 3 4 5; do
        zfs_quiet
        # What a scrub says after it was left off is about the resilver.
        if zpool scrub -w $POOL && zpool status $POOL >"$LAB_SCRATCH/scrubbed" && grep -q 'scan: scrub repaired' "$LAB_SCRATCH/scrubbed"; then return 0; fi
    done
    echo "    no scrub came to its end in $attempt attempts" >&2
    zpool status $POOL >&2
    return 1
}

# Takes the pool away, whatever has become of it, and everything that its drives could be known by.
zfs_clear() {
    local pool drive
    [ -e /sys/module/zfs ] || return 0
    # udev may still be looking at a zvol.
    for pool in $(zpool list -H -o name); do within 60 zpool destroy -f "$pool"; done
    for drive in /dev/nvme?n1p1; do
        [ ! -b "$drive" ] || blkdiscard -f "$drive"
    done
}
