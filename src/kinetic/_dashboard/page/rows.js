// Lines of a log as a terminal shows them: those of progress bars that go back, or up, are one row that changes.
const VERTICAL = /\u001b\[(\d{0,4})([ABEF])/;
const MOST = 16; // rows that can still change

// Leaves out the versions of a row that later ones cover. A return at the end stays: what follows covers the row.
function latest(text) {
  const bare = text.replace(/\r+$/, "");
  const at = bare.lastIndexOf("\r");
  return at < 0 ? text : text.slice(at + 1);
}

export class Rows {
  constructor() {
    this.rows = [];
    this.at = 0;
    this.isLineStart = true;
  }

  // Takes a line of the log, or a part of one; adds the rows that it changes to a set. New ones begin at its position.
  take({ start, text, whole }, changed) {
    if (this.at >= this.rows.length) this.rows.push({ start, text: "" });
    else if (this.isLineStart) this.rows[this.at].text += "\r";
    changed.add(this.rows[this.at]);
    for (let rest = text, found; ; rest = rest.slice(found.index + found[0].length)) {
      found = VERTICAL.exec(rest);
      const part = found ? rest.slice(0, found.index) : rest;
      const row = this.rows[this.at];
      if (part) {
        row.text = latest(row.text + part);
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
