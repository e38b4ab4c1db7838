# Bad networks: slow is allowed, wrong is not.
#
# The target is behind a wire that something is done to. Its first disk is used over that wire, the second by a bystander over
# another one, who must notice nothing. After each test the file behind the first disk is compared with what the client reads.
# client: open-iscsi
# minutes: 5
# only in long runs

# The target, asking after silent clients every three seconds or every $1, and the two logins: sets $disk and $other.
begin() {
    local limit=${1:-3s}
    network_far
    mkdir -p /var/lib/lab
    dd if=/dev/urandom of=/var/lib/lab/disk0 bs=1M count=16 status=none
    cp /var/lib/lab/disk0 /run/before
    truncate -s 16M /var/lib/lab/disk1
    if [ "$LAB_TARGET" = lio ]; then
        target_start net=far path=/var/lib/lab/disk0,/var/lib/lab/disk1 portals=${FAR[0]}:3260,${FAR[1]}:3260
    else
        net=far serve <<TOML
[server]
login-timeout = "2s"
[iscsi]
ping-interval = "$limit"
ping-timeout = "$limit"
[[portal]]
address = "${FAR[0]}:3260"
[[portal]]
address = "${FAR[1]}:3260"
[volumes.disk0]
backend = "file"
path = "/var/lib/lab/disk0"
[volumes.disk1]
backend = "file"
path = "/var/lib/lab/disk1"
[[target]]
name = "$IQN"
open = true
luns = ["disk0", "disk1"]
TOML
    fi
    other=$(expects=2 login "${FAR[1]}:3260" | tail -n 1)
    # Half a minute is long, and yet less than what anything here lasts for him whom it concerns.
    load_begin bystander "$other" 512k --rate_iops=25 --max_latency=30s
}

# Logs in over the bad wire: [NAME=VALUE ...]
reach() {
    disk=$(expects=2 login "${FAR[0]}:3260" "$@" | sed -n 1p)
}

# What is to be true at the end of each test, over a wire that is well again. The load was within the first 8 MiB.
end() {
    network_mend
    dd if="$disk" of=/run/read bs=256k iflag=direct status=none
    cmp /run/read /var/lib/lab/disk0
    cmp -i $((8 << 20)) /run/read /run/before
    fails cmp -s -n $((8 << 20)) /run/read /run/before
    load_end bystander
    same "$(errors_of "$other")" 0 "connections that the bystander lost"
}

# How often the session that shows a disk has lost its connection.
errors_of() {
    local session
    session=$(readlink -f "/sys/block/${1#/dev/}/device" | grep -o 'session[0-9]*')
    dmesg | grep -c " connection${session#session}:0: detected conn error" || true
}

# What netem did to the packets of wire 0, both ways: dropped packets, or whatever else `tc -s` counts.
netem_count() {
    { tc -s qdisc show dev near0; far tc -s qdisc show dev far0; } | grep -o "$1 [0-9]*" | awk '{n += $2} END {print n}'
}

# --- what packets go through ---------------------------------------------------------------------------------------------------

bad() {
    begin
    reach
    network_bad "$@"
    verified "$disk" 1M --bs=4k
    verified "$disk" 4M --bs=128k --iodepth=8
    same "$(errors_of "$disk")" 0 "connections lost"
}

# long
test_delay_and_jitter() {
    bad delay 10ms 5ms
    end
}

test_loss() {
    bad loss 3%
    note "$(netem_count dropped) packets were lost"
    [ "$(netem_count dropped)" -gt 10 ]
    end
}

# long
test_reordering_and_duplicates() {
    bad delay 5ms reorder 75% 50% duplicate 10%
    end
}

# TCP's checksum finds what netem does: it flips one bit.
test_damage_that_tcp_finds() {
    bad corrupt 2%
    note "$(far nstat -asz TcpInCsumErrors | awk '/Csum/ {print $2}') damaged packets found at the far end"
    [ "$(far nstat -asz TcpInCsumErrors | awk '/Csum/ {print $2}')" -gt 5 ]
    end
}

# --- a slow link ---------------------------------------------------------------------------------------------------------------

# 2 MiB in flight over 1 Mb/s keep a client silent for 17 seconds: it is busy reading, not dead.
# long
test_one_megabit_per_second() {
    begin 1s
    reach
    verified "$disk" 2M --rw=write --bs=128k
    network_bad rate 1mbit
    verified "$disk" 2M --rw=read --bs=128k --iodepth=16
    verified "$disk" 512k --bs=64k --iodepth=8
    same "$(errors_of "$disk")" 0 "connections lost"
    end
}

# --- large packets -------------------------------------------------------------------------------------------------------------

# 9000 here and 1500 there: each end says what it takes, so this is no trouble.
# long
test_two_sizes_of_packets() {
    begin
    ip link set near0 mtu 9000
    reach
    verified "$disk" 4M --bs=128k
    end
}

