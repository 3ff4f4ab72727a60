// Batches: the list of all; and one with a grid of its inputs, a table of values, and a plot of one against another.
import { batchPath, get, jobs, post } from "./api.js";
import { age, card, confirmed, copyButton, duration, h, line, many, moment, problemText, statusKind, toast, update } from "./dom.js";
import { problemCard } from "./job.js";
import { plotCard } from "./plot.js";

const KINDS = { succeeded: "succeeded", failed: "failed", running: "running", to_be_tried_again: "pending", waiting: "pending", cancelled: "other", removed: "other", refused: "failed", not_submitted: "other" };
const SIGNS = { succeeded: "", failed: "×", running: "▸", to_be_tried_again: "↻", waiting: "·", cancelled: "–", removed: "–", refused: "!", not_submitted: "" };
const ORDER = ["succeeded", "failed", "refused", "running", "to_be_tried_again", "waiting", "cancelled", "removed", "not_submitted"];
const MOST_ROWS = 500;
const MOST_COLUMNS = 12;
const wordOf = (state) => state.replace(/_/g, " ");

// Calls a function now and after changes, at most every second, and never twice at once.
function lively(load) {
  let busy = false;
  let again = false;
  let timer = 0;
  let left = false;
  async function run() {
    if (left) return;
    if (busy) return void (again = true);
    busy = true;
    await load();
    timer = setTimeout(() => {
      busy = false;
      if (again) {
        again = false;
        run();
      }
    }, 1000);
  }
  return { run, leave: () => { left = true; clearTimeout(timer); } };
}

export function batchesPage() {
  const rows = h("div", { class: "rows flow", role: "rowgroup" });
  const search = h("input", { type: "search", class: "grow", placeholder: "Filter by name, id or function  ( / )", "aria-label": "Filter batches" });
  const titles = [["Batch", ""], ["Function", "wide"], ["Progress", ""], ["Age", "wide right"]];
  const head = h("div", { class: "row head", role: "row" }, titles.map(([title, kind]) => h("div", { class: `cell ${kind}`, role: "columnheader" }, title)));
  const table = h("div", { class: "table batches", role: "table", "aria-label": "Batches", hidden: true }, h("div", { role: "rowgroup" }, head), rows);
  const empty = h("div", { class: "empty" }, h("p", {}, "Looking at the batches …"));
  const element = h("div", {}, h("h1", {}, "Batches"), h("div", { class: "bar" }, search), table, empty);
  let batches = null;

  function draw() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = batches.filter((each) => words.every((word) => `${each.group_id} ${each.name || ""} ${each.function} ${each.place} ${Object.entries(each.tags).flat().join(" ")}`.toLowerCase().includes(word)));
    const focused = document.activeElement?.dataset?.group;
    rows.replaceChildren(...shown.map(rowOf));
    if (focused) rows.querySelector(`[data-group="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    table.hidden = !shown.length;
    empty.hidden = shown.length > 0;
    empty.replaceChildren(...(batches.length ? [h("p", {}, "No batch matches this filter.")] : [h("p", {}, "There are no batches yet."), h("p", {}, "Submit one in Python: ", h("code", {}, "train.run_async_map(inputs)"))]));
  }

  const live = lively(async () => {
    try {
      const page = await get("/batches");
      batches = page.batches;
      draw();
    } catch (problem) {
      empty.replaceChildren(h("p", {}, problemText(problem)));
    }
  });
  search.addEventListener("input", () => batches && draw());
  const forget = jobs.listen(live.run);
  live.run();
  return { element, title: "Batches", leave: () => { forget(); live.leave(); } };
}

function rowOf(batch) {
  return h("div", { class: "row", role: "row" },
    h("div", { class: "cell", role: "cell" },
      h("a", { class: "name", href: `#/batches/${encodeURIComponent(batch.group_id)}`, "data-group": batch.group_id }, line(batch.name || batch.group_id)),
      h("span", { class: "sub mono" }, batch.name ? line(batch.group_id) : many(batch.total, "job"))),
    h("div", { class: "cell wide", role: "cell" }, line(batch.function), h("span", { class: "sub" }, `${line(batch.accelerator)} · ${line(batch.place)}`)),
    h("div", { class: "cell", role: "cell" }, meterOf(batch), h("span", { class: "sub" }, summaryOf(batch))),
    h("div", { class: "cell wide right", role: "cell" }, age(batch.created_at)));
}

