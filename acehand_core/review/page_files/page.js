"use strict";
// The acceptance page. What it shows of an episode comes from scripts next to the page, or, where
// `acehand review` serves it, from the server; see payload.py for how a block is written.

const report = JSON.parse(document.getElementById("report").textContent);
const $ = (id) => document.getElementById(id);
const COLOURS = { left: "#1565c0", right: "#b23c00" };
const STATES = ["#e4e7eb", "#5f9ea0", "#f2c14e", "#d1495b"];
const SEVERITY = { fail: 0, warn: 1, pass: 2 };
const WORDS = { accept: "accepted", doubt: "doubtful", reject: "rejected" };
const BONES = [];
for (let finger = 0; finger < 5; finger++) {
  BONES.push([0, 1 + 4 * finger]);
  for (let k = 0; k < 3; k++) BONES.push([1 + 4 * finger + k, 2 + 4 * finger + k]);
}

// ---- Blocks ---------------------------------------------------------------------------------

// A script of the page's folder. Plotly's runs; others hand over what they hold, by `arrived`.
const scripts = {}, contents = {};
function load(name) {
  scripts[name] ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = `${report.files}/${name}.js`;
    script.onload = done;
    script.onerror = () => { delete scripts[name]; failed(new Error(`${script.src} cannot be loaded`)); };
    document.head.append(script);
  });
  return scripts[name];
}

function arrived(name, content) {
  contents[name] = content;
}

async function bytesOf(name) {
  await load(name);
  const bytes = Uint8Array.from(atob(contents[name]), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function decoded(bytes) {
  const size = new DataView(bytes.buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size)));
  let at = 4 + size;
  for (const entry of head.arrays) {
    const frames = entry.shape[0];
    const width = entry.shape.slice(1).reduce((a, b) => a * b, 1);
    const steps = new Int16Array(bytes.buffer.slice(at, at + 2 * frames * width));
    const values = new Float32Array(frames * width);
    for (let column = 0; column < width; column++) {
      let whole = 0;
      for (let frame = 0; frame < frames; frame++) {
        whole = ((whole + steps[column * frames + frame]) << 16) >> 16;
        values[frame * width + column] = whole === -32768 ? NaN : whole * entry.scale;
      }
    }
    head[entry.name] = { values, width };
    at += 2 * frames * width;
  }
  return head;
}

const loadPlotly = () => load("plotly").then(() => window.Plotly);

let robots = null;
function loadRobots() {
  robots ??= bytesOf("robots").then((bytes) => JSON.parse(new TextDecoder().decode(bytes)));
  return robots;
}

// ---- Decisions ------------------------------------------------------------------------------

const decisions = new Map();
const keyOf = (episode) => `${episode.dataset}/${episode.fingerprint}`;
for (const entry of report.decisions) {
  const dataset = report.datasets.indexOf(entry.dataset);
  decisions.set(`${dataset}/${entry.fingerprint}`, entry);
}

function asFile() {
  return { format: "acehand-decisions", version: 1, decisions: [...decisions.values()] };
}

let saving = Promise.resolve();
let unsaved = 0;
function decide(episode, change) {
  const old = decisions.get(keyOf(episode));
  const entry = {
    dataset: report.datasets[episode.dataset], episode: episode.episode,
    fingerprint: episode.fingerprint, decision: null, trim: null, ...old, ...change,
    time: new Date().toISOString(),
  };
  if (entry.decision || entry.trim) decisions.set(keyOf(episode), entry);
  else decisions.delete(keyOf(episode));
  showDecision();
  drawRow(episode);
  drawCounts();
  if (!report.token) {
    $("said").textContent += " (not saved yet: Save decisions)";
    return;
  }
  unsaved += 1;
  saving = saving.then(() => fetch("/decisions", {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Acehand-Token": report.token },
    body: JSON.stringify(entry),
  })).then(async (answer) => {
    if (!answer.ok) throw new Error(await answer.text());
    unsaved -= 1;
    if (!unsaved) $("said").textContent += " (saved)";
  }).catch((error) => {
    unsaved -= 1;
    $("said").textContent += ` (NOT saved: ${error.message})`;
  });
}

