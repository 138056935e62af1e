// The book's own behavior: what keyboards and screen readers need, and tables to filter.
(() => {
  for (const caption of document.querySelectorAll("[role=heading]:not([aria-level])")) caption.ariaLevel = 2;
  for (const summary of document.querySelectorAll("summary[aria-label]")) summary.removeAttribute("aria-label");
  for (const each of document.querySelectorAll("pre, article table, article .table-wrapper, .math, figure.scan")) {
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;  // scrolls by keyboard, too
  }

  // Claims: by a word, and by verdict.
  for (const filter of document.querySelectorAll(".filter")) {
    const rows = [...document.querySelectorAll("article table tbody tr")].filter((row) => row.querySelector("[id^=claim-]"));
    const verdicts = [...new Set(rows.map((row) => row.querySelector("td:last-child strong").textContent))];
    filter.innerHTML = `<label>Find <input type="search"></label> <label>Verdict <select><option value="">all</option>
      ${verdicts.map((verdict) => `<option>${verdict}</option>`).join("")}</select></label> <span role="status"></span>`;
    const [word, verdict, said] = [filter.querySelector("input"), filter.querySelector("select"), filter.querySelector("span")];
    const apply = () => {
      let shown = 0;
      for (const row of rows) {
        const fits = row.textContent.toLowerCase().includes(word.value.toLowerCase())
          && (!verdict.value || row.querySelector("td:last-child strong").textContent == verdict.value);
        row.hidden = !fits;
        shown += fits;
      }
      for (const table of new Set(rows.map((row) => row.closest("table")))) {
        const none = ![...table.querySelectorAll("tbody tr")].some((row) => !row.hidden);
        for (const each of [table, table.closest("section").querySelector("h2")]) each.hidden = none;
      }
      said.textContent = `${shown} of ${rows.length} claims`;
    };
    word.oninput = verdict.onchange = apply;
    apply();
  }
})();
