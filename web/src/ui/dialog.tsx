/** A dialog of the browser's own kind: it keeps the focus, and Escape closes it. */

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { Button } from "./basics";

interface DialogProps {
  title: string;
  onClose: () => void;
  wide?: boolean;
  children: ComponentChildren;
}

export function Dialog({ title, onClose, wide, children }: DialogProps) {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const opener = document.activeElement as HTMLElement | null;
    const dialog = ref.current;
    dialog?.showModal();
    return () => {
      dialog?.close();
      // What opened it may be gone with what the dialog has removed.
      if (opener?.isConnected) opener.focus();
      else document.querySelector<HTMLElement>("h1")?.focus();
    };
  }, []);
  return (
    <dialog
      ref={ref}
      class={wide ? "wide" : ""}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
    >
      <header>
        <h2 id={id}>{title}</h2>
        <Button kind="quiet" small icon="cross" label="Close" onClick={onClose} />
      </header>
      <div class="dialog-body">{children}</div>
    </dialog>
  );
}