function saveAs() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(asFile(), null, 1)], { type: "application/json" }));
  link.download = "decisions.json";
  link.click();
}

// ---- The list -------------------------------------------------------------------------------

const episodes = report.episodes;
let shown = [];
let current = null;

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

const nameOf = (episode) => (report.datasets.length > 1 ? `${report.datasets[episode.dataset]} ` : "") + `episode ${episode.episode}`;
const isFault = (finding) => finding.level !== "note";

function fillFilters() {
  const add = (id, values) => values.forEach((value) => $(id).append(element("option", value)));
  add("by-check", Object.keys(report.reasons));
  add("by-task", [...new Set(episodes.map((e) => e.task))].sort());
  add("by-subject", [...new Set(episodes.map((e) => e.subject ?? "not known"))].sort());
}

function filterList() {
  const status = $("by-status").value, check = $("by-check").value;
  const task = $("by-task").value, subject = $("by-subject").value;
  shown = episodes.filter((e) =>
    (!status || (status === "undecided" ? !decisions.get(keyOf(e))?.decision : e.status === status))
    && (!check || e.findings.some((f) => f.check === check && isFault(f)))
    && (!task || e.task === task)
    && (!subject || (e.subject ?? "not known") === subject));
  if ($("order").value === "worst") {
    shown.sort((a, b) => SEVERITY[a.status] - SEVERITY[b.status] || b.worst - a.worst);
  }
  $("list").replaceChildren(...shown.map((episode) => {
    const row = element("li", undefined, { role: "option", id: `row-${episode.index}`, "aria-selected": "false" });
    fillRow(row, episode);
    row.addEventListener("click", () => open(episode));
    return row;
  }));
  markRow();
}

function fillRow(row, episode) {
  const entry = decisions.get(keyOf(episode));
  const said = (entry?.decision ? WORDS[entry.decision] : "") + (entry?.trim ? " trim" : "");
  const faults = episode.findings.filter(isFault).map((f) => f.text);
  row.replaceChildren(
    element("span", nameOf(episode)),
    element("span", episode.status + (said ? ` \u2192 ${said}` : ""), { class: `badge ${entry?.decision ?? episode.status}` }),
    element("small", faults[0] ?? episode.task),
  );
}

function drawRow(episode) {
  const row = $(`row-${episode.index}`);
  if (row) fillRow(row, episode);
}

function markRow() {
  for (const row of document.querySelectorAll("#list li[aria-selected=true]")) row.setAttribute("aria-selected", "false");
  const row = current && $(`row-${current.index}`);
  if (row) {
    row.setAttribute("aria-selected", "true");
    $("list").setAttribute("aria-activedescendant", row.id);
    row.scrollIntoView({ block: "nearest" });
  } else $("list").removeAttribute("aria-activedescendant");
}

function drawCounts() {
  const count = (status) => episodes.filter((e) => e.status === status).length;
  const decided = episodes.filter((e) => decisions.get(keyOf(e))?.decision).length;
  $("counts").replaceChildren(
    element("span", `${episodes.length} episodes`),
    ...["pass", "warn", "fail"].map((s) => element("span", `${count(s)} ${s}`, { class: `badge ${s}` })),
    element("span", `${decided} decided`),
  );
}

// ---- The batch ------------------------------------------------------------------------------

function table(caption, columns, rows) {
  const made = element("table");
  made.append(element("caption", caption));
  const head = element("tr");
  columns.forEach((name, i) => head.append(element("th", name, { scope: "col", class: typeof rows[0]?.[i] === "number" ? "n" : "" })));
  made.append(head);
  for (const cells of rows) {
    const row = element("tr");
    cells.forEach((cell, i) => {
      const place = element("td", undefined, { class: typeof cell === "number" ? "n" : "" });
      place.append(cell instanceof Node ? cell : String(cell));
      if (i === 0) { const th = element("th", undefined, { scope: "row" }); th.append(...place.childNodes); row.append(th); }
      else row.append(place);
    });
    made.append(row);
  }
  return made;
}

