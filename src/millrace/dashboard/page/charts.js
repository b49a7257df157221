// Lines over time, drawn by uPlot: event time against processing time, how long epochs took, and,
// smaller, throughput, backlog and latency.

import { byId, clock, colour, count, el, inBytes, instant, rate, say, span } from "./text.js";

const utc = (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC");
const COLOURS = ["c1", "c2", "c3", "c4", "c5", "c6"];
const charts = new Map();

function axes(more) {
  return { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 },
    ticks: { stroke: colour("line"), width: 1 }, font: "12px system-ui, sans-serif", ...more };
}

function put(id, made, data, tall = 250) {
  const box = byId(id), known = charts.get(id);
  const shape = JSON.stringify(made.series.map((one) => [one.label, one.stroke]));
  if (known && known.shape === shape && box.contains(known.chart.root)) {
    known.chart.setData(data);
    return;
  }
  known?.chart.destroy();
  box.replaceChildren();
  const size = () => ({ width: Math.max(260, box.clientWidth), height: tall });
  const chart = new uPlot({ ...made, ...size(), tzDate: utc, cursor: { points: { size: 6 } } }, data, box);
  for (const name of chart.root.querySelectorAll(".u-label")) name.title = name.textContent;
  charts.set(id, { chart, shape, size });
}

export function fit() {
  for (const { chart, size } of charts.values()) chart.setSize(size());
}

export function recolour() {
  for (const { chart } of charts.values()) chart.destroy();
  charts.clear();
}

// By 24 hours, with a date where a day begins or the picture does.
function times(_, splits, __, ___, step) {
  let day = "";
  return splits.map((s) => {
    const text = instant(s * 1000);
    if (step >= 86400) return text.slice(0, 10);
    const clockTime = text.slice(11, step < 60 ? 19 : 16), other = text.slice(0, 10) !== day;
    day = text.slice(0, 10);
    return other ? `${clockTime}\n${day}` : clockTime;
  });
}

const inSeconds = (values) => values.map((ms) => (ms === null ? null : ms / 1000));
const atY = (_, value) => (value === null || value === undefined ? "–" : instant(value * 1000));

export function drawTime(history) {
  const box = byId("time-picture"), many = history.wall.length;
  if (!many) {
    box.replaceChildren(el("p", { class: "empty" }, "Nothing yet: a line begins with the first epoch."));
    say("time-words", "");
    return;
  }
  const wall = inSeconds(history.wall);
  const names = Object.keys(history.low);
  const lows = names.map((name) => inSeconds(history.low[name]));
  // Late records lie below the low watermark of their time; they are drawn on it.
  const late = history.late.map((n, at) => {
    const more = n - (at ? history.late[at - 1] : n);
    const known = lows.map((low) => low[at]).filter((low) => low !== null);
    return more > 0 && known.length ? Math.min(...known) : null;
  });
  const series = [
    { label: "processing time", value: atY },
    { label: "newest record", stroke: colour("soft"), width: 1.4, dash: [5, 4], value: atY },
    ...names.map((name, n) => ({ label: name, stroke: colour(COLOURS[n]), width: 2, value: atY,
      spanGaps: true, points: { show: many < 3 } })),
    { label: "late records", stroke: colour("bad"), width: 0, paths: () => null,
      points: { show: true, size: 9, stroke: colour("bad"), fill: colour("bad-soft"), width: 2 },
      value: (_, value, __, at) => (value === null || value === undefined || at === null
        ? "–" : count(history.late[at] - (at ? history.late[at - 1] : 0))) },
  ];
  put("time-picture", { series, scales: { x: { time: true }, y: { time: true } },
    axes: [axes({ values: times, space: 80 }), axes({ values: times, size: 84 })] }, [wall, inSeconds(history.newest), ...lows, late]);
  say("time-words", `Epochs ${history.epoch[0]} to ${history.epoch[many - 1]}. As far as a low watermark is `
    + `below the dashed line, it is behind the newest record. ${count(history.late[many - 1])} late records `
    + `since the beginning.${history.others ? ` These are furthest behind; ${history.others} more computations are in the graph.` : ""}`);
}

export function drawEpochs(parts) {
  const box = byId("epochs-picture"), many = parts.epoch.length;
  if (!many) {
    box.replaceChildren(el("p", { class: "empty" },
      "No epoch was measured. A run writes down how long each took where its checkpoint is a directory."));
    say("epochs-words", "");
    return;
  }
  const names = Object.keys(parts.parts);
  const rows = names.length ? names.map((name) => parts.parts[name]) : [parts.seconds];
  const sums = [];
  rows.forEach((row, n) => sums.push(row.map((value, at) => value + (n ? sums[n - 1][at] : 0))));
  const bars = uPlot.paths.bars({ size: [0.72, 26], radius: 0.15 });
  const series = [
    { label: "epoch", value: (_, value) => (value === null || value === undefined ? "–" : String(parts.epoch[value] ?? "–")) },
    // The tallest is drawn first, so that each shows what it adds.
    ...sums.map((_, n) => ({ label: names[n] || "whole epoch", stroke: colour(COLOURS[n % 6]),
      fill: colour(COLOURS[n % 6]), width: 0, paths: bars, points: { show: false },
      value: (__, ___, ____, at) => (at === null || at === undefined ? "–" : span(rows[n][at])) })).reverse(),
  ];
  put("epochs-picture", { series, scales: { x: { time: false, range: (_, low, high) => [low - 0.6, high + 0.6] },
    y: { range: (_, low, high) => [0, (high || 1) * 1.08] } },
  axes: [axes({ incrs: [1, 2, 5, 10, 20, 50], values: (_, at) => at.map((n) => parts.epoch[n] ?? "") }),
    axes({ size: 62, values: (_, at) => at.map((s) => span(s)) })] },
  [parts.epoch.map((_, n) => n), ...[...sums].reverse()]);
  const worst = parts.seconds.indexOf(Math.max(...parts.seconds));
  say("epochs-words", `The last ${many === 1 ? "epoch" : `${many} epochs`}: `
    + `the last took ${span(parts.seconds[many - 1])}, the longest, epoch ${parts.epoch[worst]}, ${span(parts.seconds[worst])}.`);
}

