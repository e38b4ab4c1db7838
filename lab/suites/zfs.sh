# Volumes on ZFS: zvols, and files of a dataset, on a pool of eight NVMe drives in two raidz1 vdevs.
# client: ZFS
# run: -d 8 -Z -m 3072
# minutes: 6

suite_setup() { zfs_load; }

# Makes a thin zvol of so many MiB, and a file of that size in a dataset: MIB. Sets $zvol and $file.
storage() {
    zfs_pool -O compression=off
    zvol=$(zvol disk "${1}M" -s)
    zfs create $POOL/files
    file=/$POOL/files/disk.img
    truncate -s "${1}M" $file
}

# The target with both, or with what is named instead, and the initiator's disks for them: [target_start options] Sets $d0 and $d1.
serve_storage() {
    target_start path="$zvol,$file" "$@"
    login 127.0.0.1:3260 >/run/disks
    d0=$(sed -n 1p /run/disks)
    d1=$(sed -n 2p /run/disks)
}

# The content of a disk as the target gives it now.
content() { dd if="$1" bs=1M iflag=direct status=none | md5sum; }

# Random data: MIB DISK [dd options]
scribble() {
    local count=$1 disk=$2
    shift 2
    dd if=/dev/urandom of="$disk" bs=1M count="$count" oflag=direct conv=notrunc status=none "$@"
}

# The verified load of the tests with broken drives: fills a part of a disk, or checks what is there: DISK [fio options]
filled() {
    local disk=$1
    shift
    verified "$disk" 96M --rw=write --bs=128k "$@"
}

test_file_systems_with_verified_load() {
    local size
    storage 300
    serve_storage
    for disk in "ext4 $d0" "xfs $d1"; do
        # shellcheck disable=SC2086 # kind and device
        mounted $disk
        for size in 4k 128k; do verified /mnt/fs/v$size 12M --bs=$size --fsync=32; done
        # shellcheck disable=SC2086
        unmounted_is_sound $disk
    done
}

# long
test_blocks_of_4096_bytes() {
    local disk
    lunet_only "LIO gives a device the blocks that it has"
    storage 64
    serve_storage block=4096
    for disk in $d0 $d1; do
        same "$(blockdev --getss "$disk")" 4096
        verified "$disk" 8M --iodepth=32
    done
    # The device itself has blocks of 512 bytes, and so has the disk if nothing else is asked for.
    logout
    stop
    serve_storage
    same "$(blockdev --getss "$d0") $(blockdev --getpbsz "$d0")" "512 16384"
    verified "$d0" 16M --bs=512 --iodepth=32 --number_ios=2000
}

# long
test_fstrim_gives_space_back_to_the_pool() {
    storage 256
    serve_storage
    fstrim_gives_back "$d0" disk
    fstrim_gives_back "$d1" files
}

# DISK DATASET
fstrim_gives_back() {
    local full empty sum
    mounted ext4 "$1"
    dd if=/dev/urandom of=/mnt/fs/keep bs=1M count=8 status=none
    dd if=/dev/urandom of=/mnt/fs/big bs=1M count=64 status=none
    sync
    sum=$(md5sum </mnt/fs/keep)
    full=$(zfs_bytes "$2" used)
    rm /mnt/fs/big
    sync
    fstrim /mnt/fs
    empty=$(zfs_bytes "$2" used)
    note "$2: $((full >> 20)) MiB used before, $((empty >> 20)) MiB after"
    [ "$full" -gt $((72 << 20)) ]
    [ "$empty" -lt $((24 << 20)) ]
    umount /mnt/fs
    blockdev --flushbufs "$1"
    mount "$1" /mnt/fs
    same "$(md5sum </mnt/fs/keep)" "$sum"
    unmounted_is_sound ext4 "$1"
}

# Ranges that begin and end anywhere, so that most have parts of ZFS's blocks of 16 KiB at their edges.
test_unmapped_blocks_are_zero_and_their_neighbours_untouched() {
    storage 32
    serve_storage
    pieces_are_zero "$d0" disk
    pieces_are_zero "$d1" files
}

