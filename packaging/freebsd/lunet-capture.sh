#!/bin/sh
# Captures a FreeBSD or TrueNAS CORE machine: `sh lunet-capture.sh [FILE]`. Take FILE to a Linux machine with lunet, and there
# `lunet doctor --root FILE` says what is slow or at risk, and `lunet tune plan --root FILE` what to set.
#
# It only looks, and loads no kernel module. FILE is a text that can be read before it is sent: passwords of CHAP and serial
# numbers are masked here; addresses, host names of pools and volumes and names of initiators are not. As root it sees more;
# what it could not get stands at the beginning of FILE. For FreeBSD 12 to 14; it needs nothing but the base system.
set -u
umask 077
LC_ALL=C
PATH=$PATH:/bin:/sbin:/usr/bin:/usr/sbin:/usr/local/bin:/usr/local/sbin
export LC_ALL PATH

# Seconds that a command may take; bytes that are kept of what it says.
patience=20
most=1000000
# For tests: where the files of the machine are.
root=${LUNET_CAPTURE_ROOT:-}

fail() { echo "lunet-capture: $*" >&2; exit 1; }

[ "$(uname -s)" = FreeBSD ] || fail "this is for FreeBSD and TrueNAS CORE; on Linux: lunet tune capture"
out=${1:-lunet-$(hostname -s).txt}
[ ! -e "$out" ] || fail "$out is there already: name another file, or remove it"
work=$(mktemp -d "${TMPDIR:-/tmp}/lunet-capture.XXXXXX") || fail "no temporary folder can be made"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
: >"$work/lacked"
: >"$work/body"

lack() { printf 'lacked %s\n' "$*" | cut -c 1-200 >>"$work/lacked"; }

# Lines of a file or command: each with a bar before it.
lines() { head -c $most | sed 's/^/| /' >>"$work/body"; }

# Runs a command and puts what it says through the filter $1 (a function).
run() {
    filter=$1
    shift
    if ! command -v "$1" >/dev/null 2>&1; then
        grep -q "^lacked $1: " "$work/lacked" || lack "$1: is not installed"
        return
    fi
    timeout $patience "$@" </dev/null >"$work/out" 2>"$work/err"
    code=$?
    if [ $code -eq 124 ]; then
        lack "$*: took more than $patience seconds"
    elif [ $code -ne 0 ] && [ ! -s "$work/out" ]; then
        lack "$*: $(head -n 1 "$work/err")"
    fi
    printf '$ %s\n' "$*" >>"$work/body"
    [ $code -eq 0 ] || echo "exit $code" >>"$work/body"
    $filter <"$work/out" | lines
}

# A file, through the filter $1.
file() {
    [ -e "$root$2" ] || return
    if [ ! -r "$root$2" ]; then
        lack "$2: may not be read"
        return
    fi
    printf '%s:\n' "$2" >>"$work/body"
    $1 <"$root$2" | lines
}

# Filters.
whole() { cat; }

secrets() { sed -E 's/((password|passphrase|secret|token|psk)[A-Za-z0-9_.]*[[:space:]]*[=:]).*/\1"***"/I'; }

numbers_of_drives() {
    sed -E -e '/"wwn": \{/,/\}/d' \
        -e 's/("(serial_number|logical_unit_id)": )"[^"]*"/\1"***"/' \
        -e 's/^([[:space:]]*(ident|lunid): ).*/\1***/' \
        -e 's/^((Serial [Nn]umber|LU WWN Device Id|Logical Unit id|IEEE EUI64|Globally Unique Identifier)[^:]*:[[:space:]]*).*/\1***/' \
        -e 's/^(serial number[[:space:]]+|WWN[[:space:]]+).*/\1***/' \
        -e 's/(Serial Number) .*/\1 ***/'
}

transceivers() { sed -E 's/ SN: [^[:space:]]+/ SN: ***/'; }

# Numbers and identifiers behind the first four columns, and names that hold them.
luns() {
    sed -E -e 's/^([[:space:]]*[0-9]+[[:space:]]+[a-z]+[[:space:]]+[0-9]+[[:space:]]+[0-9]+) .*/\1 *** ***/' \
        -e 's/^([[:space:]]*(scsiname|naa|eui|uuid)=).*/\1***/'
}

