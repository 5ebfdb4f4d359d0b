// GPU readings in place: numbers, bars, ages. A value that is not known is a dash, never a zero.
import { duration, serverNow } from "./times.js";
import { word } from "./words.js";

const STALE = 5; // seconds: older values show their age

export function memory(mib) {
  if (mib === null || mib === undefined) return "–";
  if (mib < 1024) return `${Math.round(mib)} MiB`;
  return `${(mib / 1024).toFixed(1).replace(/\.0$/, "")} GiB`;
}

export const known = (value) => value !== null && value !== undefined;

/** Whether the GPU works in the memory of its host: it tells no size, though it tells other values. */
const isUnified = (gpu) => !known(gpu.memory_mib) && !known(gpu.memory_used_mib) && gpu.health === "ok" && (known(gpu.utilisation) || known(gpu.power_w));

/** Fill the `data-bind` places of one GPU's element from its reading. */
export function fillGpu(element, gpu) {
  const put = (name, text) => {
    const place = element.querySelector(`[data-bind="${name}"]`);
    if (place && place.textContent !== text) place.textContent = text;
  };
  const bar = (name, percent) => {
    const place = element.querySelector(`[data-bind="${name}-bar"]`);
    if (place) place.style.width = known(percent) ? `${Math.min(100, Math.max(0, percent))}%` : "0";
  };
  const used = known(gpu.memory_used_mib) && gpu.memory_mib ? (100 * gpu.memory_used_mib) / gpu.memory_mib : null;
  put("utilisation", known(gpu.utilisation) ? `${Math.round(gpu.utilisation)} %` : "–");
  put("memory", used !== null ? `${memory(gpu.memory_used_mib)} / ${memory(gpu.memory_mib)}` : isUnified(gpu) ? word("unified") : memory(gpu.memory_used_mib));
  put("power", known(gpu.power_w) ? `${Math.round(gpu.power_w)}${known(gpu.power_limit_w) ? ` / ${Math.round(gpu.power_limit_w)}` : ""} W` : "–");
  put("temperature", known(gpu.temperature_c) ? `${Math.round(gpu.temperature_c)} °C` : "–");
  put("clock", known(gpu.sm_clock_mhz) ? `${Math.round(gpu.sm_clock_mhz)} MHz` : "–");
  bar("utilisation", gpu.utilisation);
  bar("memory", used);
}

/** Show how old the reading of `at` (seconds) is once it is stale; null: there has been none. */
export function showAge(element, at) {
  const age = at ? serverNow() / 1000 - at : Infinity;
  const stale = age > STALE;
  element.classList.toggle("is-stale", stale);
  element.querySelectorAll('[data-bind="age"]').forEach((place) => {
    place.hidden = !stale;
    place.textContent = Number.isFinite(age) ? word("value old", { age: duration(age) }) : word("no chart");
  });
}
