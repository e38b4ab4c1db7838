/** The one form for a new disk. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Facts, Portal, Target, Volume } from "../../api/types";
import { PLATFORM_NAMES, PLATFORMS, type Platform, WHERE_NAME } from "../../lib/commands";
import {
  freeLun,
  hostPort,
  initiatorProblem,
  isAnyAddress,
  isLoopback,
  newSecret,
  targetName,
  volumeNameProblem,
} from "../../lib/names";
import { bytesOf } from "../../lib/sizes";
import { plural, size } from "../../lib/format";
import { facts, may, portals, targets, volumes } from "../../state";
import { Button, Card, Checkbox, Choice, Field, Loaded, NeedsRole, Notice, SelectField, SizeField, TextField } from "../../ui/basics";
import { usedBy } from "../first-start";
import type { Backend, DiskPlan } from "./run";

type Proof = "name" | "chap" | "both";

/** Which way of access is the simplest for each. */
const USUAL: Record<Platform, Proof> = {
  esxi: "name",
  proxmox: "name",
  libvirt: "name",
  linux: "name",
  windows: "chap",
  kubernetes: "chap",
};

export interface Asked {
  plan: DiskPlan;
  platform: Platform;
  /** Address and port for the commands. */
  portal: string;
}

interface Values {
  name: string;
  number: string;
  unit: string;
  backend: Backend;
  path: string;
  image: string;
  cephUser: string;
  cephKeyring: string;
  /** The image is to be made. */
  newImage: boolean;
  platform: Platform;
  proof: Proof | null;
  initiator: string | null;
  user: string | null;
  target: string;
  portal: string | null;
  full: boolean;
  blockSize: string;
  stable: boolean | null;
}

const BEGIN: Values = {
  name: "",
  number: "40",
  unit: "GiB",
  backend: "file",
  path: "",
  image: "rbd://rbd/",
  cephUser: "",
  cephKeyring: "",
  newImage: false,
  platform: "linux",
  proof: null,
  initiator: null,
  user: null,
  target: "",
  portal: null,
  full: false,
  blockSize: "",
  stable: null,
};

/** Where initiators may come in: portals, addresses of portals for all of them, and addresses without a portal yet. */
interface Entry {
  address: string;
  isNew: boolean;
  label: string;
}

