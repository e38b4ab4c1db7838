/** A page that is watched, and the server that it is of. */

import AxeBuilder from "@axe-core/playwright";
import { expect, type Page, test as base } from "@playwright/test";
import { CODE, type Mock, start } from "../mock/server.mjs";

export { CODE, expect };
export type { Mock };

export const PASSWORD = "correct horse battery";
export const WIDTHS = [390, 768, 1440];

interface Fixtures {
  mock: Mock;
  empty: Mock;
  /** Everything that the page has complained about. */
  complaints: string[];
}

export const test = base.extend<Fixtures>({
  mock: async ({}, use) => {
    const mock = await start({ history: 90, pace: 60 });
    await use(mock);
    await mock.stop();
  },
  empty: async ({}, use) => {
    const mock = await start({ empty: true, pace: 60 });
    await use(mock);
    await mock.stop();
  },
  complaints: async ({ page }, use) => {
    const all: string[] = [];
    page.on("console", (message) => {
      // A refused request is told by the browser, too; the page shows the server's sentence.
      const refusal = message.text().startsWith("Failed to load resource: the server responded with a status of ");
      if ((message.type() === "error" || message.type() === "warning") && !refusal) all.push(message.text());
    });
    page.on("pageerror", (error) => all.push(String(error)));
    await use(all);
    expect(all, "console").toEqual([]);
  },
});

export async function logIn(page: Page, mock: { url: string }, at = "", name = "admin"): Promise<void> {
  await page.goto(`${mock.url}/#/${at}`);
  await page.getByLabel("Name").fill(name);
  await page.getByLabel("Password").fill(PASSWORD);
  await page.getByRole("button", { name: "Log in" }).click();
  await expect(page.locator("main h1")).toBeVisible();
  await expect(page.getByText("Live", { exact: true })).toBeAttached();
}

/** No rule of axe is broken, and nothing has to be scrolled sideways. */
export async function inOrder(page: Page): Promise<void> {
  const found = await new AxeBuilder({ page }).withTags(["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]).analyze();
  expect(
    found.violations.map((it) => `${it.id}: ${it.nodes.map((node) => node.target.join(" ")).slice(0, 3).join(", ")}`),
    "axe",
  ).toEqual([]);
  const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  expect(over, "pixels to scroll sideways").toBeLessThanOrEqual(0);
}
