package Lunet::Proxmox::Iscsi;

# A volume as a SCSI disk of the kernel's initiator (open-iscsi), over one or several portals.
#
# Sessions scan by hand (node.session.scan = manual): a node has only the disks of the volumes that are active on it, so nothing
# on it looks for partitions or LVM in the disks of machines that run elsewhere, and no disk is left of what another node deletes.

use strict;
use warnings;

use IO::Socket::IP;

use Lunet::Proxmox::Kernel;
use Lunet::Proxmox::Limit;

*attribute = \&Lunet::Proxmox::Kernel::attribute;
*clean = \&Lunet::Proxmox::Kernel::clean;
*entries = \&Lunet::Proxmox::Kernel::entries;
*run = \&Lunet::Proxmox::Limit::run;

# The file with this machine's name as an initiator.
our $INITIATOR = '/etc/iscsi/initiatorname.iscsi';

# How long a portal may take to answer, and how often a lost one is tried, in seconds.
our $ANSWERS = 2;
our $RETRIES = 60;

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
    eval { run(['iscsiadm', '-m', 'node'], outfunc => $collect, errfunc => sub { }) };
    return @portals;
}

# Does somebody listen there? A login without an answer takes far longer.
sub listens {
    my ($portal) = @_;
    my ($host, $port) = $portal =~ /^\[?(.*?)\]?:(\d+)$/ or return 0;
    return IO::Socket::IP->new(PeerHost => $host, PeerPort => $port, Timeout => Lunet::Proxmox::Limit::left($ANSWERS)) ? 1 : 0;
}

# Is there a session by which data can go?
sub is_up {
    my ($target) = @_;
    return scalar(grep { $_->{up} } sessions($target));
}

# Logs in wherever there is no session yet; while there is one, a lost portal is tried from time to time. Dies if there is none
# afterwards.
sub connect {
    my ($target, $portal) = @_;
    $target = clean($target);
    $portal = clean($portal =~ /:\d+$/ ? $portal : "$portal:3260");
    my %has = map { $_->{portal} => 1 } sessions($target);
    my $due = Lunet::Proxmox::Limit::due("iscsi-$target", $RETRIES);
    return if %has && !$due;
    my @portals = records($target);
    if (!%has) {
        if (listens($portal)) {
            run(['iscsiadm', '-m', 'discovery', '-t', 'sendtargets', '-p', $portal]);
            @portals = records($target);
            die "$portal does not tell of the target $target: is this node let in?\n" if !@portals;
        }
        die "nobody listens at $portal\n" if !@portals;
    }
    log_in($target, $_, scalar(@portals)) for grep { !$has{$_} && listens($_) } @portals;
    die "there is no session with $target\n" if !sessions($target);
    eval { complete($target) };
    warn "not all paths of the volumes of $target are there: $@" if $@;
}

# Logs in at one of several portals. It is tried again later if that fails.
sub log_in {
    my ($target, $portal, $count) = @_;
    my @node = ('iscsiadm', '-m', 'node', '-T', $target, '-p', $portal);
    my @settings = (['node.session.scan', 'manual'], ['node.session.initial_login_retry_max', '0']);
    # Machines wait for the only way to their disks, for how long it may take: after an error their file systems are read-only.
    push @settings, ['node.session.timeo.replacement_timeout', '-1'] if $count == 1;
    eval {
        run([@node, '-o', 'update', '-n', $_->[0], '-v', $_->[1]]) for @settings;
        run([@node, '--login']);
    };
    warn "no session with $target at $portal: $@" if $@;
}

# Ends the sessions. A disk that is in use keeps them.
sub disconnect {
    my ($target) = @_;
    return if !sessions($target);
    my @volumes = volumes_of($target);
    for my $naa (@volumes) {
        my (undef, $map) = Lunet::Proxmox::Kernel::map_called("3$naa");
        Lunet::Proxmox::Kernel::refuse_used($map, map { $_->{disk} } disks($target, { naa => $naa }));
    }
    deactivate($target, { naa => $_ }) for @volumes;
    run(['iscsiadm', '-m', 'node', '-T', clean($target), '--logout']);
}

