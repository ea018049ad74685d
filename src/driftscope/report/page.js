for (const section of document.querySelectorAll("section.outputs")) {
  const table = section.querySelector("table");
  const rows = [...table.tBodies];
  const status = section.querySelector("[role=status]");
  const none = section.querySelector(".none");
  const search = section.querySelector("input[type=search]");
  const toggles = [...section.querySelectorAll("[data-filter]")];

  const fold = (row, open) => {
    row.querySelector(".more").setAttribute("aria-expanded", String(open));
    row.querySelector(".detail").hidden = !open;
  };
  for (const row of rows) {
    fold(row, section.dataset.open === "yes");
    const button = row.querySelector(".more");
    button.addEventListener("click", () => fold(row, button.getAttribute("aria-expanded") !== "true"));
  }

  const filter = () => {
    const wanted = toggles.filter((t) => t.getAttribute("aria-pressed") === "true").map((t) => t.dataset.filter);
    const text = search ? search.value.trim().toLowerCase() : "";
    let shown = 0;
    for (const row of rows) {
      const fits = (!wanted.length || wanted.includes(row.dataset.verdict)) && row.dataset.path.toLowerCase().includes(text);
      row.hidden = !fits;
      shown += fits ? 1 : 0;
    }
    none.hidden = shown > 0;
    status.textContent = `${shown} of ${rows.length} outputs shown`;
  };
  for (const toggle of toggles) {
    toggle.addEventListener("click", () => {
      toggle.setAttribute("aria-pressed", String(toggle.getAttribute("aria-pressed") !== "true"));
      filter();
    });
  }
  if (search) {
    search.addEventListener("input", filter);
    search.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { search.value = ""; filter(); }
    });
  }

  const byNumber = (key, sign) => (p, q) => sign * (Number(p.dataset[key]) - Number(q.dataset[key]));
  const byText = (key, sign) => (p, q) => sign * p.dataset[key].localeCompare(q.dataset[key], "en", { numeric: true });
  for (const button of table.querySelectorAll("[data-sort]")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const key = button.dataset.sort;
      // Numbers start with the largest, because the worst output is what one looks for; names start with A.
      const first = key === "path" ? "ascending" : "descending";
      const second = first === "ascending" ? "descending" : "ascending";
      const order = head.getAttribute("aria-sort") === first ? second : first;
      for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      rows.sort(key === "path" ? byText(key, sign) : byNumber(key, sign));
      table.append(...rows);
      status.textContent = `Sorted by ${button.textContent}, ${order}`;
    });
  }
}

// On paper nothing can be unfolded.
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  for (const detail of document.querySelectorAll(".detail")) detail.hidden = false;
});
