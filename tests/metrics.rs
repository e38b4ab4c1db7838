//! The metrics of a running server, as Prometheus' own programs see them, and what `monitoring/` asks of them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunet_api::{Group, Session as Connected, Stats, Verdict, Volume};
use lunet_e2e::clients::SHORT;
use lunet_e2e::data::scratch;
use lunet_e2e::process::{Running, leashed, output};
use lunet_e2e::server::{DEMO_TARGET, Serve, Server, free_port};
use lunet_e2e::wire::{Login, Session};
use lunet_metrics::{Format, Snapshot, render_as};
use serde_json::Value;

/// How long Prometheus may take to start and to have a few samples.
const PATIENCE: Duration = Duration::from_secs(120);

fn monitoring() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../monitoring")
}

/// What a server answers, which its metrics are made of.
struct Answers {
    stats: Stats,
    sessions: Vec<Connected>,
    volumes: Vec<Volume>,
    groups: Vec<Group>,
    verdict: Option<Verdict>,
}

impl Answers {
    fn of(server: &Server, verdict: Option<Verdict>) -> Result<Self> {
        let ask = |words: &[&str]| server.tell(&[words, &["--json"]].concat());
        Ok(Self {
            stats: serde_json::from_str(&ask(&["stats"])?)?,
            sessions: serde_json::from_value(
                serde_json::from_str::<Value>(&ask(&["sessions"])?)?["sessions"].take(),
            )?,
            volumes: serde_json::from_str(&ask(&["volume", "list"])?)?,
            groups: serde_json::from_str(&ask(&["group", "list"])?)?,
            verdict,
        })
    }

    fn text(&self, format: Format) -> String {
        let snapshot = Snapshot {
            version: env!("CARGO_PKG_VERSION"),
            stats: &self.stats,
            volumes: &self.volumes,
            groups: &self.groups,
            sessions: &self.sessions,
            verdict: self.verdict.as_ref(),
            findings: Some(&[("risk", 0), ("slow", 1), ("note", 2)]),
            by_initiator: true,
        };
        render_as(&snapshot, format)
    }
}

fn verdict(server: &Server) -> Result<Verdict> {
    Ok(serde_json::from_str(&server.tell(&["verdict", "--json"])?)?)
}

/// A server with some load, and the session that makes it.
fn loaded() -> Result<(Server, Session)> {
    let server = Serve::demo("64M").start()?;
    let mut session = Session::open(&Login::new(server.portal(), DEMO_TARGET))?;
    session.settle(0)?;
    work(&mut session)?;
    Ok((server, session))
}

fn work(session: &mut Session) -> Result<()> {
    for n in 0..20 {
        session.write(0, n * 8, &[1; 4096], 512)?;
        session.read(0, 0, 16, 512)?;
    }
    session.flush(0)
}

/// The names of metrics in a query of PromQL, or a part of it.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("lunet_")).map(str::to_owned).collect()
}

/// The queries of the dashboard, and of its variables.
fn dashboard() -> Result<Vec<String>> {
    fn collect(value: &Value, into: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                let of = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
                into.extend(of("expr"));
                into.extend(of("query").filter(|query| query.contains("lunet_")));
                fields.values().for_each(|field| collect(field, into));
            }
            Value::Array(all) => all.iter().for_each(|one| collect(one, into)),
            _ => {}
        }
    }
    let text = fs::read_to_string(monitoring().join("dashboard.json"))?;
    let mut queries = Vec::new();
    collect(&serde_json::from_str(&text)?, &mut queries);
    ensure!(queries.len() > 20, "only {} queries were found", queries.len());
    Ok(queries)
}

/// The expressions of the rules.
fn rules() -> Result<Vec<String>> {
    let text = fs::read_to_string(monitoring().join("rules.yml"))?;
    let of = |line: &str| line.trim().strip_prefix("expr: ").map(str::to_owned);
    let all: Vec<String> = text.lines().filter_map(of).collect();
    ensure!(all.len() > 10, "only {} rules were found", all.len());
    Ok(all)
}

#[test]
fn promtool_finds_nothing_wrong() -> Result<()> {
    let (server, session) = loaded()?;
    let answers = Answers::of(&server, Some(verdict(&server)?))?;
    let mut command = Command::new("promtool");
    let mut child = command
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let text = answers.text(Format::Prometheus);
    child.stdin.take().context("no input")?.write_all(text.as_bytes())?;
    let done = child.wait_with_output()?;
    let said = [done.stdout, done.stderr].concat();
    ensure!(done.status.success(), "{}\n{text}", String::from_utf8_lossy(&said));
    let rules = monitoring().join("rules.yml");
    let told = output(Command::new("promtool").args(["check", "rules"]).arg(rules), SHORT)?;
    ensure!(told.contains("rules found"), "{told}");
    let config = monitoring().join("prometheus.yml");
    output(Command::new("promtool").args(["check", "config", "--syntax-only"]).arg(config), SHORT)?;
    session.logout()?;
    server.stop()?;
    Ok(())
}