function button(text, action) {
  const made = element("button", text);
  made.addEventListener("click", action);
  return made;
}

function drawBatch() {
  const groups = (values) => Object.entries(values).map(([name, n]) => [name, n.pass, n.warn, n.fail]);
  const tables = element("div", undefined, { class: "tables" });
  const reasons = Object.entries(report.reasons).map(([check, n]) => {
    const link = button(check.replaceAll("_", " "), () => { $("by-check").value = check; filterList(); });
    return [link, n, report.limits[check].meaning];
  });
  tables.append(
    table("By task", ["task", "pass", "warn", "fail"], groups(report.by_task)),
    table("By subject", ["subject", "pass", "warn", "fail"], groups(report.by_subject)),
  );
  // Of an episode the worst of each check, and no more than three: the others want to be seen, too.
  const worst = episodes.flatMap((e) => [...new Map(e.findings.filter(isFault).sort((a, b) => a.excess - b.excess).map((f) => [f.check, f])).values()]
    .sort((a, b) => SEVERITY[a.level] - SEVERITY[b.level] || b.excess - a.excess).slice(0, 3).map((f) => ({ e, f })))
    .sort((a, b) => SEVERITY[a.f.level] - SEVERITY[b.f.level] || b.f.excess - a.f.excess).slice(0, 25);
  const moments = table("Worst moments", ["episode", "", "finding"], worst.map(({ e, f }) => [
    button(nameOf(e) + (f.frame === null ? "" : `, ${(f.frame / e.fps).toFixed(1)} s`), () => open(e, f.frame)),
    element("span", f.level, { class: `badge ${f.level}` }), f.text,
  ]));
  const found = table("Found", ["check", "episodes", "what it measures"], reasons);
  $("batch").replaceChildren(...report.notes.map((note) => element("p", note)), tables, moments, found,
    element("h3", "Distributions and limits"),
    element("p", "Each point is an episode (its worse hand; of many episodes only those far out); lines are the limits: above the first it is a warning, above the second it fails.", { class: "quiet" }),
    element("div", undefined, { id: "distributions" }));
  drawDistributions();
}

async function drawDistributions() {
  const Plotly = await loadPlotly();
  const checks = Object.keys(report.limits).filter((check) => {
    const values = episodes.map((e) => e.values[check]).filter((v) => v !== undefined);
    return values.length && new Set(values).size > 2;
  });
  if (!checks.length) return;
  const columns = 3, rows = Math.ceil(checks.length / columns);
  const traces = [], layout = {
    grid: { rows, columns, pattern: "independent", ygap: 0.45, xgap: 0.08 },
    height: 150 * rows + 30, margin: { l: 10, r: 10, t: 30, b: 30 }, showlegend: false,
    shapes: [], annotations: [], hovermode: "closest", font: { size: 11 },
  };
  checks.forEach((check, i) => {
    const axis = i ? i + 1 : "", limit = report.limits[check];
    const listed = episodes.filter((e) => e.values[check] !== undefined);
    traces.push({
      type: "box", x: listed.map((e) => e.values[check]), xaxis: `x${axis}`, yaxis: `y${axis}`, boxpoints: listed.length > 100 ? "outliers" : "all",
      jitter: 0.6, pointpos: 0, fillcolor: "rgba(0,0,0,0)", line: { color: "#9aa3ad", width: 1 },
      marker: { color: "#1565c0", size: 4, opacity: 0.65 }, text: listed.map(nameOf), name: check, orientation: "h",
      hovertemplate: `%{text}<br>%{x:.3g} ${limit.unit}<extra></extra>`,
    });
    const most = Math.max(...listed.map((e) => e.values[check]));
    const right = Math.max(most * 1.05, limit.warn * 1.15) || 1;
    layout[`xaxis${axis}`] = { range: [Math.min(0, ...listed.map((e) => e.values[check])), right], zeroline: false, title: { text: `${check.replaceAll("_", " ")}${limit.unit ? ` (${limit.unit})` : ""}`, standoff: 2 } };
    layout[`yaxis${axis}`] = { visible: false };
    [[limit.warn, "#8a5a00"], [limit.fail, "#b3261e"]].forEach(([x, color]) => {
      if (x !== null && x <= right) layout.shapes.push({ type: "line", x0: x, x1: x, xref: `x${axis}`, y0: 0, y1: 1, yref: `y${axis} domain`, line: { color, width: 1.5 } });
    });
  });
  const place = $("distributions");
  await Plotly.newPlot(place, traces, layout, { displayModeBar: false, responsive: true });
  place.on("plotly_click", (event) => {
    const name = event.points[0].text, episode = episodes.find((e) => nameOf(e) === name);
    if (episode) open(episode);
  });
}

