"use strict";
// The page of a broker. It asks the same interface as everybody else, and is told what changes by server-sent events.

const $ = (id) => document.getElementById(id);
const MOST_FOLLOWED = 500;
const state = { stats: null, before: null, topic: null, described: null, next: null, query: null, follow: null, live: null, placed: false };

// --- asking ---------------------------------------------------------------------------------------------------------

class Refused extends Error {
  constructor(status, body) { super(body.message); this.status = status; this.code = body.code; }
}

async function ask(method, path, body, kind) {
  const options = { method, headers: {} };
  if (body !== undefined) {
    options.body = kind ? body : JSON.stringify(body);
    options.headers["content-type"] = kind || "application/json";
  }
  const answer = await fetch(path, options);
  if (answer.status === 204) return null;
  const text = await answer.text();
  let found = null;
  try { found = text ? JSON.parse(text) : null; } catch { found = null; }
  if (!answer.ok) throw new Refused(answer.status, found || { message: `the broker answered ${answer.status}`, code: "" });
  return found;
}

const path = (...parts) => "/api/" + parts.map(encodeURIComponent).join("/");

function say(text) {
  $("message").hidden = !text;
  $("message").textContent = text || "";
}

// What a person asked for: what goes wrong is said, and what is asked without a right to it asks for a token.
async function doing(call) {
  try {
    say("");
    return await call();
  } catch (error) {
    if (error.status === 401) return showLogin();
    say(error instanceof Refused ? error.message : `The broker cannot be reached: ${error.message}`);
  }
  return undefined;
}

function sure(text) {
  const dialog = $("ask");
  $("ask-text").textContent = text;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true }));
}

// --- showing --------------------------------------------------------------------------------------------------------

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

const count = (n, one, many) => `${number(n)} ${n === 1 ? one : many}`;
const number = (n) => (n === null || n === undefined ? "–" : n.toLocaleString("en-US"));
function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
  return `${unit ? bytes.toFixed(1) : bytes} ${units[unit]}`;
}
function age(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  for (const [length, name] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= 2 * length) return `${Math.round(seconds / length)} ${name}`;
  }
  return seconds ? `${seconds.toFixed(seconds < 10 ? 1 : 0)} s` : "0 s";
}
const rate = (perSecond) => (perSecond === null ? "–" : perSecond >= 100 ? number(Math.round(perSecond)) : perSecond.toFixed(1));

// Rows by key: those that stay keep their elements, so that the focus stays where it is.
function rows(body, items, key, make, fill) {
  const known = new Map([...body.children].map((row) => [row.dataset.key, row]));
  const focused = body.contains(document.activeElement) ? document.activeElement : null;
  let place = body.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let row = known.get(name);
    if (row) known.delete(name);
    else { row = make(item); row.dataset.key = name; }
    fill(row, item);
    if (row === place) place = place.nextElementSibling;
    else body.insertBefore(row, place);
  }
  for (const row of known.values()) row.remove();
  if (focused && focused.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });  // it was moved
}
function texts(row, values) {
  values.forEach((value, i) => {
    if (value !== undefined && row.cells[i].textContent !== value) row.cells[i].textContent = value;
  });
}
function cells(...kinds) {
  return element("tr", {}, ...kinds.map((kind) => element("td", { className: kind })));
}

// In red, what somebody should look at.
const marked = (cell, is) => cell.classList.toggle("attention", Boolean(is));

function topicLink(name) {
  return element("a", { href: "#/topic/" + encodeURIComponent(name), textContent: name });
}

function pushedPerSecond(topic) {
  const before = state.before && state.before.byId.get(topic.id);
  const seconds = before ? (Date.parse(state.stats.at) - Date.parse(state.before.at)) / 1000 : 0;
  return seconds > 0 ? Math.max(0, (topic.pushed_records - before.pushed_records) / seconds) : topic.records_per_s;
}

