# Starting and ending the target. Sourced by lib.sh.

# Starts the target with disks as LUN 0, 1, ... of $IQN, and sets $LUNS to their number: [NAME=VALUE ...]
#
#   size=MIB          of each disk that is a file (default 64)
#   disks=N           so many files (default 1)
#   path=A,B          these files or devices instead; memory:MIB is a disk in memory (lunet's kind of volume, LIO's ramdisk)
#   block=BYTES       logical block (default 512), physical=BYTES (default 4096)
#   portals=A:P,B:P   default 127.0.0.1:3260
#   chap=USER:SECRET  mutual=USER:SECRET
#   passthrough=WORD  lunet: of its devices
#   net=far           on the far machine of network.sh
#   iser=1            LIO: by iSER too (lunet needs no telling)
target_start() {
    local size=64 disks=1 path= block= physical= portals=127.0.0.1:3260 chap= mutual= passthrough= net= iser= i
    [ $# = 0 ] || local "$@"
    mkdir -p /var/lib/lab
    if [ -z "$path" ]; then
        for ((i = 0; i < disks; i++)); do
            truncate -s "${size}M" /var/lib/lab/disk$i
            path+=${path:+,}/var/lib/lab/disk$i
        done
    fi
    LUNS=$(tr ',' '\n' <<<"$path" | wc -l)
    "${LAB_TARGET}_start"
}

# --- lunet -----------------------------------------------------------------------------------------------------------------------

lunet_start() {
    local p i=0
    {
        # Two event loops, so that sessions meet across them, although the guest has one processor.
        printf '[server]\nshards = 2\n'
        printf '[[portal]]\naddress = "%s"\n' ${portals//,/ }
        for p in ${path//,/ }; do
            echo "[volumes.disk$i]"
            i=$((i + 1))
            # A device has its own size, and blocks unless others are asked for.
            case $p in
                memory:*) printf 'backend = "memory"\nsize = "%sMiB"\n' "${p#memory:}" ;;
                *) printf 'backend = "%s"\npath = "%s"\n' $([ -b "$p" ] && echo block || echo file) "$p" ;;
            esac
            [ -z "$block" ] || echo "block-size = $block"
            [ -z "$passthrough" ] || echo "passthrough = \"$passthrough\""
            [ -z "$physical" ] || echo "physical-block-size = $physical"
        done
        # Initiators come from other addresses than loopback, and nobody else is there.
        printf '[[target]]\nname = "%s"\nopen = true\nluns = [' $IQN
        for ((p = 0; p < i; p++)); do printf '"disk%d",' $p; done
        echo ']'
        [ -z "$chap" ] || printf 'user = [{ name = "%s", secret = "%s" }]\n' "${chap%%:*}" "${chap#*:}"
        [ -z "$mutual" ] || printf 'mutual = { name = "%s", secret = "%s" }\n' "${mutual%%:*}" "${mutual#*:}"
    } | serve
}

# --- LIO, by configfs: targetcli would want a D-Bus daemon ------------------------------------------------------------------------

lio_start() {
    local core=/sys/kernel/config/target/core group=/sys/kernel/config/target/iscsi/$IQN/tpgt_1 p i=0 store
    # It keeps registrations there, and looks for the folder when it is loaded.
    mkdir -p /etc/target/pr
    modprobe -a target_core_mod target_core_file target_core_iblock iscsi_target_mod
    mkdir -p "$group"
    for p in ${path//,/ }; do
        if [[ $p == memory:* ]]; then
            store=$core/rd_mcp_$i/disk$i
            mkdir -p "$store"
            echo "rd_pages=$((${p#memory:} << 8))" >"$store/control"
        elif [ -b "$p" ]; then
            store=$core/iblock_$i/disk$i
            mkdir -p "$store"
            echo "udev_path=$p" >"$store/control"
        else
            store=$core/fileio_$i/disk$i
            mkdir -p "$store"
            echo "fd_dev_name=$p,fd_dev_size=$(stat -c %s "$p"),fd_buffered_io=1" >"$store/control"
        fi
        echo 1 >"$store/enable"
        [ -b "$p" ] || [ -z "$block" ] || echo "$block" >"$store/attrib/block_size"
        # The ramdisk has no UNMAP.
        [[ $p == memory:* ]] || echo 1 >"$store/attrib/emulate_tpu"
        # Before the LUN is there: without a serial, page 83h of the vital product data is malformed.
        echo "lab-disk$i" >"$store/wwn/vpd_unit_serial"
        mkdir "$group/lun/lun_$i"
        ln -s "$store" "$group/lun/lun_$i/store"
        i=$((i + 1))
    done
    # A portal's socket is in the network of the process that makes it.
    for p in ${portals//,/ }; do
        ${net:+nsenter --net=/run/netns/$net} mkdir "$group/np/$p"
        [ -z "$iser" ] || { modprobe ib_isert; echo 1 >"$group/np/$p/iser"; }
    done
    echo 1 >"$group/attrib/generate_node_acls"
    echo 0 >"$group/attrib/demo_mode_write_protect"
    echo 128 >"$group/attrib/default_cmdsn_depth"
    echo $([ -n "$chap" ] && echo 1 || echo 0) >"$group/attrib/authentication"
    [ -z "$chap" ] || { echo -n "${chap%%:*}" >"$group/auth/userid"; echo -n "${chap#*:}" >"$group/auth/password"; }
    [ -z "$mutual" ] || { echo -n "${mutual%%:*}" >"$group/auth/userid_mutual"; echo -n "${mutual#*:}" >"$group/auth/password_mutual"; }
    echo 1 >"$group/enable"
}

lio_clear() {
    local target=/sys/kernel/config/target/iscsi/$IQN group=/sys/kernel/config/target/iscsi/$IQN/tpgt_1
    [ -d "$target" ] || return 0
    echo 0 >"$group/enable"
    rmdir "$group"/np/*
    rm -f "$group"/lun/lun_*/store
    rmdir "$group"/lun/lun_* "$group" "$target"
    rmdir /sys/kernel/config/target/core/*_*/disk* /sys/kernel/config/target/core/*_*
}

# --- both ------------------------------------------------------------------------------------------------------------------------

target_clear() {
    local p
    for p in "$LUNET_RUN"/*.pid; do [ -e "$p" ] && kill -9 "$(cat "$p")"; done
    rm -rf "$LUNET_RUN"
    lio_clear
}
