/**
 * From an empty machine to a virtual machine that boots from a LUN, by the page alone: what a person clicks, types and pastes is
 * counted. The time is told and never judged.
 */

import { type ChildProcess, execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Locator, Page } from "@playwright/test";
import { bootImage, COPY_LBA } from "./boot-image";
import { expect, inOrder, PASSWORD, test } from "./fixtures";
import { blockOptions, Lunet, PROGRAM, secretOptions } from "./lunet";

test.skip(!PROGRAM, "LUNET_BIN is not set");

/** Seconds of the keystroke-level model (Card, Moran and Newell, 1980): a key, pointing, a click, a thought before each of them. */
const KEY = 0.28;
const POINT = 1.1;
const CLICK = 0.2;
const THOUGHT = 1.35;

/** Somebody before the page and a terminal. */
class Person {
  clicks = 0;
  keys = 0;

  constructor(private readonly page: Page) {}

  async click(what: Locator): Promise<void> {
    this.clicks += 1;
    await what.click();
  }

  /** Clicks into a field, and types over what it has. */
  async type(into: Locator, text: string): Promise<void> {
    await this.click(into);
    this.keys += text.length + 1;
    await into.fill(text);
  }

  /** Copies a command of the page, to paste it into a terminal. */
  async copy(title: string): Promise<string> {
    const button = this.page.getByRole("button", { name: `Copy ${title}` });
    await this.click(button);
    await expect(button).toHaveText("Copied");
    // Pasted, and run.
    this.keys += 2;
    return this.page.evaluate(() => navigator.clipboard.readText());
  }

  get seconds(): number {
    return this.clicks * (THOUGHT + POINT + CLICK) + this.keys * KEY;
  }
}

test("from an empty machine to a virtual machine that boots from a LUN", async ({ page, context, complaints }) => {
  test.setTimeout(240_000);
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  const lunet = new Lunet();
  try {
    const marker = `booted from a LUN ${randomBytes(8).toString("hex")}`;
    const raw = join(lunet.scratch, "disk.raw");
    const image = bootImage(marker);
    writeFileSync(raw, image);
    execFileSync("qemu-img", ["convert", "-f", "raw", "-O", "qcow2", raw, join(lunet.scratch, "disk.qcow2")]);

    const begun = Date.now();
    await lunet.start();
    const person = new Person(page);
    // `lunet serve` is typed, and the address that it prints is opened.
    person.keys += "lunet serve".length + 1 + lunet.url.length + 1;
    await page.goto(lunet.url);
    await person.type(page.getByLabel("One-time code"), lunet.code);
    await person.type(page.getByLabel("Password", { exact: true }), PASSWORD);
    await person.type(page.getByLabel("Password, again"), PASSWORD);
    await person.click(page.getByRole("button", { name: "Create the account" }));
    await person.click(page.getByRole("link", { name: "Create the first disk" }));
    await person.type(page.getByLabel("Name", { exact: true }), "vm1");
    await person.type(page.getByLabel("Size", { exact: true }), "1");
    await person.click(page.getByLabel("libvirt, KVM"));
    await person.click(page.getByLabel("Both"));
    const portal = page.getByLabel("Address", { exact: true });
    const loopback = await portal.locator("option").filter({ hasText: "127.0.0.1" }).first().getAttribute("value");
    // The list is opened, and an entry is clicked.
    person.clicks += 2;
    await portal.selectOption(loopback);
    await person.click(page.getByRole("button", { name: "Create the disk" }));
    await expect(page.getByRole("heading", { name: "vm1 is ready" })).toBeVisible();

    const paste = (command: string): Buffer => execFileSync("sh", ["-c", command], { cwd: lunet.scratch, timeout: 60_000 });
    paste(await person.copy("The secret, in a file for QEMU’s programs"));
    paste(await person.copy("Copy an image onto it, if there is one"));
    const boots = await person.copy("Or boot from it by QEMU alone");
    const machine = boot(lunet, boots);
    await expect(page.getByText(/^Connected: /)).toContainText("iqn.2026-11.local.example:vm1");
    await inOrder(page);
    const serial = join(lunet.scratch, "serial");
    await expect.poll(() => (existsSync(serial) ? readFileSync(serial, "latin1") : ""), { timeout: 120_000 }).toContain(marker);
    const took = (Date.now() - begun) / 1000;

    await person.click(page.getByRole("link", { name: "Sessions" }));
    await expect(page.getByRole("table", { name: "Sessions" })).toContainText("iqn.2026-11.local.example:vm1");
    await lunet.end(machine);
    const lun = { portal: loopback ?? "", ...identity(boots), lun: 0 };
    const back = join(lunet.scratch, "back.raw");
    // As `dd` has it in QEMU, `count` has what is skipped.
    execFileSync("qemu-img", ["dd", "-O", "raw", ...secretOptions(lun), "--image-opts", `if=${blockOptions(lun)}`, `of=${back}`, "bs=512", `skip=${COPY_LBA}`, `count=${COPY_LBA + 1}`]);
    expect(readFileSync(back).subarray(0, marker.length).toString("latin1")).toBe(marker);

    const both = person.seconds + took;
    console.log(
      `From an empty machine to a booted virtual machine: ${person.clicks} clicks and ${person.keys} keys, ` +
        `${person.seconds.toFixed(0)} s of a person by the keystroke-level model, ${took.toFixed(1)} s of the machine: ${both.toFixed(0)} s.`,
    );
    expect(complaints).toEqual([]);
  } finally {
    // Its events end with the server, which the browser would complain of.
    await page.goto("about:blank");
    await lunet.stop();
  }

  /** The machine of the command that the page has shown: without a screen, and without KVM, which not every machine has. */
  function boot(of: Lunet, command: string): ChildProcess {
    const without = command.replace("-accel kvm", "-accel tcg");
    expect(without).not.toBe(command);
    return of.beside("sh", ["-c", `cd '${of.scratch}' && exec ${without} -display none -nic none -no-reboot -serial file:serial`]);
  }

  /** Target, initiator and user that a command has. */
  function identity(command: string) {
    const of = (key: string): string => new RegExp(`[,.]${key}=([^,]+)`).exec(command)?.[1] ?? "";
    const secret = readFileSync(join(lunet.scratch, "lunet.secret"), "utf8");
    return { target: of("target"), initiator: of("initiator-name"), user: { name: of("user"), secret } };
  }
});