function entries(all: Portal[], of: Facts | undefined): Entry[] {
  const served = all.filter((portal) => portal.tcp || portal.iser);
  const own = (of?.nics ?? []).flatMap((nic) => nic.addresses.map((it) => it.split("/")[0]));
  const reachable = own.filter((it) => !it.startsWith("fe80"));
  const written = (host: string, port: string): string => (host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`);
  const out: Entry[] = [];
  for (const portal of served) {
    if (!isAnyAddress(portal.address)) {
      const only = isLoopback(portal.address) ? " (this machine only)" : "";
      out.push({ address: portal.address, isNew: false, label: portal.address + only });
      continue;
    }
    const { host, port } = hostPort(portal.address);
    for (const it of reachable.filter((one) => host === "::" || !one.includes(":"))) {
      out.push({ address: written(it, port), isNew: false, label: written(it, port) });
    }
  }
  const covered = new Set(out.map((entry) => hostPort(entry.address).host));
  if (may("administrator")) {
    for (const it of reachable.filter((one) => !covered.has(one))) {
      out.push({ address: written(it, "3260"), isNew: true, label: `${written(it, "3260")} (lunet will listen here)` });
    }
  }
  return out;
}

/** The entry that other machines can reach comes first. */
function usualEntry(all: Entry[]): Entry | undefined {
  return all.find((it) => !isLoopback(it.address)) ?? all[0];
}

export function DiskForm({ onSubmit }: { onSubmit: (asked: Asked) => void }) {
  useEffect(() => {
    for (const one of [volumes, targets, portals, facts]) one.want();
  }, []);
  if (!may("operator")) return <NeedsRole role="operator" />;
  return (
    <Loaded of={volumes}>
      {(allVolumes) => (
        <Loaded of={targets}>
          {(allTargets) => (
            <Loaded of={portals}>
              {(allPortals) => (
                <Fields volumes={allVolumes} targets={allTargets} portals={allPortals} onSubmit={onSubmit} />
              )}
            </Loaded>
          )}
        </Loaded>
      )}
    </Loaded>
  );
}

interface FieldsProps {
  volumes: Volume[];
  targets: Target[];
  portals: Portal[];
  onSubmit: (asked: Asked) => void;
}

/** What the values come to, with the defaults in their places. */
function resolve(v: Values, props: FieldsProps) {
  const all = entries(props.portals, facts.data.value);
  const entry = all.find((it) => it.address === v.portal) ?? usualEntry(all);
  const existing = props.targets.find((target) => target.name === v.target);
  const lower = v.name.toLowerCase().replaceAll(/[_.]/g, "-");
  return {
    entries: all,
    entry,
    existing,
    proof: v.proof ?? USUAL[v.platform],
    initiator: v.initiator ?? (v.platform === "libvirt" && v.name ? `iqn.2026-11.local.example:${lower}` : ""),
    user: v.user ?? v.name.toLowerCase(),
    stable: v.stable ?? v.platform === "esxi",
    target: existing?.name ?? targetName(v.name || "disk", props.targets),
  };
}

type Resolved = ReturnType<typeof resolve>;
type Problems = Partial<Record<"name" | "size" | "path" | "image" | "initiator" | "user" | "blockSize" | "portal", string | null>>;

/** Whether the disk gets a size: a device and an image that is there have their own. */
function isSized(v: Values): boolean {
  return v.backend === "rbd" ? v.newImage : v.backend !== "block";
}

function check(v: Values, r: Resolved, props: FieldsProps): Problems {
  const byName = !r.existing && r.proof !== "chap";
  const byChap = !r.existing && r.proof !== "name";
  return {
    name: volumeNameProblem(v.name, props.volumes.map((it) => it.name)),
    size: isSized(v) && bytesOf(v.number, v.unit) === null ? "Give a size above 0." : null,
    image: v.backend === "rbd" && !/^rbd:\/\/[^/\s]+(\/[^/\s]+){1,2}$/.test(v.image.trim()) ? "Give pool and image, such as rbd://rbd/vm1." : null,
    path: v.backend === "block" && !v.path.startsWith("/") ? "Give the path of the device, such as /dev/zvol/tank/vm1." : null,
    initiator: byName ? initiatorProblem(r.initiator.trim()) : null,
    user: byChap && !r.user.trim() ? "Give the user a name." : null,
    blockSize: v.blockSize === "4096" && v.platform === "esxi" ? "ESXi does not accept blocks of 4096 bytes." : null,
    portal: r.entry ? null : "lunet has no portal for iSCSI: add one in the configuration.",
  };
}

/** The image, and by whom its cluster is used. */
function imageOf(v: Values): Pick<DiskPlan["volume"], "image" | "ceph_user" | "ceph_keyring"> {
  const [user, keyring] = [v.cephUser.trim(), v.cephKeyring.trim()];
  return { image: v.image.trim(), ...(user ? { ceph_user: user } : {}), ...(keyring ? { ceph_keyring: keyring } : {}) };
}

function planOf(v: Values, r: Resolved): DiskPlan {
  const byName = !r.existing && r.proof !== "chap";
  const byChap = !r.existing && r.proof !== "name";
  return {
    volume: {
      name: v.name,
      backend: v.backend,
      size: isSized(v) ? bytesOf(v.number, v.unit) : null,
      path: v.backend === "block" ? v.path.trim() : null,
      ...(v.backend === "rbd" ? imageOf(v) : {}),
      full: v.backend === "file" && v.full,
      block_size: v.blockSize ? Number(v.blockSize) : null,
      write_through: r.stable && v.backend !== "memory",
    },
    newPortal: r.entry?.isNew ? r.entry.address : null,
    target: { name: r.target, isNew: !r.existing },
    lun: freeLun(r.existing),
    initiator: byName ? r.initiator.trim() : null,
    user: byChap ? { name: r.user.trim(), secret: newSecret() } : null,
  };
}

function Fields(props: FieldsProps) {
  const values = useSignal<Values>(BEGIN);
  const tried = useSignal(false);
  const v = values.value;
  const r = resolve(v, props);
  const problems = check(v, r, props);
  const set = (change: Partial<Values>): void => {
    values.value = { ...values.value, ...change };
  };
  const shown = (what: keyof Problems): string | null | undefined => (tried.value ? problems[what] : null);

  const submit = (event: Event): void => {
    event.preventDefault();
    tried.value = true;
    if (Object.values(problems).some(Boolean)) {
      // After the messages are there: the first field that is wrong.
      requestAnimationFrame(() => document.querySelector<HTMLElement>('[aria-invalid="true"]')?.focus());
      return;
    }
    props.onSubmit({ plan: planOf(v, r), platform: v.platform, portal: r.entry?.address ?? "" });
  };

  return (
    <form class="new-disk" onSubmit={submit} noValidate>
      <Card title="Disk">
        <div class="fields">
          <TextField label="Name" error={shown("name")} required value={v.name} onInput={(value) => set({ name: value.trim() })} />
          {v.backend === "block" && <DevicePath value={v.path} error={shown("path")} onChange={(path) => set({ path })} />}
          {v.backend === "rbd" && <ImageFields v={v} error={shown("image")} set={set} />}
          {isSized(v) && <SizeField label="Size" error={shown("size")} number={v.number} unit={v.unit} set={set} />}
        </div>
        <Choice
          legend="Stored in"
          name="backend"
          value={v.backend}
          onChange={(backend) => set({ backend })}
          options={[
            { value: "file", label: "A file", hint: "in lunet’s data directory" },
            { value: "block", label: "A block device", hint: "a ZFS volume, a drive" },
            { value: "rbd", label: "A cluster of Ceph", hint: "an RBD image" },
            { value: "memory", label: "Memory", hint: "lost when lunet stops" },
          ]}
        />
      </Card>
      <Card title="For whom">
        <Choice
          legend="What will use it"
          name="platform"
          value={v.platform}
          onChange={(platform) => set({ platform })}
          options={PLATFORMS.map((it) => ({ value: it, label: PLATFORM_NAMES[it] }))}
        />
        <AccessFields v={v} r={r} props={props} set={set} shown={shown} />
      </Card>
      <More v={v} r={r} props={props} set={set} shown={shown} />
      <div class="form-foot">
        <p class="muted">{summary(v, r)}</p>
        <Button submit kind="primary">
          Create the disk
        </Button>
      </div>
    </form>
  );
}

function summary(v: Values, r: Resolved): string {
  const bytes = bytesOf(v.number, v.unit);
  const kept = { block: v.path || "a device", rbd: v.newImage ? "" : v.image }[v.backend as string];
  const what = kept || (bytes ? size(bytes) : "");
  const who = r.existing ? "for those who may use the target" : r.proof === "name" ? "for one initiator" : "with CHAP";
  return `${v.name || "The disk"}, ${what}, LUN ${freeLun(r.existing)} of ${r.target}, ${who}.`;
}

/** Devices that nobody seems to use. */
function candidates(of: Facts | undefined): { path: string; about: string }[] {
  const zvols = (of?.zfs?.zvols ?? []).map((it) => ({ path: `/dev/zvol/${it.name}`, about: `ZFS volume, ${size(it.volsize_bytes)}` }));
  const free = (of?.drives ?? []).filter((it) => !it.remote && usedBy(it) === null);
  return [...zvols, ...free.map((it) => ({ path: `/dev/${it.name}`, about: `${it.model ?? "drive"}, ${size(it.size_bytes)}` }))];
}

function DevicePath({ value, error, onChange }: { value: string; error: string | null | undefined; onChange: (path: string) => void }) {
  const found = candidates(facts.data.value);
  return (
    <TextField
      label="Device"
      error={error}
      hint={found.length > 0 ? `${plural(found.length, "free device")} found: the field suggests them.` : "The size is that of the device."}
      placeholder="/dev/zvol/tank/vm1"
      value={value}
      onInput={onChange}
      suggestions={found.map((it) => ({ value: it.path, label: it.about }))}
    />
  );
}

function ImageFields({ v, error, set }: { v: Values; error: string | null | undefined; set: PartProps["set"] }) {
  return (
    <>
      <TextField label="Image" error={error} hint="rbd://POOL/IMAGE or rbd://POOL/NAMESPACE/IMAGE" placeholder="rbd://rbd/vm1" value={v.image} onInput={(image) => set({ image })} />
      <TextField label="User of the cluster" hint="Without client.; admin if left out." value={v.cephUser} onInput={(cephUser) => set({ cephUser })} />
      <TextField label="Keyring" hint="File on the server with the user’s key; left out, where Ceph looks for it." placeholder="/etc/ceph/ceph.client.lunet.keyring" value={v.cephKeyring} onInput={(cephKeyring) => set({ cephKeyring })} />
      <Checkbox checked={v.newImage} onChange={(newImage) => set({ newImage })}>
        Make this image
      </Checkbox>
    </>
  );
}

interface PartProps {
  v: Values;
  r: Resolved;
  props: FieldsProps;
  set: (change: Partial<Values>) => void;
  shown: (what: keyof Problems) => string | null | undefined;
}

function AccessFields({ v, r, props, set, shown }: PartProps) {
  const where = WHERE_NAME[v.platform];
  if (r.existing) {
    return (
      <Notice tone="quiet" title={`Access is that of ${r.existing.name}`}>
        <p>
          {r.existing.for === "this-machine"
            ? "The target is for this machine only."
            : `For ${r.existing.initiators ?? "those that it names"}${r.existing.users.length > 0 ? `, with CHAP as ${r.existing.users.map((it) => it.name).join(", ")}` : ""}.`}{" "}
          It can be changed under <a href="#/access">Access</a>.
        </p>
      </Notice>
    );
  }
  return (
    <>
      <Choice
        legend="Who may use it"
        name="proof"
        value={r.proof}
        onChange={(proof) => set({ proof })}
        options={[
          { value: "name", label: "One initiator", hint: "by its name" },
          { value: "chap", label: "Who has the secret", hint: "CHAP; the secret is generated" },
          { value: "both", label: "Both", hint: "this initiator, with the secret" },
        ]}
        hint="Nobody else sees the disk. More initiators can be allowed later."
      />
      <div class="fields">
        {r.proof !== "chap" && (
          <TextField
            label="Initiator’s name"
            error={shown("initiator")}
            hint={
              <>
                {where.text}
                {where.command && (
                  <>
                    : <code>{where.command}</code>
                  </>
                )}
              </>
            }
            placeholder="iqn.…"
            value={r.initiator}
            onInput={(value) => set({ initiator: value })}
          />
        )}
        {r.proof !== "name" && (
          <TextField
            label="CHAP user"
            error={shown("user")}
            hint="The secret has 16 random characters, and is shown once, after the disk was created."
            value={r.user}
            onInput={(value) => set({ user: value })}
          />
        )}
      </div>
      <PortalField v={v} r={r} props={props} set={set} shown={shown} />
    </>
  );
}

function PortalField({ r, set, shown }: PartProps) {
  return (
    <>
      <div class="fields">
        <SelectField
          label="Address"
          hint="Where its user reaches this machine."
          error={shown("portal")}
          value={r.entry?.address ?? ""}
          options={r.entries.map((it) => ({ value: it.address, label: it.label }))}
          onInput={(value) => set({ portal: value })}
        />
      </div>
      {r.entry && isLoopback(r.entry.address) && (
        <Notice tone="warn">
          <p>Only programs on this machine reach this address. Add a portal on the network in the configuration for other machines.</p>
        </Notice>
      )}
    </>
  );
}

function More({ v, r, props, set, shown }: PartProps) {
  return (
    <details class="card more" open={Boolean(shown("blockSize"))}>
      <summary>More options</summary>
      <div class="fields">
        <Field label="Target" hint="A LUN of a target is seen by everybody who may use the target.">
          {(attributes) => (
            <select {...attributes} value={v.target} onChange={(event) => set({ target: event.currentTarget.value })}>
              <option value="">A new one: {targetName(v.name || "disk", props.targets)}</option>
              {props.targets.map((it) => (
                <option key={it.name}>{it.name}</option>
              ))}
            </select>
          )}
        </Field>
        <Field label="Block size" error={shown("blockSize")} hint="512 bytes suit everybody.">
          {(attributes) => (
            <select {...attributes} value={v.blockSize} onChange={(event) => set({ blockSize: event.currentTarget.value })}>
              <option value="">{v.backend === "block" ? "As the device" : "512 bytes"}</option>
              {v.backend === "block" && <option value="512">512 bytes</option>}
              <option value="4096">4096 bytes</option>
            </select>
          )}
        </Field>
      </div>
      {r.existing && <PortalField v={v} r={r} props={props} set={set} shown={shown} />}
      {v.backend !== "memory" && (
        <Checkbox
          checked={r.stable}
          onChange={(stable) => set({ stable })}
          hint="For hosts that never flush, such as ESXi. Each write costs a flush of the drive."
        >
          Make each write stable before it is answered
        </Checkbox>
      )}
      {v.backend === "file" && (
        <Checkbox checked={v.full} onChange={(full) => set({ full })} hint="Otherwise space is taken as it is written.">
          Take all the space now
        </Checkbox>
      )}
    </details>
  );
}
