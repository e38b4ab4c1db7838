/** The way from the drives to the initiators as a pipe: each layer as wide as what it can carry, the bottleneck marked. */

import { useSignal } from "@preact/signals";
import type { Ceilings, Layer } from "../api/types";
import { decimalRate } from "../lib/format";
import { Table } from "../ui/table";

type Direction = "read" | "write" | "both";

const NAMES: Record<Direction, string> = { read: "Reads", write: "Writes", both: "Both at once" };

const binds = (of: Ceilings, direction: Direction): string | null =>
  ({ read: of.binds_reads, write: of.binds_writes, both: of.binds_both })[direction];

/** Width of the drawing, and of a layer in it. */
const STEP = 120;
const HEIGHT = 150;
const WIDEST = 96;
const NARROWEST = 12;

/** Half the width of the pipe at a layer: by the logarithm, so that a factor of ten is still seen in a small drawing. */
function half(value: number, least: number, most: number): number {
  if (most <= least) return WIDEST / 4;
  const share = Math.log(value / least) / Math.log(most / least);
  return (NARROWEST + share * (WIDEST - NARROWEST)) / 2;
}

/** The outline of the pipe through the layers. */
function outline(halves: number[]): string {
  const middle = HEIGHT / 2;
  const top: string[] = [];
  const bottom: string[] = [];
  halves.forEach((it, at) => {
    const [left, right] = [at * STEP + 14, (at + 1) * STEP - 14];
    top.push(`${left},${middle - it}`, `${right},${middle - it}`);
    bottom.unshift(`${right},${middle + it}`, `${left},${middle + it}`);
  });
  return [...top, ...bottom].join(" ");
}

function Pipe({ layers, direction, narrow }: { layers: Layer[]; direction: Direction; narrow: string | null }) {
  const known = layers.filter((it) => it[direction] !== null);
  if (known.length === 0) return <p class="muted">Nothing is known of the layers in this direction.</p>;
  const values = known.map((it) => it[direction] ?? 0);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const halves = values.map((it) => half(it, least, most));
  const width = known.length * STEP;
  const told = known.map((it) => `${it.name} ${decimalRate(it[direction])}`).join(", ");
  return (
    <div class="pipe-frame" role="region" aria-label="The way from the drives to the initiators" tabIndex={0}>
      <svg class="pipe" viewBox={`0 0 ${width} ${HEIGHT + 56}`} width={width} height={HEIGHT + 56} role="img" aria-label={`${NAMES[direction]}: ${told}. The bottleneck is ${narrow ?? "not known"}.`}>
        <polygon class="pipe-all" points={outline(halves)} />
        {known.map((it, at) => {
          const isNarrow = it.name === narrow;
          const x = at * STEP;
          return (
            <g key={it.name} class={isNarrow ? "narrow" : ""}>
              {isNarrow && <rect class="pipe-narrow" x={x + 14} y={HEIGHT / 2 - halves[at]} width={STEP - 28} height={halves[at] * 2} />}
              <text x={x + STEP / 2} y={HEIGHT + 14} class="pipe-value">
                {decimalRate(it[direction])}
              </text>
              <text x={x + STEP / 2} y={HEIGHT + 32} class="pipe-name">
                {it.name.length > 19 ? `${it.name.slice(0, 18)}…` : it.name}
              </text>
              {isNarrow && (
                <text x={x + STEP / 2} y={HEIGHT + 49} class="pipe-mark">
                  bottleneck
                </text>
              )}
            </g>
          );
        })}
      </svg>
    </div>
  );
}

export function CeilingsPicture({ ceilings }: { ceilings: Ceilings }) {
  const direction = useSignal<Direction>("read");
  const shared = ceilings.layers.filter((it) => !it.one_session);
  const narrow = binds(ceilings, direction.value);
  const sentence = narrow ? `${NAMES[direction.value]} are limited by: ${narrow}.` : "The bottleneck is not known.";
  return (
    <div class="ceilings">
      <div class="filter" role="group" aria-label="Direction">
        {(Object.keys(NAMES) as Direction[]).map((it) => (
          <button key={it} type="button" aria-pressed={direction.value === it} onClick={() => (direction.value = it)}>
            {NAMES[it]}
          </button>
        ))}
      </div>
      <Pipe layers={shared} direction={direction.value} narrow={narrow} />
      <p role="status">
        <strong>{sentence}</strong>
        {ceilings.binds_one_session && ceilings.binds_one_session !== narrow && (
          <> A single session is limited by: {ceilings.binds_one_session}.</>
        )}
      </p>
      <details>
        <summary>All figures, and how they come about</summary>
        <Table
          label="What each layer can carry"
          rows={ceilings.layers}
          rowKey={(it) => it.name}
          columns={[
            { head: "Layer", names: true, cell: (it) => it.name },
            { head: "Reads", figures: true, cell: (it) => decimalRate(it.read) },
            { head: "Writes", figures: true, cell: (it) => decimalRate(it.write) },
            { head: "Both, each", figures: true, cell: (it) => decimalRate(it.both) },
          ]}
        />
        <dl class="arithmetic">
          {ceilings.layers.map((it) => (
            <div key={it.name}>
              <dt>{it.name}</dt>
              <dd>
                {it.steps.map((step) => (
                  <p key={step}>{step}</p>
                ))}
                {it.missing && <p>Not known: {it.missing}.</p>}
              </dd>
            </div>
          ))}
        </dl>
      </details>
    </div>
  );
}
