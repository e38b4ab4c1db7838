//! The host against lunet's own subsystems in this process.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use lunet_backends::layers::{Effect, Layer, Ops, Which, wrap};
use lunet_client::front::{Front, Streams, Transport};
use lunet_client::nvme::{
    Error, Host, Login, Namespace, Purpose, Reader, Secret, Target, discover, inspect,
};
use lunet_client::rdma::Needs;
use lunet_client::verify::Fault;
use lunet_client::{BlockSize, DriverChoice, Order, Plan, ReadData, Verify, Workload, run};
use lunet_front_nvme::{Concatenation, Host as Listed, Hosts};

use crate::faulty::{Faulty, Plant};
use crate::support;
use crate::support::nvme::{NQN, Namespaces, memory, shown};

const MIB: u64 = 1 << 20;

/// Moves so many bytes.
fn sized(size: u64, block: u32) -> Workload {
    Workload { runtime: None, size: Some(size), ..Workload::new(block) }
}

/// As who the tests connect, without patience.
fn login(host: &str) -> Login {
    let host_nqn = format!("nqn.2026-11.local.lunet:{host}");
    Login { host_nqn, patience: Duration::from_secs(10), ..Login::default() }
}

fn ask(target: &Target, host: &str) -> Result<Namespace, Error> {
    inspect(target, &login(host))
}

