// Consumer groups: their lag over time, and what each member owns.

import { view } from "../api.js";
import { LineChart, spark } from "../charts.js";
import { h } from "../dom.js";
import { groupKey } from "../feed.js";
import { NOTHING, bytes, count, duration, moment, short, shown } from "../format.js";
import { ago, badge, empty, facts, pair, panel, table, tile, tiles } from "../widgets.js";
import { groupLink, laggards, streamLink, streamPath } from "./links.js";
import { groupName } from "./overview.js";

// Colours of members; with more of them a colour stands for several, and the name beside it tells them apart.
const COLOURS = 8;

export function groupTable(app, name, rows, withStream = false) {
  const { feed, redraw } = app;
  return table({
    name, caption: "Consumer groups", rows, key: groupKey, redraw, none: "There are no consumer groups.", more: withStream && feed.truncated,
    columns: [
      { label: "Group", cell: groupLink, sort: (row) => row.group_name },
      ...(withStream ? [{ label: "Stream", cell: streamLink, sort: (row) => shown(row.schema_name, row.stream_name) }] : []),
      { label: "Lag in events", number: true, sort: (row) => row.lag_events, cell: (row) => pair(spark(feed.lag.line(groupKey(row)).slice(-60)), count(row.lag_events)) },
      { label: "Oldest unread", number: true, cell: (row) => row.lag_events ? duration(row.lag_seconds) : NOTHING, sort: (row) => row.lag_seconds },
      { label: "Headroom", number: true, cell: (row) => row.trimmed_unread > 0
        ? badge(`${count(row.trimmed_unread)} lost`, "bad") : duration(row.headroom_seconds), sort: (row) => row.headroom_seconds },
      { label: "Members", number: true, cell: (row) => count(row.members.length), sort: (row) => row.members.length },
      { label: "Parked", number: true, sort: (row) => row.parked_events, cell: (row) => row.parked_events
        ? h("a", { href: "#/parked" }, badge(count(row.parked_events), "warn")) : count(0) },
      { label: "Last commit", cell: (row) => ago(row.committed_at), sort: (row) => row.committed_at },
      { label: "State", cell: (row) => state(row), sort: (row) => row.lag_events > 0 },
    ] });
}

function state(group) {
  if (group.trimmed_unread > 0) return badge("gap", "bad");
  if (!group.lag_events) return badge("at the end", "good");
  return badge("behind", "warn");
}

export class Groups {
  title = "Consumer groups";

  constructor(app) {
    this.app = app;
    this.chart = new LineChart("Lag in events by group", short, true);
  }

  render() {
    const { feed } = this.app;
    this.chart.update(laggards(feed.groups).map((group) => ({ name: groupName(group), points: feed.lag.line(groupKey(group)) })));
    if (!feed.groups.length) {
      return empty("There are no consumer groups that you may see.", "A group remembers how far its readers are. Create one with:",
        h("pre", { tabindex: "0" }, "CREATE CONSUMER GROUP g ON s;"), h("a", { href: "#/sql" }, "Open the SQL view"));
    }
    return [
      panel("Lag over time", { about: "Events that each group has yet to process, sampled while this page is open" },
        h("div", { key: "lag", island: this.chart })),
      panel("All groups", { key: "list" }, groupTable(this.app, "groups", feed.groups, true)),
    ];
  }
}

export class GroupDetail {
  constructor(app, [schema, stream, name]) {
    Object.assign(this, { app, schema, stream, name, title: name, options: null });
    this.parent = ["Consumer groups", "#/groups"];
    this.chart = new LineChart("Lag in events", short, true);
  }

  async load(signal) {
    // The settings of a group rarely change, and the view that has them counts its lag again.
    if (!this.options) {
      this.options = (await view("consumer_groups", { signal, limit: 10_000 })).find((row) =>
        row.schema_name === this.schema && row.stream_name === this.stream && row.group_name === this.name);
    }
  }

