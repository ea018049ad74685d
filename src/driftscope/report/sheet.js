// A narrow screen begins with the answer; what few look at is one touch away.
if (matchMedia("(max-width: 820px)").matches)
  for (const aside of document.querySelectorAll("details.aside")) aside.open = false;

// Tables: sorting and filtering; of a long one only the rows in view are drawn.
for (const section of document.querySelectorAll("section.rows")) {
  const table = section.querySelector("table");
  const body = table.tBodies[0];
  const status = section.querySelector("[role=status]");
  const none = section.querySelector(".none");
  const search = section.querySelector("input[type=search]");
  const labels = [...table.querySelectorAll("thead button")].map((b) => b.textContent);
  const numeric = [...table.querySelectorAll("thead th")].map((th) => th.classList.contains("n"));
  const stored = section.querySelector(".all-rows");
  const box = section.querySelector(".scroll");
  const height = 38;

  const key = (cell) => (Array.isArray(cell) ? cell[1] : null);
  const words = (cell) => (Array.isArray(cell) ? cell[0] : cell);
  const rows = stored
    ? JSON.parse(stored.textContent).map((cells) => ({ cells }))
    : [...body.rows].map((element) => ({
        element,
        cells: [...element.cells].map((c) => [c.textContent, c.dataset.sort === undefined ? null : Number(c.dataset.sort)]),
      }));
  let shown = rows;

  const build = (row) => {
    const tr = document.createElement("tr");
    row.cells.forEach((cell, i) => {
      const td = document.createElement(i ? "td" : "th");
      if (!i) td.scope = "row";
      if (numeric[i]) td.className = "n";
      if (i) td.dataset.label = labels[i];
      const span = document.createElement("span");
      span.textContent = words(cell);
      if (Array.isArray(cell) && cell[2]) span.className = `mark-text t-${cell[2]}`;
      td.append(span);
      td.title = words(cell);
      tr.append(td);
    });
    return tr;
  };
  const space = (count) => {
    const tr = document.createElement("tr");
    tr.className = "space";
    const td = document.createElement("td");
    td.colSpan = labels.length;
    td.height = count * height;
    tr.append(td);
    return tr;
  };
  const draw = () => {
    if (!stored) { body.replaceChildren(...shown.map((row) => row.element)); return; }
    const first = Math.max(0, Math.floor(box.scrollTop / height) - 20);
    const last = Math.min(shown.length, first + Math.ceil(box.clientHeight / height) + 40);
    const drawn = shown.slice(first, last).map(build);
    body.replaceChildren(...(first ? [space(first)] : []), ...drawn, ...(last < shown.length ? [space(shown.length - last)] : []));
  };
  if (stored) {
    section.classList.add("windowed");
    box.addEventListener("scroll", () => requestAnimationFrame(draw));
    section.querySelector("details.aside")?.addEventListener("toggle", draw);
    draw();
    // On paper there is no scrolling.
    addEventListener("beforeprint", () => body.replaceChildren(...shown.map(build)));
    addEventListener("afterprint", draw);
  }

  let order = null;
  const arrange = () => {
    const text = search ? search.value.trim().toLowerCase() : "";
    shown = text ? rows.filter((row) => row.cells.some((c) => words(c).toLowerCase().includes(text))) : [...rows];
    if (order) {
      const { column, sign } = order;
      const missing = sign < 0 ? -Infinity : Infinity;
      const by = numeric[column] || rows.some((row) => key(row.cells[column]) !== null)
        ? (p, q) => { const x = key(p.cells[column]) ?? missing, y = key(q.cells[column]) ?? missing; return x === y ? 0 : sign * (x - y); }
        : (p, q) => sign * words(p.cells[column]).localeCompare(words(q.cells[column]), "en", { numeric: true });
      shown.sort(by);
    }
    none.hidden = shown.length > 0;
    if (stored) box.scrollTop = 0;
    draw();
  };
  if (search) {
    search.addEventListener("input", () => { arrange(); status.textContent = `${shown.length} of ${rows.length} rows shown`; });
    search.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { search.value = ""; arrange(); }
    });
  }
  for (const button of table.querySelectorAll("[data-column]")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const column = Number(button.dataset.column);
      const first = numeric[column] ? "descending" : "ascending";
      const wanted = head.getAttribute("aria-sort") === first ? (first === "ascending" ? "descending" : "ascending") : first;
      for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", wanted);
      order = { column, sign: wanted === "ascending" ? 1 : -1 };
      arrange();
      status.textContent = `Sorted by ${button.textContent}, ${wanted}`;
    });
  }
}

// On paper nothing can be unfolded.
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
