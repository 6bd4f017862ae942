// The server itself: sessions, storage, pipelines, settings, and any other view of the schema `ducktail`.

import { call, records, view } from "../api.js";
import { h } from "../dom.js";
import { streamKey, sum } from "../feed.js";
import { NOTHING, bytes, count, duration, rate, secondsSince, shown, text } from "../format.js";
import { ago, badge, meter, pair, panel, table, tile, tiles, value } from "../widgets.js";
import { groupLink, streamLink } from "./links.js";
import { headroom, kept } from "./streams.js";

const ROWS_MAX = 1000;
// Transactions that are open for longer are marked.
const LONG_S = 30;

export class Sessions {
  title = "Sessions";

  constructor(app) {
    Object.assign(this, { app, rows: [] });
  }

  async load(signal) {
    this.rows = await view("sessions", { signal, limit: ROWS_MAX });
  }

  render() {
    const open = (row) => secondsSince(row.transaction_started_at);
    const transactions = this.rows.filter((row) => open(row) !== null);
    const longest = Math.max(0, ...transactions.map(open));
    return [
      tiles(
        tile("Sessions", count(this.rows.length)),
        tile("In a transaction", count(transactions.length)),
        tile("Longest transaction", transactions.length ? duration(longest) : NOTHING, { tone: longest > LONG_S ? "warn" : "",
          about: longest > LONG_S ? "it may hold locks that others need" : "" }),
        tile("Waiting for a lock", count(this.rows.filter((row) => row.waits_for || /wait/i.test(row.writer_lock ?? "")).length))),
      panel("All sessions", { key: "list" }, table({
        name: "sessions", caption: "Sessions", rows: this.rows, key: (row) => row.session_id, redraw: this.app.redraw,
        more: this.rows.length >= ROWS_MAX,
        columns: [
          { label: "Session", number: true, cell: (row) => row.session_id, sort: (row) => row.session_id },
          { label: "User", cell: (row) => row.user_name, sort: (row) => row.user_name },
          { label: "Application", cell: (row) => row.application_name ? value(row.application_name, "application", 40) : NOTHING, sort: (row) => row.application_name },
          { label: "State", cell: (row) => badge(row.state, row.state === "active" ? "good" : /fail/i.test(row.state) ? "bad" : "quiet"), sort: (row) => row.state },
          { label: "Since", cell: (row) => ago(row.state_changed_at), sort: (row) => row.state_changed_at },
          { label: "Transaction", number: true, sort: open, cell: (row) => {
            const seconds = open(row);
            return seconds === null ? NOTHING : seconds > LONG_S ? badge(duration(Math.floor(seconds)), "warn") : duration(seconds);
          } },
          { label: "Writer lock", cell: (row) => row.writer_lock ? badge(row.writer_lock, "accent") : NOTHING, sort: (row) => row.writer_lock },
          { label: "Waits for", cell: (row) => row.waits_for ?? NOTHING, sort: (row) => row.waits_for },
          ...(this.rows.some((row) => row.node) ? [{ label: "Node", cell: (row) => row.node ?? NOTHING, sort: (row) => row.node }] : []),
          ...(this.rows.some((row) => row.trace) ? [{ label: "Trace", cell: (row) => value(row.trace, "trace", 40), sort: (row) => row.trace }] : []),
        ] })),
    ];
  }
}

// Lines of Prometheus' text format without labels, as name -> value.
function gauges(metrics) {
  const found = {};
  for (const line of metrics.split("\n")) {
    const [, name, number] = /^ducktail_(\w+) (\S+)$/.exec(line) ?? [];
    if (name) found[name] = Number(number);
  }
  return found;
}

export class Storage {
  title = "Disk and retention";

  constructor(app) {
    Object.assign(this, { app, database: null, metrics: null, loads: 0 });
  }

  async load(signal) {
    // Each of these is a session of its own on the server: sizes are read less often than the rest.
    if (this.loads++ % 5) return;
    [this.database] = await records("SELECT * FROM pragma_database_size() WHERE database_name = current_database()", [], { signal }).catch(() => [null]);
    // A limited user may not see the metrics; the sizes of streams are shown without them.
    this.metrics = await fetchMetrics(signal).catch(() => null);
  }

  render() {
    const { feed, redraw } = this.app;
    const most = Math.max(1, ...feed.streams.map((row) => Number(row.bytes)));
    const { database, metrics } = this;
    return [
      tiles(
        database && tile("Database file", database.database_size, { about: `${count(database.free_blocks)} of ${count(database.total_blocks)} blocks are free` }),
        database && tile("Write-ahead log", database.wal_size),
        database && tile("DuckDB's memory", database.memory_usage, { about: `of ${database.memory_limit}` }),
        metrics && tile("Buffers of streams", bytes(metrics.buffer_bytes), { about: `of ${bytes(metrics.buffer_bytes_max)}`,
          chart: meter(metrics.buffer_bytes / metrics.buffer_bytes_max, "share of the buffers that is used") }),
        tile("Retained events", bytes(sum(feed.streams, (row) => row.bytes)), { about: `${count(sum(feed.streams, (row) => row.events))} events` })),
      panel("Retention by stream", { about: "How much each stream keeps, and how much time or space its groups have left" }, table({
        name: "storage", caption: "Retention by stream", rows: feed.streams, key: streamKey, redraw, none: "There are no streams.",
        columns: [
          { label: "Stream", cell: streamLink, sort: (row) => shown(row.schema_name, row.stream_name) },
          { label: "Size", number: true, sort: (row) => row.bytes, cell: (row) => pair(
            meter(row.bytes / most, `${bytes(row.bytes)}; the largest stream has ${bytes(most)}`), bytes(row.bytes)) },
          { label: "Events", number: true, cell: (row) => count(row.events), sort: (row) => row.events },
          { label: "Removed", number: true, cell: (row) => count(sum(row.places, (place) => place.trimmed_events)),
            sort: (row) => sum(row.places, (place) => place.trimmed_events) },
          { label: "Retention", cell: kept, sort: kept },
          { label: "Share of its bytes", number: true, sort: (row) => row.retention_bytes ? row.bytes / row.retention_bytes : null,
            cell: (row) => row.retention_bytes ? pair(meter(row.bytes / row.retention_bytes, "used of retention_bytes",
              row.bytes > row.retention_bytes * 0.9 ? "warn" : ""), `${Math.round((row.bytes / row.retention_bytes) * 100)} %`) : NOTHING },
          { label: "Least headroom", number: true, cell: (row) => duration(headroom(row)), sort: headroom },
          { label: "Group", cell: (row) => {
            const least = headroom(row);
            const group = row.groups.find((one) => least !== null && one.headroom_seconds === least);
            return group ? groupLink(group) : NOTHING;
          } },
        ] })),
    ];
  }
}

