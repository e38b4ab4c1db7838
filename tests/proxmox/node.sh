# In the lab's guest: a lunet with two portals and one for NVMe, open-iscsi and multipathd, and then node.pl.
. /host/guest/lib.sh
set -eu
rm -f /run/udev/rules.d/{55-scsi-sg3_id,58-scsi-sg3_symlink,60-multipath}.rules
udevadm control --reload
# As on Proxmox: the guest is started without.
modprobe nvme-core multipath=Y
modprobe -a iscsi_tcp sd_mod sg loop xfs nvme_tcp
truncate -s 512M /root/image
mkfs.xfs -q /root/image
mkdir -p /data /etc/nvme
mount -o loop /root/image /data
mkdir /data/lunet
cat >/run/lunet.toml <<'TOML'
[server]
data = "/data/lunet"
[[portal]]
address = "127.0.0.1:3260"
[[portal]]
address = "127.0.0.2:3260"
[[portal]]
address = "127.0.0.1:4420"
transport = ["nvme-tcp"]
[[portal]]
address = "127.0.0.2:4420"
transport = ["nvme-tcp"]
[control]
listen = ["127.0.0.1:3261", "0.0.0.0:3262"]
[volumes.memory]
backend = "memory"
size = "1MiB"
[[target]]
name = "iqn.2026-11.local.lunet:memory"
luns = ["memory"]
protocols = ["iscsi", "nvme"]
TOML
$LUNET serve --config /run/lunet.toml >/run/lunet.out 2>&1 &
within 100 grep -q '^certificate: ' /run/lunet.out
code=$(sed -n 's/^page: http:.*code: //p' /run/lunet.out)
fingerprint=$(sed -n 's/^certificate: SHA-256 //p' /run/lunet.out)
token=$(perl /host/token.pl "$code")
initiator
multipath_start
echo nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349 >/etc/nvme/hostnqn
perl -T /host/node.pl "$fingerprint" "$token" || { tail -n 20 /run/lunet.out; exit 1; }
