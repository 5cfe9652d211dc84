// Models, engines and pairs.

import { $, h, say, show, list, row, badge, newBadge, seconds, bytes, clock } from './dom.js';

const columns = [['name'], ['place', 'Place'], ['state'], ['load', 'In flight', 'n'], ['own', 'At work, waiting', 'n'], ['kv', 'KV cache'], ['source', 'Source'], ['action']];
const sum = (o) => Object.values(o ?? {}).reduce((a, b) => a + b, 0);

export function showSummary(s) {
  const down = s.engines.filter((e) => e.state !== 'up').length;
  const leaked = s.engines.reduce((n, e) => n + sum(e.leaked_blocks), 0);
  const held = s.engines.reduce((n, e) => n + (e.uncollected ?? 0), 0);
  const tiles = [
    ['Engines up', `${s.engines.length - down} of ${s.engines.length}`], ['Pairs ready', `${s.pairs_warm} of ${s.pairs_total}`], ['Requests under way', s.requests],
    ['Waiting for a place', s.queues.reduce((n, q) => n + q.waiting, 0)], ['Requests whose KV waits for decode', held], ['KV blocks leaked', leaked],
    ['Configuration since', seconds((new Date(s.now) - new Date(s.config.applied_at)) / 1000)],
  ];
  list($('#summary'), tiles, ([name]) => name, ([name]) => h('li', {}, h('b'), h('span', { class: 'muted' }, name)), (el, [, value]) => say(el.firstElementChild, value));
  badge($('#ready'), s.draining ? 'draining' : s.ready ? 'ready' : 'not ready');
  say($('#build'), `${s.version} · up ${seconds((new Date(s.now) - new Date(s.started_at)) / 1000)}`);
  const problems = s.problems ?? [];
  show($('#problems'), problems.length > 0);
  say($('#problems [data-clients]'), s.clients.says);
  list($('#problems ul'), problems, (p) => `${p.alert} ${p.what} ${p.since}`, (p) => h('li', { 'data-alert': p.alert }, newBadge(p.severity, p.severity === 'critical' ? 'bad' : 'warn'), ' ',
    h('strong', {}, p.what), ': ', h('span'), ' ', h('span', { class: 'since' }), ' ', h('a', { href: `runbook.html#${p.alert.toLowerCase()}` }, p.alert)), (el, p) => {
    say(el.children[2], p.why.endsWith('.') ? p.why : `${p.why}.`);
    say(el.children[3], `Since ${clock(p.since)}, for ${seconds(Math.max(0, (new Date(s.now) - new Date(p.since)) / 1000))}.`);
  });
  const mistakes = s.config.mistakes ?? [];
  show($('#mistakes'), mistakes.length > 0);
  list($('#mistakes ul'), mistakes, (m) => m, (m) => h('li', {}, m), () => {});
}

export function showQueues(s) {
  list($('#queues [data-list]'), s.queues, (q) => q.model,
    (q) => h('li', {}, h('span', { class: 'name' }, q.model), ' ', newBadge('ready'), h('meter', { min: 0, 'aria-label': `places in use of ${q.model}` }), h('div'), h('div', { class: 'muted' })), (el, q) => {
      const [, state, meter, line, more] = el.children;
      badge(state, s.models[q.model] ? 'ready' : 'not ready');
      Object.assign(meter, { max: q.places || 1, high: 0.9 * q.places, value: q.in_flight });
      say(line, `${q.in_flight} of ${q.places} places in use, ${q.waiting} waiting`);
      const denied = Object.entries(q.denied ?? {}).filter(([, n]) => n > 0).map(([why, n]) => `${n} ${why}`).join(', ');
      say(more, [q.drain_seconds && q.waiting ? `empty in about ${seconds(q.drain_seconds)}` : '', `${q.waited} have waited`, denied && `without a place: ${denied}`].filter(Boolean).join(' · '));
    });
}

