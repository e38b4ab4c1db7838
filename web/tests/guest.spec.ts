/**
 * The tuner by the page, on a machine that may be changed: lunet runs in the lab's guest, the browser here. lab/suites/page starts
 * both, and says by LUNET_PAGE_SHARE which folder both see.
 */

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Page } from "@playwright/test";
import { expect, inOrder, test, WIDTHS } from "./fixtures";
import { firstStart } from "./lunet";

const URL_OF = process.env.LUNET_PAGE_URL;
const CODE_OF = process.env.LUNET_PAGE_CODE;
const SHARE = process.env.LUNET_PAGE_SHARE;

/** An emulated machine takes its time. */
const PATIENCE = { timeout: 180_000 };

/** Every setting of the guest that a rule might touch, as it is now. */
async function settings(name: string): Promise<Map<string, string>> {
  const at = (ending: string): string => join(SHARE ?? "", `${name}.${ending}`);
  writeFileSync(at("wanted"), "");
  await expect.poll(() => existsSync(at("done")), PATIENCE).toBe(true);
  const lines = readFileSync(at("is"), "utf8").split("\n").filter(Boolean);
  return new Map(lines.map((line) => [line.slice(0, line.indexOf("=")), line.slice(line.indexOf("=") + 1)]));
}

const differing = (a: Map<string, string>, b: Map<string, string>, but: string[] = []): string[] =>
  [...new Set([...a.keys(), ...b.keys()])].filter((key) => a.get(key) !== b.get(key) && !but.includes(key)).sort();

/** What the page wants to set, by the file that holds it. */
async function planned(page: Page): Promise<[string, string][]> {
  const blocks = await page.locator(".plan .diff-block").all();
  const out: [string, string][] = [];
  for (const block of blocks) {
    const name = await block.locator(".diff-head").innerText();
    const wanted = (await block.locator(".added").innerText()).replace(/^[\s\S]*then:\s*/, "").trim();
    if (/^(net|vm|kernel)\./.test(name)) out.push([`/proc/sys/${name.replaceAll(".", "/")}`, wanted]);
    else if (name.startsWith("/sys/")) out.push([name, wanted]);
  }
  return out;
}

test("a plan is applied, verified and rolled back by the page", async ({ page, complaints }) => {
  test.skip(!URL_OF || !CODE_OF || !SHARE, "lab/suites/page runs it");
  test.setTimeout(900_000);
  await page.goto(URL_OF ?? "");
  await firstStart(page, { url: URL_OF ?? "", code: CODE_OF ?? "" }, PATIENCE.timeout);
  // The check of the first start is to end, so that it changes nothing of what is looked at.
  await expect(page.getByRole("link", { name: "All findings, their causes and fixes" })).toBeVisible(PATIENCE);
  const before = await settings("before");
  const moving = differing(before, await settings("again"));

  await page.goto(`${URL_OF}#/tune`);
  await page.getByRole("button", { name: "Make a plan" }).click();
  await expect(page.getByRole("heading", { name: "Changes" })).toBeVisible(PATIENCE);
  const wanted = await planned(page);
  expect(wanted.length).toBeGreaterThan(2);
  await page.getByLabel("Keep them across reboots").check();
  await page.getByRole("button", { name: /^Apply \d+ rules?$/ }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Apply" }).click();
  await expect(page.getByText("Applied", { exact: true })).toBeVisible(PATIENCE);
  await expect(page.getByText(/^Verified: \d+ settings as they were set$/)).toBeVisible(PATIENCE);
  const applied = await settings("applied");
  for (const [path, value] of wanted) expect(applied.get(path), path).toContain(value.split(/\s+/)[0]);
  const changed = differing(before, applied, moving);
  expect(changed.length).toBeGreaterThanOrEqual(wanted.length);
  expect(changed.some((it) => it.startsWith("/etc/"))).toBe(true);
  for (const width of WIDTHS) {
    await page.setViewportSize({ width, height: 900 });
    await inOrder(page);
  }

  await page.getByRole("button", { name: "Roll back" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Roll back" }).click();
  await expect(page.getByText("Rolled back", { exact: true })).toBeVisible(PATIENCE);
  await expect(page.getByText("Nothing is applied by lunet’s tuner")).toBeVisible(PATIENCE);
  expect(differing(before, await settings("rolled-back"), moving)).toEqual([]);
  await expect(page.getByRole("button", { name: /^Apply \d+ rules?$/ })).toBeVisible(PATIENCE);
  console.log(`${wanted.length} settings of the plan, ${changed.length} settings and files changed by it, none after the rollback`);
  writeFileSync(join(SHARE ?? "", "over"), "");
  expect(complaints).toEqual([]);
});
