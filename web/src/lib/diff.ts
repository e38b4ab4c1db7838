/** The difference of two texts, line by line. */

export interface DiffLine {
  kind: "same" | "added" | "removed" | "gap";
  text: string;
}

/** Lines beyond this many are not compared one by one: the table of the comparison would be too large. */
const LARGEST = 4000;

/** What turns `before` into `after`, with `around` unchanged lines about each change. */
export function diff(before: string, after: string, around = 3): DiffLine[] {
  return folded(compare(before.split("\n"), after.split("\n")), around);
}

function compare(a: string[], b: string[]): DiffLine[] {
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
  const same = (text: string): DiffLine => ({ kind: "same", text });
  return [
    ...a.slice(0, head).map(same),
    ...middle(a.slice(head, a.length - tail), b.slice(head, b.length - tail)),
    ...a.slice(a.length - tail).map(same),
  ];
}

/** The longest common subsequence of what lies between the common beginning and end. */
function middle(a: string[], b: string[]): DiffLine[] {
  const removed = (text: string): DiffLine => ({ kind: "removed", text });
  const added = (text: string): DiffLine => ({ kind: "added", text });
  if (a.length * b.length > LARGEST * LARGEST) return [...a.map(removed), ...b.map(added)];
  const width = b.length + 1;
  const table = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      table[i * width + j] =
        a[i] === b[j]
          ? table[(i + 1) * width + j + 1] + 1
          : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    }
  }
  const out: DiffLine[] = [];
  let [i, j] = [0, 0];
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) {
      out.push({ kind: "same", text: a[i] });
      i += 1;
      j += 1;
    } else if (table[(i + 1) * width + j] >= table[i * width + j + 1]) {
      out.push(removed(a[i]));
      i += 1;
    } else {
      out.push(added(b[j]));
      j += 1;
    }
  }
  return [...out, ...a.slice(i).map(removed), ...b.slice(j).map(added)];
}

function folded(lines: DiffLine[], around: number): DiffLine[] {
  const near = new Array<boolean>(lines.length).fill(false);
  lines.forEach((line, at) => {
    if (line.kind === "same") return;
    for (let i = Math.max(0, at - around); i <= Math.min(lines.length - 1, at + around); i += 1) near[i] = true;
  });
  const out: DiffLine[] = [];
  lines.forEach((line, at) => {
    if (near[at]) out.push(line);
    else if (out.at(-1)?.kind !== "gap") out.push({ kind: "gap", text: "…" });
  });
  return out.some((line) => line.kind !== "gap") ? out : [];
}
