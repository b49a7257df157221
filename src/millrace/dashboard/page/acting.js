// Acting on a run: a question, the token, and what became of it.

import { act, forget, remember, token } from "./live.js";
import { byId, el } from "./text.js";

const WORDS = {
  pause: ["Pause a stream?", "Nothing more of it is read. What it has waits where it is, and low watermarks wait with it, until it is resumed.", "Pause", "quiet"],
  resume: ["Resume a stream?", "It is read again, as it comes.", "Resume", "quiet"],
  "rate-limit": ["Limit the rate of a stream?", "So many records a second are read of it, on the average, until it is resumed.", "Limit rate", "quiet"],
  savepoint: ["Make a savepoint?", "The checkpoint is kept as it is after the last epoch, under a name, and the run goes on.", "Savepoint", "quiet"],
  stop: ["Stop the run?", "The epoch under way is finished. A later run with the same checkpoint goes on where this one stood.", "Stop", "quiet"],
  drain: ["Drain the run?", "Its input ends, every window is emitted, and the run ends. No later run goes on with this checkpoint.", "Drain", "bad"],
};

// Where others can ask, the token is needed to see anything at all.
const READ = ["Token", "This dashboard can be reached by other hosts, so it takes its token to read.", "Show", "quiet"];

const OF_A_STREAM = ["pause", "rate-limit", "resume"];

// What else is asked for, and what it looks like.
const TOLD = { "rate-limit": ["Records a second", "number"], savepoint: ["Name", "text"] };

let asked = null, generation = 0, streams = [];

export function about(now) {
  generation = now.generation;
  streams = now.graph.nodes.filter((node) => node.kind === "injector").map((node) => node.name);
  for (const button of document.querySelectorAll("#acts button")) {
    button.disabled = now.state !== "running";
  }
}

export function offer({ acts, actions }) {
  const box = byId("acts");
  if (!acts) {
    box.replaceChildren(el("span", { class: "soft", title: "Start the dashboard with a token to act on the run." }, "read-only"));
    return;
  }
  box.replaceChildren(...actions.map((what) => {
    const [, , label, kind] = WORDS[what];
    const button = el("button", { type: "button", class: kind, "data-act": what }, label);
    button.addEventListener("click", () => question(what));
    return button;
  }));
}

export function unlock() {
  if (!byId("dialog").open) question(null);
}

function question(what) {
  const [title, text, yes] = what === null ? READ : WORDS[what];
  asked = what;
  byId("dialog-title").textContent = title;
  byId("dialog-text").textContent = text;
  byId("dialog-yes").textContent = yes;
  byId("dialog-yes").disabled = false;
  said("");
  byId("dialog-stream").hidden = !OF_A_STREAM.includes(what);
  byId("stream").replaceChildren(...streams.map((name) => el("option", { value: name }, name)));
  const told = TOLD[what];
  byId("dialog-told").hidden = !told;
  byId("told").required = Boolean(told);
  byId("told").value = "";
  if (told) [byId("told-what").textContent, byId("told").type] = told;
  byId("dialog-token").hidden = what !== null && Boolean(token());
  byId("dialog").showModal();
}

// What is acted on, as the command line says it.
function meant() {
  const parts = [];
  if (OF_A_STREAM.includes(asked)) parts.push(byId("stream").value);
  if (TOLD[asked]) parts.push(byId("told").value);
  return parts.join("=");
}

function said(text, good) {
  const line = byId("dialog-said");
  line.textContent = text;
  line.classList.toggle("good", Boolean(good));
}

export function listenToActs() {
  byId("dialog-no").addEventListener("click", () => byId("dialog").close());
  byId("dialog-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    if (byId("token").value) remember(byId("token").value);
    byId("token").value = "";
    if (asked === null) { location.reload(); return; }
    byId("dialog-yes").disabled = true;
    said("The run is asked. It answers when it has done so.", true);
    try {
      const answer = await act(asked, generation, meant());
      said(`${answer.said} after epoch ${answer.epoch}`, true);
    } catch (error) {
      if (error.status === 401) { forget(); byId("dialog-token").hidden = false; byId("token").focus(); }
      byId("dialog-yes").disabled = false;
      said(error.message);
    }
  });
}