function show() {
  const stats = state.stats;
  if (!stats) return;
  const wanted = $("topic-filter").value.toLowerCase();
  const topics = stats.topics.filter((each) => each.name.toLowerCase().includes(wanted));
  const order = { pushed: pushedPerSecond, records: (each) => each.records, bytes: (each) => each.bytes }[$("topic-order").value];
  if (order) topics.sort((a, b) => order(b) - order(a));
  $("topics-note").textContent = topics.length === stats.topics.length ? count(topics.length, "topic", "topics") : `${number(topics.length)} of ${count(stats.topics.length, "topic", "topics")}`;
  rows($("topics"), topics, (each) => each.id, (each) => {
    const row = cells("", "n", "n", "n", "", "");
    row.cells[0].append(topicLink(each.name));
    return row;
  }, (row, each) => texts(row, [
    undefined, number(each.records), rate(pushedPerSecond(each)), size(each.bytes), segmentsText(each.segments),
    [each.paused ? "paused" : "", each.ephemeral ? "ephemeral" : "", each.dropped ? `${number(each.dropped)} dropped` : ""].filter(Boolean).join(", "),
  ]));
  $("no-topics").hidden = stats.topics.length > 0;
  const ofTopic = (each) => !state.topic || each.topic === state.topic;
  const subscribers = stats.subscribers.filter(ofTopic);
  rows($("subscribers"), subscribers, (each) => each.id, (each) => {
    const row = cells("", "", "n", "n", "n", "n");
    row.cells[1].append(topicLink(each.topic));
    return row;
  }, (row, each) => {
    texts(row, [each.name, undefined, number(each.records), size(each.bytes), age(each.seconds), number(each.lost)]);
    marked(row.cells[5], each.lost);
  });
  $("no-subscribers").hidden = subscribers.length > 0;
  const channels = stats.channels.filter(ofTopic);
  rows($("channels"), channels, (each) => `${each.topic} ${each.name}`, channelRow, (row, each) => {
    texts(row, [
      each.name + (each.paused ? " (paused)" : ""), undefined, number(each.depth), number(each.in_flight),
      number(each.deferred), number(each.timed_out), number(each.dead), number(each.consumers.length),
    ]);
    marked(row.cells[6], deadLetters(each));
    const [pause, revive] = row.querySelectorAll("button");
    pause.textContent = each.paused ? "Unpause" : "Pause";
    pause.dataset.act = each.paused ? "unpause" : "pause";
    revive.hidden = !each.dead;
  });
  $("no-channels").hidden = channels.length > 0;
  showTrouble(stats);
  if (state.topic) showFacts();
}

// The broker counts what was ever given up; this browser remembers what of it has been given back from here.
const revivedKey = (each) => `jjq revived ${each.topic} ${each.name}`;
function deadLetters(each) {
  const before = Number(localStorage.getItem(revivedKey(each))) || 0;
  return before > each.dead ? each.dead : each.dead - before;
}

// What would be overlooked below two hundred topics.
function showTrouble(stats) {
  const names = (found) => found.slice(0, 5).map((each) => (each.topic ? `${each.name} of ${each.topic}` : each.name)).join(", ") + (found.length > 5 ? ", …" : "");
  const damaged = [...new Set(stats.damaged.map((each) => each.topic))].map((name) => ({ name }));
  const kinds = [
    ["damaged (stop the broker and run jjq repair)", damaged],
    ["with dead letters", stats.channels.filter(deadLetters)],
    ["paused", [...stats.topics, ...stats.channels].filter((each) => each.paused)],
    ["with records lost", [...stats.subscribers, ...stats.topics.map((each) => ({ name: each.name, lost: each.segments.lost }))].filter((each) => each.lost)],
  ];
  const text = kinds.filter(([, found]) => found.length).map(([what, found]) => `${number(found.length)} ${what}: ${names(found)}`).join(" · ");
  $("trouble").hidden = !text;
  if ($("trouble").textContent !== text) $("trouble").textContent = text;
}

function segmentsText(segments) {
  return ["active", "rolled", "sealed", "lost"].filter((kind) => segments[kind]).map((kind) => `${segments[kind]} ${kind}`).join(", ") || "none";
}

function channelRow(each) {
  const row = cells("", "", "n", "n", "n", "n", "n", "n", "");
  row.cells[1].append(topicLink(each.topic));
  const base = () => path("topics", each.topic, "channels", each.name) + "/";
  const pause = element("button", { type: "button" });
  pause.addEventListener("click", () => doing(() => ask("POST", base() + pause.dataset.act)));
  const revive = element("button", { type: "button", textContent: "Requeue dead letters" });
  revive.addEventListener("click", () => doing(async () => {
    const known = state.stats.channels.find((one) => one.topic === each.topic && one.name === each.name);
    const found = await ask("POST", base() + "revive");
    if (known) localStorage.setItem(revivedKey(each), known.dead);
    show();
    say(`${count(found.revived, "dead letter is", "dead letters are")} back in channel ${each.name}.`);
  }));
  row.cells[8].append(pause, revive);
  return row;
}

function facts(list, pairs) {
  const text = JSON.stringify(pairs);
  if (list.dataset.text === text) return;
  list.dataset.text = text;
  list.replaceChildren(...pairs.flatMap(([name, value]) => [element("dt", { textContent: name }), element("dd", { textContent: value })]));
}

