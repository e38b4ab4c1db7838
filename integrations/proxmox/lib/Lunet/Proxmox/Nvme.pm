package Lunet::Proxmox::Nvme;

# A volume as a namespace of the kernel's NVMe host over TCP, with the kernel's own multipath.
#
# The kernel makes a device of every namespace of a subsystem, and takes it away with the namespace: there is nothing to do for
# one volume but to wait.

use strict;
use warnings;

use IO::Socket::IP;
use JSON::PP ();

use Lunet::Proxmox::Kernel;
use Lunet::Proxmox::Limit;

*attribute = \&Lunet::Proxmox::Kernel::attribute;
*clean = \&Lunet::Proxmox::Kernel::clean;
*entries = \&Lunet::Proxmox::Kernel::entries;
*run = \&Lunet::Proxmox::Limit::run;

# The file with this machine's name as a host.
our $HOSTNQN = '/etc/nvme/hostnqn';

# How long a portal may take to answer, and how often discovery is asked for lost paths, in seconds.
our $ANSWERS = 2;
our $RETRIES = 60;

# The name of this machine as a host.
sub name {
    open(my $fh, '<', $HOSTNQN) or die "$HOSTNQN: $!: install nvme-cli\n";
    my $line = <$fh> // '';
    return $1 if $line =~ /^\s*(nqn\.[A-Za-z0-9.:\-]+)\s*$/;
    die "$HOSTNQN has no name\n";
}

