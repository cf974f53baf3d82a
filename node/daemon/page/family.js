// A family of experts: who trains each part of the data, how far each expert is, and where its files are.

import { Card } from "./card.js";
import { bytes, count, fixed, peerName } from "./format.js";

const COLUMNS = [
  { title: "Part", text: ({ part }) => part, kind: "strong" },
  {
    title: "Trained by",
    text: ({ peer, finished }) => (finished ? "finished" : peer ? peerName(peer) : "nobody yet"),
    kind: "minor",
    hint: ({ peer }) => peer ?? "",
  },
  {
    title: "Steps",
    text: ({ steps, of }) => `${count(steps)} of ${count(of)}`,
    share: ({ steps, of }) => (of > 0 ? Math.min(1, steps / of) : 0),
    kind: "wide",
  },
  { title: "Loss", text: ({ loss }) => fixed(loss, 3), kind: "number" },
  { title: "Published at", text: ({ published }) => count(published?.steps), kind: "number" },
  { title: "File", text: ({ published }) => bytes(published?.bytes), kind: "number minor" },
  { title: "Held by", text: ({ published }) => count(published?.holders), kind: "number" },
  { title: "Here", text: ({ published }) => (published ? (published.here ? "yes" : "no") : "–"), kind: "minor" },
];

export class FamilyCard extends Card {
  constructor(parent) {
    super(parent);
    this.parts = this.addTable(COLUMNS, "Experts", "parts");
  }

  update(row, parts) {
    this.showState(row, true);
    const { finished, parts: all, trains } = row.experts;
    const published = parts.filter((part) => part.published);
    this.showTiles([
      ["Finished", `${finished} of ${all}`],
      ["Published", `${published.length} of ${all}`],
      ["Members", count(row.members)],
      ["Trains here", trains ?? "–"],
      ["Tokens published", count(published.reduce((sum, { published: { tokens } }) => sum + tokens, 0))],
    ]);
    this.parts.update(parts);
  }
}
