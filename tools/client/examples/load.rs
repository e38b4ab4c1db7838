//! Makes a load and says what came of it, in one line:
//! `load URL [block=4096] [depth=32] [jobs=1] [reads=100] [seconds=3] [order=random|sequential]
//! [data=discard|receive] [verify=no|yes] [driver=auto|epoll] [poll=MICROSECONDS]`

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lunet_client::iscsi::{Initiator, Target};
use lunet_client::verify::Fault;
use lunet_client::{DriverChoice, Order, Plan, ReadData, Verify, Workload, run};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_default();
    let options: HashMap<String, String> = arguments
        .filter_map(|argument| argument.split_once('=').map(|(k, v)| (k.into(), v.into())))
        .collect();
    match load(&url, &options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn load(url: &str, options: &HashMap<String, String>) -> Result<(), Box<dyn std::error::Error>> {
    let text = |key: &str, default: &str| options.get(key).map_or(default, |v| v).to_owned();
    let number = |key: &str, default: &str| {
        text(key, default).parse::<u32>().map_err(|_| format!("{key} is a number"))
    };
    let mut workload = Workload {
        depth: number("depth", "32")?,
        jobs: number("jobs", "1")?,
        reads_percent: number("reads", "100")?.min(255) as u8,
        runtime: Some(Duration::from_secs(number("seconds", "3")?.into())),
        ..Workload::new(number("block", "4096")?)
    };
    if text("order", "random") == "sequential" {
        workload.order = Order::Sequential;
    }
    if text("data", "discard") == "receive" {
        workload.read_data = ReadData::Receive;
    }
    if text("verify", "no") == "yes" {
        workload.verify = Some(Verify::default());
    }
    let mut plan = Plan::new(Initiator::from(Target::parse(url)?), workload);
    if text("driver", "auto") == "epoll" {
        plan.driver = DriverChoice::Epoll;
    }
    plan.busy_poll = Duration::from_micros(number("poll", "0")?.into());
    let outcome = run(&plan, &AtomicBool::new(false), |_| {})?;
    let latency = match outcome.work.read.operations {
        0 => &outcome.work.write.latency,
        _ => &outcome.work.read.latency,
    };
    let operations = outcome.work.operations().max(1);
    let waits: u64 = outcome.threads.iter().map(|thread| thread.waits).sum();
    println!(
        "{:.0} operations/s, {:.0} MiB/s, {:.0} operations per CPU second ({:.2} us each), \
         mean {:.1?}, 99 % {:.1?}, {:.1} operations per wait, {} + {} context switches",
        outcome.operations_per_second(),
        outcome.bytes_per_second() / f64::from(1 << 20),
        outcome.operations_per_cpu_second(),
        outcome.usage.cpu.as_secs_f64() * 1e6 / operations as f64,
        latency.mean(),
        latency.percentile(99.0),
        operations as f64 / waits.max(1) as f64,
        outcome.usage.voluntary,
        outcome.usage.involuntary,
    );
    if let Some(verify) = &outcome.verify {
        println!("{} blocks checked", verify.checked);
        for (fault, count) in Fault::ALL.iter().zip(verify.faults) {
            println!("{:10} {count}", fault.name());
        }
        for finding in verify.findings.iter().take(20) {
            println!("{finding}");
        }
    }
    for failure in outcome.failures() {
        println!("ended early: {failure}");
    }
    Ok(())
}
