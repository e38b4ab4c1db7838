/** The gateways of a group: which are there now, and what each serves by. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { asProblem, get, path, type Problem } from "../../api/client";
import type { Group, GroupGateway } from "../../api/types";
import { word } from "../../lib/format";
import { Badge, Button, Loading, ProblemNotice } from "../../ui/basics";
import { Table } from "../../ui/table";

const TONES: Record<string, "ok" | "info" | "bad"> = { owner: "ok", standby: "info", silent: "bad" };

export function Gateways({ group }: { group: Group }) {
  const all = useSignal<GroupGateway[] | null>(null);
  const problem = useSignal<Problem | null>(null);
  const busy = useSignal(false);
  const ask = async (): Promise<void> => {
    busy.value = true;
    try {
      all.value = await get<GroupGateway[]>(path`/groups/${group.name}/gateways`);
      problem.value = null;
    } catch (error) {
      problem.value = asProblem(error);
    } finally {
      busy.value = false;
    }
  };
  // What they are depends on who owns the group, and what they serve by on the revision.
  useEffect(() => void ask(), [group.owner, group.epoch, group.config, group.state]);
  return (
    <>
      <h3>Gateways</h3>
      <ProblemNotice problem={problem.value} />
      {all.value === null && !problem.value && <Loading what="Asking the gateways" />}
      {all.value && (
        <Table
          label={`Gateways of ${group.name}`}
          rows={all.value}
          rowKey={(it) => String(it.gateway)}
          columns={[
            { head: "Gateway", names: true, cell: (it) => (it.gateway === group.gateway ? `${it.gateway}, this one` : it.gateway) },
            { head: "State", cell: (it) => <Badge tone={TONES[it.state] ?? "info"}>{word(it.state)}</Badge> },
            { head: "Epoch", minor: true, figures: true, cell: (it) => it.epoch || "–" },
            { head: "Revision", figures: true, cell: (it) => it.config ?? "–" },
            {
              head: "What is wrong",
              cell: (it) => it.trouble ?? (it.state === "silent" ? "No answer: it does not run, or does not reach the cluster." : <span class="muted">–</span>),
            },
          ]}
        />
      )}
      <p>
        <Button small icon="refresh" busy={busy.value} label={`Ask the gateways of ${group.name} again`} onClick={() => void ask()}>
          Ask again
        </Button>
      </p>
    </>
  );
}
