/** Tokens for programs. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, path } from "../../api/client";
import type { NewToken, Token } from "../../api/types";
import { moment } from "../../lib/format";
import { Resource } from "../../state";
import { Badge, Button, Card, Code, Empty, Loaded, SelectField, TextField } from "../../ui/basics";
import { ChangeDialog, FormDialog } from "../../ui/change";
import { Dialog } from "../../ui/dialog";
import { Table } from "../../ui/table";

const tokens = new Resource<Token[]>(() => get("/tokens"));

const ROLES = [
  { value: "metrics", label: "metrics: reads /metrics, and nothing else" },
  { value: "viewer", label: "viewer" },
  { value: "operator", label: "operator" },
  { value: "administrator", label: "administrator" },
];

const DAY = 86400;
/** In seconds. */
const LIVES = [
  { value: String(30 * DAY), label: "30 days" },
  { value: String(90 * DAY), label: "90 days" },
  { value: String(365 * DAY), label: "a year" },
];

export function Tokens() {
  useEffect(() => void tokens.refresh(), []);
  const creating = useSignal(false);
  const made = useSignal<NewToken | null>(null);
  const removing = useSignal<Token | null>(null);
  const create = (
    <Button small icon="plus" onClick={() => (creating.value = true)}>
      New token
    </Button>
  );
  return (
    <Card title="Tokens" actions={create}>
      <Loaded of={tokens}>
        {(all) =>
          all.length === 0 ? (
            <Empty title="There are no tokens.">
              <p>Programs use them in the place of a login: Prometheus for metrics, scripts for the API.</p>
            </Empty>
          ) : (
            <Table
              label="Tokens"
              rows={all}
              rowKey={(it) => it.id}
              columns={[
                { head: "Name", names: true, cell: (it) => <span class="name">{it.name}</span> },
                { head: "Role", cell: (it) => <Badge tone="quiet">{it.role}</Badge> },
                { head: "Created", cell: (it) => (it.created ? moment(it.created) : "–") },
                { head: "Expires", cell: (it) => (it.expires ? moment(it.expires) : "never") },
                { head: "Last used", cell: (it) => (it.last_used ? moment(it.last_used) : "never") },
                {
                  head: "Actions",
                  quietHead: true,
                  cell: (it) => (
                    <Button small kind="danger" label={`Remove the token ${it.name}`} onClick={() => (removing.value = it)}>
                      Remove
                    </Button>
                  ),
                },
              ]}
            />
          )
        }
      </Loaded>
      {creating.value && (
        <Create
          onClose={() => (creating.value = false)}
          onMade={(it) => {
            made.value = it;
            void tokens.refresh();
          }}
        />
      )}
      {made.value && (
        <Dialog title="The token" onClose={() => (made.value = null)}>
          <p>It is shown this once.</p>
          <Code code={made.value.token} what="the token" />
          <p class="muted">
            A program sends it in the header <code>Authorization: Bearer</code>.
          </p>
          <div class="dialog-actions">
            <Button kind="primary" onClick={() => (made.value = null)}>
              Done
            </Button>
          </div>
        </Dialog>
      )}
      {removing.value && (
        <ChangeDialog
          title={`Remove the token ${removing.value.name}`}
          verb="Remove"
          danger
          change={{ method: "DELETE", path: path`/tokens/${removing.value.id}`, blind: true }}
          onClose={() => (removing.value = null)}
          onDone={() => void tokens.refresh()}
        >
          <p>Programs that use it are refused from then on.</p>
        </ChangeDialog>
      )}
    </Card>
  );
}

function Create({ onClose, onMade }: { onClose: () => void; onMade: (token: NewToken) => void }) {
  const name = useSignal("");
  const role = useSignal("metrics");
  const life = useSignal(LIVES[1].value);
  return (
    <FormDialog
      title="New token"
      verb="Create"
      valid={name.value.trim() !== ""}
      change={() => ({ method: "POST", path: "/tokens", body: { name: name.value.trim(), role: role.value, expires_seconds: Number(life.value) } })}
      onClose={onClose}
      onDone={(answer) => onMade(answer as NewToken)}
    >
      <TextField label="Name" hint="What it is for." value={name.value} onInput={(value) => (name.value = value)} />
      <SelectField label="Role" value={role.value} options={ROLES} onInput={(value) => (role.value = value)} />
      <SelectField
        label="Expires after"
        value={life.value}
        options={LIVES}
        onInput={(value) => (life.value = value)}
      />
    </FormDialog>
  );
}
