/** Where lunet listens. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { path } from "../../api/client";
import type { Portal } from "../../api/types";
import { facts, may, portals } from "../../state";
import { Badge, Button, Card, Empty, Loaded, SelectField, TextField } from "../../ui/basics";
import { ChangeDialog, FormDialog } from "../../ui/change";
import { Table } from "../../ui/table";

const TRANSPORTS: { value: string; label: string; transport: string[]; port: string }[] = [
  { value: "iscsi", label: "iSCSI: TCP, and iSER where a card can do it", transport: [], port: "3260" },
  { value: "tcp", label: "iSCSI over TCP only", transport: ["tcp"], port: "3260" },
  { value: "nvme-tcp", label: "NVMe over TCP", transport: ["nvme-tcp"], port: "4420" },
  { value: "nvme-both", label: "NVMe over TCP and RDMA", transport: ["nvme-tcp", "nvme-rdma"], port: "4420" },
];

function served(portal: Portal): string[] {
  const out: string[] = [];
  if (portal.tcp) out.push("iSCSI over TCP");
  if (portal.iser) out.push("iSER");
  if (portal.nvme_tcp) out.push("NVMe over TCP");
  if (portal.nvme_rdma) out.push("NVMe over RDMA");
  return out;
}

export function Portals() {
  useEffect(() => {
    portals.want();
    facts.want();
  }, []);
  const adding = useSignal(false);
  const removing = useSignal<string | null>(null);
  const add = may("administrator") && (
    <Button small icon="plus" onClick={() => (adding.value = true)}>
      Add a portal
    </Button>
  );
  return (
    <Card title="Portals" actions={add}>
      <Loaded of={portals}>
        {(all) =>
          all.length === 0 ? (
            <Empty title="lunet listens nowhere." action={add} />
          ) : (
            <Table
              label="Portals"
              rows={all}
              rowKey={(it) => it.address}
              columns={[
                { head: "Address", names: true, cell: (it) => <span class="name">{it.address}</span> },
                { head: "Group", figures: true, cell: (it) => it.tag },
                { head: "Serves", cell: (it) => served(it).map((name) => <Badge key={name} tone="ok">{name}</Badge>) },
                { head: "RDMA", cell: (it) => (it.devices.length > 0 ? it.devices.join(", ") : (it.why ?? <span class="muted">–</span>)) },
                {
                  head: "Actions",
                  quietHead: true,
                  cell: (it) =>
                    may("administrator") && (
                      <Button small kind="danger" label={`Remove the portal ${it.address}`} onClick={() => (removing.value = it.address)}>
                        Remove
                      </Button>
                    ),
                },
              ]}
            />
          )
        }
      </Loaded>
      {adding.value && <Add onClose={() => (adding.value = false)} />}
      {removing.value && (
        <ChangeDialog
          title="Remove the portal"
          verb="Remove"
          danger
          change={{ method: "DELETE", path: path`/portals/${removing.value}`, forces: true, keeps: true }}
          onClose={() => (removing.value = null)}
          onDone={() => void portals.refresh()}
        >
          <p>lunet will no longer listen on {removing.value}; sessions that came in there end.</p>
        </ChangeDialog>
      )}
    </Card>
  );
}

function Add({ onClose }: { onClose: () => void }) {
  const address = useSignal("");
  const kind = useSignal("iscsi");
  const tag = useSignal("1");
  const own = (facts.data.value?.nics ?? []).flatMap((nic) => nic.addresses.map((it) => it.split("/")[0])).filter((it) => !it.startsWith("fe80"));
  const chosen = TRANSPORTS.find((it) => it.value === kind.value) ?? TRANSPORTS[0];
  const host = address.value.trim();
  const complete = /^\[.+\]:\d+$|^[^:]+:\d+$/.test(host) ? host : host.includes(":") && !host.startsWith("[") ? `[${host}]:${chosen.port}` : `${host}:${chosen.port}`;
  return (
    <FormDialog
      title="Add a portal"
      verb="Add"
      valid={host !== "" && /^\d+$/.test(tag.value)}
      change={() => ({ method: "POST", path: "/portals", body: { address: complete, tag: Number(tag.value), transport: chosen.transport } })}
      onClose={onClose}
      onDone={() => void portals.refresh()}
    >
      <TextField
        label="Address"
        hint="An address of this machine; the port can be left out."
        value={address.value}
        onInput={(value) => (address.value = value)}
        suggestions={own.map((value) => ({ value }))}
      />
      <SelectField label="For" value={kind.value} options={TRANSPORTS} onInput={(value) => (kind.value = value)} />
      <TextField
        label="Portal group"
        hint="Portals on different networks have different groups, for multipath."
        inputMode="numeric"
        value={tag.value}
        onInput={(value) => (tag.value = value)}
      />
      <p class="muted">A portal opens no target: the access rules are the same at every portal.</p>
    </FormDialog>
  );
}
