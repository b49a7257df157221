// The graph: computations in columns by level, edges as curves, the culprit lit.

import { byId, count, cut, el, inBytes, instant, rate, span, svg } from "./text.js";

const WIDE = 188, SINK = 128, HIGH = 70, GAP = 100, ROW = 24, PAD = 8;

function alarms(node) {
  const found = [];
  if (node.stuck) found.push(`${node.stuck} stuck`);
  if (node.dead) found.push(`${count(node.dead)} dead`);
  if (node.late) found.push(`${count(node.late)} late`);
  return found.join(", ");
}

// What waits in the source of an injector; "" if it does not tell.
function waits(node) {
  const { records, files, bytes } = node.backlog || {};
  const said = [];
  if (records !== undefined) said.push(`${count(records)} record${records === 1 ? "" : "s"}`);
  if (files !== undefined) said.push(`${count(files)} file${files === 1 ? "" : "s"}`);
  if (bytes) said.push(inBytes(bytes));
  return said.length ? `${said.join(", ")} wait` : "";
}

// How many timers of a computation are pending; "" if none are, or it is not known.
function timers(node) {
  const pending = (node.pendingTimers || 0) + (node.pendingWallTimers || 0);
  return pending ? `${count(pending)} timer${pending === 1 ? "" : "s"}` : "";
}

function placed(graph) {
  const nodes = graph.nodes.map((node) => ({ ...node, links: [], alarms: alarms(node),
    waits: waits(node), high: node.kind === "sink" ? 46 : HIGH + (alarms(node) || waits(node) ? 17 : 0) }));
  const byName = new Map(nodes.map((node) => [node.id, node]));
  const ways = [];
  for (const edge of graph.edges) {
    const from = byName.get(edge.from), to = byName.get(edge.to);
    if (!from || !to) continue;
    // A long edge has a place of its own in each column that it passes.
    const way = [from];
    for (let level = from.level + 1; level < to.level; level += 1) {
      const bend = { level, high: 18, links: [], bend: true };
      nodes.push(bend);
      way.push(bend);
    }
    way.push(to);
    for (let n = 1; n < way.length; n += 1) {
      way[n].links.push(way[n - 1]);
      way[n - 1].links.push(way[n]);
    }
    ways.push({ edge, way });
  }
  const columns = [];
  for (const node of nodes) (columns[node.level] ||= []).push(node);
  const rows = columns.filter(Boolean);
  rows.forEach((column, x) => column.forEach((node) => { node.x = PAD + x * (WIDE + GAP); }));
  const stack = () => rows.forEach((column) => {
    let y = PAD;
    for (const node of column) { node.y = y; y += node.high + ROW; }
    column.tall = y - ROW;
  });
  stack();
  for (let round = 0; round < 6; round += 1) {
    for (const column of round % 2 ? [...rows].reverse() : rows) {
      for (const node of column) {
        const middles = node.links.map((other) => other.y + other.high / 2);
        node.wish = middles.length
          ? middles.reduce((a, b) => a + b, 0) / middles.length : node.y + node.high / 2;
      }
      column.sort((a, b) => a.wish - b.wish);
    }
    stack();
  }
  const tall = Math.max(...rows.map((column) => column.tall), 0);
  for (const column of rows) for (const node of column) node.y += (tall - column.tall) / 2;
  return { nodes: nodes.filter((node) => !node.bend), ways, tall: tall + PAD,
    wide: PAD * 2 + rows.length * (WIDE + GAP) - GAP
      - (graph.nodes.some((node) => node.kind === "sink") ? WIDE - SINK : 0) };
}

function curve(way) {
  const first = way[0], last = way[way.length - 1];
  let path = `M${first.x + WIDE} ${first.y + first.high / 2}`;
  let from = { x: first.x + WIDE, y: first.y + first.high / 2 };
  for (const node of way.slice(1)) {
    const to = { x: node.x, y: node.y + node.high / 2 };
    const half = (to.x - from.x) / 2;
    path += `C${from.x + half} ${from.y} ${to.x - half} ${to.y} ${to.x} ${to.y}`;
    from = to;
    if (node !== last) { path += `L${to.x + WIDE} ${to.y}`; from = { x: to.x + WIDE, y: to.y }; }
  }
  const to = way[1];
  return { path, at: { x: first.x + WIDE + GAP / 2,
    y: (first.y + first.high / 2 + to.y + to.high / 2) / 2 } };
}

function words(node) {
  if (node.kind === "sink") return `Output ${node.name}`;
  const lag = node.ended ? "at the end of time" : node.rests ? node.rests
    : node.lag === null ? "no low watermark yet" : `${span(node.lag)} behind`;
  const kind = node.kind === "injector" ? "Injector" : "Computation";
  const late = node.late ? `, ${count(node.late)} late` : "";
  const stuck = node.stuck ? `, ${node.stuck} stuck` : "";
  const pending = timers(node) && `, ${timers(node)} pending`;
  return `${kind} ${node.name}: ${rate(node.rate)}, ${lag}${late}${stuck}${pending}${node.waits ? `, ${node.waits} in its source` : ""}`;
}

