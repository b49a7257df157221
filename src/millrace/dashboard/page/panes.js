// Panes of a key: a lane a window, panes along processing time, what was withdrawn struck out.

import { byId, clock, count, cut, el, fitted, instant, svg } from "./text.js";

const LEFT = 180, LANE = 46, TOP = 30, STEP = 54, OPEN = 176;

export function drawPanes(found, wrong) {
  const box = byId("panes-picture");
  if (wrong) {
    box.replaceChildren(el("p", { class: "empty" }, wrong));
    return;
  }
  if (!found || (!found.panes.length && !found.open.length)) {
    box.replaceChildren(el("p", { class: "empty" }, found && found.key
      ? `No pane of key ${cut(found.key, 60)} is kept any more, and no window of it is open.`
      : "No pane is kept in a commit: none was emitted lately, or productions are weak."));
    return;
  }
  const lanes = new Map();
  const lane = (one) => {
    const name = `${one.start} ${one.end}`;
    if (!lanes.has(name)) lanes.set(name, { start: one.start, end: one.end, panes: [], open: null });
    return lanes.get(name);
  };
  for (const pane of found.panes) lane(pane).panes.push(pane);
  for (const one of found.open) lane(one).open = one;
  const ordered = [...lanes.values()].sort((a, b) => (a.start ?? 0) - (b.start ?? 0)).slice(-12);
  // Each pane has a place of its own, in the order of processing time: many come at one instant.
  const places = new Map(ordered.flatMap((one) => one.panes).sort((a, b) => a.at - b.at)
    .map((pane, n) => [pane, n]));
  const many = places.size, open = ordered.some((one) => one.open) ? OPEN : 20;
  const step = Math.max(STEP, Math.min(110, (box.clientWidth - LEFT - open) / Math.max(1, many)));
  const wide = LEFT + many * step + open, tall = TOP + ordered.length * LANE + 8;
  const x = (pane) => LEFT + (places.get(pane) + 0.5) * step;
  const picture = svg("svg", { width: wide, height: tall, viewBox: `0 0 ${wide} ${tall}`, role: "img",
    "aria-label": `Panes of key ${found.key}: ${found.panes.length}, of ${ordered.length} windows; `
      + `${found.panes.filter((pane) => pane.retraction).length} withdrawn` });
  const axis = svg("g", { class: "axis" }, svg("text", { x: 0, y: 14 }, fitted(`key ${found.key}`, LEFT - 12, "11.5px")));
  let right = -Infinity, before = null;
  for (const pane of places.keys()) {
    if (pane.at === before || x(pane) - right < 70) continue;
    right = x(pane);
    before = pane.at;
    axis.append(svg("line", { x1: right - step / 2, x2: right - step / 2, y1: 20, y2: tall }),
      svg("text", { x: right - step / 2 + 5, y: 14 }, clock(pane.at - (pane.at % 1000))));
  }
  picture.append(axis);
  ordered.forEach((one, n) => {
    const y = TOP + n * LANE + LANE / 2;
    const group = svg("g", { class: "lane" },
      svg("line", { x1: 0, x2: wide, y1: y + LANE / 2, y2: y + LANE / 2 }),
      svg("text", { x: 0, y: y - 2 }, one.start === null ? "all time" : instant(one.start - (one.start % 1000))),
      svg("text", { x: 0, y: y + 14, class: "soft" }, one.end === null ? "" : `to ${instant(one.end)}`));
    const withdrawn = new Set(one.panes.filter((pane) => pane.retraction).map((pane) => pane.index));
    for (const pane of one.panes) {
      const at = x(pane);
      const kind = pane.retraction ? "withdrawn" : `${pane.timing}${withdrawn.has(pane.index) ? " taken" : ""}`;
      const said = `${pane.retraction ? "withdraws" : pane.timing.toLowerCase().replace("_", " ")} pane ${pane.index}: ${pane.value}, `
        + `at ${instant(pane.at)}, epoch ${pane.epoch}`;
      group.append(svg("g", { class: `pane ${kind}` }, svg("title", {}, said),
        svg("circle", { cx: at, cy: y - 4, r: 6 }),
        svg("text", { x: at, y: y + 15, "text-anchor": "middle" }, fitted(pane.value, step - 4))));
    }
    if (one.open) {
      const text = `${fitted(one.open.accumulator, 90)} · ${count(one.open.pending)} new`;
      group.append(svg("g", { class: "pane open" },
        svg("title", {}, `open: ${one.open.size} elements, ${one.open.pending} since the last pane, accumulator ${one.open.accumulator}`),
        svg("rect", { x: wide - 170, y: y - 16, width: 166, height: 25, rx: 7 }),
        svg("text", { x: wide - 87, y: y + 1, "text-anchor": "middle" }, text)));
    }
    picture.append(group);
  });
  const mark = (kind, text) => el("span", { class: "mark" }, svg("svg", { width: 16, height: 14, "aria-hidden": "true" },
    svg("g", { class: `pane ${kind}` }, svg("circle", { cx: 7, cy: 7, r: 5 }))), text);
  box.replaceChildren(picture, el("p", { class: "soft marks" }, mark("EARLY", "early"), mark("ON_TIME", "on time"),
    mark("LATE", "late"), mark("withdrawn", "withdrawn"), "dashed box: still open, with what came since the last pane"));
}
