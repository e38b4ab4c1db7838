/** The page of a real lunet: $LUNET_BIN is started for it, and QEMU and libiscsi are the initiators. See README.md. */

import { execFileSync } from "node:child_process";
import { renameSync } from "node:fs";
import type { Locator, Page } from "@playwright/test";
import { expect, inOrder, logIn, test, WIDTHS } from "./fixtures";
import { chooseLoopback, firstStart, isRefused, type Lun, Lunet, PROGRAM, qemuIo, stay, targetShown } from "./lunet";

const OWN = "iqn.2026-11.local.example:own";
const FOREIGN = "iqn.2026-11.local.example:foreign";

// One server for all: each test goes on where the one before has ended.
test.describe.configure({ mode: "serial" });
test.skip(!PROGRAM, "LUNET_BIN is not set");

let lunet: Lunet;
/** The disk that the first test makes; its user proves itself by a secret. */
const disk: Lun = { portal: "", target: "", lun: 0 };
/** The disk of the second test, for whom it names. */
const named: Lun = { portal: "", target: "", lun: 0 };

test.beforeAll(async () => {
  lunet = await new Lunet().start();
});

test.afterAll(async () => {
  await lunet?.stop();
});

test.beforeEach(() => test.setTimeout(240_000));

const enter = (page: Page, at: string): Promise<void> => logIn(page, { url: lunet.url.replace(/\/$/, "") }, at);
const dialogOf = (page: Page): Locator => page.getByRole("dialog");

/** Fills in the form for a disk of 64 MiB. */
async function newDisk(page: Page, name: string): Promise<string> {
  await page.getByLabel("Name", { exact: true }).fill(name);
  await page.getByLabel("Size", { exact: true }).fill("64");
  await page.getByLabel("Unit of the size").selectOption("MiB");
  return chooseLoopback(page);
}

/** In order at each of the widths; what was begun at one goes on at the next. */
async function inOrderAtAll(page: Page): Promise<void> {
  for (const width of WIDTHS) {
    await page.setViewportSize({ width, height: 900 });
    await inOrder(page);
  }
}

test("from the first start to a disk that QEMU writes to and libiscsi sees", { tag: "@main" }, async ({ page, complaints }) => {
  await page.goto(lunet.url);
  await expect(page.getByRole("heading", { name: "Welcome to lunet" })).toBeVisible();
  await inOrderAtAll(page);
  await firstStart(page, lunet);
  await page.getByRole("link", { name: "Create the first disk" }).click();
  disk.portal = await newDisk(page, "page1");
  await page.getByLabel("Who has the secret").check();
  await inOrderAtAll(page);
  await page.getByRole("button", { name: "Create the disk" }).click();
  await expect(page.getByRole("heading", { name: "page1 is ready" })).toBeVisible();
  await inOrderAtAll(page);
  disk.target = await targetShown(page);
  const secret = await page.locator('[data-test="secret"]').innerText();
  disk.user = { name: "page1", secret };

  expect(isRefused({ ...disk, user: { name: "page1", secret: "anothersecret123" } })).toMatch(/authentication/i);
  await expect(page.getByText("A login was refused at")).toBeVisible();
  qemuIo(disk, "write -P 0x5a 0 64k", "flush", "read -P 0x5a 0 64k");
  const url = `iscsi://page1%${secret}@${disk.portal}/${disk.target}/0`;
  expect(execFileSync("iscsi-inq", [url], { encoding: "utf8" })).toContain("LUNET");
  const stays = stay(lunet, disk);
  await expect(page.getByText(/^Connected: /)).toBeVisible({ timeout: 30_000 });
  await inOrderAtAll(page);
  await lunet.end(stays);
  expect(complaints).toEqual([]);
});

