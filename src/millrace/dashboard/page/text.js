// Texts and elements. What comes from a checkpoint becomes text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

export const byId = (id) => document.getElementById(id);

export function say(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

// Puts other children into a box. What had the focus has it again, if it is there by its data-of.
export function renew(box, ...children) {
  const focused = box.contains(document.activeElement) && document.activeElement.dataset.of;
  box.replaceChildren(...children);
  if (focused) box.querySelector(`[data-of="${CSS.escape(focused)}"]`)?.focus();
}

export function cut(text, most) {
  const letters = [...text];
  return letters.length <= most ? text : `${letters.slice(0, most - 1).join("")}…`;
}

const pen = document.createElement("canvas").getContext("2d");
const measured = new Map();

// As much of a text as is no wider than so many pixels, whatever its letters are.
export function fitted(text, wide, font = "12px") {
  const key = `${font} ${wide} ${text}`;
  if (measured.has(key)) return measured.get(key);
  pen.font = font.replace(/px$/, `px ${getComputedStyle(document.documentElement).fontFamily}`);
  const fits = (one) => pen.measureText(one).width <= wide;
  let found = text;
  if (text.length > 400 || !fits(text)) {
    const letters = [...text].slice(0, 400);
    let low = 0, high = letters.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (fits(`${letters.slice(0, middle).join("")}…`)) low = middle; else high = middle - 1;
    }
    found = `${letters.slice(0, low).join("")}…`;
  }
  if (measured.size > 5000) measured.clear();
  measured.set(key, found);
  return found;
}

export function count(n) {
  if (n === null || n === undefined) return "–";
  if (n >= 1e9) return `${(n / 1e9).toFixed(n < 1e10 ? 2 : 1)}G`;
  if (n >= 1e6) return `${(n / 1e6).toFixed(n < 1e7 ? 2 : 1)}M`;
  if (n >= 1e4) return `${(n / 1e3).toFixed(n < 1e5 ? 1 : 0)}k`;
  return Math.round(n).toLocaleString("en");
}

export function rate(n) {
  if (n === null || n === undefined) return "–";
  const few = n < 0.95 ? Number(n.toPrecision(2)) : n.toFixed(1);
  return `${n > 0 && n < 10 ? few : count(n)}/s`;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.abs(seconds);
  if (s === 0) return "0 s";
  if (s < 0.0009995) return `${Number((s * 1e6).toPrecision(2))} µs`;
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${Number(s.toFixed(1))} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400).toLocaleString("en")} days`;
}

export function inBytes(n) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at += 1; }
  return `${at ? n.toFixed(1) : n} ${units[at]}`;
}

export function instant(ms) {
  if (ms === null || ms === undefined) return "–";
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return "–";
  const text = at.toISOString();
  return `${text.slice(0, 10)} ${text.slice(11, ms % 1000 ? 23 : 19)}`;
}

export const clock = (ms) => instant(ms).slice(11);

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function table(caption, columns, rows, kinds = []) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, ...columns.map((name, n) =>
        el("th", { scope: "col", class: kinds[n] === "number" ? "number" : null }, name)))),
      el("tbody", {}, ...rows.map((row) =>
        el("tr", {}, ...row.map((cell, n) => el("td", { class: kinds[n] || null,
          title: kinds[n] === "of" ? cell : null }, cell)))))));
}
