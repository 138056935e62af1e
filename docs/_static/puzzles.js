// The page of puzzles: boxes to write in, a worker that judges what is written, and what a browser keeps.
(() => {
  // Where this file lies; a page that stands alone has it inside, and its worker, too.
  const here = document.currentScript.src.replace(/[^/]*$/, ""), puzzles = [...document.querySelectorAll(".puzzle")];
  const by = (id) => document.getElementById(id);
  const memory = {}, kept = {  // a page from a file may have no storage
    get: (key) => { try { return localStorage.getItem(key); } catch { return memory[key] ?? null; } },
    set: (key, value) => { try { localStorage.setItem(key, value); } catch { memory[key] = value; } },
  };

  // The worker: a promise of one that is ready, begun when somebody goes to a box.
  let worker = null;
  const ready = () => worker ??= (async () => {
    if (!self.puzzleWorker) {
      await new Promise((done, failed) => {
        const script = document.createElement("script");
        Object.assign(script, { src: here + "puzzle_worker.js", onload: done, onerror: failed });
        document.head.append(script);
      });
    }
    const made = new Worker(URL.createObjectURL(new Blob([self.puzzleWorker], { type: "text/javascript" })));
    await new Promise((done, failed) => Object.assign(made, { onmessage: done, onerror: failed }));
    return made;
  })().catch((error) => { worker = null; throw error; });
  const begin = () => ready().catch(() => {});  // what is wrong is told when it is asked

  const ask = async (name, code) => {
    const asked = await ready();
    return new Promise((done) => {
      const end = (found) => { clearTimeout(late); done(found); };
      const stop = (when) => {
        asked.terminate();
        worker = null;
        begin();
        end([false, `stopped after ${when}. Does every loop of yours end?`]);
      };
      const late = setTimeout(stop, 30000, "30 seconds");  // in one line: 9 ** 9 ** 9
      asked.onmessage = ({ data }) => typeof data == "string" ? stop(data) : end(data);
      asked.onerror = ({ message }) => end([false, `what judges answers failed: ${message}`]);
      asked.postMessage([name, code]);
    });
  };
  let last = Promise.resolve();  // one after the other
  const judged = (name, code) => last = last.then(() => ask(name, code))
    .catch((error) => [false, `what judges answers cannot be loaded: ${error.message ?? "puzzle_worker.js is missing"}`]);

  const tag = (kind, text, more = {}) => Object.assign(document.createElement(kind), { textContent: text, ...more });
  const show = (verdict, [right, message, html, line, remark, printed]) => {
    verdict.innerHTML = html ?? "";
    if (html == null) verdict.append(tag("p", `✗ ${message}`));
    for (const each of verdict.querySelectorAll("[role=status], [aria-live]")) {  // it is told once, and briefly
      each.removeAttribute("role");
      each.removeAttribute("aria-live");
    }
    for (const link of verdict.querySelectorAll("a[data-puzzle]")) {  // it was written for a notebook
      const there = by(`puzzle-${link.dataset.puzzle}`), to = link.getAttribute("href").replace(/#.*$/, "");
      if (there) link.href = `#${there.id}`;
      else if (here) link.href = new URL(`notebooks/${to}`, here + "../").href.replace(/\.(ipynb|md)$/, ".html");
      else link.replaceWith(`${link.textContent} (notebooks/${to})`);
    }
    for (const drawn of verdict.querySelectorAll(".scan")) if (drawn.scrollWidth > drawn.clientWidth) drawn.tabIndex = 0;
    if (line) verdict.append(tag("pre", line, { className: "line" }));
    if (remark) verdict.append(tag("p", remark));
    if (printed) {
      const shown = tag("details", "", { className: "printed", open: true });
      shown.append(tag("summary", "What you printed"), tag("pre", printed, { tabIndex: 0 }));
      verdict.append(shown);
    }
    (verdict.querySelector("p") ?? verdict).scrollIntoView({ block: "nearest" });
  };

  const count = () => {
    const done = puzzles.filter(({ dataset }) => kept.get(`solved:${dataset.name}`));
    for (const puzzle of done) {
      puzzle.classList.add("solved");
      puzzle.querySelector("label b").textContent = " ✓ solved";
    }
    by("solved").textContent = `${done.length} of ${puzzles.length} solved in this browser.`;
  };

  // A change that Undo takes back.
  const type = (area, text) => {
    if (!document.execCommand(text ? "insertText" : "delete", false, text)) {
      area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
      area.dispatchEvent(new Event("input"));
    }
  };

  const keys = (area, go) => (event) => {
    if (event.isComposing || event.altKey) return;
    if (event.key == "Enter" && (event.shiftKey || event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      return go.click();
    }
    const line = area.value.slice(0, area.selectionStart).split("\n").pop();
    if (event.key == "Enter") {
      event.preventDefault();
      type(area, "\n" + line.match(/^[ \t]*/)[0] + (/:\s*(#.*)?$/.test(line) ? "    " : ""));
    } else if (event.key == "Backspace" && area.selectionStart == area.selectionEnd && /^( {4})+$/.test(line)) {
      event.preventDefault();
      area.selectionStart -= 4;
      type(area, "");
    }
  };

  const boxes = {};  // by name: what a box begins with, and how to fill it
  for (const puzzle of puzzles) {
    const area = puzzle.querySelector("textarea"), verdict = puzzle.querySelector(".verdict");
    const name = puzzle.dataset.name, stub = area.value, [go, again] = puzzle.querySelectorAll("button");
    const grow = () => {
      area.style.height = "";
      if (area.scrollHeight > area.clientHeight) area.style.height = `calc(${area.scrollHeight}px + 2lh)`;
    };
    const fill = (text) => {
      area.value = text;
      verdict.textContent = "";
      area.oninput();
    };
    boxes[name] = { area, stub, fill };
    area.value = kept.get(`answer:${name}`) ?? stub;
    grow();
    addEventListener("resize", grow);
    area.oninput = () => { kept.set(`answer:${name}`, area.value); grow(); };
    area.onfocus = begin;
    area.onkeydown = keys(area, go);
    go.onclick = async () => {
      if (verdict.ariaBusy == "true") return;
      verdict.ariaBusy = "true";
      verdict.textContent = "Checking…";
      by("told").textContent = "";
      const found = await judged(name, area.value);
      verdict.ariaBusy = "false";
      show(verdict, found);
      by("told").textContent = `${name} is ${found[0] ? "right" : "wrong"}: ${found[1]}`;
      if (found[0] && !kept.get(`solved:${name}`)) kept.set(`solved:${name}`, new Date().toISOString());
      count();
    };
    again.onclick = () => {
      area.focus();
      area.select();
      type(area, stub);
      verdict.textContent = "";
    };
  }
  count();

  // One file of all answers, for a teacher, or for another browser: the format of `bppsa-nb puzzles export`.
  const number = (count) => `${count} answer${count == 1 ? "" : "s"}`;
  by("save").onclick = () => {
    const written = Object.entries(boxes).filter(([, { area, stub }]) => area.value != stub);
    if (!written.length) {
      by("kept").textContent = "There is nothing to save yet: all boxes are as they were.";
      return;
    }
    const answers = written.map(([name, { area }]) => [name, { solved: kept.get(`solved:${name}`), answer: area.value }]);
    const text = JSON.stringify({ puzzles: Object.fromEntries(answers) }, null, 1) + "\n";
    const href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    tag("a", "", { href, download: "bppsa-nb-answers.json" }).click();
    URL.revokeObjectURL(href);
    by("kept").textContent = `Saved ${number(written.length)} as bppsa-nb-answers.json.`;
  };
  const input = document.querySelector(".answers input");
  by("load").onclick = () => input.click();
  input.onchange = async () => {
    const file = input.files[0];
    try {
      by("kept").textContent = load(JSON.parse(await file.text()));
    } catch (error) {
      by("kept").textContent = `${file.name} is not a file of answers, and nothing was loaded: ${error.message}.`;
    }
    input.value = "";
    count();
  };
  const load = (found) => {  // all of it, or nothing
    const answers = Object.entries(found?.puzzles ?? {});
    if (!answers.length) throw new Error('it has no "puzzles"');
    for (const [name, each] of answers) {
      const when = each?.solved ?? null;
      if (typeof each?.answer != "string") throw new Error(`the answer to ${name} is no text`);
      if (when != null && !(/^\d{4}-/.test(when) && Date.parse(when))) throw new Error(`${name} was not solved at ${when}`);
    }
    const here = answers.filter(([name]) => Object.hasOwn(boxes, name)), elsewhere = answers.length - here.length;
    for (const [name, { answer, solved }] of here) {
      boxes[name].fill(answer);
      if (solved && !kept.get(`solved:${name}`)) kept.set(`solved:${name}`, solved);
    }
    const rest = elsewhere ? ` Left out ${number(elsewhere)} to puzzles that this page does not have.` : "";
    return `Loaded ${number(here.length)}.${rest}`;
  };
})();
