// The answer: a verdict, figures, each pool, and the cost over the threshold.

import { $, el, given, ms, number, percent, usd, whole } from "./server.js";

const capped = (limit) => (limit === null ? "no objective" : `objective ${given(limit)} ms`);

export function showAnswer(found, moved) {
  const { slo, analytic } = found;
  const over = found.status === "overloaded";
  const missed = ["ttft_p99_ms", "tpot_p99_ms"].filter((name) => slo[name].met === false).map(words);
  const verdict = over
    ? `Overloaded: requests arrive faster than pool ${overloadedPools(analytic)} can serve them`
    : missed.length ? `Misses the objective on P99 ${missed.join(" and P99 ")}` : "Feasible: every pool meets every objective";
  const place = $("verdict");
  place.textContent = `${verdict}.`;
  place.className = `verdict ${over || missed.length ? "bad" : "good"}`;
  $("cards").replaceChildren(
    card("cost", `${usd(found.cost_usd_per_hour)}/h`, `${found.design.gpus} GPUs; ${usd(found.cost_usd_per_million_output_tokens)} per million output tokens`),
    objective("P99 TTFT", slo.ttft_p99_ms, over),
    objective("P99 TPOT", slo.tpot_p99_ms, over),
    card("utilisation", percent(analytic.utilization), analytic.rejected_share > 1e-9 ? `${percent(analytic.rejected_share)} of the requests are too long and rejected` : "of the busiest pool", over ? "bad" : ""),
  );
  $("pool-figures").replaceChildren(poolTable(found));
  $("notes-inside").replaceChildren(...notes(found));
  $("timing").textContent = `Computed in ${number(found.compute_ms, 2)} ms, answered in ${number(moved, 2)} ms; model ${found.model}.`;
  $("answer").classList.remove("stale");
  return `${verdict}: ${usd(found.cost_usd_per_hour)} an hour, P99 TTFT ${ms(slo.ttft_p99_ms.value)}, P99 TPOT ${ms(slo.tpot_p99_ms.value)}, utilisation ${percent(analytic.utilization)}`;
}

export function showCompiling(seconds) {
  $("verdict").textContent = `Compiling the model for this workload and number of pools: ${Math.round(seconds)} s. Once for each; moves of sliders then take milliseconds.`;
  $("verdict").className = "verdict warn";
  for (const id of ["cards", "pool-figures"]) $(id).replaceChildren();
  $("timing").textContent = "";
}

export function showWrong(error) {
  $("verdict").textContent = error.message;
  $("verdict").className = "verdict bad";
  for (const id of ["cards", "pool-figures"]) $(id).replaceChildren();
  $("timing").textContent = "";
}

const words = (name) => name.split("_")[0].toUpperCase();

function overloadedPools(analytic) {
  return analytic.pools.map((pool, at) => (pool.overloaded ? at : null)).filter((at) => at !== null).join(" and ");
}

function card(title, value, note, tone = "") {
  return el("div", { class: tone }, el("dt", {}, title), el("dd", {}, value, el("small", {}, note)));
}

function objective(title, entry, over) {
  const worst = typeof entry.worst_pool === "number" && entry.worst_pool > entry.value * 1.01 ? `; worst pool ${ms(entry.worst_pool)}` : "";
  const said = entry.met === null ? "" : entry.met ? " ✓ met" : " ✗ missed";
  const tone = entry.met === null ? "" : entry.met ? "good" : "bad";
  return card(title, over ? "grows without end" : ms(entry.value), `${capped(entry.limit)}${said}${worst}`, tone);
}

function poolTable(found) {
  const rows = [
    ["profile", (at) => found.design.pools[at].profile],
    ["replicas", (at) => whole(found.design.pools[at].replicas)],
    ["requests of up to, tokens", (at) => whole(found.design.pools[at].upper_tokens)],
    ["share of the requests", (at) => percent(found.analytic.pools[at].share)],
    ["utilisation", (at) => percent(found.analytic.pools[at].utilization)],
    ["running requests a replica", (at) => number(found.analytic.pools[at].active_batch)],
    ["P99 TTFT", (at) => ms(found.analytic.pools[at].ttft_p99_ms)],
    ["P99 TPOT", (at) => ms(found.analytic.pools[at].tpot_p99_ms)],
    ["cost an hour", (at) => usd(found.analytic.pools[at].usd_per_hour)],
  ];
  const pools = found.design.pools.map((_, at) => at);
  return el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "pool"), ...pools.map((at) => el("th", { scope: "col" }, `${at}`)))),
    el("tbody", {}, ...rows.map(([title, show]) => el("tr", {}, el("th", { scope: "row" }, title), ...pools.map((at) => el("td", {}, show(at)))))));
}

