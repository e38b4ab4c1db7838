# The Linux kernel's own NVMe host over TCP against the target, both in the guest. With LAB_TARGET=lio the target is the kernel's nvmet.
# client: nvme-tcp
# minutes: 5
# run: -c 2

test_discovery_names_subsystem_and_portal() {
    nvme_start
    nvme discover -t tcp -a 127.0.0.1 -s 4420 -q "${HOSTNQN[0]}" >/run/discovery
    same "$(awk '/subnqn/ {print $2}' /run/discovery | grep -c -x "$NQN")" 1
    same "$(grep -c 'trsvcid: 4420' /run/discovery)" "$(grep -c '^=====' /run/discovery)"
}

# long
test_connect_and_disconnect() {
    local d
    nvme_start size=64
    d=$(attach)
    same "$(blockdev --getsize64 "$d")" $((64 << 20))
    [ "$LAB_TARGET" != lunet ] || says "${HOSTNQN[0]}" ask sessions
    detach
    same "$(controllers)" ""
}

# long
test_namespaces_in_their_order() {
    local d n=0
    nvme_start size=16 disks=12
    for d in $(expects=12 attach); do
        dd if=/dev/urandom of=/run/block bs=4k count=1 status=none
        dd if=/run/block of="$d" oflag=direct bs=4k count=1 status=none
        nvme flush "$d" >/dev/null
        cmp -n 4096 /run/block /var/lib/lab/disk$n
        n=$((n + 1))
    done
    same $n 12
}

# long
test_names_are_there_and_stay() {
    local d before
    lunet_only "nvmet has a UUID only"
    nvme_start
    d=$(attach)
    nvme id-ns "$d" | grep -E "^(nguid|eui64)" >/run/names
    nvme ns-descs "$d" | grep -E "^(uuid|nguid|eui64)" >>/run/names
    fails grep -E ": 0+$" /run/names
    before=$(cat /run/names)
    ls /dev/disk/by-id/nvme-* >/run/links
    detach
    stop
    start_again
    d=$(attach)
    { nvme id-ns "$d" | grep -E "^(nguid|eui64)"; nvme ns-descs "$d" | grep -E "^(uuid|nguid|eui64)"; } >/run/names
    same "$(cat /run/names)" "$before"
}

test_verified_loads() {
    local d
    nvme_start
    d=$(attach)
    verified "$d" 16M
    verified "$d" 32M --bs=128k --iodepth=8
    verified "$d" 64M --rw=randwrite --bsrange=4k-1M --iodepth=8
}

# long
test_digests() {
    local d
    nvme_start
    d=$(attach 127.0.0.1:4420 --hdr-digest --data-digest)
    verified "$d" 16M
    verified "$d" 32M --bsrange=4k-256k --iodepth=8
}

# long
test_several_queues() {
    local d
    nvme_start
    d=$(attach 127.0.0.1:4420 --nr-io-queues=2 --nr-write-queues=1 --nr-poll-queues=1)
    verified "$d" 32M --numjobs=2 --offset_increment=32M --iodepth=32
    [ "$LAB_TARGET" != lunet ] || ask sessions
}

file_system() {
    local kind=$1 d size
    nvme_start size=400
    d=$(attach)
    mounted "$kind" "$d"
    for size in 4k 128k; do verified /mnt/fs/v$size 16M --bs=$size --fsync=32; done
    unmounted_is_sound "$kind" "$d"
}

# long
test_ext4_with_verified_load() { file_system ext4; }
# long
test_xfs_with_verified_load() { file_system xfs; }

# Random pieces are freed or zeroed; everything else keeps its content, and these read as zeroes.
# lio: nvmet serves a file in blocks of 4 KiB
# long
test_freed_blocks_have_untouched_neighbours() {
    local d i from length how
    nvme_start size=32
    d=$(attach)
    dd if=/dev/urandom of=/run/image bs=1M count=32 status=none
    dd if=/run/image of="$d" bs=1M oflag=direct status=none
    for i in $(seq 60); do
        from=$((RANDOM * 2 % 65000))
        length=$((RANDOM % 300 + 1))
        how=
        [ $((i % 2)) = 0 ] || how=-z
        # Freed blocks need not read as zeroes where the target does not say so; lunet does.
        [ "$LAB_TARGET" = lunet ] || how=-z
        blkdiscard $how -o $((from * 512)) -l $((length * 512)) "$d"
        dd if=/dev/zero of=/run/image bs=512 seek=$from count=$length conv=notrunc status=none
    done
    dd if="$d" of=/run/read bs=1M iflag=direct status=none
    cmp /run/read /run/image
}

