// What a job uses: graphs of CPU, memory, devices and disk, drawn from samples, with their peaks in words.
import { get, jobPath, jobs } from "./api.js";
import { card, duration, h, line, many, size, svg } from "./dom.js";

const WIDTH = 360;
const HEIGHT = 116;
const EDGE = { left: 52, right: 6, top: 8, bottom: 20 };
const LINES = 3; // across a graph

export class UsageView {
  constructor(id) {
    this.id = id;
    this.closed = false;
    this.element = h("div", { hidden: true });
    this.progress = h("div", { hidden: true });
    this.take = (page) => {
      if (page === null) this.load();
      else if (page.usage.job_id === this.id) this.show(page);
    };
    jobs.onUsage = this.take;
  }

  // Reads what is known, and from then on gets what changes.
  async load() {
    try {
      const page = await get(`${jobPath(this.id)}/usage?stream=${encodeURIComponent(jobs.stream ?? "")}`);
      if (!this.closed) this.show(page);
    } catch {
      // It cannot be read or verified: the rest of the page says what is wrong with the place.
    }
  }

  close() {
    this.closed = true;
    if (jobs.onUsage === this.take) jobs.onUsage = null; // else the next job's page is there already
  }

  show(page) {
    this.draw(page.usage);
    const { progress, stalled } = page;
    this.progress.hidden = !progress && !stalled;
    if (this.progress.hidden) return;
    const percent_ = progress && progress.share !== null ? Math.round(100 * progress.share) : null;
    const filled = h("i", { class: "done" });
    if (percent_ !== null) filled.style.width = `${percent_}%`;
    const bar = percent_ === null ? null : h("div", { class: "meter", role: "progressbar", "aria-label": "Progress", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": percent_ }, filled);
    this.progress.replaceChildren(card("Progress", h("div", { class: "body" }, bar,
      progress ? h("p", { class: "more" }, line(progress.told)) : null,
      stalled ? h("p", { class: "more" }, `It seems to hang: ${line(stalled)}. `, h("code", {}, `kinetic jobs stacks ${this.id}`)) : null)));
  }

  draw(usage) {
    const hosts = usage.hosts.filter((host) => host.samples.length);
    this.element.hidden = !hosts.length;
    if (!hosts.length) return;
    const graphs = [cpu(hosts, usage), memory(hosts, usage), ...devices(hosts, usage), disk(hosts)].filter(Boolean);
    const about = hosts.length > 1 ? `${many(hosts.length, "host")}, a line for each` : null;
    this.element.replaceChildren(card("Usage", h("div", { class: "body graphs" }, graphs), h("span", { class: "soft" }, about)));
  }
}

const percent = (value) => `${Math.round(value).toLocaleString("en-US")} %`;
const last = (values) => values.at(-1);
const largest = (values) => values.reduce((most, value) => Math.max(most, value), 0);
const sum = (values) => values.reduce((all, value) => all + value, 0);

// Series of [seconds, value], one for each host; samples without a value are left out.
const seriesOf = (hosts, of) => hosts.map((host) => host.samples.map((sample) => [sample.seconds, of(sample)]).filter(([, value]) => value !== null && value !== undefined)).filter((series) => series.length);

const now = (series) => sum(series.map((points) => last(points)[1]));

function cpu(hosts, usage) {
  const series = seriesOf(hosts, (sample) => sample.cpu_percent);
  const cores = largest(hosts.map((host) => host.cores));
  const words = `now ${percent(now(series))}, at most ${percent(usage.peak.cpu_percent)}, on average ${percent(usage.mean.cpu_percent)}; ${percent(100 * cores)} are all cores`;
  return graph("CPU", words, series, percent, 100 * cores);
}

function memory(hosts, usage) {
  const series = seriesOf(hosts, (sample) => sample.memory_bytes);
  if (!series.length) return null;
  const limit = largest(hosts.map((host) => host.memory_limit_bytes));
  const words = `now ${size(now(series))}, at most ${size(usage.peak.memory_bytes)} of ${size(limit)}`;
  return graph("Memory", words, series, size, limit);
}

function devices(hosts, usage) {
  const first = hosts.find((host) => host.devices.length)?.devices[0];
  if (!first) return [];
  const kind = first.kind.toUpperCase();
  const count = sum(hosts.map((host) => host.devices.length));
  const each = (of) => hosts.flatMap((host) => host.devices.map((_, index) => seriesOf([host], (sample) => (sample.devices[index] ? of(sample.devices[index]) : null))).flat());
  const named = first.kind === "tpu" ? many(count, "chip") : `${count > 1 ? `${count} × ` : ""}${line(first.name)}`;
  const [busy, held] = [each((device) => device.percent), each((device) => device.memory_bytes)];
  return [
    busy.length ? graph(`${kind}, ${named}`, `now ${percent(now(busy) / busy.length)}, at most ${percent(usage.peak.device_percent)}, on average ${percent(usage.mean.device_percent)}`, busy, percent, 100) : null,
    held.length ? graph(`${kind} memory`, `now ${size(now(held))}, at most ${size(usage.peak.device_memory_bytes)} of ${size(first.memory_bytes)} on one`, held, size, first.memory_bytes) : null,
  ];
}

function disk(hosts) {
  const series = seriesOf(hosts, (sample) => sample.disk_used_bytes);
  if (!series.length) return null;
  const whole = largest(hosts.map((host) => host.disk_bytes));
  const [read, written] = ["read_bytes", "written_bytes"].map((name) => sum(hosts.map((host) => last(host.samples)[name] ?? 0)));
  const words = `${size(largest(series.map((points) => last(points)[1])))} of ${size(whole)} used by all; this job read ${size(read)} and wrote ${size(written)}`;
  return graph("Disk", words, series, size, whole);
}

function graph(title, words, series, text, limit) {
  const seconds = largest(series.map((points) => last(points)[0]));
  const most = largest(series.map((points) => largest(points.map(([, value]) => value))));
  const top = roundAbove(most || limit || 1);
  const showsLimit = limit && limit <= top;
  const x = (at) => EDGE.left + (at / (seconds || 1)) * (WIDTH - EDGE.left - EDGE.right);
  const y = (value) => HEIGHT - EDGE.bottom - (Math.min(value, top) / top) * (HEIGHT - EDGE.top - EDGE.bottom);
  const grid = [...Array(LINES).keys()].map((index) => {
    const value = (top * index) / (LINES - 1);
    return [svg("line", { class: "grid", x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y(value), y2: y(value) }), svg("text", { x: EDGE.left - 6, y: y(value) + 4, "text-anchor": "end" }, text(value).replace(".0 ", " ").replace(" bytes", ""))];
  });
  const times = [svg("text", { x: EDGE.left, y: HEIGHT - 5 }, "0 s"), svg("text", { x: WIDTH - EDGE.right, y: HEIGHT - 5, "text-anchor": "end" }, duration(seconds))];
  const lines = series.map((points) => {
    const path = points.map(([at, value], index) => `${index ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    const under = `${path}L${x(last(points)[0]).toFixed(1)} ${y(0)}L${x(points[0][0]).toFixed(1)} ${y(0)}Z`;
    return [series.length === 1 ? svg("path", { class: "area", d: under }) : null, svg("path", { class: "value", d: points.length > 1 ? path : `${path}h2` })];
  });
  const drawing = svg("svg", { class: "graph", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title} over ${duration(seconds)}: ${words}` },
    grid, times, showsLimit ? svg("line", { class: "limit", x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y(limit), y2: y(limit) }) : null, lines);
  return h("figure", {}, h("h3", {}, title), h("figcaption", {}, words), drawing);
}

// The next round number: 1, 2 or 5 and zeros.
function roundAbove(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((each) => each * power >= value) * power;
}