# The number by which the kernel has a LUN: that of the first two bytes of the field, with the method of addressing (SAM-5 4.7.7),
# which is flat space above 255.
sub kernel_lun {
    my ($lun) = @_;
    return $lun < 256 ? $lun : 0x4000 | $lun;
}

# What the kernel has at a LUN of a session: { address, lun, disk, wwid, up }, or undef.
sub at {
    my ($session, $lun) = @_;
    my $address = "$session->{host}:0:0:$lun";
    my ($disk) = entries("bus/scsi/devices/$address/block", qr/sd[a-z]+/) or return undef;
    my $wwid = attribute("bus/scsi/devices/$address/wwid") // '';
    return { address => $address, lun => $lun, disk => $disk, wwid => $wwid, up => $session->{up} };
}

# All that it has at a session.
sub luns {
    my ($session) = @_;
    my @luns = map { /(\d+)$/ } entries('bus/scsi/devices', qr/$session->{host}:0:0:\d+/);
    return map { at($session, $_) // () } @luns;
}

# The designators of the volumes that this node has disks of.
sub volumes_of {
    my ($target) = @_;
    my %naa = map { $_->{wwid} =~ /^naa\.([0-9a-f]+)\z/ ? ($1 => 1) : () } map { luns($_) } sessions($target);
    return sort keys %naa;
}

# The disks of a volume on this node, by its designator.
sub disks {
    my ($target, $names) = @_;
    return grep { $_->{wwid} eq "naa.$names->{naa}" } map { luns($_) } sessions($target);
}

# Takes a disk away that nobody uses. Without a session nothing can be written to it any more, and the kernel is not to wait for that.
sub remove {
    my ($at) = @_;
    my $device = "bus/scsi/devices/$at->{address}";
    if (!$at->{up}) {
        # Refused where the kernel has already put it off line.
        eval { Lunet::Proxmox::Kernel::set_attribute("$device/state", 'offline') };
    }
    Lunet::Proxmox::Kernel::set_attribute("$device/delete", 1);
    my $gone = sub { !-e "$Lunet::Proxmox::Kernel::SYS/$device" };
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

# Makes the volume's disk on this node, one for each session, and a map over them if there are several. `size` in bytes is that
# of the volume: what was left here may have been there when it was smaller.
sub activate {
    my ($target, $names, $number, $size) = @_;
    my $lun = kernel_lun($number);
    my @sessions = grep { $_->{up} } sessions($target);
    die "no session with $target is up\n" if !@sessions;
    my @disks = map { disk_at($target, $names, $lun, $_) } @sessions;
    # Where others belong to it that are not there now, they find a map when they come.
    gather($names, \@disks) if @disks > 1 || records($target) > 1;
    Lunet::Proxmox::Kernel::wait_for(sub { -e path($names) }) or die path($names) . " does not appear\n";
    resized($target, $names, $size) if grep { (attribute("block/$_->{disk}/size") // 0) * 512 != $size } @disks;
}

# The disk of a volume at one session, which is made if it is not there.
sub disk_at {
    my ($target, $names, $lun, $session) = @_;
    my $wanted = "naa.$names->{naa}";
    my $at = at($session, $lun);
    return $at if $at && $at->{wwid} eq $wanted;
    # Left of a volume that had the number before.
    if ($at) {
        if ($at->{wwid} =~ /^naa\.([0-9a-f]+)\z/) {
            deactivate($target, { naa => $1 });
        } else {
            Lunet::Proxmox::Kernel::refuse_used(undef, $at->{disk});
            remove($at);
        }
    }
    Lunet::Proxmox::Kernel::set_attribute("class/scsi_host/host$session->{host}/scan", "0 0 $lun");
    my $found = sub { my $now = at($session, $lun); $now && $now->{wwid} eq $wanted ? $now : undef };
    return Lunet::Proxmox::Kernel::wait_for($found)
        // die "LUN $lun of $target does not appear at $session->{portal} as $wanted\n";
}

# A session that has come after the disks of volumes gets theirs, where there are maps for them.
sub complete {
    my ($target) = @_;
    my @sessions = grep { $_->{up} } sessions($target);
    my %known = map { ($_->{wwid} => $_) } map { luns($_) } @sessions;
    for my $known (values %known) {
        my $map = Lunet::Proxmox::Kernel::map_of($known->{disk}) // next;
        my ($naa) = $known->{wwid} =~ /^naa\.([0-9a-f]+)\z/ or next;
        my @without = grep { !at($_, $known->{lun}) } @sessions or next;
        my @new = map { disk_at($target, { naa => $naa }, $known->{lun}, $_) } @without;
        gather({ naa => $naa }, \@new);
    }
}

# One map over the disks of a volume.
sub gather {
    my ($names, $disks) = @_;
    if (!Lunet::Proxmox::Kernel::has_program('multipath')) {
        warn "there are several paths to the volume, and one is used: install multipath-tools\n" if @$disks > 1;
        return;
    }
    return if !grep { !Lunet::Proxmox::Kernel::map_of($_->{disk}) } @$disks;
    # With find_multipaths = strict, the default of Debian, a map needs its identifier in /etc/multipath/wwids.
    run(['multipath', '-v1', '-a', clean("3$names->{naa}")]);
    run(['multipath', '-v1', clean("/dev/$_->{disk}")]) for @$disks;
    my $mapped = sub { -e (paths($names))[0] };
    Lunet::Proxmox::Kernel::wait_for($mapped)
        or die "multipath makes no map of 3$names->{naa}: see its blacklist, and `multipath -v3 /dev/$disks->[0]->{disk}`\n";
}

# Takes the disk of a volume away from this node, and the map over it, also where its disks have gone before it. What is in use
# stays as it is.
sub deactivate {
    my ($target, $names) = @_;
    my @disks = disks($target, $names);
    my ($name, $map) = Lunet::Proxmox::Kernel::map_called("3$names->{naa}");
    Lunet::Proxmox::Kernel::refuse_used($map, map { $_->{disk} } @disks);
    if (defined($map)) {
        # A map without a path keeps what is to be written, and waits with its removal for one.
        eval { run(['multipathd', 'disablequeueing', 'map', $name]) } if !grep { $_->{up} } @disks;
        # udev may look into it again at any time.
        my $why;
        my $flush = sub { return 1 if eval { run(['multipath', '-v1', '-f', $name]); 1 }; $why = $@; return 0 };
        Lunet::Proxmox::Kernel::wait_for($flush, $Lunet::Proxmox::Kernel::CLOSES) or die $why;
        # It is in the list of those for which maps are made: no other volume will ever have it.
        eval { run(['multipath', '-v1', '-w', clean("3$names->{naa}")], errfunc => sub { }) };
    }
    remove($_) for @disks;
}

# A volume of this node has another size.
sub resized {
    my ($target, $names, $size) = @_;
    my @disks = grep { $_->{up} } disks($target, $names) or return;
    for my $at (@disks) {
        Lunet::Proxmox::Kernel::set_attribute("bus/scsi/devices/$at->{address}/rescan", 1);
        my $grown = sub { (attribute("block/$at->{disk}/size") // 0) * 512 == $size };
        Lunet::Proxmox::Kernel::wait_for($grown) or die "/dev/$at->{disk} does not get its new size\n";
    }
    my ($name) = Lunet::Proxmox::Kernel::map_called("3$names->{naa}") or return;
    run(['multipathd', 'resize', 'map', $name]);
}

1;