test("a refused initiator is allowed on the page, and logs in", { tag: "@main" }, async ({ page, complaints }) => {
  await enter(page, "new-disk");
  named.portal = await newDisk(page, "named");
  await page.getByLabel("One initiator").check();
  await page.getByLabel("Initiator’s name").fill(OWN);
  await page.getByRole("button", { name: "Create the disk" }).click();
  await expect(page.getByRole("heading", { name: "named is ready" })).toBeVisible();
  named.target = await targetShown(page);
  qemuIo({ ...named, initiator: OWN }, "write -P 0x11 0 64k");

  const foreign = { ...named, initiator: FOREIGN };
  isRefused(foreign);
  // Where somebody waits for the first login, and where somebody looks for it later.
  await expect(page.getByText("A login was refused at")).toBeVisible();
  await expect(page.getByRole("button", { name: "Allow this one" })).toBeVisible();
  await page.goto(`${lunet.url}#/access`);
  const refusedRow = page.getByRole("table", { name: "Refused logins" }).getByRole("row").filter({ hasText: FOREIGN });
  await expect(refusedRow).toContainText(named.target);
  await expect(page.getByRole("img", { name: `${FOREIGN}, LUN 0 (named): no access` }).or(page.getByRole("button", { name: `${FOREIGN}, LUN 0 (named): no access` }))).toBeVisible();
  await inOrderAtAll(page);
  await refusedRow.getByRole("button", { name: /^Allow/ }).click();
  await expect(dialogOf(page)).toContainText(FOREIGN);
  await inOrderAtAll(page);
  await dialogOf(page).getByRole("button", { name: "Allow" }).click();
  await expect(dialogOf(page)).toHaveCount(0);
  await expect(page.getByRole("button", { name: `${FOREIGN}, LUN 0 (named): allowed` })).toBeVisible();
  qemuIo(foreign, "read -P 0x11 0 64k", "write -P 0x12 64k 64k");
  qemuIo({ ...named, initiator: OWN }, "read -P 0x12 64k 64k");
  expect(complaints).toEqual([]);
});

test("a session is shown with its keys, ended, and kept out", async ({ page, complaints }) => {
  await enter(page, "sessions");
  const stays = stay(lunet, { ...named, initiator: FOREIGN });
  await page.getByRole("button", { name: `Details of the session of ${FOREIGN}` }).click();
  await expect(page.getByText("Why not RDMA:")).toBeVisible();
  await expect(page.getByText("MaxBurstLength", { exact: true })).toBeVisible();
  await inOrderAtAll(page);

  // Removed from the list, the session may stay until somebody ends it.
  await page.goto(`${lunet.url}#/access`);
  await page.getByRole("button", { name: `${FOREIGN}, LUN 0 (named): in use` }).click();
  const dialog = dialogOf(page);
  await expect(dialog).toContainText("Sessions that are affected");
  await dialog.getByLabel("Keep these sessions").check();
  await dialog.getByRole("button", { name: "Remove" }).click();
  await expect(dialog).toHaveCount(0);
  await page.goto(`${lunet.url}#/sessions`);
  await page.getByRole("button", { name: `End the session of ${FOREIGN}` }).click();
  await expect(dialog).toContainText("is asked to log out");
  await inOrderAtAll(page);
  await dialog.getByRole("button", { name: "End the session" }).click();
  await expect(page.getByText("Nobody is logged in.")).toBeVisible({ timeout: 60_000 });
  isRefused({ ...named, initiator: FOREIGN });
  await lunet.end(stays);
  expect(complaints).toEqual([]);
});

