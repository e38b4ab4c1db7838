/**
 * How to attach a LUN, platform by platform. The commands are those of docs/attach.md, vmware.md, proxmox.md, windows.md,
 * kubernetes.md and access.md; web/tests/commands.spec.ts holds both equal.
 */

import { hostPort } from "./names";

export const PLATFORMS = ["esxi", "proxmox", "libvirt", "linux", "windows", "kubernetes"] as const;
export type Platform = (typeof PLATFORMS)[number];

export const PLATFORM_NAMES: Record<Platform, string> = {
  esxi: "VMware ESXi",
  proxmox: "Proxmox VE",
  libvirt: "libvirt, KVM",
  linux: "Linux",
  windows: "Windows",
  kubernetes: "Kubernetes",
};

/** What is attached. */
export interface Attachment {
  volume: string;
  target: string;
  lun: number;
  /** Address and port of the portal. */
  portal: string;
  sizeBytes: number;
  /** The initiator's name, where the initiator can be given one. */
  initiator?: string | undefined;
  /** CHAP name and secret; the secret is `SECRET` where it is not shown any more. */
  chap?: { name: string; secret: string } | undefined;
}

export interface Step {
  title: string;
  /** What to know about it, in a sentence or two. */
  note?: string;
  /** The language of `code`, for its label: `sh`, `xml`, `yaml`, `powershell`, `text`, `toml`. */
  language: string;
  code: string;
}

/** Where an initiator's name is found, as a sentence with a command. */
export const WHERE_NAME: Record<Platform, { text: string; command?: string }> = {
  esxi: { text: "In the host’s shell", command: "esxcli iscsi adapter get --adapter=vmhba64" },
  proxmox: { text: "On the node; each node has a name of its own", command: "cat /etc/iscsi/initiatorname.iscsi" },
  libvirt: { text: "You choose it here: it becomes part of the disk’s XML." },
  linux: { text: "On the host", command: "cat /etc/iscsi/initiatorname.iscsi" },
  windows: { text: "In PowerShell", command: "Get-InitiatorPort" },
  kubernetes: { text: "On the node; each node has a name of its own", command: "cat /etc/iscsi/initiatorname.iscsi" },
};

/** What needs no quotes in any of the languages of the commands. */
const PLAIN = /^[A-Za-z0-9._:@-]+$/;

/**
 * The steps for a platform. A CHAP name or secret that would need quotes, or that somebody has chosen to be run by a shell, is
 * not put into a command.
 */
export function steps(platform: Platform, of: Attachment): Step[] {
  const { chap } = of;
  if (!chap || (PLAIN.test(chap.name) && PLAIN.test(chap.secret))) return plainSteps(platform, of);
  const name = PLAIN.test(chap.name) ? chap.name : "CHAP_NAME";
  const secret = PLAIN.test(chap.secret) ? chap.secret : "SECRET";
  const [first, ...rest] = plainSteps(platform, { ...of, chap: { name, secret } });
  const note = "Put the user’s name or secret in the place of CHAP_NAME and SECRET, quoted: it has characters that have a meaning here.";
  return first ? [{ ...first, note: first.note ? `${note} ${first.note}` : note }, ...rest] : [];
}

function plainSteps(platform: Platform, of: Attachment): Step[] {
  switch (platform) {
    case "esxi":
      return esxi(of);
    case "proxmox":
      return proxmox(of);
    case "libvirt":
      return libvirt(of);
    case "linux":
      return linux(of);
    case "windows":
      return windows(of);
    case "kubernetes":
      return kubernetes(of);
  }
}

