/** What the server does now, what limits it, and what needs somebody. */

import { useEffect } from "preact/hooks";
import type { ComponentChildren } from "preact";
import type { Binding, VolumeRates } from "../api/types";
import { ago, count, duration, plural, rate, word } from "../lib/format";
import { link } from "../route";
import { history, latest, noVerdict, portals, refused, sessions, verdict, volumes } from "../state";
import { useRun } from "../jobs";
import { Badge, Button, ButtonLink, Card, Empty, Loading, ProblemNotice } from "../ui/basics";
import { Chart } from "../ui/chart";
import { Icon } from "../ui/icons";
import { Table } from "../ui/table";
import { Title } from "../ui/title";
import { useDoctorReport } from "./doctor";

interface Total {
  read: number;
  write: number;
  iops: number;
  p99: number | null;
  flight: number;
}

const largest = (all: (number | null)[]): number | null => all.reduce((most, it) => (it === null ? most : Math.max(most ?? 0, it)), null);

/** All volumes together. The p99 of several is not known: the largest is shown. */
function total(rates: VolumeRates[]): Total {
  const sum = (of: (it: VolumeRates) => number): number => rates.reduce((all, it) => all + of(it), 0);
  return {
    read: sum((it) => it.read.bytes_per_second),
    write: sum((it) => it.write.bytes_per_second),
    iops: sum((it) => it.read.ops_per_second + it.write.ops_per_second),
    p99: largest(rates.flatMap((it) => [it.read.p99_us, it.write.p99_us])),
    flight: sum((it) => it.commands_in_flight),
  };
}

export function Overview() {
  useEffect(() => {
    for (const one of [volumes, sessions, portals, refused]) one.want();
  }, []);
  const now = latest.value ? total(latest.value.rates.volumes) : null;
  return (
    <>
      <Title
        title="Overview"
        actions={
          <ButtonLink kind="primary" icon="plus" href="#/new-disk">
            New disk
          </ButtonLink>
        }
      />
      <div class="columns">
        <Binds />
        <Attention />
      </div>
      <ul class="figures-row">
        <Figure label="Reads" value={now ? rate(now.read) : "–"} />
        <Figure label="Writes" value={now ? rate(now.write) : "–"} />
        <Figure label="IOPS" value={now ? count(now.iops) : "–"} />
        <Figure label="p99 latency" value={duration(now?.p99)} hint="Of the slowest volume, in the last second" />
        <Figure label="In flight" value={now ? count(now.flight) : "–"} />
        <Figure label="Sessions" value={sessions.data.value ? count(sessions.data.value.length) : "–"} />
      </ul>
      <Charts />
      <Busiest />
      <Shards />
    </>
  );
}

function Figure({ label, value, hint }: { label: string; value: string; hint?: string }) {
  return (
    <li title={hint}>
      <span class="figure-label">{label}</span>
      <span class="figure">{value}</span>
    </li>
  );
}

/** What limits the server. */
function Binds() {
  const told = verdict.value?.server;
  return (
    <Card title="What limits the server now" class="binds">
      {told ? <BindingView binding={told} /> : noVerdict.value ? <p class="muted">This server does not tell it.</p> : <Loading what="Waiting for the server’s verdict" />}
    </Card>
  );
}

export function BindingView({ binding }: { binding: Binding }) {
  const { sentence, evidence, stages, bound_by, sampled } = binding;
  const shown = stages.filter((it) => it.share > 0);
  return (
    <>
      <p class="verdict">{sentence || `${word(bound_by)}.`}</p>
      {shown.length > 0 && <Stages stages={shown} />}
      {evidence.length > 0 && (
        <ul class="evidence">
          {evidence.map((it) => (
            <li key={it}>{it}</li>
          ))}
        </ul>
      )}
      {sampled > 0 && <p class="muted small">From {plural(sampled, "sampled operation")}.</p>}
    </>
  );
}

