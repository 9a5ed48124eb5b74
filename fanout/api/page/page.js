// The page of one node. Names and values are data of strangers: they go into the page as text, never as markup.

const main = document.getElementById("main");
const LOOK_MS = 4000;
let lags = { at: 0, document: null }; // of the last hour; the node has a new figure every ten seconds
let looks = 0;
let shown = 0; // number of the page that is shown: answers for an earlier one are dropped
let timer = 0;
let following = new AbortController(); // ends the stream of what is shown

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

class Refused extends Error {}

// Answer to a request; 503 is one too.
async function request(path, parameters = {}, order = null, further = {}) {
  const token = sessionStorage.getItem("token");
  const query = new URLSearchParams(parameters).toString();
  const headers = { ...(token ? { Authorization: `Bearer ${token}` } : {}), ...(order ? { "Content-Type": "application/json" } : {}) };
  const options = order ? { method: "POST", headers, body: JSON.stringify(order) } : { headers: { ...headers, ...further.headers }, signal: further.signal };
  const answer = await fetch(query ? `${path}?${query}` : path, options);
  if (answer.ok || answer.status === 503) return answer;
  const found = await answer.json().catch(() => ({ error: `the node answers ${answer.status}`, hint: "" }));
  if (answer.status === 401 || answer.status === 403) throw Object.assign(new Refused(found.error), found);
  throw Object.assign(new Error(found.error), { status: answer.status, hint: found.hint });
}

// Tells that events and messages do not come at present; empty if they do.
function interrupted(text) {
  document.getElementById("interrupted").textContent = text && `Live updates are interrupted: ${text}`;
}

const said = (error) => (error instanceof TypeError ? "The node does not answer." : `${error.message}. ${error.hint ?? ""}`);

// Reads server-sent events until another thing is shown: EventSource can give no token. It comes back from where it was.
async function follow(path, parameters, lastId, take) {
  unfollow();
  const { signal } = following = new AbortController();
  for (let pause = 1000; !signal.aborted; pause = Math.min(2 * pause, 30000)) {
    try {
      const headers = { Accept: "text/event-stream", ...(lastId ? { "Last-Event-ID": lastId } : {}) };
      const answer = await request(path, parameters, null, { headers, signal });
      if (!answer.ok) throw Object.assign(new Error(), await answer.json().then(({ error, hint }) => ({ message: error, hint })));
      interrupted("");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = "", piece; !(piece = await reader.read()).done;) {
        pause = 1000;
        const events = (text + piece.value).split("\n\n");
        text = events.pop();
        for (const event of events) {
          const fields = Object.fromEntries(event.split("\n").map((line) => [line.split(": ", 1)[0], line.slice(line.indexOf(": ") + 2)]));
          if (fields.id) lastId = fields.id;
          if (fields.data && !signal.aborted) take(fields.event, JSON.parse(fields.data));
        }
      }
    } catch (error) {
      if (signal.aborted || error.status === 409) return; // 409: a tap streams no values
      if (error instanceof Refused) { fail(error); return; }
      interrupted(said(error));
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

function unfollow() {
  following.abort();
  interrupted("");
}

async function ask(path, parameters = {}, order = null) {
  return (await request(path, parameters, order)).json();
}

const count = (number) => (number === null || number === undefined ? "–" : number.toLocaleString("en"));
const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
const delay = (seconds) => (seconds === null || seconds === undefined ? "–" : seconds < 0.9995 ? `${(1000 * seconds).toFixed(1)} ms` : `${seconds.toFixed(1)} s`);
// Times are UTC, as those of commands, logs and reports are.
const clock = (text) => (text ? `${new Date(text).toISOString().slice(0, 19).replace("T", " ")} UTC` : "–");
const rate = (number) => (number === null || number === undefined ? "–" : number.toLocaleString("en", { maximumFractionDigits: 1 }));

function bytes(number) {
  if (number === null || number === undefined) return "–";
  for (const unit of ["B", "KiB", "MiB"]) {
    if (number < 1024) return `${Math.round(number)} ${unit}`;
    number /= 1024;
  }
  return `${Math.round(number)} GiB`;
}

// A table; a heading that begins with "#" is of numbers.
function table(label, headings, rows) {
  const kind = (at) => (headings[at].startsWith("#") ? "number" : "name");
  const head = headings.map((text, at) => make("th", { scope: "col", class: kind(at) }, text.replace("#", "")));
  const body = rows.map((row) => make("tr", {}, ...row.map((cell, at) => make("td", { class: kind(at) }, cell))));
  return make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label },
    make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)));
}

