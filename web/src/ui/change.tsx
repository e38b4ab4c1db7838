/** A change of the server that is previewed by a dry run before it is carried out. */

import type { ComponentChildren } from "preact";
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { asProblem, newKey, noAnswer, type Problem, send } from "../api/client";
import type { Done, Preview, SessionChange } from "../api/types";
import { announce } from "./announce";
import { Button, Checkbox, Loading, Notice, ProblemNotice, TextField } from "./basics";
import { Dialog } from "./dialog";

/** A request that changes something. `force` and `keep_sessions` go where the method wants them. */
export interface Change {
  method: "POST" | "PUT" | "PATCH" | "DELETE";
  path: string;
  body?: Record<string, unknown>;
  query?: Record<string, string | number | boolean | undefined>;
  ifMatch?: string | null;
  /** It takes `force`. */
  forces?: boolean;
  /** It takes `keep_sessions`. */
  keeps?: boolean;
  /** There is no dry run of it: it is about accounts, tokens, or storage that has to be opened to know what it holds. */
  blind?: boolean;
}

/** What a change without a dry run is told to do. */
const NOTHING: Preview = { file: "", changes: [], notes: [], sessions: [], refused: null };

/** Refusals that `force` overrides. */
const FORCIBLE = ["in-use", "changes-access"];

/** What a refused dry run says, where the change can be had by force all the same. */
function refusal(change: Change, problem: Problem): Preview | null {
  return change.forces && FORCIBLE.includes(problem.code) ? { ...NOTHING, refused: problem.detail } : null;
}

interface Choices {
  force: boolean;
  keep: boolean;
}

/** Sends a change, or asks by `dry` what it would do. */
export function carryOut<T>(change: Change, choices: Choices, dry: boolean, key?: string): Promise<T> {
  const flags = {
    ...(change.forces ? { force: choices.force } : {}),
    ...(change.keeps ? { keep_sessions: choices.keep } : {}),
  };
  const inQuery = change.method === "DELETE";
  const body = inQuery ? change.body : { ...change.body, ...flags };
  return send<T>(change.method, change.path, {
    query: { ...change.query, ...(inQuery ? flags : {}), ...(dry ? { dry_run: true } : {}) },
    ...(body && (Object.keys(body).length > 0 || change.body) ? { body } : {}),
    ...(change.ifMatch ? { ifMatch: change.ifMatch } : {}),
    ...(key && !dry ? { key } : {}),
  }).then((answer) => answer.data);
}

const FATES: Record<string, string> = { ends: "ends", stays: "stays, although it could not log in now" };

/** What happens to sessions, one a line. */
export function SessionList({ sessions }: { sessions: SessionChange[] }) {
  if (sessions.length === 0) return null;
  return (
    <ul class="plain-list">
      {sessions.map((it) => (
        <li key={`${it.session} ${it.initiator} ${it.lun}`}>
          <span class="name">{it.initiator}</span> from {it.peer}{" "}
          <strong>
            {it.fate === "loses-lun" ? `loses LUN ${it.lun ?? ""} (${it.volume ?? ""})` : (FATES[it.fate] ?? it.fate)}
          </strong>
          {it.why && `: ${it.why}`}
        </li>
      ))}
    </ul>
  );
}

/** What a dry run has said. */
export function PreviewView({ preview, plain }: { preview: Preview; plain?: boolean }) {
  return (
    <div class="preview">
      {preview.changes.length > 0 && (
        <ul class="plain-list">
          {preview.changes.map((it, at) => (
            <li key={at}>
              {it.what} <span class="name">{it.name}</span> {it.change}
            </li>
          ))}
        </ul>
      )}
      {preview.sessions.length > 0 && (
        <>
          <h3>Sessions that are affected</h3>
          <SessionList sessions={preview.sessions} />
        </>
      )}
      {preview.notes.map((note) => (
        <p key={note} class="muted">
          {note}
        </p>
      ))}
      {!plain && preview.changes.length === 0 && preview.sessions.length === 0 && !preview.refused && (
        <p class="muted">No session is affected.</p>
      )}
    </div>
  );
}

interface ChangeDialogProps {
  title: string;
  /** The button that does it. */
  verb: string;
  danger?: boolean;
  change: Change;
  /** To be typed before something is lost for good. */
  type?: string;
  children?: ComponentChildren;
  onClose: () => void;
  onDone?: (done: Done) => void;
}