/** Where the time of an operation goes, as one bar. */
function Stages({ stages }: { stages: { stage: string; share: number }[] }) {
  const all = stages.reduce((sum, it) => sum + it.share, 0) || 1;
  let from = 0;
  return (
    <div class="stages">
      <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" focusable="false">
        {stages.map((it, at) => {
          const width = (it.share / all) * 100;
          const x = from;
          from += width;
          return <rect key={it.stage} class={`stage-${at % 6}`} x={x} width={Math.max(0, width - 0.4)} height="8" />;
        })}
      </svg>
      <ul>
        {stages.map((it, at) => (
          <li key={it.stage}>
            <span class={`swatch stage-${at % 6}`} aria-hidden="true" />
            {word(it.stage)} <b>{Math.round((it.share / all) * 100)} %</b>
          </li>
        ))}
      </ul>
    </div>
  );
}

interface Point {
  tone: "bad" | "warn" | "info";
  text: ComponentChildren;
  href: string;
}

/** Faults of volumes, portals that are not served, refused logins. */
function points(): Point[] {
  const out: Point[] = [];
  for (const volume of volumes.data.value ?? []) {
    for (const fault of volume.faults ?? []) {
      out.push({
        tone: "bad",
        href: link`volumes/${volume.name}`,
        text: (
          <>
            <span class="name">{volume.name}</span>: {word(fault.state)}
          </>
        ),
      });
    }
  }
  for (const portal of portals.data.value ?? []) {
    if ((portal.iser_wanted || portal.nvme_rdma_wanted) && portal.why) {
      out.push({ tone: "warn", href: "#/configuration/portals", text: `${portal.address}: ${portal.why}` });
    }
  }
  const lately = (refused.data.value ?? []).filter((it) => Date.now() / 1000 - it.time < 3600);
  if (lately.length > 0) {
    out.push({
      tone: "warn",
      href: "#/access",
      text: `${plural(lately.length, "refused login")} in the last hour`,
    });
  }
  return out;
}

function Attention() {
  const found = useDoctorReport();
  const run = useRun("doctor");
  const list = points();
  const worst = found?.result.findings[0];
  const more = (found?.result.findings.length ?? 0) - 1;
  if (worst) {
    list.push({
      tone: worst.severity === "risk" ? "bad" : worst.severity === "slow" ? "warn" : "info",
      href: "#/doctor",
      text: (
        <>
          {worst.found}
          {more > 0 && <span class="muted"> And {plural(more, "more finding")}.</span>}
        </>
      ),
    });
  }
  const running = run.job?.state === "running";
  return (
    <Card title="Needs attention">
      {list.length === 0 ? (
        <p class={found ? "all-well" : "muted"}>
          {found ? (
            <>
              <Icon name="check" /> Nothing: no fault, no refused login, no finding.
            </>
          ) : (
            "No fault and no refused login. The doctor has not looked at this machine yet."
          )}
        </p>
      ) : (
        <ul class="attention">
          {list.map((it, at) => (
            <li key={at} class={it.tone}>
              <Icon name={it.tone === "info" ? "info" : "warning"} />
              <a href={it.href}>{it.text}</a>
            </li>
          ))}
        </ul>
      )}
      <ProblemNotice problem={run.problem} />
      <div class="foot">
        <span class="muted small">{found ? `Checked ${ago(found.job.ended ?? found.job.started)}` : ""}</span>
        <Button small icon="doctor" busy={running || run.starting} onClick={() => void run.start()}>
          {running ? "Checking" : found ? "Check again" : "Check this machine"}
        </Button>
      </div>
    </Card>
  );
}

