/** Who may use what: refused logins, a matrix of initiators and LUNs, targets with their users. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, path } from "../api/client";
import type { Configuration, Refused, Session, Target } from "../api/types";
import { ago, plural } from "../lib/format";
import { addressOf, admits, authority, initiatorProblem, newSecret } from "../lib/names";
import { may, portals, refused, Resource, sessions, targets, volumes } from "../state";
import { configChanges } from "../live";
import { Badge, Button, Card, Checkbox, Empty, Loaded, TextField } from "../ui/basics";
import { type Change, ChangeDialog, FormDialog } from "../ui/change";
import { Dialog } from "../ui/dialog";
import { Icon } from "../ui/icons";
import { Table } from "../ui/table";
import { Title } from "../ui/title";
import { AllowDialog, DenyDialog } from "./allow";
import { SecretCard } from "./new-disk/connect";

const rules = new Resource<Configuration>(() => get("/config"));

type Asking =
  | { what: "allow" | "deny"; target: string; initiator: string }
  | { what: "add"; target: string }
  | { what: "user"; target: string; replace: string | null }
  | { what: "remove-user"; target: string; user: string }
  | { what: "open" | "delete"; target: string }
  | { what: "create" };

export function Access() {
  useEffect(() => {
    for (const one of [targets, sessions, portals, volumes]) one.want();
    void refused.refresh();
  }, []);
  // The rules as they are written: only those who may change them may read them.
  const reads = may("operator");
  const shownTargets = targets.data.value;
  useEffect(() => {
    if (reads) void rules.refresh();
  }, [reads, configChanges.value, shownTargets]);
  const asking = useSignal<Asking | null>(null);
  const secret = useSignal<{ user: string; secret: string } | null>(null);
  const ask = (it: Asking): void => {
    asking.value = it;
  };
  return (
    <>
      <Title
        title="Access"
        about="A target is closed to everybody that it does not name."
        actions={
          may("operator") && (
            <Button icon="plus" onClick={() => ask({ what: "create" })}>
              New target
            </Button>
          )
        }
      />
      <RefusedLogins ask={ask} />
      <Loaded of={targets}>
        {(all) =>
          all.length === 0 ? (
            <Empty title="There are no targets.">
              <p>A target is what initiators log in to; its LUNs are volumes. A new disk brings its own.</p>
            </Empty>
          ) : (
            <>
              <Matrix targets={all} ask={ask} />
              {all.map((it) => (
                <TargetCard key={it.name} target={it} ask={ask} />
              ))}
            </>
          )
        }
      </Loaded>
      <Dialogs asking={asking.value} close={() => (asking.value = null)} shown={(it) => (secret.value = it)} />
      {secret.value && (
        <Dialog title="The secret" onClose={() => (secret.value = null)}>
          <SecretCard user={secret.value.user} secret={secret.value.secret} />
        </Dialog>
      )}
    </>
  );
}

type Ask = (it: Asking) => void;

/** One line for all refusals of an initiator at a target. */
function grouped(all: Refused[]): (Refused & { times: number })[] {
  const out = new Map<string, Refused & { times: number }>();
  for (const it of all) {
    const key = `${it.initiator} ${it.target} ${it.why}`;
    const known = out.get(key);
    if (known) known.times += 1;
    else out.set(key, { ...it, times: 1 });
  }
  return [...out.values()];
}