test("a snapshot gives back what was written before it, and a clone has it", async ({ page, complaints }) => {
  test.skip(lunet.noSnapshots !== null, `left out: ${lunet.noSnapshots}`);
  qemuIo(disk, "write -P 0xaa 1M 1M", "flush");
  await enter(page, "volumes/page1");
  const dialog = dialogOf(page);
  await page.getByRole("button", { name: "Snapshot", exact: true }).click();
  await dialog.getByLabel("Name").fill("before");
  await dialog.getByRole("button", { name: "Take the snapshot" }).click();
  await expect(page.getByRole("row", { name: /^before/ })).toBeVisible();
  qemuIo(disk, "write -P 0xbb 1M 1M", "flush", "read -P 0xbb 1M 1M");

  await page.getByRole("button", { name: "Clone before" }).click();
  await dialog.getByLabel("Name of the new volume").fill("copy");
  await dialog.getByRole("button", { name: "Clone" }).click();
  await expect(dialog).toHaveCount(0);
  await page.getByRole("button", { name: "Roll back to before" }).click();
  await expect(dialog).toContainText("is lost for good");
  await inOrderAtAll(page);
  await dialog.getByLabel("Type page1 to confirm").fill("page1");
  await dialog.getByRole("button", { name: "Roll back" }).click();
  await expect(dialog).toHaveCount(0);
  qemuIo(disk, "read -P 0xaa 1M 1M", "read -P 0x5a 0 64k");

  await page.goto(`${lunet.url}#/volumes/copy`);
  await page.getByRole("button", { name: "Map to a target" }).click();
  await dialog.getByLabel("Target").selectOption(disk.target);
  await dialog.getByRole("button", { name: "Map", exact: true }).click();
  await expect(page.getByRole("button", { name: `Unmap LUN 1 of ${disk.target}` })).toBeVisible();
  qemuIo({ ...disk, lun: 1 }, "read -P 0xaa 1M 1M", "write -P 0xcc 1M 1M", "flush");
  qemuIo(disk, "read -P 0xaa 1M 1M");
  await inOrderAtAll(page);
  expect(complaints).toEqual([]);
});

/** Has the doctor look, and waits for its report. */
async function check(page: Page): Promise<void> {
  const button = page.getByRole("button", { name: /^Check (this machine|again)$/ });
  await button.click();
  await expect(page.getByRole("button", { name: "Checking" })).toHaveCount(0, { timeout: 120_000 });
  await expect(page.getByRole("button", { name: "Check again" })).toBeVisible({ timeout: 120_000 });
}

/** Writes another configuration and applies it, after its difference was shown. */
async function configure(page: Page, change: (text: string) => string, shown: string): Promise<void> {
  await page.goto(`${lunet.url}#/configuration`);
  const editor = page.getByLabel("Text of the configuration");
  await editor.fill(change(await editor.inputValue()));
  await expect(page.getByRole("region", { name: "What you have changed" })).toContainText(shown);
  await page.getByRole("button", { name: "Check", exact: true }).click();
  await expect(page.getByText("It is valid")).toBeVisible();
  await inOrderAtAll(page);
  await page.getByRole("button", { name: "Write the file" }).click();
  await expect(dialogOf(page)).toContainText("Nothing has changed yet for anybody");
  await dialogOf(page).getByRole("button", { name: "Apply" }).click();
  await expect(dialogOf(page)).toHaveCount(0);
}

test("a fault of the configuration is found by the doctor, explained, and fixed", { tag: "@main" }, async ({ page, complaints }) => {
  await enter(page, "configuration");
  await configure(page, (text) => `${text}\n[iscsi]\nqueue-depth = 16\n`, "queue-depth = 16");
  await page.goto(`${lunet.url}#/doctor`);
  await check(page);
  const finding = page.getByRole("listitem").filter({ hasText: "(lunet) accepts 16 outstanding commands" });
  await expect(finding.first()).toContainText("commands a second at most");
  await finding.first().getByText("Evidence and fix").click();
  await expect(finding.first().getByRole("region", { name: "Fix of target-queue-depth" })).toContainText("queue-depth = 128");
  await inOrderAtAll(page);
  await configure(page, (text) => text.replace("queue-depth = 16", "queue-depth = 128"), "queue-depth = 128");
  await page.goto(`${lunet.url}#/doctor`);
  await check(page);
  await expect(page.getByText(/went away$/)).toBeVisible();
  await expect(page.getByRole("heading", { name: /accepts 16 outstanding commands/ })).toHaveCount(0);
  await expect(page.getByRole("button", { name: "Compute the ceilings" })).not.toHaveAttribute("aria-busy");
  await page.getByRole("button", { name: "Compute the ceilings" }).click();
  await expect(page.getByText(/are limited by: |bottleneck is not known/)).toBeVisible({ timeout: 120_000 });
  await inOrderAtAll(page);
  expect(complaints).toEqual([]);
});

