/** Icons of this page: 20 by 20, drawn with the colour of the text. They are for eyes alone: a label stands beside each. */

const PATHS = {
  overview: "M3 11.5 8 6.5l3 3 6-6M13 3.5h4v4M3 16.5h14",
  disk: "M10 3c4 0 7 1.2 7 2.7v8.6c0 1.5-3 2.7-7 2.7s-7-1.2-7-2.7V5.7C3 4.2 6 3 10 3ZM3 6c0 1.5 3 2.7 7 2.7S17 7.5 17 6M3 10.2c0 1.5 3 2.7 7 2.7s7-1.2 7-2.7",
  access: "M7 11a4 4 0 1 1 3.6-2.2L17 15v2h-3v-2h-2v-2h-1.5l-1.4-1.4A4 4 0 0 1 7 11ZM6 6.5h.01",
  sessions: "M3 7h11M11 4l3 3-3 3M17 13H6M9 10l-3 3 3 3",
  groups: "M3 4h6v5H3zM11 11h6v5h-6zM6 9v4.5h5M14 11V6.5H9",
  doctor: "M2.5 10H6l2-5 3.5 10 2-5h4",
  tune: "M3 6h7M14 6h3M3 14h3M10 14h7M12 4v4M8 12v4",
  bench: "M3 17V9M8 17V4M13 17v-6M17.5 17V7",
  configuration: "M6 3h6l4 4v10H6zM12 3v4h4M8.5 11h5M8.5 14h5",
  plus: "M10 4v12M4 10h12",
  check: "m4 10.5 4 4 8-9",
  cross: "m5 5 10 10M15 5 5 15",
  warning: "M10 3 2.5 16.5h15L10 3ZM10 8.5v3.5M10 14.3v.01",
  info: "M10 17a7 7 0 1 0 0-14 7 7 0 0 0 0 14ZM10 9.5V14M10 6.5v.01",
  copy: "M7 7h9v10H7zM4 13V3h9",
  menu: "M3 5.5h14M3 10h14M3 14.5h14",
  sun: "M10 13.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7ZM10 2v2M10 16v2M2 10h2M16 10h2M4.3 4.3l1.5 1.5M14.2 14.2l1.5 1.5M15.7 4.3l-1.5 1.5M5.8 14.2l-1.5 1.5",
  moon: "M16.5 12.2A7 7 0 0 1 7.8 3.5a7 7 0 1 0 8.7 8.7Z",
  auto: "M10 17a7 7 0 1 0 0-14 7 7 0 0 0 0 14ZM10 3v14M10 6l4-1.5M10 10h7M10 14l4 1.5",
  refresh: "M16 10a6 6 0 1 1-2-4.5M16 3v3.5h-3.5",
  chevron: "m7 4 6 6-6 6",
  person: "M10 10a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7ZM3.5 17c.6-3 3.2-4.5 6.5-4.5s5.9 1.5 6.5 4.5",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, class: more }: { name: IconName; class?: string }) {
  return (
    <svg class={`icon ${more ?? ""}`} viewBox="0 0 20 20" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}

/** The crescent of lunet. */
export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d="M20.5 14.8A9 9 0 1 1 10.3 3.2a7.3 7.3 0 0 0 10.2 11.6Z" />
      <circle cx="17" cy="7" r="1.8" />
    </svg>
  );
}
