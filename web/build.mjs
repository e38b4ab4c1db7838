// Builds web/dist from web/src: scripts and styles with hashes of their content in their names, index.html, licences.
// `node build.mjs DIRECTORY` builds into another directory.

import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "dist");
const assets = join(out, "assets");

/** What a browser reads before the first screen is there, compressed. */
const FIRST_VIEW = 100 * 1024;

rmSync(out, { recursive: true, force: true });
mkdirSync(assets, { recursive: true });

const result = await build({
  absWorkingDir: here,
  entryPoints: { page: "src/main.tsx" },
  outdir: assets,
  bundle: true,
  splitting: true,
  format: "esm",
  target: ["es2022", "chrome123", "firefox120", "safari17.5"],
  jsx: "automatic",
  jsxImportSource: "preact",
  minify: true,
  legalComments: "none",
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  metafile: true,
  logLevel: "warning",
});

const outputs = Object.entries(result.metafile.outputs);
const entry = outputs.find(([, it]) => it.entryPoint === "src/main.tsx");
if (!entry?.[1].cssBundle) throw new Error("no style sheet was built");
const named = (path) => basename(path);

const icon = readFileSync(join(here, "src/icon.svg"));
const iconName = `icon-${createHash("sha256").update(icon).digest("hex").slice(0, 8)}.svg`;
writeFileSync(join(assets, iconName), icon);

const html = readFileSync(join(here, "src/index.html"), "utf8")
  .replace("ICON", iconName)
  .replace("STYLE", named(entry[1].cssBundle))
  .replace("SCRIPT", named(entry[0]));
writeFileSync(join(out, "index.html"), html);

/** The packages whose code is in the result. */
function packages() {
  const names = new Set();
  for (const input of Object.keys(result.metafile.inputs)) {
    const match = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
    if (match) names.add(match[1]);
  }
  return [...names].sort();
}

function licence(name) {
  const folder = join(here, "node_modules", name);
  const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((it) => /^licen[cs]e/i.test(it));
  if (!file) throw new Error(`${name} has no file with its licence`);
  const text = readFileSync(join(folder, file), "utf8").trim().replaceAll("\r\n", "\n");
  return `${name} ${about.version} (${about.license})\n\n${text}\n`;
}

const rule = `\n${"-".repeat(78)}\n\n`;
const intro = "The page of lunet contains these programs of others.\n";
writeFileSync(join(out, "THIRD-PARTY-LICENSES.txt"), [intro, ...packages().map(licence)].join(rule));

// The entry, what it imports at once, its styles, and the document.
const first = new Set([entry[0], entry[1].cssBundle]);
for (const it of entry[1].imports) if (it.kind === "import-statement") first.add(it.path);
const compressed = (path) => gzipSync(readFileSync(path), { level: 9 }).length;
let total = compressed(join(out, "index.html")) + compressed(join(assets, iconName));
for (const path of first) total += compressed(join(here, path));
const kib = (bytes) => `${(bytes / 1024).toFixed(1)} KiB`;
console.log(`first view: ${kib(total)} compressed, of at most ${kib(FIRST_VIEW)}`);
for (const [path] of outputs) console.log(`  ${named(path)}: ${kib(compressed(join(here, path)))}`);
if (total > FIRST_VIEW) {
  console.error("the first view is too large");
  process.exitCode = 1;
}