function drawn(node, culprit, pick) {
  const classes = ["node", node.kind];
  if (culprit && culprit.way.includes(node.id)) classes.push("lit");
  if (culprit && culprit.node === node.id && culprit.kind !== "nothing") classes.push("pinned");
  const clickable = node.kind === "computation";
  const group = svg("g", {
    class: classes.join(" "), transform: `translate(${node.x} ${node.y})`, "data-id": node.id,
    tabindex: clickable ? "0" : null, role: clickable ? "button" : "img", "aria-label": words(node),
  }, svg("title", {}, node.kind === "injector" && node.policy
    ? `${node.name}\n${node.policy}` : `${node.name}\nlow watermark ${instant(node.low)}`
      + (timers(node) && `\npending timers: ${count(node.pendingTimers)}, of the wall clock: ${
        count(node.pendingWallTimers)}`)));
  const line = (y, className, text) => svg("text", { x: 13, y, class: className }, text);
  const sink = node.kind === "sink";
  group.append(svg("rect", { width: sink ? SINK : WIDE, height: node.high, rx: 11 }));
  group.append(line(sink ? 28 : 23, "name", cut(node.name, sink ? 15 : 22)));
  if (sink) return group;
  group.append(line(42, "more", `${rate(node.rate)} · ${count(node.count)} records`));
  const lag = node.ended ? "input ended" : node.rests ? node.rests
    : node.lag === null || node.lag === undefined ? "no low watermark" : `${span(node.lag)} behind`;
  group.append(line(59, "more", timers(node) ? `${lag} · ${timers(node)}` : lag));
  if (node.waits) group.append(line(76, "more", node.waits));
  if (node.alarms) group.append(line(76, "alarm", node.alarms));
  if (clickable) {
    group.addEventListener("click", () => pick(node.id));
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(node.id); }
    });
  }
  return group;
}

export function drawGraph(now, pick) {
  const box = byId("graph-picture"), culprit = now.culprit;
  if (!now.graph.nodes.length) {
    box.replaceChildren(el("p", { class: "empty" },
      "No run has claimed this checkpoint yet. The graph is here as soon as one does."));
    return;
  }
  const focused = document.activeElement && document.activeElement.getAttribute("data-id");
  const { nodes, ways, tall, wide } = placed(now.graph);
  const picture = svg("svg", { width: wide, height: tall, viewBox: `0 0 ${wide} ${tall}`,
    role: "group", "aria-label": "Computations and the streams between them" });
  const along = culprit ? culprit.way : [];
  const taken = [];
  const labels = [];
  for (const { edge, way } of ways) {
    const lit = along.some((id, n) => id === edge.to && along[n + 1] === edge.from);
    const { path, at } = curve(way);
    while (taken.some((other) => other.x === at.x && Math.abs(other.y - at.y) < 36)) at.y += 12;
    taken.push(at);
    picture.append(svg("g", { class: lit ? "edge lit" : "edge" }, svg("path", { d: path })));
    labels.push(svg("g", { class: lit ? "edge lit" : "edge", "data-edge": `${edge.from}>${edge.to}` },
      svg("rect", { x: at.x - 38, y: at.y - 17, width: 76, height: 34, rx: 8 }),
      svg("text", { x: at.x, y: at.y - 3, class: "rate" },
        edge.rate === null ? "–" : `${edge.exact ? "" : "≤ "}${rate(edge.rate)}`),
      svg("text", { x: at.x, y: at.y + 12, class: "lag" },
        edge.lag === null ? "no watermark" : edge.lag === 0 ? "up to date" : `${span(edge.lag)} lag`)));
  }
  picture.append(...labels, ...nodes.map((node) => drawn(node, culprit, pick)));
  box.replaceChildren(picture);
  // What holds the watermark stands beside the graph, or below it where the graph is wide.
  const split = box.parentElement;
  split.classList.remove("stacked");
  split.classList.toggle("stacked", wide > box.clientWidth);
  if (focused) box.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
}

export function drawCulprit(now) {
  const culprit = now.culprit;
  if (!culprit) {
    byId("culprit-text").replaceChildren(
      el("p", { class: "empty" }, "No epoch has completed yet, so nothing is held."));
    return;
  }
  const pin = culprit.lines.findIndex((line) => /^(Pinned by|Nothing pins)/.test(line));
  byId("culprit-text").replaceChildren(...culprit.lines.map((line, n) =>
    el("p", { class: n === pin && culprit.kind !== "nothing" ? "pin" : null }, ...timed(line))));
}

// Instants within a sentence, to the second, and not broken in two.
function timed(line) {
  return line.split(/(\d{4}-\d\d-\d\dT[\d:.]+Z)/).map((part, n) => (n % 2
    ? el("time", { datetime: part, title: part }, part.slice(0, 19).replace("T", " ")) : part));
}