test_a_grown_volume_is_seen() {
    local d
    nvme_start size=64
    d=$(attach)
    if [ "$LAB_TARGET" = lunet ]; then ask volume resize disk0 96MiB; else
        truncate -s 96M /var/lib/lab/disk0
        echo 1 >/sys/kernel/config/nvmet/subsystems/$NQN/namespaces/1/revalidate_size
    fi
    within 20 eval "[ \$(blockdev --getsize64 $d) = $((96 << 20)) ]"
}

test_namespaces_come_and_go_live() {
    local c
    lunet_only "about lunet's own commands"
    nvme_start both=1 size=16
    attach
    c=$(controllers)
    ask volume create more --size 8MiB
    ask target map $IQN 1 more
    within 20 namespaces_are "$c" 2
    fails ask target unmap $IQN 1
    ask target unmap $IQN 1 --force
    within 20 namespaces_are "$c" 1
}

# What is acknowledged by a flush is there after the server was killed, and the load goes on when it is back.
test_a_killed_server_is_found_again() {
    local d
    lunet_only
    nvme_start
    d=$(attach)
    load_begin main "$d" 16M --rw=randwrite --bs=16k --io_size=16M --fdatasync=8
    within 40 test -s /run/load.main.rounds
    stop -9
    sleep 2
    start_again
    within 60 controller_is "$(controllers)" state live
    load_end main
}

# long
test_a_frozen_server_is_given_up_and_found_again() {
    local d c
    lunet_only
    nvme_start
    d=$(attach)
    c=$(controllers)
    load_begin main "$d" 16M --rw=randwrite --bs=16k --io_size=16M
    within 40 test -s /run/load.main.rounds
    kill -STOP "$(cat $LUNET_RUN/lunet.pid)"
    within 60 eval "! controller_is $c state live"
    kill -CONT "$(cat $LUNET_RUN/lunet.pid)"
    within 60 controller_is "$c" state live
    load_end main
}

# Two ways, one cut after the other under a verified load; the kernel fails over by itself.
two_ways() {
    local how=$1 d c n mark
    mark=$(($(dmesg | wc -l) + 1))
    network_far
    nvme_start net=far portals="${FAR[0]}:4420,${FAR[1]}:4420"
    d=$(attach "${FAR[0]}:4420" --ctrl-loss-tmo=600)
    attach "${FAR[1]}:4420" --ctrl-loss-tmo=600 >/dev/null
    same "$(controllers | wc -l)" 2
    load_begin main "$d" 16M --rw=randwrite --bs=16k --io_size=16M --norandommap --serialize_overlap=1
    for n in 0 1; do
        c=$(controllers | sed -n $((n + 1))p)
        wire_cut $n "$how"
        within 60 eval "! controller_is $c state live"
        rm -f /run/load.main.rounds
        within 60 test -s /run/load.main.rounds
        wires_mend
        within 60 controller_is "$c" state live
    done
    load_end main
    kernel_since "$mark" >/run/kernel
    # Of a path there may be errors, and of the disk none.
    fails grep -E "error.* dev ${d#/dev/}[, ]" /run/kernel
}

# long
test_ways_that_fall_silent() { two_ways silent; }
# long
test_ways_that_are_reset() { two_ways reset; }

# States that are configured anew reach the host by a notice, and the load goes where it may.
test_path_states_follow_the_configuration() {
    local d portals=127.0.0.1:4420,127.0.0.2:4420 states disks=1 hosts= both=
    lunet_only "states of nvmet are ports' own"
    nvme_start "portals=$portals" states=optimized,unavailable
    d=$(attach 127.0.0.1:4420)
    attach 127.0.0.2:4420 >/dev/null
    within 20 paths_are optimized inaccessible
    load_begin main "$d" 16M --rw=randwrite --bs=16k --io_size=16M --norandommap --serialize_overlap=1
    for states in unavailable,optimized non-optimized,optimized optimized,non-optimized; do
        within 40 test -s /run/load.main.rounds
        nvme_configuration >$LUNET_RUN/lunet.toml
        ask config apply
        within 20 paths_are $(tr , " " <<<"${states/unavailable/inaccessible}")
        rm -f /run/load.main.rounds
    done
    load_end main
}

