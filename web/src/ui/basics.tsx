/** The small parts that every screen is made of. */

import type { ComponentChildren, JSX } from "preact";
import { useId } from "preact/hooks";
import { useSignal } from "@preact/signals";
import type { Problem } from "../api/client";
import { SIZE_UNITS } from "../lib/sizes";
import type { Resource } from "../state";
import { announce } from "./announce";
import { Icon, type IconName } from "./icons";

type Tone = "ok" | "warn" | "bad" | "info" | "quiet";

interface ButtonProps {
  kind?: "primary" | "danger" | "plain" | "quiet";
  busy?: boolean | undefined;
  disabled?: boolean | undefined;
  small?: boolean;
  icon?: IconName;
  label?: string | undefined;
  expanded?: boolean | undefined;
  onClick?: (event: JSX.TargetedMouseEvent<HTMLButtonElement>) => void;
  submit?: boolean;
  children?: ComponentChildren;
}

export function Button(props: ButtonProps) {
  const { kind = "plain", busy, disabled, small, icon, label, onClick, submit, expanded, children } = props;
  return (
    <button
      type={submit ? "submit" : "button"}
      class={`button ${kind} ${small ? "small" : ""} ${busy ? "busy" : ""}`}
      disabled={disabled}
      aria-busy={busy ? "true" : undefined}
      aria-label={label}
      aria-expanded={expanded}
      // A busy button keeps the focus, so it is not disabled: it only does nothing.
      onClick={busy ? (event) => event.preventDefault() : onClick}
    >
      {icon && <Icon name={icon} />}
      {children}
    </button>
  );
}

/** A link that looks as a button. */
export function ButtonLink({ href, kind = "plain", icon, children }: { href: string; kind?: "primary" | "plain"; icon?: IconName; children: ComponentChildren }) {
  return (
    <a class={`button ${kind}`} href={href}>
      {icon && <Icon name={icon} />}
      {children}
    </a>
  );
}

export interface FieldProps {
  label: ComponentChildren;
  hint?: ComponentChildren;
  error?: string | null | undefined;
  /** Gets the attributes that tie the control to its label, hint and error. */
  children: (attributes: { id: string; "aria-describedby"?: string; "aria-invalid"?: "true" }) => ComponentChildren;
}