#[test]
fn what_dashboard_and_rules_name_is_there() -> Result<()> {
    let (server, session) = loaded()?;
    let text = Answers::of(&server, Some(verdict(&server)?))?.text(Format::Prometheus);
    // A histogram has three names besides its own.
    let known = |name: &str| {
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let is = |name: &str| text.lines().any(|line| line.starts_with(&format!("# TYPE {name} ")));
        is(name) || family.is_some_and(is)
    };
    let mut seen = BTreeSet::new();
    for query in dashboard()?.iter().chain(&rules()?) {
        for name in names(query) {
            ensure!(known(&name), "{name} is not among the metrics: {query}");
            seen.insert(name);
        }
    }
    ensure!(seen.len() > 20, "only {seen:?}");
    // The page has all of them.
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md"))?;
    let listed = names(&page);
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap_or_default();
        ensure!(listed.contains(name), "{name} is not in docs/metrics.md");
    }
    session.logout()?;
    server.stop()?;
    Ok(())
}

/// Serves the metrics of a server, as its control thread does, until it is dropped.
struct Exporter {
    port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Exporter {
    fn start(server: Server) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let work = move || {
            let told = verdict(&server)?;
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                answer(&mut stream?, &server, &told)?;
            }
            server.stop()?;
            Ok(())
        };
        Ok(Self { port, stop, thread: Some(thread::spawn(work)) })
    }

    fn end(mut self) -> Result<()> {
        self.stop.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        let thread = self.thread.take().context("it was ended")?;
        thread.join().map_err(|_| anyhow::anyhow!("the exporter has panicked"))?
    }
}

/// Answers one request, in the format that it asks for.
fn answer(stream: &mut TcpStream, server: &Server, told: &Verdict) -> Result<()> {
    stream.set_read_timeout(Some(SHORT))?;
    let (mut request, mut piece) = (Vec::new(), [0; 4096]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut piece)? {
            0 => return Ok(()),
            n => request.extend_from_slice(&piece[..n]),
        }
    }
    let request = String::from_utf8_lossy(&request).to_lowercase();
    let accept = request.lines().find_map(|line| line.strip_prefix("accept: "));
    let format = Format::accepted(accept.unwrap_or_default());
    let text = Answers::of(server, Some(told.clone()))?.text(format);
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        format.media_type(),
        text.len()
    );
    // Prometheus may have given up.
    let _ = stream.write_all((head + &text).as_bytes());
    Ok(())
}

/// Asks Prometheus, and gives the results.
fn query(port: u16, words: &str) -> Result<Vec<Value>> {
    let coded: String = words.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(SHORT))?;
    write!(stream, "GET /api/v1/query?query={coded} HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let body = text.split_once("\r\n\r\n").context("no answer")?.1;
    let answer: Value = serde_json::from_str(body).with_context(|| text.clone())?;
    ensure!(answer["status"] == "success", "{words}: {answer}");
    Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default())
}

/// Asks until there is something.
fn wait_for(port: u16, words: &str) -> Result<Vec<Value>> {
    let until = Instant::now() + PATIENCE;
    loop {
        // It may not listen yet.
        let found = query(port, words);
        match found {
            Ok(found) if !found.is_empty() => return Ok(found),
            other => ensure!(Instant::now() < until, "{words}: {other:?}"),
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// The queries of the dashboard and the rules, by a real Prometheus that has read the metrics while there was load.
#[test]
fn prometheus_reads_the_metrics_and_answers_the_dashboard() -> Result<()> {
    let (server, mut session) = loaded()?;
    let exporter = Exporter::start(server)?;
    let (dir, port) = (scratch("lunet-prometheus-")?, free_port()?);
    let config = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: ['{}']\nscrape_configs:\n  - job_name: lunet\n    static_configs: [{{ targets: ['127.0.0.1:{}'] }}]\n",
        monitoring().join("rules.yml").canonicalize()?.display(),
        exporter.port,
    );
    fs::write(dir.path().join("prometheus.yml"), config)?;
    let mut command = leashed(None);
    command
        .arg("prometheus")
        .arg(format!("--config.file={}", dir.path().join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"));
    let mut prometheus = Running::spawn(&mut command)?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let load = thread::spawn(move || -> Result<()> {
        while !stopped.load(Ordering::SeqCst) {
            work(&mut session)?;
            thread::sleep(Duration::from_millis(20));
        }
        session.logout()
    });
    let checked = (|| -> Result<()> {
        wait_for(port, "up{job=\"lunet\"} == 1")?;
        wait_for(port, "rate(lunet_volume_operations_total{operation=\"read\"}[30s]) > 0")?;
        let empty = ["== 0", "errors_total", "stage_ratio", "portals"];
        for words in dashboard()?.iter().filter(|words| !words.starts_with("label_values")) {
            let words = words.replace("$__rate_interval", "30s");
            let words = words.replace("$instance", ".+").replace("$volume", ".+");
            let found = query(port, &words)?;
            let may_be_empty = empty.iter().any(|part| words.contains(part));
            ensure!(!found.is_empty() || may_be_empty, "nothing: {words}");
        }
        for words in rules()? {
            let found = query(port, &words)?;
            ensure!(found.is_empty(), "an alert of a server that is well: {words}: {found:?}");
        }
        Ok(())
    })();
    stop.store(true, Ordering::SeqCst);
    load.join().map_err(|_| anyhow::anyhow!("the load has panicked"))??;
    prometheus.kill()?;
    exporter.end()?;
    checked.with_context(|| prometheus.stderr.text())
}
