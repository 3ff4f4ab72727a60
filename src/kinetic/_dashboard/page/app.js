// Chooses the page by the address, and keeps what all pages have: the navigation, the colors, what is wrong.
import { jobs } from "./api.js";
import { h, line } from "./dom.js";
import { jobsPage } from "./jobs.js";
import { jobPage } from "./job.js";
import { batchesPage, batchPage } from "./batches.js";

// The token did its work: a cookie has it now, and it must not stay in the history of the browser.
if (location.search) history.replaceState(null, "", location.pathname + location.hash);

const main = document.getElementById("main");
let leave = () => {};
let first = true;

function show() {
  leave();
  const [, page = "jobs", id = ""] = location.hash.split("/");
  const name = decodeURIComponent(id);
  const made = page === "batches" ? (name ? batchPage(name) : batchesPage()) : name ? jobPage(name) : jobsPage();
  main.replaceChildren(made.element);
  leave = made.leave || (() => {});
  document.title = `${line(made.title)} · kinetic`;
  for (const link of document.querySelectorAll("nav [data-page]")) {
    if (link.dataset.page === (page === "batches" ? "batches" : "jobs")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  made.shown?.();
  if (!first) {
    window.scrollTo(0, made.scroll || 0);
    main.focus({ preventScroll: true });
  }
  first = false;
}

function showState() {
  const live = document.getElementById("live");
  const words = { live: "Live", connecting: "Connecting", away: "Not connected" }[jobs.state];
  if (live.textContent !== words) live.textContent = words;
  live.classList.toggle("on", jobs.state === "live");
  const shown = jobs.problems.map((problem) => h("div", { class: "problem" },
    h("b", {}, line(problem.place || "Dashboard")), h("span", {}, line(problem.what)),
    problem.why ? h("span", { class: "soft" }, line(problem.why)) : null,
    problem.next ? h("code", {}, line(problem.next)) : null));
  const place = document.getElementById("problems");
  if (place.textContent !== shown.map((each) => each.textContent).join("")) place.replaceChildren(...shown);
}

const THEMES = ["auto", "light", "dark"];
const button = document.getElementById("theme");
let theme = document.documentElement.dataset.theme || "auto";
function showTheme() {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  button.textContent = `◐ ${{ auto: "Auto", light: "Light", dark: "Dark" }[theme]}`;
  button.setAttribute("aria-label", `Colors: ${theme}`);
}
button.addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  try { localStorage.setItem("kinetic-theme", theme); } catch { /* it lasts until the page is closed */ }
  showTheme();
});
showTheme();

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
document.addEventListener("keydown", (event) => {
  const target = event.target;
  if (event.key === "/" && !event.ctrlKey && !event.metaKey && !/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) {
    const field = main.querySelector("input[type=search]");
    if (field) {
      event.preventDefault();
      field.focus();
      field.select();
    }
  }
});
window.addEventListener("hashchange", show);
jobs.listen(showState);
jobs.start();
show();
showState();
