"use strict";

// Names, documentation and errors are of libraries: they become text, and never markup.

const ROW = 24;
const LETTERS = { exact: "K", alias: "A", composite: "C", fallback: "F", fallthrough: "\u2192", ambiguous: "?" };
const $ = (id) => document.getElementById(id);

let epoch = -1;
let instance = ""; // of the daemon: another one's epochs begin again
let columns = [];
const operators = new Map(); // name -> libraries
let shown = []; // the names that pass the filter, sorted
let cells = new Map(); // name -> cells by key, as of this epoch
let active = -1;
let opened = "";
let updating = Promise.resolve();

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

async function get(path) {
  const reply = await fetch(path, { cache: "no-store" });
  if (!reply.ok) throw new Error(await reply.text());
  return reply.json();
}

// -- the grid: only the rows that are visible exist ------------------------------------------------

async function update() {
  const news = await get(epoch < 0 ? "api/operators" : `api/operators?since=${epoch}&instance=${instance}`);
  if (news.whole) operators.clear();
  for (const [name, libraries] of news.changed) operators.set(name, libraries);
  for (const name of news.removed) operators.delete(name);
  if (epoch !== news.epoch || news.whole) cells = new Map(Object.entries(news.cells));
  epoch = news.epoch;
  instance = news.instance;
  columns = news.columns;
  drawHead();
  filter();
  if (opened) await open(opened);
}

function drawHead() {
  const names = columns.map((key) => element("span", key, { role: "columnheader", class: "cell", title: key }));
  $("head").replaceChildren(element("span", "operator", { role: "columnheader", class: "name" }), ...names);
  $("grid").setAttribute("aria-colcount", String(columns.length + 1));
}

function filter() {
  const text = $("filter").value.toLowerCase();
  shown = [...operators.keys()].filter((name) => name.toLowerCase().includes(text)).sort();
  $("count").textContent = `${shown.length} of ${operators.size}`;
  $("grid").setAttribute("aria-rowcount", String(shown.length + 1));
  $("rows").style.height = `${shown.length * ROW}px`;
  active = Math.min(active, shown.length - 1);
  draw();
}

function draw() {
  const grid = $("grid");
  const first = Math.max(Math.floor(grid.scrollTop / ROW) - 5, 0);
  const last = Math.min(first + Math.ceil(grid.clientHeight / ROW) + 10, shown.length);
  const rows = [];
  for (let i = first; i < last; i += 1) rows.push(row(i));
  $("rows").replaceChildren(...rows);
  if (active >= 0) grid.setAttribute("aria-activedescendant", `row-${active}`);
  const wanted = shown.slice(first, last).filter((name) => !cells.has(name));
  if (wanted.length) fetchCells(wanted);
}

function row(i) {
  const name = shown[i];
  const made = element("div", undefined, {
    role: "row", class: i === active ? "row active" : "row", id: `row-${i}`, "aria-rowindex": String(i + 2),
  });
  made.dataset.operator = name;
  made.style.top = `${i * ROW}px`;
  made.append(element("span", name, { role: "rowheader", class: "name", title: name }));
  const known = cells.get(name);
  for (const key of columns) {
    const cell = known && known[key];
    const origin = cell ? cell[0] : "missing";
    const about = cell ? `${key}: ${cell[1]}, ${cell[2]}` : `${key}: none`;
    const text = known ? LETTERS[origin] || "\u00b7" : "";
    const attributes = { role: "gridcell", class: `cell ${known ? origin : ""}`, title: about, "aria-label": about };
    const drawn = element("span", text, attributes);
    drawn.dataset.key = key;
    made.append(drawn);
  }
  return made;
}

async function fetchCells(names) {
  const asked = epoch;
  for (const name of names) cells.set(name, undefined); // is on its way
  const query = names.map((name) => `operator=${encodeURIComponent(name)}`);
  for (let i = 0; i < query.length; i += 25) {
    const found = await get(`api/cells?${query.slice(i, i + 25).join("&")}`);
    if (asked !== epoch) return;
    for (const [name, each] of Object.entries(found)) cells.set(name, each);
  }
  draw();
}

// -- one operator ----------------------------------------------------------------------------------

