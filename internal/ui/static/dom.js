// Elements are made here, and text is always set as text: nothing that the gateway says of engines or requests becomes markup.

export const $ = (selector, inside = document) => inside.querySelector(selector);

// h makes an element. Attributes that are null or false are left out.
export function h(tag, attributes = {}, ...children) {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) el.setAttribute(name, value === true ? '' : String(value));
  }
  el.append(...children.filter((c) => c !== null && c !== undefined && c !== '').map((c) => (c instanceof Node ? c : String(c))));
  return el;
}

// say sets an element's text, if it is another.
export function say(el, text) {
  if (el.textContent !== String(text)) el.textContent = String(text);
}

// show says whether an element is there.
export function show(el, on) {
  if (el.hidden === on) el.hidden = !on;
}

// list has parent contain one element for each item. An item with the same key keeps its element, so that focus and what is unfolded stay:
// fill(el, item) brings it up to date.
export function list(parent, items, key, make, fill) {
  const before = parent.items ?? new Map();
  const wanted = new Set(items.map(key));
  for (const [k, el] of before) if (!wanted.has(k)) el.remove(); // first, so that those that stay need not move: a move takes the focus away
  const now = new Map();
  let at = parent.firstElementChild;
  for (const item of items) {
    const k = key(item);
    if (now.has(k)) continue;
    const el = before.get(k) ?? make(item);
    fill(el, item);
    now.set(k, el);
    if (el === at) at = at.nextElementSibling;
    else parent.insertBefore(el, at);
  }
  parent.items = now;
}

// row makes a row of a table whose columns have these names; byName has its cells.
export function row(columns) {
  const tr = h('tr');
  tr.byName = {};
  for (const [name, label, kind] of columns) {
    const td = h('td', { class: kind, 'data-label': label });
    tr.byName[name] = td;
    tr.append(td);
  }
  return tr;
}

const levels = { up: 'good', ready: 'good', warm: 'good', completed: 'good', down: 'bad', open: 'bad', 'not ready': 'bad', unpairable: 'bad', failed_before: 'bad', failed_after: 'bad' };
const signs = { good: '✓', warn: '!', bad: '✕', none: '' };

// badge shows a state by a word, a sign and a colour.
export function badge(el, state, level = levels[state] ?? 'warn') {
  if (el.dataset.level !== level) el.dataset.level = level;
  say(el, `${signs[level]} ${state.replaceAll('_', ' ')}`.trim());
  return el;
}

export const newBadge = (state, level) => badge(h('span', { class: 'badge' }), state, level);

// seconds shows a time in seconds as people read it.
export function seconds(s) {
  if (s === undefined || s === null || Number.isNaN(s)) return '';
  if (s < 0.0995) return `${(s * 1000).toFixed(s < 0.00995 ? 1 : 0)} ms`;
  if (s < 9.95) return `${s.toFixed(2)} s`;
  if (s < 119.5) return `${s.toFixed(0)} s`;
  if (s < 7170) return `${(s / 60).toFixed(0)} min`;
  return s < 172000 ? `${(s / 3600).toFixed(0)} h` : `${(s / 86400).toFixed(0)} days`;
}

export function bytes(n) {
  for (const unit of ['B', 'kB', 'MB', 'GB']) {
    if (n < 1000) return `${n < 10 && unit !== 'B' ? n.toFixed(1) : n.toFixed(0)} ${unit}`;
    n /= 1000;
  }
  return `${n.toFixed(1)} TB`;
}

export const clock = (time) => new Date(time).toLocaleTimeString([], { hour12: false });
