// Logging in and out, and the requests of this page.
//
// The token, or the code of a link, is sent once; then the browser has a cookie that scripts cannot read, and that lets it
// look. Who showed the token also has a permit for an hour: it is kept in this variable alone, never in a storage.

let permit = "";

/** An answer that is an error: its message is for people; `isRefused` if the token must be shown (again). */
class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.isRefused = status === 401;
  }
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error("the node does not answer: is it running?");
  }
  if (response.ok) return response;
  if (response.status === 401) permit = "";
  const answer = await response.json().catch(() => ({ error: `the node answered ${response.status}` }));
  throw new Refusal(answer.error, response.status);
}

function post(path, body, signal) {
  const headers = { "Content-Type": "application/json", ...(permit ? { "Shoal-Permit": permit } : {}) };
  return request(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

/** What the node answers to a question; throws an Error that says why not. */
export const read = async (path) => (await request(path)).json();

/** Have the node change something; its answer. Throws an Error that says why it was refused. */
export const change = async (path, body) => (await post(path, body)).json();

/** Calls `onLine` with each line of an answer, as they come. */
export async function changeInLines(path, body, signal, onLine) {
  const reader = (await post(path, body, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  for (let held = ""; ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (held + value).split("\n");
    held = lines.pop();
    lines.forEach((line) => onLine(JSON.parse(line)));
  }
}

/** Whether this page may change something without asking for the token. */
export const hasPermit = () => permit !== "";

/** Whether this browser is logged in; throws if the node does not answer. */
export const isLoggedIn = async () => (await read("/v1/login")).in;

/** Log in with { token } or { code }; throws an Error that says why it was refused. */
export async function logIn(secret) {
  permit = (await change("/v1/login", secret)).permit ?? "";
}

/** Delete the cookie and the permit. */
export async function logOut() {
  await change("/v1/logout", {});
  permit = "";
}

/** The code of a link `#login=...`, or null. It is valid once, and is removed from the address bar. */
export function codeFromLink() {
  const code = new URLSearchParams(location.hash.slice(1)).get("login");
  if (code !== null) history.replaceState(null, "", location.pathname);
  return code;
}
