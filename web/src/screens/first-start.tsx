/** The first minutes: an account, then what this machine is and what is at risk. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { asProblem, type Problem, send } from "../api/client";
import type { Facts, Me } from "../api/types";
import { size } from "../lib/format";
import { go } from "../route";
import { facts, loggedIn, portals } from "../state";
import { jobsOf, useRun } from "../jobs";
import { Badge, Button, ButtonLink, Card, Empty, Loaded, NewPasswordField, Notice, ProblemNotice, SHORTEST, TextField } from "../ui/basics";
import { Table } from "../ui/table";
import { Title } from "../ui/title";
import { FindingList, useDoctorReport } from "./doctor";
import { isLoopback } from "../lib/names";

/** Makes the first account, with the code that `lunet serve` has printed. */
export function FirstStart() {
  const code = useSignal("");
  const name = useSignal("admin");
  const password = useSignal("");
  const again = useSignal("");
  const problem = useSignal<Problem | null>(null);
  const busy = useSignal(false);
  const tried = useSignal(false);
  const short = password.value.length < SHORTEST;
  const differs = again.value !== password.value ? "The two passwords differ." : null;

  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    tried.value = true;
    if (busy.value || short || differs) return;
    busy.value = true;
    problem.value = null;
    try {
      const body = { code: code.value.trim(), name: name.value.trim(), password: password.value };
      const who = await send<Me>("POST", "/first-start", { body });
      go("#/welcome");
      loggedIn(who.data);
    } catch (error) {
      problem.value = asProblem(error);
    } finally {
      busy.value = false;
    }
  };
  return (
    <form onSubmit={(event) => void submit(event)} noValidate>
      <p class="muted">Create the administrator’s account. It can create accounts for others later.</p>
      <TextField
        label="One-time code"
        hint={
          <>
            <code>lunet serve</code> has printed it at its start; it is in the log, too.
          </>
        }
        class="code-input"
        autoComplete="one-time-code"
        required
        value={code.value}
        onInput={(value) => (code.value = value)}
      />
      <TextField label="Administrator’s name" autoComplete="username" required value={name.value} onInput={(value) => (name.value = value)} />
      <NewPasswordField label="Password" required value={password.value} warns={tried.value} onInput={(value) => (password.value = value)} />
      <TextField
        label="Password, again"
        error={tried.value ? differs : null}
        type="password"
        autoComplete="new-password"
        required
        value={again.value}
        onInput={(value) => (again.value = value)}
      />
      <ProblemNotice problem={problem.value} />
      <Button submit kind="primary" busy={busy.value}>
        Create the account
      </Button>
    </form>
  );
}

/** What this machine is, after the first account was made. */
export function Welcome() {
  useEffect(() => {
    facts.want();
    portals.want();
  }, []);
  const run = useRun("doctor");
  const found = useDoctorReport();
  const known = jobsOf("doctor").length > 0;
  useEffect(() => {
    if (!known) void run.start();
  }, []);
  const listening = portals.data.value ?? [];
  return (
    <>
      <Title
        title="This machine"
        about="What lunet has found, and what to look at before data is stored here."
        actions={
          <>
            <ButtonLink href="#/">Go to the overview</ButtonLink>
            <ButtonLink kind="primary" icon="plus" href="#/new-disk">
              Create the first disk
            </ButtonLink>
          </>
        }
      />
      {listening.length > 0 && listening.every((portal) => isLoopback(portal.address)) && (
        <Notice tone="info" title="lunet listens for this machine only">
          <p>
            Other machines need a portal that they can reach. The form for a new disk offers the addresses below; portals are in the{" "}
            <a href="#/configuration/portals">configuration</a>.
          </p>
        </Notice>
      )}
      <Card title="Risks and remarks">
        {run.problem && <ProblemNotice problem={run.problem} retry={() => void run.start()} />}
        {!found && run.job?.state === "running" && (
          <p class="loading" role="status">
            <span class="spinner" aria-hidden="true" />
            The doctor is looking at this machine …
          </p>
        )}
        {found && <FindingList report={found.result} limit={6} />}
        {found && (
          <p>
            <a href="#/doctor">All findings, their causes and fixes</a>
          </p>
        )}
      </Card>
      <Loaded of={facts}>{(data) => <Machine facts={data} />}</Loaded>
    </>
  );
}

