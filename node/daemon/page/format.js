// Formats numbers for people. Unknown values are a dash.

const DASH = "–";

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** A number with a fixed count of digits after the point. */
export const fixed = (value, digits) => (isNumber(value) ? value.toFixed(digits) : DASH);

/** A share of one. */
export const percent = (value) => (isNumber(value) ? `${(100 * value).toFixed(0)}\u202f%` : DASH);

/** A whole number, grouped by thousands; large ones are shortened. */
export function count(value) {
  if (!isNumber(value)) return DASH;
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"]]) {
    if (value >= 10 * unit || (unit > 1e6 && value >= unit)) return `${(value / unit).toFixed(1)} ${letter}`;
  }
  return Math.round(value).toLocaleString("en").replaceAll(",", "\u202f");
}

/** Bytes in binary units. */
export function bytes(value) {
  if (!isNumber(value)) return DASH;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024;
  return `${unit ? value.toFixed(1) : value} ${units[unit]}`;
}

/** Bytes a second as bits a second, as links are sold. */
export function rate(value) {
  if (!isNumber(value)) return DASH;
  const units = ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"];
  let unit = 0;
  for (value *= 8; value >= 1000 && unit < units.length - 1; unit++) value /= 1000;
  return `${value.toFixed(value < 10 ? 1 : 0)} ${units[unit]}`;
}

/** A length of time. */
export function seconds(value) {
  if (!isNumber(value)) return DASH;
  if (value < 0.1) return `${Math.round(1000 * value)} ms`;
  if (value < 90) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return value < 129600 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} days`;
}

/** How long ago. */
export function ago(value) {
  if (!isNumber(value)) return DASH;
  if (value < 1.5) return "now";
  return value < 89.5 ? `${Math.round(value)} s ago` : `${seconds(value)} ago`;
}

/** The time of day of seconds since 1970, and the date unless it is today. */
export function clock(at) {
  const date = new Date(1000 * at);
  const time = date.toTimeString().slice(0, 8);
  return date.toDateString() === new Date().toDateString() ? time : `${date.toISOString().slice(0, 10)} ${time}`;
}

/** The end of a PeerID, as everywhere in Shoal. */
export const peerName = (peer) => peer.slice(-6);

/** The beginning of a digest or of a run's id. */
export const digest = (value) => (value ? value.slice(0, 8) : DASH);