test("a volume whose file is gone is explained, and served again", async ({ page, complaints }) => {
  await enter(page, "volumes/named");
  const file = await page.getByRole("definition").filter({ hasText: /named\.img$/ }).innerText();
  // Its events end with the server, which the browser would complain of.
  await page.goto("about:blank");
  await lunet.restart(() => renameSync(file, `${file}.away`));
  await enter(page, "volumes/named");
  await expect(page.getByText(/^storage missing, since/i)).toBeVisible();
  await inOrderAtAll(page);
  await page.goto(lunet.url);
  await expect(page.getByRole("link", { name: /named: storage missing/ })).toBeVisible();
  await page.goto(`${lunet.url}#/doctor`);
  await check(page);
  await expect(page.getByText(/^The storage of named .* has failed/)).toBeVisible();
  renameSync(`${file}.away`, file);
  await page.goto(`${lunet.url}#/volumes/named`);
  await page.getByRole("button", { name: "Look again" }).click();
  await dialogOf(page).getByRole("button", { name: "Look again" }).click();
  await expect(dialogOf(page)).toHaveCount(0);
  await expect(page.getByText(/^storage missing, since/i)).toHaveCount(0);
  qemuIo({ ...named, initiator: OWN }, "read -P 0x11 0 64k");
  expect(complaints).toEqual([]);
});

test("a LUN is measured", async ({ page, complaints }) => {
  await enter(page, "bench");
  const demo = `iscsi://${disk.portal}/${await demoTarget(page)}/0`;
  await page.getByLabel("What", { exact: true }).fill(demo);
  await page.getByText("More options").click();
  await page.getByLabel("Rounds").fill("1");
  await page.getByLabel("Seconds of each run").fill("0.2");
  await page.getByLabel("Size of the area").fill("16");
  await page.getByRole("button", { name: "Measure" }).click();
  await expect(page.getByRole("heading", { name: "Report" })).toBeVisible({ timeout: 180_000 });
  await expect(page.getByRole("table", { name: "Results" })).toContainText("demo");
  await expect(page.getByRole("table", { name: "Benchmarks" })).toContainText("done");
  await inOrderAtAll(page);
  expect(complaints).toEqual([]);
});

/** The target of the embedded configuration, which this machine may use. */
async function demoTarget(page: Page): Promise<string> {
  const all = await page.evaluate(() => fetch("/api/v1/targets").then((it) => it.json() as Promise<{ name: string; luns: { volume: string }[] }[]>));
  return all.find((it) => it.luns.some((lun) => lun.volume === "demo"))?.name ?? "";
}

