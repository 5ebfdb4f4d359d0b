// The translated words that scripts show, given by the page in <script id="words" type="application/json">.
const element = document.getElementById("words");
const words = element ? JSON.parse(element.textContent) : {};

/** The word for `key`, with {name} places filled in as text. */
export function word(key, values = {}) {
  return (words[key] ?? key).replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}