# /etc/ctl.conf without comments and without the secrets of `chap USER SECRET` and `chap-mutual USER SECRET USER SECRET`,
# however they are spread over lines; serial numbers as well.
ctl_conf() {
    awk '
    {
        rest = $0; line = ""
        while (match(rest, /"[^"]*"|[^ \t"{}#;]+|[{}#;]/)) {
            word = substr(rest, RSTART, RLENGTH)
            line = line substr(rest, 1, RSTART - 1)
            rest = substr(rest, RSTART + RLENGTH)
            if (word == "#") { rest = ""; break }
            if (keep > 0) { keep--; line = line word; continue }
            if (mask > 0) { mask--; line = line "\"***\""; continue }
            line = line word
            gsub(/"/, "", word)
            if (word == "chap") { keep = 1; mask = 1 }
            if (word == "chap-mutual") { keep = 1; mask = 3 }
            if (word == "serial" || word == "device-id" || word == "naa") { mask = 1 }
        }
        print line
    }'
}

settings() {
    grep -E '^(kern\.(ostype|osrelease|ident|boottime|vm_guest|ipc\.|icl\.|cam\.ctl\.|timecounter\.(hardware|choice))|vm\.ndomains|vfs\.zfs\.|kstat\.zfs\.misc\.arcstats\.|net\.inet\.(ip\.forwarding|tcp\.)|hw\.(intr_storm_threshold|machine_arch|model|ncpu|pagesize|physmem)|debug\.witness\.watch|dev\.(cpu\.0|hwpstate_[a-z]+\.[0-9]+)\.|dev\.[a-z0-9_]+\.[0-9]+\.(%domain|mac(_stats)?\.crc_err))' |
        grep -v 'hostcache\.list'
}

# What the doctor looks for in the log, and no other line: a log holds much that is nobody else's business.
log() {
    grep -E 'CAM status: |SCSI sense: |ATA status: |Periph destroyed|nvme.*(Resetting controller|resetting controller|Missing interrupt|controller failure)|IOC Fault|Reinitializing controller|nterrupt storm detected|no ping reply \(NOP-Out\)|link state changed to|kern\.ipc\.nmb.*limit reached|swap_pager|was killed: |Listen queue overflow|MCA: Bank|pool I/O failure|I/O failure and has been suspended' |
        tail -n 3000
}

vdevs() { grep -E '^[^ ]|ashift:|is_log:| type:'; }

comments() { sed -E 's/"comment": ?"[^"]*"/"comment": ""/g'; }

# The system.
run whole date +%s
run whole kenv -q smbios.system.maker
run whole kenv -q smbios.system.product
file whole /etc/version
run settings sysctl -a
file secrets /boot/loader.conf
file secrets /boot/loader.conf.local
file secrets /etc/sysctl.conf
file secrets /etc/rc.conf
[ ! -e "$root/etc/version" ] || run comments midclt call tunable.query
run whole swapinfo -k

# The network.
run transceivers ifconfig -vm
run whole netstat -ibdnW
run whole netstat -m
run whole netstat -s -p tcp

# Drives and what they hang on.
run whole pciconf -lvbc
run numbers_of_drives geom disk list
for disk in $(sysctl -n kern.disks 2>/dev/null | tr ' ' '\n' | sort); do
    case $disk in
        da[0-9]* | ada[0-9]*)
            run whole camcontrol tags "$disk" -v
            run numbers_of_drives smartctl -a -j "/dev/$disk"
            ;;
    esac
done
run whole nvmecontrol devlist
for nvme in $(timeout $patience nvmecontrol devlist 2>/dev/null | sed -n 's/^ *\(nvme[0-9]*\): .*/\1/p'); do
    run numbers_of_drives nvmecontrol identify "${nvme}ns1"
    run whole nvmecontrol logpage -p 2 "$nvme"
done
run whole glabel status
run whole gpart show -p
if kldstat -q -m g_multipath 2>/dev/null; then run whole gmultipath status; fi

# Pools.
if command -v zpool >/dev/null 2>&1; then
    run whole zpool list -Hp -o name,size,allocated,free,fragmentation,capacity,dedupratio,health
    run whole zpool get -Hp -o name,property,value ashift,autotrim
    run whole zpool get -Hp -o name,property,value all
    run whole zpool status -PLp
    run whole zpool status -s
    run whole zfs list -Hp -t volume -o name,volsize,volblocksize,used,refreservation,sync,volmode,compression,compressratio,checksum,dedup,primarycache,secondarycache,logbias,encryption
    run whole zfs list -Hp -t filesystem -o name,used,recordsize,sync,compression,atime,xattr,primarycache,logbias,dedup
    if [ -e "$root/data/zfs/zpool.cache" ]; then
        run vdevs zdb -U /data/zfs/zpool.cache -C
    else
        run vdevs zdb -C
    fi
fi

# The iSCSI target. ctladm would load the kernel's part of it if it is not there.
file ctl_conf /etc/ctl.conf
if [ -e "$root/dev/cam/ctl" ]; then
    run luns ctladm devlist -v
    run whole ctladm portlist -v
    run whole ctladm islist -v
else
    lack "ctladm: no target is loaded (/dev/cam/ctl)"
fi

# The log.
file log /var/log/messages
run log sysctl -n kern.msgbuf

# For people who read the capture; the doctor does not.
run whole uname -a
run whole uptime
run whole camcontrol devlist -v
run whole vmstat -i
run whole top -b -d 1 20
run whole gstat -b -I 1s
run whole zpool list -v -p

if [ "$(id -u)" -eq 0 ]; then by_root=yes; else by_root=no; fi
{
    echo "# A FreeBSD machine as lunet-capture.sh saw it."
    echo "/lunet-capture:"
    { echo "system FreeBSD"; echo "version 1"; echo "root $by_root"; head -n 100 "$work/lacked"; } | sed 's/^/| /'
    cat "$work/body"
} >"$out" || fail "$out cannot be written"
echo "wrote $out, $(wc -l <"$out" | tr -d ' ') lines, $(wc -l <"$work/lacked" | tr -d ' ') things that could not be had"
[ "$by_root" = yes ] || echo "run it as root for all of it" >&2
