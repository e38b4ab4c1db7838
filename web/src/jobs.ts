/** Jobs: doctor, tuner and benchmark, which run as programs of their own on the server. */

import { signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { asProblem, get, path, type Problem, send } from "./api/client";
import type { Job } from "./api/types";
import { jobs } from "./state";

/** Results that have been read, by the job's identifier. */
const results = signal<Record<string, Job>>({});

/** While a job runs it is asked for this often, in case that no event arrives. */
const POLL_MS = 2000;

/** Puts a job that an event has told of into the list. */
export function jobMoved(job: Job): void {
  const all = jobs.data.value;
  if (!all) return;
  const known = all.some((one) => one.id === job.id);
  jobs.data.value = known ? all.map((one) => (one.id === job.id ? { ...one, ...job } : one)) : [job, ...all];
}

/** The jobs of some kinds, newest first. */
export function jobsOf(...kinds: string[]): Job[] {
  const all = (jobs.data.value ?? []).filter((job) => kinds.includes(job.kind));
  return all.sort((a, b) => b.started - a.started || Number(b.id) - Number(a.id));
}

/** A job with its result, read once it has ended. */
export function useFinished(job: Job | undefined): Job | undefined {
  const id = job?.id;
  const ended = job !== undefined && job.state !== "running";
  useEffect(() => {
    if (!id || !ended || results.value[id]) return;
    get<Job>(path`/jobs/${id}`).then(
      (whole) => {
        results.value = { ...results.value, [whole.id]: whole };
      },
      () => {},
    );
  }, [id, ended]);
  return id ? results.value[id] : undefined;
}

/** The newest finished job of a kind whose result is of the form that is looked for. */
export function useResult<T>(kind: string, is: (result: unknown) => result is T): { job: Job; result: T } | undefined {
  const ended = jobsOf(kind).filter((job) => job.state === "done" || job.state === "failed");
  // Not all: results may be large, and what matters is new.
  const candidates = ended.slice(0, 6);
  const ids = candidates.map((job) => job.id).join(" ");
  useEffect(() => {
    let stopped = false;
    const look = async (): Promise<void> => {
      for (const job of candidates) {
        const whole = results.value[job.id] ?? (await get<Job>(path`/jobs/${job.id}`).catch(() => null));
        if (stopped || !whole) return;
        if (!results.value[whole.id]) results.value = { ...results.value, [whole.id]: whole };
        if (is(whole.result)) return;
      }
    };
    void look();
    return () => {
      stopped = true;
    };
  }, [ids]);
  for (const job of candidates) {
    const whole = results.value[job.id];
    if (whole && is(whole.result)) return { job: whole, result: whole.result };
  }
  return undefined;
}

export interface Run {
  /** The newest job of the kind that this screen has begun, or that runs already. */
  job: Job | undefined;
  problem: Problem | null;
  starting: boolean;
  start: (options?: Record<string, unknown>) => Promise<Job | null>;
  cancel: () => Promise<void>;
}

/** Starts a job of a kind, and follows it. */
export function useRun(kind: string): Run {
  const own = useSignal<string | null>(null);
  const problem = useSignal<Problem | null>(null);
  const starting = useSignal(false);
  useEffect(() => jobs.want(), []);
  const all = jobsOf(kind);
  const job = all.find((one) => one.id === own.value) ?? all.find((one) => one.state === "running");
  const running = job?.state === "running" ? job.id : null;
  useEffect(() => {
    if (!running) return;
    const timer = setInterval(() => {
      get<Job>(path`/jobs/${running}`).then(jobMoved, () => {});
    }, POLL_MS);
    return () => clearInterval(timer);
  }, [running]);

  const start = async (options: Record<string, unknown> = {}): Promise<Job | null> => {
    problem.value = null;
    starting.value = true;
    try {
      const begun = await send<Job>("POST", "/jobs", { body: { kind, options } });
      if (!jobs.data.value) await jobs.refresh();
      jobMoved(begun.data);
      own.value = begun.data.id;
      return begun.data;
    } catch (error) {
      problem.value = asProblem(error);
      return null;
    } finally {
      starting.value = false;
    }
  };
  const cancel = async (): Promise<void> => {
    if (!job) return;
    try {
      jobMoved((await send<Job>("DELETE", path`/jobs/${job.id}`)).data);
    } catch (error) {
      problem.value = asProblem(error);
    }
  };
  return { job, problem: problem.value, starting: starting.value, start, cancel };
}
