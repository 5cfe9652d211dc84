// Requests under way and finished, the legs of each as bars.

import { $, h, say, show, list, newBadge, badge, seconds, clock } from './dom.js';

// What each stage of a request is drawn as, and in which leg's lane. Stages follow each other in this order.
const stages = {
  admit: ['wait', 'prefill'], queue: ['wait', 'prefill'], retry: ['retry', 'prefill'], plan: ['wait', 'prefill'], pair: ['wait', 'prefill'], prefill: ['prefill', 'prefill'],
  transfer: ['transfer', 'decode'], first_token: ['first', 'decode'], join: ['transfer', 'decode'], stream: ['stream', 'decode'],
};

// What the parts of the time to the first token are drawn as, which are finer than the stages from prefill on.
const firstToken = {
  prefill_queue: ['queued', 'prefill'], prefill_compute: ['prefill', 'prefill'], prefill: ['prefill', 'prefill'], transfer: ['transfer', 'decode'], decode_queue: ['queued', 'decode'],
  first_step: ['first', 'decode'], decode: ['first', 'decode'],
};

// parts are the stages and parts of a finished request that took time, each from when to when in seconds from the arrival. A "~" says that a time is estimated.
function parts(r) {
  const finer = (r.first_token_parts ?? []).filter((p) => p.part !== 'gateway_queue');
  const seen = Object.entries(stages).map(([stage, [part, lane]]) => ({ stage, part, lane, took: r.stage_seconds[stage] ?? 0 }));
  const named = (part) => (part === 'decode' && !finer.some((p) => p.part === 'transfer') ? 'transfer and decode' : part); // what cannot be told apart
  const coarse = ['prefill', 'transfer', 'first_token'], after = ['join', 'stream'];
  const all = finer.length === 0 ? seen : [
    ...seen.filter((b) => !after.includes(b.stage) && !coarse.includes(b.stage)),
    ...finer.map((p) => ({ stage: (p.estimated ? '~' : '') + named(p.part), part: firstToken[p.part][0], lane: r.prefill || p.part === 'transfer' ? firstToken[p.part][1] : 'decode', took: p.seconds })),
    ...seen.filter((b) => after.includes(b.stage)),
  ];
  let at = 0;
  return all.flatMap((b) => {
    at += b.took;
    return b.took > 0 ? [{ ...b, from: at - b.took, to: at }] : [];
  });
}

const total = (r) => r.phases.total / 1e9; // in seconds
const spelled = (r) => parts(r).map((b) => `${b.stage.replace('_', ' ')} ${seconds(b.took)}`).join(', ');

// draw fills the bars of a request; longest is how long the whole width is, in seconds.
function draw(el, r, longest) {
  const all = parts(r);
  el.replaceChildren(...all.map((b) => {
    const i = h('i', { 'data-part': b.part, 'data-lane': b.lane });
    i.style.left = `${Math.min(100, (100 * b.from) / longest)}%`;
    i.style.width = `${Math.max(0, Math.min(100, (100 * b.to) / longest) - Math.min(100, (100 * b.from) / longest))}%`;
    return i;
  }));
  el.toggleAttribute('data-cut', total(r) > longest);
  el.setAttribute('aria-label', spelled(r) || 'no time');
}

const engines = (r) => (r.prefill && r.prefill !== r.decode ? `${r.prefill} → ${r.decode || '?'}` : r.decode || r.prefill || 'no engine');

function fields(r) {
  const books = r.books && `${r.books.blocks} blocks, ${r.books.bytes} bytes${r.books.ready ? ', complete' : ''}${r.books.failed ? `, failed: ${r.books.failed}` : ''}`;
  return [
    ['Request', r.request_id], ['Route', `${r.route}${r.stream ? ', stream' : ''}`], ['Model', r.model], ['Caller', r.subject], ['Reason', r.reason], ['Why these engines', r.why],
    ['Why it waited', r.waited], ['Attempts', r.attempts > 1 ? r.attempts : ''], ['Time', `${spelled(r)}; ${seconds(total(r))} in all`],
    ['Predicted first token', r.predicted_seconds ? seconds(r.predicted_seconds) : ''],
    ['Tokens', r.prompt_tokens && `${r.prompt_tokens} in the prompt, ${r.cached_tokens} of them cached (predicted ${r.predicted_cached_tokens}), ${r.output_tokens} answered`], ['Trace', r.trace_id],
    ['Prompt at decode', r.hand_off && `${r.hand_off.counted_cached_tokens} of ${r.hand_off.expected_tokens} tokens came, as decode counts; it computed the others`],
    ['Late', r.late ? 'from prefill’s answer to the first token it took more than three times as long as usual for the pair' : ''], ['KV transfer', books], ['Conversation moved before', r.conversation_move ? moveOf(r.conversation_move) : ''], ['KV leaked', r.leaked ? 'an engine may hold blocks until a lease ends' : ''],
    ['Shadow policy', r.shadow ? `${r.shadow.result}: ${r.shadow.prefill} ${r.shadow.decode} ${r.shadow.why}` : ''],
    ['Continued', r.continued ? `${r.continued} times` : r.not_continued],
    ...(r.parts ?? []).map((x, i) => [`Choice ${i + 1}`, `${engines(x)}, ${x.attempts} attempts, ${x.reason}`]),
    ...(r.failures ?? []).map((f) => [`Attempt ${f.attempt} failed`, `${f.engine}: ${f.reason}${f.status ? `, status ${f.status}` : ''}, ${f.cause}${f.answer ? `: ${f.answer}` : ''}`]),
  ].filter(([, value]) => value);
}

