# Makes the first account of the lunet at 127.0.0.1:3261, and prints a token of an administrator: token.pl CODE.

use strict;
use warnings;

use HTTP::Tiny;
use JSON::PP;

my $http = HTTP::Tiny->new(timeout => 120);

sub post {
    my ($path, $body, %headers) = @_;
    my $answer = $http->post("http://127.0.0.1:3261/api/v1/$path", {
        headers => { 'Content-Type' => 'application/json', %headers }, content => encode_json($body),
    });
    die "$path: $answer->{status} $answer->{content}\n" if !$answer->{success};
    return ($answer, decode_json($answer->{content}));
}

my ($answer, $login) = post('first-start', { code => $ARGV[0], name => 'anna', password => 'correct horse battery' });
my ($cookie) = $answer->{headers}->{'set-cookie'} =~ /^([^;]+)/;
my $wanted = { name => 'pve', role => 'administrator', expires_seconds => 86400 };
my (undef, $made) = post('tokens', $wanted, Cookie => $cookie, 'X-Lunet-CSRF' => $login->{csrf});
print $made->{token};
