/** What is wrong with this machine, why it matters, and how to fix it; and what each layer can carry. */

import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { Ceilings, DoctorReport, Finding, Job } from "../api/types";
import { ago, plural } from "../lib/format";
import { jobsOf, type Run, useResult, useRun } from "../jobs";
import { link } from "../route";
import { jobs } from "../state";
import { Badge, Button, Card, Code, Empty, Notice, ProblemNotice } from "../ui/basics";
import { Icon } from "../ui/icons";
import { Title } from "../ui/title";
import { CeilingsPicture } from "./ceilings";

const isReport = (it: unknown): it is DoctorReport =>
  typeof it === "object" && it !== null && Array.isArray((it as DoctorReport).findings);
const isCeilings = (it: unknown): it is Ceilings =>
  typeof it === "object" && it !== null && Array.isArray((it as Ceilings).layers);

/** The newest report about this machine. */
export function useDoctorReport(): { job: Job; result: DoctorReport } | undefined {
  useEffect(() => jobs.want(), []);
  return useResult("doctor", isReport);
}

const SEVERITY: Record<string, { tone: "bad" | "warn" | "info"; text: string }> = {
  risk: { tone: "bad", text: "risk" },
  slow: { tone: "warn", text: "slow" },
  note: { tone: "info", text: "note" },
};

export function Doctor() {
  useEffect(() => jobs.want(), []);
  const check = useRun("doctor");
  const found = useDoctorReport();
  const ceilings = useResult("doctor", isCeilings);
  const running = check.job?.state === "running" || check.starting;
  const fixed = useFixed(found);
  return (
    <>
      <Title
        title="Doctor"
        about="Looks at this machine from the drives to the initiators. It changes nothing."
        actions={
          <Button kind={found ? "plain" : "primary"} icon="refresh" busy={running} onClick={() => void check.start()}>
            {running ? "Checking" : found ? "Check again" : "Check this machine"}
          </Button>
        }
      />
      <JobLine run={check} what="The doctor" />
      {fixed.length > 0 && (
        <Notice tone="ok" title={`Since the check before, ${plural(fixed.length, "finding")} went away`} live>
          <ul class="plain-list">
            {fixed.map((it) => (
              <li key={it.found}>{it.found}</li>
            ))}
          </ul>
        </Notice>
      )}
      {found ? (
        <Report job={found.job} report={found.result} />
      ) : (
        !running && (
          <Empty title="This machine has not been checked yet.">
            <p>A check takes a few seconds.</p>
          </Empty>
        )
      )}
      <CeilingsCard ceilings={ceilings} run={check} />
    </>
  );
}

/** How the job of a screen goes on, if it runs or has failed. */
export function JobLine({ run, what }: { run: Run; what: string }) {
  const { job, problem } = run;
  const last = job?.progress?.at(-1);
  return (
    <>
      <ProblemNotice problem={problem} />
      {job?.state === "running" && (
        <div class="job-line" role="status">
          <span class="spinner" aria-hidden="true" />
          <span>{last ?? `${what} is at work …`}</span>
          <Button small onClick={() => void run.cancel()}>
            Cancel
          </Button>
        </div>
      )}
      {job?.state === "failed" && job.error && (
        <Notice tone="bad" live>
          <p>{job.error}</p>
        </Notice>
      )}
      {job?.state === "cancelled" && <Notice tone="quiet" title="Cancelled" live />}
    </>
  );
}

/** What the report before had and the newest has not. */
function useFixed(found: { job: Job; result: DoctorReport } | undefined): Finding[] {
  const before = useSignal<{ id: string; findings: Finding[] } | null>(null);
  const fixed = useSignal<Finding[]>([]);
  const id = found?.job.id;
  useEffect(() => {
    if (!found || !id) return;
    const old = before.value;
    if (old && old.id !== id) {
      const now = new Set(found.result.findings.map((it) => `${it.check} ${it.about}`));
      fixed.value = old.findings.filter((it) => !now.has(`${it.check} ${it.about}`));
    }
    before.value = { id, findings: found.result.findings };
  }, [id]);
  return fixed.value;
}

function Report({ job, report }: { job: Job; report: DoctorReport }) {
  const filter = useSignal("all");
  const counts = (severity: string): number => report.findings.filter((it) => it.severity === severity).length;
  const shown = { ...report, findings: report.findings.filter((it) => filter.value === "all" || it.severity === filter.value) };
  return (
    <Card
      title="Findings"
      actions={
        report.findings.length > 0 && (
          <div class="filter" role="group" aria-label="Show">
            {["all", "risk", "slow", "note"].map((it) => (
              <button key={it} type="button" aria-pressed={filter.value === it} onClick={() => (filter.value = it)}>
                {it} {it === "all" ? report.findings.length : counts(it)}
              </button>
            ))}
          </div>
        )
      }
    >
      <p class="muted">
        {report.machine} · {plural(report.checks, "check")} · {ago(job.ended ?? job.started)}
      </p>
      {!report.could_look && <Notice tone="warn" title="Little could be seen: lunet does not run as root here." />}
      <FindingList report={shown} />
      <Looked report={report} />
    </Card>
  );
}

