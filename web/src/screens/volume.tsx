/** One volume: what it is, its LUNs and snapshots, and what can be done with it. */

import { type Signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { path } from "../api/client";
import type { Fault, Portal, Snapshot, Target, Volume } from "../api/types";
import { duration, count, moment, plural, rate, size, word } from "../lib/format";
import { freeLun, isLoopback, volumeNameProblem } from "../lib/names";
import { bytesOf, inUnits } from "../lib/sizes";
import { go } from "../route";
import { groups, latest, may, portals, snapshots, targets, verdict, volumes } from "../state";
import { Badge, Button, Card, Empty, Facts, Loaded, Notice, SelectField, SizeField, TextField } from "../ui/basics";
import { type Change, ChangeDialog, FormDialog } from "../ui/change";
import { Table } from "../ui/table";
import { Title } from "../ui/title";
import { BindingView } from "./overview";
import { ConnectCard } from "./new-disk/connect";
import { Used, VolumeState } from "./volumes";

type Asking =
  | { what: "resize" | "limit" | "snapshot" | "map" | "delete" | Mending }
  | { what: "clone"; snapshot: string | null }
  | { what: "rollback" | "delete-snapshot"; snapshot: string }
  | { what: "unmap"; target: string; lun: number };

export function VolumeScreen({ name }: { name: string }) {
  useEffect(() => {
    for (const one of [volumes, snapshots, targets, portals, groups]) one.want();
  }, []);
  return (
    <Loaded of={volumes}>
      {(all) => {
        const volume = all.find((it) => it.name === name);
        return volume ? <Shown volume={volume} /> : <Gone name={name} />;
      }}
    </Loaded>
  );
}

const BACK = { to: "#/volumes", label: "Volumes" };

function Gone({ name }: { name: string }) {
  return (
    <>
      <Title title={name} back={BACK} />
      <Empty title={`There is no volume ${name}.`} />
    </>
  );
}

function Shown({ volume }: { volume: Volume }) {
  const asking = useSignal<Asking | null>(null);
  const ask = (what: Asking): void => {
    asking.value = what;
  };
  return (
    <>
      <Title
        title={volume.name}
        back={BACK}
        actions={
          may("operator") && (
            <>
              <Button onClick={() => ask({ what: "resize" })}>Resize</Button>
              <Button onClick={() => ask({ what: "limit" })}>Limit</Button>
              <Button onClick={() => ask({ what: "snapshot" })}>Snapshot</Button>
              <Button onClick={() => ask({ what: "clone", snapshot: null })}>Clone</Button>
              {may("administrator") && (
                <Button kind="danger" onClick={() => ask({ what: "delete" })}>
                  Delete
                </Button>
              )}
            </>
          )
        }
      />
      <Faults volume={volume} ask={ask} />
      <div class="columns even">
        <Card title="Volume">
          <Facts
            of={[
              ["State", <VolumeState volume={volume} />],
              ["Size", volume.size_bytes > 0 ? size(volume.size_bytes) : "not known"],
              ["Used", <Used volume={volume} />],
              ["Backend", volume.backend],
              ...(volume.path ? [["Path", <span class="name">{volume.path}</span>] as [string, preact.JSX.Element]] : []),
              ["Block size", `${volume.block_size} bytes`],
              ["Write cache", word(volume.write_cache)],
              ...volume.limits.map((it): [string, string] => [
                `Limit of ${it.on === "all" ? "all" : `${it.on}s`}`,
                it.bytes_per_s ? rate(it.bytes_per_s) : `${count(it.operations_per_s ?? 0)} IOPS`,
              ]),
              ["Sessions", volume.sessions],
            ]}
          />
        </Card>
        <Now name={volume.name} />
      </div>
      <Luns volume={volume} ask={ask} />
      <Snapshots volume={volume} ask={ask} />
      <Connect volume={volume} />
      <Dialogs volume={volume} asking={asking} />
    </>
  );
}

type Ask = (what: Asking) => void;

type Mending = "reopen" | "look-again" | "recreate" | "adopt";

const MENDINGS: Record<Mending, { label: string; role: "operator" | "administrator" }> = {
  reopen: { label: "Reopen", role: "operator" },
  "look-again": { label: "Look again", role: "administrator" },
  recreate: { label: "Create it again, empty", role: "administrator" },
  adopt: { label: "Accept what is there", role: "administrator" },
};

/** What helps against which fault: docs/storage.md, docs/storage-failures.md. Against all others: to look again. */
const FAULT_FIXES: Record<string, Mending[]> = {
  "write-back-failed": ["reopen"],
  "storage-missing": ["look-again", "recreate"],
  "storage-replaced": ["look-again", "adopt"],
  "storage-cut-short": ["look-again", "adopt"],
};

function Faults({ volume, ask }: { volume: Volume; ask: Ask }) {
  return (
    <>
      {(volume.faults ?? []).map((fault: Fault) => (
        <Notice key={fault.state} tone="bad" title={`${word(fault.state)}, since ${moment(fault.since)}`}>
          <p>
            {volume.name} {fault.text}
          </p>
          <div class="actions">
            {(FAULT_FIXES[fault.state] ?? (["look-again"] as const))
              .filter((it) => may(MENDINGS[it].role))
              .map((it) => (
                <Button key={it} small onClick={() => ask({ what: it })}>
                  {MENDINGS[it].label}
                </Button>
              ))}
          </div>
        </Notice>
      ))}
      {volume.erasure && (
        <Notice tone="warn" title={word(volume.erasure.state)}>
          <p>
            {volume.erasure.progress === null
              ? "It has to be repeated by an initiator before the volume serves anything."
              : `${Math.round(volume.erasure.progress * 100)} % done. The volume serves nothing else meanwhile.`}
          </p>
        </Notice>
      )}
    </>
  );
}

function Now({ name }: { name: string }) {
  const rates = latest.value?.rates.volumes.find((it) => it.name === name);
  const binding = verdict.value?.volumes.find((it) => it.name === name);
  return (
    <Card title="Now">
      <Facts
        of={[
          ["Reads", rates ? `${rate(rates.read.bytes_per_second)}, ${count(rates.read.ops_per_second)} IOPS` : "–"],
          ["p99 of reads", duration(rates?.read.p99_us)],
          ["Writes", rates ? `${rate(rates.write.bytes_per_second)}, ${count(rates.write.ops_per_second)} IOPS` : "–"],
          ["p99 of writes", duration(rates?.write.p99_us)],
          ["In flight", rates ? rates.commands_in_flight : "–"],
        ]}
      />
      {binding && <BindingView binding={binding} />}
    </Card>
  );
}

function Luns({ volume, ask }: { volume: Volume; ask: Ask }) {
  const map = may("operator") && (
    <Button small icon="plus" onClick={() => ask({ what: "map" })}>
      Map to a target
    </Button>
  );
  return (
    <Card title="LUNs" actions={volume.luns.length > 0 && map}>
      {volume.luns.length === 0 ? (
        <Empty title="No target serves this volume." action={map}>
          <p>Map it to a target, and the initiators of the target see it.</p>
        </Empty>
      ) : (
        <Table
          label="LUNs"
          rows={volume.luns}
          rowKey={(it) => `${it.target} ${it.lun}`}
          columns={[
            { head: "Target", names: true, cell: (it) => <span class="name">{it.target}</span> },
            { head: "LUN", figures: true, cell: (it) => it.lun },
            {
              head: "Actions",
              quietHead: true,
              cell: (it) =>
                may("operator") && (
                  <Button small onClick={() => ask({ what: "unmap", ...it })} label={`Unmap LUN ${it.lun} of ${it.target}`}>
                    Unmap
                  </Button>
                ),
            },
          ]}
        />
      )}
    </Card>
  );
}

function Snapshots({ volume, ask }: { volume: Volume; ask: Ask }) {
  const take = may("operator") && (
    <Button small icon="plus" onClick={() => ask({ what: "snapshot" })}>
      Take a snapshot
    </Button>
  );
  return (
    <Loaded of={snapshots}>
      {(all) => {
        const own = all.filter((it) => it.volume === volume.name).sort((a, b) => b.created - a.created);
        return (
          <Card title="Snapshots" actions={own.length > 0 && take}>
            {own.length === 0 ? (
              <Empty title="There are no snapshots." action={take}>
                <p>A snapshot keeps the present content, while the volume goes on.</p>
              </Empty>
            ) : (
              <SnapshotTable snapshots={own} ask={ask} />
            )}
          </Card>
        );
      }}
    </Loaded>
  );
}

function SnapshotTable({ snapshots: own, ask }: { snapshots: Snapshot[]; ask: Ask }) {
  return (
    <Table
      label="Snapshots"
      rows={own}
      rowKey={(it) => it.snapshot}
      columns={[
        { head: "Snapshot", names: true, cell: (it) => <span class="name">{it.snapshot}</span> },
        { head: "Taken", cell: (it) => moment(it.created) },
        { head: "Size", figures: true, cell: (it) => size(it.size_bytes) },
        {
          head: "Actions",
          quietHead: true,
          cell: ({ snapshot }) =>
            may("operator") && (
              <div class="actions">
                <Button small label={`Clone ${snapshot}`} onClick={() => ask({ what: "clone", snapshot })}>
                  Clone
                </Button>
                {may("administrator") && (
                  <Button small label={`Roll back to ${snapshot}`} onClick={() => ask({ what: "rollback", snapshot })}>
                    Roll back
                  </Button>
                )}
                <Button small kind="danger" label={`Delete ${snapshot}`} onClick={() => ask({ what: "delete-snapshot", snapshot })}>
                  Delete
                </Button>
              </div>
            ),
        },
      ]}
    />
  );
}

/** How the first LUN of the volume is attached. */
function Connect({ volume }: { volume: Volume }) {
  const lun = volume.luns[0];
  const all: Portal[] = (portals.data.value ?? []).filter((it) => it.tcp || it.iser);
  const portal = all.find((it) => !isLoopback(it.address)) ?? all[0];
  const target: Target | undefined = targets.data.value?.find((it) => it.name === lun?.target);
  if (!lun || !portal) return null;
  const user = target?.users[0];
  return (
    <ConnectCard
      of={{
        volume: volume.name,
        target: lun.target,
        lun: lun.lun,
        portal: portal.address,
        sizeBytes: volume.size_bytes,
        chap: user ? { name: user.name, secret: "SECRET" } : undefined,
      }}
    />
  );
}

function Dialogs({ volume, asking }: { volume: Volume; asking: Signal<Asking | null> }) {
  const it = asking.value;
  const close = (): void => {
    asking.value = null;
  };
  const done = (): void => {
    for (const one of [volumes, snapshots, targets]) void one.refresh();
  };
  if (!it) return null;
  const { name } = volume;
  switch (it.what) {
    case "resize":
      return <Resize volume={volume} onClose={close} onDone={done} />;
    case "limit":
      return <LimitTo volume={volume} onClose={close} onDone={done} />;
    case "snapshot":
      return <TakeSnapshot volume={volume} onClose={close} onDone={done} />;
    case "map":
      return <MapTo volume={volume} onClose={close} onDone={done} />;
    case "clone":
      return <Clone volume={volume} snapshot={it.snapshot} onClose={close} onDone={done} />;
    case "delete":
      return <Delete volume={volume} onClose={close} onDone={done} />;
    default: {
      const [title, verb, text, change, type] = confirmation(name, it as Confirmed);
      return (
        <ChangeDialog title={title} verb={verb} danger={it.what !== "look-again"} change={change} {...(type ? { type } : {})} onClose={close} onDone={done}>
          <p>{text}</p>
        </ChangeDialog>
      );
    }
  }
}

type Confirmed =
  | { what: Mending }
  | { what: "rollback" | "delete-snapshot"; snapshot: string }
  | { what: "unmap"; target: string; lun: number };

/** Title, button, what it costs, the request, and what is to be typed. */
function confirmation(name: string, it: Confirmed): [string, string, string, Change, string?] {
  switch (it.what) {
    case "unmap":
      return [
        "Unmap the LUN",
        "Unmap",
        `LUN ${it.lun} of ${it.target} will be gone for its initiators. The volume ${name} stays.`,
        { method: "DELETE", path: path`/targets/${it.target}/luns/${it.lun}`, forces: true },
      ];
    case "rollback":
      return [
        `Roll back to ${it.snapshot}`,
        "Roll back",
        `${name} will hold what it held at ${it.snapshot}. Everything written since is lost for good: take a snapshot first to keep it. Stop its users first: they do not expect the content to change.`,
        { method: "POST", path: path`/volumes/${name}/rollback`, body: { snapshot: it.snapshot }, forces: true },
        name,
      ];
    case "delete-snapshot":
      return [
        `Delete the snapshot ${it.snapshot}`,
        "Delete",
        `What ${name} held then can no longer be had. The volume itself stays as it is.`,
        { method: "DELETE", path: path`/volumes/${name}/snapshots/${it.snapshot}` },
      ];
    case "reopen":
      return [
        "Reopen the storage",
        "Reopen",
        `lunet opens the storage of ${name} again. After a failed write-back, what was written and not flushed before it may be lost: check the file systems on it.`,
        { method: "POST", path: path`/volumes/${name}/reopen`, blind: true },
      ];
    case "look-again":
      return [
        "Look for the storage again",
        "Look again",
        `lunet reads its configuration file again, and serves ${name} if its storage is there now. Initiators are told that the disk is ready.`,
        { method: "POST", path: "/config/apply", body: {}, forces: true, keeps: true },
      ];
    case "recreate":
      return [
        "Create the file again",
        "Create it again",
        `${name} will be served again, empty. If its file is only out of place, put it back instead.`,
        { method: "POST", path: path`/volumes/${name}/recreate`, blind: true },
        name,
      ];
    case "adopt":
      return [
        "Accept what is there",
        "Accept",
        `${name} will be served with the file or device that is in the place of its own.`,
        { method: "POST", path: path`/volumes/${name}/adopt`, blind: true },
        name,
      ];
  }
}

interface FormProps {
  volume: Volume;
  onClose: () => void;
  onDone: () => void;
}

function Resize({ volume, onClose, onDone }: FormProps) {
  const begin = inUnits(volume.size_bytes);
  const number = useSignal(begin.number);
  const unit = useSignal(begin.unit);
  const device = volume.backend === "block";
  const bytes = bytesOf(number.value, unit.value);
  const problem = device || (bytes !== null && bytes > volume.size_bytes) ? null : `It has ${size(volume.size_bytes)}; a volume only grows.`;
  return (
    <FormDialog
      title={`Resize ${volume.name}`}
      verb="Resize"
      valid={problem === null}
      change={() => ({ method: "PATCH", path: path`/volumes/${volume.name}`, body: { size: device ? null : bytes } })}
      onClose={onClose}
      onDone={onDone}
    >
      {device ? (
        <p>The volume takes the size that its device has by now.</p>
      ) : (
        <SizeField
          label="New size"
          error={number.value === begin.number && unit.value === begin.unit ? null : problem}
          hint={`Now ${size(volume.size_bytes)}.`}
          number={number.value}
          unit={unit.value}
          set={(change) => {
            number.value = change.number ?? number.value;
            unit.value = change.unit ?? unit.value;
          }}
        />
      )}
      <p class="muted">Sessions go on. Initiators are told of the new size; most have to rescan, and the file system has to be grown there.</p>
    </FormDialog>
  );
}

/** What is in a field: 0 if nothing is, null if it is no number. */
function numberIn(text: string): number | null {
  if (text.trim() === "") return 0;
  const value = Number(text.trim().replace(",", "."));
  return Number.isFinite(value) && value >= 0 ? value : null;
}

/** What is in a field, in the unit that is kept, so many of which are one of the field's: null if it is no whole number of them. */
function wholeIn(text: string, each: number): number | null {
  const kept = (numberIn(text) ?? NaN) * each;
  // Decimals are not exact in binary.
  return Math.abs(kept - Math.round(kept)) < 1e-6 ? Math.round(kept) : null;
}

function LimitTo({ volume, onClose, onDone }: FormProps) {
  const own = volume.own_limits ?? {};
  const iops = useSignal(own.iops ? String(own.iops) : "");
  const bandwidth = useSignal(own.bytes_per_s ? String(own.bytes_per_s / 2 ** 20) : "");
  const before = own.burst_ms ? String(own.burst_ms / 1000) : "";
  const burst = useSignal(before);
  const weight = useSignal(own.weight ? String(own.weight) : "");
  const target = useSignal(own.latency_target_us ? String(own.latency_target_us / 1000) : "");
  const [operations, share] = [iops, weight].map((it) => wholeIn(it.value, 1));
  const bytes = wholeIn(bandwidth.value, 2 ** 20);
  const milliseconds = wholeIn(burst.value, 1000);
  const microseconds = wholeIn(target.value, 1000);
  const limited = (operations ?? 0) > 0 || (bytes ?? 0) > 0;
  // One that was there goes with the last limit.
  const alone = !limited && (milliseconds ?? 0) > 0 && burst.value !== before;
  const valid = !alone && [operations, bytes, milliseconds, share, microseconds].every((it) => it !== null);
  return (
    <FormDialog
      title={`Limit ${volume.name}`}
      verb="Limit"
      valid={valid}
      change={() => ({
        method: "PATCH",
        path: path`/volumes/${volume.name}/limits`,
        body: {
          iops: operations,
          bytes_per_s: bytes,
          burst_ms: limited ? milliseconds : 0,
          weight: share,
          latency_target_us: microseconds,
        },
      })}
      onClose={onClose}
      onDone={onDone}
    >
      <TextField
        label="Operations per second"
        error={operations === null ? "Write a whole number." : null}
        hint="Empty: no limit. An operation counts as one for each 256 KiB."
        inputMode="numeric"
        value={iops.value}
        onInput={(value) => (iops.value = value)}
      />
      <TextField
        label="MiB per second"
        error={bytes === null ? "Write a number that is whole in bytes, such as 200 or 0.5." : null}
        hint="Empty: no limit."
        inputMode="decimal"
        value={bandwidth.value}
        onInput={(value) => (bandwidth.value = value)}
      />
      <TextField
        label="Burst, in seconds"
        error={milliseconds === null ? "Write a number with three decimals at most." : alone ? "It is the burst of a limit: write operations or MiB per second." : null}
        hint="What was not used of so long a time may be used at once. Empty: 0.1."
        inputMode="decimal"
        value={burst.value}
        onInput={(value) => (burst.value = value)}
      />
      <TextField
        label="Weight"
        error={share === null ? "Write a whole number." : null}
        hint="Its share of the storage, compared with other volumes on the same. Empty: 100."
        inputMode="numeric"
        value={weight.value}
        onInput={(value) => (weight.value = value)}
      />
      <TextField
        label="Latency target, in milliseconds"
        error={microseconds === null ? "Write a number with three decimals at most." : null}
        hint="Volumes on the same storage without a target give way if its requests take longer there. Empty: none."
        inputMode="decimal"
        value={target.value}
        onInput={(value) => (target.value = value)}
      />
      <p class="muted">It counts at once, for all sessions of the volume together. Operations above a limit wait; initiators give up what waits too long.</p>
    </FormDialog>
  );
}

function TakeSnapshot({ volume, onClose, onDone }: FormProps) {
  const name = useSignal(new Date().toISOString().slice(0, 16).replace(/[T:]/g, "-"));
  const taken = (snapshots.data.value ?? []).filter((it) => it.volume === volume.name).map((it) => it.snapshot);
  const problem = taken.includes(name.value) ? `There is a snapshot ${name.value} already.` : null;
  return (
    <FormDialog
      title={`Snapshot of ${volume.name}`}
      verb="Take the snapshot"
      valid={name.value !== "" && problem === null}
      change={() => ({ method: "POST", path: path`/volumes/${volume.name}/snapshots`, body: { snapshot: name.value } })}
      onClose={onClose}
      onDone={onDone}
    >
      <TextField
        label="Name"
        error={problem}
        hint="It holds what the volume holds now, as after a power cut. Sessions go on."
        value={name.value}
        onInput={(value) => (name.value = value.trim())}
      />
    </FormDialog>
  );
}

/** What becomes of a clone, beside that it is there. */
function whereAClone(volume: Volume): string {
  const group = (groups.data.value ?? []).find((it) => it.volumes.some((one) => one.name === volume.name));
  if (group === undefined) return "It is no LUN until it is mapped.";
  return group.shared
    ? `It becomes a volume of group ${group.name} too, at the next free LUN of its target, at all gateways.`
    : `Its image is made. To be a LUN it needs a place in the configuration of each gateway of group ${group.name}.`;
}

function Clone({ volume, snapshot, onClose, onDone }: FormProps & { snapshot: string | null }) {
  const name = useSignal(`${volume.name}-clone`);
  const problem = volumeNameProblem(name.value, (volumes.data.value ?? []).map((it) => it.name));
  return (
    <FormDialog
      title={`Clone ${snapshot ? `${volume.name}@${snapshot}` : volume.name}`}
      verb="Clone"
      valid={problem === null}
      change={() => ({
        method: "POST",
        path: path`/volumes/${volume.name}/clone`,
        body: { name: name.value, ...(snapshot ? { snapshot } : {}) },
      })}
      onClose={onClose}
      onDone={onDone}
    >
      <TextField
        label="Name of the new volume"
        error={problem}
        hint={whereAClone(volume)}
        value={name.value}
        onInput={(value) => (name.value = value.trim())}
      />
    </FormDialog>
  );
}

function MapTo({ volume, onClose, onDone }: FormProps) {
  const all = (targets.data.value ?? []).filter((it) => !it.luns.some((lun) => lun.volume === volume.name));
  const target = useSignal(all[0]?.name ?? "");
  const chosen = all.find((it) => it.name === target.value);
  const lun = useSignal<string | null>(null);
  const number = lun.value ?? String(freeLun(chosen));
  const valid = chosen !== undefined && /^\d{1,5}$/.test(number) && Number(number) <= 16383;
  if (all.length === 0) {
    return (
      <FormDialog title="Map to a target" verb="Map" valid={false} change={() => ({ method: "PUT", path: "" })} onClose={onClose}>
        <p>There is no target that does not serve this volume already. Create one under Access.</p>
      </FormDialog>
    );
  }
  return (
    <FormDialog
      title={`Map ${volume.name} to a target`}
      verb="Map"
      valid={valid}
      change={() => ({
        method: "PUT",
        path: path`/targets/${target.value}/luns/${Number(number)}`,
        body: { volume: volume.name },
        forces: true,
      })}
      onClose={onClose}
      onDone={onDone}
    >
      <SelectField
        label="Target"
        hint={chosen ? `For ${chosen.for === "this-machine" ? "this machine only" : (chosen.initiators ?? "")}.` : undefined}
        value={target.value}
        options={all.map((it) => ({ value: it.name }))}
        onInput={(value) => (target.value = value)}
      />
      <TextField
        label="LUN"
        hint="Give a volume the same LUN for every host."
        inputMode="numeric"
        value={number}
        onInput={(value) => (lun.value = value)}
      />
    </FormDialog>
  );
}

function Delete({ volume, onClose, onDone }: FormProps) {
  const keep = useSignal(false);
  const device = volume.backend === "block";
  const image = volume.backend === "rbd";
  const keeps = keep.value || device || image;
  return (
    <ChangeDialog
      title={`Delete ${volume.name}`}
      verb={keeps ? "Delete the volume" : "Delete the volume and its data"}
      danger
      change={{ method: "DELETE", path: path`/volumes/${volume.name}`, query: { keep_data: keep.value }, forces: true }}
      type={volume.name}
      onClose={onClose}
      onDone={() => {
        onDone();
        go("#/volumes");
      }}
    >
      <p>
        {volume.luns.length === 1 ? "1 LUN goes" : `${volume.luns.length} LUNs go`} with it.{" "}
        {volume.snapshots > 0 && !keeps && `${plural(volume.snapshots, "snapshot")} must be deleted first. `}
        {device ? (
          <>The data on the device {volume.path} is kept.</>
        ) : image ? (
          <>Its image is kept in the cluster.</>
        ) : keep.value ? (
          <>Its file is kept: {volume.path}.</>
        ) : (
          <strong>Its data{volume.used_bytes !== null ? ` (${size(volume.used_bytes)})` : ""} is lost for good.</strong>
        )}
      </p>
      {volume.sessions > 0 && (
        <p>
          <Badge tone="warn">in use</Badge> {plural(volume.sessions, "session")} can see it.
        </p>
      )}
      {volume.backend === "file" && (
        <label class="check inline">
          <input type="checkbox" checked={keep.value} onChange={(event) => (keep.value = event.currentTarget.checked)} /> Keep its file
        </label>
      )}
    </ChangeDialog>
  );
}
