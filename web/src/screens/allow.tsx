/** Lets an initiator in, or shuts it out. */

import { path } from "../api/client";
import { refused } from "../state";
import { ChangeDialog } from "../ui/change";

export function AllowDialog({ target, initiator, onClose }: { target: string; initiator: string; onClose: () => void }) {
  return (
    <ChangeDialog
      title="Allow this initiator"
      verb="Allow"
      change={{
        method: "POST",
        path: path`/targets/${target}/initiators`,
        body: { initiators: [initiator] },
        forces: true,
        keeps: true,
      }}
      onClose={onClose}
      onDone={() => void refused.refresh()}
    >
      <p>
        <span class="name">{initiator}</span> will see the LUNs of <span class="name">{target}</span>. A name is no proof: who can choose
        its own name can use that of another. CHAP proves it.
      </p>
    </ChangeDialog>
  );
}

export function DenyDialog({ target, initiator, onClose }: { target: string; initiator: string; onClose: () => void }) {
  return (
    <ChangeDialog
      title="Remove this initiator"
      verb="Remove"
      danger
      change={{
        method: "DELETE",
        path: path`/targets/${target}/initiators/${initiator}`,
        forces: true,
        keeps: true,
      }}
      onClose={onClose}
    >
      <p>
        <span class="name">{initiator}</span> will be removed from the list of <span class="name">{target}</span>, and its sessions end.
      </p>
    </ChangeDialog>
  );
}
