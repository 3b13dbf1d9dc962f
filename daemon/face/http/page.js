/*
 * The page: reads this daemon's answers every EVERY_MS and shows them.
 *
 * Rules: what an answer says reaches the page as text alone (textContent, or attributes made here);
 * the policy of http.c forbids anything else.  Parts that did not change stay as they are, so that
 * focus, selection and screen readers keep their place.
 */
'use strict';

const EVERY_MS = 2000, PATIENCE_MS = 8000, KEEP_MS = 60 * 60 * 1000, APART_MS = 6000, LATELY_MS = 60 * 1000, RANGES = 8;
const SVG = 'http://www.w3.org/2000/svg';
const id = name => document.getElementById(name);

/* ---- elements ---- */

function fresh(node, attributes, inside) {
  for (const [name, value] of Object.entries(attributes))
    if (value !== null) node.setAttribute(name, value);
  node.append(...inside);
  return node;
}
const make = (tag, attributes = {}, ...inside) => fresh(document.createElement(tag), attributes, inside);
const draw = (tag, attributes = {}, ...inside) => fresh(document.createElementNS(SVG, tag), attributes, inside);

/* Puts nodes in the place of what is in the parent, unless that looks the same. */
function show(parent, ...nodes) {
  const next = parent.cloneNode(false);

  next.append(...nodes);
  if (!next.isEqualNode(parent)) parent.replaceChildren(...next.childNodes);
}

const name = text => make('strong', { class: 'name' }, text);

function facts(...rows) {
  return make('dl', { class: 'facts' }, ...rows.filter(row => row[1] !== null).flatMap(([what, value]) =>
    [make('dt', {}, what), make('dd', {}, value)]));
}

/* ---- numbers as text ---- */

function scaled(n, base, units) {
  let i = 0;

  while (n >= base && i < units.length - 1) {
    n /= base;
    i++;
  }
  return (i === 0 ? String(n) : n.toFixed(n < 10 ? 2 : n < 100 ? 1 : 0)) + units[i];
}
const bytes = n => scaled(n, 1024, [' B', ' KiB', ' MiB', ' GiB', ' TiB', ' PiB']);
const count = n => scaled(n, 1000, ['', ' k', ' M', ' G', ' T']);
const percent = (n, all) => `${Math.floor(100 * n / all)} %`;
const sum = counts => Object.values(counts).reduce((a, b) => a + b, 0);
const plural = (n, what) => `${n} ${what}${n === 1 ? '' : 's'}`;

function digits(n) {
  if (n === null) return 'not finite';
  if (Number.isInteger(n) && Math.abs(n) < 1e7) return String(n);
  return Math.abs(n) >= 1e5 || Math.abs(n) < 1e-3 ? n.toExponential(2) : n.toPrecision(4);
}

/* As zeroctl writes it. */
function duration(s) {
  if (s < 0.001) return `${(1e6 * s).toFixed(0)} us`;
  if (s < 1) return `${(1000 * s).toFixed(1)} ms`;
  if (s < 60) return `${s.toFixed(1)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} m ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} m`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
}
const clock = ms => new Date(ms).toLocaleTimeString([], { hour12: false });
const since = s => `since ${clock(Date.now() - 1000 * s)} (${duration(s)})`;

