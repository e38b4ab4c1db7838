# `lunet attach` and `lunet detach` on a Linux host, against a target in the same guest: what is attached holds, comes back as after a
# reboot, and what is detached leaves the guest as it was. The guest has no systemd; what it does at boot is done by hand here.
# client: lunet attach
# minutes: 4

# Everything that an attachment may leave: files, mounts, sessions, controllers.
tree() {
    { find /etc /var/lib/iscsi /mnt -printf '%p %y %m %l\n' 2>/dev/null || true; } | sort
    { find /etc /var/lib/iscsi -type f -print0 2>/dev/null || true; } | sort -z | xargs -0 md5sum
    grep -v -e ' /host ' -e ' /run/programs ' /proc/mounts
    ls /sys/class/iscsi_session /sys/class/nvme /var/lib/lunet-attach 2>/dev/null || true
}

# Before anything is attached; what the guest has to have by itself is made first.
remember() {
    initiator
    mkdir -p /etc/nvme
    echo "${HOSTNQN[0]}" >/etc/nvme/hostnqn
    echo "${HOSTNQN[0]#*uuid:}" >/etc/nvme/hostid
    tree >/run/tree
}

# Nothing is left.
nothing_is_left() {
    tree >/run/tree.now
    diff /run/tree /run/tree.now
}

attached() { "$LUNET" attach "$@" --yes >/run/attached; }

# Blocks that are written and verified, and a file to be found again.
fill() {
    verified "$1/fio" 4M
    echo here >"$1/kept"
    sync
}

# --- iSCSI -----------------------------------------------------------------------------------------------------------------------

test_iscsi_is_mounted_comes_back_and_goes() {
    local d url=iscsi://127.0.0.1/$IQN/0
    target_start size=64
    remember
    # The plan changes nothing.
    "$LUNET" attach $url --mount /mnt/at --mkfs ext4 --dry-run >/run/plan
    grep -q "iscsiadm -m node -T $IQN -p 127.0.0.1:3260,1 -I default --login" /run/plan
    grep -q "known as  $INITIATOR" /run/plan
    nothing_is_left
    # An empty disk is not formatted by itself, and nothing stays of the try.
    fails attached $url --mount /mnt/at
    nothing_is_left
    attached $url --mount /mnt/at --mkfs ext4
    grep -q '^lab-0 is /dev/sd.*, mounted at /mnt/at.$' /run/attached
    fill /mnt/at
    "$LUNET" attach --status >/run/status || { cat /run/status; return 1; }
    grep -q 'path     127.0.0.1:3260 LOGGED_IN' /run/status
    grep -q 'as it was set' /run/status
    fails attached $url
    # What a boot does.
    umount /mnt/at
    iscsiadm -m node --logoutall=all >/dev/null
    "$LUNET" attach --status >/run/status && return 1 || [ $? = 2 ]
    iscsiadm -m node --loginall=automatic >/dev/null
    within 30 has_disks '*' 1
    settled
    mount /mnt/at
    same "$(cat /mnt/at/kept)" here
    "$LUNET" attach --status
    # Somebody is at work in it.
    sleep 100 >/mnt/at/busy &
    fails "$LUNET" detach lab-0
    "$LUNET" attach --status
    kill $!
    wait $! || true
    "$LUNET" detach /mnt/at
    nothing_is_left
    # What is there is mounted, and not formatted.
    fails attached $url --mount /mnt/at --mkfs ext4
    attached $url --mount /mnt/at --profile database
    same "$(cat /mnt/at/kept)" here
    d=$(disks)
    same "$(cat "/sys/block/${d#/dev/}/device/queue_depth")" 32
    "$LUNET" detach $url
    nothing_is_left
}

# long
test_chap_is_on_no_command_line_and_in_no_journal() {
    local url=iscsi://lab@127.0.0.1/$IQN/0
    target_start size=64 chap=lab:a-secret-of-lab mutual=storage:the-other-secret
    remember
    (umask 077; echo a-secret-of-lab >/run/secret; echo the-other-secret >/run/other; echo not-that-secret >/run/wrong)
    fails attached $url --secret-file /run/wrong
    nothing_is_left
    # Each program that is started says how.
    mkdir -p /run/seen
    printf '#!/bin/sh\necho "$*" >>/run/commands\nexec /sbin/iscsiadm "$@"\n' >/run/seen/iscsiadm
    chmod +x /run/seen/iscsiadm
    PATH=/run/seen:$PATH attached "$url?target_user=storage" --secret-file /run/secret --target-secret-file /run/other
    grep -q -e --login /run/commands
    fails grep -r -e a-secret -e the-other /run/commands /run/attached /var/lib/lunet-attach
    iscsiadm -m node --logoutall=all >/dev/null
    iscsiadm -m node --loginall=automatic >/dev/null
    within 30 has_disks '*' 1
    "$LUNET" detach lab-0
    nothing_is_left
}

# long
test_what_is_killed_can_be_detached_and_attached_again() {
    local program url=iscsi://127.0.0.1/$IQN/0
    target_start size=64
    remember
    mkdir -p /run/killer
    for program in iscsiadm mount; do
        rm -f /run/killer/*
        # iscsiadm has made the record then, and logs in.
        printf '#!/bin/sh\ncase $0$* in *iscsiadm*--login|*/mount*) kill -9 $PPID; exit 1 ;; esac\nexec /sbin/%s "$@"\n' $program >/run/killer/$program
        chmod +x /run/killer/$program
        PATH=/run/killer:$PATH fails attached $url --mount /mnt/at --mkfs ext4
        [ -s /var/lib/lunet-attach/lab-0.json ]
        if [ $program = iscsiadm ]; then
            attached $url
            "$LUNET" attach --status
        fi
        "$LUNET" detach lab-0
        nothing_is_left
    done
}

