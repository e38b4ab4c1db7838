/** Figures for people. Sizes and rates are in powers of 1024, as in `lunet top`. */

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] as const;

function rounded(value: number): string {
  if (value >= 100 || Number.isInteger(value)) return Math.round(value).toString();
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

/** `40 GiB`, `1.50 TiB`. */
export function size(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined) return "–";
  let at = 0;
  let value = bytes;
  while (value >= 1024 && at < UNITS.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${rounded(value)} ${UNITS[at]}`;
}

/** `48.2 MiB/s`. */
export const rate = (bytesPerSecond: number): string => `${size(bytesPerSecond)}/s`;

/** The decimal form of the doctor's ceilings: `4.19 GB/s`. */
export function decimalRate(bytesPerSecond: number | null | undefined): string {
  if (bytesPerSecond === null || bytesPerSecond === undefined) return "–";
  const [value, unit] =
    bytesPerSecond >= 1e9 ? [bytesPerSecond / 1e9, "GB/s"] : [bytesPerSecond / 1e6, "MB/s"];
  return `${Number(value.toPrecision(3))} ${unit}`;
}

/** `357,000`; below 10 with a decimal. */
export function count(value: number): string {
  if (value > 0 && value < 10 && !Number.isInteger(value)) return value.toFixed(1);
  return Math.round(value).toLocaleString("en-GB");
}

/** `85.5 us` as `86 µs`, `1.2 ms`, `2 s`. */
export function duration(us: number | null | undefined): string {
  if (us === null || us === undefined) return "–";
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${rounded(us / 1000)} ms`;
  return `${rounded(us / 1e6)} s`;
}

/** `3 d 4 h`, `12 min`, `8 s`. */
export function span(seconds: number): string {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** The server tells times in seconds; a text is taken as it is in RFC 3339. */
export function date(time: number | string): Date {
  return typeof time === "number" ? new Date(time * 1000) : new Date(time);
}

/** `24 Nov 2026, 10:32:11`. */
export function moment(time: number | string): string {
  return date(time).toLocaleString("en-GB", {
    day: "numeric",
    month: "short",
    year: "numeric",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
  });
}

/** `10:32:11`. */
export function clock(time: number | string): string {
  return date(time).toLocaleTimeString("en-GB");
}

/** `2 min ago`. */
export function ago(time: number | string): string {
  const seconds = (Date.now() - date(time).getTime()) / 1000;
  return seconds < 5 ? "just now" : `${span(seconds)} ago`;
}

/** `1 session`, `3 sessions`. */
export function plural(n: number, one: string, many = `${one}s`): string {
  return `${n.toLocaleString("en-GB")} ${n === 1 ? one : many}`;
}

/** A word of the API for people: `write-back-failed` as `write-back failed`. */
const WORDS: Record<string, string> = {
  "write-back-failed": "write-back failed",
  "not-served": "not served",
  "storage-missing": "storage missing",
  "storage-replaced": "storage replaced",
  "storage-cut-short": "storage cut short",
  "not-made": "not made",
  "no-memory": "no memory",
  "cannot-be-opened": "cannot be opened",
  "off-by-initiator": "off, by the initiator",
  "this-machine": "this machine only",
  everybody: "everybody",
  named: "those named",
  "network-in": "network in",
  "network-out": "network out",
  "shard-cpu": "shard CPU",
  "buffer-memory": "buffer memory",
  queue: "queue",
  tcp: "iSCSI over TCP",
  iser: "iSER",
  "nvme-tcp": "NVMe over TCP",
  "nvme-rdma": "NVMe over RDMA",
};

export const word = (text: string): string => WORDS[text] ?? text.replaceAll("-", " ");