function Charts() {
  const points = history.value;
  const times = points.map((it) => it.time);
  const totals = points.map((it) => total(it.rates.volumes));
  const per = (of: (it: VolumeRates) => number): number[] =>
    points.map((it) => it.rates.volumes.reduce((all, volume) => all + of(volume), 0));
  return (
    <div class="columns three">
      <Card>
        <Chart
          label="Throughput"
          times={times}
          bytes
          format={rate}
          series={[
            { label: "reads", colour: "--read", values: totals.map((it) => it.read) },
            { label: "writes", colour: "--write", values: totals.map((it) => it.write) },
          ]}
        />
      </Card>
      <Card>
        <Chart
          label="IOPS"
          times={times}
          format={count}
          series={[
            { label: "reads", colour: "--read", values: per((it) => it.read.ops_per_second) },
            { label: "writes", colour: "--write", values: per((it) => it.write.ops_per_second) },
          ]}
        />
      </Card>
      <Card>
        <Chart
          label="p99 latency, slowest volume"
          times={times}
          format={duration}
          series={[
            { label: "reads", colour: "--read", values: points.map((it) => largest(it.rates.volumes.map((volume) => volume.read.p99_us))) },
            { label: "writes", colour: "--write", values: points.map((it) => largest(it.rates.volumes.map((volume) => volume.write.p99_us))) },
          ]}
        />
      </Card>
    </div>
  );
}

function Busiest() {
  const rates = latest.value?.rates.volumes ?? [];
  const known = volumes.data.value;
  if (known && known.length === 0) {
    return (
      <Card title="Volumes">
        <Empty
          title="There are no volumes yet."
          action={
            <ButtonLink kind="primary" icon="plus" href="#/new-disk">
              Create a disk
            </ButtonLink>
          }
        >
          <p>A disk is a volume on this machine that a hypervisor or a host uses over the network.</p>
        </Empty>
      </Card>
    );
  }
  const busy = (it: VolumeRates): number => it.read.bytes_per_second + it.write.bytes_per_second;
  const rows = [...rates].sort((a, b) => busy(b) - busy(a) || a.name.localeCompare(b.name)).slice(0, 8);
  const bound = (name: string) => verdict.value?.volumes.find((it) => it.name === name);
  return (
    <Card title="Busiest volumes" actions={<a href="#/volumes">All volumes</a>}>
      {rows.length === 0 ? (
        <Loading what="Waiting for figures" />
      ) : (
        <Table
          label="Busiest volumes"
          rows={rows}
          rowKey={(row) => row.name}
          columns={[
            { head: "Volume", names: true, cell: (row) => <a class="name" href={link`volumes/${row.name}`}>{row.name}</a> },
            { head: "Reads", figures: true, cell: (row) => rate(row.read.bytes_per_second) },
            { head: "Writes", figures: true, cell: (row) => rate(row.write.bytes_per_second) },
            { head: "IOPS", figures: true, cell: (row) => count(row.read.ops_per_second + row.write.ops_per_second) },
            { head: "p99 read", figures: true, cell: (row) => duration(row.read.p99_us) },
            { head: "p99 write", figures: true, cell: (row) => duration(row.write.p99_us) },
            {
              head: "Limited by",
              cell: (row) => {
                const it = bound(row.name);
                return it ? <Badge tone="quiet">{word(it.bound_by)}</Badge> : "–";
              },
            },
          ]}
        />
      )}
    </Card>
  );
}

function Shards() {
  const shards = latest.value?.rates.shards ?? [];
  if (shards.length === 0) return null;
  return (
    <Card title="Shards">
      <Table
        label="Shards"
        rows={shards}
        rowKey={(row) => String(row.shard)}
        columns={[
          { head: "Shard", names: true, cell: (row) => row.shard },
          { head: "CPU", figures: true, cell: (row) => `${row.cpu_percent.toFixed(0)} %` },
          { head: "Operations per wait", figures: true, cell: (row) => row.operations_per_wait?.toFixed(1) ?? "–" },
          { head: "Connections", figures: true, cell: (row) => row.connections },
          { head: "In flight", figures: true, cell: (row) => row.commands_in_flight },
          { head: "Buffers", figures: true, cell: (row) => `${row.buffers_percent.toFixed(0)} %` },
        ]}
      />
    </Card>
  );
}