# lunet is killed, and its login goes on and comes through later.
# long
test_a_login_that_outlives_its_lunet_is_taken_up() {
    local url=iscsi://127.0.0.1/$IQN/0
    target_start size=64
    remember
    mkdir -p /run/killer
    rm -f /run/killer/*
    printf '#!/bin/sh\ncase $* in *--login) rm /run/killer/iscsiadm; kill -9 $PPID; sleep 5 ;; esac\nexec /sbin/iscsiadm "$@"\n' >/run/killer/iscsiadm
    chmod +x /run/killer/iscsiadm
    PATH=/run/killer:$PATH fails attached $url
    attached $url 2>/run/told
    grep -q 'is still at work: it is waited for' /run/told
    same "$(ls /sys/class/iscsi_session | wc -l)" 1
    "$LUNET" attach --status
    # A journal that nobody can read is in its own way only.
    echo '{"version": 1, "na' >/var/lib/lunet-attach/broken.json
    "$LUNET" attach --status >/run/status 2>/run/told && return 1 || [ $? = 2 ]
    grep -q 'as it was set' /run/status
    grep -q 'broken.json is damaged' /run/told
    "$LUNET" detach lab-0
    fails "$LUNET" detach broken
    rm -r /var/lib/lunet-attach
    nothing_is_left
}

# long
test_a_full_or_read_only_etc_and_another_run_leave_nothing() {
    lunet_only "a target that is served both ways is lunet's"
    local pid full url
    nvme_start size=64 both=1
    remember
    mount --bind /etc /etc
    mount -o remount,bind,ro /etc
    for url in iscsi://127.0.0.1/$IQN/0 nvme-tcp://127.0.0.1/$NQN/1; do
        fails attached $url 2>/run/refused
        grep -q 'everything was taken back' /run/refused
    done
    umount /etc
    nothing_is_left
    # No room for its units, nor for what the journal has to say of that.
    mkdir -p /etc/systemd/system /var/lib/lunet-attach
    tree >/run/tree
    for full in /etc/systemd/system /var/lib/lunet-attach; do
        mount -t tmpfs -o size=8k,mode=755 tmpfs $full
        dd if=/dev/zero of=$full/ballast bs=1k 2>/dev/null || true
        fails attached nvme-tcp://127.0.0.1/$NQN/1 --mount /mnt/at --mkfs ext4 2>/run/refused
        grep -q 'everything was taken back' /run/refused
        umount $full
        mkdir -p /etc/systemd/system /var/lib/lunet-attach
        nothing_is_left
    done
    # Two at once: the second one changes nothing.
    mkdir -p /run/slow
    printf '#!/bin/sh\ncase $* in *--login) sleep 5 ;; esac\nexec /sbin/iscsiadm "$@"\n' >/run/slow/iscsiadm
    chmod +x /run/slow/iscsiadm
    url=iscsi://127.0.0.1/$IQN/0
    PATH=/run/slow:$PATH attached $url &
    pid=$!
    within 20 [ -s /var/lib/lunet-attach/lab-0.json ]
    fails attached nvme-tcp://127.0.0.1/$NQN/1 2>/run/refused
    grep -q 'another lunet is changing this machine' /run/refused
    wait $pid
    "$LUNET" attach --status
    "$LUNET" detach lab-0
}

# Link-local addresses are of one interface.
# long
test_link_local_addresses_keep_their_interface() {
    lunet_only "about how an address is written"
    local url
    modprobe dummy
    ip link add d0 type dummy
    ip link set d0 up
    ip addr add fe80::1/64 dev d0 nodad
    mkdir -p /var/lib/lab
    truncate -s 64M /var/lib/lab/disk0
    serve <<TOML
[[portal]]
address = "[::]:3260"
[[portal]]
address = "[::]:4420"
transport = ["nvme-tcp"]
[volumes.disk0]
backend = "file"
path = "/var/lib/lab/disk0"
[[target]]
name = "$IQN"
protocols = ["iscsi", "nvme"]
open = true
nqn = "$NQN"
luns = ["disk0"]
TOML
    modprobe -a nvme-tcp
    remember
    for url in iscsi://[fe80::1%d0]/$IQN/0 nvme-tcp://[fe80::1%d0]/$NQN/1; do
        attached $url
        "$LUNET" attach --status >/run/status || { cat /run/status; return 1; }
        grep -q 'fe80::1%d0' /run/status
        if [ "${url%%:*}" = nvme-tcp ]; then
            grep -q 'traddr=fe80::1%%d0' /etc/systemd/system/lunet-attach-lab-1-1.service
            nvme disconnect-all
            units
            "$LUNET" attach --status
        fi
        "$LUNET" detach $url
        nothing_is_left
    done
    ip link del d0
}

# Its server is gone for good, with a file system mounted and something not yet written: nothing may hang.
# long
test_a_disk_without_its_server_is_given_up_by_force() {
    lunet_only "the server is killed"
    local name url
    nvme_start size=64 both=1
    remember
    for url in iscsi://127.0.0.1/$IQN/0 nvme-tcp://127.0.0.1/$NQN/1; do
        name=lab-${url##*/}
        attached $url --mount /mnt/at --mkfs ext4
        echo lost >/mnt/at/lost
        stop -9
        within 60 eval "! cat /sys/class/iscsi_session/*/state /sys/class/nvme/nvme*/state 2>/dev/null | grep -qx -e LOGGED_IN -e live"
        fails timeout 60 "$LUNET" detach $name 2>/run/refused
        grep -q "lunet detach --force $name" /run/refused
        grep -q /mnt/at /proc/mounts
        timeout 120 "$LUNET" detach --force $name >/run/forced
        grep -q '^Kept: /mnt/at is unmounted, and what was written to it .* is lost' /run/forced
        nothing_is_left
        truncate -s 0 /var/lib/lab/disk0
        truncate -s 64M /var/lib/lab/disk0
        start_again
    done
}

