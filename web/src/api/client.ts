/** Requests to `/api/v1`. Every failure is a `Problem` with the server's own sentence. */

import type { Me } from "./types";

const BASE = "/api/v1";

/** What a failed request says: RFC 9457, or what there is of it. */
export class Problem extends Error {
  constructor(
    /** HTTP status; 0 if there was no answer. */
    readonly status: number,
    readonly code: string,
    /** One sentence with what is wrong and what to do. */
    readonly detail: string,
  ) {
    super(detail);
  }
}

/** What cannot be known after it: the request may have been carried out. */
export const noAnswer = (problem: Problem): boolean => problem.status === 0;

let csrf: string | null = null;
let ended: () => void = () => {};

/** The token that changes carry, from the login. */
export function rememberCsrf(token: string | null): void {
  csrf = token;
}

/** What to do when the server says that nobody is logged in. */
export function onSessionEnd(then: () => void): void {
  ended = then;
}

export interface Options {
  body?: unknown;
  query?: Record<string, string | number | boolean | undefined | null>;
  ifMatch?: string | null;
  /** `Idempotency-Key`: the same key gives the first answer again. */
  key?: string;
  signal?: AbortSignal;
}

export interface Answer<T> {
  data: T;
  etag: string | null;
}

/** A path with its parts encoded: `` path`/volumes/${name}` ``. */
export function path(parts: TemplateStringsArray, ...values: (string | number)[]): string {
  return parts.reduce((all, part, at) => all + encodeURIComponent(String(values[at - 1])) + part);
}

/** A key for `Idempotency-Key` that nobody else has. */
export function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function address(at: string, query: Options["query"]): string {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null) words.set(name, String(value));
  }
  const text = words.toString();
  return BASE + at + (text ? `?${text}` : "");
}

async function problemOf(answer: Response): Promise<Problem> {
  const text = await answer.text().catch(() => "");
  try {
    const told = JSON.parse(text) as { detail?: string; title?: string; code?: string };
    const detail = told.detail || told.title;
    if (detail) return new Problem(answer.status, told.code ?? "", sentence(detail));
  } catch {
    // Not from lunet's API: a proxy, or an older server.
  }
  const said = text.length > 0 && text.length < 300 ? `: ${text.trim()}` : "";
  return new Problem(answer.status, "", `The server answered with status ${answer.status}${said}.`);
}

/** The server's sentences begin small and have no full stop, as the command line prints them. */
export function sentence(text: string): string {
  const trimmed = text.trim();
  const first = /^[a-z]+[ ,]/.test(trimmed) ? trimmed[0].toUpperCase() + trimmed.slice(1) : trimmed;
  return /[.!?`)"]$/.test(first) ? first : `${first}.`;
}

/** Sends a request, and gives what came back. */
export async function send<T>(method: string, at: string, options: Options = {}): Promise<Answer<T>> {
  const headers = new Headers({ Accept: "application/json" });
  if (options.body !== undefined) headers.set("Content-Type", "application/json");
  if (method !== "GET" && csrf) headers.set("X-Lunet-CSRF", csrf);
  if (options.ifMatch) headers.set("If-Match", options.ifMatch);
  if (options.key) headers.set("Idempotency-Key", options.key);
  const request: RequestInit = { method, headers, credentials: "same-origin", cache: "no-store" };
  if (options.body !== undefined) request.body = JSON.stringify(options.body);
  if (options.signal) request.signal = options.signal;
  let answer: Response;
  try {
    answer = await fetch(address(at, options.query), request);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem(0, "", "The server does not answer: is lunet running, and can this browser reach it?");
  }
  if (!answer.ok) {
    const problem = await problemOf(answer);
    if (answer.status === 401 && at !== "/login" && at !== "/first-start") ended();
    throw problem;
  }
  const text = await answer.text();
  return { data: (text ? JSON.parse(text) : null) as T, etag: answer.headers.get("ETag") };
}

/** Reads what is at a path. */
export const get = async <T>(at: string, options?: Options): Promise<T> =>
  (await send<T>("GET", at, options)).data;

/** The error as a `Problem`, whatever it was. */
export function asProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  return new Problem(0, "", error instanceof Error ? error.message : String(error));
}

/** Who is logged in; nothing if nobody is. */
export async function whoami(): Promise<Me | null> {
  try {
    return await get<Me>("/me");
  } catch (error) {
    if (error instanceof Problem && error.status === 401) return null;
    throw error;
  }
}
