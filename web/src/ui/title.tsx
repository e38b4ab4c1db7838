/** The heading of a screen. */

import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";

export function Title({ title, back, about, actions }: { title: string; back?: { to: string; label: string }; about?: ComponentChildren; actions?: ComponentChildren }) {
  useEffect(() => {
    document.title = `${title} – lunet`;
  }, [title]);
  return (
    <header class="title">
      {back && (
        <a class="back" href={back.to}>
          {back.label}
        </a>
      )}
      <div class="title-row">
        <h1 tabIndex={-1}>{title}</h1>
        {actions && <div class="actions">{actions}</div>}
      </div>
      {about && <p class="about">{about}</p>}
    </header>
  );
}