#[test]
fn every_kind_of_load_moves_what_it_should() {
    let served = Namespaces::serve(vec![memory(16)]);
    for driver in [DriverChoice::Auto, DriverChoice::Epoll] {
        // Within capsules, by one R2T, by several.
        for (reads_percent, block) in
            [(100, 4096), (0, 4096), (50, 512), (0, 64 << 10), (100, MIB as u32), (0, MIB as u32)]
        {
            for read_data in [ReadData::Discard, ReadData::Receive] {
                for digest in ["", "?header_digest=crc32c&data_digest=crc32c"] {
                    let size = 32 * u64::from(block).max(64 << 10);
                    let workload =
                        Workload { reads_percent, read_data, jobs: 2, ..sized(size, block) };
                    let mut plan = Plan::new(Host::from(served.at(digest)), workload);
                    plan.driver = driver;
                    let outcome = run(&plan, &AtomicBool::new(false), |_| {}).expect("it runs");
                    let at = format!("{driver:?} {reads_percent} {block} {read_data:?} {digest}");
                    assert_eq!(outcome.failures(), Vec::<&str>::new(), "{at}");
                    assert_eq!(outcome.work.bytes(), size, "{at}");
                    assert_eq!(outcome.work.operations(), size / u64::from(block), "{at}");
                }
            }
        }
    }
    // Each run has shut its controller down; the server hears of the last one's end a moment later.
    let deadline = Instant::now() + Duration::from_secs(30);
    while served.controllers() > 0 {
        assert!(Instant::now() < deadline, "{} controllers are left", served.controllers());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn verified_loads_find_what_is_wrong_and_nothing_else() {
    let load = Workload {
        reads_percent: 50,
        jobs: 3,
        blocks: [(4 << 10, 2), (20 << 10, 1)]
            .map(|(bytes, weight)| BlockSize { bytes, weight })
            .to_vec(),
        flush_every: Some(10),
        fua: true,
        verify: Some(Verify::default()),
        ..sized(12 * MIB, 4 << 10)
    };
    let outcome = Namespaces::serve(vec![memory(8)]).run(load);
    let verify = outcome.verify.as_ref().expect("it was checked");
    assert_eq!((verify.wrong(), outcome.failures()), (0, vec![]), "{verify:?}");
    assert!(verify.checked > 1000 && !verify.incomplete && outcome.work.flush.operations > 5);
    let (volume, _) = Faulty::over(support::memory(8), Plant::FlipBit, 520);
    // In the second round over the volume, so that nothing is written over it.
    let once = Workload {
        reads_percent: 0,
        jobs: 1,
        depth: 8,
        order: Order::Sequential,
        flush_every: None,
        verify: Some(Verify::default()),
        ..sized(12 * MIB, 16 << 10)
    };
    let outcome = Namespaces::serve(vec![shown(volume)]).run(once);
    let verify = outcome.verify.expect("it was checked");
    let at = Fault::ALL.iter().position(|fault| *fault == Fault::Flipped).expect("it is there");
    assert_eq!((verify.wrong(), verify.faults[at]), (1, 1), "{:?}", verify.findings);
}

#[test]
fn more_jobs_than_a_controller_has_queues_get_another_controller() {
    let served = Namespaces::with(vec![memory(16)], |config| {
        config.options.queues = 2;
        config.options.queue_entries = 32;
    });
    let outcome = served.run(Workload { jobs: 5, ..sized(MIB, 4096) });
    assert_eq!((outcome.failures(), outcome.jobs.len()), (vec![], 5));
    assert_eq!(outcome.work.bytes(), MIB + 4096 * (256u64.next_multiple_of(5) - 256));
}

#[test]
fn errors_are_named() {
    let layer = Layer { which: Which::Nth(10), ..Layer::new(Effect::Fault(5), Ops::READ) };
    let (volume, _controls) = wrap(support::memory(16), &[layer]);
    let outcome = Namespaces::serve(vec![shown(volume)]).run(sized(MIB, 4096));
    let text = outcome.failures().join("; ");
    assert!(text.contains("read at LBA") && text.contains("unrecovered read error"), "{text}");
    let (volume, _controls) = wrap(support::memory(16), &[Layer::new(Effect::Hang, Ops::READ)]);
    let served = Namespaces::serve(vec![shown(volume)]);
    let mut plan = Plan::new(Host::from(served.at("")), Workload::new(4096));
    plan.command_timeout = Duration::from_millis(300);
    let outcome = run(&plan, &AtomicBool::new(false), |_| {}).expect("it begins");
    assert!(outcome.failures().join("; ").contains("was not answered"));
    _controls.switch(0, false);
}

#[test]
fn controllers_are_kept_alive() {
    let served = Namespaces::serve(vec![memory(16)]);
    let mut host = Host::from(served.at(""));
    host.login.keep_alive = Duration::from_secs(2);
    let (volume, _) = host.inspect().expect("a namespace");
    // More than twice its timeout without an I/O queue, and the controller is still there for one.
    std::thread::sleep(Duration::from_secs(5));
    let needs = Needs { lines: 1, depth: 1, largest: 4096, widest: 4096, constant: true };
    let mut transport = Streams::new(&needs).expect("TCP");
    host.connect(&volume, &mut transport).map(drop).expect("a queue");
}

#[test]
fn a_portal_tells_of_its_subsystems_and_they_of_their_namespaces() {
    let served = Namespaces::serve(vec![memory(16), memory(4)]);
    let offers = discover(&served.place(""), &login("a")).expect("a portal");
    let usable: Vec<_> = offers.iter().filter(|offer| offer.usable).collect();
    assert_eq!((usable.len(), usable[0].nqn.as_str(), usable[0].tls), (1, NQN, false));
    assert_eq!(usable[0].address, served.address().to_string());
    let unit = ask(&served.place(&format!("/{NQN}/2")), "a").expect("a namespace");
    assert_eq!((unit.nsid, unit.bytes(), unit.block_size), (2, 4 * MIB, 512));
    assert_eq!((unit.max_transfer, unit.read_only, unit.model.as_str()), (MIB, false, "lunet"));
    // What is not named is the only one there is.
    assert_eq!(ask(&served.place(""), "a").expect("a namespace").bytes(), 16 * MIB);
    let mut reader = Reader::open(&served.at(""), &login("a")).expect("a namespace");
    let mut part = vec![0xEE; 1000];
    reader.read(16 * MIB - 1000, &mut part).expect("it is there");
    assert!(part.iter().all(|byte| *byte == 0));
    let error = reader.read(16 * MIB - 500, &mut part).expect_err("the end");
    assert!(error.to_string().contains("LBA out of range"), "{error}");
    reader.close();
}

#[test]
fn what_is_refused_says_what_to_do() {
    let listed = |nqn: &str| Listed {
        nqn: nqn.into(),
        secret: None,
        controller_secret: None,
        tls: None,
        concatenation: Concatenation::Allowed,
    };
    let served = Namespaces::with(vec![memory(4)], |config| {
        let hosts = vec![listed("nqn.2026-11.local.lunet:a")];
        config.layout.subsystems[0].hosts = Hosts::Listed(hosts);
    });
    let says = |rest: &str, host: &str| {
        ask(&served.place(rest), host).map(drop).expect_err("it is refused").to_string()
    };
    let own = format!("/{NQN}");
    assert!(ask(&served.place(&own), "a").is_ok());
    let text = says(&own, "b");
    assert!(text.contains("does not let the host nqn.2026-11.local.lunet:b in"), "{text}");
    let text = says("/nqn.2026-11.local.lunet:none/1", "a");
    assert!(text.contains("no subsystem nqn.2026-11.local.lunet:none"), "{text}");
    let text = says(&format!("{own}/7"), "a");
    assert!(text.contains("no namespace 7") && text.contains("has 1 for this host"), "{text}");
    let text = says("/nqn.2014-08.org.nvmexpress.discovery", "a");
    assert!(text.contains("no namespaces"), "{text}");
    let text = says("", "b");
    assert!(text.contains("offers none to this host"), "{text}");
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let closed = format!("nvme-tcp://{}{own}", closed.expect("a port was free"));
    let error = ask(&Target::parse(&closed).expect("an address"), "a").expect_err("nobody");
    assert!(error.to_string().contains("listens for NVMe over TCP there"), "{error}");
}

/// How it ends at a server that answers the first bytes with these.
fn against(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody comes");
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(answer);
    });
    let target = Target::parse(&format!("nvme-tcp://{address}/{NQN}")).expect("an address");
    let error = ask(&target, "a").expect_err("no controller");
    server.join().expect("the server ends");
    error.to_string()
}

