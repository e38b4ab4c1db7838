# What every start of the suite `tune` does in the guest: what systemd would do with the files of `lunet tune apply --persist`, and
# soft RoCE.
. /host/guest/lib.sh
set -Eeuo pipefail
trap 'echo "    failed: $BASH_COMMAND (line $LINENO of ${FUNCNAME[0]:-the script})" >&2' ERR

# ZFS, if the guest has it, as a package would have it, so that modprobe.d counts.
if [ -e /host/zfs.ko ]; then
    extra=/lib/modules/$(uname -r)/extra
    [ -e "$extra/zfs.ko" ] || { mkdir -p "$extra" && cp /host/*.ko "$extra/" && depmod; }
    modprobe zfs
fi
sysctl --system >/dev/null 2>&1 || true
modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0
for unit in /etc/systemd/system/lunet-*.service; do
    [ -e "$unit" ] || continue
    sed -n 's/^ExecStart=-\{0,1\}//p' "$unit" | bash -e
done

tune() { /run/programs/lunet tune "$@"; }

pool_new() { zfs_pool; }
pool_again() { udevadm settle; zpool import -f -a; }

# Every setting that a rule might touch, and every file of /etc: a line each, in order.
what_is() {
    python3 - <<'PY'
import glob, hashlib, os
lines = []
folders = ['/proc/sys/net', '/proc/sys/vm', '/proc/sys/kernel']
folders += [*glob.glob('/sys/module/*/parameters'), *glob.glob('/sys/block/*/queue')]
for folder, _, names in (walked for top in folders for walked in os.walk(top)):
    for path in (os.path.join(folder, name) for name in names):
        # Those change by being looked at, or all the time; some only count.
        if any(word in path for word in ('flush', 'random', 'ns_last_pid', '/neigh/', 'iostats_', '/spl/kmem/')):
            continue
        try:
            lines.append(f'{path}={open(path, "rb").read()!r}')
        except OSError:
            pass
for folder, _, names in os.walk('/etc'):
    for path in (os.path.join(folder, name) for name in names):
        # ZFS's own list of pools, which every import writes.
        if path == '/etc/zfs/zpool.cache':
            continue
        link = os.path.islink(path)
        what = os.readlink(path) if link else hashlib.md5(open(path, 'rb').read()).hexdigest()
        lines.append(f'{path}={os.lstat(path).st_mode:o} {what}')
print('\n'.join(sorted(lines)))
PY
}
