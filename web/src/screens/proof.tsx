/** Measures the changes of a plan on this machine, and keeps those that help: with the effect of each as a picture. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Effect, Proof, Worth } from "../api/types";
import { ago, decimalRate, plural, span } from "../lib/format";
import { bytesOf } from "../lib/sizes";
import { useResult, useRun } from "../jobs";
import { may } from "../state";
import { Badge, Button, Card, Checkbox, SizeField, TextField } from "../ui/basics";
import { Table } from "../ui/table";
import { JobLine } from "./doctor";

const isProof = (it: unknown): it is Proof => typeof it === "object" && it !== null && Array.isArray((it as Proof).steps) && "baseline" in it;

/** Fewer rounds tell nothing: docs/tune.md. */
const FEWEST = 6;

interface ProofCardProps {
  profile: string;
  /** The rules that are chosen in the plan. */
  rules: string[];
  busy: boolean;
  /** Something may have been kept. */
  after: () => void;
}

export function ProofCard({ profile, rules, busy, after }: ProofCardProps) {
  const run = useRun("tune-prove");
  const newest = useResult("tune-prove", isProof);
  const running = run.job?.state === "running" || run.starting;
  const seen = useSignal<string | null>(null);
  const { id, state } = run.job ?? {};
  useEffect(() => {
    if (!id) return;
    if (state === "running") seen.value = id;
    else if (seen.value === id) {
      seen.value = null;
      if (state === "done") after();
    }
  }, [id, state]);
  if (!may("administrator") && !newest) return null;
  return (
    <Card title="Proof">
      <p class="muted">
        Measures this machine without the changes, with each alone and with all, in turn and repeatedly. Those that help are kept, the others
        are rolled back. The settings change while it runs.
      </p>
      {may("administrator") && <ProofForm profile={profile} rules={rules} busy={busy} running={running} start={run.start} />}
      <JobLine run={run} what="The proof" />
      {newest && <Report proof={newest.result} when={newest.job.ended ?? newest.job.started} />}
    </Card>
  );
}

interface ProofFormProps {
  profile: string;
  rules: string[];
  busy: boolean;
  running: boolean;
  start: (options: Record<string, unknown>) => Promise<unknown>;
}

function ProofForm({ profile, rules, busy, running, start }: ProofFormProps) {
  const path = useSignal("");
  const rounds = useSignal("10");
  const seconds = useSignal("5");
  const size = useSignal({ number: "1", unit: "GiB" });
  const persist = useSignal(false);
  const tried = useSignal(false);
  const bytes = bytesOf(size.value.number, size.value.unit);
  const [times, each] = [Number(rounds.value), Number(seconds.value)];
  const problems = {
    path: path.value.trim().startsWith("/") ? null : "Give the whole path of a directory, a file or a device.",
    rounds: Number.isInteger(times) && times >= FEWEST && times <= 100 ? null : `${FEWEST} to 100 rounds: fewer tell nothing.`,
    seconds: Number.isInteger(each) && each >= 1 && each <= 3600 ? null : "1 to 3600 seconds.",
    size: bytes === null ? "Give a size above 0." : null,
  };
  const right = Object.values(problems).every((it) => it === null);
  const submit = (event: Event): void => {
    event.preventDefault();
    tried.value = true;
    if (busy || running || !right || rules.length === 0) return;
    const options = { targets: [path.value.trim()], profile, only: rules, rounds: times, runtime_ms: each * 1000, size_bytes: bytes };
    void start({ ...options, persist: persist.value });
  };
  return (
    <form onSubmit={submit} noValidate>
      <div class="fields">
        <TextField
          label="Where to measure"
          hint="In a directory, a temporary file is made; a file or a device is only read."
          placeholder="/tank"
          error={tried.value ? problems.path : null}
          value={path.value}
          onInput={(value) => (path.value = value)}
        />
        <TextField label="Rounds" inputMode="numeric" error={problems.rounds} value={rounds.value} onInput={(value) => (rounds.value = value)} />
        <TextField label="Seconds of each run" inputMode="numeric" error={problems.seconds} value={seconds.value} onInput={(value) => (seconds.value = value)} />
        <SizeField
          label="Size of the file"
          hint="One that is not larger than the memory measures the cache."
          error={problems.size}
          {...size.value}
          set={(change) => (size.value = { ...size.value, ...change })}
        />
      </div>
      <Checkbox checked={persist.value} onChange={(on) => (persist.value = on)}>
        Keep what helps across reboots
      </Checkbox>
      <div class="form-foot">
        <p class="muted">
          {rules.length === 0
            ? "There is nothing to prove: no change of the plan is chosen."
            : right || problems.path
              ? `${plural(rules.length, "rule")}: ${span(times * (rules.length + 2) * each)} at least. It loads the storage.`
              : ""}
        </p>
        <Button submit disabled={busy || rules.length === 0} busy={running}>
          {running ? "Proving" : "Prove"}
        </Button>
      </div>
    </form>
  );
}

