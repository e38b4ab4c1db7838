package Lunet::Proxmox::Rest;

# A client of lunet's REST interface (docs/rest.md): token, pinned certificate, changes that may be sent again.

use strict;
use warnings;

use HTTP::Tiny;
use IO::Socket::SSL ();
use JSON::PP ();
use POSIX ();
use Time::HiRes qw(sleep time);

use Lunet::Proxmox::Limit;
use PVE::Tools ();

my $BASE = '/api/v1';

# Answers have some kilobytes for each volume, for which the decoder in perl takes thirty times as long.
my $DECODER = eval { require JSON::XS; 'JSON::XS' } // 'JSON::PP';

# Seconds for one request that reads, and for one that changes: lunet itself waits up to 20 seconds for its event loops.
our $READ_TIMEOUT = 15;
my $CHANGE_TIMEOUT = 25;

# Seconds for what Proxmox asks of all storages every ten seconds: the others wait for it.
our $STATUS_TIMEOUT = 4;

# A change is tried for so long, in seconds. Proxmox gives up what it does under the lock of a storage after 60.
my $PATIENCE = 45;

# The connections that there are, by server, each with the certificate that it was made for. A daemon keeps them for days.
my $http = {};

# Makes a client. `server`: address or name, `port`: 3261 if left out, `token`, and what the certificate has to be:
# `fingerprint` (SHA-256 in hexadecimal, colons or not) or `ca` (a file); with neither it has to be valid for the machine.
sub new {
    my ($class, %of) = @_;
    my $host = $of{server} =~ /:/ ? "[$of{server}]" : $of{server};
    my $self = bless { url => "https://$host:" . ($of{port} // 3261), token => $of{token} }, $class;
    my $pin;
    my $tls = { SSL_verify_mode => 1, SSL_verifycn_scheme => 'http', SSL_verifycn_name => $of{server} };
    if (my $fingerprint = $of{fingerprint}) {
        (my $hex = lc($fingerprint)) =~ s/://g;
        die "the fingerprint of lunet's certificate is not a SHA-256 in hexadecimal\n" if $hex !~ /^[0-9a-f]{64}$/;
        # This certificate and no other: SSL_fingerprint would also take any that an authority of this machine has signed.
        $tls->{SSL_verifycn_scheme} = 'none';
        $tls->{SSL_verify_callback} = sub { is_pinned($hex, @_[4, 5]) };
        $pin = $hex;
    } elsif ($of{ca}) {
        $tls->{SSL_ca_file} = $of{ca};
    }
    # Connections are kept for the next request to the same server. HTTP::Tiny does not use those of a parent process.
    my $trusted = $pin // $tls->{SSL_ca_file};
    my $known = $http->{ $self->{url} };
    if ($known && $known->{trusted} eq ($trusted // '')) {
        $self->{http} = $known->{http};
        return $self;
    }
    $self->{http} = HTTP::Tiny->new(
        agent => 'lunet-proxmox',
        max_redirect => 0,
        # What is to be checked is said in full: HTTP::Tiny has other defaults from version to version. Nor is a proxy asked, which
        # some variable of the environment names.
        verify_SSL => defined($trusted) ? 0 : 1,
        SSL_options => $tls,
        proxy => undef,
        http_proxy => undef,
        https_proxy => undef,
    );
    $http->{ $self->{url} } = { trusted => $trusted // '', http => $self->{http} };
    return $self;
}

# Is the certificate of this depth in its chain the one with the SHA-256, if it is the server's own?
sub is_pinned {
    my ($hex, $certificate, $depth) = @_;
    return 1 if $depth > 0;
    my $digest = Net::SSLeay::X509_digest($certificate, Net::SSLeay::EVP_get_digestbyname('sha256'));
    return unpack('H*', $digest) eq $hex ? 1 : 0;
}

# A part of a path.
sub part {
    my ($text) = @_;
    $text =~ s/([^A-Za-z0-9\-._~])/sprintf('%%%02X', ord($1))/ge;
    return $text;
}

# Sends one request. Returns the status, the decoded body and the ETag; the status is 0 if there was no answer, and the body
# is then the reason.
sub exchange {
    my ($self, $method, $path, $body, %more) = @_;
    my $headers = { Authorization => "Bearer $self->{token}", Accept => 'application/json' };
    $headers->{'Idempotency-Key'} = $more{key} if defined($more{key});
    $headers->{'If-Match'} = $more{match} if defined($more{match});
    my $options = { headers => $headers };
    if (defined($body)) {
        $headers->{'Content-Type'} = 'application/json';
        $options->{content} = JSON::PP->new->canonical->encode($body);
    }
    my $timeout = Lunet::Proxmox::Limit::left($more{timeout} // ($method eq 'GET' ? $READ_TIMEOUT : $CHANGE_TIMEOUT));
    my $began = time();
    my $answer = $self->request($timeout, $method, $path, $options);
    # A connection that was kept may be one that the server has closed.
    $answer = $self->request($timeout, $method, $path, $options)
        if $answer->{status} == 599 && $method eq 'GET' && time() - $began < 1;
    if ($answer->{status} == 599) {
        (my $why = $answer->{content}) =~ s/\s+\z//;
        return (0, $why);
    }
    my $json = eval { $DECODER->new->utf8->decode($answer->{content}) };
    return ($answer->{status}, $json, $answer->{headers}->{etag});
}

# One request over HTTP, in so many seconds: HTTP::Tiny itself counts them anew with each piece that comes.
sub request {
    my ($self, $timeout, $method, $path, $options) = @_;
    $self->{http}->timeout($timeout);
    my $ask = sub { $self->{http}->request($method, "$self->{url}$BASE$path", $options) };
    my $answer = eval { PVE::Tools::run_with_timeout(POSIX::ceil($timeout), $ask) };
    return $answer // { status => 599, content => $@ };
}

# The error of an answer: dies with lunet's own sentence.
sub refuse {
    my ($self, $what, $status, $json) = @_;
    die Lunet::Proxmox::Refused->new("lunet at $self->{url} does not answer: $json", 0, 'no-answer') if !$status;
    my ($text, $code) = ref($json) eq 'HASH' ? @$json{qw(detail code)} : ();
    $text //= "HTTP status $status";
    $code //= '';
    $text .= ' (is the token the right one, and has it not expired?)' if $status == 401;
    die Lunet::Proxmox::Refused->new("lunet: $what: $text", $status, $code);
}

# Reads. With `missing`, what is not there is undef and no error.
sub get {
    my ($self, $path, %more) = @_;
    my ($status, $json, $etag) = $self->exchange('GET', $path, undef, %more);
    return undef if $more{missing} && $status == 404;
    $self->refuse($path, $status, $json) if $status != 200;
    return wantarray ? ($json, $etag) : $json;
}

# 128 bits in hexadecimal.
sub random_key {
    open(my $fh, '<:raw', '/dev/urandom') or die "/dev/urandom: $!\n";
    read($fh, my $bytes, 16) == 16 or die "/dev/urandom is too short\n";
    return unpack('H*', $bytes);
}

# Changes something. A request without an answer is sent again with the same key: lunet makes that change once, and gives its
# first answer again. Behind another change it waits. Returns the answer; dies if lunet refuses it, except with a code that is in
# `unless`, or in `done_by` if an earlier request had no answer: lunet may have carried that out before it was started anew, and
# does not know its key any more. For these it returns undef, and in list context also the code.
sub change {
    my ($self, $method, $path, $body, %more) = @_;
    my $until = time() + Lunet::Proxmox::Limit::left($PATIENCE);
    my $key = random_key();
    my %unless = map { $_ => 1 } @{ $more{unless} // [] };
    for (my $pause = 0.2;; $pause = $pause < 3 ? $pause * 2 : 3) {
        my ($status, $json) = $self->exchange($method, $path, $body, key => $key, match => $more{match});
        return $json if $status >= 200 && $status < 300;
        my $code = $status && ref($json) eq 'HASH' ? $json->{code} // '' : '';
        my $waits = !$status || $status == 429 || ($status == 503 && $code ne 'failed') || $code eq 'change-under-way';
        if (!$waits || time() + $pause > $until) {
            return wantarray ? (undef, $code) : undef if $unless{$code};
            $self->refuse("$method $path", $status, $json);
        }
        if ($status) {
            # An answer would be given again under its key; the first request may still be under way under it.
            $key = random_key() if ($json->{detail} // '') !~ /Idempotency-Key/;
        } else {
            $unless{$_} = 1 for @{ $more{done_by} // [] };
        }
        sleep($pause);
    }
}

package Lunet::Proxmox::Refused;

# What lunet has refused, as an error with its code (docs/api.md, "Errors").

use strict;
use warnings;

use overload '""' => sub { $_[0]->{text} . "\n" }, fallback => 1;

sub new {
    my ($class, $text, $status, $code) = @_;
    return bless { text => $text, status => $status, code => $code }, $class;
}

sub code { return $_[0]->{code} }
sub status { return $_[0]->{status} }

1;
