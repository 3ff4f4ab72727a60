// Sets the colors before anything is drawn. "auto" follows the system.
(() => {
  let chosen = "auto";
  try { chosen = localStorage.getItem("kinetic-theme") || "auto"; } catch { /* storage may be off */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
