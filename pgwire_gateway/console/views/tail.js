// The live tail: the events of a stream as they are committed, with a filter, a pause, and each event's difference.

import { ApiError, events, parse } from "../api.js";
import { h, icon, render } from "../dom.js";
import { count, instant, moment, quoted, rate, shown, text, timeOfDay } from "../format.js";
import { badge, difference, empty, facts, failure, panel, record, showText } from "../widgets.js";
import { address } from "./links.js";

// Events that are listed, and that wait while the list is paused; older ones are dropped and counted.
const EVENTS_MAX = 300;
// The list is drawn this often at most.
const DRAW_MS = 200;
// Pauses before a broken connection is opened again.
const RETRY_S = [1, 2, 5, 10, 10, 30];
const TONES = { insert: "good", update: "warn", delete: "bad", publish: "accent" };
// Columns of an event that its summary names.
const SUMMARY = 3;

export class Tail {
  title = "Live tail";
  still = true;

  constructor(app, [schema, name]) {
    Object.assign(this, { app, schema, name, shownEvents: [], waiting: [], dropped: 0, received: 0, paused: false,
      chosen: null, controller: null, status: "stopped", error: null, last: null, drawing: null, arrivals: [] });
    this.form = this.toolbar();
    this.body = h("div", { class: "view" });
    this.node = h("div", { class: "view" }, this.form, this.body);
    this.streams = "";
    this.partitions = "";
  }

  // Streams and partitions to choose from, as they are now.
  refresh() {
    const { feed } = this.app;
    const streams = feed.streams.map((row) => JSON.stringify([row.schema_name, row.stream_name]));
    const first = !this.streams;
    if (this.streams !== streams.join()) {
      this.streams = streams.join();
      const chosen = this.stream ?? JSON.stringify([this.schema ?? "", this.name ?? ""]);
      render(this.streamField, streams.map((key) => h("option", { key, value: key }, shown(...JSON.parse(key)))));
      if (streams.includes(chosen)) this.streamField.value = chosen;
    }
    this.fillPartitions();
    if (first && this.schema && streams.length) this.start();
    if (!this.drawing) this.draw();
  }

  fillPartitions() {
    const stream = this.current();
    const most = stream?.partitions ?? 0;
    if (this.partitions === `${this.stream} ${most}`) return;
    this.partitions = `${this.stream} ${most}`;
    const numbers = Array.from({ length: Math.min(most, 1024) }, (_, at) => at);
    render(this.partitionField, h("option", { value: "" }, "all"), numbers.map((at) => h("option", { value: at }, String(at))));
  }

  current() {
    if (!this.streamField.value) return null;
    this.stream = this.streamField.value;
    return this.app.feed.stream(...JSON.parse(this.stream));
  }

  toolbar() {
    this.streamField = h("select", { onchange: () => {
      this.stream = this.streamField.value;
      history.replaceState(null, "", address("tail", ...JSON.parse(this.stream)));
      this.fillPartitions();
      this.clear();
      if (this.controller) this.start();
    } });
    this.partitionField = h("select", {}, h("option", { value: "" }, "all"));
    this.whereField = h("input", { autocomplete: "off", spellcheck: "false", placeholder: "op = 'update' AND after->>'city' = 'Oslo'" });
    this.fromField = h("select", {}, h("option", { value: "now" }, "now"), h("option", { value: "first" }, "the first retained event"));
    this.startButton = h("button", { type: "submit", class: "primary" }, "Start");
    this.pauseButton = h("button", { type: "button", onclick: () => this.pause() }, "Pause");
    return h("form", { class: "toolbar", onsubmit: (event) => {
      event.preventDefault();
      if (this.controller) this.stop();
      else this.start();
    } },
    h("label", {}, "Stream", this.streamField), h("label", {}, "Partition", this.partitionField),
    h("label", { class: "grow" }, "Where (SQL condition on the event)", this.whereField), h("label", {}, "From", this.fromField),
    this.startButton, this.pauseButton, h("button", { type: "button", onclick: () => this.clear() }, "Clear"));
  }

  path() {
    const stream = this.current();
    const query = new URLSearchParams();
    query.set("after", position(stream, this.fromField.value === "first"));
    if (this.partitionField.value !== "") query.set("partition", this.partitionField.value);
    if (this.whereField.value.trim()) query.set("where", this.whereField.value.trim());
    return `/v1/streams/${encodeURIComponent(quoted(stream.schema_name, stream.stream_name))}/events?${query}`;
  }

