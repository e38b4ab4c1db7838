# Where the lab's packages come from, and where what is built of them is kept. Sourced by image, zfs and qemu.
#
# The host's own apt is not touched: a private configuration takes the mirrors from the host's and adds contrib and backports of the
# guest's release, which is $LAB_RELEASE (default bookworm). Sets $cache, $apt, $release, $kernel (a package) and $version.

guest=${LAB_RELEASE:-bookworm}
release=${guest%-ha}
cache=${LUNET_LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/lunet-lab}
# Lists of one release each: suites of two may be run at a time.
apt=$cache/apt-$release
PATH=$PATH:/usr/sbin:/sbin
# A make that calls this has its own job server, in descriptors that mean something else, or nothing, to a make in another Debian.
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES
say() { echo "lab/${0##*/}: $*" >&2; }
die() { say "$*"; exit 1; }

[ "$(id -u)" = 0 ] || die "root is needed, for the owners of the files in the guest's root file system"
for tool in mmdebstrap qemu-system-x86_64 busybox cpio mke2fs xz; do
    command -v $tool >/dev/null || die "$tool is missing: run scripts/install-missing"
done
mkdir -p "$apt"/{lists/partial,archives/partial,parts}
# Holds a lock of this name until the script ends: two runs at a time build a thing once.
locked() {
    exec 9>"$cache/$1.lock"
    flock 9
}

locked "apt-$release"
# Every mirror of the host that has the release; security updates have a mirror of their own.
python3 - "$release" >"$apt/lab.sources.new" <<'PY'
import glob, re, sys
release = sys.argv[1]
seen = set()
for path in sorted(glob.glob('/etc/apt/sources.list.d/*.sources')):
    for stanza in re.split(r'\n\s*\n', open(path).read()):
        fields = dict(re.findall(r'^([\w-]+):\s*(.*)$', stanza, re.M))
        if 'debian' not in fields.get('Signed-By', 'debian') or fields.get('Enabled') == 'no':
            continue
        for uri in fields.get('URIs', '').split():
            if uri in seen or 'debian' not in uri:
                continue
            seen.add(uri)
            security = uri.rstrip('/').endswith('security')
            suites = f'{release}-security' if security else f'{release} {release}-updates {release}-backports'
            key = fields.get('Signed-By', '/usr/share/keyrings/debian-archive-keyring.gpg')
            print(f'Types: deb\nURIs: {uri}\nSuites: {suites}\nComponents: main contrib\nSigned-By: {key}\n')
PY
[ -s "$apt/lab.sources.new" ] || die "no Debian mirror found in /etc/apt/sources.list.d/*.sources"
# Moved into place: another run may be reading it.
mv "$apt/lab.sources.new" "$apt/parts/lab.sources"
cat >"$apt/apt.conf.new" <<CONF
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$apt/parts";
Dir::State::lists "$apt/lists";
Dir::Cache "$apt";
APT::Sandbox::User "root";
CONF
mv "$apt/apt.conf.new" "$apt/apt.conf"
export APT_CONFIG=$apt/apt.conf
# The lists are looked at once a day: a new kernel may wait that long.
if [ -z "$(find "$apt/stamp" -mmin -1440 2>/dev/null)" ]; then
    apt-get -qq update && touch "$apt/stamp"
fi
# What the lists say, asked once for each state of them, as apt takes a second for an answer: NAME COMMAND [ARGUMENT ...]
listed() {
    local kept=$apt/said-$1
    shift
    if [ ! "$kept" -nt "$apt/stamp" ]; then
        "$@" >"$kept.$$" || return
        mv "$kept.$$" "$kept"
    fi
    cat "$kept"
}
kernel=$(listed kernel apt-cache depends "linux-image-amd64/$release-backports" | awk '/Depends: linux-image-/{print $2; exit}')
[ -n "$kernel" ] || die "the kernel of $release-backports was not found"
version=${kernel#linux-image-}
exec 9>&-
