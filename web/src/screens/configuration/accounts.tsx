/** Who may use this page. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, path } from "../../api/client";
import type { Account, Role } from "../../api/types";
import { may, me, Resource } from "../../state";
import { announce } from "../../ui/announce";
import { Badge, Button, Card, Loaded, NewPasswordField, SelectField, SHORTEST, TextField } from "../../ui/basics";
import { ChangeDialog, FormDialog } from "../../ui/change";
import { Table } from "../../ui/table";

const accounts = new Resource<Account[]>(() => get("/accounts"));

const ROLES: { value: Role; label: string }[] = [
  { value: "viewer", label: "viewer: sees everything but secrets" },
  { value: "operator", label: "operator: changes volumes, targets and access, deletes no data" },
  { value: "administrator", label: "administrator: everything" },
];

type Asking = { what: "create" } | { what: "password" | "remove"; name: string };

export function Accounts() {
  const administers = may("administrator");
  useEffect(() => {
    if (administers) void accounts.refresh();
  }, [administers]);
  const asking = useSignal<Asking | null>(null);
  const own = me.value?.name ?? "";
  const close = (): void => {
    asking.value = null;
  };
  return (
    <>
      <Card
        title="Your account"
        actions={
          <Button small onClick={() => (asking.value = { what: "password", name: own })}>
            Change the password
          </Button>
        }
      >
        <p>
          <span class="name">{own}</span> <Badge tone="quiet">{me.value?.role}</Badge>
        </p>
      </Card>
      {administers && (
        <Card
          title="Accounts"
          actions={
            <Button small icon="plus" onClick={() => (asking.value = { what: "create" })}>
              New account
            </Button>
          }
        >
          <Loaded of={accounts}>
            {(all) => (
              <Table
                label="Accounts"
                rows={all}
                rowKey={(it) => it.name}
                columns={[
                  { head: "Name", names: true, cell: (it) => <span class="name">{it.name}</span> },
                  { head: "Role", cell: (it) => <Badge tone="quiet">{it.role}</Badge> },
                  {
                    head: "Actions",
                    quietHead: true,
                    cell: (it) =>
                      it.name !== own && (
                        <div class="actions">
                          <Button small label={`Set a password for ${it.name}`} onClick={() => (asking.value = { what: "password", name: it.name })}>
                            Set a password
                          </Button>
                          <Button small kind="danger" label={`Remove the account ${it.name}`} onClick={() => (asking.value = { what: "remove", name: it.name })}>
                            Remove
                          </Button>
                        </div>
                      ),
                  },
                ]}
              />
            )}
          </Loaded>
        </Card>
      )}
      {asking.value?.what === "create" && <Create onClose={close} />}
      {asking.value?.what === "password" && <Password name={asking.value.name} own={asking.value.name === own} onClose={close} />}
      {asking.value?.what === "remove" && (
        <ChangeDialog
          title={`Remove the account ${asking.value.name}`}
          verb="Remove"
          danger
          change={{ method: "DELETE", path: path`/accounts/${asking.value.name}`, blind: true }}
          onClose={close}
          onDone={() => void accounts.refresh()}
        >
          <p>{asking.value.name} is logged out, and can no longer log in.</p>
        </ChangeDialog>
      )}
    </>
  );
}

function Create({ onClose }: { onClose: () => void }) {
  const name = useSignal("");
  const password = useSignal("");
  const role = useSignal<Role>("viewer");
  return (
    <FormDialog
      title="New account"
      verb="Create"
      valid={name.value.trim() !== "" && password.value.length >= SHORTEST}
      change={() => ({ method: "POST", path: "/accounts", body: { name: name.value.trim(), password: password.value, role: role.value } })}
      onClose={onClose}
      onDone={() => void accounts.refresh()}
    >
      <TextField label="Name" value={name.value} onInput={(value) => (name.value = value)} />
      <NewPasswordField label="Password" value={password.value} warns={password.value !== ""} onInput={(value) => (password.value = value)} />
      <SelectField label="Role" value={role.value} options={ROLES} onInput={(value) => (role.value = value)} />
    </FormDialog>
  );
}

function Password({ name, own, onClose }: { name: string; own: boolean; onClose: () => void }) {
  const current = useSignal("");
  const password = useSignal("");
  return (
    <FormDialog
      title={own ? "Change your password" : `A password for ${name}`}
      verb="Set the password"
      valid={password.value.length >= SHORTEST && (!own || current.value !== "")}
      change={() => ({
        method: "PUT",
        path: path`/accounts/${name}/password`,
        body: { password: password.value, ...(own ? { current: current.value } : {}) },
      })}
      onClose={onClose}
      onDone={() => announce("The password is set.")}
    >
      {own && (
        <TextField
          label="Current password"
          type="password"
          autoComplete="current-password"
          value={current.value}
          onInput={(value) => (current.value = value)}
        />
      )}
      <NewPasswordField label="New password" value={password.value} warns={password.value !== ""} onInput={(value) => (password.value = value)} />
    </FormDialog>
  );
}
