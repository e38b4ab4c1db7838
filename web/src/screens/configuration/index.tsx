/** The configuration file, portals, accounts, tokens and the audit log. */

import type { ComponentChildren } from "preact";
import { may } from "../../state";
import { NeedsRole } from "../../ui/basics";
import { Title } from "../../ui/title";
import { Accounts } from "./accounts";
import { Audit } from "./audit";
import { File } from "./file";
import { Portals } from "./portals";
import { Tokens } from "./tokens";

const PARTS: { at: string; label: string }[] = [
  { at: "", label: "File" },
  { at: "portals", label: "Portals" },
  { at: "accounts", label: "Accounts" },
  { at: "tokens", label: "Tokens" },
  { at: "audit", label: "Audit log" },
];

export function ConfigurationScreen({ part }: { part: string }) {
  return (
    <>
      <Title title="Configuration" />
      <nav class="tabs" aria-label="Configuration">
        <ul>
          {PARTS.map(({ at, label }) => (
            <li key={at}>
              <a href={at ? `#/configuration/${at}` : "#/configuration"} aria-current={part === at ? "page" : undefined}>
                {label}
              </a>
            </li>
          ))}
        </ul>
      </nav>
      {content(part)}
    </>
  );
}

function content(part: string): ComponentChildren {
  switch (part) {
    case "portals":
      return <Portals />;
    case "accounts":
      return <Accounts />;
    case "tokens":
      return may("administrator") ? <Tokens /> : <NeedsRole role="administrator" />;
    case "audit":
      return may("administrator") ? <Audit /> : <NeedsRole role="administrator" />;
    default:
      return may("operator") ? <File /> : <NeedsRole role="operator" />;
  }
}
