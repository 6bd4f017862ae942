// The state of streams and groups that most views show, read together, and its history while the page is open.

import { call, view } from "./api.js";

// Rows of one view that a refresh reads at most; the page says where there are more.
export const ROWS_MAX = 2000;
// Points of each line, and lines, that are kept: at one point in three seconds some 30 minutes.
const POINTS_MAX = 600;
const LINES_MAX = 300;

// Their rows come in the order of names and partitions.
const VIEWS = ["streams", "partitions", "offsets", "members"];

// Points in time of several lines: a bounded history.
export class History {
  constructor() {
    this.lines = new Map();
  }

  add(key, at, value) {
    let line = this.lines.get(key);
    if (!line) {
      if (this.lines.size >= LINES_MAX) return;
      this.lines.set(key, (line = []));
    }
    line.push([at, value]);
    if (line.length > POINTS_MAX) line.shift();
  }

  line(key) {
    return this.lines.get(key) ?? [];
  }
}

export function streamKey(row) {
  return JSON.stringify([row.schema_name, row.stream_name]);
}

export function groupKey(row) {
  return JSON.stringify([row.schema_name, row.stream_name, row.group_name]);
}

export class Feed {
  constructor() {
    this.views = new Set();
    this.user = null;
    this.at = null;
    this.streams = [];
    this.groups = [];
    this.truncated = false;
    this.lag = new History();
    this.rates = new History();
    this.allRates = new History();
    this.totals = new Map();
  }

  // Who the user is, and which views this server has.
  async open(signal) {
    const { views, user } = await call("/v1/views", { signal });
    this.views = new Set(views);
    this.user = user;
  }

  async load(signal) {
    if (!this.user) await this.open(signal);
    const found = {};
    for (const name of VIEWS) found[name] = await view(name, { signal, limit: ROWS_MAX });
    this.truncated = Object.values(found).some((rows) => rows.length >= ROWS_MAX);
    this.take(found, Date.now());
  }

  take({ streams, partitions, offsets, members }, now) {
    const seconds = this.at === null ? null : (now - this.at) / 1000;
    this.at = now;
    const byStream = new Map(streams.map((row) => [streamKey(row), { ...row, places: [], groups: [], rate: null }]));
    for (const row of partitions) byStream.get(streamKey(row))?.places.push(row);
    this.streams = [...byStream.values()];
    this.groups = grouped(offsets, members);
    for (const group of this.groups) byStream.get(streamKey(group))?.groups.push(group);
    let all = null;
    for (const stream of this.streams) {
      const key = streamKey(stream);
      const total = sum(stream.places, (place) => place.events + place.trimmed_events);
      if (seconds && this.totals.has(key)) {
        stream.rate = Math.max(0, total - this.totals.get(key)) / seconds;
        this.rates.add(key, now, stream.rate);
        all = (all ?? 0) + stream.rate;
      }
      this.totals.set(key, total);
    }
    for (const key of this.totals.keys()) if (!byStream.has(key)) this.totals.delete(key);
    this.rate = all;
    if (all !== null) this.allRates.add("all", now, all);
    for (const group of this.groups) this.lag.add(groupKey(group), now, group.lag_events);
  }

  stream(schema, name) {
    return this.streams.find((row) => row.schema_name === schema && row.stream_name === name);
  }

  group(schema, stream, name) {
    return this.groups.find((row) =>
      row.schema_name === schema && row.stream_name === stream && row.group_name === name);
  }
}

export function sum(rows, of) {
  return rows.reduce((total, row) => total + Number(of(row) ?? 0), 0);
}

function least(rows, of) {
  const found = rows.map(of).filter((value) => value != null);
  return found.length ? Math.min(...found) : null;
}

function latest(rows, of) {
  return rows.map(of).filter((value) => value != null).sort().at(-1) ?? null;
}

function grouped(offsets, members) {
  const found = new Map();
  for (const row of offsets) {
    const key = groupKey(row);
    if (!found.has(key)) found.set(key, { schema_name: row.schema_name, stream_name: row.stream_name,
      group_name: row.group_name, places: [], members: [] });
    found.get(key).places.push(row);
  }
  for (const row of members) found.get(groupKey(row))?.members.push(row);
  for (const group of found.values()) {
    const { places } = group;
    const behind = places.filter((place) => place.lag_events > 0);
    group.lag_events = sum(places, (place) => place.lag_events);
    group.lag_seconds = Math.max(0, ...places.map((place) => place.lag_seconds ?? 0));
    group.lag_bytes = sum(places, (place) => place.lag_bytes);
    group.parked_events = sum(places, (place) => place.parked_events);
    group.released_events = sum(places, (place) => place.released_events);
    group.trimmed_unread = sum(places, (place) => place.trimmed_unread);
    // The time and the events that remain before retention removes an event that the group has not read.
    group.headroom_seconds = least(behind, (place) => place.headroom_seconds);
    group.committed_at = latest(places, (place) => place.committed_at);
    group.last_read_at = latest(places, (place) => place.last_read_at);
  }
  return [...found.values()];
}
