// The heat map: key intervals in the order of their hashes, row by row, on a canvas.

import { byId, colour, count, el, say, span } from "./text.js";

const STOPS = ["heat-0", "heat-1", "heat-2", "heat-3", "heat-4"];
let heat = null, at = -1, cells = { across: 1, size: 10 };

const load = (n) => (heat.unit.startsWith("%") ? `${n.toFixed(n < 10 ? 1 : 0)} ${heat.unit}` : `${count(n)} ${heat.unit}`);
const by = () => document.querySelector('input[name="heat-by"]:checked').value;

function rgb(text) {
  const n = parseInt(text.slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
}

function shade(stops, share) {
  const place = Math.min(0.9999, Math.max(0, share)) * (stops.length - 1);
  const n = Math.floor(place), part = place - n;
  return `rgb(${stops[n].map((v, i) => Math.round(v + (stops[n + 1][i] - v) * part)).join(" ")})`;
}

export function drawHeat(found) {
  if (found !== undefined) heat = found;
  const canvas = byId("heat"), legend = byId("heat-legend");
  if (!heat || !heat.load.length) {
    canvas.hidden = true;
    legend.replaceChildren();
    say("heat-words", "No epoch has completed yet, so no key interval has worked.");
    return;
  }
  canvas.hidden = false;
  const values = heat[by()], many = values.length, wide = canvas.clientWidth || 900;
  const across = Math.min(many, Math.max(8, Math.floor(wide / (many > 256 ? 14 : 20))));
  const size = wide / across, tall = Math.min(26, Math.max(12, size));
  cells = { across, size, tall };
  const ratio = window.devicePixelRatio || 1, rows = Math.ceil(many / across);
  canvas.width = Math.round(wide * ratio);
  canvas.height = Math.round(rows * tall * ratio);
  canvas.style.height = `${rows * tall}px`;
  const pen = canvas.getContext("2d"), stops = STOPS.map((name) => rgb(colour(name)));
  const most = Math.max(...values.map((value) => value || 0));
  pen.scale(ratio, ratio);
  values.forEach((value, n) => {
    const x = (n % across) * size, y = Math.floor(n / across) * tall;
    // By the square root: one hot interval leaves others a colour.
    pen.fillStyle = shade(stops, value && most ? Math.sqrt(value / most) : 0);
    pen.beginPath();
    pen.roundRect(x + 1, y + 1, size - 2, tall - 2, 2.5);
    pen.fill();
    if (n === at) { pen.lineWidth = 2; pen.strokeStyle = colour("ink"); pen.stroke(); }
  });
  const unit = by() === "lag" ? span(most) : load(most);
  legend.replaceChildren(el("span", {}, "0"), el("i"), el("span", {}, unit));
  tell();
}

function tell() {
  const each = heat.each > 1 ? `, ${heat.each} to a cell` : "";
  if (at < 0 || at >= heat.load.length) {
    say("heat-words", `${heat.intervals.toLocaleString("en")} key intervals${each}. `
      + "Point at one, or move with the arrow keys.");
    return;
  }
  const which = heat.first[at] === heat.last[at]
    ? `Interval ${heat.first[at]}` : `Intervals ${heat.first[at]} to ${heat.last[at]}`;
  const lag = heat.lag[at] === null ? "nothing pending" : `oldest work ${span(heat.lag[at])} behind the newest record`;
  say("heat-words", `${which}: ${load(heat.load[at])}, ${lag}.`);
}

function move(to) {
  const place = Math.min(heat.load.length - 1, Math.max(0, to));
  if (place !== at) { at = place; drawHeat(); }
}

export function listenToHeat() {
  const canvas = byId("heat");
  canvas.addEventListener("pointermove", (event) => {
    if (!heat) return;
    const box = canvas.getBoundingClientRect();
    move(Math.floor((event.clientY - box.top) / cells.tall) * cells.across
      + Math.floor((event.clientX - box.left) / cells.size));
  });
  canvas.addEventListener("pointerleave", () => { at = -1; if (heat) drawHeat(); });
  canvas.addEventListener("blur", () => { at = -1; if (heat) drawHeat(); });
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: cells.across, ArrowUp: -cells.across,
      Home: -Infinity, End: Infinity };
    if (!heat || !(event.key in steps)) return;
    event.preventDefault();
    move(Math.max(at, 0) + (at < 0 ? 0 : steps[event.key]));
  });
  for (const input of document.querySelectorAll('input[name="heat-by"]')) {
    input.addEventListener("change", () => drawHeat());
  }
}
