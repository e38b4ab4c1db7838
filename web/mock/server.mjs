// A server that answers as lunet does, for working on the page without one: `node mock/server.mjs [PORT] [--empty]`.
// It serves web/dist, keeps its state in memory, and needs nothing but Node.

import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { dirname, extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { events, Refusal, routes } from "./api.mjs";
import { initial, interval, now, verdict } from "./state.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const DIST = join(here, "../dist");
const CSP =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".txt": "text/plain" };
const RANK = { viewer: 0, operator: 1, administrator: 2 };

/** The code that the first account is made with. */
export const CODE = "MOCK-2026";

/** Starts a server. Port 0 takes a free one. */
export function start({ port = 0, empty = false, pace = 150, history = 0 } = {}) {
  const server = {
    state: initial(empty),
    sessions: new Map(),
    readers: new Set(),
    timers: new Set(),
    failures: [],
    keys: new Map(),
    pace,
    tell(event, data) {
      for (const reader of server.readers) reader.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
    },
    happen: (name, data) => events[name](server, data ?? {}),
  };
  const table = routes(server);
  const http = createServer((request, response) => {
    handle(server, table, request, response).catch((error) => {
      console.error(error);
      response.destroy();
    });
  });
  const ticking = setInterval(() => {
    for (const it of server.state.sessions) it.connected_seconds += 1;
    server.tell("interval", interval(server.state, now()));
    server.tell("verdict", verdict(server.state));
  }, 1000);
  server.backlog = history;
  server.stop = () =>
    new Promise((resolve) => {
      clearInterval(ticking);
      for (const timer of server.timers) clearInterval(timer);
      for (const reader of server.readers) reader.end();
      http.close(resolve);
      http.closeAllConnections();
    });
  return new Promise((resolve) => {
    http.listen(port, "127.0.0.1", () => {
      server.url = `http://127.0.0.1:${http.address().port}`;
      resolve(server);
    });
  });
}

function problem(response, status, code, message, fix = "") {
  const detail = fix ? `${message}: ${fix}` : message;
  const body = { type: `urn:lunet:error:${code}`, title: code.replaceAll("-", " "), status, detail, code, message, fix };
  response.writeHead(status, { "Content-Type": "application/problem+json" });
  response.end(JSON.stringify(body));
}

function file(response, path) {
  const at = normalize(path === "/" ? "/index.html" : path);
  try {
    const content = readFileSync(join(DIST, at));
    response.writeHead(200, {
      "Content-Type": TYPES[extname(at)] ?? "application/octet-stream",
      "Content-Security-Policy": CSP,
      "X-Content-Type-Options": "nosniff",
      "Referrer-Policy": "no-referrer",
    });
    response.end(content);
  } catch {
    response.writeHead(404, { "Content-Type": "text/plain", "Content-Security-Policy": CSP });
    response.end("not found\n");
  }
}

async function bodyOf(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  const text = Buffer.concat(parts).toString();
  return text ? JSON.parse(text) : {};
}

function begin(server, response, account) {
  const id = randomBytes(16).toString("hex");
  const csrf = randomBytes(16).toString("hex");
  server.sessions.set(id, { name: account.name, csrf });
  response.setHeader("Set-Cookie", `lunet=${id}; HttpOnly; SameSite=Strict; Path=/`);
  return { name: account.name, role: account.role, csrf, expires: now() + 3600 };
}

function whoOf(server, request) {
  const id = /(?:^|; )lunet=([0-9a-f]+)/.exec(request.headers.cookie ?? "")?.[1];
  const login = id && server.sessions.get(id);
  const account = login && server.state.accounts.find((it) => it.name === login.name);
  return account ? { name: account.name, role: account.role, csrf: login.csrf, kind: "session", id } : null;
}

function json(response, status, data) {
  response.writeHead(status, { "Content-Type": "application/json" });
  response.end(JSON.stringify(data));
}