# DISK DATASET
pieces_are_zero() {
    local i from length before
    scribble 32 "$1"
    dd if="$1" of=/run/image bs=1M iflag=direct status=none
    before=$(zfs_bytes "$2" referenced)
    for i in $(seq 30); do
        from=$((RANDOM % 64000))
        length=$((RANDOM % 1200 + 1))
        # LIO knows no WRITE SAME on a zvol.
        if [ $((i % 3)) = 0 ] && [ "$LAB_TARGET" = lunet ]; then
            sg_write_same --10 --unmap --lba=$from --num=$length --xferlen=512 -i /dev/zero "$1"
        else
            sg_unmap --force --lba=$from --num=$length "$1"
        fi
        dd if=/dev/zero of=/run/image bs=512 seek=$from count=$length conv=notrunc status=none
    done
    # Without permission to unmap: zeroes, and room for them, or not.
    if [ "$LAB_TARGET" = lunet ]; then
        sg_write_same --10 --lba=65001 --num=77 --xferlen=512 -i /dev/zero "$1"
        dd if=/dev/zero of=/run/image bs=512 seek=65001 count=77 conv=notrunc status=none
    fi
    dd if="$1" of=/run/found bs=1M iflag=direct status=none
    LAB_TARGET=$LAB_TARGET python3 - <<'PY'
import os
wanted, found = open('/run/image', 'rb').read(), open('/run/found', 'rb').read()
assert len(found) == len(wanted), 'size'
strict = os.environ['LAB_TARGET'] == 'lunet'
for at in range(0, len(wanted), 512):
    w, f = wanted[at:at + 512], found[at:at + 512]
    # LIO hands an unmap down as it is, and says nothing of what a freed block reads as.
    assert w == f or (not strict and not any(w)), f'block {at // 512} should be {w[:8]}, and is {f[:8]}'
PY
    [ "$(zfs_bytes "$2" referenced)" -lt $((before - (2 << 20))) ]
}

test_resize_is_seen_after_a_rescan() {
    local sum
    lunet_only
    storage 48
    serve_storage
    scribble 48 "$d0"
    sum=$(content "$d0")
    zfs set volsize=64M $POOL/disk
    ask volume resize disk0
    iscsiadm -m session --rescan
    within 40 eval '[ $(blockdev --getsize64 $d0) = $((64 << 20)) ]'
    # One command for both.
    ask volume resize disk0 96MiB
    same "$(zfs_bytes disk volsize)" $((96 << 20))
    ask volume resize disk1 96MiB
    iscsiadm -m session --rescan
    within 40 eval '[ $(blockdev --getsize64 $d0) = $((96 << 20)) ]'
    within 40 eval '[ $(blockdev --getsize64 $d1) = $((96 << 20)) ]'
    same "$(dd if="$d0" bs=1M count=48 iflag=direct status=none | md5sum)" "$sum"
    verified "$d0" 16M --offset=80M --bs=64k
    verified "$d1" 16M --offset=80M --bs=64k
}

test_snapshots_clones_and_rollbacks() {
    lunet_only
    storage 32
    serve_storage
    snapshot_and_back "$d0" disk0 2
    snapshot_and_back "$d1" disk1 3
}

# DISK VOLUME FREE_LUN
snapshot_and_back() {
    local first second clone copy
    scribble 32 "$1"
    first=$(content "$1")
    ask volume snapshot "$2@first"
    scribble 4 "$1" seek=3
    second=$(content "$1")
    says "$2@first" ask volume snapshots "$2"
    # A volume of its own with the content of then.
    ask volume clone "$2@first" "copy-of-$2"
    ask target map $IQN "$3" "copy-of-$2"
    disks >/run/before
    iscsiadm -m session --rescan
    within 40 eval '[ $(disks | wc -l) -gt $(wc -l </run/before) ]'
    settled
    clone=$(comm -13 <(sort /run/before) <(disks | sort))
    same "$(content "$clone")" "$first" "the clone"
    scribble 4 "$clone" seek=20
    copy=$(content "$clone")
    same "$(content "$1")" "$second" "the volume, after a write to its clone"
    # Not under the feet of whoever uses it, unless that is meant.
    fails ask volume rollback "$2@first" --yes
    same "$(content "$1")" "$second" "the volume, after a refused rollback"
    ask volume rollback "$2@first" --yes --force
    same "$(content "$1")" "$first" "the volume, after its rollback"
    same "$(content "$clone")" "$copy" "the clone, after the rollback"
    verified "$1" 8M --bs=16k
    ask volume delete "copy-of-$2" --yes --force
    if [ "$2" = disk0 ]; then
        # ZFS keeps what a clone is from.
        fails ask volume delete "$2@first" --yes
        within 60 zfs destroy "$POOL/copy-of-$2"
    fi
    ask volume delete "$2@first" --yes
    says "no snapshots" ask volume snapshots "$2"
}

# long
test_snapshots_under_load() {
    local load i
    lunet_only
    storage 64
    serve_storage
    verified "$d0" 48M --bs=16k --rate_iops=400 &
    load=$!
    for i in 1 2 3; do
        sleep 1
        ask volume snapshot disk0@s$i
    done
    ask volume clone disk0@s2 copy
    same "$(ask volume snapshots disk0 | grep -c disk0@s)" 3
    wait $load
    ask volume rollback disk0@s3 --yes --force
    # Later snapshots would have to go for an earlier one: ZFS refuses that, and nothing has changed.
    content "$d0" >/run/content
    fails ask volume rollback disk0@s1 --yes --force
    same "$(content "$d0")" "$(cat /run/content)"
}

test_a_copy_within_a_dataset() {
    lunet_only
    storage 32
    truncate -s 32M /$POOL/files/other.img
    serve_storage path="$file,/$POOL/files/other.img"
    scribble 16 "$d0"
    sg_xcopy if="$d0" of="$d1" count=32768 bs=512
    blockdev --flushbufs "$d1"
    cmp -n $((16 << 20)) "$d0" "$d1"
    [ "$(counted copied_bytes)" -ge $((16 << 20)) ]
}

