// Runs before the first paint: the reader's theme, so that no page flashes white in the dark.
const dark = matchMedia("(prefers-color-scheme: dark)");

function wished() {
  try {
    return localStorage.getItem("theme") || "auto";
  } catch {
    return "auto"; // storage may be forbidden
  }
}

function apply() {
  const theme = wished();
  document.documentElement.dataset.bsTheme = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
  document.documentElement.dataset.theme = theme;
  document.dispatchEvent(new CustomEvent("dockyard:theme"));
}

dark.addEventListener("change", apply);
addEventListener("storage", apply);
document.addEventListener("dockyard:set-theme", (event) => {
  try {
    localStorage.setItem("theme", event.detail);
  } catch {
    // the choice then holds for this page only
  }
  apply();
});
apply();