async function fetchMetrics(signal) {
  return gauges(await call("/metrics", { signal, accept: "text/plain", plain: true }));
}

export class Pipelines {
  title = "Pipelines";

  constructor(app) {
    Object.assign(this, { app, rows: [] });
  }

  async load(signal) {
    this.rows = await view("pipelines", { signal, limit: ROWS_MAX });
  }

  render() {
    return panel("Reports of pipelines", { about: "The newest report of each" }, table({
      name: "pipelines", caption: "Pipelines", rows: this.rows, key: (row) => row.pipeline_name, redraw: this.app.redraw,
      none: "No pipeline has reported. REPORT PIPELINE does so; the ready-made pipelines on Spark report by themselves.",
      columns: [
        { label: "Pipeline", cell: (row) => row.pipeline_name, sort: (row) => row.pipeline_name },
        { label: "Status", cell: (row) => row.status ? badge(row.status, /fail|error/i.test(row.status) ? "bad" : /run|active/i.test(row.status) ? "good" : "quiet") : NOTHING, sort: (row) => row.status },
        { label: "Batch", number: true, cell: (row) => count(row.batch_id), sort: (row) => row.batch_id },
        { label: "Events", number: true, cell: (row) => count(row.events), sort: (row) => row.events },
        { label: "Events per second", number: true, cell: (row) => rate(row.events_per_second), sort: (row) => row.events_per_second },
        { label: "State rows", number: true, cell: (row) => count(row.state_rows), sort: (row) => row.state_rows },
        { label: "Watermark", cell: (row) => row.watermark ?? NOTHING, sort: (row) => row.watermark },
        { label: "Reported", cell: (row) => ago(row.reported_at), sort: (row) => row.reported_at },
        { label: "Report", cell: (row) => value(row.state, `report of ${row.pipeline_name}`, 24) },
      ] }));
  }
}

// Any view: its columns as they come, with the most telling ones first.
export class SystemView {
  constructor(app, name) {
    Object.assign(this, { app, name, ...VIEWS[name], columns: [], rows: [] });
  }

  async load(signal) {
    const rows = await view(this.name, { signal, limit: ROWS_MAX });
    this.rows = rows;
    // A column that is empty in all rows says nothing.
    this.columns = rows.length ? Object.keys(rows[0]).filter((name) => rows.some((row) => row[name] !== null)) : [];
  }

  render() {
    return panel(this.title, { key: "view", about: this.about }, table({
      name: `view ${this.name}`, caption: this.title, rows: this.rows, redraw: this.app.redraw, none: this.none ?? "Nothing to show.",
      more: this.rows.length >= ROWS_MAX,
      columns: this.columns.map((name) => ({
        label: name.replaceAll("_", " "), number: this.rows.every((row) => row[name] === null || typeof row[name] === "number"),
        cell: (row) => cell(name, row), sort: (row) => row[name] !== null && typeof row[name] === "object" ? text(row[name]) : row[name],
      })) }));
  }
}

function cell(name, row) {
  const found = row[name];
  if (found === null) return NOTHING;
  if (/_at$|^since$/.test(name)) return ago(found);
  if (/_bytes$|^bytes$/.test(name) && typeof found === "number") return bytes(found);
  if (/_seconds$|_s$/.test(name) && typeof found === "number") return duration(found);
  if (/_ms$/.test(name) && typeof found === "number") return duration(found / 1000);
  if (name === "state" || name === "status") {
    return badge(String(found), /fail|stop|dead|error|park/i.test(found) ? "bad" : /paus|retry|wait/i.test(found) ? "warn" : "good");
  }
  if (typeof found === "boolean") return badge(found ? "yes" : "no", found ? "good" : "quiet");
  return typeof found === "number" ? count(found) : value(found, name.replaceAll("_", " "));
}

export const VIEWS = {
  sources: { title: "Sources", about: "Where events come from", none: "There are no sources." },
  statements: { title: "Slowest statements", about: "Statements by the time that they took", none: "No statement is recorded." },
  checkpoints: { title: "Checkpoints", about: "Positions from which consumers, groups and pipelines resume", none: "There are no checkpoints." },
  bookmarks: { title: "Bookmarks", about: "Positions that have a name", none: "There are no bookmarks." },
  nodes: { title: "Nodes", about: "The nodes of the cluster", none: "There are no nodes that you may see." },
  settings: { title: "Settings", about: "Settings of this server, and where each was set", none: "There are no settings that you may see." },
};