function Machine({ facts: of }: { facts: Facts }) {
  const drives = of.drives.filter((drive) => !drive.remote);
  const nics = of.nics.filter((nic) => nic.addresses.length > 0);
  const pools = of.zfs?.pools ?? [];
  return (
    <>
      <Card title="Machine">
        <p>
          {[of.platform.name, of.cpu.model, of.memory.total_bytes ? `${size(of.memory.total_bytes)} of memory` : null]
            .filter(Boolean)
            .join(" · ")}
        </p>
      </Card>
      <Card title="Drives">
        {drives.length === 0 ? (
          <Empty title="No drive can be seen here." />
        ) : (
          <Table
            label="Drives"
            rows={drives}
            rowKey={(drive) => drive.name}
            columns={[
              { head: "Drive", names: true, cell: (drive) => <span class="name">{drive.name}</span> },
              { head: "Model", cell: (drive) => drive.model ?? "–" },
              { head: "Kind", cell: (drive) => kindOf(drive) },
              { head: "Size", figures: true, cell: (drive) => size(drive.size_bytes) },
              { head: "Used by", cell: (drive) => usedBy(drive) ?? <Badge tone="ok">free</Badge> },
            ]}
          />
        )}
      </Card>
      {pools.length > 0 && (
        <Card title="ZFS pools">
          <Table
            label="ZFS pools"
            rows={pools}
            rowKey={(pool) => pool.name}
            columns={[
              { head: "Pool", names: true, cell: (pool) => <span class="name">{pool.name}</span> },
              {
                head: "State",
                cell: (pool) => <Badge tone={pool.health === "ONLINE" ? "ok" : "bad"}>{pool.health ?? "unknown"}</Badge>,
              },
              { head: "Size", figures: true, cell: (pool) => size(pool.size_bytes) },
              { head: "Free", figures: true, cell: (pool) => size(pool.free_bytes) },
            ]}
          />
        </Card>
      )}
      <Card title="Network addresses">
        {nics.length === 0 ? (
          <Empty title="No interface has an address that other machines can reach." />
        ) : (
          <Table
            label="Network addresses"
            rows={nics}
            rowKey={(nic) => nic.name}
            columns={[
              { head: "Interface", names: true, cell: (nic) => <span class="name">{nic.name}</span> },
              { head: "Addresses", cell: (nic) => <span class="name">{nic.addresses.join(", ")}</span> },
              { head: "Speed", figures: true, cell: (nic) => speed(nic.speed_mbit) },
              { head: "MTU", figures: true, cell: (nic) => nic.mtu ?? "–" },
            ]}
          />
        )}
      </Card>
    </>
  );
}

function kindOf(drive: Facts["drives"][number]): string {
  const turns = drive.rotational === true ? ", rotating" : "";
  return `${drive.kind === "nvme" ? "NVMe" : (drive.kind ?? "unknown")}${turns}`;
}

/** Who uses a drive, as far as the facts say; nothing if nobody does. */
export function usedBy(drive: Facts["drives"][number]): string | null {
  if (drive.zfs_pool) return `pool ${drive.zfs_pool}`;
  if (drive.holders.length > 0) return drive.holders.join(", ");
  return drive.partitions.length > 0 ? "has partitions" : null;
}

function speed(mbit: number | null | undefined): string {
  if (!mbit || mbit <= 0) return "–";
  return mbit >= 1000 ? `${mbit / 1000} Gbit/s` : `${mbit} Mbit/s`;
}