/** Beyond a doubling, people think in factors. */
const part = (value: number): string => (value > 1 ? `${(value + 1).toFixed(1)} times` : `${value < 0 ? "−" : "+"}${Math.abs(value * 100).toFixed(1)} %`);

const interval = (it: Effect): string => `${part(it.low)} to ${part(it.high)}`;

/** What seemed to help is measured once more; one that does not hold then is no effect. */
const told = (it: Worth): { tone: "ok" | "bad" | "quiet"; text: string } =>
  it.judgement === "noise" && it.again ? { tone: "quiet", text: "not confirmed" } : (TOLD[it.judgement] ?? { tone: "quiet", text: it.judgement });

const TOLD: Record<string, { tone: "ok" | "bad" | "quiet"; text: string }> = {
  helps: { tone: "ok", text: "helps" },
  harms: { tone: "bad", text: "harms" },
  noise: { tone: "quiet", text: "no effect seen" },
};

function Report({ proof, when }: { proof: Proof; when: number }) {
  const all = [...proof.steps, proof.together, proof.confirmed].filter((it) => it !== null);
  const kept = proof.steps.filter((it) => it.kept).map((it) => it.name);
  return (
    <>
      <p>
        <strong>{kept.length > 0 ? `Kept: ${kept.join(", ")}.` : "Nothing is kept: everything is as it was."}</strong>{" "}
        <span class="muted">
          Without changes {decimalRate(proof.baseline)}, the median of {plural(proof.rounds, "run")} · {ago(when)}
        </span>
      </p>
      {all.length > 0 && <Effects worths={all} />}
      {proof.left_out.length > 0 && (
        <ul class="plain-list muted">
          {proof.left_out.map(([rule, why]) => (
            <li key={rule}>
              Not tried: <span class="name">{rule}</span>, {why}.
            </li>
          ))}
        </ul>
      )}
      {proof.notes.map((it) => (
        <p key={it} class="muted">
          {it}
        </p>
      ))}
    </>
  );
}

/** The effects with their intervals of 95 %, on one axis: the logarithm of the factor, so that half and double are equally far. */
function Effects({ worths }: { worths: Worth[] }) {
  const logs = worths.flatMap((it) => (it.effect ? [it.effect.low, it.effect.high] : [])).map((it) => Math.log(1 + it));
  const most = Math.max(0.05, ...logs.map(Math.abs)) * 1.05;
  const at = (value: number): number => 50 + (Math.log(1 + value) / most) * 50;
  return (
    <Table
      label="Effects"
      rows={worths}
      rowKey={(it) => it.name}
      columns={[
        { head: "Change", names: true, cell: (it) => <span class="name">{it.name}</span> },
        {
          head: "Throughput",
          cell: (it) =>
            it.effect ? (
              <svg class="effect" viewBox="0 0 100 12" preserveAspectRatio="none" role="img" aria-label={interval(it.effect)}>
                <rect class="meter-all" width="100" height="12" />
                <rect class="effect-none" x="49.8" width="0.4" height="12" />
                <rect class={`effect-interval ${it.judgement}`} x={at(it.effect.low)} y="3" width={Math.max(0.5, at(it.effect.high) - at(it.effect.low))} height="6" />
                <rect class="effect-middle" x={at(it.effect.mean) - 0.4} y="1" width="0.8" height="10" />
              </svg>
            ) : (
              "some runs did nothing: nothing can be said"
            ),
        },
        { head: "Effect", figures: true, cell: (it) => (it.effect ? part(it.effect.mean) : "–") },
        { head: "With 95 % confidence", figures: true, cell: (it) => (it.effect ? interval(it.effect) : "–") },
        { head: "Measured again", figures: true, cell: (it) => (it.again ? interval(it.again) : "–") },
        {
          head: "Judgement",
          cell: (it) => (
            <>
              <Badge tone={told(it).tone}>{told(it).text}</Badge> {it.kept && <Badge tone="ok">kept</Badge>}
            </>
          ),
        },
      ]}
    />
  );
}
