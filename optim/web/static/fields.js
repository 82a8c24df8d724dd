// The fields: a slider with a number beside it, the pools, and the question that they make together.

import { $, ask, el, number, trouble, whole } from "./server.js";

const STEPS = 1000;
const TYPING_MS = 350;

// A slider and a number that say the same. Its ends follow a number that is typed beyond them.
export class Slider {
  constructor({ id, label, low, high, value, whole: integral = false, log = true, unit = "", changed }) {
    Object.assign(this, { low, high, integral, log, unit, changed });
    this.range = el("input", { type: "range", id: `${id}-slider`, min: 0, max: STEPS, step: 1, "aria-label": `${label}, slider` });
    this.field = el("input", { type: "number", id, step: integral ? 1 : "any", min: integral ? 1 : 0, inputmode: "decimal" });
    this.element = el("div", { class: "slider" }, el("label", { for: id }, label), this.range, this.field);
    this.range.addEventListener("input", () => this.moved());
    this.field.addEventListener("input", () => this.soon());
    this.field.addEventListener("change", () => this.typed());
    this.set(value);
  }

  get value() {
    return this.held;
  }

  get disabled() {
    return this.field.disabled;
  }

  set disabled(off) {
    this.field.disabled = this.range.disabled = off;
  }

  ends(low, high) {
    this.low = low;
    this.high = Math.max(high, low + 1e-9);
    this.place();
  }

  set(value) {
    this.held = value;
    this.field.value = this.integral ? Math.round(value) : Number(value.toPrecision(4));
    this.place();
  }

  place() {
    const value = Math.min(Math.max(this.held, this.low), this.high);
    const share = this.log
      ? Math.log(value / this.low) / Math.log(this.high / this.low)
      : (value - this.low) / (this.high - this.low);
    this.range.value = Math.round(STEPS * (Number.isFinite(share) ? share : 0));
    this.say();
  }

  say() {
    this.range.setAttribute("aria-valuetext", `${this.field.value} ${this.unit}`.trim());
  }

  moved() {
    const share = Number(this.range.value) / STEPS;
    let value = this.log ? this.low * (this.high / this.low) ** share : this.low + share * (this.high - this.low);
    value = this.integral ? Math.round(value) : Number(value.toPrecision(3));
    this.held = value;
    this.field.value = value;
    this.field.removeAttribute("aria-invalid");
    this.say();
    this.changed();
  }

  // A number that is being typed passes through others that nobody means.
  soon() {
    clearTimeout(this.pause);
    this.pause = setTimeout(() => this.typed(), TYPING_MS);
  }

  typed() {
    clearTimeout(this.pause);
    const value = Number(this.field.value);
    const good = this.field.value !== "" && Number.isFinite(value) && value > 0;
    this.field.setAttribute("aria-invalid", String(!good));
    if (!good || value === this.held) return;
    this.held = value;
    if (value > this.high) this.high = value;
    if (value < this.low) this.low = value;
    this.place();
    this.changed();
  }
}

// All fields of the question. `changed` is called after every change, with what kind it was.
export class Fields {
  constructor(changed) {
    this.changed = changed;
    this.facts = null;
    this.pools = [];
    const move = () => changed("load");
    this.rate = new Slider({ id: "rate", label: "Requests per second", low: 0.1, high: 1000, value: 50, unit: "requests per second", changed: () => {
      this.rateIsGiven = true;
      move();
    } });
    this.ttft = new Slider({ id: "ttft", label: "Objective on P99 TTFT, ms", low: 20, high: 20000, value: 1000, unit: "milliseconds", changed: move });
    this.tpot = new Slider({ id: "tpot", label: "Objective on P99 TPOT, ms", low: 2, high: 500, value: 50, unit: "milliseconds", changed: move });
    $("load").append(this.rate.element, this.ttft.element, this.tpot.element);
    $("no-tpot").addEventListener("change", () => {
      this.tpot.disabled = $("no-tpot").checked;
      move();
    });
    $("max-context").addEventListener("change", () => {
      this.limitThresholds();
      changed("load");
    });
    $("model").addEventListener("change", move);
    $("workload").addEventListener("change", () => changed("workload"));
    $("add-pool").addEventListener("click", () => this.addPool());
  }

  get context() {
    const given = Number($("max-context").value);
    const longest = this.facts ? this.facts.total_tokens.longest : 16384;
    return given >= 2 ? given : longest;
  }

  get workload() {
    const [kind, ...rest] = $("workload").value.split(":");
    return { [kind]: rest.join(":") };
  }

  // What the server is asked.
  get question() {
    const prices = {};
    for (const pool of this.pools) if (pool.price.value !== "") prices[pool.profile.value.trim()] = Number(pool.price.value);
    return {
      workload: this.workload,
      rate_rps: this.rate.value,
      ttft_p99_ms: this.ttft.value,
      tpot_p99_ms: $("no-tpot").checked ? null : this.tpot.value,
      max_context: $("max-context").value === "" ? null : Number($("max-context").value),
      model: $("model").value,
      pools: this.pools.map((pool, at) => ({
        profile: pool.profile.value.trim(),
        replicas: pool.replicas.value,
        ...(at < this.pools.length - 1 ? { upper_tokens: pool.upper.value } : {}),
      })),
      ...(Object.keys(prices).length ? { usd_per_gpu_hour: prices } : {}),
    };
  }