// ---- An episode -----------------------------------------------------------------------------

let block = null;     // of the episode that is shown
let frame = 0;
let opened = 0;

function showBatch() {
  if (report.single) return;
  opened += 1; // an episode that is still being read is not shown any more
  current = null;
  $("video").pause();
  $("episode").hidden = true;
  $("batch").hidden = false;
  $("show-batch").setAttribute("aria-pressed", "true");
  markRow();
}

async function open(episode, at = null) {
  const ticket = ++opened;
  current = episode;
  block = null;
  $("batch").hidden = true;
  $("episode").hidden = false;
  $("show-batch").setAttribute("aria-pressed", "false");
  $("name").textContent = `${nameOf(episode)}: ${episode.status}`;
  $("name").className = episode.status;
  $("facts").textContent = [episode.task, episode.subject && `subject ${episode.subject}`, episode.source,
    `${episode.frames} frames, ${(episode.frames / episode.fps).toFixed(1)} s`].filter(Boolean).join(" \u00b7 ");
  $("findings").replaceChildren(...episode.findings.map((f) => {
    const row = element("li");
    row.append(element("span", f.level, { class: `badge ${f.level}` }), " ");
    if (f.frame === null) row.append(f.text);
    else row.append(button(f.text, () => seek(f.frame)));
    return row;
  }));
  if (!episode.findings.length) $("findings").replaceChildren(element("li", "Nothing was found."));
  $("scrubber").max = Math.max(episode.frames - 1, 0);
  showDecision();
  markRow();

  const video = $("video");
  video.pause();
  video.removeAttribute("src");
  if (episode.video) video.src = episode.video[0];

  const missing = $("missing");
  missing.hidden = true;
  frame = 0;
  try {
    const [Plotly, got, bodies] = await Promise.all([
      loadPlotly(), bytesOf(`${episode.dataset}-${episode.episode}`), loadRobots()]);
    if (ticket !== opened) return;
    block = decoded(got);
    drawSpace(Plotly, bodies[report.robots[episode.dataset]]);
    drawCurves(Plotly);
    drawStrips();
    seek(at ?? 0);
  } catch (error) {
    missing.hidden = false;
    missing.textContent = `This episode cannot be shown: ${error.message}`;
    throw error;
  }
}

function showDecision() {
  if (!current) return;
  const entry = decisions.get(keyOf(current));
  for (const made of document.querySelectorAll("[data-decision]")) {
    made.setAttribute("aria-pressed", String(made.dataset.decision === entry?.decision));
  }
  const trim = entry?.trim;
  $("trim").setAttribute("aria-pressed", String(Boolean(trim)));
  const last = trim && (trim[1] === null ? "\u2026" : trim[1] - 1);
  $("said").textContent = (entry?.decision ? `You said: ${WORDS[entry.decision]}` : "No decision yet")
    + (trim ? `; keep frames ${trim[0]} to ${last}` : "");
}

function toggle(decision) {
  const old = decisions.get(keyOf(current))?.decision;
  decide(current, { decision: old === decision ? null : decision });
}

function trimHere() {
  const trim = decisions.get(keyOf(current))?.trim;
  if (!trim) decide(current, { trim: [frame, null] });
  else if (trim[1] === null && frame > trim[0]) decide(current, { trim: [trim[0], frame + 1] });
  else decide(current, { trim: null });
  drawStrips();
}

