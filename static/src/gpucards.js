// One GPU as a tile and as a row of the table: whose it is, what it does, and what ails it.
import { fillGpu, known, memory } from "./readings.js";
import { ago, serverNow } from "./times.js";
import { word } from "./words.js";

const MOST_PROCESSES = 8;

export function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function icon(name) {
  const made = element("i", `bi ${name}`);
  made.setAttribute("aria-hidden", "true");
  return made;
}

/** What the GPU is to who looks for one. Free is only what a fresh reading (of `fresh` seconds at most) shows to be free. */
export function kind(gpu, node, fresh) {
  const why = gpu.unavailable?.code;
  if (gpu.health !== "ok" && gpu.health !== "unknown") return "sick";
  if (gpu.job) return "used";
  if (gpu.hidden) return "hidden";
  if (gpu.busy_outside) return "outside";
  if (why && why !== "GPU_UNSAMPLED") return "closed";
  if (why || !node.at || serverNow() / 1000 - node.at > fresh) return "unknown";
  return node.host?.cordoned ? "cordoned" : "free";
}

/** Whose the GPU is, each owner once: several where it is shared. */
const owners = (gpu) => [...new Set((gpu.holders ?? []).map((held) => held.owner))].join(", ");

/** Whose the GPU is, as a chip: colour, icon and word. */
const CHIPS = {
  sick: (gpu) => ["tone-red", "bi-exclamation-octagon-fill", word(`health ${gpu.health}`)],
  used: (gpu) => ["tone-accent", "bi-play-circle-fill", owners(gpu) || word("in use")],
  hidden: () => ["tone-grey", "bi-eye-slash", word("why GPU_HIDDEN")],
  outside: () => ["tone-violet", "bi-person-exclamation", word("busy outside")],
  closed: (gpu) => ["tone-orange", "bi-sign-stop", word(`why ${gpu.unavailable.code}`)],
  cordoned: () => ["tone-orange", "bi-sign-stop", word("cordoned")],
  unknown: () => ["tone-grey", "bi-question-circle", word("no chart")],
  free: () => ["tone-green", "bi-check-circle", word("free")],
};

/** Do something with a place only if what it says has changed. */
function refill(place, said, fill) {
  if (!place || place.dataset.said === said) return;
  place.dataset.said = said;
  fill(place);
}

/** What kind of part of a GPU it is, and how much of a shared one is taken; empty for a whole one. */
function slots(gpu) {
  if (gpu.profile && !known(gpu.utilisation)) return word("mig");
  if (!(gpu.slots > 1)) return "";
  return word("slots", { count: gpu.slots, jobs: (gpu.holders ?? []).length });
}

/** Whose it is now: all that age alone changes. */
export function chip(root, gpu, node, fresh) {
  const [tone, name, text] = CHIPS[kind(gpu, node, fresh)](gpu);
  refill(root.querySelector('[data-bind="holder"]'), `${tone} ${text}`, (place) => {
    place.className = `state ${tone}`;
    place.replaceChildren(icon(name), element("span", "", text));
  });
}

/** A job that the GPU is given to. Whoever may not see the job has no use for its address. */
function holder({ job, job_name: name }) {
  if (!name) return element("div", "", word("job", { id: job }));
  const link = element("a", "", element("bdi", "", name));
  link.href = `/jobs/${job}/`;
  return element("div", "", link, ` #${job}`);
}

/** Who is on the GPU from outside: by the host's own names. */
function outsiders(gpu) {
  const seen = (gpu.processes ?? []).filter((found) => found.kind === "foreign");
  const names = (seen.length ? seen : gpu.unavailable?.outsiders ?? []).map((found) => found.user ?? found.owner).filter(Boolean);
  return [...new Set(names)].join(", ");
}

/** Why the GPU is not given away, as a sentence; empty where nothing keeps it. */
function why(gpu) {
  if (gpu.busy_outside) return outsiders(gpu) ? word("kept out by", { who: outsiders(gpu) }) : word("kept out");
  if (gpu.health !== "ok" && gpu.health !== "unknown") return gpu.ecc_errors ? word("sick long") : gpu.message || word("sick long");
  const found = gpu.unavailable;
  if (!found || gpu.job) return "";
  if (found.code === "GPU_BUSY_OUTSIDE") return outsiders(gpu) ? word("kept out by", { who: outsiders(gpu) }) : word("kept out");
  return { GPU_QUARANTINED: found.why, DRIVER: found.message, GPU_UNSAMPLED: word("unsampled long"), GPU_HIDDEN: word("hidden long") }[found.code] ?? gpu.message ?? "";
}

