// Requests to the dashboard's own server, and the jobs that it knows, kept up to date by its events.

const API = "api/v1";

export class Problem extends Error {
  constructor(error) {
    super(error.what);
    Object.assign(this, error);
  }
}

export async function get(path) {
  return answer(await reach(`${API}${path}`));
}

export async function post(path) {
  return answer(await reach(`${API}${path}`, { method: "POST" }));
}

export async function bytes(path) {
  const found = await reach(`${API}${path}`);
  if (!found.ok) await answer(found);
  return found;
}

export const address = (path) => `${API}${path}`;
export const jobPath = (id) => `/jobs/${encodeURIComponent(id)}`;
export const batchPath = (id) => `/batches/${encodeURIComponent(id)}`;

async function reach(url, options) {
  try {
    return await fetch(url, options);
  } catch {
    throw new Problem({ code: "away", what: "the dashboard does not answer", why: "its command may have ended", next: "kinetic dashboard" });
  }
}

async function answer(found) {
  const text = await found.text();
  let page;
  try { page = JSON.parse(text); } catch { page = { error: { code: "http", what: text.trim() || `HTTP ${found.status}` } }; }
  if (page.error) throw new Problem(page.error);
  return page;
}

// All jobs, newest first. Listeners are called with the set of ids that changed.
class Jobs {
  constructor() {
    this.list = [];
    this.byId = new Map();
    this.problems = [];
    this.places = [];
    this.version = -1;
    this.state = "connecting";
    this.looking = []; // places that were not seen yet
    this.loaded = false;
    this.listeners = new Set();
    this.again = 0; // the timer after which the list is asked for again
    this.stream = null; // the name of the stream of events, with which a page asks for the usage of its job
    this.onUsage = null; // of the page of a job: takes what it used, and null where a new stream must be asked for it
  }

  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  tell(changed) {
    for (const listener of [...this.listeners]) listener(changed);
  }

  // Streams of hidden pages would use up the few connections that a browser makes to one server.
  start() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.connect()));
    this.load(); // at the same time as the stream is opened: its first event says whether something changed in between
    this.connect();
  }

  pause() {
    this.source?.close();
    this.source = null;
  }

  connect() {
    if (this.source || document.hidden) return;
    const source = (this.source = new EventSource(address("/events")));
    source.onmessage = (message) => {
      const event = JSON.parse(message.data);
      if (event.usage) this.onUsage?.(event);
      else if (event.first) this.begin(event);
      else if (this.waiting) this.waiting.push(event);
      else this.apply(event);
    };
    source.onerror = () => {
      this.state = "away";
      if (!this.again) this.load(); // a stream does not tell why: what the list answers is shown
      if (source.readyState === EventSource.CLOSED) {
        this.source = null;
        setTimeout(() => this.connect(), 2000);
      }
      this.tell(new Set());
    };
  }

  // The first event of a stream has the version that the server knows.
  async begin(event) {
    this.stream = event.stream;
    this.onUsage?.(null);
    await this.loading;
    if (!this.loaded || event.version !== this.version) await this.load();
    else {
      this.state = "live";
      this.problems = event.problems;
    }
    this.tell(new Set());
  }

  load() {
    this.loading = this.read();
    return this.loading;
  }

  async read() {
    this.waiting = [];
    try {
      const page = await get("/jobs");
      this.list = page.jobs;
      this.byId = new Map(page.jobs.map((job) => [job.job_id, job]));
      this.problems = page.problems;
      this.looking = page.looking;
      this.places = page.places;
      this.version = page.version;
      if (this.source?.readyState === EventSource.OPEN) this.state = "live";
      this.loaded = true;
      const waiting = this.waiting || [];
      this.waiting = null;
      this.tell(null);
      waiting.forEach((event) => this.apply(event));
    } catch (problem) {
      this.state = "away";
      this.problems = [problem];
      this.tell(new Set());
      this.again ||= setTimeout(() => {
        this.again = 0;
        if (this.state !== "live" && !document.hidden) this.load();
      }, 2000);
    }
  }

  apply(event) {
    if (event.version <= this.version) return;
    this.version = event.version;
    this.problems = event.problems;
    this.looking = event.looking;
    const ids = new Set(event.gone);
    let sorted = true;
    for (const job of event.changed) {
      ids.add(job.job_id);
      if (!this.byId.has(job.job_id)) sorted = false;
      this.byId.set(job.job_id, job);
    }
    for (const id of event.gone) this.byId.delete(id);
    if (!sorted || event.gone.length) {
      const before = new Map(this.list.map((job, index) => [job.job_id, index]));
      this.list = [...this.byId.values()].sort((a, b) => (a.created_at < b.created_at ? 1 : a.created_at > b.created_at ? -1 : (before.get(a.job_id) ?? -1) - (before.get(b.job_id) ?? -1)));
    } else {
      this.list = this.list.map((job) => this.byId.get(job.job_id));
    }
    this.tell(ids);
  }
}

export const jobs = new Jobs();
