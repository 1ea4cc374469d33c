"use strict";
// Draws the timeline that planner/report/packed.py packed: rows of bars, of which a binary search
// finds those in view and at most one box a pixel is drawn, however many ops there are. Boxes go into
// an image, not through the canvas: without a GPU 40,000 rectangles take it longer than a frame.

const PALETTE = ["#56b4e9", "#0072b2", "#009e73", "#e69f00", "#f0e442", "#d55e00", "#cc79a7",
  "#8c8c8c", "#b3b3b3", "#6f6f6f"]; // Okabe and Ito's: kinds F B I W N U R, and greys for copies
const HOST = 4, LEFT = 92, AXIS = 26, DEVICE_GAP = 12, MEMORY = 34;

async function read() {
  const text = document.getElementById("data").textContent.trim();
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const data = new Uint8Array(await new Response(plain).arrayBuffer());
  let at = 4 + new DataView(data.buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(data.subarray(4, at)));
  const columns = {};
  for (const [name, count] of Object.entries(head.columns)) {
    const values = (columns[name] = new Float64Array(count));
    for (let i = 0; i < count; i++) {
      let value = 0, factor = 1, byte;
      do {
        byte = data[at++];
        value += (byte & 127) * factor;
        factor *= 128;
      } while (byte > 127);
      values[i] = value % 2 ? -(value + 1) / 2 : value / 2;
    }
  }
  return [head, columns];
}

// The bars of a stream in order of time, numbered through all pieces; a piece has the rounds of a
// group: the ops of a phase in this stream. `begin` and `lasts` of a run are arrays; what is
// planned is computed, so that a million rounds take no memory.
class Track {
  constructor(ops) {
    Object.assign(this, { ops, pieces: [], of: new Map(), n: 0, total: 0, low: 0, high: 0 });
  }
  add(part, group, rounds) {
    const piece = { part, group, rounds, at: this.n, before: this.total };
    this.pieces.push(piece);
    this.of.set(part, piece);
    this.n += rounds * group.count;
    this.total += rounds * group.total;
  }
  seek(i) { // makes the round that a bar is in, bars `low` to `high`, the one that is looked at
    const { pieces } = this;
    let k = 0, stop = pieces.length;
    while (stop - k > 1) {
      const middle = (k + stop) >> 1;
      if (pieces[middle].at <= i) k = middle; else stop = middle;
    }
    const { part, group, at, before } = (this.piece = pieces[k]);
    this.round = Math.floor((i - at) / group.count);
    this.low = at + this.round * group.count;
    this.high = this.low + group.count;
    this.shift = this.low - group.first;
    this.begun = part.start + this.round * part.sheet.period;
    this.before = before + this.round * group.total;
  }
  op(i) {
    if (i < this.low || i >= this.high) this.seek(i);
    return i - this.shift;
  }
  place(i) {
    const op = this.op(i);
    return [this.piece, this.round, op];
  }
  start(i) {
    const op = this.op(i);
    return this.begun + this.ops.start[op];
  }
  us(i) { return this.ops.us[this.op(i)]; }
  end(i) {
    const op = this.op(i);
    return this.begun + this.ops.end[op];
  }
  busy(i) { // of all bars before
    if (i >= this.n) return this.total;
    const op = this.op(i);
    return this.before + this.ops.busy[op];
  }
  // The first bar from `low` on that ends after a moment.
  first(t, low = 0) {
    let step = 1, high = low;
    while (high < this.n && this.end(high) <= t) {
      low = high + 1;
      high += step;
      step *= 2;
    }
    high = Math.min(high, this.n);
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      if (this.end(middle) > t) high = middle; else low = middle + 1;
    }
    return low;
  }
}

class Ran extends Track {
  begin = [];
  ends = [];
  lasts = []; // below 0: it did not run
  sums = [0];
  take(start, us) {
    this.begin.push(start);
    this.ends.push(start + Math.max(us, 0));
    this.lasts.push(us);
    this.sums.push(this.sums.at(-1) + Math.max(us, 0));
  }
  start(i) { return this.begin[i]; }
  us(i) { return this.lasts[i]; }
  end(i) { return this.ends[i]; }
  busy(i) { return this.sums[i]; }
}

