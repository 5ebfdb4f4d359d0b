// The look of printed text: what SGR sequences ask for, and what a browser is told.

/** Colours: null for the page's own, 0 to 255 of the palette, or RGB | 0x1000000. `link`: an address, or "". */
export const PLAIN = Object.freeze({ fg: null, bg: null, bold: false, dim: false, italic: false, underline: false, strike: false, inverse: false, link: "" });

const known = new Map();
const CONTRAST = 4.5;

function shared(style) {
  const key = Object.values(style).join("|");
  const found = known.get(key);
  if (found) return found;
  if (known.size > 5000) known.clear();
  known.set(key, Object.freeze(style));
  return style;
}

export function withLink(style, link) {
  return plainOr(shared({ ...style, link }));
}

function plainOr(style) {
  return Object.keys(PLAIN).every((name) => style[name] === PLAIN[name]) ? PLAIN : style;
}

const SWITCHES = {
  1: { bold: true }, 2: { dim: true }, 3: { italic: true }, 4: { underline: true }, 7: { inverse: true }, 9: { strike: true }, 21: { underline: true },
  22: { bold: false, dim: false }, 23: { italic: false }, 24: { underline: false }, 27: { inverse: false }, 29: { strike: false },
  39: { fg: null }, 49: { bg: null },
};

/** The style after an SGR sequence with these parameters (the text between `[` and `m`). */
export function afterSgr(style, parameters) {
  if (parameters === "" || parameters === "0") return style.link ? withLink(PLAIN, style.link) : PLAIN;
  const next = { ...style };
  const parts = parameters.split(";");
  for (let at = 0; at < parts.length; at += 1) at += apply(next, parts, at);
  return plainOr(shared(next));
}

/** Apply the parameter at `at`; returns how many more it took. */
function apply(style, parts, at) {
  const [code, ...sub] = parts[at].split(":").map(Number);
  if (!code) Object.assign(style, PLAIN, { link: style.link });
  else if (code === 4 && sub.length) style.underline = sub[0] > 0;
  else if (SWITCHES[code]) Object.assign(style, SWITCHES[code]);
  else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) style.fg = code >= 90 ? code - 82 : code - 30;
  else if ((code >= 40 && code <= 47) || (code >= 100 && code <= 107)) style.bg = code >= 100 ? code - 92 : code - 40;
  else if (code === 38 || code === 48) return extended(style, code === 38 ? "fg" : "bg", sub.length ? sub : parts.slice(at + 1, at + 5).map(Number), sub.length > 0);
  return 0;
}

function extended(style, name, values, isSub) {
  const taken = values[0] === 5 ? 2 : values[0] === 2 ? 4 : 0;
  if (values[0] === 5) style[name] = values[1] & 255;
  if (values[0] === 2) {
    const [red, green, blue] = values.slice(isSub && values.length > 4 ? 2 : 1).map((value) => value & 255);
    style[name] = 0x1000000 | (red << 16) | (green << 8) | blue;
  }
  return isSub ? 0 : taken;
}

// --- for the browser ---

const THEMES = {
  dark: {
    background: 0x12161d, foreground: 0xd7dde8,
    colours: [0x3b4252, 0xff8a80, 0x7fd69b, 0xecc368, 0x8fb1ff, 0xd2a1ff, 0x74d4de, 0xd7dde8, 0x7d889b, 0xffa8a1, 0xa0e6b6, 0xf6d88f, 0xb2caff, 0xe2c2ff, 0x9ee6ed, 0xffffff],
  },
  light: {
    background: 0xffffff, foreground: 0x1b2330,
    colours: [0x1b2330, 0xb42318, 0x19713d, 0x855300, 0x2f49b8, 0x7a35b0, 0x0b6a78, 0x566072, 0x6a7486, 0xc9372a, 0x1f8549, 0x976000, 0x3b5bdb, 0x8e44c8, 0x0e7c8c, 0x39424f],
  },
};
const looks = new Map();

/** Every colour is worked out anew after the theme changed. */
export function forgetLooks() {
  looks.clear();
}

/** {color, background} as CSS, "" for what is the page's own; text stands out from its ground by 4.5 to 1 at least. */
export function look(style) {
  let found = looks.get(style);
  if (!found) {
    if (looks.size > 5000) looks.clear();
    looks.set(style, (found = makeLook(style)));
  }
  return found;
}

function makeLook(style) {
  const theme = THEMES[document.documentElement.dataset.bsTheme === "dark" ? "dark" : "light"];
  let ink = rgb(theme, style.bold && style.fg !== null && style.fg < 8 ? style.fg + 8 : style.fg) ?? theme.foreground;
  let ground = rgb(theme, style.bg) ?? theme.background;
  if (style.inverse) [ink, ground] = [ground, ink];
  if (style.dim) ink = mix(ink, ground, 0.4);
  ink = readable(ink, ground);
  return { color: ink === theme.foreground ? "" : css(ink), background: ground === theme.background ? "" : css(ground) };
}

function rgb(theme, colour) {
  if (colour === null) return null;
  if (colour >= 0x1000000) return colour & 0xffffff;
  if (colour < 16) return theme.colours[colour];
  if (colour >= 232) return (8 + (colour - 232) * 10) * 0x10101;
  const level = (value) => (value ? 55 + value * 40 : 0);
  const cube = colour - 16;
  return (level(Math.floor(cube / 36)) << 16) | (level(Math.floor(cube / 6) % 6) << 8) | level(cube % 6);
}

const channels = (colour) => [colour >> 16, (colour >> 8) & 255, colour & 255];
const css = (colour) => `#${colour.toString(16).padStart(6, "0")}`;

function mix(colour, other, share) {
  const [from, to] = [channels(colour), channels(other)];
  return from.reduce((sum, value, at) => (sum << 8) | Math.round(value + (to[at] - value) * share), 0);
}

function luminance(colour) {
  const [red, green, blue] = channels(colour).map((value) => (value <= 10 ? value / 3294 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

/** The nearest to `ink`, towards black or white, that can be read on `ground`. */
function readable(ink, ground) {
  const end = luminance(ground) > 0.18 ? 0 : 0xffffff;
  for (let share = 0; share < 1; share += 0.1) {
    const shade = mix(ink, end, share);
    if (contrast(shade, ground) >= CONTRAST) return shade;
  }
  return end;
}
