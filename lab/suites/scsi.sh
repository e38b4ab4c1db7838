# sg3_utils against lunet's logical units.

suite_setup() { modprobe -a sg; }

lun() {
    serve <<TOML
[[portal]]
address = "127.0.0.1:3260"
[volumes.disk]
backend = "file"
size = "128MiB"
[volumes.other]
backend = "file"
size = "128MiB"
[[target]]
name = "$IQN"
luns = { 0 = "disk", 1 = "other" }
TOML
    login 127.0.0.1:3260 >/run/disks
    disk=$(sed -n 1p /run/disks)
    other=$(sed -n 2p /run/disks)
}

test_inquiry_and_vital_product_data() {
    local page
    lun
    sg_inq "$disk" | grep -q LUNET
    for page in sv sn di ei bl bdc lbpv; do sg_vpd -p $page "$disk" >/dev/null; done
    [ "$(sg_vpd -p sn "$disk")" != "$(sg_vpd -p sn "$other")" ]
    same "$(sg_luns -q "$disk" | wc -l)" 2
}

test_capacity_modes_and_opcodes() {
    lun
    sg_readcap -l "$disk" | grep -q lbpme=1
    sg_modes -a "$disk" >/dev/null
    sg_opcodes "$disk" >/run/opcodes
    grep -q 'Compare and write' /run/opcodes
    sg_logs -a "$disk" >/dev/null
    sg_requests "$disk"
    sg_senddiag -t "$disk"
}

test_persistent_reservations() {
    lun
    sg_persist --out --register --param-sark=0xabc "$disk" >/dev/null
    sg_persist --out --reserve --param-rk=0xabc --prout-type=5 "$disk" >/dev/null
    sg_persist -r "$disk" | grep -q 'Key=0xabc'
    sg_persist -s "$disk" | grep -q 'iqn.2026-11.local.lab:initiator'
    sg_persist --out --release --param-rk=0xabc --prout-type=5 "$disk" >/dev/null
    sg_persist --out --clear --param-rk=0xabc "$disk" >/dev/null
    sg_persist -k "$disk" | grep -q 'no registered'
}

test_compare_and_write() {
    lun
    dd if=/dev/zero of=/run/old bs=512 count=1 status=none
    dd if=/dev/urandom of=/run/new bs=512 count=1 status=none
    cat /run/old /run/new >/run/both
    sg_compare_and_write --in=/run/both --lba=8 --num=1 "$disk"
    dd if="$disk" bs=512 skip=8 count=1 iflag=direct status=none | cmp - /run/new
    ! sg_compare_and_write --in=/run/both --lba=8 --num=1 "$disk"
}

test_thin_provisioning() {
    lun
    dd if=/dev/urandom of="$disk" bs=1M count=8 oflag=direct status=none
    sg_get_lba_status --lba=0 "$disk" | grep -qi 'mapped'
    sg_unmap --lba=0 --num=16384 "$disk"
    sg_get_lba_status --lba=0 "$disk" | grep -qi 'deallocated'
    dd if="$disk" bs=1M count=8 iflag=direct status=none | cmp -n $((8 << 20)) - /dev/zero
    sg_write_same --lba=0 --num=64 --xferlen=512 -i /dev/urandom "$disk"
}

test_extended_copy_between_luns() {
    lun
    dd if=/dev/urandom of="$disk" bs=1M count=4 oflag=direct status=none
    sg_copy_results -p "$disk" >/dev/null
    sg_xcopy if="$disk" of="$other" count=8192 bs=512
    blockdev --flushbufs "$other"
    cmp -n $((4 << 20)) "$disk" "$other"
}

test_target_port_groups() {
    lun
    sg_rtpg -d "$disk" | grep -qi 'active/optimized'
}

test_sanitize() {
    lun
    dd if=/dev/urandom of="$disk" bs=1M count=8 oflag=direct status=none
    sg_sanitize --overwrite --zero --quick --wait "$disk" || sg_sanitize --block --quick --wait "$disk"
    blockdev --flushbufs "$disk"
    cmp -n $((8 << 20)) "$disk" /dev/zero
}
