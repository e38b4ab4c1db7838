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
use IO::Socket::IP;
use Test::More;
use Time::HiRes ();

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
    nvme => \&nvme, faults => \&faults, identity => \&identity, restarts => \&restarts, memory => \&memory,
    cluster => \&cluster, limits => \&limits,
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
    is(scalar(() = $PLUGIN->status('fast', $scfg, {})), 0, 'not active without a session');
    my $cache = {};
    PVE::Storage::activate_storage(storage('fast'), 'fast', $cache);
    my ($total, $free, $used, $active) = $PLUGIN->status('fast', $scfg, $cache);
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
    my $lun = lun_of_volume('fast-vm-100-disk-0');
    is("$path $owner $vtype", "iscsi://$portal1/$TARGET/$lun 100 images", 'where it is');
    is_deeply(
        blockdev($cfg, $volid),
        { driver => 'iscsi', transport => 'tcp', portal => $portal1, target => $TARGET, lun => $lun, 'initiator-name' => 'iqn.1993-08.org.debian:01:node1' },
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

    # A number that was just used is used again once in many times.
    my $reused = 0;
    for (1 .. 4) {
        my $before = lun_of_volume('fast-vm-100-disk-1');
        PVE::Storage::vdisk_free($cfg, 'fast:vm-100-disk-1');
        is(PVE::Storage::vdisk_alloc($cfg, 'fast', 100, 'raw', undef, 4096), 'fast:vm-100-disk-1', 'the name is free');
        $reused++ if $before == lun_of_volume('fast-vm-100-disk-1');
    }
    cmp_ok($reused, '<', 4, 'the number is another one');
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

    # A task was cut off while it looked, and then the snapshot was made anew.
    fill($path, 8);
    PVE::Storage::volume_snapshot($cfg, $volid, 'again');
    PVE::Storage::activate_volumes($cfg, [$volid], 'again');
    $REST->change('DELETE', '/volumes/fast-vm-100-disk-0/snapshots/again');
    like(refused(sub { PVE::Storage::path($cfg, $volid, 'again') }), qr/has no snapshot 'again'/, 'it is gone');
    fill($path, 9);
    PVE::Storage::volume_snapshot($cfg, $volid, 'again');
    PVE::Storage::activate_volumes($cfg, [$volid], 'again');
    ok(holds(scalar PVE::Storage::path($cfg, $volid, 'again'), 9), 'the new one is looked at, and not the one of before');
    is(scalar(grep { /look/ } split(/ /, on_server())), 1, 'what was left of that one is gone');
    PVE::Storage::volume_snapshot_delete($cfg, $volid, 'again');
    is(on_server(), 'fast-vm-100-disk-0', 'nothing is left');
    fill($path, 2);

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
    isnt($new, $naa, 'the same name has another designator');
    PVE::Storage::vdisk_free($cfg, $next);
    process_opens($two, 4710, 'dm-0');
    later($two);
    PVE::Storage::activate_storage($cfg, 'fast');
    is(disks_of($two), 'sda sdb', 'what is left of a volume that another node has freed stays while it is in use');
    process_ends($two, 4710);
    later($two);
    PVE::Storage::activate_storage($cfg, 'fast');
    is(disks_of($two), '', 'and then it goes');
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
    no warnings 'redefine';
    local *Lunet::Proxmox::Nvme::listens = sub { 1 };
    like(refused(sub { $PLUGIN->on_add_hook('quick', { %$scfg, target => $TARGET }, password => $TOKEN) }), qr/is not served over NVMe/, 'a target for iSCSI alone');
    $PLUGIN->on_add_hook('quick', $scfg, password => $TOKEN);
    my $target = $REST->get("/targets/$TARGET-nvme");
    put("$node->{model}/nqn", "$target->{nqn}\n");
    my $volid = PVE::Storage::vdisk_alloc($cfg, 'quick', 100, 'raw', undef, 4096);
    is(log_of($node), join('', "nvme discover -t tcp -a 192.0.2.10 -s 4420 -o json\n",
        map { "nvme connect -t tcp -a $_ -s 4420 -n $target->{nqn} --ctrl-loss-tmo=-1 --reconnect-delay=2\n" } qw(192.0.2.10 192.0.2.11)), 'both paths over TCP');
    like($REST->get("/targets/$TARGET-nvme")->{hosts}, qr/0f01fb42/, 'the host is let in');
    PVE::Storage::activate_storage($cfg, 'quick');
    is(log_of($node), '', 'once');

    my ($volume) = @{ volumes_of_lunet() };
    like(refused(sub { PVE::Storage::activate_volumes($cfg, [$volid]) }), qr/namespace \d+ of \Q$target->{nqn}\E does not appear/, 'nothing without the device');
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
    lost_paths($cfg, $node, $target->{nqn});
    PVE::Storage::deactivate_storage($cfg, 'quick');
    is(log_of($node), "nvme disconnect -n $target->{nqn}\n", 'disconnected');
}