// Bytes alive on a device of a sheet over time; of rounds those of a steady one, folded.
class Curve {
  constructor(sheet, device, ops) {
    const round = sheet.phase === "round", period = sheet.period, events = [];
    let total = 0;
    const add = (start, end, bytes) => {
      if (!bytes || end <= start) return;
      if (!round) return void events.push([start, bytes], [end, -bytes]);
      const whole = Math.floor((end - start) / period), from = ((start % period) + period) % period;
      const to = from + end - start - whole * period;
      total += bytes * (whole + (to > period));
      if (to > from) events.push([from, bytes], [to > period ? to - period : to, -bytes]);
    };
    for (const life of sheet.lives) if (life.device === device) add(life.start, life.end, life.bytes);
    for (const { device: own, lane, first, count } of sheet.groups) {
      if (own !== device || lane === HOST) continue;
      for (let op = first; op < first + count; op++) {
        add(ops.start[op], ops.start[op] + ops.us[op], ops.transient[op]);
      }
    }
    events.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    events.unshift([0, 0]);
    this.times = Float64Array.from(events, (event) => event[0]);
    this.bytes = Float64Array.from(events, (event) => (total += event[1]));
    this.tops = []; // the most of 64 each, so that wide windows are quick
    this.bytes.forEach((bytes, k) => {
      if (k % 64) this.tops[k >> 6] = Math.max(this.tops[k >> 6], bytes); else this.tops.push(bytes);
    });
    this.most = this.tops.reduce((most, top) => Math.max(most, top), 0);
    this.period = round ? period : Infinity;
  }
  at(t) { // the place of the latest event
    let low = 0, high = this.times.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.times[middle] <= t) low = middle; else high = middle;
    }
    return low;
  }
  between(start, end) { // the most there
    if (end - start >= this.period) return this.most;
    const shift = this.period < Infinity ? Math.floor(start / this.period) * this.period : 0;
    if (end - shift > this.period) {
      return Math.max(this.between(start, shift + this.period), this.between(0, end - shift - this.period));
    }
    let k = this.at(start - shift), most = this.bytes[k];
    for (const last = this.at(end - shift - 1e-9); k <= last;) {
      const block = !(k % 64) && k + 63 <= last;
      most = Math.max(most, block ? this.tops[k >> 6] : this.bytes[k]);
      k += block ? 64 : 1;
    }
    return most;
  }
}

// Rows of streams with what is planned and what happened, and what is in memory when.
function build(head, c) {
  const count = c.us.length, ops = { ...c, start: new Float64Array(count), end: new Float64Array(count), busy: new Float64Array(count) };
  ops.group = new Array(count);
  ops.edge = new Float64Array(count + 1);
  for (let op = 0; op < count; op++) ops.edge[op + 1] = ops.edge[op] + c.edges[op];
  let op = 0, life = 0;
  const sheets = head.sheets.map(([program, phase, period, lives, streams, memory]) => {
    const sheet = { program, phase, period, memory, first: op, groups: [], lives: [], curves: [], end: 0 };
    for (const [device, lane, many] of streams) {
      const group = { device, lane, first: op, count: many, total: 0 };
      for (let t = 0; op < group.first + many; op++) {
        ops.start[op] = t += c.gap[op];
        ops.busy[op] = group.total;
        ops.group[op] = group;
        group.total += c.us[op];
        ops.end[op] = t += c.us[op];
        sheet.end = Math.max(sheet.end, t);
      }
      sheet.groups.push(group);
    }
    sheet.last = op;
    for (let t = 0, stop = life + lives; life < stop; life++) {
      t += c.begin[life];
      sheet.lives.push({ device: c.device[life], name: head.buffers[c.buffer[life]],
        bytes: c.bytes[life], start: t, end: t + c.lasts[life] });
    }
    return sheet;
  });
  const rows = head.streams.map(([name, device, lane]) => (
    { name, device, lane, planned: new Track(ops), actual: head.actual ? new Ran(ops) : null }));
  const found = new Map(rows.map((row) => [row.device * 8 + row.lane, row]));
  const model = { head, ops, sheets, rows, row: (device, lane) => found.get(device * 8 + lane),
    sides: head.actual ? ["planned", "actual"] : ["planned"], memory: head.devices.map(() => []) };
  let ran = 0;
  for (const [segment, number, start, first, rounds, known] of head.parts) {
    const sheet = sheets[number], devices = head.segments[segment][1];
    const part = { segment, sheet, start, first, rounds, devices };
    part.end = start + (rounds - 1) * sheet.period + sheet.end;
    for (const group of sheet.groups) {
      const row = model.row(devices[group.device], group.lane);
      row.planned.add(part, group, rounds);
      if (!known) continue;
      row.actual.add(part, group, known);
      for (let k = 0; k < known * group.count; k++, ran++) {
        const { n: _, begin, lasts } = row.actual, end = begin.length ? row.actual.end(begin.length - 1) : 0;
        row.actual.take(end + c.ran_gap[ran], c.ran_us[ran]);
      }
    }
    devices.forEach((device, local) => model.memory[device].push({ part, local }));
  }
  const every = rows.flatMap((row) => model.sides.map((side) => row[side])).filter((one) => one.n);
  model.end = every.reduce((end, one) => Math.max(end, one.end(one.n - 1)), Math.max(head.makespan, 1));
  return model;
}

