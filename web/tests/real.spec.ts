/** The page of a real lunet: LUNET_PAGE_URL and LUNET_PAGE_CODE name it; see README.md. */

import { execFileSync } from "node:child_process";
import { expect, inOrder, PASSWORD, test } from "./fixtures";

const URL_OF = process.env.LUNET_PAGE_URL;
const CODE_OF = process.env.LUNET_PAGE_CODE;
const HOOK = process.env.LUNET_PAGE_HOOK;

test("first start, a disk, the doctor and a plan of a real lunet", async ({ page, complaints }) => {
  test.skip(!URL_OF || !CODE_OF, "LUNET_PAGE_URL and LUNET_PAGE_CODE are not set");
  test.setTimeout(240_000);
  await page.goto(URL_OF ?? "");
  await page.getByLabel("One-time code").fill(CODE_OF ?? "");
  await page.getByLabel("Password", { exact: true }).fill(PASSWORD);
  await page.getByLabel("Password, again").fill(PASSWORD);
  await page.getByRole("button", { name: "Create the account" }).click();
  await expect(page.getByRole("heading", { name: "This machine" })).toBeVisible({ timeout: 30_000 });
  await expect(page.getByText("Live", { exact: true })).toBeAttached();

  await page.getByRole("link", { name: "Create the first disk" }).click();
  await page.getByLabel("Name", { exact: true }).fill("page1");
  await page.getByLabel("Size", { exact: true }).fill("64");
  await page.getByLabel("Unit of the size").selectOption("MiB");
  await page.getByLabel("Who has the secret").check();
  const portal = page.getByLabel("Address", { exact: true });
  const loopback = await portal.locator("option").filter({ hasText: "127.0.0.1" }).first().getAttribute("value");
  await portal.selectOption(loopback);
  await page.getByRole("button", { name: "Create the disk" }).click();
  await expect(page.getByRole("heading", { name: "page1 is ready" })).toBeVisible();
  await inOrder(page);
  if (HOOK) {
    const login = {
      target: ((await page.locator(".about").innerText()).match(/iqn\.\S+/) ?? [""])[0],
      lun: 0,
      portal: loopback,
      user: "page1",
      secret: await page.locator('[data-test="secret"]').innerText(),
    };
    execFileSync(HOOK, ["login", JSON.stringify(login)], { stdio: "inherit" });
    await expect(page.getByText(/^Connected: /)).toBeVisible({ timeout: 30_000 });
  }

  for (const [at, heading] of [
    ["", "Overview"],
    ["volumes", "Volumes"],
    ["access", "Access"],
    ["sessions", "Sessions"],
    ["configuration", "Configuration"],
    ["configuration/portals", "Configuration"],
    ["configuration/accounts", "Configuration"],
    ["configuration/tokens", "Configuration"],
    ["configuration/audit", "Configuration"],
  ]) {
    await page.goto(`${URL_OF}#/${at}`);
    await expect(page.locator("h1")).toHaveText(heading);
    await expect(page.locator('[role="alert"]')).toHaveCount(0);
    await inOrder(page);
  }

  const dialog = page.getByRole("dialog");
  await page.goto(`${URL_OF}#/volumes/page1`);
  await page.getByRole("button", { name: "Resize" }).click();
  await dialog.getByLabel("New size").fill("128");
  await dialog.getByRole("button", { name: "Resize" }).click();
  await expect(page.getByText("128 MiB", { exact: true }).first()).toBeVisible();

  await page.goto(`${URL_OF}#/doctor`);
  await page.getByRole("button", { name: /^Check/ }).click();
  await expect(page.getByRole("heading", { name: "Findings" })).toBeVisible({ timeout: 60_000 });
  // A busy button does nothing: the check that was just begun comes to its end first.
  await expect(page.getByRole("button", { name: "Check again" })).toBeVisible({ timeout: 60_000 });
  await expect(page.getByRole("button", { name: "Work it out" })).not.toHaveAttribute("aria-busy");
  await page.getByRole("button", { name: "Work it out" }).click();
  await expect(page.getByText(/are limited by: |narrow place is not known/)).toBeVisible({ timeout: 60_000 });
  await inOrder(page);
  await page.goto(`${URL_OF}#/tune`);
  await page.getByRole("button", { name: "Make a plan" }).click();
  await expect(page.getByRole("heading", { name: "Changes" })).toBeVisible({ timeout: 60_000 });
  await inOrder(page);

  await page.goto(`${URL_OF}#/volumes/page1`);
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await dialog.getByLabel("Type page1 to confirm").fill("page1");
  const force = dialog.getByLabel("Do it all the same (force)");
  if (await force.count()) await force.check();
  await dialog.getByRole("button", { name: "Delete the volume and its data" }).click();
  await expect(page.locator("h1")).toHaveText("Volumes");
  expect(complaints).toEqual([]);
});
