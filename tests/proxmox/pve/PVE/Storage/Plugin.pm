package PVE::Storage::Plugin;

# What the plugin inherits from Proxmox's base class and calls of it, for machines without Proxmox.

use strict;
use warnings;

our @SHARED_STORAGE = ();
my $registered = {};

sub register {
    my ($class) = @_;
    # What the original demands of its plugins.
    for my $method (qw(type properties options plugindata)) {
        ref($class->$method()) || $method eq 'type' or die "$class has no $method\n";
    }
    $registered->{ $class->type() } = $class;
}

sub lookup {
    my ($class, $type) = @_;
    return $registered->{$type} // die "unknown storage type '$type'\n";
}

sub cluster_lock_storage {
    my ($class, $storeid, $shared, $timeout, $code) = @_;
    return $code->();
}

# The first name that is not taken.
sub get_next_vm_diskname {
    my ($volids, $storeid, $vmid) = @_;
    my %taken = map { /^\Q$storeid\E:(?:vm|base)-$vmid-disk-(\d+)$/ ? ($1 => 1) : () } @$volids;
    my $number = 0;
    $number++ while $taken{$number};
    return "vm-$vmid-disk-$number";
}

# The size before the data of a volume: 64 bits, little-endian.
sub write_common_header {
    my ($fh, $size) = @_;
    syswrite($fh, pack('Q<', $size)) == 8 or die "cannot write the size\n";
}

sub read_common_header {
    my ($fh) = @_;
    (sysread($fh, my $size, 8) // 0) == 8 or die "no size\n";
    return unpack('Q<', $size);
}

1;
