//! The side that listens.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::wire::{CHUNK, Hello, MESSAGE, Status, VERSION, What, write_count};
use super::{MOST_SECONDS, MOST_STREAMS};

/// How long the server lets itself be used.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// It ends after this time, whoever still wants something.
    pub life: Duration,
    /// Connections at once: one for each stream.
    pub connections: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { life: Duration::from_secs(3600), connections: MOST_STREAMS }
    }
}

/// How often it looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(20);
/// Who says nothing for so long is let go.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves until `stop` is set or its life is over, and then waits for the connections it has: none lasts longer than a minute.
///
/// # Errors
/// The listener fails.
pub fn serve(listener: &TcpListener, limits: Limits, stop: &AtomicBool) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let began = Instant::now();
    let open = AtomicU32::new(0);
    thread::scope(|scope| {
        while !stop.load(Ordering::Relaxed) && began.elapsed() < limits.life {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    thread::sleep(LOOK);
                    continue;
                }
                // A client that is gone already, or too many open files: the others go on.
                Err(_) => {
                    thread::sleep(LOOK);
                    continue;
                }
            };
            let busy = open.fetch_add(1, Ordering::Relaxed) >= limits.connections;
            let open = &open;
            scope.spawn(move || {
                // What breaks is the client's to tell.
                let _ = connection(stream, busy, stop);
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    Ok(())
}

fn connection(mut stream: TcpStream, busy: bool, stop: &AtomicBool) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let Some(hello) = Hello::read(&mut stream)? else { return Ok(()) };
    let time = Duration::from_millis(hello.milliseconds);
    let known = hello.what.filter(|_| hello.version == VERSION && time.as_secs() <= MOST_SECONDS);
    let Some(what) = known else { return Status::Refused.write(&mut stream) };
    if busy {
        return Status::Busy.write(&mut stream);
    }
    Status::Welcome.write(&mut stream)?;
    stream.read_exact(&mut [0])?;
    // A client that sends on and on is let go as well.
    let end = Instant::now() + time + PATIENCE;
    let over = || stop.load(Ordering::Relaxed) || Instant::now() > end;
    match what {
        What::Send => receive(&mut stream, over),
        What::Receive => send(&mut stream, time, stop),
        What::Ping => echo(&mut stream, over),
    }
}

fn receive(stream: &mut TcpStream, over: impl Fn() -> bool) -> io::Result<()> {
    let (mut buffer, mut arrived) = (vec![0; CHUNK], 0);
    while !over() {
        match stream.read(&mut buffer)? {
            0 => return write_count(stream, arrived),
            bytes => arrived += bytes as u64,
        }
    }
    Ok(())
}

fn send(stream: &mut TcpStream, time: Duration, stop: &AtomicBool) -> io::Result<()> {
    let (buffer, began) = (vec![0x5a; CHUNK], Instant::now());
    while began.elapsed() < time && !stop.load(Ordering::Relaxed) {
        stream.write_all(&buffer)?;
    }
    stream.shutdown(std::net::Shutdown::Write)
}

fn echo(stream: &mut TcpStream, over: impl Fn() -> bool) -> io::Result<()> {
    let mut message = [0; MESSAGE];
    while !over() {
        match stream.read_exact(&mut message) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            told => told?,
        }
        stream.write_all(&message)?;
    }
    Ok(())
}