# Another host's reservation, and data that only a look into the middle of the disk finds.
# long
test_only_a_disk_that_is_free_and_empty_is_formatted() {
    local d url=iscsi://127.0.0.1/$IQN/0
    target_start size=512
    d=$(login 127.0.0.1:3260)
    sg_persist --out --register --param-sark=0xabc "$d" >/dev/null
    sg_persist --out --reserve --param-rk=0xabc --prout-type=5 "$d" >/dev/null
    logout
    iscsiadm -m node -o delete
    remember
    echo "InitiatorName=$INITIATOR-2" >/etc/iscsi/initiatorname.iscsi
    "$LUNET" attach $url --mount /mnt/at --dry-run >/run/plan
    grep -q "Note: the host $INITIATOR has reserved the disk (write exclusive, registrants only, key 0xabc)" /run/plan
    fails attached $url --mount /mnt/at --mkfs ext4 2>/run/refused
    grep -q 'other hosts lay claim' /run/refused
    # What is its own is no news.
    echo "InitiatorName=$INITIATOR" >/etc/iscsi/initiatorname.iscsi
    "$LUNET" attach $url --mount /mnt/at --mkfs ext4 --dry-run >/run/plan
    fails grep -q 'has reserved' /run/plan
    d=$(login 127.0.0.1:3260)
    # Another session of the same host is another registrant.
    sg_persist --out --register-ignore --param-sark=0xdef "$d" >/dev/null
    sg_persist --out --clear --param-rk=0xdef "$d" >/dev/null
    echo data | dd of="$d" bs=1 seek=$((200 * (512 << 20) / 4096)) conv=notrunc,fsync status=none
    logout
    iscsiadm -m node -o delete
    fails attached $url --mount /mnt/at --mkfs ext4 2>/run/refused
    grep -q "byte $((200 * (512 << 20) / 4096)) is not zero" /run/refused
    # What is left of a table of partitions.
    truncate -s 0 /var/lib/lab/disk0
    truncate -s 512M /var/lib/lab/disk0
    printf 'EFI PART' | dd of=/var/lib/lab/disk0 bs=1 seek=$(((512 << 20) - 512)) conv=notrunc status=none
    fails attached $url --mount /mnt/at --mkfs ext4
    nothing_is_left
}

