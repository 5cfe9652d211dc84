// The page asks its own listener every two seconds, and shows what it says. The token is kept in sessionStorage and sent as Authorization.

import { $, h, say, show, clock } from './dom.js';
import { showSummary, showQueues, showEngines, showPairs, showMoves } from './fleet.js';
import { showRequests, showFailures, showDecisions, isFiltered } from './requests.js';
import { explanation } from './explain.js';

const every = 2000; // milliseconds between two looks
const kept = 'pdrouter-token';
let paused = false;
let drains = true; // the listener may have the routes that drain engines
let timer = 0;
let asking = null; // the look under way

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// ask sends a request to a route of this listener. Paths are relative to /ui/, so that a proxy may have the listener below a path.
async function ask(path, options = {}) {
  const token = sessionStorage.getItem(kept);
  const answer = await fetch(`../${path}`, {
    ...options, headers: token ? { Authorization: `Bearer ${token}` } : {}, cache: 'no-store', redirect: 'error', signal: AbortSignal.timeout(20000),
  });
  const text = await answer.text();
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    // some refusals are plain text
  }
  if (!answer.ok || body === null) {
    throw new Refused(answer.status, body?.error?.message ?? body?.mistakes?.join('\n') ?? (text.trim() || `status ${answer.status}`));
  }
  return body;
}

// listed asks for the engines as administrators see them; null where the listener does not have them.
async function listed() {
  if (!drains) return null;
  try {
    const all = await ask('admin/v1/engines');
    return new Map(all.engines.map((e) => [e.name, e]));
  } catch (e) {
    if (e instanceof Refused && e.status === 404) drains = false;
    else if (!(e instanceof Refused)) throw e;
    return null;
  }
}

async function look() {
  const status = await ask('status'); // first alone: a missing token is refused once
  const [recent, live, managed] = await Promise.all([ask(`requests?limit=${isFiltered() ? 1000 : 60}`), ask('requests/live'), listed()]);
  showSummary(status);
  showQueues(status);
  showEngines(status, managed, change);
  showPairs(status);
  showMoves(status);
  showRequests(recent, live, new Date(status.now));
  showDecisions(recent);
  showFailures(recent);
  show($('#content'), true);
  show($('#signin'), false);
  show($('#reload'), true);
  show($('#signout'), sessionStorage.getItem(kept) !== null);
  show($('#trouble'), false);
  say($('#updated'), `As of ${clock(status.now)}, gateway ${status.commit || status.version}`);
}

// refresh looks now, and again later. Looks never overlap.
function refresh() {
  clearTimeout(timer);
  asking ??= look().catch(failed).finally(() => {
    asking = null;
    if (!paused && !document.hidden && $('#signin').hidden) timer = setTimeout(refresh, every);
  });
  return asking;
}

function failed(e) {
  if (e instanceof Refused && (e.status === 401 || e.status === 403)) {
    const had = sessionStorage.getItem(kept) !== null;
    show($('#content'), false);
    for (const id of ['#reload', '#signout']) show($(id), false);
    show($('#plain'), location.protocol !== 'https:' && !['localhost', '127.0.0.1', '[::1]'].includes(location.hostname));
    if ($('#signin').hidden) {
      show($('#signin'), true);
      $('#token').focus();
    }
    trouble(had ? (e.status === 403 ? 'This token does not have the scope read.' : 'This token is not valid, or not any more.') : '');
    if (had) sessionStorage.removeItem(kept);
    return;
  }
  trouble(`The gateway does not answer (${e.message}). What is shown is old.`);
}

function trouble(text) {
  say($('#trouble'), text);
  show($('#trouble'), text !== '');
}

// notice says what became of something that a person did.
const notice = (text) => say($('#notice'), text);

// confirmed asks a person first.
function confirmed(title, text, button) {
  const dialog = $('#confirm');
  say($('#confirm-title'), title);
  say($('#confirm-text'), text);
  say($('#confirm-yes'), button);
  dialog.showModal();
  return new Promise((done) => { // the event close comes later, perhaps within the next question
    const over = new AbortController();
    const answer = (yes) => {
      over.abort();
      done(yes);
    };
    $('form', dialog).addEventListener('submit', (event) => answer(event.submitter?.value === 'yes'), { signal: over.signal });
    dialog.addEventListener('cancel', () => answer(false), { signal: over.signal });
  });
}

// change drains or undrains an engine.
async function change(engine, drain) {
  const word = drain ? 'Drain' : 'Undrain';
  const what = drain ? 'It gets no more requests, through any gateway that shares this state. Those that it has go on.' : 'It gets requests again.';
  if (!(await confirmed(`${word} ${engine}?`, what, word))) return;
  try {
    const e = await ask(`admin/v1/engines/${encodeURIComponent(engine)}/${word.toLowerCase()}`, { method: 'POST' });
    notice(`${e.name} is ${e.state}, ${e.in_flight} in flight.`);
  } catch (e) {
    notice(`${word} ${engine}: ${e.status === 403 ? 'this token does not have the scope engines' : e.message}.`);
  }
  refresh();
}

async function reload() {
  if (!(await confirmed('Reload the configuration?', 'The file is read again. If it has a mistake, nothing changes.', 'Reload'))) return;
  try {
    const { changed } = await ask('config/reload', { method: 'POST' });
    notice(changed.length ? `The configuration was taken into use. Changed: ${changed.join(', ')}.` : 'The configuration was read. Nothing has changed.');
  } catch (e) {
    notice(`The configuration was not taken into use: ${e.status === 403 ? 'this token does not have the scope write' : e.message}`);
  }
  refresh();
}

async function explain(event) {
  event.preventDefault();
  const to = $('#explained');
  try {
    const body = JSON.stringify({ model: $('#explain-model').value, prompt: $('#explain-prompt').value });
    to.replaceChildren(...explanation(await ask('explain/v1/completions', { method: 'POST', body })));
  } catch (e) {
    to.replaceChildren(h('p', { class: 'alert' }, e.message));
  }
}

$('#reload').addEventListener('click', reload);
$('#explain-form').addEventListener('submit', explain);
$('#scale').addEventListener('change', refresh);
for (const id of ['#filter-text', '#filter-outcome']) $(id).addEventListener('input', refresh);
$('#filter').addEventListener('submit', (event) => event.preventDefault());
$('#pause').addEventListener('click', () => {
  paused = !paused;
  $('#pause').setAttribute('aria-pressed', String(paused));
  say($('#pause'), paused ? 'Resume' : 'Pause');
  if (!paused) refresh();
});
$('#signin-form').addEventListener('submit', (event) => {
  event.preventDefault();
  sessionStorage.setItem(kept, $('#token').value.trim());
  $('#token').value = '';
  drains = true;
  refresh();
});
$('#signout').addEventListener('click', () => {
  sessionStorage.removeItem(kept);
  location.reload();
});
document.addEventListener('visibilitychange', () => { if (!document.hidden && !paused) refresh(); });
refresh();
