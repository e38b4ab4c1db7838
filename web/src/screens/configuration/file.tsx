/** The configuration file: edit, compare, check, write, and apply. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { asProblem, type Problem, send } from "../../api/client";
import type { Configuration, Done, Preview } from "../../api/types";
import { diff } from "../../lib/diff";
import { configChanges } from "../../live";
import { may } from "../../state";
import { announce } from "../../ui/announce";
import { Button, Card, Copy, Loading, Notice, ProblemNotice } from "../../ui/basics";
import { ChangeDialog, PreviewView } from "../../ui/change";

interface Read {
  configuration: Configuration;
  etag: string | null;
}

export function File() {
  const read = useSignal<Read | null>(null);
  const text = useSignal("");
  const problem = useSignal<Problem | null>(null);
  const checked = useSignal<Preview | null>(null);
  const busy = useSignal<"check" | "save" | null>(null);
  const applying = useSignal(false);
  const written = useSignal(false);

  const load = async (): Promise<void> => {
    try {
      const answer = await send<Configuration>("GET", "/config");
      const untouched = read.value === null || text.value === read.value.configuration.text;
      read.value = { configuration: answer.data, etag: answer.etag };
      if (untouched) text.value = answer.data.text;
      problem.value = null;
    } catch (error) {
      problem.value = asProblem(error);
    }
  };
  useEffect(() => void load(), [configChanges.value]);

  const work = async (what: "check" | "save", then: () => Promise<void>): Promise<void> => {
    busy.value = what;
    problem.value = null;
    checked.value = null;
    try {
      await then();
    } catch (error) {
      problem.value = asProblem(error);
    } finally {
      busy.value = null;
    }
  };
  const check = () =>
    work("check", async () => {
      checked.value = (await send<Preview>("POST", "/config/check", { body: { text: text.value } })).data;
    });
  const save = () =>
    work("save", async () => {
      const done = await send<Done>("PUT", "/config", { body: { text: text.value }, ifMatch: read.value?.etag ?? null });
      announce(done.data?.done ? `${done.data.done}.` : "The file is written.");
      written.value = true;
      applying.value = true;
    });

  if (!read.value) return problem.value ? <ProblemNotice problem={problem.value} retry={() => void load()} /> : <Loading />;
  const { configuration, etag } = read.value;
  const changed = text.value !== configuration.text;
  const administers = may("administrator");
  return (
    <>
      <Card
        title={<span class="name">{configuration.file}</span>}
        actions={<Copy text={configuration.text} what="the configuration" />}
      >
        <p class="muted">
          {configuration.embedded
            ? "The file does not exist yet: lunet serves its embedded default, and the first change writes the file."
            : "Without secrets. What is written here takes effect when it is applied."}{" "}
          Data directory: <span class="name">{configuration.data}</span>
        </p>
        <textarea
          class="editor"
          aria-label="Text of the configuration"
          spellcheck={false}
          autoCapitalize="none"
          rows={Math.min(32, Math.max(12, text.value.split("\n").length + 1))}
          readOnly={!administers}
          value={text.value}
          onInput={(event) => {
            text.value = event.currentTarget.value;
            checked.value = null;
          }}
        />
        {changed && <Difference before={configuration.text} after={text.value} />}
        <ProblemNotice problem={problem.value} />
        {problem.value?.status === 412 && (
          <p>
            <Button small onClick={() => void load()}>
              Read the file again, and keep my text
            </Button>
          </p>
        )}
        {checked.value && (
          <Notice
            tone={checked.value.refused ? "warn" : "ok"}
            title={checked.value.refused ? "It is valid, and would be refused now:" : "It is valid"}
            live
          >
            {checked.value.refused && <p>{checked.value.refused}</p>}
            <PreviewView preview={checked.value} plain />
          </Notice>
        )}
        {administers && (
          <div class="form-foot">
            <div class="actions">
              <Button disabled={!changed} onClick={() => (text.value = configuration.text)}>
                Discard
              </Button>
              <Button busy={busy.value === "check"} onClick={() => void check()}>
                Check
              </Button>
            </div>
            <div class="actions">
              <Button onClick={() => (applying.value = true)} disabled={changed}>
                Apply the file
              </Button>
              <Button kind="primary" disabled={!changed} busy={busy.value === "save"} onClick={() => void save()}>
                Write the file
              </Button>
            </div>
          </div>
        )}
      </Card>
      {applying.value && (
        <ChangeDialog
          title="Apply the configuration"
          verb="Apply"
          change={{ method: "POST", path: "/config/apply", body: {}, ifMatch: etag, forces: true, keeps: true }}
          onClose={() => (applying.value = false)}
          onDone={() => void load()}
        >
          {written.value && <p>The file is written. Nothing has changed yet for anybody: this is what applying it would change.</p>}
        </ChangeDialog>
      )}
    </>
  );
}

const SIGNS = { same: " ", added: "+", removed: "-", gap: " " } as const;

function Difference({ before, after }: { before: string; after: string }) {
  const lines = diff(before, after);
  return (
    <>
      <h3>What you have changed</h3>
      <div class="diff" role="region" aria-label="What you have changed" tabIndex={0}>
        {lines.map((line, at) => (
          <div key={at} class={line.kind}>
            <span aria-hidden="true">{SIGNS[line.kind]} </span>
            {line.kind === "added" && <span class="visually-hidden">added: </span>}
            {line.kind === "removed" && <span class="visually-hidden">removed: </span>}
            {line.text}
          </div>
        ))}
      </div>
    </>
  );
}
