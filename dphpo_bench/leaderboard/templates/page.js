"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Sorting. What has no value goes last in both directions; equals keep their order.
  const valueOf = (row, index) => {
    const { number, text } = row.cells[index].dataset;
    return number !== undefined ? Number(number) : text ?? null;
  };
  const compare = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "string") return sign * a.localeCompare(b, "en", { numeric: true });
    return a < b ? -sign : a > b ? sign : 0;
  };
  const sort = (header) => {
    const opposite = { ascending: "descending", descending: "ascending" };
    const direction = opposite[header.getAttribute("aria-sort")] ?? header.dataset.first;
    const sign = direction === "ascending" ? 1 : -1;
    for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", direction);
    for (const body of header.closest("table").tBodies) {
      const rows = all("tr:not(.group)", body);
      rows.sort((a, b) => compare(valueOf(a, header.cellIndex), valueOf(b, header.cellIndex), sign));
      body.append(...rows);
    }
  };
  for (const button of all("thead button")) button.addEventListener("click", () => sort(button.parentElement));

  // Filters, kept in the address so that a view can be linked to.
  const controls = { overall: byId("overall-epsilon") };
  for (const name of ["task", "epsilon", "private", "method"]) controls[name] = byId(name);
  const state = () =>
    Object.entries(controls).map(([name, control]) => [name, control?.value ?? ""]).filter(([, value]) => value);

  const apply = () => {
    const { overall = "", task = "", epsilon = "", private: privacy = "", method = "" } = Object.fromEntries(state());
    for (const part of all(".overall")) part.hidden = part.dataset.epsilon !== overall;
    const wanted = method.trim().toLowerCase();
    let tables = 0, shown = 0, total = 0;
    for (const part of all(".result")) {
      const fits = (!task || part.dataset.task === task) && (!epsilon || part.dataset.epsilon === epsilon);
      let left = 0;
      for (const body of all("tbody", part)) {
        let here = 0;
        for (const row of all("tr:not(.group)", body)) {
          const { private: is, name } = row.dataset;
          row.hidden = !(fits && (!privacy || is === privacy) && name.toLowerCase().includes(wanted));
          here += !row.hidden;
          total += 1;
        }
        body.hidden = here === 0;
        left += here;
      }
      part.hidden = left === 0;
      tables += left > 0;
      shown += left;
    }
    byId("count").textContent = `${shown} of ${total} rows, in ${tables} of ${all(".result").length} tables.`;
  };
  const restore = () => {
    const hash = location.hash.slice(1);
    if (hash && !hash.includes("=")) return; // a link within the page
    const wanted = new URLSearchParams(hash);
    for (const [name, control] of Object.entries(controls)) {
      if (!control) continue;
      const value = wanted.get(name) ?? "";
      const known = !control.options || [...control.options].some((option) => option.value === value);
      control.value = known ? value : "";
    }
    apply();
  };
  const keep = () => {
    apply();
    history.replaceState(null, "", `#${new URLSearchParams(state())}`);
  };
  for (const form of all("form")) {
    form.hidden = false;
    form.addEventListener("input", keep);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(keep));
  }
  addEventListener("hashchange", restore);
  apply();
  restore();

  // Charts, drawn when they come near, and again when the theme changes.
  byId("no-script")?.remove();
  const { specs, themes } = JSON.parse(byId("chart-data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map();
  const draw = async (place) => {
    drawn.get(place)?.finalize();
    const theme = dark.matches ? "dark" : "light";
    try {
      const view = await vegaEmbed(place, specs[place.dataset.chart], {
        mode: "vega-lite", renderer: "svg", actions: false, ast: true, config: themes[theme], tooltip: { theme },
      });
      drawn.set(place, view);
    } catch (error) {
      place.textContent = `This chart cannot be drawn: ${error.message}`;
      throw error;
    }
    place.classList.add("drawn");
  };
  // The charts' library stands after this script, so that tables work before it is read.
  addEventListener("DOMContentLoaded", () => {
    const observer = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        observer.unobserve(target);
        draw(target);
      }
    }, { rootMargin: "600px 0px" });
    for (const place of all("[data-chart]")) observer.observe(place);
    dark.addEventListener("change", () => [...drawn.keys()].forEach(draw));
  });
})();