# --- NVMe over TCP ---------------------------------------------------------------------------------------------------------------

# What a unit of systemd has under a name: UNIT NAME
of_unit() { sed -n "s/^$2=//p" "$1" | sed 's/\$\$/$/g; s/%%/%/g'; }

# What the units do at boot.
units() {
    local unit before
    for unit in /etc/systemd/system/lunet-attach-*.service; do
        sh -c "$(of_unit "$unit" ExecStart)"
        before=$(ls /sys/class/nvme)
        # Whoever comes second has nothing to do.
        sh -c "$(of_unit "$unit" ExecStart)"
        same "$(ls /sys/class/nvme)" "$before"
    done >/dev/null
}

test_nvme_is_mounted_comes_back_and_goes() {
    local url=nvme-tcp://127.0.0.1/$NQN/1
    nvme_start size=64
    remember
    attached $url --mount /mnt/at --mkfs ext4
    fill /mnt/at
    "$LUNET" attach --status >/run/status || { cat /run/status; return 1; }
    grep -q 'path     127.0.0.1:4420 live' /run/status
    umount /mnt/at
    nvme disconnect-all
    # Who it is was decided when it was attached.
    echo nqn.2026-11.local.lab:another >/etc/nvme/hostnqn
    units
    same "$(cat /sys/class/nvme/nvme*/hostnqn)" "${HOSTNQN[0]}"
    echo "${HOSTNQN[0]}" >/etc/nvme/hostnqn
    within 30 eval 'ls /dev/nvme?n1'
    settled
    mount /mnt/at
    same "$(cat /mnt/at/kept)" here
    "$LUNET" attach --status
    "$LUNET" detach lab-1
    nothing_is_left
}