// Rows of a 3 x 3 matrix of a quaternion w x y z.
function matrix([w, x, y, z]) {
  const n = 2 / (w * w + x * x + y * y + z * z || 1);
  return [1 - n * (y * y + z * z), n * (x * y - w * z), n * (x * z + w * y),
    n * (x * y + w * z), 1 - n * (x * x + z * z), n * (y * z - w * x),
    n * (x * z - w * y), n * (y * z + w * x), 1 - n * (x * x + y * y)];
}
const times = (a, b) => [0, 1, 2].flatMap((r) => [0, 1, 2].map((c) => a[3 * r] * b[c] + a[3 * r + 1] * b[3 + c] + a[3 * r + 2] * b[6 + c]));
const turned = (m, v) => [0, 1, 2].map((r) => m[3 * r] * v[0] + m[3 * r + 1] * v[1] + m[3 * r + 2] * v[2]);
const plus = (a, b) => [a[0] + b[0], a[1] + b[1], a[2] + b[2]];

// Where the links of a robot hand are: [rotation, position] of each, in the camera frame.
function placed(hand, base, angles) {
  const places = [], root = [matrix(base.slice(3)), base.slice(0, 3)];
  for (const link of hand.links) {
    const [turn, place] = link.parent < 0 ? root : places[link.parent];
    const position = plus(place, turned(turn, link.position));
    const rotation = times(turn, matrix(link.quaternion));
    if (link.column < 0) { places.push([rotation, position]); continue; }
    const angle = angles[link.column];
    if (link.slides) {
      places.push([rotation, plus(position, turned(rotation, link.axis.map((a) => a * angle)))]);
      continue;
    }
    const anchor = plus(position, turned(rotation, link.anchor));
    const s = Math.sin(angle / 2), joint = matrix([Math.cos(angle / 2), ...link.axis.map((a) => a * s)]);
    const after = times(rotation, joint);
    places.push([after, plus(anchor, turned(after, link.anchor).map((v) => -v))]);
  }
  return places;
}

let space = null;
function drawSpace(Plotly, bodies) {
  const traces = [];
  space = { Plotly, bodies, busy: false, wanted: null, robotAt: {} };
  ["left", "right"].forEach((side) => traces.push({
    type: "scatter3d", mode: "lines+markers", name: `${side} hand`, x: [], y: [], z: [],
    line: { color: COLOURS[side], width: 6 }, marker: { size: 2.5, color: COLOURS[side] }, hoverinfo: "name",
  }));
  if (bodies && block.base && block.robot) {
    for (const side of ["left", "right"]) {
      if (!bodies[side]) continue;
      space.robotAt[side] = traces.length;
      const faces = bodies[side].faces, of = (k) => faces.filter((_, i) => i % 3 === k);
      traces.push({
        type: "mesh3d", name: `${side} robot`, x: [], y: [], z: [], i: of(0), j: of(1), k: of(2), color: "#b9c3cd",
        opacity: 1, flatshading: true, hoverinfo: "name", lighting: { ambient: 0.65, diffuse: 0.6, specular: 0.05 }, lightposition: { x: 0, y: -10000, z: -10000 },
      });
    }
  }
  // One box for the whole episode, so that hands move and not the axes.
  const low = [Infinity, Infinity, Infinity], high = [-Infinity, -Infinity, -Infinity];
  block.joints.values.forEach((v, i) => {
    if (Number.isNaN(v)) return;
    low[i % 3] = Math.min(low[i % 3], v - 0.05);
    high[i % 3] = Math.max(high[i % 3], v + 0.05);
  });
  const known = Number.isFinite(low[0]), sides = known ? high.map((h, k) => h - low[k]) : [1, 1, 1];
  const longest = Math.max(...sides);
  const box = [0, 1, 2].map((k) => known ? [low[k], high[k]] : [-0.5, 0.5]);
  const axis = (k, title) => ({ range: box[k], title: { text: title }, autorange: false });
  // plotly scales a scene by what is in it, by 0 where nothing is: two invisible corners.
  traces.push({ type: "scatter3d", mode: "markers", x: box[0], y: box[1], z: box[2], opacity: 0, hoverinfo: "skip" });
  Plotly.react($("space"), traces, {
    margin: { l: 0, r: 0, t: 0, b: 0 }, showlegend: false, uirevision: `${current.dataset}/${current.episode}`,
    scene: {
      xaxis: axis(0, "x right (m)"), yaxis: axis(1, "y down"), zaxis: axis(2, "z ahead"),
      aspectmode: "manual", aspectratio: { x: 1.4 * sides[0] / longest, y: 1.4 * sides[1] / longest, z: 1.4 * sides[2] / longest },
      camera: { up: { x: 0, y: -1, z: 0 }, eye: { x: 0.5, y: -0.9, z: -1.3 } },
    },
  }, { displayModeBar: false, responsive: true });
}

