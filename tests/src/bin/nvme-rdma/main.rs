//! A host of NVMe over RDMA that does what the kernel's never would: for the lab, where `suites/nvme-rdma.sh` runs it
//! over soft RoCE.
//!
//! `nvme-rdma FROM TO NQN TRIAL [NUMBER]`: from this machine's address to a portal; the trials are in `TRIALS`.

mod capsule;
mod host;

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use lunet_nvme::rdma::ConnectRequest;

use capsule::{Capsule, Direction, SQE};
use host::{Controller, DATA, Host, MEMORY};

/// Each is run with an open device; the number is how often.
type Trial = fn(&mut Host, u64) -> Result<()>;

const TRIALS: [(&str, Trial); 6] = [
    ("many", many),
    ("crowd", crowd),
    ("wrong-key", wrong_key),
    ("requests", requests),
    ("capsules", capsules),
    ("noise", noise),
];

/// Queues for I/O of a controller in a crowd; it has an admin queue, too.
const QUEUES: u16 = 15;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvme-rdma: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [from, to, nqn, trial, rest @ ..] = args.as_slice() else {
        bail!("usage: nvme-rdma FROM TO NQN TRIAL [NUMBER]");
    };
    let from: IpAddr = from.parse().with_context(|| format!("{from} is no address"))?;
    let to: SocketAddr = to.parse().with_context(|| format!("{to} is no portal"))?;
    let number = match rest.first() {
        Some(text) => text.parse().with_context(|| format!("{text} is no number"))?,
        None => 100,
    };
    match TRIALS.iter().find(|(name, _)| name == trial) {
        Some((_, trial)) => trial(&mut Host::new(from, to, nqn)?, number),
        None => bail!("there is no trial {trial}"),
    }
}

/// Writes a pattern to the first 64 blocks and reads it back, by one queue.
fn served(host: &mut Host, controller: &mut Controller, queue: usize) -> Result<()> {
    let queue = &mut controller.io[queue];
    let pattern: Vec<u8> = (0..64 * 512).map(|i: u32| (i * 7 + i / 512) as u8).collect();
    let memory = host.keyed(DATA, 64 * 512)?;
    host.memory().write(DATA, &pattern);
    for direction in [Direction::Write, Direction::Read] {
        if matches!(direction, Direction::Read) {
            host.memory().zero(DATA, 64 * 512);
        }
        let answer = host.answer_to(queue, &Capsule::io(direction, 0, 64, memory))?;
        ensure!(answer.status == 0, "{direction:?}: status {:#x}", answer.status);
    }
    let mut found = vec![0; pattern.len()];
    host.memory().read(DATA, &mut found);
    ensure!(found == pattern, "other data came back");
    Ok(())
}

/// Whether a new controller is served.
fn healthy(host: &mut Host) -> Result<()> {
    let mut controller = host.controller(1)?;
    served(host, &mut controller, 0)?;
    host.hang_up(controller);
    Ok(())
}

/// Connections come and go, in all the ways in which they can.
fn many(host: &mut Host, count: u64) -> Result<()> {
    for round in 0..count {
        let ended = match round % 5 {
            0 => healthy(host),
            1 => reads_and_vanishes(host),
            // Neither a Connect nor a word.
            2 => host.connected(0, 0).map(|queue| host.vanish(queue)),
            // Before the controller's answer.
            3 => {
                let request = ConnectRequest { qid: 0, receives: 16, sqsize: 15, cntlid: 0 };
                host.ask(&request.to_bytes()).map(|queue| host.vanish(queue))
            }
            _ => host.controller(2).map(|controller| host.hang_up(controller)),
        };
        ended.with_context(|| format!("connection {round}"))?;
    }
    println!("{count} connections");
    Ok(())
}

fn reads_and_vanishes(host: &mut Host) -> Result<()> {
    let Controller { admin, mut io } = host.controller(1)?;
    let memory = host.keyed(DATA, 256 * 512)?;
    for _ in 0..4 {
        host.send(&mut io[0], &Capsule::io(Direction::Read, 0, 256, memory))?;
    }
    io.into_iter().chain([admin]).for_each(|queue| host.vanish(queue));
    Ok(())
}

