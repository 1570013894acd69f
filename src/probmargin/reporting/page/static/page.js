// The page: colours first, so that nothing flashes; then the figures and the place in the list of sections.

const dark = window.matchMedia("(prefers-color-scheme: dark)");

function stored() {
  try { return window.localStorage.getItem("probmargin-theme"); } catch { return null; }
}

function store(value) {
  try { window.localStorage.setItem("probmargin-theme", value); } catch { /* a page without storage forgets */ }
}

function paint(choice) {
  const chosen = choice === "light" || choice === "dark" ? choice : dark.matches ? "dark" : "light";
  document.documentElement.dataset.theme = chosen;
}

paint(stored());

function themes() {
  for (const input of document.querySelectorAll("input[name=theme]")) {
    input.checked = input.value === (stored() || "auto");
    input.addEventListener("change", () => { store(input.value); paint(input.value); });
  }
  dark.addEventListener("change", () => paint(stored()));
}

function figures() {
  const data = JSON.parse(document.getElementById("figures").textContent);
  for (const figure of document.querySelectorAll("figure[data-figure]")) {
    const own = data[figure.dataset.figure];
    if (figure.classList.contains("chart")) new Chart(figure, own);
    else new Histogram(figure, own.histogram);
  }
}

function places() {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      const own = links.get(entry.target.id);
      own.setAttribute("aria-current", "true");
      // On a phone the list is one line: the place we are at stays in it.
      own.closest("ul").scrollLeft = own.offsetLeft - 24;
    }
  }, { rootMargin: "-10% 0px -80% 0px" });
  for (const section of document.querySelectorAll("main > section")) watcher.observe(section);
}

// Everything is printed, also what is folded.
window.addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});

document.addEventListener("DOMContentLoaded", () => { themes(); figures(); places(); });
