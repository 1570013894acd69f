"use strict";
// Line charts drawn as SVG from the page's own data: read by pointing or with arrow keys, zoomed by dragging or + and -.

const NAMESPACE = "http://www.w3.org/2000/svg";

function svg(tag, attributes, parent, text) {
  const node = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
}

function html(tag, className, parent, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
}

function shown(value, format) {
  if (format === "percent") return (100 * value).toFixed(1) + "%";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size !== 0 && size < 0.001) return value.toExponential(1);
  return String(Number(value.toPrecision(4)));
}

function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough - 1e-12);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) found.push(Number(value.toPrecision(10)));
  return found;
}

function powers(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    const value = Math.pow(10, power);
    if (value >= low * 0.999 && value <= high * 1.001) found.push(Number(value.toPrecision(3)));
  }
  // Between two powers there may be one label or none: then halves and fifths of ten too.
  if (found.length < 2) {
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      for (const part of [2, 5]) {
        const value = part * Math.pow(10, power);
        if (value >= low * 0.999 && value <= high * 1.001) found.push(Number(value.toPrecision(3)));
      }
    }
  }
  return found;
}

class Chart {
  constructor(figure, data) {
    this.data = data;
    this.plot = figure.querySelector(".plot");
    this.said = figure.querySelector(".said");
    this.reset = figure.querySelector(".reset");
    const sources = [...data.series, ...(data.bands || [])];
    this.epochs = [...new Set(sources.flatMap((line) => line.x))].sort((a, b) => a - b);
    const first = this.epochs[0], last = this.epochs[this.epochs.length - 1];
    this.whole = first === last ? [first - 0.5, last + 0.5] : [first, last];
    this.range = this.whole.slice();
    this.at = null;
    this.tip = html("div", "tip");
    this.tip.hidden = true;
    this.legend(figure.querySelector(".legend"));
    // Names of marks that do not fit above the plot.
    this.names = html("li", "", figure.querySelector(".legend"));
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  legend(list) {
    for (const line of this.data.series) {
      const item = html("li", "s" + (line.color % 8), list);
      const sample = svg("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" }, item);
      svg("line", { x1: 0, x2: 26, y1: 5, y2: 5, class: "line d" + (line.dash % 5) }, sample);
      html("span", "", item, line.name);
    }
    (this.data.bands || []).forEach((band, place) => {
      const item = html("li", "", list);
      const sample = svg("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" }, item);
      svg("rect", { x: 0, y: 0, width: 26, height: 10, class: "b" + place }, sample);
      html("span", "", item, band.name);
    });
  }

  inside(x) { return x >= this.range[0] - 1e-9 && x <= this.range[1] + 1e-9; }

  heights() {
    const values = [];
    const take = (x, y) => x.forEach((epoch, place) => { if (this.inside(epoch)) values.push(y[place]); });
    for (const line of this.data.series) take(line.x, line.y);
    for (const band of this.data.bands || []) { take(band.x, band.low); take(band.x, band.high); }
    if (!values.length) return this.data.log ? [0.1, 1] : [0, 1];
    let low = Math.min(...values), high = Math.max(...values);
    if (this.data.log) return [low / 1.6, high * 1.6];
    const pad = (high - low) * 0.08 || Math.abs(high) * 0.05 || 0.5;
    low -= pad; high += pad;
    return this.data.format === "percent" ? [Math.max(0, low), Math.min(1, high)] : [low, high];
  }

  draw() {
    const width = Math.max(220, this.plot.clientWidth), height = width < 420 ? 210 : 240;
    const box = { left: 54, right: 12, top: 14, bottom: 34 };
    const [low, high] = this.heights();
    const scale = this.data.log ? Math.log10 : (value) => value;
    const span = scale(high) - scale(low) || 1, reach = this.range[1] - this.range[0];
    this.x = (epoch) => box.left + ((epoch - this.range[0]) / reach) * (width - box.left - box.right);
    this.y = (value) => height - box.bottom - ((scale(value) - scale(low)) / span) * (height - box.top - box.bottom);
    this.epochAt = (pixel) => this.range[0] + ((pixel - box.left) / (width - box.left - box.right)) * reach;
    this.size = { width, height, box };
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", focusable: "false" });
    this.axes(root, low, high);
    this.lines(root);
    this.overlay = svg("g", {}, root);
    this.plot.replaceChildren(root, this.tip);
    if (this.at !== null && this.inside(this.at)) this.read(this.at); else this.forget();
    this.reset.hidden = this.range[0] === this.whole[0] && this.range[1] === this.whole[1];
  }

  axes(root, low, high) {
    const { width, height, box } = this.size;
    for (const value of this.data.log ? powers(low, high) : ticks(low, high, 5)) {
      if (value < low || value > high) continue;
      svg("line", { x1: box.left, x2: width - box.right, y1: this.y(value), y2: this.y(value), class: "grid" }, root);
      const text = this.data.format === "percent" ? Number((100 * value).toFixed(2)) + "%" : shown(value, this.data.format);
      svg("text", { x: box.left - 8, y: this.y(value) + 4, "text-anchor": "end" }, root, text);
    }
    svg("line", { x1: box.left, x2: width - box.right, y1: height - box.bottom, y2: height - box.bottom, class: "axis" }, root);
    for (const epoch of ticks(this.range[0], this.range[1], width < 420 ? 5 : 8)) {
      if (epoch !== Math.round(epoch)) continue;
      svg("text", { x: this.x(epoch), y: height - box.bottom + 16, "text-anchor": "middle" }, root, String(epoch));
    }
    svg("text", { x: width - box.right, y: height - 2, "text-anchor": "end" }, root, "epoch");
    this.marks(root);
  }

  // Names stand beside their lines where all of them have room; else lines are numbered, and the legend has the names.
  marks(root) {
    const { width, height, box } = this.size, right = width - box.right;
    const marks = (this.data.marks || []).filter((mark) => this.inside(mark.x)).map((mark) => ({ x: this.x(mark.x), text: mark.text }));
    const spans = marks.map(({ x, text }) => {
      const room = 6.2 * text.length, from = x + 4 + room > right ? x - room - 4 : x + 4;
      return [from, from + room];
    });
    const fits = spans.every(([from, to], place) => from >= box.left && marks.every(({ x }, other) =>
      other === place || ((x < from - 3 || x > to + 3) && (spans[other][1] + 6 < from || spans[other][0] > to + 6))));
    marks.forEach(({ x, text }, place) => {
      svg("line", { x1: x, x2: x, y1: box.top, y2: height - box.bottom, class: "mark" }, root);
      const where = fits ? { x: spans[place][0] } : { x, "text-anchor": "middle" };
      svg("text", { ...where, y: box.top - 4, class: "name" }, root, fits ? text : String(place + 1));
    });
    this.names.hidden = fits;
    const numbers = new Map();
    marks.forEach(({ text }, place) => numbers.set(text, [...(numbers.get(text) || []), place + 1]));
    this.names.textContent = fits ? "" : [...numbers].map(([text, places]) => `${places.join(", ")}: ${text}`).join("; ");
  }

  visible(x) { return x.map((_, place) => place).filter((place) => this.inside(x[place])); }

  lines(root) {
    const point = (x, y) => `${this.x(x).toFixed(1)},${this.y(y).toFixed(1)}`;
    (this.data.bands || []).forEach((band, order) => {
      const places = this.visible(band.x);
      if (!places.length) return;
      const over = places.map((place) => point(band.x[place], band.high[place]));
      const under = places.map((place) => point(band.x[place], band.low[place])).reverse();
      svg("path", { d: `M${over.concat(under).join("L")}Z`, class: "b" + order }, root);
    });
    for (const line of this.data.series) {
      const places = this.visible(line.x);
      const group = svg("g", { class: "s" + (line.color % 8) }, root);
      if (places.length > 1) {
        const path = places.map((place) => point(line.x[place], line.y[place])).join("L");
        svg("path", { d: "M" + path, class: "line d" + (line.dash % 5) }, group);
      }
      if (places.length && places.length <= 25) {
        for (const place of places) svg("circle", { cx: this.x(line.x[place]), cy: this.y(line.y[place]), r: 2.6, class: "dot" }, group);
      }
    }
  }

  read(epoch) {
    this.at = epoch;
    const { width, height, box } = this.size, x = this.x(epoch);
    this.overlay.replaceChildren();
    svg("line", { x1: x, x2: x, y1: box.top, y2: height - box.bottom, class: "guide" }, this.overlay);
    this.tip.replaceChildren();
    html("b", "", this.tip, `epoch ${epoch}`);
    const told = [], heights = [];
    const tell = (name, text, color) => {
      const row = html("div", "", this.tip);
      const title = html("span", "", row);
      if (color !== undefined) html("i", "swatch s" + (color % 8), title);
      title.append(name);
      html("span", "", row, text);
      told.push(`${name} ${text}`);
    };
    for (const line of this.data.series) {
      const place = line.x.indexOf(epoch);
      if (place < 0) continue;
      const group = svg("g", { class: "s" + (line.color % 8) }, this.overlay);
      heights.push(this.y(line.y[place]));
      svg("circle", { cx: x, cy: this.y(line.y[place]), r: 4.5, class: "dot" }, group);
      tell(line.name, shown(line.y[place], this.data.format), line.color);
    }
    for (const band of this.data.bands || []) {
      const place = band.x.indexOf(epoch);
      if (place >= 0) tell(band.name, `${shown(band.low[place], this.data.format)} to ${shown(band.high[place], this.data.format)}`);
    }
    this.said.textContent = `${this.data.title}, epoch ${epoch}: ${told.join(", ")}`;
    this.tip.hidden = false;
    const room = this.plot.clientWidth / width, own = this.tip.offsetWidth;
    const left = x * room + 12 + own > this.plot.clientWidth ? x * room - own - 12 : x * room + 12;
    this.tip.style.left = `${Math.max(0, Math.min(left, this.plot.clientWidth - own))}px`;
    // Where the curves are not: below those that lie high, above the others.
    const high = heights.reduce((sum, y) => sum + y, 0) / heights.length < (height - box.bottom + box.top) / 2;
    const under = (height - box.bottom) * room - this.tip.offsetHeight - 6;
    this.tip.style.top = `${Math.max(0, high ? under : box.top)}px`;
  }

  forget() {
    this.at = null;
    if (this.overlay) this.overlay.replaceChildren();
    this.tip.hidden = true;
  }

  nearest(epoch) {
    const seen = this.epochs.filter((known) => this.inside(known));
    return seen.reduce((best, known) => (Math.abs(known - epoch) < Math.abs(best - epoch) ? known : best), seen[0]);
  }

  zoom(low, high) {
    const inside = this.epochs.filter((epoch) => epoch >= low && epoch <= high);
    // Fewer than two epochs are no curve.
    if (inside.length < 2) return;
    this.range = [inside[0], inside[inside.length - 1]];
    this.draw();
  }

  all() { this.range = this.whole.slice(); this.draw(); }

  pixel(event) {
    const place = this.plot.getBoundingClientRect();
    return ((event.clientX - place.left) / place.width) * this.size.width;
  }

  listen() {
    const plot = this.plot;
    let start = null;
    plot.addEventListener("pointerdown", (event) => {
      // A finger reads and scrolls the page; zooming by dragging is for a mouse.
      if (event.pointerType !== "touch") start = this.pixel(event);
      this.read(this.nearest(this.epochAt(this.pixel(event))));
    });
    plot.addEventListener("pointermove", (event) => {
      const now = this.pixel(event);
      this.read(this.nearest(this.epochAt(now)));
      if (start !== null && event.buttons && Math.abs(now - start) > 6) {
        const { height, box } = this.size;
        svg("rect", { x: Math.min(start, now), y: box.top, width: Math.abs(now - start), height: height - box.top - box.bottom, class: "chosen" }, this.overlay);
      }
    });
    const end = (event) => {
      const now = this.pixel(event);
      if (start !== null && Math.abs(now - start) > 6) this.zoom(...[this.epochAt(start), this.epochAt(now)].sort((a, b) => a - b));
      start = null;
    };
    plot.addEventListener("pointerup", end);
    plot.addEventListener("pointercancel", () => { start = null; });
    plot.addEventListener("pointerleave", (event) => { start = null; if (event.pointerType !== "touch" && document.activeElement !== plot) this.forget(); });
    plot.addEventListener("dblclick", () => this.all());
    plot.addEventListener("blur", () => this.forget());
    plot.addEventListener("keydown", (event) => this.key(event));
    this.reset.addEventListener("click", () => { this.all(); plot.focus(); });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const seen = this.epochs.filter((epoch) => this.inside(epoch));
    const place = this.at === null ? -1 : seen.indexOf(this.at);
    const middle = this.at === null ? (this.range[0] + this.range[1]) / 2 : this.at;
    const wide = this.range[1] - this.range[0];
    const actions = {
      ArrowRight: () => this.read(seen[Math.min(seen.length - 1, place + 1)]),
      ArrowLeft: () => this.read(seen[place < 0 ? seen.length - 1 : Math.max(0, place - 1)]),
      Home: () => this.read(seen[0]),
      End: () => this.read(seen[seen.length - 1]),
      "+": () => this.zoom(middle - wide / 4, middle + wide / 4),
      "=": () => this.zoom(middle - wide / 4, middle + wide / 4),
      "-": () => this.zoom(middle - wide, middle + wide),
      0: () => this.all(),
      Escape: () => { this.forget(); this.all(); },
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }
}
