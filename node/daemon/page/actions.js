// What can be done to the node and its runs: each is a question for the dialog, and then an operation of the API.

import { ask, rename, tell } from "./dialog.js";
import { button, field, make, qrCode, setText } from "./dom.js";
import { ago, bytes, clock } from "./format.js";
import { change, changeInLines, read } from "./session.js";

const path = (run, what) => `/v1/runs/${encodeURIComponent(run)}/${what}`;
const said = (text) => make("p", "", text);
const named = (row) => row.name ?? row.run.slice(0, 8);

// -- the node --------------------------------------------------------------------------------------------------

const PAUSES = [["until I resume it", null], ["for an hour", 3600], ["for 8 hours", 28800], ["for a day", 86400]];

export function pause() {
  const long = make("select", "", ...PAUSES.map(([label]) => make("option", "", label)));
  ask({
    title: "Pause this node?",
    body: [
      said("It leaves its runs with a goodbye and frees its devices and their memory; the others go on without it. It stays " +
        "reachable, and enters the runs again when the pause ends. That also holds over a restart."),
      field("How long", long),
    ],
    confirm: "Pause",
    act: async () => {
      const { until } = await change("/v1/pause", { seconds: PAUSES[long.selectedIndex][1] });
      return until === null ? "Paused until you resume it." : `Paused until ${clock(until)}.`;
    },
  });
}

export function resume() {
  ask({
    title: "Resume this node?",
    body: [said("It enters its runs again, and downloads what the others have done meanwhile.")],
    confirm: "Resume",
    act: async () => {
      const { paused, reasons } = await change("/v1/resume", {});
      return paused ? `It stays paused: ${reasons.join("; ")}` : "Resumed: it enters its runs again.";
    },
  });
}

export function drain() {
  ask({
    title: "Stop this node after its rounds?",
    body: [
      said("It finishes the rounds under way, for ten minutes at most, leaves its runs with a goodbye, saves what must be saved, " +
        "and ends. The others go on. It is in its runs again when it is started again."),
      make("p", "notice", "This page ends with the node. To start it again, in a terminal on its machine: shoal node start"),
    ],
    confirm: "Stop it",
    isDangerous: true,
    act: async () => {
      await change("/v1/drain", {});
      return "This node stops once its rounds are over.";
    },
  });
}

const LIMITS = [ // key in config.toml, label, hint
  ["max-up", "Send at most", "20Mbit or 2.5MB/s; empty: as fast as it goes"],
  ["max-down", "Receive at most", "the same"],
  ["max-per-day", "Both ways, a day", "20GB; then it pauses until midnight (UTC). Empty: no limit"],
  ["schedule", "Hours", "22:00-07:00, or Mon-Fri 22:00-07:00, Sat-Sun 00:00-24:00; empty: always"],
  ["only-when-idle", "Minutes for which nobody has used this machine", "0: it works whether the machine is used or not"],
  ["only-on-mains", "Pause on battery"],
  ["yield-gpu", "Pause while another program uses an NVIDIA GPU"],
];

/** What a control says, as config.toml has it; null for the default. */
function chosen({ type, checked, value }) {
  if (type === "checkbox") return checked;
  return type === "number" ? Number(value) : value.trim() || null;
}

function control(key, value = "none") {
  const made = make("input", "");
  made.type = typeof value === "boolean" ? "checkbox" : typeof value === "number" ? "number" : "text";
  if (made.type === "checkbox") made.checked = value;
  else made.value = value === "none" ? "" : value;
  Object.assign(made, { name: key, autocomplete: "off", ...(made.type === "number" ? { min: 0 } : {}) });
  return made;
}

/** Limits and rules for pausing; only what was changed is sent. */
export async function setLimits() {
  const { settings } = await read("/v1/settings");
  const controls = LIMITS.map(([key]) => control(key, settings[key]));
  const before = controls.map(chosen);
  ask({
    title: "Limits and hours",
    body: LIMITS.map(([, label, hint], index) => field(label, controls[index], hint)),
    confirm: "Change",
    act: async () => {
      const changed = controls.flatMap((each, index) => (chosen(each) === before[index] ? [] : [[each.name, chosen(each)]]));
      if (!changed.length) return "Nothing was changed.";
      const { applied, at_next_start: later } = await change("/v1/settings", { settings: Object.fromEntries(changed) });
      return [["Changed", applied], ["At the next start", later]]
        .flatMap(([when, keys]) => (keys.length ? [`${when}: ${keys.join(", ")}.`] : []))
        .join(" ");
    },
  });
}

/** Begin an action; if the node refuses even what is needed to ask about it, say so. */
export async function attempt(act, ...rest) {
  try {
    await act(...rest);
  } catch (error) {
    tell(error.message, true);
  }
}

// -- runs ------------------------------------------------------------------------------------------------------

/** Ask for a link, show what joining would mean, and join. */
export function join() {
  const link = make("input", "mono");
  Object.assign(link, { required: true, autocomplete: "off", spellcheck: false });
  ask({
    title: "Join a run",
    body: [field("Link", link, "one word, shoal2…, as a member sends it; or a run’s id"), said("First you see what it would mean.")],
    confirm: "Look at it",
    act: async () => {
      const given = link.value.trim().replace(/^shoal run join /, "");
      const preview = await change("/v1/preview", { link: given });
      askToJoin(given.startsWith("shoal2") ? given : preview.run, preview);
    },
  });
}