# long
test_large_packets_vanish_and_tcp_finds_out() {
    # TCP finds out after its fourth try or so, some seconds later: lunet must not ask for less.
    begin 20s
    sysctl -qw net.ipv4.tcp_mtu_probing=1
    far sysctl -qw net.ipv4.tcp_mtu_probing=1
    network_jumbo
    reach
    network_swallows_large_packets
    verified "$disk" 2M --bs=64k
    sysctl -qw net.ipv4.tcp_mtu_probing=0
    end
}

# Nothing gets through but small PDUs: sessions come up and die. Once the wire is well, all goes on as if nothing had been.
# long
test_large_packets_vanish_for_good() {
    local reader
    begin
    network_jumbo
    reach
    network_swallows_large_packets
    dd if="$disk" of=/run/late bs=256k count=4 iflag=direct status=none &
    reader=$!
    # The initiator gives up first: its own pings, which are small, tell lunet that it is there.
    within 60 eval "[ \$(errors_of $disk) -gt 0 ]"
    kill -0 $reader
    wires_mend
    wait $reader
    cmp -n $((1 << 20)) /run/late /run/before
    [ "$LAB_TARGET" = lio ] || same "$(sessions_from 192.0.2.1) $(sessions_from 198.51.100.1)" "1 1"
    verified "$disk" 1M
    end
}

# --- silence -------------------------------------------------------------------------------------------------------------------

# Sessions that lunet has from an address.
sessions_from() { ask sessions --json | grep -c "\"peer\": *\"$1:" || true; }
has_sessions() { [ "$(sessions_from "$1")" = "$2" ] || { ask sessions; return 1; }; }

# A cable is pulled in the middle of a transfer, and put back long after.
# long
test_half_open_connection() {
    lunet_only "about lunet's own limits"
    begin 2s
    reach
    network_bad rate 50mbit
    load_begin main "$disk" 8M --bs=256k --iodepth=8 --rw=write
    sleep 2
    wire_cut 0 silent
    # Asked after 2 seconds, given up after 4; the rest is for a slow machine.
    within 20 has_sessions 192.0.2.1 0
    logged 'does not answer a ping'
    has_sessions 198.51.100.1 1
    sleep 3
    wires_mend
    within 90 has_sessions 192.0.2.1 1
    network_good
    load_end main
    end
}

# A client that hangs takes nothing in and says nothing, while its system is well: its window is shut.
test_a_client_that_hangs() {
    local client
    lunet_only "about lunet's own limits"
    begin 2s
    reach
    iscsi-perf -i iqn.2026-11.local.lab:hangs -m 32 -b 1024 "iscsi://${FAR[0]}/$IQN/0" >/run/perf 2>&1 &
    client=$!
    within 60 has_sessions 192.0.2.1 2
    kill -STOP $client
    within 40 has_sessions 192.0.2.1 1
    kill -9 $client
    verified "$disk" 1M
    end
}

# The beginning of a login, and then nothing.
# long
test_a_connection_that_stalls_in_a_header() {
    lunet_only "about lunet's own limits"
    begin
    reach
    exec 5<>/dev/tcp/${FAR[0]}/3260
    printf '\x43\x87\0\0\0\0' >&5
    timeout 20 cat <&5 >/dev/null
    verified "$disk" 1M
    end
}

# --- a wire that lies ----------------------------------------------------------------------------------------------------------

# Wrong digests that the target has found.
digest_errors() {
    case $LAB_TARGET in
        lunet) counted digest_errors ;;
        # Its counters leave those of immediate data out.
        lio) dmesg | grep -c 'Digest .* does not match' || true ;;
    esac
}

test_digests_find_what_tcp_does_not() {
    local errors
    begin
    # Without digests, what is read is wrong: so damage gets through TCP, and the rest of the test is about something.
    reach
    network_lies 1
    dd if="$disk" of=/run/wrong bs=64k count=1 iflag=direct status=none
    fails cmp -s -n 65536 /run/wrong /run/before
    network_good
    logout "${FAR[0]}"
    reach "node.conn[0].iscsi.HeaderDigest=CRC32C" "node.conn[0].iscsi.DataDigest=CRC32C"
    # Seldom enough: a command whose data are damaged six times in a row fails, and Linux tells so.
    network_lies 0.004
    for _ in 1 2 3 4 5 6 7 8; do
        verified "$disk" 4M --bs=64k --iodepth=2
        errors=$(digest_errors)
        [ "$errors" = 0 ] || [ "$(errors_of "$disk")" = 0 ] || break
    done
    note "found by the target: $errors, by the initiator: $(errors_of "$disk")"
    [ "$errors" -gt 0 ]
    [ "$(errors_of "$disk")" -gt 0 ]
    network_good
    end
}
