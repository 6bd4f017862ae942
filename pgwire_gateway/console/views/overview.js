// The first page: how much flows, who is behind, and what asks for attention.

import { view } from "../api.js";
import { LineChart, spark } from "../charts.js";
import { h } from "../dom.js";
import { streamKey, groupKey, sum } from "../feed.js";
import { bytes, count, duration, rate, secondsSince, short, shown } from "../format.js";
import { badge, empty, meter, notice, pair, panel, table, tile, tiles } from "../widgets.js";
import { groupPath, laggards, streamLink } from "./links.js";
import { condition } from "./sinks.js";

// A transaction that is open for longer is pointed out: it may hold the writer lock, and keeps DuckDB's log long.
const LONG_S = 30;
// Events that are committed and not readable for longer.
const UNPUBLISHED_S = 5;
// The share of a stream's retention that is left to a group.
const HEADROOM = 0.2;
// A group with unread events that nobody has read for longer.
const UNREAD_S = 120;

export class Overview {
  title = "Overview";

  constructor(app) {
    this.app = app;
    this.lag = new LineChart("Lag in events by group", short, true);
    this.rate = new LineChart("Events per second", short);
    this.sessions = [];
    this.sinks = [];
  }

  async load(signal) {
    this.sessions = await view("sessions", { signal });
    if (this.app.feed.views.has("sinks")) this.sinks = await view("sinks", { signal });
  }

  render() {
    const { feed } = this.app;
    const lag = sum(feed.groups, (group) => group.lag_events);
    const parked = sum(feed.groups, (group) => group.parked_events);
    const topics = feed.streams.filter((stream) => isTopic(stream)).length;
    const worst = laggards(feed.groups)[0];
    this.lag.update(laggards(feed.groups).map((group) => ({ name: groupName(group), points: feed.lag.line(groupKey(group)) })));
    this.rate.update([{ name: "all streams", points: feed.allRates.line("all") }]);
    const found = attention(feed, this.sessions, this.sinks);
    return [
      tiles(
        tile("Streams", count(feed.streams.length - topics), { href: "#/streams",
          about: topics ? `and ${count(topics)} ${topics === 1 ? "topic" : "topics"}` : "on tables" }),
        tile("Events", rate(feed.rate ?? 0), { about: `${short(sum(feed.streams, (row) => row.events))} retained`,
          chart: spark(feed.allRates.line("all").slice(-60)) }),
        tile("Lag", short(lag), { href: "#/groups", tone: worst?.trimmed_unread ? "bad" : "",
          about: worst?.lag_events ? `most: ${worst.group_name}` : feed.groups.length ? "all groups are at the end" : "no groups" }),
        tile("Parked", short(parked), { href: "#/parked", tone: parked ? "warn" : "", about: parked ? "events set aside" : "no event set aside" }),
        tile("Sessions", count(this.sessions.length), { href: "#/sessions",
          about: `${count(this.sessions.filter((row) => row.transaction_started_at).length)} in a transaction` }),
        tile("Retained", bytes(sum(feed.streams, (row) => row.bytes)), { href: "#/storage", about: "in all streams" })),
      panel("Needs attention", { key: "attention" }, found.length ? h("ul", { class: "notices" }, found.map(([tone, title, about, href]) =>
        h("li", { key: title }, notice(tone, href ? h("a", { href }, title) : title, about && h("p", {}, about)))))
        : notice("good", "Nothing needs attention.", h("p", { class: "muted" },
          "No group loses events, no event waits to be published, no transaction is open for long."))),
      h("div", { class: "columns", key: "charts" },
        panel("Consumer lag", { about: "Events that each group has yet to process" }, h("div", { key: "lag", island: this.lag })),
        panel("Throughput", { about: "Events committed per second" }, h("div", { key: "rate", island: this.rate }))),
      panel("Streams", {}, feed.streams.length ? table({
        name: "overview-streams", caption: "Streams and topics", rows: feed.streams, key: streamKey, redraw: this.app.redraw,
        columns: [
          { label: "Stream", cell: streamLink, sort: (row) => shown(row.schema_name, row.stream_name) },
          { label: "Source", cell: (row) => isTopic(row) ? badge("topic", "accent") : source(row), sort: source },
          { label: "Rate", number: true, sort: (row) => row.rate,
            cell: (row) => pair(spark(feed.rates.line(streamKey(row)).slice(-60)), rate(row.rate ?? 0)) },
          { label: "Events", number: true, cell: (row) => count(row.events), sort: (row) => row.events },
          { label: "Size", number: true, cell: (row) => bytes(row.bytes), sort: (row) => row.bytes },
          { label: "Groups", number: true, cell: (row) => count(row.groups.length), sort: (row) => row.groups.length },
          { label: "Largest lag", number: true, sort: (row) => laggards(row.groups)[0]?.lag_events ?? 0, cell: (row) => {
            const [most] = laggards(row.groups);
            return most ? pair(meter(most.lag_events / Math.max(1, row.events),
              `${short(most.lag_events)} of ${short(row.events)} retained events`), short(most.lag_events)) : "–";
          } },
        ] }) : empty("There are no streams yet.", "Create one in the SQL view, for example:",
        h("pre", { tabindex: "0" }, "CREATE STREAM orders_stream ON orders;"), h("a", { href: "#/sql" }, "Open the SQL view"))),
    ];
  }
}

