/** Who has changed what. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { asProblem, get, type Problem } from "../../api/client";
import type { AuditEntry } from "../../api/types";
import { moment } from "../../lib/format";
import { Button, Card, Empty, Loading, ProblemNotice } from "../../ui/basics";
import { Table } from "../../ui/table";

const PAGE = 50;

export function Audit() {
  const entries = useSignal<AuditEntry[] | null>(null);
  const more = useSignal(false);
  const problem = useSignal<Problem | null>(null);
  const load = async (before?: number): Promise<void> => {
    try {
      const page = await get<AuditEntry[]>("/audit", { query: { before, limit: PAGE } });
      entries.value = before === undefined ? page : [...(entries.value ?? []), ...page];
      more.value = page.length === PAGE;
      problem.value = null;
    } catch (error) {
      problem.value = asProblem(error);
    }
  };
  useEffect(() => void load(), []);
  const shown = entries.value;
  const last = shown?.at(-1);
  return (
    <Card
      title="Audit log"
      actions={
        <Button small icon="refresh" onClick={() => void load()}>
          Read it again
        </Button>
      }
    >
      <ProblemNotice problem={problem.value} />
      {shown === null && !problem.value && <Loading />}
      {shown?.length === 0 && <Empty title="Nothing has been changed yet." />}
      {shown && shown.length > 0 && (
        <Table
          label="Audit log"
          rows={shown.map((entry, at) => ({ ...entry, at }))}
          rowKey={(it) => String(it.at)}
          columns={[
            { head: "When", cell: (it) => <span class="nowrap">{moment(it.time)}</span> },
            {
              head: "Who",
              names: true,
              cell: (it) => (
                <>
                  <span class="name">{it.who}</span>
                  <small class="muted block">{it.address}</small>
                </>
              ),
            },
            { head: "What", cell: (it) => <span class="name">{it.what}</span> },
            { head: "Outcome", cell: (it) => it.outcome },
          ]}
        />
      )}
      {more.value && last && <Button onClick={() => void load(last.time)}>Show older entries</Button>}
    </Card>
  );
}
