// Elements and texts. All text of jobs goes through text nodes: nothing is ever read as HTML.

// Makes an element: h("a", {class: "name", href: "#/jobs"}, "text", child). A function becomes a listener.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  return fill(element, attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// Brings an element up to date and returns what is shown. Parts that did not change stay as they are, with a selection of
// text in them, an open list, and a click that has begun.
export function update(shown, made) {
  if (shown.isEqualNode(made)) return shown;
  const [before, after] = [[...shown.childNodes], [...made.childNodes]];
  const isAlike = shown.cloneNode(false).isEqualNode(made.cloneNode(false)) && before.length === after.length && [...before, ...after].every((node) => node.nodeType === Node.ELEMENT_NODE);
  if (!isAlike) {
    shown.replaceWith(made);
    return made;
  }
  after.forEach((each, index) => update(before[index], each));
  return shown;
}

// Marks that reverse text, and controls, are shown as what they are: a name must not look like another one.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]/gu;

export function escaped(text) {
  return String(text).replace(HIDDEN, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export const line = (text) => escaped(String(text ?? "").replace(/\s+/g, " "));

const WORDS = { PENDING: "Pending", RUNNING: "Running", SUCCEEDED: "Succeeded", FAILED: "Failed", CANCELLED: "Cancelled", NOT_FOUND: "Removed" };
export const statusWord = (status) => WORDS[status] || line(status);
export const statusKind = (status) => (["PENDING", "RUNNING", "SUCCEEDED", "FAILED"].includes(status) ? status.toLowerCase() : "other");
export const statusPill = (status) => h("span", { class: `status ${statusKind(status)}` }, statusWord(status));

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const s = Math.max(seconds, 0);
  if (s < 0.001) return "< 1 ms";
  if (s < 1) return `${(s * 1000).toFixed(0)} ms`;
  if (s < 60) return `${s.toFixed(1)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(Math.floor(s % 60)).padStart(2, "0")} s`;
  return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
}

export function age(written) {
  const s = Math.max((Date.now() - Date.parse(written)) / 1000, 0);
  if (!Number.isFinite(s)) return "";
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

export function moment(written) {
  const when = new Date(written);
  if (Number.isNaN(when.getTime())) return line(written);
  const two = (number) => String(number).padStart(2, "0");
  const day = `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())}`;
  const text = `${day} ${two(when.getHours())}:${two(when.getMinutes())}:${two(when.getSeconds())}`;
  return h("time", { datetime: written, title: written }, text);
}

export function size(bytes) {
  for (const [unit, count] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (bytes >= count) return `${(bytes / count).toFixed(1)} ${unit}`;
  return bytes === 1 ? "1 byte" : `${bytes} bytes`;
}

export const many = (count, noun, plural = `${noun}s`) => `${count.toLocaleString("en-US")} ${count === 1 ? noun : plural}`;

// How long a job took, or takes until now.
export function took(job) {
  if (job.status === "RUNNING" && job.started_at) return (Date.now() - Date.parse(job.started_at)) / 1000;
  return job.duration_seconds;
}

let hiding = 0;
export function toast(text) {
  const element = document.getElementById("toast");
  element.textContent = text;
  element.classList.add("on");
  clearTimeout(hiding);
  hiding = setTimeout(() => element.classList.remove("on"), 4000 + 40 * text.length);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch {
    toast(`Copy it by hand:\n${text}`);
  }
}

export const copyButton = (text, label = "Copy", of = "") => h("button", { type: "button", class: "quiet", "aria-label": of ? `${label} ${of}` : null, click: () => copy(text) }, label);

// Asks before something is ended. Resolves to whether it was confirmed.
export function confirmed(question, consequence, verb) {
  return new Promise((resolve) => {
    const yes = h("button", { type: "button", class: "main danger" }, verb);
    const no = h("button", { type: "button" }, "Keep it");
    const heading = h("h2", { id: "question" }, question);
    const dialog = h("dialog", { "aria-labelledby": "question" }, heading, h("p", {}, consequence), h("div", { class: "acts" }, no, yes));
    let answer = false;
    yes.addEventListener("click", () => { answer = true; dialog.close(); });
    no.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => { dialog.remove(); resolve(answer); });
    document.body.append(dialog);
    dialog.showModal();
    no.focus();
  });
}

export function card(title, body, ...tools) {
  const heading = h("h2", {}, title);
  return h("section", { class: "card", "aria-label": title }, h("div", { class: "cap" }, heading, ...tools), body);
}

export const problemText = (problem) => [problem.what, problem.why].filter(Boolean).map(line).join(": ");