# long
test_nvme_with_a_secret_over_two_paths() {
    local url=nvme-tcp://127.0.0.1/$NQN secret
    secret=$(nvme gen-dhchap-key -m 1 -n "${HOSTNQN[0]}")
    nvme_start size=64 portals=127.0.0.1:4420,127.0.0.2:4420 secret="$secret"
    remember
    (umask 077; echo "$secret" >/run/secret)
    fails attached $url
    nothing_is_left
    # nvmet lists the portal that is asked, and no other.
    attached $url --secret-file /run/secret --portal 127.0.0.2
    fails grep -r "$secret" /run/attached /var/lib/lunet-attach /etc/systemd
    "$LUNET" attach --status >/run/status || { cat /run/status; return 1; }
    same "$(grep -c ' live ' /run/status)" 2
    [[ $(cat /sys/class/nvme-subsystem/*/iopolicy) == *queue-depth* ]]
    verified "$(sed -n 's/^lab-1 is \(.*\)\.$/\1/p' /run/attached)" 4M
    nvme disconnect-all
    units
    "$LUNET" attach --status
    "$LUNET" detach $url
    nothing_is_left
}

# The same target name at two servers, as after a copy of its configuration.
# long
test_paths_to_two_disks_are_refused() {
    lunet_only "LIO has all portals of a target lead to the same disks"
    local n url=iscsi://127.0.0.1/$IQN/0
    mkdir -p /var/lib/lab
    for n in 1 2; do
        truncate -s 64M /var/lib/lab/disk$n
        serve server$n <<TOML
[[portal]]
address = "127.0.0.$n:3260"
[[portal]]
address = "127.0.0.$n:4420"
transport = ["nvme-tcp"]
[volumes.disk0]
backend = "file"
path = "/var/lib/lab/disk$n"
[[target]]
name = "$IQN"
protocols = ["iscsi", "nvme"]
open = true
luns = ["disk0"]
TOML
    done
    remember
    for url in iscsi://127.0.0.1/$IQN/0 nvme-tcp://127.0.0.1/$NQN; do
        fails attached $url --portal 127.0.0.2 2>/run/refused
        grep -q 'leads to two disks' /run/refused
        nothing_is_left
    done
}

# The disk of another target, and the file system of a copy, as of a snapshot.
# long
test_what_passes_for_the_disk_is_in_the_way() {
    lunet_only "LIO's disks are each of one target"
    local url=iscsi://127.0.0.1/$IQN/0
    mkdir -p /var/lib/lab
    truncate -s 64M /var/lib/lab/disk1
    mkfs.ext4 -q /var/lib/lab/disk1
    cp --sparse=always /var/lib/lab/disk1 /var/lib/lab/disk2
    serve <<TOML
[[portal]]
address = "127.0.0.1:3260"
[volumes.disk1]
backend = "file"
path = "/var/lib/lab/disk1"
[volumes.disk2]
backend = "file"
path = "/var/lib/lab/disk2"
[[target]]
name = "$IQN"
open = true
luns = ["disk1", "disk2"]
[[target]]
name = "$IQN-too"
open = true
luns = ["disk1"]
TOML
    remember
    IQN=$IQN-too login 127.0.0.1:3260
    fails attached $url --mount /mnt/at 2>/run/refused
    grep -q 'has a disk of the same name already: /dev/sd' /run/refused
    same "$(ls /sys/class/iscsi_session | wc -l)" 1
    iscsiadm -m node -T $IQN-too --logout >/dev/null
    iscsiadm -m node -T $IQN-too -o delete
    nothing_is_left
    fails attached $url --mount /mnt/at 2>/run/refused
    grep -q 'the file system of /dev/sd[a-z]* has the same' /run/refused
    nothing_is_left
    # Apart from the copy it is mounted, two directories deep.
    tune2fs -U random /var/lib/lab/disk2 >/dev/null
    attached $url --mount /mnt/at/deep/down
    grep -q '/mnt/at/deep/down .*nosuid,nodev' /proc/mounts
    "$LUNET" detach lab-0
    nothing_is_left
}

# --- several ways ----------------------------------------------------------------------------------------------------------------

# long
test_the_best_transport_is_taken() {
    lunet_only "a target that is served both ways is lunet's"
    nvme_start size=64 both=1
    remember
    "$LUNET" attach 127.0.0.1/$IQN --dry-run >/run/plan
    grep -q 'by        NVMe over TCP at 127.0.0.1:4420' /run/plan
    grep -q 'not NVMe over RDMA: this machine has no RDMA device' /run/plan
    grep -q 'not iSCSI over TCP: NVMe over TCP is better' /run/plan
    attached 127.0.0.1/$IQN
    "$LUNET" detach 127.0.0.1/$IQN
    nothing_is_left
}

# long
test_rdma_is_better_than_tcp() {
    lunet_only "about the transports of one server"
    rdma_network 192.0.2.1/24
    modprobe nvme-core multipath=Y
    mkdir -p /var/lib/lab
    truncate -s 64M /var/lib/lab/disk0
    serve <<TOML
[[portal]]
address = "192.0.2.1:3260"
[[portal]]
address = "192.0.2.1:4420"
transport = ["nvme-tcp", "nvme-rdma"]
[volumes.disk0]
backend = "file"
path = "/var/lib/lab/disk0"
[[target]]
name = "$IQN"
protocols = ["iscsi", "nvme"]
open = true
luns = ["disk0"]
TOML
    remember
    attached 192.0.2.1/$IQN
    grep -q 'by        NVMe over RDMA at 192.0.2.1:4420' /run/attached
    grep -q 'not iSER: NVMe over RDMA is better' /run/attached
    same "$(cat /sys/class/nvme/nvme*/transport)" rdma
    verified "$(sed -n 's/^lab-1 is \(.*\)\.$/\1/p' /run/attached)" 2M
    "$LUNET" attach --status
    "$LUNET" detach lab-1
    nothing_is_left
    attached iser://192.0.2.1/$IQN/0
    says 'Iface Transport: iser' iscsiadm -m session -P 1
    verified "$(disks)" 2M
    "$LUNET" attach --status
    "$LUNET" detach lab-0
    nothing_is_left
}

# The last one: the rules of udev that it takes back write to /etc/multipath for every disk.
# long
test_two_portals_are_one_disk() {
    local url=iscsi://127.0.0.1/$IQN/0
    udev_rules 55-scsi-sg3_id.rules 58-scsi-sg3_symlink.rules 60-multipath.rules
    target_start size=64 portals=127.0.0.1:3260,127.0.0.2:3260
    modprobe -a dm_multipath dm_service_time scsi_dh_alua
    remember
    # Without multipathd each path would be a disk.
    fails attached $url --mount /mnt/at --mkfs ext4
    nothing_is_left
    multipathd -d -s >/run/multipathd.log 2>&1 &
    within 60 multipathd show daemon
    mkdir -p /etc/multipath
    tree >/run/tree
    # Somebody's, for a disk that is not here.
    echo /36001405aaaaaaaaaaaaaaaaaaaaaaaaa/ >/etc/multipath/wwids
    attached $url --mount /mnt/at --mkfs ext4
    grep -q '^lab-0 is /dev/mapper/' /run/attached
    fill /mnt/at
    # A path that the load has held up for long may be on its way back.
    within 20 "$LUNET" attach --status
    same "$("$LUNET" attach --status | grep -c LOGGED_IN)" 2
    # One of them goes, and the file system does not notice.
    iscsiadm -m node -T $IQN -p 127.0.0.2:3260 --logout >/dev/null
    verified /mnt/at/fio 4M
    iscsiadm -m node -T $IQN -p 127.0.0.2:3260 --login >/dev/null
    "$LUNET" attach --status
    if [ "$LAB_TARGET" = lunet ]; then
        # Both ways are gone: what the map holds back fails first.
        echo lost >/mnt/at/lost
        stop -9
        within 60 eval '! grep -qx LOGGED_IN /sys/class/iscsi_session/*/state'
        fails timeout 60 "$LUNET" detach lab-0
        timeout 120 "$LUNET" detach --force lab-0
    else
        "$LUNET" detach lab-0
    fi
    # multipath makes a comment of a line that it takes away.
    same "$(grep '^/' /etc/multipath/wwids)" /36001405aaaaaaaaaaaaaaaaaaaaaaaaa/
    rm /etc/multipath/wwids
    nothing_is_left
}
