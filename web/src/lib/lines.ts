/** Texts with numbered lines: mistakes as the server tells them, and where a line is. */

export interface Mistake {
  line: number;
  text: string;
}

/** The line that says the revision of a shared configuration. */
const HEAD = "# lunet group configuration, format ";

/** A shared configuration without the line of its revision, which `If-Match` stands for. */
export function withoutHead(text: string): string {
  return text.startsWith(HEAD) ? text.slice(text.indexOf("\n") + 1) : text;
}

/** The mistakes in a sentence such as `line 3: a.b: why; line 9: c: why`; none if it is another one. */
export function mistakesOf(detail: string): Mistake[] {
  const all = detail.split(/(?:^|; )(?=[Ll]ine \d+: )/);
  const found = all.map((part) => /^[Ll]ine (\d+): (.*)$/s.exec(part));
  // What is not of a line of the text is not to be lost.
  if (found.includes(null)) return [];
  return found.flatMap((it) => (it ? [{ line: Number(it[1]), text: it[2] ?? "" }] : []));
}

/** Where a line of a text begins and ends; the end of the text if there is no such line. */
export function spanOfLine(text: string, line: number): { begin: number; end: number } {
  const lines = text.split("\n");
  const before = lines.slice(0, line - 1);
  const begin = Math.min(text.length, before.reduce((sum, it) => sum + it.length + 1, 0));
  return { begin, end: begin + (lines[line - 1]?.length ?? 0) };
}
