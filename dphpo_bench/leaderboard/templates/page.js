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

  // A link to a method opens its card.
  const open = () => {
    const card = byId(location.hash.slice(1))?.closest("details");
    if (card) card.open = true;
  };

  // What is shown, kept in the address so that a view can be linked to.
  const form = byId("controls");
  const apply = () => {
    const { task, method } = form.elements;
    const answers = all(".answer").filter((one) => one.dataset.subject === task.value);
    const radios = all("[name=epsilon]", form);
    for (const radio of radios) radio.disabled = !answers.some((one) => one.dataset.epsilon === radio.value);
    if (!radios.some((radio) => radio.checked && !radio.disabled)) radios.find((radio) => !radio.disabled).checked = true;
    const epsilon = radios.find((radio) => radio.checked).value;
    const answer = answers.find((one) => one.dataset.epsilon === epsilon);
    for (const one of all(".answer")) one.hidden = one !== answer;

    const overalls = all(".overall");
    const overall = overalls.find((one) => one.dataset.epsilon === epsilon) ?? overalls[0];
    for (const one of overalls) one.hidden = one !== overall;
    const settings = answer.dataset.settings.trim().split(" ");
    for (const one of all(".setting")) {
      const asked = settings.includes(one.dataset.setting);
      one.hidden = !asked && "answered" in one.dataset;
      for (const result of all(".result", one)) result.hidden = asked && epsilon !== "" && result.dataset.epsilon !== epsilon;
    }
    const wanted = method.value.trim().toLowerCase();
    for (const one of all("[data-name], .forest tbody tr")) {
      one.hidden = !(one.dataset.name ?? one.cells[0].textContent).toLowerCase().includes(wanted);
    }
    const shown = all(".setting:not([hidden]) .result:not([hidden])");
    const rows = shown.flatMap((one) => all("tbody tr[data-name]", one));
    const left = rows.filter((row) => !row.hidden).length;
    byId("count").textContent = `${left} of ${rows.length} rows, in ${shown.length} of ${all(".result").length} tables, as chosen above.`;
    return { epsilon, task: task.value, method: method.value };
  };
  const restore = () => {
    open();
    const hash = location.hash.slice(1);
    if (hash && !hash.includes("=")) return; // a link within the page
    const wanted = new URLSearchParams(hash);
    form.reset();
    for (const radio of all("[name=epsilon]", form)) if (radio.value === wanted.get("epsilon")) radio.checked = true;
    for (const option of form.elements.task.options) if (option.value === wanted.get("task")) option.selected = true;
    form.elements.method.value = wanted.get("method") ?? "";
    apply();
  };
  if (form) {
    form.hidden = false;
    form.addEventListener("input", () => history.replaceState(null, "", `#${new URLSearchParams(apply())}`));
    form.addEventListener("submit", (event) => event.preventDefault());
    addEventListener("hashchange", restore);
    apply();
    restore();
  } else {
    addEventListener("hashchange", open);
    open();
  }
})();
