# The guest's side of the suite `crash`: four volumes that live on through crashes, and a server of them that can be killed.
# Needs lib.sh; runs until the guest is killed.

# The drive that lab/run gave this number, NVMe or virtio: the kernel's own numbers are in the order in which they were found.
drive() {
    local d
    for d in /sys/block/nvme* /sys/block/vd*; do
        [ "$(cat "$d/serial" "$d/device/serial" 2>/dev/null | tr -d ' ')" != "LAB$1" ] || echo "/dev/${d##*/}"
    done
}

zfs_is_there() { [ -e /host/zfs.ko ]; }

# The volumes at the first boot: a file on ext4, one on XFS, a raw drive, and a zvol, or a second raw drive. They begin as zeroes.
make_volumes() {
    local kind
    mkfs.ext4 -q "$(drive 0)"
    mkfs.xfs -q "$(drive 1)"
    if zfs_is_there; then
        zpool create -f -o ashift=12 -O atime=off -m none crash "$(drive 3)"
        zfs create -V 64M crash/disk
    fi
    for kind in ext4 xfs; do
        mount_volume $kind
        truncate -s 64M /mnt/$kind/disk
    done
    sync
    if zfs_is_there; then zpool sync crash; fi
    touch /host/made
}

# At a later boot: the file systems replay their journals, the pool its intent log.
find_volumes() {
    mount_volume ext4
    mount_volume xfs
    # This machine had another host id before the crash, or none at all.
    if zfs_is_there; then zpool import -f -d "$(echo "$(drive 3)"*1)" -N crash; fi
}

mount_volume() {
    mkdir -p /mnt/"$1"
    mount -t "$1" "$(drive $([ "$1" = ext4 ] && echo 0 || echo 1))" /mnt/"$1"
}

# Serves them as LUN 0 to 3, to the host too.
serve_volumes() {
    modprobe -a ext4 xfs
    local last
    last=$(drive 3)
    if zfs_is_there; then zfs_load; last=/dev/zvol/crash/disk; fi
    if [ -e /host/made ]; then find_volumes; else make_volumes; fi
    within 30 test -b "$last"
    target_start path=/mnt/ext4/disk,/mnt/xfs/disk,"$(drive 2)","$last" portals=10.0.2.15:3260
}

# Kills the server and starts it again whenever the host puts a file `kill` there.
stand_by() {
    touch /host/ready
    while true; do
        if [ -e /host/kill ]; then
            stop -9
            start_again
            rm /host/kill
        fi
        sleep 0.1
    done
}
