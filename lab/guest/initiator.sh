# The kernel's initiator, open-iscsi. Sourced by lib.sh.

# Starts the initiator's daemon.
initiator() {
    modprobe -a iscsi_tcp sd_mod sg
    mkdir -p /run/lock/iscsi /etc/iscsi
    echo "InitiatorName=$INITIATOR" >/etc/iscsi/initiatorname.iscsi
    pidof iscsid >/dev/null && return
    iscsid -d 1 -f >>/run/iscsid.log 2>&1 &
    within 40 grep -q ISCSIADM_ABSTRACT /proc/net/unix
}

# Makes a node record: PORTAL [NAME=VALUE ...]
record() {
    local portal=$1 setting
    shift
    iscsiadm -m node -o new -T $IQN -p "$portal" -I "${iface:-default}" >/dev/null
    # The default is 8 tries of 15 s each: a test wants to know at once.
    for setting in node.session.initial_login_retry_max=1 node.startup=manual "$@"; do
        iscsiadm -m node -T $IQN -p "$portal" -I "${iface:-default}" -o update -n "${setting%%=*}" -v "${setting#*=}"
    done
}

# Logs in and prints the disks that come with it, one a line, by LUN: PORTAL [NAME=VALUE ...]
#
#   expects=N      before it: so many disks, which come one after the other (default: as many as target_start has given the target, or one)
#   iface=NAME     before it: by this interface of the initiator, which may have a name of its own
login() {
    local portal=$1 before session
    initiator
    record "$@" >&2
    before=$(ls /sys/class/iscsi_session)
    iscsiadm -m node -T $IQN -p "$portal" -I "${iface:-default}" --login >&2 || return
    session=$(comm -13 <(echo "$before") <(ls /sys/class/iscsi_session))
    within 30 has_disks "$session" "${expects:-${LUNS:-1}}" >&2
    settled
    disks "$session" | by_lun
}

# Ends the sessions with a portal, or all.
logout() { iscsiadm -m node -T $IQN ${1:+-p "$1"} --logout >&2; }

# The disks that a session shows, or all sessions do, one a line: [SESSION]
disks() {
    local d
    for d in /sys/class/iscsi_session/${1:-*}/device/target*/*/block/*; do [ -e "$d" ] && echo "/dev/${d##*/}"; done
    true
}
has_disks() { [ "$(disks "$1" | wc -l)" = "$2" ]; }

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
    # Of several sessions with one portal that ends one.
    [ -z "$(ls /sys/class/iscsi_session)" ] || timeout 20 iscsiadm -m session --logout >/dev/null
    iscsiadm -m node -o delete >/dev/null
    # A session whose target is gone may not be logged out, and would be in the next test's way.
    [ -z "$(ls /sys/class/iscsi_session)" ] || { echo "clear_up: sessions are left:"; ls /sys/class/iscsi_session; }
}