/// So many queues at once, each of which is served.
fn crowd(host: &mut Host, count: u64) -> Result<()> {
    let mut controllers = Vec::new();
    for n in 0..count / u64::from(QUEUES + 1) {
        let controller = host.controller(QUEUES).with_context(|| format!("controller {n}"))?;
        controllers.push(controller);
    }
    println!("crowded");
    let mut queues = 0;
    for (n, controller) in controllers.iter_mut().enumerate() {
        for queue in 0..controller.io.len() {
            served(host, controller, queue)
                .with_context(|| format!("queue {queue} of controller {n}"))?;
            queues += 1;
        }
        queues += 1;
    }
    for controller in controllers {
        host.hang_up(controller);
    }
    println!("{queues} queues");
    Ok(())
}

/// Commands whose memory has another key than they say: their connection ends, and nothing is moved.
fn wrong_key(host: &mut Host, _: u64) -> Result<()> {
    for direction in [Direction::Read, Direction::Write] {
        let mut controller = host.controller(1)?;
        host.memory().zero(0, MEMORY);
        let mut memory = host.keyed(DATA, 128 * 512)?;
        memory.key ^= 0xff;
        let queue = &mut controller.io[0];
        host.send(queue, &Capsule::io(direction, 0, 128, memory))?;
        host.ended(queue).with_context(|| format!("{direction:?}"))?;
        let mut found = vec![1; MEMORY as usize];
        host.memory().read(0, &mut found);
        ensure!(found.iter().all(|byte| *byte == 0), "something was written");
        host.hang_up(controller);
    }
    healthy(host)
}

/// Requests for connections that no host makes: each is rejected, and says why.
fn requests(host: &mut Host, _: u64) -> Result<()> {
    let good = ConnectRequest { qid: 0, receives: 16, sqsize: 15, cntlid: 0 };
    let bytes = |request: ConnectRequest| request.to_bytes().to_vec();
    let mut format = bytes(good);
    format[0] = 1;
    for (private, why) in [
        (format, "Format"),
        (bytes(ConnectRequest { qid: 0xffff, ..good }), "Queue"),
        (bytes(ConnectRequest { sqsize: 0, ..good }), "SubmissionQueueSize"),
        (bytes(ConnectRequest { sqsize: 0xffff, receives: 0xffff, ..good }), "SubmissionQueueSize"),
        (bytes(ConnectRequest { receives: 0, ..good }), "ReceiveQueueSize"),
    ] {
        let said = host.refusal(&private)?.with_context(|| format!("{why}: it was accepted"))?;
        ensure!(said == format!("rejected: Some({why})"), "{said}, and not for its {why}");
    }
    // The controller is looked at when the Connect command comes, as nvmet does.
    let mut queue = host.connected(1, 0x7ffe)?;
    ensure!(host.connect(&mut queue, 1, 0x7ffe).is_err(), "a controller that is not there");
    host.vanish(queue);
    // With nothing to read, the request is as good as noise.
    let said = host.refusal(&[])?;
    ensure!(said.as_deref().is_some_and(|said| said.starts_with("rejected")), "{said:?}");
    healthy(host)
}

/// What is wrong with a capsule, and whether its connection may live on.
fn bad_capsules(host: &Host) -> Result<Vec<(&'static str, Capsule)>> {
    let memory = host.keyed(DATA, 8 * 512)?;
    let read = || Capsule::io(Direction::Read, 0, 8, memory);
    let write = || Capsule::io(Direction::Write, 0, 8, memory);
    let cut = |bytes| Capsule { cut: Some(bytes), ..read() };
    Ok(vec![
        ("an empty capsule", cut(0)),
        ("a capsule of 63 bytes", cut(SQE - 1)),
        ("an unknown opcode", read().set(0, &[0xee])),
        ("no SGL", read().set(1, &[0])),
        ("an SGL of an unknown type", read().set(39, &[0xc3])),
        ("a segment in place of a data block", read().set(39, &[0x30])),
        ("less memory than data", read().set(32, &[0, 2, 0])),
        ("no memory at all", read().set(32, &[0, 0, 0])),
        ("no such namespace", read().set(4, &[0xef, 0xbe, 0xad, 0xde])),
        ("blocks beyond the end", read().set(40, &u64::MAX.to_le_bytes())),
        ("all of the blocks that 16 bits count", read().set(48, &[0xff, 0xff]).set(32, &[0xff; 3])),
        ("a read into its own capsule", read().within(0, 4096).with(vec![1; 4096])),
        ("data of a write that did not come", write().within(0, 4096)),
        ("data of a write beyond what came", write().within(4096, 4096).with(vec![1; 4096])),
        (
            "data of a write at an offset without end",
            write().within(u64::MAX, 4096).with(vec![1; 4096]),
        ),
        ("more data than the controller takes", write().within(0, 65_536).with(vec![1; 65_536])),
        ("Connect once more", Capsule::connect(1, 15, memory)),
        ("a reservation without data", read().set(0, &[0x0d]).set(32, &[0, 0, 0])),
        (
            "ranges to deallocate that did not come",
            read().set(0, &[0x09]).set(40, &[0xff]).set(44, &[4]).within(0, 4096),
        ),
        ("fused with nothing", write().set(1, &[0x42])),
    ])
}

