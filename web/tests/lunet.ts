/** A real lunet ($LUNET_BIN) that a test starts, and QEMU as its initiator. Nothing of it outlives the test. */

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, type Page } from "@playwright/test";
import { PASSWORD } from "./fixtures";

/** The program to test; nothing: there is none. */
export const PROGRAM = process.env.LUNET_BIN;

/** A server that runs. */
export class Lunet {
  /** The address of the page, with its `/` at the end. */
  url = "";
  /** The code of the first start. */
  code = "";
  /** Where initiators log in. */
  portal = "";
  readonly scratch = mkdtempSync(join(tmpdir(), "lunet-page-"));
  readonly data: string;
  /** Why there are no snapshots here: the file system of the data directory cannot share blocks. */
  readonly noSnapshots: string | null;
  private mounted = false;
  private child: ChildProcess | undefined;
  private readonly others = new Set<ChildProcess>();

  constructor() {
    const folder = join(this.scratch, "files");
    mkdirSync(folder);
    this.mountWhatShares(folder);
    this.noSnapshots = sharesBlocks(folder) ? null : "the file system of the data directory cannot share blocks, and only root can mount one that can";
    this.data = join(folder, "data");
  }

  /** As root: a file system of a file, with which snapshots are possible. */
  private mountWhatShares(folder: string): void {
    if (process.getuid?.() !== 0) return;
    const image = join(this.scratch, "xfs");
    writeFileSync(image, "");
    truncateSync(image, 512 << 20);
    execFileSync("/usr/sbin/mkfs.xfs", ["-q", image]);
    execFileSync("mount", ["-o", "loop", image, folder]);
    this.mounted = true;
  }

  /** Starts it: the first time with an empty data directory and free ports, later with what there is, where it was. */
  async start(): Promise<this> {
    const first = this.portal === "";
    const at = first ? ["--size", "64MiB", "--listen", "127.0.0.1:0", "--listen-control", "127.0.0.1:0"] : ["--listen", this.portal, "--listen-control", new URL(this.url).host];
    const child = spawn(PROGRAM ?? "", ["serve", "--data", this.data, ...at], { stdio: ["ignore", "pipe", "pipe"] });
    this.child = child;
    let said = "";
    await new Promise<void>((resolve, reject) => {
      const listen = (part: Buffer): void => {
        said += part.toString();
        const page = /^page: (\S+)(?: first-start code: (\S+))?\n/m.exec(said);
        if (!page || !/ is ready/.test(said)) return;
        this.url = page[1];
        this.code = page[2] ?? "";
        this.portal = /iscsi:\/\/([^/]+)\//.exec(said)?.[1] ?? this.portal;
        resolve();
      };
      child.stdout.on("data", listen);
      child.stderr.on("data", listen);
      child.on("error", reject);
      child.on("exit", () => reject(new Error(`lunet has ended:\n${said}`)));
    });
    return this;
  }

  /** Runs a program beside it until the test ends, or `end` is called with it. */
  beside(program: string, options: string[]): ChildProcess {
    const child = spawn(program, options, { stdio: "ignore" });
    this.others.add(child);
    return child;
  }

  async end(child: ChildProcess): Promise<void> {
    this.others.delete(child);
    if (child.exitCode !== null || child.signalCode !== null) return;
    const gone = new Promise((resolve) => child.once("exit", resolve));
    child.kill();
    await gone;
  }

  /** Stops it, and starts it again with what it has; `between` is done while it is away. */
  async restart(between: () => void): Promise<void> {
    if (this.child) await this.end(this.child);
    between();
    await this.start();
  }

  async stop(): Promise<void> {
    for (const child of [...this.others]) await this.end(child);
    if (this.child) await this.end(this.child);
    // The kernel closes the files of a ring some time after its process has ended.
    if (this.mounted) await expect(() => execFileSync("umount", [join(this.scratch, "files")], { stdio: "pipe" })).toPass({ timeout: 60_000 });
    rmSync(this.scratch, { recursive: true, force: true });
  }
}

function sharesBlocks(folder: string): boolean {
  const [from, to] = [join(folder, "a"), join(folder, "b")];
  writeFileSync(from, "x".repeat(8192));
  try {
    execFileSync("cp", ["--reflink=always", from, to], { stdio: "ignore" });
    return true;
  } catch {
    return false;
  } finally {
    for (const it of [from, to]) rmSync(it, { force: true });
  }
}

/** A LUN, and who uses it. */
export interface Lun {
  portal: string;
  target: string;
  lun: number;
  initiator?: string | undefined;
  user?: { name: string; secret: string } | undefined;
}

/** QEMU's options for a LUN, as the protocol below the format `raw`. */
export function blockOptions(lun: Lun, below = "file."): string {
  const of: Record<string, string | number> = { driver: "iscsi", transport: "tcp", portal: lun.portal, target: lun.target, lun: lun.lun };
  if (lun.initiator) of["initiator-name"] = lun.initiator;
  if (lun.user) [of.user, of["password-secret"]] = [lun.user.name, "chap"];
  return `driver=raw,${Object.entries(of)
    .map(([key, value]) => `${below}${key}=${value}`)
    .join(",")}`;
}

export const secretOptions = (lun: Lun): string[] => (lun.user ? ["--object", `secret,id=chap,data=${lun.user.secret}`] : []);

function qemuIoOptions(lun: Lun, commands: string[]): string[] {
  return [...secretOptions(lun), "--image-opts", ...commands.flatMap((it) => ["-c", it]), blockOptions(lun)];
}

/** QEMU logs in, works, and logs out. Fails if it is refused, or reads something else than what was expected. */
export function qemuIo(lun: Lun, ...commands: string[]): string {
  const said = execFileSync("qemu-io", qemuIoOptions(lun, commands), { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"], timeout: 60_000 });
  if (/failed/i.test(said)) throw new Error(said);
  return said;
}

/** A refused login, with the reason that the initiator was given. */
export function isRefused(lun: Lun): string {
  try {
    qemuIo(lun, "read 0 4k");
  } catch (error) {
    return String((error as { stderr?: string }).stderr ?? error);
  }
  throw new Error(`${lun.initiator ?? "the initiator"} was not refused`);
}

/** QEMU logs in, and stays. */
export const stay = (lunet: Lunet, lun: Lun): ChildProcess => lunet.beside("qemu-io", qemuIoOptions(lun, ["sleep 3600000"]));

/** The first account of a lunet, by its page. */
export async function firstStart(page: Page, at: { url: string; code: string }, timeout = 30_000): Promise<void> {
  await page.goto(at.url);
  await page.getByLabel("One-time code").fill(at.code);
  await page.getByLabel("Password", { exact: true }).fill(PASSWORD);
  await page.getByLabel("Password, again").fill(PASSWORD);
  await page.getByRole("button", { name: "Create the account" }).click();
  await expect(page.getByRole("heading", { name: "This machine" })).toBeVisible({ timeout });
  await expect(page.getByText("Live", { exact: true })).toBeAttached();
}

/** The address on this machine that lunet listens on, from the form for a new disk; chosen there. */
export async function chooseLoopback(page: Page): Promise<string> {
  const portal = page.getByLabel("Address", { exact: true });
  const loopback = portal.locator("option").filter({ hasText: "127.0.0.1" }).first();
  const address = (await loopback.getAttribute("value")) ?? "";
  await portal.selectOption(address);
  return address;
}

/** The target that a page about a LUN names. */
export async function targetShown(page: Page): Promise<string> {
  return ((await page.locator(".about").innerText()).match(/iqn\.\S+/) ?? [""])[0];
}
