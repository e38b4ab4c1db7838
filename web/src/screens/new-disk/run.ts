/** The requests that make a disk, one after another, and how each is undone. */

import { signal } from "@preact/signals";
import { asProblem, newKey, noAnswer, path, type Problem, send } from "../../api/client";

export type Backend = "file" | "block" | "rbd" | "memory";

/** What the form has asked for. */
export interface DiskPlan {
  volume: {
    name: string;
    backend: Backend;
    size: number | null;
    path: string | null;
    /** Of a volume in a cluster of Ceph. */
    image?: string;
    ceph_user?: string;
    ceph_keyring?: string;
    full: boolean;
    block_size: number | null;
    write_through: boolean;
  };
  /** Address of a portal that is to be made first. */
  newPortal: string | null;
  target: { name: string; isNew: boolean };
  lun: number;
  initiator: string | null;
  user: { name: string; secret: string } | null;
}

interface Request {
  method: "POST" | "PUT" | "DELETE";
  path: string;
  body?: unknown;
  query?: Record<string, boolean>;
}

export type StepState = "waiting" | "running" | "done" | "failed" | "undone" | "kept";

export interface RunStep {
  title: string;
  request: Request;
  undo: Request;
  undoTitle: string;
  state: StepState;
  problem: Problem | null;
  key: string;
}

const step = (title: string, request: Request, undoTitle: string, undo: Request): RunStep => ({
  title,
  request,
  undo,
  undoTitle,
  state: "waiting",
  problem: null,
  key: newKey(),
});

/** Access comes before the LUN: nobody sees the disk who is not meant to. */
export function stepsOf(plan: DiskPlan): RunStep[] {
  const { volume, target, lun, initiator, user, newPortal } = plan;
  const out: RunStep[] = [];
  if (newPortal) {
    out.push(
      step(
        `Listen on ${newPortal}`,
        { method: "POST", path: "/portals", body: { address: newPortal, transport: [] } },
        `Stop listening on ${newPortal}`,
        { method: "DELETE", path: path`/portals/${newPortal}` },
      ),
    );
  }
  out.push(
    step(
      `Create the volume ${volume.name}`,
      { method: "POST", path: "/volumes", body: { ...volume, read_only: false } },
      `Delete the volume ${volume.name}`,
      { method: "DELETE", path: path`/volumes/${volume.name}`, query: { keep_data: false } },
    ),
  );
  if (target.isNew) {
    out.push(
      step(
        `Create the target ${target.name}`,
        { method: "POST", path: "/targets", body: { name: target.name, nvme: false } },
        `Delete the target ${target.name}`,
        { method: "DELETE", path: path`/targets/${target.name}` },
      ),
    );
  }
  if (user) {
    out.push(
      step(
        `Add the CHAP user ${user.name}`,
        {
          method: "POST",
          path: path`/targets/${target.name}/users`,
          body: { name: user.name, secret: { text: user.secret }, initiators: initiator ? [initiator] : [] },
        },
        `Remove the CHAP user ${user.name}`,
        { method: "DELETE", path: path`/targets/${target.name}/users/${user.name}`, query: { force: true } },
      ),
    );
  } else if (initiator) {
    out.push(
      step(
        `Allow ${initiator}`,
        { method: "POST", path: path`/targets/${target.name}/initiators`, body: { initiators: [initiator] } },
        `Deny ${initiator}`,
        { method: "DELETE", path: path`/targets/${target.name}/initiators/${initiator}`, query: { force: true } },
      ),
    );
  }
  out.push(
    step(
      `Map it as LUN ${lun}`,
      { method: "PUT", path: path`/targets/${target.name}/luns/${lun}`, body: { volume: volume.name } },
      `Unmap LUN ${lun}`,
      { method: "DELETE", path: path`/targets/${target.name}/luns/${lun}` },
    ),
  );
  return out;
}

/** Makes a disk, and can undo what has been made. */
export class Run {
  readonly steps = signal<RunStep[]>([]);
  readonly state = signal<"running" | "done" | "failed" | "undoing" | "undone" | "stuck">("running");

  constructor(readonly plan: DiskPlan) {
    this.steps.value = stepsOf(plan);
  }

  private set(at: number, change: Partial<RunStep>): void {
    this.steps.value = this.steps.value.map((it, index) => (index === at ? { ...it, ...change } : it));
  }

  /** Goes on from the first step that is not done. */
  async go(): Promise<void> {
    this.state.value = "running";
    for (let at = 0; at < this.steps.value.length; at += 1) {
      const it = this.steps.value[at];
      if (it.state === "done") continue;
      this.set(at, { state: "running", problem: null });
      try {
        const { method, path: to, body, query } = it.request;
        await send(method, to, { body, ...(query ? { query } : {}), key: it.key });
        this.set(at, { state: "done" });
      } catch (error) {
        const problem = asProblem(error);
        // By the same key an answer that was lost is had again; one that was a refusal would be repeated.
        this.set(at, { state: "failed", problem, key: noAnswer(problem) ? it.key : newKey() });
        this.state.value = "failed";
        return;
      }
    }
    this.state.value = "done";
  }

  /** Undoes what was done, the last first. What cannot be undone is named, and the rest is tried all the same. */
  async undo(): Promise<void> {
    this.state.value = "undoing";
    let stuck = false;
    for (let at = this.steps.value.length - 1; at >= 0; at -= 1) {
      const it = this.steps.value[at];
      const unclear = it.state === "failed" && it.problem !== null && noAnswer(it.problem);
      if (it.state !== "done" && it.state !== "kept" && !unclear) continue;
      try {
        const { method, path: to, query } = it.undo;
        await send(method, to, { ...(query ? { query } : {}), key: newKey() });
        this.set(at, { state: "undone", problem: null });
      } catch (error) {
        const problem = asProblem(error);
        if (problem.status === 404) {
          this.set(at, { state: "undone", problem: null });
          continue;
        }
        stuck = true;
        this.set(at, { state: "kept", problem });
      }
    }
    this.state.value = stuck ? "stuck" : "undone";
  }
}
