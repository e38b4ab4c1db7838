/** What people do with the page, from its first start on. */

import type { Locator, Page } from "@playwright/test";
import { CODE, expect, inOrder, logIn, PASSWORD, test } from "./fixtures";

const VMS = "iqn.2026-11.local.lunet:vms";

test("from the first start to a disk that is connected", async ({ page, empty, complaints }) => {
  await page.goto(empty.url);
  await page.getByLabel("One-time code").fill("WRONG");
  await page.getByLabel("Password", { exact: true }).fill(PASSWORD);
  await page.getByLabel("Password, again").fill(PASSWORD);
  await page.getByRole("button", { name: "Create the account" }).click();
  await expect(page.getByRole("alert")).toContainText("This is not the code");
  await page.getByLabel("One-time code").fill(CODE);
  await page.getByRole("button", { name: "Create the account" }).click();
  await expect(page.getByRole("heading", { name: "This machine" })).toBeVisible();
  await expect(page.getByText("The pool tank is DEGRADED")).toBeVisible();
  await page.getByRole("link", { name: "Create the first disk" }).click();

  await page.getByLabel("Name", { exact: true }).fill("vm1");
  await page.getByLabel("Who has the secret").check();
  await page.getByRole("button", { name: "Create the disk" }).click();
  await expect(page.getByRole("heading", { name: "vm1 is ready" })).toBeVisible();
  const secret = await page.locator('[data-test="secret"]').innerText();
  expect(secret).toMatch(/^[A-Za-z0-9]{16}$/);
  await expect(page.getByRole("region", { name: "Log in, as root" })).toContainText(`node.session.auth.password -v ${secret}`);
  await inOrder(page);
  expect(empty.state.targets[0].users[0].secret).toBe(secret);

  const target = empty.state.targets[0].name as string;
  empty.happen("refuse", { initiator: "iqn.1993-08.org.debian:01:x", target, why: "not authenticated: wrong secret" });
  await expect(page.getByText("not authenticated: wrong secret")).toBeVisible();
  empty.happen("login", { initiator: "iqn.1993-08.org.debian:01:x", target, user: "vm1" });
  await expect(page.getByText("Connected: iqn.1993-08.org.debian:01:x")).toBeVisible();
  await inOrder(page);
  // The secret is not to be had again.
  await page.reload();
  await expect(page.locator('[data-test="secret"]')).toHaveCount(0);
  expect(complaints).toEqual([]);
});

test("a disk in a cluster of Ceph: an image that is there, or one that is made", async ({ page, mock, complaints }) => {
  await logIn(page, mock, "new-disk");
  const asked = page.waitForRequest((it) => it.method() === "POST" && it.url().endsWith("/api/v1/volumes"));
  await page.getByLabel("Name", { exact: true }).fill("far");
  await page.getByLabel("A cluster of Ceph").check();
  await expect(page.getByLabel("Size", { exact: true })).toHaveCount(0);
  await page.getByLabel("Initiator’s name").fill("iqn.1993-08.org.debian:01:abc");
  await page.getByRole("button", { name: "Create the disk" }).click();
  await expect(page.getByText("Give pool and image")).toBeVisible();
  await page.getByLabel("Image", { exact: true }).fill("rbd://vms/far");
  await page.getByLabel("User of the cluster").fill("lunet");
  await page.getByLabel("Keyring").fill("/etc/ceph/far.keyring");
  await page.getByLabel("Make this image").check();
  await expect(page.getByLabel("Size", { exact: true })).toBeVisible();
  await page.getByRole("button", { name: "Create the disk" }).click();
  await expect(page.getByRole("heading", { name: "far is ready" })).toBeVisible();
  const body = (await asked).postDataJSON();
  expect(body).toMatchObject({ backend: "rbd", image: "rbd://vms/far", ceph_user: "lunet", ceph_keyring: "/etc/ceph/far.keyring", size: 40 * 2 ** 30, path: null });
  // Its image stays, and nothing says otherwise.
  await page.goto(`${mock.url}/#/volumes/far`);
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await expect(page.getByText("Its image is kept in the cluster.")).toBeVisible();
  expect(complaints).toEqual([]);
});