async function open(name) {
  let about;
  try {
    about = await get(`api/operator?name=${encodeURIComponent(name)}`);
  } catch (error) {
    close();
    return;
  }
  if (opened !== about.name) drawForm(about);
  opened = about.name;
  $("detail").hidden = false;
  $("detail-name").textContent = about.name;
  $("detail-schema").textContent = about.schema || "no definition";
  $("detail-documentation").textContent = about.documentation;
  const seconds = (value) => `${(value * 1000).toPrecision(3)} ms`;
  const calls = about.calls.map(([key, library, version, ok, failed, died, run, queue]) =>
    [key, library, version, ok, failed, died, seconds(run), seconds(queue)]);
  $("detail-tables").replaceChildren(
    table("Calls", ["key", "library", "version", "ok", "errors", "died", "mean run", "mean wait"], calls),
    table("Dispatch table", ["key", "from", "why", "registered at"], about.table),
    table("Kernels", ["key", "registered at", "library", "interpreter", "active"], about.kernels),
  );
}

// -- a call of it ----------------------------------------------------------------------------------

function drawForm(about) {
  $("call").hidden = !about.schema;
  $("call-result").replaceChildren();
  const fields = about.arguments.map(([name, type, value], i) => {
    const field = element("p");
    const input = element("input", undefined, {
      id: `argument-${i}`, name, autocomplete: "off", spellcheck: "false", placeholder: value && `default ${value}`,
    });
    field.append(element("label", `${name}: ${type}`, { for: input.id }), input);
    if (type.startsWith("Tensor")) {
      const picture = { type: "file", accept: "image/*", "aria-label": `a picture for ${name}` };
      field.append(element("input", undefined, picture));
    }
    return field;
  });
  $("call-arguments").replaceChildren(...fields);
}

// The browser reads the picture: the daemon is sent pixels, and no format is parsed there.
async function pixels(file) {
  const bitmap = await createImageBitmap(file);
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d");
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, bitmap.width, bitmap.height);
  const colours = new Uint8Array(bitmap.width * bitmap.height * 3);
  for (let i = 0; i < colours.length; i += 1) colours[i] = data[Math.floor(i / 3) * 4 + (i % 3)];
  let text = "";
  for (let i = 0; i < colours.length; i += 32768) text += String.fromCharCode(...colours.subarray(i, i + 32768));
  return { shape: [bitmap.height, bitmap.width, 3], pixels: btoa(text) };
}

async function given() {
  const found = {};
  for (const field of $("call-arguments").children) {
    const [text, picture] = field.querySelectorAll("input");
    if (picture && picture.files.length) found[text.name] = await pixels(picture.files[0]);
    else if (text.value.trim()) {
      try {
        found[text.name] = JSON.parse(text.value);
      } catch (error) {
        throw new Error(`${text.name} is no JSON`);
      }
    }
  }
  return found;
}

async function call(event) {
  event.preventDefault();
  const operator = opened;
  let lines;
  try {
    const reply = await fetch("api/call", {
      method: "POST",
      headers: { "content-type": "application/json", "x-opdispatch-token": $("call-token").value },
      body: JSON.stringify({ operator, arguments: await given() }),
    });
    const text = await reply.text();
    const isJson = (reply.headers.get("content-type") || "").startsWith("application/json");
    const found = isJson ? JSON.parse(text) : { error: text };
    lines = found.error === undefined ? found.results.flatMap(drawResult) : [element("pre", found.error)];
  } catch (error) {
    lines = [element("pre", error.message)];
  }
  if (operator === opened) $("call-result").replaceChildren(...lines);
}

function drawResult(result) {
  const text = element("pre", result.text);
  if (!result.pixels) return [text];
  const [height, width] = result.shape;
  const canvas = element("canvas", undefined, { width, height, role: "img", "aria-label": "the result as a picture" });
  const data = Uint8ClampedArray.from(atob(result.pixels), (character) => character.charCodeAt(0));
  canvas.getContext("2d").putImageData(new ImageData(data, width, height), 0, 0);
  return [canvas, text];
}

function close() {
  opened = "";
  $("detail").hidden = true;
}

function table(caption, head, rows) {
  const made = element("table");
  made.append(element("caption", caption));
  const heads = element("tr");
  heads.append(...head.map((text) => element("th", text, { scope: "col" })));
  made.append(heads);
  for (const each of rows) {
    const line = element("tr");
    const kind = (text) => (/^[\d.e+-]+( ms)?$/.test(text) ? { class: "number" } : {}); // is not broken
    line.append(...each.map((text) => element("td", String(text), kind(text))));
    made.append(line);
  }
  return made;
}

// -- what is beside it -----------------------------------------------------------------------------

