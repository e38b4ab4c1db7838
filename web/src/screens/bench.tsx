/** Measures paths and LUNs side by side, and says what limits them. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { BenchResults, Job, Portal, Target } from "../api/types";
import { count, date, duration, moment, plural, span } from "../lib/format";
import { isAnyAddress, hostPort } from "../lib/names";
import { bytesOf } from "../lib/sizes";
import { jobsOf, useFinished, useResult, useRun } from "../jobs";
import { jobs, may, portals, targets } from "../state";
import { Badge, Button, Card, Checkbox, Empty, Loading, NeedsRole, Notice, SelectField, SizeField, TextField } from "../ui/basics";
import { Chart } from "../ui/chart";
import { Table } from "../ui/table";
import { Title } from "../ui/title";
import { JobLine } from "./doctor";

const isResults = (it: unknown): it is BenchResults =>
  typeof it === "object" && it !== null && Array.isArray((it as BenchResults).summaries) && "schema" in it;

const PROFILES = [
  { value: "quick", label: "quick: under a minute" },
  { value: "recipe", label: "recipe: 7 minutes for each target" },
  { value: "sweep", label: "sweep: 13 minutes for each target" },
];

export function Bench() {
  useEffect(() => {
    for (const one of [jobs, targets, portals]) one.want();
  }, []);
  const run = useRun("bench");
  const shown = useSignal<string | null>(null);
  const all = jobsOf("bench");
  const newest = useResult("bench", isResults);
  const chosen = useFinished(all.find((it) => it.id === shown.value));
  const report = chosen && isResults(chosen.result) ? { job: chosen, result: chosen.result } : newest;
  return (
    <>
      <Title title="Bench" about="Measures paths and LUNs side by side, with what each layer can carry, and names what limits them." />
      {may("administrator") ? <BenchForm run={run} /> : <NeedsRole role="administrator" />}
      <JobLine run={run} what="The benchmark" />
      {run.job?.state === "running" && run.job.progress.length > 0 && (
        <pre class="progress" tabIndex={0} role="region" aria-label="Progress">
          {run.job.progress.slice(-12).join("\n")}
        </pre>
      )}
      {report ? (
        <Report job={report.job} results={report.result} />
      ) : (
        all.length === 0 && (
          <Empty title="Nothing has been measured yet.">
            <p>Measure a LUN and the file below it in one run to see what the network and the protocol cost.</p>
          </Empty>
        )
      )}
      {all.length > 0 && <History jobs={all} shown={report?.job.id} onShow={(id) => (shown.value = id)} />}
    </>
  );
}

/** The LUNs of this server, by the addresses that this machine reaches itself by. */
function ownLuns(all: Target[], at: Portal[]): string[] {
  const portal = at.find((it) => it.tcp);
  if (!portal) return [];
  const address = isAnyAddress(portal.address) ? `127.0.0.1:${hostPort(portal.address).port}` : portal.address;
  return all.flatMap((target) => target.luns.map((lun) => `iscsi://${address}/${target.name}/${lun.lun}`));
}

function BenchForm({ run }: { run: ReturnType<typeof useRun> }) {
  const first = useSignal("");
  const second = useSignal("");
  const profile = useSignal("quick");
  const readOnly = useSignal(true);
  const tried = useSignal(false);
  const more = useSignal<More>({ rounds: "", seconds: "", number: "", unit: "GiB" });
  const urls = ownLuns(targets.data.value ?? [], portals.data.value ?? []);
  const busy = run.job?.state === "running" || run.starting;
  const submit = (event: Event): void => {
    event.preventDefault();
    tried.value = true;
    const chosen = [first.value, second.value].map((it) => it.trim()).filter(Boolean);
    if (busy || chosen.length === 0 || Object.values(moreProblems(more.value)).some(Boolean)) return;
    void run.start({ targets: chosen, profile: profile.value, read_only: readOnly.value, ...moreOptions(more.value) });
  };
  return (
    <form onSubmit={submit} noValidate>
      <Card title="Measure">
        <div class="fields">
          {[first, second].map((it, at) => (
            <TextField
              key={at}
              label={at === 0 ? "What" : "Beside it, optional"}
              hint={at === 0 ? "A path, a device, or iscsi://… of any target." : "For example the file or device below the LUN."}
              error={at === 0 && tried.value && !it.value.trim() ? "Give a path or an address." : null}
              value={it.value}
              onInput={(value) => (it.value = value)}
              suggestions={urls.map((value) => ({ value }))}
            />
          ))}
          <SelectField label="Profile" value={profile.value} options={PROFILES} onInput={(value) => (profile.value = value)} />
        </div>
        <Checkbox
          checked={readOnly.value}
          onChange={(on) => (readOnly.value = on)}
          hint="Otherwise only a target that holds no data is written to; the others are refused."
        >
          Only read
        </Checkbox>
        <MoreFields more={more.value} set={(change) => (more.value = { ...more.value, ...change })} />
        <div class="form-foot">
          <p class="muted">It loads the server: initiators will notice.</p>
          <Button submit kind="primary" busy={busy}>
            {busy ? "Measuring" : "Measure"}
          </Button>
        </div>
      </Card>
    </form>
  );
}