export function Field({ label, hint, error, children }: FieldProps) {
  const id = useId();
  const described = [hint ? `${id}-hint` : "", error ? `${id}-error` : ""].filter(Boolean).join(" ");
  return (
    <div class={`field ${error ? "wrong" : ""}`}>
      <label for={id}>{label}</label>
      {children({
        id,
        ...(described ? { "aria-describedby": described } : {}),
        ...(error ? { "aria-invalid": "true" as const } : {}),
      })}
      {hint && (
        <p class="hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
      {error && (
        <p class="error" id={`${id}-error`}>
          {error}
        </p>
      )}
    </div>
  );
}

interface TextFieldProps extends Omit<FieldProps, "children"> {
  value: string;
  onInput: (value: string) => void;
  type?: "text" | "password";
  /** What the browser may fill in; nothing if it is left out, as for names of the server's things. */
  autoComplete?: string;
  inputMode?: "decimal" | "numeric";
  placeholder?: string;
  required?: boolean;
  class?: string;
  /** What is suggested. */
  suggestions?: { value: string; label?: string }[] | undefined;
}

interface SelectFieldProps<T extends string> extends Omit<FieldProps, "children"> {
  value: T;
  options: readonly { value: T; label?: string }[];
  onInput: (value: T) => void;
}

/** One of several. An option without a label is its own. */
export function SelectField<T extends string>({ label, hint, error, value, options, onInput }: SelectFieldProps<T>) {
  return (
    <Field label={label} hint={hint} error={error}>
      {(attributes) => (
        <select {...attributes} value={value} onChange={(event) => onInput(event.currentTarget.value as T)}>
          {options.map((it) => (
            <option key={it.value} value={it.value}>
              {it.label ?? it.value}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

/** A field of one line. Names and paths are taken as they are typed: nothing is corrected or capitalised. */
export function TextField({ label, hint, error, value, onInput, type = "text", autoComplete = "off", suggestions, ...input }: TextFieldProps) {
  return (
    <Field label={label} hint={hint} error={error}>
      {(attributes) => (
        <>
          <input
            {...attributes}
            {...input}
            type={type}
            autoComplete={autoComplete}
            autoCapitalize="none"
            spellcheck={false}
            list={suggestions && `${attributes.id}-list`}
            value={value}
            onInput={(event) => onInput(event.currentTarget.value)}
          />
          {suggestions && (
            <datalist id={`${attributes.id}-list`}>
              {suggestions.map((it) => (
                <option key={it.value} value={it.value}>
                  {it.label}
                </option>
              ))}
            </datalist>
          )}
        </>
      )}
    </Field>
  );
}

/** The fewest characters of a password. */
export const SHORTEST = 8;

/** A new password; `warns` says that it is too short while it is. */
export function NewPasswordField({ label, value, warns, onInput, required }: Pick<TextFieldProps, "label" | "value" | "onInput" | "required"> & { warns: boolean }) {
  return (
    <TextField
      label={label}
      hint={`At least ${SHORTEST} characters.`}
      error={warns && value.length < SHORTEST ? `Use at least ${SHORTEST} characters.` : null}
      type="password"
      autoComplete="new-password"
      required={required}
      value={value}
      onInput={onInput}
    />
  );
}

interface SizeFieldProps extends Omit<FieldProps, "children"> {
  number: string;
  unit: string;
  set: (change: { number?: string; unit?: string }) => void;
}

/** A size: a number and its unit. */
export function SizeField({ label, hint, error, number, unit, set }: SizeFieldProps) {
  return (
    <Field label={label} hint={hint} error={error}>
      {(attributes) => (
        <div class="joined">
          <input {...attributes} type="text" inputMode="decimal" autoComplete="off" value={number} onInput={(event) => set({ number: event.currentTarget.value })} />
          <select aria-label="Unit of the size" value={unit} onChange={(event) => set({ unit: event.currentTarget.value })}>
            {SIZE_UNITS.map((it) => (
              <option key={it}>{it}</option>
            ))}
          </select>
        </div>
      )}
    </Field>
  );
}

export function Checkbox({ checked, onChange, disabled, children, hint }: { checked: boolean; onChange: (checked: boolean) => void; disabled?: boolean; children: ComponentChildren; hint?: ComponentChildren }) {
  const id = useId();
  return (
    <div class="check">
      <input
        type="checkbox"
        id={id}
        checked={checked}
        disabled={disabled}
        aria-describedby={hint ? `${id}-hint` : undefined}
        onChange={(event) => onChange(event.currentTarget.checked)}
      />
      <label for={id}>{children}</label>
      {hint && (
        <p class="hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
    </div>
  );
}

/** One of a few choices, as a group of radio buttons. */
export function Choice<T extends string>({ legend, name, value, options, onChange, hint }: { legend: string; name: string; value: T; options: { value: T; label: ComponentChildren; hint?: string }[]; onChange: (value: T) => void; hint?: ComponentChildren }) {
  return (
    <fieldset class="choice">
      <legend>{legend}</legend>
      <div class="options">
        {options.map((option) => (
          <label key={option.value} class={option.value === value ? "chosen" : ""}>
            <input
              type="radio"
              name={name}
              value={option.value}
              checked={option.value === value}
              onChange={() => onChange(option.value)}
            />
            <span>
              {option.label}
              {option.hint && <small>{option.hint}</small>}
            </span>
          </label>
        ))}
      </div>
      {hint && <p class="hint">{hint}</p>}
    </fieldset>
  );
}

const TONE_ICONS: Record<Tone, IconName> = { ok: "check", warn: "warning", bad: "warning", info: "info", quiet: "info" };

export function Notice({ tone = "info", title, children, live }: { tone?: Tone; title?: ComponentChildren; children?: ComponentChildren; live?: boolean }) {
  return (
    <div class={`notice ${tone}`} role={live ? (tone === "bad" ? "alert" : "status") : undefined}>
      <Icon name={TONE_ICONS[tone]} />
      <div>
        {title && <p class="notice-title">{title}</p>}
        {children}
      </div>
    </div>
  );
}

/** The server's own sentence. */
export function ProblemNotice({ problem, retry }: { problem: Problem | null | undefined; retry?: () => void }) {
  if (!problem) return null;
  return (
    <Notice tone="bad" live>
      <p>{problem.detail}</p>
      {retry && (
        <Button small onClick={retry}>
          Try again
        </Button>
      )}
    </Notice>
  );
}

export function Badge({ tone, children }: { tone: Tone; children: ComponentChildren }) {
  return <span class={`badge ${tone}`}>{children}</span>;
}

export function Empty({ title, children, action }: { title: string; children?: ComponentChildren; action?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
      {action && <div class="actions">{action}</div>}
    </div>
  );
}

/** A part of a screen, with its heading and what can be done there. */
export function Card({ title, actions, children, level = 2, class: more }: { title?: ComponentChildren; actions?: ComponentChildren; children: ComponentChildren; level?: 2 | 3; class?: string }) {
  const id = useId();
  const Heading = level === 2 ? "h2" : "h3";
  return (
    <section class={`card ${more ?? ""}`} aria-labelledby={title ? id : undefined}>
      {title && (
        <header>
          <Heading id={id}>{title}</Heading>
          {actions && <div class="actions">{actions}</div>}
        </header>
      )}
      {children}
    </section>
  );
}

/** Terms and what they are. */
export function Facts({ of }: { of: [ComponentChildren, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {of.map(([term, what], at) => (
        <div key={at}>
          <dt>{term}</dt>
          <dd>{what}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A button that copies a text, and says so. */
export function Copy({ text, what }: { text: string; what: string }) {
  const copied = useSignal(false);
  const copy = async (): Promise<void> => {
    const done = await toClipboard(text);
    copied.value = done;
    announce(done ? `${what} copied` : `${what} could not be copied: select it and copy it by hand`);
    setTimeout(() => {
      copied.value = false;
    }, 2000);
  };
  return (
    <Button small kind="quiet" icon={copied.value ? "check" : "copy"} label={`Copy ${what}`} onClick={() => void copy()}>
      {copied.value ? "Copied" : "Copy"}
    </Button>
  );
}

/** The clipboard of browsers is for pages by TLS and of this machine; for others there is the older way. */
async function toClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.setAttribute("aria-hidden", "true");
    area.className = "visually-hidden";
    const dialogs = document.querySelectorAll("dialog[open]");
    (dialogs.item(dialogs.length - 1) ?? document.body).append(area);
    const before = document.activeElement as HTMLElement | null;
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    before?.focus();
    return done;
  }
}

/** Something to type elsewhere. */
export function Code({ code, what, language }: { code: string; what: string; language?: string }) {
  return (
    <div class="code">
      <pre tabIndex={0} role="region" aria-label={what} data-language={language}>
        <code>{code}</code>
      </pre>
      <Copy text={code} what={what} />
    </div>
  );
}

/** A share of a whole, as a bar with its words. */
export function Meter({ share, label, tone }: { share: number; label: string; tone?: Tone }) {
  const part = Math.min(1, Math.max(0, share));
  return (
    <svg class={`meter ${tone ?? ""}`} viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label={label}>
      <rect class="meter-all" width="100" height="6" rx="2" />
      <rect class="meter-part" width={part * 100} height="6" rx="2" />
    </svg>
  );
}

/** What is shown of a resource: its content, or why there is none. */
export function Loaded<T>({ of, children }: { of: Resource<T>; children: (data: T) => ComponentChildren }) {
  const data = of.data.value;
  const problem = of.problem.value;
  if (data === undefined && problem) return <ProblemNotice problem={problem} retry={() => void of.refresh()} />;
  if (data === undefined) return <Loading />;
  return (
    <>
      {problem && <ProblemNotice problem={problem} retry={() => void of.refresh()} />}
      {children(data)}
    </>
  );
}

export function Loading({ what = "Loading" }: { what?: string }) {
  return (
    <p class="loading">
      <span class="spinner" aria-hidden="true" />
      {what} …
    </p>
  );
}

/** Why an action is not offered. */
export function NeedsRole({ role }: { role: string }) {
  return <p class="muted">This needs an account with the role {role}.</p>;
}
