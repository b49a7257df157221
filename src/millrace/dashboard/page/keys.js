// Keys: what is kept of one, which are hottest; user code: how long it takes, where it hangs.

import { byId, count, el, instant, renew, span, svg, table } from "./text.js";

// A key to click on, for what is kept of it; plain text where it is not known in full, or of whom.
export function keyOf(computation, typed, shown = typed) {
  if (!computation || typed === null || typed === undefined) return shown;
  const button = el("button", { type: "button", class: "key", "data-of": `${computation} ${typed}`,
    title: `What ${computation} keeps of it` }, shown);
  button.addEventListener("click", () => document.dispatchEvent(
    new CustomEvent("millrace-key", { detail: { computation, key: typed } })));
  return button;
}

export function drawKey(found, computation) {
  if (!found.found) {
    byId("key-found").replaceChildren(el("p", { class: "empty" }, found.columns
      ? `${computation} keeps windows as columns, of all keys together, so none can be shown of one key.`
      : `Nothing is kept of key ${found.key || "(none)"} in ${computation}, as of epoch ${found.epoch}.`));
    return;
  }
  const parts = [table(`Cells of ${found.key} in ${computation}, after epoch ${found.epoch}`,
    ["cell", "value"], found.cells, ["cell", "mono"])];
  if (found.timers.length) {
    parts.push(table("Timers", ["tag", "at", "clock"],
      found.timers.map((one) => [one.tag, instant(one.at), one.domain.toLowerCase().replace("_", " ")])));
  }
  if (found.holds.length) parts.push(table("Holds", ["at"], found.holds.map((one) => [instant(one.at)])));
  if (found.more) parts.push(el("p", { class: "soft" }, `${count(found.more)} rows more: millrace state get shows all.`));
  byId("key-found").replaceChildren(...parts);
}

export function drawHot(hot) {
  const box = byId("hot-keys");
  if (!hot || !hot.length) {
    box.replaceChildren(el("p", { class: "empty" }, "No key stands out, or none was counted."));
    return;
  }
  renew(box, table("By records, of the last epochs", ["key", "of", "share"],
    hot.map((one) => [keyOf(one.computation, one.typed, one.key), one.computation, share(one.share)]),
    ["mono", "of", "number"]));
}

export function drawLetters(letters) {
  const box = byId("letters-table");
  if (!letters || !letters.length) {
    box.replaceChildren(el("p", { class: "empty" }, "There are none."));
    return;
  }
  renew(box, table("By reason, the most frequent first, with the first of each", ["how many", "of", "reason", "sample"],
    letters.map((one) => [count(one.count), one.where, one.first.reason, sample(one.first)]),
    ["number", "of", null, null]));
}

function sample(first) {
  const said = (name, value) => (value === "" || value === null ? []
    : [el("span", { class: "part" }, el("span", { class: "soft" }, `${name} `), value)]);
  return el("div", { class: "sample" },
    ...said("key", keyOf(first.computation, first.typed, first.key)), ...said("value", first.value),
    ...said("stream", first.stream), ...said("from", first.place),
    ...said("at", first.at === null ? "" : instant(first.at)), ...said("epoch", String(first.epoch)));
}

export function drawCalls(calls) {
  const box = byId("calls");
  if (!calls || !calls.length) {
    box.replaceChildren(el("p", { class: "empty" }, "No call was timed yet."));
    return;
  }
  // One axis for all, so that a bar stands for the same time in each row.
  const low = Math.min(...calls.map((one) => one.first));
  const high = Math.max(...calls.map((one) => one.first + one.bars.length));
  const along = (one) => Array.from({ length: high - low }, (_, n) => one.bars[n + low - one.first] || 0);
  box.replaceChildren(table("A record or timer each, by powers of two; at most", ["of", "from fast to slow", "p50", "p95", "p99"],
    calls.map((one) => [one.computation, bars(along(one), low), ...[one.p50, one.p95, one.p99].map(span)]),
    ["of", null, "number", "number", "number"]));
}

// Only a pipeline that asks services has the table.
export function drawServices(services) {
  const known = Boolean(services && services.length);
  byId("services-title").hidden = !known;
  byId("services").replaceChildren(...(known ? [table("In flight, waiting and paused as of the last epoch or mark",
    ["of", "calls", "retried", "failed", "in flight", "waiting", "paused", "p50", "p95", "p99"],
    services.map((one) => [one.computation,
      ...[one.made, one.retried, one.failed, one.flying, one.waiting].map(count),
      one.paused ? span(one.paused) : "no", ...[one.p50, one.p95, one.p99].map(span)]),
    ["of", ...Array(9).fill("number")])] : []));
}

// A bar for each power of two. Its height goes by the root of the share: few slow calls are to be seen.
function bars(counts, first) {
  const most = Math.max(...counts), wide = 8, high = 30;
  const limit = (n) => span(2 ** (first + n));
  const picture = svg("svg", { class: "bars", width: counts.length * wide, height: high, role: "img",
    "aria-label": counts.map((n, at) => (n ? `${count(n)} below ${limit(at)}` : "")).filter(Boolean).join(", ") });
  counts.forEach((n, at) => {
    const tall = n ? Math.max(2, (high - 2) * Math.sqrt(n / most)) : 0;
    picture.append(svg("rect", { x: at * wide, y: high - tall, width: wide - 2, height: tall, rx: 1.5 },
      svg("title", {}, `${count(n)} calls below ${limit(at)}`)));
  });
  return picture;
}

function share(part) {
  const text = `${(part * 100).toFixed(part < 0.1 ? 1 : 0)} %`;
  return el("span", {}, el("meter", { min: 0, max: 1, value: part, "aria-label": text }), ` ${text}`);
}

export function drawStuck(stuck) {
  const box = byId("stuck");
  if (!stuck.length) {
    box.replaceChildren(el("p", { class: "empty" }, "Every call of user code, and to a service, returns in time."));
    return;
  }
  // What is unfolded, and where the keyboard is, stays.
  const open = new Set([...box.querySelectorAll("details[open]")].map((one) => one.dataset.call));
  renew(box, ...stuck.map((one) => {
    const of = `${one.computation} ${one.key} ${one.of}`;
    const details = el("details", { "data-call": of },
      el("summary", { "data-of": `call ${of}` }, el("strong", {}, one.computation), `, key ${one.key}: ${one.waits ? `waits for a service (${one.waits}) for ` : "in user code for "}`,
        el("span", { "data-since": one.since }, span((Date.now() - one.since) / 1000))),
      one.typed === null ? null
        : el("p", { class: "of-key" }, keyOf(one.computation, one.typed, `What is kept of ${one.key}`)),
      el("pre", {}, `${one.of}\n${one.where}\n\n${one.stack}`));
    details.open = open.has(of);
    return details;
  }));
}

export function age() {
  for (const one of document.querySelectorAll("#stuck [data-since]")) {
    one.textContent = span((Date.now() - Number(one.dataset.since)) / 1000);
  }
}