  async start() {
    this.stop();
    if (!this.current()) return;
    await this.app.feed.load().catch(() => {});
    const controller = new AbortController();
    Object.assign(this, { controller, error: null, last: null, paused: false, status: "connecting" });
    this.clear();
    const path = this.path();
    for (let failures = 0; !controller.signal.aborted;) {
      try {
        this.status = "live";
        this.later();
        for await (const message of events(path, controller.signal, this.last)) {
          failures = 0;
          if (message.id) this.last = message.id;
          this.take(message);
        }
        this.error = new ApiError(0, { message: "The server has ended the connection." });
      } catch (error) {
        if (controller.signal.aborted) return;
        this.error = error;
        // A refusal stays one: only broken connections are opened again.
        if (error.status && error.status < 500) return this.stop();
      }
      const pause = RETRY_S[Math.min(failures++, RETRY_S.length - 1)];
      this.status = `again in ${pause} s`;
      this.later();
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, pause * 1000);
        controller.signal.addEventListener("abort", () => {
          clearTimeout(timer);
          resolve();
        });
      });
      if (!controller.signal.aborted) this.error = null;
    }
  }

  stop() {
    this.controller?.abort(new DOMException("stopped", "AbortError"));
    Object.assign(this, { controller: null, status: "stopped" });
    this.later();
  }

  close() {
    this.stop();
    clearTimeout(this.drawing);
    this.drawing = "closed";
  }

  take(message) {
    const data = parse(message.data);
    if (message.event === "failure") {
      throw new ApiError(400, data.error ?? data);
    }
    this.received += 1;
    this.arrivals.push(Date.now());
    if (this.arrivals.length > 2000) this.arrivals.shift();
    const list = this.paused ? this.waiting : this.shownEvents;
    list.unshift({ ...data, number: this.received });
    if (list.length > EVENTS_MAX) {
      list.length = EVENTS_MAX;
      if (this.paused) this.dropped += 1;
    }
    this.later();
  }

  pause() {
    this.paused = !this.paused;
    if (!this.paused) {
      this.shownEvents = [...this.waiting, ...this.shownEvents].slice(0, EVENTS_MAX);
      Object.assign(this, { waiting: [], dropped: 0 });
    }
    this.draw();
  }

  clear() {
    Object.assign(this, { shownEvents: [], waiting: [], dropped: 0, received: 0, chosen: null, arrivals: [] });
    this.later();
  }

  later() {
    this.drawing ??= setTimeout(() => {
      this.drawing = null;
      this.draw();
    }, DRAW_MS);
  }

  draw() {
    render(this.startButton, this.controller ? "Stop" : "Start");
    this.startButton.className = this.controller ? "" : "primary";
    render(this.pauseButton, icon(this.paused ? "play" : "pause"), this.paused ? "Resume" : "Pause");
    this.pauseButton.setAttribute("aria-pressed", String(this.paused));
    this.pauseButton.disabled = !this.controller && !this.paused;
    const now = Date.now();
    const recent = this.arrivals.filter((at) => now - at < 5000).length / 5;
    render(this.body,
      this.error && failure(this.error),
      h("p", { class: "status", role: "status" }, badge(this.paused ? "paused" : this.status,
        this.paused ? "warn" : this.status === "live" ? "good" : "quiet"), " ",
      `${count(this.received)} events received`, this.controller && `, ${rate(recent)}`,
      this.paused && `; ${count(this.waiting.length + this.dropped)} new`, this.dropped > 0 && `, of which the oldest ${count(this.dropped)} are dropped`),
      h("div", { class: "split" }, this.list(), this.detail()));
  }

  list() {
    if (!this.shownEvents.length) {
      return h("div", { class: "panel", key: "none" }, !this.app.feed.streams.length
        ? empty("There are no streams that you may read.")
        : this.controller ? empty("Waiting for events.", "Each change of the stream appears here when it is committed.")
          : empty("The tail is stopped.", "Choose a stream and press Start."));
    }
    return h("div", { class: "panel events", key: "list" },
      h("div", { class: "scroll", role: "region", "aria-label": "Events, the newest first", tabindex: "0", onkeydown: move },
        h("table", {}, h("caption", { class: "hidden" }, "Events, the newest first"),
          h("thead", {}, h("tr", {}, ["LSN", "Time", "Partition", "Operation", "Key", "Change"].map((name) =>
            h("th", { scope: "col", class: name === "Partition" || name === "LSN" ? "number" : null }, name)))),
          h("tbody", {}, this.shownEvents.map((event) => h("tr", { key: event.number, class: this.chosen === event ? "chosen" : null },
            h("td", { class: "number" }, h("button", { type: "button", class: "link", "aria-expanded": String(this.chosen === event),
              "aria-label": `Event ${event.lsn}`, onclick: () => {
                this.chosen = this.chosen === event ? null : event;
                this.draw();
              } }, String(event.lsn))),
            h("td", {}, time(event.commit_time)), h("td", { class: "number" }, String(event.partition)),
            h("td", {}, operation(event)), h("td", { class: "key" }, cut(keyText(event.key), 40)),
            h("td", { class: "change" }, cut(summary(event), 240))))))));
  }

  detail() {
    const event = this.chosen;
    if (!event) return null;
    return panel(`Event ${event.lsn}`, { key: "detail", actions: [
      h("button", { type: "button", onclick: () => showText(`Event ${event.lsn}`, text({ ...event, number: undefined }, "  ")) }, "As JSON"),
      h("button", { type: "button", onclick: () => {
        this.chosen = null;
        this.draw();
      } }, "Close")] },
    facts([["Operation", operation(event)], ["Table", event.table_name ?? event.table], ["Partition", String(event.partition)],
      ["Transaction", event.txid == null ? null : `${event.txid}, event ${Number(event.tx_seq ?? 0) + 1}${event.tx_last ? ", its last" : ""}`],
      ["Committed", moment(event.commit_time)], ["Schema version", event.schema_version],
      ["Headers", event.headers == null ? null : h("code", {}, text(event.headers))]]),
    difference(event.before, event.after));
  }
}

