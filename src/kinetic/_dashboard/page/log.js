// The log of a job: its end first, the rest on demand, what is added while it grows, and a search through all of it.
import { address, bytes, get, jobPath } from "./api.js";
import { plain, write } from "./ansi.js";
import { joined, MOST_OF_A_LINE, Rows } from "./rows.js";
import { card, copyButton, h, line, many, problemText, size } from "./dom.js";

const PART = 128 << 10; // bytes that are fetched at once
const BLOCK = 100; // lines of one element, all of which are dropped at once
const MOST_LINES = 6_000; // in the page; what is dropped is fetched again on demand
const LONG = 2000; // characters of a line that are shown at once
const FILLING = 24; // parts that are fetched to fill the view, where a line is longer than a part: 20 MB
const LARGEST = 1 << 20; // bytes of one of these
const NEAR = 300; // pixels from an end at which more is fetched

// Asks for the end of a log before anything else of the job is known. Resolves to null where that fails.
export const logAhead = (id) => bytes(`${jobPath(id)}/log?${new URLSearchParams({ host: 0, start: -PART, length: PART })}`).catch(() => null);

export class LogView {
  constructor(job, page, ahead) {
    this.job = job;
    this.ahead = ahead;
    this.attempt = null;
    this.host = 0;
    this.from = this.to = this.size = 0; // the bytes that are shown, of how many
    this.part = PART; // bytes that are fetched next
    this.lines = 0;
    this.words = "";
    this.matches = [];
    this.at = -1;
    this.busy = false;
    this.turn = 0; // what an earlier one fetched is not for the lines that are shown now
    this.closed = false;
    this.view = h("div", { class: "log", tabindex: 0, role: "group", "aria-label": "Lines of the log" });
    this.top = h("div", { class: "edge", hidden: true }, "Earlier lines are loaded when you scroll up.");
    this.lineBlocks = h("div");
    this.bottom = h("div", { class: "edge", hidden: true });
    this.view.append(this.top, this.lineBlocks, this.bottom);
    this.note = h("span", { class: "soft", role: "status" });
    this.count = h("span", { class: "count", role: "status" });
    this.input = h("input", { type: "search", placeholder: "Find in the log", "aria-label": "Find in the log" });
    const previous = h("button", { type: "button", class: "quiet", "aria-label": "Previous match", click: () => this.step(-1) }, "↑");
    const next = h("button", { type: "button", class: "quiet", "aria-label": "Next match", click: () => this.step(1) }, "↓");
    const find = h("div", { class: "find" }, this.input, this.count, previous, next);
    this.toEnd = h("button", { type: "button", class: "quiet", click: () => this.open(-PART) }, "To the end");
    this.attempts = h("span", { hidden: true });
    this.showAttempts(page.attempts);
    const hosts = page.hosts > 1 ? this.choice("Host", [...Array(page.hosts).keys()], 0, (value) => { this.host = value; }) : null;
    this.element = card("Log", this.view, this.note, this.attempts, hosts, find, this.toEnd, copyButton(`kinetic jobs logs ${job.job_id}`, "Copy", "the log command"));
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        event.preventDefault();
        if (this.input.value !== this.words) this.search(this.input.value);
        else this.step(event.shiftKey ? -1 : 1);
      } else if (event.key === "Escape") {
        this.input.value = "";
        this.search("");
      }
    });
    this.input.addEventListener("search", () => { if (!this.input.value && this.words) this.search(""); });
    this.view.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.onVisibility = () => (document.hidden ? this.stop() : this.opened.then(() => this.more()));
    document.addEventListener("visibilitychange", this.onVisibility); // as in api.js: a hidden page must hold no stream
    this.opened = this.open(-PART);
  }

  choice(name, values, value, take) {
    const select = h("select", { "aria-label": name, change: () => {
      take(Number(select.value));
      this.open(-PART);
    } }, values.map((each) => h("option", { value: each, selected: each === value }, `${name} ${each}`)));
    return select;
  }

  // A job that is tried again gets a choice of its attempts while the page is open.
  showAttempts(attempts) {
    if (attempts.length < 2 || attempts.length === this.attempts.querySelectorAll("option").length) return;
    const numbers = attempts.map((each) => each.attempt);
    this.attempts.hidden = false;
    this.attempts.replaceChildren(this.choice("Attempt", numbers, this.attempt ?? numbers.at(-1), (value) => { this.attempt = value; }));
  }

  query(more) {
    const asked = new URLSearchParams({ host: this.host, ...more });
    if (this.attempt !== null) asked.set("attempt", this.attempt);
    return asked;
  }

  // Called whenever the job was looked at again.
  set(job) {
    const began = this.job.status !== "RUNNING" && job.status === "RUNNING";
    const ended = this.isActive() && job.status !== "RUNNING" && job.status !== "PENDING";
    this.job = job;
    if (began || (ended && !this.source && this.to >= this.size)) this.opened.then(() => (this.size ? this.more() : this.open(-PART)));
  }

  isActive() {
    return this.job.status === "RUNNING" || this.job.status === "PENDING";
  }

  close() {
    this.closed = true;
    document.removeEventListener("visibilitychange", this.onVisibility);
    this.stop();
  }

  stop() {
    this.source?.close();
    this.source = null;
    this.isBehind = false; // whether what is added is not shown: it would drop lines that are read, far above the end
  }

  async fetch(start, length) {
    const ahead = start === -PART ? this.ahead : null;
    this.ahead = null;
    const found = (await ahead) || (await bytes(`${jobPath(this.job.job_id)}/log?${this.query({ start, length })}`));
    this.isChanged = found.headers.get("x-log-changed") === "1";
    const [begin, whole] = ["x-log-start", "x-log-size"].map((name) => Number(found.headers.get(name)));
    return { data: new Uint8Array(await found.arrayBuffer()), start: begin, whole };
  }

  // Shows the log from a position on, or its end. Half a line at the beginning is left out.
  async open(start, target = null) {
    this.stop();
    const turn = ++this.turn;
    this.busy = true;
    try {
      let { data, start: begin, whole } = await this.fetch(start, PART);
      if (turn !== this.turn) return;
      this.busy = false;
      this.size = whole;
      if (begin > 0 && target === null) {
        const cut = beginOf(data);
        data = data.subarray(cut);
        begin += cut;
      }
      this.lineBlocks.replaceChildren();
      this.lines = 0;
      this.part = PART;
      this.rows = new Rows();
      this.isWhole = !this.isActive(); // nothing will be added
      this.from = this.to = begin;
      this.append(data);
      if (target === null && start < 0) this.view.scrollTop = this.view.scrollHeight;
      else this.view.scrollTop = 0;
      this.describe();
      if (this.to >= this.size && !this.closed) this.follow();
      for (let parts = 0; parts < FILLING && turn === this.turn && !this.closed && this.view.scrollHeight <= this.view.clientHeight; parts++) {
        const isBefore = this.from > 0 && (target === null || this.to >= this.size);
        if (!(isBefore ? await this.earlier() : this.to < this.size && (await this.later()))) break;
      }
    } catch (problem) {
      if (turn !== this.turn) return;
      this.busy = false;
      this.note.textContent = problemText(problem);
    }
  }

  describe() {
    this.top.hidden = this.from === 0;
    const left = this.size - this.to;
    this.bottom.hidden = left <= 0 && this.size > 0;
    this.bottom.textContent = left > 0 ? `${size(left)} more below.` : this.isActive() ? "It has printed nothing yet." : "It printed nothing.";
    this.toEnd.hidden = left <= 0;
    const about = this.size ? size(this.size) : "";
    this.note.textContent = this.isChanged ? `${about} — it was changed after the job ended` : this.source ? `${about}, following` : about;
  }

  // Appends bytes, whole lines at once; each line knows where it begins. What comes next begins with a whole character.
  append(data, length = null) {
    const half = length === null && (this.isActive() || this.to + data.length < this.size) ? halfCharacter(data) : 0;
    if (half && this.to + data.length >= this.size) this.size -= half; // the rest of it is not written yet
    data = data.subarray(0, data.length - half);
    const changed = new Set();
    for (const each of splitBytes(data, this.to)) {
      this.rows.take(each, changed);
      if (changed.size > BLOCK) this.show(changed);
    }
    this.to += length ?? data.length;
    this.show(changed);
  }

  // Brings rows that changed into the page.
  show(changed) {
    for (const row of changed) {
      if (row.element) {
        this.redraw(row.element, row);
        continue;
      }
      let block = this.lineBlocks.lastElementChild;
      if (!block || block.childElementCount >= BLOCK) this.lineBlocks.append((block = h("div", { class: "block" })));
      row.element = this.lineElement(row);
      block.append(row.element);
      this.lines++;
    }
    changed.clear();
    while (this.lines > MOST_LINES) {
      const block = this.lineBlocks.firstElementChild;
      const next = block.nextElementSibling;
      this.lines -= block.childElementCount;
      this.from = next.firstElementChild.kineticStart;
      block.remove();
    }
  }

  lineElement(each) {
    const element = h("div", { class: "line" });
    element.kineticStart = each.start;
    this.redraw(element, each);
    return element;
  }

  redraw(element, { text, left }) {
    element.kineticText = text;
    element.kineticLeft = left;
    const length = text.length + left;
    element.replaceChildren();
    this.style ??= plain();
    if (!text.includes("\u001b")) {
      write(element, text.length > LONG ? text.slice(0, LONG) : text, { ...this.style });
    } else write(element, text.length > LONG ? text.slice(0, LONG) : text, this.style);
    if (text.length > LONG) {
      element.append(" ", h("button", { type: "button", class: "link", click: () => {
        element.replaceChildren();
        write(element, text.slice(0, MOST_OF_A_LINE), plain());
        if (length > MOST_OF_A_LINE) element.append(h("span", { class: "soft" }, ` … and ${many(length - MOST_OF_A_LINE, "more character", "more characters")}`));
      } }, `show all ${length.toLocaleString("en-US")} characters`));
    }
    if (this.words) markIn(element, this.words);
  }

  async scrolled() {
    if (this.busy) return;
    for (let parts = 0; parts < FILLING && !this.closed; parts++) { // inside of a long line, a part does not move the view
      const isNearEnd = this.view.scrollHeight - this.view.scrollTop - this.view.clientHeight < NEAR;
      const isBefore = this.from > 0 && this.view.scrollTop < NEAR;
      if (!(isBefore ? await this.earlier() : this.to < this.size && isNearEnd && (await this.later()))) return;
    }
  }

  // Both return whether that went well.
  async earlier() {
    const turn = this.turn;
    this.busy = true;
    try {
      const want = Math.max(this.from - this.part, 0);
      let { data, start } = await this.fetch(want, this.from - want); // its length is the stream's to tell
      if (turn !== this.turn) return false;
      this.fit(data);
      const cut = start > 0 ? beginOf(data) : 0;
      data = data.subarray(cut);
      start += cut;
      const before = this.view.scrollHeight;
      const blocks = [];
      const lines = splitBytes(data, start);
      const first = this.lineBlocks.querySelector(".line");
      if (first && lines.length && !lines.at(-1).whole) { // the beginning of a line whose end is here already
        const { text: begin, start: begins } = lines.pop();
        const [text, left] = joined(begin, first.kineticLeft, first.kineticText);
        first.kineticStart = begins;
        this.redraw(first, { text, left });
      }
      const rows = new Rows();
      const changed = new Set(); // in the order in which they begin
      for (const each of lines) rows.take(each, changed);
      for (const each of changed) {
        if (!blocks.length || blocks.at(-1).childElementCount >= BLOCK) blocks.push(h("div", { class: "block" }));
        blocks.at(-1).append(this.lineElement(each));
        this.lines++;
      }
      this.from = start;
      this.top.hidden = start === 0;
      this.lineBlocks.prepend(...blocks);
      this.view.scrollTop += this.view.scrollHeight - before;
      return true;
    } catch (problem) {
      if (turn === this.turn) this.note.textContent = problemText(problem);
      return false;
    } finally {
      if (turn === this.turn) this.busy = false;
    }
  }

  // Inside of a line that is longer than a part, the next part is larger.
  fit(data) {
    this.part = data.includes(10) ? PART : Math.min(2 * this.part, LARGEST);
  }

  async later() {
    const turn = this.turn;
    this.busy = true;
    try {
      const { data, whole } = await this.fetch(this.to, this.part);
      if (turn !== this.turn) return false;
      this.size = whole;
      this.fit(data);
      this.append(data);
      if (this.to >= this.size) {
        if (this.isBehind) this.stop();
        this.follow();
      }
      this.describe();
      return true;
    } catch (problem) {
      if (turn === this.turn) this.note.textContent = problemText(problem);
      return false;
    } finally {
      if (turn === this.turn) this.busy = false;
    }
  }

  // Reads what is added. The stream begins where the page ends, so no line comes twice.
  follow() {
    if (this.source || this.closed || document.hidden || !this.isActive()) return;
    const source = (this.source = new EventSource(address(`${jobPath(this.job.job_id)}/log/follow?${this.query({ start: this.to })}`)));
    const encoder = new TextEncoder();
    source.onmessage = (message) => {
      const event = JSON.parse(message.data);
      if (event.text !== undefined) {
        const wasAtEnd = this.isAtEnd();
        this.size += event.bytes;
        this.isBehind ||= !wasAtEnd && this.lines + event.text.split("\n").length > MOST_LINES;
        if (!this.isBehind) this.append(encoder.encode(event.text), event.bytes);
        if (wasAtEnd) this.view.scrollTop = this.view.scrollHeight;
        this.describe();
      } else if (event.attempt !== undefined) {
        this.attempt = null;
        this.open(-PART);
      } else {
        this.stop();
        this.isWhole = !event.problem;
        if (event.problem) this.note.textContent = line(event.problem);
        else this.describe();
      }
    };
    source.onerror = () => {
      if (this.source !== source) return;
      this.stop(); // the browser would ask for what is shown already
      setTimeout(() => this.more(), 2000);
    };
    this.describe();
  }

  // Continues after the stream broke off. Of a job that has ended, what it printed meanwhile is there at once.
  async more() {
    if (this.source || this.closed || document.hidden || this.to < this.size) return;
    if (this.busy) return void setTimeout(() => this.more(), 2000); // earlier lines are on their way
    if (this.isActive()) return void this.follow();
    if (this.isWhole) return;
    const wasAtEnd = this.isAtEnd();
    this.isWhole = await this.later();
    if (wasAtEnd) this.view.scrollTop = this.view.scrollHeight;
  }

  isAtEnd() {
    return this.view.scrollHeight - this.view.scrollTop - this.view.clientHeight < 40;
  }

  // --------------------------------------------------------------------------------------------------------- search

  async search(words) {
    this.words = words;
    this.matches = [];
    this.at = -1;
    for (const element of this.lineBlocks.querySelectorAll(".line")) {
      for (const mark of element.querySelectorAll("mark")) mark.replaceWith(...mark.childNodes);
      element.classList.remove("at");
      element.normalize();
      if (words) markIn(element, words);
    }
    this.count.textContent = "";
    if (!words) return;
    let next = 0;
    while (next !== null && this.words === words && !this.closed && this.matches.length < 10_000) {
      let page;
      try {
        page = await get(`${jobPath(this.job.job_id)}/log/search?${this.query({ words, start: next })}`);
      } catch (problem) {
        this.count.textContent = problemText(problem);
        return;
      }
      if (this.words !== words) return;
      const first = !this.matches.length;
      this.matches.push(...page.matches);
      next = page.next;
      if (first && this.matches.length) this.step(1);
      else this.tellCount(next !== null);
    }
    this.tellCount(false);
  }

  tellCount(more) {
    const count = `${this.matches.length.toLocaleString("en-US")}${more ? "+" : ""}`;
    this.count.textContent = this.matches.length ? `${this.at + 1} of ${count}` : more ? "…" : "no match";
  }

  async step(by) {
    if (this.input.value !== this.words) return void this.search(this.input.value);
    if (!this.matches.length) return;
    this.at = (this.at + by + this.matches.length) % this.matches.length;
    this.tellCount(false);
    const position = this.matches[this.at].start;
    let element = this.lineAt(position);
    if (!element) {
      await this.open(position, position);
      element = this.lineAt(position);
    }
    for (const other of this.lineBlocks.querySelectorAll(".line.at")) other.classList.remove("at");
    if (!element) return;
    element.classList.add("at");
    const shift = element.getBoundingClientRect().top - this.view.getBoundingClientRect().top - this.view.clientHeight / 3;
    this.view.scrollTop += shift;
  }

  lineAt(position) {
    if (position < this.from || position >= this.to) return null;
    let found = null;
    for (const block of this.lineBlocks.children) {
      if (block.firstElementChild.kineticStart > position) break;
      for (const element of block.children) if (element.kineticStart <= position) found = element;
    }
    return found;
  }
}

