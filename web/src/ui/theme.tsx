/** Light and dark: as the system has it, or as chosen here. */

import { effect, signal } from "@preact/signals";
import { Button } from "./basics";

export type Theme = "system" | "light" | "dark";
const KEY = "lunet-theme";
const ORDER: Theme[] = ["system", "light", "dark"];

function stored(): Theme {
  try {
    const kept = localStorage.getItem(KEY) as Theme | null;
    return kept && ORDER.includes(kept) ? kept : "system";
  } catch {
    return "system";
  }
}

const choice = signal<Theme>(stored());
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const dark = signal(systemDark.matches);
systemDark.addEventListener("change", (event) => {
  dark.value = event.matches;
});

/** What is shown. */
export const theme = signal<"light" | "dark">("light");

effect(() => {
  const shown = choice.value === "system" ? (dark.value ? "dark" : "light") : choice.value;
  document.documentElement.dataset.theme = shown;
  theme.value = shown;
  try {
    localStorage.setItem(KEY, choice.value);
  } catch {
    // Without storage the choice is for this visit.
  }
});

const NAMES: Record<Theme, string> = { system: "as the system", light: "light", dark: "dark" };

export function ThemeSwitch() {
  const now = choice.value;
  const then = ORDER[(ORDER.indexOf(now) + 1) % ORDER.length];
  return (
    <Button
      kind="quiet"
      small
      icon={now === "system" ? "auto" : now === "light" ? "sun" : "moon"}
      label={`Colours: ${NAMES[now]}. Change to ${NAMES[then]}`}
      onClick={() => (choice.value = then)}
    />
  );
}
