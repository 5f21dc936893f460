"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const form = byId("controls");
  const guide = byId("guide-form");

  // Sorting. What has no value goes last in both directions; equals are in the order in which the page came.
  const sorted = new Map(); // by a table's name, the one that was sorted last at the end
  const original = new WeakMap();
  const opposite = { ascending: "descending", descending: "ascending" };
  const valueOf = (row, index) => {
    const { number, text } = row.cells[index].dataset;
    return number !== undefined ? Number(number) : text ?? null;
  };
  const compare = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "string") return sign * a.localeCompare(b, "en", { numeric: true });
    return a < b ? -sign : a > b ? sign : 0;
  };
  const nameOf = (table) => {
    const holder = table.closest("[data-epsilon]");
    return [table.id.split("-")[0], holder?.parentElement.dataset.title, holder?.dataset.epsilon].join(",");
  };
  const arrange = (table, key, direction) => {
    const headers = [...table.tHead.rows[0].cells];
    const header = headers.find((one) => key && one.dataset.key === key);
    for (const other of headers) other.removeAttribute("aria-sort");
    header?.setAttribute("aria-sort", direction);
    const sign = direction === "ascending" ? 1 : -1;
    for (const body of table.tBodies) {
      if (!original.has(body)) original.set(body, all("tr:not(.group)", body));
      const rows = [...original.get(body)];
      if (header) rows.sort((a, b) => compare(valueOf(a, header.cellIndex), valueOf(b, header.cellIndex), sign));
      body.append(...rows);
    }
    sorted.delete(nameOf(table));
    if (header) sorted.set(nameOf(table), { table, key, direction });
  };
  for (const button of all("thead button")) {
    button.addEventListener("click", () => {
      const header = button.parentElement;
      const direction = opposite[header.getAttribute("aria-sort")] ?? header.dataset.first;
      arrange(header.closest("table"), header.dataset.key, direction);
      remember();
    });
  }

  // What is shown: the answer, the ranks and the tables that were chosen, and of these the methods whose names match.
  const NAMED = "[data-name]";
  const HOLDERS = ".answer .scroll:not(figure), .overall, .setting, .result, .overall tbody, .result tbody";
  const isShown = (node) => !node.closest("[hidden]");
  const choice = () => {
    const { task, method } = form.elements;
    return { epsilon: all("[name=epsilon]", form).find((radio) => radio.checked).value, task: task.value, method: method.value };
  };
  const filter = (method) => {
    const wanted = method.trim().toLowerCase();
    for (const one of all(NAMED)) {
      one.hidden = !one.dataset.name.toLowerCase().includes(wanted);
    }
    const isEmpty = (holder) => wanted !== "" && all(NAMED, holder).every((one) => one.hidden);
    for (const holder of all(HOLDERS)) holder.classList.toggle("void", isEmpty(holder));
    for (const note of all(".nothing")) {
      note.hidden = wanted === "" || all(NAMED, note.parentElement).some(isShown);
      note.querySelector("q").textContent = method.trim();
    }
  };
  const apply = () => {
    const { task, method } = form.elements;
    const answers = all(".answer").filter((one) => one.dataset.subject === task.value);
    const radios = all("[name=epsilon]", form);
    for (const radio of radios) radio.disabled = !answers.some((one) => one.dataset.epsilon === radio.value);
    if (!radios.some((radio) => radio.checked && !radio.disabled)) radios.find((radio) => !radio.disabled).checked = true;
    const { epsilon } = choice();
    const answer = answers.find((one) => one.dataset.epsilon === epsilon);
    for (const one of all(".answer")) one.hidden = one !== answer;

    const overalls = all(".overall");
    const overall = overalls.find((one) => one.dataset.epsilon === epsilon) ?? overalls[0];
    for (const one of overalls) one.hidden = one.dataset.epsilon !== overall.dataset.epsilon;
    const settings = answer.dataset.settings.trim().split(" ");
    for (const one of all(".setting")) {
      const asked = settings.includes(one.dataset.setting);
      one.hidden = !asked && "answered" in one.dataset;
      for (const result of all(".result", one)) result.hidden = asked && epsilon !== "" && result.dataset.epsilon !== epsilon;
    }
    filter(method.value);
    const shown = all(".result").filter(isShown);
    const rows = shown.flatMap((one) => all("tbody tr[data-name]", one));
    const left = rows.filter((row) => !row.hidden).length;
    byId("count").textContent = `${left} of ${rows.length} rows, in ${shown.length} of ${all(".result").length} tables, as chosen above.`;
  };

  // The guide: the answers to the question, and of these what can be paid for.
  const select = (list, value) => {
    for (const option of list.options) if (option.value === value) option.selected = true;
  };
  const advise = () => {
    const { model, records, epsilon, compute } = guide.elements;
    const asked = all("#guide-answers li").filter(({ dataset }) => [model, records, epsilon].every(({ name, value }) => dataset[name] === value));
    // Costs ascend, and what costs more promises more: the last that can be paid is the answer.
    const affordable = asked.filter((one) => Number(one.dataset.cost) <= Number(compute.value));
    byId("guide-answer").textContent = affordable.at(-1)?.textContent
      ?? (asked.length ? "Not known: nothing measured costs so little." : "Not known: this ε is not measured with this kind of model.");
  };

  // The view is in the address, so that a link shows it again: what was chosen, sorted, asked of the guide, and gone to.
  const address = (at) => {
    const view = new URLSearchParams(form ? choice() : {});
    for (const [name, { key, direction }] of sorted) view.append("sort", `${key}:${direction}:${name}`);
    if (guide) view.set("guide", [...guide.elements].map((one) => one.value).join());
    if (at) view.set("at", at);
    return view;
  };
  const remember = (at) => history.replaceState(null, "", `#${address(at)}`);
  const goTo = (id) => {
    const place = byId(id);
    const card = place?.closest("details");
    if (card) card.open = true; // a link to a method opens its card
    return place;
  };
  const restore = () => {
    const hash = location.hash.slice(1);
    if (hash && !hash.includes("=")) {
      goTo(hash);
      remember(hash);
      return null;
    }
    const wanted = new URLSearchParams(hash);
    for (const { table } of [...sorted.values()]) arrange(table);
    for (const text of wanted.getAll("sort")) {
      const [key, direction, ...name] = text.split(":");
      const table = all("table[id]").find((one) => nameOf(one) === name.join(":"));
      if (table && direction in opposite) arrange(table, key, direction);
    }
    if (form) {
      form.reset();
      for (const radio of all("[name=epsilon]", form)) if (radio.value === wanted.get("epsilon")) radio.checked = true;
      select(form.elements.task, wanted.get("task"));
      form.elements.method.value = wanted.get("method") ?? "";
      apply();
    }
    if (guide) {
      const values = wanted.get("guide")?.split(",") ?? [];
      guide.reset();
      [...guide.elements].forEach((one, at) => select(one, values[at]));
      advise();
    }
    return goTo(wanted.get("at")) ?? [...sorted.values()].at(-1)?.table.closest(".scroll");
  };

  // The runs that are shown, as CSV: what was chosen, in its order, one line a run.
  const COLUMNS = ["setting", "task", "model", "epsilon_target", "delta", "method", "label", "parameters", "reference", "seed", "metric", "value", "finished", "record"];
  const cell = (text) => {
    const safe = /^\s*[=+\-@]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text; // no formula for a spreadsheet
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const runsOf = (row) => {
    const { title, task, model, delta, metric } = row.closest(".setting").dataset;
    const { epsilon } = row.closest(".result").dataset;
    const card = byId(row.querySelector("a").hash.slice(1));
    const links = all(`tr[data-table="${row.closest("table").id}"] a`, card);
    const { method, reference } = card.querySelector("summary").dataset;
    const parameters = card.querySelector(".parameters").textContent;
    return links.map((link) => {
      const { value } = link.dataset;
      return [title, task, model, epsilon, delta, method, row.dataset.name, parameters, reference, link.textContent, metric, value, String(value !== ""), link.getAttribute("href")];
    });
  };
  const save = () => {
    const rows = all(".result tbody tr[data-name]").filter(isShown);
    const lines = [COLUMNS, ...rows.flatMap(runsOf)].map((line) => line.map(cell).join(","));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }));
    link.download = "dphpo-bench-runs.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  };

  for (const button of all(".export")) {
    button.hidden = false;
    button.addEventListener("click", save);
  }
  if (guide) {
    guide.hidden = byId("guide-answer").hidden = false;
    guide.addEventListener("input", () => {
      advise();
      remember();
    });
    guide.addEventListener("submit", (event) => event.preventDefault());
    advise();
  }
  if (form) {
    form.hidden = false;
    form.addEventListener("input", () => {
      apply();
      remember();
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    for (const button of all(".nothing button")) {
      button.addEventListener("click", () => {
        form.elements.method.value = "";
        apply();
        remember();
        form.elements.method.focus();
      });
    }
    apply();
  }
  addEventListener("hashchange", restore);
  restore()?.scrollIntoView();
})();
