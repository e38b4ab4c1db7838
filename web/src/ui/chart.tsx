/** Figures over time. uPlot is read when the first chart is shown: the rest of the page does not wait for it. */

import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import type uPlot from "uplot";
import { theme } from "./theme";

export interface Series {
  label: string;
  /** A colour of the style sheet: `--read`. */
  colour: string;
  values: (number | null)[];
}

interface ChartProps {
  label: string;
  times: number[];
  series: Series[];
  format: (value: number) => string;
  height?: number;
  /** The values are bytes: the vertical axis is divided by powers of two. */
  bytes?: boolean;
  /** The horizontal axis counts seconds from 0, and is no time of day. */
  relative?: boolean;
}

/** The colour that a custom property comes to: a canvas does not know custom properties. */
function colourOf(host: Element, property: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${property})`;
  host.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

function transparent(colour: string): string {
  const numbers = colour.match(/[\d.]+/g)?.slice(0, 3) ?? ["0", "0", "0"];
  return `rgba(${numbers.join(",")},0.12)`;
}

/** Steps of an axis of bytes: 1, 2, 4 bytes and so on, so that its marks are whole KiB, MiB and GiB. */
const BYTE_STEPS = Array.from({ length: 50 }, (_, at) => 2 ** at);

function options(host: HTMLElement, props: ChartProps): uPlot.Options {
  const { series, format, height = 180, bytes, relative } = props;
  const text = colourOf(host, "--muted");
  const line = colourOf(host, "--line");
  const font = `12px ${getComputedStyle(host).fontFamily}`;
  const axis = { stroke: text, font, grid: { stroke: line, width: 1 }, ticks: { show: false } };
  return {
    width: host.clientWidth,
    height,
    legend: { show: false },
    cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
    scales: {
      x: { time: !relative },
      // From 0, and never flat: a small load must not look as a large one.
      y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] },
    },
    axes: [
      {
        ...axis,
        size: 28,
        space: 90,
        values: relative
          ? (_plot, at) => at.map((value) => `${value} s`)
          : (_plot, at) => at.map((value) => new Date(value * 1000).toLocaleTimeString("en-GB")),
      },
      { ...axis, size: 76, space: 36, ...(bytes ? { incrs: BYTE_STEPS } : {}), values: (_plot, at) => at.map(format) },
    ],
    series: [
      {},
      ...series.map((one) => {
        const stroke = colourOf(host, one.colour);
        return { label: one.label, stroke, width: 1.5, fill: transparent(stroke), points: { show: false } };
      }),
    ],
  };
}

export function Chart(props: ChartProps) {
  const { label, times, series, format, height = 180 } = props;
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const failed = useSignal(false);
  const data = useRef<uPlot.AlignedData>([[]]);
  data.current = [times, ...series.map((one) => one.values)] as uPlot.AlignedData;
  const look = theme.value;

  useEffect(() => {
    const element = host.current;
    if (!element) return;
    let stopped = false;
    const draw = (Plot: typeof uPlot): void => {
      if (stopped) return;
      plot.current = new Plot(options(element, props), data.current, element);
    };
    import("uplot").then(
      (module) => draw(module.default),
      () => {
        failed.value = true;
      },
    );
    const observer = new ResizeObserver(() => {
      if (element.clientWidth > 0) plot.current?.setSize({ width: element.clientWidth, height });
    });
    observer.observe(element);
    return () => {
      stopped = true;
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [look, series.length]);

  useEffect(() => {
    plot.current?.setData(data.current);
  });

  const now = series.map((one) => {
    const value = one.values.at(-1);
    return { ...one, text: value === null || value === undefined ? "–" : format(value) };
  });
  return (
    <figure class="chart">
      <figcaption>
        <span class="chart-title">{label}</span>
        {now.map((one) => (
          <span key={one.label} class={`legend ${one.colour.slice(2)}`}>
            {one.label} <b>{one.text}</b>
          </span>
        ))}
      </figcaption>
      <div
        ref={host}
        class={`plot ${height > 200 ? "tall" : ""}`}
        role="img"
        aria-label={`${label}: ${now.map((one) => `${one.label} ${one.text}`).join(", ")}`}
      />
      {failed.value && <p class="muted">The chart could not be loaded.</p>}
    </figure>
  );
}
