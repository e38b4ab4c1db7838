#!/usr/bin/perl -T
# Calls each method of the Proxmox plugin as Proxmox does, against a real lunet over HTTPS. tests/integrations.rs starts both.
#
# check.pl SCRATCH SERVER PORT FINGERPRINT TOKEN-FILE PORTAL-1 PORTAL-2 PART...: the parts of the test in this order.
# With PVE_LIB=DIR:DIR the modules of Proxmox that are there are used, and not the ones of tests/proxmox/pve.

use strict;
use warnings;

my $HERE;
BEGIN {
    ($HERE) = $0 =~ m|^(.*)/tests/proxmox/check\.pl$| or die "call me by my whole path\n";
    my ($own) = ($ENV{PVE_LIB} // "$HERE/tests/proxmox/pve") =~ /^(.*)\z/;
    unshift @INC, split(/:/, $own), "$HERE/integrations/proxmox/lib";
    # As the daemons of Proxmox have it.
    $ENV{PATH} = "$HERE/tests/proxmox/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    delete @ENV{qw(IFS CDPATH ENV BASH_ENV)};
}

use Fcntl;
use File::Path ();
use Test::More;

use PVE::Storage;

our ($SCRATCH, $REST);
my ($server, $port, $fingerprint, $token_file, $portal1, $portal2, @parts);
($SCRATCH, $server, $port, $fingerprint, $token_file, $portal1, $portal2, @parts) = map { /^(.*)\z/ } @ARGV;
require "$HERE/tests/proxmox/lib.pl";

my $TOKEN = first_line($token_file);
my $TARGET = 'iqn.2026-11.local.lunet:pve';
my $PLUGIN = 'PVE::Storage::Custom::LunetPlugin';
my $MIB = 1 << 20;

$PVE::Storage::Custom::LunetPlugin::SECRETS = "$SCRATCH/priv";
$REST = Lunet::Proxmox::Rest->new(server => $server, port => $port, fingerprint => $fingerprint, token => $TOKEN);

# A configuration with one storage of this kind.
sub storage {
    my ($storeid, %more) = @_;
    my $scfg = {
        type => 'lunet', server => $server, port => $port, fingerprint => $fingerprint, portal => $portal1,
        target => $TARGET, content => { images => 1 }, shared => 1, %more,
    };
    return { ids => { $storeid => $scfg } };
}

# The error of what has to fail.
sub refused {
    my ($code) = @_;
    eval { $code->(); 1 } and return 'it was done';
    return "$@";
}

sub volids {
    my ($cfg, $storeid, $vmid) = @_;
    return join(' ', map { $_->{volid} } sort { $a->{volid} cmp $b->{volid} } @{ PVE::Storage::vdisk_list($cfg, $storeid, $vmid)->{$storeid} });
}

# What QEMU is told of a disk. Proxmox VE 8 does not ask for it.
sub blockdev {
    my ($cfg, $volid) = @_;
    return PVE::Storage::qemu_blockdev_options($cfg, $volid, '10.0+pve0', {}) if PVE::Storage->can('qemu_blockdev_options');
    my ($storeid, $volname) = split(/:/, $volid);
    return $PLUGIN->qemu_blockdev_options($cfg->{ids}->{$storeid}, $storeid, $volname, '10.0+pve0', {});
}

# lunet's own names of its volumes.
sub on_server {
    return join(' ', map { $_->{name} } @{ volumes_of_lunet() });
}

sub run {
    my (@command) = @_;
    system { $command[0] } @command;
    return $?;
}

# Fills a volume of 4 MiB from a file, and compares it with one, by QEMU's own initiator: as QEMU does with the path that it is given.
sub image {
    my ($path) = @_;
    my ($portal, $target, $lun) = $path =~ m|^iscsi://([^/]+)/([^/]+)/(\d+)$| or die "$path is no URL\n";
    return "driver=raw,file.driver=iscsi,file.transport=tcp,file.portal=$portal,file.target=$target,file.lun=$lun,"
        . 'file.initiator-name=' . Lunet::Proxmox::Iscsi::name();
}

sub fill {
    my ($path, $byte) = @_;
    run('qemu-io', '--image-opts', image($path), '-c', "write -q -P $byte 0 4M") == 0 or die "qemu-io\n";
}

sub holds {
    my ($path, $byte, $offset, $length) = @_;
    my $command = "read -q -P $byte " . ($offset // 0) . ' ' . ($length // '4M');
    my @words = ('qemu-io', '-r', '--image-opts', image($path), '-c', $command);
    open(my $fh, '-|', @words) or die "qemu-io: $!\n";
    my $text = join('', <$fh>);
    return 1 if close($fh) && $text !~ /Pattern verification failed/;
    diag("$path: $text");
    return 0;
}

my %PARTS = (
    interface => \&interface, hooks => \&hooks, libiscsi => \&libiscsi, snapshots => \&snapshots, iscsi => \&iscsi,
    nvme => \&nvme, faults => \&faults,
);
for my $part (@parts) {
    # The storages that a part uses were added.
    if ($part !~ /^(?:interface|hooks)$/) {
        $PLUGIN->on_add_hook($_, storage($_)->{ids}->{$_}, password => $TOKEN) for 'fast', 'other';
    }
    subtest($part => $PARTS{$part} // die "no part $part\n");
}
done_testing();

# What Proxmox asks of a plugin when it loads it.
sub interface {
    is($PLUGIN->type(), 'lunet', 'type');
    ok($PLUGIN->isa('PVE::Storage::Plugin'), 'a plugin');
    cmp_ok($PLUGIN->api(), '>=', 10, 'a version');
    cmp_ok($PLUGIN->api(), '<=', PVE::Storage::APIVER(), 'none of the future');
    my %own = map { $_ => 1 } keys %{ $PLUGIN->properties() };
    is_deeply([grep { !/^lunet-/ } keys %own], [], 'properties cannot be those of another storage');
    my %known = (%own, map { $_ => 1 } qw(server port password fingerprint portal target nodes disable content shared bwlimit));
    is_deeply([grep { !$known{$_} } keys %{ $PLUGIN->options() }], [], 'options are properties');
    is_deeply([$PLUGIN->parse_volname('vm-100-disk-0')], ['images', 'vm-100-disk-0', '100', undef, undef, '', 'raw'], 'a disk');
    ok(($PLUGIN->parse_volname('base-100-disk-0'))[5], 'a base image');
    like(refused(sub { $PLUGIN->parse_volname($_) }), qr/^unable to parse/, "no name: $_")
        for 'disk', '../vm-100-x', "vm-100-disk\n", 'vm-100-a/b', 'look-0123456789abcdef';
    my $scfg = storage('s')->{ids}->{s};
    my @has = grep { $PLUGIN->volume_has_feature($scfg, $_, 's', 'vm-100-disk-0') } qw(snapshot clone template copy sparseinit rename replicate);
    is("@has", 'snapshot template copy sparseinit rename', 'what a disk can');
    @has = grep { $PLUGIN->volume_has_feature($scfg, $_, 's', 'base-100-disk-0') } qw(snapshot clone template copy sparseinit rename);
    is("@has", 'clone copy sparseinit', 'what a base image can');
    @has = grep { $PLUGIN->volume_has_feature($scfg, $_, 's', 'vm-100-disk-0', 'a') } qw(snapshot clone template copy sparseinit rename);
    is("@has", 'clone copy', 'what a snapshot can');
    is($PLUGIN->volume_qemu_snapshot_method('s', $scfg, 'vm-100-disk-0'), 'storage', 'who makes snapshots');
}

# pvesm add, set, remove.
sub hooks {
    my $node = node('node1', target => $TARGET);
    on($node);
    my $scfg = storage('fast')->{ids}->{fast};
    my $file = "$SCRATCH/priv/fast.pw";
    like(refused(sub { $PLUGIN->on_add_hook('fast', $scfg) }), qr/a token of lunet is needed/, 'no token');
    like(refused(sub { $PLUGIN->on_add_hook('fast', $scfg, password => 'secret') }), qr/begins with lunet_/, 'no token of lunet');
    like(refused(sub { $PLUGIN->on_add_hook('fast', $scfg, password => 'lunet_wrong') }), qr/is the token the right one/, 'a wrong token');
    ok(!-e $file, 'and nothing is left of it');
    my %other = (%$scfg, fingerprint => '00' x 32);
    like(refused(sub { $PLUGIN->on_add_hook('fast', \%other, password => $TOKEN) }), qr/does not answer.*(certificate|SSL)/i, 'another certificate');
    my %unpinned = %$scfg;
    delete $unpinned{fingerprint};
    like(refused(sub { $PLUGIN->on_add_hook('fast', \%unpinned, password => $TOKEN) }), qr/certificate verify failed/i, 'an unknown authority');
    my %container = (%$scfg, 'lunet-transport' => 'libiscsi', content => { rootdir => 1 });
    like(refused(sub { $PLUGIN->on_add_hook('fast', \%container, password => $TOKEN) }), qr/containers need a device/, 'containers');

    # Without colons, as some tools print it.
    my %plain = (%$scfg, fingerprint => lc($fingerprint =~ s/://gr));
    is($PLUGIN->on_add_hook('fast', \%plain, password => $TOKEN), undef, 'added');
    is((stat($file))[2] & 0777, 0600, 'the token is for root');
    my ($target) = $REST->get("/targets/$TARGET");
    is($target->{for}, 'this-machine', 'the target was made, for nobody');
    my ($total, $free, $used, $active) = $PLUGIN->status('fast', $scfg, {});
    ok($active && $total > $MIB && $free > 0 && $total == $free + $used, "room: $free of $total");
    is($PLUGIN->check_connection('fast', $scfg), 1, 'it answers');
    my %away = (%$scfg, port => 1);
    is($PLUGIN->check_connection('fast', \%away), 0, 'nobody is there');

    $PLUGIN->on_update_hook_full('fast', $scfg, { disable => 1 }, undef, {});
    ok(-e $file, 'the token stays');
    like(refused(sub { $PLUGIN->on_update_hook_full('fast', $scfg, {}, ['password'], { password => undef }) }), qr/set another one/, 'no token any more');
    $PLUGIN->on_update_hook('fast', {}, password => 'lunet_other');
    is(first_line($file), 'lunet_other', 'another token');
    like(refused(sub { PVE::Storage::activate_storage(storage('fast'), 'fast') }), qr/connection check.*is the token the right one/, 'which is not used silently');
    $PLUGIN->on_update_hook('fast', {}, password => $TOKEN);
    $PLUGIN->on_delete_hook('fast', $scfg);
    ok(!-e $file, 'removed');
    like(refused(sub { $PLUGIN->status('fast', $scfg, {}) }), qr/there is no token of storage 'fast'/, 'and not used');
}

# Disks by QEMU's own initiator: data in and out by the path that Proxmox is given.
sub libiscsi {
    on(node('node1', target => $TARGET));
    my $cfg = storage('fast', 'lunet-transport' => 'libiscsi');
    is(PVE::Storage::vdisk_alloc($cfg, 'fast', 100, 'raw', undef, 4096), 'fast:vm-100-disk-0', 'the first disk');
    is(PVE::Storage::vdisk_alloc($cfg, 'fast', 100, 'raw', undef, 528), 'fast:vm-100-disk-1', 'the second disk');
    is(PVE::Storage::vdisk_alloc($cfg, 'fast', 101, 'raw', 'vm-101-cloudinit', 4096), 'fast:vm-101-cloudinit', 'a disk with a name');
    like(refused(sub { PVE::Storage::vdisk_alloc($cfg, 'fast', 100, 'raw', 'vm-100-disk-0', 4096) }), qr/there is a volume "fast-vm-100-disk-0" already/, 'the same disk again');
    like(refused(sub { PVE::Storage::vdisk_alloc($cfg, 'fast', 100, 'raw', 'vm-101-disk-0', 4096) }), qr/illegal name/, "another machine's");
    like(refused(sub { PVE::Storage::vdisk_alloc($cfg, 'fast', 100, 'qcow2', undef, 4096) }), qr/unsupported format/, 'another format');
    is(on_server(), 'fast-vm-100-disk-0 fast-vm-100-disk-1 fast-vm-101-cloudinit', 'by their names on the server');
    is(volids($cfg, 'fast'), 'fast:vm-100-disk-0 fast:vm-100-disk-1 fast:vm-101-cloudinit', 'listed');
    is(volids($cfg, 'fast', 101), 'fast:vm-101-cloudinit', 'listed by machine');
    is_deeply(PVE::Storage::vdisk_list($cfg, 'fast', undef, ['fast:vm-100-disk-1'])->{fast}->[0]->{size}, 528 * 1024, 'listed by name');
    is(volids(storage('other'), 'other'), '', 'another storage has none of them');
    is(scalar PVE::Storage::volume_size_info($cfg, 'fast:vm-100-disk-1', 10), 528 * 1024, 'its size');

    my $volid = 'fast:vm-100-disk-0';
    PVE::Storage::activate_volumes($cfg, [$volid]);
    my ($path, $owner, $vtype) = PVE::Storage::path($cfg, $volid);
    is("$path $owner $vtype", "iscsi://$portal1/$TARGET/0 100 images", 'where it is');
    is_deeply(
        blockdev($cfg, $volid),
        { driver => 'iscsi', transport => 'tcp', portal => $portal1, target => $TARGET, lun => 0, 'initiator-name' => 'iqn.1993-08.org.debian:01:node1' },
        'what QEMU is told',
    );
    fill($path, 0xA1);
    ok(holds($path, 0xA1), 'data');
    PVE::Storage::volume_resize($cfg, $volid, 6 * $MIB, 1);
    is(scalar PVE::Storage::volume_size_info($cfg, $volid), 6 * $MIB, 'it has grown');
    ok(holds($path, 0xA1) && holds($path, 0, '4M', '2M'), 'and holds the same, and zeroes');
    like(refused(sub { PVE::Storage::volume_resize($cfg, $volid, 4 * $MIB, 0) }), qr/do not shrink/, 'never smaller');
    is(join(' ', $PLUGIN->volume_export_formats($cfg->{ids}->{fast}, 'fast', 'vm-100-disk-0')), '', 'no stream without a device');
    PVE::Storage::deactivate_volumes($cfg, [$volid]);

    # Numbers that were just used are not used again.
    PVE::Storage::vdisk_free($cfg, 'fast:vm-100-disk-1');
    is(PVE::Storage::vdisk_alloc($cfg, 'fast', 100, 'raw', undef, 4096), 'fast:vm-100-disk-1', 'the name is free');
    is(scalar PVE::Storage::path($cfg, 'fast:vm-100-disk-1'), "iscsi://$portal1/$TARGET/3", 'the number is a new one');
    PVE::Storage::vdisk_free($cfg, $_) for split(/ /, volids($cfg, 'fast'));
    is(on_server(), '', 'freed');
    PVE::Storage::vdisk_free($cfg, $volid);
    pass('what is gone can be freed again');
}

# Snapshots, rollback, clones, templates: what is in them.
sub snapshots {
    on(node('node1', target => $TARGET));
    my $cfg = storage('fast', 'lunet-transport' => 'libiscsi');
    my $volid = PVE::Storage::vdisk_alloc($cfg, 'fast', 100, 'raw', undef, 4096);
    PVE::Storage::activate_volumes($cfg, [$volid]);
    my $path = PVE::Storage::path($cfg, $volid);
    fill($path, 1);
    PVE::Storage::volume_snapshot($cfg, $volid, 'first');
    like(refused(sub { PVE::Storage::volume_snapshot($cfg, $volid, 'first') }), qr/first.* already/, 'once');
    fill($path, 2);
    PVE::Storage::volume_snapshot($cfg, $volid, 'second');
    my $info = PVE::Storage::volume_snapshot_info($cfg, $volid);
    is(join(' ', sort keys %$info), 'first second', 'both are there');
    ok(abs($info->{first}->{timestamp} - time()) < 600 && $info->{first}->{'virtual-size'} == 4 * $MIB, 'with time and size');
    isnt($info->{first}->{id}, $info->{second}->{id}, 'and identifiers');

    # A machine is copied from a snapshot.
    PVE::Storage::activate_volumes($cfg, [$volid], 'first');
    my $look = PVE::Storage::path($cfg, $volid, 'first');
    isnt($look, $path, 'a snapshot has a path of its own');
    ok(holds($look, 1) && holds($path, 2), 'with what was there');
    is(volids($cfg, 'fast'), $volid, 'and is no disk');
    PVE::Storage::deactivate_volumes($cfg, [$volid], 'first');
    is(on_server(), 'fast-vm-100-disk-0', 'nothing is left of that');
    # A task that was cut off while it looked.
    PVE::Storage::activate_volumes($cfg, [$volid], 'second');

    my $linked = PVE::Storage::vdisk_clone($cfg, $volid, 102, 'first');
    is($linked, 'fast:vm-102-disk-0', 'a clone of a snapshot');
    ok(holds(scalar PVE::Storage::path($cfg, $linked), 1), 'has what was there');
    PVE::Storage::volume_snapshot_rollback($cfg, $volid, 'first');
    ok(holds($path, 1), 'back to the first');
    like(refused(sub { PVE::Storage::volume_snapshot_rollback($cfg, $volid, 'third') }), qr/has no snapshot 'third'/, 'no such snapshot');
    like(refused(sub { PVE::Storage::vdisk_create_base($cfg, $volid) }), qr/has snapshots/, 'no template with snapshots');
    PVE::Storage::volume_snapshot_delete($cfg, $volid, $_) for qw(first second);
    PVE::Storage::volume_snapshot_delete($cfg, $volid, 'second');
    is(join(' ', keys %{ PVE::Storage::volume_snapshot_info($cfg, $volid) }), '', 'deleted, and deleted again');
    is(on_server(), 'fast-vm-100-disk-0 fast-vm-102-disk-0', 'with what the task had left');

    my $base = PVE::Storage::vdisk_create_base($cfg, $volid);
    is($base, 'fast:base-100-disk-0', 'a template');
    is(volids($cfg, 'fast', 100), $base, 'in the place of the disk');
    my $clone = PVE::Storage::vdisk_clone($cfg, $base, 103);
    ok(holds(scalar PVE::Storage::path($cfg, $clone), 1), 'a clone of it');
    fill(scalar PVE::Storage::path($cfg, $clone), 3);
    ok(holds(scalar PVE::Storage::path($cfg, $base), 1), 'which has no ties to it');
    like(refused(sub { PVE::Storage::vdisk_clone($cfg, $clone, 104) }), qr/only works on base images/, 'no clone of a disk');
    is(PVE::Storage::rename_volume($cfg, $clone, 105), 'fast:vm-105-disk-0', 'given to another machine');
    ok(holds(scalar PVE::Storage::path($cfg, 'fast:vm-105-disk-0'), 3), 'with its content');
    like(refused(sub { PVE::Storage::rename_volume($cfg, $linked, 105, 'vm-105-disk-0') }), qr/already exists/, 'never over another one');
    PVE::Storage::volume_snapshot($cfg, $linked, 'last');
    PVE::Storage::vdisk_free($cfg, $_) for split(/ /, volids($cfg, 'fast'));
    is(on_server(), '', 'freed, with snapshots');
}

# Disks of the kernel over two portals; two nodes, as in a migration.
sub iscsi {
    my ($one, $two) = map { node($_, target => $TARGET) } qw(node1 node2);
    my $cfg = storage('fast');
    on($one);
    my $volid = PVE::Storage::vdisk_alloc($cfg, 'fast', 100, 'raw', undef, 4096);
    my $login = log_of($one);
    like($login, qr/-m discovery -t sendtargets -p \Q$portal1\E\n/, 'discovery at the portal');
    for my $portal ($portal1, $portal2) {
        like($login, qr/-p \Q$portal\E -o update -n node.session.scan -v manual\n.*-p \Q$portal\E --login\n/s, "login at $portal, without a scan");
    }
    unlike($login, qr/--login.*-m discovery/s, 'in this order');
    is(disks_of($one), '', 'a node has only the disks that it uses');
    PVE::Storage::activate_storage($cfg, 'fast');
    unlike(log_of($one), qr/login|discovery/, 'there is nothing to do with sessions');

    PVE::Storage::activate_volumes($cfg, [$volid]);
    like(log_of($one), qr/multipath -v1 -a 3[0-9a-f]{32}\nmultipath -v1 \/dev\/sda\nmultipath -v1 \/dev\/sdb\n/, 'one map over two paths');
    my ($naa) = map { $_->{naa} } @{ volumes_of_lunet() };
    my $map = "$one->{model}/dev/disk/by-id/dm-uuid-mpath-3$naa";
    is(scalar PVE::Storage::path($cfg, $volid), $map, 'which is the path');
    is_deeply(blockdev($cfg, $volid), { driver => 'host_device', filename => $map }, 'for QEMU');
    PVE::Storage::activate_volumes($cfg, [$volid]);
    is(disks_of($one), 'sda sdb', 'and again: the same');
    PVE::Storage::volume_resize($cfg, $volid, 5 * $MIB, 1);
    like(log_of($one), qr/multipathd resize map mpatha\n/, 'the map grows');

    # To another node and back, as a migration does it: first there, then not here any more.
    on($two);
    PVE::Storage::activate_volumes($cfg, [$volid]);
    is(disks_of($two), 'sda sdb', 'on the target');
    on($one);
    PVE::Storage::deactivate_volumes($cfg, [$volid]);
    like(log_of($one), qr/multipath -v1 -f mpatha\n/, 'the map is taken away');
    is(disks_of($one), '', 'not on the source any more');
    on($two);
    ok(-e scalar PVE::Storage::path($cfg, $volid), 'still on the target');
    like($REST->get("/targets/$TARGET")->{initiators}, qr/node1.*node2/, 'both nodes are let in');

    # A node that was never told that a volume is gone, and sees its number again.
    on($one);
    File::Path::make_path("$two->{model}/sys/block/sda/holders/dm-9");
    on($two);
    like(refused(sub { PVE::Storage::vdisk_free($cfg, $volid) }), qr{/dev/sda is in use}, 'what is in use here is kept');
    rmdir("$two->{model}/sys/block/sda/holders/dm-9");
    on($one);
    PVE::Storage::vdisk_free($cfg, $volid);
    my $next = PVE::Storage::vdisk_alloc($cfg, 'fast', 100, 'raw', undef, 4096);
    on($two);
    PVE::Storage::activate_volumes($cfg, [$next]);
    my ($new) = map { $_->{naa} } @{ volumes_of_lunet() };
    is($new, $naa, 'the same name has the same designator');
    PVE::Storage::vdisk_free($cfg, $next);
    is(disks_of($two), '', 'the disk goes before its LUN');
    stale($cfg, $two);
    streams($cfg, $two);
    PVE::Storage::deactivate_storage($cfg, 'fast');
    like(log_of($two), qr/--logout\n/, 'logged out');
}

# A disk that is left of another volume is not taken for the new one at its number.
sub stale {
    my ($cfg, $node) = @_;
    my $old = PVE::Storage::vdisk_alloc($cfg, 'fast', 100, 'raw', undef, 4096);
    PVE::Storage::activate_volumes($cfg, [$old]);
    my $lun = volumes_of_lunet()->[0]->{luns}->[0]->{lun};
    # By somebody else, without a word to this node.
    $REST->change('DELETE', '/volumes/fast-vm-100-disk-0?force=true');
    $REST->change('POST', '/volumes', { name => 'fast-vm-101-disk-0', size => 4 * $MIB });
    $REST->change('PUT', "/targets/$TARGET/luns/$lun", { volume => 'fast-vm-101-disk-0' });
    unlink("$node->{model}/dev/sd$_") for qw(a b);
    PVE::Storage::activate_volumes($cfg, ['fast:vm-101-disk-0']);
    my ($naa) = map { $_->{naa} } @{ volumes_of_lunet() };
    my @left = map { first_line($_) } glob("$node->{model}/sys/bus/scsi/devices/*/wwid");
    is_deeply(\@left, ["naa.$naa", "naa.$naa"], 'both paths lead to the new volume');
    PVE::Storage::vdisk_free($cfg, 'fast:vm-101-disk-0');
}

# A volume as a stream, to another storage and back.
sub streams {
    my ($cfg, $node) = @_;
    my $volid = PVE::Storage::vdisk_alloc($cfg, 'fast', 100, 'raw', undef, 4096);
    my $scfg = $cfg->{ids}->{fast};
    is(join(' ', $PLUGIN->volume_export_formats($scfg, 'fast', 'vm-100-disk-0')), 'raw+size', 'a form of streams');
    is(join(' ', $PLUGIN->volume_import_formats($scfg, 'fast', 'vm-100-disk-0', undef, undef, 1)), '', 'none with snapshots');
    PVE::Storage::activate_volumes($cfg, [$volid]);
    put(scalar PVE::Storage::path($cfg, $volid), "begin" . ("\0" x (2 * $MIB)) . 'end');
    truncate(scalar PVE::Storage::path($cfg, $volid), 4 * $MIB);
    my $file = "$SCRATCH/stream";
    open(my $out, '>:raw', $file) or die "$file: $!\n";
    PVE::Storage::volume_export($cfg, $out, $volid, 'raw+size', undef, undef, 0);
    close($out);
    is(-s $file, 4 * $MIB + 8, 'the size, and the data');
    open(my $in, '<:raw', $file) or die "$file: $!\n";
    like(refused(sub { PVE::Storage::volume_import($cfg, $in, $volid, 'raw+size', undef, undef, 0, 0) }), qr/already exists/, 'not over another one');
    my $copy = PVE::Storage::volume_import($cfg, $in, $volid, 'raw+size', undef, undef, 0, 1);
    is($copy, 'fast:vm-100-disk-1', 'by another name');
    PVE::Storage::activate_volumes($cfg, [$volid, $copy]);
    is(run('cmp', '-s', map { scalar PVE::Storage::path($cfg, $_) } $volid, $copy), 0, 'the same data');
    close($in);
    PVE::Storage::vdisk_free($cfg, $_) for $volid, $copy;
}

# Namespaces of the kernel's NVMe host.
sub nvme {
    my $cfg = storage('quick', 'lunet-transport' => 'nvme-tcp', target => "$TARGET-nvme", portal => '192.0.2.10');
    my $scfg = $cfg->{ids}->{quick};
    my $node = node('node4');
    on($node);
    like(refused(sub { $PLUGIN->on_add_hook('quick', { %$scfg, target => $TARGET }, password => $TOKEN) }), qr/is not served over NVMe/, 'a target for iSCSI alone');
    $PLUGIN->on_add_hook('quick', $scfg, password => $TOKEN);
    my $target = $REST->get("/targets/$TARGET-nvme");
    put("$node->{model}/nqn", "$target->{nqn}\n");
    my $volid = PVE::Storage::vdisk_alloc($cfg, 'quick', 100, 'raw', undef, 4096);
    is(log_of($node), join('', "nvme discover -t tcp -a 192.0.2.10 -s 4420 -o json\n",
        map { "nvme connect -t tcp -a $_ -s 4420 -n $target->{nqn}\n" } qw(192.0.2.10 192.0.2.11)), 'both paths over TCP');
    like($REST->get("/targets/$TARGET-nvme")->{hosts}, qr/0f01fb42/, 'the host is let in');
    PVE::Storage::activate_storage($cfg, 'quick');
    is(log_of($node), '', 'once');

    my ($volume) = @{ volumes_of_lunet() };
    like(refused(sub { PVE::Storage::activate_volumes($cfg, [$volid]) }), qr/namespace 1 of \Q$target->{nqn}\E does not appear/, 'nothing without the device');
    is(first_line("$node->{model}/rescans"), 'x', 'after the kernel was told to look again');
    my $disk = "$node->{model}/sys/block/nvme0n1";
    File::Path::make_path($disk);
    put("$disk/wwid", "uuid.$volume->{uuid}\n");
    put("$disk/size", "8192\n");
    symlink(file_of($volume->{naa}), "$node->{model}/dev/disk/by-id/nvme-uuid.$volume->{uuid}") or die;
    PVE::Storage::activate_volumes($cfg, [$volid]);
    is(scalar PVE::Storage::path($cfg, $volid), "$node->{model}/dev/disk/by-id/nvme-uuid.$volume->{uuid}", 'its path');
    put("$disk/size", "16384\n");
    PVE::Storage::volume_resize($cfg, $volid, 8 * $MIB, 1);
    PVE::Storage::deactivate_volumes($cfg, [$volid]);
    File::Path::make_path("$disk/holders/dm-9");
    like(refused(sub { PVE::Storage::vdisk_free($cfg, $volid) }), qr{/dev/nvme0n1 is in use}, 'what is in use here is kept');
    rmdir("$disk/holders/dm-9");
    PVE::Storage::vdisk_free($cfg, $volid);
    PVE::Storage::deactivate_storage($cfg, 'quick');
    is(log_of($node), "nvme disconnect -n $target->{nqn}\n", 'disconnected');
}

# Answers that are lost, tasks that are cut off, others who change the target at the same time.
sub faults {
    on(node('node1', target => $TARGET));
    my $cfg = storage('fast', 'lunet-transport' => 'libiscsi');
    # Made, and then the node was switched off: the disk is listed, can be used, and freed.
    $REST->change('POST', '/volumes', { name => 'fast-vm-100-disk-0', size => 4 * $MIB });
    is(volids($cfg, 'fast'), 'fast:vm-100-disk-0', 'a volume without a LUN is listed');
    PVE::Storage::activate_volumes($cfg, ['fast:vm-100-disk-0']);
    fill(scalar PVE::Storage::path($cfg, 'fast:vm-100-disk-0'), 7);
    pass('and gets one when it is used');

    no warnings 'redefine';
    my $exchange = \&Lunet::Proxmox::Rest::exchange;
    # The answer to the first change is lost on its way.
    my (%keys, $lost);
    local *Lunet::Proxmox::Rest::exchange = sub {
        my ($self, $method, $path, $body, %more) = @_;
        my @answer = $exchange->(@_);
        return @answer if $method eq 'GET' || $path !~ m|^/volumes$|;
        $keys{ $more{key} }++;
        return $lost++ ? @answer : (0, 'lost');
    };
    is(PVE::Storage::vdisk_alloc($cfg, 'fast', 101, 'raw', undef, 4096), 'fast:vm-101-disk-0', 'a lost answer');
    is_deeply([values %keys], [2], 'the same request was sent twice, with one key');
    # Lunet was started anew in between, and does not know the key any more.
    ($lost, %keys) = (0);
    my $forgetful = \&Lunet::Proxmox::Rest::exchange;
    local *Lunet::Proxmox::Rest::exchange = sub {
        my ($self, $method, $path, $body, %more) = @_;
        $more{key} = Lunet::Proxmox::Rest::random_key() if $more{key} && $lost;
        return $forgetful->($self, $method, $path, $body, %more);
    };
    is(PVE::Storage::vdisk_alloc($cfg, 'fast', 101, 'raw', undef, 4096), 'fast:vm-101-disk-1', 'and its key is forgotten');

    # Another node takes the number first.
    my $taken = 0;
    local *Lunet::Proxmox::Rest::exchange = sub {
        my ($self, $method, $path, $body, %more) = @_;
        if ($method eq 'PUT' && !$taken++) {
            $exchange->($self, 'POST', '/volumes', { name => 'else', size => $MIB });
            $exchange->($self, $method, $path, { volume => 'else' });
        }
        return $exchange->(@_);
    };
    is(PVE::Storage::vdisk_alloc($cfg, 'fast', 102, 'raw', undef, 4096), 'fast:vm-102-disk-0', 'another one maps at the same time');
    is(scalar PVE::Storage::path($cfg, 'fast:vm-102-disk-0'), "iscsi://$portal1/$TARGET/4", 'each has a number of its own');

    # The second step fails: the first one is undone.
    local *Lunet::Proxmox::Rest::exchange = sub {
        my ($self, $method, $path, $body, %more) = @_;
        return (409, { code => 'unsupported', detail => 'no more of these' }) if $method eq 'PUT';
        return $exchange->(@_);
    };
    like(refused(sub { PVE::Storage::vdisk_alloc($cfg, 'fast', 103, 'raw', undef, 4096) }), qr/no more of these/, 'it cannot be mapped');
    unlike(on_server(), qr/103/, 'nothing is left');
    local *Lunet::Proxmox::Rest::exchange = $exchange;
    PVE::Storage::vdisk_free($cfg, $_) for split(/ /, volids($cfg, 'fast'));
    is(on_server(), 'else', 'volumes of others stay');
    $REST->change('DELETE', '/volumes/else?force=true');
    my $long = storage('fast', 'lunet-prefix' => 'p' x 32);
    like(refused(sub { PVE::Storage::vdisk_alloc($long, 'fast', 100, 'raw', 'vm-100-' . ('x' x 30), 4096) }), qr/longer than 64/, 'a long name');
}