# Paths of NVMe that are lost, and come back.
sub lost_paths {
    my ($cfg, $node, $nqn) = @_;
    my $sys = "$node->{model}/sys/class/nvme";
    my $status = sub { scalar(() = $PLUGIN->status('quick', $cfg->{ids}->{quick}, {})) };
    is($status->(), 4, 'active');
    # The kernel tries it again: it gives it up never, although somebody has said ten minutes.
    put("$sys/nvme0/state", "connecting\n");
    put("$sys/nvme0/ctrl_loss_tmo", "600\n");
    PVE::Storage::activate_storage($cfg, 'quick');
    is(first_line("$sys/nvme0/ctrl_loss_tmo"), 'off', 'a path that is away is waited for');
    is($status->(), 4, 'there is another one');
    put("$sys/nvme1/state", "connecting\n");
    is($status->(), 0, 'not active without a path');
    put("$sys/nvme1/state", "live\n");
    File::Path::remove_tree("$sys/nvme0");
    PVE::Storage::activate_storage($cfg, 'quick');
    is(log_of($node), '', 'a path that is gone is not looked for all the time');
    later($node);
    # Its portal is away, and the other one tells of it.
    no warnings 'redefine';
    my $away = '192.0.2.10 4420';
    local *Lunet::Proxmox::Nvme::listens = sub { $_[0] ne $away };
    PVE::Storage::activate_storage($cfg, 'quick');
    is(log_of($node), "nvme discover -t tcp -a 192.0.2.11 -s 4420 -o json\n", 'nor connected to without a portal');
    $away = '';
    later($node);
    PVE::Storage::activate_storage($cfg, 'quick');
    like(log_of($node), qr/\Anvme discover .*\nnvme connect -t tcp -a 192.0.2.10 [^\n]*\n\z/, 'it alone is connected again');
    local *Lunet::Proxmox::Nvme::listens = sub { 0 };
    later($node);
    PVE::Storage::activate_storage($cfg, 'quick');
    is(log_of($node), '', 'a gateway that is away is not asked');
    my $disk = "$node->{model}/sys/class/nvme-subsystem/nvme-subsys0";
    File::Path::make_path("$disk/nvme0n7");
    put("$disk/subsysnqn", "$nqn\n");
    process_opens($node, 4712, 'nvme0n7');
    like(refused(sub { PVE::Storage::deactivate_storage($cfg, 'quick') }), qr{/dev/nvme0n7 is in use on this node, by process 4712}, 'paths stay with a machine');
    process_ends($node, 4712);
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
    my ($else, $own) = map { lun_of_volume($_) } 'else', 'fast-vm-102-disk-0';
    is(scalar PVE::Storage::path($cfg, 'fast:vm-102-disk-0'), "iscsi://$portal1/$TARGET/$own", 'it has a number');
    isnt($own, $else, 'of its own');

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

# Changes the way to lunet for as long as the code runs: `by` has the real request as its first argument, and then the request.
sub with_requests {
    my ($by, $code) = @_;
    my $real = \&Lunet::Proxmox::Rest::exchange;
    no warnings 'redefine';
    local *Lunet::Proxmox::Rest::exchange = sub { $by->($real, @_) };
    return $code->();
}

# The power goes before the first request of this method and path: the error, or undef if it never came to that.
sub killed_at {
    my ($what, $code) = @_;
    my $off = 0;
    with_requests(sub {
        my ($real, $self, $method, $path, @more) = @_;
        $off ||= "$method $path" =~ $what;
        die "switched off\n" if $off;
        return $real->($self, $method, $path, @more);
    }, sub { eval { $code->() } });
    return $off;
}

# Volumes of one name that are not the same: none but the own one is taken or deleted.
sub identity {
    on(node('node1', target => $TARGET));
    my $cfg = storage('fast', 'lunet-transport' => 'libiscsi');
    my $alloc = sub { PVE::Storage::vdisk_alloc($cfg, 'fast', 100, 'raw', 'vm-100-disk-0', 4096) };
    my $path = '/volumes/fast-vm-100-disk-0';
    my $foreign = sub { $_[0]->($REST, 'POST', '/volumes', { name => 'fast-vm-100-disk-0', size => $MIB }) };

    # Another node, without the lock, is quicker, and the answer is lost.
    my $tried = 0;
    my $error = with_requests(sub {
        my ($real, $self, $method, $where, @more) = @_;
        return $real->($self, $method, $where, @more) if "$method $where" ne 'POST /volumes' || $tried++;
        $foreign->($real);
        return (0, 'lost');
    }, sub { refused($alloc) });
    like($error, qr/there is a volume "fast-vm-100-disk-0" already/, 'the volume of another is not taken');
    is($REST->get($path)->{size_bytes}, $MIB, 'and stays');
    $REST->change('DELETE', $path);

    # The own one is replaced before it is mapped: what is cleaned up is not the new one.
    $error = with_requests(sub {
        my ($real, $self, $method, $where, @more) = @_;
        return $real->($self, $method, $where, @more) if $method ne 'PUT';
        $real->($REST, 'DELETE', $path);
        $foreign->($real);
        return (409, { code => 'unsupported', detail => 'no more of these' });
    }, sub { refused($alloc) });
    like($error, qr/no more of these/, 'it cannot be mapped');
    is($REST->get($path)->{size_bytes}, $MIB, 'what has taken its place stays');
    $REST->change('DELETE', $path);

    # It is deleted, the answer is lost, and another node makes one of the same name.
    my $volid = $alloc->();
    my $lost = 0;
    with_requests(sub {
        my ($real, $self, $method, $where, $body, %more) = @_;
        # Lunet was started anew, and does not know the key any more.
        $more{key} = Lunet::Proxmox::Rest::random_key() if $more{key} && $lost;
        my @answer = $real->($self, $method, $where, $body, %more);
        return @answer if $method ne 'DELETE' || $lost++;
        $foreign->($real);
        return (0, 'lost');
    }, sub { PVE::Storage::vdisk_free($cfg, $volid) });
    is($REST->get($path)->{size_bytes}, $MIB, 'a deletion that is repeated does not meet it');
    $REST->change('DELETE', $path);

    # A snapshot that was there before.
    $volid = $alloc->();
    $REST->change('POST', "$path/snapshots", { snapshot => 'one' });
    $lost = 0;
    $error = with_requests(sub {
        my ($real, $self, $method, $where, @more) = @_;
        return (0, 'lost') if "$method $where" eq "POST $path/snapshots" && !$lost++;
        return $real->($self, $method, $where, @more);
    }, sub { refused(sub { PVE::Storage::volume_snapshot($cfg, $volid, 'one') }) });
    like($error, qr/already/, 'is not taken for the one that was to be made');
    $lost = 0;
    with_requests(sub {
        my ($real, $self, $method, $where, $body, %more) = @_;
        $more{key} = Lunet::Proxmox::Rest::random_key() if $more{key} && $lost;
        my @answer = $real->($self, $method, $where, $body, %more);
        return "$method $where" eq "POST $path/snapshots" && !$lost++ ? (0, 'lost') : @answer;
    }, sub { PVE::Storage::volume_snapshot($cfg, $volid, 'two') });
    is(join(' ', sort keys %{ PVE::Storage::volume_snapshot_info($cfg, $volid) }), 'one two', 'and that one is, after a lost answer');
    PVE::Storage::vdisk_free($cfg, $volid);

    # A storage whose volumes' names begin as those of this one.
    my $other = storage('other', 'lunet-transport' => 'libiscsi', 'lunet-prefix' => 'fast-vm-100-', target => "$TARGET-other");
    $PLUGIN->on_add_hook('other', $other->{ids}->{other}, password => $TOKEN);
    my $theirs = PVE::Storage::vdisk_alloc($other, 'other', 5, 'raw', undef, 4096);
    is(on_server(), 'fast-vm-100-vm-5-disk-0', 'a name of both');
    is(volids($other, 'other') . volids($cfg, 'fast'), 'other:vm-5-disk-0', 'is listed where it is a LUN');
    like(refused(sub { PVE::Storage::vdisk_free($cfg, 'fast:vm-100-vm-5-disk-0') }), qr/and so of another storage/, 'and deleted there alone');
    like(refused(sub { PVE::Storage::activate_volumes($cfg, ['fast:vm-100-vm-5-disk-0']) }), qr/and so of another storage/, 'and used');
    PVE::Storage::vdisk_free($other, $theirs);
    $other->{ids}->{other}->{'lunet-prefix'} = 'fast-';
    $volid = $alloc->();
    $theirs = PVE::Storage::vdisk_alloc($other, 'other', 100, 'raw', undef, 4096);
    is($theirs, 'other:vm-100-disk-1', 'a name that is not taken in either');
    PVE::Storage::vdisk_free($cfg, $volid);
    PVE::Storage::vdisk_free($other, $theirs);
    is(on_server(), '', 'freed');
}

# Tasks that were cut off in the middle, and are called again.
sub restarts {
    on(node('node1', target => $TARGET));
    my $cfg = storage('fast', 'lunet-transport' => 'libiscsi');
    my $make = sub { PVE::Storage::vdisk_alloc($cfg, 'fast', 100, 'raw', 'vm-100-disk-0', 4096) };
    my $volid = $make->();
    my $where = sub { scalar PVE::Storage::path($cfg, $_[0]) };
    my $base = sub { PVE::Storage::vdisk_create_base($cfg, $volid) };
    fill($where->($volid), 1);
    ok(killed_at(qr/^DELETE/, $base), 'a template, cut off between copy and removal');
    is(volids($cfg, 'fast'), 'fast:base-100-disk-0 fast:vm-100-disk-0', 'both are there');
    # The machine goes on, as its configuration has the old name.
    fill($where->($volid), 2);
    is($base->(), 'fast:base-100-disk-0', 'called again');
    ok(holds($where->('fast:base-100-disk-0'), 2), 'it has what was written since');
    is(volids($cfg, 'fast'), 'fast:base-100-disk-0', 'once');
    PVE::Storage::vdisk_free($cfg, 'fast:base-100-disk-0');

    $make->();
    ok(killed_at(qr/^PUT/, $base), 'cut off between removal and LUN');
    is($base->(), 'fast:base-100-disk-0', 'called again: it was done');
    like(refused(sub { PVE::Storage::vdisk_create_base($cfg, 'fast:vm-100-disk-1') }), qr/has no volume fast-vm-100-disk-1/, 'nothing comes from nothing');
    $make->();
    like(refused($base), qr/already exists/, 'a template of another disk of that name stays');
    PVE::Storage::vdisk_free($cfg, 'fast:base-100-disk-0');

    my $give = sub { PVE::Storage::rename_volume($cfg, $volid, 101, $_[0]) };
    fill($where->($volid), 3);
    ok(killed_at(qr/^DELETE/, $give), 'given to another machine, cut off before the removal');
    is($give->(), 'fast:vm-101-disk-0', 'again: by the same name');
    is(volids($cfg, 'fast'), 'fast:vm-101-disk-0', 'once');
    ok(holds($where->('fast:vm-101-disk-0'), 3), 'with its content');
    like(refused($give), qr/has become 'vm-101-disk-0'/, 'what is done already says where it is');
    $make->();
    ok(killed_at(qr/^DELETE/, sub { $give->('vm-101-disk-7') }), 'cut off again');
    # Somebody uses what was left.
    PVE::Storage::activate_volumes($cfg, ['fast:vm-101-disk-7']);
    like(refused(sub { $give->('vm-101-disk-7') }), qr/already exists/, 'what is in use is not made anew');
    is($give->(), 'fast:vm-101-disk-1', 'another name is free');
    PVE::Storage::vdisk_free($cfg, $_) for split(/ /, volids($cfg, 'fast'));

    # The others.
    $make->();
    ok(killed_at(qr/^PUT/, sub { PVE::Storage::vdisk_alloc($cfg, 'fast', 102, 'raw', undef, 4096) }), 'a disk, cut off before its LUN');
    PVE::Storage::vdisk_free($cfg, 'fast:vm-102-disk-0');
    fill($where->($volid), 4);
    PVE::Storage::volume_snapshot($cfg, $volid, 'one');
    ok(killed_at(qr/^PUT/, sub { PVE::Storage::vdisk_clone($cfg, $volid, 103, 'one') }), 'a clone, cut off before its LUN');
    is(volids($cfg, 'fast', 103), 'fast:vm-103-disk-0', 'is listed');
    PVE::Storage::vdisk_free($cfg, 'fast:vm-103-disk-0');
    ok(killed_at(qr/^PUT/, sub { PVE::Storage::activate_volumes($cfg, [$volid], 'one') }), 'a look at a snapshot, cut off');
    PVE::Storage::activate_volumes($cfg, [$volid], 'one');
    ok(holds(scalar PVE::Storage::path($cfg, $volid, 'one'), 4), 'and done');
    fill($where->($volid), 5);
    for (1 .. 2) {
        PVE::Storage::volume_snapshot_rollback($cfg, $volid, 'one');
        ok(holds($where->($volid), 4), 'rolled back, and again');
        PVE::Storage::volume_resize($cfg, $volid, 6 * $MIB, 0);
        is(scalar PVE::Storage::volume_size_info($cfg, $volid), 6 * $MIB, 'grown, and again');
    }
    ok(killed_at(qr|^DELETE /volumes/fast-vm-100-disk-0\?|, sub { PVE::Storage::vdisk_free($cfg, $volid) }), 'freed, cut off after its snapshots');
    is(volids($cfg, 'fast'), $volid, 'it is there');
    PVE::Storage::vdisk_free($cfg, $volid);
    is(on_server(), '', 'and gone, with all that was left');
}

# What daemons remember.
sub memory {
    my $node = node('node1', target => $TARGET);
    on($node);
    my $cfg = storage('fast');
    my $volid = PVE::Storage::vdisk_alloc($cfg, 'fast', 100, 'raw', undef, 4096);
    my $path = sub { scalar PVE::Storage::path($cfg, $volid) };
    my $before = $path->();
    my $replace = sub {
        $REST->change('DELETE', '/volumes/fast-vm-100-disk-0?force=true');
        $REST->change('POST', '/volumes', { name => 'fast-vm-100-disk-0', size => 4 * $MIB });
    };
    my $asked = 0;
    with_requests(sub { my $real = shift; $asked++; $real->(@_) }, $path);
    is($asked, 0, 'the path of a disk is asked for once');
    $replace->();
    {
        local $PVE::Storage::Custom::LunetPlugin::REMEMBERED = 0;
        isnt($path->(), $before, 'and again when some time has passed');
    }
    $before = $path->();
    put("$SCRATCH/priv/fast.pw", "lunet_other\n");
    like(refused($path), qr/is the token the right one/, 'what another token has seen is not told');
    put("$SCRATCH/priv/fast.pw", "$TOKEN\n");
    $cfg->{ids}->{fast}->{port} = 1;
    like(refused($path), qr/does not answer/, 'nor what another server has said');
    $cfg->{ids}->{fast}->{port} = $port;

    # Proxmox has one cache for all storages.
    my $cache = {};
    is(scalar @{ $PLUGIN->list_images('fast', $cfg->{ids}->{fast}, undef, undef, $cache) }, 1, 'a list');
    put("$SCRATCH/priv/other.pw", "lunet_other\n");
    my $other = storage('other', 'lunet-prefix' => 'fast-')->{ids}->{other};
    like(refused(sub { $PLUGIN->list_images('other', $other, undef, undef, $cache) }), qr/is the token the right one/, 'is not that of another storage');
    put("$SCRATCH/priv/other.pw", "$TOKEN\n");
    # The certificate is another one from now on: a connection that was made with the former does not count.
    $cfg->{ids}->{fast}->{fingerprint} = 'ab' x 32;
    like(refused(sub { $PLUGIN->check_connection('fast', $cfg->{ids}->{fast}) }), qr/certificate/, 'nor does a connection');
    $cfg->{ids}->{fast}->{fingerprint} = $fingerprint;
    PVE::Storage::vdisk_free($cfg, $volid);
    is(on_server(), '', 'freed');
}

# A node of several: what others do, and what is lost.
sub cluster {
    my ($one, $two) = map { node($_, target => $TARGET) } qw(node5 node6);
    my $cfg = storage('fast');
    on($_) && PVE::Storage::activate_storage($cfg, 'fast') for $one, $two;
    my $volid = PVE::Storage::vdisk_alloc($cfg, 'fast', 100, 'raw', undef, 4096);
    PVE::Storage::activate_volumes($cfg, [$volid]);
    on($one);
    PVE::Storage::volume_resize($cfg, $volid, 6 * $MIB, 1);
    on($two);
    is(first_line("$two->{model}/sys/block/sda/size"), 4 * $MIB / 512, 'a node that has the disk of before');
    log_of($two);
    PVE::Storage::activate_volumes($cfg, [$volid]);
    is(join(' ', map { first_line("$two->{model}/sys/block/$_/size") } qw(sda sdb)), '12288 12288', 'sees the new size when it uses it');
    like(log_of($two), qr/multipathd resize map mpatha/, 'by its map, too');

    # QEMU has it open, which no other way tells of.
    process_opens($two, 4711, 'dm-0');
    for my $what (sub { PVE::Storage::vdisk_free($cfg, $volid) }, sub { PVE::Storage::deactivate_storage($cfg, 'fast') }) {
        like(refused($what), qr{/dev/dm-0 is in use on this node, by process 4711}, 'a disk that a machine uses is kept');
    }
    is(disks_of($two), 'sda sdb', 'whole');
    unlike(log_of($two), qr/logout|-f/, 'nothing was begun');
    process_ends($two, 4711);

    # Something looks into the map for a moment.
    put("$two->{model}/busy", '');
    PVE::Storage::deactivate_volumes($cfg, [$volid]);
    is(disks_of($two), '', 'a map that is busy for a moment goes');
    PVE::Storage::activate_volumes($cfg, [$volid]);
    log_of($two);

    # The sessions are lost while the machine is stopped, and the disks are those that the kernel keeps for them.
    my @sessions = map { /^(.*)\z/ } glob("$two->{model}/sys/class/iscsi_session/*");
    put("$_/state", "FAILED\n") for @sessions;
    is(scalar(() = $PLUGIN->status('fast', $cfg->{ids}->{fast}, {})), 0, 'the storage is not active there');
    PVE::Storage::deactivate_volumes($cfg, [$volid]);
    like(log_of($two), qr/multipathd disablequeueing map mpatha\nmultipath -v1 -f mpatha\nmultipath -v1 -w 3/, 'the map does not wait for paths');
    is(disks_of($two), '', 'and nothing is left');
    like(refused(sub { PVE::Storage::activate_volumes($cfg, [$volid]) }), qr/no session with .* is up/, 'nor made');
    put("$_/state", "LOGGED_IN\n") for @sessions;

    # The disks have gone before the map.
    PVE::Storage::activate_volumes($cfg, [$volid]);
    disk_goes($two, $_) for map { m|([^/]+)\z| } glob("$two->{model}/sys/bus/scsi/devices/*");
    ok(-e "$two->{model}/sys/block/dm-0", 'a map without disks');
    PVE::Storage::deactivate_volumes($cfg, [$volid]);
    ok(!-e "$two->{model}/sys/block/dm-0", 'goes with the volume');

    # A number above 255 is another one to the kernel.
    my $at = lun_of_volume('fast-vm-100-disk-0');
    $REST->change('DELETE', "/targets/$TARGET/luns/$at?force=true");
    $REST->change('PUT', "/targets/$TARGET/luns/300", { volume => 'fast-vm-100-disk-0' });
    PVE::Storage::activate_volumes($cfg, [$volid]);
    is(scalar(@{[ glob("$two->{model}/sys/bus/scsi/devices/*:16684") ]}), 2, 'LUN 300 is found by flat space addressing');
    PVE::Storage::deactivate_volumes($cfg, [$volid]);

    # One portal is away when the machine starts, and comes later.
    my ($lost) = grep { $_->{portal} eq $portal2 } Lunet::Proxmox::Iscsi::sessions($TARGET);
    unlink("$two->{model}/sys/class/iscsi_session/$lost->{session}");
    later($two);
    my $away = $portal2;
    my $listens = \&Lunet::Proxmox::Iscsi::listens;
    no warnings 'redefine';
    local *Lunet::Proxmox::Iscsi::listens = sub { $_[0] ne $away && $listens->($_[0]) };
    log_of($two);
    PVE::Storage::activate_volumes($cfg, [$volid]);
    is(disks_of($two), 'sda', 'one path');
    unlike(log_of($two), qr/--login/, 'nobody waits for the other');
    $away = '';
    PVE::Storage::activate_storage($cfg, 'fast');
    is(disks_of($two), 'sda', 'it is not tried all the time');
    later($two);
    PVE::Storage::activate_storage($cfg, 'fast');
    like(log_of($two), qr/\Q$portal2\E --login/, 'but after a while');
    is(disks_of($two), 'sda sdb', 'and the disk has its second path');
    is(scalar(@{[ glob("$two->{model}/sys/block/sd*/holders/dm-0") ]}), 2, 'in its map');
    PVE::Storage::deactivate_storage($cfg, 'fast');
    is(disks_of($two), '', 'with the sessions all disks and maps go');
    on($one);
    PVE::Storage::vdisk_free($cfg, $volid);
    is(on_server(), '', 'freed');
}

# The seconds that something takes.
sub seconds {
    my ($code) = @_;
    my $began = Time::HiRes::time();
    $code->();
    return Time::HiRes::time() - $began;
}

# What does not answer, and for how long it is waited for.
sub limits {
    my $node = node('node7', target => $TARGET);
    on($node);
    my $silent = IO::Socket::IP->new(Listen => 5, LocalAddr => '127.0.0.1') or die "listen: $!\n";
    local $Lunet::Proxmox::Rest::STATUS_TIMEOUT = 1;
    local $PVE::Storage::Custom::LunetPlugin::READY = 2;
    # Nobody takes the connection, so that nothing comes.
    my $dead = storage('fast', port => $silent->sockport());
    my $info;
    my $took = seconds(sub { $info = PVE::Storage::storage_info($dead) });
    ok(!$info->{fast}->{active} && $took < 15, "a server that says nothing: $took s");
    my $scfg = $dead->{ids}->{fast};
    ok(seconds(sub { refused(sub { $PLUGIN->activate_storage('fast', $scfg, {}) }) }) < 15, 'activation');
    ok(seconds(sub { refused(sub { $PLUGIN->status('fast', $scfg, {}) }) }) < 15, 'status');
    my $cfg = storage('fast');
    # The others are not concerned.
    $dead->{ids}->{alive} = { %{ $cfg->{ids}->{fast} }, 'lunet-transport' => 'libiscsi' };
    put("$SCRATCH/priv/alive.pw", "$TOKEN\n");
    $info = PVE::Storage::storage_info($dead);
    ok($info->{alive}->{active} && !$info->{fast}->{active}, 'another storage is active');

    put("$node->{model}/hangs", '');
    $took = seconds(sub { $info = PVE::Storage::storage_info($cfg) });
    ok(!$info->{fast}->{active} && $took < 30, "open-iscsi does not answer: $took s");
    unlink("$node->{model}/hangs");
    my $nobody = storage('fast', portal => '127.0.0.1:1');
    like(refused(sub { PVE::Storage::activate_storage($nobody, 'fast') }), qr/nobody listens at 127\.0\.0\.1:1/, 'a portal without anybody');
    unlike(log_of($node), qr/discovery/, 'is not asked');

    # A verb with the lock of the storage ends before the lock does.
    local $PVE::Storage::Custom::LunetPlugin::LOCKED = 2;
    local $PVE::Storage::Custom::LunetPlugin::READY = 20;
    local $Lunet::Proxmox::Rest::STATUS_TIMEOUT = 20;
    my $error;
    $took = seconds(sub {
        with_requests(sub {
            my ($real, $self, $method, @more) = @_;
            return $method eq 'POST' && $more[0] eq '/volumes' ? (503, { code => 'stopping' }) : $real->($self, $method, @more);
        }, sub { $error = refused(sub { PVE::Storage::vdisk_alloc($cfg, 'fast', 100, 'raw', undef, 4096) }) });
    });
    ok($error =~ /503/ && $took < 30, "a server that stops: $took s");
    PVE::Storage::deactivate_storage($cfg, 'fast');
}
