// Epochs complete as fast as they are drawn, until so many were, and a second is over at once.
// HISTORY is what the server answers.
const ask = window.fetch.bind(window), later = window.setTimeout.bind(window);
const pulses = window.pulses = { history: HISTORY, drawn: 0, until: 0, known: new Map() };
window.setTimeout = (call, ms) => later(call, Math.min(ms || 0, 1));

const json = (data) => new Response(JSON.stringify(data));

function told(now) {
  const bytes = new TextEncoder();
  const event = (name, data) =>
    bytes.encode(`event: ${name}\ndata: ${JSON.stringify(data)}\n\n`);
  let sent = 0;
  return new Response(new ReadableStream({
    start(stream) { stream.enqueue(event('hello', { acts: false, actions: [] })); },
    async pull(stream) {
      while (pulses.drawn < sent || sent >= pulses.until) await new Promise((go) => later(go, 2));
      sent += 1;
      const passed = { epoch: now.epoch + sent, wall: now.wall + sent * 1000 };
      stream.enqueue(event('now', { ...now, ...passed }));
    },
  }));
}

function past() {
  const n = pulses.drawn += 1, { low, parts, ...rest } = pulses.history;
  // Now and then other computations are those furthest behind.
  const lines = Object.entries(low).map(([name, line], at) =>
    [at ? name : `${name} ${Math.floor(n / 10) % 3}`, line]);
  return { ...rest, low: Object.fromEntries(lines), epoch: rest.epoch.map((e) => e + n),
    wall: rest.wall.map((at) => at + n * 1000),
    parts: { ...parts, epoch: parts.epoch.map((e) => e + n) } };
}

window.fetch = async (path, options) => {
  if (path === '/api/events') return told(await (await ask('/api/now', options)).json());
  if (path === '/api/history') return json(past());
  if (!pulses.known.has(path)) pulses.known.set(path, await (await ask(path, options)).json());
  return json(pulses.known.get(path));
};
