// The page: asks for figures whenever a field has changed, one request at a time, always the latest.

import { $, ask, el, number, trouble, whole } from "./server.js";
import { Fields } from "./fields.js";
import { Jobs } from "./jobs.js";
import { showAnswer, showCompiling, showCurve, showWrong } from "./figures.js";

const AGAIN_MS = 400;
const REST_MS = 600;

let fields, jobs, choices, asking = false, dirty = false, started = null, resting, curved = null, last = null;

async function figures() {
  dirty = true;
  if (asking) return;
  asking = true;
  while (dirty) {
    dirty = false;
    const before = performance.now();
    try {
      const found = await ask("/api/answer", { method: "POST", json: fields.question });
      if (found.status === "compiling") {
        started ??= before;
        showCompiling((performance.now() - started) / 1000);
        dirty = true;
        await new Promise((done) => setTimeout(done, AGAIN_MS));
        continue;
      }
      started = null;
      last = found;
      const words = showAnswer(found, performance.now() - before);
      document.body.dataset.ready = "true";
      placeHere();
      rest(() => { $("announce").textContent = words; });
    } catch (error) {
      started = null;
      last = null;
      showWrong(error);
      rest(() => { $("announce").textContent = error.message; });
    }
  }
  asking = false;
}

function rest(then) {
  clearTimeout(resting);
  resting = setTimeout(() => {
    then();
    curve();
  }, REST_MS);
}

// The curve does not depend on replicas and threshold: it is asked for only when something else has changed.
async function curve() {
  const question = fields.question;
  if (question.pools.length !== 2 || last === null) {
    $("curve").hidden = true;
    curved = null;
    return;
  }
  const key = JSON.stringify({ ...question, pools: question.pools.map((pool) => pool.profile) });
  if (curved?.key === key) return;
  try {
    const found = await ask("/api/curve", { method: "POST", json: question });
    if (found.status === "compiling") return void rest(() => {});
    curved = { key, found };
    placeHere();
  } catch {
    $("curve").hidden = true;
  }
}

function placeHere() {
  if (curved === null || last === null || fields.pools.length !== 2) return;
  showCurve(curved.found, fields.pools[0].upper.value, last.cost_usd_per_hour);
}

async function chooseWorkload({ keepRate = false } = {}) {
  const chosen = $("workload").value;
  const upload = fields.workload.upload;
  $("remove-upload").hidden = !upload;
  try {
    const facts = await ask("/api/workload", { method: "POST", json: fields.workload });
    if ($("workload").value !== chosen) return; // another was chosen meanwhile
    fields.suit(facts, { keepRate });
    const tokens = facts.total_tokens;
    const own = facts.rate_rps ? `${number(facts.rate_rps)} requests per second of its own` : "no rate of its own";
    $("workload-facts").textContent = `${facts.source}. Means of ${whole(facts.mean_input_tokens)} input and ${whole(facts.mean_output_tokens)} output tokens; totals: P50 ${whole(tokens.p50)}, P99 ${whole(tokens.p99)}, longest ${whole(tokens.longest)}; ${own}. ${facts.notes.join(". ")}`;
    trouble(null);
  } catch (error) {
    trouble(error);
  }
  figures();
}

async function listWorkloads(chosen) {
  const { uploads } = await ask("/api/uploads");
  const before = chosen ?? $("workload").value;
  const group = (label, options) => (options.length ? [el("optgroup", { label }, ...options)] : []);
  $("workload").replaceChildren(
    ...group("Examples that come with the package", choices.workloads.map((name) => el("option", { value: `name:${name}` }, name))),
    ...group("Uploaded", uploads.map((row) => el("option", { value: `upload:${row.id}` }, row.label))));
  if ([...$("workload").options].some((option) => option.value === before)) $("workload").value = before;
}

async function upload() {
  const file = $("file").files[0];
  const state = $("upload-state");
  if (!file) {
    state.textContent = "Choose a file first.";
    return;
  }
  if (file.size > choices.limits.upload_bytes) {
    state.textContent = `The file has ${number(file.size / 1e6)} MB; at most ${number(choices.limits.upload_bytes / 1e6)} MB are taken.`;
    return;
  }
  const query = new URLSearchParams({ name: file.name });
  for (const [key, id] of [["input_tokens", "map-input"], ["output_tokens", "map-output"], ["timestamp", "map-time"], ["time_unit", "time-unit"], ["failed", "failed"]]) {
    if ($(id).value) query.set(key, $(id).value);
  }
  state.textContent = "Reading.";
  $("upload").disabled = true;
  try {
    const row = await ask(`/api/uploads?${query}`, { method: "POST", body: file });
    await listWorkloads(`upload:${row.id}`);
    $("max-context").value = "";
    await chooseWorkload();
    state.textContent = `Read ${row.label}.`;
  } catch (error) {
    state.textContent = error.message;
  }
  $("upload").disabled = false;
}

// A plan's fleet, its load and its objectives.
async function take(job) {
  const summary = job.summary;
  const last = summary.pools.length - 1;
  const pools = summary.pools.map((pool, at) => ({ profile: pool.profile, replicas: pool.replicas, ...(at < last ? { upper_tokens: pool.upper_tokens } : {}) }));
  fields.question = { ...job.question, rate_rps: summary.inputs.rate_rps, pools };
  await chooseWorkload({ keepRate: true });
  jobs.showProfiles();
  $("answer").focus();
}

async function start() {
  choices = await ask("/api/choices");
  $("version").textContent = `version ${choices.version}`;
  $("file-help").textContent = `${choices.endings.join(", ")}; up to ${whole(choices.limits.upload_bytes / 1e6)} MB. It is kept on this machine.`;
  $("file").accept = choices.endings.map((ending) => `.${ending.split(".").at(-1)}`).join(",");
  $("profile-names").replaceChildren(...[...choices.measured, ...choices.presets, ...choices.kernels].map((name) => el("option", { value: name })));
  fields = new Fields((kind) => {
    if (kind === "workload") return chooseWorkload();
    if (kind === "pools") jobs.showProfiles();
    return figures();
  });
  jobs = new Jobs(fields, take);
  await listWorkloads();
  fields.question = choices.example;
  $("upload").addEventListener("click", upload);
  $("remove-upload").addEventListener("click", async () => {
    try {
      await ask(`/api/uploads/${fields.workload.upload}`, { method: "DELETE" });
    } catch (error) {
      trouble(error);
    }
    await listWorkloads();
    await chooseWorkload();
    $("workload").focus();
  });
  $("ask").addEventListener("submit", (event) => event.preventDefault());
  jobs.showProfiles();
  jobs.refresh();
  await chooseWorkload({ keepRate: true });
}

start().catch(trouble);
