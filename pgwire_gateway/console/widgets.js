// The parts that views are made of: tables, tiles, badges, meters, values, notices, dialogs.

import { parse } from "./api.js";
import { h, icon, render } from "./dom.js";
import { NOTHING, count, duration, instant, secondsSince, text } from "./format.js";

// Rows that a table shows at first, and adds at each "Show more".
const ROWS = 50;
// Characters of a value that a cell shows.
const CHARS = 80;

// How each table is sorted and how far it is opened, by its name, for as long as the page is open.
const states = new Map();

export function panel(title, { about, actions, key } = {}, ...content) {
  return h("section", { class: "panel", key: key ?? title },
    h("header", {}, h("h2", {}, title), about && h("p", { class: "muted" }, about),
      actions && h("div", { class: "actions" }, actions)),
    ...content);
}

export function tile(label, value, { about, chart, tone, href } = {}) {
  return h("div", { class: `tile ${tone ?? ""}`, key: label },
    h("span", { class: "label" }, href ? h("a", { href }, label) : label),
    h("span", { class: "figure" }, value), about && h("span", { class: "about" }, about), chart);
}

export function tiles(...found) {
  return h("div", { class: "tiles" }, ...found);
}

// A small chart and the amount that it shows.
export function pair(chart, amount) {
  return h("span", { class: "pair" }, chart, h("span", { class: "amount" }, amount));
}

// tone: good, warn, bad, quiet, accent; the word says it too.
export function badge(word, tone = "quiet") {
  return h("span", { class: `badge ${tone}` }, word);
}

export function meter(share, label, tone = "") {
  const percent = Math.round(Math.min(1, Math.max(0, share || 0)) * 1000) / 10;
  return h("span", { class: `meter ${tone}`, role: "img", "aria-label": label },
    h("span", { class: "fill", "width%": percent }));
}

export function ago(value) {
  const seconds = secondsSince(value);
  if (seconds === null) return NOTHING;
  return h("time", { datetime: new Date(instant(value)).toISOString(), title: String(value) },
    seconds < 1 ? "now" : `${duration(Math.floor(seconds))} ago`);
}

// A value as text, cut where it is long; the whole is one button away.
export function value(found, title = "Value", chars = CHARS) {
  if (found === null || found === undefined) return h("span", { class: "null" }, "NULL");
  const shown = text(found);
  if (shown.length <= chars) return h("span", { class: "value" }, shown);
  return h("span", { class: "value" }, `${shown.slice(0, chars)}…`, " ",
    h("button", { type: "button", class: "link", "aria-label": `Whole value of ${title}`,
      onclick: () => showText(title, text(found, "  ")) }, `${count(shown.length)} characters`));
}

export function notice(tone, title, ...content) {
  return h("div", { class: `notice ${tone}`, role: tone === "bad" ? "alert" : "status" },
    icon(tone === "good" ? "check" : tone === "info" ? "info" : "warning"),
    h("div", {}, h("strong", {}, title), ...content));
}

// An error with all that the server said of it.
export function failure(error) {
  return notice("bad", error.message,
    error.detail && h("p", {}, error.detail),
    error.hint && h("p", {}, h("span", { class: "muted" }, "Hint: "), error.hint),
    error.sqlstate && h("p", { class: "muted" }, "SQLSTATE ", h("code", {}, error.sqlstate)));
}

export function empty(title, ...content) {
  return h("div", { class: "empty" }, h("strong", {}, title), ...content.map((part) =>
    typeof part === "string" ? h("p", {}, part) : part));
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, found]) => found != null && found !== "" && found !== false).map(([name, found]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, found))));
}

