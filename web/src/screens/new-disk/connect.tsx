/** What to do on the other side, and whether it has worked. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { type Attachment, PLATFORM_NAMES, PLATFORMS, type Platform, steps } from "../../lib/commands";
import { clock, word } from "../../lib/format";
import { refused, sessions } from "../../state";
import { Badge, Button, Card, Code, Copy, Notice, SelectField } from "../../ui/basics";
import { Icon } from "../../ui/icons";
import { AllowDialog } from "../allow";
import type { Refused } from "../../api/types";

/** The commands of a platform, each to be copied. */
export function Commands({ platform, of }: { platform: Platform; of: Attachment }) {
  return (
    <ol class="steps">
      {steps(platform, of).map((step) => (
        <li key={step.title}>
          <h3>{step.title}</h3>
          {step.note && <p class="muted">{step.note}</p>}
          <Code code={step.code} what={step.title} language={step.language} />
        </li>
      ))}
    </ol>
  );
}

/** The same with a choice of the platform, for a disk that exists. */
export function ConnectCard({ of }: { of: Attachment }) {
  const platform = useSignal<Platform>("linux");
  return (
    <Card title="Connect it">
      <div class="fields">
        <SelectField
          label="From"
          value={platform.value}
          options={PLATFORMS.map((it) => ({ value: it, label: PLATFORM_NAMES[it] }))}
          onInput={(value) => (platform.value = value)}
        />
      </div>
      {of.chap && (
        <p class="muted">
          Put the user’s secret in the place of SECRET. It is not shown again; a new one can be set under <a href="#/access">Access</a>.
        </p>
      )}
      <Commands platform={platform.value} of={of} />
    </Card>
  );
}

/** The CHAP user and its secret, for the only time. */
export function SecretCard({ user, secret }: { user: string; secret: string }) {
  return (
    <Card title="CHAP secret" class="secret">
      <p>
        It is shown this once. The commands below contain it; if it is lost, set a new one under <a href="#/access">Access</a>.
      </p>
      <dl class="secret-values">
        <div>
          <dt>User</dt>
          <dd>
            <code>{user}</code>
            <Copy text={user} what="the user’s name" />
          </dd>
        </div>
        <div>
          <dt>Secret</dt>
          <dd>
            <code data-test="secret">{secret}</code>
            <Copy text={secret} what="the secret" />
          </dd>
        </div>
      </dl>
    </Card>
  );
}

const POLL_MS = 3000;

/** Waits for logins to a target, and tells of the first one and of those that are refused: also behind it, as somebody else may try. */
export function Waiting({ target, since }: { target: string; since: number }) {
  const there = (sessions.data.value ?? []).filter((it) => it.target === target);
  const isThere = (initiator: string): boolean => there.some((it) => it.initiator === initiator);
  const tries = (refused.data.value ?? []).filter((it) => it.target === target && it.time >= since && !isThere(it.initiator));
  const allowing = useSignal<Refused | null>(null);
  const connected = there.length > 0;
  useEffect(() => {
    const timer = setInterval(() => {
      void sessions.refresh();
      void refused.refresh();
    }, POLL_MS);
    return () => clearInterval(timer);
  }, []);
  const first = there[0];
  return (
    <div class={`first-login ${connected ? "connected" : ""}`}>
      <div role="status" aria-live="polite">
        {first ? (
          <p class="waiting-line">
            <Icon name="check" />
            <span>
              Connected: <span class="name">{first.initiator}</span> from {first.peer} by {word(first.transport)}, since{" "}
              {clock(Date.now() / 1000 - first.connected_seconds)}
              {there.length > 1 && `, and ${there.length - 1} more`}
            </span>
          </p>
        ) : (
          <p class="waiting-line">
            <span class="spinner" aria-hidden="true" />
            <span>Waiting for the first login. This line turns green when it arrives.</span>
          </p>
        )}
      </div>
      {tries[0] && (
        <Notice tone="warn" title={`A login was refused at ${clock(tries[0].time)}`}>
          <p>
            <span class="name">{tries[0].initiator}</span> from {tries[0].address}: {tries[0].why}
          </p>
          <Button small onClick={() => (allowing.value = tries[0])}>
            Allow this one
          </Button>
        </Notice>
      )}
      {first && first.tcp?.why && (
        <p class="muted">
          <Badge tone="quiet">TCP</Badge> {first.tcp.why}
        </p>
      )}
      {allowing.value && (
        <AllowDialog target={target} initiator={allowing.value.initiator} onClose={() => (allowing.value = null)} />
      )}
    </div>
  );
}
