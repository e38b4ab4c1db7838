#!/usr/bin/env node
// Logs in as an initiator: QEMU writes to a disk that the page has made, and stays for a while. See ../README.md.
// login.mjs login '{"target": ..., "lun": 0, "portal": ..., "user": ..., "secret": ...}'
import { spawn, spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";

const { target, lun, portal, user, secret } = JSON.parse(process.argv[3]);
const url = `iscsi://${encodeURIComponent(user)}%${encodeURIComponent(secret)}@${portal}/${target}/${lun}`;
const written = spawnSync("qemu-io", ["-f", "raw", "-c", "write -P 0x5a 0 64k", "-c", "flush", "-c", "read -P 0x5a 0 64k", url], {
  encoding: "utf8",
});
if (written.status !== 0 || /failed/i.test(written.stdout)) {
  console.error(written.stdout, written.stderr);
  process.exit(1);
}
// The page is to see somebody who is there.
const stays = spawn("qemu-io", ["-f", "raw", "-c", "sleep 60000", url], { detached: true, stdio: "ignore" });
writeFileSync(process.env.LUNET_PAGE_PID, `${stays.pid}\n`);
stays.unref();