function meterOf(batch) {
  return h("div", { class: "meter", "aria-hidden": "true" }, ORDER.filter((state) => batch.counts[state] && state !== "not_submitted").map((state) => {
    const part = h("i", { class: `fill-${KINDS[state]}` });
    part.style.width = `${(100 * batch.counts[state]) / Math.max(batch.total, 1)}%`;
    return part;
  }));
}

const summaryOf = (batch) => ORDER.filter((state) => batch.counts[state]).map((state) => `${batch.counts[state].toLocaleString("en-US")} ${wordOf(state)}`).join(", ") || "no jobs";

const kept = new Map(); // by batch: how its table is sorted, what is plotted and where the page was, when it is shown again

export function batchPage(id) {
  const element = h("div", {}, h("p", { class: "soft" }, "Looking at the batch …"));
  if (!kept.has(id)) kept.set(id, { sort: { column: "index", down: false }, plot: {}, scroll: 0, tableScroll: 0 });
  const place = kept.get(id);
  const { sort, plot, scroll, tableScroll } = place;
  let values = new Map();
  let valuesOf = -1;
  let parts = null;
  let page = null;

  function table(rows) {
    const columns = columnsOf(rows);
    const shown = sortedBy(rows, columns.find((each) => each.name === sort.column) || columns[0], sort.down);
    const head = columns.map((column) => h("th", { scope: "col", class: column.isNumber ? "number" : null, "aria-sort": sort.column === column.name ? (sort.down ? "descending" : "ascending") : null },
      h("button", { type: "button", "data-column": column.name, click: () => {
        sort.down = sort.column === column.name ? !sort.down : false;
        sort.column = column.name;
        draw();
      } }, line(column.name), sort.column === column.name ? (sort.down ? " ↓" : " ↑") : "")));
    const body = shown.slice(0, MOST_ROWS).map((row) => h("tr", {}, columns.map((column) => cellOf(column, row))));
    return card("Inputs and results", h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of inputs and results" }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body))),
      shown.length > MOST_ROWS ? h("span", { class: "soft" }, `the first ${MOST_ROWS} of ${many(shown.length, "row")}`) : null,
      copyButton(`kinetic batch results ${id} --json`, "Copy results command"));
  }

  function draw() {
    const rows = page.jobs.map((row) => ({ ...row, ...valueFields(values.get(row.index)), inputs: numbersOf(row.input) }));
    const made = { head: headOf(page.batch, live.run), grid: gridOf(page), table: table(rows), plot: plotCard(rows, plot, draw) || h("div", { hidden: true }) };
    const focused = document.activeElement?.dataset ? { ...document.activeElement.dataset } : {};
    if (!parts) element.replaceChildren(made.head, made.grid, made.plot, made.table);
    else for (const name of Object.keys(made)) {
      const scrolled = parts[name].querySelector(".scroll")?.scrollTop;
      made[name] = update(parts[name], made[name]);
      if (scrolled) made[name].querySelector(".scroll").scrollTop = scrolled;
    }
    parts = made;
    for (const name of ["column", "cell", "act", "axis"]) if (focused[name] !== undefined) element.querySelector(`[data-${name}="${CSS.escape(focused[name])}"]`)?.focus({ preventScroll: true });
  }

  function goBack() {
    window.scrollTo(0, scroll);
    element.querySelector(".scroll").scrollTop = tableScroll;
  }

  const onScroll = (event) => {
    if (!parts) return;
    if (event.target === document) place.scroll = window.scrollY;
    else if (event.target.matches(".scroll")) place.tableScroll = event.target.scrollTop;
  };
  document.addEventListener("scroll", onScroll, { passive: true, capture: true });
  const live = lively(async () => {
    try {
      page = await get(batchPath(id));
      const isFirst = !parts;
      draw();
      if (isFirst) goBack();
      if (page.batch.counts.succeeded !== valuesOf) {
        const found = await get(`${batchPath(id)}/values`);
        valuesOf = page.batch.counts.succeeded;
        values = new Map(found.values.map((each) => [each.index, each]));
        draw();
        if (isFirst) goBack(); // the plot has moved the table
      }
    } catch (problem) {
      if (!parts) element.replaceChildren(problemCard(problem));
      else toast(problemText(problem));
    }
  });
  const forget = jobs.listen((changed) => {
    if (changed === null || [...changed].some((job) => jobs.byId.get(job)?.group_id === id || !jobs.byId.has(job))) live.run();
  });
  live.run();
  return {
    element,
    title: id,
    leave: () => {
      forget();
      live.leave();
      document.removeEventListener("scroll", onScroll, { capture: true });
    },
  };
}

