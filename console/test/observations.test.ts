import assert from "node:assert/strict";
import { test } from "node:test";
import { needsAttention } from "../src/attention";
import type { Live, Replica, TierRow } from "../src/contract";
import { Observations } from "../src/observations";

const BUCKETS = [1, 2];

function replica(changes: Partial<Replica> = {}): Replica {
  return {
    name: "http://10.0.0.1:8000",
    pool: "llama",
    state: "open",
    seats: 8,
    light_seats: 2,
    is_light: false,
    is_retiring: false,
    is_behind: false,
    aboard: {},
    strangers: 0,
    tokens: 0,
    ...changes,
  };
}

function row(changes: Partial<TierRow> = {}): TierRow {
  return {
    model: "llama",
    tier: "fast",
    pool: "llama",
    floor_tps: 60,
    target_tps: null,
    price_multiple: 2,
    wanted: 0,
    ready: 0,
    held: 0,
    calls: { finished: 0, refused: 0, failed: 0 },
    kept: 0,
    missed: 0,
    prompt_tokens: 0,
    output_tokens: 0,
    first_token: { buckets: BUCKETS, counts: [0, 0, 0] },
    speed: { buckets: BUCKETS, counts: [0, 0, 0] },
    ...changes,
  };
}

function live(at: number, changes: Partial<Live> = {}): Live {
  return {
    at,
    version: "1",
    cell: null,
    processes_unanswered: 0,
    lag: { buckets: BUCKETS, counts: [0, 0, 0] },
    sockets: 0,
    replicas: [replica()],
    more_replicas: 0,
    tiers: [row()],
    auto: [],
    ...changes,
  };
}

function seen(...answers: Live[]): Observations {
  const observations = new Observations();
  for (const answer of answers) observations.take(answer);
  return observations;
}

test("the speed of a replica is the growth of its tokens", () => {
  const now = replica({ tokens: 300, aboard: { fast: 4 }, strangers: 9 });
  const two = seen(live(0, { replicas: [replica({ tokens: 100 })] }), live(2, { replicas: [now] }));
  assert.deepEqual(two.speedOf("http://10.0.0.1:8000"), { all: 100, each: 25 });
  assert.equal(two.trail.at(-1)?.tokens, 100);
});

test("a replica that does not tell its tokens has no speed", () => {
  const unknown = replica({ tokens: null });
  assert.equal(seen(live(0, { replicas: [unknown] }), live(1, { replicas: [unknown] })).speedOf(unknown.name), null);
});

test("a tier's figures come from two answers", () => {
  const later = row({
    calls: { finished: 18, left: 2, refused: 1 },
    kept: 17,
    missed: 1,
    output_tokens: 500,
    first_token: { buckets: BUCKETS, counts: [20, 0, 0] },
    speed: { buckets: BUCKETS, counts: [0, 20, 0] },
  });
  const figures = seen(live(0), live(10, { tiers: [later] })).figuresOf(later);
  assert.deepEqual([figures.calls, figures.output, figures.refused, figures.kept, figures.missed], [2.1, 50, 1, 17, 1]);
  assert.deepEqual([figures.firstToken?.p50.value, figures.speed?.value], [0.5, 1.5]);
});

test("a tier's first call counts, although its histograms had no buckets before", () => {
  const none = { buckets: [], counts: [] };
  const first = row({ calls: { finished: 1 }, kept: 1, speed: { buckets: BUCKETS, counts: [0, 1, 0] } });
  const figures = seen(live(0, { tiers: [row({ calls: {}, first_token: none, speed: none })] }), live(1, { tiers: [first] })).figuresOf(first);
  assert.deepEqual([figures.calls, figures.kept, figures.speed?.value], [1, 1, 1.5]);
});

test("when a process stops answering, counters are not compared over that moment", () => {
  const tiers = [row({ calls: { refused: 5 } })];
  const observations = seen(live(0), live(1, { tiers, processes_unanswered: 1 }));
  assert.equal(observations.figuresOf(tiers[0] as TierRow).refused, 0);
  observations.take(live(2, { tiers: [row({ calls: { refused: 6 } })], processes_unanswered: 1 }));
  assert.equal(observations.figuresOf(row()).refused, 1);
});

test("nothing needs attention", () => {
  assert.deepEqual(needsAttention(seen(live(0), live(1))), []);
});

test("what needs attention is said once, with its figures", () => {
  const bad = live(10, {
    processes_unanswered: 0,
    cell: { role: "leader", epoch: 1, lag_s: 0.001, relays: [{ name: "r2", calls: 0, beat_s: null }] },
    lag: { buckets: BUCKETS, counts: [0, 100, 0] },
    replicas: [replica({ state: "closed", strangers: 2 }), replica({ name: "b", is_behind: true })],
    tiers: [row({ wanted: 9, ready: 4, held: 1, calls: { refused: 3, failed: 1 }, kept: 9, missed: 1 })],
    auto: [{ model: "llama-auto", is_open: false, audits_waiting: 0, student: 0, full: 0, audits: {} }],
  });
  assert.deepEqual(needsAttention(seen(live(0), bad)), [
    "1 relay not connected: r2.",
    "The event loop is late: 2.0 s at the 99th percentile.",
    "1 replica closed: 10.0.0.1:8000.",
    "1 replica with a stream behind its floor: b.",
    "2 streams that nobody here sent: 10.0.0.1:8000.",
    "llama, fast: 9 seats wanted, 4 ready; 1 call waits.",
    "llama, fast: 3 calls refused in the last 10 s.",
    "llama, fast: 1 call failed in the last 10 s.",
    "llama, fast: 90.0 % of 10 floors kept in the last 10 s.",
    "llama-auto: the gate is closed, so the full model serves every call.",
  ]);
});