function facts(pairs) {
  return make("dl", {}, ...pairs.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value ?? "–")]));
}

// Lag of a link: seconds in steps of the interval, the newest now; a gap is where nobody knew it.
function chart(link, lags, interval) {
  const known = lags.filter((lag) => lag !== null);
  const most = Math.max(0.001, ...known), last = lags.at(-1);
  let path = "", pen = "M";
  lags.forEach((lag, at) => {
    if (lag === null) pen = "M";
    else { path += `${pen}${((1000 * at) / Math.max(1, lags.length - 1)).toFixed(1)} ${(96 - (90 * lag) / most).toFixed(1)}`; pen = "L"; }
  });
  const text = `Lag of ${link} in the last ${Math.round((interval * lags.length) / 60) || 1} min: now ${last === null ? "unknown" : delay(last)}, at most ${delay(most)}`;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of [["viewBox", "0 0 1000 100"], ["preserveAspectRatio", "none"], ["role", "img"], ["aria-label", text]]) svg.setAttribute(name, value);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
  line.setAttribute("d", path);
  svg.append(line);
  return make("figure", {}, make("figcaption", { class: "soft" }, text), svg);
}

// What a person should know, also of a node that is ready: sentences.
function warnings(status) {
  const found = [];
  for (const link of status.links) {
    if (link.alarm) found.push(`${link.name}: ${link.alarm}`);
    if (link.not_held_reason) found.push(`${link.name}: ${link.not_held_reason}`);
    if (!link.ready && link.stale_seconds) found.push(`${link.name}: its values were last known to be current ${age(link.stale_seconds)} ago`);
    for (const selector of link.selectors) {
      if (selector.maybe_unreadable) found.push(`${link.name}: ${selector.filter} has no topics: there are none, or the primary's access rules (ACL) do not let the link's user read them`);
    }
    const skipped = Object.entries(link.skipped_total ?? {}).filter(([, number]) => number);
    if (skipped.length) found.push(`${link.name} skipped messages: ${skipped.map(([reason, number]) => `${reason.replaceAll("_", " ")} ${count(number)}`).join(", ")}`);
    if (link.unconfirmed) found.push(`${link.name} has ${counted(link.unconfirmed, "topic")} that the primary did not send in the last comparison`);
  }
  if (status.log?.alarm) found.push(`Log: ${status.log.alarm}. Clients are served all the same; reports will lack what is lost`);
  if (status.log?.lost_rows_total) found.push(`Log: ${counted(status.log.lost_rows_total, "update")} not logged`);
  if (status.retained?.alarm) found.push(`Values on disk: ${status.retained.alarm}`);
  const pool = status.pool;
  if (pool && pool.members_ready < pool.members) found.push(`Pool: ${count(pool.members - pool.members_ready)} of ${count(pool.members)} members are not ready; see Pool`);
  if (pool && pool.members_equal < pool.members_reachable) found.push(`Pool: ${count(pool.members_reachable - pool.members_equal)} of ${count(pool.members)} members are not known to hold what this one holds; see Pool`);
  const dropped = Object.entries(status.server?.dropped_total ?? {}).filter(([, number]) => number);
  if (dropped.length) found.push(`Messages that clients did not get: ${dropped.map(([reason, number]) => `${reason.replaceAll("_", " ")} ${count(number)}`).join(", ")}; see Clients`);
  if (status.server?.queued_messages) found.push(`Waiting for clients that are slow or away: ${counted(status.server.queued_messages, "message")}; see Clients`);
  if (status.server?.conflated_topics) found.push(`Slow clients wait for the newest values of ${counted(status.server.conflated_topics, "topic")}; see Clients`);
  return found;
}

