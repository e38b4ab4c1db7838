/** Failover groups: who owns each, what this gateway is in it, what is wrong, and orders to it. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { path } from "../../api/client";
import type { Group, GroupProtocol } from "../../api/types";
import { count, word } from "../../lib/format";
import { link } from "../../route";
import { groups, may } from "../../state";
import { Badge, Button, Card, Empty, Facts, Loaded, Notice, SelectField } from "../../ui/basics";
import { ChangeDialog, FormDialog } from "../../ui/change";
import { Table } from "../../ui/table";
import { Title } from "../../ui/title";
import { Gateways } from "./gateways";
import { SharedConfiguration } from "./shared";

/** Commands that are passed on go on being counted although nothing has changed. */
const REFRESH_MS = 5000;

export function Groups() {
  useEffect(() => {
    void groups.refresh();
    const timer = setInterval(() => void groups.refresh(), REFRESH_MS);
    return () => clearInterval(timer);
  }, []);
  return (
    <>
      <Title title="Failover groups" about="Several gateways over the same images of Ceph: one owns the group and serves it, another takes over when that one dies." />
      <Loaded of={groups}>
        {(all) =>
          all.length === 0 ? (
            <Empty title="This server is a gateway of no group.">
              <p>A group is configured in the file of each gateway, and its record is made by lunet group create.</p>
            </Empty>
          ) : (
            all.map((group) => <One key={group.name} group={group} />)
          )
        }
      </Loaded>
    </>
  );
}

const STATES: Record<string, { tone: "ok" | "warn" | "bad" | "info" | "quiet"; says: string }> = {
  owner: { tone: "ok", says: "owner: it serves the group" },
  standby: { tone: "info", says: "standby: ready to take over" },
  "taking-over": { tone: "warn", says: "taking the group over" },
  moving: { tone: "warn", says: "giving the group away" },
  fenced: { tone: "bad", says: "fenced: without a connection to the cluster" },
};

function ownerOf({ owner, heir, gateway }: Group): string {
  if (owner !== null) return owner === gateway ? `gateway ${owner}, this one` : `gateway ${owner}`;
  return heir === null ? "nobody, or not known here" : `nobody; gateway ${heir} is to get it`;
}

function One({ group }: { group: Group }) {
  const asked = useSignal<"move" | "take-over" | null>(null);
  const state = STATES[group.state] ?? { tone: "quiet", says: word(group.state) };
  const close = (): void => {
    asked.value = null;
  };
  const others = group.gateways.filter((it) => it !== group.owner);
  return (
    <>
      <Card
        title={<span class="name">{group.name}</span>}
        actions={
          <>
            {may("operator") && (
              <Button small disabled={others.length === 0} label={`Move the group ${group.name}`} onClick={() => (asked.value = "move")}>
                Move
              </Button>
            )}
            {may("administrator") && group.state !== "owner" && (
              <Button small kind="danger" label={`Take the group ${group.name} over`} onClick={() => (asked.value = "take-over")}>
                Take over
              </Button>
            )}
          </>
        }
      >
        {group.notices.length > 0 && (
          <Notice tone="bad" title="What is wrong">
            <ul class="plain-list">
              {group.notices.map((notice) => (
                <li key={notice}>{notice}</li>
              ))}
            </ul>
          </Notice>
        )}
        <Facts
          of={[
            ["Owner", ownerOf(group)],
            ["This gateway", <>gateway {group.gateway} <Badge tone={state.tone}>{state.says}</Badge></>],
            ["Epoch", group.epoch === 0 ? "not known here" : group.epoch],
            ["Configuration", configurationOf(group)],
            ["Target", group.target ? <span class="name">{group.target}</span> : "not known here yet"],
            ["Record", <span class="name">{group.record}</span>],
          ]}
        />
        <Protocols group={group} />
        <VolumesOf group={group} />
        <Gateways group={group} />
        {group.shared && may("operator") && <SharedConfiguration group={group} />}
      </Card>
      {asked.value === "move" && <MoveDialog group={group} others={others} onClose={close} />}
      {asked.value === "take-over" && <TakeOverDialog group={group} onClose={close} />}
    </>
  );
}