function headOf(batch, load) {
  const acts = [];
  const act = (label, kind, path, question, told) => h("button", { type: "button", class: kind, "data-act": label, click: async (event) => {
    const button = event.currentTarget;
    if (question && !(await confirmed(...question))) return;
    button.disabled = true;
    try {
      await post(`${batchPath(batch.group_id)}/${path}`);
      toast(told);
    } catch (problem) {
      toast(problemText(problem));
    }
    load();
  } }, label);
  if (!batch.is_over) acts.push(act("Cancel batch", "danger", "cancel", ["Cancel this batch?", `All jobs of ${line(batch.group_id)} that have not ended are ended now. Results and logs are kept.`, "Cancel the batch"], "The batch is cancelled"));
  if (batch.counts.failed) acts.push(act(`Retry ${many(batch.counts.failed, "failed input")}`, "", "retry", null, "The failed inputs are run again"));
  acts.push(copyButton(`kinetic batch status ${batch.group_id} --watch`, "Copy status command"));
  const tags = Object.entries(batch.tags).map(([name, value]) => `${line(name)}=${line(value)}`).join(", ");
  return h("div", {}, h("a", { class: "back", href: "#/batches" }, "← Batches"),
    h("div", { class: "headline" }, h("h1", {}, line(batch.name || batch.function)), h("div", { class: "acts" }, acts)),
    h("p", { class: "idline" }, h("code", {}, line(batch.group_id)), h("span", {}, `${line(batch.function)} on ${line(batch.accelerator)}`), h("span", {}, line(batch.place)), h("span", {}, moment(batch.created_at)), tags ? h("span", {}, tags) : null),
    batch.is_left ? h("p", { class: "soft" }, "No process submits the rest of it: ", h("code", {}, `kinetic batch resume ${batch.group_id}`)) : null);
}

// One cell for each input. The arrow keys move from cell to cell; the Tab key leaves the grid.
function gridOf(page) {
  const cells = page.jobs.map((row, index) => {
    const label = `Input ${row.index}, ${wordOf(row.state)}: ${line(row.input)}`;
    const given = { class: `fill-${KINDS[row.state] || "other"}`, title: label, "data-cell": index };
    return row.job_id ? h("a", { ...given, href: `#/jobs/${encodeURIComponent(row.job_id)}`, "aria-label": label, tabindex: index ? -1 : 0 }, SIGNS[row.state] || "") : h("span", { ...given, role: "img", "aria-label": label }, SIGNS[row.state] || "");
  });
  cells.filter((cell) => cell.tagName === "A").forEach((cell, index) => { cell.tabIndex = index ? -1 : 0; });
  const grid = h("div", { class: "cells", role: "group", "aria-label": "Inputs by status", keydown: (event) => {
    const links = [...grid.querySelectorAll("a")];
    const at = links.indexOf(event.target);
    if (at < 0) return;
    const top = links[0].offsetTop;
    const wide = Math.max(links.findIndex((cell) => cell.offsetTop > top), 1);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + wide, ArrowUp: at - wide, Home: 0, End: links.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const cell = links[Math.min(Math.max(next, 0), links.length - 1)];
    event.target.tabIndex = -1;
    cell.tabIndex = 0;
    cell.focus();
  } }, cells);
  const legend = h("ul", { class: "legend" }, ORDER.filter((state) => page.batch.counts[state]).map((state) => h("li", {}, h("span", { class: `status ${statusKind(KINDS[state].toUpperCase())}` }, `${page.batch.counts[state].toLocaleString("en-US")} ${wordOf(state)}`))));
  return card("Jobs", h("div", { class: "body" }, legend, grid), h("span", { class: "soft" }, many(page.batch.total, "input")));
}