function showFacts() {
  const each = state.stats.topics.find((one) => one.name === state.topic);
  if (!each) {
    facts($("topic-facts"), [["State", "there is no such topic, or no right to read it"]]);
    return;
  }
  facts($("topic-facts"), [
    ["Records", number(each.records)], ["Pushed", `${number(each.pushed_records)} ever, ${rate(pushedPerSecond(each))} a second`],
    ["Size", size(each.bytes)], ["Partitions", number(each.partitions)], ["Segments", segmentsText(each.segments)],
    ["Channels", each.paused ? "paused" : "deliver"],
  ]);
  $("pause").textContent = each.paused ? "Unpause channels" : "Pause channels";
  $("pause").dataset.act = each.paused ? "unpause" : "pause";
}

// --- records --------------------------------------------------------------------------------------------------------

function text(value) {
  if (value === null) return "(null)";
  if (typeof value === "string") return value;
  if (typeof value === "object" && Object.keys(value).length === 1 && typeof value.base64 === "string") return `base64 ${value.base64}`;
  return JSON.stringify(value, null, 1).replace(/\n\s*/g, " ");
}

function recordRow(record, isNew) {
  const row = cells("n", "n", "", "value", "value");
  if (isNew) row.className = "new";
  texts(row, [String(record.partition), String(record.offset), record.timestamp.replace("T", " ")]);
  row.cells[3].append(element("div", { textContent: record.key === null ? "" : text(record.key) }));
  row.cells[4].append(element("div", { textContent: text(record.value) }));
  return row;
}

async function browse(more) {
  const form = new FormData($("browse"));
  if (!more) state.query = { start: String(form.get("start")).trim() || "-50", partition: form.get("partition"), contains: form.get("contains") };
  const asked = new URLSearchParams({ start: more ? state.next : state.query.start, max: "50" });
  if (state.query.partition !== "") asked.set("partition", state.query.partition);
  if (state.query.contains) {
    asked.set("contains", state.query.contains);
    if (!more && !String(form.get("start")).trim()) asked.set("start", "earliest");
  }
  const topic = state.topic;
  const found = await ask("GET", path("topics", topic, state.query.contains ? "search" : "records") + "?" + asked);
  if (topic !== state.topic) return;
  if (!more) $("records").replaceChildren();
  $("records").append(...found.records.map((each) => recordRow(each, false)));
  state.next = found.next;
  const done = state.query.contains ? found.end : found.records.length === 0;
  $("more").hidden = done;
  const shown = $("records").children.length;
  $("records-note").textContent = `${number(shown)} ${shown === 1 ? "record" : "records"}${done ? ", no more" : ""}`;
}

function follow(on) {
  if (state.follow) { state.follow.close(); state.follow = null; }
  if (!on) return;
  const source = new EventSource(path("topics", state.topic, "stream"));
  state.follow = source;
  $("records-note").textContent = "waiting for records…";
  // What comes between two pictures goes in together, and of very much the last: a fast topic must not hold up the page.
  let waiting = [];
  const draw = () => {
    const body = $("records");
    if (state.follow === source) {
      body.prepend(...waiting.reverse().map((data) => recordRow(JSON.parse(data), true)));
      while (body.children.length > MOST_FOLLOWED) body.lastElementChild.remove();
      $("records-note").textContent = "following";
    }
    waiting = [];
  };
  source.onmessage = (event) => {
    if (!waiting.length) setTimeout(draw, 50);
    waiting.push(event.data);
    if (waiting.length > MOST_FOLLOWED) waiting.shift();
  };
  source.addEventListener("jjq-end", (event) => say(JSON.parse(event.data).message));
}

async function describe() {
  const topic = state.topic;
  const found = await ask("GET", path("topics", topic));
  if (topic !== state.topic) return;
  state.described = found;
  const columns = found.schema ? Object.entries(found.schema).map(([name, kind]) => `${name} ${kind}`).join(", ") : "none: plain values";
  facts($("topic-settings"), [
    ["Id", found.id], ["Made", found.created_at], ["Columns", columns],
    ...Object.entries(found.config).filter(([name]) => name !== "boot_id").map(([name, value]) => [name, value === null ? "–" : String(value)]),
  ]);
  $("push-hint").textContent = found.schema ? `A JSON object of: ${columns}` : "The text is pushed as it is.";
}

async function segments() {
  const topic = state.topic;
  const found = await ask("GET", path("topics", topic, "segments"));
  if (topic !== state.topic) return;
  rows($("segments"), found.segments, (each) => each.id, () => cells("n", "", "n", "n", "n", "", ""), (row, each) => texts(row, [
    String(each.partition), each.state, number(each.start), number(each.end), size(each.bytes), each.max_timestamp || "–", each.hot ? "hot" : "",
  ]));
}

// --- where we are ---------------------------------------------------------------------------------------------------

