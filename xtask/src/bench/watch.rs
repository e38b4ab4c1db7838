//! Somebody who watches a server while it is measured, as Prometheus and an open page do.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunet_e2e::rest::Page;
use lunet_e2e::server::Server;
use serde_json::Value;

/// How often the metrics are read.
const INTERVAL: Duration = Duration::from_secs(1);

/// A token lasts so long, in seconds.
const DAY: u64 = 24 * 3600;

/// Reads the metrics once a second, and the events as they come, until it is dropped.
pub struct Watch {
    stop: Option<Sender<()>>,
    events: TcpStream,
    threads: Vec<JoinHandle<()>>,
}

impl Watch {
    /// Begins; the server has a REST interface on a loopback address, and no account yet.
    pub fn over(server: &mut Server) -> Result<Self> {
        let mut page = Page::of(server)?;
        page.begin()?;
        let token = page.token("watch", "viewer", DAY)?;
        let mut events = TcpStream::connect(&page.address)?;
        write!(
            events,
            "GET /api/v1/events HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\r\n",
            page.address
        )?;
        let mut lines = BufReader::new(events.try_clone()?).lines();
        let status = lines.next().context("no events")??;
        ensure!(status.contains(" 200 "), "events: {status}");
        let reader = page.with_token(token);
        let reply = reader.ask("GET", "/metrics", &Value::Null)?;
        ensure!(reply.status == 200, "metrics: {}", reply.status);
        let (stop, stopped) = channel();
        let scrape = move || {
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                // The end of the server ends the measurement, too.
                let _ = reader.ask("GET", "/metrics", &Value::Null);
            }
        };
        let read = move || lines.map_while(Result::ok).for_each(drop);
        let threads = vec![thread::spawn(scrape), thread::spawn(read)];
        Ok(Self { stop: Some(stop), events, threads })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.events.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
