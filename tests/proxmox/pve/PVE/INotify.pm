package PVE::INotify;

# The name of this node.

use strict;
use warnings;

our $nodename = 'node1';

sub nodename { return $nodename }

1;
