// All jobs: filters, and a list of which only the rows on the screen exist, however long it is.
import { jobs } from "./api.js";
import { age, duration, h, line, many, statusKind, statusPill, statusWord, took } from "./dom.js";

const FILTERS = ["RUNNING", "PENDING", "FAILED", "SUCCEEDED", "CANCELLED", "NOT_FOUND"];
const MORE = 8; // rows above and below the screen
const kept = { words: "", statuses: new Set(), scroll: 0 }; // what was chosen, when the page is shown again

const textOf = (job) => `${job.job_id} ${job.function} ${job.group_id || ""} ${job.accelerator} ${job.where} ${job.place} ${job.reason}`.toLowerCase();
const texts = new WeakMap();
function matches(job, words) {
  let text = texts.get(job);
  if (text === undefined) texts.set(job, (text = textOf(job)));
  return words.every((word) => text.includes(word));
}

export function jobsPage() {
  const search = h("input", { type: "search", class: "grow", placeholder: "Filter by name, id, place or reason  ( / )", "aria-label": "Filter jobs", value: kept.words });
  const chips = h("div", { class: "chips", role: "group", "aria-label": "Filter by status" });
  const count = h("span", { class: "soft", role: "status" });
  const rows = h("div", { class: "rows", role: "rowgroup" });
  const titles = ["Status", "Function", "Reason", "Accelerator", "Age", "Duration"];
  const kinds = ["first", "", "wide", "wide spare", "wide spare right", "wide right"];
  const head = h("div", { class: "row head", role: "row", "aria-rowindex": 1 }, titles.map((title, index) => h("div", { class: `cell ${kinds[index]}`, role: "columnheader" }, title)));
  const table = h("div", { class: "table jobs", role: "table", "aria-label": "Jobs" }, h("div", { role: "rowgroup" }, head), rows);
  const empty = h("div", { class: "empty", hidden: true });
  const element = h("div", {}, h("h1", {}, "Jobs"), h("div", { class: "bar" }, search, chips), table, empty, h("p", {}, count));
  const drawn = new Map(); // index → row
  let shown = [];
  let height = 0;

  function rowOf(job, index) {
    const batch = job.group_id ? ` · ${job.group_id} [${job.group_index}]` : "";
    const row = h("div", { class: "row", role: "row", "aria-rowindex": index + 2 },
      h("div", { class: "cell first", role: "cell" }, statusPill(job.status)),
      h("div", { class: "cell", role: "cell" },
        h("a", { class: "name", href: `#/jobs/${encodeURIComponent(job.job_id)}`, "data-index": index, title: line(job.job_id) }, line(job.function) || "(no name)"),
        h("span", { class: "sub mono" }, line(job.job_id), h("span", {}, line(batch)))),
      h("div", { class: "cell wide", role: "cell", title: line(job.reason) }, line(job.reason)),
      h("div", { class: "cell wide spare", role: "cell" }, line(job.accelerator), h("span", { class: "sub" }, line(job.where))),
      h("div", { class: "cell wide spare right", role: "cell" }, age(job.created_at)),
      h("div", { class: "cell wide right", role: "cell" }, duration(took(job))));
    row.style.top = `${index * height}px`;
    row.kineticJob = job;
    return row;
  }

  function draw() {
    if (!height) {
      const probe = h("div", { class: "row", role: "row" });
      rows.append(probe);
      height = probe.getBoundingClientRect().height;
      probe.remove();
      if (!height) return; // the table is not shown
    }
    const top = rows.getBoundingClientRect().top;
    const first = Math.max(Math.floor(-top / height) - MORE, 0);
    const last = Math.min(Math.ceil((window.innerHeight - top) / height) + MORE, shown.length);
    for (const [index, row] of drawn) {
      if (index < first || index >= last || shown[index] !== row.kineticJob) {
        if (row.contains(document.activeElement) && index >= first && index < last && shown[index]?.job_id === row.kineticJob.job_id) {
          const again = rowOf(shown[index], index);
          row.replaceWith(again);
          drawn.set(index, again);
          again.querySelector("a").focus({ preventScroll: true });
          continue;
        }
        row.remove();
        drawn.delete(index);
      }
    }
    for (let index = first; index < last; index++) {
      if (drawn.has(index)) continue;
      const row = rowOf(shown[index], index);
      drawn.set(index, row);
      let after = null; // in the order of the rows, so that the Tab key follows it
      for (let next = index + 1; next < last && !after; next++) after = drawn.get(next) || null;
      rows.insertBefore(row, after);
    }
  }

  function filter() {
    const words = kept.words.toLowerCase().split(/\s+/).filter(Boolean);
    const found = words.length ? jobs.list.filter((job) => matches(job, words)) : jobs.list;
    const counts = {};
    for (const job of found) counts[job.status] = (counts[job.status] || 0) + 1;
    shown = kept.statuses.size ? found.filter((job) => kept.statuses.has(job.status)) : found;
    const wanted = FILTERS.filter((status) => counts[status] || kept.statuses.has(status));
    const before = [...chips.children].map((chip) => chip.dataset.status);
    if (before.join() !== wanted.join()) {
      chips.replaceChildren(...wanted.map((status) => h("button", { type: "button", class: `chip ${statusKind(status)}`, "data-status": status, click: () => choose(status) }, `${statusWord(status)} `, h("b"))));
    }
    for (const chip of chips.children) {
      chip.setAttribute("aria-pressed", String(kept.statuses.has(chip.dataset.status)));
      chip.querySelector("b").textContent = (counts[chip.dataset.status] || 0).toLocaleString("en-US");
    }
    rows.style.height = `${shown.length * (height || 50)}px`;
    table.setAttribute("aria-rowcount", String(shown.length + 1));
    table.hidden = !shown.length;
    empty.hidden = shown.length > 0;
    if (!shown.length) {
      const none = [h("p", {}, "There are no jobs yet."), h("p", {}, "Submit one: ", h("code", {}, "kinetic run train.py::train"))];
      empty.replaceChildren(...(!jobs.loaded || (jobs.looking.length && !jobs.list.length) ? [h("p", {}, "Looking at the jobs …")] : jobs.list.length ? [h("p", {}, "No job matches these filters.")] : none));
    }
    const words_ = jobs.loaded ? (shown.length === jobs.list.length ? many(shown.length, "job") : `${shown.length.toLocaleString("en-US")} of ${many(jobs.list.length, "job")}`) + (jobs.looking.length && jobs.list.length ? `; looking at ${jobs.looking.map(line).join(", ")} …` : "") : "";
    if (count.textContent !== words_) count.textContent = words_;
    draw();
    rows.style.height = `${shown.length * height}px`;
    if (jobs.loaded && !kept.isMarked) performance.mark("kinetic-listed"); // what the first list costs, for whoever measures it
    kept.isMarked = jobs.loaded;
  }

  function choose(status) {
    if (!kept.statuses.delete(status)) kept.statuses.add(status);
    clear();
    filter();
  }

  function clear() {
    for (const row of drawn.values()) row.remove();
    drawn.clear();
  }

  search.addEventListener("input", () => {
    kept.words = search.value;
    filter();
  });
  rows.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
    const at = Number(event.target.dataset?.index);
    if (!step || Number.isNaN(at)) return;
    event.preventDefault();
    const index = Math.min(Math.max(at + step, 0), shown.length - 1);
    const top = rows.getBoundingClientRect().top + index * height;
    if (top < 90) window.scrollBy(0, top - 90);
    else if (top + height > window.innerHeight - 10) window.scrollBy(0, top + height - window.innerHeight + 10);
    draw();
    drawn.get(index)?.querySelector("a").focus({ preventScroll: true });
  });
  const onScroll = () => {
    kept.scroll = window.scrollY;
    draw();
  };
  const onResize = () => {
    height = 0;
    clear();
    filter();
  };
  window.addEventListener("scroll", onScroll, { passive: true });
  window.addEventListener("resize", onResize);
  const forget = jobs.listen(filter);
  const ticking = setInterval(() => { // ages and durations
    for (const [index, row] of drawn) {
      const job = row.kineticJob;
      row.children[4].textContent = age(job.created_at);
      if (job.status === "RUNNING") row.children[5].textContent = duration(took(job));
      if (shown[index] !== job) break;
    }
  }, 1000);
  return {
    element,
    title: "Jobs",
    scroll: kept.scroll,
    shown: filter,
    leave: () => {
      forget();
      clearInterval(ticking);
      window.removeEventListener("scroll", onScroll);
      window.removeEventListener("resize", onResize);
    },
  };
}