test("a disk whose making fails in the middle is undone", async ({ page, mock, complaints }) => {
  await logIn(page, mock, "new-disk");
  await page.getByLabel("Name", { exact: true }).fill("half");
  await page.getByLabel("Initiator’s name").fill("iqn.1993-08.org.debian:01:abc");
  mock.happen("fail", { method: "PUT", path: "/luns/", status: 503, code: "not-answered", message: "an event loop of the server did not respond in time" });
  await page.getByRole("button", { name: "Create the disk" }).click();
  await expect(page.getByRole("heading", { name: "One step has failed" })).toBeVisible();
  await expect(page.getByText("An event loop", { exact: false }).or(page.getByText("an event loop", { exact: false }))).toBeVisible();
  await inOrder(page);
  expect(mock.state.volumes.some((it: { name: string }) => it.name === "half")).toBe(true);
  await page.getByRole("button", { name: "Undo what was done" }).click();
  await expect(page.getByRole("heading", { name: "Everything is as it was" })).toBeVisible();
  expect(mock.state.volumes.some((it: { name: string }) => it.name === "half")).toBe(false);
  expect(mock.state.targets.length).toBe(2);
  await page.getByRole("button", { name: "Back to the form" }).click();
  await expect(page.getByLabel("Name", { exact: true })).toHaveValue("half");
  expect(complaints).toEqual([]);
});

test("an answer that is lost is had again by its key", async ({ page, mock }) => {
  await logIn(page, mock, "new-disk");
  await page.getByLabel("Name", { exact: true }).fill("lost");
  await page.getByLabel("Initiator’s name").fill("iqn.1993-08.org.debian:01:abc");
  let lost = 0;
  await page.route("**/api/v1/targets", async (route) => {
    if (route.request().method() !== "POST" || lost > 0) return route.fallback();
    lost += 1;
    await route.fetch();
    return route.abort();
  });
  await page.getByRole("button", { name: "Create the disk" }).click();
  await expect(page.getByText("The server does not answer")).toBeVisible();
  await page.getByRole("button", { name: "Try this step again" }).click();
  await expect(page.getByRole("heading", { name: "lost is ready" })).toBeVisible();
});

/** Presses Tab until something has the focus. */
async function tabTo(page: Page, is: string): Promise<void> {
  for (let presses = 0; presses < 80; presses += 1) {
    if (await page.evaluate((selector) => document.activeElement?.matches(selector) ?? false, is)) return;
    await page.keyboard.press("Tab");
  }
  throw new Error(`Tab does not lead to ${is}`);
}

test("a new disk by the keyboard alone", async ({ page, mock, complaints }) => {
  await page.goto(mock.url);
  await tabTo(page, 'input[autocomplete="username"]');
  await page.keyboard.type("admin");
  await page.keyboard.press("Tab");
  await page.keyboard.type(PASSWORD);
  await page.keyboard.press("Enter");
  await expect(page.locator("main h1")).toHaveText("Overview");
  await tabTo(page, 'nav a[href="#/new-disk"]');
  await page.keyboard.press("Enter");
  await expect(page.locator("h1")).toBeFocused();
  await tabTo(page, "main input[required]");
  await page.keyboard.type("keys");
  // The radio buttons: the arrows go from Linux to Windows, whose usual access is CHAP.
  await tabTo(page, 'input[name="platform"]:checked');
  await page.keyboard.press("ArrowRight");
  await tabTo(page, 'main button[type="submit"]');
  await page.keyboard.press("Enter");
  await expect(page.locator("h1")).toHaveText("keys is ready");
  await expect(page.locator("h1")).toBeFocused();
  await expect(page.getByRole("region", { name: "In PowerShell, as administrator" })).toContainText("ONEWAYCHAP");
  expect(complaints).toEqual([]);
});

