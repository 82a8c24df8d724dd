// Asking the server, which is the only one ever asked, and making elements; text is always text, never markup.

export class Refusal extends Error {
  constructor(body) {
    super(sentence(body));
    this.body = body;
  }
}

function sentence({ what, value, allowed, hint }) {
  const found = value === null || value === undefined || value === "" ? "" : `, got ${value}`;
  const first = allowed ? `${what} must be ${allowed}${found}` : `${what}${value ? `: ${value}` : ""}`;
  return hint ? `${first}; ${hint}` : first;
}

export async function ask(path, { method = "GET", json, body } = {}) {
  const options = { method, headers: {} };
  if (json !== undefined) {
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(json);
  } else if (body !== undefined) {
    options.headers["content-type"] = "application/octet-stream";
    options.body = body;
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("the server does not answer; is `fleetgrad serve` still running?");
  }
  const found = await answer.json();
  if (!answer.ok) throw new Refusal(found);
  return found;
}

export const $ = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  const made = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export function trouble(error) {
  const place = $("trouble");
  place.hidden = !error;
  place.textContent = error ? error.message : "";
}

export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value === "inf" ? "∞" : value;
  if (value === 0) return "0";
  const places = Math.max(digits - 1 - Math.floor(Math.log10(Math.abs(value))), 0);
  return value.toLocaleString("en-US", { minimumFractionDigits: Math.min(places, 9), maximumFractionDigits: Math.min(places, 9) });
}

// A number as somebody gave it: 50, 0.25, 16,384.
export const given = (value) => (typeof value === "number" ? value.toLocaleString("en-US", { maximumSignificantDigits: 6 }) : number(value));
export const whole = (value) => (typeof value === "number" ? Math.round(value).toLocaleString("en-US") : number(value));
export const usd = (value) =>
  typeof value === "number" ? `$${value.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}` : "–";
export const ms = (value) => (value === "inf" ? "no limit" : `${number(value)} ms`);
export const percent = (value) => (typeof value === "number" ? `${number(100 * value)} %` : number(value));