function handAt(slot) {
  const out = [[], [], []], { values, width } = block.joints, first = frame * width + slot * 63;
  for (const [a, b] of BONES) {
    for (let k = 0; k < 3; k++) out[k].push(values[first + 3 * a + k], values[first + 3 * b + k], null);
  }
  return Number.isNaN(values[first]) ? [[], [], []] : out;
}

function robotAt(side, slot) {
  const hand = space.bodies[side], { values, width } = block.base, joints = block.robot;
  const base = [...values.subarray(frame * width + slot * 7, frame * width + slot * 7 + 7)];
  if (Number.isNaN(base[0])) return [[], [], []];
  const count = joints.width / 2, first = frame * joints.width + slot * count;
  const places = placed(hand, base, joints.values.subarray(first, first + count));
  const out = [[], [], []];
  hand.owners.forEach((owner, v) => {
    const point = [hand.vertices[3 * v] * 1e-5, hand.vertices[3 * v + 1] * 1e-5, hand.vertices[3 * v + 2] * 1e-5];
    const at = owner < 0 ? plus(base, turned(matrix(base.slice(3)), point)) : plus(places[owner][1], turned(places[owner][0], point));
    for (let k = 0; k < 3; k++) out[k].push(at[k]);
  });
  return out;
}

async function moveSpace() {
  const mine = space;
  if (!mine || !block) return;
  if (mine.busy) { mine.wanted = frame; return; }
  mine.busy = true;
  const rows = [[], [], []], indices = [], opacity = [];
  ["left", "right"].forEach((side, slot) => {
    const add = (index, points, clear) => {
      indices.push(index);
      opacity.push(clear);
      points.forEach((values, k) => rows[k].push(values));
    };
    add(slot, handAt(slot), block.state.values[2 * frame + slot] > 1 ? 0.4 : 1);
    if (space.robotAt[side] !== undefined) add(space.robotAt[side], robotAt(side, slot), 1);
  });
  const drawn = frame;
  await mine.Plotly.restyle($("space"), { x: rows[0], y: rows[1], z: rows[2], opacity }, indices);
  mine.busy = false;
  if (mine === space && mine.wanted !== null && mine.wanted !== drawn) { mine.wanted = null; moveSpace(); }
}

// The dataset's joints where its camera sees them, over the video's first panel.
function drawJoints() {
  const canvas = $("drawn"), video = $("video"), pen = canvas.getContext("2d");
  canvas.width = canvas.clientWidth * devicePixelRatio;
  canvas.height = canvas.clientHeight * devicePixelRatio;
  if (!block?.camera || !video.videoWidth || !$("draw").checked) return;
  const [fx, fy, cx, cy, width, height] = block.camera;
  const scale = canvas.height / height, { values, width: row } = block.joints;
  pen.lineWidth = 1.6 * devicePixelRatio;
  ["#4da3ff", "#ff9a3c"].forEach((colour, slot) => {
    const first = frame * row + slot * 63;
    const at = (joint) => {
      const [x, y, z] = values.subarray(first + 3 * joint, first + 3 * joint + 3);
      return z > 0 ? [(fx * x / z + cx + 0.5) * scale, (fy * y / z + cy + 0.5) * scale] : null;
    };
    pen.strokeStyle = colour;
    pen.setLineDash(block.state.values[2 * frame + slot] > 1 ? [4, 4] : []);
    pen.beginPath();
    for (const [a, b] of BONES) {
      const from = at(a), to = at(b);
      if (!from || !to || Math.max(from[0], to[0]) > width * scale) continue;
      pen.moveTo(...from);
      pen.lineTo(...to);
    }
    pen.stroke();
  });
}