function RefusedLogins({ ask }: { ask: Ask }) {
  const all = grouped(refused.data.value ?? []);
  if (all.length === 0) return null;
  // A host of NVMe asks for the NQN of a target.
  const known = new Map((targets.data.value ?? []).flatMap((it) => [it.name, it.nqn].map((name) => [name, it.name] as const)));
  return (
    <Card title="Refused logins">
      <Table
        label="Refused logins"
        rows={all.slice(0, 12)}
        rowKey={(it) => `${it.initiator} ${it.target} ${it.why}`}
        columns={[
          {
            head: "Initiator",
            names: true,
            cell: (it) => (
              <>
                <span class="name">{it.initiator || "without a name"}</span>
                <small class="muted block">{it.address}</small>
              </>
            ),
          },
          {
            head: "Wanted",
            cell: (it) =>
              it.target ? <span class="name">{it.target}</span> : it.protocol === "nvme" ? "not known" : "discovery",
          },
          { head: "Over", cell: (it) => (it.protocol === "nvme" ? "NVMe" : "iSCSI") },
          { head: "Why", cell: (it) => it.why },
          {
            head: "When",
            cell: (it) => (
              <>
                {ago(it.time)}
                {it.times > 1 && <small class="muted block">{plural(it.times, "time")}</small>}
              </>
            ),
          },
          {
            head: "Actions",
            quietHead: true,
            cell: (it) =>
              may("operator") &&
              it.initiator &&
              it.target &&
              known.get(it.target) && (
                <Button
                  small
                  kind="primary"
                  label={`Allow ${it.initiator} at ${it.target}`}
                  onClick={() => ask({ what: "allow", target: known.get(it.target ?? "") ?? "", initiator: it.initiator })}
                >
                  Allow this one
                </Button>
              ),
          },
        ]}
      />
    </Card>
  );
}

/** The rules of a target, as they are written in the configuration. */
interface Rules {
  /** `null`: no list. */
  initiators: string[] | null;
  /** By LUN: who sees it; those without an entry are for all. */
  masks: Map<number, string[]>;
}

const strings = (value: unknown): string[] | null =>
  Array.isArray(value) ? value.filter((it): it is string => typeof it === "string") : null;

/** Reads the rules of a target out of the configuration; nothing if it cannot be read. */
function rulesOf(target: string, config: Configuration | undefined): Rules | null {
  const written = config?.config.target;
  const table = Array.isArray(written) ? (written as Record<string, unknown>[]).find((it) => it.name === target) : undefined;
  if (!table) return null;
  const masks = new Map<number, string[]>();
  for (const [lun, it] of Object.entries((table.luns as Record<string, unknown>) ?? {})) {
    const list = typeof it === "object" && it !== null ? strings((it as Record<string, unknown>).initiators) : null;
    if (list) masks.set(Number(lun), list);
  }
  return { initiators: strings(table.initiators), masks };
}

type CellState = "in use" | "allowed" | "by address" | "no access" | "not known";

interface Row {
  initiator: string;
  /** From a session or a refused login. */
  address: string | null;
  refused: boolean;
}

/** Everybody who is named in a rule, is logged in, or was refused. */
function rowsOf(all: Target[], config: Configuration | undefined): Row[] {
  const rows = new Map<string, Row>();
  const add = (initiator: string, address: string | null, wasRefused: boolean): void => {
    if (!initiator) return;
    const known = rows.get(initiator);
    rows.set(initiator, {
      initiator,
      address: known?.address ?? address,
      refused: (known?.refused ?? true) && wasRefused,
    });
  };
  for (const target of all) {
    const of = rulesOf(target.name, config);
    // A pattern in the rules of a LUN restricts others and lets nobody in by itself: it is no row.
    const masked = [...(of?.masks.values() ?? [])].flat().filter((it) => !it.includes("*"));
    for (const it of [...(of?.initiators ?? []), ...masked]) add(it, null, false);
  }
  for (const it of sessions.data.value ?? []) if (!it.controller) add(it.initiator, addressOf(it.peer), false);
  for (const it of refused.data.value ?? []) add(it.initiator, addressOf(it.address), true);
  return [...rows.values()].sort((a, b) => a.initiator.localeCompare(b.initiator));
}

