# TLS of NVMe over TCP as hosts have it: keys in the kernel's keyring, and tlshd, which makes the handshakes for the kernel. Sourced by
# lib.sh. The guest with the release trixie has it.

# Keys for SHA-256, and one for SHA-384.
TLS_KEY=NVMeTLSkey-1:01:yfA5y7w9H1djYdTd2lm8kSqfjE3Npv1Mq1Bz9V7byVAVpSqd:
TLS_KEY_OTHER=NVMeTLSkey-1:01:AwoRGB8mLTQ7QklQV15lbHN6gYiPlp2kq7K5wMfO1dyVhg6h:
TLS_KEY_384=NVMeTLSkey-1:02:CzBVep/E6Q4zWH2ix+wRNluApcrvFDleg6jN8hc8YYar0PUaP2SJrtP4HUJnjLHWooJm/w==:
DISCOVERY=nqn.2014-08.org.nvmexpress.discovery

# Starts tlshd, as its service does.
tlshd_begin() {
    modprobe -a tls nvme-keyring
    printf '[debug]\nloglevel=1\n[authenticate]\nkeyrings=.nvme\n' >/run/tlshd.conf
    tlshd -s -c /run/tlshd.conf >/run/tlshd.log 2>&1 &
    echo $! >/run/tlshd.pid
    within 20 grep -q "'.nvme' linked" /run/tlshd.log
}

# Gives the first host a key: KEY [SUBSYSTEM]
tls_key() { nvme check-tls-key -n "${HOSTNQN[0]}" -c "${2:-$NQN}" -d "$1" -I 1 -i; }

# Takes all of its keys away.
tls_forget() { awk '$8 == "psk" {print $1}' /proc/keys | while read -r key; do keyctl unlink "0x$key" %keyring:.nvme; done; }

# The identities of its keys that an authentication has made.
tls_made() { awk '$8 == "psk" && $9 ~ /^NVMe.G/ {print $9, $10, $11, $12}' /proc/keys; }

# Both ends of so many connections are the kernel's.
sealed() { awk -v n="$1" '/^TlsCurr(Tx|Rx)Sw/ {found += $2 == n} END {if (found != 2) {exit 1}}' /proc/net/tls_stat || { cat /proc/net/tls_stat; return 1; }; }

tls_clear() {
    [ -e /run/tlshd.pid ] || return 0
    killed tlshd
    rm -f /run/tlshd.{log,pid}
}