function drawCurves(Plotly) {
  const plots = [...new Set(block.curves.map((curve) => curve.plot))];
  const seconds = Array.from({ length: block.frames }, (_, i) => i / block.fps);
  const layout = {
    height: 30 + 92 * plots.length, margin: { l: 62, r: 8, t: 6, b: 34 }, showlegend: false, hovermode: "x",
    grid: { rows: plots.length, columns: 1, pattern: "coupled", ygap: 0.18 }, shapes: [], font: { size: 11 },
    xaxis: { title: { text: "seconds", standoff: 4 }, range: [0, Math.max(block.frames - 1, 1) / block.fps], zeroline: false },
    uirevision: `${current.dataset}/${current.episode}`,
  };
  const traces = block.curves.map((curve, i) => {
    const row = plots.indexOf(curve.plot), axis = row ? row + 1 : "", side = curve.side.split(" ")[0];
    layout[`yaxis${axis}`] = { title: { text: `${curve.plot}${curve.unit ? `<br>(${curve.unit})` : ""}`, standoff: 4 }, rangemode: "tozero", zeroline: false };
    if (curve.limit) layout.shapes.push({ type: "line", xref: "x domain", x0: 0, x1: 1, yref: `y${axis}`, y0: curve.limit, y1: curve.limit, line: { color: "#8a5a00", width: 1, dash: "dot" } });
    return {
      type: "scatter", mode: "lines", x: seconds, y: [...block[`curve${i}`].values], xaxis: "x", yaxis: `y${axis}`, name: curve.side,
      line: { color: COLOURS[side], width: 1.3, dash: curve.side.endsWith("along") ? "dot" : "solid" }, connectgaps: false,
    };
  });
  const place = $("curves");
  Plotly.react(place, traces, layout, { displayModeBar: false, responsive: true });
  place.removeAllListeners?.("plotly_click");
  place.on("plotly_click", (event) => seek(Math.round(event.points[0].x * block.fps)));
  place.removeAllListeners?.("plotly_relayout");
  place.on("plotly_relayout", moveCursor);
}

function moveCursor() {
  const place = $("curves"), layout = place._fullLayout;
  if (!layout?.xaxis || !block) return;
  const axis = layout.xaxis, x = axis._offset + axis.d2p(frame / block.fps);
  const inside = x >= axis._offset - 1 && x <= axis._offset + axis._length + 1;
  Object.assign($("cursor").style, { left: `${x}px`, top: `${layout.margin.t}px`, height: `${layout.height - layout.margin.t - layout.margin.b}px`, display: inside ? "block" : "none" });
}

function drawStrips() {
  const canvas = $("strips"), wide = canvas.clientWidth * devicePixelRatio || 600, high = 28 * devicePixelRatio;
  canvas.width = wide; canvas.height = high;
  const pen = canvas.getContext("2d");
  pen.fillStyle = STATES[0];
  pen.fillRect(0, 0, wide, high);
  if (!block) return;
  for (let slot = 0; slot < 2; slot++) {
    for (let x = 0; x < wide; x++) {
      const at = Math.min(Math.floor(x / wide * block.frames), block.frames - 1);
      pen.fillStyle = STATES[Math.round(block.state.values[2 * at + slot])] ?? STATES[0];
      pen.fillRect(x, slot * high / 2 + 1, 1, high / 2 - 2);
    }
  }
  const trim = decisions.get(keyOf(current))?.trim;
  if (trim) {
    pen.fillStyle = "rgba(20, 20, 20, .55)";
    pen.fillRect(0, 0, trim[0] / block.frames * wide, high);
    if (trim[1] !== null) pen.fillRect(trim[1] / block.frames * wide, 0, wide, high);
  }
  pen.fillStyle = "#111";
  pen.fillRect((frame + 0.5) / block.frames * wide - 1, 0, 2, high);
}

