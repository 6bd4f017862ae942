// The console: navigation, sign-in, and the loop that refreshes the view that is open.

import { ApiError, authorize, authorized, basic } from "./api.js";
import { h, icon, render } from "./dom.js";
import { Feed, sum } from "./feed.js";
import { short, timeOfDay } from "./format.js";
import { failure, notice } from "./widgets.js";
import { GroupDetail, Groups } from "./views/groups.js";
import { Overview } from "./views/overview.js";
import { Parked } from "./views/parked.js";
import { Deliveries, Sinks } from "./views/sinks.js";
import { Sql } from "./views/sql.js";
import { StreamDetail, Streams } from "./views/streams.js";
import { Pipelines, Sessions, Storage, SystemView, VIEWS } from "./views/system.js";
import { Tail } from "./views/tail.js";

// Between two refreshes; a server that answers slowly is asked less often, for a tenth of the time at most.
const EVERY_MS = 3000;
const SHARE = 9;
const AFTER_ERROR_MS = 5000;
const THEME = "ducktail.theme";

// Address -> view: the first word, and whether more follow.
const ROUTES = {
  "": Overview, streams: Streams, "streams/": StreamDetail, groups: Groups, "groups/": GroupDetail, parked: Parked,
  tail: Tail, "tail/": Tail, sql: Sql, sessions: Sessions, storage: Storage, pipelines: Pipelines,
  sinks: Sinks, deliveries: Deliveries,
};

const NAVIGATION = [
  ["Data", [["", "Overview", "overview"], ["streams", "Streams and topics", "streams"], ["tail", "Live tail", "tail"], ["sql", "SQL", "sql"]]],
  ["Consumers", [["groups", "Consumer groups", "groups"], ["parked", "Parked events", "parked"], ["sinks", "Sinks", "sinks"],
    ["deliveries", "Deliveries", "deliveries"], ["sources", "Sources", "sources"], ["pipelines", "Pipelines", "pipelines"],
    ["checkpoints", "Checkpoints", "pipelines"], ["bookmarks", "Bookmarks", "check"]]],
  ["Server", [["sessions", "Sessions", "sessions"], ["statements", "Slowest statements", "statements"], ["storage", "Disk and retention", "storage"],
    ["nodes", "Nodes", "nodes"], ["settings", "Settings", "settings"]]],
];
// Entries that need a view of the schema `ducktail` to be there.
const NEEDS_VIEW = new Set(["pipelines", "sinks", "deliveries", ...Object.keys(VIEWS)]);

class App {
  constructor() {
    this.feed = new Feed();
    this.redraw = () => this.draw();
    Object.assign(this, { view: null, error: null, paused: false, run: null, told: null, menu: false });
    this.shell();
    window.addEventListener("hashchange", () => this.open(true));
    document.addEventListener("visibilitychange", () => document.hidden || this.wake?.());
    document.addEventListener("unauthorized", (event) => this.signIn(event.detail));
    this.open(false);
  }

  shell() {
    this.head = h("div", { class: "head" });
    this.banner = h("div", { class: "banner" });
    this.main = h("main", { id: "content", tabindex: "-1" });
    this.content = h("div", { class: "content" });
    this.main.append(this.head, this.banner, this.content);
    const skip = h("a", { class: "skip", href: "#content", onclick: (event) => {
      event.preventDefault();
      this.main.focus();
    } }, "Skip to the content");
    this.side = h("header", { class: "side" });
    document.body.replaceChildren(skip, this.side, this.main);
    theme(remembered(THEME));
  }

  // The view of the present address.
  open(focus) {
    const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
    this.view?.close?.();
    const route = ROUTES[rest.length ? `${name}/` : name];
    if (route) this.view = new route(this, rest);
    else if (VIEWS[name]) this.view = new SystemView(this, name);
    else return location.replace("#/");
    this.at = name;
    this.menu = false;
    Object.assign(this, { error: null });
    this.content.replaceChildren();
    if (this.view.node) this.content.append(this.view.node);
    this.draw();
    if (focus) {
      this.head.querySelector("h1").focus();
      window.scrollTo(0, 0);
    }
    this.restart();
  }

  restart() {
    this.run?.abort(new DOMException("another view", "AbortError"));
    this.run = new AbortController();
    this.loop(this.run.signal);
  }

