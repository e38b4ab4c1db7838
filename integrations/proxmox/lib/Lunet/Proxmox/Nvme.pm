package Lunet::Proxmox::Nvme;

# A volume as a namespace of the kernel's NVMe host over TCP, with the kernel's own multipath.
#
# The kernel makes a device of every namespace of a subsystem, and takes it away with the namespace: there is nothing to do for
# one volume but to wait.

use strict;
use warnings;

use JSON::PP ();

use Lunet::Proxmox::Kernel;
use PVE::Tools qw(run_command);

*attribute = \&Lunet::Proxmox::Kernel::attribute;
*clean = \&Lunet::Proxmox::Kernel::clean;
*entries = \&Lunet::Proxmox::Kernel::entries;

# The file with this machine's name as a host.
our $HOSTNQN = '/etc/nvme/hostnqn';

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

# Connects by every path over TCP that discovery tells of and that is not there yet. A path that fails is tried by the kernel
# itself; so discovery is asked only while there is none.
sub connect {
    my ($nqn, $portal) = @_;
    $nqn = clean($nqn);
    return if controllers($nqn);
    my ($host, $port) = $portal =~ /^\[?([^\]]*?)\]?(?::(\d+))?$/;
    ($host, $port) = (clean($host), $port // 4420);
    run_command(['modprobe', 'nvme-tcp']) if !-e "$Lunet::Proxmox::Kernel::SYS/module/nvme_tcp";
    my @discover = ('nvme', 'discover', '-t', 'tcp', '-a', $host, '-s', $port, '-o', 'json');
    my $log = JSON::PP->new->decode(join("\n", Lunet::Proxmox::Kernel::lines_of(\@discover)));
    for my $entry (@{ $log->{records} // [] }) {
        next if ($entry->{subnqn} // '') ne $nqn || ($entry->{trtype} // '') ne 'tcp';
        my ($address, $service) = map { clean($_) } @$entry{qw(traddr trsvcid)};
        eval { run_command(['nvme', 'connect', '-t', 'tcp', '-a', $address, '-s', $service, '-n', $nqn]) };
        warn "no connection with $nqn at $address: $@" if $@;
    }
    die "there is no connection with $nqn: does lunet let this node in, and has it a portal for NVMe?\n"
        if !controllers($nqn);
}

# Ends the connections.
sub disconnect {
    my ($nqn) = @_;
    run_command(['nvme', 'disconnect', '-n', clean($nqn)], outfunc => sub { }) if controllers($nqn);
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

# Waits for the volume's device.
sub activate {
    my ($nqn, $names, $nsid) = @_;
    my $there = sub { disk($names) && -e path($names) };
    return if Lunet::Proxmox::Kernel::wait_for($there, 2);
    rescan($nqn);
    Lunet::Proxmox::Kernel::wait_for($there)
        or die "namespace $nsid of $nqn does not appear as " . path($names) . "\n";
}

# The kernel keeps the device while the namespace is there; but what uses it here has to let go.
sub deactivate {
    my ($nqn, $names) = @_;
    my $disk = disk($names) // return;
    die "/dev/$disk is in use on this node\n" if Lunet::Proxmox::Kernel::is_held($disk);
}

# A volume of this node has another size: the server has told the kernel so.
sub resized {
    my ($nqn, $names, $size) = @_;
    my $disk = disk($names) // return;
    my $grown = sub { (attribute("block/$disk/size") // 0) * 512 >= $size };
    return if Lunet::Proxmox::Kernel::wait_for($grown, 2);
    rescan($nqn);
    Lunet::Proxmox::Kernel::wait_for($grown) or die "/dev/$disk does not grow\n";
}

1;
