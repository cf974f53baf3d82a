// Logging in and out. The token, or the code of a link, is sent once; from then on the browser shows a cookie that no script can read.

async function post(path, body) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
}

/** Whether this browser is logged in; an Error if the node does not answer. */
export async function isLoggedIn() {
  const response = await fetch("/v1/login");
  return (await response.json()).in;
}

/** Show { token } or { code }; an Error says why it was refused. */
export const logIn = (secret) => post("/v1/login", secret);

/** Forget the cookie. */
export const logOut = () => post("/v1/logout", {});

/** The code of a link `#login=...`, which is good once; it is taken out of the address bar. */
export function codeFromLink() {
  const code = new URLSearchParams(location.hash.slice(1)).get("login");
  if (code !== null) history.replaceState(null, "", location.pathname);
  return code;
}