function place() {
  const found = /^#\/topic\/(.+)$/.exec(location.hash);
  follow(false);
  $("follow").checked = false;
  let topic = null;
  try { topic = found ? decodeURIComponent(found[1]) : null; } catch { topic = null; }
  const changed = state.topic !== topic;
  state.topic = topic;
  document.title = topic ? `${topic} – jjq` : "jjq";
  $("overview").hidden = topic !== null;
  $("topic").hidden = topic === null;
  $("consumers").hidden = false;
  $("topic-title").textContent = topic || "";
  if (changed && state.placed) {  // as a page that is opened begins at its top, for eyes and for the keyboard
    window.scrollTo(0, 0);
    $("main").focus({ preventScroll: true });
  }
  state.placed = true;
  if (topic && changed) {
    $("records").replaceChildren();
    $("records-note").textContent = "";
    $("more").hidden = true;
    $("segments").replaceChildren();
    $("browse").reset();
    $("push").reset();
    doing(async () => { await describe(); await browse(false); if ($("segments-part").open) await segments(); });
  }
  show();
}

function showLogin() {
  if (state.live) { state.live.close(); state.live = null; }
  for (const id of ["overview", "topic", "consumers", "trouble"]) $(id).hidden = true;
  $("login").hidden = false;
  $("state").textContent = "not logged in";
  $("login-form").elements.token.focus();
}

function live() {
  const source = new EventSource("/api/stats/stream");
  state.live = source;
  source.addEventListener("stats", (event) => {
    state.before = state.stats;
    state.stats = JSON.parse(event.data);
    state.stats.byId = new Map(state.stats.topics.map((each) => [each.id, each]));
    const { store, broker } = state.stats;
    $("state").textContent = `live · ${store.disk_free_bytes === undefined ? "" : size(store.disk_free_bytes) + " free · "}${count(broker.streams, "stream", "streams")} · up ${age(broker.uptime_s)}`;
    $("state").className = "good";
    show();
  });
  source.onerror = () => {
    $("state").textContent = "the connection is lost; trying again…";
    $("state").className = "bad";
    // A browser tries again by itself, but not after an answer that is an error.
    if (source.readyState === EventSource.CLOSED && state.live === source) setTimeout(begin, 3000);
  };
}

async function begin() {
  if (state.live) { state.live.close(); state.live = null; }
  try {
    const who = await ask("GET", path("session"));
    $("log-out").hidden = who.name === "anybody";
    $("login").hidden = true;
    live();
    place();
  } catch (error) {
    if (error.status === 401) showLogin();
    else {
      $("state").textContent = "the broker cannot be reached; trying again…";
      $("state").className = "bad";
      setTimeout(begin, 3000);
    }
  }
}

// --- what a person does ---------------------------------------------------------------------------------------------

function submits(id, act) {
  $(id).addEventListener("submit", (event) => { event.preventDefault(); doing(() => act(event.target)); });
}
submits("login-form", async (form) => {
  try { await ask("POST", path("session"), { token: form.elements.token.value.trim() }); }
  catch (error) { say(error.message); return; }
  form.reset();
  state.topic = null;
  await begin();
});
submits("new-topic", async (form) => {
  const name = form.elements.name.value.trim();
  await ask("POST", path("topics"), { name, partitions: Number(form.elements.partitions.value) || 1 });
  form.reset();
  location.hash = "#/topic/" + encodeURIComponent(name);
});
submits("browse", async () => { $("follow").checked = false; follow(false); await browse(false); });
submits("push", async (form) => {
  let value = form.elements.value.value;
  if (state.described && state.described.schema) {
    try { value = JSON.parse(value); } catch { say("The value is no JSON."); return; }
  }
  const key = form.elements.key.value;
  const found = await ask("POST", path("topics", state.topic, "records"), { value, key: key === "" ? null : key });
  const at = found.positions[0];
  say(`Pushed: partition ${at.partition}, offset ${number(at.offset)}.`);
  form.elements.value.value = "";
});
$("more").addEventListener("click", () => doing(() => browse(true)));
$("follow").addEventListener("change", (event) => follow(event.target.checked));
$("topic-filter").addEventListener("input", show);
$("topic-order").addEventListener("change", show);
$("segments-part").addEventListener("toggle", (event) => { if (event.target.open) doing(segments); });
$("pause").addEventListener("click", () => doing(() => ask("POST", path("topics", state.topic, $("pause").dataset.act))));
$("empty").addEventListener("click", async () => {
  if (await sure(`Let go of every record of ${state.topic}? They do not come back.`)) {
    await doing(async () => { await ask("POST", path("topics", state.topic, "empty")); await browse(false); });
  }
});
$("log-out").addEventListener("click", () => doing(async () => { await ask("DELETE", path("session")); location.reload(); }));
window.addEventListener("hashchange", place);
$("no-topics").querySelector("code").textContent = `curl --data hello '${location.origin}/pub?topic=first'`;
begin();
