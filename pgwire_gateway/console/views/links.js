// The addresses of streams and groups in the console.

import { h } from "../dom.js";
import { shown } from "../format.js";

export function address(...parts) {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

export function streamPath(row) {
  return address("streams", row.schema_name, row.stream_name);
}

export function groupPath(row) {
  return address("groups", row.schema_name, row.stream_name, row.group_name);
}

export function streamLink(row) {
  return h("a", { href: streamPath(row) }, shown(row.schema_name, row.stream_name));
}

export function groupLink(row) {
  return h("a", { href: groupPath(row) }, row.group_name);
}

// Groups by their lag, the largest first.
export function laggards(groups) {
  return [...groups].sort((one, other) => other.lag_events - one.lag_events);
}
