import { useEffect } from "preact/hooks";
import type { Volume } from "../api/types";
import { plural, size, word } from "../lib/format";
import { link } from "../route";
import { may, volumes } from "../state";
import { Badge, ButtonLink, Card, Empty, Loaded, Meter } from "../ui/basics";
import { Table } from "../ui/table";
import { Title } from "../ui/title";

export function Volumes() {
  useEffect(() => volumes.want(), []);
  const create = may("operator") && (
    <ButtonLink kind="primary" icon="plus" href="#/new-disk">
      New disk
    </ButtonLink>
  );
  return (
    <>
      <Title title="Volumes" actions={create} />
      <Loaded of={volumes}>
        {(all) =>
          all.length === 0 ? (
            <Empty title="There are no volumes yet." action={create}>
              <p>A volume is where the blocks of a disk are stored: a file, a block device, or memory.</p>
            </Empty>
          ) : (
            <Card>
              <List volumes={all} />
            </Card>
          )
        }
      </Loaded>
    </>
  );
}

/** The state of a volume in a word. */
export function VolumeState({ volume }: { volume: Volume }) {
  const fault = volume.faults?.[0];
  if (fault) return <Badge tone="bad">{word(fault.state)}</Badge>;
  if (volume.erasure) return <Badge tone="warn">{word(volume.erasure.state)}</Badge>;
  if (volume.read_only) return <Badge tone="quiet">read-only</Badge>;
  return volume.sessions > 0 ? <Badge tone="ok">in use</Badge> : <Badge tone="quiet">idle</Badge>;
}

export function Used({ volume }: { volume: Volume }) {
  if (volume.used_bytes === null || volume.size_bytes === 0) return <>–</>;
  const share = volume.used_bytes / volume.size_bytes;
  return (
    <span class="used">
      <Meter share={share} label={`${Math.round(share * 100)} % used`} />
      {size(volume.used_bytes)}
    </span>
  );
}

function List({ volumes: all }: { volumes: Volume[] }) {
  return (
    <Table
      label="Volumes"
      rows={[...all].sort((a, b) => a.name.localeCompare(b.name))}
      rowKey={(it) => it.name}
      columns={[
        {
          head: "Volume",
          names: true,
          cell: (it) => (
            <a class="name" href={link`volumes/${it.name}`}>
              {it.name}
            </a>
          ),
        },
        { head: "State", cell: (it) => <VolumeState volume={it} /> },
        { head: "Backend", minor: true, cell: (it) => it.backend },
        { head: "Size", figures: true, cell: (it) => (it.size_bytes > 0 ? size(it.size_bytes) : "–") },
        { head: "Used", figures: true, cell: (it) => <Used volume={it} /> },
        { head: "Write cache", minor: true, cell: (it) => word(it.write_cache) },
        {
          head: "LUNs",
          cell: (it) =>
            it.luns.length === 0 ? (
              <span class="muted">not mapped</span>
            ) : (
              <ul class="plain-list">
                {it.luns.map((lun) => (
                  <li key={`${lun.target} ${lun.lun}`} class="name">
                    {lun.target}/{lun.lun}
                  </li>
                ))}
              </ul>
            ),
        },
        { head: "Sessions", figures: true, cell: (it) => it.sessions },
        { head: "Snapshots", minor: true, figures: true, cell: (it) => it.snapshots },
      ]}
    />
  );
}

export const usedIn = (volume: Volume): string =>
  volume.luns.length === 0 ? "It is no LUN of a target." : `It is ${plural(volume.luns.length, "LUN")} of targets.`;
