// A plot of one number of each input against another.
import { card, h, line, svg } from "./dom.js";

const WIDTH = 720;
const HEIGHT = 260;
const EDGE = { left: 62, right: 16, top: 12, bottom: 42 };
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export function plotCard(rows, chosen, redraw) {
  const ends = axesOf(rows, (row) => row.values);
  const begins = [...axesOf(rows, (row) => row.inputs), "index"];
  if (!ends.length) return null;
  const x = begins.includes(chosen.x) ? chosen.x : begins[0];
  const y = ends.includes(chosen.y) ? chosen.y : ends[0];
  const points = rows.map((row) => ({ x: x === "index" ? row.index : row.inputs[x], y: row.values[y], row })).filter((point) => isNumber(point.x) && isNumber(point.y));
  if (points.length < 2) return null;
  const choice = (name, label, all, value) => {
    const select = h("select", { "aria-label": label, "data-axis": name, change: () => {
      chosen[name] = select.value;
      redraw();
    } }, all.map((each) => h("option", { value: each, selected: each === value }, line(each))));
    return select;
  };
  return card("Plot", h("div", { class: "body" }, drawing(points, x, y)), choice("y", "What is plotted", ends, y), h("span", { class: "soft" }, "against"), choice("x", "Against which input", begins, x));
}

function axesOf(rows, of) {
  const names = new Set();
  for (const row of rows) for (const [name, value] of Object.entries(of(row))) if (isNumber(value)) names.add(name);
  return [...names];
}

function drawing(points, x, y) {
  const [across, up] = [scale(points.map((point) => point.x)), scale(points.map((point) => point.y))];
  const left = (value) => EDGE.left + ((value - across.low) / (across.high - across.low)) * (WIDTH - EDGE.left - EDGE.right);
  const top = (value) => HEIGHT - EDGE.bottom - ((value - up.low) / (up.high - up.low)) * (HEIGHT - EDGE.top - EDGE.bottom);
  const grid = up.ticks.map((tick) => [
    svg("line", { class: "grid", x1: EDGE.left, x2: WIDTH - EDGE.right, y1: top(tick), y2: top(tick) }),
    svg("text", { x: EDGE.left - 8, y: top(tick) + 4, "text-anchor": "end" }, label(tick)),
  ]);
  const below = across.ticks.map((tick) => svg("text", { x: left(tick), y: HEIGHT - EDGE.bottom + 18, "text-anchor": "middle" }, label(tick)));
  const dots = points.map((point) => svg("circle", { class: "dot", cx: left(point.x), cy: top(point.y), r: points.length > 200 ? 2.5 : 4 }, svg("title", {}, `input ${point.row.index}: ${line(x)} ${label(point.x)}, ${line(y)} ${label(point.y)}`)));
  return svg("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${line(y)} against ${line(x)}, ${points.length} points; the table has the numbers` },
    grid, below, svg("text", { x: (WIDTH + EDGE.left) / 2, y: HEIGHT - 5, "text-anchor": "middle" }, line(x)), dots);
}

const label = (value) => (Math.abs(value) >= 1e6 || (value !== 0 && Math.abs(value) < 1e-4) ? value.toExponential(1) : String(Number(value.toPrecision(4))));

// A range with round ends, and some round numbers in it.
function scale(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const raw = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((each) => each * power >= raw) * power;
  const [from, to] = [Math.floor(low / step), Math.ceil(high / step)];
  const ticks = [];
  for (let number = from; number <= to; number++) ticks.push(number * step);
  return { low: from * step, high: to * step, ticks };
}
