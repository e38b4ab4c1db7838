/** The server's events: what it did in the last second, what has changed, how jobs go on. */

import { jobMoved } from "./jobs";
import {
  connected,
  groups,
  HISTORY,
  history,
  jobs,
  portals,
  refused,
  sessions,
  snapshots,
  targets,
  noVerdict,
  verdict,
  volumes,
} from "./state";
import { asProblem, get } from "./api/client";
import type { Interval, Job, Verdict } from "./api/types";
import { signal } from "@preact/signals";

/** After a stream that the server has refused, the next try. */
const RETRY_MS = 5000;

/** Counts changes of the configuration, for whoever shows it. */
export const configChanges = signal(0);

/** Everything that a screen may show, read anew. */
export function refreshAll(): void {
  for (const one of [volumes, snapshots, targets, portals, sessions, refused, groups, jobs]) void one.refresh();
}

function changed(what: string): void {
  switch (what) {
    case "volumes":
      void volumes.refresh();
      void snapshots.refresh();
      void targets.refresh();
      break;
    case "targets":
      void targets.refresh();
      void volumes.refresh();
      break;
    case "portals":
      void portals.refresh();
      break;
    case "sessions":
      void sessions.refresh();
      void targets.refresh();
      void refused.refresh();
      break;
    case "groups":
      void groups.refresh();
      break;
    case "config":
      configChanges.value += 1;
      refreshAll();
      break;
    default:
      break;
  }
}

/** Follows the events until the function that it gives is called. */
export function follow(): () => void {
  let source: EventSource | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let stopped = false;

  const open = (): void => {
    source = new EventSource("/api/v1/events");
    source.onopen = () => {
      connected.value = true;
      // What happened while nobody listened is not told again.
      refreshAll();
    };
    source.onerror = () => {
      connected.value = false;
      if (source?.readyState === EventSource.CLOSED && !stopped) timer = setTimeout(open, RETRY_MS);
    };
    const on = <T>(name: string, then: (data: T) => void): void => {
      source?.addEventListener(name, (event) => then(JSON.parse((event as MessageEvent<string>).data) as T));
    };
    on<Interval>("interval", (interval) => {
      history.value = [...history.value.slice(1 - HISTORY), interval];
    });
    on<{ what: string }>("changed", ({ what }) => changed(what));
    on<Verdict>("verdict", (told) => {
      verdict.value = told;
    });
    on<Job>("job", (job) => jobMoved(job));
  };

  open();
  // The first verdict need not wait for an event.
  get<Verdict>("/verdict").then(
    (told) => {
      verdict.value ??= told;
    },
    (error: unknown) => {
      noVerdict.value = asProblem(error).status === 404;
    },
  );
  return () => {
    stopped = true;
    clearTimeout(timer);
    source?.close();
    connected.value = false;
  };
}