# Two hosts, which are both this kernel: each disk is one host's.
test_reservations_of_two_hosts() {
    local one two
    lunet_only "nvmet of Linux 6.12 has no reservations"
    nvme_start native=N portals=127.0.0.1:4420,127.0.0.2:4420
    one=$(attach 127.0.0.1:4420)
    two=$(as=1 attach 127.0.0.2:4420)
    [ "$one" != "$two" ]
    dd if=/dev/urandom of=/run/one bs=64k count=1 status=none
    nvme resv-register "$one" -n 1 --nrkey=0xa --rrega=0
    nvme resv-register "$two" -n 1 --nrkey=0xb --rrega=0
    nvme resv-acquire "$one" -n 1 --crkey=0xa --rtype=1 --racqa=0
    fails nvme resv-acquire "$two" -n 1 --crkey=0xb --rtype=1 --racqa=0
    dd if=/run/one of="$one" bs=64k oflag=direct status=none
    fails dd if=/run/one of="$two" bs=64k oflag=direct status=none
    dd if="$two" of=/run/two bs=64k count=1 iflag=direct status=none
    cmp /run/one /run/two
    # The other host takes it over; it stays when the server starts again, for its key is kept.
    nvme resv-register "$two" -n 1 --crkey=0xb --nrkey=0xb --rrega=2 --cptpl=3
    nvme resv-acquire "$two" -n 1 --crkey=0xb --prkey=0xa --rtype=2 --racqa=1
    fails dd if=/run/one of="$one" bs=64k oflag=direct status=none
    stop -9
    start_again
    within 60 controller_is "$(basename "${two%n*}")" state live
    dd if=/run/one of="$two" bs=64k oflag=direct status=none
    fails dd if=/run/one of="$one" bs=64k oflag=direct status=none
    nvme resv-report "$two" -n 1 --eds >/run/report
    grep -E "regctl *: *1$" /run/report
    grep -E "ptpls *: *1$" /run/report
}

# One volume by both protocols: what one writes the other reads, and a reservation of one keeps the other out.
test_one_volume_over_both_protocols() {
    local scsi nvme
    lunet_only "LIO and nvmet share nothing"
    nvme_start both=1
    LUNS=1
    scsi=$(login 127.0.0.1:3260)
    nvme=$(attach)
    dd if=/dev/urandom of=/run/one bs=64k count=1 status=none
    dd if=/run/one of="$scsi" bs=64k oflag=direct status=none
    dd if="$nvme" of=/run/two bs=64k count=1 iflag=direct status=none
    cmp /run/one /run/two
    dd if=/dev/urandom of=/run/one bs=64k count=1 status=none
    dd if=/run/one of="$nvme" bs=64k seek=9 oflag=direct status=none
    dd if="$scsi" of=/run/two bs=64k skip=9 count=1 iflag=direct status=none
    cmp /run/one /run/two
    sg_persist --out --register --param-sark=0x5c51 "$scsi"
    sg_persist --out --reserve --param-rk=0x5c51 --prout-type=1 "$scsi"
    fails dd if=/run/one of="$nvme" bs=64k oflag=direct status=none
    sg_persist --out --release --param-rk=0x5c51 --prout-type=1 "$scsi"
    dd if=/run/one of="$nvme" bs=64k oflag=direct status=none
    nvme resv-register "$nvme" -n 1 --nrkey=0xa --rrega=0
    nvme resv-acquire "$nvme" -n 1 --crkey=0xa --rtype=1 --racqa=0
    fails dd if=/run/one of="$scsi" bs=64k oflag=direct status=none
    nvme resv-release "$nvme" -n 1 --crkey=0xa --rtype=1 --rrela=0
    dd if=/run/one of="$scsi" bs=64k oflag=direct status=none
}

test_hosts_that_are_not_named_are_refused() {
    nvme_start hosts="${HOSTNQN[0]}"
    attach >/dev/null
    detach
    fails eval 'as=1 attach 127.0.0.1:4420 2>/run/refused'
    says "not allowed" kernel_since 1
    nvme discover -t tcp -a 127.0.0.1 -s 4420 -q "${HOSTNQN[1]}" >/run/discovery
    fails grep -x "subnqn: *$NQN" /run/discovery
}

