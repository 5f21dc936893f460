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
  // The rule of `dphpo-bench advise`, step by step as in docs/guide.md and advice.py.
  const told = guide && JSON.parse(byId("advice-rows").textContent);
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const within = (one, other, factor) => Math.abs(Math.log(one / other)) <= Math.log(factor) * (1 + 1e-9);
  const quantile = (freedom) => {
    const { freedoms, quantiles } = told;
    const after = freedoms.findIndex((each) => each >= freedom);
    if (after < 0) return quantiles.at(-1);
    if (!after) return freedom > 0 ? quantiles[0] : Infinity;
    const [low, high] = [after - 1, after].map((at) => Math.log(freedoms[at]));
    const share = (Math.log(freedom) - low) / (high - low);
    return Math.exp((1 - share) * Math.log(quantiles[after - 1]) + share * Math.log(quantiles[after]));
  };
  const taskWeights = (evidence) => {
    const weights = new Map();
    for (const { task, weight } of evidence) weights.set(task, Math.max(weight, weights.get(task) ?? 0));
    return weights;
  };
  const expected = (evidence, hasInterval) => {
    const weights = [...taskWeights(evidence)];
    const means = weights.map(([task]) => {
      const some = evidence.filter((each) => each.task === task);
      return sum(some.map(({ weight, distance }) => weight * distance)) / sum(some.map(({ weight }) => weight));
    });
    const whole = sum(weights.map(([, weight]) => weight));
    const mean = sum(weights.map(([, weight], at) => weight * means[at])) / whole;
    if (!hasInterval || weights.length < 2) return { mean, bound: mean };
    const effective = whole ** 2 / sum(weights.map(([, weight]) => weight ** 2));
    const squares = sum(weights.map(([, weight], at) => weight * (means[at] - mean) ** 2)) / whole;
    const half = quantile(effective - 1) * Math.sqrt((squares / (1 - 1 / effective)) * (1 + 1 / effective));
    return { mean, bound: mean + half, low: mean - half };
  };
  const median = (values) => {
    const ordered = [...values].sort((one, other) => one - other);
    const middle = ordered.length >> 1;
    return ordered.length % 2 ? ordered[middle] : (ordered[middle - 1] + ordered[middle]) / 2;
  };
  const point = (behind) => {
    const text = Math.abs(behind).toFixed(1);
    return text === "0.0" ? text : (behind > 0 ? "−" : "+") + text;
  };
  const answered = (model, records, epsilon, compute) => {
    const [inRecords, inEpsilon, otherKind, covered, beyondRecords, beyondEpsilon, between, near] = told.constants;
    const asked = told.rows.filter((row) => row[2] === model);
    const epsilons = [...new Set(asked.map((row) => row[4]))].sort((one, other) => one - other);
    if (epsilon < epsilons[0] / beyondEpsilon || epsilon > epsilons.at(-1) * beyondEpsilon || !epsilons.some((each) => within(epsilon, each, between)))
      return `Not known: with this kind of model ε = ${epsilons.join(", ")} are measured.`;
    const [fewest, most] = [Math.min(...asked.map((row) => row[3])), Math.max(...asked.map((row) => row[3]))];
    if (records < fewest / beyondRecords || records > most * beyondRecords)
      return `Not known: with this kind of model ${fewest.toLocaleString("en")} to ${most.toLocaleString("en")} records are measured.`;
    const evidence = told.rows.map(([label, task, kind, n, at, distance, cost, collapsed, runs, settled]) => {
      const far = Math.abs(Math.log(n / records)) / Math.log(inRecords) + Math.abs(Math.log(at / epsilon)) / Math.log(inEpsilon);
      return { label, task, kind, at, distance, cost, collapsed, runs, settled, weight: 0.5 ** far * (kind === model ? 1 : otherKind) };
    });
    const whole = sum([...taskWeights(evidence).values()]);
    const options = told.labels.flatMap((name, label) => {
      const own = evidence.filter((each) => each.label === label);
      const ofKind = own.filter(({ kind }) => kind === model);
      if (!ofKind.length || sum([...taskWeights(own).values()]) < covered * whole * (1 - 1e-9)) return [];
      const isSingle = new Set(ofKind.map(({ task }) => task)).size === 1;
      const rests = isSingle ? ofKind : own;
      const costs = ofKind.map(({ cost }) => cost ?? Infinity).filter((cost) => cost < Infinity);
      const nearby = ofKind.filter(({ at }) => within(at, epsilon, near));
      const seen = sum([...taskWeights(rests.filter(({ settled }) => settled)).values()]) / sum([...taskWeights(rests).values()]);
      const price = costs.length ? Math.round(10 * median(costs)) / 10 : Infinity;
      return [{ name, ...expected(rests, !isSingle), price, seen, collapsed: sum(nearby.map((each) => each.collapsed)), runs: sum(nearby.map((each) => each.runs)) }];
    });
    const order = (one, other) => Math.round(1e6 * (one.bound - other.bound)) || one.price - other.price || (one.name < other.name ? -1 : 1);
    const best = options.filter(({ price }) => price <= compute).sort(order)[0];
    if (!best) return "Not known: nothing that was measured on enough tasks costs so little.";
    const interval = best.low === undefined ? "no interval, since a single task has such a model" : `[${point(best.bound)}, ${point(best.low)}] meant for 95 of 100 tasks like these`;
    const settled = told.rated.includes(best.name) ? ` ${Math.round(100 * best.seen)} % of this rests on data on which its constants were settled.` : "";
    return `Take ${best.name}: ${point(best.mean)} points to the oracle, ${interval}; ${best.collapsed} of ${best.runs} runs collapsed; it costs ${best.price} untuned run${best.price === 1 ? "" : "s"}.${settled}`;
  };
  const advise = () => {
    const { model, records, epsilon, compute } = guide.elements;
    byId("guide-answer").textContent = guide.checkValidity()
      ? answered(model.value, Number(records.value), Number(epsilon.value), compute.value === "" ? Infinity : Number(compute.value))
      : "Records and ε are numbers above zero.";
  };

  // A or B: two entries on the same tables.
  const versus = byId("versus");
  const compared = versus && JSON.parse(byId("versus-pairs").textContent);
  const compareTwo = () => {
    const { about, one, other } = versus.elements;
    const { labels, pairs, unit } = compared[Number(about.value)];
    const at = [one, other].map(({ value }) => labels.indexOf(value));
    const pair = pairs.find(([a, b]) => at.includes(a) && at.includes(b));
    const say = (text) => { byId("versus-answer").textContent = text; };
    if (one.value === other.value) return say("Choose two.");
    if (!pair) return say("They are not both in enough of these tables.");
    const [better, worse, lead, low, high, ahead, tables, isShown] = pair;
    const shown = isShown ? "shown, with all comparisons of the board together" : "undecided";
    return say(`${labels[better]} is ${lead}${unit} ahead of ${labels[worse]} [${low}, ${high}], better in ${ahead} of ${tables} tables: ${shown}.`);
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
      [...guide.elements].forEach((one, at) => {
        if (one.options) select(one, values[at]);
        else if (values[at]) one.value = values[at];
      });
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
  if (versus) {
    versus.hidden = byId("versus-answer").hidden = false;
    versus.addEventListener("input", compareTwo);
    versus.addEventListener("submit", (event) => event.preventDefault());
    compareTwo();
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
