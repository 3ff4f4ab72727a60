/* The theme wraps wide tables into a region that scrolls. Make it reachable by the keyboard. */
new MutationObserver(() => {
  for (const region of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) region.tabIndex = 0
}).observe(document.body, { childList: true, subtree: true })