function drawState(state) {
  if (state.error) {
    $("status").textContent = state.error;
    return;
  }
  const [ok, failed, died] = state.calls;
  const ready = state.ready ? "serving" : "not serving";
  $("status").textContent = `${ready}; ${ok} calls, ${failed} failed, ${died} cut off`;
  $("interpreters").replaceChildren(table("", ["name", "state", "runs", "in flight", "queued", "restarts", "holds"],
    state.interpreters.map((i) => [i.name, i.trouble ? `${i.state}: ${i.trouble}` : i.state, i.running.join(", "),
      i.in_flight, i.queued, i.restarts, i.libraries.join(", ")])));
  $("libraries").replaceChildren(table("", ["name", "version", "state", "operators", "errors", "in"],
    state.libraries.map((l) => [l.name, l.version, l.trouble ? `${l.state}: ${l.trouble}` : l.state, l.operators,
      l.errors, l.interpreters.join(", ")])));
  const seconds = (value) => `${(value * 1000).toPrecision(3)} ms`;
  $("busiest").replaceChildren(table("", ["operator", "key", "library", "calls/s", "errors/s", "mean run", "99 %", "mean wait"],
    state.busiest.map(([operator, key, library, version, calls, errors, run, p99, queue]) =>
      [operator, key, `${library} v${version}`, calls.toFixed(1), errors.toFixed(1), seconds(run), seconds(p99), seconds(queue)])));
  $("clients").replaceChildren(table("", ["client", "calls/s"],
    state.clients.map(([name, calls]) => [name, calls.toFixed(1)])));
  $("deaths").replaceChildren(table("", ["when", "interpreter", "why", "was running"],
    state.deaths.map(([name, cause, reason, at, running]) =>
      [new Date(at * 1000).toLocaleTimeString(), name, `${cause}: ${reason}`, running.join(", ")])));
}

// -- events ----------------------------------------------------------------------------------------

function move(to) {
  if (!shown.length) return;
  active = Math.min(Math.max(to, 0), shown.length - 1);
  const grid = $("grid");
  const top = active * ROW;
  if (top < grid.scrollTop) grid.scrollTop = top;
  if (top + 2 * ROW > grid.scrollTop + grid.clientHeight) grid.scrollTop = top + 2 * ROW - grid.clientHeight;
  draw();
}

function pressed(event) {
  const page = Math.max(Math.floor($("grid").clientHeight / ROW) - 2, 1);
  const moves = { ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page, PageUp: active - page,
    Home: 0, End: shown.length - 1 };
  if (event.key in moves) move(moves[event.key]);
  else if (event.key === "Enter" && active >= 0) open(shown[active]).then(() => $("detail-name").focus());
  else if (event.key === "Escape") close();
  else return;
  event.preventDefault();
}

function start() {
  $("filter").addEventListener("input", filter);
  $("grid").addEventListener("scroll", draw);
  $("grid").addEventListener("keydown", pressed);
  $("rows").addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (row) {
      move(shown.indexOf(row.dataset.operator));
      open(row.dataset.operator);
    }
  });
  $("close").addEventListener("click", () => { close(); $("grid").focus(); });
  $("call").addEventListener("submit", call);
  window.addEventListener("resize", draw);
  updating = update();
  listen();
}

let away = false; // it may be another daemon when it is back

function take(kind, data) {
  if (kind === "epoch") {
    const isNew = away;
    away = false;
    updating = updating.then(() => (isNew || Number(data) !== epoch ? update() : undefined), update);
  } else if (kind === "state") {
    drawState(JSON.parse(data));
  } else {
    away = true;
    $("status").textContent = "the daemon does not answer; trying again";
  }
}

// A browser makes six connections to one address, for all tabs together. So one of them, which has the lock, reads
// the events and passes them on; when it is closed, the next one does.
function listen() {
  if (!navigator.locks) return read(take);
  const tabs = new BroadcastChannel("events");
  const latest = new Map();
  tabs.onmessage = ({ data: [kind, data] }) => {
    if (kind !== "hello") take(kind, data);
    else for (const each of latest) tabs.postMessage(each);
  };
  tabs.postMessage(["hello"]);
  return navigator.locks.request("events", () => new Promise(() => read((kind, data) => {
    if (kind === "epoch") latest.delete("error");
    latest.set(kind, data);
    take(kind, data);
    tabs.postMessage([kind, data]);
  })));
}

function read(tell) {
  const source = new EventSource("events");
  for (const kind of ["epoch", "state", "error"]) source.addEventListener(kind, (event) => tell(kind, event.data));
}

start();