// The position after which a tail begins: before the first retained event, or at the present end. Where this node
// has all partitions, their events come in LSN order and one LSN is a position.
function position(stream, first) {
  const before = (place) => Number(place.trimmed_through_lsn ?? 0);
  const at = first ? before : (place) => Number(place.last_lsn ?? before(place));
  if (!first && stream.places.every((place) => place.owner_local)) return String(Math.max(0, ...stream.places.map(at)));
  return JSON.stringify(Object.fromEntries(stream.places.map((place) => [place.partition, at(place)])));
}

// The arrow keys move between the events.
function move(event) {
  if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
  const buttons = [...event.currentTarget.querySelectorAll("tbody button")];
  const at = buttons.indexOf(document.activeElement);
  const next = at < 0 ? buttons[0] : buttons[at + (event.key === "ArrowDown" ? 1 : -1)];
  if (next) {
    event.preventDefault();
    next.focus();
  }
}

function time(value) {
  const at = instant(value);
  return at === null ? "" : timeOfDay(at);
}

function cut(found, chars) {
  return found.length > chars ? `${found.slice(0, chars)}…` : found;
}

function operation(event) {
  const op = event.op ?? event._change_type ?? "event";
  return badge(op, TONES[op.split("_")[0]] ?? "quiet");
}

export function keyText(key) {
  const found = record(key);
  if (!found) return key == null ? "" : text(key);
  return Object.entries(found).map(([name, part]) => `${name} ${text(part)}`).join(", ");
}

function summary(event) {
  const [old, next] = [record(event.before), record(event.after)];
  if (old && next) {
    const names = Object.keys(next).filter((name) => text(old[name]) !== text(next[name]));
    const parts = names.slice(0, SUMMARY).map((name) => `${name}: ${cut(text(old[name]), 40)} → ${cut(text(next[name]), 40)}`);
    return parts.join(", ") + (names.length > SUMMARY ? `, and ${names.length - SUMMARY} more` : "");
  }
  const only = next ?? old;
  if (!only) return event.after == null ? "" : text(event.after);
  return Object.entries(only).slice(0, SUMMARY + 1).map(([name, part]) => `${name}: ${cut(text(part), 40)}`).join(", ");
}
