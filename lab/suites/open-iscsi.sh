# The Linux kernel's own initiator against lunet, both in the guest.

# One volume of this many MiB; more lines for its table may follow.
one_volume() {
    cat <<TOML
[[portal]]
address = "127.0.0.1:3260"
[volumes.disk]
backend = "file"
size = "${1}MiB"
${2:-}
[[target]]
name = "$IQN"
luns = { 0 = "disk" }
TOML
}

test_discovery_names_target_and_portal() {
    one_volume 64 | serve
    initiator
    same "$(iscsiadm -m discovery -t sendtargets -p 127.0.0.1)" "127.0.0.1:3260,1 $IQN"
}

test_login_and_logout() {
    local d
    one_volume 64 | serve
    d=$(login 127.0.0.1:3260)
    same "$(blockdev --getsize64 "$d")" $((64 << 20))
    same "$(cat "/sys/block/${d#/dev/}/device/vendor" | tr -d ' ')" LUNET
    ask lunet sessions | grep -q $INITIATOR
    logout
    same "$(disks)" ""
}

test_block_sizes_are_those_of_the_volume() {
    local sizes d
    for sizes in "512 512" "512 4096" "4096 4096"; do
        set -- $sizes
        one_volume 64 "block-size = $1
physical-block-size = $2" | serve
        d=$(login 127.0.0.1:3260)
        same "$(blockdev --getss "$d") $(blockdev --getpbsz "$d")" "$sizes"
        logout
        stop
        clear_up
    done
}

test_digests_are_used_when_asked_for() {
    local d
    one_volume 64 | serve
    d=$(login 127.0.0.1:3260 node.conn[0].iscsi.HeaderDigest=CRC32C node.conn[0].iscsi.DataDigest=CRC32C)
    ask lunet sessions --json >/run/sessions
    grep -q '"HeaderDigest", *"CRC32C"' /run/sessions || grep -A1 HeaderDigest /run/sessions | grep -q CRC32C
    fio --name=v --filename="$d" --direct=1 --ioengine=libaio --rw=randwrite --bs=4k --iodepth=8 --size=16M --verify=crc32c \
        --minimal >/dev/null
    same "$(ask lunet stats --json | sed -n 's/.*"digest_errors": *\([0-9]*\).*/\1/p')" 0
}

file_system() {
    local kind=$1 d size
    one_volume 400 | serve
    d=$(login 127.0.0.1:3260)
    "mkfs.$kind" -q "$d"
    mkdir -p /mnt/fs
    mount "$d" /mnt/fs
    for size in 4k 128k; do
        fio --name=v$size --directory=/mnt/fs --ioengine=libaio --direct=1 --rw=randrw --bs=$size --iodepth=16 --size=48M \
            --verify=crc32c --verify_fatal=1 --minimal >/dev/null
    done
    umount /mnt/fs
    case $kind in ext4) fsck.ext4 -fn "$d" ;; xfs) xfs_repair -n "$d" ;; esac
}

test_ext4_with_verified_load() { file_system ext4; }
test_xfs_with_verified_load() { file_system xfs; }

test_fstrim_gives_space_back() {
    local d full empty
    one_volume 256 | serve
    d=$(login 127.0.0.1:3260)
    mkfs.ext4 -q "$d"
    mkdir -p /mnt/fs
    mount "$d" /mnt/fs
    dd if=/dev/urandom of=/mnt/fs/big bs=1M count=128 status=none
    sync
    full=$(du -m /var/lib/lab/lunet/disk.img | cut -f1)
    rm /mnt/fs/big
    sync
    fstrim /mnt/fs
    empty=$(du -m /var/lib/lab/lunet/disk.img | cut -f1)
    note "$full MiB before, $empty MiB after"
    [ "$full" -gt 128 ] && [ "$empty" -lt 32 ]
}

test_a_killed_server_comes_back_under_load() {
    local d load
    one_volume 128 | serve
    d=$(login 127.0.0.1:3260)
    fio --name=v --filename="$d" --direct=1 --ioengine=libaio --rw=randwrite --bs=4k --iodepth=16 --size=64M --verify=crc32c \
        --verify_fatal=1 --rate_iops=1500 --minimal >/run/fio.log 2>&1 &
    load=$!
    sleep 2
    stop -9
    sleep 1
    start_again
    wait $load
}

test_thirty_seconds_without_a_server() {
    local d load
    one_volume 64 | serve
    d=$(login 127.0.0.1:3260)
    stop
    dd if=/dev/urandom of="$d" bs=4k count=1 oflag=direct status=none &
    load=$!
    sleep 30
    start_again
    wait $load
}
