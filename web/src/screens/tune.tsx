/** What should be set otherwise on this machine: a plan as a diff, applied and rolled back by jobs. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Job, Plan, PlanItem, Setting, Verified } from "../api/types";
import { ago, plural } from "../lib/format";
import { useFinished, useResult, useRun } from "../jobs";
import { ProofCard } from "./proof";
import { jobs, may } from "../state";
import { Badge, Button, Card, Checkbox, Empty, NeedsRole, Notice, SelectField } from "../ui/basics";
import { Dialog } from "../ui/dialog";
import { Icon } from "../ui/icons";
import { Title } from "../ui/title";
import { JobLine } from "./doctor";

const isPlan = (it: unknown): it is Plan => typeof it === "object" && it !== null && Array.isArray((it as Plan).items);

const PROFILES = [
  { value: "mixed", label: "mixed: virtual machines" },
  { value: "throughput", label: "throughput: large sequential reads and writes" },
  { value: "latency", label: "latency: databases" },
];

const EFFECTS: Record<string, string> = {
  live: "at once",
  reload: "when its module is loaded or its session made anew",
  reboot: "after a reboot",
};

/** A setting as people write it. The compiler refuses a kind that is left out. */
export function settingText(it: Setting): string {
  switch (it.kind) {
    case "sysctl":
      return it.name;
    case "module":
      return `${it.name} of module ${it.module}`;
    case "sysfs":
      return it.path;
    case "cpus":
      return `${it.file} of every CPU`;
    case "cmdline":
      return `${it.name} on the kernel’s command line`;
    case "ring":
      return `${it.ring} ring of ${it.nic}`;
    case "zfs":
      return `${it.property} of ${it.dataset}`;
    case "conf":
      return it.section ? `${it.key} below [${it.section}] in ${it.file}` : `${it.key} in ${it.file}`;
    case "freebsd":
      return `${it.name} in ${it.loader ? "/boot/loader.conf" : "/etc/sysctl.conf"}`;
  }
}

const isVerified = (it: unknown): it is Verified =>
  typeof it === "object" && it !== null && Array.isArray((it as Verified).drift);

/** The screen; `only`: the one rule that somebody has come for. */
export function Tune({ only }: { only: string | undefined }) {
  useEffect(() => jobs.want(), []);
  const profile = useSignal("mixed");
  const planning = useRun("tune-plan");
  const applying = useRun("tune-apply");
  const rolling = useRun("tune-rollback");
  const verifying = useRun("tune-verify");
  const plan = useResult("tune-plan", isPlan);
  const asking = useSignal<"apply" | "rollback" | null>(null);
  const left = useSignal<Set<string>>(new Set());
  const persist = useSignal(false);
  const busy = [planning, applying, rolling, verifying].some((it) => it.job?.state === "running" || it.starting);
  const make = (): void => {
    left.value = new Set();
    void planning.start({ profile: profile.value });
  };
  // After a change the plan shows what is left of it, and whether all of it holds.
  const look = (): void => {
    make();
    void verifying.start();
  };
  useAfter(applying.job, look);
  useAfter(rolling.job, look);
  const current = plan && plan.result.profile === profile.value ? plan : undefined;
  const changes = current?.result.items.filter((it) => it.verdict === "change") ?? [];
  const rules = [...new Set(changes.map((it) => it.rule))];
  const planId = current?.job.id;
  useEffect(() => {
    if (only && rules.includes(only)) left.value = new Set(rules.filter((rule) => rule !== only));
  }, [only, planId]);
  const chosen = rules.filter((rule) => !left.value.has(rule));
  return (
    <>
      <Title
        title="Tune"
        about="Settings of this machine that should be otherwise, and why. Every change can be rolled back."
        actions={
          <>
            <Button busy={verifying.job?.state === "running" || verifying.starting} disabled={busy} onClick={() => void verifying.start()}>
              Verify
            </Button>
            {may("administrator") && (
              <Button disabled={busy} onClick={() => (asking.value = "rollback")}>
                Roll back
              </Button>
            )}
          </>
        }
      />
      <form
        class="inline-form"
        onSubmit={(event) => {
          event.preventDefault();
          if (!busy) make();
        }}
      >
        <SelectField label="Tune for" value={profile.value} options={PROFILES} onInput={(value) => (profile.value = value)} />
        <Button submit kind={current ? "plain" : "primary"} icon="refresh" busy={planning.job?.state === "running" || planning.starting}>
          {current ? "Plan again" : "Make a plan"}
        </Button>
      </form>
      <JobLine run={planning} what="The tuner" />
      <JobLine run={applying} what="The tuner" />
      <JobLine run={rolling} what="The tuner" />
      <JobLine run={verifying} what="The tuner" />
      <Outcome job={applying.job} title="Applied" />
      <Outcome job={rolling.job} title="Rolled back" />
      <Holds job={verifying.job} />
      {current ? (
        <PlanView
          job={current.job}
          plan={current.result}
          left={left.value}
          onLeft={(it) => (left.value = it)}
          foot={
            may("administrator") ? (
              <div class="form-foot">
                <Checkbox
                  checked={persist.value}
                  onChange={(on) => (persist.value = on)}
                  hint="In the system’s own way. Settings of the kernel’s command line need it."
                >
                  Keep them across reboots
                </Checkbox>
                <Button kind="primary" disabled={busy || chosen.length === 0} onClick={() => (asking.value = "apply")}>
                  Apply {plural(chosen.length, "rule")}
                </Button>
              </div>
            ) : (
              <NeedsRole role="administrator" />
            )
          }
        />
      ) : (
        !busy && (
          <Empty title="There is no plan for this profile yet.">
            <p>Making one changes nothing.</p>
          </Empty>
        )
      )}
      <ProofCard profile={profile.value} rules={chosen} busy={busy} after={look} />
      {asking.value === "apply" && (
        <Confirm
          title="Apply the plan"
          verb="Apply"
          text={`${plural(chosen.length, "rule")} of the profile ${profile.value}: all of them or none. The previous values are kept, and “Roll back” restores them.`}
          items={changes.filter((it) => chosen.includes(it.rule))}
          onClose={() => (asking.value = null)}
          go={() => void applying.start({ profile: profile.value, only: chosen, persist: persist.value })}
        />
      )}
      {asking.value === "rollback" && (
        <Confirm
          title="Roll back"
          verb="Roll back"
          text="Restores what was there before lunet’s tuner changed anything. What others have changed since is kept, and named."
          items={[]}
          onClose={() => (asking.value = null)}
          go={() => void rolling.start({})}
        />
      )}
    </>
  );
}

