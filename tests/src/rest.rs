//! The REST interface of a server, asked over plain HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::server::Server;

const PATIENCE: Duration = Duration::from_secs(60);

/// A client of the interface.
pub struct Page {
    /// `ADDRESS:PORT` without TLS.
    pub address: String,
    /// The code of the first start, if there is no account yet.
    pub code: Option<String>,
    cookie: String,
    csrf: String,
    token: Option<String>,
}

/// An answer.
pub struct Reply {
    /// Of HTTP.
    pub status: u16,
    /// The first line and the headers.
    pub head: String,
    /// The body; null if it is no JSON.
    pub json: Value,
}

/// Sends a request with these headers, a line each, and reads the answer up to the end of the connection.
///
/// # Errors
/// The connection fails, or what comes is no HTTP.
pub fn exchange(
    mut stream: impl Read + Write,
    (method, path): (&str, &str),
    headers: &str,
    body: &Value,
) -> Result<Reply> {
    let text = if body.is_null() { String::new() } else { body.to_string() };
    // All at once: a server that refuses it by its head alone has closed the connection before the rest comes.
    let request = format!(
        "{method} {path} HTTP/1.1\r\n{headers}Content-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{text}",
        text.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    let json = serde_json::from_str(body).unwrap_or(Value::Null);
    Ok(Reply { status, head: head.to_owned(), json })
}

impl Page {
    /// The page that the server has printed.
    pub fn of(server: &mut Server) -> Result<Self> {
        let line = server.process().stdout.find(Instant::now() + PATIENCE, |text| {
            let line = text.lines().find(|line| line.starts_with("page: http://"))?;
            text.contains(&format!("{line}\n")).then(|| line.to_owned())
        });
        let line = line.context("no page was told")?;
        let rest = line.trim_start_matches("page: http://");
        let (address, rest) = rest.split_once('/').context("no address")?;
        let code = rest.strip_prefix(" first-start code: ").map(str::to_owned);
        let (cookie, csrf) = (String::new(), String::new());
        Ok(Self { address: address.to_owned(), code, cookie, csrf, token: None })
    }

    /// Asks; whatever the answer is.
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Reply> {
        self.ask_with(method, path, body, "")
    }

    /// The same with more headers, a line each.
    pub fn ask_with(&self, method: &str, path: &str, body: &Value, more: &str) -> Result<Reply> {
        let stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let who = match &self.token {
            Some(token) => format!("Authorization: Bearer {token}"),
            None => format!("Cookie: {}\r\nX-Lunet-CSRF: {}", self.cookie, self.csrf),
        };
        let headers = format!("Host: {}\r\n{more}{who}\r\n", self.address);
        exchange(stream, (method, path), &headers, body)
    }

    /// The same; demands success, and gives the answer.
    pub fn tell(&self, method: &str, path: &str, body: Value) -> Result<Value> {
        let reply = self.ask(method, path, &body)?;
        ensure!(reply.status < 300, "{method} {path}: {} {}", reply.status, reply.json);
        Ok(reply.json)
    }

    /// Reads something.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.tell("GET", path, Value::Null)
    }

    /// Takes over what a login has given.
    pub fn takes(&mut self, reply: &Reply) -> Result<()> {
        ensure!(reply.status == 200, "{} {}", reply.status, reply.json);
        let cookie = reply.head.lines().find_map(|line| line.strip_prefix("set-cookie: "));
        let cookie = cookie.and_then(|cookie| cookie.split(';').next()).context("no cookie")?;
        cookie.clone_into(&mut self.cookie);
        reply.json["csrf"].as_str().context("no CSRF")?.clone_into(&mut self.csrf);
        Ok(())
    }

    /// Makes the first account, an administrator's, and logs in.
    pub fn begin(&mut self) -> Result<()> {
        let code = self.code.clone().context("no code was told")?;
        let account = json!({"code": code, "name": "root", "password": "a good password"});
        let reply = self.ask("POST", "/api/v1/first-start", &account)?;
        self.takes(&reply)
    }
    /// A new token.
    pub fn token(&self, name: &str, role: &str, seconds: u64) -> Result<String> {
        let new = json!({"name": name, "role": role, "expires_seconds": seconds});
        let made = self.tell("POST", "/api/v1/tokens", new)?;
        made["token"].as_str().map(str::to_owned).context("no token")
    }

    /// The same interface, asked with a token.
    pub fn with_token(&self, token: String) -> Self {
        let (cookie, csrf) = (String::new(), String::new());
        Self { address: self.address.clone(), code: None, cookie, csrf, token: Some(token) }
    }
}
