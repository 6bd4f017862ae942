// Streams and topics: the list, and one of them with its partitions, groups and columns.

import { view } from "../api.js";
import { LineChart, spark } from "../charts.js";
import { h } from "../dom.js";
import { streamKey, sum } from "../feed.js";
import { NOTHING, bytes, count, duration, moment, rate, short, shown } from "../format.js";
import { ago, badge, empty, facts, meter, pair, panel, table, tile, tiles } from "../widgets.js";
import { groupTable } from "./groups.js";
import { address, streamLink } from "./links.js";
import { isTopic, source } from "./overview.js";

// Versions of a stream's columns that are listed, the newest ones.
const VERSIONS_MAX = 20;

export class Streams {
  title = "Streams and topics";

  constructor(app) {
    this.app = app;
    this.filter = "";
  }

  render() {
    const { feed, redraw } = this.app;
    const rows = feed.streams.filter((row) =>
      `${row.schema_name}.${row.stream_name} ${source(row)}`.toLowerCase().includes(this.filter.toLowerCase()));
    return [
      h("div", { class: "toolbar", key: "toolbar" },
        h("label", { class: "grow" }, "Filter by name or table", h("input", { type: "search", autocomplete: "off",
          oninput: (event) => {
            this.filter = event.target.value;
            redraw();
          } })),
        h("a", { class: "button", href: "#/tail" }, "Open the live tail")),
      panel("All streams", { key: "list" }, table({
        name: "streams", caption: "Streams and topics", rows, key: streamKey, redraw, more: feed.truncated,
        none: feed.streams.length ? "No stream has such a name." : "There are no streams that you may read.",
        columns: [
          { label: "Name", cell: streamLink, sort: (row) => shown(row.schema_name, row.stream_name) },
          { label: "Source", cell: (row) => isTopic(row) ? badge("topic", "accent") : source(row), sort: source },
          { label: "Partitions", number: true, cell: (row) => count(row.partitions), sort: (row) => row.partitions },
          { label: "Rate", number: true, sort: (row) => row.rate,
            cell: (row) => pair(spark(feed.rates.line(streamKey(row)).slice(-60)), rate(row.rate ?? 0)) },
          { label: "Events", number: true, cell: (row) => count(row.events), sort: (row) => row.events },
          { label: "Size", number: true, cell: (row) => bytes(row.bytes), sort: (row) => row.bytes },
          { label: "Retention", cell: kept, sort: kept },
          { label: "Headroom", number: true, cell: (row) => duration(headroom(row)), sort: headroom },
          { label: "Last event", cell: (row) => ago(row.last_event_at), sort: (row) => row.last_event_at },
        ] })),
    ];
  }
}

export function kept(row) {
  const parts = [row.retention === "none" ? null : row.retention, row.retention_bytes && bytes(row.retention_bytes)];
  return parts.filter(Boolean).join(", ") || "without end";
}

// The least time that is left to a group of the stream before it loses an event.
export function headroom(row) {
  const found = row.groups.map((group) => group.headroom_seconds).filter((left) => left != null);
  return found.length ? Math.min(...found) : null;
}

export class StreamDetail {
  constructor(app, [schema, name]) {
    Object.assign(this, { app, schema, name, title: shown(schema, name), versions: null });
    this.parent = ["Streams and topics", "#/streams"];
    this.chart = new LineChart("Events per second", short);
  }

  async load(signal) {
    // They rarely change: once for each visit is enough.
    this.versions ??= (await view("schema_versions", { signal, limit: 10_000 }))
      .filter((row) => row.schema_name === this.schema && row.stream_name === this.name)
      .sort((one, other) => other.schema_version - one.schema_version).slice(0, VERSIONS_MAX);
  }

