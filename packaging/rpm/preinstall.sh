# The latest form of a data directory that this lunet knows, and the latest version of a configuration. Later ones are left to
# the lunet that is installed: nothing is changed, and its server goes on.
form=1
version=2
config=/etc/lunet/lunet.toml
# What a program of awk finds in a file, of which the first megabyte is read. The file is the service's, and the file system may
# hang: it is read with the rights of whoever owns its folder and decides what its names are, and a reader that does not even
# end when it is killed is left behind. Fails if there is no answer in 10 seconds.
look() {
    place=$(mktemp -d) || return 1
    {
        timeout -s KILL 10 sh -c 'folder=${1%/*}
            [ -d "$folder" ] || exit 0
            exec setpriv $(stat -L -c "--reuid=%u --regid=%g" "$folder") --clear-groups -- \
                sh -c "[ ! -f \"\$1\" ] || head -c 1048576 \"\$1\"" sh "$1"' sh "$2" >"$place/text"
        echo $? >"$place/ended"
    } </dev/null >/dev/null 2>&1 &
    tries=0
    until [ -s "$place/ended" ] || [ $tries -ge 120 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    case "$(cat "$place/ended" 2>/dev/null)" in '' | 124 | 137) ended=1 ;; *) ended=0 ;; esac
    [ $ended = 1 ] || awk "$1" "$place/text"
    rm -rf "$place"
    return $ended
}
# Names are the service's, too: a terminal gets nothing of them but text.
refuse() {
    if [ -n "${LUNET_UNCHECKED:-}" ]; then
        next="goes on, because LUNET_UNCHECKED is set"
    else
        next="${2:-keep the lunet that is installed}, or set LUNET_UNCHECKED=1 to have this one nevertheless (Downgrades, in /usr/share/doc/lunet/docs/install.md)"
    fi
    printf 'lunet: %s: %s\n' "$1" "$next" | LC_ALL=C tr -c '\n\040-\176' '?' >&2
    [ -n "${LUNET_UNCHECKED:-}" ] || exit 1
}
hangs() { refuse "$1 could not be read in 10 seconds, so its file system hangs, and nobody can tell whether this lunet knows what is there: see to that file system first"; }
number() { case "$1" in *[!0-9]* | ??????*) echo 999999 ;; *) echo "${1:-0}" ;; esac; }
folders() {
    echo /var/lib/lunet
    look '/^[ \t]*\[/ { server = /^[ \t]*\[server\]/ }
        server && /^[ \t]*data[ \t]*=[ \t]*["\047]\// { gsub(/\047/, "\""); split($0, part, "\""); print part[2]; exit }' $config || true
    sed -n 's/^ExecStart=.*--data[= ]\([^ ]*\).*/\1/p' /etc/systemd/system/lunet.service.d/*.conf 2>/dev/null || true
}
# The service is a user of the system. A person of its name would have its files, and it the person's.
check_user() {
    found=$(getent passwd lunet) || return 0
    number=$(echo "$found" | cut -d: -f3)
    case "$found" in
    *[!A-Za-z0-9_]nologin | *[!A-Za-z0-9_]false) ;;
    *) [ "$number" -lt 1000 ] || refuse "there is a user lunet who logs in (number $number), and the service would run as that one" "rename that user" ;;
    esac
}
check() {
    if ! found=$(look '/^[ \t]*\[/ { exit } /^[ \t]*version[ \t]*=/ { sub(/#.*/, ""); gsub(/[^0-9]/, ""); print; exit }' $config); then
        hangs $config
    elif [ "$(number "$found")" -gt "$version" ]; then
        refuse "$config is of version $(number "$found"), and this lunet knows versions up to $version"
    fi
    folders | while read -r data; do
        if ! found=$(look '{ print; exit }' "$data/form"); then
            hangs "$data/form"
        elif [ "$(number "$found")" -gt "$form" ]; then
            refuse "$data has form $(number "$found"), which this lunet does not know (it knows up to $form)"
        fi
    done
}
# Devices that the unit of a lunet without a list let in by the configuration stay so. A lunet that knows the list has that, or
# root wants none: the configuration is the service's, and does not fill it again.
keep_devices() {
    generated=/run/systemd/generator/lunet.service.d/50-configuration.conf
    if [ -e /etc/lunet-devices.conf ] || [ ! -x /usr/bin/lunet ] || grep -aq 'lunet-devices[.]conf' /usr/bin/lunet ||
        ! grep -qs '^DeviceAllow="/dev/' $generated; then
        return 0
    fi
    sed -n 's/^DeviceAllow="\(\/dev\/.*\)" rw$/\1/p' $generated | sed 's/%%/%/g' >/etc/lunet-devices.conf
    chmod 644 /etc/lunet-devices.conf
    echo "lunet: the service may go on to open the devices of its configuration: /etc/lunet-devices.conf lists them now, for you to look at"
}
[ "$1" -ne 1 ] || check_user
check || exit 1
[ "$1" -lt 2 ] || keep_devices
