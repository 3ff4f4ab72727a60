/* The theme wraps wide tables into a region that scrolls. Make it reachable by the keyboard. */
new MutationObserver(() => {
  for (const region of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) region.tabIndex = 0
}).observe(document.body, { childList: true, subtree: true })
// A long name of a variable breaks behind its underscores, and elsewhere only if that is not enough.
for (const code of document.querySelectorAll("td code")) {
  if (code.children.length || !code.textContent.includes("_")) continue
  const parts = code.textContent.split(/(?<=_)(?!_|$)/)
  code.replaceChildren(...parts.flatMap((part, index) => (index ? [document.createElement("wbr"), part] : [part])))
}
