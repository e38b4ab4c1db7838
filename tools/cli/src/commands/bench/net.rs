//! `lunet bench net`

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use lunet_bench::ceiling::net::{self, Limits, MOST_SECONDS, MOST_STREAMS, Measured, Plan};
use lunet_config::units::{self, Grain};

use super::stop;
use lunet_cli::print;

/// Where `net serve` listens, if nothing is said.
const PORT: u16 = 32600;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Net {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Where `lunet bench net serve` runs [default port: 32600]
    #[arg(value_name = "HOST[:PORT]", value_parser = address, required = true)]
    host: Option<SocketAddr>,
    /// Number of connections, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_STREAMS)))]
    streams: u32,
    /// Duration for each direction, 100ms to 59s
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = runtime)]
    runtime: Duration,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Verb {
    /// Let another machine measure the network to this one, for an hour at most
    Serve {
        /// Where to listen [default: all addresses, port 32600]; port 0 takes a free one
        #[arg(long, value_name = "ADDR[:PORT]", value_parser = address)]
        listen: Option<SocketAddr>,
    },
}

fn runtime(text: &str) -> Result<Duration, String> {
    let time = Duration::from_millis(units::parse_whole(text, Grain::Millisecond)?);
    let most = Duration::from_secs(MOST_SECONDS - 1);
    if !(Duration::from_millis(100)..=most).contains(&time) {
        return Err(format!("write a time from 100ms to {}s", most.as_secs()));
    }
    Ok(time)
}

/// Reads `HOST`, `HOST:PORT`, `ADDRESS`, `[ADDRESS]:PORT`.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let (host, port) = parts(text)?;
    let found = (host, port).to_socket_addrs().map_err(|_| {
        format!("the host {host} is not known: check the name, or give its address")
    })?;
    found.into_iter().next().ok_or_else(|| format!("the host {host} has no address"))
}

fn parts(text: &str) -> Result<(&str, u16), String> {
    let port = |text: &str| {
        text.parse().map_err(|_| format!("\"{text}\" is no port: a number up to 65535 is"))
    };
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, PORT),
        Some((host, rest)) => (host, port(rest.strip_prefix(':').unwrap_or(rest))?),
        None => match text.rsplit_once(':') {
            // More than one colon and no brackets: an address of IPv6.
            Some((host, _)) if host.contains(':') => (text, PORT),
            Some((host, number)) => (host, port(number)?),
            None => (text, PORT),
        },
    };
    if host.is_empty() {
        return Err("the host is missing: HOST[:PORT]".to_owned());
    }
    Ok((host, port))
}

pub fn run(options: &Net) -> Result<ExitCode> {
    match (&options.verb, options.host) {
        (Some(Verb::Serve { listen }), _) => serve(*listen),
        (None, Some(host)) => measure(options, host),
        (None, None) => anyhow::bail!("the host is missing: lunet bench net HOST[:PORT]"),
    }
}

fn serve(listen: Option<SocketAddr>) -> Result<ExitCode> {
    let listener = match listen {
        Some(address) => TcpListener::bind(address),
        None => everywhere(),
    };
    let place = listen.map_or_else(|| format!("port {PORT}"), |address| address.to_string());
    let listener = listener.with_context(|| format!("cannot listen at {place}"))?;
    let (address, limits, stop) = (listener.local_addr()?, Limits::default(), stop()?);
    print(&format!(
        "lunet bench net listens at {address}, for {} or until Ctrl-C\n",
        units::duration(limits.life)
    ))?;
    net::serve(&listener, limits, &stop)?;
    Ok(ExitCode::SUCCESS)
}

/// Both kinds of addresses where there are both.
fn everywhere() -> io::Result<TcpListener> {
    let six: SocketAddr = ([0u16; 8], PORT).into();
    let four: SocketAddr = ([0u8; 4], PORT).into();
    TcpListener::bind(six).or_else(|_| TcpListener::bind(four))
}

fn measure(options: &Net, host: SocketAddr) -> Result<ExitCode> {
    let plan = Plan { streams: options.streams, time: options.runtime };
    let measured = net::measure(host, plan)?;
    let text = match options.json {
        true => {
            let told = serde_json::json!({
                "address": host.to_string(),
                "to_server_mib_per_s": measured.to_server_mib_per_s,
                "from_server_mib_per_s": measured.from_server_mib_per_s,
                "round_trip_us": measured.round_trip_us,
                "streams": plan.streams,
                "seconds": plan.time.as_secs_f64(),
                "loopback": measured.loopback,
            });
            format!("{told:#}\n")
        }
        false => page(host, &measured),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn page(host: SocketAddr, measured: &Measured) -> String {
    let gbit = |mib: f64| mib * f64::from(1 << 20) * 8.0 / 1e9;
    let (to, from) = (measured.to_server_mib_per_s, measured.from_server_mib_per_s);
    let loopback = if measured.loopback {
        "This is the loopback of one machine: it measures memory and processors, not a network.\n"
    } else {
        ""
    };
    format!(
        "to {host}     {to:.0} MiB/s = {:.2} Gbit/s of data\n\
         from {host}   {from:.0} MiB/s = {:.2} Gbit/s of data\n\
         round trip  {:.0} us (64 bytes, median)\n\
         TCP, {} streams, {:.1} s each way. Headers take another 1 to 6 % of the link.\n{loopback}",
        gbit(to),
        gbit(from),
        measured.round_trip_us,
        measured.plan.streams,
        measured.plan.time.as_secs_f64(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_read() {
        assert_eq!(parts("nas"), Ok(("nas", PORT)));
        assert_eq!(parts("nas:99"), Ok(("nas", 99)));
        assert_eq!(parts("10.0.0.1:0"), Ok(("10.0.0.1", 0)));
        assert_eq!(parts("::1"), Ok(("::1", PORT)));
        assert_eq!(parts("[::1]"), Ok(("::1", PORT)));
        assert_eq!(parts("[::1]:7"), Ok(("::1", 7)));
        for wrong in ["", ":7", "nas:x", "[::1]7x", "nas:70000"] {
            assert!(parts(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_have_bounds() {
        assert_eq!(runtime("59s"), Ok(Duration::from_secs(59)));
        assert!(runtime("60s").is_err() && runtime("1ms").is_err());
        let error = runtime("100.5ms").expect_err("the other side is told whole milliseconds");
        assert!(error.contains("write whole milliseconds"), "{error}");
    }

    #[test]
    fn the_answer_has_units() {
        let measured = Measured {
            to_server_mib_per_s: 1000.0,
            from_server_mib_per_s: 500.0,
            round_trip_us: 41.6,
            plan: Plan::default(),
            loopback: true,
        };
        let text = page(([127, 0, 0, 1], PORT).into(), &measured);
        assert!(text.contains("1000 MiB/s = 8.39 Gbit/s") && text.contains("42 us"), "{text}");
        assert!(text.contains("not a network"), "{text}");
    }
}
