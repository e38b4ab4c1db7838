/** A new disk: the form, what is being made, and how to connect it. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { PLATFORM_NAMES } from "../../lib/commands";
import { size } from "../../lib/format";
import { link } from "../../route";
import { portals, refused, sessions, targets, volumes } from "../../state";
import { Button, ButtonLink, Card, ProblemNotice } from "../../ui/basics";
import { Icon } from "../../ui/icons";
import { announce } from "../../ui/announce";
import { Title } from "../../ui/title";
import { Commands, SecretCard, Waiting } from "./connect";
import { type Asked, DiskForm } from "./form";
import { Run, type RunStep } from "./run";

interface Making extends Asked {
  run: Run;
  since: number;
}

export function NewDisk() {
  const making = useSignal<Making | null>(null);
  const submit = (asked: Asked): void => {
    const run = new Run(asked.plan);
    making.value = { ...asked, run, since: Math.floor(Date.now() / 1000) };
    void drive(run);
  };
  const now = making.value;
  if (now?.run.state.value === "done") return <Made making={now} again={() => (making.value = null)} />;
  return (
    <>
      <Title title="New disk" about="A volume, the target that serves it, and who may use it." />
      {/* The form stays, so that after an undo nothing has to be typed again. */}
      <div hidden={now !== null}>
        <DiskForm onSubmit={submit} />
      </div>
      {now && <Progress making={now} close={() => (making.value = null)} />}
    </>
  );
}

async function drive(run: Run): Promise<void> {
  await run.go();
  for (const one of [volumes, targets, portals, sessions, refused]) void one.refresh();
  if (run.state.value === "done") announce(`The disk ${run.plan.volume.name} is ready.`);
}

async function takeBack(run: Run): Promise<void> {
  await run.undo();
  for (const one of [volumes, targets, portals]) void one.refresh();
  announce(run.state.value === "undone" ? "Everything is as it was." : "Not everything could be undone.");
}

const WORDS: Record<RunStep["state"], string> = {
  waiting: "not begun",
  running: "under way",
  done: "done",
  failed: "failed",
  undone: "undone",
  kept: "could not be undone",
};

function Progress({ making, close }: { making: Making; close: () => void }) {
  const { run } = making;
  const state = run.state.value;
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => heading.current?.focus(), [state]);
  const undoable = run.steps.value.some((it) => it.state === "done" || it.state === "kept");
  return (
    <section class="card">
      <h2 ref={heading} tabIndex={-1}>
        {state === "failed" && "One step has failed"}
        {state === "running" && "Creating the disk"}
        {state === "undoing" && "Undoing what was done"}
        {state === "undone" && "Everything is as it was"}
        {state === "stuck" && "Not everything could be undone"}
      </h2>
      <ol class="run">
        {run.steps.value.map((step) => (
          <li key={step.title} class={step.state}>
            <span class="run-mark">
              {step.state === "running" && <span class="spinner" aria-hidden="true" />}
              {step.state === "done" && <Icon name="check" />}
              {(step.state === "failed" || step.state === "kept") && <Icon name="cross" />}
            </span>
            <div>
              <p>
                {step.title} <span class="muted small">{WORDS[step.state]}</span>
              </p>
              <ProblemNotice problem={step.problem} />
            </div>
          </li>
        ))}
      </ol>
      {state === "failed" && (
        <>
          <p class="muted">
            {undoable
              ? "What was made so far is still there. Nobody but those you named can use it."
              : "Nothing has been made."}
          </p>
          <div class="actions">
            <Button kind="primary" onClick={() => void drive(run)}>
              Try this step again
            </Button>
            {undoable ? (
              <Button onClick={() => void takeBack(run)}>Undo what was done</Button>
            ) : (
              <Button onClick={close}>Back to the form</Button>
            )}
          </div>
        </>
      )}
      {state === "undone" && (
        <Button kind="primary" onClick={close}>
          Back to the form
        </Button>
      )}
      {state === "stuck" && (
        <div class="actions">
          <Button kind="primary" onClick={() => void takeBack(run)}>
            Try to undo again
          </Button>
          <ButtonLink href="#/volumes">Go to the volumes</ButtonLink>
        </div>
      )}
    </section>
  );
}

function Made({ making, again }: { making: Making; again: () => void }) {
  const { plan, platform, portal, since } = making;
  const { volume, target, lun, user, initiator } = plan;
  const known = volumes.data.value?.find((it) => it.name === volume.name);
  const bytes = volume.size ?? known?.size_bytes ?? 0;
  // The form's button, which had the focus, is gone.
  useEffect(() => document.querySelector<HTMLElement>("h1")?.focus(), []);
  return (
    <>
      <Title
        title={`${volume.name} is ready`}
        about={`${size(bytes)}, LUN ${lun} of ${target.name} at ${portal}`}
        actions={
          <>
            <ButtonLink href={link`volumes/${volume.name}`}>Show the volume</ButtonLink>
            <Button icon="plus" onClick={again}>
              Another disk
            </Button>
          </>
        }
      />
      <Waiting target={target.name} since={since} />
      {user && <SecretCard user={user.name} secret={user.secret} />}
      <Card title={`Connect it from ${PLATFORM_NAMES[platform]}`}>
        <Commands
          platform={platform}
          of={{
            volume: volume.name,
            target: target.name,
            lun,
            portal,
            sizeBytes: bytes,
            initiator: initiator ?? undefined,
            chap: user ?? undefined,
          }}
        />
      </Card>
    </>
  );
}