/** Findings of one check together. */
interface Group {
  check: string;
  severity: string;
  findings: Finding[];
}

function groups(findings: Finding[]): Group[] {
  const out: Group[] = [];
  for (const it of findings) {
    const same = out.find((group) => group.check === it.check);
    if (same) same.findings.push(it);
    else out.push({ check: it.check, severity: it.severity, findings: [it] });
  }
  return out;
}

export function FindingList({ report, limit }: { report: DoctorReport; limit?: number }) {
  const all = useMemo(() => groups(report.findings), [report]);
  if (all.length === 0) {
    return (
      <p class="all-well">
        <Icon name="check" /> Nothing found.
      </p>
    );
  }
  const shown = limit ? all.slice(0, limit) : all;
  return (
    <ul class="findings">
      {shown.map((group) => (
        <FindingGroup key={group.check} group={group} />
      ))}
    </ul>
  );
}

/** So many objects of one check are shown in full. */
const NAMED = 3;

function FindingGroup({ group }: { group: Group }) {
  const { tone, text } = SEVERITY[group.severity] ?? { tone: "info" as const, text: group.severity };
  const [first, ...rest] = group.findings;
  const fixes = [...new Set(group.findings.map((it) => it.fix).filter(Boolean))];
  const tuned = fixes.some((it) => it.includes("lunet tune"));
  const rule = fixes.map((it) => /lunet tune apply --only[ =]([\w.-]+)/.exec(it)?.[1]).find(Boolean);
  return (
    <li class={`finding ${tone}`}>
      <div class="finding-head">
        <Badge tone={tone}>{text}</Badge>
        <h3>{first.found}</h3>
      </div>
      {rest.slice(0, NAMED - 1).map((it) => (
        <p key={it.found}>{it.found}</p>
      ))}
      {rest.length >= NAMED && (
        <p class="muted">
          The same of {rest.slice(NAMED - 1).map((it) => it.about ?? it.found).join(", ")}.
        </p>
      )}
      <p class="finding-why">{first.why}</p>
      <details>
        <summary>
          Evidence and fix <span class="muted name">{group.check}</span>
        </summary>
        <h4>What was looked at</h4>
        <ul class="plain-list">
          {group.findings.slice(0, 8).map((it) => (
            <li key={it.looked}>{it.looked}</li>
          ))}
        </ul>
        <h4>Fix</h4>
        {fixes.slice(0, NAMED).map((fix) => (
          <Code key={fix} code={fix} what={`Fix of ${group.check}`} />
        ))}
        {tuned && (
          <p>
            <a href={rule ? link`tune/${rule}` : "#/tune"}>Apply it by the tuner</a>, which can roll it back.
          </p>
        )}
      </details>
    </li>
  );
}

/** What else was looked at. */
function Looked({ report }: { report: DoctorReport }) {
  const unknown = report.looked.filter((it) => it.state === "unknown");
  const healthy = report.looked.filter((it) => it.state === "healthy");
  if (report.looked.length === 0) return null;
  return (
    <details class="looked">
      <summary>
        {plural(healthy.length, "check")} in order, {unknown.length} without an answer
      </summary>
      {unknown.length > 0 && (
        <>
          <h3>What is not known</h3>
          <ul class="plain-list">
            {unknown.map((it, at) => (
              <li key={at}>
                <span class="name">{it.check}</span> {it.text}
              </li>
            ))}
          </ul>
        </>
      )}
      <h3>In order</h3>
      <ul class="plain-list">
        {healthy.map((it, at) => (
          <li key={at}>
            <span class="name">{it.check}</span> {it.text}
          </li>
        ))}
      </ul>
    </details>
  );
}

function CeilingsCard({ ceilings, run }: { ceilings: { job: Job; result: Ceilings } | undefined; run: Run }) {
  const running = jobsOf("doctor").some((job) => job.state === "running") || run.starting;
  return (
    <Card
      title="From the drives to the initiators"
      actions={
        <Button small busy={running} onClick={() => void run.start({ ceilings: true })}>
          {ceilings ? "Compute again" : "Compute the ceilings"}
        </Button>
      }
    >
      {ceilings ? (
        <CeilingsPicture ceilings={ceilings.result} />
      ) : (
        <p class="muted">What each layer of this machine can carry at most, and which one is the narrowest.</p>
      )}
    </Card>
  );
}
