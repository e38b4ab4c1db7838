# The latest form of a data directory that this lunet knows, and the latest version of a configuration. Later ones are left to
# the lunet that is installed: nothing is changed, and its server goes on.
form=1
version=2
config=/etc/lunet/lunet.toml
# These files are the service's: what is no file there, or has no end, holds nobody up.
bounded() { if [ -f "$2" ]; then timeout 10 head -c 1048576 "$2" | timeout 10 awk "$1"; fi; }
refuse() {
    echo "lunet: $1: keep the lunet that is installed" >&2
    exit 1
}
number() { case "$1" in *[!0-9]* | ??????*) echo 999999 ;; *) echo "${1:-0}" ;; esac; }
folders() {
    echo /var/lib/lunet
    bounded '/^[ \t]*\[/ { server = /^[ \t]*\[server\]/ }
        server && /^[ \t]*data[ \t]*=[ \t]*["\047]/ { gsub(/\047/, "\""); split($0, part, "\""); print part[2] }' $config
    sed -n 's/^ExecStart=.*--data[= ]\([^ ]*\).*/\1/p' /etc/systemd/system/lunet.service.d/*.conf 2>/dev/null || true
}
check() {
    found=$(number "$(bounded '/^[ \t]*\[/ { exit } /^[ \t]*version[ \t]*=/ { sub(/#.*/, ""); gsub(/[^0-9]/, ""); print; exit }' $config)")
    if [ "$found" -gt "$version" ]; then
        refuse "$config is of version $found, and this lunet knows versions up to $version"
    fi
    folders | while read -r data; do
        found=$(number "$(bounded '{ print; exit }' "$data/form")")
        if [ "$found" -gt "$form" ]; then
            refuse "$data has form $found, which this lunet does not know (it knows up to $form)"
        fi
    done
}
# Devices that the unit lets in by the configuration stay so. It is a list of root's that says it now: see lunet(8).
keep_devices() {
    generated=/run/systemd/generator/lunet.service.d/50-configuration.conf
    if [ ! -e /etc/lunet-devices.conf ] && grep -qs '^DeviceAllow="/dev/' $generated; then
        sed -n 's/^DeviceAllow="\(\/dev\/.*\)" rw$/\1/p' $generated | sed 's/%%/%/g' >/etc/lunet-devices.conf
        chmod 644 /etc/lunet-devices.conf
    fi
}
check || exit 1
[ "$1" -lt 2 ] || keep_devices