function notes(found) {
  const inputs = Object.entries(found.inputs).map(([name, { value, source }]) => `${name} = ${typeof value === "number" ? value : value ?? "none"} (${source})`);
  const list = (title, lines) => (lines.length ? [el("h3", {}, title), el("ul", {}, ...lines.map((line) => el("li", {}, line)))] : []);
  return [...list("Warnings", found.warnings), ...list("Assumed", found.assumed), ...list("Inputs", inputs)];
}

const WIDE = 640, HIGH = 230, LEFT = 62, RIGHT = 12, TOP = 12, BOTTOM = 40;

// Least cost over the threshold: a line where the objectives can be met, shaded where they cannot.
export function showCurve(found, here, cost) {
  const figure = $("curve");
  const good = found.points.filter((point) => point.feasible);
  figure.hidden = false;
  if (!good.length) {
    $("curve-picture").replaceChildren();
    $("curve-words").textContent = "At no threshold does any number of replicas of these profiles meet the objectives.";
    return;
  }
  const first = found.points[0].threshold_tokens, last = found.points.at(-1).threshold_tokens;
  const costs = good.map((point) => point.cost_usd_per_hour);
  const lowest = Math.min(...costs), highest = Math.max(...costs, cost <= 3 * lowest ? cost : 0);
  const top = highest === lowest ? lowest * 1.1 + 1 : highest + 0.08 * (highest - lowest);
  const bottom = Math.max(0, lowest - 0.25 * (top - lowest));
  const x = (tokens) => LEFT + ((WIDE - LEFT - RIGHT) * Math.log(tokens / first)) / Math.log(last / first);
  const y = (value) => TOP + (HIGH - TOP - BOTTOM) * (1 - (value - bottom) / (top - bottom));
  const best = found.points[found.best];
  const parts = [];
  let run = [];
  const close = () => {
    if (run.length) parts.push(el("svg:polyline", { class: "line", points: run.join(" ") }));
    run = [];
  };
  found.points.forEach((point, at) => {
    if (point.feasible) return run.push(`${x(point.threshold_tokens)},${y(point.cost_usd_per_hour)}`);
    close();
    const from = x(found.points[Math.max(at - 1, 0)].threshold_tokens), to = x(point.threshold_tokens);
    parts.push(el("svg:rect", { class: "no", x: from, y: TOP, width: Math.max(to - from, 1), height: HIGH - TOP - BOTTOM }));
  });
  close();
  for (let tick = 2 ** Math.ceil(Math.log2(first)); tick <= last; tick *= last / first > 300 ? 4 : 2) {
    const side = x(tick) > WIDE - RIGHT - 20 ? "end" : "middle";
    parts.push(el("svg:text", { x: x(tick), y: HIGH - BOTTOM + 16, "text-anchor": side }, whole(tick)));
  }
  for (const value of [bottom, (bottom + top) / 2, top]) {
    parts.push(el("svg:line", { class: "axis", x1: LEFT, x2: WIDE - RIGHT, y1: y(value), y2: y(value) }));
    parts.push(el("svg:text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, `$${number(value)}`));
  }
  parts.push(el("svg:text", { x: (LEFT + WIDE) / 2, y: HIGH - 6, "text-anchor": "middle" }, "threshold between the pools, tokens"));
  const at = Math.min(Math.max(here, first), last);
  parts.push(el("svg:line", { class: "here", x1: x(at), x2: x(at), y1: TOP, y2: HIGH - BOTTOM }));
  if (cost <= top) parts.push(el("svg:circle", { class: "spot", cx: x(at), cy: y(Math.max(cost, bottom)), r: 5 }));
  parts.push(el("svg:circle", { class: "best", cx: x(best.threshold_tokens), cy: y(best.cost_usd_per_hour), r: 5 }));
  const said = `Least cost an hour that meets the objectives at each threshold, by the model: ${usd(best.cost_usd_per_hour)} with ${best.replicas.join(" + ")} replicas at ${whole(best.threshold_tokens)} tokens is the least (green). Yours is dashed. Shaded: no number of replicas is enough.`;
  $("curve-picture").replaceChildren(el("svg:svg", { class: "curve", viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": said }, ...parts));
  $("curve-words").textContent = said;
}