/** Calls `then` when a job that was seen running has ended. */
function useAfter(job: Job | undefined, then: () => void): void {
  const ran = useSignal<string | null>(null);
  const state = job?.state;
  useEffect(() => {
    if (!job) return;
    if (state === "running") ran.value = job.id;
    else if (ran.value === job.id) {
      ran.value = null;
      if (state === "done") then();
    }
  }, [job?.id, state]);
}

/** What a job has printed. */
function Outcome({ job, title }: { job: Job | undefined; title: string }) {
  const whole = useFinished(job);
  if (!whole || whole.state !== "done") return null;
  const text = typeof whole.result === "string" ? whole.result : whole.progress.join("\n");
  return (
    <Notice tone="ok" title={title} live>
      {text.trim() && <pre class="outcome">{text.trim()}</pre>}
    </Notice>
  );
}

/** Whether what was applied still holds. */
function Holds({ job }: { job: Job | undefined }) {
  const whole = useFinished(job);
  if (!whole || whole.state !== "done" || !isVerified(whole.result)) return null;
  const { applied, interrupted, good, drift, waiting } = whole.result;
  const fine = drift.length === 0 && !interrupted;
  const title = !applied
    ? "Nothing is applied by lunet’s tuner"
    : fine
      ? `Verified: ${plural(good, "setting")} as they were set`
      : `${plural(drift.length, "setting")} not as they were set, ${good} as they were`;
  return (
    <Notice tone={fine ? (applied ? "ok" : "quiet") : "warn"} title={title} live>
      {interrupted && <p>An apply or rollback was interrupted: roll back first.</p>}
      {drift.length + waiting.length > 0 && (
        <ul class="plain-list">
          {drift.map((it) => (
            <li key={it.what}>
              <span class="name">{it.what}</span> should be {it.wanted}, is {it.is}
            </li>
          ))}
          {waiting.map((it) => (
            <li key={it}>
              <span class="name">{it}</span> waits for a reboot
            </li>
          ))}
        </ul>
      )}
    </Notice>
  );
}

interface PlanViewProps {
  job: Job;
  plan: Plan;
  left: Set<string>;
  onLeft: (left: Set<string>) => void;
  foot: preact.ComponentChildren;
}