  render() {
    const { feed, redraw } = this.app;
    const stream = feed.stream(this.schema, this.name);
    if (!stream) return empty("There is no such stream that you may read.", h("a", { href: "#/streams" }, "All streams"));
    const key = streamKey(stream);
    this.chart.update([{ name: "events per second", points: feed.rates.line(key) }]);
    const most = Math.max(1, ...stream.places.map((place) => Number(place.bytes)));
    const cluster = stream.places.some((place) => !place.owner_local || place.epoch);
    return [
      tiles(
        tile("Rate", rate(stream.rate ?? 0), { about: "events committed", chart: spark(feed.rates.line(key).slice(-60)) }),
        tile("Retained events", short(stream.events), { about: `${short(sum(stream.places, (p) => p.trimmed_events))} removed by retention` }),
        tile("Size", bytes(stream.bytes), { about: "as sent to readers" }),
        tile("End LSN", stream.end_lsn == null ? NOTHING : count(stream.end_lsn), { about: ago(stream.last_event_at) }),
        tile("Headroom", duration(headroom(stream)), { about: "until events are lost" })),
      h("div", { class: "columns", key: "about" },
        panel("Throughput", { about: "Events committed per second" }, h("div", { key: "rate", island: this.chart })),
        panel("Definition", { actions: h("a", { class: "button", href: address("tail", this.schema, this.name) }, "Live tail") },
          facts([
            ["Kind", isTopic(stream) ? "topic" : "stream on a table"], ["Source", isTopic(stream) ? null : source(stream)],
            ["Operations", isTopic(stream) ? null : stream.operations], ["Filter", stream.filter && h("code", {}, stream.filter)],
            ["Columns", stream.columns], ["Partitioned by", stream.partition_by], ["Retention", kept(stream)],
            ["Before image", stream.before], ["Compaction", stream.compaction], ["Buffer", bytes(stream.buffer_bytes)],
            ["Not published yet", stream.unpublished_events > 0
              && `${count(stream.unpublished_events)} events, ${duration(stream.unpublished_seconds)}`],
            ["Created", moment(stream.created_at)], ["Comment", stream.comment],
          ]))),
      panel("Partitions", {}, table({
        name: `partitions ${key}`, caption: "Partitions", rows: stream.places, key: (row) => row.partition, redraw,
        columns: [
          { label: "Partition", cell: (row) => row.partition, sort: (row) => row.partition },
          { label: "First LSN", number: true, cell: (row) => count(row.first_lsn), sort: (row) => row.first_lsn },
          { label: "Last LSN", number: true, cell: (row) => count(row.last_lsn), sort: (row) => row.last_lsn },
          { label: "Events", number: true, cell: (row) => count(row.events), sort: (row) => row.events },
          { label: "Size", number: true, sort: (row) => row.bytes,
            cell: (row) => pair(meter(row.bytes / most, `${bytes(row.bytes)}; the largest has ${bytes(most)}`), bytes(row.bytes)) },
          { label: "Removed", number: true, cell: (row) => count(row.trimmed_events), sort: (row) => row.trimmed_events },
          { label: "In memory from", number: true, cell: (row) => count(row.buffered_from_lsn), sort: (row) => row.buffered_from_lsn },
          { label: "Last event", cell: (row) => ago(row.last_event_at), sort: (row) => row.last_event_at },
          ...(cluster ? [{ label: "Node", cell: (row) => row.owner, sort: (row) => row.owner },
            { label: "Log", cell: (row) => badge(row.log, row.log === "here" ? "good" : "warn"), sort: (row) => row.log }] : []),
        ] })),
      panel("Consumer groups", { key: "groups" }, groupTable(this.app, `groups ${key}`, stream.groups)),
      !isTopic(stream) && panel("Columns", { about: "By version of the table, the newest first" }, table({
        name: `versions ${key}`, caption: "Versions of the columns", rows: this.versions ?? [], key: (row) => `${row.table_name} ${row.schema_version}`,
        redraw, none: "No versions are known.",
        columns: [
          { label: "Table", cell: (row) => row.table_name },
          { label: "Version", number: true, cell: (row) => row.schema_version },
          { label: "Since LSN", number: true, cell: (row) => count(row.since_lsn) },
          { label: "Primary key", cell: (row) => row.primary_key },
          { label: "Columns", wide: true, cell: (row) => columnList(row.columns) },
        ] })),
    ];
  }
}

function columnList(columns) {
  const found = typeof columns === "string" ? JSON.parse(columns) : columns ?? [];
  return h("ul", { class: "chips" }, found.slice(0, 60).map((column) =>
    h("li", {}, h("code", {}, column.name), " ", h("span", { class: "muted" }, column.type))),
  found.length > 60 && h("li", { class: "muted" }, `and ${found.length - 60} more`));
}
