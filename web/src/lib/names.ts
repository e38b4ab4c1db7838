/** Names of volumes, targets and initiators, and who a list of initiators admits. */

import type { Target } from "../api/types";

export const VOLUME_NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;

/** Why a text is no name of a volume; nothing if it is one. */
export function volumeNameProblem(name: string, taken: string[]): string | null {
  if (!name) return "Give the disk a name.";
  if (!VOLUME_NAME.test(name)) {
    return "Use 1 to 64 letters, digits, “-”, “_” and “.”, beginning with a letter or a digit.";
  }
  return taken.includes(name) ? `There is a volume ${name} already.` : null;
}

/** Why a text is no iSCSI name, as far as this page can tell. */
export function initiatorProblem(name: string): string | null {
  if (!name) return "Give the initiator’s name.";
  if (isAddress(name)) return null;
  if (!/^(iqn\.|eui\.|naa\.|nqn\.|\*)/i.test(name)) {
    return "An initiator’s name begins with iqn., eui. or naa.; an address or a network is allowed, too.";
  }
  return /\s/.test(name) || name.length > 223 ? "A name has no spaces, and at most 223 characters." : null;
}

/** What comes before the colon of a new target's name: that of the targets that there are. */
export function authority(targets: Target[]): string {
  const first = targets.map((target) => target.name).find((name) => name.startsWith("iqn.") && name.includes(":"));
  return first ? first.slice(0, first.indexOf(":")) : "iqn.2026-11.local.lunet";
}

/** The name of a target for a volume: names of targets are in lower case, and have no `_`. */
export function targetName(volume: string, targets: Target[]): string {
  const tail = volume.toLowerCase().replaceAll("_", "-");
  const base = `${authority(targets)}:${tail}`;
  const taken = new Set(targets.map((target) => target.name));
  if (!taken.has(base)) return base;
  let number = 2;
  while (taken.has(`${base}-${number}`)) number += 1;
  return `${base}-${number}`;
}

/** The lowest LUN that a target has not used. */
export function freeLun(target: Target | undefined): number {
  const used = new Set(target?.luns.map((lun) => lun.lun));
  let lun = 0;
  while (used.has(lun)) lun += 1;
  return lun;
}

const ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnpqrstuvwxyz23456789";

/** A secret of 16 random characters: as many as Windows takes, and more than a dictionary has. */
export function newSecret(): string {
  let secret = "";
  while (secret.length < 16) {
    for (const byte of crypto.getRandomValues(new Uint8Array(32))) {
      // No remainder that makes some characters likelier than others.
      if (byte < ALPHABET.length * 4 && secret.length < 16) secret += ALPHABET[byte % ALPHABET.length];
    }
  }
  return secret;
}

/** `192.0.2.10:3260` and `[2001:db8::1]:3260` in their parts. */
export function hostPort(address: string): { host: string; port: string } {
  const at = address.lastIndexOf(":");
  return { host: address.slice(0, at).replace(/^\[|\]$/g, ""), port: address.slice(at + 1) };
}

export function isLoopback(address: string): boolean {
  const { host } = hostPort(address);
  return host.startsWith("127.") || host === "::1" || host === "localhost";
}

export function isAnyAddress(address: string): boolean {
  const { host } = hostPort(address);
  return host === "0.0.0.0" || host === "::";
}

/** Whether an entry of a list is an address or a network, and not a name. */
export function isAddress(entry: string): boolean {
  return /^[0-9.]+(\/\d+)?$/.test(entry) || (/^[0-9a-f:.]+(\/\d+)?$/i.test(entry) && entry.includes(":"));
}

function bits(address: string): bigint | null {
  if (/^\d+\.\d+\.\d+\.\d+$/.test(address)) {
    return address.split(".").reduce((all, part) => (all << 8n) | BigInt(Number(part) & 255), 0n);
  }
  if (!address.includes(":")) return null;
  const [head, tail] = address.split("::");
  const left = head ? head.split(":") : [];
  const right = tail ? tail.split(":") : [];
  const middle = tail === undefined ? 0 : 8 - left.length - right.length;
  if (middle < 0) return null;
  const groups = [...left, ...Array<string>(middle).fill("0"), ...right];
  if (groups.length !== 8) return null;
  return groups.reduce((all, group) => (all << 16n) | BigInt(Number.parseInt(group || "0", 16) || 0), 0n);
}

function inNetwork(network: string, address: string): boolean {
  const [base, prefix] = network.split("/");
  const [a, b] = [bits(base), bits(address)];
  const width = base.includes(":") ? 128 : 32;
  if (a === null || b === null || base.includes(":") !== address.includes(":")) return false;
  const shift = BigInt(width - (prefix === undefined ? width : Number(prefix)));
  return a >> shift === b >> shift;
}

function matches(pattern: string, name: string): boolean {
  const escaped = pattern.toLowerCase().replace(/[.+?^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*");
  return new RegExp(`^${escaped}$`).test(name.toLowerCase());
}

/**
 * Whether a list of initiators admits a name that comes from an address; `null` if the address decides and is not known.
 * Names and addresses of a list work together, as docs/access.md says.
 */
export function admits(list: string[], name: string, address: string | null): boolean | null {
  const networks = list.filter(isAddress);
  const names = list.filter((entry) => !isAddress(entry));
  if (list.length === 0) return false;
  if (names.length > 0 && !names.some((pattern) => matches(pattern, name))) return false;
  if (networks.length === 0) return true;
  if (address === null) return null;
  return networks.some((network) => inNetwork(network, address));
}

/** The address of `192.0.2.20:51234` without its port. */
export const addressOf = (peer: string): string =>
  /^\[.*\]:\d+$|^[^:]+:\d+$/.test(peer) ? hostPort(peer).host : peer;
