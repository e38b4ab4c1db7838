# Helpers of the suites, for use in the guest.

IQN=iqn.2026-11.local.lunet:lab
INITIATOR=iqn.2026-11.local.lab:initiator
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}

# A word about what was measured, shown beside a passed test.
note() { echo "note: $*"; }

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

# Starts lunet with this configuration (standard input) under a name; ready when it returns.
serve() {
    local name=${1:-lunet} dir=/run/lunet
    mkdir -p $dir /var/lib/lab/$name
    cat >$dir/$name.toml
    start_again "$name"
}

# Starts it once more with the configuration that it has.
start_again() {
    local name=${1:-lunet} dir=/run/lunet
    /host/lunet serve --config $dir/$name.toml --data /var/lib/lab/$name --socket $dir/$name.sock \
        >$dir/$name.out 2>>$dir/$name.log &
    echo $! >$dir/$name.pid
    within 20 grep -q iscsi:// $dir/$name.out || { cat $dir/$name.log; return 1; }
}

# lunet's own commands, asked of the server under a name.
ask() {
    local name=$1
    shift
    /host/lunet "$@" --socket /run/lunet/$name.sock
}

# Ends it: by SIGTERM, or with -9 at once.
stop() {
    local name=${2:-lunet} pid
    pid=$(cat /run/lunet/$name.pid)
    kill ${1:--15} "$pid" || true
    within 30 eval "! kill -0 $pid 2>/dev/null"
}

# Starts the initiator's daemon.
initiator() {
    modprobe -a iscsi_tcp sd_mod sg
    mkdir -p /run/lock/iscsi /etc/iscsi
    echo "InitiatorName=$INITIATOR" >/etc/iscsi/initiatorname.iscsi
    [ -e /run/iscsid.pid ] && kill -0 "$(cat /run/iscsid.pid)" 2>/dev/null || { iscsid; sleep 0.3; }
}

# Makes a node record: PORTAL [NAME=VALUE ...]
record() {
    local portal=$1 setting
    shift
    iscsiadm -m node -o new -T $IQN -p "$portal" >/dev/null
    # The default is 8 tries of 15 s each: a test wants to know at once.
    for setting in node.session.initial_login_retry_max=1 node.startup=manual "$@"; do
        iscsiadm -m node -T $IQN -p "$portal" -o update -n "${setting%%=*}" -v "${setting#*=}"
    done
}

# Logs in and prints the disks, one a line, by LUN: PORTAL [NAME=VALUE ...]
login() {
    local portal=$1 before
    initiator
    record "$@"
    before=$(disks)
    iscsiadm -m node -T $IQN -p "$portal" --login >&2
    within 15 eval '[ "$(disks)" != "'"$before"'" ]' >&2
    udevadm settle -t 20
    comm -13 <(sort <<<"$before") <(disks | sort) | order_by_lun
}

# The disks that sessions show.
disks() { for d in /sys/class/iscsi_session/session*/device/target*/*/block/*; do [ -e "$d" ] && echo "/dev/${d##*/}"; done; true; }

order_by_lun() {
    local d
    while read -r d; do
        [ -n "$d" ] && echo "$(basename "$(readlink -f "/sys/block/${d#/dev/}/device")" | cut -d: -f4) $d"
    done | sort -n | cut -d' ' -f2
}

logout() { iscsiadm -m node -T $IQN ${1:+-p "$1"} --logout >&2; }

# Takes away whatever a test left behind.
clear_up() {
    local p
    pkill -9 fio
    awk '$2 ~ "^/mnt/" {print $2}' /proc/mounts | sort -r | xargs -r -n1 umount -f
    multipath -F 2>/dev/null
    pkill multipathd
    iscsiadm -m node --logoutall=all >/dev/null 2>&1
    for p in /run/lunet/*.pid; do [ -e "$p" ] && kill -9 "$(cat "$p")" 2>/dev/null; done
    iscsiadm -m node -o delete >/dev/null 2>&1
    iptables -F 2>/dev/null
    tc qdisc del dev lo root 2>/dev/null
    ip addr flush dev lo label 'lo:*' 2>/dev/null
    rm -rf /var/lib/lab /mnt/* 2>/dev/null
    true
}
