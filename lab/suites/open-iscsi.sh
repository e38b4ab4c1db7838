# The Linux kernel's own initiator against the target, both in the guest.
# client: open-iscsi
# minutes: 5

test_discovery_names_target_and_portal() {
    target_start
    initiator
    same "$(iscsiadm -m discovery -t sendtargets -p 127.0.0.1)" "127.0.0.1:3260,1 $IQN"
}

test_login_and_logout() {
    local d
    target_start size=64
    d=$(login 127.0.0.1:3260)
    same "$(blockdev --getsize64 "$d")" $((64 << 20))
    [ "$LAB_TARGET" != lunet ] || says $INITIATOR ask sessions
    logout
    same "$(disks)" ""
}

test_many_luns_in_their_order() {
    local d n=0
    target_start size=16 disks=12
    for d in $(login 127.0.0.1:3260); do
        dd if=/dev/urandom of=/run/block bs=4k count=1 status=none
        dd if=/run/block of="$d" oflag=direct bs=4k count=1 status=none
        cmp -n 4096 /run/block /var/lib/lab/disk$n
        n=$((n + 1))
    done
    same $n 12
}

# long
test_chap_one_way() {
    target_start chap=lab:a-secret-of-lab
    fails login 127.0.0.1:3260
    chap_login lab a-secret-of-lab
    logout
    fails chap_login lab another-secret-1
}

test_chap_mutual() {
    target_start chap=lab:a-secret-of-lab mutual=storage:the-other-secret
    chap_login lab a-secret-of-lab username_in=storage password_in=the-other-secret
    logout
    # A target that proves itself with the wrong secret is not logged in to.
    fails chap_login lab a-secret-of-lab username_in=storage password_in=not-that-secret
}

# long
test_chap_with_sha3() {
    lunet_only "LIO has no SHA3-256"
    target_start chap=lab:a-secret-of-lab
    chap_login lab a-secret-of-lab chap_algs=SHA3-256
}

# Logs in by CHAP: USER SECRET [SETTING=VALUE ...]
chap_login() {
    local user=$1 secret=$2 setting auth=node.session.auth
    shift 2
    local settings=($auth.authmethod=CHAP $auth.username="$user" $auth.password="$secret")
    for setting in "$@"; do settings+=("$auth.$setting"); done
    [ -n "$(login 127.0.0.1:3260 "${settings[@]}")" ]
}

# long
test_block_sizes_are_those_of_the_volume() {
    local sizes
    for sizes in "512 512" "512 4096" "4096 4096"; do
        [ "$LAB_TARGET" = lunet ] || [ "$sizes" = "512 512" ] || continue
        # shellcheck disable=SC2086 # words on purpose
        (block_sizes $sizes)
        clear_up >/dev/null 2>&1 || true
    done
}

block_sizes() {
    local d
    target_start block="$1" physical="$2"
    d=$(login 127.0.0.1:3260)
    same "$(blockdev --getss "$d") $(blockdev --getpbsz "$d")" "$1 $2"
    verified "$d" $((4096 * $1)) --bs="$1" --iodepth=32
}

# long
test_digests_are_used_when_asked_for() {
    local d
    target_start
    d=$(login 127.0.0.1:3260 "node.conn[0].iscsi.HeaderDigest=CRC32C" "node.conn[0].iscsi.DataDigest=CRC32C")
    iscsiadm -m session -P 2 >/run/session
    same "$(grep -c 'Digest: CRC32C' /run/session)" 2
    verified "$d" 16M
    verified "$d" 32M --bs=128k
    [ "$LAB_TARGET" != lunet ] || same "$(counted digest_errors)" 0
}

# Writes that need R2Ts of the target, of several bursts, and out of the middle of memory pages.
# long
test_large_writes_without_unsolicited_data() {
    local d
    target_start size=128
    d=$(login 127.0.0.1:3260 node.session.iscsi.InitialR2T=Yes node.session.iscsi.ImmediateData=No \
        node.session.iscsi.MaxBurstLength=262144 node.session.iscsi.FirstBurstLength=65536)
    verified "$d" 64M --rw=randwrite --bsrange=4k-1M --iodepth=8
}

file_system() {
    local kind=$1 d size
    target_start size=400
    d=$(login 127.0.0.1:3260)
    mounted "$kind" "$d"
    for size in 4k 128k; do verified /mnt/fs/v$size 16M --bs=$size --fsync=32; done
    unmounted_is_sound "$kind" "$d"
}

test_ext4_with_verified_load() { file_system ext4; }
# long
test_xfs_with_verified_load() { file_system xfs; }

# long
test_fstrim_gives_space_back() {
    local d full empty
    target_start size=256
    d=$(login 127.0.0.1:3260)
    mounted ext4 "$d"
    dd if=/dev/urandom of=/mnt/fs/keep bs=1M count=8 status=none
    dd if=/dev/urandom of=/mnt/fs/big bs=1M count=128 status=none
    sync
    full=$(du -m /var/lib/lab/disk0 | cut -f1)
    sum=$(md5sum </mnt/fs/keep)
    rm /mnt/fs/big
    sync
    fstrim /mnt/fs
    empty=$(du -m /var/lib/lab/disk0 | cut -f1)
    note "$full MiB on the target's disk before, $empty MiB after"
    [ "$full" -gt 136 ] && [ "$empty" -lt 40 ]
    # What lies beside the freed blocks is as it was, read from the target and not from the cache.
    umount /mnt/fs
    blockdev --flushbufs "$d"
    mount "$d" /mnt/fs
    same "$(md5sum </mnt/fs/keep)" "$sum"
    unmounted_is_sound ext4 "$d"
}

