# The kernel's initiator, open-iscsi. Sourced by lib.sh.

# Starts the initiator's daemon.
initiator() {
    modprobe -a iscsi_tcp sd_mod sg
    mkdir -p /run/lock/iscsi /etc/iscsi
    echo "InitiatorName=$INITIATOR" >/etc/iscsi/initiatorname.iscsi
    pidof iscsid >/dev/null && return
    iscsid -d 1 -f >>/run/iscsid.log 2>&1 &
    within 10 grep -q ISCSIADM_ABSTRACT /proc/net/unix
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

# Logs in and prints the disks that come with it, one a line, by LUN: PORTAL [NAME=VALUE ...]
login() {
    local portal=$1 before
    initiator
    record "$@" >&2
    before=$(disks)
    iscsiadm -m node -T $IQN -p "$portal" --login >&2 || return
    within 15 eval '[ "$(disks)" != "'"$before"'" ]' >&2
    udevadm settle -t 90
    comm -13 <(sort <<<"$before") <(disks | sort) | by_lun
}

# Ends the sessions with a portal, or all.
logout() { iscsiadm -m node -T $IQN ${1:+-p "$1"} --logout >&2; }

# The disks that sessions show, one a line.
disks() {
    local d
    for d in /sys/class/iscsi_session/session*/device/target*/*/block/*; do [ -e "$d" ] && echo "/dev/${d##*/}"; done
    true
}

# Puts the disks of standard input into the order of their LUNs.
by_lun() {
    local d
    while read -r d; do
        [ -z "$d" ] || echo "$(basename "$(readlink -f "/sys/block/${d#/dev/}/device")" | cut -d: -f4) $d"
    done | sort -n | cut -d' ' -f2
}

# How long the kernel holds commands back while a session is away, before they fail: SECONDS
patience() { for s in /sys/class/iscsi_session/session*/recovery_tmo; do echo "$1" >"$s"; done; }

initiator_clear() {
    pidof iscsid >/dev/null || return 0
    patience 1 2>/dev/null
    timeout 20 iscsiadm -m node --logoutall=all >/dev/null
    iscsiadm -m node -o delete >/dev/null
    # A session whose target is gone may not be logged out, and would be in the next test's way.
    [ -z "$(ls /sys/class/iscsi_session)" ] || { echo "clear_up: sessions are left:"; ls /sys/class/iscsi_session; }
}
