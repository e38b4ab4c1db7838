# Helpers of the suites, for use in the guest. target.sh starts targets, initiator.sh logs in to them.

IQN=iqn.2026-11.local.lunet:lab
INITIATOR=iqn.2026-11.local.lab:initiator
# The target that the suites are run against: lunet, or the kernel's LIO, which tells whose fault a failure is.
LAB_TARGET=${LAB_TARGET:-lunet}
# How much a test does where more is better: rounds of 5 in CI, of 100 in a long run.
LAB_ROUNDS=${LAB_ROUNDS:-5}

# A word about what was measured, shown beside a passed test.
note() { echo "note: $*"; }

# Ends the test: it makes no sense here, for this reason.
skip() { echo "skip: $*"; exit 77; }

# First line of a test that is about lunet's own commands, or kills it: LIO has no process that could be killed.
lunet_only() { [ "$LAB_TARGET" = lunet ] || skip "${*:-about lunet itself}"; }

# Says what was expected if the two are not the same.
same() { [ "$1" = "$2" ] || { echo "    ${3:-values differ}: got '$1', wanted '$2'"; return 1; }; }

# Retries a command for so many seconds until it succeeds.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/run/within 2>&1; do
        [ $SECONDS -lt $end ] || { echo "    not within time: $*"; cat /run/within; return 1; }
        sleep 0.2
    done
}

# fio with every written block verified (CRC32C of each block), on a file or device: PATH SIZE [fio options]
verified() {
    local path=$1 size=$2
    shift 2
    fio --name=verified --filename="$path" --size="$size" --direct=1 --ioengine=libaio --rw=randrw --bs=4k --iodepth=16 \
        --verify=crc32c --verify_fatal=1 --minimal "$@" >/run/fio.out 2>&1 || { cat /run/fio.out; return 1; }
}

# An XFS or ext4 file system on a device, mounted at /mnt/fs: KIND DEVICE
mounted() {
    "mkfs.$1" -q "$2"
    mkdir -p /mnt/fs
    mount "$2" /mnt/fs
}

# Unmounts /mnt/fs and has the file system's own tool look for damage: KIND DEVICE
unmounted_is_sound() {
    umount /mnt/fs
    case $1 in ext4) fsck.ext4 -fn "$2" ;; xfs) xfs_repair -n "$2" ;; esac >/run/fsck 2>&1 || { cat /run/fsck; return 1; }
}

# What a failed test shows, before anything is cleared up.
show_state() {
    local log
    echo "--- kernel"
    dmesg | tail -n +"${1:-1}" | tail -n 40
    echo "--- sessions, with what was negotiated"
    timeout 10 iscsiadm -m session -P 3 2>&1
    for log in /run/lunet/*.sock; do
        [ -S "$log" ] && timeout 10 /host/lunet sessions --json --socket "$log" 2>&1
    done
    multipath -ll 2>/dev/null
    for log in /run/lunet/*.log /run/iscsid.log; do
        [ -e "$log" ] && echo "--- $log" && tail -n 40 "$log"
    done
    true
}

# Takes away whatever a test left behind.
clear_up() {
    pkill -9 fio
    awk '$2 ~ "^/mnt/" {print $2}' /proc/mounts | sort -r | xargs -r -n1 umount -f
    network_restore
    pkill -x multipathd
    multipath -F
    initiator_clear
    target_clear
    zfs_clear
    losetup -D
    rm -rf /var/lib/lab /mnt/*
    true
}

. /host/guest/target.sh
. /host/guest/initiator.sh
. /host/guest/network.sh
. /host/guest/zfs.sh
