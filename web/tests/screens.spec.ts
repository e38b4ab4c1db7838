/** Each screen, at each width, in light and dark: axe finds nothing, nothing is logged, nothing scrolls sideways. */

import { mkdirSync } from "node:fs";
import { expect, inOrder, logIn, test, WIDTHS } from "./fixtures";

const PICTURES = process.env.LUNET_PAGE_PICTURES;
if (PICTURES) mkdirSync(PICTURES, { recursive: true });

const SCREENS: { at: string; name: string; heading: string; before?: "doctor" | "tune" | "bench" | "details" }[] = [
  { at: "", name: "overview", heading: "Overview" },
  { at: "new-disk", name: "new-disk", heading: "New disk" },
  { at: "volumes", name: "volumes", heading: "Volumes" },
  { at: "volumes/vm1", name: "volume", heading: "vm1" },
  { at: "access", name: "access", heading: "Access" },
  { at: "sessions", name: "sessions", heading: "Sessions", before: "details" },
  { at: "groups", name: "groups", heading: "Failover groups" },
  { at: "doctor", name: "doctor", heading: "Doctor", before: "doctor" },
  { at: "tune", name: "tune", heading: "Tune", before: "tune" },
  { at: "bench", name: "bench", heading: "Bench", before: "bench" },
  { at: "configuration", name: "configuration", heading: "Configuration" },
  { at: "configuration/portals", name: "portals", heading: "Configuration" },
  { at: "configuration/accounts", name: "accounts", heading: "Configuration" },
  { at: "configuration/tokens", name: "tokens", heading: "Configuration" },
  { at: "configuration/audit", name: "audit", heading: "Configuration" },
  { at: "welcome", name: "welcome", heading: "This machine" },
];

for (const width of WIDTHS) {
  for (const colours of ["light", "dark"] as const) {
    test.describe(`${width} px, ${colours}`, () => {
      test.use({ viewport: { width, height: 900 }, colorScheme: colours });

      for (const screen of SCREENS) {
        test(screen.name, async ({ page, mock, complaints }) => {
          await logIn(page, mock, screen.at);
          await expect(page.locator("h1")).toHaveText(screen.heading);
          switch (screen.before) {
            case "doctor":
              await page.getByRole("button", { name: "Check this machine" }).click();
              await expect(page.getByText("The pool tank is DEGRADED")).toBeVisible();
              await page.getByRole("button", { name: "Compute the ceilings" }).click();
              await expect(page.getByText("Reads are limited by: network.")).toBeVisible();
              await page.getByText("Evidence and fix").first().click();
              break;
            case "tune":
              await page.getByRole("button", { name: "Make a plan" }).click();
              await expect(page.getByRole("button", { name: "Apply 4 rules" })).toBeVisible();
              await page.getByLabel("Where to measure").fill("/tank");
              await page.getByRole("button", { name: "Prove" }).click();
              await expect(page.getByRole("table", { name: "Effects" })).toBeVisible();
              // What was kept is looked at, and the plan made again.
              await expect(page.getByText("Nothing is applied by lunet’s tuner")).toBeVisible();
              await expect(page.getByRole("button", { name: "Apply 4 rules" })).toBeEnabled();
              break;
            case "bench":
              await page.getByLabel("What", { exact: true }).fill("/srv/a");
              await page.getByLabel("Beside it, optional").fill("iscsi://127.0.0.1/iqn.2026-11.local.lunet:demo/0");
              await page.getByRole("button", { name: "Measure" }).click();
              await expect(page.getByText("Bound by the drive at 87 %").first()).toBeVisible();
              break;
            case "details":
              await page.getByRole("button", { name: /^Details/ }).last().click();
              await expect(page.getByText("Why not RDMA:")).toBeVisible();
              break;
            default:
              break;
          }
          await expect(page.locator(".loading")).toHaveCount(0);
          await inOrder(page);
          if (PICTURES) await page.screenshot({ path: `${PICTURES}/${screen.name}-${width}-${colours}.png`, fullPage: true });
          expect(complaints).toEqual([]);
        });
      }

      test("login and first start", async ({ page, mock, empty, complaints }) => {
        await page.goto(mock.url);
        await expect(page.getByRole("heading", { name: "Log in to lunet" })).toBeVisible();
        await inOrder(page);
        await page.goto(empty.url);
        await expect(page.getByRole("heading", { name: "Welcome to lunet" })).toBeVisible();
        await inOrder(page);
        if (PICTURES) await page.screenshot({ path: `${PICTURES}/first-start-${width}-${colours}.png` });
        expect(complaints).toEqual([]);
      });
    });
  }
}