const moveOf = (m) => `${m.reason}: ${m.from} to ${m.to}, ${m.tokens} tokens in ${seconds(m.seconds)}: ${m.result.replaceAll('_', ' ')}`;

function newRequest() {
  const el = h('details', { class: 'request' },
    h('summary', {}, h('span', { class: 'time muted' }), h('span', { class: 'where' }), h('span', { class: 'outcome' }, newBadge('')), h('span', { class: 'n' }),
      h('span', { class: 'legs', role: 'img' })));
  el.addEventListener('toggle', () => {
    if (el.open && el.childElementCount === 1) el.append(h('dl', {}, ...fields(el.request).flatMap(([k, v]) => [h('dt', {}, k), h('dd', {}, v)])));
  });
  return el;
}

// filtered are the requests that the person at the page wants to see.
function filtered(recent) {
  const text = $('#filter-text').value.trim().toLowerCase();
  const outcome = $('#filter-outcome').value;
  const names = (r) => [r.request_id, r.prefill, r.decode, ...(r.parts ?? []).flatMap((p) => [p.prefill, p.decode]), ...(r.failures ?? []).map((f) => f.engine)];
  return recent.filter((r) => r.outcome.startsWith(outcome) && (text === '' || names(r).some((n) => n?.toLowerCase().includes(text))));
}

export const isFiltered = () => $('#filter-text').value.trim() !== '' || $('#filter-outcome').value !== '';

export function showRequests(all, live, now) {
  const recent = filtered(all);
  say($('#filtered'), isFiltered() ? `${recent.length} of the latest ${all.length}` : '');
  const own = $('#scale').value === 'own';
  const totals = recent.map(total).sort((a, b) => a - b);
  const most = totals[Math.ceil(0.95 * (totals.length - 1))] || 1; // one request of an hour does not flatten the others
  list($('#recent'), recent, (r) => `${r.request_id} ${r.arrived_at}`, newRequest, (el, r) => {
    el.request = r;
    const [time, where, outcome, took, legs] = el.firstElementChild.children;
    say(time, clock(r.arrived_at));
    say(where, engines(r));
    badge(outcome.firstElementChild, r.outcome === 'completed' ? String(r.status) : `${r.status} ${r.outcome.startsWith('failed') ? 'failed' : 'left'}`,
      r.outcome === 'completed' ? (r.status < 400 ? 'good' : 'warn') : r.outcome.startsWith('failed') ? 'bad' : 'warn');
    say(took, seconds(total(r)));
    draw(legs, r, own ? total(r) || 1 : most);
  });
  show($('[data-empty=recent]'), recent.length === 0);

  list($('#live'), live, (r) => `${r.request_id} ${r.arrived_at} ${r.prefill} ${r.decode}`,
    () => h('li', {}, h('span', { class: 'time muted' }), h('span', { class: 'where' }), h('span', { class: 'n' }), h('span', { class: 'why' })), (el, r) => {
      const [time, where, age, what] = el.children;
      say(time, clock(r.arrived_at));
      say(where, r.decode || r.prefill ? engines(r) : 'no engine yet');
      say(age, seconds(Math.max(0, (now - new Date(r.arrived_at)) / 1000)));
      say(what, [r.prefill && `prefill ${r.prefill_state}`, r.decode && `decode ${r.decode_state}`, r.model].filter(Boolean).join(' · '));
    });
  show($('[data-empty=live]'), live.length === 0);
}

export function showFailures(recent) {
  const all = recent.flatMap((r) => [...(r.failures ?? []), ...(r.parts ?? []).flatMap((p) => p.failures ?? [])].map((f, i) => ({ ...f, r, i }))).slice(0, 50);
  list($('#failures tbody'), all, (f) => `${f.r.request_id} ${f.r.arrived_at} ${f.i}`,
    (f) => h('tr', {}, h('td', {}, clock(f.r.arrived_at)), h('td', { 'data-label': 'Request' }, h('code', {}, f.r.request_id)), h('td', { 'data-label': 'Engine' }, f.engine),
      h('td', { 'data-label': 'Reason' }, f.reason + (f.status ? ` (${f.status})` : '')), h('td', { class: 'long' }, f.cause + (f.answer ? `: ${f.answer}` : ''))), () => {});
  show($('[data-empty=failures]'), all.length === 0);
  show($('#failures table'), all.length > 0);
}

export function showDecisions(recent) {
  const counts = new Map();
  for (const r of recent) counts.set(r.reason || 'none', (counts.get(r.reason || 'none') ?? 0) + 1);
  list($('#decisions [data-list]'), [...counts].sort((a, b) => b[1] - a[1]), ([reason]) => reason,
    ([reason]) => h('li', { class: 'count' }, h('code', {}, reason), h('span', { class: 'n' }), h('progress', { 'aria-label': `share of ${reason}` })), (el, [, n]) => {
      say(el.children[1], n);
      el.children[2].max = recent.length;
      el.children[2].value = n;
    });
}
