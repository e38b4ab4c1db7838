/** The configuration that the gateways of a group share: edit it, and have all of them serve by it. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { asProblem, newKey, noAnswer, path, type Problem, send } from "../../api/client";
import type { Done, Group, GroupConfig } from "../../api/types";
import { type Mistake, mistakesOf, spanOfLine, withoutHead } from "../../lib/lines";
import { groups, may } from "../../state";
import { announce } from "../../ui/announce";
import { Button, Checkbox, Copy, Loading, Notice, ProblemNotice } from "../../ui/basics";
import { SessionList } from "../../ui/change";

interface Read {
  revision: number;
  text: string;
  etag: string | null;
}

/** Refusals that `force` overrides. */
const FORCIBLE = ["in-use", "changes-access"];
/** Somebody else was quicker. */
const isConflict = (problem: Problem): boolean => problem.status === 412 || problem.code === "changed-by-hand";

export function SharedConfiguration({ group }: { group: Group }) {
  const read = useSignal<Read | null>(null);
  const text = useSignal("");
  const problem = useSignal<Problem | null>(null);
  const done = useSignal<Done | null>(null);
  const force = useSignal(false);
  const busy = useSignal(false);
  const key = useRef(newKey());
  const area = useRef<HTMLTextAreaElement>(null);
  const at = path`/groups/${group.name}/config`;

  const load = async (): Promise<void> => {
    try {
      const answer = await send<GroupConfig>("GET", at);
      const untouched = read.value === null || text.value === read.value.text;
      const now = withoutHead(answer.data.text);
      read.value = { revision: answer.data.revision, text: now, etag: answer.etag };
      if (untouched) text.value = now;
      problem.value = null;
    } catch (error) {
      problem.value = asProblem(error);
    }
  };
  // A text that somebody edits stays as it is, and so does what it was made of: the conflict is to be seen.
  useEffect(() => {
    if (read.value === null || text.value === read.value.text) void load();
  }, [group.config]);

  const save = async (): Promise<void> => {
    busy.value = true;
    problem.value = done.value = null;
    try {
      const answer = await send<Done>("PUT", at, {
        body: { text: text.value, force: force.value },
        ifMatch: read.value?.etag ?? null,
        key: key.current,
      });
      done.value = answer.data;
      force.value = false;
      key.current = newKey();
      announce(`${answer.data.done}.`);
      void groups.refresh();
      read.value = null;
      await load();
    } catch (error) {
      problem.value = asProblem(error);
      if (!noAnswer(problem.value)) key.current = newKey();
    } finally {
      busy.value = false;
    }
  };
  const go = (mistake: Mistake): void => {
    const span = spanOfLine(text.value, mistake.line);
    area.current?.focus();
    area.current?.setSelectionRange(span.begin, span.end);
  };

  if (!read.value) {
    return (
      <>
        <h3>Shared configuration</h3>
        {problem.value ? <ProblemNotice problem={problem.value} retry={() => void load()} /> : <Loading />}
      </>
    );
  }
  const changed = text.value !== read.value.text;
  const mistakes = problem.value?.code === "invalid" ? mistakesOf(problem.value.detail) : [];
  const forcible = problem.value !== null && FORCIBLE.includes(problem.value.code);
  return (
    <>
      <h3>Shared configuration</h3>
      <p class="muted">
        Revision {read.value.revision}, without secrets: “not shown” stands for the secret that is there. All gateways serve by a change at
        once.
      </p>
      <textarea
        ref={area}
        class="editor"
        aria-label={`Shared configuration of ${group.name}`}
        aria-invalid={mistakes.length > 0 ? "true" : undefined}
        spellcheck={false}
        autoCapitalize="none"
        rows={Math.min(32, Math.max(8, text.value.split("\n").length + 1))}
        readOnly={!may("administrator")}
        value={text.value}
        onInput={(event) => {
          text.value = event.currentTarget.value;
          done.value = null;
        }}
      />
      {mistakes.length > 0 ? (
        <Notice tone="bad" title="Nothing was stored" live>
          <ul class="plain-list">
            {mistakes.map((it) => (
              <li key={`${it.line} ${it.text}`}>
                <Button small label={`Go to line ${it.line}`} onClick={() => go(it)}>
                  Line {it.line}
                </Button>{" "}
                {it.text}
              </li>
            ))}
          </ul>
        </Notice>
      ) : (
        <ProblemNotice problem={problem.value} />
      )}
      {problem.value && isConflict(problem.value) && (
        <Notice tone="warn" title="Somebody else has changed it meanwhile">
          <p>Nothing of yours was stored. Read it again: your text stays here, and what is in force is what it is compared with then.</p>
          <Button small onClick={() => void load()}>
            Read it again, and keep my text
          </Button>
        </Notice>
      )}
      {(forcible || force.value) && (
        <Checkbox checked={force.value} onChange={(on) => (force.value = on)}>
          Do it all the same (force)
        </Checkbox>
      )}
      {done.value && (
        <Notice tone={done.value.incomplete ? "warn" : "ok"} title={done.value.incomplete ? "It is stored, and not every gateway serves by it" : "It is in force"} live>
          <ul class="plain-list">
            {done.value.notes.map((note) => (
              <li key={note}>{note}</li>
            ))}
          </ul>
          <SessionList sessions={done.value.sessions} />
        </Notice>
      )}
      <div class="form-foot">
        <div class="actions">
          <Copy text={text.value} what={`the shared configuration of ${group.name}`} />
          {may("administrator") && (
            <Button disabled={!changed} onClick={() => (text.value = read.value?.text ?? "")}>
              Discard
            </Button>
          )}
        </div>
        {may("administrator") && (
          <div class="actions">
            <Button kind="primary" disabled={!changed} busy={busy.value} onClick={() => void save()}>
              Serve by it
            </Button>
          </div>
        )}
      </div>
    </>
  );
}
