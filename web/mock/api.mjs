// The API of the mock server: every request of web/src, with state in memory.

import { randomBytes } from "node:crypto";
import { CONFIG, facts, interval, now, portal, session, verdict, volume } from "./state.mjs";
import { knows, run } from "./jobs.mjs";

/** A refusal, as docs/api.md has it. */
export class Refusal extends Error {
  constructor(status, code, message, fix = "") {
    super(message);
    Object.assign(this, { status, code, fix });
  }
}

const missing = (what) => new Refusal(404, "not-found", `there is no ${what}`, "see what there is in its list");
const RANK = { viewer: 0, operator: 1, administrator: 2 };

const gib = (bytes) => `${Math.round((bytes / 2 ** 30) * 100) / 100} GiB`;
const done = (text, more = {}) => ({ done: text, notes: [], sessions: [], ...more });

/** The table of requests: method, path, role, and what to do. */
export function routes(server) {
  const { state } = server;
  const volumeOf = (name) => state.volumes.find((it) => it.name === name) ?? fail(missing(`volume ${name}`));
  const targetOf = (name) => state.targets.find((it) => it.name === name) ?? fail(missing(`target ${name}`));
  const table = [];
  const on = (method, path, role, then) => table.push({ method, parts: path.split("/").filter(Boolean), role, then });
  const change = (what) => server.tell("changed", { what });

  // Volumes

  const shown = (it) => {
    const luns = state.targets.flatMap((target) => target.luns.filter((lun) => lun.volume === it.name).map((lun) => ({ target: target.name, lun: lun.lun })));
    const of = new Set(luns.map((lun) => lun.target));
    it.luns = luns;
    it.sessions = state.sessions.filter((one) => of.has(one.target)).length;
    it.snapshots = state.snapshots.filter((one) => one.volume === it.name).length;
    return it;
  };
  const users = (name) => {
    const of = new Set(shown(volumeOf(name)).luns.map((lun) => lun.target));
    return state.sessions.filter((it) => of.has(it.target));
  };
  const fates = (list, fate, why, name) =>
    list.map((it) => ({ session: it.tsih, initiator: it.initiator, peer: it.peer, target: it.target, fate, lun: fate === "loses-lun" ? 0 : null, volume: name ?? null, why }));

  on("GET", "/volumes", "viewer", () => state.volumes.map(shown));
  on("GET", "/volumes/:name", "viewer", ({ name }) => shown(volumeOf(name)));
  on("POST", "/volumes", "operator", (_, { body, dry }) => {
    if (state.volumes.some((it) => it.name === body.name)) throw new Refusal(409, "exists", `there is a volume ${body.name} already`, "choose another name");
    if (body.backend === "block" && !body.path) throw new Refusal(422, "invalid", "a block device needs a path");
    if (dry) return preview([["volume", body.name, "is new"]]);
    state.volumes.push(volume(body.name, {
      backend: body.backend,
      size_bytes: body.size ?? 512 * 2 ** 30,
      path: body.path ?? (body.backend === "file" ? `/var/lib/lunet/${body.name}.img` : null),
      used_bytes: body.backend === "file" ? 0 : null,
      block_size: body.block_size ?? 512,
      write_cache: body.write_through ? "off" : body.backend === "memory" ? "none" : "on",
    }));
    change("volumes");
    return done(`volume ${body.name} of ${gib(body.size ?? 512 * 2 ** 30)} is created`);
  });
  on("PATCH", "/volumes/:name", "operator", ({ name }, { body, dry }) => {
    const it = volumeOf(name);
    if (body.size !== null && body.size < it.size_bytes) throw new Refusal(422, "invalid", `volume ${name} has ${gib(it.size_bytes)}, and only grows`);
    if (dry) return preview([["volume", name, `has ${gib(body.size)}`]]);
    it.size_bytes = body.size ?? it.size_bytes;
    change("volumes");
    return done(`volume ${name} has ${gib(it.size_bytes)} now`);
  });
  on("DELETE", "/volumes/:name", "administrator", ({ name }, { query, dry }) => {
    const used = users(name);
    const why = `sessions use it: ${used.map((it) => it.initiator).join(", ")}`;
    if (dry) {
      return preview([["volume", name, "is gone"]], {
        sessions: fates(used, "loses-lun", "the volume is deleted", name),
        refused: used.length > 0 && query.force !== "true" ? why : null,
      });
    }
    if (used.length > 0 && query.force !== "true") throw new Refusal(409, "in-use", why, "end them, or use force");
    state.volumes = state.volumes.filter((it) => it.name !== name);
    for (const it of state.targets) it.luns = it.luns.filter((lun) => lun.volume !== name);
    state.snapshots = state.snapshots.filter((it) => it.volume !== name);
    change("volumes");
    return done(query.keep_data === "true" ? `volume ${name} is gone; its data is still in its file` : `volume ${name} is gone`);
  });
  for (const action of ["reopen", "recreate", "adopt"]) {
    on("POST", `/volumes/:name/${action}`, action === "reopen" ? "operator" : "administrator", ({ name }, { dry }) => {
      const it = volumeOf(name);
      // As lunet does: what the storage holds is not known before it is opened.
      if (dry) throw new Refusal(422, "unsupported", `what ${action} does cannot be foretold`);
      it.faults = [];
      change("volumes");
      return done(`volume ${name} is reopened: it can be flushed again`);
    });
  }

  // Failover groups

  const groupOf = (name) => state.groups.find((it) => it.name === name) ?? fail(missing(`group ${name}`));
  const HEAD = "# lunet group configuration, format 1, revision ";
  const textOf = (it) => `${HEAD}${it.config}\n${state.shared[it.name]}`;
  const owned = (it, gateway) => {
    it.owner = gateway;
    it.epoch += 1;
    it.state = gateway === it.gateway ? "owner" : "standby";
    for (const one of it.protocols) {
      one.access = it.state === "owner" ? "executes" : "passes-on";
      one.owner = it.state === "owner" ? null : "192.0.2.11:3260";
    }
    change("groups");
    return done(`gateway ${gateway} owns group ${it.name}, in epoch ${it.epoch}`);
  };
  on("GET", "/groups", "viewer", () => state.groups);
  on("GET", "/groups/:name", "viewer", ({ name }) => groupOf(name));
  on("GET", "/groups/:name/gateways", "viewer", ({ name }) => {
    const it = groupOf(name);
    const heard = (gateway) => ({ gateway, state: gateway === it.owner ? "owner" : "standby", epoch: it.epoch, config: it.config, trouble: null });
    const silent = (gateway) => ({ gateway, state: "silent", epoch: 0, config: null, trouble: null });
    return it.gateways.map((gateway) => (state.silent.includes(gateway) ? silent(gateway) : heard(gateway)));
  });
  on("POST", "/groups/:name/move", "operator", ({ name }, { body }) => {
    const it = groupOf(name);
    if (it.owner === body.gateway) throw new Refusal(422, "unsupported", `gateway ${body.gateway} owns group ${name} already`);
    if (state.silent.includes(body.gateway)) throw new Refusal(409, "not-served", `group ${name} stays where it is: that gateway does not answer`);
    return owned(it, body.gateway);
  });
  on("POST", "/groups/:name/take-over", "administrator", ({ name }) => owned(groupOf(name), groupOf(name).gateway));
  on("GET", "/groups/:name/config", "operator", ({ name }, { headers }) => {
    const it = groupOf(name);
    headers.ETag = `"${it.config}"`;
    return { revision: it.config, text: textOf(it) };
  });
  on("PUT", "/groups/:name/config", "administrator", ({ name }, { body, request, headers }) => {
    const it = groupOf(name);
    if (request.headers["if-match"] !== `"${it.config}"`) throw new Refusal(412, "changed", "it is not as it was any more", "read it again");
    const wrong = body.text.split("\n").flatMap((line, at) => (line.includes("=") || /^\s*(\[.*|#.*)?$/.test(line) ? [] : [`line ${at + 1}: ${line}: is no key and value`]));
    if (wrong.length > 0) throw new Refusal(422, "invalid", wrong.join("; "));
    state.shared[name] = body.text;
    it.config += 1;
    headers.ETag = `"${it.config}"`;
    change("groups");
    const serve = it.gateways.filter((gateway) => !state.silent.includes(gateway));
    return done(`revision ${it.config} of the configuration of group ${name} is in force`, { notes: [`gateways that serve by it: ${serve.join(", ")}`], incomplete: false });
  });

  on("GET", "/snapshots", "viewer", () => state.snapshots);
  on("GET", "/volumes/:name/snapshots", "viewer", ({ name }) => state.snapshots.filter((it) => it.volume === name));
  on("POST", "/volumes/:name/snapshots", "operator", ({ name }, { body }) => {
    const it = volumeOf(name);
    if (it.backend === "memory") throw new Refusal(422, "unsupported", `volume ${name} is in memory, which has no snapshots`, "use a file on XFS, btrfs or ZFS");
    state.snapshots.push({ volume: name, snapshot: body.snapshot, size_bytes: it.size_bytes, created: now() });
    change("volumes");
    return done(`${name}@${body.snapshot} keeps what volume ${name} holds now`);
  });
  on("DELETE", "/volumes/:name/snapshots/:snapshot", "operator", ({ name, snapshot }, { dry }) => {
    if (dry) return preview([["snapshot", `${name}@${snapshot}`, "is gone"]]);
    state.snapshots = state.snapshots.filter((it) => it.volume !== name || it.snapshot !== snapshot);
    change("volumes");
    return done(`the snapshot ${name}@${snapshot} is gone`);
  });
  on("POST", "/volumes/:name/clone", "operator", ({ name }, { body }) => {
    const it = volumeOf(name);
    if (state.volumes.some((one) => one.name === body.name)) throw new Refusal(409, "exists", `there is a volume ${body.name} already`, "choose another name");
    state.volumes.push(volume(body.name, { size_bytes: it.size_bytes, used_bytes: 0 }));
    change("volumes");
    return done(`volume ${body.name} holds what ${body.snapshot ? `${name}@${body.snapshot}` : name} holds`);
  });
  on("POST", "/volumes/:name/rollback", "administrator", ({ name }, { body, dry }) => {
    const used = users(name);
    const refused = used.length > 0 && !body.force ? `sessions use it: ${used.map((it) => it.initiator).join(", ")}` : null;
    if (dry) return preview([["volume", name, `holds what ${name}@${body.snapshot} holds`]], { refused });
    if (refused) throw new Refusal(409, "in-use", refused, "end them, or use force");
    change("volumes");
    return done(`volume ${name} holds what ${name}@${body.snapshot} holds`);
  });

  // Targets and access

  const listText = (list) => list.join(", ") || "nobody";
  const shownTarget = (it) => {
    const list = state.lists[it.name];
    const reach = list || it.users.length > 0 ? "named" : it.open ? "everybody" : "this-machine";
    return {
      name: it.name,
      alias: it.alias,
      for: reach,
      luns: it.luns.map((lun) => ({ ...lun, size_bytes: volumeOf(lun.volume).size_bytes })),
      sessions: state.sessions.filter((one) => one.target === it.name).length,
      initiators: list ? listText(list) : reach === "this-machine" ? "this machine alone" : "everybody",
      users: it.users.map(({ name, initiators, file }) => ({ name, secret: "file", file, initiators })),
      mutual: null,
    };
  };
  on("GET", "/targets", "viewer", () => state.targets.map(shownTarget));
  on("GET", "/targets/:name", "viewer", ({ name }) => shownTarget(targetOf(name)));
  on("POST", "/targets", "operator", (_, { body }) => {
    if (state.targets.some((it) => it.name === body.name)) throw new Refusal(409, "exists", `there is a target ${body.name} already`, "choose another name");
    state.targets.push({ name: body.name, alias: body.alias ?? null, users: [], mutual: null, open: false, luns: [] });
    change("targets");
    return done(`target ${body.name} is created`);
  });
  on("DELETE", "/targets/:name", "administrator", ({ name }, { query, dry }) => {
    targetOf(name);
    const used = state.sessions.filter((it) => it.target === name);
    const refused = used.length > 0 && query.force !== "true" ? `sessions use it: ${used.map((it) => it.initiator).join(", ")}` : null;
    if (dry) return preview([["target", name, "is gone"]], { sessions: fates(used, "ends", "the target is deleted"), refused });
    if (refused) throw new Refusal(409, "in-use", refused, "end them, or use force");
    state.targets = state.targets.filter((it) => it.name !== name);
    state.sessions = state.sessions.filter((it) => it.target !== name);
    delete state.lists[name];
    change("targets");
    return done(`target ${name} is gone`);
  });
  on("PUT", "/targets/:name/luns/:lun", "operator", ({ name, lun }, { body, dry }) => {
    const it = targetOf(name);
    volumeOf(body.volume);
    if (it.luns.some((one) => one.lun === Number(lun))) throw new Refusal(409, "exists", `target ${name} has a LUN ${lun} already`, "choose another number");
    if (dry) return preview([["LUN", lun, "is new"]]);
    it.luns.push({ lun: Number(lun), volume: body.volume });
    change("targets");
    return done(`volume ${body.volume} is LUN ${lun} of ${name}`);
  });
  on("DELETE", "/targets/:name/luns/:lun", "operator", ({ name, lun }, { query, dry }) => {
    const it = targetOf(name);
    if (!it.luns.some((one) => one.lun === Number(lun))) throw new Refusal(404, "not-found", `target ${name} has no LUN ${lun}`, "`lunet target list` shows those that it has");
    const used = state.sessions.filter((one) => one.target === name);
    const refused = used.length > 0 && query.force !== "true" ? `sessions see it: ${used.map((one) => one.initiator).join(", ")}` : null;
    if (dry) return preview([["LUN", lun, "is gone"]], { sessions: fates(used, "loses-lun", "it is unmapped"), refused });
    if (refused) throw new Refusal(409, "in-use", refused, "end them, or use force");
    it.luns = it.luns.filter((one) => one.lun !== Number(lun));
    change("targets");
    return done(`LUN ${lun} of ${name} is gone`);
  });
  on("POST", "/targets/:name/initiators", "operator", ({ name }, { body, dry }) => {
    const it = targetOf(name);
    const list = [...(state.lists[name] ?? [])];
    const closes = !state.lists[name] && (it.open || it.users.length > 0);
    const refused = closes && !body.force ? "all other names could not log in any more, from wherever they come" : null;
    for (const one of body.initiators) if (!list.includes(one)) list.push(one);
    if (dry) return preview([["target", name, `is for ${listText(list)}`]], { refused });
    if (refused) throw new Refusal(409, "changes-access", refused, "use force to do it all the same");
    state.lists[name] = list;
    state.refused = state.refused.filter((one) => one.target !== name || !list.includes(one.initiator));
    change("targets");
    return done(`target ${name} is for ${listText(list)}`);
  });
  on("DELETE", "/targets/:name/initiators/:initiator", "operator", ({ name, initiator }, { dry }) => {
    targetOf(name);
    const list = state.lists[name] ?? [];
    if (!list.includes(initiator)) throw new Refusal(404, "not-found", `the list of ${name} has no ${initiator}`);
    const ends = state.sessions.filter((it) => it.target === name && it.initiator === initiator);
    const left = list.filter((it) => it !== initiator);
    if (dry) return preview([["target", name, `is for ${listText(left)}`]], { sessions: fates(ends, "ends", "its initiator is not listed any more") });
    state.lists[name] = left;
    state.sessions = state.sessions.filter((it) => !ends.includes(it));
    change("targets");
    change("sessions");
    return done(`target ${name} is for ${listText(left)}`);
  });
  on("POST", "/targets/:name/users", "operator", ({ name }, { body }) => {
    const it = targetOf(name);
    if ((body.secret?.text ?? "").length < 12) throw new Refusal(422, "invalid", "a secret has 12 to 255 bytes");
    const known = it.users.find((one) => one.name === body.name);
    if (known && !body.replace) throw new Refusal(409, "exists", `target ${name} has a user ${body.name} already`, "replace its secret, or choose another name");
    const user = { name: body.name, secret: body.secret.text, initiators: (body.initiators ?? []).join(", ") || "everybody", file: `/var/lib/lunet/secrets/${body.name}` };
    if (known) Object.assign(known, { secret: user.secret });
    else it.users.push(user);
    change("targets");
    return done(known ? `user ${body.name} of ${name} has another secret` : `${body.name} may log in to ${name}`);
  });
  on("DELETE", "/targets/:name/users/:user", "operator", ({ name, user }, { dry }) => {
    const it = targetOf(name);
    if (!it.users.some((one) => one.name === user)) throw new Refusal(404, "not-found", `target ${name} has no user ${user}`);
    if (dry) return preview([["user", user, "is gone"]]);
    it.users = it.users.filter((one) => one.name !== user);
    change("targets");
    return done(`user ${user} of ${name} is gone`);
  });
  on("POST", "/targets/:name/open", "administrator", ({ name }, { dry }) => {
    const it = targetOf(name);
    if (dry) return preview([["target", name, "is open to everybody"]]);
    it.open = true;
    change("targets");
    return done(`target ${name} is open to everybody`);
  });

  // Portals and sessions

  on("GET", "/portals", "viewer", () => state.portals);
  on("POST", "/portals", "administrator", (_, { body }) => {
    if (state.portals.some((it) => it.address === body.address)) throw new Refusal(409, "exists", `lunet listens on ${body.address} already`);
    const nvme = (body.transport ?? []).some((it) => it.startsWith("nvme"));
    state.portals.push(portal(body.address, { tag: body.tag ?? 1, tcp: !nvme, nvme_tcp: nvme }));
    change("portals");
    return done(`lunet listens on ${body.address}`);
  });
  on("DELETE", "/portals/:address", "administrator", ({ address }, { dry }) => {
    if (!state.portals.some((it) => it.address === address)) throw new Refusal(404, "not-found", `lunet does not listen on ${address}`);
    const refused = state.portals.length === 1 ? "it is the last portal" : null;
    if (dry) return preview([["portal", address, "is gone"]], { refused });
    if (refused) throw new Refusal(409, "last-one", refused);
    state.portals = state.portals.filter((it) => it.address !== address);
    change("portals");
    return done(`lunet does not listen on ${address} any more`);
  });
  on("GET", "/sessions", "viewer", () => state.sessions);
  const end = (list) => {
    state.sessions = state.sessions.filter((it) => !list.includes(it));
    change("sessions");
    return done(`${list.length === 1 ? "1 session" : `${list.length} sessions`} asked to log out`);
  };
  on("DELETE", "/sessions/:tsih", "operator", ({ tsih }, { dry }) => {
    const list = state.sessions.filter((it) => it.tsih === Number(tsih));
    if (list.length === 0) throw missing(`session ${tsih}`);
    return dry ? preview([], { sessions: fates(list, "ends", "it was asked for") }) : end(list);
  });
  on("DELETE", "/sessions", "operator", (_, { query, dry }) => {
    const list = state.sessions.filter((it) => it.initiator === query.initiator);
    return dry ? preview([], { sessions: fates(list, "ends", "it was asked for") }) : end(list);
  });
  on("GET", "/refused", "viewer", () => state.refused);

  // Configuration

  const configured = () => ({
    file: "/etc/lunet/lunet.toml",
    embedded: false,
    text: state.config,
    config: {
      target: state.targets.map((it) => ({
        name: it.name,
        ...(state.lists[it.name] ? { initiators: state.lists[it.name] } : {}),
        luns: Object.fromEntries(it.luns.map((lun) => {
          const mask = state.masks[it.name]?.[lun.lun];
          return [lun.lun, mask ? { volume: lun.volume, initiators: mask } : lun.volume];
        })),
      })),
    },
    data: "/var/lib/lunet",
    socket: "/run/lunet/lunet.sock",
  });
  const etag = () => `"${Buffer.from(state.config).length.toString(16)}-${state.config.split("\n").length}-${state.config.length % 97}"`;
  const check = (text) => {
    const bad = text.split("\n").findIndex((line) => /^\s*bloc-size/.test(line));
    if (bad >= 0) throw new Refusal(422, "invalid", `lunet.toml:${bad + 1}: volumes.vm1.bloc-size: there is no such key; did you mean "block-size"?`);
    return text === (state.applied ?? CONFIG) ? preview([]) : preview([["volume", "scratch", "has 8 GiB"]]);
  };
  on("GET", "/config", "operator", (_, context) => {
    context.headers.ETag = etag();
    return configured();
  });
  on("POST", "/config/check", "operator", (_, { body }) => check(body.text));
  on("PUT", "/config", "administrator", (_, { body, request, dry }) => {
    if (request.headers["if-match"] !== etag()) throw new Refusal(412, "changed-by-hand", "the configuration file has changed since it was read", "read it again");
    check(body.text);
    if (dry) return preview([]);
    state.config = body.text;
    return done("/etc/lunet/lunet.toml is written, and not in effect yet");
  });
  on("POST", "/config/apply", "administrator", (_, { dry }) => {
    if (dry) return check(state.config);
    state.applied = state.config;
    change("config");
    return done("/etc/lunet/lunet.toml is in effect");
  });

  // What the server is and does

  on("GET", "/verdict", "viewer", () => verdict(state));
  on("GET", "/stats", "viewer", () => ({ uptime_seconds: 93600, driver: "io_uring", shards: 2, sessions: state.sessions.length, portals: state.portals, loads: [], protocol: {}, volumes: [] }));
  on("GET", "/facts", "viewer", () => facts());
  on("GET", "/audit", "administrator", (_, { query }) =>
    state.audit.filter((it) => !query.before || it.time < Number(query.before)).slice(0, Number(query.limit ?? 100)));

  // Accounts, tokens, jobs

  const shownAccount = ({ name, role }) => ({ name, role, created: now() - 864000, sessions: 1 });
  on("GET", "/accounts", "administrator", () => state.accounts.map(shownAccount));
  on("POST", "/accounts", "administrator", (_, { body }) => {
    if (state.accounts.some((it) => it.name === body.name)) throw new Refusal(409, "exists", `there is an account ${body.name} already`, "choose another name");
    state.accounts.push({ ...body });
    change("accounts");
    return done(`the account ${body.name} is created`);
  });
  on("DELETE", "/accounts/:name", "administrator", ({ name }, { dry }) => {
    const administrators = state.accounts.filter((it) => it.role === "administrator");
    const last = administrators.length === 1 && administrators[0].name === name;
    if (dry) return preview([["account", name, "is gone"]], { refused: last ? `${name} is the only administrator` : null });
    if (last) throw new Refusal(409, "last-one", `${name} is the only administrator`, "make another one first");
    state.accounts = state.accounts.filter((it) => it.name !== name);
    change("accounts");
    return done(`the account ${name} is gone`);
  });
  on("PUT", "/accounts/:name/password", "viewer", ({ name }, { body, who }) => {
    const it = state.accounts.find((one) => one.name === name) ?? fail(missing(`account ${name}`));
    if (who.name === name && body.current !== it.password) throw new Refusal(403, "forbidden", "the current password is wrong or missing");
    it.password = body.password;
    return done(`the password of ${name} is set`);
  });
  on("GET", "/tokens", "administrator", () => state.tokens);
  on("POST", "/tokens", "administrator", (_, { body, who }) => {
    const id = randomBytes(4).toString("hex");
    const token = { id, name: body.name, role: body.role, by: who.name, created: now(), expires: now() + body.expires_seconds, last_used: null };
    state.tokens.push(token);
    return { id, expires: token.expires, token: `lunet_${id}_${randomBytes(16).toString("hex")}` };
  });
  on("DELETE", "/tokens/:id", "administrator", ({ id }, { dry }) => {
    if (dry) return preview([["token", id, "is gone"]]);
    state.tokens = state.tokens.filter((it) => it.id !== id);
    return done(`the token ${id} is gone`);
  });
  const brief = ({ result: _result, ...job }) => job;
  on("GET", "/jobs", "viewer", () => state.jobs.map(brief));
  on("GET", "/jobs/:id", "viewer", ({ id }) => state.jobs.find((it) => it.id === id) ?? fail(missing(`job ${id}`)));
  on("POST", "/jobs", "viewer", (_, { body, who }) => {
    if (!knows(body.kind)) throw new Refusal(422, "invalid", `there is no job of the kind ${body.kind}`);
    if (!["doctor", "tune-plan"].includes(body.kind) && RANK[who.role] < 2) throw new Refusal(403, "forbidden", "this needs the role administrator");
    if (state.jobs.filter((it) => it.state === "running").length >= 2) throw new Refusal(503, "too-many-clients", "two jobs run already", "wait for one of them, or cancel it");
    const job = { id: String(state.jobs.length + 1), kind: body.kind, state: "running", started: now(), ended: null, progress: [], result: null, error: null, exit: null, who: who.name };
    state.jobs.unshift(job);
    server.timers.add(run(job, body.options ?? {}, state, (it) => server.tell("job", brief(it)), server.pace));
    return brief(job);
  });
  on("DELETE", "/jobs/:id", "viewer", ({ id }) => {
    const job = state.jobs.find((it) => it.id === id) ?? fail(missing(`job ${id}`));
    Object.assign(job, { state: "cancelled", ended: now() });
    server.tell("job", brief(job));
    return brief(job);
  });
  return table;
}

function fail(error) {
  throw error;
}

function preview(changes, more = {}) {
  return {
    file: "/etc/lunet/lunet.toml",
    changes: changes.map(([what, name, text]) => ({ what, name, change: text })),
    notes: [],
    sessions: [],
    refused: null,
    ...more,
  };
}

/** What the tests make happen on the other side: logins, refusals, failures. */
export const events = {
  login(server, { initiator, target, user }) {
    const tsih = 10 + server.state.sessions.length;
    server.state.sessions.push(session(initiator, target, "10.100.0.40:40000", { tsih, connected_seconds: 0, user: user ?? null }));
    server.tell("changed", { what: "sessions" });
  },
  refuse(server, { initiator, target, why }) {
    server.state.refused.unshift({ time: now(), initiator, target, address: "10.100.0.41", why: why ?? "the target is for other initiators" });
    server.tell("changed", { what: "sessions" });
  },
  fault(server, { volume: name, state, text }) {
    const it = server.state.volumes.find((one) => one.name === name);
    it.faults = [{ state, since: now(), text }];
    server.tell("changed", { what: "volumes" });
  },
  group(server, change) {
    Object.assign(server.state.groups[0], change);
    server.tell("changed", { what: "groups" });
  },
  fail(server, next) {
    server.failures.push(next);
  },
  interval: (server) => server.tell("interval", interval(server.state, now())),
};
