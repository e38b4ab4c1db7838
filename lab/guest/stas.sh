# nvme-stas, which keeps a host connected to what its discovery controllers tell. Sourced by lib.sh. The guest with the release trixie
# has it; there is no systemd, so its two services and their bus are started by hand.

# Starts stafd, with a discovery controller at 127.0.0.1:4420, and stacd, which connects to what that finds. As the first host.
stas_begin() {
    mkdir -p /run/dbus /run/stafd /run/stacd /etc/nvme
    echo "${HOSTNQN[0]}" >/etc/nvme/hostnqn
    echo "${HOSTNQN[0]##*uuid:}" >/etc/nvme/hostid
    cat >/run/stafd.conf <<END
[Global]
tron = true
[Service Discovery]
zeroconf = disabled
[Controllers]
controller = transport=tcp;traddr=127.0.0.1;trsvcid=4420
END
    printf '[Global]\ntron = true\n' >/run/stacd.conf
    dbus-daemon --system --fork
    RUNTIME_DIRECTORY=/run/stafd stafd -f /run/stafd.conf >/run/stafd.log 2>&1 &
    RUNTIME_DIRECTORY=/run/stacd stacd -f /run/stacd.conf >/run/stacd.log 2>&1 &
}

# Whether the controllers of the subsystems with these endings are live, and there are no others: [ENDING ...]; '' is $NQN itself
stas_has() {
    local c wanted=() found=()
    for c in "$@"; do wanted+=("$NQN$c"); done
    for c in /sys/class/nvme/nvme*; do
        [[ ! -e $c/subsysnqn || $(cat "$c/subsysnqn") == "$DISCOVERY" ]] || found+=("$(cat "$c/subsysnqn") $(cat "$c/state")")
    done
    [ "$(printf '%s\n' "${found[@]}" | sort)" = "$(printf '%s live\n' "${wanted[@]}" | sort)" ] || { printf '%s\n' "${found[@]}"; return 1; }
}

stas_clear() {
    local name
    [ -e /run/stafd.conf ] || return 0
    for name in stacd stafd; do killed $name; done
    rm -f /run/sta[cf]d.{log,conf}
    if [ -e /run/dbus/pid ]; then
        kill "$(cat /run/dbus/pid)"
        rm -f /run/dbus/pid
    fi
}
