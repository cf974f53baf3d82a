// The table of peers: one row for each peer in each run.

import { digest, fixed, peerName, rate } from "./format.js";

export const PEER_COLUMNS = [
  { title: "Peer", text: ({ peer }) => peerName(peer), kind: "mono", hint: ({ peer }) => peer },
  { title: "Run", text: ({ run, name }) => name ?? digest(run), kind: "minor" },
  { title: "Phase", text: ({ phase }) => phase ?? "–", kind: "minor" },
  { title: "Round", text: ({ round }) => String(round ?? "–"), kind: "number" },
  { title: "Loss", text: ({ loss }) => fixed(loss, 3), kind: "number" },
  { title: "Path", text: ({ path }) => path ?? "no connection", hint: ({ reason }) => reason ?? "" },
  { title: "Why", text: ({ reason }) => reason ?? "–", kind: "minor" },
  { title: "RTT", text: ({ rtt_ms }) => (rtt_ms == null ? "–" : `${fixed(rtt_ms, 1)} ms`), kind: "number" },
  { title: "Sends", text: ({ send_rate }) => rate(send_rate), kind: "number" },
  { title: "Receives", text: ({ receive_rate }) => rate(receive_rate), kind: "number" },
];