function foot(root, gpu) {
  const held = gpu.holders ?? [];
  const reason = why(gpu);
  refill(root.querySelector('[data-bind="foot"]'), JSON.stringify([held, reason]), (place) => {
    place.replaceChildren(...held.map(holder), ...(reason ? [element("div", "gpu-why", reason)] : []));
  });
}

/** What ails the GPU, worst first: tone and words. */
function ailments(gpu) {
  const found = [];
  if (gpu.ecc_errors) found.push(["tone-red", word("ecc", { count: gpu.ecc_errors })]);
  if (known(gpu.xid)) found.push(["tone-orange", word("xid", { xid: gpu.xid, ago: ago(gpu.xid_at * 1000) })]);
  if (gpu.throttle?.length) {
    const normal = gpu.throttle.every((code) => code === "power_cap"); // at full load that is what a limit is for
    found.push([normal ? "tone-grey" : "tone-orange", word("throttled", { why: gpu.throttle.map((code) => word(`throttle ${code}`)).join(", ") })]);
  }
  return found;
}

function health(root, gpu) {
  const found = ailments(gpu);
  refill(root.querySelector('[data-bind="health"]'), JSON.stringify(found), (place) => {
    place.hidden = !found.length;
    place.replaceChildren(...found.map(([tone, text]) => element("span", `state ${tone}`, element("span", "", text))));
  });
}

/** A process; of the only job that holds the GPU it need not say whose it is. */
function process(found, job) {
  const who = found.job ? word("job", { id: found.job }) : found.user ?? found.owner ?? word("somebody");
  const row = element("li", `is-${found.kind}`);
  const said = found.job && found.job === job ? [found.name ?? word("a process")] : [found.name, who];
  const name = element("span", "", said.filter(Boolean).join(" · "));
  if (found.container) name.append(element("code", "gpu-container", found.container.slice(0, 12)));
  name.title = [found.pid && `PID ${found.pid}`, found.container && word("container", { id: found.container.slice(0, 12) })].filter(Boolean).join(", ");
  row.append(icon(found.kind === "foreign" ? "bi-person-exclamation" : "bi-terminal"), name, element("span", "gpu-value", known(found.memory_mib) ? memory(found.memory_mib) : word("n/a")));
  return row;
}

function processes(root, gpu) {
  const shown = gpu.processes ?? [];
  const only = (gpu.holders ?? []).length > 1 ? null : gpu.job;
  refill(root.querySelector('[data-bind="processes"]'), JSON.stringify([only, shown]), (list) => {
    list.hidden = !shown.length;
    list.replaceChildren(...shown.slice(0, MOST_PROCESSES).map((found) => process(found, only)));
    if (shown.length > MOST_PROCESSES) list.append(element("li", "", word("more", { count: shown.length - MOST_PROCESSES })));
  });
}

/** Bring a tile or a row up to date. */
export function fill(root, gpu, node, fresh) {
  fillGpu(root, gpu);
  chip(root, gpu, node, fresh);
  foot(root, gpu);
  health(root, gpu);
  processes(root, gpu);
  const hidden = root.querySelector('[data-bind="hidden"]');
  if (hidden) hidden.hidden = !gpu.hidden || kind(gpu, node, fresh) === "hidden";
  put(root, "slots", slots(gpu));
}

function put(root, name, text) {
  const place = root.querySelector(`[data-bind="${name}"]`);
  if (!place) return;
  if (place.textContent !== text) place.textContent = text;
  place.hidden = !text;
}

/** A new tile or row of the page's template. */
export function make(template, gpu, nodeName) {
  const made = document.getElementById(template).content.firstElementChild.cloneNode(true);
  made.dataset.gpu = gpu.uuid;
  if (template === "gpu-tile") made.id = gpu.uuid;
  put(made, "host", nodeName);
  put(made, "index", String(gpu.index));
  const model = `${gpu.model}${gpu.profile ? ` · MIG ${gpu.profile}` : ""}`;
  put(made, "model", model);
  put(made, "short", gpu.uuid.replace(/^(GPU|MIG)-/, "").slice(0, 8));
  made.querySelectorAll('[data-bind="model"], [data-bind="short"]').forEach((place) => (place.title = [gpu.uuid, gpu.pci].filter(Boolean).join("\n")));
  made.setAttribute("aria-label", `${word("GPU")} ${nodeName}/${gpu.index} ${model}`);
  return made;
}

/** What a search looks through. */
export function words(gpu, nodeName, node, fresh) {
  const held = (gpu.holders ?? []).flatMap((found) => [found.owner, found.job_name, `#${found.job}`]);
  const users = (gpu.processes ?? []).map((found) => found.user);
  return [nodeName, gpu.model, gpu.profile, gpu.uuid, ...held, ...users, CHIPS[kind(gpu, node, fresh)](gpu)[2]].filter(Boolean).join(" ").toLowerCase();
}
