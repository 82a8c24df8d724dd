// Jobs: plan and verify, how far they are, what came of them, and two or more side by side.

import { $, ask, el, given, ms, number, trouble, usd, whole } from "./server.js";

const BUSY = ["queued", "running"];
const TONES = { queued: "busy", running: "busy", failed: "bad", cancelled: "", interrupted: "warn" };

export class Jobs {
  constructor(fields, taken) {
    this.fields = fields;
    this.taken = taken;
    this.compared = new Set();
    this.profiles = [];
    this.shown = new Map();
    $("plan-form").addEventListener("submit", (event) => this.submit(event, "plan"));
    $("verify-form").addEventListener("submit", (event) => this.submit(event, "verify"));
    $("add-profile").addEventListener("click", () => this.addProfile());
    $("plan-profile").addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.addProfile();
    });
  }

  async addProfile() {
    const name = $("plan-profile").value.trim();
    try {
      await ask(`/api/profile?name=${encodeURIComponent(name)}`);
      if (!this.profiles.includes(name)) this.profiles.push(name);
      $("plan-profile").value = "";
      trouble(null);
    } catch (error) {
      trouble(error);
    }
    this.showProfiles();
  }

  // Without a list of its own a plan chooses among the profiles of the pools.
  showProfiles() {
    const own = this.profiles.length > 0;
    const names = own ? this.profiles : [...new Set(this.fields.pools.map((pool) => pool.profile.value.trim()))];
    $("plan-profiles").replaceChildren(...names.map((name) => el("li", {}, name, own
      ? el("button", { type: "button", "aria-label": `Remove ${name}`, onclick: () => {
        this.profiles = this.profiles.filter((other) => other !== name);
        this.showProfiles();
        $("plan-profile").focus();
      } }, "Remove")
      : el("span", { class: "soft" }, "of the sliders"))));
  }

  async submit(event, kind) {
    event.preventDefault();
    const question = { ...this.fields.question, seed: Number($("seed").value || 0) };
    if (kind === "plan") {
      question.max_pools = Number($("max-pools").value);
      if ($("max-gpus").value !== "") question.max_gpus = Number($("max-gpus").value);
      if (this.profiles.length) question.profiles = this.profiles;
    }
    try {
      await ask("/api/jobs", { method: "POST", json: { kind, question } });
      trouble(null);
    } catch (error) {
      trouble(error);
    }
    await this.refresh();
  }

  // Asks at once, and again while something is going on.
  async refresh() {
    clearTimeout(this.later);
    let found;
    try {
      found = (await ask("/api/jobs")).jobs;
    } catch (error) {
      trouble(error);
      this.later = setTimeout(() => this.refresh(), 3000);
      return;
    }
    this.show(found);
    if (found.some((job) => BUSY.includes(job.state))) this.later = setTimeout(() => this.refresh(), 700);
  }

  show(found) {
    const place = $("jobs");
    const ids = new Set(found.map((job) => job.id));
    for (const [id, { element }] of this.shown) if (!ids.has(id)) { element.remove(); this.shown.delete(id); this.compared.delete(id); }
    for (const job of found) {
      const known = this.shown.get(job.id);
      const text = JSON.stringify(job);
      if (known?.text === text) continue;
      if (known && known.state === job.state) known.progress.textContent = this.progress(job);
      else {
        const made = this.item(job);
        if (known) known.element.replaceWith(made.element);
        else place.prepend(made.element);
        this.shown.set(job.id, { ...made, state: job.state });
        if (known) $("job-state").textContent = `${job.kind === "plan" ? "Plan" : "Verification"} ${job.label}: ${this.progress(job)}`;
      }
      this.shown.get(job.id).text = text;
    }
    this.found = found;
    this.compare();
  }

  progress(job) {
    if (job.state === "running") return `running: ${job.progress}`;
    if (job.state === "done") return job.summary.message;
    if (job.state === "failed") return `failed: ${job.error.what}${job.error.allowed ? ` must be ${job.error.allowed}` : ""}${job.error.hint ? `; ${job.error.hint}` : ""}`;
    return job.progress;
  }

  item(job) {
    const progress = el("p", {}, this.progress(job));
    const title = `${job.kind === "plan" ? "Plan" : "Verification"}: ${job.label}`;
    const tools = el("div", { class: "tools" });
    const inside = [el("h3", {}, title, el("span", { class: "soft" }, new Date(job.created).toLocaleString())), progress];
    if (job.state === "running") inside.push(el("progress", { "aria-label": `${title} is running` }));
    if (job.state === "done") inside.push(...this.result(job, tools, title));
    const act = (words, path, method) => tools.append(el("button", { type: "button", "aria-label": `${words}: ${title}`, onclick: async () => {
      try {
        await ask(path, { method });
        trouble(null);
      } catch (error) {
        trouble(error);
      }
      this.refresh();
    } }, words));
    if (BUSY.includes(job.state)) act("Cancel", `/api/jobs/${job.id}/cancel`, "POST");
    else {
      if (job.state !== "done") tools.append(el("button", { type: "button", "aria-label": `Run again: ${title}`, onclick: async () => {
        try {
          await ask("/api/jobs", { method: "POST", json: { kind: job.kind, label: job.label, question: job.question } });
        } catch (error) {
          trouble(error);
        }
        this.refresh();
      } }, "Run again"));
      act("Remove", `/api/jobs/${job.id}`, "DELETE");
    }
    const tone = job.state === "done" ? job.summary.tone : TONES[job.state];
    return { element: el("li", { class: tone || null, "data-state": job.state }, ...inside, tools), progress };
  }

  result(job, tools, title) {
    const { summary } = job;
    const box = el("input", { type: "checkbox", checked: this.compared.has(job.id), onchange: () => {
      this.compared[box.checked ? "add" : "delete"](job.id);
      this.compare();
    } });
    if (summary.pools) tools.append(el("label", {}, box, el("span", {}, "compare")));
    const file = (name, words, query = "") => el("a", { href: `/api/jobs/${job.id}/files/${name}${query}`, ...(query ? { target: "_blank", rel: "noopener" } : { download: "" }), "aria-label": `${words}: ${title}` }, words);
    tools.append(file("report.html", "Open report", "?view=true"), file("report.html", "report.html"), file("plan.toml", "plan.toml"), file("result.json", "JSON"), file("inputs.zip", "all inputs (zip)"));
    if (summary.pools) tools.append(el("button", { type: "button", "aria-label": `Put on the sliders: ${title}`, onclick: () => this.taken(job) }, "Put on the sliders"));
    const lines = summary.reasons.map((reason) => el("p", {}, reason));
    if (summary.pools) {
      lines.push(el("p", {}, `${summary.pools.map((pool) => `${pool.replicas} × ${pool.profile} (to ${whole(pool.upper_tokens)} tokens)`).join(" + ")}: ${usd(summary.cost_usd_per_hour)} an hour`));
      if (summary.simulated.ttft_p99_ms) lines.push(el("p", { class: "soft" }, `Simulated P99 TTFT ${interval(summary.simulated.ttft_p99_ms)}, P99 TPOT ${interval(summary.simulated.tpot_p99_ms)} over ${whole(summary.requests)} requests, 95 % intervals.`));
    }
    return lines;
  }

  compare() {
    const chosen = (this.found ?? []).filter((job) => this.compared.has(job.id));
    if (chosen.length < 2) return $("compare").replaceChildren();
    const rows = [
      ["kind", (job) => (job.kind === "plan" ? "plan" : "verification")],
      ["verdict", (job) => job.summary.message],
      ["workload", (job) => job.summary.inputs.workload],
      ["requests per second", (job) => given(job.summary.inputs.rate_rps)],
      ["objectives, P99 TTFT / TPOT, ms", (job) => `${given(job.summary.inputs.ttft_p99_ms)} / ${given(job.summary.inputs.tpot_p99_ms)}`],
      ["fleet", (job) => job.summary.pools.map((pool) => `${pool.replicas} × ${pool.profile}`).join(" + ")],
      ["thresholds, tokens", (job) => job.summary.pools.map((pool) => whole(pool.upper_tokens)).join(", ")],
      ["prices given, $ per GPU-hour", (job) => Object.entries(job.question.usd_per_gpu_hour ?? {}).map(([name, price]) => `${name}: ${price}`).join(", ") || "none"],
      ["GPUs", (job) => whole(job.summary.gpus), (job) => job.summary.gpus],
      ["cost an hour", (job) => usd(job.summary.cost_usd_per_hour), (job) => job.summary.cost_usd_per_hour],
      ["per million output tokens", (job) => usd(job.summary.cost_usd_per_million_output_tokens), (job) => job.summary.cost_usd_per_million_output_tokens],
      ["P99 TTFT, model", (job) => ms(job.summary.analytic.ttft_p99_ms), (job) => job.summary.analytic.ttft_p99_ms],
      ["P99 TTFT, simulated", (job) => interval(job.summary.simulated.ttft_p99_ms), (job) => job.summary.simulated.ttft_p99_ms?.value],
      ["P99 TPOT, model", (job) => ms(job.summary.analytic.tpot_p99_ms), (job) => job.summary.analytic.tpot_p99_ms],
      ["P99 TPOT, simulated", (job) => interval(job.summary.simulated.tpot_p99_ms), (job) => job.summary.simulated.tpot_p99_ms?.value],
    ];
    const line = ([title, show, value]) => {
      const values = value ? chosen.map((job) => (typeof value(job) === "number" ? value(job) : Infinity)) : [];
      const least = Math.min(...values), equal = values.every((other) => other === least);
      return el("tr", {}, el("th", { scope: "row" }, title), ...chosen.map((job, at) => el("td", { class: value && values[at] === least && !equal ? "best" : null }, show(job))));
    };
    $("compare").replaceChildren(el("table", {}, el("caption", {}, "Side by side; the least of a row stands out."),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, ""), ...chosen.map((job) => el("th", { scope: "col" }, job.label)))),
      el("tbody", {}, ...rows.map(line))));
  }
}

const interval = (estimate) => (estimate ? `${number(estimate.value)} [${number(estimate.low)}, ${number(estimate.high)}] ms` : "–");
