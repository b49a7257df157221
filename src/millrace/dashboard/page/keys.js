// Keys: what is kept of one, which are hottest, where user code hangs.

import { byId, count, el, instant, span, table } from "./text.js";

export function drawKey(found, computation) {
  if (!found.found) {
    byId("key-found").replaceChildren(el("p", { class: "empty" },
      `Nothing is kept of key ${found.key || "(none)"} in ${computation}, as of epoch ${found.epoch}.`));
    return;
  }
  const parts = [table(`Cells of ${found.key} in ${computation}, after epoch ${found.epoch}`,
    ["cell", "value"], found.cells, [null, "mono"])];
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
  box.replaceChildren(table("By records, of the last epochs", ["key", "of", "share"],
    hot.map((one) => [one.key, one.computation, share(one.share)]), ["mono", "of", "number"]));
}

function share(part) {
  const text = `${(part * 100).toFixed(part < 0.1 ? 1 : 0)} %`;
  return el("span", {}, el("meter", { min: 0, max: 1, value: part, "aria-label": text }), ` ${text}`);
}

export function drawStuck(stuck) {
  const box = byId("stuck");
  if (!stuck.length) {
    box.replaceChildren(el("p", { class: "empty" }, "Every call of user code returns in time."));
    return;
  }
  const open = new Set([...box.querySelectorAll("details[open]")].map((one) => one.dataset.of));
  box.replaceChildren(...stuck.map((one) => {
    const of = `${one.computation} ${one.key} ${one.of}`;
    const details = el("details", { "data-of": of },
      el("summary", {}, el("strong", {}, one.computation), `, key ${one.key}: in user code for `,
        el("span", { "data-since": one.since }, span((Date.now() - one.since) / 1000))),
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