  render() {
    const { feed, redraw } = this.app;
    const group = feed.group(this.schema, this.stream, this.name);
    if (!group) return empty("There is no such consumer group that you may see.", h("a", { href: "#/groups" }, "All groups"));
    const key = groupKey(group);
    const options = this.options ?? {};
    this.chart.update([{ name: "lag", points: feed.lag.line(key) }]);
    return [
      tiles(
        tile("Lag", short(group.lag_events), { about: group.lag_events ? `about ${bytes(group.lag_bytes)}` : "at the end", chart: spark(feed.lag.line(key).slice(-60)) }),
        tile("Oldest unread", group.lag_events ? duration(group.lag_seconds) : NOTHING, { about: "since its commit" }),
        tile("Headroom", group.trimmed_unread > 0 ? `${count(group.trimmed_unread)} lost` : duration(group.headroom_seconds),
          { about: "until events are lost", tone: group.trimmed_unread > 0 ? "bad" : "" }),
        tile("Parked", count(group.parked_events), { href: "#/parked", tone: group.parked_events ? "warn" : "",
          about: group.released_events ? `${count(group.released_events)} released` : "events set aside" }),
        tile("Members", count(group.members.length), { about: `${count(group.places.length)} partitions` })),
      h("div", { class: "columns", key: "about" },
        panel("Lag over time", {}, h("div", { key: "lag", island: this.chart })),
        panel("Who owns what", { key: "owners" }, owners(group), facts([
          ["Stream", h("a", { href: streamPath(group) }, shown(group.schema_name, group.stream_name))],
          ["Start", options.start], ["On a gap", options.on_gap], ["On park", options.on_park],
          ["Session timeout", options.session_timeout], ["Deliveries at most", options.max_deliveries],
          ["Last read", ago(group.last_read_at)], ["Created", options.created_at && moment(options.created_at)],
        ]))),
      group.members.length > 0 && panel("Members", {}, table({
        name: `members ${key}`, caption: "Members", rows: group.members, key: (row) => row.member_name, redraw,
        columns: [
          { label: "Member", cell: (row) => row.member_name, sort: (row) => row.member_name },
          { label: "State", cell: (row) => badge(row.state, row.state === "stable" ? "good" : "warn"), sort: (row) => row.state },
          { label: "Partitions", cell: (row) => listed(row.partitions), sort: (row) => listed(row.partitions) },
          { label: "Lag", number: true, cell: (row) => count(row.lag_events), sort: (row) => row.lag_events },
          { label: "Heartbeat", cell: (row) => ago(row.last_heartbeat), sort: (row) => row.last_heartbeat },
          { label: "Last read", cell: (row) => ago(row.last_read_at), sort: (row) => row.last_read_at },
          { label: "Last commit", cell: (row) => ago(row.last_commit_at), sort: (row) => row.last_commit_at },
          { label: "User", cell: (row) => row.user_name, sort: (row) => row.user_name },
        ] })),
      panel("Partitions", {}, table({
        name: `offsets ${key}`, caption: "Positions by partition", rows: group.places, key: (row) => row.partition, redraw,
        columns: [
          { label: "Partition", cell: (row) => row.partition, sort: (row) => row.partition },
          { label: "Committed LSN", number: true, cell: (row) => count(row.committed_lsn), sort: (row) => row.committed_lsn },
          { label: "End LSN", number: true, cell: (row) => count(row.end_lsn), sort: (row) => row.end_lsn },
          { label: "Lag", number: true, cell: (row) => count(row.lag_events), sort: (row) => row.lag_events },
          { label: "Oldest unread", number: true, cell: (row) => row.lag_events ? duration(row.lag_seconds) : NOTHING, sort: (row) => row.lag_seconds },
          { label: "Headroom", number: true, cell: (row) => row.trimmed_unread > 0 ? badge(`${count(row.trimmed_unread)} lost`, "bad")
            : row.headroom_seconds == null ? `${count(row.headroom_events)} events` : duration(row.headroom_seconds), sort: (row) => row.headroom_events },
          { label: "Member", cell: (row) => row.member ?? NOTHING, sort: (row) => row.member },
          { label: "Committed", cell: (row) => ago(row.committed_at), sort: (row) => row.committed_at },
          { label: "By", cell: (row) => row.committed_by ?? NOTHING, sort: (row) => row.committed_by },
        ] })),
    ];
  }
}

function listed(partitions) {
  const found = Array.isArray(partitions) ? partitions : [];
  return found.length ? found.join(", ") : NOTHING;
}

// A square for each partition in the colour of its member, with the members' names below.
function owners(group) {
  const names = [...new Set(group.places.map((place) => place.member).filter(Boolean))].sort();
  const colour = (name) => name === null ? "free" : `line-${names.indexOf(name) % COLOURS}`;
  return h("div", { class: "owners", key: "map" },
    h("ol", { class: "squares" }, group.places.slice(0, 512).map((place) =>
      h("li", { class: colour(place.member), title: `partition ${place.partition}: ${place.member ?? "no member"}, lag ${count(place.lag_events)}` },
        h("span", {}, String(place.partition)), h("span", { class: "hidden" }, ` ${place.member ?? "no member"}`)))),
    h("ul", { class: "legend" }, names.slice(0, 24).map((name) => h("li", {}, h("span", { class: `swatch ${colour(name)}` }), h("span", { class: "name" }, name))),
      names.length > 24 && h("li", { class: "muted" }, `and ${names.length - 24} more`),
      group.places.some((place) => place.member === null) && h("li", {}, h("span", { class: "swatch free" }), h("span", { class: "name" },
        names.length ? "no member" : "no members: any reader gets all partitions"))));
}