/** Asks before a change: shows by a dry run what it costs. */
export function ChangeDialog(props: ChangeDialogProps) {
  const { title, verb, danger, change, type, children, onClose, onDone } = props;
  const preview = useSignal<Preview | null>(change.blind ? NOTHING : null);
  const problem = useSignal<Problem | null>(null);
  const choices = useSignal<Choices>({ force: false, keep: false });
  const typed = useSignal("");
  const busy = useSignal(false);
  const key = useRef(newKey());
  const described = JSON.stringify([change, choices.value]);

  useEffect(() => {
    let stopped = false;
    if (change.blind) return;
    carryOut<Preview>(change, choices.value, true).then(
      (told) => {
        if (!stopped) [preview.value, problem.value] = [told, null];
      },
      (error: unknown) => {
        if (stopped) return;
        const told = asProblem(error);
        preview.value = refusal(change, told);
        problem.value = preview.value ? null : told;
      },
    );
    return () => {
      stopped = true;
    };
  }, [described]);

  const refused = preview.value?.refused ?? null;
  const ready = preview.value !== null && (refused === null || choices.value.force) && (!type || typed.value === type);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (!ready || busy.value) return;
    busy.value = true;
    try {
      const done = await carryOut<Done>(change, choices.value, false, key.current);
      announce(done.done ? `${done.done}.` : "Done.");
      onDone?.(done);
      onClose();
    } catch (error) {
      problem.value = asProblem(error);
      // The key stays only where the first answer may still be had by it.
      if (!noAnswer(problem.value)) key.current = newKey();
    } finally {
      busy.value = false;
    }
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={(event) => void submit(event)}>
        {children}
        {preview.value ? <PreviewView preview={preview.value} plain={change.blind ?? false} /> : !problem.value && <Loading what="Asking what this would do" />}
        {refused && !choices.value.force && (
          <Notice tone="warn" title="The server would refuse this:">
            <p>{refused}</p>
          </Notice>
        )}
        <ProblemNotice problem={problem.value} />
        {change.forces && (refused || choices.value.force) && (
          <Checkbox checked={choices.value.force} onChange={(force) => (choices.value = { ...choices.value, force })}>
            Do it all the same (force)
          </Checkbox>
        )}
        {change.keeps && (preview.value?.sessions.length ?? 0) > 0 && (
          <Checkbox
            checked={choices.value.keep}
            onChange={(keep) => (choices.value = { ...choices.value, keep })}
            hint="They stay until they log out, although they could not log in again."
          >
            Keep these sessions
          </Checkbox>
        )}
        {type && (
          <TextField label={<>Type <span class="name">{type}</span> to confirm</>} value={typed.value} onInput={(value) => (typed.value = value)} />
        )}
        <div class="dialog-actions">
          <Button onClick={onClose}>Cancel</Button>
          <Button submit kind={danger ? "danger" : "primary"} disabled={!ready} busy={busy.value}>
            {verb}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

/** A form in a dialog whose change needs no preview: what it makes is new. */
export function FormDialog({ title, verb, change, valid, children, onClose, onDone }: {
  title: string;
  verb: string;
  change: () => Change;
  valid: boolean;
  children: ComponentChildren;
  onClose: () => void;
  onDone?: (answer: unknown) => void;
}) {
  const problem = useSignal<Problem | null>(null);
  const busy = useSignal(false);
  const force = useSignal(false);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (!valid || busy.value) return;
    busy.value = true;
    try {
      const done = await carryOut<Done>(change(), { force: force.value, keep: false }, false, newKey());
      if (done?.done) announce(`${done.done}.`);
      onDone?.(done);
      onClose();
    } catch (error) {
      problem.value = asProblem(error);
    } finally {
      busy.value = false;
    }
  };
  const forcible = change().forces && FORCIBLE.includes(problem.value?.code ?? "");
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={(event) => void submit(event)}>
        {children}
        <ProblemNotice problem={problem.value} />
        {(forcible || force.value) && (
          <Checkbox checked={force.value} onChange={(on) => (force.value = on)}>
            Do it all the same (force)
          </Checkbox>
        )}
        <div class="dialog-actions">
          <Button onClick={onClose}>Cancel</Button>
          <Button submit kind="primary" disabled={!valid} busy={busy.value}>
            {verb}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
