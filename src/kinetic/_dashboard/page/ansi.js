// What a program wrote for a terminal, as text with classes. Colors and weights are kept; all other sequences are left out.
import { escaped, h } from "./dom.js";

const SEQUENCE = /\u001b\[([0-9;:]*)m|\u001b[\]PX^_][^\u0007\u001b]{0,4096}(?:\u0007|\u001b\\)|\u001b\[[0-?]*[ -/]*[@-~]|\u001b[ -/]*[0-~]/g;

// The state between lines: a color lasts until it is reset.
export const plain = () => ({ color: null, bold: false, dim: false, italic: false, underline: false });

function apply(style, codes) {
  const numbers = codes === "" ? [0] : codes.split(/[;:]/).map(Number);
  for (let at = 0; at < numbers.length; at++) {
    const code = numbers[at];
    if (code === 0) Object.assign(style, plain());
    else if (code === 1) style.bold = true;
    else if (code === 2) style.dim = true;
    else if (code === 3) style.italic = true;
    else if (code === 4) style.underline = true;
    else if (code === 22) style.bold = style.dim = false;
    else if (code === 23) style.italic = false;
    else if (code === 24) style.underline = false;
    else if (code >= 30 && code <= 37) style.color = code - 30;
    else if (code >= 90 && code <= 97) style.color = code === 90 ? 8 : code - 90;
    else if (code === 39) style.color = null;
    else if (code === 38 || code === 48) { // colors of a palette: those of the first 16 that we have
      const palette = numbers[at + 1] === 5 ? numbers[at + 2] : null;
      if (code === 38) style.color = palette !== null && palette < 16 ? palette % 8 : null;
      at += numbers[at + 1] === 5 ? 2 : 4;
    }
  }
}

function classOf(style) {
  const names = [];
  if (style.bold) names.push("ansi-bold");
  if (style.dim) names.push("ansi-dim");
  if (style.italic) names.push("ansi-italic");
  if (style.underline) names.push("ansi-underline");
  if (style.color !== null && style.color !== 7) names.push(`ansi-${style.color}`);
  return names.join(" ");
}

// What a terminal would show of a line that progress bars wrote again and again: its last version.
function lastVersion(text) {
  const trimmed = text.replace(/\r+$/, "");
  const at = trimmed.lastIndexOf("\r");
  return at < 0 ? trimmed : trimmed.slice(at + 1);
}

const EDIT = /\u0008|\u001b\[\d{0,4}[CDGK]/;
const PART = /\u0008+|\u001b\[(\d{0,4})([CDGK])|\u001b\[[0-9;:]*m|[^\u0008\u001b]+|\u001b(?:\[[0-?]*[ -/]*[@-~])?/g;
const MOST_COLUMNS = 4000;

// Cells of a line in which the cursor went back, as runs of text with their classes.
function* edited(text, style) {
  const cells = [];
  let column = 0;
  for (const found of text.matchAll(PART)) {
    const part = found[0];
    if (part[0] === "\u0008") column = Math.max(column - part.length, 0);
    else if (found[2] === "K") {
      if (!Number(found[1])) cells.length = Math.min(cells.length, column);
      else if (found[1] === "2") cells.length = 0;
      else cells.fill([" ", ""], 0, column + 1);
    } else if (found[2]) {
      const by = Math.max(Number(found[1] || 1), 1);
      column = Math.min(Math.max(found[2] === "G" ? by - 1 : column + (found[2] === "C" ? by : -by), 0), MOST_COLUMNS);
    } else if (part[0] === "\u001b") {
      if (part.endsWith("m")) apply(style, part.slice(2, -1));
    } else {
      while (cells.length < column) cells.push([" ", ""]);
      for (const character of part) if (column < MOST_COLUMNS) cells[column++] = [character, classOf(style)];
    }
  }
  for (let at = 0, end; at < cells.length; at = end) {
    for (end = at; end < cells.length && cells[end][1] === cells[at][1]; ) end++;
    yield [cells.slice(at, end).map((cell) => cell[0]).join(""), cells[at][1]];
  }
}

// Appends a line to an element, and changes the style for the next one.
export function write(element, text, style) {
  let at = 0;
  const whole = lastVersion(text);
  if (whole !== text && whole.length < text.length) for (const found of text.slice(0, text.length - whole.length).matchAll(SEQUENCE)) if (found[1] !== undefined) apply(style, found[1]);
  const add = (part, name) => {
    if (!part) return;
    const shown = escaped(part);
    element.append(name ? h("span", { class: name }, shown) : document.createTextNode(shown));
  };
  if (EDIT.test(whole)) {
    for (const [part, name] of edited(whole, style)) add(part, name);
    return;
  }
  for (const found of whole.matchAll(SEQUENCE)) {
    add(whole.slice(at, found.index), classOf(style));
    if (found[1] !== undefined) apply(style, found[1]);
    at = found.index + found[0].length;
  }
  add(whole.slice(at), classOf(style));
}
