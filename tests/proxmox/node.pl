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
$_ = 120 for $Lunet::Proxmox::Rest::READ_TIMEOUT, $Lunet::Proxmox::Rest::STATUS_TIMEOUT, $Lunet::Proxmox::Kernel::APPEARS;

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
    replaced($cfg, $storeid, $clone) if $transport eq 'iscsi';
    for my $volume (@{ PVE::Storage::vdisk_list($cfg, $storeid)->{$storeid} }) {
        step("free $volume->{volid}", sub { PVE::Storage::vdisk_free($cfg, $volume->{volid}) });
    }
    ok(Lunet::Proxmox::Kernel::wait_for(sub { disks() eq '' && shell('ls /sys/block') !~ /nvme/ }), 'no disk is left');
    step('log out', sub { PVE::Storage::deactivate_storage($cfg, $storeid) });
    is(shell('ls -d /sys/class/iscsi_session/session* /sys/class/nvme/nvme* 2>/dev/null | wc -l'), 0, 'no session is left');
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
    my $rest = Lunet::Proxmox::Rest->new(server => '127.0.0.1', port => 3262, fingerprint => $fingerprint, token => $token);
    my ($name) = map { s/^.*://r } $volid;
    my $at = $rest->get("/volumes/$storeid-$name")->{luns}->[0];
    $rest->change('DELETE', "/volumes/$storeid-$name?force=true");
    $rest->change('POST', '/volumes', { name => "$storeid-vm-110-disk-0", size => 8 * $MIB });
    $rest->change('PUT', "/targets/$at->{target}/luns/$at->{lun}", { volume => "$storeid-vm-110-disk-0" });
    step('activate what is at the number now', sub { PVE::Storage::activate_volumes($cfg, ["$storeid:vm-110-disk-0"]) });
    my $path = PVE::Storage::path($cfg, "$storeid:vm-110-disk-0");
    fill($path, 'c');
    holds($path, 'c', 'the new one');
}