# long
test_drives_go_and_come_back_under_load() {
    local load
    storage 160
    serve_storage path="$zvol"
    filled "$d0" --do_verify=0
    verified "$d0" 48M --offset=104M --bs=16k --rate_iops=300 &
    load=$!
    # One of each vdev.
    zpool offline $POOL "$(zfs_drive 2)"
    zpool offline $POOL "$(zfs_drive 5)"
    same "$(pool_state)" DEGRADED
    filled "$d0" --offset=0 --verify_only
    filled "$d0" --do_verify=0
    zpool online $POOL "$(zfs_drive 2)"
    zpool online $POOL "$(zfs_drive 5)"
    wait $load
    zfs_quiet
    same "$(pool_state)" ONLINE
    filled "$d0" --verify_only
    # What the drives have missed was made up for: nothing is left to repair.
    zfs_scrub
    says 'repaired 0B .* with 0 errors' zpool status $POOL
}

pool_state() { zpool list -H -o health $POOL; }

# Random data over a quarter of a drive, behind ZFS's labels, from under a pool in use.
# long
test_a_corrupted_drive_is_repaired() {
    local load errors
    storage 160
    # So that reads come from the drives.
    zfs set primarycache=metadata $POOL/disk
    serve_storage path="$zvol"
    filled "$d0" --do_verify=0
    zpool sync $POOL
    verified "$d0" 48M --offset=104M --bs=16k --rate_iops=300 &
    load=$!
    dd if=/dev/urandom of=/run/noise bs=1M count=1 status=none
    for ((i = 8; i < 136; i++)); do cat /run/noise; done | dd of=/dev/nvme2n1p1 bs=1M seek=8 iflag=fullblock oflag=direct status=none
    filled "$d0" --verify_only
    wait $load
    zfs_scrub
    zpool status $POOL
    errors=$(zpool status -p $POOL | awk '$1 ~ "^nvme2n1" {print $5}')
    [ "$errors" -gt 0 ]
    note "$errors checksum errors; $(zpool status $POOL | sed -n 's/.*\(repaired .*\) on .*/\1/p')"
    says 'with 0 errors' zpool status $POOL
    zpool clear $POOL
    zfs_scrub
    same "$(pool_state)" ONLINE
    says 'repaired 0B .* with 0 errors' zpool status $POOL
    filled "$d0" --verify_only
}

# A number of ZFS's intent log: NAME
zil() { awk '$1 == "zil_'"$1"'" {print $3}' /proc/spl/kstat/zfs/zil; }

# What is flushed is in the intent log, and so outlives a power cut; what is not flushed may wait.
test_flushes_reach_the_intent_log() {
    storage 64
    serve_storage
    flushes "$d0"
    flushes "$d1"
}

# DISK
flushes() {
    local commits bytes i
    zpool sync $POOL
    commits=$(zil commit_count)
    for i in 1 2 3; do scribble 1 "$1" seek=$i; done
    same "$(zil commit_count)" "$commits" "commits, without a flush"
    bytes=$(zil itx_metaslab_normal_bytes)
    for i in 1 2 3 4 5; do
        scribble 1 "$1" seek=$i
        sg_sync "$1"
    done
    [ "$(zil commit_count)" -ge $((commits + 5)) ]
    [ "$(zil itx_metaslab_normal_bytes)" -gt "$bytes" ]
    # A write with FUA is a flush of its own.
    commits=$(zil commit_count)
    dd if=/dev/urandom of="$1" bs=4k count=4 oflag=direct,dsync status=none
    [ "$(zil commit_count)" -ge $((commits + 4)) ]
}

test_a_full_pool_is_an_error_and_no_loss() {
    storage 128
    serve_storage
    dd if=/dev/urandom of=/run/image bs=1M count=64 status=none
    full_pool "$d0"
    full_pool "$d1"
}

# Takes all but 24 MiB of the pool away, and gives it back: DISK
full_pool() {
    local room written
    room=$(zfs_bytes "" available)
    zfs create -o reservation=$((room - (24 << 20))) $POOL/filler
    fails timeout 120 dd if=/run/image of="$1" bs=1M oflag=direct 2>/run/said
    cat /run/said
    # LIO says nothing of space.
    [ "$LAB_TARGET" != lunet ] || grep -q 'No space left on device' /run/said
    written=$(sed -n 's/+.* records out//p' /run/said)
    note "no space after $written MiB"
    [ "$written" -ge 8 ]
    [ "$written" -lt 48 ]
    cmp -n $((written << 20)) <(dd if="$1" bs=1M count="$written" iflag=direct status=none) /run/image
    zfs destroy $POOL/filler
    dd if=/run/image of="$1" bs=1M oflag=direct status=none
    cmp -n $((64 << 20)) <(dd if="$1" bs=1M count=64 iflag=direct status=none) /run/image
}