/** What needs no login. */
async function outside(server, request, response, path) {
  const { state } = server;
  switch (`${request.method} ${path}`) {
    case "GET /first-start":
      return json(response, 200, { needed: state.accounts.length === 0 });
    case "POST /first-start": {
      const { code, name, password } = await bodyOf(request);
      if (code !== CODE) return problem(response, 401, "unauthenticated", "this is not the code", "`lunet serve` has printed it, and a new one after five wrong ones");
      const account = { name, password, role: "administrator" };
      state.accounts.push(account);
      return json(response, 200, begin(server, response, account));
    }
    case "POST /login": {
      const { name, password } = await bodyOf(request);
      const account = state.accounts.find((it) => it.name === name && it.password === password);
      if (!account) return problem(response, 401, "unauthenticated", "the name or the password is wrong");
      return json(response, 200, begin(server, response, account));
    }
    default:
      return undefined;
  }
}

function stream(server, response) {
  response.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-store" });
  response.write(": lunet\n\n");
  // Charts of tests and pictures have a past at once.
  for (let at = server.backlog; at > 0; at -= 1) {
    response.write(`event: interval\ndata: ${JSON.stringify(interval(server.state, now() - at))}\n\n`);
  }
  server.readers.add(response);
  response.on("close", () => server.readers.delete(response));
}

function match(table, method, path) {
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  for (const route of table) {
    if (route.method !== method || route.parts.length !== parts.length) continue;
    const values = {};
    if (route.parts.every((it, at) => (it.startsWith(":") ? ((values[it.slice(1)] = parts[at]), true) : it === parts[at]))) return { route, values };
  }
  return null;
}

async function handle(server, table, request, response) {
  const url = new URL(request.url, "http://localhost");
  if (!url.pathname.startsWith("/api/v1")) return file(response, url.pathname);
  const path = url.pathname.slice("/api/v1".length);
  const early = await outside(server, request, response, path);
  if (early !== undefined || response.writableEnded) return;
  const who = whoOf(server, request);
  if (!who) return problem(response, 401, "unauthenticated", "nobody is logged in here", "log in, or send a token");
  if (request.method !== "GET" && request.headers["x-lunet-csrf"] !== who.csrf) return problem(response, 403, "forbidden", "the header X-Lunet-CSRF is missing or wrong");
  if (path === "/me") return json(response, 200, { name: who.name, role: who.role, csrf: who.csrf, kind: who.kind });
  if (path === "/events") return stream(server, response);
  if (path === "/logout") {
    server.sessions.delete(who.id);
    return json(response, 200, {});
  }
  return answer(server, table, request, response, { url, path, who });
}

async function answer(server, table, request, response, { url, path, who }) {
  const found = match(table, request.method, path);
  if (!found) return problem(response, 404, "not-found", `there is no ${request.method} ${path}`);
  const { route, values } = found;
  if (RANK[who.role] < RANK[route.role]) return problem(response, 403, "forbidden", `this needs the role ${route.role}`);
  const body = await bodyOf(request);
  const query = Object.fromEntries(url.searchParams);
  const dry = query.dry_run === "true";
  const failing = dry ? -1 : server.failures.findIndex((it) => it.method === request.method && path.includes(it.path));
  if (failing >= 0) {
    const [{ status, code, message, drop }] = server.failures.splice(failing, 1);
    if (drop) return response.destroy();
    return problem(response, status, code, message);
  }
  const key = request.headers["idempotency-key"];
  if (key && server.keys.has(key)) return json(response, 200, server.keys.get(key));
  const headers = {};
  try {
    const result = route.then(values, { body, query, dry, who, request, headers });
    for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
    if (key) server.keys.set(key, result);
    if (request.method !== "GET" && !dry && !path.startsWith("/jobs")) {
      server.state.audit.unshift({ time: now(), who: `${who.name} (session)`, address: "127.0.0.1", what: `${request.method} ${path}`, outcome: result.done ?? "done" });
    }
    json(response, request.method === "POST" && path === "/jobs" ? 202 : 200, result);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    problem(response, error.status, error.code, error.message, error.fix);
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const port = Number(process.argv.find((it) => /^\d+$/.test(it)) ?? 8090);
  const empty = process.argv.includes("--empty");
  const server = await start({ port, empty, pace: 600, history: 120 });
  console.log(`${server.url}, ${empty ? `first start with the code ${CODE}` : "login as admin with “correct horse battery”"}`);
}
