package PVE::Storage::Custom::LunetPlugin;

# A storage of Proxmox VE whose disks are volumes of lunet: a LUN (iSCSI) or a namespace (NVMe/TCP) each. See docs/proxmox.md.
#
# The volume `vm-100-disk-0` of the storage `fast` is lunet's volume `fast-vm-100-disk-0` (PREFIX and name), mapped in the
# storage's target. What lunet says of it counts; nothing is kept on the nodes but the token.

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use POSIX ();
use Time::HiRes qw(time);

use PVE::INotify;
use PVE::Storage::Plugin;
use PVE::Tools ();

use Lunet::Proxmox::Iscsi;
use Lunet::Proxmox::Kernel;
use Lunet::Proxmox::Limit;
use Lunet::Proxmox::Nvme;
use Lunet::Proxmox::Rest;

use base qw(PVE::Storage::Plugin);

# Every node has the same volumes.
push @PVE::Storage::Plugin::SHARED_STORAGE, 'lunet';

# Versions of the storage API that this is written for: Proxmox VE 8 (10, 11) and 9 (12 to 15).
my ($API_MIN, $API_MAX) = (10, 15);

# Where the tokens are: on the cluster's file system, for root alone.
our $SECRETS = '/etc/pve/priv/storage';

# LUNs from 0 to this one: over NVMe they are namespaces 1 to 1023.
my $LAST_LUN = 1022;

# lunet's names of volumes have so many characters.
my $LONGEST_NAME = 64;

# How long what is done under the lock of a storage may take, in seconds: Proxmox gives the lock up after 60.
our $LOCKED = 50;

# How long it may take to have the storage ready on a node, in seconds: the others wait for it.
our $READY = 10;

# How long a daemon goes by what lunet has told it, in seconds.
our $REMEMBERED = 10;

# Configuration

sub api {
    my $now = PVE::Storage::APIVER();
    return $now if $now >= $API_MIN && $now <= $API_MAX;
    return $now < $API_MIN ? $API_MIN : $API_MAX;
}

sub type {
    return 'lunet';
}

sub plugindata {
    return {
        content => [{ images => 1, rootdir => 1, none => 1 }, { images => 1 }],
        format => [{ raw => 1 }, 'raw'],
        'sensitive-properties' => { password => 1 },
    };
}

# `server`, `port`, `fingerprint`, `portal`, `target` and `password` are properties of Proxmox's own storages.
sub properties {
    return {
        'lunet-transport' => {
            description => "How nodes reach volumes: 'iscsi' (open-iscsi), 'nvme-tcp' (the kernel's NVMe host)"
                . " or 'libiscsi' (QEMU's own initiator; not for containers).",
            type => 'string',
            enum => ['iscsi', 'nvme-tcp', 'libiscsi'],
            default => 'iscsi',
        },
        'lunet-prefix' => {
            description => "What the names of the storage's volumes begin with on the server."
                . " Left out: the storage's name and a hyphen.",
            type => 'string',
            pattern => '[A-Za-z0-9][A-Za-z0-9_.\-]{0,31}',
            maxLength => 32,
        },
        'lunet-ca' => {
            description => "File with the certificate of the authority that has signed the server's."
                . " Left out, without a fingerprint: those that the node trusts.",
            type => 'string',
            format => 'pve-storage-path',
        },
    };
}

sub options {
    return {
        server => { fixed => 0 },
        port => { optional => 1 },
        password => { optional => 1 },
        fingerprint => { optional => 1 },
        'lunet-ca' => { optional => 1 },
        portal => { fixed => 0 },
        target => { fixed => 1 },
        'lunet-transport' => { optional => 1, fixed => 1 },
        'lunet-prefix' => { optional => 1, fixed => 1 },
        nodes => { optional => 1 },
        disable => { optional => 1 },
        content => { optional => 1 },
        shared => { optional => 1 },
        bwlimit => { optional => 1 },
    };
}

# The token

my sub token_file {
    my ($storeid) = @_;
    return "$SECRETS/$storeid.pw";
}

my sub keep_token {
    my ($storeid, $token) = @_;
    die "a token of lunet is one word that begins with lunet_\n" if $token !~ /^lunet_\S+$/;
    mkdir $SECRETS;
    PVE::Tools::file_set_contents(token_file($storeid), "$token\n", 0600, 1);
}

# lunet

