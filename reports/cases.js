// The table of cases: unpacked when it is first looked at, filtered and sorted as columns, and only what is seen drawn.
"use strict";

const ROW_HEIGHT = 28; // as in cases.css
const ROWS_AROUND = 8; // drawn above and below what is seen, so that scrolling shows no gaps

// Columns as the report writes them: {name, label, kind, values, codes} with kind "word" (codes count in values),
// or "number" or "time" (codes are the values themselves).
class Cases {
  constructor(columns) {
    this.columns = columns;
    this.length = columns.length ? columns[0].codes.length : 0;
    this.ranks = new Map();
    this.order = Uint32Array.from({ length: this.length }, (_, row) => row);
    this.shown = this.order;
  }

  text(column, row) {
    const { name, kind, values, codes } = this.columns[column];
    if (kind === "word") return values[codes[row]];
    if (kind === "digest") return codes.at(row);
    if (kind === "time") {
      return codes[row] < 0 ? "" : new Date(codes[row] * 1000).toISOString().slice(0, 19).replace("T", " ");
    }
    return name === "seconds" ? codes[row].toFixed(3) : codes[row].toLocaleString("en");
  }

  // What rows are sorted by: a number each. Words go by the place that the report gives them (releases in order).
  keys(column) {
    if (!this.ranks.has(column)) {
      const { kind, codes } = this.columns[column];
      this.ranks.set(column, kind === "digest" ? codes.ranks() : codes);
    }
    return this.ranks.get(column);
  }

  sort(column, descending) {
    const keys = this.keys(column);
    const sign = descending ? -1 : 1;
    // Equal rows stay in the order in which they were run.
    this.order = Uint32Array.from({ length: this.length }, (_, row) => row).sort(
      (a, b) => sign * (keys[a] - keys[b]) || a - b,
    );
  }

  // wanted: by column the code that a row must have. words: each must be in some column of the row.
  filter(wanted, words) {
    const passed = new Uint8Array(this.length).fill(1);
    for (const [column, code] of wanted) {
      const { codes } = this.columns[column];
      for (let row = 0; row < this.length; row += 1) if (codes[row] !== code) passed[row] = 0;
    }
    for (const word of words) {
      const held = this.holding(word);
      for (let row = 0; row < this.length; row += 1) passed[row] &= held[row];
    }
    const kept = new Uint32Array(this.length);
    let count = 0;
    for (const row of this.order) if (passed[row]) kept[count++] = row;
    this.shown = kept.subarray(0, count);
  }

  // For each row whether it has this word in some column. A value is looked at once, not once for every row.
  holding(word) {
    const held = new Uint8Array(this.length);
    for (const [column, { kind, values, codes }] of this.columns.entries()) {
      if (kind === "word") {
        const has = Uint8Array.from(values, (value) => value.toLowerCase().includes(word));
        for (let row = 0; row < this.length; row += 1) held[row] |= has[codes[row]];
      } else if (kind === "digest") {
        codes.mark(word, held);
      } else if (kind === "time" && /^[0-9]+[:-][0-9:-]*$/.test(word)) {
        // A day or a time of day: of both there are few.
        const days = new Map();
        const times = new Map();
        for (let row = 0; row < this.length; row += 1) {
          const day = Math.floor(codes[row] / 86400);
          if (!days.has(day)) days.set(day, this.text(column, row).slice(0, 10).includes(word));
          const time = codes[row] - 86400 * day;
          if (!times.has(time)) times.set(time, this.text(column, row).slice(11).includes(word));
          held[row] |= days.get(day) || times.get(time);
        }
      }
    }
    return held;
  }
}

// Digests of one length each, one after another in one text.
class Digests {
  constructor(text, count) {
    this.all = text;
    this.width = count ? text.length / count : 0;
    this.length = count;
  }

  at(row) {
    return this.all.slice(row * this.width, (row + 1) * this.width);
  }

  // Marks the rows whose digest has this word.
  mark(word, held) {
    for (let place = this.all.indexOf(word); place >= 0; place = this.all.indexOf(word, place + 1)) {
      const row = Math.floor(place / this.width);
      if (place + word.length <= (row + 1) * this.width) held[row] = 1;
    }
  }

  // The first 13 hex digits fit a number exactly.
  ranks() {
    return Float64Array.from({ length: this.length }, (_, row) => parseInt(this.at(row).slice(0, 13), 16));
  }
}
