package Lunet::Proxmox::Limit;

# Limits of time. One daemon of Proxmox asks all storages in turn, and the lock of a storage is held for a minute: whatever goes
# to the network, starts a program or waits for a device asks here how long it may take.

use strict;
use warnings;

use POSIX ();
use Time::HiRes qw(time);

use PVE::Tools qw(run_command);

# Where the files are that tell when something was tried last; a reboot empties it.
our $RUN = '/run/lunet-proxmox';

# How long a program may take if nothing else is said, in seconds.
our $PROGRAM = 30;

# When what is under way has to be done, in seconds since 1970; undef: no limit.
our $until;

# Runs something that has to be done within so many seconds, or within those that are left of the limit around it.
sub within {
    my ($seconds, $code) = @_;
    my $own = time() + $seconds;
    local $until = defined($until) && $until < $own ? $until : $own;
    return $code->();
}

# The seconds that something may take: those, or what is left. Dies if nothing is left.
sub left {
    my ($seconds) = @_;
    return $seconds if !defined($until);
    my $left = $until - time();
    die "there was not enough time\n" if $left <= 0;
    return $left < $seconds ? $left : $seconds;
}

# Runs a program, as PVE::Tools::run_command does, and ends it if it takes too long.
sub run {
    my ($command, %how) = @_;
    my $most = delete($how{most}) // $PROGRAM;
    return run_command($command, outfunc => sub { }, %how, timeout => POSIX::ceil(left($most)));
}

# Was this tried so many seconds ago or longer, on this node? Then it counts as tried now. Processes of Proxmox come and go, so a
# file says so.
sub due {
    my ($what, $seconds) = @_;
    my ($name) = $what =~ /^([A-Za-z0-9.:_\-]+)\z/ or return 1;
    my $file = "$RUN/$name";
    my $last = (stat($file))[9];
    return 0 if defined($last) && abs(time() - $last) < $seconds;
    mkdir $RUN;
    open(my $fh, '>', $file) or return 1;
    utime(undef, undef, $fh);
    return 1;
}

1;
