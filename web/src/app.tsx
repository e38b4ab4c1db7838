/** The page: login, or the frame with a screen in it. */

import { useEffect, useRef } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { useSignal } from "@preact/signals";
import { follow } from "./live";
import { link, parts } from "./route";
import { begin, connected, firstStart, groups, logOut, me, startProblem } from "./state";
import { Announcer } from "./ui/announce";
import { Button, Empty, Loading, ProblemNotice } from "./ui/basics";
import { Icon, type IconName, Mark } from "./ui/icons";
import { ThemeSwitch } from "./ui/theme";
import { Access } from "./screens/access";
import { Bench } from "./screens/bench";
import { ConfigurationScreen } from "./screens/configuration";
import { Doctor } from "./screens/doctor";
import { FirstStart, Welcome } from "./screens/first-start";
import { Groups } from "./screens/groups";
import { Login } from "./screens/login";
import { NewDisk } from "./screens/new-disk";
import { Overview } from "./screens/overview";
import { Sessions } from "./screens/sessions";
import { Tune } from "./screens/tune";
import { VolumeScreen } from "./screens/volume";
import { Volumes } from "./screens/volumes";

const NAV: { at: string; label: string; icon: IconName }[] = [
  { at: "", label: "Overview", icon: "overview" },
  { at: "volumes", label: "Volumes", icon: "disk" },
  { at: "access", label: "Access", icon: "access" },
  { at: "sessions", label: "Sessions", icon: "sessions" },
  { at: "groups", label: "Groups", icon: "groups" },
  { at: "doctor", label: "Doctor", icon: "doctor" },
  { at: "tune", label: "Tune", icon: "tune" },
  { at: "bench", label: "Bench", icon: "bench" },
  { at: "configuration", label: "Configuration", icon: "configuration" },
];

export function App() {
  useEffect(() => void begin(), []);
  const who = me.value;
  let content: ComponentChildren;
  if (startProblem.value) {
    content = (
      <Outside title="lunet">
        <ProblemNotice problem={startProblem.value} retry={() => void begin()} />
      </Outside>
    );
  } else if (who === undefined) {
    content = (
      <Outside title="lunet">
        <Loading />
      </Outside>
    );
  } else if (who === null) {
    content = firstStart.value ? (
      <Outside title="Welcome to lunet">
        <FirstStart />
      </Outside>
    ) : (
      <Outside title="Log in to lunet">
        <Login />
      </Outside>
    );
  } else {
    content = <Frame />;
  }
  return (
    <>
      {content}
      <Announcer />
    </>
  );
}

/** Before the login. */
function Outside({ title, children }: { title: string; children: ComponentChildren }) {
  useEffect(() => {
    document.title = title === "lunet" ? title : `${title} – lunet`;
  }, [title]);
  return (
    <main class="outside">
      <div class="outside-card">
        <header>
          <Mark />
          <h1>{title}</h1>
          <ThemeSwitch />
        </header>
        {children}
      </div>
    </main>
  );
}

function Frame() {
  useEffect(follow, []);
  const open = useSignal(false);
  const [section = "", ...rest] = parts.value;
  const way = parts.value.join("/");
  const first = useRef(true);

  useEffect(() => {
    open.value = false;
    // The heading of the new screen gets the focus, so that it is read out; not at the very start.
    if (first.current) first.current = false;
    else document.querySelector<HTMLElement>("h1")?.focus();
    scrollTo(0, 0);
  }, [way]);

  return (
    <div class={`frame ${open.value ? "nav-open" : ""}`}>
      <a
        class="skip"
        href="#content"
        onClick={(event) => {
          event.preventDefault();
          document.querySelector<HTMLElement>("h1")?.focus();
        }}
      >
        Skip to the content
      </a>
      <header class="bar">
        <Button
          kind="quiet"
          icon="menu"
          label={open.value ? "Close the menu" : "Open the menu"}
          expanded={open.value}
          onClick={() => (open.value = !open.value)}
        />
        <a class="brand" href="#/">
          <Mark />
          lunet
        </a>
        <LiveState />
        <Person />
      </header>
      <nav class="side" aria-label="Main">
        <ul>
          {NAV.filter(isShown).map(({ at, label, icon }) => (
            <li key={at}>
              <a href={at ? link`${at}` : "#/"} aria-current={isAt(at, section) ? "page" : undefined}>
                <Icon name={icon} />
                {label}
              </a>
            </li>
          ))}
        </ul>
        <a class="button primary" href="#/new-disk">
          <Icon name="plus" />
          New disk
        </a>
      </nav>
      <main id="content" key={section}>
        <Screen section={section} rest={rest} />
      </main>
    </div>
  );
}

/** Who has no failover group has no use for their screen. */
const isShown = ({ at }: { at: string }): boolean => at !== "groups" || (groups.data.value?.length ?? 0) > 0;

const isAt = (at: string, section: string): boolean => at === section;

function LiveState() {
  return (
    <span class={`live ${connected.value ? "on" : ""}`} role="status">
      <span class="dot" aria-hidden="true" />
      {connected.value ? "Live" : "Connecting"}
    </span>
  );
}

function Person() {
  const who = me.value;
  if (!who) return null;
  return (
    <div class="person">
      <ThemeSwitch />
      <span class="who">
        <Icon name="person" />
        {who.name}
        <small>{who.role}</small>
      </span>
      <Button kind="quiet" small onClick={() => void logOut().catch(() => {})}>
        Log out
      </Button>
    </div>
  );
}

function Screen({ section, rest }: { section: string; rest: string[] }) {
  switch (section) {
    case "":
      return <Overview />;
    case "welcome":
      return <Welcome />;
    case "new-disk":
      return <NewDisk />;
    case "volumes":
      return rest[0] ? <VolumeScreen key={rest[0]} name={rest[0]} /> : <Volumes />;
    case "access":
      return <Access />;
    case "sessions":
      return <Sessions />;
    case "groups":
      return <Groups />;
    case "doctor":
      return <Doctor />;
    case "tune":
      return <Tune only={rest[0]} />;
    case "bench":
      return <Bench />;
    case "configuration":
      return <ConfigurationScreen part={rest[0] ?? ""} />;
    default:
      return (
        <>
          <h1 tabIndex={-1}>Not found</h1>
          <Empty title="There is no such screen.">
            <p>
              <a href="#/">Go to the overview</a>
            </p>
          </Empty>
        </>
      );
  }
}