async function overview() {
  const [status, lag] = await Promise.all([ask("/v1/status"), ask("/v1/lag")]);
  showVerdict(status);
  if (Date.now() > lags.at + 10000) lags = { at: Date.now(), document: await ask("/v1/lag/history") };
  const parts = [];
  if (status.reasons.length) {
    parts.push(make("h2", {}, "Why it is not ready"), make("ul", {}, ...status.reasons.map((reason) => make("li", {}, reason))));
  }
  const known = warnings(status);
  if (known.length) parts.push(make("h2", {}, "To be looked at"), make("ul", {}, ...known.map((text) => make("li", {}, text))));
  if (status.links.length) {
    parts.push(make("h2", {}, "Links"), table("Links", ["link", "state", "since", "#topics", "evidence", "#lag", "what is wrong"],
      status.links.map((link, at) => [
        link.name,
        make("span", { class: link.ready ? "good" : "bad" }, link.state),
        clock(link.since),
        count(link.topics),
        link.evidence ?? "–",
        delay(lag.links[at]?.lag_seconds),
        make("span", {}, [link.reason, link.ready ? null : link.last_error, link.hint].filter(Boolean).join(". ") || "–"),
      ])));
    for (const link of status.links) {
      const coming = link.selectors.filter((selector) => !selector.complete);
      if (coming.length && ["snapshot", "proving"].includes(link.state)) {
        const done = link.selectors.length - coming.length; // a primary does not say how many topics there are
        parts.push(make("p", {}, `${link.name} takes its retained values: ${count(link.topics)} so far, ${done} of ${link.selectors.length} selectors complete `,
          make("progress", { "aria-label": `Snapshot of ${link.name}`, max: String(link.selectors.length), value: done ? String(done) : null })));
      }
      const figures = lags.document.links.find((one) => one.name === link.name)?.lags ?? [];
      if (figures.some((one) => one !== null)) parts.push(chart(link.name, figures, lags.document.interval_s));
    }
  }
  const server = status.server;
  parts.push(make("h2", {}, "Node"), facts([
    ["role", status.role],
    ["version", status.version],
    ["up since", clock(status.started)],
    ...(server ? [["clients", `${counted(server.connections, "connection")}, ${counted(server.sessions, "session")}`],
      ["delivered", counted(server.deliveries_total, "message")], ["retained topics", count(server.retained_topics)]] : []),
  ]));
  return parts;
}

function value(one) {
  if (one.format === "json") {
    try { return JSON.stringify(JSON.parse(one.value), null, 2); } catch { return one.value; }
  }
  return (one.format === "base64" ? `base64: ${one.value}` : one.value) + (one.cut ? " …" : "");
}

// Members of a JSON value by their paths.
function members(one, path = "", found = new Map()) {
  if (one !== null && typeof one === "object" && Object.keys(one).length) {
    for (const [name, below] of Object.entries(one)) if (found.size < 500) members(below, path ? `${path}.${name}` : name, found);
  } else found.set(path, JSON.stringify(one));
  return found;
}

// Difference of a message from the one before it.
function changed(one, before) {
  if (before === undefined) return "–";
  if (one.value === before.value) return "same";
  if (one.format !== "json" || before.format !== "json") return "–";
  let now, then;
  try { now = members(JSON.parse(one.value)); then = members(JSON.parse(before.value)); } catch { return "–"; }
  const lines = [];
  for (const path of new Set([...then.keys(), ...now.keys()])) {
    if (then.get(path) !== now.get(path)) lines.push(`${path}: ${then.get(path) ?? "–"} → ${now.get(path) ?? "removed"}`);
  }
  return make("span", { class: "change" }, lines.slice(0, 20).join("\n") || "same");
}

let chosen = null; // topic whose detail is shown
const detail = make("section", { "aria-label": "Topic", "aria-live": "polite" });