my sub transport { return $_[0]->{'lunet-transport'} // 'iscsi' }

my sub initiator { return transport($_[0]) eq 'nvme-tcp' ? 'Lunet::Proxmox::Nvme' : 'Lunet::Proxmox::Iscsi' }

my sub check_content {
    my ($scfg) = @_;
    die "containers need a device of the kernel, which 'lunet-transport libiscsi' makes none of\n"
        if transport($scfg) eq 'libiscsi' && $scfg->{content}->{rootdir};
}

my sub client {
    my ($storeid, $scfg) = @_;
    my $file = token_file($storeid);
    my $token = PVE::Tools::file_read_firstline($file);
    die "there is no token of storage '$storeid' in $file: pvesm set $storeid --password\n" if !$token;
    return Lunet::Proxmox::Rest->new(
        server => $scfg->{server},
        port => $scfg->{port},
        fingerprint => $scfg->{fingerprint},
        ca => $scfg->{'lunet-ca'},
        token => $token,
    );
}

my sub prefix {
    my ($storeid, $scfg) = @_;
    return $scfg->{'lunet-prefix'} // "$storeid-";
}

# lunet's name of a volume.
my sub name_of {
    my ($storeid, $scfg, $volname) = @_;
    my $name = prefix($storeid, $scfg) . $volname;
    die "the volume's name on the server, '$name', is longer than $LONGEST_NAME characters\n"
        if length($name) > $LONGEST_NAME;
    return $name;
}

# The name that the initiator of a node knows the storage's target by.
my sub subsystem {
    my ($scfg, $target) = @_;
    return $scfg->{target} if transport($scfg) ne 'nvme-tcp';
    return $target->{nqn} // die "target $scfg->{target} is not served over NVMe\n";
}

my sub volume_path { return '/volumes/' . Lunet::Proxmox::Rest::part($_[0]) }

my sub target_path { return '/targets/' . Lunet::Proxmox::Rest::part($_[0]->{target}) }

# The same, by asking lunet if it has to be.
my sub subsystem_of {
    my ($client, $scfg) = @_;
    return subsystem($scfg, transport($scfg) eq 'nvme-tcp' ? $client->get(target_path($scfg)) : undef);
}

# A volume as lunet has it; undef if there is none. In list context also its ETag.
my sub volume {
    my ($client, $name) = @_;
    return $client->get(volume_path($name), missing => 1);
}

my sub volume_there {
    my ($client, $name) = @_;
    my $volume = volume($client, $name);
    return $volume // die "lunet has no volume $name\n";
}

# The names that initiators see of a volume, which stay the same as long as it is there.
my sub names {
    my ($volume) = @_;
    my ($naa) = ($volume->{naa} // '') =~ /^([0-9a-f]{16,32})\z/;
    my ($uuid) = ($volume->{uuid} // '') =~ /^([0-9a-f-]{36})\z/;
    die "lunet does not tell the designators of volume $volume->{name}: a newer one is needed\n" if !$naa || !$uuid;
    return { naa => $naa, uuid => $uuid };
}

# The number of the LUN that a volume is of the storage's target; undef if it is none.
my sub lun_of {
    my ($scfg, $volume) = @_;
    my ($at) = grep { $_->{target} eq $scfg->{target} } @{ $volume->{luns} };
    return $at ? int($at->{lun}) : undef;
}

# Is it a volume of another storage, whose prefix begins with this one's? Those of this storage are LUNs of its target, or not yet
# of any.
my sub is_foreign {
    my ($scfg, $volume) = @_;
    return @{ $volume->{luns} } && !defined(lun_of($scfg, $volume));
}

my sub refuse_foreign {
    my ($scfg, $volume) = @_;
    die "volume $volume->{name} is a LUN of $volume->{luns}->[0]->{target}, and so of another storage than this one\n"
        if is_foreign($scfg, $volume);
}

# A free number, by chance, up to 255 as long as many of these are free. A node where a machine still has the disk of a volume that
# was deleted elsewhere has the next volume of that number in its place: the latest number would have one at once.
my sub free_lun {
    my ($scfg, $target) = @_;
    my %used = map { $_->{lun} => 1 } @{ $target->{luns} };
    my @free = grep { !$used{$_} } 0 .. 255;
    # libiscsi has no larger ones: some of its versions address them in a way that they are not found by.
    my $last = transport($scfg) eq 'libiscsi' ? 255 : $LAST_LUN;
    @free = grep { !$used{$_} } 0 .. $last if @free < 64;
    die "target $target->{name} has no free LUN up to $last\n" if !@free;
    # Not perl's own numbers, which the tasks of one daemon have in common.
    return $free[hex(substr(Lunet::Proxmox::Rest::random_key(), 0, 8)) % @free];
}

# Maps a volume in the storage's target, and returns its number. That is also done for a volume whose creation was cut off.
# Nobody needs a lock for it: lunet makes the change only if the target is still what the number was chosen by.
sub map_lun {
    my ($client, $scfg, $name) = @_;
    for (1 .. 50) {
        my $volume = volume_there($client, $name);
        my $lun = lun_of($scfg, $volume);
        return $lun if defined($lun);
        refuse_foreign($scfg, $volume);
        my ($target, $etag) = $client->get(target_path($scfg));
        $lun = free_lun($scfg, $target);
        my $path = target_path($scfg) . "/luns/$lun";
        my $unless = ['changed', 'exists', 'in-use', 'invalid'];
        my ($done, $code) = $client->change('PUT', $path, { volume => $name }, match => $etag, unless => $unless);
        return $lun if $done;
    }
    die "volume $name cannot be mapped in $scfg->{target}: the target does not come to rest\n";
}

# Makes the target, if there is none of this name.
my sub make_target {
    my ($storeid, $scfg) = @_;
    my $client = client($storeid, $scfg);
    my $target = $client->get(target_path($scfg), missing => 1);
    my $nvme = transport($scfg) eq 'nvme-tcp';
    die "target $scfg->{target} is not served over NVMe: give it protocols = [\"iscsi\", \"nvme\"]\n"
        if $target && $nvme && !defined($target->{nqn});
    return if $target;
    my $wanted = { name => $scfg->{target}, nvme => $nvme ? JSON::PP::true() : JSON::PP::false() };
    $client->change('POST', '/targets', $wanted, done_by => ['exists']);
}

# Designators of volumes. The plugin chooses that of each volume that it makes: 32 digits, of which the first are those of lunet's
# own. So a volume is known for good, whatever its name: nobody takes one of the same name for it, whether on the server, after a
# lost answer, or on a node that has a disk of it.
my $NAA = '6024c4e';

my sub new_naa { return $NAA . substr(Lunet::Proxmox::Rest::random_key(), 0, 25) }

# That of a volume that takes the place of another one under a new name. It says of which volume it is the copy, and, without that
# one, of which name. With the names on the server.
my sub naa_of_renamed {
    my ($naa, $from, $to) = @_;
    my $copy = substr(sha256_hex("$naa/$from/$to"), 0, 13);
    return $NAA . $copy . substr(sha256_hex("$copy/$from/$to"), 0, 12);
}

# Has this volume been made to take the place of one of that name?
my sub was_named {
    my ($volume, $from) = @_;
    my ($copy, $of) = ($volume->{naa} // '') =~ /^$NAA([0-9a-f]{13})([0-9a-f]{12})\z/ or return 0;
    return $of eq substr(sha256_hex("$copy/$from/$volume->{name}"), 0, 12);
}

# Removes the volume with this name and designator, with its LUN; without `force` only if it has none. One that is not there is no
# error: that was the purpose. A volume that has got the name since is another one, and stays.
my sub remove_volume {
    my ($client, $name, $naa, $force) = @_;
    my $path = volume_path($name) . ($force ? '?force=true' : '');
    for (1 .. 10) {
        my ($volume, $etag) = volume($client, $name);
        return if !$volume || $volume->{naa} ne $naa;
        die "volume $name has got a LUN meanwhile\n" if !$force && @{ $volume->{luns} };
        my ($done, $code) = $client->change('DELETE', $path, undef, match => $etag, unless => ['not-found', 'changed']);
        return if $done || $code eq 'not-found';
    }
    die "volume $name cannot be removed: it does not come to rest\n";
}

# Makes a volume by a request. If lunet has one of this name already, it is this one if it has the designator that was sent with an
# earlier request, whose answer was lost.
my sub make {
    my ($client, $name, $path, $body) = @_;
    return if eval { $client->change('POST', $path, $body); 1 };
    my $error = $@;
    die $error if !ref($error) || $error->code ne 'exists';
    my $volume = volume($client, $name);
    die $error if !$volume || ($volume->{naa} // '') ne $body->{naa};
}

# The same, and maps it; leaves nothing if that fails.
my sub make_mapped {
    my ($client, $scfg, $name, $path, $body) = @_;
    $body->{naa} = new_naa();
    make($client, $name, $path, $body);
    eval { map_lun($client, $scfg, $name) };
    if (my $error = $@) {
        eval { remove_volume($client, $name, $body->{naa}, 1) };
        warn $@ if $@;
        die $error;
    }
}

# Hooks of the configuration

sub on_add_hook {
    my ($class, $storeid, $scfg, %secret) = @_;

    die "a token of lunet is needed: --password\n" if !defined($secret{password});
    check_content($scfg);
    keep_token($storeid, $secret{password});
    eval { make_target($storeid, $scfg) };
    if (my $error = $@) {
        unlink token_file($storeid);
        die $error;
    }
    return;
}

sub on_update_hook {
    my ($class, $storeid, $update, %secret) = @_;

    return if !exists($secret{password});
    die "without a token the storage cannot be used: set another one\n" if !defined($secret{password});
    keep_token($storeid, $secret{password});
    return;
}

sub on_update_hook_full {
    my ($class, $storeid, $scfg, $update, $delete, $secret) = @_;

    check_content({ %$scfg, %$update });
    return $class->on_update_hook($storeid, $update, %{ $secret // {} });
}

# Volumes stay where they are.
sub on_delete_hook {
    my ($class, $storeid, $scfg) = @_;

    unlink token_file($storeid);
    return;
}

# Names

sub parse_volname {
    my ($class, $volname) = @_;

    if ($volname =~ m/^((vm|base)-(\d+)-[A-Za-z0-9][A-Za-z0-9_.\-]*)\z/) {
        return ('images', $1, $3, undef, undef, $2 eq 'base', 'raw');
    }
    die "unable to parse lunet volume name '$volname'\n";
}

# What lunet has told

# What is remembered is of this storage at this server, as this token sees it. Daemons run for days, and storages are changed
# meanwhile.
my sub key_of {
    my ($storeid, $scfg, $what) = @_;
    my $token = sha256_hex(PVE::Tools::file_read_firstline(token_file($storeid)) // '');
    return join('|', $storeid, $scfg->{server}, $scfg->{port} // '', $token, $what);
}

# By key: { names, since }.
my $names_known = {};

my sub forget_names {
    my ($storeid, $scfg, $name) = @_;
    delete $names_known->{ key_of($storeid, $scfg, $name) };
}

my sub remember_names {
    my ($storeid, $scfg, $volume) = @_;
    my $now = time();
    delete @$names_known{ grep { abs($now - $names_known->{$_}->{since}) > $REMEMBERED } keys %$names_known };
    my $names = names($volume);
    $names_known->{ key_of($storeid, $scfg, $volume->{name}) } = { names => $names, since => $now };
    return $names;
}

# The designators of a volume. Proxmox asks for the path of a disk several times in a row.
my sub known_names {
    my ($storeid, $scfg, $name) = @_;
    my $known = $names_known->{ key_of($storeid, $scfg, $name) };
    return $known->{names} if $known && abs(time() - $known->{since}) <= $REMEMBERED;
    return remember_names($storeid, $scfg, volume_there(client($storeid, $scfg), $name));
}

# Snapshots

my sub snapshots {
    my ($client, $name) = @_;
    return $client->get(volume_path($name) . '/snapshots', missing => 1) // [];
}

# The snapshot of a volume; undef if there is none.
my sub snapshot {
    my ($client, $name, $snap) = @_;
    my ($found) = grep { $_->{snapshot} eq $snap } @{ snapshots($client, $name) };
    return $found;
}

# What the volumes are called by which this node looks at a snapshot of this name: clones, whose names no machine's volume can have.
my sub looks_of {
    my ($storeid, $scfg, $volname, $snap) = @_;
    my $what = join('/', PVE::INotify::nodename(), $volname, $snap);
    return prefix($storeid, $scfg) . 'look-' . substr(sha256_hex($what), 0, 12) . '-';
}

# The one by which it looks at the snapshot that has this name now: an older one may have had it.
my sub look_of {
    my ($storeid, $scfg, $client, $volname, $snap) = @_;
    my $name = name_of($storeid, $scfg, $volname);
    my $volume = volume_there($client, $name);
    my $now = snapshot($client, $name, $snap) // die "volume $name has no snapshot '$snap'\n";
    my $which = join('/', $volume->{naa}, $now->{uid} // $now->{created});
    return looks_of($storeid, $scfg, $volname, $snap) . substr(sha256_hex($which), 0, 12);
}

# Where a volume is

# QEMU's address of a volume.
my sub url {
    my ($storeid, $scfg, $name) = @_;
    my $lun = map_lun(client($storeid, $scfg), $scfg, $name);
    return "iscsi://$scfg->{portal}/$scfg->{target}/$lun";
}

sub path {
    my ($class, $scfg, $volname, $storeid, $snapname) = @_;

    my ($vtype, undef, $vmid) = $class->parse_volname($volname);
    my $name = $snapname
        ? look_of($storeid, $scfg, client($storeid, $scfg), $volname, $snapname)
        : name_of($storeid, $scfg, $volname);
    my $path = transport($scfg) eq 'libiscsi'
        ? url($storeid, $scfg, $name)
        : initiator($scfg)->can('path')->(known_names($storeid, $scfg, $name));
    return wantarray ? ($path, $vmid, $vtype) : $path;
}

# The base class calls this without the storage's name, by which the server's token is found.
sub filesystem_path {
    my ($class, $scfg, $volname, $snapname) = @_;
    die "the path of a volume of lunet needs the storage's name\n";
}

sub qemu_blockdev_options {
    my ($class, $scfg, $storeid, $volname, $machine_version, $options) = @_;

    my $path = $class->path($scfg, $volname, $storeid, $options->{'snapshot-name'});
    return { driver => 'host_device', filename => "$path" } if $path !~ m|^iscsi://([^/]+)/([^/]+)/(\d+)$|;
    return {
        driver => 'iscsi',
        transport => 'tcp',
        portal => "$1",
        target => "$2",
        lun => int($3),
        'initiator-name' => Lunet::Proxmox::Iscsi::name(),
    };
}

# Volumes

sub alloc_image {
    my ($class, $storeid, $scfg, $vmid, $fmt, $name, $size) = @_;

    die "unsupported format '$fmt'\n" if $fmt ne 'raw';
    die "illegal name '$name' - should be 'vm-$vmid-*'\n" if $name && $name !~ m/^vm-$vmid-/;
    $name ||= $class->find_free_diskname($storeid, $scfg, $vmid);

    # Kilobytes.
    my $volume = { name => name_of($storeid, $scfg, $name), size => int($size) * 1024 };
    my $make = sub { make_mapped(client($storeid, $scfg), $scfg, $volume->{name}, '/volumes', $volume) };
    Lunet::Proxmox::Limit::within($LOCKED, $make);
    return $name;
}

# Each step can be done again.
my sub free {
    my ($class, $storeid, $scfg, $volname) = @_;
    my $client = client($storeid, $scfg);
    my $name = name_of($storeid, $scfg, $volname);
    my $volume = volume($client, $name) // return;
    refuse_foreign($scfg, $volume);
    # First this node lets go: a disk whose LUN is gone fails with errors.
    $class->deactivate_volume($storeid, $scfg, $volname);
    for my $one (@{ snapshots($client, $name) }) {
        $class->volume_snapshot_delete($scfg, $storeid, $volname, $one->{snapshot});
    }
    remove_volume($client, $name, $volume->{naa}, 1);
    forget_names($storeid, $scfg, $name);
}

sub free_image {
    my ($class, $storeid, $scfg, $volname, $is_base, $format) = @_;

    Lunet::Proxmox::Limit::within($LOCKED, sub { free($class, $storeid, $scfg, $volname) });
    return;
}

# The volumes whose names begin as those of a storage, with the names that Proxmox has for them.
my sub named {
    my ($storeid, $scfg, $cache) = @_;
    my $all = $cache->{lunet}->{ key_of($storeid, $scfg, 'volumes') } //= client($storeid, $scfg)->get('/volumes');
    my $prefix = prefix($storeid, $scfg);
    return map { $_->{name} =~ m/^\Q$prefix\E((?:vm|base)-(\d+)-.+)\z/ ? { %$_, volname => $1, vmid => $2 } : () } @$all;
}

# Those of them that are the storage's.
my sub volumes {
    my ($storeid, $scfg, $cache) = @_;
    return grep { !is_foreign($scfg, $_) } named($storeid, $scfg, $cache);
}

# A name that lunet has not given. Clones have no ties to their origin, so no name says what a volume was made from.
sub find_free_diskname {
    my ($class, $storeid, $scfg, $vmid, $format, $suffix) = @_;

    my @taken = map { "$storeid:$_->{volname}" } named($storeid, $scfg, {});
    return PVE::Storage::Plugin::get_next_vm_diskname(\@taken, $storeid, $vmid, undef, $scfg);
}

sub list_images {
    my ($class, $storeid, $scfg, $vmid, $vollist, $cache) = @_;

    my %wanted = map { $_ => 1 } @{ $vollist // [] };
    my @list;
    for my $volume (volumes($storeid, $scfg, $cache // {})) {
        my $volid = "$storeid:$volume->{volname}";
        next if $vollist ? !$wanted{$volid} : defined($vmid) && $volume->{vmid} ne $vmid;
        push @list, {
            volid => $volid,
            format => 'raw',
            size => int($volume->{size_bytes}),
            vmid => $volume->{vmid},
            defined($volume->{used_bytes}) ? (used => int($volume->{used_bytes})) : (),
        };
    }
    return \@list;
}

sub volume_size_info {
    my ($class, $scfg, $storeid, $volname, $timeout) = @_;

    my $ask = sub { volume_there(client($storeid, $scfg), name_of($storeid, $scfg, $volname)) };
    my $volume = Lunet::Proxmox::Limit::within($timeout || $Lunet::Proxmox::Rest::READ_TIMEOUT, $ask);
    my $size = int($volume->{size_bytes});
    return wantarray ? ($size, 'raw', int($volume->{used_bytes} // $size), undef) : $size;
}

sub volume_resize {
    my ($class, $scfg, $storeid, $volname, $size, $running, $snapname) = @_;

    die "a snapshot of lunet has no other size\n" if $snapname;
    my $client = client($storeid, $scfg);
    my $name = name_of($storeid, $scfg, $volname);
    my $volume = volume_there($client, $name);
    my $block = $volume->{block_size} || 512;
    $size = POSIX::ceil($size / $block) * $block;
    die "volumes of lunet do not shrink\n" if $size < $volume->{size_bytes};
    # Of the size already: a task that was cut off after this.
    $client->change('PATCH', volume_path($name), { size => int($size) }) if $size > $volume->{size_bytes};
    return 1 if transport($scfg) eq 'libiscsi';
    initiator($scfg)->can('resized')->(subsystem_of($client, $scfg), names($volume), $size);
    return 1;
}

# Snapshots and clones

my sub snapshot_path {
    my ($name, $snap) = @_;
    return volume_path($name) . '/snapshots/' . Lunet::Proxmox::Rest::part($snap);
}

sub volume_snapshot {
    my ($class, $scfg, $storeid, $volname, $snap) = @_;

    # What this node has in its cache belongs to the snapshot.
    my $name = name_of($storeid, $scfg, $volname);
    Lunet::Proxmox::Kernel::flush($class->path($scfg, $volname, $storeid)) if transport($scfg) ne 'libiscsi';
    my $client = client($storeid, $scfg);
    # After a lost answer, `exists` means the own one only if there was none before.
    die "there is a snapshot $name\@$snap already\n" if snapshot($client, $name, $snap);
    my $path = volume_path($name) . '/snapshots';
    $client->change('POST', $path, { snapshot => $snap }, done_by => ['exists']);
    return;
}

sub volume_snapshot_delete {
    my ($class, $scfg, $storeid, $volname, $snap, $running) = @_;

    my $client = client($storeid, $scfg);
    # What an interrupted task of this node has left of it.
    $class->deactivate_volume($storeid, $scfg, $volname, $snap);
    my $name = name_of($storeid, $scfg, $volname);
    $client->change('DELETE', snapshot_path($name, $snap), undef, unless => ['not-found']);
    return;
}

sub volume_rollback_is_possible {
    my ($class, $scfg, $storeid, $volname, $snap, $blockers) = @_;

    my $name = name_of($storeid, $scfg, $volname);
    die "volume $name has no snapshot '$snap'\n" if !snapshot(client($storeid, $scfg), $name, $snap);
    return 1;
}

sub volume_snapshot_rollback {
    my ($class, $scfg, $storeid, $volname, $snap) = @_;

    # The machine is off. No cache of this node may keep what was there: its disk comes back with the next start.
    $class->deactivate_volume($storeid, $scfg, $volname);
    my $name = name_of($storeid, $scfg, $volname);
    my $body = { snapshot => $snap, force => JSON::PP::true() };
    client($storeid, $scfg)->change('POST', volume_path($name) . '/rollback', $body);
    return;
}

sub volume_snapshot_info {
    my ($class, $scfg, $storeid, $volname) = @_;

    my $name = name_of($storeid, $scfg, $volname);
    my $info = {};
    for my $one (@{ snapshots(client($storeid, $scfg), $name) }) {
        $info->{ $one->{snapshot} } = {
            id => join(':', "$name\@$one->{snapshot}", $one->{uid} // $one->{created}),
            timestamp => int($one->{created}),
            defined($one->{size_bytes}) ? ('virtual-size' => int($one->{size_bytes})) : (),
        };
    }
    return $info;
}

sub rename_snapshot {
    my ($class) = @_;

    die "rename_snapshot is not supported for $class\n";
}

sub volume_qemu_snapshot_method {
    return 'storage';
}

# No layer of the node sees a snapshot, so a container's file system has to be frozen for it.
sub volume_snapshot_needs_fsfreeze {
    return 1;
}

# Makes a clone of a volume, or of its snapshot, as another volume of the storage.
my sub clone {
    my ($storeid, $scfg, $from, $to, $snap) = @_;
    my $body = { name => $to };
    $body->{snapshot} = $snap if defined($snap);
    make_mapped(client($storeid, $scfg), $scfg, $to, volume_path($from) . '/clone', $body);
}

sub clone_image {
    my ($class, $scfg, $storeid, $volname, $vmid, $snap) = @_;

    my $is_base = ($class->parse_volname($volname))[5];
    die "clone_image only works on base images and snapshots\n" if !$is_base && !$snap;
    my $name = $class->find_free_diskname($storeid, $scfg, $vmid);
    my ($from, $to) = map { name_of($storeid, $scfg, $_) } $volname, $name;
    Lunet::Proxmox::Limit::within($LOCKED, sub { clone($storeid, $scfg, $from, $to, $snap || undef) });
    return $name;
}

# Another name for a volume. lunet names a volume once, so it becomes a clone, which shares all its blocks, and is removed. The clone
# has no LUN until then: one without, with the designator of a copy of this volume, is what a task that was cut off has left. It
# may be out of date, so it is made anew.
my sub rename_to {
    my ($class, $storeid, $scfg, $volname, $new) = @_;

    my $client = client($storeid, $scfg);
    my ($from, $to) = map { name_of($storeid, $scfg, $_) } $volname, $new;
    my $volume = volume_there($client, $from);
    refuse_foreign($scfg, $volume);
    die "volume $from has snapshots, which cannot get another name\n" if @{ snapshots($client, $from) };
    my $naa = naa_of_renamed($volume->{naa}, $from, $to);
    if (my $there = volume($client, $to)) {
        die "target volume '$new' already exists\n" if $there->{naa} ne $naa || @{ $there->{luns} };
        remove_volume($client, $to, $naa, 0);
    }
    $class->deactivate_volume($storeid, $scfg, $volname);
    make($client, $to, volume_path($from) . '/clone', { name => $to, naa => $naa });
    remove_volume($client, $from, $volume->{naa}, 1);
    forget_names($storeid, $scfg, $from);
    map_lun($client, $scfg, $to);
}

sub create_base {
    my ($class, $storeid, $scfg, $volname) = @_;

    my $is_base = ($class->parse_volname($volname))[5];
    die "create_base not possible with base image\n" if $is_base;
    (my $new = $volname) =~ s/^vm-/base-/;
    my $client = client($storeid, $scfg);
    my ($from, $to) = map { name_of($storeid, $scfg, $_) } $volname, $new;
    my $base = volume($client, $to);
    my $rename = sub {
        # Of a task that was cut off at its end.
        return map_lun($client, $scfg, $to) if $base && was_named($base, $from) && !volume($client, $from);
        rename_to($class, $storeid, $scfg, $volname, $new);
    };
    Lunet::Proxmox::Limit::within($LOCKED, $rename);
    return $new;
}

# The name under which a task that was cut off has left a volume that was to be the machine's: as a clone that is not in use yet, or
# in its place. Nothing if there is none.
my sub renamed_before {
    my ($storeid, $scfg, $volname, $vmid) = @_;
    my $from = name_of($storeid, $scfg, $volname);
    my $volume = volume(client($storeid, $scfg), $from);
    my @own = grep { $_->{vmid} eq $vmid && was_named($_, $from) } volumes($storeid, $scfg, {});
    if (!$volume) {
        die "lunet has no volume $from any more: it has become '$own[0]->{volname}' (qm rescan)\n" if @own;
        die "lunet has no volume $from\n";
    }
    my ($left) = grep { !@{ $_->{luns} } && $_->{naa} eq naa_of_renamed($volume->{naa}, $from, $_->{name}) } @own;
    return $left ? $left->{volname} : undef;
}

sub rename_volume {
    my ($class, $scfg, $storeid, $volname, $vmid, $new) = @_;

    my $rename = sub {
        $vmid = ($class->parse_volname($new))[2] if $new;
        my $before = renamed_before($storeid, $scfg, $volname, $vmid);
        $new ||= $before // $class->find_free_diskname($storeid, $scfg, $vmid);
        rename_to($class, $storeid, $scfg, $volname, $new);
    };
    Lunet::Proxmox::Limit::within($LOCKED, $rename);
    return "$storeid:$new";
}

sub volume_has_feature {
    my ($class, $scfg, $feature, $storeid, $volname, $snapname, $running, $opts) = @_;

    my $features = {
        snapshot => { current => 1 },
        clone => { base => 1, snap => 1 },
        template => { current => 1 },
        copy => { base => 1, current => 1, snap => 1 },
        sparseinit => { base => 1, current => 1 },
        rename => { current => 1 },
    };
    my $is_base = ($class->parse_volname($volname))[5];
    my $key = $snapname ? 'snap' : $is_base ? 'base' : 'current';
    return $features->{$feature}->{$key} ? 1 : undef;
}

# On a node

sub check_connection {
    my ($class, $storeid, $scfg) = @_;

    my $client = client($storeid, $scfg);
    my ($status, $json) = $client->exchange('GET', '/me', undef, timeout => $Lunet::Proxmox::Rest::STATUS_TIMEOUT);
    if (!$status) {
        # A server that is off is one thing; a certificate that is not the right one has to be seen.
        die "$json\n" if $json =~ /certificate|fingerprint|SSL/i;
        return 0;
    }
    $client->refuse('/me', $status, $json) if $status != 200;
    die "the token has the role $json->{role}: it has to be an administrator's, to delete volumes\n"
        if $json->{role} ne 'administrator';
    return 1;
}

# Lets this node in, unless the target is for it already. Where the target's rules are networks, a name more would shut out the
# others: lunet refuses it, and the login shows whether this node is in one of them.
my sub admit {
    my ($client, $scfg, $target) = @_;
    my $name = initiator($scfg)->can('name')->();
    my $who = transport($scfg) eq 'nvme-tcp' ? $target->{hosts} : $target->{initiators};
    return if $target->{for} eq 'everybody' || grep { $_ eq $name } split(/[\s,]+/, $who // '');
    my $path = target_path($scfg) . '/initiators';
    $client->change('POST', $path, { initiators => [$name] }, unless => ['changes-access']);
}

# Takes the disks away that this node has of volumes which are no more: another node, or a person, has deleted them.
my sub prune {
    my ($client, $subsystem) = @_;
    my @local = Lunet::Proxmox::Iscsi::volumes_of($subsystem) or return;
    return if !Lunet::Proxmox::Limit::due("prune-$subsystem", $Lunet::Proxmox::Iscsi::RETRIES);
    my %there = map { ($_->{naa} => 1) } @{ $client->get('/volumes', timeout => $Lunet::Proxmox::Rest::STATUS_TIMEOUT) };
    for my $naa (grep { !$there{$_} } @local) {
        eval { Lunet::Proxmox::Iscsi::deactivate($subsystem, { naa => $naa }) };
        warn "left of a volume that lunet does not have any more: $@" if $@;
    }
}

# Proxmox asks for this every few seconds, of one storage after the other.
sub activate_storage {
    my ($class, $storeid, $scfg, $cache) = @_;

    Lunet::Proxmox::Limit::within($READY, sub {
        my $client = client($storeid, $scfg);
        my $target = $client->get(target_path($scfg), timeout => $Lunet::Proxmox::Rest::STATUS_TIMEOUT);
        admit($client, $scfg, $target);
        return if transport($scfg) eq 'libiscsi';
        my $subsystem = subsystem($scfg, $target);
        # For `status`, which has the same cache.
        $cache->{lunet}->{ key_of($storeid, $scfg, 'subsystem') } = $subsystem;
        initiator($scfg)->can('connect')->($subsystem, $scfg->{portal});
        prune($client, $subsystem) if transport($scfg) eq 'iscsi';
    });
}

sub deactivate_storage {
    my ($class, $storeid, $scfg, $cache) = @_;

    return if transport($scfg) eq 'libiscsi';
    my $target = client($storeid, $scfg)->get(target_path($scfg));
    initiator($scfg)->can('disconnect')->(subsystem($scfg, $target));
}

# Takes a volume away from this node.
my sub let_go {
    my ($client, $scfg, $volume) = @_;
    return if transport($scfg) eq 'libiscsi';
    initiator($scfg)->can('deactivate')->(subsystem_of($client, $scfg), names($volume));
}

# Removes what this node has left of looking at a snapshot of this name, but for the volume `but`.
my sub leave_looks {
    my ($storeid, $scfg, $volname, $snap, $but) = @_;
    my $client = client($storeid, $scfg);
    my $looks = looks_of($storeid, $scfg, $volname, $snap);
    for my $volume (grep { $_->{name} =~ /^\Q$looks\E[0-9a-f]{12}\z/ } @{ $client->get('/volumes') }) {
        next if $volume->{name} eq $but;
        let_go($client, $scfg, $volume);
        remove_volume($client, $volume->{name}, $volume->{naa}, 1);
        forget_names($storeid, $scfg, $volume->{name});
    }
}

sub activate_volume {
    my ($class, $storeid, $scfg, $volname, $snapname, $cache, $hints) = @_;

    my $client = client($storeid, $scfg);
    my $name = name_of($storeid, $scfg, $volname);
    if ($snapname) {
        my $look = look_of($storeid, $scfg, $client, $volname, $snapname);
        leave_looks($storeid, $scfg, $volname, $snapname, $look);
        clone($storeid, $scfg, $name, $look, $snapname) if !volume($client, $look);
        $name = $look;
    }
    my $lun = map_lun($client, $scfg, $name);
    return 1 if transport($scfg) eq 'libiscsi';
    my $volume = volume_there($client, $name);
    my $names = remember_names($storeid, $scfg, $volume);
    my $number = transport($scfg) eq 'nvme-tcp' ? $lun + 1 : $lun;
    initiator($scfg)->can('activate')->(subsystem_of($client, $scfg), $names, $number, $volume->{size_bytes});
    return 1;
}

# The volume itself stays mapped: after a migration another node uses it.
sub deactivate_volume {
    my ($class, $storeid, $scfg, $volname, $snapname, $cache) = @_;

    if ($snapname) {
        leave_looks($storeid, $scfg, $volname, $snapname, '');
        return 1;
    }
    my $client = client($storeid, $scfg);
    my $volume = volume($client, name_of($storeid, $scfg, $volname));
    let_go($client, $scfg, $volume) if $volume;
    return 1;
}

sub map_volume {
    my ($class, $storeid, $scfg, $volname, $snapname, $hints) = @_;

    my ($path) = $class->path($scfg, $volname, $storeid, $snapname);
    return $path;
}

sub unmap_volume {
    return 1;
}

# Not active without a way for data, however well the server answers.
sub status {
    my ($class, $storeid, $scfg, $cache) = @_;

    my $limit = $Lunet::Proxmox::Rest::STATUS_TIMEOUT;
    return Lunet::Proxmox::Limit::within($limit, sub {
        my $client = client($storeid, $scfg);
        if (transport($scfg) ne 'libiscsi') {
            my $subsystem = $cache->{lunet}->{ key_of($storeid, $scfg, 'subsystem') } // subsystem_of($client, $scfg);
            return if !initiator($scfg)->can('is_up')->($subsystem);
        }
        my $room = $client->get('/stats')->{room} // return;
        my ($total, $free) = map { int($room->{$_}) } qw(size_bytes available_bytes);
        return ($total, $free, $total - $free, 1);
    });
}

# Copies to and from other storages

sub volume_export_formats {
    my ($class, $scfg, $storeid, $volname, $snapshot, $base_snapshot, $with_snapshots) = @_;

    return () if defined($snapshot) || defined($base_snapshot) || $with_snapshots;
    # What is copied by these is a device.
    return transport($scfg) eq 'libiscsi' ? () : ('raw+size');
}

sub volume_import_formats {
    my ($class, $scfg, $storeid, $volname, $snapshot, $base_snapshot, $with_snapshots) = @_;

    return $class->volume_export_formats($scfg, $storeid, $volname, $snapshot, $base_snapshot, $with_snapshots);
}

sub volume_export {
    my ($class, $scfg, $storeid, $fh, $volname, $format, $snapshot, $base_snapshot, $with_snapshots) = @_;

    my @formats = $class->volume_export_formats(
        $scfg, $storeid, $volname, $snapshot, $base_snapshot, $with_snapshots,
    );
    die "volume export format $format not available for $class\n" if !grep { $_ eq $format } @formats;
    my $size = $class->volume_size_info($scfg, $storeid, $volname);
    $class->activate_volume($storeid, $scfg, $volname);
    my $path = $class->path($scfg, $volname, $storeid);
    PVE::Storage::Plugin::write_common_header($fh, $size);
    PVE::Tools::run_command(['dd', "if=$path", 'bs=1M', 'status=none'], output => '>&' . fileno($fh));
}

sub volume_import {
    my (
        $class, $scfg, $storeid, $fh, $volname, $format, $snapshot, $base_snapshot, $with_snapshots, $allow_rename,
    ) = @_;

    my @formats = $class->volume_import_formats(
        $scfg, $storeid, $volname, $snapshot, $base_snapshot, $with_snapshots,
    );
    die "volume import format $format not available for $class\n" if !grep { $_ eq $format } @formats;
    my (undef, undef, $vmid, undef, undef, $is_base) = $class->parse_volname($volname);
    (my $name = $volname) =~ s/^base-/vm-/;
    my $client = client($storeid, $scfg);
    if (grep { volume($client, name_of($storeid, $scfg, $_)) } $volname, $name) {
        die "volume '$volname' already exists\n" if !$allow_rename;
        warn "volume '$volname' already exists - importing with a different name\n";
        $name = undef;
    }
    my ($size) = PVE::Storage::Plugin::read_common_header($fh);
    $name = $class->alloc_image($storeid, $scfg, $vmid, 'raw', $name, POSIX::ceil($size / 1024));
    eval {
        $class->activate_volume($storeid, $scfg, $name);
        my $path = $class->path($scfg, $name, $storeid);
        # The volume is new, so zeroes need not be written.
        PVE::Tools::run_command(
            ['dd', "of=$path", 'conv=sparse,notrunc,fsync', 'bs=64k', 'status=none'],
            input => '<&' . fileno($fh),
        );
        $class->deactivate_volume($storeid, $scfg, $name);
        $name = $class->create_base($storeid, $scfg, $name) if $is_base;
    };
    if (my $error = $@) {
        eval { $class->free_image($storeid, $scfg, $name, 0, 'raw') };
        warn $@ if $@;
        die $error;
    }
    return "$storeid:$name";
}

1;