// One line a name over the clock, of values that are never below nought.
function lines(id, wall, columns, said, scale = {}) {
  const names = Object.keys(columns);
  // Of one point uPlot would draw years.
  const drawn = wall.length > 1 ? (one) => one : (one) => [one[0], one[0]];
  const at = wall.length > 1 ? inSeconds(wall) : [wall[0] / 1000 - 1, wall[0] / 1000];
  const series = [
    { label: "at", value: atY },
    ...names.map((name, n) => ({ label: name, stroke: colour(COLOURS[n]), width: 1.8, spanGaps: true,
      points: { show: false }, value: (_, value) => (value === null || value === undefined ? "–" : said(value)) })),
  ];
  put(id, { series,
    scales: { x: { time: true }, y: { range: (_, __, high) => [0, (high || 1) * 1.08], ...scale } },
    axes: [axes({ values: times, space: 70 }), axes({ size: 66, values: (_, at) => at.map((n) => (n === null ? "" : said(n))), ...scale.axis })] },
  [at, ...names.map((name) => drawn(columns[name]))], 190);
}

const others = (n, what) => (n ? ` ${count(n)} more ${what} are not drawn.` : "");

function nothing(id, text) {
  byId(`${id}-picture`).replaceChildren(el("p", { class: "empty" }, text));
  say(`${id}-words`, "");
}

export function drawThroughput(found) {
  const names = Object.keys(found.read);
  if (!found.wall.length || !names.length) { nothing("throughput", "Nothing yet: a rate takes two epochs with records."); return; }
  lines("throughput-picture", found.wall, found.read, (n) => rate(n));
  const last = names.reduce((sum, name) => sum + found.read[name][found.wall.length - 1], 0);
  say("throughput-words", `Records read a second, by stream; now ${rate(last)} in all.${others(found.others, "streams")}`);
}

const chosen = (name) => document.querySelector(`input[name="${name}"]:checked`)?.value;

// A choice of what a chart shows, as radio buttons; hidden where there is but one.
function choice(name, values, legend) {
  const box = byId(name), was = chosen(name);
  if ([...box.querySelectorAll("input")].map((one) => one.value).join() !== values.join()) {
    box.replaceChildren(el("legend", { class: "hidden" }, legend), ...values.map((value) =>
      el("label", {}, el("input", { type: "radio", name, value }), el("span", {}, value))));
    const now = box.querySelector(`input[value="${was}"]`) || box.querySelector("input");
    if (now) now.checked = true;
  }
  box.hidden = values.length < 2;
  return chosen(name);
}

export function drawBacklog(found) {
  const units = Object.keys(found.units);
  const unit = choice("backlog-unit", units, "Backlog in");
  if (!unit) {
    nothing("backlog", "No source has said how much waits in it, or the checkpoint has no file of metrics.");
    return;
  }
  const columns = found.units[unit];
  const said = unit === "bytes" ? (n) => inBytes(Math.round(n)) : count;
  lines("backlog-picture", found.wall, columns, said);
  const last = Object.values(columns).reduce((sum, values) => sum + (values[values.length - 1] || 0), 0);
  say("backlog-words", `${unit[0].toUpperCase()}${unit.slice(1)} in their sources, not read yet; now ${said(last)} in all.${others(found.others, "streams")}`);
}

// Times are drawn by powers of ten: a step of microseconds stands beside one of seconds.
const power = (n) => Math.abs(Math.log10(n) - Math.round(Math.log10(n))) < 1e-6;
const POWERS = { distr: 3,
  range: (_, low, high) => [10 ** Math.floor(Math.log10(low || 1e-6)), 10 ** Math.ceil(Math.log10((high || 1) * 1.01))],
  axis: { filter: (_, at) => at.map((n) => (power(n) ? n : null)) } };

export function drawLatency(found) {
  const share = chosen("latency-share"), columns = found[share];
  const names = Object.keys(columns);
  byId("latency-share").hidden = !names.length;
  if (!names.length) { nothing("latency", "No call was timed yet, or the checkpoint has no file of metrics."); return; }
  const positive = Object.fromEntries(names.map((name) => [name, columns[name].map((n) => n || null)]));
  lines("latency-picture", found.wall, positive, span, POWERS);
  say("latency-words", found.of === "steps"
    ? `Of 100 records, ${share.slice(1)} take less in each step on their way, of the last half minute.${others(found.others, "steps")}`
    : `Of 100 calls of user code in an epoch, ${share.slice(1)} take less, by computation.${others(found.others, "computations")}`);
}

export function listenToCharts(redraw) {
  for (const name of ["latency-share", "backlog-unit"]) byId(name).addEventListener("change", redraw);
}
