// One job: why it is as it is, its log, what it took, what it left.
import { address, bytes, get, jobPath, jobs, post } from "./api.js";
import { age, card, confirmed, copyButton, duration, escaped, h, line, many, moment, problemText, size, statusKind, statusPill, toast, took, update } from "./dom.js";
import { LogView, logAhead } from "./log.js";
import { UsageView } from "./usage.js";

const PHASES = ["order", "artifact verification", "context extract", "environment setup", "debugger setup", "payload unpickle", "execute", "result serialization"];
const TEXTS = /\.(txt|md|log|csv|tsv|json|jsonl|ya?ml|toml|ini|cfg|py|sh|html?|xml|css|js)$/i;
const IMAGES = /\.(png|jpe?g|gif|webp|svg)$/i;
const PREVIEW = 200_000; // characters of a text

export function jobPage(id) {
  const element = h("div", {}, h("p", { class: "soft" }, "Looking at the job …"));
  const ahead = logAhead(id); // the log need not wait for the rest
  const parts = {};
  let log = null;
  const usage = new UsageView(id);
  let left = false;
  let status = null;

  async function load() {
    let page;
    try {
      page = await get(jobPath(id));
    } catch (problem) {
      if (!left && !parts.head) element.replaceChildren(problemCard(problem));
      else if (!left) toast(problemText(problem));
      return;
    }
    if (left) return;
    const first = !parts.head;
    const ended = status !== null && page.job.status !== status;
    status = page.job.status;
    const made = { head: headOf(page, load), why: whyOf(page), facts: factsOf(page) };
    if (first) {
      log = new LogView(page.job, page, ahead);
      parts.more = h("div", { class: "columns" });
      element.replaceChildren(made.head, made.why, made.facts, usage.progress, usage.element, log.element, parts.more);
    } else {
      for (const name of Object.keys(made)) made[name] = update(parts[name], made[name]);
    }
    Object.assign(parts, made);
    if (first || ended) {
      const [left_, right] = [h("div"), h("div")];
      parts.more.replaceChildren(left_, right);
      left_.append(...[timelineOf(page), detailsOf(page)].filter(Boolean));
      if (page.job.status === "SUCCEEDED") resultOf(page.job, right);
      filesOf(page.job, right);
    }
    log.set(page.job);
    log.showAttempts(page.attempts);
    if (first || ended) usage.load();
  }

  const forget = jobs.listen((changed) => {
    if (changed === null || changed.has(id)) load();
  });
  const ticking = setInterval(() => {
    const now = parts.head && jobs.byId.get(id);
    if (now?.status === "RUNNING") for (const place of element.querySelectorAll("[data-took]")) place.textContent = duration(took(now));
  }, 1000);
  load();
  return {
    element,
    title: id,
    leave: () => {
      left = true;
      forget();
      clearInterval(ticking);
      log?.close();
      usage.close();
    },
  };
}

export function problemCard(problem) {
  return h("div", {}, h("a", { class: "back", href: "#/jobs" }, "← Jobs"),
    h("div", { class: "headline" }, h("h1", {}, "It cannot be shown")),
    h("section", { class: "card why failed" }, h("div", { class: "body" },
      h("p", { class: "what" }, line(problem.what)),
      problem.why ? h("p", { class: "more" }, escaped(problem.why)) : null,
      problem.next ? commandOf(problem.next) : null)));
}

function commandOf(text) {
  return h("div", { class: "command" }, h("code", { tabindex: 0, role: "textbox", "aria-readonly": "true", "aria-label": "Command" }, line(text)), copyButton(text, "Copy", "the command"));
}

function headOf(page, load) {
  const job = page.job;
  const acts = [];
  if (job.status === "PENDING" || job.status === "RUNNING") {
    acts.push(h("button", { type: "button", class: "danger", click: async (event) => {
      const button = event.currentTarget;
      if (!(await confirmed("Cancel this job?", `${line(job.job_id)} is ended now. Its log and its files are kept.`, "Cancel the job"))) return;
      button.disabled = true;
      button.textContent = "Cancelling …";
      try {
        const told = await post(`${jobPath(job.job_id)}/cancel`);
        toast(told.cancelled ? "The job is cancelled" : line(told.told));
      } catch (problem) {
        toast(problemText(problem));
      }
      load();
    } }, "Cancel job"));
  }
  acts.push(copyButton(`kinetic jobs logs ${job.job_id} --follow`, "Copy log command"));
  const batch = job.group_id ? h("a", { href: `#/batches/${encodeURIComponent(job.group_id)}` }, `input ${job.group_index} of ${line(job.group_id)}`) : null;
  return h("div", {},
    h("a", { class: "back", href: "#/jobs" }, "← Jobs"),
    h("div", { class: "headline" }, h("h1", {}, line(job.function) || "(no name)"), statusPill(job.status), h("div", { class: "acts" }, acts)),
    h("p", { class: "idline" }, h("code", {}, line(job.job_id)), copyButton(job.job_id, "Copy id"), batch));
}

