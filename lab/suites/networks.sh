# Bad networks: slow is allowed, wrong is not.
#
# The target is behind a wire that something is done to. Its first disk is used over that wire, the second by a bystander over
# another one, who must notice nothing. After each test the file behind the first disk is compared with what the client reads.
# run: -t 1800
# client: open-iscsi

# The target, asking after silent clients every three seconds or every $1, and the two logins: sets $disk and $other.
begin() {
    local limit=${1:-3s}
    network_far
    mkdir -p /var/lib/lab
    dd if=/dev/urandom of=/var/lib/lab/disk0 bs=1M count=32 status=none
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
luns = ["disk0", "disk1"]
TOML
    fi
    # Disks come one after the other.
    first=$(login "${FAR[1]}:3260" | sed -n 1p)
    within 30 eval '[ "$(disks | wc -l)" = 2 ]'
    other=$(disks | by_lun | sed -n 2p)
    # Half a minute is long, and yet less than what anything here lasts for him whom it concerns.
    load_begin bystander "$other" 512k --rate_iops=50 --max_latency=30s
}

# Logs in over the bad wire: [NAME=VALUE ...]
reach() {
    login "${FAR[0]}:3260" "$@" >/run/disks
    within 30 eval '[ "$(disks | wc -l)" = 4 ]'
    disk=$(disks | by_lun | sed 2q | grep -vx "$first")
}

# What is to be true at the end of each test, over a wire that is well again. The load was within the first 16 MiB.
end() {
    wires_mend
    network_good
    dd if="$disk" of=/run/read bs=256k iflag=direct status=none
    cmp /run/read /var/lib/lab/disk0
    cmp -i $((16 << 20)) /run/read /run/before
    fails cmp -s -n $((16 << 20)) /run/read /run/before
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
    verified "$disk" 8M --bs=128k --iodepth=8
    same "$(errors_of "$disk")" 0 "connections lost"
}

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
test_two_sizes_of_packets() {
    begin
    ip link set near0 mtu 9000
    reach
    verified "$disk" 4M --bs=128k
    end
}

test_large_packets_vanish_and_tcp_finds_out() {
    begin
    sysctl -qw net.ipv4.tcp_mtu_probing=1
    far sysctl -qw net.ipv4.tcp_mtu_probing=1
    network_jumbo
    reach
    network_swallows_large_packets
    verified "$disk" 2M --bs=64k
    sysctl -qw net.ipv4.tcp_mtu_probing=0
    end
}

# --- silence -------------------------------------------------------------------------------------------------------------------

# Sessions that lunet has from an address.
sessions() { ask sessions --json | grep -c "\"peer\": *\"$1:" || true; }
has_sessions() { [ "$(sessions "$1")" = "$2" ] || { ask sessions; return 1; }; }

# A cable is pulled in the middle of a transfer, and put back long after.
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
    grep -q 'does not answer a ping' /run/lunet/lunet.log
    has_sessions 198.51.100.1 1
    sleep 3
    wires_mend
    within 90 has_sessions 192.0.2.1 1
    network_good
    load_end main
    end
}

# The beginning of a login, and then nothing.
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
