package Lunet::Proxmox::Kernel;

# What the two initiators of the kernel have in common: sysfs, waiting for devices, multipath.

use strict;
use warnings;

use Errno qw(EBUSY);
use Fcntl qw(O_RDONLY O_EXCL);
use Time::HiRes qw(sleep time);

use PVE::Tools qw(run_command);

# Where the kernel and udev are; tests put a model of them elsewhere.
our $SYS = '/sys';
our $DEV = '/dev';

# How long a device may take to appear, in seconds.
our $APPEARS = 10;

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
    my $until = time() + ($seconds // $APPEARS);
    while (1) {
        my $found = $what->();
        return $found if $found;
        return undef if time() > $until;
        sleep(0.1);
    }
}

# Is the device used by anything that says so: a mount, LVM, a map? QEMU does not.
sub is_held {
    my ($device) = @_;
    return 1 if entries("block/$device/holders", qr/[^.].*/);
    return 0 if sysopen(my $fh, clean("$DEV/$device"), O_RDONLY | O_EXCL);
    return $! == EBUSY ? 1 : 0;
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
    run_command($command, outfunc => sub { push @lines, $_[0] }, errfunc => sub { warn "$_[0]\n" }, %more);
    return @lines;
}

1;
