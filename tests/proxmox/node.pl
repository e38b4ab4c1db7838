#!/usr/bin/perl -T
# Has the Proxmox plugin make, use and take away disks of this machine's own kernel: open-iscsi with dm-multipath, and NVMe/TCP.
# Needs root, and a lunet that serves both on 127.0.0.1. lab/proxmox runs it in the lab's guest.
#
# node.pl FINGERPRINT TOKEN: of the lunet whose REST interface is at 127.0.0.1:3262.

use strict;
use warnings;

BEGIN {
    unshift @INC, map { "/host/$_" } qw(pve plugin perl);
    $ENV{PATH} = '/usr/sbin:/usr/bin:/sbin:/bin';
    delete @ENV{qw(IFS CDPATH ENV BASH_ENV)};
}

use Test::More;

use PVE::Storage;

my ($fingerprint, $token) = map { /^(\S+)\z/ } @ARGV;
my $PLUGIN = 'PVE::Storage::Custom::LunetPlugin';
my $MIB = 1 << 20;
$PVE::Storage::Custom::LunetPlugin::SECRETS = '/run/priv';
# In an emulator everything takes its time.
$_ = 120 for $Lunet::Proxmox::Rest::READ_TIMEOUT, $Lunet::Proxmox::Rest::STATUS_TIMEOUT, $Lunet::Proxmox::Kernel::APPEARS,
    $Lunet::Proxmox::Limit::PROGRAM, $Lunet::Proxmox::Iscsi::ANSWERS, $Lunet::Proxmox::Nvme::ANSWERS,
    $PVE::Storage::Custom::LunetPlugin::READY, $PVE::Storage::Custom::LunetPlugin::LOCKED;
$Lunet::Proxmox::Kernel::CLOSES = 10;
# What is done from time to time is done when the test says so.
$_ = 1e9 for $Lunet::Proxmox::Iscsi::RETRIES, $Lunet::Proxmox::Nvme::RETRIES;
my $REST = Lunet::Proxmox::Rest->new(server => '127.0.0.1', port => 3262, fingerprint => $fingerprint, token => $token);

# What a shell's command prints.
sub shell {
    my ($command) = @_;
    ($command) = $command =~ /^(.*)\z/s;
    chomp(my $text = qx($command 2>&1));
    return $text;
}

# Carries a step out; what the kernel has to say if it fails.
sub step {
    my ($name, $code) = @_;
    my $result = eval { $code->() };
    return $result if !$@;
    fail("$name: $@");
    diag(shell('ls -l /dev/disk/by-id; ls /sys/bus/scsi/devices; multipath -ll; dmesg | tail -n 20'));
    return undef;
}

sub fill {
    my ($path, $letter) = @_;
    is(shell("head -c 4M /dev/zero | tr '\\0' $letter | dd of=$path bs=1M oflag=direct iflag=fullblock status=none"), '', "$letter written");
}

sub holds {
    my ($path, $letter, $name) = @_;
    is(shell("dd if=$path bs=1M count=4 status=none | tr -d $letter | wc -c"), 0, $name);
}

sub disks { return join(' ', grep { /^(?:sd|dm-)/ } split(/\s+/, shell('ls /sys/block'))) }

for my $transport ('iscsi', 'nvme-tcp') {
    my $storeid = "by-$transport";
    my $cfg = { ids => { $storeid => {
        type => 'lunet', server => '127.0.0.1', port => 3262, fingerprint => $fingerprint, portal => '127.0.0.1', shared => 1,
        target => "iqn.2026-11.local.lunet:$storeid", content => { images => 1 }, 'lunet-transport' => $transport,
    } } };
    subtest($transport => sub { disks_come_and_go($cfg, $storeid, $transport) });
}
done_testing();

