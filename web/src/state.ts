/** What this page knows of the server, shared by all screens. */

import { computed, signal } from "@preact/signals";
import { asProblem, get, onSessionEnd, type Problem, rememberCsrf, send, whoami } from "./api/client";
import type {
  Facts,
  Group,
  Interval,
  Job,
  Me,
  Portal,
  Refused,
  Role,
  Session,
  Snapshot,
  Target,
  Verdict,
  Volume,
} from "./api/types";

/** Something on the server that is read again whenever it has changed. */
export class Resource<T> {
  readonly data = signal<T | undefined>(undefined);
  readonly problem = signal<Problem | null>(null);
  private running: Promise<void> | null = null;
  private again = false;

  constructor(private readonly load: () => Promise<T>) {}

  /** Reads it. A call while one is under way makes one more afterwards: what is read is never older than the call. */
  refresh(): Promise<void> {
    if (this.running) {
      this.again = true;
      return this.running;
    }
    this.running = this.read().finally(() => {
      this.running = null;
    });
    return this.running;
  }

  private async read(): Promise<void> {
    do {
      this.again = false;
      try {
        this.data.value = await this.load();
        this.problem.value = null;
      } catch (error) {
        this.problem.value = asProblem(error);
      }
    } while (this.again);
  }

  /** Reads it if it has not been read yet. */
  want(): void {
    if (this.data.value === undefined && !this.running) void this.refresh();
  }

  /** Forgets it: another person logs in. */
  clear(): void {
    this.data.value = undefined;
    this.problem.value = null;
  }
}

export const volumes = new Resource<Volume[]>(() => get("/volumes"));
export const snapshots = new Resource<Snapshot[]>(() => get("/snapshots"));
export const targets = new Resource<Target[]>(() => get("/targets"));
export const portals = new Resource<Portal[]>(() => get("/portals"));
export const sessions = new Resource<Session[]>(() => get("/sessions"));
export const refused = new Resource<Refused[]>(() => get("/refused"));
export const groups = new Resource<Group[]>(() => get("/groups"));
export const facts = new Resource<Facts>(() => get("/facts"));
export const jobs = new Resource<Job[]>(() => get("/jobs"));
const ALL = [volumes, snapshots, targets, portals, sessions, refused, groups, facts, jobs];

/** Who is logged in: `undefined` until the server has said it, `null` if nobody is. */
export const me = signal<Me | null | undefined>(undefined);

/** Whether the first account is still to be made. */
export const firstStart = signal(false);

/** Why the page could not begin. */
export const startProblem = signal<Problem | null>(null);

/** The newest verdict of the server. */
export const verdict = signal<Verdict | null>(null);

/** The server does not tell one: it is of another version. */
export const noVerdict = signal(false);

/** The intervals of the last minutes, oldest first. */
export const history = signal<Interval[]>([]);
export const HISTORY = 300;
export const latest = computed(() => history.value.at(-1));

/** Whether the server's events arrive. */
export const connected = signal(false);

const RANK: Record<Role, number> = { viewer: 0, operator: 1, administrator: 2 };

/** Whether who is logged in has a role, or one that may do more. */
export function may(role: Role): boolean {
  const own = me.value?.role;
  return own !== undefined && RANK[own] >= RANK[role];
}

/** Takes who logged in. */
export function loggedIn(who: Me): void {
  rememberCsrf(who.csrf);
  me.value = who;
}

/** Forgets who was logged in, and what was shown to them. */
export function loggedOut(): void {
  rememberCsrf(null);
  me.value = null;
  history.value = [];
  verdict.value = null;
  for (const one of ALL) one.clear();
}

onSessionEnd(() => {
  if (me.value) loggedOut();
});

export async function logOut(): Promise<void> {
  try {
    await send("POST", "/logout");
  } finally {
    loggedOut();
  }
}

/** Asks the server how to begin: first start, login, or go on. */
export async function begin(): Promise<void> {
  startProblem.value = null;
  try {
    const who = await whoami();
    if (who) {
      loggedIn(who);
      return;
    }
    firstStart.value = (await get<{ needed: boolean }>("/first-start")).needed;
    me.value = null;
  } catch (error) {
    startProblem.value = asProblem(error);
  }
}
