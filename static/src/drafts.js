// What is typed into the form outlives a session that ends: kept in this tab, but never the value of a secret.
const KEY = "dockyard.draft";
const OWN = ["csrfmiddlewaretoken", "submission"]; // every page's own
const ROW = /^env-(\w+)-(name|value|secret|kept)$/;

function stored() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY));
  } catch {
    return null;
  }
}

function forget() {
  try {
    sessionStorage.removeItem(KEY);
  } catch {
    // storage is blocked: nothing was kept
  }
}

function keep(draft) {
  try {
    sessionStorage.setItem(KEY, JSON.stringify(draft));
  } catch {
    forget(); // better no draft than an old one
  }
}

const here = () => location.pathname + location.search;

/** The form as [name, value] pairs and environment rows. */
function read(form) {
  const fields = [];
  for (const element of form.elements) {
    if (!element.name || OWN.includes(element.name) || ROW.test(element.name) || element.type === "submit") continue;
    const value = ["checkbox", "radio"].includes(element.type) ? element.checked : element.value;
    fields.push([element.name, element.value, value]);
  }
  const rows = [...form.querySelectorAll(".env-row")].map(readRow).filter((row) => row.name || row.value);
  return { fields, rows };
}

function readRow(row) {
  const part = (name) => row.querySelector(`[name$="-${name}"]`);
  const secret = part("secret").checked;
  return {
    name: part("name").value,
    value: secret ? "" : part("value").value,
    secret,
    kept: part("kept")?.value ?? "",
  };
}

function write(form, draft, addRow) {
  for (const [name, value, now] of draft.fields) {
    for (const element of form.elements) {
      if (element.name !== name) continue;
      if (!["checkbox", "radio"].includes(element.type)) element.value = now;
      else if (element.value === value) element.checked = now;
    }
  }
  while (form.querySelectorAll(".env-row").length < draft.rows.length) addRow();
  const places = [...form.querySelectorAll(".env-row")];
  places.forEach((place, index) => writeRow(place, draft.rows[index] ?? { name: "", value: "", secret: false, kept: "" }));
}

function writeRow(place, row) {
  const part = (name) => place.querySelector(`[name$="-${name}"]`);
  part("name").value = row.name;
  part("value").value = row.value;
  part("secret").checked = row.secret;
  part("value").classList.toggle("masked", row.secret);
  part("kept")?.remove();
  if (row.kept) {
    const kept = Object.assign(document.createElement("input"), { type: "hidden", value: row.kept });
    kept.name = part("name").name.replace(/name$/, "kept");
    place.append(kept);
  }
}

/** Of someone else, or a job by now: the server tells which of this person's last forms it took in. */
const spent = (form, draft) =>
  draft && (draft.owner !== form.dataset.owner || form.dataset.taken.split(" ").includes(draft.submission));

/** Whether the draft belongs into this form: one as it comes, at the draft's address or the plain one. */
function belongs(form, draft) {
  if (!draft || form.dataset.bound) return false;
  return draft.address === here() || !location.search;
}

/** Say that something came back, once, and offer to be rid of it. */
function announce(form) {
  if (form.parentElement.querySelector(".draft-notice")) return;
  const notice = document.getElementById("draft-notice").content.firstElementChild.cloneNode(true);
  notice.querySelector("button").addEventListener("click", () => {
    forget();
    location.replace(location.href); // a reload would have some browsers fill the form in again
  });
  form.before(notice);
}

/** Put back what was typed, where there is something, and keep what is typed from now on. */
export function startDraft(form, addRow) {
  form.autocomplete = "off"; // or the browser puts back what it remembers, and says nothing
  if (spent(form, stored())) forget();
  const draft = stored();
  const restored = belongs(form, draft);
  if (restored) {
    write(form, draft, addRow);
    announce(form);
  }
  const save = () =>
    keep({
      ...read(form),
      owner: form.dataset.owner,
      submission: form.elements.submission.value,
      address: restored ? draft.address : here(),
    });
  if (restored) save(); // under this page's own submission from now on
  addEventListener("pageshow", (event) => event.persisted && stored() && announce(form)); // the page itself came back
  form.addEventListener("input", save);
  form.addEventListener("change", save);
  form.addEventListener("click", (event) => event.target.closest("[data-preset]") && setTimeout(save));
  form.addEventListener("submit", save);
}