function esxi({ portal, chap }: Attachment): Step[] {
  const out: Step[] = [
    {
      title: "Switch the software adapter on",
      note: "The second command shows the adapter’s name; below it is vmhba64. The rule is added once for each host, before the first rescan.",
      language: "sh",
      code: [
        "esxcli iscsi software set --enabled=true",
        "esxcli iscsi adapter list",
        "esxcli storage nmp satp rule add --satp=VMW_SATP_ALUA --psp=VMW_PSP_RR \\",
        '  --vendor=LUNET --model="VIRTUAL DISK" --claim-option=tpgs_on --description="lunet"',
      ].join("\n"),
    },
  ];
  if (chap) {
    out.push({
      title: "Give it the secret",
      note: "ESXi uses these credentials for discovery, too: configure the same user in [discovery] if discovery asks for CHAP.",
      language: "sh",
      code: [
        "esxcli iscsi adapter auth chap set --adapter=vmhba64 --direction=uni --level=required \\",
        `  --authname=${chap.name} --secret=${chap.secret}`,
      ].join("\n"),
    });
  }
  out.push({
    title: "Find the disk",
    note: "The last command shows it, with vendor LUNET. Then create a datastore on it.",
    language: "sh",
    code: [
      `esxcli iscsi adapter discovery sendtarget add --adapter=vmhba64 --address=${portal}`,
      "esxcli storage core adapter rescan --adapter=vmhba64",
      "esxcli storage core device list",
    ].join("\n"),
  });
  return out;
}

/** open-iscsi: find the target, tell the secret, log in. */
function openIscsi({ target, portal, chap }: Attachment, login: boolean): string {
  const node = `iscsiadm -m node -T ${target} -p ${portal}`;
  const lines = [`iscsiadm -m discovery -t sendtargets -p ${portal}`];
  if (chap) {
    lines.push(
      `${node} -o update -n node.session.auth.authmethod -v CHAP`,
      `${node} -o update -n node.session.auth.username -v ${chap.name}`,
      `${node} -o update -n node.session.auth.password -v ${chap.secret}`,
    );
  }
  if (login) lines.push(`${node} --login`);
  return lines.join("\n");
}

const byPath = ({ target, lun, portal }: Attachment): string =>
  `/dev/disk/by-path/ip-${portal}-iscsi-${target}-lun-${lun}`;

function linux(of: Attachment): Step[] {
  return [
    {
      title: "Log in, as root",
      note: "Package open-iscsi (Debian, Ubuntu) or iscsi-initiator-utils (Red Hat).",
      language: "sh",
      code: openIscsi(of, true),
    },
    { title: "The disk", language: "sh", code: `ls -l ${byPath(of)}` },
    {
      title: "Log in at every boot",
      note: "Mount by a stable name, such as the file system’s UUID, and with _netdev in /etc/fstab.",
      language: "sh",
      code: [
        `iscsiadm -m node -T ${of.target} -p ${of.portal} \\`,
        "  --op update -n node.startup -v automatic",
      ].join("\n"),
    },
  ];
}

function proxmox(of: Attachment): Step[] {
  const { host } = hostPort(of.portal);
  const out: Step[] = [
    { title: "On every node", language: "sh", code: "apt install open-iscsi multipath-tools" },
  ];
  if (of.chap) {
    out.push({
      title: "The secret, on every node",
      note: "Proxmox’s storage configuration cannot hold secrets: set them before you add the storage.",
      language: "sh",
      code: openIscsi(of, false),
    });
  }
  out.push(
    {
      title: "The storage, in /etc/pve/storage.cfg",
      note: "Once for the cluster.",
      language: "text",
      code: [
        "iscsi: lunet",
        `        portal ${host}`,
        `        target ${of.target}`,
        "        content none",
      ].join("\n"),
    },
    {
      title: "A volume group, on one node",
      note: "With several paths use the device that multipath -ll shows, such as /dev/mapper/mpatha.",
      language: "sh",
      code: [`pvcreate ${byPath(of)}`, `vgcreate vg_lunet ${byPath(of)}`].join("\n"),
    },
    {
      title: "The volume group, in /etc/pve/storage.cfg",
      note: "Proxmox creates the disks of virtual machines in it, and makes sure that only one node uses each.",
      language: "text",
      code: [
        "lvm: vm-disks",
        "        vgname vg_lunet",
        "        shared 1",
        "        content images,rootdir",
      ].join("\n"),
    },
  );
  return out;
}

