# Helpers of the suites, for use in the guest. target.sh and lunet.sh start targets, initiator.sh logs in to them.

IQN=iqn.2026-11.local.lunet:lab
INITIATOR=iqn.2026-11.local.lab:initiator
LUNET=/run/programs/lunet LUNET_RUN=/run/lunet LUNET_DATA=/var/lib/lab

# fio with every written block verified (CRC32C of each block), on a file or device: PATH SIZE [fio options]
verified() {
    local path=$1 size=$2 out=/run/fio.$BASHPID create=1
    shift 2
    # Now and then fio took the node of a disk that had just been written to for a plain file, removed it, and laid a file out there:
    # then everything after it was read from that file. This makes it an error.
    case $path in /dev/*) create=0; [ -b "$path" ] || { echo "$path is not a disk"; return 1; } ;; esac
    # Nobody reads what it says of disks; and its main process, which does no I/O, once ended in free() when an NVMe disk had just lost a path.
    fio --disk_util=0 --name=verified --filename="$path" --size="$size" --allow_file_create=$create --direct=1 --ioengine=libaio --rw=randrw --bs=4k --iodepth=16 \
        --verify=crc32c --verify_fatal=1 --minimal "$@" >$out 2>&1 || { cat $out; return 1; }
}

# A verified load in the background, again and again until it is called off: NAME PATH SIZE [fio options]
load_begin() {
    local name=$1
    shift
    rm -f "/run/load.$name".*
    touch "/run/load.$name.rounds"
    (until [ -e "/run/load.$name.enough" ]; do verified "$@" || exit 1; echo >>"/run/load.$name.rounds"; done) &
    echo $! >"/run/load.$name.pid"
}

# It ends, and fails if anything in it has failed: NAME
load_end() {
    touch "/run/load.$1.enough"
    wait "$(cat "/run/load.$1.pid")"
    [ -s "/run/load.$1.rounds" ]
}

# An XFS or ext4 file system on a device, mounted at /mnt/fs: KIND DEVICE [option of mkfs ...]
mounted() {
    "mkfs.$1" -q "${@:3}" "$2"
    mkdir -p /mnt/fs
    mount "$2" /mnt/fs
}

# Unmounts /mnt/fs and has the file system's own tool look for damage: KIND DEVICE
unmounted_is_sound() {
    umount /mnt/fs
    case $1 in ext4) fsck.ext4 -fn "$2" ;; xfs) xfs_repair -n "$2" ;; esac >/run/fsck 2>&1 || { cat /run/fsck; return 1; }
}

# What the kernel has said since its line N: N
kernel_since() { dmesg | tail -n +"$1"; }

# What a failed test shows, before anything is cleared up.
show_state() {
    local log
    echo "--- kernel"
    kernel_since "${1:-1}" | tail -n 40
    echo "--- sessions, with what was negotiated"
    timeout 10 iscsiadm -m session -P 3 2>&1
    for log in /run/lunet/*.sock; do
        [ -S "$log" ] && timeout 10 "$LUNET" sessions --json --socket "$log" 2>&1
    done
    multipath -ll 2>/dev/null
    for log in /run/lunet/*.log /run/iscsid.log /run/multipathd.log /run/tlshd.log /run/sta[cf]d.log; do
        [ -e "$log" ] && echo "--- $log" && tail -n 40 "$log"
    done
    true
}

# What the suites are run with, for the table of clients.
versions() {
    printf 'Linux\t%s\n' "$(uname -r)"
    [ ! -e /sys/module/zfs/version ] || printf 'ZFS\t%s\n' "$(cat /sys/module/zfs/version)"
    # No guest has all of them.
    dpkg-query -W -f '${Package}\t${Version}\n' open-iscsi multipath-tools sg3-utils fio e2fsprogs xfsprogs nvme-cli ktls-utils nvme-stas 2>/dev/null || true
}

# Kills every process of this name. Each command that is run costs an emulated processor a part of a second, so none is.
killed() {
    local process name
    for process in /proc/[0-9]*; do
        { read -r name <"$process/comm"; } 2>/dev/null && [ "$name" = "$1" ] && kill -9 "${process#/proc/}"
    done
    true
}

# Takes away whatever a test left behind.
clear_up() {
    killed fio
    network_mend
    awk '$2 ~ "^/mnt/" {print $2}' /proc/mounts | sort -r | xargs -r -n1 umount -f
    multipath_clear
    initiator_clear
    nvme_clear
    target_clear
    zfs_clear
    network_restore
    losetup -D
    rm -rf /var/lib/lab /mnt/*
    true
}

HELPERS=${BASH_SOURCE%/*}
. "$HELPERS/words.sh"
. "$HELPERS/lunet.sh"
. "$HELPERS/target.sh"
. "$HELPERS/initiator.sh"
. "$HELPERS/nvme.sh"
. "$HELPERS/tls.sh"
. "$HELPERS/stas.sh"
. "$HELPERS/multipath.sh"
. "$HELPERS/network.sh"
. "$HELPERS/zfs.sh"
. "$HELPERS/rdma.sh"
. "$HELPERS/speed.sh"
