"use strict";
// What pages gain with JavaScript: live updates, charts, following of logs, copying, the theme.
// Text that comes from models is only ever put into `textContent`.

const byId = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const shown = (value) =>
  value === null || value === undefined ? "–" : Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6 || value === 0
    ? Number(value).toFixed(4) : Number(value).toPrecision(4);

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// ---- theme and copying ------------------------------------------------------------------------

const redrawn = [];

function theme() {
  const button = byId("theme");
  button.hidden = false;
  const dark = () => (document.documentElement.dataset.theme ||
    (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const tell = () => {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Use the ${dark() ? "light" : "dark"} theme`);
  };
  button.addEventListener("click", () => {
    const next = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem("assay-theme", next);
    tell();
    redrawn.forEach((redraw) => redraw());
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    tell();
    redrawn.forEach((redraw) => redraw());
  });
  tell();
}

function copying() {
  for (const button of document.querySelectorAll("[data-copy-next]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = button.closest("figure").querySelector("pre").textContent;
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Select it and copy"; // a page without HTTPS may not write
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
}

// ---- live updates -----------------------------------------------------------------------------
// The page is asked for again when an event says that something changed, at most once a second and
// never for more than a fifth of the time; of the answer only parts that differ are put in.

const live = { source: null, url: null, last: 0, retry: 1000, busy: false, again: false, pause: 1000, seen: new Map() };

function liveParts(page) {
  return new Map([...page.querySelectorAll("[data-live]")].map((part) => [part.id, part]));
}

async function refresh() {
  if (live.busy) { live.again = true; return; }
  live.busy = true;
  const began = performance.now();
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.redirected && new URL(answer.url).pathname === "/login") { location.reload(); return; }
    if (answer.ok) put(new DOMParser().parseFromString(await answer.text(), "text/html"));
  } catch {
    // The service is away; the stream or the next turn asks again.
  }
  live.pause = Math.max(1000, 4 * (performance.now() - began));
  setTimeout(() => {
    live.busy = false;
    if (live.again) { live.again = false; refresh(); }
  }, live.pause);
}

function put(page) {
  const parts = liveParts(page);
  for (const [id, old] of liveParts(document)) {
    const fresh = parts.get(id);
    if (!fresh || live.seen.get(id) === fresh.outerHTML) continue;
    if (old.contains(document.activeElement) && document.activeElement !== document.body) continue;
    live.seen.set(id, fresh.outerHTML);
    const open = new Set([...old.querySelectorAll("details[open][id]")].map((each) => each.id));
    const ticked = new Set([...old.querySelectorAll("input:checked")].map((each) => each.value));
    const scrolled = [...old.querySelectorAll(".scroll, .lineage")].map((each) => [each.scrollLeft, each.scrollTop]);
    old.replaceWith(fresh);
    for (const each of fresh.querySelectorAll("details[id]")) each.open = open.has(each.id);
    for (const each of fresh.querySelectorAll("input[type=checkbox]")) each.checked = ticked.has(each.value);
    fresh.querySelectorAll(".scroll, .lineage").forEach((each, n) => scrolled[n] && each.scrollTo(...scrolled[n]));
  }
  document.dispatchEvent(new Event("assay:refreshed"));
  const main = byId("main");
  for (const name of ["events", "ends", "refresh"]) {
    const value = page.getElementById("main").dataset[name];
    if (value === undefined) delete main.dataset[name]; else main.dataset[name] = value;
  }
  listen();
}

function tellLive(state, text) {
  const sign = byId("live-state");
  sign.hidden = !text;
  sign.className = `live ${state}`;
  sign.textContent = text;
}

function listen() {
  const url = byId("main").dataset.events;
  if (url !== live.url) {
    live.source?.close();
    Object.assign(live, { source: null, url, last: 0 });
  }
  if (!url) { if (!byId("main").dataset.refresh) tellLive("", ""); return; }
  if (live.source || document.hidden) return;
  const after = live.last || byId("main").dataset.after || 0;
  const source = new EventSource(`${url}?after=${after}`);
  live.source = source;
  source.onopen = () => {
    tellLive("is-on", "live");
    // Away for a while: what was missed comes as events, and an ended stream says nothing more.
    if (live.retry > 1000) refresh();
    live.retry = 1000;
  };
  const heard = (event) => {
    live.last = Number(event.lastEventId) || live.last;
    refresh();
    if (event.type === byId("main").dataset.ends) source.close();
  };
  for (const name of ["experiment.changed", "batch.finished",
    "search.paused", "search.resumed", "search.finished", "search.cancelled", "search.answer_unread"]) {
    source.addEventListener(name, heard);
  }
  source.onerror = () => {
    source.close();
    if (live.source !== source) return;
    live.source = null;
    tellLive("is-off", "reconnecting");
    live.retry = Math.min(30000, live.retry * 2);
    setTimeout(() => { refresh(); listen(); }, live.retry * (0.5 + Math.random() / 2));
  };
}

function following() {
  const main = byId("main");
  if (!main.dataset.events && !main.dataset.refresh) return;
  for (const [id, part] of liveParts(document)) live.seen.set(id, part.outerHTML);
  const tick = () => {
    const seconds = Number(main.dataset.refresh);
    if (seconds && !document.hidden) refresh();
    setTimeout(tick, (seconds || 30) * 1000);
  };
  setTimeout(tick, (Number(main.dataset.refresh) || 30) * 1000);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { live.source?.close(); live.source = null; return; }
    refresh();
    listen();
  });
  if (main.dataset.events) listen();
  else tellLive("is-on", "live");
}

// ---- logs -------------------------------------------------------------------------------------

const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const MOST_LOG = 400000;

function logs() {
  for (const log of document.querySelectorAll("pre.log[id]")) {
    const search = document.querySelector(`[data-log-search="${log.id}"]`);
    const follow = document.querySelector(`[data-log-follow="${log.id}"]`);
    let text = log.textContent;
    const draw = () => {
      const wanted = search.value.toLowerCase();
      log.textContent = wanted ? text.split("\n").filter((line) => line.toLowerCase().includes(wanted)).join("\n") : text;
      if (follow.checked) log.scrollTop = log.scrollHeight;
    };
    search.parentElement.hidden = false;
    search.addEventListener("input", draw);
    if (!log.dataset.log) continue;
    follow.parentElement.hidden = false;
    follow.addEventListener("change", draw);
    follow_log(log, (more) => {
      text = (text.startsWith("(nothing yet)") ? more : text + more).slice(-MOST_LOG);
      draw();
    });
  }
}

function follow_log(log, add) {
  let offset = Number(log.dataset.offset);
  let retry = 1000;
  const open = () => {
    const source = new EventSource(`${log.dataset.log}&offset=${offset}`);
    source.addEventListener("log", (event) => {
      retry = 1000;
      offset = Number(event.lastEventId);
      add(JSON.parse(event.data).data.replace(ESCAPES, ""));
    });
    source.addEventListener("end", () => source.close());
    source.onerror = () => {
      source.close();
      retry = Math.min(30000, retry * 2);
      setTimeout(open, retry);
    };
  };
  open();
}

// ---- charts -----------------------------------------------------------------------------------

// Scales that count: no tick stands between two of them.
const WHOLE = new Set(["experiments", "epoch"]);
const WHOLE_STEPS = [0, 1, 2, 3, 4, 5].flatMap((power) => [1, 2, 5].map((step) => step * 10 ** power));
const LINES = ["accent", "wait", "good", "bad", "busy", "think"];

function axes(label, over) {
  const grid = { stroke: colour("line"), width: 1 };
  const common = { stroke: colour("muted"), grid, ticks: { ...grid, size: 4 }, font: "11px system-ui, sans-serif" };
  return [
    { ...common, label, labelSize: 22, labelFont: "12px system-ui, sans-serif", ...over },
    { ...common, size: 62, values: (_, splits) => splits.map((each) => (each === null ? "" : String(+each.toPrecision(5)))) },
  ];
}

const wide = (holder) => Math.max(260, holder.clientWidth);

function onResize(holder, chart) {
  new ResizeObserver(() => {
    const now = chart();
    if (now && now.width !== wide(holder)) now.setSize({ width: wide(holder), height: now.height });
  }).observe(holder);
}

function choice(controls, label, options, value, changed) {
  const made = element("label", `${label} `);
  const select = element("select");
  if (!label) select.setAttribute("aria-label", "Metric");
  for (const [name, text] of options) select.append(new Option(text, name, false, name === value));
  select.addEventListener("change", () => changed(select.value));
  made.append(select);
  controls.append(made);
  return select;
}

function inAddress(name, value) {
  const url = new URL(location.href);
  url.searchParams.set(name, value);
  history.replaceState(null, "", url);
}

// The part of the metric that is drawn: marks beyond it, which would flatten all others, become
// triangles at its edge.
function reach(data, y) {
  const values = y.filter((each) => each !== null).sort((a, b) => a - b);
  if (!values.length) return [0, 1];
  const at = (share) => values[Math.min(values.length - 1, Math.floor(share * values.length))];
  const spread = at(0.9) - at(0.1) || Math.abs(at(0.5)) * 0.1 || 1;
  let [low, high] = [Math.max(values[0], at(0.1) - 1.5 * spread), Math.min(values[values.length - 1], at(0.9) + 1.5 * spread)];
  const best = data.direction === "minimize" ? values[0] : values[values.length - 1];
  [low, high] = [Math.min(low, best), Math.max(high, best)];
  if (data.baseline) {
    const around = data.baseline.spread || 0;
    [low, high] = [Math.min(low, data.baseline.mean - around), Math.max(high, data.baseline.mean + around)];
  }
  const pad = (high - low || Math.abs(high) || 1) * 0.07;
  return [low - pad, high + pad];
}

function hill(holder) {
  const controls = document.querySelector('[data-controls="hill"]');
  const read = () => JSON.parse(byId("hill-data").textContent);
  let data = read();
  const asked = new URL(location.href).hash.match(/x=([a-z]+)/)?.[1];
  let scale = data.scales.some((each) => each.name === asked) ? asked : "experiments";
  let chart = null;
  let order = [];
  let nearest = null;
  const tip = element("div", "", { class: "tip", role: "status" });
  tip.hidden = true;

  function arrays() {
    const x = data.scales.find((each) => each.name === scale).values;
    order = data.points.map((_, n) => n).sort((a, b) => x[a] - x[b] || a - b);
    let best = null;
    const better = (a, b) => b === null || (data.direction === "minimize" ? a < b : a > b);
    const climb = order.map((n) => {
      const metric = data.points[n].metric;
      if (metric !== null && better(metric, best)) best = metric;
      return best;
    });
    // Of marks at one place, the line shows the best alone: it never starts below what was reached.
    for (let n = order.length - 2; n >= 0; n--) {
      if (x[order[n]] === x[order[n + 1]]) climb[n] = climb[n + 1];
    }
    return [order.map((n) => x[n]), climb, order.map((n) => data.points[n].metric)];
  }

  const lane = (u) => u.bbox.top + u.bbox.height - 12 * devicePixelRatio;

  function place(u, n) {
    const point = data.points[order[n]];
    const x = u.valToPos(u.data[0][n], "x", true);
    if (point.metric === null) return { x, y: lane(u), point, kind: point.failure ? "failed" : point.state };
    const [low, high] = [u.scales.y.min, u.scales.y.max];
    const edge = point.metric > high ? "above" : point.metric < low ? "below" : null;
    const y = edge === "above" ? u.bbox.top + 8 * devicePixelRatio
      : edge === "below" ? lane(u) - 16 * devicePixelRatio : u.valToPos(point.metric, "y", true);
    return { x, y, point, kind: point.confirmed ? "confirmed" : edge || (point.is_lead ? "lead" : "scored") };
  }

  function mark(context, { x, y, kind }, big) {
    const r = (big ? 6.5 : 4.5) * devicePixelRatio;
    context.lineWidth = 1.6 * devicePixelRatio;
    context.beginPath();
    if (kind === "failed" || kind === "cancelled") {
      context.strokeStyle = colour(kind === "failed" ? "bad" : "off");
      const d = r * 0.8;
      context.moveTo(x - d, y - d); context.lineTo(x + d, y + d); context.moveTo(x + d, y - d); context.lineTo(x - d, y + d);
      context.stroke();
    } else if (kind === "above" || kind === "below") {
      const up = kind === "above" ? -1 : 1;
      context.strokeStyle = colour("muted");
      context.moveTo(x, y + up * r); context.lineTo(x + r, y - up * r); context.lineTo(x - r, y - up * r); context.closePath();
      context.stroke();
    } else if (kind === "confirmed") {
      context.fillStyle = colour("accent");
      for (let n = 0; n < 10; n++) {
        const size = (n % 2 ? 0.75 : 1.9) * r;
        context.lineTo(x + size * Math.sin((n * Math.PI) / 5), y - size * Math.cos((n * Math.PI) / 5));
      }
      context.closePath(); context.fill();
      context.strokeStyle = colour("surface"); context.lineWidth = devicePixelRatio; context.stroke();
    } else if (kind === "lead") {
      context.fillStyle = colour("good"); context.arc(x, y, r, 0, 2 * Math.PI); context.fill();
      context.strokeStyle = colour("surface"); context.lineWidth = devicePixelRatio; context.stroke();
    } else if (kind === "scored") {
      context.strokeStyle = colour("muted"); context.fillStyle = colour("surface");
      context.arc(x, y, r, 0, 2 * Math.PI); context.fill(); context.stroke();
    } else {
      context.strokeStyle = colour("busy"); context.arc(x, y, r, 0, 1.5 * Math.PI); context.stroke();
    }
  }

  function under(u) {
    const { ctx: context, bbox } = u;
    context.save();
    context.fillStyle = colour("raised");
    context.globalAlpha = 0.7;
    context.fillRect(bbox.left, lane(u) - 11 * devicePixelRatio, bbox.width, 22 * devicePixelRatio);
    if (data.baseline) {
      const y = (value) => u.valToPos(value, "y", true);
      const { mean, spread } = data.baseline;
      if (spread) {
        context.globalAlpha = 0.13;
        context.fillStyle = colour("muted");
        context.fillRect(bbox.left, y(mean + spread), bbox.width, y(mean - spread) - y(mean + spread));
      }
      context.globalAlpha = 1;
      context.strokeStyle = colour("muted");
      context.lineWidth = 1.3 * devicePixelRatio;
      context.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
      context.beginPath(); context.moveTo(bbox.left, y(mean)); context.lineTo(bbox.left + bbox.width, y(mean)); context.stroke();
    }
    context.restore();
  }

  function over(u) {
    u.ctx.save();
    for (const after of [false, true]) {
      for (let n = 0; n < order.length; n++) {
        const placed = place(u, n);
        const notable = ["confirmed", "lead"].includes(placed.kind);
        if (notable === after) mark(u.ctx, placed, n === nearest);
      }
    }
    u.ctx.restore();
  }

  function hover(u) {
    const { left, top } = u.cursor;
    let found = null;
    let least = 18 ** 2;
    if (left >= 0) for (let n = 0; n < order.length; n++) {
      const placed = place(u, n);
      const dx = (placed.x - u.bbox.left) / devicePixelRatio - left;
      const dy = (placed.y - u.bbox.top) / devicePixelRatio - top;
      if (dx * dx + dy * dy < least) { least = dx * dx + dy * dy; found = n; }
    }
    if (found === nearest) return;
    nearest = found;
    u.over.classList.toggle("is-link", found !== null);
    u.redraw(false);
    tip.hidden = found === null;
    if (found === null) return;
    const { x, y, point } = place(u, found);
    tip.replaceChildren(element("b", point.title), element("span",
      `${point.failure ? `failed: ${point.failure}` : point.metric === null ? point.state : `${data.metric} ${shown(point.metric)}`}` +
      `${point.verdict ? `, ${point.verdict}` : ""}${point.confirmed === true ? ", confirmed" : point.confirmed === false ? ", not confirmed" : ""}` +
      `${point.fresh ? `: ${point.fresh} on fresh seeds` : ""}` +
      ` · epoch ${point.epoch}, ${point.operator}`));
    const px = x / devicePixelRatio;
    const py = y / devicePixelRatio;
    const width = Math.min(300, tip.offsetWidth || 240);
    tip.style.left = `${Math.max(4, Math.min(px + 12, holder.clientWidth - width - 4))}px`;
    tip.style.top = `${py > 130 ? py - tip.offsetHeight - 10 : py + 14}px`;
  }

  function draw() {
    chart?.destroy();
    const height = 340;
    const now = arrays();
    if (!order.length) { holder.replaceChildren(element("p", "No experiment yet.", { class: "empty" })); return; }
    const [low, high] = reach(data, now[2]);
    // The line stays where marks are: a start beyond the axis is drawn at its edge.
    now[1] = now[1].map((value) => (value === null ? null : Math.min(high, Math.max(low, value))));
    const x = data.scales.find((each) => each.name === scale);
    // The lane of what has no result lies below the lowest metric that is drawn.
    const floor = low - (high - low) * 0.13;
    holder.replaceChildren(tip);
    chart = new uPlot({
      width: wide(holder), height, legend: { show: false }, padding: [10, 12, 0, 0],
      cursor: { points: { show: false }, drag: { x: false, y: false } },
      scales: { x: { time: false, range: (_, from, to) => { const pad = (to - from || 1) * 0.02; return [from - pad, to + pad]; } }, y: { range: [floor, high] } },
      axes: axes(x.label, WHOLE.has(scale) ? { incrs: WHOLE_STEPS } : {}),
      series: [{}, { stroke: colour("accent"), width: 2.2, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) }, { show: true, stroke: "transparent", width: 0, points: { show: false }, paths: () => null }],
      hooks: { drawAxes: [under], draw: [over], setCursor: [hover] },
    }, now, holder);
    chart.over.addEventListener("click", () => {
      if (nearest !== null) location.href = `/experiments/${data.points[order[nearest]].id}`;
    });
    holder.setAttribute("role", "img");
    holder.setAttribute("aria-label", `${data.metric} of ${data.points.length} experiments by ${x.label}; the table below has the numbers`);
  }

  choice(controls, "by", data.scales.map((each) => [each.name, each.label]), scale, (value) => {
    scale = value;
    history.replaceState(null, "", `#x=${value}`);
    draw();
  });
  controls.hidden = false;
  document.addEventListener("assay:refreshed", () => {
    const fresh = byId("hill-data").textContent;
    if (fresh === hill.drawn) return;
    hill.drawn = fresh;
    data = read();
    nearest = null;
    tip.hidden = true;
    draw();
  });
  hill.drawn = byId("hill-data").textContent;
  redrawn.push(draw);
  draw();
  onResize(holder, () => chart);
}

function curves(holder) {
  const controls = document.querySelector(`[data-controls="${holder.id}"]`);
  let chart = null;
  let runs = [];
  let name = new URL(location.href).searchParams.get("curve");
  let log = false;
  let select = null;
  const legend = element("ul", "", { class: "legend" });
  holder.after(legend);

  function joined() {
    const having = runs.filter((run) => Object.hasOwn(run.series, name)); // a codebase names them
    const xs = [...new Set(having.flatMap((run) => run.series[name].x))].sort((a, b) => a - b);
    const at = new Map(xs.map((x, n) => [x, n]));
    const columns = having.map((run) => {
      const column = new Array(xs.length).fill(undefined);
      run.series[name].x.forEach((x, n) => { column[at.get(x)] = run.series[name].y[n]; });
      return column;
    });
    return [having, [xs, ...columns]];
  }

  function draw() {
    chart?.destroy();
    chart = null;
    const [having, table] = joined();
    if (!having.length) { holder.replaceChildren(element("p", "The codebase has logged nothing yet.", { class: "empty" })); return; }
    let own = 0;
    const looks = having.map((run) => (run.id === null ? { stroke: colour("off"), dash: [5, 4], key: "base" } : { stroke: colour(LINES[own]), key: own++ }));
    holder.replaceChildren();
    chart = new uPlot({
      width: wide(holder), height: 280, legend: { show: false }, padding: [10, 12, 0, 0], cursor: { drag: { x: true, y: false } },
      scales: { x: { time: false }, y: { distr: log ? 3 : 1 } },
      axes: axes("step", {}),
      series: [{}, ...having.map((run, n) => ({ label: run.label, stroke: looks[n].stroke, dash: looks[n].dash, width: 1.8, spanGaps: false, points: { show: table[0].length < 30, size: 5, fill: looks[n].stroke } }))],
      hooks: { setCursor: [(u) => {
        legend.querySelectorAll("b").forEach((cell, n) => {
          const value = u.cursor.idx === null || u.cursor.idx === undefined ? undefined : u.data[n + 1][u.cursor.idx];
          cell.textContent = value === undefined || value === null ? "" : shown(value);
        });
      }] },
    }, table, holder);
    legend.replaceChildren(...having.map((run, n) => {
      const item = element("li");
      const sign = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      sign.setAttribute("viewBox", "0 0 14 14");
      const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
      line.setAttribute("d", "M0 7h14");
      line.setAttribute("class", `swatch stroke-${looks[n].key}`);
      sign.append(line);
      item.append(sign, element("span", run.label + (run.not_finite ? ` (${run.not_finite} not finite)` : "")), element("b"));
      return item;
    }));
    holder.setAttribute("role", "img");
    holder.setAttribute("aria-label", `${name} by step: ${having.map((run) => run.label).join("; ")}`);
  }

  async function load() {
    try {
      const answer = await fetch(holder.dataset.src);
      if (!answer.ok) throw new Error(String(answer.status));
      const fresh = await answer.text();
      if (fresh === load.last) return;
      load.last = fresh;
      runs = JSON.parse(fresh).runs;
    } catch {
      if (!runs.length) holder.replaceChildren(element("p", "The curves could not be read; reload the page.", { class: "empty" }));
      return;
    }
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.series)))];
    if (!names.includes(name)) name = names.find((each) => /loss|score|reward/.test(each)) || names[0];
    if (!select && names.length) {
      if (names.length > 1) choice(controls, "", names.map((each) => [each, each]), name, (value) => { name = value; inAddress("curve", value); draw(); });
      const label = element("label");
      const box = element("input", "", { type: "checkbox" });
      box.addEventListener("change", () => { log = box.checked; draw(); });
      label.append(box, " log scale");
      controls.append(label);
      controls.hidden = false;
      select = true;
    }
    draw();
  }

  load();
  redrawn.push(draw);
  onResize(holder, () => chart);
  if (holder.dataset.poll) {
    const timer = setInterval(() => {
      if (document.hidden) return;
      load();
      if (!byId("main").dataset.events) clearInterval(timer);
    }, 1000 * Number(holder.dataset.poll));
  }
}

theme();
copying();
logs();
for (const holder of document.querySelectorAll('[data-chart="hill"]')) hill(holder);
for (const holder of document.querySelectorAll('[data-chart="curves"]')) curves(holder);
following();