function askToJoin(link, preview) {
  const rows = preview.words.map(([name, words]) => make("div", "", make("dt", "", name), make("dd", "", words)));
  const trains = make("input", "");
  const problem = preview.data.problem || preview.memory.problem;
  Object.assign(trains, { type: "checkbox", checked: !problem });
  const notice = problem ? [make("p", "notice", `This machine cannot train it: ${problem}`)] : [];
  ask({
    title: `Join ${preview.name}?`,
    body: [
      make("p", "muted", `Run ${preview.run.slice(0, 8)}, signed by ${preview.author}`),
      make("dl", "facts", ...rows),
      ...notice,
      make("label", "check", trains, "Train on this machine; otherwise it keeps the state and votes"),
    ],
    confirm: "Join",
    act: async () => {
      const joined = await change("/v1/join", { link, train: trains.checked });
      return `Joined ${joined.name}.`;
    },
  });
}

/** Show a run's link, by which others join, as text and as a code to scan. */
export async function invite(row) {
  const { link, untold, qr } = await read(path(row.run, "link"));
  const word = make("input", "mono");
  Object.assign(word, { readOnly: true, value: `shoal run join ${link}` });
  word.setSelectionRange(0, 0); // its beginning is in sight
  const copied = make("span", "muted");
  copied.setAttribute("role", "status");
  const copy = button("Copy", async () => {
    word.select();
    try {
      await navigator.clipboard.writeText(word.value);
      setText(copied, "copied");
    } catch {
      setText(copied, document.execCommand("copy") ? "copied" : "select it and copy it yourself");
    }
  });
  ask({
    title: `Invite others to ${named(row)}`,
    body: [
      said("Whoever has this link can join, while any member is there. Send it to people whom you want in the run."),
      field("In a terminal on another machine", word, ""),
      make("p", "row", copy, copied),
      qrCode(qr, "The link as a QR code"),
      ...(untold?.length ? [make("p", "muted", `The link has no room for ${untold.join(", ")}`)] : []),
    ],
  });
}

export function leave(row) {
  const isFinished = row.phase === "finished";
  const others = "The others go on without this node. What it has trained in rounds that are committed stays in the model.";
  ask({
    title: `Leave ${named(row)}?`,
    body: [
      said(isFinished ? "The run is over; this node keeps its result no longer, but for its checkpoints." : others),
      ...(row.members === 1 && !isFinished ? [make("p", "notice bad", "Nobody else is in it: it ends, but for its checkpoints.")] : []),
      make("p", "muted", "Checkpoints stay on this machine’s disk. Come back by the run’s link."),
    ],
    confirm: "Leave",
    isDangerous: true,
    act: async () => `Left ${(await change(path(row.run, "leave"), {})).name}.`,
  });
}

export async function showCheckpoints(row) {
  const found = await read(path(row.run, "checkpoints"));
  const told = found.reverse().map(({ round, saved_at: at, bytes: size, path: folder, problem }) => {
    const words = problem ? `damaged: ${problem}` : `round ${round}, ${ago(Date.now() / 1000 - at)}, ${bytes(size)}`;
    return make("li", problem ? "bad" : "", words, make("code", "block", folder));
  });
  ask({
    title: `Checkpoints of ${named(row)}`,
    body: [
      told.length ? make("ol", "plain", ...told) : said("There is none yet."),
      make("p", "muted", "What to do with one, in a terminal:"),
      make("code", "block", "shoal ckpt export CHECKPOINT OUT\nshoal serve CHECKPOINT\nshoal run create MANIFEST --from CHECKPOINT"),
    ],
  });
}

/** Have the model write; the dialog stays open, and closing it ends the text. */
export function write(row) {
  const prompt = make("textarea", "");
  Object.assign(prompt, { required: true, rows: 3, maxLength: 20000 });
  const written = make("pre", "written");
  written.setAttribute("role", "log");
  written.setAttribute("aria-label", "What the model writes");
  const state = make("p", "muted");
  state.setAttribute("role", "status");
  let hangUp = new AbortController();
  ask({
    title: `Write something with ${named(row)}`,
    body: [
      field("It goes on from", prompt, "with the newest weights, on this machine’s processor; training goes on"),
      written,
      state,
    ],
    confirm: "Write",
    onClose: () => hangUp.abort(),
    act: async () => {
      hangUp = new AbortController();
      written.replaceChildren(make("b", "", prompt.value));
      setText(state, "loading the model…");
      const outcome = { round: row.round, error: null };
      await changeInLines(path(row.run, "write"), { prompt: prompt.value }, hangUp.signal, (line) => {
        written.append(line.text);
        Object.assign(outcome, line);
        if (line.text) setText(state, "writing…");
      }).catch((error) => {
        setText(state, "");
        throw error;
      });
      const { round, error } = outcome;
      setText(state, error ? `It ends here: ${error}` : `Written with the weights of round ${round} or a later one.`);
      rename("Write another", "Close");
    },
  });
}