// --- What waits for what -------------------------------------------------------------------------

const same = (a, b) => a && b && a.row === b.row && a.side === b.side && a.i === b.i;
const track = (bar) => bar.row[bar.side];
const startOf = (bar) => track(bar).start(bar.i), endOf = (bar) => track(bar).end(bar.i);

function sibling(model, { row, side, i }, op, lag) { // another op of its sheet, `lag` rounds before
  const [{ part }, round] = row[side].place(i), group = model.ops.group[op];
  const other = model.row(part.devices[group.device], group.lane), piece = other[side].of.get(part);
  const number = round - lag;
  if (!piece || number < 0 || number >= piece.rounds) return null;
  const bar = { row: other, side, i: piece.at + number * group.count + op - group.first };
  return track(bar).us(bar.i) < 0 ? null : bar;
}

function edges(model, op) { // pairs [op, lag]
  const found = [];
  for (let k = model.ops.edge[op]; k < model.ops.edge[op + 1]; k++) {
    const far = Math.floor(model.ops.after[k] / 2);
    found.push([op - far, model.ops.after[k] - 2 * far]);
  }
  return found;
}

function causes(model, { row, side, i }) { // the bars it waits for, the one before in its stream first
  const [piece, , op] = row[side].place(i), found = [], { edge, after } = model.ops;
  if (i > piece.at && row[side].us(i - 1) >= 0) found.push({ row, side, i: i - 1 });
  for (let k = edge[op]; k < edge[op + 1]; k++) {
    const far = Math.floor(after[k] / 2), one = sibling(model, { row, side, i }, op - far, after[k] - 2 * far);
    if (one) found.push(one);
  }
  return found;
}

function followers(model, bar) {
  const [piece, , op] = track(bar).place(bar.i), { first, last } = piece.part.sheet, found = [];
  if (bar.i + 1 < piece.at + piece.rounds * piece.group.count) found.push({ ...bar, i: bar.i + 1 });
  for (let other = first; other < last; other++) {
    for (const [cause, lag] of edges(model, other)) {
      if (cause === op) found.push(sibling(model, bar, other, -lag));
    }
  }
  return found.filter(Boolean);
}

function latest(bars) {
  return bars.reduce((best, one) => (best && endOf(best) >= endOf(one) ? best : one), null);
}

// What ended last before a bar could begin; where it waits for nothing in its phase, what ended
// last before on the devices of its segment: phases and segments wait for each other.
function cause(model, bar) {
  const waited = causes(model, bar);
  if (waited.length) return latest(waited);
  const [{ part }] = track(bar).place(bar.i), begin = startOf(bar), before = [];
  for (const row of model.rows.filter((one) => part.devices.includes(one.device))) {
    let i = row[bar.side].first(begin) - 1;
    if (row === bar.row) i = Math.min(i, bar.i - 1);
    if (i >= 0 && row[bar.side].us(i) >= 0) before.push({ row, side: bar.side, i });
  }
  return latest(before);
}

function criticalPath(model, bar) { // back to the begin
  const path = [bar];
  for (let one = bar; (one = cause(model, one)) && path.length < 200000;) path.push(one);
  return path;
}

function planned(bar) { // the same op as it was planned
  const [piece] = track(bar).place(bar.i);
  return { row: bar.row, side: "planned", i: bar.row.planned.of.get(piece.part).at + bar.i - piece.at };
}

function actual(bar) {
  const [piece] = track(bar).place(bar.i), ran = bar.row.actual?.of.get(piece.part);
  const i = ran ? ran.at + bar.i - piece.at : 0;
  return ran && bar.i - piece.at < ran.rounds * ran.group.count && bar.row.actual.us(i) >= 0
    ? { row: bar.row, side: "actual", i } : null;
}

// The time from when all was there that an op waits for to its end.
function own(model, bar) {
  const waited = latest(causes(model, bar));
  return waited ? endOf(bar) - endOf(waited) : track(bar).us(bar.i);
}

function late(model) { // in order of time, the ops that lost time by themselves
  const found = [], least = model.head.makespan / 2000;
  for (const row of model.head.actual ? model.rows : []) {
    for (let i = 0; i < row.actual.n; i++) {
      const bar = { row, side: "actual", i };
      if (row.actual.us(i) < 0) continue;
      const plan = planned(bar), lost = own(model, bar) - own(model, plan);
      if (lost > Math.max(least, 0.2 * row.planned.us(plan.i))) found.push({ ...bar, lost });
    }
  }
  return found.sort((a, b) => startOf(a) - startOf(b));
}

// --- Words ---------------------------------------------------------------------------------------