# The kernel makes and opens the records of lunet's end; nobody without the key gets in.
# long
test_tls() {
    local d key=NVMeTLSkey-1:01:yfA5y7w9H1djYdTd2lm8kSqfjE3Npv1Mq1Bz9V7byVAVpSqd: identity="NVMe0R01 ${HOSTNQN[0]} $NQN"
    # What that key is for this identity, by the derivation of RFC 8446.
    local psk=2aab493ee6fc59c62d541fce95023c8488efc6b4385b2427497f4ba95e67e606
    lunet_only "nvmet needs tlshd"
    nvme_start tls=$key
    fails attach
    logged "has to connect by TLS"
    tls_way "$identity" "$psk"
    d=$(attach 127.0.0.1:4421)
    says TLS ask sessions
    fails grep -E 'Tls(CurrTxSw|CurrRxSw)[[:space:]]+0$' /proc/net/tls_stat
    verified "$d" 16M
    verified "$d" 16M --bsrange=4k-1M --iodepth=8
    detach
    within 20 grep -E 'TlsCurrRxSw[[:space:]]+0$' /proc/net/tls_stat
    # Another key, and an identity that nobody has.
    tls_refused 51 "$identity" ${psk//2/3}
    logged "the key of the other end is another one"
    tls_refused 115 "NVMe0R01 x y" $psk
    logged "the host has no key of TLS"
}

# A handshake that lunet ends by this alert: NUMBER IDENTITY KEY
tls_refused() {
    fails timeout 60 openssl s_client -tls1_3 -connect 127.0.0.1:4420 -psk_identity "$2" -psk "$3" </dev/null >/run/refused 2>&1
    says "SSL alert number $1" cat /run/refused
}

test_log_pages() {
    local c
    nvme_start
    attach
    c=/dev/$(controllers)
    nvme id-ctrl "$c" >/run/said
    nvme smart-log "$c"
    nvme error-log "$c" >/dev/null
    nvme effects-log "$c" >/dev/null
    nvme fw-log "$c"
}

# Another secret for a controller in use: the host proves itself anew on each queue, and its load goes on. Who cannot do so is ended,
# and comes back with the secret that it has then.
# long
test_a_host_proves_itself_anew() {
    local d c secret next id
    lunet_only "nvmet takes another key by configfs"
    secret=$(nvme gen-dhchap-key -m 1 -n "${HOSTNQN[0]}")
    next=$(nvme gen-dhchap-key -m 1 -n "${HOSTNQN[0]}")
    nvme_start "secret=$secret"
    d=$(attach 127.0.0.1:4420 "--dhchap-secret=$secret")
    c=$(controllers)
    id=$(cat "/sys/class/nvme/$c/cntlid")
    load_begin main "$d" 8M --rw=randwrite --bs=16k
    within 40 test -s /run/load.main.rounds
    (umask 077; echo "$next" >/run/host.secret)
    ask config apply --keep-sessions
    dmesg -C
    echo "$next" >"/sys/class/nvme/$c/dhchap_secret"
    within 40 eval "dmesg | grep -q 'qid 0: authenticated'"
    load_end main
    fails eval "dmesg | grep 'authentication failed'"
    controller_is "$c" state live
    controller_is "$c" cntlid "$id"
    verified "$d" 4M
    echo "$secret" >"/sys/class/nvme/$c/dhchap_secret"
    logged 'could not prove itself'
    within 40 eval '[ "$(ask sessions | grep -c "${HOSTNQN[0]}")" = 0 ]'
    detach
    d=$(attach 127.0.0.1:4420 "--dhchap-secret=$next")
    verified "$d" 4M
}

# The first portal for NVMe of a lunet that serves iSCSI.
# long
test_the_first_portal_comes_while_iscsi_is_served() {
    local d
    lunet_only "a command of lunet"
    nvme_start both=y size=32 portals=
    ask portal add 127.0.0.1:4420 --transport nvme-tcp
    d=$(attach)
    verified "$d" 8M --bsrange=4k-1M --iodepth=8
    fails ask portal remove 127.0.0.1:4420
    detach
    ask portal remove 127.0.0.1:4420
    fails attach
    ask portal add 127.0.0.1:4420 --transport nvme-tcp
    d=$(attach)
    verified "$d" 8M
}
