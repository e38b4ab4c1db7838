package Lunet::Proxmox::Iscsi;

# A volume as a SCSI disk of the kernel's initiator (open-iscsi), over one or several portals.
#
# Sessions scan by hand (node.session.scan = manual): a node has only the disks of the volumes that are active on it, so nothing
# on it looks for partitions or LVM in the disks of machines that run elsewhere, and no disk is left of what another node deletes.

use strict;
use warnings;

use IO::Socket::IP;

use Lunet::Proxmox::Kernel;
use PVE::Tools qw(run_command);

*attribute = \&Lunet::Proxmox::Kernel::attribute;
*clean = \&Lunet::Proxmox::Kernel::clean;
*entries = \&Lunet::Proxmox::Kernel::entries;

# The file with this machine's name as an initiator.
our $INITIATOR = '/etc/iscsi/initiatorname.iscsi';

# The name of this machine as an initiator.
sub name {
    open(my $fh, '<', $INITIATOR) or die "$INITIATOR: $!: install open-iscsi\n";
    while (my $line = <$fh>) {
        return $1 if $line =~ /^\s*InitiatorName\s*=\s*([a-z0-9.:\-]+)\s*$/;
    }
    die "$INITIATOR has no InitiatorName\n";
}

# The sessions with a target: list of { session, host, portal, up }.
sub sessions {
    my ($target) = @_;
    my @found;
    for my $session (entries('class/iscsi_session', qr/session\d+/)) {
        next if (attribute("class/iscsi_session/$session/targetname") // '') ne $target;
        my $place = readlink("$Lunet::Proxmox::Kernel::SYS/class/iscsi_session/$session") // '';
        my ($host) = $place =~ m|/host(\d+)/| or next;
        (my $connection = $session) =~ s/session(\d+)/connection$1:0/;
        my $address = attribute("class/iscsi_connection/$connection/persistent_address") // '';
        my $port = attribute("class/iscsi_connection/$connection/persistent_port") // '';
        $address = "[$address]" if $address =~ /:/;
        my $up = (attribute("class/iscsi_session/$session/state") // '') eq 'LOGGED_IN';
        push @found, { session => $session, host => $host, portal => "$address:$port", up => $up };
    }
    return @found;
}

# The portals of a target that open-iscsi has records of.
sub records {
    my ($target) = @_;
    my @portals;
    my $collect = sub { push @portals, clean($1) if $_[0] =~ /^(\S+:\d+),\S+\s+\Q$target\E\s*$/ };
    # It ends with an error if it has none at all.
    eval { run_command(['iscsiadm', '-m', 'node'], outfunc => $collect, errfunc => sub { }) };
    return @portals;
}

# Does somebody listen there? A login without an answer takes far longer.
sub listens {
    my ($portal) = @_;
    my ($host, $port) = $portal =~ /^\[?(.*?)\]?:(\d+)$/ or return 0;
    return IO::Socket::IP->new(PeerHost => $host, PeerPort => $port, Timeout => 2) ? 1 : 0;
}

# Logs in wherever there is no session yet. Dies if there is none afterwards.
sub connect {
    my ($target, $portal) = @_;
    $target = clean($target);
    $portal = clean($portal =~ /:\d+$/ ? $portal : "$portal:3260");
    my %has = map { $_->{portal} => 1 } sessions($target);
    my @portals = records($target);
    if (!@portals || !%has) {
        run_command(['iscsiadm', '-m', 'discovery', '-t', 'sendtargets', '-p', $portal], outfunc => sub { });
        @portals = records($target);
        die "$portal does not tell of the target $target: is this node let in?\n" if !@portals;
    }
    my @node = ('iscsiadm', '-m', 'node', '-T', $target);
    for my $new (grep { !$has{$_} } @portals) {
        next if !listens($new);
        for my $setting (['node.session.scan', 'manual'], ['node.session.initial_login_retry_max', '0']) {
            run_command([@node, '-p', $new, '-o', 'update', '-n', $setting->[0], '-v', $setting->[1]]);
        }
        eval { run_command([@node, '-p', $new, '--login'], outfunc => sub { }) };
        warn "no session with $target at $new: $@" if $@;
    }
    die "there is no session with $target\n" if !sessions($target);
}

# Ends the sessions.
sub disconnect {
    my ($target) = @_;
    return if !sessions($target);
    run_command(['iscsiadm', '-m', 'node', '-T', clean($target), '--logout'], outfunc => sub { });
}

# What the kernel has at a LUN of a host: { address, disk, wwid }, or undef.
sub at {
    my ($host, $lun) = @_;
    my $address = "$host:0:0:$lun";
    my ($disk) = entries("bus/scsi/devices/$address/block", qr/sd[a-z]+/) or return undef;
    return { address => $address, disk => $disk, wwid => attribute("bus/scsi/devices/$address/wwid") // '' };
}

# The disks of a volume on this node, by its designator.
sub disks {
    my ($target, $names) = @_;
    my @found;
    for my $session (sessions($target)) {
        for my $address (entries('bus/scsi/devices', qr/$session->{host}:0:0:\d+/)) {
            my ($lun) = $address =~ /(\d+)$/;
            my $at = at($session->{host}, $lun) or next;
            push @found, $at if $at->{wwid} eq "naa.$names->{naa}";
        }
    }
    return @found;
}

# Takes a disk away. Whoever holds it keeps it.
sub remove {
    my ($at) = @_;
    die "/dev/$at->{disk} is in use on this node\n" if Lunet::Proxmox::Kernel::is_held($at->{disk});
    Lunet::Proxmox::Kernel::set_attribute("bus/scsi/devices/$at->{address}/delete", 1);
    my $gone = sub { !-e "$Lunet::Proxmox::Kernel::SYS/bus/scsi/devices/$at->{address}" };
    Lunet::Proxmox::Kernel::wait_for($gone) or die "/dev/$at->{disk} does not go away\n";
}

# The paths below /dev by which a volume is found, the best first. They have the volume's designator in them, so none can be that
# of another volume.
sub paths {
    my ($names) = @_;
    my $id = "$Lunet::Proxmox::Kernel::DEV/disk/by-id";
    return ("$id/dm-uuid-mpath-3$names->{naa}", "$id/scsi-3$names->{naa}");
}

# The path of a volume, whether it is there or not.
sub path {
    my ($names) = @_;
    my @paths = paths($names);
    return (grep { -e $_ } @paths)[0] // $paths[-1];
}

# Makes the volume's disk on this node, one for each session, and a map over them if there are several.
sub activate {
    my ($target, $names, $lun) = @_;
    my $wanted = "naa.$names->{naa}";
    my @sessions = grep { $_->{up} } sessions($target);
    die "no session with $target is up\n" if !@sessions;
    my @disks;
    for my $session (@sessions) {
        my $host = $session->{host};
        my $at = at($host, $lun);
        # Left of a volume that had the number before.
        if ($at && $at->{wwid} ne $wanted) {
            $at->{wwid} =~ /^naa\.([0-9a-f]+)\z/ ? deactivate($target, { naa => $1 }) : remove($at);
            $at = undef;
        }
        Lunet::Proxmox::Kernel::set_attribute("class/scsi_host/host$host/scan", "0 0 $lun") if !$at;
        my $found = sub { my $now = at($host, $lun); $now && $now->{wwid} eq $wanted ? $now : undef };
        $at = Lunet::Proxmox::Kernel::wait_for($found)
            or die "LUN $lun of $target does not appear at $session->{portal} as $wanted\n";
        push @disks, $at;
    }
    gather($names, \@disks) if @disks > 1;
    Lunet::Proxmox::Kernel::wait_for(sub { -e path($names) }) or die path($names) . " does not appear\n";
}

# One map over the disks of a volume.
sub gather {
    my ($names, $disks) = @_;
    if (!Lunet::Proxmox::Kernel::has_program('multipath')) {
        warn "there are several paths to the volume, and one is used: install multipath-tools\n";
        return;
    }
    return if !grep { !Lunet::Proxmox::Kernel::map_of($_->{disk}) } @$disks;
    # With find_multipaths = strict, the default of Debian, a map needs its identifier in /etc/multipath/wwids.
    run_command(['multipath', '-v1', '-a', clean("3$names->{naa}")], outfunc => sub { });
    run_command(['multipath', '-v1', clean("/dev/$_->{disk}")], outfunc => sub { }) for @$disks;
    my $mapped = sub { -e (paths($names))[0] };
    Lunet::Proxmox::Kernel::wait_for($mapped)
        or die "multipath makes no map of 3$names->{naa}: see its blacklist, and `multipath -v3 /dev/$disks->[0]->{disk}`\n";
}

# Takes the disk of a volume away from this node.
sub deactivate {
    my ($target, $names) = @_;
    my @disks = disks($target, $names);
    my $map = map_over(@disks);
    run_command(['multipath', '-v1', '-f', $map], outfunc => sub { }) if defined($map);
    remove($_) for @disks;
}

# The name of the map over some disks, which may be one for people (`mpatha`): multipath-tools take no other one. undef if there is none.
sub map_over {
    my ($map) = map { Lunet::Proxmox::Kernel::map_of($_->{disk}) // () } @_;
    return undef if !defined($map);
    return clean(attribute("block/$map/dm/name") // die "$map has no name\n");
}

# A volume of this node has another size.
sub resized {
    my ($target, $names, $size) = @_;
    my @disks = disks($target, $names) or return;
    for my $at (@disks) {
        Lunet::Proxmox::Kernel::set_attribute("bus/scsi/devices/$at->{address}/rescan", 1);
        my $grown = sub { (attribute("block/$at->{disk}/size") // 0) * 512 >= $size };
        Lunet::Proxmox::Kernel::wait_for($grown) or die "/dev/$at->{disk} does not grow\n";
    }
    my $map = map_over(@disks) // return;
    run_command(['multipathd', 'resize', 'map', $map], outfunc => sub { });
}

1;
