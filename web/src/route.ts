/** Where in the page we are: the part of the address after `#`. */

import { computed, signal } from "@preact/signals";

const hash = signal(location.hash);
addEventListener("hashchange", () => {
  hash.value = location.hash;
});

/** The parts of the way, decoded: `#/volumes/vm1` is `["volumes", "vm1"]`. */
export const parts = computed(() => {
  const [path] = hash.value.replace(/^#\/?/, "").split("?");
  return path.split("/").filter(Boolean).map(decode);
});

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of a screen: `` link`volumes/${name}` ``. */
export function link(texts: TemplateStringsArray, ...values: string[]): string {
  return `#/${texts.reduce((all, text, at) => all + encodeURIComponent(values[at - 1]) + text)}`;
}

export function go(to: string): void {
  location.hash = to;
}