export function isTopic(stream) {
  return stream.table_name === null && !stream.tables?.length;
}

// The tables of a stream, or the word for a topic.
export function source(stream) {
  if (isTopic(stream)) return "topic";
  const tables = Array.isArray(stream.tables) && stream.tables.length ? stream.tables : [stream.table_name];
  return tables.length > 3 ? `${tables.slice(0, 2).join(", ")} and ${tables.length - 2} more` : tables.join(", ");
}

export function groupName(group) {
  return `${group.group_name} on ${shown(group.schema_name, group.stream_name)}`;
}

// Conditions that an operator should know of, the worst first: tone, title, explanation, link.
function attention(feed, sessions, sinks) {
  const found = [];
  // Groups of sinks that do not read; the sink itself says so.
  const idle = new Set(sinks.filter((sink) => sink.state !== "running").map((sink) => groupPath({ ...sink, group_name: sink.sink_name })));
  for (const group of feed.groups) {
    const href = groupPath(group);
    if (group.trimmed_unread > 0) {
      found.push(["bad", `${groupName(group)} has lost ${count(group.trimmed_unread)} events`,
        "Retention has removed them before the group read them. Its next read reports the gap.", href]);
    }
    const left = group.headroom_seconds;
    if (left != null && group.lag_events && left / Math.max(1, left + group.lag_seconds) < HEADROOM) {
      found.push(["warn", `${groupName(group)} loses events in ${duration(left)}`,
        "Unless it catches up, retention removes events that it has not read.", href]);
    }
    const read = secondsSince(group.last_read_at);
    if (group.lag_events > 0 && !group.members.length && !idle.has(groupPath(group)) && (read === null || read > UNREAD_S)) {
      found.push(["info", `Nobody reads as ${groupName(group)}`, `${count(group.lag_events)} events wait; ${
        read === null ? "it has not been read since the server started" : `the last read was ${duration(Math.floor(read))} ago`}.`, href]);
    }
    if (group.parked_events > 0) {
      found.push(["warn", `${groupName(group)} has ${count(group.parked_events)} parked events`,
        "They are kept until somebody releases or discards them.", "#/parked"]);
    }
  }
  for (const stream of feed.streams) {
    if (stream.unpublished_seconds > UNPUBLISHED_S) {
      found.push(["warn", `${shown(stream.schema_name, stream.stream_name)} publishes late`,
        `${count(stream.unpublished_events)} committed events are not readable yet, for ${duration(stream.unpublished_seconds)}.`, null]);
    }
  }
  for (const session of sessions) {
    const open = secondsSince(session.transaction_started_at);
    if (open !== null && open > LONG_S) {
      found.push(["warn", `Session ${session.session_id} has a transaction open for ${duration(Math.floor(open))}`,
        `User ${session.user_name}${session.writer_lock ? `, writer lock: ${session.writer_lock}` : ""}.`, "#/sessions"]);
    }
  }
  for (const sink of sinks) {
    const [state, tone] = condition(sink);
    if (tone === "bad") found.push([tone, `Sink ${sink.sink_name} is ${state}`, sink.reason ?? sink.fault ?? "", "#/sinks"]);
    else if (state === "paused" && sink.lag_events > 0) {
      found.push(["info", `Sink ${sink.sink_name} is paused`, `${count(sink.lag_events)} events wait.`, "#/sinks"]);
    }
  }
  const order = ["bad", "warn", "info"];
  return found.sort((one, other) => order.indexOf(one[0]) - order.indexOf(other[0])).slice(0, 12);
}