// A table. columns: {label, cell(row), sort(row), number, wide}; `redraw` runs after a click on it.
export function table({ name, caption, columns, rows, key, redraw, none = "Nothing to show.", chosen, more }) {
  if (!states.has(name)) states.set(name, { column: null, down: false, shown: ROWS });
  const state = states.get(name);
  const sorted = state.column === null ? rows : ordered(rows, columns[state.column]?.sort, state.down);
  const shown = sorted.slice(0, state.shown);
  const sorting = (place) => () => {
    if (state.column === place && state.down !== Boolean(columns[place].number)) state.column = null;
    else [state.column, state.down] = [place, state.column === place ? !state.down : Boolean(columns[place].number)];
    redraw();
  };
  const head = columns.map((column, place) => h("th", { scope: "col", class: column.number ? "number" : null,
    "aria-sort": state.column === place ? (state.down ? "descending" : "ascending") : null },
  column.sort && redraw
    ? h("button", { type: "button", onclick: sorting(place) }, column.label,
      h("span", { class: "order", "aria-hidden": "true" }, state.column === place ? (state.down ? "↓" : "↑") : ""))
    : column.label));
  return h("div", { class: "table", key: name },
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      h("table", {}, h("caption", { class: "hidden" }, caption), h("thead", {}, h("tr", {}, head)),
        h("tbody", {}, shown.map((row, at) => h("tr", { key: key ? key(row) : at, class: chosen?.(row) ? "chosen" : null },
          columns.map((column) => h("td", { class: [column.number && "number", column.wide && "wide"]
            .filter(Boolean).join(" ") || null }, column.cell(row)))))))),
    !rows.length && h("p", { class: "none" }, none),
    (sorted.length > shown.length || more) && h("div", { class: "more" },
      h("span", { class: "muted" }, `${count(shown.length)} of ${more ? "more than " : ""}${count(sorted.length)} rows`),
      sorted.length > shown.length && h("button", { type: "button", onclick: () => {
        state.shown += ROWS * 4;
        redraw();
      } }, "Show more")));
}

function ordered(rows, of, down) {
  if (!of) return rows;
  const compare = (one, other) => {
    if (one == null || other == null) return (one == null) - (other == null);
    if (typeof one === "string" || typeof other === "string") return String(one).localeCompare(String(other));
    return Number(one) - Number(other);
  };
  return [...rows].sort((one, other) => {
    const [a, b] = [of(one), of(other)];
    return a == null || b == null || !down ? compare(a, b) : compare(b, a);
  });
}

function dialog(title, ...content) {
  const box = h("dialog", { "aria-labelledby": "dialog-title" }, h("h2", { id: "dialog-title" }, title), ...content);
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  return box;
}

export function showText(title, whole) {
  const close = () => box.close();
  const box = dialog(title, h("pre", { tabindex: "0", role: "region", "aria-label": title }, whole),
    h("div", { class: "actions" },
      h("button", { type: "button", onclick: () => navigator.clipboard?.writeText(whole) }, "Copy"),
      h("button", { type: "button", class: "primary", onclick: close, autofocus: true }, "Close")));
}

// Asks before something is done, and does it: the dialog stays while it runs, and shows an error.
export function confirm({ title, about, statement, word, tone, act }) {
  const told = h("div", { "aria-live": "polite" });
  const go = h("button", { type: "button", class: tone === "bad" ? "danger" : "primary", onclick: async () => {
    go.disabled = true;
    try {
      await act();
      box.close();
    } catch (error) {
      render(told, failure(error));
      go.disabled = false;
    }
  } }, word);
  const box = dialog(title, h("p", {}, about), h("pre", { class: "statement", tabindex: "0", role: "region",
    "aria-label": "Statement" }, statement), told,
  h("div", { class: "actions" }, h("button", { type: "button", autofocus: true, onclick: () => box.close() }, "Cancel"), go));
}

// Two versions of a record, column by column, with what has changed.
export function difference(before, after) {
  const old = record(before);
  const next = record(after);
  if (!old && !next) return value(after ?? before, "the event", 2000);
  const names = [...new Set([...Object.keys(old ?? {}), ...Object.keys(next ?? {})])];
  const side = (found, name, shown) => {
    if (!found) return h("td", { class: "absent" }, NOTHING);
    return h("td", { class: shown }, Object.hasOwn(found, name) ? value(found[name], name, 160) : NOTHING);
  };
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Before and after by column" },
    h("table", { class: "difference" },
      h("thead", {}, h("tr", {}, ["Column", "Before", "After"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, names.map((name) => {
        const changed = old && next && text(old[name]) !== text(next[name]);
        return h("tr", { class: changed ? "changed" : null },
          h("th", { scope: "row" }, name, changed && h("span", { class: "hidden" }, " (changed)")),
          side(old, name, changed || !next ? "old" : ""), side(next, name, changed || !old ? "new" : ""));
      }))));
}

// A record of columns, also where it comes as the text of one; null for other values.
export function record(found) {
  let read = found;
  if (typeof read === "string") {
    try {
      read = parse(read);
    } catch {
      return null;
    }
  }
  return read && typeof read === "object" && !Array.isArray(read) && !read.digits ? read : null;
}
