// The book's own behavior: what keyboards and screen readers need, puzzles, and tables to filter.
(() => {
  for (const caption of document.querySelectorAll("[role=heading]:not([aria-level])")) caption.ariaLevel = 2;
  for (const summary of document.querySelectorAll("summary[aria-label]")) summary.removeAttribute("aria-label");
  for (const each of document.querySelectorAll("pre, article table, article .table-wrapper, .math, figure.scan")) {
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;  // scrolls by keyboard, too
  }

  const here = document.currentScript.src.replace(/[^/]*$/, ""), seconds = 5;
  let worker = null;
  const kept = {  // a page from a file may have no storage
    get: (key) => { try { return localStorage.getItem(key); } catch { return null; } },
    set: (key, value) => { try { localStorage.setItem(key, value); } catch { /* then it is not kept */ } },
  };

  const judge = async () => {
    if (!self.puzzleWorker) {
      await new Promise((done, failed) => {
        const script = document.createElement("script");
        Object.assign(script, { src: here + "puzzle_worker.js", onload: done, onerror: failed });
        document.head.append(script);
      });
    }
    worker ??= new Worker(URL.createObjectURL(new Blob([self.puzzleWorker], { type: "text/javascript" })));
    return worker;
  };

  const check = async (name, code) => {
    const asked = await judge();
    return new Promise((done) => {
      const late = setTimeout(() => {
        worker.terminate();
        worker = null;
        done([false, `<p role="status"><b>✗</b> Stopped after ${seconds} seconds. Does every loop of yours end?</p>`]);
      }, (asked.warm ? seconds : 3 * seconds) * 1000);
      asked.onmessage = ({ data }) => { asked.warm = true; clearTimeout(late); done(data); };
      asked.onerror = ({ message }) => {
        clearTimeout(late);
        done([false, `<p role="status"><b>✗</b> What judges answers failed: ${message.replaceAll("<", "&lt;")}</p>`]);
      };
      asked.postMessage({ name, code });
    });
  };

  const puzzles = [...document.querySelectorAll(".puzzle")];
  const count = () => {
    const solved = puzzles.filter((puzzle) => kept.get(`solved:${puzzle.dataset.name}`));
    for (const puzzle of solved) puzzle.classList.add("solved");
    const line = document.getElementById("solved");
    if (line) line.textContent = `${solved.length} of ${puzzles.length} solved in this browser.`;
  };
  for (const puzzle of puzzles) {
    const area = puzzle.querySelector("textarea"), verdict = puzzle.querySelector(".verdict");
    const name = puzzle.dataset.name, stub = area.value, [go, again] = puzzle.querySelectorAll("button");
    area.value = kept.get(`answer:${name}`) ?? stub;
    go.onclick = async () => {
      go.disabled = true;
      verdict.textContent = "…";
      kept.set(`answer:${name}`, area.value);
      const [right, html] = await check(name, area.value).catch(() => [false, "<p>What judges answers cannot be loaded.</p>"]);
      verdict.innerHTML = html;
      for (const drawn of verdict.querySelectorAll(".scan")) drawn.tabIndex = 0;  // it may scroll
      if (right) kept.set(`solved:${name}`, "yes");
      go.disabled = false;
      count();
    };
    again.onclick = () => { area.value = stub; verdict.textContent = ""; kept.set(`answer:${name}`, stub); };
    area.onkeydown = (event) => {
      if (event.key != "Enter") return;
      event.preventDefault();
      if (event.shiftKey || event.ctrlKey) return go.click();
      const line = area.value.slice(0, area.selectionStart).split("\n").pop();  // keep its indentation
      const indent = line.match(/^ */)[0] + (/:\s*$/.test(line) ? "    " : "");
      area.setRangeText("\n" + indent, area.selectionStart, area.selectionEnd, "end");
    };
  }
  if (puzzles.length) count();

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
