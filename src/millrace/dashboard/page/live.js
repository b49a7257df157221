// The connection to the server: what is asked once, and what it tells on and on.

const KEY = "millrace.token";
// Of what is asked for: servers read no more than 64 KiB before they know who asks for what.
const ASKED_MAX = 60000;

// The fragment of a page's address stays in the browser; the token does not stay in the address.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, "", location.pathname);
}

export const token = () => sessionStorage.getItem(KEY) || "";
export const remember = (value) => sessionStorage.setItem(KEY, value);
export const forget = () => sessionStorage.removeItem(KEY);

function headers() {
  return token() ? { authorization: `Bearer ${token()}` } : {};
}

async function answered(response) {
  const said = await response.json().catch(() => ({}));
  if (response.ok) return said;
  const error = new Error(said.error || said.said || `the server answers ${response.status}`);
  error.status = response.status;
  throw error;
}

export async function ask(path, parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  if (query.length > ASKED_MAX) {
    throw new Error(`A key of ${parameters.key.length.toLocaleString("en")} characters is too long `
      + "to be asked for here. On the command line: millrace state get.");
  }
  return answered(await fetch(query ? `${path}?${query}` : path, { headers: headers() }));
}

export async function act(what, generation, about) {
  return answered(await fetch("/api/act", {
    method: "POST",
    headers: { ...headers(), "content-type": "application/json" },
    body: JSON.stringify({ what, generation, about }),
  }));
}

// Server-sent events, read by fetch: EventSource cannot show a token.
export async function follow(take, lost) {
  for (let wait = 1000; ; wait = Math.min(30000, wait * 2)) {
    try {
      const response = await fetch("/api/events", { headers: headers() });
      if (!response.ok) await answered(response);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        rest += value;
        const blocks = rest.split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) {
          const event = /^event: (.*)$/m.exec(block);
          const data = /^data: (.*)$/m.exec(block);
          if (event && data) { wait = 1000; take(event[1], JSON.parse(data[1])); }
        }
      }
      lost(new Error("The dashboard has ended, or cannot be reached."));
    } catch (error) {
      lost(error);
    }
    await new Promise((over) => setTimeout(over, wait));
  }
}