// showEngines shows every engine. managed are those that administrators may drain, by name; null if that is not possible here.
export function showEngines(s, managed, change) {
  list($('#engines tbody'), s.engines, (e) => e.name, (e) => {
    const tr = row(columns);
    const { name, state, action } = tr.byName;
    name.append(h('strong', {}, e.name));
    state.append(newBadge(e.state), ' ', newBadge('recomputes', 'warn'), h('div', { class: 'why' }));
    const button = h('button', { type: 'button', hidden: true });
    button.addEventListener('click', () => change(tr.engine, tr.drain));
    action.append(button);
    return tr;
  }, (tr, e) => {
    const c = tr.byName;
    const known = managed?.get(e.of || e.name);
    tr.dataset.engine = e.name;
    say(c.place, [...new Set((e.places ?? []).map((p) => `${p.role} of ${p.model}`))].join(', '));
    badge(c.state.firstElementChild, e.state);
    show(c.state.children[1], Boolean(e.hand_offs?.recomputing));
    say(c.state.lastElementChild, [e.why, e.hand_offs?.recomputing ? 'it computes prompts that it should receive' : '', e.share < 1 && e.state === 'slow_start' ? `${Math.round(100 * e.share)} % of its requests` : '', e.events === false ? 'no event stream' : ''].filter(Boolean).join(' · '));
    say(c.load, [e.in_flight, e.unrouted?.requests && `+ ${e.unrouted.requests} unrouted`].filter((v) => v || v === 0).join(' '));
    say(c.own, e.load ? `${e.load.running}, ${e.load.waiting}` : '');
    const leaks = e.load?.kv_use === undefined ? [] : [`${Math.round(100 * e.load.kv_use)} % in use`];
    if (e.uncollected) leaks.push(`held for ${e.uncollected} requests until decode has it`);
    leaks.push(...Object.entries(e.leaked_blocks ?? {}).map(([why, n]) => `${n} blocks leaked (${why})`));
    if (e.maybe_leaked_blocks) leaks.push(`${e.maybe_leaked_blocks} blocks may be leaked`);
    if (e.cached_blocks !== undefined) leaks.push(`${e.cached_blocks} blocks cached`);
    say(c.kv, leaks.join(', '));
    say(c.source, known ? [known.source, known.changed_by && `changed by ${known.changed_by}`].filter(Boolean).join(', ') : '');
    const button = c.action.firstElementChild;
    show(button, Boolean(known));
    if (known) {
      Object.assign(tr, { engine: known.name, drain: !known.drain });
      say(button, known.drain ? 'Undrain' : 'Drain');
      button.setAttribute('aria-label', `${button.textContent} ${known.name}`);
    }
  });
  show($('#nodrain'), managed === null);
}

export function showPairs(s) {
  const stateOf = (p) => p.circuit || (!p.pairable ? 'unpairable' : !p.warm ? 'not ready' : p.slow ? 'slow' : 'ready');
  say($('#pairs [data-summary]'), s.pairs_total === 0 ? 'No engines need each other here.'
    : `${s.pairs_warm} of ${s.pairs_total} are ready.${s.pairs.length < s.pairs_total ? ` The first ${s.pairs.length} are shown.` : ''}`);
  list($('#pairs tbody'), s.pairs, (p) => `${p.model} ${p.prefill} ${p.decode}`, (p) => {
    const tr = row([['prefill', 'Prefill'], ['decode', 'Decode'], ['state'], ['took', 'Hand-off', 'n'], ['moved', 'KV moved', 'n']]);
    tr.byName.prefill.append(p.prefill);
    tr.byName.decode.append(p.decode);
    tr.byName.state.append(newBadge('ready'), h('div', { class: 'why' }));
    return tr;
  }, (tr, p) => {
    badge(tr.byName.state.firstElementChild, stateOf(p));
    say(tr.byName.state.lastElementChild, p.slow && p.warm ? `hand-offs take ${p.times_as_long.toFixed(1)} times as long as usual` : [p.reason, p.why].filter(Boolean).join(': '));
    say(tr.byName.took, p.hand_off_seconds ? seconds(p.hand_off_seconds) : '');
    say(tr.byName.moved, p.bytes ? bytes(p.bytes) : '');
  });
  show($('#pairs table'), s.pairs.length > 0);
  const select = $('#explain-model');
  list(select, Object.keys(s.models).sort(), (m) => m, (m) => h('option', {}, m), () => {});
}

const moveLevels = { moved: 'good', already_there: 'good', running: 'good', waiting: 'none', dry_run: 'none', failed: 'bad', late: 'bad' };

// showMoves shows the moves of conversations between engines; nothing where none are made.
export function showMoves(s) {
  const m = s.migration;
  show($('#moves'), Boolean(m));
  if (!m) return;
  const moves = m.moves ?? [];
  say($('#moves [data-summary]'), `${m.running} running, ${m.waiting} waiting; ${m.conversations} conversations are kept, ${bytes(m.bytes)}.`);
  list($('#moves tbody'), moves.map((x, i) => ({ ...x, i: moves.length - i })), (x) => `${x.i} ${x.state} ${x.began_at}`, (x) => {
    const tr = row([['state'], ['reason', 'Reason'], ['from', 'From'], ['to', 'To'], ['moves', 'Moves', 'n'], ['tokens', 'Tokens', 'n'], ['took', 'Time', 'n']]);
    tr.byName.state.append(newBadge(x.state, moveLevels[x.state] ?? 'warn'));
    return tr;
  }, (tr, x) => {
    say(tr.byName.reason, x.reason);
    say(tr.byName.from, x.from);
    say(tr.byName.to, x.to || (x.state === 'waiting' ? 'as the policy says' : ''));
    say(tr.byName.moves, x.moves);
    say(tr.byName.tokens, x.tokens);
    say(tr.byName.took, x.state === 'waiting' || !x.seconds ? '' : seconds(x.seconds));
  });
  show($('#moves table'), moves.length > 0);
}