/** What a profile says unless it is said here; empty: as the profile says. */
interface More {
  rounds: string;
  seconds: string;
  number: string;
  unit: string;
}

function moreProblems({ rounds, seconds, number, unit }: More): { rounds: string | null; seconds: string | null; size: string | null } {
  const whole = Number(rounds);
  const time = Number(seconds);
  return {
    rounds: rounds && !(Number.isInteger(whole) && whole >= 1 && whole <= 100) ? "1 to 100 rounds." : null,
    seconds: seconds && !(time >= 0.1 && time <= 3600) ? "0.1 to 3600 seconds." : null,
    size: number && bytesOf(number, unit) === null ? "Give a size above 0." : null,
  };
}

function moreOptions({ rounds, seconds, number, unit }: More): Record<string, number> {
  const size = number ? bytesOf(number, unit) : null;
  return {
    ...(rounds ? { rounds: Number(rounds) } : {}),
    ...(seconds ? { runtime_ms: Math.round(Number(seconds) * 1000) } : {}),
    ...(size ? { size_bytes: size } : {}),
  };
}

function MoreFields({ more, set }: { more: More; set: (change: Partial<More>) => void }) {
  const problems = moreProblems(more);
  return (
    <details>
      <summary>More options</summary>
      <div class="fields">
        <TextField
          label="Rounds"
          inputMode="numeric"
          hint="At least 6 for an interval of confidence. Empty: as the profile says."
          error={problems.rounds}
          value={more.rounds}
          onInput={(rounds) => set({ rounds })}
        />
        <TextField
          label="Seconds of each run"
          inputMode="decimal"
          hint="Empty: as the profile says."
          error={problems.seconds}
          value={more.seconds}
          onInput={(seconds) => set({ seconds })}
        />
        <SizeField
          label="Size of the area"
          hint="What each job works on. An area that fits into a cache measures the cache."
          error={problems.size}
          number={more.number}
          unit={more.unit}
          set={set}
        />
      </div>
    </details>
  );
}

function Report({ job, results }: { job: Job; results: BenchResults }) {
  return (
    <Card title="Report">
      <p class="muted">
        {results.profile} · {plural(results.targets.length, "target")} · {moment(results.started)} · took {span(results.seconds)}
      </p>
      {job.state === "failed" && <Notice tone="warn" title="Only a part was measured." />}
      {results.choice && <p class="verdict">{results.choice}</p>}
      <ul class="verdicts">
        {results.verdicts.map((it) => (
          <li key={`${it.target} ${it.workload}`}>
            <h3>
              {it.target}, {it.workload}
            </h3>
            <p>
              {it.sentence} <span class="muted">{it.advice}</span>
            </p>
          </li>
        ))}
      </ul>
      <Bars results={results} />
      <Summaries results={results} />
      <Timeline results={results} />
      {(results.notes ?? []).map((it) => (
        <p key={it} class="muted small">
          {it}
        </p>
      ))}
    </Card>
  );
}

/** The medians of each workload as bars, with the interval that they are in. */
function Bars({ results }: { results: BenchResults }) {
  return (
    <div class="bars">
      {results.workloads.map((workload) => {
        const of = results.summaries.filter((it) => it.workload === workload.name);
        const most = Math.max(...of.map((it) => it.iops.high), 1);
        return (
          <figure key={workload.name}>
            <figcaption>{workload.name}</figcaption>
            {of.map((it, at) => (
              <div key={it.target} class="bar-row">
                <span class="bar-name">{it.target}</span>
                <svg viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label={`${it.target}: ${count(it.iops.median)} IOPS`}>
                  <rect class="meter-all" width="100" height="10" />
                  <rect class={`bar-${at % 3}`} width={(it.iops.median / most) * 100} height="10" />
                  <rect class="bar-interval" x={(it.iops.low / most) * 100} y="4" width={Math.max(0.4, ((it.iops.high - it.iops.low) / most) * 100)} height="2" />
                </svg>
                <span class="bar-value">{count(it.iops.median)} IOPS</span>
              </div>
            ))}
          </figure>
        );
      })}
    </div>
  );
}