  // The other way round: of an example, or of a plan.
  set question(asked) {
    if (asked.workload) {
      const [[kind, name]] = Object.entries(asked.workload).filter(([, value]) => value);
      $("workload").value = `${kind}:${name}`;
    }
    for (const [slider, value] of [[this.rate, asked.rate_rps], [this.ttft, asked.ttft_p99_ms], [this.tpot, asked.tpot_p99_ms]]) {
      if (value) {
        slider.ends(Math.min(slider.low, value), Math.max(slider.high, value));
        slider.set(value);
      }
    }
    $("no-tpot").checked = !asked.tpot_p99_ms;
    this.tpot.disabled = $("no-tpot").checked;
    $("max-context").value = asked.max_context ?? "";
    if (asked.model) $("model").value = asked.model;
    this.pools.forEach((pool) => pool.element.remove());
    this.pools = [];
    for (const pool of asked.pools) this.pool({ ...pool, price: asked.usd_per_gpu_hour?.[pool.profile] });
    this.numbered();
  }

  // Sliders that suit a workload: its own rate until one is given, thresholds within its lengths.
  suit(facts, { keepRate = false } = {}) {
    this.facts = facts;
    const rate = !keepRate && !this.rateIsGiven && facts.rate_rps ? facts.rate_rps : this.rate.value;
    this.rate.ends(Math.min(0.1, rate), Math.max(1000, 20 * rate));
    this.rate.set(rate);
    this.limitThresholds();
  }

  limitThresholds() {
    const low = Math.max(this.facts ? this.facts.total_tokens.shortest : 2, 2);
    const high = Math.max(this.context - 1, low + 1);
    let least = low;
    this.pools.slice(0, -1).forEach((pool) => {
      pool.upper.ends(low, high);
      const value = Math.min(Math.max(pool.upper.value, least), high);
      if (value !== pool.upper.value) pool.upper.set(value);
      least = Math.min(value + 1, high);
    });
  }

  addPool() {
    if (this.pools.length >= 6) return trouble(new Error("six pools at most"));
    const last = this.pools.at(-1);
    const before = this.pools.length > 1 ? this.pools.at(-2).upper.value : this.context / 8;
    last.upper.set(Math.round(Math.sqrt(before * this.context)));
    this.pool({ profile: last.profile.value, replicas: Math.max(1, Math.ceil(last.replicas.value / 2)), price: last.price.value });
    this.numbered();
    this.limitThresholds();
    this.changed("pools");
    this.pools.at(-1).profile.focus();
  }

  pool({ profile, replicas, upper_tokens: upper, price }) {
    const at = (this.made = (this.made ?? 0) + 1);
    const fleet = () => this.changed("fleet");
    const made = { profile: el("input", { id: `profile-${at}`, list: "profile-names", value: profile, spellcheck: "false" }) };
    made.price = el("input", { type: "number", id: `price-${at}`, min: 0, step: "any", placeholder: "the profile's own", inputmode: "decimal", value: price ?? "" });
    made.replicas = new Slider({ id: `replicas-${at}`, label: "Replicas", low: 1, high: Math.max(32, 2 * replicas), value: replicas, whole: true, log: false, unit: "replicas", changed: fleet });
    made.upper = new Slider({ id: `upper-${at}`, label: "Takes requests up to, tokens", low: 2, high: this.context, value: upper ?? this.context, whole: true, unit: "tokens", changed: fleet });
    made.facts = el("p", { class: "soft" });
    made.remove = el("button", { type: "button" }, "Remove this pool");
    made.legend = el("legend");
    made.element = el("fieldset", {}, made.legend, el("label", { for: `profile-${at}` }, "Profile: model on GPU"), made.profile, made.facts,
      made.replicas.element, made.upper.element,
      el("div", { class: "grid" }, el("label", { for: `price-${at}` }, "$ per GPU-hour"), made.price), made.remove);
    made.profile.addEventListener("change", () => {
      this.describe(made);
      this.changed("pools");
    });
    made.price.addEventListener("change", () => this.changed("load"));
    made.remove.addEventListener("click", () => {
      this.pools.splice(this.pools.indexOf(made), 1);
      made.element.remove();
      this.numbered();
      this.changed("pools");
      this.pools[0].profile.focus();
    });
    this.pools.push(made);
    $("pools").append(made.element);
    this.describe(made);
  }

  numbered() {
    this.pools.forEach((pool, at) => {
      const last = at === this.pools.length - 1;
      pool.legend.textContent = this.pools.length === 1 ? "The pool" : `Pool ${at}${last ? ", the longest requests" : ""}`;
      pool.upper.element.hidden = last;
      pool.remove.hidden = this.pools.length === 1;
      pool.remove.setAttribute("aria-label", `Remove pool ${at}`);
    });
    $("add-pool").disabled = this.pools.length >= 6;
  }

  async describe(pool) {
    try {
      const facts = await ask(`/api/profile?name=${encodeURIComponent(pool.profile.value.trim())}`);
      pool.profile.removeAttribute("aria-invalid");
      pool.facts.textContent = `${facts.gpu}, ${whole(facts.gpus_per_replica)} GPU${facts.gpus_per_replica > 1 ? "s" : ""} a replica at $${number(facts.usd_per_gpu_hour)} each; KV cache of ${whole(facts.kv_tokens)} tokens, up to ${whole(facts.max_num_seqs)} sequences.`;
      pool.facts.title = facts.source;
    } catch (error) {
      pool.profile.setAttribute("aria-invalid", "true");
      pool.facts.textContent = error.message;
    }
  }
}
