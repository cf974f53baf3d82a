// Logging in and out. The token, or the code of a link, is sent once; then the browser has a cookie that scripts cannot read.

async function post(path, body) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
}

/** Whether this browser is logged in; throws if the node does not answer. */
export async function isLoggedIn() {
  const response = await fetch("/v1/login");
  return (await response.json()).in;
}

/** Log in with { token } or { code }; throws an Error that says why it was refused. */
export const logIn = (secret) => post("/v1/login", secret);

/** Delete the cookie. */
export const logOut = () => post("/v1/logout", {});

/** The code of a link `#login=...`, or null. It is valid once, and is removed from the address bar. */
export function codeFromLink() {
  const code = new URLSearchParams(location.hash.slice(1)).get("login");
  if (code !== null) history.replaceState(null, "", location.pathname);
  return code;
}
