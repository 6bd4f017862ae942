// Elements made from text, never from markup, and a render that changes an existing tree into a new one:
// a view builds its whole tree at each refresh, and focus, scroll positions and open lists survive.

const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = ["onclick", "oninput", "onchange", "onkeydown", "onsubmit", "ontoggle"];

// An element of HTML. Properties: `class`, `key` (its identity among its siblings), `island` (an object with a
// node that keeps its own content), handlers such as `onclick`, and attributes; false and null leave one out.
export function h(tag, properties, ...children) {
  return filled(document.createElement(tag), properties, children);
}

// The same for SVG.
export function s(tag, properties, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (HANDLERS.includes(name)) node[name] = value;
    else if (name === "key" || name === "island") node[name] = value;
    else if (name === "width%") node.style.width = `${value}%`;
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return node;
}

// Makes `place` contain what `nodes` contain, with the fewest changes.
export function render(place, ...nodes) {
  const next = document.createElement("div");
  next.append(...nodes.flat(Infinity).filter((node) => node != null && node !== false));
  children(place, next);
}

function children(old, next) {
  const keyed = new Map();
  for (const child of old.childNodes) if (child.key != null) keyed.set(child.key, child);
  let at = old.firstChild;
  for (const child of [...next.childNodes]) {
    let same = child.key != null ? keyed.get(child.key) : at;
    if (child.key == null) while (same && same.key != null && alike(same, child) === false) same = null;
    if (same && alike(same, child)) {
      if (same !== at) old.insertBefore(same, at);
      else at = at.nextSibling;
      patch(same, child);
    } else {
      old.insertBefore(child, at);
      adopt(child);
    }
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function alike(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && one.key === other.key
    && one.island === other.island;
}

function patch(old, next) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    // A list that was opened stays open.
    if (!next.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (old.getAttribute(name) === value) continue;
    // A `style` attribute as text is refused by the page's policy; widths are set on the object.
    if (name === "style") old.style.width = next.style.width;
    else old.setAttribute(name, value);
  }
  for (const name of HANDLERS) if (old[name] !== next[name]) old[name] = next[name];
  if (!old.island) children(old, next);
}

// Puts the nodes of islands into a tree that has become part of the page.
function adopt(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return;
  if (node.island) node.replaceChildren(node.island.node);
  else node.childNodes.forEach(adopt);
}

const ICONS = {
  overview: "M3 12h4l3-8 4 16 3-8h4",
  streams: "M3 7c3 0 3-3 6-3s3 3 6 3 3-3 6-3M3 13c3 0 3-3 6-3s3 3 6 3 3-3 6-3M3 19c3 0 3-3 6-3s3 3 6 3 3-3 6-3",
  groups: "M9 11a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM2 21v-1a6 6 0 0 1 12 0v1M16 3.500a4 4 0 0 1 0 7M18 15a6 6 0 0 1 4 5.500",
  parked: "M5 3h14v18H5zM9 17V7h4a3 3 0 0 1 0 6H9",
  tail: "M4 6h16M4 11h10M4 16h13M4 21h6",
  sinks: "M4 4h7v7H4zM13 13h7v7h-7zM11 7.500h5.500V13",
  deliveries: "M3 12h14M12 6l6 6-6 6M21 4v16",
  sources: "M20 4h-7v7h7zM11 13H4v7h7zM13 7.500H7.500V13",
  pipelines: "M3 6h5v4H3zM16 14h5v4h-5zM8 8h4a3 3 0 0 1 3 3v2a3 3 0 0 0 1 3",
  sessions: "M4 5h16v11H4zM9 20h6M12 16v4",
  statements: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 7v5l3.500 2",
  storage: "M4 6c0-4 16-4 16 0v12c0 4-16 4-16 0zM4 6c0 4 16 4 16 0M4 12c0 4 16 4 16 0",
  nodes: "M12 8a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM5 22a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM19 22a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM10.500 7.500 6.500 16M13.500 7.500l4 8.500M8 19h8",
  settings: "M4 7h10M18 7h2M4 17h2M10 17h10M16 4.500v5M8 14.500v5",
  sql: "M4 5l6 6-6 6M12 19h8",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.500 1.500M17.500 17.500 19 19M5 19l1.500-1.500M17.500 6.500 19 5",
  moon: "M20 14.500A8.500 8.500 0 0 1 9.500 4 8.500 8.500 0 1 0 20 14.500z",
  pause: "M8 5v14M16 5v14",
  play: "M7 4l13 8-13 8z",
  menu: "M4 6h16M4 12h16M4 18h16",
  warning: "M12 3 2 20h20zM12 10v4M12 17v.5",
  info: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 11v5M12 7.500v.5",
  check: "M4 12l5 5L20 6",
  leave: "M10 4H4v16h6M14 8l4 4-4 4M8 12h10",
};

// A drawn icon of 24 units; it adds nothing to the text beside it.
export function icon(name) {
  return s("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, s("path", { d: ICONS[name] }));
}