# The controllers of a subsystem: list of { controller, address, up }.
sub controllers {
    my ($nqn) = @_;
    my @found;
    for my $controller (entries('class/nvme', qr/nvme\d+/)) {
        next if (attribute("class/nvme/$controller/subsysnqn") // '') ne $nqn;
        my $address = attribute("class/nvme/$controller/address") // '';
        my ($host) = $address =~ /traddr=([^,]+)/;
        my ($port) = $address =~ /trsvcid=([^,]+)/;
        my $up = (attribute("class/nvme/$controller/state") // '') eq 'live';
        push @found, { controller => $controller, address => join(' ', $host // '', $port // ''), up => $up };
    }
    return @found;
}

# Is there a path by which data can go?
sub is_up {
    my ($nqn) = @_;
    return scalar(grep { $_->{up} } controllers($nqn));
}

# Does somebody listen there? The kernel waits far longer for that.
sub listens {
    my ($address) = @_;
    my ($host, $port) = split(/ /, $address);
    my $timeout = Lunet::Proxmox::Limit::left($ANSWERS);
    return IO::Socket::IP->new(PeerHost => $host, PeerPort => $port, Timeout => $timeout) ? 1 : 0;
}

# Connects by every path over TCP that discovery tells of and that is not there. While there is one, discovery is asked from time
# to time. Dies if there is none afterwards.
sub connect {
    my ($nqn, $portal) = @_;
    $nqn = clean($nqn);
    my @there = controllers($nqn);
    my $due = Lunet::Proxmox::Limit::due("nvme-$nqn", $RETRIES);
    keep_trying($_->{controller}) for @there;
    return if @there && !$due;
    my ($host, $port) = $portal =~ /^\[?([^\]]*?)\]?(?::(\d+))?$/;
    my @places = (join(' ', clean($host), $port // 4420), map { $_->{address} } grep { $_->{up} } @there);
    my ($place) = grep { listens($_) } @places;
    # A gateway that is away is one that the kernel waits for.
    return if @there && !defined($place);
    die "nobody listens at $portal\n" if !defined($place);
    connect_by($nqn, $place, { map { $_->{address} => 1 } @there });
    die "there is no connection with $nqn: does lunet let this node in, and has it a portal for NVMe?\n"
        if !controllers($nqn);
}

# Has the kernel try a lost path until it is there again, whoever has connected it: by default it gives it up after ten minutes,
# and machines that run would never find their disks again.
sub keep_trying {
    my ($controller) = @_;
    my $now = attribute("class/nvme/$controller/ctrl_loss_tmo") // return;
    return if $now eq 'off';
    eval { Lunet::Proxmox::Kernel::set_attribute("class/nvme/$controller/ctrl_loss_tmo", -1) };
    warn $@ if $@;
}

# Connects by the paths that discovery at this place tells of, but for those that are there.
sub connect_by {
    my ($nqn, $place, $there) = @_;
    my ($host, $port) = map { clean($_) } split(/ /, $place);
    run(['modprobe', 'nvme-tcp']) if !-e "$Lunet::Proxmox::Kernel::SYS/module/nvme_tcp";
    my @discover = ('nvme', 'discover', '-t', 'tcp', '-a', $host, '-s', $port, '-o', 'json');
    my $log = JSON::PP->new->decode(join("\n", Lunet::Proxmox::Kernel::lines_of(\@discover)));
    for my $entry (@{ $log->{records} // [] }) {
        next if ($entry->{subnqn} // '') ne $nqn || ($entry->{trtype} // '') ne 'tcp';
        my ($address, $service) = map { clean($_) } @$entry{qw(traddr trsvcid)};
        next if $there->{"$address $service"} || !listens("$address $service");
        my @how = ('--ctrl-loss-tmo=-1', '--reconnect-delay=2');
        eval { run(['nvme', 'connect', '-t', 'tcp', '-a', $address, '-s', $service, '-n', $nqn, @how]) };
        warn "no connection with $nqn at $address: $@" if $@;
    }
}

# Ends the connections. A disk that is in use keeps them.
sub disconnect {
    my ($nqn) = @_;
    return if !controllers($nqn);
    Lunet::Proxmox::Kernel::refuse_used(undef, disks($nqn));
    run(['nvme', 'disconnect', '-n', clean($nqn)]);
}

# The block devices of a subsystem.
sub disks {
    my ($nqn) = @_;
    my @own;
    for my $subsystem (entries('class/nvme-subsystem', qr/nvme-subsys\d+/)) {
        next if (attribute("class/nvme-subsystem/$subsystem/subsysnqn") // '') ne $nqn;
        push @own, entries("class/nvme-subsystem/$subsystem", qr/nvme\d+n\d+/);
    }
    return @own;
}

# The path of a volume, whether it is there or not.
sub path {
    my ($names) = @_;
    return "$Lunet::Proxmox::Kernel::DEV/disk/by-id/nvme-uuid.$names->{uuid}";
}

# The block device of a volume (`nvme0n1`), or undef.
sub disk {
    my ($names) = @_;
    for my $disk (entries('block', qr/nvme\d+n\d+/)) {
        return $disk if (attribute("block/$disk/wwid") // '') eq "uuid.$names->{uuid}";
    }
    return undef;
}

# Has the controllers look again.
sub rescan {
    my ($nqn) = @_;
    for my $one (grep { $_->{up} } controllers($nqn)) {
        Lunet::Proxmox::Kernel::set_attribute("class/nvme/$one->{controller}/rescan_controller", 1);
    }
}

# Waits for the volume's device, of this size in bytes.
sub activate {
    my ($nqn, $names, $nsid, $size) = @_;
    my $there = sub { disk($names) && -e path($names) };
    if (!Lunet::Proxmox::Kernel::wait_for($there, 2)) {
        die "no connection with $nqn is up\n" if !is_up($nqn);
        rescan($nqn);
        Lunet::Proxmox::Kernel::wait_for($there)
            or die "namespace $nsid of $nqn does not appear as " . path($names) . "\n";
    }
    resized($nqn, $names, $size);
}

# The kernel keeps the device while the namespace is there; but what uses it here has to let go.
sub deactivate {
    my ($nqn, $names) = @_;
    my $disk = disk($names) // return;
    Lunet::Proxmox::Kernel::refuse_used(undef, $disk);
}

# A volume of this node has another size: the server has told the kernel so.
sub resized {
    my ($nqn, $names, $size) = @_;
    my $disk = disk($names) // return;
    my $grown = sub { (attribute("block/$disk/size") // 0) * 512 == $size };
    return if Lunet::Proxmox::Kernel::wait_for($grown, 2);
    rescan($nqn);
    Lunet::Proxmox::Kernel::wait_for($grown) or die "/dev/$disk does not get its new size\n";
}

1;