sub disks_come_and_go {
    my ($cfg, $storeid, $transport) = @_;
    step('add', sub { $PLUGIN->on_add_hook($storeid, $cfg->{ids}->{$storeid}, password => $token) });
    my ($volid, $other) = map { my $vmid = $_; step('alloc', sub { PVE::Storage::vdisk_alloc($cfg, $storeid, $vmid, 'raw', undef, 8192) }) } 100, 101;
    is(disks(), '', 'no disk before it is needed');
    step('activate', sub { PVE::Storage::activate_volumes($cfg, [$volid]) });
    my $path = PVE::Storage::path($cfg, $volid);
    ok(-b $path, $path);
    is(shell("blockdev --getsize64 $path"), 8 * $MIB, 'its size');
    step('activate again', sub { PVE::Storage::activate_volumes($cfg, [$volid]) });
    fill($path, 'a');
    step('snapshot', sub { PVE::Storage::volume_snapshot($cfg, $volid, 'one') });
    fill($path, 'b');
    step('look at the snapshot', sub { PVE::Storage::activate_volumes($cfg, [$volid], 'one') });
    my $look = PVE::Storage::path($cfg, $volid, 'one');
    holds($look, 'a', 'the snapshot');
    step('look away', sub { PVE::Storage::deactivate_volumes($cfg, [$volid], 'one') });
    ok(Lunet::Proxmox::Kernel::wait_for(sub { !-e $look }), 'its disk is gone');
    holds($path, 'b', 'the volume');
    step('resize', sub { PVE::Storage::volume_resize($cfg, $volid, 12 * $MIB, 1) });
    is(shell("blockdev --getsize64 $path"), 12 * $MIB, 'it has grown');
    step('roll back', sub { PVE::Storage::volume_snapshot_rollback($cfg, $volid, 'one') });
    step('activate', sub { PVE::Storage::activate_volumes($cfg, [$volid]) });
    holds($path, 'a', 'rolled back');

    my $clone = step('clone', sub { PVE::Storage::vdisk_clone($cfg, $volid, 102, 'one') });
    step('activate two', sub { PVE::Storage::activate_volumes($cfg, [$clone, $other]) });
    holds(scalar PVE::Storage::path($cfg, $clone), 'a', 'the clone');
    step('streams', sub { streams($cfg, $storeid, $volid) });

    is(shell("mkfs.ext4 -q $path && mount $path /mnt"), '', 'a mount');
    eval { PVE::Storage::vdisk_free($cfg, $volid) };
    like("$@", qr/is in use on this node|multipath/, 'what is mounted here is not freed');
    is(shell('umount /mnt'), '', 'unmounted');
    opened($cfg, $storeid, $volid);
    $transport eq 'iscsi' ? iscsi_paths($cfg, $storeid, $other) : nvme_paths($cfg, $storeid);
    replaced($cfg, $storeid, $clone) if $transport eq 'iscsi';
    for my $volume (@{ PVE::Storage::vdisk_list($cfg, $storeid)->{$storeid} }) {
        step("free $volume->{volid}", sub { PVE::Storage::vdisk_free($cfg, $volume->{volid}) });
    }
    ok(Lunet::Proxmox::Kernel::wait_for(sub { disks() eq '' && shell('ls /sys/block') !~ /nvme/ }), 'no disk is left');
    step('log out', sub { PVE::Storage::deactivate_storage($cfg, $storeid) });
    is(shell('ls -d /sys/class/iscsi_session/session* /sys/class/nvme/nvme* 2>/dev/null | wc -l'), 0, 'no session is left');
}

# What a program has open, as QEMU has it, is not taken away.
sub opened {
    my ($cfg, $storeid, $volid) = @_;
    step('activate', sub { PVE::Storage::activate_volumes($cfg, [$volid]) });
    my $path = PVE::Storage::path($cfg, $volid);
    open(my $fh, '<', $path) or return fail("$path: $!");
    local $Lunet::Proxmox::Kernel::CLOSES = 1;
    eval { PVE::Storage::vdisk_free($cfg, $volid) };
    like("$@", qr/is in use on this node, by process $$/, 'what is open here is not freed');
    eval { PVE::Storage::deactivate_storage($cfg, $storeid) };
    like("$@", qr/is in use on this node, by process $$/, 'nor are its paths taken away');
    ok(-b $path, 'it is there');
    close($fh);
}