/* [[0, 3], [5, 5]]: "0–3, 5" */
function ranges(pairs) {
  const joined = [];

  for (const [first, last] of pairs)
    if (joined.length && joined[joined.length - 1][1] + 1 === first) joined[joined.length - 1][1] = last;
    else joined.push([first, last]);
  const texts = joined.slice(0, RANGES).map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`));
  return texts.join(', ') + (joined.length > RANGES ? ` and ${joined.length - RANGES} more ranges` : '');
}

/* ---- what the page has seen ---- */

/*
 * Of each job: its samples, the oldest first.  All but the newest are APART_MS apart, so there are at most 602.  The daemon
 * keeps none: it works only for those who ask, and Prometheus keeps what outlives a page.
 */
const seen = new Map();

function remember(jobs, now) {
  for (const job of jobs) {
    const samples = seen.get(job.job) ?? [];

    if (samples.length > 1 && samples.at(-1).now - samples.at(-2).now < APART_MS) samples.pop();
    samples.push({ now, step: job.version, rate: job.steps_per_s, norm: job.grad_norm, scale: job.loss_scale,
      took: Object.fromEntries(job.waited.map(w => [w.for, w.sum_s])) });
    while (now - samples[0].now > KEEP_MS) samples.shift();
    seen.set(job.job, samples);
  }
  for (const known of seen.keys())
    if (!jobs.some(job => job.job === known)) seen.delete(known);
}

/* A gap where a value is not finite. */
function outline(samples, of, low, high) {
  const begin = samples[0].now, length = Math.max(samples[samples.length - 1].now - begin, 1);
  let pen = 'M', path = '';

  for (const s of samples) {
    if (s[of] === null) {
      pen = 'M';
      continue;
    }
    const y = high > low ? 38 - 36 * (s[of] - low) / (high - low) : 20;
    path += `${pen}${(300 * (s.now - begin) / length).toFixed(1)} ${y.toFixed(1)}`;
    pen = 'L';
  }
  return path;
}

function curve(job, what, of, value) {
  const samples = seen.get(job.job), known = samples.map(s => s[of]).filter(v => v !== null);
  const low = Math.min(...known), high = Math.max(...known);
  const span = (samples[samples.length - 1].now - samples[0].now) / 1000;
  const range = known.length && span ? `${digits(low)} to ${digits(high)} in ${duration(span)}` : 'no history yet';

  return make('div', { class: 'curve' }, make('h4', {}, what), make('p', { class: 'value' }, value),
    draw('svg', { viewBox: '0 0 300 40', preserveAspectRatio: 'none', role: 'img', 'aria-label': `${what}: ${range}` },
      draw('path', { d: outline(samples, of, low, high) })),
    make('p', { class: 'range', 'aria-hidden': 'true' }, range));
}

/* ---- shards ---- */

const TILES = {
  now: 'at the version of the job', ahead: 'a version ahead', behind: 'still at an older version',
  unknown: 'the node has not told', none: 'holds none of it',
};

function tileState(owner, band) {
  const oldest = owner.oldest[band], newest = owner.newest[band];

  if (owner.elements[band] === 0 || oldest === null) return 'none';
  if (oldest === undefined) return 'unknown';
  if (oldest < owner.version) return 'behind';
  return newest > owner.version ? 'ahead' : 'now';
}

const bandRange = (map, band) => [map.bands[band], (map.bands[band + 1] ?? map.groups) - 1];

/* "version 43: groups 0–5; version 42: groups 6–11" */
function versions(map, owner) {
  const by = new Map();

  map.bands.forEach((_, band) => {
    const state = tileState(owner, band), oldest = owner.oldest[band], newest = owner.newest[band];
    const what = state === 'none' ? 'none of' : state === 'unknown' ? 'not told:'
      : `version ${oldest === newest ? oldest : `${oldest} to ${newest}`}:`;
    by.set(what, [...by.get(what) ?? [], bandRange(map, band)]);
  });
  return [...by].map(([what, pairs]) => `${what} group${pairs.length > 1 || pairs[0][0] < pairs[0][1] ? 's' : ''} ${ranges(pairs)}`).join('; ') +
    (owner.version === null || owner.version === map.version ? '' : ` (as told at step ${owner.version})`);
}

function tile(map, owner, band) {
  const state = tileState(owner, band), [first, last] = bandRange(map, band), elements = owner.elements[band];
  return make('span', { class: `tile ${state}`,
    title: `${first === last ? `group ${first}` : `groups ${first}–${last}`}: ${TILES[state]}` +
      (elements ? `, ${count(elements)} elements` : '') }, state === 'none' ? '–' : String(first));
}

function ownerPicture(map, owner) {
  const title = make('p', {}, name(owner.node), owner.device ? ` device ${owner.device}` : '');

  if (owner.elements.length) title.append(` holds ${count(owner.elements.reduce((a, b) => a + b, 0))} elements; `);
  else title.append(' holds ');
  title.append(versions(map, owner));
  return make('div', { class: 'owner' }, title,
    make('div', { class: 'tiles', 'aria-hidden': 'true' }, ...map.bands.map((_, band) => tile(map, owner, band))));
}

function shards(map) {
  const used = new Set(map.owners.flatMap(o => map.bands.map((_, band) => tileState(o, band))));

  return make('div', {}, make('h4', {}, `Shards: ${plural(map.groups, 'group')} by owner`),
    ...map.owners.map(owner => ownerPicture(map, owner)),
    make('p', { class: 'legend', 'aria-hidden': 'true' }, ...Object.keys(TILES).filter(state => used.has(state)).map(state =>
      make('span', {}, make('i', { class: `tile ${state}` }), TILES[state]))));
}

/* ---- bars ---- */

function bars(most, text, rows) {
  return make('div', { class: 'bars' }, ...rows.flatMap(([what, n, kind = '']) => {
    const bar = make('div', { class: `bar ${kind}` });

    bar.style.width = `${100 * n / most}%`;
    return [make('span', {}, what), make('div', { class: 'track', 'aria-hidden': 'true' }, bar), make('span', { class: 'bytes' }, text(n))];
  }));
}

const ownersOn = (job, node) => job.owners.filter(owner => owner === node).length;

/* As zeroctl top has it. */
function shares(job, node) {
  const samples = seen.get(job.job), last = samples.at(-1), then = samples.find(s => last.now - s.now <= LATELY_MS);
  const sharers = { vote: ownersOn(job, node), update: ownersOn(job, node) }, seconds = (last.now - then.now) / 1000;

  for (const call of ['fetch', 'push', 'norm', 'step', 'all_reduce', 'stash']) sharers[call] = job.sessions.length;
  const rows = Object.entries(last.took).map(([what, took]) => [what, (took - then.took[what]) / (sharers[what] ?? 1) / seconds])
    .filter(([, share]) => share > 0 && share < Infinity);
  return make('div', {}, make('h4', {}, 'Time of the last minute'),
    bars(Math.max(1, ...rows.map(row => row[1])), n => percent(n, 1), rows),
    make('p', { class: 'dim' }, rows.length ? `Of what ended then: parts of the time of all ranks on ${node}; vote and update of its owners’.`
      : 'Nothing ended.'));
}

/* ---- a job ---- */

const STATES = {
  running: ['✓', 'good'], moving: ['⇄', 'warn'], opening: ['…', 'warn'], incomplete: ['⚠', 'bad'], stalled: ['⚠', 'bad'], idle: ['○', ''],
};

function badge(state) {
  const [sign, kind] = STATES[state] ?? ['', ''];

  return make('span', { class: `badge ${kind}` }, `${sign} ${state}`);
}

/* Shorter waits are steps at work.  Those who have the same to do share a line. */
function waits(job) {
  const by = new Map();

  for (const w of job.waiting.filter(w => w.since_s >= 1)) {
    const same = by.get(w.what) ?? { for: [], what: w.what, since_s: 0 };
    same.for.push(w.for);
    same.since_s = Math.max(same.since_s, w.since_s);
    by.set(w.what, same);
  }
  return [...by.values()].map(w => ({ ...w, for: w.for.join(', ') }));
}

function waitsList(job) {
  return make('ul', { class: 'waits', 'aria-label': 'Who is waited for' }, ...waits(job).map(w =>
    make('li', {}, '⚠ Waits for ', name(w.for), `: ${w.what}; no progress ${since(w.since_s)}`)));
}

function work(what, done, all) {
  return make('div', { class: 'work' },
    make('p', {}, what + (all ? `: ${bytes(done)} of ${bytes(all)}, ${percent(done, all)}` : '')),
    make('progress', { 'aria-label': what, max: all || null, value: all ? done : null }));
}

function works(job) {
  const found = [], move = job.move, saved = job.checkpoint;

  if (move)
    found.push(work(move.from_epoch === move.to_epoch ? 'Shards move back to nodes that lost them'
      : `Shards move to the owners of epoch ${move.to_epoch}`, move.bytes, move.total));
  if (saved && saved.age_s === null && !saved.failed)
    found.push(work(`A checkpoint of version ${saved.version} is written`, saved.done_bytes, saved.bytes));
  return found;
}

function checkpoint(job, node) {
  const c = job.checkpoint;

  if (!c) return job.coordinator === node ? 'none since this node coordinates the job' : `ask ${job.coordinator}, which coordinates the job`;
  if (c.failed) return `✕ version ${c.version} failed: ${c.error}`;
  if (c.age_s === null) return `version ${c.version} is written now`;
  return `✓ version ${c.version}, ${bytes(c.bytes)} in ${duration(c.took_s)}, ${duration(c.age_s)} ago`;
}

/* Marked once two in a row are missing. */
function schedule(job) {
  const { every, next_version: next, last_version: last, last_unix_s: at } = job.schedule;

  return `${job.version > last + 2 * every ? '⚠ ' : ''}every ${plural(every, 'step')}, the next of version ${next}; ` +
    `none after version ${last}, ${duration(Math.max(Date.now() / 1000 - at, 0))} ago`;
}

function ranks(job) {
  const by = new Map();

  for (const r of job.ranks) {
    const where = (r.attached ? 'on ' : 'away, last on ') + (r.node ?? 'no node');
    by.set(where, [...by.get(where) ?? [], [r.rank, r.rank]]);
  }
  return [...by].map(([where, numbers]) => `${ranges(numbers)} ${where}`).join('; ');
}

function memory(job, node) {
  const owners = ownersOn(job, node), all = sum(job.planes), formula = owners * job.zero_formula.stage3_bytes;

  return make('div', {}, make('h4', {}, `Memory of ${node} by plane`),
    bars(Math.max(all, formula, 1), bytes, [...Object.entries(job.planes), ['together', all], ['ZeRO’s formula', formula, 'said']]),
    make('p', { class: 'dim' }, formula ? `${(all / formula).toFixed(2)} times what ZeRO stage 3 says for ${plural(owners, 'owner')} of ` +
      `${job.owners.length}: ${job.zero_formula.bytes_per_parameter} bytes a parameter.` : 'This node owns no shards of the job.'));
}

function readers(r) {
  return `${plural(r.clients, 'client')}, ${plural(r.copies, 'version')} in ${bytes(r.bytes)}, ${r.held} held` +
    (r.version === null ? '' : `, the newest is ${r.version}`) + (r.delta_bytes ? `; deltas in ${bytes(r.delta_bytes)}` : '');
}

function numbers(job, node) {
  const gather = job.gather, fetched = gather.hits + gather.misses;

  return make('div', {}, make('h4', {}, 'Ranks and windows'), facts(
    [`${plural(job.world_size, 'rank')}`, ranks(job)],
    ['parameters', count(job.parameters)],
    ['coordinator', job.coordinator],
    ['gather window', `${bytes(gather.window_bytes)} on ${gather.place ?? 'host'}, ${plural(gather.slots, 'slot')}` +
      (fetched ? `, ${percent(gather.hits, fetched)} of ${count(fetched)} fetches found their group there` : '')],
    ['push windows', `${bytes(job.push_windows)} for ${plural(job.sessions.length, 'rank')} here`],
    ['stash', job.stash && `${bytes(job.stash.used)} of ${bytes(job.stash.reserved)}, at most ${bytes(job.stash.peak)}`],
    ['readers', job.readers && readers(job.readers)],
    ['steps', `${job.version} made, ${job.skipped} skipped, ${plural(job.aborts, 'attempt')} given up`],
    ['last step', job.step_age_s === null ? null : `${duration(job.step_age_s)} ago`],
    ['checkpoint', checkpoint(job, node)],
    ['schedule', job.schedule && schedule(job)]));
}

function jobBody(job, map, node) {
  return [waitsList(job), ...works(job),
    make('div', { class: 'curves' }, curve(job, 'Step', 'step', String(job.version)),
      curve(job, 'Steps per second', 'rate', digits(job.steps_per_s)), curve(job, 'Gradient norm', 'norm', digits(job.grad_norm)),
      curve(job, 'Loss scale', 'scale', digits(job.loss_scale))),
    map ? shards(map) : make('p', { class: 'dim' }, 'No picture of the shards: the job opens, or this node has too many jobs.'),
    make('div', { class: 'pair' }, memory(job, node), shares(job, node), numbers(job, node))];
}

const shown = new Map(); /* of each job: its <details>, which a person may have closed */

function showJobs(jobs, maps, node) {
  for (const [known, details] of shown)
    if (!jobs.some(job => job.job === known)) {
      details.remove();
      shown.delete(known);
    }
  id('jobs').querySelector('p.dim.empty')?.remove();
  if (!jobs.length) id('jobs').append(make('p', { class: 'dim empty' }, 'No jobs. A job comes when its first rank attaches.'));
  for (const job of jobs) {
    let details = shown.get(job.job);

    if (!details) {
      details = make('details', { class: 'job' }, make('summary'), make('div', { class: 'body' }));
      shown.set(job.job, details);
      id('jobs').append(details);
    }
    const late = waits(job), idle = String(job.state === 'idle');
    if (details.dataset.idle !== idle) { // a person may fold it, or open it, until that changes
      details.dataset.idle = idle;
      details.open = job.state !== 'idle';
    }
    show(details.firstChild, make('h3', { class: 'name' }, job.job), make('span', {}, badge(job.state)),
      late.length ? make('span', { class: 'bad' }, `⚠ waits for ${late[0].for}${late.length > 1 ? ` and ${late.length - 1} more` : ''}`) : '',
      make('span', { class: 'dim' }, `step ${job.version}`));
    show(details.lastChild, ...jobBody(job, maps.find(map => map.job === job.job), node));
  }
}

/* ---- the cluster ---- */

function nodeCard(peer) {
  const sent = sum(peer.sent), received = sum(peer.received);
  const up = peer.self || peer.up;

  return make('li', {}, make('p', {}, name(peer.node), ' ',
    make('span', { class: `badge ${up ? 'good' : 'bad'}` }, peer.self ? '✓ this node' : up ? '✓ up' : `✕ ${peer.goodbye ?? 'down'}`)),
  facts(['holds shards', peer.owner ? 'yes' : 'no'], ['address', peer.address || null],
    ['link', peer.self ? null : `${up ? 'up' : 'down'} ${since(peer.since_s)}`],
    ['why', up ? null : peer.why], ['payloads', peer.self || !up ? null : peer.bulk],
    ['round trip', peer.self || !up ? null : duration(peer.round_trip_s)],
    ['heard', peer.self ? null : `${duration(peer.heard_s)} ago`],
    ['sent', peer.self ? null : bytes(sent)], ['received', peer.self ? null : bytes(received)]));
}

function membersText(m) {
  return `The owners of epoch ${m.epoch}: ${m.owners.join(', ')}. ` +
    (m.mirrors.length ? `Mirrors: ${m.mirrors.map(x => `${x.owner}’s on ${x.node}`).join(', ')}. ` : 'No mirrors. ') +
    (m.undecided ? `A change to ${m.undecided.join(', ')} is not decided yet. ` : '') +
    `${m.majority ? '✓' : '⚠'} ${m.votes_reachable} of ${plural(m.nodes.length, 'node')} can be reached; a change needs ${m.votes_needed}.`;
}

function gauge(what, used, all) {
  return make('li', {}, make('p', {}, name(what)), make('meter', { 'aria-label': what, max: all, value: used }),
    make('p', {}, `${bytes(used)} of ${bytes(all)}, ${percent(used, all)}`));
}

function memoryCards(status) {
  const m = status.memory;
  const cards = [m.state_quota ? gauge('States, of memory_limit', m.state_used, m.state_quota)
    : make('li', {}, make('p', {}, name('States')), make('p', {}, `${bytes(m.state_used)}; no memory_limit`))];

  if (m.file_system !== null) cards.push(gauge(`File system of ${status.state_dir}`, m.file_system - m.file_system_free, m.file_system));
  cards.push(make('li', {}, make('p', {}, name('The daemon’s process')), make('p', {}, `${bytes(m.resident)} resident`)));
  for (const gpu of status.gpus) cards.push(gauge(`GPU ${gpu.gpu}, ${gpu.name}`, gpu.memory.used, gpu.memory.total));
  return cards;
}

const VERDICTS = { ok: '✓', warn: '⚠', error: '✕' };

function finding(f) {
  return make('li', {}, `${f.state === 'error' ? '✕' : '⚠'} `, name(f.check), `: ${f.found}. What to do: ${f.advice}`);
}

function showAll(status, members, map) {
  const late = status.jobs.filter(job => waits(job).length).length, down = status.peers.filter(p => !p.self && !p.up).length;

  remember(status.jobs, Date.now());
  document.title = `${status.verdict === 'ok' ? '' : `${VERDICTS[status.verdict]} `}${status.node}: zerod`;
  show(id('node'), `on ${status.node}`);
  show(id('findings'), ...status.findings.map(finding));
  show(id('facts'), `${VERDICTS[status.verdict]} ${status.verdict} · ${plural(status.peers.length, 'node')}, ${down ? `⚠ ${down} down` : 'all up'} · ` +
    `${plural(status.jobs.length, 'job')}, ${late ? `⚠ ${late} waiting` : 'none waiting'} · ` +
    `zerod ${status.version}, up ${duration(status.uptime_s)}`);
  showJobs(status.jobs, map.jobs, status.node);
  show(id('attaching'), ...status.attaching.map(a => make('li', {}, `⚠ Rank ${a.rank} of job `, name(a.job),
    `, process ${a.pid}, waits for `, name(a.for), `: ${a.what}, ${since(a.since_s)}`)));
  show(id('members'), membersText(members));
  show(id('nodes'), ...status.peers.map(nodeCard));
  show(id('memory'), ...memoryCards(status));
}

/* ---- reading ---- */

let token = null, heard = null, timer = null, ticks = 0;

class TokenWanted extends Error {}

async function read(path) {
  const answer = await fetch(path, { headers: token ? { Authorization: `Bearer ${token}` } : {}, signal: AbortSignal.timeout(PATIENCE_MS) });

  if (answer.status === 401) throw new TokenWanted(token ? 'that is not the token' : '');
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}

function showTrouble(why) {
  const wanted = why instanceof TokenWanted;

  id('ask').hidden = !wanted;
  id('trouble').hidden = !why || wanted && !why.message;
  document.body.classList.toggle('old', Boolean(why) && !wanted);
  if (!why) return;
  show(id('trouble'), wanted ? `✕ ${why.message}` : `✕ No answer from zerod: ${why.message}. ` +
    (heard ? `What is below is of ${clock(heard)}.` : ''));
}

// A tick that begins while another one reads, with another token, is the one that shows and goes on.
async function tick() {
  const mine = ++ticks;
  let trouble = null;

  clearTimeout(timer);
  try {
    const answers = await Promise.all(['api/status', 'api/members', 'api/map'].map(read));
    if (mine !== ticks) return;
    showAll(...answers);
    heard = Date.now();
  } catch (why) {
    trouble = why;
  }
  if (mine !== ticks) return;
  showTrouble(trouble);
  if (!(trouble instanceof TokenWanted)) timer = setTimeout(tick, EVERY_MS);
}

id('ask').addEventListener('submit', event => {
  event.preventDefault();
  token = id('token').value.trim();
  tick();
});
tick();