function show(at) {
  frame = Math.min(Math.max(at, 0), current.frames - 1);
  $("scrubber").value = frame;
  const text = `frame ${frame} of ${current.frames}, ${(frame / current.fps).toFixed(2)} s`;
  $("time").textContent = text;
  $("scrubber").setAttribute("aria-valuetext", text);
  drawStrips();
  drawJoints();
  moveCursor();
  moveSpace();
}

function seek(at) {
  if (!current) return;
  show(at);
  const video = $("video"), time = (current.video?.[1] ?? 0) + (frame + 0.5) / current.fps;
  if (Math.abs(video.currentTime - time) > 0.3 / current.fps) video.currentTime = time;
}

function follow() {
  const video = $("video");
  if (current && !video.paused) {
    const at = Math.floor((video.currentTime - (current.video?.[1] ?? 0)) * current.fps);
    if (at >= current.frames) { video.pause(); return; } // the next episode of the same file
    if (at !== frame) show(at);
    requestAnimationFrame(follow);
  }
}

function play() {
  const video = $("video");
  if (!video.src) return;
  if (video.paused) video.play().catch((error) => { $("said").textContent = `The video does not play: ${error.message}`; });
  else video.pause();
}

function step(way) {
  if (!shown.length) return;
  const at = current ? shown.indexOf(current) : -1;
  const next = at < 0 ? (way > 0 ? 0 : shown.length - 1) : at + way;
  if (shown[next]) open(shown[next]);
}

function nextFinding() {
  const frames = current.findings.map((f) => f.frame).filter((f) => f !== null).sort((a, b) => a - b);
  if (frames.length) seek(frames.find((f) => f > frame) ?? frames[0]);
}

const KEYS = {
  j: () => step(1), k: () => step(-1), o: showBatch, "?": () => $("help").click(),
  a: () => current && toggle("accept"), r: () => current && toggle("reject"), d: () => current && toggle("doubt"),
  t: () => current && trimHere(), n: () => current && nextFinding(), h: () => $("draw").click(), " ": () => current && play(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const arrow = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (event.target === $("list") && { ArrowDown: 1, ArrowUp: -1 }[event.key]) {
    event.preventDefault();
    step({ ArrowDown: 1, ArrowUp: -1 }[event.key]);
  } else if (arrow && current && event.target !== $("scrubber")) {
    event.preventDefault();
    $("video").pause();
    seek(frame + arrow * (event.shiftKey ? Math.round(current.fps) : 1));
  } else if (KEYS[event.key] && !(event.key === " " && event.target.tagName === "BUTTON")) {
    event.preventDefault();
    KEYS[event.key]();
  }
});
for (const id of ["by-status", "by-check", "by-task", "by-subject", "order"]) $(id).addEventListener("change", filterList);
for (const made of document.querySelectorAll("[data-decision]")) made.addEventListener("click", () => toggle(made.dataset.decision));
$("trim").addEventListener("click", trimHere);
$("play").addEventListener("click", play);
$("show-batch").addEventListener("click", showBatch);
$("save").addEventListener("click", saveAs);
$("help").addEventListener("click", () => {
  $("keys").hidden = !$("keys").hidden;
  $("help").setAttribute("aria-expanded", String(!$("keys").hidden));
});
$("scrubber").addEventListener("input", () => { $("video").pause(); seek(Number($("scrubber").value)); });
$("video").addEventListener("play", () => { $("play").setAttribute("aria-label", "Pause"); $("play").textContent = "\u275a\u275a"; follow(); });
$("video").addEventListener("pause", () => { $("play").setAttribute("aria-label", "Play"); $("play").textContent = "\u25b6"; });
$("draw").addEventListener("change", drawJoints);
$("video").addEventListener("loadeddata", drawJoints);
addEventListener("resize", () => { if (current) { drawStrips(); drawJoints(); moveCursor(); } });

episodes.forEach((episode, index) => {
  episode.index = index;
  episode.worst = Math.max(0, ...episode.findings.filter(isFault).map((f) => f.excess));
});
if (report.token) $("save").hidden = true;
fillFilters();
filterList();
drawCounts();
if (report.single) {
  document.body.classList.add("single");
  open(episodes[0]);
} else drawBatch();
document.body.dataset.ready = "yes";