function time(us) {
  for (const [unit, factor, digits] of [["h", 3.6e9, 2], ["s", 1e6, 2], ["ms", 1e3, 1]]) {
    if (Math.abs(us) >= factor) return `${(us / factor).toFixed(digits)} ${unit}`;
  }
  return `${Math.round(us)} µs`;
}

const moment = (us) => `${(us / 1e6).toFixed(4)} s`;

function size(bytes) {
  for (const [unit, factor] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (bytes >= factor) return `${(bytes / factor).toFixed(1)} ${unit}`;
  }
  return `${bytes} B`;
}

function name(model, bar) {
  const op = track(bar).op(bar.i), { head, ops } = model, item = head.items[ops.item[op]];
  const whole = item === "batch" || item === "norm" ? item : item + ops.number[op];
  return `${head.tasks[ops.task[op]]}.${whole}.${head.kinds[ops.kind[op]][0]}${ops.index[op]}`;
}

function why(model, bar) {
  const by = cause(model, bar);
  if (!by) return "nothing was to come before it";
  const idle = startOf(bar) - endOf(by), told = `${name(model, by)} (${by.row.name}) ended`;
  const more = causes(model, bar).length ? "" : ", with which another phase or segment ended";
  if (idle <= 0) return `it began as ${told}${more}`;
  const rest = bar.side === "planned" && causes(model, bar).length ? ": held back to keep pace" : "";
  return `it began ${time(idle)} after ${told}${more}${rest}`;
}

function lines(model, bar) { // of what a bar is
  const [piece, round, op] = track(bar).place(bar.i), { head, ops } = model, found = [name(model, bar)];
  const { part } = piece, ran = actual(bar), plan = planned(bar);
  const where = part.sheet.phase === "round" ? `round ${part.first + round}` : part.sheet.phase;
  found.push(`${head.kinds[ops.kind[op]][1]} on ${bar.row.name}, ${where} of segment ${part.segment}`);
  const told = (what, one) => `${what} ${moment(startOf(one))} to ${moment(endOf(one))}: ${time(track(one).us(one.i))}`;
  found.push(told("planned", plan));
  if (ran) {
    const more = endOf(ran) - endOf(plan);
    found.push(`${told("actual ", ran)}; ended ${time(Math.abs(more))} ${more < 0 ? "earlier" : "later"}`);
  }
  const us = track(bar).us(bar.i), rate = us > 0 ? ` at ${(ops.moved[op] / us / 1e3).toFixed(2)} GB/s` : "";
  if (ops.moved[op]) found.push(`${size(ops.moved[op])} moved${rate}`);
  if (ops.transient[op]) found.push(`${size(ops.transient[op])} beside its buffers`);
  found.push(`why then: ${why(model, bar)}`);
  return found;
}

function inMemory(model, device, t) {
  const here = model.memory[device].find(({ part }) => t >= part.start && t < part.end);
  const budget = model.head.devices[device][1];
  if (!here) return [`${model.head.devices[device][0]}: no segment, budget ${size(budget)}`];
  const { sheet, start } = here.part, curve = curveOf(model, here), fold = sheet.phase === "round";
  const local = fold ? (t - start) % sheet.period : t - start;
  const lives = sheet.lives.filter((life) => life.device === here.local && (fold
    ? Math.floor((local - life.start) / sheet.period) - Math.floor((local - life.end) / sheet.period) > 0
    : life.start <= local && local < life.end));
  const many = new Map();
  for (const life of lives) many.set(life.name, (many.get(life.name) ?? 0) + life.bytes);
  const top = [...many].sort((a, b) => b[1] - a[1]);
  return [
    `${model.head.devices[device][0]} at ${moment(t)}: ${size(curve.between(t - start, t - start + 1))} alive`,
    `program takes ${size(sheet.memory[here.local])} of ${size(budget)}`,
    ...top.slice(0, 10).map(([buffer, bytes]) => `  ${size(bytes).padStart(10)}  ${buffer}`),
    ...(top.length > 10 ? [`  … and ${top.length - 10} more`] : []),
  ];
}

function curveOf(model, { part, local }) {
  return (part.sheet.curves[local] ??= new Curve(part.sheet, local, model.ops));
}

// --- Drawing and hands ---------------------------------------------------------------------------

