// A histogram of one epoch; a slider chooses which.

class Histogram {
  constructor(figure, data) {
    this.data = data;
    this.bars = figure.querySelector(".bars");
    this.said = figure.querySelector(".said");
    this.slider = figure.querySelector("input");
    this.output = figure.querySelector("output");
    this.most = Math.max(1, ...data.counts.flat());
    this.slider.addEventListener("input", () => this.draw());
    this.bars.addEventListener("pointermove", (event) => this.point(event));
    this.bars.addEventListener("pointerleave", () => this.tell(null));
    new ResizeObserver(() => this.draw()).observe(this.bars);
  }

  draw() {
    const width = Math.max(220, this.bars.clientWidth), height = 190, left = 54, right = 12, bottom = 24, top = 8;
    const counts = this.data.counts[Number(this.slider.value)], [low, high] = this.data.edges;
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", focusable: "false" });
    const step = (width - left - right) / counts.length;
    const y = (count) => height - bottom - (Math.sqrt(count) / Math.sqrt(this.most)) * (height - top - bottom);
    for (const count of [0, this.most / 9, (this.most * 4) / 9, this.most].map(Math.round)) {
      svg("line", { x1: left, x2: width - right, y1: y(count), y2: y(count), class: count ? "grid" : "axis" }, root);
      svg("text", { x: left - 8, y: y(count) + 4, "text-anchor": "end" }, root, count.toLocaleString("en"));
    }
    this.rectangles = counts.map((count, place) => svg("rect", {
      x: left + place * step + 0.5, width: Math.max(0.5, step - 1), y: y(count), height: height - bottom - y(count), class: "histobar",
    }, root));
    for (const value of ticks(low, high, 6)) {
      const x = left + ((value - low) / (high - low)) * (width - left - right);
      svg("text", { x, y: height - 6, "text-anchor": "middle" }, root, String(value));
    }
    this.place = { left, step, width };
    this.bars.replaceChildren(root);
    this.output.textContent = this.data.epochs[Number(this.slider.value)];
    this.slider.setAttribute("aria-valuetext", "epoch " + this.output.textContent);
    this.tell(null);
  }

  point(event) {
    const box = this.bars.getBoundingClientRect();
    const pixel = ((event.clientX - box.left) / box.width) * this.place.width;
    const place = Math.floor((pixel - this.place.left) / this.place.step);
    this.tell(place >= 0 && place < this.rectangles.length ? place : null);
  }

  tell(place) {
    this.rectangles.forEach((bar, number) => bar.classList.toggle("at", number === place));
    const counts = this.data.counts[Number(this.slider.value)], [low, high] = this.data.edges;
    const width = (high - low) / counts.length;
    // The bins at both ends also hold what lies beyond them.
    const from = (low + (place || 0) * width).toFixed(2), to = (low + ((place || 0) + 1) * width).toFixed(2);
    const range = place === 0 ? `up to ${to}` : place === counts.length - 1 ? `${from} or more` : `${from} to ${to}`;
    this.said.textContent = place === null
      ? "Heights grow with the square root of the count, so that rare values stay visible."
      : `${range}: ${counts[place].toLocaleString("en")} images`;
  }
}
