/** What is told to screen readers, and shown for a moment at the foot of the page. */

import { signal } from "@preact/signals";

const message = signal<{ text: string; id: number } | null>(null);
let timer: ReturnType<typeof setTimeout> | undefined;
let next = 1;

/** Tells something that has happened. */
export function announce(text: string): void {
  clearTimeout(timer);
  message.value = { text, id: next++ };
  timer = setTimeout(() => {
    message.value = null;
  }, 6000);
}

export function Announcer() {
  return (
    <div class="announcer" role="status" aria-live="polite" aria-atomic="true">
      {message.value && <p key={message.value.id}>{message.value.text}</p>}
    </div>
  );
}