function Summaries({ results }: { results: BenchResults }) {
  return (
    <Table
      label="Results"
      rows={results.summaries}
      rowKey={(it) => `${it.target} ${it.workload}`}
      columns={[
        { head: "Target", names: true, cell: (it) => it.target },
        { head: "Workload", cell: (it) => it.workload },
        { head: "IOPS", figures: true, cell: (it) => count(it.iops.median) },
        { head: "MiB/s", figures: true, cell: (it) => count(it.mib_per_s.median) },
        { head: "Mean latency", figures: true, cell: (it) => duration(it.latency_mean_us?.median) },
        { head: "p99", figures: true, cell: (it) => duration(it.latency_p99_us?.median) },
        { head: "Rounds", figures: true, cell: (it) => it.iops.rounds },
        { head: "Errors", figures: true, cell: (it) => it.errors },
      ]}
    />
  );
}

/** The last round of a workload over its time. */
function Timeline({ results }: { results: BenchResults }) {
  const chosen = useSignal(results.workloads[0]?.name ?? "");
  const runs = results.runs.filter((it) => it.workload === chosen.value && (it.timeline?.length ?? 0) > 1);
  const last = results.targets
    .map((target) => runs.filter((it) => it.target === target.name).at(-1))
    .filter((it) => it !== undefined);
  if (results.runs.every((it) => (it.timeline?.length ?? 0) < 2)) return null;
  const longest = last.reduce<number[]>((all, it) => {
    const times = it.timeline?.map((moment) => moment.at_s) ?? [];
    return times.length > all.length ? times : all;
  }, []);
  const colours = ["--read", "--write", "--third"];
  return (
    <>
      <SelectField
        label="Over time, last round of"
        value={chosen.value}
        options={results.workloads.map((it) => ({ value: it.name }))}
        onInput={(value) => (chosen.value = value)}
      />
      <Chart
        label="IOPS"
        times={longest}
        relative
        height={220}
        format={count}
        series={last.slice(0, 3).map((it, at) => ({
          label: it.target,
          colour: colours[at],
          values: longest.map((_, index) => {
            const moment = it.timeline?.[index];
            return moment ? moment.read_iops + moment.write_iops : null;
          }),
        }))}
      />
    </>
  );
}

const STATES: Record<string, "ok" | "bad" | "quiet" | "info"> = { done: "ok", failed: "bad", cancelled: "quiet", running: "info" };

/** What a job has measured, and the figure of its first workload: to compare it with the others. */
function Measured({ job }: { job: Job }) {
  const whole = useFinished(job);
  if (!whole) return <span class="muted">–</span>;
  if (!isResults(whole.result)) return <span class="muted">{whole.error ?? "nothing was measured"}</span>;
  const { summaries, profile } = whole.result;
  const first = summaries[0]?.workload;
  return (
    <>
      {profile}
      {first && `, ${first}`}
      {summaries
        .filter((it) => it.workload === first)
        .map((it) => (
          <small key={it.target} class="muted block">
            {it.target}: {count(it.iops.median)} IOPS
          </small>
        ))}
    </>
  );
}

function History({ jobs: all, shown, onShow }: { jobs: Job[]; shown: string | undefined; onShow: (id: string) => void }) {
  return (
    <Card title="History">
      <Table
        label="Benchmarks"
        rows={all}
        rowKey={(it) => it.id}
        columns={[
          { head: "Begun", names: true, cell: (it) => moment(it.started) },
          { head: "What", cell: (it) => <Measured job={it} /> },
          { head: "State", cell: (it) => <Badge tone={STATES[it.state] ?? "quiet"}>{it.state}</Badge> },
          {
            head: "Took",
            figures: true,
            cell: (it) => (it.ended === null ? <Loading what="Running" /> : span((date(it.ended).getTime() - date(it.started).getTime()) / 1000)),
          },
          {
            head: "Actions",
            quietHead: true,
            cell: (it) =>
              it.state !== "running" &&
              (it.id === shown ? (
                <span class="muted">shown above</span>
              ) : (
                <Button small label={`Show the report of ${moment(it.started)}`} onClick={() => onShow(it.id)}>
                  Show
                </Button>
              )),
          },
        ]}
      />
      <p class="muted small">The newest jobs are kept while lunet runs.</p>
    </Card>
  );
}