# Random pieces are freed; everything else keeps its content, and the freed ones read as zeroes.
# long
test_unmapped_blocks_have_untouched_neighbours() {
    local d i from length
    target_start size=32
    d=$(login 127.0.0.1:3260)
    dd if=/dev/urandom of=/run/image bs=1M count=32 status=none
    dd if=/run/image of="$d" bs=1M oflag=direct status=none
    for i in $(seq 60); do
        from=$((RANDOM * 4 % 65000))
        length=$((RANDOM % 300 + 1))
        blkdiscard -o $((from * 512)) -l $((length * 512)) "$d"
        dd if=/dev/zero of=/run/image bs=512 seek=$from count=$length conv=notrunc status=none
    done
    dd if="$d" of=/run/found bs=1M iflag=direct status=none
    # The kernel frees whole granules and leaves the edges as they are: what is not zero must be what it was.
    python3 - <<'PY'
wanted, found = open('/run/image', 'rb').read(), open('/run/found', 'rb').read()
whole = open('/run/image', 'rb').read()
assert len(found) == len(wanted), 'size'
for at in range(0, len(wanted), 512):
    w, f = wanted[at:at + 512], found[at:at + 512]
    if any(w):
        assert w == f, f'block {at // 512} was not freed, and is another'
freed = sum(1 for at in range(0, len(found), 512) if not any(found[at:at + 512]))
assert freed > 2000, f'only {freed} blocks were freed'
print(f'note: {freed} blocks of 512 bytes were freed, none beside them was touched')
PY
}

test_resize_is_seen_after_a_rescan() {
    local d
    lunet_only
    target_start size=300
    d=$(login 127.0.0.1:3260)
    mounted ext4 "$d"
    echo kept >/mnt/fs/file
    ask volume resize disk0 400MiB
    iscsiadm -m session --rescan
    within 40 eval "[ \$(blockdev --getsize64 $d) = $((400 << 20)) ]"
    resize2fs "$d"
    same "$(cat /mnt/fs/file)" kept
    [ "$(df -m --output=size /mnt/fs | tail -1)" -gt 330 ]
    unmounted_is_sound ext4 "$d"
}

# long
test_a_new_lun_is_seen_after_a_rescan() {
    lunet_only
    target_start
    login 127.0.0.1:3260 >/run/disks
    ask volume create second --size 32MiB
    ask target map $IQN 1 second
    iscsiadm -m session --rescan
    within 40 eval '[ $(disks | wc -l) = 2 ]'
}

# The kernel's error handler: aborts, then a reset of the LUN, then a new session. The slow part is where nothing else looks.
test_aborts_of_commands_that_hang() {
    local d
    lunet_only "needs a disk that hangs"
    serve <<TOML
[[portal]]
address = "127.0.0.1:3260"
[volumes.disk]
backend = "file"
size = "64MiB"
layers = [{ delay = "20s", on = "read", from = "30MiB", to = "31MiB" }]
[[target]]
name = "$IQN"
open = true
luns = ["disk"]
TOML
    d=$(login 127.0.0.1:3260)
    echo 3 >"/sys/block/${d#/dev/}/device/timeout"
    dd if="$d" of=/dev/null bs=4k count=1 skip=7700 iflag=direct status=none || true
    # The rest of the disk is as well as before, in the same kernel.
    verified "$d" 8M
    note "$(ask stats --json | tr -d ' \n' | grep -o '"[a-z_]*\(abort\|reset\)[a-z_]*":[0-9]*' | paste -sd' ')"
}

# long
test_a_killed_server_comes_back_under_load() {
    local d load
    lunet_only
    target_start size=128
    d=$(login 127.0.0.1:3260)
    verified "$d" 32M --rw=randwrite --rate_iops=1000 &
    load=$!
    sleep 2
    stop -9
    sleep 1
    start_again
    wait $load
}

# long
test_thirty_seconds_without_a_server() {
    local d load
    lunet_only
    target_start
    d=$(login 127.0.0.1:3260)
    verified "$d" 16M --rate_iops=1000 &
    load=$!
    sleep 1
    stop
    # What the administrator asks meanwhile is answered, and a new login refused in its time.
    iscsiadm -m session >/dev/null
    timeout 20 iscsiadm -m discovery -t sendtargets -p 127.0.0.1 -o nonpersistent && return 1
    sleep 30
    start_again
    wait $load
}

test_a_server_that_stays_away_gives_errors_and_no_hang() {
    local d
    lunet_only
    target_start
    d=$(login 127.0.0.1:3260 node.session.timeo.replacement_timeout=3)
    stop
    fails timeout 30 dd if=/dev/zero of="$d" bs=4k count=1 oflag=direct status=none
    start_again
    within 30 dd if=/dev/zero of="$d" bs=4k count=1 oflag=direct status=none
}
