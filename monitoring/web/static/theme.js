// Before the first paint: the chosen theme, so that no white page flashes in a dark room.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("gpupool-theme");
  } catch {
    // Storage may be forbidden; then the system's preference holds.
  }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = chosen || (dark ? "dark" : "light");
})();
