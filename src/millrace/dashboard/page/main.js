// The page: takes what the server tells, and has it drawn.

import { about, listenToActs, offer, unlock } from "./acting.js";
import { drawBacklog, drawEpochs, drawLatency, drawThroughput, drawTime, fit, listenToCharts, recolour } from "./charts.js";
import { drawCulprit, drawGraph } from "./graph.js";
import { drawHeat, listenToHeat } from "./heat.js";
import { age, drawCalls, drawHot, drawKey, drawLetters, drawServices, drawStuck } from "./keys.js";
import { ask, follow } from "./live.js";
import { drawPanes } from "./panes.js";
import { byId, count, cut, el, instant, rate, say, span } from "./text.js";

const STATES = {
  running: "running", silent: "no run answers", stopped: "stopped", failed: "failed", drained: "drained", waiting: "not started",
  unreadable: "cannot be read", lost: "connection lost",
};
let now = null, drawn = null, past = null, panes = null, busy = false, again = false;

function state(name) {
  const pill = byId("state");
  say("state", STATES[name] || name);
  pill.className = `pill ${name}`;
}

function trouble(text) {
  byId("trouble").hidden = !text;
  say("trouble", text);
}

function tiles() {
  const t = now.totals;
  const made = [
    ["Records a second", t.rate === undefined ? "–" : rate(t.rate).replace("/s", ""), ""],
    ["Records read", count(t.injected), ""],
    ["Behind the newest record", span(t.lag), ""],
    ["Late records", count(t.late), t.late ? "warn" : ""],
    ["Dead letters", count(t.dead), t.dead ? "bad" : ""],
    ["Stuck calls", count(t.stuck), t.stuck ? "bad" : ""],
  ];
  byId("tiles").replaceChildren(...made.map(([name, value, kind]) =>
    el("div", { class: kind }, el("dt", {}, name), el("dd", {}, value))));
}

function head() {
  say("pipeline", now.pipeline || "Millrace");
  document.title = `${now.pipeline} · Millrace`;
  say("checkpoint", now.checkpoint);
  byId("checkpoint").title = now.checkpoint;
  state(now.state);
  trouble(now.state === "unreadable" ? now.said : "");
  tick();
}

function tick() {
  if (now) {
    const ago = now.wall === null ? "" : `, ${span(Math.max(0, (Date.now() - now.wall) / 1000 | 0))} ago`;
    say("epoch", now.epoch < 0 ? "no epoch yet" : `epoch ${now.epoch.toLocaleString("en")}${ago} · run ${now.generation}`);
    byId("epoch").title = now.wall === null ? "" : instant(now.wall);
  }
  age();
}

function choose(id, names) {
  const select = byId(id), was = select.value;
  if ([...select.options].map((one) => one.value).join("\n") === names.join("\n")) return;
  select.replaceChildren(...names.map((name) => el("option", { value: name }, cut(name, 80))));
  if (names.includes(was)) select.value = was;
}

function pick(name) {
  for (const id of ["heat-computation", "key-computation"]) byId(id).value = name;
  refresh(true);
  byId("intervals").scrollIntoView();
}

function take(event, data) {
  if (event === "hello") { offer(data); return; }
  now = data;
  head();
  tiles();
  about(now);
  drawGraph(now, pick);
  drawCulprit(now);
  drawStuck(now.stuck);
  drawHot(now.hot);
  drawCalls(now.calls);
  drawLetters(now.letters);
  drawServices(now.services);
  const names = now.graph.nodes.filter((node) => node.kind === "computation").map((node) => node.name);
  choose("heat-computation", names);
  choose("key-computation", names);
  choose("panes-computation", now.groupings);
  if (drawn !== now.epoch) refresh(false);
}

// What is asked for beside: at most one round at a time, and none where nobody looks.
async function refresh(always) {
  if (busy || (document.hidden && !always)) { again = busy; return; }
  busy = true;
  drawn = now.epoch;
  const heatOf = byId("heat-computation").value, panesOf = byId("panes-computation").value;
  await Promise.all([
    ask("/api/history").then((found) => { past = found; charts(); }),
    heatOf ? ask("/api/intervals", { computation: heatOf }).then(drawHeat) : drawHeat(null),
    panesOf ? ask("/api/panes", { computation: panesOf, key: byId("panes-key").value })
      .then((found) => { panes = found; drawPanes(found); })
      .catch((error) => { panes = null; drawPanes(null, error.message); }) : drawPanes(null),
  ]).catch((error) => console.warn(error.message));
  setTimeout(() => { busy = false; if (again || drawn !== now.epoch) { again = false; refresh(false); } }, 1000);
}

function charts() {
  drawTime(past);
  drawEpochs(past.parts);
  drawThroughput(past.throughput);
  drawBacklog(past.backlog);
  drawLatency(past.latency);
}

function redraw() {
  if (!now) return;
  recolour();
  drawGraph(now, pick);
  if (past) charts();
  drawHeat();
  drawPanes(panes);
}

document.addEventListener("millrace-key", ({ detail: { computation, key } }) => {
  byId("key-computation").value = computation;
  byId("key-text").value = key;
  byId("key-form").requestSubmit();
  byId("keys").scrollIntoView();
});
byId("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const computation = byId("key-computation").value;
  try {
    drawKey(await ask("/api/key", { computation, key: byId("key-text").value }), computation);
  } catch (error) {
    byId("key-found").replaceChildren(el("p", { class: "empty" }, error.message));
  }
});
byId("panes-form").addEventListener("submit", (event) => { event.preventDefault(); refresh(true); });
for (const id of ["heat-computation", "panes-computation"]) byId(id).addEventListener("change", () => refresh(true));
document.addEventListener("visibilitychange", () => { if (now && !document.hidden) refresh(true); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
let resized = 0;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => { fit(); drawHeat(); drawPanes(panes); }, 150);
});
listenToHeat();
listenToCharts(() => { if (past) charts(); });
listenToActs();
setInterval(tick, 1000);
follow(take, (error) => {
  state("lost");
  trouble(`${error.message} Asking again; what is shown is what was known last.`);
  if (error.status === 401) unlock();
});
