// Numbers, sizes, times and values as the console writes them.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const one = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"];
export const NOTHING = "–";

export function count(value) {
  return value == null ? NOTHING : whole.format(value);
}

export function short(value) {
  if (value == null) return NOTHING;
  return Math.abs(value) < 10_000 ? whole.format(value) : compact.format(value);
}

export function rate(value) {
  if (value == null) return NOTHING;
  return `${value > 0 && value < 10 ? one.format(value) : short(value)}/s`;
}

export function bytes(value) {
  if (value == null) return NOTHING;
  let size = Number(value);
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) [size, unit] = [size / 1024, unit + 1];
  return `${unit && size < 100 ? one.format(size) : whole.format(size)} ${UNITS[unit]}`;
}

// A length of time, in its two largest units at most.
export function duration(seconds) {
  if (seconds == null) return NOTHING;
  if (seconds < 1) return seconds > 0 ? `${Math.round(seconds * 1000)} ms` : "0 s";
  if (seconds < 60) return `${seconds < 10 ? one.format(seconds) : whole.format(seconds)} s`;
  for (const [size, unit, part, smaller] of [[86_400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
    if (seconds < size) continue;
    const rest = Math.floor((seconds % size) / part);
    return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${smaller}` : ""}`;
  }
  return NOTHING;
}

// Milliseconds since 1970 of a time as the server writes it; null for none.
export function instant(value) {
  if (value == null) return null;
  const found = Date.parse(String(value).replace(" ", "T").replace(/([+-]\d\d)$/, "$1:00"));
  return Number.isNaN(found) ? null : found;
}

// A time in UTC, in full.
export function moment(value) {
  const at = instant(value);
  return at === null ? NOTHING : new Date(at).toISOString().replace("T", " ").replace("Z", " UTC");
}

export function secondsSince(value, now = Date.now()) {
  const at = instant(value);
  return at == null ? null : Math.max(0, (now - at) / 1000);
}

export function timeOfDay(ms) {
  return clock.format(ms);
}

// A value of a result as one text: nested values as JSON, with all digits of large numbers.
export function text(value, indent = "") {
  if (value === null || value === undefined) return "NULL";
  if (typeof value === "string") return value;
  return json(value, indent);
}

function json(value, indent, depth = "\n") {
  if (value === null || value === undefined) return "null";
  if (typeof value !== "object") return typeof value === "string" ? JSON.stringify(value) : String(value);
  if (value.digits) return value.digits;
  const list = Array.isArray(value);
  const inner = indent ? depth + indent : "";
  const parts = list
    ? value.map((part) => json(part, indent, depth + indent))
    : Object.entries(value).map(([name, part]) =>
      `${JSON.stringify(name)}:${indent ? " " : ""}${json(part, indent, depth + indent)}`);
  if (!parts.length) return list ? "[]" : "{}";
  const [open, close] = list ? "[]" : "{}";
  return `${open}${inner}${parts.join(indent ? `,${inner}` : ",")}${indent ? depth : ""}${close}`;
}

// The name of a relation or group as it can stand in a statement.
export function quoted(...parts) {
  return parts.map((part) => `"${String(part).replaceAll('"', '""')}"`).join(".");
}

export function literal(value) {
  return `'${String(value).replaceAll("'", "''")}'`;
}

// A stream's name as it is shown: without its schema where that is the default one.
export function shown(schema, name) {
  return schema === "main" ? name : `${schema}.${name}`;
}