#[test]
fn what_is_no_controller_is_called_so() {
    for answer in [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0x15, 3, 3, 0, 2, 2, 40]] {
        let text = against(answer);
        assert!(text.contains("does not answer as NVMe over TCP does"), "{text}");
    }
}

#[test]
fn hosts_and_controllers_prove_themselves() {
    let secret = |byte| Secret::new(Purpose::DhChap, None, &[byte; 32]).expect("a secret");
    let served = Namespaces::with(vec![memory(4)], |config| {
        config.layout.subsystems[0].hosts = Hosts::Listed(vec![Listed {
            nqn: "nqn.2026-11.local.lunet:a".into(),
            secret: Some(secret(1)),
            controller_secret: Some(secret(2)),
            tls: None,
            concatenation: Concatenation::Allowed,
        }]);
    });
    let with = |own: Option<u8>, controller: Option<u8>| Target {
        secret: own.map(secret),
        controller_secret: controller.map(secret),
        ..served.at("")
    };
    for target in [with(Some(1), None), with(Some(1), Some(2))] {
        let host = Host { target, login: login("a") };
        let plan = Plan::new(host, Workload { jobs: 2, ..sized(MIB, 4096) });
        let outcome = run(&plan, &AtomicBool::new(false), |_| {}).expect("it runs");
        assert_eq!(outcome.failures(), Vec::<&str>::new());
    }
    let says = |own, controller| {
        let error = ask(&with(own, controller), "a").map(drop).expect_err("not let in");
        error.to_string()
    };
    let text = says(None, None);
    assert!(text.contains("authenticate") && text.contains("--secret-file"), "{text}");
    let text = says(Some(3), None);
    assert!(text.contains("could not prove itself (the secrets differ)"), "{text}");
    let text = says(Some(1), Some(3));
    assert!(text.contains("the controller did not prove itself"), "{text}");
    let text = says(None, Some(2));
    assert!(text.contains("wants the host's secret, too"), "{text}");
}
