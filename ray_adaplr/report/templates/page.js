"use strict";
// The gallery: filter, sort, decide with keys or clicks, and save the decisions as CSV. No gallery, nothing to do.
(() => {
  const list = document.getElementById("cards");
  if (!list) return;
  const find = (id) => document.getElementById(id);
  const classes = JSON.parse(find("classes").textContent);
  const cards = [...list.children];
  const decisions = new Map(); // id -> class number
  const store = `ray-adaplr:${location.pathname}:${classes}`; // other classes, other numbers
  const filters = find("toolbar");
  const page = 60; // cards shown at once: what a person checks in a minute
  const larger = find("larger");
  let matching = [], shown = [], enlarged = null; // the card whose image is shown large

  function save() {
    try { localStorage.setItem(store, JSON.stringify([...decisions])); } catch { /* private window: not kept */ }
  }

  function restore() {
    try {
      for (const [id, label] of JSON.parse(localStorage.getItem(store) || "[]")) decisions.set(id, label);
    } catch { /* nothing kept */ }
  }

  function labelsOf(card) {
    const [before, after] = card.dataset.pair.split("-").map(Number);
    return { before, after };
  }

  function paint(card) {
    const label = decisions.get(card.dataset.id);
    const { before, after } = labelsOf(card);
    card.classList.toggle("checked", label !== undefined);
    for (const chip of card.querySelectorAll(".chips button")) {
      const other = chip.dataset.label === "";
      const chosen = other ? label !== undefined && label !== before && label !== after : Number(chip.dataset.label) === label;
      chip.setAttribute("aria-pressed", chosen);
      if (other) chip.textContent = chosen ? classes[label] : "…";
    }
    card.setAttribute("aria-label", `${card.dataset.id}, ${describe(card)}`);
    if (enlarged === card) enlarge(card);
  }

  function describe(card) {
    const label = decisions.get(card.dataset.id);
    const { before, after } = labelsOf(card);
    const moved = before === after ? classes[after] : `${classes[before]} became ${classes[after]}`;
    const verdict = label === undefined ? "not checked" : `checked: ${classes[label]}`;
    return `${moved}, confidence ${Number(card.dataset.confidence).toFixed(2)}, ${verdict}`;
  }

  function enlarge(card) {
    enlarged = card;
    larger.querySelector("img").src = card.querySelector("img").src;
    find("larger-id").textContent = card.dataset.id;
    find("larger-label").textContent = describe(card);
    if (larger.open) return;
    larger.showModal();
    larger.focus(); // not its button: the keys are for the image
  }

  function count(message = "") {
    const number = decisions.size;
    find("status").textContent = `${message}${shown.length} of ${matching.length} shown · ${number} checked`;
    find("download").disabled = !number;
  }

  function decide(card, label) {
    if (label === undefined) decisions.delete(card.dataset.id);
    else decisions.set(card.dataset.id, label);
    paint(card);
    save();
    count();
  }

  function show(number) {
    shown = matching.slice(0, number);
    const visible = new Set(shown);
    for (const card of cards) card.hidden = !visible.has(card);
    find("more").hidden = shown.length === matching.length;
    count();
  }

  function arrange() {
    const view = filters.elements.view.value, pair = find("pair").value, order = find("sort").value;
    const key = order === "epoch" ? (card) => -card.dataset.epoch : (card) => card.dataset.confidence * (order === "falling" ? -1 : 1);
    cards.sort((a, b) => key(a) - key(b));
    list.append(...cards);
    matching = cards.filter((card) => card.dataset.views.split(" ").includes(view) && (!pair || card.dataset.pair === pair));
    for (const card of cards) card.tabIndex = card === matching[0] ? 0 : -1;
    show(page);
  }

  function go(card) {
    if (!card) return;
    if (card.hidden) show(shown.length + page);
    for (const each of shown) each.tabIndex = each === card ? 0 : -1;
    if (enlarged) enlarge(card);
    else card.focus();
  }

  function named(text) {
    const wanted = text.trim().toLowerCase();
    const exact = classes.findIndex((name) => name.toLowerCase() === wanted);
    const begun = classes.flatMap((name, number) => (wanted && name.toLowerCase().startsWith(wanted) ? [number] : []));
    return exact >= 0 ? exact : begun.length === 1 ? begun[0] : undefined;
  }

  function askOther(card) {
    const chip = card.querySelector('[data-label=""]');
    if (!chip) return;
    const field = document.createElement("input");
    field.setAttribute("list", "names");
    field.setAttribute("aria-label", "Another label: type its name, then Enter");
    let open = true; // taking the field away blurs it, which would take it away again
    const leave = () => {
      if (open) {
        open = false;
        field.replaceWith(chip);
      }
    };
    const take = () => {
      const label = named(field.value);
      if (label === undefined) return;
      leave();
      decide(card, label);
      go(matching[matching.indexOf(card) + 1] || card);
    };
    field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter") take();
      if (event.key === "Escape") { leave(); go(card); }
    });
    field.addEventListener("input", (event) => { if (event.inputType === "insertReplacementText") take(); }); // picked
    field.addEventListener("blur", leave);
    chip.replaceWith(field);
    field.focus();
  }

  function columns() {
    const below = shown.findIndex((card) => card.offsetTop > shown[0].offsetTop);
    return below < 0 ? shown.length : below;
  }

  function press(card, event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = matching.indexOf(card), { before, after } = labelsOf(card);
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns(), ArrowUp: -columns() };
    const verdicts = { Enter: after, y: after, o: before, u: undefined };
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (key in moves) go(matching[at + moves[key]]);
    else if (key in verdicts) {
      decide(card, verdicts[key]);
      if (verdicts[key] !== undefined) go(matching[at + 1]);
    } else if (key === " ") {
      if (enlarged) larger.close();
      else enlarge(card);
    } else if (key === "l") {
      if (enlarged) larger.close();
      askOther(card);
    } else return;
    event.preventDefault();
  }

  list.addEventListener("keydown", (event) => {
    const card = event.target.closest(".card");
    if (card) press(card, event);
  });
  larger.addEventListener("keydown", (event) => {
    if (event.target === larger) press(enlarged, event);
  });
  larger.addEventListener("click", (event) => { if (event.target === larger) larger.close(); }); // beside the image
  larger.addEventListener("close", () => {
    const card = enlarged;
    enlarged = null;
    if (document.activeElement.tagName !== "INPUT") go(card);
  });

  list.addEventListener("click", (event) => {
    const card = event.target.closest(".card"), chip = event.target.closest(".chips button");
    if (!card || event.target.closest("input")) return;
    if (chip && chip.dataset.label === "") askOther(card);
    else {
      const label = chip && Number(chip.dataset.label);
      if (chip) decide(card, decisions.get(card.dataset.id) === label ? undefined : label);
      go(card);
      if (event.target.closest(".picture")) enlarge(card);
    }
  });

  filters.addEventListener("change", arrange);
  filters.addEventListener("submit", (event) => event.preventDefault());
  find("more").addEventListener("click", () => show(shown.length + page));
  find("rest").addEventListener("click", () => {
    for (const card of shown) if (!decisions.has(card.dataset.id)) decide(card, labelsOf(card).after);
  });
  find("clear").addEventListener("click", () => {
    if (!confirm(`Forget ${decisions.size} checked labels?`)) return;
    decisions.clear();
    cards.forEach(paint);
    save();
    count();
  });
  find("download").addEventListener("click", () => {
    const quote = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const lines = [...decisions].map(([id, label]) => `${quote(id)},${quote(classes[label])}`);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([["id,class", ...lines, ""].join("\n")], { type: "text/csv" }));
    link.download = "corrections.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    count("Saved · ");
  });

  const names = document.createElement("datalist");
  names.id = "names";
  names.append(...classes.map((name) => new Option("", name)));
  filters.append(names);
  restore();
  for (const card of cards) {
    const chip = document.createElement("button");
    chip.type = "button";
    chip.tabIndex = -1;
    chip.dataset.label = "";
    chip.title = "another label";
    card.querySelector(".chips").append(chip);
    paint(card);
  }
  filters.hidden = false;
  arrange();
})();
