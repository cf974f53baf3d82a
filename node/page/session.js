// Logging in and out. The token is sent once; from then on the browser shows a cookie that no script can read.

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

/** Show the token; an Error says why it was refused. */
export const logIn = (token) => post("/v1/login", { token });

/** Forget the cookie. */
export const logOut = () => post("/v1/logout", {});

/** The token of a link `#token=...`, which is taken out of the address bar and of the history. */
export function tokenFromLink() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token !== null) history.replaceState(null, "", location.pathname);
  return token;
}
