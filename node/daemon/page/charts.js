// A chart of one run over time, for this node and the swarm. The node computes the points; here they are only drawn.

import { make, setClass, setText } from "./dom.js";

// Seconds between two ticks: whole numbers only.
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The time of day, and the day where the ticks are days. */
function clock(time, step) {
  const day = { month: "short", day: "numeric" };
  const hour = { hour: "2-digit", minute: "2-digit", hour12: false };
  const parts = step >= 86400 ? day : step < 60 ? { ...hour, second: "2-digit" } : hour;
  return new Intl.DateTimeFormat("en", parts).format(new Date(1000 * time));
}

/**
 * `series` are {label, name, hint}: `name` is "own", "swarm" or "validation", for the colour. `format(value)` writes a value.
 * `fromZero`: the axis always includes zero.
 */
export class Chart {
  constructor(parent, { title, series, format, fromZero }) {
    this.fromZero = fromZero;
    this.series = series;
    this.format = format;
    this.values = series.map(() => make("b"));
    const keys = series.map(({ label, name, hint }, index) => {
      const key = make("span", `key ${name}`, `${label} `, this.values[index]);
      key.title = hint;
      return key;
    });
    this.plot = make("div", "plot empty");
    this.plot.setAttribute("role", "img");
    this.title = title;
    parent.append(make("div", "chart", make("div", "chart-head", make("h3", "", title), make("span", "keys", ...keys)), this.plot));
    this.data = [[], ...series.map(() => [])];
    this.build();
    new ResizeObserver(() => this.resize()).observe(this.plot);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.build());
  }

  /** Draw these columns: times in seconds, then one column per series. */
  update(data) {
    this.data = data;
    this.chart.setData(data);
    this.plot.dataset.points = data[0].length;
    setClass(this.plot, data.slice(1).some((column) => column.some((value) => value !== null)) ? "plot" : "plot empty");
    this.show(null);
  }

  build() {
    this.chart?.destroy();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const clocks = (_, ticks, __, ___, step) => ticks.map((tick) => clock(tick, step));
    const times = { ...axis, space: 64, size: 28, incrs: STEPS, values: clocks };
    const lines = this.series.map(({ label, name }) => ({
      label,
      stroke: colour(`--${name}`),
      width: 2,
      spanGaps: true,
      points: { show: false },
    }));
    const options = {
      ...this.size(),
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { size: 7 } },
      scales: { y: { range: { min: { pad: 0.08, soft: 0, mode: this.fromZero ? 1 : 3 }, max: { pad: 0.08 } } } },
      axes: [times, { ...axis, size: 62, values: (_, ticks) => ticks.map(this.format) }],
      series: [{}, ...lines],
      hooks: { setCursor: [(chart) => this.show(chart.cursor.idx)] },
    };
    this.chart = new uPlot(options, this.data, this.plot);
  }

  size() {
    return { width: Math.max(this.plot.clientWidth, 100), height: Math.max(this.plot.clientHeight, 100) };
  }

  resize() {
    const { width, height } = this.size();
    if (width !== this.chart.width || height !== this.chart.height) this.chart.setSize({ width, height });
  }

  /** The values under the cursor, or the latest ones. */
  show(index) {
    const texts = this.series.map((_, number) => {
      const column = this.data[number + 1];
      return this.format(index == null ? column.findLast((value) => value !== null) : column[index]);
    });
    texts.forEach((text, number) => setText(this.values[number], text));
    const words = this.series.map(({ label }, number) => `${label} ${texts[number]}`);
    if (index == null) this.plot.setAttribute("aria-label", `${this.title}: ${words.join(", ")}`);
  }
}
