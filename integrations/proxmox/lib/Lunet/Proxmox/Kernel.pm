package Lunet::Proxmox::Kernel;

# What the two initiators of the kernel have in common: sysfs, waiting for devices, who uses them, multipath.

use strict;
use warnings;

use Errno qw(EBUSY);
use Fcntl qw(O_RDONLY O_EXCL);
use Time::HiRes qw(sleep time);

use Lunet::Proxmox::Limit;

# Where the kernel and udev are; tests put a model of them elsewhere.
our $SYS = '/sys';
our $DEV = '/dev';
our $PROC = '/proc';

# How long a device may take to appear, in seconds.
our $APPEARS = 10;

# How long programs of this node may take to close a device, in seconds: udev looks into each that appears or changes.
our $CLOSES = 3;

# The text without what perl takes for dangerous in daemons, which run with -T: names from sysfs and from lunet that are of the
# form of names.
sub clean {
    my ($text) = @_;
    return $1 if $text =~ m|^([A-Za-z0-9/:._\-\[\]@+]+)\z|;
    die "a name with unexpected characters: $text\n";
}

# The first line of a file below /sys, without spaces at its end; undef if it cannot be read.
sub attribute {
    my ($path) = @_;
    open(my $fh, '<', "$SYS/$path") or return undef;
    my $line = <$fh> // return undef;
    $line =~ s/\s+\z//;
    return $line;
}

# Writes an attribute below /sys.
sub set_attribute {
    my ($path, $text) = @_;
    my $file = clean("$SYS/$path");
    open(my $fh, '>', $file) or die "cannot write $file: $!\n";
    print {$fh} "$text\n" or die "cannot write $file: $!\n";
    close($fh) or die "cannot write $file: $!\n";
}

# The names in a folder below /sys that match.
sub entries {
    my ($path, $form) = @_;
    opendir(my $dh, "$SYS/$path") or return ();
    my @found = sort map { /^($form)\z/ ? $1 : () } readdir($dh);
    return @found;
}

# Waits until something is true, and returns it; undef if it takes too long.
sub wait_for {
    my ($what, $seconds) = @_;
    my $until = time() + (eval { Lunet::Proxmox::Limit::left($seconds // $APPEARS) } // 0);
    while (1) {
        my $found = $what->();
        return $found if $found;
        return undef if time() > $until;
        sleep(0.1);
    }
}

# Is the device used by anything that says so: a mount, LVM, a map other than its own? QEMU does not.
sub is_held {
    my ($device, $map) = @_;
    return 1 if grep { $_ ne ($map // '') } entries("block/$device/holders", qr/[^.].*/);
    return 0 if defined($map) && $device ne $map;
    return 0 if sysopen(my $fh, clean("$DEV/$device"), O_RDONLY | O_EXCL);
    return $! == EBUSY ? 1 : 0;
}

# The processes of this node that have one of these devices open (`sda`, `dm-3`), as for QEMU, which tells the kernel of no claim.
sub users_of {
    my %wanted = map { ("$DEV/$_" => 1) } @_;
    my @users;
    opendir(my $all, $PROC) or return ();
    for my $process (grep { /^\d+\z/ } readdir($all)) {
        opendir(my $files, "$PROC/$process/fd") or next;
        # It watches whatever may become a path, and lets go by itself.
        next if command_of($process) eq 'multipathd';
        push @users, $process if grep { $wanted{ readlink("$PROC/$process/fd/$_") // '' } } readdir($files);
    }
    return @users;
}

# The name of a process.
sub command_of {
    my ($process) = @_;
    open(my $fh, '<', "$PROC/$process/comm") or return '';
    my $line = <$fh> // '';
    chomp($line);
    return $line;
}

# Dies if something on this node uses one of these disks, or the map over them if there is one, after some patience with what only
# looks into them.
sub refuse_used {
    my ($map, @disks) = @_;
    my @devices = (defined($map) ? $map : (), @disks);
    my ($held, @users);
    my $free = sub {
        ($held) = grep { is_held($_, $map) } @devices;
        # multipathd has the disks of its maps open.
        @users = users_of(defined($map) ? $map : @disks);
        return !defined($held) && !@users;
    };
    return if !@devices || wait_for($free, $CLOSES);
    die "/dev/$held is in use on this node\n" if defined($held);
    die "/dev/$devices[0] is in use on this node, by process @users\n";
}

# Makes what this machine has in its cache for a device stable. Quiet if there is no such device.
sub flush {
    my ($device) = @_;
    open(my $fh, '+<', clean($device)) or return;
    $fh->sync() or die "cannot flush $device: $!\n";
}

# The map of dm-multipath that a disk belongs to (`dm-3`), or undef.
sub map_of {
    my ($disk) = @_;
    for my $dm (entries("block/$disk/holders", qr/dm-\d+/)) {
        return $dm if (attribute("block/$dm/dm/uuid") // '') =~ /^mpath-/;
    }
    return undef;
}

# The map of dm-multipath with this identifier, whether it has a path left or not: its name, which may be one for people (`mpatha`;
# multipath-tools take no other one), and its device. Nothing if there is none.
sub map_called {
    my ($wwid) = @_;
    for my $dm (entries('block', qr/dm-\d+/)) {
        next if (attribute("block/$dm/dm/uuid") // '') ne "mpath-$wwid";
        return (clean(attribute("block/$dm/dm/name") // die "$dm has no name\n"), $dm);
    }
    return ();
}

# True if the program is somewhere that daemons look.
sub has_program {
    my ($name) = @_;
    for my $folder (split(/:/, $ENV{PATH} // ''), '/usr/sbin', '/sbin') {
        return 1 if -x "$folder/$name";
    }
    return 0;
}

# Runs a program and returns its lines.
sub lines_of {
    my ($command, %more) = @_;
    my @lines;
    Lunet::Proxmox::Limit::run($command, outfunc => sub { push @lines, $_[0] }, errfunc => sub { warn "$_[0]\n" }, %more);
    return @lines;
}

1;