function configurationOf({ shared, config }: Group): string {
  if (!shared) return "in the file of each gateway";
  return config ? `shared, revision ${config}` : "shared; its revision is not known here yet";
}

const ACCESS: Record<string, string> = {
  executes: "this gateway executes it",
  "passes-on": "passed on to the owner",
  "owner-not-reached": "the owner is not reached: hosts are told to try again, or to use another path",
  refuses: "refused: the owner has no address for this",
  waits: "waits for an owner",
};

function Protocols({ group }: { group: Group }) {
  return (
    <>
      <h3>What comes here</h3>
      <Table
        label={`What comes to this gateway for ${group.name}`}
        rows={group.protocols}
        rowKey={(it) => it.protocol}
        columns={[
          { head: "Protocol", names: true, cell: (it: GroupProtocol) => word(it.protocol) },
          { head: "Commands of hosts", cell: (it) => ACCESS[it.access] ?? word(it.access) },
          { head: "Owner at", minor: true, cell: (it) => (it.owner ? <span class="name">{it.owner}</span> : <span class="muted">–</span>) },
          { head: "Connections", minor: true, figures: true, cell: (it) => it.connections },
          { head: "Passed on", figures: true, cell: (it) => count(it.commands) },
        ]}
      />
    </>
  );
}

function VolumesOf({ group }: { group: Group }) {
  if (group.volumes.length === 0) return null;
  return (
    <>
      <h3>Volumes</h3>
      <Table
        label={`Volumes of ${group.name}`}
        rows={group.volumes}
        rowKey={(it) => it.name}
        columns={[
          { head: "LUN", figures: true, cell: (it) => it.lun },
          {
            head: "Volume",
            names: true,
            cell: (it) => (
              <a class="name" href={link`volumes/${it.name}`}>
                {it.name}
              </a>
            ),
          },
          { head: "Image", cell: (it) => <span class="name">{it.image}</span> },
        ]}
      />
    </>
  );
}

function MoveDialog({ group, others, onClose }: { group: Group; others: number[]; onClose: () => void }) {
  const to = useSignal(String(others.includes(group.gateway) ? group.gateway : others[0]));
  return (
    <FormDialog
      title={`Move ${group.name}`}
      verb="Move"
      valid={to.value !== ""}
      change={() => ({ method: "POST", path: path`/groups/${group.name}/move`, body: { gateway: Number(to.value) } })}
      onClose={onClose}
      onDone={() => void groups.refresh()}
    >
      <SelectField
        label="To"
        value={to.value}
        options={others.map((it) => ({ value: String(it), label: it === group.gateway ? `gateway ${it}, this one` : `gateway ${it}` }))}
        onInput={(value) => (to.value = value)}
      />
      <p>
        The owner ends what it has under way and gives the group away: hosts see a pause, and no session ends. If the other gateway does
        not answer, the group stays where it is.
      </p>
    </FormDialog>
  );
}

function TakeOverDialog({ group, onClose }: { group: Group; onClose: () => void }) {
  const from = group.owner === null ? "whoever owns the group" : `gateway ${group.owner}`;
  return (
    <ChangeDialog
      title={`Take ${group.name} over`}
      verb="Take over"
      danger
      type={group.name}
      change={{ method: "POST", path: path`/groups/${group.name}/take-over`, body: {}, blind: true }}
      onClose={onClose}
      onDone={() => void groups.refresh()}
    >
      <p>
        This gateway shuts {from} out of the cluster, whatever that one does: its connections are reset, what it has not answered is
        repeated by hosts at this gateway, and nothing of it lands later. It connects to the cluster anew by itself.
      </p>
      <p>For maintenance, move the group instead: that is a pause and no failure.</p>
    </ChangeDialog>
  );
}
