// Events that groups have set aside: why, what is in them, and what becomes of them.

import { sql, view } from "../api.js";
import { h } from "../dom.js";
import { NOTHING, count, moment, quoted, shown } from "../format.js";
import { ago, badge, confirm, difference, empty, facts, panel, table, value } from "../widgets.js";
import { groupLink, streamLink } from "./links.js";
import { keyText } from "./tail.js";

const ROWS_MAX = 1000;

function identity(row) {
  return JSON.stringify([row.schema_name, row.stream_name, row.group_name, row.partition, Number(row.lsn)]);
}

export class Parked {
  title = "Parked events";

  constructor(app) {
    Object.assign(this, { app, rows: [], chosen: null });
  }

  async load(signal) {
    this.rows = await view("parked", { signal, limit: ROWS_MAX });
  }

  render() {
    const chosen = this.rows.find((row) => identity(row) === this.chosen);
    if (!this.rows.length) {
      return empty("No event is parked.", "A group that cannot process an event may park it and go on without it; "
        + "the event is kept until somebody releases or discards it.");
    }
    const parked = this.rows.filter((row) => row.state === "parked");
    return h("div", { class: "split" }, panel("All parked events", { key: "list",
      about: `${count(parked.length)} parked, ${count(this.rows.length - parked.length)} released and not committed yet` },
    table({
      name: "parked", caption: "Parked events", rows: this.rows, key: identity, redraw: this.app.redraw,
      chosen: (row) => identity(row) === this.chosen, more: this.rows.length >= ROWS_MAX,
      columns: [
        { label: "LSN", number: true, sort: (row) => row.lsn, cell: (row) => h("button", { type: "button", class: "link",
          "aria-expanded": String(identity(row) === this.chosen), "aria-label": `Event ${row.lsn}`, onclick: () => {
            this.chosen = this.chosen === identity(row) ? null : identity(row);
            this.app.redraw();
          } }, count(row.lsn)) },
        { label: "Group", cell: groupLink, sort: (row) => row.group_name },
        { label: "Stream", cell: streamLink, sort: (row) => shown(row.schema_name, row.stream_name) },
        { label: "Partition", number: true, cell: (row) => row.partition, sort: (row) => row.partition },
        { label: "State", cell: (row) => badge(row.state, row.state === "parked" ? "warn" : "accent"), sort: (row) => row.state },
        { label: "Key", cell: (row) => value(row.key == null ? null : keyText(row.key), "the key", 40), sort: (row) => keyText(row.key) },
        { label: "Reason", wide: true, cell: (row) => row.reason == null ? NOTHING : value(row.reason, "the reason"), sort: (row) => row.reason },
        { label: "Behind it", number: true, cell: (row) => count(row.behind), sort: (row) => row.behind },
        { label: "Parked", cell: (row) => ago(row.parked_at), sort: (row) => row.parked_at },
        { label: "By", cell: (row) => row.parked_by ?? NOTHING, sort: (row) => row.parked_by },
      ] })), chosen && this.detail(chosen));
  }

  detail(row) {
    const may = row.state === "parked";
    return panel(`Event ${row.lsn}`, { key: "detail", actions: [
      may && h("button", { type: "button", class: "primary", onclick: () => this.decide(row, "RELEASE") }, "Release"),
      may && h("button", { type: "button", class: "danger", onclick: () => this.decide(row, "DISCARD") }, "Discard"),
      h("button", { type: "button", onclick: () => {
        this.chosen = null;
        this.app.redraw();
      } }, "Close")] },
    facts([["Operation", row.op], ["Committed", moment(row.commit_time)], ["Transaction", row.txid == null ? null : String(row.txid)],
      ["Reason", row.reason && value(row.reason, "the reason", 300)], ["Deliveries", row.deliveries],
      ["Events of its key behind it", count(row.behind)]]),
    difference(row.before, row.after));
  }

  decide(row, word) {
    const statement = `ALTER CONSUMER GROUP ${quoted(row.group_name)} ON ${quoted(row.schema_name, row.stream_name)} `
      + `${word} PARTITION ${row.partition} AT ${row.lsn}`;
    const released = word === "RELEASE";
    confirm({
      title: `${released ? "Release" : "Discard"} event ${row.lsn}?`,
      about: released
        ? `The next reads of ${row.group_name} return it, with the ${count(row.behind)} events behind it, before other events of its partition.`
        : `${row.group_name} never receives it: the group's copy of the event is deleted, and events behind it are released. Other groups are not affected.`,
      statement, word: released ? "Release" : "Discard", tone: released ? "" : "bad",
      act: async () => {
        await sql(statement);
        await this.load();
        this.app.redraw();
      },
    });
  }
}