function libvirt(of: Attachment): Step[] {
  const { host, port } = hostPort(of.portal);
  const out: Step[] = [...imageSteps(of)];
  if (of.chap) {
    out.push({
      title: "The secret, in libvirt’s own store",
      note: "secret-define prints the UUID for the next command, which asks for the secret.",
      language: "sh",
      code: [
        "cat > secret.xml <<'EOF'",
        "<secret ephemeral='no' private='yes'>",
        "  <usage type='iscsi'><target>lunet</target></usage>",
        "</secret>",
        "EOF",
        "virsh secret-define secret.xml",
        "virsh secret-set-value UUID --interactive",
      ].join("\n"),
    });
    out.push({ title: "The secret to type in", language: "text", code: of.chap.secret });
  }
  const lines = [
    "<disk type='network' device='disk'>",
    "  <driver name='qemu' type='raw' discard='unmap'/>",
    `  <source protocol='iscsi' name='${of.target}/${of.lun}'>`,
    `    <host name='${host}' port='${port}'/>`,
  ];
  if (of.initiator) lines.push("    <initiator>", `      <iqn name='${of.initiator}'/>`, "    </initiator>");
  if (of.chap) {
    lines.push(
      `    <auth username='${of.chap.name}'>`,
      "      <secret type='iscsi' usage='lunet'/>",
      "    </auth>",
    );
  }
  lines.push("  </source>", "  <target dev='vda' bus='virtio'/>", "</disk>");
  out.push(
    { title: "The disk, in disk.xml", language: "xml", code: lines.join("\n") },
    {
      title: "Attach it to a guest",
      note: "--config keeps it for the next start; a guest that has no other disk boots from it. QEMU’s block driver for iSCSI is in Debian’s package qemu-block-extra.",
      language: "sh",
      code: "virsh attach-device GUEST disk.xml --config",
    },
  );
  out.push(qemuStep(of));
  return out;
}

/** What QEMU needs to know of a LUN, as its options; `below` for the driver below a format. */
function qemuOptions({ target, lun, portal, initiator, chap }: Attachment, below: string): string {
  return [
    "driver=iscsi",
    "transport=tcp",
    `portal=${portal}`,
    `target=${target}`,
    `lun=${lun}`,
    ...(initiator ? [`initiator-name=${initiator}`] : []),
    ...(chap ? [`user=${chap.name}`, "password-secret=chap"] : []),
  ]
    .map((it) => below + it)
    .join(",");
}

const SECRET_FILE = "secret,id=chap,file=lunet.secret";

/** An installed system onto the LUN. */
function imageSteps(of: Attachment): Step[] {
  const out: Step[] = [];
  if (of.chap) {
    out.push({
      title: "The secret, in a file for QEMU’s programs",
      note: "The file must not end with a line break.",
      language: "sh",
      code: `(umask 077; printf %s ${of.chap.secret} > lunet.secret)`,
    });
  }
  out.push({
    title: "Copy an image onto it, if there is one",
    note: "An image of an installed system, of any format that QEMU knows, not larger than the disk.",
    language: "sh",
    code: [
      `qemu-img convert -n --target-image-opts ${of.chap ? `--object ${SECRET_FILE} ` : ""}disk.qcow2 \\`,
      `  driver=raw,${qemuOptions(of, "file.")}`,
    ].join("\n"),
  });
  return out;
}

/** A virtual machine that boots from the LUN, without libvirt. */
function qemuStep(of: Attachment): Step {
  return {
    title: "Or boot from it by QEMU alone",
    language: "sh",
    code: [
      `qemu-system-x86_64 -m 2G -accel kvm ${of.chap ? `-object ${SECRET_FILE} ` : ""}\\`,
      `  -drive ${qemuOptions(of, "")},discard=unmap,if=virtio`,
    ].join("\n"),
  };
}