function PlanView({ job, plan, left, onLeft, foot }: PlanViewProps) {
  const of = (verdict: string): PlanItem[] => plan.items.filter((it) => it.verdict === verdict);
  const [changes, advice] = [of("change"), of("advice")];
  const [good, other] = [of("good"), of("not-applicable")];
  const rules = [...new Set(changes.map((it) => it.rule))];
  const toggle = (rule: string): void => {
    const next = new Set(left);
    if (!next.delete(rule)) next.add(rule);
    onLeft(next);
  };
  return (
    <>
      <Card title="Changes">
        <p class="muted">
          {plural(changes.length, "change")} of {plural(rules.length, "rule")} · {ago(job.ended ?? job.started)}
        </p>
        {rules.length === 0 ? (
          <p class="all-well">
            <Icon name="check" /> Everything is as it should be.
          </p>
        ) : (
          <ul class="plan">
            {rules.map((rule) => (
              <Rule key={rule} items={changes.filter((it) => it.rule === rule)} chosen={!left.has(rule)} toggle={() => toggle(rule)} />
            ))}
          </ul>
        )}
        {rules.length > 0 && foot}
      </Card>
      {advice.length > 0 && (
        <Card title="Advice">
          <p class="muted">What depends on more than this machine: lunet does not change it.</p>
          <ul class="plan">
            {advice.map((it, at) => (
              <li key={at}>
                <h3>
                  {it.title} {it.about && <span class="muted">{it.about}</span>}
                </h3>
                <p>{it.advice}</p>
                <p class="muted">{it.reason}</p>
              </li>
            ))}
          </ul>
        </Card>
      )}
      {good.length + other.length > 0 && (
        <details class="card">
          <summary>
            {good.length} in order, {other.length} that do not apply
          </summary>
          <ul class="plain-list">
            {good.map((it, at) => (
              <li key={at}>
                <Badge tone="ok">good</Badge> {it.title} {it.about}: {it.now}
              </li>
            ))}
            {other.map((it, at) => (
              <li key={at}>
                <Badge tone="quiet">does not apply</Badge> {it.title} {it.about}: {it.because}
              </li>
            ))}
          </ul>
        </details>
      )}
    </>
  );
}

function Rule({ items, chosen, toggle }: { items: PlanItem[]; chosen: boolean; toggle: () => void }) {
  const [first] = items;
  return (
    <li class={chosen ? "" : "left-out"}>
      <Checkbox checked={chosen} onChange={toggle}>
        <strong>{first.title}</strong> <span class="muted name">{first.rule}</span>
      </Checkbox>
      <div class="diff" role="group" aria-label={`Change of ${first.rule}`}>
        {items.map((it, at) => (
          <div key={at} class="diff-block">
            <div class="diff-head">{it.setting ? settingText(it.setting) : it.about}</div>
            <div class="removed">
              <span aria-hidden="true">- </span>
              <span class="visually-hidden">now: </span>
              {it.now ?? "not set"}
            </div>
            <div class="added">
              <span aria-hidden="true">+ </span>
              <span class="visually-hidden">then: </span>
              {it.wanted}
            </div>
          </div>
        ))}
      </div>
      <p>{first.reason}</p>
      <details>
        <summary>Risk, effect and source</summary>
        <dl class="facts">
          <div>
            <dt>Risk</dt>
            <dd>{first.risk || "none known"}</dd>
          </div>
          <div>
            <dt>Works</dt>
            <dd>{EFFECTS[first.effect] ?? first.effect}</dd>
          </div>
          <div>
            <dt>Source</dt>
            <dd>{first.source}</dd>
          </div>
        </dl>
      </details>
    </li>
  );
}

interface ConfirmProps {
  title: string;
  verb: string;
  text: string;
  items: PlanItem[];
  onClose: () => void;
  go: () => void;
}

function Confirm({ title, verb, text, items, onClose, go }: ConfirmProps) {
  const risks = [...new Set(items.map((it) => it.risk).filter(Boolean))];
  return (
    <Dialog title={title} onClose={onClose}>
      <p>{text}</p>
      {risks.length > 0 && (
        <>
          <h3>Risks</h3>
          <ul class="plain-list">
            {risks.map((it) => (
              <li key={it}>{it}</li>
            ))}
          </ul>
        </>
      )}
      {items.some((it) => it.effect === "reboot") && <Notice tone="info" title="Some take effect after a reboot." />}
      <div class="dialog-actions">
        <Button onClick={onClose}>Cancel</Button>
        <Button
          kind="primary"
          onClick={() => {
            onClose();
            go();
          }}
        >
          {verb}
        </Button>
      </div>
    </Dialog>
  );
}