/// Each of them is answered with an error, or ends its connection; the server serves the next one.
fn capsules(host: &mut Host, _: u64) -> Result<()> {
    let mut told = 0;
    for (what, capsule) in bad_capsules(host)? {
        for on_admin in [false, true] {
            let mut controller = host.controller(1)?;
            let queue = if on_admin { &mut controller.admin } else { &mut controller.io[0] };
            let cid = host.send(queue, &capsule)?;
            let stands = host.outcome(queue).with_context(|| what.to_owned())?;
            if stands && capsule.cut.is_none() {
                let answer = host.answer(queue, cid)?;
                // Opcodes of the admin queue are others, and some need no data.
                ensure!(on_admin || answer.status != 0, "{what}: success");
                told += 1;
                if !on_admin {
                    served(host, &mut controller, 0).with_context(|| format!("after {what}"))?;
                }
            }
            host.hang_up(controller);
        }
    }
    before_connect(host)?;
    twice_at_once(host)?;
    println!("{told} answered, the others ended their connection");
    Ok(())
}

/// Commands on a connection that has no controller yet.
fn before_connect(host: &mut Host) -> Result<()> {
    let memory = host.keyed(DATA, 512)?;
    for capsule in [Capsule::io(Direction::Read, 0, 1, memory), Capsule::csts(), Capsule::queues(4)]
    {
        let mut queue = host.connected(0, 0)?;
        let cid = host.send(&mut queue, &capsule)?;
        if host.outcome(&mut queue)? {
            let answer = host.answer(&mut queue, cid)?;
            ensure!(answer.status != 0, "a command before Connect has succeeded: {capsule:?}");
        }
        host.vanish(queue);
    }
    healthy(host)
}

/// Two commands with one identifier, and more commands than the queue has entries.
fn twice_at_once(host: &mut Host) -> Result<()> {
    let memory = host.keyed(DATA, 128 * 512)?;
    for own_cid in [true, false] {
        let Controller { admin, mut io } = host.controller(1)?;
        let command = Capsule { own_cid, ..Capsule::io(Direction::Read, 0, 128, memory) };
        for _ in 0..40 {
            host.send(&mut io[0], &command)?;
        }
        host.outcome(&mut io[0])?;
        io.into_iter().chain([admin]).for_each(|queue| host.vanish(queue));
        healthy(host)?;
    }
    Ok(())
}

/// So many capsules of random bytes.
fn noise(host: &mut Host, count: u64) -> Result<()> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut controller = None;
    for n in 0..count {
        let mut it = match controller.take() {
            Some(it) => it,
            None => host.controller(1)?,
        };
        let mut sqe = [0; SQE];
        sqe.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&random().to_le_bytes()));
        // Half of them come near to what a host sends.
        if random() % 2 == 0 {
            let opcode = [0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0c, 0x0d, 0x19, 0x7f]
                [random() as usize % 10];
            sqe[0] = opcode;
            sqe[1] = 0x40;
            sqe[4..8].copy_from_slice(&1_u32.to_le_bytes());
            sqe[39] = [0x40, 0x4f, 0x01][random() as usize % 3];
        }
        let inside = vec![0x5a; [0, 0, 512, 4096][random() as usize % 4]];
        let capsule = Capsule { sqe, inside, cut: None, own_cid: false };
        let queue = if random() % 4 == 0 { &mut it.admin } else { &mut it.io[0] };
        // An answer may have to wait for what does not come, as that to an asynchronous event request.
        host.send(queue, &capsule)?;
        let stands = n % 8 != 7 && host.settled(queue)?;
        match stands {
            true => controller = Some(it),
            false => host.hang_up(it),
        }
    }
    println!("{count} capsules");
    healthy(host)
}
