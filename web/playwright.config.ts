import { defineConfig } from "@playwright/test";

/** The tests run against the mock server; with LUNET_PAGE_URL and LUNET_PAGE_CODE against a lunet: see README.md. */
export default defineConfig({
  testDir: "tests",
  timeout: 60_000,
  expect: { timeout: 10_000 },
  workers: 2,
  fullyParallel: true,
  reporter: [["list"]],
  use: {
    // Debian's package chromium; a browser is not fetched.
    launchOptions: {
      executablePath: process.env.LUNET_CHROMIUM ?? "/usr/bin/chromium",
      args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
    },
    locale: "en-GB",
    // In the middle of a transition colours are neither those before nor those after it.
    contextOptions: { reducedMotion: "reduce" },
    ignoreHTTPSErrors: true,
  },
});