# Sizes and paths that change behind the back of this node.
sub iscsi_paths {
    my ($cfg, $storeid, $volid) = @_;
    my ($name) = map { s/^.*://r } $volid;
    my $paths = sub { shell("lsblk -nrso NAME,TYPE \$(readlink -f $_[0]) | grep -c disk") };
    my $use = sub { step('activate', sub { PVE::Storage::activate_volumes($cfg, [$volid]) }); scalar PVE::Storage::path($cfg, $volid) };
    my $leave = sub { step('deactivate', sub { PVE::Storage::deactivate_volumes($cfg, [$volid]) }) };
    my $path = $use->();
    is($paths->($path), 2, 'two paths');
    $REST->change('PATCH', "/volumes/$storeid-$name", { size => 16 * $MIB });
    $use->();
    is(shell("blockdev --getsize64 $path"), 16 * $MIB, 'a size that somebody else has changed');
    $leave->();
    my ($naa) = $path =~ /-(3[0-9a-f]{32})\z/;
    is(shell("grep -c ^/$naa /etc/multipath/wwids"), 0, 'multipath does not remember it');

    # One that the kernel has in another form.
    my $at = $REST->get("/volumes/$storeid-$name")->{luns}->[0];
    $REST->change('DELETE', "/targets/$at->{target}/luns/$at->{lun}?force=true");
    $REST->change('PUT', "/targets/$at->{target}/luns/300", { volume => "$storeid-$name" });
    is($paths->($use->()), 2, 'LUN 300');

    # Its disks go before the map.
    shell("for d in /sys/bus/scsi/devices/*:16684; do echo 1 >\$d/delete; done");
    like(shell('ls /sys/block'), qr/dm-/, 'a map without paths');
    $leave->();
    ok(Lunet::Proxmox::Kernel::wait_for(sub { !-e $path }), 'goes with the volume');

    # One session is not there when the disk is first used, and comes later.
    my @node = ('iscsiadm', '-m', 'node', '-T', $at->{target}, '-p', '127.0.0.2:3260');
    is(shell("@node -o update -n node.session.timeo.replacement_timeout -v -1 && @node --logout >/dev/null"), '', 'one session ends');
    is($paths->($use->()), 1, 'one path, in a map');
    unlink(map { /^(.*)\z/ } glob('/run/lunet-proxmox/*'));
    step('activate the storage', sub { PVE::Storage::activate_storage($cfg, $storeid) });
    ok(Lunet::Proxmox::Kernel::wait_for(sub { $paths->($path) == 2 }), 'and the second when its session is back');
    cmp_ok(shell('cat /sys/class/iscsi_session/session*/recovery_tmo | sort -n | head -n 1'), '>', 0, 'multipathd has these fail over');
    $leave->();
}

# A path of NVMe that is gone for good comes back.
sub nvme_paths {
    my ($cfg, $storeid) = @_;
    my $count = sub { shell('ls -d /sys/class/nvme/nvme* | wc -l') };
    is($count->(), 2, 'two paths');
    is(shell('sort -u /sys/class/nvme/nvme*/ctrl_loss_tmo'), 'off', 'which are never given up');
    my ($one) = shell('ls /sys/class/nvme') =~ /^(nvme\d+)/;
    shell("echo 600 >/sys/class/nvme/$one/ctrl_loss_tmo");
    step('activate the storage', sub { PVE::Storage::activate_storage($cfg, $storeid) });
    is(shell('sort -u /sys/class/nvme/nvme*/ctrl_loss_tmo'), 'off', 'whatever somebody has said');
    shell("echo 1 >/sys/class/nvme/$one/delete_controller");
    is($count->(), 1, 'one path');
    unlink(map { /^(.*)\z/ } glob('/run/lunet-proxmox/*'));
    step('activate the storage', sub { PVE::Storage::activate_storage($cfg, $storeid) });
    is($count->(), 2, 'two again');
}

# A volume as a stream into another one.
sub streams {
    my ($cfg, $storeid, $volid) = @_;
    open(my $out, '>:raw', '/run/stream') or die "/run/stream: $!\n";
    PVE::Storage::volume_export($cfg, $out, $volid, 'raw+size', undef, undef, 0);
    close($out);
    open(my $in, '<:raw', '/run/stream') or die "/run/stream: $!\n";
    my $copy = PVE::Storage::volume_import($cfg, $in, "$storeid:vm-103-disk-0", 'raw+size', undef, undef, 0, 0);
    close($in);
    PVE::Storage::activate_volumes($cfg, [$copy]);
    holds(scalar PVE::Storage::path($cfg, $copy), 'a', 'the copy');
}

# Somebody else deletes a volume that is active here, and gives its number to another one.
sub replaced {
    my ($cfg, $storeid, $volid) = @_;
    my ($name) = map { s/^.*://r } $volid;
    my $at = $REST->get("/volumes/$storeid-$name")->{luns}->[0];
    $REST->change('DELETE', "/volumes/$storeid-$name?force=true");
    $REST->change('POST', '/volumes', { name => "$storeid-vm-110-disk-0", size => 8 * $MIB });
    $REST->change('PUT', "/targets/$at->{target}/luns/$at->{lun}", { volume => "$storeid-vm-110-disk-0" });
    step('activate what is at the number now', sub { PVE::Storage::activate_volumes($cfg, ["$storeid:vm-110-disk-0"]) });
    my $path = PVE::Storage::path($cfg, "$storeid:vm-110-disk-0");
    fill($path, 'c');
    holds($path, 'c', 'the new one');
}