  async loop(signal) {
    while (!signal.aborted) {
      if (document.hidden || this.paused) {
        await new Promise((resolve) => {
          this.wake = resolve;
          signal.addEventListener("abort", resolve);
        });
        continue;
      }
      const start = performance.now();
      try {
        await this.feed.load(signal);
        await this.view.load?.(signal);
        this.error = null;
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ApiError && error.status === 401) return;
        if (!(error instanceof ApiError)) console.error(error);
        this.error = error;
      }
      if (signal.aborted) return;
      this.draw();
      const took = performance.now() - start;
      const pause = this.error ? AFTER_ERROR_MS : Math.max(EVERY_MS, SHARE * took);
      await new Promise((resolve) => {
        setTimeout(resolve, pause);
        signal.addEventListener("abort", resolve);
      });
    }
  }

  draw() {
    document.title = `${this.view.title} · ducktail`;
    render(this.side, this.sidebar());
    render(this.head, this.heading());
    render(this.banner, this.error && failure(this.error), this.feed.truncated && notice("info",
      "There are more streams, groups or partitions than the console shows.", " The SQL view can show the others."));
    if (this.view.still) this.view.refresh?.();
    else if (this.feed.at !== null) render(this.content, this.view.render());
    else if (!this.error) render(this.content, h("p", { class: "status", role: "status" }, "Loading…"));
  }

  sidebar() {
    const parked = sum(this.feed.groups, (group) => group.parked_events);
    return [
      h("div", { class: "brand" }, h("a", { href: "#/" }, mark(), h("span", {}, "ducktail")),
        h("button", { type: "button", class: "menu", "aria-expanded": String(this.menu), "aria-controls": "navigation", onclick: () => {
          this.menu = !this.menu;
          this.draw();
        } }, icon("menu"), "Menu")),
      h("nav", { "aria-label": "Views", id: "navigation", class: this.menu ? "open" : null }, NAVIGATION.map(([title, entries]) => {
        const present = entries.filter(([name]) => !NEEDS_VIEW.has(name) || this.feed.views.has(name));
        return h("div", { key: title }, h("h2", {}, title), h("ul", {}, present.map(([name, label, drawn]) => h("li", { key: name },
          h("a", { href: `#/${name}`, "aria-current": this.at === name ? "page" : null }, icon(drawn), h("span", {}, label),
            name === "parked" && parked > 0 && h("span", { class: "count" }, short(parked), h("span", { class: "hidden" }, " parked")))))));
      })),
      h("div", { class: "foot" }, h("span", { class: "muted" }, this.feed.user ? `User ${this.feed.user}` : ""),
        authorized() && h("button", { type: "button", class: "link", onclick: () => this.signOut() }, "Sign out")),
    ];
  }

  heading() {
    const dark = isDark();
    return [
      h("div", { class: "title" },
        this.view.parent && h("p", { class: "parent" }, h("a", { href: this.view.parent[1] }, this.view.parent[0]), h("span", { "aria-hidden": "true" }, " / ")),
        h("h1", { tabindex: "-1" }, this.view.title)),
      h("div", { class: "controls" },
        h("span", { class: `live ${this.paused ? "off" : this.error ? "bad" : "on"}` }, this.paused ? "Updates paused" : this.error ? "No answer"
          : this.feed.at === null ? "Connecting" : `Updated ${timeOfDay(this.feed.at)}`),
        h("button", { type: "button", "aria-pressed": String(this.paused), onclick: () => {
          this.paused = !this.paused;
          if (!this.paused) this.wake?.();
          this.draw();
        } }, icon(this.paused ? "play" : "pause"), this.paused ? "Resume updates" : "Pause updates"),
        h("button", { type: "button", class: "square", "aria-label": dark ? "Light colours" : "Dark colours", onclick: () => {
          const wanted = dark ? "light" : "dark";
          theme(wanted);
          remember(THEME, wanted);
          this.draw();
        } }, icon(dark ? "sun" : "moon"))),
    ];
  }

  signOut() {
    authorize(null);
    this.feed = new Feed();
    this.open(false);
  }

  // The form that asks who the user is; nothing is kept but for this tab.
  signIn(told) {
    if (document.querySelector("dialog.sign-in")) return;
    this.run?.abort(new DOMException("signed out", "AbortError"));
    const again = authorized();
    authorize(null);
    const message = h("div", { "aria-live": "assertive" }, again && failure(new ApiError(401, told)));
    const user = h("input", { name: "user", autocomplete: "username", required: true, autofocus: true });
    const password = h("input", { name: "password", type: "password", autocomplete: "current-password" });
    const token = h("input", { name: "token", type: "password", autocomplete: "off" });
    const byToken = h("input", { type: "checkbox", onchange: () => {
      pair.hidden = byToken.checked;
      single.hidden = !byToken.checked;
      user.required = !byToken.checked;
      token.required = byToken.checked;
    } });
    const pair = h("div", { class: "fields" }, h("label", {}, "User", user), h("label", {}, "Password", password));
    const single = h("div", { class: "fields", hidden: true }, h("label", {}, "Token", token));
    const box = h("dialog", { class: "sign-in", "aria-labelledby": "sign-in-title" },
      h("form", { onsubmit: (event) => {
        event.preventDefault();
        authorize(byToken.checked ? `Bearer ${token.value.trim()}` : basic(user.value, password.value));
        box.remove();
        this.feed = new Feed();
        this.open(false);
      } },
      h("div", { class: "brand" }, mark(), h("span", {}, "ducktail")), h("h2", { id: "sign-in-title" }, "Sign in"), message, pair, single,
      h("label", { class: "check" }, byToken, "Use a token instead of a password"),
      h("button", { type: "submit", class: "primary" }, "Sign in"),
      h("p", { class: "muted" }, "The same users and rights as over the Postgres wire. The browser keeps them for this tab only.")));
    box.addEventListener("cancel", (event) => event.preventDefault());
    document.body.append(box);
    box.showModal();
  }
}

function mark() {
  return h("img", { src: "/console/icon.svg", alt: "", width: 28, height: 28 });
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function theme(wanted) {
  if (wanted === "dark" || wanted === "light") document.documentElement.dataset.theme = wanted;
}

function isDark() {
  return (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
}

function remembered(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // The choice lasts until the page is closed.
  }
}

new App();