function whyOf(page) {
  const { what, why, phase, next } = page.explanation;
  return h("section", { class: `card why ${statusKind(page.job.status)}`, "aria-label": "Reason" }, h("div", { class: "body" },
    h("p", { class: "what" }, what.startsWith(page.job.function) ? escaped(what) : sentence(what)),
    phase ? h("p", { class: "more" }, `It happened ${line(phase)}.`) : null,
    why ? h("p", { class: "more" }, escaped(why)) : null,
    next ? commandOf(next) : null));
}

function sentence(text) {
  const shown = escaped(text);
  return shown.charAt(0).toUpperCase() + shown.slice(1);
}

// What a job follows, each as a link to its page.
function predecessorsOf(job) {
  if (!job.after || !job.after.length) return null;
  const links = job.after.map((name) => h("a", { href: `#/${name.startsWith("grp-") ? "batches" : "jobs"}/${encodeURIComponent(name)}` }, line(name)));
  return h("span", {}, links.flatMap((link, at) => (at ? [", ", link] : [link])));
}

function factsOf(page) {
  const { job } = page;
  const facts = [
    ["Where", line(job.where)],
    ["Accelerator", line(job.accelerator) + (job.emulation ? ` (${line(job.emulation)})` : "")],
    ["Submitted", moment(job.created_at)],
    ["Started", job.started_at ? moment(job.started_at) : null],
    ["Ended", job.ended_at ? moment(job.ended_at) : null],
    [job.status === "RUNNING" ? "Runs for" : "Duration", took(job) === null ? null : h("span", { "data-took": true }, duration(took(job)))],
    ["Waits for", job.status === "PENDING" ? age(job.created_at) : null],
    ["Follows", predecessorsOf(job)],
    ["Attempt", job.attempt === null ? null : String(job.attempt)],
    ["Cost so far", typeof job.dollars === "number" ? `$${job.dollars.toFixed(2)} (list price)` : null],
    ["Collected", job.collected_at ? moment(job.collected_at) : null],
    ["Removed", !job.collected_at && job.removed_at ? moment(job.removed_at) : null],
  ];
  return h("section", { class: "card", "aria-label": "Facts" }, h("dl", { class: "facts body" },
    facts.filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))));
}

// Phases one below the other, each where it was in time.
function timelineOf(page) {
  const seconds = page.job.phases_seconds || {};
  const names = Object.keys(seconds).sort((a, b) => PHASES.indexOf(a) - PHASES.indexOf(b));
  const whole = names.reduce((sum, name) => sum + Math.max(seconds[name], 0), 0);
  const attempts = page.attempts.length > 1 || (page.attempts.length && !names.length) ? page.attempts : [];
  if (!names.length && !attempts.length) return null;
  let before = 0;
  const phases = names.map((name) => {
    const share = Math.max(seconds[name], 0);
    const bar = h("i");
    bar.style.left = `${(100 * before) / (whole || 1)}%`;
    bar.style.width = `${(100 * share) / (whole || 1)}%`;
    before += share;
    return h("li", {}, h("span", {}, sentence(name)), h("span", { class: "track", "aria-hidden": "true" }, bar), h("span", { class: "right" }, duration(seconds[name])));
  });
  const begun = attempts.map((each) => h("li", {}, h("span", {}, `Attempt ${each.attempt}`), h("span", { class: "soft" }, `on ${line(each.machine)}`),
    h("span", { class: "end" }, "started ", moment(each.started_at), each.ended_at ? [", ended ", moment(each.ended_at)] : null)));
  return card("Timeline", h("div", { class: "body" },
    phases.length ? h("ol", { class: "phases" }, phases) : null,
    begun.length ? h("ol", { class: `list${phases.length ? " preview" : ""}` }, begun) : null));
}

// Names only: values are pickled, and nothing is opened to show them.
function argumentsOf(page) {
  if (!page.arguments_bytes) return null;
  const { positional, keywords } = page.arguments || { positional: 0, keywords: [] };
  const names = [positional ? many(positional, "positional argument") : null, ...keywords.map(line)].filter(Boolean);
  return `${names.length ? `${names.join(", ")}; ` : page.arguments ? "none; " : ""}${size(page.arguments_bytes)} pickled`;
}