// Where the first whole line begins, or, of a line that is longer than the data, the first whole character.
function beginOf(data) {
  const cut = data.indexOf(10) + 1;
  if (cut && cut < data.length) return cut;
  let begin = 0;
  while (begin < 3 && (data[begin] & 0xc0) === 0x80) begin++;
  return begin;
}

// How many bytes at the end are the beginning of a character of UTF-8 whose rest is missing.
function halfCharacter(data) {
  for (let count = 1; count <= Math.min(3, data.length - 1); count++) {
    const byte = data[data.length - count];
    if ((byte & 0xc0) === 0x80) continue;
    return byte >= (count === 1 ? 0xc0 : count === 2 ? 0xe0 : 0xf0) ? count : 0;
  }
  return 0;
}

function splitBytes(data, start) {
  const decoder = new TextDecoder();
  const found = [];
  let at = 0;
  while (at < data.length) {
    let end = data.indexOf(10, at);
    const whole = end >= 0;
    if (!whole) end = data.length;
    found.push({ start: start + at, text: decoder.decode(data.subarray(at, end)), whole });
    at = end + 1;
  }
  return found;
}

// Marks words in the text below an element, whatever their case.
function markIn(element, words) {
  const wanted = words.toLowerCase();
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  for (const node of nodes) {
    if (node.parentElement.closest("button")) continue;
    const text = node.data.toLowerCase();
    const parts = [];
    let at = 0;
    for (let found = text.indexOf(wanted); found >= 0; found = text.indexOf(wanted, at)) {
      parts.push(node.data.slice(at, found), h("mark", {}, node.data.slice(found, found + wanted.length)));
      at = found + wanted.length;
    }
    if (parts.length) node.replaceWith(...parts, node.data.slice(at));
  }
}
