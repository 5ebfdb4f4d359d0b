// The charts beside the log, where the window is wide enough for both. What was chosen last is kept in the browser.
const KEY = "dockyard.charts-beside-log";

/** `shown()` is called whenever the charts may have come into sight. */
export function startSplit(shown) {
  const button = document.getElementById("log-split");
  const page = document.querySelector(".job-page");
  const set = (on) => {
    button.setAttribute("aria-pressed", String(on));
    page.classList.toggle("is-split", on);
    if (on) shown();
  };
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    localStorage.setItem(KEY, on ? "1" : "");
    set(on);
  });
  document.getElementById("tab-log").addEventListener("shown.bs.tab", () => page.classList.contains("is-split") && shown());
  set(localStorage.getItem(KEY) === "1");
}
