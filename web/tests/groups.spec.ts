/** Failover groups: who owns one, orders to it, and what its gateways share. */

import { expect, inOrder, logIn, test } from "./fixtures";

test("a group is moved and taken over, and what is wrong is told with what to do", async ({ page, mock, complaints }) => {
  await logIn(page, mock);
  await page.getByRole("link", { name: "Groups" }).click();
  await expect(page.getByRole("heading", { name: "Failover groups" })).toBeFocused();
  await expect(page.getByText("gateway 1", { exact: true })).toBeVisible();
  await expect(page.getByText("standby: ready to take over")).toBeVisible();
  const gateways = page.getByRole("table", { name: "Gateways of ceph" });
  await expect(gateways.getByRole("row", { name: /^3/ })).toContainText("does not reach the cluster");
  await expect(gateways.getByRole("row", { name: /2, this one/ })).toContainText("standby");

  // One that does not answer: the server's own sentence, and the group stays.
  await page.getByRole("button", { name: "Move the group ceph" }).click();
  await page.getByLabel("To", { exact: true }).selectOption("3");
  await inOrder(page);
  await page.getByRole("button", { name: "Move", exact: true }).click();
  await expect(page.getByRole("alert")).toContainText("that gateway does not answer");
  await page.getByLabel("To", { exact: true }).selectOption("2");
  await page.getByRole("button", { name: "Move", exact: true }).click();
  await expect(page.getByText("owner: it serves the group")).toBeVisible();
  await expect(page.getByText("gateway 2, this one")).toBeVisible();
  expect(mock.state.groups[0].owner).toBe(2);
  // An owner takes nothing over from itself.
  await expect(page.getByRole("button", { name: /over$/ })).toHaveCount(0);

  // Another one has taken it: an event tells, nobody has to ask.
  const notice = "the group is not taken over: the client 192.0.2.9:0/1 has an image of it locked: end that";
  mock.happen("group", { owner: 1, state: "standby", epoch: 9, notices: [notice] });
  await expect(page.getByText(notice)).toBeVisible();
  await page.getByRole("button", { name: "Take the group ceph over" }).click();
  await expect(page.getByText("This gateway shuts gateway 1 out of the cluster", { exact: false })).toBeVisible();
  const confirm = page.getByRole("dialog").getByRole("button", { name: "Take over" });
  await expect(confirm).toBeDisabled();
  await page.getByLabel("Type ceph to confirm").fill("ceph");
  await inOrder(page);
  await confirm.click();
  await expect(page.getByText("owner: it serves the group")).toBeVisible();
  expect(complaints).toEqual([]);
});

test("a shared configuration is edited, with its mistakes by line and conflicts told", async ({ page, mock, complaints }) => {
  await logIn(page, mock, "groups");
  const editor = page.getByLabel("Shared configuration of ceph", { exact: true });
  await expect(editor).toHaveValue(mock.state.shared.ceph);
  await editor.fill(`${mock.state.shared.ceph}what\n`);
  await page.getByRole("button", { name: "Serve by it" }).click();
  await expect(page.getByText("what: is no key and value")).toBeVisible();
  await inOrder(page);
  await page.getByRole("button", { name: "Go to line 9" }).click();
  await expect(editor).toBeFocused();
  const selected = await editor.evaluate((it) => (it as HTMLTextAreaElement).value.slice((it as HTMLTextAreaElement).selectionStart, (it as HTMLTextAreaElement).selectionEnd));
  expect(selected).toBe("what");
  expect(mock.state.groups[0].config).toBe(4);

  // Somebody else is quicker.
  const mine = (mock.state.shared.ceph as string).replace("esx1", "esx2");
  await editor.fill(mine);
  mock.state.shared.ceph = `# by somebody else\n${mock.state.shared.ceph as string}`;
  mock.happen("group", { config: 5 });
  await page.getByRole("button", { name: "Serve by it" }).click();
  await expect(page.getByText("Somebody else has changed it meanwhile")).toBeVisible();
  await page.getByRole("button", { name: "Read it again, and keep my text" }).click();
  await expect(page.getByText("Revision 5, without secrets", { exact: false })).toBeVisible();
  await expect(editor).toHaveValue(mine);
  await page.getByRole("button", { name: "Serve by it" }).click();
  await expect(page.getByText("gateways that serve by it: 1, 2")).toBeVisible();
  expect(mock.state.shared.ceph).toBe(mine);
  await expect(page.getByText("Revision 6, without secrets", { exact: false })).toBeVisible();
  await inOrder(page);
  expect(complaints).toEqual([]);
});

test("who may not change a group sees it, and no buttons", async ({ page, mock, complaints }) => {
  await logIn(page, mock, "groups", "vera");
  await expect(page.getByText("standby: ready to take over")).toBeVisible();
  await expect(page.getByRole("button", { name: /^Move|^Take/ })).toHaveCount(0);
  await expect(page.getByLabel("Shared configuration of ceph", { exact: true })).toHaveCount(0);
  expect(complaints).toEqual([]);
});

test("a server without groups has no such screen in its menu", async ({ page, mock, complaints }) => {
  mock.state.groups = [];
  await logIn(page, mock, "groups");
  await expect(page.getByText("This server is a gateway of no group.")).toBeVisible();
  await expect(page.getByRole("link", { name: "Groups" })).toHaveCount(0);
  await inOrder(page);
  expect(complaints).toEqual([]);
});

test("a clone of a group's volume is said to become a volume of the group", async ({ page, mock, complaints }) => {
  mock.state.groups[0].volumes[0].name = "vm1";
  await logIn(page, mock, "volumes/vm1");
  const dialog = page.getByRole("dialog");
  await page.getByRole("button", { name: "Snapshot", exact: true }).click();
  await dialog.getByLabel("Name").fill("now");
  await dialog.getByRole("button", { name: "Take the snapshot" }).click();
  await page.getByRole("button", { name: "Clone now" }).click();
  await expect(dialog).toContainText("It becomes a volume of group ceph too");
  expect(complaints).toEqual([]);
});
