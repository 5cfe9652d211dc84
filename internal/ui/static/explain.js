// What POST /explain says, as tables.

import { h, seconds } from './dom.js';

function table(caption, head, rows) {
  return h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption }, h('h3', {}, caption), h('table', {},
    h('thead', {}, h('tr', {}, ...head.map((t) => h('th', { scope: 'col' }, t)))), h('tbody', {}, ...rows.map((cells) => h('tr', {}, ...cells.map((t) => h('td', {}, t)))))));
}

const number = (v) => (v === undefined ? '' : v.toFixed(3));

export function explanation(e) {
  const out = [h('p', {}, `Rule ${e.rule}, a prompt of about ${e.prompt_tokens} tokens. `, h('strong', {}, e.split ? `Prefill on ${e.prefill}, decode on ${e.decode}`
    : e.decode ? `${e.decode} alone (${e.reason})` : `No engine can serve it now: ${e.reason}`), e.why ? `: ${e.why}` : '')];
  if (e.paths?.length) {
    out.push(table(`${e.paths.length} paths, the cheapest first; a price is how many requests would miss their objective`,
      ['', 'Prefill', 'Decode', 'Price', 'Missed', 'Streams', 'Gaps', 'Room', 'Late', 'First token', 'Between tokens'],
      e.paths.slice(0, 20).map((p) => [p.taken ? '✓' : '', p.prefill || 'alone', p.decode, number(p.price), number(p.missed), number(p.streams), number(p.gaps), number(p.room), number(p.late),
        seconds(p.ttft_seconds), seconds(p.itl_seconds)])));
  }
  for (const s of e.stages ?? []) {
    out.push(table(`${s.role}, by ${s.policy}`, ['', 'Engine', 'State', 'In flight', 'Cached tokens', 'Backlog tokens', 'Scores', 'Sum'], (s.engines ?? []).map((x) => [
      x.taken ? '✓' : '', x.engine, [x.state, x.why].filter(Boolean).join(': '), [x.in_flight, x.unrouted?.requests && `(${x.unrouted.requests} unrouted)`].filter((v) => v || v === 0).join(' '), x.cached_tokens, x.backlog_tokens,
      x.left_out || (x.scores ?? []).map((v) => `${v.scorer} ${v.score.toFixed(2)}×${v.weight}`).join(', '), x.left_out || !x.scores?.length ? '' : x.sum.toFixed(2)])));
  }
  return out;
}
