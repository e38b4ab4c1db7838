/** What the page tells people to type is what the documentation says. */

import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "@playwright/test";
import { type Attachment, PLATFORMS, steps } from "../src/lib/commands";
import { admits } from "../src/lib/names";
import { diff } from "../src/lib/diff";

const DOCS = join(dirname(fileURLToPath(import.meta.url)), "../../docs");
const PAGES = ["attach", "vmware", "proxmox", "windows", "kubernetes", "access"];

/** One line, with what differs from example to example replaced by its kind. */
function plain(line: string): string {
  return line
    .replace(/\s+#.*$/, "")
    .replace(/(iqn|nqn)\.[a-z0-9.:-]+/g, "NAME")
    .replace(/\d+\.\d+\.\d+\.\d+(:\d+)?/g, "ADDRESS")
    .replace(/\$target\b/g, "-T NAME -p ADDRESS")
    .replace(/\$name\b/g, "NAME")
    .replace(/lun-\d+/g, "lun-N")
    .replace(/(username='|username: "|username -v |--authname=|-ChapUsername |[,.]user=)[A-Za-z0-9]+/g, "$1USER")
    .replace(/(password: "|password -v |--secret=|-ChapSecret "|printf %s )[A-Za-z0-9.-]+/g, "$1SECRET")
    .replace(/\b(ONEWAYCHAP|MUTUALCHAP)\b/g, "CHAP")
    .replace(/(name|volumeName|claimName): pg-0|(name|volumeName): vm1/g, (it) => `${it.split(":")[0]}: VOLUME`)
    .replace(/\d+Gi$/, "SIZE")
    .replace(/\/dev\/(disk\/by-path\/\S+|mapper\/mpatha)/g, "DEVICE")
    .replace(/\s+/g, " ")
    .trim();
}

/** The lines of the pages, and what stands in the middle of a sentence as code. */
const documented = new Set(
  PAGES.flatMap((it) => {
    const text = readFileSync(join(DOCS, `${it}.md`), "utf8");
    const inline = [...text.matchAll(/`([^`\n]+)`/g)].map((match) => match[1]);
    return [...text.split("\n"), ...inline].map(plain);
  }),
);

const ATTACHMENT: Attachment = {
  volume: "vm1",
  target: "iqn.2026-11.local.lunet:demo",
  lun: 0,
  portal: "192.0.2.10:3260",
  sizeBytes: 50 * 2 ** 30,
};

for (const platform of PLATFORMS) {
  for (const [kind, more] of [
    ["name", { initiator: "iqn.2026-11.local.example:vm1" }],
    ["chap", { chap: { name: "esx1", secret: "SECRET" } }],
  ] as const) {
    test(`commands for ${platform}, access by ${kind}, are documented`, () => {
      const lines = steps(platform, { ...ATTACHMENT, ...more })
        .filter((step) => step.title !== "The secret to type in")
        .flatMap((step) => step.code.split("\n"));
      const unknown = lines.filter((line) => !documented.has(plain(line)));
      expect(unknown).toEqual([]);
    });
  }
}

test("a list of initiators admits whom docs/access.md says", () => {
  const list = ["iqn.1998-01.com.vmware:*", "192.0.2.0/24"];
  expect(admits(list, "iqn.1998-01.com.vmware:esx1", "192.0.2.9")).toBe(true);
  expect(admits(list, "iqn.1998-01.com.vmware:esx1", "198.51.100.9")).toBe(false);
  expect(admits(list, "iqn.1993-08.org.debian:1", "192.0.2.9")).toBe(false);
  expect(admits(list, "iqn.1998-01.com.vmware:esx1", null)).toBeNull();
  expect(admits(["fd00::/8"], "iqn.a:b", "fd12::1")).toBe(true);
  expect(admits([], "iqn.a:b", "192.0.2.9")).toBe(false);
});

test("a difference names what was changed, and folds the rest", () => {
  const before = Array.from({ length: 30 }, (_, at) => `line ${at}`);
  const after = before.map((line) => (line === "line 15" ? "another" : line));
  const lines = diff(before.join("\n"), after.join("\n"));
  expect(lines.filter((it) => it.kind === "removed").map((it) => it.text)).toEqual(["line 15"]);
  expect(lines.filter((it) => it.kind === "added").map((it) => it.text)).toEqual(["another"]);
  expect(lines.length).toBeLessThan(12);
  expect(diff("same", "same")).toEqual([]);
});
