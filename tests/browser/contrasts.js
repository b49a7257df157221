// Contrast of each text with what it is written on, as WCAG 2 counts it, by what is drawn.
document.getElementById('trouble').hidden = false;
document.getElementById('trouble').textContent = 'What is wrong.';
document.querySelector('#stuck details').open = true;
const parsed = (text) => {
  const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
  return { rgb: [r, g, b], a };
};
const over = (upper, ground) => upper.rgb.map((v, i) => v * upper.a + ground[i] * (1 - upper.a));
const light = (rgb) => rgb.map((v) => v / 255)
  .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
// What lies behind: colours of ancestors, and of a box that is drawn before a text in a picture.
const ground = (e) => {
  if (!e) return [255, 255, 255];
  const css = getComputedStyle(e), behind = ground(e.parentElement);
  const box = e.tagName === 'text' && [...e.parentElement.children].find((one) =>
    one.tagName === 'rect' && one.compareDocumentPosition(e) & Node.DOCUMENT_POSITION_FOLLOWING);
  const fill = box && getComputedStyle(box).fill;
  if (fill && fill !== 'none') return over(parsed(fill), behind);
  return over(parsed(css.backgroundColor), behind);
};
const found = {};
const judge = (e, colour, what) => {
  let a = 1;
  for (let at = e; at; at = at.parentElement) a *= Number(getComputedStyle(at).opacity);
  const behind = ground(e), ink = parsed(colour);
  const [x, y] = [light(over({ rgb: ink.rgb, a: ink.a * a }, behind)), light(behind)];
  found[what] = (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
};
const dialog = document.getElementById('dialog');
dialog.showModal();
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const e = walk.currentNode.parentElement, text = walk.currentNode.data.trim();
  if (!text || !e.checkVisibility() || e.closest('title, option, :disabled, .hidden')) continue;
  const css = getComputedStyle(e);
  judge(e, e instanceof SVGElement ? css.fill : css.color, `${e.tagName} ${text.slice(0, 60)}`);
}
for (const e of document.querySelectorAll('select, input')) {
  if (!e.checkVisibility() || e.type === 'radio') continue;
  judge(e, getComputedStyle(e).color, `text of ${e.id}`);
  if (e.placeholder) judge(e, getComputedStyle(e, '::placeholder').color, `hint of ${e.id}`);
}
dialog.close();
document.getElementById('trouble').hidden = true;
document.querySelector('#stuck details').open = false;
return found;