test("a token is made, used and removed", async ({ page, complaints }) => {
  await enter(page, "configuration/tokens");
  await page.getByRole("button", { name: "New token" }).click();
  const dialog = dialogOf(page);
  await dialog.getByLabel("Name").fill("script");
  await dialog.getByLabel("Role").selectOption("viewer");
  await dialog.getByRole("button", { name: "Create" }).click();
  const token = (await page.getByRole("region", { name: "the token" }).innerText()).trim();
  await inOrderAtAll(page);
  await dialog.getByRole("button", { name: "Done" }).click();
  const use = (method: string, at: string) => fetch(`${lunet.url}api/v1/${at}`, { method, headers: { Authorization: `Bearer ${token}` } });
  const volumes = (await (await use("GET", "volumes")).json()) as { name: string }[];
  expect(volumes.map((it) => it.name)).toContain("page1");
  expect((await use("DELETE", "volumes/page1")).status).toBe(403);
  await page.reload();
  const row = page.getByRole("row").filter({ hasText: "script" });
  await expect(row).not.toContainText("never");
  await row.getByRole("button", { name: "Remove the token script" }).click();
  await dialog.getByRole("button", { name: "Remove" }).click();
  await expect(dialog).toHaveCount(0);
  expect((await use("GET", "volumes")).status).toBe(401);
  await page.goto(`${lunet.url}#/configuration/audit`);
  await expect(page.getByText('create-token name="script"', { exact: false })).toBeVisible();
  expect(complaints).toEqual([]);
});

const SCREENS = [
  ["", "Overview"],
  ["welcome", "This machine"],
  ["new-disk", "New disk"],
  ["volumes", "Volumes"],
  ["volumes/page1", "page1"],
  ["access", "Access"],
  ["sessions", "Sessions"],
  ["doctor", "Doctor"],
  ["tune", "Tune"],
  ["bench", "Bench"],
  ["configuration", "Configuration"],
  ["configuration/portals", "Configuration"],
  ["configuration/accounts", "Configuration"],
  ["configuration/tokens", "Configuration"],
  ["configuration/audit", "Configuration"],
] as const;

test("every screen is in order at every width, with all that was done", async ({ page, complaints }) => {
  await enter(page, "tune");
  await page.getByRole("button", { name: "Make a plan" }).click();
  await expect(page.getByRole("heading", { name: "Changes" })).toBeVisible({ timeout: 60_000 });
  const stays = stay(lunet, disk);
  for (const [at, heading] of SCREENS) {
    await page.goto(`${lunet.url}#/${at}`);
    await expect(page.locator("h1")).toHaveText(heading);
    await expect(page.locator(".loading")).toHaveCount(0, { timeout: 60_000 });
    await expect(page.locator('[role="alert"]')).toHaveCount(0);
    await inOrderAtAll(page);
  }
  await lunet.end(stays);
  expect(complaints).toEqual([]);
});

test("a disk grows, and is deleted with its data", async ({ page, complaints }) => {
  await enter(page, "volumes/page1");
  const dialog = dialogOf(page);
  await page.getByRole("button", { name: "Resize" }).click();
  await dialog.getByLabel("New size").fill("128");
  await dialog.getByRole("button", { name: "Resize" }).click();
  await expect(page.getByText("128 MiB", { exact: true }).first()).toBeVisible();
  qemuIo(disk, "write -P 0x77 127M 1M", "read -P 0x77 127M 1M");
  if (lunet.noSnapshots === null) {
    // A volume with snapshots is not deleted.
    await page.getByRole("button", { name: "Delete", exact: true }).click();
    await expect(dialog).toContainText("1 snapshot must be deleted first");
    await expect(dialog.getByRole("alert")).toContainText("has 1 snapshot");
    await dialog.getByRole("button", { name: "Cancel" }).click();
    await page.getByRole("button", { name: "Delete before" }).click();
    await dialog.getByRole("button", { name: "Delete" }).click();
    await expect(page.getByText("There are no snapshots.")).toBeVisible();
  }
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await dialog.getByLabel("Type page1 to confirm").fill("page1");
  // What it costs is asked of the server; only then is it known whether it needs force.
  await expect(dialog.locator(".preview")).toBeVisible();
  await inOrderAtAll(page);
  const force = dialog.getByLabel("Do it all the same (force)");
  if (await force.count()) await force.check();
  await dialog.getByRole("button", { name: "Delete the volume and its data" }).click();
  await expect(page.locator("h1")).toHaveText("Volumes");
  expect(() => qemuIo(disk, "read 0 4k")).toThrow();
  expect(complaints).toEqual([]);
});