function detailsOf(page) {
  const { job, environment, fingerprint } = page;
  const lock = job.lock;
  const packages = lock ? Object.entries(lock.packages) : [];
  const rows = [
    ["Environment variables", environment?.length ? environment.map(line).join(", ") : null],
    ["Arguments", argumentsOf(page)],
    ["Data", page.data.length ? page.data.map(line).join(", ") : null],
    ["Python", fingerprint.python ? line(fingerprint.python) : null],
    ["Image", job.image_uri ? h("code", {}, line(job.image_uri)) : null],
    ["Packages", lock ? `${many(packages.length, "package")}, for ${line(lock.platform)}` : null],
    ["Deadline", page.deadline_seconds ? duration(page.deadline_seconds) : null],
    ["Hosts", page.hosts > 1 ? String(page.hosts) : null],
    ["Store", job.store ? h("code", {}, line(job.store)) : null],
    ["Files left behind", job.files_left?.length ? job.files_left.map(line).join(", ") : null],
  ].filter(([, value]) => value);
  if (!rows.length) return null;
  const body = h("div", { class: "body" }, h("ul", { class: "list" }, rows.map(([name, value]) => h("li", {}, h("span", { class: "soft" }, name), h("span", {}, value)))));
  if (packages.length) {
    const text = h("pre", { class: "text preview", tabindex: 0, hidden: true, role: "group", "aria-label": "Packages" }, packages.map(([name, version]) => `${line(name)} ${line(version)}`).join("\n"));
    body.append(h("button", { type: "button", class: "quiet", click: () => { text.hidden = !text.hidden; } }, "Show the lock"), text);
  }
  return card("Details", body);
}

async function resultOf(job, place) {
  let page;
  try {
    page = await get(`${jobPath(job.job_id)}/result`);
  } catch (problem) {
    page = { left_out: problem.what };
  }
  const text = page.left_out ? null : "value" in page ? (typeof page.value === "string" ? page.value : JSON.stringify(page.value, null, 2)) : page.repr;
  const body = h("div", { class: "body" },
    page.left_out ? h("p", { class: "soft" }, `It is not shown: ${line(page.left_out)}`) : h("pre", { class: "text", tabindex: 0, role: "group", "aria-label": "Value" }, escapedText(text)));
  place.prepend(card("Result", body, h("span", { class: "soft" }, line(page.type || page.value_type || ""))));
}

const escapedText = (text) => String(text).split("\n").map(escaped).join("\n");

async function filesOf(job, place) {
  let page;
  try {
    page = await get(`${jobPath(job.job_id)}/files`);
  } catch {
    return; // no folder: nothing to show
  }
  if (!page.files) return;
  const preview = h("div", { class: "preview", hidden: true, "aria-live": "polite" });
  const entries = page.entries.map((entry) => h("li", {},
    h("button", { type: "button", class: "link mono", click: () => showFile(job, entry, preview) }, line(entry.path)),
    h("span", { class: "end" }, size(entry.size_bytes))));
  const more = page.files > page.entries.length ? h("p", { class: "soft" }, `and ${many(page.files - page.entries.length, "more file", "more files")}`) : null;
  place.append(card("Files", h("div", { class: "body" }, h("ul", { class: "list" }, entries), more, preview),
    h("span", { class: "soft" }, `${many(page.files, "file")}, ${size(page.size_bytes)}`), copyButton(`kinetic outputs get ${job.job_id}`, "Copy download command")));
}

async function showFile(job, entry, place) {
  const path = `${jobPath(job.job_id)}/file?path=${encodeURIComponent(entry.path)}`;
  const name = h("p", {}, h("b", {}, line(entry.path)));
  place.hidden = false;
  if (IMAGES.test(entry.path)) {
    place.replaceChildren(name, h("img", { src: address(path), alt: `Preview of ${line(entry.path)}` }));
    return;
  }
  try {
    if (entry.size_bytes > 16_000_000) throw { what: `it has ${size(entry.size_bytes)}; copy it with the command above` };
    const found = await bytes(path);
    let text = await found.text();
    if (!TEXTS.test(entry.path) && text.slice(0, 4000).includes("\u0000")) throw { what: "it is not a text" };
    if (/\.json$/i.test(entry.path)) try { text = JSON.stringify(JSON.parse(text), null, 2); } catch { /* as it is */ }
    const cut = text.length > PREVIEW;
    place.replaceChildren(name, h("pre", { class: "text", tabindex: 0, role: "group", "aria-label": line(entry.path) }, escapedText(cut ? text.slice(0, PREVIEW) : text)), cut ? h("p", { class: "soft" }, "The rest is left out.") : "");
  } catch (problem) {
    place.replaceChildren(name, h("p", { class: "soft" }, `No preview: ${line(problem.what || String(problem))}`));
  }
}