function start([head, columns]) {
  const model = build(head, columns), rows = [];
  const chart = document.getElementById("chart"), canvas = document.getElementById("canvas");
  const tip = document.getElementById("tip"), cursor = document.getElementById("cursor"), detail = document.getElementById("detail");
  const ctx = canvas.getContext("2d"), strip = rowHeight(), thick = model.sides.length * strip;
  const view = { t: 0, dt: 1, wide: 1, high: 1, by: "kind", chosen: null, path: [], before: [], after: [] };
  const colors = {}, inks = {}, shades = new Uint32Array(model.ops.us.length);
  let delays = null, image = null, pixels = null, across = 0, down = 0, ratio = 1, dirty = false;
  let grain = 1, rest = 0; // columns have so many pixels, two while the view moves
  document.getElementById("timeline").hidden = false;

  function rowHeight() { return model.rows.length > 24 ? 8 : 13; }
  let low = AXIS;
  head.devices.forEach((_, device) => {
    for (const row of model.rows.filter((one) => one.device === device)) {
      rows.push({ row, y: low, high: thick });
      low += thick + 4;
    }
    rows.push({ device, y: low, high: MEMORY });
    low += MEMORY + DEVICE_GAP;
  });
  const whole = low;

  const x = (t) => LEFT + (t - view.t) / view.dt, at = (px) => view.t + (px - LEFT) * view.dt;
  const offset = () => Math.min(Math.max(-chart.getBoundingClientRect().top, 0), whole - view.high);

  function resize() {
    const { dt, wide } = view;
    ratio = window.devicePixelRatio || 1;
    view.wide = Math.max(chart.clientWidth - LEFT - 8, 50);
    view.high = Math.min(whole, Math.max(window.innerHeight * 0.9, 200));
    chart.style.height = `${whole}px`;
    canvas.width = chart.clientWidth * ratio;
    canvas.height = view.high * ratio;
    canvas.style.height = `${view.high}px`;
    ({ width: across, height: down } = canvas);
    image = ctx.createImageData(across, down);
    pixels = new Uint32Array(image.data.buffer);
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(document.documentElement);
    for (const key of ["ink", "back", "faint", "mark", "memory"]) {
      colors[key] = style.getPropertyValue(`--${key}`);
      inks[key] = ink(colors[key]);
    }
    move(view.t, wide === 1 ? Infinity : (dt * wide) / view.wide);
    draw(); // now: the canvas is empty, and no frame comes while a page is printed
  }

  function move(t, dt) { // the moment at the left, µs a pixel
    view.dt = Math.min(Math.max(dt, 0.01), (model.end * 1.02) / view.wide);
    view.t = Math.min(Math.max(t, -0.01 * model.end), model.end * 1.01 - view.dt * view.wide);
    tip.hidden = true; // what it tells of is elsewhere now
    grain = 2;
    clearTimeout(rest);
    rest = setTimeout(() => { grain = 1; redraw(); }, 120);
    redraw();
  }
  const zoom = (factor, px = LEFT + view.wide / 2) => {
    const t = at(px), dt = Math.min(Math.max(view.dt * factor, 0.01), (model.end * 1.02) / view.wide);
    move(t - (px - LEFT) * dt, dt);
  };
  function redraw() {
    if (!dirty) requestAnimationFrame(() => { dirty = false; draw(); });
    dirty = true;
  }

  const hue = (op) => (view.by === "kind" ? model.ops.kind[op] : model.ops.task[op] % 7); // in PALETTE

  function ink(color) { // a colour as the image has it: bytes red, green, blue and opaque
    ctx.fillStyle = color; // which makes it #rrggbb
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(ctx.fillStyle.slice(at, at + 2), 16));
    return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  }

  function box(left, top, wide, high, color) {
    const from = Math.max(Math.round(left * ratio), 0), to = Math.min(Math.round((left + wide) * ratio), across);
    const stop = Math.min(Math.round((top + high) * ratio), down);
    for (let line = Math.max(Math.round(top * ratio), 0); line < stop; line++) {
      for (let k = line * across + from, end = line * across + to; k < end; k++) pixels[k] = color;
    }
  }

  // The bars of a track that are in view: those of a column and more as they are; smaller ones a
  // column at a time, as high as the share of it that they take. Columns begin at multiples of
  // their time, so that nothing flickers when the view moves. Returns those with room for a name.
  function bars(side, y, high) {
    const stop = view.t + view.dt * view.wide, dt = view.dt * grain, shift = Math.round(x(0)), names = [];
    for (let i = side.first(view.t), last = -Infinity; i < side.n;) {
      const begin = side.start(i), us = side.us(i);
      if (begin >= stop) break;
      if (us < 0) { i++; continue; }
      const color = shades[side.op(i)];
      if (us >= dt) {
        const left = Math.max(x(begin), LEFT), wide = Math.min(x(begin + us), LEFT + view.wide) - left;
        box(left, y, Math.max(wide - (wide > 6), 1), high, color);
        if (wide > 24) names.push([i, left, wide]);
        i++;
        continue;
      }
      const column = Math.max(Math.floor(begin / dt), last + 1), end = (column + 1) * dt;
      const next = side.first(end, i), small = next < side.n && side.us(next) < dt;
      const over = small ? Math.max(end - side.start(next), 0) : 0; // of the bar that ends later
      const before = Math.max(column * dt - begin, 0); // of one that began before
      const share = Math.min((side.busy(next) - side.busy(i) - before + over) / dt, 1);
      const tall = Math.max(Math.round(share * high), 1), left = column * grain + shift;
      box(left, y + high - tall, Math.min(grain, LEFT + view.wide - left), tall, color);
      i = next;
      last = column;
    }
    return names;
  }

  function memory(device, y) {
    const [, budget] = head.devices[device], scale = (MEMORY - 4) / budget, floor = y + MEMORY;
    for (const here of model.memory[device]) {
      const { part, local } = here, to = Math.min(x(part.end), LEFT + view.wide), from = Math.max(x(part.start), LEFT);
      if (to < LEFT || from > LEFT + view.wide) continue;
      const curve = curveOf(model, here);
      let left = Math.floor(from), last = 0;
      for (let px = left; px < to; px += grain) {
        const t = Math.max(at(px) - part.start, 0), tall = Math.round(curve.between(t, t + grain * view.dt) * scale);
        if (tall === last) continue;
        box(left, floor - last, px - left, last, inks.memory);
        [left, last] = [px, tall];
      }
      box(left, floor - last, to - left, last, inks.memory);
      box(from, floor - part.sheet.memory[local] * scale, Math.max(to - from, 1), 1, inks.memory);
    }
    box(LEFT, y + 3, view.wide, 1, inks.mark); // the budget
  }

  function axis() {
    ctx.fillStyle = colors.back;
    ctx.fillRect(0, 0, canvas.width, AXIS - 4);
    ctx.fillStyle = colors.ink;
    const rough = view.dt * 110, power = 10 ** Math.floor(Math.log10(rough));
    const tick = power * [1, 2, 5, 10].find((one) => one * power >= rough);
    for (let t = Math.ceil(view.t / tick) * tick; x(t) < LEFT + view.wide; t += tick) {
      ctx.fillText(label(t, tick), x(t) + 3, 10);
      ctx.fillRect(x(t), 4, 1, AXIS - 8);
    }
    const said = [[head.bound, "bound"], [head.makespan, "planned end"], ...head.marks];
    ctx.fillStyle = colors.mark;
    for (const [t] of said) if (x(t) >= LEFT && x(t) <= LEFT + view.wide) ctx.fillRect(x(t) - 1, AXIS - 10, 3, 8);
    return said;
  }

  function label(t, tick) {
    const [factor, unit] = Math.abs(t) >= 1e6 || tick >= 1e5 ? [1e6, "s"] : tick >= 100 ? [1e3, "ms"] : [1, "µs"];
    return `${(t / factor).toFixed(Math.min(Math.max(0, Math.ceil(-Math.log10(tick / factor))), 6))} ${unit}`;
  }

  function draw() {
    const up = offset(), places = new Map(), named = [];
    const shown = rows.map((place) => [place, place.y - up]).filter(([{ high }, y]) => y + high >= 0 && y <= view.high);
    for (const { row, y } of rows) if (row) places.set(row, y - up);
    pixels.fill(inks.back);
    for (const [{ row, device, high }, y] of shown) {
      if (!row) { memory(device, y); continue; }
      box(LEFT, y, view.wide, high, inks.faint);
      model.sides.forEach((side, k) => {
        const top = y + k * strip;
        for (const one of bars(row[side], top, strip - 1)) named.push([row, side, top, ...one]);
      });
    }
    route(places);
    ctx.putImageData(image, 0, 0);
    ctx.fillStyle = colors.ink;
    ctx.font = "11px system-ui, sans-serif";
    ctx.textBaseline = "middle";
    for (const [{ row, device, high }, y] of shown) {
      ctx.fillText(row ? row.name : `memory ${device}`, 4, y + high / 2, LEFT - 8);
    }
    ctx.font = "10px system-ui, sans-serif";
    for (const [row, side, top, i, left, room] of strip > 10 ? named : []) {
      const text = name(model, { row, side, i }), short = text.slice(text.indexOf(".") + 1);
      const fits = [text, short].find((one) => one.length * 5.6 < room - 4);
      ctx.fillStyle = ["#0072b2", "#6f6f6f"].includes(PALETTE[hue(row[side].op(i))]) ? "#fff" : "#111";
      if (fits) ctx.fillText(fits, left + 3, top + strip / 2);
    }
    leads(places);
    view.said = axis();
  }

  const after = (path, t) => { // the first of a path, which goes back, that begins before a moment
    let low = 0, high = path.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (startOf(path[middle]) <= t) high = middle; else low = middle + 1;
    }
    return low;
  };

  const topOf = (bar, places) => places.get(bar.row) + model.sides.indexOf(bar.side) * strip;
  const inside = (px) => Math.min(Math.max(px, LEFT - 9), LEFT + view.wide + 9);

  function frame(bar, thick, color, places) {
    const left = inside(x(startOf(bar))), wide = Math.max(inside(x(endOf(bar))) - left, thick), y = topOf(bar, places);
    if (wide <= 2 * thick) return void box(left, y, wide, strip - 1, color);
    for (const lower of [y, y + strip - 1 - thick]) box(left, lower, wide, thick, color);
    for (const side of [left, left + wide - thick]) box(side, y, thick, strip - 1, color);
  }

  function route(places) { // the critical path
    const { path } = view, from = after(path, at(LEFT + view.wide)), to = after(path, view.t);
    const stride = Math.max(1, Math.floor((to - from) / 600)); // so many are enough to be seen
    for (let k = from; k < Math.min(to + 2, path.length); k += stride) {
      frame(path[k], 2, inks.mark, places);
      if (!k) continue;
      const [left, right] = [endOf(path[k]), startOf(path[k - 1])].map((t) => inside(x(t)));
      const [y, end] = [path[k], path[k - 1]].map((bar) => topOf(bar, places) + strip / 2);
      box(left, y - 1, right - left, 2, inks.mark);
      box(right - 1, Math.min(y, end) - 1, 2, Math.abs(end - y) + 2, inks.mark);
    }
    if (view.chosen) frame(view.chosen, 3, inks.ink, places);
  }

  function leads(places) { // what the chosen bar waits for, and what waits for it
    const line = (from, to) => {
      ctx.beginPath();
      ctx.moveTo(inside(x(endOf(from))), topOf(from, places) + strip / 2);
      ctx.lineTo(inside(x(startOf(to))), topOf(to, places) + strip / 2);
      ctx.stroke();
    };
    ctx.strokeStyle = colors.ink;
    ctx.lineWidth = 1;
    for (const one of view.before) line(one, view.chosen);
    ctx.setLineDash([4, 3]);
    for (const one of view.after) line(view.chosen, one);
    ctx.setLineDash([]);
  }

  function hit(px, py) { // the bar there, or the device whose memory it is
    const place = rows.find(({ y, high }) => py + offset() >= y && py + offset() <= y + high);
    if (!place || px < LEFT) return null;
    if (!place.row) return { device: place.device };
    const k = Math.min(Math.floor((py + offset() - place.y) / strip), model.sides.length - 1);
    const side = model.sides[k], one = place.row[side], t = at(px);
    let i = one.first(t);
    if (i >= one.n || one.start(i) > t + 2 * view.dt) i--;
    if (i < 0 || one.end(i) < t - 2 * view.dt || one.us(i) < 0) return null;
    return { row: place.row, side, i };
  }

  function choose(bar, go = false) {
    const path = bar ? criticalPath(model, bar) : [];
    Object.assign(view, { chosen: bar, path, before: bar ? causes(model, bar) : [], after: bar ? followers(model, bar) : [] });
    if (bar && go) {
      const us = Math.max(endOf(bar) - startOf(bar), 1), dt = Math.min(view.dt, (us * 12) / view.wide);
      move(startOf(bar) + us / 2 - (dt * view.wide) / 2, dt);
      const y = rows.find(({ row }) => row === bar.row).y - offset() + canvas.getBoundingClientRect().top;
      if (y < AXIS || y > window.innerHeight / 2) window.scrollBy(0, y - window.innerHeight / 3);
    }
    const links = (title, bars) => [
      ...(bars.length ? [title] : []),
      ...bars.slice(0, 16).map((one) => button(name(model, one), () => choose(one, true))),
      bars.length > 16 ? `… ${bars.length - 16} more` : "",
    ];
    detail.replaceChildren();
    if (bar) {
      const text = document.createElement("pre");
      text.textContent = lines(model, bar).join("\n") + `\ncritical path: ${path.length - 1} ops before it`;
      detail.append(text, ...links("waits for ", view.before), document.createElement("br"), ...links("waited for by ", view.after));
    }
    redraw();
  }

  function nextLate(step) {
    delays ??= late(model);
    if (!delays.length) return void (detail.textContent = model.head.actual ? "no op was late" : "there is no run");
    const here = view.chosen ? startOf(view.chosen) : view.t;
    const known = delays.findIndex((one) => same(one, view.chosen));
    let k = known < 0 ? delays.findIndex((one) => startOf(one) >= here) : known + step;
    if (known < 0 && step < 0) k = (k < 0 ? delays.length : k) - 1;
    k = (k + delays.length) % delays.length;
    choose(delays[k], true);
    detail.firstChild.append(`\nlate op ${k + 1} of ${delays.length}: lost ${time(delays[k].lost)} by itself`);
  }

  function wholePath() {
    const side = model.sides.at(-1), lasts = model.rows.filter((row) => row[side].n);
    choose(latest(lasts.map((row) => ({ row, side, i: row[side].n - 1 }))));
  }

  function find(text) {
    for (const row of model.rows) {
      for (const { at: from, group } of row.planned.pieces) {
        for (let i = from; i < from + group.count; i++) {
          const bar = { row, side: "planned", i };
          if (name(model, bar) === text) return choose(actual(bar) ?? bar, true);
        }
      }
    }
    detail.textContent = `no op is called ${text}`;
  }

  function button(text, press) {
    const one = document.createElement("button");
    one.textContent = text;
    one.addEventListener("click", press);
    return one;
  }

  function legend() { // and the colours of all ops
    const palette = PALETTE.map(ink);
    shades.forEach((_, op) => { shades[op] = palette[hue(op)]; });
    const used = new Set(model.ops.kind), items = view.by === "kind"
      ? head.kinds.map(([letter, told], k) => [k, `${letter} ${told}`]).filter(([k]) => used.has(k))
      : head.tasks.map((task, k) => [k % 7, task]).slice(0, 14);
    const sides = document.createElement("span");
    sides.textContent = head.actual ? "each row: planned above, actual below" : "planned";
    document.getElementById("legend").replaceChildren(sides, ...items.map(([k, told]) => {
      const one = document.createElement("span"), box = document.createElement("i");
      box.style.background = PALETTE[k];
      one.append(box, told);
      return one;
    }));
  }

  const recolor = () => { view.by = view.by === "kind" ? "task" : "kind"; legend(); redraw(); };
  const keys = {
    "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: () => move(0, Infinity),
    ArrowLeft: () => move(view.t - view.dt * view.wide * 0.2, view.dt),
    ArrowRight: () => move(view.t + view.dt * view.wide * 0.2, view.dt),
    n: () => nextLate(1), p: () => nextLate(-1), c: wholePath, t: recolor, Escape: () => choose(null),
  };
  const tools = document.getElementById("tools"), input = document.createElement("input");
  input.placeholder = "name of an op";
  input.addEventListener("change", () => find(input.value.trim()));
  const legends = document.createElement("div");
  legends.id = "legend";
  tools.append(button("+", keys["+"]), button("−", keys["-"]), button("all (0)", keys[0]),
    button("critical path (c)", keys.c), button("colours (t)", keys.t));
  if (head.actual) tools.append(button("late before (p)", keys.p), button("next late (n)", keys.n));
  tools.append(input, legends);
  legend();

  document.addEventListener("keydown", (event) => {
    const press = keys[event.key];
    if (!press || event.ctrlKey || event.metaKey || event.altKey || event.target === input) return;
    event.preventDefault();
    press();
  });
  canvas.addEventListener("wheel", (event) => {
    if (event.offsetX < LEFT) return; // there the page scrolls
    event.preventDefault();
    const aside = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
    if (Math.abs(aside) > Math.abs(event.deltaY) || event.shiftKey) move(view.t + aside * view.dt, view.dt);
    else zoom(Math.exp(event.deltaY * 0.0016), event.offsetX);
  }, { passive: false });
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.offsetX, t: view.t, far: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    cursor.hidden = false;
    cursor.style.transform = `translateX(${event.offsetX}px)`;
    if (drag && (drag.far ||= Math.abs(event.offsetX - drag.x) > 3)) move(drag.t - (event.offsetX - drag.x) * view.dt, view.dt);
    else hover(event);
  });
  canvas.addEventListener("pointerup", (event) => {
    const over = drag?.far ? null : hit(event.offsetX, event.offsetY);
    if (drag && !drag.far) choose(over?.row ? over : null);
    drag = null;
  });
  canvas.addEventListener("pointerleave", () => { cursor.hidden = tip.hidden = true; });

  function hover(event) {
    const over = hit(event.offsetX, event.offsetY), t = at(event.offsetX);
    const near = event.offsetY < AXIS ? (view.said ?? []).filter(([when]) => Math.abs(x(when) - event.offsetX) < 5) : [];
    const text = over?.row ? lines(model, over) : over ? inMemory(model, over.device, t) : near.map(([when, what]) => `${time(when)}: ${what}`);
    tip.hidden = !text.length;
    tip.textContent = text.join("\n");
    tip.style.left = `${Math.min(event.clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8)}px`;
  }

  new ResizeObserver(resize).observe(chart);
  for (const [of, event] of [[window, "scroll"], [window, "resize"]]) of.addEventListener(event, event === "scroll" ? redraw : resize);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", resize);
  for (const event of ["beforeprint", "afterprint"]) window.addEventListener(event, resize);
  resize();
  window.report = { model, view, draw, hit, choose, move, x, rows, offset, time, late: () => (delays ??= late(model)), criticalPath, cause, causes, Curve, curveOf, name, startOf, endOf };
}

if (typeof document !== "undefined") read().then(start);
