// A statement and its answer.

import { sql } from "../api.js";
import { h, render } from "../dom.js";
import { count, duration } from "../format.js";
import { badge, failure, notice, panel, table, value } from "../widgets.js";

const LIMITS = [100, 1000, 10_000];
// Statements that can be called back with the arrow keys beside the box.
const HISTORY_MAX = 50;
const EXAMPLES = [
  ["Streams", "SELECT stream_name, table_name, partitions, events, bytes FROM ducktail.streams ORDER BY events DESC"],
  ["Lag", "SELECT group_name, stream_name, sum(lag_events) AS lag FROM ducktail.offsets GROUP BY ALL ORDER BY lag DESC"],
  ["Settings", "SELECT name, setting, source FROM ducktail.settings ORDER BY name"],
];
const DRAFT = "ducktail.sql";

export class Sql {
  title = "SQL";
  still = true;

  constructor(app) {
    Object.assign(this, { app, past: [], at: 0, answer: null, error: null, took: null, running: null });
    this.box = h("textarea", { rows: 8, spellcheck: "false", autocapitalize: "off", autocomplete: "off",
      "aria-describedby": "sql-keys", onkeydown: (event) => this.key(event) });
    try {
      this.box.value = sessionStorage.getItem(DRAFT) ?? EXAMPLES[0][1];
    } catch {
      this.box.value = EXAMPLES[0][1];
    }
    this.limit = h("select", {}, LIMITS.map((rows) => h("option", { value: rows }, count(rows))));
    this.limit.value = "1000";
    this.go = h("button", { type: "submit", class: "primary" }, "Execute");
    this.result = h("div", { class: "view", "aria-live": "polite" });
    this.node = h("div", { class: "view" }, h("form", { class: "panel sql", onsubmit: (event) => {
      event.preventDefault();
      if (this.running) this.running.abort();
      else this.execute();
    } },
    h("label", {}, "Statement", this.box),
    h("div", { class: "toolbar" }, this.go, h("label", { class: "beside" }, "Rows at most", this.limit),
      h("span", { class: "muted", id: "sql-keys" }, h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter"), " executes, ",
        h("kbd", {}, "Alt"), " ", h("kbd", {}, "↑"), " brings back the statement before"),
      h("span", { class: "examples" }, EXAMPLES.map(([name, text]) => h("button", { type: "button", class: "link", onclick: () => {
        this.box.value = text;
        this.box.focus();
      } }, name))))), this.result);
  }

  key(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      if (!this.running) this.execute();
    } else if (event.altKey && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
      event.preventDefault();
      const to = this.at + (event.key === "ArrowUp" ? -1 : 1);
      if (to < 0 || to >= this.past.length) return;
      this.at = to;
      this.box.value = this.past[to];
    }
  }

  async execute() {
    const text = this.box.value.trim();
    if (!text) return;
    if (this.past.at(-1) !== text) this.past.push(text);
    if (this.past.length > HISTORY_MAX) this.past.shift();
    this.at = this.past.length - 1;
    try {
      sessionStorage.setItem(DRAFT, text);
    } catch {
      // Only a reload loses the text then.
    }
    this.running = new AbortController();
    Object.assign(this, { answer: null, error: null });
    const start = performance.now();
    this.draw();
    try {
      this.answer = await sql(text, [], { limit: Number(this.limit.value), signal: this.running.signal, timeout: 600_000 });
    } catch (error) {
      this.error = error;
    }
    this.took = (performance.now() - start) / 1000;
    this.running = null;
    this.draw();
  }

  close() {
    this.running?.abort();
  }

  draw() {
    render(this.go, this.running ? "Cancel" : "Execute");
    if (this.running) return render(this.result, h("p", { class: "status", role: "status" }, badge("running", "accent")));
    if (this.error) {
      if (this.error.name === "AbortError") return render(this.result, notice("info", "The statement was cancelled."));
      return render(this.result, failure(this.error), this.marked());
    }
    if (!this.answer) return render(this.result);
    const { columns, rows, command, truncated } = this.answer;
    const about = `${command ?? ""} · ${duration(this.took)}`;
    if (!columns?.length) return render(this.result, notice("good", command || "Done", h("p", { class: "muted" }, duration(this.took))));
    render(this.result, panel("Result", { about },
      truncated && notice("info", `Only the first ${count(rows.length)} rows are shown.`),
      table({
        name: "sql-result", caption: "Result", rows, redraw: () => this.draw(), none: "No rows.",
        columns: columns.map((column, at) => ({
          label: h("span", {}, column.name, " ", h("span", { class: "type" }, column.type)),
          number: /int|decimal|numeric|double|float|real/i.test(column.type ?? "") && !/\[\]|struct|map/i.test(column.type),
          cell: (row) => value(row[at], column.name), sort: (row) => row[at],
        })),
      })));
  }

  // The statement up to the place of its error, where the server names it.
  marked() {
    const at = Number(this.error.position);
    if (!(at > 0)) return null;
    const text = this.past.at(-1);
    const start = text.lastIndexOf("\n", at - 2) + 1;
    const end = text.indexOf("\n", at - 1);
    return h("pre", { class: "place", tabindex: "0" }, `${text.slice(start, end < 0 ? undefined : end).slice(0, 2000)}\n${" ".repeat(Math.min(2000, at - 1 - start))}^`);
  }
}
