// Charts drawn as SVG: lines over time with a scale, and small ones without.

import { h, s, render } from "./dom.js";
import { timeOfDay } from "./format.js";

const HEIGHT = 220;
const LEFT = 56;
const RIGHT = 12;
const TOP = 10;
const BOTTOM = 24;
// Lines of one chart that have a colour of their own; more are left out, the smallest first.
export const LINES_MAX = 8;
// A chart's time goes back to its first point, and shows at least this much.
const SPAN_MS = 120_000;
// A longer break between two points is a gap: the page was hidden or paused.
const GAP_MS = 20_000;

// Round numbers from 0 to at least `most`.
export function scale(most) {
  if (!(most > 0)) return [0, 1];
  const rough = most / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1e-9, [1, 2, 2.5, 5, 10].map((part) => part * power).find((size) => size >= rough));
  const ticks = [];
  for (let tick = 0; ticks.length < 2 || ticks.at(-1) < most; tick += step) ticks.push(Number(tick.toPrecision(12)));
  return ticks;
}

function path(points, x, y) {
  let last = null;
  return points.map(([at, value]) => {
    const joined = last !== null && at - last < GAP_MS;
    last = at;
    return `${joined ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
  }).join("");
}

// A chart that lives across refreshes: put it into a tree as an island, and give it lines by `update`.
export class LineChart {
  constructor(label, format, whole = false) {
    this.label = label;
    this.format = format;
    this.whole = whole;
    this.lines = [];
    this.colours = new Map();
    this.pointer = null;
    this.canvas = h("div", { class: "canvas" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.legend = h("ul", { class: "legend" });
    this.node = h("div", { class: "chart" }, h("div", { class: "plot" }, this.canvas, this.tip), this.legend);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  // lines: {name, points: [[ms, value], ...]}, the most important first. A line keeps its colour while it is shown.
  update(lines) {
    this.more = Math.max(0, lines.length - LINES_MAX);
    this.lines = lines.slice(0, LINES_MAX);
    const kept = new Map();
    for (const { name } of this.lines) if (this.colours.has(name)) kept.set(name, this.colours.get(name));
    const used = new Set(kept.values());
    for (const { name } of this.lines) {
      if (kept.has(name)) continue;
      const free = Array.from({ length: LINES_MAX }, (_, colour) => colour).find((colour) => !used.has(colour));
      kept.set(name, free);
      used.add(free);
    }
    this.colours = kept;
    this.draw();
  }

  // The class of a line's colour.
  colour({ name }) {
    return `line-${this.colours.get(name)}`;
  }

  draw() {
    const width = this.canvas.clientWidth;
    if (!width) return;
    const now = Date.now();
    const first = Math.min(...this.lines.map((line) => line.points[0]?.[0] ?? now), now - SPAN_MS);
    const most = Math.max(0, ...this.lines.flatMap((line) => line.points.map(([, value]) => value)));
    const ticks = scale(this.whole ? Math.max(most, 4) : most);
    this.x = (at) => LEFT + ((at - first) / (now - first)) * (width - LEFT - RIGHT);
    this.y = (value) => HEIGHT - BOTTOM - (value / ticks.at(-1)) * (HEIGHT - TOP - BOTTOM);
    const times = Array.from({ length: width < 420 ? 3 : 5 }, (_, at, of = width < 420 ? 2 : 4) =>
      first + ((now - first) * at) / of);
    const alone = this.lines.length === 1;
    render(this.canvas, s("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img",
      "aria-label": this.summary() },
      ticks.map((tick) => s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: this.y(tick), y2: this.y(tick) })),
      ticks.map((tick) => s("text", { class: "scale", x: LEFT - 8, y: this.y(tick) + 4, "text-anchor": "end" },
        this.format(tick))),
      times.map((at, place) => s("text", { class: "scale", x: this.x(at), y: HEIGHT - 6,
        "text-anchor": place === 0 ? "start" : place === times.length - 1 ? "end" : "middle" }, timeOfDay(at))),
      this.lines.map((line) => [
        alone && s("path", { class: `area ${this.colour(line)}`, d: this.area(line.points) }),
        s("path", { class: `line ${this.colour(line)}`, d: path(line.points, this.x, this.y) }),
        line.points.length && s("circle", { class: `dot ${this.colour(line)}`, r: 3, cx: this.x(line.points.at(-1)[0]),
          cy: this.y(line.points.at(-1)[1]) })]),
      s("line", { class: "hair", y1: TOP, y2: HEIGHT - BOTTOM, hidden: true })));
    render(this.legend, this.lines.map((line) => h("li", {}, h("span", { class: `swatch ${this.colour(line)}` }),
      h("span", { class: "name" }, line.name),
      h("span", { class: "value" }, line.points.length ? this.format(line.points.at(-1)[1]) : "–"))),
    this.more > 0 && h("li", { class: "muted" }, `and ${this.more} more`));
    if (this.pointer !== null) this.show();
  }

  area(points) {
    let area = "";
    let run = [];
    const close = () => {
      if (run.length) area += `${path(run, this.x, this.y)}L${this.x(run.at(-1)[0])} ${this.y(0)}L${this.x(run[0][0])} ${this.y(0)}Z`;
      run = [];
    };
    for (const point of points) {
      if (run.length && point[0] - run.at(-1)[0] >= GAP_MS) close();
      run.push(point);
    }
    close();
    return area;
  }

  summary() {
    if (!this.lines.length) return `${this.label}: no data`;
    const parts = this.lines.map((line) =>
      `${line.name} ${line.points.length ? this.format(line.points.at(-1)[1]) : "no data"}`);
    return `${this.label}, now: ${parts.join(", ")}`;
  }

  point(event) {
    this.pointer = event === null ? null : event.offsetX;
    this.show();
  }

  show() {
    const hair = this.canvas.querySelector(".hair");
    const points = this.lines.flatMap((line) => line.points);
    if (this.pointer === null || !points.length || !hair) {
      this.tip.hidden = true;
      hair?.setAttribute("hidden", "");
      return;
    }
    const near = points.reduce((best, point) =>
      Math.abs(this.x(point[0]) - this.pointer) < Math.abs(this.x(best[0]) - this.pointer) ? point : best)[0];
    for (const side of ["x1", "x2"]) hair.setAttribute(side, this.x(near));
    hair.removeAttribute("hidden");
    render(this.tip, h("div", { class: "muted" }, timeOfDay(near)), this.lines.map((line) => {
      const found = line.points.find(([at]) => at === near);
      return found && h("div", {}, h("span", { class: `swatch ${this.colour(line)}` }), `${line.name} `,
        h("strong", {}, this.format(found[1])));
    }));
    this.tip.hidden = false;
    const left = this.x(near) > this.canvas.clientWidth / 2;
    this.tip.style.left = `${this.x(near) + (left ? -12 : 12)}px`;
    this.tip.classList.toggle("left", left);
  }
}

// A line without a scale, as wide as a cell; its last value stands beside it as text.
export function spark(points, width = 96, height = 26) {
  const most = Math.max(1e-9, ...points.map(([, value]) => value));
  const [first, last] = points.length ? [points[0][0], points.at(-1)[0]] : [0, 1];
  const x = (at) => 1 + ((at - first) / Math.max(1, last - first)) * (width - 2);
  const y = (value) => height - 2 - (value / most) * (height - 4);
  return s("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    s("line", { class: "grid", x1: 0, x2: width, y1: height - 1, y2: height - 1 }),
    points.length > 1 && s("path", { class: "line", d: path(points, x, y) }));
}
