# A node of Proxmox, as far as the plugin can see: a model of /sys and /dev, where disks appear when a host is told to scan and the
# real lunet has a LUN there for this node. Used by check.pl.

use strict;
use warnings;

use File::Path qw(make_path);

our ($SCRATCH, $REST);

# The volumes that lunet says that it has, but for that of the test itself.
sub volumes_of_lunet {
    return [grep { $_->{name} ne 'old' } @{ $REST->get('/volumes') }];
}

# The number of the LUN that a volume is.
sub lun_of_volume {
    my ($name) = @_;
    return $REST->get("/volumes/$name")->{luns}->[0]->{lun};
}

# The file of the volume with this designator.
sub file_of {
    my ($naa) = @_;
    my ($volume) = grep { $_->{naa} eq $naa } @{ volumes_of_lunet() };
    return $volume->{path} =~ m|^(/.+)\z| ? $1 : die "volume $volume->{name} has no file\n";
}

# Makes a node with this initiator name and host NQN.
sub node {
    my ($name, %of) = @_;
    my $model = "$SCRATCH/$name";
    make_path("$model/$_") for 'sys/class/iscsi_session', 'sys/class/nvme', 'sys/class/nvme-subsystem', 'sys/bus/scsi/devices',
        'sys/block', 'sys/module/nvme_tcp', 'dev/disk/by-id', 'proc', 'run';
    put("$model/initiatorname", "## of this node\nInitiatorName=iqn.1993-08.org.debian:01:$name\n");
    put("$model/hostnqn", "nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349\n");
    put("$model/$_", "$of{$_}\n") for keys %of;
    return { name => $name, model => $model };
}

sub put {
    my ($file, $text) = @_;
    open(my $fh, '>', $file) or die "$file: $!\n";
    print {$fh} $text or die "$file: $!\n";
    close($fh) or die "$file: $!\n";
}

# What follows happens on this node.
sub on {
    my ($node) = @_;
    $ENV{MODEL} = $node->{model};
    $Lunet::Proxmox::Kernel::SYS = "$node->{model}/sys";
    $Lunet::Proxmox::Kernel::DEV = "$node->{model}/dev";
    $Lunet::Proxmox::Kernel::PROC = "$node->{model}/proc";
    $Lunet::Proxmox::Limit::RUN = "$node->{model}/run";
    $Lunet::Proxmox::Kernel::APPEARS = 1;
    $Lunet::Proxmox::Kernel::CLOSES = 0.2;
    # Time passes by `later`.
    $_ = 1e9 for $Lunet::Proxmox::Iscsi::RETRIES, $Lunet::Proxmox::Nvme::RETRIES;
    $Lunet::Proxmox::Iscsi::INITIATOR = "$node->{model}/initiatorname";
    $Lunet::Proxmox::Nvme::HOSTNQN = "$node->{model}/hostnqn";
    no warnings qw(redefine once);
    my $name = $node->{name};
    *PVE::INotify::nodename = sub { $name };
    *Lunet::Proxmox::Kernel::set_attribute = sub { attribute_written($node, @_) };
}

# A minute has passed for the node: what is done from time to time is done again.
sub later {
    my ($node) = @_;
    unlink(map { /^(.*)\z/ } glob("$node->{model}/run/*"));
}

# A process of this node opens a device of it.
sub process_opens {
    my ($node, $process, $device) = @_;
    make_path("$node->{model}/proc/$process/fd");
    put("$node->{model}/proc/$process/comm", "kvm\n");
    symlink("$node->{model}/dev/$device", "$node->{model}/proc/$process/fd/9") or die "symlink: $!\n";
}

# And ends.
sub process_ends {
    my ($node, $process) = @_;
    File::Path::remove_tree("$node->{model}/proc/$process");
}

# What programs were run on a node since it was asked last.
sub log_of {
    my ($node) = @_;
    open(my $fh, '<', "$node->{model}/log") or return '';
    my $text = join('', <$fh>);
    unlink("$node->{model}/log");
    return $text;
}

# The names of a node's disks.
sub disks_of {
    my ($node) = @_;
    return join(' ', sort map { m|([^/]+)$| } glob("$node->{model}/sys/block/sd*"));
}

