// The graph: computations in columns by level, edges as curves, the culprit lit.

import { keyOf } from "./keys.js";
import { byId, count, el, fitted, inBytes, instant, rate, renew, span, svg } from "./text.js";

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

// The most frequent reason of dead letters and the first record of it, a line each.
function lost({ top }) {
  if (!top) return [];
  const { computation, stream, key, value } = top.first;
  return [top.reason, [key && `key ${key}`, `value ${value}`].filter(Boolean).join(", "),
    `in ${computation || stream}`];
}

function high(node) {
  if (node.kind === "sink") return 46;
  if (node.kind === "letters") return node.top ? 93 : 53;
  return HIGH + 17 * [alarms(node), waits(node)].filter(Boolean).length;
}

function placed(graph) {
  const nodes = graph.nodes.map((node) => ({ ...node, links: [], alarms: alarms(node),
    waits: waits(node), high: high(node), wide: node.kind === "sink" ? SINK : WIDE }));
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
  const boxes = nodes.filter((node) => !node.bend);
  return { nodes: boxes, ways, tall: tall + PAD, wide: PAD + Math.max(...boxes.map((node) => node.x + node.wide)) };
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
  if (node.kind === "letters") return [`${count(node.count)} dead letters`, ...lost(node)].join(", ");
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
  if (node.kind === "letters" && node.count) classes.push("dead");
  if (culprit && culprit.way.includes(node.id)) classes.push("lit");
  if (culprit && culprit.node === node.id && culprit.kind !== "nothing") classes.push("pinned");
  const clickable = node.kind === "computation" || node.kind === "letters";
  const sink = node.kind === "sink";
  const group = svg("g", {
    class: classes.join(" "), transform: `translate(${node.x} ${node.y})`, "data-id": node.id,
    tabindex: clickable ? "0" : null, role: clickable ? "button" : "img", "aria-label": words(node),
  }, svg("title", {}, title(node)));
  const fonts = { name: "650 13px", alarm: "600 12px", more: "12px" };
  const line = (y, className, text) => svg("text", { x: 13, y, class: className },
    fitted(text, node.wide - 24, fonts[className]));
  group.append(svg("rect", { width: node.wide, height: node.high, rx: 11 }));
  group.append(line(sink ? 28 : 23, "name", node.name));
  if (clickable) {
    const chosen = () => (node.kind === "letters" ? byId("letters").scrollIntoView() : pick(node.id));
    group.addEventListener("click", chosen);
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); chosen(); }
    });
  }
  if (node.kind === "letters") {
    group.append(line(41, node.count ? "alarm" : "more", `${count(node.count)} dead letter${node.count === 1 ? "" : "s"}`));
    lost(node).slice(0, 2).forEach((text, n) => group.append(line(61 + n * 17, "more", text)));
  }
  if (sink || node.kind === "letters") return group;
  group.append(line(42, "more", `${rate(node.rate)} · ${count(node.count)} record${node.count === 1 ? "" : "s"}`));
  const lag = node.ended ? "input ended" : node.rests ? node.rests
    : node.lag === null || node.lag === undefined ? "no low watermark" : `${span(node.lag)} behind`;
  group.append(line(59, "more", timers(node) ? `${lag} · ${timers(node)}` : lag));
  if (node.waits) group.append(line(76, "more", node.waits));
  if (node.alarms) group.append(line(node.waits ? 93 : 76, "alarm", node.alarms));
  return group;
}

// What is shown where the mouse rests: names in full.
function title(node) {
  if (node.kind === "sink") return node.name;
  if (node.kind === "letters") return [node.name, ...lost(node)].join("\n");
  if (node.kind === "injector" && node.policy) return `${node.name}\n${node.policy}`;
  return `${node.name}\nlow watermark ${instant(node.low)}` + (timers(node)
    && `\npending timers: ${count(node.pendingTimers)}, of the wall clock: ${count(node.pendingWallTimers)}`);
}

function label({ edge, at, lit }) {
  if (edge.dead) {
    return svg("g", { class: "edge dead", "data-dead": edge.from },
      svg("rect", { x: at.x - 46, y: at.y - 9, width: 92, height: 18, rx: 8 }),
      svg("text", { x: at.x, y: at.y + 4, class: "rate" }, `${count(edge.dead)} dead`));
  }
  return svg("g", { class: lit ? "edge lit" : "edge", "data-edge": `${edge.from}>${edge.to}` },
    svg("rect", { x: at.x - 46, y: at.y - 17, width: 92, height: 34, rx: 8 }),
    svg("text", { x: at.x, y: at.y - 3, class: "rate" },
      edge.rate === null ? "–" : `${edge.exact ? "" : "≤ "}${rate(edge.rate)}`),
    svg("text", { x: at.x, y: at.y + 12, class: "lag" },
      edge.lag === null ? "no watermark" : edge.lag === 0 ? "up to date" : `${span(edge.lag)} lag`));
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
    picture.append(svg("g", { class: edge.dead ? "edge dead" : lit ? "edge lit" : "edge" }, svg("path", { d: path })));
    labels.push(label({ edge, at, lit }));
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
  renew(byId("culprit-text"), ...culprit.lines.flatMap((line, n) => [
    el("p", { class: n === pin && culprit.kind !== "nothing" ? "pin" : null }, ...timed(line)),
    ...(n === pin && culprit.key ? [el("p", {},
      keyOf(culprit.node, culprit.key, fitted(`What is kept of ${culprit.key}`, 260, "13px")))] : [])]));
}

// Instants within a sentence, to the second, and not broken in two.
function timed(line) {
  return line.split(/(\d{4}-\d\d-\d\dT[\d:.]+Z)/).map((part, n) => (n % 2
    ? el("time", { datetime: part, title: part }, part.slice(0, 19).replace("T", " ")) : part));
}
