// Sinks: where events go, what keeps them from going there, and the requests of late.

import { sql, view } from "../api.js";
import { h } from "../dom.js";
import { NOTHING, count, duration, moment, quoted, shown } from "../format.js";
import { ago, badge, confirm, empty, facts, panel, table, tile, tiles, value } from "../widgets.js";
import { groupPath, streamLink } from "./links.js";
import { sum } from "../feed.js";

const ROWS_MAX = 1000;
const OUTCOMES = { delivered: "good", retried: "warn", narrowed: "warn", parked: "bad", stopped: "bad" };

function identity(row) {
  return JSON.stringify([row.schema_name, row.stream_name, row.sink_name]);
}

// A sink that runs may be unable to deliver: its fault is its state then.
export function condition(sink) {
  if (sink.state === "stopped") return ["stopped", "bad"];
  if (sink.state === "paused") return ["paused", "warn"];
  return sink.fault == null ? ["running", "good"] : ["failing", "bad"];
}

function state(sink) {
  return badge(...condition(sink));
}

function problem(sink) {
  return sink.reason ?? sink.fault;
}

export class Sinks {
  title = "Sinks";

  constructor(app) {
    Object.assign(this, { app, rows: [], chosen: null, loaded: false });
  }

  async load(signal) {
    this.rows = await view("sinks", { signal, limit: ROWS_MAX });
    this.loaded = true;
  }

  render() {
    const { rows } = this;
    if (!rows.length) {
      return this.loaded ? empty("There are no sinks.", "CREATE SINK sends the events of a stream to a webhook, to Kafka or to RabbitMQ.") : [];
    }
    const chosen = rows.find((row) => identity(row) === this.chosen);
    const ill = rows.filter((row) => condition(row)[1] === "bad");
    return [
      tiles(
        tile("Sinks", count(rows.length), { about: `${count(rows.filter((row) => row.state === "running").length)} running` }),
        tile("Cannot deliver", count(ill.length), { tone: ill.length ? "bad" : "", about: "stopped or failing" }),
        tile("Events to deliver", count(sum(rows, (row) => row.lag_events))),
        tile("Delivered", count(sum(rows, (row) => row.delivered_events)), { about: "since the server started" })),
      h("div", { class: "split" }, panel("All sinks", { key: "list" }, table({
        name: "sinks", caption: "Sinks", rows, key: identity, redraw: this.app.redraw, more: rows.length >= ROWS_MAX,
        chosen: (row) => identity(row) === this.chosen,
        columns: [
          { label: "Sink", sort: (row) => row.sink_name, cell: (row) => h("button", { type: "button", class: "link",
            "aria-expanded": String(identity(row) === this.chosen), onclick: () => {
              this.chosen = this.chosen === identity(row) ? null : identity(row);
              this.app.redraw();
            } }, row.sink_name) },
          { label: "Stream", cell: streamLink, sort: (row) => shown(row.schema_name, row.stream_name) },
          { label: "Receiver", cell: (row) => badge(row.kind), sort: (row) => row.kind },
          { label: "State", cell: state, sort: (row) => condition(row)[0] },
          { label: "Problem", wide: true, cell: (row) => problem(row) == null ? NOTHING : value(problem(row), "the problem", 80), sort: problem },
          { label: "Lag", number: true, cell: (row) => count(row.lag_events), sort: (row) => row.lag_events },
          { label: "Delivered", number: true, cell: (row) => count(row.delivered_events), sort: (row) => row.delivered_events },
          { label: "Failed requests", number: true, cell: (row) => count(row.failed_requests), sort: (row) => row.failed_requests },
          { label: "Parked", number: true, cell: (row) => count(row.parked_events), sort: (row) => row.parked_events },
          { label: "Last delivery", cell: (row) => ago(row.last_delivered_at), sort: (row) => row.last_delivered_at },
        ] })), chosen && this.detail(chosen)),
    ];
  }

  detail(row) {
    const runs = row.state === "running";
    return panel(row.sink_name, { key: "detail", actions: [
      h("button", { type: "button", class: runs ? "" : "primary", onclick: () => this.decide(row, runs ? "PAUSE" : "RESUME") }, runs ? "Pause" : "Resume"),
      h("button", { type: "button", onclick: () => {
        this.chosen = null;
        this.app.redraw();
      } }, "Close")] },
    facts([["State", state(row)], ["Problem", problem(row) && value(problem(row), "the problem", 300)], ["Since", row.fault_at && moment(row.fault_at)],
      ["Receiver", value(row.target, "the receiver", 300)], ["Stream", streamLink(row)], ["Requests under way", count(row.in_flight)],
      ["Consumer group", h("a", { href: groupPath({ ...row, group_name: row.sink_name }) }, row.sink_name)],
      ["Owner", row.owner], ["Changed", moment(row.changed_at)], ["Options", value(row.options, "the options", 300)]]));
  }

  decide(row, word) {
    const statement = `${word} SINK ${quoted(row.sink_name)} ON ${quoted(row.schema_name, row.stream_name)}`;
    const pauses = word === "PAUSE";
    confirm({
      title: `${pauses ? "Pause" : "Resume"} ${row.sink_name}?`,
      about: pauses ? "It sends nothing until it is resumed; its stream keeps the events as long as its retention says."
        : "It continues behind the last events that its receiver has accepted.",
      statement, word: pauses ? "Pause" : "Resume", tone: "",
      act: async () => {
        await sql(statement);
        await this.load();
        this.app.redraw();
      },
    });
  }
}

export class Deliveries {
  title = "Deliveries";

  constructor(app) {
    Object.assign(this, { app, rows: [] });
  }

  async load(signal) {
    const rows = await view("deliveries", { signal, limit: ROWS_MAX });
    this.rows = rows.sort((one, other) => String(other.started_at).localeCompare(String(one.started_at)));
  }

  render() {
    const { rows } = this;
    return panel("Requests", { key: "view", about: "The last 200 of each sink, the latest first" }, table({
      name: "deliveries", caption: "Deliveries", rows, redraw: this.app.redraw, none: "No delivery is recorded.", more: rows.length >= ROWS_MAX,
      key: (row) => JSON.stringify([identity(row), row.partition, row.started_at, row.first_lsn, row.attempt]),
      columns: [
        { label: "Sent", cell: (row) => ago(row.started_at), sort: (row) => row.started_at },
        { label: "Sink", cell: (row) => value(row.sink_name, "the sink", 40), sort: (row) => row.sink_name },
        { label: "Stream", cell: streamLink, sort: (row) => shown(row.schema_name, row.stream_name) },
        { label: "Outcome", cell: (row) => badge(row.outcome, OUTCOMES[row.outcome] ?? "quiet"), sort: (row) => row.outcome },
        { label: "Status", number: true, cell: (row) => row.status || NOTHING, sort: (row) => row.status },
        { label: "Attempt", number: true, cell: (row) => count(row.attempt), sort: (row) => row.attempt },
        { label: "Partition", number: true, cell: (row) => row.partition, sort: (row) => row.partition },
        { label: "LSNs", number: true, sort: (row) => row.first_lsn, cell: (row) => row.events > 1 ? `${row.first_lsn}–${row.last_lsn}` : row.first_lsn },
        { label: "Events", number: true, cell: (row) => count(row.events), sort: (row) => row.events },
        { label: "Took", number: true, cell: (row) => duration(row.duration_ms / 1000), sort: (row) => row.duration_ms },
        { label: "Answer", wide: true, cell: (row) => row.detail == null ? NOTHING : value(row.detail, "the answer"), sort: (row) => row.detail },
      ] }));
  }
}