# What the kernel does when an attribute is written.
sub attribute_written {
    my ($node, $path, $text) = @_;
    my $sys = "$node->{model}/sys";
    if ("$path $text" =~ m|^class/scsi_host/host(\d+)/scan 0 0 (\d+)$|) {
        my ($host, $lun) = ($1, $2);
        my $naa = naa_of($node, $host, $lun) // return;
        disk_appears($node, "$host:0:0:$lun", $naa);
    } elsif ($path =~ m|^bus/scsi/devices/([\d:]+)/delete$|) {
        disk_goes($node, $1);
    } elsif ($path =~ m|^bus/scsi/devices/([\d:]+)/rescan$|) {
        my ($disk) = map { m|/block/(sd[a-z]+)$| } glob("$sys/bus/scsi/devices/$1/block/*");
        put("$sys/block/$disk/size", int((-s "$node->{model}/dev/$disk") / 512) . "\n");
    } elsif ("$path $text" =~ m!^bus/scsi/devices/[\d:]+/state offline$|^class/nvme/nvme\d+/ctrl_loss_tmo -1$!) {
        put("$sys/$path", $text eq 'offline' ? "offline\n" : "off\n");
    } elsif ($path =~ m|^class/nvme/nvme\d+/rescan_controller$|) {
        put("$node->{model}/rescans", 'x');
    } else {
        die "nobody writes '$text' to $path\n";
    }
}

# The NAA designator of the volume at a LUN, if the real lunet lets this node see one there. The number is that of the kernel, which
# libiscsi takes for the same bytes: flat space addressing above 255.
sub naa_of {
    my ($node, $host, $lun) = @_;
    my $session = "$node->{model}/sys/class/iscsi_connection/connection$host:0";
    my ($address, $port) = map { first_line("$session/persistent_$_") } qw(address port);
    my $target = first_line("$node->{model}/target");
    my $text = qx(iscsi-inq -i iqn.1993-08.org.debian:01:$node->{name} iscsi://$address:$port/$target/$lun 2>/dev/null);
    return undef if $text !~ /^Peripheral Qualifier:CONNECTED$/m;
    my ($volume) = grep { grep { $_->{target} eq $target && $_->{lun} == ($lun & 0x3FFF) } @{ $_->{luns} } } @{ volumes_of_lunet() };
    return $volume->{naa} =~ /^([0-9a-f]{32})\z/ ? $1 : undef;
}

sub first_line {
    my ($file) = @_;
    open(my $fh, '<', $file) or die "$file: $!\n";
    my $line = <$fh> // '';
    return $line =~ /^(\S*)/ ? $1 : '';
}

# The kernel and udev name a disk by its designator, and keep to it. What it holds is in the file of the volume, whose name
# lunet's list of volumes tells.
sub disk_appears {
    my ($node, $address, $naa) = @_;
    my $sys = "$node->{model}/sys";
    my ($disk) = grep { !-e "$sys/block/$_" } map { "sd$_" } 'a' .. 'z';
    make_path("$sys/bus/scsi/devices/$address/block/$disk", "$sys/block/$disk/holders");
    put("$sys/bus/scsi/devices/$address/wwid", "naa.$naa\n");
    symlink(file_of($naa), "$node->{model}/dev/$disk") or die "symlink: $!\n";
    put("$sys/block/$disk/size", int((-s "$node->{model}/dev/$disk") / 512) . "\n");
    my $link = "$node->{model}/dev/disk/by-id/scsi-3$naa";
    symlink("../../$disk", $link) if !-l $link;
}

sub disk_goes {
    my ($node, $address) = @_;
    my $sys = "$node->{model}/sys";
    my ($disk) = map { m|/block/(sd[a-z]+)$| } glob("$sys/bus/scsi/devices/$address/block/*");
    my $naa = first_line("$sys/bus/scsi/devices/$address/wwid");
    $naa =~ s/^naa\.//;
    my $link = "$node->{model}/dev/disk/by-id/scsi-3$naa";
    my $own = (readlink($link) // '') eq "../../$disk";
    unlink($link) if $own;
    unlink("$node->{model}/dev/$disk");
    File::Path::remove_tree("$sys/bus/scsi/devices/$address", "$sys/block/$disk");
}

1;