let seen = null; // document of the chosen topic, with the messages that came since
let streamed = []; // newest messages that the stream brought
let due = []; // messages of the document that the stream did not bring yet
let drawing = 0;
let asking = 0;

async function showDetail() {
  if (chosen === null || chosen.endsWith("#")) return; // a branch
  const topic = chosen;
  const found = await ask(`/v1/topics/${encodeURIComponent(topic)}`);
  if (topic !== chosen) return;
  seen = found;
  due = found.changes.map(identity);
  for (const one of streamed) takeOut(due, one);
  drawDetail();
}

// Asks for the chosen topic again, once a second at most.
function askDetail() {
  asking ||= setTimeout(() => { asking = 0; showDetail().catch(fail); }, 1000);
}

function drawDetail() {
  drawing = 0;
  const found = seen;
  if (found === null) return; // another topic was chosen meanwhile
  const held = found.held;
  const parts = [make("h2", {}, found.topic)];
  if (held === null) parts.push(make("p", {}, "It has no retained value here."));
  else parts.push(make("pre", { tabindex: "0", "aria-label": "Value" }, value(held)), facts([
    ["received", clock(held.received)], ["size", bytes(held.payload_bytes)], ["QoS", String(held.qos)],
    ["link", held.link ?? "none: a client of this node published it"], ["selector", held.selector],
    ["messages a second", rate(held.per_second)], ["expires", held.expires ? clock(held.expires) : "never"],
    ...(held.stamp ? [["stamped", `${clock(held.stamp.stamped)} by ${held.stamp.node}, number ${count(held.stamp.sequence)}`]] : []),
    ...(held.traceparent ? [["traceparent", held.traceparent]] : [])]));
  parts.push(make("h2", {}, "Last messages"));
  if (found.changes.length) parts.push(table("Last messages", ["received", "value", "change"],
    found.changes.map((one, at) => [clock(one.received), value(one), changed(one, found.changes[at + 1])])));
  else parts.push(make("p", { class: "soft" }, "None came since you look at it."));
  detail.replaceChildren(...parts);
}

const identity = (one) => JSON.stringify([Date.parse(one.received), one.value, one.stamp]);

// Takes one entry out of a list; false if it is not there.
function takeOut(list, one) {
  const at = list.indexOf(one);
  if (at >= 0) list.splice(at, 1);
  return at >= 0;
}

function takeMessage(name, message) {
  if (name === "state" || name === "tear_down") askDetail();
  if (name !== "value" || seen?.topic !== message.topic) return;
  const known = takeOut(due, identity(message));
  streamed = [identity(message), ...streamed].slice(0, 40);
  if (known) return; // the document has it already
  if (message.cut) { askDetail(); return; } // the stream has only its begin
  seen.changes = [message, ...seen.changes].slice(0, 20);
  if (message.retained && !message.payload_bytes) seen.held = null;
  else if (message.retained && seen.held) seen.held = { ...seen.held, stamp: null, traceparent: null, ...message };
  else if (message.retained) askDetail(); // link and selector are not in the stream
  drawing ||= setTimeout(drawDetail, 250); // a busy topic costs four pictures a second
}

function choose(topic) {
  chosen = topic;
  seen = null;
  streamed = [];
  detail.scrollIntoView({ block: "nearest" });
  showReaders(topic).catch(fail);
  showDetail().then(() => { if (topic === chosen) follow("/v1/stream", { filter: topic }, "", takeMessage); }).catch(fail);
}

const readers = make("section", { "aria-label": "Who reads it", "aria-live": "polite" });

