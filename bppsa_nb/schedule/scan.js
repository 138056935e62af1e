// Let every <figure class="scan"> that has a caption be stepped through; without this script all levels show.
for (const figure of document.querySelectorAll("figure.scan:not([data-ready])")) {
  const svg = figure.querySelector("svg"), caption = figure.querySelector("figcaption");
  if (!caption) continue;
  figure.dataset.ready = "";
  svg.classList.add("stepped");
  const levels = [...svg.querySelectorAll("[data-level]")], last = levels.length - 1;
  const controls = document.createElement("div");
  controls.className = "controls";
  controls.innerHTML = `<button type="button" aria-label="play">▶</button>
    <button type="button" aria-label="one level back">‹</button>
    <input type="range" min="0" max="${last}" aria-label="level">
    <button type="button" aria-label="one level on">›</button>`;
  figure.prepend(controls);
  const [play, back, slider, on] = controls.children;
  let timer = null;
  const show = (level) => {
    slider.value = level;
    levels.forEach((group, i) => { group.classList.toggle("later", i > level); group.classList.toggle("current", i == level); });
    caption.textContent = levels[level].dataset.sentence;
    svg.setAttribute("aria-label", caption.textContent);
    slider.setAttribute("aria-valuetext", `level ${level} of ${last}`);
    back.disabled = level == 0; on.disabled = level == last;
  };
  const stop = () => { clearInterval(timer); timer = null; play.textContent = "▶"; play.setAttribute("aria-label", "play"); };
  const step = (by) => { stop(); show(Math.min(last, Math.max(0, +slider.value + by))); };
  const toggle = () => {
    if (timer) return stop();
    if (+slider.value == last) show(0);
    play.textContent = "❚❚"; play.setAttribute("aria-label", "pause");
    timer = setInterval(() => { show(+slider.value + 1); if (+slider.value == last) stop(); }, 900);
  };
  const keys = { ArrowRight: () => step(1), ArrowLeft: () => step(-1), ArrowDown: () => step(1), ArrowUp: () => step(-1),
    Home: () => step(-last), End: () => step(last) };
  slider.onkeydown = (event) => { if (keys[event.key]) { event.preventDefault(); keys[event.key](); } };
  controls.addEventListener("keydown", (event) => event.stopPropagation());  // JupyterLab would take the arrows
  slider.oninput = () => { stop(); show(+slider.value); };
  play.onclick = toggle; back.onclick = () => step(-1); on.onclick = () => step(1);
  // What went into an operand: its ancestors stand out while the pointer is on it.
  svg.onpointerover = (event) => {
    const wanted = new Set(), square = event.target.closest("[data-id]"), rest = square ? [square.dataset.id] : [];
    while (rest.length) {
      const id = rest.pop();
      if (wanted.has(id)) continue;
      wanted.add(id);
      rest.push(...(svg.querySelector(`[data-id="${id}"][data-from]`)?.dataset.from.split(" ") ?? []));
    }
    svg.classList.toggle("asked", wanted.size > 0);
    for (const each of svg.querySelectorAll("[data-id]")) each.classList.toggle("asked", wanted.has(each.dataset.id));
  };
  svg.onpointerleave = () => svg.classList.remove("asked");
  show(0);
}