function windows({ target, portal, chap }: Attachment): Step[] {
  const { host } = hostPort(portal);
  const lines = [
    "Set-Service msiscsi -StartupType Automatic; Start-Service msiscsi",
    `New-IscsiTargetPortal -TargetPortalAddress ${host}`,
  ];
  if (chap) {
    lines.push(
      `Connect-IscsiTarget -NodeAddress ${target} -TargetPortalAddress ${host} \``,
      `  -AuthenticationType ONEWAYCHAP -ChapUsername ${chap.name} -ChapSecret "${chap.secret}" -IsPersistent $true`,
    );
  } else {
    lines.push(
      `Connect-IscsiTarget -NodeAddress ${target} -TargetPortalAddress ${host} -IsPersistent $true`,
    );
  }
  return [
    {
      title: "In PowerShell, as administrator",
      language: "powershell",
      code: lines.join("\n"),
    },
    {
      title: "The disk",
      note: "Bring it online, initialise it as GPT and format it; NTFS or ReFS with 64 KiB clusters for virtual machines.",
      language: "powershell",
      code: "Get-Disk | Where-Object BusType -eq iSCSI",
    },
  ];
}

/** Kubernetes' names: lower case, digits and dashes. */
const resourceName = (volume: string): string =>
  volume.toLowerCase().replace(/[^a-z0-9-]+/g, "-").replace(/^-+|-+$/g, "") || "lunet";

/** A quantity of Kubernetes that is not larger than the volume. */
function quantity(bytes: number): string {
  for (const [unit, factor] of [["Ti", 2 ** 40], ["Gi", 2 ** 30], ["Mi", 2 ** 20]] as const) {
    if (bytes >= factor && bytes % factor === 0) return `${bytes / factor}${unit}`;
  }
  return `${Math.max(1, Math.floor(bytes / 2 ** 20))}Mi`;
}

function kubernetes(of: Attachment): Step[] {
  const name = resourceName(of.volume);
  const out: Step[] = [];
  if (of.chap) {
    out.push({
      title: "The secret",
      language: "yaml",
      code: [
        "apiVersion: v1",
        "kind: Secret",
        "metadata:",
        "  name: lunet-chap",
        'type: "kubernetes.io/iscsi-chap"',
        "stringData:",
        `  node.session.auth.username: "${of.chap.name}"`,
        `  node.session.auth.password: "${of.chap.secret}"`,
      ].join("\n"),
    });
  }
  const chap = ["    chapAuthSession: true", "    secretRef:", "      name: lunet-chap", "      namespace: default"];
  out.push({
    title: "Volume and claim",
    note: "Every node needs open-iscsi with iscsid running, and an initiator name of its own. A pod uses the claim with volumeDevices.",
    language: "yaml",
    code: [
      "apiVersion: v1",
      "kind: PersistentVolume",
      "metadata:",
      `  name: ${name}`,
      "spec:",
      "  capacity:",
      `    storage: ${quantity(of.sizeBytes)}`,
      "  volumeMode: Block",
      "  accessModes: [ReadWriteOnce]",
      "  persistentVolumeReclaimPolicy: Retain",
      "  storageClassName: lunet",
      "  iscsi:",
      `    targetPortal: ${of.portal}`,
      `    iqn: ${of.target}`,
      `    lun: ${of.lun}`,
      ...(of.chap ? chap : []),
      "---",
      "apiVersion: v1",
      "kind: PersistentVolumeClaim",
      "metadata:",
      `  name: ${name}`,
      "spec:",
      "  storageClassName: lunet",
      `  volumeName: ${name}`,
      "  volumeMode: Block",
      "  accessModes: [ReadWriteOnce]",
      "  resources:",
      "    requests:",
      `      storage: ${quantity(of.sizeBytes)}`,
    ].join("\n"),
  });
  return out;
}
