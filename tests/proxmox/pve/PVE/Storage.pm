package PVE::Storage;

# How Proxmox calls a plugin, for machines without Proxmox: the functions of PVE::Storage that the test uses, with what they do
# around the plugin's methods.

use strict;
use warnings;

use PVE::Storage::Plugin;

use constant APIVER => $ENV{PVE_APIVER} // 15;

sub plugin_of {
    my ($cfg, $volid) = @_;
    my ($storeid, $volname) = $volid =~ /^([^:]+):?(.*)$/;
    my $scfg = $cfg->{ids}->{$storeid} // die "storage '$storeid' does not exist\n";
    return (PVE::Storage::Plugin->lookup($scfg->{type}), $scfg, $storeid, $volname);
}

sub activate_storage {
    my ($cfg, $storeid, $cache) = @_;
    my ($plugin, $scfg) = plugin_of($cfg, $storeid);
    eval { $plugin->check_connection($storeid, $scfg) }
        or die $@ ? "connection check for storage '$storeid' failed - $@\n" : "storage '$storeid' is not online\n";
    $plugin->activate_storage($storeid, $scfg, $cache // {});
}

# What pvestatd asks of all storages every few seconds.
sub storage_info {
    my ($cfg) = @_;
    my ($info, $cache) = ({}, {});
    for my $storeid (sort keys %{ $cfg->{ids} }) {
        my ($plugin, $scfg) = plugin_of($cfg, $storeid);
        $info->{$storeid} = { active => 0 };
        eval { activate_storage($cfg, $storeid, $cache) };
        next if $@;
        my ($total, $free, $used, $active) = eval { $plugin->status($storeid, $scfg, $cache) };
        $info->{$storeid} = { total => $total, avail => $free, used => $used, active => $active } if $active;
    }
    return $info;
}

sub deactivate_storage {
    my ($cfg, $storeid) = @_;
    my ($plugin, $scfg) = plugin_of($cfg, $storeid);
    $plugin->deactivate_storage($storeid, $scfg, {});
}

sub activate_volumes {
    my ($cfg, $volids, $snap, $hints) = @_;
    my $cache = {};
    for my $volid (@$volids) {
        my ($plugin, $scfg, $storeid, $volname) = plugin_of($cfg, $volid);
        activate_storage($cfg, $storeid, $cache);
        $plugin->activate_volume($storeid, $scfg, $volname, $snap, $cache, $hints);
    }
}

sub deactivate_volumes {
    my ($cfg, $volids, $snap) = @_;
    for my $volid (@$volids) {
        my ($plugin, $scfg, $storeid, $volname) = plugin_of($cfg, $volid);
        $plugin->deactivate_volume($storeid, $scfg, $volname, $snap, {});
    }
}

sub path {
    my ($cfg, $volid, $snap) = @_;
    my ($plugin, $scfg, $storeid, $volname) = plugin_of($cfg, $volid);
    my ($path, $owner, $vtype) = $plugin->path($scfg, $volname, $storeid, $snap);
    return wantarray ? ($path, $owner, $vtype) : $path;
}

sub qemu_blockdev_options {
    my ($cfg, $volid, $machine, $options) = @_;
    my ($plugin, $scfg, $storeid, $volname) = plugin_of($cfg, $volid);
    return $plugin->qemu_blockdev_options($scfg, $storeid, $volname, $machine, $options);
}

sub vdisk_alloc {
    my ($cfg, $storeid, $vmid, $fmt, $name, $size) = @_;
    my ($plugin, $scfg) = plugin_of($cfg, $storeid);
    activate_storage($cfg, $storeid);
    my $code = sub { $plugin->alloc_image($storeid, $scfg, $vmid, $fmt, $name, $size) };
    return "$storeid:" . $plugin->cluster_lock_storage($storeid, $scfg->{shared}, undef, $code);
}

sub vdisk_free {
    my ($cfg, $volid) = @_;
    my ($plugin, $scfg, $storeid, $volname) = plugin_of($cfg, $volid);
    activate_storage($cfg, $storeid);
    my (undef, undef, undef, undef, undef, $is_base, $format) = $plugin->parse_volname($volname);
    my $code = sub { $plugin->free_image($storeid, $scfg, $volname, $is_base, $format) };
    $plugin->cluster_lock_storage($storeid, $scfg->{shared}, undef, $code);
}

sub vdisk_clone {
    my ($cfg, $volid, $vmid, $snap) = @_;
    my ($plugin, $scfg, $storeid, $volname) = plugin_of($cfg, $volid);
    activate_storage($cfg, $storeid);
    my $code = sub { $plugin->clone_image($scfg, $storeid, $volname, $vmid, $snap) };
    return "$storeid:" . $plugin->cluster_lock_storage($storeid, $scfg->{shared}, undef, $code);
}

sub vdisk_create_base {
    my ($cfg, $volid) = @_;
    my ($plugin, $scfg, $storeid, $volname) = plugin_of($cfg, $volid);
    activate_storage($cfg, $storeid);
    my $code = sub { $plugin->create_base($storeid, $scfg, $volname) };
    return "$storeid:" . $plugin->cluster_lock_storage($storeid, $scfg->{shared}, undef, $code);
}

sub rename_volume {
    my ($cfg, $volid, $vmid, $name) = @_;
    my ($plugin, $scfg, $storeid, $volname) = plugin_of($cfg, $volid);
    activate_storage($cfg, $storeid);
    my $code = sub { $plugin->rename_volume($scfg, $storeid, $volname, $vmid, $name) };
    return $plugin->cluster_lock_storage($storeid, $scfg->{shared}, undef, $code);
}

sub vdisk_list {
    my ($cfg, $storeid, $vmid, $volids) = @_;
    my ($plugin, $scfg) = plugin_of($cfg, $storeid);
    return { $storeid => $plugin->list_images($storeid, $scfg, $vmid, $volids, {}) };
}

sub volume_size_info {
    my ($cfg, $volid, $timeout) = @_;
    my ($plugin, $scfg, $storeid, $volname) = plugin_of($cfg, $volid);
    return $plugin->volume_size_info($scfg, $storeid, $volname, $timeout);
}

sub volume_resize {
    my ($cfg, $volid, $size, $running, $snap) = @_;
    my ($plugin, $scfg, $storeid, $volname) = plugin_of($cfg, $volid);
    return $plugin->volume_resize($scfg, $storeid, $volname, $size, $running, $snap);
}

sub volume_snapshot {
    my ($cfg, $volid, $snap) = @_;
    my ($plugin, $scfg, $storeid, $volname) = plugin_of($cfg, $volid);
    return $plugin->volume_snapshot($scfg, $storeid, $volname, $snap);
}

sub volume_snapshot_rollback {
    my ($cfg, $volid, $snap) = @_;
    my ($plugin, $scfg, $storeid, $volname) = plugin_of($cfg, $volid);
    $plugin->volume_rollback_is_possible($scfg, $storeid, $volname, $snap);
    return $plugin->volume_snapshot_rollback($scfg, $storeid, $volname, $snap);
}

sub volume_snapshot_delete {
    my ($cfg, $volid, $snap, $running) = @_;
    my ($plugin, $scfg, $storeid, $volname) = plugin_of($cfg, $volid);
    return $plugin->volume_snapshot_delete($scfg, $storeid, $volname, $snap, $running);
}

sub volume_snapshot_info {
    my ($cfg, $volid) = @_;
    my ($plugin, $scfg, $storeid, $volname) = plugin_of($cfg, $volid);
    return $plugin->volume_snapshot_info($scfg, $storeid, $volname);
}

sub volume_has_feature {
    my ($cfg, $feature, $volid, $snap, $running) = @_;
    my ($plugin, $scfg, $storeid, $volname) = plugin_of($cfg, $volid);
    return $plugin->volume_has_feature($scfg, $feature, $storeid, $volname, $snap, $running);
}

sub volume_export {
    my ($cfg, $fh, $volid, $format, @more) = @_;
    my ($plugin, $scfg, $storeid, $volname) = plugin_of($cfg, $volid);
    return $plugin->volume_export($scfg, $storeid, $fh, $volname, $format, @more);
}

sub volume_import {
    my ($cfg, $fh, $volid, $format, @more) = @_;
    my ($plugin, $scfg, $storeid, $volname) = plugin_of($cfg, $volid);
    return $plugin->volume_import($scfg, $storeid, $fh, $volname, $format, @more);
}

# Third-party plugins are loaded by whoever loads this.
require PVE::Storage::Custom::LunetPlugin;
PVE::Storage::Custom::LunetPlugin->register();

1;