// Who reads the topics of a filter: a page of clients, with the filter of each.
async function showReaders(filter, after = "") {
  if (!after) readers.replaceChildren(make("h2", {}, "Who reads it"), make("p", { class: "soft" }, "Looking …"));
  const mine = chosen;
  const found = await ask("/v1/clients", { filter, limit: 50, after });
  if (mine !== chosen) return;
  if (!after) readers.replaceChildren(make("h2", {}, "Who reads it"), make("p", { class: "soft" }, found.sessions ? `${counted(found.sessions, "session")} at this node may read ${filter}` : `No session at this node reads ${filter}.`));
  if (!found.clients.length) return;
  const rows = found.clients.map((one) => [make("button", { type: "button", onclick: () => { wanted = one.client_id; location.hash = "clients"; } }, one.client_id),
    one.matching.join(", "), one.address ?? "not connected", one.slow_since ? `slow since ${clock(one.slow_since)}` : "–"]);
  readers.append(table("Who reads it", ["client", "by its filter", "address", "slow"], rows));
  if (found.next !== null) {
    const more = make("button", { type: "button", onclick: () => { more.remove(); showReaders(filter, found.next).catch(fail); } }, "more …");
    readers.append(more);
  }
}

// A branch, in place of a topic: its filter and who reads it.
function chooseBranch(filter) {
  chosen = filter;
  seen = null;
  unfollow();
  detail.replaceChildren(make("h2", {}, filter));
  detail.scrollIntoView({ block: "nearest" }); // it is below a long tree on a telephone
  showReaders(filter).catch(fail);
}

async function branch(prefix, list, after = null) {
  const found = await ask("/v1/tree", { prefix, ...(after === null ? {} : { after }) });
  const root = prefix ? `${prefix}/` : "";
  for (const child of found.children) {
    const topic = root + child.name;
    const below = make("ul", { class: "tree" });
    const item = make("li");
    const deeper = child.topics > (child.is_topic ? 1 : 0);
    const figures = `${count(child.topics)}${child.at_least ? " or more" : ""} ${child.topics === 1 ? "topic" : "topics"}` + (child.per_second ? `, ${rate(child.per_second)}/s` : "");
    const name = child.name || "(empty)";
    if (deeper) {
      item.append(make("button", { type: "button", "aria-expanded": "false", onclick: (event) => {
        const open = event.currentTarget.getAttribute("aria-expanded") === "true";
        event.currentTarget.setAttribute("aria-expanded", String(!open));
        below.replaceChildren();
        if (!open) { branch(topic, below).catch(fail); chooseBranch(`${topic}/#`); }
      } }, `${name}/`), make("span", { class: "soft" }, ` ${figures}`));
    }
    if (child.is_topic) item.append(make("button", { type: "button", onclick: () => choose(topic) }, name));
    item.append(below);
    list.append(item);
  }
  if (found.next !== null) {
    const more = make("li", {}, make("button", { type: "button", onclick: () => { more.remove(); branch(prefix, list, found.next).catch(fail); } }, "more …"));
    list.append(more);
  }
}

// Busiest branches; counting begins with the first look.
async function drawBusiest() {
  const found = await ask("/v1/top", { count: 5 });
  if (found.interval_s === null) {
    busiest.replaceChildren(make("p", { class: "soft" }, "Messages are counted from now on: the busiest branches come after five seconds."));
  } else if (found.branches.length) {
    busiest.replaceChildren(table("Busiest branches", ["busiest branches", "#a second"], found.branches.map((one) =>
      [make("button", { type: "button", onclick: () => chooseBranch(one.filter) }, one.filter), rate(one.per_second)])));
  } else busiest.replaceChildren(make("p", { class: "soft" }, "No messages came in the last seconds."));
}

const busiest = make("div");

let sought = null; // topic that another page asks to show