function stateOf(row: Row, target: Target, lun: number, of: Rules | null): CellState {
  const own = (it: Session): boolean => it.initiator === row.initiator && it.target === target.name;
  const mask = of?.masks.get(lun);
  const seen = !mask || mask.includes(row.initiator) || admits(mask, row.initiator, row.address) !== false;
  if ((sessions.data.value ?? []).some(own)) return seen ? "in use" : "no access";
  if (target.for === "everybody") return seen ? "allowed" : "no access";
  if (target.for === "this-machine") return "no access";
  if (!of) return "not known";
  if (!seen) return "no access";
  if (of.initiators === null) return target.users.length > 0 || mask ? "allowed" : "no access";
  if (of.initiators.includes(row.initiator)) return "allowed";
  const admitted = admits(of.initiators, row.initiator, row.address);
  return admitted === null ? "by address" : admitted ? "allowed" : "no access";
}

const MARKS: Record<CellState, { class: string; text: string }> = {
  "in use": { class: "in-use", text: "●" },
  allowed: { class: "allowed", text: "○" },
  "by address": { class: "allowed", text: "◌" },
  "no access": { class: "none", text: "–" },
  "not known": { class: "none", text: "?" },
};

function Matrix({ targets: all, ask }: { targets: Target[]; ask: Ask }) {
  const config = rules.data.value;
  const rows = rowsOf(all, config);
  const shown = all.filter((it) => it.luns.length > 0);
  if (shown.length === 0) return null;
  return (
    <Card title="Initiators and LUNs">
      {rows.length === 0 ? (
        <p class="muted">No initiator is named in a rule, logged in, or was refused so far.</p>
      ) : (
        <>
          <div class="matrix-frame" role="region" aria-label="Matrix of initiators and LUNs" tabIndex={0}>
            <table class="matrix">
              <thead>
                <tr>
                  <th rowSpan={2} scope="col">
                    Initiator
                  </th>
                  {shown.map((target) => (
                    <th key={target.name} colSpan={target.luns.length} scope="colgroup">
                      <span class="name">{target.name}</span>
                    </th>
                  ))}
                </tr>
                <tr>
                  {shown.flatMap((target) =>
                    target.luns.map((lun) => (
                      <th key={`${target.name} ${lun.lun}`} scope="col">
                        LUN {lun.lun}
                        <small class="block">{lun.volume}</small>
                      </th>
                    )),
                  )}
                </tr>
              </thead>
              <tbody>
                {rows.map((row) => (
                  <tr key={row.initiator}>
                    <th scope="row">
                      <span class="name">{row.initiator}</span>
                      {row.refused && <Badge tone="warn">refused</Badge>}
                    </th>
                    {shown.flatMap((target) =>
                      target.luns.map((lun) => (
                        <MatrixCell key={`${target.name} ${lun.lun}`} row={row} target={target} lun={lun} of={rulesOf(target.name, config)} ask={ask} />
                      )),
                    )}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          <p class="muted small matrix-key">
            ● in use, ○ allowed, ◌ allowed from some addresses, – no access. Access is given by target: all LUNs of a target that are not
            restricted to some initiators come together.
          </p>
        </>
      )}
    </Card>
  );
}

interface CellProps {
  row: Row;
  target: Target;
  lun: Target["luns"][number];
  of: Rules | null;
  ask: Ask;
}

function MatrixCell({ row, target, lun, of, ask }: CellProps) {
  const state = stateOf(row, target, lun.lun, of);
  const mark = MARKS[state];
  const label = `${row.initiator}, LUN ${lun.lun} (${lun.volume}): ${state}`;
  const listed = of?.initiators?.includes(row.initiator) ?? false;
  const act = listed ? "deny" : state === "no access" ? "allow" : null;
  return (
    <td class={mark.class}>
      {act && may("operator") ? (
        <button
          type="button"
          class="cell"
          aria-label={`${label}. ${act === "deny" ? "Remove" : "Allow"} at this target`}
          onClick={() => ask({ what: act, target: target.name, initiator: row.initiator })}
        >
          {mark.text}
        </button>
      ) : (
        <span role="img" aria-label={label}>
          {mark.text}
        </span>
      )}
    </td>
  );
}

const REACH: Record<string, { tone: "ok" | "warn" | "quiet"; text: string }> = {
  named: { tone: "ok", text: "for those named" },
  everybody: { tone: "warn", text: "open to everybody" },
  "this-machine": { tone: "quiet", text: "this machine only" },
};

function TargetCard({ target, ask }: { target: Target; ask: Ask }) {
  const reach = REACH[target.for] ?? { tone: "quiet" as const, text: target.for };
  const name = target.name;
  return (
    <Card
      class="target"
      title={<span class="name">{name}</span>}
      actions={
        may("operator") && (
          <>
            <Button small icon="plus" label={`Allow an initiator at ${name}`} onClick={() => ask({ what: "add", target: name })}>
              Initiator
            </Button>
            <Button small icon="plus" label={`Add a CHAP user to ${name}`} onClick={() => ask({ what: "user", target: name, replace: null })}>
              CHAP user
            </Button>
            {may("administrator") && target.for === "this-machine" && (
              <Button small label={`Open ${name} to everybody`} onClick={() => ask({ what: "open", target: name })}>
                Open
              </Button>
            )}
            {may("administrator") && (
              <Button small kind="danger" label={`Delete ${name}`} onClick={() => ask({ what: "delete", target: name })}>
                Delete
              </Button>
            )}
          </>
        )
      }
    >
      <p>
        <Badge tone={reach.tone}>{reach.text}</Badge> {target.alias && <span class="muted">{target.alias} · </span>}
        {target.for !== "this-machine" && target.initiators && <>For {target.initiators}. </>}
        {target.nqn && (
          <>
            Over NVMe as <span class="name">{target.nqn}</span>, for {target.hosts}.{" "}
          </>
        )}
        <span class="muted">
          {plural(target.luns.length, "LUN")}, {plural(target.sessions, "session")}.
        </span>
      </p>
      {target.users.length > 0 && (
        <Table
          label={`CHAP users of ${name}`}
          rows={target.users}
          rowKey={(it) => it.name}
          columns={[
            { head: "CHAP user", names: true, cell: (it) => <span class="name">{it.name}</span> },
            { head: "Used by", cell: (it) => it.initiators },
            { head: "Secret in", cell: (it) => (it.secret === "file" ? (it.file ?? "a file") : `the ${it.secret}`) },
            {
              head: "Actions",
              quietHead: true,
              cell: (it) =>
                may("operator") && (
                  <div class="actions">
                    <Button small label={`New secret of ${it.name}`} onClick={() => ask({ what: "user", target: name, replace: it.name })}>
                      New secret
                    </Button>
                    <Button small kind="danger" label={`Remove ${it.name}`} onClick={() => ask({ what: "remove-user", target: name, user: it.name })}>
                      Remove
                    </Button>
                  </div>
                ),
            },
          ]}
        />
      )}
    </Card>
  );
}

interface DialogsProps {
  asking: Asking | null;
  close: () => void;
  shown: (it: { user: string; secret: string }) => void;
}

function Dialogs({ asking, close, shown }: DialogsProps) {
  if (!asking) return null;
  switch (asking.what) {
    case "allow":
      return <AllowDialog target={asking.target} initiator={asking.initiator} onClose={close} />;
    case "deny":
      return <DenyDialog target={asking.target} initiator={asking.initiator} onClose={close} />;
    case "add":
      return <AddInitiator target={asking.target} onClose={close} />;
    case "user":
      return <AddUser target={asking.target} replace={asking.replace} onClose={close} shown={shown} />;
    case "create":
      return <CreateTarget onClose={close} />;
    default: {
      const [title, verb, text, change, danger] = confirmation(asking);
      return (
        <ChangeDialog title={title} verb={verb} danger={danger} change={change} onClose={close} onDone={() => void targets.refresh()}>
          <p>{text}</p>
        </ChangeDialog>
      );
    }
  }
}

type Confirmed = Extract<Asking, { what: "remove-user" | "open" | "delete" }>;

function confirmation(it: Confirmed): [string, string, string, Change, boolean] {
  switch (it.what) {
    case "remove-user":
      return [
        `Remove the user ${it.user}`,
        "Remove",
        `${it.user} can no longer log in to ${it.target}, and its sessions end.`,
        { method: "DELETE", path: path`/targets/${it.target}/users/${it.user}`, forces: true, keeps: true },
        true,
      ];
    case "open":
      return [
        "Open to everybody",
        "Open",
        `Anyone who can reach a portal will be able to read and write the volumes of ${it.target}.`,
        { method: "POST", path: path`/targets/${it.target}/open` },
        true,
      ];
    case "delete":
      return [
        "Delete the target",
        "Delete",
        `${it.target} will be gone for its initiators. Its volumes stay.`,
        { method: "DELETE", path: path`/targets/${it.target}`, forces: true },
        true,
      ];
  }
}

function AddInitiator({ target, onClose }: { target: string; onClose: () => void }) {
  const name = useSignal("");
  const text = name.value.trim();
  const problem = initiatorProblem(text);
  return (
    <FormDialog
      title="Allow an initiator"
      verb="Allow"
      valid={problem === null}
      change={() => ({ method: "POST", path: path`/targets/${target}/initiators`, body: { initiators: [text] }, forces: true })}
      onClose={onClose}
      onDone={() => void targets.refresh()}
    >
      <p>
        It will see the LUNs of <span class="name">{target}</span>.
      </p>
      <TextField
        label="Name, address or network"
        error={text ? problem : null}
        hint="* stands for any characters. Names and addresses of a list work together: with both, an initiator needs one of each."
        placeholder="iqn.…"
        value={name.value}
        onInput={(value) => (name.value = value)}
      />
    </FormDialog>
  );
}

interface AddUserProps {
  target: string;
  replace: string | null;
  onClose: () => void;
  shown: (it: { user: string; secret: string }) => void;
}

function AddUser({ target, replace, onClose, shown }: AddUserProps) {
  const name = useSignal(replace ?? "");
  const secret = useSignal(newSecret());
  const user = name.value.trim();
  return (
    <FormDialog
      title={replace ? `A new secret for ${replace}` : "Add a CHAP user"}
      verb={replace ? "Set the secret" : "Add"}
      valid={user !== ""}
      change={() => ({
        method: "POST",
        path: path`/targets/${target}/users`,
        body: { name: user, secret: { text: secret.value }, initiators: [], replace: replace !== null },
        forces: true,
      })}
      onClose={onClose}
      onDone={() => {
        void targets.refresh();
        shown({ user, secret: secret.value });
      }}
    >
      <p>
        {replace
          ? "Sessions that have used the old secret end."
          : "From then on everybody who logs in to this target has to prove to know a secret."}{" "}
        The secret is generated, and shown once.
      </p>
      {!replace && (
        <TextField label="Name of the user" value={name.value} onInput={(value) => (name.value = value)} />
      )}
    </FormDialog>
  );
}

function CreateTarget({ onClose }: { onClose: () => void }) {
  const name = useSignal(`${authority(targets.data.value ?? [])}:`);
  const alias = useSignal("");
  const nvme = useSignal(false);
  const text = name.value.trim();
  const valid = /^(iqn|eui|naa)\.[a-z0-9.:-]+[a-z0-9]$/.test(text);
  return (
    <FormDialog
      title="New target"
      verb="Create"
      valid={valid}
      change={() => ({
        method: "POST",
        path: "/targets",
        body: { name: text, nvme: nvme.value, ...(alias.value.trim() ? { alias: alias.value.trim() } : {}) },
      })}
      onClose={onClose}
      onDone={() => void targets.refresh()}
    >
      <TextField
        label="iSCSI name"
        hint="Lower case letters, digits, “-”, “.” and “:”."
        value={name.value}
        onInput={(value) => (name.value = value)}
      />
      <TextField label="Alias" hint="For people; optional." value={alias.value} onInput={(value) => (alias.value = value)} />
      <Checkbox checked={nvme.value} onChange={(on) => (nvme.value = on)}>
        Serve it over NVMe, too
      </Checkbox>
      <p class="muted">
        <Icon name="info" /> It is for this machine only until an initiator or a user is added.
      </p>
    </FormDialog>
  );
}