test("a refused initiator is allowed", async ({ page, mock, complaints }) => {
  await logIn(page, mock, "access");
  await page.getByRole("button", { name: `Allow iqn.1998-01.com.vmware:esx3 at ${VMS}` }).first().click();
  const dialog = page.getByRole("dialog");
  await expect(dialog).toContainText("is for iqn.1998-01.com.vmware:esx1, iqn.1998-01.com.vmware:esx2, iqn.1998-01.com.vmware:esx3");
  await inOrder(page);
  await dialog.getByRole("button", { name: "Allow" }).click();
  await expect(dialog).toHaveCount(0);
  expect(mock.state.lists[VMS]).toContain("iqn.1998-01.com.vmware:esx3");
  await expect(page.getByRole("button", { name: /esx3, LUN 0 \(vm1\): allowed/ })).toBeVisible();
  // LUN 1 is for esx1 alone.
  await expect(page.getByText("–").first()).toBeVisible();
  expect(complaints).toEqual([]);
});

test("snapshot, clone, rollback and what deleting costs", async ({ page, mock, complaints }) => {
  await logIn(page, mock, "volumes/vm1");
  const dialog = page.getByRole("dialog");
  await page.getByRole("button", { name: "Snapshot", exact: true }).click();
  await dialog.getByLabel("Name").fill("now");
  await dialog.getByRole("button", { name: "Take the snapshot" }).click();
  await expect(page.getByRole("row", { name: /^now/ })).toBeVisible();
  await page.getByRole("button", { name: "Roll back to now" }).click();
  await expect(dialog).toContainText("sessions use it");
  const doIt = dialog.getByRole("button", { name: "Roll back" });
  await expect(doIt).toBeDisabled();
  await dialog.getByLabel("Do it all the same (force)").check();
  await dialog.getByLabel("Type vm1 to confirm").fill("vm1");
  await doIt.click();
  await expect(dialog).toHaveCount(0);
  await page.getByRole("button", { name: "Clone now" }).click();
  await dialog.getByLabel("Name of the new volume").fill("copy");
  await dialog.getByRole("button", { name: "Clone" }).click();
  await expect.poll(() => mock.state.volumes.length).toBe(4);
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await expect(dialog).toContainText("esx1 from 10.100.0.31:51234 loses LUN");
  await inOrder(page);
  await page.keyboard.press("Escape");
  await expect(dialog).toHaveCount(0);
  await expect(page.getByRole("button", { name: "Delete", exact: true })).toBeFocused();
  expect(complaints).toEqual([]);
});