async function topics() {
  drawBusiest().catch(fail);
  const list = make("ul", { class: "tree", "aria-label": "Branches" });
  const results = make("div");
  const field = make("input", { name: "search", type: "search", placeholder: "words, or plant/+/temp" });
  const search = async (after = "") => {
    const words = field.value.trim();
    if (!words) { results.replaceChildren(list); return; }
    const asked = /[#+]/.test(words) ? { filter: words } : { search: words };
    const found = await ask("/v1/topics", { ...asked, after, limit: 100 });
    const rows = found.topics.map((one) => [make("button", { type: "button", onclick: () => choose(one.topic) }, one.topic), value(one).slice(0, 80)]);
    const parts = [make("p", { class: "soft" }, `${count(found.topics.length)} ${found.topics.length === 1 ? "topic" : "topics"}${found.next === null ? "" : " and more"}${found.held === null ? "" : `, of ${count(found.held)}`}`)];
    if (rows.length) parts.push(table("Topics found", ["topic", "value"], rows));
    if (found.next !== null) parts.push(make("button", { type: "button", onclick: () => search(found.next).catch(fail) }, "next page"));
    results.replaceChildren(...parts);
  };
  results.append(list);
  await branch("", list);
  if (!list.children.length) results.replaceChildren(make("p", {}, "The node holds no topics."));
  if (sought !== null) { choose(sought); sought = null; }
  return [make("div", { class: "split" }, make("section", { "aria-label": "Topics" },
    make("form", { role: "search", onsubmit: (event) => { event.preventDefault(); search().catch(fail); } },
      make("label", {}, "Search ", field), make("button", {}, "Find")), busiest, results), make("div", {}, detail, readers))];
}

const client = make("section", { "aria-label": "Client", "aria-live": "polite" });

async function showClient(id) {
  const [one] = (await ask("/v1/clients", { client_id: id })).clients;
  const told = make("span", { role: "status" });
  const kick = make("button", { type: "button", onclick: async () => {
    if (kick.textContent === "Kick") { kick.textContent = "Kick it now"; return; }
    try {
      await ask("/v1/clients/kick", {}, { client_id: id });
      told.textContent = " The connection is ended; the client may come again.";
    } catch (error) { told.textContent = ` ${error.message}`; }
    kick.textContent = "Kick";
  } }, "Kick");
  client.replaceChildren(make("h2", {}, id), facts([
    ["user", one.user || "–"], ["address", one.address ?? "not connected"], ["connected since", clock(one.connected_since)],
    ["protocol", `MQTT ${one.version}`], ["waiting", `${counted(one.queued_messages, "message")}, ${bytes(one.queued_bytes + one.unsent_bytes)}`],
    ["unacknowledged", count(one.in_flight_messages)], ["reads a second", bytes(one.bytes_per_second)]]),
  make("p", {}, kick, told), make("h2", {}, counted(one.subscriptions, "subscription")),
  make("ul", {}, ...one.filters.map((filter) => make("li", {}, filter))));
}

let wanted = null; // client that another page asks to show

async function clients() {
  if (wanted !== null) { showClient(wanted).catch(fail); wanted = null; }
  const found = await ask("/v1/clients", { order: "slowest", limit: 100 });
  if (!found.clients.length) return [make("p", {}, "No client has a session here.")];
  return [client, make("p", { class: "soft" }, `The slowest ${count(found.clients.length)} of ${count(found.sessions)} sessions`),
    table("Clients", ["client", "user", "address", "slow since", "#queued", "#bytes", "#conflated", "#subscriptions"],
      found.clients.map((one) => [make("button", { type: "button", onclick: () => showClient(one.client_id).catch(fail) }, one.client_id), one.user || "–", one.address ?? "not connected", one.slow_since ? clock(one.slow_since) : "–",
        count(one.queued_messages), bytes(one.queued_bytes + one.unsent_bytes), count(one.conflated_topics), count(one.subscriptions)]))];
}

let compared = 0; // when the topics of the members were compared last; 0 for never
const differing = make("section", { "aria-label": "Topics that differ", "aria-live": "polite" });

// Shows the topics that members hold differently. The node reads all topics for it, so it is asked once, and by a button.
async function comparePool() {
  compared = Date.now();
  differing.replaceChildren(make("p", { class: "soft" }, "Compares the topics of all members: some seconds …"));
  let found;
  try { found = await ask("/v1/pool/compare"); } catch (error) {
    if (error instanceof Refused) throw error;
    differing.replaceChildren(make("p", { class: "bad" }, said(error)), again());
    return;
  }
  const number = found.differing.length, most = 50;
  const verdict = number ? `${count(number)} of ${count(found.topics)} topics ${number === 1 ? "differs" : "differ"}` : `No topic of ${count(found.topics)} differs`;
  const further = [
    ...found.left_out.map((one) => `${one.node} is not compared: ${one.reason}`),
    ...(found.changing ? [`${counted(found.changing, "topic")} changed too quickly to be compared`] : []),
    ...(found.whole ? [] : ["There were too many to compare them all; fanout pool compare has more time"]),
    ...(number > most ? [`The first ${most} are shown`] : [])];
  const rows = found.differing.slice(0, most).flatMap((one) => Object.entries(one.values).map(([member, held], at) => [
    at ? "" : make("button", { type: "button", onclick: () => { sought = one.topic; location.hash = "#topics"; } }, one.topic),
    make("span", { class: member === one.suspect ? "bad" : "" }, member),
    held === null ? "no value" : value(held), held === null ? "–" : clock(held.received), held?.digest ?? "–"]));
  const first = found.differing[0];
  differing.replaceChildren(make("h2", {}, "Topics that members hold differently"),
    make("p", { class: number ? "bad" : "good" }, `${verdict} at ${Object.keys(found.members).join(", ")}; compared at ${clock(found.at)}.`),
    ...further.map((text) => make("p", { class: "soft" }, text)),
    ...(number ? [table("Topics that differ", ["topic", "member", "value", "received", "digest"], rows),
      make("p", {}, `A member in red has no value, or the oldest. Since when, and on whose way it was lost: fanout explain --pool '${first.topic.replaceAll("'", "'\\''")}' ${location.origin}`)] : []),
    again());
}

const again = () => make("p", {}, make("button", { type: "button", onclick: () => comparePool().catch(fail) }, "Compare topics"));

async function pool() {
  let found;
  try { found = await ask("/v1/pool"); } catch (error) {
    if (error.status !== 409) throw error;
    return [make("p", {}, "This node is in no pool.")];
  }
  const others = found.members.filter((one) => !one.is_self);
  const differs = others.filter((one) => one.digest_equal === false);
  const since = differs.map((one) => one.digest_equal_since).sort()[0];
  const own = differs.length ? `differs from ${count(differs.length)} of ${count(others.length)} others` : "–";
  const equal = (one) => (one.is_self ? own : one.digest_equal === null ? "not known" : one.digest_equal ? "yes" : `no, since ${clock(one.digest_equal_since)}`);
  const told = [
    ...(found.ready ? [] : [found.reasons.join("; ")]),
    ...(differs.length ? [`${differs.map((one) => one.node ?? one.address).join(", ")} and this node hold different values since ${clock(since)}`] : [])];
  if (!differing.hasChildNodes()) differing.replaceChildren(again());
  if (differs.length && !compared) comparePool().catch(fail);
  const same = others.every((one) => one.digest_equal) ? "All members are ready and hold the same." : "All members are ready.";
  return [make("p", { class: told.length ? "bad" : "good" }, told.length ? `${told.join("; ")}.` : same),
    table("Members", ["member", "state", "holds the same", "#topics", "#lag", "#sessions", "#moved in", "#moved out", "failure"], found.members.map((one) => [
      `${one.node ?? one.address}${one.is_self ? " (this node)" : ""}`,
      make("span", { class: one.ready ? "good" : "bad" }, one.state ? one.state.replace("_", " ") : "not reachable"),
      equal(one), count(one.topics), delay(one.lag), count(one.sessions),
      count(one.moved_in), count(one.moved_out), one.failure ?? "–"])),
    differing];
}

async function events() {
  const found = await ask("/v1/events", { limit: 200 });
  const list = make("div");
  let waiting = 0;
  const draw = () => {
    waiting = 0;
    list.replaceChildren(table("Events, the newest first", ["time", "event"], found.events.map((one) => [clock(one.at), one.text])));
  };
  draw();
  follow("/v1/events", {}, `${found.process}-${found.events[0]?.id ?? 0}`, (_, event) => {
    found.events = [event, ...found.events].slice(0, 200);
    waiting ||= setTimeout(draw, 250);
  });
  return [list];
}

// A time that is over, in the largest unit of which it has two.
function age(seconds) {
  for (const [unit, size] of [["days", 86400], ["hours", 3600], ["minutes", 60]]) if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`;
  return `${Math.max(0, Math.round(seconds))} seconds`;
}

// The page that `fanout report` wrote, in a frame in which no script runs.
async function report() {
  let answer;
  try { answer = await request("/v1/report"); } catch (error) {
    if (error.status !== 404) throw error;
    return [make("p", {}, `There is no report to show: ${error.message}.`), make("p", {}, `${error.hint}.`)];
  }
  const [made, now] = ["last-modified", "date"].map((name) => Date.parse(answer.headers.get(name)));
  const found = new DOMParser().parseFromString(await answer.text(), "text/html");
  const frame = make("iframe", { title: "Report", sandbox: "allow-same-origin", src: "/page/frame.html" });
  frame.addEventListener("load", () => {
    const inside = frame.contentDocument;
    if (inside.body.children.length) return; // it is there already
    inside.replaceChild(inside.adoptNode(found.documentElement), inside.documentElement);
    new ResizeObserver(() => { frame.style.height = `${inside.documentElement.offsetHeight + 2}px`; }).observe(inside.documentElement);
  });
  return [make("p", { class: "soft" }, `Written ${clock(made)}, ${age((now - made) / 1000)} ago`), frame];
}

const pages = { overview, topics, clients, pool, report, events };
const renewed = new Set(["overview", "clients", "pool"]); // events and messages come by a stream

function fail(error) {
  if (error instanceof Refused) {
    clearTimeout(timer);
    unfollow();
    shown += 1;
    verdict().catch(() => {}); // anybody may know that
    const form = document.getElementById("token-form").content.firstElementChild.cloneNode(true);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      sessionStorage.setItem("token", new FormData(form).get("token").trim());
      open();
    });
    main.replaceChildren(make("p", { class: "bad", role: "alert" }, `${error.message}. ${error.hint ?? ""}`), form);
    return;
  }
  document.getElementById("verdict").textContent = said(error);
  document.getElementById("verdict").className = "bad";
}

async function verdict() {
  showVerdict(await ask("/readyz"));
}

function showVerdict(found) {
  document.title = `${found.node}: ${found.ready ? "ready" : found.state.replace("_", " ")}`;
  document.getElementById("node").textContent = found.node;
  const shown_ = document.getElementById("verdict");
  const text = found.ready ? "is ready" : `is ${found.state.replace("_", " ")}`;
  if (shown_.textContent !== text) shown_.textContent = text; // a screen reader tells changes only
  shown_.className = found.ready ? "good" : "bad";
}

async function look(number, first) {
  const name = location.hash.slice(1) in pages ? location.hash.slice(1) : "overview";
  try {
    if (name !== "overview") await verdict(); // its status has that too
    if (first || renewed.has(name)) {
      const parts = await pages[name]();
      if (number !== shown) return;
      const focused = main.contains(document.activeElement) && document.activeElement !== main;
      if (first || !focused) main.replaceChildren(...parts);
    } else if (name === "topics") {
      looks += 1;
      if (!busiest.contains(document.activeElement)) await drawBusiest();
      if (looks % 4 === 0) await showDetail(); // figures that are in no message
    }
  } catch (error) {
    if (number !== shown) return;
    fail(error);
    if (error instanceof Refused) return;
  }
  if (number === shown) timer = setTimeout(() => look(number, false), LOOK_MS);
}

function open() {
  const name = location.hash.slice(1) in pages ? location.hash.slice(1) : "overview";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  clearTimeout(timer);
  unfollow();
  shown += 1;
  chosen = null;
  detail.replaceChildren(make("p", { class: "soft" }, "Choose a topic to see its value."));
  readers.replaceChildren();
  client.replaceChildren();
  differing.replaceChildren();
  compared = 0;
  look(shown, true);
}

window.addEventListener("hashchange", () => { if (location.hash !== "#main") open(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) open(); else { clearTimeout(timer); unfollow(); shown += 1; } });
open();