// ----------------------------------------------------------------------------------------------------------- values

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const isShown = (value) => isNumber(value) || typeof value === "string" || typeof value === "boolean";

// The columns that a value gives: a number one, an object one for each of its plain fields.
function valueFields(found) {
  if (!found) return { values: {} };
  if (found.left_out) return { values: { result: `not shown: ${found.left_out}` } };
  if (!("value" in found)) return { values: { result: found.repr } };
  const value = found.value;
  if (value && typeof value === "object" && !Array.isArray(value)) {
    const fields = Object.fromEntries(Object.entries(value).filter(([, each]) => isShown(each)).slice(0, MOST_COLUMNS));
    if (Object.keys(fields).length) return { values: fields };
  }
  return { values: { result: isShown(value) ? value : JSON.stringify(value) } };
}

// The numbers that an input names: "0.1", "lr=0.1, seed=3", "{'lr': 0.1}".
function numbersOf(text) {
  const found = {};
  const number = "[-+]?(?:\\d+\\.?\\d*|\\.\\d+)(?:[eE][-+]?\\d+)?";
  if (new RegExp(`^\\(?${number},?\\)?$`).test(text.trim())) found.input = Number(text.replace(/[(),]/g, ""));
  for (const [, quoted, name, value] of text.matchAll(new RegExp(`(['"]?)([A-Za-z_]\\w*)\\1\\s*[=:]\\s*(${number})(?![\\w.])`, "g"))) if (name && quoted !== undefined) found[name] = Number(value);
  return found;
}

function columnsOf(rows) {
  const names = new Set();
  for (const row of rows) for (const name of Object.keys(row.values)) if (names.size < MOST_COLUMNS) names.add(name);
  return [
    { name: "index", of: (row) => row.index, isNumber: true },
    { name: "input", of: (row) => row.input },
    { name: "state", of: (row) => wordOf(row.state) },
    { name: "duration", of: (row) => row.duration_seconds, isNumber: true, shown: duration },
    ...[...names].map((name) => ({ name: ["index", "input", "state", "duration"].includes(name) ? `value: ${name}` : name, of: (row) => row.values[name], isNumber: rows.every((row) => row.values[name] === undefined || isNumber(row.values[name])) })),
  ];
}

function sortedBy(rows, column, down) {
  const missing = (value) => value === null || value === undefined;
  return [...rows].sort((a, b) => {
    const [x, y] = [column.of(a), column.of(b)];
    if (missing(x) || missing(y)) return missing(x) - missing(y);
    const order = isNumber(x) && isNumber(y) ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true });
    return (down ? -order : order) || a.index - b.index;
  });
}

export const shortNumber = (value) => (Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(6))));

function cellOf(column, row) {
  const value = column.of(row);
  const text = value === null || value === undefined ? "" : column.shown ? column.shown(value) : isNumber(value) ? shortNumber(value) : line(value);
  const content = column.name === "index" && row.job_id ? h("a", { href: `#/jobs/${encodeURIComponent(row.job_id)}` }, text) : text;
  return h("td", { class: column.isNumber ? "number" : null, title: text.length > 30 ? text : null }, content);
}
