/** Who is logged in, over what, and with which keys. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { path } from "../api/client";
import type { Session } from "../api/types";
import { count, rate, size, span, word } from "../lib/format";
import { latest, may, sessions } from "../state";
import { Badge, Button, ButtonLink, Card, Empty, Facts, Loaded } from "../ui/basics";
import { ChangeDialog } from "../ui/change";
import { Table } from "../ui/table";
import { Title } from "../ui/title";

/** Connected times and counters go on although nothing has changed. */
const REFRESH_MS = 5000;

const keyOf = (it: Session): string => `${it.tsih} ${it.initiator} ${it.peer} ${it.controller?.cntlid ?? ""}`;

export function Sessions() {
  useEffect(() => {
    void sessions.refresh();
    const timer = setInterval(() => void sessions.refresh(), REFRESH_MS);
    return () => clearInterval(timer);
  }, []);
  const open = useSignal<string | null>(null);
  const ending = useSignal<Session | null>(null);
  return (
    <>
      <Title title="Sessions" about="Initiators and hosts that are logged in now." />
      <Loaded of={sessions}>
        {(all) =>
          all.length === 0 ? (
            <Empty title="Nobody is logged in." action={<ButtonLink href="#/new-disk">Create a disk</ButtonLink>}>
              <p>A session begins when an initiator logs in to a target. Refused logins are shown under Access.</p>
            </Empty>
          ) : (
            <Card>
              <List sessions={all} open={open.value} onOpen={(key) => (open.value = open.value === key ? null : key)} onEnd={(it) => (ending.value = it)} />
            </Card>
          )
        }
      </Loaded>
      {ending.value && <EndDialog session={ending.value} onClose={() => (ending.value = null)} />}
    </>
  );
}

interface ListProps {
  sessions: Session[];
  open: string | null;
  onOpen: (key: string) => void;
  onEnd: (session: Session) => void;
}

function List({ sessions: all, open, onOpen, onEnd }: ListProps) {
  const rates = latest.value?.rates.sessions ?? [];
  const of = (it: Session) => rates.find((one) => one.initiator === it.initiator && one.peer === it.peer);
  return (
    <Table
      label="Sessions"
      rows={all}
      rowKey={keyOf}
      below={(it) => (open === keyOf(it) ? <Details session={it} /> : null)}
      columns={[
        {
          head: "Initiator",
          names: true,
          cell: (it) => (
            <>
              <span class="name">{it.initiator}</span>
              <small class="muted block">{it.peer}</small>
            </>
          ),
        },
        { head: "Target", cell: (it) => (it.target ? <span class="name">{it.target}</span> : <span class="muted">discovery</span>) },
        { head: "Transport", cell: (it) => <TransportBadge session={it} /> },
        { head: "User", minor: true, cell: (it) => it.user ?? <span class="muted">–</span> },
        { head: "Reads", figures: true, cell: (it) => (of(it) ? rate(of(it)?.read_bytes_per_second ?? 0) : "–") },
        { head: "Writes", figures: true, cell: (it) => (of(it) ? rate(of(it)?.written_bytes_per_second ?? 0) : "–") },
        { head: "In flight", minor: true, figures: true, cell: (it) => it.commands_in_flight },
        { head: "Connected", figures: true, cell: (it) => span(it.connected_seconds) },
        {
          head: "Actions",
          quietHead: true,
          cell: (it) => (
            <div class="actions">
              <Button
                small
                expanded={open === keyOf(it)}
                label={`Details of the session of ${it.initiator}`}
                onClick={() => onOpen(keyOf(it))}
              >
                Details
              </Button>
              {may("operator") && (
                <Button small kind="danger" label={`End the session of ${it.initiator}`} onClick={() => onEnd(it)}>
                  End
                </Button>
              )}
            </div>
          ),
        },
      ]}
    />
  );
}

export function TransportBadge({ session }: { session: Session }) {
  const fast = session.transport === "iser" || session.transport === "nvme-rdma";
  return <Badge tone={fast ? "ok" : "quiet"}>{word(session.transport)}</Badge>;
}

/** Why a session is on TCP; the server says nothing of it where RDMA is not possible at all. */
function whyTcp({ tcp }: Session): string | null {
  if (!tcp) return null;
  return tcp.why ?? (tcp.rdma_device ? null : "no RDMA device of this machine carries the portal’s address.");
}

function Details({ session: it }: { session: Session }) {
  const why = whyTcp(it);
  return (
    <div class="details">
      {why && (
        <p>
          <strong>Why not RDMA:</strong> {why}
        </p>
      )}
      <Facts
        of={[
          ["Portal", it.portal],
          ["Shard", it.shard],
          ...(it.controller ? [] : ([["ISID", it.isid], ["TSIH", it.tsih], ["Commands", count(it.commands)], ["Read", size(it.read_bytes)], ["Written", size(it.written_bytes)]] as [string, string | number][])),
          ...(it.rdma
            ? ([
                ["RDMA device", it.rdma.device],
                ["GID", it.rdma.gid],
                ["Path MTU", `${it.rdma.path_mtu_bytes} bytes`],
                ["Queue depth", it.rdma.queue_depth],
              ] as [string, string | number][])
            : []),
          ...(it.controller
            ? ([
                ["Controller", it.controller.cntlid],
                ["Host identifier", it.controller.host_id],
                ["Authenticated", it.controller.authenticated ? "yes" : "no"],
                ["TLS", it.controller.tls ?? "no"],
                ["Keep alive", it.controller.keep_alive_ms ? `${it.controller.keep_alive_ms} ms` : "none"],
                ["Namespaces", it.controller.namespaces],
                ["Queues", it.controller.queues.length],
              ] as [string, string | number][])
            : []),
        ]}
      />
      {it.keys.length > 0 && (
        <>
          <h2>Negotiated keys</h2>
          <Facts of={it.keys.map(([key, value]) => [key, value])} />
        </>
      )}
    </div>
  );
}

function EndDialog({ session, onClose }: { session: Session; onClose: () => void }) {
  const one = session.tsih !== 0;
  return (
    <ChangeDialog
      title="End the session"
      verb={one ? "End the session" : "End its sessions"}
      danger
      change={
        one
          ? { method: "DELETE", path: path`/sessions/${session.tsih}` }
          : { method: "DELETE", path: "/sessions", query: { initiator: session.initiator } }
      }
      onClose={onClose}
      onDone={() => void sessions.refresh()}
    >
      <p>
        <span class="name">{session.initiator}</span> from {session.peer} is asked to log out, and disconnected if it does not. It may log
        in again at once if the access rules let it: change them first to keep it out.
      </p>
    </ChangeDialog>
  );
}
