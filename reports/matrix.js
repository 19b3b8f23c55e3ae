// The matrix: which engine's, which rows, in which order; arrow keys from square to square.
"use strict";

const matrixControls = document.getElementById("matrix-controls");

function startMatrix() {
  const boxes = [...document.querySelectorAll(".engine")];
  const words = document.getElementById("matrix-words");
  const state = document.getElementById("matrix-state");
  const count = document.getElementById("matrix-count");
  const bodies = boxes.map((box) => box.querySelector("tbody"));
  // Row n is the same subject in the table of every engine.
  const rows = bodies.map((body) => [...body.rows].map((row) => ({ row, text: row.textContent.toLowerCase() })));

  function engine() {
    const chosen = matrixControls.querySelector('input[name="engine"]:checked');
    return chosen ? Number(chosen.value) - 1 : 0;
  }

  function filter() {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const square = state.value && `.${state.value.replace(" ", "-")}`;
    let shown = 0;
    for (const [place, box] of boxes.entries()) {
      box.classList.toggle("off", place !== engine());
      for (const { row, text } of rows[place]) {
        const fits = wanted.every((word) => text.includes(word)) && (!square || row.querySelector(square) !== null);
        row.hidden = !fits;
        if (fits && place === engine()) shown += 1;
      }
    }
    const all = rows[0].length;
    const noun = all === 1 ? "row" : "rows";
    count.textContent = shown === all ? `${all} ${noun}` : `${shown} of ${all} ${noun}`;
    roam();
    nameScrollers();
  }

  function sort(place, header) {
    const descending = header.getAttribute("aria-sort") === "ascending";
    for (const other of header.parentElement.cells) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const column = Number(header.dataset.column);
    const key = ({ row }) => (column ? Number(row.cells[column].dataset.rank) : 0);
    const name = ({ row }) => row.cells[0].textContent;
    const sorted = [...rows[place]].sort(
      (a, b) => key(a) - key(b) || name(a).localeCompare(name(b), "en", { numeric: true }),
    );
    if (descending) sorted.reverse();
    bodies[place].append(...sorted.map(({ row }) => row));
    said.textContent = `Sorted by ${header.textContent.trim()}, ${header.getAttribute("aria-sort")}`;
  }

  for (const [place, box] of boxes.entries()) {
    for (const header of box.querySelectorAll("thead th")) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => sort(place, header));
    }
    box.querySelector("table").addEventListener("keydown", walk);
    box.querySelector("table").addEventListener("focusin", (event) => {
      if (event.target.matches("td a")) hold(box, event.target);
    });
  }

  // Of the squares of a table one is a stop of the Tab key; arrow keys go to the others.
  function hold(box, link) {
    for (const other of box.querySelectorAll("td a")) other.tabIndex = other === link ? 0 : -1;
  }

  function roam() {
    for (const box of boxes) {
      const links = [...box.querySelectorAll("tr:not([hidden]) td a")];
      hold(box, links.find((link) => link.tabIndex === 0) ?? links[0]);
    }
  }

  function walk(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const cell = event.target.closest("td");
    if (!cell || !(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey) return;
    const [down, right] = moves[event.key];
    const lines = [...cell.closest("tbody").rows].filter((row) => !row.hidden);
    let line = lines.indexOf(cell.parentElement);
    let column = cell.cellIndex;
    // Squares that were not measured are passed over.
    do {
      line += down;
      column += right;
    } while (lines[line]?.cells[column]?.matches("td.not-run"));
    const link = lines[line]?.cells[column]?.querySelector("a");
    event.preventDefault();
    link?.focus();
  }

  matrixControls.addEventListener("submit", (event) => event.preventDefault());
  matrixControls.addEventListener("input", filter);
  matrixControls.addEventListener("change", filter);
  matrixControls.hidden = false;
  filter();
}

if (matrixControls) startMatrix();
