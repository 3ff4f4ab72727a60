// Lines of a log as a terminal shows them: those of progress bars that go back, or up, are one row that changes.
const VERTICAL = /\u001b\[(\d{0,4})([ABEF])/;
const MOST = 16; // rows that can still change
export const MOST_OF_A_LINE = 200_000; // characters that are kept of one; of the others, how many there are

// Leaves out the versions of a row that later ones cover. A return at the end stays: what follows covers the row.
function latest(text) {
  const bare = text.replace(/\r+$/, "");
  const at = bare.lastIndexOf("\r");
  return at < 0 ? text : text.slice(at + 1);
}

// Adds to a text with its count of characters that are not kept: many lines of megabytes would take a browser's memory.
export function joined(text, left, more) {
  const over = text.length - MOST_OF_A_LINE;
  if (over >= 0 && !more.includes("\r") && !text.endsWith("\r")) return [text.slice(0, MOST_OF_A_LINE), left + over + more.length];
  const whole = latest(text + more);
  if (whole.length < text.length + more.length) left = 0; // it was written anew
  if (whole.length <= MOST_OF_A_LINE) return [whole, left];
  return [whole.slice(0, MOST_OF_A_LINE) + (whole.endsWith("\r") ? "\r" : ""), left + whole.length - MOST_OF_A_LINE];
}

export class Rows {
  constructor() {
    this.rows = [];
    this.at = 0;
    this.isLineStart = true;
  }

  // Takes a line of the log, or a part of one; adds the rows that it changes to a set. New ones begin at its position.
  take({ start, text, whole }, changed) {
    if (this.at >= this.rows.length) this.rows.push({ start, text: "", left: 0 });
    else if (this.isLineStart) this.rows[this.at].text += "\r";
    changed.add(this.rows[this.at]);
    for (let rest = text, found; ; rest = rest.slice(found.index + found[0].length)) {
      found = VERTICAL.exec(rest);
      const part = found ? rest.slice(0, found.index) : rest;
      const row = this.rows[this.at];
      if (part) {
        [row.text, row.left] = joined(row.text, row.left, part);
        changed.add(row);
      }
      if (!found) break;
      const by = Math.max(Number(found[1] || 1), 1) * ("AF".includes(found[2]) ? -1 : 1);
      this.at = Math.min(Math.max(this.at + by, 0), this.rows.length - 1);
    }
    this.isLineStart = whole;
    if (whole) this.at++;
    if (this.rows.length > MOST) {
      this.rows.shift();
      this.at = Math.max(this.at - 1, 0);
    }
  }
}