test("a fault is shown at once, and the plan applied and rolled back", async ({ page, mock, complaints }) => {
  await logIn(page, mock);
  mock.happen("fault", { volume: "vm1", state: "write-back-failed", text: "has failed to make stable what was acknowledged" });
  await page.getByRole("link", { name: /vm1: write-back failed/ }).click();
  await page.getByRole("button", { name: "Reopen" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Reopen" }).click();
  await expect(page.getByText(/^write-back failed, since/i)).toHaveCount(0);
  await page.getByRole("link", { name: "Tune" }).click();
  await page.getByRole("button", { name: "Make a plan" }).click();
  await page.getByRole("button", { name: "Apply 4 rules" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Apply" }).click();
  await expect(page.getByText("Everything is as it should be.")).toBeVisible();
  await expect(page.getByText("Verified: 5 settings as they were set")).toBeVisible();
  await page.getByRole("button", { name: "Roll back" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Roll back" }).click();
  await expect(page.getByRole("button", { name: "Apply 4 rules" })).toBeVisible();
  expect(complaints).toEqual([]);
});

test("a finding leads to its rule, which is proved", async ({ page, mock, complaints }) => {
  await logIn(page, mock, "doctor");
  await page.getByRole("button", { name: "Check this machine" }).click();
  await page.getByRole("listitem").filter({ hasText: "Receive buffers of sockets" }).getByText("Evidence and fix").click();
  await page.getByRole("link", { name: "Apply it by the tuner" }).click();
  await page.getByRole("button", { name: "Make a plan" }).click();
  await expect(page.getByRole("button", { name: "Apply 1 rule" })).toBeVisible();
  await expect(page.getByRole("checkbox", { name: /network.rmem-max/ })).toBeChecked();
  await expect(page.getByRole("checkbox", { name: /network.wmem-max/ })).not.toBeChecked();
  await page.getByRole("checkbox", { name: /drive.scheduler/ }).check();
  await page.getByRole("button", { name: "Prove" }).click();
  await expect(page.getByText("Give the whole path")).toBeVisible();
  await page.getByLabel("Where to measure").fill("/tank");
  await page.getByRole("button", { name: "Prove" }).click();
  await expect(page.getByText("Kept: network.rmem-max.")).toBeVisible();
  await expect(page.getByRole("row", { name: /drive.scheduler/ })).toContainText("harms");
  await inOrder(page);
  expect(complaints).toEqual([]);
});

test("what seems to help is measured again, and kept only if it helps then, too", async ({ page, mock, complaints }) => {
  await logIn(page, mock, "tune");
  await page.getByRole("button", { name: "Make a plan" }).click();
  await expect(page.getByRole("button", { name: "Apply 4 rules" })).toBeVisible();
  await page.getByLabel("Where to measure").fill("/tank");
  await page.getByRole("button", { name: "Prove" }).click();
  await expect(page.getByText("Kept: network.rmem-max.")).toBeVisible();
  const table = page.getByRole("table", { name: "Effects" });
  await expect(table.getByRole("columnheader", { name: "Measured again" })).toBeVisible();
  const column = (await table.getByRole("columnheader").allInnerTexts()).findIndex((it) => it.toLowerCase() === "measured again");
  const [confirmed, harms, not, noise] = ["network.rmem-max", "network.wmem-max", "drive.scheduler", "zfs.arc-max"].map((rule) =>
    table.getByRole("row", { name: rule }),
  );
  const again = (row: Locator): Locator => row.getByRole("cell").nth(column - 1); // the first column is the row's head
  // Its own interval of the second measurement, beside that of the first.
  await expect(confirmed).toContainText("+11.2 % to +26.3 %");
  await expect(again(confirmed)).toHaveText("+9.8 % to +23.2 %");
  await expect(confirmed).toContainText("helps");
  await expect(confirmed).toContainText("kept");
  // The first runs spoke for it, the second did not.
  await expect(not).toContainText("+1.2 % to +11.8 %");
  await expect(again(not)).toHaveText("−3.8 % to +4.7 %");
  await expect(not).toContainText("not confirmed");
  await expect(not).not.toContainText("kept");
  // What did not seem to help was not measured again.
  await expect(again(harms)).toHaveText("–");
  await expect(harms).toContainText("harms");
  await expect(again(noise)).toHaveText("–");
  await expect(noise).toContainText("no effect seen");
  await inOrder(page);
  expect(complaints).toEqual([]);
});

test("the configuration is compared, checked, written and applied", async ({ page, mock, complaints }) => {
  await logIn(page, mock, "configuration");
  const editor = page.getByLabel("Text of the configuration");
  const text = await editor.inputValue();
  await editor.fill(text.replace('size = "200GiB"', 'bloc-size = 512'));
  await page.getByRole("button", { name: "Check" }).click();
  await expect(page.getByRole("alert")).toContainText('did you mean "block-size"?');
  await editor.fill(text.replace("4GiB", "8GiB"));
  await expect(page.getByRole("region", { name: "What you have changed" })).toContainText('size = "8GiB"');
  await page.getByRole("button", { name: "Write the file" }).click();
  const dialog = page.getByRole("dialog");
  await expect(dialog).toContainText("scratch has 8 GiB");
  await dialog.getByRole("button", { name: "Apply" }).click();
  await expect(dialog).toHaveCount(0);
  expect(mock.state.applied).toContain("8GiB");
  expect(complaints).toEqual([]);
});

test("a token is shown once, and a viewer is offered no changes", async ({ page, mock, complaints }) => {
  await logIn(page, mock, "configuration/tokens");
  await page.getByRole("button", { name: "New token" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Name").fill("grafana");
  await dialog.getByRole("button", { name: "Create" }).click();
  await expect(page.getByRole("region", { name: "the token" })).toContainText("lunet_");
  await inOrder(page);
  await dialog.getByRole("button", { name: "Done" }).click();
  await page.getByRole("button", { name: "Log out" }).click();
  await logIn(page, mock, "volumes/vm1", "vera");
  await expect(page.getByRole("button", { name: "Delete" })).toHaveCount(0);
  await expect(page.getByRole("button", { name: "Resize" })).toHaveCount(0);
  expect(complaints).toEqual([]);
});
