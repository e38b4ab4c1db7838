# `lunet attach` of NVMe over TCP with TLS, on a host as Debian 13 has it: a current kernel, tlshd and nvme-cli. It has no systemd; what
# its units do at boot is done by hand. With LAB_TARGET=lio the target is nvmet.
# client: lunet attach
# guest: trixie
# minutes: 1
# only in long runs

test_tls_with_a_key_that_is_in_one_file_only() {
    local unit url=nvme-tcp://127.0.0.1/$NQN
    mkdir -p /etc/nvme
    echo "${HOSTNQN[0]}" >/etc/nvme/hostnqn
    echo "${HOSTNQN[0]#*uuid:}" >/etc/nvme/hostid
    (umask 077; echo $TLS_KEY >/run/key; echo $TLS_KEY_OTHER >/run/other)
    nvme_start tls=$TLS_KEY portal_tls=required
    tlshd_begin
    # nvmet has one keyring with its host, and lunet's own host comes without it.
    [ "$LAB_TARGET" = lunet ] || tls_key $TLS_KEY
    fails "$LUNET" attach $url --yes 2>/run/refused
    [ "$LAB_TARGET" != lunet ] || fails "$LUNET" attach $url --yes --tls-key-file /run/other 2>/run/refused
    same "$(ls /sys/class/nvme)" ""
    "$LUNET" attach $url --yes --tls-key-file /run/key >/run/attached
    fails grep -r NVMeTLSkey /run/attached /var/lib/lunet-attach /etc/systemd
    same "$(stat -c %a /etc/nvme/lunet-attach-lab-1.json)" 600
    [ -s /sys/class/nvme/nvme0/tls_key ]
    verified "$(sed -n 's/^lab-1 is \(.*\)\.$/\1/p' /run/attached)" 4M
    nvme disconnect-all
    [ "$LAB_TARGET" != lunet ] || tls_forget
    unit=/etc/systemd/system/lunet-attach-lab-1-1.service
    sh -c "$(sed -n 's/^ExecStart=//p' $unit | sed 's/\$\$/$/g; s/%%/%/g')"
    within 30 [ -s /sys/class/nvme/nvme0/tls_key ]
    within 30 "$LUNET" attach --status
    "$LUNET" detach lab-1
    same "$(ls /sys/class/nvme; find /etc /var/lib -name '*lunet-attach*')" ""
}
