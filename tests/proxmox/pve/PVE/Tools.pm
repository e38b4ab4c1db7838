package PVE::Tools;

# What the plugin uses of Proxmox's PVE::Tools, for machines without Proxmox.

use strict;
use warnings;

use base 'Exporter';
our @EXPORT_OK = qw(run_command run_with_timeout file_set_contents file_read_firstline);

# Does something in so many seconds, or dies.
sub run_with_timeout {
    my ($timeout, $code, @param) = @_;
    my $outer = alarm(0);
    my $result = eval {
        local $SIG{ALRM} = sub { die "got timeout\n" };
        alarm($timeout);
        my $result = eval { $code->(@param) };
        alarm(0);
        die $@ if $@;
        $result;
    };
    my $error = $@;
    alarm($outer);
    die $error if $error;
    return $result;
}

# Runs a program without a shell. `input` and `output` are file descriptors (`<&3`, `>&3`), `outfunc` and `errfunc` get lines. It is
# ended after `timeout` seconds.
sub run_command {
    my ($command, %how) = @_;
    pipe(my $read, my $write) or die "pipe: $!\n";
    my $pid = fork() // die "fork: $!\n";
    if (!$pid) {
        open(STDIN, $how{input} // '</dev/null') or die "stdin: $!\n";
        open(STDOUT, $how{output} // '>&' . fileno($write)) or die "stdout: $!\n";
        exec { $command->[0] } @$command or die "$command->[0]: $!\n";
    }
    close($write);
    my $collect = sub {
        while (my $line = <$read>) {
            chomp($line);
            $how{outfunc} ? $how{outfunc}->($line) : print "$line\n";
        }
        waitpid($pid, 0);
    };
    if (!$how{timeout}) {
        $collect->();
    } elsif (!eval { run_with_timeout($how{timeout}, $collect); 1 }) {
        my $error = $@;
        kill('KILL', $pid);
        waitpid($pid, 0);
        die(($how{errmsg} // "command '@$command' failed") . ": $error");
    }
    return 0 if !$?;
    die(($how{errmsg} // "command '@$command' failed") . ': exit code ' . ($? >> 8) . "\n");
}

sub file_set_contents {
    my ($file, $text, $mode) = @_;
    unlink($file);
    sysopen(my $fh, $file, Fcntl::O_WRONLY() | Fcntl::O_CREAT() | Fcntl::O_EXCL(), $mode) or die "$file: $!\n";
    print {$fh} $text or die "$file: $!\n";
    close($fh) or die "$file: $!\n";
}

sub file_read_firstline {
    my ($file) = @_;
    open(my $fh, '<', $file) or return undef;
    my $line = <$fh> // return undef;
    chomp($line);
    # As the original: whoever may write the file is trusted.
    return $line =~ /^(.*)\z/ ? $1 : undef;
}

1;
