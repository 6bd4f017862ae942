// The HTTP API: requests, their errors, statements, and events as they happen.

// For the time of the browser's tab, so that a reload does not ask again; never on disk.
const KEY = "ducktail.authorization";
const REQUEST_MS = 60_000;

let authorization = remembered();

function remembered() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

// Credentials for all further requests; null forgets them.
export function authorize(header) {
  authorization = header;
  try {
    if (header) sessionStorage.setItem(KEY, header);
    else sessionStorage.removeItem(KEY);
  } catch {
    // Without storage they are kept in memory only.
  }
}

export function basic(user, password) {
  const bytes = new TextEncoder().encode(`${user}:${password}`);
  return `Basic ${btoa(String.fromCharCode(...bytes))}`;
}

export function authorized() {
  return authorization !== null;
}

export class ApiError extends Error {
  constructor(status, { sqlstate, message, detail, hint, position } = {}) {
    super(message ?? (status ? `The server answered ${status}.` : "The server does not answer."));
    Object.assign(this, { status, sqlstate, detail, hint, position });
  }
}

// A number that JavaScript's own numbers would change keeps its digits.
class Digits {
  constructor(digits) {
    this.digits = digits;
  }

  toString() {
    return this.digits;
  }

  valueOf() {
    return Number(this.digits);
  }
}

export function parse(text) {
  return JSON.parse(text, (_, value, context) => {
    if (typeof value !== "number" || !context?.source || String(value) === context.source) return value;
    const exact = Number.isInteger(value) ? Number.isSafeInteger(value) : context.source.length < 17;
    return exact && !/[.]\d*0$/.test(context.source) ? value : new Digits(context.source);
  });
}

async function request(path, { method = "GET", body, signal, headers: more, accept = "application/json" } = {}) {
  const headers = { Accept: accept, ...more };
  if (authorization) headers.Authorization = authorization;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    // The browser's own question for a password would stand in front of the page.
    response = await fetch(path, { method, headers, signal, credentials: "omit", cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (signal?.aborted) throw signal.reason;
    throw new ApiError(0, { message: `The server does not answer (${error.message}).` });
  }
  if (!response.ok) throw await failure(response);
  return response;
}

async function failure(response) {
  let told = {};
  try {
    told = parse(await response.text()).error ?? {};
  } catch {
    // An answer without a description, for example of a proxy.
  }
  if (response.status === 401) document.dispatchEvent(new CustomEvent("unauthorized", { detail: told }));
  return new ApiError(response.status, told);
}

export async function call(path, options = {}) {
  const limit = AbortSignal.timeout(options.timeout ?? REQUEST_MS);
  const signal = options.signal ? AbortSignal.any([options.signal, limit]) : limit;
  const response = await request(path, { ...options, signal });
  const text = await response.text();
  return options.plain ? text : parse(text);
}

// A statement's answer: columns, rows, command, truncated.
export function sql(text, parameters = [], { limit = 1000, timeout = REQUEST_MS / 2, ...options } = {}) {
  const body = { sql: text, parameters, limit, timeout_ms: timeout };
  return call("/v1/sql", { method: "POST", body, ...options, timeout: timeout + REQUEST_MS });
}

// The rows of a query as objects.
export async function records(text, parameters, options) {
  return objects(await sql(text, parameters, options));
}

// The rows of a view of the schema `ducktail` as objects.
export async function view(name, { limit = 1000, ...options } = {}) {
  return objects(await call(`/v1/views/${encodeURIComponent(name)}?limit=${limit}`, options));
}

function objects({ columns, rows }) {
  return rows.map((row) => Object.fromEntries(columns.map(({ name }, at) => [name, row[at]])));
}

// The events of a stream as they happen: objects with id, event and data, until the signal or the server ends it.
// last: the id of the last event that was seen, to go on behind it.
export async function* events(path, signal, last) {
  const headers = last ? { "Last-Event-ID": last } : {};
  const response = await request(path, { signal, headers, accept: "text/event-stream" });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let message = {};
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line) {
          field(message, line);
        } else {
          if (message.data !== undefined) yield message;
          message = {};
        }
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function field(message, line) {
  const colon = line.indexOf(":");
  if (colon === 0) return;
  const name = colon < 0 ? line : line.slice(0, colon);
  const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
  if (name === "data") message.data = message.data === undefined ? value : `${message.data}\n${value}`;
  else if (name === "id" || name === "event") message[name] = value;
}
