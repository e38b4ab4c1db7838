# sg3_utils against the target's logical units.
# client: sg3-utils
# minutes: 2

suite_setup() { modprobe -a sg; }

# Two logical units; sets $disk and $other to the kernel's names for them.
lun() {
    target_start size=128 disks=2
    login 127.0.0.1:3260 >/run/disks
    disk=$(sed -n 1p /run/disks)
    other=$(sed -n 2p /run/disks)
}

test_inquiry_and_vital_product_data() {
    local page
    lun
    says "$([ "$LAB_TARGET" = lunet ] && echo LUNET || echo LIO-ORG)" sg_inq "$disk"
    for page in sv sn di ei bl bdc lbpv; do sg_vpd -p $page "$disk" >/dev/null; done
    [ "$(sg_vpd -p sn "$disk")" != "$(sg_vpd -p sn "$other")" ]
    same "$(sg_luns -q "$disk" | wc -l)" 2
}

test_capacity_modes_and_opcodes() {
    lun
    says lbpme=1 sg_readcap -l "$disk"
    sg_modes -a "$disk" >/dev/null
    sg_opcodes "$disk" >/run/opcodes
    grep -q 'Compare and write' /run/opcodes
    sg_requests "$disk"
}

test_log_pages_and_self_test() {
    lunet_only "LIO has no LOG SENSE and no SEND DIAGNOSTIC"
    lun
    says 'Supported log pages' sg_logs "$disk"
    says 'Logical block provisioning' sg_logs -a "$disk"
    sg_senddiag -t "$disk"
}

test_persistent_reservations() {
    lun
    sg_persist --out --register --param-sark=0xabc "$disk" >/dev/null
    sg_persist --out --reserve --param-rk=0xabc --prout-type=5 "$disk" >/dev/null
    says 'Key=0xabc' sg_persist -r "$disk"
    says 'iqn.2026-11.local.lab:initiator' sg_persist -s "$disk"
    sg_persist --out --release --param-rk=0xabc --prout-type=5 "$disk" >/dev/null
    sg_persist --out --clear --param-rk=0xabc "$disk" >/dev/null
    says 'no registered' sg_persist -k "$disk"
}

# What a command was to transfer and did not is told to the initiator, and it does not take more than that for data.
test_residuals() {
    lun
    # INQUIRY: the standard data are shorter than what is asked for (byte 4 says how many bytes follow it) ...
    sg_raw -r 255 -o /run/inquiry "$disk" 12 00 00 00 ff 00 2>/dev/null
    same "$(stat -c %s /run/inquiry)" $(($(od -An -tu1 -j4 -N1 /run/inquiry) + 5))
    # ... and an allocation length shorter than the data cuts them.
    says 'Received 36 bytes' sg_raw -r 4096 "$disk" 12 00 00 00 24 00
    # READ (10) of 2 blocks into room for 8.
    says 'Received 1024 bytes' sg_raw -r 4096 "$disk" 28 00 00 00 00 00 00 00 02 00
}

test_compare_and_write() {
    lun
    dd if=/dev/zero of=/run/old bs=512 count=1 status=none
    dd if=/dev/urandom of=/run/new bs=512 count=1 status=none
    cat /run/old /run/new >/run/both
    sg_compare_and_write --in=/run/both --lba=8 --num=1 "$disk"
    dd if="$disk" bs=512 skip=8 count=1 iflag=direct status=none | cmp - /run/new
    fails sg_compare_and_write --in=/run/both --lba=8 --num=1 "$disk"
}

test_thin_provisioning() {
    lun
    dd if=/dev/urandom of="$disk" bs=1M count=8 oflag=direct status=none
    # LIO takes 8192 blocks at a time.
    sg_unmap --force --lba=0 --num=8192 "$disk"
    sg_unmap --force --lba=8192 --num=8192 "$disk"
    dd if="$disk" bs=1M count=8 iflag=direct status=none | cmp -n $((8 << 20)) - /dev/zero
    sg_write_same --lba=0 --num=64 --xferlen=512 -i /dev/urandom "$disk"
}

test_status_of_blocks() {
    lunet_only "LIO has no GET LBA STATUS"
    lun
    dd if=/dev/urandom of="$disk" bs=1M count=8 oflag=direct status=none
    says 'mapped' sg_get_lba_status --lba=0 "$disk"
    sg_unmap --force --lba=0 --num=16384 "$disk"
    says 'deallocated' sg_get_lba_status --lba=0 "$disk"
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
    says 'active/optimized' sg_rtpg -d "$disk"
}

# The kernel hears of changes by unit attentions, and says so.
test_unit_attentions() {
    local before
    lunet_only
    lun
    before=$(dmesg | wc -l)
    ask volume resize disk0 192MiB
    dd if="$disk" of=/dev/null bs=4k count=1 iflag=direct status=none
    within 40 says 'capacity data has changed' kernel_since $before
    ask target unmap $IQN 1 --force
    dd if="$disk" of=/dev/null bs=4k count=1 iflag=direct status=none
    within 40 says 'LUN assignments on this target have changed' kernel_since $before
}

# `--early`: sg_format would look once a minute whether it has ended.
test_format_unit() {
    lunet_only "LIO has no FORMAT UNIT"
    lun
    dd if=/dev/urandom of="$disk" bs=1M count=8 oflag=direct status=none
    sg_format --format --early --quick "$disk"
    within 60 sg_turs "$disk"
    blockdev --flushbufs "$disk"
    cmp -n $((8 << 20)) "$disk" /dev/zero
}

test_sanitize() {
    lunet_only "LIO has no SANITIZE"
    lun
    dd if=/dev/urandom of="$disk" bs=1M count=8 oflag=direct status=none
    sg_sanitize --overwrite --zero --quick --wait "$disk" || sg_sanitize --block --quick --wait "$disk"
    blockdev --flushbufs "$disk"
    cmp -n $((8 << 20)) "$disk" /dev/zero
}
