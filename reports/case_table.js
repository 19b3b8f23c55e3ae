// The table of cases as it is seen: unpacks the columns when the view is first shown, draws the rows in sight.
"use strict";

const CHOICES_MAX = 60; // values of a column beyond which a list of them helps nobody

async function unpacked(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let place = 0; place < letters.length; place += 1) bytes[place] = letters.charCodeAt(place);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const columns = JSON.parse(await new Response(stream).text());
  const count = columns[0].codes.length;
  for (const column of columns) {
    const { kind, codes } = column;
    column.codes = kind === "digest" ? new Digests(codes, count) : Float64Array.from(codes);
  }
  return new Cases(columns);
}

class CaseTable {
  constructor(cases) {
    this.cases = cases;
    this.view = document.getElementById("case-view");
    this.table = document.getElementById("case-table");
    this.rows = document.getElementById("case-rows");
    this.words = document.getElementById("case-words");
    this.count = document.getElementById("case-count");
    this.edges = ["case-above", "case-below"].map((id) => {
      const row = document.getElementById(id).insertRow();
      row.insertCell().colSpan = cases.columns.length;
      return row;
    });
    this.selects = new Map();
    this.first = -1;
    this.headers();
    this.choices();
    const controls = document.getElementById("case-controls");
    controls.addEventListener("submit", (event) => event.preventDefault());
    controls.addEventListener("input", () => this.soon());
    controls.addEventListener("reset", () => this.soon());
    this.view.addEventListener("scroll", () => this.draw());
    window.addEventListener("resize", () => this.draw());
    document.getElementById("case-tool").hidden = false;
    this.filter();
  }

  headers() {
    const line = this.table.tHead.rows[0];
    for (const [place, { label, kind }] of this.cases.columns.entries()) {
      const header = document.createElement("th");
      header.scope = "col";
      header.setAttribute("aria-sort", "none");
      if (kind === "number") header.className = "n";
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.textContent = label;
      button.addEventListener("click", () => this.sort(place, header));
      header.append(button);
      line.append(header);
    }
  }

  // A list of values for each column that has few of them.
  choices() {
    const box = document.getElementById("case-selects");
    for (const [place, { name, label, kind, values, codes }] of this.cases.columns.entries()) {
      if (kind === "digest" || kind === "time" || name === "seconds") continue;
      const options = kind === "word" ? values.map((text, code) => [text, code]) : [...new Set(codes)].sort((a, b) => a - b).map((n) => [String(n), n]);
      if (options.length < 2 || options.length > CHOICES_MAX) continue;
      const select = document.createElement("select");
      select.id = `case-${name}`;
      select.append(new Option("any", ""), ...options.map(([text, code]) => new Option(text, code)));
      const title = document.createElement("label");
      title.htmlFor = select.id;
      title.textContent = label;
      const line = document.createElement("p");
      line.append(title, " ", select);
      box.append(line);
      this.selects.set(place, select);
    }
  }

  // Once for keys that came while the last filter ran; and after a reset has emptied the fields.
  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.filter());
  }

  filter() {
    const wanted = new Map();
    for (const [place, select] of this.selects) if (select.value !== "") wanted.set(place, Number(select.value));
    this.cases.filter(wanted, this.words.value.toLowerCase().split(/\s+/).filter(Boolean));
    this.changed();
    const [shown, all] = [this.cases.shown.length, this.cases.length].map((n) => n.toLocaleString("en"));
    this.count.textContent = shown === all ? `${all} cases` : `${shown} of ${all} cases`;
  }

  sort(column, header) {
    const descending = header.getAttribute("aria-sort") === "ascending";
    for (const other of header.parentElement.cells) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
    this.cases.sort(column, descending);
    this.filter();
    said.textContent = `Sorted by ${header.textContent}, ${header.getAttribute("aria-sort")}`;
  }

  // Other rows, or the same in another order: from the top.
  changed() {
    this.view.scrollTop = 0;
    this.first = -1;
    // The header is a row as well.
    this.table.setAttribute("aria-rowcount", this.cases.shown.length + 1);
    this.draw();
  }

  draw() {
    const total = this.cases.shown.length;
    const inSight = Math.ceil((this.view.clientHeight || 600) / ROW_HEIGHT) + 2 * ROWS_AROUND;
    const top = Math.max(0, Math.floor(this.view.scrollTop / ROW_HEIGHT) - ROWS_AROUND);
    const first = Math.max(0, Math.min(top, total - inSight));
    // As many rows as before, from the same one: what is drawn is right.
    if (first === this.first && this.rows.rows.length === Math.min(inSight, total)) return;
    this.first = first;
    const last = Math.min(first + inSight, total);
    const lines = [];
    for (let place = first; place < last; place += 1) lines.push(this.line(this.cases.shown[place], place));
    this.rows.replaceChildren(...lines);
    this.edges[0].style.height = `${first * ROW_HEIGHT}px`;
    this.edges[1].style.height = `${(total - last) * ROW_HEIGHT}px`;
  }

  line(row, place) {
    const line = document.createElement("tr");
    line.setAttribute("aria-rowindex", place + 2);
    for (const [column, { name, kind }] of this.cases.columns.entries()) {
      const cell = document.createElement("td");
      if (kind === "number") cell.className = "n";
      const text = this.cases.text(column, row);
      if (name === "result") cell.className = `result ${text.toLowerCase()}`;
      cell.textContent = text;
      line.append(cell);
    }
    return line;
  }
}

const caseData = document.getElementById("case-data");
if (caseData) {
  const view = document.querySelector('[data-view="cases"]');
  let table = null;
  const start = async () => {
    if (table) {
      (await table).draw();
      return;
    }
    table = unpacked(caseData.textContent).then((cases) => new CaseTable(cases));
    try {
      await table;
    } catch (error) {
      // An old browser, or a file that was cut off: said, where the table would be.
      const note = document.createElement("p");
      note.textContent = `The cases cannot be shown: ${error.message}`;
      view.append(note);
    }
  };
  whenShown.set(view, start);
  if (!view.classList.contains("off")) start();
}
